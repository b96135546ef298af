"""Policies of single topics, read out of a namespace's ``__change_events`` ledgers: no broker is asked, none is loaded.

Belongs here: which events count, and with which schema. Not here: which entries these are (``system_topic.py``), their
bytes (``formats/topic_policies.py``), which policies are in force by them (``topics/policies.py``). A broker that is
asked for them takes the bundle of ``__change_events``, and taking a bundle loads all its topics.

What cannot be read whole is :class:`Unknown`, never "no policies".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound
from pulsar_lifecycle.formats import schema
from pulsar_lifecycle.formats import topic_policies as events
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS, Replayed, WriterSchema
from pulsar_lifecycle.metastore.walk import SCHEMAS_ROOT
from pulsar_lifecycle.model import Namespace, Position, Topic
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.topics.policies import (
    NamespacePolicies,
    Unknown,
    Unreadable,
    kept_elsewhere,
    topics_have_policies,
)
from pulsar_lifecycle.topics.system_topics.system_topic import (
    LedgerSource,
    OnlyInBucket,
    WrittenMeanwhile,
    located,
    messages_of,
    node_of,
    parts_of,
    read_whole,
)


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
    with cluster.ports(read_only=True, pace=cluster.entry_pace()) as ports:
        root = cluster.settings.bookkeeper.ledgers_root
        source = LedgerSource(ports.store, ports.reader, lambda: ports.objects_if_set, root)
        return {name: read_namespace(source, Namespace.parse(name)) for name in namespaces}


def read_namespace(source: LedgerSource, namespace: Namespace) -> NamespacePolicies:
    """The policies of a namespace's topics; never raises for what it reads, and writes nothing.

    In memory: the last event of each topic, and a few MiB of a ledger.
    """
    try:
        return _read(source, namespace)
    except WrittenMeanwhile as error:
        return NamespacePolicies(unknown=Unknown(Unreadable.CHANGING, str(error)))
    except OnlyInBucket as error:
        return NamespacePolicies(unknown=Unknown(Unreadable.NOT_WHOLE, str(error)))
    except CorruptFormat as error:
        return NamespacePolicies(unknown=Unknown(Unreadable.UNDECODABLE, str(error)))
    except LifecycleError as error:
        return NamespacePolicies(unknown=Unknown(Unreadable.UNREAD, str(error)))


def _read(source: LedgerSource, namespace: Namespace) -> NamespacePolicies:
    source.store.sync("/")
    parts = parts_of(source.store, namespace, CHANGE_EVENTS)
    if not parts:
        return NamespacePolicies()
    if namespace.cluster:
        return NamespacePolicies(unknown=Unknown(Unreadable.LEGACY, f"{namespace} has {parts[0].local}"))
    if len(parts) > 1 and parts[0].partition is None:
        return NamespacePolicies(unknown=Unknown(Unreadable.AMBIGUOUS, f"{parts[0]} and {parts[1]}"))
    schemas = _Schemas(source, parts[0].schema_id)
    replayed = Replayed(namespace)
    # Each topic's events are in one partition, unless partitions were added: then the time decides.
    found = [one for part in parts for one in _events(source, part, schemas)]
    for one in sorted(found, key=lambda one: one.publish_time) if len(parts) > 1 else found:
        with located(one.where):
            if one.value is None:
                replayed.delete(one.key)
            else:
                replayed.apply(one.value)
    return NamespacePolicies(replayed.topics)


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


def _events(source: LedgerSource, topic: Topic, schemas: _Schemas) -> list[_Event]:
    """The last event of each that it is about, in their order."""

    def take(entries: Iterator[tuple[Position, bytes]]) -> list[_Event]:
        found = dict[object, _Event]()
        for position, data in entries:
            for one in _messages(position, data, schemas):
                found.pop(one.replaced_by, None)  # in the order of the last of each
                found[one.replaced_by] = one
        return list(found.values())

    return read_whole(source, topic, take) or []


def _messages(position: Position, data: bytes, schemas: _Schemas) -> Iterator[_Event]:
    """The events of an entry; of a batch those that compaction left."""
    where = f"entry {position}"
    with located(where):
        entry, messages = messages_of(data)
        for one in messages:
            value = None
            if not events.is_delete(one):
                assert one.payload is not None
                value = schemas.of(entry.schema_version).decode(one.payload)
            yield _Event(where, one.key, entry.publish_time, value)


class _Schemas:
    """The schemas of ``__change_events`` by version, each read once."""

    def __init__(self, source: LedgerSource, schema_id: str) -> None:
        self._source = source
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
        node = node_of(self._source.store, self._path)
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
        (metadata,) = stored_references.metadata_of(self._source.store, [position.ledger_id], self._source.root)
        if isinstance(metadata, LifecycleError):
            raise metadata
        (entry,) = self._source.reader.read(position.ledger_id, metadata, position.entry_id, position.entry_id)
        return schema.decode_entry(entry.payload)
