"""Spark data source ``bookkeeper_entries``: closed ledgers, entry by entry or message by message.

    entries = spark.read.format("bookkeeper_entries").option("topic", "persistent://t/ns/orders").load()
    messages = spark.read.format("bookkeeper_entries").option("as", "messages").option("ledgers", "17,20-29").load()

Options: ``settings``, ``zookeeper`` and ``columns`` as for the metastore (:mod:`sources`). One of ``ledgers`` (ids and
ranges: ``3,5-9``), ``topic`` (a full name; of a partitioned topic all partitions) and ``namespace``. ``as``:
``entries`` (default: ``ledger_id``, ``entry_id``, ``payload``) or ``messages`` (:data:`messages.MESSAGES`). ``mode``:
``strict`` (default: an entry that is no message ends the query with its name) or ``permissive`` (it is a row with a
``problem``). ``partition_bytes`` (64 MiB): what one task reads. ``bytes_per_second``: what all tasks together read from
the bookies at most, shared by ``concurrency`` tasks at once (default: all of them). Ledgers that are not closed, and
those of which only the offloaded copy is left, are left out, with a warning that names them.

Not here: which ledgers these are (``engine/closed_ledgers.py``), reading and proving entries (``ports.LedgerReader``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pulsar_lifecycle.engine import closed_ledgers
from pulsar_lifecycle.engine.closed_ledgers import ClosedLedgers
from pulsar_lifecycle.engine.throttle import RateBudget
from pulsar_lifecycle.errors import CorruptFormat, UsageError
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.io.bookie import BookieReader
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.zk import KazooStore
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.plan import tables
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark.messages import MESSAGES, Messages
from pulsar_lifecycle.spark.sources import source_settings

ENTRIES = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)
"""One row per entry; ``payload`` is what the ledger's writer gave, verified."""

PARTITION_BYTES = 64 << 20
_log = logging.getLogger(__name__)

Piece = tuple[int, LedgerMetadata, int, int]
"""Ledger id, metadata, first and last entry, both inclusive."""


def pieces(ledgers: ClosedLedgers, size: int) -> list[list[Piece]]:
    """Ledgers as groups of about ``size`` bytes: large ones cut into ranges of entries, small ones together."""
    groups: list[list[Piece]] = []
    room = 0
    for ledger_id, metadata in ledgers.ledgers:
        count = metadata.last_entry_id + 1
        at = 0
        while at < count:
            if room <= 0:
                groups.append([])
                room = size
            mean = max(1, metadata.length // count)
            end = min(count, at + max(1, room // mean))
            groups[-1].append((ledger_id, metadata, at, end - 1))
            room -= (end - at) * mean if end == count else room
            at = end
    return groups


@dataclass
class Share(InputPartition):
    """What one task reads, with all that it needs."""

    settings: Settings
    pieces: list[Piece]
    bytes_per_second: float


class EntriesReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, options: Mapping[str, str], wanted: pa.Schema) -> None:
        self.options = dict(options)
        self.wanted = wanted

    def partitions(self) -> list[Share]:
        """Groups of ranges of entries."""
        settings = source_settings(self.options)
        with KazooStore(settings.zookeeper, read_only=True) as store:
            store.sync("/")
            chosen = _chosen(store, self.options, settings.bookkeeper.ledgers_root)
        if chosen.left_out:
            some = "; ".join(f"{i}: {why}" for i, why in list(chosen.left_out.items())[:20])
            _log.warning("bookkeeper_entries: %d ledgers are left out: %s", len(chosen.left_out), some)
        groups = pieces(chosen, _positive(self.options, "partition_bytes", PARTITION_BYTES)) or [[]]
        concurrency = min(len(groups), _positive(self.options, "concurrency", len(groups)))
        budget = _positive(self.options, "bytes_per_second", 1 << 50) / concurrency
        return [Share(settings, group, budget) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one group, or their messages."""
        assert isinstance(partition, Share)
        entries = _entries(partition)
        if _kind(self.options) == "messages":
            yield from Messages(_permissive(self.options), self.wanted)(entries)
            return
        for batch in entries:
            yield batch.select(self.wanted.names)


class BookKeeperEntries(DataSource):
    """``bookkeeper_entries``: the module's docstring has the options."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "bookkeeper_entries"

    def schema(self) -> StructType:
        """The columns of entries or messages, or the picked ones."""
        return from_arrow_schema(self._wanted())

    def reader(self, schema: StructType) -> EntriesReader:
        """A reader for the columns of :meth:`schema`."""
        return EntriesReader(self.options, self._wanted())

    def _wanted(self) -> pa.Schema:
        _permissive(self.options)
        try:
            return tables.pick(MESSAGES if _kind(self.options) == "messages" else ENTRIES, self.options.get("columns"))
        except KeyError as error:
            raise UsageError(f"bookkeeper_entries: option columns: {error.args[0]}") from None


def _entries(share: Share) -> Iterator[pa.RecordBatch]:
    if not share.pieces:
        return
    settings = share.settings
    pace = RateBudget(share.bytes_per_second, SystemClock()).take
    with (
        KazooStore(settings.zookeeper, read_only=True) as store,
        closing(BookieReader(store, settings.bookkeeper, pace)) as reader,
    ):
        for ledger_id, metadata, first, last in share.pieces:
            for batch in reader.stream(ledger_id, metadata, first, last):
                count = len(batch.payloads)
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.repeat(pa.scalar(ledger_id, pa.int64()), count),
                        pa.array(range(batch.first, batch.first + count), pa.int64()),
                        pa.array(batch.payloads, pa.binary()),
                    ],
                    schema=ENTRIES,
                )


def _chosen(store: MetadataStore, options: Mapping[str, str], root: str) -> ClosedLedgers:
    given = [name for name in ("ledgers", "topic", "namespace") if options.get(name)]
    if len(given) != 1:
        raise UsageError("bookkeeper_entries: give one of the options ledgers, topic and namespace")
    text = options[given[0]]
    if given[0] == "ledgers":
        return closed_ledgers.by_id(store, text, root)
    try:
        owner = Topic.parse(text) if given[0] == "topic" else Namespace.parse(text)
    except CorruptFormat as error:
        raise UsageError(f"bookkeeper_entries: option {given[0]}: expected {error.expected}") from error
    if isinstance(owner, Topic):
        return closed_ledgers.of_topic(store, owner, root)
    return closed_ledgers.of_namespace(store, owner, root)


def _kind(options: Mapping[str, str]) -> str:
    return _one_of(options, "as", "entries", "messages")


def _permissive(options: Mapping[str, str]) -> bool:
    return _one_of(options, "mode", "strict", "permissive") == "permissive"


def _one_of(options: Mapping[str, str], name: str, *values: str) -> str:
    value = options.get(name, values[0])
    if value not in values:
        raise UsageError(f"bookkeeper_entries: option {name}: expected {' or '.join(values)}, found {value!r}")
    return value


def _positive(options: Mapping[str, str], name: str, default: int) -> int:
    value = options.get(name, str(default))
    if not value.isdecimal() or not int(value):
        raise UsageError(f"bookkeeper_entries: option {name}: expected a number above 0, found {value!r}")
    return int(value)
