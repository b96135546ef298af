"""A scan: its steps, and their order.

BookKeeper is listed first and references are read second, so that references can only grow for newer ledgers; then
coverage is proven and the epoch closed; then every ledger is judged. Belongs here: the steps as the assets take them,
and all of them in a row. Not here: what a step does (``scan/read.py``, ``scan/epochs.py``, ``planning/``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from pulsar_lifecycle.deletion.planning.orphan_findings import build_findings
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.metastore.reading import TABLES
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan.epochs import close_epoch
from pulsar_lifecycle.scan.history_check import read_counters
from pulsar_lifecycle.scan.read import build_references, new_epoch_id, scan_table
from pulsar_lifecycle.values.epoch import Census, Epoch

OF_OUR_OWN_ROOT = ("bookkeeper_ledgers", "topics")
"""Tables that no shared root has: there is one BookKeeper, and the brokers of another cluster cannot be asked."""


def begin(cluster: Cluster, run_id: str) -> tuple[str, int]:
    """Begin an epoch: its id, and when it began (ms). Raises what the metadata store raises."""
    with cluster.ports(read_only=True) as ports:
        root = cluster.settings.bookkeeper.ledgers_root
        counters = read_counters(ports.store, cluster_fingerprint(ports.store, root), root)
        now = ports.clock.now_ms()
        epoch_id = new_epoch_id(now, ports.ids)
    cluster.lake.begin_epoch(epoch_id, now, run_id, counters)
    return epoch_id, now


def read_table(cluster: Cluster, epoch_id: str, table: str) -> list[Census]:
    """Store one of ``TABLES``, in their order, of every root that has it; what was counted of each."""
    roots = [""] if table in OF_OUR_OWN_ROOT else cluster.roots()
    counted = [scan_table(cluster, epoch_id, table, root) for root in roots]
    for census in counted:
        cluster.lake.store_census(epoch_id, census)
    return counted


def read_references(cluster: Cluster, epoch_id: str) -> None:
    """Store who refers to what, once all tables are read."""
    build_references(cluster, epoch_id)


def close(cluster: Cluster, epoch_id: str, started_at: int) -> Epoch:
    """Prove or disprove that everything was read that refers to a ledger, and store the epoch."""
    return close_epoch(cluster, epoch_id, started_at, cluster.lake.census(epoch_id), cluster.clock.now_ms())


def judge(cluster: Cluster, epoch_id: str) -> None:
    """Judge every ledger of a closed epoch."""
    build_findings(cluster, epoch_id)


def scan(cluster: Cluster, run_id: str, step: Callable[[str], AbstractContextManager[object]] = nullcontext) -> Epoch:
    """All steps of a scan; each is taken within ``step`` of its name."""
    epoch_id, started_at = begin(cluster, run_id)
    for table in TABLES:
        with step(table):
            read_table(cluster, epoch_id, table)
    with step("ledger_references"):
        read_references(cluster, epoch_id)
    with step("coverage"):
        epoch = close(cluster, epoch_id, started_at)
    with step("findings"):
        judge(cluster, epoch_id)
    return epoch
