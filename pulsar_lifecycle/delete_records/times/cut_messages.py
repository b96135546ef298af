"""Whether a position cuts a chunked message in two, as far as the two entries beside it tell.

Belongs here: the look that costs little. Not here: reading all below (``time_offsets.py``), what is refused then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pulsar_lifecycle.delete_records.times.publish_times import envelope
from pulsar_lifecycle.delete_records.times.readable_ledgers import ReadableLedger, TopicEntryReader, end_of, is_lost
from pulsar_lifecycle.delete_records.times.time_offsets import Question, ask_each, runs_between
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, StoreError
from pulsar_lifecycle.formats.message import Envelope
from pulsar_lifecycle.model import MessagePosition, Position
from pulsar_lifecycle.runs.cluster import Cluster


@dataclass(frozen=True, slots=True)
class ChunkedMessage:
    """A message that several entries make up, by the UUID that its producer gave it.

    ``uuid``: None where the producer gave none; all such parts of a topic count as one message.
    """

    uuid: str | None

    @classmethod
    def of(cls, uuid: str | None) -> ChunkedMessage:
        """By what an entry or a plan's row says; "" is no UUID."""
        return cls(uuid or None)


def cut_at_once(cluster: Cluster, questions: Sequence[Question]) -> list[bool]:
    """Whether a chunked message is seen to be cut by each position, from the two entries that it lies between.

    True where a server does not answer, too: who reads all below learns why. Where several producers take turns, a
    message may be cut of which neither entry is a part.
    """
    return ask_each(cluster, questions, _cut_or_unread)


def _cut_or_unread(question: Question, entries: TopicEntryReader) -> bool:
    try:
        return goes_on_at(question, entries) or begun_below(question, entries) is not None
    except LifecycleError:
        return True


def goes_on_at(question: Question, entries: TopicEntryReader) -> bool:
    """Whether the entry at a position is a part of a chunked message, and not its first one.

    Raises where a server does not answer, or may not be asked.
    """
    position = question.position or question.start
    above = list(runs_between(question.ledgers, position, end_of(question.ledgers)))[:1]
    parts = [_part(ledger, first, entries) for ledger, first, _ in above]
    return any(part and part.chunk and part.chunk[0] for part in parts)


def begun_below(question: Question, entries: TopicEntryReader) -> ChunkedMessage | None:
    """The chunked message that the entry below a position is a part of, and not the last one; None if of none.

    Raises as :func:`goes_on_at`.
    """
    position = question.position or question.start
    for ledger, _, last in list(runs_between(question.ledgers, question.start, position))[-1:]:
        part = _part(ledger, last, entries)
        if part and part.chunk and part.chunk[0] < part.chunk[1] - 1:
            return ChunkedMessage.of(part.uuid)
    return None


def goes_on(
    messages: Collection[ChunkedMessage], question: Question, since: MessagePosition, entries: TopicEntryReader
) -> bool:
    """Whether one of ``messages`` has a part at ``since`` or above it. Raises as the port that they are read from.

    CorruptFormat for an entry that is no message.
    """
    return any(
        found.chunk is not None and ChunkedMessage.of(found.uuid) in messages
        for ledger, first, last in runs_between(question.ledgers, since, end_of(question.ledgers))
        for found in (envelope(at, data) for at, data in entries.in_pieces(ledger, first, last))
    )


def _part(ledger: ReadableLedger, entry_id: int, entries: TopicEntryReader) -> Envelope | None:
    """An entry; None if it is no message, or no replica has it: then nobody reads the message that it was of."""
    try:
        return envelope(Position(ledger.ledger_id, entry_id), entries.one(ledger, entry_id))
    except CorruptFormat:
        return None
    except StoreError as error:
        if ledger.offloaded is not None or not is_lost(error):  # what a bucket refuses may be there
            raise
        return None
