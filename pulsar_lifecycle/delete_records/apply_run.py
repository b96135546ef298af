"""Applying a plan to delete records: every broker's partitions side by side, each broker with a time-out of its own.

Belongs here: whether the plan may be applied, who is asked for which partition, time-outs. Not here: what is done to
one partition (``partition_effects.py``), and when it is answered (``partition_answers.py``). Source: KIP-107, "one
DeleteRecordsRequest is sent to each broker that acts as leader of any partition in the request".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.delete_records import partition_answers
from pulsar_lifecycle.delete_records.consumed import stopped_since
from pulsar_lifecycle.delete_records.cut_rules import Refusal
from pulsar_lifecycle.delete_records.finishing import finish, make_covered
from pulsar_lifecycle.delete_records.leftovers import forbidding, low_watermarks_of_others
from pulsar_lifecycle.delete_records.partition_effects import PartitionDeletion, Raised, timed_out
from pulsar_lifecycle.delete_records.records_planning import EACH, ask_brokers, denials, plan_delete_records
from pulsar_lifecycle.delete_records.request import PLAIN, DeleteRecordsResult, Offset, Options, TopicPartition
from pulsar_lifecycle.delete_records.topic_view import Clusters, replication_of, unanswered_owner
from pulsar_lifecycle.errors import LifecycleError, UsageError
from pulsar_lifecycle.journal import operator_words
from pulsar_lifecycle.journal.prometheus import published
from pulsar_lifecycle.metastore.load_state import BrokerAnswers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Connect, JournalRow
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.runs.progress import reporting, unsaid
from pulsar_lifecycle.runs.side_by_side import shared
from pulsar_lifecycle.runs.tasks import in_waves, share_of
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics.topic_run import topic_ports, topic_run, unloads_of
from pulsar_lifecycle.topics.unloads import RunGuard, Unloads, finish_unloads
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans import delete_records_plan
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary

Row = Mapping[str, Any]
"""A row of ``RECORDS``."""
Report = Callable[[TopicPartition, Refusal | None], None]
"""Is told what was done to each partition as soon as it is known."""

PER_BROKER = 8
"""Partitions of one broker that are worked on at once, each with requests to it."""
UNLOADED = 64
"""Those that none has loaded, worked on at once: only the metadata store is asked for each."""
HERE = 64
"""So many of those are worked on in this process: starting tasks for them would take longer."""
PER_TASK = 512
"""Of those at most, so that what became of them is soon known."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a broker may take for all its partitions, and how long answers are waited for after that, in seconds.

    ``bookies``: an answer needs the word of every bookie that had a replica. ``finish``: scans and deletion runs are
    made meanwhile, and what timed out is tried again, so that there is an answer at the end. ``collect``: the bookies
    are made to collect then.
    Raises UsageError for what is no time, and for ``collect`` alone.
    """

    per_broker: float = 300.0
    answers: float = 0.0
    bookies: bool = False
    finish: bool = False
    collect: bool = False

    def __post_init__(self) -> None:
        for name, seconds in (("the time-out of a broker", self.per_broker), ("the wait for answers", self.answers)):
            if not (isfinite(seconds) and seconds >= 0):
                raise UsageError(f"{name}: expected seconds, 0 or more, found {seconds}")
        if self.collect and not (self.finish and self.bookies):
            raise UsageError("collect goes with finish and with wait_for_bookies")


NO_PATIENCE = Patience()
FINISHED_WITHIN = 3600.0
"""Seconds that answers are waited for where a request is to ``finish`` and nobody says how long."""


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
    progress: Callable[[str], None] = unsaid,
) -> dict[TopicPartition, DeleteRecordsResult]:
    """Apply a plan and answer for each of its partitions; a dry run answers as things stand, and writes nothing.

    ``progress`` is told now and then how far it is.
    Raises Refused for a plan that is stale, report-only, of another cluster or beyond the caps, and when another run
    acts; NotFound, UsageError, Paused, LeaseLost, Overloaded.
    """

    def checked() -> tuple[PlanSummary, pa.Table]:
        lake = cluster.lake.delete_records_plan
        digest, capped = delete_records_plan.digest, delete_records_plan.as_capped
        return evidence.check_order(cluster, order, lake, digest, capped, dry_run=dry_run)[:2]

    summary, some = checked()
    rows = some.to_pylist()
    refused: dict[TopicPartition, Refusal | None] = {}
    unloads = unloads_of(cluster.settings, cluster.clock)  # one budget, however often it is launched

    def launch(going: Sequence[Row], per_broker: float) -> None:
        named: Mapping[TopicPartition, Collection[str]] = {}
        if kind_of(summary.plan_id) is PlanKind.CONSUMED_RECORDS:
            stopped, named = stopped_since(cluster, [Topic.parse(row["topic"]) for row in going])
            refused.update(stopped)
            going = [row for row in going if Topic.parse(row["topic"]) not in stopped]
        with _acting(cluster, run_id, summary.plan_id, unloads.share(1)) as (run, ports, guard, brokers):
            _note_others(cluster, run, ports, going)
            work = _Launch(cluster, run, ports, guard, brokers, named, per_broker)
            done, count = 0, len(going)
            with reporting(progress, lambda: f"{done} of {count} partitions done or refused", at_end=True):
                for topic, refusal in work.all(forbidding(cluster, going)):
                    refused[topic] = refusal
                    report(topic, refusal)
                    done += 1

    def again(going: Sequence[Row], seconds: float) -> None:
        checked()  # its plan may be too old by now
        launch(going, min(seconds, patience.per_broker))

    if not dry_run:
        if patience.finish:
            make_covered(cluster, f"{run_id}-0", progress)
        launch([row for row in rows if row["error"] is None], patience.per_broker)
    wait_ms = int(patience.answers * 1000)
    if patience.finish and not dry_run:
        return finish(
            cluster,
            run_id,
            rows,
            refused,
            again,
            planned_at=summary.created_at,
            wait_ms=wait_ms,
            bookies=patience.bookies,
            collect=patience.collect,
            progress=progress,
        )
    if wait_ms and partition_answers.any_awaited(rows, refused):
        progress(f"waiting for at most {wait_ms // 1000} s until everything is proven gone")
    return partition_answers.answers(
        cluster, rows, refused, planned_at=summary.created_at, wait_ms=wait_ms, bookies=patience.bookies
    )


@contextmanager
def _acting(
    cluster: Cluster, run_id: str, plan_id: str, unloads: Unloads
) -> Iterator[tuple[TopicRun, Ports, RunGuard, BrokerAnswers]]:
    """Check that we may act, and hold the lease of those who take ledgers off topics for as long as the work lasts."""
    settings = cluster.settings
    with published(cluster), topic_ports(cluster, buckets=True) as own:
        ports = shared(own)
        context = trim_run.context_of(cluster, evidence.check_may_act(cluster, ports.store))
        with control.held_lease(settings, ports.store, ports.clock, f"run {run_id}") as lease:
            now = min(lease.taken_at, ports.clock.now_ms())
            operator_words.note_words(cluster, run_id)
            context = replace(context, holds=settings.orphans.holds(now))
            brokers = ask_brokers(ports)
            loaded = settings.trimming.loaded_topics
            run = topic_run(cluster, run_id, ports, context, now, loaded, brokers.brokers, brokers.configurations)
            guard = RunGuard(lease.guard, unloads)
            finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=False)
            yield replace(run, plan_id=plan_id), ports, guard, brokers
            finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=not brokers.unanswered)


def _note_others(cluster: Cluster, run: TopicRun, ports: Ports, rows: Sequence[Row]) -> None:
    """Journal which low watermarks were there by none of our requests, before there are rows of ours."""
    others = low_watermarks_of_others(cluster, rows)
    writer, now = Writer(run.run_id, run.cluster, run.plan_id), ports.clock.now_ms()
    step, found = Step(Action.DELETE_RECORDS, Phase.RAISE), list[JournalRow]()
    for row in rows:
        if before := others.get(row["topic"]):
            about = Subject(-1, "", row["topic"], details=(Raised(row["low_watermark"], row["asked"], before),))
            why = Why(Code.NOT_JOURNALLED, f"our journal does not say who raised its low watermark to {before}")
            found.append(writer.row(step, about, Outcome.BEGUN, why, now))
    ports.journal.record(found)


class _Launch:
    """One launch over the partitions of a plan. ``ports`` are for any number of threads."""

    def __init__(
        self,
        cluster: Cluster,
        run: TopicRun,
        ports: Ports,
        guard: RunGuard,
        brokers: BrokerAnswers,
        named: Mapping[TopicPartition, Collection[str]],
        per_broker: float,
    ) -> None:
        self._named = named
        self._cluster, self._run, self._ports, self._guard, self._brokers = cluster, run, ports, guard, brokers
        self._deadline = cluster.clock.now_ms() + int(per_broker * 1000)

    def all(self, rows: Sequence[Row]) -> Iterator[tuple[TopicPartition, Refusal | None]]:
        """What became of each partition; those of a broker that does not answer are not begun.

        The role may have lost its rights since the plan was made, and no broker checks what we write ourselves.
        """
        topics = [Topic.parse(row["topic"]) for row in rows]
        with self._cluster.ports(read_only=True) as more:  # policies may have changed since the plan, as rights may
            denied = denials(self._ports, more.configuration, self._brokers, topics)
            allowed = [topic for topic in topics if topic not in denied]
            clusters = replication_of(
                more.configuration, self._ports, self._run.ledgers_root, self._brokers.cluster, allowed
            )
        by_broker: dict[str, list[Row]] = {}
        for topic, row in zip(topics, rows, strict=True):
            if refusal := denied.get(topic):
                yield topic, refusal
            elif why := unanswered_owner(self._ports.store, self._brokers, topic):
                yield topic, Refusal.plain(RecordsError.TIMEOUT, why)
            else:
                by_broker.setdefault(self._brokers.brokers.loaded.get(str(topic), ""), []).append(row)
        work = _Work(self._run, self._ports, self._brokers, clusters, self._named, self._deadline)
        elsewhere = self._for_tasks(by_broker.get("", []))
        if not elsewhere:
            yield from _by_lanes(work, self._lanes(by_broker))
            return
        by_broker[""] = [row for row in by_broker[""] if row["topic"] not in elsewhere]
        with ThreadPoolExecutor(1, "tasks") as beside:
            begun = beside.submit(self._in_tasks, list(elsewhere.values()), clusters)
            yield from _by_lanes(work, self._lanes(by_broker))
            done = begun.result()
        again = [elsewhere[str(topic)] for topic, refusal in done if _needs_unloads(refusal)]
        yield from ((topic, refusal) for topic, refusal in done if not _needs_unloads(refusal))
        yield from _by_lanes(work, self._lanes({"": again}))

    def _lanes(self, by_broker: Mapping[str, Sequence[Row]]) -> list[_Lane]:
        """One broker that fails at unloads stops its own partitions alone."""
        lanes: list[_Lane] = []
        for broker, rows in by_broker.items():
            guard = replace(self._guard, unloads=self._guard.unloads.share(len(by_broker)))
            lanes += _lanes(guard, rows, PER_BROKER if broker else UNLOADED)
        return lanes

    def _for_tasks(self, unloaded: Sequence[Row]) -> dict[str, Row]:
        """Partitions that no broker has, where they are so many that tasks are worth it; none that needs an unload."""
        found = {row["topic"]: row for row in unloaded if not row["rolls"] and not row["moved_cursors"]}
        return found if len(found) > HERE and self._cluster.tasks.at_once > 1 else {}

    def _in_tasks(self, rows: Sequence[Row], clusters: Mapping[TopicPartition, Clusters]) -> list[_Done]:
        """What became of each; an error that stops one task stops the run, once what is under way has ended."""
        cluster, run = self._cluster, self._run
        task = _Task(
            share_of(cluster.tasks, cluster.settings),
            cluster.connect,
            run.run_id,
            run.plan_id,
            run.context,
            run.now,
            replace(self._brokers, connections={}, configurations={}),
            clusters,
            self._named,
            self._guard.guard,
            self._deadline,
        )
        done: list[_Done] = []
        for answers in in_waves(cluster.tasks, task, rows, PER_TASK):
            for some, stopped in answers:
                if stopped is not None:
                    raise stopped
                done += some
        return done


@dataclass(frozen=True)
class _Work:
    """Works on one partition after the other, for any number of threads."""

    run: TopicRun
    ports: Ports
    brokers: BrokerAnswers
    clusters: Mapping[TopicPartition, Clusters]
    named: Mapping[TopicPartition, Collection[str]]
    deadline: int

    def __call__(self, lane: _Lane) -> list[_Done]:
        guard, rows = lane
        return [self._one(guard, row) for row in rows]

    def _one(self, guard: RunGuard, row: Row) -> _Done:
        topic = Topic.parse(row["topic"])
        if self.ports.clock.now_ms() > self.deadline:
            text = timed_out(self.brokers, row["topic"], "this partition's turn")
            return topic, Refusal.plain(RecordsError.TIMEOUT, text)
        named, ports, clusters = self.named.get(topic, ()), self.ports, self.clusters
        work = PartitionDeletion(self.run, ports, guard, self.brokers, clusters, row, self.deadline, named)
        return topic, work.delete()


@dataclass(frozen=True)
class _Task:
    """Works in a task, with ports of its own, on partitions that no broker has.

    It may do no unload, as the run has one budget of them: the driver does over what needs one after all.
    """

    settings: Settings
    connect: Connect
    run_id: str
    plan_id: str
    context: Context
    now: int
    brokers: BrokerAnswers
    clusters: Mapping[TopicPartition, Clusters]
    named: Mapping[TopicPartition, Collection[str]]
    guard: tuple[str, int]
    deadline: int

    def __call__(self, rows: Sequence[Row]) -> tuple[list[_Done], LifecycleError | None]:
        """Or the error that stops the run: raised in a task, it would only begin that again."""
        cluster = Cluster(self.settings, connect=self.connect)
        try:
            with topic_ports(cluster, buckets=True) as own:
                ports = shared(own)
                loaded = self.settings.trimming.loaded_topics
                run = topic_run(cluster, self.run_id, ports, self.context, self.now, loaded, self.brokers.brokers)
                own_run = replace(run, plan_id=self.plan_id)
                work = _Work(own_run, ports, self.brokers, self.clusters, self.named, self.deadline)
                guard = RunGuard(self.guard, Unloads(1, 0, ports.clock))
                return list(_by_lanes(work, _lanes(guard, rows, UNLOADED))), None
        except LifecycleError as error:
            return [], error


_Lane = tuple[RunGuard, Sequence[Row]]
"""Partitions that are worked on one after the other."""
_Done = tuple[TopicPartition, Refusal | None]


def _by_lanes(work: _Work, lanes: Sequence[_Lane]) -> Iterator[_Done]:
    """What became of the partitions of lanes, all lanes side by side."""
    if len(lanes) == 1:
        for row in lanes[0][1]:
            yield from work((lanes[0][0], [row]))
    elif lanes:
        with ThreadPoolExecutor(len(lanes), "partitions") as pool:
            for done in pool.map(work, lanes):
                yield from done


def _lanes(guard: RunGuard, rows: Sequence[Row], most: int) -> list[_Lane]:
    count = min(most, -(-len(rows) // EACH))
    return [(guard, rows[n::count]) for n in range(count)]


def _needs_unloads(refusal: Refusal | None) -> bool:
    return refusal is not None and refusal.error is RecordsError.UNLOADS_USED_UP
