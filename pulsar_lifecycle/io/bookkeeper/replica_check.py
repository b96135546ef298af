"""Whether the replicas of closed ledgers still hold their entries, asked of every bookie that should.

Belongs here: asking each of them and counting what they give. Not here: which entries tell (``formats.striping``), what
the counts mean for a deleted ledger (``deletion/undo/undo.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError
from pulsar_lifecycle.formats import striping
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.io.bookkeeper.answers import ABSENT, refusal, verified
from pulsar_lifecycle.io.bookkeeper.connection import BookieCode, BookieResponse
from pulsar_lifecycle.io.bookkeeper.pool import BookiePool
from pulsar_lifecycle.ports import ReplicaCheck

PORTION = 32 << 20
"""Bytes of entries that a check of replicas has in memory at once."""


def check_replicas(bookies: BookiePool, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
    """Ask every replica of closed ledgers for its entries; one result per ledger, in order.

    A bookie that fails once is not asked again in the same call: nothing that was left to ask has an answer.
    """
    tallies = [_Tally(ledger_id, metadata) for ledger_id, metadata in ledgers]
    failed: dict[str, LifecycleError] = {}
    singles: list[_Copy] = []
    for tally in tallies:
        if striping.is_small(tally.metadata) and tally.metadata.ensemble_size == tally.metadata.write_quorum:
            for first, last in striping.ranges(tally.metadata):
                for bookie in striping.replicas(tally.metadata, first):
                    rest = _check_run(bookies, tally, bookie, first, last, failed)
                    singles += [(tally, e, bookie) for e in range(rest, last + 1)]
        else:
            singles += [(tally, e, bookie) for e in tally.asked for bookie in tally.replicas(e)]
    for some in _portions(singles):
        todo = [copy for copy in some if copy[2] not in failed]
        for tally, _, bookie in some:
            if bookie in failed:
                tally.error(bookie, failed[bookie])
        answers = bookies.exchange([(bookie, tally.ledger_id, e) for tally, e, bookie in todo])
        for (tally, e, bookie), answer in zip(todo, answers, strict=True):
            if isinstance(answer, LifecycleError):
                failed.setdefault(bookie, answer)
            tally.answer(bookie, e, answer)
    return [tally.result() for tally in tallies]


def _check_run(
    bookies: BookiePool, tally: _Tally, bookie: str, first: int, last: int, failed: dict[str, LifecycleError]
) -> int:
    """Ask a bookie for the consecutive entries first..last; returns the first that must be read singly."""
    at = first
    while at <= last:
        if bookie in failed:
            tally.error(bookie, failed[bookie])
            return last + 1
        if bookie in bookies.single_reads_only:
            return at
        answer = bookies.batch(bookie, tally.ledger_id, at, last - at + 1)
        if isinstance(answer, LifecycleError):
            if bookie not in bookies.single_reads_only:
                failed[bookie] = answer
            continue
        if answer.code == BookieCode.NO_LEDGER:
            for e in range(at, last + 1):
                tally.answer(bookie, e, answer)
            return last + 1
        if answer.code not in (BookieCode.OK, BookieCode.NO_ENTRY):
            tally.error(bookie, refusal(answer.code))
            return last + 1
        found = answer.bounds[: last - at + 1]
        for e, bounds in enumerate(found, at):
            tally.answer(bookie, e, BookieResponse(BookieCode.OK, answer.frame, (bounds,)))
        if not found:
            tally.answer(bookie, at, BookieResponse(BookieCode.NO_ENTRY))
        at += max(1, len(found))
    return at


class _Tally:
    """What was answered of one ledger's replicas so far."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.asked = striping.telling_entries(metadata)
        self._good: Counter[int] = Counter()
        self._bad: Counter[int] = Counter()
        self._missing: Counter[str] = Counter()
        self._unanswered: dict[str, str] = {}

    def replicas(self, entry_id: int) -> list[str]:
        """The bookies to ask for an entry."""
        return striping.replicas(self.metadata, entry_id)

    def answer(self, bookie: str, entry_id: int, answer: BookieResponse | LifecycleError) -> None:
        """One bookie's answer for one entry."""
        if isinstance(answer, LifecycleError):
            self.error(bookie, answer)
        elif answer.code == BookieCode.OK and self._is_good(answer.data, entry_id):
            self._good[entry_id] += 1
        elif answer.code in (BookieCode.OK, *ABSENT):
            self._bad[entry_id] += 1
            self._missing[bookie] += 1
        else:
            self.error(bookie, refusal(answer.code))

    def error(self, bookie: str, why: LifecycleError) -> None:
        """A bookie that gave no answer that says anything."""
        self._unanswered.setdefault(bookie, str(why))

    def result(self) -> ReplicaCheck:
        """The sum of it."""
        copies = self.metadata.write_quorum
        nowhere = [e for e in self.asked if not self._good[e]]
        lost = sum(self._bad[e] >= copies for e in nowhere)
        return ReplicaCheck(
            entries=self.metadata.last_entry_id + 1,
            asked=len(self.asked),
            held=self._good.total(),
            thin=sum(0 < self._good[e] < copies for e in self.asked),
            lost=lost,
            unproven=len(nowhere) - lost,
            missing=dict(self._missing),
            unanswered=dict(self._unanswered),
        )

    def _is_good(self, data: bytes, entry_id: int) -> bool:
        try:
            verified(data, self.ledger_id, self.metadata, entry_id)
        except CorruptFormat:
            return False
        return True


_Copy = tuple[_Tally, int, str]
"""Ledger, entry id, bookie id."""


def _portions(copies: Iterable[_Copy]) -> Iterator[list[_Copy]]:
    """Copies in their order, so many at a time that by the mean size of their entries they fill :data:`PORTION`."""
    some: list[_Copy] = []
    size = 0
    for copy in copies:
        metadata = copy[0].metadata
        some.append(copy)
        size += 64 + metadata.length // (metadata.last_entry_id + 1)
        if size >= PORTION:
            yield some
            some, size = [], 0
    if some:
        yield some
