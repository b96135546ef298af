"""The retention policy in force of a topic, and at which level it was set.

Belongs here: how topic, namespace and broker settings become one policy, as brokers compute it. Not here: reading them
(``topics/system_topics/change_events.py``, ``metastore/walk.py``, ``io/pulsar/admin.py``), which ledgers it frees
(``lifecycle/retention.py``). Upstream: ``BrokerService.getManagedLedgerConfig``, ``RetentionPolicies``, Pulsar 4.0.7.
The first level that has a policy decides both dimensions: levels are never mixed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.policies import CLUSTERS, InForce, Layers, replication_clusters, topics_have_policies

BYTES_PER_MB = 1 << 20
"""``ManagedLedgerImpl.MegaByte``."""
MS_PER_MINUTE = 60_000

_MAX_MINUTES = (1 << 31) - 1
_MAX_MB = ((1 << 63) - 1) // BYTES_PER_MB
"""More overflows in brokers, which then keep nothing where everything was meant."""
_WHOLE = re.compile(r"-?[0-9]{1,19}")

_TIME, _SIZE = "retentionTimeInMinutes", "retentionSizeInMB"
_LATEST = "latest"
RETENTION_POLICIES = "retentionPolicies"
"""Field of TopicPolicies."""
_OF_NAMESPACE = "retention_policies"
_BROKER_TIME, _BROKER_SIZE = "defaultRetentionTimeInMinutes", "defaultRetentionSizeInMB"
BROKER_NAMES = frozenset({_BROKER_TIME, _BROKER_SIZE})
"""What it is called in broker.conf."""
_STARTS_AT, _CLUSTER = "replicationStartAt", "clusterName"
REPLICATION_NAMES = frozenset({_STARTS_AT, _CLUSTER})
"""What broker.conf calls where a replicator begins in a topic that it has not read yet, and the cluster."""


class Level(StrEnum):
    """Where a retention policy was set."""

    TOPIC = "topic"
    """By a policy of the topic, for this cluster."""
    TOPIC_GLOBAL = "topic_global"
    """By a policy of the topic that clusters share."""
    SYSTEM_TOPIC = "system_topic"
    """Nowhere: brokers retain nothing of a system topic without a policy of its own."""
    NAMESPACE = "namespace"
    """By the namespace's policies."""
    BROKER = "broker"
    """By the brokers' configuration."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Retention in force: ``minutes`` and ``megabytes`` (MiB). Below 0 is unlimited; 0 in either retains nothing."""

    minutes: int
    megabytes: int
    level: Level

    @property
    def forever(self) -> bool:
        """Whether nothing ever goes by it."""
        return self.minutes < 0 and self.megabytes < 0

    @property
    def nothing(self) -> bool:
        """Whether all that is acknowledged goes by it, whatever the other dimension says."""
        return 0 in (self.minutes, self.megabytes)

    def __str__(self) -> str:
        if self.nothing:
            what = "nothing"
        elif self.forever:
            what = "everything, for ever"
        elif self.minutes < 0:
            what = f"the newest {self.megabytes} MiB"
        elif self.megabytes < 0:
            what = f"{self.minutes} minutes"
        else:
            what = f"{self.minutes} minutes, and of these the newest {self.megabytes} MiB"
        return f"{what} ({self.level})"


def in_force(
    topic: TopicPolicies,
    namespace: Mapping[str, Any] | None,
    broker: Mapping[str, Any],
    *,
    system_topic: bool = False,
) -> RetentionPolicy:
    """The retention policy of a topic; a rule for ``topics.policies.Layers``.

    ``topic``: what the topic has of its own; ``namespace``: the whole namespace policies, None if it has none;
    ``broker``: a broker's configuration. ``system_topic``: ``SystemTopicNames.isSystemTopic``. A number that a policy
    does not say is 0, as in ``RetentionPolicies``; so is one that broker.conf does not say. Raises CorruptFormat naming
    the level of a number that brokers would not take, or that overflows in them.
    """
    own = (
        ((topic.local or {}).get(RETENTION_POLICIES), Level.TOPIC),
        ((topic.everywhere or {}).get(RETENTION_POLICIES), Level.TOPIC_GLOBAL),
    )
    inherited = ((namespace or {}).get(_OF_NAMESPACE), Level.NAMESPACE)
    for said, level in own if system_topic else (*own, inherited):
        if said is not None:
            return _policy(said, _TIME, _SIZE, level)
    if system_topic:
        return RetentionPolicy(0, 0, Level.SYSTEM_TOPIC)
    return _policy(broker, _BROKER_TIME, _BROKER_SIZE, Level.BROKER)


def _policy(said: object, time: str, size: str, level: Level) -> RetentionPolicy:
    if not isinstance(said, Mapping):
        raise CorruptFormat(f"retention policy ({level})", 0, "an object")
    return RetentionPolicy(_number(said, time, level, _MAX_MINUTES), _number(said, size, level, _MAX_MB), level)


def _number(said: Mapping[Any, Any], name: str, level: Level, highest: int) -> int:
    value = said.get(name)
    if value is None or value == "":
        return 0
    whole = type(value) is int or (type(value) is str and _WHOLE.fullmatch(value.strip()) is not None)
    if not whole or not -highest <= int(value) <= highest:
        raise CorruptFormat(f"retention policy ({level})", 0, f"a number up to {highest} as {name}")
    return int(value)


def policies_in_force(layers: Layers) -> InForce[RetentionPolicy | None]:
    """Retention by namespace and by topic; None: unknown.

    That is a policy that brokers would not take, and the brokers' own where ``layers`` lacks it. Of a namespace whose
    topics' policies could not be read all is unknown: a topic of it may have any. So is that of replicated topics where
    replicators begin at the first message (``PersistentTopic.startReplicator``): one that was never loaded since has no
    cursor of theirs yet, and a broker that loads it makes one before it trims.
    """
    found = layers.in_force(RETENTION_POLICIES, _known)
    if _begin_at_the_first(layers):
        found = _where_all_is_sent(found, layers.in_force(CLUSTERS, _replicated))
    if not topics_have_policies(layers.brokers):
        return found
    read = {name for name, own in layers.topics.items() if own.unknown is None}
    by_namespace = {name: policy if name in read else None for name, policy in found.by_namespace.items()}
    return InForce(by_namespace, found.by_topic)


def unsent_problem(layers: Layers, topic: Topic) -> tuple[str, ...]:
    """Why retention of a topic is unknown though its policy is not: where replicators begin at the first message.

    ``layers`` has its namespace.
    """
    if not _begin_at_the_first(layers) or not layers.in_force(CLUSTERS, _replicated).of(topic):
        return ()
    said = f"{_STARTS_AT}={layers.brokers[_STARTS_AT]}"
    return (f"it is replicated, and brokers say {said}: what is yet to be sent is not known, so its retention is not",)


def _begin_at_the_first(layers: Layers) -> bool:
    return layers.brokers.get(_STARTS_AT, _LATEST).lower() != _LATEST


def _where_all_is_sent(
    found: InForce[RetentionPolicy | None], replicated: InForce[bool]
) -> InForce[RetentionPolicy | None]:
    names = {name: Topic.parse(name) for name in (*found.by_topic, *replicated.by_topic)}
    return InForce(
        {name: None if replicated.by_namespace[name] else policy for name, policy in found.by_namespace.items()},
        {name: None if replicated.of(topic) else found.of(topic) for name, topic in names.items()},
    )


def _replicated(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, Any]) -> bool:
    """Whether a topic is replicated to other clusters; what is not known may be any."""
    found = replication_clusters(topic, namespace)
    return found is None or not found <= {broker.get(_CLUSTER)}


def _known(
    topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, Any]
) -> RetentionPolicy | None:
    try:
        found = in_force(topic, namespace, broker)
    except CorruptFormat:
        return None
    return None if found.level is Level.BROKER and not broker.keys() >= BROKER_NAMES else found
