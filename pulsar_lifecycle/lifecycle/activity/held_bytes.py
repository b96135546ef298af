"""What the data of inactive topics, and what inactive subscriptions keep, takes on the bookies' disks.

Belongs here: which ledgers count, and reading them of a stored scan. Not here: which are inactive
(``inactive_rules.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.copies.listed_ledgers import OF_COPY, on_disk
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from pulsar_lifecycle.values.tables import BOOKKEEPER_LEDGERS, MANAGED_LEDGERS

Opened = Callable[[Sequence[int]], pa.Table]
"""Rows of ``OPEN_SIZES`` of these ledgers."""


def on_bookies(lake: Lake, rows: pa.Table, part: str, ledgers: Sequence[str], opened: Opened) -> pa.Table:
    """Rows of ``INACTIVE_TOPICS`` or ``INACTIVE_CURSORS`` with their ``physical_bytes`` and ``weight``.

    ``part``: the file of ``managed_ledgers`` that has their topics; ``ledgers``: those of ``bookkeeper_ledgers``.
    ``opened``: asks bookies for open ledgers of rows that nothing keeps. Where they do not say what is in one, that
    keeps its rows: caps would count it as nothing.
    """
    if not rows.num_rows:
        return rows
    names = whole(rows.column("topic"))
    some = pa.schema([MANAGED_LEDGERS.field(name) for name in ("topic", "ledgers")])
    batches = lake.batches([part], some.names, pc.field("topic").isin(names.unique()))
    listed = pa.Table.from_batches(batches, some)
    place = pc.index_in(names, whole(listed.column("topic")))
    lists = whole(listed.column("ledgers")).take(place)
    inner, counts = lists.flatten(), np.asarray(lists.value_lengths().fill_null(0), np.int64)
    row = np.repeat(np.arange(rows.num_rows), counts)
    kept = _kept(rows, inner, row)
    ids = inner.field("ledger_id").filter(pa.array(kept))
    copies = pa.schema([BOOKKEEPER_LEDGERS.field(name) for name in OF_COPY])
    wanted = pc.field("ledger_id").isin(ids.unique())
    stored = pa.Table.from_batches(lake.batches(ledgers, OF_COPY, wanted), copies)
    disk, listed_as = np.asarray(on_disk(ids, stored), np.int64), _numbers(inner.field("size"), 0)[kept]
    going = np.asarray(rows.column("kept").is_null())[row[kept]]
    asked, unsaid = _opened(ids, stored, going, opened)
    weight = np.maximum(np.maximum(disk, listed_as), asked)
    for name, sizes in (("physical_bytes", disk), ("weight", weight)):
        sums = np.bincount(row[kept], sizes.astype(np.float64), rows.num_rows).astype(np.int64)
        rows = rows.set_column(rows.column_names.index(name), rows.field(name), pa.array(sums))
    unknown = pa.array(np.bincount(row[kept][unsaid], minlength=rows.num_rows) > 0)
    codes = pc.if_else(unknown, str(InactiveKept.UNKNOWN_LEDGER), whole(rows.column("kept")))
    return rows.set_column(rows.column_names.index("kept"), rows.field("kept"), codes)


def _opened(ids: Any, stored: pa.Table, going: Any, opened: Opened) -> tuple[Any, Any]:
    """What the replicas of those ``ids`` take that are ``going`` and were open at the scan, 0 of others.

    And where bookies do not say it of one that is there.
    """
    state = whole(stored.column("state")).take(pc.index_in(ids, whole(stored.column("ledger_id"))))
    is_open = going & np.asarray(pc.fill_null(pc.not_equal(state, LedgerState.CLOSED.name), False))
    asked = opened(ids.filter(pa.array(is_open)).unique().to_pylist())
    place = pc.index_in(ids, whole(asked.column("ledger_id")))
    size = whole(asked.column("physical_bytes")).take(place)
    there = np.asarray(pc.fill_null(whole(asked.column("open")).take(place), False))
    return np.where(is_open, _numbers(size, 0), 0), is_open & there & np.asarray(size.is_null())


def _kept(rows: pa.Table, inner: Any, row: Any) -> Any:
    """All ledgers of a topic; those from a subscription's position on, its own unless that is read whole."""
    if "entry_id" not in rows.column_names:
        return np.ones(len(row), bool)
    ids, entries = (_numbers(inner.field(name), unknown) for name, unknown in (("ledger_id", -1), ("entries", 0)))
    at, entry = (_numbers(rows.column(name), -1)[row] for name in ("ledger_id", "entry_id"))
    read_whole = (entries > 0) & (entry + 1 >= entries)
    return (ids > at) | ((ids == at) & ~read_whole)


def _numbers(column: Any, unknown: int) -> Any:
    return np.asarray(pc.fill_null(whole(column), unknown), np.int64)
