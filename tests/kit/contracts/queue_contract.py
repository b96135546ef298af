"""What every DeletionQueue, DeadLetterQueue and QueueReader does: tests for the fakes and for the real adapters."""

import pytest

from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, SUBSCRIPTION
from pulsar_lifecycle.formats.deletion_message import encode_deletion_message
from pulsar_lifecycle.formats.retry_letter import WAITING_FOR, WAITING_RUN, WAITING_SINCE, due_at
from pulsar_lifecycle.io.pulsar.queue import NOT_TEXT
from pulsar_lifecycle.model import Position, Topic
from tests.kit.builders import intents


class DeletionQueueContract:
    """What the real adapter and the fake have in common.

    Needs the fixtures ``open_queue`` and ``open_letters`` (functions; every queue they return is another session on the
    same, initially empty topics), ``reader`` and ``publish`` (a function that puts bytes and properties on the main
    topic, or on another, as anyone may).
    """

    def test_what_is_sent_is_received_once_and_acknowledged(self, open_queue):
        queue = open_queue()
        infos = intents(30)
        sent = queue.send(infos, 0)
        assert [one.info for one in sent] == infos
        assert {one.error for one in sent} == {None}
        assert len({one.message_id for one in sent}) == len(infos)
        assert queue.backlog() == 30
        first = queue.receive(20, 60_000)
        second = queue.receive(10, 60_000)
        assert len(first) == 20
        assert sorted(one.info.ledger_id for one in first + second) == list(range(30))
        assert {one.problem for one in first + second} == {""}
        assert {one.message_id for one in first + second} == {one.message_id for one in sent}
        assert queue.receive(1, 100) == []
        queue.acknowledge(first + second)
        queue.close()
        assert open_queue().backlog() == 0

    def test_acknowledgements_are_sent_before_the_queue_is_closed(self, open_queue):
        open_queue().send(intents(30), 0)
        queue = open_queue()
        received = queue.receive(30, 60_000)
        queue.acknowledge(received[::2])
        queue.close()
        other = open_queue()
        assert other.backlog() == 15
        again = other.receive(15, 60_000)
        assert {one.message_id for one in again} == {one.message_id for one in received[1::2]}
        assert other.receive(1, 100) == []

    def test_nothing_is_sent_and_acknowledged(self, open_queue):
        queue = open_queue()
        assert queue.send([], 0) == []
        queue.acknowledge([])
        assert queue.backlog() == 0

    def test_what_is_not_acknowledged_comes_again_after_close(self, open_queue):
        sender, first = open_queue(), open_queue()
        sender.send(intents(3), 0)
        received = first.receive(3, 60_000)
        first.acknowledge(received[:1])
        first.release(received[1:2])
        assert first.receive(1, 100) == []
        first.close()
        again = open_queue().receive(2, 60_000)
        assert {one.info for one in again} == {one.info for one in received[1:]}

    def test_two_sessions_share_the_messages(self, open_queue):
        one, other = open_queue(), open_queue()
        one.receive(1, 100)
        other.receive(1, 100)
        one.send(intents(40), 0)
        received = [*one.receive(40, 10_000), *other.receive(40, 10_000)]
        assert sorted(message.info.ledger_id for message in received) == list(range(40))

    def test_a_delayed_message_waits(self, open_queue):
        queue = open_queue()
        queue.receive(1, 100)  # subscribes, which may take a while
        queue.send(intents(1), 4_000)
        assert queue.backlog() == 1
        assert queue.receive(1, 100) == []
        assert len(queue.receive(1, 60_000)) == 1

    @pytest.mark.parametrize("raw", [b"", b"not json", b"\xff\xfe", b'{"ledgerId": 1}'])
    def test_what_is_no_intent_is_received_with_its_problem_and_bytes(self, open_queue, publish, raw):
        queue = open_queue()
        publish(raw, {"from": "someone"})
        (received,) = queue.receive(1, 60_000)
        assert received.info is None
        assert "PendingDeleteLedgerInfo" in received.problem
        assert received.raw == raw
        assert received.properties == {"from": "someone"}
        queue.acknowledge([received])
        queue.close()
        assert open_queue().backlog() == 0

    @pytest.mark.parametrize("topic", [DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC], ids=["main", "retry", "dlq"])
    def test_a_property_that_is_no_text_holds_nothing_up(self, open_queue, open_letters, reader, publish, topic):
        open_queue().send([], 0)
        publish(encode_deletion_message(intents(1)[0]), {"mine": b"\xff"}, topic=topic)
        publish(encode_deletion_message(intents(1)[0]), {"mine": "text"}, topic=topic)
        seen = [one for part in reader.partitions(topic) for one in reader.waiting(part, None, 10).messages]
        queue = open_letters() if topic == DLQ_TOPIC else open_queue()
        received = queue.take(2, 60_000) if topic == DLQ_TOPIC else queue.receive(2, 60_000)
        for messages in (seen, received):
            odd, good = sorted(messages, key=lambda one: len(one.properties))
            assert (odd.info, odd.properties, odd.problem) == (None, {}, NOT_TEXT)
            assert (good.info, good.properties, good.problem) == (intents(1)[0], {"mine": "text"}, "")
        queue.acknowledge(received)
        queue.close()
        assert (open_letters() if topic == DLQ_TOPIC else open_queue()).backlog() == 0

    def test_what_is_reconsumed_comes_again_later_and_says_how_often(self, open_queue, reader):
        queue = open_queue()
        queue.send(intents(2), 0)
        received = queue.receive(2, 60_000)
        first, second = queue.reconsume_later(received, 4_000, 3)
        assert [(one.message, one.times, one.dead, one.error) for one in (first, second)] == [
            (message, 1, False, None) for message in received
        ]
        queue.acknowledge(received)
        assert queue.receive(1, 100) == []
        again = queue.receive(2, 60_000)
        assert {one.info for one in again} == set(intents(2))
        for one in again:
            assert Topic.parse(one.topic).partitioned_parent == RETRY_TOPIC
            assert one.properties["RECONSUMETIMES"] == "1"
            assert one.properties["DELAY_TIME"] == "4000"
            assert one.properties["REAL_TOPIC"] == str(DELETION_TOPIC)
            assert one.properties["REAL_SUBSCRIPTION"] == SUBSCRIPTION
        queue.acknowledge(again)
        queue.close()
        assert open_queue().backlog() == 0

    @pytest.mark.parametrize("count", [None, "0", "3", "10", "many"])
    def test_what_is_sent_back_comes_again_later_and_is_not_counted(self, open_queue, open_letters, publish, count):
        queue = open_queue()
        publish(encode_deletion_message(intents(1)[0]), {"mine": "kept"} | ({"RECONSUMETIMES": count} if count else {}))
        (message,) = queue.receive(1, 60_000)
        notes = {WAITING_SINCE: str(message.publish_time), WAITING_FOR: "no-scan", WAITING_RUN: "run"}
        (sent,) = queue.send_back([message], [notes], 4_000)
        assert (sent.message, sent.dead, sent.error) == (message, False, None)
        queue.acknowledge([message])
        assert queue.receive(1, 100) == []
        (again,) = queue.receive(1, 60_000)
        assert Topic.parse(again.topic).partitioned_parent == RETRY_TOPIC
        assert (again.info, again.properties.get("RECONSUMETIMES")) == (message.info, count)
        assert again.properties["DELAY_TIME"] == "4000"
        assert again.properties["REAL_TOPIC"] == str(DELETION_TOPIC)
        assert {"mine": "kept", **notes}.items() <= again.properties.items()
        (postponed,) = queue.reconsume_later([again], 10, 20)
        assert postponed.times == (20 if count == "many" else int(count or 0)) + 1
        queue.acknowledge([again])
        if not postponed.dead:
            (retried,) = queue.receive(1, 60_000)
            assert {WAITING_SINCE} == {WAITING_SINCE, WAITING_FOR, WAITING_RUN} & retried.properties.keys()
            queue.acknowledge([retried])
        queue.close()
        assert open_queue().backlog() == 0

    def test_after_the_last_retry_it_is_a_dead_letter_and_nothing_else(self, open_queue, open_letters):
        queue = open_queue()
        queue.send(intents(1), 0)
        origins = set()
        for times in (1, 2, 3):
            (message,) = queue.receive(1, 60_000)
            (postponed,) = queue.reconsume_later([message], 10, 2)
            assert (postponed.times, postponed.dead, postponed.error) == (times, times == 3, None)
            queue.acknowledge([message])
            origins.add(message.properties.get("ORIGIN_MESSAGE_ID"))
        assert len(origins - {None}) == 1
        assert queue.receive(1, 2_000) == []
        queue.close()
        letters = open_letters()
        assert (open_queue().backlog(), letters.backlog()) == (0, 1)
        (letter,) = letters.take(1, 60_000)
        assert letter.info == intents(1)[0]
        assert letter.properties["RECONSUMETIMES"] == "3"
        letters.acknowledge([letter])
        letters.close()
        assert open_letters().backlog() == 0

    @pytest.mark.parametrize(
        ("count", "max_times", "times", "dead"),
        [("-5", 10, 11, True), ("9" * 40, 10, 11, True), ("12", 10, 13, True), ("9", 10, 10, False), ("", 0, 1, True)],
    )
    def test_whatever_a_message_says_of_its_retries_it_never_loops(
        self, open_queue, publish, count, max_times, times, dead
    ):
        queue = open_queue()
        publish(b"x", {"RECONSUMETIMES": count})
        (message,) = queue.receive(1, 60_000)
        (postponed,) = queue.reconsume_later([message], 10, max_times)
        assert (postponed.times, postponed.dead, postponed.error) == (times, dead, None)
        queue.acknowledge([message])

    def test_a_dead_letter_is_sent_again_as_it_was_sent_first(self, open_queue, open_letters, publish):
        queue = open_queue()
        publish(encode_deletion_message(intents(1)[0]), {"mine": "kept"})
        (message,) = queue.receive(1, 60_000)
        queue.reconsume_later([message], 10, 0)
        queue.acknowledge([message])
        letters = open_letters()
        (letter,) = letters.take(1, 60_000)
        assert len(letter.properties) == 7
        (resent,) = letters.send_again([letter])
        assert (resent.message, resent.error, bool(resent.message_id)) == (letter, None, True)
        letters.acknowledge([letter])
        (again,) = queue.receive(1, 60_000)
        assert (again.raw, again.properties) == (message.raw, {"mine": "kept"})
        assert Topic.parse(again.topic).partitioned_parent == DELETION_TOPIC
        queue.acknowledge([again])

    def test_a_dead_letter_that_is_not_acknowledged_comes_again(self, open_letters, publish):
        publish(b"x", {}, topic=DLQ_TOPIC)
        letters = open_letters()
        (letter,) = letters.take(1, 60_000)
        assert letters.take(1, 100) == []
        letters.close()
        (again,) = open_letters().take(1, 60_000)
        assert again.message_id == letter.message_id

    @pytest.mark.parametrize("topic", [DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC], ids=["main", "retry", "dlq"])
    def test_looking_takes_nothing_and_goes_on_where_it_was(self, open_queue, reader, publish, topic):
        open_queue().send([], 0)
        for number in range(5):
            publish(b"%d" % number, {"n": str(number)}, topic=topic)
        parts = reader.partitions(topic)
        assert sum(reader.backlog(part) for part in parts) == 5
        seen = []
        for part in parts:
            whole = reader.waiting(part, None, 100)
            assert whole.end
            assert reader.waiting(part, whole.upto, 100).messages == ()
            paged = []
            page = reader.waiting(part, None, 2)
            paged += page.messages
            while not page.end:
                page = reader.waiting(part, page.upto, 2)
                paged += page.messages
            assert tuple(paged) == whole.messages
            assert reader.waiting(part, Position(10**12, 0), 100) == whole
            seen += whole.messages
        assert sorted(one.raw for one in seen) == [b"%d" % number for number in range(5)]
        assert all(one.properties == {"n": one.raw.decode()} for one in seen)
        assert sum(reader.backlog(part) for part in parts) == 5

    def test_looking_sees_delayed_messages_and_none_that_is_done(self, open_queue, reader):
        queue = open_queue()
        queue.send(intents(3), 0)
        received = queue.receive(3, 60_000)
        queue.acknowledge([one for one in received if one.info.ledger_id == 1])
        queue.close()
        open_queue().send(intents(1, first=9), 4_000)
        seen = [one for part in reader.partitions(DELETION_TOPIC) for one in reader.waiting(part, None, 100).messages]
        assert sorted(one.info.ledger_id for one in seen) == [0, 2, 9]
        (delayed,) = [one for one in seen if one.info.ledger_id == 9]
        published = delayed.publish_time
        assert due_at(delayed.properties, published, published) == published + 4_000
        rest = open_queue()
        rest.acknowledge(rest.receive(3, 60_000))
        rest.close()
        assert open_queue().backlog() == 0
