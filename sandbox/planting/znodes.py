"""The z-nodes that planting reads and edits: topics, cursors, ledgers.

Belongs here: paths, and reading or rewriting one z-node. Not here: which of them are taken away
(:mod:`sandbox.planting.plant`).
Formats: managed-ledger 4.0.7 ``MLDataFormats.proto``, BookKeeper 4.17 ``LedgerMetadataSerDe`` version 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from typing import Any

from google.protobuf.proto import serialize_length_prefixed
from kazoo.client import KazooClient

from pulsar_lifecycle._pb import bookkeeper_metadata_pb2 as bk
from pulsar_lifecycle._pb import pulsar_mldata_pb2 as ml
from pulsar_lifecycle.model import Topic, encode_name

_METADATA_HEADER = b"BookieMetadataFormatVersion\t3\n"
_BUCKET_PREFIX = "#pulsar.internal.delayed.bucket_"


def topic_znode(topic: str) -> str:
    """``/managed-ledgers/T/NS/persistent/ENC(local)`` of a full topic name."""
    return f"/managed-ledgers/{Topic.parse(topic).managed_ledger}"


def cursor_znode(topic: str, subscription: str) -> str:
    """The cursor's z-node below its topic's."""
    return f"{topic_znode(topic)}/{encode_name(subscription)}"


def schema_znode(topic: str) -> str:
    """The schema locator's z-node."""
    return f"/schemas/{Topic.parse(topic).schema_id}"


def namespace_znode(topic: str) -> str:
    """The policies of the topic's namespace."""
    return f"/admin/policies/{Topic.parse(topic).namespace}"


def ledger_znode(ledger_id: int) -> str:
    """``/ledgers/LL/LLLL/LLLLL`` of an id below 2**31 - 1, the only ones a sandbox has."""
    digits = f"{ledger_id:010d}"
    return f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"


def _read(zk: KazooClient, path: str) -> bytes:
    got: Any = zk.get(path)
    data: bytes = got[0]
    return data


def listed_ledgers(zk: KazooClient, topic: str) -> list[int]:
    """The ledgers on the topic's list."""
    return [entry.ledgerId for entry in ml.ManagedLedgerInfo.FromString(_read(zk, topic_znode(topic))).ledgerInfo]


def read_cursor(zk: KazooClient, topic: str, subscription: str) -> ml.ManagedCursorInfo:
    """The cursor's z-node, decoded."""
    return ml.ManagedCursorInfo.FromString(_read(zk, cursor_znode(topic, subscription)))


def bucket_ledgers(cursor: ml.ManagedCursorInfo) -> list[int]:
    """The delayed-index snapshot ledgers that the cursor's properties name."""
    found = (item for item in cursor.cursorProperties if item.name.startswith(_BUCKET_PREFIX))
    return sorted(int(item.value) for item in found)


@contextmanager
def editing(zk: KazooClient, topic: str) -> Iterator[ml.ManagedLedgerInfo]:
    """Rewrite the list of an unloaded topic by compare-and-set; kazoo's BadVersionError if a broker was faster."""
    got: Any = zk.get(topic_znode(topic))
    data, stat = got
    info = ml.ManagedLedgerInfo.FromString(data)
    yield info
    zk.set(topic_znode(topic), info.SerializeToString(), version=stat.version)


def copy(zk: KazooClient, path: str, root: str) -> None:
    """Copy a z-node below the chroot ``root``."""
    zk.create(f"{root}{path}", _read(zk, path), makepath=True)


def new_ledger(zk: KazooClient, data: bytes) -> int:
    """Take a fresh ledger id the way BookKeeper does and write its z-node."""
    taken: Any = zk.create("/ledgers/idgen/ID-", b"", ephemeral=True, sequence=True)
    zk.delete(taken)
    ledger_id = int(taken.rpartition("-")[2])
    zk.create(ledger_znode(ledger_id), data, makepath=True)
    return ledger_id


def ledger_metadata(bookies: list[str], tags: Mapping[str, str], *, closed: bool = True) -> bytes:
    """LedgerMetadata of a ledger of ten 100-byte entries on the first bookie, or of one still OPEN."""
    message = bk.LedgerMetadataFormat(
        quorumSize=1,
        ensembleSize=1,
        ackQuorumSize=1,
        length=1000 if closed else 0,
        lastEntryId=9 if closed else -1,
        state=bk.LedgerMetadataFormat.CLOSED if closed else bk.LedgerMetadataFormat.OPEN,
        digestType=bk.LedgerMetadataFormat.CRC32C,
        password=b"",
    )
    message.segment.add(ensembleMember=bookies[:1], firstEntryId=0)
    for key, value in tags.items():
        message.customMetadata.add(key=key, value=value.encode())
    written = BytesIO()
    serialize_length_prefixed(message, written)
    return _METADATA_HEADER + written.getvalue()


def managed_ledger_tags(topic: str) -> dict[str, str]:
    """What Pulsar writes into the metadata of a topic's ledger (LedgerMetadataUtils)."""
    name = Topic.parse(topic).managed_ledger
    return {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": name}
