"""What waits in the topics of the deletion queue, partition by partition.

Belongs here: looking, which loads these topics and changes nothing. Not here: what it means (``cli/queue.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, SUBSCRIPTION, topics_of
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.retry_letter import WAITING_FOR, due_at, waiting_since
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import BrokerAdmin, QueueReader, Received
from pulsar_lifecycle.values.outcomes import Waiting

LOOKED_AT = 1_000
"""Messages of one partition that are looked at to see which are due."""

UNTAKEN = "run job delete_pending; sensor automation starts it where it is on, and its last tick says why it does not"
"""What to do about messages that are due for long."""
WINDOW_SHUT = "what is due waits for the window of automation.delete_pending"
LEFT_TO_YOU = "what is due waits for you to run job delete_pending: automation.delete_pending is false"

TOPICS = {"main": DELETION_TOPIC, "retry": RETRY_TOPIC, "dead letters": DLQ_TOPIC}


@dataclass(frozen=True, slots=True)
class Waits:
    """Messages that runs sent back because they must wait: for what, how many, since when (ms) the oldest."""

    waiting: Waiting
    messages: int
    since: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition. ``backlog`` is None where the subscription is missing: nobody holds what is sent there.

    ``due`` and ``later``: messages that may be delivered now, and those that may not yet; None where that could not be
    seen. ``due_since``: since when (ms) the first of them may. All of these, and ``waits``, are of the first
    :data:`LOOKED_AT` messages only where ``all_seen`` is false.
    """

    topic: str
    subscribed: bool
    backlog: int | None
    due: int | None = None
    later: int | None = None
    all_seen: bool = True
    waits: tuple[Waits, ...] = ()
    due_since: int | None = None


@dataclass(frozen=True, slots=True)
class QueueState:
    """Partitions of each topic (:data:`TOPICS`); none where the topic is missing. ``due_error``: why due is None."""

    main: tuple[PartitionState, ...]
    retry: tuple[PartitionState, ...]
    dead_letters: tuple[PartitionState, ...]
    due_error: str = ""

    @property
    def in_flight(self) -> int:
        """The PIP's estimate: what main and retry topic hold."""
        return sum(part.backlog or 0 for part in (*self.main, *self.retry))

    @property
    def dead(self) -> int:
        """Dead letters that wait."""
        return sum(part.backlog or 0 for part in self.dead_letters)

    @property
    def unsubscribed(self) -> tuple[str, ...]:
        """Partitions without the durable subscription."""
        return tuple(p.topic for p in (*self.main, *self.retry, *self.dead_letters) if not p.subscribed)

    @property
    def missing(self) -> tuple[str, ...]:
        """Topics that do not exist."""
        parts = (self.main, self.retry, self.dead_letters)
        return tuple(str(topic) for topic, found in zip(TOPICS.values(), parts, strict=True) if not found)

    @property
    def waits(self) -> tuple[Waits, ...]:
        """What waits for something, of those looked at, by what it waits for."""
        return _added(one for part in (*self.main, *self.retry) for one in part.waits)

    @property
    def due_since(self) -> int | None:
        """Since when (ms) a message is due that no run has taken, of those looked at; None where none is."""
        known = [part.due_since for part in (*self.main, *self.retry) if part.due_since is not None]
        return min(known, default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        named: dict[str, Any] = {"unsubscribed": list(self.unsubscribed), "missing": list(self.missing)}
        named |= {"waits": [asdict(one) for one in self.waits], "due_since": self.due_since}
        return {**asdict(self), "in_flight": self.in_flight, "dead": self.dead, **named}


def look(admin: BrokerAdmin, reader: QueueReader, now: int) -> QueueState:
    """Look at every partition, at ``now`` (ms). Raises what the admin API raises; a mute reader only hides ``due``."""
    due_error: list[str] = []
    found = [
        tuple(_look(admin, reader, part, now, due_error, topic != DLQ_TOPIC) for part in topics_of(admin, topic))
        for topic in TOPICS.values()
    ]
    return QueueState(*found, due_error=due_error[0] if due_error else "")


def _look(
    admin: BrokerAdmin, reader: QueueReader, part: Topic, now: int, due_error: list[str], delayed: bool
) -> PartitionState:
    if SUBSCRIPTION not in admin.subscriptions(part):
        return PartitionState(str(part), False, None)
    backlog = admin.backlog(part, SUBSCRIPTION)
    if not delayed or not backlog or due_error:
        return PartitionState(str(part), True, backlog, *((0, 0) if not backlog else (None, None)))
    try:
        page = reader.waiting(part, None, LOOKED_AT)
    except LifecycleError as error:
        due_error.append(str(error))
        return PartitionState(str(part), True, backlog)
    due = [at for at in (due_at(one.properties, one.publish_time, now) for one in page.messages) if at <= now]
    waits = _added(_waits(message) for message in page.messages if WAITING_FOR in message.properties)
    later, since = len(page.messages) - len(due), min(due, default=None)
    return PartitionState(str(part), True, backlog, len(due), later, page.end, waits, since)


def _waits(message: Received) -> Waits:
    """By its own word, which anybody may have written: what is no :class:`Waiting` is ``other``."""
    said = message.properties[WAITING_FOR]
    waiting = Waiting(said) if said in set(Waiting) else Waiting.OTHER
    return Waits(waiting, 1, waiting_since(message.properties, message.publish_time) or message.publish_time)


def _added(some: Iterable[Waits]) -> tuple[Waits, ...]:
    found: dict[Waiting, Waits] = {}
    for one in some:
        known = found.get(one.waiting, Waits(one.waiting, 0, one.since))
        found[one.waiting] = Waits(one.waiting, known.messages + one.messages, min(known.since, one.since))
    return tuple(found[waiting] for waiting in sorted(found))
