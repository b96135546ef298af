"""Writing a topic's z-node beside its broker, and writes without answer."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import replace
from uuid import UUID

import pytest

from pulsar_lifecycle.errors import (
    AccessDenied,
    LeaseLost,
    LifecycleError,
    OutcomeUnknown,
    Refused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import LEASE as OTHER_LEASE
from pulsar_lifecycle.runs.control import OFFLOAD_LEASE as LEASE
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.topics.unloads import RunGuard, Unloads, finish_unloads
from pulsar_lifecycle.topics.write import TopicWrite
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import raising
from tests.kit.fakes.metadata_store import Operation
from tests.kit.refused import refused_by
from tests.kit.scenes.topic_scene import TOPIC
from tests.kit.scenes.write_scene import DONE, MINE, outcomes
from tests.kit.scenes.write_scene import WriteScene as Scene
from tests.kit.simulated.cluster import data_tags


@pytest.mark.parametrize("loaded", [False, True])
def test_a_write_that_is_lost_is_made_again_over_what_is_there(loaded: bool) -> None:
    scene = Scene(loaded=loaded, policy=True)
    scene.on_write(scene.broker_writes)
    assert outcomes(scene.edit()) == [DONE, "kept"]
    assert (scene.looks, scene.written, len(scene.info.ledgers)) == (2, True, 3)
    assert scene.left_pending == []  # it was written too recently to count as unloaded
    assert scene.steps.count("unload") == 1


def test_a_topic_that_a_broker_loads_between_look_and_write_is_judged_again() -> None:
    scene = Scene()

    def load() -> None:
        scene.broker_writes()
        scene.cluster.load(TOPIC)

    scene.on_write(load)
    said = scene.edit()
    assert outcomes(said) == [Outcome.LEFT_TO_BROKER, "kept"]
    assert (scene.written, scene.left_pending) == (False, [])
    assert scene.steps[-1] == f"delete {scene.pending_name}"


def test_a_z_node_that_never_comes_to_rest() -> None:
    scene = Scene(loaded=True)
    scene.on_write(scene.broker_writes, times=99)
    with refused_by(Code.CHANGED_MEANWHILE):
        scene.edit()
    assert (scene.looks, scene.written, scene.left_pending) == (5, False, [])
    assert "unload" not in scene.steps


def test_a_topic_whose_last_ledger_is_gone_can_be_written() -> None:
    scene = Scene(loaded=True)
    scene.cluster.remove(scene.cluster.path(scene.ids[-1]))
    assert outcomes(scene.edit()) == [DONE, "kept"]
    assert (scene.written, scene.left_pending, scene.steps.count("unload")) == (True, [], 1)


def test_a_topic_none_of_whose_ledgers_is_left_is_not_written() -> None:
    scene = Scene(loaded=True)
    for ledger_id in scene.ids:
        scene.cluster.remove(scene.cluster.path(ledger_id))
    with refused_by(Code.LEDGERS_MISSING):
        scene.edit()
    assert (scene.written, scene.left_pending, scene.steps.count("unload")) == (False, [], 0)


def test_what_is_done_is_said_though_its_note_stays() -> None:
    scene = Scene(loaded=True)

    def fails(operation: Operation) -> None:
        if operation.name == "delete":
            raise StoreError("no quorum")

    scene.store.before = fails
    said = scene.edit()
    assert outcomes(said) == [DONE, "kept"]
    assert said[scene.ids[0]].why.code is Code.SERVER_FAILED
    assert (scene.written, scene.left_pending) == (True, [True])


def test_a_topic_that_goes_meanwhile() -> None:
    scene = Scene(loaded=True)
    scene.on_write(lambda: scene.cluster.remove(scene.path))
    with refused_by(Code.TOPIC_GONE):
        scene.edit()
    assert "unload" not in scene.steps
    assert scene.left_pending == []


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("between", [False, True])
def test_a_write_without_an_answer_is_judged_by_what_is_there(loaded: bool, when: str, between: bool) -> None:
    """``between``: a broker writes before we can look, which hides whose version it is."""
    scene = Scene(loaded=loaded, policy=True)

    def lost() -> None:
        if between:
            scene.broker_writes()
        raise OutcomeUnknown("connection lost")

    scene.on_write(lost, when)
    assert outcomes(scene.edit()) == [DONE, "kept"]
    assert (scene.written, scene.info.properties) == (True, {MINE: "yes"})
    assert scene.looks == 2
    unloaded_at_once = loaded or (between and when == "before")
    assert scene.steps.count("unload") == unloaded_at_once
    assert scene.left_pending == ([] if unloaded_at_once else [False])


def test_a_write_whose_outcome_stays_unknown_is_unloaded_and_stays_pending() -> None:
    scene = Scene(loaded=True)
    scene.on_write(raising(OutcomeUnknown("connection lost")), "after")
    reads = scene.store.before

    def down(operation: Operation) -> None:
        reads(operation)
        if scene.written and operation.name == "sync":
            raise Unavailable("down")

    scene.store.before = down
    with pytest.raises(Unavailable):
        scene.edit()
    assert scene.steps[-1] == "unload"
    assert scene.left_pending == [True]


@pytest.mark.parametrize("error", [AccessDenied("NoAuth"), StoreError("no such request")])
def test_a_write_that_was_denied_owes_nothing(error: LifecycleError) -> None:
    scene = Scene(loaded=True)
    scene.on_write(raising(error))
    with pytest.raises(StoreError):
        scene.edit()
    assert (scene.written, scene.left_pending, "unload" in scene.steps) == (False, [], False)


def test_a_write_that_was_denied_leaves_what_was_pending_before() -> None:
    scene = Scene(loaded=True)
    control.note_unload(scene.cluster.open_store(), PendingUnload(TOPIC, True, 1, LEASE))
    scene.on_write(raising(AccessDenied("NoAuth")))
    with pytest.raises(AccessDenied):
        scene.edit()
    assert scene.left_pending == [True]


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), Unavailable("no answer"), LeaseLost("another's")])
def test_an_error_that_leaves_doubt_leaves_it_pending(error: LifecycleError) -> None:
    scene = Scene(loaded=True)

    def lost() -> None:
        scene.cluster.zookeeper.unreadable.add(scene.path)
        raise error

    scene.on_write(lost)
    with pytest.raises(LifecycleError):
        scene.edit()
    assert (scene.written, scene.left_pending) == (False, [True])


def test_unloads_that_fail_are_said_of_every_ledger_and_stay_pending() -> None:
    scene = Scene(loaded=True)
    scene.cluster.admin.on_unload = raising(Unavailable("503"))
    said = scene.edit()
    assert outcomes(said) == [DONE, "kept"]
    assert all(one.reason.endswith("; an unload of its topic is pending: 503") for one in said.values())
    assert scene.left_pending == [True]


def test_an_unload_that_is_pending_already_is_done_by_ours_alone() -> None:
    scene = Scene(loaded=True)
    control.note_unload(scene.cluster.open_store(), PendingUnload(TOPIC, True, 1, LEASE))
    scene.on_write(scene.broker_writes, times=99)
    with refused_by(Code.CHANGED_MEANWHILE):
        scene.edit()
    assert scene.left_pending == [True]  # an earlier run's, which this one knows nothing about
    scene.on_write(lambda: None)
    scene.edit()
    assert scene.left_pending == []


class Other:
    """A run of the other lease, at the same topic."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.store = scene.cluster.open_store()
        self.lease = control.take_lease(self.store, "other", scene.cluster.clock, 0, OTHER_LEASE)
        self.guard = RunGuard(self.lease.guard, Unloads(5, 500, scene.cluster.clock))

    def finish(self) -> None:
        cluster = self.scene.cluster
        finish_unloads(self.store, cluster.admin, cluster.clock, self.guard, wait=False)


def test_a_run_of_another_lease_finishes_nothing_that_is_pending_while_we_are_at_it() -> None:
    scene = Scene(loaded=True)
    scene.on_write(Other(scene).finish)
    scene.cluster.admin.on_unload = raising(Unavailable("down"))
    scene.edit()
    assert (scene.written, scene.left_pending) == (True, [True])
    Other(Scene(loaded=True)).finish()  # no holder, nothing pending


def created_again(scene: Scene, surviving: Collection[int] = ()) -> tuple[LedgerInfo, ...]:
    """The topic is deleted with its ledgers but for some, and created with another one; it has the same version."""
    version = scene.version
    for item in scene.info.ledgers:
        if item.ledger_id not in surviving:
            scene.cluster.remove(scene.cluster.path(item.ledger_id))
    scene.cluster.remove(scene.path)
    made = ManagedLedgerInfo((LedgerInfo(scene.cluster.ledger(data_tags(TOPIC))),))
    for _ in range(version + 1):
        scene.cluster.put(scene.path, managed_ledger.encode(made))
    assert scene.version == version
    return made.ledgers


def test_a_topic_that_was_created_again_and_has_the_same_version_is_left_alone() -> None:
    scene = Scene(loaded=False)
    made: list[tuple[LedgerInfo, ...]] = []
    scene.on_write(lambda: made.append(created_again(scene)))
    scene.edit()
    assert [scene.info.ledgers] == made


@pytest.mark.parametrize("moment", range(20))
def test_a_topic_that_is_created_again_at_any_moment_is_left_alone_though_a_ledger_survives(moment: int) -> None:
    """A broker may leave a ledger behind that is not the last one."""
    scene = Scene(loaded=False)
    made: list[tuple[LedgerInfo, ...]] = []
    seen = [0]

    def look(operation: Operation) -> None:
        seen[0] += not scene.written
        if seen[0] == moment + 1 and not made and not scene.written:
            made.append(created_again(scene, scene.ids[:1]))

    scene.store.before = look
    with contextlib.suppress(Refused):
        scene.edit()
    assert not made or scene.info.ledgers == made[0]


def test_what_is_listed_as_deleted_in_bookkeeper_backs_no_topic() -> None:
    """A broker that deletes the topic leaves it behind."""
    scene = Scene(loaded=True)
    first, last = scene.info.ledgers
    offload = OffloadContext(UUID(int=1), True, True, 1, "aws-s3", {"bucket": "b"})
    scene.cluster.put(scene.path, managed_ledger.encode(ManagedLedgerInfo((replace(first, offload=offload), last))))
    scene.cluster.wait(1)
    scene.cluster.remove(scene.cluster.path(last.ledger_id))
    with refused_by(Code.LEDGERS_MISSING):
        scene.edit()
    assert (scene.written, scene.left_pending) == (False, [])


def test_a_run_of_another_lease_that_lost_the_race_takes_no_watch_away() -> None:
    scene = Scene(loaded=False)
    other = Other(scene)
    cluster = scene.cluster
    ports = Ports(other.store, cluster.reader, cluster.admin, cluster.open_queue(), cluster.journal, cluster.clock)
    late = TopicWrite(ports, other.guard, TOPIC)
    node = other.store.read([scene.path])[0]
    assert isinstance(node, Node)
    late.note_unload(False)
    scene.edit()
    assert not late.write(node, b"", scene.cluster.path(scene.ids[-1]))
    assert late.finish(sure=True) is None
    assert (scene.written, scene.left_pending) == (True, [False])


def test_what_is_pending_under_a_lease_that_nobody_holds_is_done_by_whoever_comes() -> None:
    scene = Scene(loaded=True)
    scene.cluster.admin.on_unload = raising(Unavailable("down"))
    scene.edit()
    other = Other(scene)
    scene.cluster.admin.on_unload = lambda topic: None
    other.finish()
    assert scene.left_pending == [True]
    control.release_lease(scene.store, scene.lease)
    other.finish()
    assert scene.left_pending == []


def test_a_pending_unload_of_a_run_that_begins_while_they_are_listed_is_its_own() -> None:
    """It has not written yet: done now, nothing would be pending when it dies after its write."""
    scene = Scene()

    def begin(operation: Operation) -> None:
        if operation.name == "children":
            scene.store.before = lambda _: None
            other = Other(scene)
            control.note_unload(other.store, PendingUnload(TOPIC, True, 1, OTHER_LEASE))

    scene.store.before = begin
    assert control.pending_for(scene.store, scene.guard.guard) == []


def test_what_is_pending_anew_since_it_was_read_stays_pending() -> None:
    scene = Scene()
    left_pending = PendingUnload(TOPIC, True, 1, LEASE)
    control.note_unload(scene.store, left_pending)
    (read,) = control.pending_unloads(scene.store)
    assert isinstance(read, PendingUnload)
    control.note_unload(scene.store, left_pending)
    control.finish_unload(scene.store, read)
    assert scene.left_pending == [True]
    control.finish_unload(scene.store, left_pending)
    assert scene.left_pending == []


def test_what_was_done_and_is_pending_anew_since_it_was_read_stays_pending() -> None:
    """Its z-node has the first version again."""
    scene = Scene()
    control.note_unload(scene.store, PendingUnload(TOPIC, True, 1, LEASE))
    (read,) = control.pending_unloads(scene.store)
    assert isinstance(read, PendingUnload)
    control.finish_unload(scene.store, read)
    assert scene.left_pending == []
    control.note_unload(scene.store, PendingUnload(TOPIC, True, 2, LEASE))
    control.finish_unload(scene.store, read)
    assert scene.left_pending == [True]
