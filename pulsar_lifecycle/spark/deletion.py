"""The deletion run on executors: every task is a consumer of the queue, or works off a share of a plan.

Belongs here: opening the ports where the work is done and bringing the outcomes back as counts. Not here: what is
decided and done with a message (``engine/deletion.py``). The outcomes have exactly one action; the effects are durable
batch by batch before it ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from pulsar_lifecycle.engine.decision import Run, Tools
from pulsar_lifecycle.engine.deletion import work_off
from pulsar_lifecycle.errors import LifecycleError, UsageError
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.io.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.bookie import BookieReader
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.journal import FileJournal
from pulsar_lifecycle.io.objects import S3ObjectStore
from pulsar_lifecycle.io.queue import PulsarDeletionQueue, create_missing
from pulsar_lifecycle.io.zk import KazooStore
from pulsar_lifecycle.plan.deletion import intents
from pulsar_lifecycle.plan.tables import FINDINGS
from pulsar_lifecycle.ports import DeletionQueue, Postponed, Received, Sent
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark.session import concurrency

OUTCOMES = pa.schema(
    [
        pa.field("outcome", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("ledgers", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)
"""Counts per task; ``stopped`` rows carry why a task ended early."""

STOPPED = "stopped"


@dataclass(frozen=True)
class Outcome:
    """How many messages ended the same way for the same reason."""

    outcome: str
    reason: str
    ledgers: int
    bytes: int


def delete_from_queue(spark: SparkSession, settings: Settings, run: Run) -> list[Outcome]:
    """Consume the deletion queue on every executor core until it gives nothing more.

    Topics and subscriptions that are missing are made here, before several tasks would at once. Raises what that does.
    """
    with closing(HttpBrokerAdmin(settings.pulsar)) as admin:
        create_missing(admin, settings.deletion.twoPhaseDeletionLedgerDeletionParallelism)
    tasks = concurrency(spark)
    slots = spark.range(0, tasks, 1, tasks)
    return _collect(slots.mapInArrow(_Worker(settings, run, tasks, None), from_arrow_schema(OUTCOMES)))


def delete_directly(
    spark: SparkSession, settings: Settings, run: Run, rows: pa.Table, plan_id: str, sent_at: int
) -> list[Outcome]:
    """Work off plan rows without the queue: for when no bookie is writable and intents cannot be published."""
    tasks = concurrency(spark)
    frame = spark.createDataFrame(rows.to_pandas(), from_arrow_schema(FINDINGS)).repartition(tasks)
    return _collect(frame.mapInArrow(_Worker(settings, run, tasks, (plan_id, sent_at)), from_arrow_schema(OUTCOMES)))


def _collect(outcomes: DataFrame) -> list[Outcome]:
    # Added up here: a shuffle of a few counts takes longer than deleting a thousand ledgers.
    counts: dict[tuple[str, str], list[int]] = {}
    for row in outcomes.collect():
        _count(counts, row["outcome"], row["reason"], row["ledgers"], row["bytes"])
    return sorted((Outcome(o, r, n, b) for (o, r), (n, b) in counts.items()), key=lambda o: (o.outcome, -o.ledgers))


@dataclass(frozen=True)
class _Worker:
    """One task; ``direct`` (plan id, sent at) makes plan rows its queue."""

    settings: Settings
    run: Run
    tasks: int
    direct: tuple[str, int] | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = [batch for batch in batches if batch.num_rows]
        if not given:
            return
        counts: dict[tuple[str, str], list[int]] = {}
        settings = self.settings
        with ExitStack() as opened:
            store = opened.enter_context(
                KazooStore(settings.zookeeper, reads_per_second=settings.zookeeper.reads_per_second // self.tasks)
            )
            reader = opened.enter_context(closing(BookieReader(store, settings.bookkeeper)))
            admin = opened.enter_context(closing(HttpBrokerAdmin(settings.pulsar)))
            queue: DeletionQueue
            if self.direct is None:
                queue = opened.enter_context(
                    closing(
                        PulsarDeletionQueue(
                            settings.pulsar, admin, settings.deletion.twoPhaseDeletionLedgerDeletionParallelism
                        )
                    )
                )
            else:
                queue = PlanQueue(pa.Table.from_batches(given), *self.direct)
            objects = (
                opened.enter_context(closing(S3ObjectStore(settings.object_store))) if settings.object_store else None
            )
            tools = Tools(store, reader, admin, queue, FileJournal(settings.lake.path), SystemClock(), objects)
            try:
                for decision in work_off(
                    self.run, tools, self.limit(queue), int(settings.deletion.idle_timeout * 1000)
                ):
                    _count(counts, decision.outcome, decision.reason, 1, decision.length)
            except LifecycleError as error:
                counts[STOPPED, str(error)] = [1, 0]
        yield pa.RecordBatch.from_pylist(
            [{"outcome": o, "reason": r, "ledgers": n, "bytes": b} for (o, r), (n, b) in counts.items()], OUTCOMES
        )

    def limit(self, queue: DeletionQueue) -> int:
        """How many messages it takes: its share of a run's, but all rows of a plan, as nobody else meets the rest."""
        return queue.backlog() if self.direct else max(1, self.settings.deletion.max_messages // self.tasks)


def _count(counts: dict[tuple[str, str], list[int]], outcome: str, reason: str, ledgers: int, size: int) -> None:
    entry = counts.setdefault((outcome, reason), [0, 0])
    entry[0] += ledgers
    entry[1] += size


class PlanQueue:
    """``ports.DeletionQueue`` over plan rows: the plan table is the intent log, the journal its acknowledgement."""

    def __init__(self, rows: pa.Table, plan_id: str, sent_at: int) -> None:
        self._messages = [
            Received(hashlib.sha256(f"{plan_id}/{info.ledger_id}".encode()).digest(), "", b"", {}, sent_at, info, "")
            for info in intents(rows.select(FINDINGS.names), plan_id, sent_at)
        ]

    def receive(self, limit: int, wait_ms: int) -> list[Received]:
        """The next rows."""
        some, self._messages = self._messages[:limit], self._messages[limit:]
        return some

    def send(self, infos: Sequence[PendingDeleteLedgerInfo], deliver_after_ms: int) -> list[Sent]:
        """Nothing is ever sent to a plan."""
        raise UsageError("a plan takes no intents")

    def backlog(self) -> int:
        """Rows not handed out yet."""
        return len(self._messages)

    def acknowledge(self, messages: Sequence[Received]) -> None:
        """The journal has it."""

    def reconsume_later(self, messages: Sequence[Received], delay_ms: int, max_times: int) -> list[Postponed]:
        """There is no retry topic to a plan."""
        return [Postponed(message, 0, False, "apply the plan again") for message in messages]

    def release(self, messages: Sequence[Received]) -> None:
        """Applying the plan again meets it again."""

    def close(self) -> None:
        """Nothing is open."""
