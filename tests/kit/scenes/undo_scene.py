"""A cluster whose deleted ledgers can be brought back, over the fakes.

Belongs here: the cluster and its archive. Not here: what a test expects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from pulsar_lifecycle.deletion.undo.undo import begun, preview, undo
from pulsar_lifecycle.deletion.undo.undone import Undone, UndoPorts, UndoRun
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Archived, JournalRow, ReplicaCheck
from pulsar_lifecycle.runs import control
from tests.kit.simulated.cluster import SimulatedCluster, data_tags

TOPIC = Topic.parse("persistent://acme/orders/placed")
GC_WAIT = 900
A, B, C = "a:3181", "b:3181", "c:3181"


class UndoScene:
    """Three ledgers that a run archived and deleted; their entries are still on the bookies, two copies each."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster()
        self.store = self.cluster.open_store()
        self.hook: Callable[[str], None] = lambda name: None
        self.said: list[str] = []
        self.lease = control.take_lease(self.store, "test", self.cluster.clock, 1)
        self.ids = [self.deleted() for _ in range(3)]
        self.cluster.clock.advance(60)

    # ------------------------------------------------------------------------------------------------- what was there

    def deleted(self, state: LedgerState = LedgerState.CLOSED, entries: int = 10) -> int:
        """A ledger as a deletion run leaves it."""
        tags = {"application": "pulsar", **data_tags(TOPIC)}
        ledger_id = self.cluster.ledger(data_tags(TOPIC), entries=[b"entry"] * entries)
        metadata = LedgerMetadata(
            state,
            3,
            2,
            2,
            (Segment(0, (A, B, C)),),
            5 * entries,
            entries - 1 if state is LedgerState.CLOSED else -1,
            DigestType.CRC32C,
            custom_metadata={name: value.encode() for name, value in tags.items()},
        )
        path = self.cluster.path(ledger_id)
        self.store.delete(path, -1)
        stat = self.store.create(path, ledger_metadata.encode(metadata), parents=True)
        now = self.cluster.clock.now_ms()
        row = Archived("deletion", "simulated", ledger_id, path, self.data(ledger_id), 0, stat.czxid, stat.ctime, now)
        self.cluster.journal.archive([row])
        self.store.delete(path, -1)
        return ledger_id

    def data(self, ledger_id: int) -> bytes:
        return self.cluster.zookeeper.data(self.cluster.path(ledger_id))

    def archived(self, ledger_id: int) -> Archived:
        return next(row for row in self.cluster.journal.nodes if row.ledger_id == ledger_id)

    def edit(self, ledger_id: int, **changes: Any) -> None:
        """Change a row of the archive."""
        nodes = self.cluster.journal.nodes
        nodes[:] = [replace(row, **changes) if row.ledger_id == ledger_id else row for row in nodes]

    def collect(self, ledger_id: int, *bookies: str) -> None:
        """The bookies' garbage collection drops a ledger."""
        for bookie in bookies:
            self.cluster.reader.collected.setdefault(bookie, set()).add(ledger_id)

    # --------------------------------------------------------------------------------------------------- the two ways

    def run(self, *, accept_unknown: bool = False) -> UndoRun:
        return UndoRun(
            run_id="undo",
            cluster="simulated",
            ledgers_root="/ledgers",
            guard=self.lease.guard,
            store_ahead_ms=0,
            gc_wait_ms=GC_WAIT * 1000,
            accept_unknown=accept_unknown,
            batch=2,
            creates_per_second=1e9,
            slow_above_ms=100,
            stop_above_ms=500,
        )

    @property
    def ports(self) -> UndoPorts:
        return UndoPorts(self.store, self._check, HookedJournal(self), self.cluster.clock, self.said.append)

    def _check(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
        self.hook("check")
        return self.cluster.reader.check_replicas(ledgers)

    def pending(self) -> dict[int, int]:
        return begun([asdict(row) for row in self.cluster.journal.rows], "simulated")

    def preview(self, **options: Any) -> dict[int, Undone]:
        done = preview(self.run(**options), self.ports, self.cluster.journal.nodes, self.pending())
        return {one.ledger_id: one for one in done}

    def undo(self, **options: Any) -> dict[int, Undone]:
        done = undo(self.run(**options), self.ports, self.cluster.journal.nodes, self.pending())
        return {one.ledger_id: one for one in done}

    # ------------------------------------------------------------------------------------------------------- the ends

    def journal(self, ledger_id: int) -> list[str]:
        rows = [row for row in self.cluster.journal.rows if row.ledger_id == ledger_id]
        assert {row.phase for row in rows} <= {"undo"}
        return [row.outcome for row in rows]

    def exists(self, ledger_id: int) -> bool:
        return self.cluster.exists(ledger_id)


class HookedJournal:
    def __init__(self, scene: UndoScene) -> None:
        self._scene = scene

    def record(self, rows: Sequence[JournalRow]) -> str:
        self._scene.hook("before record")
        where = self._scene.cluster.journal.record(rows)
        self._scene.hook("after record")
        return where

    def archive(self, nodes: Sequence[Archived]) -> str:
        raise AssertionError("an undo archives nothing")


def outcomes(done: dict[int, Undone]) -> list[str]:
    return [done[ledger_id].outcome for ledger_id in sorted(done)]


def during_the_wait(scene: UndoScene, act: Callable[[], None]) -> None:
    """``act`` once, while the collection interval passes."""
    asleep = scene.cluster.clock.sleep
    acts = [act]

    def sleep(seconds: float) -> None:
        if seconds >= 1 and acts:
            acts.pop()()
        asleep(seconds)

    scene.cluster.clock.sleep = sleep  # type: ignore[method-assign]
