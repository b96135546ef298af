"""Snapshots in BookKeeper: ``BucketSnapshotStorage``, as brokers store them; and new ones of a given shape.

Belongs here: a snapshot as a ledger with its tags. Not here: the cursor's properties that name it.
Upstream: ``BookkeeperBucketSnapshotStorage`` and ``LedgerMetadataUtils``, pulsar-broker 4.0.7.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from pulsar_lifecycle.errors import Conflict, CorruptFormat, NotFound, OutcomeUnknown, StoreError, Unavailable
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.ports import LedgerReader, LedgerShape, LedgerWriter, MetadataStore, Node, Unread

_TRIES = 3
"""How often an id is asked for whose answer got lost, or that is taken (MAX_RETRY upstream)."""


def tags(bucket_key: str, topic: str, cursor: str) -> dict[str, bytes]:
    """The custom metadata of a snapshot's ledger; ``topic`` is the full name, ``cursor`` decoded."""
    return {
        ledger_metadata.TAG_APPLICATION: ledger_metadata.APPLICATION_PULSAR.encode(),
        ledger_metadata.TAG_COMPONENT: ledger_metadata.COMPONENT_BUCKET.encode(),
        ledger_metadata.TAG_BUCKET_KEY: bucket_key.encode(),
        ledger_metadata.TAG_BUCKET_TOPIC: topic.encode(),
        ledger_metadata.TAG_BUCKET_CURSOR: cursor.encode(),
    }


class BookKeeperBucketStorage:
    """``BucketSnapshotStorage`` over the ports of a cluster. ``bookies``: ensemble size, write and ack quorum.

    ``reserved`` is told a new ledger's id before anything of it exists: whoever notes the id finds what a crash leaves.
    """

    def __init__(
        self,
        store: MetadataStore,
        reader: LedgerReader,
        writer: LedgerWriter,
        bookies: tuple[int, int, int],
        root: str = "/ledgers",
        reserved: Callable[[int], object] = int,
    ) -> None:
        self._store = store
        self._reader = reader
        self._writer = writer
        self._bookies = bookies
        self._root = root
        self._reserved = reserved

    def start(self) -> None:
        """Nothing: connections open with the first request."""

    def close(self) -> None:
        """Nothing: whoever opened the ports closes them."""

    def create_bucket_snapshot(self, entries: Sequence[bytes], bucket_key: str, topic: str, cursor: str) -> int:
        """Write the ledger of a snapshot, whole or not at all; its id. Raises as ``LedgerWriter.write``."""
        shape = LedgerShape(*self._bookies, tags(bucket_key, topic, cursor))
        for tried in range(1, _TRIES + 1):
            ledger_id = self._reserve()
            self._reserved(ledger_id)
            try:
                self._writer.write(ledger_id, entries, shape)
            except Conflict:
                if tried == _TRIES:
                    raise
            else:
                return ledger_id
        raise AssertionError("unreachable: the last try returns or raises")

    def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        """Entry 0."""
        return self._read(bucket_id, 0, 0)[0]

    def get_bucket_snapshot_segments(
        self, bucket_id: int, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> list[bytes]:
        """The entries of the segments, both inclusive, from 1 on."""
        return self._read(bucket_id, first_segment_entry_id, last_segment_entry_id)

    def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        """Bytes of all its entries."""
        return self._metadata(bucket_id)[1].length

    def delete_bucket_snapshot(self, bucket_id: int) -> None:
        """Delete the ledger's z-node if it is a snapshot's; done where there is none.

        For a tracker's own storage: a repair leaves old ledgers to the plan of orphans, which archives them. Raises
        StoreError for a ledger that is no snapshot.
        """
        with contextlib.suppress(NotFound):
            node, metadata = self._metadata(bucket_id, closed=False)
            if metadata.custom_metadata.get(ledger_metadata.TAG_COMPONENT) != ledger_metadata.COMPONENT_BUCKET.encode():
                raise StoreError(f"ledger {bucket_id}: its tags do not say that it is a delayed-index snapshot")
            self._store.delete(node.path, node.stat.version)

    def _reserve(self) -> int:
        for tried in range(1, _TRIES + 1):
            try:
                return self._writer.reserve()
            except OutcomeUnknown:
                if tried == _TRIES:
                    raise
        raise AssertionError("unreachable: the last try returns or raises")

    def _read(self, bucket_id: int, first: int, last: int) -> list[bytes]:
        _, metadata = self._metadata(bucket_id)
        if last > metadata.last_entry_id:
            raise NotFound(f"ledger {bucket_id}: it has the entries 0 .. {metadata.last_entry_id}, asked for {last}")
        return [entry.payload for entry in self._reader.read(bucket_id, metadata, first, last)]

    def _metadata(self, bucket_id: int, *, closed: bool = True) -> tuple[Node, LedgerMetadata]:
        node = self._store.read([ledger_path(bucket_id, self._root)])[0]
        if node is None:
            raise NotFound(f"ledger {bucket_id} has no z-node")
        if isinstance(node, Unread):
            raise Unavailable(f"{node.path}: {node.reason}")
        metadata = ledger_metadata.decode(node.data)
        if closed and metadata.state is not LedgerState.CLOSED:
            raise CorruptFormat(f"snapshot ledger {bucket_id}", 0, f"a closed ledger, found {metadata.state.name}")
        return node, metadata
