# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow has no types.
"""Which plans have nothing left to apply: the journal says so of every ledger of theirs.

Belongs here: what settles a ledger of each kind of plan. Not here: whether a plan may be applied
(``runs/plan_checks.py``).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.journal.queries import filed_since
from pulsar_lifecycle.lifecycle import retention_planning
from pulsar_lifecycle.lifecycle.load import load_planning
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.records.outcomes import FINAL, Action, Outcome, Phase
from pulsar_lifecycle.records.plans import delayed_index_plan, delete_records_plan, inactive_plan
from pulsar_lifecycle.records.plans.plan_summary import PlanSummary
from pulsar_lifecycle.runs.cluster import Cluster

DAY_MS = 86_400_000
_REPAIRS = f"{delayed_index_plan.KIND}-"
_INACTIVE = (f"{inactive_plan.TOPICS}-", f"{inactive_plan.SUBSCRIPTIONS}-")


def settled_plans(cluster: Cluster, plans: Sequence[PlanSummary], now: int) -> frozenset[str]:
    """Ids of those that could be applied still at ``now`` (ms), and whose every ledger is settled."""
    valid_since = int(now - cluster.settings.orphans.plan_valid_for * 1000)
    ours = [one for one in plans if one.cluster == cluster.settings.cluster and one.actionable and one.ledgers]
    open_ids = [one.plan_id for one in ours if one.created_at >= valid_since]
    if not open_ids:
        return frozenset()
    applied = pc.field("plan_id").isin(open_ids) & filed_since(valid_since - DAY_MS)  # clocks may differ
    columns = ["plan_id", "ledger_id", "topic", "action", "phase", "outcome", "detail"]
    journalled = cluster.journal_reader.find(applied, columns)
    settled: set[str] = set()
    for plan_id in set(journalled.column("plan_id").to_pylist()):
        with contextlib.suppress(LifecycleError):  # `plan ID` says what is wrong with its rows
            rows = rows_of(cluster.lake, plan_id)
            if settled_ledgers(plan_id, rows, journalled.filter(pc.field("plan_id") == plan_id)) == rows.num_rows:
                settled.add(plan_id)
    return frozenset(settled)


def rows_of(lake: Lake, plan_id: str) -> pa.Table:
    """The rows of a plan of any kind. Raises NotFound."""
    if plan_id.startswith(f"{load_planning.KIND}-"):
        return lake.load_plan(plan_id)[1]
    if plan_id.startswith(f"{retention_planning.KIND}-"):
        return lake.retention_plan(plan_id)[1]
    if delete_records_plan.holds_records(plan_id):
        return lake.delete_records_plan(plan_id)[1]
    if plan_id.startswith(_REPAIRS):
        return lake.repair_plan(plan_id)[1]
    if plan_id.startswith(_INACTIVE):
        return lake.inactive_plan(plan_id)[1]
    return lake.plan(plan_id)[1]


def settled_ledgers(plan_id: str, rows: pa.Table, journalled: pa.Table) -> int:
    """How many of a plan's rows its runs are done with, by the plan's rows of the journal.

    Of a load plan topics that were loaded and are unloaded again, of a retention plan ledgers that left their topics'
    lists, of plans of inactive topics and subscriptions those that are deleted, of a plan to delete records
    partitions whose low watermark was raised, of plans of repairs subscriptions that were repaired, of any other
    ledgers that a deletion run deleted, found gone, kept or refused.
    """
    if plan_id.startswith(f"{load_planning.KIND}-"):
        through = (pc.field("phase") == Phase.UNLOAD) & (pc.field("outcome") == Outcome.DONE)
        return _both(rows, journalled.filter(through), "topic")
    if plan_id.startswith(f"{retention_planning.KIND}-"):
        return _both(rows, journalled.filter(pc.field("outcome") == Outcome.REMOVED), "ledger_id")
    if delete_records_plan.holds_records(plan_id):
        raised = (pc.field("phase") == Phase.RAISE) & (pc.field("outcome") == Outcome.DONE)
        return _both(rows, journalled.filter(raised), "topic")
    if plan_id.startswith(_REPAIRS):
        done = journalled.filter((pc.field("action") == Action.REPAIR_INDEX) & (pc.field("outcome") == Outcome.DONE))
        ended = {(row["topic"], json.loads(row["detail"])["subscription"]) for row in done.to_pylist()}
        return sum((row["topic"], row["subscription"]) in ended for row in rows.to_pylist())
    if plan_id.startswith(_INACTIVE):
        deleted = pc.field("action").isin([Action.DELETE_TOPIC, Action.DELETE_SUBSCRIPTION])
        done = journalled.filter(deleted & (pc.field("outcome") == Outcome.DONE)).select(["topic", "detail"])
        return len({tuple(row.values()) for row in done.to_pylist()})
    ended = (pc.field("phase") == Phase.DELETE) & pc.field("outcome").isin(sorted(FINAL))
    return _both(rows, journalled.filter(ended & (pc.field("action") == Action.DELETE_LEDGER)), "ledger_id")


def _both(rows: pa.Table, journalled: pa.Table, column: str) -> int:
    return len(set(rows[column].to_pylist()).intersection(journalled[column].to_pylist()))
