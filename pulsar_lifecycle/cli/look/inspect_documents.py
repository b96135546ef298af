"""The JSON documents of ``inspect``, under upstream's field names.

What could not be read has an ``error``. Not here: reading (``inspect/decoded``), printing (``inspect_pages.py``).
"""

from __future__ import annotations

from typing import Any

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound
from pulsar_lifecycle.formats import offload_index
from pulsar_lifecycle.inspect.decoded.decoded_ledger import BrokenLedger, DecodedLedger, Replica
from pulsar_lifecycle.inspect.decoded.decoded_topic import (
    BrokenCursor,
    DecodedCursor,
    DecodedSchema,
    DecodedTopic,
    InBookKeeper,
    PartitionedTopic,
    PartitionSummary,
    SchemaVersion,
)
from pulsar_lifecycle.inspect.decoded.decoded_znode import DecodedNode, described
from pulsar_lifecycle.inspect.decoded.delayed import DecodedIndex, TableRow
from pulsar_lifecycle.inspect.decoded.offload_objects import DecodedEntry, OffloadedPair
from pulsar_lifecycle.ports import Entry, ObjectHead, Stat
from pulsar_lifecycle.scan.references import KINDS

Document = dict[str, Any]


def stat_fields(stat: Stat) -> Document:
    """A Stat under ZooKeeper's field names."""
    return {
        "czxid": stat.czxid,
        "mzxid": stat.mzxid,
        "pzxid": stat.pzxid,
        "ctime": stat.ctime,
        "mtime": stat.mtime,
        "version": stat.version,
        "cversion": stat.cversion,
        "ephemeralOwner": stat.ephemeral_owner,
        "dataLength": stat.data_length,
        "numChildren": stat.num_children,
    }


def error_field(error: LifecycleError) -> Document:
    """Why something could not be read."""
    return {"error": str(error)}


# ----------------------------------------------------------------------------------------------- z-nodes and ledgers


def znode_document(found: DecodedNode) -> Document:
    """``value`` is None for an empty z-node; bytes that do not decode are in ``raw``, with ``error``."""
    broken = found.broken
    return {
        "path": found.node.path,
        "stat": stat_fields(found.node.stat),
        "format": found.format,
        "value": found.value if broken is None else None,
        **({} if broken is None else {**error_field(broken), "raw": f"0x{found.node.data.hex()}"}),
        "children": list(found.children),
    }


def ledger_document(found: DecodedLedger | BrokenLedger) -> Document:
    """With ``error`` and ``raw`` one without metadata."""
    node = found.shown.node
    document: Document = {"ledgerId": found.ledger_id, "path": node.path, "stat": stat_fields(node.stat)}
    if isinstance(found, BrokenLedger):
        return document | {"metadata": None, **broken_ledger_fields(found)}
    owner = found.owner
    return document | {
        "metadata": dict(found.metadata),
        "owner": {
            "namespace": owner.namespace,
            "topic": owner.topic,
            "component": owner.component,
            "cursor": owner.cursor,
            "schemaId": owner.schema_id,
        },
        "replicas": [replica_fields(one) for one in found.replicas],
        "underReplicated": found.under_replicated,
        "lastEntry": _last_entry(found.last_entry),
        "references": [
            {"kind": one.kind, "name": KINDS[one.kind].name, "referrer": one.referrer} for one in found.references
        ],
        "asked": list(found.asked),
        "notRead": list(found.not_read),
    }


def broken_ledger_fields(found: BrokenLedger) -> Document:
    """What is wrong with it, and its bytes; none of a half-deleted one."""
    broken = found.shown.broken
    if broken is None:
        return {"error": "the z-node is empty: a half-deleted ledger", "raw": ""}
    return {**error_field(broken), "raw": f"0x{found.shown.node.data.hex()}"}


def replica_fields(one: Replica) -> Document:
    """A bookie of a ledger."""
    return {"bookieId": one.bookie, "state": one.state.value, "firstEntryIds": list(one.first_entry_ids)}


def _last_entry(entry: Entry | LifecycleError | None) -> Document:
    if isinstance(entry, LifecycleError):
        return error_field(entry)
    return {"entryId": -1} if entry is None else {"entryId": entry.entry_id, "size": len(entry.payload)}


# ------------------------------------------------------------------------------------------------------------ topics


def topic_document(found: DecodedTopic | PartitionedTopic) -> Document:
    """A topic, or the partitions of one."""
    if isinstance(found, PartitionedTopic):
        return {"topic": str(found.topic), "path": found.path, "partitions": partition_documents(found)}
    return {
        "topic": str(found.topic),
        "path": found.node.path,
        "stat": stat_fields(found.node.stat),
        "loadState": found.load.state.value,
        "loadReason": found.load.reason.value,
        "loadDetail": found.load.detail,
        "loadText": found.load.text,
        "broker": found.broker,
        "terminatedPosition": str(found.terminated) if found.terminated else None,
        "properties": dict(found.properties),
        "ledgerInfo": [{**one.listed, "bookkeeper": _bookkeeper(one.held)} for one in found.ledgers],
        "cursors": [_cursor(one) for one in found.cursors],
        "schema": None if found.schema is None else _schema(found.schema),
    }


def partition_documents(found: PartitionedTopic) -> list[Document]:
    """A row for each partition."""
    return [{"topic": str(part), **_summary(one)} for part, one in found.partitions.items()]


def _summary(found: PartitionSummary | CorruptFormat | None) -> Document:
    if found is None:
        return {"absent": "it has no z-node: it was never created, or deleted"}
    if isinstance(found, CorruptFormat):
        return error_field(found)
    return {"ledgers": found.ledgers, "mtime": found.mtime}


def not_held(error: LifecycleError) -> str:
    """Why what BookKeeper has of a topic's ledger is not known."""
    return "not in BookKeeper" if isinstance(error, NotFound) else str(error)


def _bookkeeper(held: InBookKeeper | LifecycleError) -> Document:
    if isinstance(held, LifecycleError):
        return {"error": not_held(held)}
    metadata, last = held.metadata, held.last_entry
    document: Document = {"state": metadata.state.name, "bookies": list(metadata.segments[-1].bookies)}
    if held.closed:
        return document | {"lastEntryId": metadata.last_entry_id, "length": metadata.length}
    if isinstance(last, LifecycleError):
        return document | error_field(last)
    return document | {"lastEntryId": -1 if last is None else last.entry_id}


def _cursor(found: DecodedCursor | BrokenCursor) -> Document:
    if isinstance(found, BrokenCursor):
        return {"name": found.name, **error_field(found.why)}
    position = found.position
    return {
        "name": found.name,
        "cursorsLedgerId": found.ledger_id,
        "lastActive": found.last_active,
        "markDelete": str(position.mark_delete) if position.mark_delete else None,
        "individualDeletedRanges": position.ranges,
        "properties": dict(position.properties),
        "positionFrom": position_from(found),
        "cursorProperties": dict(found.properties),
        **({} if found.unread is None else {"error": cursor_error(found.ledger_id, found.unread)}),
    }


def position_from(found: DecodedCursor) -> str:
    """What says where a cursor stands."""
    entry = found.position.entry
    if entry is not None:
        return f"cursor ledger {entry.ledger_id}, entry {entry.entry_id}"
    return "its z-node" if found.unread is None else "its z-node, which is stale"


def cursor_error(ledger_id: int, error: LifecycleError) -> str:
    """Why a cursor's ledger does not say where it stands."""
    return f"cursor ledger {ledger_id}: {error}"


def _schema(found: DecodedSchema) -> Document:
    document: Document = {"schemaId": found.schema_id, "path": found.path}
    if isinstance(found.versions, LifecycleError):
        return document | error_field(found.versions)
    return document | {"versions": [version_fields(one) for one in found.versions]}


def version_fields(one: SchemaVersion) -> Document:
    """A version of a schema, with its type and time."""
    document: Document = {"version": one.version, "ledgerId": one.ledger_id, "entryId": one.entry_id}
    if isinstance(one.info, LifecycleError):
        return document | error_field(one.info)
    return document | {"type": one.info.type.name, "timestamp": one.info.timestamp, "deleted": one.info.deleted}


# ----------------------------------------------------------------------------------------------------------- objects


def pair_document(found: OffloadedPair) -> Document:
    """Both objects; index and entries only where the pair could be opened."""
    where = found.location
    document: Document = {
        "bucket": where.bucket,
        "ledgerId": where.ledger_id,
        "uuid": str(where.uuid),
        "whole": found.whole,
        "problems": [str(problem) for problem in found.problems],
        "data": head_fields(where.data_key, found.data),
        "index": head_fields(where.index_key, found.index),
    }
    if found.offload_index is None:
        return document
    return document | {
        "offloadIndex": described("offload-index", offload_index.encode(found.offload_index)),
        "firstEntry": found.first_entry and entry_fields(found.first_entry),
        "lastEntry": found.last_entry and entry_fields(found.last_entry),
    }


def head_fields(key: str, head: ObjectHead | None) -> Document:
    """What a bucket says of an object."""
    if head is None:
        return {"key": key, "error": "there is no such object"}
    return {
        "key": key,
        "size": head.size,
        "eTag": head.etag,
        "lastModified": head.last_modified,
        "userMetadata": dict(sorted(head.metadata.items())),
    }


def entry_fields(found: DecodedEntry) -> Document:
    """An entry, and what its message says of itself."""
    shown: Document = {"entryId": found.entry.entry_id, "size": len(found.entry.payload)}
    message = found.message
    if isinstance(message, CorruptFormat):
        return {**shown, **error_field(message)}
    shown |= {"publishTime": message.publish_time, "producerName": message.producer_name}
    if message.chunk:
        shown |= {"chunkId": message.chunk[0], "numChunksFromMsg": message.chunk[1], "uuid": message.uuid}
    if message.encrypted:
        return {**shown, "encrypted": True}
    return shown if message.chunk else {**shown, "messages": len(message.messages)}


# ----------------------------------------------------------------------------------------------------- delayed index


def index_document(found: DecodedIndex) -> dict[str, list[Document]]:
    """Rows without the topic, which is the same in all of them."""
    return {
        "subscriptions": [
            {"subscription": one.name, "buckets": one.buckets, "read": one.read} for one in found.subscriptions
        ],
        "buckets": [_of_topic(row) for row in found.buckets],
        "findings": [_of_topic(row) for row in found.findings],
        "due": [_of_topic(row) for row in found.due],
        "capacity": [_of_topic(row) for row in found.capacity],
    }


def _of_topic(row: TableRow) -> Document:
    return {name: value for name, value in row.items() if name not in ("topic", "namespace")}
