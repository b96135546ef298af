"""What a broker does by itself to a topic that it has loaded: expiry, quotas, inactivity, replication, compaction.

Belongs here: the policies in force by topic, namespace and brokers. Pure. Not here: reading them
(``topics/retention_now.py``), which topics that concerns (``lifecycle/load/load_rules.py``). Upstream:
``PersistentTopic.checkMessageExpiry``, ``checkInactiveSubscriptions``, ``checkGC``, ``checkCompaction``,
``checkReplication`` and ``removeOrphanReplicationCursors``, ``BrokerService``, ``BacklogQuotaManager``, Pulsar 4.0.7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.model import COMPACTION_CURSOR, Topic
from pulsar_lifecycle.topics.policies import (
    CLUSTERS,
    INACTIVE,
    InForce,
    Layers,
    cluster_names,
    replication_clusters,
    topics_have_policies,
)

_TTL = "messageTTLInSeconds"
_BROKER_TTL = "ttlDurationDefaultInSeconds"
_BROKER_EXPIRY = "subscriptionExpirationTimeMinutes"
_BROKER_DELETES, _BROKER_MODE = "brokerDeleteInactiveTopicsEnabled", "brokerDeleteInactiveTopicsMode"
_SYSTEM_CURSORS = "additionalSystemCursorNames"
_REPLICATOR = "replicatorPrefix"
_UNSUBSCRIBED = "delete_when_no_subscriptions"
_QUOTA_CHECKED, _QUOTA_POLICY = "backlogQuotaCheckEnabled", "backlogQuotaDefaultRetentionPolicy"
_QUOTA_BYTES, _QUOTA_GB = "backlogQuotaDefaultLimitBytes", "backlogQuotaDefaultLimitGB"
_QUOTA_SECONDS = "backlogQuotaDefaultLimitSecond"
_QUOTAS, _NAMESPACE_QUOTAS = "backLogQuotaMap", "backlog_quota_map"
_EVICTS = "consumer_backlog_eviction"
_ALLOWED, _CLUSTER = "allowed_clusters", "clusterName"
_DELETED = "deleted"
_COMPACTS, _NAMESPACE_COMPACTS = "compactionThreshold", "compaction_threshold"
_BROKER_COMPACTS = "brokerServiceCompactionThresholdInBytes"
_DEDUPLICATES, _BROKER_DEDUPLICATES = "deduplicationEnabled", "brokerDeduplicationEnabled"
_LAZY = "lazyCursorRecovery"
BROKER_NAMES = frozenset(
    {
        *(_BROKER_TTL, _BROKER_EXPIRY, _BROKER_DELETES, _BROKER_MODE, _SYSTEM_CURSORS, _REPLICATOR),
        *(_QUOTA_CHECKED, _QUOTA_POLICY, _QUOTA_BYTES, _QUOTA_GB, _QUOTA_SECONDS, _CLUSTER, _BROKER_COMPACTS),
        *(_BROKER_DEDUPLICATES, _LAZY),
    }
)
"""What broker.conf calls all that brokers have a say in."""

CURSOR_ALONE = (1 << 63) - 1
"""A threshold of compaction that no topic reaches: its cursor is made all the same."""
LEFT_LOADED = 86_400_000
"""How long (ms) a run that dies may leave a topic loaded, until the next one unloads it."""

DEDUPLICATION, REPLICATOR = "pulsar.dedup", "pulsar.repl."
"""Cursors that are no subscriptions of clients; a replicator's name begins so by default."""
FUNCTION = r"^(?:[^/]+/[^/]+/[^/]+|participants)$"
"""Functions, sinks and sources subscribe as ``tenant/namespace/name`` (``FunctionCommon.getFullyQualifiedName``),
their workers to elect a leader as ``participants`` (``MembershipManager``)."""


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """Whether brokers delete an inactive topic; ``unsubscribed_only``: not while it has a subscription."""

    on: bool
    unsubscribed_only: bool = True


@dataclass(frozen=True, slots=True)
class Replication:
    """The clusters that a topic is replicated to beside this one, and whether this one may have it at all."""

    elsewhere: frozenset[str] = frozenset()
    here: bool = True


@dataclass(frozen=True, slots=True)
class Monitors:
    """What counts by namespace and topic; None: unknown. ``ttl`` in seconds, ``expiry`` in minutes, both 0 for none.

    ``eviction``: whether a backlog quota is in force by which brokers drop unread messages. ``compaction``: of how many
    bytes brokers begin a compaction by themselves, 0 for never, and no cursor of one either.
    ``system_cursors``: names of cursors that brokers never expire messages of, beside ``__compaction``.
    ``replicator``: how replicators' cursors begin; None: unknown. ``deleted``: namespaces that are being deleted.
    ``globally_expired``: topics, or partitioned ones, that a broker expires at a load by another TTL than theirs, as it
    takes them by :func:`_at_first`. ``replication`` is what is left to a topic by that and by what is in force.
    ``forgotten``: topics, or partitioned ones, with deduplication, for which it is off at first by that, or may be.
    ``deduplication``: 1 where it is on, else 0. A broker that loads a topic without it deletes its cursor.
    ``lazy_cursors``: brokers have a topic loaded before they know its cursors, and take it for one without any
    until a client asks for them (``ManagedLedgerImpl.initializeCursors``, ``PersistentTopic``).
    """

    ttl: InForce[int | None]
    deletion: InForce[TopicDeletion | None]
    expiry: Mapping[str, int | None]
    eviction: InForce[bool | None]
    replication: InForce[Replication | None]
    compaction: InForce[int | None]
    system_cursors: frozenset[str] = frozenset()
    replicator: str | None = REPLICATOR
    deleted: frozenset[str] = frozenset()
    globally_expired: frozenset[str] = frozenset()
    forgotten: frozenset[str] = frozenset()
    deduplication: InForce[int | None] = field(default_factory=lambda: InForce({}))
    lazy_cursors: bool = False

    def expires_messages(self, cursor: str) -> bool:
        """Whether we may have the messages of a cursor expired: it is a subscription, and no system's."""
        known = self.replicator is not None and is_subscription(cursor, self.replicator)
        return known and cursor not in self.system_cursors

    def is_undeduplicated(self, topic: Topic) -> bool:
        """Whether deduplication is known to be off for a topic."""
        return str(topic.namespace) in self.deduplication.by_namespace and self.deduplication.of(topic) == 0

    def replicates(self, cursor: str) -> bool:
        """Whether a replicator reads by a cursor; brokers expire its messages, too."""
        return self.replicator is not None and cursor.startswith(self.replicator)


def is_subscription(cursor: str, replicator: str) -> bool:
    """Whether a cursor, by its name as ``model.cursor_name`` shows it, is a subscription of clients."""
    return cursor not in (COMPACTION_CURSOR, DEDUPLICATION) and not cursor.startswith(replicator)


def monitors_in_force(layers: Layers) -> Monitors:
    """By what topics, namespaces and brokers say; what one of them says wrongly, or nobody, is unknown."""
    names, prefix = layers.brokers.get(_SYSTEM_CURSORS, "").strip("[]"), layers.brokers.get(_REPLICATOR)
    return Monitors(
        _known(layers, layers.in_force(_TTL, _ttl)),
        _known(layers, layers.in_force(INACTIVE, _deletion)),
        {name: _expiry(said, layers.brokers) for name, said in layers.namespaces.items()},
        _known(layers, layers.in_force(_QUOTAS, _eviction)),
        _known(layers, layers.in_force(CLUSTERS, _replication)),
        _known(layers, layers.in_force(_COMPACTS, _compaction)),
        frozenset(one.strip() for one in names.split(",") if one.strip()),
        f"{prefix}." if prefix else None,
        frozenset(name for name, said in layers.namespaces.items() if said.get(_DELETED) is True),
        _where_at_first(layers, _sooner),
        _where_at_first(layers, _forgets),
        _known(layers, layers.in_force(_DEDUPLICATES, _deduplication)),
        layers.brokers.get(_LAZY) == "true",
    )


def _at_first(topic: TopicPolicies) -> TopicPolicies | None:
    """What a broker acts by as it loads a topic that has global policies, before its local ones count; None: in force.

    ``PersistentTopic.initTopicPolicy`` takes the global policies, and ``applyUpdatedTopicPolicies`` expires messages
    and deletes replicators or the topic by them; then the same with the local ones. What global policies leave out,
    the namespace says at that moment, whatever the local ones say.
    """
    return None if topic.local is None or topic.everywhere is None else TopicPolicies(None, topic.everywhere)


def _known(layers: Layers, found: InForce[Any]) -> InForce[Any]:
    """Where the policies of a namespace's topics could not be read, a topic of it may have any."""
    if not topics_have_policies(layers.brokers):
        return found
    read = {name for name, own in layers.topics.items() if own.unknown is None}
    return InForce({name: one if name in read else None for name, one in found.by_namespace.items()}, found.by_topic)


def _ttl(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]) -> int | None:
    """A policy below 0 counts as none (``AbstractTopic.normalizeValue``)."""
    own = ((one or {}).get(_TTL) for one in (topic.local, topic.everywhere))
    for said in (*own, (namespace or {}).get("message_ttl_in_seconds")):
        if said is not None and type(said) is not int:
            return None
        if said is not None and said >= 0:
            return said
    return _number(broker, _BROKER_TTL)


def _where_at_first(
    layers: Layers, rule: Callable[[TopicPolicies, TopicPolicies, Mapping[str, Any], Mapping[str, str]], bool]
) -> frozenset[str]:
    """Topics for which a rule holds of what counts :func:`_at_first` and of their policies."""
    return frozenset(
        str(topic)
        for namespace, own in layers.topics.items()
        for topic, said in own.topics.items()
        if (first := _at_first(said)) and rule(first, said, layers.namespaces[namespace], layers.brokers)
    )


def _sooner(
    first: TopicPolicies, topic: TopicPolicies, namespace: Mapping[str, Any], broker: Mapping[str, str]
) -> bool:
    """Whether the TTL of ``first`` ends before that of ``topic``, or may."""
    early, own = _ttl(first, namespace, broker), _ttl(topic, namespace, broker)
    return early is None or (early > 0 and (not own or own > early))


def _forgets(
    first: TopicPolicies, topic: TopicPolicies, namespace: Mapping[str, Any], broker: Mapping[str, str]
) -> bool:
    """``MessageDeduplication.checkStatus`` deletes its cursor where it is off as the topic is loaded."""
    return _deduplicates(topic, namespace, broker) is not False and _deduplicates(first, namespace, broker) is not True


def _deduplicates(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]) -> bool | None:
    for said in (topic.first(_DEDUPLICATES), (namespace or {}).get(_DEDUPLICATES)):
        if said is not None:
            return said if type(said) is bool else None
    return {"true": True, "false": False}.get(broker.get(_BROKER_DEDUPLICATES, ""))


def _deduplication(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]) -> int | None:
    said = _deduplicates(topic, namespace, broker)
    return None if said is None else int(said)


def _expiry(namespace: Mapping[str, Any], broker: Mapping[str, str]) -> int | None:
    said = namespace.get("subscription_expiration_time_minutes")
    if said is None:
        return _number(broker, _BROKER_EXPIRY)
    return max(0, said) if type(said) is int else None


def _number(broker: Mapping[str, str], name: str) -> int | None:
    try:
        return max(0, int(broker[name]))
    except (KeyError, ValueError):
        return None


def _deletion(
    topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]
) -> TopicDeletion | None:
    """Brokers look for inactive topics only where ``brokerDeleteInactiveTopicsEnabled`` is true, whatever else says."""
    if broker.get(_BROKER_DELETES) == "false":
        return TopicDeletion(False)
    if broker.get(_BROKER_DELETES) != "true" or _BROKER_MODE not in broker:
        return None
    said = topic.first(INACTIVE)
    said = (namespace or {}).get("inactive_topic_policies") if said is None else said
    if said is None:
        return TopicDeletion(True, broker[_BROKER_MODE] == _UNSUBSCRIBED)
    if not isinstance(said, Mapping):
        return None
    policy: Mapping[Any, Any] = said
    return TopicDeletion(policy.get("deleteWhileInactive") is not False, policy.get(_MODE) == _UNSUBSCRIBED)


_MODE = "inactiveTopicDeleteMode"


def _eviction(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]) -> bool | None:
    """A quota of each kind is that of the topic, else of the namespace, else the brokers' own."""
    if broker.get(_QUOTA_CHECKED) == "false":
        return False
    if _QUOTA_POLICY not in broker:
        return None
    found = [_evicts(kind, topic, namespace, broker) for kind in ("destination_storage", "message_age")]
    return True if True in found else None if None in found else False


def _evicts(
    kind: str, topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]
) -> bool | None:
    maps = ((topic.local or {}).get(_QUOTAS), (topic.everywhere or {}).get(_QUOTAS))
    for said in (*maps, (namespace or {}).get(_NAMESPACE_QUOTAS)):
        quota = said.get(kind) if isinstance(said, Mapping) else None
        if quota is not None:
            return _over(kind, quota) if isinstance(quota, Mapping) else None
    if broker[_QUOTA_POLICY] != _EVICTS:
        return False
    try:
        if kind == "message_age":
            return int(broker[_QUOTA_SECONDS]) > 0
        return float(broker[_QUOTA_GB]) > 0 or int(broker[_QUOTA_BYTES]) >= 0
    except (KeyError, ValueError):
        return None


def _over(kind: str, quota: Mapping[Any, Any]) -> bool | None:
    """Whether a quota can be exceeded, and drops messages then."""
    if quota.get("policy") != _EVICTS:
        return False
    limit = quota.get("limitTime") if kind == "message_age" else quota.get("limitSize", quota.get("limit"))
    if type(limit) is not int:
        return None
    return limit > 0 if kind == "message_age" else limit >= 0


def _replication(
    topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]
) -> Replication | None:
    """A topic that names clusters, and not this one, brokers delete as soon as they load it. Naming none is no word."""
    found = _replicated(topic, namespace, broker)
    if (first := _at_first(topic)) is None or found is None:
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


def _compaction(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]) -> int | None:
    """A threshold that counts :func:`_at_first` alone makes the cursor of a compaction, and begins none."""
    found, first = _threshold(topic, namespace, broker), _at_first(topic)
    if found != 0 or first is None:
        return found
    early = _threshold(first, namespace, broker)
    return early and CURSOR_ALONE


def _threshold(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]) -> int | None:
    """That of the topic, else of its namespace, else the brokers' own; 0, or less, is none."""
    for said in (topic.first(_COMPACTS), (namespace or {}).get(_NAMESPACE_COMPACTS)):
        if said is not None:
            return max(0, said) if type(said) is int else None
    return _number(broker, _BROKER_COMPACTS)


def by_topic(listed: pa.Table, in_force: InForce[int | None]) -> Any:
    """What is in force of each topic, null where it is unknown."""
    own, others = in_force.by_topic, in_force.by_namespace
    if not own:
        names = whole(listed.column("namespace")).dictionary_encode()
        values = [others.get(name) for name in names.dictionary.to_pylist()]
        return pa.array(values, pa.int64()).take(names.indices)
    pairs = zip(listed.column("topic").to_pylist(), listed.column("namespace").to_pylist(), strict=True)
    found = ((str(Topic.parse(topic).partitioned_parent), namespace) for topic, namespace in pairs)
    return pa.array([own[name] if name in own else others.get(namespace) for name, namespace in found], pa.int64())
