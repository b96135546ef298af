"""How much plans of a kind were applied to lately: what the growth of a plan is measured by.

Belongs here: reading that from lake and journal. Not here: what is too much (``runs/automation_rule.py``), the kinds
(``inspect/automation.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.inspect.kept_plans import Plan, plans_of, stored_plan
from pulsar_lifecycle.journal.approvals import APPLIED_WITHIN_MS, AppliedTo, applied_rows, counted
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
_STAYED = (
    Outcome.REFUSED, Outcome.LEFT, Outcome.LEFT_TO_BROKER, Outcome.FOREIGN_ATTEMPT, Outcome.FAILED,
    Outcome.NOT_STARTED,
)  # fmt: skip
"""What a run says of what it did nothing about."""
_BY_TOPIC = (PlanKind.DELAYED_INDEX, PlanKind.CONSUMED_RECORDS)
"""Kinds of plans of which one row is not one ledger of the journal, but is of one topic."""
MOST_READ = 8
"""Of so many plans that were applied in part a look reads the rows, at most: those with most bytes by the journal.

The bytes of others do not count: a plan may wait for an operator by that, and none goes.
"""


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

    They may be few of those that it has: their bytes count. With ``grew`` the last days are looked at first, and no
    more where it is false beside what was found. A look is one question to the journal, since the oldest of these plans
    was made, up to 30 days, and the rows of few plans (``MOST_READ``): ask it only where it decides.
    """
    largest = Amount()
    for days in (LATELY_MS, APPLIED_WITHIN_MS) if grew else (APPLIED_WITHIN_MS,):
        largest = _largest_since(where, kind, plan, now - days, grew)
        if grew and not grew(largest):
            break
    return largest


def _largest_since(
    where: Cluster, kind: AutomatedKind, plan: Plan, since: int, grew: Callable[[Amount], object] | None
) -> Amount:
    plans = plans_since(where, kind.kind, since - CLOCKS_APART_MS)
    others = {one.plan_id: one for one in plans if one.created_at >= since and one.plan_id != plan.plan_id}
    if not others:
        return Amount()
    begun = max(since, min(one.created_at for one in others.values()) - CLOCKS_APART_MS)
    mine = where.settings.cluster
    rows = applied_rows(where.journal_reader, mine, list(others), begun, kind.effects, but=_STAYED)
    applied = counted(rows)
    whole = [others[i] for i, done in applied.items() if _share(kind, others[i], done) >= 1]
    ledgers = max((_most(kind, others[i], done) for i, done in applied.items()), default=0)
    largest = Amount(ledgers, max((bytes_of(one, kind.action) for one in whole), default=0))

    def most_bytes(one: Plan) -> tuple[int, float, int]:
        done = applied[one.plan_id]
        return done.bytes, _share(kind, one, done) * bytes_of(one, kind.action), one.created_at

    parts = [others[i] for i in {*applied}.difference(one.plan_id for one in whole)]
    hopeful = [one for one in parts if bytes_of(one, kind.action) > largest.bytes]
    for one in sorted(hopeful, key=most_bytes, reverse=True)[:MOST_READ]:
        if grew and not grew(largest):
            break
        if bytes_of(one, kind.action) <= largest.bytes:
            continue
        size = _bytes_in(where, kind, one, rows)
        if size is None:  # the lake has its rows no more
            size = int(_share(kind, one, applied[one.plan_id]) * bytes_of(one, kind.action))
        largest = Amount(ledgers, max(largest.bytes, size))
    return largest


def _share(kind: AutomatedKind, plan: Plan, done: AppliedTo) -> float:
    """How much of a plan was applied: 1 is all of it."""
    most = done.topics if kind.kind in _BY_TOPIC else _most(kind, plan, done)
    return most / max(ledgers_of(plan, kind.action), 1)


def _most(kind: AutomatedKind, plan: Plan, done: AppliedTo) -> int:
    """To how many ledgers a plan was applied. One of bookies counts as a whole: no column of the journal has them."""
    return plan.rows if kind.kind is PlanKind.COLLECTION else done.most


def _bytes_in(where: Cluster, kind: AutomatedKind, plan: Plan, applied: pa.Table) -> int | None:
    """How many bytes the rows of a plan have that were applied; None where they are gone."""
    try:
        rows = kind.rows(stored_plan(where.lake, plan.plan_id)[1], ())
    except NotFound:
        return None
    by = "topic" if kind.kind in _BY_TOPIC else "ledger_id"
    of = applied.filter(pc.equal(applied.column("plan_id"), plan.plan_id)).column(by).unique()
    return int(pc.sum(rows.filter(pc.is_in(rows.column(by), value_set=of)).column(kind.bytes)).as_py() or 0)
