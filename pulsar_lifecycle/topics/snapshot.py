"""Where one topic stands: its z-node, its cursors' positions, its ledgers' z-nodes, who shadows it; read afresh.

Belongs here: reading what the first phase judges. What cannot be read refuses the topic. Not here: the rule
(``trimming/trim_rules.py``) and the effects (``trimming/trim.py``, ``trimming/delete_topic.py``). Source:
ManagedCursorImpl (4.0.7).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, RefusedBy
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import ledger_path, managed_ledger
from pulsar_lifecycle.formats.compression import unwrap
from pulsar_lifecycle.formats.cursor import ManagedCursorInfo
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.metastore import bookkeeper_ledgers, topics
from pulsar_lifecycle.metastore.topics import SHADOW_SOURCE, UNNAMED, source_named
from pulsar_lifecycle.model import (
    COMPACTION_CURSOR,
    MANAGED_LEDGERS_ROOT,
    PARTITIONED_ROOT,
    PENDING_ACKS,
    Position,
    Topic,
    cursor_name,
    encode_name,
)
from pulsar_lifecycle.ports import Children, Clock, MetadataStore, Node, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.owner_names import full_names
from pulsar_lifecycle.values.tables import Problem

LOOKS_AFTER = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each look at what a request without an answer does; a broker that is slow goes on with it."""


def topic_node(store: MetadataStore, topic: Topic) -> tuple[Node, ManagedLedgerInfo]:
    """The topic's z-node, decoded. Raises Refused where there is none that can be read."""
    path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
    return _topic_node(path, store.read([path])[0])


def _topic_node(path: str, node: Node | Unread | None) -> tuple[Node, ManagedLedgerInfo]:
    if node is None:
        raise RefusedBy(
            Code.TOPIC_GONE, f"{path} does not exist: it is no topic, or a partitioned one; name its partitions"
        )
    if isinstance(node, Unread):
        raise RefusedBy(Code.TOPIC_UNREAD, f"{path} cannot be read: {node.reason}")
    try:
        return node, managed_ledger.decode(node.data)
    except CorruptFormat as error:
        raise RefusedBy(Code.TOPIC_UNREAD, f"{path}: {error}") from error


class TopicReading:
    """One topic read afresh, with all z-nodes that it is judged by, in few requests; each is decoded once.

    What is read: its ``node``, the names of its cursors; then at once the cursors, the ledgers that are ``asked`` for,
    its last one and what of it BookKeeper has, the partitioned topic, and the topic once more. ``store`` answers from
    these, each time the same, and asks for what is not among them; nothing is kept of the bookies' entries. ``before``
    is an earlier reading: what has not changed since is neither looked for nor decoded again, but all of it is read.
    Raises as :func:`topic_node` and :func:`cursors`.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        topic: Topic,
        asked: Callable[[ManagedLedgerInfo], Collection[int]],
        before: TopicReading | None = None,
    ) -> None:
        self._root, self._rows = root, dict[int, Mapping[str, Any] | None]()
        path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
        if before is None or not self._is_as(store, before):
            self.node, self.info = topic_node(store, topic)
            listing = store.children([path])[0]
            ids = sorted({*asked(self.info), *_last_ones(self.info)})
            paths = [f"{path}/{name}" for name in listing.names] if isinstance(listing, Children) else []
            paths += [ledger_path.ledger_path(i, root) for i in ids]
            paths += [] if topic.partition is None else [_partitioned_path(topic)]
            self._take(store, listing, [*paths, path])
        self.store = cast("MetadataStore", self._seen)
        same = before is not None and self._is_listed_as(before)
        self.cursors = before.cursors if before and same else cursors(self.store, path)
        """Every durable cursor, by its z-node's name."""

    def _take(self, store: MetadataStore, listing: Children | Unread | None, paths: Sequence[str]) -> None:
        """Read ``paths`` at once, the topic last: it was there when the others were read."""
        self._seen = _Seen(store, self.node.path, listing, dict(zip(paths, store.read(paths), strict=True)))

    def _is_as(self, store: MetadataStore, before: TopicReading) -> bool:
        """Whether the topic is the one that was read before, in the same version and with cursors of the same names."""
        self.node, self.info = before.node, before.info
        self._take(store, store.children([before.node.path])[0], list(before._seen.nodes))
        seen = self._seen
        if seen.nodes[before.node.path] != before.node or seen.listing != before._seen.listing:
            return False
        paths = {i: ledger_path.ledger_path(i, self._root) for i in before._rows}
        self._rows |= {i: before._rows[i] for i, path in paths.items() if seen.same(path, before._seen)}
        return True

    def _is_listed_as(self, before: TopicReading) -> bool:
        """Whether the cursors are the same, and where they were."""
        seen, path = self._seen, self.node.path
        if not isinstance(seen.listing, Children) or seen.listing != before._seen.listing:
            return False
        return all(seen.same(f"{path}/{name}", before._seen) for name in seen.listing.names)

    def rows(self, ids: Collection[int]) -> dict[int, Mapping[str, Any] | None]:
        """As :func:`ledger_rows`."""
        self._rows |= ledger_rows(self.store, sorted({*ids} - self._rows.keys()), self._root)
        return {i: self._rows[i] for i in sorted(ids)}


def _last_ones(info: ManagedLedgerInfo) -> set[int]:
    """The last ledger, and the last one that the topic does not list as deleted in BookKeeper."""
    kept = [i.ledger_id for i in info.ledgers if not (i.offload and i.offload.bookkeeper_deleted)]
    return {max(ids) for ids in ([i.ledger_id for i in info.ledgers], kept) if ids}


class _Seen:
    """A store for who reads: where all that is wanted was read of one topic, that is the answer."""

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        listing: Children | Unread | None,
        nodes: Mapping[str, Node | Unread | None],
    ) -> None:
        self._store, self._path, self.listing, self.nodes = store, path, listing, nodes

    def same(self, path: str, before: _Seen) -> bool:
        """Whether a z-node was read both times, and was the same."""
        return path in self.nodes and path in before.nodes and self.nodes[path] == before.nodes[path]

    def read(self, paths: Sequence[str]) -> list[Node | Unread | None]:
        if all(path in self.nodes for path in paths):
            return [self.nodes[path] for path in paths]
        return self._store.read(paths)  # what was read before is older than the rest

    def children(self, paths: Sequence[str]) -> list[Children | Unread | None]:
        return [self.listing] if list(paths) == [self._path] else self._store.children(paths)


def shadow_source(store: MetadataStore, topic: Topic, info: ManagedLedgerInfo) -> str:
    """What a shadow topic's own z-node, or its partitioned topic's, names as its source; empty if it is none."""
    if named := source_named(info.properties):
        return named
    if topic.partition is None:
        return ""
    path = _partitioned_path(topic)
    node = store.read([path])[0]
    if isinstance(node, Unread):
        raise RefusedBy(Code.TOPIC_UNREAD, f"{path} cannot be read: {node.reason}")
    if node is None or SHADOW_SOURCE.encode() not in node.data:
        return ""
    try:
        return str(json.loads(node.data)["properties"][SHADOW_SOURCE]) or UNNAMED
    except (ValueError, KeyError, TypeError):
        return "a topic that cannot be read"


def _partitioned_path(topic: Topic) -> str:
    return f"{PARTITIONED_ROOT}/{topic.partitioned_parent.managed_ledger}"


@dataclass(frozen=True, slots=True)
class ShadowSources:
    """Every topic that some shadow topic reads from: ``names``, as written and in full.

    ``partitioned``: what the partitioned ones read from, by their z-nodes' paths in the configuration store.
    """

    names: frozenset[str] = frozenset()
    partitioned: Mapping[str, str] = field(default_factory=dict[str, str])

    def __or__(self, other: ShadowSources) -> ShadowSources:
        """Both clusters'."""
        return ShadowSources(self.names | other.names, {**other.partitioned, **self.partitioned})

    def of_partition(self, topic: Topic) -> str:
        """What a partition of a partitioned shadow topic reads from; empty if it is none."""
        return self.partitioned.get(_partitioned_path(topic), "") if topic.partition is not None else ""


def shadow_sources(store: MetadataStore, configuration: MetadataStore) -> ShadowSources:
    """What shadow topics of this cluster read from now: one bulk read of all topics' z-nodes.

    Raises Refused where a z-node that may be a shadow topic's cannot be read; other LifecycleErrors from the stores.
    """
    store.sync("/")
    units = topics.topic_units(store)
    unread = [f"{unit.parent}: {unit.why}" for unit in units if unit.trouble]
    found: set[str] = set()
    for batch in store.scan(f"{unit.parent}/{name}" for unit in units for name in unit.names or ()):
        unread += [f"{node.path}: {node.reason}" for node in batch.unread]
        for path, data, *_ in batch.rows:
            try:
                if SHADOW_SOURCE.encode() in unwrap(data, path).data:
                    found.add(managed_ledger.decode(data).properties.get(SHADOW_SOURCE, ""))
            except CorruptFormat as error:
                unread.append(f"{path}: {error}")
    configuration.sync("/")
    partitioned: Mapping[str, str] = {}
    try:
        partitioned = topics.partitioned_shadow_sources(configuration)
    except CorruptFormat as error:
        unread.append(str(error))
    if unread:
        raise RefusedBy(Code.SHADOWS_UNREAD, f"whether it is the source of a shadow topic cannot be known: {unread[0]}")
    return ShadowSources(full_names(found.union(partitioned.values())), partitioned)


class Shadows:
    """What ``look`` said of the sources of shadow topics (:func:`shadow_sources`), and when. Threads may share one."""

    def __init__(self, look: Callable[[], ShadowSources], clock: Clock) -> None:
        self._look, self._clock = look, clock
        self._sources = ShadowSources()
        self._seen: int | None = None
        self._looking = threading.Lock()

    def sources(self, max_age: int = 0) -> ShadowSources:
        """The sources as of a look that ended at most ``max_age`` ms ago; with 0 it begins now. Raises as the look."""
        with self._looking:
            now = self._clock.now_ms()
            if self._seen is None or not max_age or not 0 <= now - self._seen <= max_age:
                self._seen = None
                self._sources = self._look()
                self._seen = self._clock.now_ms()
            return self._sources


def cursors(store: MetadataStore, path: str) -> dict[str, ManagedCursorInfo]:
    """Every durable cursor of the topic at ``path``, by its z-node's name. Raises Refused for what cannot be read."""
    names = _listed_cursors(store, path)
    if names is None:
        raise RefusedBy(Code.CURSORS_UNREAD, f"the cursors below {path} could not be listed whole")
    found: dict[str, ManagedCursorInfo] = {}
    for name, node in zip(names, store.read([f"{path}/{n}" for n in names]), strict=True):
        if isinstance(node, Unread):
            raise RefusedBy(Code.CURSORS_UNREAD, f"{node.path} cannot be read: {node.reason}")
        if node is not None:
            try:
                found[name] = cursor_format.decode(node.data)
            except CorruptFormat as error:
                raise RefusedBy(Code.CURSORS_UNREAD, f"{node.path}: {error}") from error
    return found


def cursor_names(store: MetadataStore, topic: Topic) -> list[str]:
    """The durable cursors of a topic, by their shown names, none without such a topic. Raises Refused if unread."""
    names = _listed_cursors(store, f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}")
    return [cursor_name(name) for name in names or ()]


def _listed_cursors(store: MetadataStore, path: str) -> Sequence[str] | None:
    """None without a z-node at ``path``."""
    listing = store.children([path])[0]
    if isinstance(listing, Unread) or (listing and not listing.is_whole):
        raise RefusedBy(Code.CURSORS_UNREAD, f"the cursors below {path} could not be listed whole")
    return listing.names if listing else None


def with_pending_acks(store: MetadataStore, topic: Topic, cursors: Iterable[str]) -> frozenset[str]:
    """Of a topic's cursors, by their z-nodes' names, those that have such a topic, by their shown names."""
    shown = [cursor_name(name) for name in cursors]
    folder = f"{MANAGED_LEDGERS_ROOT}/{topic.namespace}/{topic.domain}"
    nodes = store.read([f"{folder}/{encode_name(f'{topic.local}-{name}{PENDING_ACKS}')}" for name in shown])
    return frozenset(name for name, node in zip(shown, nodes, strict=True) if node is not None)


def positions(ports: Ports, root: str, path: str, cursors: Mapping[str, ManagedCursorInfo]) -> dict[str, Position]:
    """The persisted mark-delete position of each cursor of the topic at ``path``, by its shown name.

    The last entry of its cursor ledger counts, else its z-node. Raises Refused for one that cannot be read.
    """
    own = [name for name, cursor in cursors.items() if cursor.cursors_ledger_id >= 0]
    entries = stored_references.last_entries_of(
        ports.store, ports.reader, [cursors[name].cursors_ledger_id for name in own], root
    )
    found: dict[str, Position | None] = {name: cursor.mark_delete for name, cursor in cursors.items()}
    for name, (metadata, entry) in zip(own, entries, strict=True):
        try:
            found[name] = stored_references.cursor_state(metadata, entry, path).mark_delete
        except LifecycleError as error:
            where = f"cursor {cursor_name(name)}: its cursor ledger {cursors[name].cursors_ledger_id}"
            raise RefusedBy(Code.CURSORS_UNREAD, f"{where} cannot be read: {error}") from error
    positions: dict[str, Position] = {}
    for name, position in found.items():
        if position is None:
            raise RefusedBy(Code.CURSORS_UNREAD, f"cursor {cursor_name(name)}: its z-node names no position")
        positions[cursor_name(name)] = min(position, positions.get(cursor_name(name), position))
    return positions


def ledger_rows(store: MetadataStore, ids: Sequence[int], root: str) -> dict[int, Mapping[str, Any] | None]:
    """Rows of ``tables.BOOKKEEPER_LEDGERS`` by id; None for a ledger that does not exist."""
    found: dict[int, Mapping[str, Any] | None] = dict.fromkeys(ids)
    nodes: list[Node] = []
    for ledger_id, node in zip(ids, store.read([ledger_path.ledger_path(i, root) for i in ids]), strict=True):
        if isinstance(node, Node):
            nodes.append(node)
        elif node is not None:
            unread = {"ledger_id": ledger_id, "problem": Problem.UNREAD.value, "error": node.reason, "length": 0}
            found[ledger_id] = dict.fromkeys(tables.BOOKKEEPER_LEDGERS.names) | unread
    if nodes:
        found |= {row["ledger_id"]: row for row in bookkeeper_ledgers.ledger_dictionaries(nodes, root)}
    return found


def named_by_cursors(ports: Ports, root: str, path: str, cursors: Mapping[str, ManagedCursorInfo]) -> set[int]:
    """Cursor ledgers, delayed-index snapshots and compacted ledgers that the cursors of the topic at ``path`` name.

    Raises Refused or CorruptFormat for what cannot be read.
    """
    named: set[int | None] = set()
    for name, cursor in cursors.items():
        named |= {
            cursor.cursors_ledger_id,
            *(b.ledger_id for b in cursor_format.bucket_ledgers(cursor.cursor_properties)),
        }
        if name != COMPACTION_CURSOR:
            continue
        named.add(cursor_format.compacted_ledger(cursor.properties))
        if cursor.cursors_ledger_id >= 0:
            owned = [(path[len(MANAGED_LEDGERS_ROOT) + 1 :], path, cursor.cursors_ledger_id)]
            stored = stored_references.compaction_references(ports.store, ports.reader, owned, root)
            for one in stored:
                if one.problem:
                    raise RefusedBy(Code.CURSORS_UNREAD, f"its compacted ledger cannot be known: {one.error}")
            named |= {one.ledger_id for one in stored}
    return {i for i in named if i is not None and i >= 0}


def is_gone(ports: Ports, node: Node, check: Callable[[], None], *, wait: bool) -> bool:
    """Whether a z-node that a broker was told to delete is gone, or another one is in its place.

    ``wait``: the request had no answer, so look for a while. ``check`` is called before each look but the first, and
    raises if the run must stop.
    """
    for seconds in LOOKS_AFTER if wait else LOOKS_AFTER[:1]:
        if seconds:
            ports.clock.sleep(seconds)
            check()
        ports.store.sync("/")
        after = ports.store.read([node.path])[0]
        if after is None or (isinstance(after, Node) and after.stat.czxid != node.stat.czxid):
            return True
    return False
