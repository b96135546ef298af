"""Plans of every kind as the lake keeps them: which there are, one with its rows, what its files' digest is.

Not here: what a kind is called and where it lies (``values/plans/plan_kind.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.tiered.buckets import bucket_rules
from pulsar_lifecycle.values.plans import (
    collection_plan,
    delayed_index_plan,
    delete_records_plan,
    deletion_plan,
    inactive_plan,
    load_plan,
    offload_plan,
    retention_plan,
)
from pulsar_lifecycle.values.plans.offload_plan import OffloadPlan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary

Plan = PlanSummary | OffloadPlan


@dataclass(frozen=True, slots=True)
class KeptKind:
    """How plans of a kind are read. ``listed``: those that the lake stored at so many ms or later, oldest first.

    Others of the same folder are among them. ``digest`` is over rows and facts.
    """

    listed: Callable[[Lake, int], Sequence[Plan]]
    stored: Callable[[Lake, str], tuple[Plan, pa.Table]]
    digest: Callable[[pa.Table, Mapping[str, Any]], str]


_LEDGERS = KeptKind(lambda lake, since: lake.plans(since), lambda lake, i: lake.plan(i), deletion_plan.digest)
_INACTIVE = KeptKind(lambda lake, _: lake.inactive_plans(), lambda lake, i: lake.inactive_plan(i), inactive_plan.digest)
_RECORDS = KeptKind(
    lambda lake, since: lake.delete_records_plans(since),
    lambda lake, i: lake.delete_records_plan(i),
    delete_records_plan.digest,
)
KEPT: Mapping[PlanKind, KeptKind] = {
    PlanKind.ORPHANS: _LEDGERS,
    PlanKind.RECONCILE: _LEDGERS,
    PlanKind.RETENTION: KeptKind(
        lambda lake, since: lake.retention_plans(since), lambda lake, i: lake.retention_plan(i), retention_plan.digest
    ),
    PlanKind.LOAD: KeptKind(lambda lake, _: lake.load_plans(), lambda lake, i: lake.load_plan(i), load_plan.digest),
    PlanKind.INACTIVE_TOPICS: _INACTIVE,
    PlanKind.INACTIVE_SUBSCRIPTIONS: _INACTIVE,
    PlanKind.DELETE_RECORDS: _RECORDS,
    PlanKind.CONSUMED_RECORDS: _RECORDS,
    PlanKind.DELAYED_INDEX: KeptKind(
        lambda lake, since: lake.repair_plans(since), lambda lake, i: lake.repair_plan(i), delayed_index_plan.digest
    ),
    PlanKind.OFFLOAD: KeptKind(
        lambda lake, since: lake.offload_plans(since), lambda lake, i: lake.offload_plan(i), offload_plan.digest
    ),
    PlanKind.OBJECTS: KeptKind(
        lambda lake, since: lake.object_plans(since), lambda lake, i: lake.object_plan(i), bucket_rules.digest
    ),
    PlanKind.COLLECTION: KeptKind(
        lambda lake, since: lake.collection_plans(since),
        lambda lake, i: lake.collection_plan(i),
        collection_plan.digest,
    ),
}


def known_kind(plan_id: str) -> PlanKind:
    """The kind of a plan, by its id. Raises NotFound for what is no plan's id."""
    kind = kind_of(plan_id)
    if kind is None:
        raise NotFound(f"there is no plan {plan_id!r}: ids begin with {', '.join(f'{one}-' for one in PlanKind)}")
    return kind


def stored_plan(lake: Lake, plan_id: str) -> tuple[Plan, pa.Table]:
    """A plan of any kind with its rows. Raises NotFound."""
    return KEPT[known_kind(plan_id)].stored(lake, plan_id)


def plans_of(lake: Lake, kind: PlanKind, since: int = 0) -> list[Plan]:
    """Plans of a kind that were stored at ``since`` (ms) or later and can be read, oldest first."""
    return [plan for plan in KEPT[kind].listed(lake, since) if kind_of(plan.plan_id) is kind]


def every_plan(lake: Lake) -> tuple[list[Plan], list[Plan]]:
    """Plans of all kinds that can be read, newest first; then those of kinds that this version does not know."""
    found = [plan for kept in dict.fromkeys(KEPT.values()) for plan in kept.listed(lake, 0)]
    found.sort(key=lambda plan: plan.created_at, reverse=True)
    return [plan for plan in found if kind_of(plan.plan_id)], [plan for plan in found if not kind_of(plan.plan_id)]
