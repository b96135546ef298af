"""The product's own runs in one process over the fakes: scan, plan, apply, delete.

Belongs here: a lake with some scans, and the product's run over it. Not here: the cluster (``cluster.py``) and what a
test expects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion.batch import work_off
from pulsar_lifecycle.deletion.decision import Decision, Run
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.run_settings import MAX_LOSS
from pulsar_lifecycle.runs.apply import Applied
from pulsar_lifecycle.runs.caps import Caps, Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.offload_uuids import OffloadUuids
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.referenced import Referenced
from tests.kit.fakes.lake import FakeEpoch, FakeLake
from tests.kit.simulated.cluster import SimulatedCluster
from tests.kit.simulated.connections import SimIds, where_of

HOUR = 3_600_000
GRACE = 7 * 24 * HOUR
DELIVER_AFTER = 600_000
MAX_RETRIES = 10


@dataclass(frozen=True)
class Policy:
    """What an operator sets."""

    shared_with: tuple[str, ...] | None = ()
    holds: frozenset[str] = frozenset()
    gone_namespaces: frozenset[str] = frozenset()
    system_topics: bool = False
    acknowledged: tuple[str, ...] = ()
    max_shrinkage: float = 0.2
    not_sharing: tuple[str, ...] = ()
    caps: Caps = field(default_factory=lambda: Caps(100_000, 1.0, 1 << 50, 100_000))


@lru_cache
def settings_of(policy: Policy) -> Settings:
    """The settings file that says what ``policy`` does."""
    word = {"by": "the test", "why": "it says so"}
    shared = None if policy.shared_with is None else [{"name": n, "hosts": f"{n}:2181"} for n in policy.shared_with]
    raised = {"max_shrinkage_raised": word} if policy.max_shrinkage > MAX_LOSS[0] else {}
    return Settings.model_validate(
        {
            "cluster": "simulated",
            "zookeeper": {"hosts": "simulated:2181"},
            "pulsar": {"admin_url": "http://simulated:8080", "service_url": "pulsar://simulated:6650"},
            "lake": {"path": "/simulated"},
            "spark": {"scan_partitions": 1},
            "apply": asdict(policy.caps),
            "deletion": {"batch": 4, "deletes_per_second": 1_000_000},
            "bookkeeper": {
                "shared_with": shared,
                "gone_namespaces": [{"name": name, **word} for name in sorted(policy.gone_namespaces)],
                "not_sharing": [{"path": path, **word} for path in policy.not_sharing],
            },
            "orphans": {
                "grace_period": GRACE / 1000,
                "legal_holds": sorted(policy.holds),
                "system_topics": policy.system_topics,
                "acknowledged_znodes": [{"path": path, **word} for path in policy.acknowledged],
                "max_shrinkage": policy.max_shrinkage,
                **raised,
            },
        }
    )


@dataclass(frozen=True)
class Scan:
    """A finished epoch: what it proved, what is referenced, the context of its decisions, and its findings."""

    epoch: Epoch
    refs: Referenced
    context: Context
    findings: pa.Table
    offload_uuids: OffloadUuids
    kept: FakeEpoch

    def finding(self, ledger_id: int) -> str | None:
        """What a ledger was found to be; None for one in use."""
        found = self.findings.filter(pc.equal(self.findings.column("ledger_id"), ledger_id)).to_pylist()
        return found[0]["finding"] if found else None


class Plan(NamedTuple):
    """A plan, and the lake that keeps it."""

    summary: PlanSummary
    rows: pa.Table
    lake: FakeLake


IDS = SimIds(Random)


def lake_of(*scans: Scan) -> FakeLake:
    """A lake that keeps these scans."""
    lake = FakeLake()
    for one in scans:
        closed = one.epoch, one.refs, one.context
        tables = one.kept.tables | {"findings": [one.findings]}
        lake.begun[one.epoch.epoch_id] = replace(one.kept, closed=closed, tables=tables)
    return lake


def where(cluster: SimulatedCluster, policy: Policy | None, lake: FakeLake, **instead: Any) -> Cluster:
    """A cluster whose settings say what ``policy`` does; ``instead`` as :func:`where_of` takes it."""
    return where_of(cluster, settings_of(policy or Policy()), lake, ids=IDS, **instead)


def scan(cluster: SimulatedCluster, policy: Policy | None = None, previous: Sequence[Scan] = ()) -> Scan:
    """A scan by a control plane whose lake holds ``previous``."""
    lake = lake_of(*previous)
    return scan_of(lake, judged_scan.scan(where(cluster, policy, lake), "scan").epoch_id)


def scan_of(lake: FakeLake, epoch_id: str) -> Scan:
    """What a lake holds of a finished scan."""
    kept = lake.begun[epoch_id]
    assert kept.closed is not None
    return Scan(*kept.closed, lake.table(epoch_id, "findings"), kept.uuids, kept)


def plan(cluster: SimulatedCluster, now: Scan, before: Scan, policy: Policy | None = None) -> Plan:
    """Orphans that two scans agree on."""
    lake = lake_of(before, now)
    return Plan(*deletion_run.make_plan(where(cluster, policy, lake), now.epoch), lake)


def apply_plan(
    cluster: SimulatedCluster, plan: Plan, policy: Policy | None = None, *, limit: int = 0, **instead: Any
) -> Applied:
    """Send a plan's intents."""
    plan.lake.kept_plans[plan.summary.plan_id] = plan.summary, plan.rows
    order = Order(plan.summary.plan_id, plan.summary.digest, limit=limit)
    return deletion_run.apply_plan(where(cluster, policy, plan.lake, **instead), "apply-run", order, lambda line: None)


@contextmanager
def begun(
    cluster: SimulatedCluster, now: Scan, before: Scan, policy: Policy | None = None, run_id: str = "delete-run"
) -> Iterator[tuple[Run, Ports]]:
    """A deletion run by two scans, and the ports of its one worker."""
    at = where(cluster, policy, lake_of(before, now))
    with at.ports() as driver, deletion_run.begun(at, run_id, driver) as run, at.ports() as worker:
        queue = cluster.open_queue()
        try:
            yield run, Ports(worker.store, worker.reader, worker.admin, queue, worker.journal, worker.clock)
        finally:
            queue.close()


def delete(
    cluster: SimulatedCluster,
    now: Scan,
    before: Scan,
    policy: Policy | None = None,
    wrap: Callable[[Ports], Ports] = lambda ports: ports,
    limit: int = 1_000_000,
    marked: Mapping[tuple[int, int], int] | None = None,
    run_id: str = "delete-run",
) -> list[Decision]:
    """One deletion run over ``limit`` messages of the queue; ``wrap`` may put faults or recorders around the ports.

    ``marked``: (ledger id, czxid) -> when our first phase marked it, if not by the journal.
    """
    with begun(cluster, now, before, policy, run_id) as (run, ports):
        run = run if marked is None else replace(run, evidence=replace(run.evidence, marked=marked))
        return list(work_off(run, wrap(ports), limit, 1_000))


def two_scans(cluster: SimulatedCluster, policy: Policy | None = None) -> tuple[Scan, Scan]:
    """Wait out the grace period, scan, wait a day, scan again: (now, before)."""
    cluster.wait(8 * 24)
    before = scan(cluster, policy)
    cluster.wait(25)
    return scan(cluster, policy, [before]), before


def whole_round(cluster: SimulatedCluster, policy: Policy | None = None) -> tuple[Scan, list[Decision]]:
    """Scan twice, plan, apply, scan again, delete: (the newest scan, what became of the messages)."""
    now, before = two_scans(cluster, policy)
    made = plan(cluster, now, before, policy)
    if not made.summary.actionable:
        return now, []
    apply_plan(cluster, made, policy)
    cluster.wait(1)
    latest = scan(cluster, policy, [now])
    return latest, delete(cluster, latest, before, policy)
