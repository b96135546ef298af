"""Which retention is in force: topic before namespace before brokers, never mixed."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.policies import Layers
from pulsar_lifecycle.topics.retention_policy import Level, RetentionPolicy, in_force, policies_in_force
from pulsar_lifecycle.topics.system_topics.change_events import NamespacePolicies

BROKER = {"defaultRetentionTimeInMinutes": "30", "defaultRetentionSizeInMB": "-1"}
NOTHING = TopicPolicies()


def said(minutes: Any, mb: Any) -> dict[str, Any]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mb}


def of_topic(local: Any = None, everywhere: Any = None) -> TopicPolicies:
    return TopicPolicies({"retentionPolicies": local}, {"retentionPolicies": everywhere, "isGlobal": True})


def of_namespace(policy: Any) -> dict[str, Any]:
    return {"retention_policies": policy}


@pytest.mark.parametrize(
    ("topic", "namespace", "expected"),
    [
        (NOTHING, None, RetentionPolicy(30, -1, Level.BROKER)),
        (NOTHING, {}, RetentionPolicy(30, -1, Level.BROKER)),
        (NOTHING, of_namespace(None), RetentionPolicy(30, -1, Level.BROKER)),
        (NOTHING, of_namespace(said(5, 7)), RetentionPolicy(5, 7, Level.NAMESPACE)),
        (NOTHING, of_namespace(said(0, 0)), RetentionPolicy(0, 0, Level.NAMESPACE)),
        (NOTHING, of_namespace({"retentionTimeInMinutes": 5}), RetentionPolicy(5, 0, Level.NAMESPACE)),
        (NOTHING, of_namespace({}), RetentionPolicy(0, 0, Level.NAMESPACE)),
        (of_topic(said(0, 0)), of_namespace(said(5, 7)), RetentionPolicy(0, 0, Level.TOPIC)),
        (of_topic(said(-1, -1)), of_namespace(said(5, 7)), RetentionPolicy(-1, -1, Level.TOPIC)),
        (of_topic(said(1, 2), said(3, 4)), {}, RetentionPolicy(1, 2, Level.TOPIC)),
        (of_topic(None, said(3, 4)), of_namespace(said(5, 7)), RetentionPolicy(3, 4, Level.TOPIC_GLOBAL)),
        (of_topic(), of_namespace(said(5, 7)), RetentionPolicy(5, 7, Level.NAMESPACE)),
        (TopicPolicies({}, None), of_namespace(said(5, 7)), RetentionPolicy(5, 7, Level.NAMESPACE)),
    ],
)
def test_the_first_level_that_has_a_policy_decides(topic: TopicPolicies, namespace: Any, expected: Any) -> None:
    assert in_force(topic, namespace, BROKER) == expected


def test_a_system_topic_has_only_its_own() -> None:
    namespace = of_namespace(said(5, 7))
    assert in_force(NOTHING, namespace, BROKER, system_topic=True) == RetentionPolicy(0, 0, Level.SYSTEM_TOPIC)
    own = in_force(of_topic(said(1, 2)), namespace, BROKER, system_topic=True)
    assert own == RetentionPolicy(1, 2, Level.TOPIC)


def test_what_the_brokers_do_not_say_is_0() -> None:
    assert in_force(NOTHING, {}, {}) == RetentionPolicy(0, 0, Level.BROKER)
    assert in_force(NOTHING, {}, {"defaultRetentionSizeInMB": ""}) == RetentionPolicy(0, 0, Level.BROKER)
    assert in_force(NOTHING, of_namespace(said(5, 7)), {}) == RetentionPolicy(5, 7, Level.NAMESPACE)


@pytest.mark.parametrize("name", ["defaultRetentionTimeInMinutes", "defaultRetentionSizeInMB"])
def test_a_word_of_the_brokers_that_is_no_number_is_refused(name: str) -> None:
    with pytest.raises(CorruptFormat, match="broker"):
        in_force(NOTHING, None, {name: "x"})


@pytest.mark.parametrize(
    "policy",
    [[5, 7], "5", said("five", 7), said(5, 7.5), said(True, 7), said(1 << 31, 7), said(5, 1 << 43), said("9" * 20, 7)],
)
def test_what_brokers_would_not_take_or_would_overflow_is_refused(policy: Any) -> None:
    with pytest.raises(CorruptFormat, match="namespace"):
        in_force(NOTHING, of_namespace(policy), BROKER)
    assert in_force(NOTHING, of_namespace(said(5, (1 << 43) - 1)), BROKER) is not None


@pytest.mark.parametrize(
    ("minutes", "mb", "words"),
    [
        (0, -1, "nothing (topic)"),
        (5, 0, "nothing (topic)"),
        (-1, -2, "everything, for ever (topic)"),
        (-1, 7, "the newest 7 MiB (topic)"),
        (5, -1, "5 minutes (topic)"),
        (5, 7, "5 minutes, and of these the newest 7 MiB (topic)"),
    ],
)
def test_in_words(minutes: int, mb: int, words: str) -> None:
    assert str(RetentionPolicy(minutes, mb, Level.TOPIC)) == words


@pytest.mark.parametrize("starts_at", ["latest", "Latest", None])
def test_replicators_that_begin_at_the_end_hold_nothing(starts_at: str | None) -> None:
    found = policies_in_force(replicating(starts_at, ["here", "there"]))
    assert found.by_namespace == {"acme/orders": RetentionPolicy(5, 7, Level.NAMESPACE)}


@pytest.mark.parametrize(
    ("clusters", "known"), [(["here"], True), ([], True), (None, True), (["here", "there"], False), ("there", False)]
)
def test_what_a_new_replicator_would_send_from_the_first_message_on_is_kept(clusters: Any, known: bool) -> None:
    """A broker that loads the topic makes the replicator's cursor before it trims."""
    found = policies_in_force(replicating("earliest", clusters))
    assert found.by_namespace == {"acme/orders": RetentionPolicy(5, 7, Level.NAMESPACE) if known else None}


def test_a_topic_has_clusters_of_its_own() -> None:
    sent, local = (Topic.parse(f"persistent://acme/orders/{name}") for name in ("sent", "local"))
    own = {
        sent: TopicPolicies({"replicationClusters": ["here", "there"]}),
        local: TopicPolicies({"replicationClusters": ["here"], "retentionPolicies": said(1, 2)}),
    }
    found = policies_in_force(replicating("earliest", ["here"], own))
    assert found.of(Topic.parse("persistent://acme/orders/other")) == RetentionPolicy(5, 7, Level.NAMESPACE)
    assert found.by_topic == {str(sent): None, str(local): RetentionPolicy(1, 2, Level.TOPIC)}


def replicating(starts_at: str | None, clusters: Any, own: dict[Topic, TopicPolicies] | None = None) -> Layers:
    brokers = {"clusterName": "here", "topicLevelPoliciesEnabled": "true", "systemTopicEnabled": "true"}
    if starts_at is not None:
        brokers["replicationStartAt"] = starts_at
    policies = {**of_namespace(said(5, 7)), "replication_clusters": clusters}
    return Layers(brokers, {"acme/orders": policies}, {"acme/orders": NamespacePolicies(own or {})})
