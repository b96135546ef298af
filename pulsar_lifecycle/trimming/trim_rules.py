"""Which ledgers may leave a topic's metadata: of a topic that lives on, and of one that goes whole.

Belongs here: the rule of the first phase, and the messages it sends. Pure: what the topic's z-node, its cursors and
BookKeeper's z-nodes say comes in, a verdict with its reason comes out. Not here: reading any of it, sending, writing
(``trimming/trim.py``). Source: PIP-186, ManagedLedgerImpl.internalTrimLedgers (4.0.7). When in doubt a ledger stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pulsar_lifecycle.copies.listed_ledgers import BookKeeperCopy, kept_copy, open_attempt
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    LedgerType,
    MessageOffloadContext,
    PendingDeleteLedgerInfo,
)
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.formats.offload_object import halves
from pulsar_lifecycle.model import Position, Topic, cursor_name
from pulsar_lifecycle.values import findings, owner_names
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.findings import component_of


class Stays(StrEnum):
    """Why a ledger stays on its topic's list, where nothing protects its topic and no copy of it must be kept."""

    NOT_LISTED = "not_listed"
    """Its topic does not list it."""
    UNKNOWN_POLICY = "unknown_policy"
    """The retention in force is not known."""
    LAST_LEDGER = "last_ledger"
    """It is the last ledger of its topic."""
    CURSOR = "cursor"
    """A durable cursor stands in it, or before it."""
    NOT_PREFIX = "not_prefix"
    """A ledger before it stays: ledgers go from the oldest on."""
    NOT_COUNTED = "not_counted"
    """It could not go when the caps were checked, and counts in none of them."""


@dataclass(frozen=True, slots=True)
class TrimVerdict:
    """What becomes of one ledger: it ``goes``, unless ``stays`` says why not.

    The code is of the rule that protects its topic, of the one that keeps a copy of it, or of :class:`Stays`.
    """

    ledger_id: int
    stays: Why | None = None

    @property
    def goes(self) -> bool:
        """Whether it may leave its topic."""
        return self.stays is None

    @property
    def why(self) -> Why:
        """Why it stays, or that it may go."""
        return self.stays or Why(Code.MAY_GO, "")


def acknowledged(item: LedgerInfo, copy: BookKeeperCopy | None, position: Position) -> bool:
    """Whether a durable cursor at a persisted mark-delete position needs nothing of a listed ledger any more.

    As for brokers, the ledger whose last entry it stands at is one of these, and so is one without entries. How many
    there are is known where topic and BookKeeper agree, or one of them says nothing; that there are none, BookKeeper
    must say.
    """
    here = copy.row if copy else None
    stored = here["entries"] if here else None
    if stored == 0 and not item.entries:
        return True
    if item.ledger_id != position.ledger_id:
        return item.ledger_id < position.ledger_id
    entries = item.entries or stored
    return entries == position.entry_id + 1 and (here is None or stored == entries)


def judge(
    info: ManagedLedgerInfo,
    cursors: Mapping[str, Position],
    copies: Mapping[int, BookKeeperCopy],
    asked: Collection[int],
    context: findings.Context,
    topic: Why | None = None,
) -> list[TrimVerdict]:
    """One verdict per ledger asked for, by id. ``topic``: why none of them may go.

    ``cursors`` are the persisted mark-delete positions of every durable cursor, ``copies`` has every ledger asked for
    that the topic lists. What goes is always a prefix of the topic's ledgers, never the last one, and of no use to any
    cursor (:func:`acknowledged`).
    """
    topic = topic or open_attempt(info)
    listed = {item.ledger_id: item for item in info.ledgers}
    verdicts = {i: TrimVerdict(i, Why(Stays.NOT_LISTED, "its topic does not list it")) for i in asked}
    slowest = min(cursors, key=lambda name: cursors[name], default="")
    in_the_way = -1
    for ledger_id in sorted(listed):
        if ledger_id in verdicts:
            item, copy = listed[ledger_id], copies.get(ledger_id)
            stays = topic or kept_copy(item, copy, context)
            if stays is None and ledger_id == max(listed):
                stays = Why(Stays.LAST_LEDGER, "the last ledger of its topic")
            elif stays is None and slowest and not acknowledged(item, copy, cursors[slowest]):
                stays = Why(Stays.CURSOR, f"cursor {slowest} stands at {cursors[slowest]}")
            elif stays is None and in_the_way >= 0:
                stays = Why(Stays.NOT_PREFIX, f"ledger {in_the_way} before it stays: it would leave a hole")
            verdicts[ledger_id] = TrimVerdict(ledger_id, stays)
            if stays is None:
                continue
        in_the_way = ledger_id if in_the_way < 0 else in_the_way
    return [verdicts[i] for i in sorted(verdicts)]


def data_messages(
    topic: Topic, item: LedgerInfo, copy: BookKeeperCopy | None, sent_at: int
) -> list[PendingDeleteLedgerInfo]:
    """The messages for a data ledger: one per copy there is, in BookKeeper and in tiered storage.

    Where its topic lists the one in BookKeeper as deleted, that one may be there still. No message says so if a
    deletion run would keep it: then it is the orphan scan's.
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
                offload_context=MessageOffloadContext(
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
    if row["problem"] or row["application"] != "pulsar" or row["component"] not in findings.COMPONENTS:
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
