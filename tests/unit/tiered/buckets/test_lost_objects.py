"""What an inventory finds lost, and uploads that are under way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid4

import pytest

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.object_pairs import ObjectKind
from pulsar_lifecycle.errors import Paused, Unavailable
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.tiered.buckets.abort import Sweep, abort_uploads
from pulsar_lifecycle.tiered.buckets.bucket_listing import look_at_uploads, look_below
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.copies import BegunAttempt
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.tiered.bucket_scene import DAY, INDEX, TOPIC, begin
from tests.kit.scenes.tiered.bucket_scene import BucketScene as Scene
from tests.kit.simulated.offloaded import BUCKET, attempt
from tests.kit.simulated.pipeline import GRACE


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.scan()
    return made


# --------------------------------------------------------------------------------------------------------- what is lost


def test_a_copy_that_a_topic_reads_and_that_is_not_whole_is_broken(scene: Scene) -> None:
    scene.list(bookkeeper_deleted=True)
    scene.scan()
    objects = scene.buckets.objects[BUCKET]
    index = objects.pop(index_key(scene.live_uuid, scene.live))
    assert scene.said(scene.live_uuid, scene.live) == (ObjectKind.BROKEN, "", Code.OBJECT_MISSING)
    data = objects.pop(data_key(scene.live_uuid, scene.live))
    assert scene.said(scene.live_uuid, scene.live) == (ObjectKind.BROKEN, "", Code.OBJECT_MISSING)
    objects[index.key], objects[data.key] = replace(index, size=51), data
    assert scene.said(scene.live_uuid, scene.live)[0] == ObjectKind.BROKEN
    objects[index.key], objects[data.key] = index, replace(data, size=149)
    assert scene.said(scene.live_uuid, scene.live) == (ObjectKind.BROKEN, "", Code.OBJECT_TRUNCATED)
    objects[data.key] = replace(data, size=150)
    assert scene.said(scene.live_uuid, scene.live)[0] == ObjectKind.COMPLETE


def test_a_copy_that_failed_its_last_proof_is_not_complete(scene: Scene) -> None:
    """Its objects are there, of the right size."""
    scene.unproven = {(scene.live_uuid, scene.live): "one byte is another"}
    assert scene.said(scene.live_uuid, scene.live) == (ObjectKind.BROKEN, "", Code.NOT_PROVEN)
    scene.unproven = {(scene.live_uuid, scene.live + 1): "", (scene.gone_uuid, scene.live): "x"}
    assert scene.said(scene.live_uuid, scene.live)[0] == ObjectKind.COMPLETE


def test_what_a_topic_lists_as_deleted_since_the_scan_is_not_missed(scene: Scene) -> None:
    scene.buckets.objects[BUCKET].pop(index_key(scene.live_uuid, scene.live))
    scene.cluster.topic(TOPIC, [scene.last])
    found = scene.look()[data_key(scene.live_uuid, scene.live)]
    assert (found["kind"], found["action"]) == (ObjectKind.IN_FLIGHT, "")
    scene.buckets.objects[BUCKET].pop(data_key(scene.live_uuid, scene.live))
    assert data_key(scene.live_uuid, scene.live) not in scene.look()


def test_another_bucket_is_not_looked_at(scene: Scene) -> None:
    context = OffloadContext(scene.live_uuid, True, False, 1, "aws-s3", {"bucket": "elsewhere"})
    for key in (data_key, index_key):
        scene.buckets.objects[BUCKET].pop(key(scene.live_uuid, scene.live))
    scene.cluster.topic(TOPIC, [scene.live, scene.last], offloaded={scene.live: context})
    assert data_key(scene.live_uuid, scene.live) not in scene.look()
    scene.scan()
    assert scene.said(scene.live_uuid, scene.live) == (ObjectKind.ELSEWHERE, "", Code.NO_BUCKET)


@pytest.mark.parametrize("index", [INDEX, b""])
def test_a_copy_in_a_bucket_that_its_topic_does_not_read_stays(scene: Scene, index: bytes) -> None:
    scene.copy(scene.live_uuid, scene.live, bucket="empty", index=index)
    assert _of_live(scene) == {
        BUCKET: (ObjectKind.COMPLETE, "", Code.STILL_IN_USE),
        "empty": (ObjectKind.IN_FLIGHT, "", Code.STILL_IN_USE),
    }


def test_a_copy_that_is_gone_from_the_bucket_that_its_topic_names_is_missed_though_another_has_it(scene: Scene) -> None:
    """Brokers read the bucket that the offload context names, and no other."""
    scene.copy(scene.live_uuid, scene.live, bucket="empty")
    missed = {
        BUCKET: (ObjectKind.BROKEN, "", Code.OBJECT_MISSING),
        "empty": (ObjectKind.IN_FLIGHT, "", Code.STILL_IN_USE),
    }
    objects = scene.buckets.objects[BUCKET]
    objects.pop(index_key(scene.live_uuid, scene.live))
    assert _of_live(scene) == missed
    objects.pop(data_key(scene.live_uuid, scene.live))
    assert _of_live(scene) == missed


def test_a_copy_whose_topic_names_a_bucket_that_is_not_declared_is_not_complete_in_another(scene: Scene) -> None:
    scene.cluster.topic(TOPIC, [scene.live], offloaded={scene.live: attempt(scene.live_uuid, bucket="elsewhere")})
    scene.scan()
    assert _of_live(scene) == {
        BUCKET: (ObjectKind.IN_FLIGHT, "", Code.STILL_IN_USE),
        "elsewhere": (ObjectKind.ELSEWHERE, "", Code.NO_BUCKET),
    }


@pytest.mark.parametrize("bucket", [BUCKET, "empty"])
def test_a_copy_whose_topic_names_no_bucket_is_complete_in_any(scene: Scene, bucket: str) -> None:
    for key in (data_key, index_key):
        scene.buckets.objects[BUCKET].pop(key(scene.live_uuid, scene.live))
    scene.copy(scene.live_uuid, scene.live, bucket=bucket)
    scene.cluster.topic(TOPIC, [scene.live], offloaded={scene.live: attempt(scene.live_uuid, bucket="")})
    scene.scan()
    assert _of_live(scene) == {bucket: (ObjectKind.COMPLETE, "", Code.STILL_IN_USE)}


def test_a_copy_that_was_moved_after_the_scan_is_said_once(scene: Scene) -> None:
    scene.copy(scene.live_uuid, scene.live, bucket="empty")
    scene.cluster.topic(TOPIC, [scene.live], offloaded={scene.live: attempt(scene.live_uuid, bucket="empty")})
    for key in (data_key, index_key):
        scene.buckets.objects[BUCKET].pop(key(scene.live_uuid, scene.live))
    assert _of_live(scene) == {"empty": (ObjectKind.IN_FLIGHT, "", Code.STILL_IN_USE)}
    scene.scan()
    assert _of_live(scene) == {"empty": (ObjectKind.COMPLETE, "", Code.STILL_IN_USE)}


def _of_live(scene: Scene) -> dict[str, tuple[str, str, str]]:
    """By bucket: kind, action and code of the live ledger's copies."""
    store = scene.cluster.open_store(read_only=True)
    prefix = str(scene.live_uuid)
    named = {scene.live_uuid: scene.named[scene.live_uuid]}
    rows = list(look_below(scene.inventory, store, scene.cluster.reader, scene.store, prefix, named))
    said = {row["bucket"]: (row["kind"], row["action"], row["code"]) for row in rows}
    assert len(said) == len(rows)
    return said


# -------------------------------------------------------------------------------------------------------------- uploads


def uploads(scene: Scene, began: Mapping[UUID, BegunAttempt]) -> dict[str, tuple[str, str, str]]:
    rows = look_at_uploads(scene.inventory, scene.store, BUCKET, lambda ids: began)
    return {row["upload_id"]: (row["kind"], row["action"], row["code"]) for row in rows}


def test_only_uploads_that_our_own_ended_attempts_left_behind_are_dropped(scene: Scene) -> None:
    said = scene.cluster.clock.now_ms() - GRACE - DAY
    names = ("left", "open", "recent", "foreign", "named")
    uuids = {name: uuid4() for name in names} | {"named": scene.live_uuid}
    ids = {name: scene.upload(uuid, 1000 + n) for n, (name, uuid) in enumerate(uuids.items())}
    strange = scene.store.begin_upload(BUCKET, "backup.tar", {})
    began = {uuids[name]: BegunAttempt(str(TOPIC), said) for name in ("left", "open")}
    began[uuids["recent"]] = BegunAttempt(str(TOPIC), scene.cluster.clock.now_ms() - DAY)
    begin(scene, uuids["open"], 1001)
    scene.cluster.wait(24)
    scene.scan()
    found = uploads(scene, began)
    actions = {name: found[upload][:2] for name, upload in (ids | {"strange": strange}).items()}
    assert actions == {
        "left": (ObjectKind.DANGLING_UPLOAD, "abort"),
        "open": (ObjectKind.IN_FLIGHT, ""),
        "recent": (ObjectKind.DANGLING_UPLOAD, ""),
        "foreign": (ObjectKind.DANGLING_UPLOAD, ""),
        "named": (ObjectKind.IN_FLIGHT, ""),
        "strange": (ObjectKind.DANGLING_UPLOAD, ""),
    }
    scene.cluster.wait(24 * 8)
    assert uploads(scene, began)[ids["foreign"]][2] == Code.NOT_OURS


class Sweeping:
    """An upload left behind, planned."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.uuid = scene, uuid4()
        self.upload = scene.upload(self.uuid, 77)
        self.began = {self.uuid: BegunAttempt(str(TOPIC), scene.cluster.clock.now_ms() - GRACE - DAY)}
        rows = look_at_uploads(scene.inventory, scene.store, BUCKET, lambda ids: self.began)
        self.rows = [row for row in rows if row["action"] == "abort"]
        assert len(self.rows) == 1

    def run(self) -> list[tuple[Outcome, StrEnum]]:
        scene = self.scene
        done = abort_uploads(
            Sweep("run", "simulated", "plan"),
            self.rows,
            scene.rules,
            lambda ids: self.began,
            store=scene.cluster.open_store(),
            objects=scene.store,
            journal=scene.cluster.journal,
            clock=scene.cluster.clock,
        )
        return [(one.outcome, one.why.code) for some in done for one in some]


@pytest.fixture
def sweeping(scene: Scene) -> Sweeping:
    return Sweeping(scene)


def test_a_planned_upload_is_dropped_and_the_journal_says_so_before(sweeping: Sweeping) -> None:
    rows = sweeping.scene.cluster.journal.rows
    seen: list[str] = []
    sweeping.scene.store.before = lambda name, bucket, keys: seen.extend(
        row.outcome for row in rows if name == "abort_upload"
    )
    assert sweeping.run() == [(Outcome.ABORTED, Code.LEFT_BEHIND)]
    assert seen == ["aborting"]
    assert [(row.outcome, row.ledger_id, row.topic, row.plan_id) for row in rows] == [
        ("aborting", 77, str(TOPIC), "plan"),
        ("aborted", 77, str(TOPIC), "plan"),
    ]
    assert sweeping.upload not in sweeping.scene.buckets.uploads
    assert sweeping.run() == [(Outcome.KEPT, Code.NOT_THERE)]


def test_an_attempt_that_was_opened_again_keeps_its_upload(sweeping: Sweeping) -> None:
    begin(sweeping.scene, sweeping.uuid, 77)
    assert sweeping.run() == [(Outcome.KEPT, Code.ATTEMPT_OPEN)]
    assert sweeping.upload in sweeping.scene.buckets.uploads


def test_an_attempt_that_cannot_be_read_keeps_its_upload(sweeping: Sweeping) -> None:
    sweeping.scene.cluster.put(attempts.path_of(77), b"?")
    assert sweeping.run() == [(Outcome.KEPT, Code.ATTEMPT_UNREAD)]
    assert sweeping.upload in sweeping.scene.buckets.uploads


def test_what_our_journal_does_not_know_is_kept(sweeping: Sweeping) -> None:
    sweeping.began = {}
    assert [outcome for outcome, _ in sweeping.run()] == ["kept"]
    assert sweeping.upload in sweeping.scene.buckets.uploads


def test_pause_stops_it(sweeping: Sweeping) -> None:
    sweeping.scene.cluster.put("/pulsar-lifecycle/pause", b"")
    with pytest.raises(Paused):
        sweeping.run()
    assert sweeping.upload in sweeping.scene.buckets.uploads


@pytest.mark.parametrize(("when", "outcome"), [("before", "retrying"), ("after", "retrying")])
def test_an_answer_that_gets_lost_is_tried_again(sweeping: Sweeping, when: str, outcome: str) -> None:
    def fail(name: str, bucket: str, keys: Any) -> None:
        if name == "abort_upload":
            raise Unavailable("no answer")

    setattr(sweeping.scene.store, when, fail)
    assert [said for said, _ in sweeping.run()] == [outcome]
    setattr(sweeping.scene.store, when, lambda *_: None)
    assert [said for said, _ in sweeping.run()] == ["aborted" if when == "before" else "kept"]
