"""Jobs: ``scan`` looks and plans, ``apply_plan`` sends intents, ``delete_pending`` scans again and deletes.

Spark jobs run in one process: a JVM per step would cost more than the step.
"""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.deletion import outcomes_shown
from assets.names import FINDINGS, METASTORE, key
from pulsar_lifecycle.engine.apply import Order
from pulsar_lifecycle.plan.deletion import Caps
from pulsar_lifecycle.spark import runs
from pulsar_lifecycle.spark.deletion import STOPPED
from resources.lifecycle import LifecycleResource

SCANNED = (*METASTORE, "ledger_references", *FINDINGS)


def scan_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Look at the cluster, judge, plan; writes nothing to it."""
    return dg.define_asset_job(
        "scan",
        selection=[key(cluster, name) for name in (*SCANNED, "deletion_plan")],
        description="Read the metastore, find who refers to what, judge every ledger, make a deletion plan. "
        "Writes nothing to the cluster.",
        executor_def=dg.in_process_executor,
    )


def delete_pending_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Scan, so that there is evidence younger than every intent, then work the queue off."""
    return dg.define_asset_job(
        "delete_pending",
        selection=[key(cluster, name) for name in (*SCANNED, "ledger_deletions")],
        description="Scan again, then delete what the queue holds and nothing refers to. "
        "Intents sent after the scan began wait for the next run.",
        executor_def=dg.in_process_executor,
    )


class ApplyConfig(dg.Config):
    """Which plan, how much of it, under which caps; the plan's page has it ready."""

    plan_id: str
    digest: str
    limit: int = 0
    max_ledgers: int = 100_000
    max_share: float = 0.05
    max_bytes: int = 1 << 50
    max_ledgers_per_topic: int = 100_000
    direct: bool = False

    def order(self) -> Order:
        """The library's form of it."""
        caps = Caps(self.max_ledgers, self.max_share, self.max_bytes, self.max_ledgers_per_topic)
        return Order(self.plan_id, self.digest, caps, self.limit)


@dg.op(
    name="send_intents",
    description="Send one message per planned ledger to the deletion topic; with `direct`, delete without the queue.",
)
def send_intents_op(context: dg.OpExecutionContext, config: ApplyConfig, lifecycle: LifecycleResource) -> None:
    """Refuses a stale, report-only or foreign plan and one that exceeds its caps."""
    where = lifecycle.cluster()
    if config.direct:
        outcomes = runs.apply_directly(where, context.run_id, config.order())
        context.add_output_metadata(outcomes_shown(outcomes))
        if any(o.outcome == STOPPED for o in outcomes):
            raise dg.Failure("the run stopped itself: " + "; ".join(o.reason for o in outcomes if o.outcome == STOPPED))
        return
    applied = runs.apply_plan(where, context.run_id, config.order(), context.log.info)
    context.add_output_metadata({"sent": applied.sent, "sent before": applied.already, "failed": applied.failed})
    if applied.failed:
        raise dg.Failure(
            f"{applied.failed} intents could not be sent, the first: {applied.first_error}; "
            "apply the plan again to send the rest"
        )


@dg.job(
    name="apply_plan",
    executor_def=dg.in_process_executor,
    description="Apply a deletion plan: its intents go to the deletion topic.",
)
def apply_plan_job() -> None:
    """One op."""
    send_intents_op()
