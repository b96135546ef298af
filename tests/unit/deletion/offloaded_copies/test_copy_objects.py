"""What the objects of an offloaded copy and their store say, and what stops a run before they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from uuid import UUID

import pytest

from pulsar_lifecycle.deletion.run_evidence import DeclaredBuckets
from pulsar_lifecycle.errors import (
    AccessDenied,
    LeaseLost,
    LifecycleError,
    NotFound,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.journal.in_doubt import lost_copies
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.offload_uuids import OffloadUuids
from pulsar_lifecycle.values.outcomes import Outcome, Waiting
from tests.kit.scenes.tiered.offloaded_scene import TOPIC
from tests.kit.scenes.tiered.offloaded_scene import OffloadedScene as Scene
from tests.kit.simulated.offloaded import BUCKET, CLUSTER, POLICY


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --------------------------------------------------------------------------------------------------- the object's word


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (Unavailable("503 SlowDown"), Outcome.RETRYING, Code.OBJECTS_UNREAD),
        (StoreError("400"), Outcome.RETRYING, Code.OBJECTS_UNREAD),
        (AccessDenied("403"), Outcome.WAITING, Waiting.OBJECT_STORE_DENIES),
        (NotFound("there is no bucket"), Outcome.WAITING, Waiting.OBJECT_STORE_DENIES),
    ],
)
def test_objects_that_cannot_be_looked_at_stay(
    scene: Scene, error: LifecycleError, outcome: str, code: Code | Waiting
) -> None:
    scene.send(scene.intent)

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        if keys[0].endswith("-index"):
            raise error

    scene.store.before = fail
    scene.one(outcome, code, str(error))


def test_a_declared_bucket_that_is_not_there_makes_messages_wait(scene: Scene) -> None:
    scene.offload = DeclaredBuckets(frozenset({"no-such-bucket"}), CLUSTER, exclusive=True)
    scene.send(scene.message(scene.gone_uuid, scene.gone, TOPIC, bucket="no-such-bucket"))
    scene.one(Outcome.WAITING, Waiting.OBJECT_STORE_DENIES)


@pytest.mark.parametrize("hook", ["before", "after"])
def test_after_a_deletion_without_an_answer_what_is_there_decides(scene: Scene, hook: str) -> None:
    scene.send(scene.intent)

    def lost(name: str, bucket: str, keys: Sequence[str]) -> None:
        if name == "delete_many":
            raise Unavailable("connection reset")

    setattr(scene.store, hook, lost)
    (decision,) = scene.delete()
    if hook == "after":
        assert (decision.outcome, scene.keys) == (Outcome.DELETED, scene.live_keys)
        return
    assert (decision.outcome, decision.code) == (Outcome.RETRYING, Code.STILL_THERE)
    assert scene.keys == scene.live_keys | scene.gone_keys
    scene.store.before = lambda name, bucket, keys: None
    scene.cluster.wait(1)
    scene.rescan()
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]


def test_when_nothing_answers_after_the_deletion_the_next_run_finds_it_gone(scene: Scene) -> None:
    scene.send(scene.intent, scene.intent)
    down = False

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        if down:
            raise Unavailable("503")

    def cut(name: str, bucket: str, keys: Sequence[str]) -> None:
        nonlocal down
        down = True

    def lost() -> set[str]:
        return set(lost_copies(asdict(row) for row in scene.cluster.journal.rows))

    pair = {f"s3://{BUCKET}/{key}" for key in scene.gone_keys}
    scene.store.before, scene.store.after = fail, cut
    first, twin = scene.delete()
    assert (first.outcome, twin.outcome) == (Outcome.RETRYING, Outcome.RETRYING)
    assert (first.code, twin.code) == (Code.OUTCOME_UNKNOWN, Code.TWIN)
    assert lost() == pair
    down = False
    scene.store.after = lambda name, bucket, keys: None
    scene.cluster.wait(1)
    scene.rescan()
    assert [d.outcome for d in scene.delete()] == [Outcome.GONE, Outcome.GONE]
    assert lost() == pair


def test_a_copy_that_is_seen_after_a_deletion_without_an_answer_is_not_lost(scene: Scene) -> None:
    scene.send(scene.intent)
    down = False

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        nonlocal down
        down |= name == "delete_many"
        if down:
            raise Unavailable("503")

    scene.store.before = fail
    scene.delete()
    scene.store.before = lambda name, bucket, keys: None
    scene.offload = replace(POLICY, cluster="another")
    scene.cluster.wait(1)
    scene.rescan()
    assert [d.outcome for d in scene.delete()] == [Outcome.KEPT]
    assert lost_copies(asdict(row) for row in scene.cluster.journal.rows) == {}


def test_a_store_that_never_answers_ends_in_the_dead_letter_topic(scene: Scene) -> None:
    scene.send(scene.intent)

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        raise Unavailable("503")

    scene.store.before = fail
    found = ""
    for _ in range(12):
        found = scene.delete()[0].outcome
        if found == Outcome.DEAD_LETTERED:
            break
        scene.cluster.wait(1)
        scene.rescan()
    assert found == Outcome.DEAD_LETTERED
    assert len(scene.cluster.deletion_topics.dead) == 1
    assert scene.keys == scene.live_keys | scene.gone_keys


def test_a_versioned_bucket_is_said_to_keep_the_bytes(scene: Scene) -> None:
    scene.buckets.versioned.add(BUCKET)
    scene.send(scene.intent)
    (decision,) = scene.delete()
    assert (decision.outcome, decision.code) == (Outcome.DELETED, Code.BYTES_STAY)


# ------------------------------------------------------------------------------------------------- what stops a run


def stopped_at(scene: Scene, act: Callable[[Ports], None]) -> Callable[[Ports], Ports]:
    """Let something happen once the objects have been looked at."""

    def wrap(ports: Ports) -> Ports:
        scene.store.before = lambda name, bucket, keys: act(ports)
        return ports

    return wrap


def test_a_lost_lease_deletes_nothing(scene: Scene) -> None:
    scene.send(scene.intent)

    def steal(ports: Ports) -> None:
        scene.store.before = lambda name, bucket, keys: None
        scene.cluster.put(control.LEASE, b"{}")

    with pytest.raises(LeaseLost):
        scene.delete(stopped_at(scene, steal))
    assert scene.keys == scene.live_keys | scene.gone_keys
    assert [row.outcome for row in scene.cluster.journal.rows] == ["deleting", Outcome.WAITING]
    assert len(scene.cluster.deletion_topics.waiting) == 1


def test_a_pause_deletes_nothing(scene: Scene) -> None:
    scene.send(scene.intent)
    with pytest.raises(control.Paused):
        scene.delete(stopped_at(scene, lambda ports: control.pause(ports.store, "test")))
    assert scene.keys == scene.live_keys | scene.gone_keys
    assert len(scene.cluster.deletion_topics.waiting) == 1


def test_without_a_journal_nothing_is_deleted(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.cluster.journal.failure = StoreError("disk full")
    with pytest.raises(StoreError):
        scene.delete()
    assert scene.keys == scene.live_keys | scene.gone_keys
    assert len(scene.cluster.deletion_topics.waiting) == 1


def test_scans_without_a_list_of_uuids_make_messages_wait(scene: Scene) -> None:
    class Missing(OffloadUuids):
        def named(self, uuids: object) -> set[UUID]:
            raise NotFound("epochs/e1/offload-uuids.bin does not exist")

    scene.send(scene.intent)
    assert scene.now is not None
    scene.now = replace(scene.now, offload_uuids=Missing())
    scene.one(Outcome.WAITING, Waiting.UNREAD_SCAN)
