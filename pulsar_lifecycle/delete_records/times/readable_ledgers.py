"""Entries of a topic, wherever they are: on bookies, closed or open, or in a bucket; no topic is loaded for them.

Belongs here: which copy of a ledger is read, up to which entry, and reading it. Not here: what the entries say
(``publish_times.py``). An open ledger is read without recovery, up to the last entry that a bookie had when it was
asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise

from pulsar_lifecycle.copies.offloaded_ledger import Location, OffloadedLedger, open_offloaded
from pulsar_lifecycle.errors import (
    AccessDenied,
    CorruptFormat,
    LifecycleError,
    NotFound,
    RefusedBy,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import ledger_metadata, ledger_path
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.model import MessagePosition, Position
from pulsar_lifecycle.ports import EntryBatch, LedgerReader, Node, ObjectStore, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.values.codes import Code

OPEN_RUN = 500
"""Entries that are read at once where they are not streamed, as of an open ledger."""
_Read = tuple[Position, bytes]


@dataclass(frozen=True, slots=True)
class ReadableLedger:
    """A ledger of a topic's list, and where its entries 0 .. ``last_entry_id`` are read; -1 if it has none.

    From the bookies by ``metadata``, or from the bucket where only the ``offloaded`` copy is left. ``bytes``: payload
    of all entries, 0 where nothing says it (an open ledger).
    """

    ledger_id: int
    last_entry_id: int
    bytes: int
    metadata: LedgerMetadata | None
    offloaded: Location | None = None


def readable_ledgers(
    ports: Ports, root: str, infos: Sequence[ManagedLedgerInfo]
) -> list[tuple[ReadableLedger, ...] | LifecycleError]:
    """The ledgers of topics, each topic's by id, in order; of a topic whose ledgers are not known, why.

    In bulk: one read of all ledgers' z-nodes, few round trips for the ends of open ledgers, and for an offloaded ledger
    the index object, unless the topic's metadata says how many entries it has.
    """
    listed = [sorted(info.ledgers, key=lambda one: one.ledger_id) for info in infos]
    ports.store.sync("/")
    ids = [one.ledger_id for some in listed for one in some]
    nodes = iter(ports.store.read([ledger_path.ledger_path(i, root) for i in ids]))
    found: list[list[ReadableLedger | LifecycleError]] = [[] for _ in infos]
    opened: list[tuple[int, int, LedgerMetadata]] = []
    for topic, some in enumerate(listed):
        for one in some:
            ledger = _ledger(ports.objects, one, next(nodes))
            if isinstance(ledger, ReadableLedger) and ledger.metadata and ledger.metadata.state != LedgerState.CLOSED:
                opened.append((topic, len(found[topic]), ledger.metadata))
            found[topic].append(ledger)
    wanted = [(listed[topic][place].ledger_id, metadata) for topic, place, metadata in opened]
    for (topic, place, metadata), (ledger_id, _), last in zip(
        opened, wanted, ports.reader.last_entries(wanted) if wanted else (), strict=True
    ):
        if last is None or stored_references.never_written(metadata, last):
            found[topic][place] = ReadableLedger(ledger_id, -1, 0, metadata)
        elif isinstance(last, LifecycleError):
            found[topic][place] = last
        else:
            found[topic][place] = ReadableLedger(ledger_id, last.entry_id, 0, metadata)
    return [_all_or_why(some) for some in found]


def end_of(ledgers: Sequence[ReadableLedger]) -> MessagePosition:
    """The position that the next message of a topic will have, as far as its ledgers say now."""
    if not ledgers:
        return MessagePosition(0, 0)
    return MessagePosition(ledgers[-1].ledger_id, ledgers[-1].last_entry_id + 1)


def offloaded_metadata(objects: ObjectStore, location: Location) -> LedgerMetadata:
    """What an index object says of its ledger's bookies. Raises as ``open_offloaded``."""
    return open_offloaded(objects, location).index.ledger


class TopicEntryReader:
    """Reads entries of ledgers from whichever copy; index objects are read once. One thread at a time."""

    def __init__(self, reader: LedgerReader, objects: ObjectStore | None) -> None:
        self._reader, self._objects = reader, objects
        self._offloaded: dict[Location, OffloadedLedger] = {}

    def one(self, ledger: ReadableLedger, entry_id: int) -> bytes:
        """One entry. Raises as the port that it is read from."""
        if ledger.offloaded is not None:
            return self._copy(ledger.offloaded).read(entry_id, entry_id)[0].payload
        assert ledger.metadata is not None
        return self._reader.read(ledger.ledger_id, ledger.metadata, entry_id, entry_id)[0].payload

    def all(self, ledger: ReadableLedger, first: int, last: int, *, without_lost: bool) -> Iterator[_Read]:
        """Entries first..last, both inclusive, in order. Raises as the port that they are read from.

        ``without_lost``: what :func:`is_lost` of a closed ledger is left out, as nobody can read it any more.
        """
        ledger_id, metadata = ledger.ledger_id, ledger.metadata
        if ledger.offloaded is not None:
            yield from _each(ledger_id, self._copy(ledger.offloaded).stream(first, last))
        elif metadata is None or metadata.state != LedgerState.CLOSED:
            yield from self.in_pieces(ledger, first, last)
        else:
            at = first
            while at <= last:
                try:
                    for found in _each(ledger_id, self._reader.stream(ledger_id, metadata, at, last)):
                        yield found
                        at = found[0].entry_id + 1
                except StoreError as error:
                    if not (without_lost and is_lost(error)):
                        raise
                    at = self._next_readable(ledger, at + 1, last)

    def _next_readable(self, ledger: ReadableLedger, first: int, last: int) -> int:
        for entry_id in range(first, last + 1):
            try:
                self.one(ledger, entry_id)
            except StoreError as error:
                if not is_lost(error):
                    raise
            else:
                return entry_id
        return last + 1

    def in_pieces(self, ledger: ReadableLedger, first: int, last: int) -> Iterator[_Read]:
        """As :meth:`all`, without a stream: other threads may read with the same reader meanwhile."""
        starts = [*range(first, last + 1, OPEN_RUN), last + 1]
        for start, end in pairwise(starts):
            if ledger.offloaded is not None:
                some = self._copy(ledger.offloaded).read(start, end - 1)
            else:
                assert ledger.metadata is not None
                some = self._reader.read(ledger.ledger_id, ledger.metadata, start, end - 1)
            for entry in some:
                yield Position(ledger.ledger_id, entry.entry_id), entry.payload

    def _copy(self, location: Location) -> OffloadedLedger:
        if location not in self._offloaded:
            if self._objects is None:
                raise _no_object_store(location)
            self._offloaded[location] = open_offloaded(self._objects, location)
        return self._offloaded[location]


def is_lost(error: LifecycleError) -> bool:
    """Whether an error of a read of bookies says that every replica answered, and none has the entry."""
    return isinstance(error, StoreError) and not isinstance(error, AccessDenied)


def _each(ledger_id: int, batches: Iterator[EntryBatch]) -> Iterator[_Read]:
    with closing(batches):  # pyrefly: ignore[bad-specialization]  # all are generators
        for batch in batches:
            for entry_id, payload in enumerate(batch.payloads, batch.first):
                yield Position(ledger_id, entry_id), payload


def _ledger(
    objects: ObjectStore | None, info: LedgerInfo, node: Node | Unread | None
) -> ReadableLedger | LifecycleError:
    if isinstance(node, Unread):
        return Unavailable(f"{node.path}: {node.reason}")
    if node is None:
        return _offloaded(objects, info)
    try:
        metadata = ledger_metadata.decode(node.data)
    except CorruptFormat as error:
        return CorruptFormat(node.path, error.offset, error.expected)
    return ReadableLedger(info.ledger_id, metadata.last_entry_id, metadata.length, metadata)


def _offloaded(objects: ObjectStore | None, info: LedgerInfo) -> ReadableLedger | LifecycleError:
    location = Location.of(info)
    if location is None:
        return NotFound(f"ledger {info.ledger_id}: it has no z-node, and no offloaded copy")
    if info.entries is not None:
        return ReadableLedger(info.ledger_id, info.entries - 1, info.size or 0, None, location)
    if objects is None:
        return _no_object_store(location)
    try:
        metadata = offloaded_metadata(objects, location)
    except LifecycleError as error:
        return error
    return ReadableLedger(info.ledger_id, metadata.last_entry_id, metadata.length, None, location)


def _no_object_store(location: Location) -> RefusedBy:
    return RefusedBy(Code.NO_OBJECT_STORE, f"{location.data_url}: the settings name no object store")


def _all_or_why(
    found: Sequence[ReadableLedger | LifecycleError],
) -> tuple[ReadableLedger, ...] | LifecycleError:
    ledgers: list[ReadableLedger] = []
    for one in found:
        if isinstance(one, LifecycleError):
            return one
        ledgers.append(one)
    return tuple(ledgers)
