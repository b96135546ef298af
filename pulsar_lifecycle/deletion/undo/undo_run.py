"""The driver's side of undoing deletions: what the job ``undo_deletions`` calls.

Belongs here: archive, lease and bookies put together for one undo, and the bookies asked from executors where there are
many ledgers. Not here: which ledgers come back, and in which steps (``deletion/undo/undo.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pulsar_lifecycle.deletion.undo.undo import begun, preview, undo
from pulsar_lifecycle.deletion.undo.undone import Check, Undone, UndoPorts, UndoRun
from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.formats.ledger_path import MAX_LEDGER_ID
from pulsar_lifecycle.journal.archive import last_archived
from pulsar_lifecycle.journal.offloads import deleted_copies
from pulsar_lifecycle.journal.queries import rows_of_phase
from pulsar_lifecycle.ports import Connect, LedgerReader, ReplicaCheck
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import held_lease
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.scan.evidence import check_store
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values.outcomes import Phase

SPREAD_FROM = 1_000
"""Ledgers from which on executors ask the bookies; below, the driver is done before a task has started."""
BATCH = 10_000
"""Ledgers that are checked, then re-created, in one step of an undo."""
CHUNK = 500
"""Ledgers that one task asks for at once."""


@dataclass(frozen=True)
class UndoRequest:
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


def undo_deletions(cluster: Cluster, run_id: str, request: UndoRequest, say: Callable[[str], None]) -> Result:
    """Undo deletions, or say what that would do. Raises UsageError, Refused while another run acts, Paused ..."""
    if bool(request.run_id) == bool(request.ledger_ids):
        raise UsageError("give either the id of the run whose deletions to undo, or ledger ids")
    if wrong := [i for i in request.ledger_ids if not 0 <= i <= MAX_LEDGER_ID]:
        raise UsageError(f"ledger_ids: {wrong[0]} is no ledger id, those are 0 .. 2**63-1")
    settings = cluster.settings
    journal = cluster.journal_reader
    rows = last_archived(journal, settings.cluster, run_id=request.run_id, ledger_ids=request.ledger_ids)
    lost = tuple(deleted_copies(journal, settings.cluster, request.run_id, request.ledger_ids))
    missing = tuple(sorted(set(request.ledger_ids) - {row.ledger_id for row in rows}))
    with cluster.ports(read_only=request.dry_run) as ports:
        store, clock = ports.store, ports.clock
        ports = UndoPorts(store, _spread(cluster, ports.reader), ports.journal, clock, say)
        if request.dry_run:
            run = _run(settings, run_id, request, ("", 0), 0, _forbidden(cluster))
            return Result(preview(run, ports, rows, _pending(cluster)), missing, lost)
        control.check_not_paused(store)
        check_store(cluster, store)  # a restored store issues archived ids again
        with held_lease(settings, store, clock, f"undo {run_id}") as lease:
            ahead = lease.taken_at - clock.now_ms()
            run = _run(settings, run_id, request, lease.guard, ahead, _forbidden(cluster))
            return Result(undo(run, ports, rows, _pending(cluster)), missing, lost)


def _pending(cluster: Cluster) -> dict[int, int]:
    return begun(rows_of_phase(cluster.journal_reader, Phase.UNDO).to_pylist(), cluster.settings.cluster)


def _forbidden(cluster: Cluster) -> frozenset[int]:
    """Ledgers whose records were deleted for good, as the journal says since before they went."""
    rows = rows_of_phase(cluster.journal_reader, Phase.NO_UNDO).to_pylist()
    return frozenset(row["ledger_id"] for row in rows if row["cluster"] == cluster.settings.cluster)


def _run(
    settings: Settings, run_id: str, request: UndoRequest, guard: tuple[str, int], ahead: int, forbidden: frozenset[int]
) -> UndoRun:
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
        forbidden=forbidden,
    )


_Asked = tuple[int, bytes]
"""A ledger and its metadata, encoded."""


def _spread(cluster: Cluster, reader: LedgerReader) -> Check:
    """Few ledgers are checked here, many on executors."""

    def check(ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
        if len(ledgers) < SPREAD_FROM:
            return reader.check_replicas(ledgers)
        return check_on_executors(cluster, ledgers)

    return check


def check_on_executors(cluster: Cluster, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
    """``LedgerReader.check_replicas`` by all tasks that run at once, in the order given."""
    tasks = cluster.tasks
    asked = [(ledger_id, ledger_metadata.encode(metadata)) for ledger_id, metadata in ledgers]
    share = -(-len(asked) // tasks.at_once) or 1
    pieces = [asked[start : start + share] for start in range(0, len(asked), share)]
    asker = _Asker(share_of(tasks, cluster.settings), cluster.connect)
    return [check for checks in tasks.map(asker, pieces) for check in checks]


@dataclass(frozen=True)
class _Asker:
    """One task; it changes nothing, so it may be repeated."""

    settings: Settings
    connect: Connect

    def __call__(self, asked: Sequence[_Asked]) -> list[ReplicaCheck]:
        found: list[ReplicaCheck] = []
        with self.connect(self.settings, read_only=True) as ports:
            for start in range(0, len(asked), CHUNK):
                some = [(ledger_id, ledger_metadata.decode(data)) for ledger_id, data in asked[start : start + CHUNK]]
                found += ports.reader.check_replicas(some)
        return found
