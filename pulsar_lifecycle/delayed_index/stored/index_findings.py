"""What is wrong with the index of a subscription: a pure rule over what is stored and what its topic holds.

Belongs here: the rule, over arrays. Not here: reading (``index_reading.py``), what brokers hold in memory, which no
finding speaks of: an index that lacks messages may be whole in a broker's memory, until it loads the topic anew.
Source: BucketDelayedDeliveryTracker and ImmutableBucket, pulsar-broker 4.0.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
    before_buckets,
    outstanding,
)
from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet
from pulsar_lifecycle.formats.delayed_indexes import Indexes, Longs
from pulsar_lifecycle.formats.delayed_metadata import MAX_ENTRY_ID
from pulsar_lifecycle.formats.delayed_table import SegmentTable, union_of


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


def judge(subscription: StoredSubscription, entries: TopicEntries, now: int, sealed_at: int = 0) -> list[Found]:
    """Everything that is wrong, at ``now`` (ms). ``entries`` are the topic's from the subscription's position on.

    ``sealed_at``: brokers seal a bucket of so many messages; 0: whether messages are too few or too many is not judged.
    """
    if not subscription.buckets:
        return list(_without_buckets(subscription, entries, now, sealed_at)) if sealed_at else []
    found = [*_unreadable(subscription.buckets, now), *_overlapping(subscription.buckets)]
    found += [
        Found(IndexFinding.UNREAD, detail=f"ledger {ledger} of the topic: {why}")
        for ledger, why in sorted(entries.unread.items())
    ]
    readable = [bucket for bucket in subscription.buckets if bucket.table is not None]
    inside = [list(_inside(bucket, now)) for bucket in readable]
    found += [one for some in inside for one in some]
    if not any(one.code is IndexFinding.OVERLAPPING_RANGES for one in found):
        sound = [
            bucket for bucket, some in zip(readable, inside, strict=True) if not {one.code for one in some} - _SOUND
        ]
        readable, entries = _doubtful(readable, sound, entries)
    return [*found, *_against_entries(subscription, readable, entries, now, sealed_at)]


_NEVER = (1 << 63) - 1
_DENSE = 16
"""Arrays are addressed by place if there are no more than so many times the messages."""
_BY_PROBLEM = {
    BucketProblem.BAD_KEY: IndexFinding.UNDECODABLE,
    BucketProblem.NO_LEDGER: IndexFinding.KEY_WITHOUT_LEDGER,
    BucketProblem.NOT_CLOSED: IndexFinding.UNDECODABLE,
    BucketProblem.UNDECODABLE: IndexFinding.UNDECODABLE,
    BucketProblem.UNREAD: IndexFinding.UNREAD,
}
_NO_FALLBACK = (BucketProblem.UNREAD, BucketProblem.BAD_KEY)
"""With a bad key a broker's tracker cannot even be made: no other takes its place."""


_SOUND = {IndexFinding.PASSED}
"""What a snapshot may be in itself, and describe all that it holds."""


def _unreadable(buckets: Sequence[StoredBucket], now: int) -> Iterator[Found]:
    broken = False
    for bucket in buckets:
        if bucket.problem is not None:
            yield Found(_BY_PROBLEM[bucket.problem], bucket.key, bucket.ledger_id, detail=bucket.error)
            due = any(begin <= now < end for begin, end in bucket.unrecoverable)
            broken |= due and bucket.problem not in _NO_FALLBACK
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
    if unlike := [] if _all_described(bucket, table) else _undescribed(bucket, table):
        some = indexes[bucket.bounds[unlike[0]] : bucket.bounds[unlike[0] + 1]]
        yield _about(
            IndexFinding.BITMAP_UNLIKE_SEGMENTS, bucket, some, f"segments {', '.join(str(i + 1) for i in unlike[:20])}"
        )
    outside = (indexes.ledgers < bucket.start) | (indexes.ledgers > bucket.end)
    if outside.any():
        yield _about(IndexFinding.OUT_OF_RANGE, bucket, indexes[outside])
    if len(table) and max(table.maximums) <= now:
        yield Found(IndexFinding.PASSED, bucket.key, bucket.ledger_id, len(indexes), due=max(table.maximums))


def _all_described(bucket: StoredBucket, table: SegmentTable) -> bool:
    """Whether entry 0 surely says what the segments hold: of all of them at once, without sorting."""
    indexes, counts = bucket.indexes, np.diff(bucket.bounds)
    if not len(counts) or not counts.all() or not np.array_equal(table.counts, counts):
        return False
    minimums = np.minimum.reduceat(indexes.timestamps, bucket.bounds[:-1])
    maximums = np.maximum.reduceat(indexes.timestamps, bucket.bounds[:-1])
    if minimums.tolist() != list(table.minimums) or maximums.tolist() != list(table.maximums):
        return False
    marked = _at(*table.marked())
    places = Places(indexes, marked)
    if places.size > _DENSE * len(indexes):
        return False
    segments = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    of_place = np.full(places.size, -1, np.int32)
    of_place[places.of(marked.ledgers, marked.entries)] = segments
    at = places.of(indexes.ledgers, indexes.entries)
    if np.count_nonzero(of_place >= 0) < len(at) or not (of_place[at] == segments).all():
        return False  # two segments mark one message, or another one has it
    of_place[at] = -1
    return not (of_place >= 0).any()


def _undescribed(bucket: StoredBucket, table: SegmentTable) -> list[int]:
    """The segments of which entry 0 says anything else than what they hold."""
    described = zip(table.bitmaps, table.counts.tolist(), table.minimums, table.maximums, strict=True)
    return [i for i, one in enumerate(described) if not _described(*one, bucket, i)]


def _described(
    bitmaps: dict[int, BitMap], marks: int, minimum: int, maximum: int, bucket: StoredBucket, segment: int
) -> bool:
    """Whether entry 0 says of a segment what it holds."""
    part = bucket.indexes[bucket.bounds[segment] : bucket.bounds[segment + 1]]
    if not len(part) or marks != len(part):
        return marks == len(part)
    if part.entries.max() > MAX_ENTRY_ID:
        return False
    if (int(part.timestamps.min()), int(part.timestamps.max())) != (minimum, maximum):
        return False
    marked = EntrySet(bitmaps)
    inside = EntrySet()
    inside.add(part.ledgers, part.entries)
    return marked == inside and len(inside) == len(part)


def _at(ledgers: Longs, entries: Longs) -> Indexes:
    """Messages whose times are not known."""
    return Indexes(ledgers, ledgers, entries)


def _doubtful(
    buckets: Sequence[StoredBucket], sound: Sequence[StoredBucket], entries: TopicEntries
) -> tuple[list[StoredBucket], TopicEntries]:
    """Without the ``sound`` buckets that surely say of their ledgers what the topic does, and without its messages.

    Most do; looking up times by place is much faster than finding out what differs. No ranges overlap.
    """
    truth = entries.delayed
    left = np.ones(len(truth), np.bool_)
    alike: set[str] = set()
    for bucket in sound:
        begin = int(np.searchsorted(truth.ledgers, min(bucket.start, _NEVER)))
        end = int(np.searchsorted(truth.ledgers, min(bucket.end, _NEVER), "right"))
        if _are_alike(truth[begin:end], bucket.indexes):
            left[begin:end] = False
            alike.add(bucket.key)
    unindexable = None if entries.unindexable is None else entries.unindexable[left]
    doubtful = [bucket for bucket in buckets if bucket.key not in alike]
    return doubtful, replace(entries, delayed=truth[left], unindexable=unindexable)


def _are_alike(truth: Indexes, index: Indexes) -> bool:
    """Whether they surely have the same messages, due at the same times; neither has one twice."""
    if len(truth) != len(index):
        return False
    places = Places(truth, index)
    if places.size > _DENSE * len(truth):
        return False
    times = np.full(places.size, -_NEVER)
    times[places.of(index.ledgers, index.entries)] = index.timestamps
    return bool((times[places.of(truth.ledgers, truth.entries)] == truth.timestamps).all())


def _against_entries(
    subscription: StoredSubscription, buckets: Sequence[StoredBucket], entries: TopicEntries, now: int, sealed_at: int
) -> Iterator[Found]:
    """The snapshots against the messages of the topic."""
    indexed = Indexes.concatenate([bucket.indexes for bucket in buckets])
    truth = entries.delayed
    places = Places(indexed, truth)
    at, should = places.of(indexed.ledgers, indexed.entries), places.of(truth.ledgers, truth.entries)
    open_ = ~acknowledged(subscription, places, should)
    yield from _many(IndexFinding.DUPLICATE, buckets, indexed, _repeated(at, places.size))
    rows = _rows(at, should, places.size)
    """Of the topic's messages; the row after the last for those that it does not have."""
    times = np.append(truth.timestamps, _NEVER)
    wrong = (times[rows] != indexed.timestamps) & np.append(open_, False)[rows]
    yield from _many(IndexFinding.WRONG_TIME, buckets, indexed, wrong)
    nowhere = rows == len(truth)
    if nowhere.any():
        nowhere[nowhere] = _nowhere(subscription, entries, indexed[nowhere])
        yield from _many(IndexFinding.POINTS_NOWHERE, buckets, indexed, nowhere)
    found = np.zeros(len(truth) + 1, np.bool_)
    found[rows] = True
    unindexed = open_ & ~found[:-1]
    if unindexed.any():
        yield from _unindexed(subscription, buckets, entries, unindexed, now, sealed_at)


def _unindexed(
    subscription: StoredSubscription,
    buckets: Sequence[StoredBucket],
    entries: TopicEntries,
    unindexed: NDArray[np.bool_],
    now: int,
    sealed_at: int,
) -> Iterator[Found]:
    """What is delayed, waits for its subscription, and is in no segment."""
    truth, lost = entries.delayed, unindexed.copy()
    tables = [bucket.table for bucket in buckets if bucket.table is not None]
    waiting = [
        bitmaps for table in tables for bitmaps, last in zip(table.bitmaps, table.maximums, strict=True) if last > now
    ]  # brokers skip segments whose messages are all due
    lost[unindexed] = EntrySet(union_of(waiting)).contains(truth.ledgers[unindexed], truth.entries[unindexed])
    yield from _missing(IndexFinding.LOST, subscription.buckets, truth, lost)  # due or not: brokers skip what is marked
    missing = unindexed & (truth.timestamps > now)
    merged = missing & ~lost & _before_merged(buckets, truth)
    if entries.unindexable is not None:  # a rebuild leaves these out, and would be asked for again and again
        merged &= ~entries.unindexable
    yield from _missing(IndexFinding.MERGED_AND_LOST, subscription.buckets, truth, merged)
    sealed = max((bucket.end for bucket in subscription.buckets), default=-1)
    rest = missing & ~lost & ~merged & (truth.ledgers <= sealed)
    yield from _missing(IndexFinding.NOT_INDEXED, subscription.buckets, truth, rest)
    between = missing & np.isin(truth.ledgers, _gaps(subscription.buckets, truth.ledgers[missing], sealed_at))
    yield from _missing(IndexFinding.GAP, subscription.buckets, truth, between)


def _gaps(buckets: Sequence[StoredBucket], ledgers: Longs, sealed_at: int) -> list[int]:
    """The ``ledgers``, one of each message, whose messages a broker seals over a bucket that follows.

    It seals what it collected when a message of a later ledger comes, if that is enough. What is not enough when the
    next bucket comes is sealed with what is after it.
    """
    found: list[int] = []
    collected, held, gap = 0, list[int](), -1
    ledgers, before = before_buckets(buckets, ledgers)
    firsts = np.flatnonzero(np.diff(ledgers, prepend=-1))
    counts = np.diff(firsts, append=len(ledgers))
    for ledger, number, count in zip(ledgers[firsts].tolist(), before[firsts].tolist(), counts.tolist(), strict=True):
        if collected >= sealed_at:
            collected, held = 0, []
        elif held and number != gap:
            found += held
            held = []
        collected, gap = collected + count, number
        held.append(ledger)
    return found + held if collected < sealed_at else found


def _without_buckets(
    subscription: StoredSubscription, entries: TopicEntries, now: int, sealed_at: int
) -> Iterator[Found]:
    """Too many messages for no bucket; a bucket is sealed once one of a later ledger is delayed, too."""
    waiting, sealed = (outstanding(subscription, entries, indexable=indexable) for indexable in (False, True))
    waiting, sealed = (some[some.timestamps > now] for some in (waiting, sealed))
    sealed = sealed[sealed.ledgers < waiting.ledgers.max()] if len(waiting) else sealed
    if len(sealed) and len(sealed) >= sealed_at:
        yield _about(IndexFinding.NO_BUCKETS, None, waiting)


def _repeated(at: Longs, size: int) -> NDArray[np.bool_]:
    """All but the first of places, below ``size``, that come more than once."""
    if size <= _DENSE * len(at):
        seen = np.zeros(size, np.bool_)
        seen[at] = True
        if np.count_nonzero(seen) == len(at):
            return np.zeros(len(at), np.bool_)
    again = np.ones(len(at), np.bool_)
    again[np.unique(at, return_index=True)[1]] = False
    return again


def _rows(at: Longs, should: Longs, size: int) -> Longs:
    """Where each of the places ``at`` is among ``should``, which ascend; how many these are where it is not there."""
    if size <= _DENSE * (len(at) + len(should)):
        rows = np.full(size, len(should))
        rows[should] = np.arange(len(should))
        return rows[at]
    spot = np.searchsorted(should, at)
    spot[np.append(should, -1)[spot] != at] = len(should)
    return spot


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
    code: IndexFinding, buckets: Sequence[StoredBucket], indexed: Indexes, which: NDArray[np.bool_]
) -> Iterator[Found]:
    """One finding for each bucket that has such messages; ``indexed`` has those of one after the other."""
    if which.any():
        ends = np.cumsum([len(bucket.indexes) for bucket in buckets]).tolist()
        for bucket, begin, end in zip(buckets, [0, *ends], ends, strict=False):
            if which[begin:end].any():
                yield _about(code, bucket, indexed[begin:end][which[begin:end]])


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
