# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import.
"""The driver's side of plans and deletion runs: what the jobs and the command line call.

Belongs here: composing lake, lease, engine and Spark for one run. Not here: the rules and the effects themselves.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.engine import control, history, inventory, standing, unsettled
from pulsar_lifecycle.engine.apply import Applied, Order, chosen, send_intents
from pulsar_lifecycle.engine.control import Lease
from pulsar_lifecycle.engine.decision import Evidence, NamedByAny, OffloadEvidence, OffloadPolicy, Run
from pulsar_lifecycle.engine.unloads import Permit, Unloads, settle_unloads
from pulsar_lifecycle.engine.words import journal_row
from pulsar_lifecycle.errors import NotFound, Refused, UsageError
from pulsar_lifecycle.io.connect import Connections, system_clock
from pulsar_lifecycle.io.lake.artefacts import OffloadUuidsOf
from pulsar_lifecycle.io.lake.journal import (
    marked_ledgers,
    marked_offloads,
    released_ledgers,
    sent_ledgers,
    unseen_sites,
    unsettled_nodes,
)
from pulsar_lifecycle.io.prometheus import published
from pulsar_lifecycle.io.zookeeper.store import cluster_fingerprint
from pulsar_lifecycle.plan import confirmation
from pulsar_lifecycle.plan import deletion as plan_deletion
from pulsar_lifecycle.plan.caps import Caps, effective_caps
from pulsar_lifecycle.plan.confirmation import confirmed_by_all, in_use_at_any
from pulsar_lifecycle.plan.coverage import Epoch, rests_on_withdrawn
from pulsar_lifecycle.plan.deletion import FLOOR_SECONDS, SWITCHED_OFF, PlanSummary
from pulsar_lifecycle.plan.orphans import Context
from pulsar_lifecycle.plan.words import meet
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark.deletion import Outcome, delete_directly, delete_from_queue
from pulsar_lifecycle.spark.scan import Cluster
from pulsar_lifecycle.spark.session import concurrency

T = TypeVar("T")


def make_plan(
    cluster: Cluster, epoch: Epoch, kind: str = "orphans", only: Callable[[pa.Table], pa.Table] = lambda rows: rows
) -> tuple[PlanSummary, pa.Table]:
    """Plan the orphans of a closed epoch that an earlier covered epoch confirms; writes nothing to the cluster.

    ``only`` may leave rows out; ``kind`` begins the plan's id.
    """
    now = cluster.clock.now_ms()
    gaps = gaps_of(cluster, epoch)
    found = _findings(cluster, epoch)
    earlier = next((e for e in reversed(earlier_epochs(cluster, epoch)) if _was_judged(cluster, e)), None)
    if earlier is None:
        gaps.append(unconfirmed(cluster.settings))
    rows = only(plan_deletion.confirm(found, _findings(cluster, earlier) if earlier else found))
    if earlier and rows.num_rows:
        asked = since(cluster, earlier, epoch)
        in_use = in_use_at_any(cluster.lake.referenced(e.epoch_id) for e in asked)
        rows = confirmed_by_all(rows, in_use, _shadow_sources_at_any(cluster, asked))
    ledgers = next(c for c in epoch.census if c.table == "bookkeeper_ledgers").listed
    summary = PlanSummary(
        plan_id=f"{kind}-{epoch.epoch_id}-{secrets.token_hex(2)}",
        cluster=epoch.cluster,
        fingerprint=epoch.fingerprint,
        epoch_id=epoch.epoch_id,
        confirmed_by=earlier.epoch_id if earlier else "",
        created_at=now,
        actionable=not gaps,
        gaps=tuple(gaps),
        ledgers=rows.num_rows,
        logical_bytes=int(pc.sum(rows.column("logical_bytes")).as_py() or 0),
        physical_bytes=int(pc.sum(rows.column("physical_bytes")).as_py() or 0),
        cluster_ledgers=ledgers,
        digest="",
    )
    summary = replace(summary, digest=plan_deletion.digest(rows, summary.to_json()))
    cluster.lake.store_plan(summary, rows)
    return summary, rows


def gaps_of(cluster: Cluster, epoch: Epoch) -> list[str]:
    """Why nothing may be deleted by an epoch as the settings and the metadata store are now; empty if it may."""
    settings = cluster.settings
    gaps = list(epoch.gaps)
    if epoch.covered and not epoch.covers(_roots(cluster)):
        gaps.append("bookkeeper.shared_with names a root now that this scan did not read: scan again")
    gaps += [why for why in [_rests_on_withdrawn(cluster, epoch)] if why]
    root = settings.bookkeeper.ledgers_root
    with Connections(settings, read_only=True) as ports:
        gaps += _below_floor(settings, control.is_sandbox(ports.store))
        scans = cluster.lake.epochs(cluster=settings.cluster)
        broken = history.broken_since(ports.store, scans, cluster_fingerprint(ports.store, root), root)
    return gaps + ([broken] if broken and broken not in gaps else [])


def unconfirmed(settings: Settings) -> str:
    """The gap of a plan that no earlier scan confirms."""
    return f"no covered scan at least {settings.orphans.confirm_after:.0f} s before this one confirms it yet"


def _below_floor(settings: Settings, sandbox: bool) -> list[str]:
    """Waiting times under their floors, which only the sandbox's marker permits."""
    times = {"grace_period": settings.orphans.grace_period, "confirm_after": settings.orphans.confirm_after}
    return (
        []
        if sandbox
        else [
            f"orphans.{n} is {t:.0f} s, the floor is {FLOOR_SECONDS} s" for n, t in times.items() if t < FLOOR_SECONDS
        ]
    )


def _findings(cluster: Cluster, epoch: Epoch) -> pa.Table:
    return cluster.lake.read_epoch_table(epoch.epoch_id, "findings", columns=plan_deletion.PLAN.names)


def _was_judged(cluster: Cluster, epoch: Epoch) -> bool:
    """Whether the scan got as far as its findings; one that failed before still proves what refers to what."""
    try:
        cluster.lake.read_epoch_table(epoch.epoch_id, "findings", columns=[])
    except NotFound:
        return False
    return True


def earlier_epochs(cluster: Cluster, epoch: Epoch) -> list[Epoch]:
    """Epochs at least ``confirm_after`` older than ``epoch`` that cover the roots declared now, oldest first."""
    limit = epoch.started_at - cluster.settings.orphans.confirm_after * 1000
    return [
        e
        for e in cluster.lake.epochs(epoch.fingerprint)
        if e.covers(_roots(cluster))
        and e.started_at <= limit
        and e.epoch_id != epoch.epoch_id
        and not _rests_on_withdrawn(cluster, e)
    ]


def since(cluster: Cluster, earlier: Epoch, epoch: Epoch) -> list[Epoch]:
    """Epochs from ``earlier`` on that began before ``epoch``, covered or not, oldest first."""
    kept = cluster.lake.epochs(epoch.fingerprint)
    return [e for e in kept if earlier.started_at <= e.started_at < epoch.started_at]


def context_of(cluster: Cluster, epoch: Epoch) -> Context:
    """The context of an epoch's decisions, with the sources of all shadow topics that scans saw ``confirm_after`` ago.

    Or since then: a shadow topic whose z-node is taken away and put back lists the same ledgers as before.
    """
    older = earlier_epochs(cluster, epoch)
    limit = epoch.started_at - cluster.settings.orphans.confirm_after * 1000
    kept = cluster.lake.epochs(epoch.fingerprint)
    asked = [*older[-1:], *(e for e in kept if limit < e.started_at < epoch.started_at)]
    context = cluster.lake.context(epoch.epoch_id)
    return replace(context, shadow_sources=context.shadow_sources | _shadow_sources_at_any(cluster, asked))


def _shadow_sources_at_any(cluster: Cluster, epochs: Iterable[Epoch]) -> frozenset[str]:
    return frozenset[str]().union(*(cluster.lake.context(e.epoch_id).shadow_sources for e in epochs))


def _rests_on_withdrawn(cluster: Cluster, epoch: Epoch) -> str:
    """``coverage.rests_on_withdrawn`` as the settings are now."""
    if not (epoch.acknowledged or epoch.relied_on):
        return ""
    return rests_on_withdrawn(epoch, cluster.settings.words_in_force(cluster.clock.now_ms()))


def _roots(cluster: Cluster) -> tuple[str, ...] | None:
    declared = cluster.settings.bookkeeper.shared_with
    return None if declared is None else tuple(root.name for root in declared)


def note_words(cluster: Cluster, run_id: str) -> None:
    """Journal what is new of the operator's words, before anything is done under them. Raises StoreError."""
    settings, now = cluster.settings, cluster.clock.now_ms()
    stand, news = meet(cluster.lake.words(settings.cluster), settings.words(), now)
    if news:  # the journal first: said twice is better than never
        cluster.journal.record([journal_row(run_id, settings.cluster, word, now) for word in news])
        cluster.lake.store_words(settings.cluster, stand)


def check_may_act(cluster: Cluster, store: MetadataStore) -> str:
    """The store's fingerprint, if effects may begin: switched on, not paused, and the store did not go back in time.

    Raises Refused, Paused.
    """
    settings = cluster.settings
    if not settings.deletion.topicTwoPhaseDeletionEnabled:
        raise Refused(SWITCHED_OFF)
    control.check_not_paused(store)
    return check_store(cluster, store)


def check_store(cluster: Cluster, store: MetadataStore) -> str:
    """The store's fingerprint, if it is a later state of what the scans saw. Raises Refused."""
    root = cluster.settings.bookkeeper.ledgers_root
    fingerprint = cluster_fingerprint(store, root)
    history.check_history(store, cluster.lake.epochs(cluster=cluster.settings.cluster), fingerprint, root)
    return fingerprint


def newest_epoch(cluster: Cluster, fingerprint: str) -> Epoch:
    """The newest finished epoch; NotFound if there is none, Refused if it does not cover the roots declared now."""
    epochs = cluster.lake.epochs(fingerprint)
    if not epochs:
        raise NotFound("there is no scan of this cluster yet: run the job scan first")
    if not epochs[-1].covered:
        raise Refused(f"the newest scan {epochs[-1].epoch_id} is not covered: " + "; ".join(epochs[-1].gaps))
    if not epochs[-1].covers(_roots(cluster)):
        raise Refused(
            f"the newest scan {epochs[-1].epoch_id} did not read every root that bookkeeper.shared_with names now: "
            "run the job scan again"
        )
    if why := _rests_on_withdrawn(cluster, epochs[-1]):
        raise Refused(why)
    return epochs[-1]


def apply_plan(cluster: Cluster, run_id: str, order: Order, progress: Callable[[str], None]) -> Applied:
    """Send a plan's intents to the deletion topic. Raises Refused, Paused, NotFound, UsageError."""
    settings = cluster.settings
    with published(settings), Connections(settings) as ports:
        store = ports.store
        rows, summary = _rows_to_apply(cluster, store, order, ports.clock.now_ms())
        note_words(cluster, run_id)
        return send_intents(
            run_id,
            summary,
            rows,
            sent_ledgers(settings.lake.path, summary.plan_id),
            store=store,
            queue=ports.queue,
            journal=ports.journal,
            clock=ports.clock,
            deliver_after_ms=deliver_after_ms_of(settings, control.is_sandbox(store)),
            progress=progress,
        )


MIN_DELIVER_AFTER = 600.0
"""Seconds an intent waits at least; only the sandbox's marker permits less."""


def deliver_after_ms_of(settings: Settings, sandbox: bool) -> int:
    """How long (ms) an intent that is sent now waits before it is delivered."""
    wanted = settings.deletion.deliver_after
    return int((wanted if sandbox else max(wanted, MIN_DELIVER_AFTER)) * 1000)


def _rows_to_apply(cluster: Cluster, store: MetadataStore, order: Order, now: int) -> tuple[pa.Table, PlanSummary]:
    settings = cluster.settings
    caps = caps_of(settings, order)
    fingerprint = check_may_act(cluster, store)
    summary, rows = cluster.lake.plan(order.plan_id)
    valid = int(settings.orphans.plan_valid_for * 1000)
    some = chosen(order, caps, summary, rows, fingerprint=fingerprint, now=now, valid_for_ms=valid)
    plan_deletion.check_scan(summary, cluster.lake.epoch, now, valid, settings.words_in_force(now))
    return some, summary


def check_limit(limit: int) -> None:
    """Raise UsageError unless ``limit`` is a number of rows, or 0 for all."""
    if limit < 0:
        raise UsageError(f"limit: expected 0 (all) or a number of ledgers, found {limit}")


def caps_of(settings: Settings, order: Order) -> Caps:
    """The caps in effect for a launch, asked before anything else. Raises UsageError where it asks for more."""
    check_limit(order.limit)
    return effective_caps(settings.apply, order.caps)


def refuse_old_evidence(epoch: Epoch, now: int, valid_for_ms: int) -> None:
    """A deletion run without its scan would trust the last one however old; one from the future hides newer ones."""
    if not 0 <= now - epoch.started_at <= valid_for_ms:
        raise Refused(
            f"the newest scan {epoch.epoch_id} is {(now - epoch.started_at) // 60_000} minutes old, "
            f"valid for {valid_for_ms // 60_000}: run the job scan again"
        )


def refuse_scans_from_the_future(epoch: Epoch, store_now: int) -> None:
    """Raise Refused if a scan is dated after ``store_now``, the metadata store's own time (ms): our clock is ahead.

    Then it may be much closer to the scan that confirms it than their dates say.
    """
    if epoch.started_at > store_now:
        raise Refused(
            f"the newest scan {epoch.epoch_id} is dated {(epoch.started_at - store_now) / 1000:.0f} s after the "
            "metadata store's time: set the clocks right, then run the job scan again"
        )


def delete_pending(cluster: Cluster, run_id: str) -> list[Outcome]:
    """Work the queue off. Raises Refused when another run is at it or the newest scan is not covered."""
    settings = cluster.settings
    with published(settings), Connections(settings) as ports, _begun(cluster, run_id, ports) as run:
        return delete_from_queue(cluster.spark, cluster.settings, run)


def apply_directly(cluster: Cluster, run_id: str, order: Order) -> list[Outcome]:
    """Delete a plan's ledgers without the queue, by the same checks: for when no bookie is writable."""
    with published(cluster.settings), Connections(cluster.settings) as ports:
        rows, summary = _rows_to_apply(cluster, ports.store, order, ports.clock.now_ms())
        with _begun(cluster, run_id, ports) as run:
            return delete_directly(cluster.spark, cluster.settings, run, rows, summary.plan_id, summary.created_at)


def unloads_of(settings: Settings) -> Unloads:
    """One run's budget of unloads."""
    return Unloads(settings.trimming.unloads_per_second, settings.trimming.max_unloads, system_clock())


@contextmanager
def held_lease(settings: Settings, store: MetadataStore, what: str, path: str = control.LEASE) -> Iterator[Lease]:
    """The lease, for as long as ``what`` (the kind of a run, and its id) lasts. Raises Refused when another has it."""
    holder, wait = f"{settings.cluster} {what}", settings.zookeeper.session_timeout + 5
    lease = control.take_lease(store, holder, system_clock(), wait, path)
    try:
        yield lease
    finally:
        control.release_lease(store, lease)


@contextmanager
def _begun(cluster: Cluster, run_id: str, ports: Connections) -> Iterator[Run]:
    """Check that we may act, take the lease for as long as the work lasts, and gather the evidence."""
    settings, store, clock = cluster.settings, ports.store, ports.clock
    epoch = newest_epoch(cluster, check_may_act(cluster, store))
    refuse_old_evidence(epoch, clock.now_ms(), int(settings.orphans.plan_valid_for * 1000))
    below = _below_floor(settings, control.is_sandbox(store))
    if below:
        raise Refused("; ".join(below))
    older = earlier_epochs(cluster, epoch)
    if not older:
        raise Refused(f"no covered scan is at least {settings.orphans.confirm_after:.0f} s older than {epoch.epoch_id}")
    earlier = older[-1]
    asked = since(cluster, earlier, epoch)
    context = replace(
        context_of(cluster, epoch),
        grace=int(settings.orphans.grace_period * 1000),
        gone_namespaces=settings.bookkeeper.gone(clock.now_ms()),
        system_topics=settings.orphans.system_topics,
    )
    with held_lease(settings, store, f"run {run_id}") as lease:
        refuse_scans_from_the_future(epoch, lease.taken_at)
        now = min(lease.taken_at, clock.now_ms())
        context = replace(context, holds=settings.orphans.holds(now))
        note_words(cluster, run_id)
        # What fails is tried by every run and reported by those that trim; no deletion depends on it.
        settle_unloads(store, ports.admin, clock, Permit(lease.guard, unloads_of(settings)), wait=False)
        brokers = inventory.hear(store, ports.admin)
        left = unsettled_nodes(settings.lake.path, settings.cluster, now - unsettled.WITHIN_MS)
        unsettled.settle(run_id, left, store, ports.journal, settings.bookkeeper.ledgers_root)
        yield Run(
            run_id=run_id,
            cluster=settings.cluster,
            guard=lease.guard,
            ledgers_root=settings.bookkeeper.ledgers_root,
            now=now,
            brokers=brokers,
            evidence=Evidence(
                refs=cluster.lake.referenced(epoch.epoch_id),
                started_at=epoch.started_at,
                earlier=in_use_at_any(cluster.lake.referenced(e.epoch_id) for e in asked),
                earlier_started_at=earlier.started_at,
                earlier_czxid=earlier.max_czxid,
                context=context,
                marked=standing_marks(cluster, epoch, marked_ledgers(settings.lake.path, settings.cluster)),
                offloads=_offload_evidence(cluster, epoch, asked, now),
            ),
            batch=settings.deletion.batch,
            retry_delay_ms=settings.deletion.twoPhaseDeletionReconsumeLaterInSeconds * 1000,
            max_retries=settings.deletion.twoPhaseDeletionMaxRetryDeleteCount,
            deletes_per_second=settings.deletion.deletes_per_second / max(1, concurrency(cluster.spark)),
            bytes_per_second=settings.deletion.bytes_per_second / max(1, concurrency(cluster.spark)),
            slow_above_ms=settings.zookeeper.slow_above * 1000,
            stop_above_ms=settings.zookeeper.stop_above * 1000,
            offload=_offload_policy(settings),
            waiting_delay_ms=int(settings.deletion.waiting_delay * 1000),
        )


Marks = Mapping[int, tuple[T, int]]
"""Ledger id -> what a mark of our first phase says of it, and when (ms)."""


def standing_marks(cluster: Cluster, epoch: Epoch, marks: Marks[T]) -> Marks[T]:
    """``plan.confirmation.standing_marks``, by the scans of a cluster before ``epoch``."""
    lake, until = cluster.lake, cluster.lake.set_aside_until(cluster.settings.cluster)
    return confirmation.standing_marks(marks, until, epoch.started_at, lake.epochs(epoch.fingerprint), lake.referenced)


def _offload_evidence(cluster: Cluster, epoch: Epoch, asked: Sequence[Epoch], now: int) -> OffloadEvidence:
    """What the epochs say of offloaded copies; their lists are read by the worker that needs them."""
    topics = [c for e in (epoch, asked[0]) for c in e.census if c.table == "managed_ledgers"]
    return OffloadEvidence(
        now=OffloadUuidsOf(cluster.lake.location, epoch.epoch_id),
        earlier=NamedByAny(tuple(OffloadUuidsOf(cluster.lake.location, e.epoch_id) for e in asked)),
        undecoded=sum(c.undecodable for c in topics),
        marked=standing_marks(cluster, epoch, marked_offloads(cluster.settings.lake.path, cluster.settings.cluster)),
        released=released_ledgers(cluster.settings.lake.path, cluster.settings.cluster),
        unseen=unseen_sites(cluster.settings.lake.path, cluster.settings.cluster, epoch.fingerprint, now),
    )


def shadow_sources(cluster: Cluster, store: MetadataStore) -> standing.ShadowSources:
    """What shadow topics under any declared root read from now."""
    with Connections(cluster.settings) as ports:
        found = standing.shadow_sources(store, ports.configuration)
        for root in cluster.roots()[1:]:
            other = ports.root(root)
            found |= standing.shadow_sources(other, other)
    return found


def _offload_policy(settings: Settings) -> OffloadPolicy | None:
    declared = settings.object_store
    return declared and OffloadPolicy(
        frozenset(declared.buckets), declared.pulsar_cluster or settings.cluster, declared.exclusive
    )
