"""Taking up the buckets that a cursor names: what a tracker starts from.

Belongs here: reading the snapshots' first entries, and which buckets are of no use. Not here: checking them against the
topic's entries.
Upstream: ``BucketDelayedDeliveryTracker.recoverBucketSnapshot``, pulsar-broker 4.0.7. There one snapshot that cannot be
read sends the whole subscription back to the tracker in memory, and buckets that overlap lose messages. Here only that
bucket goes. Nothing is lost by it: everything after the mark-delete position is read again, and what no bucket has is
added again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pulsar_lifecycle.delayed_index.keys import parse_bucket_key
from pulsar_lifecycle.delayed_index.snapshot_storage import BucketSnapshotStorage
from pulsar_lifecycle.delayed_index.tracking.buckets import Bucket
from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet
from pulsar_lifecycle.errors import CorruptFormat, NotFound
from pulsar_lifecycle.formats.delayed_indexes import Indexes, decode_segment
from pulsar_lifecycle.formats.delayed_table import decode_whole


class DroppedReason(StrEnum):
    """Why a bucket that a cursor names is not used."""

    PASSED = "passed"
    """Every message of it is due: the normal reading delivers them."""
    NOT_FOUND = "not-found"
    """There is no such snapshot."""
    CORRUPT = "corrupt"
    """Its entries cannot be read."""
    OVERLAPPING = "overlapping"
    """Its range overlaps that of another bucket, which encloses it or begins before it."""
    BAD_KEY = "bad-key"
    """The property names no range of ledgers."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A bucket that is not used: key and snapshot are deleted."""

    key: str
    bucket_id: int
    reason: DroppedReason


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a tracker starts from: buckets, each with its first segment that is not passed; and what is dropped."""

    buckets: tuple[tuple[Bucket, Indexes], ...]
    dropped: tuple[Dropped, ...]


def recover(keys: Mapping[str, int], storage: BucketSnapshotStorage, cutoff_ms: int) -> Recovered:
    """Reads entry 0 and one segment of each bucket. Raises Unavailable, or StoreError but NotFound, if that fails."""
    dropped: list[Dropped] = []
    ranges: list[tuple[int, int, str, int]] = []
    for key, bucket_id in keys.items():
        try:
            ranges.append((*parse_bucket_key(key), key, bucket_id))
        except ValueError:
            dropped.append(Dropped(key, bucket_id, DroppedReason.BAD_KEY))
    buckets: list[tuple[Bucket, Indexes]] = []
    last = -1
    for start, end, key, bucket_id in sorted(ranges, key=lambda one: (one[0], -one[1])):
        if start <= last:
            dropped.append(Dropped(key, bucket_id, DroppedReason.OVERLAPPING))
            continue
        found = _take_up(start, end, bucket_id, storage, cutoff_ms)
        if isinstance(found, DroppedReason):
            dropped.append(Dropped(key, bucket_id, found))
            continue
        buckets.append(found)
        last = end
    return Recovered(tuple(buckets), tuple(dropped))


def _take_up(
    start: int, end: int, bucket_id: int, storage: BucketSnapshotStorage, cutoff_ms: int
) -> tuple[Bucket, Indexes] | DroppedReason:
    try:
        table = decode_whole(storage.get_bucket_snapshot_metadata(bucket_id), cutoff_ms)
        first = table.passed + 1
        if table.passed == len(table.maximums):
            return DroppedReason.PASSED
        (data,) = storage.get_bucket_snapshot_segments(bucket_id, first, first)
        segment = decode_segment(data)
        length = storage.get_bucket_snapshot_length(bucket_id)
    except NotFound:
        return DroppedReason.NOT_FOUND
    except CorruptFormat:
        return DroppedReason.CORRUPT
    undelivered = EntrySet(table.bitmaps)
    if not len(segment) or min(undelivered.bitmaps, default=-1) < start or max(undelivered.bitmaps) > end:
        return DroppedReason.CORRUPT
    messages = len(undelivered)
    bucket = Bucket(start, end, bucket_id, undelivered, messages, table.minimums, first, segment.last_due(), length)
    segment = segment[bucket.holds(segment)]
    if not len(segment):
        return DroppedReason.CORRUPT
    bucket.last_loaded = segment.last_due()
    return bucket, segment
