"""Jobs ``plan_retention`` and ``apply_retention``: look what is past its retention, and have it leave its topics."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.names import key
from assets.pages import lineage, show
from assets.pages.failures import refusals_fail
from orchestration.automatic.may_begin import may_begin
from orchestration.jobs import PlanConfig
from orchestration.trimming import finish
from pulsar_lifecycle.trimming.retention_run import apply_retention
from resources.lifecycle import LifecycleResource


def plan_retention_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Judge the newest scan's ledgers by the retention policies in force; writes nothing to the cluster."""
    return dg.define_asset_job(
        "plan_retention",
        selection=[key(cluster, name) for name in ("expired_ledgers", "retention_plan")],
        description="Which ledgers of topics that no broker has loaded are past their retention, and the plan. Loads "
        "no topic, and writes nothing to the cluster.",
        executor_def=dg.in_process_executor,
    )


class RetentionConfig(PlanConfig):
    """Which plan, how much of it, under which caps. Without ``dry_run = false``, nothing is sent or written."""

    dry_run: bool = True


@dg.op(
    name="trim_expired",
    description="Send a message for each planned ledger, then take those acknowledged off their topics' lists.",
)
@refusals_fail()
def trim_expired_op(context: dg.OpExecutionContext, config: RetentionConfig, lifecycle: LifecycleResource) -> None:
    """Refuses a stale, report-only or foreign plan. What changed since the plan stays, and is shown with its code."""
    where, order, dry_run = lifecycle.cluster(), config.order(), config.dry_run
    if not may_begin(context, where, config.plan_id):
        return
    with lineage.noted(context, where, config.plan_id, dry_run=dry_run):
        metadata = finish(
            dry_run,
            lambda report: apply_retention(where, context.run_id, order, dry_run=dry_run, report=report),
            context.log.info,
            show.everything(context.run_id, config.plan_id, dry_run=dry_run),
        )
    context.add_output_metadata(metadata)


@dg.job(
    name="apply_retention",
    executor_def=dg.in_process_executor,
    description="Apply a retention plan: its ledgers leave their topics' lists, a message to the deletion topic first. "
    "No topic is loaded. Dry run by default.",
)
def apply_retention_job() -> None:
    """The job has one op."""
    trim_expired_op()
