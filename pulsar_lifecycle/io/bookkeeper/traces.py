"""Whether bookies still have any entry of ledgers that were deleted, asked of every bookie of every segment.

Belongs here: what is asked, and what an answer means. Not here: what follows from it (``delete_records/absence.py``),
whether replicas are whole (``replica_check``). Source: ``SingleDirectoryDbLedgerStorage``, bookkeeper-server 4.17.2:
asked for the last entry, a bookie looks into its write caches and its index. It answers NO_LEDGER once a garbage
collection has taken the ledger out of its index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import striping
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.io.bookkeeper.answers import ABSENT, refusal
from pulsar_lifecycle.io.bookkeeper.connection import LAST_ENTRY, BookieCode, BookieResponse
from pulsar_lifecycle.io.bookkeeper.pool import BookiePool
from pulsar_lifecycle.ports import Traces

AT_ONCE = 1_000
"""Questions that are under way at once; nearly all answers are a few bytes."""

_Question = tuple[str, int, int]
"""Bookie id, ledger id, entry id."""


def find_traces(bookies: BookiePool, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Traces]:
    """What each bookie says of each ledger, in order; a bookie that fails once is not asked again in the same call."""
    members = [list(dict.fromkeys(b for segment in m.segments for b in segment.bookies)) for _, m in ledgers]
    holding: set[tuple[str, int]] = set()
    unanswered: dict[tuple[str, int], str] = {}
    down: dict[str, LifecycleError] = {}
    last = ((b, ledger_id, LAST_ENTRY) for (ledger_id, _), some in zip(ledgers, members, strict=True) for b in some)
    known = (question for ledger_id, metadata in ledgers for question in _of_its_own(ledger_id, metadata))
    for questions in (last, known):
        for some in _portions(questions):
            todo = [q for q in some if q[:2] not in holding and q[:2] not in unanswered]
            for bookie, ledger_id, _ in todo:
                if bookie in down:
                    unanswered[bookie, ledger_id] = str(down[bookie])
            todo = [q for q in todo if q[0] not in down]
            for (bookie, ledger_id, _), answer in zip(todo, bookies.exchange(todo), strict=True):
                if isinstance(answer, BookieResponse) and answer.code == BookieCode.OK:
                    holding.add((bookie, ledger_id))
                elif isinstance(answer, LifecycleError):
                    down.setdefault(bookie, answer)
                    unanswered.setdefault((bookie, ledger_id), str(answer))
                elif answer.code not in ABSENT:
                    unanswered.setdefault((bookie, ledger_id), str(refusal(answer.code)))
    return [
        Traces(
            tuple(some),
            tuple(b for b in some if (b, ledger_id) in holding),
            {
                b: unanswered[b, ledger_id]
                for b in some
                if (b, ledger_id) in unanswered and (b, ledger_id) not in holding
            },
        )
        for (ledger_id, _), some in zip(ledgers, members, strict=True)
    ]


def _of_its_own(ledger_id: int, metadata: LedgerMetadata) -> Iterator[_Question]:
    """Of each segment, entries that each of its bookies was given: the first and, where it is known, the last."""
    for first, last in striping.ranges(metadata):
        width = metadata.ensemble_size
        for e in sorted({*range(first, min(first + width, last + 1)), *range(max(first, last - width + 1), last + 1)}):
            for bookie in striping.replicas(metadata, e):
                yield bookie, ledger_id, e


def _portions(questions: Iterator[_Question]) -> Iterator[list[_Question]]:
    some: list[_Question] = []
    for question in questions:
        some.append(question)
        if len(some) == AT_ONCE:
            yield some
            some = []
    if some:
        yield some
