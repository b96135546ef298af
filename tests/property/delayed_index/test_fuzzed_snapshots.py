"""Snapshots whose bytes are damaged: read, judged and taken up without any error but ours, which says where."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.keys import bucket_key
from pulsar_lifecycle.delayed_index.stored.index_codes import BucketProblem, IndexFinding
from pulsar_lifecycle.delayed_index.stored.index_findings import judge
from pulsar_lifecycle.delayed_index.stored.index_reading import IndexPorts, read_buckets
from pulsar_lifecycle.delayed_index.stored.subscription import StoredSubscription, TopicEntries
from pulsar_lifecycle.delayed_index.tracking.sealing import seal
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from pulsar_lifecycle.formats import delayed_bucket
from pulsar_lifecycle.formats.delayed_indexes import Indexes
from pulsar_lifecycle.model import Position, Topic
from tests.kit.delayed.bucket_storage import InMemoryBucketKeys, InMemoryBucketStorage
from tests.kit.simulated.cluster import SimulatedCluster, bucket_tags
from tests.kit.torn import mutated

NOW, LEDGER, COUNT = 1_795_225_194_411, 7, 60
TOPIC = Topic.parse("persistent://acme/orders/t")
MESSAGES = Indexes.of([(NOW + 60_000 + entry * 7919 % 600_000, LEDGER, entry) for entry in range(COUNT)])
KEY = bucket_key(LEDGER, LEDGER)
WHOLE = seal(MESSAGES, 60_000, 10, LEDGER, LEDGER).entries


def damaged(seed: int) -> list[bytes]:
    """The entries of a snapshot, one or more of them damaged, lost, repeated or put in another place."""
    rng = random.Random(seed)
    entries = list(WHOLE)
    for _ in range(rng.randint(1, 2)):
        at = rng.randrange(len(entries))
        match rng.randrange(6):
            case 0 if len(entries) > 1:
                del entries[at]
            case 1:
                entries.insert(at, rng.choice(entries))
            case 2:
                other = rng.randrange(len(entries))
                entries[at], entries[other] = entries[other], entries[at]
            case _:
                entries[at] = mutated(entries[at], rng)
    return entries


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=400)
@example(seed=0)
def test_a_damaged_snapshot_is_a_finding_that_says_where(seed: int) -> None:
    servers, entries = SimulatedCluster(), damaged(seed)
    ledger_id = servers.ledger(bucket_tags(TOPIC, "s", LEDGER, LEDGER), entries=entries)
    (bucket,) = read_buckets(IndexPorts(servers.open_store(), servers.reader), {KEY: str(ledger_id)}, "/ledgers")
    one = StoredSubscription("s", "/path", 0, 1, Position(LEDGER, -1), (), (), (bucket,))
    found = {finding.code for finding in judge(one, TopicEntries(MESSAGES, {LEDGER: COUNT}, {}), NOW)}
    if bucket.problem is None:
        assert found or _says_the_same(bucket.indexes)
    else:
        assert bucket.problem is BucketProblem.UNDECODABLE
        assert re.search(r"at byte \d+: expected ", bucket.error)
        assert IndexFinding.UNDECODABLE in found
        not_taken_up = any(begin <= NOW < end for begin, end in bucket.unrecoverable)
        assert (IndexFinding.RECOVERY_FALLBACK in found) == not_taken_up


def _says_the_same(indexes: Indexes) -> bool:
    """Whether a damage left what the snapshot says: some bytes of it mean nothing."""
    return indexes.sorted().equals(MESSAGES.sorted())


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=300)
@example(seed=5769)  # the last entry has a message twice, and another not at all
def test_a_tracker_takes_up_what_it_can_read_of_a_damaged_one(seed: int) -> None:
    assert {(LEDGER, entry) for entry in range(COUNT)} <= handed_out(damaged(seed))


@pytest.mark.parametrize("seed", range(20))
def test_segments_in_any_order_end_no_call_and_lose_nothing(seed: int) -> None:
    segments = list(range(1, len(WHOLE)))
    random.Random(seed).shuffle(segments)
    table = delayed_bucket.decode_metadata(WHOLE[0]).segments
    shuffled = delayed_bucket.SnapshotMetadata(tuple(table[one - 1] for one in segments))
    entries = [delayed_bucket.encode_metadata(shuffled), *(WHOLE[one] for one in segments)]
    assert {(LEDGER, entry) for entry in range(COUNT)} <= handed_out(entries)


def handed_out(snapshot: list[bytes]) -> set[tuple[int, int]]:
    """What a tracker that starts from a snapshot, and reads the topic besides, hands out until it has no more."""
    storage, keys = InMemoryBucketStorage(), InMemoryBucketKeys()
    keys.put(KEY, storage.create_bucket_snapshot(snapshot, KEY, str(TOPIC), "s"))
    settings = DelayedIndexSettings(delayed_delivery_min_index_count_per_bucket=20)
    tracker = BucketTracker(settings, storage, keys, str(TOPIC), "s", NOW)
    log = MESSAGES.in_log_order()
    tracker.add_messages(log.ledgers, log.entries, log.timestamps, NOW)
    came: set[tuple[int, int]] = set()
    for _ in range(100 * COUNT):
        part = tracker.get_scheduled_messages(7, 1 << 62)
        unread = tracker.take_unread()
        if len(unread):  # as whoever reads the topic does
            ledgers, entries = unread.columns()
            mine = entries[ledgers == LEDGER]
            mine = mine[mine < COUNT]
            tracker.add_messages(log.ledgers[mine], mine, log.timestamps[mine], NOW)
        elif not len(part):
            return came
        came.update(zip(part.ledgers.tolist(), part.entries.tolist(), strict=True))
    raise AssertionError("it never ends")
