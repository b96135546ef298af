"""One edit of a topic's z-node with the unload it asks for: lost and unknown writes, policy, budget, interruptions.

What trimming makes of it is in test_trim.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pulsar_lifecycle.errors import (
    Conflict,
    CorruptFormat,
    LeaseLost,
    LifecycleError,
    OutcomeUnknown,
    Paused,
    Refused,
    RefusedBy,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import OFFLOAD_LEASE as LEASE
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.load_losses import LoadLoss, LoadLosses
from pulsar_lifecycle.topics.write import EditOutcome, TopicRun, edit_topic
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.builders import some_why
from tests.kit.crash import Tell, killed_at_every_step, raising, watch
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.topic_scene import TOPIC
from tests.kit.scenes.write_scene import CONTEXT, DONE, outcomes
from tests.kit.scenes.write_scene import WriteScene as Scene


def test_an_unloaded_topic_is_written_and_watched() -> None:
    scene = Scene()
    assert outcomes(scene.edit()) == [DONE, "kept"]
    assert scene.steps == [f"create {scene.pending_name}", f"write {scene.path}"]
    assert (scene.written, scene.left_pending, scene.cluster.admin.touched) == (True, [False], [])


def test_a_loaded_topic_is_written_and_unloaded_at_once() -> None:
    scene = Scene(loaded=True)
    assert outcomes(scene.edit()) == [DONE, "kept"]
    name = scene.pending_name
    assert scene.steps == [f"create {name}", f"write {scene.path}", "unload", f"delete {name}"]
    assert (scene.written, scene.left_pending) == (True, [])


def test_what_needs_no_change_writes_nothing() -> None:
    scene = Scene(loaded=True, policy=False, limit=0)
    said = scene.edit(lambda node, info: (info, {scene.ids[0]: EditOutcome(DONE, some_why("so it was"))}))
    assert outcomes(said) == [DONE]
    assert (scene.steps, scene.version, scene.left_pending) == ([], 0, [])


@pytest.mark.parametrize(
    ("policy", "goes"),
    [
        (True, True),
        (False, False),
        (frozenset[str](), False),
        (frozenset({str(TOPIC)}), True),
        (frozenset({str(TOPIC.partitioned_parent)}), True),
        (frozenset({"acme/orders"}), True),
        (frozenset({"acme"}), True),
        (frozenset({"acme/other", "other"}), False),
    ],
)
def test_who_says_that_a_loaded_topic_may_be_written(policy: bool | frozenset[str], goes: bool) -> None:
    scene = Scene(loaded=True, policy=policy)
    said = scene.edit()
    assert outcomes(said) == [
        DONE if goes else Outcome.LEFT_TO_BROKER,
        "kept",
    ]  # what does not change is no matter of policy
    assert scene.written == goes
    if not goes:
        one = said[scene.ids[0]]
        assert one.why.code is Code.TOPIC_LOADED
        assert all(named in one.reason for named in ("listed by broker-1:8080", "offload.loaded_topics"))
        assert scene.steps == []


def test_an_edit_that_no_policy_stops() -> None:
    scene = Scene(loaded=True, policy=False)
    cluster = scene.cluster
    ports = Ports(scene.store, cluster.reader, cluster.admin, cluster.open_queue(), cluster.journal, cluster.clock)
    shadows = snapshot.Shadows(snapshot.ShadowSources, cluster.clock)
    brokers, now = Brokers(dict(cluster.admin.loaded), 60_000), cluster.clock.now_ms()
    run = TopicRun("run", "simulated", "/ledgers", now, brokers, CONTEXT, 0, False, shadows)
    assert outcomes(edit_topic(run, ports, scene.guard, TOPIC, scene.change, "")) == [DONE, "kept"]
    assert (scene.written, scene.left_pending, "unload" in scene.steps) == (True, [], True)


def test_no_write_of_a_loaded_topic_that_would_lose_data_by_its_unload() -> None:
    scene = Scene(loaded=True)
    scene.losses = LoadLosses()
    said = scene.edit()
    assert outcomes(said) == [Outcome.LEFT_TO_BROKER, "kept"]
    assert said[scene.ids[0]].why.code is LoadLoss.LOSS_UNKNOWN
    assert scene.steps == []


def test_no_write_of_a_loaded_topic_without_an_unload_left() -> None:
    scene = Scene(loaded=True, limit=0)
    said = scene.edit()
    assert outcomes(said) == [Outcome.LEFT_TO_BROKER, "kept"]
    assert said[scene.ids[0]].why.code is Code.NOT_UNLOADED
    assert scene.steps == []


def test_an_unloaded_topic_needs_no_unload() -> None:
    assert outcomes(Scene(limit=0).edit()) == [DONE, "kept"]


@pytest.mark.parametrize("error", [Paused, LeaseLost])
@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_run_that_may_not_act_writes_nothing_more(error: type[Refused], looks: int) -> None:
    """Stopped before the first look, and between a look and its write."""
    scene = Scene(loaded=True)
    scene.on_write(scene.broker_writes, times=1)

    def stop() -> None:
        if error is Paused:
            control.pause(scene.cluster.open_store(), "test")
        else:
            scene.cluster.put(LEASE, b"{}")

    def change(node: Node, info: ManagedLedgerInfo) -> tuple[ManagedLedgerInfo, dict[int, EditOutcome]]:
        result = scene.change(node, info)
        if scene.looks == looks:
            stop()
        return result

    if not looks:
        stop()
    with pytest.raises(error):
        scene.edit(change)
    assert not scene.written
    assert "unload" not in scene.steps
    assert scene.left_pending == ([True] if looks == 2 else [])


@pytest.mark.parametrize(
    "error",
    [
        RefusedBy(Code.CHANGED_MEANWHILE, "no"),
        CorruptFormat("x", 0, "y"),
        StoreError("x"),
        Unavailable("x"),
        LeaseLost("x"),
    ],
)
def test_an_error_of_the_change_itself(error: LifecycleError) -> None:
    scene = Scene(loaded=True)
    with pytest.raises(type(error)):
        scene.edit(raising(error))  # type: ignore[arg-type]
    assert (scene.steps, scene.left_pending) == ([], [])


def test_nothing_is_written_unless_the_unload_was_noted() -> None:
    scene = Scene(loaded=True)
    scene.store.after = lambda operation: raising(OutcomeUnknown("x"))() if operation.name == "create" else None
    look = scene.store.before

    def before(operation: Operation) -> None:
        look(operation)
        if operation == Operation("write", (PendingUnload(TOPIC, True, 0, LEASE).path,)):
            raise StoreError("no")

    scene.store.before = before
    with pytest.raises(StoreError):
        scene.edit()
    assert not scene.written


def crashes(loaded: bool) -> Iterator[Scene]:
    """The scene after an edit that was killed before or after each of its requests in turn."""

    def edit(scene: Scene, tell: Tell) -> None:
        watch(scene.store, tell)
        scene.edit()

    for scene, _ in killed_at_every_step(lambda: Scene(loaded=loaded), edit):
        yield scene


@pytest.mark.parametrize("loaded", [False, True])
def test_killed_anywhere_a_write_that_was_made_has_a_pending_unload(loaded: bool) -> None:
    count = 0
    for scene in crashes(loaded):
        count += 1
        unloaded = not scene.cluster.admin.loaded
        assert not scene.written or scene.left_pending == [loaded] or (loaded and unloaded)
    assert count > 10


def test_conflict_and_not_found_are_lost_writes_and_nothing_else_is() -> None:
    for error in (StoreError("403"), Unavailable("latency")):
        scene = Scene(loaded=True)
        scene.on_write(raising(error))
        with pytest.raises(type(error)):
            scene.edit()
        assert not scene.written
    scene = Scene(loaded=True)
    scene.on_write(raising(Conflict("version")))
    assert outcomes(scene.edit()) == [DONE, "kept"]
