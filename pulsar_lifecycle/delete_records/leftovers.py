# pyright: reportAttributeAccessIssue=false, reportMissingTypeStubs=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyarrow.compute makes its functions at import.
"""Ledgers below a low watermark that their topic lists no more, and that, or whose offloaded copies, are still there.

Whoever asks again must not be told that all is gone while what an earlier run took off the list waits in the queue.
BookKeeper's own tags tell whose they are, as the newest scan read them. What left a list since, and which copies wait,
our journal has.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pyarrow.compute as pc

from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.journal.first_phase_marks import marked_offloads
from pulsar_lifecycle.journal.queries import filed_since
from pulsar_lifecycle.model import MessagePosition, Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records.epoch import Epoch
from pulsar_lifecycle.records.outcomes import Outcome, Phase
from pulsar_lifecycle.runs.cluster import Cluster

_DAY_MS = 86_400_000


def add_leftovers(cluster: Cluster, epoch: Epoch, ports: Ports, rows: Sequence[dict[str, Any]]) -> None:
    """Fill column ``leftovers`` of rows of a plan (``RECORDS``) that have no error, and add to their ``copies``."""
    below = {r["topic"]: MessagePosition.parse(r["low_watermark"]).ledger_id for r in rows if r["error"] is None}
    if not below:
        return
    since = epoch.started_at - _DAY_MS  # clocks may differ
    tagged = _tagged(cluster, epoch, below) + taken_off(cluster, below, since)
    going = {(row["topic"], i) for row in rows for i in row["ledgers"]}
    listed = {(row["topic"], i) for row in rows for i in row["listed"]}
    copies = _waiting_copies(cluster, below) if ports.objects else {}
    asked = sorted({(t, i) for t, i in (*tagged, *copies) if i < below[t]} - going - listed)
    root = cluster.settings.bookkeeper.ledgers_root
    nodes = ports.store.read([ledger_path.ledger_path(i, root) for _, i in asked])
    there: dict[str, list[int]] = {}
    for (topic, ledger_id), node in zip(asked, nodes, strict=True):
        if node is not None or (topic, ledger_id) in copies:
            there.setdefault(topic, []).append(ledger_id)
    for row in rows:
        left = there.get(row["topic"], [])
        row["leftovers"] = left
        row["copies"] = [*row["copies"], *(copies[row["topic"], i] for i in left if (row["topic"], i) in copies)]


def _tagged(cluster: Cluster, epoch: Epoch, below: dict[str, int]) -> list[tuple[str, int]]:
    """By the tags of BookKeeper's z-nodes: data ledgers of these topics."""
    names = {Topic.parse(topic).managed_ledger: topic for topic in below}
    mine = pc.field("managed_ledger").isin(sorted(names)) & (pc.field("component") == "managed-ledger")
    where = mine & pc.field("cursor").is_null()
    parts = cluster.parts(epoch.epoch_id, "bookkeeper_ledgers")
    found: list[tuple[str, int]] = []
    for batch in cluster.lake.batches(parts, ["managed_ledger", "ledger_id"], where):
        found += [(names[row["managed_ledger"]], row["ledger_id"]) for row in batch.to_pylist()]
    return found


def taken_off(cluster: Cluster, topics: Collection[str], since: int = 0) -> list[tuple[str, int]]:
    """By our journal: topics, each with a ledger that left its list at ``since`` (ms) or later, or was about to."""
    mine = pc.field("topic").isin(sorted(topics)) & (pc.field("cluster") == cluster.settings.cluster)
    marks = mine & (pc.field("phase") == Phase.MARK) & pc.field("outcome").isin([Outcome.MARKED, Outcome.REMOVED])
    rows = cluster.journal_reader.find(marks & filed_since(since), ["topic", "ledger_id"]).to_pylist()
    return [(row["topic"], row["ledger_id"]) for row in rows if row["ledger_id"] >= 0]


def _waiting_copies(cluster: Cluster, topics: Collection[str]) -> dict[tuple[str, int], str]:
    """By our journal: offloaded copies of these topics that a message asks to be deleted, as plans have them."""
    marks = marked_offloads(cluster.journal_reader, cluster.settings.cluster)
    return {
        (asked.topic, ledger_id): f"{ledger_id} {asked.bucket} {asked.uuid}"
        for ledger_id, (asked, _) in marks.items()
        if asked.topic in topics and asked.bucket and asked.uuid
    }
