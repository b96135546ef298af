# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyarrow has no types.
"""Applying a plan to delete records: every broker's partitions side by side, each broker with a time-out of its own.

Belongs here: whether the plan may be applied, who is asked for which partition, time-outs. Not here: what is done to
one partition (``partition_effects.py``), and when it is answered (``partition_answers.py``). Source: KIP-107, "one
DeleteRecordsRequest is sent to each broker that acts as leader of any partition in the request".
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pulsar_lifecycle.delete_records import partition_answers
from pulsar_lifecycle.delete_records.cut_rules import Refusal
from pulsar_lifecycle.delete_records.partition_effects import PartitionDeletion
from pulsar_lifecycle.delete_records.records_planning import plan_delete_records
from pulsar_lifecycle.delete_records.request import PLAIN, DeleteRecordsResult, Offset, Options, TopicPartition
from pulsar_lifecycle.delete_records.topic_view import unanswered_owner
from pulsar_lifecycle.deletion_queue.queue_topics import create_missing
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.journal import operator_words
from pulsar_lifecycle.journal.prometheus import published
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.metastore.load_state import BrokerAnswers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records.plans import delete_records_plan
from pulsar_lifecycle.records.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.topics.topic_run import topic_run, topic_tools
from pulsar_lifecycle.topics.unloads import RunGuard, Unloads, finish_unloads
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.trimming import trim_run

Row = Mapping[str, Any]
"""A row of ``RECORDS``."""
Report = Callable[[TopicPartition, Refusal | None], None]
"""Hears what was done to each partition as soon as it is known."""

LANES = 8
"""Sessions that work at once on the partitions of one broker, or on those that none has loaded."""
PER_LANE = 25
"""Partitions that are worth a session of their own."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a broker may take for all its partitions, and how long answers are waited for after that, in seconds.

    ``bookies``: an answer needs the word of every bookie that had a replica.
    """

    per_broker: float = 300.0
    answers: float = 0.0
    bookies: bool = False


NO_PATIENCE = Patience()


def no_report(topic: TopicPartition, refusal: Refusal | None) -> None:
    """A report that nobody wants."""


def delete_records_before(
    cluster: Cluster,
    run_id: str,
    offsets: Mapping[TopicPartition, Offset],
    options: Options = PLAIN,
    patience: Patience = NO_PATIENCE,
) -> dict[TopicPartition, DeleteRecordsResult]:
    """Plan, apply and answer in one call: of each partition its low watermark, or its error and -1.

    A partition whose data is not proven gone in time has error ``TIMEOUT``; calling it again is harmless and ends it.
    Raises as :func:`apply_delete_records`.
    """
    summary, _ = plan_delete_records(cluster, offsets, options)
    return apply_delete_records(
        cluster, run_id, Order(summary.plan_id, summary.digest), dry_run=False, patience=patience
    )


def apply_delete_records(
    cluster: Cluster,
    run_id: str,
    order: Order,
    *,
    dry_run: bool,
    patience: Patience = NO_PATIENCE,
    report: Report = no_report,
) -> dict[TopicPartition, DeleteRecordsResult]:
    """Apply a plan and answer for each of its partitions; a dry run answers as things stand, and writes nothing.

    Raises Refused for a plan that is stale, report-only, of another cluster or beyond the caps, and when another run
    acts; NotFound, UsageError, Paused, LeaseLost, Overloaded.
    """
    summary, some, _ = evidence.check_order(
        cluster,
        order,
        cluster.lake.delete_records_plan,
        delete_records_plan.digest,
        delete_records_plan.as_capped,
        dry_run=dry_run,
    )
    rows = some.to_pylist()
    refused: dict[TopicPartition, Refusal | None] = {}
    if not dry_run:
        going = [row for row in rows if row["error"] is None]
        sends = any(row["ledgers"] for row in going)
        with _acting(cluster, run_id, summary.plan_id, sends=sends) as (run, guard, brokers):
            launch = _Launch(cluster, run, guard, brokers, patience.per_broker)
            for topic, refusal in launch.all(going):
                refused[topic] = refusal
                report(topic, refusal)
    return partition_answers.answers(
        cluster, rows, refused, wait_ms=int(patience.answers * 1000), bookies=patience.bookies
    )


@contextmanager
def _acting(
    cluster: Cluster, run_id: str, plan_id: str, *, sends: bool
) -> Iterator[tuple[TopicRun, tuple[str, int], BrokerAnswers]]:
    """Check that we may act, and hold the lease of those who take ledgers off topics for as long as the work lasts."""
    settings = cluster.settings
    with published(cluster), topic_tools(cluster) as ports:
        context = trim_run.context_of(cluster, evidence.check_may_act(cluster, ports.store))
        with control.held_lease(settings, ports.store, ports.clock, f"run {run_id}") as lease:
            now = min(lease.taken_at, ports.clock.now_ms())
            operator_words.note_words(cluster, run_id)
            context = replace(context, holds=settings.orphans.holds(now))
            brokers = load_state.ask_brokers(ports.store, ports.admin)
            loaded = settings.trimming.loaded_topics
            run = topic_run(cluster, run_id, ports, context, now, loaded, brokers.brokers)
            guard = RunGuard(lease.guard, unloads_of_lane(cluster, 1))
            finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=False)
            if sends:  # brokers refuse several sessions that make the same subscription at once
                with contextlib.suppress(LifecycleError):  # each partition that sends hears of it itself
                    create_missing(ports.admin, settings.deletion.twoPhaseDeletionLedgerDeletionParallelism)
            yield replace(run, plan_id=plan_id), lease.guard, brokers
            finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=not brokers.unanswered)


def unloads_of_lane(cluster: Cluster, lanes: int) -> Unloads:
    """One lane's share of a run's budget of unloads."""
    trimming = cluster.settings.trimming
    return Unloads(trimming.unloads_per_second / lanes, -(-trimming.max_unloads // lanes), cluster.clock)


class _Launch:
    """One launch over the partitions of a plan."""

    def __init__(
        self, cluster: Cluster, run: TopicRun, guard: tuple[str, int], brokers: BrokerAnswers, per_broker: float
    ) -> None:
        self._cluster, self._run, self._guard, self._brokers = cluster, run, guard, brokers
        self._deadline = cluster.clock.now_ms() + int(per_broker * 1000)

    def all(self, rows: Sequence[Row]) -> Iterator[tuple[TopicPartition, Refusal | None]]:
        """What became of each partition; those of a broker that does not answer are not begun."""
        by_broker: dict[str, list[Row]] = {}
        with topic_tools(self._cluster, read_only=True) as ports:
            for row in rows:
                topic = Topic.parse(row["topic"])
                if why := unanswered_owner(ports.store, self._brokers, topic):
                    yield topic, Refusal.plain(RecordsError.TIMEOUT, why)
                else:
                    by_broker.setdefault(self._brokers.brokers.loaded.get(str(topic), ""), []).append(row)
        lanes = [lane for group in by_broker.values() for lane in _lanes(group)]
        if not lanes:
            return

        def work(lane: Sequence[Row]) -> list[tuple[TopicPartition, Refusal | None]]:
            return self._lane(lane, len(lanes))

        if len(lanes) == 1:
            yield from work(lanes[0])
            return
        with ThreadPoolExecutor(len(lanes), "broker") as pool:
            for done in pool.map(work, lanes):
                yield from done

    def _lane(self, rows: Sequence[Row], lanes: int) -> list[tuple[TopicPartition, Refusal | None]]:
        """One broker's partitions, or some of them, in a session of their own."""
        done: list[tuple[TopicPartition, Refusal | None]] = []
        with topic_tools(self._cluster) as ports:
            guard = RunGuard(self._guard, unloads_of_lane(self._cluster, lanes))
            for row in rows:
                done.append((Topic.parse(row["topic"]), self._one(ports, guard, row)))
        return done

    def _one(self, ports: Ports, guard: RunGuard, row: Row) -> Refusal | None:
        if ports.clock.now_ms() > self._deadline:
            broker = self._brokers.brokers.loaded.get(row["topic"]) or "the metadata store"
            return Refusal.plain(
                RecordsError.TIMEOUT, f"{broker} took too long for the partitions before it: run again"
            )
        return PartitionDeletion(self._run, ports, guard, self._brokers, row).delete()


def _lanes(rows: Sequence[Row]) -> list[Sequence[Row]]:
    count = min(LANES, -(-len(rows) // PER_LANE))
    return [rows[n::count] for n in range(count)]
