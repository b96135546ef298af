import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.lifecycle.bookies.placement import (
    ENTRY_OVERHEAD,
    PLACEMENT_COLUMNS,
    Placed,
    placed,
    total,
    under_replicated,
)


def ledger(ensembles="0 a b c", ensemble_size=3, write_quorum=2, entries=100, length=10_000):
    return dict(zip(PLACEMENT_COLUMNS, (ensembles, ensemble_size, write_quorum, entries, length), strict=True))


def table(*rows):
    types = [pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.int64()]
    return pa.Table.from_pylist(list(rows), pa.schema(list(zip(PLACEMENT_COLUMNS, types, strict=True))))


def stored(entries, length):
    return length + ENTRY_OVERHEAD * entries


def test_each_bookie_of_an_ensemble_has_its_share():
    found = placed(table(ledger(), ledger(length=20_000)))
    share = round((stored(100, 10_000) + stored(100, 20_000)) * 2 / 3)
    assert found.bookies == dict.fromkeys("abc", Placed(share, 2))


def test_an_entry_of_a_later_segment_is_on_its_bookies_alone():
    row = ledger("0 a b|25 b c", 2, 2)
    each = stored(100, 10_000) / 100
    assert placed(table(row)).bookies == {
        "a": Placed(round(25 * each), 1),
        "b": Placed(round(100 * each), 1),
        "c": Placed(round(75 * each), 1),
    }


def test_a_segment_that_begins_at_the_end_has_no_bytes():
    assert placed(table(ledger("0 a|100 b", 1, 1))).bookies == {"a": Placed(stored(100, 10_000), 1), "b": Placed(0, 1)}


@pytest.mark.parametrize("ensembles", ["0 a b c", "0 a b c|7 a b d"])
def test_a_ledger_that_is_not_closed_has_no_known_bytes(ensembles):
    found = placed(table(ledger(ensembles, entries=None, length=None)))
    assert set(found.bookies.values()) == {Placed(0, 1, 1)}


def test_ledgers_without_a_known_ensemble_are_counted():
    found = placed(table(ledger(None), ledger()))
    assert found.unknown == 1
    assert found.bookies["a"].ledgers == 1


def test_a_ledger_that_lacks_a_copy_counts_on_each_bookie_of_any_segment():
    marked = table(ledger("0 a b|25 b c"), ledger("0 a"), ledger(None))
    found = total([placed(marked), under_replicated(marked)]).bookies
    assert {name: one.under_replicated for name, one in found.items()} == {"a": 2, "b": 1, "c": 1}
    assert {name: one.ledgers for name, one in found.items()} == {"a": 2, "b": 1, "c": 1}


def test_nothing_is_placed_by_no_ledgers():
    assert placed(table()).bookies == {}


segments = st.lists(st.tuples(st.integers(1, 90), st.permutations("abcd").map(lambda p: p[:3])), max_size=3)


@given(st.lists(st.tuples(segments, st.integers(1, 3), st.integers(0, 200), st.integers(0, 1 << 40)), max_size=8))
def test_the_shares_add_up_and_parts_add_up(drawn):
    rows = []
    for more, quorum, entries, length in drawn:
        starts = {0: "abc"} | dict(more)
        text = "|".join(f"{first} {' '.join(starts[first])}" for first in sorted(starts))
        rows.append(ledger(text, 3, quorum, entries, length if entries else 0))
    whole = placed(table(*rows))
    expected = sum((row["length"] + ENTRY_OVERHEAD * row["entries"]) * row["write_quorum"] for row in rows)
    assert sum(one.bytes for one in whole.bookies.values()) == pytest.approx(expected, abs=4 * len(rows) + 4)
    parts = total(placed(table(row)) for row in rows)
    assert {b: p.ledgers for b, p in parts.bookies.items()} == {b: p.ledgers for b, p in whole.bookies.items()}
