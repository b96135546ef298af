"""Which bookies a collection run makes collect, in which order, and when it stops.

Belongs here: the rules, as codes. What bookies said comes in. Not here: asking and telling bookies
(``collection_run.py``), why a disk is full (``bookie_disk.py``).

A forced collection takes deleted ledgers out of the index, deletes entry logs without live bytes, then compacts those
below its threshold. It does so though compaction is suspended; nothing stops one that runs. Upstream:
``GarbageCollectorThread.runWithFlags`` and ``TriggerGCService``, bookkeeper-server 4.17.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from pulsar_lifecycle.formats.bookie_racks import DEFAULT_RACK
from pulsar_lifecycle.formats.bookie_status import BookieStatus
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import (
    BookieDisk,
    DiskVerdict,
    configured,
    fullest,
    largest_log,
    number,
    to_compact,
    waits_for,
)
from pulsar_lifecycle.values.codes import Why


class CollectionChoice(StrEnum):
    """What a plan does with a bookie."""

    COLLECT = "collect"
    """It is made to collect."""
    LITTLE_TO_FREE = "little_to_free"
    """It could free less than `collection.min_bytes`."""
    UNKNOWN_DISK = "unknown_disk"
    """It did not say what its disks hold: column `verdict` says why. Nothing is guessed."""
    AT_IT = "at_it"
    """It collects or compacts already."""
    NOT_PLANNED = "not_planned"
    """It could free much, but the plan that the run applies has it not."""


@dataclass(frozen=True, slots=True)
class PlannedCollection:
    """One bookie of a plan; ``bytes``: about as many could it free, None where that is not known."""

    bookie: str
    rack: str
    choice: CollectionChoice
    bytes: int | None
    verdict: DiskVerdict


def plan_collection(disks: Sequence[BookieDisk], racks: Mapping[str, str], min_bytes: int) -> list[PlannedCollection]:
    """Every bookie: those to collect first, rack by rack, the rack with the fullest disk first, so its bookies."""
    rows = [
        (_room(one), PlannedCollection(one.bookie, racks.get(one.bookie, DEFAULT_RACK), *_choice(one, min_bytes)))
        for one in disks
    ]
    tightest: dict[str, float] = {}
    for room, row in rows:
        if row.choice is CollectionChoice.COLLECT:
            tightest[row.rack] = min(room, tightest.get(row.rack, 1.0))
    rows.sort(key=lambda pair: (
        pair[1].choice is not CollectionChoice.COLLECT, tightest.get(pair[1].rack, 1.0), pair[1].rack, pair[0],
        pair[1].bookie,
    ))  # fmt: skip
    return [row for _, row in rows]


def waves(plan: Sequence[PlannedCollection], at_once: int) -> list[list[str]]:
    """The bookies to collect, so many at a time, never of two racks at once.

    Those whose rack nobody knows one at a time: they may hold the same ledgers.
    """
    chosen = [row for row in plan if row.choice is CollectionChoice.COLLECT]
    found: list[list[str]] = []
    for rack, rows in groupby(chosen, key=lambda row: row.rack):
        bookies, some = [row.bookie for row in rows], 1 if rack == DEFAULT_RACK else at_once
        found += [bookies[at : at + some] for at in range(0, len(bookies), some)]
    return found


class StopReason(StrEnum):
    """Why a run tells no more bookies. What runs on a bookie by then goes on there."""

    BOOKIE_AWAY = "bookie_away"
    """A bookie that was registered when the run began is not registered any more."""
    BOOKIE_READ_ONLY = "bookie_read_only"
    """A bookie became read-only since the run began."""
    SLOW_ADDS = "slow_adds"
    """A collecting bookie's adds take longer than `collection.max_add_latency` (99th percentile)."""
    UNANSWERED = "unanswered"
    """ZooKeeper does not say which bookies are registered, or whether the run may go on."""
    PAUSED = "paused"
    """The pause z-node exists."""
    LEASE_LOST = "lease_lost"
    """Another run has the lease by now."""
    LEDGERS_DELETED = "ledgers_deleted"
    """A run may delete or restore ledgers now. The next bookie waits for its end; a major compaction is not begun."""
    STALLED = "stalled"
    """A collecting bookie shows no progress for `collection.stalled_after`."""


class CollectionEnd(StrEnum):
    """How a bookie's collection ended, where its outcome does not say it."""

    NOT_COMPACTED = "not_compacted"
    """Deleted ledgers were collected, and no compaction ran there."""
    NO_LOG_WENT = "no_log_went"
    """A major compaction ran, much is left, and every entry log is there still: it had no room to write, as on a full
    disk, or none was below its threshold. The bookie's own log says which."""
    MAJOR_UNKNOWN = "major_unknown"
    """Whether a major compaction would free much is not known: its metrics have no ledger directory any more."""
    BEGIN_UNKNOWN = "begin_unknown"
    """Whether it began what it was told to is not known."""
    UNCOUNTED = "uncounted"
    """It answered, and a ledger directory counts no collection since: a proxy answered, or the collection failed."""


def cluster_trouble(before: Mapping[str, bool], now: Mapping[str, bool]) -> Why | None:
    """What went wrong with the registered bookies (id -> read-only) since the run began."""
    away = sorted(before.keys() - now.keys())
    if away:
        return Why(StopReason.BOOKIE_AWAY, f"bookie {away[0]} is not registered any more")
    read_only = sorted(bookie for bookie, is_so in now.items() if is_so and not before.get(bookie, False))
    if not read_only:
        return None
    return Why(StopReason.BOOKIE_READ_ONLY, f"bookie {read_only[0]} has become read-only")


@dataclass(frozen=True, slots=True)
class Progress:
    """What changes while a bookie collects; as long as it stays equal, nothing is seen to move."""

    minors: tuple[int, ...]
    majors: tuple[int, ...]
    running: tuple[bool, ...]
    entry_logs: tuple[int, ...]
    live_bytes: int | None

    @classmethod
    def of(cls, status: BookieStatus) -> Progress:
        """As a bookie says it. Free bytes are not looked at: clients write all the time."""
        directories = status.directories
        return cls(
            tuple(one.minors for one in status.compactions),
            tuple(one.majors for one in status.compactions),
            tuple(one.running for one in status.compactions),
            status.entry_log_ids,
            None if directories is None else sum(one.live_bytes for one in directories),
        )


def standing_on(before: BookieStatus, now: BookieStatus) -> str:
    """Which entry logs a compaction may stand on that was begun after ``before``, in words.

    It deletes each log that it is through with, takes none that is being written, and begins with those that have the
    least live bytes. BookKeeper says of none how large or how live it is.
    """
    done = sorted(set(before.entry_log_ids) - set(now.entry_log_ids))
    left = [log for log in before.entry_log_ids[:-1] if log in set(now.entry_log_ids)]
    if not left:
        return ""
    which = f"entry log {left[0]:x}" if len(left) == 1 else f"one of entry logs {_logs(left)}"
    return f"It stands on {which}" + (f"; it is through with {_logs(done)}" if done else "")


def _logs(ids: Sequence[int]) -> str:
    """As their files are called, without the ending."""
    return ", ".join(f"{log:x}" for log in ids[:NAMED]) + (f" and {len(ids) - NAMED} more" if ids[NAMED:] else "")


NAMED = 10
"""Entry logs that a reason names."""


def counters(status: BookieStatus) -> list[tuple[int, int]]:
    """How many minor and major compactions each ledger directory has had since the bookie started."""
    return [(one.minors, one.majors) for one in status.compactions]


def compacted(told: BookieStatus, now: BookieStatus, *, major: bool) -> bool:
    """Whether a compaction of that kind ended since the answer ``told``."""
    pairs = zip(told.compactions, now.compactions, strict=False)
    return any(one.majors > then.majors if major else one.minors > then.minors for then, one in pairs)


def collected_since(told: BookieStatus, now: BookieStatus) -> bool | None:
    """Whether every ledger directory ended a collection well since the answer ``told``; None: no metric says so.

    A forced one is counted before the bookie says that it is through.
    """
    counts = [{one.path: one.collections for one in status.directories or ()} for status in (told, now)]
    if not counts[0] or counts[0].keys() != counts[1].keys():
        return None
    pairs = [(counts[0][path], counts[1][path]) for path in counts[0]]
    if any(count is None for pair in pairs for count in pair):
        return None
    return all((then or 0) < (count or 0) for then, count in pairs)


def in_gone_logs(before: BookieStatus, now: BookieStatus) -> int:
    """What the entry logs took, at most, that are gone since ``before``.

    Nothing else that a collection does frees much. A disk that others use, too, has more or less free by them.
    """
    gone = set(before.entry_log_ids) - set(now.entry_log_ids)
    return len(gone) * largest_log(before)


def is_at_it(status: BookieStatus) -> bool:
    """Whether a bookie collects or compacts now."""
    return status.collecting or any(one.running for one in status.compactions)


def restarted(first: BookieStatus, before: BookieStatus, now: BookieStatus) -> bool:
    """Whether a bookie was started anew since the answer ``first``, or since ``before``, a later one.

    Its counters begin at 0 then, and its times of compactions at its start: a compaction moves both
    (``GarbageCollectorThread``), so times that moved alone are those of another process.
    """
    pairs = zip(before.compactions, now.compactions, strict=False)
    if any(then.minors > since.minors or then.majors > since.majors for then, since in pairs):
        return True
    times = [[(one.last_minor, one.last_major) for one in status.compactions] for status in (first, now)]
    return counters(first) == counters(now) and times[0] != times[1] and not is_at_it(now)


def remedies(one: BookieDisk) -> list[str]:
    """Settings of a bookie that keep it from freeing its disks, and what to set instead."""
    status = one.status
    if status is None:
        return []
    found: list[str] = []
    for kind in ("minor", "major"):
        if number(status, f"{kind}CompactionThreshold") <= 0:
            found.append(f"{kind} compaction is off: set {kind}CompactionThreshold and {kind}CompactionInterval")
        elif number(status, f"{kind}CompactionInterval") <= 0 and configured(status, "forceAllowCompaction") != "true":
            found.append(
                f"{kind} compaction is off: set {kind}CompactionInterval, or forceAllowCompaction=true and launch"
            )
    found += _of_a_full_disk(status)
    if to_compact(status) and configured(status, "isThrottleByBytes") != "true":
        rate = int(number(status, "compactionRateByEntries"))
        found.append(
            f"compaction writes compactionRateByEntries={rate} entries a second, however small: isThrottleByBytes=true "
            "makes it compactionRateByBytes, whose default of 1000000 takes 18 minutes for a log of 1 GiB"
        )
    return found


def _of_a_full_disk(status: BookieStatus) -> list[str]:
    """What its fullest disk, and a suspended compaction, ask of an operator.

    Above a threshold the bookie suspends its own compactions, again at each look at the disk, and resumes them below
    (``LedgerDirsMonitor``). A forced one heeds neither: with ``DbLedgerStorage`` it writes as long as there is room.
    """
    found: list[str] = []
    full = fullest(status) or 0.0
    warn, limit = number(status, "diskUsageWarnThreshold"), number(status, "diskUsageThreshold")
    if full >= limit:
        told = (
            f"a disk is at {full:.1%}, above diskUsageThreshold={limit:g}: the bookie takes no entries, and its own "
            "compactions rest until it is below; a forced one does not, so collect, without any other setting"
        )
        raised = full + max(0.005, number(status, "journalMaxSizeMB") * (1 << 20) / max(1, status.total))
        if raised > MOST:
            more = (
                "There is hardly room for what it writes, nor for a restart: where it frees nothing, enlarge the disk, "
                "or delete more: entry logs go without a compaction once all in them is deleted"
            )
        else:
            more = (
                f"To take entries before, set diskUsageThreshold={raised:.3f} and restart the bookie, which writes the "
                "entries of its journal to that disk anew; set it back later"
            )
        found.append(f"{told}. {more}")
    elif full >= warn:
        found.append(
            f"a disk is at {full:.1%}, above diskUsageWarnThreshold={warn:g}: the bookie's own major compaction rests "
            "until it is below; a forced one does not"
        )
    if (status.minor_suspended and full < limit) or (status.major_suspended and full < warn):
        found.append(
            "compaction is suspended, by an operator, or as a disk was fuller: PUT "
            '/api/v1/bookie/gc/resume_compaction with {"resumeMajor": true, "resumeMinor": true}'
        )
    return found


MOST = 0.999
"""A ``diskUsageThreshold`` above it is of no use: what is left is no room."""


def _choice(one: BookieDisk, min_bytes: int) -> tuple[CollectionChoice, int | None, DiskVerdict]:
    """Open ledgers have no size in metadata; where their bytes may be those of deleted ones, a collection finds out.

    So it does where a bookie has not collected since its start: it could free at most what is not placed there.
    """
    if one.status is None or one.log_bytes is None:
        return CollectionChoice.UNKNOWN_DISK, None, one.verdict
    gone = waits_for(one, one.status)[0] in (DiskVerdict.WAITS_FOR_GC, DiskVerdict.MAY_WAIT_FOR_GC)
    free = to_compact(one.status) + (one.bytes_to_collect or 0 if gone else 0)
    if not one.status.collected:
        free = max(0, one.log_bytes - one.placed.bytes)
    if is_at_it(one.status):
        return CollectionChoice.AT_IT, free, one.verdict
    return CollectionChoice.COLLECT if free >= min_bytes else CollectionChoice.LITTLE_TO_FREE, free, one.verdict


def _room(one: BookieDisk) -> float:
    """The share that is free on its fullest disk."""
    used = fullest(one.status) if one.status else None
    return 1.0 - used if used is not None else 1.0
