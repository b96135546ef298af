"""Which ledgers brokers cannot close, or read to their end, while bookies are away."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.lifecycle.bookies.lost_ledgers import LOSS_COLUMNS, LedgerLoss, lost_ledgers
from pulsar_lifecycle.values.tables import BOOKKEEPER_LEDGERS, Problem

SCHEMA = pa.schema([BOOKKEEPER_LEDGERS.field(name) for name in LOSS_COLUMNS])
OPEN = {"ledger_id": 7, "state": "OPEN", "ensembles": "0 a b c", "write_quorum": 3, "ack_quorum": 2}
CLOSED = {**OPEN, "state": "CLOSED", "entries": 5, "write_quorum": 2}


def losses(*rows: dict[str, Any], registered: str) -> list[tuple[int, str, list[str]]]:
    found = lost_ledgers(pa.Table.from_pylist(list(rows), SCHEMA), frozenset(registered))
    return [tuple(row.values()) for row in found.to_pylist()]


@pytest.mark.parametrize(
    ("change", "registered", "away"),
    [
        ({}, "bc", ""),
        ({}, "c", "ab"),
        ({}, "", "abc"),
        ({"state": "IN_RECOVERY"}, "c", "ab"),
        ({"write_quorum": 2, "ack_quorum": 2}, "c", "ab"),
        ({"write_quorum": 2, "ack_quorum": 1}, "bc", "a"),
        ({"write_quorum": 2, "ack_quorum": 0}, "bc", ""),
        ({"write_quorum": 2, "ack_quorum": 0}, "b", "ac"),
        ({"ensembles": "0 a b c d e", "write_quorum": 2}, "bde", ""),
        ({"ensembles": "0 a b c d e", "write_quorum": 2}, "cde", "ab"),
        ({"ensembles": "0 a b c d e", "write_quorum": 2}, "bcd", "ae"),
        ({"ensembles": "0 a b c|9 d e f"}, "def", ""),
        ({"ensembles": "0 a b c|9 d e f"}, "abcf", "de"),
    ],
)
def test_an_open_ledger_is_closed_by_enough_bookies_of_its_last_ensemble(
    change: dict[str, Any], registered: str, away: str
) -> None:
    """Of any entry's write quorum fewer than the ack quorum may be silent."""
    expected = [(7, LedgerLoss.UNRECOVERABLE, list(away))] if away else []
    assert losses({**OPEN, **change}, registered=registered) == expected


@pytest.mark.parametrize(
    ("change", "registered", "away"),
    [
        ({}, "", "bc"),
        ({}, "a", "bc"),
        ({}, "b", ""),
        ({}, "c", ""),
        ({"entries": 6}, "b", "ca"),
        ({"entries": 0}, "", ""),
        ({"ensembles": "0 a b c|5 d e f"}, "def", "bc"),
        ({"ensembles": "0 a b c|4 d e f"}, "abc", "ef"),
    ],
)
def test_the_last_entry_of_a_closed_ledger_is_read_from_any_bookie_that_has_it(
    change: dict[str, Any], registered: str, away: str
) -> None:
    expected = [(7, LedgerLoss.LAST_ENTRY_AWAY, list(away))] if away else []
    assert losses({**CLOSED, **change}, registered=registered) == expected


def test_what_has_no_metadata_is_lost_and_what_we_cannot_decode_may_not_be() -> None:
    bare, odd = ({"ledger_id": i, "problem": one.value} for i, one in enumerate((Problem.EMPTY, Problem.CORRUPT)))
    assert losses(bare, odd, registered="") == [(0, LedgerLoss.NO_METADATA, [])]


@given(st.integers(1, 6), st.data())
def test_it_is_what_a_brokers_coverage_set_says(size: int, data: st.DataObject) -> None:
    """``RoundRobinDistributionSchedule.RRQuorumCoverageSet.checkCovered`` of bookkeeper-server 4.17.2, line by line."""
    write = data.draw(st.integers(1, size))
    ack, bookies = data.draw(st.integers(1, write)), "abcdef"[:size]
    registered = data.draw(st.sets(st.sampled_from(bookies)))
    covered = True
    for i in range(size):
        unknown = 0
        for j in range(write):
            if bookies[(i + j) % size] not in registered:
                unknown += 1
        if unknown >= ack:
            covered = False
            break
    row = {**OPEN, "ensembles": f"0 {' '.join(bookies)}", "write_quorum": write, "ack_quorum": ack}
    assert (losses(row, registered="".join(registered)) == []) is covered
