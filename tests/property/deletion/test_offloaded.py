"""No deletion run ever deletes an object that some LedgerInfo reaches, over random clusters, messages and faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import event, given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.deletion.run_evidence import DeclaredBuckets
from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.managed_ledger import OffloadContext, OffloadSegment
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.copies import Asked
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.simulated.offloaded import BUCKET, CLUSTER, POLICY, Offloading, attempt, metadata

TOPICS = [
    Topic.parse(f"persistent://{name}")
    for name in ("acme/orders/a+b c~é", "acme/orders/a-partition-0", "acme/other/a", "acme/dc1/orders/a")
]
UUIDS = [UUID(int=(n << 64) + (1 << 63) * (n % 2) + n) for n in range(1, 9)]


@dataclass
class Drawn:
    """What was drawn: the cluster, every (topic, ledger, uuid) that has objects, and the truth about the live ones."""

    offloading: Offloading = field(default_factory=Offloading)
    ledgers: dict[Topic, list[int]] = field(default_factory=dict)
    stored: list[tuple[Topic, int, UUID]] = field(default_factory=list)

    def reachable(self) -> set[str]:
        """Keys of objects that any z-node of any topic leads to, by the z-nodes as they are now."""
        cluster = self.offloading.cluster
        keys: set[str] = set()
        for topic in [*TOPICS, *SHADOWS.values()]:
            path = cluster.topic_path(topic)
            if cluster.zookeeper.stat(path) is None:
                continue
            for item in managed_ledger.decode(cluster.zookeeper.data(path)).ledgers:
                for uuid in managed_ledger.offload_uuids(managed_ledger.ManagedLedgerInfo((item,))):
                    keys |= {data_key(uuid, item.ledger_id), index_key(uuid, item.ledger_id)}
        return keys


SHADOWS = {topic: Topic(topic.namespace, f"shadow of {topic.local}") for topic in TOPICS}


def contexts(draw: Any, ledgers: Sequence[int]) -> dict[int, OffloadContext]:
    found: dict[int, OffloadContext] = {}
    for ledger in ledgers:
        uuid = draw(st.none() | st.sampled_from(UUIDS))
        if uuid is None:
            continue
        if draw(st.integers(0, 4)) == 0:
            segment = OffloadSegment(uuid, draw(st.booleans()), None, None, None, None, {})
            found[ledger] = OffloadContext(None, False, False, None, None, {}, (segment,))
        else:
            found[ledger] = attempt(uuid, complete=draw(st.booleans()), bookkeeper_deleted=draw(st.booleans()))
    return found


def write(draw: Any, drawn: Drawn, topic: Topic) -> None:
    """The topic's z-node: all of its ledgers or a part, with attempts drawn anew; perhaps a shadow's too, or none."""
    cluster, ledgers = drawn.offloading.cluster, drawn.ledgers[topic]
    listed = draw(st.lists(st.sampled_from(ledgers), unique=True)) if ledgers else []
    what = contexts(draw, listed)
    if draw(st.integers(0, 5)) == 0 and cluster.zookeeper.stat(cluster.topic_path(topic)) is not None:
        cluster.remove(cluster.topic_path(topic))
    else:
        cluster.topic(topic, listed, offloaded=what)
    if draw(st.integers(0, 3)) == 0:
        cluster.topic(SHADOWS[topic], listed, offloaded=what, shadow_of=str(topic) if draw(st.booleans()) else "")


def messages(draw: Any, drawn: Drawn) -> list[PendingDeleteLedgerInfo]:
    made: list[PendingDeleteLedgerInfo] = []
    for _ in range(draw(st.integers(1, 8))):
        true = draw(st.sampled_from(drawn.stored)) if drawn.stored else (TOPICS[0], 1, UUIDS[0])
        topic, ledger, uuid = true
        if draw(st.integers(0, 3)) == 0:
            topic = draw(st.sampled_from(TOPICS))
        if draw(st.integers(0, 3)) == 0:
            uuid = draw(st.sampled_from(UUIDS))
        made.append(drawn.offloading.message(uuid, ledger, topic))
    return made


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_nothing_that_a_ledger_info_names_is_ever_deleted(data: Any) -> None:
    draw = data.draw
    drawn = Drawn()
    scene = drawn.offloading
    scene.offload = DeclaredBuckets(POLICY.buckets, CLUSTER, draw(st.booleans()))
    for topic in TOPICS[: draw(st.integers(1, 4))]:
        drawn.ledgers[topic] = [scene.ledger(topic) for _ in range(draw(st.integers(1, 3)))]
        write(draw, drawn, topic)
        for ledger in drawn.ledgers[topic]:
            for uuid in draw(st.lists(st.sampled_from(UUIDS), max_size=3, unique=True)):
                owner = draw(st.sampled_from([topic, topic, topic, *TOPICS]))
                stored = metadata(owner, draw(st.sampled_from([CLUSTER, CLUSTER, CLUSTER, "another"])))
                scene.put(uuid, ledger, topic, stored=stored, data=draw(st.booleans()), index=draw(st.booleans()))
                drawn.stored.append((topic, ledger, uuid))
    scene.age()
    for topic in drawn.ledgers:
        if draw(st.booleans()):
            write(draw, drawn, topic)
            if draw(st.booleans()):
                scene.age()
        if draw(st.booleans()):
            asked = Asked(str(topic), draw(st.none() | st.sampled_from(UUIDS)))
            scene.marked[draw(st.sampled_from(drawn.ledgers[topic])), asked] = scene.cluster.clock.now_ms()
    scene.send(*messages(draw, drawn))
    if draw(st.booleans()):
        write(draw, drawn, draw(st.sampled_from(list(drawn.ledgers))))
    fails = draw(st.sets(st.integers(0, 30), max_size=3))
    late = draw(st.booleans())
    asked = 0

    def lose(name: str, bucket: str, keys: Sequence[str]) -> None:
        nonlocal asked
        asked += 1
        if asked in fails:
            raise Unavailable("no answer")

    setattr(scene.store, "after" if late else "before", lose)
    reachable, before = drawn.reachable(), scene.buckets.keys(BUCKET)
    for _ in range(2):
        decisions = scene.delete()
        lost = before - scene.buckets.keys(BUCKET)
        event(f"deleted: {bool(lost)}")
        assert not lost & reachable
        named = {
            one["key"] for r in scene.cluster.journal.rows if r.outcome == "deleting" for one in _objects(r.detail)
        }
        assert lost <= named
        assert all(
            not {data_key(u, i), index_key(u, i)} & scene.buckets.keys(BUCKET)
            for d in decisions
            if d.outcome in (Outcome.DELETED, Outcome.GONE)
            for u, i in [(_uuid_of(d.path), d.info.ledger_id)]
        )
        scene.cluster.wait(1)
        scene.rescan()


def _objects(detail: str) -> list[dict[str, Any]]:
    return json.loads(detail)["objects"]


def _uuid_of(path: str) -> UUID:
    return UUID(path.rpartition("/")[2].partition("-ledger-")[0])
