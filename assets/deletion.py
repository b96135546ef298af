"""The deletion plan, what waits in the queue, and what was deleted.

Source of truth: the findings of two epochs, the deletion topic, and the journal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.findings import COLUMNS
from assets.names import EPOCH, key, namespace_partitions, pool, register_namespaces
from assets.pages import lineage, plots, show
from assets.pages.deleted import ALL_RUNS, BY_NAMESPACE, COUNTED, by_namespace, deleted_by_run
from assets.pages.epochs import epoch_to_read
from assets.pages.failures import refusals_fail
from assets.pages.growth import growth_result, growth_spec
from assets.pages.switch import by_the_switch, end_with_nothing_done, switched_off
from pulsar_lifecycle.automation_settings import Automation
from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion.planning.confirmed_orphans import run_config
from pulsar_lifecycle.deletion.workers import FAILURES, OutcomeCount, RunEnd
from pulsar_lifecycle.deletion_queue.queue_state import UNTAKEN, WINDOW_SHUT, QueueState, look
from pulsar_lifecycle.deletion_queue.queue_topics import pending
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.journal import metrics
from pulsar_lifecycle.journal.effects import Effect
from pulsar_lifecycle.journal.intents import IntentState
from pulsar_lifecycle.journal.queries import deleted_by_topic
from pulsar_lifecycle.journal.tallies import tallied
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.progress import of_stages, reporting
from pulsar_lifecycle.values.outcomes import WAITS_FOR, Outcome
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from resources.lifecycle import LifecycleResource

DELETING = "delete_pending"
"""The job that deletes; no other run of its asset does anything."""

QUEUE_AGE = "queue_age"
WAITS_LONG_MS = 86_400_000
"""How long an intent may wait for one thing before somebody should look."""


def queue_age(state: QueueState, now: int, *, waits_for_window: bool = False) -> dg.AssetCheckResult:
    """Check ``queue_age``: an error where intents may get lost, a warning where they wait for long.

    ``waits_for_window``: no run may take what is due now; then it may be due for as long as it likes.
    """
    long = [one for one in state.waits if now - one.since > WAITS_LONG_MS]
    gone = ", ".join(state.unsubscribed)
    lost = f"no subscription keeps what is sent to {gone}: sensor dead_letters makes it again" if gone else ""
    waits = [f"{one.messages} since {show.at(one.since)} for {WAITS_FOR[one.waiting]}" for one in long]
    since = state.due_since
    untaken = since is not None and now - since > WAITS_LONG_MS
    if untaken and not waits_for_window:
        waits.append(f"no run has taken what is due since {show.at(since)}: {UNTAKEN}")
    if state.due_error:
        waits.append(f"how long intents wait could not be seen: {state.due_error}")
    return dg.AssetCheckResult(
        check_name=QUEUE_AGE,
        passed=not (lost or waits),
        severity=dg.AssetCheckSeverity.ERROR if lost else dg.AssetCheckSeverity.WARN,
        description=lost or "; ".join(waits) or (WINDOW_SHUT if untaken else "no intent waits for longer than a day"),
        metadata={"waiting for too long": sum(one.messages for one in long)},
    )


def left_alone(where: Cluster, begun: int | None = None) -> str | None:
    """Why no deletion run begins by itself now, by the settings; None if one may.

    ``begun``: when the run that asks was started (ms), if that counts for the window, which may have shut meanwhile.
    """
    automated = where.settings.automation.delete_pending
    if not automated.begins:
        return "automation.delete_pending is false"
    if automated.waits_for_window(where.clock.now_ms() if begun is None else begun):
        return "the window of automation.delete_pending is not open"
    return None


def evidence_shown(where: Cluster) -> dict[str, Any]:
    """By which scan a deletion run judged, and where that is."""
    newest = next(reversed(where.lake.epochs(cluster=where.settings.cluster)), None)
    if newest is None:
        return {}
    references = key(where.settings.cluster, "ledger_references")
    return {EPOCH: newest.epoch_id, "judged by": dg.MetadataValue.asset(references)}


def deletion_assets(cluster: str) -> list[dg.AssetsDefinition]:
    """``deletion_plan``, ``pending_deletions``, ``ledger_deletions``, ``deletions_by_namespace``."""

    @dg.asset(
        key=key(cluster, "deletion_plan"),
        group_name="deletion",
        description="What would be deleted and why: orphans that two covered scans agree on. Making it changes "
        "nothing; `apply_plan` takes its id and digest.",
        deps=[key(cluster, "orphan_ledgers")],
        kinds={"parquet"},
        check_specs=[growth_spec(key(cluster, "deletion_plan"), "orphans")],
    )
    def deletion_plan(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> dg.MaterializeResult:
        where = lifecycle.cluster()
        epoch_id = epoch_to_read(context, where)
        summary, rows = deletion_run.make_plan(where, where.lake.epoch(epoch_id))
        register_namespaces(context.instance, cluster, set(rows.column("namespace").to_pylist()))
        return dg.MaterializeResult(
            metadata={
                EPOCH: epoch_id,
                "dagster/uri": show.plan_uri(where, summary.plan_id),
                **show.over_caps(where, summary, rows),
                **_plan_shown(summary, rows, where.settings.automation.orphans.mode),
            },
            data_version=dg.DataVersion(summary.digest),
            check_results=[growth_result(where, key(cluster, "deletion_plan"), summary, "orphans")],
        )

    @dg.asset(
        key=key(cluster, "pending_deletions"),
        group_name="deletion",
        description="Intents in flight: backlog of subscription `ledger-deletion` over the deletion and retry topics.",
        deps=[key(cluster, "ledger_deletion_topic"), key(cluster, "ledger_deletion_retry_topic")],
        kinds={"pulsar"},
        check_specs=[
            dg.AssetCheckSpec(
                QUEUE_AGE,
                asset=key(cluster, "pending_deletions"),
                description="Fails where intents wait for longer than a day, for one thing or for a run, or where a "
                "partition has no subscription that keeps them.",
            )
        ],
    )
    def pending_deletions(lifecycle: LifecycleResource) -> dg.MaterializeResult:
        where = lifecycle.without_spark()
        with where.ports(read_only=True) as ports:
            now = ports.clock.now_ms()
            state = look(ports.admin, ports.queue_reader, now)
            tallies = tallied(ports.journal_reader, now)
        shut = where.settings.automation.delete_pending.waits_for_window(now)
        check = queue_age(state, now, waits_for_window=shut)
        return dg.MaterializeResult(
            metadata={**_queue_shown(state), **metrics_shown(tallies, cluster)}, check_results=[check]
        )

    @dg.asset(
        key=key(cluster, "ledger_deletions"),
        group_name="deletion",
        description="A deletion run: every message of the queue decided afresh, archived, deleted, confirmed, "
        f"journalled, acknowledged. Only job `{DELETING}` makes one: materializing this asset does nothing.",
        deps=[key(cluster, "ledger_deletion_topic"), key(cluster, "scan_coverage")],
        kinds={"pyspark"},
        pool=pool(cluster, "deletion"),
        output_required=False,
    )
    def ledger_deletions(
        context: dg.AssetExecutionContext, lifecycle: LifecycleResource
    ) -> Iterator[dg.MaterializeResult]:
        if context.run.job_name != DELETING:
            context.log.warning(f"nothing was deleted: launch job {DELETING} for that")
            return
        why = switched_off(context.instance, context.run)
        with refusals_fail():
            where = lifecycle.cluster()
            if not why and by_the_switch(context.run):
                why = left_alone(where, _begun(context))
            if why:
                end_with_nothing_done(context, why)
                return
            with lineage.noted(context, where) as done:
                metadata = _deleted(context, cluster, where, done)
        yield dg.MaterializeResult(metadata={**evidence_shown(where), **metadata})

    @dg.asset(
        key=key(cluster, BY_NAMESPACE),
        group_name="deletion",
        description="What the journal says was deleted in a namespace. An event of a deletion run has what that run "
        "deleted; materialize it to have the sum of all runs.",
        deps=[key(cluster, "journal")],
        partitions_def=namespace_partitions(cluster),
        backfill_policy=dg.BackfillPolicy.single_run(),
        kinds={"parquet"},
    )
    def deletions_by_namespace(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> None:
        topics = deleted_by_topic(lifecycle.without_spark().journal_reader, cluster)
        for namespace, metadata in by_namespace(topics, set(context.partition_keys)).items():
            context.add_asset_metadata({**metadata, COUNTED: ALL_RUNS}, context.asset_key, namespace)

    return [deletion_plan, pending_deletions, ledger_deletions, deletions_by_namespace]


def _begun(context: dg.AssetExecutionContext) -> int | None:
    """When this run was started (ms); None where that is not known."""
    record = context.instance.get_run_record_by_id(context.run.run_id)
    return int(record.start_time * 1000) if record and record.start_time is not None else None


def _deleted(
    context: dg.AssetExecutionContext, cluster: str, where: Cluster, done: Callable[[], Sequence[Effect]]
) -> dict[str, Any]:
    """Work the queue off; the metadata of what was done. Raises dagster.Failure with it where that was not all."""
    with (
        _namespaces_marked(context, cluster, where),
        where.ports(read_only=True) as ports,
        reporting(context.log.info, of_stages(where.spark, lambda: f"{pending(ports.admin)} intents left")),
    ):
        outcomes = deletion_run.delete_pending(where, context.run.run_id)
    now = where.clock.now_ms()
    tallies = tallied(where.journal_reader, now)
    intervals = metrics.over_time(tallies, cluster, now - plots.SHOWN, now, plots.STEP)
    metadata = {
        **outcomes_shown(outcomes),
        "plans": lineage.plans_shown(context.instance, cluster, done()),
        "over time": plots.deletions_as_text(intervals),
        "over time, drawn": plots.deletions_over_time(intervals),
        **metrics_shown(tallies, cluster),
    }
    check_not_stopped(outcomes, metadata)
    return metadata


def _plan_shown(summary: PlanSummary, rows: pa.Table, mode: Automation) -> dict[str, Any]:
    head = show.planned(summary, run_config(summary), job="apply_plan", nothing="Nothing to delete.", mode=mode)
    share = summary.ledgers / max(summary.cluster_ledgers, 1)
    deletes, frees = ("deletes", "frees") if summary.actionable else ("would delete", "would free")
    return {
        **head,
        **_left_out(summary),
        deletes: f"{summary.ledgers} ledgers, {share:.2%} of the cluster's {summary.cluster_ledgers}",
        frees: f"{show.size(summary.physical_bytes)} on the bookies ({show.size(summary.logical_bytes)} of data)",
        "by namespace": dg.MetadataValue.md(_by(rows, "namespace")),
        "by component": dg.MetadataValue.md(_by(rows, "component")),
        "why": dg.MetadataValue.md(_by(rows, "code", "reason")),
        "logical bytes": summary.logical_bytes,
        "physical bytes": summary.physical_bytes,
        "confirmed by scan": summary.confirmed_by or show.NOTHING,
        "sample": show.table(rows.slice(0, show.SAMPLE).to_pylist(), COLUMNS),
    }


def _left_out(summary: PlanSummary) -> dict[str, Any]:
    if not summary.in_flight:
        return {}
    waits = "their intents wait in the queue; `pulsar-lifecycle queue status` says for what"
    return {"left out": dg.MetadataValue.md(f"{summary.in_flight} ledgers: `{IntentState.IN_FLIGHT}`: {waits}")}


def _by(rows: pa.Table, column: str, said: str = "") -> str:
    """Ledgers and bytes by one column, largest first, at most :data:`show.SAMPLE` lines; ``said`` of one of each."""
    such_as = [(said, "min")] if said else []
    grouped = rows.group_by(column).aggregate([("ledger_id", "count"), ("physical_bytes", "sum"), *such_as])
    lines = grouped.sort_by([("physical_bytes_sum", "descending")]).slice(0, show.SAMPLE).to_pylist()
    cells = [
        (
            line[column],
            line["ledger_id_count"],
            show.size(line["physical_bytes_sum"] or 0),
            *(line[f"{said}_min"] for _ in such_as),
        )
        for line in lines
    ]
    return show.markdown([column, "ledgers", "bytes", *("such as" for _ in such_as)], cells)


def check_not_stopped(outcomes: Iterable[OutcomeCount], metadata: Mapping[str, Any]) -> None:
    """Fail, with the metadata of what was done, where a deletion run did not do all that it was to do: FAILURES."""
    failed = [o for o in outcomes if o.outcome in FAILURES]
    if not failed:
        return
    said = [
        f"{what}: "
        + "; ".join(f"{o.ledgers} at {o.reason}" if o.outcome == RunEnd.WITHHELD else o.reason for o in some)
        for outcome, what in FAILURES.items()
        if (some := [o for o in failed if o.outcome == outcome])
    ]
    raise dg.Failure("; ".join(said), metadata=metadata)


def outcomes_shown(outcomes: list[OutcomeCount]) -> dict[str, Any]:
    """A deletion run's outcomes as metadata."""
    deleted = [o for o in outcomes if o.outcome == Outcome.DELETED]
    return {
        "dagster/row_count": sum(o.ledgers for o in deleted),
        "deleted bytes": sum(o.bytes for o in deleted),
        "outcomes": dg.MetadataValue.md(
            show.markdown(
                ["outcome", "code", "messages", "bytes", "such as"],
                [(o.outcome, o.code or "", o.ledgers, show.size(o.bytes), o.reason) for o in outcomes],
            )
        ),
    }


def metrics_shown(tallies: pa.Table, cluster: str) -> dict[str, Any]:
    """The nine metrics of PIP-186, over all runs so far, as numbers: the UI plots their history."""
    found = metrics.count(tallies, cluster).to_json()
    return {f"{name.replace('_', ' ')} so far": count for name, count in found.items()}


def _queue_shown(state: QueueState) -> dict[str, Any]:
    """What waits, as numbers and partition by partition."""
    parts = [*state.main, *state.retry, *state.dead_letters]
    cells = [
        (
            part.topic.rpartition("/")[2],
            *("-" if count is None else count for count in (part.backlog, part.due, part.later)),
            "there" if part.subscribed else "**MISSING**",
        )
        for part in parts
    ]
    return {
        "dagster/row_count": state.in_flight,
        "waiting in the main topic": sum(part.backlog or 0 for part in state.main),
        "waiting in the retry topic": sum(part.backlog or 0 for part in state.retry),
        "dead letters waiting": state.dead,
        "waiting for something": dg.MetadataValue.md(
            show.markdown(["for", "intents"], [(WAITS_FOR[one.waiting], one.messages) for one in state.waits])
            if state.waits
            else "nothing"
        ),
        "partitions": dg.MetadataValue.md(
            show.markdown(["partition", "waiting", "due", "not yet due", "subscription"], cells)
            if parts
            else "none yet: the first apply makes the topics"
        ),
    }


@contextmanager
def _namespaces_marked(context: dg.AssetExecutionContext, cluster: str, where: Cluster) -> Iterator[None]:
    """Only namespaces where this run deleted something get an event, however the block ends."""
    try:
        yield
    finally:
        try:
            found = deleted_by_run(where.journal_reader, cluster, context.run.run_id)
            register_namespaces(context.instance, cluster, found)
            for event in found.values():
                context.log_event(event)
        except LifecycleError as error:  # how the block ended matters more
            context.log.warning(f"what this run deleted is not on the pages of namespaces: {error}")
