"""Three bookies, and batches that are small enough for a test to need many."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pulsar_lifecycle.io.bookkeeper import stream as ledger_stream
from tests.kit.fakes.bookie_server import BookieServer
from tests.kit.scenes.bookies import ThreeBookies


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_stream, "BATCH_BYTES", 8_000)
    monkeypatch.setattr(ledger_stream, "READ_AHEAD", 64_000)


@pytest.fixture
def cluster() -> Iterator[ThreeBookies]:
    with ExitStack() as stack:
        cluster = ThreeBookies([stack.enter_context(BookieServer()) for _ in range(3)])
        stack.callback(cluster.reader.close)
        yield cluster
