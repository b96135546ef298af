"""Where the intents of each namespace stand: what a backfill after a rollback or a restore looks at.

Source of truth: the journal and the newest covered scan. Report-only, unless its configuration says ``dry_run: false``.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import dagster as dg

from assets.backfills import NO_MORE, NO_NAMESPACE, by_namespace, pages_written, partitions_to_do
from assets.findings import COLUMNS
from assets.names import key
from assets.pages import lineage, show
from pulsar_lifecycle.deletion.reconcile import Reconciled, reconcile
from pulsar_lifecycle.journal.intents import IntentState, NamespaceIntents
from resources.lifecycle import LifecycleResource

RECONCILIATION = "namespace_reconciliation"


class SendConfig(dg.Config):
    """As it ships, it only shows what it would send."""

    dry_run: bool = True
    resend_in_flight: bool = False


def reconciliation_asset(cluster: str) -> dg.AssetsDefinition:
    """``namespace_reconciliation``, partitioned by namespace."""

    @by_namespace(
        cluster,
        RECONCILIATION,
        group_name="deletion",
        description="Per namespace: intents in flight by the journal, settled ones, dead letters, confirmed orphans. "
        "For backfills after a rollback of brokers or a restore of ZooKeeper: one run for any selection of namespaces, "
        "which sends the intents, under the caps of the settings.",
        deps=[key(cluster, "journal")],
        kinds={"parquet"},
    )
    def namespace_reconciliation(
        context: dg.AssetExecutionContext, config: SendConfig, lifecycle: LifecycleResource
    ) -> Iterator[dg.MaterializeResult]:
        names = partitions_to_do(context)
        if not names:
            return
        where = lifecycle.cluster()
        pages: dict[str, dict[str, Any]] = {}
        with pages_written(context, names, lambda name: {"dry run": config.dry_run, **pages.get(name, {})}):
            with lineage.noted(context, where, dry_run=config.dry_run, sends=True):
                found = reconcile(
                    where,
                    context.run.run_id,
                    names,
                    apply=not config.dry_run,
                    resend=config.resend_in_flight,
                    progress=context.log.info,
                    deleted_too=True,
                )
            pages.update(intents_shown(found))
            pages.update((name, {**NO_NAMESPACE, **pages[name]}) for name in found.unknown)
            check_sent(found)
        yield from NO_MORE

    return namespace_reconciliation


def check_sent(found: Reconciled) -> None:
    """Fail where some intents could not be sent."""
    if found.applied and found.applied.problem:
        raise dg.Failure(f"{found.applied.problem}; launch it again to send the rest")


def intents_shown(found: Reconciled) -> dict[str, dict[str, Any]]:
    """What each namespace's page shows."""
    of_plan = frozenset(found.rows.column("namespace").unique().to_pylist())
    return {one.namespace: _shown(one, found, of_plan) for one in found.namespace_intents}


def _shown(intent_states: NamespaceIntents, found: Reconciled, of_plan: Collection[str]) -> dict[str, Any]:
    return {
        "dagster/row_count": intent_states.orphans,
        "confirmed orphans": intent_states.orphans,
        "physical bytes": intent_states.physical_bytes,
        "in flight by the journal": intent_states.in_flight,
        "settled": intent_states.settled,
        "dead letters": intent_states.states.get(IntentState.DEAD_LETTER, 0),
        "by state": dg.MetadataValue.md(show.markdown(["intents", "count"], sorted(intent_states.states.items()))),
        "queue": _queue(intent_states, found),
        **_unsubscribed(found),
        "plan id": found.summary.plan_id,
        "runs": dg.MetadataValue.md(show.applied_by(found.summary.plan_id)),
        "how to send": dg.MetadataValue.md(_how(intent_states, found, of_plan)),
    }


def _queue(intent_states: NamespaceIntents, found: Reconciled) -> str:
    if intent_states.in_flight and not found.backlog:
        return f"empty: {intent_states.in_flight} intents that the journal says are in flight are lost"
    return f"{found.backlog} intents of all namespaces"


def _unsubscribed(found: Reconciled) -> dict[str, str]:
    """A word on the queue's partitions without subscription, if there are any."""
    text = "counted as empty, what they held may be lost; what is sent makes the subscription again"
    return {"without subscription": f"{', '.join(found.unsubscribed)}: {text}"} if found.unsubscribed else {}


def _how(intent_states: NamespaceIntents, found: Reconciled, of_plan: Collection[str]) -> str:
    """``of_plan``: the namespaces that the plan has rows of."""
    if not found.summary.actionable:
        return "**Report only.**\n\n" + "\n".join(f"- {gap.line}" for gap in found.summary.gaps[:50])
    if intent_states.namespace not in of_plan:
        return "Nothing to send: what is confirmed is in flight." if intent_states.orphans else "Nothing to send."
    if found.applied and not found.applied.problem:
        return "Nothing to send any more: this run has."
    config = json.dumps(run_config([intent_states.namespace], dry_run=False), indent=2)
    return (
        "Launch a backfill of this asset with `dry_run: false`, or job `reconcile_namespaces` with this run "
        f"configuration:\n\n```json\n{config}\n```"
    )


def run_config(namespaces: list[str], *, dry_run: bool) -> dict[str, Any]:
    """The run configuration of job ``reconcile_namespaces``."""
    return {"ops": {"reconcile": {"config": {"namespaces": namespaces, "dry_run": dry_run}}}}


def reconciled_shown(found: Reconciled) -> Mapping[str, Any]:
    """What the job's op shows."""
    lines = [
        (
            s.namespace,
            s.orphans,
            show.size(s.physical_bytes),
            s.in_flight,
            s.settled,
            s.states.get(IntentState.DEAD_LETTER, 0),
        )
        for s in sorted(found.namespace_intents, key=lambda s: (-s.orphans, s.namespace))[: show.SAMPLE]
    ]
    headers = ["namespace", "confirmed orphans", "bytes", "in flight", "settled", "dead letters"]
    sent = {"sent": found.applied.sent, "failed": found.applied.failed} if found.applied else {}
    plan_id = found.summary.plan_id
    return {
        "to send": found.summary.ledgers,
        **sent,
        **_unsubscribed(found),
        "plan id": plan_id,
        "digest": found.summary.digest,
        "actionable": found.summary.actionable,
        "missing": show.bullets([gap.line for gap in found.summary.gaps]),
        "namespaces": dg.MetadataValue.md(show.markdown(headers, lines)),
        "sample": show.table(found.rows.slice(0, show.SAMPLE).to_pylist(), COLUMNS),
        "whole plan": dg.MetadataValue.md(f"{show.whole_plan(plan_id)}\n\n{show.applied_by(plan_id)}"),
    }
