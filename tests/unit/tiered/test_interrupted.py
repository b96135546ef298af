"""Offload attempts that a run was interrupted at: read again, taken up again, aborted or left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.errors import (
    AccessDenied,
    LeaseLost,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.offload_object import (
    data_key,
)
from pulsar_lifecycle.tiered.interrupted import Ownership, finish_attempts, remove_objects
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import Crash
from tests.kit.scenes.tiered.commit_cases import begun
from tests.kit.scenes.tiered.offload_scene import BUCKET, context
from tests.kit.scenes.tiered.offload_scene import OffloadScene as Scene
from tests.kit.scenes.topic_scene import outcomes


@pytest.fixture
def scene() -> Scene:
    return Scene()


def interrupt(scene: Scene, at: str, ledger_ids: Sequence[int], times: int = 1) -> None:
    """A run that is gone after its read check was committed."""
    left = [times]

    def tick(name: str) -> None:
        if name == at and scene.complete:
            left[0] -= 1
            if not left[0]:
                raise Crash

    scene.tick = tick
    with pytest.raises(Crash):
        scene.proceed(ledger_ids)
    scene.tick = lambda name: None
    scene.cluster.wait(1)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("at", ["before record", "before read_entry"])
def test_a_read_check_that_was_never_read_is_read_by_the_next_run(at: str, loaded: bool, reads: bool) -> None:
    scene = Scene(loaded=loaded, reads=reads)
    interrupt(scene, at, scene.ids[:1])
    assert scene.complete == scene.open_attempts == scene.ids[:1]
    (one,) = scene.proceed(())
    assert one.outcome == (Outcome.OFFLOADED if reads else Outcome.REVERTED)
    assert scene.complete == (scene.ids[:1] if reads else [])
    assert scene.open_attempts == ([] if reads else scene.ids[:1])
    assert scene.left_pending == []
    assert loaded or scene.broker.memory is None  # what was loaded to be read is unloaded again
    scene.cluster.wait(1)
    scene.proceed(())
    assert scene.open_attempts == []
    assert len(scene.keys) == (2 if reads else 0)


@pytest.mark.parametrize("reads", [False, True])
def test_a_read_check_waits_for_the_attempt_that_its_broker_has_begun_meanwhile(reads: bool) -> None:
    """The read ends with an unload, and that would end what the broker is at."""
    scene = Scene(loaded=True, reads=reads)
    interrupt(scene, "before record", scene.ids[:1])
    scene.broker.load()
    theirs = context()
    ledgers = tuple(replace(i, offload=theirs) if i.ledger_id == scene.ids[1] else i for i in scene.info.ledgers)
    scene.cluster.put(scene.path, managed_ledger.encode(replace(scene.info, ledgers=ledgers)))
    before = scene.version
    (one,) = scene.finish_later()
    assert (one.outcome, one.why.code) == (Outcome.FOREIGN_ATTEMPT, Code.READ_CHECK_DUE)
    assert str(theirs.uuid) in one.reason
    assert scene.rows[-1] == (scene.ids[0], Outcome.FOREIGN_ATTEMPT)
    assert (scene.version, scene.broker.memory is None, scene.open_attempts) == (before, False, scene.ids[:1])


def test_a_read_check_whose_topic_has_a_pending_unload_is_not_read() -> None:
    scene = Scene(loaded=True, reads=False)
    interrupt(scene, "before unload", scene.ids[:1])
    assert scene.left_pending == [True]
    _, (one,) = scene.session_again().finish_attempts()
    assert (one.outcome, one.why.code) == (Outcome.FAILED, Code.READ_CHECK_UNANSWERED)
    assert scene.open_attempts == scene.ids[:1]


def test_a_read_check_that_could_not_be_reverted_waits() -> None:
    scene = Scene(loaded=True, reads=False)
    interrupt(scene, "before read_entry", scene.ids[:1])
    scene.limit = 0
    _, (one,) = scene.session_again().finish_attempts()
    assert (one.outcome, one.why.code) == (Outcome.FAILED, Code.READ_CHECK_DUE)
    assert scene.open_attempts == scene.complete == scene.ids[:1]


def test_where_the_read_check_is_waived_a_committed_attempt_is_done() -> None:
    scene = Scene(loaded=True, reads=False)
    interrupt(scene, "before read_entry", scene.ids[:1])
    scene.waived = True
    _, (one,) = scene.session_again().finish_attempts()
    assert one.outcome == Outcome.OFFLOADED
    assert scene.open_attempts == []


def test_one_attempt_that_cannot_be_finished_hinders_no_other(scene: Scene) -> None:
    begun(scene)
    scene.cluster.put(attempts.path_of(scene.ids[0]), b"{}")
    _, found = scene.session_again().finish_attempts()
    assert [(one.ledger_id, one.outcome) for one in found] == [
        (-1, Outcome.FAILED),
        (scene.ids[1], Outcome.ATTEMPT_ABORTED),
        (scene.ids[2], Outcome.ATTEMPT_ABORTED),
    ]
    assert found[0].why.code is Code.ATTEMPT_UNREAD
    assert attempts.path_of(scene.ids[0]) in found[0].reason


@pytest.mark.parametrize("fault", ["before", "after"])
@pytest.mark.parametrize("method", ["list_uploads", "delete_many"])
def test_objects_that_cannot_be_removed_keep_their_attempt_open(scene: Scene, method: str, fault: str) -> None:
    begun(scene, scene.ids[:1])

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        if name == method:
            raise Unavailable("503")

    setattr(scene.objects, fault, fail)
    _, (one,) = scene.session_again().finish_attempts()
    if (method, fault) == ("list_uploads", "after"):
        assert one.outcome == Outcome.ATTEMPT_ABORTED
        return
    assert (one.outcome, one.why.code) == (Outcome.FAILED, Code.SERVER_FAILED)
    assert scene.open_attempts == scene.ids[:1]
    setattr(scene.objects, fault, lambda name, bucket, keys: None)
    _, (one,) = scene.session_again().finish_attempts()
    assert one.outcome == Outcome.ATTEMPT_ABORTED
    assert (scene.keys, scene.open_attempts) == (set(), [])


def test_an_attempt_in_a_bucket_that_does_not_exist_ends(scene: Scene) -> None:
    begun(scene, scene.ids[:1])
    del scene.buckets.objects[BUCKET]
    _, (one,) = scene.session_again().finish_attempts()
    assert (one.outcome, one.why.code) == (Outcome.ATTEMPT_ABORTED, Code.ATTEMPT_NOT_PLANNED)
    assert BUCKET in one.reason
    assert scene.open_attempts == []


def test_an_attempt_in_a_bucket_that_is_named_no_more_fails_no_run_and_says_the_way_out(scene: Scene) -> None:
    _, (one,) = begun(scene, scene.ids[:1])
    keys = scene.keys
    scene.objects.allowed = ["another"]
    _, (found,) = scene.session_again().finish_attempts()
    assert found.outcome == Outcome.LEFT
    assert found.why.code is Code.NO_BUCKET
    assert one.attempt.path in found.reason
    assert (scene.keys, scene.open_attempts) == (keys, scene.ids[:1])


def test_uploads_under_way_are_dropped_and_nothing_of_another_attempt(scene: Scene) -> None:
    _, (one, other, _) = begun(scene)
    for attempt in (one.attempt, other.attempt):
        scene.objects.begin_upload(BUCKET, data_key(attempt.uuid, attempt.ledger_id), {})
    remove_objects(scene.objects, one.attempt, lambda: None)
    remove_objects(scene.objects, one.attempt, lambda: None)
    (left,) = scene.buckets.uploads.values()
    assert left.listed.key == data_key(other.attempt.uuid, other.attempt.ledger_id)
    assert len(scene.keys) == 4


def while_uploads_are_listed(scene: Scene, act: Callable[[], object]) -> None:
    """``act`` comes while the next look for uploads waits for its answer."""

    def slow(name: str, bucket: str, keys: Sequence[str]) -> None:
        if name == "list_uploads":
            scene.objects.before = lambda name, bucket, keys: None
            act()

    scene.objects.before = slow


def test_a_run_that_lost_its_lease_while_it_aborts_deletes_nothing(scene: Scene) -> None:
    """Nor does it touch what the other run offloads anew, under a UUID of its own."""
    scene.waived = True
    begun(scene, scene.ids[:1])
    late = scene.session_again()
    session, scene.store = scene.store, scene.cluster.open_store()

    def taken_over() -> None:
        session.close()
        scene.cluster.wait(1)
        assert outcomes(scene.session().proceed(scene.ids[:1])) == {scene.ids[0]: Outcome.OFFLOADED}

    while_uploads_are_listed(scene, taken_over)
    with pytest.raises(LeaseLost):
        late.finish_attempts()
    assert scene.complete == scene.ids[:1]
    assert scene.pair(scene.items[scene.ids[0]]) == scene.keys
    assert [outcome for _, outcome in scene.rows].count(Outcome.ATTEMPT_ABORTED) == 1


def commit_by_hand(scene: Scene, attempt: Attempt) -> None:
    scene.write(attempt.ledger_id, context(attempt.uuid, complete=True))


@pytest.mark.parametrize(
    "act",
    [
        commit_by_hand,
        lambda scene, attempt: scene.cluster.remove(attempt.path),
        lambda scene, attempt: scene.cluster.put(attempt.path, b"{}"),
    ],
)
def test_what_changes_while_uploads_are_dropped_is_seen_before_objects_go(
    scene: Scene, act: Callable[[Scene, Attempt], object]
) -> None:
    _, (one,) = begun(scene, scene.ids[:1])
    keys = scene.keys
    while_uploads_are_listed(scene, lambda: act(scene, one.attempt))
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, found.why.code) == (Outcome.FAILED, Code.CHANGED_MEANWHILE)
    assert scene.keys == keys


def test_a_topic_that_cannot_be_read_keeps_its_attempts_open(scene: Scene) -> None:
    begun(scene)
    scene.cluster.put(scene.path, b"\xff\xff")
    scene.law = lambda: None  # type: ignore[method-assign]
    _, found = scene.session_again().finish_attempts(scene.wanted)
    assert {one.outcome for one in found} == {Outcome.FAILED}
    assert len(scene.keys) == 6


def test_attempts_of_wanted_ledgers_are_taken_up_again(scene: Scene) -> None:
    _, proven = begun(scene)
    resumed, found = scene.session_again().finish_attempts(scene.ids[:2])
    assert resumed == [one.attempt for one in proven[:2]]
    assert outcomes(found) == {scene.ids[2]: Outcome.ATTEMPT_ABORTED}


def test_an_attempt_of_another_plan_stays_open_for_the_grace_period(scene: Scene) -> None:
    scene.grace = 2 * 3_600_000
    begun(scene)
    keys = scene.keys
    _, found = scene.session_again().finish_attempts()
    assert {one.outcome for one in found} == {Outcome.LEFT}
    assert (scene.keys, scene.open_attempts) == (keys, scene.wanted)
    scene.cluster.wait(3)
    _, found = scene.session_again().finish_attempts()
    assert {one.outcome for one in found} == {Outcome.ATTEMPT_ABORTED}
    assert (scene.keys, scene.open_attempts) == (set(), [])


@pytest.mark.parametrize(
    "changes", [{"block_size": 6 << 20}, {"driver": "S3"}, {"metadata": (("bucket", BUCKET), ("region", "other"))}]
)
def test_a_plan_that_wants_it_elsewhere_begins_anew(scene: Scene, changes: dict[str, Any]) -> None:
    session, _ = begun(scene)
    session = scene.session_again()
    asked = {one.ledger_id: one for one in session.asked(scene.wanted, **changes)}
    ownership = Ownership("simulated", scene.named)
    resumed, found = finish_attempts(
        session.run, session.ports, session.guard, asked, session.read_check, ownership, lambda _: None
    )
    assert (resumed, {one.outcome for one in found}) == ([], {Outcome.ATTEMPT_ABORTED})
    assert (scene.keys, scene.open_attempts) == (set(), [])
    begun_anew, _ = session.begin(scene.wanted, **changes)
    assert len(begun_anew) == 3


def test_attempts_that_cannot_be_listed_stop_the_run(scene: Scene) -> None:
    begun(scene)
    scene.cluster.zookeeper.unreadable.add(attempts.ATTEMPTS)
    with pytest.raises(AccessDenied):
        scene.session_again().finish_attempts()


def test_a_journal_that_fails_leaves_everything_to_the_next_run(scene: Scene) -> None:
    scene.waived = True
    session, proven = begun(scene)
    scene.cluster.journal.failure = StoreError("disk full")
    with pytest.raises(StoreError):
        session.commit(proven)
    assert scene.complete == scene.open_attempts == scene.wanted
    scene.cluster.journal.failure = None
    scene.new_session()
    assert set(outcomes(scene.proceed(())).values()) == {Outcome.OFFLOADED}
    assert scene.open_attempts == []
    assert scene.rows[-3:] == [(i, Outcome.OFFLOADED) for i in scene.wanted]
