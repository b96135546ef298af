"""Data versions of tables: equal content has an equal version, so that Dagster's "Unsynced" means something.

What we order ourselves is no change: a plan is in order while its own ledgers go. Not here: versions of plans, which
are their digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
from dagster._core.definitions.data_version import DATA_VERSION_TAG
from pyroaring import BitMap64

from assets.names import EPOCH
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.journal.queries import ordered_since
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.referenced import id_set

STAT = ("czxid", "mtime", "version")
"""A z-node that was written again differs in at least one of these."""


def version_of(*content: object) -> dg.DataVersion:
    """The version of what these plain values describe."""
    return dg.DataVersion(hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16])


def not_ours(schema: pa.Schema) -> pc.Expression:
    """The condition for rows that are not about the deletion queue's own topics.

    Each intent that is sent or taken writes their z-nodes: they say nothing of what is judged.
    """
    queue, condition = DELETION_TOPIC, pc.scalar(True)
    owners = {"managed_ledger": queue.managed_ledger, "schema_id": queue.schema_id}
    for name in set(owners) & set(schema.names):
        owner = pc.field(name)
        condition &= owner.is_null() | ~pc.starts_with(owner, owners[name])
    return condition


def sums(
    lake: Lake, parts: Iterable[str], columns: Sequence[str] = STAT, where: pc.Expression | None = None
) -> list[int]:
    """How many rows some parts of tables have, and the sums of their numbers, modulo 2^63; of rows ``where``."""
    found = [0] * (len(columns) + 1)
    for batch in lake.batches(parts, columns, where):
        found[0] += batch.num_rows
        for place, name in enumerate(columns, 1):
            found[place] += int(pc.sum(batch.column(name)).as_py() or 0)
    return [value % (1 << 63) for value in found]


def of_orphans(
    instance: dg.DagsterInstance, where: Cluster, asset: dg.AssetKey, epoch_id: str, content: object
) -> dg.DataVersion:
    """The version of a scan's orphans: the last one's, if no orphan came or went since but by our own orders.

    A deletion run scans again, and finds the ledgers gone that the run before it deleted: the plan that named them is
    in order. ``content`` describes the orphans; a version that was left never comes back.
    """
    last = instance.get_latest_materialization_event(asset)
    event = last.asset_materialization if last else None
    tags = (event.tags if event else None) or {}
    if event is None or EPOCH not in event.metadata or DATA_VERSION_TAG not in tags:
        return version_of(content)
    before = tags[DATA_VERSION_TAG]
    try:
        earlier = where.lake.epoch(str(event.metadata[EPOCH].value))
        changed = _orphans(where, earlier.epoch_id) ^ _orphans(where, epoch_id)
    except NotFound:
        return version_of(content, before)
    if changed and not changed <= BitMap64(ordered_since(where.journal_reader, earlier.started_at, earlier.cluster)):
        return version_of(content, before)
    return dg.DataVersion(before)


def _orphans(where: Cluster, epoch_id: str) -> BitMap64:
    rows = where.lake.batches(
        where.parts(epoch_id, "findings"), ["ledger_id"], pc.field("finding") == Finding.ORPHAN.value
    )
    return BitMap64.union(BitMap64(), *(id_set(batch.column("ledger_id")) for batch in rows))
