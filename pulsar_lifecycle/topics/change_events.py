"""Policies of single topics, read out of a namespace's ``__change_events`` ledgers: no broker is asked, none is loaded.

Belongs here: which entries these are, in which order, and with which schema. Not here: their bytes
(``formats/topic_policies.py``), which policies are in force by them (``topics/policies.py``). A broker that is asked
for them takes the bundle of ``__change_events``, and taking a bundle loads all its topics.

What a reader gets: every event that a broker had acknowledged when the reading began. An event that was being written
then may be in it or not: of an open ledger all is read that its bookies show, without recovery, and the last entry of
it may not be confirmed yet. What cannot be read whole is :class:`Unknown`, never "no policies".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound, StoreError, Unavailable
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import managed_ledger, message, schema
from pulsar_lifecycle.formats import topic_policies as events
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS, Replayed, WriterSchema
from pulsar_lifecycle.metastore.walk import SCHEMAS_ROOT
from pulsar_lifecycle.model import COMPACTION_CURSOR, MANAGED_LEDGERS_ROOT, Namespace, Position, Topic
from pulsar_lifecycle.ports import LedgerReader, MetadataStore, Node, Unread
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.throttle import RateBudget
from pulsar_lifecycle.topics.policies import (
    NamespacePolicies,
    Unknown,
    Unreadable,
    kept_elsewhere,
    topics_have_policies,
)

TRIES = 3
"""How often a topic is read anew that changed, or failed, while it was read."""
_AT_ONCE = 500
"""Entries of an open ledger that are read at once."""


class _Changed(LifecycleError):
    """The topic was written while it was read."""


class _Offloaded(LifecycleError):
    """Some of it is only in a bucket."""


def read_namespaces(
    cluster: Cluster, namespaces: Collection[str], brokers: Mapping[str, str]
) -> dict[str, NamespacePolicies]:
    """The policies of the topics of these namespaces, within the budget for reading entries.

    ``brokers``: their configuration, which may say that topics have none, or that they are elsewhere.
    """
    if not topics_have_policies(brokers):
        return {}
    if unknown := kept_elsewhere(brokers):
        return dict.fromkeys(namespaces, NamespacePolicies(unknown=unknown))
    settings = cluster.settings
    pace = RateBudget(settings.offload.read_bytes_per_second, cluster.clock).take
    with cluster.ports(read_only=True, pace=pace) as ports:
        root = settings.bookkeeper.ledgers_root
        return {name: read_namespace(ports.store, ports.reader, Namespace.parse(name), root) for name in namespaces}


def read_namespace(
    store: MetadataStore, reader: LedgerReader, namespace: Namespace, root: str = "/ledgers"
) -> NamespacePolicies:
    """The policies of a namespace's topics; never raises for what it reads, and writes nothing.

    In memory: the last event of each topic, and a few MiB of a ledger.
    """
    try:
        return _read(store, reader, namespace, root)
    except _Changed as error:
        return NamespacePolicies(unknown=Unknown(Unreadable.CHANGING, str(error)))
    except _Offloaded as error:
        return NamespacePolicies(unknown=Unknown(Unreadable.NOT_WHOLE, str(error)))
    except CorruptFormat as error:
        return NamespacePolicies(unknown=Unknown(Unreadable.UNDECODABLE, str(error)))
    except LifecycleError as error:
        return NamespacePolicies(unknown=Unknown(Unreadable.UNREAD, str(error)))


def _read(store: MetadataStore, reader: LedgerReader, namespace: Namespace, root: str) -> NamespacePolicies:
    store.sync("/")
    parts = _parts(store, namespace)
    if not parts:
        return NamespacePolicies()
    if namespace.cluster:
        return NamespacePolicies(unknown=Unknown(Unreadable.LEGACY, f"{namespace} has {parts[0].local}"))
    if len(parts) > 1 and parts[0].partition is None:
        return NamespacePolicies(unknown=Unknown(Unreadable.AMBIGUOUS, f"{parts[0]} and {parts[1]}"))
    schemas = _Schemas(store, reader, parts[0].schema_id, root)
    replayed = Replayed(namespace)
    # Each topic's events are in one partition, unless partitions were added: then the time decides.
    found = [one for part in parts for one in _events(store, reader, part, schemas, root)]
    for one in sorted(found, key=lambda one: one.publish_time) if len(parts) > 1 else found:
        try:
            if one.value is None:
                replayed.delete(one.key)
            else:
                replayed.apply(one.value)
        except CorruptFormat as error:
            raise CorruptFormat(f"{one.where}: {error.what}", error.offset, error.expected) from error
    return NamespacePolicies(replayed.topics)


def _parts(store: MetadataStore, namespace: Namespace) -> list[Topic]:
    """The topic itself or its partitions, as far as there are any, in order."""
    path = f"{MANAGED_LEDGERS_ROOT}/{namespace}/persistent"
    (listing,) = store.children([path])
    if isinstance(listing, Unread):
        raise Unavailable(f"{path}: {listing.reason}")
    if listing is None:
        return []
    if not listing.is_whole:
        raise Unavailable(f"{path}: {len(listing.names)} of {listing.num_children} z-nodes were listed")
    names = [name for name in listing.names if name.startswith(CHANGE_EVENTS)]  # which is encoded as itself
    topics = [Topic.from_managed_ledger(f"{namespace}/persistent/{name}") for name in names]
    found = [topic for topic in topics if topic.partitioned_parent.local == CHANGE_EVENTS]
    return sorted(found, key=lambda topic: -1 if topic.partition is None else topic.partition)


@dataclass(frozen=True, slots=True)
class _Event:
    """A message; ``value`` is None where it deletes what ``key`` names."""

    where: str
    key: str | None
    publish_time: int
    value: Mapping[str, Any] | None

    @property
    def replaced_by(self) -> object:
        """Of several events with the same the last counts. Old brokers wrote global policies under a local key."""
        if self.value is None:
            return self.key, None
        if self.value["eventType"] != "TOPIC_POLICY" or self.value["actionType"] != "UPDATE":
            return self.where, self.key
        return self.key, bool((self.value["topicPoliciesEvent"]["policies"] or {}).get("isGlobal"))


def _events(store: MetadataStore, reader: LedgerReader, topic: Topic, schemas: _Schemas, root: str) -> list[_Event]:
    """What a compacted reader of a topic gets: the compacted ledger, then what lies behind its horizon.

    The z-node must be the same afterwards: else ledgers may have been trimmed once they were compacted anew.
    """
    path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
    for left in reversed(range(TRIES)):
        store.sync("/")
        before = _node(store, path)
        if before is None:
            return []
        failure: LifecycleError | None = None
        found = dict[object, _Event]()
        try:
            for one in _entries(store, reader, path, before, schemas, root):
                found.pop(one.replaced_by, None)  # in the order of the last of each
                found[one.replaced_by] = one
        except _Offloaded:
            raise
        except LifecycleError as error:
            failure = error
        after = _node(store, path)
        same = after is not None and after.stat.mzxid == before.stat.mzxid and after.stat.czxid == before.stat.czxid
        if same and failure is None:
            return list(found.values())
        if not left:
            raise failure if failure and same else _Changed(f"{path} was written while it was read: {failure or ''}")
    raise AssertionError("unreachable")


def _node(store: MetadataStore, path: str) -> Node | None:
    (node,) = store.read([path])
    if isinstance(node, Unread):
        raise Unavailable(f"{path}: {node.reason}")
    return node


def _entries(
    store: MetadataStore, reader: LedgerReader, path: str, node: Node, schemas: _Schemas, root: str
) -> Iterator[_Event]:
    compacted, horizon = _compaction(store, reader, path, root)
    if compacted is not None:
        for _, data in _of_ledger(store, reader, compacted, root, last=False):
            position, entry = events.compacted_entry(data)
            yield from _messages(position, entry, schemas)
    infos = sorted(managed_ledger.decode(node.data).ledgers, key=lambda info: info.ledger_id)
    for info in infos:
        if info.ledger_id < horizon.ledger_id:
            continue
        _check_there(path, info)
        for entry_id, data in _of_ledger(store, reader, info.ledger_id, root, last=info is infos[-1]):
            position = Position(info.ledger_id, entry_id)
            if position > horizon:
                yield from _messages(position, data, schemas)


def _check_there(path: str, info: LedgerInfo) -> None:
    if info.offload and info.offload.complete and info.offload.bookkeeper_deleted:
        raise _Offloaded(
            f"{path}: ledger {info.ledger_id} was offloaded, and its copy in BookKeeper is listed as deleted"
        )


def _compaction(store: MetadataStore, reader: LedgerReader, path: str, root: str) -> tuple[int | None, Position]:
    """The compacted ledger, and the last position that is in it: of the cursor ``__compaction``."""
    topic, path = path, f"{path}/{COMPACTION_CURSOR}"
    nothing = Position(-1, -1)
    node = _node(store, path)
    if node is None:
        return None, nothing
    cursor = cursor_format.decode(node.data)
    properties, position = cursor.properties, cursor.mark_delete
    if cursor.cursors_ledger_id >= 0:
        ((metadata, entry),) = stored_references.last_entries_of(store, reader, [cursor.cursors_ledger_id], root)
        found = stored_references.cursor_state(metadata, entry, topic)
        properties, position = found.properties, found.mark_delete
    compacted = cursor_format.compacted_ledger(properties)
    if compacted is None or compacted < 0:
        return None, nothing
    if position is None:
        raise CorruptFormat(path, 0, "a position beside its compacted ledger")
    return compacted, position


def _of_ledger(
    store: MetadataStore, reader: LedgerReader, ledger_id: int, root: str, *, last: bool
) -> Iterator[tuple[int, bytes]]:
    """Every entry of a ledger with its id. ``last``: of its topic, so that it may be open, and not written yet."""
    (metadata,) = stored_references.metadata_of(store, [ledger_id], root)
    if isinstance(metadata, LifecycleError):
        raise metadata
    if metadata.state is LedgerState.CLOSED:
        with closing(cast(Any, reader.stream(ledger_id, metadata, 0, metadata.last_entry_id))) as stream:
            for batch in stream:
                yield from enumerate(batch.payloads, batch.first)
        return
    if not last or metadata.state is not LedgerState.OPEN:
        raise StoreError(f"ledger {ledger_id} is {metadata.state.name}: a broker is to recover it first")
    yield from _of_open(reader, ledger_id, metadata)


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


def _messages(position: Position, data: bytes, schemas: _Schemas) -> Iterator[_Event]:
    """The events of an entry; of a batch those that compaction left."""
    where = f"entry {position}"
    try:
        entry = message.decode(data)
        if entry.marker_type is not None:
            return
        if entry.encrypted or entry.chunk:
            raise CorruptFormat(message.WHAT, 0, "an event that is neither encrypted nor a part of one")
        for one in entry.messages:
            if one.compacted_out:
                continue
            value = None
            if not events.is_delete(one):
                assert one.payload is not None
                value = schemas.of(entry.schema_version).decode(one.payload)
            yield _Event(where, one.key, entry.publish_time, value)
    except CorruptFormat as error:
        raise type(error)(f"{where}: {error.what}", error.offset, error.expected) from error


class _Schemas:
    """The schemas of ``__change_events`` by version, each read once."""

    def __init__(self, store: MetadataStore, reader: LedgerReader, schema_id: str, root: str) -> None:
        self._store, self._reader, self._root = store, reader, root
        self._path = f"{SCHEMAS_ROOT}/{schema_id}"
        self._known: dict[int, WriterSchema] = {}

    def of(self, version: bytes | None) -> WriterSchema:
        """The schema of a message's version, eight bytes. Raises CorruptFormat, NotFound, and as reading does."""
        if version is None or len(version) != 8:
            raise CorruptFormat(events.WHAT, 0, "a schema version of eight bytes")
        number = int.from_bytes(version, "big", signed=True)
        if number not in self._known:
            self._known[number] = WriterSchema(self._read(number))
        return self._known[number]

    def _read(self, version: int) -> bytes:
        """From the locator, or from the indexes that schema entries carry of what came before."""
        node = _node(self._store, self._path)
        if node is None:
            raise NotFound(f"{self._path}: there is no such z-node")
        locator = schema.decode_locator(node.data)
        index: Sequence[schema.IndexEntry] = (*locator.index, locator.latest)
        seen = set[Position]()
        while True:
            exact = next((one for one in index if one.version == version and one.position.ledger_id >= 0), None)
            if exact:
                return schema.decode_info(self._entry(exact.position).schema_data).schema
            # A schema ledger's own index has what its locator had before it was shortened.
            earlier = [one for one in index if one.position.ledger_id >= 0 and one.position not in seen]
            if not earlier:
                raise NotFound(f"{self._path}: version {version} is in no index")
            oldest = min(earlier, key=lambda one: one.version)
            seen.add(oldest.position)
            index = (*index, *self._entry(oldest.position).index)

    def _entry(self, position: Position) -> schema.SchemaEntry:
        (metadata,) = stored_references.metadata_of(self._store, [position.ledger_id], self._root)
        if isinstance(metadata, LifecycleError):
            raise metadata
        (entry,) = self._reader.read(position.ledger_id, metadata, position.entry_id, position.entry_id)
        return schema.decode_entry(entry.payload)
