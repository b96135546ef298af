"""What is found of snapshots beside the messages of their topic, against a naive walk through both.

Entries lie close to each other or far apart: places are told by direct address or by sorting.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.delayed_index.stored.index_findings import judge
from pulsar_lifecycle.delayed_index.stored.subscription import StoredBucket, StoredSubscription, TopicEntries
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole, seal
from pulsar_lifecycle.formats.cursor import LedgerBits, MessageRange
from pulsar_lifecycle.formats.delayed_indexes import Indexes, encode_segment
from pulsar_lifecycle.model import Position

NOW = 1_000_000
FAR = 1 << 31
LEDGERS = (3, 5, 1 << 40)
PLACES = st.tuples(st.sampled_from(LEDGERS), st.one_of(st.integers(0, 6), st.sampled_from([1 << 20, FAR])))
TIMES = st.integers(NOW + 1, NOW + 3)
TRUTH = st.dictionaries(PLACES, TIMES, max_size=14)
ACKNOWLEDGED = st.sets(PLACES, max_size=4)


def stored(ledger: int, table_of: list[tuple[int, int, int]], held: list[tuple[int, int, int]]) -> StoredBucket:
    """A snapshot of one ledger, whose entry 0 is of ``table_of`` and whose only segment has ``held``."""
    sealed = seal(Indexes.of(table_of), 60_000, -1)
    table, indexes, bounds = read_whole([sealed.entries[0], encode_segment(Indexes.of(held).sorted())])
    return StoredBucket(sealed.key, str(ledger), ledger, ledger, ledger, 1, table, indexes, bounds)


@given(
    truth=TRUTH,
    dropped=st.sets(PLACES, max_size=3),
    extra=st.lists(st.tuples(PLACES, TIMES), max_size=3),
    acknowledged=ACKNOWLEDGED,
    by_bits=st.booleans(),
    marked=st.booleans(),
)
def test_each_difference_is_found(truth, dropped, extra, acknowledged, by_bits, marked):
    """``extra`` are indexed twice, at another time, or in no ledger; ``marked``: entry 0 has what was dropped."""
    buckets = []
    held = {ledger: [(time, *place) for place, time in truth.items() if place[0] == ledger] for ledger in LEDGERS}
    for ledger, whole in held.items():
        kept = [one for one in whole if one[1:] not in dropped]
        kept += [(time, *place) for place, time in extra if place[0] == ledger]
        held[ledger] = kept
        if kept:
            described = {one[1:]: one for one in [*kept, *(whole if marked else ())]}.values()
            buckets.append(stored(ledger, list(described), kept))
    if by_bits:
        acknowledged = {place for place in acknowledged if place[1] < 10}
        words = {ledger: sum(1 << entry for of, entry in acknowledged if of == ledger) for ledger in LEDGERS}
        ranges, bits = (), tuple(LedgerBits(ledger, (word,)) for ledger, word in words.items())
    else:
        spans = ((Position(ledger, entry - 1), Position(ledger, entry)) for ledger, entry in acknowledged)
        ranges, bits = tuple(MessageRange(*span) for span in spans), ()
    subscription = StoredSubscription("sub", "/path", 0, 1, Position(3, -1), ranges, bits, tuple(buckets))
    topic = Indexes.of((truth[place], *place) for place in sorted(truth))
    entries = TopicEntries(topic, dict.fromkeys(LEDGERS, FAR), {})

    found = Counter()
    for one in judge(subscription, entries, NOW):
        found[one.code] += one.messages

    places = [one[1:] for some in held.values() for one in some]
    open_ = [place for place in truth if place not in acknowledged]
    wrong = sum(place in truth and place not in acknowledged and time != truth[place] for place, time in _flat(held))
    sealed = {bucket.start for bucket in buckets}
    missing = {place for place in open_ if place not in set(places) and place[0] <= max(sealed, default=-1)}
    assert found[IndexFinding.DUPLICATE] == len(places) - len(set(places))
    assert found[IndexFinding.WRONG_TIME] == wrong
    assert found[IndexFinding.POINTS_NOWHERE] == sum(entry >= FAR for _, entry in places if (_, entry) not in truth)
    lost = {place for place in missing if marked and place[0] in sealed}
    assert found[IndexFinding.LOST] == len(lost)
    assert found[IndexFinding.NOT_INDEXED] == len(missing - lost)


def _flat(held):
    return [(one[1:], one[0]) for some in held.values() for one in some]
