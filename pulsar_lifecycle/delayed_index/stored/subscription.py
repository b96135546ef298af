"""A subscription's delayed index as values: where it stands, its buckets, which messages of its topic are delayed.

Not here: reading any of it (``index_reading.py``), judging it (``index_findings.py``). Times are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pulsar_lifecycle.delayed_index.stored.index_codes import BucketProblem
from pulsar_lifecycle.delayed_index.tracking.sealing import ALWAYS, Span
from pulsar_lifecycle.formats.cursor import LedgerBits, MessageRange
from pulsar_lifecycle.formats.delayed_indexes import Indexes, Longs
from pulsar_lifecycle.formats.delayed_metadata import MAX_ENTRY_ID
from pulsar_lifecycle.formats.delayed_table import SegmentTable
from pulsar_lifecycle.model import Position

_NEAR = 1 << 20
"""Ledgers that are no further apart are told by direct address."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredBucket:
    """A bucket that a cursor's property names: topic ledgers ``start`` .. ``end``, its snapshot, what that holds.

    ``start``, ``end`` and ``ledger_id`` are -1 where the property does not say them. ``table``, ``indexes`` and
    ``bounds`` (segment i is [bounds[i], bounds[i + 1])) are empty with a ``problem``; ``error`` says more. ``length``:
    bytes of the snapshot.
    """

    key: str
    value: str
    start: int
    end: int
    ledger_id: int
    length: int = 0
    table: SegmentTable | None = None
    indexes: Indexes = field(default_factory=Indexes.empty)
    bounds: Longs = field(default_factory=lambda: np.zeros(1, np.int64))
    problem: BucketProblem | None = None
    error: str = ""
    unrecoverable: tuple[Span, ...] = (ALWAYS,)
    """With a ``problem``: when a broker that loads the topic cannot take the bucket up."""
    bookies: tuple[int, int, int] | None = None
    """Ensemble size, write quorum and ack quorum of the snapshot's ledger."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredSubscription:
    """A subscription and its buckets: its persisted position, what is acknowledged beyond it, its cursor's z-node."""

    cursor: str
    path: str
    version: int
    czxid: int
    position: Position
    ranges: tuple[MessageRange, ...]
    bits: tuple[LedgerBits, ...]
    buckets: tuple[StoredBucket, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TopicEntries:
    """Entries of a topic from some position on: which are delayed, by (ledger, entry), and how many a ledger has.

    ``unread``: by ledger, why its entries are not known; ``counts`` then may lack it. ``unindexable``: which of the
    delayed ones no new index may have, as a broker delivers what an index says without asking: messages of
    transactions, which may be open or aborted; all that follow the first message of an open one, which brokers hold
    back until it ends; and those of ledgers that are not closed, whose last entries may go.
    """

    delayed: Indexes
    counts: Mapping[int, int]
    unread: Mapping[int, str]
    unindexable: NDArray[np.bool_] | None = None
    """None: none of them."""


class Places:
    """(ledger, entry) as one number, in the order of the topic; only of the messages that it is made for.

    Numbers are small where ledgers have about as many entries each, so that arrays can be addressed by them. Entries
    that no bitmap holds, and no topic has, are one place in each ledger.
    """

    def __init__(self, *some: Indexes) -> None:
        self.ledgers: Longs = _distinct(
            np.concatenate([np.empty(0, np.int64), *(_distinct(one.ledgers) for one in some)])
        )
        self._width = min(max((int(one.entries.max()) + 1 for one in some if len(one)), default=1), MAX_ENTRY_ID + 2)
        span = int(self.ledgers[-1] - self.ledgers[0]) + 1 if len(self.ledgers) else 0
        self._ranks: Longs | None = None
        """By how far a ledger is from the first, where those are few."""
        if 1 < span <= _NEAR:
            self._ranks = np.zeros(span, np.int64)
            self._ranks[self.ledgers - self.ledgers[0]] = np.arange(len(self.ledgers))

    @property
    def size(self) -> int:
        """All places are below it."""
        return len(self.ledgers) * self._width

    def of(self, ledgers: Longs, entries: Longs) -> Longs:
        """The places of those messages, and of others whose ledgers and entries some of them have, or lower entries."""
        if self._width > MAX_ENTRY_ID:
            entries = np.minimum(entries, self._width - 1)
        if len(self.ledgers) == 1:
            return entries
        if self._ranks is None:
            return np.searchsorted(self.ledgers, ledgers) * self._width + entries
        return (self._ranks * self._width)[ledgers - self.ledgers[0]] + entries

    def within(self, ledgers: Longs, entries: Longs) -> NDArray[np.bool_]:
        """Which of any messages have a place."""
        return (entries < self._width) & np.isin(ledgers, self.ledgers)

    def up_to(self, position: Position) -> int:
        """The greatest place at or before any position."""
        rank = int(np.searchsorted(self.ledgers, position.ledger_id))
        if rank < len(self.ledgers) and self.ledgers[rank] == position.ledger_id:
            return rank * self._width + min(position.entry_id, self._width - 1)
        return rank * self._width - 1


def _distinct(ledgers: Longs) -> Longs:
    """Each once, ascending; most rows have the ledger of the row before, or ledgers are close to each other."""
    if not len(ledgers):
        return ledgers
    low, high = int(ledgers.min()), int(ledgers.max())
    if low == high:
        return ledgers[:1]
    if high - low < _NEAR:
        return np.flatnonzero(np.bincount(ledgers - low)) + low
    return np.unique(ledgers[np.flatnonzero(np.diff(ledgers, prepend=low - 1))])


def acknowledged(subscription: StoredSubscription, places: Places, of: Longs) -> NDArray[np.bool_]:
    """Which places a subscription has acknowledged: up to its position, or one by one beyond it."""
    done = of <= places.up_to(subscription.position)
    if subscription.ranges:
        bounds = sorted((places.up_to(one.lower), places.up_to(one.upper)) for one in subscription.ranges)
        lowers, uppers = (np.array(side, np.int64) for side in zip(*bounds, strict=True))
        at = np.minimum(np.searchsorted(uppers, of), len(uppers) - 1)
        done |= (lowers[at] < of) & (of <= uppers[at])
    else:  # where both forms are there, the ranges count
        done |= np.isin(
            of, np.concatenate([np.empty(0, np.int64), *(_set_places(one, places) for one in subscription.bits)])
        )
    return done


def _set_places(bits: LedgerBits, places: Places) -> Longs:
    if not np.isin(bits.ledger_id, places.ledgers):
        return np.empty(0, np.int64)
    words = np.array([word & (1 << 64) - 1 for word in bits.words], "<u8")
    entries = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).astype(np.int64)
    ledgers = np.full(len(entries), bits.ledger_id, np.int64)
    there = places.within(ledgers, entries)
    return places.of(ledgers[there], entries[there])


def outstanding(subscription: StoredSubscription, entries: TopicEntries, *, indexable: bool = False) -> Indexes:
    """The delayed messages that a subscription has not acknowledged, by (ledger, entry), due or not.

    ``indexable``: only those that a new index may have.
    """
    delayed = entries.delayed
    places = Places(delayed)
    there = ~acknowledged(subscription, places, places.of(delayed.ledgers, delayed.entries))
    if indexable and entries.unindexable is not None:
        there &= ~entries.unindexable
    return delayed[there]


def first_position(subscriptions: Sequence[StoredSubscription]) -> Position:
    """Where the slowest of them stands."""
    return min(one.position for one in subscriptions)


def before_buckets(buckets: Sequence[StoredBucket], ledgers: Longs) -> tuple[Longs, Longs]:
    """Those of ``ledgers`` that are in the range of no bucket, and before one; and how many buckets begin before each.

    So two that have the same number have no bucket between them.
    """
    most = np.iinfo(np.int64).max
    ranges = sorted((min(one.start, most), min(one.end, most)) for one in buckets if one.start >= 0)
    starts, ends = np.array(ranges, np.int64).reshape(-1, 2).T
    reached = np.maximum.accumulate(np.append(-1, ends))
    before = np.searchsorted(starts, ledgers, "right")
    free = (before < len(starts)) & (reached[before] < ledgers)
    return ledgers[free], before[free]
