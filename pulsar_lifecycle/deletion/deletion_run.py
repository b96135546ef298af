"""The driver's side of plans and deletion runs: what the jobs and the command line call.

Belongs here: composing lake, lease, engine and Spark for one run. Not here: the rules and the effects themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa

from pulsar_lifecycle.deletion.decision import Run
from pulsar_lifecycle.deletion.planning import confirmed_orphans
from pulsar_lifecycle.deletion.run_evidence import DeclaredBuckets, Evidence, OffloadEvidence
from pulsar_lifecycle.deletion.workers import OutcomeCount, delete_directly, delete_from_queue
from pulsar_lifecycle.deletion_queue.queue_topics import pending_where_subscribed
from pulsar_lifecycle.errors import LifecycleError, NotFound, RefusedBy
from pulsar_lifecycle.journal import in_doubt
from pulsar_lifecycle.journal.archive import nodes_in_doubt
from pulsar_lifecycle.journal.first_phase_marks import marked_ledgers, marked_offloads
from pulsar_lifecycle.journal.offloads import copy_deletions
from pulsar_lifecycle.journal.operator_words import note_words
from pulsar_lifecycle.journal.prometheus import published
from pulsar_lifecycle.journal.queries import ordered_by, sent_ledgers, unsent
from pulsar_lifecycle.journal.read_checks import failed_locations
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.ports import ClusterPorts, MetadataStore
from pulsar_lifecycle.runs import control, plan_checks
from pulsar_lifecycle.runs.apply import Applied, chosen, send_intents
from pulsar_lifecycle.runs.caps import Order, caps_of
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import held_lease
from pulsar_lifecycle.scan import confirmation
from pulsar_lifecycle.scan.confirmation import confirmed_by_all, in_use_at_any
from pulsar_lifecycle.scan.evidence import (
    below_floor,
    check_may_act,
    earlier_epochs,
    gaps_of,
    refuse_scans_from_the_future,
    rules_of_deletion,
    shadow_sources_at_any,
    since,
    unconfirmed,
    usable_epoch,
)
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics.topic_run import deliver_after_ms_of, unloads_of
from pulsar_lifecycle.topics.unloads import RunGuard, finish_unloads
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.gaps import in_words
from pulsar_lifecycle.values.offload_uuids import NamedByAny
from pulsar_lifecycle.values.plans import deletion_plan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary, summary_of
from pulsar_lifecycle.values.refusals import RefusalCode

T = TypeVar("T")


def make_plan(
    cluster: Cluster,
    epoch: Epoch,
    kind: PlanKind = PlanKind.ORPHANS,
    only: Callable[[pa.Table], pa.Table] = lambda rows: rows,
) -> tuple[PlanSummary, pa.Table]:
    """Plan the orphans of a closed epoch that an earlier covered epoch confirms; writes nothing to the cluster.

    ``only`` may leave rows out; ``kind`` begins the plan's id. One of kind ``orphans`` has none whose intent waits.
    """
    now = cluster.clock.now_ms()
    gaps = gaps_of(cluster, epoch)
    found = _findings(cluster, epoch, deletion_plan.PLAN.names)
    earlier = next((e for e in reversed(earlier_epochs(cluster, epoch)) if was_judged(cluster, e)), None)
    if earlier is None:
        gaps.append(unconfirmed(cluster.settings))
    before = _findings(cluster, earlier, confirmed_orphans.CONFIRMED_BY) if earlier else found
    rows = only(confirmed_orphans.confirm(found, before))
    if earlier and rows.num_rows:
        asked = since(cluster, earlier, epoch)
        in_use = in_use_at_any(cluster.lake.referenced(e.epoch_id) for e in asked)
        rows = confirmed_by_all(rows, in_use, shadow_sources_at_any(cluster, asked))
    confirmed = rows.num_rows
    if kind is PlanKind.ORPHANS:
        rows = _without_in_flight(cluster, rows, now)
    summary = summary_of(
        kind, cluster.ids.token(plans.TOKEN_BYTES), epoch, gaps, now, rows, deletion_plan.digest,
        logical="logical_bytes", physical="physical_bytes", confirmed_by=earlier.epoch_id if earlier else "",
    )  # fmt: skip
    summary = replace(summary, in_flight=confirmed - rows.num_rows)
    cluster.lake.store_plan(summary, rows)
    return summary, rows


def _without_in_flight(cluster: Cluster, rows: pa.Table, now: int) -> pa.Table:
    """Plan rows without those whose intent was sent, or tried again, while the plan that sent it is valid.

    An older one may be lost, and so is any that was sent before a restore that was accepted, or where the queue is
    empty, not whole or does not answer: sending it again is harmless.
    """
    valid = int(cluster.settings.orphans.plan_valid_for * 1000)
    since = max(now - valid, cluster.lake.set_aside_until(cluster.settings.cluster))
    left = unsent(cluster.journal_reader, cluster.settings.cluster, rows, since)
    return left if left.num_rows < rows.num_rows and _queue_holds_all(cluster) else rows


def _queue_holds_all(cluster: Cluster) -> bool:
    """Whether nothing says that the queue has lost messages."""
    try:
        with cluster.ports(read_only=True) as ports:
            backlog, unsubscribed = pending_where_subscribed(ports.admin)
    except LifecycleError:
        return False
    return backlog > 0 and not unsubscribed


def _findings(cluster: Cluster, epoch: Epoch, columns: Sequence[str]) -> pa.Table:
    return cluster.lake.read_epoch_table(epoch.epoch_id, "findings", columns=list(columns))


def was_judged(cluster: Cluster, epoch: Epoch) -> bool:
    """Whether the scan got as far as its findings; one that failed before still proves what refers to what."""
    try:
        cluster.lake.read_epoch_table(epoch.epoch_id, "findings", columns=[])
    except NotFound:
        return False
    return True


def apply_plan(cluster: Cluster, run_id: str, order: Order, progress: Callable[[str], None]) -> Applied:
    """Send a plan's intents to the deletion topic. Raises Refused, Paused, NotFound, UsageError."""
    settings = cluster.settings
    with published(cluster), cluster.ports() as ports:
        store = ports.store
        rows, summary = _rows_to_apply(cluster, store, order, ports.clock.now_ms())
        note_words(cluster, run_id)
        return send_intents(
            run_id,
            summary,
            rows,
            sent_ledgers(ports.journal_reader, summary.plan_id),
            store=store,
            queue=ports.queue,
            journal=ports.journal,
            clock=ports.clock,
            deliver_after_ms=deliver_after_ms_of(settings, control.is_sandbox(store)),
            progress=progress,
        )


def _rows_to_apply(cluster: Cluster, store: MetadataStore, order: Order, now: int) -> tuple[pa.Table, PlanSummary]:
    settings = cluster.settings
    caps = caps_of(settings, order)
    fingerprint = check_may_act(cluster, store)
    summary, rows = cluster.lake.plan(order.plan_id)
    valid = int(settings.orphans.plan_valid_for * 1000)
    some = chosen(
        order, caps, summary, rows, cluster=settings.cluster, fingerprint=fingerprint, now=now, valid_for_ms=valid
    )
    plan_checks.check_scan(summary, cluster.lake.epoch, now, valid, settings.words_in_force(now))
    return some, summary


def delete_pending(cluster: Cluster, run_id: str) -> list[OutcomeCount]:
    """Work the queue off. Raises Refused when another run is at it or the newest scan is not covered."""
    with published(cluster), cluster.ports() as ports, begun(cluster, run_id, ports) as run:
        return delete_from_queue(cluster, run)


def apply_directly(cluster: Cluster, run_id: str, order: Order) -> list[OutcomeCount]:
    """Delete a plan's ledgers without the queue, by the same checks: for when no bookie is writable."""
    with published(cluster), cluster.ports() as ports:
        rows, summary = _rows_to_apply(cluster, ports.store, order, ports.clock.now_ms())
        with begun(cluster, run_id, ports) as run:
            return delete_directly(cluster, run, rows, summary.plan_id, summary.created_at)


@contextmanager
def begun(cluster: Cluster, run_id: str, ports: ClusterPorts) -> Iterator[Run]:
    """Check that we may act, take the lease for as long as the work lasts, and gather the evidence."""
    settings, store, clock = cluster.settings, ports.store, ports.clock
    epoch = usable_epoch(cluster, check_may_act(cluster, store), clock.now_ms())
    below = below_floor(settings, control.is_sandbox(store))
    if below:
        raise RefusedBy(RefusalCode.BELOW_FLOOR, in_words(below))
    with held_lease(settings, store, clock, f"run {run_id}") as lease:
        refuse_scans_from_the_future(epoch, lease.taken_at)
        now = min(lease.taken_at, clock.now_ms())
        note_words(cluster, run_id)
        # What fails is tried by every run and reported by those that trim; no deletion depends on it.
        finish_unloads(store, ports.admin, clock, RunGuard(lease.guard, unloads_of(settings, clock)), wait=False)
        brokers = load_state.fetch_brokers(store, ports.admin)
        left = nodes_in_doubt(ports.journal_reader, settings.cluster, now - in_doubt.WITHIN_MS)
        ordered = ordered_by(ports.journal_reader, settings.cluster, {one.ledger_id: one.at for one in left})
        in_doubt.resolve(run_id, left, ordered, store, ports.journal, settings.bookkeeper.ledgers_root)
        yield Run(
            run_id=run_id,
            cluster=settings.cluster,
            guard=lease.guard,
            ledgers_root=settings.bookkeeper.ledgers_root,
            now=now,
            brokers=brokers,
            evidence=evidence_at(cluster, epoch, now),
            batch=settings.deletion.batch,
            retry_delay_ms=settings.deletion.twoPhaseDeletionReconsumeLaterInSeconds * 1000,
            max_retries=settings.deletion.twoPhaseDeletionMaxRetryDeleteCount,
            deletes_per_second=settings.deletion.deletes_per_second / cluster.tasks.at_once,
            bytes_per_second=settings.deletion.bytes_per_second / cluster.tasks.at_once,
            slow_above_ms=settings.zookeeper.slow_above * 1000,
            stop_above_ms=settings.zookeeper.stop_above * 1000,
            offload=_declared_buckets(settings),
            waiting_delay_ms=int(settings.deletion.waiting_delay * 1000),
        )


def evidence_at(cluster: Cluster, epoch: Epoch, now: int) -> Evidence:
    """What a deletion run goes by at ``now`` (ms), and ``explain``: a closed epoch and the one that confirms it."""
    older = earlier_epochs(cluster, epoch)
    earlier = older[-1] if older else None
    asked = since(cluster, earlier, epoch)
    context = rules_of_deletion(cluster, epoch, cluster.clock.now_ms())
    return Evidence(
        refs=cluster.lake.referenced(epoch.epoch_id),
        started_at=epoch.started_at,
        earlier=in_use_at_any(cluster.lake.referenced(e.epoch_id) for e in asked),
        earlier_started_at=earlier.started_at if earlier else None,
        earlier_czxid=earlier.max_czxid if earlier else -1,
        context=replace(context, holds=cluster.settings.orphans.holds(now)),
        marked=valid_marks(cluster, epoch, marked_ledgers(cluster.journal_reader, cluster.settings.cluster)),
        offloads=_offload_evidence(cluster, epoch, asked, now),
    )


Marks = Mapping[tuple[int, T], int]
"""(Ledger id, its czxid or which of its offloaded copies) -> when (ms) our first phase marked that."""


def valid_marks(cluster: Cluster, epoch: Epoch, marks: Marks[T]) -> Marks[T]:
    """``scan.confirmation.valid_marks``, by the scans of a cluster before ``epoch``."""
    lake, until = cluster.lake, cluster.lake.set_aside_until(cluster.settings.cluster)
    return confirmation.valid_marks(marks, until, epoch.started_at, lake.epochs(epoch.fingerprint), lake.referenced)


def _offload_evidence(cluster: Cluster, epoch: Epoch, asked: Sequence[Epoch], now: int) -> OffloadEvidence:
    """What the epochs say of offloaded copies; their lists are read by the worker that needs them."""
    topics = [c for e in (epoch, *asked[:1]) for c in e.census if c.table == "managed_ledgers"]
    return OffloadEvidence(
        now=cluster.lake.named_uuids(epoch.epoch_id),
        earlier=NamedByAny(tuple(cluster.lake.named_uuids(e.epoch_id) for e in asked)),
        undecoded=sum(c.undecodable for c in topics),
        marked=valid_marks(cluster, epoch, marked_offloads(cluster.journal_reader, cluster.settings.cluster)),
        copy_deletions=copy_deletions(cluster.journal_reader, cluster.settings.cluster),
        failed_locations=failed_locations(cluster.journal_reader, cluster.settings.cluster, epoch.fingerprint, now),
    )


def _declared_buckets(settings: Settings) -> DeclaredBuckets | None:
    declared = settings.object_store
    if declared is None:
        return None
    return DeclaredBuckets(frozenset(declared.buckets), declared.pulsar_cluster or settings.cluster, declared.exclusive)
