"""One index of delayed messages for several subscriptions: what each is told, and what the slowest one keeps."""

from __future__ import annotations

import numpy as np
import pytest

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet
from pulsar_lifecycle.delayed_index.tracking.shared import AcknowledgedMessages, SharedIndex
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from pulsar_lifecycle.model import Position
from tests.kit.delayed.bucket_storage import InMemoryBucketKeys, InMemoryBucketStorage

NOW_MS = 1_000_000
PER_LEDGER = 10
LATE = NOW_MS + 1_000_000
START = Position(-1, -1)


def entry_set(*positions):
    found = EntrySet()
    for position in positions:
        found.add_one(*position)
    return found


class Scene:
    """Ten messages a ledger; message n is due n seconds from then on, in a segment of its own."""

    def __init__(self, *names):
        self.storage, self.keys = InMemoryBucketStorage(), InMemoryBucketKeys()
        self.settings = DelayedIndexSettings(
            delayed_delivery_min_index_count_per_bucket=PER_LEDGER,
            delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=1,
            is_delayed_delivery_deliver_at_time_strict=True,
        )
        self.load({name: AcknowledgedMessages(START) for name in names})

    def load(self, subscriptions, now=NOW_MS):
        tracker = BucketTracker(self.settings, self.storage, self.keys, "persistent://p/d/t", "index", now)
        self.index = SharedIndex(tracker, subscriptions)

    def read(self, name, *ledgers, now=NOW_MS):
        """Returns the entries to be delivered."""
        entries = np.arange(PER_LEDGER)
        due = NOW_MS + 1000 * (entries + 1)
        left = [self.index.add_messages(name, np.full(PER_LEDGER, one), entries, due, now) for one in ledgers]
        return [(one, entry) for one, mask in zip(ledgers, left, strict=True) for entry in np.flatnonzero(~mask)]

    def handed_out(self, name, now, limit=1_000):
        found = self.index.get_scheduled_messages(name, limit, now)
        return list(zip(*(column.tolist() for column in found.columns()), strict=True))

    def buckets(self):
        assert set(self.keys.buckets.values()) == set(self.storage.snapshots)
        return sorted(self.keys.buckets)


def everything(*ledgers):
    return [(ledger, entry) for ledger in ledgers for entry in range(PER_LEDGER)]


def test_an_index_is_built_once_for_all():
    scene = Scene("a", "b")
    scene.read("a", 1, 2, 3)
    snapshots = dict(scene.storage.snapshots)
    assert scene.read("b", 1, 2, 3) == []
    assert scene.index.number_of_delayed_messages == 3 * PER_LEDGER
    assert scene.storage.snapshots == snapshots
    assert scene.handed_out("a", LATE) == scene.handed_out("b", LATE) == everything(1, 2, 3)
    assert scene.handed_out("a", LATE) == scene.handed_out("b", LATE) == []
    assert scene.buckets() == []


def test_what_a_subscription_has_not_read_is_left_to_its_reading():
    scene = Scene("ahead", "behind")
    scene.read("ahead", 1, 2)
    scene.read("behind", 1)
    assert scene.handed_out("ahead", LATE) == everything(1, 2)
    assert scene.handed_out("behind", LATE) == everything(1)
    assert not scene.index.contains_message("behind", 2, 0)
    assert scene.read("behind", 2, now=LATE) == everything(2)


def test_what_is_due_and_not_handed_out_is_left_by_the_reading():
    scene = Scene("a", "b")
    scene.read("a", 1)
    assert scene.read("b", 1, now=LATE) == []
    assert scene.handed_out("b", LATE) == everything(1)


def test_a_subscription_that_asks_for_little_keeps_the_rest():
    scene = Scene("a", "b")
    scene.read("a", 1, 2)
    scene.read("b", 1, 2)
    assert scene.handed_out("a", LATE, limit=3) == everything(1)[:3]
    assert scene.handed_out("b", LATE) == everything(1, 2)
    assert scene.index.owed("a") == 2 * PER_LEDGER - 3
    assert scene.index.contains_message("a", 1, 3)
    assert not scene.index.contains_message("a", 1, 2)
    assert scene.read("a", 1, now=LATE) == everything(1)[:3]
    assert scene.handed_out("a", LATE, limit=8) == everything(1, 2)[3:11]
    assert scene.handed_out("a", LATE) == everything(1, 2)[11:]


def test_what_is_acknowledged_is_not_handed_out():
    scene = Scene("a", "b")
    scene.read("a", 1, 2)
    scene.read("b", 1, 2)
    scene.index.acknowledge("a", np.array([1, 2]), np.array([9, 0]))
    scene.index.mark_delete("a", Position(1, 6))
    assert scene.index.contains_messages("a", np.array([1, 1, 1, 2, 2]), np.array([6, 7, 9, 0, 1])).tolist() == [
        False,
        True,
        False,
        False,
        True,
    ]
    assert scene.index.contains_message("b", 1, 0)
    assert scene.handed_out("b", LATE) == everything(1, 2)
    scene.index.acknowledge("a", np.array([1]), np.array([7]))
    assert scene.handed_out("a", LATE) == [(1, 8), *everything(2)[1:]]


def test_the_mark_delete_position_never_goes_back():
    scene = Scene("a")
    scene.index.mark_delete("a", Position(2, 3))
    scene.index.mark_delete("a", Position(1, 0))
    assert scene.read("a", 2, now=LATE) == everything(2)[4:]


def test_the_slowest_subscription_keeps_the_buckets():
    scene = Scene("fast", "slow")
    scene.read("fast", 1, 2, 3, 4)
    scene.read("slow", 1)
    first, second, third = scene.buckets()
    scene.index.mark_delete("fast", Position(3, 9))
    assert scene.buckets() == [first, second, third]
    scene.index.mark_delete("slow", Position(2, 0))
    assert scene.buckets() == [second, third]
    scene.index.unsubscribe("slow")
    assert scene.buckets() == [third]
    assert scene.handed_out("fast", LATE) == everything(4)


def test_a_later_subscription_uses_what_is_there():
    scene = Scene("a")
    scene.read("a", 1, 2)
    scene.index.read_from("late", AcknowledgedMessages(Position(1, 4), entry_set((2, 1))))
    assert scene.index.contains_message("late", 1, 5)
    assert scene.handed_out("a", NOW_MS + 7_000) == [*everything(1)[:7], *everything(2)[:7]]
    assert scene.read("late", 1, 2, now=NOW_MS + 7_000) == [(1, 5), (1, 6), (2, 0), *everything(2)[2:7]]
    assert scene.handed_out("late", LATE) == [*everything(1)[7:], *everything(2)[7:]]


def test_a_reset_gives_everything_again_to_that_subscription():
    scene = Scene("a", "b")
    for name in ("a", "b"):
        scene.read(name, 1, 2)
    for name in ("a", "b"):
        assert len(scene.handed_out(name, NOW_MS + 5_000)) == PER_LEDGER
    scene.index.mark_delete("a", Position(1, 4))
    scene.index.read_from("a", AcknowledgedMessages(START))
    assert scene.read("a", 1, 2, now=NOW_MS + 5_000) == [*everything(1)[:5], *everything(2)[:5]]
    later = [*everything(1)[5:], *everything(2)[5:]]
    assert scene.handed_out("a", LATE) == scene.handed_out("b", LATE) == later


def test_clear_is_one_subscriptions_own():
    scene = Scene("a", "b")
    scene.read("a", 1)
    scene.read("b", 1)
    scene.index.mark_delete("a", Position(1, 1))
    assert len(scene.handed_out("b", NOW_MS + 5_000)) == 5
    scene.index.clear("a")
    assert scene.index.owed("a") == 0
    assert scene.handed_out("a", NOW_MS + 5_000) == []
    assert scene.read("a", 1, now=NOW_MS + 5_000) == everything(1)[2:5]
    assert scene.handed_out("a", LATE) == scene.handed_out("b", LATE) == everything(1)[5:]


def test_the_last_subscription_takes_the_index_with_it():
    scene = Scene("a", "b")
    scene.read("a", 1, 2)
    scene.index.unsubscribe("a")
    assert len(scene.buckets()) == 1
    scene.index.unsubscribe("b")
    assert scene.buckets() == []
    assert scene.index.number_of_delayed_messages == 0


def test_a_loaded_topic_goes_on_from_the_buckets():
    scene = Scene("a", "b")
    scene.read("a", 1, 2)
    scene.read("b", 1, 2)
    assert len(scene.handed_out("a", NOW_MS + 5_000)) == PER_LEDGER
    then = NOW_MS + 5_000
    acknowledged = entry_set(*everything(2)[:5])
    scene.load({"a": AcknowledgedMessages(Position(1, 4), acknowledged), "b": AcknowledgedMessages(START)}, then)
    assert scene.index.number_of_delayed_messages == 5
    assert scene.read("b", 1, 2, now=then) == [*everything(1)[:5], *everything(2)[:5]]
    assert scene.read("a", 1, 2, now=then) == []
    later = [*everything(1)[5:], *everything(2)[5:]]
    assert scene.handed_out("a", LATE) == scene.handed_out("b", LATE) == later


def test_entries_that_are_tracked_need_not_be_read():
    scene = Scene("a", "b")
    scene.read("a", 1)
    entries = np.arange(PER_LEDGER + 2)
    assert scene.index.pass_over("b", np.full(len(entries), 1), entries) == PER_LEDGER
    assert scene.index.pass_over("b", np.array([2]), np.array([0])) == 0
    assert scene.handed_out("b", LATE) == everything(1)


def test_a_broken_snapshot_is_told_to_those_that_had_read_it():
    scene = Scene("a", "b", "c")
    scene.read("a", 1, 2)
    scene.read("b", 1, 2)
    scene.storage.snapshots.clear()
    assert scene.handed_out("a", LATE) == [(1, 0), *everything(2)]
    unread = entry_set(*everything(1)[1:])
    assert scene.index.take_unread("a") == unread
    assert len(scene.index.take_unread("a")) == 0
    scene.index.mark_delete("b", Position(1, 3))
    assert scene.index.take_unread("b") == entry_set(*everything(1)[4:])
    assert len(scene.index.take_unread("c")) == 0
    assert scene.read("a", 1, now=LATE) == everything(1)


def test_a_clock_that_is_set_back_hands_nothing_out_twice():
    scene = Scene("a", "b")
    scene.read("a", 1)
    scene.read("b", 1)
    assert len(scene.handed_out("a", NOW_MS + 5_000)) == 5
    assert scene.read("a", 1, now=NOW_MS) == everything(1)[:5]
    assert scene.handed_out("b", NOW_MS) == everything(1)[:5]


def test_a_message_alone_is_as_one_of_many():
    scene = Scene("a")
    assert scene.index.add_message("a", 1, 0, NOW_MS + 1, NOW_MS)
    assert not scene.index.add_message("a", 1, 1, NOW_MS, NOW_MS)
    assert not scene.index.has_message_available("a", NOW_MS)
    assert scene.index.has_message_available("a", NOW_MS + 1)
    assert scene.index.nbytes > 0


def test_a_subscription_must_be_known():
    with pytest.raises(ValueError, match="'x'"):
        Scene("a").index.get_scheduled_messages("x", 1, NOW_MS)
