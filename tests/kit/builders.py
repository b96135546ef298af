"""Values that several test modules build on: messages, intents, rows of the journal.

Belongs here: one of each, to be changed by ``dataclasses.replace``. Not here: what is on a cluster (scenes), settings.
"""

from __future__ import annotations

import struct
from typing import Any

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, PendingDeleteLedgerInfo
from pulsar_lifecycle.journal.metrics import HOUR_MS
from pulsar_lifecycle.ports import Archived, JournalRow
from pulsar_lifecycle.values import outcomes
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.gaps import Gap, GapCode

NOON = 1_760_000_000_000
"""2025-10-09T08:53:20Z, in ms."""

A_GAP = Gap(GapCode.TABLE_NOT_READ, "schemas", "schemas was not read")

ROW = JournalRow(
    run_id="run-1",
    cluster="sandbox",
    plan_id="plan-1",
    ledger_id=4711,
    component="Managed-Ledger",
    topic="persistent://a/b/c",
    action="delete",
    phase="effect",
    outcome="done",
    reason="orphan",
    bytes=2**40,
    checksum="",
    detail="",
    at=NOON,
)
"""A row of the journal that nothing but its fields says anything about."""

DELETED_ROW = JournalRow(
    "run",
    "c",
    "p",
    1,
    "",
    "",
    outcomes.Action.DELETE_LEDGER,
    "delete",
    outcomes.Outcome.DELETED,
    "",
    10,
    "",
    "",
    400_000 * HOUR_MS + 5,
)
"""What a deletion run says of a ledger that it deleted, five ms after a full hour."""

NODE = Archived(
    run_id="run-1",
    cluster="sandbox",
    ledger_id=2**63 - 1,
    path="/ledgers/00/0000/L4711",
    data=b"\x00BookieMetadataFormatVersion\t3\n\xff",
    version=0,
    czxid=2**40,
    ctime=NOON,
    at=NOON,
)
"""An archived z-node of a ledger."""

PROOF = {
    "data_size": 1,
    "data_etag": "d",
    "index_size": 2,
    "index_etag": "i",
    "entries": 3,
    "length": 4,
    "checksum": "c",
}
"""What the journal says of an offloaded copy that was read back whole."""

ORDERS = "persistent://acme/orders/placed-partition-3"
BILLS = "persistent://acme/bills/sent"


def intent(ledger_id: int, topic: str = ORDERS, plan_id: str = "") -> PendingDeleteLedgerInfo:
    """A message that proposes to delete a ledger of a topic."""
    return PendingDeleteLedgerInfo(
        topic_name=topic, component=LedgerComponent.MANAGED_LEDGER, ledger_id=ledger_id, plan_id=plan_id
    )


def intents(count: int, first: int = 0) -> list[PendingDeleteLedgerInfo]:
    """As many as that, of one plan."""
    return [intent(first + n, "persistent://acme/orders/placed", "plan-1") for n in range(count)]


def entry(payload: bytes = b"hello", **fields: Any) -> bytes:
    """An entry of a topic's ledger as brokers store it; ``fields`` are of MessageMetadata."""
    given = {"producer_name": "p", "sequence_id": 3, "publish_time": 1_700_000_000_000, **fields}
    metadata = pb.MessageMetadata(**given).SerializeToString()
    return struct.pack(">i", len(metadata)) + metadata + payload


CHUNK = entry(b"x", num_chunks_from_msg=3, chunk_id=1, uuid="u", compression=pb.LZ4)
"""Part of a message: REST cannot show it."""


def some_why(text: str = "") -> Why:
    """Why something is so, where a test does not care for the code."""
    return Why(Code.SERVER_FAILED, text)
