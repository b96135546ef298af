"""Entry 0 of delayed-index bucket snapshots, from and to arrays: a bitmap for each segment and topic ledger in it.

Belongs here: the bytes that a broker writes for a bucket that is sorted and cut, down to the order of its hash map, and
reading them in bulk. Not here: the same bytes as objects (:mod:`delayed_bucket`), cutting (``delayed_index.cutting``).
Upstream: ``DelayedMessageIndexBucketMetadata.proto`` and ``MutableBucket.createImmutableBucketAndAsyncPersistent``,
pulsar-broker 4.0.7; the portable format of 32-bit Roaring bitmaps, https://github.com/RoaringBitmap/RoaringFormatSpec.

A bitmap whose entry ids are below 65,536 is a single container, and written here; pyroaring writes the others.
"""

from __future__ import annotations

import struct
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_lifecycle._pb import pulsar_delayed_index_pb2 as pb
from pulsar_lifecycle.formats import _wire
from pulsar_lifecycle.formats._wire import write_varint
from pulsar_lifecycle.formats.delayed_bucket import WHAT_METADATA
from pulsar_lifecycle.formats.delayed_indexes import Indexes, Longs, time_order

T = TypeVar("T")

MAX_ENTRY_ID = (1 << 32) - 1
"""The bitmaps hold 32 bits."""

_ARRAY = struct.Struct("<IIHHI")  # SERIAL_COOKIE_NO_RUNCONTAINER, containers, key, cardinality - 1, offset
_BITMAP = _ARRAY
_FIRST_ARRAY = struct.pack("<IIH", 12346, 1, 0)  # a single container, of entries below 65,536
_RUNS = struct.Struct("<HHBHHH")  # SERIAL_COOKIE, containers - 1, which are runs, key, cardinality - 1, runs
_NO_RUNS, _SOME_RUNS = 12346, 12347
_ARRAY_MAX = 4096  # ArrayContainer.DEFAULT_MAX_SIZE
_CONTAINER = 1 << 16
_SLOTS, _CROWDED, _MIN_TREEIFY_CAPACITY = 16, 8, 64  # java.util.HashMap


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """Entry 0 as read: segment i is entry i + 1; times in ms, both inclusive; bitmaps by topic ledger."""

    minimums: tuple[int, ...]
    maximums: tuple[int, ...]
    bitmaps: tuple[dict[int, BitMap], ...]

    def __len__(self) -> int:
        return len(self.minimums)


def decode_table(data: bytes) -> SegmentTable:
    """Entry 0 of a snapshot ledger, without its BookKeeper header; raises CorruptFormat."""

    def build(segments: Sequence[pb.SnapshotSegmentMetadata]) -> SegmentTable:
        return SegmentTable(
            tuple(one.min_schedule_timestamp for one in segments),
            tuple(one.max_schedule_timestamp for one in segments),
            tuple({ledger: _bitmap(raw) for ledger, raw in one.delayed_index_bit_map.items()} for one in segments),
        )

    return _decoded(data, build)


@dataclass(frozen=True, slots=True)
class WholeTable:
    """Entry 0 as a broker takes it up at some time: when segments begin and end, and what those not passed have."""

    minimums: tuple[int, ...]
    maximums: tuple[int, ...]
    passed: int
    """How many segments come first whose messages are all due."""
    bitmaps: dict[int, BitMap]
    """The others' together, by topic ledger."""


def decode_whole(data: bytes, cutoff_ms: int) -> WholeTable:
    """As :func:`decode_table`, with one bitmap for each ledger: several times as fast.

    Segments that ended by ``cutoff_ms`` are passed.
    """

    def build(segments: Sequence[pb.SnapshotSegmentMetadata]) -> WholeTable:
        maximums = tuple(one.max_schedule_timestamp for one in segments)
        passed = next((n for n, last in enumerate(maximums) if last > cutoff_ms), len(maximums))
        arrays: dict[int, list[bytes]] = {}
        others: dict[int, list[BitMap]] = {}
        for number, one in enumerate(segments):
            bitmaps = one.delayed_index_bit_map
            for ledger in bitmaps:
                raw = bitmaps[ledger]
                if raw[:10] == _FIRST_ARRAY and _is_plain_array(raw):
                    if number < passed:
                        continue
                    if ledger in arrays:
                        arrays[ledger].append(raw[_ARRAY.size :])
                    else:
                        arrays[ledger] = [raw[_ARRAY.size :]]
                elif (bitmap := _bitmap(raw)) and number >= passed:
                    others.setdefault(ledger, []).append(bitmap)
        for ledger, parts in arrays.items():
            entries = np.frombuffer(b"".join(parts), "<u2")
            others.setdefault(ledger, []).append(bitmap_of(entries.astype(np.int64)))
        found = {ledger: BitMap.union(*several) for ledger, several in others.items()}
        return WholeTable(tuple(one.min_schedule_timestamp for one in segments), maximums, passed, found)

    return _decoded(data, build)


def _decoded(data: bytes, build: Callable[[Sequence[pb.SnapshotSegmentMetadata]], T]) -> T:
    """What ``build`` makes of the segments; raises CorruptFormat, also where ``build`` raises MalformedError."""
    data = bytes(data)

    def checked(message: pb.SnapshotMetadata) -> T:
        message.DiscardUnknownFields()
        if message.ByteSize() != len(data):  # some were, or a number is written longer than it need be
            message = pb.SnapshotMetadata.FromString(data)
            for segment in _wire.known(message).metadata_list:
                _wire.known(segment)
        segments = message.metadata_list
        if any(one.min_schedule_timestamp > one.max_schedule_timestamp for one in segments):
            raise _wire.MalformedError("a segment whose first due time is not after its last")
        return build(segments)

    return _wire.decode(pb.SnapshotMetadata, data, WHAT_METADATA, checked)


def _bitmap(data: bytes) -> BitMap:
    try:
        bitmap = BitMap.deserialize(data)
    except (ValueError, IndexError) as error:
        raise _wire.MalformedError(f"a portable Roaring bitmap: {error}") from None
    if not _is_plain_array(data) and len(bitmap.serialize()) != len(data):
        raise _wire.MalformedError("a portable Roaring bitmap and nothing after it")
    return bitmap


def _is_plain_array(data: bytes) -> bool:
    """Whether it is a single array container, whole and nothing after it: most are."""
    if len(data) < _ARRAY.size:
        return False
    cookie, containers, _, less_one, offset = _ARRAY.unpack_from(data)
    return (cookie, containers, offset) == (_NO_RUNS, 1, _ARRAY.size) and len(data) == offset + 2 * (less_one + 1)


def encode_bitmaps(indexes: Indexes, bounds: Longs, in_log_order: NDArray[np.intp] | None = None) -> bytes:
    """Entry 0 for indexes that are sorted, cut into the segments [bounds[i], bounds[i + 1]), none of them empty.

    ``in_log_order`` has the rows' places by (ledger, entry), where the caller knows them. No message may come twice;
    entry ids are at most ``MAX_ENTRY_ID``.
    """
    if in_log_order is None:
        in_log_order = time_order(indexes.entries)
        in_log_order = in_log_order[time_order(indexes.ledgers[in_log_order])]
    groups = _groups(indexes, bounds, in_log_order)
    bitmaps = groups.serialized()
    ledgers, segments = groups.ledgers.tolist(), groups.segments.tolist()
    times_of = [indexes.timestamps[bounds[1:] - 1].tolist(), indexes.timestamps[bounds[:-1]].tolist()]
    keys = {ledger: b"\x08" + write_varint(ledger) + b"\x12" for ledger in set(ledgers)}
    parts: list[list[bytes]] = [[] for _ in range(len(bounds) - 1)]
    for group in groups.java_order():
        bitmap = bitmaps[group]
        entry = b"".join((keys[ledgers[group]], write_varint(len(bitmap)), bitmap))
        parts[segments[group]] += (b"\x0a", write_varint(len(entry)), entry)
    out: list[bytes] = []
    for part, last, first in zip(parts, *times_of, strict=True):
        segment = b"".join((*part, b"\x10", write_varint(last), b"\x18", write_varint(first)))
        out += (b"\x0a", write_varint(len(segment)), segment)
    return b"".join(out)


def bitmap_of(entries: Longs) -> BitMap:
    """A bitmap of entry ids in any order."""
    if len(entries) > _ARRAY_MAX and entries.max() < _CONTAINER:
        flags = np.zeros(_CONTAINER, np.bool_)
        flags[entries] = True
        count = int(np.count_nonzero(flags))
        if count > _ARRAY_MAX:
            head = _BITMAP.pack(_NO_RUNS, 1, 0, count - 1, _BITMAP.size)
            return BitMap.deserialize(head + np.packbits(flags, bitorder="little").tobytes())
    return BitMap(_unsigned(entries))


def _unsigned(entries: Longs) -> array[int]:
    """As pyroaring takes numbers fast."""
    found = array("I")
    found.frombytes(entries.astype(np.uint32).tobytes())
    return found


@dataclass(frozen=True, slots=True)
class _Groups:
    """The messages of each segment and ledger in it: those of group i are at [starts[i], starts[i + 1])."""

    segments: Longs
    ledgers: Longs
    starts: Longs
    entries: Longs
    """Ascending in each group."""
    places: Longs
    """Where each is in the sorted bucket."""

    def serialized(self) -> list[bytes]:
        """Each group's bitmap, run-optimised."""
        entries, starts = self.entries, self.starts
        low = entries.astype("<u2")
        follows = np.diff(entries) == 1
        follows[starts[1:-1] - 1] = False
        run_starts = np.flatnonzero(np.concatenate(([True], ~follows)))
        run_lengths = np.diff(np.append(run_starts, len(entries)))
        runs = np.empty((len(run_starts), 2), "<u2")
        runs[:, 0] = low[run_starts]
        runs[:, 1] = run_lengths - 1
        first_runs = np.searchsorted(run_starts, starts)
        low_bytes, run_bytes = low.tobytes(), runs.tobytes()
        single = (entries[starts[1:] - 1] < _CONTAINER).tolist()
        keep_starts, keep_runs = starts.tolist(), first_runs.tolist()
        found: list[bytes] = []
        for group, is_single in enumerate(single):
            begin, end = keep_starts[group], keep_starts[group + 1]
            first, last = keep_runs[group], keep_runs[group + 1]
            count, of_runs = end - begin, 2 + 4 * (last - first)
            if is_single and count <= _ARRAY_MAX and 2 * count <= of_runs:
                found.append(_ARRAY.pack(_NO_RUNS, 1, 0, count - 1, _ARRAY.size) + low_bytes[2 * begin : 2 * end])
            elif is_single and of_runs < min(2 * count, 8192):
                head = _RUNS.pack(_SOME_RUNS, 0, 1, 0, count - 1, last - first)
                found.append(head + run_bytes[4 * first : 4 * last])
            else:
                bitmap = bitmap_of(entries[begin:end])
                bitmap.run_optimize()
                found.append(bitmap.serialize())
        return found

    def java_order(self) -> list[int]:
        """The groups in the order in which a ``HashMap<Long, ...>`` gives their ledgers, segment by segment.

        The broker fills one map over and over by ``computeIfAbsent``, which puts a new key first in its slot; it grows
        with the segment that has the most ledgers so far. (Eight ledgers and more in one slot of 64 or more slots may
        come in another order: the same map, in other bytes.)
        """
        if len(np.unique(self.segments)) == len(self.segments):
            return list(range(len(self.segments)))
        seen_first = np.minimum.reduceat(self.places, self.starts[:-1])
        seen_last = np.maximum.reduceat(self.places, self.starts[:-1])
        halves = (self.ledgers ^ (self.ledgers >> 32)) & 0xFFFF_FFFF
        hashes = halves ^ (halves >> 16)
        cuts = np.flatnonzero(np.diff(self.segments)) + 1
        capacity = _SLOTS
        slots = np.empty(len(hashes), np.int64)
        for group in np.split(np.arange(len(hashes)), cuts):
            if len(group) >= _CROWDED:
                in_order = hashes[group[np.argsort(seen_first[group])]]
                more_follow = bool(seen_first[group].max() < seen_last[group].max())
                capacity = _capacity_after(capacity, in_order.tolist(), more_follow)
            slots[group] = hashes[group] & (capacity - 1)
        return np.lexsort((-seen_first, slots, self.segments)).tolist()


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
    starts = np.concatenate(([0], np.flatnonzero(changes) + 1, [len(entries)]))
    firsts = starts[:-1]
    segments = np.searchsorted(bounds, firsts, side="right") - 1
    return _Groups(segments, ledgers[firsts], starts, entries, places)


def union_of(segments: Sequence[dict[int, BitMap]]) -> dict[int, BitMap]:
    """The union of the bitmaps of some segments, by topic ledger."""
    found: dict[int, list[BitMap]] = {}
    for bitmaps in segments:
        for ledger, bitmap in bitmaps.items():
            found.setdefault(ledger, []).append(bitmap)
    return {ledger: BitMap.union(*several) for ledger, several in found.items()}
