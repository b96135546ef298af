"""What a broker does by itself to a topic that it has loaded: expiry, quotas, inactivity, replication, compaction.

Belongs here: the policies in force by topic, namespace and brokers. Pure. Not here: what a topic loses by the load
itself (``topics/load_losses.py``), reading policies (``topics/retention_now.py``), which topics that concerns
(``lifecycle/load/load_rules.py``). Upstream:
``PersistentTopic.checkMessageExpiry``, ``checkInactiveSubscriptions``, ``checkGC``, ``checkCompaction``,
``checkReplication`` and ``removeOrphanReplicationCursors``, ``BrokerService``, ``BacklogQuotaManager``, Pulsar 4.0.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.load_losses import (
    DEDUPLICATES,
    LOSS_NAMES,
    TTL,
    LoadLosses,
    at_first,
    broker_number,
    deduplicates,
    is_subscription,
    losses_in_force,
    ttl,
    where_known,
)
from pulsar_lifecycle.topics.policies import INACTIVE, InForce, Layers

_BROKER_EXPIRY = "subscriptionExpirationTimeMinutes"
_BROKER_DELETES, _BROKER_MODE = "brokerDeleteInactiveTopicsEnabled", "brokerDeleteInactiveTopicsMode"
_SYSTEM_CURSORS = "additionalSystemCursorNames"
_UNSUBSCRIBED = "delete_when_no_subscriptions"
_QUOTA_CHECKED, _QUOTA_POLICY = "backlogQuotaCheckEnabled", "backlogQuotaDefaultRetentionPolicy"
_QUOTA_BYTES, _QUOTA_GB = "backlogQuotaDefaultLimitBytes", "backlogQuotaDefaultLimitGB"
_QUOTA_SECONDS = "backlogQuotaDefaultLimitSecond"
_QUOTAS, _NAMESPACE_QUOTAS = "backLogQuotaMap", "backlog_quota_map"
_EVICTS = "consumer_backlog_eviction"
_COMPACTS, _NAMESPACE_COMPACTS = "compactionThreshold", "compaction_threshold"
_BROKER_COMPACTS = "brokerServiceCompactionThresholdInBytes"
BROKER_NAMES = LOSS_NAMES | {
    *(_BROKER_EXPIRY, _BROKER_DELETES, _BROKER_MODE, _SYSTEM_CURSORS),
    *(_QUOTA_CHECKED, _QUOTA_POLICY, _QUOTA_BYTES, _QUOTA_GB, _QUOTA_SECONDS, _BROKER_COMPACTS),
}
"""What broker.conf calls all that brokers have a say in."""

CURSOR_ALONE = (1 << 63) - 1
"""A threshold of compaction that no topic reaches: its cursor is made all the same."""
LEFT_LOADED = 86_400_000
"""How long (ms) a run that dies may leave a topic loaded, until the next one unloads it."""

FUNCTION = r"^(?:[^/]+/[^/]+/[^/]+|participants)$"
"""Functions, sinks and sources subscribe as ``tenant/namespace/name`` (``FunctionCommon.getFullyQualifiedName``),
their workers to elect a leader as ``participants`` (``MembershipManager``)."""


@dataclass(frozen=True, slots=True)
class TopicDeletion:
    """Whether brokers delete an inactive topic; ``unsubscribed_only``: not while it has a subscription."""

    on: bool
    unsubscribed_only: bool = True


@dataclass(frozen=True, slots=True)
class Monitors:
    """What counts by namespace and topic; None: unknown. ``ttl`` in seconds, ``expiry`` in minutes, both 0 for none.

    ``eviction``: whether a backlog quota is in force by which brokers drop unread messages. ``compaction``: of how many
    bytes brokers begin a compaction by themselves, 0 for never, and no cursor of one either.
    ``system_cursors``: names of cursors that brokers never expire messages of, beside ``__compaction``.
    ``deduplication``: 1 where it is on, else 0. A broker that loads a topic without it deletes its cursor.
    ``at_load``: what topics lose as soon as they are loaded.
    """

    ttl: InForce[int | None]
    deletion: InForce[TopicDeletion | None]
    expiry: Mapping[str, int | None]
    eviction: InForce[bool | None]
    compaction: InForce[int | None]
    at_load: LoadLosses
    system_cursors: frozenset[str] = frozenset()
    deduplication: InForce[int | None] = field(default_factory=lambda: InForce({}))

    @property
    def replicator(self) -> str | None:
        """How replicators' cursors begin; None: unknown."""
        return self.at_load.replicator

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


def monitors_in_force(layers: Layers) -> Monitors:
    """By what topics, namespaces and brokers say; what one of them says wrongly, or nobody, is unknown."""
    names = layers.brokers.get(_SYSTEM_CURSORS, "").strip("[]")
    return Monitors(
        where_known(layers, layers.in_force(TTL, ttl)),
        where_known(layers, layers.in_force(INACTIVE, _deletion)),
        {name: _expiry(said, layers.brokers) for name, said in layers.namespaces.items()},
        where_known(layers, layers.in_force(_QUOTAS, _eviction)),
        where_known(layers, layers.in_force(_COMPACTS, _compaction)),
        losses_in_force(layers),
        frozenset(one.strip() for one in names.split(",") if one.strip()),
        where_known(layers, layers.in_force(DEDUPLICATES, _deduplication)),
    )


def _deduplication(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]) -> int | None:
    said = deduplicates(topic, namespace, broker)
    return None if said is None else int(said)


def _expiry(namespace: Mapping[str, Any], broker: Mapping[str, str]) -> int | None:
    said = namespace.get("subscription_expiration_time_minutes")
    if said is None:
        return broker_number(broker, _BROKER_EXPIRY)
    return max(0, said) if type(said) is int else None


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


def _compaction(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]) -> int | None:
    """A threshold that counts :func:`at_first` alone makes the cursor of a compaction, and begins none."""
    found, first = _threshold(topic, namespace, broker), at_first(topic)
    if found != 0 or first is None:
        return found
    early = _threshold(first, namespace, broker)
    return early and CURSOR_ALONE


def _threshold(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, str]) -> int | None:
    """That of the topic, else of its namespace, else the brokers' own; 0, or less, is none."""
    for said in (topic.first(_COMPACTS), (namespace or {}).get(_NAMESPACE_COMPACTS)):
        if said is not None:
            return max(0, said) if type(said) is int else None
    return broker_number(broker, _BROKER_COMPACTS)


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
