"""The deletion queue in memory; passes the contracts of tests/unit/io/pulsar/test_queue.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, SUBSCRIPTION
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound
from pulsar_lifecycle.formats.deletion_message import (
    PendingDeleteLedgerInfo,
    decode_deletion_message,
    encode_deletion_message,
)
from pulsar_lifecycle.formats.retry_letter import (
    DELAY_TIME,
    NEVER_AGAIN,
    java_message_id,
    reconsume_times,
    retry_properties,
    waiting_properties,
    without_retry_properties,
)
from pulsar_lifecycle.io.pulsar.queue import NOT_TEXT
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import Page, Postponed, Received, Resent, Sent

MAIN = Topic(DELETION_TOPIC.namespace, f"{DELETION_TOPIC.local}-partition-0")
RETRY = Topic(RETRY_TOPIC.namespace, f"{RETRY_TOPIC.local}-partition-0")
PARTITIONS = {DELETION_TOPIC: [MAIN], RETRY_TOPIC: [RETRY], DLQ_TOPIC: [DLQ_TOPIC]}


@dataclass
class FakeDeletionTopics:
    """What outlives a queue object: the messages not yet acknowledged, and the time, which only receiving moves.

    ``waiting``, of main and retry topic: by number, when it was published, when it may be delivered, its bytes and
    properties. ``dead_letters`` are the same, of the dead-letter topic. ``retries`` says which of ``waiting`` are on
    the retry topic. ``subscribed`` lists the partitions that have the durable subscription. A property that is bytes
    stands for one that is no text. ``max_unacked``: a partition of main and retry topic hands out no more
    while so many of its messages are held and not acknowledged (a broker's ``maxUnackedMessagesPerSubscription``); 0
    is no limit.
    """

    now_ms: int = 0
    waiting: dict[int, tuple[int, int, bytes, dict[str, str]]] = field(default_factory=dict)
    dead_letters: dict[int, tuple[int, int, bytes, dict[str, str]]] = field(default_factory=dict)
    retries: set[int] = field(default_factory=set)
    subscribed: set[Topic] = field(default_factory=lambda: {MAIN, RETRY, DLQ_TOPIC})
    held: set[int] = field(default_factory=set)
    max_unacked: int = 0
    last: int = 0

    @property
    def dead(self) -> list[tuple[bytes, dict[str, str]]]:
        return [(raw, properties) for _, _, raw, properties in self.dead_letters.values()]

    def publish(
        self,
        raw: bytes,
        properties: dict[str, str] | None = None,
        deliver_after_ms: int = 0,
        topic: Topic = DELETION_TOPIC,
    ) -> bytes:
        self.last += 1
        where = self.dead_letters if topic == DLQ_TOPIC else self.waiting
        where[self.last] = (self.now_ms, self.now_ms + deliver_after_ms, raw, properties or {})
        if topic == RETRY_TOPIC:
            self.retries.add(self.last)
        return self.last.to_bytes(8, "big")

    def partition_of(self, number: int) -> Topic:
        if number in self.dead_letters:
            return DLQ_TOPIC
        return RETRY if number in self.retries else MAIN

    def received(self, number: int) -> Received:
        published, _, raw, properties = (self.waiting | self.dead_letters)[number]
        info, problem = None, ""
        try:
            info = decode_deletion_message(raw)
        except CorruptFormat as error:
            problem = str(error)
        if any(isinstance(value, bytes) for value in properties.values()):
            properties, info, problem = {}, None, NOT_TEXT
        where = str(self.partition_of(number))
        return Received(number.to_bytes(8, "big"), where, raw, properties, published, info, problem)

    def take(self, where: dict[int, tuple[int, int, bytes, dict[str, str]]], limit: int) -> list[int]:
        ready = [n for n, (_, at, _, _) in where.items() if at <= self.now_ms and n not in self.held]
        room = dict.fromkeys(map(self.partition_of, where), self.max_unacked)
        for number in self.held & where.keys():
            room[self.partition_of(number)] -= 1
        taken: list[int] = []
        for number in ready:
            part = self.partition_of(number)
            if len(taken) < limit and (room[part] > 0 or not self.max_unacked or part == DLQ_TOPIC):
                room[part] -= 1
                taken.append(number)
        self.held.update(taken)
        return taken


def number_of(message: Received) -> int:
    return int.from_bytes(message.message_id, "big")


class FakeDeletionQueue:
    """``refused`` names ledger ids whose send fails; ``failure``, when set, is raised by receive and acknowledge."""

    def __init__(self, topics: FakeDeletionTopics | None = None) -> None:
        self.topics = topics or FakeDeletionTopics()
        self.refused: set[int] = set()
        self.failure: LifecycleError | None = None
        self.released: list[Received] = []
        self._mine: set[int] = set()

    def backlog(self) -> int:
        return len(self.topics.waiting)

    def send(self, infos: Sequence[PendingDeleteLedgerInfo], deliver_after_ms: int) -> list[Sent]:
        return [self._send(info, deliver_after_ms) for info in infos]

    def _send(self, info: PendingDeleteLedgerInfo, deliver_after_ms: int) -> Sent:
        if info.ledger_id in self.refused:
            return Sent(info, b"", "refused by the test")
        properties = {DELAY_TIME: str(deliver_after_ms)} if deliver_after_ms else {}
        return Sent(info, self.topics.publish(encode_deletion_message(info), properties, deliver_after_ms), None)

    def receive(self, limit: int, wait_ms: int) -> list[Received]:
        if self.failure:
            raise self.failure
        received = self._take(limit)
        if len(received) < limit:
            self.topics.now_ms += wait_ms
            received += self._take(limit - len(received))
        return received

    def _take(self, limit: int) -> list[Received]:
        ready = self.topics.take(self.topics.waiting, limit)
        self._mine.update(ready)
        return [self.topics.received(n) for n in ready]

    def acknowledge(self, messages: Sequence[Received]) -> None:
        if self.failure:
            raise self.failure
        for message in messages:
            self.topics.waiting.pop(number_of(message), None)

    def reconsume_later(self, messages: Sequence[Received], delay_ms: int, max_times: int) -> list[Postponed]:
        return [self._reconsume(message, delay_ms, max_times) for message in messages]

    def _reconsume(self, message: Received, delay_ms: int, max_times: int) -> Postponed:
        before = reconsume_times(message.properties)
        times = (max_times if before == NEVER_AGAIN else before) + 1
        dead = times > max_times
        if message.info and message.info.ledger_id in self.refused:
            return Postponed(message, times, dead, "refused by the test")
        properties = retry_properties(
            message.properties,
            topic=Topic.parse(message.topic),
            subscription=SUBSCRIPTION,
            message_id=java_message_id(0, number_of(message), 0, -1),
            times=times,
            delay_ms=delay_ms,
        )
        self.topics.publish(message.raw, properties, 0 if dead else delay_ms, DLQ_TOPIC if dead else RETRY_TOPIC)
        return Postponed(message, times, dead, None)

    def send_back(
        self, messages: Sequence[Received], notes: Sequence[Mapping[str, str]], delay_ms: int
    ) -> list[Postponed]:
        return [self._send_back(message, note, delay_ms) for message, note in zip(messages, notes, strict=True)]

    def _send_back(self, message: Received, notes: Mapping[str, str], delay_ms: int) -> Postponed:
        times = reconsume_times(message.properties)
        if message.info and message.info.ledger_id in self.refused:
            return Postponed(message, times, False, "refused by the test")
        properties = waiting_properties(
            message.properties,
            topic=Topic.parse(message.topic),
            subscription=SUBSCRIPTION,
            message_id=java_message_id(0, number_of(message), 0, -1),
            delay_ms=delay_ms,
            notes=notes,
        )
        self.topics.publish(message.raw, properties, delay_ms, RETRY_TOPIC)
        return Postponed(message, times, False, None)

    def release(self, messages: Sequence[Received]) -> None:
        self.released.extend(messages)

    def close(self) -> None:
        self.topics.held -= self._mine
        self._mine.clear()


class FakeDeadLetterQueue:
    """``refused`` names ledger ids whose send fails; ``failure``, when set, is raised by acknowledge."""

    def __init__(self, topics: FakeDeletionTopics | None = None) -> None:
        self.topics = topics or FakeDeletionTopics()
        self.refused: set[int] = set()
        self.failure: LifecycleError | None = None
        self._mine: set[int] = set()

    def backlog(self) -> int:
        if DLQ_TOPIC not in self.topics.subscribed:
            raise NotFound(f"{DLQ_TOPIC}: no subscription {SUBSCRIPTION}")
        return len(self.topics.dead_letters)

    def take(self, limit: int, wait_ms: int) -> list[Received]:
        self.topics.subscribed.add(DLQ_TOPIC)
        ready = self.topics.take(self.topics.dead_letters, limit)
        self._mine.update(ready)
        return [self.topics.received(n) for n in ready]

    def send_again(self, messages: Sequence[Received]) -> list[Resent]:
        return [self._send(message) for message in messages]

    def _send(self, message: Received) -> Resent:
        if message.info and message.info.ledger_id in self.refused:
            return Resent(message, b"", "refused by the test")
        return Resent(message, self.topics.publish(message.raw, without_retry_properties(message.properties)), None)

    def acknowledge(self, messages: Sequence[Received]) -> None:
        if self.failure:
            raise self.failure
        for message in messages:
            self.topics.dead_letters.pop(number_of(message), None)

    def close(self) -> None:
        self.topics.held -= self._mine
        self._mine.clear()


class FakeQueueReader:
    """One partition a topic; positions are ``0:number``. ``failure``, when set, is raised by every call.

    ``mute`` are more partitions, each with a message that cannot be read, and the error that says so.
    """

    def __init__(self, topics: FakeDeletionTopics | None = None) -> None:
        self.topics = topics or FakeDeletionTopics()
        self.failure: LifecycleError | None = None
        self.mute: dict[Topic, LifecycleError] = {}
        self.pages = 0

    def partitions(self, topic: Topic) -> list[Topic]:
        self._answer()
        return [*(part for part in self.mute if part.partitioned_parent == topic), *PARTITIONS[topic]]

    def backlog(self, part: Topic) -> int:
        self._answer()
        return 1 if part in self.mute else len(self._numbers(part))

    def waiting(self, part: Topic, after: Position | None, limit: int) -> Page:
        self._answer()
        if part in self.mute:
            raise self.mute[part]
        self.pages += 1
        start = after.entry_id if after is not None and after.entry_id <= self.topics.last else 0
        numbers = [n for n in self._numbers(part) if n > start]
        messages = tuple(self.topics.received(n) for n in numbers[:limit])
        upto = Position(0, numbers[:limit][-1] if messages else start)
        return Page(messages, upto, len(numbers) <= limit)

    def close(self) -> None:
        pass

    def _answer(self) -> None:
        if self.failure:
            raise self.failure

    def _numbers(self, part: Topic) -> list[int]:
        if part not in self.topics.subscribed:
            raise NotFound(f"{part}: no subscription {SUBSCRIPTION}")
        return sorted(n for n in self.topics.waiting | self.topics.dead_letters if self.topics.partition_of(n) == part)
