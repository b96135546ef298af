"""Whose a deletion was that no journal row speaks of."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pulsar_lifecycle.journal.in_doubt import ARCHIVE, JOURNAL_COLUMNS, deletions_in_doubt
from pulsar_lifecycle.values.codes import Code

WORD = {"run_id": "a", "ledger_id": 7, "at": 10, "phase": "delete", "action": "delete-ledger", "outcome": "deleted"}
WORD |= {"reason": "", "checksum": "abc"}


def left(*archived: tuple[str, int, int], said: tuple[dict[str, Any], ...] = ()) -> set[tuple[str, int, int]]:
    nodes = [dict(zip(ARCHIVE.names, one, strict=True)) for one in archived]
    rows = [WORD | row for row in said]
    return deletions_in_doubt(pa.Table.from_pylist(nodes, ARCHIVE), pa.Table.from_pylist(rows, JOURNAL_COLUMNS))


def test_what_was_archived_and_never_spoken_of_is_left() -> None:
    assert left() == set()
    assert left(("a", 7, 10), ("a", 8, 10), said=({},)) == {("a", 8, 10)}


@pytest.mark.parametrize(
    "word",
    [
        {"run_id": "b"},
        {"ledger_id": 8},
        {"at": 9},
        {"phase": "send"},
        {"action": "delete-offload-ledger"},
        {"checksum": ""},
        {"checksum": None},
        {"outcome": "waiting", "reason": "whether it was deleted is not known: the connection was lost"},
        {"outcome": "not-deleted", "reason": "whether it was deleted is not known: the connection was lost"},
        {"outcome": "waiting", "code": Code.TWIN},
        {"phase": "undo", "outcome": "restored", "at": 9},
    ],
)
def test_a_row_about_something_else_ends_nothing(word: dict[str, Any]) -> None:
    assert left(("a", 7, 10), said=(word,)) == {("a", 7, 10)}


@pytest.mark.parametrize(
    "word",
    [
        {},
        {"at": 11},
        {"outcome": "gone"},
        {"outcome": "retrying", "code": Code.STILL_THERE},
        {"outcome": "waiting", "code": Code.STILL_THERE},
        {"phase": "undo", "outcome": "restored", "run_id": "undo"},
    ],
)
def test_a_row_about_the_archived_z_node_ends_it(word: dict[str, Any]) -> None:
    assert left(("a", 7, 10), said=(word,)) == set()


def test_what_another_run_found_there_since_was_not_deleted_before() -> None:
    kept = {"run_id": "b", "at": 11, "outcome": "kept"}
    assert left(("a", 7, 10), said=(kept,)) == set()
    unsure = {"run_id": "b", "at": 12, "outcome": "waiting"}
    earlier_versions: dict[str, Any] = {"code": None}
    for why in ({"code": Code.OUTCOME_UNKNOWN}, {"code": Code.TWIN}, earlier_versions):
        assert left(("a", 7, 10), ("b", 7, 11), said=({**unsure, **why},)) == {("b", 7, 11)}
    assert left(("a", 7, 10), ("b", 7, 11), said=({**unsure, **earlier_versions, "code": Code.STILL_THERE},)) == set()


def test_only_who_archived_a_ledger_last_can_have_deleted_it() -> None:
    assert left(("a", 7, 10), ("b", 7, 20)) == left(("b", 7, 20), ("a", 7, 10)) == {("b", 7, 20)}
    assert left(("a", 7, 10), ("b", 7, 20), said=({"run_id": "b", "at": 20},)) == set()
    assert left(("a", 7, 10), ("b", 7, 10), said=({"run_id": "a"},)) == set()
    assert left(("a", 7, 10), ("a", 7, 20), said=({"at": 15},)) == {("a", 7, 20)}
