"""Looking at the buckets of tiered storage, and dropping uploads that our own offload runs left behind.

Belongs here: listing a part of the keys, asking what the listing does not say, aborting. Not here: the rules
(``tiered/buckets/bucket_rules.py``), deleting copies (``deletion/offloaded_copies.py``, by messages). What is not named
anywhere is looked at twice: its own user metadata, and its topic's z-node as it is now; so is a copy that a topic names
and that seems incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID

from pulsar_lifecycle.copies.last_copy import CopyEvidence, UnnamedCopy, heads_of, why_last
from pulsar_lifecycle.copies.object_pairs import (
    CLOCK_SKEW_MS,
    ObjectKind,
    ObjectPair,
    OffloadReference,
    StoredObject,
    UnknownObject,
    paired,
)
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, StoreError
from pulsar_lifecycle.formats import managed_ledger, offload_object
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.formats.offload_object import Role
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.ports import (
    LedgerReader,
    MetadataStore,
    Node,
    ObjectHead,
    ObjectStore,
    Unread,
)
from pulsar_lifecycle.tiered.buckets import bucket_rules
from pulsar_lifecycle.tiered.buckets.bucket_rules import KeyRange, Rules, SweepAction
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import BegunAttempt
from pulsar_lifecycle.values.offload_uuids import NamedUuids
from pulsar_lifecycle.values.referenced import Referenced

T = TypeVar("T")
Row = dict[str, Any]
"""A row of ``values.tables.OBJECTS``."""
CopyKey = tuple[str, UUID, int]
"""A copy's bucket (empty: its topic names none), UUID and ledger id."""

AT_ONCE = 1_000
"""Copies that are judged, and asked for, at a time."""


@dataclass(frozen=True)
class Inventory:
    """What every part of the inventory shares; ``now`` and ``earlier`` are what the scans found in metadata.

    ``referenced`` are the ledgers that the newest scan found listed, ``listed_earlier`` those that a scan since
    the confirming one did.
    """

    buckets: tuple[str, ...]
    rules: Rules
    now: NamedUuids
    earlier: NamedUuids
    referenced: Referenced
    listed_earlier: Referenced
    ledgers_root: str


Began = Callable[[Collection[int]], Mapping[UUID, BegunAttempt]]
"""All attempts on some ledgers that our own offload runs ever began, by the journal."""


def look_below(
    inventory: Inventory,
    store: MetadataStore,
    reader: LedgerReader,
    objects: ObjectStore,
    prefix: str,
    named: Mapping[UUID, Sequence[OffloadReference]],
) -> Iterator[Row]:
    """Every object whose key begins with ``prefix``, and every copy that a topic reads and that is not whole there.

    ``named``: what metadata names of UUIDs with this prefix. Raises what the stores raise.
    """
    whole: set[OffloadReference] = set()
    damaged: dict[CopyKey, ObjectPair] = {}
    for bucket in inventory.buckets:
        for some in batched(paired(bucket, _listed(objects, bucket, prefix))):
            unnamed: list[ObjectPair] = []
            for one in some:
                if isinstance(one, UnknownObject):
                    yield one.row()
                    continue
                said = bucket_rules.in_use(one, named.get(one.uuid, ()), inventory.rules)
                if said is None:
                    unnamed.append(one)
                elif said[0] is ObjectKind.BROKEN:
                    damaged[bucket, one.uuid, one.ledger_id] = one
                else:
                    if said[0] is ObjectKind.COMPLETE:
                        whole.update(reference for reference in named[one.uuid] if reference.reads(one))
                    yield one.row(*said)
            yield from _unnamed(inventory, store, reader, objects, unnamed)
    missing = {
        (one.bucket or "", uuid, one.ledger_id): one
        for uuid, several in named.items()
        for one in several
        if one.complete and one.ledger_id is not None and not one.root and one not in whole
    }
    for some in batched(iter(missing.items())):
        yield from _missing(inventory, store, objects, dict(some), damaged)
    for one in damaged.values():
        first = named[one.uuid][0]
        elsewhere = Why(Code.STILL_IN_USE, "a topic names its UUID, and reads it elsewhere")
        yield one.row(ObjectKind.IN_FLIGHT, elsewhere, first.topic)


def look_between(objects: ObjectStore, bucket: str, gap: KeyRange) -> Iterator[Row]:
    """Every object whose key lies in a gap between the prefixes of UUIDs."""
    for page in objects.list_objects(bucket, after=gap.after):
        for one in page:
            if gap.before and one.key >= gap.before:
                return
            if one.key in gap:
                yield UnknownObject(bucket, one.key, StoredObject(one.size, one.last_modified)).row()


def look_at_uploads(inventory: Inventory, objects: ObjectStore, bucket: str, began: Began) -> Iterator[Row]:
    """Every upload that is under way in a bucket."""
    uploads = (one for page in objects.list_uploads(bucket) for one in page)
    for some in batched(uploads):
        parsed = {one.upload_id: offload_object.parse_key(one.key) for one in some}
        keys = [key for key in parsed.values() if key]
        named = inventory.now.named(key.uuid for key in keys)
        ours = began({key.ledger_id for key in keys})
        for one in some:
            key = parsed[one.upload_id]
            yield bucket_rules.judge_upload(
                bucket,
                one.key,
                one.upload_id,
                one.initiated,
                inventory.rules,
                named=key is not None and key.uuid in named,
                begun=ours.get(key.uuid) if key else None,
            )


def _listed(objects: ObjectStore, bucket: str, prefix: str) -> Iterator[tuple[str, StoredObject]]:
    for page in objects.list_objects(bucket, prefix):
        for one in page:
            yield one.key, StoredObject(one.size, one.last_modified)


def batched(items: Iterator[T]) -> Iterator[list[T]]:
    """``items`` in lists of ``AT_ONCE``."""
    while some := list(islice(items, AT_ONCE)):
        yield some


def _unnamed(
    inventory: Inventory, store: MetadataStore, reader: LedgerReader, objects: ObjectStore, copies: Sequence[ObjectPair]
) -> Iterator[Row]:
    if not copies:
        return
    now = inventory.now.named(one.uuid for one in copies)
    earlier = inventory.earlier.named(one.uuid for one in copies)
    candidates: list[ObjectPair] = []
    for one in copies:
        if one.uuid in now:
            why = Why(Code.STILL_IN_USE, "the newest scan found its UUID in a topic's metadata")
            yield one.row(ObjectKind.IN_FLIGHT, why)
        elif one.newest + CLOCK_SKEW_MS >= inventory.rules.scanned_from:
            yield one.row(ObjectKind.NEW, bucket_rules.NOT_JUDGED)
        elif why := bucket_rules.why_kept(one, inventory.rules, named_earlier=one.uuid in earlier):
            yield one.row(one.unreferenced, why)
        else:
            candidates.append(one)
    owned: list[tuple[ObjectPair, bucket_rules.CopyOwner]] = []
    for one, heads in zip(candidates, _heads(objects, candidates), strict=True):
        error = next((head for head in heads if isinstance(head, LifecycleError)), None)
        found = [head for head in heads if isinstance(head, ObjectHead)]
        if error:
            yield one.row(one.unreferenced, Why(Code.OBJECTS_UNREAD, f"it could not be looked at: {error}"))
            continue
        if not found:
            continue
        as_now = _as_headed(one, found)
        whose = bucket_rules.copy_owner([head.metadata for head in found], inventory.rules)
        # What was written between listing and looking is another attempt's.
        why = bucket_rules.why_kept(as_now, inventory.rules, named_earlier=False) or whose.kept
        if why:
            yield as_now.row(as_now.unreferenced, why, whose.topic, whose.namespace)
        else:
            owned.append((as_now, whose))
    yield from _owned(inventory, store, reader, objects, owned)


def _heads(objects: ObjectStore, copies: Sequence[ObjectPair]) -> list[list[ObjectHead | LifecycleError | None]]:
    """What its bucket says of the objects of each copy that were listed; all copies are of one bucket."""
    keys = [list(one.keys.values()) for one in copies]
    asked = [key for some in keys for key in some]
    answers = iter(objects.head_many(copies[0].bucket, asked) if asked else [])
    return [[next(answers) for _ in some] for some in keys]


def _as_headed(copy: ObjectPair, found: Sequence[ObjectHead]) -> ObjectPair:
    halves = {head.key: StoredObject(head.size, head.last_modified) for head in found}
    keys = copy.keys
    return replace(
        copy,
        data=halves.get(keys.get(Role.DATA, "")),
        index=halves.get(keys.get(Role.INDEX, "")),
    )


def _owned(
    inventory: Inventory,
    store: MetadataStore,
    reader: LedgerReader,
    objects: ObjectStore,
    owned: Sequence[tuple[ObjectPair, bucket_rules.CopyOwner]],
) -> Iterator[Row]:
    """Copies that are ours: what their topics' z-nodes say now, and whether they are the last copy of a ledger."""
    topics = store.read([f"{MANAGED_LEDGERS_ROOT}/{whose.managed_ledger}" for _, whose in owned])
    unneeded: list[tuple[ObjectPair, bucket_rules.CopyOwner, UnnamedCopy]] = []
    for (one, whose), node in zip(owned, topics, strict=True):
        info = _decoded(node)
        if isinstance(info, Why):
            yield one.row(one.unreferenced, info, whose.topic, whose.namespace)
        elif one.uuid in managed_ledger.offload_uuids(info):
            why = Why(Code.STILL_IN_USE, "its topic's z-node names its UUID by now")
            yield one.row(ObjectKind.IN_FLIGHT, why, whose.topic, whose.namespace)
        else:
            item = next((item for item in info.ledgers if item.ledger_id == one.ledger_id), None)
            unneeded.append((one, whose, UnnamedCopy(one.ledger_id, Topic.parse(whose.topic), item)))
    evidence = CopyEvidence(inventory.buckets, inventory.ledgers_root, inventory.referenced, inventory.listed_earlier)
    last = why_last([unnamed for *_, unnamed in unneeded], evidence, store=store, reader=reader, objects=objects)
    for (one, whose, _), found in zip(unneeded, last, strict=True):
        why = found
        if isinstance(found, LifecycleError):
            why = Why(Code.OBJECTS_UNREAD, f"the objects that its topic reads could not be looked at: {found}")
        assert not isinstance(why, LifecycleError)
        action = "" if why else SweepAction.DELETE
        yield one.row(one.unreferenced, why or bucket_rules.NOTHING_NAMES_IT, whose.topic, whose.namespace, action)


def _decoded(node: Node | Unread | None) -> ManagedLedgerInfo | Why:
    """A topic's z-node; why it cannot be read."""
    if isinstance(node, Unread):
        return Why(Code.UNREAD, f"its topic's z-node cannot be read: {node.reason}")
    try:
        return managed_ledger.decode(node.data if node else b"")
    except CorruptFormat as error:
        return Why(Code.UNREAD, f"its topic's z-node cannot be read: {error}")


def _missing(
    inventory: Inventory,
    store: MetadataStore,
    objects: ObjectStore,
    named: Mapping[CopyKey, OffloadReference],
    damaged: dict[CopyKey, ObjectPair],
) -> Iterator[Row]:
    """Copies that topics read and that were not listed whole: as the topics and the buckets are now."""
    nodes = store.read([one.path for one in named.values()])
    asked: dict[str, list[tuple[ObjectPair, OffloadReference]]] = {}
    for ((bucket, uuid, ledger_id), reference), node in zip(named.items(), nodes, strict=True):
        info = _decoded(node)
        if isinstance(info, Why):
            raise StoreError(f"{reference.path}: {info}")
        context = _context(info, reference)
        if context is None:
            continue
        copy = ObjectPair(bucket, uuid, ledger_id)
        if (context.driver_name or "").lower() in offload_object.S3_DRIVERS and bucket in inventory.buckets:
            asked.setdefault(bucket, []).append((copy, reference))
        else:
            why = Why(Code.NO_BUCKET, "its bucket is not one of object_store.buckets")
            yield copy.row(ObjectKind.ELSEWHERE, why, reference.topic)
    for bucket, several in asked.items():
        heads = heads_of(objects, bucket, [copy for copy, _ in several])
        for copy, (_, reference) in zip(heads, several, strict=True):
            if isinstance(copy, LifecycleError):
                raise copy
            damaged.pop((bucket, copy.uuid, copy.ledger_id), None)
            wrong = inventory.rules.wrong(copy, reference)
            kind, why = (ObjectKind.BROKEN, wrong) if wrong else (ObjectKind.COMPLETE, bucket_rules.READ_BY_A_TOPIC)
            yield copy.row(kind, why, reference.topic)


def _context(info: ManagedLedgerInfo, reference: OffloadReference) -> OffloadContext | None:
    """The complete offload that a scan found; None where its topic does not have it, or there, any more."""
    item = next((item for item in info.ledgers if item.ledger_id == reference.ledger_id), None)
    offload = item.offload if item else None
    if offload is None or not offload.complete or offload.uuid != reference.uuid:
        return None
    return offload if offload.driver_metadata.get("bucket", "") == (reference.bucket or "") else None
