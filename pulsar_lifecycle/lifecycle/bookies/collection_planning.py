"""The stored plan of bookies to have collect: making it of disks that were just read, and whether it may be applied.

Not here: the rule (``collection.py``), telling bookies (``collection_run.py``). Making a plan writes nothing to the
cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.formats import bookie_racks
from pulsar_lifecycle.formats.bookie_racks import DEFAULT_RACK
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import BookieDisk, DiskVerdict
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionChoice, PlannedCollection, plan_collection
from pulsar_lifecycle.ports import MetadataStore, Node, Unread
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.plans import collection_plan
from pulsar_lifecycle.values.plans.collection_plan import COLLECTIONS
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary, summary_of
from pulsar_lifecycle.values.refusals import RefusalCode


def make_collection_plan(
    cluster: Cluster, epoch: Epoch, disks: Sequence[BookieDisk]
) -> tuple[PlanSummary, list[PlannedCollection]]:
    """Store the plan of the disks that were read at an epoch: what it is, and every bookie, those that stay out too.

    Raises Refused where the bookies' racks are not known.
    """
    gaps = evidence.gaps_of(cluster, epoch)
    with cluster.ports(read_only=True) as ports:
        racks = read_racks(ports.store)
    judged = plan_collection(disks, racks, cluster.settings.collection.min_bytes)
    going = [row for row in judged if row.choice is CollectionChoice.COLLECT]
    rows = pa.Table.from_pylist(
        [{"bookie": row.bookie, "rack": row.rack, "bytes": row.bytes, "verdict": row.verdict.value} for row in going],
        COLLECTIONS,
    )
    summary = summary_of(
        PlanKind.COLLECTION, cluster.ids.token(plans.TOKEN_BYTES), epoch, gaps, cluster.clock.now_ms(), rows,
        collection_plan.digest, cluster_ledgers=len(disks),
    )  # fmt: skip
    cluster.lake.store_collection_plan(summary, rows)
    return summary, judged


def read_racks(store: MetadataStore) -> dict[str, str]:
    """Bookie id -> rack, as brokers place by. Raises Refused if that cannot be read, CorruptFormat."""
    node = store.read([bookie_racks.BOOKIES])[0]
    if isinstance(node, Unread):
        text = f"{bookie_racks.BOOKIES}: {node.reason}: the bookies' racks are not known"
        raise RefusedBy(RefusalCode.RACKS_UNKNOWN, text)
    return bookie_racks.decode(node.data) if isinstance(node, Node) else {}


def planned_bookies(cluster: Cluster, order: Order, fingerprint: str) -> list[str]:
    """The bookies of a plan, if it may be applied now, by the rules of every plan. Raises Refused, NotFound."""
    summary, rows = cluster.lake.collection_plan(order.plan_id)
    evidence.check_plan(cluster, order, summary, collection_plan.digest(rows, summary.to_json()), fingerprint)
    return rows.column("bookie").to_pylist()


def of_the_plan(
    judged: Sequence[PlannedCollection], ordered: Collection[str], racks: Mapping[str, str]
) -> list[PlannedCollection]:
    """What becomes now of every bookie, and of those ``ordered`` that are gone: no other one collects."""
    found = [
        replace(row, choice=CollectionChoice.NOT_PLANNED)
        if row.choice is CollectionChoice.COLLECT and row.bookie not in ordered
        else row
        for row in judged
    ]
    gone = sorted(set(ordered).difference(row.bookie for row in judged))
    unknown = CollectionChoice.UNKNOWN_DISK, None, DiskVerdict.NOT_REGISTERED
    return found + [PlannedCollection(bookie, racks.get(bookie, DEFAULT_RACK), *unknown) for bookie in gone]


def run_config(summary: PlanSummary) -> dict[str, Any]:
    """The run configuration with which Dagster's job ``collect_bookies`` applies a plan."""
    config = {"plan_id": summary.plan_id, "digest": summary.digest, "dry_run": True}
    return {"ops": {"collect": {"config": config}}}
