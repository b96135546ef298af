"""Delayed-index snapshots, and the cursor properties that name them, in memory; either may be told to fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pulsar_lifecycle.errors import NotFound


@dataclass
class StoredSnapshot:
    """What was given to be kept."""

    entries: tuple[bytes, ...]
    bucket_key: str
    topic: str
    cursor: str


@dataclass
class InMemoryBucketStorage:
    """BucketSnapshotStorage over a dict; ``before`` is called with each operation's name and may raise."""

    before: Callable[[str], None] = lambda operation: None
    snapshots: dict[int, StoredSnapshot] = field(default_factory=dict)
    next_id: int = 1_000
    calls: list[str] = field(default_factory=list)

    def create_bucket_snapshot(self, entries: Sequence[bytes], bucket_key: str, topic: str, cursor: str) -> int:
        self._called("create")
        bucket_id, self.next_id = self.next_id, self.next_id + 1
        self.snapshots[bucket_id] = StoredSnapshot(tuple(entries), bucket_key, topic, cursor)
        return bucket_id

    def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        self._called("metadata")
        return self._found(bucket_id).entries[0]

    def get_bucket_snapshot_segments(
        self, bucket_id: int, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> list[bytes]:
        self._called("segments")
        entries = self._found(bucket_id).entries
        if not 1 <= first_segment_entry_id <= last_segment_entry_id < len(entries):
            raise NotFound(f"bucket {bucket_id}: no segments {first_segment_entry_id} to {last_segment_entry_id}")
        return list(entries[first_segment_entry_id : last_segment_entry_id + 1])

    def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        self._called("length")
        return sum(map(len, self._found(bucket_id).entries))

    def delete_bucket_snapshot(self, bucket_id: int) -> None:
        self._called("delete")
        self.snapshots.pop(bucket_id, None)

    def start(self) -> None:
        self._called("start")

    def close(self) -> None:
        self._called("close")

    def _called(self, operation: str) -> None:
        self.calls.append(operation)
        self.before(operation)

    def _found(self, bucket_id: int) -> StoredSnapshot:
        if bucket_id not in self.snapshots:
            raise NotFound(f"bucket {bucket_id} does not exist")
        return self.snapshots[bucket_id]


@dataclass
class InMemoryBucketKeys:
    """BucketKeys over a dict; ``before`` is called with each operation's name and may raise."""

    before: Callable[[str], None] = lambda operation: None
    buckets: dict[str, int] = field(default_factory=dict)

    def read(self) -> Mapping[str, int]:
        self.before("read")
        return dict(self.buckets)

    def put(self, key: str, bucket_id: int) -> None:
        self.before("put")
        self.buckets[key] = bucket_id

    def remove(self, key: str) -> None:
        self.before("remove")
        self.buckets.pop(key, None)
