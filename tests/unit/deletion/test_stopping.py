"""A deletion run that is stopped, loses its lease or meets errors: what it did is journalled."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_lifecycle.errors import (
    LeaseLost,
    LifecycleError,
    OutcomeUnknown,
    Overloaded,
    Paused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.scan import coverage
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import Steps, Tell, killed_at_every_step
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.batch_scene import TOPIC, outcomes, watched
from tests.kit.scenes.batch_scene import BatchScene as Scene
from tests.kit.simulated.pipeline import Policy, scan


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_paused_before_a_batch_takes_nothing_and_within_one_deletes_nothing(scene: Scene) -> None:
    scene.send_all()
    control.pause(scene.cluster.open_store(), "looking")
    with pytest.raises(Paused):
        scene.delete()
    control.resume(scene.cluster.open_store())

    def later(ports: Ports) -> Ports:
        def pause(operation: Operation) -> None:
            if operation.name == "sync":
                ports.store.before = lambda operation: None
                control.pause(scene.cluster.open_store(), "now")

        ports.store.before = pause
        return ports

    with pytest.raises(Paused):
        scene.delete(later)
    assert (scene.waiting, scene.cluster.journal.nodes) == (5, [])
    assert scene.cluster.ledger_ids() >= scene.orphans
    control.resume(scene.cluster.open_store())
    assert outcomes(scene.delete()) == [Outcome.DELETED] * 5


def test_a_slow_metadata_store_slows_and_then_stops(scene: Scene) -> None:
    scene.send_all()

    def slow(latency: float) -> Callable[[Ports], Ports]:
        def wrap(ports: Ports) -> Ports:
            ports.store.latency = latency
            return ports

        return wrap

    with pytest.raises(Overloaded):
        scene.delete(slow(501))
    assert scene.waiting == 5
    scene.cluster.clock.slept.clear()
    assert outcomes(scene.delete(slow(200))) == [Outcome.DELETED] * 5
    assert 0.2 in scene.cluster.clock.slept


def test_a_lost_lease_stops_and_what_was_done_is_journalled(scene: Scene) -> None:
    scene.send_all()

    def take_over(ports: Ports) -> Ports:
        def second(operation: Operation) -> None:
            if operation.name == "delete_many" and len(scene.cluster.journal.nodes) > 4:
                ports.store.before = lambda operation: None
                scene.cluster.put(control.LEASE, b"another")

        ports.store.before = second
        return ports

    with pytest.raises(LeaseLost):
        scene.delete(take_over)
    ends = [(row.ledger_id, row.outcome) for row in scene.cluster.journal.rows]
    assert ends == [(i, Outcome.DELETED) for i in sorted(scene.orphans)[:4]] + [(max(scene.orphans), Outcome.WAITING)]
    assert scene.orphans & scene.cluster.ledger_ids() == {max(scene.orphans)}
    assert scene.waiting == 1
    assert outcomes(scene.delete()) == [Outcome.DELETED]


@pytest.mark.parametrize("arrived", [False, True])
def test_an_unknown_outcome_is_resolved_by_reading(scene: Scene, arrived: bool) -> None:
    scene.publish(scene.intent(scene.data))

    def cut(ports: Ports) -> Ports:
        def fail(operation: Operation) -> None:
            if operation.name == "delete_many":
                raise OutcomeUnknown("the connection was lost")

        if arrived:
            ports.store.after = fail
        else:
            ports.store.before = fail
        return ports

    if arrived:
        assert outcomes(scene.delete(cut)) == [Outcome.DELETED]
    else:
        with pytest.raises(OutcomeUnknown):
            scene.delete(cut)
    assert [row.outcome for row in scene.cluster.journal.rows] == [Outcome.DELETED if arrived else Outcome.WAITING]
    assert scene.cluster.exists(scene.data) is not arrived
    assert scene.waiting == (0 if arrived else 1)


def test_when_not_even_reading_works_the_message_stays_and_the_journal_says_so(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data))

    def cut(ports: Ports) -> Ports:
        def fail(operation: Operation) -> None:
            if operation.name == "delete_many":
                ports.store.before = ports.store.after = lost

        def lost(operation: Operation) -> None:
            raise OutcomeUnknown("the connection was lost")

        ports.store.after = fail
        return ports

    with pytest.raises(LifecycleError):
        scene.delete(cut, run_id="interrupted")
    (row,) = scene.cluster.journal.rows
    assert (row.outcome, scene.waiting) == (Outcome.WAITING, 1)
    assert row.code == Code.OUTCOME_UNKNOWN
    assert outcomes(scene.delete()) == [Outcome.GONE]
    said = [(row.outcome, row.run_id) for row in scene.cluster.journal.rows]
    assert said == [(Outcome.WAITING, "interrupted"), (Outcome.DELETED, "interrupted"), (Outcome.GONE, "delete-run")]


def delete_with_a_full_journal(scene: Scene) -> None:
    """Run ``failed`` deletes a batch, and cannot say so."""
    journal = scene.cluster.journal

    def full(ports: Ports) -> Ports:
        def fail(operation: Operation) -> None:
            if operation.name == "delete_many":
                journal.failure = StoreError("the disk is full")

        ports.store.after = fail
        return ports

    with pytest.raises(StoreError):
        scene.delete(full, run_id="failed")


def test_a_journal_that_fails_after_the_deletion_is_made_up_for_by_the_next_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "SMALL_SHRINKAGE", 0)
    scene.send_all()
    journal = scene.cluster.journal

    delete_with_a_full_journal(scene)
    assert journal.rows == []
    journal.failure = None
    lost = scene.orphans - scene.cluster.ledger_ids()
    assert scene.cursor in lost
    assert scan(scene.cluster, Policy(max_shrinkage=0), [scene.now]).epoch.covered
    assert sorted(outcomes(scene.delete())) == [Outcome.DELETED] * (5 - len(lost)) + [Outcome.GONE] * len(lost)
    rows = {row.ledger_id: row for row in journal.rows if row.run_id == "failed"}
    assert {row.outcome for row in rows.values()} == {Outcome.DELETED}
    assert {(node.ledger_id, node.at) for node in journal.nodes if node.run_id == "failed"} == {
        (row.ledger_id, row.at) for row in rows.values()
    }
    row = rows[scene.cursor]
    assert (set(rows), row.component, row.topic) == (lost, "Managed-Cursor", str(TOPIC))
    assert all(row.checksum and "written_by" in row.detail for row in rows.values())
    assert scan(scene.cluster, Policy(max_shrinkage=0), [scene.now]).epoch.covered
    scene.delete()
    assert len([row for row in journal.rows if row.outcome == Outcome.DELETED]) == 5


def test_a_deletion_that_nobody_spoke_of_is_made_up_for_although_its_ledger_is_there_again(scene: Scene) -> None:
    scene.send_all()
    journal = scene.cluster.journal

    delete_with_a_full_journal(scene)
    journal.failure = None
    again, *_ = archived = [node for node in journal.nodes if not scene.cluster.exists(node.ledger_id)]
    scene.cluster.put(again.path, again.data)
    scene.delete()
    said = {row.ledger_id for row in journal.rows if (row.run_id, row.outcome) == ("failed", Outcome.DELETED)}
    assert said == {node.ledger_id for node in archived}


def test_archive_before_delete_before_confirmation_before_journal_before_acknowledgement(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data))
    steps = Steps()
    scene.delete(watched(steps))
    calls = [step.removeprefix("before ") for step in steps.seen if step.startswith("before ")]
    effects = ["journal.archive", "store.delete_many", "store.sync", "store.read", "journal.record"]
    start = calls.index("journal.archive")
    assert calls[start : start + 6] == [*effects, "queue.acknowledge"]
    assert "store.read" in calls[calls.index("store.sync") : start]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_killed_at_any_call_is_finished_by_the_next(when: str) -> None:
    def begin() -> tuple[Scene, set[int]]:
        scene = Scene()
        scene.send_all()
        return scene, scene.cluster.ledger_ids()

    def run(begun: tuple[Scene, set[int]], tell: Tell) -> None:
        begun[0].delete(watched(lambda step: tell(step) if step.startswith(when) else None), run_id="killed")

    for (scene, before), _ in killed_at_every_step(begin, run):
        gone = before - scene.cluster.ledger_ids()
        journal = scene.cluster.journal
        assert gone <= {node.ledger_id for node in journal.nodes}
        assert set(outcomes(scene.delete())) <= {Outcome.DELETED, Outcome.GONE}
        assert before - scene.cluster.ledger_ids() == scene.orphans
        assert scene.waiting == 0
        deleted = [(row.ledger_id, row.run_id) for row in journal.rows if row.outcome == Outcome.DELETED]
        assert sorted(deleted) == sorted((i, "killed" if i in gone else "delete-run") for i in scene.orphans)
        assert {row.ledger_id for row in journal.rows} == scene.orphans


def test_a_journal_that_cannot_be_written_stops_before_the_deletion(scene: Scene) -> None:
    scene.send_all()
    scene.cluster.journal.failure = Unavailable("the disk is full")
    with pytest.raises(Unavailable):
        scene.delete()
    assert (scene.waiting, scene.cluster.ledger_ids() >= scene.orphans) == (5, True)


def test_an_acknowledgement_that_was_lost_is_made_up_for(scene: Scene) -> None:
    scene.send_all()

    def lose(ports: Ports) -> Ports:
        ports.queue.acknowledge = lambda messages: None  # type: ignore[method-assign]
        return ports

    assert outcomes(scene.delete(lose)) == [Outcome.DELETED] * 5
    assert scene.waiting == 5
    assert outcomes(scene.delete()) == [Outcome.GONE] * 5
    assert scene.waiting == 0
