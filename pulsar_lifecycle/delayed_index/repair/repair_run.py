"""Applying a plan of repairs, and undoing one, for any number of topics side by side.

Belongs here: whether the plan may be applied, the lease, spreading topics over tasks. Not here: making the plan
(``repair_planning.py``), what is done with a subscription (``repair_work.py``).
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.repair.begun_snapshots import left_begun
from pulsar_lifecycle.delayed_index.repair.repair_work import UNDO, RepairDetail, Repaired, SubscriptionRepairs
from pulsar_lifecycle.delayed_index.stored.index_reading import index_ports
from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.journal import operator_words
from pulsar_lifecycle.journal.prometheus import published
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.ports import Connect
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Writer, details_of
from pulsar_lifecycle.runs.tasks import in_waves, share_of
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics.topic_run import owners_rules, topic_run, unloads_of
from pulsar_lifecycle.topics.unloads import RunGuard
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.plans import delayed_index_plan

HERE = 8
"""So many topics are repaired in this process: starting tasks for them would take longer."""
TOPICS_PER_TASK = 64
"""At most, so that what became of them is soon known; each task looks once at which topics are shadowed."""

Row = Mapping[str, Any]
Report = Callable[[Sequence[Repaired]], None]
"""Is told what became of some as soon as it is known."""


def repair(
    cluster: Cluster, run_id: str, order: Order, *, dry_run: bool, report: Report = lambda _: None
) -> list[Repaired]:
    """Repair the subscriptions of a plan whose buckets are still as planned.

    An index whose topic a broker has is edited after an unload, where ``delayed_index.loaded_topics`` says so, within
    ``repair_work.TRIES``. A dry run writes nothing. Repeating it is harmless. Raises Refused for a plan that is stale,
    report-only, of another cluster or beyond the caps, and when another run acts; NotFound, UsageError, Paused,
    LeaseLost, Overloaded.
    """
    summary, some, _ = evidence.check_order(
        cluster,
        order,
        cluster.lake.repair_plan,
        delayed_index_plan.digest,
        delayed_index_plan.as_capped,
        dry_run=dry_run,
    )
    return _launch(cluster, run_id, summary.plan_id, some.to_pylist(), undo=False, dry_run=dry_run, report=report)


def undo_repair(
    cluster: Cluster, run_id: str, plan_id: str, *, dry_run: bool, report: Report = lambda _: None
) -> list[Repaired]:
    """Give the subscriptions that a plan's repair changed the buckets back that they had.

    Those whose ledgers are gone are written anew, from the lake. Only where nothing changed them since. A repair that
    was killed before it said what became of it may have been made: its cursor tells. Errors as :func:`repair`; NotFound
    where the journal knows of no repair.
    """
    with cluster.ports(read_only=True) as ports:
        (evidence.check_store if dry_run else evidence.check_may_act)(cluster, ports.store)
    condition = (pc.field("plan_id") == plan_id) & (pc.field("action") == Action.REPAIR_INDEX.value)
    rows = _newest(cluster.journal_reader.find(condition).to_pylist())
    if not rows:
        raise NotFound(f"the journal knows of no repair by plan {plan_id}")
    return _launch(cluster, run_id, plan_id, rows, undo=True, dry_run=dry_run, report=report)


def _newest(rows: Iterable[Row]) -> list[Row]:
    """Of each cursor the newest row of an edit that was made, or of a repair's that may have been."""
    found: dict[tuple[str, str], Row] = {}
    begun: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda one: (one["at"], one["outcome"] != Outcome.BEGUN)):
        edit = details_of(RepairDetail, row["detail"])
        if not edit or not edit.path:  # it came to no edit, or failed in the midst of one
            continue
        cursor = row["topic"], edit.path
        if row["outcome"] == Outcome.BEGUN:
            begun |= {cursor: row} if edit.level != UNDO else {}
        else:
            begun.pop(cursor, None)
            found |= {cursor: row} if row["outcome"] == Outcome.DONE else {}
    return list({**found, **begun}.values())


def _launch(
    cluster: Cluster, run_id: str, plan_id: str, rows: Sequence[Row], *, undo: bool, dry_run: bool, report: Report
) -> list[Repaired]:
    """What became of each, under the lease unless it is a dry run. What stops the run is raised after the report."""
    by_topic: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_topic[row["topic"]].append(row)
    found: list[Repaired] = []

    def said(done: Sequence[Repaired]) -> None:
        found.extend(done)
        report(done)

    here = len(by_topic) <= HERE
    with _running(cluster, run_id, plan_id, undo=undo, dry_run=dry_run, tasks=1 if here else 0) as work:
        if here:
            for one in work.each(rows):
                said([one])
            return found
        for answers in in_waves(cluster.tasks, work, list(by_topic.values()), TOPICS_PER_TASK):
            for done, _ in answers:
                said(done)
            for _, stopped in answers:
                if stopped is not None:
                    raise stopped
    return found


_Answer = tuple[list[Repaired], LifecycleError | None]
"""What became of some subscriptions, and what stopped the work on the others."""


@dataclass(frozen=True)
class _Work:
    """Works on some subscriptions in a task; without a ``guard`` a dry run. ``now`` and ``brokers`` as in TopicRun."""

    settings: Settings
    connect: Connect
    run_id: str
    plan_id: str
    context: Context
    now: int
    brokers: Brokers
    broker: DelayedIndexSettings
    guard: tuple[str, int] | None
    undo: bool
    tasks: int

    def __call__(self, topics: Sequence[Sequence[Row]]) -> _Answer:
        """An error that stops the run comes with what became of those before it."""
        found: list[Repaired] = []
        try:
            for one in self.each([row for rows in topics for row in rows]):
                found.append(one)
        except LifecycleError as error:
            return found, error
        return found, None

    def each(self, rows: Sequence[Row]) -> Iterator[Repaired]:
        """What became of one after the other; raises what stops the run."""
        with self.opened() as repairs:
            for row in rows:
                yield repairs.back(row) if self.undo else repairs.one(row)

    @contextlib.contextmanager
    def opened(self) -> Iterator[SubscriptionRepairs]:
        """With ports of its own."""
        settings = self.settings
        cluster = Cluster(settings, connect=self.connect)
        with cluster.ports(read_only=self.guard is None) as opened:
            ports = Ports(opened.store, opened.reader, opened.admin, opened.queue, opened.journal, opened.clock)
            loaded = settings.delayed_index.loaded_topics
            run = topic_run(cluster, self.run_id, ports, self.context, self.now, loaded, self.brokers)
            unloads = unloads_of(settings, ports.clock, self.tasks)
            yield SubscriptionRepairs(
                run,
                ports,
                index_ports(opened),
                opened.writer,
                self.broker,
                Writer(self.run_id, settings.cluster, self.plan_id),
                opened.journal_reader,
                RunGuard(self.guard, unloads) if self.guard else None,
            )


@contextlib.contextmanager
def _running(cluster: Cluster, run_id: str, plan_id: str, *, undo: bool, dry_run: bool, tasks: int) -> Iterator[_Work]:
    """What tasks work with, ``tasks`` at once (0: as many as there are); before it, what killed runs left."""
    settings = cluster.settings
    broker = DelayedIndexSettings.from_settings(settings.delayed_index.brokers)
    with contextlib.ExitStack() as stack:
        if not dry_run:
            stack.enter_context(published(cluster))
        ports = stack.enter_context(cluster.ports(read_only=dry_run))
        fingerprint = evidence.check_store(cluster, ports.store)
        guard = None
        if not dry_run:
            evidence.check_may_act(cluster, ports.store)
            lease = stack.enter_context(
                control.held_lease(settings, ports.store, ports.clock, f"delayed-index run {run_id}")
            )
            operator_words.note_words(cluster, run_id)
            guard = lease.guard
        now = ports.clock.now_ms()
        epoch = evidence.usable_epoch(cluster, fingerprint, now)
        work = _Work(
            settings if tasks else share_of(cluster.tasks, settings),
            cluster.connect,
            run_id,
            plan_id,
            owners_rules(cluster, epoch, now),
            now,
            load_state.fetch_brokers(ports.store, ports.admin),
            broker,
            guard,
            undo,
            tasks or cluster.tasks.at_once,
        )
        if guard and (left := left_begun(cluster.journal_reader, settings.cluster)):
            with work.opened() as repairs:
                repairs.resolve(left, repairs.is_loaded)
        yield work
