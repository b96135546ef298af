"""Whether a position cuts a chunked message in two, as far as the two entries beside it tell.

Belongs here: the look that costs little. Not here: reading all below (``time_offsets.py``), what is refused then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pulsar_lifecycle.delete_records.times.publish_times import envelope
from pulsar_lifecycle.delete_records.times.readable_ledgers import ReadableLedger, TopicEntryReader, end_of
from pulsar_lifecycle.delete_records.times.time_offsets import Question, in_groups, runs_between
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, StoreError
from pulsar_lifecycle.io.connect import Connect
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.settings import Settings


def cut_at_once(cluster: Cluster, questions: Sequence[Question]) -> list[bool]:
    """Whether a chunked message is seen to be cut by each position, from the two entries that it lies between.

    True where a server does not answer, too: who reads all below learns why. Where several producers take turns, a
    message may be cut of which neither entry is a part.
    """
    if not questions:
        return []
    look = _Look(share_of(cluster.tasks, cluster.settings), cluster.connect)
    return [one for some in cluster.tasks.map(look, in_groups(cluster, questions)) for one in some]


@dataclass(frozen=True)
class _Look:
    """A task: reads the entries beside the positions of some questions."""

    settings: Settings
    connect: Connect

    def __call__(self, questions: Sequence[Question]) -> list[bool]:
        with self.connect(self.settings, read_only=True) as ports:
            entries = TopicEntryReader(ports.reader, ports.objects if self.settings.object_store else None)
            return [self._is_cut(question, entries) for question in questions]

    @staticmethod
    def _is_cut(question: Question, entries: TopicEntryReader) -> bool:
        try:
            return is_cut(question, entries)
        except LifecycleError:
            return True


def is_cut(question: Question, entries: TopicEntryReader) -> bool:
    """As :func:`cut_at_once`, of one position. Raises where a server does not answer."""
    position, end = question.position, end_of(question.ledgers)
    if position is None:
        raise ValueError("a position is to be looked at")
    below = list(runs_between(question.ledgers, question.start, position))[-1:]
    above = list(runs_between(question.ledgers, position, end))[:1]
    try:
        before = [_part(ledger, last, entries) for ledger, _, last in below]
        after = [_part(ledger, first, entries) for ledger, first, _ in above]
    except (CorruptFormat, StoreError):
        return False  # no message, and so no part of one; or nobody has it, and nobody reads the message that it is of
    return any(part and part[0] < part[1] - 1 for part in before) or any(part and part[0] for part in after)


def _part(ledger: ReadableLedger, entry_id: int, entries: TopicEntryReader) -> tuple[int, int] | None:
    return envelope(Position(ledger.ledger_id, entry_id), entries.one(ledger, entry_id)).chunk
