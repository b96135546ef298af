"""What a run with effects leaves on the assets that it changed: how many rows ended how, by which plan.

Source of truth: the journal's rows of the run, so that a run that failed half-way says what it had done. Not here:
counting them (``journal/effects.py``), what an asset says of itself once a job materializes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any

import dagster as dg
from dagster._core.events import AssetObservationData, DagsterEvent, DagsterEventType, StepMaterializationData

from assets.names import APPLIED, APPLIED_PLAN, CLUSTER, EPOCH, PLAN, TOLD, key, register_namespaces
from assets.pages import show
from assets.pages.deleted import deleted_by_run
from assets.pages.plan_links import PAGE_OF, PlanLinks
from pulsar_lifecycle.deletion.workers import stop_code
from pulsar_lifecycle.errors import CorruptFormat, LeaseLost, LifecycleError, Paused, RefusedBy
from pulsar_lifecycle.journal.effects import Changed, Effect, added_up, effects_of
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans import epoch_of
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of

CLOCKS_APART_MS = 3_600_000
"""How far the clocks of workers, which date the journal's rows, may be behind the driver's."""
NAMESPACES = 500
"""Namespaces of one run whose pages get an event of their own."""
PLANS = 50
"""Plans of one run that have a tag each."""
LOOKS_BACK_SECONDS, RUNS = 30 * 86_400, 100
"""How far back a run looks for those that died, and at how many that ended badly."""
ENDS_WITHIN = 60.0
"""Seconds within which a run that Dagster calls ended has written what it did, if it lives."""
_IN_A_KEY = re.compile(r"[A-Za-z0-9_.-]{1,63}")
"""What Dagster takes as the end of a tag's key."""
LASTING = ("journal", "archive", Changed.TRIMMED.value)
"""Assets that are nothing but rows of runs: what a run adds is its row count."""
NO_PLAN = "none"
"""Tag of a run that has applied no plan, where the run that it executes again had."""
_SENDS_NOTHING = frozenset(
    {PlanKind.LOAD, PlanKind.DELAYED_INDEX, PlanKind.INACTIVE_SUBSCRIPTIONS, PlanKind.COLLECTION}
)
"""Kinds of plans whose application sends no message to the deletion topic."""


@contextmanager
def noted(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    where: Cluster,
    plan_id: str = "",
    *,
    dry_run: bool = False,
    sends: bool = False,
) -> Iterator[Callable[[], Sequence[Effect]]]:
    """Tag the run, and write what it did on the assets that it changed, however it ends; nothing for a dry run.

    ``sends``: it is refused on the page of the deletion topic, too, whatever its plan has for pages.
    What it yields reads from the journal what the run did, once: to be called when all is done. Raises StoreError, and
    dagster.Failure where a pause or another's lease stopped the run with some of it done: that is no refusal.
    """
    if dry_run:
        yield list
        return
    cluster, begun, run_id = where.settings.cluster, where.clock.now_ms(), context.run.run_id
    _tag(context, {CLUSTER: cluster, **_of_no_plan(context), **_plan_tags([plan_id] if plan_id else [])})
    done = cache(lambda: effects_of(where.journal_reader, cluster, run_id, begun - CLOCKS_APART_MS))
    made = False
    try:
        yield done
        made = True
    except (Paused, LeaseLost, RefusedBy) as error:
        known = _known(done)
        if any(one.changed for one in known) and not isinstance(error, RefusedBy):
            told = f"`pulsar-lifecycle journal --run {run_id}` has what was done before"
            raise dg.Failure(f"stopped: {error}; {told}", allow_retries=False) from error
        if not known:
            for event in _refused(error, cluster, run_id, plan_id, sends):
                context.log_event(event)
        raise
    finally:
        try:
            effects = done()
            nothing = _applied_tags([plan_id]) if plan_id and not effects else {}
            _tag(context, _plan_tags(_plans_of(effects)) or dict.fromkeys(nothing, NO_PLAN))
            _register(context, cluster, effects)
            plans = PlanLinks(context.instance, cluster)
            for event in events_of(effects, cluster, run_id, plans, own=_own(context), made=made):
                context.log_event(event)
            _tell_of_the_dead(context, where)
        except LifecycleError as error:  # what the run itself says matters more
            context.log.warning(f"what this run did is not on the pages of assets, only in the journal: {error}")


def _known(done: Callable[[], Sequence[Effect]]) -> Sequence[Effect]:
    """What a run that stops has done; nothing where the journal cannot be read, as why it stops matters more."""
    try:
        return done()
    except LifecycleError:
        return ()


def _refused(
    refused: Paused | LeaseLost | RefusedBy, cluster: str, run_id: str, plan_id: str, sends: bool
) -> list[dg.AssetObservation]:
    """What a run leaves that was refused before it did anything: on its plan's page, and on the queue's if it sends."""
    code = refused.code if isinstance(refused, RefusedBy) else stop_code(refused)
    kind = kind_of(plan_id)
    names = [PAGE_OF[kind]] if kind in PAGE_OF else []
    if sends or (names and kind not in _SENDS_NOTHING):
        names.append(Changed.QUEUE.value)
    metadata: dict[str, Any] = {
        "run": dg.MetadataValue.dagster_run(run_id),
        "refused": code.value,
        "why": str(refused),
        **({"plan id": plan_id} if plan_id else {}),
    }
    return [dg.AssetObservation(key(cluster, name), metadata=metadata) for name in names]


def about_plan(context: dg.OpExecutionContext, where: Cluster, plan_id: str) -> None:
    """Tag a run that is about a plan, and does not apply it."""
    _tag(context, {CLUSTER: where.settings.cluster, PLAN: plan_id, EPOCH: epoch_of(plan_id)})


def about_scan(context: dg.AssetExecutionContext, epoch_id: str) -> None:
    """Tag a run that made a scan; one that deletes by a plan after it says that plan's scan instead."""
    _tag(context, {EPOCH: epoch_id})


def events_of(
    effects: Sequence[Effect],
    cluster: str,
    run_id: str,
    plans: PlanLinks,
    own: Iterable[str] = (),
    *,
    made: bool = True,
) -> list[Any]:
    """An event for each asset that was changed, for each plan that ordered it, and for the journal.

    ``own``: assets that the run materializes itself, and whose page it fills, but for one that failed or was ended:
    then they are not ``made``.
    """
    found: list[Any] = []
    mine = [one for one in effects if one.changed]
    for changed in Changed:
        some = [one for one in mine if one.changed is changed]
        if some and not (made and changed.value in own):
            found.append(_observed(key(cluster, changed.value), some, run_id, plans))
    for plan_id in _plans_of(mine):
        kind = kind_of(plan_id)
        if asset := kind and PAGE_OF.get(kind):
            some = [one for one in mine if one.plan_id == plan_id]
            found.append(_observed(key(cluster, asset), some, run_id, plans))
    if mine:
        found.append(_observed(key(cluster, "journal"), mine, run_id, plans))
    if Changed.OFFLOADED not in own:
        found += _by_namespace(mine, cluster)
    archived = [one for one in mine if one.changed is Changed.DELETED and one.outcome == Outcome.DELETED]
    if archived:
        found.append(_observed(key(cluster, "archive"), archived, run_id, plans))
    return found


def plans_shown(instance: dg.DagsterInstance, cluster: str, effects: Iterable[Effect]) -> dg.MetadataValue:
    """The plans that ordered what a run did."""
    return PlanLinks(instance, cluster).shown(_plans_of(effects))


def _plans_of(effects: Iterable[Effect]) -> list[str]:
    return sorted({one.plan_id for one in effects if one.plan_id})


def _observed(asset_key: dg.AssetKey, effects: Sequence[Effect], run_id: str, plans: PlanLinks) -> dg.AssetObservation:
    epochs = sorted({epoch for plan in _plans_of(effects) if (epoch := epoch_of(plan))})
    metadata: dict[str, Any] = {
        "run": dg.MetadataValue.dagster_run(run_id),
        "rows of the journal": sum(one.rows for one in effects),
        "outcomes": dg.MetadataValue.md(outcomes(effects)),
        "plans": plans.shown(_plans_of(effects)),
        **show.everything(run_id),
    }
    if asset_key.path[-1] in LASTING:
        metadata["dagster/row_count"] = metadata["rows of the journal"]
    return dg.AssetObservation(asset_key, metadata=metadata | ({EPOCH: epochs[-1]} if epochs else {}))


def outcomes(effects: Iterable[Effect]) -> str:
    """A Markdown table of how many ended how, and by which code."""
    cells = [(*group, rows, show.size(size)) for *group, rows, size in added_up(effects)]
    return show.markdown(["action", "phase", "outcome", "code", "rows", "bytes"], cells)


def _by_namespace(effects: Iterable[Effect], cluster: str) -> list[dg.AssetMaterialization | dg.AssetObservation]:
    """The namespaces whose ledgers a run was to offload or revert, or to delete in BookKeeper, have pages of their own.

    Only where one was offloaded is the namespace materialized: nothing else is to look like that.
    """
    found: dict[str, list[Effect]] = {}
    for one in effects:
        if one.changed is Changed.OFFLOADED and (name := _namespace(one.topic)):
            found.setdefault(name, []).append(one)
    return [_of_namespace(cluster, name, some) for name, some in sorted(found.items())[:NAMESPACES]]


def _of_namespace(cluster: str, name: str, effects: Sequence[Effect]) -> dg.AssetMaterialization | dg.AssetObservation:
    asset_key, shown = key(cluster, Changed.OFFLOADED.value), {"outcomes": dg.MetadataValue.md(outcomes(effects))}
    offloaded = [one for one in effects if one.outcome == Outcome.OFFLOADED]
    if not offloaded:
        return dg.AssetObservation(asset_key, partition=name, metadata=shown)
    sums = {"dagster/row_count": sum(one.rows for one in offloaded), "bytes": sum(one.bytes for one in offloaded)}
    return dg.AssetMaterialization(asset_key, partition=name, metadata=sums | shown)


def _register(context: Any, cluster: str, effects: Iterable[Effect]) -> None:
    names = {name for one in effects if one.changed is Changed.OFFLOADED and (name := _namespace(one.topic))}
    register_namespaces(context.instance, cluster, names)


def _tell_of_the_dead(context: dg.OpExecutionContext | dg.AssetExecutionContext, where: Cluster) -> None:
    """Write on the pages what runs did that were killed before they could write it: once, and in their name."""
    cluster, instance, now = where.settings.cluster, context.instance, where.clock.now_ms() / 1000
    recent = dg.RunsFilter(
        statuses=[dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED],
        tags={CLUSTER: cluster},
        updated_after=datetime.fromtimestamp(now - LOOKS_BACK_SECONDS, UTC),
    )
    for record in instance.get_run_records(recent, limit=RUNS):
        run, ended = record.dagster_run, record.end_time or record.update_timestamp.timestamp()
        if run.tags.get(TOLD) == run.run_id or run.run_id == context.run.run_id or 0 <= now - ended < ENDS_WITHIN:
            continue
        if not _has_told(instance, run.run_id):
            began = int(record.create_timestamp.timestamp() * 1000)
            done = effects_of(where.journal_reader, cluster, run.run_id, began - CLOCKS_APART_MS)
            _tell(instance, where, run, [one for one in done if one.changed])  # an approval applies no plan
        instance.add_run_tags(run.run_id, {TOLD: run.run_id})


def _has_told(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a run wrote what it did itself: every one that did something observes an asset."""
    return bool(instance.get_records_for_run(run_id, of_type=DagsterEventType.ASSET_OBSERVATION, limit=1).records)


def _tell(instance: dg.DagsterInstance, where: Cluster, run: dg.DagsterRun, effects: Sequence[Effect]) -> None:
    cluster = where.settings.cluster
    events = events_of(effects, cluster, run.run_id, PlanLinks(instance, cluster))
    if any(one.changed is Changed.DELETED for one in effects):
        deleted = deleted_by_run(where.journal_reader, cluster, run.run_id)
        register_namespaces(instance, cluster, deleted)
        events += deleted.values()
    if tags := {name: value for name, value in _plan_tags(_plans_of(effects)).items() if value}:
        instance.add_run_tags(run.run_id, tags)
    for event in events:
        made = isinstance(event, dg.AssetMaterialization)
        kind = DagsterEventType.ASSET_MATERIALIZATION if made else DagsterEventType.ASSET_OBSERVATION
        data = StepMaterializationData(event) if made else AssetObservationData(event)
        instance.report_dagster_event(
            DagsterEvent(kind.value, job_name=run.job_name, event_specific_data=data), run_id=run.run_id
        )


def _namespace(topic: str) -> str:
    try:
        return str(Topic.parse(topic).namespace)
    except CorruptFormat:
        return ""


def _own(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> list[str]:
    own = context.selected_asset_keys if isinstance(context, dg.AssetExecutionContext) else ()
    return [one.path[-1] for one in own]


def _plan_tags(plans: Sequence[str]) -> dict[str, str]:
    """Those of the first plan, and one for each; what is no plan's id, as a message may have it, has none."""
    if not plans:
        return {}
    return {PLAN: plans[0], EPOCH: epoch_of(plans[0]), **dict(list(_applied_tags(plans).items())[:PLANS])}


def _applied_tags(plans: Iterable[str]) -> dict[str, str]:
    return {f"{APPLIED_PLAN}{plan}": APPLIED for plan in plans if kind_of(plan) and _IN_A_KEY.fullmatch(plan)}


def _of_no_plan(context: dg.OpExecutionContext | dg.AssetExecutionContext) -> dict[str, str]:
    """What replaces tags that a run executed again has of the run before it, as Dagster takes none away."""
    mine = [name for name in context.run.tags if name in (PLAN, EPOCH) or name.startswith(APPLIED_PLAN)]
    return dict.fromkeys(mine, NO_PLAN)


def _tag(context: Any, tags: Mapping[str, str]) -> None:
    new = {name: value for name, value in tags.items() if value}
    if new and context.instance.has_run(context.run.run_id):
        context.instance.add_run_tags(context.run.run_id, new)
