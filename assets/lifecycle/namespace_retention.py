"""Retention of chosen namespaces in one run: one plan, and its application if that is asked for.

Source of truth: as that of ``retention_plan``.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.backfills import NO_MORE, by_namespace, pages_written, partitions_to_do
from assets.names import EPOCH, key
from assets.pages import lineage, show
from assets.pages.epochs import fingerprint_of
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.scan.evidence import newest_epoch
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from resources.lifecycle import LifecycleResource


class RetainConfig(dg.Config):
    """As it ships, a backfill only makes the plan."""

    dry_run: bool = True


def namespace_retention_asset(cluster: str) -> dg.AssetsDefinition:
    """``namespace_retention``, partitioned by namespace."""

    @by_namespace(
        cluster,
        "namespace_retention",
        group_name="lifecycle",
        description="Retention of the chosen namespaces: one plan of the newest scan for any selection, such as after "
        "a rollback of brokers or a restore of ZooKeeper, whose ledgers leave their topics.",
        deps=[key(cluster, "journal")],
        kinds={"pyspark"},
    )
    def namespace_retention(
        context: dg.AssetExecutionContext, config: RetainConfig, lifecycle: LifecycleResource
    ) -> Iterator[dg.MaterializeResult]:
        names = partitions_to_do(context)
        if not names:
            return
        where = lifecycle.cluster()
        epoch = newest_epoch(where, fingerprint_of(where))
        summary, rows = make_retention_plan(where, epoch)
        order = Order(summary.plan_id, summary.digest, namespaces=tuple(names))
        done: list[LedgerOutcome] = []
        with pages_written(context, names, lambda name: _shown(summary, rows, done, name, dry_run=config.dry_run)):
            with lineage.noted(context, where, summary.plan_id, dry_run=config.dry_run):
                apply_retention(where, context.run.run_id, order, dry_run=config.dry_run, report=done.extend)
            check_trimmed(done)
        yield from NO_MORE

    return namespace_retention


def check_trimmed(done: Sequence[LedgerOutcome]) -> None:
    """Fail where a topic failed: what left the others' lists has left them."""
    if failed := [one for one in done if one.outcome == Outcome.FAILED]:
        topics = len({one.topic for one in failed})
        raise dg.Failure(f"{topics} topics failed, the first: {failed[0].topic}: {failed[0].reason}; launch it again")


def _shown(
    summary: PlanSummary, rows: pa.Table, done: list[LedgerOutcome], name: str, *, dry_run: bool
) -> dict[str, Any]:
    own = rows.filter(pc.equal(rows.column("namespace"), name))
    mine = [one for one in done if f"://{name}/" in one.topic]
    gone = [one for one in mine if one.outcome == Outcome.REMOVED]
    plan = {
        EPOCH: summary.epoch_id,
        "plan id": summary.plan_id,
        "dry run": dry_run,
        "dagster/row_count": own.num_rows,
        "whole plan": dg.MetadataValue.md(show.whole_plan(summary.plan_id)),
        "runs": dg.MetadataValue.md(show.applied_by(summary.plan_id)),
    }
    if dry_run:
        would = pc.sum(own.column("bytes")).as_py() or 0
        return {**plan, "would leave their topics": own.num_rows, "bytes that would leave": would}
    outcomes = Counter((one.outcome.value, one.why.code.value) for one in mine)
    cells = [(*kind, count) for kind, count in sorted(outcomes.items())]
    return {
        **plan,
        "left their topics": len(gone),
        "bytes": sum(one.bytes for one in gone),
        "outcomes": dg.MetadataValue.md(show.markdown(["outcome", "code", "rows"], cells)),
    }
