"""What changes between the judgement of a load run and its effects: policies, and who owns a bundle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visit import LoadStep
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, expired, pending, planned
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import MINUTE, NAMESPACE

A = Topic.parse(f"{OWN}a")


@pytest.mark.parametrize("ttl", [4 * 3600, 0])
def test_a_ttl_that_changes_while_topics_are_loaded_keeps_their_messages(scene: LoadScene, ttl: int) -> None:
    """Loading the others of a wave may take minutes."""
    ids = scene.topic("a", 330, 240, 0)
    scene.servers.cursor(A, "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=3 * 3600)
    plan = planned(scene, "a")
    load, told = scene.servers.admin.on_load, list[str]()

    def raised(topic: Topic) -> None:
        load(topic)
        scene.namespace(message_ttl_in_seconds=ttl)

    scene.servers.admin.on_load = raised
    scene.servers.admin.on_expire = lambda topic, name, seconds: told.append(name)
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, Code.CHANGED_MEANWHILE)
    assert told == []
    assert scene.listed("a")[:3] == ids
    assert not scene.is_loaded("a")
    assert pending(scene) == []


def test_a_hold_that_is_set_while_topics_are_loaded_keeps_what_they_have(scene: LoadScene) -> None:
    ids = scene.topic("a", 330, 240, 0)
    scene.servers.cursor(A, "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=3 * 3600)
    plan = planned(scene, "a")
    admin, told = scene.servers.admin, list[str]()
    load = admin.on_load

    def held(topic: Topic) -> None:
        load(topic)
        scene.hold(NAMESPACE)

    admin.on_load = held
    admin.on_expire = lambda topic, name, seconds: told.append(name)
    admin.on_trim = lambda topic: told.append("trimmed")
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code, told) == (Outcome.FAILED, Protection.LEGAL_HOLD, [])
    assert scene.listed("a")[:3] == ids
    assert not scene.is_loaded("a")
    assert pending(scene) == []


@pytest.mark.parametrize("second", ["a", "b"])
@pytest.mark.parametrize("owned", [True, False])
def test_no_topic_is_loaded_or_trimmed_that_was_put_on_hold_in_its_wave(
    scene: LoadScene, second: str, owned: bool
) -> None:
    """Whichever is loaded first: the other one is not loaded any more."""
    for name in "ab":
        expired(scene, name)
    plan = planned(scene, "a", "b")
    if not owned:
        scene.servers.remove(f"/namespace/{NAMESPACE}/0x00000000_0xffffffff")
    admin, loaded = scene.servers.admin, list[str]()
    load = admin.on_load

    def held(topic: Topic) -> None:
        loaded.append(topic.local)
        load(topic)
        scene.hold(f"{OWN}{second}")

    admin.on_load = held
    found = {one.topic.rpartition("/")[2]: one for one in applied(scene, plan)}
    assert (found[second].outcome, found[second].why.code) == (Outcome.FAILED, Protection.LEGAL_HOLD)
    assert [scene.is_loaded(name) for name in "ab"] == [False, False]
    assert second not in loaded[1:]
    assert pending(scene) == []


def test_what_a_broker_expired_as_it_loaded_a_topic_is_not_denied(scene: LoadScene) -> None:
    """It does so where the topic has policies of its own; then the TTL is raised, and we have nothing expired."""
    ids = scene.topic("a", 330, 240, 0)
    scene.servers.cursor(A, "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=3 * 3600)
    plan = planned(scene, "a")
    admin = scene.servers.admin
    load, expire, trim, told = admin.on_load, admin.on_expire, admin.on_trim, list[str]()

    def at_once(topic: Topic) -> None:
        load(topic)
        expire(topic, "s", 3 * 3600)
        trim(topic)
        scene.namespace(message_ttl_in_seconds=30 * 3600)

    admin.on_load = at_once
    admin.on_expire = lambda topic, name, seconds: told.append(name)
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code, told) == (Outcome.FAILED, Code.CHANGED_MEANWHILE, [])
    assert "2 ledgers left its list all the same" in one.why.text
    assert one.freed > 0


def test_brokers_that_differ_since_the_plan_are_said_to(scene: LoadScene) -> None:
    """Not what follows from that, such as that the TTL is not known any more."""
    expired(scene)
    plan = planned(scene, "a")
    admin, name = scene.servers.admin, "ttlDurationDefaultInSeconds"
    ((first, said),) = admin.configuration.items()
    admin.broker_ids = [first, "other:1"]
    admin.configuration = {first: {**said, name: "1"}, "other:1": {**said, name: "2"}}
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.LEFT, LoadKept.MONITORS_UNKNOWN)
    assert name in one.why.text


def test_a_ttl_that_changes_while_a_broker_is_slow_keeps_the_messages_of_the_next_topic(scene: LoadScene) -> None:
    for name in "ab":
        ids = scene.topic(name, 330, 240, 0)
        scene.servers.cursor(Topic.parse(f"{OWN}{name}"), "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=3 * 3600)
    plan = planned(scene, *"ab")
    scene.change(at_once=2)
    expire, told = scene.servers.admin.on_expire, list[Topic]()

    def slowly(topic: Topic, name: str, seconds: int) -> None:
        told.append(topic)
        scene.servers.clock.advance(60)
        scene.namespace(message_ttl_in_seconds=4 * 3600)
        expire(topic, name, seconds)

    scene.servers.admin.on_expire = slowly
    first, second = applied(scene, plan)
    assert [str(topic) for topic in told] == [first.topic]
    assert (first.outcome, second.outcome, second.why.code) == (Outcome.DONE, Outcome.FAILED, Code.CHANGED_MEANWHILE)
    assert pending(scene) == []


def test_a_subscription_that_would_expire_before_the_unload_keeps_its_topic(scene: LoadScene) -> None:
    """Its broker deletes it, whatever is unread, once the topic is loaded and its time has come."""
    expired(scene)
    scene.namespace(subscription_expiration_time_minutes=24 * 60 + 300)
    path = f"{scene.servers.topic_path(A)}/s"
    info = cursor_format.decode(scene.servers.zookeeper.data(path))
    at_plan = scene.now + 2 * 60 * MINUTE
    scene.servers.put(path, cursor_format.encode(replace(info, last_active=at_plan - 299 * MINUTE)))
    plan = planned(scene, "a")
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.LEFT, LoadKept.SUBSCRIPTION_WOULD_EXPIRE)
    assert len(scene.listed("a")) == 2


def shed_after_the_first_load(scene: LoadScene) -> None:
    """The broker loses the namespace's bundle with the first topic that it loads."""
    load = scene.servers.admin.on_load

    def shed(topic: Topic) -> None:
        load(topic)
        scene.servers.open_store().delete(f"/namespace/{NAMESPACE}/0x00000000_0xffffffff", -1)

    scene.servers.admin.on_load = shed


def test_a_bundle_that_moves_before_the_load_is_asked_for_nothing(scene: LoadScene) -> None:
    """A lookup, or an unload, would give the bundle an owner that loads all its topics."""
    for name in "ab":
        expired(scene, name)
    plan = planned(scene, *"ab")
    scene.change(at_once=2)
    shed_after_the_first_load(scene)
    first, second = applied(scene, plan)
    assert first.outcome is Outcome.DONE
    assert (second.outcome, second.why.code) == (Outcome.FAILED, Code.CHANGED_MEANWHILE)
    assert second.topic not in {str(topic) for topic in scene.servers.admin.touched}
    assert len(scene.listed(second.topic.rpartition("/")[2])) == 2  # no load put a third one behind
    assert pending(scene) == []


def test_a_topic_that_was_asked_for_nothing_is_not_waited_for(scene: LoadScene) -> None:
    """Its last ledger is open as before: nobody closes it."""
    expired(scene, "a")
    ledger = scene.open_topic("b")
    plan = planned(scene, *"ab")
    scene.change(at_once=2)
    shed_after_the_first_load(scene)
    before = scene.cluster.clock.now_ms()
    found = {one.topic: one for one in applied(scene, plan)}
    assert found[f"{OWN}b"].why.code is Code.CHANGED_MEANWHILE
    assert scene.listed("b") == [ledger]
    assert scene.cluster.clock.now_ms() - before < scene.cluster.settings.load.timeout * 1000
    assert pending(scene) == []


@pytest.mark.parametrize("step", ["on_load", "on_expire"])
def test_a_subscription_that_is_deleted_amid_the_visit_is_waited_for_no_more(scene: LoadScene, step: str) -> None:
    """Before its broker is told to expire its messages, or while it is at it. The other one holds what it has yet."""
    ids = scene.topic("a", 330, 240, 0)
    for name in "st":
        scene.servers.cursor(A, name, at=ids[0])
    scene.namespace(message_ttl_in_seconds=3 * 3600)
    plan = planned(scene, "a")
    admin = scene.servers.admin
    do, deleted = getattr(admin, step), list[str]()

    def deleting(topic: Topic, *more: object) -> None:
        do(topic, *more)
        if not deleted:
            deleted.append("s")
            scene.servers.open_store().delete(f"{scene.servers.topic_path(topic)}/s", -1)
            del admin.topics[topic]["s"]

    setattr(admin, step, deleting)
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code, deleted) == (Outcome.DONE, LoadStep.IN_METADATA, ["s"])
    assert scene.listed("a")[0] == ids[2]
    assert pending(scene) == []
