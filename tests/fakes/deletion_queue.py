"""The deletion queue in memory; passes the contract of tests/unit/io/test_queue.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError
from pulsar_lifecycle.formats.deletion_message import (
    PendingDeleteLedgerInfo,
    decode_deletion_message,
    encode_deletion_message,
)
from pulsar_lifecycle.formats.retry_letter import RECONSUMETIMES, reconsume_times
from pulsar_lifecycle.ports import Postponed, Received, Sent

TOPIC = "persistent://pulsar/system/__ledger_deletion-partition-0"


@dataclass
class FakeDeletionTopics:
    """What outlives a queue object: the messages not yet acknowledged, and the time, which only receiving moves.

    ``waiting``: by number, when it was published, when it may be delivered, its bytes and properties.
    """

    now_ms: int = 0
    waiting: dict[int, tuple[int, int, bytes, dict[str, str]]] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    dead: list[tuple[bytes, dict[str, str]]] = field(default_factory=list)
    last: int = 0

    def publish(self, raw: bytes, properties: dict[str, str] | None = None, deliver_after_ms: int = 0) -> bytes:
        self.last += 1
        self.waiting[self.last] = (self.now_ms, self.now_ms + deliver_after_ms, raw, properties or {})
        return self.last.to_bytes(8, "big")


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
        raw = encode_deletion_message(info)
        return Sent(info, self.topics.publish(raw, deliver_after_ms=deliver_after_ms), "")

    def receive(self, limit: int, wait_ms: int) -> list[Received]:
        if self.failure:
            raise self.failure
        received = self._take(limit)
        if len(received) < limit:
            self.topics.now_ms += wait_ms
            received += self._take(limit - len(received))
        return received

    def _take(self, limit: int) -> list[Received]:
        topics = self.topics
        ready = [n for n, (_, at, _, _) in topics.waiting.items() if at <= topics.now_ms and n not in topics.held][
            :limit
        ]
        topics.held.update(ready)
        self._mine.update(ready)
        return [self._received(n) for n in ready]

    def _received(self, number: int) -> Received:
        published, _, raw, properties = self.topics.waiting[number]
        info, problem = None, ""
        try:
            info = decode_deletion_message(raw)
        except CorruptFormat as error:
            problem = str(error)
        message_id = number.to_bytes(8, "big")
        return Received(message_id, TOPIC, raw, properties, published, info, problem, handle=number)

    def acknowledge(self, messages: Sequence[Received]) -> None:
        if self.failure:
            raise self.failure
        for message in messages:
            self.topics.waiting.pop(message.handle, None)

    def reconsume_later(self, messages: Sequence[Received], delay_ms: int, max_times: int) -> list[Postponed]:
        return [self._reconsume(message, delay_ms, max_times) for message in messages]

    def _reconsume(self, message: Received, delay_ms: int, max_times: int) -> Postponed:
        times = min(reconsume_times(message.properties), max_times) + 1
        if message.info and message.info.ledger_id in self.refused:
            return Postponed(message, times, False, "refused by the test")
        properties = {**message.properties, RECONSUMETIMES: str(times)}
        if times > max_times:
            self.topics.dead.append((message.raw, properties))
            return Postponed(message, times, True, "")
        self.topics.publish(message.raw, properties, delay_ms)
        return Postponed(message, times, False, "")

    def release(self, messages: Sequence[Received]) -> None:
        self.released.extend(messages)

    def close(self) -> None:
        self.topics.held -= self._mine
        self._mine.clear()
