import pytest

from pulsar_lifecycle.formats.retry_letter import (
    LONGEST_DELAY,
    NEVER_AGAIN,
    due_at,
    java_message_id,
    reconsume_times,
    retry_properties,
    told_times,
    waiting_properties,
    waiting_since,
    without_retry_properties,
)
from pulsar_lifecycle.model import Topic

PARTITION = Topic.parse("persistent://pulsar/system/__ledger_deletion-partition-3")


@pytest.mark.parametrize(
    ("text", "times"),
    [(None, 0), ("0", 0), ("7", 7), ("007", 7), ("999999999", 999_999_999)]
    + [(text, NEVER_AGAIN) for text in ("", "-1", "+1", "1.0", " 1", "٣", "1000000000", "9" * 5000)],
)
def test_how_often_a_message_was_retried(text, times):
    assert reconsume_times({} if text is None else {"RECONSUMETIMES": text}) == times


def test_a_count_that_no_client_writes_is_not_shown():
    assert told_times({}) == 0
    assert told_times({"RECONSUMETIMES": "12"}) == 12
    assert told_times({"RECONSUMETIMES": "many"}) is None


@pytest.mark.parametrize(
    ("text", "due"),
    [(None, 5), ("0", 5), ("600000", 600_005), ("soon", 5), ("-1", 5), ("999999999", LONGEST_DELAY + 5)],
)
def test_when_a_message_is_due(text, due):
    assert due_at({} if text is None else {"DELAY_TIME": text}, 5, 9) == due


def test_a_message_from_the_future_counts_as_published_now():
    assert due_at({"DELAY_TIME": "600000"}, 7_000, 5) == 600_005


@pytest.mark.parametrize(
    ("parts", "text"), [((3, 14, 2, -1), "3:14:2"), ((3, 14, -1, -1), "3:14:-1"), ((3, 14, 2, 0), "3:14:2:0")]
)
def test_message_ids_are_spelt_as_java_spells_them(parts, text):
    assert java_message_id(*parts) == text


def test_the_first_retry_says_where_it_was_read_and_the_next_ones_leave_that():
    first = retry_properties(
        {"mine": "kept"}, topic=PARTITION, subscription="s", message_id="1:2:3", times=1, delay_ms=10
    )
    assert first == {
        "mine": "kept",
        "REAL_TOPIC": "persistent://pulsar/system/__ledger_deletion",
        "REAL_SUBSCRIPTION": "s",
        "ORIGIN_MESSAGE_ID": "1:2:3",
        "ORIGIN_MESSAGE_IDY_TIME": "1:2:3",
        "RECONSUMETIMES": "1",
        "DELAY_TIME": "10",
    }
    retry = Topic.parse("persistent://pulsar/system/__ledger_deletion-RETRY-partition-0")
    second = retry_properties(first, topic=retry, subscription="other", message_id="4:5:6", times=2, delay_ms=20)
    assert second == {**first, "RECONSUMETIMES": "2", "DELAY_TIME": "20"}
    assert without_retry_properties(second) == {"mine": "kept"}


NOTES = {"LIFECYCLE_WAITING_SINCE": "7", "LIFECYCLE_WAITING_FOR": "no-scan", "LIFECYCLE_WAITING_RUN": "a run"}


def test_what_waits_keeps_its_count_and_a_retry_forgets_what_it_waited_for():
    where = {"topic": PARTITION, "subscription": "s", "message_id": "1:2:3"}
    first = waiting_properties({"mine": "kept"}, **where, delay_ms=10, notes=NOTES)
    assert (first["DELAY_TIME"], first["REAL_TOPIC"]) == ("10", str(PARTITION.partitioned_parent))
    assert "RECONSUMETIMES" not in first
    counted = waiting_properties({**first, "RECONSUMETIMES": "4"}, **where, delay_ms=20, notes=NOTES)
    assert (counted["RECONSUMETIMES"], counted["DELAY_TIME"]) == ("4", "20")
    retried = retry_properties(counted, **where, times=5, delay_ms=30)
    assert NOTES.keys() & retried.keys() == {"LIFECYCLE_WAITING_SINCE"}
    assert without_retry_properties(counted) == {"mine": "kept"}


@pytest.mark.parametrize(
    ("text", "since"), [("7", 7), ("9", 9), ("10", None), ("0", None), ("-1", None), ("", None), ("٣", None)]
)
def test_since_when_a_message_waits_cannot_be_later_than_it_was_published(text, since):
    assert waiting_since({"LIFECYCLE_WAITING_SINCE": text}, 9) == since
    assert waiting_since({}, 9) is None
