"""A sealed bucket has the bytes that a broker writes."""

from __future__ import annotations

import numpy as np
import pytest

from pulsar_lifecycle.delayed_index.cutting import NO_LIMIT, cut
from pulsar_lifecycle.delayed_index.keys import bucket_key, parse_bucket_key
from pulsar_lifecycle.delayed_index.tracking.sealing import ALWAYS, read_whole, seal, unrecoverable
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats._wire import fields, read_varint
from pulsar_lifecycle.formats.delayed_indexes import Indexes
from tests.golden.files import entries, matching, name

STEP_MS, COUNT = 300_000, 5_000
"""The broker's defaults, with which the golden buckets were made."""


@pytest.mark.parametrize("path", matching("delayed/unmerged/*.entries.bin"), ids=name)
def test_a_bucket_of_a_broker_is_sealed_to_the_same_bytes(path):
    stored = entries(path)
    table, indexes, bounds = read_whole(stored)
    assert np.array_equal(bounds, cut(indexes.timestamps, STEP_MS, COUNT))
    assert table.minimums == tuple(indexes.timestamps[bounds[:-1]])
    assert table.maximums == tuple(indexes.timestamps[bounds[1:] - 1])
    shuffled = indexes[np.random.default_rng(1).permutation(len(indexes))]
    snapshot = seal(shuffled, STEP_MS, COUNT)
    assert snapshot.entries == tuple(stored)
    assert snapshot.indexes.equals(indexes)
    assert snapshot.segments == len(stored) - 1


@pytest.mark.parametrize(
    ("times", "count", "bounds"),
    [
        ([], 5, [0]),
        ([7], 5, [0, 1]),
        ([0, 9, 10, 19, 20], 5, [0, 2, 4, 5]),
        ([0, 9, 18, 27], 5, [0, 2, 4]),
        ([5, 5, 5, 5, 5], 2, [0, 2, 4, 5]),
        ([5, 5, 5, 5, 5], NO_LIMIT, [0, 5]),
    ],
)
def test_segments_end_by_time_and_by_count(times, count, bounds):
    assert cut(np.array(times, np.int64), 10, count).tolist() == bounds


@pytest.mark.parametrize(("step", "count"), [(0, 5), (10, 0), (10, -2)])
def test_segments_of_nothing_are_refused(step, count):
    with pytest.raises(ValueError, match="segments of"):
        cut(np.array([1]), step, count)


def test_a_bucket_may_cover_more_ledgers_than_its_messages_are_in():
    snapshot = seal(Indexes.of([(10, 5, 0), (5, 6, 1)]), 100, 10, 4, 9)
    assert snapshot.key == bucket_key(4, 9)
    assert snapshot.indexes.triples() == [(5, 6, 1), (10, 5, 0)]


@pytest.mark.parametrize(
    ("triples", "said"),
    [
        ([(1, 3, 0), (2, 5, 0)], "ledgers 3 to 5 in a bucket of 4 to 9"),
        ([(1, 5, 0), (2, 5, 0)], "message 5:0 twice"),
        ([(1, 5, 1 << 32)], "a bitmap holds entries up to"),
        ([(-1, 5, 0)], "before 1970"),
    ],
)
def test_what_no_snapshot_can_hold_is_refused(triples, said):
    with pytest.raises(ValueError, match=said):
        seal(Indexes.of(triples), 100, 10, 4, 9)


def test_entry_0_of_another_number_of_segments_is_corrupt():
    snapshot = seal(Indexes.of([(10, 5, 0), (500, 6, 1)]), 100, 10)
    with pytest.raises(CorruptFormat, match="a description of 1 segments, found 2"):
        read_whole(snapshot.entries[:2])


def test_what_comes_after_the_segments_is_read_by_nobody():
    snapshot = seal(Indexes.of([(10, 5, 0), (500, 6, 1)]), 100, 10)
    assert read_whole([*snapshot.entries, b"\xff"])[1].equals(snapshot.indexes)


@pytest.mark.parametrize(
    ("damage", "when"),
    [
        ({0: b"\xff"}, (ALWAYS,)),
        ({1: b"\xff"}, ((0, 10),)),
        ({2: b"\xff"}, ((10, 500),)),
        ({3: None}, ((500, 900),)),
        ({1: b"\xff", 3: None}, ((0, 10), (500, 900))),
    ],
)
def test_a_broker_needs_entry_0_and_the_segment_that_is_next(damage, when):
    entries = list(seal(Indexes.of([(10, 5, 0), (500, 6, 1), (900, 6, 2)]), 100, 10).entries)
    found = [damage.get(number, entry) for number, entry in enumerate(entries)]
    assert unrecoverable([entry for entry in found if entry is not None]) == when


def test_ledgers_of_entry_0_come_in_the_order_of_a_java_hash_map():
    """HashMap<Long, ...> of 16 slots, then 32: its slots ascend, in a slot the last that came is the first."""
    ledgers = [33, 1, 17, 16, 2]
    snapshot = seal(Indexes.of((n, ledger, 0) for n, ledger in enumerate(ledgers)), 100, 100)
    assert list(_order(snapshot.entries[0])) == [[16, 17, 1, 33, 2]]
    more = [*ledgers, *range(3, 12)]  # 14 ledgers: it has grown
    snapshot = seal(Indexes.of((n, ledger, 0) for n, ledger in enumerate(more)), 100, 100)
    assert list(_order(snapshot.entries[0])) == [[1, 33, *range(2, 12), 16, 17]]
    then = [*((n, ledger, 0) for n, ledger in enumerate(more)), *((n + 900, n, 1) for n in (17, 1, 33))]
    snapshot = seal(Indexes.of(then), 100, 100)
    assert list(_order(snapshot.entries[0]))[1] == [33, 1, 17]  # it does not shrink


def _order(data):
    """The ledgers of each segment as they stand in the bytes."""
    for segment in _repeated(data):
        yield [read_varint(one, 1)[0] for one in _repeated(segment)]


def _repeated(data):
    """What a message's fields 1 hold."""
    for offset, number in fields(data):
        if number == 1:
            size, begin = read_varint(data, offset + 1)
            yield data[begin : begin + size]


@pytest.mark.parametrize(
    "key", ["", "#pulsar.internal.delayed.bucket_1", "x_1_2", bucket_key(3, 2), bucket_key(1, 2) + "_3"]
)
def test_another_property_is_no_bucket_key(key):
    with pytest.raises(ValueError, match=": not "):
        parse_bucket_key(key)


def test_a_bucket_key_has_its_first_and_last_ledger():
    assert parse_bucket_key(bucket_key(3, 12)) == (3, 12)
