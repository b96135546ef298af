"""Ten thousand malformed and forged messages on the real queue: none deletes anything, none stops it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pulsar
import pytest

from pulsar_lifecycle._pb.pulsar_mldata_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from pulsar_lifecycle._pb.pulsar_schema_pb2 import SchemaLocator
from pulsar_lifecycle.formats.deletion_message import encode_deletion_message
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, verify, znodes
from sandbox.planting.seed import Live
from tests.integration.deletion import forgery
from tests.integration.pipeline import (
    PATIENT,
    Pipeline,
    emptied,
    existing,
    new_namespace,
    transactions,
    wait_unlisted,
)

pytestmark = pytest.mark.integration

MESSAGES = 10_000
COUNTS = ["", "-1", "1e9", "7", "9" * 40, "ten", "0x10"]
FIELDS = ["topicName", "ledgerComponent", "ledgerType", "ledgerId", "cursorName", "schemaId", "offloadContext"]
TOPIC_DEPTH = 5
"""Slashes of ``/managed-ledgers/TENANT/NAMESPACE/persistent/TOPIC``."""
VALUES = [None, "", 0, -1, 2**63, 1e308, True, [], {}, "persistent://a/b/c", "x" * 3_000, {"lsb": 1}, "Offload-Ledger"]


def flood(truthful: list[bytes], chance: random.Random) -> Iterator[tuple[bytes, dict[str, str]]]:
    """Messages that name real ledgers truthfully, and the same with one thing or many wrong with them."""
    for _ in range(MESSAGES):
        raw = chance.choice(truthful)
        document = json.loads(raw)
        other = json.loads(chance.choice(truthful))
        how = chance.randrange(9)
        if how == 1:
            document[chance.choice(FIELDS)] = chance.choice(VALUES)
        elif how == 2:
            document |= {name: other[name] for name in chance.sample(FIELDS, 3)}
        elif how == 3:
            document |= {"czxid": None, "ctime": None, "planId": "orphans-20260101T000000-abcdef-0123"}
        elif how == 4:
            document |= {"sentAt": chance.choice([0, 1, 2**62, -5, "now"])}
        raw = json.dumps(document).encode()
        if how == 5:
            raw = raw[: chance.randrange(len(raw))]
        elif how == 6:
            spoilt = bytearray(raw)
            for _ in range(chance.randint(1, 8)):
                spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
            raw = bytes(spoilt)
        elif how == 7:
            raw = raw[:-1] + b',"ledgerId":' + str(other["ledgerId"]).encode() + b"}"
        elif how == 8:
            raw = chance.choice(
                [b"", b"[" * 5_000, b"\xff\xfe", b"null", b"{}", raw * 2, b'"%d"' % document["ledgerId"]]
            )
        yield raw, {"RECONSUMETIMES": chance.choice(COUNTS)} if chance.random() < 0.2 else {}


def test_ten_thousand_lies_delete_nothing_and_stop_nothing(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "flood")
    live, leaked = f"persistent://{namespace}/live", f"persistent://{namespace}/leaked"
    contents = topics.payloads(300)
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        topics.publish(client, live, contents)
        admin.post_schema(live, 1)
        admin.unload(live)
    orphans = {entry.ledger_id for entry in plant.orphan_data(sandbox, leaked)}
    wait_unlisted(sandbox, [live, leaked])
    pipeline = pipelines({"deletion": {**PATIENT, "twoPhaseDeletionMaxRetryDeleteCount": 0}})
    pipeline.scan()
    epoch = pipeline.scan()
    planned = pipeline.plan(epoch)
    assert orphans <= planned.ids
    there = _ledgers(sandbox)
    kept = there - planned.ids
    named = _named(sandbox)
    truthful = [encode_deletion_message(info) for info in forgery.forged(sandbox, kept)]
    _publish(sandbox, flood(truthful, random.Random(186)))
    pipeline.apply(pipeline.order(planned))
    outcomes = pipeline.scan_and_delete()

    found = Counter({outcome.outcome: 0 for outcome in outcomes})
    for outcome in outcomes:
        found[outcome.outcome] += outcome.ledgers
    assert emptied(sandbox), found
    gone = kept - existing(sandbox, kept)
    assert not gone & named, [pipeline.archived(ledger) for ledger in gone & named]
    # A true message of what leaked, and that the plan left alone (seen once, or its broker may have held it then),
    # deletes it: by now two scans found nothing that refers to it.
    assert gone <= pipeline.findings(epoch).keys(), [pipeline.archived(ledger) for ledger in gone]
    assert found["deleted"] == len(planned.ids) + len(gone), (found, [pipeline.archived(ledger) for ledger in gone])
    assert sum(found.values()) == MESSAGES + len(planned.ids), found
    assert not existing(sandbox, planned.ids)
    assert verify.read_back(sandbox, [Live(live, len(contents), topics.digest(contents))]) == []


def _ledgers(sandbox: Cluster) -> set[int]:
    """Every ledger of every topic of the cluster, and all that only BookKeeper knows."""
    with sandbox.metadata() as zk:
        return {ledger for ledger in range(_newest(zk) + 1) if zk.exists(znodes.ledger_znode(ledger))}


def _named(sandbox: Cluster) -> set[int]:
    """Every ledger that a z-node of a topic, a cursor or a schema names."""
    found: set[int] = set()
    with sandbox.metadata() as zk:
        for path in transactions(zk, ["/managed-ledgers", "/schemas"]):
            data = zk.get(path)[0]
            depth = path.count("/")
            if path.startswith("/schemas/") and depth == TOPIC_DEPTH - 1:
                locator = SchemaLocator.FromString(data)
                found |= {entry.position.ledgerId for entry in [locator.info, *locator.index]}
            elif path.startswith("/managed-ledgers/") and depth == TOPIC_DEPTH:
                found |= {entry.ledgerId for entry in ManagedLedgerInfo.FromString(data).ledgerInfo}
            elif path.startswith("/managed-ledgers/") and depth == TOPIC_DEPTH + 1:
                cursor = ManagedCursorInfo.FromString(data)
                found |= {cursor.cursorsLedgerId, *znodes.bucket_ledgers(cursor)}
                found |= {value.value for value in cursor.properties if value.name == "CompactedTopicLedger"}
    return found


def _newest(zk: object) -> int:
    taken = zk.create("/ledgers/idgen/ID-", b"", ephemeral=True, sequence=True)  # type: ignore[attr-defined]
    zk.delete(taken)  # type: ignore[attr-defined]
    return int(taken.rpartition("-")[2])


def _publish(sandbox: Cluster, messages: Iterator[tuple[bytes, dict[str, str]]]) -> None:
    failures: list[object] = []
    with pulsar_client(sandbox.service_url) as client:
        producer = client.create_producer(
            forgery.QUEUE, batching_enabled=False, block_if_queue_full=True, max_pending_messages=500
        )

        def receipt(result: pulsar.Result, _: object) -> None:
            if result != pulsar.Result.Ok:
                failures.append(result)

        for raw, properties in messages:
            producer.send_async(raw, receipt, properties=properties)
        producer.flush()
    assert not failures, failures[:3]
