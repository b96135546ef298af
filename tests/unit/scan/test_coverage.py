"""Every gap that makes a plan report-only."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from pulsar_lifecycle.records import tables
from pulsar_lifecycle.records.epoch import Census, Epoch
from pulsar_lifecycle.records.gaps import Gap, GapCode
from pulsar_lifecycle.records.history import Marks
from pulsar_lifecycle.records.tables import MISSING_ROOT
from pulsar_lifecycle.scan.coverage import broken_history, prove, take_census

TABLES = ("bookkeeper_ledgers", "managed_ledgers", "managed_cursors", "schemas")
EPOCH = Epoch(
    epoch_id="e2",
    cluster="c",
    fingerprint="f",
    started_at=2000,
    finished_at=3000,
    census=tuple(Census(table, "", 1000, 1000, 0, 0) for table in TABLES),
    max_ledger_id=9,
    max_czxid=50,
    shared_with=(),
    zxid=100,
)
BEFORE = replace(EPOCH, epoch_id="e1", started_at=1000, zxid=99)


def gaps(epoch: Epoch, *previous: Epoch, deleted: int = 0, schema_ledgers: int = 1) -> tuple[str, ...]:
    return prove(epoch, previous, deleted, 0.2, schema_ledgers)


def with_census(table: str, epoch: Epoch = EPOCH, **changes: object) -> Epoch:
    census = [replace(c, **changes) if c.table == table else c for c in epoch.census]  # type: ignore[arg-type]
    return replace(epoch, census=tuple(census))


def test_a_whole_scan_has_no_gaps() -> None:
    assert gaps(EPOCH) == gaps(EPOCH, BEFORE) == ()
    accounted = with_census("managed_ledgers", decoded=990, gone=6, empty=4)
    assert gaps(accounted, BEFORE) == ()


def test_undeclared_neighbours_are_a_gap() -> None:
    (gap,) = gaps(replace(EPOCH, shared_with=None))
    assert "shared_with is not set" in gap


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_was_not_read_is_a_gap(table: str) -> None:
    (gap,) = gaps(replace(EPOCH, census=tuple(c for c in EPOCH.census if c.table != table)))
    assert gap == f"{table} was not read"


def test_every_table_of_a_declared_root_must_be_there_but_not_its_bookkeeper() -> None:
    declared = replace(EPOCH, shared_with=("west",))
    assert gaps(declared) == tuple(f"{table} of west was not read" for table in TABLES[1:])
    theirs = tuple(Census(table, "west", 0, 0, 0, 0) for table in TABLES[1:])
    assert gaps(replace(declared, census=EPOCH.census + theirs)) == ()


@pytest.mark.parametrize("table", TABLES)
def test_what_stays_unread_is_a_gap(table: str) -> None:
    (gap,) = gaps(with_census(table, unread=("/some/path: no permission",)))
    assert gap == f"{table}: could not read /some/path: no permission"


@pytest.mark.parametrize("table", TABLES)
def test_a_listing_that_does_not_add_up_is_a_gap(table: str) -> None:
    (gap,) = gaps(with_census(table, mismatched=("/parent",)))
    assert "/parent do not add up" in gap
    for count in (999, 1001):
        (gap,) = gaps(with_census(table, decoded=count))
        assert f"1000 listed, but {count} decoded" in gap


@pytest.mark.parametrize("table", TABLES[2:])
def test_an_undecodable_z_node_is_a_gap_until_it_is_acknowledged_by_path(table: str) -> None:
    broken = with_census(table, decoded=999, corrupt=("/a/b",))
    (gap,) = gaps(broken)
    assert "cannot decode /a/b" in gap
    assert gaps(replace(broken, acknowledged=("/a",))) == (gap,)
    assert gaps(replace(broken, acknowledged=("/a/b",))) == ()


@pytest.mark.parametrize("root", ["", "west"])
def test_an_undecodable_topic_is_a_gap_whatever_is_acknowledged(root: str) -> None:
    """It may be a shadow topic: what it needs is in no particular namespace."""
    theirs = tuple(replace(c, root="west") for c in EPOCH.census[1:])
    whole = replace(EPOCH, census=EPOCH.census + theirs, shared_with=("west",))
    corrupt = [
        replace(c, decoded=999, corrupt=("/a/b",)) if (c.table, c.root) == ("managed_ledgers", root) else c
        for c in whole.census
    ]
    (gap,) = gaps(replace(whole, census=tuple(corrupt), acknowledged=("/a/b",)))
    assert "cannot decode /a/b" in gap
    assert "no acknowledgement" in gap


def test_an_undecodable_ledger_refers_to_nothing() -> None:
    assert gaps(with_census("bookkeeper_ledgers", decoded=999, corrupt=("/ledgers/x",))) == ()


def undecodable(table: str, number: int) -> Census:
    """The census of as many undecodable z-nodes."""
    error = f"{tables.CORRUPT}x"
    rows = [{"parent": "/p", "listed": number, "error": error, "path": f"/p/{n}"} for n in range(number)]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(tables.CENSUS))
    return take_census(table, "", [batch], [batch])


def test_any_number_of_undecodable_ledgers_adds_up() -> None:
    census = undecodable("bookkeeper_ledgers", 1500)
    assert (len(census.corrupt), census.undecodable) == (1000, 1500)
    assert gaps(replace(EPOCH, census=(census, *EPOCH.census[1:]))) == ()


@pytest.mark.parametrize("table", TABLES[2:])
def test_what_is_not_shown_cannot_be_acknowledged(table: str) -> None:
    census = undecodable(table, 1001)
    others = tuple(c for c in EPOCH.census if c.table != table)
    (gap,) = gaps(replace(EPOCH, census=(census, *others), acknowledged=census.corrupt))
    assert gap.startswith(f"{table}: cannot decode 1 more")


def test_schemas_may_be_missing_only_where_no_ledger_is_a_schemas() -> None:
    missing = with_census("schemas", listed=0, decoded=0, unread=(f"/schemas: {MISSING_ROOT}",))
    assert gaps(missing, schema_ledgers=0) == ()
    assert len(gaps(missing, schema_ledgers=1)) == 1
    no_topics = with_census("managed_ledgers", listed=0, decoded=0, unread=(f"/managed-ledgers: {MISSING_ROOT}",))
    assert len(gaps(no_topics, schema_ledgers=0)) == 1


def test_references_and_brokers_that_were_not_heard_are_gaps() -> None:
    assert len(gaps(replace(EPOCH, reference_errors=("a", "b"), broker_errors=("503",)))) == 3


def test_another_cluster_and_time_going_back_are_gaps() -> None:
    (gap,) = gaps(replace(EPOCH, fingerprint="g"), BEFORE)
    assert "fingerprint" in gap
    (gap,) = gaps(replace(EPOCH, zxid=98), BEFORE)
    assert "back in time" in gap


def test_a_break_stays_one_however_far_the_store_has_caught_up() -> None:
    """Every scan inherits it, until the operator sets the earlier ones aside: then there are none."""
    back = replace(EPOCH, zxid=98)
    broken = broken_history(back, [BEFORE])
    assert gaps(back, BEFORE) == (broken,)
    assert "accept-restore" in broken
    back = replace(back, broken=broken, gaps=(broken,))
    later = replace(EPOCH, epoch_id="e3", started_at=3000, finished_at=4000, zxid=500)
    assert gaps(later, BEFORE, back) == (broken,)
    later = replace(later, broken=broken, gaps=(broken,))
    assert broken_history(replace(later, broken="", gaps=(), finished_at=5000), [later]) == broken
    assert gaps(replace(later, broken="")) == ()


def test_a_scan_dated_before_one_that_was_finished_first_is_not_covered() -> None:
    """It might confirm one that was made a minute later."""
    ahead = replace(BEFORE, epoch_id="ahead", finished_at=EPOCH.finished_at + 60_001)
    (gap,) = gaps(EPOCH, BEFORE, ahead)
    assert gap.startswith("scan ahead was finished before this one, and is dated 1 minutes later")
    assert gaps(EPOCH, BEFORE, replace(ahead, finished_at=EPOCH.finished_at + 60_000)) == ()


@pytest.mark.parametrize("clock", [-40 * 86_400_000, 40 * 86_400_000])
def test_every_scan_tells_the_time_whatever_its_clock_said(clock: int) -> None:
    """The scan that saw the most may be dated before or after one that saw less."""
    dated = replace(BEFORE, epoch_id="dated", started_at=5000 + clock, finished_at=6000 + clock, zxid=150)
    back = replace(EPOCH, zxid=BEFORE.zxid + 1)
    assert broken_history(back, [BEFORE]) == ""
    assert "at scan dated it was 0x96" in broken_history(back, [BEFORE, dated])
    assert broken_history(replace(back, zxid=151), [BEFORE, dated]) == ""


def test_uncovered_epochs_tell_the_time_and_covered_ones_the_size() -> None:
    uncovered = with_census(
        "bookkeeper_ledgers",
        replace(BEFORE, started_at=1500, finished_at=3500, zxid=120, gaps=("x",)),
        listed=0,
        decoded=0,
    )
    first, *others = gaps(with_census("bookkeeper_ledgers", listed=700, decoded=700), BEFORE, uncovered)
    assert "back in time" in first
    assert [gap.partition(":")[0] for gap in others] == ["bookkeeper_ledgers"]


def test_a_ledger_that_went_with_its_topic_is_no_going_back_in_time() -> None:
    assert gaps(replace(EPOCH, max_czxid=1, max_ledger_id=1), BEFORE) == ()


@pytest.mark.parametrize(("table", "deleted", "blocks"), [(TABLES[0], 0, 1), (TABLES[0], 200, 0), (TABLES[1], 0, 0)])
def test_bookkeepers_list_may_shrink_by_what_we_deleted_and_a_bound(table: str, deleted: int, blocks: int) -> None:
    assert gaps(with_census(table, listed=800, decoded=800), BEFORE) == ()
    assert len(gaps(with_census(table, listed=799, decoded=799), BEFORE, deleted=deleted)) == blocks


def test_small_listings_may_shrink_and_the_newest_earlier_epoch_counts() -> None:
    small = with_census("bookkeeper_ledgers", BEFORE, listed=100, decoded=100)
    none = with_census("bookkeeper_ledgers", listed=0, decoded=0)
    assert gaps(none, small) == ()
    assert len(gaps(none, small, replace(BEFORE, started_at=1500))) == 1
    assert gaps(none, BEFORE, replace(small, started_at=1500)) == ()


def test_an_epoch_survives_json() -> None:
    epoch = with_census("schemas", unread=("x",), mismatched=("y",))
    epoch = replace(epoch, coded_gaps=(Gap(GapCode.OTHER_ROOT, "/two", "another cluster"),))
    assert "another cluster" in gaps(epoch)
    epoch = replace(epoch, gaps=gaps(epoch), shared_with=None, ids_issued=7, lease=(3, 4), broken="b")
    document = json.loads(json.dumps(epoch.to_json()))
    assert Epoch.from_json(document) == epoch
    for name in ("ids_issued", "lease", "broken", "coded_gaps"):  # scans of earlier versions know nothing of them
        del document[name]
    assert Epoch.from_json(document).marks == Marks("f", 100)


@pytest.mark.parametrize(
    ("read", "declared", "covers"),
    [
        ((), (), True),
        (("a", "b"), ("a",), True),
        (("a",), ("a", "b"), False),
        ((), ("a",), False),
        (None, (), False),
        ((), None, False),
    ],
)
def test_a_root_declared_after_the_scan_is_not_covered(
    read: tuple[str, ...] | None, declared: tuple[str, ...] | None, covers: bool
) -> None:
    epoch = replace(EPOCH, shared_with=read, gaps=() if read is not None else ("undeclared",))
    assert epoch.covers(declared) is covers
    assert not replace(epoch, gaps=("something",)).covers(declared)


# -------------------------------------------------------------------------------------------------------------- census

CENSUS = pa.schema(tables.CENSUS)


def counted(*rows: tuple[str, str | None, int | None, str | None], cut: int = 2) -> Census:
    batches = [
        pa.RecordBatch.from_pylist([dict(zip(CENSUS.names, row, strict=True)) for row in rows[i : i + cut]], CENSUS)
        for i in range(0, len(rows), cut)
    ]
    troubled = [b.filter(pa.array([e not in (None, "gone", "empty") for e in b["error"].to_pylist()])) for b in batches]
    return take_census("schemas", "", batches, troubled)


def test_a_census_adds_up_over_batches() -> None:
    whole = counted(
        ("/a/1", "/a", 3, None), ("/b/1", "/b", 1, "gone"), ("/a/2", "/a", 3, "empty"), ("/a/3", "/a", 3, None)
    )
    assert whole == Census("schemas", "", listed=4, decoded=2, gone=1, empty=1)
    assert counted() == Census("schemas", "", 0, 0, 0, 0)


def test_a_census_names_what_was_not_read_and_whose_children_do_not_add_up() -> None:
    found = counted(
        ("/a/1", "/a", 2, None),
        ("/a/2", "/a", 2, "corrupt: not protobuf"),
        ("/b/1", "/b", 3, "unread: no answer"),
        ("/c", None, None, "unread: no answer"),
    )
    assert found == Census(
        "schemas", "", 5, 1, 0, 0, ("/a/2",), ("/b/1: no answer", "/c: no answer"), mismatched=("/b",)
    )
