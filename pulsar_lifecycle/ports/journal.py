"""The journal, the archive, and the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsar_lifecycle.ports.metadata import Node, Stat


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One decision or effect; DESIGN section 5. Unknown text fields are empty, unknown numbers 0."""

    run_id: str
    cluster: str
    plan_id: str
    ledger_id: int
    component: str
    topic: str
    action: str
    phase: str
    outcome: str
    reason: str
    bytes: int
    checksum: str
    detail: str
    at: int


@dataclass(frozen=True, slots=True)
class Archived:
    """A ledger z-node as it was before its deletion: enough to restore it."""

    run_id: str
    cluster: str
    ledger_id: int
    path: str
    data: bytes
    version: int
    czxid: int
    ctime: int
    at: int

    @property
    def node(self) -> Node:
        """The z-node, with as much of its Stat as was kept."""
        size = len(self.data)
        stat = Stat(self.czxid, self.czxid, self.ctime, self.ctime, self.version, 0, 0, size, 0, self.czxid)
        return Node(self.path, self.data, stat)


class Journal(Protocol):
    """Durable, append-only; a call returns only when its rows survive a crash of this machine."""

    def record(self, rows: Sequence[JournalRow]) -> str:
        """Store rows as one closed object; returns its location."""
        ...

    def archive(self, nodes: Sequence[Archived]) -> str:
        """Store z-nodes about to be deleted as one closed object; returns its location."""
        ...


class Clock(Protocol):
    """Time, so that tests can have their own."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...
