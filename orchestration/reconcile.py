"""Job ``reconcile_namespaces``: intents derived again after a rollback of brokers or a restore of ZooKeeper."""

import dagster as dg
from pydantic import Field

from assets.names import key
from assets.pages import lineage
from assets.pages.failures import refusals_fail
from assets.reconcile import RECONCILIATION, SendConfig, check_sent, intents_shown, reconciled_shown
from pulsar_lifecycle.deletion.reconcile import reconcile
from resources.lifecycle import LifecycleResource


class ReconcileConfig(SendConfig):
    """Which namespaces (none: all)."""

    namespaces: list[str] = Field(default=[])


def reconcile_job(cluster: str) -> dg.JobDefinition:
    """One op; its page and each namespace's page say what it found."""

    @dg.op(
        name="reconcile",
        description="Plan the confirmed orphans of some namespaces from the newest covered scan and, unless `dry_run`, "
        "send their intents under the caps of the settings. What is in flight is left out, unless `resend_in_flight`.",
    )
    @refusals_fail()
    def reconcile_op(context: dg.OpExecutionContext, config: ReconcileConfig, lifecycle: LifecycleResource) -> None:
        where = lifecycle.cluster()
        with lineage.noted(context, where, dry_run=config.dry_run, sends=True):
            found = reconcile(
                where,
                context.run_id,
                config.namespaces,
                apply=not config.dry_run,
                resend=config.resend_in_flight,
                progress=context.log.info,
            )
        for name, metadata in intents_shown(found).items():
            context.log_event(dg.AssetMaterialization(key(cluster, RECONCILIATION), partition=name, metadata=metadata))
        context.add_output_metadata(reconciled_shown(found))
        if found.unknown:
            raise dg.Failure(f"no such namespace, and nothing of it is left: {', '.join(found.unknown)}")
        check_sent(found)

    @dg.job(
        name="reconcile_namespaces",
        executor_def=dg.in_process_executor,
        description="Derive the intents of any namespaces again, after a rollback of brokers or a restore of "
        "ZooKeeper. A dry run unless `dry_run` is false.",
    )
    def reconcile_namespaces() -> None:
        reconcile_op()

    return reconcile_namespaces
