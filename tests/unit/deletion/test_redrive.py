"""Redrive: which dead letters go back, in which order of steps, and what a crash or a stop leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pulsar_lifecycle.deletion.redrive import BATCH, UNKNOWN, LetterFilter, Redriven, chosen, letters_of, look, redrive
from pulsar_lifecycle.deletion_queue.queue_topics import DLQ_TOPIC
from pulsar_lifecycle.errors import LeaseLost, Paused, Unavailable, UsageError
from pulsar_lifecycle.formats.deletion_message import (
    LedgerType,
    MessageOffloadContext,
    PendingDeleteLedgerInfo,
    encode_deletion_message,
)
from pulsar_lifecycle.formats.retry_letter import retry_properties
from pulsar_lifecycle.journal.queries import DeadLetterReason
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow, Received, Resent
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action
from tests.kit.builders import BILLS, ORDERS, intent
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.deletion_queue import FakeDeadLetterQueue, FakeDeletionQueue, FakeDeletionTopics, FakeQueueReader
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.metadata_store import FakeZooKeeper


def offloaded(ledger_id: int) -> PendingDeleteLedgerInfo:
    context = MessageOffloadContext(lsb=1, msb=2, driver_name="aws-s3")
    return replace(intent(ledger_id), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context)


class Scene:
    def __init__(self) -> None:
        self.topics = FakeDeletionTopics()
        self.clock = FakeClock()
        self.store = FakeZooKeeper(self.clock).session()
        self.journal = FakeJournal()
        self.letters = FakeDeadLetterQueue(self.topics)

    def bury(self, *infos: PendingDeleteLedgerInfo) -> None:
        for info in infos:
            properties = retry_properties(
                {"mine": "kept"},
                topic=Topic.parse("persistent://pulsar/system/__ledger_deletion-partition-1"),
                subscription="ledger-deletion",
                message_id="1:2:3",
                times=11,
                delay_ms=600_000,
            )
            self.topics.publish(encode_deletion_message(info), properties, topic=DLQ_TOPIC)

    def redrive(self, wanted: LetterFilter | None = None, max_messages: int = 1_000, reasons=None) -> Redriven:
        lease = control.take_lease(self.store, "redrive", self.clock, 0)
        try:
            return redrive(
                "run-1",
                "east",
                wanted or LetterFilter(),
                max_messages,
                reasons or {},
                store=self.store,
                lease=lease,
                letters=self.letters,
                journal=self.journal,
                clock=self.clock,
                wait_ms=0,
                progress=lambda _: None,
                sample=50,
            )
        finally:
            control.release_lease(self.store, lease)
            self.letters.close()

    @property
    def sent(self) -> list[int]:
        return [one.info.ledger_id for one in FakeDeletionQueue(self.topics).receive(10_000, 0) if one.info]

    @property
    def buried(self) -> list[int]:
        return [info.ledger_id for n in self.topics.dead_letters if (info := self.topics.received(n).info)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_dead_letters_go_back_as_they_were_sent_first(scene: Scene) -> None:
    scene.bury(intent(7))
    done = scene.redrive()
    assert (done.looked, done.sent, done.failed, done.unparseable) == (1, 1, 0, 0)
    (received,) = FakeDeletionQueue(scene.topics).receive(1, 0)
    assert received.info == intent(7)
    assert received.properties == {"mine": "kept"}
    assert scene.topics.dead_letters == {}
    (row,) = scene.journal.rows
    assert (row.phase, row.outcome, row.ledger_id, row.topic, row.run_id) == ("redrive", "sent", 7, ORDERS, "run-1")
    assert json.loads(row.detail)["reconsume_times"] == 11


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        (LetterFilter(), [1, 2, 3, 4]),
        (LetterFilter(ledger_ids=frozenset({2, 4, 99})), [2, 4]),
        (LetterFilter(topics=frozenset({BILLS})), [3]),
        (LetterFilter(topics=frozenset({"persistent://acme/orders/placed"})), [1, 2, 4]),
        (LetterFilter(topics=frozenset({ORDERS})), [1, 2, 4]),
        (LetterFilter(topics=frozenset({"persistent://acme/orders/place"})), []),
        (LetterFilter(namespaces=frozenset({"acme/bills"})), [3]),
        (LetterFilter(namespaces=frozenset({"acme"})), []),
        (LetterFilter(code=Code.OBJECTS_UNREAD), [4]),
        (LetterFilter(code=Code.CHANGED_MEANWHILE), [1]),
        (LetterFilter(ledger_ids=frozenset({1, 3}), namespaces=frozenset({"acme/orders"})), [1]),
    ],
)
def test_the_filter_says_which(scene: Scene, wanted: LetterFilter, sent: list[int]) -> None:
    scene.bury(intent(1), intent(2), intent(3, BILLS), offloaded(4))
    reasons = {
        (1, Action.DELETE_LEDGER): DeadLetterReason(Code.CHANGED_MEANWHILE, "changed; 10 retries did not help"),
        (4, Action.DELETE_OFFLOADED): DeadLetterReason(Code.OBJECTS_UNREAD, ""),
        (4, Action.DELETE_LEDGER): DeadLetterReason(Code.CHANGED_MEANWHILE, ""),
    }
    assert scene.redrive(wanted, reasons=reasons).sent == len(sent)
    assert scene.sent == sent
    assert scene.buried == [n for n in (1, 2, 3, 4) if n not in sent]


def test_a_code_that_no_dead_letter_has_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="'credentials' is not the code of a dead letter"):
        LetterFilter(code="credentials")


def test_the_cap_holds_over_batches(scene: Scene) -> None:
    scene.bury(*(intent(n) for n in range(2 * BATCH)))
    assert scene.redrive(max_messages=BATCH + 3).sent == BATCH + 3
    assert len(scene.buried) == BATCH - 3


def test_what_the_broker_keeps_back_is_told(scene: Scene) -> None:
    scene.bury(*(intent(n) for n in range(BATCH + 3)))
    unwanted = LetterFilter(ledger_ids=frozenset({BATCH + 1}))
    assert scene.redrive(unwanted).withheld == 0
    scene.topics.held.update(list(scene.topics.dead_letters)[-2:])
    done = scene.redrive(unwanted)
    assert (done.sent, done.looked, done.withheld) == (0, BATCH, 2)


def test_a_missing_subscription_is_made_before_the_backlog_is_read(scene: Scene) -> None:
    scene.bury(intent(1))
    scene.topics.subscribed.discard(DLQ_TOPIC)
    assert scene.redrive().sent == 1
    scene.topics.subscribed.discard(DLQ_TOPIC)
    assert scene.redrive().withheld == 0


def test_what_cannot_be_parsed_is_shown_and_stays(scene: Scene) -> None:
    scene.topics.publish(b"not json", topic=DLQ_TOPIC)
    scene.bury(intent(1))
    done = scene.redrive()
    assert (done.looked, done.sent, done.unparseable) == (2, 1, 1)
    seen = look(FakeQueueReader(scene.topics), DLQ_TOPIC, 10)
    (letter,) = letters_of(seen.messages, {})
    assert letter.why.code == Code.UNPARSEABLE
    assert (letter.unparseable, seen.count, seen.unsubscribed) == (True, 1, ())


def test_a_failed_send_stays_and_ends_the_run(scene: Scene) -> None:
    scene.bury(*(intent(n) for n in range(BATCH + 1)))
    scene.letters.refused = {1}
    done = scene.redrive()
    assert (done.sent, done.failed, done.first_error) == (BATCH - 1, 1, "refused by the test")
    assert scene.buried == [1, BATCH]
    assert [row.outcome for row in scene.journal.rows].count("send-failed") == 1


def test_a_crash_before_the_journal_repeats_the_message(scene: Scene) -> None:
    class Full(FakeJournal):
        def record(self, rows: Sequence[JournalRow]) -> str:
            raise Unavailable("the disk is full")

    scene.bury(intent(1))
    scene.journal = Full()
    with pytest.raises(Unavailable):
        scene.redrive()
    assert scene.buried == [1]
    scene.journal = FakeJournal()
    assert scene.redrive().sent == 1
    assert scene.sent == [1, 1]
    assert scene.buried == []


def test_a_crash_before_the_acknowledgement_repeats_the_message(scene: Scene) -> None:
    scene.bury(intent(1))
    scene.letters.failure = Unavailable("killed")
    with pytest.raises(Unavailable):
        scene.redrive()
    assert (scene.sent, scene.buried) == ([1], [1])
    assert len(scene.journal.rows) == 1


def test_a_pause_stops_it_between_batches(scene: Scene) -> None:
    class Pausing(FakeDeadLetterQueue):
        def send_again(self, messages: Sequence[Received]) -> list[Resent]:
            control.pause(scene.store, "enough")
            return super().send_again(messages)

    scene.bury(*(intent(n) for n in range(BATCH + 1)))
    scene.letters = Pausing(scene.topics)
    with pytest.raises(Paused):
        scene.redrive()
    assert (len(scene.journal.rows), scene.buried) == (BATCH, [BATCH])


def test_a_lost_lease_stops_it_between_batches(scene: Scene) -> None:
    class Robbing(FakeDeadLetterQueue):
        def send_again(self, messages: Sequence[Received]) -> list[Resent]:
            scene.store.write(control.LEASE, b"another run", -1)
            return super().send_again(messages)

    scene.bury(*(intent(n) for n in range(BATCH + 1)))
    scene.letters = Robbing(scene.topics)
    with pytest.raises(LeaseLost):
        scene.redrive()
    assert scene.buried == [BATCH]


def test_a_dry_run_chooses_what_the_run_would_send(scene: Scene) -> None:
    scene.bury(intent(1), intent(2, BILLS), intent(3, BILLS), intent(4, BILLS))
    wanted = LetterFilter(namespaces=frozenset({"acme/bills"}))
    some = chosen(letters_of(look(FakeQueueReader(scene.topics), DLQ_TOPIC, 10).messages, {}), wanted, 2)
    assert [letter.message.info for letter in some] == [intent(2, BILLS), intent(3, BILLS)]
    assert {letter.why for letter in some} == {UNKNOWN}
    assert len(scene.buried) == 4
    scene.redrive(wanted, max_messages=2)
    assert scene.sent == [2, 3]


def test_a_topic_without_our_subscription_is_named(scene: Scene) -> None:
    scene.bury(intent(1))
    scene.topics.subscribed.discard(DLQ_TOPIC)
    seen = look(FakeQueueReader(scene.topics), DLQ_TOPIC, 10)
    assert (seen.count, seen.messages, seen.unsubscribed) == (0, (), (DLQ_TOPIC,))
