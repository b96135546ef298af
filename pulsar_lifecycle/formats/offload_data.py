"""The data object of an offloaded ledger: all its entries, in blocks.

Belongs here: entries to blocks and back, in bulk, and the proof that all of a ledger's entries went through. Not here:
the bytes of one block (:mod:`offload_block`), the index (:mod:`offload_index`), keys and user metadata
(:mod:`offload_object`), reading and uploading. Upstream: ``BlockAwareSegmentInputStreamImpl``,
tiered-storage-jcloud 4.0.7.

Blocks follow each other without a gap. Entries do not span blocks; a block is one part of the upload.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError
from pulsar_lifecycle.formats import crc32c, offload_block, offload_index
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.offload_block import FIRST_ENTRY_AT, FRAME, WHAT, BlockReader, ReadBlock, read_block
from pulsar_lifecycle.formats.offload_index import (
    DATA_HEADER_LENGTH,
    ENTRY_HEADER_LENGTH,
    OffloadIndex,
    OffloadIndexEntry,
)

MIN_BLOCK_SIZE = 5 << 20
"""The smallest block size in bytes that may be configured: S3's for any part but the last."""
DEFAULT_BLOCK_SIZE = 64 << 20
"""What brokers use with S3 (managedLedgerOffloadMaxBlockSizeInBytes)."""

_OVERHEAD = DATA_HEADER_LENGTH + ENTRY_HEADER_LENGTH
_MAX_INT = (1 << 31) - 1


class NotOffloadable(LifecycleError):
    """A ledger that is not closed, or has no bytes: brokers offload none of these either."""


class EntryTooLong(LifecycleError):
    """An entry that fits no block."""


@dataclass(frozen=True, slots=True)
class Block:
    """A finished block: ``data`` is what part ``position.part_id`` of the upload consists of."""

    position: OffloadIndexEntry
    last_entry_id: int
    data: bytearray


@dataclass(frozen=True, slots=True)
class DataObject:
    """A data object of which every block was built.

    ``checksums``: CRC32C of each entry's payload, by entry id. ``block_checksums``: CRC32C of each block, made of
    those, not of the block's bytes, so that bytes which agree with it have every entry in its place.
    """

    index: OffloadIndex
    checksums: array[int]
    block_checksums: array[int]


def block_length(max_block_size: int, first_entry_id: int, last_entry_id: int, length: int, written: int) -> int:
    """Bytes of the block that begins with ``first_entry_id`` (calculateBlockSize).

    ``length`` and ``last_entry_id`` are the ledger's, ``written`` the bytes of all payloads before this block.
    """
    rest = ENTRY_HEADER_LENGTH * (last_entry_id - first_entry_id + 1) + length - written
    return min(max_block_size, DATA_HEADER_LENGTH + rest)


def max_entry_length(max_block_size: int) -> int:
    """The longest payload, in bytes, that a block has room for."""
    return max_block_size - _OVERHEAD


def every_entry_fits(metadata: LedgerMetadata, max_block_size: int) -> bool | None:
    """Whether each entry of a closed ledger fits a block; None: its metadata cannot tell, only the sizes can.

    The broker's offloader ends the object before an entry that does not fit and reports success.
    """
    longest = max_entry_length(max_block_size)
    if metadata.length <= longest:
        return True
    return False if metadata.length > longest * (metadata.last_entry_id + 1) else None


class DataObjectBuilder:
    """Blocks of a closed ledger's data object, out of its entries fed in order. Not for reuse after an error."""

    def __init__(self, metadata: LedgerMetadata, max_block_size: int = DEFAULT_BLOCK_SIZE) -> None:
        """``metadata``: see :func:`offload_index.of_ledger` for its ctime.

        Raises NotOffloadable.
        """
        if metadata.state is not LedgerState.CLOSED or metadata.last_entry_id < 0 or metadata.length < 1:
            raise NotOffloadable("only a closed ledger with at least one byte is offloaded")
        if not _OVERHEAD < max_block_size <= _MAX_INT:
            raise ValueError(f"a block size of {_OVERHEAD + 1}..{_MAX_INT} bytes, found {max_block_size}")
        self._metadata = metadata
        self._max_block_size = max_block_size
        self._checksums: array[int] = array("I")
        self._written = 0
        self._positions: list[OffloadIndexEntry] = []
        self._block = bytearray()
        self._block_checksum = 0
        self._block_checksums: array[int] = array("I")
        self._length = 0
        self._object_length = 0

    @property
    def next_entry_id(self) -> int:
        """The entry to feed next; one more than the ledger's last when it has all."""
        return len(self._checksums)

    def feed(self, first_entry_id: int, payloads: Sequence[bytes | memoryview]) -> list[Block]:
        """Take consecutive entries' payloads (without BookKeeper's header); returns the blocks that got complete.

        Raises, having taken nothing: EntryTooLong; CorruptFormat if these are not the next entries of the ledger, or
        are longer in all than its length, or end it shorter.
        """
        count = len(payloads)
        if not count:
            return []
        ends = list(accumulate(map(len, payloads), initial=0))
        self._check(first_entry_id, count, ends)
        # Two list items per entry, made by C loops alone: this is what every entry of every ledger goes through.
        parts: list[bytes | memoryview] = [b""] * (2 * count)
        sizes = map(len, payloads)
        parts[::2] = map(FRAME.pack, sizes, range(first_entry_id, first_entry_id + count))
        parts[1::2] = payloads
        part_checksums, part_lengths = crc32c.checksums(parts), array("I", map(len, parts))
        self._checksums += part_checksums[1::2]
        framed = [end + ENTRY_HEADER_LENGTH * number for number, end in enumerate(ends)]
        finished: list[Block] = []
        at = 0
        while at < count:
            if not self._block:
                self._begin(first_entry_id + at)
            fit = bisect_right(framed, framed[at] + self._length - len(self._block), at) - 1
            added = slice(2 * at, 2 * fit)
            self._block += b"".join(parts[added])
            self._block_checksum = crc32c.combined(self._block_checksum, part_checksums[added], part_lengths[added])
            self._written += ends[fit] - ends[at]
            at = fit
            if at < count:
                finished.append(self._finished(first_entry_id + at - 1))
        if self.next_entry_id > self._metadata.last_entry_id:
            finished.append(self._finished(self._metadata.last_entry_id))
        return finished

    def finish(self) -> DataObject:
        """The whole object, once every entry was fed; raises CorruptFormat before that."""
        if self.next_entry_id <= self._metadata.last_entry_id:
            last = self._metadata.last_entry_id
            raise CorruptFormat(WHAT, self._at, f"entries {self.next_entry_id}..{last}, found no more")
        return DataObject(
            offload_index.of_ledger(self._metadata, self._positions, self._object_length),
            self._checksums,
            self._block_checksums,
        )

    # -------------------------------------------------------------------------------------------------------- private

    @property
    def _at(self) -> int:
        return self._object_length + len(self._block)

    def _check(self, first_entry_id: int, count: int, ends: Sequence[int]) -> None:
        last, length = self._metadata.last_entry_id, self._metadata.length
        if first_entry_id != self.next_entry_id:
            raise CorruptFormat(WHAT, self._at, f"entry {self.next_entry_id}, found {first_entry_id}")
        if first_entry_id + count - 1 > last:
            raise CorruptFormat(WHAT, self._at, f"no entry after {last}, found {first_entry_id + count - 1}")
        found = self._written + ends[-1]
        if found > length or (first_entry_id + count > last and found < length):
            raise CorruptFormat(
                WHAT, self._at, f"{length} bytes in entries 0..{last}, found {found} in 0..{first_entry_id + count - 1}"
            )
        longest = max_entry_length(self._max_block_size)
        if ends[-1] <= longest:
            return
        for entry_id, (begin, end) in enumerate(pairwise(ends), first_entry_id):
            if end - begin > longest:
                raise EntryTooLong(
                    f"entry {entry_id} has {end - begin} bytes, but a block of {self._max_block_size} has room for"
                    f" {longest}"
                )

    def _begin(self, entry_id: int) -> None:
        self._length = block_length(
            self._max_block_size, entry_id, self._metadata.last_entry_id, self._metadata.length, self._written
        )
        header = offload_block.header(self._length, entry_id)
        self._block += header
        self._block_checksum = crc32c.extend(0, header)
        self._positions.append(OffloadIndexEntry(entry_id, len(self._positions) + 1, self._object_length))

    def _finished(self, last_entry_id: int) -> Block:
        data = self._block
        padding = offload_block.padding(self._length - len(data))
        data += padding
        self._block_checksums.append(crc32c.extend(self._block_checksum, padding))
        self._object_length += len(data)
        self._block = bytearray()
        return Block(self._positions[-1], last_entry_id, data)


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Entries that became whole; ``offset`` (bytes) is where in the object the frame of the first begins."""

    first_entry_id: int
    offset: int
    payloads: list[bytes]


class DataObjectReader:
    """Reads a data object back whole, in the order of its bytes, and says what is in it. Not for reuse after an error.

    ``checksums`` equal to those of :class:`DataObject` prove that every entry arrived as it was read.
    """

    def __init__(self, index: OffloadIndex, object_length: int) -> None:
        """``object_length``: bytes of the object as its store says; CorruptFormat if the index says otherwise."""
        if object_length != index.data_object_length:
            expected = f"{index.data_object_length} bytes in all, found {object_length}"
            raise CorruptFormat(WHAT, min(object_length, index.data_object_length), expected)
        self._index = index
        self._checksums: array[int] = array("I")
        self._read = 0
        self._blocks = iter(index.blocks)
        self._reader = BlockReader(index, next(self._blocks))

    @property
    def checksums(self) -> array[int]:
        """CRC32C of the payload of every entry fed so far, by entry id."""
        return self._checksums

    @property
    def next_range(self) -> range | None:
        """The bytes of the object to feed next, to the end of a block; None when all were."""
        return self._reader.next_range

    def feed(self, data: bytes | memoryview) -> ReadEntries:
        """Take bytes from the start of :attr:`next_range`; raises CorruptFormat for what is not that of the index."""
        wanted = self.next_range or range(self._index.data_object_length, self._index.data_object_length)
        if len(data) > len(wanted):
            raise CorruptFormat(WHAT, wanted.stop, f"the block's end, found {len(data) - len(wanted)} bytes more")
        first = self._reader.next_entry_id
        payloads = self._reader.feed(data)
        length = sum(map(len, payloads))
        found = ReadEntries(first, self._reader.at - length - ENTRY_HEADER_LENGTH * len(payloads), payloads)
        self._checksums.extend(crc32c.checksums(payloads))
        self._read += length
        if self.next_range is None and (block := next(self._blocks, None)) is not None:
            self._reader = BlockReader(self._index, block)
        return found

    def finish(self) -> array[int]:
        """CRC32C of every entry's payload; raises CorruptFormat unless all was fed and has all bytes."""
        missing = self.next_range
        if missing is not None:
            raise CorruptFormat(WHAT, missing.start, f"{len(missing)} bytes more")
        if self._read != self._index.ledger.length:
            expected = f"{self._index.ledger.length} bytes in all entries, found {self._read}"
            raise CorruptFormat(WHAT, self._index.data_object_length, expected)
        return self._checksums


def read_blocks(data: bytes | bytearray | memoryview) -> Iterator[ReadBlock]:
    """The blocks of a whole object, without its index; raises CorruptFormat."""
    view = memoryview(data)
    offset, entry_id = 0, 0
    while offset < len(view) or not offset:
        block = read_block(view[offset:], offset)
        if block.first_entry_id != entry_id:
            expected = f"firstEntryId {entry_id}, found {block.first_entry_id}"
            raise CorruptFormat(WHAT, offset + FIRST_ENTRY_AT, expected)
        yield block
        entry_id = block.last_entry_id + 1
        offset += block.length
