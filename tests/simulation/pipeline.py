"""The product's own steps in one process over the fakes: scan, plan, apply, delete.

Belongs here: the steps in a row, for tests of what comes of them. Every decision and effect is the product's code. Not
here: the cluster (``cluster.py``) and what a test expects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.deletion import deletion_planning, scan_run
from pulsar_lifecycle.deletion.batch import work_off
from pulsar_lifecycle.deletion.decision import Decision, Run
from pulsar_lifecycle.deletion.run_evidence import Evidence
from pulsar_lifecycle.journal import in_doubt
from pulsar_lifecycle.journal.archive import nodes_in_doubt
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.ports import DeletionQueue, Journal, MetadataStore
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records.epoch import Epoch
from pulsar_lifecycle.records.findings import Context
from pulsar_lifecycle.records.offload_uuids import OffloadUuids
from pulsar_lifecycle.records.plans import deletion_plan
from pulsar_lifecycle.records.plans.deletion_plan import PlanSummary
from pulsar_lifecycle.records.referenced import Referenced
from pulsar_lifecycle.run_settings import MAX_LOSS
from pulsar_lifecycle.runs import apply, control
from pulsar_lifecycle.runs.caps import Caps
from pulsar_lifecycle.settings import Settings
from tests.kit.fakes.lake import FakeEpoch, FakeLake
from tests.simulation.cluster import SimulatedCluster
from tests.simulation.connections import SimIds, where_of

HOUR = 3_600_000
GRACE = 7 * 24 * HOUR
DELIVER_AFTER = 600_000
RETRY_DELAY = 600_000
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


IDS = SimIds(Random)


def scan(cluster: SimulatedCluster, policy: Policy | None = None, previous: Sequence[Scan] = ()) -> Scan:
    """A scan by a control plane whose lake holds ``previous``."""
    lake = FakeLake()
    lake.begun = {one.kept.epoch_id: one.kept for one in previous}
    where = where_of(cluster, settings_of(policy or Policy()), lake, ids=IDS)
    return scan_of(lake, scan_run.scan(where, "scan").epoch_id)


def scan_of(lake: FakeLake, epoch_id: str) -> Scan:
    """What a lake holds of a finished scan."""
    kept = lake.begun[epoch_id]
    assert kept.closed is not None
    return Scan(*kept.closed, lake.table(epoch_id, "findings"), kept.uuids, kept)


def plan(cluster: SimulatedCluster, now: Scan, before: Scan) -> tuple[PlanSummary, pa.Table]:
    """Orphans that two scans agree on, with their digest."""
    rows = deletion_planning.confirm(now.findings, before.findings)
    gaps = (*now.epoch.gaps, *before.epoch.gaps)
    summary = PlanSummary(
        plan_id=f"orphans-{now.epoch.epoch_id}",
        cluster="simulated",
        fingerprint=now.epoch.fingerprint,
        epoch_id=now.epoch.epoch_id,
        confirmed_by=before.epoch.epoch_id,
        created_at=cluster.clock.now_ms(),
        actionable=not gaps,
        gaps=gaps,
        ledgers=rows.num_rows,
        logical_bytes=0,
        physical_bytes=0,
        cluster_ledgers=now.epoch.census[0].listed,
        digest="",
    )
    return replace(summary, digest=deletion_plan.digest(rows, summary.to_json())), rows


def apply_plan(
    cluster: SimulatedCluster,
    summary: PlanSummary,
    rows: pa.Table,
    policy: Policy | None = None,
    *,
    queue: DeletionQueue | None = None,
    journal: Journal | None = None,
    limit: int = 0,
) -> apply.Applied:
    """Send a plan's intents."""
    order = apply.Order(summary.plan_id, summary.digest, limit=limit)
    some = apply.chosen(
        order,
        (policy or Policy()).caps,
        summary,
        rows,
        fingerprint=cluster_fingerprint(cluster.open_store(), "/ledgers"),
        now=cluster.clock.now_ms(),
        valid_for_ms=24 * HOUR,
    )
    sent = {r.ledger_id for r in cluster.journal.rows if r.outcome == apply.SENT and r.plan_id == summary.plan_id}
    return apply.send_intents(
        "apply-run",
        summary,
        some,
        frozenset(sent),
        store=cluster.open_store(),
        queue=queue or cluster.open_queue(),
        journal=journal or cluster.journal,
        clock=cluster.clock,
        deliver_after_ms=DELIVER_AFTER,
        progress=lambda line: None,
    )


def begin(
    cluster: SimulatedCluster,
    store: MetadataStore,
    now: Scan,
    before: Scan,
    policy: Policy | None = None,
    batch: int = 4,
    run_id: str = "delete-run",
) -> tuple[Run, control.Lease]:
    """Take the lease and gather the evidence, as ``deletion/deletion_run.py`` does."""
    policy = policy or Policy()
    lease = control.take_lease(store, "simulated run", cluster.clock, 0)
    context = replace(
        now.context, holds=policy.holds, gone_namespaces=policy.gone_namespaces, system_topics=policy.system_topics
    )
    left = nodes_in_doubt(cluster.journal, "simulated", cluster.clock.now_ms() - in_doubt.WITHIN_MS)
    in_doubt.resolve(run_id, left, store, cluster.journal, "/ledgers")
    run = Run(
        run_id=run_id,
        cluster="simulated",
        guard=lease.guard,
        ledgers_root="/ledgers",
        now=min(lease.taken_at, cluster.clock.now_ms()),
        brokers=load_state.fetch_brokers(store, cluster.admin),
        evidence=Evidence(
            now.refs, now.epoch.started_at, before.refs, before.epoch.started_at, before.epoch.max_czxid, context
        ),
        batch=4,
        retry_delay_ms=RETRY_DELAY,
        max_retries=MAX_RETRIES,
        deletes_per_second=1_000_000,
        bytes_per_second=1 << 40,
        slow_above_ms=100,
        stop_above_ms=500,
    )
    return run, lease


def tools_of(cluster: SimulatedCluster, store: MetadataStore, queue: DeletionQueue) -> Ports:
    """The ports of one worker."""
    return Ports(store, cluster.reader, cluster.admin, queue, cluster.journal, cluster.clock)


def delete(
    cluster: SimulatedCluster,
    now: Scan,
    before: Scan,
    policy: Policy | None = None,
    wrap: Callable[[Ports], Ports] = lambda ports: ports,
    limit: int = 1_000_000,
    marked: Mapping[int, tuple[int, int]] | None = None,
    run_id: str = "delete-run",
) -> list[Decision]:
    """One deletion run over ``limit`` messages of the queue; ``wrap`` may put faults or recorders around the ports."""
    store, queue = cluster.open_store(), cluster.open_queue()
    try:
        run, lease = begin(cluster, store, now, before, policy, run_id=run_id)
        run = replace(run, evidence=replace(run.evidence, marked=marked or {}))
        decisions = list(work_off(run, wrap(tools_of(cluster, store, queue)), limit, 1_000))
        control.release_lease(store, lease)
        return decisions
    finally:
        queue.close()
        store.close()


def two_scans(cluster: SimulatedCluster, policy: Policy | None = None) -> tuple[Scan, Scan]:
    """Wait out the grace period, scan, wait a day, scan again: (now, before)."""
    cluster.wait(8 * 24)
    before = scan(cluster, policy)
    cluster.wait(25)
    return scan(cluster, policy, [before]), before


def whole_round(cluster: SimulatedCluster, policy: Policy | None = None) -> tuple[Scan, list[Decision]]:
    """Scan twice, plan, apply, scan again, delete: (the newest scan, what became of the messages)."""
    now, before = two_scans(cluster, policy)
    summary, rows = plan(cluster, now, before)
    if not summary.actionable:
        return now, []
    apply_plan(cluster, summary, rows, policy)
    cluster.wait(1)
    latest = scan(cluster, policy, [now])
    return latest, delete(cluster, latest, before, policy)
