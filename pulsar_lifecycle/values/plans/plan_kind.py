"""The kinds of plans: how an id tells one, and how the lake keeps it.

Belongs here: what is so of every plan of a kind, whoever looks at it. Not here: what a command shows of it
(``cli/plan_pages.py``), whether it may go by itself (``inspect/automation.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pyarrow as pa

from pulsar_lifecycle.values.plans.collection_plan import COLLECTIONS
from pulsar_lifecycle.values.plans.delayed_index_plan import REPAIRS
from pulsar_lifecycle.values.plans.delete_records_plan import RECORDS
from pulsar_lifecycle.values.plans.deletion_plan import PLAN
from pulsar_lifecycle.values.plans.inactive_plan import INACTIVE_CURSORS, INACTIVE_TOPICS
from pulsar_lifecycle.values.plans.load_plan import TOPICS_TO_LOAD
from pulsar_lifecycle.values.plans.offload_plan import CANDIDATES
from pulsar_lifecycle.values.plans.retention_plan import EXPIRED_LEDGERS
from pulsar_lifecycle.values.tables import OBJECTS


class PlanKind(StrEnum):
    """A kind of plan. Its value begins the ids of its plans: ``KIND-EPOCH-TOKEN``."""

    ORPHANS = "orphans"
    """Ledgers that nothing refers to."""
    RECONCILE = "reconcile"
    """Those of chosen namespaces, as job ``reconcile`` takes them."""
    RETENTION = "retention"
    """Ledgers of unloaded topics that are past their retention."""
    LOAD = "load"
    """Topics that a broker must load to free what only it can."""
    INACTIVE_TOPICS = "inactive-topics"
    """Topics that nobody uses."""
    INACTIVE_SUBSCRIPTIONS = "inactive-subscriptions"
    """Subscriptions that nobody uses."""
    DELETE_RECORDS = "delete-records"
    """Records that an operator asked to delete."""
    CONSUMED_RECORDS = "consumed-records"
    """Records that policy ``consumed_records`` deletes."""
    DELAYED_INDEX = "repair"
    """Delayed indexes to repair."""
    OFFLOAD = "offload"
    """Ledgers to offload, and copies in BookKeeper to delete."""
    OBJECTS = "objects"
    """Objects and uploads that nothing needs in the buckets."""
    COLLECTION = "collection"
    """Bookies to have collect."""

    @property
    def folder(self) -> str:
        """The folder of the lake that keeps its plans; two kinds with the same rows share one."""
        return _FOLDERS[self]

    @property
    def schema(self) -> pa.Schema:
        """The schema of its rows."""
        return _SCHEMAS[self]

    @property
    def counted(self) -> str:
        """What caps count of it as ``max_ledgers``, in the plural."""
        return _COUNTED.get(self, LEDGERS)


LEDGERS = "ledgers"
_COUNTED: Mapping[PlanKind, str] = {
    PlanKind.INACTIVE_TOPICS: "topics",
    PlanKind.INACTIVE_SUBSCRIPTIONS: "subscriptions",
    PlanKind.DELAYED_INDEX: "subscriptions",
    PlanKind.OBJECTS: "objects",
    PlanKind.COLLECTION: "bookies",
}
_FOLDERS: Mapping[PlanKind, str] = {
    PlanKind.ORPHANS: "plans",
    PlanKind.RECONCILE: "plans",
    PlanKind.RETENTION: "retention-plans",
    PlanKind.LOAD: "load-plans",
    PlanKind.INACTIVE_TOPICS: "inactive-plans",
    PlanKind.INACTIVE_SUBSCRIPTIONS: "inactive-plans",
    PlanKind.DELETE_RECORDS: "delete-records-plans",
    PlanKind.CONSUMED_RECORDS: "delete-records-plans",
    PlanKind.DELAYED_INDEX: "repair-plans",
    PlanKind.OFFLOAD: "offload-plans",
    PlanKind.OBJECTS: "object-plans",
    PlanKind.COLLECTION: "collection-plans",
}
_SCHEMAS: Mapping[PlanKind, pa.Schema] = {
    PlanKind.ORPHANS: PLAN,
    PlanKind.RECONCILE: PLAN,
    PlanKind.RETENTION: EXPIRED_LEDGERS,
    PlanKind.LOAD: TOPICS_TO_LOAD,
    PlanKind.INACTIVE_TOPICS: INACTIVE_TOPICS,
    PlanKind.INACTIVE_SUBSCRIPTIONS: INACTIVE_CURSORS,
    PlanKind.DELETE_RECORDS: RECORDS,
    PlanKind.CONSUMED_RECORDS: RECORDS,
    PlanKind.DELAYED_INDEX: REPAIRS,
    PlanKind.OFFLOAD: CANDIDATES,
    PlanKind.OBJECTS: OBJECTS,
    PlanKind.COLLECTION: COLLECTIONS,
}


def kind_of(plan_id: str) -> PlanKind | None:
    """The kind of a plan, by its id; None for what is no plan's id."""
    return next((kind for kind in PlanKind if plan_id.startswith(f"{kind}-")), None)


def counted_of(plan_id: str) -> str:
    """What caps count of a plan, in the plural, by its id."""
    kind = kind_of(plan_id)
    return kind.counted if kind else LEDGERS
