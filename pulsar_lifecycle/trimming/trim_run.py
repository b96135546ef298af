"""The driver's side of the first phase: what the jobs that trim topics and delete them whole call.

Belongs here: composing settings, the newest scan, lease and ports for one run. Not here: the rules and the effects
(``trimming/trim.py``, ``trimming/delete_topic.py``). The work is bounded per topic, so it is done on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from pulsar_lifecycle.journal import operator_words
from pulsar_lifecycle.journal.prometheus import published
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Caps, effective_caps
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.plan_checks import check_blast
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.topics.first_phase import LedgerOutcome, Report
from pulsar_lifecycle.topics.topic_run import owners_rules, topic_ports, topic_run, unloads_of
from pulsar_lifecycle.topics.unloads import RunGuard, finish_unloads
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.trimming import delete_topic
from pulsar_lifecycle.trimming.trim import TrimOrder, merged, no_report, plan_trim, trim_topics
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.outcomes import Outcome


def trim(
    cluster: Cluster,
    run_id: str,
    orders: Sequence[TrimOrder],
    *,
    dry_run: bool,
    report: Report = no_report,
    caps: Caps | None = None,
    of_plan: str = "",
    planned_at: int = 0,
) -> list[LedgerOutcome]:
    """Take ledgers off the lists of topics that live on; a dry run says what would become of each and writes nothing.

    ``of_plan``: the plan that asks for it, made at ``planned_at`` (ms); then loaded topics are left to their brokers,
    whatever the settings say.

    Raises Refused when another run acts, the newest scan is not covered, or more would go than the settings' caps
    allow; Paused, LeaseLost, Overloaded.
    """

    def planned(run: TopicRun, ports: Ports) -> list[LedgerOutcome]:
        return [one for order in merged(orders).values() for one in plan_trim(run, ports, order)]

    def of(run: TopicRun) -> TopicRun:
        return replace(run, plan_id=of_plan, loaded_topics=False) if of_plan else run

    if dry_run:
        with looking(cluster, run_id) as (run, ports):
            return planned(of(run), ports)
    with acting(cluster, run_id, planned_at) as (run, ports, guard):
        run = of(run)
        counted = check_caps(cluster, planned(run, ports), caps)
        orders = [replace(order, counted=counted.get(str(order.topic), frozenset())) for order in orders]
        return trim_topics(run, ports, guard, orders, report)


def delete_topics(
    cluster: Cluster, run_id: str, topics: Sequence[Topic], *, force: bool, dry_run: bool, report: Report = no_report
) -> list[LedgerOutcome]:
    """Delete topics whole, each with a message per ledger first; errors and dry run as in :func:`trim`."""

    def planned(run: TopicRun, ports: Ports, report: Report) -> list[LedgerOutcome]:
        return _each(topics, lambda topic: delete_topic.plan_topic_deletion(run, ports, topic), report)

    if dry_run:
        with looking(cluster, run_id) as (run, ports):
            return planned(run, ports, report)
    with acting(cluster, run_id) as (run, ports, guard):
        counted = check_caps(cluster, planned(run, ports, no_report))
        finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=False)

        def delete(topic: Topic) -> list[LedgerOutcome]:
            return delete_topic.delete_topic(run, ports, guard, topic, force, counted.get(str(topic), frozenset()))

        return _each(topics, delete, report)


def check_caps(
    cluster: Cluster, planned: Sequence[LedgerOutcome], caps: Caps | None = None
) -> dict[str, frozenset[int]]:
    """By topic, the ledgers that were counted: only they may go, as each is judged anew when its turn comes.

    A ledger weighs what its replicas take on the bookies' disks; one that is in a bucket alone as much as one copy.
    Raises Refused if they exceed the caps of one launch, before anything goes.
    """
    going = [one for one in planned if one.outcome == Outcome.GOES and one.ledger_id >= 0]
    rows = pa.table(
        {
            "topic": pa.array([one.topic for one in going], pa.string()),
            "physical_bytes": pa.array([max(one.bytes, one.on_disk) for one in going], pa.int64()),
        }
    )
    newest = cluster.lake.epochs(cluster=cluster.settings.cluster)[-1]
    check_blast(rows, newest.ledgers, caps or effective_caps(cluster.settings.apply))
    counted: dict[str, set[int]] = {}
    for one in going:
        counted.setdefault(one.topic, set()).add(one.ledger_id)
    return {topic: frozenset(ledgers) for topic, ledgers in counted.items()}


def _each(topics: Sequence[Topic], work: Callable[[Topic], list[LedgerOutcome]], report: Report) -> list[LedgerOutcome]:
    outcomes: list[LedgerOutcome] = []
    for topic in dict.fromkeys(topics):
        found = work(topic)
        report(found)
        outcomes += found
    return outcomes


@contextmanager
def looking(cluster: Cluster, run_id: str) -> Iterator[tuple[TopicRun, Ports]]:
    """Everything a dry run needs, paused or not; the session with the metadata store cannot write."""
    with topic_ports(cluster, read_only=True) as ports:
        context = context_of(cluster, evidence.check_store(cluster, ports.store))
        yield (
            topic_run(cluster, run_id, ports, context, ports.clock.now_ms(), cluster.settings.trimming.loaded_topics),
            ports,
        )


@contextmanager
def acting(cluster: Cluster, run_id: str, planned_at: int = 0) -> Iterator[tuple[TopicRun, Ports, RunGuard]]:
    """Check that we may act, and hold the lease for as long as the work lasts. ``planned_at``: of the plan (ms)."""
    settings = cluster.settings
    with published(cluster), topic_ports(cluster) as ports:
        context = context_of(cluster, evidence.check_may_act(cluster, ports.store))
        with control.held_lease(settings, ports.store, ports.clock, f"run {run_id}") as lease:
            evidence.await_plan_time(planned_at, lease.taken_at, ports.clock)
            now = min(lease.taken_at, ports.clock.now_ms())
            operator_words.note_words(cluster, run_id)
            context = replace(context, holds=settings.orphans.holds(now))  # by the store's clock where ours is ahead
            run = topic_run(cluster, run_id, ports, context, now, settings.trimming.loaded_topics)
            yield run, ports, RunGuard(lease.guard, unloads_of(settings, ports.clock))


def context_of(cluster: Cluster, fingerprint: str) -> Context:
    """The owners' rules, as the newest scan found them and the settings say now.

    Those of a deletion run hold, too: what leaves a list is to be deleted.
    """
    settings = cluster.settings
    now = cluster.clock.now_ms()
    context = owners_rules(cluster, evidence.usable_epoch(cluster, fingerprint, now), now)
    return replace(context, system_topics=context.system_topics and settings.orphans.system_topics)
