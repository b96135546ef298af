"""What is in the buckets of tiered storage, what of it nothing needs, and what topics read that is not there.

Source of truth: the buckets' listings against the newest scan's topics. Job ``sweep_objects`` applies the plan.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from assets.names import key
from assets.pages import show
from assets.pages.epochs import epoch_to_read
from assets.pages.growth import growth_result, growth_spec
from assets.tiered import MEND_COPIES
from pulsar_lifecycle.automation_settings import Automation
from pulsar_lifecycle.copies.object_pairs import ObjectKind
from pulsar_lifecycle.runs.progress import of_stages, reporting
from pulsar_lifecycle.tiered.buckets.bucket_rules import SweepAction
from pulsar_lifecycle.tiered.buckets.bucket_runs import TABLE, run_config, take_inventory
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from resources.lifecycle import LifecycleResource

CHECK = "no_missing_objects"
THEN = "then run scan, plan_offload, offload (the proof) and inventory_objects: red until then"
COLUMNS = {
    "bucket": "string",
    "key": "string",
    "kind": "string",
    "topic": "string",
    "bytes": "int",
    "since": "string",
    "reason": "string",
}


def object_assets(cluster: str) -> dg.AssetsDefinition:
    """``object_inventory`` with its check ``no_missing_objects``, and ``orphan_objects``."""
    inventory, orphans = key(cluster, "object_inventory"), key(cluster, "orphan_objects")
    # Made once a night: by its topics' table, each scan would make it unsynced for a day.
    deps = [key(cluster, "scan_coverage"), key(cluster, "object_store")]

    @dg.multi_asset(
        name=f"{cluster}_objects",
        specs=[
            dg.AssetSpec(
                inventory,
                group_name="tiered_storage",
                description="Every object and every upload under way in the buckets: who reads it, or why it stays.",
                deps=deps,
                kinds={"pyspark", "s3"},
            ),
            dg.AssetSpec(
                orphans,
                group_name="tiered_storage",
                description="What nothing needs in the buckets and is proven ours. Making it changes nothing; job "
                "`sweep_objects` takes its id and digest.",
                deps=deps,
                kinds={"parquet"},
            ),
        ],
        check_specs=[
            dg.AssetCheckSpec(
                CHECK,
                asset=inventory,
                description="Fails while a topic reads an offloaded ledger of which an object is missing or too small, "
                "or that failed its last proof: reads of it fail, and its data may be lost.",
            ),
            growth_spec(orphans, "objects"),
        ],
    )
    def objects(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Iterator[dg.MaterializeResult]:
        where = lifecycle.cluster()
        epoch_id = epoch_to_read(context, where)
        with reporting(context.log.info, of_stages(where.spark)):
            summary, rows = take_inventory(where, where.lake.epoch(epoch_id))
        found = where.table(epoch_id, TABLE)
        broken = found.where(f.col("kind") == ObjectKind.BROKEN.value)
        count = broken.count()
        yield dg.MaterializeResult(
            asset_key=inventory,
            metadata={
                **show.stored(where, epoch_id, TABLE),
                **inventory_shown(found),
            },
            check_results=[
                dg.AssetCheckResult(
                    asset_key=inventory,
                    check_name=CHECK,
                    passed=count == 0,
                    severity=dg.AssetCheckSeverity.ERROR,
                    description=broken_text(count),
                    metadata={"not whole": count, "ledgers": _sample(broken)},
                )
            ],
        )
        yield dg.MaterializeResult(
            asset_key=orphans,
            metadata={
                **show.stored(where, epoch_id, TABLE),
                **show.over_caps(where, summary, rows.append_column("physical_bytes", rows.column("bytes"))),
                **plan_shown(summary, rows, where.settings.automation.objects.mode),
            },
            data_version=dg.DataVersion(summary.digest),
            check_results=[growth_result(where, orphans, summary, "objects")],
        )

    return objects


def broken_text(count: int) -> str:
    """What check ``no_missing_objects`` says."""
    if not count:
        return "all offloaded ledgers that topics read are whole"
    return f"offloaded ledgers that topics read and that are not whole: {count}; {MEND_COPIES}; {THEN}"


def inventory_shown(rows: DataFrame) -> dict[str, Any]:
    """The inventory's page: objects and bytes by kind and bucket, why they stay, what is odd."""
    kinds = _grouped(rows, "bucket", "kind")
    plain = (f.col("kind") != ObjectKind.COMPLETE.value) & (f.col("action") == "")
    reasons = _grouped(rows.where(plain), "kind", "code")
    headers = ["entries", "objects", "bytes", "oldest"]
    return {
        "dagster/row_count": sum(row["objects"] for row in kinds),
        "bytes": sum(row["bytes"] for row in kinds),
        "by bucket": dg.MetadataValue.md(
            show.markdown(["bucket", "kind", *headers], (_cells(row[:-1]) for row in kinds))
        ),
        "why kept": dg.MetadataValue.md(show.markdown(["kind", "code", *headers, "such as"], map(_cells_why, reasons))),
        "largest kept": _sample(rows.where(plain)),
    }


def _grouped(rows: DataFrame, *by: str) -> list[Any]:
    """One row per group: its columns, then entries, objects, bytes, the oldest and a reason, the largest first."""
    return (
        rows.groupBy(*by)
        .agg(
            f.count("*").alias("entries"),
            f.sum("objects").alias("objects"),
            f.sum("bytes").alias("bytes"),
            f.min("modified").alias("oldest"),
            f.min("reason").alias("reason"),
        )
        .orderBy(f.desc("bytes"), f.desc("entries"))
        .limit(100)
        .collect()
    )


def _cells(row: Sequence[Any]) -> tuple[Any, ...]:
    """Of the columns of a group, then its entries, objects, bytes and the oldest."""
    *by, entries, objects, size, oldest = row
    return (*by, entries, objects, show.size(size), show.at(oldest))


def _cells_why(row: Any) -> tuple[Any, ...]:
    return (*_cells(row[:-1]), row["reason"])


def _sample(rows: DataFrame) -> dg.MetadataValue:
    some = rows.orderBy(f.desc("bytes"), "bucket", "key").limit(show.SAMPLE).collect()
    return _table([row.asDict() for row in some])


def _table(rows: list[dict[str, Any]]) -> dg.MetadataValue:
    return show.table([row | {"since": show.at(row["modified"])} for row in rows], COLUMNS)


def plan_shown(summary: PlanSummary, rows: pa.Table, mode: Automation) -> dict[str, Any]:
    """The plan's page: what would go, whether it may, and how to apply it."""
    head = show.planned(
        summary,
        run_config(summary),
        job="sweep_objects",
        nothing="Nothing to delete.",
        then="Copies then go by job `delete_pending`, which decides each one afresh.",
        mode=mode,
    )
    return {
        **head,
        "bytes": summary.logical_bytes,
        "share": f"{summary.ledgers / max(summary.cluster_ledgers, 1):.2%} of {summary.cluster_ledgers} copies",
        "confirmed by scan": summary.confirmed_by or show.NOTHING,
        **rows_shown(rows),
    }


def rows_shown(rows: pa.Table) -> dict[str, Any]:
    """What goes: copies and uploads by bucket and kind, and a sample."""
    sums = [("kind", "count"), ("objects", "sum"), ("bytes", "sum"), ("modified", "min")]
    groups = rows.group_by(["bucket", "kind"]).aggregate(sums)
    columns = ("bucket", "kind", *(f"{column}_{how}" for column, how in sums))
    cells = [_cells([group[name] for name in columns]) for group in groups.to_pylist()]
    copies = rows.column("action").to_pylist().count(SweepAction.DELETE)
    headers = ["bucket", "kind", "entries", "objects", "bytes", "oldest"]
    return {
        "rows of the table": "those whose `action` is not empty are the plan",
        "copies to delete": copies,
        "uploads to abort": rows.num_rows - copies,
        "what goes": dg.MetadataValue.md(show.markdown(headers, cells)),
        "sample": _table(rows.slice(0, show.SAMPLE).to_pylist()),
    }
