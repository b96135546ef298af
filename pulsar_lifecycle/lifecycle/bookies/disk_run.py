"""Ask every bookie what its disks hold, and weigh that against what a scan's metadata places there.

Belongs here: the order of asking, and the table ``bookie_disk`` of an epoch. Not here: the verdict
(``bookie_disk.py``), what is placed (``placement.py``). Writes nothing to the cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.formats.bookie_status import BookieStatus
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import BOOKIE_DISK, BookieDisk, days_until_full, judge
from pulsar_lifecycle.lifecycle.bookies.placement import PLACEMENT_COLUMNS, Placement, placed, total, under_replicated
from pulsar_lifecycle.ports import BookieAdmin, Lake
from pulsar_lifecycle.records import tables
from pulsar_lifecycle.records.epoch import DAY_MS
from pulsar_lifecycle.runs.cluster import Cluster

TABLE = "bookie_disk"
HISTORY = 14 * DAY_MS
"""Milliseconds back that the forecast looks at."""


def build_bookie_disk(cluster: Cluster, epoch_id: str) -> tuple[list[BookieDisk], Placement]:
    """Every bookie, and the placement; stores table ``bookie_disk`` of the epoch, over an earlier one of it."""
    lake = cluster.lake
    parts = cluster.parts(epoch_id, "bookkeeper_ledgers")
    marked = pa.array(sorted(lake.context(epoch_id).under_replicated), pa.int64())
    placement = total(cluster.tasks.map(lambda part: placed_in(lake, part, marked), parts))
    with cluster.ports(read_only=True) as ports:
        disks = look(ports.bookies, placement, ports.clock.now_ms)
    rows = pa.RecordBatch.from_pylist([one.row() for one in disks], BOOKIE_DISK)
    cluster.store(epoch_id, TABLE, BOOKIE_DISK, lambda _: [rows], [None])
    return disks, placement


def look(bookies: BookieAdmin, placement: Placement, now: Callable[[], int]) -> list[BookieDisk]:
    """Ask one bookie after the other; what one answers with an error, the others are asked all the same."""
    registered = bookies.bookies()
    said: dict[str, BookieStatus | LifecycleError] = {}
    for bookie in registered:
        try:
            said[bookie] = bookies.status(bookie)
        except LifecycleError as error:
            said[bookie] = error
    return judge(registered, said, placement, now())


def placed_in(lake: Lake, part: str, marked: pa.Array) -> Placement:
    """The placement of one file of ``bookkeeper_ledgers``; BookKeeper's auditor ``marked`` ledgers that lack a copy."""
    names = ["ledger_id", *PLACEMENT_COLUMNS]
    schema = pa.schema([tables.BOOKKEEPER_LEDGERS.field(name) for name in names])
    rows = pa.Table.from_batches(lake.batches([part], names, pc.field("problem").is_null()), schema)
    return total([placed(rows), under_replicated(rows.filter(pc.is_in(rows.column("ledger_id"), marked)))])


def newest_disks(cluster: Cluster) -> list[dict[str, Any]]:
    """The rows (``BOOKIE_DISK``) of the newest table of all scans. Raises NotFound where there is none."""
    for epoch in reversed(cluster.lake.epochs(cluster=cluster.settings.cluster)):
        try:
            return cluster.lake.read_epoch_table(epoch.epoch_id, TABLE).to_pylist()
        except NotFound:  # nobody asked the bookies at that scan
            continue
    raise NotFound("no bookie was asked yet: run the job scan, then report_storage")


def forecasts(cluster: Cluster) -> dict[str, float]:
    """Days until a bookie's disks are full, by bookie, from the tables of earlier epochs; those that fill up only."""
    lake, now = cluster.lake, cluster.clock.now_ms()
    history: dict[str, list[tuple[int, int]]] = {}
    for epoch in lake.epochs(cluster=cluster.settings.cluster):
        if epoch.started_at < now - HISTORY:
            continue
        try:
            parts = cluster.parts(epoch.epoch_id, TABLE)
        except NotFound:  # nobody asked the bookies at that scan
            continue
        for batch in lake.batches(parts, ["bookie", "asked_at", "free"]):
            for row in batch.to_pylist():
                if row["free"] is not None:
                    history.setdefault(row["bookie"], []).append((row["asked_at"], row["free"]))
    found = {bookie: days_until_full(sorted(known)) for bookie, known in history.items()}
    return {bookie: days for bookie, days in found.items() if days is not None}
