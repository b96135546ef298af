"""New ledgers straight to the bookies: ``ports.LedgerWriter``, without Java.

Belongs here: the life of a ledger that is written: its z-node, which bookies take its entries, another one for one that
fails, its close. Not here: connections (``pool``), frames (``connection``), entry bytes (``formats.entry``), ids
(``ledger_ids``).
Source: bookkeeper-server 4.17.2, LedgerHandle, PendingAddOp, LedgerMetadataBuilder; ctoken: PulsarLedgerManager 4.0.7.

An entry is confirmed once all bookies of its write set took it, or the ack quorum while no other bookie can stand in
for one that failed. The z-node is there before the first entry, or a bookie's garbage collection may drop it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Self

from pulsar_lifecycle.errors import (
    AccessDenied,
    Conflict,
    CorruptFormat,
    LifecycleError,
    OutcomeUnknown,
    Unavailable,
)
from pulsar_lifecycle.formats import bookie_info, bookie_racks, entry, ledger_metadata, striping
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.io.bookkeeper import answers
from pulsar_lifecycle.io.bookkeeper.connection import BookieCode, BookieRequest, BookieResponse
from pulsar_lifecycle.io.bookkeeper.ledger_ids import next_ledger_id
from pulsar_lifecycle.io.bookkeeper.pool import BookiePool
from pulsar_lifecycle.ports import Children, LedgerShape, MetadataStore, Node
from pulsar_lifecycle.settings import BookKeeperSettings

IN_FLIGHT = 8 << 20
"""Bytes of entries that are sent and not yet confirmed; one larger entry goes alone."""
Writable = tuple[list[str], dict[str, str]]
"""The bookies that take entries, and the racks of those that have one."""
_CTOKEN = 0  # what Pulsar's metadata driver writes


class BookieWriter:
    """``ports.LedgerWriter`` over one connection to each bookie. One thread, one ledger at a time."""

    def __init__(self, store: MetadataStore, settings: BookKeeperSettings) -> None:
        self._store = store
        self._root = settings.ledgers_root
        self._bookies = BookiePool(store, settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def reserve(self) -> int:
        """A ledger id that nobody else gets. Raises OutcomeUnknown: ask once more."""
        return next_ledger_id(self._store, self._root)

    def write(self, ledger_id: int, payloads: Iterable[bytes], shape: LedgerShape) -> LedgerMetadata:
        """Write a ledger of these entries and close it; see ``ports.LedgerWriter`` for what it raises."""
        ledger = _LedgerNode(self._store, ledger_path(ledger_id, self._root))
        ensemble = preferred(ledger_id, *self._writable())[: shape.ensemble_size]
        if len(ensemble) < shape.ensemble_size:
            raise Unavailable(
                f"ledger {ledger_id}: {shape.ensemble_size} bookies are to hold it, {len(ensemble)} take entries"
            )
        ledger.create(
            LedgerMetadata(
                LedgerState.OPEN,
                shape.ensemble_size,
                shape.write_quorum,
                shape.ack_quorum,
                (Segment(0, tuple(ensemble)),),
                digest_type=DigestType.CRC32C,
                ctoken=_CTOKEN,
                custom_metadata=shape.custom_metadata,
            )
        )
        try:
            adding = _Adding(ledger_id, ledger, self._bookies, self._writable)
            for payload in payloads:
                adding.add(payload)
            adding.confirm(0)
            return ledger.finish(adding.next_entry - 1, adding.length)
        except BaseException:
            ledger.discard()
            raise

    def close(self) -> None:
        """Close all connections."""
        self._bookies.close()

    def _writable(self) -> Writable:
        """The bookies that are registered and take entries, and the racks of those that have one."""
        (available,) = self._store.children(bookie_info.folders(self._root)[:1])
        if not isinstance(available, Children):
            raise Unavailable(f"{self._root}/available: no bookie can be found there")
        (racks,) = self._store.read([bookie_racks.BOOKIES])
        known: dict[str, str] = {}
        if isinstance(racks, Node):
            with contextlib.suppress(CorruptFormat):  # as brokers: without racks all bookies are alike
                known = bookie_racks.decode(racks.data)
        return [name for name in available.names if name != bookie_info.READ_ONLY], known


def preferred(ledger_id: int, bookies: Iterable[str], racks: Mapping[str, str]) -> list[str]:
    """The bookies in the order in which a ledger takes them: racks in turns, another order for another ledger."""
    by_rack: dict[str, deque[str]] = {}
    for bookie in sorted(bookies, key=lambda name: hashlib.sha256(f"{ledger_id} {name}".encode()).digest()):
        by_rack.setdefault(racks.get(bookie, bookie_racks.DEFAULT_RACK), deque()).append(bookie)
    order: list[str] = []
    while left := [rack for rack in by_rack.values() if rack]:
        order += [rack.popleft() for rack in left]
    return order


class _LedgerNode:
    """The z-node of a ledger that is written here, by compare-and-set alone."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._store = store
        self._path = path
        self._version = 0
        self.metadata: LedgerMetadata

    def create(self, metadata: LedgerMetadata) -> None:
        """Make the z-node. Raises Conflict if the id is taken."""
        data = ledger_metadata.encode(metadata)
        try:
            self._version = self._store.create(self._path, data, parents=True).version
        except OutcomeUnknown:
            node = self._read()
            if node is None or node.data != data or node.stat.version:
                raise
        self.metadata = metadata

    def write(self, metadata: LedgerMetadata) -> None:
        """Replace the metadata. Raises Conflict if somebody else wrote it."""
        data = ledger_metadata.encode(metadata)
        try:
            self._version = self._store.write(self._path, data, self._version).version
        except OutcomeUnknown:
            node = self._read()
            if node is None or node.data != data or node.stat.version != self._version + 1:
                raise
            self._version = node.stat.version
        self.metadata = metadata

    def finish(self, last_entry_id: int, length: int) -> LedgerMetadata:
        """Close the ledger after its last entry."""
        self.write(replace(self.metadata, state=LedgerState.CLOSED, last_entry_id=last_entry_id, length=length))
        return self.metadata

    def discard(self) -> None:
        """Delete the z-node if nobody else wrote it; it stays, OPEN, where that cannot be done."""
        with contextlib.suppress(LifecycleError):
            self._store.delete(self._path, self._version)

    def _read(self) -> Node | None:
        self._store.sync(self._path)
        (node,) = self._store.read([self._path])
        return node if isinstance(node, Node) else None


@dataclass(slots=True)
class _Pending:
    """An entry that is not confirmed: the request's bytes, and the bookies that took them."""

    request: bytes
    taken: set[str] = field(default_factory=set[str])


class _Adding:
    """Entries under way to the bookies of a ledger, in order; ``length`` bytes of payload up to ``next_entry``."""

    def __init__(
        self, ledger_id: int, ledger: _LedgerNode, bookies: BookiePool, writable: Callable[[], Writable]
    ) -> None:
        self.next_entry = 0
        self.length = 0
        self._ledger_id = ledger_id
        self._ledger = ledger
        self._bookies = bookies
        self._writable = writable
        self._key = entry.master_key(ledger.metadata.password)
        self._pending: dict[int, _Pending] = {}
        self._bytes = 0
        self._failed: dict[str, LifecycleError] = {}
        self._without_spare: frozenset[str] = frozenset()
        """The failed bookies when no other could stand in for one of them."""
        self._ended: LifecycleError | None = None

    def add(self, payload: bytes) -> None:
        """Send the next entry, and wait while too much is under way. Raises Unavailable, Conflict, AccessDenied."""
        self.length += len(payload)
        value = entry.StoredEntry(self._ledger_id, self.next_entry, self._first_pending - 1, self.length, payload)
        pending = _Pending(self._key + entry.encode(value, DigestType.CRC32C, self._ledger.metadata.password))
        self._pending[self.next_entry] = pending
        self._bytes += len(pending.request)
        self._send(self.next_entry, self._write_set(self.next_entry))
        self.next_entry += 1
        self.confirm(IN_FLIGHT)

    def confirm(self, most: int) -> None:
        """Wait until at most so many bytes are not confirmed; raises as :meth:`add`."""
        while self._bytes > most:
            self._bookies.wait()
            self._take_confirmed()
            while self._replaced():
                self._take_confirmed()

    @property
    def _first_pending(self) -> int:
        return next(iter(self._pending), self.next_entry)

    def _write_set(self, entry_id: int) -> list[str]:
        return striping.replicas(self._ledger.metadata, entry_id)

    def _send(self, entry_id: int, to: Collection[str]) -> None:
        for bookie in to:
            answered = partial(self._answered, entry_id, bookie)
            self._bookies.ask(
                bookie, BookieRequest(self._ledger_id, entry_id, answered, added=self._pending[entry_id].request)
            )

    def _answered(self, entry_id: int, bookie: str, answer: BookieResponse | LifecycleError) -> None:
        """Only notes what was said: it is called while requests are sent."""
        if isinstance(answer, LifecycleError):
            self._failed.setdefault(bookie, answer)
        elif answer.code == BookieCode.OK:
            if entry_id in self._pending:
                self._pending[entry_id].taken.add(bookie)
        elif answer.code == BookieCode.FENCED:
            self._ended = Conflict(f"ledger {self._ledger_id}: somebody else recovers it; bookie {bookie} is fenced")
        elif answer.code == BookieCode.UNAUTHORIZED:
            self._ended = AccessDenied(f"ledger {self._ledger_id}: bookie {bookie} knows it with another password")
        else:
            self._failed.setdefault(bookie, answers.refusal(answer.code))

    def _take_confirmed(self) -> None:
        """Take what is confirmed off the list, the first entries first; raises what ends the ledger."""
        if self._ended is not None:
            raise self._ended
        for entry_id, pending in list(self._pending.items()):
            bookies = set(self._write_set(entry_id))
            missing = bookies - pending.taken
            gone = missing & self._without_spare
            if len(bookies - gone) < self._ledger.metadata.ack_quorum:
                why = "; ".join(str(self._failed[bookie]) for bookie in sorted(gone))
                raise Unavailable(f"ledger {self._ledger_id}: too few bookies take entry {entry_id}: {why}")
            if missing != gone:
                return
            self._bytes -= len(pending.request)
            del self._pending[entry_id]

    def _replaced(self) -> bool:
        """Let other bookies stand in for failed ones from the first unconfirmed entry on; whether something changed."""
        metadata = self._ledger.metadata
        last = metadata.segments[-1]
        failed = frozenset(last.bookies) & self._failed.keys()
        if not self._pending or failed <= self._without_spare:
            return False
        order = preferred(self._ledger_id, *self._writable())
        spare = [bookie for bookie in order if bookie not in last.bookies and bookie not in self._failed]
        ensemble = tuple(spare.pop(0) if bookie in failed and spare else bookie for bookie in last.bookies)
        self._without_spare = failed & frozenset(ensemble)
        if ensemble != last.bookies:
            first = self._first_pending
            before = metadata.segments[:-1] if last.first_entry_id == first else metadata.segments
            self._ledger.write(replace(metadata, segments=(*before, Segment(first, ensemble))))
            new = set(ensemble) - set(last.bookies)
            for entry_id in list(self._pending):
                self._send(entry_id, new & set(self._write_set(entry_id)))
        return True
