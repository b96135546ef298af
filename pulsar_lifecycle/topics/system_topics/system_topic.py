"""A small topic, read whole out of its ledgers as a reader of its compacted view gets it.

Belongs here: which entries these are, in which order, and that nothing is missing. Not here: what their messages mean
(``change_events.py``, ``function_subscriptions.py``).

What a reader gets: every message that a broker had acknowledged when the reading began. One that was being written
then may be in it or not: of an open ledger all is read that its bookies show, without recovery, and the last entry of
it may not be confirmed yet. A ledger that BookKeeper has no more is read from its offloaded copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pulsar_lifecycle.copies.offloaded_ledger import Location, open_offloaded
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound, StoreError, Unavailable
from pulsar_lifecycle.formats import compacted_entry, managed_ledger, message
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.formats.message import Message, MessageEntry
from pulsar_lifecycle.formats.offload_object import S3_DRIVERS
from pulsar_lifecycle.model import COMPACTION_CURSOR, MANAGED_LEDGERS_ROOT, Namespace, Position, Topic, encode_name
from pulsar_lifecycle.ports import LedgerReader, MetadataStore, Node, ObjectStore, Unread
from pulsar_lifecycle.scan import stored_references

T = TypeVar("T")

TRIES = 3
"""How often a topic is read anew that changed, or failed, while it was read."""
_AT_ONCE = 500
"""Entries of an open ledger that are read at once."""


@dataclass(frozen=True, slots=True)
class LedgerSource:
    """Where a topic's ledgers are read: their metadata below ``root``, their entries in bookies or ``objects``.

    ``objects``: the buckets of tiered storage, opened where some of a topic is only there; None where the settings have
    none.
    """

    store: MetadataStore
    reader: LedgerReader
    objects: Callable[[], ObjectStore | None]
    root: str = "/ledgers"


class WrittenMeanwhile(LifecycleError):
    """The topic was written while it was read."""


class OnlyInBucket(LifecycleError):
    """Some of it is only in a bucket that is not read."""


def parts_of(store: MetadataStore, namespace: Namespace, local: str) -> list[Topic]:
    """The topic itself or its partitions, as far as there are any, in order."""
    path = f"{MANAGED_LEDGERS_ROOT}/{namespace}/persistent"
    (listing,) = store.children([path])
    if isinstance(listing, Unread):
        raise Unavailable(f"{path}: {listing.reason}")
    if listing is None:
        return []
    if not listing.is_whole:
        raise Unavailable(f"{path}: {len(listing.names)} of {listing.num_children} z-nodes were listed")
    names = [name for name in listing.names if name.startswith(encode_name(local))]
    topics = [Topic.from_managed_ledger(f"{namespace}/persistent/{name}") for name in names]
    found = [topic for topic in topics if topic.partitioned_parent.local == local]
    return sorted(found, key=lambda topic: -1 if topic.partition is None else topic.partition)


def read_whole(source: LedgerSource, topic: Topic, take: Callable[[Iterator[tuple[Position, bytes]]], T]) -> T | None:
    """What ``take`` makes of all entries: the compacted ledger, then what lies behind its horizon; None without topic.

    The z-node must be the same afterwards: else ledgers may have been trimmed once they were compacted anew. ``take``
    is called again then, with all entries.
    """
    path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
    for left in reversed(range(TRIES)):
        source.store.sync("/")
        before = node_of(source.store, path)
        if before is None:
            return None
        failure: LifecycleError | None = None
        found: T | None = None
        try:
            found = take(_entries(source, path, before))
        except OnlyInBucket:
            raise
        except LifecycleError as error:
            failure = error
        after = node_of(source.store, path)
        same = after is not None and after.stat.mzxid == before.stat.mzxid and after.stat.czxid == before.stat.czxid
        if same and failure is None:
            return found
        if not left:
            if failure and same:
                raise failure
            raise WrittenMeanwhile(f"{path} was written while it was read: {failure or ''}")
    raise AssertionError("unreachable")


def node_of(store: MetadataStore, path: str) -> Node | None:
    """A z-node; None if there is none. Raises Unavailable."""
    (node,) = store.read([path])
    if isinstance(node, Unread):
        raise Unavailable(f"{path}: {node.reason}")
    return node


def messages_of(data: bytes) -> tuple[MessageEntry, Sequence[Message]]:
    """An entry, and its messages that compaction left; none of a marker. Raises CorruptFormat for what is encrypted."""
    entry = message.decode(data)
    if entry.marker_type is not None:
        return entry, ()
    if entry.encrypted or entry.chunk:
        raise CorruptFormat(message.WHAT, 0, "an event that is neither encrypted nor a part of one")
    return entry, [one for one in entry.messages if not one.compacted_out]


@contextmanager
def located(where: str) -> Iterator[None]:
    """What is corrupt says ``where`` it is."""
    try:
        yield
    except CorruptFormat as error:
        raise type(error)(f"{where}: {error.what}", error.offset, error.expected) from error


def _entries(source: LedgerSource, path: str, node: Node) -> Iterator[tuple[Position, bytes]]:
    compacted, horizon = _compaction(source, path)
    if compacted is not None:
        for _, data in _of_ledger(source, compacted, last=False):
            yield compacted_entry.decode(data)
    infos = sorted(managed_ledger.decode(node.data).ledgers, key=lambda info: info.ledger_id)
    for info in infos:
        if info.ledger_id < horizon.ledger_id:
            continue
        if info.offload and info.offload.complete and info.offload.bookkeeper_deleted:
            entries = _of_bucket(source, path, info)
        else:
            entries = _of_ledger(source, info.ledger_id, last=info is infos[-1])
        for entry_id, data in entries:
            position = Position(info.ledger_id, entry_id)
            if position > horizon:
                yield position, data


def _of_bucket(source: LedgerSource, path: str, info: LedgerInfo) -> Iterator[tuple[int, bytes]]:
    """Every entry of a ledger whose copy in BookKeeper is listed as deleted, with its id."""
    location, where = Location.of(info), f"{path}: ledger {info.ledger_id}"
    driver = (info.offload.driver_name if info.offload else None) or "(none)"
    if location is None or driver.lower() not in S3_DRIVERS:
        raise OnlyInBucket(f"{where} is only where driver {driver} has put it, which is not read")
    objects = source.objects()
    if objects is None:
        raise OnlyInBucket(f"{where} is only in {location.data_url}, and object_store is not set")
    ledger = open_offloaded(objects, location)
    last = ledger.index.ledger.last_entry_id
    if info.entries is not None and info.entries != last + 1:
        raise CorruptFormat(location.index_url, 0, f"the {info.entries} entries that {where} has, found {last + 1}")
    with closing(cast(Any, ledger.stream(0, last))) as stream:
        for batch in stream:
            yield from enumerate(batch.payloads, batch.first)


def _compaction(source: LedgerSource, path: str) -> tuple[int | None, Position]:
    """The compacted ledger, and the last position that is in it: of the cursor ``__compaction``."""
    topic, path = path, f"{path}/{COMPACTION_CURSOR}"
    nothing = Position(-1, -1)
    node = node_of(source.store, path)
    if node is None:
        return None, nothing
    cursor = cursor_format.decode(node.data)
    properties, position = cursor.properties, cursor.mark_delete
    if cursor.cursors_ledger_id >= 0:
        ((metadata, entry),) = stored_references.last_entries_of(
            source.store, source.reader, [cursor.cursors_ledger_id], source.root
        )
        found = stored_references.cursor_state(metadata, entry, topic)
        properties, position = found.properties, found.mark_delete
    compacted = cursor_format.compacted_ledger(properties)
    if compacted is None or compacted < 0:
        return None, nothing
    if position is None:
        raise CorruptFormat(path, 0, "a position beside its compacted ledger")
    return compacted, position


def _of_ledger(source: LedgerSource, ledger_id: int, *, last: bool) -> Iterator[tuple[int, bytes]]:
    """Every entry of a ledger with its id. ``last``: of its topic, so that it may be open, and not written yet."""
    (metadata,) = stored_references.metadata_of(source.store, [ledger_id], source.root)
    if isinstance(metadata, LifecycleError):
        raise metadata
    if metadata.state is LedgerState.CLOSED:
        with closing(cast(Any, source.reader.stream(ledger_id, metadata, 0, metadata.last_entry_id))) as stream:
            for batch in stream:
                yield from enumerate(batch.payloads, batch.first)
        return
    if not last or metadata.state is not LedgerState.OPEN:
        raise StoreError(f"ledger {ledger_id} is {metadata.state.name}: a broker is to recover it first")
    yield from _of_open(source.reader, ledger_id, metadata)


def _of_open(reader: LedgerReader, ledger_id: int, metadata: LedgerMetadata) -> Iterator[tuple[int, bytes]]:
    """Up to the highest entry that any bookie shows: at least all that is confirmed."""
    try:
        end = reader.last_entry(ledger_id, metadata)
    except NotFound as error:
        if stored_references.never_written(metadata, error):
            return
        raise
    for first in range(0, end.entry_id + 1 if end else 0, _AT_ONCE):
        assert end
        for entry in reader.read(ledger_id, metadata, first, min(end.entry_id, first + _AT_ONCE - 1)):
            yield entry.entry_id, entry.payload
