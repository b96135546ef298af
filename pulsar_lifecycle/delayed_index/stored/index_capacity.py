"""What a topic's delayed messages take: in brokers' memory and in snapshots, an index for each subscription or one.

Belongs here: building the index by the broker's settings, without storing it, and what it takes. Pure. Not here: where
subscriptions stand and what is delayed (``subscription.py``).
Upstream: PIP-195 and its ``delayedDeliverySharedIndexEnabled``, which no broker has built: what it would save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.stored.subscription import (
    Places,
    StoredSubscription,
    TopicEntries,
    acknowledged,
    outstanding,
)
from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet
from pulsar_lifecycle.delayed_index.tracking.shared import AcknowledgedMessages, SharedIndex
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.formats.delayed_indexes import Indexes


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes of an index in a broker's memory, and of its snapshots."""

    memory: int
    stored: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a topic's index takes: one for each of its ``subscriptions``, and one for all of them."""

    subscriptions: int
    messages: int
    """Delayed ones that are not due, each as often as a subscription waits for it."""
    each: Taken
    shared: Taken


def capacity(
    subscriptions: Sequence[StoredSubscription], entries: TopicEntries, settings: DelayedIndexSettings, now: int
) -> Capacity:
    """As brokers with ``settings`` would have it at ``now`` (ms), had they just read the topic."""
    waiting: dict[str, Indexes] = {}
    for one in subscriptions:
        some = outstanding(one, entries)
        waiting[one.cursor] = some[some.timestamps > now]
    found = [
        taken(replace(settings, delayed_delivery_shared_index_enabled=shared), subscriptions, entries, waiting, now)
        for shared in (False, True)
    ]
    return Capacity(len(subscriptions), sum(map(len, waiting.values())), *found)


def taken(
    settings: DelayedIndexSettings,
    subscriptions: Sequence[StoredSubscription],
    entries: TopicEntries,
    waiting: Mapping[str, Indexes],
    now: int,
) -> Taken:
    """What the index takes that ``delayed_delivery_shared_index_enabled`` asks for; ``waiting`` by subscription."""
    storage = _Counted()
    if not settings.delayed_delivery_shared_index_enabled:
        trackers = [BucketTracker(settings, storage, storage, "", one.cursor, now) for one in subscriptions]
        for one, tracker in zip(subscriptions, trackers, strict=True):
            some = waiting[one.cursor].in_log_order()
            tracker.add_messages(some.ledgers, some.entries, some.timestamps, now)
        return Taken(sum(tracker.nbytes for tracker in trackers), storage.size)
    views = {one.cursor: _acknowledged(one, entries.delayed) for one in subscriptions}
    index = SharedIndex(BucketTracker(settings, storage, storage, "", "", now), views)
    for one in sorted(subscriptions, key=lambda one: one.position):  # the slowest first: it has the oldest messages
        some = waiting[one.cursor].in_log_order()
        index.add_messages(one.cursor, some.ledgers, some.entries, some.timestamps, now)
    return Taken(index.nbytes, storage.size)


def _acknowledged(one: StoredSubscription, delayed: Indexes) -> AcknowledgedMessages:
    """What it acknowledged, as far as delayed messages go."""
    places = Places(delayed)
    of = places.of(delayed.ledgers, delayed.entries)
    which = acknowledged(one, places, of) & (of > places.up_to(one.position))
    individually = EntrySet()
    individually.add(delayed.ledgers[which], delayed.entries[which])
    return AcknowledgedMessages(one.position, individually)


class _Counted:
    """Counts the bytes of snapshots and keeps none: both a ``BucketSnapshotStorage`` and ``BucketKeys``."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._deleted: set[int] = set()

    @property
    def size(self) -> int:
        """Of all snapshots that were not deleted."""
        return sum(size for bucket_id, size in enumerate(self._sizes) if bucket_id not in self._deleted)

    def create_bucket_snapshot(self, entries: Sequence[bytes], bucket_key: str, topic: str, cursor: str) -> int:
        self._sizes.append(sum(map(len, entries)))
        return len(self._sizes) - 1

    def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        raise NotFound(f"bucket {bucket_id}: only its size is kept")

    def get_bucket_snapshot_segments(
        self, bucket_id: int, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> list[bytes]:
        raise NotFound(f"bucket {bucket_id}: only its size is kept")

    def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        return self._sizes[bucket_id]

    def delete_bucket_snapshot(self, bucket_id: int) -> None:
        self._deleted.add(bucket_id)

    def start(self) -> None: ...

    def close(self) -> None: ...

    def read(self) -> Mapping[str, int]:
        return {}

    def put(self, key: str, bucket_id: int) -> None: ...

    def remove(self, key: str) -> None: ...
