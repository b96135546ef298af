"""What lies between two positions of a topic: how much, published when, and whether publish times only grow.

Belongs here: the facts of an entry that need no look into its payload, and adding them up, piece by piece. Not here:
reading entries, finding where a time falls (``time_offsets.py``). Producers set publish times by their own clocks:
nothing makes them grow along a topic. What brokers write for themselves (markers) is no message and has no say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import message
from pulsar_lifecycle.formats.message import Envelope
from pulsar_lifecycle.model import MessagePosition, Position


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there is. A chunked message counts where its last part is; ``bytes`` are payloads of whole entries."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.entries + other.entries, self.messages + other.messages, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Published:
    """A message's position and when its producer published it, in ms; all of a batch are published at once."""

    position: MessagePosition
    at: int


Unit = tuple[str, int, int]
"""What several entries make up: a chunked message by its UUID (``(uuid, -1, -1)``), a transaction by its id."""


@dataclass(frozen=True, slots=True)
class BegunMessages:
    """Chunked messages and transactions of a run of entries.

    ``open``: those that began in it and did not end in it, with where they began. ``ended``: those that ended in it,
    whether they began in it or before. ``gone_on``: chunked messages with a part in it that is not their first one.
    """

    open: Mapping[Unit, MessagePosition] = field(default_factory=dict[Unit, MessagePosition])
    ended: frozenset[Unit] = frozenset()
    gone_on: frozenset[Unit] = frozenset()

    def __add__(self, after: BegunMessages) -> BegunMessages:
        still = {unit: at for unit, at in self.open.items() if unit not in after.ended}
        return BegunMessages({**after.open, **still}, self.ended | after.ended, self.gone_on | after.gone_on)

    def to_come(self) -> BegunMessages:
        """As much of it as what comes later can change."""
        return BegunMessages(self.open, gone_on=self.gone_on & self.open.keys())

    def cut_by(self, after: BegunMessages) -> list[MessagePosition]:
        """Where chunked messages begin that are open and have a part in ``after``, which is this run and more.

        A producer that begins to count again gives its UUIDs again: what is open in ``after`` may be another message.
        """
        chunked = {unit: at for unit, at in self.open.items() if unit[1] == _CHUNKED}
        return [at for unit, at in chunked.items() if after.open.get(unit) != at or unit in after.gone_on]

    @property
    def chunked(self) -> Mapping[str, MessagePosition]:
        """Chunked messages whose last part did not come, by UUID."""
        return {uuid: at for (uuid, high, _), at in self.open.items() if high == _CHUNKED}

    @property
    def transactions(self) -> Mapping[Unit, MessagePosition]:
        """Transactions whose commit or abort did not come."""
        return {unit: at for unit, at in self.open.items() if unit[1] != _CHUNKED}


_CHUNKED = -1


@dataclass(frozen=True, slots=True)
class Span:
    """A run of entries: ``below`` is what comes before the first message published at or after a time.

    ``newer``: messages that were published at or after it, the first of them ``first_newer``. Without a time, and
    without such a message, all is below. ``last_below``, ``latest_deliver_at`` and ``begun`` are of what is below;
    ``first`` and ``last`` of all messages, and ``goes_back``: one was published before the one that it follows.
    """

    below: Counts = field(default_factory=Counts)
    newer: Counts = field(default_factory=Counts)
    first_newer: Published | None = None
    last_below: Published | None = None
    latest_deliver_at: int | None = None
    begun: BegunMessages = field(default_factory=BegunMessages)
    goes_back: bool = False
    first: Published | None = None
    last: Published | None = None

    def __add__(self, after: Span) -> Span:
        """Both runs as one; ``after`` follows this one in the topic."""
        cut = self.first_newer is not None
        return Span(
            self.below if cut else self.below + after.below,
            self.newer + after.newer,
            self.first_newer or after.first_newer,
            self.last_below if cut else after.last_below or self.last_below,
            self.latest_deliver_at if cut else _latest(self.latest_deliver_at, after.latest_deliver_at),
            self.begun if cut else self.begun + after.begun,
            self.goes_back or after.goes_back or _goes_back(self, after),
            self.first or after.first,
            after.last or self.last,
        )


def span(entries: Iterable[tuple[Position, bytes]], time_ms: int | None = None) -> Span:
    """Entries of a topic, in its order, added up; raises CorruptFormat naming the entry that is no message."""
    tally = _Tally(time_ms)
    for position, data in entries:
        tally.add(position, data)
    return tally.span()


def envelope(position: Position, data: bytes) -> Envelope:
    """An entry's metadata; raises CorruptFormat naming the entry."""
    try:
        return message.envelope(data)
    except CorruptFormat as error:
        raise type(error)(f"entry {position}: {error.what}", error.offset, error.expected) from error


def published_at(entry: Envelope) -> int | None:
    """When a message was published, in ms; None for what brokers write for themselves."""
    return entry.publish_time if entry.marker_type is None else None


class _Tally:
    """A span in the making: an entry costs as much whatever came before it."""

    def __init__(self, time_ms: int | None) -> None:
        self._time = time_ms
        self._counts = [[0, 0, 0], [0, 0, 0]]
        self._first_newer: Published | None = None
        self._last_below: Published | None = None
        self._latest_deliver_at: int | None = None
        self._open: dict[Unit, MessagePosition] = {}
        self._ended: set[Unit] = set()
        self._gone_on: set[Unit] = set()
        self._goes_back = False
        self._first: Published | None = None
        self._last: Published | None = None

    def add(self, position: Position, data: bytes) -> None:
        """The next entry of the topic."""
        found = envelope(position, data)
        at = MessagePosition(position.ledger_id, position.entry_id)
        below, newer = self._counts
        published = None if found.marker_type is not None else Published(at, found.publish_time)
        messages = _messages(found)
        if published is not None:
            self._follow(published)
            if self._time is not None and published.at >= self._time:
                _count(newer, messages, data)
                self._first_newer = self._first_newer or published
        if self._first_newer is not None:
            return
        _count(below, messages, data)
        if published is not None:
            self._last_below = published
            self._latest_deliver_at = _latest(self._latest_deliver_at, found.deliver_at_time)
        self._take_part(found, at)

    def span(self) -> Span:
        """All of them."""
        below, newer = (Counts(*numbers) for numbers in self._counts)
        return Span(
            below,
            newer,
            self._first_newer,
            self._last_below,
            self._latest_deliver_at,
            BegunMessages(self._open, frozenset(self._ended), frozenset(self._gone_on)),
            self._goes_back,
            self._first,
            self._last,
        )

    def _follow(self, published: Published) -> None:
        if self._last is not None and published.at < self._last.at:
            self._goes_back = True
        self._first, self._last = self._first or published, published

    def _take_part(self, found: Envelope, at: MessagePosition) -> None:
        """A part of a chunked message may be in a transaction, too."""
        if found.transaction is not None:
            begins, ends = found.marker_type is None, found.marker_type in message.TRANSACTION_ENDS
            self._take(("", *found.transaction), at, begins=begins, ends=ends)
        if found.chunk is not None:
            unit, (number, count) = (found.uuid or "", _CHUNKED, _CHUNKED), found.chunk
            if number > 0:
                self._gone_on.add(unit)
            self._take(unit, at, begins=number == 0, ends=number == count - 1)

    def _take(self, unit: Unit, at: MessagePosition, *, begins: bool, ends: bool) -> None:
        if begins:
            self._open.setdefault(unit, at)
        elif ends:
            self._open.pop(unit, None)
            self._ended.add(unit)


def _messages(found: Envelope) -> int:
    if found.marker_type is not None:
        return 0
    if found.chunk is not None:
        return int(found.chunk[0] == found.chunk[1] - 1)
    return 1 if found.batch_size is None else found.batch_size


def _count(counts: list[int], messages: int, data: bytes) -> None:
    counts[0] += 1
    counts[1] += messages
    counts[2] += len(data)


def _goes_back(left: Span, right: Span) -> bool:
    return left.last is not None and right.first is not None and right.first.at < left.last.at


def _latest(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)
