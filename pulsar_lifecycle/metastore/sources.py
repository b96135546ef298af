"""Spark data sources over the metastore, by name the keys of :data:`TABLES`.

Usable alone, once :func:`register` was called on a session::

    ledgers = spark.read.format("bookkeeper_ledgers").option("settings", "/etc/lifecycle.toml").load()
    bookkeeper_ledgers.groupBy("component", "state").count().show()

Options: ``settings`` (path of the settings file, default ``$PULSAR_LIFECYCLE_CONFIG``) or ``zookeeper`` (a connect
string) with ``admin_url`` for ``topics``; ``root`` (a name from ``bookkeeper.shared_with``); ``columns``
(comma-separated: PySpark prunes none by itself); ``partitions``; ``concurrency`` (tasks that run at once and share the
read budget); ``errors``: ``fail`` (default: the first z-node that cannot be read or decoded ends the query) or ``rows``
(every listed z-node is a row, with an ``error``). Filters on ``ledger_id``, ``namespace``, ``topic`` and
``managed_ledger`` prune what is read; Spark applies them again.

Not here: what the rows mean (``records/tables.py``) and how a z-node is read (``metastore/walk.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, UsageError
from pulsar_lifecycle.io.connect import Connections, metadata_store, root_settings
from pulsar_lifecycle.metastore import bookkeeper_ledgers, load_state, schemas, topics, walk
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.namespaces import namespace_policies
from pulsar_lifecycle.metastore.walk import Unit
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.records import tables
from pulsar_lifecycle.settings import PulsarSettings, Settings, ZooKeeperSettings, load_settings


def register(spark: SparkSession) -> None:
    """Make the data sources known to a session; harmless when repeated."""
    for source in (BookKeeperLedgers, ManagedLedgers, ManagedCursors, Schemas, Topics):
        spark.dataSource.register(source)


@dataclass
class Work(InputPartition):
    """What one task reads. Everything it needs comes with it: nothing leans on the driver's memory."""

    settings: Settings
    zookeeper: ZooKeeperSettings
    units: list[Unit]
    reads_per_second: int
    brokers: Brokers | None = None
    policies: Mapping[str, Mapping[str, Any]] | None = None
    now: int = 0


@dataclass(frozen=True)
class RowFilter:
    """What the pushed-down filters leave: inclusive id bounds, ids, and exact values of the name columns."""

    low: int = 0
    high: int = 2**63 - 1
    ids: frozenset[int] | None = None
    names: Mapping[str, frozenset[str]] | None = None

    def narrowed(self, condition: Filter) -> RowFilter | None:
        """This, narrowed by one more filter; None if the filter says nothing we can use."""
        if not isinstance(condition, EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
            return None
        column = ".".join(condition.attribute)
        values = condition.value if isinstance(condition, In) else (condition.value,)
        if column == "ledger_id":
            value = values[0] if values else 0
            match condition:
                case EqualTo() | In():
                    ids = frozenset(values)
                    return RowFilter(self.low, self.high, ids if self.ids is None else self.ids & ids, self.names)
                case GreaterThan():
                    return RowFilter(max(self.low, value + 1), self.high, self.ids, self.names)
                case GreaterThanOrEqual():
                    return RowFilter(max(self.low, value), self.high, self.ids, self.names)
                case LessThan():
                    return RowFilter(self.low, min(self.high, value - 1), self.ids, self.names)
                case LessThanOrEqual():
                    return RowFilter(self.low, min(self.high, value), self.ids, self.names)
        if column in ("namespace", "topic", "managed_ledger") and isinstance(condition, EqualTo | In):
            names = dict(self.names or {})
            names[column] = names.get(column, frozenset(values)) & frozenset(values)
            return RowFilter(self.low, self.high, self.ids, names)
        return None

    def namespace(self, namespace: str) -> bool:
        """Whether a namespace is worth reading."""
        for column, values in (self.names or {}).items():
            known = {_namespace_of(column, value) for value in values}
            if namespace not in known:
                return False
        return True

    def overlaps(self, low: int, high: int) -> bool:
        """Whether any wanted ledger id is in low..high."""
        if high < self.low or low > self.high:
            return False
        return self.ids is None or any(low <= i <= high for i in self.ids)


def _namespace_of(column: str, value: str) -> str:
    if column == "topic":
        parts = value.partition("://")[2].split("/")
        return "/".join(parts[: 3 if len(parts) > 3 else 2])  # T/NS/local, or V1 T/C/NS/local with slashes in it
    return value.rpartition("/")[0].rpartition("/")[0] if column == "managed_ledger" else value


class MetastoreReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, table: str, options: Mapping[str, str], wanted: pa.Schema) -> None:
        self.table = table
        self.columns = wanted
        self.options = dict(options)
        self.filters = RowFilter()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what prunes; every filter goes back, since Spark must still apply it to the rows."""
        for condition in filters:
            self.filters = self.filters.narrowed(condition) or self.filters
        return filters

    def partitions(self) -> list[Work]:
        """One group of subtrees per task."""
        settings = source_settings(self.options)
        root = self.options.get("root", "")
        zookeeper = root_settings(settings, root)
        parts = int(self.options.get("partitions", settings.spark.scan_partitions))
        concurrency = max(1, min(parts, int(self.options.get("concurrency", parts))))
        budget = max(1, zookeeper.reads_per_second // concurrency)
        with Connections(settings) as ports:
            store = ports.root(root)
            store.sync("/")
            units = _units(self.table, store, settings, self.filters)
            work = [Work(settings, zookeeper, group, budget) for group in walk.share(units, parts)]
            if self.table == "topics":
                _fetch_brokers(work, store, ports, self.options.get("errors", "fail") == "fail")
        return work or [Work(settings, zookeeper, [], budget)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one group."""
        assert isinstance(partition, Work)
        strict = self.options.get("errors", "fail") == "fail"
        schema = self.columns
        if strict:
            needed = {*schema.names, "path", "error"}
            schema = pa.schema([f for f in TABLES[self.table] if f.name in needed])
        reads = partition.reads_per_second
        with closing(metadata_store(partition.zookeeper, read_only=True, reads_per_second=reads)) as store:
            for batch in _batches(self.table, store, partition, schema):
                yield _checked(batch).select(self.columns.names) if strict else batch


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.column("error").null_count == batch.num_rows:
        return batch
    errors = batch.column("error").to_pylist()
    for error, path in zip(errors, batch.column("path").to_pylist(), strict=True):
        if error and error not in (tables.GONE, tables.EMPTY):
            raise CorruptFormat(path, 0, f"a readable z-node: {error} (option errors=rows shows such z-nodes as rows)")
    keep = [error != tables.GONE for error in errors]
    return batch if all(keep) else batch.filter(pa.array(keep))


TABLES: Mapping[str, pa.Schema] = {
    "bookkeeper_ledgers": tables.BOOKKEEPER_LEDGERS,
    "managed_ledgers": tables.MANAGED_LEDGERS,
    "managed_cursors": tables.MANAGED_CURSORS,
    "schemas": tables.SCHEMAS,
    "topics": tables.TOPICS,
}
"""Every table of the metastore by the name of its data source."""


def source_settings(options: Mapping[str, str]) -> Settings:
    """The settings that a data source's options name; raises ConfigError."""
    if not options.get("zookeeper"):
        return load_settings(options.get("settings") or os.environ.get("PULSAR_LIFECYCLE_CONFIG"))
    return Settings.model_validate(
        {
            "cluster": "adhoc",
            "zookeeper": {"hosts": options["zookeeper"]},
            # not checked: a source asks no broker for messages
            "pulsar": PulsarSettings.model_construct(admin_url=options.get("admin_url", ""), service_url=""),
            "lake": {"path": "/nonexistent"},
        }
    )


def _units(table: str, store: MetadataStore, settings: Settings, wanted: RowFilter) -> list[Unit]:
    if table == "bookkeeper_ledgers":
        units = bookkeeper_ledgers.ledger_units(store, settings.bookkeeper.ledgers_root)
        return [
            u
            for u in units
            if u.error or wanted.overlaps(*bookkeeper_ledgers.id_range(u.parent, settings.bookkeeper.ledgers_root))
        ]
    if table == "schemas":
        return schemas.schema_units(store, wanted.namespace)
    return topics.topic_units(store, wanted.namespace)


def _fetch_brokers(work: list[Work], store: MetadataStore, ports: Connections, strict: bool) -> None:
    if not ports.settings.pulsar.admin_url:
        raise UsageError("topics: give option admin_url (or settings): the load state needs the brokers' word")
    try:
        heard = load_state.fetch_brokers(store, ports.admin)
    except LifecycleError as error:
        if strict:
            raise
        heard = Brokers({}, 0, str(error))
    try:
        policies = namespace_policies(ports.configuration)
    except LifecycleError as error:
        if strict:
            raise
        policies, heard = {}, replace(heard, error=f"policies: {error}")
    now = ports.clock.now_ms()
    for part in work:
        namespaces = {unit.parent[len(walk.MANAGED_LEDGERS_ROOT) + 1 :].rpartition("/")[0] for unit in part.units}
        mine = {t: b for t, b in heard.loaded.items() if _namespace_of("topic", t) in namespaces}
        part.brokers = replace(heard, loaded=mine)
        part.policies = {n: p for n, p in policies.items() if n in namespaces}
        part.now = now


def _batches(table: str, store: MetadataStore, work: Work, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if table == "topics":
        if not work.units:
            return
        assert work.brokers is not None
        assert work.policies is not None
        with Connections(work.settings) as ports:
            yield from load_state.read_topics(
                store,
                work.units,
                work.brokers,
                work.policies,
                ports.admin.compaction_status,
                work.now,
                work.settings.bookkeeper.ledgers_root,
                schema,
            )
        return
    if table == "bookkeeper_ledgers":
        yield from bookkeeper_ledgers.read_ledgers(store, work.units, schema, work.settings.bookkeeper.ledgers_root)
        return
    yield from _READERS[table](store, work.units, schema)


_READERS: Mapping[str, Callable[..., Iterator[pa.RecordBatch]]] = {
    "managed_ledgers": topics.read_managed_ledgers,
    "managed_cursors": topics.read_cursors,
    "schemas": schemas.read_schemas,
}


class MetastoreSource(DataSource):
    """What the five data sources share."""

    table = ""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return cls.table

    def _wanted(self) -> pa.Schema:
        try:
            return tables.pick(TABLES[self.table], self.options.get("columns"))
        except KeyError as error:
            raise UsageError(f"{self.table}: option columns: {error.args[0]}") from None

    def schema(self) -> StructType:
        """The table's columns, or the picked ones."""
        return from_arrow_schema(self._wanted())

    def reader(self, schema: StructType) -> MetastoreReader:
        """A reader for the columns of :meth:`schema`."""
        return MetastoreReader(self.table, self.options, self._wanted())


class BookKeeperLedgers(MetastoreSource):
    """``bookkeeper_ledgers``: every ledger z-node."""

    table = "bookkeeper_ledgers"


class ManagedLedgers(MetastoreSource):
    """``managed_ledgers``: every topic z-node."""

    table = "managed_ledgers"


class ManagedCursors(MetastoreSource):
    """``managed_cursors``: every cursor z-node."""

    table = "managed_cursors"


class Schemas(MetastoreSource):
    """``schemas``: every schema locator."""

    table = "schemas"


class Topics(MetastoreSource):
    """``topics``: load state, owner broker and namespace policies of every topic."""

    table = "topics"
