"""What brokers have read, and could not read, decides about other ledgers of their location."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import StrEnum
from typing import Any
from uuid import uuid4

import pytest

from pulsar_lifecycle.copies import attempts, unread_locations
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.location import OffloadedCopy
from pulsar_lifecycle.errors import (
    AccessDenied,
    Conflict,
    Failed,
    Overloaded,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.journal.read_checks import locations_that_failed, locations_that_passed
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.tiered import commit as tiered_commit
from pulsar_lifecycle.tiered import revert
from pulsar_lifecycle.tiered.commit import ReadCheckFailed
from pulsar_lifecycle.tiered.read_check import ASKED, Unheld, why_unread
from pulsar_lifecycle.topics.write import EditOutcome
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import Crash, raising
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.tiered.commit_cases import HERE, SITE, Off, begun, interrupted_after_the_commit, reverted, words
from tests.kit.scenes.tiered.offload_scene import LOCATION, Session
from tests.kit.scenes.tiered.offload_scene import OffloadScene as Scene
from tests.kit.scenes.topic_scene import OTHER, TOPIC, outcomes
from tests.kit.simulated.cluster import data_tags


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("loaded", [False, True])
def test_what_was_committed_together_and_cannot_be_read_is_reverted_together(loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    interrupted_after_the_commit(scene)
    scene.broker.reads = False
    unloads: list[Topic] = []

    def unload(topic: Topic) -> None:
        unloads.append(topic)
        scene.broker.unload(topic)

    scene.cluster.admin.on_unload = unload
    assert outcomes(scene.finish_later()) == dict.fromkeys(scene.wanted, Outcome.REVERTED)
    assert (scene.complete, len(unloads)) == ([], 2)  # after the read, and after they are reverted
    assert scene.open_attempts == scene.wanted


def test_what_was_committed_together_is_read_once(scene: Scene) -> None:
    interrupted_after_the_commit(scene)
    assert outcomes(scene.finish_later()) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
    assert (scene.complete, scene.open_attempts) == (scene.wanted, [])
    assert [row.outcome for row in scene.cluster.journal.rows].count("read-passed") == 1


def test_a_read_of_bookkeeper_stands_for_no_topic_that_reads_the_bucket_first(scene: Scene) -> None:
    scene.tiered_first = (str(OTHER),)
    ids = [scene.cluster.ledger(data_tags(OTHER)) for _ in range(2)]
    scene.cluster.topic(OTHER, ids)
    scene.cluster.wait(1)
    session, proven = begun(scene, scene.ids[:1])
    read = scene.cluster.admin.on_read
    assert outcomes(session.commit(proven)) == {scene.ids[0]: Outcome.OFFLOADED}
    assert not session.read_check.passed_before

    def unread(topic: Topic, position: Position) -> None:
        if topic == OTHER:
            raise Failed("500 UnsupportedOperationException: no offloader")
        read(topic, position)

    scene.cluster.admin.on_read = unread
    wanted = session.asked(ids[:1])
    begun_there, _ = tiered_commit.begin_topic(
        session.run, session.ports, session.guard, OTHER, wanted, uuid4, session.read_check
    )
    proven = [session.copy(one) for one in begun_there]
    with pytest.raises(ReadCheckFailed):
        tiered_commit.commit_topic(session.run, session.ports, session.guard, OTHER, proven, session.read_check)


def test_the_location_of_a_read_check_is_in_the_journal(scene: Scene) -> None:
    scene.proceed()
    (row,) = words(scene)
    now, at = scene.cluster.clock.now_ms(), row["at"]
    assert locations_that_passed([row], "", now) == {HERE: at}
    assert locations_that_passed([row], "another store", now) == locations_that_passed([row], "", at - 1) == {}
    no = {**row, "outcome": "read-failed"}
    assert locations_that_passed([row, {**row, "at": now + 9}], "", now) == {HERE: at}  # by a clock that was wrong
    assert (
        locations_that_passed([no, row], "", now)
        == locations_that_passed([row, {**no, "at": now + 1}], "", now + 1)
        == {}
    )
    assert locations_that_passed([no, {**row, "at": now + 1}], "", now + 1) == {HERE: now + 1}
    for detail in ("", "[]", "{}", "1", '{"store": "", "metadata": 1}'):
        assert locations_that_passed([{**row, "detail": detail}], "", now) == {}
        assert locations_that_failed([{**no, "detail": detail}], "", now) == set()


def test_a_failure_at_a_location_stands_until_a_read_there_works(scene: Scene) -> None:
    """Of any namespace; in the same run only through the same broker: another one says nothing of it."""
    scene.proceed()
    (row,) = words(scene)
    now = scene.cluster.clock.now_ms()

    def word(outcome: str, at: int, run_id: str, broker: str, namespace: str = "acme/orders") -> dict[str, Any]:
        detail = json.loads(row["detail"]) | {"broker": broker, "namespace": namespace}
        return {**row, "outcome": outcome, "at": at, "run_id": run_id, "detail": json.dumps(detail)}

    no = word("read-failed", 5, "1", "a")
    for later, stands in [
        (word("read-passed", 6, "1", "b"), True),
        (word("read-passed", 6, "1", ""), True),
        (word("read-passed", 6, "1", "a"), False),
        (word("read-passed", 6, "2", "b"), False),
        (word("read-passed", 6, "2", "b", "acme/else"), False),
        (word("read-passed", 5, "2", "b"), True),
        (word("read-passed", 4, "2", "b"), True),
        (word("read-unanswered", 6, "2", "a"), True),
    ]:
        assert locations_that_failed([later, no], "", now) == ({SITE} if stands else set()), later
    assert locations_that_failed([no, word("read-failed", 5, "1", "b"), word("read-passed", 6, "1", "a")], "", now) == {
        SITE
    }
    assert locations_that_failed([word("read-failed", 5, "1", ""), word("read-passed", 6, "1", "")], "", now) == {SITE}


def unread(scene: Scene, session: Session) -> EditOutcome | None:
    """Why no broker has shown that it can read where the first ledger is."""
    copy = OffloadedCopy.of_item(scene.items[scene.ids[0]], 1)
    assert copy
    return why_unread(session.run, session.ports, session.guard, TOPIC, copy, session.read_check)


def unread_code(scene: Scene, session: Session) -> StrEnum | None:
    said = unread(scene, session)
    return said and said.why.code


def location_unread(scene: Scene, session: Session, named: str) -> bool:
    """Whether it is the location that is unread, for a reason that names a thing to look at."""
    said = unread(scene, session)
    return said is not None and said.why.code is Code.LOCATION_UNREAD and named in said.reason


def offloaded_without_a_read_check(scene: Scene) -> None:
    scene.waived = True
    scene.proceed(scene.ids[:1])
    scene.waived = False
    scene.cluster.wait(1)


def test_before_the_first_copy_deletion_a_broker_reads_what_it_is_to_live_on(scene: Scene) -> None:
    offloaded_without_a_read_check(scene)
    session = scene.session_again()
    assert unread(scene, session) is None
    assert (scene.left_pending, scene.broker.memory) == ([], None)
    scene.broker.reads = False
    assert unread(scene, session) is None  # once is enough, in this run
    scene.seen = {HERE: scene.cluster.clock.now_ms()}
    scene.cluster.wait(1)
    assert unread_code(scene, scene.session_again()) is Code.READ_CHECK_FAILED  # and in no other


def test_a_broker_that_may_have_bookkeepers_copy_open_shows_nothing(scene: Scene) -> None:
    """A topic that clients have loaded is left alone, or unloaded before it is read."""
    offloaded_without_a_read_check(scene)
    scene.broker.load()
    scene.cluster.wait(1)
    reads: list[Topic] = []
    scene.cluster.admin.on_read = lambda topic, position: reads.append(topic)
    assert location_unread(scene, scene.session_again(), "offload.loaded_topics")
    assert (reads, scene.left_pending, scene.broker.memory is None) == ([], [], False)
    scene.loaded_topics = True
    assert unread(scene, scene.session_again()) is None
    assert (reads[:1], scene.left_pending, scene.broker.memory) == ([TOPIC], [], None)


def test_a_read_of_what_a_topic_reads_from_bookkeeper_shows_nothing(scene: Scene) -> None:
    offloaded_without_a_read_check(scene)
    scene.tiered_first = ()
    assert unread_code(scene, scene.session_again()) is Code.BOOKKEEPER_FIRST


def test_what_no_broker_can_read_is_not_deleted(scene: Scene) -> None:
    offloaded_without_a_read_check(scene)
    scene.broker.reads = False
    session = scene.session_again()
    assert unread_code(scene, session) is Code.READ_CHECK_FAILED
    assert locations_that_failed(words(scene), "", scene.cluster.clock.now_ms()) == {SITE}
    scene.broker.reads = True
    assert location_unread(scene, session, "in this run, of persistent://acme/orders")
    scene.cluster.wait(1)
    scene.cluster.admin.on_read = raising(Unavailable("timed out"))
    session = scene.session_again()
    assert unread_code(scene, session) is Code.READ_CHECK_UNANSWERED
    scene.cluster.admin.on_read = scene.broker.read
    assert unread_code(scene, session) is Code.READ_CHECK_UNANSWERED  # each topic is asked once
    (asked,) = session.read_check.not_asked.values()
    said = asked.pop(TOPIC)
    asked |= {Topic.parse(f"persistent://acme/orders/{n}"): said for n in range(ASKED)}
    assert location_unread(scene, session, "of persistent://acme/orders/0: its")
    scene.limit, scene.loaded_topics = 0, True
    assert location_unread(scene, scene.session_again(), "max_unloads")


def test_a_read_that_fails_ends_what_was_shown_of_its_location(scene: Scene) -> None:
    interrupted_after_the_commit(scene)
    scene.broker.reads = False
    scene.seen = {HERE: scene.cluster.clock.now_ms()}
    scene.cluster.wait(1)
    session = scene.session_again()
    _, found = session.finish_attempts(())
    assert set(outcomes(found).values()) == {Outcome.REVERTED}
    assert (session.read_check.passed_before, list(session.read_check.blocked)) == ({}, [SITE])
    assert [row["outcome"] for row in words(scene)] == ["read-failed"]


def test_what_a_broker_reads_of_another_offload_shows_nothing(scene: Scene) -> None:
    """It is reverted, or made anew, while its broker is asked: what was read then is BookKeeper's copy."""
    offloaded_without_a_read_check(scene)
    session = scene.session_again()
    read = scene.cluster.admin.on_read

    def reverted_meanwhile(topic: Topic, position: Position) -> None:
        scene.write(scene.ids[0], None)
        read(topic, position)

    copy = OffloadedCopy.of_item(scene.items[scene.ids[0]], 1)
    assert copy
    scene.cluster.admin.on_read = reverted_meanwhile
    said = why_unread(session.run, session.ports, session.guard, TOPIC, copy, session.read_check)
    assert said
    assert said.why.code is Code.LOCATION_UNREAD
    assert (session.read_check.reads(SITE, ""), words(scene)) == (False, [])


@pytest.mark.parametrize("error", ["", "broker-2 does not answer"])
def test_a_topic_that_may_be_loaded_shows_nothing_once_its_run_was_interrupted(scene: Scene, error: str) -> None:
    interrupted_after_the_commit(scene)
    scene.cluster.wait(0 if not error else 1)
    scene.error = error
    session = scene.session_again()
    _, found = session.finish_attempts(())
    assert set(outcomes(found).values()) == {Outcome.OFFLOADED}
    assert (session.read_check.reads(SITE, ""), words(scene)) == (False, [])


def test_what_is_read_and_shows_nothing_leaves_the_read_check_due(scene: Scene) -> None:
    """After a run that was interrupted its broker may have BookKeeper's copy open."""
    interrupted_after_the_commit(scene)
    session = scene.session_again()
    session.finish_attempts(())
    attempt = Attempt(scene.ids[3], str(TOPIC), uuid4(), "aws-s3", LOCATION, 5 << 20, "", 0)
    assert session.read_check.due(TOPIC, attempt)


def test_every_read_counts_from_when_it_was(scene: Scene) -> None:
    scene.seen = {HERE: scene.cluster.clock.now_ms()}
    scene.proceed()
    assert [row["outcome"] for row in words(scene)] == ["read-passed"]


def test_a_read_check_is_reverted_though_the_journal_is_full() -> None:
    scene = Scene(reads=False)
    session, proven = begun(scene)
    read = scene.cluster.admin.on_read

    def full(topic: Topic, position: Position) -> None:
        scene.tick = lambda name: raising(StoreError("no space left"))() if name == "before record" else None
        read(topic, position)

    scene.cluster.admin.on_read = full
    with pytest.raises(ReadCheckFailed, match="the journal does not say so: no space left"):
        session.commit(proven)
    assert (scene.complete, list(session.read_check.blocked)) == ([], [SITE])


def refuse_to_hold(scene: Scene) -> None:
    """Nobody may write the z-node of the location."""

    def deny(operation: Operation) -> None:
        if operation.name in ("create", "write") and operation.paths[0] == unread_locations.path_of(SITE):
            raise AccessDenied("no")

    scene.store.before = deny


def test_a_read_check_is_reverted_though_its_location_cannot_be_held() -> None:
    """The run stops all the same, and the journal tells those that begin later."""
    scene = Scene(reads=False)
    session, proven = begun(scene)
    refuse_to_hold(scene)
    with pytest.raises(ReadCheckFailed, match="deletion runs that are under way could not be told"):
        session.commit(proven)
    assert (scene.complete, [row["outcome"] for row in words(scene)]) == ([], ["read-failed"])


def test_what_was_interrupted_is_reverted_though_its_location_cannot_be_held(scene: Scene) -> None:
    interrupted_after_the_commit(scene)
    scene.broker.reads = False
    scene.cluster.wait(1)
    session = scene.session_again()
    refuse_to_hold(scene)
    _, found = session.finish_attempts(())
    assert set(outcomes(found).values()) == {Outcome.REVERTED}
    assert session.read_check.unheld


def test_a_read_check_holds_its_location_until_one_is_read() -> None:
    scene = Scene(reads=False)
    with pytest.raises(ReadCheckFailed):
        scene.proceed()
    assert unread_locations.held(scene.store, [SITE]) == {SITE}
    scene.broker.reads = True
    scene.cluster.wait(1)
    scene.proceed()
    assert unread_locations.held(scene.store, [SITE]) == set()


def test_what_a_broker_could_not_read_is_in_the_journal_before_it_is_reverted() -> None:
    """Else a run that is killed there leaves what an earlier one has seen as the last word."""
    scene = Scene(loaded=True)
    scene.proceed(scene.ids[:1])
    scene.cluster.wait(1)
    scene.broker.reads = False
    session = scene.session_again()
    found, _ = session.begin(scene.ids[1:2])
    proven = [session.copy(one) for one in found]

    def die() -> None:
        if any(row.outcome == "read-failed" for row in scene.cluster.journal.rows):
            raise Crash

    scene.on_write(die, times=99)
    with pytest.raises(Crash):
        session.commit(proven)
    assert scene.complete == scene.ids[:2]
    assert unread_locations.held(scene.cluster.open_store(), [SITE]) == {SITE}
    now = scene.cluster.clock.now_ms()
    assert (locations_that_passed(words(scene), "", now), locations_that_failed(words(scene), "", now)) == ({}, {SITE})


def test_a_read_that_the_journal_does_not_hear_of_counts_as_one_that_was_asked(scene: Scene) -> None:
    """Each loads a topic."""
    offloaded_without_a_read_check(scene)
    session = scene.session_again()
    scene.tick = lambda name: raising(StoreError("no space left"))() if name == "before record" else None
    assert location_unread(scene, session, "no space left")
    (asked,) = session.read_check.not_asked.values()
    assert list(asked) == [TOPIC]


def test_an_error_before_its_broker_is_asked_says_nothing_of_it(scene: Scene) -> None:
    offloaded_without_a_read_check(scene)
    session = scene.session_again()
    scene.store.before = lambda operation: raising(StoreError("no quorum"))() if operation.name == "create" else None
    assert location_unread(scene, session, "no quorum")
    assert not any(session.read_check.not_asked.values())


@pytest.mark.parametrize("ahead", [0, 6 * 60_000])
def test_a_revert_waits_for_a_broker_that_deletes_whatever_our_clock_says(scene: Scene, ahead: int) -> None:
    scene.waived = scene.loaded_topics = True
    scene.proceed()
    first = scene.ids[0]
    offload = scene.items[first].offload
    assert offload
    scene.cluster.wait(1)
    session = scene.session_again()
    scene.write(first, replace(offload, bookkeeper_deleted=True))
    ports = replace(session.ports, clock=Off(scene, ahead))
    (said,) = revert.revert_topic(session.run, ports, session.guard, TOPIC, [first])
    assert said.outcome == Outcome.REFUSED
    assert said.why.code is Code.BOOKKEEPER_DELETED


def test_a_revert_is_in_the_journal_before_it_is_made(scene: Scene) -> None:
    scene.waived = True
    scene.proceed()
    scene.cluster.wait(1)
    told: list[str] = []

    def full(name: str) -> None:
        if name == "before record":
            told.append(name)
            if len(told) == 2:
                raise StoreError("no space left")

    scene.tick = full
    found = reverted(scene)
    assert set(outcomes(found).values()) == {Outcome.REVERTED}
    assert {one.why.code for one in found} == {Code.FROM_BOOKKEEPER}
    assert all("no space left" in one.reason for one in found)
    assert [row.outcome for row in scene.cluster.journal.rows][-3:] == ["reverting"] * 3


def test_an_aborted_attempt_is_never_finished(scene: Scene) -> None:
    """An object store may carry out a deletion after the run that asked for it is gone."""
    _, (one,) = begun(scene, scene.ids[:1])
    aborting = attempts.abort(scene.store, one.attempt)
    assert attempts.abort(scene.store, one.attempt) == attempts.abort(scene.store, aborting) == aborting
    with pytest.raises(Conflict):
        attempts.touch(scene.store, one.attempt)
    scene.waived = True
    assert outcomes(scene.proceed(scene.ids[:1])) == {scene.ids[0]: Outcome.OFFLOADED}
    offload = scene.items[scene.ids[0]].offload
    assert offload
    assert offload.uuid != one.attempt.uuid
    with pytest.raises(Conflict):
        attempts.abort(scene.store, one.attempt)


def test_what_could_not_be_told_of_a_fresh_offload_is_said_though_zookeeper_stays_slow() -> None:
    scene = Scene(reads=False)
    asked: list[object] = []
    real = scene.cluster.admin.on_read

    def read(topic: Topic, position: Position) -> Any:
        asked.append(position)
        return real(topic, position)

    def slow(name: str) -> None:
        if asked and name == "before read":
            raise Overloaded("ZooKeeper answers in 700 ms")

    scene.cluster.admin.on_read = read
    scene.tick = slow
    session, proven = begun(scene)
    with pytest.raises(Unheld):
        session.commit(proven)
