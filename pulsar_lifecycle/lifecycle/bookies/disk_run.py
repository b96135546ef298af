"""Ask every bookie what its disks hold, and weigh that against what a scan's metadata places there.

Belongs here: the order of asking, and the table ``bookie_disk`` of an epoch. Not here: the verdict
(``bookie_disk.py``), what is placed (``placement.py``). Writes nothing to the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.formats.bookie_status import BookieStatus
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import BOOKIE_DISK, DEFAULTS, BookieDisk, DiskVerdict, judge
from pulsar_lifecycle.lifecycle.bookies.disk_forecast import Filled, days_until_full
from pulsar_lifecycle.lifecycle.bookies.placement import PLACEMENT_COLUMNS, Placement, placed, total, under_replicated
from pulsar_lifecycle.metastore.bookkeeper_ledgers import ledger_rows, listed_ids
from pulsar_lifecycle.metastore.walk import CHUNK
from pulsar_lifecycle.ports import BookieAdmin, Lake, MetadataStore, Node, Unread
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.epoch import DAY_MS
from pulsar_lifecycle.values.tables import Problem

TABLE = "bookie_disk"
HISTORY = 14 * DAY_MS
"""Milliseconds back that the forecast looks at."""


def build_bookie_disk(cluster: Cluster, epoch_id: str) -> tuple[list[BookieDisk], Placement]:
    """Every bookie, and the placement as it is now; stores table ``bookie_disk`` of the epoch, over an earlier one.

    Of ledgers that were deleted or made since the scan the metadata store is asked, once the bookies have answered:
    what a bookie stores beyond what is placed there then is deleted.
    """
    lake, root = cluster.lake, cluster.settings.bookkeeper.ledgers_root
    parts = cluster.parts(epoch_id, "bookkeeper_ledgers")
    with cluster.ports(read_only=True) as ports:
        answers, now = ask(ports.bookies, ports.clock.now_ms), ports.clock.now_ms()
        gone, made = changed_since(ports.store, scanned_ids(lake, parts), root)
    marked = pa.array(sorted(lake.context(epoch_id).under_replicated), pa.int64())
    placement = total([*cluster.tasks.map(lambda part: placed_in(lake, part, marked, gone), parts), made])
    disks = answers.judged(placement, now)
    rows = pa.RecordBatch.from_pylist([one.row() for one in disks], BOOKIE_DISK)
    cluster.store(epoch_id, TABLE, BOOKIE_DISK, lambda _: [rows], [None])
    return disks, placement


@dataclass(frozen=True, slots=True)
class Answers:
    """The registered bookies (id -> read-only), what each said, and when (ms) it was asked."""

    registered: Mapping[str, bool]
    said: Mapping[str, BookieStatus | LifecycleError]
    asked: Mapping[str, int]

    def judged(self, placement: Placement, now: int) -> list[BookieDisk]:
        """The verdicts at ``now`` (ms), once it is known what metadata places on bookies."""
        return judge(self.registered, self.said, placement, now, self.asked)


def ask(bookies: BookieAdmin, now: Callable[[], int]) -> Answers:
    """Ask one bookie after the other; what one answers with an error, the others are asked all the same."""
    registered = bookies.bookies()
    said: dict[str, BookieStatus | LifecycleError] = {}
    asked: dict[str, int] = {}
    for bookie in registered:
        asked[bookie] = now()
        try:
            said[bookie] = bookies.status(bookie)
        except LifecycleError as error:
            said[bookie] = error
    return Answers(registered, said, asked)


def scanned_ids(lake: Lake, parts: Sequence[str]) -> Any:
    """The ids of the ledgers in files of ``bookkeeper_ledgers`` (numpy, int64)."""
    batches = lake.batches(parts, ["ledger_id"], pc.field("ledger_id").is_valid())
    return np.concatenate([np.array([], np.int64), *(np.asarray(batch.column(0), np.int64) for batch in batches)])


def changed_since(store: MetadataStore, scanned: Any, root: str) -> tuple[pa.Array, Placement]:
    """Those of the ledgers ``scanned`` that are gone by now, and the placement of those that were made since.

    Where not all could be listed none is gone: a bookie would seem to hold what is deleted.
    """
    there, whole = listed_ids(store, root)
    gone = _without(scanned, there) if whole else np.array([], np.int64)
    new = _without(there, scanned).tolist()
    found = Placement({})
    for start in range(0, len(new), CHUNK):
        paths = [ledger_path(ledger_id, root) for ledger_id in new[start : start + CHUNK]]
        nodes = store.read(paths)
        rows = ledger_rows([node for node in nodes if isinstance(node, Node)], root)
        known = rows.filter(rows.column("problem").is_null())
        unread = rows.num_rows - known.num_rows + sum(isinstance(node, Unread) for node in nodes)
        found = total([found, placed(known.select(PLACEMENT_COLUMNS)), Placement({}, unread)])
    return pa.array(gone, pa.int64()), found


def _without(these: Any, others: Any) -> Any:
    """Those of the numbers ``these`` that ``others`` lack, ascending.

    numpy's own ``setdiff1d`` takes some thirty times as long: it makes hash tables of both.
    """
    these, others = np.sort(these), np.sort(others)
    if not len(others):
        return these
    place = np.minimum(np.searchsorted(others, these), len(others) - 1)
    return these[others[place] != these]


def placed_in(lake: Lake, part: str, marked: pa.Array, gone: pa.Array) -> Placement:
    """The placement of one file of ``bookkeeper_ledgers`` without those that are ``gone``.

    BookKeeper's auditor ``marked`` ledgers that lack a copy.
    """
    names = ["ledger_id", *PLACEMENT_COLUMNS]
    schema = pa.schema([tables.BOOKKEEPER_LEDGERS.field(name) for name in names])
    rows = pa.Table.from_batches(lake.batches([part], names, pc.field("problem").is_null()), schema)
    rows = rows.filter(pc.invert(pc.is_in(rows.column("ledger_id"), gone)))
    unread = pc.field("problem").is_valid() & (pc.field("problem") != Problem.GONE)
    unknown = sum(batch.num_rows for batch in lake.batches([part], ["ledger_id"], unread))
    lacking = under_replicated(rows.filter(pc.is_in(rows.column("ledger_id"), marked)))
    return total([placed(rows), lacking, Placement({}, unknown)])


def newest_disks(cluster: Cluster) -> list[dict[str, Any]]:
    """The rows (``BOOKIE_DISK``) of the newest table of all scans. Raises NotFound where there is none."""
    for epoch in reversed(cluster.lake.epochs(cluster=cluster.settings.cluster)):
        try:
            return cluster.lake.read_epoch_table(epoch.epoch_id, TABLE).to_pylist()
        except NotFound:  # nobody asked the bookies at that scan
            continue
    raise NotFound("no bookie was asked yet: run the job scan, then report_storage")


def forecasts(cluster: Cluster) -> dict[str, float]:
    """Days until a bookie's disks take no more writes, by bookie, from the tables of earlier epochs.

    Of those that fill up and are registered still, as of the newest table; one may not have answered then.
    """
    lake, now = cluster.lake, cluster.clock.now_ms()
    try:
        newest = {row["bookie"]: row for row in newest_disks(cluster)}
    except NotFound:
        return {}
    history: dict[str, list[Filled]] = {}
    for epoch in lake.epochs(cluster=cluster.settings.cluster):
        if epoch.started_at < now - HISTORY:
            continue
        try:
            parts = cluster.parts(epoch.epoch_id, TABLE)
        except NotFound:  # nobody asked the bookies at that scan
            continue
        for batch in lake.batches(parts, ["bookie", "asked_at", "total", "free", "entry_log_ids"]):
            logs = [pc.max(one.values).as_py() for one in batch.column("entry_log_ids")]
            for row, newest_log in zip(batch.drop_columns(["entry_log_ids"]).to_pylist(), logs, strict=True):
                if row["total"] is not None and row["free"] is not None:
                    one = Filled(row["asked_at"], row["total"], row["free"], -1 if newest_log is None else newest_log)
                    history.setdefault(row["bookie"], []).append(one)
    found: dict[str, float] = {}
    for bookie, known in history.items():
        row = newest.get(bookie)
        if row is None or row["verdict"] == DiskVerdict.NOT_REGISTERED:
            continue
        full = row.get("read_only_above") or float(DEFAULTS["diskUsageThreshold"])
        days = days_until_full(sorted(known, key=lambda one: one.at), now, full)
        if days is not None:
            found[bookie] = days
    return found
