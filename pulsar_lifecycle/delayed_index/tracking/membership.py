"""Which messages an index has: entry ids by topic ledger.

Belongs here: a set of positions, a bitmap a ledger, for single messages and for arrays of them. Not here: due times.
Upstream: ``Bucket.delayedIndexBitMap``, pulsar-broker 4.0.7.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from pulsar_lifecycle.formats.delayed_indexes import Longs, ascends, time_order
from pulsar_lifecycle.formats.delayed_metadata import bitmap_of

Mask = NDArray[np.bool_]

_FEW = 16
"""So many messages are looked up one by one."""
_SPARSE = 64
"""Flags are set up for a range of entries if it is no more than so many times the messages looked up."""


class EntrySet:
    """Messages by (ledger, entry); entry ids are below 2**32. Array arguments are of one length."""

    __slots__ = ("bitmaps",)

    def __init__(self, bitmaps: Mapping[int, BitMap] | None = None) -> None:
        """Takes the bitmaps over."""
        self.bitmaps: dict[int, BitMap] = {ledger: one for ledger, one in (bitmaps or {}).items() if one}
        """By ledger, none of them empty; not to be changed from outside."""

    def __len__(self) -> int:
        return sum(map(len, self.bitmaps.values()))

    def __contains__(self, position: tuple[int, int]) -> bool:
        ledger, entry = position
        bitmap = self.bitmaps.get(ledger)
        return bitmap is not None and entry in bitmap

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EntrySet) and self.bitmaps == other.bitmaps

    __hash__ = None

    @property
    def nbytes(self) -> int:
        """About what the bitmaps take in memory, as they would be serialized."""
        return sum(len(bitmap.serialize()) for bitmap in self.bitmaps.values())

    def add_one(self, ledger: int, entry: int) -> None:
        """One message."""
        bitmap = self.bitmaps.get(ledger)
        if bitmap is None:
            bitmap = self.bitmaps[ledger] = BitMap()
        bitmap.add(entry)

    def add(self, ledgers: Longs, entries: Longs) -> None:
        """Many messages."""
        for ledger, which in by_ledger(ledgers):
            self._join(ledger, bitmap_of(entries[which]))

    def update(self, other: EntrySet) -> None:
        """All messages of another set, which is not to be used any more."""
        for ledger, bitmap in other.bitmaps.items():
            self._join(ledger, bitmap)

    def discard(self, ledgers: Longs, entries: Longs) -> Mask:
        """Take out what is there of these messages; returns which were. No message may come twice."""
        found = self.contains(ledgers, entries)
        if found.any():
            for ledger, which in by_ledger(ledgers[found]):
                self._part(ledger, bitmap_of(entries[found][which]))
        return found

    def difference_update(self, other: EntrySet) -> None:
        """Take out all messages of another set."""
        for ledger, bitmap in other.bitmaps.items():
            self._part(ledger, bitmap)

    def discard_until(self, ledger: int, entry: int) -> None:
        """Take out all messages up to this one, inclusive."""
        for one in [one for one in self.bitmaps if one <= ledger]:
            if one < ledger or self.bitmaps[one].max() <= entry:
                del self.bitmaps[one]
            else:
                self.bitmaps[one].remove_range(0, entry + 1)

    def pop_first(self, limit: int) -> EntrySet:
        """Take out at most ``limit`` messages, the first by (ledger, entry)."""
        found: dict[int, BitMap] = {}
        for ledger in sorted(self.bitmaps):
            if limit <= 0:
                break
            bitmap = self.bitmaps[ledger]
            found[ledger] = bitmap if len(bitmap) <= limit else bitmap[:limit]
            limit -= len(found[ledger])
            if found[ledger] is bitmap:
                del self.bitmaps[ledger]
            else:
                bitmap -= found[ledger]
        return EntrySet(found)

    def columns(self) -> tuple[Longs, Longs]:
        """Ledgers and entries, by (ledger, entry)."""
        ledgers = sorted(self.bitmaps)
        counts = [len(self.bitmaps[ledger]) for ledger in ledgers]
        entries = [np.frombuffer(self.bitmaps[ledger].to_array(), np.uint32) for ledger in ledgers]
        none = np.empty(0, np.uint32)
        return np.repeat(np.array(ledgers, np.int64), counts), np.concatenate([none, *entries]).astype(np.int64)

    def contains(self, ledgers: Longs, entries: Longs) -> Mask:
        """Which of these messages are there."""
        if len(ledgers) <= _FEW:
            pairs = zip(ledgers.tolist(), entries.tolist(), strict=True)
            return np.fromiter((pair in self for pair in pairs), np.bool_, len(ledgers))
        found = np.zeros(len(ledgers), np.bool_)
        if self.bitmaps:
            for ledger, which in by_ledger(ledgers):
                bitmap = self.bitmaps.get(ledger)
                if bitmap is not None:
                    found[which] = _found(bitmap, entries[which])
        return found

    def _join(self, ledger: int, bitmap: BitMap) -> None:
        known = self.bitmaps.get(ledger)
        if known is None:
            self.bitmaps[ledger] = bitmap
        else:
            known |= bitmap

    def _part(self, ledger: int, bitmap: BitMap) -> None:
        known = self.bitmaps.get(ledger)
        if known is not None:
            known -= bitmap
            if not known:
                del self.bitmaps[ledger]


def by_ledger(ledgers: Longs) -> Iterator[tuple[int, slice | NDArray[np.intp]]]:
    """Each ledger once, and where it is."""
    if not len(ledgers):
        return
    order = None if ascends(ledgers) else time_order(ledgers)
    rows = ledgers if order is None else ledgers[order]
    cuts = [0, *(np.flatnonzero(np.diff(rows)) + 1).tolist(), len(rows)]
    for begin, end in pairwise(cuts):
        yield int(rows[begin]), slice(begin, end) if order is None else order[begin:end]


def _found(bitmap: BitMap, entries: Longs) -> Mask:
    if len(entries) <= _FEW:
        return np.fromiter((entry in bitmap for entry in entries.tolist()), np.bool_, len(entries))
    if len(entries) * _SPARSE < len(bitmap):
        asked = BitMap(array("I", entries.astype(np.uint32).tobytes()))
        values = np.frombuffer((bitmap & asked).to_array(), np.uint32)
        return _among(entries, values)
    low, high = int(entries.min()), int(entries.max())
    values = np.frombuffer(bitmap.to_array(), np.uint32)
    values = values[np.searchsorted(values, np.uint32(low)) : np.searchsorted(values, np.uint32(high), "right")]
    if high - low > _SPARSE * len(entries):
        return _among(entries, values)
    flags = np.zeros(high - low + 1, np.bool_)
    flags[values - np.uint32(low)] = True
    return flags[entries - low]


def _among(entries: Longs, values: NDArray[np.uint32]) -> Mask:
    """Which entries are among ascending values."""
    if not len(values):
        return np.zeros(len(entries), np.bool_)
    sought = entries.astype(np.uint32)
    return values[np.minimum(np.searchsorted(values, sought), len(values) - 1)] == sought
