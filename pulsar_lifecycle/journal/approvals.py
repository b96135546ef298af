"""Approvals of plans, and which plans were applied, as the journal has them.

Not here: what an approval is worth (``runs/automation_rule.py``), who may give one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.journal.effects import NO_EFFECTS
from pulsar_lifecycle.journal.queries import filed_since
from pulsar_lifecycle.ports import JournalReader, JournalRow
from pulsar_lifecycle.runs.automation_rule import Approval
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer, details_of
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase

ApprovalRow = Mapping[str, Any]
"""A row of the journal that approves a plan, or withdraws that."""
APPLIED_WITHIN_MS = 30 * 86_400_000
"""How far back plans count that were applied."""


@dataclass(frozen=True, slots=True)
class Approved:
    """Details of an approval: who, which digest, until when (ms), and which withdrawals were known (ids of runs)."""

    by: str
    digest: str
    until: int
    despite: tuple[str, ...] = ()


def approval_row(
    run_id: str, cluster: str, plan_id: str, approved: Approved, now: int, *, withdrawn: bool = False
) -> JournalRow:
    """That somebody approved a plan, or withdrew the approval."""
    text = f"{'withdrawn' if withdrawn else 'approved'} by {approved.by}"
    step = Step(Action.APPROVE_PLAN, Phase.APPROVE_PLAN)
    outcome = Outcome.WITHDRAWN if withdrawn else Outcome.APPROVED
    about = Subject(-1, "", "", details=(approved,))
    return Writer(run_id, cluster, plan_id).row(step, about, outcome, Why(Code.BY_OPERATOR, text), now)


def approval_in(rows: Sequence[ApprovalRow]) -> Approval | None:
    """The newest approval among the :func:`rows_about` a plan; None if there is none, or it was withdrawn.

    No clock says what came last: an approval holds if whoever gave it knew of every withdrawal. So where two say
    something at the same moment, the plan waits. A row of another program approves nothing.
    """
    withdrawn = _withdrawals(rows)
    for row in reversed([row for row in rows if row["outcome"] == Outcome.APPROVED]):
        approved = details_of(Approved, row["detail"])
        if approved and withdrawn <= set(approved.despite):
            return Approval(approved.by, approved.digest, row["at"], approved.until)
    return None


def withdrawals(journal: JournalReader, cluster: str, plan_id: str, since: int) -> tuple[str, ...]:
    """The runs in which approvals of a plan were withdrawn, at ``since`` (ms) or later."""
    said = rows_about(journal, cluster, [plan_id], since)
    return tuple(sorted(_withdrawals(said.get(plan_id, ()))))


def _withdrawals(rows: Sequence[ApprovalRow]) -> set[str]:
    return {row["run_id"] for row in rows if row["outcome"] != Outcome.APPROVED}


def rows_about(
    journal: JournalReader, cluster: str, plan_ids: Collection[str], since: int
) -> dict[str, list[ApprovalRow]]:
    """Approvals of plans and their withdrawals, given at ``since`` (ms) or later, oldest first; by plan, of few."""
    about = _of_plans(cluster, plan_ids, since) & (pc.field("action") == Action.APPROVE_PLAN)
    found: dict[str, list[ApprovalRow]] = {}
    for row in journal.find(about, ["plan_id", "run_id", "outcome", "detail", "at"]).sort_by("at").to_pylist():
        found.setdefault(row["plan_id"], []).append(row)
    return found


def applied_plans(
    journal: JournalReader,
    cluster: str,
    plan_ids: Collection[str],
    since: int,
    only: Collection[Action] = (),
    but: Collection[Outcome] = (),
) -> dict[str, int]:
    """Those of the plans by which something was done, or begun, at ``since`` (ms) or later: to how many ledgers.

    Or to how many topics, where it is about no ledgers. ``only``: these actions; empty: all that change something.
    ``but``: what has one of these outcomes does not count. A proof of an offloaded copy changes nothing: an offload has
    other rows as well, and a copy deletion proves it, too.
    """
    if not plan_ids:
        return {}
    return {i: one.most for i, one in counted(applied_rows(journal, cluster, plan_ids, since, only, but)).items()}


@dataclass(frozen=True, slots=True)
class AppliedTo:
    """To how many ledgers and topics a plan was applied. ``bytes``: as its rows have them, to tell where most are."""

    ledgers: int
    topics: int
    bytes: int

    @property
    def most(self) -> int:
        """Ledgers, or topics where it is about no ledgers."""
        return max(self.ledgers, self.topics)


def counted(rows: pa.Table) -> dict[str, AppliedTo]:
    """What :func:`applied_rows` come to, by plan."""
    each = rows.group_by(["plan_id", "ledger_id", "topic"]).aggregate([("bytes", "max")])
    found = each.group_by("plan_id").aggregate(
        [("ledger_id", "count_distinct"), ("topic", "count_distinct"), ("bytes_max", "sum")]
    )
    return {
        row["plan_id"]: AppliedTo(
            row["ledger_id_count_distinct"], row["topic_count_distinct"], row["bytes_max_sum"] or 0
        )
        for row in found.to_pylist()
    }  # fmt: skip


def applied_rows(
    journal: JournalReader,
    cluster: str,
    plan_ids: Collection[str],
    since: int,
    only: Collection[Action] = (),
    but: Collection[Outcome] = (),
) -> pa.Table:
    """Plan, ledger, topic and bytes of the rows that :func:`applied_plans` counts."""
    actions = pc.field("action").isin(pa.array(sorted(only or NO_EFFECTS), pa.string()))
    changes = (actions if only else ~actions) & ~pc.field("outcome").isin([Outcome.VERIFIED, *but])
    effects = _of_plans(cluster, plan_ids, since) & changes
    return journal.find(effects, ["plan_id", "ledger_id", "topic", "bytes"])


def _of_plans(cluster: str, plan_ids: Collection[str], since: int) -> pc.Expression:
    """The cluster's rows of these plans, filed at ``since`` (ms) or later."""
    named = pc.field("plan_id").isin(pa.array(sorted(plan_ids), pa.string()))
    return (pc.field("cluster") == cluster) & named & filed_since(since)
