"""The deletion queue of PIP-186 on the binary protocol, as a :class:`~pulsar_lifecycle.ports.DeletionQueue`.

Belongs here: topics, the durable subscription, sending, receiving, acknowledging. Not here: what a message says
(``formats/deletion_message.py``) and what is done about it. Upstream: PIP-186; the topics are ordinary ones and any
client may write to them, so nothing received is to be believed.

A topic without the subscription drops what is sent to it within seconds, because the broker trims what nobody waits
for. So the subscription is made sure of on every partition before each send.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import _pulsar
import pulsar
import pulsar.exceptions

from pulsar_lifecycle.errors import (
    AccessDenied,
    CorruptFormat,
    LifecycleError,
    NotFound,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats.deletion_message import (
    PendingDeleteLedgerInfo,
    decode_deletion_message,
    encode_deletion_message,
)
from pulsar_lifecycle.formats.retry_letter import RECONSUMETIMES, reconsume_times
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.ports import BrokerAdmin, Postponed, Received, Sent
from pulsar_lifecycle.settings import PulsarSettings

NAMESPACE = Namespace("pulsar", "system")
DELETION_TOPIC = Topic(NAMESPACE, "__ledger_deletion")
RETRY_TOPIC = Topic(NAMESPACE, "__ledger_deletion-RETRY")
DLQ_TOPIC = Topic(NAMESPACE, "__ledger_deletion-DLQ")
SUBSCRIPTION = "ledger-deletion"

IN_FLIGHT = 500
"""Messages sent and not yet acknowledged by the broker; below the client's own queue, which would drop the excess."""
PREFETCHED = 500
"""Messages a consumer holds per partition: a dead executor's are handed out again only when its connection ends."""


def topics_of(admin: BrokerAdmin, topic: Topic) -> list[Topic]:
    """The partitions of a topic, itself if it has none, nothing where it does not exist."""
    count = admin.partitions(topic)
    if count is None:
        return []
    return [Topic(topic.namespace, f"{topic.local}-partition-{n}") for n in range(count)] or [topic]


def pending(admin: BrokerAdmin) -> int:
    """Intents in flight: messages of the main and the retry topic that the subscription has not acknowledged.

    Creates nothing; topics that do not exist yet count as empty. Raises NotFound where a topic lacks the subscription.
    """
    partitions = [part for topic in (DELETION_TOPIC, RETRY_TOPIC) for part in topics_of(admin, topic)]
    return sum(admin.backlog(part, SUBSCRIPTION) for part in partitions)


class PulsarDeletionQueue:
    """Producer and Shared consumer of the deletion queue; each is opened when it is first needed.

    ``parallelism`` is the number of partitions the main and the retry topic are created with. Not thread-safe.
    """

    def __init__(self, settings: PulsarSettings, admin: BrokerAdmin, parallelism: int) -> None:
        self._admin = admin
        self._parallelism = parallelism
        self._timeout = settings.request_timeout
        self._client = _client(settings)
        self._producers: dict[Topic, pulsar.Producer] = {}
        self._consumer: pulsar.Consumer | None = None

    def ensure(self) -> None:
        """Create what is missing of topics and subscriptions; idempotent.

        Raises NotFound when the namespace ``pulsar/system`` does not exist, Conflict when the main or the retry topic
        is there and not partitioned, or the dead-letter topic is.
        """
        for topic in (DELETION_TOPIC, RETRY_TOPIC):
            self._admin.create_partitioned_topic(topic, self._admin.partitions(topic) or self._parallelism)
        self._admin.create_topic(DLQ_TOPIC)
        for topic in (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC):
            for part in topics_of(self._admin, topic):
                if SUBSCRIPTION not in self._admin.subscriptions(part):
                    self._admin.create_subscription(part, SUBSCRIPTION, "earliest")

    def backlog(self) -> int:
        """:func:`pending`."""
        return pending(self._admin)

    def send(self, infos: Sequence[PendingDeleteLedgerInfo], deliver_after_ms: int) -> list[Sent]:
        """One un-batched, keyless message per info, after :meth:`ensure`; waits for every receipt.

        A failed send is an outcome of its own; it may nevertheless have reached the topic, where it does no harm.
        After a time-out the rest is not sent and says so, else each 500 of them would wait for another time-out.
        """
        self.ensure()
        with _ours("open the producer"):
            self._producer_of(DELETION_TOPIC)
        delay = _delay(deliver_after_ms)
        receipts = self._send_all(
            [(DELETION_TOPIC, encode_deletion_message(info), {"deliver_after": delay}) for info in infos]
        )
        return [Sent(info, *receipt) for info, receipt in zip(infos, receipts, strict=True)]

    def reconsume_later(self, messages: Sequence[Received], delay_ms: int, max_times: int) -> list[Postponed]:
        """Send copies to the retry topic or, after ``max_times`` retries, to the dead-letter topic; waits for receipts.

        Properties, keys and times are those of ``ConsumerImpl.reconsumeLater`` (pulsar-client 4.0.7).
        """
        outgoing: list[tuple[Topic, bytes, dict[str, Any]]] = []
        counts: list[tuple[int, bool]] = []
        for message in messages:
            times = min(reconsume_times(message.properties), max_times) + 1
            dead = times > max_times
            original: Any = message.handle
            copied: dict[str, Any] = {
                "properties": _retry_properties(message, original.message_id(), times, delay_ms),
                "deliver_after": None if dead else _delay(delay_ms),
            }
            if original.partition_key():
                copied["partition_key"] = original.partition_key()
            if original.ordering_key():
                copied["ordering_key"] = original.ordering_key()
            if original.event_timestamp():
                copied["event_timestamp"] = original.event_timestamp()
            outgoing.append((DLQ_TOPIC if dead else RETRY_TOPIC, message.raw, copied))
            counts.append((times, dead))
        receipts = self._send_all(outgoing)
        return [
            Postponed(message, times, dead, error)
            for message, (times, dead), (_, error) in zip(messages, counts, receipts, strict=True)
        ]

    def _send_all(self, outgoing: Sequence[tuple[Topic, bytes, dict[str, Any]]]) -> list[tuple[bytes, str]]:
        """(message id, error) of each, in order."""
        sending = _Sending(len(outgoing))
        for index, (topic, content, options) in enumerate(outgoing):
            sending.slots.acquire()
            if sending.timed_out:
                sending.settle(index, b"", "not sent, because the broker did not answer to an earlier one")
                continue
            try:
                self._producer_of(topic).send_async(content, sending.receipt_of(index), **options)
            except (pulsar.exceptions.PulsarException, ValueError) as error:
                sending.settle(index, b"", str(error))
        return sending.outcomes()

    def _producer_of(self, topic: Topic) -> pulsar.Producer:
        if topic not in self._producers:
            self._producers[topic] = self._client.create_producer(
                str(topic),
                batching_enabled=False,
                max_pending_messages=2 * IN_FLIGHT,
                send_timeout_millis=int(self._timeout * 1000),
            )
        return self._producers[topic]

    def receive(self, limit: int, wait_ms: int) -> list[Received]:
        """Up to ``limit`` messages of main and retry topic, fewer once ``wait_ms`` have passed."""
        deadline = time.monotonic() + wait_ms / 1000
        received: list[Received] = []
        with _ours("receive"):
            if self._consumer is None:
                self.ensure()
                self._consumer = self._client.subscribe(
                    [str(DELETION_TOPIC), str(RETRY_TOPIC)],
                    SUBSCRIPTION,
                    consumer_type=pulsar.ConsumerType.Shared,
                    initial_position=pulsar.InitialPosition.Earliest,
                    receiver_queue_size=PREFETCHED,
                )
            while len(received) < limit:
                remaining = max(1, int((deadline - time.monotonic()) * 1000))
                try:
                    received.append(_received(self._consumer.receive(timeout_millis=remaining)))
                except pulsar.exceptions.Timeout:
                    break
        return received

    def acknowledge(self, messages: Sequence[Received]) -> None:
        """Acknowledge without waiting for the broker; the client sends them every 0.1 s and when it is closed.

        A lost acknowledgement does no harm, so none is confirmed: what was done is in the journal before, and the
        message only comes again, where the next run finds its ledger gone or decides afresh. Waiting for the cursor
        instead would cost a statistics call per batch and partition.
        """
        if not messages:
            return
        with _ours("acknowledge"):
            if self._consumer is None:
                raise Unavailable("acknowledge: the consumer these messages came from is closed")
            for message in messages:
                original: Any = message.handle
                self._consumer.acknowledge(original)

    def release(self, messages: Sequence[Received]) -> None:
        """Leave messages unacknowledged: the broker hands them out again once this queue is closed.

        No negative acknowledgement: its delay is shorter than a run, which would meet its own failures again.
        """

    def close(self) -> None:
        """Send what acknowledgements are left, close producer, consumer and connections.

        What was not acknowledged goes back to the subscription.
        """
        self._producers.clear()
        self._consumer = None
        with contextlib.suppress(pulsar.exceptions.PulsarException):
            self._client.close()


class _Sending:
    """The receipts of one call to send; they arrive on the client's own thread."""

    def __init__(self, count: int) -> None:
        self.slots = threading.BoundedSemaphore(IN_FLIGHT)
        self.timed_out = False
        self._receipts: list[tuple[bytes, str]] = [(b"", "")] * count

    def receipt_of(self, index: int) -> Callable[[Any, Any], None]:
        def receipt(result: Any, message_id: Any) -> None:
            if result == _pulsar.Result.Ok:
                self.settle(index, message_id.serialize(), "")
            else:
                self.timed_out |= result == _pulsar.Result.Timeout
                self.settle(index, b"", str(result).removeprefix("Result."))

        return receipt

    def settle(self, index: int, message_id: bytes, error: str) -> None:
        self._receipts[index] = (message_id, error)
        self.slots.release()

    def outcomes(self) -> list[tuple[bytes, str]]:
        """Wait until every slot is free again: the client fails a send by itself after its time-out."""
        for _ in range(IN_FLIGHT):
            self.slots.acquire()
        return self._receipts


def _delay(milliseconds: int) -> timedelta | None:
    return timedelta(milliseconds=milliseconds) if milliseconds else None


def _retry_properties(message: Received, message_id: Any, times: int, delay_ms: int) -> dict[str, str]:
    """What RetryMessageUtil and ConsumerImpl write; the first three stay what the first retry made them."""
    origin = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
    if message_id.batch_index() >= 0:
        origin += f":{message_id.batch_index()}"
    first = {
        "REAL_TOPIC": str(Topic.parse(message.topic).partitioned_parent),
        "REAL_SUBSCRIPTION": SUBSCRIPTION,
        "ORIGIN_MESSAGE_ID": origin,
        "ORIGIN_MESSAGE_IDY_TIME": origin,
    }
    return {**first, **message.properties, RECONSUMETIMES: str(times), "DELAY_TIME": str(delay_ms)}


def _received(message: pulsar.Message) -> Received:
    raw = message.data()
    info, problem = None, ""
    try:
        info = decode_deletion_message(raw)
    except CorruptFormat as error:
        problem = str(error)
    message_id = message.message_id()
    return Received(
        message_id=message_id.serialize(),
        topic=message.topic_name(),
        raw=raw,
        properties=dict(message.properties()),
        publish_time=message.publish_timestamp(),
        info=info,
        problem=problem,
        handle=message,
    )


def _client(settings: PulsarSettings) -> pulsar.Client:
    tls = settings.tls
    authentication = None
    if settings.token is not None:
        authentication = pulsar.AuthenticationToken(settings.token.resolve("pulsar.token"))
    elif tls is not None and tls.cert_file:
        authentication = pulsar.AuthenticationTLS(tls.cert_file, tls.key_file)
    with _ours(f"connect to {settings.service_url}"):
        return pulsar.Client(
            settings.service_url,
            authentication=authentication,
            operation_timeout_seconds=max(1, int(settings.request_timeout)),
            tls_trust_certs_file_path=(tls and tls.ca_file) or None,
            tls_validate_hostname=tls is None or tls.verify,
            tls_certificate_file_path=(tls and tls.cert_file) or None,
            tls_private_key_file_path=(tls and tls.key_file) or None,
            # The client writes to stdout otherwise; every failure reaches us as an exception or an outcome.
            logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
        )


_ERRORS: dict[type[Exception], type[LifecycleError]] = {
    pulsar.exceptions.AuthenticationError: AccessDenied,
    pulsar.exceptions.AuthorizationError: AccessDenied,
    pulsar.exceptions.ErrorGettingAuthenticationData: AccessDenied,
    pulsar.exceptions.TopicNotFound: NotFound,
    pulsar.exceptions.SubscriptionNotFound: NotFound,
    pulsar.exceptions.InvalidConfiguration: StoreError,
    pulsar.exceptions.InvalidUrl: StoreError,
    pulsar.exceptions.InvalidTopicName: StoreError,
    pulsar.exceptions.IncompatibleSchema: StoreError,
    pulsar.exceptions.UnsupportedVersionError: StoreError,
    pulsar.exceptions.NotAllowedError: StoreError,
    pulsar.exceptions.TopicTerminated: StoreError,
}
"""What is not listed means no answer, or a broker that is busy or on its way elsewhere."""


@contextlib.contextmanager
def _ours(what: str) -> Iterator[None]:
    """Turn the client's exceptions into ours."""
    try:
        yield
    except pulsar.exceptions.PulsarException as error:
        raise _ERRORS.get(type(error), Unavailable)(f"{what}: {type(error).__name__}: {error}") from error
