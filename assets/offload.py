# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import.
"""Which ledgers are to go to tiered storage and why, the plan, and what was offloaded.

Source of truth: the topics' metadata and the offload policies; of what was done, the journal. Job ``offload`` applies
the plan.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from assets import show
from assets.epochs import epoch_to_read
from assets.names import EPOCH, key, namespace_partitions
from pulsar_lifecycle.engine.offload_words import Offloaded
from pulsar_lifecycle.engine.topic_write import FAILED
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.plan.offload import OffloadPlan
from pulsar_lifecycle.plan.outcomes import OFFLOADED, RELEASED, ROLLED_BACK
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark.offload import OffloadOrder, offload_now
from pulsar_lifecycle.spark.offload_choice import chosen
from pulsar_lifecycle.spark.offload_plan import TABLE, make_offload_plan
from pulsar_lifecycle.spark.session import reporting
from resources.lifecycle import LifecycleResource

COLUMNS = {
    "ledger_id": "int",
    "action": "string",
    "topic": "string",
    "entries": "int",
    "bytes": "int",
    "reason": "string",
}

Outcomes = Sequence[Offloaded]


class OffloadPlanConfig(dg.Config):
    """Which namespaces (none: all with a policy), and whether thresholds count."""

    namespaces: list[str] = Field(default=[])
    everything: bool = False


class OffloadConfig(dg.Config):
    """As it ships, a backfill only makes the plan."""

    dry_run: bool = True


def offload_assets(cluster: str) -> list[dg.AssetsDefinition]:
    """``offload_candidates``, ``offload_plan``, ``offloaded_ledgers``."""
    deps = [key(cluster, "managed_ledgers"), key(cluster, "offload_leftovers")]

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
                description="What would be offloaded, and which copies in BookKeeper given up. Making it changes "
                "nothing; job `offload` takes its id and digest.",
                deps=[key(cluster, "offload_candidates")],
                kinds={"parquet"},
            ),
        ],
    )
    def offload_plan(
        context: dg.AssetExecutionContext, config: OffloadPlanConfig, lifecycle: LifecycleResource
    ) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]
        where = lifecycle.cluster()
        epoch_id = epoch_to_read(context, where)
        with reporting(where.spark, context.log.info):
            plan, rows = make_offload_plan(
                where, where.lake.epoch(epoch_id), config.namespaces, everything=config.everything
            )
        yield dg.MaterializeResult(
            asset_key=key(cluster, "offload_candidates"),
            metadata={
                EPOCH: epoch_id,
                "dagster/uri": where.lake.epoch_table(epoch_id, TABLE),
                **_candidates_shown(where.table(epoch_id, TABLE)),
            },
        )
        yield dg.MaterializeResult(
            asset_key=key(cluster, "offload_plan"),
            metadata={EPOCH: epoch_id, **plan_shown(plan, rows, where.settings)},
            data_version=dg.DataVersion(plan.digest),
        )

    @dg.asset(
        key=key(cluster, "offloaded_ledgers"),
        group_name="tiered_storage",
        description="Offload everything eligible of the chosen namespaces, whatever the thresholds, in one run. As it "
        "ships it only makes the plan: set `dry_run` to false to do it. What is offloaded already is never repeated.",
        deps=[key(cluster, "offload_plan"), key(cluster, "object_store")],
        partitions_def=namespace_partitions(cluster),
        backfill_policy=dg.BackfillPolicy.single_run(),
        kinds={"pyspark", "s3"},
        pool="offload",
    )
    def offloaded_ledgers(
        context: dg.AssetExecutionContext, config: OffloadConfig, lifecycle: LifecycleResource
    ) -> None:
        where = lifecycle.cluster()
        names = list(context.partition_keys)
        epoch = where.lake.epoch(epoch_to_read(context, where))
        plan, rows = make_offload_plan(where, epoch, names, everything=True)
        outcomes: Outcomes = ()
        if not config.dry_run:
            order = OffloadOrder(plan.plan_id, plan.digest)
            outcomes = offload_now(where, context.run.run_id, order, context.log.info)
        for name in names:
            own = rows.filter(pc.equal(rows.column("namespace"), name))
            mine = [one for one in outcomes if one.topic and str(Topic.parse(one.topic).namespace) == name]
            metadata = {**plan_shown(plan, own, where.settings), **outcomes_shown(mine)}
            context.add_asset_metadata(metadata, context.asset_key, name)
        check_done(outcomes)

    return [offload_plan, offloaded_ledgers]


def _candidates_shown(rows: DataFrame) -> dict[str, Any]:
    groups = (
        rows.groupBy("namespace", "action")
        .agg(f.count("*").alias("ledgers"), f.sum("bytes").alias("bytes"))
        .orderBy(f.desc("bytes"))
        .limit(100)
        .collect()
    )
    reasons = (
        rows.withColumn("why", f.regexp_replace("reason", r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\b\d+\b", "…"))
        .groupBy("action", "why")
        .agg(f.count("*").alias("ledgers"), f.sum("bytes").alias("bytes"))
        .orderBy(f.desc("bytes"))
        .limit(50)
        .collect()
    )
    by_namespace = [(g["namespace"], g["action"], g["ledgers"], show.size(g["bytes"] or 0)) for g in groups]
    by_reason = [(r["action"], r["why"], r["ledgers"], show.size(r["bytes"] or 0)) for r in reasons]
    return {
        "dagster/row_count": sum(g["ledgers"] for g in groups),
        "by namespace": dg.MetadataValue.md(show.markdown(["namespace", "action", "ledgers", "bytes"], by_namespace)),
        "by reason": dg.MetadataValue.md(show.markdown(["action", "reason", "ledgers", "bytes"], by_reason)),
    }


def plan_shown(plan: OffloadPlan, rows: pa.Table, settings: Settings) -> dict[str, Any]:
    """A plan's page: what it would do, whether it may, and how to apply it."""
    some = chosen(rows, 0, settings.offload.max_ledgers, settings.offload.max_bytes)
    config = json.dumps(run_config(plan), indent=2)
    how = (
        f"Launch job `offload` with this run configuration:\n\n```json\n{config}\n```"
        if plan.actionable
        else "**Report only.**\n\n" + "\n".join(f"- {gap}" for gap in plan.gaps[:50])
    )
    if plan.actionable and len(some) < rows.num_rows:
        caps = "`offload.max_ledgers`, `offload.max_bytes`"
        how += f"\n\nOne run does at most {len(some)} of {rows.num_rows} ledgers ({caps})."
    return {
        "dagster/row_count": plan.ledgers + plan.released,
        "plan id": plan.plan_id,
        "digest": plan.digest,
        "actionable": plan.actionable,
        "ledgers to offload": plan.ledgers,
        "bytes to offload": plan.bytes,
        "copies in BookKeeper to give up": plan.released,
        "bytes to give up": plan.released_bytes,
        "warnings": dg.MetadataValue.md("\n".join(f"- {one}" for one in plan.warnings[:50]) or "none"),
        "how to apply": dg.MetadataValue.md(how),
        "oldest": show.table(rows.slice(0, show.SAMPLE).to_pylist(), COLUMNS),
    }


def run_config(plan: OffloadPlan) -> dict[str, Any]:
    """The run configuration with which job ``offload`` applies a plan."""
    return {"ops": {"offload_ledgers": {"config": {"plan_id": plan.plan_id, "digest": plan.digest}}}}


def outcomes_shown(outcomes: Outcomes) -> dict[str, Any]:
    """How many ledgers ended how, with bytes, and a sample of what went wrong first."""
    counts = Counter(one.outcome for one in outcomes)
    sizes: Counter[str] = Counter()
    for one in outcomes:
        sizes[one.outcome] += one.bytes
    rows = [(outcome, counts[outcome], show.size(sizes[outcome])) for outcome in sorted(counts)]
    first = sorted(outcomes, key=lambda one: (one.outcome in (OFFLOADED, RELEASED), one.outcome, one.ledger_id))
    sample = [
        {"ledger": one.ledger_id, "outcome": one.outcome, "topic": one.topic, "bytes": one.bytes, "reason": one.reason}
        for one in first
    ]
    columns = {"ledger": "int", "outcome": "string", "topic": "string", "bytes": "int", "reason": "string"}
    return {
        "offloaded": counts[OFFLOADED],
        "given up in BookKeeper": counts[RELEASED],
        "outcomes": dg.MetadataValue.md(show.markdown(["outcome", "ledgers", "bytes"], rows)),
        "ledgers": show.table(sample, columns),
    }


def check_done(outcomes: Outcomes) -> None:
    """Fail where something did not do its part: what was done stays done, and a rerun goes on."""
    wrong = [one for one in outcomes if one.outcome in (FAILED, ROLLED_BACK)]
    if wrong:
        raise dg.Failure(
            f"{len(wrong)} ledgers or topics failed, the first: {wrong[0].topic} {wrong[0].ledger_id}: "
            f"{wrong[0].reason}; launch it again to go on",
            metadata=outcomes_shown(outcomes),
        )
