"""Releasing copies in BookKeeper, and the deletion run after it: no copy goes unless its objects are whole by then."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.deletion import batch, owner_check
from pulsar_lifecycle.deletion.decision import Decision
from pulsar_lifecycle.errors import (
    AccessDenied,
    Failed,
    LeaseLost,
    LifecycleError,
    OutcomeUnknown,
    Paused,
    Refused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    PendingDeleteLedgerInfo,
)
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.journal.offloads import released_ledgers
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records.findings import Context
from pulsar_lifecycle.records.outcomes import Outcome, Waiting
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.tiered.bookkeeper_copies import Due
from pulsar_lifecycle.tiered.read_check import ASKED, ReadCheck
from tests.kit.builders import CHUNK
from tests.kit.crash import Crash, Tell, before_calls, killed_at_every_step, raising
from tests.kit.release_scene import BROKEN, CONTEXT, LAG, SITE
from tests.kit.release_scene import ReleaseScene as Scene
from tests.kit.topic_scene import OTHER, TOPIC, outcomes
from tests.simulation.cluster import cursor_tags, data_tags
from tests.simulation.offloaded import BUCKET, DATA, INDEX
from tests.simulation.pipeline import Policy


@pytest.fixture
def scene() -> Scene:
    return Scene()


def settled(decisions: Sequence[Decision]) -> set[tuple[str, str]]:
    return {(d.outcome, d.reason) for d in decisions}


# ------------------------------------------------------------------------------------------------ what brokers can read


def test_what_no_broker_can_read_stays_in_bookkeeper() -> None:
    scene = Scene()
    asked: list[int] = []

    def read(topic: Topic, position: Position) -> None:
        asked.append(position.ledger_id)
        raise Failed("500 UnsupportedOperationException: no offloader")

    scene.cluster.admin.on_read = read
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    said = scene.release()
    assert {one.reason.partition(" (")[0] for one in said.values()} == {
        f"its copy in BookKeeper stays: its broker cannot read it from bucket {BUCKET}: "
        "500 UnsupportedOperationException: no offloader"
    }
    assert (asked, scene.released_ids, scene.waiting) == (scene.due[:1], [], 0)
    assert [outcome for _, phase, outcome in scene.rows if phase == "release"] == ["failed", "failed"]


def test_a_topic_that_is_loaded_to_be_read_is_released_by_the_same_run() -> None:
    """The next one may come when what its broker has shown does not count any more."""
    scene = Scene()
    scene.cluster.admin.on_read = lambda topic, position: scene.broker.load() if not scene.broker.memory else None
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    assert set(outcomes(scene.release()).values()) == {Outcome.RELEASED}
    assert (scene.released_ids, scene.broker.memory, scene.left_pending) == (scene.due, None, [])


@pytest.mark.parametrize("changed", [{"serviceEndpoint": "https://old"}, {"serviceEndpoint": "", "region": "old"}])
def test_what_was_proven_is_where_brokers_read(scene: Scene, changed: dict[str, str]) -> None:
    """A bucket of the same name elsewhere, mirrored, is not what they read."""
    for ledger_id in scene.due:
        metadata = scene.contexts[ledger_id].driver_metadata
        scene.change(ledger_id, driver_metadata={**metadata, **changed})
    scene.cluster.wait(1)
    said = scene.release()
    assert set(outcomes(said).values()) == {Outcome.REFUSED}
    assert all("old" in one.reason for one in said.values())
    assert scene.released_ids == []


def test_what_brokers_could_not_read_when_last_asked_stays_in_bookkeeper(scene: Scene) -> None:
    scene.released()
    scene.off.failed_locations = frozenset({SITE})
    for n in range(20):  # it is no message's fault: none becomes a dead letter, however long it lasts
        found = scene.delete(run_id=f"run-{n}")
        assert {(d.outcome, d.waiting) for d in found} == {(Outcome.WAITING, Waiting.UNREAD_LOCATION)}
        assert all("could not read an offloaded ledger of the same location" in d.reason for d in found)
        scene.scan()
    assert scene.left == scene.due
    scene.off.failed_locations = frozenset({(SITE[0], "b", *SITE[2:]), ("s3", *SITE[1:])})
    scene.scan()
    assert {d.outcome for d in scene.delete()} == {Outcome.DELETED}


def test_another_ledger_of_the_topic_is_asked_for_where_rest_cannot_show_the_first(scene: Scene) -> None:
    asked: list[int] = []

    def read(topic: Topic, position: Position) -> None:
        asked.append(position.ledger_id)
        if not scene.broker.memory:
            scene.broker.load()

    scene.cluster.admin.on_read = read
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    scene.cluster.reader.payloads[scene.due[0]] = [CHUNK]
    assert set(outcomes(scene.release()).values()) == {Outcome.RELEASED}
    assert asked == scene.due[1:]


def test_what_rest_cannot_show_at_all_stays(scene: Scene) -> None:
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    for ledger_id in scene.due:
        scene.cluster.reader.payloads[ledger_id] = [CHUNK]
    said = scene.release()
    assert set(outcomes(said).values()) == {"failed"}
    assert all("none of its first 20 entries can be asked for by REST" in one.reason for one in said.values())


def test_other_ledgers_are_asked_for_in_the_next_run() -> None:
    """More of them than one run asks for can never be shown."""
    scene = Scene(due=ASKED + 3)
    scene.cluster.admin.on_read = lambda topic, position: None if scene.broker.memory else scene.broker.load()
    for ledger_id in scene.due[:ASKED]:
        scene.cluster.reader.payloads[ledger_id] = [CHUNK]
    begin = scene.cluster.clock.now_ms() % len(scene.due)
    scene.cluster.clock.sleep((len(scene.due) - begin) / 1000)  # the next run begins with the first of them
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    said = scene.release()
    assert set(outcomes(said).values()) == {"failed"}
    assert f"of ledger {scene.due[ASKED - 1]}: none of its first 20 entries" in said[scene.due[-1]].reason

    scene.cluster.clock.sleep(0.001)
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    assert set(outcomes(scene.release()).values()) == {Outcome.RELEASED}


@pytest.mark.parametrize("spoil", ["reverted", "offloaded anew", "the last"])
def test_a_ledger_that_its_broker_may_read_in_bookkeeper_is_not_asked_for(spoil: str) -> None:
    """What it reads would stand for all that is in the place, and none of it would be read."""
    scene = Scene()
    first, second = scene.due
    proven = scene.proven(first, scene.uuids[first]), scene.proven(second, scene.uuids[second])
    info = scene.info
    ledgers = {item.ledger_id: item for item in info.ledgers}
    if spoil == "reverted":
        changed = [replace(item, offload=None) for item in ledgers.values()]
    elif spoil == "offloaded anew":
        changed = [
            replace(item, offload=item.offload and replace(item.offload, uuid=uuid4())) for item in ledgers.values()
        ]
    else:
        changed = [ledgers[first]]
    scene.cluster.put(scene.path, managed_ledger.encode(replace(info, ledgers=tuple(changed))))
    scene.cluster.wait(1)
    asked: list[int] = []
    scene.cluster.admin.on_read = lambda topic, position: asked.append(position.ledger_id)
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    assert set(outcomes(scene.release(*proven)).values()) == {Outcome.REFUSED}
    assert (asked, scene.read_check.reads(SITE, ""), scene.released_ids) == ([], False, [])


# -------------------------------------------------------------------------------------------------------- the whole way


@pytest.mark.parametrize("loaded", [False, True])
def test_what_was_proven_leaves_bookkeeper_and_nothing_else(loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    before, keys = scene.cluster.ledger_ids(), scene.off.buckets.keys(BUCKET)
    scene.released()
    assert scene.released_ids == scene.due
    assert (scene.broker.memory, scene.left_pending) == (None, [])
    why = "its topic released its copy in BookKeeper, and its offloaded one is whole"
    assert settled(scene.delete()) == {(Outcome.DELETED, why)}
    assert before - scene.cluster.ledger_ids() == set(scene.due)
    assert scene.off.buckets.keys(BUCKET) == keys
    assert {n.ledger_id for n in scene.cluster.journal.nodes} == set(scene.due)
    assert (scene.waiting, released_ledgers(scene.cluster.journal, "simulated")) == (0, {})


def test_the_journal_proves_it(scene: Scene) -> None:
    scene.released()
    scene.delete()
    first = scene.due[0]
    said = [(phase, outcome) for i, phase, outcome in scene.rows if i == first]
    assert said == [
        ("send", "sent"),
        ("release", Outcome.MARKED),
        ("release", Outcome.RELEASED),
        ("delete", Outcome.DELETED),
    ]
    reasons = {row.reason for row in scene.cluster.journal.rows if row.phase == "send"}
    assert reasons == {"its topic is written next"}  # a released ledger stays listed
    marked, deleted = (
        next(row for row in scene.cluster.journal.rows if (row.ledger_id, row.outcome) == (first, outcome))
        for outcome in (Outcome.MARKED, Outcome.DELETED)
    )
    proof = json.loads(marked.detail)
    assert (proof["uuid"], proof["bucket"], proof["data_size"]) == (str(scene.uuids[first]), BUCKET, len(DATA))
    assert json.loads(deleted.detail)["offloaded"] == {"uuid": str(scene.uuids[first]), "bucket": BUCKET}


def test_a_second_run_is_harmless(scene: Scene) -> None:
    scene.release()
    before = scene.cluster.zookeeper.stat(scene.path)
    assert set(outcomes(scene.release()).values()) == {Outcome.RELEASED}
    assert scene.cluster.zookeeper.stat(scene.path) == before
    scene.scan()
    assert sorted(d.outcome for d in scene.delete()) == [Outcome.DELETED, Outcome.DELETED, Outcome.GONE, Outcome.GONE]


# ------------------------------------------------------------------------------------------------- what is not released


def refusal(scene: Scene, *due: Due, **given: Any) -> str:
    """Why the first ledger is not released; nothing may have happened to it."""
    version, sent = scene.cluster.zookeeper.stat(scene.path), scene.waiting
    said = scene.release(*(due or [scene.proven(scene.due[0])]), **given)[scene.due[0]]
    assert said.outcome == Outcome.REFUSED
    assert (scene.cluster.zookeeper.stat(scene.path), scene.waiting, scene.rows) == (version, sent, [])
    return said.reason


def test_the_lag_must_have_passed(scene: Scene) -> None:
    timestamp = scene.contexts[scene.due[0]].timestamp
    assert timestamp
    age = scene.cluster.clock.now_ms() - timestamp
    assert "lag" in refusal(scene, lag=age + 1_000_000)
    assert outcomes(scene.release(lag=age - 1)) == dict.fromkeys(scene.due, Outcome.RELEASED)


@pytest.mark.parametrize("lag", [None, -1])
def test_without_a_lag_nothing_goes_by_itself(scene: Scene, lag: int | None) -> None:
    assert refusal(scene, lag=lag) == "no deletion lag is set"
    scene.change(scene.due[0], bookkeeper_deleted=True)
    scene.cluster.wait(1)
    assert outcomes(scene.release(lag=lag)) == {scene.due[0]: Outcome.RELEASED, scene.due[1]: Outcome.REFUSED}


@pytest.mark.parametrize("timestamp", [None, 0, 1 << 60])
def test_an_offload_of_an_unknown_time_stays(scene: Scene, timestamp: int | None) -> None:
    scene.change(scene.due[0], timestamp=timestamp)
    assert "lag" in refusal(scene)


def test_a_clock_that_runs_ahead_shortens_no_lag(scene: Scene) -> None:
    timestamp = scene.contexts[scene.due[0]].timestamp
    assert timestamp
    assert "lag" in refusal(scene, now=timestamp + LAG)  # the metadata store's time when the lease was taken


def test_another_attempt_than_was_proven(scene: Scene) -> None:
    proven = scene.proven(scene.due[0])
    scene.change(scene.due[0], uuid=uuid4())
    assert refusal(scene, proven).endswith("that was not proven")


def test_another_bucket_than_was_proven(scene: Scene) -> None:
    assert refusal(scene, scene.proven(scene.due[0], bucket="empty")).endswith("that was not proven")
    scene.change(scene.due[0], driver_metadata={})
    assert refusal(scene).endswith("in None: that was not proven")


@pytest.mark.parametrize("changes", [{"complete": False}, {"complete": False, "bookkeeper_deleted": True}])
def test_an_offload_that_is_not_complete(scene: Scene, changes: dict[str, bool]) -> None:
    scene.change(scene.due[0], **changes)
    assert refusal(scene) == "its offload is not complete"


def test_a_context_that_was_taken_back(scene: Scene) -> None:
    scene.write(scene.due[0], None)
    assert refusal(scene) == "its offload is not complete"


def test_a_ledger_that_is_not_listed(scene: Scene) -> None:
    scene.list_only(scene.ids[1:])
    assert refusal(scene) == "its topic does not list it any more"


def test_the_last_ledger(scene: Scene) -> None:
    scene.list_only(scene.ids[:1])
    assert refusal(scene).startswith("the last ledger of its topic")


def our_attempt(scene: Scene, ledger_id: int) -> Attempt:
    return Attempt(ledger_id, str(TOPIC), uuid4(), "aws-s3", (("bucket", BUCKET),), 5 << 20, "other", 1)


def test_a_ledger_whose_attempt_is_open(scene: Scene) -> None:
    attempts.begin(scene.store, our_attempt(scene, scene.due[0]))
    assert refusal(scene) == "its offload attempt is still open: no broker may have read it yet"
    scene.cluster.put(attempts.path_of(scene.due[0]), b"?")
    assert refusal(scene).startswith("its offload attempt is still open")


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_a_ledger_that_was_never_closed(scene: Scene, state: LedgerState) -> None:
    scene.cluster.ledger(data_tags(TOPIC), state=state, ledger_id=scene.due[0])
    assert refusal(scene) == "never closed"


@pytest.mark.parametrize("tags", [data_tags(OTHER), cursor_tags(TOPIC, "s"), None])
def test_a_ledger_of_somebody_else(scene: Scene, tags: dict[str, str] | None) -> None:
    scene.cluster.ledger(tags, ledger_id=scene.due[0])
    assert "BookKeeper's z-node" in refusal(scene)


def test_a_ledger_that_bookkeeper_does_not_have(scene: Scene) -> None:
    scene.cluster.remove(scene.cluster.path(scene.due[0]))
    scene.change(scene.due[0], bookkeeper_deleted=True)
    assert refusal(scene).startswith("BookKeeper does not have it")


def test_a_ledger_that_is_not_as_long_as_its_copy(scene: Scene) -> None:
    scene.cluster.ledger(data_tags(TOPIC), entries=[b"x" * 5] * 2, ledger_id=scene.due[0])
    assert refusal(scene) == "BookKeeper says 2 entries of 10 bytes, its offloaded copy has 1 of 10"


def test_a_topic_that_says_something_else_than_its_copy(scene: Scene) -> None:
    ledgers = tuple(replace(item, entries=7) if item.ledger_id == scene.due[0] else item for item in scene.info.ledgers)
    scene.cluster.put(scene.path, managed_ledger.encode(replace(scene.info, ledgers=ledgers)))
    assert refusal(scene) == "its topic says 7 entries of 10 bytes, its offloaded copy has 1 of 10"


@pytest.mark.parametrize(
    ("context", "why"),
    [
        (replace(CONTEXT, holds=frozenset({"acme"})), "legal hold"),
        (replace(CONTEXT, namespaces=frozenset()), "foreign or gone"),
        (replace(CONTEXT, shadow_sources=frozenset({str(TOPIC)})), "source of a shadow topic"),
        (replace(CONTEXT, shared_namespaces=frozenset({"acme/orders"})), "another cluster's too"),
    ],
)
def test_a_topic_that_is_not_touched(scene: Scene, context: Context, why: str) -> None:
    assert why in refusal(scene, context=context)


def test_the_source_of_a_shadow_topic_of_now(scene: Scene) -> None:
    scene.cluster.topic(OTHER, [scene.cluster.ledger(data_tags(OTHER))], shadow_of=str(TOPIC))
    assert refusal(scene) == "source of a shadow topic"


def test_a_shadow_topic(scene: Scene) -> None:
    info = replace(scene.info, properties={"PULSAR.SHADOW_SOURCE": str(OTHER)})
    scene.cluster.put(scene.path, managed_ledger.encode(info))
    assert refusal(scene).startswith("shadow topic of")


def test_a_topic_that_cannot_be_read(scene: Scene) -> None:
    due = scene.proven(scene.due[0])
    scene.cluster.put(scene.path, BROKEN)
    with pytest.raises(Refused):
        scene.release(due)


def test_a_loaded_topic_that_the_policy_does_not_name_gets_no_message() -> None:
    scene = Scene(loaded=True)
    scene.loaded_topics = False
    said = scene.release()
    assert outcomes(said) == dict.fromkeys(scene.due, Outcome.LEFT_TO_BROKER)
    assert (scene.released_ids, scene.waiting, scene.left_pending) == ([], 0, [])
    scene.change(scene.due[0], bookkeeper_deleted=True)
    assert outcomes(scene.release()) == {scene.due[0]: Outcome.RELEASED, scene.due[1]: Outcome.LEFT_TO_BROKER}


def test_no_loaded_topic_without_an_unload_left() -> None:
    scene = Scene(loaded=True)
    scene.limit = 0
    assert outcomes(scene.release()) == dict.fromkeys(scene.due, Outcome.LEFT_TO_BROKER)
    assert scene.released_ids == []
    scene.scan()
    assert {d.outcome for d in scene.delete()} == {Outcome.RETRYING}
    assert scene.left == scene.due


# -------------------------------------------------------------------------------------- what goes wrong while releasing


def test_a_message_that_is_not_acknowledged_leaves_its_ledger_and_no_other(scene: Scene) -> None:
    scene.refused = {scene.due[0]}
    said = scene.release()
    assert outcomes(said) == {scene.due[0]: Outcome.LEFT, scene.due[1]: Outcome.RELEASED}
    assert scene.released_ids == scene.due[1:]
    scene.scan()
    scene.delete()
    assert scene.left == scene.due[:1]


def test_without_any_acknowledgement_nothing_is_written(scene: Scene) -> None:
    scene.refused = set(scene.due)
    assert outcomes(scene.release()) == dict.fromkeys(scene.due, Outcome.LEFT)
    assert (scene.released_ids, [phase for _, phase, _ in scene.rows]) == ([], ["send", "send"])


@pytest.mark.parametrize("error", [Paused, LeaseLost, StoreError, Unavailable, AccessDenied])
@pytest.mark.parametrize("step", ["before record", "before write", "before send", "after record", "after send"])
def test_an_error_at_any_step_deletes_nothing_and_the_next_run_finishes(error: type[LifecycleError], step: str) -> None:
    for nth in (1, 2):
        scene = Scene()
        left = [nth]

        def tick(name: str, left: list[int] = left) -> None:
            left[0] -= name == step
            if name == step and left[0] == 0:
                raise error("told to")

        scene.tick = tick
        with contextlib.suppress(LifecycleError):
            scene.release()
        scene.tick = lambda name: None
        finished(scene)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_write_without_answer_is_judged_by_what_is_there(when: str, loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    scene.on_write(raising(OutcomeUnknown("no answer")), when)
    assert outcomes(scene.release()) == dict.fromkeys(scene.due, Outcome.RELEASED)
    assert (scene.released_ids, scene.broker.memory, scene.left_pending) == (scene.due, None, [])


def test_a_broker_that_gave_it_up_itself_is_left_to_it(scene: Scene) -> None:
    def act() -> None:
        for i in scene.due:
            scene.change(i, bookkeeper_deleted=True)

    scene.on_write(act)
    assert outcomes(scene.release()) == dict.fromkeys(scene.due, Outcome.RELEASED)
    scene.cluster.remove(scene.cluster.path(scene.due[0]))  # and deletes it
    scene.scan()
    assert sorted(d.outcome for d in scene.delete()) == [Outcome.DELETED, Outcome.GONE]


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda scene: scene.list_only(scene.ids[2:]), "does not list it any more"),
        (lambda scene: [scene.write(i, None) for i in scene.due], "not complete"),
        (lambda scene: [scene.change(i, uuid=uuid4()) for i in scene.due], "was not proven"),
        (lambda scene: [scene.change(i, complete=False) for i in scene.due], "not complete"),
        (lambda scene: [scene.change(i, timestamp=1 << 60) for i in scene.due], "lag"),
    ],
)
def test_a_topic_that_changes_between_look_and_write(scene: Scene, act: Callable[[Scene], object], why: str) -> None:
    scene.on_write(lambda: act(scene))
    said = scene.release()
    assert outcomes(said) == dict.fromkeys(scene.due, Outcome.LEFT)
    assert all(why in one.reason for one in said.values())
    scene.scan()
    scene.delete()
    assert scene.left == scene.due


def test_a_ledger_that_becomes_the_last_between_look_and_write(scene: Scene) -> None:
    scene.loaded_topics = True
    scene.on_write(lambda: scene.list_only(scene.due))
    assert outcomes(scene.release()) == {scene.due[0]: Outcome.RELEASED, scene.due[1]: Outcome.LEFT}


def test_a_topic_that_is_loaded_between_look_and_write_is_read_again(scene: Scene) -> None:
    scene.on_write(scene.broker.load)
    assert outcomes(scene.release()) == dict.fromkeys(scene.due, Outcome.LEFT_TO_BROKER)
    assert scene.released_ids == []


def test_an_unload_that_fails_keeps_the_copies_until_it_is_settled() -> None:
    scene = Scene(loaded=True)
    scene.cluster.admin.on_unload = raising(Unavailable("down"))
    said = scene.release()
    assert all("is pending" in one.reason for one in said.values())
    assert (scene.released_ids, scene.left_pending) == (scene.due, [True])
    scene.scan()
    assert {d.outcome for d in scene.delete()} == {Outcome.RETRYING}
    assert scene.left == scene.due
    scene.cluster.admin.on_unload = scene.broker.unload
    scene.release()
    scene.scan()
    scene.delete()
    assert scene.left == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unload_that_another_run_settles_before_our_write_is_owed_all_the_same(when: str) -> None:
    """One that took our lease over does the pending unloads first."""
    scene = Scene(loaded=True)

    def settle() -> None:
        scene.broker.unload(TOPIC)
        control.finish_unload(scene.cluster._store, PendingUnload(TOPIC, True, 0, control.OFFLOAD_LEASE))
        if when == "before":
            scene.broker.load()

    scene.on_write(settle, when)
    scene.cluster.admin.on_unload = raising(Unavailable("down"))
    assert set(outcomes(scene.release()).values()) == {Outcome.RELEASED}
    assert (scene.released_ids, scene.left_pending) == (scene.due, [True])
    scene.scan()
    assert {d.outcome for d in scene.delete()} == {Outcome.RETRYING}


# ---------------------------------------------------------------------------- what happens between release and deletion


def kept(scene: Scene, *outcome: str) -> set[str]:
    """A deletion run that may delete nothing; the reasons."""
    decisions = scene.delete()
    assert decisions
    assert scene.left == scene.due
    assert {d.outcome for d in decisions} <= set(outcome)
    return {d.reason for d in decisions}


OBJECTS = [data_key, index_key]


@pytest.mark.parametrize("key", OBJECTS)
def test_an_object_that_is_lost(scene: Scene, key: Callable[[UUID, int], str]) -> None:
    scene.released()
    for i in scene.due:
        scene.lose(i, key)
    assert all(why.endswith("is not there any more") for why in kept(scene, Outcome.KEPT))
    assert scene.waiting == 0


@pytest.mark.parametrize("key", OBJECTS)
@pytest.mark.parametrize("data", [b"", b"D" * len(DATA), b"I" * len(INDEX)])
def test_an_object_that_is_replaced(scene: Scene, key: Callable[[UUID, int], str], data: bytes) -> None:
    scene.released()
    for i in scene.due:
        scene.off.buckets.put(BUCKET, key(scene.uuids[i], i), data)
    assert all("is another one" in why for why in kept(scene, Outcome.KEPT))


def test_a_copy_that_is_put_back_as_it_was_is_released_by_the_next_run(scene: Scene) -> None:
    scene.released()
    scene.lose(scene.due[0])
    scene.delete()
    assert scene.left == scene.due[:1]
    scene.off.put(scene.uuids[scene.due[0]], scene.due[0], TOPIC)
    scene.release()
    scene.scan()
    scene.delete()
    assert scene.left == []


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Unavailable("503"), Outcome.RETRYING),
        (StoreError("500"), Outcome.RETRYING),
        (AccessDenied("403"), Outcome.WAITING),
    ],
)
def test_a_bucket_that_does_not_answer(scene: Scene, error: LifecycleError, outcome: str) -> None:
    scene.released()

    def fail(*_: object) -> None:
        raise error

    scene.off.store.before = fail
    kept(scene, outcome)
    assert scene.waiting == len(scene.due)


def test_a_bucket_that_is_not_configured_any_more(scene: Scene) -> None:
    scene.released()
    scene.off.store.allowed = ["empty"]
    kept(scene, Outcome.WAITING)


def test_without_an_object_store_it_waits(scene: Scene) -> None:
    scene.released()
    decisions = scene.delete(lambda ports: replace(ports, objects=None))
    assert settled(decisions) == {
        (Outcome.WAITING, "object_store is not set: whether its offloaded copy is there cannot be known")
    }
    assert scene.left == scene.due


def test_a_lease_that_is_lost_while_objects_are_looked_at(scene: Scene) -> None:
    scene.released()

    def dead(name: str) -> None:
        if name == "before head_many":
            scene.cluster.put(control.LEASE, b"another's")

    scene.tick = dead
    with pytest.raises(LeaseLost):
        scene.delete()
    assert scene.left == scene.due


CHANGES: dict[str, Callable[[Scene, int], object]] = {
    "another attempt": lambda scene, i: scene.change(i, uuid=uuid4()),
    "another bucket": lambda scene, i: scene.change(i, driver_metadata={"bucket": "empty"}),
    "no bucket": lambda scene, i: scene.change(i, driver_metadata={}),
    "its context is cleared": lambda scene, i: scene.write(i, None),
    "not complete": lambda scene, i: scene.change(i, complete=False),
    "not released": lambda scene, i: scene.change(i, bookkeeper_deleted=False),
    "the last": lambda scene, i: scene.list_only(scene.due[:1] if i == scene.due[0] else [i]),
    "an unload is pending": lambda scene, i: control.note_unload(
        scene.store, PendingUnload(TOPIC, True, 1, control.LEASE)
    ),
    "an unload may be pending": lambda scene, i: control.note_unload(
        scene.store, PendingUnload(TOPIC, False, 1, control.LEASE)
    ),
    "it leaves its topic": lambda scene, i: scene.list_only(scene.ids[2:]),
    "its topic cannot be read": lambda scene, i: scene.cluster.put(scene.path, BROKEN),
    "its topic is gone": lambda scene, i: (
        scene.path in scene.cluster.zookeeper._nodes and scene.cluster.remove(scene.path)
    ),
}


MOMENTS = ("before the scan", "before the run", "amid the run")
EARLIEST = {"an unload is pending": 2, "an unload may be pending": 2, "its topic cannot be read": 1}
"""Moments from which on a change counts: a run finishes unloads first, and a scan that cannot read a topic covers
nothing."""


@pytest.mark.parametrize(("change", "when"), [(c, m) for c in CHANGES for m in MOMENTS[EARLIEST.get(c, 0) :]])
def test_what_its_topic_says_by_then(scene: Scene, change: str, when: str) -> None:
    def then(moment: str) -> None:
        if moment == when:
            CHANGES[change](scene, scene.due[0])

    def amid(ports: Ports) -> Ports:
        then("amid the run")
        return ports

    scene.release()
    then("before the scan")
    scene.scan()
    then("before the run")
    scene.delete(amid)
    assert scene.due[0] in scene.left


def test_its_topic_is_deleted_and_made_anew(scene: Scene) -> None:
    scene.released()
    scene.cluster.remove(scene.path)
    scene.cluster.topic(TOPIC, [scene.cluster.ledger(data_tags(TOPIC))])
    assert kept(scene, Outcome.RETRYING) == {"its topic does not list it any more: the next scan decides"}


def test_another_topic_lists_it_by_the_newest_scan(scene: Scene) -> None:
    scene.release()
    scene.cluster.topic(OTHER, scene.due)
    scene.scan()
    assert all("something refers to it" in why for why in kept(scene, Outcome.RETRYING))


@pytest.mark.parametrize("policy", [Policy(holds=frozenset({"acme/orders"})), Policy(holds=frozenset({str(TOPIC)}))])
def test_a_hold_that_is_new(scene: Scene, policy: Policy) -> None:
    scene.released()
    scene.off.policy = policy
    assert kept(scene, Outcome.KEPT) == {"kept: legal hold"}


def test_a_namespace_that_is_foreign_by_then(scene: Scene) -> None:
    scene.released()
    assert scene.off.now
    scene.off.now = replace(scene.off.now, context=replace(scene.off.now.context, namespaces=frozenset()))
    assert all("foreign or gone" in why for why in kept(scene, Outcome.KEPT))


def test_a_shadow_topic_that_is_new(scene: Scene) -> None:
    scene.release()
    scene.cluster.topic(OTHER, [scene.cluster.ledger(data_tags(OTHER))], shadow_of=str(TOPIC))
    scene.scan()
    assert kept(scene, Outcome.KEPT) == {"kept: source of a shadow topic"}


def test_an_under_replicated_ledger_is_retried(scene: Scene) -> None:
    scene.released()
    assert scene.off.now
    scene.off.now = replace(scene.off.now, context=replace(scene.off.now.context, under_replicated=BitMap64(scene.due)))
    assert kept(scene, Outcome.RETRYING) == {"under-replicated"}


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_a_ledger_that_is_open_again(scene: Scene, state: LedgerState) -> None:
    scene.released()
    for i in scene.due:
        newest = scene.cluster._last_id
        scene.cluster.ledger(data_tags(TOPIC), state=state, ledger_id=i)
        scene.cluster._last_id = newest
    assert kept(scene, Outcome.KEPT) == {"offloaded, and never closed in BookKeeper"}


def issued_again(scene: Scene, ledger_id: int) -> None:
    """Another ledger with this id, of the same topic, as after a restored metadata store."""
    newest = scene.cluster._last_id
    scene.cluster.remove(scene.cluster.path(ledger_id))
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=ledger_id)
    scene.cluster._last_id = newest


def test_an_id_that_was_issued_again(scene: Scene) -> None:
    scene.released()
    for i in scene.due:
        issued_again(scene, i)
    assert all(why.startswith("another ledger has this id now") for why in kept(scene, Outcome.REFUSED))
    for message in (forged(i) for i in scene.due):  # without our extras
        scene.off.send(message)
    assert all("offload_leftover" in why for why in kept(scene, Outcome.KEPT))


def forged(ledger_id: int, topic: str = str(TOPIC)) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(topic_name=topic, component=LedgerComponent.MANAGED_LEDGER, ledger_id=ledger_id)


def test_a_forged_message_about_what_we_never_released(scene: Scene) -> None:
    for i in scene.due:
        scene.change(i, bookkeeper_deleted=True)
    scene.cluster.wait(1)
    scene.off.send(*(forged(i) for i in scene.due))
    assert all("offload_leftover" in why for why in kept(scene, Outcome.KEPT))


def test_a_forged_message_about_what_is_about_to_be_released(scene: Scene) -> None:
    """Marked, and never released: the process died between the two."""

    def die(name: str) -> None:
        if name == "before write" and any(outcome == Outcome.MARKED for _, _, outcome in scene.rows):
            raise Crash

    scene.tick = die
    with pytest.raises(Crash):
        scene.release()
    scene.tick = lambda name: None
    scene.cluster.wait(2)
    scene.off.send(*(forged(i) for i in scene.due))
    kept(scene, Outcome.KEPT, Outcome.RETRYING)


def test_a_forged_message_that_names_another_topic(scene: Scene) -> None:
    scene.release()
    scene.cluster.deletion_topics.waiting.clear()
    scene.cluster.topic(OTHER, [scene.cluster.ledger(data_tags(OTHER))])
    scene.off.send(*(forged(i, str(OTHER)) for i in scene.due))
    assert all("the ledger is of" in why for why in kept(scene, Outcome.REFUSED))


def test_a_rows_of_ours_that_cannot_be_read_proves_nothing(scene: Scene) -> None:
    scene.released()
    rows = scene.cluster.journal.rows
    rows[:] = [replace(row, detail="{}") if row.outcome == Outcome.MARKED else row for row in rows]
    assert all("offload_leftover" in why for why in kept(scene, Outcome.KEPT))


def test_a_release_of_another_cluster_proves_nothing(scene: Scene) -> None:
    scene.released()
    rows = scene.cluster.journal.rows
    rows[:] = [replace(row, cluster="another") for row in rows]
    assert all("offload_leftover" in why for why in kept(scene, Outcome.KEPT))


def test_a_deletion_that_was_undone_needs_another_proof(scene: Scene) -> None:
    scene.released()
    scene.delete()
    for node in scene.cluster.journal.nodes:
        scene.cluster.put(node.path, node.data)
    scene.cluster.wait(2)
    scene.off.send(*(forged(i) for i in scene.due))
    assert all("offload_leftover" in why for why in kept(scene, Outcome.KEPT))
    scene.lose(scene.due[0])
    scene.release(scene.proven(scene.due[1]))
    scene.scan()
    scene.delete()
    assert scene.left == scene.due[:1]


def test_a_scan_from_before_the_message_lets_it_wait(scene: Scene) -> None:
    scene.off.rescan()
    scene.release()
    scene.scan()
    scene.release()
    assert {d.outcome for d in scene.delete()} == {Outcome.DELETED, Outcome.WAITING}


# ------------------------------------------------------------------------------------------------ a crash at every call


def crashes(act: Callable[[Scene], object], make: Callable[[], Scene]) -> Iterator[Scene]:
    """The scene after an act that was killed before each of its calls in turn, so after the one before it."""

    def watched(scene: Scene, tell: Tell) -> None:
        scene.tick = before_calls(tell)
        act(scene)

    for scene, _ in killed_at_every_step(make, watched):
        scene.tick = lambda step: None
        scene.law()
        scene.cluster.wait(1)
        yield scene


def finished(scene: Scene) -> None:
    """Whatever came before: runs of the usual kinds end it."""
    scene.scan()
    scene.delete()
    scene.law()
    for _ in range(3):
        if scene.left:
            scene.release()
        scene.scan()
        scene.delete()
    assert scene.left == []
    assert scene.released_ids == scene.due
    assert (scene.waiting, scene.left_pending) == (0, [])
    scene.law()


@pytest.mark.parametrize("loaded", [False, True])
def test_a_release_that_is_killed_anywhere_is_finished_by_the_next_runs(loaded: bool) -> None:
    count = 0
    for scene in crashes(Scene.release, lambda: Scene(loaded=loaded)):
        count += 1
        finished(scene)
    assert count > 25


@pytest.mark.parametrize("loaded", [False, True])
def test_a_deletion_that_is_killed_anywhere_is_finished_by_the_next_runs(loaded: bool) -> None:
    def make() -> Scene:
        scene = Scene(loaded=loaded)
        scene.released()
        return scene

    count = 0
    for scene in crashes(Scene.delete, make):
        count += 1
        finished(scene)
    assert count > 10


@pytest.mark.parametrize("key", OBJECTS)
def test_objects_that_are_lost_at_any_moment_before_the_last_look(key: Callable[[UUID, int], str]) -> None:
    """After the last look nothing could tell: an object store has no transaction with ZooKeeper."""
    for at in range(1_000):
        scene = Scene()
        scene.released()
        calls: list[str] = []

        def tick(name: str, scene: Scene = scene, calls: list[str] = calls, at: int = at) -> None:
            if len(calls) == at:
                scene.lose(scene.due[0], key)
            calls.append(name)

        scene.tick = tick
        with contextlib.suppress(AssertionError):
            scene.delete()
        if at > calls.index("before head_many"):
            assert at > 10
            return
        assert scene.due[0] in scene.left
    raise AssertionError("it was never looked at")


# -------------------------------------------------------------------------------------------------- that the tests bite


def test_the_law_bites_where_copies_are_not_looked_at(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "look_at_copies", lambda run, ports, live: None)
    scene.released()
    scene.lose(scene.due[0])
    with pytest.raises(AssertionError):
        scene.delete()


def test_the_law_bites_where_the_topic_is_not_asked(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_check, "still_used", lambda *given: "")
    scene.released()
    scene.change(scene.due[0], bookkeeper_deleted=False)
    with pytest.raises(AssertionError):
        scene.delete()


def test_the_law_bites_where_an_owed_unload_is_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(loaded=True)
    scene.cluster.admin.on_unload = raising(Unavailable("down"))
    scene.release()
    scene.scan()
    monkeypatch.setattr(control, "has_pending_unload", lambda *given: False)
    with pytest.raises(AssertionError):
        scene.delete()
