"""What a position cuts off a partition, and what keeps it from being cut there.

Belongs here: the rules, pure. Not here: reading (``topic_view.py``), acting (``partition_effects.py``). Source:
KIP-107, "Proposed Changes"; the ledgers are those that trimming would let go (``trimming/trim_rules.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pulsar_lifecycle.copies.listed_ledgers import open_attempt
from pulsar_lifecycle.delete_records.partition import PartitionView
from pulsar_lifecycle.delete_records.request import END, Options, Timestamp
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.managed_ledger import LOW_WATERMARK
from pulsar_lifecycle.model import COMPACTION_CURSOR, MessagePosition, Position, encode_name
from pulsar_lifecycle.topics import protection
from pulsar_lifecycle.topics.low_watermark import highest
from pulsar_lifecycle.trimming import trim_rules
from pulsar_lifecycle.values.codes import Code, Why, why_failed
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.plans.records_table import SHOWN

DEDUPLICATION = "pulsar.dedup"
"""The cursor of deduplication (PersistentTopic.DEDUPLICATION_CURSOR_NAME)."""
_MOVED = "a plan with --move-cursors (in the job `move_cursors: true`) moves them up to it"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a partition stays as it is: the error of its result, and the code and the sentence of the rule behind it."""

    error: RecordsError
    why: Why

    @classmethod
    def plain(cls, error: RecordsError, text: str) -> Refusal:
        """Where the error says it all."""
        return cls(error, Why(error, text))

    @classmethod
    def of(cls, error: RecordsError, failure: LifecycleError) -> Refusal:
        """By what was raised: its code is that of the rule that refused it, if one did."""
        return cls(error, why_failed(failure, error))


@dataclass(frozen=True, slots=True)
class Cut:
    """What a partition becomes: everything before ``low_watermark`` goes, as far as whole ledgers do.

    ``rolls``: its current ledger is closed first and goes with them. ``ledgers`` go, oldest first. ``first_readable``:
    from where on brokers can show messages then. ``moved``: cursors that are moved up, with their positions of now.
    """

    low_watermark: MessagePosition
    rolls: bool
    ledgers: tuple[int, ...]
    first_readable: MessagePosition
    moved: tuple[tuple[str, Position], ...] = ()

    @property
    def exact(self) -> bool:
        """Whether nothing below the low watermark remains readable."""
        return self.first_readable >= self.low_watermark

    @property
    def mark_delete(self) -> Position:
        """Where a cursor stands that has acknowledged everything below the low watermark, and nothing else."""
        return Position(self.low_watermark.ledger_id, self.low_watermark.entry_id - 1)


def replaced(planned: Mapping[str, Any], czxid: int, ctime: int) -> Refusal | None:
    """Why the topic of a plan's row is gone, although one of its name has a z-node of this ``czxid`` and ``ctime``.

    After a restore of ZooKeeper one of the two may be the same.
    """
    if (planned["czxid"], planned["ctime"]) == (czxid, ctime):
        return None
    text = f"{planned['topic']} was deleted since the plan was made, and another topic has its name: plan again"
    return Refusal.plain(RecordsError.REPLACED, text)


def subscription_missing(named: Collection[str], there: Collection[str]) -> Why | None:
    """Why a topic that lacks one of the subscriptions ``named`` for it stays as it is; None if all are ``there``."""
    missing = sorted({*named}.difference(there))
    if not missing:
        return None
    text = f"it has no subscription {missing[0]}, which consumed_records.subscriptions names"
    return Why(Code.SUBSCRIPTION_MISSING, text)


def misplaced(view: PartitionView, position: MessagePosition) -> Refusal | None:
    """Why a partition has no such position; None if it has, or it is below all that there is."""
    end = view.end
    if end is None or position > end:
        return Refusal.plain(RecordsError.OUT_OF_RANGE, f"{position} is beyond its end, which is {end or 'nowhere'}")
    entries = next((e.entries for e in view.extents if e.ledger_id == position.ledger_id), None)
    if entries is None and view.first is not None and position > view.first:
        text = f"it lists no ledger {position.ledger_id}: {position} is no position of it"
        return Refusal.plain(RecordsError.NO_SUCH_POSITION, text)
    if entries is not None and (position.entry_id, position.batch_index) > (entries, 0):
        text = f"ledger {position.ledger_id} has {entries} entries: there is no message {position}"
        return Refusal.plain(RecordsError.NO_SUCH_POSITION, text)
    return None


def outrun(planned: Mapping[str, Any], refusal: Refusal) -> Refusal:
    """``refusal``, with its way out where a plan was exact as its position was the end, and the end has moved on."""
    if refusal.error is not RecordsError.NOT_EXACT or not planned["rolls"]:
        return refusal
    watermark = MessagePosition.parse(planned["low_watermark"])
    text = (
        f"messages came behind {watermark}, its end at the plan: ledger {watermark.ledger_id} stays for them, and "
        "--exact allows no message below to stay readable; plan again while nobody publishes, or without --exact"
    )
    return Refusal(refusal.error, refusal.why.put(text))


def unmeasured(view: PartitionView, asked: MessagePosition | int) -> Refusal | None:
    """Why nothing is cut at the end, or inside a last ledger of unknown length; None if that does not matter."""
    if view.unmeasured is None or view.end is None:
        return None
    if isinstance(asked, MessagePosition) and highest(view.first, asked) <= view.end:
        return None
    return Refusal(RecordsError.UNREAD, view.unmeasured)


def not_yet(time: Timestamp, now: int) -> Refusal:
    """Why nothing is cut at a time that is later than ``now`` (ms): messages from before it are still to come."""
    text = (
        f"{time} is {_moment(time.ms)}, and it is {_moment(now)}: messages before it are still to come; ask for a time "
        "that is past, or for -1, the end"
    )
    return Refusal.plain(RecordsError.OUT_OF_RANGE, text)


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(" ", "seconds")


def cut_at(view: PartitionView, asked: MessagePosition | int, options: Options) -> Cut:
    """What asking for a position, or for :data:`END`, comes to. A position must not be :func:`misplaced`."""
    end, first = view.end, view.first
    if end is None or first is None:
        nothing = first or MessagePosition(0, 0)
        return Cut(nothing, False, (), nothing)
    position = asked if isinstance(asked, MessagePosition) else end
    watermark = highest(first, view.canonical(position))
    followed = view.info.terminated is None  # no ledger comes after the last one of a terminated topic
    rolls = followed and watermark >= end and view.extents[-1].entries > 0 and (asked == END or options.exact)
    going = whole_below(view, watermark, rolled=rolls)
    remaining = next((MessagePosition(e.ledger_id, 0) for e in view.extents if e.ledger_id not in going), watermark)
    behind = cursors_behind(view, watermark)
    return Cut(watermark, rolls, going, remaining, tuple(sorted(behind.items())))


def whole_below(view: PartitionView, watermark: MessagePosition, *, rolled: bool = False) -> tuple[int, ...]:
    """Ledgers with nothing at or above a position, oldest first; the last one only if it is ``rolled``."""
    ledgers = view.extents if rolled else view.extents[:-1]
    return tuple(e.ledger_id for e in ledgers if MessagePosition(e.ledger_id, e.entries) <= watermark)


def cursors_behind(view: PartitionView, watermark: MessagePosition) -> dict[str, Position]:
    """Durable cursors that have not acknowledged all entries below a position, where they stand."""
    found: dict[str, Position] = {}
    for name, at in view.positions.items():
        following = view.canonical(MessagePosition(max(at.ledger_id, 0), at.entry_id + 1))
        if following.entry < watermark.entry:
            found[name] = at
    return found


def entries_behind(view: PartitionView, at: Position, watermark: MessagePosition) -> int:
    """Entries that a cursor has before it, below a position."""
    first = MessagePosition(max(at.ledger_id, 0), at.entry_id + 1)
    total = 0
    for extent in view.extents:
        upto = extent.entries if extent.ledger_id < watermark.ledger_id else watermark.entry_id
        since = first.entry_id if extent.ledger_id == first.ledger_id else 0
        if first.ledger_id <= extent.ledger_id <= watermark.ledger_id:
            total += max(0, upto - since)
    return total


def refuse(
    view: PartitionView,
    cut: Cut,
    options: Options,
    context: Context,
    *,
    may_write_loaded: bool,
    latest_delivery: int = 0,
) -> Refusal | None:
    """Why nothing of a partition may be cut; None if it may.

    ``may_write_loaded``: what the settings say of its z-node while a broker has it. ``latest_delivery``: when (ms) the
    last message below is to be delivered, if that is not past.
    """
    if view.protected:
        return Refusal(RecordsError.PROTECTED, view.protected)
    if foreign := _foreign(view):
        return foreign
    rules = (
        _behind(view, cut, options),
        _compacted(view, cut),
        _moved_with_care(view, cut, latest_delivery) if options.move_cursors else None,
        _ledgers_stay(view, cut, context),
        _attempt(view, cut),
        _loaded(view, cut, may_write_loaded),
        _inexact(view, cut) if options.exact else None,
    )
    return next(filter(None, rules), None)


def _foreign(view: PartitionView) -> Refusal | None:
    """A low watermark beyond the end is none that we raised: somebody wrote it, or copied it from another topic.

    It would let go what nobody asked for.
    """
    if view.watermark is None or view.end is None or view.watermark <= view.end:
        return None
    text = (
        f"its properties say that its low watermark is {view.watermark}, which is beyond its end, {view.end}: remove "
        f"those named {LOW_WATERMARK} that are not its own"
    )
    return Refusal.plain(RecordsError.FOREIGN_WATERMARK, text)


def _behind(view: PartitionView, cut: Cut, options: Options) -> Refusal | None:
    behind = dict(cut.moved)
    if replicators := [name for name in behind if name.startswith(tuple(view.replicators))]:
        text = f"{_named(view, cut, replicators)}: wait until that is sent, or end the replication"
        return Refusal.plain(RecordsError.REPLICATION_BELOW, text)
    if DEDUPLICATION in behind:
        load = "" if view.loaded else "no broker has the topic loaded, so have a client read it: "
        text = f"{_named(view, cut, [DEDUPLICATION])}: {load}its broker moves it once it takes a snapshot"
        return Refusal.plain(RecordsError.SYSTEM_CURSOR_BELOW, text)
    if COMPACTION_CURSOR in behind:
        text = f"{_named(view, cut, [COMPACTION_CURSOR])}: have the topic compacted, or delete that subscription"
        return Refusal.plain(RecordsError.SYSTEM_CURSOR_BELOW, text)
    if behind and not options.move_cursors:
        own = [name for name in behind if name in view.pending_acks]
        way = f"subscription {own[0]} acknowledges in transactions, have it read on itself" if own else _MOVED
        text = f"{_named(view, cut, list(behind))}: {way}"
        return Refusal.plain(RecordsError.CURSOR_BELOW, text)
    return None


def unreplicated(view: PartitionView, others: Collection[str]) -> Refusal | None:
    """Why nothing may be cut where a topic is replicated to ``others``, and not every one has its cursor yet.

    A broker makes a replicator's cursor when it loads the topic, at its first message; that of a cluster which is not
    named any more stays for a while, and stands for no other.
    """
    missing = sorted(
        name for name in others if not any(f"{begins}.{name}" in view.positions for begins in view.replicators)
    )
    if not missing or not any(extent.entries for extent in view.extents):
        return None
    text = (
        f"it is replicated to {', '.join(sorted(others))}, and has no cursor of a replicator for "
        f"{' and '.join(missing)}: nothing was sent there yet; have its broker load it, and wait until it is"
    )
    return Refusal.plain(RecordsError.REPLICATION_BELOW, text)


def _named(view: PartitionView, cut: Cut, names: Sequence[str]) -> str:
    behind: Mapping[str, Position] = dict(cut.moved)
    shown = [
        f"{name} at {behind[name]} ({entries_behind(view, behind[name], cut.low_watermark)} entries)"
        for name in names[:SHOWN]
    ]
    left = len(names) - SHOWN
    more = f" and {left} more, which a plan with --json names in moved_cursors" if left > 0 else ""
    return f"below {cut.low_watermark} stand {', '.join(shown)}{more}"


def _raises(view: PartitionView, cut: Cut) -> bool:
    return view.watermark is None or cut.low_watermark > view.watermark


def _compacted(view: PartitionView, cut: Cut) -> Refusal | None:
    """It may hold messages whose own ledgers the broker trimmed long ago, whether or not a ledger goes now."""
    if view.compacted is None or not (cut.ledgers or _raises(view, cut)):
        return None  # what is below was deleted on request before the view was made
    text = (
        f"its compacted view, ledger {view.compacted}, holds the last message of each key, those below the position "
        f"too: send a tombstone for each key, have it compacted, delete subscription {COMPACTION_CURSOR}, plan again"
    )
    return Refusal.plain(RecordsError.COMPACTED_VIEW, text)


def _moved_with_care(view: PartitionView, cut: Cut, latest_delivery: int) -> Refusal | None:
    for name, _ in cut.moved:
        if name in view.pending_acks:
            text = f"subscription {name} acknowledges in transactions: have it read on until {cut.low_watermark} itself"
            return Refusal.plain(RecordsError.TRANSACTION_BELOW, text)
        cursor = view.cursors.get(encode_name(name)) or view.cursors.get(name)
        try:
            buckets = cursor_format.bucket_ledgers(cursor.cursor_properties) if cursor else ()
        except CorruptFormat as error:
            return Refusal.plain(RecordsError.UNREAD, f"subscription {name}: {error}")
        if latest_delivery or any(bucket.start <= cut.low_watermark.ledger_id for bucket in buckets):
            text = f"subscription {name} may have delayed messages below it: wait until they are delivered"
            return Refusal.plain(RecordsError.DELAYED_BELOW, text)
    return None


def _ledgers_stay(view: PartitionView, cut: Cut, context: Context) -> Refusal | None:
    """What trimming would keep, with the cursors where they will be; a ledger that is to be rolled is judged then."""
    asked = [i for i in cut.ledgers if i != view.extents[-1].ledger_id]
    if not asked:
        return None
    if rule := protection.deletion_rule(view.topic, context):
        return Refusal(RecordsError.PROTECTED, rule)
    moved = dict(cut.moved)
    positions = {name: cut.mark_delete if name in moved else at for name, at in view.positions.items()}
    for verdict in trim_rules.judge(view.info, positions, view.copies, asked, context):
        if verdict.stays:
            text = f"ledger {verdict.ledger_id}: {verdict.stays.text}"
            return Refusal(RecordsError.LEDGER_STAYS, verdict.stays.put(text))
    return None


def _attempt(view: PartitionView, cut: Cut) -> Refusal | None:
    """A broker's open offload attempt, which any write of ours would end; the low watermark alone a broker writes."""
    if not (cut.ledgers or cut.rolls or (_raises(view, cut) and not view.broker)):
        return None
    attempt = open_attempt(view.info)
    return Refusal(RecordsError.LEDGER_STAYS, attempt) if attempt else None


def _loaded(view: PartitionView, cut: Cut, may_write_loaded: bool) -> Refusal | None:
    if view.loaded is None or may_write_loaded or not (cut.ledgers or cut.rolls):
        return None
    text = (
        f"it counts as loaded ({view.loaded}), and trimming.loaded_topics does not name it: name it there (its clients "
        "reconnect once), or unload it and wait until it counts as unloaded"
    )
    return Refusal(RecordsError.LOADED, Why(Code.TOPIC_LOADED, text))


def _inexact(view: PartitionView, cut: Cut) -> Refusal | None:
    if cut.exact:
        return None
    terminated = view.info.terminated is not None
    why = "ledgers go whole, and the last one of a terminated topic stays" if terminated else "ledgers go whole"
    whole = MessagePosition(cut.low_watermark.ledger_id, 0)
    ways = [] if view.watermark and view.watermark > whole else [str(whole)]  # a low watermark never moves back
    ways += [] if terminated else ["its end"]
    text = (
        f"messages from {cut.first_readable} up to {cut.low_watermark} would remain readable, as {why}: ask for "
        f"{', or for '.join(ways) or 'a position in another ledger'}"
    )
    return Refusal.plain(RecordsError.NOT_EXACT, text)
