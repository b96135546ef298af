"""Sealed buckets: what a tracker knows of each, and which one covers a topic ledger.

Upstream: ``ImmutableBucket``, and ``BucketDelayedDeliveryTracker.immutableBuckets``, pulsar-broker 4.0.7.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pulsar_lifecycle.delayed_index.keys import bucket_key
from pulsar_lifecycle.delayed_index.tracking.due_queue import Place
from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet, Mask
from pulsar_lifecycle.formats.delayed_indexes import Indexes, Longs, ascends


@dataclass(slots=True, eq=False)
class Bucket:
    """A snapshot in use. Its segments up to ``loaded`` have been in the queue, and it alone is read for the others."""

    start_ledger_id: int
    end_ledger_id: int
    """Inclusive."""
    bucket_id: int
    undelivered: EntrySet
    """Its messages that were not handed out yet, in the queue or not."""
    messages: int
    """How many of them there are."""
    first_times: tuple[int, ...]
    """When the first message of each segment is due (ms)."""
    loaded: int
    """The entry id of the segment loaded last: 1 or more."""
    last_loaded: Place
    """The last message of that segment: once it is due, the next segment is needed."""
    length: int
    """Bytes of the snapshot."""

    @property
    def key(self) -> str:
        """The cursor property that names it."""
        return bucket_key(self.start_ledger_id, self.end_ledger_id)

    @property
    def segments(self) -> int:
        """How many there are; segment n is entry n."""
        return len(self.first_times)

    @property
    def next_time(self) -> int | None:
        """When the first message of the next segment is due (ms); None after the last."""
        return self.first_times[self.loaded] if self.loaded < self.segments else None

    def holds(self, indexes: Indexes) -> Mask:
        """Which messages are its own and undelivered."""
        within = (indexes.ledgers >= self.start_ledger_id) & (indexes.ledgers <= self.end_ledger_id)
        if within.any():
            within[within] = self.undelivered.contains(indexes.ledgers[within], indexes.entries[within])
        return within


class Ahead:
    """The segments of some buckets that are not loaded and begin by ``cutoff`` (ms), by when they begin."""

    def __init__(self, buckets: Sequence[Bucket], cutoff: int) -> None:
        """Each bucket has at least one such segment."""
        ends = [max(bisect_right(one.first_times, cutoff), one.loaded + 1) for one in buckets]
        times = [one.first_times[one.loaded : end] for one, end in zip(buckets, ends, strict=True)]
        flat = np.concatenate([np.array(some, np.int64) for some in times])
        sizes = np.repeat([one.messages // one.segments + 1 for one in buckets], list(map(len, times)))
        order = np.argsort(flat, kind="stable")
        self._times: list[int] = flat[order].tolist()
        self._sizes: list[int] = np.cumsum(sizes[order]).tolist()
        """About how many messages there are up to each."""

    @property
    def first(self) -> int:
        """When the first of them begins (ms)."""
        return self._times[0]

    def enough(self, count: int, loaded: Callable[[int], int]) -> int:
        """Until when segments must begin that have, with what is ``loaded`` by then, about ``count`` messages."""
        low, high = 0, len(self._times) - 1
        while low < high:
            middle = (low + high) // 2
            if self._sizes[middle] + loaded(self._times[middle]) >= count:
                high = middle
            else:
                low = middle + 1
        return self._times[low]


def held(buckets: Sequence[Bucket], indexes: Indexes) -> Mask:
    """Which messages are of any of the buckets."""
    found = np.zeros(len(indexes), np.bool_)
    for bucket in buckets:
        found |= bucket.holds(indexes)
    return found


class BucketMap:
    """Buckets by their ranges of topic ledgers, which never overlap."""

    def __init__(self) -> None:
        self._buckets: list[Bucket] = []
        self._starts: list[int] = []

    def __len__(self) -> int:
        return len(self._buckets)

    def __iter__(self) -> Iterator[Bucket]:
        return iter(self._buckets)

    def in_order(self) -> Sequence[Bucket]:
        """By range, ascending; not to be changed."""
        return self._buckets

    def covering(self, ledger: int) -> Bucket | None:
        """The bucket whose range has this topic ledger."""
        at = bisect_right(self._starts, ledger)
        if not at:
            return None
        bucket = self._buckets[at - 1]
        return bucket if ledger <= bucket.end_ledger_id else None

    def first_after(self, ledger: int) -> Bucket | None:
        """The first bucket whose range begins after this topic ledger."""
        at = bisect_right(self._starts, ledger)
        return self._buckets[at] if at < len(self._buckets) else None

    def are_covered(self, ledgers: Longs) -> Mask:
        """Which topic ledgers are in any bucket's range."""
        return self.places_of(ledgers) >= 0

    def places_of(self, ledgers: Longs) -> NDArray[np.intp]:
        """Which bucket, by its place in order, covers each topic ledger; -1 if none does."""
        if not self._buckets or not len(ledgers):
            return np.full(len(ledgers), -1)
        low, high = int(ledgers.min()), int(ledgers.max())
        first, last = bisect_right(self._starts, low) - 1, bisect_right(self._starts, high) - 1
        if first == last:  # no range begins in between
            end = self._buckets[first].end_ledger_id if first >= 0 else -1
            return np.where(ledgers <= end, first, -1)
        ends = np.array([bucket.end_ledger_id for bucket in self._buckets])
        found = np.searchsorted(np.array(self._starts), ledgers, "right") - 1
        found[ledgers > ends[found]] = -1
        return found

    def of_ledgers(self, ledgers: Longs) -> list[tuple[Bucket, Mask | slice]]:
        """Each bucket that covers any of the topic ledgers, and where."""
        places = self.places_of(ledgers)
        if not len(places) or int(places.max()) < 0:
            return []
        if ascends(places):
            first, last = np.searchsorted(places, 0), int(places[-1])
            which = np.arange(int(places[first]), last + 1)
            bounds = zip(places.searchsorted(which).tolist(), places.searchsorted(which, "right").tolist(), strict=True)
            return [(self._buckets[at], slice(*some)) for at, some in zip(which.tolist(), bounds, strict=True)]
        which = np.flatnonzero(np.bincount(places + 1)[1:])
        return [(self._buckets[at], places == at) for at in which.tolist()]

    def put(self, bucket: Bucket) -> None:
        """Add one whose range overlaps no other's."""
        at = bisect_right(self._starts, bucket.start_ledger_id)
        before = self._buckets[at - 1] if at else None
        after = self._buckets[at] if at < len(self._buckets) else None
        if (before and before.end_ledger_id >= bucket.start_ledger_id) or (
            after and after.start_ledger_id <= bucket.end_ledger_id
        ):
            raise ValueError(f"{bucket.key}: overlaps another bucket")
        self._buckets.insert(at, bucket)
        self._starts.insert(at, bucket.start_ledger_id)

    def remove(self, bucket: Bucket) -> None:
        """Take one out that is in."""
        at = self._buckets.index(bucket)
        del self._buckets[at], self._starts[at]

    def next_needed(self) -> Bucket | None:
        """The bucket whose loaded segment ends first."""
        return min(self._buckets, key=lambda bucket: bucket.last_loaded, default=None)
