"""What topics hold that retention does not reach: ledgers that were never closed, and subscriptions' backlogs.

Source of truth: the scan of the newest storage report, bookies' last entries, and the policies in force. Read by the
commands ``open-ledgers`` and ``backlog``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from assets.names import key
from assets.pages import show
from assets.pages.epochs import epoch_of, epoch_to_read, is_readable
from pulsar_lifecycle.lifecycle.held.held_run import BACKLOG_TABLE, OPEN_TABLE, build_held, held_rows
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.progress import of_stages, reporting
from resources.lifecycle import LifecycleResource

OPEN_COLUMNS = {
    "topic": "string",
    "ledger_id": "int",
    "made": "string",
    "bytes": "int",
    "expired": "string",
    "causes": "string",
    "closes": "string",
    "problem": "string",
}
BACKLOG_COLUMNS = {
    "topic": "string",
    "cursor": "string",
    "stands at": "string",
    "bytes": "int",
    "expired_bytes": "int",
    "ends": "string",
    "last active": "string",
}


def held_assets(cluster: str) -> dg.AssetsDefinition:
    """``open_ledgers`` and ``subscription_backlog``."""
    opened, backlog = key(cluster, OPEN_TABLE), key(cluster, BACKLOG_TABLE)
    deps = [key(cluster, name) for name in ("storage_report", "managed_cursors", "topics", "brokers")]

    @dg.multi_asset(
        name=f"{cluster}_held",
        specs=[
            dg.AssetSpec(
                opened,
                group_name="lifecycle",
                description="Last ledgers that were never closed, of topics that no broker has, or older than their "
                "retention: what is in them, as bookies say, and which settings of rollover leave them open. Loads no "
                "topic; changes nothing.",
                deps=deps,
                kinds={"pyspark", "parquet"},
            ),
            dg.AssetSpec(
                backlog,
                group_name="lifecycle",
                description="What each durable cursor has not acknowledged, how much of that is past the TTL in force, "
                "and what takes it away. Loads no topic; changes nothing.",
                deps=[*deps, opened],
                kinds={"pyspark", "parquet"},
            ),
        ],
    )
    def held(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Iterator[dg.MaterializeResult]:
        where = lifecycle.cluster()
        reported = epoch_of(context.instance, key(cluster, "storage_report"))
        epoch_id = reported if is_readable(where, reported) else epoch_to_read(context, where)
        with reporting(context.log.info, of_stages(where.spark)):
            problems = build_held(where, where.lake.epoch(epoch_id))
        for asset_key, table, shown in ((opened, OPEN_TABLE, open_shown), (backlog, BACKLOG_TABLE, backlog_shown)):
            stored = show.stored(where, epoch_id, table)
            yield dg.MaterializeResult(
                asset_key=asset_key, metadata={**stored, **shown(where, epoch_id), **_unknown(problems)}
            )

    return held


def open_shown(where: Cluster, epoch_id: str) -> dict[str, Any]:
    """The page: ledgers and bytes by cause, and the largest."""
    rows = held_rows(where.lake, epoch_id, OPEN_TABLE).to_pylist()
    some = [
        row
        | {
            "made": show.at(row["made_at"]),
            "expired": "yes" if row["expired"] else "",
            "causes": ", ".join(row["causes"]),
            "closes": show.at(row["closes_at"]),
        }
        for row in rows[: show.SAMPLE]
    ]
    return {
        "dagster/row_count": len(rows),
        "bytes": sum(row["bytes"] or 0 for row in rows),
        "bytes on disk": sum(row["physical_bytes"] or 0 for row in rows),
        "bytes past their retention": sum(row["bytes"] or 0 for row in rows if row["expired"]),
        "of unknown size": sum(row["bytes"] is None for row in rows),
        "by cause": _summed([(", ".join(row["causes"]) or "none", row["bytes"]) for row in rows], "causes", "ledgers"),
        "largest": show.table(some, OPEN_COLUMNS),
    }


def backlog_shown(where: Cluster, epoch_id: str) -> dict[str, Any]:
    """The page: bytes by what takes them away, and the largest backlogs. A ledger counts once for each cursor."""
    rows = held_rows(where.lake, epoch_id, BACKLOG_TABLE).to_pylist()
    some = [
        row
        | {
            "stands at": "" if row["ledger_id"] is None else f"{row['ledger_id']}:{row['entry_id']}",
            "last active": show.at(row["last_active"]) if row["last_active"] else "",
        }
        for row in rows[: show.SAMPLE]
    ]
    return {
        "dagster/row_count": len(rows),
        "bytes past their TTL": sum(row["expired_bytes"] or 0 for row in rows),
        "by what ends them": _summed([(row["ends"], row["bytes"]) for row in rows], "ends", "cursors"),
        "largest": show.table(some, BACKLOG_COLUMNS),
    }


def _summed(pairs: Sequence[tuple[str, int | None]], name: str, counted: str) -> dg.MetadataValue:
    count, size = Counter[str](), Counter[str]()
    for group, nbytes in pairs:
        count[group] += 1
        size[group] += nbytes or 0
    cells = [(group, count[group], show.size(size[group])) for group, _ in size.most_common()]
    return dg.MetadataValue.md(show.markdown([name, counted, "bytes"], cells))


def _unknown(problems: Sequence[str]) -> Mapping[str, Any]:
    return {"not known": "; ".join(problems)} if problems else {}
