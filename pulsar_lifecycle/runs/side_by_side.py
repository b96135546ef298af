"""Ports for many threads of one run: what they ask for at the same time becomes one request, or one object.

Belongs here: combining calls, and sharing ports that take one caller at a time. Not here: what the threads do. Each
caller goes on only once its own part is done, so the order of its steps holds: what it journals is durable before its
next effect, in an object that others' rows are in, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.ports import (
    Archived,
    DeletionQueue,
    Entry,
    Journal,
    JournalRow,
    LedgerReader,
    MetadataStore,
    Sent,
)
from pulsar_lifecycle.ports.bundle import Ports

T = TypeVar("T")
R = TypeVar("R")


class Combined(Generic[T, R]):
    """Makes one call for all that ask at the same time: who asks while a call is under way is answered by the next.

    ``call`` answers each of its items, in order, and is never called twice at a time. What it raises, every caller
    whose items it had raises.
    """

    def __init__(self, call: Callable[[list[T]], Sequence[R]]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._waiting: list[_Asked[T, R]] = []
        self._busy = False

    def __call__(self, items: Sequence[T]) -> list[R]:
        """The answers to ``items``."""
        if not items:
            return []
        mine: _Asked[T, R] = _Asked(items)
        with self._lock:
            self._waiting.append(mine)
            first, self._busy = not self._busy, True
        if not first:  # whoever is told to lead by another has a turn to wait for, too, however soon it is told
            mine.turn.acquire()
        if first or mine.leads:
            self._lead()
        return mine.result()

    def _lead(self) -> None:
        with self._lock:
            taken, self._waiting = self._waiting, []
        try:
            answers = list(self._call([item for one in taken for item in one.items]))
            for one in taken:
                one.answers, answers = answers[: len(one.items)], answers[len(one.items) :]
        except BaseException as error:
            for one in taken:
                one.error = error
        with self._lock:
            following = self._waiting[0] if self._waiting else None
            self._busy = following is not None
        if following:
            following.leads = True
            following.turn.release()
        for one in taken:
            one.turn.release()


class _Asked(Generic[T, R]):
    """One caller's items, and what came of them; or it is to make the next call."""

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items
        self.leads = False
        self.turn = threading.Lock()
        """Released once: an event would cost three locks for each of some fifty calls of a topic."""
        self.turn.acquire()
        self.answers: list[R] | None = None
        self.error: BaseException | None = None

    def result(self) -> list[R]:
        if self.error is not None:
            raise self.error
        assert self.answers is not None
        return self.answers


class _OneAtATime:
    """A port that takes one caller at a time: each method waits for the others."""

    def __init__(self, port: Any) -> None:
        self._port = port
        self._turn = threading.RLock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)

        def call(*args: Any, **named: Any) -> Any:
            with self._turn:
                return found(*args, **named)

        return call


class _Store:
    """The metadata store, whose writes threads may make as they are: reads are combined, equal ones made once."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._read = Combined(_once(store.read))
        self._children = Combined(_once(store.children))
        self._sync = Combined[str, None](self._synced)

    def read(self, paths: Sequence[str]) -> list[Any]:
        return self._read(paths)

    def children(self, paths: Sequence[str]) -> list[Any]:
        return self._children(paths)

    def sync(self, path: str = "/") -> None:
        self._sync([path])

    def _synced(self, paths: list[str]) -> list[None]:
        for path in dict.fromkeys(paths):
            self._store.sync(path)
        return [None] * len(paths)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _once(read: Callable[[list[str]], Sequence[R]]) -> Callable[[list[str]], list[R]]:
    def answers(paths: list[str]) -> list[R]:
        wanted = list(dict.fromkeys(paths))
        found = dict(zip(wanted, read(wanted), strict=True))
        return [found[path] for path in paths]

    return answers


class _Journal(_OneAtATime):
    """Rows of all callers of a moment are one object, whose place each is told."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self._record = Combined[JournalRow, str](lambda rows: [journal.record(rows)] * len(rows))
        self._archive = Combined[Archived, str](lambda nodes: [journal.archive(nodes)] * len(nodes))

    def record(self, rows: Sequence[JournalRow]) -> str:
        return next(iter(self._record(rows)), "")

    def archive(self, nodes: Sequence[Archived]) -> str:
        return next(iter(self._archive(nodes)), "")


class _Queue(_OneAtATime):
    """Messages of all callers of a moment are under way together."""

    def __init__(self, queue: DeletionQueue) -> None:
        super().__init__(queue)
        self._send = Combined[tuple[PendingDeleteLedgerInfo, int], Sent](self._sent)

    def send(self, infos: Sequence[PendingDeleteLedgerInfo], deliver_after_ms: int) -> list[Sent]:
        return self._send([(info, deliver_after_ms) for info in infos])

    def _sent(self, asked: list[tuple[PendingDeleteLedgerInfo, int]]) -> list[Sent]:
        found: dict[int, Sent] = {}
        for delay in dict.fromkeys(delay for _, delay in asked):
            places = [place for place, (_, one) in enumerate(asked) if one == delay]
            found |= zip(places, self._port.send([asked[place][0] for place in places], delay), strict=True)
        return [found[place] for place in range(len(asked))]


class _Reader(_OneAtATime):
    """The last entries that callers of a moment want are read together."""

    def __init__(self, reader: LedgerReader) -> None:
        super().__init__(reader)
        self._last = Combined[tuple[int, LedgerMetadata], Entry | Exception | None](self._last_of)

    def last_entries(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Any]:
        return self._last(ledgers)

    def _last_of(self, ledgers: list[tuple[int, LedgerMetadata]]) -> Sequence[Any]:
        with self._turn:
            return self._port.last_entries(ledgers)


def shared(ports: Ports) -> Ports:
    """The same ports for any number of threads; what reads streams of entries or objects stays one thread's."""
    return replace(
        ports,
        store=cast("MetadataStore", _Store(ports.store)),
        reader=cast("LedgerReader", _Reader(ports.reader)),
        queue=cast("DeletionQueue", _Queue(ports.queue)),
        journal=cast("Journal", _Journal(ports.journal)),
    )
