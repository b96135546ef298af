"""How plans of each kind are applied by themselves: which job, with which configuration.

Belongs here: what a person would give that job, and whether a person has. Not here: whether a plan may go, nor
launching.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from assets.names import CLUSTER
from orchestration.automatic.at_work import ACTIVE, DELETION, LEASES
from pulsar_lifecycle.automation_settings import KindAutomation
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.inspect.automation import Plan
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import is_held

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Launch:
    """Which job applies plans of a kind, and with which configuration.

    ``beside``: the lease, if any, that no run may hold meanwhile: the job would be refused, and a try be spent.
    """

    job: str
    op: str
    config: Callable[[Cluster, Plan, KindAutomation], Config]
    beside: str = ""

    def run_config(self, where: Cluster, plan: Plan, kind: KindAutomation) -> dict[str, Any]:
        """The run's whole configuration for a plan, as the settings of its ``kind`` are now (``settings_of``)."""
        return {"ops": {self.op: {"config": dict(self.config(where, plan, kind))}}}

    def by_hand(self, instance: dg.DagsterInstance, plan_id: str) -> str:
        """The run that a person launched to apply a plan, and that waits or works; empty for none.

        It gets its tags only once it has begun, so that nothing but its configuration tells.
        """
        runs = instance.get_runs(dg.RunsFilter(job_name=self.job, statuses=list(ACTIVE)))
        return next((run.run_id for run in runs if CLUSTER not in run.tags and self._applies(run, plan_id)), "")

    def waits(self, where: Cluster) -> str:
        """Whether somebody holds the lease ``beside``, whom Dagster may not know; empty if nobody does."""
        if not self.beside:
            return ""
        try:
            with where.ports(read_only=True) as ports:
                held = LEASES[self.beside]
                return f"once no run holds {held}" if is_held(ports.store, held) else ""
        except LifecycleError as error:
            return str(error)

    def _applies(self, run: dg.DagsterRun, plan_id: str) -> bool:
        ops: Any = run.run_config.get("ops", {})
        config = ops.get(self.op, {}).get("config", {})
        return config.get("plan_id") == plan_id and (
            self.config not in _DRY_BY_DEFAULT or config.get("dry_run") is False
        )


def _capped(where: Cluster, plan: Plan, kind: KindAutomation) -> Config:
    return {
        "plan_id": plan.plan_id,
        "digest": plan.digest,
        "max_ledgers": kind.max_ledgers,
        "max_share": kind.max_share,
        "max_bytes": kind.max_bytes,
        "max_ledgers_per_topic": kind.max_ledgers_per_topic,
        "namespaces": list(kind.namespaces),
    }


def _for_good(where: Cluster, plan: Plan, kind: KindAutomation) -> Config:
    return {**_capped(where, plan, kind), "dry_run": False}


def _only(action: str) -> Callable[[Cluster, Plan, KindAutomation], Config]:
    def config(where: Cluster, plan: Plan, kind: KindAutomation) -> Config:
        named = {"plan_id": plan.plan_id, "digest": plan.digest, "namespaces": list(kind.namespaces)}
        return {**named, "only": action, "limit": kind.max_ledgers}

    return config


def _whole(where: Cluster, plan: Plan, kind: KindAutomation) -> Config:
    return {"plan_id": plan.plan_id, "digest": plan.digest, "dry_run": False}


_DRY_BY_DEFAULT = (_for_good, _whole)
LAUNCHES = {
    "orphans": Launch("apply_plan", "send_intents", _capped),
    "retention": Launch("apply_retention", "trim_expired", _for_good),
    "offload": Launch("offload", "offload_ledgers", _only("offload")),
    "bookkeeper_copies": Launch("offload", "offload_ledgers", _only("delete_copy")),
    "objects": Launch("sweep_objects", "sweep", _for_good),
    "delayed_index": Launch("repair_delayed_index", "repair", _for_good),
    "consumed_records": Launch("delete_records", "delete_before", _for_good),
    "bookies": Launch("collect_bookies", "collect", _whole, beside=DELETION),
}
"""By the kind's key in ``[automation]``."""
