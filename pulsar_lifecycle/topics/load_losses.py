"""What a topic loses as soon as a broker loads it, whoever has it loaded and for however short a time.

Belongs here: the policies that decide it, and the rule, by the names of a topic's cursors. Pure. Not here: reading them
(``topics/topic_run.py``), what a broker does to a topic that stays loaded (``lifecycle/load/monitors.py``). Upstream:
``PersistentTopic.initialize``, ``initTopicPolicy``, ``checkReplication`` and ``removeOrphanReplicationCursors``,
``ManagedLedgerImpl.initializeCursors``, ``MessageDeduplication.checkStatus``, Pulsar 4.0.7.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.model import COMPACTION_CURSOR, Topic
from pulsar_lifecycle.topics.policies import (
    CLUSTERS,
    IN_CHANGE_EVENTS,
    POLICY_SWITCHES,
    SERVICE,
    InForce,
    Layers,
    cluster_names,
    replication_clusters,
    topics_have_policies,
)
from pulsar_lifecycle.values.codes import Why

TTL, _BROKER_TTL = "messageTTLInSeconds", "ttlDurationDefaultInSeconds"
DEDUPLICATES, _BROKER_DEDUPLICATES = "deduplicationEnabled", "brokerDeduplicationEnabled"
"""What TopicPolicies calls the policies of TTL and deduplication, and broker.conf its own."""
_ALLOWED, _CLUSTER = "allowed_clusters", "clusterName"
_DELETED = "deleted"
_LAZY = "lazyCursorRecovery"
_REPLICATOR = "replicatorPrefix"
LOSS_NAMES = frozenset({_BROKER_TTL, _BROKER_DEDUPLICATES, _CLUSTER, _LAZY, _REPLICATOR})
"""What broker.conf calls what brokers have a say in here."""

DEDUPLICATION, REPLICATOR = "pulsar.dedup", "pulsar.repl."
"""Cursors that are no subscriptions of clients; a replicator's name begins so by default."""


class LoadLoss(StrEnum):
    """What a topic loses by a load; no setting lifts any."""

    NAMESPACE_DELETED = "namespace_deleted"
    """Its namespace is being deleted, or that broke off: its policies say `deleted`, and brokers load no topic of it.
    No setting lifts this."""
    CURSORS_COME_LATER = "cursors_come_later"
    """It has subscriptions, or other cursors, and brokers say `lazyCursorRecovery=true`: one that loads it knows none
    of them at first, may trim or delete it as if it had none, and finds none to expire. No setting lifts this."""
    NOT_REPLICATED_HERE = "not_replicated_here"
    """Its replication clusters leave this cluster out: its broker would delete it whole at once, whatever is unread.
    No setting lifts this."""
    GLOBAL_TTL_WOULD_EXPIRE = "global_ttl_would_expire"
    """It has unread messages, and global policies beside its own. A broker that loads it takes the global ones first,
    and drops what is past their TTL, or the namespace's where they have none; its own is longer, or none. No setting
    lifts this."""
    DEDUPLICATION_WOULD_FORGET = "deduplication_would_forget"
    """It has deduplication, and global policies beside its own. A broker that loads it takes the global ones first: by
    these, or the namespace where they say nothing of it, deduplication is off, and the broker deletes `pulsar.dedup`,
    with what producers have sent by then. What they send again would be stored again. No setting lifts this."""
    REPLICATOR_WOULD_BE_DELETED = "replicator_would_be_deleted"
    """Its broker would delete a replicator's cursor, with what that has not sent yet: its replication clusters do not
    name that cluster any more. No setting lifts this."""
    LOSS_UNKNOWN = "loss_unknown"
    """Its policies, or its namespace's, are not known, or brokers do not say the same `clusterName` and
    `replicatorPrefix`: what it would lose by a load is not known."""

    @property
    def why(self) -> Why:
        """The same as a sentence, with what to do."""
        return Why(self, f"a broker that loads its topic {_WOULD[self]} ({self})")


_WOULD = {
    LoadLoss.NAMESPACE_DELETED: "fails, as its namespace is being deleted: `pulsar-admin namespaces delete` it again",
    LoadLoss.CURSORS_COME_LATER: (
        "knows none of its cursors at first, and may trim or delete it as if it had none: set lazyCursorRecovery=false "
        "in broker.conf and restart the brokers"
    ),
    LoadLoss.NOT_REPLICATED_HERE: (
        "deletes it whole at once, as its replication clusters leave this cluster out: name this cluster among them"
    ),
    LoadLoss.GLOBAL_TTL_WOULD_EXPIRE: (
        "drops unread messages by its global policies first: set its global TTL to its own, or longer, also where it "
        "has none (`pulsar-admin topicPolicies set-message-ttl --global`)"
    ),
    LoadLoss.DEDUPLICATION_WOULD_FORGET: (
        f"deletes {DEDUPLICATION} by its global policies first: turn its deduplication on globally, too (`pulsar-admin "
        "topicPolicies set-deduplication --enable --global`)"
    ),
    LoadLoss.REPLICATOR_WOULD_BE_DELETED: (
        "deletes a replicator's cursor with what it has not sent, as its replication clusters do not name that "
        "cluster: name it again until all is sent; if all is, have a client load the topic"
    ),
    LoadLoss.LOSS_UNKNOWN: (
        "may have it lose data, as its policies, or its brokers' settings, are not known: look whether all brokers "
        "answer and agree; `pulsar-lifecycle explain` of it says what cannot be read"
    ),
}


@dataclass(frozen=True, slots=True)
class Replication:
    """The clusters that a topic is replicated to beside this one, and whether this one may have it at all."""

    elsewhere: frozenset[str] = frozenset()
    here: bool = True


@dataclass(frozen=True, slots=True)
class LoadLosses:
    """What counts by namespace and topic; of a namespace that ``replication`` does not name nothing is known.

    ``replication``: None where it is unknown; what is left to a topic by what a broker takes :func:`at_first` and by
    what is in force. ``replicator``: how replicators' cursors begin; None: unknown. ``deleted``: namespaces that are
    being deleted. ``globally_expired``: topics, or partitioned ones, that a broker expires at a load by another TTL
    than theirs, as it takes them at first. ``forgotten``: those with deduplication, for which it is off at first, or
    may be. ``lazy_cursors``: brokers have a topic loaded before they know its cursors, and take it for one without any
    until a client asks for them.
    """

    replication: InForce[Replication | None] = field(default_factory=lambda: InForce({}))
    replicator: str | None = REPLICATOR
    deleted: frozenset[str] = frozenset()
    globally_expired: frozenset[str] = frozenset()
    forgotten: frozenset[str] = frozenset()
    lazy_cursors: bool = False

    def of(self, topic: Topic, cursors: Collection[str]) -> LoadLoss | None:
        """What a topic with these cursors (``model.cursor_name``) loses, taking all of them to have unread messages."""
        unread = not {COMPACTION_CURSOR, DEDUPLICATION}.issuperset(cursors)
        return next(iter(self.all_of(topic, cursors, has_cursors=bool(cursors), unread=unread)), None)

    def all_of(self, topic: Topic, cursors: Collection[str], *, has_cursors: bool, unread: bool) -> list[LoadLoss]:
        """All that it loses. ``unread``: a cursor has not acknowledged all of it, or may not have."""
        namespace, owner = str(topic.namespace), str(topic.partitioned_parent)
        if namespace in self.deleted:
            return [LoadLoss.NAMESPACE_DELETED]
        replication = self.replication.of(topic) if namespace in self.replication.by_namespace else None
        if replication is None or self.replicator is None:
            return [LoadLoss.LOSS_UNKNOWN]
        sends = {name.rpartition(".")[2] for name in cursors if name.startswith(self.replicator)}
        lost = {
            LoadLoss.CURSORS_COME_LATER: self.lazy_cursors and has_cursors,
            LoadLoss.NOT_REPLICATED_HERE: not replication.here,
            LoadLoss.GLOBAL_TTL_WOULD_EXPIRE: unread and owner in self.globally_expired,
            LoadLoss.DEDUPLICATION_WOULD_FORGET: DEDUPLICATION in cursors and owner in self.forgotten,
            LoadLoss.REPLICATOR_WOULD_BE_DELETED: not sends <= replication.elsewhere,
        }
        return [code for code, holds in lost.items() if holds]


def is_subscription(cursor: str, replicator: str) -> bool:
    """Whether a cursor, by its name as ``model.cursor_name`` shows it, is a subscription of clients."""
    return cursor not in (COMPACTION_CURSOR, DEDUPLICATION) and not cursor.startswith(replicator)


def losses_in_force(layers: Layers) -> LoadLosses:
    """By what topics, namespaces and brokers say; what one of them says wrongly, or nobody, is unknown."""
    prefix = layers.brokers.get(_REPLICATOR)
    return LoadLosses(
        where_known(layers, layers.in_force(CLUSTERS, _replication)),
        f"{prefix}." if prefix else None,
        frozenset(name for name, said in layers.namespaces.items() if said.get(_DELETED) is True),
        _where_at_first(layers, _sooner),
        _where_at_first(layers, _forgets),
        layers.brokers.get(_LAZY) == "true",
    )


def brokers_say(configurations: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """What all brokers say alike, as :func:`losses_in_force` needs it; cursors come later where one of them says so.

    ``configurations``: by broker id.
    """
    said = [{SERVICE: IN_CHANGE_EVENTS, **one} for one in configurations.values()]  # earlier brokers do not say it
    values = {name: {one.get(name) for one in said} for name in LOSS_NAMES | POLICY_SWITCHES}
    alike = {name: value for name, found in values.items() if len(found) == 1 and (value := next(iter(found)))}
    if any(len(values[name]) > 1 for name in POLICY_SWITCHES):  # nobody knows where policies of topics are
        alike.pop(_CLUSTER, None)
    return alike | ({_LAZY: "true"} if "true" in values[_LAZY] else {})


def at_first(topic: TopicPolicies) -> TopicPolicies | None:
    """What a broker acts by as it loads a topic that has global policies, before its local ones count; None: in force.

    ``PersistentTopic.initTopicPolicy`` takes the global policies, and ``applyUpdatedTopicPolicies`` expires messages
    and deletes replicators or the topic by them; then the same with the local ones. What global policies leave out,
    the namespace says at that moment, whatever the local ones say.
    """
    return None if topic.local is None or topic.everywhere is None else TopicPolicies(None, topic.everywhere)


def where_known(layers: Layers, found: InForce[Any]) -> InForce[Any]:
    """Where the policies of a namespace's topics could not be read, a topic of it may have any."""
    if not topics_have_policies(layers.brokers):
        return found
    read = {name for name, own in layers.topics.items() if own.unknown is None}
    return InForce({name: one if name in read else None for name, one in found.by_namespace.items()}, found.by_topic)


def ttl(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]) -> int | None:
    """In seconds, 0 for none. A policy below 0 counts as none (``AbstractTopic.normalizeValue``)."""
    own = ((one or {}).get(TTL) for one in (topic.local, topic.everywhere))
    for said in (*own, (namespace or {}).get("message_ttl_in_seconds")):
        if said is not None and type(said) is not int:
            return None
        if said is not None and said >= 0:
            return said
    return broker_number(broker, _BROKER_TTL)


def broker_number(broker: Mapping[str, str], name: str) -> int | None:
    """A number of broker.conf, 0 for one below it."""
    try:
        return max(0, int(broker[name]))
    except (KeyError, ValueError):
        return None


def _where_at_first(
    layers: Layers, rule: Callable[[TopicPolicies, TopicPolicies, Mapping[str, Any], Mapping[str, str]], bool]
) -> frozenset[str]:
    """Topics for which a rule holds of what counts :func:`at_first` and of their policies."""
    return frozenset(
        str(topic)
        for namespace, own in layers.topics.items()
        for topic, said in own.topics.items()
        if (first := at_first(said)) and rule(first, said, layers.namespaces[namespace], layers.brokers)
    )


def _sooner(
    first: TopicPolicies, topic: TopicPolicies, namespace: Mapping[str, Any], broker: Mapping[str, str]
) -> bool:
    """Whether the TTL of ``first`` ends before that of ``topic``, or may."""
    early, own = ttl(first, namespace, broker), ttl(topic, namespace, broker)
    return early is None or (early > 0 and (not own or own > early))


def _forgets(
    first: TopicPolicies, topic: TopicPolicies, namespace: Mapping[str, Any], broker: Mapping[str, str]
) -> bool:
    """``MessageDeduplication.checkStatus`` deletes its cursor where it is off as the topic is loaded."""
    return deduplicates(topic, namespace, broker) is not False and deduplicates(first, namespace, broker) is not True


def deduplicates(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]) -> bool | None:
    """Whether a topic has deduplication."""
    for said in (topic.first(DEDUPLICATES), (namespace or {}).get(DEDUPLICATES)):
        if said is not None:
            return said if type(said) is bool else None
    return {"true": True, "false": False}.get(broker.get(_BROKER_DEDUPLICATES, ""))


def _replication(
    topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]
) -> Replication | None:
    """A topic that names clusters, and not this one, brokers delete as soon as they load it. Naming none is no word."""
    found = _replicated(topic, namespace, broker)
    if (first := at_first(topic)) is None or found is None:
        return found
    early = _replicated(first, namespace, broker)
    return early and Replication(early.elsewhere & found.elsewhere, early.here and found.here)


def _replicated(
    topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]
) -> Replication | None:
    clusters, allowed = replication_clusters(topic, namespace), cluster_names((namespace or {}).get(_ALLOWED))
    here = broker.get(_CLUSTER)
    if clusters is None or allowed is None or here is None:
        return None
    return Replication(clusters - {here}, not clusters or here in clusters | allowed)
