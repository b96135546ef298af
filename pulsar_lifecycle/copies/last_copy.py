"""Whether a listed ledger has another copy than an offloaded one that nothing names: the last copy of it stays.

Belongs here: the rule that a sweep's plan (``tiered/buckets/bucket_rules.py``) and the deletion run
(``deletion/offloaded_copies.py``) share. Not here: what names a copy. Metadata proves no copy: an object may be gone
though its topic names it, and a ledger's z-node that came back from a backup brings no entries back. ``why_last``
looks, and is cheap: it plans. Before anything is deleted ``why_unlike`` reads both copies whole and compares every
entry.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from pulsar_lifecycle.copies import listed_ledgers, object_pairs, whole_copies
from pulsar_lifecycle.copies.object_pairs import ObjectPair, OffloadReference, StoredObject
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.errors import CorruptFormat, LeaseLost, LifecycleError, NotFound, Overloaded, Paused
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, offload_object
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, OffloadContext
from pulsar_lifecycle.metastore import bookkeeper_ledgers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import LedgerReader, MetadataStore, Node, ObjectHead, ObjectStore, ReplicaCheck, Unread
from pulsar_lifecycle.throttle import Pace
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.referenced import Referenced


@dataclass(frozen=True, slots=True)
class UnnamedCopy:
    """An offloaded copy that nothing names: its ledger, its topic, and the ledger as that lists it now, if it does.

    ``delisted``: our own first phase took the ledger off its topic's list.
    """

    ledger_id: int
    topic: Topic
    item: LedgerInfo | None
    delisted: bool = False


@dataclass(frozen=True, slots=True)
class CopyEvidence:
    """Where other copies may be, and the ledgers that the newest scan found listed (``referenced``).

    ``earlier``: those that the scan which confirms it, or one in between, found listed.
    """

    buckets: Collection[str]
    ledgers_root: str
    referenced: Referenced
    earlier: Referenced = field(default_factory=Referenced)


def why_last(
    unnamed: Sequence[UnnamedCopy],
    evidence: CopyEvidence,
    *,
    store: MetadataStore,
    reader: LedgerReader,
    objects: ObjectStore,
) -> list[Why | LifecycleError | None]:
    """Of each copy why it may be the last one of a ledger that some topic lists; None if it is not, by what is there.

    The other copy is the one that its topic reads, both of whose objects must be there; without one, BookKeeper's,
    whose entries the bookies must have. A LifecycleError where a bucket could not be asked.

    A ledger that a scan found listed and nothing lists now is not confirmed: metadata that is taken away and put back
    lists it again, and while it is away nobody can say which copy it reads.
    """
    found: list[Why | LifecycleError | None] = [None] * len(unnamed)
    read, rest = list[int](), list[int]()
    for n, one in enumerate(unnamed):
        if _read_offload(one):
            read.append(n)
        elif is_listed(one, evidence):
            rest.append(n)
        elif not one.delisted and one.ledger_id in evidence.earlier:
            found[n] = Why(Code.NOT_CONFIRMED, "not confirmed: an earlier scan still found its ledger listed")
    for n, why in zip(read, why_not_there([unnamed[n] for n in read], evidence.buckets, objects), strict=True):
        found[n] = why
    for n, why in zip(rest, _not_in_bookkeeper([unnamed[n] for n in rest], evidence, store, reader), strict=True):
        if why:
            found[n] = Why(Code.LAST_COPY, f"some topic lists its ledger, and no other copy of it is known: {why}")
    return found


def is_listed(unnamed: UnnamedCopy, evidence: CopyEvidence) -> bool:
    """Whether some topic lists the ledger of a copy, so that another copy must be there."""
    return bool(unnamed.item) or unnamed.ledger_id in evidence.referenced


def why_unlike(
    unnamed: UnnamedCopy,
    location: Location,
    evidence: CopyEvidence,
    *,
    store: MetadataStore,
    reader: LedgerReader,
    objects: ObjectStore,
    pace: Pace,
) -> Why | LifecycleError | None:
    """Why the copy at ``location`` may be the only good one of a listed ledger; None once every entry was compared.

    The other copy is that of ``why_last``: the one that its topic reads, or BookKeeper's. Both are read whole, at the
    same time, and every entry of one must be that of the other; of a pair without its data object no entry can be
    compared, and the other copy is read all the same. None at once where no topic lists the ledger. A LifecycleError
    for what could not be read now; raises what ``pace`` raises. In memory: some pieces of each.
    """
    if not is_listed(unnamed, evidence):
        return None
    try:
        heads = objects.head_many(location.bucket, [location.data_key, location.index_key])
        for head in heads:
            if isinstance(head, LifecycleError):
                return head
        data, index = (head if isinstance(head, ObjectHead) else None for head in heads)
        if offload := _read_offload(unnamed):
            assert offload.uuid
            there = Location(offload.driver_metadata.get("bucket", ""), offload.uuid, unnamed.ledger_id)
            what, other = "the copy that its topic reads", whole_copies.in_bucket(objects, there, pace)
        else:
            (node,) = store.read([ledger_path.ledger_path(unnamed.ledger_id, evidence.ledgers_root)])
            if not isinstance(node, Node):
                return Why(Code.LAST_COPY, "its z-node in BookKeeper is not there, or cannot be read")
            metadata = ledger_metadata.decode(node.data)
            what, other = "BookKeeper", whole_copies.in_bookkeeper(reader, unnamed.ledger_id, metadata, pace)
        if data is None:
            entries, unlike = whole_copies.read_whole(other), ""
        else:
            whole = whole_copies.in_bucket(objects, location, pace)
            if index is None:
                whole = whole_copies.in_data_object(objects, location, data, pace)
            compared = whole_copies.compare("it", whole, what, other)
            entries, unlike = compared.entries, compared.difference
    except STOPPING:
        raise
    except (CorruptFormat, NotFound) as error:
        text = f"every entry of it and of another copy is to be compared, and one of them cannot be read: {error}"
        return Why(Code.LAST_COPY, text)
    except LifecycleError as error:
        return error
    listed = unnamed.item.entries if unnamed.item else None
    if not unlike and listed and entries != listed:
        unlike = f"its topic lists {listed} entries, {what} has {entries}"
    return (
        Why(Code.LAST_COPY, f"every entry of it and of another copy was to be the same: {unlike}") if unlike else None
    )


STOPPING = (Paused, LeaseLost, Overloaded)
"""What ends a run: no word on any copy."""


def heads_of(objects: ObjectStore, bucket: str, copies: Sequence[ObjectPair]) -> list[ObjectPair | LifecycleError]:
    """Copies in a bucket, with the objects of each that are there now; LifecycleError for what could not be asked."""
    keys = [
        key
        for one in copies
        for key in (
            offload_object.data_key(one.uuid, one.ledger_id),
            offload_object.index_key(one.uuid, one.ledger_id),
        )
    ]
    heads: list[ObjectHead | LifecycleError | None]
    try:
        heads = objects.head_many(bucket, keys) if keys else []
    except LifecycleError as error:
        heads = [error] * len(keys)
    found: list[ObjectPair | LifecycleError] = []
    for one, data, index in zip(copies, heads[::2], heads[1::2], strict=True):
        error = next((head for head in (data, index) if isinstance(head, LifecycleError)), None)
        found.append(error or replace(one, data=_stored(data), index=_stored(index)))
    return found


def _stored(head: ObjectHead | LifecycleError | None) -> StoredObject | None:
    return StoredObject(head.size, head.last_modified) if isinstance(head, ObjectHead) else None


def _read_offload(unnamed: UnnamedCopy) -> OffloadContext | None:
    offload = unnamed.item.offload if unnamed.item else None
    return offload if offload and offload.complete else None


def why_not_there(
    unnamed: Sequence[UnnamedCopy], buckets: Collection[str], objects: ObjectStore
) -> list[Why | LifecycleError | None]:
    """Of each copy whose topic reads another one why that is not known to be there whole; None if it is."""
    elsewhere = Why(Code.LAST_COPY, "it lies in none of object_store.buckets")
    found: list[Why | LifecycleError | None] = [elsewhere] * len(unnamed)
    asked: dict[str, list[tuple[int, ObjectPair, OffloadReference]]] = {}
    for n, one in enumerate(unnamed):
        offload = _read_offload(one)
        assert one.item
        assert offload
        bucket = offload.driver_metadata.get("bucket", "")
        s3 = (offload.driver_name or "").lower() in offload_object.S3_DRIVERS
        if s3 and bucket in buckets and offload.uuid:
            copy = ObjectPair(bucket, offload.uuid, one.ledger_id)
            entries, size = one.item.entries, one.item.size
            reference = OffloadReference(
                offload.uuid, one.ledger_id, True, entries, size, bucket, "", str(one.topic), ""
            )
            asked.setdefault(bucket, []).append((n, copy, reference))
    for bucket, some in asked.items():
        heads = heads_of(objects, bucket, [copy for _, copy, _ in some])
        for (n, _, reference), there in zip(some, heads, strict=True):
            found[n] = there if isinstance(there, LifecycleError) else object_pairs.damage(there, reference)
    text = "the copy that its topic reads is not proven: {}"
    return [Why(Code.LAST_COPY, text.format(why)) if isinstance(why, Why) else why for why in found]


def _not_in_bookkeeper(
    unnamed: Sequence[UnnamedCopy], evidence: CopyEvidence, store: MetadataStore, reader: LedgerReader
) -> list[Why | None]:
    """Why BookKeeper's copy of each one's ledger cannot be relied on; None if its bookies have it."""
    nodes = store.read([ledger_path.ledger_path(one.ledger_id, evidence.ledgers_root) for one in unnamed])
    there = [node for node in nodes if isinstance(node, Node)]
    known = bookkeeper_ledgers.ledger_rows(there, evidence.ledgers_root).to_pylist() if there else []
    rows = {row["ledger_id"]: row for row in known}
    found: list[Why | None] = []
    asked: dict[int, LedgerMetadata] = {}
    for one, node in zip(unnamed, nodes, strict=True):
        why = listed_ledgers.copy_of(one.ledger_id, rows.get(one.ledger_id), one.topic).problem
        if one.item and one.item.offload and one.item.offload.bookkeeper_deleted:
            why = Why(Code.LAST_COPY, "its copy in BookKeeper is listed as deleted")
        elif isinstance(node, Unread):
            why = Why(Code.LAST_COPY, f"its z-node in BookKeeper could not be read: {node.reason}")
        elif isinstance(node, Node) and not why:
            asked[one.ledger_id] = ledger_metadata.decode(node.data)
        found.append(why)
    checks = dict(zip(asked, reader.check_replicas(list(asked.items())), strict=True)) if asked else {}
    return [why or _not_held(checks[one.ledger_id]) for one, why in zip(unnamed, found, strict=True)]


def _not_held(check: ReplicaCheck) -> Why | None:
    if not check.lost and not check.unproven:
        return None
    text = (
        f"of {check.asked} entries that its bookies were asked for, {check.lost} are on none of them and "
        f"{check.unproven} not shown"
    )
    return Why(Code.LAST_COPY, text)
