"""The deletion queue and its dead letters, with the switch in each call.

Belongs here: sessions that lose acknowledgements, messages dated by a wrong clock. Not here: the other ports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, DLQ_TOPIC
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import (
    Postponed,
    Received,
    Resent,
    Sent,
)
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.deletion_queue import FakeDeadLetterQueue, FakeDeletionQueue, FakeDeletionTopics
from tests.simulation.world.interception import Interceptor, Trace


class SimTopics(FakeDeletionTopics):
    """The queue's topics; ``skew_ms`` is how far the sender's clock is off, which dates its messages."""

    skew_ms = 0

    def publish(
        self,
        raw: bytes,
        properties: dict[str, str] | None = None,
        deliver_after_ms: int = 0,
        topic: Topic = DELETION_TOPIC,
    ) -> bytes:
        found = super().publish(raw, properties, deliver_after_ms, topic)
        if topic != DLQ_TOPIC:
            at, due, raw, kept = self.waiting[self.last]
            self.waiting[self.last] = (at + self.skew_ms, due, raw, kept)
        return found


class SimQueue(FakeDeletionQueue):
    """A session with the queue. Acknowledgements may get lost; a crash hands everything out again."""

    topics: SimTopics

    def __init__(self, topics: SimTopics, clock: FakeClock, interceptor: Interceptor, trace: Trace | None) -> None:
        super().__init__(topics)
        self.interceptor = interceptor
        self.trace = trace
        self.time = clock
        self.latency: Callable[[], float] = lambda: 0.0
        self.forgetful = False
        self.on_acknowledge: Callable[[Sequence[Received]], None] = lambda messages: None
        self.on_sent: Callable[[Sent], None] = lambda sent: None

    def _send(self, info: PendingDeleteLedgerInfo, deliver_after_ms: int) -> Sent:
        self.interceptor.before("queue.publish")
        sent = super()._send(info, deliver_after_ms)
        self.on_sent(sent)
        self.interceptor.after("queue.publish")
        return sent

    def receive(self, limit: int, wait_ms: int) -> list[Received]:
        self.interceptor.before("queue.receive")
        self.topics.now_ms = self.time.now_ms()
        found = super().receive(limit, wait_ms)
        self.time.advance((self.topics.now_ms - self.time.now_ms()) / 1000)
        if self.trace:
            self.trace.latency_at_receive = self.latency()
        self.interceptor.after("queue.receive")
        return found

    def acknowledge(self, messages: Sequence[Received]) -> None:
        self.interceptor.before("queue.acknowledge")
        self.on_acknowledge(messages)
        if not self.forgetful:
            super().acknowledge(messages)
        self.interceptor.after("queue.acknowledge")

    def _reconsume(self, message: Received, delay_ms: int, max_times: int) -> Postponed:
        self.interceptor.before("queue.reconsume")
        self.topics.now_ms = self.time.now_ms()
        postponed = super()._reconsume(message, delay_ms, max_times)
        self.interceptor.after("queue.reconsume")
        return postponed

    def _send_back(self, message: Received, notes: Mapping[str, str], delay_ms: int) -> Postponed:
        self.interceptor.before("queue.send_back")
        self.topics.now_ms = self.time.now_ms()
        postponed = super()._send_back(message, notes, delay_ms)
        self.interceptor.after("queue.send_back")
        return postponed


class SimDeadLetters(FakeDeadLetterQueue):
    """A session with the dead-letter topic. Acknowledgements may get lost."""

    topics: SimTopics

    def __init__(self, topics: SimTopics, clock: FakeClock, interceptor: Interceptor) -> None:
        super().__init__(topics)
        self.interceptor = interceptor
        self.time = clock
        self.on_acknowledge: Callable[[Sequence[Received]], None] = lambda messages: None

    def take(self, limit: int, wait_ms: int) -> list[Received]:
        self.interceptor.before("queue.take")
        self.topics.now_ms = self.time.now_ms()
        return super().take(limit, wait_ms)

    def _send(self, message: Received) -> Resent:
        self.interceptor.before("queue.publish")
        sent = super()._send(message)
        self.interceptor.after("queue.publish")
        return sent

    def acknowledge(self, messages: Sequence[Received]) -> None:
        self.interceptor.before("queue.acknowledge")
        self.on_acknowledge(messages)
        super().acknowledge(messages)
        self.interceptor.after("queue.acknowledge")
