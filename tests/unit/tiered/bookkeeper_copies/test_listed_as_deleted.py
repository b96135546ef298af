"""Between the two phases of a BookKeeper-copy deletion: what keeps it, and runs killed at every call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.deletion import deciding, owner_check
from pulsar_lifecycle.errors import (
    AccessDenied,
    LeaseLost,
    LifecycleError,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    PendingDeleteLedgerInfo,
)
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Outcome, Waiting
from tests.kit.crash import Crash, Tell, before_calls, killed_at_every_step, raising
from tests.kit.scenes.tiered.copy_deletion_scene import BROKEN, finished, outcomes_and_codes
from tests.kit.scenes.tiered.copy_deletion_scene import CopyDeletionScene as Scene
from tests.kit.scenes.topic_scene import OTHER, TOPIC
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.offloaded import BUCKET, DATA, INDEX
from tests.kit.simulated.pipeline import Policy


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --------------------------------------------------------------------------- what happens between the two phases


def kept(scene: Scene, *outcome: str) -> set[str | None]:
    """A deletion run that may delete nothing; the codes."""
    decisions = scene.delete()
    assert decisions
    assert scene.left == scene.due
    assert {d.outcome for d in decisions} <= set(outcome)
    return {d.code for d in decisions}


OBJECTS = [data_key, index_key]


@pytest.mark.parametrize("key", OBJECTS)
def test_an_object_that_is_lost(scene: Scene, key: Callable[[UUID, int], str]) -> None:
    scene.begin_and_scan()
    for i in scene.due:
        scene.lose(i, key)
    assert kept(scene, Outcome.KEPT) == {Code.NOT_PROVEN}
    assert scene.waiting == 0


@pytest.mark.parametrize("key", OBJECTS)
@pytest.mark.parametrize("data", [b"", b"D" * len(DATA), b"I" * len(INDEX)])
def test_an_object_that_is_replaced(scene: Scene, key: Callable[[UUID, int], str], data: bytes) -> None:
    scene.begin_and_scan()
    for i in scene.due:
        scene.off.buckets.put(BUCKET, key(scene.uuids[i], i), data)
    assert kept(scene, Outcome.KEPT) == {Code.NOT_PROVEN}


def test_a_copy_that_is_put_back_as_it_was_is_proven_by_the_next_run(scene: Scene) -> None:
    scene.begin_and_scan()
    scene.lose(scene.due[0])
    scene.delete()
    assert scene.left == scene.due[:1]
    scene.off.put(scene.uuids[scene.due[0]], scene.due[0], TOPIC)
    scene.begin_deletions()
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
    scene.begin_and_scan()

    def fail(*_: object) -> None:
        raise error

    scene.off.store.before = fail
    kept(scene, outcome)
    assert scene.waiting == len(scene.due)


def test_a_bucket_that_is_not_configured_any_more(scene: Scene) -> None:
    scene.begin_and_scan()
    scene.off.store.allowed = ["empty"]
    kept(scene, Outcome.WAITING)


def test_without_an_object_store_it_waits(scene: Scene) -> None:
    scene.begin_and_scan()
    decisions = scene.delete(lambda ports: replace(ports, objects=None))
    assert outcomes_and_codes(decisions) == {(Outcome.WAITING, Waiting.NO_OBJECT_STORE)}
    assert scene.left == scene.due


def test_a_lease_that_is_lost_while_objects_are_looked_at(scene: Scene) -> None:
    scene.begin_and_scan()

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
    "not listed as deleted": lambda scene, i: scene.change(i, bookkeeper_deleted=False),
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

    scene.begin_deletions()
    then("before the scan")
    scene.scan()
    then("before the run")
    scene.delete(amid)
    assert scene.due[0] in scene.left


def test_its_topic_is_deleted_and_made_anew(scene: Scene) -> None:
    scene.begin_and_scan()
    scene.cluster.remove(scene.path)
    scene.cluster.topic(TOPIC, [scene.cluster.ledger(data_tags(TOPIC))])
    assert kept(scene, Outcome.RETRYING) == {Code.DELISTED}


def test_another_topic_lists_it_by_the_newest_scan(scene: Scene) -> None:
    scene.begin_deletions()
    scene.cluster.topic(OTHER, scene.due)
    scene.scan()
    assert kept(scene, Outcome.RETRYING) == {Code.STILL_IN_USE}


@pytest.mark.parametrize("policy", [Policy(holds=frozenset({"acme/orders"})), Policy(holds=frozenset({str(TOPIC)}))])
def test_a_hold_that_is_new(scene: Scene, policy: Policy) -> None:
    scene.begin_and_scan()
    scene.off.policy = policy
    assert kept(scene, Outcome.KEPT) == {Protection.LEGAL_HOLD}


def test_a_namespace_that_is_foreign_by_then(scene: Scene) -> None:
    scene.begin_and_scan()
    assert scene.off.now
    scene.off.now = replace(scene.off.now, context=replace(scene.off.now.context, namespaces=frozenset()))
    assert kept(scene, Outcome.KEPT) == {Protection.UNKNOWN_NAMESPACE}


def test_a_shadow_topic_that_is_new(scene: Scene) -> None:
    scene.begin_deletions()
    scene.cluster.topic(OTHER, [scene.cluster.ledger(data_tags(OTHER))], shadow_of=str(TOPIC))
    scene.scan()
    assert kept(scene, Outcome.KEPT) == {Protection.SHADOW_SOURCE}


def test_an_under_replicated_ledger_is_retried(scene: Scene) -> None:
    scene.begin_and_scan()
    assert scene.off.now
    scene.off.now = replace(scene.off.now, context=replace(scene.off.now.context, under_replicated=BitMap64(scene.due)))
    assert kept(scene, Outcome.RETRYING) == {Code.UNDER_REPLICATED}


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_a_ledger_that_is_open_again(scene: Scene, state: LedgerState) -> None:
    scene.begin_and_scan()
    for i in scene.due:
        newest = scene.cluster._last_id
        scene.cluster.ledger(data_tags(TOPIC), state=state, ledger_id=i)
        scene.cluster._last_id = newest
    assert kept(scene, Outcome.KEPT) == {Code.NEVER_CLOSED}


def issued_again(scene: Scene, ledger_id: int) -> None:
    """Another ledger with this id, of the same topic, as after a restored metadata store."""
    newest = scene.cluster._last_id
    scene.cluster.remove(scene.cluster.path(ledger_id))
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=ledger_id)
    scene.cluster._last_id = newest


def test_an_id_that_was_issued_again(scene: Scene) -> None:
    scene.begin_and_scan()
    for i in scene.due:
        issued_again(scene, i)
    assert kept(scene, Outcome.REFUSED) == {Code.MISMATCH}
    for message in (forged(i) for i in scene.due):  # without our extras
        scene.off.send(message)
    assert kept(scene, Outcome.KEPT) == {Finding.OFFLOAD_LEFTOVER}


def forged(ledger_id: int, topic: str = str(TOPIC)) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(topic_name=topic, component=LedgerComponent.MANAGED_LEDGER, ledger_id=ledger_id)


def test_a_forged_message_about_what_we_never_began_to_delete(scene: Scene) -> None:
    for i in scene.due:
        scene.change(i, bookkeeper_deleted=True)
    scene.cluster.wait(1)
    scene.off.send(*(forged(i) for i in scene.due))
    assert kept(scene, Outcome.KEPT) == {Finding.OFFLOAD_LEFTOVER}


def test_a_forged_message_about_what_is_about_to_be_deleted(scene: Scene) -> None:
    """Marked, and never written: the process died between the two."""

    def die(name: str) -> None:
        if name == "before write" and any(outcome == Outcome.MARKED for _, _, outcome in scene.rows):
            raise Crash

    scene.tick = die
    with pytest.raises(Crash):
        scene.begin_deletions()
    scene.tick = lambda name: None
    scene.cluster.wait(2)
    scene.off.send(*(forged(i) for i in scene.due))
    kept(scene, Outcome.KEPT, Outcome.RETRYING)


def test_a_forged_message_that_names_another_topic(scene: Scene) -> None:
    scene.begin_deletions()
    scene.cluster.deletion_topics.waiting.clear()
    scene.cluster.topic(OTHER, [scene.cluster.ledger(data_tags(OTHER))])
    scene.off.send(*(forged(i, str(OTHER)) for i in scene.due))
    assert kept(scene, Outcome.REFUSED) == {Code.MISMATCH}


def test_a_rows_of_ours_that_cannot_be_read_proves_nothing(scene: Scene) -> None:
    scene.begin_and_scan()
    rows = scene.cluster.journal.rows
    rows[:] = [replace(row, detail="{}") if row.outcome == Outcome.MARKED else row for row in rows]
    assert kept(scene, Outcome.KEPT) == {Finding.OFFLOAD_LEFTOVER}


def test_a_copy_deletion_of_another_cluster_proves_nothing(scene: Scene) -> None:
    scene.begin_and_scan()
    rows = scene.cluster.journal.rows
    rows[:] = [replace(row, cluster="another") for row in rows]
    assert kept(scene, Outcome.KEPT) == {Finding.OFFLOAD_LEFTOVER}


def test_a_deletion_that_was_undone_needs_another_proof(scene: Scene) -> None:
    scene.begin_and_scan()
    scene.delete()
    for node in scene.cluster.journal.nodes:
        scene.cluster.put(node.path, node.data)
    scene.cluster.wait(2)
    scene.off.send(*(forged(i) for i in scene.due))
    assert kept(scene, Outcome.KEPT) == {Finding.OFFLOAD_LEFTOVER}
    scene.lose(scene.due[0])
    scene.begin_deletions(scene.proven(scene.due[1]))
    scene.scan()
    scene.delete()
    assert scene.left == scene.due[:1]


def test_a_scan_from_before_the_message_lets_it_wait(scene: Scene) -> None:
    scene.off.rescan()
    scene.begin_deletions()
    scene.scan()
    scene.begin_deletions()
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


@pytest.mark.parametrize("loaded", [False, True])
def test_a_copy_deletion_that_is_killed_anywhere_is_finished_by_the_next_runs(loaded: bool) -> None:
    count = 0
    for scene in crashes(Scene.begin_deletions, lambda: Scene(loaded=loaded)):
        count += 1
        finished(scene)
    assert count > 25


@pytest.mark.parametrize("loaded", [False, True])
def test_a_deletion_that_is_killed_anywhere_is_finished_by_the_next_runs(loaded: bool) -> None:
    def make() -> Scene:
        scene = Scene(loaded=loaded)
        scene.begin_and_scan()
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
        scene.begin_and_scan()
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
    monkeypatch.setattr(deciding, "look_at_copies", lambda run, ports, live: None)
    scene.begin_and_scan()
    scene.lose(scene.due[0])
    with pytest.raises(AssertionError):
        scene.delete()


def test_the_law_bites_where_the_topic_is_not_asked(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_check, "still_used", lambda *given: None)
    scene.begin_and_scan()
    scene.change(scene.due[0], bookkeeper_deleted=False)
    with pytest.raises(AssertionError):
        scene.delete()


def test_the_law_bites_where_a_pending_unload_is_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(loaded=True)
    scene.cluster.admin.on_unload = raising(Unavailable("down"))
    scene.begin_deletions()
    scene.scan()
    monkeypatch.setattr(control, "has_pending_unload", lambda *given: False)
    with pytest.raises(AssertionError):
        scene.delete()
