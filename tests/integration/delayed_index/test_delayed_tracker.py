"""Our tracker of delayed messages beside the one in the broker's jar, on the same random schedules.

No server is needed. Both see the same messages at the same times, are dropped and recover, and must have the same
buckets, segments, bitmaps and bytes, and hand out the same messages. Schedules keep to what Java's survives.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.keys import bucket_key, parse_bucket_key
from pulsar_lifecycle.delayed_index.tracking.merging import MergeRule
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from sandbox.servers.toolchain import find_tools
from tests.kit.delayed.bucket_storage import InMemoryBucketKeys, InMemoryBucketStorage
from tests.kit.delayed.java_tracker import JavaTracker, java_tracker

pytestmark = pytest.mark.integration

SCHEDULES = 25
STEPS = 30
TICK_MS = 1_000
START_MS = 1_795_225_194_411


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTracker]:
    with java_tracker(find_tools(), tmp_path_factory.mktemp("classes")) as tracker:
        yield tracker


class Both:
    """One schedule, played to both."""

    def __init__(self, java: JavaTracker, rng: random.Random, max_buckets: int = -1) -> None:
        self.java, self.rng = java, rng
        least, seconds = rng.choice([0, 1, 20, 200]), rng.choice([1, 5, 300])
        most, strict = rng.choice([-1, 1, 13, 5_000]), rng.random() < 0.3
        self.now = START_MS
        self.settings = DelayedIndexSettings(
            delayed_delivery_min_index_count_per_bucket=least,
            delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=seconds,
            delayed_delivery_max_indexes_per_bucket_snapshot_segment=most,
            delayed_delivery_max_num_buckets=max_buckets,
            delayed_delivery_tick_time_millis=TICK_MS,
            is_delayed_delivery_deliver_at_time_strict=strict,
        )
        java.ask("start", least, seconds * 1000, most, max_buckets, TICK_MS, str(strict).lower(), self.now)
        self.storage, self.keys = InMemoryBucketStorage(), InMemoryBucketKeys()
        self.load_ours()
        self.ledger, self.entry = rng.choice([3, 130, 20_000]), 0
        self.stride = rng.choice([1, 1, 16, 17, 1 << 33])
        """Between the topic's ledgers: how they fall into the slots of Java's hash map."""
        self.spread = rng.choice([2_000, 60_000, 86_400_000])
        self.due: dict[tuple[int, int], int] = {}
        self.gone: set[tuple[int, int]] = set()
        """Handed out, or delivered at once."""

    def load_ours(self) -> None:
        self.ours = BucketTracker(
            self.settings,
            self.storage,
            self.keys,
            "persistent://public/default/t",
            "sub",
            self.now,
            MergeRule.BROKER_4_0_7,
        )

    def read(self, positions: list[tuple[int, int]]) -> None:
        triples = [(*position, self.due[position]) for position in positions if position not in self.gone]
        if triples:
            tracked = self.ours.add_messages(*np.array(triples, np.int64).T, self.now).tolist()
            assert tracked == self.java.add(self.now, triples)
            self.gone |= {triple[:2] for triple, one in zip(triples, tracked, strict=True) if not one}

    def publish(self) -> None:
        rng, made = self.rng, []
        for _ in range(rng.choice([1, 10, 150])):
            if rng.random() < 0.06:
                self.ledger, self.entry = self.ledger + self.stride * rng.randint(1, 3), 0
            position = (self.ledger, self.entry)
            self.entry += rng.choice([1, 1, 1, 2, 700])
            if rng.random() < 0.8:
                self.due[position] = self.now + rng.randint(-500, self.spread)
                made.append(position)
        self.read(made)

    def hand_out(self, limit: int = 1_000_000) -> None:
        ours = self.ours.get_scheduled_messages(limit, self.now)
        found = [triple[1:] for triple in ours.triples()]
        assert sorted(found) == self.java.get(self.now, limit)
        self.gone |= set(found)

    def recover(self) -> None:
        """As after an unload: everything that is not acknowledged is read again, in order."""
        self.java.ask("load", self.now)
        self.load_ours()
        self.compare()
        self.read(sorted(self.due))

    def compare(self) -> None:
        assert self.ours.number_of_delayed_messages == self.java.count()
        assert self.keys.buckets == self.java.properties()
        assert {i: one.entries for i, one in self.storage.snapshots.items()} == self.java.snapshots()
        for bucket, theirs in zip(self.ours.buckets, self.java.buckets(), strict=True):
            assert (bucket.start_ledger_id, bucket.end_ledger_id) == (theirs.start, theirs.end)
            assert (bucket.bucket_id, bucket.segments) == (theirs.bucket_id, theirs.segments)
            assert (bucket.loaded, bucket.messages) == (theirs.loaded, theirs.messages)
            assert {ledger: list(bits) for ledger, bits in bucket.undelivered.bitmaps.items()} == theirs.undelivered

    def finish(self) -> None:
        self.now += 10 * 86_400_000
        self.hand_out()
        self.compare()
        assert self.java.count() == 0
        assert self.gone == set(self.due)


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_both_have_the_same_buckets_bytes_and_deliveries(java: JavaTracker, seed: int) -> None:
    rng = random.Random(seed)
    both = Both(java, rng)
    for _ in range(STEPS):
        match rng.choice(["publish", "publish", "read", "time", "hand out", "recover"]):
            case "publish":
                both.publish()
            case "read":
                both.read(sorted(rng.sample(sorted(both.due), min(len(both.due), 20))))
            case "time":
                both.now += rng.choice([1, 900, 5_000, 400_000, both.spread // 3])
            case "hand out":
                both.hand_out()
            case _:
                both.recover()
        both.compare()
    both.finish()


def test_a_merge_has_what_the_brokers_has_and_what_that_one_loses(java: JavaTracker) -> None:
    """Buckets of one size and of three segments: fewer of either, and Java's throws an exception or picks others."""
    agreed = 0
    for seed in range(12):
        both = Both(java, random.Random(seed), max_buckets=4)
        least = max(both.settings.delayed_delivery_min_index_count_per_bucket, 3)
        begin = both.now + 10_000
        for ledger in range(1, 7):
            positions = [(ledger, entry) for entry in range(least)]
            both.due |= {one: begin + both.rng.randrange(1_000) + 400_000 * (one[1] % 3) for one in positions}
            both.read(positions)
        (ours,), (theirs,) = merged(both.keys.buckets), merged(java.properties())
        if ours == theirs:
            agreed += 1
            stored = both.storage.snapshots[both.keys.buckets[ours]].entries
            have, lacks = messages(stored), messages(java.snapshots()[java.properties()[theirs]])
            first, last = parse_bucket_key(ours)
            assert have == {(both.due[one], *one) for one in both.due if first <= one[0] <= last}
            assert lacks < have
        both.now += 10_000_000
        both.hand_out()
        assert both.gone == set(both.due)
    assert agreed


@pytest.mark.parametrize(("left", "sealed"), [(19, (1, 4)), (20, (1, 1))])
def test_the_brokers_seals_over_the_next_bucket_what_is_too_little_for_one(
    java: JavaTracker, left: int, sealed: tuple[int, int]
) -> None:
    """Why a repair leaves no gap, and a check finds one (``IndexFinding.GAP``)."""
    least, count = 20, 50
    java.ask("start", least, 60_000, 10, -1, TICK_MS, "false", START_MS)
    due = {(ledger, entry): START_MS + 86_400_000 + entry for ledger in range(1, 6) for entry in range(count)}
    triples = [(*position, at) for position, at in sorted(due.items())]
    java.add(START_MS, triples[: 4 * count])
    java.ask("unname", bucket_key(1, 1))
    java.ask("load", START_MS)
    java.add(START_MS, triples[count - left :])
    assert {parse_bucket_key(key) for key in java.properties()} - {(4, 4)} == {sealed, (2, 2), (3, 3)}


def merged(keys: dict[str, int]) -> list[str]:
    """The keys of more than one ledger."""
    return [key for key in keys if len(set(parse_bucket_key(key))) == 2]


def messages(entries: tuple[bytes, ...]) -> set[tuple[int, int, int]]:
    """All of a snapshot."""
    return set(read_whole(entries)[1].triples())
