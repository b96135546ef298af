"""Applying a load plan while one of two brokers does not answer, or refuses: only what it has, or might take, stays."""

from __future__ import annotations

import json

import pytest

from pulsar_lifecycle.bundles.placing import BROKERS_ROOT
from pulsar_lifecycle.errors import AccessDenied, Failed, Unavailable
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visits import LoadedTopic
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from tests.kit.crash import raising
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, expired, pending, planned
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import NAMESPACE
from tests.kit.simulated.cluster import BROKER, half_of

OTHER = "broker-2:8080"
HALVES = ("0x00000000_0x80000000", "0x80000000_0xffffffff")


def named(upper: bool, number: int = 0) -> str:
    """A local name whose topic is in the upper half of all bundles, or not."""
    names = (n for n in map("t-{}".format, range(99)) if half_of(f"{OWN}{n}") == upper)
    return [*names][number]


LOWER, UPPER = named(False), named(True)


def own(scene: LoadScene, half: str, broker: str) -> None:
    scene.servers.put(f"/namespace/{NAMESPACE}/{half}", json.dumps({"httpUrl": f"http://{broker}"}).encode())


@pytest.fixture
def two(scene: LoadScene) -> LoadScene:
    """Each of two brokers owns a half of all bundles: the second the upper one."""
    admin = scene.servers.admin
    admin.broker_ids = [BROKER, OTHER]
    scene.configure()
    for broker in admin.broker_ids:
        scene.servers.put(f"{BROKERS_ROOT}/{broker}", b"{}")
    scene.servers.open_store().delete(f"/namespace/{NAMESPACE}/0x00000000_0xffffffff", -1)
    own(scene, HALVES[0], BROKER)
    own(scene, HALVES[1], OTHER)
    admin.owners = {Topic.parse(f"{OWN}{named(True, n)}"): OTHER for n in range(4)}
    return scene


def plan_of(scene: LoadScene, *names: str) -> PlanSummary:
    for name in names:
        expired(scene, name)
    return planned(scene, *names)


def by_name(found: list[LoadedTopic]) -> dict[str, LoadedTopic]:
    return {one.topic.rpartition("/")[2]: one for one in found}


@pytest.mark.parametrize("how", ["unreachable", "refusing"])
def test_a_broker_that_does_not_answer_keeps_its_own_topics_alone(two: LoadScene, how: str) -> None:
    plan = plan_of(two, LOWER, UPPER)
    before = two.listed(UPPER)
    setattr(two.servers.admin, how, {OTHER})
    dry, found = by_name(applied(two, plan, dry_run=True)), by_name(applied(two, plan))
    assert (dry[LOWER].outcome, found[LOWER].outcome) == (Outcome.GOES, Outcome.DONE)
    for one in (dry[UPPER], found[UPPER]):
        assert (one.outcome, one.why.code) == (Outcome.LEFT, LoadKept.BROKER_UNANSWERED)
        assert OTHER in one.why.text
    assert two.listed(UPPER) == before
    assert pending(two) == []
    setattr(two.servers.admin, how, set())
    assert by_name(applied(two, plan))[UPPER].outcome is Outcome.DONE


def test_a_bundle_that_nobody_is_known_to_own_is_not_offered_to_a_broker_that_does_not_answer(two: LoadScene) -> None:
    plan = plan_of(two, LOWER, UPPER)
    two.servers.open_store().delete(f"/namespace/{NAMESPACE}/{HALVES[0]}", -1)
    two.servers.admin.unreachable = {OTHER}
    assert {one.why.code for one in applied(two, plan)} == {LoadKept.BROKER_UNANSWERED}
    assert two.servers.admin.touched == []


def test_a_broker_that_does_not_answer_that_is_newer_than_the_plan_keeps_all(two: LoadScene) -> None:
    """Nobody knows by which settings it would treat a topic that moves to it."""
    plan = plan_of(two, LOWER)
    two.servers.wait(1)
    store = two.servers.open_store()
    store.delete(f"{BROKERS_ROOT}/{OTHER}", -1)
    two.servers.put(f"{BROKERS_ROOT}/{OTHER}", b"{}")
    two.servers.admin.unreachable = {OTHER}
    (one,) = applied(two, plan)
    assert (one.outcome, one.why.code) == (Outcome.LEFT, LoadKept.MONITORS_UNKNOWN)
    assert two.servers.admin.touched == []


def test_a_run_is_refused_where_no_broker_answers(two: LoadScene) -> None:
    plan = plan_of(two, LOWER)
    two.servers.admin.unreachable = {BROKER, OTHER}
    with pytest.raises(Unavailable):
        applied(two, plan)
    two.servers.admin.unreachable, two.servers.admin.refusing = set(), {BROKER, OTHER}
    with pytest.raises(AccessDenied):
        applied(two, plan)


def test_a_broker_that_stops_answering_before_messages_expire_keeps_its_own_topics(two: LoadScene) -> None:
    """The TTL is looked at again once all topics of a wave are loaded."""
    for name in (LOWER, UPPER):
        ids = two.topic(name, 330, 240, 0)
        two.servers.cursor(Topic.parse(f"{OWN}{name}"), "s", at=ids[0])
    two.namespace(message_ttl_in_seconds=3 * 3600)
    plan = planned(two, LOWER, UPPER)
    admin, load, told = two.servers.admin, two.servers.admin.on_load, list[Topic]()
    expire = admin.on_expire

    def stops_answering(topic: Topic) -> None:
        load(topic)
        if len(admin.loaded) == 1:  # this one is not among them yet: both are loaded
            admin.unreachable = {OTHER}

    def noted(topic: Topic, name: str, seconds: int) -> None:
        told.append(topic)
        expire(topic, name, seconds)

    admin.on_load, admin.on_expire = stops_answering, noted
    found = by_name(applied(two, plan))
    assert found[LOWER].outcome is Outcome.DONE, found
    assert found[UPPER].outcome is Outcome.FAILED
    assert told == [Topic.parse(f"{OWN}{LOWER}")]
    assert pending(two) != []
    admin.unreachable = set()
    two.servers.clock.advance(1_000)
    applied(two, plan)
    assert not two.is_loaded(UPPER)
    assert pending(two) == []


def test_a_broker_that_begins_to_refuse_amid_a_wave_does_not_end_the_run(two: LoadScene) -> None:
    """What it has loaded stays pending for the next run; the other broker's topics are done."""
    plan = plan_of(two, LOWER, UPPER)
    admin, trim = two.servers.admin, two.servers.admin.on_trim

    def refuses(topic: Topic) -> None:
        admin.refusing = {OTHER}
        trim(topic)

    admin.on_trim = refuses
    found = by_name(applied(two, plan))
    assert found[LOWER].outcome is Outcome.DONE, found
    assert found[UPPER].why.code is Code.NOT_UNLOADED
    assert len(pending(two)) == 1
    admin.on_trim, admin.refusing = trim, set()
    two.servers.clock.advance(1_000)
    applied(two, plan)
    assert not two.is_loaded(UPPER)
    assert pending(two) == []


def test_topics_of_a_broker_that_stopped_answering_are_not_tried_one_by_one(two: LoadScene) -> None:
    """Each would cost a time-out; and their unloads do not end the run for the topics of the other broker."""
    uppers, lowers = ([named(half, n) for n in range(4)] for half in (True, False))
    plan = plan_of(two, *uppers, *lowers)
    two.change(at_once=4)
    admin, asked, trim = two.servers.admin, list[Topic](), two.servers.admin.on_trim
    unload = type(admin).unload

    def stops_answering(topic: Topic) -> None:
        admin.unreachable.add(OTHER)
        trim(topic)

    def counted(topic: Topic) -> None:
        asked.append(topic)
        unload(admin, topic)

    admin.on_trim, admin.unload = stops_answering, counted  # type: ignore[method-assign]
    found = by_name(applied(two, plan))
    assert {found[name].why.code for name in uppers} == {Code.NOT_UNLOADED}
    assert len({topic for topic in asked if topic in admin.owners}) == 1
    assert len(pending(two)) == 4
    assert {found[name].outcome for name in lowers} == {Outcome.DONE}


def test_a_load_of_which_the_broker_says_nothing_is_no_word_about_others(two: LoadScene) -> None:
    """One topic of a broker fails, and the broker answers all else."""
    plan = plan_of(two, LOWER, named(False, 1))
    two.servers.admin.unanswered[Topic.parse(f"{OWN}{LOWER}")] = Failed("500")
    found = by_name(applied(two, plan))
    assert found[LOWER].outcome is Outcome.FAILED
    assert found[named(False, 1)].outcome is Outcome.DONE


def test_no_unload_is_said_to_stay_pending_of_a_topic_that_nobody_was_asked_to_load(
    two: LoadScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has its bundle was not answered."""
    plan = plan_of(two, UPPER)
    monkeypatch.setattr(two.servers.admin, "owner", raising(Unavailable("no answer")))
    (one,) = applied(two, plan)
    assert (one.outcome, one.why.code, one.why.text) == (Outcome.FAILED, Code.SERVER_FAILED, "no answer")
    assert not two.is_loaded(UPPER)
    assert pending(two) == []


def test_a_topic_that_no_broker_has_loaded_is_not_loaded_by_its_unload(
    two: LoadScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its load was not answered, and the next run looks whether it was done all the same."""
    plan = plan_of(two, LOWER)
    before, admin = two.listed(LOWER), two.servers.admin
    monkeypatch.setattr(admin, "internal_stats", raising(Unavailable("connection refused")))
    monkeypatch.setattr(admin, "unload", raising(AssertionError("an unload would load it")))
    (one,) = applied(two, plan)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, Code.SERVER_FAILED)
    assert "its unload stays pending" in one.why.text
    assert two.listed(LOWER) == before
    assert len(pending(two)) == 1
    monkeypatch.undo()
    two.servers.clock.advance(1_000)
    assert [each.outcome for each in applied(two, plan)] == [Outcome.DONE]
    assert pending(two) == []
