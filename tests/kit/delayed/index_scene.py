"""Delayed indexes of ledgers of fifty messages, as values: buckets, subscriptions, entries of their topic."""

from __future__ import annotations

from pulsar_lifecycle.delayed_index.stored.subscription import StoredBucket, StoredSubscription, TopicEntries
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole, seal
from pulsar_lifecycle.formats.delayed_indexes import Indexes
from pulsar_lifecycle.model import Position

NOW = 1_000_000
COUNT = 50
Triples = list[tuple[int, int, int]]


def due(ledger: int, entry: int) -> int:
    return NOW + 1000 + (entry * 7919 + ledger * 31) % 600_000


def of_ledger(ledger: int, count: int = COUNT) -> Triples:
    return [(due(ledger, e), ledger, e) for e in range(count)]


def bucket(start: int, end: int, triples: Triples, ledger_id: int = 100) -> StoredBucket:
    sealed = seal(Indexes.of(triples), 60_000, 10, start, end)
    table, indexes, bounds = read_whole(sealed.entries)
    return StoredBucket(sealed.key, str(ledger_id), start, end, ledger_id, 1, table, indexes, bounds)


def subscription(*buckets: StoredBucket) -> StoredSubscription:
    return StoredSubscription("sub", "/path", 0, 1, Position(3, -1), (), (), buckets)


def entries(*ledgers: int) -> TopicEntries:
    return TopicEntries(
        Indexes.of([one for ledger in ledgers for one in of_ledger(ledger)]), dict.fromkeys(ledgers, COUNT), {}
    )
