"""What a bookie says of itself over its HTTP admin API and in its metrics, of BookKeeper 4.17.

Belongs here: the values, and making them of an answer's JSON and of samples of metrics (``GarbageCollectorStats``,
``LedgerDirsMonitor``). Not here: asking a bookie (``io/bookkeeper/bookie_admin.py``), what follows from its answer
(``lifecycle/bookies/bookie_disk.py``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class LedgerDirectory:
    """A ledger directory of a bookie, as its metrics tell.

    All is as of the last collection: ``entry_logs`` that are written to no more, ``live_bytes`` in them of ledgers that
    existed then, and the ``ledgers`` of the index. ``usage``: share of its disk in use now, 0 to 1; None where the
    bookie does not say. ``collected``: whether there was a collection since the bookie's start; before it all those
    are 0. ``collections``: how many ended well since its start, None where no metric counts them. Source:
    ``GarbageCollectorThread``: ``doGcEntryLogs`` adds up remaining sizes, ``runWithFlags`` counts at its end.
    """

    path: str
    entry_logs: int
    live_bytes: int
    ledgers: int
    usage: float | None = None
    collected: bool = True
    collections: int | None = None


@dataclass(frozen=True, slots=True)
class Compaction:
    """What garbage collection of one ledger directory does and did (``gc_details``). Times in ms."""

    forced: bool
    minor: bool
    major: bool
    last_minor: int
    last_major: int
    minors: int
    majors: int

    @property
    def running(self) -> bool:
        """Whether it collects or compacts now."""
        return self.forced or self.minor or self.major


@dataclass(frozen=True, slots=True)
class BookieStatus:
    """What a bookie says of itself. ``total`` and ``free``: bytes of all its ledger disks.

    ``minor_suspended`` and ``major_suspended``: compaction was suspended, over the API or by the bookie itself where a
    disk is full; by whom, nothing says. ``directories`` is None where the bookie has no Prometheus metrics.
    ``entry_log_ids``: of all, those being written too; how large one is, and which is being compacted, BookKeeper 4.17
    says nowhere.
    ``configuration`` has only what is set, as text, passwords too.
    ``add_latency_ms``: the 99th percentile of adds, None where there were none of late.
    """

    bookie: str
    read_only: bool
    total: int
    free: int
    minor_suspended: bool
    major_suspended: bool
    collecting: bool
    compactions: tuple[Compaction, ...]
    entry_log_ids: tuple[int, ...]
    directories: tuple[LedgerDirectory, ...] | None
    add_latency_ms: float | None
    configuration: Mapping[str, str] = field(repr=False)

    @property
    def entry_log_files(self) -> int:
        """How many entry logs there are."""
        return len(self.entry_log_ids)

    @property
    def collected(self) -> bool:
        """Whether all its ledger directories say what their entry logs held at a collection."""
        return self.directories is not None and all(one.collected for one in self.directories)


def directories_and_latency(
    samples: Iterable[tuple[str, Mapping[str, str], float]],
) -> tuple[tuple[LedgerDirectory, ...] | None, float | None]:
    """Of samples (name, labels, value): ledger directories, None without any, and the 99th percentile of adds (ms)."""
    active: dict[str, dict[str, int]] = {}
    runs: dict[str, int] = {}
    usage: dict[str, float] = {}
    latency: float | None = None
    for name, labels, value in samples:
        path = labels.get("ledgerDir", "").removesuffix("/current")
        if name.startswith("bookie_ACTIVE_") and path:
            active.setdefault(path, {})[name.removeprefix("bookie_ACTIVE_")] = int(value)
        elif name == "bookie_THREAD_RUNTIME_count" and path and labels.get("success") == "true":
            runs[path] = int(value)  # of GarbageCollectorThread
        elif name.startswith("bookie_ledger_dir_") and name.endswith("_usage"):
            usage[name.removeprefix("bookie_ledger_dir_").removesuffix("_usage")] = value / 100
        elif name == "bookie_BOOKIE_ADD_ENTRY" and labels.get("success") == "true" and labels.get("quantile") == "0.99":
            latency = None if math.isnan(value) else value
    if not active:
        return None, latency
    found = [
        LedgerDirectory(
            path,
            values["ENTRY_LOG_TOTAL"],
            values["ENTRY_LOG_SPACE_BYTES"],
            values["LEDGER_TOTAL"],
            usage.get(re.sub(r"[^A-Za-z0-9_]", "_", path)),
            # its first collection counts ledgers before it has read what its entry logs hold
            any((runs.get(path, 1), values["ENTRY_LOG_TOTAL"], values["ENTRY_LOG_SPACE_BYTES"])),
            runs.get(path),
        )
        for path, values in sorted(active.items())
    ]
    return tuple(found), latency


def compaction(row: Mapping[str, Any]) -> Compaction:
    """One of ``gc_details``. Raises KeyError, TypeError, ValueError for another shape."""
    return Compaction(
        forced=flag(row["forceCompacting"]),
        minor=flag(row["minorCompacting"]),
        major=flag(row["majorCompacting"]),
        last_minor=int(row["lastMinorCompactionTime"]),
        last_major=int(row["lastMajorCompactionTime"]),
        minors=int(row["minorCompactionCounter"]),
        majors=int(row["majorCompactionCounter"]),
    )


def flag(value: object) -> bool:
    """A boolean, which some answers write as text. Raises ValueError for anything else."""
    if value not in (True, False, "true", "false"):
        raise ValueError(f"expected true or false, found {value!r}")
    return value in (True, "true")
