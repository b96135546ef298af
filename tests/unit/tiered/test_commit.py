"""Offloading a topic's ledgers over the fakes: what is refused, brokers that act meanwhile, crashes at every step."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle.copies import attempts, unread_locations
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.location import OffloadedCopy
from pulsar_lifecycle.errors import (
    AccessDenied,
    Conflict,
    Failed,
    LeaseLost,
    LifecycleError,
    OutcomeUnknown,
    Overloaded,
    Paused,
    Refused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import OffloadContext, OffloadSegment
from pulsar_lifecycle.formats.offload_object import (
    CLUSTER_NAME,
    FORMAT_VERSION,
    MANAGED_LEDGER_NAME,
    data_key,
    index_key,
)
from pulsar_lifecycle.journal.read_checks import locations_that_failed, locations_that_passed
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.records.copies import NamespaceLocation, OffloadLocation
from pulsar_lifecycle.records.offload_uuids import OffloadUuids
from pulsar_lifecycle.records.outcomes import Action, Outcome
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.tiered import commit as tiered_commit
from pulsar_lifecycle.tiered import revert
from pulsar_lifecycle.tiered.asked_entries import InconclusiveRead, entries_to_ask
from pulsar_lifecycle.tiered.commit import Proven, ReadCheckFailed
from pulsar_lifecycle.tiered.interrupted import Ownership, finish_attempts, remove_objects
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.tiered.read_check import ASKED, ReadCheck, Unheld, why_unread
from tests.kit.builders import CHUNK, entry
from tests.kit.crash import Crash, Tell, before_calls, killed_at_every_step, raising
from tests.kit.fakes.metadata_store import Operation
from tests.kit.offload_scene import BUCKET, PLACE, SAYS, Session, context
from tests.kit.offload_scene import OffloadScene as Scene
from tests.kit.topic_scene import OTHER, TOPIC, outcomes
from tests.simulation.cluster import ENTRY_BYTES, data_tags
from tests.simulation.offloaded import objects_of

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
        assert (offload.driver_name, offload.driver_metadata) == ("aws-s3", dict(PLACE))
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
    assert json.loads(row.detail) == {"checksum": "sum", "uuid": str(last.uuid)}


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


class Off:
    """A host's clock that is wrong by so many ms."""

    def __init__(self, scene: Scene, by: int) -> None:
        self._clock, self._by = scene.cluster.clock, by

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._by

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)


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


def fill(scene: Scene, ledger_id: int, entries: Sequence[bytes]) -> None:
    """Its bookies hold these."""
    scene.cluster.reader.payloads[ledger_id] = list(entries)


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
    copy = OffloadedCopy(scene.ids[0], len(entries), uuid4(), "aws-s3", PLACE)
    if asked:
        assert entries_to_ask(session.run, session.ports, copy) == asked
        return
    with pytest.raises(InconclusiveRead, match="none of its first 20 entries can be asked for by REST"):
        entries_to_ask(session.run, session.ports, copy)


def test_which_entries_can_be_asked_for_may_not_be_known(scene: Scene) -> None:
    session = scene.session()
    copy = OffloadedCopy(scene.ids[0], 5, uuid4(), "aws-s3", PLACE)
    scene.cluster.reader.failures[scene.ids[0]] = Unavailable("no bookie answers")
    with pytest.raises(InconclusiveRead, match="no bookie answers"):
        entries_to_ask(session.run, session.ports, copy)
    gone = replace(copy, ledger_id=9_999)
    assert entries_to_ask(session.run, session.ports, gone) == [0, 4]


def test_a_ledger_that_rest_cannot_show_leaves_the_role_of_the_read_check_to_the_next(scene: Scene) -> None:
    session, proven = begun(scene)
    fill(scene, scene.ids[0], [CHUNK])
    (found,) = session.commit(proven[:1])
    assert found.outcome == Outcome.FAILED
    assert "its broker must read it first: none of its first 20 entries" in found.reason
    assert (scene.complete, scene.open_attempts) == ([], scene.wanted)
    assert outcomes(session.commit(proven)) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
    assert (scene.complete, scene.open_attempts) == (scene.wanted, [])
    assert words(scene)[0]["ledger_id"] == scene.ids[1]


def test_bookies_that_are_away_settle_nothing(scene: Scene) -> None:
    cut_off_after_the_commit(scene)
    scene.seen = {HERE: scene.cluster.clock.now_ms()}
    scene.cluster.wait(1)
    for ledger_id in scene.wanted:
        scene.cluster.reader.failures[ledger_id] = Unavailable("no bookie answers")
    _, found = scene.session_again().finish_attempts(())
    assert set(outcomes(found).values()) == {Outcome.FAILED}
    assert scene.open_attempts == scene.wanted


@pytest.mark.parametrize("shown", [True, False])
def test_a_ledger_that_rest_cannot_show_is_settled_by_another_of_its_place(scene: Scene, shown: bool) -> None:
    """The run was killed between the commit and the end of the attempts."""
    cut_off_after_the_commit(scene)
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
    """It ends what was seen before; what is released already may go all the same."""
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


def test_a_second_run_changes_nothing(scene: Scene) -> None:
    scene.waived = True
    scene.proceed()
    scene.cluster.wait(1)
    before, keys = scene.cluster.zookeeper.stat(scene.path), scene.keys
    again = scene.proceed()
    assert {one.outcome for one in again} == {Outcome.REFUSED}
    assert all(one.reason.startswith("offloaded already, as ") for one in again)
    assert (scene.cluster.zookeeper.stat(scene.path), scene.keys, scene.open_attempts) == (before, keys, [])


# ------------------------------------------------------------------------------------------------------------- refusals


def refused(scene: Scene, ledger_id: int, **changes: Any) -> str:
    """Why a ledger is refused before anything is uploaded; no attempt is open then."""
    before = scene.cluster.zookeeper.stat(scene.path)
    begun, found = scene.session().begin([ledger_id], **changes)
    assert begun == []
    assert [(one.ledger_id, one.outcome) for one in found] == [(ledger_id, Outcome.REFUSED)]
    assert scene.open_attempts == []
    assert scene.cluster.zookeeper.stat(scene.path) == before
    return found[0].reason


def settled(scene: Scene) -> None:
    scene.cluster.wait(1)


def test_the_last_ledger(scene: Scene) -> None:
    assert refused(scene, scene.ids[3]) == "the last ledger of its topic"


def test_the_last_ledger_by_id_not_by_place(scene: Scene) -> None:
    scene.cluster.topic(TOPIC, [scene.ids[3], scene.ids[0], scene.ids[1]])
    settled(scene)
    assert refused(scene, scene.ids[3]) == "the last ledger of its topic"


def test_a_ledger_that_is_not_listed(scene: Scene) -> None:
    scene.cluster.topic(TOPIC, scene.ids[1:])
    settled(scene)
    assert refused(scene, scene.ids[0]) == "its topic does not list it any more"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (context(UUID(int=7), complete=True), f"offloaded already, as {UUID(int=7)}"),
        (context(UUID(int=7), complete=True, bookkeeper_deleted=True), f"offloaded already, as {UUID(int=7)}"),
        (context(bookkeeper_deleted=True), "it needs repair"),
        (context(segments=(OffloadSegment(uuid4(), True, 1, 2, 3, "aws-s3", {}),)), "streaming offload"),
    ],
)
def test_what_its_context_says(scene: Scene, found: OffloadContext, why: str) -> None:
    for key in (data_key(UUID(int=7), scene.ids[0]), index_key(UUID(int=7), scene.ids[0])):
        scene.buckets.put(BUCKET, key, b"")
    scene.write(scene.ids[0], found)
    settled(scene)
    assert why in refused(scene, scene.ids[0])


@pytest.mark.parametrize("loaded", [False, True])
def test_an_attempt_of_its_brokers(loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    scene.write(scene.ids[0], context())
    settled(scene)
    before = scene.version
    begun, found = scene.session().begin(scene.wanted)
    assert (begun, set(outcomes(found).values())) == ([], {Outcome.FOREIGN_ATTEMPT})
    assert all(f"of ledger {scene.ids[0]} is not complete" in one.reason for one in found)
    assert (scene.version, scene.open_attempts, scene.cluster.admin.touched) == (before, [], [])
    assert [outcome for _, outcome in scene.rows] == [Outcome.FOREIGN_ATTEMPT] * 3


def test_a_loaded_topic_that_the_policy_does_not_name() -> None:
    scene = Scene(loaded=True)
    scene.loaded_topics = False
    begun, (found,) = scene.session().begin(scene.ids[:1])
    assert (begun, found.outcome, "offload.loaded_topics does not name it" in found.reason) == (
        [],
        Outcome.LEFT_TO_BROKER,
        True,
    )
    assert scene.open_attempts == []


def test_brokers_that_were_not_heard(scene: Scene) -> None:
    scene.error = "timed out"
    begun, (found,) = scene.session().begin(scene.ids[:1])
    assert (begun, found.outcome) == ([], Outcome.LEFT_TO_BROKER)
    assert "the brokers did not answer: timed out" in found.reason


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_a_ledger_that_was_never_closed(scene: Scene, state: LedgerState) -> None:
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.ids[0], state=state)
    assert refused(scene, scene.ids[0]) == "never closed"


def test_a_ledger_of_another_topic(scene: Scene) -> None:
    scene.cluster.ledger(data_tags(OTHER), ledger_id=scene.ids[0])
    assert OTHER.managed_ledger in refused(scene, scene.ids[0])


def test_an_empty_ledger(scene: Scene) -> None:
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.ids[0], entries=())
    assert refused(scene, scene.ids[0]) == "empty"


@pytest.mark.parametrize("entries", [[b"x" * 9], [b"x" * 5, b"y" * 5]])
def test_a_ledger_of_which_its_topic_says_something_else(scene: Scene, entries: list[bytes]) -> None:
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.ids[0], entries=entries)
    assert refused(scene, scene.ids[0]).startswith("its topic says 1 entries of 10 bytes, BookKeeper ")


def test_a_ledger_that_bookkeeper_cannot_show(scene: Scene) -> None:
    scene.cluster.zookeeper.unreadable.add(scene.cluster.path(scene.ids[0]))
    assert "no permission" in refused(scene, scene.ids[0])


@pytest.mark.parametrize("source", ["persistent://acme/orders/source", ""])
def test_a_shadow_topic(scene: Scene, source: str) -> None:
    if source:
        scene.cluster.topic(TOPIC, scene.ids, shadow_of=source)
    else:
        scene.cluster.topic(OTHER, scene.ids, shadow_of=str(TOPIC))
    settled(scene)
    why = refused(scene, scene.ids[0])
    assert why.startswith("shadow topic of" if source else "source of a shadow topic")


@pytest.mark.parametrize("place", [(), (("bucket", ""),), (("region", "r"),)])
def test_a_place_without_a_bucket(scene: Scene, place: tuple[tuple[str, str], ...]) -> None:
    assert refused(scene, scene.ids[0], metadata=place) == "no bucket is named for it"


def test_a_ledger_with_an_open_attempt(scene: Scene) -> None:
    session = scene.session()
    ((attempt,), _) = session.begin(scene.ids[:1])
    begun, (one,) = session.begin(scene.ids[:1])
    assert begun == []
    assert (one.outcome, "another open offload attempt" in one.reason) == (Outcome.REFUSED, True)
    assert attempts.whole(attempts.open_attempts(scene.store)) == [attempt]


@pytest.mark.parametrize("data", [None, b"\xff\xff"])
def test_a_topic_that_cannot_be_read(scene: Scene, data: bytes | None) -> None:
    if data is None:
        scene.cluster.zookeeper.unreadable.add(scene.path)
    else:
        scene.cluster.put(scene.path, data)
        scene.law = lambda: None  # type: ignore[method-assign]
    with pytest.raises(Refused, match="a%2Bb"):
        scene.session().begin(scene.ids[:1])
    assert scene.open_attempts == []


def test_some_ledgers_of_a_topic_are_begun_and_others_refused(scene: Scene) -> None:
    begun, (one,) = scene.session().begin([scene.ids[0], scene.ids[3]])
    assert [attempt.ledger_id for attempt in begun] == scene.open_attempts == [scene.ids[0]]
    assert (one.ledger_id, one.outcome) == (scene.ids[3], Outcome.REFUSED)
    assert scene.rows == [(scene.ids[0], Outcome.PREPARED)]


# ---------------------------------------------------------------------------------- what a broker does in the meantime


def begun(scene: Scene, ledger_ids: Sequence[int] | None = None) -> tuple[Session, list[Proven]]:
    """Attempts that are copied and proven."""
    session = scene.session()
    found, _ = session.begin(scene.wanted if ledger_ids is None else ledger_ids)
    return session, [session.copy(one) for one in found]


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
    assert scene.proceed(())[0].reason == "its topic does not list its ledger any more; its objects are removed"
    assert scene.open_attempts == []
    assert len(scene.keys) == 4


def test_a_topic_that_was_deleted(scene: Scene) -> None:
    session, proven = begun(scene)
    scene.cluster.remove(scene.path)
    with pytest.raises(Refused, match="does not exist"):
        session.commit(proven)
    assert {one.reason for one in scene.proceed(())} == {"its topic is gone; its objects are removed"}
    assert (scene.open_attempts, scene.keys, scene.left_pending) == ([], set(), [])


@pytest.mark.parametrize("silent", [False, True])
def test_a_topic_without_a_z_node_that_a_broker_may_have(scene: Scene, silent: bool) -> None:
    _, proven = begun(scene)
    scene.cluster.remove(scene.path)
    keys = scene.keys
    if silent:
        scene.error = "timed out"
    else:
        scene.cluster.load(TOPIC)
    _, found = scene.session_again().finish_attempts()
    assert {one.outcome for one in found} == {Outcome.FAILED}
    assert ("did not answer" if silent else "still lists") in found[0].reason
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
    with pytest.raises(Refused, match="changed 5 times"):
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
    assert session.commit(proven)[0].reason == "the last ledger of its topic"


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
    with pytest.raises(
        ReadCheckFailed, match="whether its broker can read it is not known: an unload of its topic is pending"
    ):
        session.commit(proven)
    assert scene.complete == scene.ids[:1]
    assert scene.left_pending == [True]
    assert scene.open_attempts == scene.wanted
    scene.broker.reads = False
    scene.cluster.admin.on_unload = scene.broker.unload
    assert outcomes(scene.settle_later())[scene.ids[0]] == Outcome.REVERTED
    assert scene.complete == []


def test_without_the_read_check_an_unload_that_fails_is_said(scene: Scene) -> None:
    scene = Scene(loaded=True)
    scene.waived = True
    session, proven = begun(scene)
    scene.cluster.admin.on_unload = raising(Unavailable("503"))
    found = session.commit(proven)
    assert {one.outcome for one in found} == {Outcome.OFFLOADED}
    assert {"is pending: 503" in one.reason for one in found} == {True}
    assert scene.left_pending == [True]


def test_no_write_of_a_loaded_topic_without_an_unload_left() -> None:
    scene = Scene(loaded=True)
    scene.waived, scene.limit = True, 0
    session, proven = begun(scene)
    found = session.commit(proven)
    assert {(one.outcome, "trimming.max_unloads" in one.reason) for one in found} == {(Outcome.LEFT_TO_BROKER, True)}
    assert scene.complete == []


@pytest.mark.parametrize("limit", [0, 1])
@pytest.mark.parametrize("loaded", [False, True])
def test_no_read_check_that_could_not_be_reverted(loaded: bool, limit: int) -> None:
    scene = Scene(loaded=loaded, reads=False)
    scene.limit = limit
    session, proven = begun(scene)
    found = session.commit(proven)
    assert {(one.outcome, "trimming.max_unloads" in one.reason) for one in found} == {(Outcome.LEFT_TO_BROKER, True)}
    assert scene.complete == []
    assert scene.open_attempts == scene.wanted


@pytest.mark.parametrize("error", [Paused, LeaseLost])
@pytest.mark.parametrize("step", ["begin", "commit", "before the write", "settle"])
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
        "settle": session.finish_attempts,
    }
    keys = scene.keys
    with pytest.raises(error):
        act[step]()
    assert (scene.complete, scene.left_pending) == ([], [])
    assert scene.open_attempts == scene.wanted
    assert scene.keys == keys


# ------------------------------------------------------------------------------------------------- the read check


def test_what_brokers_cannot_read_is_taken_back_where_unloads_fail_too() -> None:
    """Naming a copy that nobody can read is worse than being is pending."""
    scene = Scene(reads=False)
    other = Topic.parse("persistent://theirs/orders/t")
    scene.cluster.topic(other, [scene.cluster.ledger(data_tags(other))])
    scene.cluster.load(other)
    control.note_unload(scene.cluster.open_store(), control.PendingUnload(other, True, 0, control.OFFLOAD_LEASE))

    def fails(topic: Topic) -> None:
        raise AccessDenied("403")

    scene.cluster.admin.on_unload = fails
    with pytest.raises(ReadCheckFailed, match="its topic reads it from BookKeeper again"):
        scene.proceed()
    assert scene.complete == []
    assert all(item.offload is None for item in scene.info.ledgers)
    assert True in scene.left_pending


@pytest.mark.parametrize("loaded", [False, True])
def test_what_brokers_cannot_read_is_taken_back(loaded: bool) -> None:
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
    with pytest.raises(Refused):
        scene.proceed()
    keys = scene.keys
    scene.broker.reads = True
    scene.cluster.wait(1)
    assert outcomes(scene.proceed()) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
    assert scene.keys == keys


def unreadable_bookkeeper(scene: Scene) -> None:
    scene.cluster.zookeeper.unreadable.add(scene.cluster.path(scene.ids[0]))


def released(scene: Scene) -> None:
    offload = scene.items[scene.ids[0]].offload
    assert offload
    scene.write(scene.ids[0], replace(offload, bookkeeper_deleted=True))


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda scene: scene.cluster.remove(scene.cluster.path(scene.ids[0])), "BookKeeper does not have it"),
        (unreadable_bookkeeper, "no permission"),
        (released, "its copy in BookKeeper is released"),
    ],
)
def test_what_bookkeeper_may_not_have_any_more_is_not_taken_back(act: Callable[[Scene], None], why: str) -> None:
    scene = Scene(loaded=True)
    session, proven = begun(scene, scene.ids[:1])

    def read(topic: Topic, position: Position) -> None:
        act(scene)
        raise Failed("500")

    scene.cluster.admin.on_read = read
    with pytest.raises(ReadCheckFailed, match=why):
        session.commit(proven)
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
    with pytest.raises(Refused):
        session.commit(proven)
    assert scene.items[scene.ids[0]].offload == theirs


def test_a_read_check_whose_topic_never_comes_to_rest_stops_the_run_and_is_read_again_by_the_next() -> None:
    scene = Scene(loaded=True, reads=False)
    session, proven = begun(scene)
    scene.on_write(lambda: scene.on_write(scene.broker.load, times=99), "after")
    with pytest.raises(ReadCheckFailed, match="whether it was reverted is not known"):
        session.commit(proven)
    assert scene.complete == scene.ids[:1]
    assert outcomes(scene.settle_later())[scene.ids[0]] == Outcome.REVERTED


def test_a_read_check_that_is_refused_leaves_the_role_to_the_next_ledger() -> None:
    scene = Scene(loaded=True, reads=False)
    session, proven = begun(scene)
    theirs = context(complete=True, timestamp=1)
    assert theirs.uuid
    for key in (data_key(theirs.uuid, scene.ids[0]), index_key(theirs.uuid, scene.ids[0])):
        scene.buckets.put(BUCKET, key, b"")
    scene.write(scene.ids[0], theirs)
    with pytest.raises(ReadCheckFailed, match=f"ledger {scene.ids[1]} was offloaded"):
        session.commit(proven)
    assert scene.complete == scene.ids[:1]


# --------------------------------------------------------------------------------------------- what a crash left behind


def cut_off(scene: Scene, at: str, ledger_ids: Sequence[int], times: int = 1) -> None:
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
    cut_off(scene, at, scene.ids[:1])
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
    cut_off(scene, "before record", scene.ids[:1])
    scene.broker.load()
    theirs = context()
    ledgers = tuple(replace(i, offload=theirs) if i.ledger_id == scene.ids[1] else i for i in scene.info.ledgers)
    scene.cluster.put(scene.path, managed_ledger.encode(replace(scene.info, ledgers=ledgers)))
    before = scene.version
    (one,) = scene.settle_later()
    assert (one.outcome, str(theirs.uuid) in one.reason) == (Outcome.FOREIGN_ATTEMPT, True)
    assert scene.rows[-1] == (scene.ids[0], Outcome.FOREIGN_ATTEMPT)
    assert (scene.version, scene.broker.memory is None, scene.open_attempts) == (before, False, scene.ids[:1])


def test_a_read_check_whose_topic_has_a_pending_unload_is_not_read() -> None:
    scene = Scene(loaded=True, reads=False)
    cut_off(scene, "before unload", scene.ids[:1])
    assert scene.left_pending == [True]
    _, (one,) = scene.session_again().finish_attempts()
    assert (one.outcome, "an unload of its topic is pending" in one.reason) == (Outcome.FAILED, True)
    assert scene.open_attempts == scene.ids[:1]


def test_a_read_check_that_could_not_be_taken_back_waits() -> None:
    scene = Scene(loaded=True, reads=False)
    cut_off(scene, "before read_entry", scene.ids[:1])
    scene.limit = 0
    _, (one,) = scene.session_again().finish_attempts()
    assert (one.outcome, "trimming.max_unloads" in one.reason) == (Outcome.FAILED, True)
    assert scene.open_attempts == scene.complete == scene.ids[:1]


def test_where_the_read_check_is_waived_a_committed_attempt_is_done() -> None:
    scene = Scene(loaded=True, reads=False)
    cut_off(scene, "before read_entry", scene.ids[:1])
    scene.waived = True
    _, (one,) = scene.session_again().finish_attempts()
    assert one.outcome == Outcome.OFFLOADED
    assert scene.open_attempts == []


def test_one_attempt_that_cannot_be_settled_hinders_no_other(scene: Scene) -> None:
    begun(scene)
    scene.cluster.put(attempts.path_of(scene.ids[0]), b"{}")
    _, found = scene.session_again().finish_attempts()
    assert [(one.ledger_id, one.outcome) for one in found] == [
        (-1, Outcome.FAILED),
        (scene.ids[1], Outcome.ATTEMPT_ABORTED),
        (scene.ids[2], Outcome.ATTEMPT_ABORTED),
    ]
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
    assert (one.outcome, "could not be removed" in one.reason) == (Outcome.FAILED, True)
    assert scene.open_attempts == scene.ids[:1]
    setattr(scene.objects, fault, lambda name, bucket, keys: None)
    _, (one,) = scene.session_again().finish_attempts()
    assert one.outcome == Outcome.ATTEMPT_ABORTED
    assert (scene.keys, scene.open_attempts) == (set(), [])


def test_an_attempt_in_a_bucket_that_does_not_exist_ends(scene: Scene) -> None:
    begun(scene, scene.ids[:1])
    del scene.buckets.objects[BUCKET]
    _, (one,) = scene.session_again().finish_attempts()
    assert (one.outcome, f"there is no bucket {BUCKET}" in one.reason) == (Outcome.ATTEMPT_ABORTED, True)
    assert scene.open_attempts == []


def test_an_attempt_in_a_bucket_that_is_named_no_more_fails_no_run_and_says_the_way_out(scene: Scene) -> None:
    _, (one,) = begun(scene, scene.ids[:1])
    keys = scene.keys
    scene.objects.allowed = ["another"]
    _, (found,) = scene.session_again().finish_attempts()
    assert found.outcome == Outcome.LEFT
    assert "not one of object_store.buckets" in found.reason
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


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda scene: scene.cluster.remove(scene.cluster.path(scene.ids[0])), "dangling"),
        (unreadable_bookkeeper, "no permission"),
        (lambda scene: scene.write(scene.ids[0], context(bookkeeper_deleted=True)), "needs repair"),
    ],
)
def test_objects_that_may_be_all_that_is_left_are_not_abandoned(
    scene: Scene, act: Callable[[Scene], None], why: str
) -> None:
    begun(scene, scene.ids[:1])
    scene.law = lambda: None  # type: ignore[method-assign]
    act(scene)
    keys = scene.keys
    _, (one,) = scene.session_again().finish_attempts()
    assert (one.outcome, "all that is left of its ledger" in one.reason, why in one.reason) == (
        Outcome.FAILED,
        True,
        True,
    )
    assert (scene.keys, scene.open_attempts) == (keys, scene.ids[:1])


def while_uploads_are_listed(scene: Scene, act: Callable[[], object]) -> None:
    """``act`` comes while the next look for uploads waits for its answer."""

    def slow(name: str, bucket: str, keys: Sequence[str]) -> None:
        if name == "list_uploads":
            scene.objects.before = lambda name, bucket, keys: None
            act()

    scene.objects.before = slow


def test_a_run_that_lost_its_lease_while_it_abandons_deletes_nothing(scene: Scene) -> None:
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
    ("act", "why"),
    [
        (commit_by_hand, "its topic names them by now"),
        (lambda scene, attempt: scene.cluster.remove(attempt.path), "it is not open any more"),
        (lambda scene, attempt: scene.cluster.put(attempt.path, b"{}"), "it is not open any more"),
    ],
)
def test_what_changes_while_uploads_are_dropped_is_seen_before_objects_go(
    scene: Scene, act: Callable[[Scene, Attempt], object], why: str
) -> None:
    _, (one,) = begun(scene, scene.ids[:1])
    keys = scene.keys
    while_uploads_are_listed(scene, lambda: act(scene, one.attempt))
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, why in found.reason) == (Outcome.FAILED, True)
    assert scene.keys == keys


ROTTEN = StoreError("entry 1: CRC32C")


def test_a_pair_is_kept_while_bookkeeper_cannot_give_its_ledger_whole(scene: Scene) -> None:
    session, (one,) = begun(scene, scene.ids[:1])
    scene.cluster.reader.failures[scene.ids[0]] = ROTTEN
    keys = scene.keys
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, scene.keys, scene.open_attempts) == (Outcome.FAILED, keys, scene.ids[:1])
    assert "all that is left of its ledger: BookKeeper cannot give it whole: entry 1: CRC32C" in found.reason
    assert session.copy(one.attempt) == one
    scene.cluster.reader.failures.clear()
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, scene.keys, scene.open_attempts) == (Outcome.ATTEMPT_ABORTED, set(), [])


def test_a_pair_is_kept_while_bookkeeper_has_less_than_its_topic_lists(scene: Scene) -> None:
    begun(scene, scene.ids[:1])
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.ids[0], entries=[b"x" * 9])
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, "its topic says 1 entries of 10 bytes" in found.reason) == (Outcome.FAILED, True)
    assert len(scene.keys) == 2


@pytest.mark.parametrize("key", [data_key, index_key])
def test_half_a_pair_is_no_copy(scene: Scene, key: Callable[[UUID, int], str]) -> None:
    _, (one,) = begun(scene, scene.ids[:1])
    del scene.buckets.objects[BUCKET][key(one.attempt.uuid, scene.ids[0])]
    scene.cluster.reader.failures[scene.ids[0]] = ROTTEN
    _, (found,) = scene.session_again().finish_attempts()
    if key is data_key:
        assert (found.outcome, scene.keys) == (Outcome.ATTEMPT_ABORTED, set())
    else:  # no broker can read it, but every entry may be in it
        assert found.outcome == Outcome.FAILED
        assert "its objects may be all that is left of its ledger" in found.reason


def test_a_pair_that_cannot_be_seen_is_not_abandoned(scene: Scene) -> None:
    begun(scene, scene.ids[:1])
    scene.cluster.reader.failures[scene.ids[0]] = ROTTEN
    left = [3]  # one request for each object: the first look sees both, the second fails

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        left[0] -= name == "head"
        if name == "head" and left[0] <= 0:
            raise Unavailable("503")

    scene.objects.before = fail
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, len(scene.keys), scene.open_attempts) == (Outcome.FAILED, 2, scene.ids[:1])


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("theirs_is", ["half", "empty", "zeros", "another", "whole"])
def test_a_pair_is_kept_while_the_one_that_its_topic_names_is_not_there(
    scene: Scene, theirs_is: str, released: bool
) -> None:
    """Missing its index object, cut short, whole by its size alone, or with another entry."""
    there = theirs_is == "whole"
    _, (one,) = begun(scene, scene.ids[:1])
    for key, body in zip(
        (data_key(one.attempt.uuid, scene.ids[0]), index_key(one.attempt.uuid, scene.ids[0])),
        objects_of([b"x" * ENTRY_BYTES]),
        strict=True,
    ):
        scene.buckets.put(BUCKET, key, body, {**SAYS, FORMAT_VERSION: "1"})
    data, index = {
        "half": (b"", None),
        "empty": (b"", b""),
        "zeros": (bytes(10_000), bytes(10_000)),
        "another": objects_of([b"y" * ENTRY_BYTES]),
        "whole": objects_of([b"x" * ENTRY_BYTES]),
    }[theirs_is]
    scene.law = lambda: None  # type: ignore[method-assign]
    theirs = context(complete=True, bookkeeper_deleted=released)
    assert theirs.uuid
    scene.write(scene.ids[0], theirs)
    version = {FORMAT_VERSION: "1"}
    scene.buckets.put(BUCKET, data_key(theirs.uuid, scene.ids[0]), data, version)
    if index is not None:
        scene.buckets.put(BUCKET, index_key(theirs.uuid, scene.ids[0]), index, version)
    keys = scene.keys
    scene.cluster.reader.failures[scene.ids[0]] = ROTTEN
    _, (found,) = scene.session_again().finish_attempts()
    assert found.outcome == (Outcome.ATTEMPT_ABORTED if there else Outcome.FAILED)
    assert scene.keys == (scene.pair(scene.items[scene.ids[0]]) if there else keys)
    if not there:
        assert ("objects are not there" if released else "CRC32C") in found.reason


@pytest.mark.parametrize("error", [Paused, LeaseLost])
def test_a_run_that_may_not_go_on_reads_no_ledger_to_its_end(scene: Scene, error: type[Refused]) -> None:
    begun(scene, scene.ids[:1])
    payloads = [b"x"] * 25
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.ids[0], entries=payloads)
    info = scene.info
    ledgers = tuple(
        replace(item, entries=25, size=25) if item.ledger_id == scene.ids[0] else item for item in info.ledgers
    )
    scene.cluster.put(scene.path, managed_ledger.encode(replace(info, ledgers=ledgers)))
    late, read, asked = scene.session_again(), scene.cluster.reader.read, list[int]()

    def slow(ledger_id: int, metadata: Any, first: int, last: int) -> Any:
        asked.append(first)
        scene.cluster.wait(1)
        if error is Paused:
            control.pause(scene.cluster.open_store(), "test")
        else:
            scene.cluster.put(control.OFFLOAD_LEASE, b"{}")
        return read(ledger_id, metadata, first, last)

    scene.cluster.reader.read = slow  # type: ignore[method-assign]
    with pytest.raises(error):
        late.finish_attempts()
    assert (asked, len(scene.keys), scene.open_attempts) == ([0], 2, scene.ids[:1])


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_uuid_of_ours_that_is_named_in_another_way_is_not_abandoned(scene: Scene, elsewhere: bool) -> None:
    _, (one,) = begun(scene, scene.ids[:1])
    ledger = scene.ids[1] if elsewhere else scene.ids[0]
    scene.write(ledger, context(one.attempt.uuid))
    keys = scene.keys
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, "names its UUID" in found.reason) == (Outcome.FAILED, True)
    assert (scene.keys, scene.open_attempts) == (keys, scene.ids[:1])


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


def taken_back(scene: Scene, *, dry_run: bool = False) -> list[OffloadOutcome]:
    session = scene.session_again()
    if dry_run:
        return revert.plan_revert(session.run, session.ports, TOPIC, scene.wanted)
    return revert.revert_topic(session.run, session.ports, session.guard, TOPIC, scene.wanted)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_damaged_offload_is_taken_back_while_bookkeeper_has_it(loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    scene.waived = True
    scene.proceed()
    scene.cluster.wait(1)
    before = scene.info
    assert outcomes(taken_back(scene, dry_run=True)) == dict.fromkeys(scene.wanted, "goes")
    assert scene.info == before
    assert outcomes(taken_back(scene)) == dict.fromkeys(scene.wanted, Outcome.REVERTED)
    assert scene.complete == []
    assert len(scene.keys) == 6
    assert scene.rows[-3:] == [(ledger_id, Outcome.REVERTED) for ledger_id in scene.wanted]
    assert {one.reason for one in taken_back(scene)} == {"it is not offloaded"}
    scene.cluster.wait(1)
    assert outcomes(scene.proceed()) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)


def test_nothing_is_taken_back_beside_an_attempt_of_its_broker(scene: Scene) -> None:
    """Found by the simulator: the write would end the attempt, and leave what it uploaded."""
    scene.waived = True
    scene.proceed()
    other = next(item.ledger_id for item in scene.info.ledgers if item.ledger_id not in scene.wanted)
    scene.write(other, context())
    scene.cluster.wait(1)
    before = scene.info
    for dry_run in (True, False):
        assert outcomes(taken_back(scene, dry_run=dry_run)) == dict.fromkeys(scene.wanted, Outcome.FOREIGN_ATTEMPT)
    assert scene.info == before


def test_nothing_is_taken_back_beside_an_attempt_that_begins_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.waived = True
    scene.proceed()
    other = next(item.ledger_id for item in scene.info.ledgers if item.ledger_id not in scene.wanted)
    scene.cluster.wait(1)
    planned = revert.plan_revert

    def then_begins(*given: Any) -> list[OffloadOutcome]:
        found = planned(*given)
        scene.write(other, context())
        return found

    monkeypatch.setattr(revert, "plan_revert", then_begins)
    assert outcomes(taken_back(scene)) == dict.fromkeys(scene.wanted, Outcome.FOREIGN_ATTEMPT)
    assert len(scene.complete) == len(scene.wanted)


def test_what_bookkeeper_may_not_have_whole_is_not_taken_back(scene: Scene) -> None:
    scene.waived = True
    scene.proceed()
    scene.cluster.wait(1)
    first, second, third = scene.wanted
    offloads = {item.ledger_id: item.offload for item in scene.info.ledgers}
    for released in (first, second):
        scene.write(released, replace(offloads[released], bookkeeper_deleted=True))  # type: ignore[type-var]
    scene.cluster.remove(scene.cluster.path(second))
    before = scene.info
    for dry_run in (True, False):
        (found,) = [one for one in taken_back(scene, dry_run=dry_run) if one.ledger_id == first]
        assert (found.outcome, "its broker be deleting it: again in 30" in found.reason) == (Outcome.REFUSED, True)
    scene.write(third, offloads[third])
    scene.cluster.wait(1)
    before = scene.info
    found = {one.ledger_id: (one.outcome, one.reason) for one in taken_back(scene, dry_run=True)}
    assert found[first][0] == "goes"  # nobody has deleted it yet, and no deletion run is at it
    assert found[second] == (Outcome.REFUSED, "BookKeeper does not have it: a dangling reference")
    assert found[third][0] == "goes"
    assert scene.info == before


def test_what_bookkeeper_cannot_give_whole_is_not_taken_back(scene: Scene) -> None:
    scene.waived = True
    scene.proceed()
    scene.cluster.wait(1)
    first, second, _ = scene.wanted
    scene.cluster.reader.failures[first] = ROTTEN
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=second, entries=[b"x" * 9])
    for dry_run in (True, False):
        found = {one.ledger_id: one for one in taken_back(scene, dry_run=dry_run)}
        assert (found[first].outcome, found[first].reason) == (
            Outcome.REFUSED,
            "BookKeeper cannot give it whole: entry 1: CRC32C",
        )
        assert (found[second].outcome, "BookKeeper 1 of 9" in found[second].reason) == (Outcome.REFUSED, True)
    assert scene.complete == [first, second]


@pytest.mark.parametrize(
    ("then", "why"),
    [
        (None, "its topic does not list it any more"),
        (uuid4(), "its topic names another offload by now"),
    ],
)
def test_what_is_not_taken_back_is_not_said_to_be(scene: Scene, then: UUID | None, why: str) -> None:
    scene.waived = True
    scene.proceed(scene.ids[:1])
    scene.cluster.wait(1)

    def act() -> None:
        if then:
            data = f"{data_key(then, scene.ids[0])}", f"{index_key(then, scene.ids[0])}"
            for key in data:
                scene.buckets.put(BUCKET, key, b"x", SAYS)
            scene.write(scene.ids[0], context(then, complete=True))
        else:
            scene.cluster.put(scene.path, managed_ledger.encode(replace(scene.info, ledgers=scene.info.ledgers[1:])))

    session = scene.session_again()
    scene.on_write(act)
    run = replace(session.run, loaded_topics=True)
    (found,) = revert.revert_topic(run, session.ports, session.guard, TOPIC, scene.ids[:1])
    assert (found.outcome, found.reason.startswith(why)) == (Outcome.FAILED, True)


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


@pytest.mark.parametrize(
    "says", [{}, {**SAYS, CLUSTER_NAME: "other"}, {**SAYS, MANAGED_LEDGER_NAME: "a/b/persistent/c"}]
)
def test_objects_that_are_not_an_attempts_own_are_left_alone(scene: Scene, says: dict[str, str]) -> None:
    """As after somebody wrote the attempt's z-node by hand."""
    _, (one,) = begun(scene, scene.ids[:1])
    scene.buckets.put(BUCKET, index_key(one.attempt.uuid, one.attempt.ledger_id), b"i", says)
    keys = scene.keys
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, one.attempt.path in found.reason) == (Outcome.FAILED, True)
    assert (scene.keys, scene.open_attempts) == (keys, scene.ids[:1])


def test_objects_that_a_scan_found_named_are_left_alone(scene: Scene) -> None:
    _, (one,) = begun(scene, scene.ids[:1])
    scene.named = OffloadUuids.collect([pa.array([[str(one.attempt.uuid)]])])
    keys = scene.keys
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, "newest scan found its UUID" in found.reason) == (Outcome.FAILED, True)
    assert (scene.keys, scene.open_attempts) == (keys, scene.ids[:1])


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


def test_killed_anywhere_what_brokers_cannot_read_is_taken_back() -> None:
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


# ----------------------------------------------------------------------------------------------- what brokers have read


def cut_off_after_the_commit(scene: Scene) -> None:
    """Killed between the compare-and-set of three ledgers and the end of their attempts."""
    scene.waived = True
    session, proven = begun(scene)

    def die(name: str) -> None:
        if name == "after record" and len(scene.complete) == len(proven):
            raise Crash

    scene.tick = die
    with pytest.raises(Crash):
        session.commit(proven)
    scene.tick = lambda name: None
    scene.waived = False
    assert (scene.complete, scene.open_attempts) == (scene.wanted, scene.wanted)


@pytest.mark.parametrize("loaded", [False, True])
def test_what_was_committed_together_and_cannot_be_read_is_taken_back_together(loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    cut_off_after_the_commit(scene)
    scene.broker.reads = False
    unloads: list[Topic] = []

    def unload(topic: Topic) -> None:
        unloads.append(topic)
        scene.broker.unload(topic)

    scene.cluster.admin.on_unload = unload
    assert outcomes(scene.settle_later()) == dict.fromkeys(scene.wanted, Outcome.REVERTED)
    assert (scene.complete, len(unloads)) == ([], 2)  # after the read, and after they are reverted
    assert scene.open_attempts == scene.wanted


def test_what_was_committed_together_is_read_once(scene: Scene) -> None:
    cut_off_after_the_commit(scene)
    assert outcomes(scene.settle_later()) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
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
    begun_there, _ = tiered_commit.begin_topic(session.run, session.ports, session.guard, OTHER, wanted, uuid4)
    proven = [session.copy(one) for one in begun_there]
    with pytest.raises(ReadCheckFailed, match="cannot read it"):
        tiered_commit.commit_topic(session.run, session.ports, session.guard, OTHER, proven, session.read_check)


def words(scene: Scene) -> list[dict[str, Any]]:
    """What the journal has of reads through brokers."""
    return [asdict(row) for row in scene.cluster.journal.rows if row.action == "read-check"]


HERE: NamespaceLocation = (str(TOPIC.namespace), "aws-s3", tuple(sorted(PLACE)))
SITE: OffloadLocation = ("aws-s3", BUCKET, "r", "http://s3")


def test_the_place_of_a_read_check_is_in_the_journal(scene: Scene) -> None:
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


def unread_reason(scene: Scene, session: Session, ledger: int = 0) -> str:
    copy = OffloadedCopy.of_item(scene.items[scene.ids[ledger]], 1)
    assert copy
    said = why_unread(session.run, session.ports, session.guard, TOPIC, copy, session.read_check)
    return said.reason if said else ""


def offloaded_without_a_read_check(scene: Scene) -> None:
    scene.waived = True
    scene.proceed(scene.ids[:1])
    scene.waived = False
    scene.cluster.wait(1)


def test_before_the_first_release_a_broker_reads_what_it_is_to_live_on(scene: Scene) -> None:
    offloaded_without_a_read_check(scene)
    session = scene.session_again()
    assert unread_reason(scene, session) == ""
    assert (scene.left_pending, scene.broker.memory) == ([], None)
    scene.broker.reads = False
    assert unread_reason(scene, session) == ""  # once is enough, in this run
    scene.seen = {HERE: scene.cluster.clock.now_ms()}
    scene.cluster.wait(1)
    assert "its broker cannot read it" in unread_reason(scene, scene.session_again())  # and in no other


def test_a_broker_that_may_have_bookkeepers_copy_open_shows_nothing(scene: Scene) -> None:
    """A topic that clients have loaded is left alone, or unloaded before it is read."""
    offloaded_without_a_read_check(scene)
    scene.broker.load()
    scene.cluster.wait(1)
    reads: list[Topic] = []
    scene.cluster.admin.on_read = lambda topic, position: reads.append(topic)
    assert "offload.loaded_topics does not name it" in unread_reason(scene, scene.session_again())
    assert (reads, scene.left_pending, scene.broker.memory is None) == ([], [], False)
    scene.loaded_topics = True
    assert unread_reason(scene, scene.session_again()) == ""
    assert (reads[:1], scene.left_pending, scene.broker.memory) == ([TOPIC], [], None)


def test_a_read_of_what_a_topic_reads_from_bookkeeper_shows_nothing(scene: Scene) -> None:
    offloaded_without_a_read_check(scene)
    scene.tiered_first = ()
    assert "BookKeeper first" in unread_reason(scene, scene.session_again())


def test_what_no_broker_can_read_is_not_released(scene: Scene) -> None:
    offloaded_without_a_read_check(scene)
    scene.broker.reads = False
    session = scene.session_again()
    assert "its broker cannot read it from bucket" in unread_reason(scene, session)
    assert locations_that_failed(words(scene), "", scene.cluster.clock.now_ms()) == {SITE}
    scene.broker.reads = True
    assert unread_reason(scene, session).startswith(
        "its location could not be read in this run, of persistent://acme/orders"
    )
    scene.cluster.wait(1)
    scene.cluster.admin.on_read = raising(Unavailable("timed out"))
    session = scene.session_again()
    assert "did not answer" in unread_reason(scene, session)
    scene.cluster.admin.on_read = scene.broker.read
    assert "did not answer" in unread_reason(scene, session)  # each topic is asked once
    (asked,) = session.read_check.not_asked.values()
    said = asked.pop(TOPIC)
    asked |= {Topic.parse(f"persistent://acme/orders/{n}"): said for n in range(ASKED)}
    assert unread_reason(scene, session).startswith(
        "no broker has read its location yet, of persistent://acme/orders/0: its"
    )
    scene.limit, scene.loaded_topics = 0, True
    assert "max_unloads" in unread_reason(scene, scene.session_again())


def test_a_read_that_fails_ends_what_was_shown_of_its_place(scene: Scene) -> None:
    cut_off_after_the_commit(scene)
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

    def taken_back_meanwhile(topic: Topic, position: Position) -> None:
        scene.write(scene.ids[0], None)
        read(topic, position)

    copy = OffloadedCopy.of_item(scene.items[scene.ids[0]], 1)
    assert copy
    scene.cluster.admin.on_read = taken_back_meanwhile
    said = why_unread(session.run, session.ports, session.guard, TOPIC, copy, session.read_check)
    assert said
    assert "names another offload or none by now" in said.reason
    assert (session.read_check.reads(SITE, ""), words(scene)) == (False, [])


@pytest.mark.parametrize("error", ["", "broker-2 does not answer"])
def test_a_topic_that_may_be_loaded_shows_nothing_once_its_run_was_cut_off(scene: Scene, error: str) -> None:
    cut_off_after_the_commit(scene)
    scene.cluster.wait(0 if not error else 1)
    scene.error = error
    session = scene.session_again()
    _, found = session.finish_attempts(())
    assert set(outcomes(found).values()) == {Outcome.OFFLOADED}
    assert (session.read_check.reads(SITE, ""), words(scene)) == (False, [])


def test_what_is_read_and_shows_nothing_leaves_the_read_check_due(scene: Scene) -> None:
    """After a run that was cut off its broker may have BookKeeper's copy open."""
    cut_off_after_the_commit(scene)
    session = scene.session_again()
    session.finish_attempts(())
    attempt = Attempt(scene.ids[3], str(TOPIC), uuid4(), "aws-s3", PLACE, 5 << 20, "", 0)
    assert session.read_check.due(TOPIC, attempt)


def test_every_read_counts_from_when_it_was(scene: Scene) -> None:
    scene.seen = {HERE: scene.cluster.clock.now_ms()}
    scene.proceed()
    assert [row["outcome"] for row in words(scene)] == ["read-passed"]


def test_a_read_check_is_taken_back_though_the_journal_is_full() -> None:
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


def test_a_read_check_is_taken_back_though_its_location_cannot_be_held() -> None:
    """The run stops all the same, and the journal tells those that begin later."""
    scene = Scene(reads=False)
    session, proven = begun(scene)
    refuse_to_hold(scene)
    with pytest.raises(ReadCheckFailed, match="deletion runs that are under way could not be told"):
        session.commit(proven)
    assert (scene.complete, [row["outcome"] for row in words(scene)]) == ([], ["read-failed"])


def test_what_was_cut_off_is_taken_back_though_its_location_cannot_be_held(scene: Scene) -> None:
    cut_off_after_the_commit(scene)
    scene.broker.reads = False
    scene.cluster.wait(1)
    session = scene.session_again()
    refuse_to_hold(scene)
    _, found = session.finish_attempts(())
    assert set(outcomes(found).values()) == {Outcome.REVERTED}
    assert "could not be told" in session.read_check.unheld


def test_a_read_check_holds_its_location_until_one_is_read() -> None:
    scene = Scene(reads=False)
    with pytest.raises(ReadCheckFailed):
        scene.proceed()
    assert unread_locations.held(scene.store, [SITE]) == {SITE}
    scene.broker.reads = True
    scene.cluster.wait(1)
    scene.proceed()
    assert unread_locations.held(scene.store, [SITE]) == set()


def test_what_a_broker_could_not_read_is_in_the_journal_before_it_is_taken_back() -> None:
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
    assert unread_reason(scene, session) == "no broker has read its location yet: no space left"
    (asked,) = session.read_check.not_asked.values()
    assert list(asked) == [TOPIC]


def test_an_error_before_its_broker_is_asked_says_nothing_of_it(scene: Scene) -> None:
    offloaded_without_a_read_check(scene)
    session = scene.session_again()
    scene.store.before = lambda operation: raising(StoreError("no quorum"))() if operation.name == "create" else None
    assert unread_reason(scene, session) == (
        "no broker has read its location yet: whether its broker can read it is not known: no quorum"
    )
    assert not any(session.read_check.not_asked.values())


@pytest.mark.parametrize("ahead", [0, 6 * 60_000])
def test_a_take_back_waits_for_a_broker_that_deletes_whatever_our_clock_says(scene: Scene, ahead: int) -> None:
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
    assert "its broker be deleting it" in said.reason


def test_a_take_back_is_in_the_journal_before_it_is_made(scene: Scene) -> None:
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
    found = taken_back(scene)
    assert set(outcomes(found).values()) == {Outcome.REVERTED}
    assert all(one.reason.endswith("the journal does not say so: no space left") for one in found)
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
    with pytest.raises(Unheld, match="could not be told"):
        session.commit(proven)
