"""Where the disk goes: every ledger of a scan under one reason, summed by namespace and topic.

Belongs here: the sums. Pure. Not here: why a ledger is there (``lifecycle/reasons.py``). A ledger counts once, under
the first of its reasons in the order of :class:`Reason`; one of which nothing is said is ``unjudged``. The sums are
those of BookKeeper's list, exactly. Bytes are as metadata says, times write quorum on the disks; those of a ledger that
is not closed are in no metadata, and count as 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.lifecycle.reasons import LEDGER_REASONS, Reason
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.values.tables import Problem

STORAGE_COLUMNS = ("ledger_id", "length", "write_quorum", "problem")
"""The columns of ``tables.BOOKKEEPER_LEDGERS`` that :func:`summed` needs."""

STORAGE_REPORT = pa.schema(
    [
        pa.field("namespace", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("ledgers", pa.int64()),
        pa.field("ledgers_unsized", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("physical_bytes", pa.int64()),
    ]
)
"""Each ledger of the scan is in one row. ``namespace``: null where it is not known. ``topic``: null for what is not in
a row of its topic. ``ledgers_unsized``: those of ``ledgers`` that are not closed, or could not be read, whose bytes
count as 0. ``physical_bytes`` = ``bytes`` x write quorum."""

SHOWN = 20
"""Topics of each namespace that have rows of their own, those with the most bytes on disk."""

_REASONS = [str(reason) for reason in Reason]
_SHIFT = 40
"""A key is a reason's number above that of an owner: the lowest is the reason that counts."""
_NOBODY = len(_REASONS) << _SHIFT
"""The key of a ledger of which nothing is said: unjudged, and nobody's."""


def summed(ledgers: pa.Table, reasons: Iterable[pa.RecordBatch]) -> pa.Table:
    """Rows of :data:`STORAGE_REPORT` by namespace, topic and reason, of every topic.

    ``ledgers``: rows of ``tables.BOOKKEEPER_LEDGERS`` (:data:`STORAGE_COLUMNS`), of all that was listed and had not
    gone by when it was read; a row without an id counts as a ledger. ``reasons``: rows of ``LEDGER_REASONS``; what they
    say of other ledgers does not count.
    """
    there = ledgers.filter(pc.fill_null(pc.not_equal(ledgers.column("problem"), Problem.GONE), True))
    ids = _numbers(there.column("ledger_id"), -1)
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    length = there.column("length")
    size = _numbers(length, 0)[order]
    quorum = np.maximum(_numbers(there.column("write_quorum"), 1), 1)[order]
    keys = np.full(len(ids), _NOBODY, np.int64)
    owners = [pa.array([{"namespace": None, "topic": None}], _OWNER)]
    count = 1
    for some in _gathered(reasons):
        found, names = _keyed(some, count)
        place = np.searchsorted(ids, found.ids)
        hit = place < len(ids)
        hit[hit] = ids[place[hit]] == found.ids[hit]
        np.minimum.at(keys, place[hit], found.keys[hit])
        owners.append(names)
        count += len(names)
    if (ids[1:] == ids[:-1]).any():
        keys = np.where(ids < 0, _NOBODY, keys[np.searchsorted(ids, ids)])
    owner, names = _distinct(pa.concat_arrays(owners))
    reason = np.minimum(keys >> _SHIFT, _REASONS.index(Reason.UNJUDGED))
    number = reason * len(names) + owner[keys & ((1 << _SHIFT) - 1)]
    rows = pa.table(
        {
            "number": number,
            "ledgers": np.ones(len(ids), np.int64),
            "ledgers_unsized": np.asarray(length.is_null(), np.int64)[order],
            "bytes": size,
            "physical_bytes": size * quorum,
        }
    )
    found = _sums(rows, ["number"])
    number = found.column("number").to_numpy()
    named = names.take(pa.array(number % len(names)))
    said = pa.array(_REASONS, pa.string()).take(pa.array(number // len(names)))
    columns = [named.field("namespace"), named.field("topic"), said, *(found.column(name) for name in _COUNTED)]
    return pa.table(columns, schema=STORAGE_REPORT)


def shortened(sums: pa.Table, shown: int = SHOWN) -> pa.Table:
    """The same sums (:data:`STORAGE_REPORT`), with rows of their own for the ``shown`` largest topics of a namespace.

    The others of the namespace are summed up without a topic. Sorted by namespace, largest first.
    """
    by_topic = _sums(sums.filter(sums.column("topic").is_valid()), ["namespace", "topic"]).sort_by(
        [
            ("namespace", "ascending"),
            ("physical_bytes", "descending"),
            ("ledgers", "descending"),
            ("topic", "ascending"),
        ]
    )
    namespace = by_topic.column("namespace").combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
    begins = np.flatnonzero(np.append(True, namespace[1:] != namespace[:-1])[: len(namespace)])
    rank = np.arange(len(namespace)) - np.repeat(begins, np.diff(np.append(begins, len(namespace))))
    own = by_topic.column("topic").filter(pa.array(rank < shown)).combine_chunks()
    topic = sums.column("topic")
    shorter = sums.set_column(1, "topic", pc.if_else(pc.is_in(topic, own), topic, pa.scalar(None, pa.string())))
    order = [("namespace", "ascending"), ("physical_bytes", "descending"), ("ledgers", "descending")]
    found = _sums(shorter, _BY).select(STORAGE_REPORT.names)
    return found.sort_by([*order, ("topic", "ascending"), ("reason", "ascending")]).cast(STORAGE_REPORT)


_OWNER = pa.struct([pa.field("namespace", pa.string()), pa.field("topic", pa.string())])
_AT_ONCE = 1_000_000
"""Rows that are looked up at a time: in the order of their ids, it takes a tenth of the time."""
_BY = ["namespace", "topic", "reason"]
_COUNTED = ("ledgers", "ledgers_unsized", "bytes", "physical_bytes")


class _Found(NamedTuple):
    """Ledger ids, and the key of the reason and owner of each."""

    ids: Any
    keys: Any


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Batches in tables of at least :data:`_AT_ONCE` rows, the last one of what is left."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        group.append(batch)
        if sum(one.num_rows for one in group) >= _AT_ONCE:
            yield pa.Table.from_batches(group, LEDGER_REASONS)
            group = []
    yield pa.Table.from_batches(group, LEDGER_REASONS)


def _keyed(some: pa.Table, first: int) -> tuple[_Found, Any]:
    """The keys of rows of ``LEDGER_REASONS`` by ledger id, and the owners that they number from ``first`` on."""
    ids, reason, namespace, topic = (whole(column) for column in some.columns)
    number = np.asarray(pc.index_in(reason, pa.array(_REASONS, pa.string())), np.int64)
    which, owners = _distinct(pa.StructArray.from_arrays([namespace, topic], fields=list(_OWNER)))
    assert first + len(owners) < 1 << _SHIFT
    numbers = np.asarray(ids, np.int64)
    order = np.argsort(numbers)
    return _Found(numbers[order], ((number << _SHIFT) + first + which)[order]), owners


def _distinct(owners: Any) -> tuple[Any, Any]:
    """The number of each owner among the distinct ones, and these."""
    spaces, topics = (owners.field(name).dictionary_encode("encode") for name in ("namespace", "topic"))
    pair = np.asarray(spaces.indices, np.int64) * max(1, len(topics.dictionary)) + np.asarray(topics.indices)
    _, at, which = np.unique(pair, return_index=True, return_inverse=True)
    return which, owners.take(pa.array(at))


def _sums(rows: pa.Table, by: list[str]) -> pa.Table:
    found = rows.group_by(by).aggregate([(name, "sum") for name in _COUNTED])
    return found.rename_columns([name.removesuffix("_sum") for name in found.column_names])


def _numbers(column: Any, missing: int) -> Any:
    return np.asarray(column.fill_null(missing), dtype=np.int64)
