"""Which bookies a collection run makes collect, in which order, and when it stops.

Belongs here: the rules, as codes. Pure: what bookies said comes in. Not here: asking and telling them
(``lifecycle/collection_run.py``), why a disk is full (``lifecycle/bookie_disk.py``). Upstream:
``GarbageCollectorThread.runWithFlags`` and ``TriggerGCService``, bookkeeper-server 4.17: a forced collection takes
deleted ledgers out of the index, deletes entry logs without live bytes, then compacts those below its threshold. It
does so though compaction is suspended; nothing stops one that runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from pulsar_lifecycle.lifecycle.bookie_disk import BookieDisk, DiskVerdict, fullest, number
from pulsar_lifecycle.ports import BookieStatus


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


@dataclass(frozen=True, slots=True)
class PlannedCollection:
    """One bookie of a plan; ``bytes`` are the most that it could free, None where that is not known."""

    bookie: str
    rack: str
    choice: CollectionChoice
    bytes: int | None
    verdict: DiskVerdict


def plan_collection(
    disks: Sequence[BookieDisk], racks: Mapping[str, str], default_rack: str, min_bytes: int
) -> list[PlannedCollection]:
    """Every bookie: those to collect first, rack by rack, the rack with the fullest disk first, so its bookies."""
    rows = [
        (_room(one), PlannedCollection(one.bookie, racks.get(one.bookie, default_rack), *_choice(one, min_bytes)))
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
    """The bookies to collect, so many at a time, never of two racks at once."""
    chosen = [row for row in plan if row.choice is CollectionChoice.COLLECT]
    found: list[list[str]] = []
    for _, rows in groupby(chosen, key=lambda row: row.rack):
        bookies = [row.bookie for row in rows]
        found += [bookies[at : at + at_once] for at in range(0, len(bookies), at_once)]
    return found


class StopReason(StrEnum):
    """Why a run makes no more bookies collect. What runs on a bookie by then goes on there."""

    BOOKIE_AWAY = "bookie_away"
    """A bookie that was registered when the run began is so no more."""
    BOOKIE_READ_ONLY = "bookie_read_only"
    """A bookie became read-only since the run began."""
    SLOW_ADDS = "slow_adds"
    """A collecting bookie's adds take longer than `collection.max_add_latency` (99th percentile)."""
    STALLED = "stalled"
    """A collecting bookie shows no progress for `collection.stalled_after`."""


def cluster_trouble(before: Mapping[str, bool], now: Mapping[str, bool]) -> tuple[StopReason, str] | None:
    """What went wrong with the registered bookies (id -> read-only) since the run began, and the bookie's id."""
    away = sorted(before.keys() - now.keys())
    if away:
        return StopReason.BOOKIE_AWAY, away[0]
    read_only = sorted(bookie for bookie, is_so in now.items() if is_so and not before.get(bookie, False))
    return (StopReason.BOOKIE_READ_ONLY, read_only[0]) if read_only else None


@dataclass(frozen=True, slots=True)
class Progress:
    """What changes while a bookie collects; as long as it stays equal, nothing is seen to move."""

    minors: tuple[int, ...]
    majors: tuple[int, ...]
    running: tuple[bool, ...]
    entry_logs: int
    live_bytes: int | None

    @classmethod
    def of(cls, said: BookieStatus) -> Progress:
        """As a bookie says it. Free bytes are not looked at: clients write all the time."""
        directories = said.directories
        return cls(
            tuple(one.minors for one in said.compactions),
            tuple(one.majors for one in said.compactions),
            tuple(one.running for one in said.compactions),
            said.entry_log_files,
            None if directories is None else sum(one.live_bytes for one in directories),
        )


def is_at_it(said: BookieStatus) -> bool:
    """Whether a bookie collects or compacts now."""
    return said.collecting or any(one.running for one in said.compactions)


def restarted(before: BookieStatus, now: BookieStatus) -> bool:
    """Whether a bookie was started anew between two answers: its counters begin at 0 then."""
    pairs = zip(before.compactions, now.compactions, strict=False)
    return any(then.minors > since.minors or then.majors > since.majors for then, since in pairs)


def still_to_free(said: BookieStatus, placed_bytes: int) -> int | None:
    """Bytes that a major compaction could free after a minor one, at most; None where the bookie does not say."""
    if said.directories is None:
        return None
    logs = sum(one.entry_logs for one in said.directories) * int(number(said, "logSizeLimit"))
    return max(0, min(logs, said.total - said.free) - placed_bytes)


def remedies(one: BookieDisk) -> list[str]:
    """Settings of ``bookkeeper.conf`` that keep a bookie from freeing its disks, and what to set instead."""
    said = one.said
    if said is None:
        return []
    found: list[str] = []
    allowed = said.configuration.get("forceAllowCompaction", "false") == "true"
    for kind in ("minor", "major"):
        off = number(said, f"{kind}CompactionThreshold") <= 0 or number(said, f"{kind}CompactionInterval") <= 0
        if off:
            also = "" if allowed else ", or forceAllowCompaction=true and collect_bookies"
            found.append(f"{kind} compaction is off: set {kind}CompactionThreshold and {kind}CompactionInterval{also}")
    full, limit = fullest(said) or 0.0, number(said, "diskUsageThreshold")
    if said.read_only and full >= limit:
        raised = min(0.99, max(full, limit) + 0.01)
        found.append(
            f"a disk is at {full:.1%}, above diskUsageThreshold={limit:g}, and a compaction needs room to write: set "
            f"diskUsageThreshold={raised:.2f} (and diskUsageWarnThreshold below it), restart the bookie, collect, then "
            "set both back"
        )
    if said.configuration.get("isThrottleByBytes", "false") != "true":
        found.append(
            "compaction is throttled by entries: with isThrottleByBytes=true and compactionRateByBytes it reads and "
            "writes so many bytes a second, whatever the size of entries"
        )
    return found


def _choice(one: BookieDisk, min_bytes: int) -> tuple[CollectionChoice, int | None, DiskVerdict]:
    if one.said is None or one.bytes_to_collect is None or one.bytes_to_compact is None:
        return CollectionChoice.UNKNOWN_DISK, None, one.verdict
    free = one.bytes_to_collect + one.bytes_to_compact
    if is_at_it(one.said):
        return CollectionChoice.AT_IT, free, one.verdict
    return CollectionChoice.COLLECT if free >= min_bytes else CollectionChoice.LITTLE_TO_FREE, free, one.verdict


def _room(one: BookieDisk) -> float:
    """The share that is free on its fullest disk."""
    used = fullest(one.said) if one.said else None
    return 1.0 - used if used is not None else 1.0
