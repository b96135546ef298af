"""The inventory of the buckets: what every object is, what keeps it, and uploads that our own runs left behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.copies.object_pairs import ObjectKind
from pulsar_lifecycle.errors import AccessDenied, StoreError, Unavailable
from pulsar_lifecycle.formats.managed_ledger import OffloadContext, OffloadSegment
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.tiered.buckets import bucket_rules
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.offload_uuids import OffloadUuids
from pulsar_lifecycle.values.referenced import Referenced
from tests.kit.scenes.tiered.bucket_scene import DAY, TOPIC, begin
from tests.kit.scenes.tiered.bucket_scene import BucketScene as Scene
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.offloaded import BUCKET, CLUSTER, attempt, metadata
from tests.kit.simulated.pipeline import GRACE


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
        (metadata(Topic.parse("persistent://other/ns/a")), Protection.UNKNOWN_NAMESPACE),
        (metadata(TOPIC) | {"managedledgername": "acme/orders"}, Code.NOT_OURS),
        (metadata(Topic.parse("persistent://acme/orders/__x")), Protection.SYSTEM_TOPIC),
    ],
)
@pytest.mark.parametrize("key", [data_key, index_key])
def test_what_does_not_say_that_it_is_ours(
    scene: Scene, stored: Mapping[str, str], code: Code | Protection, key: Any
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
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Protection.LEGAL_HOLD)


def test_what_a_shadow_topic_reads(scene: Scene) -> None:
    shadow = Topic.parse("persistent://acme/orders/shadow")
    scene.cluster.topic(shadow, [scene.last], shadow_of=str(TOPIC))
    scene.scan()
    scene.gone_is(ObjectKind.ORPHAN_PAIR, Protection.SHADOW_SOURCE)


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
