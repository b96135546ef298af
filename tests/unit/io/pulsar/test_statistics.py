"""What brokers say of topics in use, as Pulsar 4.0 sends it."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_lifecycle.io.pulsar.statistics import internals_of


def internals(added: int, current: int, *entries: int) -> dict[str, Any]:
    """The answer about a topic with ledgers 1, 2, ..., the last of which is written."""
    return {
        "state": "LedgerOpened",
        "ledgers": [{"ledgerId": n, "entries": count} for n, count in enumerate((*entries, 0), 1)],
        "cursors": {},
        "compactedLedger": {"ledgerId": -1},
        "schemaLedgers": [],
        "lastConfirmedEntry": "2:3",
        "entriesAddedCounter": added,
        "currentLedgerEntries": current,
    }


@pytest.mark.parametrize(
    ("ledger", "added", "since"),
    [(2, 12, True), (2, 11, False), (2, 7, False), (3, 7, True), (1, 12, False), (4, 12, False)],
)
def test_a_ledger_begun_by_an_earlier_load_has_entries_that_do_not_count(ledger: int, added: int, since: bool) -> None:
    found = internals_of(internals(added, 7, 3, 5), "here")
    assert found.entries == {1: 3, 2: 5, 3: 7}
    assert found.loaded_since(ledger) == since


def test_a_broker_that_does_not_count_proves_nothing() -> None:
    answer = internals(1, 1)
    del answer["entriesAddedCounter"]
    assert not internals_of(answer, "here").loaded_since(1)
