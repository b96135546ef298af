"""Messages by due time, in memory: what a tracker hands out next.

Belongs here: one ordered queue over arrays. Not here: which messages are in it, and loading more (:mod:`tracker`).
Upstream: ``TripleLongPriorityQueue``, pulsar-broker 4.0.7, and its order: timestamp, ledger, entry.

Segments come in sorted; sorting the queue anew for each would cost more than all else. So what is due first stands in a
short sorted front; everything after its horizon waits in the runs in which it came.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pulsar_lifecycle.delayed_index.tracking.membership import Mask
from pulsar_lifecycle.formats.delayed_indexes import Indexes

Place = tuple[int, int, int]
"""Timestamp (ms), ledger, entry."""

LAST = (1 << 63) - 1
"""No id or time comes after it."""
_FRONT = 1 << 13
"""About as many messages are brought to the front at once, at least."""


class TimeQueue:
    """Messages, each popped once, by (timestamp, ledger, entry)."""

    def __init__(self) -> None:
        self._fresh: list[Indexes] = []
        """As added, in any order, not looked at before the first of them is due."""
        self._fresh_first = LAST
        self._single: list[Place] = []
        """As ``_fresh``, added one by one."""
        self._front = Indexes.empty()
        """Sorted: everything up to the horizon, but what is fresh."""
        self._horizon = -1
        self._later: list[Indexes] = []
        """Sorted, each: everything after the horizon, but what is fresh."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of messages."""
        return 24 * self._size

    def add(self, indexes: Indexes) -> None:
        """Messages in any order."""
        if len(indexes):
            self._fresh.append(indexes)
            self._fresh_first = min(self._fresh_first, int(indexes.timestamps.min()))
            self._size += len(indexes)

    def add_one(self, timestamp: int, ledger: int, entry: int) -> None:
        """One message."""
        self._single.append((timestamp, ledger, entry))
        self._fresh_first = min(self._fresh_first, timestamp)
        self._size += 1

    def next_time(self) -> int | None:
        """When the first is due (ms); None if there is none."""
        if not self._size:
            return None
        front = int(self._front.timestamps[0]) if len(self._front) else self._first_later()
        return min(self._fresh_first, front)

    def pop(self, limit: int, until: Place) -> Indexes:
        """Take out, in order, at most ``limit`` messages of those up to ``until``, inclusive."""
        parts: list[Indexes] = []
        if self._fresh_first <= until[0]:
            self._sort_fresh()
        while limit > 0:
            if not len(self._front) and not self._refill(until[0], limit):
                break
            taken = min(limit, _place(self._front, until))
            if taken == 0:
                break
            parts.append(self._front[:taken])
            self._front = self._front[taken:]
            limit -= taken
            self._size -= taken
            if len(self._front):
                break
        return Indexes.concatenate(parts) if parts else Indexes.empty()

    def due(self, time: int) -> int:
        """How many messages are due by ``time``, inclusive."""
        if self._fresh_first <= time:
            self._sort_fresh()
        runs = (self._front, *self._later) if time > self._horizon else (self._front,)
        return sum(int(np.searchsorted(run.timestamps, time, "right")) for run in runs)

    def drain(self) -> Indexes:
        """Take out everything, in no particular order: in the order in which it was added, if it was never popped."""
        parts = [self._front, *self._later, *self._fresh, Indexes.of(self._single)]
        self._front, self._later, self._fresh, self._single = Indexes.empty(), [], [], []
        self._fresh_first, self._horizon, self._size = LAST, -1, 0
        return Indexes.concatenate([part for part in parts if len(part)] or [Indexes.empty()])

    def select(self, wanted: Callable[[Indexes], Mask]) -> Indexes:
        """The messages that ``wanted`` picks, in no particular order; they stay."""
        self._sort_fresh()
        return Indexes.concatenate([part[wanted(part)] for part in (self._front, *self._later)])

    def remove(self, unwanted: Callable[[Indexes], Mask]) -> None:
        """Take out the messages that ``unwanted`` picks."""
        self._sort_fresh()
        self._front = self._front[~unwanted(self._front)]
        kept = [part[~unwanted(part)] for part in self._later]
        self._later = [part for part in kept if len(part)]
        self._size = len(self._front) + sum(map(len, self._later))

    def _sort_fresh(self) -> None:
        """Sort what is fresh, and put it where it belongs."""
        parts = [*self._fresh, *([Indexes.of(self._single)] if self._single else [])]
        self._fresh, self._single, self._fresh_first = [], [], LAST
        if not parts:
            return
        run = _merged(parts)
        soon = int(np.searchsorted(run.timestamps, self._horizon, "right"))
        if soon:
            front = run[:soon]
            self._front = _merged([self._front, front]) if len(self._front) else front
        if soon < len(run):
            self._later.append(run[soon:])

    def _first_later(self) -> int:
        return min((int(run.timestamps[0]) for run in self._later), default=LAST)

    def _refill(self, until: int, limit: int) -> bool:
        """Move the horizon, so that the front has messages again; whether there are any due by ``until``."""
        if not self._later or self._first_later() > until:
            return False
        share = max(max(_FRONT, limit) // len(self._later), 1)
        self._horizon = min(int(run.timestamps[min(share, len(run)) - 1]) for run in self._later)
        soon, later = [], []
        for run in self._later:
            cut = int(np.searchsorted(run.timestamps, self._horizon, "right"))
            if cut:
                soon.append(run[:cut])
            if cut < len(run):
                later.append(run[cut:])
        self._later = later
        self._front = _merged(soon)
        return True


def _merged(parts: list[Indexes]) -> Indexes:
    """All of them, sorted. Runs that are sorted are merged by time, which is much faster than sorting them anew."""
    found = Indexes.concatenate(parts)
    if found.is_sorted():
        return found
    if all(part.is_sorted() for part in parts):
        found = found[np.argsort(found.timestamps, kind="stable")]
        if found.is_sorted():
            return found
    return found.sorted()


def _place(sorted_run: Indexes, until: Place) -> int:
    """How many messages are up to ``until``, inclusive."""
    begin = int(np.searchsorted(sorted_run.timestamps, until[0]))
    end = int(np.searchsorted(sorted_run.timestamps, until[0], "right"))
    for column, value in ((sorted_run.ledgers, until[1]), (sorted_run.entries, until[2])):
        if begin == end:
            break
        at = column[begin:end]
        begin, end = begin + int(np.searchsorted(at, value)), begin + int(np.searchsorted(at, value, "right"))
    return end
