"""What the retention rule reads of a stored scan, file by file, each in a task.

Belongs here: which rows and columns. Not here: what becomes of them (``lifecycle/retention_inputs.py``), the rule
(``lifecycle/retention.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.copies.listed_ledgers import OF_COPY
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.lifecycle.retention_inputs import (
    OF_NAME,
    POSITIONS,
    asked_of_bookkeeper,
    named_positions,
    persisted_positions,
    retention_topics,
    with_shadow_sources,
)
from pulsar_lifecycle.ports import Connect, Lake
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.protection import OF_TRANSACTIONS
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy
from pulsar_lifecycle.topics.snapshot import ShadowSources
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.tables import BOOKKEEPER_LEDGERS, MANAGED_CURSORS, MANAGED_LEDGERS
from pulsar_lifecycle.values.topic_load import LoadReason, LoadState

_OF_TOPIC = ("managed_ledger", "topic", "namespace", "ledgers", "terminated", "shadow_source", "path", "problem")
_OF_CURSOR = (
    *("managed_ledger", "cursors_ledger_id", "mark_delete_ledger_id", "mark_delete_entry_id"),
    *("path", "problem", "replicated_subscription"),
)
_OF_LEDGER = ("ledger_id", "state", "entries", "length", "ctime", "mtime", "problem")

UNLOADED = pc.field("load_state") == LoadState.UNLOADED
"""Rows of ``tables.TOPICS`` that no broker has loaded, for sure."""
_OF_TRANSACTIONS = pc.match_substring_regex(pc.field("topic"), "|".join(OF_TRANSACTIONS))
IDLE = (pc.field("load_reason") == str(LoadReason.LAST_LEDGER_NOT_CLOSED)) & ~_OF_TRANSACTIONS
"""Rows of ``tables.TOPICS`` that no broker has, by what it lists, and whose last ledger is not closed."""


def namespaces_of(lake: Lake, parts: Sequence[str]) -> set[str]:
    """The namespaces of the topics in files of ``managed_ledgers``."""
    named = lake.batches(parts, ["namespace"], pc.field("problem").is_null())
    return {name for batch in named for name in batch.column("namespace").unique().to_pylist()}


def managed_ledgers_where(lake: Lake, topics: Sequence[str], where: pc.Expression) -> pa.Array:
    """The managed ledgers in files of ``topics`` of which this holds."""
    found = lake.batches(topics, ["managed_ledger"], where)
    return pa.concat_arrays([pa.array([], pa.string()), *(batch.column("managed_ledger") for batch in found)])


@dataclass(frozen=True)
class CursorPositions:
    """Where the cursors in one file of ``managed_cursors`` stand; runs in a task.

    ``topics``: files of that table; only those of unloaded topics are asked for. None: all are. ``idle``: those of
    topics that no broker lists and whose last ledger is not closed, too. ``named``: rows of ``NAMED_POSITIONS``.
    """

    settings: Settings
    lake: Lake
    connect: Connect
    topics: Sequence[str] | None = None
    idle: bool = False
    named: bool = False

    def rows(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of :data:`POSITIONS`."""
        columns = tuple(dict.fromkeys((*_OF_CURSOR, *OF_NAME))) if self.named else _OF_CURSOR
        read = named_positions if self.named else persisted_positions
        where = UNLOADED | IDLE if self.idle else UNLOADED
        unloaded = None if self.topics is None else managed_ledgers_where(self.lake, self.topics, where)
        schema = pa.schema([MANAGED_CURSORS.field(name) for name in columns])
        with self.connect(self.settings, read_only=True) as ports:
            for batch in self.lake.batches([part], columns):
                if unloaded is not None:
                    owner = batch.column("managed_ledger")
                    batch = batch.filter(pc.or_(owner.is_null(), pc.is_in(owner, unloaded)))
                cursors = pa.Table.from_batches([batch], schema)
                root = self.settings.bookkeeper.ledgers_root
                yield from read(ports.store, ports.reader, cursors, root).to_batches()


@dataclass(frozen=True)
class RetentionTables:
    """What the rule needs of the topics in one file of ``managed_ledgers``; read in a task.

    ``topics``, ``positions`` and ``ledgers`` are files of these tables.
    """

    lake: Lake
    policies: InForce[RetentionPolicy | None]
    context: Context
    shadows: ShadowSources
    topics: Sequence[str]
    positions: Sequence[str]
    ledgers: Sequence[str]

    def of(self, part: str) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Rows of ``tables.MANAGED_LEDGERS``, of ``RETENTION_TOPICS`` in the same order, and what BookKeeper was asked.

        The first are as :func:`with_shadow_sources` makes them. The last are rows of ``tables.BOOKKEEPER_LEDGERS``: of
        each topic the last ledger, and those of which its z-node does not say all.
        """
        listed = self._table([part], MANAGED_LEDGERS, _OF_TOPIC, pc.field("problem").is_null())
        listed = with_shadow_sources(listed, self.shadows)
        unloaded = managed_ledgers_where(self.lake, self.topics, UNLOADED)
        loaded = listed.filter(pc.invert(pc.is_in(listed.column("managed_ledger"), unloaded))).column("topic")
        unknown = pc.field("ledger_id").is_null() | pc.field("entry_id").is_null()
        positions = self._table(self.positions, POSITIONS, POSITIONS.names, _of(listed) | unknown)
        ledgers = self._ledgers(_OF_LEDGER, asked_of_bookkeeper(listed))
        inputs = retention_topics(listed, positions, ledgers, self.policies, self.context, loaded.to_pylist())
        return listed, inputs, ledgers

    def with_asked_cursors(self, inputs: pa.Table) -> pa.Table:
        """Rows of ``RETENTION_TOPICS`` whose cursors are unknown where :class:`CursorPositions` did not ask for them.

        It was told ``idle``.
        """
        asked = managed_ledgers_where(self.lake, self.topics, UNLOADED | IDLE)
        count = inputs.column("durable_cursors")
        known = pc.if_else(pc.is_in(inputs.column("managed_ledger"), asked), count, pa.scalar(None, count.type))
        place = inputs.column_names.index("durable_cursors")
        return inputs.set_column(place, inputs.field(place), whole(known))

    def positions_of(self, listed: pa.Table) -> pa.Table:
        """Where the durable cursors of topics (rows with ``path``) stand (``POSITIONS``)."""
        return self._table(self.positions, POSITIONS, POSITIONS.names, _of(listed))

    def idle(self) -> pa.Array:
        """Managed ledgers that no broker lists and whose last ledger is not closed."""
        return managed_ledgers_where(self.lake, self.topics, IDLE)

    def copies(self, ids: Any) -> pa.Table:
        """What BookKeeper has of these ledgers (``listed_ledgers.OF_COPY``)."""
        return self._ledgers(OF_COPY, ids)

    def _ledgers(self, names: Sequence[str], ids: Any) -> pa.Table:
        """Columns of what BookKeeper has of these ledgers.

        Looked up in order: each task reads the list of all ledgers, and a set of a million ids misses the CPU's caches.
        """
        wanted = np.sort(np.asarray(ids, np.int64))
        some = pa.schema([BOOKKEEPER_LEDGERS.field(name) for name in names])
        found: list[pa.RecordBatch] = []
        for batch in self.lake.batches(self.ledgers, names):
            own = np.asarray(batch.column("ledger_id").fill_null(-1), np.int64)
            place = np.searchsorted(wanted, own)
            hit = place < len(wanted)
            hit[hit] = wanted[place[hit]] == own[hit]
            found.append(batch.filter(pa.array(hit)))
        return pa.Table.from_batches(found, some)

    def _table(self, parts: Sequence[str], schema: pa.Schema, names: Sequence[str], where: Any) -> pa.Table:
        some = pa.schema([schema.field(name) for name in names])
        return pa.Table.from_batches(list(self.lake.batches(parts, names, where)), some)


def _of(listed: pa.Table) -> Any:
    return pc.field("path").isin(whole(listed.column("path")))
