"""An offload run as a whole: attempts opened on the driver, ledgers copied and proven on executors, topics committed.

Belongs here: composing plan, leases, effects and tasks. Not here: the rules and the effects (``tiered/commit.py``,
``tiered/upload.py``, ``tiered/bookkeeper_copies.py``), which rows of the plan (``planning/run_selection.py``), what one
task does (``tiered/offload_tasks.py``). Ledgers go in waves, the topics with the most bytes first, so that a topic is
committed at once and a crash costs at most one wave's work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import (
    LifecycleError,
    RefusedBy,
)
from pulsar_lifecycle.journal import operator_words
from pulsar_lifecycle.journal.read_checks import failed_locations, passed_locations
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control, plan_checks
from pulsar_lifecycle.runs.caps import check_limit
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import Lease
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.tiered import revert
from pulsar_lifecycle.tiered.commit import ReadCheckFailed
from pulsar_lifecycle.tiered.interrupted import Ownership
from pulsar_lifecycle.tiered.offload_work import OffloadWork, still_pending
from pulsar_lifecycle.tiered.outcome import OffloadOutcome, record_topics
from pulsar_lifecycle.tiered.planning.offload_planning import done_since, policies_now
from pulsar_lifecycle.tiered.planning.run_selection import (
    LeftToBrokers,
    Row,
    chosen,
    held_back,
    in_agreement,
    waves,
)
from pulsar_lifecycle.tiered.read_check import ReadCheck, Unheld
from pulsar_lifecycle.topics.topic_run import LossesNow, owners_rules, topic_ports, topic_run, unloads_of
from pulsar_lifecycle.topics.unloads import RunGuard, finish_unloads
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.plans import offload_plan
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice
from pulsar_lifecycle.values.refusals import RefusalCode


@dataclass(frozen=True, slots=True)
class OffloadOrder:
    """A plan, and how much of it: ``limit`` ledgers (0: all that the settings' caps allow).

    ``namespaces``: only of these tenants, namespaces and full topic names; ``only``: only what is offloaded, or only
    which copies in BookKeeper are deleted.
    """

    plan_id: str
    digest: str
    limit: int = 0
    namespaces: tuple[str, ...] = ()
    only: OffloadChoice | None = None

    def of(self, rows: pa.Table) -> pa.Table:
        """The rows that are meant."""
        named = plan_checks.within(rows, self.namespaces)
        return named if self.only is None else named.filter(pc.equal(named.column("action"), self.only.value))


def offload_now(
    cluster: Cluster, run_id: str, order: OffloadOrder, progress: Callable[[str], None]
) -> list[OffloadOutcome]:
    """Delete copies and offload what a plan names. Raises Refused, NotFound, Paused, LeaseLost; a rerun goes on.

    In this order: a topic that was just written counts as loaded, so one that offloads in every run would never
    delete a copy. What waits for that is offloaded by a run in which nothing is due to go.
    """
    with _begun(cluster, run_id, order) as (work, rows, planned):
        carry_out(work, rows, planned, progress)
    return work.outcomes


def carry_out(work: OffloadWork, rows: Sequence[Row], planned: pa.Table, progress: Callable[[str], None]) -> None:
    """Do the work of a run on ``rows`` of what is ``planned``; ``work.outcomes`` then has what became of each ledger.

    Raises Paused, LeaseLost, Overloaded.
    """
    try:
        work.finish_attempts(planned, progress)
        leaving = [row for row in rows if row["action"] == OffloadChoice.DELETE_COPY]
        work.read_first(leaving, progress)
        some = list(waves(leaving))
        for wave in random.sample(some, len(some)):
            work.begin_deletions(wave, progress)
        for wave in waves([row for row in rows if row["action"] == OffloadChoice.OFFLOAD], work.unread):
            work.offload(wave, progress)
    except ReadCheckFailed as failed:
        why = Why(Code.READ_CHECK_FAILED, str(failed))
        work.outcomes[:0] = [OffloadOutcome(failed.outcomes[-1].topic, -1, Outcome.FAILED, why), *failed.outcomes]
    except Unheld as unheld:
        work.outcomes[:0] = [OffloadOutcome("", -1, Outcome.FAILED, Why(Code.UNTOLD, str(unheld)))]
    try:
        work.finish()
    except LifecycleError as error:
        if not work.untold:
            raise
        why = Why(Code.SERVER_FAILED, str(error))
        work.outcomes.append(OffloadOutcome("", -1, Outcome.FAILED, why))  # what could not be told must be read


@contextmanager
def _begun(cluster: Cluster, run_id: str, order: OffloadOrder) -> Iterator[tuple[OffloadWork, list[Row], pa.Table]]:
    """Check that we may act on this plan, and hold the offload lease for as long as the work lasts.

    Gives what this run works on, and all that is planned.
    """
    settings = cluster.settings
    check_limit(order.limit)
    if settings.object_store is None:
        raise RefusedBy(RefusalCode.NO_OBJECT_STORE, "object_store is not set: there is nowhere to offload to")
    with topic_ports(cluster, buckets=True) as ports:
        control.check_not_paused(ports.store)
        fingerprint = evidence.check_store(cluster, ports.store)
        now = ports.clock.now_ms()
        plan, rows = cluster.lake.offload_plan(order.plan_id)
        found = offload_plan.digest(rows, plan.to_json())
        plans.check_applicable(
            plan,
            found,
            digest_given=order.digest,
            cluster=settings.cluster,
            fingerprint=fingerprint,
            now=now,
            valid_for_ms=int(settings.orphans.plan_valid_for * 1000),
        )
        rows = order.of(rows)
        epoch = evidence.usable_epoch(cluster, fingerprint, now)
        with _acting(cluster, run_id, epoch, ports) as (any_run, guard, lease):
            caps = settings.offload
            ports.store.sync("/")
            in_force = policies_now(cluster, rows.column("topic").unique().to_pylist())
            run = replace(any_run, plan_id=plan.plan_id, losses=LossesNow(cluster, in_force.losses))
            in_use = {name: one for name, one in in_force.of_topics.items() if not isinstance(one, Why)}
            done = done_since(cluster, plan.created_at)
            agreed, against = in_agreement(rows, in_force.of_topics, done, ours=deletes_copies(settings))
            waiting = LeftToBrokers(run, ports.store, lambda: guard.check(ports.store))
            unread = failed_locations(
                cluster.journal_reader,
                run.cluster,
                fingerprint,
                ports.clock.now_ms(),
                (Outcome.CHECK_FAILED, Outcome.CHECK_UNANSWERED),
            )
            some = chosen(agreed, order.limit, caps.max_ledgers, caps.max_bytes, waiting.without, unread)
            named = cluster.lake.named_uuids(epoch.epoch_id)
            ownership = Ownership(settings.object_store.pulsar_cluster or settings.cluster, named)
            read_check = ReadCheck(
                settings.offload.waive_read_check,
                {name for name, policy in in_use.items() if policy.tiered_first},
                passed_locations(cluster.journal_reader, run.cluster, fingerprint, ports.clock.now_ms()),
                fingerprint,
            )
            competing = {name for name, policy in in_use.items() if policy.brokers_delete}
            work = OffloadWork(cluster, run, ports, guard, lease, read_check, ownership, competing, unread)
            for action, name in (
                (OffloadChoice.OFFLOAD, Action.OFFLOAD),
                (OffloadChoice.DELETE_COPY, Action.COPY_DELETION),
            ):
                left = waiting.outcomes(action)
                if action == OffloadChoice.DELETE_COPY:
                    left += held_back(agreed, some, waiting.rows, unread)
                record_topics(run, ports, left, name)
                work.outcomes += [*against[action], *left]
            yield work, some, rows
            # of a run that failed before it did anything no row is left, or it would not be tried again
            record_topics(run, ports, against[OffloadChoice.OFFLOAD], Action.OFFLOAD)
            record_topics(run, ports, against[OffloadChoice.DELETE_COPY], Action.COPY_DELETION)


def deletes_copies(settings: Settings) -> bool:
    """Whether a run deletes copies in BookKeeper: they are ours to delete, and deletion is not switched off."""
    return settings.offload.bookkeeper_copies == "ours" and settings.deletion.topicTwoPhaseDeletionEnabled


@contextmanager
def _acting(cluster: Cluster, run_id: str, epoch: Epoch, ports: Ports) -> Iterator[tuple[TopicRun, RunGuard, Lease]]:
    """The offload lease, for as long as the work lasts. Raises Refused, and StoreError as ``check_may_act``.

    ``ports`` must be what all leases of the run were taken with: a session that expires takes its leases along, and
    only its own writes fail by that.
    """
    settings = cluster.settings
    if settings.offload.waive_read_check and not control.is_sandbox(ports.store):
        raise RefusedBy(
            RefusalCode.BELOW_FLOOR, "offload.waive_read_check: only a cluster with the sandbox's marker may"
        )
    cluster.journal.check_writable()
    with control.held_lease(
        settings, ports.store, ports.clock, f"offload run {run_id}", control.OFFLOAD_LEASE
    ) as lease:
        now = min(lease.taken_at, ports.clock.now_ms())
        operator_words.note_words(cluster, run_id)
        run = topic_run(cluster, run_id, ports, owners_rules(cluster, epoch, now), now, settings.offload.loaded_topics)
        yield run, RunGuard(lease.guard, unloads_of(settings, ports.clock)), lease


def revert_offloads(
    cluster: Cluster, run_id: str, topic: Topic, ledger_ids: Collection[int], *, dry_run: bool
) -> list[OffloadOutcome]:
    """``tiered.revert.revert_topic`` under both leases; a dry run writes nothing, and needs none.

    Raises Refused, NotFound, Paused, LeaseLost.
    """
    settings = cluster.settings
    if dry_run:
        with topic_ports(cluster, read_only=True) as ports:
            now = ports.clock.now_ms()
            context = owners_rules(
                cluster, evidence.newest_epoch(cluster, evidence.check_store(cluster, ports.store)), now
            )
            run = topic_run(cluster, run_id, ports, context, now, settings.offload.loaded_topics)
            return revert.plan_revert(run, ports, topic, ledger_ids)
    with topic_ports(cluster, buckets=True) as ports:
        store = ports.store
        control.check_not_paused(store)
        epoch = evidence.newest_epoch(cluster, evidence.check_store(cluster, store))
        with (
            control.held_lease(settings, store, ports.clock, f"reverting offloads in run {run_id}"),
            _acting(cluster, run_id, epoch, ports) as (run, guard, _),
        ):
            finish_unloads(store, ports.admin, ports.clock, guard, wait=False)
            outcomes = revert.revert_topic(run, ports, guard, topic, ledger_ids)
            left = finish_unloads(store, ports.admin, ports.clock, guard, wait=True)
    return outcomes + still_pending(left)
