"""``offsetsForTimes``: where a time falls in topics, what lies below, and whether publish times can be trusted there.

Belongs here: the search, the whole read of what would go, and what both say together. Not here: entries
(``readable_ledgers.py``), adding them up (``publish_times.py``), what is refused then. No topic is loaded. Upstream:
``KafkaAdminClient.listOffsets``; ``PersistentTopics.getMessageIdByTimestamp`` (4.0.7) searches as we do, and believes
what it finds.

A search over times needs few reads and is right only where times grow along the topic. So every entry below the place
that it found is read, too: the position is the first message published at or after the time, whatever order they have.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, TypeVar

from pulsar_lifecycle.delete_records.times.publish_times import (
    BegunMessages,
    Counts,
    Published,
    Span,
    envelope,
    published_at,
    span,
)
from pulsar_lifecycle.delete_records.times.readable_ledgers import ReadableLedger, TopicEntryReader, end_of, is_lost
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, RefusedBy, StoreError
from pulsar_lifecycle.formats.message import Envelope
from pulsar_lifecycle.model import MessagePosition, Position, Topic
from pulsar_lifecycle.ports import Connect
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values.codes import Code

T = TypeVar("T")
TASK_BYTES = 64 << 20
"""Bytes of entries that one task reads; small ledgers share one."""
OPEN_LEDGER_ENTRY = 1 << 10
"""Bytes that an entry is taken to have where nothing says it."""


class OffsetProblem(StrEnum):
    """Why there is no answer for a partition."""

    BEYOND_END = "beyond_end"
    """The position is after the end of the topic."""
    NO_SUCH_LEDGER = "no_such_ledger"
    """The topic does not list the ledger of the position, though it lists older ones."""
    NO_SUCH_BATCH_INDEX = "no_such_batch_index"
    """The entry of the position has fewer messages."""
    INSIDE_A_MESSAGE = "inside_a_message"
    """A chunked message begins below the position, and its last part is at or above it."""
    NOT_A_MESSAGE = "not_a_message"
    """An entry that would go, or the one at the position, is no message."""
    UNREADABLE = "unreadable"
    """An entry that would go, or one that the search needs, could not be read."""
    NO_OBJECT_STORE = "no_object_store"
    """Such an entry is only in a bucket, and `object_store` is not set."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of one topic or partition: where ``timestamp`` (ms) falls, or what is below ``position``.

    ``start``: where what can still go begins; what is below it counts for nothing.
    """

    topic: Topic
    ledgers: tuple[ReadableLedger, ...]
    start: MessagePosition
    timestamp: int | None = None
    position: MessagePosition | None = None


@dataclass(frozen=True, slots=True)
class Disorder:
    """Publish times that do not only grow, in what a search over times would have deleted.

    ``searched``: where such a search cuts. ``at_risk``: messages below it published at or after the time, from
    ``first_at_risk`` on: the search would have deleted them.
    """

    searched: MessagePosition
    at_risk: Counts = field(default_factory=Counts)
    first_at_risk: Published | None = None


@dataclass(frozen=True, slots=True)
class ResolvedOffset:
    """The answer to a :class:`Question`; without a ``position`` there is a ``problem``, and ``detail`` says more.

    ``position``: the first message published at or after the time, the end if there is none, or the position asked for.
    ``goes``: what is between the start and it; every entry of that was read. ``before`` and ``after``: the last message
    below, and the one at the position. ``unfinished_chunks``: UUIDs of chunked messages that begin below and whose
    last part does not come below. ``cut_message``: where the first of them begins
    that goes on at the position or above it; that of a time has none. ``unfinished_transactions``: those with a message
    below and neither commit nor abort up to the end of the topic. ``latest_deliver_at``: of what is below.
    """

    position: MessagePosition | None
    problem: OffsetProblem | None = None
    detail: str = ""
    at_end: bool = False
    before: Published | None = None
    after: Published | None = None
    goes: Counts = field(default_factory=Counts)
    disorder: Disorder | None = None
    unfinished_chunks: tuple[str, ...] = ()
    cut_message: MessagePosition | None = None
    unfinished_transactions: int = 0
    latest_deliver_at: int | None = None


def resolve(cluster: Cluster, questions: Sequence[Question]) -> list[ResolvedOffset]:
    """The answers, in order; reads on ``cluster.tasks``, side by side. A partition's failure is in its answer."""
    if not questions:
        return []
    answers, spans = _read_below(cluster, questions)
    return _whole_messages(cluster, questions, _with_ends(cluster, questions, answers, spans))


def _read_below(
    cluster: Cluster, questions: Sequence[Question]
) -> tuple[list[ResolvedOffset], Sequence[Span | ResolvedOffset]]:
    """Answers from what is below alone, and that."""
    places = _places(cluster, questions)
    spans = _spans(cluster, questions, places)
    return [_answer(*three) for three in zip(questions, places, spans, strict=True)], spans


def count_between(
    cluster: Cluster, spans: Sequence[tuple[Topic, tuple[ReadableLedger, ...], MessagePosition, MessagePosition]]
) -> list[Counts | OffsetProblem]:
    """How much is in each run of a topic's ledgers, from the first position to the second; bytes of whole entries."""
    questions = [Question(topic, ledgers, start, position=end) for topic, ledgers, start, end in spans]
    return [answer.problem or answer.goes for answer in _read_below(cluster, questions)[0]] if questions else []


# ---------------------------------------------------------------------------------------------------------- the search


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a question cuts: as the search found it, or as asked for; ``at``: when its message was published.

    ``inside``: messages below in its entry, ``inside_bytes``: all of that where there are any.
    """

    position: MessagePosition
    at: int | None = None
    inside: int = 0
    inside_bytes: int = 0
    at_end: bool = False


_Found = _Place | ResolvedOffset


def _places(cluster: Cluster, questions: Sequence[Question]) -> list[_Found]:
    """By few reads of single entries."""
    return ask_each(cluster, questions, _guarded)


def ask_each(
    cluster: Cluster, questions: Sequence[Question], answer: Callable[[Question, TopicEntryReader], T]
) -> list[T]:
    """What a function at the top of its module answers to each question, in order; it is called in tasks.

    A few tasks for each that runs at once, so that a slow partition holds up few others.
    """
    if not questions:
        return []
    size = -(-len(questions) // (cluster.tasks.at_once * 4))
    groups = [questions[at : at + size] for at in range(0, len(questions), size)]
    task = _Answering(share_of(cluster.tasks, cluster.settings), cluster.connect, answer)
    return [one for some in cluster.tasks.map(task, groups) for one in some]


@dataclass(frozen=True)
class _Answering(Generic[T]):
    """A task: answers some questions, one after the other."""

    settings: Settings
    connect: Connect
    answer: Callable[[Question, TopicEntryReader], T]

    def __call__(self, questions: Sequence[Question]) -> list[T]:
        with self.connect(self.settings, read_only=True) as ports:
            entries = TopicEntryReader(ports.reader, ports.objects_if_set)
            return [self.answer(question, entries) for question in questions]


def _guarded(question: Question, entries: TopicEntryReader) -> _Found:
    try:
        return _place(question, entries)
    except LifecycleError as error:
        return _unanswered(error, question.timestamp)


def _unanswered(error: LifecycleError, time_ms: int | None) -> ResolvedOffset:
    problem = OffsetProblem.NOT_A_MESSAGE if isinstance(error, CorruptFormat) else OffsetProblem.UNREADABLE
    if isinstance(error, RefusedBy) and error.code is Code.NO_OBJECT_STORE:
        problem = OffsetProblem.NO_OBJECT_STORE
    lost = time_ms is not None and is_lost(error)
    way = "; where it is lost for good, ask for a position in place of the time" if lost else ""
    return ResolvedOffset(None, problem, f"{error}{way}")


def _place(question: Question, entries: TopicEntryReader) -> _Found:
    if question.timestamp is not None:
        return _search(question, question.timestamp, entries)
    position = question.position
    if position is None:
        raise ValueError("a question asks for a time or a position")
    end = end_of(question.ledgers)
    below_all = bool(question.ledgers) and position.ledger_id < question.ledgers[0].ledger_id
    if position <= question.start or below_all:
        return _Place(position)
    if position > end:
        return ResolvedOffset(None, OffsetProblem.BEYOND_END, f"{position} is after the end, {end}")
    ledger = next((one for one in question.ledgers if one.ledger_id == position.ledger_id), None)
    if ledger is None:
        return ResolvedOffset(None, OffsetProblem.NO_SUCH_LEDGER, f"ledger {position.ledger_id} is not listed")
    if position.entry_id > ledger.last_entry_id:
        if position.entry_id > ledger.last_entry_id + 1 or position.batch_index:
            return ResolvedOffset(
                None, OffsetProblem.BEYOND_END, f"ledger {ledger.ledger_id} has the entries 0 .. {ledger.last_entry_id}"
            )
        return _Place(position, at_end=position == end)
    try:
        data = entries.one(ledger, position.entry_id)
        found = envelope(position.entry, data)
    except StoreError as error:
        if position.batch_index or ledger.offloaded is not None or not is_lost(error):
            raise
        return _Place(position)
    if position.batch_index and position.batch_index >= (found.batch_size or 1):
        messages = f"a batch of {found.batch_size} messages" if found.batch_size is not None else "no batch"
        return ResolvedOffset(None, OffsetProblem.NO_SUCH_BATCH_INDEX, f"entry {position.entry} is {messages}")
    return _Place(position, published_at(found), position.batch_index, len(data) if position.batch_index else 0)


def _search(question: Question, time_ms: int, entries: TopicEntryReader) -> _Found:
    """The place where times come to ``time_ms`` if they only grow; the entry before it was published earlier."""
    known: dict[Position, Envelope] = {}

    def look(ledger: ReadableLedger, entry_id: int) -> Envelope:
        position = Position(ledger.ledger_id, entry_id)
        if position not in known:
            known[position] = envelope(position, entries.one(ledger, entry_id))
        return known[position]

    runs = list(runs_between(question.ledgers, question.start, end_of(question.ledgers)))
    at = bisect_left(runs, True, key=lambda run: look(run[0], run[2]).publish_time >= time_ms)
    if at == len(runs):
        return _Place(max(question.start, end_of(question.ledgers)), at_end=True)
    ledger, first, last = runs[at]
    entry_id = first + bisect_left(range(first, last), True, key=lambda e: look(ledger, e).publish_time >= time_ms)
    return _Place(MessagePosition(ledger.ledger_id, entry_id), published_at(look(ledger, entry_id)))


_Run = tuple[ReadableLedger, int, int]
"""A ledger, and its first and last entry that are meant, both inclusive."""


def runs_between(ledgers: Sequence[ReadableLedger], start: MessagePosition, end: MessagePosition) -> Iterator[_Run]:
    """The entries from ``start`` up to ``end``, which is excluded, ledger by ledger."""
    for ledger in ledgers:
        if start.ledger_id <= ledger.ledger_id <= end.ledger_id:
            first = start.entry_id if ledger.ledger_id == start.ledger_id else 0
            last = end.entry_id - 1 if ledger.ledger_id == end.ledger_id else ledger.last_entry_id
            last = min(last, ledger.last_entry_id)
            if first <= last:
                yield ledger, first, last


# ------------------------------------------------------------------------------------------------------ the whole read


_Piece = tuple[int, ReadableLedger, int, int, int | None]
"""Index of the question, ledger, first and last entry, and the time."""


@dataclass(frozen=True)
class _Read:
    """A task: reads some runs of entries whole."""

    settings: Settings
    connect: Connect

    def __call__(self, pieces: Sequence[_Piece]) -> list[tuple[int, Span | ResolvedOffset]]:
        found: list[tuple[int, Span | ResolvedOffset]] = []
        with self.connect(self.settings, read_only=True) as ports:
            entries = TopicEntryReader(ports.reader, ports.objects_if_set)
            for index, ledger, first, last, time_ms in pieces:
                try:
                    found.append((index, span(entries.all(ledger, first, last, without_lost=time_ms is None), time_ms)))
                except LifecycleError as error:
                    found.append((index, _unanswered(error, time_ms)))
        return found


def _spans(
    cluster: Cluster, questions: Sequence[Question], places: Sequence[_Found], before: Sequence[BegunMessages] = ()
) -> list[Span | ResolvedOffset]:
    """What is between the start and the place of each question; its first failure where there is one.

    ``before``: what began before each start.
    """
    runs = [
        (index, *run, question.timestamp)
        for index, (question, place) in enumerate(zip(questions, places, strict=True))
        if isinstance(place, _Place)
        for run in runs_between(question.ledgers, question.start, place.position)
    ]
    found: list[Span | ResolvedOffset] = [place if isinstance(place, ResolvedOffset) else Span() for place in places]
    for index, begun in enumerate(before):
        found[index] = Span(begun=begun)
    settings = share_of(cluster.tasks, cluster.settings)
    for results in cluster.tasks.map(_Read(settings, cluster.connect), _grouped(runs)):
        for index, one in results:
            so_far = found[index]
            if isinstance(so_far, Span):
                found[index] = _then(so_far, one) if isinstance(one, Span) else one
    return found


def _then(so_far: Span, one: Span) -> Span:
    """Both, as the driver needs them: what ended before matters to nobody who comes later."""
    both = so_far + one
    return replace(both, begun=both.begun.to_come())


def _grouped(runs: Sequence[_Piece]) -> list[list[_Piece]]:
    """Runs as groups of about ``TASK_BYTES``: large ones cut, small ones together, in their order."""
    groups: list[list[_Piece]] = []
    room = 0
    for index, ledger, first, last, time_ms in runs:
        mean = max(1, ledger.bytes // (ledger.last_entry_id + 1)) if ledger.bytes else OPEN_LEDGER_ENTRY
        at = first
        while at <= last:
            if room <= 0:
                groups.append([])
                room = TASK_BYTES
            end = min(last, at + max(1, room // mean) - 1)
            groups[-1].append((index, ledger, at, end, time_ms))
            room -= (end - at + 1) * mean
            at = end + 1
    return groups


# ------------------------------------------------------------------------------------------------------------- answers


def _answer(question: Question, place: _Found, found: Span | ResolvedOffset) -> ResolvedOffset:
    if isinstance(place, ResolvedOffset):
        return place
    if isinstance(found, ResolvedOffset):
        return found
    position, at_end = place.position, place.at_end
    after = None if place.at is None else Published(place.position, place.at)
    if found.first_newer is not None:
        position, at_end, after = found.first_newer.position, False, found.first_newer
    messages = found.below.messages + place.inside - question.start.batch_index
    return ResolvedOffset(
        position if question.timestamp is None else max(position, question.start),
        at_end=at_end,
        before=found.last_below,
        after=after,
        goes=replace(found.below, messages=max(0, messages), bytes=found.below.bytes + place.inside_bytes),
        disorder=_disorder(place, found),
        unfinished_chunks=tuple(sorted(found.begun.chunked)),
        unfinished_transactions=len(found.begun.transactions),
        latest_deliver_at=found.latest_deliver_at,
    )


def _disorder(place: _Place, found: Span) -> Disorder | None:
    if not found.goes_back and found.first_newer is None:
        return None
    return Disorder(place.position, found.newer, found.first_newer)


def _whole_messages(
    cluster: Cluster, questions: Sequence[Question], answers: Sequence[ResolvedOffset]
) -> list[ResolvedOffset]:
    """Of times: a position inside a chunked message moves back to its first part, so that the message stays whole.

    Whatever is between the two stays with it. There may be parts of another message: it moves back until there is none.
    """
    found = list(answers)
    while again := {
        index: replace(question, timestamp=None, position=answer.cut_message)
        for index, (question, answer) in enumerate(zip(questions, found, strict=True))
        if question.timestamp is not None and answer.cut_message is not None
    }:
        for index, answer in zip(again, resolve(cluster, list(again.values())), strict=True):
            found[index] = replace(answer, disorder=answers[index].disorder)
    return found


def _with_ends(
    cluster: Cluster,
    questions: Sequence[Question],
    answers: Sequence[ResolvedOffset],
    spans: Sequence[Span | ResolvedOffset],
) -> list[ResolvedOffset]:
    """What is open below a position may end above it: there the rest of the topic is read.

    A chunked message of which no part is there was abandoned by its producer: it holds up nobody.
    """
    above: dict[int, Question] = {}
    opened: list[BegunMessages] = []
    for index, (question, answer, found) in enumerate(zip(questions, answers, spans, strict=True)):
        open_below = answer.unfinished_transactions or (answer.unfinished_chunks and not answer.at_end)
        if answer.position is not None and open_below and isinstance(found, Span):
            above[index] = Question(
                question.topic, question.ledgers, answer.position, position=end_of(question.ledgers)
            )
            opened.append(BegunMessages(found.begun.open))
    ends = [_Place(end_of(question.ledgers)) for question in above.values()]
    ended = list(answers)
    for (index, found), before in zip(
        zip(above, _spans(cluster, list(above.values()), ends, opened), strict=True), opened, strict=True
    ):
        if isinstance(found, ResolvedOffset):
            ended[index] = found
        else:
            transactions = before.transactions.keys() & found.begun.transactions.keys()
            cut = before.cut_by(found.begun)
            ended[index] = replace(
                answers[index], unfinished_transactions=len(transactions), cut_message=min(cut, default=None)
            )
    return ended
