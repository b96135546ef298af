"""Spark data sources ``delayed_index_buckets`` and ``delayed_index_messages``: what snapshots of delayed indexes hold.

    index = spark.read.format("delayed_index_messages").option("namespaces", "shop/eu,shop/us")
    index.load().where("not acknowledged").groupBy("topic", "subscription").count().show()

Options: ``settings`` and ``columns`` as for the metastore, ``zookeeper`` (a connect string instead of settings), and
one of ``topic`` (a full name; of a partitioned topic all partitions) and ``namespaces`` (one, or several with commas).
``subscription``: only this one of each topic. ``mode``: ``strict`` (default: a bucket, cursor or topic that cannot be
read ends the query with its name) or ``permissive`` (it is a row: of ``delayed_index_buckets`` with its ``state`` and
``error``, of ``delayed_index_messages`` with a ``problem``). ``partitions``: into how many tasks the topics are parted
(default: ``spark.scan_partitions``). ``bytes_per_second``: what all tasks together read of snapshots at most. They read
the cursors' positions as they are stored, load no topic, and read no message.

Not here: reading snapshots and cursors (``delayed_index/stored/index_reading.py``), judging them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pulsar_lifecycle.delayed_index.stored import rows
from pulsar_lifecycle.delayed_index.stored.index_codes import BucketProblem
from pulsar_lifecycle.delayed_index.stored.index_reading import StoredTopic, index_ports, read_topic
from pulsar_lifecycle.delayed_index.stored.index_tables import DELAYED_INDEX_BUCKETS, DELAYED_INDEX_MESSAGES
from pulsar_lifecycle.delayed_index.stored.subscription import Places, StoredBucket, StoredSubscription, acknowledged
from pulsar_lifecycle.errors import LifecycleError, StoreError, Unavailable, UsageError
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.metastore.sources import source_settings
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.ports import ClusterPorts, Connect
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.sources import closed_ledgers
from pulsar_lifecycle.sources.entry_tables import EntryOptions
from pulsar_lifecycle.throttle import RateBudget
from pulsar_lifecycle.values import tables

BUCKETS, MESSAGES = "delayed_index_buckets", "delayed_index_messages"
SCHEMAS = {BUCKETS: DELAYED_INDEX_BUCKETS, MESSAGES: DELAYED_INDEX_MESSAGES}
BATCH_ROWS = 50_000


@dataclass(frozen=True)
class IndexOptions:
    """The options of a query on one of the sources; whatever is wrong with one raises UsageError naming it."""

    source: str
    given: Mapping[str, str]

    @property
    def columns(self) -> pa.Schema:
        """The table's columns, or the picked ones."""
        try:
            return tables.pick(SCHEMAS[self.source], self.given.get("columns"))
        except KeyError as error:
            raise UsageError(f"{self.source}: option columns: {error.args[0]}") from None

    @property
    def common(self) -> EntryOptions:
        """What these options have in common with those of entries: ``mode``, owners, numbers."""
        return EntryOptions(self.source, self.given)

    def paths(self, ports: ClusterPorts) -> list[str]:
        """The z-nodes of the topics that are meant; raises NotFound, Unavailable."""
        name, text = self.common.only("topic", "namespaces")
        if name == "topic":
            return closed_ledgers.paths_of(ports.store, self.common.owner(name))
        found: list[str] = []
        for one in dict.fromkeys(part.strip() for part in text.split(",")):
            owner = EntryOptions(self.source, {"namespaces": one}).owner("namespaces")
            found += closed_ledgers.paths_of(ports.store, owner)
        return found


@dataclass
class IndexShare(InputPartition):
    """The z-nodes of the topics that one task reads, with all that it needs."""

    settings: Settings
    paths: list[str]
    bytes_per_second: float


class IndexReader(DataSourceReader):
    """Plans on the driver, reads on executors; ``connect`` opens the cluster's ports on either."""

    def __init__(self, options: IndexOptions, connect: Connect = Connections) -> None:
        self.options = options
        self.connect = connect
        self.wanted = options.columns

    def partitions(self) -> list[IndexShare]:
        """Every topic once, in as many shares as are asked for."""
        settings = source_settings(self.options.given)
        count = self.options.common.positive("partitions", settings.spark.scan_partitions)
        with self.connect(settings, read_only=True) as ports:
            ports.store.sync("/")
            paths = self.options.paths(ports)
        count = max(1, min(count, len(paths)))
        budget = self.options.common.positive("bytes_per_second", 1 << 50) / count
        return [IndexShare(settings, paths[number::count], budget) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one share."""
        assert isinstance(partition, IndexShare)
        root, only = partition.settings.bookkeeper.ledgers_root, self.options.given.get("subscription", "")
        pace = RateBudget(partition.bytes_per_second, self.connect(partition.settings).clock).take
        with self.connect(partition.settings, read_only=True) as ports:
            now = ports.clock.now_ms()
            for path, node in closed_ledgers.read_nodes(ports.store, partition.paths):
                if node is None or not node.data:  # deleted since it was listed, or never loaded: it has no cursor
                    continue
                topic = Topic.from_managed_ledger(path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/"))
                try:
                    stored = read_topic(index_ports(ports), topic, root, only)
                except LifecycleError as error:
                    if not self.options.common.permissive:
                        raise
                    yield self._problem(topic, only, str(error))
                    continue
                pace(max(1, sum(bucket.length for one in stored.subscriptions for bucket in one.buckets)))
                yield from self._batches(stored, now)

    def _batches(self, stored: StoredTopic, now: int) -> Iterator[pa.RecordBatch]:
        strict = not self.options.common.permissive
        for cursor, why in stored.unread.items():
            if strict:
                raise Unavailable(f"subscription {cursor!r} of {stored.topic}: {why} (option mode=permissive)")
            yield self._problem(stored.topic, cursor, why)
        for one in stored.subscriptions:
            for bucket in one.buckets:
                if strict and bucket.problem is not None:
                    kind = Unavailable if bucket.problem is BucketProblem.UNREAD else StoreError
                    raise kind(
                        f"subscription {one.cursor!r} of {stored.topic}: {bucket.key}={bucket.value}: {bucket.error} "
                        f"(option mode=permissive shows such buckets as rows)"
                    )
                yield from self._bucket(stored.topic, one, bucket, now)

    def _problem(self, topic: Topic, cursor: str, why: str) -> pa.RecordBatch:
        if self.options.source == BUCKETS:
            said = {"state": BucketProblem.UNREAD.value, "error": why}
        else:
            said = {"problem": why}
        return pa.RecordBatch.from_pylist([rows.owner(topic, cursor) | said], self.wanted)

    def _bucket(
        self, topic: Topic, one: StoredSubscription, bucket: StoredBucket, now: int
    ) -> Iterator[pa.RecordBatch]:
        if self.options.source == BUCKETS:
            yield pa.RecordBatch.from_pylist([dict(rows.bucket_row(topic, one.cursor, bucket, now))], self.wanted)
        elif bucket.problem is not None:
            yield self._problem(topic, one.cursor, f"{bucket.key}={bucket.value}: {bucket.error}")
        else:
            yield from self._messages(topic, one, bucket)

    def _messages(self, topic: Topic, one: StoredSubscription, bucket: StoredBucket) -> Iterator[pa.RecordBatch]:
        indexes = bucket.indexes
        places = Places(indexes)
        done = acknowledged(one, places, places.of(indexes.ledgers, indexes.entries))
        segments = np.repeat(np.arange(1, len(bucket.bounds)), np.diff(bucket.bounds))
        constant = {
            **rows.owner(topic, one.cursor),
            "bucket_key": bucket.key,
            "snapshot_ledger_id": bucket.ledger_id,
            "problem": None,
        }
        for begin in range(0, len(indexes), BATCH_ROWS):
            part = slice(begin, begin + BATCH_ROWS)
            arrays = {
                "segment": segments[part],
                "ledger_id": indexes.ledgers[part],
                "entry_id": indexes.entries[part],
                "due": indexes.timestamps[part],
                "acknowledged": done[part],
            }
            count = len(arrays["due"])
            columns = [
                pa.array(arrays[one.name], one.type)
                if one.name in arrays
                else pa.repeat(pa.scalar(constant[one.name], one.type), count)
                for one in self.wanted
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.wanted)


class IndexSource(DataSource):
    """What both have in common."""

    table = ""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return cls.table

    def schema(self) -> StructType:
        """The table's columns, or the picked ones."""
        return from_arrow_schema(self._options().columns)

    def reader(self, schema: StructType) -> IndexReader:
        """A reader for the columns of :meth:`schema`."""
        return IndexReader(self._options())

    def _options(self) -> IndexOptions:
        options = IndexOptions(self.table, dict(self.options))
        _ = options.common.permissive, options.columns  # what is wrong with them is said before anything is asked
        return options


class DelayedIndexBuckets(IndexSource):
    """``delayed_index_buckets``: a row per bucket that a cursor names."""

    table = BUCKETS


class DelayedIndexMessages(IndexSource):
    """``delayed_index_messages``: a row per message of a bucket."""

    table = MESSAGES
