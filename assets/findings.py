"""What is not plainly in use, by kind.

Source of truth: ``bookkeeper_ledgers`` against ``ledger_references`` of one epoch; ``deletion_plan`` reads
``orphan_ledgers``.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from assets.names import FINDINGS, key
from assets.pages import show, versions
from assets.pages.epochs import epoch_to_read
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.lifecycle.load.failing_loads import failing_loads
from pulsar_lifecycle.runs.progress import of_stages, reporting
from pulsar_lifecycle.values.findings import Finding
from resources.lifecycle import LifecycleResource

_SHOWS: dict[str, tuple[str, tuple[Finding, ...]]] = {
    "orphan_ledgers": (
        "Ledgers that nothing refers to, closed, past the grace period: what a deletion plan is made of.",
        (Finding.ORPHAN,),
    ),
    "offload_leftovers": (
        "Offloaded ledgers whose BookKeeper copy is listed as deleted and still exists. Reported.",
        (Finding.OFFLOAD_LEFTOVER,),
    ),
    "dangling_references": (
        "Metadata that refers to ledgers BookKeeper does not have, entries with references that are damaged, topics of "
        "which the broker does not say what it has in memory: reads of them fail.",
        (Finding.DANGLING, Finding.DAMAGED, Finding.UNANSWERED),
    ),
    "unjudged_ledgers": (
        "Unreferenced ledgers that are kept, and why: young, open, foreign, empty, unknown, held.",
        (
            Finding.OPEN_ORPHAN,
            Finding.OPEN,
            Finding.TOO_YOUNG,
            Finding.FOREIGN,
            Finding.EMPTY_ZNODE,
            Finding.UNDECODABLE,
            Finding.KEPT,
        ),
    ),
}
ORPHANS = "orphan_ledgers"
"""Of the findings, what a deletion plan is made of."""
NO_DANGLING, LOADABLE = "no_dangling_references", "topics_can_load"
"""Checks of ``dangling_references``."""
TO_DO = {
    NO_DANGLING: "`pulsar-lifecycle explain LEDGER` says who names it, and whether a run of ours deleted it: then job "
    "`undo_deletions` brings it back while its entries are there.",
    LOADABLE: "`pulsar-lifecycle code CODE` says it for each code.",
}
"""What to do about each check that fails."""
NAMED = 100
"""Topics that a check names."""
COLUMNS = {
    "ledger_id": "int",
    "topic": "string",
    "component": "string",
    "physical_bytes": "int",
    "finding": "string",
    "code": "string",
}
"""Of a sample; reasons are sentences and stand in a table of their own, one of each code."""


def findings_assets(cluster: str) -> dg.AssetsDefinition:
    """The four findings, computed together, with the checks of one of them."""
    specs = [
        dg.AssetSpec(
            key(cluster, name),
            group_name="findings",
            description=_SHOWS[name][0],
            deps=[key(cluster, "ledger_references"), key(cluster, "bookkeeper_ledgers")],
            kinds={"pyspark", "parquet"},
        )
        for name in FINDINGS
    ]

    asset_key = key(cluster, "dangling_references")
    checks = {
        NO_DANGLING: "Fails where metadata refers to ledgers that BookKeeper does not have: what was in them is lost.",
        LOADABLE: "Fails where no broker can load a topic, or only with a subscription that goes back: its z-node or a "
        "cursor's cannot be decoded, or bookies that its last ledger or a cursor's ledger needs are not registered. "
        "The code of each says what to do.",
    }

    @dg.multi_asset(
        name=f"{cluster}_findings",
        specs=specs,
        check_specs=[
            dg.AssetCheckSpec(name, asset=asset_key, description=description) for name, description in checks.items()
        ],
    )
    def findings(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Iterator[Any]:
        where = lifecycle.cluster()
        epoch_id = epoch_to_read(context, where, judged=False)
        with reporting(context.log.info, of_stages(where.spark)):
            judged_scan.judge(where, epoch_id)
        rows = where.table(epoch_id, "findings")
        stored = show.stored(where, epoch_id, "findings")
        for name in FINDINGS:
            wanted = rows.where(f.col("finding").isin([kind.value for kind in _SHOWS[name][1]]))
            shown, content = _shown(wanted)
            asset = key(cluster, name)
            version = (
                versions.of_orphans(context.instance, where, asset, epoch_id, content)
                if name == ORPHANS
                else versions.version_of(content)
            )
            yield dg.MaterializeResult(asset_key=asset, metadata={**stored, **shown}, data_version=version)
        missing = rows.where(f.col("finding") == Finding.DANGLING.value).select("topic", f.col("reason").alias("why"))
        yield _dangling_result(asset_key, missing)
        try:
            failing = failing_loads(where, epoch_id)
        except LifecycleError as error:  # the findings are made, whatever is known of the bookies
            failing = error
        yield loadable_result(asset_key, failing)

    return findings


def _dangling_result(asset_key: dg.AssetKey, missing: DataFrame) -> dg.AssetCheckResult:
    """Passes where there are no such references; ``missing``: topic, why."""
    found = [tuple(row) for row in missing.orderBy("topic").limit(NAMED).collect()]
    what = "references to ledgers that BookKeeper does not have"
    return _result(asset_key, NO_DANGLING, missing.count(), what, ["topic", "why"], found, {})


def loadable_result(asset_key: dg.AssetKey, failing: pa.Table | LifecycleError) -> dg.AssetCheckResult:
    """Passes where every topic can be loaded, as far as ``failing`` (``FAILING_LOADS``, or why it is not known) tells.

    What is not known is a warning.
    """
    if isinstance(failing, LifecycleError):
        why = f"whether brokers can load the topics is not known: {failing}"
        warn = dg.AssetCheckSeverity.WARN
        return dg.AssetCheckResult(
            asset_key=asset_key, check_name=LOADABLE, passed=False, severity=warn, description=why
        )
    columns = ["topic", "code", "why"]
    found = [tuple(row.values()) for row in failing.select(columns).slice(0, NAMED).to_pylist()]
    count = pc.count_distinct(failing.column("topic")).as_py()
    codes = Counter(failing.column("code").to_pylist())
    return _result(asset_key, LOADABLE, count, "topics that no broker can load whole", columns, found, codes)


def _result(
    asset_key: dg.AssetKey,
    name: str,
    count: int,
    what: str,
    columns: list[str],
    found: list[tuple[Any, ...]],
    codes: Mapping[str, int],
) -> dg.AssetCheckResult:
    """Passes where there are none; ``what``: what they are, in words; ``codes``: of all rows, also of those not named.

    They are shown where not all rows are.
    """
    more = f", {NAMED} are named" if count > NAMED else ""
    counted = {"by code": dg.MetadataValue.md(show.markdown(["code", "rows"], sorted(codes.items())))}
    some_unnamed = sum(codes.values()) > NAMED
    return dg.AssetCheckResult(
        asset_key=asset_key,
        check_name=name,
        passed=not count,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"{count or 'no'} {what}{more}",
        metadata={"found": count, "topics": dg.MetadataValue.md(show.markdown(columns, found))}
        | (counted if some_unnamed else {})
        | ({"what to do": dg.MetadataValue.md(TO_DO[name])} if count else {}),
    )


def _shown(rows: DataFrame) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """The page, and what the version is made of: equal for equal findings of equal ledgers."""
    groups = (
        rows.groupBy("finding", "code")
        .agg(
            f.count("*").alias("ledgers"),
            f.sum("logical_bytes").alias("logical"),
            f.sum("physical_bytes").alias("physical"),
            f.min("reason").alias("reason"),
            f.bit_xor(f.xxhash64("ledger_id", "path", "topic", "cursor")).alias("content"),
        )
        .orderBy(f.desc("physical"))
        .collect()
    )
    sample = [row.asDict() for row in rows.orderBy(f.desc("physical_bytes"), "ledger_id").limit(show.SAMPLE).collect()]
    by_code = [
        (
            g["finding"],
            g["code"],
            g["ledgers"],
            show.size(g["logical"] or 0),
            show.size(g["physical"] or 0),
            g["reason"],
        )
        for g in groups
    ]
    content = sorted((g["finding"], g["code"] or "", g["ledgers"], g["content"]) for g in groups)
    shown = {
        "dagster/row_count": sum(g["ledgers"] for g in groups),
        "logical bytes": sum(g["logical"] or 0 for g in groups),
        "physical bytes": sum(g["physical"] or 0 for g in groups),
        "by reason": dg.MetadataValue.md(
            show.markdown(["finding", "code", "ledgers", "logical", "physical", "such as"], by_code)
        ),
        "largest": show.table(sample, COLUMNS),
    }
    return shown, content
