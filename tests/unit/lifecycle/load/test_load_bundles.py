"""Applying a load plan: bundles that nobody owns, what is loaded besides, topics that are deleted meanwhile."""

from __future__ import annotations

import json

import pytest

from pulsar_lifecycle.bundles.placing import BUNDLES_ROOT
from pulsar_lifecycle.errors import BundleShared
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.lifecycle.load.visit import LoadStep
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import raising
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, expired, pending, planned
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import NAMESPACE
from tests.kit.simulated.cluster import BROKER

ONE_BUNDLE = f"/namespace/{NAMESPACE}/0x00000000_0xffffffff"


def lost(scene: LoadScene) -> bytes:
    """Nobody owns the one bundle of the namespace any more; returns what its lock said."""
    owner = scene.servers.zookeeper.data(ONE_BUNDLE)
    scene.servers.remove(ONE_BUNDLE)
    ends = {"bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}}
    scene.servers.put(f"{BUNDLES_ROOT}/{NAMESPACE}", json.dumps(ends).encode())
    return owner


def test_topics_of_bundles_that_nobody_owns_are_loaded_by_requests(scene: LoadScene) -> None:
    """So many at once; the bundle that the first has had taken does not count as one that moves."""
    for name in "abc":
        expired(scene, name)
    plan = planned(scene, *"abc")
    admin, owner = scene.servers.admin, lost(scene)
    asked: list[Topic] = []
    real = admin.on_load

    def load(topic: Topic) -> None:
        real(topic)
        if not asked:
            scene.servers.put(ONE_BUNDLE, owner)
        asked.append(topic)

    admin.on_load = load
    admin.owner = raising(AssertionError("nobody is known to have it"))  # type: ignore[method-assign]
    scene.change(at_once=1, max_per_bundle=2)
    (dry, *_) = load_topics(scene.cluster, "dry", Order(plan.plan_id, plan.digest), dry_run=True)
    assert (dry.why.code, admin.asked, asked) == (Code.MAY_GO, [], [])
    admin.owner = lambda topic: BROKER  # type: ignore[method-assign]
    found = applied(scene, plan)
    assert [one.why.code for one in found] == [LoadStep.IN_METADATA, LoadStep.IN_METADATA, LoadKept.BUDGET_SPENT]
    assert len(asked) == 2


def test_a_topic_is_left_where_others_would_be_loaded_with_it(scene: LoadScene) -> None:
    for name in "ab":
        expired(scene, name)
    plan = planned(scene, *"ab")

    def take(topic: Topic) -> None:
        if topic.local == "a":
            raise BundleShared("beside")

    scene.servers.admin.on_take = take
    dry = load_topics(scene.cluster, "dry", Order(plan.plan_id, plan.digest), dry_run=True)
    assert {one.why.code for one in dry} == {Code.MAY_GO}
    found = {one.topic: one for one in applied(scene, plan)}
    assert (found[f"{OWN}a"].outcome, found[f"{OWN}a"].why.code) == (Outcome.LEFT, Code.BUNDLE_SHARED)
    assert found[f"{OWN}b"].outcome is Outcome.DONE
    assert {topic.local for topic in scene.servers.admin.touched} == {"b"}


def test_a_request_that_would_have_others_loaded_by_now_was_not_made(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    scene.servers.admin.unanswered[Topic.parse(f"{OWN}a")] = BundleShared("beside")
    scene.servers.admin.on_unload = raising(AssertionError("an unload would load it"))
    (found,) = applied(scene, plan)
    assert (found.outcome, found.why.text) == (Outcome.FAILED, "beside")
    assert pending(scene) == []


def test_topics_whose_broker_is_not_known_count_for_each(scene: LoadScene) -> None:
    for name in "abcd":
        expired(scene, name)
    plan = planned(scene, *"abcd")
    owner = lost(scene)
    real = scene.servers.admin.on_load

    def load(topic: Topic) -> None:
        real(topic)
        if not scene.servers.zookeeper.stat(ONE_BUNDLE):
            scene.servers.put(ONE_BUNDLE, owner)

    scene.servers.admin.on_load = load
    scene.change(at_once=2, max_per_broker=3)
    assert [one.why.code for one in applied(scene, plan)].count(LoadKept.BUDGET_SPENT) == 1


LOAD_MANAGERS = "org.apache.pulsar.broker.loadbalance"


@pytest.mark.parametrize("manager", ["impl.ModularLoadManagerImpl", "extensions.ExtensibleLoadManagerImpl"])
def test_a_bundle_that_its_owner_just_lost_is_nobodys(scene: LoadScene, manager: str) -> None:
    """A broker lists a topic of it, and has no lock by now."""
    expired(scene)
    scene.servers.topic(Topic.parse(f"{OWN}young"))
    scene.configure(loadManagerClassName=f"{LOAD_MANAGERS}.{manager}")
    plan = planned(scene, "a")
    scene.servers.admin.loaded[f"{OWN}young"] = BROKER
    scene.servers.remove(ONE_BUNDLE)
    (found,) = load_topics(scene.cluster, "dry", Order(plan.plan_id, plan.digest), dry_run=True)
    assert found.why.code == Code.MAY_GO, found


def inactive(scene: LoadScene) -> None:
    """Topic ``a`` has no subscription, and its broker deletes it, with its ledgers, as it is told to trim it."""
    scene.topic("a", 100, 90)
    scene.configure(brokerDeleteInactiveTopicsEnabled="true")
    scene.change(topic_deletion=(NAMESPACE,))

    def delete(topic: Topic) -> None:
        scene.servers.open_store().delete(scene.servers.topic_path(topic), -1)
        scene.servers.admin.loaded.pop(str(topic))
        del scene.servers.admin.topics[topic]

    scene.servers.admin.on_trim = delete


def test_a_topic_that_its_broker_deletes_by_order_is_done(scene: LoadScene) -> None:
    inactive(scene)
    (one,) = applied(scene, planned(scene, "a"))
    assert (one.outcome, one.why.code) == (Outcome.DONE, Code.TOPIC_DELETED)
    assert (one.freed, one.second_visit_at) == (2 << 20, None)
    assert pending(scene) == []
    assert scene.servers.journal.rows[-1].code == Code.TOPIC_DELETED


def test_a_topic_that_somebody_deletes_meanwhile_is_no_success_of_ours(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")

    def delete(topic: Topic) -> None:
        store = scene.servers.open_store()
        for path in (f"{scene.servers.topic_path(topic)}/s", scene.servers.topic_path(topic)):
            store.delete(path, -1)
        scene.servers.admin.loaded.pop(str(topic))
        del scene.servers.admin.topics[topic]

    scene.servers.admin.on_trim = delete
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, Code.TOPIC_GONE)
    assert pending(scene) == []
