"""Which buckets are merged when there are too many.

Belongs here: the proposal's rule, and the broker's. Not here: merging (:mod:`tracker`).
Upstream: PIP-195, "Merge delayed message index buckets"; ``BucketDelayedDeliveryTracker.selectMergedBuckets``,
pulsar-broker 4.0.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pulsar_lifecycle.delayed_index.tracking.buckets import Bucket

_NEVER = (1 << 63) - 1


class MergeRule(StrEnum):
    """How many neighbours go together."""

    PIP_195 = "pip-195"
    """The two adjacent buckets that have the fewest messages."""
    BROKER_4_0_7 = "broker-4.0.7"
    """The four adjacent buckets that have the fewest messages, or three, or two, of those not yet loaded whole.

    As the broker means it, and without what goes wrong there: it throws an exception where there are no more buckets
    than it would merge, or one has a single segment left; and passes over fewer messages if they are due later.
    """


def choose(buckets: Sequence[Bucket], rule: MergeRule) -> Sequence[Bucket]:
    """The buckets to merge, out of all in order of their ranges; none where the rule finds none.

    Of windows with equally many messages the one goes whose next segment is due first, then the first one.
    """
    sizes = (2,) if rule is MergeRule.PIP_195 else (4, 3, 2)
    for size in sizes:
        windows = [buckets[at : at + size] for at in range(len(buckets) - size + 1)]
        if rule is MergeRule.BROKER_4_0_7:
            windows = [window for window in windows if all(one.loaded < one.segments for one in window)]
        if windows:
            return min(windows, key=_rank)
    return []


def _rank(window: Sequence[Bucket]) -> tuple[int, int]:
    """How many messages, and when a segment is needed next."""
    times = [one.next_time for one in window]
    return sum(one.messages for one in window), min(_NEVER if time is None else time for time in times)
