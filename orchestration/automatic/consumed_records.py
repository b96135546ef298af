"""Job ``plan_consumed_records``: what the policy's subscriptions have consumed, as a plan."""

from typing import Any

import dagster as dg

from assets.pages import show
from assets.pages.failures import refusals_fail
from assets.pages.growth import growth_text
from orchestration.automatic.schedules import unless_at_it
from orchestration.delete_records import planned
from pulsar_lifecycle.automation_settings import Automation
from pulsar_lifecycle.delete_records.consumed import plan_consumed_records
from pulsar_lifecycle.inspect.automation import growth_of, no_scan
from pulsar_lifecycle.runs.cluster import Cluster
from resources.lifecycle import LifecycleResource

NOTHING_NAMED = "consumed_records.subscriptions in the settings file names nothing"
OFF = "automation.consumed_records is off"
STOPPED = {"partition": "string", "code": "string", "reason": "string"}


def plan_consumed(where: Cluster) -> dict[str, Any]:
    """Plan; what the run's page shows. The sensor ``automation`` applies the plan as far as the settings let it."""
    if not where.settings.consumed_records.subscriptions:
        return {"not done": NOTHING_NAMED}
    summary, rows, consumed = plan_consumed_records(where)
    shown: dict[str, Any] = {"stopped": len(consumed.stopped)}
    if consumed.stopped:
        stopped = sorted(consumed.stopped.items(), key=lambda item: str(item[0]))
        rows_of = [{"partition": topic, "code": why.code, "reason": why.text} for topic, why in stopped]
        shown["what is stopped"] = show.table(rows_of, STOPPED)
    if consumed.empty:
        shown["namespaces without a topic"] = show.bullets(consumed.empty)
    if summary is None or rows is None:
        return shown | {"partitions": 0}
    mode = where.settings.automation.consumed_records.mode
    alone = show.by_itself(summary, mode)
    growth = {"growth": growth_text(growth_of(where, "consumed_records", summary))}
    return (
        shown
        | planned(summary, rows.to_pylist())
        | growth
        | ({"by itself": dg.MetadataValue.md(alone)} if alone else {})
    )


@dg.op(
    name="plan_consumed",
    description="Plan to delete what every subscription of the policy has acknowledged. Changes nothing.",
)
@refusals_fail()
def plan_consumed_op(context: dg.OpExecutionContext, lifecycle: LifecycleResource) -> None:
    """A topic that lacks a named subscription stays, and is shown."""
    context.add_output_metadata(plan_consumed(lifecycle.cluster()))


@dg.job(
    name="plan_consumed_records",
    executor_def=dg.in_process_executor,
    description="Plan to delete what all subscriptions that `consumed_records.subscriptions` names have acknowledged, "
    "whatever retention says. Job `delete_records` applies it, by itself if `automation.consumed_records` says so.",
)
def plan_consumed_records_job() -> None:
    """The job has one op."""
    plan_consumed_op()


def consumed_records_schedule(cron: str) -> dg.ScheduleDefinition:
    """Half an hour after a scan, unless the settings say when."""

    @dg.schedule(
        name="hourly_consumed_records",
        job=plan_consumed_records_job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description="Starts `plan_consumed_records`, if `consumed_records.subscriptions` names anything and "
        "`automation.consumed_records` is not off, where plans may go by the newest scan. Leaves a time out while the "
        "run before it is not over.",
    )
    def ring(context: dg.ScheduleEvaluationContext, lifecycle: LifecycleResource) -> dg.RunRequest | dg.SkipReason:
        where = lifecycle.without_spark()
        settings = where.settings
        if settings.automation.consumed_records.mode is Automation.OFF:
            return dg.SkipReason(OFF)
        if not settings.consumed_records.subscriptions:
            return dg.SkipReason(NOTHING_NAMED)
        if why := no_scan(where):
            return dg.SkipReason(why)
        return unless_at_it(context.instance, settings.cluster, plan_consumed_records_job.name)

    return ring
