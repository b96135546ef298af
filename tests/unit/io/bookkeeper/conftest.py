"""Batches that are small enough for a test to need many."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.io.bookkeeper import stream as ledger_stream


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_stream, "BATCH_BYTES", 8_000)
    monkeypatch.setattr(ledger_stream, "READ_AHEAD", 64_000)
