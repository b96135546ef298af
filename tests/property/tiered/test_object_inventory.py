"""Nothing that is referenced, in flight, young, foreign or held is ever planned, over random buckets and metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from hypothesis import event, given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.copies import attempts, object_pairs
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.object_pairs import CLOCK_SKEW_MS, ObjectKind
from pulsar_lifecycle.formats.managed_ledger import OffloadContext, OffloadSegment
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.metastore.topics import read_managed_ledgers, topic_units
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.tiered.buckets.bucket_listing import Inventory, look_below
from pulsar_lifecycle.tiered.buckets.bucket_rules import Rules
from tests.kit.simulated.offloaded import BUCKET, CLUSTER, Offloading, attempt, metadata
from tests.kit.simulated.pipeline import GRACE, scan

TOPICS = [Topic.parse(f"persistent://{name}") for name in ("acme/orders/a+b c~é", "acme/held/a", "acme/other/a")]
GONE = Topic.parse("persistent://gone/ns/a")
UUIDS = [UUID(int=(n << 124) + n) for n in range(6)]
LEDGERS = range(1, 5)
BUCKETS = (BUCKET, "empty")


def contexts(draw: Any) -> dict[int, OffloadContext]:
    found: dict[int, OffloadContext] = {}
    for ledger in draw(st.lists(st.sampled_from(LEDGERS), unique=True)):
        uuid = draw(st.sampled_from(UUIDS))
        if draw(st.integers(0, 4)) == 0:
            segment = OffloadSegment(uuid, draw(st.booleans()), None, None, None, None, {})
            found[ledger] = OffloadContext(None, False, False, None, None, {}, (segment,))
        else:
            complete, bookkeeper_deleted, bucket = (
                draw(st.booleans()),
                draw(st.booleans()),
                draw(st.sampled_from([*BUCKETS, ""])),
            )
            found[ledger] = attempt(uuid, complete=complete, bookkeeper_deleted=bookkeeper_deleted, bucket=bucket)
    return found


def write(draw: Any, offloading: Offloading) -> dict[Topic, set[UUID]]:
    """Every topic's z-node, drawn anew; what each names."""
    named: dict[Topic, set[UUID]] = {}
    for topic in TOPICS:
        what = contexts(draw)
        offloading.cluster.topic(topic, sorted({*what, 9}), offloaded=what)
        named[topic] = {uuid for one in what.values() for uuid in (one.uuid, *(s.uuid for s in one.segments)) if uuid}
    return named


def put(draw: Any, offloading: Offloading) -> dict[tuple[str, str], tuple[Topic, str]]:
    """Objects of some attempts, by bucket and key; what each says of its origin."""
    says: dict[tuple[str, str], tuple[Topic, str]] = {}
    for uuid in draw(st.lists(st.sampled_from(UUIDS), unique=True)):
        ledger, bucket = draw(st.sampled_from(LEDGERS)), draw(st.sampled_from(BUCKETS))
        for key in draw(st.lists(st.sampled_from([data_key, index_key]), min_size=1, unique=True)):
            topic = draw(st.sampled_from([*TOPICS, GONE]))
            cluster = draw(st.sampled_from([CLUSTER, CLUSTER, CLUSTER, "another"]))
            offloading.buckets.put(bucket, key(uuid, ledger), b"x" * 500, metadata(topic, cluster))
            says[bucket, key(uuid, ledger)] = topic, cluster
    return says


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_nothing_needed_young_or_foreign_is_ever_planned(data: st.DataObject) -> None:
    draw = data.draw
    offloading = Offloading()
    write(draw, offloading)
    says = put(draw, offloading)
    offloading.cluster.wait(draw(st.sampled_from([0, 24, 24 * 8])))
    if draw(st.booleans()):
        write(draw, offloading)
    before = scan(offloading.cluster)
    offloading.cluster.wait(25)
    if draw(st.integers(0, 3)) == 0:
        says |= put(draw, offloading)
    if draw(st.booleans()):
        write(draw, offloading)
    now = scan(offloading.cluster)
    store = offloading.cluster.open_store()
    topics = list(read_managed_ledgers(store, topic_units(store)))
    offload_references = object_pairs.by_uuid(
        row for batch in topics for row in object_pairs.offload_references(batch, "").to_pylist()
    )
    open_ones = {
        ledger: draw(st.sampled_from(UUIDS)) for ledger in draw(st.lists(st.sampled_from(LEDGERS), unique=True))
    }
    for ledger, uuid in open_ones.items():
        location = (("bucket", BUCKET),)
        one = Attempt(
            ledger, str(TOPICS[0]), uuid, "aws-s3", location, 5 << 20, "run", offloading.cluster.clock.now_ms()
        )
        attempts.begin(store, one)
    late = write(draw, offloading) if draw(st.integers(0, 3)) == 0 else {}
    exclusive = draw(st.integers(0, 4)) > 0
    context = now.context.at(offloading.cluster.clock.now_ms())
    rules = Rules(
        replace(context, holds=frozenset({"acme/held"}), grace=GRACE),
        CLUSTER,
        exclusive,
        now.epoch.started_at,
        before.epoch.started_at,
        frozenset(open_ones.values()),
    )
    look = Inventory(BUCKETS, rules, now.offload_uuids, before.offload_uuids, now.refs, before.refs, "/ledgers")
    rows = list(look_below(look, store, offloading.cluster.reader, offloading.store, "", offload_references))
    going = [row for row in rows if row["action"]]
    event("planned" if going else "nothing planned")
    for row in going:
        uuid, ledger, bucket = UUID(row["uuid"]), row["ledger_id"], row["bucket"]
        keys = [key for name in (data_key, index_key) if (key := (bucket, name(uuid, ledger))) in says]
        assert exclusive
        assert not now.offload_uuids.named([uuid])
        assert not before.offload_uuids.named([uuid])
        assert uuid not in open_ones.values()
        assert all(says[key][1] == CLUSTER and says[key][0] in TOPICS for key in keys)
        assert all(str(says[key][0].namespace) != "acme/held" for key in keys)
        assert all(uuid not in late.get(says[key][0], ()) for key in keys)
        newest = max(offloading.buckets.objects[bucket][key].last_modified for _, key in keys)
        assert newest + CLOCK_SKEW_MS < before.epoch.started_at
        assert rules.context.now - newest >= GRACE
        assert row["kind"] in (ObjectKind.ORPHAN_PAIR, ObjectKind.LONE_DATA, ObjectKind.LONE_INDEX)
    listed = [row for row in rows if row["objects"]]
    assert sum(row["objects"] for row in listed) == sum(len(offloading.buckets.objects[name]) for name in BUCKETS)
    said = {(row["uuid"], row["ledger_id"], row["bucket"]): row["kind"] for row in rows}
    for one in (
        one for several in offload_references.values() for one in several if one.complete and one.bucket and not late
    ):
        assert one.ledger_id is not None
        whole = all((one.bucket, name(one.uuid, one.ledger_id)) in says for name in (data_key, index_key))
        assert said[str(one.uuid), one.ledger_id, one.bucket] == (ObjectKind.COMPLETE if whole else ObjectKind.BROKEN)
