"""Reads the delayed index of a topic and the entries behind it, through ports; loads no topic, recovers no ledger.

Belongs here: z-nodes and ledgers as the values of ``subscription.py``; what cannot be read, as values too. Not here:
judging (``index_findings.py``), which topics (``check_run.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pulsar_lifecycle.copies.offloaded_ledger import Location, OffloadedLedger, open_offloaded
from pulsar_lifecycle.delayed_index.keys import parse_bucket_key
from pulsar_lifecycle.delayed_index.stored.index_codes import BucketProblem
from pulsar_lifecycle.delayed_index.stored.subscription import (
    StoredBucket,
    StoredSubscription,
    TopicEntries,
    first_position,
)
from pulsar_lifecycle.delayed_index.tracking.sealing import ALWAYS, read_whole, unrecoverable
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound, RefusedBy, StoreError
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import ledger_metadata, message
from pulsar_lifecycle.formats.delayed_indexes import Indexes
from pulsar_lifecycle.formats.delayed_table import decode_table
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.model import COMPACTION_CURSOR, Position, Topic, cursor_name
from pulsar_lifecycle.ports import ClusterPorts, EntryBatch, LedgerReader, MetadataStore, Node, ObjectStore, Unread
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.values.codes import Code


@dataclass(frozen=True, slots=True)
class IndexPorts:
    """What reading needs; ``objects`` where offloaded ledgers can be read."""

    store: MetadataStore
    reader: LedgerReader
    objects: ObjectStore | None = None


def index_ports(ports: ClusterPorts) -> IndexPorts:
    """Of a cluster's connections."""
    return IndexPorts(ports.store, ports.reader, ports.objects_if_set)


@dataclass(frozen=True, slots=True, eq=False)
class StoredTopic:
    """A topic, and each of its subscriptions that has buckets, or all; ``unread``: why one could not be, by cursor."""

    topic: Topic
    node: Node
    info: ManagedLedgerInfo
    subscriptions: tuple[StoredSubscription, ...]
    unread: Mapping[str, str]


OPEN_AT_ONCE = 500
"""Entries of an open ledger in memory."""
Transaction = tuple[int, int]
"""The most and the least bits of its id."""
SYSTEM_CURSORS = (COMPACTION_CURSOR, "pulsar.dedup")
REPLICATOR = "pulsar.repl."
_SHOWN = 100
"""Characters of a value that is none."""


def read_topic(ports: IndexPorts, topic: Topic, root: str, only: str = "", *, unbucketed: bool = False) -> StoredTopic:
    """The stored indexes of a topic's subscriptions, or of the ``only`` one. Raises Refused for what is no topic.

    ``unbucketed``: subscriptions that have no buckets, too; not cursors of brokers' own.
    """
    node, info = snapshot.topic_node(ports.store, topic)
    listing = ports.store.children([node.path])[0]
    if listing is None or isinstance(listing, Unread):
        raise RefusedBy(Code.CURSORS_UNREAD, f"the cursors below {node.path} could not be listed")
    names = [name for name in listing.names if only in ("", cursor_name(name))]
    found: list[StoredSubscription] = []
    unread: dict[str, str] = {}
    for name, cursor in zip(names, ports.store.read([f"{node.path}/{name}" for name in names]), strict=True):
        if isinstance(cursor, Unread):
            unread[cursor_name(name)] = cursor.reason
        elif cursor is not None:
            try:
                one = _subscription(ports, cursor, root, unbucketed=unbucketed and not _of_brokers(name))
            except LifecycleError as error:
                unread[cursor_name(name)] = str(error)
            else:
                found += [one] if one else []
    return StoredTopic(topic, node, info, tuple(sorted(found, key=lambda one: one.cursor)), unread)


def bucket_counts(store: MetadataStore, topic: Topic) -> dict[str, int]:
    """How many buckets each subscription names; -1 where that cannot be read. Raises Refused for what is no topic."""
    node, _ = snapshot.topic_node(store, topic)
    listing = store.children([node.path])[0]
    if listing is None or isinstance(listing, Unread):
        raise RefusedBy(Code.CURSORS_UNREAD, f"the cursors below {node.path} could not be listed")
    names = [name for name in listing.names if not _of_brokers(name)]
    found: dict[str, int] = {}
    for name, cursor in zip(names, store.read([f"{node.path}/{name}" for name in names]), strict=True):
        try:
            keys = cursor_format.decode(cursor.data).cursor_properties if isinstance(cursor, Node) else None
        except CorruptFormat:
            keys = None
        count = -1 if keys is None else sum(key.startswith(cursor_format.BUCKET_PREFIX) for key in keys)
        if cursor is not None:
            found[cursor_name(name)] = count
    return found


def _of_brokers(name: str) -> bool:
    return name in SYSTEM_CURSORS or name.startswith(REPLICATOR)


def _subscription(ports: IndexPorts, node: Node, root: str, *, unbucketed: bool) -> StoredSubscription | None:
    info = cursor_format.decode(node.data)
    keys = {k: v for k, v in info.cursor_properties.items() if k.startswith(cursor_format.BUCKET_PREFIX)}
    if not keys and not unbucketed:
        return None
    position, ranges, bits = info.mark_delete, info.individual_deleted, ()
    if info.cursors_ledger_id >= 0:
        ((metadata, entry),) = stored_references.last_entries_of(
            ports.store, ports.reader, [info.cursors_ledger_id], root
        )
        said = stored_references.cursor_state(metadata, entry, node.path.rpartition("/")[0])
        position, ranges, bits = said.mark_delete, said.individual_deleted, said.deleted_bits
    if position is None:
        raise RefusedBy(Code.CURSORS_UNREAD, f"{node.path}: it names no position")
    return StoredSubscription(
        cursor_name(node.path.rpartition("/")[2]),
        node.path,
        node.stat.version,
        node.stat.czxid,
        position,
        ranges,
        bits,
        tuple(read_buckets(ports, keys, root)),
    )


def read_buckets(ports: IndexPorts, keys: Mapping[str, str], root: str) -> list[StoredBucket]:
    """The bucket of each property, by range; one that cannot be read has a problem."""
    named: list[StoredBucket] = []
    for key, value in keys.items():
        try:
            start, end = parse_bucket_key(key)
            ledger_id = cursor_format.snapshot_ledger(value)
            if ledger_id is None:
                raise ValueError(f"{key}: its value is no ledger id: {value[:_SHOWN]!r}")
            named.append(StoredBucket(key, value, start, end, ledger_id))
        except ValueError as error:
            named.append(StoredBucket(key, value, -1, -1, -1, problem=BucketProblem.BAD_KEY, error=str(error)))
    named.sort(key=lambda bucket: (bucket.start, bucket.end, bucket.key))
    metadata = stored_references.metadata_of(
        ports.store, [bucket.ledger_id for bucket in named if bucket.problem is None], root
    )
    of_ledgers = iter(metadata)
    return [bucket if bucket.problem else _with_snapshot(ports, bucket, next(of_ledgers)) for bucket in named]


def snapshot_entries(ports: IndexPorts, ledger_id: int, metadata: LedgerMetadata) -> list[bytes]:
    """The entries of a closed snapshot ledger; raises as ``LedgerReader.read``."""
    return [entry.payload for entry in ports.reader.read(ledger_id, metadata, 0, metadata.last_entry_id)]


def is_snapshot(metadata: LedgerMetadata) -> bool:
    """Whether a ledger's tags say that it is a snapshot; a property may name any ledger."""
    return metadata.custom_metadata.get(ledger_metadata.TAG_COMPONENT) == ledger_metadata.COMPONENT_BUCKET.encode()


def _with_snapshot(ports: IndexPorts, bucket: StoredBucket, metadata: LedgerMetadata | LifecycleError) -> StoredBucket:
    if isinstance(metadata, LifecycleError):
        return replace(bucket, problem=_problem(metadata), error=str(metadata))
    bucket = replace(bucket, length=metadata.length)
    if metadata.state is not LedgerState.CLOSED:
        error = f"ledger {bucket.ledger_id} is {metadata.state.name}"
        return replace(bucket, problem=BucketProblem.NOT_CLOSED, error=error, unrecoverable=())
    entries: list[bytes] = []
    try:
        if metadata.last_entry_id < 0:
            raise CorruptFormat(f"snapshot ledger {bucket.ledger_id}", 0, "an entry")
        if not is_snapshot(metadata):  # it may have any number of bytes
            decode_table(next(iter(ports.reader.read(bucket.ledger_id, metadata, 0, 0))).payload)
        entries = snapshot_entries(ports, bucket.ledger_id, metadata)
        table, indexes, bounds = read_whole(entries)
    except LifecycleError as error:
        when = unrecoverable(entries) if entries else (ALWAYS,)
        return replace(bucket, problem=_problem(error), error=str(error), unrecoverable=when)
    sizes = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
    return replace(bucket, table=table, indexes=indexes, bounds=bounds, bookies=sizes)


def _problem(error: LifecycleError) -> BucketProblem:
    if isinstance(error, NotFound):
        return BucketProblem.NO_LEDGER
    if isinstance(error, CorruptFormat) or type(error) is StoreError:
        return BucketProblem.UNDECODABLE
    return BucketProblem.UNREAD


# ------------------------------------------------------------------------------------------------- entries of topics


def read_entries(ports: IndexPorts, stored: StoredTopic, root: str) -> TopicEntries:
    """The delayed messages of a topic, from where the slowest of its subscriptions with buckets stands.

    Entries of open ledgers up to the last that any bookie has; offloaded ones from their objects once BookKeeper has
    them no more. What cannot be read stands in ``unread``.
    """
    start = first_position(stored.subscriptions)
    listed = sorted((one for one in stored.info.ledgers if one.ledger_id >= start.ledger_id), key=_id)
    metadata = stored_references.metadata_of(ports.store, [one.ledger_id for one in listed], root)
    parts: list[Indexes] = []
    unindexable: list[NDArray[np.bool_]] = []
    counts: dict[int, int] = {}
    unread: dict[int, str] = {}
    begun: dict[Transaction, Position] = {}
    """Transactions that did not end, and their first messages."""
    for info, known in zip(listed, metadata, strict=True):
        first = start.entry_id + 1 if info.ledger_id == start.ledger_id else 0
        try:
            count, batches = _batches(ports, info, known, first)
            delayed, transactional = delayed_in(info.ledger_id, batches, begun)
            open_ = isinstance(known, LedgerMetadata) and known.state is not LedgerState.CLOSED
            parts.append(delayed)
            unindexable.append(transactional | open_)
            counts[info.ledger_id] = count
        except LifecycleError as error:
            unread[info.ledger_id] = str(error)
    found, held = Indexes.concatenate(parts), np.concatenate([np.empty(0, np.bool_), *unindexable])
    if begun:
        first = min(begun.values())
        held |= (found.ledgers > first.ledger_id) | (
            (found.ledgers == first.ledger_id) & (found.entries > first.entry_id)
        )
    return TopicEntries(found, counts, unread, held)


def _id(info: LedgerInfo) -> int:
    return info.ledger_id


def _batches(
    ports: IndexPorts, info: LedgerInfo, metadata: LedgerMetadata | LifecycleError, first: int
) -> tuple[int, Iterable[EntryBatch]]:
    """How many entries a ledger has, and those from ``first`` on."""
    ledger_id = info.ledger_id
    if isinstance(metadata, LedgerMetadata) and metadata.state is LedgerState.CLOSED:
        count = metadata.last_entry_id + 1
        if first >= count:
            return count, ()
        return count, ports.reader.stream(ledger_id, metadata, first, count - 1)
    if isinstance(metadata, LedgerMetadata):
        try:
            last = ports.reader.last_entry(ledger_id, metadata)
        except LifecycleError as error:
            if not stored_references.never_written(metadata, error):
                raise
            last = None
        count = last.entry_id + 1 if last else 0
        if first >= count:
            return count, ()
        return count, _of_open(ports, ledger_id, metadata, first, count)
    opened = opened_copy(ports, info, metadata)
    count = opened.index.ledger.last_entry_id + 1
    return count, opened.stream(first, count - 1) if first < count else ()


def opened_copy(ports: IndexPorts, info: LedgerInfo, missing: LifecycleError) -> OffloadedLedger:
    """The offloaded copy of a ledger that BookKeeper has no more.

    Raises ``missing``, which says why its metadata was not read, where BookKeeper may have it or it has no copy;
    Refused without an object store; what ``open_offloaded`` raises.
    """
    location = Location.of(info)
    if not isinstance(missing, NotFound) or location is None:
        raise missing
    if ports.objects is None:
        raise RefusedBy(Code.NO_OBJECT_STORE, "only its offloaded copy is left, and object_store is not set")
    return open_offloaded(ports.objects, location)


def _of_open(
    ports: IndexPorts, ledger_id: int, metadata: LedgerMetadata, first: int, count: int
) -> Iterator[EntryBatch]:
    """The entries of an open ledger, which may have as many bytes as a closed one: some at a time."""
    for begin in range(first, count, OPEN_AT_ONCE):
        entries = ports.reader.read(ledger_id, metadata, begin, min(begin + OPEN_AT_ONCE, count) - 1)
        yield EntryBatch(begin, [entry.payload for entry in entries])


def delayed_in(
    ledger_id: int, batches: Iterable[EntryBatch], begun: dict[Transaction, Position]
) -> tuple[Indexes, NDArray[np.bool_]]:
    """The delayed messages among entries of a ledger, and which of them are of transactions.

    ``begun`` gets the transactions that begin here, with their first message, and loses those that end here. Raises
    CorruptFormat for an entry that is no message.
    """
    times: list[int] = []
    transactional: list[bool] = []
    ids: list[int] = []
    for batch in batches:
        for entry_id, payload in enumerate(batch.payloads, batch.first):
            found = message.schedule(payload)
            if found is None:
                continue
            if found.transaction is not None:
                if found.ends:
                    begun.pop(found.transaction, None)
                else:
                    begun.setdefault(found.transaction, Position(ledger_id, entry_id))
            if found.deliver_at is not None:
                times.append(found.deliver_at)
                transactional.append(found.transaction is not None)
                ids.append(entry_id)
    indexes = Indexes(np.array(times, np.int64), np.full(len(ids), ledger_id, np.int64), np.array(ids, np.int64))
    return indexes, np.array(transactional, np.bool_)
