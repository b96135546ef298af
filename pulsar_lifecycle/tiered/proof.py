"""Whether an offloaded copy is the ledger: read back whole, compared entry by entry; whether it still is what was read.

Belongs here: what must agree before a copy may stand for a ledger. Not here: writing it (``tiered/upload.py``), reading
it (``offloaded_ledger``), saying so in the topic's z-node. No BookKeeper copy goes without this.

Nothing is deleted or repaired here. Every difference is a CorruptFormat that names the object, so the ledger, the byte
and the entry.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Generator
from dataclasses import dataclass, fields, replace
from typing import cast

from pulsar_lifecycle.copies.offloaded_ledger import (
    STREAM_SIZE,
    Location,
    OffloadedLedger,
    cut,
    named_in_errors,
    open_offloaded,
)
from pulsar_lifecycle.copies.proven_copies import as_told
from pulsar_lifecycle.errors import Conflict, CorruptFormat, LifecycleError, NotFound, Unavailable, UsageError
from pulsar_lifecycle.formats import crc32c, ledger_metadata, offload_object
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.formats.offload_data import DataObjectReader, ReadEntries
from pulsar_lifecycle.formats.offload_index import ENTRY_HEADER_LENGTH
from pulsar_lifecycle.ports import EntryBatch, LedgerReader, ObjectStore
from pulsar_lifecycle.throttle import Pace
from pulsar_lifecycle.tiered.upload import Copied, Source, digest
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import Verified

AHEAD = 2
"""Blocks whose checksums are made at once, or pieces of ``offloaded_ledger.STREAM_SIZE`` bytes that are being read
while another one is compared."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What both objects must say of where they come from; nothing is compared with what is empty."""

    cluster: str = ""
    managed_ledger: str = ""


class OriginalUnread(Unavailable):
    """BookKeeper's copy, which the objects are compared with, could not be read."""


def disproves(error: LifecycleError) -> bool:
    """Whether what :func:`verify` raised is about the objects: damaged, missing, or not those of the ledger."""
    return isinstance(error, CorruptFormat | NotFound)


def verify(
    objects: ObjectStore,
    location: Location,
    source: Source,
    *,
    copied: Copied | None = None,
    known: Verified | None = None,
    reader: LedgerReader | None = None,
    origin: Origin = Origin(),
    ahead: int = AHEAD,
    pace: Pace = lambda size: None,
) -> Verified:
    """Read both objects whole and compare them with the ledger; whoever wrote them.

    The entries are compared with those of ``copied``, a copy made just now, or with what was ``known`` of them when
    they were proven before, or else with what ``reader`` reads from BookKeeper at the same time. Those of a copy are
    compared by block: the checksums of its entries say what the block's must be, and only if a block has another one
    all is read again and taken apart, to find the entry. In memory: ``ahead`` + 3 pieces. Raises CorruptFormat
    (UnsupportedFormat) for any difference, NotFound where an object is not there, Conflict where one was replaced since
    it was copied or while it was read, OriginalUnread; what ``pace`` raises; as ``LedgerReader.stream`` and
    ``ObjectStore.get`` do.
    """
    ledger = open_offloaded(objects, location)
    _check_origin(ledger, origin)
    _check_metadata(ledger, source, whole=copied is not None)
    if copied is not None:
        _check_same(ledger, copied)
        if _has_checksums(ledger, copied.block_checksums, ahead, pace):
            return _verified(ledger, source, copied.checksums)
        originals = _Originals(copied.checksums)
    elif known is not None:
        originals = None
    elif reader is not None:
        originals = _Originals(array("I"), _streamed(reader, location, source))
    else:
        raise UsageError("nothing to compare the entries with: give what was copied or is known, or a reader")
    back = DataObjectReader(ledger.index, ledger.data_head.size)
    pieces = [piece for block in ledger.index.blocks for piece in cut(ledger.range_of(block), STREAM_SIZE)]
    with contextlib.ExitStack() as opened:
        if originals is not None:
            opened.enter_context(contextlib.closing(originals))
        fetched = opened.enter_context(contextlib.closing(ledger.fetch(pieces, ahead)))
        for data in fetched:
            pace(len(data))
            with named_in_errors(location.data_url):
                some = back.feed(data)
            if originals is not None:
                _compare(location, some, back.checksums, originals.next(len(some.payloads)))
    with named_in_errors(location.data_url):
        checksums = back.finish()
    if known is not None and digest(checksums) != known.checksum:
        raise CorruptFormat(location.data_url, 0, "the entries that were proven: one of them is another now")
    return _verified(ledger, source, checksums)


def _has_checksums(ledger: OffloadedLedger, expected: array[int], ahead: int, pace: Pace) -> bool:
    """Whether every block, read whole, has its CRC32C."""
    blocks = [ledger.range_of(block) for block in ledger.index.blocks]
    with contextlib.closing(ledger.checksums(blocks, ahead)) as found:
        for block, checksum, right in zip(blocks, found, expected, strict=True):
            pace(len(block))
            if checksum != right:
                return False
    return True


def _verified(ledger: OffloadedLedger, source: Source, checksums: array[int]) -> Verified:
    return Verified(
        ledger.data_head.size,
        ledger.data_head.etag,
        ledger.index_head.size,
        ledger.index_head.etag,
        len(checksums),
        source.metadata.length,
        digest(checksums),
    )


def find_copy(objects: ObjectStore, location: Location, source: Source, origin: Origin = Origin()) -> Why | None:
    """Why the objects there cannot be a copy of the ledger; None when only reading them whole can tell.

    To ask before a copy is made again: what is found is to be verified like any other. Raises as ``ObjectStore.head``.
    """
    try:
        ledger = open_offloaded(objects, location)
        _check_origin(ledger, origin)
        _check_metadata(ledger, source, whole=False)
    except NotFound as error:
        return Why(Code.OBJECT_MISSING, str(error))
    except (Conflict, CorruptFormat) as error:
        return Why(Code.COPY_DIFFERS, str(error))
    return None


_NAMED_BY = {
    offload_object.CLUSTER_NAME: " (object_store.pulsar_cluster, or else cluster: what the brokers' clusterName is)"
}
"""Which setting says what an object's user metadata must be, where one does: it may be that which is wrong."""


def _check_origin(ledger: OffloadedLedger, origin: Origin) -> None:
    expected = {
        offload_object.CLUSTER_NAME: origin.cluster,
        offload_object.MANAGED_LEDGER_NAME: origin.managed_ledger,
    }
    for head, url in (
        (ledger.data_head, ledger.location.data_url),
        (ledger.index_head, ledger.location.index_url),
    ):
        for name, value in expected.items():
            found = head.metadata.get(name)
            if value and found != value:
                setting = _NAMED_BY.get(name, "")
                raise CorruptFormat(url, 0, f"user metadata {name} {value!r}{setting}, found {found!r}")


def _check_metadata(ledger: OffloadedLedger, source: Source, *, whole: bool) -> None:
    """The index's metadata is the ledger's, field by field.

    ``whole``: also what is not read by, and may have changed since, or be another handle's: the bookies that auto-
    recovery replaces, and the ctime.
    """
    expected, found = ledger_metadata.carried(source.described), ledger.index.ledger
    if not whole:
        bookies = [segment.bookies for segment in found.segments]
        if len(bookies) == len(expected.segments):
            segments = tuple(replace(s, bookies=b) for s, b in zip(expected.segments, bookies, strict=True))
            expected = replace(expected, segments=segments)
        expected = replace(expected, ctime=found.ctime)
    for field in fields(LedgerMetadata):
        wanted, there = getattr(expected, field.name), getattr(found, field.name)
        if field.compare and wanted != there:
            raise CorruptFormat(ledger.location.index_url, 0, f"{field.name} {wanted!r}, found {there!r}")


def _check_same(ledger: OffloadedLedger, copied: Copied) -> None:
    if ledger.index != copied.index:
        raise CorruptFormat(ledger.location.index_url, 0, "the index that was written")
    for url, head, etag in (
        (ledger.location.data_url, ledger.data_head, copied.data_etag),
        (ledger.location.index_url, ledger.index_head, copied.index_etag),
    ):
        if head.etag != etag:
            raise Conflict(f"{url}: written with ETag {etag}, found {as_told(head)}: it was replaced")


class _Originals:
    """CRC32C of the ledger's entries, in order: known all, or as they are read."""

    def __init__(self, checksums: array[int], stream: Generator[EntryBatch, None, None] | None = None) -> None:
        self._known = checksums
        self._stream = stream
        self._at = 0

    def next(self, count: int) -> array[int]:
        """Those of the next entries; fewer only if the ledger has no more."""
        if self._stream is None:
            self._at += count
            return self._known[self._at - count : self._at]
        while len(self._known) < count and (batch := next(self._stream, None)) is not None:
            self._known += crc32c.checksums(batch.payloads)
        taken, self._known = self._known[:count], self._known[count:]
        return taken

    def close(self) -> None:
        """End the stream."""
        if self._stream is not None:
            self._stream.close()


def _streamed(reader: LedgerReader, location: Location, source: Source) -> Generator[EntryBatch, None, None]:
    """The ledger's own entries. What is wrong with those says nothing of the objects: OriginalUnread."""
    stream = reader.stream(location.ledger_id, source.metadata, 0, source.metadata.last_entry_id)
    with contextlib.closing(cast(Generator[EntryBatch, None, None], stream)) as entries:
        try:
            yield from entries
        except (CorruptFormat, NotFound) as error:
            raise OriginalUnread(f"ledger {location.ledger_id}: BookKeeper does not give it whole: {error}") from error


def _compare(location: Location, some: ReadEntries, back: array[int], originals: array[int]) -> None:
    """Some entries, the last of those that were read ``back``, with the ledger's."""
    found = back[some.first_entry_id :]
    if found == originals:
        return
    same = next((i for i, (f, o) in enumerate(zip(found, originals, strict=False)) if f != o), len(originals))
    entry_id = some.first_entry_id + same
    before = sum(map(len, some.payloads[:same])) + ENTRY_HEADER_LENGTH * same
    expected = f"CRC32C {originals[same]:#010x}" if same < len(originals) else "no entry"
    raise CorruptFormat(
        location.data_url,
        some.offset + before,
        f"{expected} of entry {location.ledger_id}:{entry_id}, found {found[same]:#010x}",
    )
