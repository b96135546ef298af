"""What the lake knows of one ledger: scans, plans, journal and archive, and what a deletion run would go by.

Belongs here: gathering that. Not here: the answer (``inspect/explain.py``); the evidence of a run, which
``deletion/deletion_run.py`` gathers for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.deletion.deletion_run import evidence_at
from pulsar_lifecycle.deletion.run_evidence import Evidence
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.inspect.explain_codes import ExplainCode
from pulsar_lifecycle.inspect.settled import PlanEnd, ended_plans
from pulsar_lifecycle.journal.archive import archived_nodes
from pulsar_lifecycle.journal.first_phase_marks import marked_ledgers
from pulsar_lifecycle.journal.intents import INTENT_COLUMNS, IntentState, intent_states
from pulsar_lifecycle.journal.offloads import copy_deletions
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan.evidence import new_gaps
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.copies import CopyDeletion
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.gaps import Gap
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.owner_names import owner_in
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class History:
    """What the lake knows of one ledger.

    ``epoch`` is the newest of this cluster, ``context`` that of its decisions with today's settings, ``references`` its
    rows of ``tables.REFERENCES`` (errors left out), ``finding`` its row of ``tables.FINDINGS``. ``plans`` are of scans
    that count and hold the ledger, newest first; of those in ``ended`` nothing is left to apply. ``journal`` and
    ``archived`` are oldest first. ``marked`` is (czxid, when in ms) of our first phase's mark that stands;
    ``copy_deletion`` what a copy deletion of ours left in BookKeeper and no deletion run settled. ``gaps``: why the
    epoch does not count any more, as the settings are now. ``evidence``: what a deletion run would go by, None without
    a scan. ``valid_since``: when (ms) the oldest plan may have been made that is valid still. ``buckets``: those that
    the settings declare.
    """

    epoch: Epoch | None = None
    context: Context | None = None
    references: pa.Table = field(default_factory=tables.REFERENCES.empty_table)
    finding: Row | None = None
    plans: tuple[PlanSummary, ...] = ()
    ended: Mapping[str, PlanEnd] = field(default_factory=dict[str, PlanEnd])
    journal: tuple[Row, ...] = ()
    archived: tuple[Row, ...] = ()
    marked: tuple[int, int] | None = None
    copy_deletion: CopyDeletion | None = None
    gaps: tuple[Gap, ...] = ()
    evidence: Evidence | None = None
    valid_since: int = 0
    buckets: tuple[str, ...] = ()

    def uncovered(self) -> Why | None:
        """Why no run acts on the newest epoch; None if one may."""
        if self.epoch is None or not self.epoch.covered:
            text = "the last scan could not read everything that may refer to it"
            return Why(ExplainCode.NOT_COVERED, text)
        if self.gaps:
            return Why(ExplainCode.NOT_COVERED, f"the last scan does not count any more: {self.gaps[0]}")
        return None

    def applicable(self) -> list[PlanSummary]:
        """Those of ``plans`` that can be applied and have something left to apply."""
        return [plan for plan in self.plans if plan.actionable and plan.plan_id not in self.ended]

    def deletions(self) -> list[Row]:
        """What the journal says of its deletion in BookKeeper."""
        return [
            row for row in self.journal if row["outcome"] == Outcome.DELETED and row["action"] == Action.DELETE_LEDGER
        ]

    def intent(self) -> str:
        """Where the intent to delete it in BookKeeper stands (``journal.intents``); empty without one."""
        found = self._intent()
        return found["state"] if found else ""

    def sent_lately(self) -> bool:
        """Whether its message was sent, or tried again, while the plan that sent it is valid: plans leave it out."""
        found = self._intent()
        return bool(found) and found["state"] == IntentState.IN_FLIGHT and found["at"] >= self.valid_since

    def _intent(self) -> Row | None:
        rows = [
            {name: row[name] for name in INTENT_COLUMNS}
            for row in self.journal
            if row["action"] == Action.DELETE_LEDGER
        ]
        return next(iter(intent_states(pa.Table.from_pylist(rows)).to_pylist()), None) if rows else None

    def marks(self, ledger: Mapping[str, Any] | None) -> bool:
        """Whether our first phase took this very ledger off its topic's list, and no deletion run settled it yet."""
        return ledger is not None and self.marked is not None and self.marked[0] == ledger["czxid"]

    def deletes_copy(self, ledger: Mapping[str, Any] | None) -> bool:
        """Whether a copy deletion of ours left this very copy in BookKeeper, and no deletion run settled it yet."""
        if ledger is None or self.copy_deletion is None:
            return False
        return (self.copy_deletion.czxid, self.copy_deletion.topic) == (ledger["czxid"], owner_in(ledger)[1])


def history_of(cluster: Cluster, fingerprint: str, ledger_id: int, now: int) -> History:
    """The history of a ledger of the metadata store with this fingerprint, at ``now`` (ms). Raises what the lake does.

    A scan whose findings are not stored yet has none.
    """
    settings, lake, journal = cluster.settings, cluster.lake, cluster.journal_reader

    def ours(rows: pa.Table) -> tuple[Row, ...]:
        """Two clusters may share a lake, and both have a ledger of this id."""
        return tuple(row for row in rows.to_pylist() if row["cluster"] == settings.cluster)

    history = History(
        journal=ours(journal_rows(journal, ledger_id=ledger_id)),
        archived=ours(archived_nodes(journal, ledger_id=ledger_id)),
        copy_deletion=copy_deletions(journal, settings.cluster).get(ledger_id),
        buckets=settings.object_store.buckets if settings.object_store else (),
    )
    epochs = lake.epochs(fingerprint)
    if not epochs:
        after = lake.set_aside_until(settings.cluster)
        mark = _mark_of(ledger_id, marked_ledgers(journal, settings.cluster))
        return replace(history, marked=mark if mark and mark[1] > after else None)
    epoch, count = epochs[-1], {one.epoch_id for one in epochs}
    evidence = evidence_at(cluster, epoch, now)
    valid_since = int(now - settings.orphans.plan_valid_for * 1000)
    plans = tuple(
        plan
        for plan in reversed(lake.plans())
        if plan.fingerprint == fingerprint
        and plan.epoch_id in count
        and plan.created_at >= valid_since
        and lake.plan_holds(plan.plan_id, ledger_id)
    )
    try:
        findings = lake.read_epoch_table(epoch.epoch_id, "findings", ledger_id=ledger_id).to_pylist()
    except NotFound:
        findings = []
    return replace(
        history,
        epoch=epoch,
        context=evidence.context,
        marked=_mark_of(ledger_id, evidence.marked),
        gaps=tuple(new_gaps(cluster, epoch)),
        references=lake.read_epoch_table(epoch.epoch_id, "references", ledger_id=ledger_id),
        finding={"code": None, **findings[0]} if findings else None,  # a scan of an earlier version has no codes
        plans=plans,
        ended=ended_plans(cluster, plans, now),
        evidence=evidence,
        valid_since=valid_since,
    )


def _mark_of(ledger_id: int, marks: Mapping[tuple[int, int], int]) -> tuple[int, int] | None:
    return next(((czxid, at) for (marked, czxid), at in marks.items() if marked == ledger_id), None)
