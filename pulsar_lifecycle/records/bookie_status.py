"""What a bookie says of itself over its HTTP admin API and in its metrics, as values.

Not here: asking it (``ports.BookieAdmin``), what follows from its answer (``lifecycle/bookies/bookie_disk.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LedgerDirectory:
    """A ledger directory of a bookie, as its metrics tell.

    All is as of the last collection: ``entry_logs`` that are written to no more, ``live_bytes`` in them of ledgers that
    existed then, and the ``ledgers`` of the index. ``usage``: share of its disk in use now, 0 to 1; None where the
    bookie does not say. Source: ``GarbageCollectorThread.doGcEntryLogs``, which adds up remaining sizes.
    """

    path: str
    entry_logs: int
    live_bytes: int
    ledgers: int
    usage: float | None = None


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

    ``minor_suspended`` and ``major_suspended``: compaction was suspended over the API; a full disk suspends too, and
    nothing says so. ``directories`` is None where the bookie has no Prometheus metrics. ``entry_log_ids``: of all,
    those being written too; how large one is, and which is being compacted, BookKeeper 4.17 says nowhere.
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
