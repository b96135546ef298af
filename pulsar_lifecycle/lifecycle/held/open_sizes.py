"""What is in ledgers that were never closed, as the bookies have it: no metadata says it.

Belongs here: asking for their last entries. Recovers no ledger, and writes nothing. Not here: which ledgers are asked
for (``held_run.py``, ``lifecycle/load/``, ``lifecycle/activity/``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.lifecycle.held.open_ledgers import OPEN_SIZES
from pulsar_lifecycle.ports import Connect, Entry, LedgerReader, MetadataStore
from pulsar_lifecycle.scan.stored_references import last_entries_of, never_written
from pulsar_lifecycle.settings import Settings

AT_ONCE = 1_000
"""Ledgers that bookies are asked about together."""


def open_sizes(store: MetadataStore, reader: LedgerReader, root: str, ids: Sequence[int]) -> pa.Table:
    """Rows of :data:`OPEN_SIZES` of these ledgers, in their order."""
    found: list[dict[str, Any]] = []
    for start in range(0, len(ids), AT_ONCE):
        some = ids[start : start + AT_ONCE]
        answers = last_entries_of(store, reader, some, root)
        found += [{"ledger_id": i, **_size(*answer)} for i, answer in zip(some, answers, strict=True)]
    return pa.Table.from_pylist(found, OPEN_SIZES)


def open_sizes_of(connect: Connect, settings: Settings, ids: Sequence[int]) -> pa.Table:
    """The same, by connections of its own; it makes none where there are no ledgers."""
    if not ids:
        return OPEN_SIZES.empty_table()
    with connect(settings, read_only=True) as ports:
        return open_sizes(ports.store, ports.reader, settings.bookkeeper.ledgers_root, ids)


def _size(metadata: LedgerMetadata | LifecycleError, entry: Entry | LifecycleError | None) -> dict[str, Any]:
    """What is in a ledger, and whether it is ``open`` still."""
    if isinstance(metadata, LifecycleError):
        return {"open": not isinstance(metadata, NotFound), "problem": str(metadata)}
    still = metadata.state is not LedgerState.CLOSED
    if entry is None or never_written(metadata, entry):
        return {"open": still, "entries": 0, "bytes": 0, "physical_bytes": 0}
    if isinstance(entry, LifecycleError):
        return {"open": still, "problem": str(entry)}
    length = entry.length
    physical = None if length is None else length * max(1, metadata.write_quorum)
    return {"open": still, "entries": entry.entry_id + 1, "bytes": length, "physical_bytes": physical}
