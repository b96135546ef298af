"""Who refers to which ledger, and the proof that nothing was overlooked.

Source of truth: the metastore's tables, the entries behind them, and the brokers' memory; read by every finding and
every deletion run.
"""

from collections import Counter
from collections.abc import Iterator

import dagster as dg
import pyarrow.compute as pc

from assets.names import EPOCH, FINDINGS, METASTORE, key, pool
from assets.pages import show, versions
from assets.pages.epochs import epoch_to_read, epoch_to_write
from assets.pages.lineage import about_scan
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.progress import of_stages, reporting
from pulsar_lifecycle.scan.references import KINDS
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.gaps import in_words
from resources.lifecycle import LifecycleResource

COVERAGE, COVERED = "coverage", "covered"


def references_asset(cluster: str) -> dg.AssetsDefinition:
    """``ledger_references`` with its coverage check."""
    name = key(cluster, "ledger_references")

    @dg.asset(
        key=name,
        group_name="references",
        description="Every reference to a ledger, by kind (R1-R16), and whether all that can refer to one was read.",
        deps=[key(cluster, t) for t in METASTORE],
        kinds={"pyspark", "parquet"},
        check_specs=[
            dg.AssetCheckSpec(
                COVERAGE,
                asset=name,
                description="Was everything that can refer to a ledger read? If not, plans are report-only.",
            )
        ],
        pool=pool(cluster, "zookeeper"),
    )
    def ledger_references(
        context: dg.AssetExecutionContext, lifecycle: LifecycleResource
    ) -> Iterator[dg.MaterializeResult]:
        where = lifecycle.cluster()
        epoch_id, started_at = epoch_to_write(context, where)
        with reporting(context.log.info, of_stages(where.spark)):
            try:
                judged_scan.read_references(where, epoch_id)
            except NotFound as error:  # a person materializes the tables one by one
                text = f"{error}: materialize that table first, or launch job scan"
                raise dg.Failure(text, allow_retries=False) from error
            epoch = judged_scan.close(where, epoch_id, started_at)
        about_scan(context, epoch_id)
        counts, ids = _by_kind(where, epoch_id)
        kinds = show.markdown(
            ["kind", "what", "where", "treatment", "references"],
            [(k.code, k.name, k.where, k.treatment, counts[k.code]) for k in KINDS.values()],
        )
        for gap in epoch.gaps:
            context.log.warning(f"coverage: {gap.line}")
        yield dg.MaterializeResult(
            metadata={
                **show.stored(where, epoch_id, "references"),
                "dagster/row_count": sum(counts.values()),
                "kinds": dg.MetadataValue.md(kinds),
                "covered": epoch.covered,
            },
            data_version=versions.version_of(dict(counts), ids),
            check_results=[coverage_result(epoch)],
        )

    return ledger_references


def coverage_result(epoch: Epoch) -> dg.AssetCheckResult:
    """What check ``coverage`` says of a scan."""
    return dg.AssetCheckResult(
        check_name=COVERAGE,
        passed=epoch.covered,
        severity=dg.AssetCheckSeverity.ERROR,
        description=_missing(epoch),
        metadata={
            "gaps": len(epoch.gaps),
            "missing": show.bullets([gap.line for gap in epoch.gaps], 100),
            EPOCH: epoch.epoch_id,
        },
    )


def _missing(epoch: Epoch) -> str:
    """What was not read of a scan, in words."""
    return "everything was read" if epoch.covered else in_words(epoch.gaps)


def coverage_asset(cluster: str) -> dg.AssetsDefinition:
    """``scan_coverage`` with its blocking check: what deletion runs, and assets that follow by themselves, wait for."""
    name = key(cluster, "scan_coverage")

    @dg.asset(
        key=name,
        group_name="references",
        description="Whether the scan that has just ended is whole: everything was read that can refer to a ledger, "
        "and every ledger was judged. What follows a scan by itself waits for it.",
        deps=[key(cluster, one) for one in ("ledger_references", *FINDINGS)],
        kinds={"parquet"},
        check_specs=[
            dg.AssetCheckSpec(
                COVERED,
                asset=name,
                blocking=True,
                # A warning: an error would end the scan's own run, whose plan says report-only and why.
                description="Fails where the scan is not covered: what follows scans by itself waits for one that is.",
            )
        ],
    )
    def scan_coverage(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> dg.MaterializeResult:
        where = lifecycle.without_spark()
        epoch = where.lake.epoch(epoch_to_read(context, where, judged=False))
        return dg.MaterializeResult(
            metadata={
                EPOCH: epoch.epoch_id,
                "dagster/row_count": len(epoch.gaps),
                "covered": epoch.covered,
                "missing": show.bullets([gap.line for gap in epoch.gaps], 100),
            },
            data_version=versions.version_of(epoch.covered, sorted(gap.code for gap in epoch.gaps)),
            check_results=[
                dg.AssetCheckResult(
                    check_name=COVERED,
                    passed=epoch.covered,
                    severity=dg.AssetCheckSeverity.WARN,
                    description=_missing(epoch),
                    metadata={"gaps": len(epoch.gaps)},
                )
            ],
        )

    return scan_coverage


def _by_kind(where: Cluster, epoch_id: str) -> tuple[Counter[str], int]:
    """References by kind, and the sum of the ledger ids that they name."""
    counts, ids = Counter[str](), 0
    parts = where.parts(epoch_id, "references")
    for batch in where.lake.batches(parts, ["kind", "ledger_id"], pc.field("ledger_id").is_valid()):
        counts.update({c["values"]: c["counts"] for c in batch.column("kind").value_counts().to_pylist()})
        ids += int(pc.sum(batch.column("ledger_id")).as_py() or 0)
    return counts, ids
