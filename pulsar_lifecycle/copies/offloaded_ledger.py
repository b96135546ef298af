"""An offloaded ledger in its bucket: the pair of objects, any entry of it, all of its entries in order.

Belongs here: which bytes are asked for, and that they are still those of the object that was opened. Not here: what the
bytes are (``formats/offload_*``), writing them (``tiered/upload.py``), comparing them with the ledger
(``tiered/proof.py``). Upstream: ``BlobStoreBackedReadHandleImpl``, tiered-storage-jcloud 4.0.7; its objects are read as
well as ours.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound, UsageError
from pulsar_lifecycle.formats import crc32c, offload_index, offload_object
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.formats.offload_block import BlockReader
from pulsar_lifecycle.formats.offload_index import OffloadIndex, OffloadIndexEntry
from pulsar_lifecycle.ports import Entry, EntryBatch, ObjectHead, ObjectStore

T = TypeVar("T")

READ_SIZE = 1 << 20
"""Bytes asked for at once by random reads (managedLedgerOffloadReadBufferSizeInBytes)."""
STREAM_SIZE = 8 << 20
"""Bytes asked for at once when entries are read in order."""
MAX_INDEX_SIZE = 64 << 20
"""Bytes of the largest index object that is read; one of 10,000 blocks has about 200 KiB."""
MAX_PLACES = 4096
"""Entries of one ledger whose place in the data object is remembered."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where the two objects of an offload attempt are."""

    bucket: str
    uuid: UUID
    ledger_id: int

    @classmethod
    def of(cls, info: LedgerInfo) -> Location | None:
        """Of a complete offload of a ledger, as its topic lists it; None if it is none, or names no bucket."""
        offload = info.offload
        bucket = offload.driver_metadata.get("bucket") if offload else None
        if offload is None or not offload.complete or offload.uuid is None or not bucket:
            return None
        return cls(bucket, offload.uuid, info.ledger_id)

    @property
    def data_key(self) -> str:
        """Key of the data object."""
        return offload_object.data_key(self.uuid, self.ledger_id)

    @property
    def index_key(self) -> str:
        """Key of the index object."""
        return offload_object.index_key(self.uuid, self.ledger_id)

    @property
    def data_url(self) -> str:
        """The data object, for messages."""
        return f"s3://{self.bucket}/{self.data_key}"

    @property
    def index_url(self) -> str:
        """The index object, for messages."""
        return f"s3://{self.bucket}/{self.index_key}"


@contextmanager
def named_in_errors(what: str) -> Iterator[None]:
    """Let a CorruptFormat say which object it is about."""
    try:
        yield
    except CorruptFormat as error:
        raise type(error)(what, error.offset, error.expected) from error


def open_offloaded(objects: ObjectStore, location: Location) -> OffloadedLedger:
    """Read the heads of both objects and the index.

    Raises NotFound where one of the objects is not there, CorruptFormat (UnsupportedFormat) where one has no format
    version or another one, where the index is none, or where the data object is not as long as it says; Conflict.
    """
    found = objects.head_many(location.bucket, [location.data_key, location.index_key])
    heads: list[ObjectHead] = []
    for head, url in zip(found, (location.data_url, location.index_url), strict=True):
        if isinstance(head, LifecycleError):
            raise head
        if head is None:
            raise NotFound(f"{url}: there is no such object")
        with named_in_errors(url):
            offload_object.check_version(head.metadata)
        heads.append(head)
    data, index = heads
    if index.size > MAX_INDEX_SIZE:
        raise CorruptFormat(location.index_url, MAX_INDEX_SIZE, f"the end of an index, found {index.size} bytes in all")
    with named_in_errors(location.index_url):
        decoded = offload_index.decode(objects.get(location.bucket, location.index_key, if_match=index.etag))
    if data.size != decoded.data_object_length:
        expected = f"{decoded.data_object_length} bytes in all, as its index says, found {data.size}"
        raise CorruptFormat(location.data_url, min(data.size, decoded.data_object_length), expected)
    return OffloadedLedger(objects, location, decoded, data, index)


class OffloadedLedger:
    """Both objects as they were when opened; one thread at a time.

    What reads raises Conflict once the data object is another one, NotFound once it is gone, and CorruptFormat for
    bytes that are not what the index says; entries come without checksums, so payloads are not judged.
    """

    def __init__(
        self,
        objects: ObjectStore,
        location: Location,
        index: OffloadIndex,
        data_head: ObjectHead,
        index_head: ObjectHead,
    ) -> None:
        self.location = location
        self.index = index
        self.data_head = data_head
        self.index_head = index_head
        self._objects = objects
        self._places: list[tuple[int, int]] = []

    def range_of(self, block: OffloadIndexEntry) -> range:
        """The bytes of a block in the data object."""
        return range(block.offset, self.index.end_of(block))

    def fetch(self, ranges: Iterable[range], ahead: int) -> Generator[bytes, None, None]:
        """The bytes of each range of the data object, in order; ``ahead`` ranges are read before they are wanted.

        In memory: those, the one handed out last, and what the adapter needs to put one together.
        """
        return self._of_each(self._get, ranges, ahead)

    def checksums(self, ranges: Iterable[range], ahead: int) -> Generator[int, None, None]:
        """CRC32C of each range, as :meth:`fetch`. In memory: one piece of ``ObjectStore.stream`` for each under way."""
        return self._of_each(self._checksum, ranges, ahead)

    def read(self, first: int, last: int) -> list[Entry]:
        """Entries first..last, both inclusive, by ranges of ``READ_SIZE`` bytes; UsageError for what it has not."""
        return [
            Entry(self.location.ledger_id, entry_id, payload)
            for batch in self._batches(first, last, READ_SIZE, 0)
            for entry_id, payload in enumerate(batch.payloads, batch.first)
        ]

    def stream(self, first: int, last: int, ahead: int = 2) -> Iterator[EntryBatch]:
        """Entries first..last, both inclusive, in order, ``ahead`` ranges of ``STREAM_SIZE`` bytes before the consumer.

        Raises UsageError at once for entries that it does not have. Close it if it is not read to its end.
        """
        self._check(first, last)
        return self._batches(first, last, STREAM_SIZE, ahead)

    # -------------------------------------------------------------------------------------------------------- private

    @staticmethod
    def _of_each(work: Callable[[range], T], ranges: Iterable[range], ahead: int) -> Generator[T, None, None]:
        pending: deque[Future[T]] = deque()
        with ThreadPoolExecutor(max(1, ahead), "offloaded-ledger") as pool:
            try:
                for wanted in ranges:
                    pending.append(pool.submit(work, wanted))
                    if len(pending) > ahead:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()

    def _check(self, first: int, last: int) -> None:
        end = self.index.ledger.last_entry_id
        if not 0 <= first <= last + 1 <= end + 1:
            raise UsageError(f"{self.location.data_url}: it has the entries 0 .. {end}, asked for {first} .. {last}")

    def _get(self, wanted: range) -> bytes:
        location = self.location
        data = self._objects.get(
            location.bucket, location.data_key, wanted.start, len(wanted), if_match=self.data_head.etag
        )
        self._has_all(wanted, len(data))
        return data

    def _checksum(self, wanted: range) -> int:
        location, checksum, size = self.location, 0, 0
        stream = self._objects.stream(
            location.bucket, location.data_key, wanted.start, len(wanted), if_match=self.data_head.etag
        )
        with closing(stream):
            for piece in stream:
                checksum = crc32c.extend(checksum, piece)
                size += len(piece)
        self._has_all(wanted, size)
        return checksum

    def _has_all(self, wanted: range, size: int) -> None:
        if size != len(wanted):
            raise CorruptFormat(self.location.data_url, wanted.start + size, f"{len(wanted) - size} bytes more")

    def _batches(self, first: int, last: int, size: int, ahead: int) -> Iterator[EntryBatch]:
        self._check(first, last)
        if first > last:
            return
        begin, end = self.index.block_of(first).part_id - 1, self.index.block_of(last).part_id
        readers = [self._reader(block, first) for block in self.index.blocks[begin:end]]
        pieces = [(reader, piece) for reader in readers for piece in cut(reader.next_range or range(0), size)]
        with closing(self.fetch((piece for _, piece in pieces), ahead)) as fetched:
            for (reader, _), data in zip(pieces, fetched, strict=True):
                entry_id = reader.next_entry_id
                with named_in_errors(self.location.data_url):
                    payloads = reader.feed(data)
                self._remember(reader.next_entry_id, reader.at)
                wanted = payloads[max(0, first - entry_id) : max(0, last + 1 - entry_id)]
                if wanted:
                    yield EntryBatch(max(first, entry_id), wanted)
                if last < reader.next_entry_id <= self.index.ledger.last_entry_id:
                    return  # a ledger's very end is read up to the last byte of padding

    def _reader(self, block: OffloadIndexEntry, first: int) -> BlockReader:
        """From the place known that is the nearest before ``first``, or from the block's header."""
        if first > block.first_entry_id:
            known = bisect_right(self._places, (first, self.index.data_object_length)) - 1
            if known >= 0 and self._places[known][0] > block.first_entry_id:
                return BlockReader(self.index, block, *self._places[known])
        return BlockReader(self.index, block)

    def _remember(self, entry_id: int, at: int) -> None:
        place = (entry_id, at)
        known = bisect_right(self._places, place)
        if known and self._places[known - 1] == place:
            return
        self._places.insert(known, place)
        if len(self._places) > MAX_PLACES:
            del self._places[::2]


def cut(whole: range, size: int) -> Iterator[range]:
    """A range, ``size`` bytes at a time."""
    while whole:
        yield whole[:size]
        whole = whole[size:]
