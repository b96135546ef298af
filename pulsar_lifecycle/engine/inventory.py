"""The metastore as tables: walk ZooKeeper's trees and yield Arrow batches of ``plan/tables.py``.

Belongs here: which z-nodes make up a table, how the work is cut into units that executors share, and the rows for
what was listed and not read. Not here: judging the rows, and Spark. A walk never skips: what it does not understand
becomes a row with an ``error``. Paths and names as in BookKeeper 4.17 (``HierarchicalLedgerManager``) and Pulsar 4.0
(``MetaStoreImpl``, ``BookkeeperSchemaStorage``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import (
    AccessDenied,
    CorruptFormat,
    LifecycleError,
    NotFound,
    Unavailable,
    UnsupportedFormat,
)
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, managed_ledger, schema
from pulsar_lifecycle.model import Topic, cursor_name, decode_name
from pulsar_lifecycle.plan import snapshots, tables
from pulsar_lifecycle.plan.coverage import MISSING_ROOT
from pulsar_lifecycle.plan.tables import CORRUPT, EMPTY, GONE, UNREAD
from pulsar_lifecycle.ports import BrokerAdmin, MetadataStore, Node, Unread

MANAGED_LEDGERS_ROOT = "/managed-ledgers"
SCHEMAS_ROOT = "/schemas"
POLICIES_ROOT = "/admin/policies"
PARTITIONED_ROOT = "/admin/partitioned-topics"
SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
"""Property of a topic, or of a partitioned topic, that names a shadow topic's source (PersistentTopic, PIP-180)."""

CHUNK = 5_000
"""Z-nodes per unit of work and per Arrow batch."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of a table: z-nodes ``names`` below ``parent``; ``names`` None lists them when it is read.

    ``listed`` is what the parent's Stat counted at the listing. ``error`` makes the unit one error row.
    """

    parent: str
    names: tuple[str, ...] | None
    listed: int
    error: str = ""

    @property
    def weight(self) -> int:
        """About how many z-nodes it holds."""
        return CHUNK if self.names is None else len(self.names)


def share(units: Sequence[Unit], parts: int) -> list[list[Unit]]:
    """Units in at most ``parts`` groups of about equal weight, none empty."""
    groups: list[list[Unit]] = [[] for _ in range(min(parts, max(len(units), 1)))]
    loads = [0] * len(groups)
    for unit in sorted(units, key=lambda u: -u.weight):
        lightest = loads.index(min(loads))
        groups[lightest].append(unit)
        loads[lightest] += unit.weight
    return [group for group in groups if group]


# ----------------------------------------------------------------------------------------------------------- ledgers

_SPECIAL = frozenset(
    {"LAYOUT", "INSTANCEID", "available", "cookies", "idgen", "idgen-long", "underreplication", "replicas"}
)


def ledger_units(store: MetadataStore, root: str = "/ledgers") -> list[Unit]:
    """Every node below ``root`` that holds ledger z-nodes, in both hierarchical layouts.

    Raises UnsupportedFormat for another ledger manager, NotFound when ``root`` is no BookKeeper root. Pulsar's own
    metadata driver writes no LAYOUT node and always keeps the hierarchical tree (PulsarLedgerManagerFactory).
    """
    layout = store.read([f"{root}/LAYOUT"])[0]
    top, units = _list(store, [root])
    if isinstance(layout, Node):
        ledger_path.parse_layout(layout.data)
    elif layout is not None or "available" not in _names(top):
        raise NotFound(f"{root} is no BookKeeper root that can be read: is bookkeeper.ledgers_root right?")
    short = [f"{root}/{n}" for n in _names(top) if re.fullmatch(r"\d{2}", n)]
    long = [f"{root}/{n}" for n in _names(top) if re.fullmatch(r"\d{3}", n)]
    strange = [n for n in _names(top) if not re.fullmatch(r"\d{2,3}", n) and n not in _SPECIAL]
    units += [Unit(f"{root}/{n}", None, 0, f"{UNREAD}not a node of a known ledger layout") for n in strange]
    leaf_parents, failed = _descend(store, short, 1)
    units += failed
    long_parents, failed = _descend(store, long, 3)
    units += failed
    return units + [Unit(path, None, 0) for path in leaf_parents + long_parents]


def id_range(parent: str, root: str = "/ledgers") -> tuple[int, int]:
    """Lowest and highest ledger id that can live below a node of :func:`ledger_units`."""
    digits = parent[len(root) :].replace("/", "")
    if not digits.isdecimal():
        return 0, 2**63 - 1
    low = int(digits) * 10_000
    return low, low + 9_999


def read_ledgers(
    store: MetadataStore, units: Iterable[Unit], wanted: pa.Schema = tables.BOOKKEEPER_LEDGERS, root: str = "/ledgers"
) -> Iterator[pa.RecordBatch]:
    """Rows of ``tables.BOOKKEEPER_LEDGERS``, or of the picked columns."""
    for rows in _rows(store, units, wanted):
        yield rows if isinstance(rows, pa.RecordBatch) else _ledger_batch(rows, wanted, root)


def ledger_rows(nodes: Sequence[Node], root: str = "/ledgers") -> pa.Table:
    """The rows of ledger z-nodes that were read one by one."""
    rows = _Rows(1)
    rows.nodes = [
        (
            n.path,
            n.data,
            n.stat.czxid,
            n.stat.mzxid,
            n.stat.ctime,
            n.stat.mtime,
            n.stat.version,
            n.stat.num_children,
            (),
        )
        for n in nodes
    ]
    rows.errors = [None] * len(nodes)
    return pa.Table.from_batches([_ledger_batch(rows, tables.BOOKKEEPER_LEDGERS, root)], tables.BOOKKEEPER_LEDGERS)


def _ledger_batch(rows: _Rows, wanted: pa.Schema, root: str) -> pa.RecordBatch:
    errors = rows.errors
    datas = rows.column(DATA)
    ids = _ledger_ids(rows.column(PATH), root)
    for index, (ledger_id, data) in enumerate(zip(ids, datas, strict=True)):
        if ledger_id is None:
            errors[index] = errors[index] or f"{UNREAD}not a ledger z-node"
        if not data and errors[index] is None:
            errors[index] = EMPTY
    columns, problems = ledger_metadata.decode_columns(datas, frozenset(wanted.names) & frozenset(_DECODED))
    for index, problem in enumerate(problems):
        if problem is not None and errors[index] is None:
            errors[index] = CORRUPT + problem
    return rows.batch(wanted, {"ledger_id": ids, **columns})


_LEAVES = {f"/L{n:04d}": n for n in range(10_000)}


def _ledger_ids(paths: Sequence[str], root: str) -> list[int | None]:
    """Ledger ids of z-node paths, None for what is not one.

    A parent is parsed once, its leaves are looked up: a tenth of parsing every path, of which there are ten million.
    """
    firsts: dict[str, int | None] = {}
    ids: list[int | None] = []
    for path in paths:
        parent, leaf = path[:-6], path[-6:]
        if parent not in firsts:
            ends = [_parsed(f"{parent}/L{n}", root) for n in ("0000", "9999")]
            firsts[parent] = None if None in ends else ends[0]
        first, number = firsts[parent], _LEAVES.get(leaf)
        ids.append(_parsed(path, root) if first is None or number is None else first + number)
    return ids


def _parsed(path: str, root: str) -> int | None:
    try:
        return ledger_path.parse_ledger_path(path, root)
    except CorruptFormat:
        return None


_DECODED = (
    "state",
    "entries",
    "length",
    "ensemble_size",
    "write_quorum",
    "ack_quorum",
    "application",
    "component",
    "managed_ledger",
    "cursor",
    "schema_id",
    "compacted_topic",
    "bucket_key",
    "bucket_topic",
    "bucket_cursor",
)


# ------------------------------------------------------------------------------------------------- topics and cursors


def topic_units(store: MetadataStore, wanted: Callable[[str], bool] = lambda namespace: True) -> list[Unit]:
    """Every ``T/NS/persistent`` and V1 ``T/C/NS/persistent`` below ``/managed-ledgers``, cut into chunks of names.

    ``wanted`` chooses namespaces.
    """
    units: list[Unit] = []
    above = [MANAGED_LEDGERS_ROOT]
    domains: list[str] = []
    for depth in range(4):  # the root, tenants, namespaces or V1 clusters, V1 namespaces
        listings, failed = _list(store, above)
        units += failed
        if depth:
            units += _holding_data(store, above)
        below = [f"{c.path}/{n}" for c in listings for n in c.names]
        domains += [path for path in below if depth >= 2 and path.endswith("/persistent")]
        above = [path for path in below if depth < 2 or not path.endswith("/persistent")]
    units += [Unit(path, None, 0, f"{UNREAD}{_STRANGE}") for path in above]
    listings, failed = _list(store, [d for d in domains if wanted(namespace_of(f"{d}/"))])
    units += failed
    for listing in listings:
        names = listing.names
        for start in range(0, len(names), CHUNK):
            units.append(Unit(listing.path, names[start : start + CHUNK], listing.num_children))
    return units


_STRANGE = "not a managed-ledger path of Pulsar 4.0"


def _holding_data(store: MetadataStore, paths: Sequence[str], strange: str = _STRANGE) -> list[Unit]:
    """Error units for z-nodes above topics or schemas that hold data: written by something else than Pulsar 4.0."""
    return [
        Unit(node.path, None, 0, f"{UNREAD}it holds {len(node.data)} bytes: {strange}")
        for node in store.read(paths)
        if isinstance(node, Node) and node.data
    ]


def namespace_of(path: str) -> str:
    """Namespace of a z-node of a topic, a cursor or a schema; what is not below one of these names itself."""
    if path.startswith(f"{SCHEMAS_ROOT}/"):
        return path[len(SCHEMAS_ROOT) + 1 :].rpartition("/")[0]
    return path[len(MANAGED_LEDGERS_ROOT) + 1 :].partition("/persistent/")[0]


def read_managed_ledgers(
    store: MetadataStore, units: Iterable[Unit], wanted: pa.Schema = tables.MANAGED_LEDGERS
) -> Iterator[pa.RecordBatch]:
    """Rows of ``tables.MANAGED_LEDGERS``."""
    for rows in _rows(store, units, wanted):
        if isinstance(rows, pa.RecordBatch):
            yield rows
            continue
        columns = _owner_columns(rows)
        infos = rows.decoded(managed_ledger.decode)
        yield rows.batch(
            wanted,
            {
                **columns,
                "ledgers": [
                    info and [_ledger_row(i) for i in sorted(info.ledgers, key=lambda i: i.ledger_id)] for info in infos
                ],
                "offload_uuids": [
                    (info and [str(u) for u in managed_ledger.offload_uuids(info)]) or None for info in infos
                ],
                "terminated": [info and info.terminated is not None for info in infos],
                "shadow_source": [info and info.properties.get(SHADOW_SOURCE) for info in infos],
            },
        )


def _ledger_row(info: managed_ledger.LedgerInfo) -> tuple[Any, ...]:
    offload = info.offload
    return (
        info.ledger_id,
        info.entries,
        info.size,
        info.timestamp,
        str(offload.uuid) if offload and offload.uuid else None,
        bool(offload and offload.complete),
        (offload and offload.driver_metadata.get("bucket")) or None,
        bool(offload and offload.bookkeeper_deleted),
        offload and offload.timestamp,
    )


def read_cursors(
    store: MetadataStore, units: Iterable[Unit], wanted: pa.Schema = tables.MANAGED_CURSORS
) -> Iterator[pa.RecordBatch]:
    """Rows of ``tables.MANAGED_CURSORS``: the children of every topic z-node of the units."""
    for unit in units:
        if unit.error:
            yield _error_batch(wanted, unit.parent, unit.error)
            continue
        listings, failed = _list(store, [f"{unit.parent}/{name}" for name in unit.names or ()])
        for broken in failed:
            yield _error_batch(wanted, broken.parent, broken.error)
        listed = {c.path: c.num_children for c in listings}
        paths = [f"{c.path}/{n}" for c in listings for n in c.names]
        for start in range(0, len(paths), CHUNK):
            for rows in _scanned(store, paths[start : start + CHUNK], listed):
                yield _cursor_batch(rows, wanted)


_CURSOR_VALUES = (
    "cursors_ledger_id",
    "mark_delete_ledger_id",
    "mark_delete_entry_id",
    "compacted_ledger_id",
    "buckets",
    "last_active",
)


def _cursor_batch(rows: _Rows, wanted: pa.Schema) -> pa.RecordBatch:
    columns: dict[str, list[Any]] = {name: [] for name in ("managed_ledger", "topic", "namespace", "cursor")}
    for index, node in enumerate(rows.nodes):
        topic_path, _, encoded = node[PATH].rpartition("/")
        try:
            topic = Topic.from_managed_ledger(topic_path[len(MANAGED_LEDGERS_ROOT) + 1 :])
        except CorruptFormat as error:
            topic = None
            rows.errors[index] = rows.errors[index] or f"{UNREAD}{error}"
        if rows.errors[index] is None and node[NUM_CHILDREN]:
            rows.errors[index] = f"{UNREAD}a cursor z-node has children"
        columns["managed_ledger"].append(topic and topic.managed_ledger)
        columns["topic"].append(topic and str(topic))
        columns["namespace"].append(topic and str(topic.namespace))
        columns["cursor"].append(cursor_name(encoded))
    values = [info or (None,) * len(_CURSOR_VALUES) for info in rows.decoded(_cursor_values)]
    return rows.batch(wanted, {**columns, **{name: [v[i] for v in values] for i, name in enumerate(_CURSOR_VALUES)}})


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
    )


# ----------------------------------------------------------------------------------------------------------- schemas


def schema_units(store: MetadataStore, wanted: Callable[[str], bool] = lambda namespace: True) -> list[Unit]:
    """Every namespace below ``/schemas``, cut into chunks of schema names.

    A namespace that lost its last schema stays behind as an empty z-node and gives no unit.
    """
    tenants, failed = _list(store, [SCHEMAS_ROOT])
    units = list(failed)
    namespaces, failed = _list(store, [f"{c.path}/{n}" for c in tenants for n in c.names])
    units += failed
    paths = [f"{c.path}/{n}" for c in namespaces for n in c.names]
    paths = [path for path in paths if wanted(path[len(SCHEMAS_ROOT) + 1 :])]
    listings, failed = _list(store, paths)
    units += failed + _holding_data(store, paths, "not a schema path of Pulsar 4.0")
    for listing in listings:
        for start in range(0, len(listing.names), CHUNK):
            units.append(Unit(listing.path, listing.names[start : start + CHUNK], listing.num_children))
    return units


def read_schemas(
    store: MetadataStore, units: Iterable[Unit], wanted: pa.Schema = tables.SCHEMAS
) -> Iterator[pa.RecordBatch]:
    """Rows of ``tables.SCHEMAS``; a node without data and with children is a V1 namespace and is walked too."""
    for rows in _rows(store, units, wanted):
        if isinstance(rows, pa.RecordBatch):
            yield rows
            continue
        namespaces = {
            n[PATH]
            for n, error in zip(rows.nodes, rows.errors, strict=True)
            if error is None and not n[DATA] and n[NUM_CHILDREN]
        }
        versions = [
            [] if node[PATH] in namespaces else info
            for node, info in zip(rows.nodes, rows.decoded(schema_versions, skip=namespaces), strict=True)
        ]
        ids = [path[len(SCHEMAS_ROOT) + 1 :] for path in rows.column(PATH)]
        yield rows.batch(
            wanted, {"schema_id": ids, "namespace": [i.rpartition("/")[0] for i in ids], "versions": versions}
        )
        yield from read_schemas(store, [Unit(path, None, 0) for path in sorted(namespaces)], wanted)


def schema_versions(data: bytes) -> list[tuple[int, int, int]]:
    """(version, ledger id, entry id) of everything a schema locator names. Raises CorruptFormat."""
    locator = schema.decode_locator(data)
    seen = {
        (entry.version, entry.position.ledger_id, entry.position.entry_id) for entry in (locator.latest, *locator.index)
    }
    return sorted(seen)


# ------------------------------------------------------------------------------------------------------------ topics


@dataclass(frozen=True, slots=True)
class Brokers:
    """What the brokers said, taken once per scan: who has which topic loaded, and how stale that word may be (ms).

    ``silence`` says why they were not heard; then every topic counts as loaded. ``started``: when each broker did (ms);
    one that is missing did not say.
    """

    loaded: Mapping[str, str]
    stats_interval: int
    silence: str = ""
    started: Mapping[str, int] = field(default_factory=dict[str, int])


BROKERS_ROOT = "/loadbalance/brokers"
"""One child per broker that lives, named by its id (LoadManager.LOADBALANCE_BROKERS_ROOT)."""


def hear(store: MetadataStore, admin: BrokerAdmin) -> Brokers:
    """Ask every broker. Raises what ``admin`` raises, and Unavailable when one that is registered was not asked.

    An admin URL of another cluster would make every topic look unloaded.
    """
    registered = store.children([BROKERS_ROOT])[0]
    if isinstance(registered, Unread):
        raise AccessDenied(f"{BROKERS_ROOT}: {registered.reason}")
    names = registered.names if registered else ()
    # Read first: a broker that is started again meanwhile lists nothing that it had loaded before.
    started = _started(store.read([f"{BROKERS_ROOT}/{name}" for name in names]))
    heard = Brokers(admin.loaded_topics(), admin.stats_interval_ms(), started=started)
    missing = sorted(set(names).difference(admin.brokers()))
    if missing:
        raise Unavailable(
            f"broker {missing[0]} is registered below {BROKERS_ROOT} and is none of those behind pulsar.admin_url: "
            "is that the same cluster?"
        )
    return heard


def _started(brokers: Iterable[Node | Unread | None]) -> dict[str, int]:
    """When the brokers started, by their z-nodes; those that do not say so are left out."""
    nodes = [node for node in brokers if isinstance(node, Node)]
    times = {node.path.rpartition("/")[2]: snapshots.broker_started(node.data, node.stat.ctime) for node in nodes}
    return {name: at for name, at in times.items() if at is not None}


def read_topics(
    store: MetadataStore,
    units: Iterable[Unit],
    brokers: Brokers,
    policies: Mapping[str, Mapping[str, Any]],
    compaction: Callable[[Topic], str],
    now: int,
    ledgers_root: str,
    wanted: pa.Schema = tables.TOPICS,
) -> Iterator[pa.RecordBatch]:
    """Rows of ``tables.TOPICS``. ``compaction`` is asked only of loaded topics that have a ``__compaction`` cursor.

    Loaded means listed by a broker, with an open last ledger: the list lags, and asking about any other loads it.
    """
    for rows in _rows(store, units, wanted):
        if isinstance(rows, pa.RecordBatch):
            yield rows
            continue
        columns: dict[str, list[Any]] = _owner_columns(rows)
        infos = rows.decoded(managed_ledger.decode)
        ids = [sorted(item.ledger_id for item in info.ledgers) if info else [] for info in infos]
        states = ledger_states(store, [i[-1] if i else None for i in ids], ledgers_root)
        loaded = [p for p, topic in zip(rows.column(PATH), columns["topic"], strict=True) if topic in brokers.loaded]
        cursors = store.read([f"{path}/__compaction" for path in loaded])
        compacted = {path for path, cursor in zip(loaded, cursors, strict=True) if cursor is not None}
        found: list[tuple[Any, ...]] = []
        for index, info in enumerate(infos):
            topic = columns["topic"][index]
            broker = brokers.loaded.get(topic or "")
            state, reason = load_state(info, rows.nodes[index][MTIME], states[index], broker, brokers, now)
            ask = info is not None and rows.nodes[index][PATH] in compacted and states[index] == "OPEN"
            policy = policies.get(columns["namespace"][index] or "", {})
            retention = policy.get("retention_policies") or {}
            found.append(
                (
                    info and state,
                    info and reason,
                    broker,
                    brokers.started.get(broker or ""),
                    _asked(compaction, topic) if ask else None,
                    retention.get("retentionTimeInMinutes"),
                    retention.get("retentionSizeInMB"),
                    policy.get("message_ttl_in_seconds"),
                )
            )
        names = (
            "load_state",
            "load_reason",
            "broker",
            "broker_started",
            "compaction",
            "retention_minutes",
            "retention_mb",
            "ttl_seconds",
        )
        columns |= {name: [f[i] for f in found] for i, name in enumerate(names)}
        yield rows.batch(
            wanted,
            {
                **columns,
                "first_ledger_id": [i[0] if i else None for i in ids],
                "last_ledger_id": [i[-1] if i else None for i in ids],
                "last_ledger_state": states,
                "ledgers": [len(i) for i in ids],
                "terminated": [info and info.terminated is not None for info in infos],
            },
        )


def _asked(compaction: Callable[[Topic], str], topic: str) -> str:
    try:
        return compaction(Topic.parse(topic))
    except LifecycleError as error:
        return f"UNKNOWN: {error}"


UNLOADED_AFTER = 3
"""Statistics intervals that a topic's z-node must have been left alone before the topic can count as unloaded."""


def load_state(
    info: managed_ledger.ManagedLedgerInfo | None,
    mtime: int,
    last_state: str | None,
    broker: str | None,
    brokers: Brokers,
    now: int,
) -> tuple[str, str]:
    """``unloaded``, ``never_loaded`` or ``loaded`` with the reason; whatever is not sure counts as loaded.

    A broker rewrites the z-node at every load, and its list of topics lags by ``brokers.stats_interval`` ms both ways.
    """
    if info is None:
        return "loaded", "its z-node was not read"
    if brokers.silence:
        return "loaded", f"the brokers were not heard: {brokers.silence}"
    if broker:
        return "loaded", f"listed by {broker}"
    if now - mtime <= UNLOADED_AFTER * brokers.stats_interval:
        return "loaded", "its z-node was written too recently to know"
    if not info.ledgers:
        return "never_loaded", "its z-node has no ledgers"
    if info.terminated is not None:
        return "loaded", "it is terminated: its last ledger says nothing"
    if last_state != "CLOSED":
        return "loaded", f"its last ledger is {last_state or 'not in BookKeeper'}"
    return "unloaded", "on no broker's list, last ledger closed, z-node left alone"


def ledger_states(store: MetadataStore, ids: Sequence[int | None], root: str) -> list[str | None]:
    """``OPEN``, ``IN_RECOVERY`` or ``CLOSED`` of ledgers by id; None where there is no readable z-node."""
    wanted = [i for i in dict.fromkeys(ids) if i is not None]
    nodes = store.read([ledger_path.ledger_path(i, root) for i in wanted])
    there = [(i, node.data) for i, node in zip(wanted, nodes, strict=True) if isinstance(node, Node)]
    columns, _ = ledger_metadata.decode_columns([data for _, data in there], frozenset({"state"}))
    states = dict(zip((i for i, _ in there), columns["state"], strict=True))
    return [states.get(i) if i is not None else None for i in ids]


def namespace_policies(store: MetadataStore) -> dict[str, dict[str, Any]]:
    """Policies of every namespace, V1 ones included, as their JSON says. Raises CorruptFormat naming the z-node."""
    paths, failed = _namespace_paths(store, POLICIES_ROOT)
    if failed:
        raise UnsupportedFormat(failed[0].parent, 0, f"readable policies: {failed[0].error}")
    found: dict[str, dict[str, Any]] = {}
    for path, node in zip(paths, store.read(paths), strict=True):
        if isinstance(node, Unread):
            raise UnsupportedFormat(path, 0, f"readable policies: {node.reason}")
        if node is None or not node.data:
            continue
        try:
            document = json.loads(node.data)
        except (ValueError, RecursionError) as error:
            raise CorruptFormat(path, 0, f"policies as JSON: {error}") from error
        _check_policies(path, document)
        found[path[len(POLICIES_ROOT) + 1 :]] = document
    return found


def _check_policies(path: str, document: Any) -> None:
    """Raise CorruptFormat unless what :func:`read_topics` takes out of policies is of the type they have in Pulsar."""
    retention = document.get("retention_policies") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(retention, dict | None):
        raise CorruptFormat(path, 0, "policies, an object, with an object retention_policies")
    numbers = {name: (retention or {}).get(name) for name in ("retentionTimeInMinutes", "retentionSizeInMB")}
    numbers["message_ttl_in_seconds"] = document.get("message_ttl_in_seconds")
    for name, value in numbers.items():
        if value is not None and (type(value) is not int or not -(2**63) <= value < 2**63):
            raise CorruptFormat(path, 0, f"policies with a whole number as {name}, found {value!r}")


def namespaces(store: MetadataStore) -> frozenset[str]:
    """Every namespace of this root: those with policies and those with managed ledgers.

    What cannot be listed is left out: its ledgers then count as foreign, and the tables' own rows say what is unread.
    """
    found: set[str] = set()
    for root in (MANAGED_LEDGERS_ROOT, POLICIES_ROOT):
        paths, _ = _namespace_paths(store, root)
        found.update(path[len(root) + 1 :] for path in paths)
    return frozenset(found)


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
    namespaces_, failed = _namespace_paths(store, PARTITIONED_ROOT)
    listings, more = _list(store, [f"{path}/persistent" for path in namespaces_])
    unread = [f"{unit.parent}: {unit.error}" for unit in failed + more]
    found: dict[str, str] = {}
    for batch in store.scan(f"{c.path}/{n}" for c in listings for n in c.names):
        unread += [f"{node.path}: {node.reason}" for node in batch.unread]
        for path, data, *_ in batch.rows:
            if SHADOW_SOURCE.encode() in data:
                try:
                    found[path] = str(json.loads(data)["properties"][SHADOW_SOURCE])
                except (ValueError, KeyError, TypeError) as error:
                    raise CorruptFormat(path, 0, f"partitioned-topic metadata: {error}") from error
    if unread:
        raise UnsupportedFormat(PARTITIONED_ROOT, 0, f"readable partitioned-topic metadata: {unread[0]}")
    return found


def _namespace_paths(store: MetadataStore, root: str) -> tuple[list[str], list[Unit]]:
    """Z-nodes ``root/T/NS`` and V1 ``root/T/C/NS``, and an error unit for each part that could not be listed.

    A V1 cluster's node is among them too: nothing tells it from a V2 namespace without topics.
    """
    above, found, bad = [root], list[str](), list[Unit]()
    for depth in range(3):
        listings, failed = _list(store, above)
        bad += failed
        above = [f"{c.path}/{n}" for c in listings for n in c.names if depth < 2 or n not in _DOMAINS]
        found += above if depth else []
    return found, bad


_DOMAINS = ("persistent", "non-persistent")


def under_replicated(store: MetadataStore, root: str = "/ledgers") -> set[int]:
    """Ledger ids that the auditor has marked below ``underreplication/ledgers``."""
    level = [f"{root}/underreplication/ledgers"]
    if store.children(level)[0] is None:
        return set()
    found: set[int] = set()
    while level:
        listings, failed = _list(store, level)
        if failed:
            raise UnsupportedFormat(failed[0].parent, 0, f"a readable under-replication list: {failed[0].error}")
        level = []
        for listing in listings:
            for name in listing.names:
                if re.fullmatch(r"urL\d+", name):
                    found.add(int(name[3:]))
                else:
                    level.append(f"{listing.path}/{name}")
    return found


# ----------------------------------------------------------------------------------------------------------- walking


def _list(store: MetadataStore, paths: Sequence[str]) -> tuple[list[Any], list[Unit]]:
    """Listings of ``paths``, and an error unit for each that could not be listed whole.

    A listing whose length differs from the node's own count is read again a few times: children come and go.
    """
    good: list[Any] = []
    bad: list[Unit] = []
    todo = list(paths)
    for attempt in range(LISTING_ATTEMPTS):
        if not todo:
            break
        again: list[str] = []
        for path, children in zip(todo, store.children(todo), strict=True):
            if children is None:
                if path in (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT):
                    bad.append(Unit(path, None, 0, UNREAD + MISSING_ROOT))
            elif isinstance(children, Unread):
                bad.append(Unit(path, None, 0, UNREAD + children.reason))
            elif len(children.names) == children.num_children:
                good.append(children)
            elif attempt + 1 < LISTING_ATTEMPTS:
                again.append(path)
            else:
                bad.append(
                    Unit(
                        path,
                        None,
                        0,
                        f"{UNREAD}{len(children.names)} children listed, its Stat counts {children.num_children}",
                    )
                )
        todo = again
    return good, bad


LISTING_ATTEMPTS = 5


def _descend(store: MetadataStore, paths: list[str], levels: int) -> tuple[list[str], list[Unit]]:
    failed: list[Unit] = []
    for _ in range(levels):
        listings, broken = _list(store, paths)
        failed += broken
        paths = [f"{c.path}/{n}" for c in listings for n in c.names]
    return paths, failed


def _names(listings: Iterable[Any]) -> list[str]:
    return [name for listing in listings for name in listing.names]


def _rows(store: MetadataStore, units: Iterable[Unit], wanted: pa.Schema) -> Iterator[_Rows | pa.RecordBatch]:
    """The z-nodes of the units in chunks; what could not be listed comes as a finished batch of error rows."""
    for unit in units:
        if unit.error:
            yield _error_batch(wanted, unit.parent, unit.error)
            continue
        names, listed = unit.names, unit.listed
        if names is None:
            listings, failed = _list(store, [unit.parent])
            for broken in failed:
                yield _error_batch(wanted, broken.parent, broken.error)
            names, listed = (listings[0].names, listings[0].num_children) if listings else ((), 0)
        for start in range(0, len(names), CHUNK):
            yield from _scanned(store, [f"{unit.parent}/{name}" for name in names[start : start + CHUNK]], listed)


def _scanned(store: MetadataStore, paths: list[str], listed: int | Mapping[str, int]) -> Iterator[_Rows]:
    """One chunk, as the store's scan gives it: what is gone or unread comes after what was read."""
    rows = _Rows(listed)
    for batch in store.scan(paths):
        rows.nodes += batch.rows
        rows.errors += [None] * len(batch.rows)
        missing = [(path, GONE) for path in batch.gone] + [(u.path, UNREAD + u.reason) for u in batch.unread]
        rows.nodes += [(path, b"", 0, 0, 0, 0, 0, 0, ()) for path, _ in missing]
        rows.errors += [error for _, error in missing]
    if rows.nodes:
        yield rows


def _error_batch(wanted: pa.Schema, path: str, error: str) -> pa.RecordBatch:
    values = {"path": path, "error": error}
    return pa.RecordBatch.from_arrays([pa.array([values.get(f.name)], f.type) for f in wanted], schema=wanted)


def _owner_columns(rows: _Rows) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {"managed_ledger": [], "topic": [], "namespace": []}
    for index, path in enumerate(rows.column(PATH)):
        owner = path[len(MANAGED_LEDGERS_ROOT) + 1 :]
        domain, _, name = owner.rpartition("/")
        namespace = domain.rpartition("/")[0]
        try:
            local: str | None = decode_name(name)
        except CorruptFormat as error:
            local = None
            rows.errors[index] = rows.errors[index] or f"{UNREAD}{error}"
        columns["managed_ledger"].append(owner)
        columns["topic"].append(None if local is None else f"persistent://{namespace}/{local}")
        columns["namespace"].append(namespace)
    return columns


PATH, DATA, CZXID, MZXID, CTIME, MTIME, VERSION, NUM_CHILDREN = range(8)
"""Where a :class:`ports.ScanBatch` row has what."""


class _Rows:
    """Z-nodes as scanned, each with its error or None; ``listed`` by parent, or one number for a single parent."""

    def __init__(self, listed: int | Mapping[str, int]) -> None:
        self.listed = listed
        self.nodes: list[Any] = []
        self.errors: list[str | None] = []

    def column(self, index: int) -> list[Any]:
        return [node[index] for node in self.nodes]

    def decoded(self, decoder: Callable[[bytes], Any], skip: Container[str] = ()) -> list[Any]:
        """The decoded values; None where there is an error already, or after noting a new one."""
        values: list[Any] = []
        for index, node in enumerate(self.nodes):
            value = None
            if self.errors[index] is None and node[PATH] not in skip:
                try:
                    value = decoder(node[DATA])
                except CorruptFormat as error:
                    self.errors[index] = CORRUPT + str(error)
            values.append(value)
        return values

    def batch(self, wanted: pa.Schema, columns: Mapping[str, Any]) -> pa.RecordBatch:
        """An Arrow batch: the given columns, the rest from the z-nodes; an error row has only path and census."""
        return pa.RecordBatch.from_arrays(
            [pa.array(self._values(f.name, columns), f.type) for f in wanted], schema=wanted
        )

    def _values(self, name: str, columns: Mapping[str, Any]) -> Any:
        if name in columns:
            return columns[name]
        if name == "error":
            return self.errors
        if name == "path":
            return self.column(PATH)
        if name == "parent":
            return [node[PATH].rpartition("/")[0] for node in self.nodes]
        if name == "listed":
            if isinstance(self.listed, int):
                return [self.listed] * len(self.nodes)
            return [self.listed[node[PATH].rpartition("/")[0]] for node in self.nodes]
        return self.column({"czxid": CZXID, "ctime": CTIME, "mtime": MTIME, "version": VERSION}[name])
