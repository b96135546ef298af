"""What an undo refuses before it opens anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_lifecycle.deletion.undo.undo_run import UndoRequest, undo_deletions
from pulsar_lifecycle.errors import UsageError


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (UndoRequest(), "either"),
        (UndoRequest("run", (1,)), "either"),
        (UndoRequest(ledger_ids=(1, 2**63)), "ledger_ids: 9223372036854775808 is no ledger id"),
        (UndoRequest(ledger_ids=(-1,)), "ledger_ids: -1 is no ledger id"),
    ],
)
def test_what_names_no_deletion_is_wrong_usage(asked: UndoRequest, words: str) -> None:
    nothing: Any = SimpleNamespace()
    with pytest.raises(UsageError, match=words):
        undo_deletions(nothing, "undo", asked, lambda _: None)
