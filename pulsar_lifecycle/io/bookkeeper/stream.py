"""Many consecutive entries of one ledger, read ahead from all of its replicas and handed on in order, each verified.

Belongs here: which part of a range is asked of which bookie, how much at once, and where to turn when an answer will
not do. Not here: connections (``pool.py``), the bytes of an entry (``formats.entry``), what errors mean
(``answers.py``).
Source: bookkeeper-server 4.17.2, RoundRobinDistributionSchedule, PendingReadOp, BatchedReadEntryProcessor.

A range is cut into parts. Where every bookie of the ensemble has every entry, a part is as many entries as make a
request's worth by the size of those seen last, and consecutive parts go to different replicas; elsewhere it is a single
entry. An answer that covers only the beginning of its part leaves another part behind it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError
from pulsar_lifecycle.formats import entry, striping
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, Segment
from pulsar_lifecycle.io.bookkeeper.answers import nowhere, verified_run
from pulsar_lifecycle.io.bookkeeper.connection import BookieCode, BookieRequest, BookieResponse
from pulsar_lifecycle.io.bookkeeper.pool import BookiePool
from pulsar_lifecycle.ports import EntryBatch

BATCH_BYTES = 1 << 20
"""Asked of one request, and half of it the least that is handed on while more may come."""
READ_AHEAD = 12 * BATCH_BYTES
"""Bytes of one ledger that are asked for or waiting to be handed on; an entry larger than a batch may exceed it."""
_OVERHEAD = 64
"""Bytes of an entry besides its payload, about."""


@dataclass(slots=True, eq=False)
class _Part:
    """``count`` entries from ``first`` on; asked of ``bookie`` now, or read into ``run``.

    ``bookie`` is also who gave the run. ``answers``: of those that could not give the first entry. ``problem``: what
    they mean once none is left to ask. ``reserved``: bytes of the answer that is awaited.
    """

    first: int
    count: int
    answers: dict[str, BookieResponse | LifecycleError] = field(
        default_factory=dict[str, BookieResponse | LifecycleError]
    )
    request: BookieRequest | None = None
    bookie: str = ""
    reserved: int = 0
    run: entry.EntryRun | None = None
    problem: LifecycleError | None = None

    def __lt__(self, other: _Part) -> bool:
        return self.first < other.first


class LedgerStream:
    """Entries ``first`` .. ``last`` of a ledger; iterate once. Nothing is asked before :meth:`start`.

    ``length`` is what the ledger's cumulative length must be at ``last``, if that is known. Iterating raises NotFound
    when every replica of an entry says NO_LEDGER, StoreError when they all answered and none has it, Unavailable,
    CorruptFormat when no copy is good; the entries before it come first.
    """

    def __init__(
        self,
        bookies: BookiePool,
        ledger_id: int,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        length: int | None = None,
    ) -> None:
        self._bookies = bookies
        self._ledger_id = ledger_id
        self._metadata = metadata
        self._last = last
        self._length = length
        self._next = first
        self._handed = 0 if first == 0 else None
        """The cumulative length before the first part; unknown in the middle of a ledger."""
        self._whole = metadata.ensemble_size == metadata.write_quorum
        """Whether every bookie of an ensemble has all of its entries."""
        self._parts: deque[_Part] = deque()
        self._unasked: list[_Part] = []
        self._reserved = 0
        self._held = 0
        self._turn = 0
        self._mean = metadata.length // max(1, metadata.last_entry_id + 1) + _OVERHEAD
        self._troubled: set[str] = set()
        self._segment: Segment = metadata.segments[0]
        self._segment_end = -1

    def start(self) -> None:
        """Ask for as much as may be in memory at once; may be repeated."""
        while self._unasked and (self._room() or self._unasked[0] is self._parts[0]):
            self._ask(heapq.heappop(self._unasked))
        while self._next <= self._last and (self._room() or not self._parts):
            part = self._cut(self._next)
            self._next += part.count
            self._parts.append(part)
            self._ask(part)

    def __iter__(self) -> Iterator[EntryBatch]:
        payloads: list[bytes] = []
        first = size = 0
        try:
            while True:
                self.start()
                head = self._parts[0] if self._parts else None
                if head is None or head.problem or (head.run and size >= BATCH_BYTES // 2):
                    if payloads:
                        yield EntryBatch(first, payloads)
                        self._held -= size
                        payloads, size = [], 0
                    if head is None:
                        return
                    if head.problem:
                        raise head.problem
                elif head.run:
                    if self._continues(head, head.run):
                        self._parts.popleft()
                        first = first if payloads else head.first
                        payloads += head.run.payloads
                        size += _size(head.run)
                        self._handed = head.run.after
                else:
                    # Memory is full of what comes later: read only the bookie that everything waits for.
                    self._bookies.wait(None if self._room() else head.bookie or None)
        finally:
            self.drop()

    def drop(self) -> None:
        """Forget what was asked; answers that still come are thrown away."""
        for part in self._parts:
            if part.request is not None:
                part.request.wanted = False
        self._parts.clear()
        self._unasked.clear()

    # -------------------------------------------------------------------------------------------------------- asking

    def _room(self) -> bool:
        return self._reserved + self._held < READ_AHEAD

    def _cut(self, first: int) -> _Part:
        """The next part: within one segment, and of one entry where bookies must be asked singly."""
        if not self._whole:
            return _Part(first, 1)
        if all(bookie in self._bookies.single_reads_only for bookie in self._replicas(first)):
            return _Part(first, 1)
        end = min(self._last, self._segment_end)
        return _Part(first, min(end - first + 1, max(1, BATCH_BYTES // self._mean)))

    def _replicas(self, entry_id: int) -> list[str]:
        if not self._segment.first_entry_id <= entry_id <= self._segment_end:
            self._segment = striping.segment_of(self._metadata, entry_id)
            self._segment_end = striping.segment_end(self._metadata, entry_id, self._last)
        bookies = self._segment.bookies
        size = len(bookies)
        return [bookies[(entry_id + i) % size] for i in range(self._metadata.write_quorum)]

    def _choose(self, part: _Part) -> str | None:
        """The next bookie to ask; None if all were."""
        left = [bookie for bookie in self._replicas(part.first) if bookie not in part.answers]
        if not left:
            return None
        if self._whole:
            left.sort()  # so that the turn is all that decides
            self._turn += 1
            turn = self._turn % len(left)
            left = left[turn:] + left[:turn]
        if self._troubled or part.count > 1:
            single = self._bookies.single_reads_only if part.count > 1 else set[str]()
            left.sort(key=lambda bookie: (bookie in self._troubled, bookie in single))
        return left[0]

    def _ask(self, part: _Part) -> None:
        bookie = self._choose(part)
        if bookie is None:
            if part.count == 1:
                part.problem = nowhere(f"entry {self._ledger_id}:{part.first}", part.answers)
            else:  # each of its entries has a right to a verdict of its own
                self._replace(part, _Part(part.first, 1), _Part(part.first + 1, part.count - 1))
            return
        if part.count > 1 and bookie in self._bookies.single_reads_only:
            self._replace(part, *(_Part(e, 1) for e in range(part.first, part.first + part.count)))
            return
        part.bookie = bookie
        part.reserved = self._mean if part.count == 1 else BATCH_BYTES
        self._reserved += part.reserved
        count = None if part.count == 1 else part.count
        part.request = BookieRequest(self._ledger_id, part.first, partial(self._receive, part), count, BATCH_BYTES)
        self._bookies.ask(bookie, part.request)

    def _replace(self, part: _Part, *by: _Part) -> None:
        """Put other parts, to be asked where they have no run yet, in the place of one."""
        at = self._parts.index(part)
        self._parts.rotate(-at)
        self._parts.popleft()
        self._parts.extendleft(reversed(by))
        self._parts.rotate(at)
        for new in by:
            if new.run is None:
                heapq.heappush(self._unasked, new)

    # -------------------------------------------------------------------------------------------------------- answers

    def _receive(self, part: _Part, answer: BookieResponse | LifecycleError) -> None:
        assert part.request is not None
        if not part.request.wanted:
            return
        bookie, part.bookie, part.request = part.bookie, "", None
        self._reserved -= part.reserved
        if isinstance(answer, BookieResponse) and answer.code == BookieCode.OK:
            run = verified_run(answer, self._metadata, self._ledger_id, part.first, part.count)
            if run.payloads:
                self._fill(part, run, bookie)
                return
            answer = run.problem or CorruptFormat("bookie answer", 32, "an entry")
        elif part.count > 1 and bookie in self._bookies.single_reads_only:
            heapq.heappush(self._unasked, part)
            return
        elif isinstance(answer, LifecycleError) or answer.code != BookieCode.NO_ENTRY:
            self._troubled.add(bookie)
        part.answers[bookie] = answer
        heapq.heappush(self._unasked, part)

    def _fill(self, part: _Part, run: entry.EntryRun, bookie: str) -> None:
        """Take what a bookie gave; the rest of the part, without what it gave damaged, is asked for anew."""
        self._held += _size(run)
        self._mean = _size(run) // len(run.payloads)
        given, rest = len(run.payloads), part.first + len(run.payloads)
        left = part.count - given
        part.run, part.count, part.bookie = run, given, bookie
        if not left:
            return
        if run.problem is None:
            self._replace(part, part, _Part(rest, left))
            return
        others = [_Part(rest + 1, left - 1)] if left > 1 else []
        self._replace(part, part, _Part(rest, 1, {bookie: run.problem}), *others)

    def _continues(self, part: _Part, run: entry.EntryRun) -> bool:
        """Whether the cumulative length goes on where the part before ended, and ends where the ledger does.

        If not, the entry at fault is asked of another replica.
        """
        if self._handed is not None and run.before != self._handed:
            problem = CorruptFormat(entry.WHAT, 24, f"a length of {self._handed} before it, found {run.before}")
            self._discard(part, run, 0, problem)
            return False
        if self._length is not None and part.first + part.count > self._last and run.after != self._length:
            problem = CorruptFormat(entry.WHAT, 24, f"the ledger's length, {self._length}, found {run.after}")
            self._discard(part, run, part.count - 1, problem)
            return False
        return True

    def _discard(self, part: _Part, run: entry.EntryRun, index: int, problem: CorruptFormat) -> None:
        """Ask elsewhere for one entry of a part that was read, and anew for those beside it."""
        self._held -= _size(run)
        self._troubled.add(part.bookie)
        answers = part.answers if part.count == 1 else {}
        parts = [_Part(part.first + index, 1, {**answers, part.bookie: problem})]
        if index:
            parts.insert(0, _Part(part.first, index))
        if index + 1 < part.count:
            parts.append(_Part(part.first + index + 1, part.count - index - 1))
        self._replace(part, *parts)


def _size(run: entry.EntryRun) -> int:
    """Bytes that a run takes in memory, about."""
    return run.after - run.before + _OVERHEAD * len(run.payloads)
