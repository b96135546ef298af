"""Which repair findings ask for, and what buckets come of it: never overlapping, each message in one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.repair.levels import RepairLevel, goal_of, level_of, mergeable, rebuilt
from pulsar_lifecycle.delayed_index.stored.index_codes import BucketProblem, IndexFinding
from pulsar_lifecycle.delayed_index.stored.index_findings import judge
from pulsar_lifecycle.delayed_index.stored.subscription import StoredBucket, StoredSubscription, TopicEntries
from pulsar_lifecycle.formats.delayed_indexes import Indexes
from pulsar_lifecycle.model import Position
from tests.kit.delayed.index_scene import NOW, bucket, of_ledger

SMALL = DelayedIndexSettings(
    delayed_delivery_min_index_count_per_bucket=100, delayed_delivery_max_indexes_per_bucket_snapshot_segment=10
)


@pytest.mark.parametrize(
    ("codes", "level"),
    [
        ({IndexFinding.LOST, IndexFinding.PASSED}, RepairLevel.REBUILD),
        ({IndexFinding.OVERLAPPING_RANGES}, RepairLevel.REBUILD),
        ({IndexFinding.KEY_WITHOUT_LEDGER, IndexFinding.RECOVERY_FALLBACK}, RepairLevel.DROP),
        ({IndexFinding.GAP, IndexFinding.NOT_INDEXED}, RepairLevel.REBUILD),
        ({IndexFinding.PASSED}, RepairLevel.DELETE),
        ({IndexFinding.NOT_INDEXED, IndexFinding.LEDGER_WITHOUT_KEY, IndexFinding.ORPHAN}, None),
        ({IndexFinding.LOST, IndexFinding.UNREAD}, None),
        (set(), None),
    ],
)
def test_findings_ask_for_a_level(codes: set[IndexFinding], level: RepairLevel | None) -> None:
    assert level_of(codes, 0, 20) is level


def test_many_small_buckets_are_merged_unless_something_is_wrong() -> None:
    assert level_of(set(), 21, 20) is RepairLevel.MERGE
    assert level_of(set(), 20, 20) is None
    assert level_of(set(), 21, 0) is None
    assert level_of({IndexFinding.LOST}, 21, 20) is RepairLevel.REBUILD


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(0, 120),
)
def test_a_rebuild_has_every_message_once_in_ranges_that_do_not_overlap(sizes: list[int], least: int) -> None:
    settings = DelayedIndexSettings(delayed_delivery_min_index_count_per_bucket=least)
    waiting = Indexes.of([one for at, size in enumerate(sizes) for one in of_ledger(3 + 2 * at, size)])

    made = rebuilt(waiting, waiting.ledgers, settings)

    whole = Indexes.concatenate([one.indexes for one in made]).in_log_order()
    assert whole.equals(waiting.in_log_order())
    bounds = [(one.start_ledger_id, one.end_ledger_id) for one in made]
    assert all(first[1] < second[0] for first, second in pairwise(bounds))
    assert all(len(one.indexes) >= least for one in made[:-1])


def test_what_is_rebuilt_or_merged_has_no_finding() -> None:
    buckets = [bucket(ledger, ledger, of_ledger(ledger), 100 + ledger) for ledger in (3, 5, 6, 8)]
    one = StoredSubscription("sub", "/path", 0, 1, Position(3, -1), (), (), tuple(buckets))
    truth = Indexes.of([each for ledger in (3, 5, 6, 8) for each in of_ledger(ledger)])
    entries = TopicEntries(truth, dict.fromkeys((3, 5, 6, 8), 50), {})
    assert [[b.start for b in group] for group in mergeable(buckets, SMALL)] == [[3, 5], [6, 8]]

    for level in (RepairLevel.MERGE, RepairLevel.REBUILD):
        goal = goal_of(level, one, judge(one, entries, NOW), entries, SMALL, NOW)
        assert goal.kept == ()
        assert [(new.start_ledger_id, new.end_ledger_id) for new in goal.new] == [(3, 5), (6, 8)]
        assert sum(len(new.indexes) for new in goal.new) == len(truth)
        assert np.all(np.diff([new.start_ledger_id for new in goal.new]) > 0)


@pytest.mark.parametrize(
    ("broken", "waiting", "keys"),
    [
        (3, (3, 5, 6), [(3, 5), (6, 6)]),
        (5, (3, 5, 6), [(3, 5), (6, 6)]),
        (5, (3, 6), [(3, 3), (6, 6)]),
        (6, (3, 5, 6), [(3, 3), (5, 5)]),
    ],
)
def test_no_message_is_left_before_a_bucket_in_the_range_of_none(
    broken: int, waiting: tuple[int, ...], keys: list[tuple[int, int]]
) -> None:
    """A broker that has too few of them for a bucket seals them over the next one."""
    whole = [bucket(ledger, ledger, of_ledger(ledger), 100 + ledger) for ledger in (3, 5, 6)]
    gone = next(one for one in whole if one.start == broken)
    unread = StoredBucket(gone.key, gone.value, broken, broken, gone.ledger_id, problem=BucketProblem.NO_LEDGER)
    buckets = tuple(unread if one is gone else one for one in whole)
    one = StoredSubscription("sub", "/path", 0, 1, Position(3, -1), (), (), buckets)
    entries = TopicEntries(
        Indexes.of([each for ledger in waiting for each in of_ledger(ledger)]), dict.fromkeys((3, 5, 6), 50), {}
    )

    goal = goal_of(RepairLevel.DROP, one, judge(one, entries, NOW), entries, SMALL, NOW)

    assert [(made.start, made.end) for made in goal.kept] + [
        (made.start_ledger_id, made.end_ledger_id) for made in goal.new
    ] == keys


def test_a_rebuild_covers_the_ledgers_of_messages_that_no_index_may_have() -> None:
    """Those of transactions, say: before the first bucket, and between two."""
    waiting = Indexes.of([each for ledger in (3, 5, 6, 7, 8, 9) for each in of_ledger(ledger)])
    transactional = np.isin(waiting.ledgers, (3, 7, 9))
    one = StoredSubscription("sub", "/path", 0, 1, Position(3, -1), (), (), ())
    entries = TopicEntries(waiting, dict.fromkeys(range(3, 10), 50), {}, transactional)
    goal = goal_of(RepairLevel.REBUILD, one, [], entries, SMALL, NOW)
    assert [(new.start_ledger_id, new.end_ledger_id) for new in goal.new] == [(3, 6), (7, 8)]
    assert sum(len(new.indexes) for new in goal.new) == 3 * 50
