"""Which ledgers of unloaded topics are past their retention, what keeps some of them, and the plan.

Source of truth: the newest scan, and the retention policies in force. Job ``apply_retention`` applies the plan.
"""

from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.names import key
from assets.pages import show
from assets.pages.planned import table_and_plan
from pulsar_lifecycle.automation_settings import Automation
from pulsar_lifecycle.lifecycle.retention_planning import TABLE, make_retention_plan, run_config
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics.retention_now import undecodable_policies
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.plans.retention_plan import EXPIRED_LEDGERS, as_capped

COLUMNS = {
    "topic": "string",
    "ledger_id": "int",
    "bytes": "int",
    "expired_by": "string",
    "since": "string",
    "level": "string",
    "kept": "string",
}
GOES = "goes"
"""What stands for no code among those that keep a ledger."""


def retention_assets(cluster: str) -> dg.AssetsDefinition:
    """``expired_ledgers`` and ``retention_plan``."""
    table, plan = key(cluster, "expired_ledgers"), key(cluster, "retention_plan")
    read = ("managed_ledgers", "managed_cursors", "bookkeeper_ledgers", "topics", "scan_coverage")

    return table_and_plan(
        f"{cluster}_retention_plan",
        dg.AssetSpec(
            table,
            group_name="lifecycle",
            description="Every ledger that is past its retention, acknowledged or not: by which limit, set where, "
            "and what keeps it all the same.",
            deps=[key(cluster, name) for name in read],
            kinds={"pyspark", "parquet"},
        ),
        TABLE,
        dg.AssetSpec(
            plan,
            group_name="lifecycle",
            description="Which ledgers would leave topics that no broker has loaded. Making it changes nothing; "
            "job `apply_retention` takes its id and digest.",
            deps=[table],
            kinds={"parquet"},
        ),
        make_retention_plan,
        expired_shown,
        lambda where, summary, rows: plan_shown(summary, rows, where.settings.automation.retention.mode),
        as_capped,
        automated="retention",
    )


def expired_shown(where: Cluster, epoch_id: str) -> dict[str, Any]:
    """The table's page: how many and how many bytes by limit, level and code, and the largest that stay."""
    sums: list[pa.Table] = []
    largest = EXPIRED_LEDGERS.empty_table()
    by = ["expired_by", "level", "kept"]
    for batch in where.lake.batches(where.lake.parts(epoch_id, TABLE), EXPIRED_LEDGERS.names):
        rows = pa.Table.from_batches([batch])
        sums.append(rows.group_by(by).aggregate([("ledger_id", "count"), ("bytes", "sum")]))
        stays = pa.concat_tables([largest, rows.filter(rows.column("kept").is_valid())])
        largest = stays.sort_by([("bytes", "descending"), ("ledger_id", "ascending")]).slice(0, show.SAMPLE)
    groups: list[dict[str, Any]] = []
    if sums:
        whole = pa.concat_tables(sums).group_by(by).aggregate([("ledger_id_count", "sum"), ("bytes_sum", "sum")])
        groups = whole.sort_by([("bytes_sum_sum", "descending")]).to_pylist()
    cells = [
        (
            g["expired_by"] or "not known",
            g["level"],
            g["kept"] or GOES,
            g["ledger_id_count_sum"],
            show.size(g["bytes_sum_sum"]),
        )
        for g in groups
    ]
    headers = ["expired by", "set at", "kept by", "ledgers", "bytes"]
    return {
        "dagster/row_count": sum(g["ledger_id_count_sum"] for g in groups),
        "bytes": sum(g["bytes_sum_sum"] for g in groups),
        "bytes kept": sum(g["bytes_sum_sum"] for g in groups if g["kept"]),
        "by reason": dg.MetadataValue.md(show.markdown(headers, cells)),
        "largest kept": _sample(largest),
        **show.unknown_policies(undecodable_policies(where)),
    }


def plan_shown(summary: PlanSummary, rows: pa.Table, mode: Automation) -> dict[str, Any]:
    """The plan's page: what would go, whether it may, and how to apply it."""
    head = show.planned(
        summary,
        run_config(summary),
        job="apply_retention",
        nothing="Nothing is past its retention that could go.",
        then="Ledgers leave their topics' lists; job `delete_pending` then decides each afresh.",
        mode=mode,
    )
    return {
        **head,
        "bytes": summary.logical_bytes,
        "bytes on disk": summary.physical_bytes,
        "topics": pc.count_distinct(rows.column("topic")).as_py(),
        "share": f"{summary.ledgers / max(summary.cluster_ledgers, 1):.2%} of the cluster's {summary.cluster_ledgers}",
        "by namespace": dg.MetadataValue.md(_by(rows, "namespace")),
        "by limit": dg.MetadataValue.md(_by(rows, "expired_by")),
        "sample": _sample(rows),
    }


def _by(rows: pa.Table, column: str) -> str:
    """Ledgers and bytes by one column, largest first, at most :data:`show.SAMPLE` lines."""
    grouped = rows.group_by(column).aggregate([("ledger_id", "count"), ("bytes", "sum")])
    lines = grouped.sort_by([("bytes_sum", "descending")]).slice(0, show.SAMPLE).to_pylist()
    cells = [(line[column], line["ledger_id_count"], show.size(line["bytes_sum"])) for line in lines]
    return show.markdown([column, "ledgers", "bytes"], cells)


def _sample(rows: pa.Table) -> dg.MetadataValue:
    some = rows.slice(0, show.SAMPLE).to_pylist()
    return show.table([row | {"since": show.at(row["expired_at"])} for row in some], COLUMNS)
