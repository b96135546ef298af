"""Job ``keep_consumed_records``: what the policy's subscriptions have consumed, planned and, if so set, deleted."""

from typing import Any

import dagster as dg

from orchestration.automatic.failures import wrong_configuration_fails
from orchestration.delete_records import answered, planned
from pulsar_lifecycle.delete_records.apply_run import apply_delete_records
from pulsar_lifecycle.delete_records.consumed import plan_consumed_records
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from resources.lifecycle import LifecycleResource

NOTHING_NAMED = "consumed_records.subscriptions in the settings file names nothing"


def keep_consumed_records(where: Cluster, run_id: str) -> dict[str, Any]:
    """Plan, and apply the plan where ``consumed_records.apply`` says so; what the run's page shows.

    Raises Refused for a plan that is report-only or beyond the caps of ``[apply]``; it waits for an operator then.
    """
    if not where.settings.consumed_records.subscriptions:
        return {"not done": NOTHING_NAMED}
    summary, rows, consumed = plan_consumed_records(where)
    shown: dict[str, Any] = {"stopped": len(consumed.stopped)}
    if consumed.stopped:
        first, why = next(iter(consumed.stopped.items()))
        shown["the first that is stopped"] = f"{first}: {why}"
    if summary is None or rows is None:
        return shown | {"partitions": 0}
    shown |= planned(summary, rows.to_pylist())
    if not where.settings.consumed_records.apply:
        return shown
    order = Order(summary.plan_id, summary.digest)
    results = apply_delete_records(where, run_id, order, dry_run=False)
    return shown | {f"applied: {name}": value for name, value in answered(results, dry_run=False).items()}


@dg.op(
    name="delete_consumed",
    description="Plan to delete what every subscription of the policy has acknowledged. With "
    "`consumed_records.apply` apply it at once, unless it exceeds the caps of `[apply]`.",
)
@wrong_configuration_fails()
def delete_consumed_op(context: dg.OpExecutionContext, lifecycle: LifecycleResource) -> None:
    """A topic that lacks a named subscription stays, and is shown."""
    context.add_output_metadata(keep_consumed_records(lifecycle.cluster(), context.run_id))


@dg.job(
    name="keep_consumed_records",
    executor_def=dg.in_process_executor,
    description="Delete what all subscriptions that `consumed_records.subscriptions` names have acknowledged, whatever "
    "retention says: a plan, and its application if `consumed_records.apply` says so.",
)
def keep_consumed_records_job() -> None:
    """One op."""
    delete_consumed_op()


@dg.schedule(
    name="hourly_consumed_records",
    job=keep_consumed_records_job,
    cron_schedule="37 * * * *",
    default_status=dg.DefaultScheduleStatus.STOPPED,
    description="Starts `keep_consumed_records`, if `consumed_records.subscriptions` names anything.",
)
def consumed_records_schedule(lifecycle: LifecycleResource) -> dg.RunRequest | dg.SkipReason:
    """Half an hour after a scan."""
    named = lifecycle.without_spark().settings.consumed_records.subscriptions
    return dg.RunRequest() if named else dg.SkipReason(NOTHING_NAMED)
