"""Whether two copies of a ledger are the same, every entry of both read: before one of them may be deleted.

Belongs here: reading a copy whole, wherever it is, and comparing it with another one that is read at the same time.
Not here: which copies these are, and the cheap looks that come first (``copies/last_copy.py``).

A sample proves nothing of what it left out, and a head nothing of the bytes. What cannot be read whole, has no end, or
differs anywhere, is no copy; then the one that was about to go stays.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Generator
from dataclasses import dataclass
from typing import cast

from pulsar_lifecycle.copies.offloaded_ledger import STREAM_SIZE, Location, cut, named_in_errors, open_offloaded
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import crc32c, offload_block
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.formats.offload_data import DataObjectReader
from pulsar_lifecycle.formats.offload_index import DATA_HEADER_LENGTH
from pulsar_lifecycle.ports import EntryBatch, LedgerReader, ObjectHead, ObjectStore
from pulsar_lifecycle.throttle import Pace

AHEAD = 2
"""Pieces of ``offloaded_ledger.STREAM_SIZE`` bytes that are being read while another one is compared."""
MAX_BLOCK = 256 << 20
"""Bytes of the largest block that is read at once, where there is no index to read it in pieces by."""

Checksums = Generator[array, None, None]
"""CRC32C of a copy's entries from entry 0 on, some at a time; ends only after the last byte of the copy was proven."""


@dataclass(frozen=True, slots=True)
class Compared:
    """How many entries two copies have the same from entry 0 on, and how they differ behind them; empty: not at all."""

    entries: int
    difference: str


def compare(what: str, some: Checksums, other: str, others: Checksums) -> Compared:
    """Two copies, ``what`` and ``other`` in words, up to their first difference or to the end of both.

    In memory: what both read ahead. Raises what either raises: CorruptFormat, NotFound, Conflict, Unavailable, and what
    their ``pace`` does.
    """
    with contextlib.closing(some), contextlib.closing(others):
        left, right = array("I"), array("I")
        at = 0
        while True:
            left = left or next(some, array("I"))
            right = right or next(others, array("I"))
            count = min(len(left), len(right))
            if not count:
                has, lacks = (what, other) if left else (other, what)
                return Compared(at, f"{has} has entry {at}, {lacks} has not" if left or right else "")
            if left[:count] != right[:count]:
                n = next(n for n in range(count) if left[n] != right[n])
                reason = f"entry {at + n} has CRC32C {left[n]:#010x} in {what}, {right[n]:#010x} in {other}"
                return Compared(at + n, reason)
            left, right = left[count:], right[count:]
            at += count


def read_whole(whole: Checksums) -> int:
    """Read a copy to its end; returns how many entries it has. Raises as :func:`compare`."""
    with contextlib.closing(whole):
        return sum(map(len, whole))


def in_bookkeeper(reader: LedgerReader, ledger_id: int, metadata: LedgerMetadata, pace: Pace) -> Checksums:
    """Every entry of a closed ledger, digests verified; its length must add up."""
    stream = cast(Generator[EntryBatch, None, None], reader.stream(ledger_id, metadata, 0, metadata.last_entry_id))
    with contextlib.closing(stream):
        for batch in stream:
            pace(sum(map(len, batch.payloads)))
            yield crc32c.checksums(batch.payloads)


def in_bucket(objects: ObjectStore, location: Location, pace: Pace) -> Checksums:
    """Every entry of a pair of objects: all bytes of the data object, as its index says they are."""
    ledger = open_offloaded(objects, location)
    back = DataObjectReader(ledger.index, ledger.data_head.size)
    pieces = [piece for block in ledger.index.blocks for piece in cut(ledger.range_of(block), STREAM_SIZE)]
    with contextlib.closing(ledger.fetch(pieces, AHEAD)) as fetched:
        for data in fetched:
            pace(len(data))
            with named_in_errors(ledger.location.data_url):
                some = back.feed(data)
            if some.payloads:
                yield back.checksums[some.first_entry_id :]
    with named_in_errors(ledger.location.data_url):
        back.finish()


def in_data_object(objects: ObjectStore, location: Location, head: ObjectHead, pace: Pace) -> Checksums:
    """Every entry of a data object without an index: block after block, by what they say of themselves."""
    offset = entry_id = 0
    with named_in_errors(location.data_url):
        while offset < head.size:
            begin = objects.get(
                location.bucket, location.data_key, offset, min(DATA_HEADER_LENGTH, head.size - offset), head.etag
            )
            length = offload_block.block_length(begin, offset, head.size - offset)
            if length > MAX_BLOCK:
                raise CorruptFormat(location.data_url, offset, f"a block of at most {MAX_BLOCK} bytes, found {length}")
            pace(length)
            block = offload_block.read_block(
                objects.get(location.bucket, location.data_key, offset, length, head.etag), offset
            )
            if block.first_entry_id != entry_id:
                raise CorruptFormat(location.data_url, offset, f"entry {entry_id}, found {block.first_entry_id}")
            yield crc32c.checksums(block.payloads)
            entry_id = block.last_entry_id + 1
            offset += length
