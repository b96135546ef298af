"""Properties of a message that went through a retry topic or to a dead-letter topic.

Belongs here: their names and values, and when a retry is due. Not here: sending (``io/pulsar/queue.py``). Upstream:
``org.apache.pulsar.client.util.RetryMessageUtil`` and ``ConsumerImpl.doReconsumeLater``, pulsar-client 4.0.7: a
convention of clients; the broker knows nothing of it. Whoever may publish may write anything here.
"""

from __future__ import annotations

from collections.abc import Mapping

from pulsar_lifecycle.model import Topic

REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_IDY_TIME = "ORIGIN_MESSAGE_IDY_TIME"  # sic: the same value under the name of older clients
RECONSUMETIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"

WAITING_SINCE = "LIFECYCLE_WAITING_SINCE"
"""When (ms) the message was published that went back first because it had to wait; later copies keep it."""
WAITING_FOR = "LIFECYCLE_WAITING_FOR"
"""What it waits for: a ``values.outcomes.Waiting``."""
WAITING_RUN = "LIFECYCLE_WAITING_RUN"
"""The run that sent this copy back. Java consumers copy all three and look at none."""

_NAMES = frozenset(
    {
        *(REAL_TOPIC, REAL_SUBSCRIPTION, ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_IDY_TIME, RECONSUMETIMES, DELAY_TIME),
        *(WAITING_SINCE, WAITING_FOR, WAITING_RUN),
    }
)

NEVER_AGAIN = 1_000_000_000
"""A number of retries that no limit allows."""

LONGEST_DELAY = 86_400_000
"""Milliseconds after which a message counts as due whatever it says of itself."""


def reconsume_times(properties: Mapping[str, str]) -> int:
    """How often a message went through the retry topic; ``NEVER_AGAIN`` for a count that no client writes."""
    times = _decimal(properties.get(RECONSUMETIMES, "0"))
    return NEVER_AGAIN if times is None else times


def told_times(properties: Mapping[str, str]) -> int | None:
    """As :func:`reconsume_times`, to be shown: None for a count that no client writes."""
    times = reconsume_times(properties)
    return None if times == NEVER_AGAIN else times


def due_at(properties: Mapping[str, str], publish_time: int, now: int) -> int:
    """When (ms since the epoch) a message published at ``publish_time`` is delivered, as far as it says so itself.

    One that is dated after ``now`` counts as published now: its sender's clock is ahead.
    """
    delay = _decimal(properties.get(DELAY_TIME, "0"))
    return min(publish_time, now) + min(delay or 0, LONGEST_DELAY)


def told_delay(properties: Mapping[str, str]) -> int:
    """How long (ms) a message says that it is delayed, however long that is; 0 if it says no number."""
    text = properties.get(DELAY_TIME, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0


def java_message_id(ledger_id: int, entry_id: int, partition: int, batch_index: int) -> str:
    """A message id as Java's ``MessageId.toString`` spells it; -1 for no partition and for no batch."""
    batch = f":{batch_index}" if batch_index >= 0 else ""
    return f"{ledger_id}:{entry_id}:{partition}{batch}"


def retry_properties(
    properties: Mapping[str, str], *, topic: Topic, subscription: str, message_id: str, times: int, delay_ms: int
) -> dict[str, str]:
    """What the copy of a message carries: where it was read first stays, the count and the delay are new."""
    first = _first_read(topic, subscription, message_id)
    kept = {name: value for name, value in properties.items() if name not in (WAITING_FOR, WAITING_RUN)}
    return {**first, **kept, RECONSUMETIMES: str(times), DELAY_TIME: str(delay_ms)}


def waiting_properties(
    properties: Mapping[str, str],
    *,
    topic: Topic,
    subscription: str,
    message_id: str,
    delay_ms: int,
    notes: Mapping[str, str],
) -> dict[str, str]:
    """What the copy of a message that waits carries: as a retry letter, but its count of retries stays as it is.

    ``notes`` are :data:`WAITING_SINCE`, :data:`WAITING_FOR` and :data:`WAITING_RUN`.
    """
    first = _first_read(topic, subscription, message_id)
    return {**first, **properties, DELAY_TIME: str(delay_ms), **notes}


def waiting_since(properties: Mapping[str, str], publish_time: int) -> int | None:
    """Since when (ms) a message waits, by its own word; None if it says nothing that can be true."""
    text = properties.get(WAITING_SINCE, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        return None
    return int(text) if 0 < int(text) <= publish_time else None


def _first_read(topic: Topic, subscription: str, message_id: str) -> dict[str, str]:
    return {
        REAL_TOPIC: str(topic.partitioned_parent),
        REAL_SUBSCRIPTION: subscription,
        ORIGIN_MESSAGE_ID: message_id,
        ORIGIN_MESSAGE_IDY_TIME: message_id,
    }


def without_retry_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties a message was first sent with."""
    return {name: value for name, value in properties.items() if name not in _NAMES}


def _decimal(text: str) -> int | None:
    """A number as Java writes it, below ``NEVER_AGAIN``; None for anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
