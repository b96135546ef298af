"""One block of the data object of an offloaded ledger: a header, entries, padding.

Belongs here: a block's bytes as its entries, whole or in pieces. Not here: how blocks make an object and how it is
written (:mod:`offload_data`). Upstream: ``BlockAwareSegmentInputStreamImpl`` and ``DataBlockHeaderImpl``,
tiered-storage-jcloud 4.0.7.

magic int32 · headerLen int64 · blockLen int64 · firstEntryId int64 · zeros up to headerLen · {length int32 ·
entryId int64 · payload} repeated · padding, big-endian.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.offload_index import (
    DATA_HEADER_LENGTH,
    ENTRY_HEADER_LENGTH,
    OffloadIndex,
    OffloadIndexEntry,
)

WHAT = "offload data object"
FIRST_ENTRY_AT = 20
"""Where in a block its firstEntryId stands, in bytes."""
FRAME = struct.Struct(">iq")
"""Before each payload: its length and the entry's id (ENTRY_HEADER_SIZE)."""

_MAGIC = 0xFBDBABCB  # DataBlockHeaderImpl.MAGIC_WORD
_HEADER = struct.Struct(">Iqqq")
_ZEROS = bytes(DATA_HEADER_LENGTH - _HEADER.size)
_HEADER_LENGTH_AT, _BLOCK_LENGTH_AT = 4, 12
_PADDING = bytes.fromhex("FEDCDEAD")  # BLOCK_END_PADDING; its first byte makes any length read from it negative
_OVERHEAD = DATA_HEADER_LENGTH + ENTRY_HEADER_LENGTH


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """A block taken apart. ``offset`` (of its header, in the object) and ``length`` are in bytes."""

    first_entry_id: int
    offset: int
    length: int
    payloads: tuple[bytes, ...]

    @property
    def last_entry_id(self) -> int:
        """The last entry of the block."""
        return self.first_entry_id + len(self.payloads) - 1

    @property
    def payload_length(self) -> int:
        """Bytes of all payloads."""
        return sum(map(len, self.payloads))

    @property
    def padding(self) -> int:
        """Bytes after the last entry."""
        return self.length - DATA_HEADER_LENGTH - ENTRY_HEADER_LENGTH * len(self.payloads) - self.payload_length


class BlockReader:
    """Reads one block of a data object in pieces, from its header on or from an entry whose place is known."""

    def __init__(self, index: OffloadIndex, block: OffloadIndexEntry, entry_id: int | None = None, at: int = 0) -> None:
        """``at``: where in the object (bytes) the frame of ``entry_id`` begins, if that is not None."""
        self._index = index
        self._block = block
        self._end = index.end_of(block)
        self._last = index.last_entry_of(block)
        self._in_header = entry_id is None
        self._rest: bytes = b""
        self.next_entry_id = block.first_entry_id if entry_id is None else entry_id
        self.at: int = block.offset if entry_id is None else at

    @property
    def next_range(self) -> range | None:
        """Bytes of the object that :meth:`feed` has not seen, to the end of the block; None when it saw them all."""
        begin = self.at + len(self._rest)
        return range(begin, self._end) if begin < self._end else None

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Take bytes from the start of :attr:`next_range`; returns the payloads from :attr:`next_entry_id` on.

        The entries that became whole, that is; none may have. Raises CorruptFormat for what is not the block of the
        index, up to its last byte of padding.
        """
        view = memoryview(data)
        if not self._rest:
            return self._take(view)
        missing = self._missing
        if not 0 < missing < len(view):
            return self._take(memoryview(self._rest + data))
        # Only what was cut through is put together; the rest is not copied.
        payloads = self._take(memoryview(self._rest + view[:missing]))
        return payloads + self.feed(view[missing:])

    @property
    def _missing(self) -> int:
        """Bytes that make what is left over a whole header or entry, or show how long that is; 0: it is padding."""
        left = len(self._rest)
        if self._in_header:
            return DATA_HEADER_LENGTH - left
        if self.next_entry_id > self._last:
            return 0
        if left < ENTRY_HEADER_LENGTH:
            return ENTRY_HEADER_LENGTH - left
        return ENTRY_HEADER_LENGTH + FRAME.unpack_from(self._rest)[0] - left

    def _take(self, view: memoryview) -> list[bytes]:
        begin = 0
        if self._in_header:
            if len(view) < DATA_HEADER_LENGTH:
                self._rest = bytes(view)
                return []
            _check_header(self._index, self._block, *_header(view, self._block.offset, self._end - self._block.offset))
            self._in_header, begin = False, DATA_HEADER_LENGTH
        payloads: list[bytes] = []
        offset = self.at
        if self.next_entry_id <= self._last:
            payloads, begin = _entries(view, begin, self.next_entry_id, offset, self._end)
            self.next_entry_id += len(payloads)
        self.at = offset + begin
        whole = offset + len(view) == self._end
        if self.next_entry_id > self._last or whole:
            _check_last(self._index, self._block, self.next_entry_id - 1)
        elif len(view) - begin >= ENTRY_HEADER_LENGTH and FRAME.unpack_from(view, begin)[0] < 0:
            raise CorruptFormat(WHAT, self.at, f"entry {self.next_entry_id}, found padding")
        if whole:
            _check_padding(view[begin:], self.at)
        self._rest = bytes(view[begin:])
        return payloads


def read_block(data: bytes | bytearray | memoryview, offset: int = 0) -> ReadBlock:
    """The block that ``data`` begins with; ``offset`` is where that is in the object. More bytes may follow it.

    Raises CorruptFormat for anything that no writer leaves: entries with holes, none at all, padding that is none.
    """
    view = memoryview(data)
    length, first_entry_id = _header(view, offset, len(view))
    payloads, end = _entries(view[:length], DATA_HEADER_LENGTH, first_entry_id, offset, offset + length)
    if not payloads:
        raise CorruptFormat(WHAT, offset + end, f"entry {first_entry_id}")
    _check_padding(view[end:length], offset + end)
    return ReadBlock(first_entry_id, offset, length, tuple(payloads))


def block_length(data: bytes | memoryview, offset: int, longest: int) -> int:
    """Bytes of the block whose header ``data`` begins with, at ``offset`` of an object that has ``longest`` more.

    Raises CorruptFormat for what is no header.
    """
    return _header(memoryview(data), offset, longest)[0]


def header(length: int, first_entry_id: int) -> bytes:
    """What a block of ``length`` bytes begins with."""
    return _HEADER.pack(_MAGIC, DATA_HEADER_LENGTH, length, first_entry_id) + _ZEROS


def padding(length: int) -> bytes:
    """So many bytes of the padding of a block, which is cut where the block ends (BLOCK_END_PADDING)."""
    return (_PADDING * (length // len(_PADDING) + 1))[:length]


def _header(view: memoryview, offset: int, longest: int) -> tuple[int, int]:
    """Length and first entry of the block that begins here."""
    if len(view) < DATA_HEADER_LENGTH:
        raise CorruptFormat(WHAT, offset + len(view), f"a block header of {DATA_HEADER_LENGTH} bytes")
    magic, header_length, length, first_entry_id = _HEADER.unpack_from(view)
    if magic != _MAGIC:
        raise CorruptFormat(WHAT, offset, f"the magic {_MAGIC:#x}, found {magic:#x}")
    if header_length != DATA_HEADER_LENGTH:
        raise CorruptFormat(WHAT, offset + _HEADER_LENGTH_AT, f"headerLen {DATA_HEADER_LENGTH}, found {header_length}")
    if not _OVERHEAD <= length <= longest:
        raise CorruptFormat(WHAT, offset + _BLOCK_LENGTH_AT, f"a blockLen of {_OVERHEAD}..{longest}, found {length}")
    if first_entry_id < 0:
        raise CorruptFormat(WHAT, offset + FIRST_ENTRY_AT, f"an entry id, found {first_entry_id}")
    if bytes(view[_HEADER.size : DATA_HEADER_LENGTH]) != _ZEROS:
        raise CorruptFormat(WHAT, offset + _HEADER.size, "zeros to the end of the header")
    return length, first_entry_id


def _entries(data: memoryview, at: int, entry_id: int, offset: int, block_end: int) -> tuple[list[bytes], int]:
    """The payloads that are whole in ``data``, from the frame at ``at`` on, and where in it they end.

    ``data`` is at ``offset`` of the object, its block goes to ``block_end``. The payloads are copies: the garbage
    collector goes through views, again and again, and takes longer than copying.
    """
    payloads: list[bytes] = []
    unpack = FRAME.unpack_from
    length = len(data)
    begin = at + ENTRY_HEADER_LENGTH
    while begin <= length:  # fewer bytes than that can only be padding, or more is to come
        size, found = unpack(data, at)
        if size < 0:
            break
        if found != entry_id:
            raise CorruptFormat(WHAT, offset + at, f"entry {entry_id}, found {found}")
        end = begin + size
        if end > length:
            if offset + end > block_end:
                left = block_end - offset - begin
                raise CorruptFormat(WHAT, offset + at, f"at most {left} bytes of entry {entry_id}, found {size}")
            break
        payloads.append(data[begin:end].tobytes())
        entry_id += 1
        at = end
        begin = at + ENTRY_HEADER_LENGTH
    return payloads, at


def _check_header(index: OffloadIndex, block: OffloadIndexEntry, length: int, first_entry_id: int) -> None:
    """Whether a block's header says what its index says."""
    expected = index.end_of(block) - block.offset
    if length != expected:
        raise CorruptFormat(WHAT, block.offset + _BLOCK_LENGTH_AT, f"blockLen {expected}, found {length}")
    if first_entry_id != block.first_entry_id:
        expected = f"firstEntryId {block.first_entry_id}, found {first_entry_id}"
        raise CorruptFormat(WHAT, block.offset + FIRST_ENTRY_AT, expected)


def _check_last(index: OffloadIndex, block: OffloadIndexEntry, found: int) -> None:
    last = index.last_entry_of(block)
    if found != last:
        raise CorruptFormat(WHAT, index.end_of(block), f"a block up to entry {last}, found {found}")


def _check_padding(rest: memoryview, offset: int) -> None:
    expected = padding(len(rest))
    if bytes(rest) != expected:
        wrong = next(i for i, (found, byte) in enumerate(zip(rest, expected, strict=True)) if found != byte)
        raise CorruptFormat(WHAT, offset + wrong, f"padding {_PADDING.hex()} up to {offset + len(rest)}")
