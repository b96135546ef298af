"""What a tracker needs of the outside: where snapshots are kept, and the cursor properties that name them.

Belongs here: the Protocols. Not here: snapshots in BookKeeper, or in memory (tests).
Upstream: ``BucketSnapshotStorage`` of PIP-195, and ``ManagedCursor``'s properties. Unlike upstream's, this storage
knows only bytes: whoever asks decodes them, and refuses what is corrupt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class BucketSnapshotStorage(Protocol):
    """Snapshots by bucket id, which in BookKeeper is the id of their ledger; they never change once they are made.

    Operations raise NotFound where there is no such bucket, other StoreErrors where a server refuses, and Unavailable
    where none answers.
    """

    def create_bucket_snapshot(self, entries: Sequence[bytes], bucket_key: str, topic: str, cursor: str) -> int:
        """Keep entry 0 and the segments after it, whole or not at all; returns the bucket's id.

        ``topic`` is the full name, with its partition; ``cursor`` the subscription's decoded name. Both and the key go
        into the tags of the ledger. A failure may leave a ledger that no property names, but none that looks whole.
        """
        ...

    def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        """Entry 0."""
        ...

    def get_bucket_snapshot_segments(
        self, bucket_id: int, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> list[bytes]:
        """The segments' entries from ``first_segment_entry_id`` (1 or more) to ``last_segment_entry_id``, inclusive.

        NotFound too where the snapshot ends before.
        """
        ...

    def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        """Bytes of all its entries."""
        ...

    def delete_bucket_snapshot(self, bucket_id: int) -> None:
        """Drop it; done too where there is none."""
        ...

    def start(self) -> None:
        """Get ready; called once, before anything else."""
        ...

    def close(self) -> None:
        """Release what :meth:`start` took."""
        ...


class BucketKeys(Protocol):
    """The bucket properties of one cursor, and of it alone: each names a snapshot by the bucket's key."""

    def read(self) -> Mapping[str, int]:
        """Bucket id by key."""
        ...

    def put(self, key: str, bucket_id: int) -> None:
        """Add or replace one."""
        ...

    def remove(self, key: str) -> None:
        """Take one away; done too where it is not there."""
        ...
