"""What one run did, as the journal has it, and which table or queue each effect changed.

Belongs here: counting a run's rows, naming what they changed. Not here: telling anybody (``assets/pages/lineage.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow.compute as pc

from pulsar_lifecycle.journal.queries import filed_since
from pulsar_lifecycle.ports import JournalReader
from pulsar_lifecycle.values.outcomes import Action, Phase

COLUMNS = ("plan_id", "action", "phase", "outcome", "topic", "code")
NO_EFFECTS = frozenset({Action.OPERATOR_WORD, Action.APPROVE_PLAN})
"""Actions that change nothing of the cluster."""


class Changed(StrEnum):
    """What an effect changed, by its name in the UI."""

    QUEUE = "ledger_deletion_topic"
    TRIMMED = "trimmed_ledgers"
    DELETED = "ledger_deletions"
    OFFLOADED = "offloaded_ledgers"
    OBJECTS = "object_store"
    BOOKIES = "bookie_disk"
    SUBSCRIPTIONS = "inactive_cursors"
    DELAYED_INDEX = "delayed_index_buckets"


_BY_PHASE: Mapping[Phase, Changed] = {
    Phase.SEND: Changed.QUEUE,
    Phase.REDRIVE: Changed.QUEUE,
    Phase.MARK: Changed.TRIMMED,
    Phase.ARCHIVE: Changed.DELETED,
    Phase.DELETE: Changed.DELETED,
    Phase.UNDO: Changed.DELETED,
}
_BY_ACTION: Mapping[Action, Changed] = {
    Action.OFFLOAD: Changed.OFFLOADED,
    Action.COPY_DELETION: Changed.OFFLOADED,
    Action.READ_CHECK: Changed.OFFLOADED,
    Action.ABORT_UPLOAD: Changed.OBJECTS,
    Action.COLLECT_BOOKIE: Changed.BOOKIES,
    Action.SUSPEND_COMPACTION: Changed.BOOKIES,
    Action.RESUME_COMPACTION: Changed.BOOKIES,
    Action.LOAD_TOPIC: Changed.TRIMMED,
    Action.DELETE_TOPIC: Changed.TRIMMED,
    Action.DELETE_RECORDS: Changed.TRIMMED,
    Action.DELETE_SUBSCRIPTION: Changed.SUBSCRIPTIONS,
    Action.REPAIR_INDEX: Changed.DELAYED_INDEX,
    Action.WRITE_SNAPSHOT: Changed.DELAYED_INDEX,
}


@dataclass(frozen=True, slots=True)
class Effect:
    """So many rows of a run that are alike, and their bytes.

    ``plan_id`` is empty where no plan ordered it, ``code`` in rows of versions without codes.
    """

    plan_id: str
    action: str
    phase: str
    outcome: str
    topic: str
    rows: int
    bytes: int
    code: str = ""

    @property
    def changed(self) -> Changed | None:
        """What it changed; None for what changes nothing, and for words of another version."""
        if self.phase in set(Phase) and Phase(self.phase) in _BY_PHASE:
            return _BY_PHASE[Phase(self.phase)]
        return _BY_ACTION.get(Action(self.action)) if self.action in set(Action) else None


def effects_of(journal: JournalReader, cluster: str, run_id: str, since: int) -> list[Effect]:
    """What a run of a cluster did, from rows filed at ``since`` (ms) or later, in no order."""
    mine = (pc.field("run_id") == run_id) & (pc.field("cluster") == cluster) & filed_since(since)
    rows = journal.find(mine, [*COLUMNS, "bytes"])
    counted = rows.group_by(list(COLUMNS)).aggregate([("bytes", "count"), ("bytes", "sum")])
    return [
        Effect(**{name: row[name] or "" for name in COLUMNS}, rows=row["bytes_count"], bytes=row["bytes_sum"] or 0)
        for row in counted.to_pylist()
    ]


def added_up(effects: Iterable[Effect]) -> list[tuple[str, str, str, str, int, int]]:
    """Rows and bytes by action, phase, outcome and code."""
    rows, sizes = Counter[tuple[str, str, str, str]](), Counter[tuple[str, str, str, str]]()
    for one in effects:
        group = one.action, one.phase, one.outcome, one.code
        rows[group] += one.rows
        sizes[group] += one.bytes
    return [(*group, rows[group], sizes[group]) for group in sorted(rows)]
