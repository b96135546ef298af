"""Times in topics whose publish times are in any order: nothing published at or after the time is below the answer."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.delete_records.times import time_offsets
from pulsar_lifecycle.delete_records.times.offsets import out_of_order
from pulsar_lifecycle.delete_records.times.publish_times import Span, span
from pulsar_lifecycle.formats import message
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import MessagePosition, Position
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from tests.kit.records.topic_times import TopicTimes, batch, commit, in_transaction, marker, part, sent

TIMES = st.integers(0, 9)
PLAIN = st.builds(sent, TIMES) | st.builds(batch, TIMES, st.integers(1, 3))
UUIDS = st.sampled_from("uv")
ANY = (
    PLAIN
    | st.builds(marker, TIMES)
    | st.builds(part, TIMES, st.integers(0, 2), st.just(3), UUIDS)
    | st.builds(in_transaction, TIMES, st.integers(0, 2))
    | st.builds(commit, TIMES, st.integers(0, 2))
)
STARTS = st.builds(MessagePosition, st.integers(0, 8), st.integers(0, 3), st.integers(0, 1))


def topics(entries):
    return st.lists(st.lists(entries, max_size=5), min_size=1, max_size=4)


def made(ledgers, ids=range(0, 8, 2)) -> tuple[TopicTimes, list[tuple[MessagePosition, bytes]]]:
    """Closed ledgers, and ones that are in the bucket only, taking turns; the last one is open."""
    topic = TopicTimes()
    for n, (i, entries) in enumerate(zip(ids, ledgers, strict=False)):
        if n == len(ledgers) - 1:
            topic.ledger(i, entries, LedgerState.OPEN)
        elif n % 2 and entries:
            topic.offloaded(i, entries)
        else:
            topic.ledger(i, entries)
    numbered = zip(ids, ledgers, strict=False)
    return topic, [(MessagePosition(i, e), data) for i, some in numbered for e, data in enumerate(some)]


@given(topics(PLAIN), TIMES, STARTS)
def test_the_answer_is_the_first_message_at_or_after_the_time(ledgers, time, start):
    topic, entries = made(ledgers)
    start = min(start, MessagePosition(2 * len(ledgers) - 2, len(ledgers[-1])))
    found = topic.at_time(time, str(start))
    readable = [(p, message.envelope(data)) for p, data in entries if p.entry >= start.entry]
    newer = [p for p, one in readable if one.publish_time >= time]
    end = MessagePosition(2 * len(ledgers) - 2, len(ledgers[-1]))
    assert found.position == max(start, newer[0] if newer else end)
    assert found.at_end == (not newer)
    gone = [(p, one) for p, one in readable if p.entry < found.position.entry]
    messages = sum(one.batch_size or 1 for _, one in gone)
    assert found.goes.messages == max(0, messages - start.batch_index if gone else 0)
    assert found.goes.entries == len(gone)
    times = [one.publish_time for _, one in readable]
    if times == sorted(times):
        assert found.disorder is None
    if found.disorder is None:
        assert [one.publish_time for _, one in gone] == sorted(one.publish_time for _, one in gone)


@given(topics(PLAIN | st.builds(marker, TIMES)), TIMES, st.lists(st.integers(1, 5), min_size=4, max_size=4))
def test_a_time_is_refused_with_the_messages_that_a_search_over_times_would_delete(ledgers, time, gaps):
    """Beside a walk along the topic: the search looks at few entries, and may come to any place."""
    ids = list(accumulate(gaps))[: len(ledgers)]
    topic, entries = made(ledgers, ids)
    found = topic.at_time(time)
    walked = [(p, message.envelope(data)) for p, data in entries]
    newer = [p for p, one in walked if one.marker_type is None and one.publish_time >= time]
    cut = found.disorder.searched if found.disorder else found.position
    below = [(p, one) for p, one in walked if p < cut]
    risk = [(p, one) for p, one in below if p in newer]
    times = [one.publish_time for _, one in below if one.marker_type is None]
    assert (found.disorder is None) == (not risk and times == sorted(times))
    if found.disorder is None:
        assert out_of_order(found) is None
        return
    first = newer[0] if newer else MessagePosition(ids[-1], len(ledgers[-1]))
    assert found.position <= first  # markers before it are no messages; a search that comes to one goes no further
    between = [one for p, one in walked if found.position <= p < first and one.marker_type is None]
    assert not between or [p for p, one in walked if p == found.position and one.marker_type is not None]
    assert [one.publish_time < time for _, one in below[-1:]] in ([], [True])
    assert [one.publish_time >= time for p, one in walked if p == cut] in ([], [True])
    said = found.disorder
    assert (said.at_risk.entries, said.at_risk.messages) == (len(risk), sum(one.batch_size or 1 for _, one in risk))
    assert (said.first_at_risk and said.first_at_risk.position) == (risk[0][0] if risk else None)
    refusal = out_of_order(found)
    assert refusal is not None
    assert refusal.error is RecordsError.NOT_MONOTONIC


@given(topics(ANY), TIMES)
def test_whatever_a_topic_holds_nothing_at_or_after_the_time_goes(ledgers, time):
    topic, entries = made(ledgers)
    found = topic.at_time(time)
    below = [(p, message.envelope(data)) for p, data in entries if p < found.position]
    assert all(one.publish_time < time for _, one in below if one.marker_type is None)
    at = next((message.envelope(data) for p, data in entries if p == found.position), None)
    begun = {one.uuid for _, one in below if one.chunk and one.chunk[0] == 0}
    ended = {one.uuid for _, one in below if one.chunk and one.chunk[0] == 2}
    if at is not None and at.chunk and at.chunk[0]:
        assert at.uuid not in begun - ended


@given(st.lists(ANY, max_size=12), st.integers(0, 12), st.none() | TIMES)
def test_two_runs_of_entries_come_to_what_both_together_do(entries, cut, time):
    numbered = [(Position(1, e), data) for e, data in enumerate(entries)]
    parts = [span(numbered[:cut], time), span(numbered[cut:], time)]
    whole = span(numbered, time)
    assert parts[0] + parts[1] == whole
    assert Span() + whole == whole + Span() == whole


@pytest.mark.parametrize("size", [1, 40, 100])
def test_pieces_of_any_size_come_to_the_same(monkeypatch, size):
    ledgers = [[sent(t) for t in (1, 2, 9, 3)], [batch(4, 2), part(4, 0, 2), sent(5)], [part(6, 1, 2), sent(7)]]
    expected = made(ledgers)[0].at_time(6)
    monkeypatch.setattr(time_offsets, "TASK_BYTES", size)
    assert made(ledgers)[0].at_time(6) == expected
