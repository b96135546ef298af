"""Which word counts for a topic, and what brokers say together."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.offload_policy import OFFLOAD_POLICIES, of_layers
from pulsar_lifecycle.topics.policies import Layers, NamespacePolicies, Unknown, Unreadable, common_configuration
from pulsar_lifecycle.topics.retention_policy import RETENTION_POLICIES, Level, RetentionPolicy, in_force

TOPIC = Topic.parse("persistent://t/b/own")
OFFLOADING = {"managedLedgerOffloadThresholdInBytes": 5, "managedLedgerOffloadThresholdInSeconds": None}
ONE, THREE, FOUR = ({"retentionTimeInMinutes": n, "retentionSizeInMB": n} for n in (1, 3, 4))


def layers(own: TopicPolicies) -> Layers:
    return Layers(
        {"managedLedgerOffloadDriver": "S3"},
        {"t/b": {"retention_policies": ONE}},
        {"t/b": NamespacePolicies({TOPIC: own})},
    )


@pytest.mark.parametrize(
    "own", [TopicPolicies(), TopicPolicies({"maxMessageSize": 1}, None), TopicPolicies({RETENTION_POLICIES: None}, {})]
)
def test_a_topic_without_a_word_of_its_own_has_its_namespaces(own: TopicPolicies) -> None:
    found = layers(own).in_force(RETENTION_POLICIES, in_force)
    assert not found.by_topic
    assert found.of(TOPIC) == RetentionPolicy(1, 1, Level.NAMESPACE)


def test_a_topics_global_policy_counts_where_it_has_no_local_one() -> None:
    said = layers(TopicPolicies({RETENTION_POLICIES: None}, {RETENTION_POLICIES: THREE}))
    assert said.in_force(RETENTION_POLICIES, in_force).of(TOPIC) == RetentionPolicy(3, 3, Level.TOPIC_GLOBAL)
    assert said.in_force(OFFLOAD_POLICIES, of_layers).of(TOPIC).driver == "S3"
    local, everywhere = {RETENTION_POLICIES: FOUR}, {RETENTION_POLICIES: THREE, OFFLOAD_POLICIES: OFFLOADING}
    said = layers(TopicPolicies(local, everywhere))
    assert said.in_force(RETENTION_POLICIES, in_force).of(TOPIC) == RetentionPolicy(4, 4, Level.TOPIC)
    found = said.in_force(OFFLOAD_POLICIES, of_layers).of(TOPIC)
    assert (found.driver, found.threshold_bytes, found.threshold_seconds) == ("S3", 5, -1)


def test_a_word_about_one_field_leaves_the_others_to_the_namespace() -> None:
    said = layers(TopicPolicies({OFFLOAD_POLICIES: OFFLOADING}))
    assert said.in_force(OFFLOAD_POLICIES, of_layers).of(TOPIC).threshold_bytes == 5
    assert said.in_force(RETENTION_POLICIES, in_force).of(TOPIC) == RetentionPolicy(1, 1, Level.NAMESPACE)


def test_a_partition_has_the_policies_of_its_partitioned_topic_and_no_other_topic_has() -> None:
    found = layers(TopicPolicies({RETENTION_POLICIES: THREE})).in_force(RETENTION_POLICIES, in_force)
    assert found.of(Topic.parse("persistent://t/b/own-partition-1")) == RetentionPolicy(3, 3, Level.TOPIC)
    assert found.of(Topic.parse("persistent://t/b/other")) == RetentionPolicy(1, 1, Level.NAMESPACE)
    with pytest.raises(KeyError):
        found.of(Topic.parse("persistent://t/another/own"))


def test_topics_whose_policies_are_not_known_have_none_of_their_own() -> None:
    unknown = NamespacePolicies(unknown=Unknown(Unreadable.CHANGING, "it changed"))
    said = Layers({}, {"t/b": {"retention_policies": ONE}}, {"t/b": unknown})
    assert said.in_force(RETENTION_POLICIES, in_force).of(TOPIC) == RetentionPolicy(1, 1, Level.NAMESPACE)


def test_brokers_that_differ_are_named_and_other_words_are_left_out() -> None:
    both = {"a": {"defaultRetentionSizeInMB": "1", "other": "x"}, "b": {"defaultRetentionSizeInMB": "2"}}
    common, differing = common_configuration(both, ["retention"])
    assert common == {"defaultRetentionSizeInMB": "1"}
    assert differing == ["the brokers differ in defaultRetentionSizeInMB: '1', '2'"]
    assert common_configuration({"a": both["a"], "b": {}}, ["retention"])[1] == [
        "the brokers differ in defaultRetentionSizeInMB: '', '1'"
    ]
    assert common_configuration({"a": both["a"]}, ["retention"]) == ({"defaultRetentionSizeInMB": "1"}, [])
