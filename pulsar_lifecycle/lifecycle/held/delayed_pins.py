"""Which topics keep their ledgers for a delayed message: one that is the first which a cursor has not acknowledged.

Belongs here: where a cursor's first message is, by tables of a scan, and whether it is delayed. Not here: which ledgers
that keeps (``lifecycle/reasons.py``). Reads one entry for each cursor that has a backlog; loads no topic. A message
that cannot be read pins nothing: its topic's backlog is shown as such.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.copies.offloaded_ledger import Location, open_offloaded
from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.formats import message
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.ports import LedgerReader, MetadataStore, ObjectStore
from pulsar_lifecycle.scan.stored_references import metadata_of

PINS = pa.schema(
    [
        pa.field("managed_ledger", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("until", pa.int64()),
    ]
)
"""One row per cursor whose first unacknowledged message is delayed: its topic, that message's ledger, and until when
(ms). Nothing from that ledger on goes before."""

AT_ONCE = 1_000
"""Entries that are asked for together."""


def first_messages(listed: pa.Table, inputs: pa.Table, positions: pa.Table, topics: Any) -> pa.Table:
    """Where the first message is that each durable cursor of some topics has not acknowledged (``ledger``, ``entry``).

    ``listed`` (``tables.MANAGED_LEDGERS``), ``inputs`` (``RETENTION_TOPICS``) and the mask ``topics`` are of the same
    topics in one order; ``positions``: ``POSITIONS``. ``row``: which topic. Of an open ledger it may not be there yet.
    """
    row = pc.index_in(whole(positions.column("path")), whole(listed.column("path")))
    known = positions.append_column("row", row).filter(
        pc.and_(row.is_valid(), pc.and_(*(positions.column(name).is_valid() for name in ("ledger_id", "entry_id"))))
    )
    rows, ledger, entry = (_numbers(known.column(name), 0) for name in ("row", "ledger_id", "entry_id"))
    chosen = np.asarray(topics, np.bool_)[rows]
    rows, ledger, entry = rows[chosen], ledger[chosen], entry[chosen] + 1
    lists = whole(inputs.column("ledgers"))
    owner = np.repeat(np.arange(len(lists)), _numbers(lists.value_lengths(), 0))
    ids, count = (_numbers(lists.flatten().field(name), missing) for name, missing in _OF_LEDGER)
    distinct = np.unique(ids)
    keys = owner * (len(distinct) + 1) + np.searchsorted(distinct, ids)  # ascend, as topics' ledgers do
    place = np.searchsorted(keys, rows * (len(distinct) + 1) + np.searchsorted(distinct, ledger))
    within = (place < len(ids)) & (owner[np.minimum(place, len(ids) - 1)] == rows) if len(ids) else place < 0
    rows, place, ledger, entry = rows[within], place[within], ledger[within], entry[within]
    entry = np.where(ids[place] == ledger, entry, 0)
    passed = entry >= count[place]
    while passed.any():  # behind the last entry of a ledger: the first of the next one that has any
        place, entry = np.where(passed, place + 1, place), np.where(passed, 0, entry)
        within = place < len(ids)
        within[within] = owner[place[within]] == rows[within]
        rows, place, entry = rows[within], place[within], entry[within]
        passed = entry >= count[place]
    return (
        pa.table({"row": rows, "ledger": ids[place], "entry": entry}).group_by(["row", "ledger", "entry"]).aggregate([])
    )


_OF_LEDGER = (("ledger_id", 0), ("entries", np.iinfo(np.int64).max))


def delayed_pins(
    store: MetadataStore,
    reader: LedgerReader,
    objects: ObjectStore | None,
    listed: pa.Table,
    messages: pa.Table,
    root: str,
    now: int,
) -> pa.Table:
    """The ``PINS`` of ``messages`` (:func:`first_messages`) that are due after ``now`` (ms). Writes nothing.

    A message whose ledger only the bucket has is read from there.
    """
    owners = listed.column("managed_ledger").to_pylist()
    found: list[dict[str, Any]] = []
    for begin in range(0, messages.num_rows, AT_ONCE):
        some = messages.slice(begin, AT_ONCE).to_pylist()
        metadata = metadata_of(store, [one["ledger"] for one in some], root)
        there = [
            (one["ledger"], known, one["entry"])
            for one, known in zip(some, metadata, strict=True)
            if isinstance(known, LedgerMetadata)
        ]
        answers = iter(reader.read_each(there))
        for one, known in zip(some, metadata, strict=True):
            payload: bytes | None = None
            with contextlib.suppress(LifecycleError):
                if isinstance(known, LedgerMetadata):
                    answer = next(answers)
                    payload = None if isinstance(answer, LifecycleError) else answer.payload
                elif isinstance(known, NotFound) and objects is not None:
                    payload = _offloaded(objects, listed, one["row"], one["ledger"], one["entry"])
                due = message.deliver_at(payload) if payload is not None else None
                if due is not None and due > now:
                    found.append({"managed_ledger": owners[one["row"]], "ledger_id": one["ledger"], "until": due})
    return pa.Table.from_pylist(found, PINS)


def _offloaded(objects: ObjectStore, listed: pa.Table, row: int, ledger: int, entry: int) -> bytes | None:
    """An entry of an offloaded ledger; None if the ledger has none such, or is not offloaded whole."""
    ledgers: Sequence[Mapping[str, Any]] = listed.column("ledgers")[row].as_py()
    (one,) = (item for item in ledgers if item["ledger_id"] == ledger)
    if not one["offload_complete"] or not one["offload_uuid"] or not one["offload_bucket"]:
        return None
    opened = open_offloaded(objects, Location(one["offload_bucket"], UUID(one["offload_uuid"]), ledger))
    if entry > opened.index.ledger.last_entry_id:
        return None
    (batch,) = opened.stream(entry, entry, ahead=0)
    return batch.payloads[0]


def _numbers(column: Any, missing: int) -> Any:
    return np.asarray(pc.fill_null(whole(column) if isinstance(column, pa.ChunkedArray) else column, missing), np.int64)
