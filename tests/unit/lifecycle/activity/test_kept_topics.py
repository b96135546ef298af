"""Inactive topics that stay: by their name, by their policy, or as a broker had them lately."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.lifecycle.activity.activity_run import build_activity
from pulsar_lifecycle.lifecycle.activity.inactive_planning import make_inactive_plans
from pulsar_lifecycle.lifecycle.activity.inactive_rules import InactivityChoice, kept_by_owner
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.policies import Layers, NamespacePolicies, owners_keep
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene, kept
from tests.kit.simulated.functions import METADATA, functions_subscribe, set_functions


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


def test_a_topic_beside_an_open_ledger_stays_though_no_broker_can_list_that(scene: ActivityScene) -> None:
    """Its deletion would be refused: without its z-node nothing shows that a write of ours came before the ledger."""
    scene.used("old")
    scene.days(9)
    name = frozenset({str(scene.named("old"))})
    scene.servers.wait(1)
    epoch = scene.scan(open_topics=name, overtaken_topics=name)
    assert kept(build_activity(scene.cluster, epoch).topics) == {"old": Protection.OPEN_ORPHAN}


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
    names = ("a-partition-0", "a", "b", "a-partition-00")  # the last is a topic of its own
    choice = InactivityChoice(1, owners_keep=owners_keep(layers))
    found = kept_by_owner(pa.array([f"persistent://t/n/{name}" for name in names]), choice)
    assert found.to_pylist() == [True, True, False, False]


def report_only(scene: ActivityScene) -> list[Gap]:
    """The gaps of the newest report's plans, which are the same of both."""
    assert scene.epoch
    report = scene.report()
    made = make_inactive_plans(scene.cluster, scene.epoch, report)
    (topics, _), (subscriptions, _) = made
    assert topics.gaps == subscriptions.gaps
    return list(topics.gaps)


def test_a_subscription_by_whose_name_a_function_subscribes_stays_and_with_it_its_topic(scene: ActivityScene) -> None:
    """Whatever topics the function reads."""
    functions_subscribe(scene.servers, "enriching")
    for name in ("a", "b"):
        scene.used(name, "enriching" if name == "a" else "s")
    report = scene.days(8)
    own = {"metadata": Protection.UNKNOWN_NAMESPACE}
    assert kept(report.topics) == {**own, "a": InactiveKept.FUNCTION_SUBSCRIPTION, "b": None}
    assert kept(report.cursors) == {"a/enriching": InactiveKept.FUNCTION_SUBSCRIPTION, "b/s": None}
    assert report_only(scene) == []


def test_all_subscriptions_stay_where_nobody_knows_those_of_functions(scene: ActivityScene) -> None:
    """And the plans, which say what to do, are only reports."""
    set_functions(scene.servers, b"no metadata")
    scene.used("a", "s")
    scene.used("bare")
    report = scene.days(8)
    own = {"metadata": Protection.UNKNOWN_NAMESPACE}
    assert kept(report.topics) == {**own, "a": InactiveKept.FUNCTIONS_UNKNOWN, "bare": None}
    assert kept(report.cursors) == {"a/s": InactiveKept.FUNCTIONS_UNKNOWN}
    (gap,) = report_only(scene)
    assert gap.code is GapCode.POLICIES_UNKNOWN
    assert gap.text.startswith(f"{METADATA} cannot be read whole")
    scene.choose(functions_metadata="")
    assert kept(scene.report().cursors) == {"a/s": None}
    assert report_only(scene) == []
