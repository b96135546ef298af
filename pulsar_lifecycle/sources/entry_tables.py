"""What the data sources of entries have in common, whatever store the entries come from.

Belongs here: the table of entries, options, sharing out work, turning what a store gives into entries or messages. Not
here: which entries there are and how they are read (:mod:`entries`, :mod:`offloaded`), messages (:mod:`messages`).

Options of all of them: ``settings`` and ``columns`` as for the metastore (:mod:`sources`). ``as``: ``entries``
(default: ``ledger_id``, ``entry_id``, ``payload``) or ``messages`` (:data:`messages.MESSAGES`). ``mode``: ``strict``
(default: an entry that is no message ends the query with its name) or ``permissive`` (it is a row with a ``problem``).
``chunks``: ``parts`` (default: each part of a chunked message is a row, as it is stored) or ``assembled`` (with ``as``
= ``messages``, and ``topic`` or ``namespace``): a chunked message is one row, and parts of which none comes are rows
with a ``problem``. One task then reads all of a topic, or of a partition, as parts may lie anywhere in it; unfinished
messages take up to 256 MiB of its memory, and no longer message is put together.
``below_low_watermark``: ``false`` (default: of a topic whose records were deleted up to a position, only what is not
below it; of a batch that it lies in, the messages from it on, but as ``entries``, or encrypted, the whole entry) or
``true`` (whatever is still there). ``partition_bytes`` (64 MiB): what one task reads. ``bytes_per_second``: what all
tasks together read at most, shared by ``concurrency`` tasks at once (default: all of them).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pulsar_lifecycle.errors import CorruptFormat, UsageError
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.metastore.sources import source_settings
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.ports import Connect, EntryBatch
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.sources.low_watermarks import OPTION
from pulsar_lifecycle.sources.messages import MESSAGES, Hidden, Messages
from pulsar_lifecycle.throttle import Pace, RateBudget
from pulsar_lifecycle.values import tables

ENTRIES = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)
"""One row per entry; ``payload`` is what the ledger's writer gave."""

PARTITION_BYTES = 64 << 20

Piece = TypeVar("Piece")


@dataclass(frozen=True)
class EntryOptions:
    """The options of a query on the data source ``source``; whatever is wrong with one raises UsageError naming it."""

    source: str
    given: Mapping[str, str]

    @property
    def messages(self) -> bool:
        """Whether rows are messages, not entries."""
        return self._one_of("as", "entries", "messages") == "messages"

    @property
    def permissive(self) -> bool:
        """Whether an entry that is no message becomes a row."""
        return self._one_of("mode", "strict", "permissive") == "permissive"

    @property
    def assembled(self) -> bool:
        """Whether chunked messages are put together; only of whole topics, in their order."""
        wanted = self._one_of("chunks", "parts", "assembled") == "assembled"
        if wanted and not (self.messages and (self.given.get("topic") or self.given.get("namespace"))):
            raise UsageError(f"{self.source}: option chunks: assembled needs as=messages, and a topic or a namespace")
        return wanted

    @property
    def below_low_watermark(self) -> bool:
        """Whether entries below the low watermark of their topic are shown, too."""
        return self._one_of(OPTION, "false", "true") == "true"

    @property
    def columns(self) -> pa.Schema:
        """The columns of entries or messages, or the picked ones."""
        try:
            return tables.pick(MESSAGES if self.messages else ENTRIES, self.given.get("columns"))
        except KeyError as error:
            raise UsageError(f"{self.source}: option columns: {error.args[0]}") from None

    def only(self, *names: str) -> tuple[str, str]:
        """Which one of some options is given, and its value."""
        found = [name for name in names if self.given.get(name)]
        if len(found) != 1:
            raise UsageError(f"{self.source}: give one of the options {', '.join(names[:-1])} and {names[-1]}")
        return found[0], self.given[found[0]]

    def owner(self, name: str) -> Topic | Namespace:
        """The value of the option ``topic`` or ``namespace``."""
        try:
            return Topic.parse(self.given[name]) if name == "topic" else Namespace.parse(self.given[name])
        except CorruptFormat as error:
            raise UsageError(f"{self.source}: option {name}: expected {error.expected}") from error

    def positive(self, name: str, default: int) -> int:
        """A number above 0."""
        value = self.given.get(name, str(default))
        if not value.isdecimal() or not int(value):
            raise UsageError(f"{self.source}: option {name}: expected a number above 0, found {value!r}")
        return int(value)

    def _one_of(self, name: str, *values: str) -> str:
        value = self.given.get(name, values[0])
        if value not in values:
            raise UsageError(f"{self.source}: option {name}: expected {' or '.join(values)}, found {value!r}")
        return value


@dataclass
class EntryShare(InputPartition, Generic[Piece]):
    """What one task reads, with all that it needs."""

    settings: Settings
    pieces: list[Piece]
    bytes_per_second: float


class EntryReader(DataSourceReader, Generic[Piece]):
    """Plans on the driver, reads on executors; ``connect`` opens the cluster's ports on either."""

    def __init__(self, options: EntryOptions, connect: Connect = Connections) -> None:
        self.options = options
        self.connect = connect
        self.wanted = options.columns

    @abstractmethod
    def plan(self, settings: Settings, size: int) -> list[list[Piece]]:
        """What is to be read, in groups of about ``size`` bytes: one for each task."""

    @abstractmethod
    def entries(
        self, settings: Settings, pieces: list[Piece], pace: Pace, hidden: Hidden
    ) -> Iterator[tuple[int, EntryBatch]]:
        """The entries of one group, each batch with its ledger's id; ``pace`` is to be told their bytes.

        ``hidden`` is to be told of entries whose first messages are not shown, before they are given.
        """

    def partitions(self) -> list[EntryShare[Piece]]:
        """The groups."""
        settings = source_settings(self.options.given)
        groups = self.plan(settings, self.options.positive("partition_bytes", PARTITION_BYTES)) or [[]]
        concurrency = min(len(groups), self.options.positive("concurrency", len(groups)))
        budget = self.options.positive("bytes_per_second", 1 << 50) / concurrency
        return [EntryShare(settings, group, budget) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one group, or their messages."""
        assert isinstance(partition, EntryShare)
        hidden: Hidden = {}
        rows = self._rows(partition, hidden)
        if self.options.messages:
            yield from Messages(self.options.permissive, self.wanted, self.options.assembled, hidden)(rows)
            return
        for batch in rows:
            yield batch.select(self.wanted.names)

    def _rows(self, share: EntryShare[Piece], hidden: Hidden) -> Iterator[pa.RecordBatch]:
        if not share.pieces:
            return
        pace = RateBudget(share.bytes_per_second, self.connect(share.settings).clock).take
        for ledger_id, batch in self.entries(share.settings, share.pieces, pace, hidden):
            count = len(batch.payloads)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.repeat(pa.scalar(ledger_id, pa.int64()), count),
                    pa.array(range(batch.first, batch.first + count), pa.int64()),
                    pa.array(batch.payloads, pa.binary()),
                ],
                schema=ENTRIES,
            )


class EntrySource(DataSource):
    """What the data sources of entries share."""

    table = ""
    reads: type[EntryReader[Any]]

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return cls.table

    def schema(self) -> StructType:
        """The columns of entries or messages, or the picked ones."""
        return from_arrow_schema(self._options().columns)

    def reader(self, schema: StructType) -> EntryReader[Any]:
        """A reader for the columns of :meth:`schema`."""
        return self.reads(self._options())

    def _options(self) -> EntryOptions:
        options = EntryOptions(self.table, dict(self.options))
        _ = (
            options.permissive,
            options.messages,
            options.assembled,
            options.below_low_watermark,
        )  # what is wrong with them is said before anything is asked
        return options
