"""What goes by itself: plans that ``[automation]`` lets be applied, assets that follow a scan, and approving a plan.

Belongs here: launching jobs. Not here: whether a plan may go (``pulsar_lifecycle/runs/automation_rule.py``); the job
that is launched checks everything anew, as if an operator had launched it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from assets.names import CLUSTER, EPOCH, PLAN, READER
from orchestration.automatic.failures import wrong_configuration_fails
from pulsar_lifecycle.automation_settings import Automation, KindAutomation
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.inspect.automation import KINDS, Plan, approve_plan, decision_of, settings_of
from pulsar_lifecycle.records.plans import epoch_of
from pulsar_lifecycle.runs.automation_rule import Decision
from pulsar_lifecycle.runs.caps import automation_caps
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import check_not_paused
from resources.lifecycle import LifecycleResource

BY_ITSELF = "lifecycle/automation"
"""Tag of runs that were launched by the sensor ``automation``: which kind."""
_ACTIVE = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Launch:
    """Which job applies plans of a kind, and with which configuration; ``lease`` is what its runs compete for."""

    job: str
    op: str
    config: Callable[[Cluster, Plan, KindAutomation], Config]
    lease: str = "deletion"


def _capped(where: Cluster, plan: Plan, kind: KindAutomation) -> Config:
    caps = automation_caps(where.settings, kind)
    return {
        "plan_id": plan.plan_id,
        "digest": plan.digest,
        "max_ledgers": caps.max_ledgers,
        "max_share": caps.max_share,
        "max_bytes": caps.max_bytes,
        "max_ledgers_per_topic": caps.max_ledgers_per_topic,
        "namespaces": list(kind.namespaces),
    }


def _for_good(where: Cluster, plan: Plan, kind: KindAutomation) -> Config:
    return {**_capped(where, plan, kind), "dry_run": False}


def _only(action: str) -> Callable[[Cluster, Plan, KindAutomation], Config]:
    def config(where: Cluster, plan: Plan, kind: KindAutomation) -> Config:
        named = {"plan_id": plan.plan_id, "digest": plan.digest, "namespaces": list(kind.namespaces)}
        return {**named, "only": action, "limit": kind.max_ledgers}

    return config


LAUNCHES = {
    "orphans": Launch("apply_plan", "send_intents", _capped),
    "retention": Launch("apply_retention", "trim_expired", _for_good),
    "offload": Launch("offload", "offload_ledgers", _only("offload"), "offload"),
    "bookkeeper_copies": Launch("offload", "offload_ledgers", _only("release"), "offload"),
    "objects": Launch("sweep_objects", "sweep", _for_good),
    "delayed_index": Launch("repair_delayed_index", "repair", _for_good),
    "consumed_records": Launch("delete_records", "delete_before", _for_good),
}
"""By the kind's key in ``[automation]``."""
_LEASES = {"offload": "offload", "revert_offloads": "offload", "collect_bookies": "collection"}
"""By job; all others need that of deletions."""


def automation_sensor(cluster: str, jobs: list[Any], look_every: float) -> dg.SensorDefinition:
    """The one switch of everything that changes the cluster by itself."""

    @dg.sensor(
        name="automation",
        jobs=jobs,
        minimum_interval_seconds=int(look_every),
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Applies plans by itself, as far as `[automation]` of the settings file lets it: each tick says "
        "by a code what becomes of the newest plan of each kind. Silent while the cluster is paused.",
    )
    def ring(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult | dg.SkipReason:
        where = lifecycle.without_spark()
        try:
            with where.ports(read_only=True) as ports:
                check_not_paused(ports.store)
            decided = {kind.name: decision_of(where, kind) for kind in KINDS}
        except LifecycleError as error:
            return dg.SkipReason(str(error))
        active = context.instance.get_runs(dg.RunsFilter(statuses=_ACTIVE, tags={CLUSTER: cluster}))
        busy = {_LEASES.get(run.job_name, "deletion") for run in active}
        requests: list[dg.RunRequest] = []
        for name, (decision, plan) in decided.items():
            launch = LAUNCHES[name]
            if decision.goes and plan is not None and launch.lease not in busy:
                busy.add(launch.lease)
                requests.append(_request(where, cluster, name, launch, plan))
        requests += [] if "collection" in busy else _collection(where, cluster)
        return dg.SensorResult(requests, skip_reason=None if requests else said(decided))

    return ring


def said(decided: Mapping[str, tuple[Decision, Plan | None]]) -> str:
    """What becomes of each kind, in one line."""
    return "; ".join(f"{name}: {one.code.value} ({one.text})" for name, (one, _) in decided.items())


def _request(where: Cluster, cluster: str, name: str, launch: Launch, plan: Plan) -> dg.RunRequest:
    kind = next(one for one in KINDS if one.name == name)
    config = launch.config(where, plan, settings_of(where, kind))
    tags = {CLUSTER: cluster, PLAN: plan.plan_id, EPOCH: epoch_of(plan.plan_id), BY_ITSELF: name}
    return dg.RunRequest(
        run_key=f"{name}-{plan.plan_id}",
        job_name=launch.job,
        run_config={"ops": {launch.op: {"config": dict(config)}}},
        tags={tag: value for tag, value in tags.items() if value},
    )


def _collection(where: Cluster, cluster: str) -> list[dg.RunRequest]:
    """Bookies collect once in each window: which of them, the run finds out."""
    kind = where.settings.automation.bookies
    opened = kind.window.opened_at(where.clock.now_ms()) if kind.window else None
    if kind.mode is not Automation.APPLY or opened is None:
        return []
    config = {"ops": {"collect": {"config": {"dry_run": False}}}}
    tags = {CLUSTER: cluster, BY_ITSELF: "bookies"}
    return [dg.RunRequest(f"bookies-{opened}", config, tags, job_name="collect_bookies")]


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
@wrong_configuration_fails()
def approve_op(context: dg.OpExecutionContext, config: ApprovalConfig, lifecycle: LifecycleResource) -> None:
    """Refused for another digest than the plan's, and for a plan that is report-only, expired or of another cluster."""
    done = approve_plan(
        lifecycle.without_spark(), context.run_id, config.plan_id, config.digest, config.by, withdraw=config.withdraw
    )
    context.add_output_metadata(
        {
            "plan id": config.plan_id,
            "withdrawn" if config.withdraw else "approved": f"by {done.by}",
            "until": dg.MetadataValue.timestamp(done.until / 1000),
        }
    )


@dg.job(
    name="approve_plan",
    executor_def=dg.in_process_executor,
    description="Approve a plan of a kind whose `[automation]` mode is `approve`, or take the approval back. Changes "
    "nothing but the journal.",
)
def approve_job() -> None:
    """One op."""
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
"""Assets that follow each covered scan, and the kind whose mode ``off`` keeps them from it."""


def follows_scan(cluster: str, kind: KindAutomation | None) -> dg.AutomationCondition[Any] | None:
    """Once a scan has ended whole, and its check has passed; None where the kind is off."""
    if kind is not None and kind.mode is Automation.OFF:
        return None
    scan = dg.AssetSelection.assets(dg.AssetKey([cluster, "scan_coverage"]))
    updated = dg.AutomationCondition.any_deps_match(
        dg.AutomationCondition.newly_updated() | dg.AutomationCondition.will_be_requested()
    )
    return (
        updated.since_last_handled()
        & dg.AutomationCondition.all_deps_blocking_checks_passed().allow(scan)
        & ~dg.AutomationCondition.any_deps_in_progress()
        & ~dg.AutomationCondition.in_progress()
    ).with_label("after each covered scan")


def following_sensor(cluster: str, look_every: float) -> dg.AutomationConditionSensorDefinition:
    """Makes what follows a scan; changes nothing of the cluster."""
    keys = [dg.AssetKey([cluster, name]) for name in FOLLOWS]
    return dg.AutomationConditionSensorDefinition(
        name="after_scan",
        target=dg.AssetSelection.assets(*keys),
        default_status=dg.DefaultSensorStatus.STOPPED,
        minimum_interval_seconds=int(min(30, look_every)),
        run_tags={READER: cluster},
        description="Makes the tables and plans that follow a scan, once it has ended and is covered. Changes nothing "
        "of the cluster.",
    )
