"""The tracker of a broker that merges buckets as brokers 4.0.7 do: in steps, between any two of which it may die.

Belongs here: the steps, and what such a merge loses. Not here: when a step is done (``delayed_brokers.py``).
Upstream: ``BucketDelayedDeliveryTracker.asyncMergeBucketSnapshot``, ``ImmutableBucket.asyncDeleteBucketSnapshot``,
pulsar-broker 4.0.7. The merged snapshot is written, then its key stored beside the old ones; then each old snapshot
goes, and after it its key. It has no segment that was loaded (apache/pulsar#26251): while the broker runs, its memory
has those. Where few buckets, or one with a last segment, are to be merged, upstream throws an exception instead, out of
the call that added a message: that one and those after it are not tracked.
"""

from __future__ import annotations

from collections import deque
from random import Random

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.tracking.buckets import Bucket, held
from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet
from pulsar_lifecycle.delayed_index.tracking.merging import MergeRule, choose
from pulsar_lifecycle.delayed_index.tracking.sealing import seal
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.delayed_indexes import Indexes
from tests.simulation.world.delayed.stored_buckets import Place, StoredBuckets

AT_ONCE = 4
"""Upstream's ``MAX_MERGE_NUM``."""


class MergeThrewError(Exception):
    """As upstream's IllegalArgumentException and IndexOutOfBoundsException."""


class Merge:
    """What is left to do of a merge, once its snapshot is written."""

    def __init__(self, stored: StoredBuckets, key: str, old: list[Bucket]) -> None:
        self.stored, self.key = stored, key
        self.named = False
        self.old = deque((one.key, one.bucket_id) for one in old)
        self.gone = False
        """Whether the snapshot of the first of ``old`` has been deleted."""

    @property
    def ended(self) -> bool:
        """Whether nothing is left to do."""
        return self.named and not self.old

    def step(self, random: Random) -> str:
        """Do what comes next."""
        if not self.named:
            self.named = True
            if not self.stored.name_begun(self.key):
                self.old.clear()
            return f"names {self.key}"
        key, bucket_id = self.old[0]
        if self.gone:
            self.old.popleft()
            self.gone = False
            self.stored.remove(key)
            return f"takes {key} away"
        if random.random() < 0.1:  # no try succeeds: the key stays, too
            self.old.popleft()
            return f"cannot delete snapshot {bucket_id}"
        self.stored.delete_named(bucket_id)
        self.gone = True
        return f"deletes snapshot {bucket_id}"


class MergingTracker(BucketTracker):
    """As the one that it is made of, but for merging; ``lost``: what each merged snapshot lacks, by its ledger.

    ``throws``: whether merges throw exceptions as upstream's do.
    """

    def __init__(
        self,
        settings: DelayedIndexSettings,
        stored: StoredBuckets,
        now_ms: int,
        lost: dict[int, frozenset[Place]],
        *,
        throws: bool = False,
    ) -> None:
        self.stored, self.lost, self.throws = stored, lost, throws
        self.merge: Merge | None = None
        super().__init__(settings, stored, stored, str(stored.topic.name), stored.name, now_ms)

    def step(self, random: Random) -> str:
        """The next step of the merge that is under way; empty if none is."""
        if self.merge is None:
            return ""
        done = self.merge.step(random)
        if self.merge.ended:
            self.merge = None
        return done

    def get_scheduled_messages(self, max_messages: int, now_ms: int) -> Indexes:
        """Upstream waits for a snapshot whose next segment it needs."""
        if self.merge and not self.merge.named:
            self.merge.step(Random(0))
        return super().get_scheduled_messages(max_messages, now_ms)

    def _merge(self) -> None:
        if self.throws:
            self._throw()
        chosen = list(choose(self._buckets.in_order(), MergeRule.BROKER_4_0_7)) if self.merge is None else []
        try:
            parts = [self._remaining(bucket) for bucket in chosen]
        except LifecycleError:
            return
        remaining = Indexes.concatenate(parts)
        if not len(remaining):
            return
        step, most = self._settings.time_step_ms, self._settings.max_indexes_per_segment
        snapshot = seal(remaining, step, most, chosen[0].start_ledger_id, chosen[-1].end_ledger_id)
        bucket_id = self.stored.begin(snapshot.key, snapshot.entries)
        loaded = self._shared.select(lambda part: held(chosen, part))
        undelivered = EntrySet()
        missing = {(ledger, entry) for _, ledger, entry in loaded.triples()}
        for bucket in chosen:
            missing |= self.lost.get(bucket.bucket_id, frozenset())
            undelivered.update(bucket.undelivered)
            self._buckets.remove(bucket)
        self._use(snapshot, bucket_id, undelivered)
        merged = self._buckets.covering(snapshot.start_ledger_id)
        assert merged is not None
        merged.messages = len(undelivered)
        self.lost[bucket_id] = frozenset(missing)
        self.merge = Merge(self.stored, snapshot.key, chosen)

    def _throw(self) -> None:
        buckets = self._buckets.in_order()
        if len(buckets) <= AT_ONCE:
            raise MergeThrewError(f"{AT_ONCE} of {len(buckets)} buckets")
        for at in range(len(buckets) - AT_ONCE + 1):
            window = buckets[at : at + AT_ONCE]
            if all(one.loaded < one.segments for one in window) and any(
                one.loaded + 1 == one.segments for one in window
            ):
                raise MergeThrewError("a bucket has a single segment left")
