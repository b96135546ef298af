"""Plans of the inactive topics and subscriptions that may be deleted, of a stored report.

Belongs here: whether they may be applied, storing them. Not here: which are inactive (``inactive_rules.py``), deleting
topics (``trimming/inactive_run.py``).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pulsar_lifecycle.lifecycle.activity.activity_run import ActivityReport
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.plans import inactive_plan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary, summary_of

_LOGICAL, _PHYSICAL = "bytes of each topic once", "physical bytes of each topic once"


def make_inactive_plans(
    cluster: Cluster, epoch: Epoch, report: ActivityReport
) -> tuple[tuple[PlanSummary, pa.Table], tuple[PlanSummary, pa.Table]]:
    """Store the plan of topics and that of subscriptions of a report, each with its rows."""
    gaps = [*evidence.gaps_of(cluster, epoch), *_below_floor(cluster)]
    gaps += [Gap(GapCode.POLICIES_UNKNOWN, "", problem) for problem in report.problems]
    return _plan(cluster, epoch, gaps, PlanKind.INACTIVE_TOPICS, report.topics), _plan(
        cluster, epoch, gaps, PlanKind.INACTIVE_SUBSCRIPTIONS, report.cursors
    )


def _below_floor(cluster: Cluster) -> list[Gap]:
    """A period that is shorter than a day, but for the sandbox's marker."""
    period = cluster.settings.inactivity.period
    if period >= evidence.FLOOR_SECONDS:
        return []
    with cluster.ports(read_only=True) as ports:
        if control.is_sandbox(ports.store):
            return []
    said = f"inactivity.period is {period:.0f} s, the floor is {evidence.FLOOR_SECONDS} s"
    return [Gap(GapCode.BELOW_FLOOR, "inactivity.period", said)]


def _plan(
    cluster: Cluster, epoch: Epoch, gaps: list[Gap], kind: PlanKind, inactive: pa.Table
) -> tuple[PlanSummary, pa.Table]:
    rows = inactive.filter(inactive.column("kept").is_null())
    token, now = cluster.ids.token(plans.TOKEN_BYTES), cluster.clock.now_ms()
    sized = rows
    for column, once in (("bytes", _LOGICAL), ("physical_bytes", _PHYSICAL)):
        sized = sized.append_column(once, inactive_plan.counted_once(rows, column))
    summary = summary_of(
        kind, token, epoch, gaps, now, sized, inactive_plan.digest, logical=_LOGICAL, physical=_PHYSICAL
    )
    cluster.lake.store_inactive_plan(summary, rows)
    return summary, rows


def run_config(summary: PlanSummary) -> dict[str, Any]:
    """The run configuration of Dagster's job that applies a plan under the settings' caps."""
    topics = kind_of(summary.plan_id) is PlanKind.INACTIVE_TOPICS
    op = "delete_unused_topics" if topics else "delete_subscriptions"
    return {"ops": {op: {"config": {"plan_id": summary.plan_id, "digest": summary.digest, "dry_run": True}}}}
