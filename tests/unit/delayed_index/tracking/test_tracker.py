"""What the tracker of delayed messages does that is its own: merging, what breaks, what it keeps in memory."""

from __future__ import annotations

import numpy as np
import pytest

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.keys import bucket_key
from pulsar_lifecycle.delayed_index.tracking.buckets import Bucket
from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet
from pulsar_lifecycle.delayed_index.tracking.merging import MergeRule, choose
from pulsar_lifecycle.delayed_index.tracking.outside import Operation, State
from pulsar_lifecycle.delayed_index.tracking.recovery import Dropped, DroppedReason
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from pulsar_lifecycle.errors import StoreError, Unavailable
from pulsar_lifecycle.formats.delayed_indexes import Indexes, decode_segment, encode_segment
from tests.kit.delayed.bucket_storage import InMemoryBucketKeys, InMemoryBucketStorage

NOW_MS = 1_000_000
PER_LEDGER = 10


def settings(**fields):
    return DelayedIndexSettings(
        delayed_delivery_min_index_count_per_bucket=PER_LEDGER,
        delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=1,
        is_delayed_delivery_deliver_at_time_strict=True,
        **fields,
    )


class Scene:
    """A tracker over storage in memory; messages n of a ledger are due n seconds from then on."""

    def __init__(self, merge_rule=MergeRule.PIP_195, **fields):
        self.storage, self.keys = InMemoryBucketStorage(), InMemoryBucketKeys()
        self.settings, self.merge_rule = settings(**fields), merge_rule
        self.tracker = self.load()

    def load(self, now=NOW_MS):
        return BucketTracker(self.settings, self.storage, self.keys, "persistent://p/d/t", "sub", now, self.merge_rule)

    def add(self, *ledgers, now=NOW_MS):
        for ledger in ledgers:
            entries = np.arange(PER_LEDGER)
            due = NOW_MS + 1000 * (entries + 1)
            self.tracker.add_messages(np.full(PER_LEDGER, ledger), entries, due, now)

    def ranges(self):
        return [(bucket.start_ledger_id, bucket.end_ledger_id) for bucket in self.tracker.buckets]

    def handed_out(self, now, limit=1_000):
        return self.tracker.get_scheduled_messages(limit, now).triples()


def bucket(messages, place, loaded=1, next_due=0):
    times = (0, next_due, next_due + 1) if next_due else (0, 10, 20)
    return Bucket(place, place, place, EntrySet(), messages, times, loaded, (0, place, 0), 0)


def test_the_two_neighbours_with_the_fewest_messages_are_merged():
    """The proposal's own example."""
    buckets = [bucket(messages, place) for place, messages in enumerate([5, 3, 2, 4, 3])]
    assert choose(buckets, MergeRule.PIP_195) == buckets[1:3]


def test_the_broker_merges_up_to_four_that_are_not_loaded_whole():
    buckets = [bucket(messages, place) for place, messages in enumerate([5, 3, 2, 4, 3])]
    assert choose(buckets, MergeRule.BROKER_4_0_7) == buckets[1:5]
    buckets[2].loaded = 3
    assert choose(buckets, MergeRule.BROKER_4_0_7) == buckets[3:5]
    for one in buckets:
        one.loaded = 3
    assert choose(buckets, MergeRule.BROKER_4_0_7) == []


@pytest.mark.parametrize("rule", MergeRule)
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_no_more_are_merged_than_there_are(rule, count):
    assert len(choose([bucket(1, place) for place in range(count)], rule)) <= count


def test_of_equal_windows_the_one_due_first_is_merged():
    buckets = [bucket(3, place, next_due=due) for place, due in enumerate([90, 80, 70, 60])]
    assert choose(buckets, MergeRule.PIP_195) == buckets[2:4]


def test_a_merged_bucket_keeps_what_was_loaded_and_not_handed_out():
    """apache/pulsar#26251: the broker's has only the segments that were not."""
    scene = Scene(delayed_delivery_max_num_buckets=2)
    scene.add(1, 2, 3, 4)
    assert scene.ranges() == [(1, 2), (3, 3)]
    stored = scene.storage.snapshots[scene.keys.buckets[bucket_key(1, 2)]]
    assert len(read_whole(stored.entries)[1]) == 2 * PER_LEDGER
    reloaded = scene.load()
    assert reloaded.number_of_delayed_messages == 3 * PER_LEDGER
    assert scene.tracker.operations[Operation.MERGE, State.SUCCEED] == 1
    assert sorted(scene.keys.buckets.values()) == sorted(scene.storage.snapshots)
    assert len(scene.handed_out(NOW_MS + 60_000)) == 4 * PER_LEDGER


@pytest.mark.parametrize("rule", MergeRule)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_so_few_buckets_are_merged_without_an_exception(rule, most):
    scene = Scene(rule, delayed_delivery_max_num_buckets=most)
    scene.add(*range(1, 12))
    assert len(scene.tracker.buckets) <= most
    assert len(set(scene.handed_out(NOW_MS + 60_000))) == 11 * PER_LEDGER


def test_a_bucket_is_deleted_once_its_last_segment_is_consumed():
    scene = Scene()
    scene.add(1, 2)
    assert len(scene.handed_out(NOW_MS + 9_500)) == 18
    assert len(scene.storage.snapshots) == 1
    assert len(scene.handed_out(NOW_MS + 10_000)) == 2
    assert (scene.storage.snapshots, scene.keys.buckets) == ({}, {})


def test_segments_that_are_passed_are_skipped_at_recovery():
    scene = Scene()
    scene.add(1, 2)
    reloaded = scene.load(NOW_MS + 4_000)
    assert reloaded.number_of_delayed_messages == 6
    assert not reloaded.contains_message(1, 3)
    assert reloaded.contains_message(1, 4)
    assert reloaded.buckets[0].loaded == 5
    passed = scene.load(NOW_MS + 60_000)
    (dropped,) = passed.dropped
    assert (dropped.reason, scene.storage.snapshots) == (DroppedReason.PASSED, {})


def test_one_bad_snapshot_costs_no_other_bucket():
    scene = Scene()
    scene.add(1, 2, 3, 4)
    bad, gone = scene.keys.buckets[bucket_key(2, 2)], scene.keys.buckets[bucket_key(3, 3)]
    scene.storage.snapshots[bad].entries = (b"\x0a", *scene.storage.snapshots[bad].entries[1:])
    del scene.storage.snapshots[gone]
    scene.keys.buckets["#pulsar.internal.delayed.bucket_x"] = 7
    reloaded = scene.load()
    assert set(reloaded.dropped) == {
        Dropped(bucket_key(2, 2), bad, DroppedReason.CORRUPT),
        Dropped(bucket_key(3, 3), gone, DroppedReason.NOT_FOUND),
        Dropped("#pulsar.internal.delayed.bucket_x", 7, DroppedReason.BAD_KEY),
    }
    assert list(scene.keys.buckets) == [bucket_key(1, 1)]
    assert reloaded.number_of_delayed_messages == PER_LEDGER


def test_an_enclosed_bucket_goes_and_the_enclosing_one_stays():
    """What a crash of a broker leaves between storing a merged bucket and deleting its parts."""
    scene = Scene(delayed_delivery_max_num_buckets=1)
    scene.add(1, 2)
    part = dict(scene.keys.buckets), dict(scene.storage.snapshots)
    scene.add(3)
    assert scene.ranges() == [(1, 2)]
    scene.keys.buckets |= part[0]
    scene.storage.snapshots |= part[1]
    reloaded = scene.load()
    assert [(one.key, one.reason) for one in reloaded.dropped] == [(bucket_key(1, 1), DroppedReason.OVERLAPPING)]
    assert reloaded.number_of_delayed_messages == 2 * PER_LEDGER


def test_of_buckets_that_share_a_ledger_the_earlier_one_stays():
    scene = Scene()
    scene.add(1, 2, 3)
    scene.keys.buckets[bucket_key(1, 2)] = scene.keys.buckets.pop(bucket_key(1, 1))
    scene.tracker = scene.load()
    assert [(one.key, one.reason) for one in scene.tracker.dropped] == [(bucket_key(2, 2), DroppedReason.OVERLAPPING)]
    assert scene.ranges() == [(1, 2)]


def test_a_snapshot_that_cannot_be_kept_leaves_its_messages_in_memory():
    scene = Scene()
    tries = []
    scene.storage.before = lambda operation: tries.append(operation) or _raise(Unavailable("no bookie"))
    scene.add(1, 2)
    assert tries == ["create"] * 4
    scene.storage.before = lambda operation: None
    assert scene.tracker.operations == {(Operation.CREATE, State.ALL): 1, (Operation.CREATE, State.FAILED): 1}
    scene.add(1, 2, 3)
    assert scene.tracker.number_of_delayed_messages == 3 * PER_LEDGER
    assert len(set(scene.handed_out(NOW_MS + 60_000))) == 3 * PER_LEDGER


def test_a_property_that_cannot_be_written_is_written_later():
    scene = Scene()
    scene.keys.before = lambda operation: _raise(StoreError("BadVersion"))
    scene.add(1, 2)
    assert (scene.keys.buckets, scene.tracker.pending) == ({}, 1)
    scene.keys.before = lambda operation: None
    scene.handed_out(NOW_MS)
    assert (list(scene.keys.buckets), scene.tracker.pending) == ([bucket_key(1, 1)], 0)


def test_a_segment_that_cannot_be_read_now_holds_back_what_comes_after_it():
    scene = Scene()
    scene.add(1, 2)
    scene.storage.before = lambda operation: _raise(Unavailable("no bookie"))
    assert scene.handed_out(NOW_MS + 5_000) == []
    scene.storage.before = lambda operation: None
    assert len(scene.handed_out(NOW_MS + 5_000)) == 10


def test_messages_of_a_segment_that_is_gone_are_to_be_read_again():
    scene = Scene()
    scene.add(1, 2)
    scene.storage.snapshots.clear()
    assert len(scene.handed_out(NOW_MS + 60_000)) == 11
    unread = scene.tracker.take_unread()
    assert {ledger: list(entries) for ledger, entries in unread.bitmaps.items()} == {1: list(range(1, 10))}
    assert len(scene.tracker.take_unread()) == 0
    assert not scene.tracker.contains_message(1, 5)


@pytest.mark.parametrize("loaded", [1, 2])
def test_what_a_segment_has_and_its_bitmap_has_not_is_left_to_the_reading(loaded):
    scene = Scene()
    scene.add(1, 2)
    (stored,) = scene.storage.snapshots.values()
    entries = list(stored.entries)
    entries[loaded] = encode_segment(
        Indexes.concatenate([decode_segment(entries[loaded]), Indexes.of([(NOW_MS + 1000 * loaded, 1, 77)])]).sorted()
    )
    stored.entries = tuple(entries)
    scene.tracker = scene.load()
    assert not scene.tracker.contains_message(1, 77)
    handed_out = scene.handed_out(NOW_MS + 60_000)
    assert [(ledger, entry) for _, ledger, entry in handed_out] == [(1, entry) for entry in range(PER_LEDGER)]


@pytest.mark.parametrize("batched", [True, False])
def test_an_open_bucket_is_sealed_before_it_would_enclose_another(batched):
    scene = Scene()
    scene.add(10, 20)
    assert scene.ranges() == [(10, 10)]
    scene.tracker = scene.load()
    if batched:
        scene.tracker.add_messages(np.array([3, 25]), np.zeros(2, np.int64), np.full(2, NOW_MS + 1_000), NOW_MS)
    else:
        scene.tracker.add_message(3, 0, NOW_MS + 1_000, NOW_MS)
        scene.tracker.add_message(25, 0, NOW_MS + 1_000, NOW_MS)
    assert scene.ranges() == [(3, 3), (10, 10)]


def test_a_message_that_comes_twice_in_a_batch_is_tracked_once():
    scene = Scene()
    columns = np.array([[1, 1, 1, 1], [0, 1, 0, 0], [NOW_MS + 9_000, NOW_MS, NOW_MS + 9_000, NOW_MS]])
    assert scene.tracker.add_messages(*columns, NOW_MS).tolist() == [True, False, True, True]
    assert scene.handed_out(NOW_MS + 60_000) == [(NOW_MS + 9_000, 1, 0)]


def test_what_a_bitmap_cannot_hold_is_refused():
    scene = Scene()
    with pytest.raises(ValueError, match="beyond 4294967295"):
        scene.tracker.add_message(1, 1 << 32, NOW_MS + 1, NOW_MS)


def test_sealed_buckets_cost_hardly_any_memory():
    scene = Scene()
    scene.settings = DelayedIndexSettings()
    scene.tracker = scene.load()
    count = 200_000
    rng = np.random.default_rng(1)
    places = np.arange(count)
    scene.tracker.add_messages(
        places // 50_000, places % 50_000, NOW_MS + rng.integers(2_000, 86_400_000, count), NOW_MS
    )
    assert len(scene.tracker.buckets) == 3
    assert scene.tracker.nbytes < 24 * 60_000
    assert scene.tracker.next_delivery_time() < NOW_MS + 20_000
    assert not scene.tracker.has_message_available(NOW_MS)


def test_passed_buckets_are_forgotten_with_what_was_loaded_of_them():
    scene = Scene()
    scene.add(1, 2, 3)
    scene.tracker.forget_before(2)
    assert scene.ranges() == [(2, 2)]
    assert sorted(scene.keys.buckets.values()) == sorted(scene.storage.snapshots)
    assert (scene.tracker.number_of_delayed_messages, scene.tracker.loaded) == (2 * PER_LEDGER, 1 + PER_LEDGER)
    assert {ledger for _, ledger, _ in scene.handed_out(NOW_MS + 60_000)} == {2, 3}


def test_clear_deletes_every_bucket():
    scene = Scene()
    scene.add(1, 2, 3)
    scene.tracker.clear()
    assert (scene.storage.snapshots, scene.keys.buckets, scene.tracker.number_of_delayed_messages) == ({}, {}, 0)
    assert scene.handed_out(NOW_MS + 60_000) == []


def _raise(error):
    raise error
