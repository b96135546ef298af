"""Copy one closed ledger to an object store, as the broker's offloader would have written it.

Belongs here: the order of requests, how much is in memory, and what is undone when one fails. Not here: the bytes
(``formats/offload_*``), the proof that they arrived (``tiered/proof.py``), which ledgers, the topic's z-node.
Upstream: ``BlobStoreManagedLedgerOffloader.offload``, tiered-storage-jcloud 4.0.7; unlike it, an entry that fits no
block fails the copy.

A copy deletes nothing but its own unfinished upload. Repeated under the same UUID with the same block size, it writes
the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from array import array
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import cast

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.errors import LifecycleError, OutcomeUnknown, RefusedBy
from pulsar_lifecycle.formats import offload_data, offload_index, offload_object
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.offload_data import Block, DataObject, DataObjectBuilder, EntryTooLong, NotOffloadable
from pulsar_lifecycle.formats.offload_index import DATA_HEADER_LENGTH, ENTRY_HEADER_LENGTH, OffloadIndex
from pulsar_lifecycle.formats.offload_object import Role
from pulsar_lifecycle.ports import EntryBatch, LedgerReader, ObjectHead, ObjectStore, Part
from pulsar_lifecycle.throttle import Pace
from pulsar_lifecycle.values.codes import Code

LARGER = (
    "offload it with larger blocks: raise MaxBlockSizeInBytes in its offload policy (or offload.block_size, if no "
    "policy says it), and make a new plan"
)
"""What to do about an entry that fits no block, or too many blocks; the same plan fails again."""
MAX_PARTS = 10_000
"""Parts of one upload (S3 API), so blocks of one data object."""
BLOCKS_IN_FLIGHT = 2
"""Blocks of one ledger that are being uploaded at once; another one is being filled."""
SOFTWARE = "pulsar-lifecycle"
"""What the objects say of who wrote them, where brokers put their version and commit."""


@dataclass(frozen=True, slots=True)
class Source:
    """A closed ledger as BookKeeper's z-node has it; ``ctime`` (ms) is the z-node's, for metadata that has none."""

    metadata: LedgerMetadata
    ctime: int

    @property
    def described(self) -> LedgerMetadata:
        """The metadata that the index is to carry."""
        return self.metadata if self.metadata.ctime is not None else replace(self.metadata, ctime=self.ctime)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a copy goes and what it says of itself.

    ``cluster`` is the name that the cluster's offloaders write, ``managed_ledger`` is ``T/NS/persistent/ENC(topic)``,
    ``block_size`` bytes at most make a part.
    """

    location: Location
    cluster: str
    managed_ledger: str
    block_size: int = offload_data.DEFAULT_BLOCK_SIZE

    def user_metadata(self, role: Role) -> dict[str, str]:
        """What is put on an object. Raises ValueError for names that fit no header."""
        return offload_object.user_metadata(
            role,
            cluster=self.cluster,
            managed_ledger=self.managed_ledger,
            software_version=SOFTWARE,
            software_git_sha=SOFTWARE,
        )


@dataclass(frozen=True, slots=True)
class Copied:
    """Both objects, written and not yet read back.

    ``checksums`` has the CRC32C of each entry as it was read, ``block_checksums`` what each block's must be for that.
    """

    index: OffloadIndex
    data_etag: str
    index_etag: str
    checksums: array[int]
    block_checksums: array[int]


def digest(checksums: array[int]) -> str:
    """SHA-256 over the entries' CRC32C, each as four bytes, little-endian: one text that says which entries."""
    ordered = checksums
    if sys.byteorder != "little":
        ordered = array("I", checksums)
        ordered.byteswap()
    return hashlib.sha256(ordered).hexdigest()


def copy_ledger(
    reader: LedgerReader,
    objects: ObjectStore,
    source: Source,
    target: Target,
    *,
    blocks_in_flight: int = BLOCKS_IN_FLIGHT,
    pace: Pace = lambda size: None,
) -> Copied:
    """Write data object and index object of a closed ledger, over those of that UUID if there are any.

    In memory: ``blocks_in_flight`` + 1 blocks, and what ``reader`` reads ahead. Raises Refused, before anything is
    written where its metadata tells, for a ledger that is not closed, is empty, has an entry that fits no block, or
    too many blocks; what ``pace`` raises; as ``LedgerReader.stream`` and ``ObjectStore`` do. OutcomeUnknown means that
    the last request may have made its object: look with ``proof.find_copy``, or repeat the copy.
    """
    builder = _builder(source, target)
    location = target.location
    before = objects.head(location.bucket, location.data_key)
    upload = _Upload(objects, target)
    try:
        built = _send(reader, upload, source, target, builder, blocks_in_flight, pace)
        data_etag = upload.complete(built.index.data_object_length, before)
    except BaseException as error:
        upload.abort(error)
        raise
    index_etag = _put_index(objects, target, built.index)
    return Copied(built.index, data_etag, index_etag, built.checksums, built.block_checksums)


def _builder(source: Source, target: Target) -> DataObjectBuilder:
    """For the ledger, if it can be copied in blocks of that size."""
    ledger_id, metadata, size = target.location.ledger_id, source.described, target.block_size
    try:
        builder = DataObjectBuilder(metadata, size)
    except NotOffloadable as error:
        code = Code.EMPTY if metadata.state is LedgerState.CLOSED else Code.NOT_IN_BOOKKEEPER
        raise RefusedBy(code, f"ledger {ledger_id}: {error}") from None
    if offload_data.every_entry_fits(metadata, size) is False:
        raise RefusedBy(
            Code.BLOCKS_TOO_SMALL,
            f"ledger {ledger_id}: its entries have more than {offload_data.max_entry_length(size)} bytes on average,"
            f" for which blocks of {size} have no room: {LARGER}",
        )
    entries = metadata.last_entry_id + 1
    least = -(-(metadata.length + ENTRY_HEADER_LENGTH * entries) // (size - DATA_HEADER_LENGTH))
    if least > MAX_PARTS:
        raise _too_many_parts(target)
    return builder


def _too_many_parts(target: Target) -> RefusedBy:
    text = f"ledger {target.location.ledger_id}: it makes more than {MAX_PARTS} blocks of {target.block_size}: {LARGER}"
    return RefusedBy(Code.BLOCKS_TOO_SMALL, text)


def _send(
    reader: LedgerReader,
    upload: _Upload,
    source: Source,
    target: Target,
    builder: DataObjectBuilder,
    blocks_in_flight: int,
    pace: Pace,
) -> DataObject:
    """Every entry into blocks, every block into a part; returns when the service has all parts."""
    stream = cast(
        Generator[EntryBatch, None, None],
        reader.stream(target.location.ledger_id, source.metadata, 0, source.metadata.last_entry_id),
    )
    with contextlib.closing(stream), _Parts(upload, blocks_in_flight) as parts:
        for batch in stream:
            try:
                blocks = builder.feed(batch.first, batch.payloads)
            except EntryTooLong as error:
                text = f"ledger {target.location.ledger_id}: {error}: {LARGER}"
                raise RefusedBy(Code.BLOCKS_TOO_SMALL, text) from None
            for block in blocks:
                if block.position.part_id > MAX_PARTS:
                    raise _too_many_parts(target)
                pace(len(block.data))
                parts.send(block)
        built = builder.finish()
        parts.join()
    return built


class _Upload:
    """One upload of a data object, ours alone by its id."""

    def __init__(self, objects: ObjectStore, target: Target) -> None:
        self._objects = objects
        self._where = target.location.bucket, target.location.data_key
        self._url = target.location.data_url
        self._metadata = target.user_metadata(Role.DATA)
        self._id = objects.begin_upload(*self._where, self._metadata, offload_object.CONTENT_TYPES[Role.DATA])
        self._parts: list[Part] = []

    def send(self, block: Block) -> None:
        """Upload a block; several threads may."""
        self._parts.append(self._objects.upload_part(*self._where, self._id, block.position.part_id, block.data))

    def complete(self, length: int, before: ObjectHead | None) -> str:
        """Make the object; returns its ETag. ``before`` is what stood in its place when the copy began."""
        parts = sorted(self._parts, key=lambda part: part.number)
        try:
            return self._objects.complete_upload(*self._where, self._id, parts)
        except OutcomeUnknown as error:
            found = self._objects.head(*self._where)
            if found is None or found.size != length or found.metadata != self._metadata or found == before:
                raise OutcomeUnknown(f"{self._url}: not made, or not yet: {error}") from error
            return found.etag

    def abort(self, why: BaseException) -> None:
        """Drop the upload after a failure, which it does not hide; no part may be under way."""
        try:
            self._objects.abort_upload(*self._where, self._id)
        except LifecycleError as error:
            why.add_note(f"and upload {self._id} of {self._url} is left behind: {error}")


class _Parts:
    """Uploads blocks in threads, ``limit`` of them at once; the first failure comes out of the next call."""

    def __init__(self, upload: _Upload, limit: int) -> None:
        self._upload = upload
        self._limit = limit
        self._pool = ThreadPoolExecutor(limit, "offload-copy")
        self._pending: set[Future[None]] = set()

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def send(self, block: Block) -> None:
        """Begin to upload a block once fewer than ``limit`` are under way."""
        self._wait_until_left(self._limit - 1)
        self._pending.add(self._pool.submit(self._upload.send, block))

    def join(self) -> None:
        """Wait for all of them."""
        self._wait_until_left(0)

    def _wait_until_left(self, left: int) -> None:
        done = {future for future in self._pending if future.done()}
        while len(self._pending) - len(done) > left:
            done |= wait(self._pending - done, return_when=FIRST_COMPLETED).done
        self._pending -= done
        for future in done:
            future.result()


def _put_index(objects: ObjectStore, target: Target, index: OffloadIndex) -> str:
    """Write the index object, whose data object is there; returns its ETag."""
    bucket, key = target.location.bucket, target.location.index_key
    data = offload_index.encode(index)
    metadata = target.user_metadata(Role.INDEX)
    try:
        return objects.put(bucket, key, data, metadata, offload_object.CONTENT_TYPES[Role.INDEX])
    except OutcomeUnknown:
        found = objects.head(bucket, key)
        if found is None or found.metadata != metadata or found.size != len(data):
            raise
        if objects.get(bucket, key, if_match=found.etag) != data:
            raise
        return found.etag
