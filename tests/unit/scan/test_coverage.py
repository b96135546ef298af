"""Every gap that makes a plan report-only."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from pulsar_lifecycle.scan.coverage import broken_history, prove, take_census
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.epoch import Census, Epoch
from pulsar_lifecycle.values.gaps import Gap, GapCode, brokers_gap
from pulsar_lifecycle.values.store_history import StoreCounters
from pulsar_lifecycle.values.tables import Problem

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


A_GAP = Gap(GapCode.OTHER_ROOT, "/two", "another cluster")
Code = tuple[GapCode, str]


def proof(epoch: Epoch, *previous: Epoch, deleted: int = 0, schema_ledgers: int = 1) -> tuple[Gap, ...]:
    return prove(epoch, previous, deleted, 0.2, schema_ledgers)


def gaps(epoch: Epoch, *previous: Epoch, deleted: int = 0, schema_ledgers: int = 1) -> list[Code]:
    """What is wrong, and where."""
    return [(gap.code, gap.where) for gap in proof(epoch, *previous, deleted=deleted, schema_ledgers=schema_ledgers)]


def with_census(table: str, epoch: Epoch = EPOCH, **changes: object) -> Epoch:
    census = [replace(c, **changes) if c.table == table else c for c in epoch.census]  # type: ignore[arg-type]
    return replace(epoch, census=tuple(census))


def test_a_whole_scan_has_no_gaps() -> None:
    assert gaps(EPOCH) == gaps(EPOCH, BEFORE) == []
    accounted = with_census("managed_ledgers", decoded=990, gone=6, empty=4)
    assert gaps(accounted, BEFORE) == []


def test_undeclared_neighbours_are_a_gap() -> None:
    assert gaps(replace(EPOCH, shared_with=None)) == [(GapCode.SHARING_UNDECLARED, "bookkeeper.shared_with")]


@pytest.mark.parametrize("table", TABLES)
def test_a_table_that_was_not_read_is_a_gap(table: str) -> None:
    found = gaps(replace(EPOCH, census=tuple(c for c in EPOCH.census if c.table != table)))
    assert found == [(GapCode.TABLE_NOT_READ, table)]


def test_every_table_of_a_declared_root_must_be_there_but_not_its_bookkeeper() -> None:
    declared = replace(EPOCH, shared_with=("west",))
    assert gaps(declared) == [(GapCode.TABLE_NOT_READ, f"{table}@west") for table in TABLES[1:]]
    assert proof(declared)[0].text == "managed_ledgers of west was not read"
    theirs = tuple(Census(table, "west", 0, 0, 0, 0) for table in TABLES[1:])
    assert gaps(replace(declared, census=EPOCH.census + theirs)) == []


@pytest.mark.parametrize("table", TABLES)
def test_what_stays_unread_is_a_gap(table: str) -> None:
    (gap,) = proof(with_census(table, unread=(("/some/path", "no permission"),)))
    assert (gap.code, gap.where) == (GapCode.ZNODE_UNREAD, "/some/path")
    assert gap.text == f"{table}: could not read /some/path: no permission"


@pytest.mark.parametrize("table", TABLES)
def test_a_listing_that_does_not_add_up_is_a_gap(table: str) -> None:
    assert gaps(with_census(table, mismatched=("/parent",))) == [(GapCode.CHILDREN_DIFFER, "/parent")]
    for count in (999, 1001):
        assert gaps(with_census(table, decoded=count)) == [(GapCode.UNACCOUNTED, table)]


@pytest.mark.parametrize("table", TABLES[2:])
def test_an_undecodable_z_node_is_a_gap_until_it_is_acknowledged_by_path(table: str) -> None:
    broken = with_census(table, decoded=999, corrupt=("/a/b",))
    assert gaps(broken) == gaps(replace(broken, acknowledged=("/a",))) == [(GapCode.ZNODE_UNDECODABLE, "/a/b")]
    assert gaps(replace(broken, acknowledged=("/a/b",))) == []


@pytest.mark.parametrize("root", ["", "west"])
def test_an_undecodable_topic_is_a_gap_whatever_is_acknowledged(root: str) -> None:
    """It may be a shadow topic: what it needs is in no particular namespace."""
    theirs = tuple(replace(c, root="west") for c in EPOCH.census[1:])
    whole = replace(EPOCH, census=EPOCH.census + theirs, shared_with=("west",))
    corrupt = [
        replace(c, decoded=999, corrupt=("/a/b",)) if (c.table, c.root) == ("managed_ledgers", root) else c
        for c in whole.census
    ]
    (gap,) = proof(replace(whole, census=tuple(corrupt), acknowledged=("/a/b",)))
    assert (gap.code, gap.where) == (GapCode.ZNODE_UNDECODABLE, "/a/b")


def test_two_tables_that_have_one_topic_say_one_thing_of_it() -> None:
    topics = Census("topics", "", 2, 1, 0, 0, ("/a/b",))
    managed = replace(topics, table="managed_ledgers")
    said = [gap.text for gap in proof(replace(EPOCH, census=(managed, topics))) if gap.where == "/a/b"]
    assert [("no acknowledgement" in text, "acknowledged_znodes" in text) for text in said] == [(True, False)] * 2


def test_an_undecodable_ledger_refers_to_nothing() -> None:
    assert gaps(with_census("bookkeeper_ledgers", decoded=999, corrupt=("/ledgers/x",))) == []


def undecodable(table: str, number: int) -> Census:
    """The census of as many undecodable z-nodes."""
    what = {"parent": "/p", "listed": number, "problem": Problem.CORRUPT, "error": "x"}
    rows = [{**what, "path": f"/p/{n}"} for n in range(number)]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(tables.CENSUS))
    return take_census(table, "", [batch], [batch])


def test_any_number_of_undecodable_ledgers_adds_up() -> None:
    census = undecodable("bookkeeper_ledgers", 1500)
    assert (len(census.corrupt), census.undecodable) == (1000, 1500)
    assert gaps(replace(EPOCH, census=(census, *EPOCH.census[1:]))) == []


@pytest.mark.parametrize("table", TABLES[2:])
def test_what_is_not_shown_cannot_be_acknowledged(table: str) -> None:
    census = undecodable(table, 1001)
    others = tuple(c for c in EPOCH.census if c.table != table)
    found = gaps(replace(EPOCH, census=(census, *others), acknowledged=census.corrupt))
    assert found == [(GapCode.ZNODE_UNDECODABLE, table)]


def test_schemas_may_be_missing_only_where_no_ledger_is_a_schemas() -> None:
    missing = with_census("schemas", listed=0, decoded=0, missing_root=True)
    assert gaps(missing, schema_ledgers=0) == []
    assert gaps(missing, schema_ledgers=1) == [(GapCode.ROOT_MISSING, "schemas")]
    no_topics = with_census("managed_ledgers", listed=0, decoded=0, missing_root=True)
    assert gaps(no_topics, schema_ledgers=0) == [(GapCode.ROOT_MISSING, "managed_ledgers")]


def test_what_is_wrong_beside_the_counts_is_a_gap() -> None:
    assert prove(EPOCH, [], 0, 0.2, 1, [A_GAP]) == (A_GAP,)


def test_another_cluster_and_time_going_back_are_gaps() -> None:
    for now in (replace(EPOCH, fingerprint="g"), replace(EPOCH, zxid=98)):
        assert gaps(now, BEFORE) == [(GapCode.HISTORY_BROKEN, "")]


def test_a_break_stays_one_however_far_the_store_has_caught_up() -> None:
    """Every scan inherits it, until the operator sets the earlier ones aside: then there are none."""
    back = replace(EPOCH, zxid=98)
    broken = broken_history(back, [BEFORE])
    assert proof(back, BEFORE) == (broken,)
    assert broken
    assert (broken.code, "accept-restore" in broken.text) == (GapCode.HISTORY_BROKEN, True)
    back = replace(back, broken=broken, gaps=proof(back, BEFORE))
    later = replace(EPOCH, epoch_id="e3", started_at=3000, finished_at=4000, zxid=500)
    assert proof(later, BEFORE, back) == (broken,)
    later = replace(later, broken=broken, gaps=back.gaps)
    assert broken_history(replace(later, broken=None, gaps=(), finished_at=5000), [later]) == broken
    assert gaps(replace(later, broken=None)) == []


def test_a_scan_dated_before_one_that_was_finished_first_is_not_covered() -> None:
    """It might confirm one that was made a minute later."""
    ahead = replace(BEFORE, epoch_id="ahead", finished_at=EPOCH.finished_at + 60_001)
    (gap,) = proof(EPOCH, BEFORE, ahead)
    assert (gap.code, gap.where) == (GapCode.CLOCK_WRONG, "ahead")
    assert gap.text.startswith("scan ahead was finished before this one, and is dated 1 minutes later")
    assert gaps(EPOCH, BEFORE, replace(ahead, finished_at=EPOCH.finished_at + 60_000)) == []


@pytest.mark.parametrize("clock", [-40 * 86_400_000, 40 * 86_400_000])
def test_every_scan_tells_the_time_whatever_its_clock_said(clock: int) -> None:
    """The scan that saw the most may be dated before or after one that saw less."""
    dated = replace(BEFORE, epoch_id="dated", started_at=5000 + clock, finished_at=6000 + clock, zxid=150)
    back = replace(EPOCH, zxid=BEFORE.zxid + 1)
    assert broken_history(back, [BEFORE]) is None
    found = broken_history(back, [BEFORE, dated])
    assert found
    assert found.code is GapCode.HISTORY_BROKEN
    assert broken_history(replace(back, zxid=151), [BEFORE, dated]) is None


def test_uncovered_epochs_tell_the_time_and_covered_ones_the_size() -> None:
    uncovered = with_census(
        "bookkeeper_ledgers",
        replace(BEFORE, started_at=1500, finished_at=3500, zxid=120, gaps=(A_GAP,)),
        listed=0,
        decoded=0,
    )
    found = gaps(with_census("bookkeeper_ledgers", listed=700, decoded=700), BEFORE, uncovered)
    assert found == [(GapCode.HISTORY_BROKEN, ""), (GapCode.LISTING_SHRANK, "bookkeeper_ledgers")]


def test_a_ledger_that_went_with_its_topic_is_no_going_back_in_time() -> None:
    assert gaps(replace(EPOCH, max_czxid=1, max_ledger_id=1), BEFORE) == []


@pytest.mark.parametrize(("table", "deleted", "blocks"), [(TABLES[0], 0, 1), (TABLES[0], 200, 0), (TABLES[1], 0, 0)])
def test_bookkeepers_list_may_shrink_by_what_we_deleted_and_a_bound(table: str, deleted: int, blocks: int) -> None:
    assert gaps(with_census(table, listed=800, decoded=800), BEFORE) == []
    assert len(gaps(with_census(table, listed=799, decoded=799), BEFORE, deleted=deleted)) == blocks


def test_small_listings_may_shrink_and_the_newest_earlier_epoch_counts() -> None:
    small = with_census("bookkeeper_ledgers", BEFORE, listed=100, decoded=100)
    none = with_census("bookkeeper_ledgers", listed=0, decoded=0)
    assert gaps(none, small) == []
    assert len(gaps(none, small, replace(BEFORE, started_at=1500))) == 1
    assert gaps(none, BEFORE, replace(small, started_at=1500)) == []


def test_an_epoch_survives_json() -> None:
    unanswered = brokers_gap(GapCode.BROKERS_DENIED, "GET /topics: 403")
    epoch = with_census("schemas", unread=(("/x", "why"),), mismatched=("y",), broker_error=unanswered)
    epoch = replace(epoch, gaps=(*proof(epoch), A_GAP), shared_with=None, ids_issued=7, lease=(3, 4), broken=A_GAP)
    document = json.loads(json.dumps(epoch.to_json()))
    assert Epoch.from_json(document) == epoch
    for name in ("ids_issued", "lease", "broken"):  # scans of earlier versions know nothing of them
        del document[name]
    document |= {"gaps": ["a sentence"], "coded_gaps": [], "reference_errors": ["a sentence"]}
    document["census"][3]["unread"] = ["/x: why"]
    document["census"][0]["broker_error"], document["census"][1]["broker_error"] = "", "GET /topics: 403"
    earlier = Epoch.from_json(document)
    assert earlier.counters == StoreCounters("f", 100)
    assert earlier.gaps == (Gap(GapCode.EARLIER_VERSION, "", "a sentence"),)
    assert earlier.census[3].unread == (("", "/x: why"),)
    assert earlier.census[0].broker_error is None
    assert earlier.census[1].broker_error == brokers_gap(GapCode.BROKERS_UNANSWERED, "GET /topics: 403")
    document["gaps"] = [{"code": "brokers_unreachable", "where": "b", "text": "unanswered"}]  # as a code was called
    assert Epoch.from_json(document).gaps == (Gap(GapCode.EARLIER_VERSION, "b", "unanswered"),)


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
    epoch = replace(EPOCH, shared_with=read, gaps=() if read is not None else (A_GAP,))
    assert epoch.covers(declared) is covers
    assert not replace(epoch, gaps=(A_GAP,)).covers(declared)


# -------------------------------------------------------------------------------------------------------------- census

CENSUS = pa.schema(tables.CENSUS)


def counted(*rows: tuple[str, str | None, int | None, Problem | None], cut: int = 2) -> Census:
    batches = [
        pa.RecordBatch.from_pylist(
            [dict(zip(CENSUS.names, (*row, row[3] and "why"), strict=True)) for row in rows[i : i + cut]], CENSUS
        )
        for i in range(0, len(rows), cut)
    ]
    known = (None, Problem.GONE, Problem.EMPTY)
    troubled = [b.filter(pa.array([e not in known for e in b["problem"].to_pylist()])) for b in batches]
    return take_census("schemas", "", batches, troubled)


def test_a_census_adds_up_over_batches() -> None:
    whole = counted(
        ("/a/1", "/a", 3, None),
        ("/b/1", "/b", 1, Problem.GONE),
        ("/a/2", "/a", 3, Problem.EMPTY),
        ("/a/3", "/a", 3, None),
    )
    assert whole == Census("schemas", "", listed=4, decoded=2, gone=1, empty=1)
    assert counted() == Census("schemas", "", 0, 0, 0, 0)


def test_a_census_names_what_was_not_read_and_whose_children_do_not_add_up() -> None:
    found = counted(
        ("/a/1", "/a", 2, None),
        ("/a/2", "/a", 2, Problem.CORRUPT),
        ("/b/1", "/b", 3, Problem.UNREAD),
        ("/c", None, None, Problem.UNREAD),
    )
    assert found == Census("schemas", "", 5, 1, 0, 0, ("/a/2",), (("/b/1", "why"), ("/c", "why")), mismatched=("/b",))
