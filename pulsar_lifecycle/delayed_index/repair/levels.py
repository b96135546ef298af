"""Which repair a subscription's index needs, and what its buckets are to be: pure rules.

Belongs here: from findings to a level, from a level to buckets. Not here: writing snapshots (``repair_work.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.delayed_index.stored.index_findings import Found
from pulsar_lifecycle.delayed_index.stored.subscription import (
    StoredBucket,
    StoredSubscription,
    TopicEntries,
    before_buckets,
    outstanding,
)
from pulsar_lifecycle.delayed_index.tracking.sealing import Snapshot, seal
from pulsar_lifecycle.formats.delayed_indexes import Indexes, Longs


class RepairLevel(StrEnum):
    """What a repair does to the buckets of a subscription."""

    DELETE = "delete"
    """Buckets whose messages are all due leave the cursor."""
    DROP = "drop"
    """Buckets that no broker can recover leave the cursor, and those whose messages are all due: the broker that loads
    the topic reads their messages again. Where some of these wait before a bucket that stays, all are made anew."""
    MERGE = "merge"
    """Adjacent small buckets become one."""
    REBUILD = "rebuild"
    """All buckets are made anew, from the topic's entries."""


_REBUILT = frozenset(
    {
        IndexFinding.LOST,
        IndexFinding.MERGED_AND_LOST,
        IndexFinding.DUPLICATE,
        IndexFinding.WRONG_TIME,
        IndexFinding.POINTS_NOWHERE,
        IndexFinding.OUT_OF_RANGE,
        IndexFinding.OVERLAPPING_RANGES,
        IndexFinding.BITMAP_UNLIKE_SEGMENTS,
        IndexFinding.GAP,
    }
)
DROPPED = frozenset({IndexFinding.KEY_WITHOUT_LEDGER, IndexFinding.UNDECODABLE})
"""Findings for which a bucket is dropped."""


def level_of(
    codes: Collection[IndexFinding], small_buckets: int, merge_above: int, *, read_by_brokers: bool = False
) -> RepairLevel | None:
    """The repair that findings of one subscription ask for; None for none, or where something could not be read.

    ``small_buckets``: how many of its buckets a merge would take; it is merged if those are more than ``merge_above``.
    ``read_by_brokers``: brokers are known to use the tracker of buckets. Else a subscription without buckets gets none.
    """
    if IndexFinding.UNREAD in codes:
        return None
    if not _REBUILT.isdisjoint(codes):
        return RepairLevel.REBUILD
    if not DROPPED.isdisjoint(codes):
        return RepairLevel.DROP
    if read_by_brokers and IndexFinding.NO_BUCKETS in codes:
        return RepairLevel.REBUILD
    if small_buckets > merge_above > 0:
        return RepairLevel.MERGE
    return RepairLevel.DELETE if IndexFinding.PASSED in codes else None


@dataclass(frozen=True, slots=True, eq=False)
class Goal:
    """What the buckets of a subscription are to be: those that stay, by key, and new ones."""

    kept: tuple[StoredBucket, ...]
    new: tuple[Snapshot, ...]


def goal_of(
    level: RepairLevel,
    subscription: StoredSubscription,
    found: Sequence[Found],
    entries: TopicEntries,
    settings: DelayedIndexSettings,
    now: int,
) -> Goal:
    """The buckets after a repair.

    A rebuild takes the messages that are not due at ``now`` (ms): the broker reads all others anyway. No level leaves
    messages that wait in the range of no bucket and before one: the broker could seal them over it.
    """
    bad = {one.key for one in found if one.code in DROPPED}
    passed = {one.key for one in found if one.code is IndexFinding.PASSED}
    left = [bucket for bucket in subscription.buckets if bucket.key not in bad | passed]
    waiting, indexable = (outstanding(subscription, entries, indexable=some) for some in (False, True))
    ledgers = waiting.ledgers[waiting.timestamps > now]
    if level is RepairLevel.REBUILD or len(before_buckets(left, ledgers)[0]):
        return Goal((), tuple(rebuilt(indexable[indexable.timestamps > now], ledgers, settings)))
    if level is not RepairLevel.MERGE:
        return Goal(tuple(left), ())
    groups = mergeable(left, settings)
    merged = {bucket.key for group in groups for bucket in group}
    return Goal(
        tuple(bucket for bucket in left if bucket.key not in merged),
        tuple(_merged(group, settings) for group in groups),
    )


def rebuilt(waiting: Indexes, ledgers: Longs, settings: DelayedIndexSettings) -> list[Snapshot]:
    """Buckets of whole ledgers, each with as many messages as brokers seal one at; ranges never overlap.

    ``ledgers``, ascending, have messages that wait, those of ``waiting`` or others: up to the last bucket each of them
    is in the range of one.
    """
    if not len(waiting):
        return []
    log = waiting.in_log_order()
    starts = np.flatnonzero(np.diff(log.ledgers, prepend=log.ledgers[0] - 1))
    ends = [*starts[1:].tolist(), len(log)]
    made: list[Snapshot] = []
    first = begun = 0
    for end in ends:
        if end - first >= settings.delayed_delivery_min_index_count_per_bucket or end == len(log):
            start, last = int(ledgers[begun]), int(log.ledgers[end - 1])
            made.append(seal(log[first:end], settings.time_step_ms, settings.max_indexes_per_segment, start, last))
            first, begun = end, int(np.searchsorted(ledgers, last, "right"))
    return made


def mergeable(buckets: Sequence[StoredBucket], settings: DelayedIndexSettings) -> list[list[StoredBucket]]:
    """Runs of adjacent readable buckets that together have at most as many messages as brokers seal one at."""
    most = settings.delayed_delivery_min_index_count_per_bucket
    groups: list[list[StoredBucket]] = []
    group: list[StoredBucket] = []
    size = 0
    for bucket in sorted(buckets, key=lambda b: (b.start, b.end)):
        count = len(bucket.indexes)
        if bucket.table is None or size + count > most:
            groups.append(group)
            group, size = [], 0
        if bucket.table is not None:
            group.append(bucket)
            size += count
    return [one for one in [*groups, group] if len(one) > 1]


def _merged(group: Sequence[StoredBucket], settings: DelayedIndexSettings) -> Snapshot:
    whole = Indexes.concatenate([bucket.indexes for bucket in group])
    return seal(
        whole, settings.time_step_ms, settings.max_indexes_per_segment, group[0].start, max(b.end for b in group)
    )
