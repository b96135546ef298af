"""The driver's side of undoing deletions: what the job ``undo_deletions`` calls.

Belongs here: archive, lease and bookies put together for one undo, and the bookies asked from executors where there are
many ledgers. Not here: which ledgers come back, and in which steps (``deletion/undo/undo.py``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pulsar_lifecycle.deletion.undo.undo import begun, preview, undo
from pulsar_lifecycle.deletion.undo.undone import PHASE, Check, Undone, UndoRun, UndoTools
from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.formats.ledger_path import MAX_LEDGER_ID
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.journal.archive import last_archived
from pulsar_lifecycle.journal.offloads import deleted_copies
from pulsar_lifecycle.journal.queries import rows_of_phase
from pulsar_lifecycle.ports import LedgerReader, ReplicaCheck
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import held_lease
from pulsar_lifecycle.runs.spark import concurrency, share_of
from pulsar_lifecycle.scan.evidence import check_store
from pulsar_lifecycle.settings import Settings

SPREAD_FROM = 1_000
"""Ledgers from which on executors ask the bookies; below, the driver is done before a task has started."""
BATCH = 10_000
"""Ledgers that are checked, then re-created, in one step of an undo."""
CHUNK = 500
"""Ledgers that one task asks for at once."""


@dataclass(frozen=True)
class Request:
    """Which deletions to undo: those of a run, or these ledgers; exactly one of the two."""

    run_id: str = ""
    ledger_ids: tuple[int, ...] = ()
    dry_run: bool = True
    accept_unknown: bool = False


@dataclass(frozen=True)
class Result:
    """What became of each ledger that the archive holds; ``not_archived`` are those of the request it does not.

    ``lost_objects``: what was deleted of offloaded copies, which nothing brings back.
    """

    ledgers: list[Undone]
    not_archived: tuple[int, ...]
    lost_objects: tuple[str, ...] = ()


def undo_deletions(cluster: Cluster, run_id: str, request: Request, say: Callable[[str], None]) -> Result:
    """Undo deletions, or say what that would do. Raises UsageError, Refused while another run acts, Paused ..."""
    if bool(request.run_id) == bool(request.ledger_ids):
        raise UsageError("give either the id of the run whose deletions to undo, or ledger ids")
    if wrong := [i for i in request.ledger_ids if not 0 <= i <= MAX_LEDGER_ID]:
        raise UsageError(f"ledger_ids: {wrong[0]} is no ledger id, those are 0 .. 2**63-1")
    settings = cluster.settings
    lake = settings.lake.path
    rows = last_archived(lake, settings.cluster, run_id=request.run_id, ledger_ids=request.ledger_ids)
    lost = tuple(deleted_copies(lake, settings.cluster, request.run_id, request.ledger_ids))
    missing = tuple(sorted(set(request.ledger_ids) - {row.ledger_id for row in rows}))
    with Connections(settings, read_only=request.dry_run) as ports:
        store, clock = ports.store, ports.clock
        tools = UndoTools(store, _spread(cluster, ports.reader), ports.journal, clock, say)
        if request.dry_run:
            run = _run(settings, run_id, request, ("", 0), 0)
            return Result(preview(run, tools, rows, _pending(settings)), missing, lost)
        control.check_not_paused(store)
        check_store(cluster, store)  # a restored store issues archived ids again
        with held_lease(settings, store, f"undo {run_id}") as lease:
            run = _run(settings, run_id, request, lease.guard, lease.taken_at - clock.now_ms())
            return Result(undo(run, tools, rows, _pending(settings)), missing, lost)


def _pending(settings: Settings) -> dict[int, int]:
    return begun(rows_of_phase(settings.lake.path, PHASE).to_pylist(), settings.cluster)


def _run(settings: Settings, run_id: str, request: Request, guard: tuple[str, int], ahead: int) -> UndoRun:
    return UndoRun(
        run_id=run_id,
        cluster=settings.cluster,
        ledgers_root=settings.bookkeeper.ledgers_root,
        guard=guard,
        store_ahead_ms=ahead,
        gc_wait_ms=int(settings.bookkeeper.gc_wait * 1000),
        accept_unknown=request.accept_unknown,
        batch=BATCH,
        creates_per_second=settings.deletion.deletes_per_second,
        slow_above_ms=settings.zookeeper.slow_above * 1000,
        stop_above_ms=settings.zookeeper.stop_above * 1000,
    )


_ASKED = pa.schema([pa.field("ledger_id", pa.int64()), pa.field("data", pa.binary())])
_ANSWERED = pa.schema([pa.field("ledger_id", pa.int64()), pa.field("check", pa.string())])


def _spread(cluster: Cluster, reader: LedgerReader) -> Check:
    """Few ledgers are checked here, many on executors."""

    def check(ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
        if len(ledgers) < SPREAD_FROM:
            return reader.check_replicas(ledgers)
        return check_on_executors(cluster.spark, cluster.settings, ledgers)

    return check


def check_on_executors(
    spark: SparkSession, settings: Settings, ledgers: Sequence[tuple[int, LedgerMetadata]]
) -> list[ReplicaCheck]:
    """``LedgerReader.check_replicas`` by all executor cores, in the order given; ledger ids must differ."""
    rows = [(ledger_id, bytearray(ledger_metadata.encode(metadata))) for ledger_id, metadata in ledgers]
    frame = spark.createDataFrame(rows, from_arrow_schema(_ASKED)).repartition(concurrency(spark))
    answers = frame.mapInArrow(_Asker(share_of(spark, settings)), from_arrow_schema(_ANSWERED)).collect()
    found = {row["ledger_id"]: ReplicaCheck(**json.loads(row["check"])) for row in answers}
    return [found[ledger_id] for ledger_id, _ in ledgers]


@dataclass(frozen=True)
class _Asker:
    """One task; it changes nothing, so Spark may repeat it."""

    settings: Settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Connections(self.settings, read_only=True) as ports:
            for batch in batches:
                for start in range(0, batch.num_rows, CHUNK):
                    rows = batch.slice(start, CHUNK).to_pylist()
                    checks = ports.reader.check_replicas(
                        [(row["ledger_id"], ledger_metadata.decode(row["data"])) for row in rows]
                    )
                    answers = [
                        {"ledger_id": row["ledger_id"], "check": json.dumps(asdict(check))}
                        for row, check in zip(rows, checks, strict=True)
                    ]
                    yield pa.RecordBatch.from_pylist(answers, _ANSWERED)
