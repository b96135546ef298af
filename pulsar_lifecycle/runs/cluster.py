"""Where a run works: the settings, how ports are opened, who does the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.ports import Clock, ClusterPorts, Connect, Ids, Journal, JournalReader
from pulsar_lifecycle.runs.tasks import SparkTasks, Tasks
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.throttle import RateBudget
from pulsar_lifecycle.values.tables import stored_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pulsar_lifecycle.ports import Lake

T = TypeVar("T")


@dataclass(frozen=True)
class Cluster:
    """Where a run works: the settings and the file they came from, how ports are opened, Spark's session if any.

    ``given``: the tasks, where they are not Spark's. ``start_session``: what starts Spark, for a run that may need it.
    """

    settings: Settings
    connect: Connect
    settings_file: str = ""
    session: SparkSession | None = None
    given: Tasks | None = None
    start_session: Callable[[], SparkSession] | None = None

    def ports(self, *, read_only: bool = False, pace: Callable[[int], object] | None = None) -> ClusterPorts:
        """The ports of the cluster, the caller closes them."""
        return self.connect(self.settings, read_only=read_only, pace=pace)

    def entry_pace(self) -> Callable[[int], object]:
        """What waits until so many bytes of entries may be read, by ``offload.read_bytes_per_second``."""
        return RateBudget(self.settings.offload.read_bytes_per_second, self.clock).take

    @cached_property
    def lake(self) -> Lake:
        """Epochs and plans."""
        return self.ports().lake

    @cached_property
    def spark(self) -> SparkSession:
        """Spark's session, which the first who asks starts. Raises UsageError where this process has none."""
        if self.session is not None:
            return self.session
        if self.start_session is None:
            raise UsageError("this process works without Spark")
        return self.start_session()

    @cached_property
    def clock(self) -> Clock:
        """The driver's clock."""
        return self.ports().clock

    @property
    def ids(self) -> Ids:
        """New ids."""
        return self.ports().ids

    @property
    def tasks(self) -> Tasks:
        """Where the work is done that is not the driver's."""
        return self.given or SparkTasks(self.spark)

    @property
    def journal(self) -> Journal:
        """The journal, to write."""
        return self.ports().journal

    @property
    def journal_reader(self) -> JournalReader:
        """The journal and the archive, to read."""
        return self.ports().journal_reader

    def roots(self) -> list[str]:
        """Our own root (empty name) and every declared one."""
        return ["", *(root.name for root in self.settings.bookkeeper.shared_with or ())]

    def table(self, epoch_id: str, table: str, root: str = "") -> DataFrame:
        """A stored table."""
        return self.spark.read.parquet(self.lake.epoch_table(epoch_id, stored_name(table, root)))

    def parts(self, epoch_id: str, table: str, root: str = "") -> list[str]:
        """The files of a stored table."""
        return self.lake.parts(epoch_id, stored_name(table, root))

    def store(
        self,
        epoch_id: str,
        table: str,
        schema: pa.Schema,
        rows: Callable[[T], Iterable[pa.RecordBatch]],
        pieces: Sequence[T],
    ) -> None:
        """Store a table of an epoch: a task and a file for the rows of each piece, visible once all have ended well.

        The rows go from Python into Parquet where they are made: on their way through the JVM they cost twice as much.
        """
        lake = self.lake

        def write(piece: T) -> str:
            return lake.write_part(epoch_id, table, schema, rows(piece))

        lake.publish(epoch_id, table, list(self.tasks.map(write, pieces)))
