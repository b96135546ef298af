"""Which scan an asset works in: the one that its own run began, else the newest, where that is safe.

Not here: what an epoch holds (``ports/lake.py``).
"""

from __future__ import annotations

import dagster as dg

from assets.names import EPOCH, READER
from assets.pages.failures import refusals_fail
from pulsar_lifecycle.deletion.deletion_run import was_judged
from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.refusals import RefusalCode


@refusals_fail()
def epoch_to_write(context: dg.AssetExecutionContext, where: Cluster) -> tuple[str, int]:
    """(epoch id, started at) of the scan to add a table to.

    Another run's scan must be over and unfinished: two writers would mix what they read, and a finished epoch proves
    what its tables said when it was closed. Raises dagster.Failure where that refuses it, NotFound.
    """
    epoch_id, started_at = where.lake.open_epoch(context.run.run_id)
    owner = where.lake.begun_by(epoch_id)
    if owner == context.run.run_id:
        return epoch_id, started_at
    begun = context.instance.get_run_by_id(owner)
    if begun is not None and not begun.is_finished:
        text = f"scan {epoch_id} is still being made by run {owner}: wait until it has ended"
        raise RefusedBy(RefusalCode.SCAN_UNFINISHED, text)
    if where.lake.finished(epoch_id):
        text = f"scan {epoch_id} is finished: launch job scan or materialize bookkeeper_ledgers for another"
        raise RefusedBy(RefusalCode.SCAN_FINISHED, text)
    _refuse_foreign(where, epoch_id)
    return epoch_id, started_at


@refusals_fail()
def epoch_to_read(context: dg.AssetExecutionContext, where: Cluster, *, judged: bool = True) -> str:
    """The scan to go by: finished, and of this cluster. Raises dagster.Failure if it is not, NotFound.

    A run that was started by itself takes the newest finished one of its cluster: another may have begun meanwhile, or
    another cluster, which shares the lake, have scanned. With ``judged`` the newest that was judged, too, as another
    may be now; not so where a scan that was repeated is judged.
    """
    epoch_id, _ = where.lake.open_epoch(context.run.run_id)
    if READER in context.run.tags and where.lake.begun_by(epoch_id) != context.run.run_id:
        finished = where.lake.epochs(fingerprint_of(where))
        newest = finished[-1].epoch_id if finished else epoch_id
        of_judged = (one.epoch_id for one in reversed(finished) if judged and was_judged(where, one))
        epoch_id = next(of_judged, newest)
    if not where.lake.finished(epoch_id):
        text = f"scan {epoch_id} is not finished: wait until it has ended, or launch job scan again"
        raise RefusedBy(RefusalCode.SCAN_UNFINISHED, text)
    if where.lake.begun_by(epoch_id) != context.run.run_id:
        _refuse_foreign(where, epoch_id)
    return epoch_id


def epoch_of(instance: dg.DagsterInstance, asset: dg.AssetKey) -> str:
    """The scan that an asset was last made of; empty where it was never made. Meanwhile there may be a newer one."""
    event = instance.get_latest_materialization_event(asset)
    made = event.asset_materialization if event else None
    return str(made.metadata[EPOCH].value) if made and EPOCH in made.metadata else ""


def is_readable(where: Cluster, epoch_id: str) -> bool:
    """Whether there still is this scan, finished, of this cluster and not set aside."""
    return any(one.epoch_id == epoch_id for one in where.lake.epochs(fingerprint_of(where)))


def _refuse_foreign(where: Cluster, epoch_id: str) -> None:
    began = where.lake.began_at(epoch_id)
    if began is None or began.fingerprint != fingerprint_of(where):
        text = f"scan {epoch_id} is of another cluster, which shares the lake: launch job scan"
        raise RefusedBy(RefusalCode.OTHER_CLUSTER, text)


def fingerprint_of(where: Cluster) -> str:
    """The fingerprint of the cluster that the settings name."""
    with where.ports(read_only=True) as ports:
        return cluster_fingerprint(ports.store, where.settings.bookkeeper.ledgers_root)
