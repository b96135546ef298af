"""The shared index against a naive one: every subscription gets every message exactly once, and none early.

Subscriptions come, go, are reset, cleared and read at their own pace; each delivers, and acknowledges some time later.
The topic is loaded anew, snapshots break, calls fail. What is delivered and not acknowledged comes again after a reset,
and only then.
"""

from __future__ import annotations

import random

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet
from pulsar_lifecycle.delayed_index.tracking.shared import AcknowledgedMessages, SharedIndex
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from pulsar_lifecycle.errors import StoreError, Unavailable
from pulsar_lifecycle.model import Position
from tests.kit.delayed.bucket_storage import InMemoryBucketKeys, InMemoryBucketStorage
from tests.kit.delayed.small_settings import SMALL_SETTINGS

TOPIC, CURSOR = "persistent://public/default/t", "index"
At = tuple[int, int]
NAMES = ["a", "b", "c"]
READING = st.sampled_from([None, "one by one", "batched"])
PASSED_MS = st.sampled_from([0, 1, 150, 700, 3_000, 20_000])


def columns(positions):
    return np.array(sorted(positions), np.int64).reshape(-1, 2).T


def positions_of(entry_set):
    return {(ledger, entry) for ledger, entries in entry_set.bitmaps.items() for entry in entries}


class Subscription:
    """The naive model of one: what it has had."""

    def __init__(self):
        self.to_read: list[At] = []
        self.delivered: set[At] = set()
        self.acknowledged: set[At] = set()
        self.mark_delete = Position(-1, -1)


class Sharing(RuleBasedStateMachine):
    @initialize(
        settings=SMALL_SETTINGS,
        seed=st.integers(0, 1 << 16),
    )
    def begin(self, settings, seed):
        self.settings = settings
        self.storage, self.keys = InMemoryBucketStorage(), InMemoryBucketKeys()
        self.failures = 0
        self.storage.before = self.keys.before = self.fail
        self.now = 1_000_000
        self.ledger, self.entry = 5, 0
        self.due: dict[At, int] = {}
        self.subscriptions = {"a": Subscription(), "b": Subscription()}
        self.reload()
        self.publish(count=40, seed=seed, reading="batched")

    def fail(self, operation):
        if self.failures > 0:
            self.failures -= 1
            raise Unavailable(operation) if self.failures % 2 else StoreError(operation)

    def state(self, name):
        """What the cursor of a subscription says."""
        one = self.subscriptions[name]
        after = {at for at in one.acknowledged if Position(*at) > one.mark_delete}
        found = EntrySet()
        found.add(*columns(after))
        return AcknowledgedMessages(one.mark_delete, found)

    def rewind(self, name):
        """It reads again all that it did not acknowledge."""
        one = self.subscriptions[name]
        one.to_read = sorted(set(self.due) - one.acknowledged)
        one.delivered = set(one.acknowledged)

    @rule()
    def reload(self):
        while True:
            try:
                tracker = BucketTracker(self.settings, self.storage, self.keys, TOPIC, CURSOR, self.now)
                break
            except (Unavailable, StoreError):
                continue
        self.index = SharedIndex(tracker, {name: self.state(name) for name in self.subscriptions})
        for name in self.subscriptions:
            self.rewind(name)

    def deliver(self, name, at):
        one = self.subscriptions[name]
        assert at not in one.delivered, (name, at)
        assert self.due[at] <= self.settings.cutoff(self.now), (name, at)
        one.delivered.add(at)

    def read(self, name, positions, batched):
        """As a dispatcher does: what is left is owed; the rest is delivered, unless it was."""
        one = self.subscriptions[name]
        if batched:
            rows = np.array([(*at, self.due[at]) for at in positions], np.int64).reshape(-1, 3).T
            left = self.index.add_messages(name, *rows, self.now).tolist()
        else:
            left = [self.index.add_message(name, *at, self.due[at], self.now) for at in positions]
        for at, is_left in zip(positions, left, strict=True):
            if at in one.acknowledged:
                assert is_left
                assert not self.index.contains_message(name, *at)
                continue
            assert self.index.contains_message(name, *at) == is_left
            if not is_left:
                self.deliver(name, at)

    def some(self, data):
        return data.draw(st.sampled_from(sorted(self.subscriptions)))

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
            for one in self.subscriptions.values():
                one.to_read.append(position)
            self.entry += 1
        for name in sorted(self.subscriptions) if reading else []:
            if choose.random() < 0.7:
                self.read_next(name, choose.randint(1, 60), reading == "batched")

    @rule(data=st.data(), count=st.sampled_from([1, 5, 30, 1_000]), batched=st.booleans())
    def read_on(self, data, count, batched):
        self.read_next(self.some(data), count, batched)

    def read_next(self, name, count, batched):
        one = self.subscriptions[name]
        positions, one.to_read = one.to_read[:count], one.to_read[count:]
        self.read(name, [at for at in positions if at not in one.acknowledged], batched)

    @rule(data=st.data(), count=st.sampled_from([1, 5, 30]))
    def pass_over(self, data, count):
        name = self.some(data)
        one = self.subscriptions[name]
        count = self.index.pass_over(name, *columns(one.to_read[:count]))
        assert not one.delivered.intersection(one.to_read[:count])
        one.to_read = one.to_read[count:]

    @rule(data=st.data())
    def read_again(self, data):
        """What is owed, or acknowledged."""
        name = self.some(data)
        one = self.subscriptions[name]
        known = sorted(set(self.due) - set(one.to_read) - (one.delivered - one.acknowledged))
        if known:
            chosen = data.draw(st.lists(st.sampled_from(known), max_size=8, unique=True))
            self.read(name, chosen, batched=data.draw(st.booleans()))

    @rule(data=st.data(), limit=st.sampled_from([0, 1, 2, 7, 1_000]), passed=PASSED_MS)
    def hand_out(self, data, limit, passed):
        self.now += passed
        self.hand_out_to(self.some(data), limit)

    def hand_out_to(self, name, limit):
        one = self.subscriptions[name]
        self.read(name, sorted(positions_of(self.index.take_unread(name)) - one.delivered), batched=False)
        found = self.index.get_scheduled_messages(name, limit, self.now)
        assert len(found) <= limit
        handed_out = positions_of(found)
        assert not handed_out & set(one.to_read)
        for at in handed_out:
            self.deliver(name, at)
        assert handed_out == set(map(tuple, np.array(found.columns()).T.tolist()))
        self.read(name, sorted(positions_of(self.index.take_unread(name)) - one.delivered), batched=False)

    @rule(data=st.data(), part=st.sampled_from([0.3, 1]))
    def acknowledge(self, data, part):
        name = self.some(data)
        one = self.subscriptions[name]
        open_ones = sorted(one.delivered - one.acknowledged)
        chosen = open_ones[: int(len(open_ones) * part) + 1]
        if data.draw(st.booleans()):
            chosen = chosen[::2]
        one.acknowledged.update(chosen)
        self.index.acknowledge(name, *columns(chosen))

    @rule(data=st.data())
    def move_mark_delete(self, data):
        """Up to before the first that is not acknowledged."""
        name = self.some(data)
        one = self.subscriptions[name]
        for at in sorted(self.due):
            if at not in one.acknowledged:
                break
            one.mark_delete = max(one.mark_delete, Position(*at))
        self.index.mark_delete(name, one.mark_delete)

    @rule(data=st.data())
    def skip_all(self, data):
        """Or up to any message: expired, or reset forwards."""
        name = self.some(data)
        one = self.subscriptions[name]
        if self.due:
            at = max(
                data.draw(st.sampled_from(sorted(self.due))), (one.mark_delete.ledger_id, one.mark_delete.entry_id)
            )
            skipped = {one for one in self.due if one <= at}
            one.acknowledged |= skipped
            one.delivered |= skipped
            one.to_read = [one for one in one.to_read if one > at]
            one.mark_delete = Position(*at)
            self.index.mark_delete(name, one.mark_delete)

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def subscribe_or_reset(self, data, name):
        """Anywhere in the topic, with some acknowledged after that."""
        one = Subscription()
        known = sorted(self.due)
        at = data.draw(st.integers(0, len(known)))
        one.acknowledged = set(known[:at])
        if at:
            one.mark_delete = Position(*known[at - 1])
        if known[at:]:
            one.acknowledged |= set(data.draw(st.lists(st.sampled_from(known[at:]), max_size=3)))
        self.subscriptions[name] = one
        self.rewind(name)
        self.index.read_from(name, self.state(name))

    @rule(data=st.data())
    def clear(self, data):
        name = self.some(data)
        self.index.clear(name)
        self.rewind(name)

    @rule(data=st.data())
    def unsubscribe(self, data):
        if len(self.subscriptions) > 1:
            name = self.some(data)
            del self.subscriptions[name]
            self.index.unsubscribe(name)

    @rule(failures=st.sampled_from([1, 3, 4, 9]))
    def let_calls_fail(self, failures):
        self.failures = failures

    @rule(data=st.data(), torn=st.booleans())
    def break_a_snapshot(self, data, torn):
        if self.storage.snapshots:
            bucket_id = data.draw(st.sampled_from(sorted(self.storage.snapshots)))
            if torn:
                stored = self.storage.snapshots[bucket_id]
                at = data.draw(st.integers(0, len(stored.entries) - 1))
                stored.entries = (*stored.entries[:at], stored.entries[at][:-1], *stored.entries[at + 1 :])
            else:
                del self.storage.snapshots[bucket_id]

    @rule()
    def set_the_clock_back(self):
        self.index.has_message_available(min(self.subscriptions), self.now - 5_000)
        self.index.get_scheduled_messages(min(self.subscriptions), 0, self.now - 5_000)

    def teardown(self):
        """All is delivered in the end."""
        if not hasattr(self, "index"):
            return
        self.failures = 0
        for _ in range(3):
            self.now += 100_000
            for name, one in self.subscriptions.items():
                self.read(name, [at for at in one.to_read if at not in one.acknowledged], batched=True)
                one.to_read = []
                self.hand_out_to(name, 1_000_000)
        for name, one in self.subscriptions.items():
            assert one.delivered == set(self.due), name
            assert self.index.owed(name) == 0
        assert self.index.number_of_delayed_messages == 0


TestSharing = Sharing.TestCase
TestSharing.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
