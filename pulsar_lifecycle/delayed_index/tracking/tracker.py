"""The tracker of a subscription's delayed messages: which are delayed, and which are due.

Belongs here: adding, sealing, handing out, loading, merging. Not here: the bytes (:mod:`sealing`), what to merge
(:mod:`merging`), what to start from (:mod:`recovery`).
Upstream: ``BucketDelayedDeliveryTracker``, pulsar-broker 4.0.7, and PIP-195. It differs from upstream where that loses
or repeats a message, or stops:

- a merged bucket keeps the messages that were loaded and not handed out (apache/pulsar#26251);
- a snapshot that cannot be kept, read or deleted stops nothing else: see ``take_unread``, and :mod:`outside`;
- a message between the ledgers of the open bucket is added to it.

Times are ms. Nothing here waits or asks the time: the caller says when it is. Not safe for threads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.snapshot_storage import BucketKeys, BucketSnapshotStorage
from pulsar_lifecycle.delayed_index.tracking import merging
from pulsar_lifecycle.delayed_index.tracking.buckets import Ahead, Bucket, BucketMap, held
from pulsar_lifecycle.delayed_index.tracking.due_queue import LAST, Place, TimeQueue
from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet, Mask
from pulsar_lifecycle.delayed_index.tracking.merging import MergeRule
from pulsar_lifecycle.delayed_index.tracking.outside import Operation, Outside, State
from pulsar_lifecycle.delayed_index.tracking.recovery import Dropped, recover
from pulsar_lifecycle.delayed_index.tracking.sealing import Snapshot, seal
from pulsar_lifecycle.errors import CorruptFormat, NotFound, StoreError, Unavailable
from pulsar_lifecycle.formats.delayed_indexes import Indexes, Longs, decode_segments
from pulsar_lifecycle.formats.delayed_metadata import MAX_ENTRY_ID

_WINDOW = 1 << 16
"""So many messages are looked through at once for where a bucket is sealed."""
_NO_LEDGER = -1


class BucketTracker:
    """Delayed messages, each handed out once, when it is due."""

    def __init__(
        self,
        settings: DelayedIndexSettings,
        storage: BucketSnapshotStorage,
        keys: BucketKeys,
        topic: str,
        cursor: str,
        now_ms: int,
        merge_rule: MergeRule = MergeRule.PIP_195,
    ) -> None:
        """Starts from the buckets that ``keys`` name. ``topic`` is the full name, ``cursor`` the subscription's.

        A segment is taken up whole, with what was handed out of it before: leave out what is acknowledged, as upstream.
        Raises Unavailable, or StoreError, where the storage cannot be read: try again.
        """
        self._settings, self._merge_rule = settings, merge_rule
        self._outside = Outside(storage, keys, topic, cursor)
        self._shared = TimeQueue()
        self._buckets = BucketMap()
        self._open = TimeQueue()
        """The bucket that is being filled."""
        self._start = self._end = _NO_LEDGER
        """Its topic ledgers, inclusive."""
        self._tracked = EntrySet()
        """What no bucket's ``undelivered`` has: the open bucket's messages, and late ones of others' ledgers."""
        self._unread = EntrySet()
        self._handed_out: list[Indexes] = []
        """In the call under way, and still among what buckets have."""
        found = recover(keys.read(), storage, settings.cutoff(now_ms))
        for bucket, segment in found.buckets:
            self._buckets.put(bucket)
            self._shared.add(segment)
        for dropped in found.dropped:
            self._outside.unname(dropped.key)
            self._outside.delete(dropped.bucket_id)
        self.dropped: tuple[Dropped, ...] = found.dropped
        """Buckets that were named and are not used."""
        self._outside.make_pending()

    # ------------------------------------------------------------------------------------------------------- what is

    @property
    def number_of_delayed_messages(self) -> int:
        """All that are tracked."""
        return len(self._tracked) + sum(bucket.messages for bucket in self._buckets)

    @property
    def loaded(self) -> int:
        """Messages in memory with their times."""
        return len(self._shared) + len(self._open)

    @property
    def buckets(self) -> Sequence[Bucket]:
        """The sealed ones, by range; not to be changed."""
        return self._buckets.in_order()

    @property
    def pending(self) -> int:
        """Properties to write and snapshots to delete that failed: each call that changes something tries again."""
        return self._outside.pending

    @property
    def operations(self) -> dict[tuple[Operation, State], int]:
        """What was done with snapshots so far."""
        return dict(self._outside.operations)

    @property
    def nbytes(self) -> int:
        """Bytes of messages in memory: their times, and the bitmaps."""
        bitmaps = self._tracked.nbytes + sum(bucket.undelivered.nbytes for bucket in self._buckets)
        return self._shared.nbytes + self._open.nbytes + bitmaps

    def contains_message(self, ledger: int, entry: int) -> bool:
        """Whether it is tracked, so that the normal reading must not deliver it."""
        bitmap = self._tracked.bitmaps.get(ledger)  # a call costs more than all else here
        if bitmap is not None and entry in bitmap:
            return True
        bucket = self._buckets.covering(ledger)
        bitmap = None if bucket is None else bucket.undelivered.bitmaps.get(ledger)
        return bitmap is not None and entry in bitmap

    def contains_messages(self, ledgers: Longs, entries: Longs) -> Mask:
        """As :meth:`contains_message`, of many."""
        found = self._tracked.contains(ledgers, entries)
        for bucket, which in self._buckets.of_ledgers(ledgers):
            found[which] |= bucket.undelivered.contains(ledgers[which], entries[which])
        return found

    def next_delivery_time(self) -> int | None:
        """When the first message is due (ms); None if there is none."""
        times = [time for time in (self._shared.next_time(), self._open.next_time()) if time is not None]
        return min(times, default=None)

    def has_message_available(self, now_ms: int) -> bool:
        """Whether any is due."""
        first = self.next_delivery_time()
        return first is not None and first <= self._settings.cutoff(now_ms)

    # --------------------------------------------------------------------------------------------------------- adding

    def add_message(self, ledger: int, entry: int, deliver_at: int, now_ms: int) -> bool:
        """Whether it is tracked now; False where it is due: deliver it."""
        if self.contains_message(ledger, entry):
            return True
        if deliver_at <= self._settings.cutoff(now_ms):
            return False
        _check(ledger, entry, entry)
        covered = self._buckets.covering(ledger) is not None
        if not covered and ledger > self._end and (len(self._open) >= self._least or self._crosses(ledger)):
            self._seal()
            covered = self._buckets.covering(ledger) is not None  # what was merged may cover what lies between
        if covered or ledger < self._start:
            self._shared.add_one(deliver_at, ledger, entry)
        else:
            self._open.add_one(deliver_at, ledger, entry)
            self._start = ledger if self._start == _NO_LEDGER else self._start
            self._end = max(self._end, ledger)
        self._tracked.add_one(ledger, entry)
        return True

    def add_messages(self, ledgers: Longs, entries: Longs, deliver_at: Longs, now_ms: int) -> Mask:
        """As :meth:`add_message` for one after the other, at one time; all arrays of one length."""
        if _repeats(Indexes(deliver_at, ledgers, entries)):
            triples = zip(ledgers.tolist(), entries.tolist(), deliver_at.tolist(), strict=True)
            return np.array([self.add_message(*triple, now_ms) for triple in triples], np.bool_)
        known = self.contains_messages(ledgers, entries)
        new = ~known & (deliver_at > self._settings.cutoff(now_ms))
        if new.all() and len(new):
            self._add_new(Indexes(deliver_at, ledgers, entries))
        elif new.any():
            self._add_new(Indexes(deliver_at, ledgers, entries)[new])
        return known | new

    def _add_new(self, indexes: Indexes) -> None:
        _check(int(indexes.ledgers.min()), int(indexes.entries.min()), int(indexes.entries.max()))
        for begin in range(0, len(indexes), _WINDOW):
            rest = indexes[begin : begin + _WINDOW]
            while len(rest):
                taken, at_open = self._before_seal(rest.ledgers)
                self._put(rest[:taken], at_open)
                rest = rest[taken:]
                if len(rest):
                    self._seal()

    @property
    def _least(self) -> int:
        return max(self._settings.delayed_delivery_min_index_count_per_bucket, 1)

    def _before_seal(self, ledgers: Longs) -> tuple[int, Mask]:
        """How many messages come before the open bucket must be sealed, and which of them go into it."""
        firsts = np.concatenate(([0], np.flatnonzero(ledgers[1:] != ledgers[:-1]) + 1))
        counts = np.diff(firsts, append=len(ledgers))
        """Of messages that have one ledger and follow each other; only before the first of them anything is sealed."""
        runs = ledgers[firsts]
        uncovered = ~self._buckets.are_covered(runs)
        start = self._start
        if start == _NO_LEDGER and uncovered.any():
            start = int(runs[np.argmax(uncovered)])
        at_open = uncovered & (runs >= start)
        seals = np.zeros(len(runs), np.bool_)
        if len(self._open) + len(ledgers) > self._least:
            ends = np.maximum.accumulate(np.where(at_open, runs, _NO_LEDGER))
            before = np.maximum(np.concatenate(([_NO_LEDGER], ends[:-1])), self._end)
            opened = np.where(at_open, counts, 0)
            sizes = np.cumsum(opened) - opened + len(self._open)
            seals = uncovered & (runs > before) & (sizes >= self._least)
        after = self._buckets.first_after(start)
        if after is not None:
            seals |= uncovered & (runs > after.end_ledger_id)
        at = int(np.argmax(seals)) if seals.any() else len(runs)
        return int(counts[:at].sum()), np.repeat(at_open[:at], counts[:at])

    def _crosses(self, ledger: int) -> bool:
        """Whether the open bucket would overlap another if it went up to this ledger."""
        after = self._buckets.first_after(self._start)
        return self._start != _NO_LEDGER and after is not None and ledger > after.end_ledger_id

    def _put(self, indexes: Indexes, at_open: Mask) -> None:
        if not len(indexes):
            return
        opened = indexes if at_open.all() else indexes[at_open]
        if len(opened):
            self._open.add(opened)
            self._start = int(opened.ledgers[0]) if self._start == _NO_LEDGER else self._start
            self._end = max(self._end, int(opened.ledgers.max()))
        if len(opened) < len(indexes):
            self._shared.add(indexes[~at_open])
        self._tracked.add(indexes.ledgers, indexes.entries)

    # -------------------------------------------------------------------------------------------------------- sealing

    def _seal(self) -> None:
        """Make a bucket of the open one; where no snapshot can be kept, its messages stay in memory."""
        self._outside.make_pending()
        start, end, indexes = self._start, self._end, self._open.drain()
        self._start = self._end = _NO_LEDGER
        if not len(indexes):  # all were due, and went to the queue
            return
        settings = self._settings
        snapshot = seal(indexes, settings.time_step_ms, settings.max_indexes_per_segment, start, end)
        try:
            bucket_id = self._outside.create(snapshot.entries, snapshot.key)
        except (Unavailable, StoreError):
            self._shared.add(snapshot.indexes)
            return
        if len(self._tracked) == len(snapshot.indexes):
            undelivered, self._tracked = self._tracked, EntrySet()
        else:
            undelivered = EntrySet()
            undelivered.add(snapshot.indexes.ledgers, snapshot.indexes.entries)
            self._tracked.difference_update(undelivered)
        self._use(snapshot, bucket_id, undelivered)
        self._outside.name(snapshot.key, bucket_id)
        self._outside.make_pending()
        if 0 < self._settings.delayed_delivery_max_num_buckets < len(self._buckets):
            self._merge()

    def _use(self, snapshot: Snapshot, bucket_id: int, undelivered: EntrySet) -> None:
        first = snapshot.indexes[: int(snapshot.bounds[1])].copy()  # a slice would keep the whole bucket in memory
        self._shared.add(first)
        self._buckets.put(
            Bucket(
                snapshot.start_ledger_id,
                snapshot.end_ledger_id,
                bucket_id,
                undelivered,
                len(snapshot.indexes),
                tuple(snapshot.indexes.timestamps[snapshot.bounds[:-1]].tolist()),
                1,
                first.last_due(),
                sum(map(len, snapshot.entries)),
            )
        )

    def _merge(self) -> None:
        """One merge, if the rule finds any; where it fails, the buckets stay as they are."""
        chosen = list(merging.choose(self._buckets.in_order(), self._merge_rule))
        if not chosen:
            return
        operations = self._outside.operations
        operations[Operation.MERGE, State.ALL] += 1
        try:
            parts = [self._remaining(bucket) for bucket in chosen]
            parts.append(self._shared.select(lambda part: held(chosen, part)))
            merged = Indexes.concatenate(parts)
            step, most = self._settings.time_step_ms, self._settings.max_indexes_per_segment
            first, last = chosen[0].start_ledger_id, chosen[-1].end_ledger_id
            snapshot = seal(merged, step, most, first, last) if len(merged) else None
            bucket_id = self._outside.create(snapshot.entries, snapshot.key) if snapshot else None
        except (Unavailable, StoreError, CorruptFormat):
            operations[Operation.MERGE, State.FAILED] += 1
            return
        self._shared.remove(lambda part: held(chosen, part))
        undelivered = EntrySet()
        for bucket in chosen:
            undelivered.update(bucket.undelivered)
            self._buckets.remove(bucket)
            self._outside.unname(bucket.key)
        if snapshot is not None and bucket_id is not None:
            self._use(snapshot, bucket_id, undelivered)
            self._outside.name(snapshot.key, bucket_id)
        for bucket in chosen:
            self._outside.delete(bucket.bucket_id)
        self._outside.make_pending()
        operations[Operation.MERGE, State.SUCCEED] += 1

    def _remaining(self, bucket: Bucket) -> Indexes:
        """What was not loaded of a bucket; raises CorruptFormat, Unavailable or StoreError."""
        if bucket.loaded == bucket.segments:
            return Indexes.empty()
        indexes, _ = decode_segments(self._outside.load(bucket.bucket_id, bucket.loaded + 1, bucket.segments))
        return indexes[bucket.holds(indexes)]

    # -------------------------------------------------------------------------------------------------- handing out

    def get_scheduled_messages(self, max_messages: int, now_ms: int) -> Indexes:
        """Take out at most ``max_messages`` that are due, the earliest first.

        A bucket's next segment is loaded before the last message of the one before goes; where that fails, this and
        everything after it waits for another call.
        """
        self._outside.make_pending()
        cutoff = self._settings.cutoff(now_ms)
        everything = (cutoff, LAST, LAST)
        self._shared.add(self._open.pop(len(self._open), everything))
        self._load_due(cutoff, max_messages)
        parts: list[Indexes] = []
        left = max_messages
        while left > 0:
            bucket = self._buckets.next_needed()
            if bucket is None or bucket.last_loaded[0] > cutoff:
                parts.append(self._hand_out(left, everything))
                break
            time, ledger, entry = bucket.last_loaded
            parts.append(self._hand_out(left, (time, ledger, entry - 1)))
            left -= len(parts[-1])
            if left > 0 and not self._load_next(bucket):
                break
        self._forget()
        self._outside.make_pending()
        return Indexes.concatenate(parts)

    def _hand_out(self, limit: int, until: Place) -> Indexes:
        part = self._shared.pop(limit, until)
        self._handed_out.append(part)
        return part

    def _load_due(self, cutoff: int, limit: int) -> None:
        """Load what the first ``limit`` messages that are due may be in: many segments of a bucket at a time."""
        while True:
            waiting = [one for one in self._buckets if one.next_time is not None and one.next_time <= cutoff]
            if not waiting:
                return
            ahead = Ahead(waiting, cutoff)
            if self._shared.due(ahead.first - 1) >= limit:
                return
            until = ahead.enough(limit, self._shared.due)
            wanted = [(one, bisect_right(one.first_times, until) - one.loaded) for one in waiting]
            wanted = [(bucket, count) for bucket, count in wanted if count > 0]  # none where times are damaged
            if not wanted or not all(self._load_next(bucket, count) for bucket, count in wanted):
                return

    def _load_next(self, bucket: Bucket, count: int = 1) -> bool:
        """Bring a bucket's next segments into the queue, or drop it after its last; False where that has to wait."""
        while bucket.loaded < bucket.segments:
            last = min(bucket.loaded + count, bucket.segments)
            try:
                segments, _ = decode_segments(self._outside.load(bucket.bucket_id, bucket.loaded + 1, last))
            except (NotFound, CorruptFormat):
                if last == bucket.loaded + 1:
                    break
                count = 1
                continue
            except (Unavailable, StoreError):
                return False
            bucket.loaded = last
            segments = segments[bucket.holds(segments)]
            if len(segments):
                self._shared.add(segments)
                bucket.last_loaded = segments.last_due()
                return True
        self._drop(bucket)
        return True

    def _drop(self, bucket: Bucket) -> None:
        """Delete a bucket. What it should have and no segment had is unread; what is in the queue stays."""
        self._forget()
        if bucket.messages == 1 and bucket.last_loaded[1:] in bucket.undelivered:  # which is about to go
            self._tracked.add_one(*bucket.last_loaded[1:])
        else:
            queued = self._shared.select(bucket.holds)
            in_queue = EntrySet()
            in_queue.add(queued.ledgers, queued.entries)
            bucket.undelivered.difference_update(in_queue)
            self._unread.update(bucket.undelivered)
            self._tracked.update(in_queue)
        self._delete(bucket)

    def _forget(self) -> None:
        """What was handed out is tracked no more."""
        indexes, self._handed_out = Indexes.concatenate(self._handed_out), []
        if not len(indexes):
            return
        rest = indexes[~self._tracked.discard(indexes.ledgers, indexes.entries)]
        for bucket, which in self._buckets.of_ledgers(rest.ledgers):
            bucket.undelivered.discard(rest.ledgers[which], rest.entries[which])
            bucket.messages = len(bucket.undelivered)  # a damaged snapshot may have had some twice

    def take_unread(self) -> EntrySet:
        """Messages of snapshots that broke, each told once: they are tracked no more. Read them again and add them."""
        found, self._unread = self._unread, EntrySet()
        return found

    def clear(self) -> None:
        """Forget all messages, and delete all buckets."""
        for bucket in list(self._buckets):
            self._delete(bucket)
        self._shared, self._open = TimeQueue(), TimeQueue()
        self._tracked, self._unread = EntrySet(), EntrySet()
        self._start = self._end = _NO_LEDGER
        self._outside.make_pending()

    def forget_before(self, ledger: int) -> None:
        """Delete the buckets that end before this topic ledger, with their messages: nobody needs these any more."""
        passed = [bucket for bucket in self._buckets if bucket.end_ledger_id < ledger]
        if passed:
            self._shared.remove(lambda part: held(passed, part))
            for bucket in passed:
                self._delete(bucket)
            self._outside.make_pending()

    def _delete(self, bucket: Bucket) -> None:
        self._buckets.remove(bucket)
        self._outside.unname(bucket.key)
        self._outside.delete(bucket.bucket_id)


def _repeats(indexes: Indexes) -> bool:
    """Whether a message comes twice."""
    log = indexes.in_log_order()
    return bool(((log.ledgers[1:] == log.ledgers[:-1]) & (log.entries[1:] == log.entries[:-1])).any())


def _check(ledger: int, first_entry: int, last_entry: int) -> None:
    if ledger < 0 or first_entry < 0 or last_entry > MAX_ENTRY_ID:
        raise ValueError(f"ledger {ledger}, entries {first_entry} to {last_entry}: below 0, or beyond {MAX_ENTRY_ID}")
