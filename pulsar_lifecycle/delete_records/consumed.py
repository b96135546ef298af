"""Policy ``consumed_records``: what every named subscription has acknowledged is deleted, whatever retention says.

Belongs here: which topics, up to where, and what stops it. Not here: planning and applying, which are those of any
request. Source: KIP-107, "an external service which calls deleteDataBefore() API based on committed offset of consumer
groups". A subscription that the policy names and that does not exist stops its topic: it may be made yet, and need
what was there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from pulsar_lifecycle.delete_records import cut_rules
from pulsar_lifecycle.delete_records.cut_rules import Refusal
from pulsar_lifecycle.delete_records.offset_file import RequestedOffset
from pulsar_lifecycle.delete_records.records_planning import plan_delete_records
from pulsar_lifecycle.delete_records.request import END, Offset, TopicPartition
from pulsar_lifecycle.delete_records.requested_partitions import partitions_of
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, RefusedBy
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, PENDING_ACKS, MessagePosition, Namespace, Topic, decode_name
from pulsar_lifecycle.ports import ClusterPorts, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.topic_run import topic_ports
from pulsar_lifecycle.values.codes import Code, Why, why_refused
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary


@dataclass(frozen=True, slots=True)
class Consumed:
    """Where each topic of the policy may be cut, and why others stay as they are; ``named``: who counts for each.

    ``empty``: namespaces of the policy that have no topic; one of them may be misspelt.
    """

    offsets: Mapping[TopicPartition, Offset] = field(default_factory=dict[TopicPartition, Offset])
    stopped: Mapping[TopicPartition, Why] = field(default_factory=dict[TopicPartition, Why])
    named: Mapping[TopicPartition, tuple[str, ...]] = field(default_factory=dict[TopicPartition, tuple[str, ...]])
    empty: tuple[str, ...] = ()


def plan_consumed_records(cluster: Cluster) -> tuple[PlanSummary | None, pa.Table | None, Consumed]:
    """Plan to delete what the policy's subscriptions have consumed; no plan where nothing may be cut.

    Writes nothing to the cluster. Raises what planning raises.
    """
    consumed = consumed_offsets(cluster)
    if not consumed.offsets:
        return None, None, consumed
    summary, rows = plan_delete_records(cluster, consumed.offsets, kind=PlanKind.CONSUMED_RECORDS)
    return summary, rows, consumed


def consumed_offsets(cluster: Cluster) -> Consumed:
    """The lowest persisted position of each topic's named subscriptions."""
    policy = cluster.settings.consumed_records.subscriptions
    offsets: dict[TopicPartition, Offset] = {}
    with cluster.ports(read_only=True) as connections, topic_ports(cluster, read_only=True) as ports:
        ports.store.sync("/")
        named, stopped, empty = _topics(connections, policy)
        for topic, names in named.items():
            try:
                offsets[topic] = _lowest(ports, cluster.settings.bookkeeper.ledgers_root, topic, names)
            except RefusedBy as refusal:
                stopped[topic] = why_refused(refusal)
            except LifecycleError as error:
                stopped[topic] = Why(Code.CURSORS_UNREAD, f"its cursors could not be read: {error}")
    return Consumed(offsets, stopped, named, empty)


def stopped_since(
    cluster: Cluster, topics: Iterable[TopicPartition]
) -> tuple[dict[TopicPartition, Refusal], Mapping[TopicPartition, tuple[str, ...]]]:
    """Topics of a plan that this policy leaves alone by now, with why, and the subscriptions that each must have.

    Somebody may have deleted a subscription since the plan was made, or taken the topic out of the settings.
    """
    now = consumed_offsets(cluster)
    found: dict[TopicPartition, Refusal] = {}
    for topic in topics:
        if topic not in now.offsets:
            found[topic] = Refusal(RecordsError.CHANGED, now.stopped.get(topic, _NOT_NAMED))
    return found, now.named


_NOT_NAMED = Why(RecordsError.CHANGED, "consumed_records.subscriptions does not name it any more")


def _topics(
    ports: ClusterPorts, policy: Mapping[str, tuple[str, ...]]
) -> tuple[dict[TopicPartition, tuple[str, ...]], dict[TopicPartition, Why], tuple[str, ...]]:
    """The subscriptions that count for each topic, partitioned topics whose partitions are not known, empty namespaces.

    What names a partition goes before what names its topic, and that before what names its namespace. So it does for a
    partition that only its namespace shows, as its topic's metadata does not name it, is lost or cannot be read.
    """
    found: dict[TopicPartition, tuple[str, ...]] = {}
    unread: dict[TopicPartition, Why] = {}
    empty: list[str] = []
    own = {Topic.parse(name): names for name, names in policy.items() if "://" in name}
    for name in sorted(policy, key=_narrowness):
        if "://" not in name:
            of_namespace = _of_namespace(ports, Namespace.parse(name))
            empty += [] if of_namespace else [name]
            found |= {topic: own.get(topic.partitioned_parent, policy[name]) for topic in of_namespace}
            continue
        try:
            found |= dict.fromkeys(_named(ports, name), policy[name])
        except (CorruptFormat, RefusedBy) as error:
            unread[Topic.parse(name)] = Why(Code.TOPIC_UNREAD, f"its partitions are not known: {error}")
    return found, unread, tuple(empty)


def _narrowness(name: str) -> int:
    if "://" not in name:
        return 0
    return 1 if Topic.parse(name).partition is None else 2


def _named(ports: ClusterPorts, name: str) -> list[TopicPartition]:
    return list(partitions_of(ports.store, ports.configuration, [RequestedOffset(Topic.parse(name), None, END, name)]))


def _of_namespace(ports: ClusterPorts, namespace: Namespace) -> list[TopicPartition]:
    """Its topics but for system topics, and for what keeps subscriptions' acknowledgements in transactions."""
    path = f"{MANAGED_LEDGERS_ROOT}/{namespace}/persistent"
    listing = ports.store.children([path])[0]
    if isinstance(listing, Unread):
        raise RefusedBy(Code.TOPIC_UNREAD, f"the topics below {path} could not be listed: {listing.reason}")
    found: list[TopicPartition] = []
    for name in sorted(listing.names) if listing else ():
        try:
            local = decode_name(name)
        except CorruptFormat:
            continue  # no topic that a client can name
        if not local.startswith("__") and not local.endswith(PENDING_ACKS):
            found.append(Topic(namespace, local))
    return found


def _lowest(ports: Ports, root: str, topic: TopicPartition, named: tuple[str, ...]) -> MessagePosition:
    """The first message that a named subscription has yet to acknowledge. Raises Refused where one is missing."""
    node, info = snapshot.topic_node(ports.store, topic)
    positions = snapshot.positions(ports, root, node.path, snapshot.cursors(ports.store, node.path))
    if why := cut_rules.subscription_missing(named, positions):
        raise RefusedBy(why.code, why.text)
    lowest = min(positions[name] for name in named)
    listed = sorted(item.ledger_id for item in info.ledgers)
    if lowest.ledger_id not in listed:  # brokers take ledgers without entries off the list, wherever cursors stand
        following = next((i for i in listed if i > lowest.ledger_id), max(lowest.ledger_id, 0))
        return MessagePosition(following, 0)
    return MessagePosition(lowest.ledger_id, lowest.entry_id + 1)
