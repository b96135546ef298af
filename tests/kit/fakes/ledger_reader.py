"""BookKeeper's entries in memory: ``ports.LedgerReader`` and ``ports.LedgerWriter``.

They pass tests/integration/contracts/test_bookie_reader.py and test_ledger_writer.py.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pulsar_lifecycle.errors import LifecycleError, NotFound, StoreError, UsageError
from pulsar_lifecycle.formats import ledger_metadata, striping
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.ports import Entry, EntryBatch, LedgerShape, MetadataStore, ReplicaCheck, Traces


class FakeLedgerReader:
    """``payloads`` are the entries of each ledger that has any; ``failures`` are raised for the ledgers named there.

    Every bookie of a ledger's ensemble holds what it should, but for the ledgers it has ``collected``; one in
    ``unanswered`` does not answer. No bookie has an entry that is ``lost`` (ledger, entry) any more.
    """

    def __init__(self) -> None:
        self.collected: dict[str, set[int]] = {}
        self.unanswered: set[str] = set()
        self.lost: set[tuple[int, int]] = set()
        self.payloads: dict[int, list[bytes]] = {}
        self.failures: dict[int, LifecycleError] = {}

    def last_entry(self, ledger_id: int, metadata: LedgerMetadata) -> Entry | None:
        if metadata.state == LedgerState.CLOSED:
            if metadata.last_entry_id < 0:
                return None
            return self.read(ledger_id, metadata, metadata.last_entry_id, metadata.last_entry_id)[0]
        payloads = self._payloads(ledger_id)
        return Entry(ledger_id, len(payloads) - 1, payloads[-1], sum(map(len, payloads)))

    def last_entries(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Entry | LifecycleError | None]:
        results: list[Entry | LifecycleError | None] = []
        for ledger_id, metadata in ledgers:
            try:
                results.append(self.last_entry(ledger_id, metadata))
            except LifecycleError as error:
                results.append(error)
        return results

    def read_each(self, wanted: Sequence[tuple[int, LedgerMetadata, int]]) -> list[Entry | LifecycleError]:
        results: list[Entry | LifecycleError] = []
        for ledger_id, metadata, at in wanted:
            try:
                results += self.read(ledger_id, metadata, at, at)
            except LifecycleError as error:
                results.append(error)
        return results

    def read(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> list[Entry]:
        if first > last:
            return []
        payloads = self._payloads(ledger_id)
        missing = {*range(len(payloads), last + 1)} | {at for i, at in self.lost if i == ledger_id}
        if nowhere := sorted(missing.intersection(range(first, last + 1))):
            raise StoreError(f"entry {ledger_id}:{nowhere[0]}: every replica answered and none has it")
        return [Entry(ledger_id, i, payloads[i]) for i in range(first, last + 1)]

    def stream(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> Iterator[EntryBatch]:
        if metadata.state != LedgerState.CLOSED:
            raise UsageError(f"ledger {ledger_id}: only a closed ledger can be read whole; this one is not closed")
        if not 0 <= first <= last + 1 <= metadata.last_entry_id + 1:
            raise UsageError(f"ledger {ledger_id}: it has the entries 0 .. {metadata.last_entry_id}")
        return self._batches(ledger_id, metadata, first, last)

    def check_replicas(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
        return [self._check(*ledger) for ledger in ledgers]

    def find_traces(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Traces]:
        return [self._traces(*ledger) for ledger in ledgers]

    def close(self) -> None:
        pass

    def _batches(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> Iterator[EntryBatch]:
        for at in range(first, last + 1, 10):
            end = min(at + 9, last)
            whole = min((e for i, e in self.lost if i == ledger_id and at <= e <= end), default=end + 1)
            if whole > at:
                entries = self.read(ledger_id, metadata, at, whole - 1)
                yield EntryBatch(at, [entry.payload for entry in entries])
            self.read(ledger_id, metadata, whole, end)

    def _payloads(self, ledger_id: int) -> list[bytes]:
        if ledger_id in self.failures:
            raise self.failures[ledger_id]
        if not self.payloads.get(ledger_id):
            raise NotFound(f"ledger {ledger_id}: every replica says that the ledger is gone")
        return self.payloads[ledger_id]

    def _traces(self, ledger_id: int, metadata: LedgerMetadata) -> Traces:
        bookies = tuple(dict.fromkeys(bookie for segment in metadata.segments for bookie in segment.bookies))
        held = {b for e in range(len(self.payloads.get(ledger_id, ()))) for b in striping.replicas(metadata, e)}
        holding = [b for b in bookies if b in held and ledger_id not in self.collected.get(b, ())]
        return Traces(
            bookies,
            tuple(b for b in holding if b not in self.unanswered),
            {b: f"bookie {b}: timed out" for b in bookies if b in self.unanswered},
        )

    def _check(self, ledger_id: int, metadata: LedgerMetadata) -> ReplicaCheck:
        asked = striping.telling_entries(metadata)
        missing, unanswered = Counter[str](), dict[str, str]()
        verdicts: list[tuple[int, int]] = []  # copies held, copies not there
        for e in asked:
            held = absent = 0
            for bookie in striping.replicas(metadata, e):
                gone = ledger_id in self.collected.get(bookie, ()) or e >= len(self.payloads.get(ledger_id, ()))
                if bookie in self.unanswered:
                    unanswered[bookie] = f"bookie {bookie}: timed out"
                elif gone:
                    absent += 1
                    missing[bookie] += 1
                else:
                    held += 1
            verdicts.append((held, absent))
        return ReplicaCheck(
            entries=metadata.last_entry_id + 1,
            asked=len(asked),
            held=sum(held for held, _ in verdicts),
            thin=sum(0 < held < metadata.write_quorum for held, _ in verdicts),
            lost=sum(absent == metadata.write_quorum for _, absent in verdicts),
            unproven=sum(not held and absent < metadata.write_quorum for held, absent in verdicts),
            missing=missing,
            unanswered=unanswered,
        )


class FakeLedgerWriter:
    """Z-nodes go to ``store``, entries to ``reader``. ``failures`` are raised in place of closing, the first first."""

    def __init__(self, store: MetadataStore, reader: FakeLedgerReader) -> None:
        self.failures: list[LifecycleError] = []
        self._store = store
        self._reader = reader

    def reserve(self) -> int:
        if self._store.children(["/ledgers/idgen"]) == [None]:
            self._store.create("/ledgers/idgen", parents=True)
        return self._store.sequence("/ledgers/idgen/ID-")

    def write(self, ledger_id: int, payloads: Iterable[bytes], shape: LedgerShape) -> LedgerMetadata:
        path = ledger_path(ledger_id)
        self._store.create(path, ledger_metadata.encode(_metadata(shape, LedgerState.OPEN, [])), parents=True)
        try:
            written = list(payloads)
            self._reader.payloads[ledger_id] = written
            if self.failures:
                raise self.failures.pop(0)
        except BaseException:
            with contextlib.suppress(LifecycleError):
                self._store.delete(path, 0)
            raise
        closed = _metadata(shape, LedgerState.CLOSED, written)
        self._store.write(path, ledger_metadata.encode(closed), 0)
        return closed

    def close(self) -> None:
        pass


def _metadata(shape: LedgerShape, state: LedgerState, payloads: list[bytes]) -> LedgerMetadata:
    return LedgerMetadata(
        state,
        shape.ensemble_size,
        shape.write_quorum,
        shape.ack_quorum,
        (Segment(0, tuple(f"bookie-{i}" for i in range(shape.ensemble_size))),),
        length=sum(map(len, payloads)),
        last_entry_id=len(payloads) - 1,
        digest_type=DigestType.CRC32C,
        ctoken=0,
        custom_metadata=shape.custom_metadata,
    )
