"""Every ledger that a topic ever listed, where the scans that are kept tell.

Belongs here: which scans prove that none is missing. Not here: whether those ledgers are gone, and where their copies
are. Source: ``ManagedLedgerImpl.initializeBookKeeper``, ``updateLedgersListAfterRollover``, ``internalTrimLedgers``
(4.0.7): each writes the topic's z-node once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.journal.archive import restored_ever
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.epoch import Epoch


@dataclass(frozen=True, slots=True)
class AskedTopic:
    """A topic by ``czxid`` and ``ctime`` (ms) of its z-node. ``listed``: of its ledgers with ids below ``before``."""

    czxid: int
    ctime: int
    before: int
    listed: frozenset[int]


@dataclass(frozen=True, slots=True)
class ListedLedger:
    """A ledger as the newest scan has it that found it listed; ``info``: a ``values.tables.LEDGER_INFO``."""

    epoch_id: str
    info: Mapping[str, Any]


Listed = Mapping[int, ListedLedger]
"""By ledger id."""


def ever_listed(cluster: Cluster, epochs: Sequence[Epoch], topics: Mapping[str, AskedTopic]) -> dict[str, Listed]:
    """By topic, all ledgers with ids below ``before`` that it listed at any of these covered scans, oldest first.

    Topics are missing that may have listed others, too, that had entries. Brokers trim from the front, and ids rise:
    what was made between two lists that share a ledger is in the later one. A list lacks nothing that was trimmed
    before where its z-node was written as often as it lists ledgers: whatever is not listed took a write, too. A scan
    that cannot be read counts as none, as one that is pruned meanwhile, or was made by an earlier version; if it is
    the newest, nothing is known. A ledger that an undo brought back may be listed anew: sharing it says nothing.
    """
    put_back = restored_ever(cluster.journal_reader, cluster.settings.cluster) if epochs else frozenset[int]()
    first = (_lists(cluster, epochs[0], topics) if epochs else None) or {}
    # A z-node that was written more often than it lists ledgers stays so: not whole then, it is so in no later scan.
    later = {t: one.listed for t, one in topics.items() if t not in first or _is_whole(first[t])}
    found: dict[str, dict[int, ListedLedger]] = {}
    whole: dict[str, Listed] = {}
    for epoch in reversed(epochs):
        lists = first if epoch is epochs[0] and first else _lists(cluster, epoch, {t: topics[t] for t in later})
        if lists is None and not found:
            return {}
        if lists is None:
            continue
        for topic, known in [*later.items()]:
            del later[topic]
            row, before = lists.get(topic), topics[topic].before
            infos = {info["ledger_id"]: info for info in row["ledgers"] or ()} if row else {}
            if row is None or (max(infos, default=-1) < before and not known & infos.keys() - put_back):
                continue
            own = found.setdefault(topic, {})
            own |= {i: ListedLedger(epoch.epoch_id, info) for i, info in infos.items() if i < before and i not in own}
            if _is_whole(row):
                whole[topic] = own
            else:
                later[topic] = frozenset(infos)
    return whole


def _lists(cluster: Cluster, epoch: Epoch, topics: Mapping[str, AskedTopic]) -> dict[str, Mapping[str, Any]] | None:
    """By topic, the rows of a scan; without topics that were others of their names, or that could not be read.

    None if the scan cannot be read.
    """
    names = {Topic.parse(topic).managed_ledger: topic for topic in topics}
    where = pc.field("managed_ledger").isin(sorted(names)) & pc.field("problem").is_null()
    found: dict[str, Mapping[str, Any]] = {}
    try:
        parts = cluster.parts(epoch.epoch_id, "managed_ledgers") if topics else []
        for batch in cluster.lake.batches(parts, ["managed_ledger", "ledgers", "czxid", "ctime", "version"], where):
            for row in batch.to_pylist():
                asked = topics[names[row["managed_ledger"]]]
                if (row["czxid"], row["ctime"]) == (asked.czxid, asked.ctime):
                    found[names[row["managed_ledger"]]] = row
    except StoreError:
        return None
    return found


def _is_whole(row: Mapping[str, Any]) -> bool:
    """Whether nothing can have been listed before that is not now: version 0 lists nothing, and each write is one more.

    A trim whose write failed takes ledgers off with the next rollover's; then there are fewer ledgers than writes. A
    z-node that was copied from another store lists more.
    """
    return row["version"] == len(row["ledgers"] or ())
