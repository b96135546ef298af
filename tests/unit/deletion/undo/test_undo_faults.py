"""Undoing deletions: a run that is stopped, meets errors, or is killed at every call."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from pulsar_lifecycle.errors import LeaseLost, OutcomeUnknown, Overloaded, Paused, StoreError, Unavailable
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import Crash, Steps, watch
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.undo_scene import GC_WAIT, A, B, C, during_the_wait, outcomes
from tests.kit.scenes.undo_scene import UndoScene as Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


# ---------------------------------------------------------------------------------------------------------- stopping


def test_a_paused_cluster_gets_nothing_back(scene: Scene) -> None:
    control.pause(scene.store, "wait")
    with pytest.raises(Paused):
        scene.undo()
    assert not any(map(scene.exists, scene.ids))


def test_a_pause_interrupts_the_wait_and_a_rerun_goes_on(scene: Scene) -> None:
    during_the_wait(scene, lambda: control.pause(scene.store, "wait"))
    with pytest.raises(Paused):
        scene.undo()
    assert [scene.journal(i)[-1] for i in scene.ids] == [Outcome.RECREATED] * 3
    assert outcomes(scene.preview()) == [Outcome.RECREATED] * 3

    control.resume(scene.store)
    assert outcomes(scene.undo()) == [Outcome.RESTORED] * 3
    assert sum(scene.cluster.clock.slept) == pytest.approx(GC_WAIT)


def test_a_slow_metadata_store_stops_an_undo(scene: Scene) -> None:
    scene.store.latency = 501
    with pytest.raises(Overloaded):
        scene.undo()
    assert not any(map(scene.exists, scene.ids))


def test_without_the_lease_nothing_is_taken_away(scene: Scene) -> None:
    lost = scene.ids[1]

    def lose() -> None:
        scene.collect(lost, A, B, C)
        scene.store.write(control.LEASE, b"{}", -1)

    during_the_wait(scene, lose)
    with pytest.raises(LeaseLost):
        scene.undo()
    assert scene.exists(lost)
    assert scene.journal(lost)[-1] == Outcome.UNCONFIRMED

    control.release_lease(scene.store, scene.lease)
    scene.lease = control.take_lease(scene.store, "test", scene.cluster.clock, 1)
    assert scene.undo()[lost].outcome == Outcome.LOST
    assert not scene.exists(lost)


# -------------------------------------------------------------------------------------------------- faults and crashes


@pytest.mark.parametrize("accept_unknown", [True, False])
@pytest.mark.parametrize("arrived", [True, False])
def test_after_an_unknown_outcome_of_a_creation_what_is_there_decides(
    scene: Scene, arrived: bool, accept_unknown: bool
) -> None:
    path = scene.cluster.path(scene.ids[0])

    def lose(operation: Operation) -> None:
        if operation == Operation("create", (path,)):
            raise OutcomeUnknown("connection lost")

    if arrived:
        scene.store.after = lose
    else:
        scene.store.before = lose
    done = scene.undo(accept_unknown=accept_unknown)

    first = Outcome.RESTORED if arrived else Outcome.NOT_RECREATED  # accept_unknown speaks of bookies alone
    assert outcomes(done) == [first, Outcome.RESTORED, Outcome.RESTORED]
    if not arrived:
        why = done[scene.ids[0]].why
        assert why
        assert why.code is Code.SERVER_FAILED
        assert "accept_unknown" not in why.text
    scene.store.before = scene.store.after = lambda operation: None
    assert outcomes(scene.undo()) == [
        Outcome.PRESENT if arrived else Outcome.RESTORED,
        Outcome.PRESENT,
        Outcome.PRESENT,
    ]


def _watched(scene: Scene, steps: Steps) -> None:
    """Steps are each request to the store, before and after it, each check, each write of the journal."""
    scene.hook = steps
    watch(scene.store, steps)


def _reborn(scene: Scene) -> None:
    """A new process: a new session, the lease taken again."""
    scene.hook = lambda name: None
    scene.store.close()
    scene.store = scene.cluster.open_store()
    scene.cluster.clock.advance(30)
    scene.lease = control.take_lease(scene.store, "test", scene.cluster.clock, 1)


def _killed_at(at: int, collected_meanwhile: bool) -> tuple[Scene, bool]:
    """Kill an undo at one step and run it again; the scene, and whether there was such a step."""
    scene = Scene()
    created = _counting_creations(scene)
    if collected_meanwhile:
        during_the_wait(scene, lambda: scene.collect(scene.ids[1], A, B, C))
    _watched(scene, Steps(at))
    killed = False
    try:
        scene.undo()
    except Crash:
        killed = True
    _reborn(scene)
    if collected_meanwhile and scene.exists(scene.ids[1]):
        scene.collect(scene.ids[1], A, B, C)
    done = scene.undo()
    assert all(created.count(scene.cluster.path(i)) <= 1 for i in scene.ids), "created twice"
    assert set(outcomes(done)) <= {Outcome.RESTORED, Outcome.PRESENT, Outcome.LOST}
    return scene, killed


def _counting_creations(scene: Scene) -> list[str]:
    """Every creation that reached the server, whatever session it came from."""
    server = scene.cluster.zookeeper
    create, created = server.create, list[str]()

    def counted(path: str, data: bytes, owner: int) -> Any:
        created.append(path)
        return create(path, data, owner)

    server.create = counted  # type: ignore[method-assign]
    return created


@pytest.mark.parametrize("collected_meanwhile", [False, True])
def test_a_crash_at_any_step_is_made_good_by_a_rerun(collected_meanwhile: bool) -> None:
    for at in count():
        scene, killed = _killed_at(at, collected_meanwhile)
        for ledger_id in scene.ids:
            gone = collected_meanwhile and ledger_id == scene.ids[1] and Outcome.LOST in scene.journal(ledger_id)
            assert scene.exists(ledger_id) != gone, (at, scene.journal(ledger_id))
            final = [outcome for outcome in scene.journal(ledger_id) if outcome != Outcome.PRESENT][-1]
            assert final == (Outcome.LOST if gone else Outcome.RESTORED), (at, scene.journal(ledger_id))
        if not killed:
            break
    assert at > 30


def test_what_could_not_be_journalled_is_not_done(scene: Scene) -> None:
    scene.cluster.journal.failure = StoreError("disk full")
    with pytest.raises(StoreError):
        scene.undo()
    assert not any(map(scene.exists, scene.ids))


def test_bookies_that_cannot_be_found_stop_it_before_anything_is_done(scene: Scene) -> None:
    def broken(name: str) -> None:
        if name == "check":
            raise Unavailable("no connection to the metadata store")

    scene.hook = broken
    with pytest.raises(Unavailable):
        scene.undo()
    assert not any(map(scene.exists, scene.ids))
