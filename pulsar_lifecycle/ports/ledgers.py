"""Entries of ledgers, read without opening or fencing them; and new ledgers, written whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Entry:
    """One BookKeeper entry: ``payload`` without the digest header, already verified.

    ``length``: bytes of all payloads of the ledger up to and with it, where it was read as the last one of a ledger
    that is not closed; else None.
    """

    ledger_id: int
    entry_id: int
    payload: bytes
    length: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Payloads of consecutive entries of a ledger from ``first`` on, already verified; never empty."""

    first: int
    payloads: list[bytes]


@dataclass(frozen=True, slots=True)
class ReplicaCheck:
    """What the bookies of a closed ledger gave when each was asked for entries that it should have.

    ``entries`` is how many the ledger has, ``asked`` of how many every replica was asked; ``asked * write quorum``
    copies were expected and ``held`` came with the right digest. Of the entries asked for, ``thin`` came from fewer
    bookies than the write quorum, ``lost`` from none while all of theirs answered, ``unproven`` from none while one of
    theirs gave no answer. ``missing`` counts by bookie the copies it answered not to have, or that are damaged;
    ``unanswered`` says by bookie why it gave no answer, which is never taken for "gone".
    """

    entries: int
    asked: int
    held: int
    thin: int
    lost: int
    unproven: int
    missing: Mapping[str, int]
    unanswered: Mapping[str, str]

    @property
    def every_entry(self) -> bool:
        """Whether every entry was asked for, not a sample."""
        return self.asked == self.entries


@dataclass(frozen=True, slots=True)
class Traces:
    """What the ``bookies`` of all segments of a ledger said when asked whether they have any entry of it.

    ``holding`` are those that gave one, whatever its digest. ``unanswered`` says by bookie why it gave no answer, which
    is never taken for "gone".
    """

    bookies: tuple[str, ...]
    holding: tuple[str, ...]
    unanswered: Mapping[str, str]


class LedgerReader(Protocol):
    """Reads BookKeeper entries without ever recovering or fencing a ledger."""

    def last_entry(self, ledger_id: int, metadata: LedgerMetadata) -> Entry | None:
        """The last entry of a ledger, confirmed or not (open cursor ledgers need LAC+1); None if it has none.

        Raises NotFound when every replica says the ledger is gone, Unavailable when too few replicas answered to know.
        """
        ...

    def last_entries(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Entry | LifecycleError | None]:
        """:meth:`last_entry` of many ledgers in few round trips, in order; what it would raise stands in the list."""
        ...

    def read_each(self, wanted: Sequence[tuple[int, LedgerMetadata, int]]) -> list[Entry | LifecycleError]:
        """One entry each of many ledgers (id, metadata, entry id) in few round trips, in order.

        What :meth:`read` would raise stands in the list.
        """
        ...

    def read(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> list[Entry]:
        """Entries first..last, both inclusive. Raises NotFound, StoreError, Unavailable, CorruptFormat."""
        ...

    def stream(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> Iterator[EntryBatch]:
        """Entries first..last of a closed ledger, both inclusive, in order, a batch of some MiB at most at a time.

        For any number of entries: reads ahead of a slow consumer by a bounded number of bytes. Also the ledger's length
        must add up. Raises UsageError at once for a ledger that is not closed or entries it does not have; then as
        :meth:`read`, after the entries before the one that failed. One that is not read to its end is to be closed.
        """
        ...

    def check_replicas(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
        """Ask every replica of closed ledgers whether it still holds its entries, in order; never raises for a bookie.

        Which entries: ``formats.striping.telling_entries``.
        """
        ...

    def find_traces(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Traces]:
        """Ask every bookie of every segment of ledgers whether it has any entry of them, in order.

        Never raises for a bookie. Tells only of ledgers whose z-node is gone: a bookie may be given entries of others.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


@dataclass(frozen=True, slots=True)
class LedgerShape:
    """How a new ledger is stored: bookies, copies of each entry, answers that confirm one; and its tags."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    custom_metadata: Mapping[str, bytes]


class LedgerWriter(Protocol):
    """Writes new BookKeeper ledgers as a broker's client does: CRC32C digests, empty password.

    A ledger is CLOSED only with every entry confirmed. What fails, or dies, leaves no z-node or an OPEN one.
    """

    def reserve(self) -> int:
        """A ledger id that nobody else gets, from the cluster's generator. Raises OutcomeUnknown: ask once more."""
        ...

    def write(self, ledger_id: int, payloads: Iterable[bytes], shape: LedgerShape) -> LedgerMetadata:
        """Write a ledger of these entries and close it; returns its metadata as stored.

        Raises Conflict if the id is taken or somebody else closed the ledger, Unavailable when too few bookies take
        entries, OutcomeUnknown, AccessDenied; then the z-node is deleted as far as that can be done.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...
