"""A topic with its ledgers, cursors, schema and load state; of a partitioned topic its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import managed_ledger, schema
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.partitioned_topic import partition_count
from pulsar_lifecycle.inspect import explain
from pulsar_lifecycle.inspect.decoded.decoded_znode import described, without_secrets
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.schemas import schema_versions
from pulsar_lifecycle.metastore.walk import SCHEMAS_ROOT
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, PARTITIONED_ROOT, Position, Topic, cursor_name
from pulsar_lifecycle.ports import Children, Entry, LedgerReader, MetadataStore, Node
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.values.topic_load import TopicLoad


@dataclass(frozen=True, slots=True)
class InBookKeeper:
    """A topic's ledger as BookKeeper has it; ``last_entry`` is asked of bookies where it is not closed."""

    metadata: LedgerMetadata
    last_entry: Entry | LifecycleError | None

    @property
    def closed(self) -> bool:
        """Whether its metadata says its last entry."""
        return self.metadata.state == LedgerState.CLOSED


@dataclass(frozen=True, slots=True)
class DecodedLedgerInfo:
    """A ledger of a topic. ``listed``: its LedgerInfo as plain data; ``held``: NotFound where BookKeeper has none."""

    ledger_id: int
    listed: Mapping[str, Any]
    held: InBookKeeper | LifecycleError


@dataclass(frozen=True, slots=True)
class CursorPosition:
    """Where a cursor stands. ``entry``: the entry of its ledger that says it, None for its z-node.

    ``ranges``: how many ranges, or ledgers with bits, beyond mark-delete it has as deleted.
    """

    mark_delete: Position | None
    ranges: int
    properties: Mapping[str, int]
    entry: Position | None = None


@dataclass(frozen=True, slots=True)
class DecodedCursor:
    """A cursor. ``position``: by its ledger if it has one, and otherwise by its z-node.

    ``unread``: why its ledger could not be read; then ``position`` is the z-node's, which is stale.
    """

    name: str
    ledger_id: int
    last_active: int | None
    properties: Mapping[str, str]
    position: CursorPosition
    unread: LifecycleError | None = None


@dataclass(frozen=True, slots=True)
class BrokenCursor:
    """A cursor whose z-node could not be read."""

    name: str
    why: LifecycleError


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A version of a schema, and what its entry says."""

    version: int
    ledger_id: int
    entry_id: int
    info: schema.SchemaInfo | LifecycleError


@dataclass(frozen=True, slots=True)
class DecodedSchema:
    """A topic's schema, by its locator."""

    schema_id: str
    path: str
    versions: tuple[SchemaVersion, ...] | LifecycleError


@dataclass(frozen=True, slots=True)
class DecodedTopic:
    """A topic. ``broker`` has it loaded, as far as brokers said; ``schema`` is None if it has none."""

    topic: Topic
    node: Node
    load: TopicLoad
    broker: str | None
    terminated: Position | None
    properties: Mapping[str, str]
    ledgers: tuple[DecodedLedgerInfo, ...]
    cursors: tuple[DecodedCursor | BrokenCursor, ...]
    schema: DecodedSchema | None

    @property
    def unread(self) -> bool:
        """Whether any of it could not be read; a copy in BookKeeper that is listed as deleted may be gone."""
        versions = () if self.schema is None else self.schema.versions
        if isinstance(versions, LifecycleError) or any(isinstance(one.info, LifecycleError) for one in versions):
            return True
        if any(isinstance(one, BrokenCursor) or one.unread is not None for one in self.cursors):
            return True
        kept = (one.held for one in self.ledgers if not one.listed.get("offloadContext", {}).get("bookkeeperDeleted"))
        return any(isinstance(held, LifecycleError) or isinstance(held.last_entry, LifecycleError) for held in kept)


@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """How many ledgers a partition has, and when (ms) its z-node was written last."""

    ledgers: int
    mtime: int


@dataclass(frozen=True, slots=True)
class PartitionedTopic:
    """Each partition: its summary, None where it has no z-node, or why that does not decode."""

    topic: Topic
    path: str
    partitions: Mapping[Topic, PartitionSummary | CorruptFormat | None]

    @property
    def unread(self) -> bool:
        """Whether a partition's z-node does not decode."""
        return any(isinstance(one, CorruptFormat) for one in self.partitions.values())


def decoded_topic(
    store: MetadataStore, reader: LedgerReader, brokers: Brokers, subject: Topic, now: int, ledgers_root: str
) -> DecodedTopic | PartitionedTopic:
    """All of a topic. Raises NotFound, AccessDenied, and CorruptFormat for a topic z-node that does not decode."""
    store.sync("/")
    path = f"{MANAGED_LEDGERS_ROOT}/{subject.managed_ledger}"
    node = explain.readable(store.read([path])[0], path)
    if node is None:
        return _partitioned(store, subject, path)
    info = managed_ledger.decode(node.data)
    ledgers = _ledgers(store, reader, node.data, info, ledgers_root)
    held = ledgers[-1].held if ledgers else None
    state = held.metadata.state.name if isinstance(held, InBookKeeper) else None
    broker = brokers.loaded.get(str(subject))
    return DecodedTopic(
        topic=subject,
        node=node,
        load=load_state.load_state(info, node.stat.mtime, state, broker, brokers, now),
        broker=broker,
        terminated=info.terminated,
        properties=without_secrets(dict(info.properties)),
        ledgers=ledgers,
        cursors=_cursors(store, reader, path, ledgers_root),
        schema=_schema(store, reader, subject, ledgers_root),
    )


def _partitioned(store: MetadataStore, subject: Topic, path: str) -> PartitionedTopic:
    parent = f"{PARTITIONED_ROOT}/{subject.managed_ledger}"
    node = explain.readable(store.read([parent])[0], parent)
    if node is None:
        raise NotFound(f"{subject}: there is no such topic: neither {path} nor {parent} exists")
    count = partition_count(parent, node.data)
    parts = [Topic(subject.namespace, f"{subject.local}-partition-{n}", subject.domain) for n in range(count)]
    nodes = store.read([f"{MANAGED_LEDGERS_ROOT}/{part.managed_ledger}" for part in parts])
    summaries = (_summary(explain.readable(found, str(part))) for part, found in zip(parts, nodes, strict=True))
    return PartitionedTopic(subject, parent, dict(zip(parts, summaries, strict=True)))


def _summary(node: Node | None) -> PartitionSummary | CorruptFormat | None:
    if node is None:
        return None
    try:
        return PartitionSummary(len(managed_ledger.decode(node.data).ledgers), node.stat.mtime)
    except CorruptFormat as error:
        return error


def _ledgers(
    store: MetadataStore, reader: LedgerReader, data: bytes, info: managed_ledger.ManagedLedgerInfo, root: str
) -> tuple[DecodedLedgerInfo, ...]:
    """Each LedgerInfo joined with BookKeeper's metadata, in the order of ids."""
    shown = {item["ledgerId"]: item for item in described("managed-ledger", data).get("ledgerInfo", [])} if data else {}
    ids = sorted(item.ledger_id for item in info.ledgers)
    metadata = dict(zip(ids, stored_references.metadata_of(store, ids, root), strict=True))
    open_ = [(i, m) for i, m in metadata.items() if isinstance(m, LedgerMetadata) and m.state != LedgerState.CLOSED]
    last = dict(zip((i for i, _ in open_), reader.last_entries(open_), strict=True))
    return tuple(
        DecodedLedgerInfo(i, shown[i], found if isinstance(found, LifecycleError) else InBookKeeper(found, last.get(i)))
        for i, found in ((i, metadata[i]) for i in ids)
    )


def _cursors(
    store: MetadataStore, reader: LedgerReader, path: str, root: str
) -> tuple[DecodedCursor | BrokenCursor, ...]:
    listing = store.children([path])[0]
    if not isinstance(listing, Children):
        return ()
    names = sorted(listing.names)
    decoded: list[cursor_format.ManagedCursorInfo | LifecycleError] = []
    for name, found in zip(names, store.read([f"{path}/{name}" for name in names]), strict=True):
        try:
            node = explain.readable(found, f"{path}/{name}")
            decoded.append(cursor_format.decode(node.data) if node else NotFound("deleted while it was read"))
        except LifecycleError as error:
            decoded.append(error)
    ids = [info.cursors_ledger_id for info in decoded if isinstance(info, cursor_format.ManagedCursorInfo)]
    ids = [i for i in ids if i >= 0]
    entries = dict(zip(ids, stored_references.last_entries_of(store, reader, ids, root), strict=True))
    return tuple(
        BrokenCursor(cursor_name(name), info)
        if isinstance(info, LifecycleError)
        else _cursor(cursor_name(name), info, entries, path)
        for name, info in zip(names, decoded, strict=True)
    )


def _cursor(
    name: str,
    info: cursor_format.ManagedCursorInfo,
    entries: Mapping[int, tuple[LedgerMetadata | LifecycleError, Entry | LifecycleError | None]],
    path: str,
) -> DecodedCursor:
    held, unread = info.cursors_ledger_id, None
    position = CursorPosition(info.mark_delete, len(info.individual_deleted), dict(info.properties))
    if held >= 0:
        metadata, entry = entries[held]
        try:
            stored = stored_references.cursor_state(metadata, entry, path)
            assert isinstance(entry, Entry)
            ranges = len(stored.individual_deleted or stored.deleted_bits)
            where = Position(held, entry.entry_id)
            position = CursorPosition(stored.mark_delete, ranges, dict(stored.properties), where)
        except LifecycleError as error:
            unread = error
    return DecodedCursor(name, held, info.last_active, without_secrets(dict(info.cursor_properties)), position, unread)


def _schema(store: MetadataStore, reader: LedgerReader, subject: Topic, root: str) -> DecodedSchema | None:
    path = f"{SCHEMAS_ROOT}/{subject.schema_id}"
    try:
        node = explain.readable(store.read([path])[0], path)
        if node is None:
            return None
        versions = schema_versions(node.data)
    except LifecycleError as error:
        return DecodedSchema(subject.schema_id, path, error)
    entries = stored_references.last_entries(store, reader, [ledger for _, ledger, _ in versions], root)
    return DecodedSchema(
        subject.schema_id,
        path,
        tuple(
            SchemaVersion(version, ledger_id, entry_id, _schema_info(entry, entry_id))
            for (version, ledger_id, entry_id), entry in zip(versions, entries, strict=True)
        ),
    )


def _schema_info(entry: Entry | LifecycleError | None, entry_id: int) -> schema.SchemaInfo | LifecycleError:
    """Out of a version's entry; schema ledgers hold a single one."""
    if isinstance(entry, LifecycleError):
        return entry
    if entry is None or entry.entry_id != entry_id:
        return NotFound("its entry is not the last one of its ledger")
    try:
        return schema.decode_info(schema.decode_entry(entry.payload).schema_data)
    except CorruptFormat as error:
        return error
