"""Objects of tiered storage as copies of ledgers: pairs of data and index, what names them, what is broken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.formats import offload_object
from pulsar_lifecycle.formats.offload_index import DATA_HEADER_LENGTH, ENTRY_HEADER_LENGTH
from pulsar_lifecycle.formats.offload_object import ObjectKey, Role, parse_key
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.tables import OBJECTS

CLOCK_SKEW_MS = 300_000
"""How far the object store's clock may be from the brokers' and the metadata store's."""


class ObjectKind(StrEnum):
    """What an offloaded copy, another object or an upload is."""

    COMPLETE = "complete"
    """A topic reads it, and both of its objects are there, in the bucket that the topic names."""
    IN_FLIGHT = "in_flight"
    """Metadata names its UUID in another way, or an open attempt of our own has it."""
    BROKEN = "broken"
    """A topic reads it, and an object is missing or too small, or it failed its last proof: reads of it fail."""
    ELSEWHERE = "elsewhere"
    """A topic reads it from a bucket that is not declared: not looked at."""
    ORPHAN_PAIR = "orphan_pair"
    """Nothing names its UUID, and both of its objects are there."""
    LONE_DATA = "lone_data"
    """Nothing names its UUID, and only its data object is there."""
    LONE_INDEX = "lone_index"
    """Nothing names its UUID, and only its index object is there."""
    NEW = "newer_than_scan"
    """The newest scan cannot have seen what names it."""
    DANGLING_UPLOAD = "dangling_upload"
    """An upload that was begun and neither completed nor aborted."""
    UNKNOWN = "unknown"
    """Its key is not one of a standard offload."""


OFFLOAD_REFERENCES = pa.schema(
    [
        pa.field("uuid", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("complete", pa.bool_()),
        pa.field("entries", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("bucket", pa.string()),
        pa.field("root", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("path", pa.string()),
    ]
)
"""One row per offload UUID that a ledger of a topic names. ``ledger_id`` null: a segment of a streaming offload.
``bucket`` null: the topic names none. ``path`` is the topic's z-node under ``root`` (ours: empty)."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a copy: bytes, and when it was written (ms)."""

    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class ObjectPair:
    """What a bucket has of one offload attempt."""

    bucket: str
    uuid: UUID
    ledger_id: int
    data: StoredObject | None = None
    index: StoredObject | None = None

    @property
    def stored_objects(self) -> list[StoredObject]:
        """The objects that are there."""
        return [stored for stored in (self.data, self.index) if stored]

    @property
    def newest(self) -> int:
        """When (ms) the last of its objects was written; 0 if there is none."""
        return max((stored.modified for stored in self.stored_objects), default=0)

    @property
    def keys(self) -> dict[Role, str]:
        """The keys of the objects that are there."""
        there = {Role.DATA: self.data, Role.INDEX: self.index}
        return {role: str(ObjectKey(self.uuid, self.ledger_id, role)) for role, stored in there.items() if stored}

    @property
    def unreferenced(self) -> ObjectKind:
        """What it is where nothing names it."""
        return (ObjectKind.ORPHAN_PAIR if self.index else ObjectKind.LONE_DATA) if self.data else ObjectKind.LONE_INDEX

    def row(self, kind: ObjectKind, why: Why, topic: str = "", namespace: str = "", action: str = "") -> dict[str, Any]:
        """Its row of :data:`OBJECTS`."""
        return object_row(
            self.bucket,
            offload_object.data_key(self.uuid, self.ledger_id),
            kind,
            why,
            action=action,
            ledger_id=self.ledger_id,
            uuid=str(self.uuid),
            topic=topic,
            namespace=namespace,
            objects=len(self.stored_objects),
            bytes=sum(stored.size for stored in self.stored_objects),
            modified=self.newest or None,
        )


@dataclass(frozen=True, slots=True)
class UnknownObject:
    """An object whose key is not one of a standard offload."""

    bucket: str
    key: str
    stored: StoredObject

    def row(self) -> dict[str, Any]:
        """Its row of :data:`OBJECTS`."""
        text = "its key is not that of an offloaded ledger, or is one of a streaming or filesystem offload"
        why = Why(Code.NO_OFFLOAD_KEY, text)
        size, modified = self.stored.size, self.stored.modified
        return object_row(self.bucket, self.key, ObjectKind.UNKNOWN, why, objects=1, bytes=size, modified=modified)


def object_row(bucket: str, key: str, kind: ObjectKind, why: Why, **others: Any) -> dict[str, Any]:
    """A row of ``tables.OBJECTS``; columns not named are empty."""
    empty = {"action": "", "topic": "", "namespace": "", "objects": 0, "bytes": 0, "upload_id": ""}
    blank = dict.fromkeys(OBJECTS.names) | empty
    said = {"kind": kind.value, "code": why.code.value, "reason": why.text}
    return blank | {"bucket": bucket, "key": key} | said | others


def paired(bucket: str, listed: Iterable[tuple[str, StoredObject]]) -> Iterator[ObjectPair | UnknownObject]:
    """A listing (key, object) in its order as copies; both objects of one follow each other."""
    pending: ObjectPair | None = None
    for key, stored in listed:
        parsed = parse_key(key)
        if parsed is None:
            yield UnknownObject(bucket, key, stored)
            continue
        if pending is None or (pending.uuid, pending.ledger_id) != (parsed.uuid, parsed.ledger_id):
            if pending:
                yield pending
            pending = ObjectPair(bucket, parsed.uuid, parsed.ledger_id)
        pending = replace(pending, data=stored) if parsed.role is Role.DATA else replace(pending, index=stored)
    if pending:
        yield pending


@dataclass(frozen=True, slots=True)
class OffloadReference:
    """A row of :data:`OFFLOAD_REFERENCES`; ``entries`` and ``size`` (bytes): the ledger's, if its topic says so."""

    uuid: UUID
    ledger_id: int | None
    complete: bool
    entries: int | None
    size: int | None
    bucket: str | None
    root: str
    topic: str
    path: str

    @property
    def smallest_data(self) -> int:
        """Bytes that the data object has at least: one block's header, and each entry with its length and id."""
        return DATA_HEADER_LENGTH + ENTRY_HEADER_LENGTH * (self.entries or 0) + (self.size or 0)

    def reads(self, copy: ObjectPair) -> bool:
        """Whether this is what the topic reads; where it names no bucket, in whichever."""
        return self.complete and self.ledger_id == copy.ledger_id and self.bucket in (None, copy.bucket)


SMALLEST_INDEX = 32 + 20
"""Bytes of an index object with one block and without ledger metadata (OffloadIndexBlockImpl)."""


def offload_references(topics: pa.RecordBatch, root: str) -> pa.Table:
    """:data:`OFFLOAD_REFERENCES` of rows of ``tables.MANAGED_LEDGERS``."""
    nested, every = topics.column("ledgers"), topics.column("offload_uuids")
    named = pc.coalesce(topics.column("topic"), topics.column("path"))  # one of an unknown domain has no name
    ledgers = pc.list_flatten(nested)
    of_ledgers = pa.table(
        {
            "uuid": pc.struct_field(ledgers, "offload_uuid"),
            "ledger_id": pc.struct_field(ledgers, "ledger_id"),
            "complete": pc.fill_null(pc.struct_field(ledgers, "offload_complete"), False),
            "entries": pc.struct_field(ledgers, "entries"),
            "size": pc.struct_field(ledgers, "size"),
            "bucket": pc.struct_field(ledgers, "offload_bucket"),
            "topic": named.take(pc.list_parent_indices(nested)),
            "path": topics.column("path").take(pc.list_parent_indices(nested)),
        }
    )
    of_ledgers = of_ledgers.filter(pc.is_valid(of_ledgers.column("uuid")))
    others = pa.table(
        {
            "uuid": pc.list_flatten(every),
            "topic": named.take(pc.list_parent_indices(every)),
            "path": topics.column("path").take(pc.list_parent_indices(every)),
        }
    )
    known = of_ledgers.column("uuid").combine_chunks()
    others = others.filter(pc.invert(pc.is_in(others.column("uuid"), known)))
    others = others.append_column("complete", pa.repeat(False, others.num_rows))
    found = pa.concat_tables([of_ledgers, others], promote_options="default")
    found = found.append_column("root", pa.repeat(root, found.num_rows))
    return found.select(OFFLOAD_REFERENCES.names).cast(OFFLOAD_REFERENCES)


def by_uuid(rows: Iterable[Mapping[str, Any]]) -> dict[UUID, list[OffloadReference]]:
    """Rows of :data:`OFFLOAD_REFERENCES` by UUID."""
    found: dict[UUID, list[OffloadReference]] = {}
    for row in rows:
        uuid, *others = (row[name] for name in OFFLOAD_REFERENCES.names)
        found.setdefault(UUID(uuid), []).append(OffloadReference(UUID(uuid), *others))
    return found


def damage(copy: ObjectPair, reference: OffloadReference) -> Why | None:
    """What is wrong with the objects that a topic reads, as far as a listing tells; None if nothing is."""
    if not copy.stored_objects:
        return Why(Code.OBJECT_MISSING, "neither of its objects exists")
    if copy.data is None or copy.index is None:
        return Why(Code.OBJECT_MISSING, f"its {'index' if copy.data else 'data'} object is missing")
    if copy.data.size < reference.smallest_data:
        text = f"its data object has {copy.data.size} bytes, its ledger takes {reference.smallest_data} at least"
        return Why(Code.OBJECT_TRUNCATED, text)
    if copy.index.size < SMALLEST_INDEX:
        text = f"its index object has {copy.index.size} bytes, the smallest has {SMALLEST_INDEX}"
        return Why(Code.OBJECT_TRUNCATED, text)
    return None


def foreign(metadata: Mapping[str, str], cluster: str) -> Why | None:
    """Why an object's user metadata does not prove it to be of this ``cluster``; None if it does."""
    found = metadata.get(offload_object.CLUSTER_NAME, "")
    if not found or not metadata.get(offload_object.MANAGED_LEDGER_NAME):
        return Why(Code.NOT_OURS, "of unknown origin: the object's metadata lacks its cluster or its topic")
    if found != cluster:
        text = f"the object is of cluster {found}, this is {cluster} (object_store.pulsar_cluster)"
        return Why(Code.NOT_OURS, text)
    return None
