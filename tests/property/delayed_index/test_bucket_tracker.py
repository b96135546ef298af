"""The tracker against a naive one: every delayed message is handed out exactly once, and none early.

Messages are published ledger by ledger and read in order, some again and some late. Storage and properties fail now
and then. The tracker is dropped and taken up again, as after an unload; what is not acknowledged is read again then, as
a broker does.
"""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pulsar_lifecycle.delayed_index.keys import parse_bucket_key
from pulsar_lifecycle.delayed_index.tracking.merging import MergeRule
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from pulsar_lifecycle.errors import StoreError, Unavailable
from tests.kit.delayed.bucket_storage import InMemoryBucketKeys, InMemoryBucketStorage
from tests.kit.delayed.small_settings import SMALL_SETTINGS

TOPIC, CURSOR = "persistent://public/default/t", "sub"
Position = tuple[int, int]
READING = st.sampled_from([None, "one by one", "batched"])
PASSED_MS = st.sampled_from([0, 1, 150, 700, 3_000, 20_000])


class Tracking(RuleBasedStateMachine):
    """The naive model: when each message is due, and which were delivered."""

    @initialize(
        settings=SMALL_SETTINGS,
        seed=st.integers(0, 1 << 16),
        merge_rule=st.sampled_from(MergeRule),
    )
    def begin(self, settings, seed, merge_rule):
        self.settings = settings
        self.merge_rule = merge_rule
        self.storage, self.keys = InMemoryBucketStorage(), InMemoryBucketKeys()
        self.failures = 0
        self.storage.before = self.keys.before = self.fail
        self.now = 1_000_000
        self.ledger, self.entry = 5, 0
        self.due: dict[Position, int] = {}
        self.unread: set[Position] = set()
        """Published, and not read since the tracker was made."""
        self.delivered: set[Position] = set()
        self.reload()
        self.publish(count=40, seed=seed, reading="batched")

    def fail(self, operation):
        if self.failures > 0:
            self.failures -= 1
            raise Unavailable(operation) if self.failures % 2 else StoreError(operation)

    def reload(self):
        while True:
            try:
                self.tracker = BucketTracker(
                    self.settings, self.storage, self.keys, TOPIC, CURSOR, self.now, self.merge_rule
                )
                break
            except (Unavailable, StoreError):
                continue
        self.unread = set(self.due) - self.delivered
        self.acknowledged = set(self.delivered)
        """Before the tracker was made: the replay of the cursor leaves them out."""
        self.handed_out: set[Position] = set()
        """Since then."""

    def cutoff(self):
        return self.settings.cutoff(self.now)

    def deliver(self, position, time):
        """To a consumer that acknowledges it."""
        assert position not in self.delivered, position
        assert time <= self.cutoff(), (position, time, self.now)
        assert self.due[position] == time
        self.delivered.add(position)

    def read(self, positions, batched):
        """As a dispatcher does: what is tracked or not due is left, the rest delivered."""
        positions = [position for position in positions if position not in self.delivered]
        if batched:
            columns = np.array([(*one, self.due[one]) for one in positions], np.int64).reshape(-1, 3).T
            tracked = self.tracker.add_messages(*columns, self.now).tolist()
        else:
            tracked = [self.tracker.add_message(*one, self.due[one], self.now) for one in positions]
        for position, is_tracked in zip(positions, tracked, strict=True):
            self.unread.discard(position)
            assert self.tracker.contains_message(*position) == is_tracked
            if not is_tracked:
                self.deliver(position, self.due[position])

    @rule(count=st.integers(1, 40), seed=st.integers(0, 1 << 16), reading=READING)
    def publish(self, count, seed, reading):
        """Few rules do much each: hypothesis leaves some out of each run."""
        choose = random.Random(seed)
        skipped, longest = choose.randint(1, 20), choose.choice([100, 2_000, 12_000])
        for _ in range(count):
            if choose.random() < 0.2:
                self.ledger, self.entry = self.ledger + skipped, 0
            position = (self.ledger, self.entry)
            self.due[position] = self.now + choose.randint(-50, longest)
            self.unread.add(position)
            self.entry += 1
        if reading:
            self.read(sorted(self.unread), reading == "batched")

    @rule(batched=st.booleans())
    def read_on(self, batched):
        self.read(sorted(self.unread), batched)

    @rule(data=st.data(), batched=st.booleans())
    def read_some_again_or_early(self, data, batched):
        if self.due:
            chosen = data.draw(st.lists(st.sampled_from(sorted(self.due)), max_size=12))
            self.read(list(dict.fromkeys(chosen)), batched)

    @rule(limit=st.sampled_from([0, 1, 2, 7, 1_000]), passed=PASSED_MS)
    def hand_out(self, limit, passed=0):
        self.now += passed
        found = self.tracker.get_scheduled_messages(limit, self.now)
        assert len(found) <= limit
        assert found.is_sorted()
        for time, *position in found.triples():
            assert tuple(position) not in self.handed_out
            self.handed_out.add(tuple(position))
            if tuple(position) not in self.acknowledged:
                self.deliver(tuple(position), time)
        self.read(sorted(self.lost_track()), batched=False)

    def lost_track(self):
        return {
            (ledger, entry) for ledger, entries in self.tracker.take_unread().bitmaps.items() for entry in entries
        } - self.delivered

    @rule()
    def load_the_topic_anew(self):
        self.reload()

    @rule(failures=st.sampled_from([1, 3, 4, 9]))
    def let_calls_fail(self, failures):
        self.failures = failures

    @rule(data=st.data(), how=st.sampled_from(["gone", "torn", "nameless"]))
    def break_a_snapshot(self, data, how):
        if self.storage.snapshots:
            bucket_id = data.draw(st.sampled_from(sorted(self.storage.snapshots)))
            if how == "gone":
                del self.storage.snapshots[bucket_id]
            elif how == "torn":
                stored = self.storage.snapshots[bucket_id]
                at = data.draw(st.integers(0, len(stored.entries) - 1))
                torn = stored.entries[at][:-1]
                stored.entries = (*stored.entries[:at], torn, *stored.entries[at + 1 :])
            else:
                self.keys.buckets = {key: one for key, one in self.keys.buckets.items() if one != bucket_id}

    @rule()
    @precondition(lambda self: not self.failures)
    def clear(self):
        """As skip-all does: it is all acknowledged."""
        self.tracker.clear()
        self.delivered |= set(self.due)
        self.unread.clear()
        assert not self.tracker.buckets
        assert self.tracker.pending or not self.keys.buckets

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "tracker"):
            return
        known = np.array(sorted(self.due), np.int64).reshape(-1, 2).T
        tracked = self.tracker.contains_messages(*known)
        assert int(tracked.sum()) == self.tracker.number_of_delayed_messages
        assert self.tracker.loaded <= self.tracker.number_of_delayed_messages

    @invariant()
    def keys_never_overlap(self):
        if hasattr(self, "keys"):
            ranges = sorted(map(parse_bucket_key, self.keys.buckets))
            assert all(one[1] < two[0] for one, two in pairwise(ranges))

    def teardown(self):
        """All is delivered in the end."""
        if not hasattr(self, "tracker"):
            return
        self.failures = 0
        for _ in range(3):
            self.now += 100_000
            self.read(sorted(self.unread), batched=True)
            self.hand_out(1_000_000)
        assert self.delivered == set(self.due)
        assert self.tracker.number_of_delayed_messages == 0
        assert not self.tracker.buckets
        self.tracker.get_scheduled_messages(1, self.now)
        assert not self.keys.buckets


TestTracking = Tracking.TestCase
TestTracking.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
