"""Trimming topics that brokers have loaded: what the policy allows, the unload after it, the budget."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from pulsar_lifecycle.bundles.placing import PENDING_ACKS
from pulsar_lifecycle.errors import (
    AccessDenied,
    BundleShared,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.topics.load_losses import LoadLoss, LoadLosses
from pulsar_lifecycle.topics.unloads import RunGuard, Unloads
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.trimming import trim as trimming_trim
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.topic_load import PendingAcks
from tests.kit.crash import raising
from tests.kit.fakes.broker_admin import FakeSubscription
from tests.kit.scenes.topic_scene import OTHER, TOPIC, nothing_lost, outcomes
from tests.kit.scenes.trim_scene import TrimScene as Scene
from tests.kit.simulated.cluster import data_tags


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_loaded_topic_is_left_to_its_broker(scene: Scene) -> None:
    scene.load()
    found = scene.trim()
    assert outcomes(found) == dict.fromkeys(scene.ids[:3], Outcome.LEFT_TO_BROKER)
    assert found[scene.ids[0]].why.code is Code.TOPIC_LOADED
    assert scene.listed == scene.ids
    assert scene.sent == []
    assert scene.cluster.admin.touched == []


def test_a_loaded_topic_is_left_to_its_broker_where_caps_were_checked(scene: Scene) -> None:
    """The plan counts none of its ledgers, as none would go; the run says why, as the plan did."""
    scene.load()
    order = TrimOrder(TOPIC, up_to=scene.ids[2], counted=frozenset())
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [order]))
    assert outcomes(found) == dict.fromkeys(scene.ids[:3], Outcome.LEFT_TO_BROKER)
    assert scene.listed == scene.ids


@pytest.mark.parametrize("why", ["written", "unanswered", "open"])
def test_what_may_be_loaded_counts_as_loaded(scene: Scene, why: str) -> None:
    if why == "written":
        scene.cluster.topic(TOPIC, scene.ids)
    elif why == "open":
        scene.ids.append(scene.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN))
        scene.cluster.topic(TOPIC, scene.ids)
        scene.cluster.wait(1)
    work = trimming_trim.trim_topics
    unanswered = Brokers.failed(Unavailable("no answer"))

    def trim(run: TopicRun, ports: Ports, guard: RunGuard) -> list[LedgerOutcome]:
        run = replace(run, brokers=unanswered) if why == "unanswered" else run
        return work(run, ports, guard, [TrimOrder(TOPIC, up_to=scene.ids[2])])

    assert set(outcomes(scene.act(trim)).values()) == {Outcome.LEFT_TO_BROKER}
    assert scene.listed == scene.ids


def test_a_loaded_topic_is_written_and_unloaded_when_the_policy_says_so(scene: Scene) -> None:
    scene.load()
    assert outcomes(scene.trim(loaded_topics=True)) == dict.fromkeys(scene.ids[:3], Outcome.REMOVED)
    assert scene.listed == scene.ids[3:]
    assert scene.cluster.admin.touched == [TOPIC]
    assert scene.left_pending == []


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("acme", Outcome.REMOVED),
        ("acme/orders", Outcome.REMOVED),
        (str(TOPIC), Outcome.REMOVED),
        (str(TOPIC.partitioned_parent), Outcome.REMOVED),
        ("acme/other", Outcome.LEFT_TO_BROKER),
        (str(OTHER), Outcome.LEFT_TO_BROKER),
    ],
)
def test_the_policy_may_name_whose_loaded_topics_are_written(scene: Scene, name: str, outcome: str) -> None:
    scene.load()
    order, ports = TrimOrder(TOPIC, up_to=scene.ids[2]), scene.ports()
    planned = trimming_trim.plan_trim(scene.run(frozenset({name})), ports, order)
    assert {one.outcome for one in planned} == {Outcome.GOES if outcome == Outcome.REMOVED else Outcome.LEFT_TO_BROKER}
    assert outcomes(scene.trim(loaded_topics=frozenset({name}))) == dict.fromkeys(scene.ids[:3], outcome)


@pytest.mark.parametrize("listed", [True, False])
def test_a_topic_that_counts_as_loaded_is_not_trimmed_where_its_unload_would_lose_data(
    scene: Scene, listed: bool
) -> None:
    """An unload has a broker load what none has, and clients load it again."""
    scene.load()
    if not listed:
        scene.cluster.admin.loaded.clear()
    scene.losses = LoadLosses(nothing_lost(TOPIC.namespace).replication, lazy_cursors=True)
    order, ports = TrimOrder(TOPIC, up_to=scene.ids[2]), scene.ports()
    planned = trimming_trim.plan_trim(scene.run(True), ports, order)
    found = [*planned, *scene.trim(loaded_topics=True).values()]
    assert {(one.outcome, one.why.code) for one in found} == {(Outcome.LEFT_TO_BROKER, LoadLoss.CURSORS_COME_LATER)}
    assert (scene.listed, scene.sent, scene.cluster.admin.touched, scene.left_pending) == (scene.ids, [], [], [])


def with_transactions(scene: Scene) -> None:
    """The topic's subscription has acknowledged in some."""
    scene.cluster.topic(Topic.parse(f"{TOPIC}-s{PENDING_ACKS}"), [])
    scene.cluster.admin.topics[TOPIC] = {"s": FakeSubscription()}


@pytest.mark.parametrize("state", [PendingAcks.READY, PendingAcks.INITIALIZING, None])
def test_a_topic_is_not_unloaded_amid_the_reading_of_what_was_acknowledged_in_transactions(
    scene: Scene, state: PendingAcks | None
) -> None:
    """Nor where no broker has it, which an unload would have one load."""
    scene.load()
    with_transactions(scene)
    if state is None:
        scene.cluster.admin.loaded.clear()
    else:
        scene.cluster.admin.acks[TOPIC, "s"] = state
    read = state is PendingAcks.READY
    found = scene.trim(loaded_topics=True)
    assert outcomes(found) == dict.fromkeys(scene.ids[:3], Outcome.REMOVED if read else Outcome.LEFT_TO_BROKER)
    assert (scene.cluster.admin.touched, scene.left_pending) == ([TOPIC] if read else [], [])
    assert read or {one.why.code for one in found.values()} == {Code.NOT_UNLOADED}
    remedy = "have a client use it" if state is None else "restart the broker"
    assert read or all(remedy in one.reason and "counts as loaded (" in one.reason for one in found.values())


def test_what_cannot_be_asked_after_the_write_leaves_its_unload_pending_and_the_journal_whole(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.load()
    with_transactions(scene)
    scene.cluster.admin.acks[TOPIC, "s"] = PendingAcks.READY
    real = snapshot.with_pending_acks

    def fails_once_it_is_written(*asked: Any) -> frozenset[str]:
        if scene.listed != scene.ids:
            raise Unavailable("ZooKeeper: connection lost")
        return real(*asked)

    monkeypatch.setattr(snapshot, "with_pending_acks", fails_once_it_is_written)
    found = scene.trim(loaded_topics=True)
    assert {one.outcome for i, one in found.items() if i >= 0} == {Outcome.REMOVED}
    assert scene.rows[Outcome.REMOVED] == scene.ids[:3]
    assert (scene.cluster.admin.touched, scene.left_pending) == ([], [True])


def test_a_pending_unload_waits_for_the_reading_of_what_was_acknowledged_in_transactions(scene: Scene) -> None:
    scene.load()
    with_transactions(scene)
    scene.cluster.admin.acks[TOPIC, "s"] = PendingAcks.INITIALIZING
    noted = scene.cluster.clock.now_ms()
    control.note_unload(scene.store, control.PendingUnload(TOPIC, True, noted, control.LEASE))
    scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, []))
    assert (scene.cluster.admin.touched, len(scene.left_pending)) == ([], 1)
    scene.cluster.admin.acks[TOPIC, "s"] = PendingAcks.READY
    scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, []))
    assert (scene.cluster.admin.touched, scene.left_pending) == ([TOPIC], [])


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_a_topic_is_left_where_others_would_be_loaded_with_it(scene: Scene, shared: bool, listed: bool) -> None:
    """By its unload, which loads it where no broker has it. A dry run asks for nothing."""
    scene.load()
    if not listed:
        scene.cluster.admin.loaded.clear()
        scene.cluster.wait(1)
    if shared:
        scene.cluster.admin.on_take = raising(BundleShared("beside"))
    order = TrimOrder(TOPIC, up_to=scene.ids[2])
    assert {one.why.code for one in trimming_trim.plan_trim(scene.run(True), scene.ports(), order)} == {Code.MAY_GO}
    assert (scene.cluster.admin.asked, scene.cluster.admin.touched) == ([], [])
    found = scene.trim(loaded_topics=True).values()
    assert {one.why.code for one in found} == {Code.BUNDLE_SHARED if shared else Code.TAKEN_OFF}
    assert all("beside" in one.reason for one in found if shared)
    assert scene.cluster.admin.touched == ([] if shared else [TOPIC])


def test_no_bundle_is_taken_once_the_run_may_unload_no_more(scene: Scene) -> None:
    scene.load()
    found = scene.trim(loaded_topics=True, limit=0).values()
    assert {(one.outcome, one.why.code) for one in found} == {(Outcome.LEFT_TO_BROKER, Code.NOT_UNLOADED)}
    assert (scene.cluster.admin.asked, scene.cluster.admin.touched) == ([], [])


@pytest.mark.parametrize(
    ("listed", "since", "asked", "pending"),
    [(False, 1, False, 0), (False, 0.1, False, 1), (False, 0, True, 0), (True, 1, True, 0)],
)
def test_a_pending_unload_asks_no_broker_for_what_none_has_any_more(
    scene: Scene, listed: bool, since: float, asked: bool, pending: int
) -> None:
    """An unload would have one load it; for two statistics intervals nobody knows whether one has it.

    And for a quarter of an hour a broker that hangs may come back with it, and is to unload it then.
    """
    scene.cluster.load(TOPIC)
    if not listed:
        scene.cluster.admin.loaded.clear()
    noted = scene.cluster.clock.now_ms()
    control.note_unload(scene.store, control.PendingUnload(TOPIC, True, noted, control.LEASE))
    scene.cluster.wait(since)
    scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, []))
    assert (scene.cluster.admin.touched == [TOPIC], len(scene.left_pending)) == (asked, pending)


@pytest.mark.parametrize("shared", [True, False])
def test_a_pending_unload_loads_nothing_else_where_its_broker_died(scene: Scene, shared: bool) -> None:
    """Once no broker has it for sure, nobody needs to unload it."""
    scene.load()
    scene.cluster.admin.loaded.clear()
    if shared:
        scene.cluster.admin.on_take = raising(BundleShared("beside"))
    noted = scene.cluster.clock.now_ms()
    control.note_unload(scene.store, control.PendingUnload(TOPIC, True, noted, control.LEASE))
    scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, []))
    assert (scene.cluster.admin.touched, len(scene.left_pending)) == (([], 1) if shared else ([TOPIC], 0))
    scene.cluster.wait(1)
    scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, []))
    assert (scene.cluster.admin.touched, scene.left_pending) == ([] if shared else [TOPIC], [])


def test_a_failed_unload_is_tried_again_reported_and_done_by_the_next_run(scene: Scene) -> None:
    scene.load()
    asked: list[Topic] = []

    def fails(topic: Topic) -> None:
        asked.append(topic)
        raise OutcomeUnknown("500")

    scene.cluster.admin.on_unload = fails
    found = scene.trim(loaded_topics=True)
    assert len(asked) == 6  # three at once, three at the end of the run
    assert found[-1].outcome == Outcome.FAILED
    assert found[-1].why.code is Code.UNLOAD_PENDING
    assert scene.listed == scene.ids[3:]
    assert [(o.topic, o.loaded) for o in scene.pending_unloads] == [(TOPIC, True)]
    assert scene.cluster.journal.rows[-1].code == Code.TAKEN_OFF
    assert "500" in scene.cluster.journal.rows[-1].reason

    assert scene.trim(upto=3, loaded_topics=True)[-1].outcome == Outcome.FAILED  # not written again before that
    assert scene.listed == scene.ids[3:]

    scene.cluster.admin.on_unload = lambda topic: None
    assert outcomes(scene.trim(loaded_topics=True)) == {-1: Outcome.NOTHING}  # nothing is left to trim
    assert scene.left_pending == []


def test_an_unload_that_works_the_second_time(scene: Scene) -> None:
    scene.load()
    failures = iter([Unavailable("503"), None])

    def now_and_then(topic: Topic) -> None:
        if error := next(failures):
            raise error

    scene.cluster.admin.on_unload = now_and_then
    assert set(outcomes(scene.trim(loaded_topics=True)).values()) == {Outcome.REMOVED}
    assert scene.left_pending == []


def test_a_run_unloads_no_more_than_it_may(scene: Scene) -> None:
    unloads = Unloads(5, 2, scene.cluster.clock)
    scene.cluster.load(TOPIC)
    assert (unloads.unload(scene.store, scene.cluster.admin, TOPIC), unloads.lacks()) == (None, None)
    lack = unloads.lacks(2)
    assert lack
    assert lack.code is Code.NOT_UNLOADED


def test_a_loaded_topic_that_may_not_be_written_is_not_unloaded(scene: Scene) -> None:
    scene.load()
    scene.on_write(raising(AccessDenied("NoAuth")))
    assert outcomes(scene.trim(loaded_topics=True)) == {-1: Outcome.FAILED}
    assert (scene.cluster.admin.touched, scene.left_pending) == ([], [])


def test_no_write_without_an_unload_left(scene: Scene) -> None:
    scene.load()
    found = scene.trim(loaded_topics=True, limit=0)
    assert set(outcomes(found).values()) == {Outcome.LEFT_TO_BROKER}
    assert found[scene.ids[0]].why.code is Code.NOT_UNLOADED
    assert scene.listed == scene.ids


def test_unloads_keep_their_pace(scene: Scene) -> None:
    unloads = Unloads(5, 100, scene.cluster.clock)
    scene.cluster.load(TOPIC)
    for _ in range(11):
        assert unloads.unload(scene.store, scene.cluster.admin, TOPIC) is None
    assert sum(scene.cluster.clock.slept) == pytest.approx(2.0)


def test_a_topic_that_is_gone_owes_no_unload(scene: Scene) -> None:
    control.note_unload(scene.store, control.PendingUnload(OTHER, True, 0, control.LEASE))
    assert scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [])) == {}
    assert scene.left_pending == []


def test_an_unload_that_its_broker_calls_unknown_stays_pending_while_a_broker_may_have_the_topic(scene: Scene) -> None:
    scene.load()
    listed = [True]

    def unknown(topic: Topic) -> None:
        if not listed[0]:
            del scene.cluster.admin.loaded[str(topic)]
        raise NotFound("404")

    scene.cluster.admin.on_unload = unknown
    found = scene.trim(loaded_topics=True)
    assert scene.listed == scene.ids[3:]
    assert (found[-1].outcome, found[-1].why.code) == (Outcome.FAILED, Code.UNLOAD_PENDING)
    assert scene.cluster.journal.rows[-1].code == Code.TAKEN_OFF
    assert "404" in scene.cluster.journal.rows[-1].reason
    listed[0] = False  # the lists lag behind
    assert outcomes(scene.trim(loaded_topics=True)) == {-1: Outcome.FAILED}
    assert scene.left_pending == [True]
    scene.cluster.wait(1)
    scene.cluster.admin.failure = Unavailable("down")
    with contextlib.suppress(Unavailable):
        scene.trim(loaded_topics=True)
    assert len(scene.left_pending) == 1
    scene.cluster.admin.failure = None
    assert scene.trim(loaded_topics=True)[-1].why.code is Code.NOTHING_LISTED
    assert scene.left_pending == []
