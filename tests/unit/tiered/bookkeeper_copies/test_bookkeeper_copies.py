"""Deleting copies in BookKeeper: what brokers can read, the whole way, what goes wrong meanwhile."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest

from pulsar_lifecycle.errors import (
    AccessDenied,
    Failed,
    LeaseLost,
    LifecycleError,
    OutcomeUnknown,
    Paused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.journal.offloads import copy_deletions
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.tiered.read_check import ASKED, ReadCheck
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome, Waiting
from tests.kit.builders import CHUNK
from tests.kit.crash import raising
from tests.kit.scenes.tiered.copy_deletion_scene import SITE, finished, outcomes_and_codes
from tests.kit.scenes.tiered.copy_deletion_scene import CopyDeletionScene as Scene
from tests.kit.scenes.topic_scene import TOPIC, outcomes
from tests.kit.simulated.offloaded import BUCKET, DATA


@pytest.fixture
def scene() -> Scene:
    return Scene()


# ------------------------------------------------------------------------------------------------ what brokers can read


def test_what_no_broker_can_read_stays_in_bookkeeper() -> None:
    scene = Scene()
    asked: list[int] = []

    def read(topic: Topic, position: Position) -> None:
        asked.append(position.ledger_id)
        raise Failed("500 UnsupportedOperationException: no offloader")

    scene.cluster.admin.on_read = read
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    said = scene.begin_deletions()
    assert {one.why.code for one in said.values()} == {Code.READ_CHECK_FAILED}
    assert (asked, scene.deleted_ids, scene.waiting) == (scene.due[:1], [], 0)
    assert [outcome for _, phase, outcome in scene.rows if phase == "bookkeeper-copy-deletion"] == ["failed", "failed"]


def test_a_topic_that_is_loaded_to_be_read_is_written_by_the_same_run() -> None:
    """The next one may come when what its broker has shown does not count any more."""
    scene = Scene()
    scene.cluster.admin.on_read = lambda topic, position: scene.broker.load() if not scene.broker.memory else None
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}
    assert (scene.deleted_ids, scene.broker.memory, scene.left_pending) == (scene.due, None, [])


@pytest.mark.parametrize("changed", [{"serviceEndpoint": "https://old"}, {"serviceEndpoint": "", "region": "old"}])
def test_what_was_proven_is_where_brokers_read(scene: Scene, changed: dict[str, str]) -> None:
    """A bucket of the same name elsewhere, mirrored, is not what they read."""
    for ledger_id in scene.due:
        metadata = scene.contexts[ledger_id].driver_metadata
        scene.change(ledger_id, driver_metadata={**metadata, **changed})
    scene.cluster.wait(1)
    said = scene.begin_deletions()
    assert set(outcomes(said).values()) == {Outcome.REFUSED}
    assert {one.why.code for one in said.values()} == {Code.COPY_DIFFERS}
    assert scene.deleted_ids == []


def test_what_brokers_could_not_read_when_last_asked_stays_in_bookkeeper(scene: Scene) -> None:
    scene.begin_and_scan()
    scene.off.failed_locations = frozenset({SITE})
    for n in range(20):  # it is no message's fault: none becomes a dead letter, however long it lasts
        found = scene.delete(run_id=f"run-{n}")
        assert {(d.outcome, d.waiting) for d in found} == {(Outcome.WAITING, Waiting.UNREAD_LOCATION)}
        assert {d.code for d in found} == {Waiting.UNREAD_LOCATION}
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
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}
    assert asked == scene.due[1:]


def test_what_rest_cannot_show_at_all_stays(scene: Scene) -> None:
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    for ledger_id in scene.due:
        scene.cluster.reader.payloads[ledger_id] = [CHUNK]
    said = scene.begin_deletions()
    assert set(outcomes(said).values()) == {"failed"}
    assert {one.why.code for one in said.values()} == {Code.LOCATION_UNREAD}


def test_other_ledgers_are_asked_for_in_the_next_run() -> None:
    """More of them than one run asks for can never be shown."""
    scene = Scene(due=ASKED + 3)
    scene.cluster.admin.on_read = lambda topic, position: None if scene.broker.memory else scene.broker.load()
    for ledger_id in scene.due[:ASKED]:
        scene.cluster.reader.payloads[ledger_id] = [CHUNK]
    begin = scene.cluster.clock.now_ms() % len(scene.due)
    scene.cluster.clock.sleep((len(scene.due) - begin) / 1000)  # the next run begins with the first of them
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    said = scene.begin_deletions()
    assert set(outcomes(said).values()) == {"failed"}
    assert said[scene.due[-1]].why.code is Code.LOCATION_UNREAD
    assert f"of ledger {scene.due[ASKED - 1]}" in said[scene.due[-1]].reason

    scene.cluster.clock.sleep(0.001)
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}


@pytest.mark.parametrize("spoil", ["reverted", "offloaded anew", "the last"])
def test_a_ledger_that_its_broker_may_read_in_bookkeeper_is_not_asked_for(spoil: str) -> None:
    """What it reads would stand for all that is at the location, and none of it would be read."""
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
    assert set(outcomes(scene.begin_deletions(*proven)).values()) == {Outcome.REFUSED}
    assert (asked, scene.read_check.reads(SITE, ""), scene.deleted_ids) == ([], False, [])


# -------------------------------------------------------------------------------------------------------- the whole way


@pytest.mark.parametrize("loaded", [False, True])
def test_what_was_proven_leaves_bookkeeper_and_nothing_else(loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    before, keys = scene.cluster.ledger_ids(), scene.off.buckets.keys(BUCKET)
    scene.begin_and_scan()
    assert scene.deleted_ids == scene.due
    assert (scene.broker.memory, scene.left_pending) == (None, [])
    assert outcomes_and_codes(scene.delete()) == {(Outcome.DELETED, Code.OFFLOADED_WHOLE)}
    assert before - scene.cluster.ledger_ids() == set(scene.due)
    assert scene.off.buckets.keys(BUCKET) == keys
    assert {n.ledger_id for n in scene.cluster.journal.nodes} == set(scene.due)
    assert (scene.waiting, copy_deletions(scene.cluster.journal, "simulated")) == (0, {})


def test_the_journal_proves_it(scene: Scene) -> None:
    scene.begin_and_scan()
    scene.delete()
    first = scene.due[0]
    said = [(phase, outcome) for i, phase, outcome in scene.rows if i == first]
    assert said == [
        ("send", "sent"),
        ("bookkeeper-copy-deletion", Outcome.MARKED),
        ("bookkeeper-copy-deletion", Outcome.BOOKKEEPER_DELETED),
        ("delete", Outcome.DELETED),
    ]
    # its topic lists the ledger still
    assert {row.code for row in scene.cluster.journal.rows if row.phase == "send"} == {Code.PLANNED}
    marked, deleted = (
        next(row for row in scene.cluster.journal.rows if (row.ledger_id, row.outcome) == (first, outcome))
        for outcome in (Outcome.MARKED, Outcome.DELETED)
    )
    proof = json.loads(marked.detail)
    assert (proof["uuid"], proof["bucket"], proof["data_size"]) == (str(scene.uuids[first]), BUCKET, len(DATA))
    assert json.loads(deleted.detail)["offloaded"] == {"uuid": str(scene.uuids[first]), "bucket": BUCKET}


def test_a_second_run_is_harmless(scene: Scene) -> None:
    scene.begin_deletions()
    before = scene.cluster.zookeeper.stat(scene.path)
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}
    assert scene.cluster.zookeeper.stat(scene.path) == before
    scene.scan()
    assert sorted(d.outcome for d in scene.delete()) == [Outcome.DELETED, Outcome.DELETED, Outcome.GONE, Outcome.GONE]


# ------------------------------------------------------------------------------------------- what goes wrong meanwhile


def test_a_message_that_is_not_acknowledged_leaves_its_ledger_and_no_other(scene: Scene) -> None:
    scene.refused = {scene.due[0]}
    said = scene.begin_deletions()
    assert outcomes(said) == {scene.due[0]: Outcome.LEFT, scene.due[1]: Outcome.BOOKKEEPER_DELETED}
    assert scene.deleted_ids == scene.due[1:]
    scene.scan()
    scene.delete()
    assert scene.left == scene.due[:1]


def test_without_any_acknowledgement_nothing_is_written(scene: Scene) -> None:
    scene.refused = set(scene.due)
    assert outcomes(scene.begin_deletions()) == dict.fromkeys(scene.due, Outcome.LEFT)
    assert (scene.deleted_ids, [phase for _, phase, _ in scene.rows]) == ([], ["send", "send"])


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
            scene.begin_deletions()
        scene.tick = lambda name: None
        finished(scene)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_write_without_answer_is_judged_by_what_is_there(when: str, loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    scene.on_write(raising(OutcomeUnknown("no answer")), when)
    assert outcomes(scene.begin_deletions()) == dict.fromkeys(scene.due, Outcome.BOOKKEEPER_DELETED)
    assert (scene.deleted_ids, scene.broker.memory, scene.left_pending) == (scene.due, None, [])


def test_a_broker_that_gave_it_up_itself_is_left_to_it(scene: Scene) -> None:
    def act() -> None:
        for i in scene.due:
            scene.change(i, bookkeeper_deleted=True)

    scene.on_write(act)
    assert outcomes(scene.begin_deletions()) == dict.fromkeys(scene.due, Outcome.BOOKKEEPER_DELETED)
    scene.cluster.remove(scene.cluster.path(scene.due[0]))  # and deletes it
    scene.scan()
    assert sorted(d.outcome for d in scene.delete()) == [Outcome.DELETED, Outcome.GONE]


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda scene: scene.list_only(scene.ids[2:]), Code.DELISTED),
        (lambda scene: [scene.write(i, None) for i in scene.due], Code.NOT_OFFLOADED),
        (lambda scene: [scene.change(i, uuid=uuid4()) for i in scene.due], Code.COPY_DIFFERS),
        (lambda scene: [scene.change(i, complete=False) for i in scene.due], Code.NOT_OFFLOADED),
        (lambda scene: [scene.change(i, timestamp=1 << 60) for i in scene.due], Code.LAG),
    ],
)
def test_a_topic_that_changes_between_look_and_write(scene: Scene, act: Callable[[Scene], object], code: Code) -> None:
    scene.on_write(lambda: act(scene))
    said = scene.begin_deletions()
    assert outcomes(said) == dict.fromkeys(scene.due, Outcome.LEFT)
    assert {one.why.code for one in said.values()} == {code}
    scene.scan()
    scene.delete()
    assert scene.left == scene.due


def test_a_ledger_that_becomes_the_last_between_look_and_write(scene: Scene) -> None:
    scene.loaded_topics = True
    scene.on_write(lambda: scene.list_only(scene.due))
    assert outcomes(scene.begin_deletions()) == {scene.due[0]: Outcome.BOOKKEEPER_DELETED, scene.due[1]: Outcome.LEFT}


def test_a_topic_that_is_loaded_between_look_and_write_is_read_again(scene: Scene) -> None:
    scene.on_write(scene.broker.load)
    assert outcomes(scene.begin_deletions()) == dict.fromkeys(scene.due, Outcome.LEFT_TO_BROKER)
    assert scene.deleted_ids == []


def test_an_unload_that_fails_keeps_the_copies_until_it_is_done() -> None:
    scene = Scene(loaded=True)
    scene.cluster.admin.on_unload = raising(Unavailable("down"))
    said = scene.begin_deletions()
    assert {one.why.code for one in said.values()} == {Code.COMMITTED}
    assert (scene.deleted_ids, scene.left_pending) == (scene.due, [True])
    scene.scan()
    assert {d.outcome for d in scene.delete()} == {Outcome.RETRYING}
    assert scene.left == scene.due
    scene.cluster.admin.on_unload = scene.broker.unload
    scene.begin_deletions()
    scene.scan()
    scene.delete()
    assert scene.left == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unload_that_another_run_finishes_before_our_write_is_pending_all_the_same(when: str) -> None:
    """One that took our lease over does the pending unloads first."""
    scene = Scene(loaded=True)

    def finish() -> None:
        scene.broker.unload(TOPIC)
        control.finish_unload(scene.cluster._store, PendingUnload(TOPIC, True, 0, control.OFFLOAD_LEASE))
        if when == "before":
            scene.broker.load()

    scene.on_write(finish, when)
    scene.cluster.admin.on_unload = raising(Unavailable("down"))
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}
    assert (scene.deleted_ids, scene.left_pending) == (scene.due, [True])
    scene.scan()
    assert {d.outcome for d in scene.delete()} == {Outcome.RETRYING}
