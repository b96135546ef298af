"""BookKeeper's entries in memory: ``ports.LedgerReader``; passes tests/integration/test_bookie_reader.py."""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_lifecycle.errors import LifecycleError, NotFound, StoreError
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.ports import Entry


class FakeLedgerReader:
    """``payloads`` are the entries of each ledger that has any; ``failures`` are raised for the ledgers named there."""

    def __init__(self) -> None:
        self.payloads: dict[int, list[bytes]] = {}
        self.failures: dict[int, LifecycleError] = {}

    def last_entry(self, ledger_id: int, metadata: LedgerMetadata) -> Entry | None:
        if metadata.state == LedgerState.CLOSED:
            if metadata.last_entry_id < 0:
                return None
            return self.read(ledger_id, metadata, metadata.last_entry_id, metadata.last_entry_id)[0]
        payloads = self._payloads(ledger_id)
        return Entry(ledger_id, len(payloads) - 1, payloads[-1])

    def last_entries(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Entry | LifecycleError | None]:
        results: list[Entry | LifecycleError | None] = []
        for ledger_id, metadata in ledgers:
            try:
                results.append(self.last_entry(ledger_id, metadata))
            except LifecycleError as error:
                results.append(error)
        return results

    def read(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> list[Entry]:
        if first > last:
            return []
        payloads = self._payloads(ledger_id)
        if last >= len(payloads):
            raise StoreError(f"entry {ledger_id}:{len(payloads)}: every replica answered and none has it")
        return [Entry(ledger_id, i, payloads[i]) for i in range(first, last + 1)]

    def close(self) -> None:
        pass

    def _payloads(self, ledger_id: int) -> list[bytes]:
        if ledger_id in self.failures:
            raise self.failures[ledger_id]
        if not self.payloads.get(ledger_id):
            raise NotFound(f"ledger {ledger_id}: every replica says that the ledger is gone")
        return self.payloads[ledger_id]
