"""Why a durable cursor stands where it does, as far as its persisted state says it, what moves it, and what it keeps.

Belongs here: holes in its acknowledgements, its index of delayed messages, its use in transactions. Not here: what
else keeps a ledger (``explain_topic.py``). Messages that a broker delays in memory alone leave no trace. Upstream:
``ManagedCursorImpl``, managed-ledger 4.0.7, ``BucketDelayedDeliveryTracker`` and ``PendingAckHandleImpl``,
pulsar-broker 4.0.7.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.delayed_index.stored.index_reading import IndexPorts, opened_copy
from pulsar_lifecycle.errors import LifecycleError, Refused
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import message
from pulsar_lifecycle.formats.cursor import ManagedCursorInfo, PositionInfo
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.lifecycle.activity.reported_unused import unused_subscriptions
from pulsar_lifecycle.lifecycle.load.monitors import Monitors
from pulsar_lifecycle.model import COMPACTION_CURSOR, MANAGED_LEDGERS_ROOT, Position, Topic, cursor_name
from pulsar_lifecycle.ports import LedgerReader, MetadataStore
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan.stored_references import cursor_state, last_entries_of, metadata_of
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.load_losses import DEDUPLICATION, REPLICATOR
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.owner_names import holders
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept

BY_LOAD = "a load (jobs plan_load and load_topics)"
_EXPIRED = "nobody has used the subscription for longer than `subscriptionExpirationTimeMinutes`"
_INACTIVE = "nobody has used the subscription for longer than `inactivity.period`"
_DELETED = "the job delete_inactive_subscriptions"
MOVES_SUBSCRIPTION = "its consumers, or `pulsar-admin topics skip-all`, `expire-messages` or `unsubscribe`"
_MOVES: Mapping[str, str] = {
    DEDUPLICATION: "its broker's next deduplication snapshot, each `brokerDeduplicationEntriesInterval` messages",
    COMPACTION_CURSOR: "a compaction of the topic (`pulsar-admin topics compact`)",
    REPLICATOR: "its replication to the other cluster",
}
"""What moves a cursor that is no subscription, by how its name begins."""
_ENDS_TRANSACTIONS = "the end of its transactions (`pulsar-admin transactions slow-transactions`)"
_ENDS_ITS_TRANSACTION = (
    "while the transaction is open in which its first message was sent, the end of that one (`pulsar-admin "
    "transactions slow-transactions`)"
)
_NOT_SENT = (
    "nothing while no broker has the topic: its replication clusters do not name that cluster any more, and a broker "
    "that loads the topic deletes this cursor"
)
_SENT_WHEN_LOADED = "its replication to the other cluster, once a broker has the topic loaded"
_DROPPED_WHEN_LOADED = f"{_SENT_WHEN_LOADED}; that broker drops what is past its TTL"
_NO_DEDUPLICATION = "the topic's next load: deduplication is off, and a broker that loads it so deletes this cursor"
_NOT_HERE = "nothing: its replication clusters leave this cluster out, and a broker that loads the topic deletes it"


def moved_by_whom(
    monitors: Monitors | None, topic: Topic, cursor: str, holds: Collection[CursorHold], *, loaded: bool
) -> str:
    """What moves a cursor of a topic; ``monitors``: None where they are not known. A replicator may send no more.

    It sends while a broker has the topic ``loaded``, and at no other time.
    """
    if monitors and monitors.replicates(cursor) and (replication := monitors.at_load.replication.of(topic)):
        if not replication.here:
            return _NOT_HERE
        if cursor.rpartition(".")[2] not in replication.elsewhere:
            return _NOT_SENT
        if loaded:
            return _MOVES[REPLICATOR]
        return _SENT_WHEN_LOADED if monitors.ttl.of(topic) == 0 else _DROPPED_WHEN_LOADED
    if monitors and cursor == DEDUPLICATION and monitors.is_undeduplicated(topic):
        return _NO_DEDUPLICATION
    moves = next((text for begin, text in _MOVES.items() if cursor.startswith(begin)), MOVES_SUBSCRIPTION)
    moves = f"{_ENDS_TRANSACTIONS}; or {moves}" if CursorHold.TRANSACTIONS in holds else moves
    return f"{_ENDS_ITS_TRANSACTION}; or {moves}" if CursorHold.SENT_IN_TRANSACTION in holds else moves


def freed_by_whom(
    held_by: Collection[str],
    moved_by: str,
    to_load: Mapping[str, Any] | None,
    cursors: Sequence[HeldBy],
    ways: Sequence[str],
) -> str:
    """What moves the cursors that hold a ledger (``moved_by``), or deletes them, if all are unused subscriptions.

    ``to_load``: the topic's row of ``TOPICS_TO_LOAD``, None for none. ``ways``: see :func:`ways_of_inactive`.
    """
    expired = to_load["expired_subscriptions"] if to_load else ()
    own = [one for one in cursors if one.name in held_by]
    if own and all(one.name in expired for one in own):
        return f"{BY_LOAD}: {_EXPIRED}; or {moved_by}"
    if not (own and ways) or not all(
        one.unused_since and one.unused_kept in (None, InactiveKept.NOT_CHOSEN) for one in own
    ):
        return moved_by
    *unnamed, way = ways
    if any(one.unused_kept for one in own):
        unnamed.insert(0, "`inactivity.subscriptions`")
    once = f", once its topic is named in {' and '.join(unnamed)}" if unnamed else ""
    return f"{way}{once}: {_INACTIVE}; or {moved_by}"


def ways_of_inactive(settings: Settings, topic: Topic, monitors: Monitors | None, *, loaded: bool) -> Sequence[str]:
    """What deletes an inactive subscription of a topic; before it, the settings that would have to name the topic.

    Nothing where no setting lets a broker load it for that. ``monitors``: None where they are not known.
    """
    if loaded:
        return (_DELETED,)
    if monitors and (monitors.at_load.lazy_cursors or str(topic.namespace) in monitors.at_load.deleted):
        return ()
    own, load = holders(str(topic.namespace), str(topic)), settings.load
    said = {"`load.namespaces`": load.namespaces, "`load.inactive_subscriptions`": load.inactive_subscriptions}
    return (*(key for key, names in said.items() if frozenset(names).isdisjoint(own)), BY_LOAD)


def with_unused(cursors: Sequence[HeldBy], cluster: Cluster, topic: Topic, rows: pa.Table) -> tuple[HeldBy, ...]:
    """A topic's cursors with what the newest report says of their use; ``rows``: see ``unused_subscriptions``."""
    unused = unused_subscriptions(cluster, topic, rows)
    return tuple(
        replace(one, unused_since=said.since, unused_kept=said.kept) if (said := unused.get(one.name)) else one
        for one in cursors
    )


class CursorHold(StrEnum):
    """What keeps a cursor at its position beside messages that nobody has read."""

    HOLE = "hole"
    """It has acknowledged messages behind its position: one that it has not holds it, and with it all of them."""
    DELAYED = "delayed"
    """It has an index of delayed messages: one that is due later holds it."""
    TRANSACTIONS = "transactions"
    """It was used in transactions: messages that one has acknowledged which has not ended hold it, and no consumer
    gets them until it ends."""
    SENT_IN_TRANSACTION = "sent_in_transaction"
    """The first message that it has not acknowledged was sent in a transaction: while that is open, no consumer gets
    this message, nor any behind it. Whether it is, this does not say."""


@dataclass(frozen=True, slots=True)
class CursorHolds:
    """``holds`` of a cursor, and what it acknowledged behind its position: ``ranges`` of messages, or single ones."""

    holds: tuple[CursorHold, ...] = ()
    ranges: int = 0


@dataclass(frozen=True, slots=True)
class HeldBy:
    """A durable cursor: where it stands, and how many bytes before the topic's end it has not acknowledged.

    ``unsized``: ledgers of these of which nobody knows the bytes, so that there are more. ``holds``: what keeps it
    there beside messages that nobody has read; ``ranges``: how many of acknowledged messages lie behind its position.
    ``pinned_until``: the first message that it has not acknowledged is delayed until then (ms), and keeps every later
    ledger; None where it is not, or cannot be read.
    ``unused_since``: nobody has used it since then (ms), by the newest report of what is inactive; None where that does
    not name it. ``unused_kept``: what keeps it from a plan of inactive subscriptions.
    """

    name: str
    position: Position | None
    unacknowledged: int | None
    unsized: int
    last_active: int | None
    holds: tuple[CursorHold, ...] = ()
    ranges: int = 0
    pinned_until: int | None = None
    unused_since: int | None = None
    unused_kept: InactiveKept | Protection | None = None

    def needs(self, ledger_id: int, entries: int | None, final: int) -> bool:
        """Whether it keeps a ledger, as the rule of retention has it; ``final``: the id of the last one with entries.

        A cursor of unknown position keeps all; any keeps the ledger that it stands in where nobody counted that.
        """
        if entries == 0:
            return False
        if self.position is None or self.position.ledger_id != ledger_id:
            return self.position is None or self.position.ledger_id < ledger_id
        ends = self.position.entry_id + 1
        return entries is None or (ends < entries if ledger_id == final else ends != entries)


def cursor_holds(store: MetadataStore, reader: LedgerReader, topic: Topic, root: str) -> dict[str, CursorHolds]:
    """By shown name, the cursors of a topic; one that cannot be read is missing. Writes nothing."""
    path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
    try:
        infos = snapshot.cursors(store, path)
    except Refused:
        return {}
    own = [name for name, info in infos.items() if info.cursors_ledger_id >= 0]
    answers = last_entries_of(store, reader, [infos[name].cursors_ledger_id for name in own], root)
    states: dict[str, ManagedCursorInfo | PositionInfo | None] = dict(infos)
    for name, (metadata, entry) in zip(own, answers, strict=True):
        states[name] = None
        with contextlib.suppress(LifecycleError):
            states[name] = cursor_state(metadata, entry, path)
    used = snapshot.with_pending_acks(store, topic, infos)
    return {
        shown: _holds(state, infos[name], in_transactions=shown in used)
        for name, state in states.items()
        if state is not None and (shown := cursor_name(name))
    }


def _holds(state: ManagedCursorInfo | PositionInfo, info: ManagedCursorInfo, *, in_transactions: bool) -> CursorHolds:
    ranges = len(state.individual_deleted)
    if not ranges and isinstance(state, PositionInfo):
        ranges = sum(any(bits.words) for bits in state.deleted_bits)
    delayed = bool(cursor_format.bucket_ledgers(info.cursor_properties))
    held = {CursorHold.HOLE: ranges > 0, CursorHold.DELAYED: delayed, CursorHold.TRANSACTIONS: in_transactions}
    return CursorHolds(tuple(code for code, holds in held.items() if holds), ranges)


def first_unread(
    ports: IndexPorts, ledgers: Sequence[LedgerInfo], at: Mapping[str, int | None], root: str
) -> message.Schedule | None:
    """When the first message that a cursor has not acknowledged is due, and its transaction; None if it has neither.

    ``ledgers``: of its topic, by id; ``at``: ``ledger_id`` and ``entry_id`` of its position. None also where the
    message cannot be read: one that only a bucket has can be where there is an object store. Writes nothing.
    """
    ledger, entry = at["ledger_id"], at["entry_id"]
    if ledger is None or entry is None:
        return None
    with contextlib.suppress(LifecycleError):
        for one in (info for info in ledgers if info.ledger_id >= ledger):
            payload = _payload(ports, one, entry + 1 if one.ledger_id == ledger else 0, root)
            if payload is not None:
                return message.schedule(payload)
    return None


def _payload(ports: IndexPorts, info: LedgerInfo, entry_id: int, root: str) -> bytes | None:
    """An entry of a ledger, from BookKeeper or its offloaded copy; None if the ledger ended before it."""
    (metadata,) = metadata_of(ports.store, [info.ledger_id], root)
    if isinstance(metadata, LifecycleError):
        copy = opened_copy(ports, info, metadata)
        entries = copy.read(entry_id, entry_id) if entry_id <= copy.index.ledger.last_entry_id else ()
    elif metadata.state is LedgerState.CLOSED and entry_id > metadata.last_entry_id:
        entries = ()
    else:
        entries = ports.reader.read(info.ledger_id, metadata, entry_id, entry_id)
    return next((one.payload for one in entries), None)
