"""A tracker's dealings with the outside: snapshots made, read and deleted, keys written; again where that failed.

Belongs here: each change once, in its order. Not here: what the changes are for (:mod:`tracker`).

A bucket's key is taken away before its snapshot goes, and the keys of merged buckets before the new one is written: a
crash in between leaves a snapshot that nothing names, never a key that names nothing, nor two that overlap.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from pulsar_lifecycle.delayed_index.snapshot_storage import BucketKeys, BucketSnapshotStorage
from pulsar_lifecycle.errors import NotFound, StoreError, Unavailable

T = TypeVar("T")

TRIES = 4
"""Upstream's ``MaxRetryTimes`` of 3, and the first try."""


class Operation(StrEnum):
    """What is done with a snapshot: the types of ``pulsar_delayed_message_index_bucket_op_count``."""

    CREATE = "create"
    LOAD = "load"
    DELETE = "delete"
    MERGE = "merge"


class State(StrEnum):
    """How it went: the states of the same."""

    SUCCEED = "succeed"
    FAILED = "failed"
    ALL = "all"


class Outside:
    """Storage and properties as a tracker uses them: tried again at once, counted, pending where all tries fail."""

    def __init__(self, storage: BucketSnapshotStorage, keys: BucketKeys, topic: str, cursor: str) -> None:
        self._storage, self._keys = storage, keys
        self._topic, self._cursor = topic, cursor
        self._pending: deque[Callable[[], None]] = deque()
        self.operations: Counter[tuple[Operation, State]] = Counter()

    @property
    def pending(self) -> int:
        """Changes that have not been made yet."""
        return len(self._pending)

    def create(self, entries: tuple[bytes, ...], key: str) -> int:
        """A new snapshot's bucket id; raises Unavailable or StoreError."""
        return self._count(
            Operation.CREATE,
            lambda: self._storage.create_bucket_snapshot(entries, key, self._topic, self._cursor),
        )

    def load(self, bucket_id: int, first: int, last: int) -> list[bytes]:
        """Segments, both inclusive; raises NotFound, Unavailable or StoreError."""
        return self._count(Operation.LOAD, lambda: self._storage.get_bucket_snapshot_segments(bucket_id, first, last))

    def name(self, key: str, bucket_id: int) -> None:
        """Write the key of a snapshot."""
        self._make_later(lambda: self._keys.put(key, bucket_id))

    def unname(self, key: str) -> None:
        """Take a key away."""
        self._make_later(lambda: self._keys.remove(key))

    def delete(self, bucket_id: int) -> None:
        """Delete a snapshot that no key names any more."""
        self._make_later(
            lambda: self._count(Operation.DELETE, lambda: self._storage.delete_bucket_snapshot(bucket_id), tries=1)
        )

    def make_pending(self) -> None:
        """Make the pending changes, in order, up to the first that fails."""
        while self._pending:
            try:
                _try(self._pending[0], TRIES)
            except (Unavailable, StoreError):
                return
            self._pending.popleft()

    def _make_later(self, change: Callable[[], None]) -> None:
        self._pending.append(change)

    def _count(self, operation: Operation, action: Callable[[], T], tries: int = TRIES) -> T:
        self.operations[operation, State.ALL] += 1
        try:
            found = _try(action, tries)
        except (Unavailable, StoreError):
            self.operations[operation, State.FAILED] += 1
            raise
        self.operations[operation, State.SUCCEED] += 1
        return found


def _try(action: Callable[[], T], tries: int) -> T:
    for _ in range(tries - 1):
        try:
            return action()
        except NotFound:
            raise
        except (Unavailable, StoreError):
            continue
    return action()
