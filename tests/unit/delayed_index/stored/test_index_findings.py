"""What is found wrong with an index, each finding by what causes it, against a whole index that has none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pyroaring import BitMap

from pulsar_lifecycle.delayed_index.stored.index_codes import HARM, RED, BucketProblem, IndexFinding
from pulsar_lifecycle.delayed_index.stored.index_findings import judge
from pulsar_lifecycle.delayed_index.stored.subscription import (
    StoredBucket,
    StoredSubscription,
    TopicEntries,
    outstanding,
)
from pulsar_lifecycle.formats.cursor import LedgerBits, MessageRange
from pulsar_lifecycle.formats.delayed_indexes import Indexes
from pulsar_lifecycle.model import Position
from tests.kit.delayed.index_scene import COUNT, NOW, bucket, due, entries, of_ledger, subscription


def codes(one: StoredSubscription, topic: TopicEntries) -> dict[IndexFinding, int]:
    found = judge(one, topic, NOW)
    return {f.code: sum(g.messages for g in found if g.code is f.code) for f in found}


WHOLE = [bucket(3, 3, of_ledger(3), 100), bucket(5, 5, of_ledger(5), 101)]


def test_nothing_is_wrong_with_a_whole_index() -> None:
    assert codes(subscription(*WHOLE), entries(3, 5, 7)) == {}


def test_what_is_acknowledged_is_missed_by_nobody() -> None:
    part = bucket(3, 3, of_ledger(3)[10:40])
    ranges = (MessageRange(Position(3, -1), Position(3, 9)), MessageRange(Position(3, 39), Position(4, 1)))
    by_ranges = replace(subscription(part), ranges=ranges)
    bits = sum(1 << e for e in [*range(10), *range(40, 50)])
    by_bits = replace(subscription(part), bits=(LedgerBits(3, (bits - (1 << 64) if bits >> 63 else bits,)),))

    assert codes(subscription(part), entries(3)) == {IndexFinding.NOT_INDEXED: 20}
    assert codes(by_ranges, entries(3)) == {}
    assert codes(by_bits, entries(3)) == {}
    assert len(outstanding(by_bits, entries(3))) == 30


def test_a_message_that_no_bucket_has_is_not_indexed_only_where_its_ledger_is_sealed() -> None:
    first, second = WHOLE[0], bucket(5, 5, of_ledger(5)[1:])

    assert codes(subscription(first, second), entries(3, 5, 7)) == {IndexFinding.NOT_INDEXED: 1}


def test_a_bitmap_of_a_few_bytes_that_marks_four_billion_messages_is_not_written_out() -> None:
    whole = WHOLE[0]
    assert whole.table is not None
    every = BitMap()
    every.add_range(0, 1 << 32)
    marks = [every, *(bits for bitmaps in whole.table.bitmaps[1:] for bits in bitmaps.values())]
    sizes = np.fromiter(map(len, marks), np.int64, len(marks))
    forged = replace(whole, table=replace(whole.table, marks=marks, sizes=sizes))
    assert set(codes(subscription(forged), entries(3))) == {IndexFinding.BITMAP_UNLIKE_SEGMENTS}


def test_a_bitmap_that_marks_what_no_segment_has_loses_it() -> None:
    whole, part = bucket(3, 3, of_ledger(3)), bucket(3, 3, of_ledger(3)[:-1])
    forged = replace(part, table=whole.table, bounds=whole.bounds)

    found = codes(subscription(forged), entries(3))

    assert found[IndexFinding.LOST] == 1
    assert IndexFinding.BITMAP_UNLIKE_SEGMENTS in found
    assert IndexFinding.NOT_INDEXED not in found


def test_a_lost_message_is_as_lost_once_it_is_due_while_its_segment_is_not() -> None:
    triples = [*of_ledger(3)[1:], (NOW - 5000, 3, 0)]
    whole = bucket(3, 3, triples)
    first_segment = [one for one in whole.indexes.triples() if one != (NOW - 5000, 3, 0)]
    forged = replace(bucket(3, 3, first_segment), table=whole.table)
    topic = TopicEntries(Indexes.of(sorted(triples, key=lambda one: one[2])), {3: COUNT}, {})

    assert codes(subscription(forged), topic)[IndexFinding.LOST] == 1
    assert codes(subscription(whole), topic) == {}


def test_what_keeps_messages_from_their_consumers_is_red_and_what_brokers_read_again_is_not() -> None:
    """As brokers 4.0.7 did with topics whose snapshots were spoilt so."""
    red = {code for code in IndexFinding if HARM[code] in RED}

    assert red == {
        IndexFinding.LOST,
        IndexFinding.DUPLICATE,
        IndexFinding.WRONG_TIME,
        IndexFinding.POINTS_NOWHERE,
        IndexFinding.OUT_OF_RANGE,
        IndexFinding.OVERLAPPING_RANGES,
        IndexFinding.GAP,
        IndexFinding.KEY_WITHOUT_LEDGER,
        IndexFinding.BITMAP_UNLIKE_SEGMENTS,
        IndexFinding.UNDECODABLE,
    }


def test_a_merged_bucket_that_lacks_what_was_due_first_lost_it() -> None:
    merged = sorted(of_ledger(3) + of_ledger(5))
    lacking = bucket(3, 5, merged[10:])

    assert codes(subscription(lacking), entries(3, 5)) == {IndexFinding.MERGED_AND_LOST: 10}


@pytest.mark.parametrize("left", [40, 0])
def test_each_bucket_that_was_merged_lost_what_was_due_first_of_its_own(left: int) -> None:
    """All of ledger 5 is due after all of ledger 3; of 0 left, its only segment was loaded."""
    first, second = sorted(of_ledger(3)), sorted((time + 1_000_000, *place) for time, *place in of_ledger(5))
    topic = TopicEntries(Indexes.of(sorted(first + second, key=lambda one: one[1:])), {3: COUNT, 5: COUNT}, {})
    kept = first[10:] + second[COUNT - left :]

    found = codes(subscription(bucket(3, 5, kept)), topic)

    assert found == {IndexFinding.MERGED_AND_LOST: 10 + COUNT - left}


def test_of_messages_that_are_due_at_one_time_a_merge_may_have_lost_some() -> None:
    same = [(NOW + 5_000, 3, entry) for entry in range(COUNT)]
    topic = TopicEntries(Indexes.of([*same, *of_ledger(5)]), {3: COUNT, 5: COUNT}, {})

    found = codes(subscription(bucket(3, 5, [*same[10:], *of_ledger(5)])), topic)

    assert found == {IndexFinding.MERGED_AND_LOST: 10}


def test_messages_that_are_due_later_than_what_a_bucket_has_of_their_ledger_were_not_lost_by_a_merge() -> None:
    first, second = sorted(of_ledger(3)), sorted(of_ledger(5))

    found = codes(subscription(bucket(3, 5, first[:-10] + second)), entries(3, 5))

    assert found == {IndexFinding.NOT_INDEXED: 10}


def test_messages_of_transactions_that_a_rebuild_left_out_of_a_bucket_were_not_lost_by_a_merge() -> None:
    topic = entries(3, 5)
    first = np.argsort(topic.delayed.timestamps)[:10]
    unindexable = np.isin(np.arange(2 * COUNT), first)
    rebuilt = bucket(3, 5, sorted(of_ledger(3) + of_ledger(5))[10:])

    assert codes(subscription(rebuilt), replace(topic, unindexable=unindexable)) == {IndexFinding.NOT_INDEXED: 10}


def test_duplicates_wrong_times_and_entries_that_are_not_there() -> None:
    twice = bucket(5, 5, [*of_ledger(5)[:-1], (due(5, 49) + 5, 5, 49), (NOW + 9000, 5, 77)], 101)

    found = codes(subscription(WHOLE[0], twice), entries(3, 5))

    assert found == {IndexFinding.WRONG_TIME: 1, IndexFinding.POINTS_NOWHERE: 1}
    overlapping = codes(subscription(WHOLE[0], replace(WHOLE[0], key="other", ledger_id=103)), entries(3))
    assert overlapping == {IndexFinding.OVERLAPPING_RANGES: 0, IndexFinding.DUPLICATE: COUNT}


@pytest.mark.parametrize(("entry", "nowhere"), [(-1, 0), (20, COUNT)])
def test_messages_of_ledgers_that_went_are_nowhere_unless_brokers_move_the_position_past_them(
    entry: int, nowhere: int
) -> None:
    """As brokers 4.0.7 did with two first ledgers gone: they delivered all that was left, and nothing."""
    stood = replace(subscription(*WHOLE, bucket(7, 7, of_ledger(7), 102)), position=Position(3, entry))

    found = codes(stood, entries(7))

    assert found == ({IndexFinding.POINTS_NOWHERE: nowhere} if nowhere else {})


def test_messages_outside_of_their_buckets_range() -> None:
    moved = replace(WHOLE[0], start=4, end=4)

    assert codes(subscription(moved), entries(3))[IndexFinding.OUT_OF_RANGE] == COUNT


def test_a_bucket_whose_messages_are_all_due_has_passed() -> None:
    old = bucket(3, 3, [(NOW - 5, 3, 0), (NOW, 3, 1)])

    assert codes(subscription(old), TopicEntries(Indexes.empty(), {3: 2}, {})) == {IndexFinding.PASSED: 2}


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (BucketProblem.NO_LEDGER, IndexFinding.KEY_WITHOUT_LEDGER),
        (BucketProblem.UNDECODABLE, IndexFinding.UNDECODABLE),
        (BucketProblem.NOT_CLOSED, IndexFinding.UNDECODABLE),
    ],
)
def test_a_bucket_that_cannot_be_recovered_throws_the_subscription_into_memory(
    problem: BucketProblem, code: IndexFinding
) -> None:
    broken = StoredBucket("key", "9", 3, 3, 9, problem=problem)

    found = codes(subscription(broken, WHOLE[1]), entries(3, 5))

    assert found == {code: 0, IndexFinding.RECOVERY_FALLBACK: 0, IndexFinding.NOT_INDEXED: COUNT}


@pytest.mark.parametrize(("times", "falls_back"), [(((0, NOW),), False), (((0, NOW + 1),), True), ((), False)])
def test_a_bucket_that_a_broker_can_take_up_now_throws_nothing_into_memory(
    times: tuple[tuple[int, int], ...], falls_back: bool
) -> None:
    broken = StoredBucket("key", "9", 3, 3, 9, problem=BucketProblem.UNDECODABLE, unrecoverable=times)
    found = codes(subscription(broken, WHOLE[1]), entries(3, 5))
    assert IndexFinding.UNDECODABLE in found
    assert (IndexFinding.RECOVERY_FALLBACK in found) == falls_back


def test_a_bad_key_throws_nothing_into_memory_as_no_tracker_can_be_made() -> None:
    bad = StoredBucket("key", "x", -1, -1, -1, problem=BucketProblem.BAD_KEY)

    assert codes(subscription(*WHOLE, bad), entries(3, 5)) == {IndexFinding.UNDECODABLE: 0}


def test_what_could_not_be_read_is_said_and_nothing_is_concluded_of_it() -> None:
    unread = StoredBucket("key", "9", 3, 3, 9, problem=BucketProblem.UNREAD)

    assert codes(subscription(unread), TopicEntries(Indexes.empty(), {}, {3: "no answer"})) == {IndexFinding.UNREAD: 0}


def test_random_omissions_are_found_to_the_last_message() -> None:
    random = np.random.default_rng(7)
    triples = [one for ledger in (3, 5, 9) for one in of_ledger(ledger)]
    for _ in range(30):
        left = random.random(len(triples)) < 0.8
        kept = [one for one, stays in zip(triples, left, strict=True) if stays]
        some = [bucket(ledger, ledger, mine) for ledger in (3, 5, 9) if (mine := [k for k in kept if k[1] == ledger])]
        sealed = max(one.end for one in some)
        missing = sum(one[1] <= sealed for one in triples) - len(kept)
        expected = {IndexFinding.NOT_INDEXED: missing} if missing else {}
        assert codes(subscription(*some), entries(3, 5, 9)) == expected


def test_enough_for_buckets_and_none_is_found_only_where_a_later_ledger_follows() -> None:
    def found(*ledgers: int, sealed_at: int) -> list[tuple[IndexFinding, int, int | None]]:
        said = judge(subscription(), entries(*ledgers), NOW, sealed_at)
        return [(one.code, one.messages, one.ledger) for one in said]

    assert found(3, 5, sealed_at=COUNT) == [(IndexFinding.NO_BUCKETS, 2 * COUNT, 3)]
    assert found(3, 5, sealed_at=COUNT + 1) == []
    assert found(3, sealed_at=1) == []
    assert found(3, 5, sealed_at=0) == []
    unindexable = replace(entries(3, 5), unindexable=np.arange(2 * COUNT) < 1)
    assert judge(subscription(), unindexable, NOW, COUNT) == []
    assert found(sealed_at=1) == []


def test_numbers_that_no_topic_can_have_are_findings_as_others_are() -> None:
    """The key of a bucket may say anything, and so may a segment."""
    wild = bucket(5, 5, of_ledger(5), 101)
    places = wild.indexes.entries.copy()
    places[-2:] = (1 << 62), (1 << 63) - 1
    strange = replace(wild, indexes=replace(wild.indexes, entries=places), end=10**20)

    found = codes(subscription(WHOLE[0], strange), entries(3, 5))

    assert found[IndexFinding.POINTS_NOWHERE] == 2
    assert found[IndexFinding.LOST] == 2
    assert codes(subscription(replace(WHOLE[0], start=10**19, end=10**20)), entries(3)) == {
        IndexFinding.OUT_OF_RANGE: COUNT
    }


@pytest.mark.parametrize(
    ("waiting", "gaps"),
    [
        ({3: 10}, [10]),
        ({3: 20}, []),
        ({3: 10, 4: 10}, []),
        ({3: 20, 4: 10}, [10]),
        ({6: 10}, [10]),
        ({3: 10, 6: 9}, [19]),
        ({3: 10, 6: 10}, [10]),
        ({3: 20, 6: 20}, []),
        ({8: 10}, []),
    ],
)
def test_what_a_broker_would_seal_over_the_next_bucket_is_a_gap(waiting: dict[int, int], gaps: list[int]) -> None:
    one = subscription(bucket(5, 5, of_ledger(5)), bucket(7, 7, of_ledger(7), 101))
    each = [one for ledger in range(3, 9) for one in of_ledger(ledger, waiting.get(ledger, 50 * (ledger in (5, 7))))]
    topic = TopicEntries(Indexes.of(each), dict.fromkeys(range(3, 9), COUNT), {})
    said = judge(one, topic, NOW, 20)
    assert [found.messages for found in said if found.code is IndexFinding.GAP] == gaps
    assert IndexFinding.GAP not in {found.code for found in judge(one, topic, NOW)}
