"""The driver's side of copy deletions: brokers read before anything goes, a copy that fails its proof, what is left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from assets.tiered import check_done, counted, outcomes_shown, said
from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.unread_locations import UNREAD_LOCATIONS
from pulsar_lifecycle.errors import AccessDenied, Failed, Overloaded, StoreError
from pulsar_lifecycle.formats import ledger_path, managed_ledger
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.run_settings import OffloadSettings
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.tiered.bookkeeper_copies import Due, FailedProof
from pulsar_lifecycle.tiered.interrupted import Ownership
from pulsar_lifecycle.tiered.offload_run import carry_out, revert_offloads
from pulsar_lifecycle.tiered.offload_tasks import Item, TaskResult
from pulsar_lifecycle.tiered.offload_work import OffloadWork
from pulsar_lifecycle.tiered.outcome import OffloadOutcome, record_topics
from pulsar_lifecycle.tiered.read_check import ReadCheck, Unheld
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.offload_uuids import OffloadUuids
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.plans.offload_plan import CANDIDATES, OffloadChoice
from tests.kit.builders import some_why
from tests.kit.crash import raising
from tests.kit.fakes.metadata_store import FakeStore, Operation
from tests.kit.scenes.tiered.copy_deletion_scene import CopyDeletionScene as Scene
from tests.kit.scenes.tiered.copy_deletion_scene import disown, own, theirs
from tests.kit.scenes.topic_scene import TOPIC
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.offloaded import BUCKET, attempt
from tests.kit.simulated.pipeline import lake_of, where

SECOND = Topic.parse("persistent://acme/orders/second")


class Driver(OffloadWork):
    """A run over the scene's cluster; what executors prove is given."""

    def __init__(self, scene: Scene, due: Mapping[Topic, Sequence[Due]], **settings: Any) -> None:
        run, ports, guard = scene.begin()
        cluster: Any = SimpleNamespace(
            settings=SimpleNamespace(
                cluster="simulated",
                offload=OffloadSettings(deletion_lag=0, **settings),
                zookeeper=SimpleNamespace(session_timeout=0),
            )
        )
        ownership = Ownership("simulated", OffloadUuids())
        super().__init__(cluster, run, ports, guard, None, scene.read_check, ownership, (), ())  # type: ignore[arg-type]
        self.due = due

    def _proven(self, rows: Sequence[Any], progress: object) -> dict[str, list[Due]]:
        wanted = {row["ledger_id"] for row in rows}
        return {str(name): [one for one in some if one.ledger_id in wanted] for name, some in self.due.items()}

    def rows(self) -> list[dict[str, Any]]:
        location = {
            "driver": "aws-s3",
            "bucket": BUCKET,
            "region": "",
            "endpoint": "",
            "bytes": 1,
            "action": OffloadChoice.DELETE_COPY,
        }
        return [
            {"topic": str(name), "ledger_id": one.ledger_id, **location}
            for name, some in self.due.items()
            for one in some
        ]

    def begin_all(self) -> dict[int, str]:
        self.read_first(self.rows(), print)
        self.begin_deletions(self.rows(), print)
        return {one.ledger_id: one.outcome for one in self.outcomes}


def two_topics(scene: Scene) -> dict[Topic, list[Due]]:
    """The scene's own, of broker-1, and another, of broker-2; both offloaded to the same location."""
    ids = [scene.cluster.ledger(data_tags(SECOND)) for _ in range(3)]
    uuids = {ids[0]: scene.uuids[scene.due[0]]}
    scene.off.put(uuids[ids[0]], ids[0], SECOND)
    scene.cluster.topic(SECOND, ids, offloaded={ids[0]: attempt(uuids[ids[0]])})
    scene.cluster.admin.topics[SECOND] = {}
    for topic, broker in ((TOPIC, "broker-1:8080"), (SECOND, "broker-2:8080")):
        own(scene.cluster, topic, broker)
    scene.cluster.wait(1)
    scene.read_check = ReadCheck(False, [str(TOPIC), str(SECOND)])
    first = [scene.proven(i, scene.uuids[i]) for i in scene.due]
    return {TOPIC: first, SECOND: [scene.proven(ids[0], uuids[ids[0]])]}


@pytest.mark.parametrize("wrong", [TOPIC, SECOND])
def test_one_broker_that_cannot_read_keeps_everything_at_its_location(wrong: Topic) -> None:
    """Whichever is asked first: one of two brokers was restarted with a wrong endpoint."""
    scene = Scene()
    due = two_topics(scene)
    asked: set[Topic] = set()

    def read(topic: Topic, position: Position) -> None:
        asked.add(topic)
        if topic == wrong:
            raise Failed("500: no such bucket")

    scene.cluster.admin.on_read = read
    found = Driver(scene, due).begin_all()
    assert set(found.values()) == {"failed"}
    assert wrong in asked
    assert (scene.deleted_ids, scene.waiting) == ([], 0)


def test_a_failing_read_that_cannot_be_held_stops_the_run() -> None:
    """Deletion runs that are under way do not know of it: whoever launched the run must."""
    scene = Scene()
    due = two_topics(scene)
    scene.cluster.admin.on_read = raising(Failed("500: no such bucket"))
    driver = Driver(scene, due)

    def deny(operation: Operation) -> None:
        if operation.name == "create" and operation.paths[0].startswith(UNREAD_LOCATIONS):
            raise AccessDenied("no")

    scene.store.before = deny
    carry_out(driver, driver.rows(), CANDIDATES.empty_table(), print)
    found = driver.outcomes
    assert (found[0].outcome, found[0].why.code) == (Outcome.FAILED, Code.UNTOLD)
    assert (scene.deleted_ids, scene.waiting) == ([], 0)


def test_a_run_that_could_not_hold_a_location_while_it_finished_stops_there() -> None:
    scene = Scene()
    now = scene.cluster.clock.now_ms()
    attempts.begin(
        scene.store, Attempt(scene.ids[2], str(TOPIC), uuid4(), "aws-s3", (("bucket", BUCKET),), 5 << 20, "run", now)
    )
    driver = Driver(scene, {})
    scene.read_check.unheld = "why"
    with pytest.raises(Unheld):
        driver.finish_attempts(CANDIDATES.empty_table(), print)
    assert {one.ledger_id for one in driver.outcomes} == {scene.ids[2]}


def test_each_broker_reads_and_then_all_goes() -> None:
    scene = Scene()
    due = two_topics(scene)
    asked: list[tuple[Topic, int]] = []

    def read(topic: Topic, position: Position) -> None:
        asked.append((topic, scene.waiting))
        if topic == TOPIC and not scene.broker.memory:
            scene.broker.load()

    scene.cluster.admin.on_read = read
    found = Driver(scene, due).begin_all()
    assert set(found.values()) == {Outcome.BOOKKEEPER_DELETED}, "a topic counts as loaded once it was read"
    assert scene.broker.memory is None
    assert {topic for topic, _ in asked} == {TOPIC, SECOND}
    assert {waiting for _, waiting in asked} == {0}  # before anything was sent


def test_no_broker_has_to_take_a_bundle_where_another_has_read_the_location() -> None:
    scene = Scene()
    due = two_topics(scene)
    disown(scene.cluster, TOPIC)
    asked: list[Topic] = []
    scene.cluster.admin.on_read = lambda topic, position: asked.append(topic)
    assert set(Driver(scene, due).begin_all().values()) == {Outcome.BOOKKEEPER_DELETED}
    assert set(asked) == {SECOND}


def test_nothing_is_read_where_brokers_need_not_be_asked() -> None:
    scene = Scene()
    due = two_topics(scene)
    scene.read_check = ReadCheck(True)
    assert set(Driver(scene, due).begin_all().values()) == {Outcome.BOOKKEEPER_DELETED}
    assert scene.cluster.admin.touched == []


# ----------------------------------------------------------------------------------------------- a copy that is damaged


def disproved(scene: Scene) -> list[FailedProof]:
    due = scene.proven(scene.due[0], scene.uuids[scene.due[0]])
    return [
        FailedProof(
            due.ledger_id, due.location, Why(Code.UNLIKE_BOOKKEEPER, "one byte is another"), due.endpoint, due.region
        )
    ]


def test_a_copy_that_fails_its_proof_stays_named_unless_the_settings_say_otherwise() -> None:
    scene = Scene()
    (one,) = Driver(scene, {})._record_failed_proofs(TOPIC, disproved(scene))
    assert (one.outcome, scene.contexts[scene.due[0]].complete) == (Outcome.PROOF_FAILED, True)


@pytest.mark.parametrize("deleted_ids", [False, True])
def test_it_is_reverted_where_bookkeeper_has_it_whole(deleted_ids: bool) -> None:
    scene = Scene()
    if deleted_ids:
        scene.change(scene.due[0], bookkeeper_deleted=True)
        scene.cluster.wait(1)
    driver = Driver(scene, {}, revert_unproven=True)
    driver.outcomes += driver._record_failed_proofs(TOPIC, disproved(scene))
    assert [one.outcome for one in driver.outcomes] == [Outcome.PROOF_FAILED, Outcome.REVERTED]
    assert scene.due[0] not in scene.contexts
    assert scene.due[1] in scene.contexts
    assert [row.outcome for row in scene.cluster.journal.rows] == [Outcome.PROOF_FAILED, "reverting", Outcome.REVERTED]
    assert not control.is_held(scene.store, control.LEASE)


def test_it_is_not_reverted_where_bookkeeper_does_not_have_it_whole() -> None:
    scene = Scene()
    scene.cluster.reader.failures[scene.due[0]] = Failed("no bookie has entry 0")
    driver = Driver(scene, {}, revert_unproven=True)
    driver.outcomes += driver._record_failed_proofs(TOPIC, disproved(scene))
    assert [one.outcome for one in driver.outcomes] == [Outcome.PROOF_FAILED, "refused"]
    assert scene.contexts[scene.due[0]].complete


def test_it_is_not_reverted_beside_an_attempt_of_its_broker() -> None:
    scene = Scene(loaded=True)
    scene.write(scene.ids[2], theirs())
    before = scene.cluster.zookeeper.stat(scene.path)
    driver = Driver(scene, {}, revert_unproven=True)
    driver.outcomes += driver._record_failed_proofs(TOPIC, disproved(scene))
    assert [one.outcome for one in driver.outcomes] == [Outcome.PROOF_FAILED, Outcome.FOREIGN_ATTEMPT]
    assert scene.cluster.zookeeper.stat(scene.path) == before


def test_a_competing_broker_leaves_no_lag_of_ours() -> None:
    scene = Scene()
    due = two_topics(scene)
    scene.read_check = ReadCheck(True)
    driver = Driver(scene, due)
    driver._competing = {str(TOPIC)}
    found = driver.begin_all()
    assert [found[i] for i in scene.due] == ["refused", "refused"]
    assert scene.deleted_ids == []


# ------------------------------------------------------------------------------------------------------ what a run says


OUTCOMES = [
    OffloadOutcome(str(TOPIC), 1, Outcome.OFFLOADED, some_why(""), 10),
    OffloadOutcome(str(TOPIC), -1, Outcome.LEFT_TO_BROKER, some_why("19 of its ledgers wait: loaded"), 190, ledgers=19),
]


def test_a_run_says_how_many_ledgers_were_left_to_brokers() -> None:
    assert counted(OUTCOMES) == {Outcome.OFFLOADED: 1, Outcome.LEFT_TO_BROKER: 19}
    assert said(OUTCOMES) == "1 ledgers offloaded, 0 listed as deleted in BookKeeper; not done: 19 left-to-broker"
    shown = outcomes_shown(OUTCOMES)
    assert (shown["offloaded"], shown["left to brokers"]) == (1, 19)
    check_done(OUTCOMES, {})


def test_what_was_left_to_brokers_is_in_the_journal() -> None:
    scene = Scene()
    run, ports, _ = scene.begin()
    record_topics(run, ports, OUTCOMES[1:], Action.OFFLOAD)
    (row,) = scene.cluster.journal.rows
    assert (row.topic, row.ledger_id, row.action, row.phase) == (str(TOPIC), -1, "offload", "offload")
    assert (row.outcome, row.bytes, json.loads(row.detail)["ledgers"]) == (Outcome.LEFT_TO_BROKER, 190, 19)


def test_a_copy_that_failed_its_proof_fails_the_run_and_comes_first() -> None:
    wrong = [
        OffloadOutcome(str(TOPIC), 1, "failed", some_why("first")),
        OffloadOutcome(str(TOPIC), 2, Outcome.PROOF_FAILED, some_why("one byte is another")),
    ]
    with pytest.raises(dg.Failure, match=r"1 offloaded copies are not what they should be.*one byte is another"):
        check_done(wrong, {})


def test_the_scene_is_a_topic_that_names_its_copies() -> None:
    scene = Scene()
    two_topics(scene)
    info = managed_ledger.decode(scene.cluster.zookeeper.data(scene.cluster.topic_path(SECOND)))
    assert [bool(item.offload and item.offload.complete) for item in info.ledgers] == [True, False, False]


def test_a_revert_writes_with_the_session_that_holds_the_deletion_lease() -> None:
    """If another session held it and expired, a deletion run could begin, and the writes would go on."""
    scene = Scene(loaded=False)
    scene.scan()
    scene.store.close()
    assert scene.off.now
    assert scene.off.before
    servers, real, sessions = scene.cluster, scene.cluster.open_store, set[int]()

    def open_store(**asked: bool) -> FakeStore:
        store = real(**asked)

        def writes(operation: Operation) -> None:
            if operation == Operation("write", (scene.path,)):
                holders = map(servers.zookeeper.stat, map(control.holder_of, (control.LEASE, control.OFFLOAD_LEASE)))
                sessions.update((store._session, *(stat.ephemeral_owner for stat in holders if stat)))

        store.before = writes
        return store

    servers.open_store = open_store  # type: ignore[method-assign]
    cluster = where(servers, None, lake_of(scene.off.before, scene.off.now))
    found = revert_offloads(cluster, "back", TOPIC, scene.due, dry_run=False)
    assert {one.outcome for one in found} == {Outcome.REVERTED}
    assert len(sessions) == 1


def test_no_run_of_offloads_begins_whose_journal_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are sent before their rows are journalled, so each try would send them again."""
    scene = Scene(loaded=False)
    scene.scan()
    assert scene.off.now
    assert scene.off.before
    scene.cluster.journal.failure = StoreError("the disk is full")
    cluster = where(scene.cluster, None, lake_of(scene.off.before, scene.off.now))
    monkeypatch.setattr("pulsar_lifecycle.tiered.offload_run.topic_run", raising(AssertionError("it has begun")))
    with pytest.raises(StoreError, match="full"):
        revert_offloads(cluster, "back", TOPIC, scene.due, dry_run=False)


def test_what_could_not_be_told_is_said_however_the_run_ends() -> None:
    scene = Scene()
    due = two_topics(scene)
    asked: list[object] = []

    def read(topic: Topic, position: Position) -> None:
        asked.append(topic)
        raise Failed("500: no such bucket")

    def slow(name: str) -> None:
        if asked and name == "before read":
            raise Overloaded("ZooKeeper answers in 700 ms")

    scene.cluster.admin.on_read = read
    scene.tick = slow
    driver = Driver(scene, due)
    carry_out(driver, driver.rows(), CANDIDATES.empty_table(), print)
    assert driver.outcomes[0].why.code is Code.UNTOLD


@pytest.mark.parametrize("gone", [True, False])
def test_what_is_listed_as_deleted_and_has_gone_since_the_plan_is_no_failure(*, gone: bool) -> None:
    """Another plan had it listed as deleted, and a deletion run was there."""
    scene = Scene(due=1)
    driver, (ledger,) = Driver(scene, {}), scene.due
    scene.change(ledger, bookkeeper_deleted=True)
    if gone:
        scene.store.delete(ledger_path.ledger_path(ledger, driver._run.ledgers_root), -1)
    unread = Why(Code.OBJECTS_UNREAD, "BookKeeper does not have it any more, or it cannot be read")
    attempt = Attempt(ledger, str(TOPIC), scene.uuids[ledger], "aws-s3", (), 1, "r", 0)
    item = Item(attempt, again=True, copy_deletion=True)
    outcome, why = driver._unproven(TaskResult(item, None, unread))
    assert outcome == (Outcome.REFUSED if gone else Outcome.FAILED)
    assert ("stays" in why.text) != gone


def test_what_has_gone_and_no_topic_lists_as_deleted_is_a_failure() -> None:
    scene = Scene(due=1)
    driver = Driver(scene, {})
    lost = Item(Attempt(999_999, str(TOPIC), uuid4(), "aws-s3", (), 1, "r", 0), again=True, copy_deletion=True)
    why = Why(Code.OBJECTS_UNREAD, "BookKeeper does not have it any more, or it cannot be read")
    assert driver._unproven(TaskResult(lost, None, why))[0] == Outcome.FAILED
