"""The index object of an offloaded ledger: where the blocks of its data object begin, and the ledger's metadata.

Belongs here: these bytes as a value and back. Not here: the data object (:mod:`offload_data`), keys and user metadata
(:mod:`offload_object`). Upstream: ``OffloadIndexBlockImpl``, tiered-storage-jcloud 4.0.7.

magic int32 · indexBlockLength int32 · dataObjectLength int64 · dataHeaderLength int64 · indexEntryCount int32 ·
segmentMetadataLength int32 · LedgerMetadataFormat · {firstEntryId int64 · partId int32 · blockOffset int64}
repeated, big-endian.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from pulsar_lifecycle.errors import CorruptFormat, UnsupportedFormat
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState

WHAT = "offload index"
DATA_HEADER_LENGTH = 128
"""Bytes of the header of each block of the data object (DataBlockHeaderImpl.HEADER_MAX_SIZE)."""
ENTRY_HEADER_LENGTH = 12
"""Bytes before each payload in the data object (BlockAwareSegmentInputStreamImpl.ENTRY_HEADER_SIZE)."""

_MAGIC = 0xDE47DE47  # INDEX_MAGIC_WORD
_STREAMING_MAGIC = 0x3D1FB0BC  # OffloadIndexBlockV2Impl.INDEX_MAGIC_WORD
_HEADER = struct.Struct(">Iiqqii")
_ENTRY = struct.Struct(">qiq")
_MAGIC_SIZE = 4
_LENGTH_AT, _DATA_LENGTH_AT, _DATA_HEADER_AT, _COUNT_AT, _METADATA_LENGTH_AT = 4, 8, 16, 24, 28


@dataclass(frozen=True, slots=True)
class OffloadIndexEntry:
    """OffloadIndexEntry: a block. ``part_id`` counts from 1, ``offset`` (bytes) is that of the block's header."""

    first_entry_id: int
    part_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class OffloadIndex:
    """An offloaded ledger: its metadata without password, its blocks in order, the data object's length in bytes."""

    ledger: LedgerMetadata
    blocks: tuple[OffloadIndexEntry, ...]
    data_object_length: int

    def block_of(self, entry_id: int) -> OffloadIndexEntry:
        """The block that holds an entry; raises ValueError for one that the ledger does not have."""
        if not 0 <= entry_id <= self.ledger.last_entry_id:
            raise ValueError(f"entry {entry_id} is not among 0..{self.ledger.last_entry_id}")
        return self.blocks[bisect_right(self.blocks, entry_id, key=lambda block: block.first_entry_id) - 1]

    def end_of(self, block: OffloadIndexEntry) -> int:
        """Where a block ends in the data object: the offset after its last byte."""
        return self.blocks[block.part_id].offset if block.part_id < len(self.blocks) else self.data_object_length

    def last_entry_of(self, block: OffloadIndexEntry) -> int:
        """The last entry of a block."""
        following = self.blocks[block.part_id : block.part_id + 1]
        return following[0].first_entry_id - 1 if following else self.ledger.last_entry_id


def of_ledger(metadata: LedgerMetadata, blocks: Iterable[OffloadIndexEntry], data_object_length: int) -> OffloadIndex:
    """The index of a ledger's data object; what an index does not carry of the metadata is left out.

    ``metadata.ctime`` (ms) is what brokers will show as the ledger's: give the z-node's if the metadata has none.
    """
    return OffloadIndex(ledger_metadata.carried(metadata), tuple(blocks), data_object_length)


def decode(data: bytes) -> OffloadIndex:
    """The index object's bytes.

    Raises CorruptFormat, also for numbers that contradict each other; UnsupportedFormat for the streaming offload's.
    """
    data = bytes(data)
    magic = int.from_bytes(data[:_MAGIC_SIZE])
    if magic == _STREAMING_MAGIC:
        raise UnsupportedFormat(WHAT, 0, "the index of a ledger offload; this is one of a streaming offload (V2)")
    if len(data) >= _MAGIC_SIZE and magic != _MAGIC:
        raise CorruptFormat(WHAT, 0, f"the magic {_MAGIC:#x}, found {magic:#x}")
    if len(data) < _HEADER.size:
        raise CorruptFormat(WHAT, len(data), f"a header of {_HEADER.size} bytes")
    _, length, data_length, header_length, count, metadata_length = _HEADER.unpack_from(data)
    if header_length != DATA_HEADER_LENGTH:
        raise CorruptFormat(WHAT, _DATA_HEADER_AT, f"dataHeaderLength {DATA_HEADER_LENGTH}, found {header_length}")
    if count < 1:
        raise CorruptFormat(WHAT, _COUNT_AT, f"an indexEntryCount of at least 1, found {count}")
    if metadata_length < 0:
        raise CorruptFormat(WHAT, _METADATA_LENGTH_AT, f"a segmentMetadataLength, found {metadata_length}")
    entries_at = _HEADER.size + metadata_length
    end = entries_at + _ENTRY.size * count
    if end != len(data):
        raise CorruptFormat(WHAT, _COUNT_AT, f"counts that make {len(data)} bytes, found {end} bytes' worth")
    if length != end:
        raise CorruptFormat(WHAT, _LENGTH_AT, f"indexBlockLength {end}, found {length}")
    ledger = ledger_metadata.decode_carried(data[_HEADER.size : entries_at], WHAT, _HEADER.size)
    if ledger.state is not LedgerState.CLOSED or ledger.last_entry_id < 0 or ledger.length < 1:
        raise CorruptFormat(WHAT, _HEADER.size, "the metadata of a closed ledger with entries")
    index = OffloadIndex(
        ledger, tuple(OffloadIndexEntry(*e) for e in _ENTRY.iter_unpack(data[entries_at:])), data_length
    )
    _check_blocks(index, entries_at)
    return index


def segment_metadata(data: bytes) -> bytes:
    """The LedgerMetadataFormat message inside an index object that :func:`decode` reads, not looked into."""
    (length,) = struct.unpack_from(">i", data, _METADATA_LENGTH_AT)
    return data[_HEADER.size : _HEADER.size + length]


def encode(index: OffloadIndex) -> bytes:
    """The index object's bytes; raises CorruptFormat for a value that :func:`decode` would refuse."""
    metadata = ledger_metadata.encode_carried(index.ledger)
    length = _HEADER.size + len(metadata) + _ENTRY.size * len(index.blocks)
    header = _HEADER.pack(
        _MAGIC, length, index.data_object_length, DATA_HEADER_LENGTH, len(index.blocks), len(metadata)
    )
    entries = (_ENTRY.pack(block.first_entry_id, block.part_id, block.offset) for block in index.blocks)
    data = b"".join((header, metadata, *entries))
    decode(data)
    return data


def _check_blocks(index: OffloadIndex, entries_at: int) -> None:
    """Blocks follow each other from entry 0 at offset 0, and each has room for the entries that it must hold."""
    first, offset = 0, 0
    for number, block in enumerate(index.blocks, 1):
        at = entries_at + _ENTRY.size * (number - 1)
        if block.part_id != number:
            raise CorruptFormat(WHAT, at, f"part id {number}, found {block.part_id}")
        if number == 1 and (block.first_entry_id, block.offset) != (0, 0):
            raise CorruptFormat(WHAT, at, f"entry 0 at offset 0, found {block.first_entry_id} at {block.offset}")
        if block.first_entry_id < first or block.first_entry_id > index.ledger.last_entry_id:
            span = f"{first}..{index.ledger.last_entry_id}"
            raise CorruptFormat(WHAT, at, f"a first entry among {span}, found {block.first_entry_id}")
        if block.offset < offset:
            raise CorruptFormat(WHAT, at, f"a block at {offset} or later, found {block.offset}")
        count = index.last_entry_of(block) - block.first_entry_id + 1
        first = block.first_entry_id + 1
        offset = block.offset + DATA_HEADER_LENGTH + ENTRY_HEADER_LENGTH * max(count, 1)
    entries = index.ledger.last_entry_id + 1
    least = len(index.blocks) * DATA_HEADER_LENGTH + entries * ENTRY_HEADER_LENGTH + index.ledger.length
    if max(least, offset) > index.data_object_length:
        expected = f"a dataObjectLength of at least {max(least, offset)}, found {index.data_object_length}"
        raise CorruptFormat(WHAT, _DATA_LENGTH_AT, expected)
