"""Offloaded copies of which the last proof failed, and that topics still read.

Belongs here: the journal's word beside the newest scan's. Not here: proving (``offload.py``).
"""

from __future__ import annotations

from pulsar_lifecycle.journal.offloads import unproven_copies
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.runs.cluster import Cluster


def unproven_now(cluster: Cluster, epoch_id: str) -> list[JournalRow]:
    """The journal's row of each, by ledger id; without what no topic named in this epoch. Raises as the lake does."""
    rows = unproven_copies(cluster.lake.location, cluster.settings.cluster)
    named = cluster.lake.offload_uuids(epoch_id).named(uuid for _, uuid in rows) if rows else set()
    return [row for (_, uuid), row in sorted(rows.items()) if uuid in named]
