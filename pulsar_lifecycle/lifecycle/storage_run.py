"""Say of every ledger of a scan why it is on the disks, and store the sums: tables of an epoch.

Belongs here: the order of steps, ``ledger_reasons`` and ``storage_report``, reading them again. Not here: the rules
(``lifecycle/reasons.py``, ``lifecycle/storage.py``). Loads no topic, and writes nothing to the cluster. Where brokers
or bookies do not answer, policies or cursors are not known, and what hangs on them is ``unjudged``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.journal.queries import pending_ledgers
from pulsar_lifecycle.lifecycle.held.delayed_pins import PINS, delayed_pins, first_messages
from pulsar_lifecycle.lifecycle.reasons import (
    LEDGER_REASONS,
    OF_FINDING,
    OF_KIND,
    UNREFERENCED,
    of_findings,
    of_references,
    of_topics,
    with_backlog,
)
from pulsar_lifecycle.lifecycle.retention import judge
from pulsar_lifecycle.lifecycle.retention_inputs import NAMED_POSITIONS
from pulsar_lifecycle.lifecycle.retention_tables import CursorPositions, RetentionTables, namespaces_of
from pulsar_lifecycle.lifecycle.storage import STORAGE_COLUMNS, STORAGE_REPORT, shortened, summed
from pulsar_lifecycle.ports import Connect, Lake
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.retention_now import RetentionNow, retention_now
from pulsar_lifecycle.topics.snapshot import ShadowSources
from pulsar_lifecycle.topics.topic_run import owners_rules, partitioned_shadows
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.tables import BOOKKEEPER_LEDGERS, FINDINGS, REFERENCES, Problem

TABLE = "storage_report"
REASONS_TABLE = "ledger_reasons"
POSITIONS_TABLE = "all_cursor_positions"


@dataclass(frozen=True, slots=True)
class Totals:
    """What BookKeeper's list of a scan adds up to, or a report of it."""

    ledgers: int = 0
    bytes: int = 0
    physical_bytes: int = 0


def build_storage_report(cluster: Cluster, epoch: Epoch) -> tuple[pa.Table, tuple[str, ...]]:
    """Report on a closed epoch by the retention in force now; store ``storage_report`` over an earlier one of it.

    Returns its rows (:data:`STORAGE_REPORT`), and why policies or shadow topics are not known
    where they are not.
    """
    lake, epoch_id = cluster.lake, epoch.epoch_id
    topics = cluster.parts(epoch_id, "managed_ledgers")
    own = namespaces_of(lake, topics)
    in_force = _policies(cluster, own)
    share = share_of(cluster.tasks, cluster.settings)
    reading = CursorPositions(share, lake, cluster.connect, named=True)
    cluster.store(epoch_id, POSITIONS_TABLE, NAMED_POSITIONS, reading.rows, cluster.parts(epoch_id, "managed_cursors"))
    now = cluster.clock.now_ms()
    loads = cluster.parts(epoch_id, "topics")
    ledgers = cluster.parts(epoch_id, "bookkeeper_ledgers")
    context = owners_rules(cluster, epoch, now)
    positions = cluster.parts(epoch_id, POSITIONS_TABLE)
    shadows, unread = _shadows(cluster)
    tables = RetentionTables(lake, in_force.policies, context, shadows, loads, positions, ledgers)
    pending = _pending(cluster, epoch_id)
    judging = _Reasons(tables, share, cluster.connect, context.shared_namespaces - own, pending, epoch.covered, now)
    pieces = [
        _Piece(table, part)
        for table in ("managed_ledgers", "references", "findings")
        for part in cluster.parts(epoch_id, table)
    ]
    cluster.store(epoch_id, REASONS_TABLE, LEDGER_REASONS, judging.rows, pieces)
    reasons = lake.batches(cluster.parts(epoch_id, REASONS_TABLE), LEDGER_REASONS.names)
    rows = shortened(summed(_listed(lake, ledgers), reasons))
    cluster.store(epoch_id, TABLE, STORAGE_REPORT, lambda _: rows.to_batches(), [None])
    return rows, (*in_force.problems, *in_force.undecodable, *unread)


def scanned(cluster: Cluster, epoch_id: str) -> Totals:
    """What the scan itself counted: the sums that a report must have. Counted apart from it, row by row."""
    count = size = physical = 0
    parts = cluster.parts(epoch_id, "bookkeeper_ledgers")
    there = pc.field("problem").is_null() | (pc.field("problem") != Problem.GONE)
    for batch in cluster.lake.batches(parts, ["length", "write_quorum"], there):
        length = pc.fill_null(batch.column("length"), 0)
        replicas = pc.max_element_wise(pc.fill_null(batch.column("write_quorum"), 1), 1)
        count += batch.num_rows
        size += pc.sum(length).as_py()
        physical += pc.sum(pc.multiply(length, replicas.cast(pa.int64()))).as_py()
    return Totals(count, size, physical)


def totals(rows: pa.Table) -> Totals:
    """The sums of a report."""
    found = (pc.sum(rows.column(name)).as_py() or 0 for name in ("ledgers", "bytes", "physical_bytes"))
    return Totals(*found)


def stored_report(lake: Lake, epoch_id: str) -> pa.Table:
    """A stored report. Raises NotFound where none was made of this scan."""
    return pa.Table.from_batches(lake.batches(lake.parts(epoch_id, TABLE), STORAGE_REPORT.names), STORAGE_REPORT)


def reported(lake: Lake, cluster: str) -> list[Epoch]:
    """The scans of a cluster that were reported on, oldest first."""
    return [epoch for epoch in lake.epochs(cluster=cluster) if _has_report(lake, epoch.epoch_id)]


SUMMED = ("ledgers", "ledgers_unsized", "bytes", "physical_bytes")
"""The columns of a report that :func:`by_reason` sums."""


def by_reason(rows: pa.Table) -> Mapping[str, Mapping[str, int]]:
    """The sums of a report by reason, the most bytes on disk first; ``reason`` and :data:`SUMMED` are enough."""
    grouped = rows.group_by("reason").aggregate([(name, "sum") for name in SUMMED])
    ordered = grouped.sort_by([("physical_bytes_sum", "descending"), ("ledgers_sum", "descending")])
    return {row["reason"]: {name: row[f"{name}_sum"] for name in SUMMED} for row in ordered.to_pylist()}


def largest_topics(rows: pa.Table, count: int) -> list[tuple[str, int, Mapping[str, int]]]:
    """The topics of a report with the most bytes on disk, and these by reason, the largest first."""
    own = rows.filter(rows.column("topic").is_valid())
    sums = own.group_by("topic").aggregate([("physical_bytes", "sum")])
    top = sums.sort_by([("physical_bytes_sum", "descending"), ("topic", "ascending")]).slice(0, count).to_pylist()
    reasons: dict[str, dict[str, int]] = {row["topic"]: {} for row in top}
    theirs = own.filter(pc.is_in(own.column("topic"), pa.array(list(reasons), pa.string())))
    for row in theirs.sort_by([("physical_bytes", "descending"), ("reason", "ascending")]).to_pylist():
        reasons[row["topic"]][row["reason"]] = row["physical_bytes"]
    return [(row["topic"], row["physical_bytes_sum"], reasons[row["topic"]]) for row in top]


def namespaces_by_size(rows: pa.Table) -> list[tuple[str | None, int, int]]:
    """Each namespace of a report (None: not known), its ledgers and bytes on disk, the largest first."""
    sums = rows.group_by("namespace").aggregate([("physical_bytes", "sum"), ("ledgers", "sum")])
    largest = sums.sort_by([("physical_bytes_sum", "descending"), ("namespace", "ascending")]).to_pylist()
    return [(row["namespace"] or None, row["ledgers_sum"], row["physical_bytes_sum"]) for row in largest]


def newest_report(lake: Lake, cluster: str) -> tuple[Epoch, pa.Table]:
    """The newest report of a cluster and its scan. Raises NotFound where none was made."""
    found = reported(lake, cluster)
    if not found:
        raise NotFound("there is no storage report yet: run the job scan, then report_storage")
    return found[-1], stored_report(lake, found[-1].epoch_id)


def _has_report(lake: Lake, epoch_id: str) -> bool:
    try:
        return bool(lake.parts(epoch_id, TABLE))
    except NotFound:
        return False


def _policies(cluster: Cluster, namespaces: set[str]) -> RetentionNow:
    try:
        return retention_now(cluster, namespaces)
    except LifecycleError as error:  # bookies with full disks stop brokers, too: report without them
        return RetentionNow(InForce({}), (str(error),))


def _shadows(cluster: Cluster) -> tuple[ShadowSources, tuple[str, ...]]:
    try:
        return partitioned_shadows(cluster), ()
    except LifecycleError as error:
        return ShadowSources(), (str(error),)


def _pending(cluster: Cluster, epoch_id: str) -> pa.Array:
    """Unreferenced ledgers about which the deletion queue has a message, by the journal."""
    parts, where = cluster.parts(epoch_id, "findings"), pc.field("finding").isin(UNREFERENCED)
    batches = cluster.lake.batches(parts, ["ledger_id"], where & pc.field("ledger_id").is_valid())
    free = pa.Table.from_batches(batches, pa.schema([FINDINGS.field("ledger_id")])).column(0).combine_chunks()
    return pending_ledgers(cluster.journal_reader, cluster.settings.cluster, free)


def _listed(lake: Lake, parts: Sequence[str]) -> pa.Table:
    schema = pa.schema([BOOKKEEPER_LEDGERS.field(name) for name in STORAGE_COLUMNS])
    return pa.Table.from_batches(lake.batches(parts, STORAGE_COLUMNS), schema)


@dataclass(frozen=True)
class _Piece:
    """One file of a table."""

    table: str
    part: str


@dataclass(frozen=True)
class _Reasons:
    """The reasons that one file says; runs in a task.

    ``foreign``: namespaces that only another cluster has. ``pending``: ledgers that the deletion queue has.
    """

    tables: RetentionTables
    settings: Settings
    connect: Connect
    foreign: frozenset[str]
    pending: pa.Array
    covered: bool
    now: int

    def rows(self, piece: _Piece) -> Iterator[pa.RecordBatch]:
        """Rows of :data:`LEDGER_REASONS`."""
        if piece.table == "managed_ledgers":
            listed, inputs, ledgers = self.tables.of(piece.part)
            verdicts = judge(inputs, self.now)
            pins = self._pins(listed, inputs, with_backlog(verdicts, listed.num_rows))
            idle = self.tables.idle()
            yield from of_topics(verdicts, listed, inputs, ledgers, idle, self.now, pins).to_batches()
        elif piece.table == "references":
            kinds = sorted(OF_KIND) if not self.foreign else ["R1", *sorted(OF_KIND)]
            named = pc.field("ledger_id").is_valid() & pc.field("kind").isin(kinds)
            for some in self._batches(piece.part, REFERENCES, ("ledger_id", "kind", "owner"), named):
                yield from of_references(some, self.foreign).to_batches()
        else:
            known = pc.field("finding").isin([str(one) for one in OF_FINDING])
            for some in self._batches(piece.part, FINDINGS, ("ledger_id", "finding", "namespace", "topic"), known):
                yield from of_findings(some, self.pending, covered=self.covered).to_batches()

    def _pins(self, listed: pa.Table, inputs: pa.Table, topics: Any) -> pa.Table:
        """What delayed messages pin of the topics of this mask (``PINS``)."""
        if not topics.any():
            return PINS.empty_table()
        messages = first_messages(listed, inputs, self.tables.positions_of(listed.filter(pa.array(topics))), topics)
        root = self.settings.bookkeeper.ledgers_root
        with self.connect(self.settings, read_only=True) as ports:
            return delayed_pins(ports.store, ports.reader, ports.objects_if_set, listed, messages, root, self.now)

    def _batches(self, part: str, schema: pa.Schema, names: Sequence[str], where: pc.Expression) -> Iterator[pa.Table]:
        some = pa.schema([schema.field(name) for name in names])
        for batch in self.tables.lake.batches([part], names, where):
            yield pa.Table.from_batches([batch], some)
