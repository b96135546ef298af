"""Segments and entry 0 as arrays say what they say as objects, whatever the bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap, FrozenBitMap

from pulsar_lifecycle.delayed_index.cutting import cut
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole, seal
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import delayed_bucket, delayed_indexes, delayed_metadata, delayed_table
from pulsar_lifecycle.formats.delayed_bucket import DelayedIndex, SnapshotSegment
from pulsar_lifecycle.formats.delayed_indexes import Indexes
from tests.golden.files import GOLDEN, entries
from tests.kit.torn import mutated

NOW_MS = 1_795_225_194_411
BUCKET = entries(GOLDEN / "delayed/unmerged/L237.entries.bin")
NUMBERS = st.one_of(st.integers(0, 200), st.integers(0, 1 << 35), st.integers(0, (1 << 63) - 1))
TIMES = st.one_of(st.integers(NOW_MS, NOW_MS + 86_400_000), NUMBERS)
LEDGERS = st.one_of(st.integers(0, 40), st.sampled_from([127, 128, 16_383, 16_384, 1 << 40]), NUMBERS)
ENTRIES = st.one_of(st.integers(0, 300), st.integers(0, 70_000), st.integers(0, (1 << 32) - 1))
TRIPLES = st.lists(st.tuples(TIMES, LEDGERS, ENTRIES), max_size=40)


def outcome_of(decode, data):
    """What it gives, or what it says is wrong where."""
    try:
        return decode(data), None
    except CorruptFormat as error:
        return None, (error.what, error.offset)


def as_objects(triples):
    return SnapshotSegment(tuple(DelayedIndex(*triple) for triple in triples))


@given(st.lists(TRIPLES, max_size=5))
@settings(max_examples=300)
def test_segments_are_written_and_read_as_objects_are(segments):
    bounds = np.cumsum([0, *map(len, segments)])
    everything = Indexes.of(triple for segment in segments for triple in segment)
    payloads = [delayed_bucket.encode_segment(as_objects(segment)) for segment in segments]
    assert delayed_indexes.encode_segments(everything, bounds) == payloads
    found, where = delayed_indexes.decode_segments(payloads)
    assert found.equals(everything)
    assert np.array_equal(where, bounds)


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=500)
@example(seed=0)
def test_mutated_segments_are_read_or_refused_as_objects_are(seed):
    rng = random.Random(seed)
    few = delayed_indexes.decode_segment(BUCKET[1])[: rng.randint(1, 6)]
    data = mutated(delayed_indexes.encode_segment(few), rng)
    payloads = [BUCKET[1], data, BUCKET[2]] if rng.random() < 0.5 else [data]
    _, refusal = outcome_of(delayed_bucket.decode_segment, data)
    if refusal:
        assert outcome_of(delayed_indexes.decode_segments, payloads)[1] == refusal
        return
    expected = [delayed_bucket.decode_segment(payload).indexes for payload in payloads]
    triples = [(one.timestamp, one.ledger_id, one.entry_id) for segment in expected for one in segment]
    if all(max(triple) < 1 << 63 for triple in triples):
        found, bounds = delayed_indexes.decode_segments(payloads)
        assert found.triples() == triples
        assert np.diff(bounds).tolist() == [len(segment) for segment in expected]
    else:
        with pytest.raises(CorruptFormat, match=r"below 2\*\*63"):
            delayed_indexes.decode_segments(payloads)


def test_a_number_that_no_broker_can_hold_is_refused_where_it_stands():
    good, bad = DelayedIndex(1, 2, 3), DelayedIndex(1, 1 << 63, 3)
    data = delayed_bucket.encode_segment(SnapshotSegment((good, bad)))
    with pytest.raises(CorruptFormat) as refused:
        delayed_indexes.decode_segment(data)
    assert refused.value.offset == len(delayed_bucket.encode_segment(SnapshotSegment((good,))))


def test_many_megabytes_are_read_in_order():
    count = 300_000
    rng = np.random.default_rng(3)
    times = np.sort(NOW_MS + rng.integers(0, 86_400_000, count))
    ledgers = np.where(np.arange(count) < count // 2, 16_000, 17_000)  # varints of two and of three bytes
    everything = Indexes(times, ledgers, rng.integers(0, 50_000, count))
    bounds = np.append(np.arange(0, count, 777), count)
    found, where = delayed_indexes.decode_segments(delayed_indexes.encode_segments(everything, bounds))
    assert found.equals(everything)
    assert np.array_equal(where, bounds)


@given(st.lists(st.tuples(TIMES, NUMBERS, ENTRIES)))
def test_sorting_is_by_time_ledger_and_entry(triples):
    found = Indexes.of(triples)
    assert found.sorted().triples() == sorted(triples)
    assert found.is_sorted() == (sorted(triples) == triples)
    assert [one[1:] for one in found.in_log_order().triples()] == sorted(one[1:] for one in triples)


@given(
    messages=st.dictionaries(st.tuples(LEDGERS, ENTRIES), TIMES, min_size=1, max_size=60),
    step=st.sampled_from([1, 1_000, 300_000, 1 << 40]),
    most=st.sampled_from([-1, 1, 7]),
)
@settings(max_examples=300)
def test_a_sealed_bucket_describes_its_segments(messages, step, most):
    everything = Indexes.of((time, *place) for place, time in messages.items())
    snapshot = seal(everything, step, most)
    table, found, bounds = read_whole(snapshot.entries)
    assert found.triples() == sorted((time, *place) for place, time in messages.items())
    assert np.array_equal(bounds, cut(found.timestamps, step, most))
    assert_described(table, snapshot.entries[0], found, bounds)


@pytest.mark.parametrize("share", [0.02, 0.5, 0.97, 1.0])
def test_bitmaps_of_arrays_bits_and_runs_are_those_of_a_roaring_library(share):
    rng = np.random.default_rng(int(share * 100))
    places = np.flatnonzero(rng.random(140_000) < share)
    times = NOW_MS + np.arange(len(places)) * (1 if share > 0.9 else 0) + rng.integers(0, 3, len(places))
    snapshot = seal(Indexes(times, places // 70_000 + 5, places % 70_000), 30_000, -1)
    assert_described(*read_whole(snapshot.entries)[:1], snapshot.entries[0], snapshot.indexes, snapshot.bounds)


def assert_described(table, data, indexes, bounds):
    """Entry 0 has the bitmaps of the segments, in the bytes that pyroaring gives them."""
    segments = []
    for begin, end, low, high, bitmaps in zip(
        bounds[:-1], bounds[1:], table.minimums, table.maximums, table.bitmaps, strict=True
    ):
        part = indexes[begin:end]
        assert (part.timestamps[0], part.timestamps[-1]) == (low, high)
        expected = {ledger: BitMap(part.entries[part.ledgers == ledger]) for ledger in set(part.ledgers.tolist())}
        assert bitmaps == expected
        frozen = {ledger: FrozenBitMap(bitmap) for ledger, bitmap in expected.items()}
        segments.append(delayed_bucket.SnapshotSegmentMetadata(frozen, low, high))
    value = delayed_bucket.SnapshotMetadata(tuple(segments))
    assert delayed_bucket.decode_metadata(data) == value
    in_order = delayed_bucket.encode_metadata(value)
    assert len(data) == len(in_order)
    if all(len(bitmaps) == 1 for bitmaps in table.bitmaps):
        assert data == in_order


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=300)
def test_mutated_metadata_is_read_or_refused_as_objects_are(seed):
    data = mutated(BUCKET[0], random.Random(seed))
    expected, refusal = outcome_of(delayed_bucket.decode_metadata, data)
    found, refused = outcome_of(delayed_table.decode_table, data)
    assert refused == refusal
    assert refusal or [dict(one.delayed_index_bit_map) for one in expected.segments] == [
        {ledger: FrozenBitMap(bitmap) for ledger, bitmap in bitmaps.items()} for bitmaps in found.bitmaps
    ]


@given(st.lists(ENTRIES, max_size=50), st.integers(0, 65_535), st.integers(0, 9_000))
def test_a_bitmap_of_entries_in_any_order(few, start, count):
    dense = np.random.default_rng(count).permutation(np.arange(start, min(start + count, 65_536)))
    values = np.concatenate((np.array(few, np.int64), dense))
    assert delayed_metadata.bitmap_of(values) == BitMap(values.tolist())
    assert delayed_metadata.bitmap_of(dense) == BitMap(dense.tolist())


ELEMENTS_FALL = bytes.fromhex(
    "0a200a180880800112123a30000001000000000000001000000000001080011880010a240a16080012123a30000001000000"
    "000000001000000001001080808080011880808080010a5e0a1b0880808080802012123a3000000100000000010000100000"
    "0000000a1708800112123a30000001000000000000001000000000000a18080012143a300000010000000000010010000000"
    "00ff020010ab9f8ade9f3418ab9f8ade9f34"
)
"""A table one of whose array containers has 0, 65280 and 2, in this order."""


@pytest.mark.parametrize("cutoff", [0, 1 << 62])
def test_elements_that_do_not_increase_are_refused(cutoff):
    refusal = outcome_of(delayed_table.decode_table, ELEMENTS_FALL)[1]
    assert refusal is not None
    assert outcome_of(lambda data: delayed_table.decode_whole(data, cutoff), ELEMENTS_FALL)[1] == refusal


@given(
    st.lists(TRIPLES.filter(bool), min_size=1, max_size=4),
    st.integers(0, 1 << 32),
    st.sampled_from([0, NOW_MS, 1 << 62]),
)
@settings(max_examples=300)
def test_a_table_taken_up_whole_is_the_table_of_its_segments(buckets, seed, cutoff):
    triples = sorted(
        {(ledger, entry): (time, ledger, entry) for some in buckets for time, ledger, entry in some}.values()
    )
    indexes = Indexes.of(triples)
    data = seal(indexes, 300_000, 7).entries[0]
    for each in (data, mutated(data, random.Random(seed))):
        table, refusal = outcome_of(delayed_table.decode_table, each)
        whole, other = outcome_of(lambda data: delayed_table.decode_whole(data, cutoff), each)
        assert refusal == other
        if table is None:
            continue
        assert (whole.minimums, whole.maximums) == (table.minimums, table.maximums)
        passed = next((n for n, last in enumerate(table.maximums) if last > cutoff), len(table))
        assert whole.passed == passed
        union = delayed_table.union_of(table.bitmaps[passed:])
        if each is data:  # of a damaged array no two readers need say the same
            assert whole.bitmaps == {ledger: bitmap for ledger, bitmap in union.items() if bitmap}
