"""Entry 0 of delayed-index bucket snapshots, from arrays: a bitmap for each segment and topic ledger in it.

Belongs here: the bytes that a broker writes for a bucket that is sorted and cut, down to the order of its hash map. Not
here: reading them (:mod:`delayed_table`), cutting (``delayed_index.cutting``).
Upstream: ``DelayedMessageIndexBucketMetadata.proto`` and ``MutableBucket.createImmutableBucketAndAsyncPersistent``,
pulsar-broker 4.0.7; the portable format of 32-bit Roaring bitmaps, https://github.com/RoaringBitmap/RoaringFormatSpec.

A bitmap whose entry ids are below 65,536 is a single container, and written here; pyroaring writes the others.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_lifecycle.formats import _rows
from pulsar_lifecycle.formats._rows import varint_widths
from pulsar_lifecycle.formats._wire import write_varint
from pulsar_lifecycle.formats.delayed_indexes import Indexes, Longs, time_order

MAX_ENTRY_ID = (1 << 32) - 1
"""The bitmaps hold 32 bits."""

_ARRAY = struct.Struct("<IIHHI")  # SERIAL_COOKIE_NO_RUNCONTAINER, containers, key, cardinality - 1, offset
_BITMAP = _ARRAY
_RUNS = struct.Struct("<HHBHHH")  # SERIAL_COOKIE, containers - 1, which are runs, key, cardinality - 1, runs
_NO_RUNS, _SOME_RUNS = 12346, 12347
_ARRAY_MAX = 4096  # ArrayContainer.DEFAULT_MAX_SIZE
_CONTAINER = 1 << 16
_ITEM = _rows.constant(b"\x0a")  # an item of metadata_list, an entry of delayed_index_bit_map
_KEY, _VALUE = _rows.constant(b"\x08"), _rows.constant(b"\x12")
_MAX_TIME, _MIN_TIME = _rows.constant(b"\x10"), _rows.constant(b"\x18")
_SLOTS, _CROWDED, _MIN_TREEIFY_CAPACITY = 16, 8, 64  # java.util.HashMap


def encode_bitmaps(indexes: Indexes, bounds: Longs, in_log_order: NDArray[np.intp] | None = None) -> bytes:
    """Entry 0 for indexes that are sorted, cut into the segments [bounds[i], bounds[i + 1]), none of them empty.

    ``in_log_order`` has the rows' places by (ledger, entry), where the caller knows them. No message may come twice;
    entry ids are at most ``MAX_ENTRY_ID``.
    """
    if in_log_order is None:
        in_log_order = time_order(indexes.entries)
        in_log_order = in_log_order[time_order(indexes.ledgers[in_log_order])]
    groups = _groups(indexes, bounds, in_log_order).in_java_order()
    segments = groups.segments
    containers, bodies = groups.serialized()
    first, last = indexes.timestamps[bounds[:-1]], indexes.timestamps[bounds[1:] - 1]
    first_widths, last_widths = varint_widths(first), varint_widths(last)
    bitmaps = containers.sizes + containers.body_sizes
    ledger_widths, bitmap_widths = varint_widths(groups.ledgers), varint_widths(bitmaps)
    described = 2 + ledger_widths + bitmap_widths + bitmaps
    described_widths = varint_widths(described)
    begins = np.concatenate(([True], segments[1:] != segments[:-1]))
    whole = np.add.reduceat(1 + described_widths + described, np.flatnonzero(begins)) + 2 + first_widths + last_widths
    ended = np.maximum(segments - 1, 0)
    """The segment that ends where a group begins one; there is none before the first."""
    data, cuts = _rows.encoded(
        len(segments),
        (
            *_rows.only(
                begins & (segments > 0),
                _MAX_TIME,
                _rows.varints(last[ended], last_widths[ended]),
                _MIN_TIME,
                _rows.varints(first[ended], first_widths[ended]),
            ),
            *_rows.only(begins, _ITEM, _rows.varints(whole[segments], varint_widths(whole)[segments])),
            _ITEM,
            _rows.varints(described, described_widths),
            _KEY,
            _rows.varints(groups.ledgers, ledger_widths),
            _VALUE,
            _rows.varints(bitmaps, bitmap_widths),
            _rows.table(containers.heads, containers.sizes),
        ),
    )
    out: list[bytes] = []
    for (begin, end), body in zip(pairwise(cuts.tolist()), bodies, strict=True):
        out += (data[begin:end], body)
    out += (b"\x10", write_varint(int(last[-1])), b"\x18", write_varint(int(first[-1])))
    return b"".join(out)


def bitmap_of(entries: Longs | NDArray[np.uint32]) -> BitMap:
    """A bitmap of entry ids in any order."""
    if len(entries) > _ARRAY_MAX and entries.max() < _CONTAINER:
        flags = np.zeros(_CONTAINER, np.bool_)
        flags[entries] = True
        count = int(np.count_nonzero(flags))
        if count > _ARRAY_MAX:
            head = _BITMAP.pack(_NO_RUNS, 1, 0, count - 1, _BITMAP.size)
            return BitMap.deserialize(head + np.packbits(flags, bitorder="little").tobytes())
    return BitMap(_unsigned(entries))


def _unsigned(entries: Longs | NDArray[np.uint32]) -> array[int]:
    """As pyroaring takes numbers fast."""
    found = array("I")
    found.frombytes(entries.astype(np.uint32).tobytes())
    return found


@dataclass(frozen=True, slots=True)
class _Containers:
    """The bitmaps of some groups: what stands before the entries, and how much that and the rest takes."""

    heads: NDArray[np.uint8]
    sizes: Longs
    """Bytes of each head."""
    body_sizes: Longs


@dataclass(frozen=True, slots=True)
class _Groups:
    """The messages of each segment and ledger in it: those of group i are at [begins[i], ends[i])."""

    segments: Longs
    ledgers: Longs
    begins: Longs
    ends: Longs
    entries: Longs
    """Ascending in each group."""
    places: Longs
    """Where each is in the sorted bucket."""

    def serialized(self) -> tuple[_Containers, list[bytes]]:
        """Each group's bitmap, run-optimised: its container's head, and what follows it."""
        entries, begins, ends = self.entries, self.begins, self.ends
        low = entries.astype("<u2")
        breaks = np.empty(len(entries), np.bool_)
        breaks[0] = True
        np.not_equal(entries[1:], entries[:-1] + 1, out=breaks[1:])
        breaks[begins] = True
        run_starts = np.flatnonzero(breaks)
        first_runs, last_runs = np.searchsorted(run_starts, begins), np.searchsorted(run_starts, ends)
        counts, runs = ends - begins, last_runs - first_runs
        of_runs = 2 + 4 * runs
        is_single = entries[ends - 1] < _CONTAINER
        as_array = is_single & (counts <= _ARRAY_MAX) & (2 * counts <= of_runs)
        as_runs = is_single & ~as_array & (of_runs < np.minimum(2 * counts, 8192))
        heads = np.zeros((len(begins), _ARRAY.size), np.uint8)
        heads[:, :] = np.frombuffer(_ARRAY.pack(_NO_RUNS, 1, 0, 0, _ARRAY.size), np.uint8)
        heads[as_runs, : _RUNS.size] = np.frombuffer(_RUNS.pack(_SOME_RUNS, 0, 1, 0, 0, 0), np.uint8)
        less_one = (counts - 1).astype("<u2").view(np.uint8).reshape(-1, 2)
        heads[as_array, 10:12] = less_one[as_array]
        heads[as_runs, 7:9] = less_one[as_runs]
        heads[as_runs, 9:11] = runs.astype("<u2").view(np.uint8).reshape(-1, 2)[as_runs]
        sizes = np.select([as_array, as_runs], [_ARRAY.size, _RUNS.size], 0)
        bodies = self._bodies(low, as_array, as_runs, run_starts, first_runs, last_runs)
        return _Containers(heads, sizes, np.fromiter(map(len, bodies), np.int64, len(bodies))), bodies

    def _bodies(
        self,
        low: NDArray[np.uint16],
        as_array: NDArray[np.bool_],
        as_runs: NDArray[np.bool_],
        run_starts: Longs,
        first_runs: Longs,
        last_runs: Longs,
    ) -> list[bytes]:
        """What follows each container's head."""
        begins, ends = (2 * self.begins).tolist(), (2 * self.ends).tolist()
        data = low.tobytes()
        bodies = [data[begin:end] for begin, end in zip(begins, ends, strict=True)]
        if as_array.all():
            return bodies
        runs = np.empty((len(run_starts), 2), "<u2")
        runs[:, 0] = low[run_starts]
        runs[:, 1] = np.diff(run_starts, append=len(low)) - 1
        run_bytes = runs.tobytes()
        for group in np.flatnonzero(as_runs).tolist():
            bodies[group] = run_bytes[4 * int(first_runs[group]) : 4 * int(last_runs[group])]
        for group in np.flatnonzero(~(as_array | as_runs)).tolist():
            bitmap = bitmap_of(self.entries[self.begins[group] : self.ends[group]])
            bitmap.run_optimize()
            bodies[group] = bitmap.serialize()
        return bodies

    def in_java_order(self) -> _Groups:
        """In the order in which a ``HashMap<Long, ...>`` gives their ledgers, segment by segment.

        The broker fills one map over and over by ``computeIfAbsent``, which puts a new key first in its slot; it grows
        with the segment that has the most ledgers so far. (Eight ledgers and more in one slot of 64 or more slots may
        come in another order: the same map, in other bytes.)
        """
        segments = self.segments
        cuts = np.flatnonzero(segments[1:] != segments[:-1]) + 1
        if len(cuts) == len(segments) - 1:
            return self
        seen_first = np.minimum.reduceat(self.places, self.begins)
        halves = (self.ledgers ^ (self.ledgers >> 32)) & 0xFFFF_FFFF
        hashes = halves ^ (halves >> 16)
        slots = hashes & (_SLOTS - 1)
        bounds = np.concatenate(([0], cuts, [len(segments)]))
        crowded = np.flatnonzero(np.diff(bounds) >= _CROWDED)
        if len(crowded):
            capacity = _SLOTS
            seen_last = np.maximum.reduceat(self.places, self.begins)
            for begin, end in zip(bounds[crowded].tolist(), bounds[crowded + 1].tolist(), strict=True):
                first = seen_first[begin:end]
                more_follow = bool(first.max() < seen_last[begin:end].max())
                in_order = hashes[begin:end][np.argsort(first)]
                capacity = _capacity_after(capacity, in_order.tolist(), more_follow)
                slots[begin:] = hashes[begin:] & (capacity - 1)
        order = np.lexsort((-seen_first, slots, segments))
        return _Groups(segments, self.ledgers[order], self.begins[order], self.ends[order], self.entries, self.places)


def _capacity_after(capacity: int, hashes: list[int], more_follow: bool) -> int:
    """How many slots a hash map has once ``computeIfAbsent`` was called for these keys, and again if more follow."""
    in_slot: Counter[int] = Counter()
    for count, value in enumerate(hashes):
        if count > capacity * 3 // 4:  # it grows at the call after the one that filled it
            capacity *= 2
            in_slot = Counter(other & (capacity - 1) for other in hashes[:count])
        in_slot[value & (capacity - 1)] += 1
        if in_slot[value & (capacity - 1)] >= _CROWDED and capacity < _MIN_TREEIFY_CAPACITY:
            capacity *= 2
            in_slot = Counter(other & (capacity - 1) for other in hashes[: count + 1])
    return capacity * 2 if more_follow and len(hashes) > capacity * 3 // 4 else capacity


def _groups(indexes: Indexes, bounds: Longs, in_log_order: NDArray[np.intp]) -> _Groups:
    counts = np.diff(bounds)
    segment_of = np.repeat(np.arange(len(counts), dtype=np.uint16 if len(counts) <= _CONTAINER else np.int64), counts)
    by_segment = np.argsort(segment_of[in_log_order], kind="stable")
    places = in_log_order[by_segment]
    ledgers, entries = indexes.ledgers[places], indexes.entries[places]
    starts_segment = bounds[1:-1]  # grouped by segment, each begins where it begins in the sorted bucket
    changes = ledgers[1:] != ledgers[:-1]
    changes[starts_segment - 1] = True
    same = ~changes & (entries[1:] == entries[:-1])
    if same.any():
        at = int(np.argmax(same))
        raise ValueError(f"message {ledgers[at]}:{entries[at]} twice in a segment")
    if entries.max() > MAX_ENTRY_ID:
        raise ValueError(f"entry {entries.max()}: a bitmap holds entries up to {MAX_ENTRY_ID}")
    firsts = np.concatenate(([0], np.flatnonzero(changes) + 1))
    segments = np.searchsorted(bounds, firsts, side="right") - 1
    return _Groups(segments, ledgers[firsts], firsts, np.append(firsts[1:], len(entries)), entries, places)
