"""Jobs ``check_delayed_index`` and ``repair_delayed_index``: what is wrong with delayed indexes, and mending it."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.names import key
from assets.pages import lineage, show
from assets.pages.failures import refusals_fail, shown_at_the_end
from orchestration.automatic.may_begin import may_begin
from orchestration.jobs import PlanConfig
from pulsar_lifecycle.delayed_index.repair.repair_run import repair, undo_repair
from pulsar_lifecycle.delayed_index.repair.repair_work import Repaired
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource

COLUMNS = {"topic": "string", "subscription": "string", "level": "string", "outcome": "string", "why": "string"}


def check_delayed_index_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Read and judge the delayed indexes of the newest scan; writes nothing to the cluster."""
    names = ("delayed_index_buckets", "delayed_index_findings", "delayed_messages_due", "delayed_index_plan")
    return dg.define_asset_job(
        "check_delayed_index",
        selection=[key(cluster, name) for name in names],
        description="What delayed-index buckets hold, what is wrong with them, how many messages are due when, and the "
        "plan of repairs. Loads no topic, and writes nothing to the cluster.",
        executor_def=dg.in_process_executor,
    )


class RepairConfig(PlanConfig):
    """Which plan. Without ``dry_run = false``, nothing is written. ``undo``: give back the buckets that it changed."""

    dry_run: bool = True
    undo: bool = False


@dg.op(
    name="repair",
    description="Write new snapshots, then exchange the bucket properties of each planned subscription's cursor.",
)
@refusals_fail()
def repair_op(context: dg.OpExecutionContext, config: RepairConfig, lifecycle: LifecycleResource) -> None:
    """Refuses a stale, report-only or foreign plan. A subscription that changed since is left alone, with its code."""
    where, dry_run = lifecycle.cluster(), config.dry_run
    if not may_begin(context, where, config.plan_id):
        return
    everything = show.everything(context.run_id, config.plan_id, dry_run=dry_run)
    done: list[Repaired] = []
    with (
        shown_at_the_end(
            context,
            done,
            lambda done: {**shown(done, dry_run), **everything},
            "repairs ",
            lambda one: f"{one.subscription} of {one.topic}: {one.why.text}",
        ),
        lineage.noted(context, where, config.plan_id, dry_run=dry_run),
    ):
        if config.undo:
            undo_repair(where, context.run_id, config.plan_id, dry_run=dry_run, report=done.extend)
        else:
            repair(where, context.run_id, config.order(), dry_run=dry_run, report=done.extend)


def shown(done: Sequence[Repaired], dry_run: bool) -> dict[str, Any]:
    """What became of the subscriptions: totals by level, outcome and code, and a sample."""
    totals = Counter((one.level, one.outcome.value, one.why.code.value) for one in done)
    first = {Outcome.FAILED: 0, Outcome.LEFT: 1}
    rows = [
        {
            "topic": one.topic,
            "subscription": one.subscription,
            "level": one.level,
            "outcome": one.outcome.value,
            "why": one.why.text,
        }
        for one in sorted(done, key=lambda one: (first.get(one.outcome, 2), one.topic))
    ]
    cells = [(*group, number) for group, number in totals.most_common()]
    headers = ["level", "outcome", "code", "subscriptions"]
    return {
        "dry run": dry_run,
        "by outcome": dg.MetadataValue.md(show.markdown(headers, cells)),
        "sample": show.table(rows, COLUMNS),
    }


@dg.job(
    name="repair_delayed_index",
    executor_def=dg.in_process_executor,
    description="Apply a plan of repairs of delayed indexes, or undo one. Dry run by default.",
)
def repair_delayed_index_job() -> None:
    """The job has one op."""
    repair_op()
