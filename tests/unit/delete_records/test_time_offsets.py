"""Where a time falls in a topic, what lies below, and what is said where publish times cannot be trusted."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.delete_records.times import time_offsets
from pulsar_lifecycle.delete_records.times.publish_times import Counts, Published
from pulsar_lifecycle.delete_records.times.readable_ledgers import end_of, readable_ledgers
from pulsar_lifecycle.delete_records.times.time_offsets import OffsetProblem, Question, count_between, resolve
from pulsar_lifecycle.errors import CorruptFormat, NotFound, RefusedBy, StoreError, Unavailable
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.model import MessagePosition
from pulsar_lifecycle.values.codes import Code
from tests.kit.records.topic_times import (
    ROOT,
    TOPIC,
    TopicTimes,
    batch,
    commit,
    in_transaction,
    marker,
    part,
    sent,
)

at = MessagePosition.parse


@pytest.fixture
def topic() -> TopicTimes:
    """Times 10, 20 ... 90 in three ledgers: closed, in the bucket only, open."""
    made = TopicTimes()
    made.ledger(1, [sent(10), batch(20, 3), sent(30)])
    made.offloaded(4, [sent(40), sent(50), batch(60, 2)])
    made.ledger(9, [sent(70), sent(80), sent(90)], LedgerState.OPEN)
    return made


@pytest.mark.parametrize(
    ("time", "position", "messages", "before", "after"),
    [
        (0, "1:0", 0, None, 10),
        (10, "1:0", 0, None, 10),
        (11, "1:1", 1, 10, 20),
        (20, "1:1", 1, 10, 20),
        (21, "1:2", 4, 20, 30),
        (31, "4:0", 5, 30, 40),
        (60, "4:2", 7, 50, 60),
        (61, "9:0", 9, 60, 70),
        (90, "9:2", 11, 80, 90),
    ],
)
def test_a_time_is_the_first_message_published_at_or_after_it(topic, time, position, messages, before, after):
    found = topic.at_time(time)
    assert (found.position, found.goes.messages, found.problem) == (at(position), messages, None)
    assert (found.before and found.before.at, found.after) == (before, Published(at(position), after))
    assert (found.disorder, found.at_end) == (None, False)


def test_a_time_after_all_messages_is_the_end(topic):
    found = topic.at_time(91)
    assert (found.position, found.at_end, found.after) == (at("9:3"), True, None)
    entries = [sent(at) for at in (10, 30, 40, 50, 70, 80, 90)] + [batch(20, 3), batch(60, 2)]
    assert found.goes == Counts(9, 12, sum(map(len, entries)))
    assert end_of(topic.readable) == at("9:3")


def test_what_is_below_the_start_counts_for_nothing(topic):
    found = topic.at_time(61, start="1:1:2")
    assert (found.position, found.goes.messages, found.goes.entries) == (at("9:0"), 6, 5)
    assert topic.at_time(15, start="4:1").position == at("4:1")
    assert topic.at_time(20, start="1:1:2").position == at("1:1:2")
    assert topic.at_time(20, start="1:1:2").goes == Counts()


def test_times_that_go_back_are_named_with_the_messages_at_risk():
    topic = TopicTimes()
    topic.ledger(1, [sent(10), batch(95, 4), sent(20), sent(30), sent(40), sent(50), sent(60)])
    found = topic.at_time(50)
    assert (found.position, found.goes) == (at("1:1"), Counts(1, 1, len(sent(10))))
    assert (found.before, found.after) == (Published(at("1:0"), 10), Published(at("1:1"), 95))
    disorder = found.disorder
    assert disorder is not None
    assert (disorder.searched, disorder.at_risk.messages) == (at("1:5"), 4)
    assert disorder.first_at_risk == Published(at("1:1"), 95)


def test_times_that_go_back_below_the_time_put_nothing_at_risk():
    topic = TopicTimes()
    topic.ledger(1, [sent(10), sent(30), sent(20), sent(40), sent(50)])
    found = topic.at_time(40)
    assert found.position == at("1:3")
    assert found.disorder is not None
    assert (found.disorder.searched, found.disorder.at_risk) == (at("1:3"), Counts())
    assert topic.at_time(25).position == at("1:1")


def test_what_brokers_write_for_themselves_is_no_message_and_has_no_say():
    topic = TopicTimes()
    topic.ledger(1, [sent(10), marker(90), sent(20), marker(1), sent(30), sent(40)])
    found = topic.at_time(30)
    assert (found.position, found.goes.messages, found.goes.entries) == (at("1:4"), 2, 4)
    assert found.disorder is None


def test_no_publish_time_is_said_of_what_brokers_write_for_themselves():
    topic = TopicTimes()
    topic.ledger(1, [sent(10), marker(20), marker(21), sent(30)])
    found = topic.at_time(15)
    assert (found.position, found.goes.messages, found.before, found.after) == (
        at("1:1"),
        1,
        Published(at("1:0"), 10),
        None,
    )
    assert topic.at_time(25).after == Published(at("1:3"), 30)


def test_a_position_in_a_chunked_message_moves_back_to_its_first_part():
    topic = TopicTimes()
    topic.ledger(1, [part(5, 0, 2, "v"), part(10, 0, 3), sent(20), part(30, 1, 3), part(40, 2, 3), sent(50)])
    found = topic.at_time(30)
    assert (found.position, found.goes.messages) == (at("1:1"), 0)
    assert found.unfinished_chunks == ("v",)
    after_it = topic.at_time(50)
    assert (after_it.position, after_it.goes.messages) == (at("1:5"), 2)
    assert after_it.unfinished_chunks == ("v",)


def test_a_chunked_message_stays_whole_although_another_producer_is_between_its_parts():
    topic = TopicTimes()
    topic.ledger(1, [sent(5), part(10, 0, 2, "a"), part(15, 0, 2, "b"), sent(20)])
    topic.ledger(2, [sent(30), part(35, 1, 2, "b"), sent(40), part(45, 1, 2, "a")])
    assert topic.at_time(40).position == at("1:1")  # `b` is whole below, and goes on after the first part of `a`
    assert topic.at_time(30).position == at("1:1")
    assert topic.at("2:0").cut_message == at("1:1")
    assert topic.at("1:2").cut_message == at("1:1")
    assert topic.at("1:1").cut_message is None


def test_a_chunked_message_that_its_producer_abandoned_holds_up_nobody():
    topic = TopicTimes()
    topic.ledger(1, [part(5, 0, 2, "gone"), sent(10), part(15, 0, 3, "comes"), part(16, 1, 3, "comes"), sent(20)])
    assert topic.at("1:2").cut_message is None
    assert topic.at("1:3").cut_message == at("1:2")
    assert topic.at("1:4").cut_message is None  # none of its parts is above yet


def test_a_chunked_message_of_a_transaction_stays_whole_too():
    topic = TopicTimes()
    chunk = {"num_chunks_from_msg": 2, "uuid": "u"}
    topic.ledger(1, [sent(10), in_transaction(20, 1, chunk_id=0, **chunk)])
    topic.ledger(2, [in_transaction(30, 1, chunk_id=1, **chunk), commit(40, 1)])
    found = topic.at("2:0")
    assert (found.cut_message, found.unfinished_transactions) == (at("1:1"), 0)
    assert topic.at("2:1").cut_message is None
    assert topic.at_time(30).position == at("1:1")


def test_a_uuid_that_a_producer_gave_again_is_of_another_message(monkeypatch):
    monkeypatch.setattr(time_offsets, "TASK_BYTES", 1)
    topic = TopicTimes()
    topic.ledger(1, [sent(5), part(10, 0, 2), part(20, 1, 2), sent(25), part(30, 0, 2)])
    assert topic.at("1:2").cut_message == at("1:1")
    assert topic.at("1:3").cut_message is None


def test_transactions_are_finished_wherever_their_end_is():
    topic = TopicTimes()
    topic.ledger(1, [in_transaction(10, 1), in_transaction(20, 2), in_transaction(25, 3), commit(26, 3)])
    topic.ledger(2, [sent(30), commit(40, 1), in_transaction(50, 4)], LedgerState.OPEN)
    found = topic.at_time(30)
    assert (found.position, found.goes.messages, found.unfinished_transactions) == (at("2:0"), 3, 1)
    assert topic.at_time(20).unfinished_transactions == 0


def test_the_latest_delivery_of_what_goes_is_known():
    topic = TopicTimes()
    topic.ledger(1, [sent(10, deliver_at_time=900), sent(20, deliver_at_time=300), sent(30, deliver_at_time=999)])
    assert topic.at_time(30).latest_deliver_at == 900
    assert topic.at_time(10).latest_deliver_at is None


@pytest.mark.parametrize(
    ("position", "messages"), [("0:7", 0), ("1:0", 0), ("1:1:2", 3), ("1:3", 5), ("4:0", 5), ("4:2:1", 8), ("9:3", 12)]
)
def test_a_position_is_answered_with_what_is_below(topic, position, messages):
    found = topic.at(position)
    assert (found.position, found.goes.messages, found.problem) == (at(position), messages, None)
    assert found.at_end == (position == "9:3")


@pytest.mark.parametrize(
    ("position", "problem"),
    [
        ("9:4", OffsetProblem.BEYOND_END),
        ("10:0", OffsetProblem.BEYOND_END),
        ("1:4", OffsetProblem.BEYOND_END),
        ("1:3:1", OffsetProblem.BEYOND_END),
        ("3:0", OffsetProblem.NO_SUCH_LEDGER),
        ("1:1:3", OffsetProblem.NO_SUCH_BATCH_INDEX),
        ("1:2:1", OffsetProblem.NO_SUCH_BATCH_INDEX),
    ],
)
def test_a_position_that_is_not_there_is_refused_by_code(topic, position, problem):
    found = topic.at(position)
    assert (found.position, found.problem) == (None, problem)
    assert found.detail


def test_an_entry_that_is_no_message_is_named_and_others_are_answered(topic):
    broken = TopicTimes()
    broken.ledger(1, [sent(10), b"\x00\x00\x00\xffnot a message", sent(30)])
    found = broken.at_time(30)
    assert (found.problem, "entry 1:1" in found.detail) == (OffsetProblem.NOT_A_MESSAGE, True)
    assert broken.at("1:1").problem is OffsetProblem.NOT_A_MESSAGE


@pytest.mark.parametrize("error", [Unavailable("bookie b1: timed out"), StoreError("none has it")])
def test_a_partition_that_cannot_be_read_does_not_hold_up_the_others(topic, error):
    other = topic.readable
    topic.reader.failures[1] = error
    lost, fine = resolve(
        topic.cluster,
        [Question(TOPIC, other, at("0:0"), timestamp=50), Question(TOPIC, other, at("4:0"), timestamp=50)],
    )
    assert (lost.position, lost.problem) == (None, OffsetProblem.UNREADABLE)
    assert lost.detail.startswith(str(error))
    assert ("ask for a position" in lost.detail) == isinstance(error, StoreError)
    assert (fine.position, fine.goes.messages) == (at("4:1"), 1)


@pytest.mark.parametrize("gone", [(1, 0), (1, 1), (1, 2), (9, 0)])
def test_an_entry_that_nobody_has_any_more_keeps_no_position(topic, gone):
    """But for an open ledger, where it may be on its way."""
    topic.reader.lost.add(gone)
    for position in ("1:1", "4:2", "9:1"):
        opened = gone[0] == 9 and position == "9:1"
        assert topic.at(position).problem is (OffsetProblem.UNREADABLE if opened else None)
    assert topic.at("4:2").goes.entries == (4 if gone[0] == 1 else 5)


def test_a_ledger_that_nobody_has_any_more_keeps_no_position_behind_it_and_none_inside_a_batch(topic):
    topic.reader.failures[1] = StoreError("none has it")
    assert topic.at("4:1").goes.entries == 1
    assert topic.at("1:2").position == at("1:2")
    assert topic.at("1:1:2").problem is OffsetProblem.UNREADABLE


def test_an_object_that_is_gone_is_unreadable(topic):
    topic.buckets.objects["tiered"].clear()
    assert topic.at_time(50).problem is OffsetProblem.UNREADABLE


def test_messages_between_two_positions(topic):
    assert count_between(
        topic.cluster,
        [
            (TOPIC, topic.readable, at("1:1"), at("4:2:1")),
            (TOPIC, topic.readable, at("4:2:1"), at("4:2:1")),
            (TOPIC, topic.readable, at("1:0"), at("77:0")),
        ],
    ) == [
        Counts(4, 7, sum(map(len, (batch(20, 3), sent(30), sent(40), sent(50), batch(60, 2))))),
        Counts(),
        OffsetProblem.BEYOND_END,
    ]


def test_nothing_asked_is_nothing_answered(topic):
    assert resolve(topic.cluster, []) == []


# ------------------------------------------------------------------------------------------------- where entries are


def test_a_ledger_is_read_from_the_bucket_only_where_bookkeeper_has_none(topic):
    assert [(one.ledger_id, one.last_entry_id, one.offloaded is not None) for one in topic.readable] == [
        (1, 2, False),
        (4, 2, True),
        (9, 2, False),
    ]


def test_an_index_object_says_how_long_a_ledger_is_that_its_topic_does_not(topic):
    topic.offloaded(12, [sent(100)] * 7, counted=False)
    assert topic.readable[-1].last_entry_id == 6
    assert topic.at("12:5").goes.messages == 17


def test_an_open_ledger_that_was_never_written_is_empty(topic):
    topic.ledger(12, [], LedgerState.OPEN)
    assert topic.readable[-1].last_entry_id == -1
    assert end_of(topic.readable) == at("12:0")
    assert topic.at_time(91).position == at("12:0")
    assert topic.at("12:0").goes.messages == 12


def test_a_topic_whose_ledger_is_nowhere_says_so(topic):
    listed = ManagedLedgerInfo((LedgerInfo(1), LedgerInfo(77)))
    lost, fine = readable_ledgers(topic.ports, ROOT, [listed, ManagedLedgerInfo(tuple(topic.listed))])
    assert isinstance(lost, NotFound)
    assert isinstance(fine, tuple)


def test_a_ledger_whose_z_node_is_damaged_or_whose_bookies_do_not_answer_says_so(topic):
    topic.reader.failures[9] = Unavailable("bookie b1: timed out")
    assert readable_ledgers(topic.ports, ROOT, [ManagedLedgerInfo((LedgerInfo(9),))]) == [topic.reader.failures[9]]
    topic.store.create("/ledgers/00/0000/L0077", b"\x00nonsense")
    (found,) = readable_ledgers(topic.ports, ROOT, [ManagedLedgerInfo((LedgerInfo(77),))])
    assert isinstance(found, CorruptFormat)


def test_an_offloaded_ledger_needs_an_object_store(topic):
    topic.ports.objects = None
    topic.offloaded(12, [sent(100)], counted=False)
    (found,) = readable_ledgers(topic.ports, ROOT, [ManagedLedgerInfo(tuple(topic.listed))])
    assert isinstance(found, RefusedBy)
    assert found.code is Code.NO_OBJECT_STORE


def test_a_topic_without_ledgers_ends_where_it_begins():
    assert end_of(()) == at("0:0")
    assert TopicTimes().at_time(5).position == at("0:0")
