"""When a bookie's disks will take no more writes, from how full they were.

Belongs here: the rule. Pure. Not here: reading the tables of earlier scans (``disk_run.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import linear_regression

from pulsar_lifecycle.values.epoch import DAY_MS


@dataclass(frozen=True, slots=True)
class Filled:
    """How full a bookie's disks were at a time (ms), in bytes; ``newest_log``: its highest entry log, -1 for none."""

    at: int
    total: int
    free: int
    newest_log: int = -1

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self.total - self.free


SHORTEST_HISTORY_MS = DAY_MS
"""What less than a day shows says nothing of the days to come: bookies collect and brokers shift load within hours."""


def days_until_full(history: Sequence[Filled], now: int, full: float = 1.0) -> float | None:
    """Days from ``now`` (ms) until a share ``full`` of a bookie's disks is in use: by the line that fits best.

    ``history``: oldest first. What is in use counts, so that a larger disk is no turn. None where that does not grow,
    or too little is known since the bookie has these disks: one that was replaced begins its entry logs anew.
    """
    known = [one for one in history if one.at <= now and one.total > 0]
    known = known[_begin(known) :]
    if not known or known[-1].at - known[0].at < SHORTEST_HISTORY_MS:
        return None
    slope, _ = linear_regression([one.at / DAY_MS for one in known], [one.used for one in known])
    if slope <= 0:
        return None
    last = known[-1]
    return max(0.0, (last.total * full - last.used) / slope - (now - last.at) / DAY_MS)


def _begin(history: Sequence[Filled]) -> int:
    """The first that is of the disks that a bookie has now; the numbers of its entry logs only grow there."""
    begin, newest_log = 0, -1
    for n, one in enumerate(history):
        if 0 <= one.newest_log < newest_log or (n and one.total < history[n - 1].total):
            begin, newest_log = n, -1
        newest_log = max(newest_log, one.newest_log)
    return begin
