"""Journal and archive in memory; passes the contract of tests/unit/io/lake/test_journal.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.ports import Archived, ArchivedSnapshot, Counting, JournalRow
from pulsar_lifecycle.values import tables
from tests.kit.fakes.tables import Tables, days_of


class FakeJournal:
    """``failure``, when set, is raised by every write and nothing is kept."""

    def __init__(self) -> None:
        self.rows: list[JournalRow] = []
        self.nodes: list[Archived] = []
        self.snapshots: list[ArchivedSnapshot] = []
        self.failure: LifecycleError | None = None
        self._objects = 0
        self._journal, self._archive = _Table(tables.JOURNAL), _Table(tables.ARCHIVE)
        self._kept = _Table(tables.SNAPSHOTS)

    def record(self, rows: Sequence[JournalRow]) -> str:
        return self._store(self.rows, rows)

    def check_writable(self) -> None:
        if self.failure:
            raise self.failure

    def archive(self, nodes: Sequence[Archived]) -> str:
        return self._store(self.nodes, nodes)

    def archive_snapshots(self, snapshots: Sequence[ArchivedSnapshot]) -> str:
        return self._store(self.snapshots, snapshots)

    def find(self, condition: pc.Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        return self._journal.find(self.rows, condition, columns)

    def find_archived(self, condition: pc.Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        return self._archive.find(self.nodes, condition, columns)

    def find_snapshots(self, condition: pc.Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        return self._kept.find(self.snapshots, condition, columns)

    def counted(self, counting: Counting, now: int) -> pa.Table:
        rows = self.find(columns=counting.columns)
        return counting.add_up([counting.count(rows)] if rows.num_rows else [])

    def _store(self, kept: list, rows: Sequence) -> str:
        if self.failure:
            raise self.failure
        if not rows:
            return ""
        kept.extend(rows)
        self._objects += 1
        return f"memory:{self._objects}"


class _Table:
    """Rows as the journal's files have them; those that came since are added when it is asked.

    Another list in place of the last one is read anew: a test may take away what was not written.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = pa.schema([*schema, pa.field("date", pa.string())])
        self.columns = schema.names
        self._begin([])
        self._tables = Tables()

    def find(self, rows: Sequence[Any], condition: pc.Expression | None, columns: Sequence[str] | None) -> pa.Table:
        if rows is not self.rows:
            self._begin(rows)
        if self.count < len(rows):
            self.table = pa.concat_tables([self.table, self._table(rows[self.count :])]).combine_chunks()
            self.count = len(rows)
        wanted = columns or self.columns
        batches = self._tables.batches(self.table, condition, wanted)
        return pa.Table.from_batches(batches, pa.schema([self.schema.field(name) for name in wanted]))

    def _begin(self, rows: Sequence[Any]) -> None:
        self.rows, self.count, self.table = rows, 0, self.schema.empty_table()

    def _table(self, rows: Sequence[Any]) -> pa.Table:
        days = days_of([row.at for row in rows])
        return pa.table([*([getattr(row, name) for row in rows] for name in self.columns), days], self.schema)
