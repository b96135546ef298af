"""What a run may rely on of the scans there are: which are fresh, covered, and of this cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import NotFound, RefusedBy
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.ports import Clock, MetadataStore
from pulsar_lifecycle.runs import control, plan_checks
from pulsar_lifecycle.runs.caps import Caps, Order, caps_of
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.plan_checks import SWITCHED_OFF
from pulsar_lifecycle.scan import history_check
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.epoch import Epoch, rests_on_withdrawn
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.gaps import Gap, GapCode, in_words
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode

AHEAD_MS = 60_000
"""How far our clock may be ahead of the metadata store's for a plan to be waited for until that has come as far."""

FLOOR_SECONDS = 86_400
"""Neither grace period nor confirmation interval may be shorter, except on a cluster with the sandbox's marker."""


def gaps_of(cluster: Cluster, epoch: Epoch) -> list[Gap]:
    """Why nothing may be deleted by an epoch as the settings and the metadata store are now; empty if it may."""
    settings = cluster.settings
    gaps = [*epoch.gaps, *new_gaps(cluster, epoch)]
    root = settings.bookkeeper.ledgers_root
    with cluster.ports(read_only=True) as ports:
        gaps += below_floor(settings, control.is_sandbox(ports.store))
        scans = cluster.lake.epochs(cluster=settings.cluster)
        broken = history_check.broken_since(ports.store, scans, cluster_fingerprint(ports.store, root), root)
    return gaps + ([broken] if broken and broken not in gaps else [])


def new_gaps(cluster: Cluster, epoch: Epoch) -> list[Gap]:
    """Why an epoch that was covered is not, as the settings are now."""
    gaps: list[Gap] = []
    declared = declared_roots(cluster)
    if epoch.covered and declared is None:
        said = f"{SHARED_WITH} is not set now: name the clusters that share BookKeeper, [] for none"
        gaps.append(Gap(GapCode.SHARING_UNDECLARED, SHARED_WITH, said))
    elif epoch.covered and not epoch.covers(declared):
        said = f"{SHARED_WITH} names a root now that this scan did not read: scan again"
        gaps.append(Gap(GapCode.ROOT_NOT_SCANNED, SHARED_WITH, said))
    withdrawn = on_withdrawn_words(cluster, epoch)
    return gaps + ([withdrawn] if withdrawn else [])


SHARED_WITH = "bookkeeper.shared_with"


def unconfirmed(settings: Settings) -> Gap:
    """The gap of a plan that no earlier scan confirms."""
    said = f"no covered scan at least {settings.orphans.confirm_after:.0f} s before this one confirms it yet"
    return Gap(GapCode.UNCONFIRMED, "", said)


def below_floor(settings: Settings, sandbox: bool) -> list[Gap]:
    """Waiting times under their floors, which only the sandbox's marker allows."""
    times = {"grace_period": settings.orphans.grace_period, "confirm_after": settings.orphans.confirm_after}
    return (
        []
        if sandbox
        else [
            Gap(GapCode.BELOW_FLOOR, f"orphans.{n}", f"orphans.{n} is {t:.0f} s, the floor is {FLOOR_SECONDS} s")
            for n, t in times.items()
            if t < FLOOR_SECONDS
        ]
    )


def earlier_epochs(cluster: Cluster, epoch: Epoch) -> list[Epoch]:
    """Epochs at least ``confirm_after`` older than ``epoch`` that cover the roots declared now, oldest first."""
    limit = epoch.started_at - cluster.settings.orphans.confirm_after * 1000
    return [
        e
        for e in cluster.lake.epochs(epoch.fingerprint)
        if e.covers(declared_roots(cluster))
        and e.started_at <= limit
        and e.epoch_id != epoch.epoch_id
        and not on_withdrawn_words(cluster, e)
    ]


def since(cluster: Cluster, earlier: Epoch | None, epoch: Epoch) -> list[Epoch]:
    """Epochs from ``earlier`` on (None: all) that began before ``epoch``, covered or not, oldest first."""
    kept = cluster.lake.epochs(epoch.fingerprint)
    oldest = earlier.started_at if earlier else 0
    return [e for e in kept if oldest <= e.started_at < epoch.started_at]


def rules_of_deletion(cluster: Cluster, epoch: Epoch, now: int) -> Context:
    """The context by which a deletion run judges, and ``explain``: :func:`context_of`, settings as at ``now`` (ms)."""
    settings = cluster.settings
    return replace(
        context_of(cluster, epoch),
        grace=int(settings.orphans.grace_period * 1000),
        holds=settings.orphans.holds(now),
        gone_namespaces=settings.bookkeeper.gone(now),
        system_topics=settings.orphans.system_topics,
    )


def context_of(cluster: Cluster, epoch: Epoch) -> Context:
    """The context of an epoch's decisions, with the sources of all shadow topics that scans saw ``confirm_after`` ago.

    Or since then: a shadow topic whose z-node is taken away and put back lists the same ledgers as before.
    """
    older = earlier_epochs(cluster, epoch)
    limit = epoch.started_at - cluster.settings.orphans.confirm_after * 1000
    kept = cluster.lake.epochs(epoch.fingerprint)
    asked = [*older[-1:], *(e for e in kept if limit < e.started_at < epoch.started_at)]
    context = cluster.lake.context(epoch.epoch_id)
    return replace(context, shadow_sources=context.shadow_sources | shadow_sources_at_any(cluster, asked))


def shadow_sources_at_any(cluster: Cluster, epochs: Iterable[Epoch]) -> frozenset[str]:
    """Topics that had shadow topics at any of these epochs."""
    return frozenset[str]().union(*(cluster.lake.context(e.epoch_id).shadow_sources for e in epochs))


def on_withdrawn_words(cluster: Cluster, epoch: Epoch) -> Gap | None:
    """``epoch.rests_on_withdrawn`` as the settings are now."""
    if not (epoch.acknowledged or epoch.relied_on):
        return None
    return rests_on_withdrawn(epoch, cluster.settings.words_in_force(cluster.clock.now_ms()))


def declared_roots(cluster: Cluster) -> tuple[str, ...] | None:
    """Names of the declared roots that share BookKeeper; None where nothing is declared."""
    declared = cluster.settings.bookkeeper.shared_with
    return None if declared is None else tuple(root.name for root in declared)


def check_may_act(cluster: Cluster, store: MetadataStore) -> str:
    """The store's fingerprint, if effects may begin: switched on, not paused, and the store did not go back in time.

    Raises Refused, Paused, and StoreError where what is done could not be journalled: messages are sent before that.
    """
    settings = cluster.settings
    if not settings.deletion.topicTwoPhaseDeletionEnabled:
        raise RefusedBy(RefusalCode.SWITCHED_OFF, SWITCHED_OFF)
    control.check_not_paused(store)
    fingerprint = check_store(cluster, store)
    cluster.journal.check_writable()
    return fingerprint


def check_order(
    cluster: Cluster,
    order: Order,
    stored: Callable[[str], tuple[PlanSummary, pa.Table]],
    digest: Callable[[pa.Table, Mapping[str, Any]], str],
    as_capped: Callable[[pa.Table], pa.Table],
    *,
    dry_run: bool,
) -> tuple[PlanSummary, pa.Table, Caps]:
    """The plan that an order names, as many of its rows as it takes, and the caps in effect, if it may be applied now.

    ``stored`` reads a plan by its id, ``as_capped`` gives its rows as caps count them. Raises Refused for a plan that
    is stale, report-only, of another cluster or beyond the caps; NotFound, UsageError, Paused.
    """
    settings = cluster.settings
    caps = caps_of(settings, order)
    with cluster.ports(read_only=True) as ports:
        fingerprint = (check_store if dry_run else check_may_act)(cluster, ports.store)
    summary, rows = stored(order.plan_id)
    check_plan(cluster, order, summary, digest(rows, summary.to_json()), fingerprint)
    named = plan_checks.within(rows, order.namespaces)
    some = named.slice(0, order.limit or named.num_rows)
    plan_checks.check_caps(summary, as_capped(some), caps)
    return summary, some, caps


def check_plan(cluster: Cluster, order: Order, summary: PlanSummary, found: str, fingerprint: str) -> None:
    """Raise Refused unless a plan may be applied now, by itself and by its scan; ``found``: its files' digest."""
    settings, now = cluster.settings, cluster.clock.now_ms()
    valid = int(settings.orphans.plan_valid_for * 1000)
    plans.check_applicable(
        summary,
        found,
        digest_given=order.digest,
        cluster=settings.cluster,
        fingerprint=fingerprint,
        now=now,
        valid_for_ms=valid,
    )
    plan_checks.check_scan(summary, cluster.lake.epoch, now, valid, settings.words_in_force(now))


def check_store(cluster: Cluster, store: MetadataStore) -> str:
    """The store's fingerprint, if it is a later state of what the scans saw. Raises Refused."""
    root = cluster.settings.bookkeeper.ledgers_root
    fingerprint = cluster_fingerprint(store, root)
    history_check.check_history(store, cluster.lake.epochs(cluster=cluster.settings.cluster), fingerprint, root)
    return fingerprint


def newest_epoch(cluster: Cluster, fingerprint: str) -> Epoch:
    """The newest finished epoch; NotFound if there is none, Refused if it does not cover the roots declared now."""
    epochs = cluster.lake.epochs(fingerprint)
    if not epochs:
        raise NotFound("there is no scan of this cluster yet: run the job scan first")
    if not epochs[-1].covered:
        raise RefusedBy(
            RefusalCode.SCAN_NOT_COVERED,
            f"the newest scan {epochs[-1].epoch_id} is not covered: " + in_words(epochs[-1].gaps),
        )
    if not epochs[-1].covers(declared_roots(cluster)):
        raise RefusedBy(
            RefusalCode.SCAN_NOT_COVERED,
            f"the newest scan {epochs[-1].epoch_id} did not read every root that bookkeeper.shared_with names now: "
            "run the job scan again",
        )
    if why := on_withdrawn_words(cluster, epochs[-1]):
        raise RefusedBy(RefusalCode.WORD_WITHDRAWN, why.text)
    return epochs[-1]


def usable_epoch(cluster: Cluster, fingerprint: str, now: int) -> Epoch:
    """:func:`newest_epoch`, at ``now`` (ms) young enough to go by. Raises NotFound, Refused."""
    epoch = newest_epoch(cluster, fingerprint)
    refuse_old_evidence(epoch, now, int(cluster.settings.orphans.plan_valid_for * 1000))
    return epoch


def refuse_old_evidence(epoch: Epoch, now: int, valid_for_ms: int) -> None:
    """A deletion run without its scan would trust the last one however old; one from the future hides newer ones."""
    if not 0 <= now - epoch.started_at <= valid_for_ms:
        raise RefusedBy(
            RefusalCode.SCAN_EXPIRED,
            f"the newest scan {epoch.epoch_id} is {plans.age_text(epoch.started_at, now, valid_for_ms)}; run the job "
            "scan again",
        )


def refuse_scans_from_the_future(epoch: Epoch, store_now: int) -> None:
    """Raise Refused if a scan is dated after ``store_now``, the metadata store's own time (ms): our clock is ahead.

    Then it may be much closer to the scan that confirms it than their dates say.
    """
    if epoch.started_at > store_now:
        raise RefusedBy(
            RefusalCode.CLOCKS_DIFFER,
            f"the newest scan {epoch.epoch_id} is dated {(epoch.started_at - store_now) / 1000:.0f} s after the "
            "metadata store's time: set the clocks right, then run the job scan again",
        )


def await_plan_time(created_at: int, store_now: int, clock: Clock) -> None:
    """See to it that by the metadata store's time, ``store_now`` (ms), a plan was made in the past.

    By a clock that is ahead a plan takes data that is younger than its policy says. Waits for up to ``AHEAD_MS``;
    Raises Refused where it is more.
    """
    ahead = created_at - store_now
    if ahead > AHEAD_MS:
        raise RefusedBy(
            RefusalCode.CLOCKS_DIFFER,
            f"the plan is dated {ahead / 1000:.0f} s after the metadata store's time: what it takes for old may be "
            "younger by as much. Set the clocks right, then scan and plan again",
        )
    if ahead > 0:
        clock.sleep(ahead / 1000)
