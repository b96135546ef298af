"""The driver's side of phase one: what the jobs that trim topics and delete them whole call.

Belongs here: composing settings, the newest scan, lease and ports for one run. Not here: the rules and the effects
(``engine/marking.py``, ``engine/topic_deletion.py``). The work is bounded per topic, so it is done on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from pulsar_lifecycle.engine import marking, topic_deletion
from pulsar_lifecycle.engine.decision import Tools
from pulsar_lifecycle.engine.marking import GOES, Marked, Report, TrimOrder, unheard
from pulsar_lifecycle.engine.topic_write import TopicRun
from pulsar_lifecycle.engine.unloads import Permit, settle_unloads
from pulsar_lifecycle.io.prometheus import published
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.plan.caps import effective_caps
from pulsar_lifecycle.plan.deletion import check_blast
from pulsar_lifecycle.plan.orphans import Context
from pulsar_lifecycle.spark import runs
from pulsar_lifecycle.spark.scan import Cluster
from pulsar_lifecycle.spark.topic_runs import owners_rules, topic_run, topic_tools


def trim(
    cluster: Cluster, run_id: str, orders: Sequence[TrimOrder], *, dry_run: bool, report: Report = unheard
) -> list[Marked]:
    """Take ledgers off the lists of topics that live on; a dry run says what would become of each and writes nothing.

    Raises Refused when another run acts, the newest scan is not covered, or more would go than the settings' caps
    allow; Paused, LeaseLost, Overloaded.
    """

    def planned(run: TopicRun, tools: Tools) -> list[Marked]:
        return [one for order in marking.merged(orders).values() for one in marking.plan_trim(run, tools, order)]

    if dry_run:
        with _looking(cluster, run_id) as (run, tools):
            return planned(run, tools)
    with _acting(cluster, run_id) as (run, tools, permit):
        counted = _check_caps(cluster, planned(run, tools))
        orders = [replace(order, counted=counted.get(str(order.topic), frozenset())) for order in orders]
        return marking.trim_topics(run, tools, permit, orders, report)


def delete_topics(
    cluster: Cluster, run_id: str, topics: Sequence[Topic], *, force: bool, dry_run: bool, report: Report = unheard
) -> list[Marked]:
    """Delete topics whole, each with a message per ledger first; errors and dry run as in :func:`trim`."""

    def planned(run: TopicRun, tools: Tools, report: Report) -> list[Marked]:
        return _each(topics, lambda topic: topic_deletion.plan_topic_deletion(run, tools, topic), report)

    if dry_run:
        with _looking(cluster, run_id) as (run, tools):
            return planned(run, tools, report)
    with _acting(cluster, run_id) as (run, tools, permit):
        counted = _check_caps(cluster, planned(run, tools, unheard))
        settle_unloads(tools.store, tools.admin, tools.clock, permit, wait=False)

        def delete(topic: Topic) -> list[Marked]:
            return topic_deletion.delete_topic(run, tools, permit, topic, force, counted.get(str(topic), frozenset()))

        return _each(topics, delete, report)


def _check_caps(cluster: Cluster, planned: Sequence[Marked]) -> dict[str, frozenset[int]]:
    """By topic, the ledgers that were counted: only they may go, as each is judged anew when its turn comes.

    Raises Refused if they exceed the caps of one launch, before anything goes.
    """
    going = [one for one in planned if one.outcome == GOES and one.ledger_id >= 0]
    rows = pa.table(
        {
            "topic": pa.array([one.topic for one in going], pa.string()),
            "physical_bytes": pa.array([one.bytes for one in going], pa.int64()),
        }
    )
    newest = cluster.lake.epochs(cluster=cluster.settings.cluster)[-1]
    listed = next(c for c in newest.census if c.table == "bookkeeper_ledgers").listed
    check_blast(rows, listed, effective_caps(cluster.settings.apply))
    counted: dict[str, set[int]] = {}
    for one in going:
        counted.setdefault(one.topic, set()).add(one.ledger_id)
    return {topic: frozenset(ledgers) for topic, ledgers in counted.items()}


def _each(topics: Sequence[Topic], work: Callable[[Topic], list[Marked]], report: Report) -> list[Marked]:
    outcomes: list[Marked] = []
    for topic in dict.fromkeys(topics):
        found = work(topic)
        report(found)
        outcomes += found
    return outcomes


@contextmanager
def _looking(cluster: Cluster, run_id: str) -> Iterator[tuple[TopicRun, Tools]]:
    """Everything a dry run needs, paused or not; the session with the metadata store cannot write."""
    with topic_tools(cluster, read_only=True) as tools:
        context = _context(cluster, runs.check_store(cluster, tools.store))
        yield (
            topic_run(cluster, run_id, tools, context, tools.clock.now_ms(), cluster.settings.trimming.loaded_topics),
            tools,
        )


@contextmanager
def _acting(cluster: Cluster, run_id: str) -> Iterator[tuple[TopicRun, Tools, Permit]]:
    """Check that we may act, and hold the lease for as long as the work lasts."""
    settings = cluster.settings
    with published(settings), topic_tools(cluster) as tools:
        context = _context(cluster, runs.check_may_act(cluster, tools.store))
        with runs.held_lease(settings, tools.store, f"run {run_id}") as lease:
            now = min(lease.taken_at, tools.clock.now_ms())
            runs.note_words(cluster, run_id)
            context = replace(context, holds=settings.orphans.holds(now))  # by the store's clock where ours is ahead
            run = topic_run(cluster, run_id, tools, context, now, settings.trimming.loaded_topics)
            yield run, tools, Permit(lease.guard, runs.unloads_of(settings))


def _context(cluster: Cluster, fingerprint: str) -> Context:
    """The owners' rules, as the newest scan found them and the settings say now.

    Those of a deletion run hold, too: what leaves a list is to be deleted.
    """
    settings = cluster.settings
    epoch = runs.newest_epoch(cluster, fingerprint)
    runs.refuse_old_evidence(epoch, cluster.clock.now_ms(), int(settings.orphans.plan_valid_for * 1000))
    context = owners_rules(cluster, epoch, cluster.clock.now_ms())
    return replace(context, system_topics=context.system_topics and settings.orphans.system_topics)
