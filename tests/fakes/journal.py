"""Journal and archive in memory; passes the contract of tests/unit/io/test_journal.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.io.lake.journal import JOURNAL_SCHEMA
from pulsar_lifecycle.journal.first_phase_marks import open_marks
from pulsar_lifecycle.journal.in_doubt import ARCHIVE, JOURNAL_COLUMNS, deletions_in_doubt
from pulsar_lifecycle.journal.offloads import released_of
from pulsar_lifecycle.ports import Archived, JournalRow
from pulsar_lifecycle.records.copies import Released
from pulsar_lifecycle.records.outcomes import DELETE_LEDGER, DELETED, GONE, MARKED, PROOF_FAILED, RELEASE

ENDED = pa.schema([JOURNAL_SCHEMA.field("ledger_id"), JOURNAL_SCHEMA.field("at")])


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

    def nodes_in_doubt(self, cluster: str, since: int) -> list[Archived]:
        """As ``io.lake.journal.nodes_in_doubt``."""
        nodes = [n for n in self.nodes if n.cluster == cluster and n.at >= since]
        if not nodes:
            return []
        phases = ("delete", "undo")
        rows = [r for r in self.rows if r.phase in phases and r.cluster == cluster and r.at >= since]
        found = deletions_in_doubt(_table(nodes, ARCHIVE), _table(rows, JOURNAL_COLUMNS))
        return [n for n in nodes if (n.run_id, n.ledger_id, n.at) in found]

    def released(self, cluster: str) -> dict[int, Released]:
        """As ``io.lake.journal.released_ledgers``."""
        mine = [r for r in self.rows if r.cluster == cluster]
        marked = [r for r in mine if (r.action, r.outcome) == (RELEASE, MARKED)]
        ended = [r for r in mine if r.phase == "delete" and r.action == DELETE_LEDGER and r.outcome in (DELETED, GONE)]
        ended += [r for r in mine if (r.action, r.outcome) == (RELEASE, PROOF_FAILED)]
        stand = open_marks(_table(marked, JOURNAL_SCHEMA), _table(ended, ENDED)).to_pylist()
        found = {row["ledger_id"]: released_of(row["topic"], row["detail"]) for row in stand}
        return {ledger_id: one for ledger_id, one in found.items() if one}

    def _store(self, kept: list, rows: Sequence) -> str:
        if self.failure:
            raise self.failure
        if not rows:
            return ""
        kept.extend(rows)
        self._objects += 1
        return f"memory:{self._objects}"


def _table(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    return pa.table([[getattr(row, name) for row in rows] for name in schema.names], schema)
