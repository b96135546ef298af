"""Snapshots kept in the lake before a repair takes their keys away, so that they can be written anew.

Belongs here: keeping them, finding them, what an undo has to write anew. Not here: doing it
(``repair_work.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow.compute as pc

from pulsar_lifecycle.delayed_index.stored.index_codes import BucketProblem
from pulsar_lifecycle.delayed_index.stored.index_reading import IndexPorts, is_snapshot, read_buckets, snapshot_entries
from pulsar_lifecycle.delayed_index.stored.subscription import StoredBucket
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound, RefusedBy, StoreError, Unavailable
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.cursor import snapshot_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.ports import ArchivedSnapshot, Journal, JournalReader, Node, Unread
from pulsar_lifecycle.values.codes import Code

AT_ONCE = 32 << 20
"""Bytes of entries that one object of the lake has, or one snapshot more."""
_NOTHING_THERE = frozenset({BucketProblem.BAD_KEY, BucketProblem.NO_LEDGER, BucketProblem.NOT_CLOSED})


def keep(
    journal: Journal, ports: IndexPorts, root: str, buckets: Iterable[StoredBucket], about: ArchivedSnapshot
) -> None:
    """Keep the snapshots of ``buckets``, durably; ``about`` is what they have in common.

    What has no closed ledger, or one that cannot be read for good, is passed over: there is nothing to write anew.
    Raises what may be read another time.
    """
    batch: list[ArchivedSnapshot] = []
    for one in _read(ports, root, buckets, about):
        batch.append(one)
        if sum(sum(map(len, kept.entries)) for kept in batch) >= AT_ONCE:
            journal.archive_snapshots(batch)
            batch = []
    journal.archive_snapshots(batch)


def _read(
    ports: IndexPorts, root: str, buckets: Iterable[StoredBucket], about: ArchivedSnapshot
) -> Iterator[ArchivedSnapshot]:
    for bucket in buckets:
        if bucket.problem in _NOTHING_THERE:
            continue
        (node,) = ports.store.read([ledger_path(bucket.ledger_id, root)])
        try:
            if not isinstance(node, Node):
                reason = node.reason if isinstance(node, Unread) else "it is gone"
                raise Unavailable(f"the z-node of snapshot ledger {bucket.ledger_id} was not read: {reason}")
            metadata = ledger_metadata.decode(node.data)
            if bucket.problem is BucketProblem.UNDECODABLE and not is_snapshot(metadata):
                continue  # a ledger of somebody's messages
            entries = snapshot_entries(ports, bucket.ledger_id, metadata)
        except LifecycleError as error:
            if bucket.problem is BucketProblem.UNDECODABLE and _for_good(error):
                continue
            raise
        yield ArchivedSnapshot(
            about.run_id, about.cluster, about.topic, about.subscription, bucket.key, bucket.ledger_id,
            node.data, tuple(entries), about.at,
        )  # fmt: skip


def kept_of(
    journal: JournalReader, cluster: str, topic: str, subscription: str, keys: Mapping[str, str]
) -> dict[tuple[str, int], ArchivedSnapshot]:
    """The newest kept snapshot of a subscription for each bucket key and ledger, of those that properties name."""
    condition = (
        (pc.field("cluster") == cluster)
        & (pc.field("topic") == topic)
        & (pc.field("subscription") == subscription)
        & pc.field("ledger_id").isin(sorted({i for i in map(snapshot_ledger, keys.values()) if i is not None}))
    )
    rows = journal.find_snapshots(condition).sort_by("at").to_pylist() if keys else []
    found = [ArchivedSnapshot(**row | {"entries": tuple(row["entries"])}) for row in rows]
    return {(one.bucket_key, one.ledger_id): one for one in found}


NewLedger = tuple[str, Sequence[bytes], tuple[int, int, int]]
"""A snapshot to write: the bucket's key, its entries, ensemble and quorums."""


def had(
    ports: IndexPorts,
    root: str,
    kept: Mapping[tuple[str, int], ArchivedSnapshot],
    before: Mapping[str, str],
    current: Mapping[str, str],
    after: Mapping[str, str],
) -> tuple[dict[str, str], list[NewLedger]]:
    """The bucket properties that a repair took away (from ``before`` to ``after``), and the ledgers to write anew.

    A bucket whose ledger has still what was kept gets that ledger; so does one that an earlier undo wrote anew and that
    the cursor has by now (``current``). Raises Refused for a bucket that no broker could read.
    """
    goal: dict[str, str] = {}
    new: list[NewLedger] = []
    for bucket in read_buckets(ports, before, root):
        one = kept.get((bucket.key, bucket.ledger_id))
        if after.get(bucket.key) == bucket.value or (one is None and bucket.problem is None):
            goal[bucket.key] = bucket.value
        elif one is None:
            raise RefusedBy(
                Code.SNAPSHOT_UNREAD, f"a bucket that it had cannot be read, and was not kept: {bucket.error}"
            )
        elif there := _holding(ports, root, one, bucket.value, current.get(bucket.key, "")):
            goal[bucket.key] = there
        else:
            metadata = ledger_metadata.decode(one.metadata)
            sizes = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
            new.append((bucket.key, one.entries, sizes))
    return goal, new


def _holding(ports: IndexPorts, root: str, kept: ArchivedSnapshot, *ledgers: str) -> str:
    """The first of these ledgers that has, closed, what was kept; empty if none has."""
    try:
        read_whole(kept.entries)
    except CorruptFormat as error:
        raise RefusedBy(Code.SNAPSHOT_UNREAD, f"a bucket that it had could not be read then: {error}") from error
    ids = ((one, snapshot_ledger(one)) for one in ledgers)
    return next((one for one, ledger_id in ids if ledger_id is not None and _has(ports, root, ledger_id, kept)), "")


def _has(ports: IndexPorts, root: str, ledger_id: int, kept: ArchivedSnapshot) -> bool:
    (node,) = ports.store.read([ledger_path(ledger_id, root)])
    if isinstance(node, Unread):
        raise Unavailable(f"{node.path}: {node.reason}")
    if node is None:
        return False
    try:
        metadata = ledger_metadata.decode(node.data)
        closed = metadata.state is LedgerState.CLOSED
        return closed and tuple(snapshot_entries(ports, ledger_id, metadata)) == kept.entries
    except LifecycleError as error:
        if _for_good(error):
            return False
        raise


def _for_good(error: LifecycleError) -> bool:
    """Whether asking again would not help."""
    return isinstance(error, (NotFound, CorruptFormat)) or type(error) is StoreError
