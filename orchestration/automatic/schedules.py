"""What looks by itself: the hourly scan and its like, the alarm of the dead letters. All ship stopped.

Not here: what changes the cluster by itself (``automatic/automation.py``).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from assets import dead_letters
from assets.dead_letters import PartialReader, open_reader
from assets.names import READER, key
from assets.pages.epochs import epoch_of
from orchestration.automatic.at_work import ACTIVE
from orchestration.automatic.doorbell import PAGE
from pulsar_lifecycle.automation_settings import Schedules
from pulsar_lifecycle.deletion.redrive import letters_of
from pulsar_lifecycle.deletion_queue.missing_topics import subscribe_everywhere
from pulsar_lifecycle.deletion_queue.queue_topics import DLQ_TOPIC
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.ports import QueueReader, Received
from resources.lifecycle import LifecycleResource


def looking_schedules(
    cluster: str,
    crons: Schedules,
    scan: Any,
    inventory: Any,
    reconcile: Any,
    watch: Any,
    retention: Any,
    delayed_index: Any,
) -> list[dg.ScheduleDefinition]:
    """What looks at times of its own; none of them changes the cluster."""

    def planned(instance: dg.DagsterInstance) -> str:
        plan, scanned = key(cluster, "retention_plan"), epoch_of(instance, key(cluster, "scan_coverage"))
        if scanned and scanned == epoch_of(instance, plan):
            return f"scan {scanned} has its plan: sensor after_scan makes one of each"
        active = instance.get_runs(dg.RunsFilter(statuses=list(ACTIVE), tags={READER: cluster}))
        making = [run.run_id for run in active if plan in (run.asset_selection or ())]
        return f"run {making[0]}, which sensor after_scan started, makes the plan" if making else ""

    plans = "Plans what is past its retention, where sensor `after_scan` does not. Changes nothing."
    return [
        _looking(cluster, "nightly_retention", retention, crons.retention, plans, planned),
        *(
            _looking(cluster, name, job, cron, text)
            for name, job, cron, text in (
                ("hourly_scan", scan, crons.scan, "Scans, judges and plans what nothing refers to. Changes nothing."),
                ("nightly_inventory", inventory, crons.inventory, "Lists the buckets. Changes nothing."),
                ("nightly_reconcile", reconcile, crons.reconcile, "Derives all intents again, as a dry run."),
                ("queue_watch", watch, crons.queue, "Looks at the deletion queue. Takes nothing."),
                (
                    "nightly_delayed_index",
                    delayed_index,
                    crons.delayed_index,
                    "Checks delayed indexes. Changes nothing.",
                ),
            )
        ),
    ]


def _looking(
    cluster: str, name: str, job: Any, cron: str, text: str, unless: Callable[[dg.DagsterInstance], str] = lambda _: ""
) -> dg.ScheduleDefinition:
    """A schedule of a job that :func:`unless_at_it` starts. ``unless``: why it need not; empty if it must."""

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"{text} Leaves a time out while the run before it is not over.",
    )
    def ring(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        why = unless(context.instance)
        return dg.SkipReason(why) if why else unless_at_it(context.instance, cluster, job.name)

    return ring


def unless_at_it(instance: dg.DagsterInstance, cluster: str, job: str) -> dg.RunRequest | dg.SkipReason:
    """A run of a job, unless the one that was so started before waits or works: runs would pile up.

    After an outage Dagster makes up for several times at once.
    """
    active = dg.RunsFilter(job_name=job, statuses=list(ACTIVE), tags={READER: cluster})
    before = instance.get_runs(active, limit=1)
    if before:
        return dg.SkipReason(f"run {before[0].run_id}, which it started before, is not over")
    return dg.RunRequest(tags={READER: cluster})


def dead_letter_sensor(cluster: str) -> dg.SensorDefinition:
    """Reports every dead letter once, and keeps the dead-letter topic's subscription alive."""
    asset_key = key(cluster, dead_letters.NAME)

    @dg.sensor(
        name="dead_letters",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Reports new dead letters as a materialization of `dead_letters` and its check. Gives the queue's "
        "topics the durable subscription back where it is missing. Sends and takes nothing.",
    )
    def alarm(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult | dg.SkipReason:
        where = lifecycle.without_spark()
        before = Reported.parse(context.cursor)
        try:
            with open_reader(where) as (admin, reader):
                mended = subscribe_everywhere(admin)
                new, upto = _new_letters(PartialReader(reader), before.upto)
                found, unread = dead_letters.look_at(reader)
            cursor = Reported(upto, found.count).dump()
            if not new and not mended and found.count == before.count:
                news = f"not all could be read: {unread}" if unread else "none of them new"
                return dg.SensorResult(skip_reason=f"{found.count} dead letters, {news}", cursor=cursor)
            reasons = dead_letters.reasons_of(found, where)
        except LifecycleError as error:
            return dg.SkipReason(f"the dead letters could not be read: {error}")
        picture = dead_letters.picture_of(found, unread, reasons, where.clock.now_ms())
        verdict, fresh = picture.verdict(mended), letters_of(new, reasons)
        shown: Mapping[str, Any] = {
            **picture.shown(),
            "new": len(fresh),
            "new dead letters": dead_letters.sample(fresh),
            "subscriptions made again": ", ".join(map(str, mended)) or "none",
        }
        return dg.SensorResult(
            asset_events=[
                dg.AssetMaterialization(asset_key, metadata=shown, description=verdict.text),
                dg.AssetCheckEvaluation(
                    asset_key=asset_key,
                    check_name=dead_letters.CHECK,
                    passed=verdict.passed,
                    severity=verdict.severity,
                    description=verdict.text,
                    metadata={"dead letters": found.count},
                ),
            ],
            cursor=cursor,
        )

    return alarm


@dataclass
class Reported:
    """What the alarm knows between ticks: up to where it reported each partition, and how many there were.

    Without it, what still waits is reported once more.
    """

    upto: dict[str, Position] = field(default_factory=dict[str, Position])
    count: int = 0

    @classmethod
    def parse(cls, cursor: str | None) -> "Reported":
        """A cursor that we did not write, or not in this form, is none."""
        try:
            stored = json.loads(cursor or "{}")
            return cls({name: Position(*where) for name, where in stored["upto"].items()}, int(stored["count"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def dump(self) -> str:
        """As the sensor's cursor: one entry a partition."""
        upto = {name: [position.ledger_id, position.entry_id] for name, position in self.upto.items()}
        return json.dumps({"upto": upto, "count": self.count})


def _new_letters(reader: QueueReader, seen: Mapping[str, Position]) -> tuple[list[Received], dict[str, Position]]:
    """One page of every partition, behind what was reported; what is left over is the next tick's."""
    new: list[Received] = []
    upto: dict[str, Position] = {}
    for part in reader.partitions(DLQ_TOPIC):
        page = reader.waiting(part, seen.get(str(part)), PAGE)
        new += page.messages
        upto[str(part)] = page.upto
    return new, upto
