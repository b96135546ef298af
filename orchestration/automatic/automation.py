"""What goes by itself: plans that ``[automation]`` lets be applied, the deletion queue, assets that follow a scan.

And approving a plan.

Belongs here: launching jobs. Not here: whether a plan may go (``pulsar_lifecycle/runs/automation_rule.py``); the job
that is launched checks everything anew, as if an operator had launched it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg
from dagster._core.storage.tags import RUN_KEY_TAG

from assets.deletion import DELETING
from assets.names import CLUSTER, EPOCH, NOTHING_DONE, PLAN, READER, key
from assets.pages import lineage, show
from assets.pages.failures import refusals_fail
from assets.pages.frame import Conditions, deps_updated
from assets.pages.switch import SWITCH
from orchestration.automatic.at_work import APPROVING, BY_ITSELF, DELETION, lease_of_job, without_dead
from orchestration.automatic.doorbell import Watch, rung
from orchestration.automatic.launches import LAUNCHES
from pulsar_lifecycle.automation_settings import Automation, AutomationSettings
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.inspect.automation import (
    KINDS,
    AutomatedKind,
    after_approval,
    after_withdrawal,
    approve_plan,
    decision_of,
    settings_of,
    stopping,
)
from pulsar_lifecycle.inspect.kept_plans import Plan
from pulsar_lifecycle.runs.automation_rule import PlanDecision
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import check_not_paused
from pulsar_lifecycle.values.plans import epoch_of
from resources.lifecycle import LifecycleResource

TRIES, AGAIN_AFTER_LOOKS = 3, 5
"""A run that failed before it did anything is launched again, so often at most, and after so many looks."""
IN_VAIN = 10
"""So often a plan is launched whose run was not to begin: sensor and runs may go by different settings."""


def automation_sensor(cluster: str, jobs: Mapping[str, Any], look_every: float) -> dg.SensorDefinition:
    """The one switch of all that changes the cluster by itself. ``jobs``: those of the code location by name."""
    launched = sorted({DELETING, *(launch.job for launch in LAUNCHES.values())})

    @dg.sensor(
        name=SWITCH,
        jobs=[jobs[name] for name in launched],
        minimum_interval_seconds=int(look_every),
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="The one switch of what changes the cluster by itself. Applies plans as far as `[automation]` of "
        f"the settings file lets it, and starts `{DELETING}` when an intent of the deletion or retry topic is due. "
        "Each tick says what becomes of the newest plan of each kind, by a code, and of the queue. "
        "It launches nothing while the cluster is paused, nor until a restore of the metadata store is accepted. "
        "Switched off, it lets runs go on that have begun, and those of a person: `pulsar-lifecycle pause` stops all.",
    )
    def ring(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult | dg.SkipReason:
        where = lifecycle.without_spark()
        now, said = where.clock.now_ms(), dict[str, str]()
        try:
            with where.ports(read_only=True) as ports:
                check_not_paused(ports.store)
            busy = {lease: run.run_id for lease, run in without_dead(context.instance, where, cluster, now).items()}
        except LifecycleError as error:
            return dg.SkipReason(str(error))
        requests: list[dg.RunRequest] = []
        asked: dict[str, str] = {}
        for kind in _by_turn(context.instance, cluster):
            launch, decided = LAUNCHES[kind.name], _decided(where, kind)
            said[kind.name] = decided if isinstance(decided, str) else f"{decided[0].code.value} ({decided[0].text})"
            if isinstance(decided, str) or not decided[0].goes or decided[1] is None:
                continue
            lease = lease_of_job(launch.job)
            run_key = next_run_key(context.instance, cluster, f"{kind.name}-{decided[1].plan_id}", now, look_every)
            if isinstance(run_key, Spent):
                said[kind.name] = run_key.text
            elif by_hand := launch.by_hand(context.instance, decided[1].plan_id):
                said[kind.name] += f", but run {by_hand}, launched by hand, is to apply it"
            elif waits := _turn((lease, launch.beside), busy, asked) or launch.waits(where):
                said[kind.name] += f", {waits}"
            else:
                asked[lease] = kind.name
                requests.append(_request(where, cluster, kind, run_key, decided[1]))
        watch = Watch.parse(context.cursor)
        queue = (
            f"once {asked[DELETION]} has gone"
            if DELETION in asked
            else rung(context, where, watch, cluster, now, int(look_every))
        )
        requests += [queue] if isinstance(queue, dg.RunRequest) else []
        if requests and (stopped := stopping(where)):  # each would fail, and its tries would be spent
            return dg.SkipReason(f"{stopped.code.value}: {stopped.text}")
        text = "; ".join([*(f"{kind.name}: {said[kind.name]}" for kind in KINDS), f"queue: {queue}"])
        return dg.SensorResult(requests, skip_reason=None if requests else text, cursor=watch.dump())

    return ring


def _by_turn(instance: dg.DagsterInstance, cluster: str) -> list[AutomatedKind]:
    """Who was launched longest ago comes first: a kind that always has something to do must not keep others from it.

    Who waits for the leases of others comes last: it would be refused beside what is launched at the same moment.
    """

    def launched(kind: AutomatedKind) -> float:
        newest = instance.get_run_records(dg.RunsFilter(tags={CLUSTER: cluster, BY_ITSELF: kind.name}), limit=1)
        return newest[0].create_timestamp.timestamp() if newest else 0.0

    return sorted(KINDS, key=lambda kind: (bool(LAUNCHES[kind.name].beside), launched(kind)))


def _turn(leases: Iterable[str], busy: Mapping[str, str], asked: Mapping[str, str]) -> str:
    """What a launch waits for that needs leases: a run (lease -> its id) or another launch of this tick; or nothing."""
    for lease in leases:
        if lease in busy:
            return f"once run {busy[lease]} is over"
        if lease in asked:
            return f"once {asked[lease]} has gone"
    return ""


def _decided(where: Cluster, kind: AutomatedKind) -> tuple[PlanDecision, Plan | None] | str:
    """What becomes of a kind's newest plan, or why that cannot be told: no other kind waits for that."""
    try:
        return decision_of(where, kind)
    except LifecycleError as error:
        return str(error)


@dataclass(frozen=True)
class Spent:
    """Why a plan that may go is not launched, now or any more."""

    text: str


def next_run_key(instance: dg.DagsterInstance, cluster: str, key: str, now: int, look_every: float) -> str | Spent:
    """The run key with which a plan is launched at ``now`` (ms).

    A run that failed is launched again, :data:`TRIES` times in all: a server may answer by now, a lease be free. A run
    that somebody ended, or that ended well, is not repeated. A run that was not to begin counts as no try; after
    :data:`IN_VAIN` of those no more is launched.
    """
    failed = in_vain = tried = 0
    while True:
        tried += 1
        run_key = key if tried == 1 else f"{key}-again-{tried}"
        records = instance.get_run_records(dg.RunsFilter(tags={RUN_KEY_TAG: run_key, CLUSTER: cluster}), limit=1)
        if not records:
            return run_key
        last, ended = records[0].dagster_run, records[0].end_time or records[0].update_timestamp.timestamp()
        nothing_done = last.tags.get(NOTHING_DONE) == last.run_id
        if not nothing_done and last.status is not dg.DagsterRunStatus.FAILURE:
            return Spent(f"its run {last.run_id} is {last.status.value.lower()}")
        failed, in_vain = failed + (not nothing_done), in_vain + nothing_done
        if in_vain == IN_VAIN:
            return Spent(f"its runs were not to begin {IN_VAIN} times, the page of the last, {last.run_id}, says why")
        if failed == TRIES:
            return Spent(f"its runs failed {TRIES} times, the last is {last.run_id}: that was the last try")
        if 0 <= now / 1000 - ended < AGAIN_AFTER_LOOKS * look_every:
            did = "did nothing" if nothing_done else "failed"
            return Spent(f"its run {last.run_id} {did}: it is launched again in a while")


def _request(where: Cluster, cluster: str, kind: AutomatedKind, run_key: str, plan: Plan) -> dg.RunRequest:
    launch = LAUNCHES[kind.name]
    tags = {CLUSTER: cluster, PLAN: plan.plan_id, EPOCH: epoch_of(plan.plan_id), BY_ITSELF: kind.name}
    return dg.RunRequest(
        run_key=run_key,
        job_name=launch.job,
        run_config=launch.run_config(where, plan, settings_of(where, kind)),
        tags={tag: value for tag, value in tags.items() if value},
    )


class ApprovalConfig(dg.Config):
    """Which plan, by id and digest, and who approves it; ``withdraw`` takes the approval back."""

    plan_id: str
    digest: str
    by: str
    withdraw: bool = False


@dg.op(
    name="approve",
    description="Write into the journal who approved which plan; the sensor `automation` then applies it.",
)
@refusals_fail()
def approve_op(context: dg.OpExecutionContext, config: ApprovalConfig, lifecycle: LifecycleResource) -> None:
    """Refused for another digest than the plan's, and for a plan that is report-only, expired or of another cluster."""
    where = lifecycle.without_spark()
    lineage.about_plan(context, where, config.plan_id)
    done = approve_plan(where, context.run_id, config.plan_id, config.digest, config.by, withdraw=config.withdraw)
    word = "withdrawn" if config.withdraw else "approved"  # whatever becomes of this run, so the journal has it by now
    context.log.info(f"the journal has it: {config.plan_id} is {word} by {done.by}")
    found: dict[str, str | dg.MetadataValue] = {"plan id": config.plan_id}
    if config.withdraw:
        found["withdrawn"] = f"by {done.by}"
    else:
        found["approved"] = f"by {done.by}"
        found["until"] = dg.MetadataValue.timestamp(done.until / 1000)
    becomes = after_withdrawal if config.withdraw else after_approval
    found["by itself"] = show.bullets(becomes(where, config.plan_id))
    context.add_output_metadata(found)


@dg.job(
    name=APPROVING,
    executor_def=dg.in_process_executor,
    description="Approve a plan of a kind whose `[automation]` mode is `approve`, or take the approval back. Changes "
    "nothing but the journal.",
)
def approve_job() -> None:
    """The job has one op."""
    approve_op()


FOLLOWS = {
    "expired_ledgers": "retention",
    "retention_plan": "retention",
    "topics_to_load": "",
    "load_plan": "",
    "offload_candidates": "offload",
    "offload_plan": "offload",
    "storage_report": "",
    "bookie_disk": "",
    "collection_plan": "bookies",
    "topic_activity": "",
    "inactive_topics": "",
    "inactive_cursors": "",
    "inactive_topics_plan": "",
    "inactive_cursors_plan": "",
    "delayed_index_buckets": "delayed_index",
    "delayed_index_findings": "delayed_index",
    "delayed_messages_due": "delayed_index",
    "delayed_index_plan": "delayed_index",
}
"""Assets that follow each covered scan, and the kind whose mode, with those of `BESIDE`, may keep them from it."""
ANYWAY = frozenset({"bookie_disk", "collection_plan"})
"""Those that follow a scan that is not covered, too: bookies that are down are what may keep it from that. One op makes
both; the plan is report-only then."""
REPORT, HELD = "storage_report", ("open_ledgers", "subscription_backlog")
"""What follows each report instead: it judges by the positions of cursors that the report has read."""
BESIDE = {"offload": ("bookkeeper_copies",)}
"""Kinds that go by the plans of another one."""
GOING = (Automation.APPROVE, Automation.APPLY)
COSTLY = frozenset({"delayed_index"})
"""Kinds whose plans read too much to be made after each scan only to be looked at."""


def _modes(automation: AutomationSettings, kind: str) -> set[Automation]:
    """The modes of all kinds that go by the plans of a kind."""
    return {getattr(automation, one).mode for one in (kind, *BESIDE.get(kind, ()))}


def follows_scan(
    cluster: str, kind: str, automation: AutomationSettings, *, covered: bool = True
) -> dg.AutomationCondition[Any] | None:
    """Once a scan has ended, and, with ``covered``, is so; None where the kind's mode keeps it from that."""
    modes = _modes(automation, kind) if kind else {Automation.PLAN}
    if modes == {Automation.OFF} or (kind in COSTLY and modes.isdisjoint(GOING)):
        return None
    scan = dg.AssetSelection.assets(key(cluster, "scan_coverage"))
    ended = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.newly_updated()).allow(scan)
    # An asset that is done after a scan has ended may be of the scan before: only a request handles a scan.
    unrequested = ended.since(dg.AutomationCondition.newly_requested())
    due = (
        (deps_updated().since_last_handled() | unrequested)
        & ~dg.AutomationCondition.any_deps_in_progress()
        & ~dg.AutomationCondition.in_progress()
    )
    if not covered:
        return due.with_label("after each scan")
    passed = dg.AutomationCondition.all_deps_blocking_checks_passed().allow(scan)
    return (due & passed).with_label("after each covered scan")


def follows_report(cluster: str) -> dg.AutomationCondition[Any]:
    """Once the report is made, or in the run that makes it. Other dependencies are new before a scan has ended."""
    report = dg.AssetSelection.assets(key(cluster, REPORT))
    return (
        deps_updated().allow(report).since_last_handled()
        & ~dg.AutomationCondition.any_deps_in_progress().allow(report)
        & ~dg.AutomationCondition.in_progress()
    ).with_label("after each storage report")


def following(cluster: str, automation: AutomationSettings) -> Conditions:
    """What makes assets by itself, by their names."""
    after_scans = {
        name: follows_scan(cluster, kind, automation, covered=name not in ANYWAY) for name, kind in FOLLOWS.items()
    }
    return after_scans | dict.fromkeys(HELD, follows_report(cluster))


def awaited(automation: AutomationSettings, valid_for: float) -> Mapping[str, float]:
    """What follows scans, or is made each night instead, to go by itself or once approved: how old it may be (s).

    ``valid_for``: how long a plan is valid; where none is that young, nothing goes any more.
    """
    return {
        name: valid_for for name, kind in FOLLOWS.items() if kind and not _modes(automation, kind).isdisjoint(GOING)
    }


def following_sensor(cluster: str, look_every: float) -> dg.AutomationConditionSensorDefinition:
    """Makes what follows a scan; changes nothing of the cluster."""
    keys = [key(cluster, name) for name in (*FOLLOWS, *HELD)]
    return dg.AutomationConditionSensorDefinition(
        name="after_scan",
        target=dg.AssetSelection.assets(*keys),
        default_status=dg.DefaultSensorStatus.STOPPED,
        minimum_interval_seconds=int(min(30, look_every)),
        run_tags={READER: cluster},
        description="Makes the tables and plans that follow a scan, once it has ended and is covered; `bookie_disk` "
        "and `collection_plan` also where it is not. Changes nothing of the cluster.",
    )
