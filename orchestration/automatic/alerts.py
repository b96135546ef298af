"""Alarms: a run that failed, and a bookie that became read-only. Both are posted, and ship stopped.

Belongs here: telling. Not here: mending: a run that failed is repeated by a schedule, a sensor or an operator.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import dagster as dg

from assets.lifecycle.bookies import WRITABLE
from assets.names import EPOCH, PLAN, READER, key
from pulsar_lifecycle.errors import ConfigError, LifecycleError
from pulsar_lifecycle.ports import Unread
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import Settings
from resources.lifecycle import LifecycleResource

LONGEST_MESSAGE = 4_000
"""Characters of an error that an alert holds."""


def failure_document(cluster: str, run: dg.DagsterRun, message: str) -> dict[str, Any]:
    """What a webhook is told of a run that failed; nothing of its configuration."""
    tags = {name: run.tags[name] for name in (PLAN, EPOCH) if name in run.tags}
    error = message[:LONGEST_MESSAGE]
    text = f"pulsar-lifecycle, {cluster}: job {run.job_name} failed: {error}"
    return {"text": text, "cluster": cluster, "job": run.job_name, "run_id": run.run_id, "error": error, **tags}


def read_only_document(cluster: str, bookies: Sequence[str]) -> dict[str, Any]:
    """What a webhook is told of bookies that have become read-only."""
    text = f"pulsar-lifecycle, {cluster}: read-only by now: {', '.join(bookies)}; `pulsar-lifecycle bookies` says why"
    return {"text": text, "cluster": cluster, "bookies": list(bookies)}


def cause_of(event: dg.DagsterEvent) -> str:
    """Why a step failed: the words of its Failure or of our error, else the error without Dagster's own around it."""
    failure = event.step_failure_data
    if failure.user_failure_data and failure.user_failure_data.description:
        return failure.user_failure_data.description
    error = failure.error
    message = ((error.cause or error).message if error else "").strip()
    return message.partition(": ")[2] if message.startswith(f"{LifecycleError.__module__}.") else message


def of_no_step(run: dg.DagsterRun, message: str | None) -> str:
    """Why a run failed of which no step did, such as one that was killed: it could say nothing of what it had done."""
    did = (
        f"no step says why: was its process killed? `pulsar-lifecycle journal --run {run.run_id}` has what it did, "
        "but for the batch that it was at: intents that it had just sent are in the queue alone"
    )
    return f"{message}; {did}" if message else did


def failed_runs_sensor(cluster: str, loaded: Settings | None) -> dg.SensorDefinition:
    """Posts every failed run of this code location to ``automation.alert_webhook``.

    ``loaded``: the settings with which the location was loaded; a file that is wrong by now hides no alert.
    """

    @dg.run_failure_sensor(
        name="failed_runs",
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Posts each failed run as JSON to `automation.alert_webhook` of the settings file, with its plan "
        "and scan. A post that fails is not repeated: the tick fails.",
    )
    def alarm(context: dg.RunFailureSensorContext, lifecycle: LifecycleResource) -> dg.SkipReason | None:
        try:
            where = lifecycle.without_spark()
        except ConfigError:
            if loaded is None:
                raise
            where = Cluster(loaded, lifecycle.opener(), lifecycle.path())
        with where.ports(read_only=True) as ports:
            if ports.alerts is None:
                return dg.SkipReason("automation.alert_webhook is not set")
            causes = [cause_of(event) for event in context.get_step_failure_events()]
            message = next(filter(None, causes), "") or of_no_step(context.dagster_run, context.failure_event.message)
            ports.alerts.send(failure_document(cluster, context.dagster_run, message))
        return None

    return alarm


def read_only_bookies(where: Cluster) -> list[str]:
    """Bookies that are registered as read-only. Raises LifecycleError where that cannot be read."""
    path = f"{where.settings.bookkeeper.ledgers_root}/available/readonly"
    with where.ports(read_only=True) as ports:
        found = ports.store.children([path])[0]
    if isinstance(found, Unread):
        raise LifecycleError(f"{path}: {found.reason}")
    return sorted(found.names) if found else []


@dataclass(frozen=True)
class _ReadOnly:
    """What the alarm knows between ticks: which bookies were read-only, and which of them were posted."""

    seen: list[str]
    told: list[str]

    @classmethod
    def parse(cls, cursor: str | None) -> "_ReadOnly":
        """None yet is as if none were. A list, as it was stored before, was seen, and not posted."""
        stored = json.loads(cursor or "[]")
        return cls(stored, []) if isinstance(stored, list) else cls(**stored)

    def dump(self) -> str:
        return json.dumps(asdict(self))


def read_only_sensor(cluster: str, job: Any) -> dg.SensorDefinition:
    """Rings when a bookie has become read-only, or is so no more."""
    asset_key = key(cluster, "bookie_disk")

    @dg.sensor(
        name="bookie_read_only",
        job=job,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="When the set of read-only bookies changes: starts `report_storage`, which tells whether those "
        "that are so no more are writable, or gone. Those that have become so turn the check `bookies_writable` of "
        "`bookie_disk` at once, and are posted to `automation.alert_webhook`. Changes nothing of the cluster. A post "
        "that fails is repeated, and fails the tick.",
    )
    def ring(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult | dg.SkipReason:
        try:
            where = lifecycle.without_spark()
            now = read_only_bookies(where)
        except LifecycleError as error:
            return dg.SkipReason(f"the bookies could not be asked for: {error}")
        before = _ReadOnly.parse(context.cursor)
        told, unchanged = sorted(set(now) & set(before.told)), now == before.seen
        if new := sorted(set(now) - set(told)):
            try:
                _post(where, cluster, new)
                told = now
            except LifecycleError as error:
                if unchanged:
                    raise
                context.log.warning(f"not posted yet, the next tick tries again: {error}")  # the check does not wait
        known = _ReadOnly(now, told)
        if unchanged:
            return dg.SensorResult(skip_reason=f"{len(now)} bookies are read-only, as before", cursor=known.dump())
        found = dg.AssetCheckEvaluation(
            asset_key=asset_key,
            check_name=WRITABLE,
            passed=False,
            severity=dg.AssetCheckSeverity.ERROR,
            description=f"read-only: {', '.join(now)}",
        )
        requests = [dg.RunRequest(tags={READER: cluster})]
        return dg.SensorResult(requests, asset_events=[found] if now else [], cursor=known.dump())

    return ring


def _post(where: Cluster, cluster: str, bookies: Sequence[str]) -> None:
    with where.ports(read_only=True) as ports:
        if ports.alerts is not None:
            ports.alerts.send(read_only_document(cluster, bookies))
