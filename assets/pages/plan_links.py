"""Links to plans: to the event on whose page each stands, and to the runs that applied it.

Source of truth: Dagster's own events. Not here: which plans a run applied (``assets/pages/lineage.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from assets.names import key
from assets.pages import show
from pulsar_lifecycle.scan.read import began_at
from pulsar_lifecycle.values.plans import epoch_of
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of

LOOKED_AT = 200
"""Events of an asset among which a plan is looked for: the newest, a week of hourly scans; then the first that followed
its scan."""
PAGE_OF = {
    PlanKind.ORPHANS: "deletion_plan",
    PlanKind.RECONCILE: "namespace_reconciliation",
    PlanKind.RETENTION: "retention_plan",
    PlanKind.LOAD: "load_plan",
    PlanKind.DELAYED_INDEX: "delayed_index_plan",
    PlanKind.OFFLOAD: "offload_plan",
    PlanKind.OBJECTS: "orphan_objects",
    PlanKind.COLLECTION: "collection_plan",
    PlanKind.INACTIVE_TOPICS: "inactive_topics_plan",
    PlanKind.INACTIVE_SUBSCRIPTIONS: "inactive_cursors_plan",
}
"""The asset on whose page a plan is; one to delete records is on that of the job's run."""
_BACKFILLED = {
    PlanKind.RETENTION: "namespace_retention",
    PlanKind.DELAYED_INDEX: "namespace_delayed_index",
    PlanKind.OFFLOAD: "offloaded_ledgers",
}
"""Where a backfill shows the plan of such a kind that it has made."""


class PlanLinks:
    """The plans of one cluster; of each asset it looks once, and once more for each older plan."""

    def __init__(self, instance: dg.DagsterInstance, cluster: str) -> None:
        self._instance, self._cluster = instance, cluster
        self._found: dict[str, dict[str, float]] = {}

    def shown(self, plans: Sequence[str]) -> dg.MetadataValue:
        """A line for each plan: the event that made it, and the runs that applied it."""
        return show.bullets([self._line(plan) for plan in plans[: show.SAMPLE]])

    def _line(self, plan_id: str) -> str:
        kind = kind_of(plan_id)
        for table in (PAGE_OF, _BACKFILLED):
            asset = table.get(kind) if kind else None
            if asset and (at := self._made(asset).get(plan_id) or self._made_of(asset, plan_id)):
                event = f"/assets/{self._cluster}/{asset}?view=events&asOf={int(at * 1000)}"
                return f"[{plan_id}]({event}): {show.applied_by(plan_id, 'it')}"
        return show.applied_by(plan_id)

    def _made(self, asset: str) -> dict[str, float]:
        """When (s) each of the last plans of an asset was made, by its id."""
        if asset not in self._found:
            newest = self._instance.fetch_materializations(key(self._cluster, asset), limit=LOOKED_AT)
            self._found[asset] = _plans_of(newest)
        return self._found[asset]

    def _made_of(self, asset: str, plan_id: str) -> float | None:
        """When (s) an older plan was made: no earlier than its scan, and as a rule soon after."""
        scanned = began_at(epoch_of(plan_id))
        if scanned is None:
            return None
        since = dg.AssetRecordsFilter(key(self._cluster, asset), after_timestamp=scanned.timestamp())
        return _plans_of(self._instance.fetch_materializations(since, limit=LOOKED_AT, ascending=True)).get(plan_id)


def _plans_of(found: dg.EventRecordsResult) -> dict[str, float]:
    """When (s) the plans of some events were made, by their ids."""
    events = [(one.asset_materialization, one.timestamp) for one in found.records]
    return {str(event.metadata["plan id"].value): at for event, at in events if event and "plan id" in event.metadata}
