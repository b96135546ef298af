"""One partition at one moment: its ledgers, its cursors, its low watermark, its clusters; read without loading it.

Belongs here: reading what ``cut_rules.py`` judges. Not here: the rules (``cut_rules.py``), and what is in the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pulsar_lifecycle.copies.listed_ledgers import BookKeeperCopy, copies_of
from pulsar_lifecycle.delete_records import cut_rules
from pulsar_lifecycle.delete_records.cut_rules import Cut, Refusal
from pulsar_lifecycle.delete_records.partition import Extent, PartitionView
from pulsar_lifecycle.delete_records.request import TopicPartition
from pulsar_lifecycle.errors import LifecycleError, NotFound, RefusedBy, Unavailable
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.cursor import ManagedCursorInfo
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.metastore.load_state import BrokerAnswers
from pulsar_lifecycle.metastore.namespaces import policies_in
from pulsar_lifecycle.model import COMPACTION_CURSOR, MANAGED_LEDGERS_ROOT, POLICIES_ROOT, Namespace, Topic
from pulsar_lifecycle.ports import MetadataStore, Node, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.topics import low_watermark, snapshot
from pulsar_lifecycle.topics.bundle_owner import Owners
from pulsar_lifecycle.topics.policies import CLUSTERS, NamespacePolicies, replication_clusters
from pulsar_lifecycle.topics.snapshot import TopicReading
from pulsar_lifecycle.topics.system_topics.change_events import read_namespace
from pulsar_lifecycle.topics.system_topics.system_topic import LedgerSource
from pulsar_lifecycle.topics.write import SHADOWS_SEEN_FOR, STOPPING, TopicRun, why_loaded
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError

CLUSTERS_ROOT = "/admin/clusters"
"""A z-node for each cluster of the instance (ClusterResources)."""
GLOBAL = "global"
"""The z-node there that stands for no cluster (Constants.GLOBAL_CLUSTER)."""


@dataclass(frozen=True, slots=True)
class Read:
    """A partition, and how it was read."""

    view: PartitionView
    reading: TopicReading

    @property
    def node(self) -> Node:
        """The z-node that says so."""
        return self.reading.node


def read_partition(run: TopicRun, ports: Ports, brokers: BrokerAnswers, topic: Topic) -> Read | Refusal:
    """A partition as it is now; an error where it cannot be read, or a broker that does not answer may have it."""
    try:
        if why := unanswered_owner(ports.store, brokers, topic):
            return Refusal.plain(RecordsError.TIMEOUT, why)
        return view_of(run, ports, brokers, topic)
    except STOPPING:
        raise
    except NotFound as error:
        return Refusal.plain(RecordsError.UNKNOWN_PARTITION, str(error))
    except Unavailable as error:
        return Refusal.plain(RecordsError.TIMEOUT, str(error))
    except LifecycleError as error:
        return Refusal.of(RecordsError.UNREAD, error)


def unanswered_owner(store: MetadataStore, brokers: BrokerAnswers, topic: Topic) -> str | None:
    """Why a broker that does not answer may have a topic loaded; None if none may."""
    if not brokers.unanswered:
        return None
    if str(topic) in brokers.brokers.loaded:
        return None
    owner = Owners().of(store, brokers.brokers, topic)
    if owner and owner not in brokers.unanswered:
        return None
    broker = owner or next(iter(brokers.unanswered))
    return f"broker {broker}, which has it or may have it, does not answer: {brokers.unanswered[broker]}"


def view_of(run: TopicRun, ports: Ports, brokers: BrokerAnswers, topic: Topic) -> Read:
    """Read a partition afresh. Raises NotFound where there is none, Refused for what cannot be read of it."""
    root = run.ledgers_root
    try:
        reading = TopicReading(ports.store, root, topic, lambda info: [item.ledger_id for item in info.ledgers])
    except RefusedBy as refusal:
        if refusal.code is not Code.TOPIC_GONE:
            raise
        path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
        raise NotFound(f"{path} does not exist: there is no such topic or partition") from refusal
    node, info, cursors = reading.node, reading.info, reading.cursors
    copies = copies_of(reading.rows([item.ledger_id for item in info.ledgers]), topic, run.context)
    extents, unmeasured = _extents(ports, root, info, copies)
    view = PartitionView(
        topic,
        info,
        low_watermark.of(info.properties),
        extents,
        cursors,
        snapshot.positions(ports, root, node.path, cursors),
        copies,
        why_loaded(reading.store, root, brokers.brokers, run.now, topic, node, info),
        brokers.brokers.loaded.get(str(topic), ""),
        run.topic_rule(topic, snapshot.shadow_source(reading.store, topic, info), SHADOWS_SEEN_FOR),
        compacted_view(ports, root, node.path, cursors),
        snapshot.with_pending_acks(ports.store, topic, cursors),
        frozenset(clients.consumers) if (clients := brokers.connections.get(str(topic))) else frozenset(),
        brokers.replicators,
        unmeasured,
    )
    return Read(view, reading)


def _extents(
    ports: Ports, root: str, info: ManagedLedgerInfo, copies: Mapping[int, BookKeeperCopy]
) -> tuple[tuple[Extent, ...], Why | None]:
    """What is listed, and ``PartitionView.unmeasured``. Raises Refused for the length of any but the last ledger."""
    items = sorted(info.ledgers, key=lambda item: item.ledger_id)
    rows = [copies[item.ledger_id].row for item in items]
    still_open = [i.ledger_id for i, row in zip(items, rows, strict=True) if row and row["state"] != _CLOSED]
    metadata = dict(zip(still_open, stored_references.metadata_of(ports.store, still_open, root), strict=True))
    asked = [(i, m) for i, m in metadata.items() if isinstance(m, LedgerMetadata)]
    last = dict(zip((i for i, _ in asked), ports.reader.last_entries(asked), strict=True))
    found: list[Extent] = []
    unmeasured: Why | None = None
    for item, row in zip(items, rows, strict=True):
        entries, written = item.entries, 0
        if row and row["state"] == _CLOSED:
            entries = row["entries"]
        elif row:
            entry = last.get(item.ledger_id, NotFound("its z-node cannot be read"))
            if isinstance(entry, LifecycleError) and not isinstance(entry, NotFound):
                text = (
                    f"ledger {item.ledger_id}: how many entries it has cannot be known: {entry}; start that bookie, or "
                    "have its topic unloaded, which closes the ledger, then ask again"
                )
                if item is not items[-1]:
                    raise RefusedBy(Code.LENGTH_UNKNOWN, text)
                unmeasured = Why(Code.LENGTH_UNKNOWN, f"{text}; or ask for {item.ledger_id}:0, or a position below it")
            entries = 0
            if entry is not None and not isinstance(entry, LifecycleError):
                entries, written = entry.entry_id + 1, (entry.length or 0) * max(row["write_quorum"] or 1, 1)
        if entries is None:
            text = f"ledger {item.ledger_id}: neither its topic nor BookKeeper says how many entries it has"
            raise RefusedBy(Code.LENGTH_UNKNOWN, text)
        found.append(Extent(item if item.entries else replace(item, entries=entries), entries, written))
    return tuple(found), unmeasured


_CLOSED = LedgerState.CLOSED.name


def compacted_view(ports: Ports, root: str, path: str, cursors: Mapping[str, ManagedCursorInfo]) -> int | None:
    """The ledger of a topic's compacted view, by its z-node's ``path``; None without one. Raises Refused if unread."""
    cursor = cursors.get(COMPACTION_CURSOR)
    if cursor is None:
        return None
    if cursor.cursors_ledger_id >= 0:
        owner = path[len(MANAGED_LEDGERS_ROOT) + 1 :]
        for one in stored_references.compaction_references(
            ports.store, ports.reader, [(owner, path, cursor.cursors_ledger_id)], root
        ):
            if one.problem:
                raise RefusedBy(Code.CURSORS_UNREAD, f"its compacted view cannot be known: {one.error}")
            return one.ledger_id
    return cursor_format.compacted_ledger(cursor.properties)


Clusters = frozenset[str] | Refusal
"""Those that a topic is replicated to beside its own; or why that is not known."""


def replication_of(
    configuration: MetadataStore, ports: Ports, root: str, cluster: str, topics: Iterable[TopicPartition]
) -> dict[TopicPartition, Clusters]:
    """Where each topic of ``cluster`` (as brokers call it; empty: not known) is replicated to, as policies say now.

    Raises what the stores raise for all that they are asked.
    """
    asked = list(topics)
    namespaces = list(dict.fromkeys(topic.namespace for topic in asked))
    configuration.sync("/")
    paths = [f"{POLICIES_ROOT}/{namespace}" for namespace in namespaces]
    by_namespace: dict[Namespace, Clusters] = {}
    own: dict[Namespace, NamespacePolicies] = {}
    source = LedgerSource(ports.store, ports.reader, lambda: ports.objects, root)
    for namespace, path, node in zip(namespaces, paths, configuration.read(paths), strict=True):
        by_namespace[namespace] = _named(path, node)
        own[namespace] = read_namespace(source, namespace)
    alone = any(policies.unknown for policies in own.values()) and _is_alone(configuration, cluster)
    found = {
        topic: by_namespace[topic.namespace]
        if alone and own[topic.namespace].unknown
        else clusters_of(topic, by_namespace[topic.namespace], own[topic.namespace])
        for topic in asked
    }
    return {topic: others(cluster, named) for topic, named in found.items()}


def _is_alone(configuration: MetadataStore, cluster: str) -> bool:
    """Whether there is no other cluster that a topic's own policies could name: then nobody needs to read them."""
    (listing,) = configuration.children([CLUSTERS_ROOT])
    if listing is None or isinstance(listing, Unread) or not listing.is_whole:
        return False
    return {*listing.names} - {GLOBAL} == {cluster}


def others(cluster: str, named: Clusters) -> Clusters:
    """The clusters that a topic or its namespace has ``named``, but for its own one."""
    if isinstance(named, Refusal):
        return named
    if named and not cluster:
        which = ", ".join(sorted(named))
        text = f"which of {which} is its own cluster is not known: brokers say no clusterName, or not the same"
        return Refusal.plain(RecordsError.UNREAD, text)
    return named - {cluster}


def unreplicated(view: PartitionView, clusters: Mapping[TopicPartition, Clusters]) -> Refusal | None:
    """Why a partition may not be cut, as some other cluster waits for it or that is not known; None if it may."""
    found = clusters[view.topic]
    return found if isinstance(found, Refusal) else cut_rules.unreplicated(view, found)


def losing(view: PartitionView, cut: Cut, lost: Callable[[PartitionView], Why | None]) -> Refusal | None:
    """Why its broker is not asked for what a partition is loaded for: something is ``lost`` by it. None if it may be.

    Moving a cursor has one loaded that no broker has; a new ledger is begun by a load, whoever had it before. One that
    counts as loaded is unloaded once its ledgers are off its list: that loads it first where no broker has it, and its
    clients load it again.
    """
    unloaded = view.loaded and cut.ledgers
    if not cut.rolls and not unloaded and (view.broker or not cut.moved):
        return None
    loss = lost(view)
    return Refusal(RecordsError.LOAD_WOULD_LOSE, loss) if loss else None


def clusters_of(topic: TopicPartition, of_namespace: Clusters, own: NamespacePolicies) -> Clusters:
    """What is named for a topic; ``own``: what topics of its namespace say themselves."""
    if own.unknown:
        return Refusal.plain(RecordsError.UNREAD, f"whether it is replicated is not known: {own.unknown}")
    said = own.of(topic)
    return of_namespace if said.first(CLUSTERS) is None else _known(f"topic {topic}", said, None)


def unread_policies(configuration: MetadataStore, namespace: Namespace) -> Refusal | None:
    """Why a namespace's policies cannot be read, by brokers either; None if they can."""
    path = f"{POLICIES_ROOT}/{namespace}"
    (node,) = configuration.read([path])
    named = _named(path, node)
    return named if isinstance(named, Refusal) else None


def _named(path: str, node: Node | Unread | None) -> Clusters:
    try:
        namespace = policies_in(path, node)
    except LifecycleError as error:
        return Refusal.plain(RecordsError.UNREAD, str(error))
    return _known(path, TopicPolicies(), namespace)


def _known(where: str, topic: TopicPolicies, namespace: Mapping[str, Any] | None) -> Clusters:
    found = replication_clusters(topic, namespace)
    return Refusal.plain(RecordsError.UNREAD, f"{where}: {CLUSTERS} is no list of clusters") if found is None else found
