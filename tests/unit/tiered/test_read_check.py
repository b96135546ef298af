"""The first ledger that a broker must read: which entries are asked for, and what cannot be read
is reverted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from uuid import uuid4

import pytest

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle.copies.location import OffloadedCopy
from pulsar_lifecycle.errors import (
    AccessDenied,
    Failed,
    LifecycleError,
    Refused,
    Unavailable,
)
from pulsar_lifecycle.formats.offload_object import (
    data_key,
    index_key,
)
from pulsar_lifecycle.journal.read_checks import locations_that_failed, locations_that_passed
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.tiered.asked_entries import EntryNotReadable, InconclusiveRead, entries_to_ask
from pulsar_lifecycle.tiered.commit import ReadCheckFailed
from pulsar_lifecycle.tiered.read_check import ReadCheck
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.builders import CHUNK, entry
from tests.kit.crash import Tell, before_calls, killed_at_every_step, raising
from tests.kit.scenes.tiered.commit_cases import (
    HERE,
    SITE,
    begun,
    fill,
    interrupted_after_the_commit,
    listed_as_deleted,
    unreadable_bookkeeper,
    words,
)
from tests.kit.scenes.tiered.offload_scene import BUCKET, LOCATION, context
from tests.kit.scenes.tiered.offload_scene import OffloadScene as Scene
from tests.kit.scenes.topic_scene import OTHER, TOPIC, outcomes
from tests.kit.simulated.cluster import data_tags


@pytest.fixture
def scene() -> Scene:
    return Scene()


PLAIN = entry(b"x")
LARGE = entry(b"x", properties=[pb.KeyValue(key="trace", value="t" * 4_000)])
ENCRYPTED = entry(
    b"x", num_chunks_from_msg=3, chunk_id=1, compression=pb.LZ4, encryption_keys=[pb.EncryptionKeys(key="k", value=b"")]
)
UNCOMPRESSED = entry(b"x", num_chunks_from_msg=3, chunk_id=1, uuid="u")


@pytest.mark.parametrize(
    ("entries", "asked"),
    [
        ([PLAIN] * 3, [0, 2]),
        ([b"no message"] * 2, [0, 1]),
        ([UNCOMPRESSED, ENCRYPTED], [0, 1]),
        ([CHUNK, LARGE, PLAIN, CHUNK], [2]),
        ([CHUNK, PLAIN, PLAIN, LARGE], [1, 2]),
        ([PLAIN, *[CHUNK] * 30], [0]),
        ([*[CHUNK] * 30, PLAIN], []),
        ([LARGE], []),
    ],
)
def test_its_broker_is_asked_for_entries_that_rest_can_show(
    scene: Scene, entries: Sequence[bytes], asked: Sequence[int]
) -> None:
    """It writes a message's metadata into headers, and decompresses a chunk as if it were the whole message."""
    fill(scene, scene.ids[0], entries)
    session = scene.session()
    copy = OffloadedCopy(scene.ids[0], len(entries), uuid4(), "aws-s3", LOCATION)
    if asked:
        assert entries_to_ask(session.run, session.ports, TOPIC, copy) == asked
        return
    with pytest.raises(EntryNotReadable, match="none of its first 20 entries can be asked for by REST"):
        entries_to_ask(session.run, session.ports, TOPIC, copy)


def test_which_entries_can_be_asked_for_may_not_be_known(scene: Scene) -> None:
    session = scene.session()
    copy = OffloadedCopy(scene.ids[0], 5, uuid4(), "aws-s3", LOCATION)
    scene.cluster.reader.failures[scene.ids[0]] = Unavailable("no bookie answers")
    with pytest.raises(InconclusiveRead, match="no bookie answers"):
        entries_to_ask(session.run, session.ports, TOPIC, copy)
    gone = replace(copy, ledger_id=9_999)
    assert entries_to_ask(session.run, session.ports, TOPIC, gone) == [0, 4]


def test_a_ledger_that_rest_cannot_show_leaves_the_role_of_the_read_check_to_the_next(scene: Scene) -> None:
    session, proven = begun(scene)
    fill(scene, scene.ids[0], [CHUNK])
    (found,) = session.commit(proven[:1])
    assert found.outcome == Outcome.FAILED
    assert found.why.code is Code.READ_CHECK_DUE
    assert (scene.complete, scene.open_attempts) == ([], scene.wanted)
    assert outcomes(session.commit(proven)) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
    assert (scene.complete, scene.open_attempts) == (scene.wanted, [])
    assert words(scene)[0]["ledger_id"] == scene.ids[1]


def test_bookies_that_are_away_decide_nothing(scene: Scene) -> None:
    interrupted_after_the_commit(scene)
    scene.seen = {HERE: scene.cluster.clock.now_ms()}
    scene.cluster.wait(1)
    for ledger_id in scene.wanted:
        scene.cluster.reader.failures[ledger_id] = Unavailable("no bookie answers")
    _, found = scene.session_again().finish_attempts(())
    assert set(outcomes(found).values()) == {Outcome.FAILED}
    assert scene.open_attempts == scene.wanted


@pytest.mark.parametrize("shown", [True, False])
def test_a_ledger_that_rest_cannot_show_is_checked_by_another_of_its_location(scene: Scene, shown: bool) -> None:
    """The run was killed between the commit and the end of the attempts."""
    interrupted_after_the_commit(scene)
    for ledger_id in scene.wanted[:1] if shown else scene.wanted:
        fill(scene, ledger_id, [CHUNK])
    scene.cluster.wait(1)
    _, found = scene.session_again().finish_attempts(())
    assert set(outcomes(found).values()) == {Outcome.OFFLOADED if shown else Outcome.FAILED}
    scene.seen = {HERE: scene.cluster.clock.now_ms()}
    _, found = scene.session_again().finish_attempts(())
    assert set(outcomes(found).values()) == (set() if shown else {Outcome.OFFLOADED})
    assert scene.open_attempts == []


@pytest.mark.parametrize("error", [Unavailable("503"), AccessDenied("403: no superuser")])
def test_a_broker_that_does_not_answer_has_not_said_that_it_cannot_read(scene: Scene, error: LifecycleError) -> None:
    """It ends what was seen before; what is listed as deleted may go all the same."""
    session, proven = begun(scene, scene.ids[:1])
    scene.cluster.admin.on_read = raising(error)
    with pytest.raises(ReadCheckFailed):
        session.commit(proven)
    now = scene.cluster.clock.now_ms()
    (row,) = words(scene)
    assert row["outcome"] == "read-unanswered"
    assert locations_that_failed([row], "", now) == set()
    assert session.read_check.blocked == {}
    seen = {**row, "outcome": "read-passed", "at": row["at"] - 1, "run_id": "another"}
    assert locations_that_passed([seen, row], "", now) == {}
    no = {**row, "outcome": "read-failed", "at": row["at"] - 2}
    assert locations_that_failed([no, row], "", now) == {SITE}
    assert locations_that_failed([no, seen], "", now) == set()
    assert locations_that_failed([no, {**seen, "at": now + 1}], "", now) == {SITE}  # by a clock that was ahead
    assert locations_that_failed([seen, row], "", now, ("read-failed", "read-unanswered")) == {SITE}


def test_each_namespace_and_bucket_has_its_read_check(scene: Scene) -> None:
    read_check = ReadCheck(False)
    ((attempt,), _) = scene.session().begin(scene.ids[:1])
    assert read_check.due(TOPIC, attempt)
    read_check.passed(TOPIC, OffloadedCopy.of_attempt(attempt, 1), proves=False)
    assert not read_check.due(OTHER, attempt)
    assert read_check.due(Topic.parse("persistent://acme/else/x"), attempt)
    assert read_check.due(TOPIC, replace(attempt, metadata=(("bucket", "b"),)))


# ------------------------------------------------------------------------------------------------- the read check


def test_what_brokers_cannot_read_is_reverted_where_unloads_fail_too() -> None:
    """Naming a copy that nobody can read is worse than being is pending."""
    scene = Scene(reads=False)
    other = Topic.parse("persistent://theirs/orders/t")
    scene.cluster.topic(other, [scene.cluster.ledger(data_tags(other))])
    scene.cluster.load(other)
    control.note_unload(scene.cluster.open_store(), control.PendingUnload(other, True, 0, control.OFFLOAD_LEASE))

    def fails(topic: Topic) -> None:
        raise AccessDenied("403")

    scene.cluster.admin.on_unload = fails
    with pytest.raises(ReadCheckFailed) as raised:
        scene.proceed()
    assert (raised.value.outcomes[-1].outcome, raised.value.outcomes[-1].why.code) == (
        Outcome.REVERTED,
        Code.READ_CHECK_FAILED,
    )
    assert scene.complete == []
    assert all(item.offload is None for item in scene.info.ledgers)
    assert True in scene.left_pending


@pytest.mark.parametrize("loaded", [False, True])
def test_what_brokers_cannot_read_is_reverted(loaded: bool) -> None:
    scene = Scene(loaded=loaded, reads=False)
    with pytest.raises(ReadCheckFailed) as raised:
        scene.proceed()
    why = str(raised.value)
    assert f"ledger {scene.ids[0]} was offloaded, and its broker cannot read it from bucket {BUCKET}: 500" in why
    assert "give the brokers an offloader for driver aws-s3 and this bucket" in why
    assert "its topic reads it from BookKeeper again" in why
    assert "the run stopped there, and nothing else was committed after it" in why
    assert scene.complete == []
    assert all(item.offload is None for item in scene.info.ledgers)
    assert scene.open_attempts == scene.wanted
    assert (scene.broker.memory, scene.left_pending) == (None, [])
    assert scene.rows[-3:] == [(scene.ids[0], one) for one in (Outcome.OFFLOADED, "read-failed", Outcome.REVERTED)]
    scene.cluster.wait(1)
    assert {one.outcome for one in scene.proceed(())} == {Outcome.ATTEMPT_ABORTED}
    assert (scene.keys, scene.open_attempts) == (set(), [])


def test_once_brokers_can_read_the_next_run_goes_on_under_the_same_uuids() -> None:
    scene = Scene(loaded=True, reads=False)
    with pytest.raises(ReadCheckFailed):
        scene.proceed()
    keys = scene.keys
    scene.broker.reads = True
    scene.cluster.wait(1)
    assert outcomes(scene.proceed()) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
    assert scene.keys == keys


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda scene: scene.cluster.remove(scene.cluster.path(scene.ids[0])), Code.NOT_IN_BOOKKEEPER),
        (unreadable_bookkeeper, Code.NOT_IN_BOOKKEEPER),
        (listed_as_deleted, Code.BOOKKEEPER_DELETED),
    ],
)
def test_what_bookkeeper_may_not_have_any_more_is_not_reverted(act: Callable[[Scene], None], code: Code) -> None:
    scene = Scene(loaded=True)
    session, proven = begun(scene, scene.ids[:1])

    def read(topic: Topic, position: Position) -> None:
        act(scene)
        raise Failed("500")

    scene.cluster.admin.on_read = read
    with pytest.raises(ReadCheckFailed) as raised:
        session.commit(proven)
    assert raised.value.outcomes[-1].why.code is code
    assert scene.complete == scene.open_attempts == scene.ids[:1]
    assert scene.rows[-2:] == [(scene.ids[0], "read-failed"), (scene.ids[0], Outcome.FAILED)]


def test_one_that_a_broker_offloaded_again_is_left_to_it() -> None:
    scene = Scene(loaded=True, reads=False)
    session, proven = begun(scene, scene.ids[:1])
    theirs = context()

    def read(topic: Topic, position: Position) -> None:
        scene.write(scene.ids[0], theirs)
        raise Failed("500")

    scene.cluster.admin.on_read = read
    with pytest.raises(ReadCheckFailed):
        session.commit(proven)
    assert scene.items[scene.ids[0]].offload == theirs


def test_a_read_check_whose_topic_never_comes_to_rest_stops_the_run_and_is_read_again_by_the_next() -> None:
    scene = Scene(loaded=True, reads=False)
    session, proven = begun(scene)
    scene.on_write(lambda: scene.on_write(scene.broker.load, times=99), "after")
    with pytest.raises(ReadCheckFailed, match="whether it was reverted is not known"):
        session.commit(proven)
    assert scene.complete == scene.ids[:1]
    assert outcomes(scene.finish_later())[scene.ids[0]] == Outcome.REVERTED


def test_a_read_check_that_is_refused_leaves_the_role_to_the_next_ledger() -> None:
    scene = Scene(loaded=True, reads=False)
    session, proven = begun(scene)
    theirs = context(complete=True, timestamp=1)
    assert theirs.uuid
    for key in (data_key(theirs.uuid, scene.ids[0]), index_key(theirs.uuid, scene.ids[0])):
        scene.buckets.put(BUCKET, key, b"")
    scene.write(scene.ids[0], theirs)
    with pytest.raises(ReadCheckFailed) as raised:
        session.commit(proven)
    assert raised.value.outcomes[-1].ledger_id == scene.ids[1]
    assert scene.complete == scene.ids[:1]


# ---------------------------------------------------------------------------------------------- a crash at every call


def crashes(make: Callable[[], Scene]) -> Iterator[Scene]:
    """The scene after a run that was killed before each of its calls in turn, so after the one before it."""

    def run(scene: Scene, tell: Tell) -> None:
        scene.tick = before_calls(tell)
        with contextlib.suppress(Refused):
            scene.proceed()

    for scene, _ in killed_at_every_step(make, run):
        scene.tick = lambda step: None
        scene.law()
        scene.cluster.wait(1)
        yield scene


def test_killed_anywhere_the_next_runs_finish() -> None:
    for loaded, waived in ((False, False), (False, True), (True, False), (True, True)):

        def make(loaded: bool = loaded, waived: bool = waived) -> Scene:
            scene = Scene(loaded=loaded)
            scene.waived = waived
            return scene

        count = 0
        for scene in crashes(make):
            count += 1
            for _ in range(4):
                scene.proceed()
                scene.cluster.wait(1)
            assert scene.complete == scene.wanted
            assert (scene.open_attempts, scene.left_pending) == ([], [])
            assert scene.keys == set().union(*(scene.pair(scene.items[i]) for i in scene.wanted))
            assert scene.buckets.uploads == {}
            assert scene.broker.memory is None or scene.broker.version == scene.version
            offloaded = {i for i, outcome in scene.rows if outcome == Outcome.OFFLOADED}
            assert offloaded == set(scene.wanted)
            before = scene.version
            scene.proceed()
            assert scene.version == before
        assert count > 50


def test_killed_anywhere_what_brokers_cannot_read_is_reverted() -> None:
    for loaded in (False, True):
        count = 0
        for scene in crashes(lambda loaded=loaded: Scene(loaded=loaded, reads=False)):
            count += 1
            for wanted in (scene.wanted, (), ()):
                with contextlib.suppress(Refused):
                    scene.proceed(wanted)
                assert scene.complete == []  # after every run that came to its end
                scene.cluster.wait(1)
            assert (scene.open_attempts, scene.left_pending, scene.keys) == ([], [], set())
            assert scene.broker.memory is None or scene.broker.version == scene.version
        assert count > 50


def test_killed_anywhere_without_a_plan_nothing_is_left() -> None:
    for loaded in (False, True):
        for scene in crashes(lambda loaded=loaded: Scene(loaded=loaded)):
            for _ in range(2):
                scene.proceed(())
                scene.cluster.wait(1)
            assert (scene.open_attempts, scene.left_pending) == ([], [])
            assert scene.keys == set().union(*(scene.pair(scene.items[i]) for i in scene.complete))
