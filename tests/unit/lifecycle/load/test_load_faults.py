"""Load runs whose brokers fail, that are paused or killed: nothing stays loaded, or the next run unloads it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from pulsar_lifecycle.errors import NotFound, OutcomeUnknown, Paused, StoreError, Unavailable
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visit import LoadStep
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from tests.kit.crash import Crash, raising
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, expired, killed, pending, planned
from tests.kit.scenes.lifecycle.load_scene import LoadScene

A = Topic.parse(f"{OWN}a")


def test_a_broker_that_fails_at_a_load_leaves_nothing_loaded(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    scene.servers.admin.unanswered[A] = StoreError("500")
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, Code.SERVER_FAILED)
    assert not scene.is_loaded("a")
    assert pending(scene) == []


@pytest.mark.parametrize("error", [NotFound("404"), StoreError("403")])
def test_a_trim_that_fails_leaves_nothing_loaded(scene: LoadScene, error: Exception) -> None:
    first, *_ = expired(scene)
    plan = planned(scene, "a")
    scene.servers.admin.on_trim = raising(error)
    (one,) = applied(scene, plan)
    assert one.outcome is Outcome.FAILED
    assert not scene.is_loaded("a")
    assert scene.listed("a")[0] == first
    assert pending(scene) == []


def test_what_a_broker_may_load_later_stays_noted_until_it_is_seen_not_to_be(scene: LoadScene) -> None:
    """A broker that hung does what it was told once it goes on, and lists what it loads a while later."""
    expired(scene)
    plan = planned(scene, "a")
    scene.servers.admin.unanswered[A] = Unavailable("no answer")
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, Code.SERVER_FAILED)
    assert len(pending(scene)) == 1
    scene.servers.clock.advance(1_000)
    scene._load(A)
    del scene.servers.admin.unanswered[A]
    (one,) = applied(scene, plan)
    assert one.outcome is Outcome.LEFT
    assert len(pending(scene)) == 1
    scene.servers.load(A)
    applied(scene, plan)
    assert not scene.is_loaded("a")
    assert pending(scene) == []


def test_what_a_broker_did_not_answer_and_never_does_is_forgotten(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    scene.servers.admin.on_trim = raising(OutcomeUnknown("no answer"))
    (one,) = applied(scene, plan)
    assert one.outcome is Outcome.FAILED
    assert not scene.is_loaded("a")
    assert len(pending(scene)) == 1
    scene.servers.clock.advance(1_000)
    applied(scene, plan)
    assert pending(scene) == []


def test_a_trim_that_is_never_done_is_told_again_and_abandoned(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    told: list[Topic] = []
    scene.servers.admin.on_trim = told.append
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, LoadStep.NOT_IN_TIME)
    assert len(told) > 10
    assert not scene.is_loaded("a")


def test_an_unload_that_fails_stays_noted_and_the_next_run_makes_it(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    scene.servers.admin.on_unload = raising(StoreError("500"))
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, Code.NOT_UNLOADED)
    assert one.freed > 0
    assert scene.is_loaded("a")
    assert len(pending(scene)) == 1
    scene.work()
    applied(scene, plan)
    assert not scene.is_loaded("a")
    assert pending(scene) == []


def test_a_pause_stops_at_once_and_what_is_loaded_is_unloaded_by_the_next_run(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    scene.servers.admin.on_trim = lambda topic: control.pause(scene.servers.open_store(), "stop")
    with pytest.raises(Paused):
        applied(scene, plan)
    assert scene.is_loaded("a")
    assert len(pending(scene)) == 1
    with pytest.raises(Paused):
        applied(scene, plan)
    control.resume(scene.servers.open_store())
    applied(scene, plan)
    assert not scene.is_loaded("a")
    assert pending(scene) == []


def test_a_topic_is_watched_from_its_own_load_on(scene: LoadScene) -> None:
    """Brokers list a topic late: one that is loaded long after the others must not count as unloaded too early."""
    for name in "ab":
        expired(scene, name)
    plan = planned(scene, "a", "b")
    load, begun = scene.servers.admin.on_load, list[int]()

    def slowly(topic: Topic) -> None:
        scene.servers.clock.advance(200)
        begun.append(scene.now)
        load(topic)
        if len(begun) == 2:
            raise Crash("loaded")

    scene.servers.admin.on_load = slowly
    with pytest.raises(Crash):
        applied(scene, plan)
    (second,) = [one for one in control.pending_unloads(scene.servers.open_store()) if one.topic and one.topic != A]
    assert isinstance(second, control.PendingUnload)
    assert second.since >= begun[0]


@pytest.mark.parametrize("unread", [False, True])
def test_a_run_that_is_killed_at_any_step_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unread: bool
) -> None:
    """Killed before any request to the metadata store or to a broker: afterwards nothing is loaded, nothing noted.

    ``unread``: the first ledger goes as its messages are past their TTL; only from the load on, all before is the same.
    """
    told: list[str] = []
    first_step = 60 if unread else 0
    for step in count(first_step):
        folder = tmp_path / str(step)
        folder.mkdir()
        scene = LoadScene(folder, monkeypatch)
        scene.work()
        if unread:
            first, last = scene.topic("a", 330, 0)
            scene.servers.cursor(A, "s", at=first)
            scene.namespace(message_ttl_in_seconds=3 * 3600)
        else:
            first, last = expired(scene)
        plan = planned(scene, "a")
        dies = killed(scene, plan, step, told)
        assert told == [] or step > first_step
        if not dies:
            assert step > 40
            assert ("on_expire" in told) is unread
            break
        scene.before = lambda operation: None
        scene.work()
        scene.servers.clock.advance(300)
        scene.servers.zookeeper.end_all_sessions()
        applied(scene, plan)
        assert not scene.is_loaded("a"), step
        assert pending(scene) == [], step
        assert _visits_without_end(scene) == 0, step
        assert set(scene.listed("a")) >= {last}, step
        assert set(scene.trimmed) <= {first}, step


def test_what_a_killed_run_had_loaded_is_said_to_be_for_a_new_plan(scene: LoadScene) -> None:
    """Its load put a new ledger behind, whose bytes this plan does not know."""
    expired(scene)
    expired(scene, "b")
    plan = planned(scene, "a", "b")
    trim = scene.servers.admin.on_trim

    def dies(topic: Topic) -> None:
        raise Crash("trim")

    scene.servers.admin.on_trim = dies
    with pytest.raises(Crash):
        applied(scene, plan)
    scene.servers.admin.on_trim = trim
    scene.servers.clock.advance(300)
    scene.servers.zookeeper.end_all_sessions()
    for dry_run in (False, False, True):
        done = applied(scene, plan, dry_run=dry_run)
        assert {one.topic: one.why.code for one in done} == dict.fromkeys(
            (f"{OWN}a", f"{OWN}b"), LoadKept.VISIT_BROKEN_OFF
        )
    assert not scene.is_loaded("a")


def _visits_without_end(scene: LoadScene) -> int:
    rows = [row for row in scene.servers.journal.rows if row.action == Action.LOAD_TOPIC]
    begun = sum(row.phase == Phase.LOAD and row.outcome == Outcome.BEGUN for row in rows)
    return begun - sum(row.phase == Phase.UNLOAD and row.outcome != Outcome.BEGUN for row in rows)
