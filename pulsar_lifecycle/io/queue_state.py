"""What waits in the topics of the deletion queue, partition by partition.

Belongs here: looking, which loads these topics and changes nothing. Not here: what it means (``cli/queue.py``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.retry_letter import due_at
from pulsar_lifecycle.io.queue import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, SUBSCRIPTION, topics_of
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import BrokerAdmin, QueueReader

LOOKED_AT = 1_000
"""Messages of one partition that are looked at to see which are due."""

TOPICS = {"main": DELETION_TOPIC, "retry": RETRY_TOPIC, "dead letters": DLQ_TOPIC}


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One partition. ``backlog`` is None where the subscription is missing: nobody holds what is sent there.

    ``due`` and ``later``: messages that may be delivered now, and those that may not yet; None where that could not be
    seen. They are of the first :data:`LOOKED_AT` messages only where ``all_seen`` is false.
    """

    topic: str
    subscribed: bool
    backlog: int | None
    due: int | None = None
    later: int | None = None
    all_seen: bool = True


@dataclass(frozen=True, slots=True)
class QueueState:
    """Partitions of each topic (:data:`TOPICS`); none where the topic does not exist. ``unseen``: why due is None."""

    main: tuple[PartitionState, ...]
    retry: tuple[PartitionState, ...]
    dead_letters: tuple[PartitionState, ...]
    unseen: str = ""

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

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        named = {"unsubscribed": list(self.unsubscribed), "missing": list(self.missing)}
        return {**asdict(self), "in_flight": self.in_flight, "dead": self.dead, **named}


def look(admin: BrokerAdmin, reader: QueueReader, now: int) -> QueueState:
    """Look at every partition, at ``now`` (ms). Raises what the admin API raises; a mute reader only hides ``due``."""
    unseen: list[str] = []
    found = [
        tuple(_look(admin, reader, part, now, unseen, topic != DLQ_TOPIC) for part in topics_of(admin, topic))
        for topic in TOPICS.values()
    ]
    return QueueState(*found, unseen=unseen[0] if unseen else "")


def _look(
    admin: BrokerAdmin, reader: QueueReader, part: Topic, now: int, unseen: list[str], delayed: bool
) -> PartitionState:
    if SUBSCRIPTION not in admin.subscriptions(part):
        return PartitionState(str(part), False, None)
    backlog = admin.backlog(part, SUBSCRIPTION)
    if not delayed or not backlog or unseen:
        return PartitionState(str(part), True, backlog, *((0, 0) if not backlog else (None, None)))
    try:
        page = reader.waiting(part, None, LOOKED_AT)
    except LifecycleError as error:
        unseen.append(str(error))
        return PartitionState(str(part), True, backlog)
    due = sum(due_at(message.properties, message.publish_time, now) <= now for message in page.messages)
    return PartitionState(str(part), True, backlog, due, len(page.messages) - due, page.end)
