"""One batch of a deletion run: what goes, and messages that must not delete anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    LedgerType,
    MessageOffloadContext,
    PendingDeleteLedgerInfo,
    encode_deletion_message,
)
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.referenced import Referenced
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.batch_scene import OTHER, TOPIC, outcomes
from tests.kit.scenes.batch_scene import BatchScene as Scene
from tests.kit.simulated.cluster import (
    bucket_key,
    data_tags,
    deleted_copy,
)
from tests.kit.simulated.pipeline import delete, two_scans


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_one_orphan_of_each_component_goes_and_nothing_else(scene: Scene) -> None:
    before = scene.cluster.ledger_ids()
    scene.send_all()
    assert outcomes(scene.delete()) == [Outcome.DELETED] * 5
    assert before - scene.cluster.ledger_ids() == scene.orphans
    assert scene.waiting == 0
    assert {row.ledger_id for row in scene.cluster.journal.nodes} == scene.orphans
    rows = scene.cluster.journal.rows
    assert [(row.ledger_id, row.outcome, row.plan_id) for row in rows] == [
        (i, Outcome.DELETED, "plan") for i in sorted(scene.orphans)
    ]
    assert {row.bytes for row in rows} == {10}
    assert all(len(row.checksum) == 64 for row in rows)


def test_a_message_dated_in_the_future_is_dated_anew(scene: Scene) -> None:
    """By whoever sent it; no scan that proves anything would ever be younger."""
    scene.publish(scene.intent(scene.data))
    ((number, (_, ready, raw, properties)),) = scene.cluster.deletion_topics.waiting.items()
    scene.cluster.deletion_topics.waiting[number] = (4_102_444_800_000, ready, raw, properties)
    (decision,) = scene.delete()
    assert (decision.outcome, decision.code) == (Outcome.RETRYING, Code.SENDERS_CLOCK)
    scene.again()
    assert outcomes(scene.delete()) == [Outcome.DELETED]
    assert scene.waiting == 0


def test_an_archived_node_is_what_was_deleted(scene: Scene) -> None:
    path = scene.cluster.path(scene.data)
    data, stat = scene.cluster.zookeeper.data(path), scene.cluster.zookeeper.stat(path)
    scene.publish(scene.intent(scene.data))
    scene.delete()
    (node,) = scene.cluster.journal.nodes
    assert stat is not None
    assert (node.path, node.data, node.version, node.czxid, node.ctime) == (
        path,
        data,
        stat.version,
        stat.czxid,
        stat.ctime,
    )


def forged(scene: Scene) -> Iterator[tuple[PendingDeleteLedgerInfo | bytes, str]]:
    """Messages about real orphans that do not fit them, and messages about what is no orphan."""
    data, cursor, schema = scene.intent(scene.data), scene.intent(scene.cursor), scene.intent(scene.schema)
    compacted, bucket = scene.intent(scene.compacted), scene.intent(scene.bucket)
    yield replace(data, topic_name=str(OTHER)), "the message says persistent://acme/orders/other"
    yield replace(data, topic_name=str(TOPIC.partitioned_parent)), "the message says"
    yield replace(data, component=LedgerComponent.COMPACTED_LEDGER), "the message says Compacted-Ledger"
    yield replace(cursor, component=LedgerComponent.MANAGED_LEDGER), "the message says Managed-Ledger"
    yield replace(data, component=LedgerComponent.MANAGED_CURSOR, cursor_name="s"), "the message says Managed-Cursor"
    yield replace(cursor, cursor_name="s"), "the message says cursor s"
    yield replace(schema, schema_id="acme/orders/other"), "the message says schema"
    yield replace(schema, topic_name=str(OTHER)), "the message says"
    yield replace(compacted, topic_name=str(OTHER)), "the message says"
    yield replace(bucket, bucket_key=bucket_key(1, 3)), "the message says"
    yield replace(bucket, cursor_name="t"), "the message says"
    yield replace(data, czxid=1), "another transaction"
    yield replace(data, ctime=1), "another time"
    yield b"not json", "JSON"
    yield b"\xff", "UTF-8"
    yield b"{}", "missing"
    yield json.dumps({"topicName": str(TOPIC), "ledgerId": scene.data, "ledgerType": "Ledger"}).encode(), "missing"
    yield encode_deletion_message(data).replace(b'"Managed-Ledger"', b'"Everything"'), "Everything"


FORGERIES = 18


def test_every_forgery_is_tried(scene: Scene) -> None:
    assert len(list(forged(scene))) == FORGERIES


@pytest.mark.parametrize("number", range(FORGERIES))
def test_a_message_that_does_not_fit_deletes_nothing_and_is_journalled_and_acknowledged(
    scene: Scene, number: int
) -> None:
    message, why = list(forged(scene))[number]
    raw = message if isinstance(message, bytes) else encode_deletion_message(message)
    scene.publish(raw)
    zxid = scene.cluster.zookeeper.zxid
    (decision,) = scene.delete()
    assert (decision.outcome, scene.waiting) == (Outcome.REFUSED, 0)
    assert decision.code is (Code.MISMATCH if decision.message.info else Code.UNPARSEABLE)
    assert why in decision.reason
    assert scene.cluster.journal.nodes == []
    assert scene.cluster.ledger_ids() >= scene.orphans
    (row,) = scene.cluster.journal.rows
    assert (row.outcome, row.code, row.reason) == (Outcome.REFUSED, decision.code, decision.reason)
    assert bytes.fromhex(json.loads(row.detail)["raw"]) == raw
    assert scene.cluster.zookeeper.zxid - zxid == 6  # the lease: two nodes above it, itself, its holder twice, version


def test_a_foreign_intent_without_our_extras_passes_the_whole_rule(scene: Scene) -> None:
    bare = {"plan_id": "", "czxid": None, "ctime": None, "sent_at": None}
    live = PendingDeleteLedgerInfo(
        topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=scene.live
    )
    young = scene.cluster.ledger(data_tags(TOPIC))
    scene.publish(
        replace(scene.intent(scene.data), **bare), live, replace(live, ledger_id=young), replace(live, ledger_id=999)
    )
    assert [(d.info.ledger_id, d.outcome) for d in scene.delete()] == [
        (scene.data, Outcome.DELETED),
        (scene.live, Outcome.KEPT),
        (young, Outcome.KEPT),
        (999, Outcome.GONE),
    ]
    assert scene.cluster.exists(scene.live)
    assert scene.cluster.exists(young)


def test_what_is_no_orphan_is_kept_by_its_finding(scene: Scene) -> None:
    cluster = scene.cluster
    system = Topic.parse("persistent://acme/orders/__change_events")
    elsewhere = Topic.parse("persistent://gone/away/x")
    leftover = cluster.ledger(data_tags(OTHER))
    cluster.topic(OTHER, [leftover], offloaded={leftover: deleted_copy()})
    ids = [
        leftover,
        cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN),
        cluster.ledger(data_tags(system)),
        cluster.ledger(data_tags(elsewhere)),
    ]
    owners = [OTHER, TOPIC, system, elsewhere]
    scene.now, scene.before = two_scans(cluster)
    base = PendingDeleteLedgerInfo(topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=0)
    scene.publish(*(replace(base, topic_name=str(t), ledger_id=i) for t, i in zip(owners, ids, strict=True)))
    decisions = scene.delete()
    assert outcomes(decisions) == [Outcome.KEPT] * 4
    assert [d.code for d in decisions] == [
        Finding.OFFLOAD_LEFTOVER,
        Finding.OPEN_ORPHAN,
        Protection.SYSTEM_TOPIC,
        Protection.UNKNOWN_NAMESPACE,
    ]
    assert cluster.ledger_ids() >= set(ids)


def test_an_offload_intent_waits_for_the_run_that_can_check_it(scene: Scene) -> None:
    context = MessageOffloadContext(lsb=1, msb=2, driver_name="aws-s3")
    scene.publish(replace(scene.intent(scene.data), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context))
    assert outcomes(scene.delete()) == [Outcome.WAITING]
    assert (scene.waiting, scene.cluster.exists(scene.data)) == (1, True)


def test_a_message_newer_than_the_scan_waits_for_the_next(scene: Scene) -> None:
    scene.put(scene.intent(scene.data))
    assert outcomes(scene.delete(run_id="first")) == [Outcome.WAITING]
    scene.publish()
    assert outcomes(scene.delete(run_id="second")) == [Outcome.DELETED]
    assert scene.waiting == 0


def test_a_ledger_that_the_earlier_scan_did_not_confirm_is_kept(scene: Scene) -> None:
    scene.publish(*[scene.intent(scene.data)] * 4)
    late = replace(scene.before, epoch=replace(scene.before.epoch, max_czxid=1))
    assert outcomes(delete(scene.cluster, scene.now, late, limit=1)) == [Outcome.KEPT]
    early = replace(scene.before, epoch=replace(scene.before.epoch, started_at=1))
    assert outcomes(delete(scene.cluster, scene.now, early, limit=1)) == [Outcome.KEPT]
    referenced = replace(scene.before, refs=scene.before.refs.merge(replace(scene.before.refs)))
    referenced.refs.needed.add(scene.data)
    assert outcomes(delete(scene.cluster, scene.now, referenced, limit=1)) == [Outcome.KEPT]
    offloaded = replace(scene.before, refs=Referenced(BitMap64(), BitMap64([scene.data])))
    assert outcomes(delete(scene.cluster, scene.now, offloaded, limit=1)) == [Outcome.KEPT]
    assert scene.cluster.exists(scene.data)


def test_of_two_messages_about_one_ledger_one_is_enough(scene: Scene) -> None:
    info = scene.intent(scene.data)
    scene.publish(info, replace(info, plan_id="another"), replace(info, czxid=1))
    assert outcomes(scene.delete()) == [Outcome.DELETED, Outcome.GONE, Outcome.REFUSED]
    assert (scene.waiting, len(scene.cluster.journal.nodes)) == (0, 1)


def test_the_twin_of_a_message_that_waits_waits_too(scene: Scene) -> None:
    info = scene.intent(scene.data)
    scene.publish(info, info)

    def touch(ports: Ports) -> Ports:
        def change(operation: Operation) -> None:
            if operation.name == "delete_many":
                ports.store.before = lambda operation: None
                path = scene.cluster.path(scene.data)
                scene.cluster.put(path, scene.cluster.zookeeper.data(path))

        ports.store.before = change
        return ports

    decisions = scene.delete(touch)
    assert outcomes(decisions) == [Outcome.RETRYING, Outcome.RETRYING]
    assert [d.code for d in decisions] == [Code.CHANGED_MEANWHILE, Code.TWIN]
    scene.again()
    assert (scene.waiting, scene.cluster.exists(scene.data)) == (2, True)
    assert outcomes(scene.delete()) == [Outcome.DELETED, Outcome.GONE]
