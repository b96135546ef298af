"""The schema registry: locator z-nodes and the entries of schema ledgers.

Belongs here: both as values and back. Not here: which schema ledgers are still needed.
Upstream: ``SchemaStorageFormat`` and ``SchemaRegistryFormat``, ``BookkeeperSchemaStorage``, pulsar-broker 4.0.7.

A locator refers to a ledger per version; the entry (id 0) of such a ledger carries an index of its own, through which
the broker finds versions older than the locator's first. Both count as references.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from pulsar_lifecycle._pb import pulsar_schema_pb2 as pb
from pulsar_lifecycle.formats import _wire
from pulsar_lifecycle.model import Position

WHAT_LOCATOR = "schema locator"
WHAT_ENTRY = "schema entry"
WHAT_INFO = "schema info"


class SchemaType(IntEnum):
    """SchemaInfo.SchemaType."""

    NONE = 1
    STRING = 2
    JSON = 3
    PROTOBUF = 4
    AVRO = 5
    BOOLEAN = 6
    INT8 = 7
    INT16 = 8
    INT32 = 9
    INT64 = 10
    FLOAT = 11
    DOUBLE = 12
    DATE = 13
    TIME = 14
    TIMESTAMP = 15
    KEYVALUE = 16
    INSTANT = 17
    LOCALDATE = 18
    LOCALTIME = 19
    LOCALDATETIME = 20
    PROTOBUFNATIVE = 21


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version of a schema; ``position`` is (-1, -1) in the index inside a first version's own entry.

    ``hash`` is the SHA-256 of the schema's bytes.
    """

    version: int
    position: Position
    hash: bytes


@dataclass(frozen=True, slots=True)
class SchemaLocator:
    """The z-node ``/schemas/T/NS/TOPIC``: the latest version, and all versions it lists."""

    latest: IndexEntry
    index: tuple[IndexEntry, ...]
    origin: bytes = field(default=b"", repr=False, compare=False)

    @property
    def ledger_ids(self) -> frozenset[int]:
        """Every ledger that the locator refers to."""
        return _ledger_ids((self.latest, *self.index))


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """The registered schema; ``timestamp`` in ms, ``deleted`` is how "delete schema" is recorded."""

    schema_id: str
    user: str
    type: SchemaType
    schema: bytes
    timestamp: int
    deleted: bool
    properties: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    """Entry 0 of a schema ledger; ``schema_data`` is a SchemaInfo message, see :func:`decode_info`."""

    schema_data: bytes
    index: tuple[IndexEntry, ...]
    origin: bytes = field(default=b"", repr=False, compare=False)

    @property
    def ledger_ids(self) -> frozenset[int]:
        """Every ledger that the entry's index refers to."""
        return _ledger_ids(self.index)


def decode_locator(data: bytes) -> SchemaLocator:
    """A locator z-node; raises CorruptFormat (0 bytes too)."""
    data = bytes(data)

    def build(message: pb.SchemaLocator) -> SchemaLocator:
        return SchemaLocator(_index_entry(_wire.known(message).info), tuple(map(_index_entry, message.index)), data)

    return _wire.decode(pb.SchemaLocator, data, WHAT_LOCATOR, build)


def encode_locator(locator: SchemaLocator) -> bytes:
    """A locator z-node's bytes; unknown fields of what it was decoded from are kept."""
    if locator.origin and decode_locator(locator.origin) == locator:
        return locator.origin
    message = pb.SchemaLocator()
    message.MergeFromString(locator.origin)
    if not message.HasField("info") or _index_entry(message.info) != locator.latest:
        _fill_index_entry(message.info, locator.latest)
    _wire.reconcile(message.index, locator.index, lambda m: m.version, lambda v: v.version, _fill_index_entry)
    return message.SerializeToString()


def decode_entry(data: bytes) -> SchemaEntry:
    """An entry of a schema ledger, without its BookKeeper header; raises CorruptFormat."""
    data = bytes(data)

    def build(message: pb.SchemaEntry) -> SchemaEntry:
        return SchemaEntry(_wire.known(message).schema_data, tuple(map(_index_entry, message.index)), data)

    return _wire.decode(pb.SchemaEntry, data, WHAT_ENTRY, build)


def encode_entry(entry: SchemaEntry) -> bytes:
    """An entry of a schema ledger; unknown fields of what it was decoded from are kept."""
    if entry.origin and decode_entry(entry.origin) == entry:
        return entry.origin
    message = pb.SchemaEntry()
    message.MergeFromString(entry.origin)
    _wire.require(message, "schema_data", entry.schema_data)
    _wire.reconcile(message.index, entry.index, lambda m: m.version, lambda v: v.version, _fill_index_entry)
    return message.SerializeToString()


def decode_info(data: bytes) -> SchemaInfo:
    """A SchemaEntry's ``schema_data``; raises CorruptFormat."""
    return _wire.decode(pb.SchemaInfo, bytes(data), WHAT_INFO, _info)


def _info(message: pb.SchemaInfo) -> SchemaInfo:
    pairs = ((_wire.text(_wire.known(pair).key), _wire.text(pair.value)) for pair in _wire.known(message).props)
    return SchemaInfo(
        _wire.text(message.schema_id),
        _wire.text(message.user),
        SchemaType(message.type),
        message.schema,
        message.timestamp,
        message.deleted,
        _wire.unique(pairs, "property"),
    )


def _index_entry(message: pb.IndexEntry) -> IndexEntry:
    place = _wire.known(_wire.known(message).position)
    return IndexEntry(message.version, Position(place.ledgerId, place.entryId), message.hash)


def _fill_index_entry(message: pb.IndexEntry, entry: IndexEntry) -> None:
    _wire.require(message, "version", entry.version)
    _wire.require(message.position, "ledgerId", entry.position.ledger_id)
    _wire.require(message.position, "entryId", entry.position.entry_id)
    _wire.require(message, "hash", entry.hash)


def _ledger_ids(entries: Iterable[IndexEntry]) -> frozenset[int]:
    return frozenset(entry.position.ledger_id for entry in entries if entry.position.ledger_id >= 0)
