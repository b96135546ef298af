"""Which topics need a broker to free their data, what it would free and when, and the plan.

Source of truth: the newest scan, and the policies in force. Job ``load_topics`` applies the plan.
"""

from collections import Counter
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.names import key
from assets.pages import show
from assets.pages.planned import table_and_plan
from pulsar_lifecycle.lifecycle.load.load_planning import TABLE, make_load_plan, run_config
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics.retention_now import undecodable_policies
from pulsar_lifecycle.values.plans.load_plan import TOPICS_TO_LOAD, as_capped
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary

COLUMNS = {
    "topic": "string",
    "needs": "string",
    "bytes": "int",
    "bytes_at_once": "int",
    "physical_bytes": "int",
    "second visit": "string",
    "deletes subscriptions": "string",
    "monitors": "string",
    "kept": "string",
}
LOADED = "is loaded"
"""What stands for no code among those that keep a topic."""


def load_assets(cluster: str) -> dg.AssetsDefinition:
    """``topics_to_load`` and ``load_plan``."""
    table, plan = key(cluster, "topics_to_load"), key(cluster, "load_plan")
    read = (
        *("managed_ledgers", "managed_cursors", "bookkeeper_ledgers", "topics", "scan_coverage"),
        "inactive_cursors_plan",
    )
    return table_and_plan(
        f"{cluster}_load_plan",
        dg.AssetSpec(
            table,
            group_name="lifecycle",
            description="Every topic whose data only a broker that loads it can free: why, how much, and what "
            "keeps it from being loaded.",
            deps=[key(cluster, name) for name in read],
            kinds={"pyspark", "parquet"},
        ),
        TABLE,
        dg.AssetSpec(
            plan,
            group_name="lifecycle",
            description="Which topics would be loaded, trimmed and unloaded. Making it changes nothing; job "
            "`load_topics` takes its id and digest.",
            deps=[table],
            kinds={"parquet"},
        ),
        make_load_plan,
        needing_shown,
        lambda where, summary, rows: plan_shown(summary, rows),
        as_capped,
    )


def needing_shown(where: Cluster, epoch_id: str) -> dict[str, Any]:
    """The table's page: topics and bytes by need and by what keeps them, and the largest that are kept."""
    topics: Counter[tuple[str, str]] = Counter()
    sizes: Counter[tuple[str, str]] = Counter()
    largest: list[dict[str, Any]] = []
    for batch in where.lake.batches(where.lake.parts(epoch_id, TABLE), TOPICS_TO_LOAD.names):
        for row in batch.to_pylist():
            group = ", ".join(row["needs"]), row["kept"] or LOADED
            topics[group] += 1
            sizes[group] += row["bytes"]
        largest = [*largest, *(row for row in batch.to_pylist() if row["kept"])]
        largest = sorted(largest, key=lambda row: (-row["bytes"], row["ledger_id"]))[: show.SAMPLE]
    cells = [(*group, topics[group], show.size(size)) for group, size in sizes.most_common()]
    return {
        "dagster/row_count": sum(topics.values()),
        "bytes": sum(sizes.values()),
        "by need": dg.MetadataValue.md(show.markdown(["needs", "kept by", "topics", "bytes"], cells)),
        "largest kept": _sample(largest),
        **show.unknown_policies(undecodable_policies(where)),
    }


def plan_shown(summary: PlanSummary, rows: pa.Table) -> dict[str, Any]:
    """The plan's page: what would be loaded, what that frees at once and when the rest, and how to apply it."""
    listed = rows.to_pylist()
    at_once = sum(row["bytes_at_once"] for row in listed)
    later = [row["second_visit_at"] for row in listed if row["second_visit_at"]]
    topics: Counter[str] = Counter(row["namespace"] for row in listed)
    sizes: Counter[str] = Counter()
    for row in listed:
        sizes[row["namespace"]] += row["bytes"]
    cells = [(name, topics[name], show.size(size)) for name, size in sizes.most_common(show.SAMPLE)]
    then = (
        "What is left then goes by jobs `plan_retention` and `apply_retention`, once its retention time has passed "
        f"again: from {show.at(min(later))} to {show.at(max(later))}, had it been loaded now."
        if later
        else ""
    )
    head = show.planned(
        summary,
        run_config(summary),
        job="load_topics",
        nothing="No topic needs a broker that may be loaded.",
        then=then,
    )
    return {
        **head,
        "bytes": summary.logical_bytes,
        "bytes on disk": summary.physical_bytes,
        "bytes at once": at_once,
        "second visit": f"{len(later)} topics, the last at {show.at(max(later))}" if later else "none",
        "by namespace": dg.MetadataValue.md(show.markdown(["namespace", "topics", "bytes"], cells)),
        "sample": _sample(listed),
    }


def _sample(rows: list[dict[str, Any]]) -> dg.MetadataValue:
    some = [
        row
        | {
            "needs": ", ".join(row["needs"]),
            "monitors": ", ".join(row["monitors"]),
            "second visit": show.at(row["second_visit_at"]),
            "deletes subscriptions": ", ".join(row["expired_subscriptions"] + row["inactive_subscriptions"]),
        }
        for row in rows[: show.SAMPLE]
    ]
    return show.table(some, COLUMNS)
