"""What must be known before a copy in BookKeeper is deleted: each broker's read, damage, a broker's attempt."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest

from pulsar_lifecycle.copies import failed_proofs
from pulsar_lifecycle.copies.location import namespace_location
from pulsar_lifecycle.errors import (
    Failed,
    Paused,
    Unavailable,
)
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.tiered import bookkeeper_copies
from pulsar_lifecycle.tiered.bookkeeper_copies import FailedProof
from pulsar_lifecycle.topics.bundle_owner import Owners
from pulsar_lifecycle.topics.unloads import finish_unloads
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import Crash
from tests.kit.scenes.tiered.copy_deletion_scene import FAR, NO, SITE, copy_of, own, reading, theirs
from tests.kit.scenes.tiered.copy_deletion_scene import CopyDeletionScene as Scene
from tests.kit.scenes.topic_scene import TOPIC, outcomes
from tests.kit.simulated.cluster import SimulatedCluster
from tests.kit.simulated.offloaded import BUCKET

# ------------------------------------------------------------------------------------------------------ one location


def test_a_read_that_fails_in_another_namespace_blocks_its_location_in_that_run() -> None:
    """Both have the same driver, bucket, region and endpoint; that this one was read an hour ago is no matter."""
    scene = Scene()
    asked = reading(scene)
    copy = copy_of(scene, scene.due[0])
    scene.read_check.passed_before[namespace_location(TOPIC, copy)] = scene.cluster.clock.now_ms()
    scene.read_check.failed(FAR, copy, NO)
    said = scene.begin_deletions()
    assert set(outcomes(said).values()) == {"failed"}
    assert {one.why.code for one in said.values()} == {Code.LOCATION_UNREAD}
    assert all(str(FAR) in one.reason for one in said.values())
    assert (asked, scene.deleted_ids, scene.waiting) == ([], [], 0)
    reading(scene)
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}


def test_a_failure_elsewhere_blocks_nothing_here() -> None:
    scene = Scene()
    reading(scene)
    elsewhere = replace(copy_of(scene, scene.due[0]), metadata=(("bucket", "another"),))
    scene.read_check.failed(FAR, elsewhere, NO)
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}


def test_what_was_read_in_an_earlier_run_is_read_again() -> None:
    scene = Scene()
    asked = reading(scene)
    copy = copy_of(scene, scene.due[0])
    scene.read_check.passed_before[namespace_location(TOPIC, copy)] = scene.cluster.clock.now_ms()
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}
    assert asked


# ------------------------------------------------------------------------------------------------------- each broker


def test_each_broker_that_owns_such_topics_reads_for_itself() -> None:
    scene = Scene()
    own(scene.cluster, TOPIC, "broker-1:8080")
    asked = reading(scene)
    copy = copy_of(scene, scene.due[0])
    scene.read_check.passed(FAR, copy, proves=True, broker="broker-2:8080")
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}
    assert asked
    (told,) = [json.loads(row.detail) for row in scene.cluster.journal.rows if row.outcome == "read-passed"]
    assert told["broker"] == "broker-1:8080"
    assert scene.read_check.reads(SITE, "broker-1:8080")


def test_a_broker_reads_once_in_a_run() -> None:
    scene = Scene()
    own(scene.cluster, TOPIC, "broker-1:8080")
    asked = reading(scene)
    scene.read_check.passed(FAR, copy_of(scene, scene.due[0]), proves=True, broker="broker-1:8080")
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}
    assert asked == []


def test_the_owner_of_a_bundle_is_known_without_asking_any_broker() -> None:
    cluster, answered = SimulatedCluster(), Brokers({}, 60_000)
    store = cluster.open_store()
    assert Owners().of(store, answered, TOPIC) == ""
    own(cluster, TOPIC, "broker-1:8080")
    cluster.put(f"/namespace/{TOPIC.namespace}/not-a-bundle", b"")
    assert Owners().of(store, answered, TOPIC) == "broker-1:8080"
    bundles = {"bundles": {"boundaries": ["0x00000000", "0xffffffff"]}}
    cluster.put("/admin/local-policies/acme/else", json.dumps(bundles).encode())
    beside = Brokers({"persistent://acme/else/other": "broker-3:8080"}, 60_000)  # without locks
    assert Owners().of(store, beside, FAR) == "broker-3:8080"
    assert Owners().of(store, Brokers({str(FAR): "broker-2:8080"}, 60_000), FAR) == "broker-2:8080"
    for data in (b"", b"[]", b'{"httpUrl": 1}'):
        place = zlib.crc32(str(TOPIC).encode())
        cluster.put(f"/namespace/{TOPIC.namespace}/0x{place:08x}_0x{place + 1:08x}", data)
        assert Owners().of(store, answered, TOPIC) == ""


# -------------------------------------------------------------------------------------------------- what is left loaded


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("fail", [None, Failed("500"), Unavailable("timed out"), RuntimeError("a bug")])
def test_a_topic_that_was_loaded_to_be_read_is_unloaded_whatever_came_out(writes: bool, fail: Exception | None) -> None:
    scene = Scene()
    scene.loaded_topics = writes
    reading(scene, fail)
    left: list[bool] = []

    def look(name: str) -> None:
        if name == "before record":
            left.append(scene.broker.memory is not None)

    scene.tick = look
    if isinstance(fail, RuntimeError):
        with pytest.raises(RuntimeError):
            scene.begin_deletions()
    else:
        scene.begin_deletions()
    assert not any(left)  # at the end of the step, and not of the run
    assert (scene.broker.memory, scene.deleted_ids) == (None, [] if fail else scene.due)
    assert scene.left_pending in ([], [False])


def test_a_topic_is_unloaded_though_the_run_was_paused_meanwhile() -> None:
    scene = Scene()
    reading(scene, Paused("paused"))
    with pytest.raises(Paused):
        scene.begin_deletions()
    assert scene.broker.memory is None


@pytest.mark.parametrize("at", ["before read_entry", "after read_entry", "before unload"])
def test_a_topic_that_a_killed_run_has_loaded_is_unloaded_by_the_next(at: str) -> None:
    scene = Scene()
    reading(scene)

    def die(name: str) -> None:
        if name == at:
            raise Crash

    scene.tick = die
    with pytest.raises(Crash):
        scene.begin_deletions()
    assert scene.left_pending == [True]
    scene.tick = lambda name: None
    _, ports, guard = scene.begin()
    assert finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=False) == {}
    assert (scene.broker.memory, scene.left_pending, scene.deleted_ids) == (None, [], [])


def test_a_topic_that_was_read_and_then_loaded_for_its_clients_is_left_to_its_broker() -> None:
    """Hours may pass between the read and the write: the policy on loaded topics counts again."""
    scene = Scene()
    reading(scene)
    run, ports, guard = scene.begin()
    due = [scene.proven(i, scene.uuids[i]) for i in scene.due]
    bookkeeper_copies.read_first(run, ports, guard, TOPIC, due, 0, scene.read_check)
    assert scene.broker.memory is None
    scene.cluster.wait(3)
    scene.broker.load()
    said = bookkeeper_copies.begin_deletions(run, ports, guard, TOPIC, due, 0, scene.read_check)
    assert {one.outcome for one in said} == {Outcome.LEFT_TO_BROKER}
    assert (scene.broker.memory is None, scene.deleted_ids, scene.waiting) == (False, [], 0)


def test_an_unload_that_fails_after_a_read_stays_pending() -> None:
    scene = Scene()
    reading(scene)
    unload = scene.cluster.admin.on_unload

    def fails(topic: Topic) -> None:
        raise Unavailable("503")

    scene.cluster.admin.on_unload = fails
    run, ports, guard = scene.begin()
    due = [scene.proven(i, scene.uuids[i]) for i in scene.due]
    bookkeeper_copies.read_first(run, ports, guard, TOPIC, due, 0, scene.read_check)
    assert (scene.left_pending, scene.broker.memory is None) == ([True], False)
    scene.cluster.admin.on_unload = unload
    control.pending_unloads(ports.store)
    assert finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=False) == {}
    assert (scene.broker.memory, scene.left_pending) == (None, [])


# ----------------------------------------------------------------------------------------------- a copy that is damaged


def unproven(scene: Scene, **changes: Any) -> dict[int, Any]:
    run, ports, _ = scene.begin()
    due = scene.proven(scene.due[0], scene.uuids[scene.due[0]])
    one = FailedProof(
        due.ledger_id, due.location, Why(Code.UNLIKE_BOOKKEEPER, "one byte is another"), due.endpoint, due.region
    )
    return {
        said.ledger_id: said
        for said in bookkeeper_copies.record_failed_proofs(ports, run, TOPIC, [replace(one, **changes)])
    }


def test_a_copy_that_fails_its_proof_is_told_and_nothing_is_written() -> None:
    scene = Scene()
    before = scene.cluster.zookeeper.stat(scene.path)
    (said,) = unproven(scene).values()
    assert said.outcome == Outcome.PROOF_FAILED
    assert said.why.code is Code.NOT_PROVEN
    (row,) = scene.cluster.journal.rows
    assert (row.action, row.phase, row.outcome) == (
        "bookkeeper-copy-deletion",
        "bookkeeper-copy-deletion",
        Outcome.PROOF_FAILED,
    )
    assert json.loads(row.detail) == {"bucket": BUCKET, "uuid": str(scene.uuids[scene.due[0]])}
    assert (scene.cluster.zookeeper.stat(scene.path), scene.deleted_ids) == (before, [])


def test_what_its_topic_does_not_read_disproves_nothing() -> None:
    scene = Scene()
    metadata = {"bucket": BUCKET, "serviceEndpoint": "https://elsewhere"}
    scene.change(scene.due[0], driver_metadata=metadata)
    assert unproven(scene)[scene.due[0]].outcome == Outcome.REFUSED
    scene.write(scene.due[0], None)
    assert unproven(scene)[scene.due[0]].outcome == Outcome.REFUSED
    assert {row.outcome for row in scene.cluster.journal.rows} == {Outcome.REFUSED}
    assert failed_proofs.held(scene.store, scene.due) == set()


def test_what_fails_its_proof_after_it_was_listed_as_deleted_is_not_deleted_in_bookkeeper() -> None:
    """Its message is under way, and the bucket says of the object what it said when it was proven."""
    scene = Scene()
    scene.begin_and_scan()
    scene.cluster.wait(0.1)
    unproven(scene)
    scene.scan()
    found = {d.info.ledger_id: d.outcome for d in scene.delete()}
    assert found[scene.due[0]] != Outcome.DELETED
    assert scene.left == scene.due[:1]


def test_what_fails_its_proof_while_a_deletion_run_is_under_way_stays_in_bookkeeper() -> None:
    """The run has read the journal when it began, and the bucket says of the object what it said when it was proven."""
    scene = Scene()
    scene.begin_and_scan()
    due = scene.proven(scene.due[0], scene.uuids[scene.due[0]])
    damaged = FailedProof(
        due.ledger_id, due.location, Why(Code.UNLIKE_BOOKKEEPER, "one byte is another"), due.endpoint, due.region
    )
    run, ports, _ = scene.begin()
    beside = replace(ports, store=scene.cluster.open_store(), journal=scene.cluster.journal)

    def prove(name: str) -> None:
        if name == "before receive":
            scene.tick = lambda name: None
            bookkeeper_copies.record_failed_proofs(beside, run, TOPIC, [damaged])

    scene.tick = prove
    found = {d.info.ledger_id: d.outcome for d in scene.delete()}
    assert found == {scene.due[0]: Outcome.RETRYING, scene.due[1]: Outcome.DELETED}
    assert scene.left == scene.due[:1]
    bookkeeper_copies.record_failed_proofs(beside, run, TOPIC, [damaged])  # again: it is held already
    assert failed_proofs.held(scene.store, scene.due) == {scene.due[0]}
    assert scene.begin_deletions(due)[scene.due[0]].outcome == Outcome.BOOKKEEPER_DELETED  # it was put back, and proven
    assert failed_proofs.held(scene.store, scene.due) == set()


# --------------------------------------------------------------------------------------------------- a broker's attempt


@pytest.mark.parametrize("loaded", [False, True])
def test_no_copy_is_deleted_beside_an_attempt_of_its_broker(loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    asked = reading(scene)
    scene.write(scene.ids[2], theirs())
    scene.cluster.wait(1)
    before = scene.cluster.zookeeper.stat(scene.path)
    said = scene.begin_deletions()
    assert set(outcomes(said).values()) == {Outcome.FOREIGN_ATTEMPT}
    assert {one.why.code for one in said.values()} == {Code.BROKERS_ATTEMPT}
    assert (asked, scene.deleted_ids, scene.waiting) == ([], [], 0)
    assert scene.cluster.zookeeper.stat(scene.path) == before
    assert [row.outcome for row in scene.cluster.journal.rows] == [Outcome.FOREIGN_ATTEMPT] * 2


def test_an_attempt_that_its_broker_begins_between_look_and_write() -> None:
    scene = Scene()
    scene.on_write(lambda: scene.write(scene.ids[2], theirs()))
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.FOREIGN_ATTEMPT}
    assert scene.deleted_ids == []
