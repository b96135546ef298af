"""Reference rows from metastore rows: nothing that is there may be lost."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.scan import references
from pulsar_lifecycle.scan.references import StoredReference
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.tables import MANAGED_CURSORS, MANAGED_LEDGERS, SCHEMAS, Problem


def ledger(ledger_id: int, **offload: Any) -> dict[str, Any]:
    return {"ledger_id": ledger_id, **offload}


def topics(*lists: list[dict[str, Any]] | None) -> pa.RecordBatch:
    rows = [{"managed_ledger": f"ml{n}", "path": f"/ml{n}", "ledgers": ids} for n, ids in enumerate(lists)]
    return pa.RecordBatch.from_pylist(rows, MANAGED_LEDGERS)


def found(table: pa.Table) -> list[tuple[int, str, str]]:
    return [(row["ledger_id"], row["kind"], row["owner"]) for row in table.to_pylist()]


def test_every_listed_ledger_over_nulls_empty_lists_slices_and_chunks() -> None:
    batch = topics([ledger(1), ledger(2)], None, [], [ledger(3)])
    expected = [(1, "R1", "ml0"), (2, "R1", "ml0"), (3, "R1", "ml3")]
    assert found(references.from_managed_ledgers(batch)) == expected
    assert found(references.from_managed_ledgers(batch.slice(3))) == expected[2:]
    assert found(references.from_managed_ledgers(batch.slice(1, 2))) == []
    both = pa.Table.from_batches([batch, batch.slice(2)])
    assert found(references.from_managed_ledgers(both)) == [*expected, expected[2]]
    assert found(references.from_managed_ledgers(both.slice(5))) == expected[2:]
    assert found(references.from_managed_ledgers(both.slice(0, 0))) == []


@pytest.mark.parametrize(
    ("offload", "needs_copy"),
    [
        ({}, True),
        ({"offload_uuid": "u"}, True),
        ({"offload_uuid": "u", "offload_complete": True}, True),
        ({"offload_uuid": "u", "offload_complete": False, "bookkeeper_deleted": True}, True),
        ({"offload_complete": None, "bookkeeper_deleted": True}, True),
        ({"offload_complete": True, "bookkeeper_deleted": None}, True),
        ({"offload_complete": True, "bookkeeper_deleted": True}, False),
    ],
)
def test_only_a_complete_and_deleted_copy_is_not_needed(offload: dict[str, Any], needs_copy: bool) -> None:
    refs = references.referenced(references.from_managed_ledgers(topics([ledger(5, **offload)])))
    assert (5 in refs.needed, 5 in refs.offloaded) == (needs_copy, not needs_copy)


def test_a_ledger_that_several_refer_to_is_needed_if_one_needs_it() -> None:
    gone = ledger(5, offload_complete=True, bookkeeper_deleted=True)
    refs = references.referenced(references.from_managed_ledgers(topics([gone], [ledger(5)])))
    assert 5 in refs.needed
    parts = [references.referenced(references.from_managed_ledgers(topics([one]))) for one in (gone, ledger(5))]
    assert parts[0].merge(parts[1]) == refs
    assert Referenced.from_bytes(refs.to_bytes()) == refs


def test_a_cursor_refers_to_its_ledger_its_compacted_ledger_and_its_buckets() -> None:
    rows = [
        {"managed_ledger": "a", "path": "/a/s", "cursors_ledger_id": -1, "buckets": []},
        {"managed_ledger": "b", "path": "/b/s", "cursors_ledger_id": 0, "compacted_ledger_id": 4, "buckets": None},
        {"managed_ledger": "c", "path": "/c/s", "cursors_ledger_id": None},
        {"managed_ledger": "d", "path": "/d/s", "buckets": [{"start": 1, "end": 2, "ledger_id": 9}] * 2},
    ]
    batch = pa.RecordBatch.from_pylist(rows, MANAGED_CURSORS)
    assert found(references.from_cursors(batch)) == [(0, "R2", "b"), (4, "R3", "b"), (9, "R4", "d"), (9, "R4", "d")]


def test_a_schema_refers_to_every_version_that_has_a_ledger() -> None:
    versions = [{"version": 0, "ledger_id": -1, "entry_id": -1}, {"version": 1, "ledger_id": 6, "entry_id": 0}]
    rows = [
        {"schema_id": "t/n/x", "path": "/s", "versions": versions},
        {"schema_id": "t/n", "path": "/n", "versions": []},
    ]
    assert found(references.from_schemas(pa.Table.from_pylist(rows, SCHEMAS))) == [(6, "R5", "t/n/x")]


def test_words_keep_errors_and_leave_out_what_names_nothing() -> None:
    found = [
        StoredReference(3, "R3", "a", "w"),
        StoredReference(-1, "R3", "a", "w"),
        StoredReference(None, "R3", "a", "w"),
        StoredReference(None, "R5", "b", "w", Problem.UNREAD, "x"),
    ]
    table = references.table_of(found)
    assert [(row["ledger_id"], row["problem"], row["error"]) for row in table.to_pylist()] == [
        (3, None, None),
        (None, "unread", "x"),
    ]
    assert references.referenced(table) == Referenced(BitMap64([3]))


def test_every_kind_has_a_treatment() -> None:
    assert list(references.KINDS) == [f"R{n}" for n in range(1, 17)]
    assert all(kind.treatment and kind.where for kind in references.KINDS.values())
