"""Jobs ``plan_load`` and ``load_topics``: which topics need a broker, and have brokers load, trim and unload them."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.names import key
from assets.pages import lineage, show
from assets.pages.failures import refusals_fail, shown_at_the_end
from orchestration.jobs import PlanConfig
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.lifecycle.load.visits import LoadedTopic
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource

COLUMNS = {
    "topic": "string",
    "outcome": "string",
    "code": "string",
    "freed": "int",
    "second visit": "string",
    "subscriptions": "string",
    "why": "string",
}


def plan_load_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Judge the newest scan's topics by the policies in force; writes nothing to the cluster."""
    return dg.define_asset_job(
        "plan_load",
        selection=[key(cluster, name) for name in ("topics_to_load", "load_plan")],
        description="Which topics only a broker that loads them can free data of, what brokers would do to them "
        "besides, and the plan. Loads no topic, and writes nothing to the cluster.",
        executor_def=dg.in_process_executor,
    )


class LoadConfig(PlanConfig):
    """Which plan, how much of it, under which caps. Without ``dry_run = false``, nothing is loaded or written."""

    dry_run: bool = True


@dg.op(
    name="load",
    description="Load each planned topic at its broker, delete its expired or inactive subscriptions, expire its "
    "messages by their TTL, trim it, and unload it.",
)
@refusals_fail()
def load_op(context: dg.OpExecutionContext, config: LoadConfig, lifecycle: LifecycleResource) -> None:
    """Refuses a stale, report-only or foreign plan. A topic that changed since is left alone, and shown with its code.

    Fails where a step failed; a run that is stopped says what had become of the topics until then.
    """
    where, dry_run = lifecycle.cluster(), config.dry_run
    everything = show.everything(context.run_id, config.plan_id, dry_run=dry_run)
    done: list[LoadedTopic] = []
    with (
        shown_at_the_end(
            context,
            done,
            lambda done: {**shown(done, dry_run), **everything},
            "topics ",
            lambda one: f"{one.topic} ({one.why.code.value}): {one.why}",
        ),
        lineage.noted(context, where, config.plan_id, dry_run=dry_run),
    ):
        load_topics(where, context.run_id, config.order(), dry_run=dry_run, report=done.extend)


def shown(done: Sequence[LoadedTopic], dry_run: bool) -> dict[str, Any]:
    """What became of the topics: totals by outcome and code, what left their lists, when more is due, and a sample."""
    totals = Counter((one.outcome.value, one.why.code.value) for one in done)
    later = [one.second_visit_at for one in done if one.second_visit_at]
    first = {Outcome.FAILED: 0, Outcome.LEFT: 1}
    rows = [
        {
            "topic": one.topic,
            "outcome": one.outcome.value,
            "code": one.why.code.value,
            "freed": one.freed,
            "second visit": show.at(one.second_visit_at),
            "subscriptions": ", ".join(one.unsubscribed),
            "why": one.why.text,
        }
        for one in sorted(done, key=lambda one: (first.get(one.outcome, 2), one.topic))
    ]
    cells = [(*group, number) for group, number in totals.most_common()]
    deleted = "subscriptions that would be deleted" if dry_run else "subscriptions deleted"
    return {
        "dry run": dry_run,
        "freed": sum(one.freed for one in done),
        "second visit": f"{len(later)} topics, the last at {show.at(max(later))}" if later else "none",
        deleted: sum(len(one.unsubscribed) for one in done),
        "by outcome": dg.MetadataValue.md(show.markdown(["outcome", "code", "topics"], cells)),
        "sample": show.table(rows, COLUMNS),
    }


@dg.job(
    name="load_topics",
    executor_def=dg.in_process_executor,
    description="Apply a load plan: its topics are loaded, trimmed by their brokers and unloaded; expired or inactive "
    "subscriptions are deleted where `load.subscription_expiry` or `load.inactive_subscriptions` orders it. "
    "Dry run by default.",
)
def load_topics_job() -> None:
    """The job has one op."""
    load_op()
