"""The journal, the archive, the clock, and new ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from pulsar_lifecycle.ports.metadata import Node, Stat
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One decision or effect. Unknown text fields are empty, unknown numbers 0."""

    run_id: str
    cluster: str
    plan_id: str
    ledger_id: int
    component: str
    topic: str
    action: Action
    phase: Phase
    outcome: Outcome
    reason: str
    bytes: int
    checksum: str
    detail: str
    at: int
    code: str | None = None
    """Why, as a code (``values/codes.py``), where ``outcome`` does not say it all; ``reason`` is the sentence."""


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


@dataclass(frozen=True, slots=True)
class ArchivedSnapshot:
    """The snapshot of a delayed-index bucket as it was when its cursor ceased to name it: enough to write it anew.

    ``metadata``: its ledger's z-node; ``entries``: all of the ledger's.
    """

    run_id: str
    cluster: str
    topic: str
    subscription: str
    bucket_key: str
    ledger_id: int
    metadata: bytes
    entries: tuple[bytes, ...]
    at: int


class Journal(Protocol):
    """Durable, append-only; a call returns only when its rows survive a crash of this machine."""

    def record(self, rows: Sequence[JournalRow]) -> str:
        """Store rows as one closed object; returns its location."""
        ...

    def check_writable(self) -> None:
        """Raise StoreError where rows could not be stored now: to be asked before effects that are journalled after.

        Stores an object that is no part of the journal, in place of the one that was stored before.
        """
        ...

    def archive(self, nodes: Sequence[Archived]) -> str:
        """Store z-nodes about to be deleted as one closed object; returns its location."""
        ...

    def archive_snapshots(self, snapshots: Sequence[ArchivedSnapshot]) -> str:
        """Store snapshots whose keys are about to go as one closed object; returns its location."""
        ...


@dataclass(frozen=True, slots=True)
class Counting:
    """How rows of the journal are counted: a count has columns ``schema``, and is made of ``columns`` of the rows.

    ``count`` counts some rows; ``add_up`` makes the count of the whole from those of its parts, in any order.
    """

    schema: pa.Schema
    columns: tuple[str, ...]
    count: Callable[[pa.Table], pa.Table]
    add_up: Callable[[Sequence[pa.Table]], pa.Table]


class JournalReader(Protocol):
    """What journal and archive hold.

    A condition is over the columns of a row and ``date``, the UTC day (``YYYY-MM-DD``) of the first row that was stored
    with it; None: all rows. Rows come in no order, with all columns or those that are named. Raises StoreError.
    """

    def find(self, condition: pc.Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of the journal; :class:`JournalRow`."""
        ...

    def find_archived(self, condition: pc.Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Rows of the archive; :class:`Archived`."""
        ...

    def find_snapshots(self, condition: pc.Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Snapshots that were kept; :class:`ArchivedSnapshot`."""
        ...

    def counted(self, counting: Counting, now: int) -> pa.Table:
        """The whole journal counted, at ``now`` (ms). What a past day came to may be kept: count one way only."""
        ...


class Ids(Protocol):
    """Ids that nobody else makes, so that tests can have their own."""

    def token(self, size: int) -> str:
        """``size`` bytes, as hexadecimal digits."""
        ...

    def uuid(self) -> UUID:
        """A UUID of version 4."""
        ...


class Clock(Protocol):
    """Time, so that tests can have their own."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...
