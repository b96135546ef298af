# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no types.
"""What every object in the buckets of tiered storage is, and which of them nothing needs.

Belongs here: the rules, as pure functions over what was listed, what metadata names, and what objects say of their
origin; the plan's rows. Not here: listing and asking (``engine/objects.py``), deleting (``engine/offloaded.py`` decides
every copy afresh). An object that is not proven ours and unreferenced is kept. Source: BlobStoreManagedLedgerOffloader,
DataBlockUtils (tiered-storage-jcloud 4.0.7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.formats import offload_object
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, LedgerType, OffloadContext
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo as Intent
from pulsar_lifecycle.formats.offload_index import DATA_HEADER_LENGTH, ENTRY_HEADER_LENGTH
from pulsar_lifecycle.formats.offload_object import ObjectKey, Role, parse_key
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.plan import artefact, orphans
from pulsar_lifecycle.plan.orphans import Context

CLOCK_SKEW_MS = 300_000
"""How far the object store's clock may be from the brokers' and the metadata store's."""


class Kind(StrEnum):
    """What an offloaded copy, another object or an upload is."""

    COMPLETE = "complete"
    """A topic reads it, and both of its objects are there, in the bucket that the topic names."""
    IN_FLIGHT = "in flight"
    """Metadata names its UUID in another way, or an open attempt of our own has it."""
    BROKEN = "broken"
    """A topic reads it, and an object is missing or too small, or it failed its last proof: reads of it fail."""
    ELSEWHERE = "elsewhere"
    """A topic reads it from a bucket that is not declared: not looked at."""
    ORPHAN_PAIR = "orphan pair"
    LONE_DATA = "lone data"
    LONE_INDEX = "lone index"
    """Nothing names its UUID: both of its objects, or one of them."""
    NEW = "newer than the scan"
    """The newest scan cannot have seen what names it."""
    DANGLING_UPLOAD = "dangling upload"
    """An upload that was begun and neither completed nor aborted."""
    UNKNOWN = "unknown"
    """Its key is not one of a standard offload."""


DELETE = "delete"
ABORT = "abort"
"""What is to be done: delete the copy by a message to the deletion queue; abort the upload; "" keeps it."""

NAMINGS = pa.schema(
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

OBJECTS = pa.schema(
    [
        pa.field("bucket", pa.string()),
        pa.field("key", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("action", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("uuid", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("objects", pa.int32()),
        pa.field("bytes", pa.int64()),
        pa.field("modified", pa.int64()),
        pa.field("upload_id", pa.string()),
    ]
)
"""One row per offloaded copy (its one or two objects), other object, or upload. ``key`` is a copy's data object's;
``modified`` (ms) of its newer object, or when the upload began, whose ``bytes`` are not known (0)."""


@dataclass(frozen=True, slots=True)
class Half:
    """One object of a copy: bytes, and when it was written (ms)."""

    size: int
    modified: int


@dataclass(frozen=True, slots=True)
class Copy:
    """What a bucket has of one offload attempt."""

    bucket: str
    uuid: UUID
    ledger_id: int
    data: Half | None = None
    index: Half | None = None

    @property
    def halves(self) -> list[Half]:
        """The objects that are there."""
        return [half for half in (self.data, self.index) if half]

    @property
    def newest(self) -> int:
        """When (ms) the last of its objects was written; 0 if there is none."""
        return max((half.modified for half in self.halves), default=0)

    @property
    def keys(self) -> dict[Role, str]:
        """The keys of the objects that are there."""
        there = {Role.DATA: self.data, Role.INDEX: self.index}
        return {role: str(ObjectKey(self.uuid, self.ledger_id, role)) for role, half in there.items() if half}

    @property
    def unreferenced(self) -> Kind:
        """What it is where nothing names it."""
        return (Kind.ORPHAN_PAIR if self.index else Kind.LONE_DATA) if self.data else Kind.LONE_INDEX

    def row(self, kind: Kind, reason: str, topic: str = "", namespace: str = "", action: str = "") -> dict[str, Any]:
        """Its row of :data:`OBJECTS`."""
        return _row(
            self.bucket,
            offload_object.data_key(self.uuid, self.ledger_id),
            kind,
            reason,
            action=action,
            ledger_id=self.ledger_id,
            uuid=str(self.uuid),
            topic=topic,
            namespace=namespace,
            objects=len(self.halves),
            bytes=sum(half.size for half in self.halves),
            modified=self.newest or None,
        )


@dataclass(frozen=True, slots=True)
class Stranger:
    """An object whose key is not one of a standard offload."""

    bucket: str
    key: str
    half: Half

    def row(self) -> dict[str, Any]:
        """Its row of :data:`OBJECTS`."""
        why = "its key is not that of an offloaded ledger, or is one of a streaming or filesystem offload"
        size, modified = self.half.size, self.half.modified
        return _row(self.bucket, self.key, Kind.UNKNOWN, why, objects=1, bytes=size, modified=modified)


def _row(bucket: str, key: str, kind: Kind, reason: str, **others: Any) -> dict[str, Any]:
    empty = {"action": "", "topic": "", "namespace": "", "objects": 0, "bytes": 0, "upload_id": ""}
    blank = dict.fromkeys(OBJECTS.names) | empty
    return blank | {"bucket": bucket, "key": key, "kind": kind.value, "reason": reason} | others


def paired(bucket: str, listed: Iterable[tuple[str, Half]]) -> Iterator[Copy | Stranger]:
    """A listing (key, object) in its order as copies; both objects of one follow each other."""
    pending: Copy | None = None
    for key, half in listed:
        parsed = parse_key(key)
        if parsed is None:
            yield Stranger(bucket, key, half)
            continue
        if pending is None or (pending.uuid, pending.ledger_id) != (parsed.uuid, parsed.ledger_id):
            if pending:
                yield pending
            pending = Copy(bucket, parsed.uuid, parsed.ledger_id)
        pending = replace(pending, data=half) if parsed.role is Role.DATA else replace(pending, index=half)
    if pending:
        yield pending


# ----------------------------------------------------------------------------------------------------- what names them


@dataclass(frozen=True, slots=True)
class Naming:
    """A row of :data:`NAMINGS`; ``entries`` and ``size`` (bytes) are the ledger's, if its topic says them."""

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

    def reads(self, copy: Copy) -> bool:
        """Whether this is what the topic reads; where it names no bucket, in whichever."""
        return self.complete and self.ledger_id == copy.ledger_id and self.bucket in (None, copy.bucket)


SMALLEST_INDEX = 32 + 20
"""Bytes of an index object with one block and without ledger metadata (OffloadIndexBlockImpl)."""


def namings(topics: pa.RecordBatch, root: str) -> pa.Table:
    """:data:`NAMINGS` of rows of ``tables.MANAGED_LEDGERS``."""
    nested, every = topics.column("ledgers"), topics.column("offload_uuids")
    ledgers = pc.list_flatten(nested)
    of_ledgers = pa.table(
        {
            "uuid": pc.struct_field(ledgers, "offload_uuid"),
            "ledger_id": pc.struct_field(ledgers, "ledger_id"),
            "complete": pc.fill_null(pc.struct_field(ledgers, "offload_complete"), False),
            "entries": pc.struct_field(ledgers, "entries"),
            "size": pc.struct_field(ledgers, "size"),
            "bucket": pc.struct_field(ledgers, "offload_bucket"),
            "topic": topics.column("topic").take(pc.list_parent_indices(nested)),
            "path": topics.column("path").take(pc.list_parent_indices(nested)),
        }
    )
    of_ledgers = of_ledgers.filter(pc.is_valid(of_ledgers.column("uuid")))
    others = pa.table(
        {
            "uuid": pc.list_flatten(every),
            "topic": topics.column("topic").take(pc.list_parent_indices(every)),
            "path": topics.column("path").take(pc.list_parent_indices(every)),
        }
    )
    known = of_ledgers.column("uuid").combine_chunks()
    others = others.filter(pc.invert(pc.is_in(others.column("uuid"), known)))
    others = others.append_column("complete", pa.repeat(False, others.num_rows))
    found = pa.concat_tables([of_ledgers, others], promote_options="default")
    found = found.append_column("root", pa.repeat(root, found.num_rows))
    return found.select(NAMINGS.names).cast(NAMINGS)


def by_uuid(rows: Iterable[Mapping[str, Any]]) -> dict[UUID, list[Naming]]:
    """Rows of :data:`NAMINGS` by UUID."""
    found: dict[UUID, list[Naming]] = {}
    for row in rows:
        uuid, *others = (row[name] for name in NAMINGS.names)
        found.setdefault(UUID(uuid), []).append(Naming(UUID(uuid), *others))
    return found


def damage(copy: Copy, naming: Naming) -> str:
    """What is wrong with the objects that a topic reads, as far as a listing tells; empty if nothing is."""
    if not copy.halves:
        return "neither of its objects exists"
    if copy.data is None or copy.index is None:
        return f"its {'index' if copy.data else 'data'} object is missing"
    if copy.data.size < naming.smallest_data:
        return f"its data object has {copy.data.size} bytes, its ledger takes {naming.smallest_data} at least"
    if copy.index.size < SMALLEST_INDEX:
        return f"its index object has {copy.index.size} bytes, the smallest has {SMALLEST_INDEX}"
    return ""


# ---------------------------------------------------------------------------------------------------------- the rules


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides beside the copies. ``context.now`` is when the buckets were listed, ``context.grace`` in ms.

    ``cluster`` is the name that objects of this cluster carry, ``exclusive`` that no other cluster of that name ever
    wrote into the buckets. ``scanned_from``: when (ms) the newest scan began; ``confirmed_from``: the confirming one,
    None without one. ``open_attempts`` are our own. ``unproven``: copies whose last proof failed, by UUID and ledger,
    and what was found.
    """

    context: Context
    cluster: str
    exclusive: bool
    scanned_from: int
    confirmed_from: int | None
    open_attempts: frozenset[UUID]
    unproven: Mapping[tuple[UUID, int], str] = field(default_factory=dict[tuple[UUID, int], str])

    def wrong(self, copy: Copy, naming: Naming) -> str:
        """What is wrong with a copy that a topic reads: by a listing, or by its last proof; empty if nothing is."""
        return damage(copy, naming) or self.unproven.get((copy.uuid, copy.ledger_id), "")

    def too_young(self, written: int) -> bool:
        """Whether something may be within the grace period, by whichever clock."""
        return self.context.now - written < self.context.grace + CLOCK_SKEW_MS


def in_use(copy: Copy, named: Sequence[Naming], rules: Rules) -> tuple[Kind, str, str] | None:
    """(kind, reason, topic) of a copy whose UUID metadata or an open attempt of ours has; None if neither does."""
    readers = [one for one in named if one.reads(copy)]
    for reader in readers:
        if wrong := rules.wrong(copy, reader):
            return Kind.BROKEN, wrong, reader.topic
    if readers:
        return Kind.COMPLETE, "a topic reads it", readers[0].topic
    for one in named:
        if one.complete and one.ledger_id == copy.ledger_id:
            return Kind.IN_FLIGHT, f"a topic names its UUID, and reads it from bucket {one.bucket}", one.topic
    if named:
        return Kind.IN_FLIGHT, "a topic names its UUID, not as a complete offload of this ledger", named[0].topic
    if copy.uuid in rules.open_attempts:
        return Kind.IN_FLIGHT, "it is an open offload attempt of ours", ""
    return None


NOT_JUDGED = "written after the newest scan began, or minutes before it: run `scan`, then this once more"


def why_kept(copy: Copy, rules: Rules, *, named_earlier: bool) -> str:
    """Why a copy that nothing names now stays, before anybody asks where it comes from; empty if nothing says so."""
    if not rules.exclusive:
        return "object_store.exclusive is not set: another cluster may need it"
    if rules.confirmed_from is None:
        return "not confirmed: there is no covered scan that is old enough"
    if named_earlier:
        return "not confirmed: an earlier scan still found its UUID in a topic's metadata"
    if copy.newest + CLOCK_SKEW_MS >= rules.confirmed_from:
        return "not confirmed: younger than the earlier of two scans"
    if rules.too_young(copy.newest):
        return YOUNG
    return ""


YOUNG = "younger than the grace period"


def foreign(metadata: Mapping[str, str], cluster: str) -> str:
    """Why an object's user metadata does not prove it to be of this ``cluster``; empty if it does."""
    found = metadata.get(offload_object.CLUSTER_NAME, "")
    if not found or not metadata.get(offload_object.MANAGED_LEDGER_NAME):
        return "of unknown origin: the object's metadata lacks its cluster or its topic"
    if found != cluster:
        return f"the object is of cluster {found}, this is {cluster} (object_store.pulsar_cluster)"
    return ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose a copy is by its own user metadata, and why that keeps it (``kept``)."""

    topic: str
    namespace: str
    managed_ledger: str
    kept: str


def origin(found: Sequence[Mapping[str, str]], rules: Rules) -> Origin:
    """Whose copy it is, by the user metadata of all of its objects."""
    for metadata in found:
        if why := foreign(metadata, rules.cluster):
            return Origin("", "", "", why)
    names = sorted({metadata[offload_object.MANAGED_LEDGER_NAME] for metadata in found})
    if len(names) != 1:
        return Origin("", "", "", "its objects are of different topics")
    namespace, topic = orphans.owner_of("managed-ledger", names[0], None, None, None)
    if not topic:
        return Origin("", "", names[0], f"the object says {names[0]}, which no topic can be called")
    if namespace not in rules.context.namespaces:
        return Origin(topic, namespace, names[0], f"namespace {namespace} does not exist here: foreign or gone")
    rule = orphans.owner_rule(namespace, topic, rules.context)
    return Origin(topic, namespace, names[0], f"{rule[0]}: {rule[1]}" if rule else "")


NOTHING_NAMES_IT = "nothing names its UUID, two scans agree, and its objects say that they are ours"

_NOT_PROVEN = (
    "no offload run of ours began it, and an upload says not whose it is: abort it yourself, or by a lifecycle rule of "
    "the bucket"
)


@dataclass(frozen=True, slots=True)
class Begun:
    """An offload attempt of our own runs, by our journal: its topic, and when (ms) it last said anything of it."""

    topic: str
    last_said: int


def judge_upload(
    bucket: str, key: str, upload_id: str, initiated: int, rules: Rules, *, named: bool, begun: Begun | None
) -> dict[str, Any]:
    """A row of :data:`OBJECTS` for an upload under way, ``initiated`` at that time (ms).

    ``named``: the newest scan found its UUID in metadata. ``begun``: our own attempt with this UUID, if there was one;
    its age is then the journal's, because some S3 services do not tell an upload's.
    """
    parsed = parse_key(key)
    known = {"modified": initiated, "upload_id": upload_id}
    if parsed is None:
        return _row(bucket, key, Kind.DANGLING_UPLOAD, "its key is not that of an offloaded ledger", **known)
    known |= {"ledger_id": parsed.ledger_id, "uuid": str(parsed.uuid), "topic": begun.topic if begun else ""}
    if parsed.uuid in rules.open_attempts:
        return _row(bucket, key, Kind.IN_FLIGHT, "it is an open offload attempt of ours", **known)
    if begun is None and named:
        why = "a topic names its UUID: a broker's attempt, or what one left behind"
        return _row(bucket, key, Kind.IN_FLIGHT, why, **known)
    if rules.too_young(begun.last_said if begun else initiated):
        return _row(bucket, key, Kind.DANGLING_UPLOAD, YOUNG, **known)
    if begun is None:
        return _row(bucket, key, Kind.DANGLING_UPLOAD, _NOT_PROVEN, **known)
    known |= {"namespace": str(Topic.parse(begun.topic).namespace), "action": ABORT}
    return _row(bucket, key, Kind.DANGLING_UPLOAD, "an offload run of ours left it behind", **known)


# ------------------------------------------------------------------------------------------------------------ the plan


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the canonical rows of a plan and the facts that make it actionable."""
    facts = ("plan_id", "cluster", "fingerprint", "epoch_id", "confirmed_by", "created_at", "actionable")
    return artefact.digest(rows.select(OBJECTS.names), {name: summary[name] for name in facts})


def intents(rows: pa.Table, plan_id: str, sent_at: int) -> Iterator[Intent]:
    """An ``Offload-Ledger`` message per copy that is to be deleted."""
    for row in rows.to_pylist():
        msb, lsb = offload_object.halves(UUID(row["uuid"]))
        yield Intent(
            topic_name=row["topic"],
            component=LedgerComponent.MANAGED_LEDGER,
            ledger_id=row["ledger_id"],
            ledger_type=LedgerType.OFFLOAD_LEDGER,
            offload_context=OffloadContext(msb=msb, lsb=lsb, driver_name="aws-s3", metadata={"bucket": row["bucket"]}),
            plan_id=plan_id,
            sent_at=sent_at,
        )


# ---------------------------------------------------------------------------------------------- where to look at once


@dataclass(frozen=True, slots=True)
class Gap:
    """Keys that begin with no prefix: behind those that begin with ``behind``, before ``before`` (empty: the end)."""

    behind: str
    before: str

    @property
    def after(self) -> str:
        """Where a listing of it begins: behind every UUID with prefix ``behind``, perhaps not behind every key."""
        return f"{self.behind}~" if self.behind else ""

    def __contains__(self, key: str) -> bool:
        if self.behind and (key < self.behind or key.startswith(self.behind)):
            return False
        return not self.before or key < self.before


HEX = "0123456789abcdef"


def prefixes(digits: int) -> list[str]:
    """Every way in which a UUID can begin, sorted."""
    found = [""]
    for _ in range(digits):
        found = [f"{one}{digit}" for one in found for digit in HEX]
    return found


def gaps(known: Sequence[str]) -> list[Gap]:
    """Where keys lie that begin with none of these sorted prefixes."""
    ends = [*known[1:], ""]
    between = [Gap(one, then) for one, then in zip(known, ends, strict=True) if following(one) != then]
    return [Gap("", known[0]), *between]


def following(prefix: str) -> str:
    """What comes right behind every key that begins with ``prefix``."""
    return f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"
