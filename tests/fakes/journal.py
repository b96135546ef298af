"""Journal and archive in memory; passes the contract of tests/unit/io/test_journal.py."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.ports import Archived, JournalRow


class FakeJournal:
    """``failure``, when set, is raised by every call and nothing is kept."""

    def __init__(self) -> None:
        self.rows: list[JournalRow] = []
        self.nodes: list[Archived] = []
        self.failure: LifecycleError | None = None
        self._objects = 0

    def record(self, rows: Sequence[JournalRow]) -> str:
        return self._store(self.rows, rows)

    def archive(self, nodes: Sequence[Archived]) -> str:
        return self._store(self.nodes, nodes)

    def _store(self, kept: list, rows: Sequence) -> str:
        if self.failure:
            raise self.failure
        if not rows:
            return ""
        kept.extend(rows)
        self._objects += 1
        return f"memory:{self._objects}"
