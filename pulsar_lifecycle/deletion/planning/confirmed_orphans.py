"""Which orphans a second scan confirmed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.plans.deletion_plan import PLAN
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary

_SAME = ["ledger_id", "czxid", "ctime"]
CONFIRMED_BY = (*_SAME, "finding")
"""The columns of an earlier scan's findings that :func:`confirm` reads."""


def confirm(now: pa.Table, before: pa.Table) -> pa.Table:
    """Orphans of ``now`` that an earlier scan found too, the same z-node both times, sorted by ledger id.

    ``now`` are ``tables.FINDINGS``, of ``before`` :data:`CONFIRMED_BY` are enough.
    """
    orphans = now.filter(pc.equal(now.column("finding"), Finding.ORPHAN.value))
    earlier = before.select(_SAME).filter(pc.equal(before.column("finding"), Finding.ORPHAN.value))
    if not (orphans.num_rows and earlier.num_rows):
        return PLAN.empty_table()
    both: Any = orphans.join(earlier, keys=_SAME, join_type="left semi", use_threads=False).select(PLAN.names)
    return plans.by_id(both if both.schema.equals(PLAN) else both.cast(PLAN))


def run_config(summary: PlanSummary) -> dict[str, Any]:
    """The run configuration with which Dagster's job ``apply_plan`` applies a plan under the settings' caps."""
    return {"ops": {"send_intents": {"config": {"plan_id": summary.plan_id, "digest": summary.digest}}}}
