"""Sealing a bucket: delayed messages to the entries of a snapshot ledger, as a broker writes them.

Belongs here: sorting, cutting and encoding one bucket; and reading one whole. Not here: when a bucket is sealed
(:mod:`tracker`), and storing it (:mod:`storage`).
Upstream: ``MutableBucket.sealBucketAndAsyncPersistent``, pulsar-broker 4.0.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pulsar_lifecycle.delayed_index.cutting import cut
from pulsar_lifecycle.delayed_index.keys import bucket_key
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import delayed_bucket, delayed_indexes, delayed_metadata, delayed_table
from pulsar_lifecycle.formats.delayed_indexes import Indexes, Longs, time_order

Span = tuple[int, int]
"""From when (ms) on, and until before when."""
ALWAYS = (0, (1 << 63) - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A sealed bucket: what it covers, its messages in order, its segments, and the entries of its ledger."""

    start_ledger_id: int
    end_ledger_id: int
    indexes: Indexes
    bounds: Longs
    """Segment i is [bounds[i], bounds[i + 1])."""
    entries: tuple[bytes, ...]
    """Entry 0, then the segments."""

    @property
    def key(self) -> str:
        """The cursor property that will name it."""
        return bucket_key(self.start_ledger_id, self.end_ledger_id)

    @property
    def segments(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1


def seal(
    indexes: Indexes,
    time_step_ms: int,
    max_indexes: int,
    start_ledger_id: int | None = None,
    end_ledger_id: int | None = None,
) -> Snapshot:
    """The snapshot of at least one message, in any order, each once.

    The bucket covers ``start_ledger_id`` to ``end_ledger_id``, both inclusive; by default what its messages need.
    Raises ValueError for a message outside that range, one that comes twice, and an entry that no bitmap can hold.
    """
    log = indexes.in_log_order()
    first, last = int(log.ledgers[0]), int(log.ledgers[-1])
    start = first if start_ledger_id is None else start_ledger_id
    end = last if end_ledger_id is None else end_ledger_id
    if first < start or last > end:
        raise ValueError(f"ledgers {first} to {last} in a bucket of {start} to {end}")
    order = time_order(log.timestamps)
    by_time = log[order]
    places = np.empty(len(order), np.intp)
    places[order] = np.arange(len(order))
    bounds = cut(by_time.timestamps, time_step_ms, max_indexes)
    segments = delayed_indexes.encode_segments(by_time, bounds)
    metadata = delayed_metadata.encode_bitmaps(by_time, bounds, places)
    return Snapshot(start, end, by_time, bounds, (metadata, *segments))


def read_whole(entries: Sequence[bytes]) -> tuple[delayed_table.SegmentTable, Indexes, Longs]:
    """All of a snapshot ledger: entry 0, the messages as stored, and the bounds of the segments.

    Raises CorruptFormat where an entry cannot be read, and where entry 0 describes more segments than there are. What
    comes after these nobody reads.
    """
    table = delayed_table.decode_table(entries[0])
    if len(table) > len(entries) - 1:
        expected = f"a description of {len(entries) - 1} segments, found {len(table)}"
        raise CorruptFormat(delayed_bucket.WHAT_METADATA, 0, expected)
    indexes, bounds = delayed_indexes.decode_segments(entries[1 : len(table) + 1])
    return table, indexes, bounds


def unrecoverable(entries: Sequence[bytes]) -> tuple[Span, ...]:
    """When (ms) a broker cannot take up a snapshot that cannot be read whole: it needs entry 0 and the next segment.

    Once it has both, it takes up the bucket, and waits for ever at a later segment that it cannot read.
    """
    try:
        table = delayed_table.decode_table(entries[0])
    except CorruptFormat:
        return (ALWAYS,)
    found: list[Span] = []
    for number, (begin, end) in enumerate(pairwise((0, *table.maximums)), 1):
        try:
            delayed_indexes.decode_segments(entries[number : number + 1])
            whole = number < len(entries)
        except CorruptFormat:
            whole = False
        found += [] if whole else [(begin, end)]
    return tuple(found)
