"""What got lost between two scans is weighed by the ledgers and bytes that it listed, not by z-nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.scan import shrinkage
from pulsar_lifecycle.scan.shrinkage import LISTED, Limit, Limits, Listing, Now, Sizes, lost_references
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.gaps import Gap, GapCode

LIMITS = Limits(share=0.2, ledgers=1_000, nbytes=1 << 40)


def listing(*rows: tuple[str, int, int], table: str = "managed_ledgers", root: str = "", cut: int = 3) -> Listing:
    every = [dict(zip(LISTED.names, row, strict=True)) for row in rows]
    parts = [pa.Table.from_pylist(every[i : i + cut], LISTED) for i in range(0, len(every), cut)]
    return Listing(table, root, lambda: parts)


def sizes(**length: int) -> Sizes:
    rows = [{"ledger_id": int(name[1:]), "length": value} for name, value in length.items()]
    return Sizes([pa.Table.from_pylist(rows, pa.schema({"ledger_id": pa.int64(), "length": pa.int64()}))])


def now(there: Iterable[int], referenced: Iterable[int] = (), ours: Iterable[int] = (), **length: int) -> Now:
    return Now(BitMap64(referenced), BitMap64(there), BitMap64(ours), sizes(**length))


def lost(listings: Sequence[Listing], state: Now, limits: Limits = LIMITS, gone: Iterable[int] = ()) -> list[Gap]:
    return lost_references(listings, state, limits, lambda ids: set(ids) - set(gone))


def weighed(listings: Sequence[Listing], state: Now) -> list[tuple[int, int, int, int]]:
    """Of each listing the ledgers lost, those listed, and the bytes of both."""
    losses = shrinkage.weigh(listings, state)
    return [(len(one.lost), len(one.listed), one.lost_bytes, one.listed_bytes) for one in losses]


ALL = [listing(("/a", 1, 10), ("/a", 2, 10), ("/b", 3, 10), ("/b", 4, 10), ("/c", 5, 10))]


def test_a_small_cluster_that_lost_every_topic_is_a_gap() -> None:
    (gap,) = lost(ALL, now({1, 2, 3, 4, 5}))
    assert (gap.code, gap.where) == (GapCode.LOST_REFERENCES, "managed_ledgers")
    assert "5 of 5 ledgers (50 of 50 bytes)" in gap.text
    assert "/a, /b, /c" in gap.text


def test_topics_that_brokers_deleted_are_none_however_many() -> None:
    assert lost(ALL, now(())) == []
    assert lost(ALL, now({1, 2}, {1, 2})) == []


@pytest.mark.parametrize(("referenced", "gaps"), [({1, 2, 3, 4}, 0), ({1, 2, 3}, 1)])
def test_a_share_may_be_lost(referenced: set[int], gaps: int) -> None:
    assert len(lost(ALL, now({1, 2, 3, 4, 5}, referenced))) == gaps


def test_what_our_own_first_phase_took_off_is_not_lost() -> None:
    assert lost(ALL, now({1, 2, 3, 4, 5}, {5}, ours={1, 2, 3, 4})) == []


def test_what_a_broker_deletes_during_the_scan_is_looked_at_again() -> None:
    """BookKeeper is listed first."""
    assert lost(ALL, now({1, 2, 3, 4, 5}), gone={1, 2, 3, 4, 5}) == []
    assert len(lost(ALL, now({1, 2, 3, 4, 5}), gone={1, 2, 3})) == 1


def test_an_offloaded_topic_is_lost_though_a_broker_exchanged_its_last_ledger_before() -> None:
    """As after a restart of all brokers: of what was listed, BookKeeper has nothing any more."""
    topics = [listing(("/a", 1, 10), ("/a", 2, 10), ("/a", 3, 0), ("/b", 4, 10), ("/b", 5, 10), ("/b", 6, 0))]
    new = replace(now({100, 101}), written={100: "/a", 101: "/b"})
    assert len(lost(topics, new)) == 1
    assert weighed(topics, new) == [(6, 6, 40, 40)]
    assert lost(topics, new, gone={100, 101}) == []  # a broker deleted both topics meanwhile
    assert lost(topics, replace(new, written={100: "/other"})) == []
    trimmed = replace(new, referenced=BitMap64({2, 3, 5, 6}))
    assert lost(topics, trimmed) == []


def test_few_heavy_ledgers_count_as_much_as_many_light_ones() -> None:
    many = [("/light", n, 1) for n in range(1, 100)]
    there = now(range(1, 101), range(1, 100), L100=10_000)
    listings = [listing(*many, ("/heavy", 100, 0))]
    assert len(lost(listings, there)) == 1
    assert weighed(listings, there) == [(1, 100, 10_000, 10_099)]


@pytest.mark.parametrize(("limits", "limit"), [((1.0, 2, 99), Limit.LEDGERS), ((1.0, 3, 29), Limit.BYTES)])
def test_no_share_allows_more_than_the_absolute_limits(limits: tuple[float, int, int], limit: Limit) -> None:
    state = now({1, 2, 3, 4, 5}, {4, 5})
    (gap,) = lost(ALL, state, Limits(*limits))
    assert [Limits(*limits).exceeded(loss) for loss in shrinkage.weigh(ALL, state)] == [limit]
    assert gap.code is GapCode.LOST_REFERENCES
    assert gap.text.endswith(f"if nobody needs them, raise {limit} for one scan")
    assert lost(ALL, state, Limits(1.0, 3, 30)) == []


def test_what_a_lost_topic_had_offloaded_counts_and_what_another_trimmed_does_not() -> None:
    rows = [
        ("/lost", 1, 1),
        *(("/lost", n, 1_000) for n in range(2, 12)),
        *(("/kept", n, 1_000) for n in range(20, 60)),
    ]
    listings, state = [listing(*rows, cut=100)], now({1, 59}, {59})
    assert len(lost(listings, state)) == 1
    assert [figures[:2] for figures in weighed(listings, state)] == [(11, 51)]


def test_each_root_and_table_by_itself_and_each_ledger_once() -> None:
    west = listing(("/w", 9, 1), ("/v", 9, 1), root="west")
    big = listing(*((f"/{n}", n, 1) for n in range(10, 200)))
    listings, state = [big, west, listing(table="schemas")], now(range(300), range(10, 200))
    (gap,) = lost(listings, state)
    assert gap.where == "managed_ledgers@west"
    assert (1, 1, 1, 1) in weighed(listings, state)


def test_a_ledger_that_another_topic_lists_still_is_not_lost() -> None:
    assert lost([listing(("/source", 1, 1))], now({1}, {1})) == []


def test_tables_are_turned_into_listings() -> None:
    ledgers = [{"ledger_id": 1, "size": 7}, {"ledger_id": 2}]
    rows = [{"path": "/a", "ledgers": ledgers}, {"path": "/b", "ledgers": []}]
    made = shrinkage.by_topics(pa.Table.from_pylist(rows, tables.MANAGED_LEDGERS))
    assert [tuple(r.values()) for r in made.to_pylist()] == [("/a", 1, 7), ("/a", 2, 0)]
    bucket = {"start": 1, "end": 2, "ledger_id": 5}
    cursor = {"path": "/a/s", "managed_ledger": "a", "cursors_ledger_id": 3, "compacted_ledger_id": 4}
    made = shrinkage.by_cursors(pa.Table.from_pylist([cursor | {"buckets": [bucket]}], tables.MANAGED_CURSORS))
    assert sorted(made.column("ledger_id").to_pylist()) == [3, 4, 5]
    version = {"version": 0, "ledger_id": 6, "entry_id": 0}
    schema = {"path": "/schemas/x", "schema_id": "x", "versions": [version]}
    assert shrinkage.by_schemas(pa.Table.from_pylist([schema], tables.SCHEMAS)).column("ledger_id").to_pylist() == [6]
    unread = {"ledger_id": None, "referrer": "/a", "problem": "unread", "error": "x"}
    assert not shrinkage.by_references(pa.Table.from_pylist([unread], tables.REFERENCES)).num_rows
