"""Trimming beside brokers that write too, writes without answer, and a run that is killed at every step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from uuid import UUID

import pytest

from pulsar_lifecycle.errors import (
    LeaseLost,
    OutcomeUnknown,
    Paused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats.deletion_message import decode_deletion_message
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.topics.write import TRIES
from pulsar_lifecycle.trimming import trim as trimming_trim
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import raising
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.topic_scene import OTHER, TOPIC, outcomes
from tests.kit.scenes.trim_scene import Sending, broker_rolls_over, killed
from tests.kit.scenes.trim_scene import TrimScene as Scene
from tests.kit.simulated.cluster import data_tags


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_broker_that_was_faster_gets_its_topic(scene: Scene) -> None:
    scene.on_write(lambda: broker_rolls_over(scene))
    assert set(outcomes(scene.trim()).values()) == {Outcome.LEFT}
    assert scene.listed == scene.ids
    assert scene.rows[Outcome.LEFT] == scene.ids[:3]
    assert scene.left_pending == []
    assert scene.cluster.admin.touched == []


def test_a_loaded_topic_that_was_written_meanwhile_is_judged_again(scene: Scene) -> None:
    scene.load()
    scene.on_write(lambda: broker_rolls_over(scene))
    assert set(outcomes(scene.trim(loaded_topics=True)).values()) == {Outcome.REMOVED}
    assert scene.listed == scene.ids[3:]
    assert len(scene.sent) == 3  # no message twice
    assert scene.rows == {Outcome.MARKED: scene.ids[:3], Outcome.REMOVED: scene.ids[:3]}


def test_a_ledger_that_was_offloaded_anew_meanwhile_is_sent_as_that(scene: Scene) -> None:
    scene.load()
    first, again = (OffloadContext(UUID(int=n), True, False, 1, "aws-s3", {"bucket": "b"}) for n in (9, 10))
    scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[0]: first})
    scene.on_write(lambda: scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[0]: again}))
    assert set(outcomes(scene.trim(0, loaded_topics=True)).values()) == {Outcome.REMOVED}
    raws = [raw for _, _, raw, _ in scene.cluster.deletion_topics.waiting.values()]
    contexts = [info.offload_context for info in map(decode_deletion_message, raws) if info.offload_context]
    assert [context.lsb for context in contexts] == [9, 10]
    assert marked_copies(scene, Outcome.MARKED) == [str(UUID(int=9)), str(UUID(int=10))]


def test_a_ledger_that_is_offloaded_while_it_is_trimmed_is_marked_with_its_copy(scene: Scene) -> None:
    scene.load()
    copy = OffloadContext(UUID(int=9), True, False, 1, "aws-s3", {"bucket": "b"})
    scene.on_write(lambda: scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[0]: copy}))
    assert set(outcomes(scene.trim(0, loaded_topics=True)).values()) == {Outcome.REMOVED}
    assert marked_copies(scene, Outcome.MARKED) == ["", str(copy.uuid)]


def marked_copies(scene: Scene, outcome: str) -> list[str]:
    return [json.loads(row.detail)["uuid"] for row in scene.journalled("mark") if row.outcome == outcome]


def test_a_topic_that_never_comes_to_rest_is_left(scene: Scene) -> None:
    scene.load()
    scene.on_write(lambda: broker_rolls_over(scene), times=99)
    found = scene.trim(loaded_topics=True)
    assert set(outcomes(found).values()) == {Outcome.LEFT}
    assert scene.listed == scene.ids
    assert scene.left_pending == []


def test_a_broker_that_trimmed_the_same_ledgers(scene: Scene) -> None:
    scene.load()
    scene.on_write(lambda: scene.cluster.topic(TOPIC, scene.ids[3:]))
    assert set(outcomes(scene.trim(loaded_topics=True)).values()) == {Outcome.REMOVED}
    assert scene.left_pending == []
    assert scene.cluster.admin.touched == []  # the write that was lost needs no unload


def test_a_broker_that_trimmed_some_of_them(scene: Scene) -> None:
    scene.load()
    scene.on_write(lambda: scene.cluster.topic(TOPIC, scene.ids[1:]))
    assert outcomes(scene.trim(loaded_topics=True)) == dict.fromkeys(scene.ids[:3], Outcome.REMOVED)
    assert scene.listed == scene.ids[3:]


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_write_without_answer_is_judged_by_what_is_there(scene: Scene, when: str, loaded: bool) -> None:
    if loaded:
        scene.load()
    scene.on_write(raising(OutcomeUnknown("connection lost")), when)
    assert set(outcomes(scene.trim(loaded_topics=loaded)).values()) == {Outcome.REMOVED}
    assert scene.listed == scene.ids[3:]
    assert len(scene.sent) == 3
    assert scene.cluster.admin.touched == [TOPIC] * loaded
    assert scene.left_pending == []
    assert scene.rows == {Outcome.MARKED: scene.ids[:3], Outcome.REMOVED: scene.ids[:3]}


def test_a_write_that_went_through_before_a_broker_wrote_too(scene: Scene) -> None:
    """Its answer got lost, and a broker that loaded the new list added a ledger: unload all the same."""
    scene.load()

    def rolled_over() -> None:
        broker_rolls_over(scene)
        raise OutcomeUnknown("connection lost")

    scene.on_write(rolled_over, "after")
    assert set(outcomes(scene.trim(loaded_topics=True)).values()) == {Outcome.REMOVED}
    assert scene.listed == scene.ids[3:]
    assert scene.cluster.admin.touched == [TOPIC]


def test_a_topic_that_is_deleted_before_the_write(scene: Scene) -> None:
    scene.on_write(lambda: scene.cluster.remove(scene.path))
    found = scene.trim()
    assert set(outcomes(found).values()) == {Outcome.LEFT}
    assert found[scene.ids[0]].why.code is Code.TOPIC_GONE
    assert scene.rows[Outcome.LEFT] == scene.ids[:3]


@pytest.mark.parametrize("moment", range(70))
def test_a_topic_that_is_created_again_at_any_moment_is_left_alone_though_a_ledger_survives(
    scene: Scene, moment: int
) -> None:
    made: list[int] = []
    seen = [0]

    def look(operation: Operation) -> None:
        seen[0] += 1
        if seen[0] == moment + 1 and scene.listed == scene.ids:
            for ledger_id in scene.ids[1:]:
                scene.cluster.remove(scene.cluster.path(ledger_id))
            scene.cluster.remove(f"{scene.path}/s")
            scene.cluster.remove(scene.path)
            made.append(scene.cluster.ledger(data_tags(TOPIC)))
            scene.cluster.topic(TOPIC, made)

    scene.store.before = look
    scene.trim()
    assert scene.listed == (made or scene.ids[3:])


@pytest.mark.parametrize("error", [Unavailable("no answer"), LeaseLost("it is another's"), StoreError("no")])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_journal_has_the_last_word_on_what_an_error_interrupted(scene: Scene, when: str, error: Exception) -> None:
    scene.on_write(raising(error), when)
    with pytest.raises(LeaseLost) if isinstance(error, LeaseLost) else nullcontext():
        assert Outcome.FAILED in outcomes(scene.trim()).values()
    assert {row.code for row in scene.journalled("mark") if row.outcome == Outcome.MARKED} == {Code.ABOUT_TO}
    assert scene.rows == {
        Outcome.MARKED: scene.ids[:3],
        (Outcome.LEFT if when == "before" else Outcome.REMOVED): scene.ids[:3],
    }
    assert scene.listed == scene.ids[0 if when == "before" else 3 :]
    assert all(str(error) in row.reason for row in scene.journalled("mark") if row.outcome != Outcome.MARKED)


def test_a_topic_that_cannot_be_read_after_an_error_stays_marked(scene: Scene) -> None:
    def fails() -> None:
        scene.cluster.zookeeper.unreadable.add(scene.path)
        raise Unavailable("no answer")

    scene.on_write(fails)
    assert scene.trim()[-1].outcome == Outcome.FAILED
    assert scene.rows == {Outcome.MARKED: scene.ids[:3]}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("unread", ["cursor", "topic"])
def test_a_write_without_answer_and_a_topic_that_cannot_be_judged_again(scene: Scene, when: str, unread: str) -> None:
    """Nobody says that a ledger stayed on the list who has not seen it there."""

    def lost() -> None:
        scene.cluster.zookeeper.unreadable.add(scene.path if unread == "topic" else f"{scene.path}/s")
        raise OutcomeUnknown("connection lost")

    scene.on_write(lost, when)
    assert scene.trim()[-1].why.code is (Code.TOPIC_UNREAD if unread == "topic" else Code.CURSORS_UNREAD)
    there = {Outcome.LEFT if when == "before" else Outcome.REMOVED: scene.ids[:3]}
    assert scene.rows == {Outcome.MARKED: scene.ids[:3]} | (there if unread == "cursor" else {})


@pytest.mark.parametrize("loaded", [False, True])
def test_writes_that_never_get_an_answer(scene: Scene, loaded: bool) -> None:
    """The last one went through: a mark must not end because there were too many."""
    if loaded:
        scene.load()
    tries = [0]

    def lost() -> None:
        tries[0] += 1
        if tries[0] < TRIES:
            raise OutcomeUnknown("connection lost")

    def lost_at_last() -> None:
        if tries[0] == TRIES:
            raise OutcomeUnknown("connection lost")

    scene.on_write(lost, "before", times=TRIES)
    scene.on_write(lost_at_last, "after", times=TRIES)
    assert scene.trim(loaded_topics=loaded)[-1].why.code is Code.CHANGED_MEANWHILE
    assert scene.listed == scene.ids[3:]
    assert scene.rows == {Outcome.MARKED: scene.ids[:3], Outcome.REMOVED: scene.ids[:3]}


@pytest.mark.parametrize("name", ["s", "new"])
def test_a_cursor_that_moves_back_or_turns_up_while_we_send(scene: Scene, name: str) -> None:
    queue = Sending(scene.queue, lambda: scene.cursor(name, Position(scene.ids[1], -1)))
    found = scene.trim(ports=replace(scene.ports(), queue=queue))
    assert scene.listed == scene.ids[1:]
    assert outcomes(found) == {
        scene.ids[0]: Outcome.REMOVED,
        scene.ids[1]: Outcome.REFUSED,
        scene.ids[2]: Outcome.REFUSED,
    }
    assert scene.rows[Outcome.REMOVED] == scene.ids[:1]


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("name", ["s", "new"])
def test_a_cursor_that_moves_back_or_turns_up_right_before_the_write(scene: Scene, name: str, loaded: bool) -> None:
    if loaded:
        scene.load()

    def hook(operation: Operation) -> None:
        if operation.name == "create" and operation.paths[0].startswith(control.PENDING_UNLOADS[control.LEASE]):
            scene.cursor(name, Position(scene.ids[1], -1))

    scene.store.after = hook
    found = scene.trim(loaded_topics=loaded)
    assert scene.listed == scene.ids[1:]
    assert outcomes(found) == {scene.ids[0]: Outcome.REMOVED, scene.ids[1]: Outcome.LEFT, scene.ids[2]: Outcome.LEFT}
    assert scene.rows == {Outcome.MARKED: scene.ids[:3], Outcome.REMOVED: scene.ids[:1], Outcome.LEFT: scene.ids[1:3]}
    assert scene.left_pending == []


def test_a_cursor_that_cannot_be_read_right_before_the_write(scene: Scene) -> None:
    def hook(operation: Operation) -> None:
        if operation.name == "create" and operation.paths[0].startswith(control.PENDING_UNLOADS[control.LEASE]):
            scene.cluster.zookeeper.unreadable.add(f"{scene.path}/s")

    scene.store.after = hook
    assert set(outcomes(scene.trim()).values()) == {Outcome.LEFT}
    assert scene.listed == scene.ids
    assert scene.left_pending == []


@pytest.mark.parametrize("stop", ["pause", "lease"])
def test_pause_and_a_lost_lease_stop_before_the_write(scene: Scene, stop: str) -> None:
    def act() -> None:
        if stop == "pause":
            control.pause(scene.cluster.open_store(), "why")
        else:
            scene.cluster.open_store().write(control.LEASE, b"{}", -1)

    queue = Sending(scene.queue, act)
    with pytest.raises(Paused if stop == "pause" else LeaseLost):
        scene.trim(ports=replace(scene.ports(), queue=queue))
    assert scene.listed == scene.ids


@pytest.mark.parametrize("when", ["between", "watching"])
def test_a_run_that_is_paused_has_reported_what_it_did(scene: Scene, when: str) -> None:
    told: list[LedgerOutcome] = []

    def report(found: Sequence[LedgerOutcome]) -> None:
        told.extend(found)
        if when == "between":
            control.pause(scene.cluster.open_store(), "why")

    def sleep(seconds: float) -> None:
        control.pause(scene.cluster.open_store(), "why")

    scene.cluster.clock.sleep = sleep  # type: ignore[method-assign]
    orders = [TrimOrder(TOPIC, up_to=scene.ids[2]), TrimOrder(OTHER, up_to=1)]
    with pytest.raises(Paused):
        scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, orders, report))
    assert {one.ledger_id for one in told if one.outcome == Outcome.REMOVED} == set(scene.ids[:3])


def test_a_journal_that_fails_stops_before_the_write(scene: Scene) -> None:
    scene.cluster.journal.failure = StoreError("disk full")
    assert scene.trim()[-1].outcome == Outcome.FAILED
    assert scene.listed == scene.ids


def test_an_error_of_one_topic_leaves_the_others(scene: Scene) -> None:
    ids = [scene.cluster.ledger(data_tags(OTHER)) for _ in range(2)]
    scene.cluster.topic(OTHER, ids)
    scene.cluster.wait(1)
    scene.cluster.zookeeper.unreadable.add(f"{scene.path}/s")
    orders = [TrimOrder(TOPIC, up_to=scene.ids[2]), TrimOrder(OTHER, up_to=ids[0])]
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, orders))
    assert outcomes(found) == {-1: Outcome.REFUSED, ids[0]: Outcome.REMOVED}


@dataclass
class StaleBroker:
    """A broker that has read a topic's list and does not know of our writes until it is unloaded."""

    scene: Scene
    read: int = 0

    def __post_init__(self) -> None:
        self.scene.cluster.admin.on_unload = lambda topic: self.load()
        self.load()

    def load(self) -> None:
        self.read = self.version

    @property
    def version(self) -> int:
        stat = self.scene.cluster.zookeeper.stat(self.scene.path)
        assert stat
        return stat.version


@pytest.mark.parametrize("loaded", [False, True])
def test_killed_at_every_step_a_rerun_ends_well(loaded: bool) -> None:
    brokers: list[StaleBroker] = []

    def make() -> Scene:
        scene = Scene()
        if loaded:
            scene.load()
        brokers.append(StaleBroker(scene))
        return scene

    steps: list[str] = []
    for scene, step in killed(make, lambda s, ports: s.trim(loaded_topics=loaded, ports=ports)):
        steps.append(step)
        assert scene.listed in (scene.ids, scene.ids[3:]), step
        if scene.listed == scene.ids[3:]:
            assert {i for i, _ in scene.sent} == set(scene.ids[:3]), step
            assert scene.rows[Outcome.MARKED] == scene.ids[:3], step
            fresh = not loaded or brokers[-1].read == brokers[-1].version
            assert fresh or scene.left_pending, step
        scene.cluster.wait(1)
        again = scene.trim(loaded_topics=loaded)
        left = {i: one for i, one in outcomes(again).items() if i >= 0}
        assert left or again[-1].why.code is Code.NOTHING_LISTED, step
        assert set(left.values()) <= {Outcome.REMOVED}, step
        assert scene.listed == scene.ids[3:], step
        assert scene.left_pending == [], step
        assert not loaded or brokers[-1].read == brokers[-1].version, step
        assert scene.cluster.ledger_ids() >= set(scene.ids), step
    assert len(steps) > 10
