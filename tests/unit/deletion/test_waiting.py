"""What a run was not handed out, by what is left in the queue after it."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.copies.object_pairs import CLOCK_SKEW_MS
from pulsar_lifecycle.deletion.waiting import withheld
from pulsar_lifecycle.deletion_queue.queue_topics import RETRY_TOPIC
from pulsar_lifecycle.formats.retry_letter import DELAY_TIME, WAITING_RUN
from tests.kit.fakes.deletion_queue import MAIN, RETRY, FakeDeletionTopics, FakeQueueReader

BEGAN = 100_000_000


def found(topics: FakeDeletionTopics, taken: frozenset[str] = frozenset()) -> dict[object, int]:
    return dict(withheld(FakeQueueReader(topics), [MAIN, RETRY], "run", BEGAN, lambda: taken))


def test_what_was_due_and_not_taken_is_counted_by_partition() -> None:
    topics = FakeDeletionTopics(now_ms=BEGAN)
    ids = [topics.publish(b"x").hex() for _ in range(3)]
    topics.publish(b"x", topic=RETRY_TOPIC)
    assert found(topics) == {MAIN: 3, RETRY: 1}
    assert found(topics, frozenset(ids[:2])) == {MAIN: 1, RETRY: 1}  # their acknowledgements are lost, or late


@pytest.mark.parametrize("delay", [None, 0, 600_000])
def test_what_is_due_later_is_not_missed(delay: int | None) -> None:
    properties = {} if delay is None else {DELAY_TIME: str(delay)}
    due = delay or 0
    slack = 0 if delay is None else CLOCK_SKEW_MS
    for at, missed in ((BEGAN - due - slack, {RETRY: 1}), (BEGAN - due - slack + 1, {})):
        topics = FakeDeletionTopics(now_ms=at)
        topics.publish(b"x", properties, topic=RETRY_TOPIC)
        assert found(topics) == missed


@pytest.mark.parametrize("days", [2, 30])
def test_a_delay_of_days_is_believed_to_its_end(days: int) -> None:
    """``deletion.deliver_after`` and the delay of retries may be that long."""
    delay = days * 86_400_000
    for at, missed in ((BEGAN * 100 - delay - CLOCK_SKEW_MS, {MAIN: 1}), (BEGAN * 100 - delay + 1, {})):
        topics = FakeDeletionTopics(now_ms=at)
        topics.publish(b"x", {DELAY_TIME: str(delay)})
        reader = FakeQueueReader(topics)
        assert withheld(reader, [MAIN, RETRY], "run", BEGAN * 100, frozenset) == missed


def test_what_the_run_itself_sent_back_is_not_missed() -> None:
    topics = FakeDeletionTopics(now_ms=BEGAN - 1)
    topics.publish(b"x", {WAITING_RUN: "run"}, topic=RETRY_TOPIC)
    topics.publish(b"x", {WAITING_RUN: "another"}, topic=RETRY_TOPIC)
    assert found(topics) == {RETRY: 1}


def test_pages_are_read_to_their_end_and_the_journal_only_if_it_must_be() -> None:
    def never() -> frozenset[str]:
        raise AssertionError

    topics = FakeDeletionTopics(now_ms=BEGAN + 1)
    for _ in range(2_500):
        topics.publish(b"x")
    reader = FakeQueueReader(topics)
    assert withheld(reader, [MAIN, RETRY], "run", BEGAN, never) == {}
    assert reader.pages == 3
