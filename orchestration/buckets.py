"""Jobs ``inventory_objects`` and ``sweep_objects``: look what is in the buckets, and have go what nothing needs."""

from collections import Counter
from typing import Any

import dagster as dg
import pyarrow as pa
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.buckets import rows_shown
from assets.names import key
from assets.pages import lineage, show
from assets.pages.failures import refusals_fail
from orchestration.automatic.may_begin import may_begin
from orchestration.jobs import PlanConfig
from pulsar_lifecycle.tiered.buckets.bucket_runs import Swept, rows_to_sweep, sweep
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource


def inventory_objects_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """List the buckets and judge every object by the newest scan; writes nothing to cluster or bucket."""
    return dg.define_asset_job(
        "inventory_objects",
        selection=[key(cluster, name) for name in ("object_inventory", "orphan_objects")],
        description="List the buckets, say of every object who reads it or why it stays, and plan what may go. Writes "
        "nothing to cluster or bucket.",
        executor_def=dg.in_process_executor,
    )


class SweepConfig(PlanConfig):
    """Which plan, how much of it, under which caps. Without ``dry_run = false``, nothing is sent or aborted."""

    dry_run: bool = True


@dg.op(
    name="sweep",
    description="Send one message per planned copy to the deletion topic, and abort the planned uploads.",
)
@refusals_fail()
def sweep_op(context: dg.OpExecutionContext, config: SweepConfig, lifecycle: LifecycleResource) -> None:
    """Refuses a stale, report-only or foreign plan and one that exceeds its caps."""
    where = lifecycle.cluster()
    if config.dry_run:
        rows: pa.Table = rows_to_sweep(where, config.order())
        everything = show.everything(context.run_id, config.plan_id, dry_run=True)
        context.add_output_metadata({"dry run": True, **rows_shown(rows), **everything})
        context.log.info(f"dry run: {rows.num_rows} copies and uploads would go; set dry_run to false")
        return
    if not may_begin(context, where, config.plan_id):
        return
    with lineage.noted(context, where, config.plan_id):
        done = sweep(where, context.run_id, config.order(), context.log.info)
    metadata = {**_done(done), **show.everything(context.run_id)}
    failed = [one for one in done.dropped if one.outcome == Outcome.RETRYING]
    if done.applied.failed or failed:
        first = done.applied.first_error or f"{failed[0].key}: {failed[0].reason}"
        raise dg.Failure(
            f"{done.applied.failed} intents could not be sent and {len(failed)} uploads not be aborted, the first: "
            f"{first}; apply the plan again to do the rest",
            metadata=metadata,
        )
    context.add_output_metadata(metadata)


def _done(done: Swept) -> dict[str, Any]:
    said = Counter((one.outcome, one.why.code) for one in done.dropped)
    reasons = {(one.outcome, one.why.code): one.reason for one in reversed(done.dropped)}
    cells = [(*key, count, reasons[key]) for key, count in said.most_common(show.SAMPLE)]
    return {
        "dry run": False,
        "sent": done.applied.sent,
        "sent before": done.applied.already,
        "failed": done.applied.failed,
        "not tried": done.applied.left,
        "uploads": dg.MetadataValue.md(show.markdown(["outcome", "code", "uploads", "such as"], cells)),
    }


@dg.job(
    name="sweep_objects",
    executor_def=dg.in_process_executor,
    description="Apply a plan of orphan objects: their intents go to the deletion topic, and uploads that our own "
    "offload runs left behind are aborted. Dry run by default.",
)
def sweep_objects_job() -> None:
    """The job has one op."""
    sweep_op()
