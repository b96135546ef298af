"""Entries straight from the bookies: ``ports.LedgerReader`` without recovery, without fencing, without Java.

Belongs here: which ledgers may be read how, and where one ends. Not here: reading ranges (``stream.py``) and single
entries (``singles.py``), checks of every copy (``replica_check.py``), connections (``pool.py``), frames
(``connection.py``), entry bytes (``formats.entry``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from pulsar_lifecycle.errors import LifecycleError, UsageError
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.io.bookkeeper import replica_check, singles, traces
from pulsar_lifecycle.io.bookkeeper.answers import highest
from pulsar_lifecycle.io.bookkeeper.connection import LAST_ENTRY
from pulsar_lifecycle.io.bookkeeper.pool import BookiePool
from pulsar_lifecycle.io.bookkeeper.stream import LedgerStream
from pulsar_lifecycle.ports import Entry, EntryBatch, MetadataStore, ReplicaCheck, Traces
from pulsar_lifecycle.settings import BookKeeperSettings


class BookieReader:
    """``ports.LedgerReader`` over one connection to each bookie. One thread at a time; streams may take turns.

    Finds the bookies through ``store``. ``pace`` is told the bytes of each batch of a stream before it is handed on,
    and may wait. Raises ConfigError if TLS is asked for with certificates that cannot be loaded.
    """

    def __init__(
        self, store: MetadataStore, settings: BookKeeperSettings, pace: Callable[[int], object] | None = None
    ) -> None:
        self._bookies = BookiePool(store, settings)
        self._pace = pace

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def last_entry(self, ledger_id: int, metadata: LedgerMetadata) -> Entry | None:
        """The last entry of a ledger, confirmed or not; None if it has none.

        CLOSED: the entry that the metadata names. Otherwise: the highest that any bookie of the last ensemble has, if
        so many of them answered that no acknowledged entry can have escaped. Raises NotFound when every replica says
        NO_LEDGER (which an open ledger that was never written says too), Unavailable when too few replicas answered,
        CorruptFormat when only entries with a wrong digest were found, StoreError when all answered and none has it.
        """
        result = self.last_entries([(ledger_id, metadata)])[0]
        if isinstance(result, LifecycleError):
            raise result
        return result

    def last_entries(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Entry | LifecycleError | None]:
        """:meth:`last_entry` of many ledgers in few round trips, in order; what it would raise stands in the list."""
        results: list[Entry | LifecycleError | None] = [None] * len(ledgers)
        last: dict[int, int] = {}
        open_ledgers: list[int] = []
        for i, (_, metadata) in enumerate(ledgers):
            if metadata.state != LedgerState.CLOSED:
                open_ledgers.append(i)
            elif metadata.last_entry_id >= 0:
                last[i] = metadata.last_entry_id
        probes = [
            (bookie, ledgers[i][0], LAST_ENTRY) for i in open_ledgers for bookie in ledgers[i][1].segments[-1].bookies
        ]
        answers = iter(self._bookies.exchange(probes))
        for i in open_ledgers:
            ledger_id, metadata = ledgers[i]
            found = highest(ledger_id, metadata, [next(answers) for _ in metadata.segments[-1].bookies])
            if isinstance(found, int):
                last[i] = found
            else:
                results[i] = found
        for i, entry in zip(last, self.read_each([(*ledgers[i], at) for i, at in last.items()]), strict=True):
            results[i] = entry
        return results

    def read_each(self, wanted: Sequence[tuple[int, LedgerMetadata, int]]) -> list[Entry | LifecycleError]:
        """One entry each of many ledgers in few round trips, in order; what :meth:`read` would raise is in the list."""
        return singles.read_each(self._bookies, wanted)

    def read(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> list[Entry]:
        """Entries first..last, both inclusive. Each is verified; another replica is asked where one fails.

        Raises NotFound when every replica of an entry says NO_LEDGER, StoreError when they all answered and none has
        it, Unavailable, CorruptFormat.
        """
        return [
            Entry(ledger_id, entry_id, payload)
            for batch in LedgerStream(self._bookies, ledger_id, metadata, first, last)
            for entry_id, payload in enumerate(batch.payloads, batch.first)
        ]

    def stream(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> Iterator[EntryBatch]:
        """Entries first..last of a closed ledger, both inclusive, in order, a batch of some MiB at most at a time.

        Reads ahead by ``stream.READ_AHEAD`` bytes, from all replicas. Raises as :meth:`read`, after the entries
        before the one that failed, and UsageError at once. Close it if it is not read to its end.
        """
        if metadata.state != LedgerState.CLOSED:
            raise UsageError(f"ledger {ledger_id}: only a closed ledger can be read whole; this one is not closed")
        if not 0 <= first <= last + 1 <= metadata.last_entry_id + 1:
            raise UsageError(
                f"ledger {ledger_id}: it has the entries 0 .. {metadata.last_entry_id}, asked for {first} .. {last}"
            )
        length = metadata.length if last == metadata.last_entry_id else None
        return self._paced(LedgerStream(self._bookies, ledger_id, metadata, first, last, length))

    def check_replicas(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
        """Ask every replica of closed ledgers whether it still holds its entries; one result per ledger, in order.

        A bookie that fails once is not asked again in the same call: nothing that was left to ask has an answer.
        """
        return replica_check.check_replicas(self._bookies, ledgers)

    def find_traces(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Traces]:
        """Ask every bookie of every segment of ledgers whether it has any entry of them, in order.

        A bookie that fails once is not asked again in the same call: it counts as unanswered for all that was left to
        ask.
        """
        return traces.find_traces(self._bookies, ledgers)

    def close(self) -> None:
        """Close all connections."""
        self._bookies.close()

    # -------------------------------------------------------------------------------------------------------- private

    def _paced(self, stream: LedgerStream) -> Iterator[EntryBatch]:
        for batch in stream:
            if self._pace is not None:
                self._pace(sum(map(len, batch.payloads)))
            yield batch
