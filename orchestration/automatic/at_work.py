"""Which runs are at work for a lease, and ending those that died with their host.

Belongs here: what Dagster's storage and the leases say of runs. Not here: what is started once nothing is at work.
"""

from collections.abc import Mapping

import dagster as dg

from assets.names import CLUSTER
from pulsar_lifecycle.journal.effects import Changed
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster

ACTIVE = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)
"""Of a run that waits or works; one that is told to end works until it has ended."""

DEAD_AFTER_SECONDS = 6 * 3600
"""A run that says nothing for longer, while nobody has the lease, died with its host: runs report while they work."""

BY_ITSELF = "lifecycle/automation"
"""Tag of runs that were launched by the sensor ``automation``: which kind."""
APPROVING = "approve_plan"
"""The job that changes nothing but the journal, though its runs have a cluster's tag: it needs no lease."""
DELETION, COLLECTION, OFFLOADED = "deletion", "collection", Changed.OFFLOADED.value
LEASES: Mapping[str, str] = {
    DELETION: control.LEASE,
    "offload": control.OFFLOAD_LEASE,
    COLLECTION: control.COLLECTION_LEASE,
}
"""What runs compete for: name -> z-node."""
_OF_JOB = {"offload": "offload", "revert_offloads": "offload", "collect_bookies": COLLECTION}


def lease_of_job(name: str) -> str:
    """The lease that a job's effects need."""
    return _OF_JOB.get(name, DELETION)


def lease_of(run: dg.DagsterRun) -> str:
    """The lease that a run's effects need, also where it is a backfill of an asset."""
    offloads = any(key.path[-1] == OFFLOADED for key in run.asset_selection or ())
    return "offload" if offloads else lease_of_job(run.job_name)


def may_be_dead(instance: dg.DagsterInstance, run: dg.DagsterRun, now: int) -> bool:
    """Whether a run began and has said nothing for so long that the lease is to tell whether it is still at work."""
    if run.status is not dg.DagsterRunStatus.STARTED:
        return False
    last = instance.get_records_for_run(run.run_id, limit=1, ascending=False).records
    return bool(last) and now / 1000 - last[0].timestamp > DEAD_AFTER_SECONDS


def end_dead(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Mark a run as failed that died with its host; what is to be said of it."""
    dead = f"run {run.run_id} is taken for dead: it has said nothing for long, and nobody has the lease"
    instance.report_run_failed(run, dead)
    return dead


def at_work(instance: dg.DagsterInstance, cluster: str, now: int) -> list[dg.DagsterRun]:
    """Runs with effects that wait or work, but for those that may be dead."""
    active = instance.get_runs(dg.RunsFilter(statuses=list(ACTIVE), tags={CLUSTER: cluster}))
    return [run for run in active if run.job_name != APPROVING and not may_be_dead(instance, run, now)]


def without_dead(instance: dg.DagsterInstance, where: Cluster, cluster: str, now: int) -> dict[str, dg.DagsterRun]:
    """:func:`at_work` by lease; runs that died with their host are ended, if nobody has it. Raises LifecycleError."""
    found = {lease_of(run): run for run in at_work(instance, cluster, now)}
    begun = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED], tags={CLUSTER: cluster}))
    for run in begun:
        lease = lease_of(run)
        if lease in found or not may_be_dead(instance, run, now):
            continue
        with where.ports(read_only=True) as ports:
            held = control.is_held(ports.store, LEASES[lease])
        if held:
            found[lease] = run
        else:
            end_dead(instance, run)
    return found
