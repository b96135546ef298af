"""Where the disk goes: every ledger of the newest scan under one reason, by namespace and topic.

Source of truth: the newest scan, and the retention policies in force. Read by the command ``storage``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.names import key
from assets.pages import show
from assets.pages.epochs import epoch_to_read
from assets.pages.plots import storage_as_text, storage_over_time
from pulsar_lifecycle.inspect.lake_tables import whole_table
from pulsar_lifecycle.lifecycle.storage_run import (
    SUMMED,
    TABLE,
    Totals,
    build_storage_report,
    by_reason,
    largest_topics,
    namespaces_by_size,
    reported,
    scanned,
    totals,
)
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.progress import of_stages, reporting
from resources.lifecycle import LifecycleResource

WHOLE = "sums_equal_the_scan"
TOPICS = 20
"""Topics and namespaces that the page shows."""
HISTORY = 90
"""Reports that the picture goes back at most."""


def storage_report_asset(cluster: str) -> dg.AssetsDefinition:
    """``storage_report`` with its check."""
    asset_key = key(cluster, "storage_report")
    read = ("bookkeeper_ledgers", "managed_ledgers", "managed_cursors", "topics", "scan_coverage")

    @dg.asset(
        key=asset_key,
        group_name="lifecycle",
        description="Why every ledger is on the bookies' disks: bytes by namespace, topic and reason, over time. Loads "
        "no topic; changes nothing.",
        deps=[key(cluster, name) for name in read],
        check_specs=[
            dg.AssetCheckSpec(
                WHOLE,
                asset=asset_key,
                description="Fails where ledgers or bytes of the report do not add up to those of the scan.",
            )
        ],
        kinds={"pyspark", "parquet"},
    )
    def storage_report(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> dg.MaterializeResult:
        where = lifecycle.cluster()
        epoch_id = epoch_to_read(context, where)
        with reporting(context.log.info, of_stages(where.spark)):
            rows, problems = build_storage_report(where, where.lake.epoch(epoch_id))
        return dg.MaterializeResult(
            metadata={
                **show.stored(where, epoch_id, TABLE),
                **report_shown(where, epoch_id, rows, problems),
            },
            check_results=[check_result(totals(rows), scanned(where, epoch_id))],
        )

    return storage_report


def check_result(found: Totals, expected: Totals) -> dg.AssetCheckResult:
    """The check that no ledger is missing, and none counts twice."""
    return dg.AssetCheckResult(
        check_name=WHOLE,
        passed=found == expected,
        description="every ledger of the scan is in it once"
        if found == expected
        else f"the report adds up to {_in_words(found)}, the scan to {_in_words(expected)}",
        metadata={
            "ledgers that differ": abs(found.ledgers - expected.ledgers),
            "bytes that differ": abs(found.physical_bytes - expected.physical_bytes),
        },
    )


def _in_words(sums: Totals) -> str:
    return f"{sums.ledgers} ledgers of {sums.bytes} bytes, {sums.physical_bytes} on disk"


def report_shown(where: Cluster, epoch_id: str, rows: pa.Table, problems: Sequence[str]) -> dict[str, Any]:
    """The page: sums by reason and how they changed, the largest topics, and the reports over time."""
    lake, whole, sums = where.lake, totals(rows), by_reason(rows)
    history = [epoch for epoch in reported(lake, where.settings.cluster)[-HISTORY:] if epoch.epoch_id != epoch_id]
    columns = ["reason", *SUMMED]
    earlier = [(epoch.started_at, by_reason(whole_table(where, TABLE, epoch.epoch_id, columns))) for epoch in history]
    now = lake.epoch(epoch_id).started_at
    points = sorted([*earlier, (now, sums)], key=lambda point: point[0])
    last = next((known for at, known in reversed(earlier) if at < now), None)
    headers = ["reason", "ledgers", "of unknown size", "bytes", "on disk", "since the last report"]
    cells = [
        (
            reason,
            one["ledgers"],
            one["ledgers_unsized"],
            show.size(one["bytes"]),
            show.size(one["physical_bytes"]),
            _change(one["physical_bytes"], (last.get(reason) or {}).get("physical_bytes", 0)) if last else "",
        )
        for reason, one in sums.items()
    ]
    on_disk = [(at, _on_disk(known)) for at, known in points]
    found = {
        "dagster/row_count": rows.num_rows,
        "ledgers": whole.ledgers,
        "bytes": whole.bytes,
        "bytes on disk": whole.physical_bytes,
        "by reason": dg.MetadataValue.md(show.markdown(headers, cells)),
        "largest namespaces": dg.MetadataValue.md(_namespaces(rows)),
        "largest topics": dg.MetadataValue.md(_topics(rows)),
        "over time": storage_as_text(on_disk),
        "over time, drawn": storage_over_time(on_disk),
    }
    return found | show.unknown_policies(problems)


def _on_disk(sums: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {reason: one["physical_bytes"] for reason, one in sums.items()}


def _change(now: int, before: int) -> str:
    return "" if now == before else f"{'+' if now > before else '-'}{show.size(abs(now - before))}"


def _namespaces(rows: pa.Table) -> str:
    cells = [(name or "not known", count, show.size(size)) for name, count, size in namespaces_by_size(rows)[:TOPICS]]
    return show.markdown(["namespace", "ledgers", "on disk"], cells)


def _topics(rows: pa.Table) -> str:
    cells = [
        (topic, show.size(size), ", ".join(f"{reason} {show.size(part)}" for reason, part in reasons.items()))
        for topic, size, reasons in largest_topics(rows, TOPICS)
    ]
    return show.markdown(["topic", "on disk", "why"], cells)
