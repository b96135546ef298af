"""What is asked of delete records, and what it answers: values, without IO.

Belongs here: offsets as they are written, options, results. Not here: the file that holds offsets (``offset_file.py``),
what an offset comes to (``records_planning.py``). Source: KIP-107, "AdminClient.deleteDataBefore".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal

from pulsar_lifecycle.errors import CorruptFormat, UsageError
from pulsar_lifecycle.model import MessagePosition, Topic
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError

TopicPartition = Topic
"""One partition of a partitioned topic, or one topic that has none."""

END: Literal[-1] = -1
"""The end of the partition when the request is received."""

NO_WATERMARK = -1
"""The low watermark of a partition with an error."""


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """The first message published at or after ``ms``."""

    ms: int

    def __str__(self) -> str:
        return f"@{self.ms}"


Offset = MessagePosition | Timestamp | Literal[-1]
"""Where the first message is that remains."""

_MAX_MS = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_FIRST_OF_BATCH = re.compile(r"\A([0-9]+:[0-9]+):0\Z")
_OWNER = re.compile(r"[-=:.\w]+", re.ASCII)
"""A tenant, a cluster or a namespace (NamedEntity.checkName)."""
_FOLDERS = (".", "..")
"""Names that mean another place in a path: no z-node has them."""


def parse_topic(text: str) -> Topic:
    """A topic or partition that stores messages, by its full name. Raises UsageError saying what is wrong with it."""
    try:
        topic = Topic.parse(text)
        topic.managed_ledger  # noqa: B018 - raises for a name that no z-node can have
    except CorruptFormat as error:
        raise UsageError(str(error)) from error
    if topic.domain != "persistent":
        raise UsageError(f"{topic} stores nothing: only persistent topics do")
    for name in str(topic.namespace).split("/"):
        if name in _FOLDERS or not _OWNER.fullmatch(name):
            raise UsageError(f"topic name: {name!r} is no name of a tenant or a namespace: {text!r}")
    if topic.local in _FOLDERS or "\0" in topic.local:
        raise UsageError(f"topic name: {topic.local!r} is none that a broker can be asked about by HTTP: {text!r}")
    return topic


def parse_offset(text: str) -> Offset:
    """``LEDGER:ENTRY``, ``LEDGER:ENTRY:BATCH-INDEX``, ``-1``, or ``@`` and a time: ms, or ISO 8601 with its zone.

    Batch index 0, as clients name the first message of a batch, is where the entry begins. Raises UsageError saying
    what it expected.
    """
    if text == str(END):
        return END
    if text.startswith("@"):
        return Timestamp(_time(text[1:]))
    try:
        return MessagePosition.parse(_FIRST_OF_BATCH.sub(r"\1", text))
    except CorruptFormat as error:
        raise UsageError(
            f"expected LEDGER:ENTRY, LEDGER:ENTRY:BATCH-INDEX, -1 (the end) or @TIME, found {text!r}"
        ) from error


def check_request(offsets: Mapping[Any, Any]) -> None:
    """Raise UsageError where a caller's request is none: nothing may be taken for the end that does not say so.

    Python holds no caller to types, and whoever has ``"4711:20"`` from a file or a page does not mean the end.
    """
    for topic, offset in offsets.items():
        if not isinstance(topic, Topic):
            raise UsageError(f"expected a TopicPartition, such as parse_topic makes, found {topic!r}")
        if not _is_offset(offset):
            raise UsageError(
                f"{topic}: expected a MessagePosition, a Timestamp or END, such as parse_offset makes, found {offset!r}"
            )


def _is_offset(offset: Any) -> bool:
    if isinstance(offset, MessagePosition):
        numbers = (offset.ledger_id, offset.entry_id, offset.batch_index)
        return all(type(number) is int and number >= 0 for number in numbers)
    if isinstance(offset, Timestamp):
        return type(offset.ms) is int and 0 <= offset.ms <= _MAX_MS
    return type(offset) is int and offset == END


def _time(text: str) -> int:
    if re.fullmatch(r"0|[1-9][0-9]{0,14}", text, re.ASCII) and int(text) <= _MAX_MS:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(
            f"expected @ and ms since 1970, or a time with its zone such as @2026-11-24T10:00:00Z, found @{text!r}"
        )
    ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)  # down: what is of that ms stays
    if not 0 <= ms <= _MAX_MS:
        raise UsageError(f"expected a time from 1970 on, found @{text!r}")
    return ms


@dataclass(frozen=True, slots=True)
class Options:
    """How far the operator lets a request go.

    ``move_cursors``: subscriptions that stand below a position are moved up to it. ``exact``: no message below a
    position may remain readable. ``any_order``: a time holds although publish times go back. ``no_undo``: no undo
    brings back what goes.
    """

    move_cursors: bool = False
    exact: bool = False
    any_order: bool = False
    no_undo: bool = False


PLAIN = Options()
"""Nothing is moved, waived or demanded."""


class Presence(StrEnum):
    """Where a deleted ledger still is, as far as servers answer; of several places, the first in this order.

    Where a deletion has yet to come goes before bookies: those collect by themselves.
    """

    Z_NODE = "z_node"
    """Its z-node is there: it is not deleted, or was restored."""
    Z_NODE_UNREAD = "z_node_unread"
    """Its z-node could not be read."""
    OBJECT = "object"
    """An object of its offloaded copy is there."""
    OBJECT_UNREAD = "object_unread"
    """Whether an object of its offloaded copy is there could not be asked."""
    ON_BOOKIE = "on_bookie"
    """A bookie has entries of it: its garbage collection has yet to come."""
    BOOKIE_UNANSWERED = "bookie_unanswered"
    """No bookie has entries of it, as far as they answer; at least one did not."""
    BOOKIES_UNKNOWN = "bookies_unknown"
    """Nothing says which bookies had it, nor could those be listed that there are."""
    GONE = "gone"
    """It is nowhere: every server that had a part of it says so."""


@dataclass(frozen=True, slots=True)
class Absence:
    """What was found of a ledger: ``where`` names the z-node, the bookies or the objects of ``presence``."""

    ledger_id: int
    presence: Presence
    where: tuple[str, ...] = ()

    @property
    def gone(self) -> bool:
        """Whether every server that had a part of it says that it has none."""
        return self.presence is Presence.GONE


class Lacks(StrEnum):
    """What an answer lacks: the code of a partition with error ``TimeoutException`` whose apply refused nothing."""

    NOT_KEPT = "not_kept"
    """Its low watermark is not kept with the topic yet, or is below the one that is asked for."""
    LISTED = "listed"
    """Its topic lists a ledger that is to go."""
    DELETION = "deletion"
    """A deletion run has yet to come: run `delete_pending`, or wait for it."""
    SENT_BACK = "sent_back"
    """The last deletion run sent the message of a ledger back; the reason says why."""
    REDRIVE = "redrive"
    """The message of a ledger became a dead letter; the reason says why: mend that, then run `redrive_dead_letters`."""
    MESSAGE = "message"
    """No message of ours asks for a ledger that is there: apply a plan of leaked ledgers, or sweep the bucket."""
    RESTORED = "restored"
    """An undo brought a ledger back: if it is to go all the same, apply a plan of leaked ledgers."""
    REQUEST = "request"
    """This journal knows no request that raised its low watermark: what that one deleted is not known here."""


class NotAsked(StrEnum):
    """What lies below a low watermark that is answered, and nothing tells from outside: nobody was asked for it."""

    TRIMMED = "trimmed"
    """What brokers trimmed and deleted by themselves before the plan, where kept scans do not show all of it."""
    COPIES = "copies"
    """Copies of what brokers trimmed since the plan, which names none: it may have been offloaded in between."""
    OTHERS = "others"
    """What another installation deleted, or this one before its lake was lost: its low watermark was there before."""


@dataclass(frozen=True, slots=True)
class DeleteRecordsResult:
    """What became of one partition: its low watermark, or -1 with the error, the code behind it and their sentence.

    A low watermark is given only once everything below it that could go whole is gone, on every replica.
    ``first_readable``: from where on brokers could show messages at that moment; where it is below the low watermark,
    the ledger that both lie in holds messages above it, too, and stays.
    ``code``: a rule's, a :class:`Lacks`, or the ``presence`` of the first of the ledgers ``remaining``: those are to be
    gone, and are not proven to be. ``lost_copies``: how many offloaded copies are of what is to be gone, as far as the
    plan or a message that waits names them: no undo brings them back. ``not_asked``: what the answer does not tell of.
    """

    low_watermark: MessagePosition | Literal[-1]
    error: RecordsError | None = None
    reason: str = ""
    code: str = ""
    first_readable: MessagePosition | None = field(default=None, compare=False)
    remaining: tuple[Absence, ...] = field(default=(), compare=False)
    lost_copies: int = field(default=0, compare=False)
    not_asked: tuple[NotAsked, ...] = field(default=(), compare=False)

    @property
    def readable_below(self) -> str:
        """That messages below the low watermark can still be read, as a sentence; empty if none can."""
        watermark = self.low_watermark
        if isinstance(watermark, int) or self.first_readable is None or self.first_readable >= watermark:
            return ""
        return f"messages from {self.first_readable} up to {watermark} remain readable: ledgers go whole"


def failed(error: RecordsError, why: Why, remaining: Sequence[Absence] = ()) -> DeleteRecordsResult:
    """A partition with an error."""
    return DeleteRecordsResult(NO_WATERMARK, error, why.text, why.code, remaining=tuple(remaining))
