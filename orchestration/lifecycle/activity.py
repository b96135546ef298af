"""Jobs ``report_activity``, ``delete_inactive_topics`` and ``delete_inactive_subscriptions``."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.names import key
from assets.pages import lineage, show
from assets.pages.failures import refusals_fail, shown_at_the_end
from orchestration.jobs import PlanConfig
from orchestration.trimming import finish
from pulsar_lifecycle.lifecycle.activity.cursor_run import DeletedSubscription, delete_subscriptions
from pulsar_lifecycle.trimming.inactive_run import delete_inactive
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource

ASSETS = ("topic_activity", "inactive_topics", "inactive_cursors", "inactive_topics_plan", "inactive_cursors_plan")


def report_activity_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Judge the newest scan; writes nothing to the cluster."""
    return dg.define_asset_job(
        "report_activity",
        selection=[key(cluster, name) for name in ASSETS],
        description="When topics and subscriptions were used last, by our own history over scans, which of them nobody "
        "uses, and the plans to delete them. To be run after each scan. Loads no topic, and writes nothing to the "
        "cluster.",
        executor_def=dg.in_process_executor,
    )


class InactiveConfig(PlanConfig):
    """Which plan, how much of it, under which caps. Without ``dry_run = false``, nothing is deleted or written."""

    dry_run: bool = True


@dg.op(
    name="delete_unused_topics",
    description="Send a message for every ledger of each planned topic, then let its broker delete the topic.",
)
@refusals_fail()
def delete_unused_topics_op(
    context: dg.OpExecutionContext, config: InactiveConfig, lifecycle: LifecycleResource
) -> None:
    """Refuses a stale, report-only or foreign plan. A topic that changed since stays, and is shown with its code."""
    where, dry_run = lifecycle.cluster(), config.dry_run
    with lineage.noted(context, where, config.plan_id, dry_run=dry_run):
        metadata = finish(
            dry_run,
            lambda report: delete_inactive(where, context.run_id, config.order(), dry_run=dry_run, report=report),
            context.log.info,
            show.everything(context.run_id, config.plan_id, dry_run=dry_run),
        )
    context.add_output_metadata(metadata)


@dg.job(
    name="delete_inactive_topics",
    executor_def=dg.in_process_executor,
    description="Delete the topics of a plan that nobody used for the whole period. Dry run by default.",
)
def delete_inactive_topics_job() -> None:
    """The job has one op."""
    delete_unused_topics_op()


@dg.op(
    name="delete_subscriptions",
    description="Have the broker of its topic delete each planned subscription. Its unread messages go by retention.",
)
@refusals_fail()
def delete_subscriptions_op(
    context: dg.OpExecutionContext, config: InactiveConfig, lifecycle: LifecycleResource
) -> None:
    """Refuses a stale, report-only or foreign plan. One that changed since stays, and is shown with its code."""
    where, dry_run = lifecycle.cluster(), config.dry_run
    everything = show.everything(context.run_id, config.plan_id, dry_run=dry_run)
    done: list[DeletedSubscription] = []
    with (
        shown_at_the_end(
            context,
            done,
            lambda done: {**shown(done, dry_run), **everything},
            "",
            lambda one: f"{one.topic}, {one.subscription} ({one.why.code.value}): {one.why}",
        ),
        lineage.noted(context, where, config.plan_id, dry_run=dry_run),
    ):
        delete_subscriptions(where, context.run_id, config.order(), dry_run=dry_run, report=done.extend)


COLUMNS = {
    "topic": "string",
    "subscription": "string",
    "outcome": "string",
    "code": "string",
    "bytes": "int",
    "why": "string",
}


def shown(done: Sequence[DeletedSubscription], dry_run: bool) -> dict[str, Any]:
    """What became of the subscriptions: totals by outcome and code, and a sample, failures first."""
    totals = Counter((one.outcome.value, one.why.code.value) for one in done)
    first = {Outcome.FAILED: 0, Outcome.LEFT: 1}
    ordered = sorted(done, key=lambda one: (first.get(one.outcome, 2), one.topic, one.subscription))
    rows = [
        {
            "topic": one.topic,
            "subscription": one.subscription,
            "outcome": one.outcome.value,
            "code": one.why.code.value,
            "bytes": one.bytes,
            "why": one.why.text,
        }
        for one in ordered
    ]
    cells = [(*group, count) for group, count in sorted(totals.items())]
    return {
        "dry run": dry_run,
        "subscriptions": len(done),
        "outcomes": dg.MetadataValue.md(show.markdown(["outcome", "code", "subscriptions"], cells)),
        "sample": show.table(rows, COLUMNS),
    }


@dg.job(
    name="delete_inactive_subscriptions",
    executor_def=dg.in_process_executor,
    description="Delete the subscriptions of a plan that nobody used for the whole period, of topics that a broker has "
    "loaded. Dry run by default.",
)
def delete_inactive_subscriptions_job() -> None:
    """The job has one op."""
    delete_subscriptions_op()
