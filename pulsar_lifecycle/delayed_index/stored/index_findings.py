"""What is wrong with the index of a subscription: a pure rule over what is stored and what its topic holds.

Belongs here: the rule, over arrays. Not here: reading (``index_reading.py``), what brokers hold in memory, which no
finding speaks of: an index that lacks messages may be whole in a broker's memory, until it loads the topic anew.
Source: BucketDelayedDeliveryTracker and ImmutableBucket, pulsar-broker 4.0.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_lifecycle.delayed_index.stored.index_codes import BucketProblem, IndexFinding
from pulsar_lifecycle.delayed_index.stored.subscription import (
    Places,
    StoredBucket,
    StoredSubscription,
    TopicEntries,
    acknowledged,
    outstanding,
)
from pulsar_lifecycle.formats.delayed_indexes import Indexes, Longs


@dataclass(frozen=True, slots=True)
class Found:
    """A finding: of a bucket (``key`` and its snapshot's ``ledger_id``; empty and -1: of none), about ``messages``.

    ``ledger``, ``entry`` and ``due`` (ms) are of its first message in the topic's order; None without messages.
    """

    code: IndexFinding
    key: str = ""
    ledger_id: int = -1
    messages: int = 0
    ledger: int | None = None
    entry: int | None = None
    due: int | None = None
    detail: str = ""


def judge(
    subscription: StoredSubscription, entries: TopicEntries, now: int, sealed_at: int | None = None
) -> list[Found]:
    """Everything that is wrong, at ``now`` (ms). ``entries`` are the topic's from the subscription's position on.

    ``sealed_at``: brokers seal a bucket of so many messages; None: that a subscription has no buckets is not judged.
    """
    if not subscription.buckets:
        return [] if sealed_at is None else list(_without_buckets(subscription, entries, now, sealed_at))
    found = [*_unreadable(subscription.buckets), *_overlapping(subscription.buckets)]
    found += [
        Found(IndexFinding.UNREAD, detail=f"ledger {ledger} of the topic: {why}")
        for ledger, why in sorted(entries.unread.items())
    ]
    readable = [bucket for bucket in subscription.buckets if bucket.table is not None]
    for bucket in readable:
        found += _inside(bucket, now)
    return [*found, *_against_entries(subscription, readable, entries, now)]


_NEVER = (1 << 63) - 1
_BY_PROBLEM = {
    BucketProblem.BAD_KEY: IndexFinding.UNDECODABLE,
    BucketProblem.NO_LEDGER: IndexFinding.KEY_WITHOUT_LEDGER,
    BucketProblem.NOT_CLOSED: IndexFinding.UNDECODABLE,
    BucketProblem.UNDECODABLE: IndexFinding.UNDECODABLE,
    BucketProblem.UNREAD: IndexFinding.UNREAD,
}
_NO_FALLBACK = (BucketProblem.UNREAD, BucketProblem.BAD_KEY)
"""With a bad key a broker's tracker cannot even be made: no other takes its place."""


def _unreadable(buckets: Sequence[StoredBucket]) -> Iterator[Found]:
    broken = False
    for bucket in buckets:
        if bucket.problem is not None:
            yield Found(_BY_PROBLEM[bucket.problem], bucket.key, bucket.ledger_id, detail=bucket.error)
            broken |= bucket.problem not in _NO_FALLBACK
    if broken:
        yield Found(IndexFinding.RECOVERY_FALLBACK, detail="one of its buckets cannot be recovered")


def _overlapping(buckets: Sequence[StoredBucket]) -> Iterator[Found]:
    ranged = sorted((bucket for bucket in buckets if bucket.start >= 0), key=lambda b: (b.start, b.end))
    reached: StoredBucket | None = None
    for bucket in ranged:
        if reached is not None and bucket.start <= reached.end:
            yield Found(
                IndexFinding.OVERLAPPING_RANGES, bucket.key, bucket.ledger_id, detail=f"it overlaps {reached.key}"
            )
        if reached is None or bucket.end > reached.end:
            reached = bucket


def _inside(bucket: StoredBucket, now: int) -> Iterator[Found]:
    """A snapshot against itself."""
    indexes, table = bucket.indexes, bucket.table
    assert table is not None
    described = zip(table.bitmaps, table.minimums, table.maximums, strict=True)
    unlike = [i for i, (bitmaps, low, high) in enumerate(described) if not _described(bitmaps, low, high, bucket, i)]
    if unlike:
        some = indexes[bucket.bounds[unlike[0]] : bucket.bounds[unlike[0] + 1]]
        yield _about(
            IndexFinding.BITMAP_UNLIKE_SEGMENTS, bucket, some, f"segments {', '.join(str(i + 1) for i in unlike[:20])}"
        )
    outside = (indexes.ledgers < bucket.start) | (indexes.ledgers > bucket.end)
    if outside.any():
        yield _about(IndexFinding.OUT_OF_RANGE, bucket, indexes[outside])
    if len(table) and max(table.maximums) <= now:
        yield Found(IndexFinding.PASSED, bucket.key, bucket.ledger_id, len(indexes), due=max(table.maximums))


def _described(bitmaps: dict[int, BitMap], minimum: int, maximum: int, bucket: StoredBucket, segment: int) -> bool:
    """Whether entry 0 says of a segment what it holds."""
    part = bucket.indexes[bucket.bounds[segment] : bucket.bounds[segment + 1]]
    if not len(part):
        return not any(bitmaps.values())
    if (int(part.timestamps.min()), int(part.timestamps.max())) != (minimum, maximum):
        return False
    if sum(map(len, bitmaps.values())) != len(part):
        return False
    marked, places = _marked_places([bitmaps], part)
    return bool(np.array_equal(marked, np.sort(places.of(part.ledgers, part.entries))))


def _marked_places(tables: Sequence[dict[int, BitMap]], *beside: Indexes) -> tuple[Longs, Places]:
    """The sorted places of what bitmaps mark; the places are good for the ledgers of ``beside``, too."""
    pairs = [(ledger, np.frombuffer(bitmap.to_array(), np.uint32)) for one in tables for ledger, bitmap in one.items()]
    ledgers = np.concatenate([np.empty(0, np.int64), *(np.full(len(e), ledger, np.int64) for ledger, e in pairs)])
    entries = np.concatenate([np.empty(0, np.int64), *(e.astype(np.int64) for _, e in pairs)])
    places = Places(ledgers, *(one.ledgers for one in beside))
    return np.unique(places.of(ledgers, entries)), places


def _against_entries(
    subscription: StoredSubscription, buckets: Sequence[StoredBucket], entries: TopicEntries, now: int
) -> Iterator[Found]:
    """The snapshots against the messages of the topic."""
    indexed = Indexes.concatenate([bucket.indexes for bucket in buckets])
    owner = np.repeat(np.arange(len(buckets)), [len(bucket.indexes) for bucket in buckets])
    tables = [bucket.table for bucket in buckets if bucket.table is not None]
    waiting = [
        bitmaps for table in tables for bitmaps, last in zip(table.bitmaps, table.maximums, strict=True) if last > now
    ]  # brokers skip segments whose messages are all due
    truth = entries.delayed
    marked, places = _marked_places(waiting, indexed, truth)
    at, should = places.of(indexed.ledgers, indexed.entries), places.of(truth.ledgers, truth.entries)
    open_ = ~acknowledged(subscription, places, should)
    yield from _many(IndexFinding.DUPLICATE, buckets, indexed, owner, _repeated(at))
    order = np.argsort(should, kind="stable")
    in_order = should[order]
    spot = np.minimum(np.searchsorted(in_order, at), max(len(in_order) - 1, 0))
    known = in_order[spot] == at if len(in_order) else np.zeros(len(at), np.bool_)
    wrong = known.copy()
    wrong[known] = truth.timestamps[order[spot[known]]] != indexed.timestamps[known]
    wrong[known] &= open_[order[spot[known]]]
    yield from _many(IndexFinding.WRONG_TIME, buckets, indexed, owner, wrong)
    yield from _many(IndexFinding.POINTS_NOWHERE, buckets, indexed, owner, _nowhere(subscription, entries, indexed))
    unindexed = open_ & ~np.isin(should, at)
    lost = unindexed & np.isin(should, marked)  # due or not: brokers skip what is marked
    yield from _missing(IndexFinding.LOST, subscription.buckets, truth, lost)
    missing = unindexed & (truth.timestamps > now)
    merged = missing & ~lost & _before_merged(buckets, truth)
    if entries.unindexable is not None:  # a rebuild leaves these out, and would be asked for again and again
        merged &= ~entries.unindexable
    yield from _missing(IndexFinding.MERGED_AND_LOST, subscription.buckets, truth, merged)
    sealed = max((bucket.end for bucket in subscription.buckets), default=-1)
    rest = missing & ~lost & ~merged & (truth.ledgers <= sealed)
    yield from _missing(IndexFinding.NOT_INDEXED, subscription.buckets, truth, rest)


def _without_buckets(
    subscription: StoredSubscription, entries: TopicEntries, now: int, sealed_at: int
) -> Iterator[Found]:
    """Too many messages for no bucket; a bucket is sealed once one of a later ledger is delayed, too."""
    waiting, sealed = (outstanding(subscription, entries, indexable=indexable) for indexable in (False, True))
    waiting, sealed = (some[some.timestamps > now] for some in (waiting, sealed))
    sealed = sealed[sealed.ledgers < waiting.ledgers.max()] if len(waiting) else sealed
    if len(sealed) and len(sealed) >= sealed_at:
        yield _about(IndexFinding.NO_BUCKETS, None, waiting)


def _repeated(at: Longs) -> NDArray[np.bool_]:
    """All but the first of those that come more than once."""
    again = np.ones(len(at), np.bool_)
    again[np.unique(at, return_index=True)[1]] = False
    return again


def _nowhere(subscription: StoredSubscription, entries: TopicEntries, indexed: Indexes) -> NDArray[np.bool_]:
    """Which indexed messages no ledger of the topic has; what stands before the subscription may be trimmed."""
    position = subscription.position
    listed = np.array(sorted({*entries.counts, *entries.unread}), np.int64)
    after = listed[listed > position.ledger_id]
    first = position.ledger_id
    if position.entry_id < 0 and position.ledger_id not in listed and len(after):
        first = int(after[0])  # there a broker moves it to, when it loads the topic; elsewhere it stays
    here = indexed.ledgers >= first
    here &= ~np.isin(indexed.ledgers, np.array(list(entries.unread), np.int64))
    ledgers = np.array(sorted(entries.counts), np.int64)
    if not len(ledgers):
        return here & (indexed.ledgers > subscription.position.ledger_id)
    counts = np.array([entries.counts[ledger] for ledger in ledgers.tolist()], np.int64)
    rank = np.minimum(np.searchsorted(ledgers, indexed.ledgers), len(ledgers) - 1)
    listed = ledgers[rank] == indexed.ledgers
    return here & np.where(listed, indexed.entries >= counts[rank], indexed.ledgers > subscription.position.ledger_id)


def _before_merged(buckets: Sequence[StoredBucket], truth: Indexes) -> NDArray[np.bool_]:
    """Messages of a merged bucket's ledgers that are due no later than all that it has of their own ledger.

    Each of the buckets that it was made of lost the segments that were loaded: what was due first of its own ledgers,
    which may be due after much of the others'.
    """
    found = np.zeros(len(truth), np.bool_)
    for bucket in buckets:
        if bucket.start < bucket.end and len(bucket.indexes):
            inside = np.flatnonzero((truth.ledgers >= bucket.start) & (truth.ledgers <= bucket.end))
            ledgers, which = np.unique(bucket.indexes.ledgers, return_inverse=True)
            firsts = np.full(len(ledgers), _NEVER)
            np.minimum.at(firsts, which, bucket.indexes.timestamps)
            at = np.minimum(np.searchsorted(ledgers, truth.ledgers[inside]), len(ledgers) - 1)
            first = np.where(ledgers[at] == truth.ledgers[inside], firsts[at], _NEVER)
            found[inside] |= truth.timestamps[inside] <= first
    return found


def _many(
    code: IndexFinding, buckets: Sequence[StoredBucket], indexed: Indexes, owner: Longs, which: NDArray[np.bool_]
) -> Iterator[Found]:
    """One finding for each bucket that has such messages."""
    for number in np.unique(owner[which]).tolist():
        yield _about(code, buckets[number], indexed[which & (owner == number)])


def _missing(
    code: IndexFinding, buckets: Sequence[StoredBucket], truth: Indexes, which: NDArray[np.bool_]
) -> Iterator[Found]:
    """One finding for each bucket whose range covers such messages, and one for those that none covers."""
    left = which.copy()
    for bucket in buckets:
        inside = left & (truth.ledgers >= bucket.start) & (truth.ledgers <= bucket.end)
        if inside.any():
            yield _about(code, bucket, truth[inside])
            left &= ~inside
    if left.any():
        yield _about(code, None, truth[left])


def _about(code: IndexFinding, bucket: StoredBucket | None, some: Indexes, detail: str = "") -> Found:
    key, ledger_id = (bucket.key, bucket.ledger_id) if bucket else ("", -1)
    if not len(some):
        return Found(code, key, ledger_id, detail=detail)
    first = some.in_log_order()[:1].triples()[0]
    return Found(code, key, ledger_id, len(some), first[1], first[2], first[0], detail)
