"""The driver's side of phase one: what the jobs that trim topics and delete them whole call.

Belongs here: composing settings, the newest scan, lease and ports for one run. Not here: the rules and the effects
(``engine/marking.py``, ``engine/topic_deletion.py``). The work is bounded per topic, so it is done on the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from pulsar_lifecycle.engine import marking, topic_deletion
from pulsar_lifecycle.engine.decision import Tools
from pulsar_lifecycle.engine.marking import Marked, Report, TrimOrder, unheard
from pulsar_lifecycle.engine.topic_write import TopicRun
from pulsar_lifecycle.engine.unloads import Permit, settle_unloads
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.prometheus import published
from pulsar_lifecycle.io.zk import KazooStore
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.plan.orphans import Context
from pulsar_lifecycle.spark import runs
from pulsar_lifecycle.spark.scan import Cluster
from pulsar_lifecycle.spark.topic_runs import owners_rules, topic_run, topic_tools


def trim(
    cluster: Cluster, run_id: str, orders: Sequence[TrimOrder], *, dry_run: bool, report: Report = unheard
) -> list[Marked]:
    """Take ledgers off the lists of topics that live on; a dry run says what would become of each and writes nothing.

    Raises Refused when another run acts or the newest scan is not covered, Paused, LeaseLost, Overloaded.
    """
    if dry_run:
        with _looking(cluster, run_id) as (run, tools):
            return [one for order in marking.merged(orders).values() for one in marking.plan_trim(run, tools, order)]
    with _acting(cluster, run_id) as (run, tools, permit):
        return marking.trim_topics(run, tools, permit, orders, report)


def delete_topics(
    cluster: Cluster, run_id: str, topics: Sequence[Topic], *, force: bool, dry_run: bool, report: Report = unheard
) -> list[Marked]:
    """Delete topics whole, each with a message per ledger first; errors and dry run as in :func:`trim`."""
    if dry_run:
        with _looking(cluster, run_id) as (run, tools):
            return _each(topics, lambda topic: topic_deletion.plan_topic_deletion(run, tools, topic), report)
    with _acting(cluster, run_id) as (run, tools, permit):
        settle_unloads(tools.store, tools.admin, tools.clock, permit, wait=False)
        return _each(topics, lambda topic: topic_deletion.delete_topic(run, tools, permit, topic, force), report)


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
    with KazooStore(cluster.settings.zookeeper, read_only=True) as store, topic_tools(cluster, store) as tools:
        context = _context(cluster, runs.check_store(cluster, store))
        yield (
            topic_run(cluster, run_id, tools, context, tools.clock.now_ms(), cluster.settings.trimming.loaded_topics),
            tools,
        )


@contextmanager
def _acting(cluster: Cluster, run_id: str) -> Iterator[tuple[TopicRun, Tools, Permit]]:
    """Check that we may act, and hold the lease for as long as the work lasts."""
    settings = cluster.settings
    with published(settings), KazooStore(settings.zookeeper) as store, topic_tools(cluster, store) as tools:
        context = _context(cluster, runs.check_may_act(cluster, store))
        with runs.held_lease(settings, store, f"run {run_id}") as lease:
            now = min(lease.taken_at, tools.clock.now_ms())
            run = topic_run(cluster, run_id, tools, context, now, settings.trimming.loaded_topics)
            yield run, tools, Permit(lease.guard, runs.unloads_of(settings))


def _context(cluster: Cluster, fingerprint: str) -> Context:
    """The owners' rules, as the newest scan found them and the settings say now.

    Those of a deletion run hold, too: what leaves a list is to be deleted.
    """
    settings = cluster.settings
    epoch = runs.newest_epoch(cluster, fingerprint)
    runs.refuse_old_evidence(epoch, SystemClock().now_ms(), int(settings.orphans.plan_valid_for * 1000))
    context = owners_rules(cluster, epoch)
    return replace(context, system_topics=context.system_topics and settings.orphans.system_topics)
