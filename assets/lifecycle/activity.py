"""Which topics and subscriptions nobody uses, by our own history over scans, and what they hold.

Source of truth: the scans' metadata, cursor ledgers, and what brokers say of connected clients. Read by the command
``inactive``.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.names import EPOCH, key
from assets.pages import show
from assets.pages.epochs import epoch_to_read
from pulsar_lifecycle.lifecycle.activity.activity_run import (
    IDLE_CURSORS,
    IDLE_TOPICS,
    TOPIC_TABLE,
    ActivityReport,
    build_activity,
)
from pulsar_lifecycle.lifecycle.activity.inactive_planning import make_inactive_plans, run_config
from pulsar_lifecycle.runs.progress import of_stages, reporting
from pulsar_lifecycle.values.plans.inactive_plan import as_capped, counted_once
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from resources.lifecycle import LifecycleResource

AGREE = "partitions_agree_with_metadata"
DELETABLE = "may be deleted"
"""What stands for no code among those that keep."""
COLUMNS = {
    "topic": "string",
    "inactive since": "string",
    "evidence": "string",
    "watched since": "string",
    "scans": "int",
    "bytes": "int",
    "physical_bytes": "int",
    "kept": "string",
}
DISAGREEING = {"topic": "string", "code": "string", "partitions_said": "int", "partitions_there": "int"}


def activity_assets(cluster: str) -> dg.AssetsDefinition:
    """``topic_activity``, ``inactive_topics`` and ``inactive_cursors``, and the plans to delete them."""
    history, topics, cursors = (key(cluster, name) for name in (TOPIC_TABLE, IDLE_TOPICS, IDLE_CURSORS))
    topics_plan, cursors_plan = (key(cluster, name) for name in ("inactive_topics_plan", "inactive_cursors_plan"))
    read = ("managed_ledgers", "managed_cursors", "bookkeeper_ledgers", "topics", "scan_coverage")

    @dg.multi_asset(
        name=f"{cluster}_activity",
        specs=[
            dg.AssetSpec(
                history,
                group_name="lifecycle",
                description="When each topic was written, read and connected to last, as far as our own scans saw it, "
                "and by which evidence. Loads no topic; changes nothing.",
                deps=[*(key(cluster, name) for name in read), key(cluster, "brokers")],
                kinds={"pyspark", "parquet"},
            ),
            dg.AssetSpec(
                topics,
                group_name="lifecycle",
                description="Topics that nobody used for `inactivity.period`, the bytes that they hold, and what keeps "
                "them from being deleted.",
                deps=[history],
                kinds={"parquet"},
            ),
            dg.AssetSpec(
                cursors,
                group_name="lifecycle",
                description="Subscriptions that nobody used for `inactivity.period`, the bytes that they keep from "
                "being trimmed, and what keeps them from being deleted.",
                deps=[history],
                kinds={"parquet"},
            ),
            dg.AssetSpec(
                topics_plan,
                group_name="lifecycle",
                description="Which inactive topics would be deleted. Making it changes nothing; job "
                "`delete_inactive_topics` takes its id and digest.",
                deps=[topics],
                kinds={"parquet"},
            ),
            dg.AssetSpec(
                cursors_plan,
                group_name="lifecycle",
                description="Which inactive subscriptions would be deleted. Making it changes nothing; job "
                "`delete_inactive_subscriptions` takes its id and digest.",
                deps=[cursors],
                kinds={"parquet"},
            ),
        ],
        check_specs=[
            dg.AssetCheckSpec(
                AGREE,
                asset=history,
                description="Fails where a partitioned topic has no partitions, or partitions that its metadata does "
                "not say.",
            )
        ],
    )
    def topic_activity(
        context: dg.AssetExecutionContext, lifecycle: LifecycleResource
    ) -> Iterator[dg.MaterializeResult]:
        where = lifecycle.cluster()
        epoch_id = epoch_to_read(context, where)
        with reporting(context.log.info, of_stages(where.spark)):
            epoch = where.lake.epoch(epoch_id)
            report = build_activity(where, epoch)
            plans = make_inactive_plans(where, epoch, report)
        topics_there = where.lake.parts(epoch_id, TOPIC_TABLE)
        yield dg.MaterializeResult(
            asset_key=history,
            metadata={
                **show.stored(where, epoch_id, TOPIC_TABLE),
                "dagster/row_count": sum(b.num_rows for b in where.lake.batches(topics_there, ["topic"])),
                **history_shown(report),
            },
            check_results=[check_result(report.partitions)],
        )
        for asset_key, table, rows in ((topics, IDLE_TOPICS, report.topics), (cursors, IDLE_CURSORS, report.cursors)):
            yield dg.MaterializeResult(
                asset_key=asset_key,
                metadata={**show.stored(where, epoch_id, table), **inactive_shown(rows)},
            )

        for asset_key, (summary, rows) in zip((topics_plan, cursors_plan), plans, strict=True):
            yield dg.MaterializeResult(
                asset_key=asset_key,
                metadata={
                    EPOCH: epoch_id,
                    "dagster/uri": show.plan_uri(where, summary.plan_id),
                    **show.over_caps(where, summary, as_capped(rows)),
                    **plan_shown(summary, rows),
                },
                data_version=dg.DataVersion(summary.digest),
            )

    return topic_activity


def plan_shown(summary: PlanSummary, rows: pa.Table) -> dict[str, Any]:
    """A plan's page: what would be deleted, and how to apply it."""
    subscriptions = "cursor" in rows.column_names
    head = show.planned(
        summary,
        run_config(summary),
        job="delete_inactive_subscriptions" if subscriptions else "delete_inactive_topics",
        nothing="No inactive subscription may be deleted." if subscriptions else "No inactive topic may be deleted.",
    )
    return {**head, **inactive_shown(rows)}


def history_shown(report: ActivityReport) -> dict[str, Any]:
    """The history's page: which scan it goes on with, and what could not be read."""
    found: dict[str, Any] = {
        "goes on with scan": report.previous.epoch_id if report.previous else "none: the history begins anew",
        "inactive topics": report.topics.num_rows,
        "inactive subscriptions": report.cursors.num_rows,
    }
    found |= show.unknown_policies(report.undecodable)
    return found | ({"not known": "; ".join(report.problems)} if report.problems else {})


def inactive_shown(rows: pa.Table) -> dict[str, Any]:
    """A table's page: how many and how many bytes by what keeps them, and the largest.

    What several subscriptions of a topic keep counts once, for the one that keeps most.
    """
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for code, size in zip(rows.column("kept").to_pylist(), counted_once(rows).to_pylist(), strict=True):
        counts[code or DELETABLE] += 1
        sizes[code or DELETABLE] += size
    cells = [(code, count, show.size(sizes[code])) for code, count in counts.most_common()]
    largest = rows.sort_by([("bytes", "descending"), ("topic", "ascending")]).slice(0, show.SAMPLE).to_pylist()
    columns = {"topic": "string", "cursor": "string", **COLUMNS} if "cursor" in rows.column_names else COLUMNS
    some = [
        row | {"inactive since": show.at(row["inactive_since"]), "watched since": show.at(row["watched_since"])}
        for row in largest
    ]
    return {
        "dagster/row_count": rows.num_rows,
        "bytes": sum(sizes.values()),
        "bytes on disk": sum(counted_once(rows, "physical_bytes").to_pylist()),
        "by what keeps them": dg.MetadataValue.md(show.markdown(["kept by", "how many", "bytes"], cells)),
        "largest": show.table(some, columns),
    }


def check_result(partitions: pa.Table) -> dg.AssetCheckResult:
    """The check that partitioned topics are whole; what disagrees is named, and never deleted by this."""
    rows = partitions.slice(0, show.SAMPLE).to_pylist()
    return dg.AssetCheckResult(
        check_name=AGREE,
        passed=not partitions.num_rows,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"partitioned topics that do not agree with their metadata: {partitions.num_rows}"
        if partitions.num_rows
        else "every partitioned topic agrees with its metadata",
        metadata={"found": partitions.num_rows, "partitioned topics": show.table(rows, DISAGREEING)},
    )
