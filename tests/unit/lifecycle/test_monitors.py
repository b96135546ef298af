"""What brokers do by themselves to a topic that they load: by global policies first, then by what is in force."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.lifecycle.load.monitors import CURSOR_ALONE, monitors_in_force
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.load_losses import Replication, losses_in_force
from pulsar_lifecycle.topics.policies import Layers, NamespacePolicies

NAMESPACE = "acme/orders"
BROKERS = {"ttlDurationDefaultInSeconds": "0", "clusterName": "here"}


@pytest.mark.parametrize(
    ("own", "everywhere", "namespace", "sooner"),
    [
        (0, 60, None, True),
        (61, 60, None, True),
        (60, 60, None, False),
        (None, 60, None, False),
        (-1, 60, None, False),
        (61, None, 60, True),
        (0, None, 60, True),
        (60, None, 60, False),
        (61, None, None, False),
        (61, 0, 60, False),
        (61, None, "60", True),
    ],
)
def test_the_ttl_that_global_policies_leave_in_force_counts_first(
    own: int | None, everywhere: int | None, namespace: object, sooner: bool
) -> None:
    topic = Topic.parse(f"persistent://{NAMESPACE}/a")
    said = TopicPolicies({"messageTTLInSeconds": own}, {"messageTTLInSeconds": everywhere})
    ours = {} if namespace is None else {"message_ttl_in_seconds": namespace}
    layers = Layers(BROKERS, {NAMESPACE: ours}, {NAMESPACE: NamespacePolicies({topic: said})})
    assert losses_in_force(layers).globally_expired == ({str(topic)} if sooner else set())


def test_without_global_policies_its_own_ttl_counts_at_once() -> None:
    topic = Topic.parse(f"persistent://{NAMESPACE}/a")
    for said in TopicPolicies({"messageTTLInSeconds": 61}), TopicPolicies(None, {"messageTTLInSeconds": 61}):
        policies = {NAMESPACE: NamespacePolicies({topic: said})}
        layers = Layers(BROKERS, {NAMESPACE: {"message_ttl_in_seconds": 60}}, policies)
        assert losses_in_force(layers).globally_expired == set()


@pytest.mark.parametrize(
    ("own", "everywhere", "namespace", "expected"),
    [
        (["here", "far"], None, ["here"], Replication(frozenset(), here=True)),
        (["here", "far"], ["far"], ["here", "far"], Replication(frozenset({"far"}), here=False)),
        (["here", "far"], ["here", "far"], [], Replication(frozenset({"far"}), here=True)),
        (["here"], ["here", "far"], [], Replication(frozenset(), here=True)),
        (["here", "far"], None, ["far"], Replication(frozenset({"far"}), here=False)),
        (["here", "far"], "far", ["here"], None),
    ],
)
def test_replication_is_what_global_policies_and_its_own_leave(
    own: list[str], everywhere: object, namespace: list[str], expected: Replication | None
) -> None:
    """A broker deletes replicators, or the topic, by the global policies before the topic's own count."""
    topic = Topic.parse(f"persistent://{NAMESPACE}/a")
    said = TopicPolicies({"replicationClusters": own}, {"replicationClusters": everywhere})
    policies = {NAMESPACE: NamespacePolicies({topic: said})}
    layers = Layers(BROKERS, {NAMESPACE: {"replication_clusters": namespace}}, policies)
    assert losses_in_force(layers).replication.of(topic) == expected


@pytest.mark.parametrize(
    ("own", "everywhere", "namespace", "broker", "forgets"),
    [
        (True, None, None, "false", True),
        (True, None, False, "true", True),
        (True, False, True, "true", True),
        (None, None, "true", "false", True),
        (True, None, True, "false", False),
        (True, None, None, "true", False),
        (True, True, False, "false", False),
        (None, False, True, "true", False),
        (False, None, None, "false", False),
    ],
)
def test_deduplication_that_global_policies_leave_off_forgets_what_producers_sent(
    own: bool | None, everywhere: bool | None, namespace: object, broker: str, forgets: bool
) -> None:
    topic = Topic.parse(f"persistent://{NAMESPACE}/a")
    said = TopicPolicies({"deduplicationEnabled": own}, {"deduplicationEnabled": everywhere})
    policies = {NAMESPACE: NamespacePolicies({topic: said})}
    brokers = {**BROKERS, "brokerDeduplicationEnabled": broker}
    layers = Layers(brokers, {NAMESPACE: {"deduplicationEnabled": namespace}}, policies)
    assert losses_in_force(layers).forgotten == ({str(topic)} if forgets else set())


def test_a_topics_own_compaction_threshold_counts_before_its_namespaces() -> None:
    topic, other = Topic.parse(f"persistent://{NAMESPACE}/a"), Topic.parse(f"persistent://{NAMESPACE}/b")
    brokers, threshold = {"brokerServiceCompactionThresholdInBytes": "7"}, {"compaction_threshold": 5}
    own = NamespacePolicies({topic: TopicPolicies(local={"compactionThreshold": 0})})
    found = monitors_in_force(Layers(brokers, {NAMESPACE: threshold}, {NAMESPACE: own})).compaction
    assert (found.of(topic), found.of(other)) == (0, 5)
    assert monitors_in_force(Layers(brokers, {NAMESPACE: {}}, {NAMESPACE: own})).compaction.of(other) == 7
    assert monitors_in_force(Layers({}, {NAMESPACE: {}}, {NAMESPACE: own})).compaction.of(other) is None


@pytest.mark.parametrize(
    ("own", "everywhere", "namespace", "expected"),
    [
        (0, 5, 0, CURSOR_ALONE),
        (0, None, 5, CURSOR_ALONE),
        (0, 0, 5, 0),
        (7, 5, 5, 7),
        (None, 5, 0, 5),
        (0, "5", 0, None),
    ],
)
def test_a_global_threshold_makes_the_cursor_of_a_compaction_before_the_topics_own_counts(
    own: int | None, everywhere: object, namespace: int, expected: int | None
) -> None:
    topic = Topic.parse(f"persistent://{NAMESPACE}/a")
    said = TopicPolicies({"compactionThreshold": own}, {"compactionThreshold": everywhere})
    policies = {NAMESPACE: NamespacePolicies({topic: said})}
    layers = Layers(BROKERS, {NAMESPACE: {"compaction_threshold": namespace}}, policies)
    assert monitors_in_force(layers).compaction.of(topic) == expected
