"""The deletion queue: messages sent, taken, retried, dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.model import Position, Topic


@dataclass(frozen=True, slots=True)
class Received:
    """A message taken from the deletion queue.

    ``info`` is None when the bytes are no valid message, and ``problem`` then says why; ``raw`` is the message as it
    came. ``message_id`` is a serialized MessageIdData; ``handle`` belongs to the adapter. ``topic`` is empty for a row
    of a plan that is worked off without messages.
    """

    message_id: bytes
    topic: str
    raw: bytes
    properties: Mapping[str, str]
    publish_time: int
    info: PendingDeleteLedgerInfo | None
    problem: str
    handle: object = field(repr=False, compare=False, default=None)


@dataclass(frozen=True, slots=True)
class Sent:
    """Outcome of one send: ``error`` is None when the broker acknowledged it."""

    info: PendingDeleteLedgerInfo
    message_id: bytes
    error: str | None


@dataclass(frozen=True, slots=True)
class Postponed:
    """Outcome of one ``reconsume_later``: sent as retry number ``times``, or ``dead``-lettered, if no ``error``.

    Of one ``send_back``: ``times`` is what it was, if there is no ``error``.
    """

    message: Received
    times: int
    dead: bool
    error: str | None


class DeletionQueue(Protocol):
    """``persistent://pulsar/system/__ledger_deletion`` with its durable subscription ``ledger-deletion``."""

    def send(self, infos: Sequence[PendingDeleteLedgerInfo], deliver_after_ms: int) -> list[Sent]:
        """Make sure of topics and subscriptions, send one message per info, in order, and wait for every receipt."""
        ...

    def backlog(self) -> int:
        """Messages of the main and the retry topic that the subscription has not acknowledged."""
        ...

    def receive(self, limit: int, wait_ms: int) -> list[Received]:
        """Up to ``limit`` messages of the Shared subscription; fewer, or none, once ``wait_ms`` have passed."""
        ...

    def acknowledge(self, messages: Sequence[Received]) -> None:
        """Acknowledge for good; surely sent once the queue is closed, and unconfirmed: a lost one comes again."""
        ...

    def reconsume_later(self, messages: Sequence[Received], delay_ms: int, max_times: int) -> list[Postponed]:
        """Send copies to the retry topic, due after ``delay_ms``, as a Java consumer's ``reconsumeLater`` does.

        One that went there ``max_times`` times already goes to the dead-letter topic instead. Waits for every
        receipt; acknowledges nothing.
        """
        ...

    def send_back(
        self, messages: Sequence[Received], notes: Sequence[Mapping[str, str]], delay_ms: int
    ) -> list[Postponed]:
        """Send copies to the retry topic, due after ``delay_ms``, each with its notes as properties and uncounted.

        No number of times makes a dead letter. Waits for every receipt; acknowledges nothing.
        """
        ...

    def release(self, messages: Sequence[Received]) -> None:
        """Neither deleted nor acknowledged: the subscription hands them out again once this queue is closed."""
        ...

    def close(self) -> None:
        """Close producers and consumers."""
        ...


@dataclass(frozen=True, slots=True)
class Resent:
    """Outcome of sending a dead letter again: ``error`` is None when the broker acknowledged it."""

    message: Received
    message_id: bytes
    error: str | None


class DeadLetterQueue(Protocol):
    """``persistent://pulsar/system/__ledger_deletion-DLQ`` with its durable subscription ``ledger-deletion``."""

    def backlog(self) -> int:
        """Dead letters that the subscription has not acknowledged."""
        ...

    def take(self, limit: int, wait_ms: int) -> list[Received]:
        """Up to ``limit`` dead letters, fewer once ``wait_ms`` have passed; each once until this queue is closed."""
        ...

    def send_again(self, messages: Sequence[Received]) -> list[Resent]:
        """Send each to the main topic without what its retries wrote; waits for every receipt, acknowledges none."""
        ...

    def acknowledge(self, messages: Sequence[Received]) -> None:
        """Acknowledge for good; unconfirmed: a lost one comes again."""
        ...

    def close(self) -> None:
        """Give back what was taken and not acknowledged."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """What waits in a part of a partition, in its order.

    ``upto`` is the position of the last message looked at, acknowledged or not; ``end``: none was behind it.
    """

    messages: tuple[Received, ...]
    upto: Position
    end: bool


class QueueReader(Protocol):
    """Looks at what waits in the queue's topics and takes nothing."""

    def partitions(self, topic: Topic) -> list[Topic]:
        """The partitions of a topic, itself if it has none, nothing where it does not exist."""
        ...

    def backlog(self, part: Topic) -> int:
        """Messages of one partition that the subscription has not acknowledged."""
        ...

    def waiting(self, part: Topic, after: Position | None, limit: int) -> Page:
        """Look at about ``limit`` messages of a partition: the first ones that wait, or those behind ``after``.

        Messages that are acknowledged are left out; delayed ones are there. Raises NotFound without the subscription.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
