"""Where an index and its topic differ."""

from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from pulsar_lifecycle.delayed_index.compare import compare, compare_places
from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet
from pulsar_lifecycle.formats.delayed_indexes import Indexes

PLACES = st.tuples(st.integers(1, 4), st.one_of(st.integers(0, 6), st.sampled_from([1 << 20, 1 << 31])))
TRUTH = st.dictionaries(PLACES, st.integers(1, 3), max_size=12)
INDEX = st.lists(st.tuples(PLACES, st.integers(1, 3)), max_size=14)


@given(truth=TRUTH, index=INDEX)
def test_each_difference_is_named(truth, index):
    found = compare(
        Indexes.of((time, *place) for place, time in truth.items()),
        Indexes.of((time, *place) for place, time in index),
    )
    said = {}
    for place, time in index:
        said.setdefault(place, []).append(time)
    assert places(found.missing) == sorted(truth.keys() - said.keys())
    assert places(found.extra) == sorted(said.keys() - truth.keys())
    assert places(found.wrong_time) == sorted(p for p, t in truth.items() if p in said and t not in said[p])
    assert places(found.duplicates) == sorted(p for p, times in said.items() for _ in times[1:])


@given(truth=TRUTH)
def test_alike_differ_in_nothing(truth):
    indexes = Indexes.of((time, *place) for place, time in truth.items())
    found = compare(indexes, indexes.sorted())
    assert [len(part) for part in (found.missing, found.extra, found.wrong_time, found.duplicates)] == [0] * 4


@given(truth=st.sets(PLACES), described=st.sets(PLACES))
def test_bitmaps_beside_the_topic(truth, described):
    bitmaps = {}
    for ledger, entry in described:
        bitmaps.setdefault(ledger, BitMap()).add(entry)
    missing, extra = compare_places(Indexes.of((1, *place) for place in sorted(truth)), EntrySet(bitmaps))
    assert {(ledger, entry) for ledger, bits in missing.bitmaps.items() for entry in bits} == truth - described
    assert {(ledger, entry) for ledger, bits in extra.bitmaps.items() for entry in bits} == described - truth


def places(indexes):
    return sorted(triple[1:] for triple in indexes.triples())
