"""Inactive topics that stay: by their name, by their policy, or as a broker had them lately."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.lifecycle.activity.inactive_rules import InactivityChoice, kept_by_owner
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.records.plans.inactive_plan import InactiveKept
from pulsar_lifecycle.topics.policies import Layers, NamespacePolicies, owners_keep
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene, kept


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    return ActivityScene(tmp_path, monkeypatch)


def test_a_topic_that_was_unloaded_within_the_period_stays(scene: ActivityScene) -> None:
    """Loaded long ago, and had by its broker until yesterday: readers leave nothing."""
    scene.work()
    scene.used("old")
    scene.ready("old")
    scene.days(1)
    scene.servers.admin.internal_stats(scene.named("old"))
    scene.days(9)
    scene.servers.admin.unload(scene.named("old"))
    assert kept(scene.days(1).topics) == {"old": InactiveKept.LOADED_LATELY}
    assert kept(scene.days(8).topics) == {"old": None}


def test_dead_letters_stay(scene: ActivityScene) -> None:
    """Nobody subscribes to them before somebody looks."""
    names = ("orders-billing-DLQ", "orders-billing-RETRY", "orders-billing-DLQ-partition-0")
    for name in (*names, "DLQ"):
        scene.used(name)
    scene.servers.topic(scene.named("empty-DLQ"))
    found = kept(scene.days(9).topics)
    assert found == {**dict.fromkeys(names, InactiveKept.DEAD_LETTERS), "DLQ": None, "empty-DLQ": None}


def test_a_topic_whose_own_policy_keeps_it_stays() -> None:
    """Also if that is the partitioned topic's; a namespace's word is the operator's own."""
    keeps = TopicPolicies({"inactiveTopicPolicies": {"deleteWhileInactive": False}})
    said = {"t/n": {"inactive_topic_policies": {"deleteWhileInactive": False}}}
    own = {Topic.parse("persistent://t/n/a"): keeps, Topic.parse("persistent://t/n/b"): TopicPolicies()}
    layers = Layers({}, said, {"t/n": NamespacePolicies(own)})
    assert owners_keep(layers) == {"persistent://t/n/a"}
    topics = pa.array(["persistent://t/n/a-partition-0", "persistent://t/n/a", "persistent://t/n/b"])
    choice = InactivityChoice(1, owners_keep=owners_keep(layers))
    assert kept_by_owner(topics, choice).to_pylist() == [True, True, False]
