"""The inventory of the buckets: what every object is, what keeps it, and uploads that our own runs left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.copies import attempts, object_pairs
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.object_pairs import ObjectKind
from pulsar_lifecycle.errors import AccessDenied, Paused, StoreError, Unavailable
from pulsar_lifecycle.formats.managed_ledger import OffloadContext, OffloadSegment
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.metastore import topics as metastore_topics
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.records import tables
from pulsar_lifecycle.records.codes import Code
from pulsar_lifecycle.records.copies import Begun
from pulsar_lifecycle.records.findings import Finding
from pulsar_lifecycle.records.offload_uuids import OffloadUuids
from pulsar_lifecycle.records.referenced import Referenced
from pulsar_lifecycle.tiered.buckets import bucket_rules
from pulsar_lifecycle.tiered.buckets.abort import Sweep, abort_uploads
from pulsar_lifecycle.tiered.buckets.bucket_listing import Inventory, look_at_uploads, look_below, look_between
from pulsar_lifecycle.tiered.buckets.bucket_rules import Rules
from tests.simulation.cluster import data_tags
from tests.simulation.offloaded import BUCKET, CLUSTER, Offloading, attempt, metadata
from tests.simulation.pipeline import GRACE

TOPIC = Topic.parse("persistent://acme/orders/a+b c~é-partition-0")
DATA, INDEX = b"d" * 1000, b"i" * 60
DAY = 86_400_000


class Scene(Offloading):
    """A live offloaded ledger, and the objects of one whose ledger left its topic more than a week ago."""

    def __init__(self) -> None:
        super().__init__()
        self.exclusive = True
        self.elsewhere: list[str] = []
        self.unproven: dict[tuple[UUID, int], str] = {}
        self.live, self.last, self.gone = (self.ledger(TOPIC) for _ in range(3))
        self.live_uuid, self.gone_uuid = uuid4(), uuid4()
        self.cluster.remove(self.cluster.path(self.gone))
        self.list()
        self.copy(self.live_uuid, self.live)
        self.copy(self.gone_uuid, self.gone)
        self.age()

    def list(self, others: Mapping[int, OffloadContext] | None = None, **live: Any) -> None:
        contexts = {self.live: attempt(self.live_uuid, **live), **(others or {})}
        self.cluster.topic(TOPIC, sorted({self.last, *contexts}), offloaded=contexts)

    def copy(
        self,
        uuid: UUID,
        ledger_id: int,
        *,
        data: bytes = DATA,
        index: bytes = INDEX,
        bucket: str = BUCKET,
        stored: Mapping[str, str] | None = None,
    ) -> None:
        says = metadata(TOPIC) if stored is None else stored
        for key, body in ((data_key(uuid, ledger_id), data), (index_key(uuid, ledger_id), index)):
            if body:
                self.buckets.put(bucket, key, body, says)

    def upload(self, uuid: UUID, ledger_id: int) -> str:
        return self.store.begin_upload(BUCKET, data_key(uuid, ledger_id), metadata(TOPIC))

    @property
    def rules(self) -> Rules:
        assert self.now is not None
        open_ones = attempts.whole(attempts.open_attempts(self.cluster.open_store()))
        return Rules(
            replace(self.now.context, now=self.cluster.clock.now_ms(), grace=GRACE, holds=self.policy.holds),
            CLUSTER,
            self.exclusive,
            self.now.epoch.started_at,
            self.before.epoch.started_at if self.before else None,
            frozenset(one.uuid for one in open_ones),
            self.unproven,
        )

    @property
    def inventory(self) -> Inventory:
        assert self.now is not None
        earlier = self.before.offload_uuids if self.before else OffloadUuids()
        listed = self.before.refs if self.before else Referenced()
        return Inventory(
            (BUCKET, "empty"), self.rules, self.now.offload_uuids, earlier, self.now.refs, listed, "/ledgers"
        )

    def scan(self) -> None:
        """The newest scan, and what it found topics to name."""
        self.rescan()
        store = self.cluster.open_store(read_only=True)
        topics = metastore_topics.read_managed_ledgers(store, metastore_topics.topic_units(store))
        self.named = object_pairs.by_uuid(
            row for batch in topics for row in object_pairs.offload_references(batch, "").to_pylist()
        )

    def look(self, digits: int = 1) -> dict[str, dict[str, Any]]:
        """Rows by key, of what the newest scan saw and the buckets have now."""
        store = self.cluster.open_store(read_only=True)
        rows: list[dict[str, Any]] = []
        prefixes = bucket_rules.prefixes(digits)
        for prefix in prefixes:
            named = {uuid: some for uuid, some in self.named.items() if str(uuid).startswith(prefix)}
            rows += look_below(self.inventory, store, self.cluster.reader, self.store, prefix, named)
        for gap in bucket_rules.gaps(prefixes):
            rows += look_between(self.store, BUCKET, gap)
        assert pa.Table.from_pylist(rows, tables.OBJECTS).num_rows == len(rows)
        return {row["key"]: row for row in rows}

    def said(self, uuid: UUID, ledger_id: int) -> tuple[str, str, str]:
        row = self.look()[data_key(uuid, ledger_id)]
        return row["kind"], row["action"], row["code"]

    def gone_is(self, kind: ObjectKind, code: Code | Finding) -> None:
        """The leaked copy is not planned, as this code says."""
        assert self.said(self.gone_uuid, self.gone) == (kind.value, "", code)


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.scan()
    return made


def test_a_topics_copy_is_complete_and_what_nothing_names_goes(scene: Scene) -> None:
    assert scene.said(scene.live_uuid, scene.live) == (ObjectKind.COMPLETE, "", Code.STILL_IN_USE)
    row = scene.look()[data_key(scene.gone_uuid, scene.gone)]
    assert row["code"] == Code.UNREFERENCED
    assert row["reason"] == bucket_rules.NOTHING_NAMES_IT.text
    assert {name: row[name] for name in ("kind", "action", "bucket", "topic", "namespace", "objects", "bytes")} == {
        "kind": ObjectKind.ORPHAN_PAIR,
        "action": "delete",
        "bucket": BUCKET,
        "topic": str(TOPIC),
        "namespace": "acme/orders",
        "objects": 2,
        "bytes": 1060,
    }


@pytest.mark.parametrize(("half", "kind"), [("data", ObjectKind.LONE_DATA), ("index", ObjectKind.LONE_INDEX)])
def test_half_a_copy_that_nothing_names_goes(scene: Scene, half: str, kind: ObjectKind) -> None:
    missing = (index_key if half == "data" else data_key)(scene.gone_uuid, scene.gone)
    del scene.buckets.objects[BUCKET][missing]
    assert scene.said(scene.gone_uuid, scene.gone)[:2] == (kind.value, "delete")


def test_only_what_nothing_names_is_asked_for(scene: Scene) -> None:
    scene.look()
    heads = {key for name, _, keys in scene.store.requests for key in keys if name == "head"}
    assert heads == {data_key(scene.gone_uuid, scene.gone), index_key(scene.gone_uuid, scene.gone)}


# ------------------------------------------------------------------------------------------------------ what is in use


@pytest.mark.parametrize(
    "context",
    [
        lambda uuid: attempt(uuid, complete=False),
        lambda uuid: OffloadContext(
            None, False, False, None, None, {}, (OffloadSegment(uuid, True, None, None, None, None, {}),)
        ),
    ],
)
def test_what_metadata_names_otherwise_is_in_flight(scene: Scene, context: Any) -> None:
    scene.list({scene.gone: context(scene.gone_uuid)})
    scene.scan()
    scene.gone_is(ObjectKind.IN_FLIGHT, Code.STILL_IN_USE)


def test_what_is_named_for_another_ledger_is_in_flight(scene: Scene) -> None:
    scene.list({scene.last + 10: attempt(scene.gone_uuid)})
    scene.scan()
    scene.gone_is(ObjectKind.IN_FLIGHT, Code.STILL_IN_USE)


def test_our_own_open_attempt_is_in_flight(scene: Scene) -> None:
    begin(scene, scene.gone_uuid, scene.gone)
    scene.gone_is(ObjectKind.IN_FLIGHT, Code.ATTEMPT_OPEN)


def begin(scene: Scene, uuid: UUID, ledger_id: int) -> Attempt:
    now = scene.cluster.clock.now_ms()
    one = Attempt(ledger_id, str(TOPIC), uuid, "aws-s3", (("bucket", BUCKET),), 5 << 20, "run", now)
    attempts.begin(scene.cluster.open_store(), one)
    return one


def test_what_its_topic_names_since_the_scan_is_in_flight(scene: Scene) -> None:
    scene.list({scene.gone: attempt(scene.gone_uuid)})
    scene.gone_is(ObjectKind.IN_FLIGHT, Code.STILL_IN_USE)


def test_what_another_root_names_is_in_use(scene: Scene) -> None:
    assert scene.now is not None
    named = OffloadUuids.collect([pa.array([[str(scene.gone_uuid)]])])
    scene.now = replace(scene.now, offload_uuids=named)
    scene.gone_is(ObjectKind.IN_FLIGHT, Code.STILL_IN_USE)


# --------------------------------------------------------------------------------------------------------- what is kept


def test_without_the_word_that_the_buckets_are_ours_alone(scene: Scene) -> None:
    scene.exclusive = False
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.NOT_OURS)
    assert not [name for name, _, _ in scene.store.requests if name == "head"]


def test_without_an_earlier_scan(scene: Scene) -> None:
    scene.before = None
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.NOT_CONFIRMED)


def test_what_an_earlier_scan_found_named(scene: Scene) -> None:
    assert scene.before is not None
    named = OffloadUuids.collect([pa.array([[str(scene.gone_uuid)]])])
    scene.before = replace(scene.before, offload_uuids=named)
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.NOT_CONFIRMED)


def test_what_an_earlier_scan_found_listed(scene: Scene) -> None:
    assert scene.before is not None
    scene.before = replace(scene.before, refs=Referenced(needed=BitMap64([scene.gone])))
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.NOT_CONFIRMED)


@pytest.mark.parametrize(
    ("newest", "kind", "why"),
    [
        (False, ObjectKind.ORPHAN_PAIR, Code.NOT_CONFIRMED),
        (True, ObjectKind.NEW, Code.YOUNG),
    ],
)
def test_what_is_younger_than_a_scan_by_either_object(scene: Scene, newest: bool, kind: ObjectKind, why: Code) -> None:
    scan = scene.now if newest else scene.before
    assert scan
    key = index_key(scene.gone_uuid, scene.gone)
    index = scene.buckets.objects[BUCKET][key]
    scene.buckets.objects[BUCKET][key] = replace(index, last_modified=scan.epoch.started_at)
    scene.gone_is(kind, why)


def test_what_is_within_the_grace_period_by_the_worse_clock(scene: Scene) -> None:
    assert scene.before is not None
    head = scene.buckets.objects[BUCKET][data_key(scene.gone_uuid, scene.gone)]
    written = scene.cluster.clock.now_ms() - GRACE - 299_000
    scene.buckets.objects[BUCKET][head.key] = replace(head, last_modified=written)
    scene.before = replace(scene.before, epoch=replace(scene.before.epoch, started_at=written + DAY))
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.YOUNG)


@pytest.mark.parametrize(
    ("stored", "code"),
    [
        ({}, Code.NOT_OURS),
        (metadata(TOPIC, "another"), Code.NOT_OURS),
        (metadata(Topic.parse("persistent://other/ns/a")), Finding.FOREIGN),
        (metadata(TOPIC) | {"managedledgername": "acme/orders"}, Code.NOT_OURS),
        (metadata(Topic.parse("persistent://acme/orders/__x")), Finding.KEPT),
    ],
)
@pytest.mark.parametrize("key", [data_key, index_key])
def test_what_does_not_say_that_it_is_ours(
    scene: Scene, stored: Mapping[str, str], code: Code | Finding, key: Any
) -> None:
    for one in (data_key, index_key):
        name = one(scene.gone_uuid, scene.gone)
        head = scene.buckets.objects[BUCKET][name]
        both = stored.get("pulsarclustername") == CLUSTER
        if one is key or both:
            scene.buckets.objects[BUCKET][name] = replace(head, metadata=stored)
    scene.gone_is(ObjectKind.ORPHAN_PAIR, code)


def test_two_halves_of_different_topics(scene: Scene) -> None:
    name = index_key(scene.gone_uuid, scene.gone)
    head = scene.buckets.objects[BUCKET][name]
    other = metadata(Topic.parse("persistent://acme/orders/b"))
    scene.buckets.objects[BUCKET][name] = replace(head, metadata=other)
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.NOT_OURS)


def test_what_is_held(scene: Scene) -> None:
    scene.policy = replace(scene.policy, holds=frozenset({"acme"}))
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Finding.KEPT)


def test_what_a_shadow_topic_reads(scene: Scene) -> None:
    shadow = Topic.parse("persistent://acme/orders/shadow")
    scene.cluster.topic(shadow, [scene.last], shadow_of=str(TOPIC))
    scene.scan()
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Finding.KEPT)


def test_what_may_be_the_last_copy_of_a_listed_ledger(scene: Scene) -> None:
    scene.cluster.topic(TOPIC, [scene.gone, scene.live, scene.last], offloaded={scene.live: attempt(scene.live_uuid)})
    scene.scan()
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.LAST_COPY)
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.gone)
    assert scene.said(scene.gone_uuid, scene.gone)[1] == "delete"
    scene.cluster.reader.collected["bookie-1:3181"] = {scene.gone}
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.LAST_COPY)


def test_what_may_be_the_last_whole_copy_though_its_topic_reads_another(scene: Scene) -> None:
    other = uuid4()
    scene.copy(other, scene.gone)
    scene.list({scene.gone: attempt(other, bookkeeper_deleted=True)})
    scene.scan()
    assert scene.said(other, scene.gone)[0] == ObjectKind.COMPLETE
    assert scene.said(scene.gone_uuid, scene.gone)[1] == "delete"
    del scene.buckets.objects[BUCKET][data_key(other, scene.gone)]
    assert scene.said(other, scene.gone)[0] == ObjectKind.BROKEN
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.LAST_COPY)

    def refuse(name: str, bucket: str, keys: Any) -> None:
        if name == "head" and index_key(other, scene.gone) in keys:
            raise AccessDenied("no")

    scene.named.pop(other)
    scene.store.before = refuse
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.OBJECTS_UNREAD)


def test_what_cannot_be_looked_at(scene: Scene) -> None:
    def refuse(name: str, bucket: str, keys: Any) -> None:
        if name == "head":
            raise AccessDenied("no")

    scene.store.before = refuse
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.OBJECTS_UNREAD)


def test_what_is_written_again_while_it_is_looked_at(scene: Scene) -> None:
    def write(name: str, bucket: str, keys: Any) -> None:
        if name == "head":
            scene.store.before = lambda *_: None
            scene.copy(scene.gone_uuid, scene.gone)

    scene.store.before = write
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.NOT_CONFIRMED)


def test_a_topic_that_cannot_be_decoded_keeps_its_copies(scene: Scene) -> None:
    named = scene.named.pop(scene.live_uuid)
    scene.cluster.put(scene.cluster.topic_path(TOPIC), b"\xff\xff")
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Code.UNREAD)
    del scene.buckets.objects[BUCKET][data_key(scene.live_uuid, scene.live)]
    scene.named[scene.live_uuid] = named
    with pytest.raises(StoreError, match="cannot be read"):
        scene.look()


def test_a_listing_that_fails_is_no_inventory(scene: Scene) -> None:
    def fail(name: str, bucket: str, keys: Any) -> None:
        if name == "list_objects" and bucket == "empty":
            raise Unavailable("later")

    scene.store.before = fail
    with pytest.raises(Unavailable, match="later"):
        scene.look()


@pytest.mark.parametrize("digits", [1, 2])
def test_keys_of_no_offload_are_unknown_wherever_they_lie(scene: Scene, digits: int) -> None:
    keys = {
        "README",
        "0",
        "0-x",
        "a",
        "f~",
        "g",
        "~",
        "é",
        str(uuid4()),
        f"{uuid4()}-index",
        "9:",
        f"{uuid4()}-ledger-x",
    }
    keys |= {f"{scene.gone_uuid}-ledger-{scene.gone}-ind"}
    for key in keys:
        scene.buckets.put(BUCKET, key, b"x", metadata(TOPIC))
    scene.scan()
    found = scene.look(digits)
    assert {key for key, row in found.items() if row["kind"] == ObjectKind.UNKNOWN} == keys
    assert {found[key]["action"] for key in keys} == {""}
    assert found[data_key(scene.gone_uuid, scene.gone)]["objects"] == 2


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
    assert scene.said(scene.live_uuid, scene.live) == (ObjectKind.BROKEN, "", Code.OBJECT_CUT_OFF)
    objects[data.key] = replace(data, size=150)
    assert scene.said(scene.live_uuid, scene.live)[0] == ObjectKind.COMPLETE


def test_a_copy_that_failed_its_last_proof_is_not_complete(scene: Scene) -> None:
    """Its objects are there, of the right size."""
    scene.unproven = {(scene.live_uuid, scene.live): "one byte is another"}
    assert scene.said(scene.live_uuid, scene.live) == (ObjectKind.BROKEN, "", Code.NOT_PROVEN)
    scene.unproven = {(scene.live_uuid, scene.live + 1): "", (scene.gone_uuid, scene.live): "x"}
    assert scene.said(scene.live_uuid, scene.live)[0] == ObjectKind.COMPLETE


def test_what_a_topic_gave_up_since_the_scan_is_not_missed(scene: Scene) -> None:
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


IN_ANOTHER = f"a topic names its UUID, and reads it from bucket {BUCKET}"


@pytest.mark.parametrize("index", [INDEX, b""])
def test_a_copy_in_a_bucket_that_its_topic_does_not_read_stays(scene: Scene, index: bytes) -> None:
    scene.copy(scene.live_uuid, scene.live, bucket="empty", index=index)
    assert _of_live(scene) == {
        BUCKET: (ObjectKind.COMPLETE, "", "a topic reads it"),
        "empty": (ObjectKind.IN_FLIGHT, "", IN_ANOTHER),
    }


def test_a_copy_that_is_gone_from_the_bucket_that_its_topic_names_is_missed_though_another_has_it(scene: Scene) -> None:
    """Brokers read the bucket that the offload context names, and no other."""
    scene.copy(scene.live_uuid, scene.live, bucket="empty")
    elsewhere = {"empty": (ObjectKind.IN_FLIGHT, "", IN_ANOTHER)}
    objects = scene.buckets.objects[BUCKET]
    objects.pop(index_key(scene.live_uuid, scene.live))
    assert _of_live(scene) == elsewhere | {BUCKET: (ObjectKind.BROKEN, "", "its index object is missing")}
    objects.pop(data_key(scene.live_uuid, scene.live))
    assert _of_live(scene) == elsewhere | {BUCKET: (ObjectKind.BROKEN, "", "neither of its objects exists")}


def test_a_copy_whose_topic_names_a_bucket_that_is_not_declared_is_not_complete_in_another(scene: Scene) -> None:
    scene.cluster.topic(TOPIC, [scene.live], offloaded={scene.live: attempt(scene.live_uuid, bucket="elsewhere")})
    scene.scan()
    assert _of_live(scene) == {
        BUCKET: (ObjectKind.IN_FLIGHT, "", "a topic names its UUID, and reads it from bucket elsewhere"),
        "elsewhere": (ObjectKind.ELSEWHERE, "", "its bucket is not one of object_store.buckets"),
    }


@pytest.mark.parametrize("bucket", [BUCKET, "empty"])
def test_a_copy_whose_topic_names_no_bucket_is_complete_in_any(scene: Scene, bucket: str) -> None:
    for key in (data_key, index_key):
        scene.buckets.objects[BUCKET].pop(key(scene.live_uuid, scene.live))
    scene.copy(scene.live_uuid, scene.live, bucket=bucket)
    scene.cluster.topic(TOPIC, [scene.live], offloaded={scene.live: attempt(scene.live_uuid, bucket="")})
    scene.scan()
    assert _of_live(scene) == {bucket: (ObjectKind.COMPLETE, "", "a topic reads it")}


def test_a_copy_that_was_moved_after_the_scan_is_said_once(scene: Scene) -> None:
    scene.copy(scene.live_uuid, scene.live, bucket="empty")
    scene.cluster.topic(TOPIC, [scene.live], offloaded={scene.live: attempt(scene.live_uuid, bucket="empty")})
    for key in (data_key, index_key):
        scene.buckets.objects[BUCKET].pop(key(scene.live_uuid, scene.live))
    assert _of_live(scene) == {"empty": (ObjectKind.IN_FLIGHT, "", IN_ANOTHER)}
    scene.scan()
    assert _of_live(scene) == {"empty": (ObjectKind.COMPLETE, "", "a topic reads it")}


def _of_live(scene: Scene) -> dict[str, tuple[str, str, str]]:
    """By bucket: kind, action and reason of the live ledger's copies."""
    store = scene.cluster.open_store(read_only=True)
    prefix = str(scene.live_uuid)
    named = {scene.live_uuid: scene.named[scene.live_uuid]}
    rows = list(look_below(scene.inventory, store, scene.cluster.reader, scene.store, prefix, named))
    said = {row["bucket"]: (row["kind"], row["action"], row["reason"]) for row in rows}
    assert len(said) == len(rows)
    return said


# -------------------------------------------------------------------------------------------------------------- uploads


def uploads(scene: Scene, began: Mapping[UUID, Begun]) -> dict[str, tuple[str, str, str]]:
    rows = look_at_uploads(scene.inventory, scene.store, BUCKET, lambda ids: began)
    return {row["upload_id"]: (row["kind"], row["action"], row["reason"]) for row in rows}


def test_only_uploads_that_our_own_ended_attempts_left_behind_are_dropped(scene: Scene) -> None:
    said = scene.cluster.clock.now_ms() - GRACE - DAY
    names = ("left", "open", "recent", "foreign", "named")
    uuids = {name: uuid4() for name in names} | {"named": scene.live_uuid}
    ids = {name: scene.upload(uuid, 1000 + n) for n, (name, uuid) in enumerate(uuids.items())}
    strange = scene.store.begin_upload(BUCKET, "backup.tar", {})
    began = {uuids[name]: Begun(str(TOPIC), said) for name in ("left", "open")}
    began[uuids["recent"]] = Begun(str(TOPIC), scene.cluster.clock.now_ms() - DAY)
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
    assert "an upload says not whose it is" in uploads(scene, began)[ids["foreign"]][2]


class Sweeping:
    """An upload left behind, planned."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.uuid = scene, uuid4()
        self.upload = scene.upload(self.uuid, 77)
        self.began = {self.uuid: Begun(str(TOPIC), scene.cluster.clock.now_ms() - GRACE - DAY)}
        rows = look_at_uploads(scene.inventory, scene.store, BUCKET, lambda ids: self.began)
        self.rows = [row for row in rows if row["action"] == "abort"]
        assert len(self.rows) == 1

    def run(self) -> list[tuple[str, str]]:
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
        return [(one.outcome, one.reason) for some in done for one in some]


@pytest.fixture
def sweeping(scene: Scene) -> Sweeping:
    return Sweeping(scene)


def test_a_planned_upload_is_dropped_and_the_journal_says_so_before(sweeping: Sweeping) -> None:
    rows = sweeping.scene.cluster.journal.rows
    seen: list[str] = []
    sweeping.scene.store.before = lambda name, bucket, keys: seen.extend(
        row.outcome for row in rows if name == "abort_upload"
    )
    assert sweeping.run() == [("aborted", "an offload run of ours left it behind")]
    assert seen == ["aborting"]
    assert [(row.outcome, row.ledger_id, row.topic, row.plan_id) for row in rows] == [
        ("aborting", 77, str(TOPIC), "plan"),
        ("aborted", 77, str(TOPIC), "plan"),
    ]
    assert sweeping.upload not in sweeping.scene.buckets.uploads
    assert sweeping.run() == [("kept", "it does not exist any more")]


def test_an_attempt_that_was_opened_again_keeps_its_upload(sweeping: Sweeping) -> None:
    begin(sweeping.scene, sweeping.uuid, 77)
    assert sweeping.run() == [("kept", "it is an open offload attempt of ours")]
    assert sweeping.upload in sweeping.scene.buckets.uploads


def test_an_attempt_that_cannot_be_read_keeps_its_upload(sweeping: Sweeping) -> None:
    sweeping.scene.cluster.put(attempts.path_of(77), b"?")
    (said,) = sweeping.run()
    assert said[0] == "kept"
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
