"""The deletion queue of PIP-186 on the binary protocol: main, retry and dead-letter topic.

Belongs here: topics, the durable subscription, sending, receiving, acknowledging, looking without taking. Not here:
what a message says (``formats/``) and what is done about it. Upstream: PIP-186; the topics are ordinary ones and any
client may write to them, so nothing received is to be believed.

A topic without the subscription drops what is sent to it within seconds, because the broker trims what nobody waits
for. So the subscription is made sure of before messages are received or dead-lettered, and around each send
(``intent_sender.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pulsar

from pulsar_lifecycle.deletion_queue.queue_topics import (
    DELETION_TOPIC,
    DLQ_TOPIC,
    RETRY_TOPIC,
    SUBSCRIPTION,
    KeptTopics,
    pending,
    topics_of,
    waiting,
)
from pulsar_lifecycle.errors import CorruptFormat, NotFound
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo, decode_deletion_message
from pulsar_lifecycle.formats.retry_letter import (
    NEVER_AGAIN,
    java_message_id,
    reconsume_times,
    retry_properties,
    waiting_properties,
    without_retry_properties,
)
from pulsar_lifecycle.io.pulsar.intent_sender import IntentSender
from pulsar_lifecycle.io.pulsar.pulsar_session import Outgoing, PulsarSession
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import BrokerAdmin, Page, Postponed, Received, Resent, Sent
from pulsar_lifecycle.settings import PulsarSettings

NOT_TEXT = "a property is not UTF-8 text, so its properties, and with them its retries, cannot be read"
ENCRYPTED = "it is encrypted, and nobody gives us keys: intents are sent unencrypted"
"""Problems of messages whose bytes are not looked at."""


class PulsarDeletionQueue:
    """:class:`~pulsar_lifecycle.ports.DeletionQueue`: sends to the main topic, consumes main and retry topic.

    ``subscribed`` makes what is missing of topics and subscriptions. Not thread-safe.
    """

    def __init__(self, settings: PulsarSettings, admin: BrokerAdmin, subscribed: KeptTopics) -> None:
        self._admin = admin
        self._session = PulsarSession(settings)
        self._subscribed = subscribed
        self._sender = IntentSender(self._session, self._subscribed)

    def ensure(self) -> None:
        """Create what is missing of topics and subscriptions."""
        self._subscribed.ensure()

    def backlog(self) -> int:
        """:func:`pending`."""
        return pending(self._admin)

    def send(self, infos: Sequence[PendingDeleteLedgerInfo], deliver_after_ms: int) -> list[Sent]:
        """One un-batched, keyless message per info (:meth:`IntentSender.send`); waits for receipts.

        Each says its delay as a retry does, because a message's own delivery time is hidden from Python clients. A
        failed send is an outcome of its own; it may nevertheless have reached the topic, where it does no harm.
        """
        return self._sender.send(infos, deliver_after_ms)

    def reconsume_later(self, messages: Sequence[Received], delay_ms: int, max_times: int) -> list[Postponed]:
        """Send copies to the retry topic or, after ``max_times`` retries, to the dead-letter topic; waits for receipts.

        Properties, keys and times are those of ``ConsumerImpl.reconsumeLater`` (pulsar-client 4.0.7). A message
        with a count that no client writes becomes a dead letter. No consumer keeps the subscription of the dead-letter
        topic, so each call makes sure of that before it sends there.
        """
        outgoing: list[Outgoing] = []
        counts: list[tuple[int, bool]] = []
        for message in messages:
            before = reconsume_times(message.properties)
            times = (max_times if before == NEVER_AGAIN else before) + 1
            dead = times > max_times
            properties = retry_properties(
                message.properties,
                topic=Topic.parse(message.topic),
                subscription=SUBSCRIPTION,
                message_id=_java_id(message.handle),
                times=times,
                delay_ms=delay_ms,
            )
            topic, delay = (DLQ_TOPIC, 0) if dead else (RETRY_TOPIC, delay_ms)
            outgoing.append(Outgoing(topic, message.raw, properties, delay, message.handle))
            counts.append((times, dead))
        if any(dead for _, dead in counts):
            self.ensure()
        receipts = self._session.send_all(outgoing)
        return [
            Postponed(message, times, dead, receipt.error)
            for message, (times, dead), receipt in zip(messages, counts, receipts, strict=True)
        ]

    def send_back(
        self, messages: Sequence[Received], notes: Sequence[Mapping[str, str]], delay_ms: int
    ) -> list[Postponed]:
        """Send copies to the retry topic, uncounted: a Java consumer that retries one counts on from where it was."""
        outgoing = [
            Outgoing(
                RETRY_TOPIC,
                message.raw,
                waiting_properties(
                    message.properties,
                    topic=Topic.parse(message.topic),
                    subscription=SUBSCRIPTION,
                    message_id=_java_id(message.handle),
                    delay_ms=delay_ms,
                    notes=note,
                ),
                delay_ms,
                message.handle,
            )
            for message, note in zip(messages, notes, strict=True)
        ]
        receipts = self._session.send_all(outgoing)
        return [
            Postponed(message, reconsume_times(message.properties), False, receipt.error)
            for message, receipt in zip(messages, receipts, strict=True)
        ]

    def receive(self, limit: int, wait_ms: int) -> list[Received]:
        """Up to ``limit`` messages of main and retry topic, fewer once no more come; none after ``wait_ms`` without."""
        if not self._session.subscribed:
            self.ensure()
            self._session.subscribe([DELETION_TOPIC, RETRY_TOPIC], SUBSCRIPTION)
        return [_received(message) for message in self._session.receive(limit, wait_ms)]

    def acknowledge(self, messages: Sequence[Received]) -> None:
        """Acknowledge without waiting for the broker.

        A lost acknowledgement does no harm, so none is confirmed: what was done is in the journal before, and the
        message only comes again, where the next run finds its ledger gone or decides afresh. Waiting for the cursor
        instead would cost a statistics call per batch and partition.
        """
        self._session.acknowledge([message.handle for message in messages])

    def release(self, messages: Sequence[Received]) -> None:
        """Leave messages unacknowledged: the broker hands them out again once this queue is closed.

        No negative acknowledgement: its delay is shorter than a run, which would meet its own failures again.
        """

    def close(self) -> None:
        """Send what acknowledgements are left, close producer, consumer and connections.

        What was not acknowledged goes back to the subscription.
        """
        self._session.close()


class PulsarDeadLetterQueue:
    """:class:`~pulsar_lifecycle.ports.DeadLetterQueue`: consumes the dead-letter topic, sends to the main topic.

    ``ensure`` makes what is missing of topics and subscriptions. Not thread-safe.
    """

    def __init__(self, settings: PulsarSettings, admin: BrokerAdmin, ensure: Callable[[], None]) -> None:
        self._admin = admin
        self._ensure = ensure
        self._session = PulsarSession(settings)

    def backlog(self) -> int:
        """Dead letters that the subscription has not acknowledged."""
        return waiting(self._admin, DLQ_TOPIC)

    def take(self, limit: int, wait_ms: int) -> list[Received]:
        """Up to ``limit`` dead letters, fewer once ``wait_ms`` have passed; each once until this queue is closed."""
        if not self._session.subscribed:
            self._ensure()
            self._session.subscribe([DLQ_TOPIC], SUBSCRIPTION)
        return [_received(message) for message in self._session.receive(limit, wait_ms)]

    def send_again(self, messages: Sequence[Received]) -> list[Resent]:
        """Send each to the main topic as it was sent first: same bytes, keys and properties, nothing of its retries."""
        self._ensure()
        self._session.open_producer(DELETION_TOPIC)
        receipts = self._session.send_all(
            [
                Outgoing(DELETION_TOPIC, one.raw, without_retry_properties(one.properties), 0, one.handle)
                for one in messages
            ]
        )
        return [Resent(m, receipt.message_id, receipt.error) for m, receipt in zip(messages, receipts, strict=True)]

    def acknowledge(self, messages: Sequence[Received]) -> None:
        """As :meth:`PulsarDeletionQueue.acknowledge`: one that is lost only sends the same intent again."""
        self._session.acknowledge([message.handle for message in messages])

    def close(self) -> None:
        """Send what acknowledgements are left; dead letters that were taken and not acknowledged go back."""
        self._session.close()


class PulsarQueueReader:
    """:class:`~pulsar_lifecycle.ports.QueueReader`; connects to the brokers' binary port only when something waits."""

    def __init__(self, settings: PulsarSettings, admin: BrokerAdmin) -> None:
        self._settings = settings
        self._admin = admin
        self._session: PulsarSession | None = None

    def partitions(self, topic: Topic) -> list[Topic]:
        """:func:`topics_of`."""
        return topics_of(self._admin, topic)

    def backlog(self, part: Topic) -> int:
        """Messages of one partition that the subscription has not acknowledged."""
        return self._admin.backlog(part, SUBSCRIPTION)

    def waiting(self, part: Topic, after: Position | None, limit: int) -> Page:
        """One page of what waits in a partition.

        A position behind the topic's end is one of another life of the topic, and counts as none.
        """
        internals = self._admin.internal_stats(part)
        acknowledged = internals.acknowledged.get(SUBSCRIPTION)
        if acknowledged is None:
            raise NotFound(f"{part}: no subscription {SUBSCRIPTION}")
        end = internals.last_confirmed
        start = acknowledged.mark_delete
        if after is not None and start < after <= end:
            start = after
        if start >= end:
            return Page((), start, True)
        if self._session is None:
            self._session = PulsarSession(self._settings)
        found, complete = self._session.read(part, start, limit)
        messages = tuple(_received(message) for position, message in found if position not in acknowledged)
        return Page(messages, found[-1][0] if found else start, complete)

    def close(self) -> None:
        """Close the connections, if there are any."""
        if self._session is not None:
            self._session.close()


def _java_id(message: Any) -> str:
    found = message.message_id()
    return java_message_id(found.ledger_id(), found.entry_id(), found.partition(), found.batch_index())


def _received(message: pulsar.Message) -> Received:
    raw = message.data()
    properties: dict[str, str] = {}
    info, problem = None, ""
    try:
        properties = dict(message.properties())
        if message.encryption_context() is None:
            info = decode_deletion_message(raw)
        else:
            problem = ENCRYPTED
    except UnicodeDecodeError:
        problem = NOT_TEXT
    except CorruptFormat as error:
        problem = str(error)
    message_id = message.message_id()
    return Received(
        message_id=message_id.serialize(),
        topic=message.topic_name(),
        raw=raw,
        properties=properties,
        publish_time=message.publish_timestamp(),
        info=info,
        problem=problem,
        handle=message,
    )
