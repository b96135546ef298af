"""A ledger as its topic lists it: whether its copies can be deleted, and the attempt that is open on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_MANAGED_LEDGER, LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.formats.offload_object import S3_DRIVERS
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values import findings
from pulsar_lifecycle.values.codes import Code, Why

COPY_COLUMNS = ("ledger_id", "application", "component", "managed_ledger", "cursor", "state", "problem")
"""The columns of ``tables.BOOKKEEPER_LEDGERS`` that :func:`kept_copies` needs."""
OF_COPY = (*COPY_COLUMNS, "length", "write_quorum")
"""The same with those that :func:`on_disk` needs."""


@dataclass(frozen=True, slots=True)
class BookKeeperCopy:
    """The BookKeeper copy of a ledger, by its z-node: ``row`` is of ``tables.BOOKKEEPER_LEDGERS``, None if absent.

    ``problem`` says why a deletion run would keep it; then its topic must go on listing it.
    """

    ledger_id: int
    row: Mapping[str, Any] | None
    problem: Why | None = None

    @property
    def length(self) -> int:
        """Bytes of its entries; 0 where that is not known."""
        return (self.row or {}).get("length") or 0

    @property
    def on_disk(self) -> int:
        """Bytes that its replicas take on the bookies' disks; 0 where that is not known."""
        return self.length * max((self.row or {}).get("write_quorum") or 1, 1)


def copy_of(ledger_id: int, row: Mapping[str, Any] | None, topic: Topic) -> BookKeeperCopy:
    """The BookKeeper copy of a data ledger that ``topic`` lists."""
    return BookKeeperCopy(ledger_id, row, _problem(row, topic))


def _problem(row: Mapping[str, Any] | None, topic: Topic) -> Why | None:
    if row is None:
        return Why(Code.NOT_IN_BOOKKEEPER, "BookKeeper does not have it: a dangling reference")
    if row["problem"]:
        return Why(Code.NOT_IN_BOOKKEEPER, f"its z-node in BookKeeper could not be read: {row['error']}")
    if row["application"] != "pulsar" or row["component"] != COMPONENT_MANAGED_LEDGER or row["cursor"]:
        text = "BookKeeper's z-node does not call it a topic's data: the deletion run would keep it"
        return Why(Code.NOT_IN_BOOKKEEPER, text)
    if row["managed_ledger"] != topic.managed_ledger:
        return Why(Code.NOT_IN_BOOKKEEPER, f"BookKeeper's z-node says that it is of {row['managed_ledger']}")
    return None if row["state"] == "CLOSED" else Why(Code.NOT_IN_BOOKKEEPER, "never closed")


def copies_of(
    rows: Mapping[int, Mapping[str, Any] | None], topic: Topic, context: findings.Context
) -> dict[int, BookKeeperCopy]:
    """:func:`copy_of` by ledger id, with what the scan says of its replicas."""
    copies = {ledger_id: copy_of(ledger_id, row, topic) for ledger_id, row in rows.items()}
    return {
        i: replace(copy, problem=copy.problem or Why(Code.UNDER_REPLICATED, "under-replicated"))
        if i in context.under_replicated
        else copy
        for i, copy in copies.items()
    }


def on_disk(ids: Any, copies: pa.Table) -> Any:
    """Bytes times write quorum of ledgers, by rows (:data:`OF_COPY`) that need not have all; 0 where nobody knows."""
    place = pc.index_in(ids, copies.column("ledger_id").combine_chunks())
    length, quorum = (copies.column(name).take(place) for name in ("length", "write_quorum"))
    replicas = pc.max_element_wise(pc.fill_null(quorum, 1), 1).cast(pa.int64())
    return pc.multiply(pc.fill_null(length, 0), replicas)


def copy_rule(offload: OffloadContext, context: findings.Context) -> Why | None:
    """Why a deletion run could not delete a complete offloaded copy; None if there is no reason."""
    bucket = offload.driver_metadata.get("bucket", "")
    if (offload.driver_name or "").lower() not in S3_DRIVERS:
        text = f"its offloaded copy is of driver {offload.driver_name}: only those of aws-s3 and S3 can be deleted"
        return Why(Code.OTHER_DRIVER, text)
    if bucket not in context.offload_buckets:
        text = f"its offloaded copy is in bucket {bucket!r}, which is not one of object_store.buckets"
        return Why(Code.NO_BUCKET, text)
    return None


def kept_copy(item: LedgerInfo, copy: BookKeeperCopy | None, context: findings.Context) -> Why | None:
    """Why a deletion run would keep a copy of a listed ledger, so that it stays listed; None if there is no reason."""
    offload = item.offload
    if offload and offload.segments:
        return Why(Code.STREAMING, "streaming offload: which of its objects are whole is not known")
    if offload and (offload.complete or offload.bookkeeper_deleted):
        if not (offload.complete and offload.uuid and offload.driver_name):
            return Why(Code.COPY_KEPT, "its offload context is not whole: where the copy is cannot be said")
        if why := copy_rule(offload, context):
            return why
        if offload.bookkeeper_deleted:
            return None
    return copy.problem if copy else Why(Code.COPY_KEPT, "its copy in BookKeeper was not looked at")


def kept_copies(listed: pa.Table, asked: Any, bookkeeper: pa.Table, context: findings.Context) -> Any:
    """Those of the ledger ids ``asked`` that :func:`kept_copy` gives a reason for, by the tables of a scan.

    ``listed`` are rows of ``tables.MANAGED_LEDGERS``; ``bookkeeper`` (:data:`COPY_COLUMNS`) has every ledger that is
    asked for, as far as it exists.
    """
    lists = listed.column("ledgers").combine_chunks()
    rows = listed.column("managed_ledger").combine_chunks()
    owners = rows.take(pc.list_parent_indices(lists))
    inner = lists.flatten()
    chosen = pc.is_in(inner.field("ledger_id"), asked)
    inner, owners = inner.filter(chosen), owners.filter(chosen)
    complete, deleted, streaming = (
        _true(inner.field(name)) for name in ("offload_complete", "bookkeeper_deleted", "offload_streaming")
    )
    whole = complete & np.asarray(inner.field("offload_uuid").is_valid()) & _reached(inner, context)
    here = _deletable(inner.field("ledger_id"), owners, bookkeeper, context)
    offloaded = complete | deleted
    free = ~streaming & np.where(offloaded, whole & (deleted | here), here)
    return inner.field("ledger_id").filter(pa.array(~free))


def _reached(inner: Any, context: findings.Context) -> Any:
    """Whether the bucket that an offload names is one where we delete."""
    driver = pc.is_in(pc.utf8_lower(inner.field("offload_driver")), pa.array(sorted(S3_DRIVERS)))
    bucket = pc.fill_null(inner.field("offload_bucket"), "")
    return _true(driver) & _true(pc.is_in(bucket, pa.array(sorted(context.offload_buckets), pa.string())))


def _deletable(ids: Any, owners: Any, bookkeeper: pa.Table, context: findings.Context) -> Any:
    """Whether a deletion run would delete the copies in BookKeeper of these data ledgers of their ``owners``."""
    place = pc.index_in(ids, bookkeeper.column("ledger_id").combine_chunks())
    copies = {name: bookkeeper.column(name).take(place).combine_chunks() for name in COPY_COLUMNS}
    tagged = [
        pc.equal(copies["application"], "pulsar"),
        pc.equal(copies["component"], COMPONENT_MANAGED_LEDGER),
        pc.equal(pc.fill_null(copies["cursor"], ""), ""),
        pc.equal(copies["managed_ledger"], owners),
        pc.equal(copies["state"], LedgerState.CLOSED.name),
        copies["problem"].is_null(),
        place.is_valid(),
    ]
    replicated = ~np.isin(np.asarray(ids), np.fromiter(context.under_replicated, np.int64))
    return np.logical_and.reduce([_true(one) for one in tagged]) & replicated


def _true(flags: Any) -> Any:
    return np.asarray(pc.fill_null(flags, False), bool)


def open_attempt(info: ManagedLedgerInfo, ours: Collection[UUID] = ()) -> Why | None:
    """The offload attempt that a broker has open on a ledger of a topic; None if there is none.

    Nothing of such a topic is written: its broker may be at it, and the next write of its own, fenced by ours, would
    end the attempt and leave what it uploaded. ``ours`` are the UUIDs of our own open attempts.
    """
    for item in sorted(info.ledgers, key=lambda one: one.ledger_id):
        offload = item.offload
        if offload and offload.uuid and not offload.complete and offload.uuid not in ours:
            text = f"offload attempt {offload.uuid} of ledger {item.ledger_id} is not complete: {THEIRS}"
            return Why(Code.BROKERS_ATTEMPT, text)
    return None


THEIRS = (
    "its broker may be at it, so the topic is left alone whole until that is done (if it has failed, have the broker "
    "offload once more: `pulsar-admin topics offload`)"
)
