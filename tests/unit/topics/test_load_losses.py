"""What a topic loses by a load: by its cursors' names and the policies in force, and how a run knows these."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from pulsar_lifecycle.model import COMPACTION_CURSOR, Topic
from pulsar_lifecycle.topics import topic_run
from pulsar_lifecycle.topics.load_losses import (
    DEDUPLICATION,
    LoadLoss,
    LoadLosses,
    Replication,
    brokers_say,
    losses_in_force,
)
from pulsar_lifecycle.topics.policies import IN_CHANGE_EVENTS, InForce, Layers, NamespacePolicies, Unknown, Unreadable
from pulsar_lifecycle.topics.topic_run import AGAIN_AFTER, LossesNow
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene

TOPIC = Topic.parse(f"persistent://{NAMESPACE}/a-partition-3")
OWNER = frozenset({str(TOPIC.partitioned_parent)})
HERE: InForce[Replication | None] = InForce({NAMESPACE: Replication(frozenset({"far"}))})
CODES = LoadLoss


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("losses", "cursors", "lost"),
    [
        (LoadLosses(HERE), ["s", DEDUPLICATION, COMPACTION_CURSOR, "pulsar.repl.far"], None),
        (LoadLosses(HERE, lazy_cursors=True), ["s"], CODES.CURSORS_COME_LATER),
        (LoadLosses(HERE, lazy_cursors=True), [], None),
        (LoadLosses(HERE, deleted=frozenset({NAMESPACE})), [], CODES.NAMESPACE_DELETED),
        (LoadLosses(InForce({NAMESPACE: Replication(here=False)})), [], CODES.NOT_REPLICATED_HERE),
        (LoadLosses(HERE, globally_expired=OWNER), ["s"], CODES.GLOBAL_TTL_WOULD_EXPIRE),
        (LoadLosses(HERE, globally_expired=OWNER), [COMPACTION_CURSOR, DEDUPLICATION], None),
        (LoadLosses(HERE, forgotten=OWNER), [DEDUPLICATION], CODES.DEDUPLICATION_WOULD_FORGET),
        (LoadLosses(HERE, forgotten=OWNER), ["s"], None),
        (LoadLosses(HERE), ["pulsar.repl.gone"], CODES.REPLICATOR_WOULD_BE_DELETED),
        (LoadLosses(HERE, replicator=None), [], CODES.LOSS_UNKNOWN),
        (LoadLosses(InForce({NAMESPACE: None})), [], CODES.LOSS_UNKNOWN),
        (LoadLosses(), [], CODES.LOSS_UNKNOWN),
    ],
)
def test_what_a_topic_loses_by_a_load(losses: LoadLosses, cursors: Collection[str], lost: LoadLoss | None) -> None:
    assert losses.of(TOPIC, cursors) is lost


def test_each_says_what_to_do() -> None:
    assert all(code.why.code is code and str(code) in code.why.text for code in LoadLoss)


@pytest.mark.parametrize(
    ("brokers", "lost"),
    [
        ([{}, {}], None),
        ([{}, {"lazyCursorRecovery": "true"}], LoadLoss.CURSORS_COME_LATER),
        ([{"lazyCursorRecovery": "false"}] * 2, None),
        ([{}, {"clusterName": "other"}], LoadLoss.LOSS_UNKNOWN),
        ([{}, {"replicatorPrefix": "other"}], LoadLoss.LOSS_UNKNOWN),
        ([{}, {"topicLevelPoliciesEnabled": "false"}], LoadLoss.LOSS_UNKNOWN),
        ([{}, {"topicPoliciesServiceClassName": IN_CHANGE_EVENTS}], None),
        ([{}, {"topicPoliciesServiceClassName": "another.Service"}], LoadLoss.LOSS_UNKNOWN),
    ],
)
def test_brokers_that_differ_say_the_worst(brokers: list[Mapping[str, str]], lost: LoadLoss | None) -> None:
    common = {"clusterName": "here", "replicatorPrefix": "pulsar.repl", "topicLevelPoliciesEnabled": "true"}
    said = brokers_say({str(n): {**common, **one} for n, one in enumerate(brokers)})
    off = {**said, "topicLevelPoliciesEnabled": "false"}
    assert losses_in_force(Layers(off, {NAMESPACE: {}})).of(TOPIC, ["s"]) is lost


def test_a_run_reads_a_namespace_once_and_what_cannot_be_read_again(scene: RetentionScene) -> None:
    path = f"/admin/policies/{NAMESPACE}"
    losses, namespace = LossesNow(scene.cluster), TOPIC.namespace
    scene.servers.put(path, b"\xff")
    assert losses(namespace).of(TOPIC, []) is LoadLoss.LOSS_UNKNOWN
    scene.cluster.clock.sleep(AGAIN_AFTER / 1000)
    scene.servers.put(path, json.dumps({"replication_clusters": ["elsewhere"]}).encode())
    assert losses(namespace).of(TOPIC, []) is LoadLoss.NOT_REPLICATED_HERE
    scene.servers.put(path, json.dumps({"replication_clusters": ["fake"]}).encode())
    assert losses(namespace).of(TOPIC, []) is LoadLoss.NOT_REPLICATED_HERE
    assert LossesNow(scene.cluster)(namespace).of(TOPIC, ["s"]) is None
    assert LossesNow(scene.cluster, {NAMESPACE: LoadLosses()})(namespace).of(TOPIC, []) is LoadLoss.LOSS_UNKNOWN


def test_policies_of_topics_that_are_not_whole_yet_are_read_again(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as while somebody sets one."""
    losses, namespace, real = LossesNow(scene.cluster), TOPIC.namespace, topic_run.read_namespaces
    scene.servers.put(f"/admin/policies/{NAMESPACE}", json.dumps({"replication_clusters": ["fake"]}).encode())
    changing = NamespacePolicies(unknown=Unknown(Unreadable.CHANGING, "it changes"))
    reads = list[object]()

    def noted(*asked: object) -> dict[str, NamespacePolicies]:
        reads.append(asked)
        return {NAMESPACE: changing}

    monkeypatch.setattr(topic_run, "read_namespaces", noted)
    for _ in range(3):  # as many as the namespace has topics
        assert losses(namespace).of(TOPIC, []) is LoadLoss.LOSS_UNKNOWN
    assert len(reads) == 1
    scene.cluster.clock.sleep(AGAIN_AFTER / 1000)
    monkeypatch.setattr(topic_run, "read_namespaces", real)
    assert losses(namespace).of(TOPIC, ["s"]) is None
