"""The metadata store: z-nodes read, listed and written by version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Stat:
    """What ZooKeeper knows of a z-node (org.apache.zookeeper.data.Stat)."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


@dataclass(frozen=True, slots=True)
class Node:
    """A z-node as read."""

    path: str
    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Unread:
    """A z-node that is there and could not be read (no permission, say); never to be taken for absent."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Children:
    """The names below a z-node, unsorted, with the node's own count from its Stat at the same moment."""

    path: str
    names: tuple[str, ...]
    num_children: int

    @property
    def is_whole(self) -> bool:
        """Whether it has as many names as the Stat counts."""
        return len(self.names) == self.num_children


ScanRow = tuple[str, bytes, int, int, int, int, int, int, tuple[str, ...]]
"""path, data, czxid, mzxid, ctime, mtime, version, num_children, names (empty unless children were asked for)."""


@dataclass(frozen=True, slots=True)
class ScanBatch:
    """One step of a scan: what was found, what is not there, what is there and could not be read."""

    rows: list[ScanRow]
    gone: list[str]
    unread: list[Unread]


@dataclass(frozen=True, slots=True)
class Deletion:
    """Delete ``path`` if its data version is still ``version``."""

    path: str
    version: int


class NodeDeletion(StrEnum):
    """What became of a z-node that was to be deleted."""

    DELETED = "deleted"
    GONE = "gone"
    """It was not there."""
    CHANGED = "changed"
    """It has another version, and is there."""


@dataclass(frozen=True, slots=True)
class DeletionResult:
    """What became of one :class:`Deletion`."""

    path: str
    outcome: NodeDeletion


class MetadataStore(Protocol):
    """ZooKeeper as a tree of versioned nodes; reads are bulk (multiRead), writes single or guarded batches."""

    def sync(self, path: str = "/") -> None:
        """Make the following reads on this session see every write that was acknowledged before this call."""
        ...

    def zxid(self) -> int:
        """The store's latest transaction id, after a sync; only a store restored from a backup goes back."""
        ...

    def read(self, paths: Sequence[str]) -> list[Node | Unread | None]:
        """Data and Stat of many z-nodes, in order; None where there is none. Any number of paths."""
        ...

    def children(self, paths: Sequence[str]) -> list[Children | Unread | None]:
        """Child names of many z-nodes, in order; None where the node does not exist."""
        ...

    def scan(self, paths: Iterable[str], *, children: bool = False) -> Iterator[ScanBatch]:
        """Read any number of z-nodes as bare tuples, batch by batch in the order given: the fast way to read millions.

        With ``children`` each row also has the names below it, from the same request.
        """
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, parents: bool = False) -> Stat:
        """Create a z-node. Raises Conflict if it exists, OutcomeUnknown if the connection broke."""
        ...

    def sequence(self, prefix: str) -> int:
        """The next number of ZooKeeper's counter below the parent of ``prefix``, and nothing left behind.

        A sequential z-node is made there and deleted. Raises NotFound without the parent. A number whose answer got
        lost (OutcomeUnknown) is never given again: ask once more.
        """
        ...

    def write(self, path: str, data: bytes, version: int, checks: Sequence[tuple[str, int]] = ()) -> Stat:
        """Compare-and-set, in one transaction with ``checks``. Raises Conflict, NotFound, OutcomeUnknown.

        A check names a z-node and its version, -1 for any as long as it is there: one that was deleted and created
        again begins anew with its versions. Conflict stands for another version, and for a check that fails.
        """
        ...

    def delete(self, path: str, version: int) -> None:
        """Delete one z-node. Raises Conflict on another version, NotFound, OutcomeUnknown."""
        ...

    def delete_many(self, deletions: Sequence[Deletion], guard: tuple[str, int]) -> list[DeletionResult]:
        """Delete in transactions that also check that z-node ``guard[0]`` still has version ``guard[1]``.

        One bad operation aborts a transaction: it is taken out with its outcome and the rest is sent again. After a
        lost connection the batch is read again, and what is absent counts as ``deleted``. Raises LeaseLost when the
        guard does not hold; then what was not yet deleted stays.
        """
        ...

    def latency_ms(self) -> float:
        """Latest round trip of the latency probe on its own session, in milliseconds."""
        ...

    def close(self) -> None:
        """End the session; ephemeral nodes go with it."""
        ...
