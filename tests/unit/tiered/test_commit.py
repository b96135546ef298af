"""Offloading a topic's ledgers over the fakes: the effect, brokers that act meanwhile, writes without answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import pytest

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.errors import Conflict, LeaseLost, OutcomeUnknown, Paused, Refused, Unavailable
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.tiered.commit import ReadCheckFailed
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.copies import Verified
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.topic_load import LoadReason
from tests.kit.crash import raising
from tests.kit.fakes.metadata_store import Operation
from tests.kit.refused import refused_by
from tests.kit.scenes.tiered.commit_cases import Off, begun, fill
from tests.kit.scenes.tiered.offload_scene import BUCKET, LOCATION, context
from tests.kit.scenes.tiered.offload_scene import OffloadScene as Scene
from tests.kit.scenes.topic_scene import TOPIC, outcomes
from tests.kit.simulated.cluster import ENTRY_BYTES

UNKNOWN = b"\xf2\x01\x03abc"  # field 30 of a later version


@pytest.fixture
def scene() -> Scene:
    return Scene()


# ---------------------------------------------------------------------------------------------------------- the effect


@pytest.mark.parametrize("loaded", [False, True])
def test_a_whole_run_leaves_complete_contexts_and_nothing_else(loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    scene.waived = not loaded
    before = scene.version
    assert outcomes(scene.proceed()) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
    assert scene.complete == scene.wanted
    for i in scene.wanted:
        offload = scene.items[i].offload
        assert offload
        assert (offload.driver_name, offload.driver_metadata) == ("aws-s3", dict(LOCATION))
        assert not offload.bookkeeper_deleted
        assert offload.timestamp
    assert scene.keys == set().union(*(scene.pair(scene.items[i]) for i in scene.wanted))
    assert (scene.open_attempts, scene.left_pending) == ([], [])
    if loaded:
        assert scene.version > before + 1  # the read check's write, the others' write, the broker's loads between them
    else:
        assert scene.version == before + 1  # all in one compare-and-set
        assert scene.cluster.admin.touched == []


def test_the_journal_has_each_step_with_its_proof(scene: Scene) -> None:
    scene.waived = True
    scene.proceed()
    assert scene.rows == [(i, Outcome.PREPARED) for i in scene.wanted] + [(i, Outcome.OFFLOADED) for i in scene.wanted]
    row = scene.cluster.journal.rows[-1]
    assert (row.action, row.phase, row.topic, row.bytes, row.checksum, row.run_id, row.cluster) == (
        Action.OFFLOAD,
        Action.OFFLOAD,
        str(TOPIC),
        ENTRY_BYTES,
        "sum",
        "run",
        "simulated",
    )
    last = scene.items[scene.wanted[-1]].offload
    assert last
    proof = asdict(Verified(0, "", 0, "", 1, ENTRY_BYTES, "sum"))
    assert json.loads(row.detail) == {**proof, "uuid": str(last.uuid)}


def test_nothing_else_in_the_z_node_changes(scene: Scene) -> None:
    scene.waived = True
    shuffled = (scene.ids[3], scene.ids[1], scene.ids[0], scene.ids[2])
    info = replace(scene.info, ledgers=tuple(scene.items[i] for i in shuffled), properties={"p": "v"})
    scene.cluster.put(scene.path, managed_ledger.encode(info) + UNKNOWN)
    scene.cluster.wait(1)
    scene.proceed(scene.ids[1:2])
    after = scene.cluster.zookeeper.data(scene.path)
    assert after.endswith(UNKNOWN)
    assert tuple(item.ledger_id for item in scene.info.ledgers) == shuffled
    undone = tuple(replace(item, offload=None) for item in scene.info.ledgers)
    assert replace(scene.info, ledgers=undone) == info


@pytest.mark.parametrize("by", [-2 * 3_600_000, 3_600_000])
def test_a_host_whose_clock_is_wrong_shortens_no_deletion_lag(scene: Scene, by: int) -> None:
    scene.waived = True
    session, proven = begun(scene, scene.ids[:1])
    scene.cluster.wait(1)  # copying took a while since the lease was taken
    session.ports = replace(session.ports, clock=Off(scene, by))
    assert outcomes(session.commit(proven)) == {scene.ids[0]: Outcome.OFFLOADED}
    offload = scene.items[scene.ids[0]].offload
    assert offload
    assert offload.timestamp
    assert offload.timestamp >= scene.cluster.clock.now_ms()


def test_an_attempt_that_was_ended_meanwhile_is_not_committed(scene: Scene) -> None:
    session, proven = begun(scene, scene.ids[:1])
    attempts.end(scene.store, proven[0].attempt)
    with pytest.raises(Conflict, match="is not open any more"):
        session.commit(proven)
    assert scene.complete == []


def test_the_read_check_is_one_ledger_and_the_others_follow_once_it_was_read() -> None:
    scene = Scene(loaded=True)
    steps: list[object] = []
    read, unload = scene.broker.read, scene.broker.unload

    def reading(topic: Topic, position: Position) -> None:
        steps.append((position.ledger_id, position.entry_id, list(scene.complete)))
        read(topic, position)

    def unloading(topic: Topic) -> None:
        steps.append(f"unload with {len(scene.complete)}")
        unload(topic)

    scene.cluster.admin.on_read, scene.cluster.admin.on_unload = reading, unloading
    scene.proceed()
    first = scene.wanted[0]
    assert steps == ["unload with 1", (first, 0, [first]), "unload with 1", "unload with 3"]


def test_the_others_follow_where_reading_the_read_check_has_loaded_its_topic(scene: Scene) -> None:
    unloads: list[list[int]] = []
    unload = scene.broker.unload

    def unloading(topic: Topic) -> None:
        unloads.append(scene.complete)
        unload(topic)

    scene.cluster.admin.on_unload = unloading
    assert outcomes(scene.proceed()) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
    assert scene.complete == scene.wanted
    assert unloads == [scene.wanted[:1], scene.wanted]  # after the read, and after all of them
    assert (scene.open_attempts, scene.left_pending, scene.broker.memory) == ([], [], None)


def test_nothing_follows_in_a_topic_that_others_have_loaded_before_the_read_check(scene: Scene) -> None:
    session, proven = begun(scene)
    scene.on_write(scene.broker.load)
    assert {one.outcome for one in session.commit(proven)} == {Outcome.LEFT_TO_BROKER}
    assert scene.cluster.admin.touched == []


def test_the_first_and_the_last_entry_are_read(scene: Scene) -> None:
    asked: list[Position] = []
    session = scene.session()
    ((attempt,), _) = session.begin(scene.ids[:1])
    scene.cluster.admin.on_read = lambda topic, position: asked.append(position)
    proven = session.copy(attempt)
    fill(scene, scene.ids[0], [b"x"] * 9)
    session.commit([replace(proven, entries=9)])
    assert asked == [Position(scene.ids[0], 0), Position(scene.ids[0], 8)]


def test_a_second_run_changes_nothing(scene: Scene) -> None:
    scene.waived = True
    scene.proceed()
    scene.cluster.wait(1)
    before, keys = scene.cluster.zookeeper.stat(scene.path), scene.keys
    again = scene.proceed()
    assert {one.outcome for one in again} == {Outcome.REFUSED}
    assert {one.why.code for one in again} == {Code.OFFLOADED_ALREADY}
    assert (scene.cluster.zookeeper.stat(scene.path), scene.keys, scene.open_attempts) == (before, keys, [])


def test_a_broker_that_offloaded_one_itself(scene: Scene) -> None:
    scene.waived = True
    session, proven = begun(scene)
    theirs = context(complete=True, timestamp=1)
    assert theirs.uuid
    for key in (data_key(theirs.uuid, scene.ids[1]), index_key(theirs.uuid, scene.ids[1])):
        scene.buckets.put(BUCKET, key, b"")
    scene.write(scene.ids[1], theirs)
    scene.cluster.wait(1)
    found = session.commit(proven)
    assert outcomes(found) == {
        scene.ids[0]: Outcome.LEFT_TO_BROKER,
        scene.ids[1]: Outcome.REFUSED,
        scene.ids[2]: Outcome.LEFT_TO_BROKER,
    }
    found = scene.proceed()
    assert outcomes(found) == {
        scene.ids[0]: Outcome.OFFLOADED,
        scene.ids[1]: Outcome.REFUSED,
        scene.ids[2]: Outcome.OFFLOADED,
    }
    assert scene.items[scene.ids[1]].offload == theirs
    assert scene.open_attempts == []
    assert scene.keys == set().union(*(scene.pair(scene.items[i]) for i in scene.wanted))  # ours are removed


def test_a_broker_that_is_about_to_offload_one_itself() -> None:
    scene = Scene(loaded=True)
    scene.waived = True
    session, proven = begun(scene)
    theirs = context()
    scene.write(scene.ids[1], theirs)
    found = session.commit(proven)
    assert outcomes(found) == dict.fromkeys(scene.wanted, Outcome.FOREIGN_ATTEMPT)
    assert scene.items[scene.ids[1]].offload == theirs
    assert (scene.complete, scene.open_attempts) == ([], scene.wanted)
    assert scene.broker.memory is not None  # its broker goes on with it
    assert scene.version == scene.broker.version + 1


def test_a_broker_that_trimmed_one(scene: Scene) -> None:
    scene.waived = True
    scene.loaded_topics = True
    session, proven = begun(scene)
    scene.cluster.topic(TOPIC, scene.ids[1:])
    scene.cluster.remove(scene.cluster.path(scene.ids[0]))
    found = session.commit(proven)
    assert outcomes(found) == {
        scene.ids[0]: Outcome.REFUSED,
        scene.ids[1]: Outcome.OFFLOADED,
        scene.ids[2]: Outcome.OFFLOADED,
    }
    assert scene.open_attempts == scene.ids[:1]
    assert scene.proceed(())[0].why.code is Code.DELISTED
    assert scene.open_attempts == []
    assert len(scene.keys) == 4


def test_a_topic_that_was_deleted(scene: Scene) -> None:
    session, proven = begun(scene)
    scene.cluster.remove(scene.path)
    with refused_by(Code.TOPIC_GONE):
        session.commit(proven)
    assert {one.why.code for one in scene.proceed(())} == {Code.TOPIC_GONE}
    assert (scene.open_attempts, scene.keys, scene.left_pending) == ([], set(), [])


@pytest.mark.parametrize("unanswered", [False, True])
def test_a_topic_without_a_z_node_that_a_broker_may_have(scene: Scene, unanswered: bool) -> None:
    _, proven = begun(scene)
    scene.cluster.remove(scene.path)
    keys = scene.keys
    if unanswered:
        scene.error = "timed out"
    else:
        scene.cluster.load(TOPIC)
    _, found = scene.session_again().finish_attempts()
    assert {one.outcome for one in found} == {Outcome.FAILED}
    assert found[0].why.code is (LoadReason.BROKERS_UNANSWERED if unanswered else LoadReason.LISTED)
    assert (len(scene.open_attempts), scene.keys) == (len(proven), keys)


def test_a_topic_that_was_deleted_and_made_anew(scene: Scene) -> None:
    begun(scene)
    scene.cluster.topic(TOPIC)
    scene.cluster.wait(1)
    assert {one.outcome for one in scene.proceed(())} == {Outcome.ATTEMPT_ABORTED}
    assert scene.keys == set()


def test_a_topic_that_was_loaded_between_look_and_write(scene: Scene) -> None:
    session, proven = begun(scene)
    scene.on_write(scene.broker.load)
    found = session.commit(proven)
    assert {one.outcome for one in found} == {Outcome.LEFT_TO_BROKER}
    assert scene.complete == []
    assert scene.broker.version == scene.version


def test_a_rollover_between_look_and_write() -> None:
    scene = Scene(loaded=True)
    scene.waived = True
    session, proven = begun(scene)
    scene.on_write(scene.broker.load)
    assert set(outcomes(session.commit(proven)).values()) == {Outcome.OFFLOADED}
    assert scene.complete == scene.wanted
    assert (scene.broker.memory, scene.left_pending) == (None, [])


def test_a_z_node_that_never_comes_to_rest() -> None:
    scene = Scene(loaded=True)
    session, proven = begun(scene)
    scene.on_write(scene.broker.load, times=99)
    with refused_by(Code.CHANGED_MEANWHILE):
        session.commit(proven)
    assert scene.complete == []
    assert scene.broker.version == scene.version
    assert scene.left_pending == []  # nothing was written
    scene.proceed(())
    assert scene.left_pending == []


def test_a_ledger_that_became_the_last(scene: Scene) -> None:
    scene.loaded_topics = True
    session, proven = begun(scene, scene.ids[2:3])
    scene.cluster.topic(TOPIC, scene.ids[:3])
    assert session.commit(proven)[0].why.code is Code.LAST_LEDGER


# -------------------------------------------------------------------------------------------- lost and unknown writes


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_write_without_answer_is_judged_by_what_is_there(when: str, loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    scene.waived = True
    session, proven = begun(scene)
    scene.on_write(raising(OutcomeUnknown("connection lost")), when)
    assert set(outcomes(session.commit(proven)).values()) == {Outcome.OFFLOADED}
    assert scene.complete == scene.wanted
    assert scene.open_attempts == []
    assert scene.left_pending == ([] if loaded else [False])
    assert scene.broker.memory is None


def test_an_unload_that_fails_stays_pending_and_no_read_is_asked_for() -> None:
    scene = Scene(loaded=True)
    session, proven = begun(scene)
    scene.cluster.admin.on_unload = raising(Unavailable("503"))
    with pytest.raises(ReadCheckFailed) as raised:
        session.commit(proven)
    why = raised.value.outcomes[-1].why
    assert why.code is Code.READ_CHECK_UNANSWERED
    assert why.text.startswith("whether its broker can read it is not known: an unload of its topic is pending")
    assert scene.complete == scene.ids[:1]
    assert scene.left_pending == [True]
    assert scene.open_attempts == scene.wanted
    scene.broker.reads = False
    scene.cluster.admin.on_unload = scene.broker.unload
    assert outcomes(scene.finish_later())[scene.ids[0]] == Outcome.REVERTED
    assert scene.complete == []


def test_without_the_read_check_an_unload_that_fails_is_said(scene: Scene) -> None:
    scene = Scene(loaded=True)
    scene.waived = True
    session, proven = begun(scene)
    scene.cluster.admin.on_unload = raising(Unavailable("503"))
    found = session.commit(proven)
    assert {one.outcome for one in found} == {Outcome.OFFLOADED}
    assert {one.why.code for one in found} == {Code.COMMITTED}
    assert scene.left_pending == [True]


def test_no_write_of_a_loaded_topic_without_an_unload_left() -> None:
    scene = Scene(loaded=True)
    scene.waived, scene.limit = True, 0
    session, proven = begun(scene)
    found = session.commit(proven)
    assert {(one.outcome, one.why.code) for one in found} == {(Outcome.LEFT_TO_BROKER, Code.NOT_UNLOADED)}
    assert scene.complete == []


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize("loaded", [False, True])
def test_no_read_check_that_could_not_be_reverted(loaded: bool, limit: int) -> None:
    scene = Scene(loaded=loaded, reads=False)
    scene.limit = limit
    session, proven = begun(scene)
    found = session.commit(proven)
    assert {(one.outcome, one.why.code) for one in found} == {(Outcome.LEFT_TO_BROKER, Code.READ_CHECK_DUE)}
    assert scene.complete == []
    assert scene.open_attempts == scene.wanted


@pytest.mark.parametrize("error", [Paused, LeaseLost])
@pytest.mark.parametrize("step", ["begin", "commit", "before the write", "finish"])
def test_a_run_that_may_not_act_does_not(scene: Scene, error: type[Refused], step: str) -> None:
    session, proven = begun(scene)

    def stop() -> None:
        if error is Paused:
            control.pause(scene.cluster.open_store(), "test")
        else:
            scene.cluster.put(control.OFFLOAD_LEASE, b"{}")

    def last_look(operation: Operation) -> None:
        if operation == Operation("read", (scene.path,)):
            stop()

    if step == "before the write":
        scene.store.after = last_look
    else:
        stop()
    act: Mapping[str, Callable[[], object]] = {
        "begin": lambda: session.begin(scene.ids[:1]),
        "commit": lambda: session.commit(proven),
        "before the write": lambda: session.commit(proven),
        "finish": session.finish_attempts,
    }
    keys = scene.keys
    with pytest.raises(error):
        act[step]()
    assert (scene.complete, scene.left_pending) == ([], [])
    assert scene.open_attempts == scene.wanted
    assert scene.keys == keys
