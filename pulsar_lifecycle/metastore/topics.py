"""Managed ledgers and cursors in the metadata store, as rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import (
    CorruptFormat,
    NotFound,
    UnsupportedFormat,
)
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.partitioned_topic import partition_count
from pulsar_lifecycle.metastore.walk import (
    CHUNK,
    KNOWN_DOMAIN,
    NUM_CHILDREN,
    PATH,
    STRANGE,
    Rows,
    Unit,
    children_below,
    holding_data,
    namespace_of,
    namespace_paths,
    note_domains,
    owner_columns,
    rows_below,
    scanned,
    trouble_batch,
    unread,
)
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, PARTITIONED_ROOT, MessagePosition, Topic, cursor_name
from pulsar_lifecycle.ports import MetadataStore, Node
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.tables import Problem

SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
"""Property of a topic, or of a partitioned topic, that names a shadow topic's source (PersistentTopic, PIP-180)."""
UNNAMED = "an unnamed topic"
"""The source of a shadow topic whose property is empty."""


def topic_units(store: MetadataStore, chosen: Callable[[str], bool] = lambda namespace: True) -> list[Unit]:
    """Every ``T/NS/persistent`` and V1 ``T/C/NS/persistent`` below ``/managed-ledgers``, cut into chunks of names.

    So are those ``T/NS/x`` of an unknown domain that read like one of ours; what does not is a unit with its trouble.
    ``chosen`` chooses namespaces.
    """
    units: list[Unit] = []
    above = [MANAGED_LEDGERS_ROOT]
    domains: list[str] = []
    for depth in range(4):  # the root, tenants, namespaces or V1 clusters, V1 namespaces
        listings, failed = children_below(store, above)
        units += failed
        if depth:
            units += holding_data(store, above)
        below = [f"{c.path}/{n}" for c in listings for n in c.names]
        domains += [path for path in below if depth >= 2 and path.endswith("/persistent")]
        above = [path for path in below if depth < 2 or not path.endswith("/persistent")]
    unknown = _unknown_domains(store, above, domains)
    domains += unknown
    units += [unread(path, STRANGE) for path in above if path.rpartition("/")[0] not in unknown]
    listings, failed = children_below(store, [d for d in domains if chosen(namespace_of(f"{d}/"))])
    units += failed
    for listing in listings:
        names = listing.names
        for start in range(0, len(names), CHUNK):
            units.append(Unit(listing.path, names[start : start + CHUNK], listing.num_children))
    return units


def _unknown_domains(store: MetadataStore, paths: Sequence[str], known: Iterable[str]) -> list[str]:
    """Which parents of z-nodes ``T/NS/DOMAIN/NAME`` hold nothing but topics, by their form.

    A topic's z-node holds data, or neither data nor children (it was never loaded); at least one must hold data. What
    is otherwise may be a V1 namespace, as the parent of a ``known`` domain is, or something that nobody knows.
    """
    found: dict[str, bool] = {}
    broken = {path.rpartition("/")[0] for path in known}
    for path, node in zip(paths, store.read(paths), strict=True):
        domain = path.rpartition("/")[0]
        if not isinstance(node, Node) or (not node.data and node.stat.num_children):
            broken.add(domain)
        else:
            found[domain] = found.get(domain, False) or bool(node.data)
    return [domain for domain, holds in found.items() if holds and domain not in broken]


def source_named(properties: Mapping[str, str]) -> str | None:
    """What a topic's own properties name as its source; None where it is no shadow topic."""
    return properties[SHADOW_SOURCE] or UNNAMED if SHADOW_SOURCE in properties else None


def read_managed_ledgers(
    store: MetadataStore, units: Iterable[Unit], schema: pa.Schema = tables.MANAGED_LEDGERS
) -> Iterator[pa.RecordBatch]:
    """Rows of ``tables.MANAGED_LEDGERS``."""
    for rows in rows_below(store, units, schema):
        if isinstance(rows, pa.RecordBatch):
            yield rows
            continue
        columns = owner_columns(rows)
        infos = rows.decoded(managed_ledger.decode)
        note_domains(rows, 1)
        yield rows.batch(
            schema,
            {
                **columns,
                "ledgers": [
                    info and [ledger_row(i) for i in sorted(info.ledgers, key=lambda i: i.ledger_id)] for info in infos
                ],
                "offload_uuids": [
                    (info and [str(u) for u in managed_ledger.offload_uuids(info)]) or None for info in infos
                ],
                "terminated": [info and info.terminated is not None for info in infos],
                "shadow_source": [info and source_named(info.properties) for info in infos],
                "low_watermark": [info and _low_watermark(info) for info in infos],
            },
        )


def _low_watermark(info: managed_ledger.ManagedLedgerInfo) -> str | None:
    """The highest; one that is no position before all others."""
    highest: MessagePosition | None = None
    for text in managed_ledger.low_watermarks(info.properties).values():
        try:
            position = MessagePosition.parse(text)
        except CorruptFormat:
            return text
        highest = max(highest or position, position)
    return str(highest) if highest else None


def ledger_row(info: managed_ledger.LedgerInfo) -> tuple[Any, ...]:
    """A value of ``tables.LEDGER_INFO``."""
    offload = info.offload
    return (
        info.ledger_id,
        info.entries,
        info.size,
        info.timestamp,
        str(offload.uuid) if offload and offload.uuid else None,
        bool(offload and offload.complete),
        (offload and offload.driver_name) or None,
        (offload and offload.driver_metadata.get("bucket")) or None,
        bool(offload and offload.segments),
        bool(offload and offload.bookkeeper_deleted),
        offload and offload.timestamp,
    )


def read_cursors(
    store: MetadataStore, units: Iterable[Unit], schema: pa.Schema = tables.MANAGED_CURSORS
) -> Iterator[pa.RecordBatch]:
    """Rows of ``tables.MANAGED_CURSORS``: the children of every topic z-node of the units."""
    for unit in units:
        if unit.trouble:
            yield trouble_batch(schema, unit)
            continue
        listings, failed = children_below(store, [f"{unit.parent}/{name}" for name in unit.names or ()])
        for broken in failed:
            yield trouble_batch(schema, broken)
        listed = {c.path: c.num_children for c in listings}
        paths = [f"{c.path}/{n}" for c in listings for n in c.names]
        for start in range(0, len(paths), CHUNK):
            for rows in scanned(store, paths[start : start + CHUNK], listed):
                yield _cursor_batch(rows, schema)


_CURSOR_VALUES = (
    "cursors_ledger_id",
    "mark_delete_ledger_id",
    "mark_delete_entry_id",
    "compacted_ledger_id",
    "buckets",
    "last_active",
    "replicated_subscription",
)


def _cursor_batch(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {name: [] for name in ("managed_ledger", "topic", "namespace", "cursor")}
    for index, node in enumerate(rows.nodes):
        topic_path, _, encoded = node[PATH].rpartition("/")
        owner = topic_path[len(MANAGED_LEDGERS_ROOT) + 1 :]
        known = owner.split("/")[-2] == KNOWN_DOMAIN
        topic = None
        try:
            topic = Topic.from_managed_ledger(owner) if known else None
        except CorruptFormat as error:
            rows.note(index, Problem.UNREAD, error)
        if node[NUM_CHILDREN]:
            rows.note(index, Problem.UNREAD, "a cursor z-node has children")
        columns["managed_ledger"].append(topic.managed_ledger if topic else None if known else owner)
        columns["topic"].append(topic and str(topic))
        columns["namespace"].append(str(topic.namespace) if topic else None if known else namespace_of(topic_path))
        columns["cursor"].append(cursor_name(encoded))
    values = [info or (None,) * len(_CURSOR_VALUES) for info in rows.decoded(_cursor_values)]
    note_domains(rows, 2)
    return rows.batch(schema, {**columns, **{name: [v[i] for v in values] for i, name in enumerate(_CURSOR_VALUES)}})


def _cursor_values(data: bytes) -> tuple[Any, ...]:
    info = cursor_format.decode(data)
    position = info.mark_delete
    return (
        info.cursors_ledger_id,
        position.ledger_id if position else None,
        position.entry_id if position else None,
        cursor_format.compacted_ledger(info.properties),
        [(b.start, b.end, b.ledger_id) for b in cursor_format.bucket_ledgers(info.cursor_properties)],
        info.last_active,
        cursor_format.REPLICATED_PROPERTY in info.properties,
    )


def birth(store: MetadataStore) -> tuple[int, int]:
    """When ``/managed-ledgers`` was created, as (czxid, ctime): it tells one cluster's metadata from every other's.

    Raises NotFound where there is none.
    """
    node = store.read([MANAGED_LEDGERS_ROOT])[0]
    if not isinstance(node, Node):
        raise NotFound(f"{MANAGED_LEDGERS_ROOT} cannot be read: is this a Pulsar cluster's metadata?")
    return node.stat.czxid, node.stat.ctime


def partitioned_shadow_sources(store: MetadataStore) -> dict[str, str]:
    """What partitioned shadow topics read from, by their z-nodes' paths: their partitions' own z-nodes do not say so.

    Source: the ``properties`` of PartitionedTopicMetadata, as createShadowTopic writes them. Raises CorruptFormat,
    or UnsupportedFormat for what cannot be read.
    """
    found: dict[str, str] = {}
    for path, data in partitioned_metadata(store):
        if SHADOW_SOURCE.encode() in data:
            try:
                found[path] = str(json.loads(data)["properties"][SHADOW_SOURCE]) or UNNAMED
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptFormat(path, 0, f"partitioned-topic metadata: {error}") from error
    return found


def partition_counts(store: MetadataStore) -> dict[str, int]:
    """How many partitions each partitioned topic has, by its managed-ledger name, as its metadata says.

    Raises CorruptFormat, or UnsupportedFormat for what cannot be read.
    """
    found: dict[str, int] = {}
    for path, data in partitioned_metadata(store):
        found[path[len(PARTITIONED_ROOT) + 1 :]] = partition_count(path, data)
    return found


def partitioned_metadata(store: MetadataStore) -> Iterator[tuple[str, bytes]]:
    """Every partitioned topic's z-node: its path and data. Raises UnsupportedFormat where not all could be read."""
    namespaces_, failed = namespace_paths(store, PARTITIONED_ROOT)
    listings, more = children_below(store, [f"{path}/persistent" for path in namespaces_])
    bad = [f"{unit.parent}: {unit.why}" for unit in failed + more]
    for batch in store.scan(f"{c.path}/{n}" for c in listings for n in c.names):
        bad += [f"{node.path}: {node.reason}" for node in batch.unread]
        for path, data, *_ in batch.rows:
            yield path, data
    if bad:
        raise UnsupportedFormat(PARTITIONED_ROOT, 0, f"readable partitioned-topic metadata: {bad[0]}")
