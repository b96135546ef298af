"""Which ledgers may leave a topic's metadata: of a topic that lives on, and of one that goes whole.

Belongs here: the rule of the first phase, and the messages it sends. Pure: what the topic's z-node, its cursors and
BookKeeper's z-nodes say comes in, a verdict with its reason comes out. Not here: reading any of it, sending, writing
(``trimming/trim.py``). Source: PIP-186, ManagedLedgerImpl.internalTrimLedgers (4.0.7). When in doubt a ledger stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    LedgerType,
    OffloadContext,
    PendingDeleteLedgerInfo,
)
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.formats.managed_ledger import OffloadContext as OffloadOutcome
from pulsar_lifecycle.formats.offload_object import S3_DRIVERS, halves
from pulsar_lifecycle.model import Position, Topic, cursor_name
from pulsar_lifecycle.records import findings, owner_names
from pulsar_lifecycle.records.findings import component_of
from pulsar_lifecycle.topics.listed_ledgers import Copy, copy_of, open_attempt


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of one ledger: it ``goes``, or stays for ``reason``."""

    ledger_id: int
    goes: bool
    reason: str


def copies_of(rows: Mapping[int, Mapping[str, Any] | None], topic: Topic, context: findings.Context) -> dict[int, Copy]:
    """:func:`copy_of` by ledger id, with what the scan says of its replicas."""
    copies = {ledger_id: copy_of(ledger_id, row, topic) for ledger_id, row in rows.items()}
    return {
        i: replace(copy, problem=copy.problem or "under-replicated") if i in context.under_replicated else copy
        for i, copy in copies.items()
    }


def intent_rule(topic: Topic, context: findings.Context) -> str:
    """Why a deletion run would delete no ledger that leaves the metadata of a topic; empty if there is no reason."""
    if str(topic) in context.open_topics:
        return "the newest scan found an unreferenced ledger of it that was never closed: the deletion run would wait"
    return ""


def copy_rule(offload: OffloadOutcome, context: findings.Context) -> str:
    """Why a deletion run could not delete a complete offloaded copy; empty if there is no reason."""
    bucket = offload.driver_metadata.get("bucket", "")
    if (offload.driver_name or "").lower() not in S3_DRIVERS:
        return f"its offloaded copy is of driver {offload.driver_name}: only those of aws-s3 and S3 can be deleted"
    if bucket not in context.offload_buckets:
        return f"its offloaded copy is in bucket {bucket!r}, which is not one of object_store.buckets"
    return ""


def judge(
    info: ManagedLedgerInfo,
    cursors: Mapping[str, Position],
    copies: Mapping[int, Copy],
    asked: Collection[int],
    context: findings.Context,
    topic_reason: str = "",
) -> list[Verdict]:
    """One verdict per ledger asked for, by id.

    ``cursors`` are the persisted mark-delete positions of every durable cursor, ``copies`` has every ledger asked for
    that the topic lists. What goes is always a prefix of the topic's ledgers, never the last one, and everything below
    the ledger of every mark-delete position.
    """
    topic_reason = topic_reason or open_attempt(info)
    listed = {item.ledger_id: item for item in info.ledgers}
    verdicts = {i: Verdict(i, False, "its topic does not list it") for i in asked}
    slowest = min(cursors, key=lambda name: cursors[name], default="")
    in_the_way = -1
    for ledger_id in sorted(listed):
        if ledger_id in verdicts:
            reason = topic_reason or _own_reason(listed[ledger_id], copies.get(ledger_id), context)
            if not reason and ledger_id == max(listed):
                reason = "the last ledger of its topic"
            if not reason and slowest and ledger_id >= cursors[slowest].ledger_id:
                reason = f"cursor {slowest} stands at {cursors[slowest]}"
            if not reason and in_the_way >= 0:
                reason = f"ledger {in_the_way} before it stays: it would leave a hole"
            verdicts[ledger_id] = Verdict(ledger_id, not reason, reason)
            if not reason:
                continue
        in_the_way = ledger_id if in_the_way < 0 else in_the_way
    return [verdicts[i] for i in sorted(verdicts)]


def _own_reason(item: LedgerInfo, copy: Copy | None, context: findings.Context) -> str:
    """Why a ledger stays whatever its place; empty if there is no reason."""
    offload = item.offload
    if offload and offload.segments:
        return "streaming offload: which of its objects are whole is not known"
    if offload and (offload.complete or offload.bookkeeper_deleted):
        if not (offload.complete and offload.uuid and offload.driver_name):
            return "its offload context is not whole: where the copy is cannot be said"
        if why := copy_rule(offload, context):
            return why
        if offload.bookkeeper_deleted:
            return ""
    if copy is None:
        return "its copy in BookKeeper was not looked at"
    return copy.problem


def data_messages(topic: Topic, item: LedgerInfo, copy: Copy | None, sent_at: int) -> list[PendingDeleteLedgerInfo]:
    """The messages for a data ledger: one per copy there is, in BookKeeper and in tiered storage.

    Where its topic gave up the one in BookKeeper, that one may be there still. No message says so if a deletion run
    would keep it: then it is the orphan scan's.
    """
    offload = item.offload
    whole = offload if offload and offload.complete and offload.uuid and offload.driver_name else None
    messages: list[PendingDeleteLedgerInfo] = []
    if copy and copy.row and not copy.problem:
        messages.append(
            PendingDeleteLedgerInfo(
                topic_name=str(topic),
                component=LedgerComponent.MANAGED_LEDGER,
                ledger_id=item.ledger_id,
                czxid=copy.row["czxid"],
                ctime=copy.row["ctime"],
                sent_at=sent_at,
            )
        )
    if whole and whole.uuid and whole.driver_name:
        msb, lsb = halves(whole.uuid)
        messages.append(
            PendingDeleteLedgerInfo(
                topic_name=str(topic),
                component=LedgerComponent.MANAGED_LEDGER,
                ledger_id=item.ledger_id,
                ledger_type=LedgerType.OFFLOAD_LEDGER,
                offload_context=OffloadContext(
                    msb=msb,
                    lsb=lsb,
                    driver_name=whole.driver_name,
                    metadata=dict(whole.driver_metadata),
                ),
                sent_at=sent_at,
            )
        )
    return messages


def tagged_message(topic: Topic, row: Mapping[str, Any], sent_at: int) -> PendingDeleteLedgerInfo | None:
    """The message for a ledger of another component, by its own tags (``tables.BOOKKEEPER_LEDGERS``).

    None where they do not say that it is the topic's: then the orphan scan judges it, once nothing names it any more.
    """
    if row["error"] or row["application"] != "pulsar" or row["component"] not in findings.COMPONENTS:
        return None
    if owner_names.owner_in(row)[1] != str(topic):
        return None
    component = component_of(row["component"], row["cursor"])
    cursor = cursor_name(row["cursor"]) if row["cursor"] else row["bucket_cursor"] or ""
    return PendingDeleteLedgerInfo(
        topic_name=str(topic),
        component=component,
        ledger_id=row["ledger_id"],
        cursor_name=cursor,
        bucket_key=row["bucket_key"] or "",
        czxid=row["czxid"],
        ctime=row["ctime"],
        sent_at=sent_at,
    )


def spread(topics: Iterable[tuple[str, Topic]]) -> list[Topic]:
    """Topics, each with its bundle, in an order that goes round the bundles."""
    by_bundle: dict[str, list[Topic]] = {}
    for bundle, topic in topics:
        by_bundle.setdefault(bundle, []).append(topic)
    rounds = max((len(group) for group in by_bundle.values()), default=0)
    return [group[n] for n in range(rounds) for group in by_bundle.values() if n < len(group)]


def prefix(goes: Sequence[int], acknowledged: Collection[int]) -> list[int]:
    """Those ids of an ascending list that come before the first whose messages were not all acknowledged."""
    taken: list[int] = []
    for ledger_id in goes:
        if ledger_id not in acknowledged:
            break
        taken.append(ledger_id)
    return taken
