"""One scan of the cluster: the metastore's tables as Parquet, their census, and who refers to what.

Belongs here: the Spark side of an epoch up to ``references``. Not here: judging (``findings``), and how z-nodes are
read (``engine/inventory.py``). Tables of a shared root are stored beside ours as ``TABLE@ROOT``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from pulsar_lifecycle.engine import references as looked_up
from pulsar_lifecycle.io.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.bookie import BookieReader
from pulsar_lifecycle.io.lake import Lake
from pulsar_lifecycle.io.zk import KazooStore
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.plan import references, tables
from pulsar_lifecycle.plan.coverage import Census
from pulsar_lifecycle.plan.references import Referenced
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark.session import concurrency

SHOWN = 1_000
"""How many paths of each kind of trouble a census keeps."""


@dataclass(frozen=True)
class Cluster:
    """Where a scan works: the session, the settings and the file they came from, the lake."""

    spark: SparkSession
    settings: Settings
    settings_file: str
    lake: Lake

    def roots(self) -> list[str]:
        """Our own root (empty name) and every declared one."""
        return ["", *(root.name for root in self.settings.bookkeeper.shared_with or ())]

    def table(self, epoch_id: str, table: str, root: str = "") -> DataFrame:
        """A stored table."""
        return self.spark.read.parquet(self.lake.epoch_table(epoch_id, stored_name(table, root)))


def stored_name(table: str, root: str) -> str:
    """The folder of a table: ``TABLE`` or ``TABLE@ROOT``."""
    return f"{table}@{root}" if root else table


def new_epoch_id(now_ms: int) -> str:
    """Sorts by time and never repeats."""
    return datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S") + f"-{secrets.token_hex(3)}"


def scan_table(cluster: Cluster, epoch_id: str, table: str, root: str = "") -> Census:
    """Read one table of one root from ZooKeeper, store it, and count what was listed against what was read."""
    cluster.lake.forget_census(epoch_id, table, root)
    frame = (
        cluster.spark.read.format(table)
        .option("settings", cluster.settings_file)
        .option("root", root)
        .option("errors", "rows")
        .option("concurrency", str(concurrency(cluster.spark)))
        .load()
    )
    frame.write.mode("overwrite").parquet(cluster.lake.epoch_table(epoch_id, stored_name(table, root)))
    return census(cluster.table(epoch_id, table, root), table, root)


def census(rows: DataFrame, table: str, root: str) -> Census:
    """Count a stored table; where nothing is wrong, in one pass."""
    error = f.col("error")
    troubled = error.startswith(tables.CORRUPT) | error.startswith(tables.UNREAD)
    per_parent = rows.groupBy("parent").agg(
        f.count("*").alias("rows"),
        f.max("listed").alias("listed"),
        f.count_if(error.isNull()).alias("decoded"),
        f.count_if(error == tables.GONE).alias("gone"),
        f.count_if(error == tables.EMPTY).alias("empty"),
        f.count_if(troubled).alias("troubled"),
    )
    known = f.col("parent").isNotNull()
    total = per_parent.agg(
        *(
            f.coalesce(f.sum(f.when(known, f.col(c))), f.lit(0)).alias(c)
            for c in ("listed", "decoded", "gone", "empty")
        ),
        f.slice(f.collect_list(f.when(known & (f.col("rows") != f.col("listed")), f.col("parent"))), 1, SHOWN).alias(
            "differ"
        ),
        f.sum("troubled").alias("troubled"),
    ).first()
    assert total is not None
    trouble = rows.where(troubled).select("path", "error").limit(SHOWN).collect() if total["troubled"] else []
    return Census(
        table,
        root,
        listed=total["listed"],
        decoded=total["decoded"],
        gone=total["gone"],
        empty=total["empty"],
        corrupt=tuple(r["path"] for r in trouble if r["error"].startswith(tables.CORRUPT)),
        unread=tuple(
            f"{r['path']}: {r['error'].removeprefix(tables.UNREAD)}"
            for r in trouble
            if r["error"].startswith(tables.UNREAD)
        ),
        mismatched=tuple(total["differ"]),
    )


# -------------------------------------------------------------------------------------------------------- references


def build_references(cluster: Cluster, epoch_id: str) -> DataFrame:
    """Store ``references`` of an epoch: everything in the z-nodes of every root, and everything behind them."""
    parts: list[DataFrame] = []
    schema = from_arrow_schema(tables.REFERENCES)
    for root in cluster.roots():
        topics = (
            cluster.table(epoch_id, "managed_ledgers", root)
            .where("error is null")
            .select("managed_ledger", "path", f.transform("ledgers", _what_refers).alias("ledgers"))
        )
        cursors = cluster.table(epoch_id, "managed_cursors", root).where("error is null")
        schemas = (
            cluster.table(epoch_id, "schemas", root).where("error is null").select("schema_id", "path", "versions")
        )
        compaction = cursors.where((f.col("cursor") == looked_up.COMPACTION_CURSOR) & (f.col("cursors_ledger_id") >= 0))
        reading = _Reading(cluster.settings, root)
        parts += [
            topics.mapInArrow(_each(references.from_managed_ledgers), schema),
            cursors.select("managed_ledger", "path", "cursors_ledger_id", "compacted_ledger_id", "buckets").mapInArrow(
                _each(references.from_cursors), schema
            ),
            schemas.mapInArrow(_each(references.from_schemas), schema),
            compaction.select("managed_ledger", "path", "cursors_ledger_id").mapInArrow(reading.compaction, schema),
            schemas.mapInArrow(reading.schemas, schema),
        ]
    loaded = cluster.table(epoch_id, "topics").where("broker is not null").select("topic", "managed_ledger")
    ours = (
        cluster.table(epoch_id, "managed_cursors")
        .where(f.col("cursor") == looked_up.COMPACTION_CURSOR)
        .select("managed_ledger")
    )
    parts.append(
        loaded.join(ours, "managed_ledger", "left_semi")
        .select("topic")
        .mapInArrow(_Reading(cluster.settings, "").brokers, schema)
    )
    union = parts[0]
    for part in parts[1:]:
        union = union.unionAll(part)
    union.write.mode("overwrite").parquet(cluster.lake.epoch_table(epoch_id, "references"))
    return cluster.table(epoch_id, "references")


def _what_refers(ledger: Column) -> Column:
    """Of a LedgerInfo only what makes a reference: the rest need not go to Python and back for every ledger."""
    return f.struct(ledger["ledger_id"], ledger["offload_complete"], ledger["bookkeeper_deleted"])


def _each(make: Callable[[pa.RecordBatch], pa.Table]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def kernel(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from make(batch).to_batches()

    return kernel


@dataclass(frozen=True)
class _Reading:
    """Kernels that look references up behind the z-nodes; each opens its own connections where it runs."""

    settings: Settings
    root: str

    def compaction(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """R3: the last entry of each ``__compaction`` cursor ledger."""
        for batch in batches:
            if not batch.num_rows:
                continue
            cursors = list(
                zip(
                    *(batch.column(c).to_pylist() for c in ("managed_ledger", "path", "cursors_ledger_id")), strict=True
                )
            )
            with self._store() as store, closing(BookieReader(store, self.settings.bookkeeper)) as reader:
                words = looked_up.compaction_words(store, reader, cursors, self.settings.bookkeeper.ledgers_root)
            yield from references.from_words(words).to_batches()

    def schemas(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """R5: the index inside the schema entries."""
        for batch in batches:
            locators = [
                (
                    r["schema_id"],
                    r["path"],
                    [(v["version"], v["ledger_id"], v["entry_id"]) for v in r["versions"] or ()],
                )
                for r in batch.to_pylist()
            ]
            if not any(versions for _, _, versions in locators):
                continue
            with self._store() as store, closing(BookieReader(store, self.settings.bookkeeper)) as reader:
                words = looked_up.schema_words(store, reader, locators, self.settings.bookkeeper.ledgers_root)
            yield from references.from_words(words).to_batches()

    def brokers(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """R3, R12: what the owner brokers hold in memory."""
        for batch in batches:
            topics = batch.column("topic").to_pylist()
            if not topics:
                continue
            with closing(HttpBrokerAdmin(self.settings.pulsar)) as admin:
                words = looked_up.broker_words(admin, topics, lambda topic: Topic.parse(topic).managed_ledger)
            yield from references.from_words(words).to_batches()

    def _store(self) -> KazooStore:
        """BookKeeper's own metadata is in our ZooKeeper, whatever root a reference was found in."""
        return KazooStore(self.settings.zookeeper, read_only=True)


def referenced_ids(rows: DataFrame) -> Referenced:
    """The sets of referenced ids, built where the rows are and merged here."""
    merged = Referenced()
    for row in (
        rows.select("ledger_id", "keeps_bookkeeper_copy").mapInArrow(_bitmaps, "bitmaps binary").toLocalIterator()
    ):
        merged = merged.merge(Referenced.from_bytes(bytes(row["bitmaps"])))
    return merged


def _bitmaps(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    merged = Referenced()
    for batch in batches:
        merged = merged.merge(references.referenced(batch))
    yield pa.RecordBatch.from_pydict({"bitmaps": [merged.to_bytes()]})
