"""The segments of delayed-index bucket snapshots, as arrays: for millions of delayed messages at once.

Belongs here: :class:`Indexes`, and entries 1..N of snapshot ledgers to it and back. Not here: the same bytes as
objects, which keep fields unknown to us (:mod:`delayed_bucket`), entry 0 (:mod:`delayed_table`), cutting, sealing.
Upstream: ``DelayedMessageIndexBucketSegment.proto`` and ``TripleLongPriorityQueue``, pulsar-broker 4.0.7.

A segment repeats one record: ``0A size 08 timestamp 10 ledger 18 entry``, the numbers as varints. Where all records of
a megabyte have that shape they are taken apart at once; anything else, right or wrong, goes to the object codec.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import _wire, delayed_bucket
from pulsar_lifecycle.formats._rows import varint_widths

Longs = NDArray[np.int64]
_Words = NDArray[np.uint64]

_RECORD, _TIMESTAMP, _LEDGER, _ENTRY = 0x0A, 0x08, 0x10, 0x18
_CHUNK = 1 << 20
"""Bytes decoded at a time: what is touched stays in the processor's cache."""
_SLACK = bytes(8)
_TIMESTAMP_WIDTH = 6
"""Bytes of a varint of milliseconds from 1971 to 2109."""


@dataclass(frozen=True, slots=True, eq=False)
class Indexes:
    """Delayed messages: when each is due (ms), its topic ledger, its entry; three arrays of one length."""

    timestamps: Longs
    ledgers: Longs
    entries: Longs

    @classmethod
    def empty(cls) -> Indexes:
        """No message."""
        none = np.empty(0, np.int64)
        return cls(none, none, none)

    @classmethod
    def of(cls, triples: Iterable[tuple[int, int, int]]) -> Indexes:
        """From (timestamp, ledger, entry)."""
        columns = np.array(list(triples), np.int64).reshape(-1, 3).T
        return cls(*(np.ascontiguousarray(column) for column in columns))

    @classmethod
    def concatenate(cls, parts: Sequence[Indexes]) -> Indexes:
        """The parts put one after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([np.empty(0, np.int64), *(part.timestamps for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.ledgers for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.entries for part in parts)]),
        )

    def __len__(self) -> int:
        return len(self.timestamps)

    def __getitem__(self, which: slice | NDArray[Any]) -> Indexes:
        return Indexes(self.timestamps[which], self.ledgers[which], self.entries[which])

    def equals(self, other: Indexes) -> bool:
        """Whether both hold the same messages in the same order."""
        return (
            np.array_equal(self.timestamps, other.timestamps)
            and np.array_equal(self.ledgers, other.ledgers)
            and np.array_equal(self.entries, other.entries)
        )

    def copy(self) -> Indexes:
        """In arrays of its own: a slice keeps all that it was cut from in memory."""
        return Indexes(self.timestamps.copy(), self.ledgers.copy(), self.entries.copy())

    def last_due(self) -> tuple[int, int, int]:
        """The last by (timestamp, ledger, entry), of at least one."""
        last = self if self.is_sorted() else self.sorted()
        return int(last.timestamps[-1]), int(last.ledgers[-1]), int(last.entries[-1])

    def triples(self) -> list[tuple[int, int, int]]:
        """As (timestamp, ledger, entry): for a few."""
        return list(zip(self.timestamps.tolist(), self.ledgers.tolist(), self.entries.tolist(), strict=True))

    def is_sorted(self) -> bool:
        """Whether (timestamp, ledger, entry) never falls."""
        return ascends(self.timestamps, self.ledgers, self.entries)

    def sorted(self) -> Indexes:
        """By (timestamp, ledger, entry), as a snapshot holds them."""
        order = self._log_order()
        log = self if order is None else self[order]
        return log[time_order(log.timestamps)]

    def in_log_order(self) -> Indexes:
        """By (ledger, entry), as the topic holds them."""
        order = self._log_order()
        return self if order is None else self[order]

    def _log_order(self) -> NDArray[np.intp] | None:
        """The order by (ledger, entry); None if they are so. Messages alike in both come by timestamp."""
        if ascends(self.ledgers, self.entries):
            return None
        order = time_order(self.timestamps)
        order = order[time_order(self.entries[order])]
        return order[time_order(self.ledgers[order])]


def ascends(*columns: Longs) -> bool:
    """Whether rows never fall, the first column first."""
    before = np.zeros(max(len(columns[0]) - 1, 0), np.bool_)
    for column in reversed(columns):
        falls = column[1:] < column[:-1]
        if len(columns) > 1:
            falls |= (column[1:] == column[:-1]) & before
        before = falls
    return not before.any()


def time_order(values: Longs) -> NDArray[np.intp]:
    """The stable ascending order of one column: 16-bit radix passes over the bits in which its values differ."""
    if len(values) < 2:
        return np.arange(len(values))
    low = values.min()
    offsets = values.view(np.uint64) - low.view(np.uint64)
    span = int(offsets.max())
    order = np.argsort(offsets.astype(np.uint16), kind="stable")
    for shift in range(16, span.bit_length(), 16):
        digits = (offsets >> np.uint64(shift)).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


def decode_segment(data: bytes) -> Indexes:
    """Entry 1..N of a snapshot ledger, without its BookKeeper header, in its stored order; raises CorruptFormat."""
    return decode_segments([data])[0]


def decode_segments(payloads: Sequence[bytes]) -> tuple[Indexes, Longs]:
    """Many entries 1..N; with where each begins and the last ends, so N + 1 bounds. Raises CorruptFormat.

    The error's offset counts from the start of its own entry.
    """
    parts: list[Indexes] = []
    counts: list[Longs] = []
    begin = size = 0
    for end, payload in enumerate([*payloads, b""]):
        if end > begin and (size + len(payload) > _CHUNK or end == len(payloads)):
            decoded, found = _decode_some(payloads[begin:end])
            parts.append(decoded)
            counts.append(found)
            begin, size = end, 0
        size += len(payload)
    bounds = np.zeros(len(payloads) + 1, np.int64)
    if counts:
        np.cumsum(np.concatenate(counts), out=bounds[1:])
    return Indexes.concatenate(parts) if parts else Indexes.empty(), bounds


def encode_segment(indexes: Indexes) -> bytes:
    """Entry 1..N of a snapshot ledger; ids and times of 0 or more."""
    return encode_segments(indexes, np.array([0, len(indexes)]))[0]


def encode_segments(indexes: Indexes, bounds: Longs) -> list[bytes]:
    """An entry for each segment [bounds[i], bounds[i + 1])."""
    if not len(indexes):
        return [b""] * (len(bounds) - 1)
    if min(indexes.timestamps.min(), indexes.ledgers.min(), indexes.entries.min()) < 0:
        raise ValueError("a delayed message before 1970, or with an id below 0")
    encode = _encode_alike if _are_alike(indexes) else _encode_any
    data, offsets = encode(indexes)
    cuts = np.append(offsets, len(data))[bounds].tolist()
    return [data[a:b] for a, b in pairwise(cuts)]


# ------------------------------------------------------------------------------------------------------------ decoding


def _decode_some(payloads: Sequence[bytes]) -> tuple[Indexes, Longs]:
    """About a megabyte of entries, and how many indexes each has."""
    cuts = np.cumsum([0, *map(len, payloads)])
    joined = np.frombuffer(b"".join([*payloads, _SLACK]), np.uint8)
    found = _take_apart_alike(joined, int(cuts[-1]))
    if found is None:
        found = _take_apart(joined, int(cuts[-1]))
    if found is not None:
        starts, indexes = found
        bounds = np.searchsorted(starts, cuts)
        if np.array_equal(np.append(starts, cuts[-1])[bounds], cuts):
            return indexes, np.diff(bounds)
    if len(payloads) > 1:
        alone = [_decode_some([payload]) for payload in payloads]
        return Indexes.concatenate([one for one, _ in alone]), np.concatenate([count for _, count in alone])
    indexes = _decode_as_objects(payloads[0])
    return indexes, np.array([len(indexes)])


def _decode_as_objects(data: bytes) -> Indexes:
    indexes = delayed_bucket.decode_segment(data).indexes
    for number, index in enumerate(indexes):
        if max(index.timestamp, index.ledger_id, index.entry_id) >= 1 << 63:
            raise CorruptFormat(
                delayed_bucket.WHAT_SEGMENT, _nth_index(data, number), "a time, ledger and entry below 2**63"
            )
    return Indexes.of((index.timestamp, index.ledger_id, index.entry_id) for index in indexes)


def _nth_index(data: bytes, number: int) -> int:
    """Offset of an index of a segment that the object codec has read."""
    return [offset for offset, field in _wire.fields(data) if field == 1][number]


def _take_apart_alike(data: NDArray[np.uint8], size: int) -> tuple[NDArray[np.intp], Indexes] | None:
    """Records whose timestamps have 6 bytes and whose ledgers have as many as the first; None if any is another."""
    if size < _TIMESTAMP_WIDTH + 7 or data[0] != _RECORD:
        return None
    ledger_width = int(np.argmax(data[10:15] < 0x80)) + 1
    at_entry = 2 + ledger_width
    """Of the window that begins at the ledger's tag."""
    if ledger_width > 4 or size < 12 + at_entry:
        return None
    seen = data[: size - at_entry - 9] == _RECORD
    seen &= data[2 : size - at_entry - 7] == _TIMESTAMP
    seen &= data[9 : size - at_entry] == _LEDGER
    seen &= data[8 + at_entry : size - 1] == _ENTRY
    starts = np.flatnonzero(seen)
    sizes = data[starts + 1].astype(np.int64)
    ends = starts + 2 + sizes
    if not len(starts) or starts[0] != 0 or ends[-1] != size or not np.array_equal(starts[1:], ends[:-1]):
        return None
    windows = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    times = windows[starts + 3]
    rest = windows[starts + 10]
    entry_widths = sizes - (7 + at_entry)
    if entry_widths.min() < 1 or entry_widths.max() > 7 - ledger_width:
        return None
    ledgers = rest & np.uint64((1 << 8 * ledger_width) - 1)
    entries = (rest >> np.uint64(8 * (ledger_width + 1))) & _MASKS[entry_widths]
    times = times & np.uint64((1 << 48) - 1)
    if (
        ((times & _TOP_BITS) != _CONTINUED[6]).any()
        or ((ledgers & _TOP_BITS) != _CONTINUED[ledger_width]).any()
        or ((entries & _TOP_BITS) != _CONTINUED[entry_widths]).any()
    ):
        return None
    return starts, Indexes(
        joined_varints(times, 6), joined_varints(ledgers, ledger_width), joined_varints(entries, 7 - ledger_width)
    )


_TOP_BITS = np.uint64(0x8080_8080_8080_8080)
_MASKS = np.array([(1 << 8 * width) - 1 for width in range(9)], np.uint64)
_CONTINUED = np.array([0, *(0x8080_8080_8080_8080 & ((1 << 8 * width - 8) - 1) for width in range(1, 9))], np.uint64)
"""The continuation bits of a varint of so many bytes."""


def joined_varints(words: _Words, width: int) -> Longs:
    """Varints of at most ``width`` bytes, little-endian and alone in their words, as numbers."""
    pairs = (words & np.uint64(0x007F_007F_007F_007F)) | ((words >> np.uint64(1)) & np.uint64(0x3F80_3F80_3F80_3F80))
    if width > 2:
        pairs = (pairs & np.uint64(0x3FFF_0000_3FFF)) | ((pairs >> np.uint64(2)) & np.uint64(0x0FFF_C000_0FFF_C000))
    if width > 4:
        pairs = (pairs & np.uint64(0x0FFF_FFFF)) | ((pairs >> np.uint64(4)) & np.uint64(0x00FF_FFFF_F000_0000))
    return pairs.view(np.int64)


def _take_apart(data: NDArray[np.uint8], size: int) -> tuple[NDArray[np.intp], Indexes] | None:
    """Records of any width up to 8 bytes a number; None if one is not in that shape."""
    last = np.flatnonzero(data[:size] < 0x80)  # of a record: tag, size, tag, timestamp, tag, ledger, tag, entry
    if len(last) % 8:
        return None
    tag, length, time_tag, time, ledger_tag, ledger, entry_tag, entry = last.reshape(-1, 8).T
    ends = np.append(0, entry + 1)
    right = (
        np.array_equal(tag, ends[:-1])
        and ends[-1] == size
        and np.array_equal(length, tag + 1)
        and np.array_equal(length + data[length], entry)
        and np.array_equal(time_tag, length + 1)
        and np.array_equal(ledger_tag, time + 1)
        and np.array_equal(entry_tag, ledger + 1)
        and bool((data[tag] == _RECORD).all())
        and bool((data[time_tag] == _TIMESTAMP).all())
        and bool((data[ledger_tag] == _LEDGER).all())
        and bool((data[entry_tag] == _ENTRY).all())
    )
    if not right:
        return None
    windows = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    found: list[Longs] = []
    for before, at in ((time_tag, time), (ledger_tag, ledger), (entry_tag, entry)):
        widths = at - before
        if len(widths) and widths.max() > 8:
            return None
        found.append(joined_varints(windows[before + 1] & _MASKS[widths], 8))
    return np.ascontiguousarray(tag), Indexes(*found)


# ------------------------------------------------------------------------------------------------------------ encoding


def _are_alike(indexes: Indexes) -> bool:
    """Whether each timestamp has 6 bytes, and ledgers and entries are below 2**35."""
    times = indexes.timestamps
    return bool(
        times.min() >= 1 << 35 and times.max() < 1 << 42 and max(indexes.ledgers.max(), indexes.entries.max()) < 1 << 35
    )


def _spread(values: Longs, width: int) -> _Words:
    """Numbers as bytes of 7 bits, little-endian, without continuation bits; at most ``width`` bytes."""
    words = values.view(np.uint64)
    if width > 4:
        words = (words & np.uint64(0x0FFF_FFFF)) | ((words << np.uint64(4)) & np.uint64(0x0FFF_FFFF_0000_0000))
    words = (words & np.uint64(0x3FFF_0000_3FFF)) | ((words << np.uint64(2)) & np.uint64(0x3FFF_0000_3FFF_0000))
    return (words & np.uint64(0x007F_007F_007F_007F)) | ((words << np.uint64(1)) & np.uint64(0x7F00_7F00_7F00_7F00))


def _encode_alike(indexes: Indexes) -> tuple[bytes, Longs]:
    """Three words a record, each laid over what the one before left behind its end; and where each record begins."""
    ledger_widths, of_ledgers = _ledger_words(indexes.ledgers)
    entry_widths = varint_widths(indexes.entries)
    sizes = entry_widths + ledger_widths + (_TIMESTAMP_WIDTH + 3)
    ends = np.cumsum(sizes + 2)
    starts = ends - sizes - 2
    times = _spread(indexes.timestamps, 6) | _CONTINUED[6]
    entries = _spread(indexes.entries, int(entry_widths.max())) | _CONTINUED[entry_widths]
    out = np.empty(int(ends[-1]) + len(_SLACK), np.uint8)
    windows = np.ndarray((len(out) - 7,), "<u8", out, strides=(1,))
    windows[starts + 8] = (times >> np.uint64(40)) | of_ledgers
    windows[ends - entry_widths] = entries
    times <<= np.uint64(24)
    times |= sizes.view(np.uint64) << np.uint64(8)
    times |= np.uint64(_RECORD | _TIMESTAMP << 16)
    windows[starts] = times
    return out[: -len(_SLACK)].tobytes(), starts


def _ledger_words(ledgers: Longs) -> tuple[Longs, _Words]:
    """Of each ledger the bytes of its varint, and the word that has its tag, it, and the entry's tag, from byte 1 on.

    Buckets have few ledgers, close to each other: each is made once. One alone is told once for all rows.
    """
    low, high = int(ledgers.min()), int(ledgers.max())
    few = high - low < len(ledgers)
    values = np.arange(low, high + 1) if few else ledgers
    widths = varint_widths(values)
    words = (_spread(values, 5) | _CONTINUED[widths]) << np.uint64(16) | np.uint64(_LEDGER << 8)
    words |= np.uint64(_ENTRY) << (widths.view(np.uint64) * np.uint64(8) + np.uint64(16))
    if not few or low == high:
        return widths, words
    which = ledgers - low
    return widths[:1] if widths[0] == widths[-1] else widths[which], words[which]


def _encode_any(indexes: Indexes) -> tuple[bytes, Longs]:
    columns = [indexes.timestamps, indexes.ledgers, indexes.entries]
    widths = [varint_widths(column) for column in columns]
    sizes = np.sum(widths, axis=0) + 3
    ends = np.cumsum(sizes + 2)
    starts = ends - sizes - 2
    out = np.empty(int(ends[-1]), np.uint8)
    out[starts] = _RECORD
    out[starts + 1] = sizes
    at = starts + 2
    for tag, column, width in zip((_TIMESTAMP, _LEDGER, _ENTRY), columns, widths, strict=True):
        out[at] = tag
        for byte in range(int(width.max())):
            has = width > byte
            more = np.where(width[has] > byte + 1, 0x80, 0)
            out[at[has] + 1 + byte] = ((column[has] >> (7 * byte)) & 0x7F) | more
        at = at + 1 + width
    return out.tobytes(), starts
