"""One Pulsar client: un-batched producers, one Shared consumer, readers; each is opened when it is first needed.

Belongs here: the client's ways, its errors as ours, receipts. Not here: which topics, and what messages say. Upstream:
pulsar-client 3.13 (C++ core); producers are set up as those of a Java consumer's retry and dead letters
(``ConsumerImpl``, pulsar-client 4.0.7): no batches, chunks allowed.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

import _pulsar  # pyrefly: ignore[missing-import]
import pulsar
import pulsar.exceptions

from pulsar_lifecycle.errors import AccessDenied, LifecycleError, NotFound, StoreError, Unavailable
from pulsar_lifecycle.io.pulsar.admin_answers import TOKEN
from pulsar_lifecycle.io.pulsar.token_expiry import expired_at
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.setting_types import Tls
from pulsar_lifecycle.settings import PulsarSettings

Opened = TypeVar("Opened")

IN_FLIGHT = 500
"""Messages sent and not yet acknowledged by the broker; below the client's own queue, which would drop the excess."""
PREFETCHED = 500
"""Messages a consumer holds per partition: a dead executor's are handed out again only when its connection ends."""
LONGEST_CONNECT_MS = 10_000
"""How long a broker may take to welcome a connection; not longer than ``request_timeout`` either."""
UNDECRYPTED = pulsar.ConsumerCryptoFailureAction.CONSUME
"""An encrypted message comes as it is: by default it would be held back for ever, and what is behind it with it."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send; ``original`` is the client's message whose event time and keys, if text, it takes over."""

    topic: Topic
    content: bytes
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    delay_ms: int = 0
    original: Any = None

    def options(self) -> dict[str, Any]:
        """What the client's ``send_async`` takes besides the content."""
        options: dict[str, Any] = {"properties": dict(self.properties)}
        if self.delay_ms:
            options["deliver_after"] = timedelta(milliseconds=self.delay_ms)
        if self.original is not None:
            for name in ("partition_key", "ordering_key", "event_timestamp"):
                with contextlib.suppress(UnicodeDecodeError):  # keys may be any bytes, and nothing depends on them
                    if value := getattr(self.original, name)():
                        options[name] = value
        return options


class Receipt(NamedTuple):
    """What became of a message: sent if ``error`` is None. ``unanswered``: its topic's broker said nothing in time."""

    message_id: bytes
    error: str | None = None
    unanswered: bool = False


class PulsarSession:
    """Not thread-safe. ``request_timeout`` of the settings bounds every call to a broker.

    The client looks topics up at all brokers of ``service_url`` in turn, and gives up at the first that takes its
    connection and says nothing. So what cannot be opened for that is opened once more through one that answers.
    """

    def __init__(self, settings: PulsarSettings) -> None:
        self._settings = settings
        self._timeout = settings.request_timeout
        self._clients = [_client(settings, settings.service_url)]
        """The last one opens what is to be opened; another has what it opened until it is closed."""
        self._producers: dict[Topic, pulsar.Producer] = {}
        self._consumer: pulsar.Consumer | None = None

    # -------------------------------------------------------------------------------------------------------- sending

    def open_producer(self, topic: Topic) -> None:
        """Open it now, so that what is wrong is raised and not the outcome of each message."""
        with _ours("open the producer"):
            self._producer_of(topic)

    def send_all(self, outgoing: Sequence[Outgoing]) -> list[Receipt]:
        """A receipt of each, in order, once all are there, or none has come for twice the time-out.

        After a time-out nothing more is sent to that topic, else each 500 messages would wait for another time-out.
        """
        closed: dict[Topic, str] = {}
        for topic in {one.topic for one in outgoing}:
            try:
                self._producer_of(topic)
            except (pulsar.exceptions.PulsarException, AccessDenied) as error:
                closed[topic] = f"{type(error).__name__}: {error}"
        sending = _Sending(len(outgoing), 2 * self._timeout)
        for index, one in enumerate(outgoing):
            if not sending.has_room():
                break
            if one.topic in closed:
                sending.confirm(index, Receipt(b"", closed[one.topic], unanswered=True))
                continue
            if one.topic in sending.timed_out:
                text = "not sent, because the broker did not answer to an earlier one"
                sending.confirm(index, Receipt(b"", text, unanswered=True))
                continue
            try:
                producer = self._producer_of(one.topic)
                producer.send_async(one.content, sending.receipt_of(index, one.topic), **one.options())
            except (pulsar.exceptions.PulsarException, ValueError) as error:
                sending.confirm(index, Receipt(b"", str(error)))
        return sending.outcomes()

    def _producer_of(self, topic: Topic) -> pulsar.Producer:
        if topic not in self._producers:
            self._producers[topic] = self._opened(
                topic,
                lambda client: client.create_producer(
                    str(topic),
                    batching_enabled=False,
                    chunking_enabled=True,
                    max_pending_messages=2 * IN_FLIGHT,
                    send_timeout_millis=int(self._timeout * 1000),
                ),
            )
        return self._producers[topic]

    # ------------------------------------------------------------------------------------------------------ receiving

    @property
    def subscribed(self) -> bool:
        """Whether there is a consumer."""
        return self._consumer is not None

    def subscribe(self, topics: Sequence[Topic], subscription: str) -> None:
        """Open the one Shared consumer, over all partitions of ``topics``."""
        with _ours("subscribe"):
            self._consumer = self._opened(
                topics[0],
                lambda client: client.subscribe(
                    [str(topic) for topic in topics],
                    subscription,
                    consumer_type=pulsar.ConsumerType.Shared,
                    initial_position=pulsar.InitialPosition.Earliest,
                    receiver_queue_size=PREFETCHED,
                    crypto_failure_action=UNDECRYPTED,
                ),
            )

    def receive(self, limit: int, wait_ms: int) -> list[pulsar.Message]:
        """Up to ``limit`` messages, fewer once ``wait_ms`` have passed, or once no more came for a fifth of that."""
        deadline = time.monotonic() + wait_ms / 1000
        received: list[pulsar.Message] = []
        with _ours("receive"):
            if self._consumer is None:
                raise Unavailable("receive: the consumer is closed")
            while len(received) < limit:
                remaining = int((deadline - time.monotonic()) * 1000)
                patience = min(remaining, wait_ms // 5) if received else remaining
                try:
                    received.append(self._consumer.receive(timeout_millis=max(1, patience)))
                except pulsar.exceptions.Timeout:
                    break
        return received

    def acknowledge(self, originals: Sequence[Any]) -> None:
        """Acknowledge without waiting for the broker; the client sends them every 0.1 s and when it is closed."""
        if not originals:
            return
        with _ours("acknowledge"):
            if self._consumer is None:
                raise Unavailable("acknowledge: the consumer these messages came from is closed")
            for original in originals:
                self._consumer.acknowledge(original)

    def read(self, part: Topic, after: Position, limit: int) -> tuple[list[tuple[Position, pulsar.Message]], bool]:
        """Messages of a partition behind ``after``, acknowledged or not, and whether these were the last.

        Stops after ``limit`` messages at the next entry's begin, so that no batch is cut. Takes nothing: the reader's
        cursor is its own and goes with it. Raises Unavailable when a message that is there does not come.
        """
        found: list[tuple[Position, pulsar.Message]] = []
        start = pulsar.MessageId(part.partition if part.partition is not None else -1, after.ledger_id, after.entry_id)
        with _ours(f"read {part}"):
            reader = self._opened(
                part,
                lambda client: client.create_reader(
                    str(part), start, receiver_queue_size=min(limit + 1, PREFETCHED), crypto_failure_action=UNDECRYPTED
                ),
            )
            try:
                while reader.has_message_available():
                    message = reader.read_next(timeout_millis=int(self._timeout * 1000))
                    position = Position(message.message_id().ledger_id(), message.message_id().entry_id())
                    if len(found) >= limit and position != found[-1][0]:
                        return found, False
                    found.append((position, message))
            finally:
                reader.close()
        return found, True

    def close(self) -> None:
        """Send what acknowledgements are left, close everything; what was not acknowledged goes back."""
        self._producers.clear()
        self._consumer = None
        for client in self._clients:
            _close(client)

    # ------------------------------------------------------------------------------------------------------- clients

    def _opened(self, topic: Topic, open_it: Callable[[pulsar.Client], Opened]) -> Opened:
        try:
            return open_it(self._clients[-1])
        except _NO_ANSWER as error:
            self._refuse_expired(error)
            if not self._go_to_one_that_answers(topic):
                raise
        return open_it(self._clients[-1])

    def _refuse_expired(self, error: Exception) -> None:
        """A broker closes the connection of who shows an expired token, and the client tries again until it times out.

        Raises AccessDenied.
        """
        token = self._settings.token
        if token and (at := expired_at(token.resolve(TOKEN), time.time())):
            raise AccessDenied(f"{TOKEN} expired at {at}: brokers close every connection with it") from error

    def _go_to_one_that_answers(self, topic: Topic) -> bool:
        """Whether there is another client now, of the first broker that says how many partitions a topic has."""
        urls = _each(self._settings.service_url)
        if len(urls) == 1 or len(self._clients) > 1:
            return False
        for url in urls:
            client = _client(self._settings, url)
            try:
                client.get_topic_partitions(str(topic))
            except _NO_ANSWER:
                _close(client)
                continue
            except pulsar.exceptions.PulsarException:
                pass  # an answer: what is wrong with the topic is said when it is opened
            self._clients.append(client)
            return True
        return False


class _Sending:
    """The receipts of one call to send; they arrive on the client's own thread.

    The client fails a send by itself after its time-out, but for one whose producer its broker closes again and again,
    as it does while too few bookies answer: of that one it never says anything. So nobody waits longer than
    ``patience`` seconds for the next receipt.
    """

    def __init__(self, count: int, patience: float) -> None:
        self._slots = threading.BoundedSemaphore(IN_FLIGHT)
        self._patience = patience
        self.timed_out: set[Topic] = set()
        unanswered = Receipt(b"", f"no receipt came for {patience:g} s", unanswered=True)
        self._receipts = [unanswered] * count
        self._ended = False
        self._confirming = threading.Lock()

    def has_room(self) -> bool:
        """Wait for a slot; False if none becomes free in time."""
        return self._slots.acquire(timeout=self._patience)

    def receipt_of(self, index: int, topic: Topic) -> Callable[[Any, Any], None]:
        def receipt(result: Any, message_id: Any) -> None:
            if result == _pulsar.Result.Ok:
                self.confirm(index, Receipt(_told(message_id, topic)))
                return
            unanswered = result == _pulsar.Result.Timeout
            if unanswered:
                self.timed_out.add(topic)
            self.confirm(index, Receipt(b"", str(result).removeprefix("Result."), unanswered))

        return receipt

    def confirm(self, index: int, receipt: Receipt) -> None:
        with self._confirming:
            if not self._ended:
                self._receipts[index] = receipt
        self._slots.release()

    def outcomes(self) -> list[Receipt]:
        """Wait until every slot is free again; what comes later than that does not count."""
        all(self.has_room() for _ in range(IN_FLIGHT))
        with self._confirming:
            self._ended = True
        return self._receipts


def _told(found: Any, topic: Topic) -> bytes:
    """A message's id as consumers see it: a producer of one partition leaves its number out."""
    if topic.partition is None:
        return found.serialize()
    own = _pulsar.MessageId(topic.partition, found.ledger_id(), found.entry_id(), found.batch_index())
    return own.serialize()


_NO_ANSWER = (pulsar.exceptions.Timeout, pulsar.exceptions.ConnectError)
"""What the client raises where a broker takes a connection and says nothing, and where none takes it."""


def _each(service_url: str) -> list[str]:
    """A service URL for each of the hosts that one names."""
    scheme, _, hosts = service_url.rstrip("/").partition("://")
    return [f"{scheme}://{host}" for host in hosts.split(",") if host]


def _close(client: pulsar.Client) -> None:
    with contextlib.suppress(pulsar.exceptions.PulsarException):
        client.close()


def _client(settings: PulsarSettings, service_url: str) -> pulsar.Client:
    tls = settings.tls or Tls()
    authentication = None
    if settings.token is not None:
        settings.token.resolve(TOKEN)  # what is wrong with it is said here
        authentication = pulsar.AuthenticationToken(partial(settings.token.resolve, TOKEN))  # files are rotated
    elif tls.cert_file:
        authentication = pulsar.AuthenticationTLS(tls.cert_file, tls.key)
    seconds = max(1, int(settings.request_timeout))
    with _ours(f"connect to {service_url}"):
        return pulsar.Client(
            service_url,
            authentication=authentication,
            operation_timeout_seconds=seconds,
            connection_timeout_ms=min(LONGEST_CONNECT_MS, seconds * 1000),
            tls_trust_certs_file_path=tls.ca_file or None,
            tls_validate_hostname=tls.verify,
            tls_certificate_file_path=tls.cert_file or None,
            tls_private_key_file_path=tls.key or None,
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
