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

Not here: reading the rows (``metastore/reading.py``), what they mean (``values/tables.py``).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

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

from pulsar_lifecycle.errors import CorruptFormat, UsageError
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.metastore.reading import TABLES, Reading, RowFilter
from pulsar_lifecycle.settings import PulsarSettings, Settings, load_settings
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.tables import Problem


def register(spark: SparkSession) -> None:
    """Make the data sources known to a session; harmless when repeated."""
    for source in (BookKeeperLedgers, ManagedLedgers, ManagedCursors, Schemas, Topics):
        spark.dataSource.register(source)


def narrowed(wanted: RowFilter, condition: Filter) -> RowFilter | None:
    """``wanted``, narrowed by one pushed-down filter; None if the filter says nothing we can use."""
    if not isinstance(condition, EqualTo | In | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    column = ".".join(condition.attribute)
    values = condition.value if isinstance(condition, In) else (condition.value,)
    if column == "ledger_id":
        value = values[0] if values else 0
        match condition:
            case EqualTo() | In():
                ids = frozenset(values)
                return replace(wanted, ids=ids if wanted.ids is None else wanted.ids & ids)
            case GreaterThan():
                return replace(wanted, low=max(wanted.low, value + 1))
            case GreaterThanOrEqual():
                return replace(wanted, low=max(wanted.low, value))
            case LessThan():
                return replace(wanted, high=min(wanted.high, value - 1))
            case LessThanOrEqual():
                return replace(wanted, high=min(wanted.high, value))
    if column in ("namespace", "topic", "managed_ledger") and isinstance(condition, EqualTo | In):
        names = dict(wanted.names or {})
        names[column] = names.get(column, frozenset(values)) & frozenset(values)
        return replace(wanted, names=names)
    return None


class MetastoreReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, table: str, options: Mapping[str, str], schema: pa.Schema) -> None:
        self.table = table
        self.columns = schema
        self.options = dict(options)
        self.filters = RowFilter()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what prunes; every filter goes back, since Spark must still apply it to the rows."""
        for condition in filters:
            self.filters = narrowed(self.filters, condition) or self.filters
        return filters

    def partitions(self) -> list[InputPartition]:
        """One group of subtrees per task."""
        settings = source_settings(self.options)
        reading = Reading(
            self.table, settings, Connections, self.options.get("root", ""), wanted=self.filters, strict=self._strict()
        )
        parts = int(self.options.get("partitions", settings.spark.scan_partitions))
        shares = reading.shares(parts, int(self.options.get("concurrency", parts)))
        return [InputPartition((reading, share)) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one group."""
        reading, share = partition.value
        if not self._strict():
            yield from reading.rows(share, self.columns)
            return
        needed = {*self.columns.names, "path", "problem", "error"}
        schema = pa.schema([f for f in TABLES[self.table] if f.name in needed])
        for batch in reading.rows(share, schema):
            yield _checked(batch).select(self.columns.names)

    def _strict(self) -> bool:
        return self.options.get("errors", "fail") == "fail"


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    if batch.column("problem").null_count == batch.num_rows:
        return batch
    problems, errors, paths = (batch.column(name).to_pylist() for name in ("problem", "error", "path"))
    for problem, error, path in zip(problems, errors, paths, strict=True):
        if problem not in (None, Problem.GONE, Problem.EMPTY):
            raise CorruptFormat(path, 0, f"a readable z-node: {error} (option errors=rows shows such z-nodes as rows)")
    keep = [problem != Problem.GONE for problem in problems]
    return batch if all(keep) else batch.filter(pa.array(keep))


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


class MetastoreSource(DataSource):
    """What the five data sources share."""

    table = ""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return cls.table

    def _picked(self) -> pa.Schema:
        try:
            return tables.pick(TABLES[self.table], self.options.get("columns"))
        except KeyError as error:
            raise UsageError(f"{self.table}: option columns: {error.args[0]}") from None

    def schema(self) -> StructType:
        """The table's columns, or the picked ones."""
        return from_arrow_schema(self._picked())

    def reader(self, schema: StructType) -> MetastoreReader:
        """A reader for the columns of :meth:`schema`."""
        return MetastoreReader(self.table, self.options, self._picked())


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
