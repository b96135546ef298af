"""Messages for the deletion queue as a well-informed liar would write them.

Every field agrees with the ledger's own metadata, so that nothing but the safety rules can tell such a message from a
true one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from pulsar_lifecycle.formats.deletion_message import LedgerComponent, PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.metastore.bookkeeper_ledgers import ledger_rows
from pulsar_lifecycle.model import decode_name
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.settings import ZooKeeperSettings
from pulsar_lifecycle.values.findings import COMPONENTS, component_of
from pulsar_lifecycle.values.owner_names import owner_of
from sandbox.clients import pulsar_client
from sandbox.cluster import Cluster

QUEUE = "persistent://pulsar/system/__ledger_deletion"
SENT_BEFORE_MS = 2 * 3_600_000
"""How long ago a forged message says it was sent: past the hour in which what is in use is retried, not kept."""
SOME_TOPIC = "persistent://it/forged/topic"


def forged(sandbox: Cluster, ids: Iterable[int]) -> list[PendingDeleteLedgerInfo]:
    """One message per ledger; a ledger without usable tags, or without a z-node, is called a topic's data."""
    wanted = sorted(set(ids))
    with KazooStore(ZooKeeperSettings(hosts=sandbox.zookeeper), read_only=True) as store:
        nodes = [node for node in store.read([ledger_path(i) for i in wanted]) if isinstance(node, Node)]
    rows = {row["ledger_id"]: row for row in ledger_rows(nodes).to_pylist()}
    return [_message(ledger, rows.get(ledger, {})) for ledger in wanted]


def _message(ledger: int, row: dict) -> PendingDeleteLedgerInfo:
    tag = row.get("component")
    if tag == "schema" and not row["schema_id"]:
        tag = None
    tags = [row.get(name) for name in ("managed_ledger", "schema_id", "compacted_topic", "bucket_topic")]
    return PendingDeleteLedgerInfo(
        topic_name=owner_of(tag, *tags)[1] or SOME_TOPIC,
        component=component_of(tag, row["cursor"]) if tag in COMPONENTS else LedgerComponent.MANAGED_LEDGER,
        ledger_id=ledger,
        cursor_name=decode_name(row["cursor"]) if row.get("cursor") else row.get("bucket_cursor") or "",
        schema_id=row.get("schema_id") or "",
        bucket_key=row.get("bucket_key") or "",
        czxid=row.get("czxid"),
        ctime=row.get("ctime"),
        sent_at=int(time.time() * 1000) - SENT_BEFORE_MS,
    )


def malformed(ledger: int, topic: str) -> dict[str, bytes]:
    """Messages that are none, by what is wrong with them; each names ``ledger`` as far as it can."""
    good = {"topicName": topic, "ledgerComponent": "Managed-Ledger", "ledgerType": "Ledger", "ledgerId": ledger}
    bad = {
        "no topic": {**good, "topicName": None},
        "no component": {**good, "ledgerComponent": None},
        "no such component": {**good, "ledgerComponent": "Managed-Everything"},
        "no ledger": {**good, "ledgerId": None},
        "a negative ledger": {**good, "ledgerId": -ledger - 1},
        "a ledger as text": {**good, "ledgerId": str(ledger)},
        "a cursor without a name": {**good, "ledgerComponent": "Managed-Cursor"},
        "a schema without an id": {**good, "ledgerComponent": "Schema-Storage"},
        "a topic that is none": {**good, "topicName": "shop"},
    }
    return {
        **{what: json.dumps(document).encode() for what, document in bad.items()},
        "not JSON": f"please delete ledger {ledger}".encode(),
        "a list": json.dumps([good]).encode(),
        "not text": b"\xff\xfe\x00",
        "nothing": b"",
    }


def send_raw(sandbox: Cluster, payloads: Iterable[bytes]) -> None:
    """Anyone may write to the queue."""
    with pulsar_client(sandbox.service_url) as client:
        producer = client.create_producer(QUEUE, batching_enabled=False)
        for payload in payloads:
            producer.send(payload)
        producer.close()
