"""Which ledgers are to go to tiered storage and why, the plan, and what was offloaded.

Source of truth: the topics' metadata and the offload policies; of what was done, the journal. Job ``offload`` applies
the plan.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from assets.backfills import NO_MORE, NO_NAMESPACE, by_namespace, pages_written, partitions_to_do
from assets.names import key, pool
from assets.pages import lineage, show
from assets.pages.epochs import epoch_to_read
from assets.pages.growth import growth_result, growth_spec
from pulsar_lifecycle.automation_settings import Automation
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.journal.effects import Effect
from pulsar_lifecycle.journal.offloads import failed_proofs_now
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.progress import of_stages, reporting
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.tiered.offload_run import OffloadOrder, offload_now
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.tiered.planning.offload_planning import TABLE, make_offload_plan, run_config
from pulsar_lifecycle.tiered.planning.run_selection import chosen
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice, OffloadPlan
from resources.lifecycle import LifecycleResource

CHECK = "no_failed_proofs"
KINDS = ("offload", "bookkeeper_copies")
"""Whose rows a plan holds, by their keys in ``[automation]``."""
MEND_COPIES = "put the objects back, or launch job revert_offloads for those that BookKeeper still has"
COLUMNS = {
    "ledger_id": "int",
    "action": "string",
    "outlook": "string",
    "topic": "string",
    "entries": "int",
    "bytes": "int",
    "code": "string",
}
"""Of a sample; reasons are sentences and stand in a table of ``offload_candidates``, one of each code."""

Outcomes = Sequence[OffloadOutcome]


class OffloadPlanConfig(dg.Config):
    """Which namespaces (none: all with a policy) or topics, and whether thresholds count.

    They do not for ``topics`` (full names, a partitioned topic stands for its partitions). ``upto`` is a position
    ``LEDGER:ENTRY`` of the only topic: what is in ledgers before it goes, as with ``pulsar-admin topics offload``.
    """

    namespaces: list[str] = Field(default=[])
    everything: bool = False
    topics: list[str] = Field(default=[])
    upto: str = ""


class OffloadConfig(dg.Config):
    """As it ships, a backfill only makes the plan."""

    dry_run: bool = True


def offload_assets(cluster: str) -> list[dg.AssetsDefinition]:
    """``offload_candidates``, ``offload_plan``, ``offloaded_ledgers``."""
    deps = [key(cluster, "managed_ledgers"), key(cluster, "offload_leftovers"), key(cluster, "scan_coverage")]

    @dg.multi_asset(
        name=f"{cluster}_offload_plan",
        specs=[
            dg.AssetSpec(
                key(cluster, "offload_candidates"),
                group_name="tiered_storage",
                description="Every ledger of the namespaces with an offload policy: what is to be done with it, and "
                "why or why not.",
                deps=deps,
                kinds={"pyspark", "parquet"},
            ),
            dg.AssetSpec(
                key(cluster, "offload_plan"),
                group_name="tiered_storage",
                description="What would be offloaded, and which copies in BookKeeper deleted. Making it changes "
                "nothing; job `offload` takes its id and digest.",
                deps=[key(cluster, "offload_candidates")],
                kinds={"parquet"},
            ),
        ],
        check_specs=[
            dg.AssetCheckSpec(
                CHECK,
                asset=key(cluster, "offload_candidates"),
                description="Fails while a topic reads an offloaded copy that failed its last proof: it is damaged, "
                "missing or another one, and BookKeeper may have the only good one. Put the object back, or launch "
                "`revert_offloads`.",
            ),
            growth_spec(key(cluster, "offload_plan"), *KINDS),
        ],
    )
    def offload_plan(
        context: dg.AssetExecutionContext, config: OffloadPlanConfig, lifecycle: LifecycleResource
    ) -> Iterator[dg.MaterializeResult]:
        where = lifecycle.cluster()
        epoch_id = epoch_to_read(context, where)
        with reporting(context.log.info, of_stages(where.spark)):
            plan, rows = make_offload_plan(
                where,
                where.lake.epoch(epoch_id),
                config.namespaces,
                everything=config.everything,
                topics=config.topics,
                upto=config.upto,
            )
        unproven = failed_proofs_now(where, epoch_id)
        yield dg.MaterializeResult(
            asset_key=key(cluster, "offload_candidates"),
            metadata={
                **show.stored(where, epoch_id, TABLE),
                **_candidates_shown(where.table(epoch_id, TABLE)),
                **failed_proofs_shown(unproven),
            },
            check_results=[
                dg.AssetCheckResult(
                    asset_key=key(cluster, "offload_candidates"),
                    check_name=CHECK,
                    passed=not unproven,
                    severity=dg.AssetCheckSeverity.ERROR,
                    description=failed_proofs_text(unproven),
                    metadata=failed_proofs_shown(unproven),
                )
            ],
        )
        yield dg.MaterializeResult(
            asset_key=key(cluster, "offload_plan"),
            metadata={**show.stored(where, epoch_id, TABLE), **plan_shown(plan, rows, where.settings)},
            data_version=dg.DataVersion(plan.digest),
            check_results=[growth_result(where, key(cluster, "offload_plan"), plan, *KINDS)],
        )

    @by_namespace(
        cluster,
        "offloaded_ledgers",
        group_name="tiered_storage",
        description="Offload everything eligible of the chosen namespaces, whatever the thresholds, in one run. What "
        "is offloaded already is never repeated.",
        deps=[key(cluster, "object_store")],
        kinds={"pyspark", "s3"},
        pool=pool(cluster, "offload"),
    )
    def offloaded_ledgers(
        context: dg.AssetExecutionContext, config: OffloadConfig, lifecycle: LifecycleResource
    ) -> Iterator[dg.MaterializeResult]:
        names = partitions_to_do(context)
        if not names:
            return
        where = lifecycle.cluster()
        epoch = where.lake.epoch(epoch_to_read(context, where))
        there = where.lake.context(epoch.epoch_id).namespaces.intersection(names)
        if not there:  # a plan of no namespace is one of all
            with pages_written(context, names, lambda _: NO_NAMESPACE):
                yield from NO_MORE
            return
        plan, rows = make_offload_plan(where, epoch, there, everything=True)
        outcomes: list[OffloadOutcome] = []
        everything = show.everything(context.run.run_id)

        def page(name: str) -> Mapping[str, Any]:
            if name not in there:
                return NO_NAMESPACE
            own = rows.filter(pc.equal(rows.column("namespace"), name))
            mine = [one for one in outcomes if one.topic and str(Topic.parse(one.topic).namespace) == name]
            shown = {"dry run": config.dry_run, **share_shown(plan, own, where.settings)}
            if outcomes:  # done is done
                del shown["how to apply"]
            return {**shown, **outcomes_shown(mine), **everything} if outcomes else shown

        with pages_written(context, names, page):
            if not config.dry_run:
                order = OffloadOrder(plan.plan_id, plan.digest)
                with (
                    lineage.noted(context, where, plan.plan_id) as done,
                    proofs_told(context, where, epoch.epoch_id, done),
                ):
                    outcomes += offload_now(where, context.run.run_id, order, context.log.info)
            check_done(outcomes, everything)
        yield from NO_MORE

    return [offload_plan, offloaded_ledgers]


@contextmanager
def proofs_told(context: Any, where: Cluster, epoch_id: str, done: Callable[[], Sequence[Effect]]) -> Iterator[None]:
    """Check ``no_failed_proofs`` as a run leaves it that proves copies, also where it is paused or terminated.

    Not where it was refused: its plan may be of an old scan.
    """
    try:
        yield
    except BaseException:
        try:
            if done():
                context.log_event(proofs_evaluated(where, epoch_id))
        except LifecycleError as error:  # how the run ends matters more
            context.log.warning(f"check {CHECK} was not made again: {error}")
        raise
    context.log_event(proofs_evaluated(where, epoch_id))


def proofs_evaluated(where: Cluster, epoch_id: str) -> dg.AssetCheckEvaluation:
    """Check ``no_failed_proofs`` as the journal has it now; for a run that has just proven copies."""
    unproven = failed_proofs_now(where, epoch_id)
    return dg.AssetCheckEvaluation(
        asset_key=key(where.settings.cluster, "offload_candidates"),
        check_name=CHECK,
        passed=not unproven,
        severity=dg.AssetCheckSeverity.ERROR,
        description=failed_proofs_text(unproven),
        metadata=failed_proofs_shown(unproven),
    )


def failed_proofs_text(unproven: Sequence[JournalRow]) -> str:
    """What check ``no_failed_proofs`` says."""
    if not unproven:
        return "no offloaded copy that a topic reads failed its last proof"
    return f"offloaded copies that topics read and that failed their last proof: {len(unproven)}; {MEND_COPIES}"


def failed_proofs_shown(unproven: Sequence[JournalRow]) -> dict[str, Any]:
    """How many, and a sample."""
    columns = {"ledger": "int", "topic": "string", "bytes": "int", "reason": "string"}
    sample = [{"ledger": r.ledger_id, "topic": r.topic, "bytes": r.bytes, "reason": r.reason} for r in unproven]
    return {
        "unproven copies": len(unproven),
        "unproven": show.table(sample[: show.SAMPLE], columns),
        "all of them": dg.MetadataValue.md(f"`pulsar-lifecycle journal --outcome {Outcome.PROOF_FAILED.value}`"),
    }


def _candidates_shown(rows: DataFrame) -> dict[str, Any]:
    groups = (
        rows.groupBy("namespace", "action")
        .agg(f.count("*").alias("ledgers"), f.sum("bytes").alias("bytes"))
        .orderBy(f.desc("bytes"))
        .limit(100)
        .collect()
    )
    reasons = (
        rows.groupBy("action", "code")
        .agg(f.count("*").alias("ledgers"), f.sum("bytes").alias("bytes"), f.min("reason").alias("reason"))
        .orderBy(f.desc("bytes"))
        .limit(50)
        .collect()
    )
    by_namespace = [(g["namespace"], g["action"], g["ledgers"], show.size(g["bytes"] or 0)) for g in groups]
    by_code = [(r["action"], r["code"], r["ledgers"], show.size(r["bytes"] or 0), r["reason"]) for r in reasons]
    return {
        "dagster/row_count": sum(g["ledgers"] for g in groups),
        "by namespace": dg.MetadataValue.md(show.markdown(["namespace", "action", "ledgers", "bytes"], by_namespace)),
        "by reason": dg.MetadataValue.md(show.markdown(["action", "code", "ledgers", "bytes", "such as"], by_code)),
    }


def plan_shown(plan: OffloadPlan, rows: pa.Table, settings: Settings) -> dict[str, Any]:
    """A plan's page: what it would do, whether it may, and how to apply it."""
    return {
        "dagster/row_count": plan.ledgers + plan.copies,
        "plan id": plan.plan_id,
        "digest": plan.digest,
        "actionable": plan.actionable,
        "ledgers to offload": plan.ledgers,
        "bytes to offload": plan.bytes,
        "copies in BookKeeper to delete": plan.copies,
        "bytes to delete": plan.copies_bytes,
        "of these left to brokers": plan.left_to_broker,
        "bytes left to brokers": plan.left_to_broker_bytes,
        "not deleted beside brokers": plan.brokers_delete,
        "bytes not deleted beside brokers": plan.brokers_delete_bytes,
        "warnings": show.bullets(plan.warnings),
        "how to apply": dg.MetadataValue.md(_how_to_apply(plan, rows, settings)),
        "oldest": show.table(rows.slice(0, show.SAMPLE).to_pylist(), COLUMNS),
    }


def _how_to_apply(plan: OffloadPlan, rows: pa.Table, settings: Settings) -> str:
    if plan.actionable and not plan.ledgers + plan.copies:
        return "Nothing to offload, and no copy in BookKeeper to delete."
    some = chosen(rows, 0, settings.offload.max_ledgers, settings.offload.max_bytes)
    config = json.dumps(run_config(plan), indent=1)
    modes = {settings.automation.offload.mode, settings.automation.bookkeeper_copies.mode}
    alone = [text for mode in Automation if mode in modes and (text := show.by_itself(plan, mode))]
    how = (
        "\n\n".join([*alone, f"Launch job `offload` with this configuration:\n\n```json\n{config}\n```"])
        if plan.actionable
        else "**Report only.**\n\n" + "\n".join(f"- {gap.line}" for gap in plan.gaps[:50])
    )
    if plan.actionable and len(some) < rows.num_rows:
        caps = "`offload.max_ledgers`, `offload.max_bytes`"
        how += f"\n\nOne run does at most {len(some)} of {rows.num_rows} ledgers ({caps})."
    if plan.actionable and plan.left_to_broker:
        how += (
            f"\n\n{plan.left_to_broker} of these ledgers are of topics that count as loaded: a run leaves them to "
            "their brokers (`left-to-broker`), unless `offload.loaded_topics` names them or they are unloaded by then."
        )
    return f"{how}\n\n{show.applied_by(plan.plan_id, 'it')}\n\n{show.whole_plan(plan.plan_id)}"


def share_shown(plan: OffloadPlan, own: pa.Table, settings: Settings) -> dict[str, Any]:
    """A namespace's page: its own rows of a plan in numbers, and the plan."""
    counts, sizes = Counter[str](), Counter[str]()
    for action, size in zip(own.column("action").to_pylist(), own.column("bytes").to_pylist(), strict=True):
        counts[action] += 1
        sizes[action] += size or 0
    shown = plan_shown(plan, own, settings)
    return {
        "dagster/row_count": own.num_rows,
        "ledgers to offload": counts[OffloadChoice.OFFLOAD],
        "bytes to offload": sizes[OffloadChoice.OFFLOAD],
        "copies in BookKeeper to delete": counts[OffloadChoice.DELETE_COPY],
        "bytes to delete": sizes[OffloadChoice.DELETE_COPY],
        "ledgers of the whole plan": plan.ledgers + plan.copies,
        **{name: shown[name] for name in ("plan id", "digest", "actionable", "warnings", "how to apply", "oldest")},
    }


def outcomes_shown(outcomes: Outcomes) -> dict[str, Any]:
    """How many ledgers ended how, with bytes, and a sample of what went wrong first."""
    counts, sizes = counted(outcomes), Counter[str]()
    for one in outcomes:
        sizes[one.outcome] += one.bytes
    rows = [(outcome, counts[outcome], show.size(sizes[outcome])) for outcome in sorted(counts)]
    first = sorted(
        outcomes,
        key=lambda one: (one.outcome in (Outcome.OFFLOADED, Outcome.BOOKKEEPER_DELETED), one.outcome, one.ledger_id),
    )
    sample = [
        {"ledger": one.ledger_id, "outcome": one.outcome, "topic": one.topic, "bytes": one.bytes, "reason": one.reason}
        for one in first
    ]
    columns = {"ledger": "int", "outcome": "string", "topic": "string", "bytes": "int", "reason": "string"}
    return {
        "offloaded": counts[Outcome.OFFLOADED],
        "listed as deleted in BookKeeper": counts[Outcome.BOOKKEEPER_DELETED],
        "left to brokers": counts[Outcome.LEFT_TO_BROKER],
        "outcomes": dg.MetadataValue.md(show.markdown(["outcome", "ledgers", "bytes"], rows)),
        "ledgers": show.table(sample, columns),
    }


def counted(outcomes: Outcomes) -> Counter[str]:
    """Ledgers by outcome."""
    counts: Counter[str] = Counter()
    for one in outcomes:
        counts[one.outcome] += one.ledgers
    return counts


def said(outcomes: Outcomes) -> str:
    """A run's result in one line: what was done, and what was not."""
    counts = counted(outcomes)
    offloaded, deleted = counts.pop(Outcome.OFFLOADED, 0), counts.pop(Outcome.BOOKKEEPER_DELETED, 0)
    done = f"{offloaded} ledgers offloaded, {deleted} listed as deleted in BookKeeper"
    rest = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    return f"{done}; not done: {rest}" if rest else done


def check_done(outcomes: Outcomes, everything: Mapping[str, Any]) -> None:
    """Fail where something did not do its part: what was done stays done, and each reason says what to do.

    ``everything``: where all of it is, for the page.
    """
    wrong = [one for one in outcomes if one.outcome in (Outcome.FAILED, Outcome.REVERTED, Outcome.PROOF_FAILED)]
    wrong.sort(key=lambda one: one.outcome != Outcome.PROOF_FAILED)
    if wrong:
        alarm = sum(one.outcome == Outcome.PROOF_FAILED for one in wrong)
        unproven = f" ({alarm} offloaded copies are not what they should be)" if alarm else ""
        raise dg.Failure(
            f"{len(wrong)} ledgers or topics failed{unproven}, the first: {named(wrong[0])}; what was done stays done",
            metadata={**outcomes_shown(outcomes), **everything},
        )


def named(one: OffloadOutcome) -> str:
    """An outcome as a sentence: which topic and ledger it is about, if any, and what was said of it."""
    about = f"{one.topic}, ledger {one.ledger_id}" if one.ledger_id >= 0 else one.topic
    return f"{about}: {one.reason}" if about else one.reason
