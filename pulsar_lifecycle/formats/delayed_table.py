"""Entry 0 of delayed-index bucket snapshots as a table: for each segment its times, and the messages that it marks.

Belongs here: reading entry 0 in bulk. Not here: writing it (:mod:`delayed_metadata`), the same bytes as objects
(:mod:`delayed_bucket`), the segments (:mod:`delayed_indexes`).
Upstream: ``DelayedMessageIndexBucketMetadata.proto``, pulsar-broker 4.0.7; the portable format of 32-bit Roaring
bitmaps, https://github.com/RoaringBitmap/RoaringFormatSpec.

Most bitmaps are a single array container. Where all are, and every field is where brokers write it, the whole entry is
taken apart at once; anything else, right or wrong, goes to protobuf and pyroaring.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_lifecycle._pb import pulsar_delayed_index_pb2 as pb
from pulsar_lifecycle.formats import _wire
from pulsar_lifecycle.formats.delayed_bucket import WHAT_METADATA
from pulsar_lifecycle.formats.delayed_indexes import Longs, joined_varints, time_order
from pulsar_lifecycle.formats.delayed_metadata import bitmap_of

Words = NDArray[np.uint64]
Elements = NDArray[np.uint32]

_ITEM, _MAX_TIME, _MIN_TIME = 0x0A, 0x10, 0x18  # of metadata_list, of delayed_index_bit_map; of a segment
_KEY, _VALUE = 0x08, 0x12
_ONE_ARRAY = struct.pack("<II", 12346, 1)  # SERIAL_COOKIE_NO_RUNCONTAINER, a single container
_HEAD = len(_ONE_ARRAY) + 8  # key, cardinality - 1, offset
_GREATEST = (1 << 63) - 1
_TOP_BITS = np.uint64(0x8080_8080_8080_8080)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTable:
    """Entry 0 as read: segment i is entry i + 1; times in ms, both inclusive.

    Bitmap j is of topic ledger ``ledgers[j]`` and marks ``sizes[j]`` messages; those of segment i are
    [firsts[i], firsts[i + 1]). A few bytes may mark four billion.
    """

    minimums: tuple[int, ...]
    maximums: tuple[int, ...]
    firsts: Longs
    ledgers: Sequence[int]
    sizes: Longs
    marks: Elements | Sequence[BitMap]
    """The entries of all bitmaps, one after the other; or the bitmaps."""

    def __len__(self) -> int:
        return len(self.minimums)

    @property
    def counts(self) -> Longs:
        """How many messages each segment marks."""
        return np.diff(np.concatenate(([0], np.cumsum(self.sizes)))[self.firsts])

    @property
    def bitmaps(self) -> tuple[dict[int, BitMap], ...]:
        """By topic ledger, of each segment; made anew each time."""
        pairs = list(zip(self.ledgers, self._bitmaps(), strict=True))
        bounds = self.firsts.tolist()
        return tuple(dict(pairs[begin:end]) for begin, end in pairwise(bounds))

    def _bitmaps(self) -> Iterator[BitMap]:
        if not isinstance(self.marks, np.ndarray):
            yield from self.marks
            return
        ends = np.cumsum(self.sizes).tolist()
        for begin, end in zip([0, *ends], ends, strict=False):
            yield BitMap(array("I", self.marks[begin:end].tobytes()))

    def marked(self, first_segment: int = 0) -> tuple[Longs, Longs]:
        """The ledger and entry of each message that is marked, segment by segment, from some segment on.

        A ledger above 2**63, which no topic has, is the greatest below it.
        """
        first = int(self.firsts[first_segment])
        ledgers = np.array([min(ledger, _GREATEST) for ledger in self.ledgers[first:]], np.int64)
        if isinstance(self.marks, np.ndarray):
            entries = self.marks[int(self.sizes[:first].sum()) :]
        else:
            arrays = (np.frombuffer(one.to_array(), np.uint32) for one in self.marks[first:])
            entries = np.concatenate([np.empty(0, np.uint32), *arrays])
        return np.repeat(ledgers, self.sizes[first:]), entries.astype(np.int64)

    def union(self, first_segment: int) -> dict[int, BitMap]:
        """What the segments from some one on mark, by topic ledger."""
        if not isinstance(self.marks, np.ndarray):
            return union_of(self.bitmaps[first_segment:])
        first = int(self.firsts[first_segment])
        if len(set(self.ledgers[first:])) == 1:
            return {self.ledgers[first]: bitmap_of(self.marks[int(self.sizes[:first].sum()) :])}
        ledgers, entries = self.marked(first_segment)
        if not len(ledgers):
            return {}
        order = time_order(ledgers)
        ledgers, entries = ledgers[order], entries[order]
        cuts = [0, *(np.flatnonzero(np.diff(ledgers)) + 1).tolist(), len(ledgers)]
        return {int(ledgers[begin]): bitmap_of(entries[begin:end]) for begin, end in pairwise(cuts)}


@dataclass(frozen=True, slots=True)
class WholeTable:
    """Entry 0 as a broker takes it up at some time: when segments begin and end, and what those not passed have."""

    minimums: tuple[int, ...]
    maximums: tuple[int, ...]
    passed: int
    """How many segments come first whose messages are all due."""
    bitmaps: dict[int, BitMap]
    """The others' together, by topic ledger."""


def decode_table(data: bytes) -> SegmentTable:
    """Entry 0 of a snapshot ledger, without its BookKeeper header; raises CorruptFormat."""
    data = bytes(data)
    return _taken_apart(data) or _decoded(data)


def decode_whole(data: bytes, cutoff_ms: int) -> WholeTable:
    """As :func:`decode_table`, with one bitmap for each ledger. Segments that ended by ``cutoff_ms`` are passed."""
    table = decode_table(data)
    passed = next((n for n, last in enumerate(table.maximums) if last > cutoff_ms), len(table))
    return WholeTable(table.minimums, table.maximums, passed, table.union(passed))


def union_of(segments: Sequence[dict[int, BitMap]]) -> dict[int, BitMap]:
    """The union of the bitmaps of some segments, by topic ledger."""
    found: dict[int, list[BitMap]] = {}
    for bitmaps in segments:
        for ledger, bitmap in bitmaps.items():
            found.setdefault(ledger, []).append(bitmap)
    return {ledger: BitMap.union(*several) for ledger, several in found.items()}


# --------------------------------------------------------------------------------------------------------- all at once


class _OtherShapeError(Exception):
    """An entry is not in the shape in which brokers write most."""


class _Walk:
    """Places in the bytes of an entry that go over field after field, all of them together.

    ``words`` has the 8 bytes from each byte on, and at last zeros, where a place behind the end stays.
    """

    def __init__(self, words: Words, at: Longs) -> None:
        self._words = words
        self.at = at

    def _next(self) -> Words:
        return self._words[np.minimum(self.at, len(self._words) - 1)]

    def tag(self, tag: int) -> None:
        """Go over a field's tag."""
        if ((self._next() & np.uint64(0xFF)) != tag).any():
            raise _OtherShapeError
        self.at = self.at + 1

    def varint(self) -> Longs:
        """Go over a number, which has up to 8 bytes."""
        words = self._next()
        ends = ~words & _TOP_BITS
        if not ends.all():
            raise _OtherShapeError
        upto = ends ^ (ends - np.uint64(1))
        """All bits up to the top one of the number's last byte."""
        self.at = self.at + (np.bitwise_count(upto) >> 3)
        return joined_varints(words & upto, 8)


def _taken_apart(data: bytes) -> SegmentTable | None:
    """The table of an entry that has only single array containers, each field where brokers write it; else None."""
    try:
        return _shaped(data)
    except _OtherShapeError:
        return None


def _shaped(data: bytes) -> SegmentTable:
    pieces = data.split(_ONE_ARRAY)
    count = len(pieces) - 1
    if not count:
        raise _OtherShapeError
    at = np.cumsum(np.fromiter(map(len, pieces), np.int64, count + 1))[:-1] + len(_ONE_ARRAY) * np.arange(count)
    """Where each bitmap begins."""
    words = np.ndarray((len(data) + 1,), "<u8", data + bytes(8), strides=(1,))
    rest = words[np.minimum(at + len(_ONE_ARRAY), len(data))]
    sizes = ((rest >> np.uint64(16)) & np.uint64(0xFFFF)).astype(np.int64) + 1
    ends = at + _HEAD + 2 * sizes
    if ((rest >> np.uint64(32)) != _HEAD).any() or (ends[:-1] > at[1:]).any() or ends[-1] > len(data):
        raise _OtherShapeError
    begins = np.append(0, ends)
    """Where what stands before each bitmap begins, and what stands after the last."""
    closing = words[begins] & np.uint64(0xFF) == _MAX_TIME
    closing[0], closing[-1] = False, True
    segments = np.flatnonzero(closing)
    """Behind the last bitmap of each."""
    walk = _Walk(words, begins[segments])
    walk.tag(_MAX_TIME)
    maximums = walk.varint()
    walk.tag(_MIN_TIME)
    minimums = walk.varint()
    closed = walk.at
    firsts = np.append(0, segments)
    opened = _Walk(words, np.append(0, closed[:-1]))
    opened.tag(_ITEM)
    whole = opened.varint()
    starts = begins[:-1].copy()
    starts[firsts[:-1]] = opened.at
    walk = _Walk(words, starts)
    walk.tag(_ITEM)
    described = walk.varint()
    inner = walk.at
    walk.tag(_KEY)
    ledgers = walk.varint()
    walk.tag(_VALUE)
    right = (
        np.array_equal(walk.varint(), ends - at)
        and np.array_equal(walk.at, at)
        and np.array_equal(inner + described, ends)
        and np.array_equal(opened.at + whole, closed)
        and closed[-1] == len(data)
        and bool((minimums <= maximums).all())
        and _are_distinct(ledgers, np.repeat(np.arange(len(segments)), np.diff(firsts)))
    )
    if not right:
        raise _OtherShapeError
    elements = _elements(pieces, sizes)
    keys = (rest & np.uint64(0xFFFF)).astype(np.uint32)
    if keys.any():
        elements += np.repeat(keys << np.uint32(16), sizes)
    return SegmentTable(tuple(minimums.tolist()), tuple(maximums.tolist()), firsts, ledgers.tolist(), sizes, elements)


def _elements(pieces: Sequence[bytes], sizes: Longs) -> Elements:
    """Those of the containers that begin the pieces from the second on."""
    head = _HEAD - len(_ONE_ARRAY)
    ends = (head + 2 * sizes).tolist()
    bodies = b"".join([piece[head:end] for piece, end in zip(pieces[1:], ends, strict=True)])
    elements = np.frombuffer(bodies, "<u2")
    falls = elements[1:] <= elements[:-1]
    falls[np.cumsum(sizes)[:-1] - 1] = False  # from one container to the next
    if falls.any():
        raise _OtherShapeError
    return elements.astype(np.uint32)


def _are_distinct(ledgers: Longs, segments: Longs) -> bool:
    """Whether no segment has two bitmaps of one ledger."""
    if len(segments) < 2 or segments[-1] == len(segments) - 1:
        return True
    order = np.lexsort((ledgers, segments))
    again = (ledgers[order[1:]] == ledgers[order[:-1]]) & (segments[order[1:]] == segments[order[:-1]])
    return not again.any()


# --------------------------------------------------------------------------------------------------------- one by one


def _decoded(data: bytes) -> SegmentTable:
    """The table of any entry 0."""

    def build(message: pb.SnapshotMetadata) -> SegmentTable:
        message.DiscardUnknownFields()
        if message.ByteSize() != len(data):  # some were, or a number is written longer than it need be
            message = pb.SnapshotMetadata.FromString(data)
            for segment in _wire.known(message).metadata_list:
                _wire.known(segment)
        segments = message.metadata_list
        if any(one.min_schedule_timestamp > one.max_schedule_timestamp for one in segments):
            raise _wire.MalformedError("a segment whose first due time is not after its last")
        firsts = [0]
        ledgers: list[int] = []
        bitmaps: list[BitMap] = []
        for one in segments:
            raw = one.delayed_index_bit_map
            for ledger in raw:
                ledgers.append(ledger)
                bitmaps.append(_bitmap(raw[ledger]))  # protobuf's items() takes twice as long
            firsts.append(len(ledgers))
        return SegmentTable(
            tuple(one.min_schedule_timestamp for one in segments),
            tuple(one.max_schedule_timestamp for one in segments),
            np.array(firsts),
            ledgers,
            np.fromiter(map(len, bitmaps), np.int64, len(bitmaps)),
            bitmaps,
        )

    return _wire.decode(pb.SnapshotMetadata, data, WHAT_METADATA, build)


def _bitmap(data: bytes) -> BitMap:
    try:
        bitmap = BitMap.deserialize(data)
    except (ValueError, IndexError) as error:
        raise _wire.MalformedError(f"a portable Roaring bitmap: {error}") from None
    if len(bitmap.serialize()) != len(data):
        raise _wire.MalformedError("a portable Roaring bitmap and nothing after it")
    return bitmap
