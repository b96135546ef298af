"""How much plans of a kind were applied to lately: what the growth of a plan is measured by.

Belongs here: reading that from lake and journal. Not here: what is too much (``runs/automation_rule.py``), the kinds
(``inspect/automation.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.inspect.kept_plans import Plan, plans_of, stored_plan
from pulsar_lifecycle.journal.approvals import APPLIED_WITHIN_MS, applied_ledgers, applied_plans
from pulsar_lifecycle.runs.automation_rule import Amount
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice, OffloadPlan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind

if TYPE_CHECKING:
    from pulsar_lifecycle.inspect.automation import AutomatedKind

LATELY_MS = 3 * 86_400_000
"""Where a plan of the usual size was applied, if plans are applied regularly."""
CLOCKS_APART_MS = 86_400_000
"""How far the clocks of hosts and of the lake may be apart, for what dates plans and rows of the journal."""
_STAYED = (Outcome.REFUSED, Outcome.LEFT, Outcome.LEFT_TO_BROKER, Outcome.FOREIGN_ATTEMPT, Outcome.FAILED)
"""What a run says of what it did nothing about."""
_BY_SHARE = (PlanKind.DELAYED_INDEX, PlanKind.CONSUMED_RECORDS)
"""Kinds of plans of which one row is not one ledger of the journal."""


def plans_since(where: Cluster, kind: PlanKind, since: int) -> list[Plan]:
    """The cluster's plans of a kind that were stored at ``since`` (ms) or later, oldest first."""
    cluster = where.settings.cluster
    return [plan for plan in plans_of(where.lake, kind, since) if plan.cluster == cluster]


def ledgers_of(plan: Plan, action: OffloadChoice | None = None) -> int:
    """How many ledgers a plan has, or rows of an action."""
    if isinstance(plan, OffloadPlan):
        counts = {OffloadChoice.OFFLOAD: plan.ledgers, OffloadChoice.DELETE_COPY: plan.copies}
        return counts[action] if action else sum(counts.values())
    return plan.ledgers


def bytes_of(plan: Plan, action: OffloadChoice | None = None) -> int:
    """How many bytes these are, as ``max_bytes`` counts them."""
    if isinstance(plan, OffloadPlan):
        sizes = {OffloadChoice.OFFLOAD: plan.bytes, OffloadChoice.DELETE_COPY: plan.copies_bytes}
        return sizes[action] if action else sum(sizes.values())
    return plan.physical_bytes


def largest_applied(
    where: Cluster, kind: AutomatedKind, plan: Plan, now: int, grew: Callable[[Amount], object] | None = None
) -> Amount:
    """To how many ledgers any plan of a kind but ``plan`` was applied in the last 30 days, at most, and how many bytes.

    They may be few of those that it has: their bytes count. The last days are looked at first, and nothing before them
    where ``grew`` is false beside these. Reads the journal since the oldest of these plans was made, up to 30 days, and
    the rows of plans that were applied in part: ask it only where it decides.
    """
    largest = Amount()
    for days in (LATELY_MS, APPLIED_WITHIN_MS):
        since = now - days
        plans = plans_since(where, kind.kind, since - CLOCKS_APART_MS)
        others = {one.plan_id: one for one in plans if one.created_at >= since and one.plan_id != plan.plan_id}
        begun = max(since, min((one.created_at for one in others.values()), default=now) - CLOCKS_APART_MS)
        mine = where.settings.cluster
        applied = applied_plans(where.journal_reader, mine, list(others), begun, kind.effects, but=_STAYED)
        largest = Amount(max(applied.values(), default=0))
        sized = sorted(map(others.__getitem__, applied), key=lambda one: bytes_of(one, kind.action), reverse=True)
        for one in sized:
            if bytes_of(one, kind.action) <= largest.bytes or (grew and not grew(largest)):
                break
            done = _bytes_done(where, kind, one, applied[one.plan_id], begun)
            largest = Amount(largest.ledgers, max(largest.bytes, done))
        if grew and not grew(largest):
            break
    return largest


def _bytes_done(where: Cluster, kind: AutomatedKind, plan: Plan, ledgers: int, since: int) -> int:
    """How many bytes a plan was applied to that was applied to so many ledgers at ``since`` (ms) or later."""
    whole = kind.amount(where.lake, plan)
    if ledgers >= whole.ledgers:
        return whole.bytes
    if kind.kind not in _BY_SHARE:
        with contextlib.suppress(NotFound):  # rows that the lake has no more
            return _bytes_in(where, kind, plan, since)
    return int(whole.bytes * ledgers / max(whole.ledgers, 1))


def _bytes_in(where: Cluster, kind: AutomatedKind, plan: Plan, since: int) -> int:
    """How many bytes the rows of a plan have that were applied."""
    of, journal = where.settings.cluster, where.journal_reader
    ids = applied_ledgers(journal, of, plan.plan_id, since, kind.effects, but=_STAYED)
    rows = kind.rows(stored_plan(where.lake, plan.plan_id)[1], ())
    done = rows.filter(pc.is_in(rows.column("ledger_id"), value_set=ids))
    return int(pc.sum(done.column(kind.bytes)).as_py() or 0)
