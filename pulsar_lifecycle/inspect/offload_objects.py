"""What a bucket holds of one offloaded ledger, decoded for a person.

Belongs here: both objects of the pair, whichever was named, as plain values for JSON under upstream's field names. Not
here: z-nodes and ledgers (``describe.py``), whether the copy is the ledger (``tiered/proof.py``), printing. What is
wrong with the pair stands in the document under ``problems``; only a pair that is not there at all raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pulsar_lifecycle.copies.offloaded_ledger import Location, OffloadedLedger, open_offloaded
from pulsar_lifecycle.errors import Conflict, CorruptFormat, LifecycleError, NotFound, UsageError
from pulsar_lifecycle.formats import message, offload_index, offload_object
from pulsar_lifecycle.inspect.describe import described
from pulsar_lifecycle.ports import ObjectHead, ObjectStore

Document = dict[str, Any]
_Value = TypeVar("_Value")


def offloaded(objects: ObjectStore, bucket: str, key: str) -> Document:
    """The data and the index object of the offload attempt that ``key`` belongs to; ``whole`` if nothing is wrong.

    Reads the heads, the index, and the data object's first range and last block; payloads in between are not read.
    Raises UsageError for a key of something else, NotFound where neither object is there, Unavailable, AccessDenied.
    """
    parsed = offload_object.parse_key(key)
    if parsed is None:
        raise UsageError(f"expected the key of an offloaded ledger, <uuid>-ledger-<id>[-index], found {key!r}")
    location = Location(bucket, parsed.uuid, parsed.ledger_id)
    data, index = (_head(head) for head in objects.head_many(bucket, [location.data_key, location.index_key]))
    if data is None and index is None:
        raise NotFound(f"{location.data_url}: there is neither a data nor an index object")
    document: Document = {
        "bucket": bucket,
        "ledgerId": parsed.ledger_id,
        "uuid": str(parsed.uuid),
        "whole": False,
        "problems": [],
        "data": _head_fields(location.data_key, data),
        "index": _head_fields(location.index_key, index),
    }
    problems: list[str] = document["problems"]
    ledger = _tried(problems, lambda: open_offloaded(objects, location))
    if ledger is not None:
        document["offloadIndex"] = described("offload-index", offload_index.encode(ledger.index))
        last = ledger.index.ledger.last_entry_id
        document["firstEntry"] = _tried(problems, lambda: _entry(ledger, 0))
        document["lastEntry"] = _tried(problems, lambda: _entry(ledger, last))
    document["whole"] = not problems
    return document


def _head(found: ObjectHead | LifecycleError | None) -> ObjectHead | None:
    if isinstance(found, LifecycleError):
        raise found
    return found


def _head_fields(key: str, head: ObjectHead | None) -> Document:
    if head is None:
        return {"key": key, "error": "there is no such object"}
    return {
        "key": key,
        "size": head.size,
        "eTag": head.etag,
        "lastModified": head.last_modified,
        "userMetadata": dict(sorted(head.metadata.items())),
    }


def _tried(problems: list[str], read: Callable[[], _Value]) -> _Value | None:
    """What was read; None, and a problem more, for what is missing, damaged, or was replaced meanwhile."""
    try:
        return read()
    except (NotFound, Conflict, CorruptFormat) as error:
        problems.append(str(error))
        return None


def _entry(ledger: OffloadedLedger, entry_id: int) -> Document:
    (entry,) = ledger.read(entry_id, entry_id)
    shown: Document = {"entryId": entry.entry_id, "size": len(entry.payload)}
    try:
        found = message.decode(entry.payload)
    except CorruptFormat as error:
        return {**shown, "error": str(error)}
    shown |= {"publishTime": found.publish_time, "producerName": found.producer_name}
    if found.chunk:
        shown |= {"chunkId": found.chunk[0], "numChunksFromMsg": found.chunk[1], "uuid": found.uuid}
    if found.encrypted:
        return {**shown, "encrypted": True}
    return shown if found.chunk else {**shown, "messages": len(found.messages)}
