"""What every object in the buckets of tiered storage is, and which of them nothing needs.

Belongs here: the rules, as pure functions over what was listed, what metadata names, and what objects say of their
origin; the plan's rows. Not here: listing and asking (``tiered/buckets/bucket_listing.py``), deleting
(``deletion/offloaded_copies.py`` decides every copy afresh). An object that is not proven ours and unreferenced is
kept. Source: BlobStoreManagedLedgerOffloader, DataBlockUtils (tiered-storage-jcloud 4.0.7).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

import pyarrow as pa

from pulsar_lifecycle.copies.object_pairs import (
    CLOCK_SKEW_MS,
    ObjectKind,
    ObjectPair,
    OffloadReference,
    damage,
    foreign,
    object_row,
)
from pulsar_lifecycle.formats import offload_object
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, LedgerType, MessageOffloadContext
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo as Intent
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_MANAGED_LEDGER
from pulsar_lifecycle.formats.offload_object import parse_key
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics import protection
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values import owner_names, plans
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import BegunAttempt
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.tables import OBJECTS


class SweepAction(StrEnum):
    """What a plan does with objects or an upload: column ``action``, empty where it does nothing."""

    DELETE = "delete"
    """A message about the offloaded copy goes to the deletion queue."""
    ABORT = "abort"
    """The upload is dropped."""


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

    def wrong(self, copy: ObjectPair, reference: OffloadReference) -> Why | None:
        """What is wrong with a copy that a topic reads: by a listing, or by its last proof; None if nothing is."""
        failed = self.unproven.get((copy.uuid, copy.ledger_id))
        return damage(copy, reference) or (None if failed is None else Why(Code.NOT_PROVEN, failed))

    def too_young(self, written: int) -> bool:
        """Whether something may be within the grace period, by whichever clock."""
        return self.context.now - written < self.context.grace + CLOCK_SKEW_MS


def in_use(copy: ObjectPair, named: Sequence[OffloadReference], rules: Rules) -> tuple[ObjectKind, Why, str] | None:
    """(kind, why, topic) of a copy whose UUID metadata or an open attempt of ours has; None if neither does."""
    readers = [one for one in named if one.reads(copy)]
    for reader in readers:
        if wrong := rules.wrong(copy, reader):
            return ObjectKind.BROKEN, wrong, reader.topic
    if readers:
        return ObjectKind.COMPLETE, READ_BY_A_TOPIC, readers[0].topic
    for one in named:
        if one.complete and one.ledger_id == copy.ledger_id:
            why = Why(Code.STILL_IN_USE, f"a topic names its UUID, and reads it from bucket {one.bucket}")
            return ObjectKind.IN_FLIGHT, why, one.topic
    if named:
        why = Why(Code.STILL_IN_USE, "a topic names its UUID, not as a complete offload of this ledger")
        return ObjectKind.IN_FLIGHT, why, named[0].topic
    if copy.uuid in rules.open_attempts:
        return ObjectKind.IN_FLIGHT, _OPEN_ATTEMPT, ""
    return None


READ_BY_A_TOPIC = Why(Code.STILL_IN_USE, "a topic reads it")
_OPEN_ATTEMPT = Why(Code.ATTEMPT_OPEN, "it is an open offload attempt of ours")

NOT_JUDGED = Why(
    Code.YOUNG, "written after the newest scan began, or minutes before it: run `scan`, then this once more"
)


def why_kept(copy: ObjectPair, rules: Rules, *, named_earlier: bool) -> Why | None:
    """Why a copy that nothing names now stays, before anybody asks where it comes from; None if nothing says so."""
    if not rules.exclusive:
        return Why(Code.NOT_OURS, "object_store.exclusive is not set: another cluster may need it")
    if rules.confirmed_from is None:
        return Why(Code.NOT_CONFIRMED, "not confirmed: there is no covered scan that is old enough")
    if named_earlier:
        return Why(Code.NOT_CONFIRMED, "not confirmed: an earlier scan still found its UUID in a topic's metadata")
    if copy.newest + CLOCK_SKEW_MS >= rules.confirmed_from:
        return Why(Code.NOT_CONFIRMED, "not confirmed: younger than the earlier of two scans")
    return _YOUNG if rules.too_young(copy.newest) else None


_YOUNG = Why(Code.YOUNG, "younger than the grace period")


@dataclass(frozen=True, slots=True)
class CopyOwner:
    """Whose a copy is by its own user metadata, and why that keeps it (``kept``)."""

    topic: str
    namespace: str
    managed_ledger: str
    kept: Why | None


def copy_owner(found: Sequence[Mapping[str, str]], rules: Rules) -> CopyOwner:
    """Whose copy it is, by the user metadata of all of its objects."""
    for metadata in found:
        if why := foreign(metadata, rules.cluster):
            return CopyOwner("", "", "", why)
    names = sorted({metadata[offload_object.MANAGED_LEDGER_NAME] for metadata in found})
    if len(names) != 1:
        return CopyOwner("", "", "", Why(Code.NOT_OURS, "its objects are of different topics"))
    namespace, topic = owner_names.owner_of(COMPONENT_MANAGED_LEDGER, names[0], None, None, None)
    if not topic:
        why = Why(Code.NOT_OURS, f"the object says {names[0]}, which no topic can be called")
        return CopyOwner("", "", names[0], why)
    if namespace not in rules.context.namespaces:
        text = f"namespace {namespace} does not exist here: foreign or gone"
        return CopyOwner(topic, namespace, names[0], Why(Protection.UNKNOWN_NAMESPACE, text))
    return CopyOwner(topic, namespace, names[0], protection.owner_rule(namespace, topic, rules.context))


NOTHING_NAMES_IT = Why(
    Code.UNREFERENCED, "nothing names its UUID, two scans agree, and its objects say that they are ours"
)

_NOT_PROVEN = (
    "no offload run of ours began it, and an upload says not whose it is: abort it yourself, or by a lifecycle rule of "
    "the bucket"
)


def judge_upload(
    bucket: str, key: str, upload_id: str, initiated: int, rules: Rules, *, named: bool, begun: BegunAttempt | None
) -> dict[str, Any]:
    """A row of :data:`OBJECTS` for an upload under way, ``initiated`` at that time (ms).

    ``named``: the newest scan found its UUID in metadata. ``begun``: our own attempt with this UUID, if there was one;
    its age is then the journal's, because some S3 services do not tell an upload's.
    """
    parsed = parse_key(key)
    rule = upload_rule(key, initiated, rules, named=named, begun=begun)
    known = {"modified": initiated, "upload_id": upload_id}
    if parsed:
        known |= {"ledger_id": parsed.ledger_id, "uuid": str(parsed.uuid), "topic": begun.topic if begun else ""}
    if rule.goes and begun:
        known |= {"namespace": str(Topic.parse(begun.topic).namespace), "action": SweepAction.ABORT}
    return object_row(bucket, key, rule.kind, rule.why, **known)


@dataclass(frozen=True, slots=True)
class UploadRule:
    """What an upload under way is, and why it is dropped (``goes``) or kept."""

    kind: ObjectKind
    why: Why
    goes: bool = False


def upload_rule(key: str, initiated: int, rules: Rules, *, named: bool, begun: BegunAttempt | None) -> UploadRule:
    """What becomes of an upload under way; the arguments are those of :func:`judge_upload`."""
    parsed = parse_key(key)
    if parsed is None:
        why = Why(Code.NO_OFFLOAD_KEY, "its key is not that of an offloaded ledger")
        return UploadRule(ObjectKind.DANGLING_UPLOAD, why)
    if parsed.uuid in rules.open_attempts:
        return UploadRule(ObjectKind.IN_FLIGHT, _OPEN_ATTEMPT)
    if begun is None and named:
        why = Why(Code.STILL_IN_USE, "a topic names its UUID: a broker's attempt, or what one left behind")
        return UploadRule(ObjectKind.IN_FLIGHT, why)
    if rules.too_young(begun.last_said if begun else initiated):
        return UploadRule(ObjectKind.DANGLING_UPLOAD, _YOUNG)
    if begun is None:
        return UploadRule(ObjectKind.DANGLING_UPLOAD, Why(Code.NOT_OURS, _NOT_PROVEN))
    why = Why(Code.LEFT_BEHIND, "an offload run of ours left it behind")
    return UploadRule(ObjectKind.DANGLING_UPLOAD, why, goes=True)


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the canonical rows of a plan and the facts that make it actionable."""
    facts = ("plan_id", "cluster", "fingerprint", "epoch_id", "confirmed_by", "created_at", "actionable")
    return plans.digest(rows.select(OBJECTS.names), {name: summary[name] for name in facts})


def intents(rows: pa.Table, plan_id: str, sent_at: int) -> Iterator[Intent]:
    """An ``Offload-Ledger`` message per copy that is to be deleted."""
    for row in rows.to_pylist():
        msb, lsb = offload_object.halves(UUID(row["uuid"]))
        yield Intent(
            topic_name=row["topic"],
            component=LedgerComponent.MANAGED_LEDGER,
            ledger_id=row["ledger_id"],
            ledger_type=LedgerType.OFFLOAD_LEDGER,
            offload_context=MessageOffloadContext(
                msb=msb, lsb=lsb, driver_name="aws-s3", metadata={"bucket": row["bucket"]}
            ),
            plan_id=plan_id,
            sent_at=sent_at,
        )


@dataclass(frozen=True, slots=True)
class KeyRange:
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


def gaps(known: Sequence[str]) -> list[KeyRange]:
    """Where keys lie that begin with none of these sorted prefixes."""
    ends = [*known[1:], ""]
    between = [KeyRange(one, then) for one, then in zip(known, ends, strict=True) if following(one) != then]
    return [KeyRange("", known[0]), *between]


def following(prefix: str) -> str:
    """What comes right behind every key that begins with ``prefix``."""
    return f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"
