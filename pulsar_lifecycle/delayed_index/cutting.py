"""Where the segments of a bucket begin and end.

Belongs here: the rule, over due times that ascend. Not here: bytes (``formats``).
Upstream: ``MutableBucket.createImmutableBucketAndAsyncPersistent``, pulsar-broker 4.0.7; the PIP's time step and count.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from pulsar_lifecycle.formats.delayed_indexes import Longs

NO_LIMIT = -1
"""Of ``delayedDeliveryMaxIndexesPerBucketSnapshotSegment``: a segment may hold any number."""


def cut(timestamps: Longs, time_step_ms: int, max_indexes: int = NO_LIMIT) -> Longs:
    """The bounds of the segments: segment i is [bounds[i], bounds[i + 1]).

    ``timestamps`` ascend. A segment ends before the first message that is due ``time_step_ms`` or more after its first,
    and once it holds ``max_indexes``; messages due at one time may be in two segments.
    """
    if time_step_ms < 1 or (max_indexes < 1 and max_indexes != NO_LIMIT):
        raise ValueError(f"segments of {time_step_ms} ms and {max_indexes} indexes")
    bounds, size = [0], len(timestamps)
    times = timestamps.data  # gives a number several times as fast as the array does
    most = size if max_indexes == NO_LIMIT else max_indexes
    begin, last = 0, 0
    while begin < size:
        after, end = times[begin] + time_step_ms, min(begin + most, size)
        near = begin + 2 * last  # segments are often about as long as the one before
        if begin < near < end and times[near] >= after:
            end = near
        begin, last = bisect_left(times, after, begin, end), begin
        last = begin - last
        bounds.append(begin)
    return np.array(bounds, np.int64)
