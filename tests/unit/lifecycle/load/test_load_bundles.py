"""Applying a load plan: bundles that are loaded whole or not at all, and topics that are deleted meanwhile."""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import count

import pytest

from pulsar_lifecycle.bundles.placing import BY_THEMSELVES
from pulsar_lifecycle.lifecycle import load_budget
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.topics.bundle_owner import Owners, would_be_loaded
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, expired, pending, planned
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import NAMESPACE
from tests.kit.simulated.cluster import BROKER, half_of


def test_topics_that_brokers_load_by_themselves_share_no_bundle(scene: LoadScene) -> None:
    expired(scene)
    for name in (*BY_THEMSELVES, "x-s__transaction_pending_ack"):
        scene.servers.topic(Topic.parse(f"{OWN}{name}"))
    plan = planned(scene, "a")
    scene.servers.open_store().delete(f"/namespace/{NAMESPACE}/0x00000000_0xffffffff", -1)
    (found,) = load_topics(scene.cluster, "dry", Order(plan.plan_id, plan.digest), dry_run=True)
    assert found.outcome is Outcome.GOES, found


@pytest.mark.parametrize("others", [(), ("b",)])
def test_a_bundle_without_an_owner_is_loaded_whole_or_not_at_all(scene: LoadScene, others: tuple[str, ...]) -> None:
    expired(scene)
    for name in others:
        expired(scene, name)
    scene.servers.topic(Topic.parse(f"{OWN}young"))
    plan = planned(scene, "a", *others)
    scene.servers.open_store().delete(f"/namespace/{NAMESPACE}/0x00000000_0xffffffff", -1)
    assert {one.why.code for one in applied(scene, plan)} == {LoadKept.BUNDLE_SHARED}
    assert scene.servers.admin.touched == []
    scene.servers.open_store().delete(scene.servers.topic_path(Topic.parse(f"{OWN}young")), -1)
    assert {one.outcome for one in applied(scene, plan)} == {Outcome.DONE}
    assert not scene.is_loaded("a")


def test_each_topic_is_looked_at_beside_one_set_of_those_that_go(
    scene: LoadScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set for each of them would take as long as the square of a large plan."""
    for name in ("a", "b"):
        expired(scene, name)
    plan, asked, real = planned(scene, "a", "b"), list[Collection[Topic]](), would_be_loaded

    def noted(
        store: MetadataStore, brokers: Brokers, owners: Owners, topic: Topic, going: Collection[Topic]
    ) -> str | None:
        asked.append(going)
        return real(store, brokers, owners, topic, going)

    monkeypatch.setattr(load_budget, "would_be_loaded", noted)
    load_topics(scene.cluster, "dry", Order(plan.plan_id, plan.digest), dry_run=True)
    assert asked[0] is asked[1]
    assert len(asked[0]) == 2


LOAD_MANAGERS = "org.apache.pulsar.broker.loadbalance"


@pytest.mark.parametrize(
    ("manager", "code"),
    [
        (f"{LOAD_MANAGERS}.impl.ModularLoadManagerImpl", LoadKept.BUNDLE_SHARED),
        (f"{LOAD_MANAGERS}.extensions.ExtensibleLoadManagerImpl", Code.MAY_GO),
    ],
)
def test_a_bundle_that_its_owner_just_lost_is_left_alone(scene: LoadScene, manager: str, code: Code) -> None:
    """A broker lists a topic of it, and has no lock by now: whoever takes the bundle loads all of it."""
    expired(scene)
    scene.servers.topic(Topic.parse(f"{OWN}young"))
    scene.configure(loadManagerClassName=manager)
    plan = planned(scene, "a")
    scene.servers.admin.loaded[f"{OWN}young"] = BROKER
    scene.servers.open_store().delete(f"/namespace/{NAMESPACE}/0x00000000_0xffffffff", -1)
    (found,) = load_topics(scene.cluster, "dry", Order(plan.plan_id, plan.digest), dry_run=True)
    assert found.why.code == code, found


def named(upper: bool) -> str:
    """A local name whose topic is in the upper half of all bundles, or not."""
    return next(n for n in map("t-{}".format, count()) if half_of(f"{OWN}{n}") == upper)


@pytest.mark.parametrize("neighbour", [True, False])
def test_a_topic_is_left_whose_broker_reads_policies_out_of_a_bundle_that_nobody_owns(
    scene: LoadScene, neighbour: bool
) -> None:
    """Its own bundle has an owner; whoever takes that of ``__change_events`` loads all that is in there."""
    events = Topic.parse(f"{OWN}__change_events")
    upper = bool(half_of(events))
    scene.servers.halve(NAMESPACE)
    name = named(not upper)
    expired(scene, name)
    scene.servers.topic(events)
    if neighbour:
        scene.servers.topic(Topic.parse(f"{OWN}{named(upper)}"))
    plan = planned(scene, name)
    scene.servers.open_store().delete(f"/namespace/{NAMESPACE}/0x00000000_0xffffffff", -1)
    own = "0x00000000_0x80000000" if upper else "0x80000000_0xffffffff"
    scene.servers.put(f"/namespace/{NAMESPACE}/{own}", json.dumps({"httpUrl": f"http://{BROKER}"}).encode())
    scene.servers.clock.advance(3600)
    (found,) = load_topics(scene.cluster, "dry", Order(plan.plan_id, plan.digest), dry_run=True)
    assert found.why.code == (LoadKept.BUNDLE_SHARED if neighbour else Code.MAY_GO), found


def test_a_bundle_without_an_owner_that_has_too_many_topics_is_named(scene: LoadScene) -> None:
    for name in "abc":
        expired(scene, name)
    plan = planned(scene, *"abc")
    scene.servers.open_store().delete(f"/namespace/{NAMESPACE}/0x00000000_0xffffffff", -1)
    scene.change(max_per_bundle=2)
    assert {one.why.code for one in applied(scene, plan)} == {LoadKept.BUNDLE_TOO_LARGE}
    assert scene.servers.admin.touched == []
    scene.change(max_per_bundle=3)
    assert {one.outcome for one in applied(scene, plan)} == {Outcome.DONE}


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
