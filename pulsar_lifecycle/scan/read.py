"""One scan of the cluster: the metastore's tables as Parquet, their census, and who refers to what.

Belongs here: the tasks of an epoch up to ``references``. Not here: judging (``deletion/planning/orphans.py``), and how
z-nodes are read (``metastore/walk.py``). Tables of a shared root are stored beside ours as ``TABLE@ROOT``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.metastore.reading import TABLES, Reading
from pulsar_lifecycle.model import COMPACTION_CURSOR
from pulsar_lifecycle.ports import ClusterPorts, Connect, Ids, Lake
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.scan import references
from pulsar_lifecycle.scan import stored_references as looked_up
from pulsar_lifecycle.scan.coverage import COUNTED, TROUBLE, take_census
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.epoch import Census
from pulsar_lifecycle.values.gaps import Gap, GapCode, brokers_gap
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.tables import Problem, stored_name


def new_epoch_id(now_ms: int, ids: Ids) -> str:
    """Sorts by time, to the millisecond, and never repeats."""
    began = datetime.fromtimestamp(now_ms / 1000, UTC)
    return f"{began:%Y%m%dT%H%M%S}{now_ms % 1000:03}-{ids.token(3)}"


def began_at(epoch_id: str) -> datetime | None:
    """When an epoch began, to the second, by its id; None for one that :func:`new_epoch_id` did not make."""
    try:
        return datetime.strptime(epoch_id[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def scan_table(cluster: Cluster, epoch_id: str, table: str, root: str = "") -> Census:
    """Read one table of one root from ZooKeeper, store it, and count what was listed against what was stored."""
    cluster.lake.forget_census(epoch_id, table, root)
    reading = Reading(table, cluster.settings, cluster.connect, root)
    shares = reading.shares(cluster.settings.spark.scan_partitions, cluster.tasks.at_once)
    cluster.store(epoch_id, stored_name(table, root), TABLES[table], reading.rows, shares)
    parts = cluster.parts(epoch_id, table, root)
    census = take_census(
        table,
        root,
        cluster.lake.batches(parts, COUNTED),
        cluster.lake.batches(parts, TROUBLE, _NOT_READ),
    )
    brokers = shares[0].brokers
    return replace(census, broker_error=_gap(brokers.unknown)) if brokers and brokers.unknown else census


def _gap(unknown: Why) -> Gap:
    denied = unknown.code is Code.BROKERS_DENIED
    return brokers_gap(GapCode.BROKERS_DENIED if denied else GapCode.BROKERS_UNANSWERED, unknown.text)


_NOT_READ = pc.field("problem").is_valid() & ~pc.field("problem").isin([Problem.GONE, Problem.EMPTY])
"""The condition for the rows of a table of the metastore that stand for what was not read."""


def build_references(cluster: Cluster, epoch_id: str) -> None:
    """Store ``references`` of an epoch: everything in the z-nodes of every root, and everything behind them."""
    pieces: list[_Piece] = [
        _Piece(table, root, part)
        for root in cluster.roots()
        for table in ("managed_ledgers", "managed_cursors", "schemas")
        for part in cluster.parts(epoch_id, table, root)
    ]
    asked, others = _compacted_and_loaded(cluster, epoch_id)
    share = -(-len(asked) // cluster.tasks.at_once) or 1
    pieces += [
        _Piece("", "", topics=asked[start : start + share], others=others) for start in range(0, len(asked), share)
    ]
    reading = _References(share_of(cluster.tasks, cluster.settings), cluster.lake, cluster.connect)
    cluster.store(epoch_id, "references", tables.REFERENCES, reading.rows, pieces)


def _compacted_and_loaded(cluster: Cluster, epoch_id: str) -> tuple[list[tuple[str, str]], dict[str, list[str]]]:
    """(Topic, broker) with a ``__compaction`` cursor, whose brokers must be asked, and other topics of each broker.

    All of them are loaded: asking about any other loads it.
    """
    cursors = cluster.lake.batches(
        cluster.parts(epoch_id, "managed_cursors"),
        ["cursor", "managed_ledger"],
        pc.field("cursor") == COMPACTION_CURSOR,
    )
    compacted = {owner for batch in cursors for owner in batch.column("managed_ledger").to_pylist()}
    asked: list[tuple[str, str]] = []
    others: dict[str, list[str]] = {}
    loaded = pc.field("broker").is_valid() & (pc.field("last_ledger_state") == "OPEN")
    parts = cluster.parts(epoch_id, "topics") if compacted else ()
    for batch in cluster.lake.batches(parts, ["topic", "managed_ledger", "broker"], loaded):
        rows = batch.to_pylist()
        asked += [(row["topic"], row["broker"]) for row in rows if row["managed_ledger"] in compacted]
        some = [(topic, broker) for broker, topics in others.items() for topic in topics]
        others = looked_up.other_topics([*some, *((row["topic"], row["broker"]) for row in rows)])
    return asked, others


@dataclass(frozen=True)
class _Piece:
    """What one task makes references of: a file of a table of a root, or ``topics`` to ask the brokers for.

    ``topics`` are (topic, broker), ``others`` more topics of each broker.
    """

    table: str
    root: str
    part: str = ""
    topics: Sequence[tuple[str, str]] = ()
    others: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])


@dataclass(frozen=True)
class _References:
    """The references of a piece; what is behind the z-nodes is read over connections opened where it runs."""

    settings: Settings
    lake: Lake
    connect: Connect

    def rows(self, piece: _Piece) -> Iterator[pa.RecordBatch]:
        """Rows of ``tables.REFERENCES``."""
        for made in self._made(piece):
            yield from made.to_batches()

    def _made(self, piece: _Piece) -> Iterator[pa.Table]:
        if piece.topics:
            yield self._brokers(piece)
            return
        part = [piece.part]
        readable = pc.field("problem").is_null() | (pc.field("problem") == Problem.UNKNOWN_DOMAIN)
        if piece.table == "managed_ledgers":
            columns = ["managed_ledger", "path", "ledgers"]
            yield from map(references.from_managed_ledgers, self.lake.batches(part, columns, readable))
        elif piece.table == "managed_cursors":
            columns = ["managed_ledger", "path", "cursors_ledger_id", "compacted_ledger_id", "buckets"]
            yield from map(references.from_cursors, self.lake.batches(part, columns, readable))
            compaction = (pc.field("cursor") == COMPACTION_CURSOR) & (pc.field("cursors_ledger_id") >= 0)
            columns = ["managed_ledger", "path", "cursor", "cursors_ledger_id"]
            yield from map(self._compaction, self.lake.batches(part, columns, readable & compaction))
        else:
            for batch in self.lake.batches(part, ["schema_id", "path", "versions"], readable):
                yield references.from_schemas(batch)
                yield self._schemas(batch)

    def _compaction(self, batch: pa.RecordBatch) -> pa.Table:
        """R3: the last entry of each ``__compaction`` cursor ledger."""
        columns = (batch.column(c).to_pylist() for c in ("managed_ledger", "path", "cursors_ledger_id"))
        cursors = list(zip(*columns, strict=True))
        with self._ports() as ports:
            found = looked_up.compaction_references(
                ports.store, ports.reader, cursors, self.settings.bookkeeper.ledgers_root
            )
        return references.table_of(found)

    def _schemas(self, batch: pa.RecordBatch) -> pa.Table:
        """R5: the index inside the schema entries."""
        locators = [
            (r["schema_id"], r["path"], [(v["version"], v["ledger_id"], v["entry_id"]) for v in r["versions"] or ()])
            for r in batch.to_pylist()
        ]
        if not any(versions for _, _, versions in locators):
            return references.table_of([])
        with self._ports() as ports:
            found = looked_up.schema_references(
                ports.store, ports.reader, locators, self.settings.bookkeeper.ledgers_root
            )
        return references.table_of(found)

    def _brokers(self, piece: _Piece) -> pa.Table:
        """R3, R12: what the owner brokers hold in memory."""
        with self._ports() as ports:
            return references.table_of(looked_up.broker_references(ports.admin, piece.topics, piece.others))

    def _ports(self) -> ClusterPorts:
        """BookKeeper's own metadata is in our ZooKeeper, whatever root a reference was found in."""
        return self.connect(self.settings, read_only=True)


def referenced_ids(batches: Iterable[pa.RecordBatch]) -> Referenced:
    """The sets of referenced ids in batches of ``tables.REFERENCES``."""
    merged = Referenced()
    for batch in batches:
        merged = merged.merge(references.referenced(batch))
    return merged
