"""What equal input gives is made once: half of a schedule's scans read z-nodes that did not change since the last one.

Belongs here: skipping a conversion whose result is known because all that goes into it is equal. Reading and decoding
z-nodes is never skipped, nor any decision, so every fault and every mutation of the engine comes before or after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from pulsar_lifecycle.metastore import walk
from pulsar_lifecycle.records.epoch import Census
from pulsar_lifecycle.scan import epochs, read, references

KEPT = 64


@contextmanager
def shared_batches() -> Iterator[None]:
    """Within it, rows equal to the last ones of the same table and first path give the same batch, and so do counts."""
    with ExitStack() as patched:
        patched.enter_context(patch.object(walk.Rows, "batch", _batch_of_rows(walk.Rows.batch)))
        for module, name in _OF_BATCHES:
            patched.enter_context(patch.object(module, name, _shared(getattr(module, name))))
        patched.enter_context(patch.object(read, "take_census", _census(read.take_census)))
        yield


_OF_BATCHES = (
    (references, "from_managed_ledgers"),
    (references, "from_cursors"),
    (references, "from_schemas"),
    (epochs, "by_topics"),
    (epochs, "by_cursors"),
    (epochs, "by_schemas"),
    (epochs, "by_references"),
)
"""Functions of one batch, and of nothing else."""


def _batch_of_rows(make: Callable[..., pa.RecordBatch]) -> Callable[..., pa.RecordBatch]:
    known: dict[tuple[int, str], tuple[Any, pa.RecordBatch]] = {}

    def batch(self: walk.Rows, wanted: pa.Schema, columns: Mapping[str, Any]) -> pa.RecordBatch:
        key = id(wanted), self.nodes[0][walk.PATH] if self.nodes else ""
        given = wanted, self.nodes, self.troubles, self.listed, columns
        before = known.get(key)
        if before is not None and before[0] == given:
            return before[1]
        made = make(self, wanted, columns)
        known[key] = given, made
        return made

    return batch


def _census(count: Callable[..., Census]) -> Callable[..., Census]:
    """``count`` of the same batches, done once of late: what was not read is in the same part of the same table."""
    known: dict[tuple[Any, ...], tuple[Any, Census]] = {}

    def census(table: str, root: str, rows: Iterable[pa.RecordBatch], troubled: Iterable[pa.RecordBatch]) -> Census:
        kept = list(rows)
        key = table, root, *map(id, kept)
        if key not in known:
            _make_room(known)
            known[key] = kept, count(table, root, kept, troubled)  # keeps the batches, so their ids stay theirs
        return known[key][1]

    return census


def _shared(make: Callable[[pa.RecordBatch], pa.Table]) -> Callable[[pa.RecordBatch], pa.Table]:
    """``make``, done once of late for each batch: nothing changes one."""
    known: dict[tuple[int], tuple[pa.RecordBatch, pa.Table]] = {}

    def made(batch: pa.RecordBatch) -> pa.Table:
        key = (id(batch),)
        if key not in known:
            _make_room(known)
            known[key] = batch, make(batch)
        return known[key][1]

    return made


def _make_room(known: dict[Any, Any]) -> None:
    if len(known) == KEPT:
        del known[next(iter(known))]
