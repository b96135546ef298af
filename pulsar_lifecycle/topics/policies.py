"""Policies in force: of what brokers, a namespace and a topic say, the word that counts for each topic.

Belongs here: the three layers, and resolving them for every namespace and for each topic with a word of its own. Not
here: the rule of one field (``topics/offload_policy.py``), reading the layers (``io/pulsar/admin.py``,
``metastore/namespaces.py``, ``topics/system_topics/change_events.py``), what runs do by them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.model import Topic

T = TypeVar("T")

_ENABLED, _SYSTEM_TOPICS, SERVICE = "topicLevelPoliciesEnabled", "systemTopicEnabled", "topicPoliciesServiceClassName"
POLICY_SWITCHES = frozenset({_ENABLED, _SYSTEM_TOPICS, SERVICE})
"""What broker.conf calls what decides whether topics have policies of their own, and where these are."""
INACTIVE = "inactiveTopicPolicies"
"""What TopicPolicies calls the policy about inactive topics."""
CLUSTERS = "replicationClusters"
"""What it calls the clusters that a topic is replicated between (``AbstractTopic.updateTopicPolicy``, 4.0.7)."""
_NAMESPACE_CLUSTERS = "replication_clusters"
IN_CHANGE_EVENTS = "org.apache.pulsar.broker.service.SystemTopicBasedTopicPoliciesService"


class Unreadable(StrEnum):
    """Why the policies of a namespace's topics are not known."""

    UNREAD = "unread"
    """Its z-nodes, ledgers or schemas could not be read: servers that do not answer, or data that is gone."""
    UNDECODABLE = "undecodable"
    """An event, or its schema, is not what Pulsar 4.0 writes."""
    CHANGING = "changing"
    """The topic changed each time while it was read."""
    NOT_WHOLE = "not_whole"
    """BookKeeper does not have all of it any more, and the rest is not read where it was offloaded to."""
    AMBIGUOUS = "ambiguous"
    """``__change_events`` is there as a topic and as a partitioned one."""
    OTHER_SERVICE = "other_service"
    """The brokers keep policies elsewhere than in ``__change_events``: ``topicPoliciesServiceClassName`` says where."""
    LEGACY = "legacy"
    """A V1 namespace: brokers file the policies of its topics under other names."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Why policies are not known: a code, and what was found."""

    code: Unreadable
    detail: str

    def __str__(self) -> str:
        return f"the policies of its topics are not known ({self.code}): {self.detail}"


def topics_have_policies(brokers: Mapping[str, str]) -> bool:
    """Whether topics may have policies of their own, by the brokers' configuration.

    Source: ``PulsarService.initTopicPoliciesService``.
    """
    ignored = brokers.get(_SYSTEM_TOPICS) == "false" and brokers.get(SERVICE, IN_CHANGE_EVENTS) == IN_CHANGE_EVENTS
    return brokers.get(_ENABLED) != "false" and not ignored


def kept_elsewhere(brokers: Mapping[str, str]) -> Unknown | None:
    """Why policies of topics cannot be known, by the brokers' configuration."""
    service = brokers.get(SERVICE, IN_CHANGE_EVENTS)
    return None if service == IN_CHANGE_EVENTS else Unknown(Unreadable.OTHER_SERVICE, f"{SERVICE} is {service}")


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """The topics of a namespace that have policies of their own; none is known where ``unknown`` says why."""

    topics: Mapping[Topic, TopicPolicies] = field(default_factory=dict[Topic, TopicPolicies])
    unknown: Unknown | None = None

    def of(self, topic: Topic) -> TopicPolicies:
        """Those of a topic; a partition has those of its partitioned topic."""
        return self.topics.get(topic.partitioned_parent) or TopicPolicies()


@dataclass(frozen=True, slots=True)
class InForce(Generic[T]):
    """What counts, by namespace, and by topic (its partitioned one) where a topic says something else."""

    by_namespace: Mapping[str, T]
    by_topic: Mapping[str, T] = field(default_factory=dict[str, T])

    def of(self, topic: Topic) -> T:
        """Raises KeyError for a topic of a namespace that was not asked for."""
        own = str(topic.partitioned_parent)
        return self.by_topic[own] if own in self.by_topic else self.by_namespace[str(topic.namespace)]


@dataclass(frozen=True, slots=True)
class Layers:
    """Who says what: a topic before its namespace before the brokers.

    ``brokers``: their configuration, as text. ``namespaces``: their policies, as the JSON in ZooKeeper. ``topics``: by
    namespace, what its topics have of their own. ``undecodable``: by namespace, why its policies cannot be
    decoded: nothing is known of it.
    """

    brokers: Mapping[str, str]
    namespaces: Mapping[str, Mapping[str, Any]]
    topics: Mapping[str, NamespacePolicies] = field(default_factory=dict[str, NamespacePolicies])
    undecodable: Mapping[str, str] = field(default_factory=dict[str, str])

    def in_force(
        self, name: str, rule: Callable[[TopicPolicies, Mapping[str, Any] | None, Mapping[str, str]], T]
    ) -> InForce[T]:
        """What ``rule`` makes of what topic, namespace and brokers say, for topics that set policy ``name``, too."""
        by_topic: dict[str, T] = {}
        for namespace, policies in self.topics.items():
            for topic, said in policies.topics.items():
                if said.first(name) is not None:
                    by_topic[str(topic)] = rule(said, self.namespaces[namespace], self.brokers)
        nothing = TopicPolicies()
        return InForce({one: rule(nothing, said, self.brokers) for one, said in self.namespaces.items()}, by_topic)


def owners_keep(layers: Layers) -> frozenset[str]:
    """Topics whose own policy says that they are not deleted while they are inactive."""
    return frozenset(
        str(topic)
        for own in layers.topics.values()
        for topic, policies in own.topics.items()
        if isinstance(said := policies.first(INACTIVE), Mapping) and said.get("deleteWhileInactive") is False
    )


def replication_clusters(topic: TopicPolicies, namespace: Mapping[str, Any] | None) -> frozenset[str] | None:
    """The clusters that a topic names, else its namespace, its own among them; None: not known, being no list."""
    said = topic.first(CLUSTERS)
    return cluster_names((namespace or {}).get(_NAMESPACE_CLUSTERS) if said is None else said)


def cluster_names(said: object) -> frozenset[str] | None:
    """A policy's list of clusters; one that is not there is empty, anything else unknown."""
    if said is None:
        return frozenset()
    if not isinstance(said, list) or not all(isinstance(one, str) for one in said):
        return None
    return frozenset(said)


def common_configuration(
    configurations: Mapping[str, Mapping[str, str]], about: Collection[str]
) -> tuple[dict[str, str], list[str]]:
    """What all brokers are configured with, of the names in which a word of ``about`` stands; and where they differ.

    Where they differ, the word that sorts first stands in for all.
    """
    words = [word.lower() for word in about]
    named = {name for found in configurations.values() for name in found if any(word in name.lower() for word in words)}
    common: dict[str, str] = {}
    differing: list[str] = []
    for name in sorted(named):
        values = {found.get(name, "") for found in configurations.values()}
        if len(values) > 1:
            differing.append(f"the brokers differ in {name}: {', '.join(sorted(map(repr, values)))}")
        common[name] = min(values)
    return common, differing
