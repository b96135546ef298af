"""Jobs ``plan_offload`` and ``offload``: look which ledgers are to go to tiered storage, and have them go."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from pydantic import Field

from assets.names import key, pool
from assets.pages import lineage, show
from assets.pages.failures import refusals_fail
from assets.tiered import check_done, counted, outcomes_shown, proofs_told, said
from orchestration.automatic.may_begin import may_begin
from orchestration.named import ledgers_of, topic_of
from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.tiered.offload_run import OffloadOrder, offload_now, revert_offloads
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans import epoch_of
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice
from resources.lifecycle import LifecycleResource


def plan_offload_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Judge the newest scan's ledgers by the offload policies; writes nothing to the cluster."""
    return dg.define_asset_job(
        "plan_offload",
        selection=[key(cluster, name) for name in ("offload_candidates", "offload_plan")],
        description="Which ledgers of the newest scan the offload policies mean, and the plan. Writes nothing to the "
        "cluster.",
        executor_def=dg.in_process_executor,
    )


class OffloadRunConfig(dg.Config):
    """Which plan, and how much of it (0: all that the settings' caps allow); the plan's page has it ready.

    ``namespaces``: only what is of these tenants, namespaces and full topic names; ``only``: ``offload`` or
    ``delete_copy``; empty: both.
    """

    plan_id: str
    digest: str
    limit: int = Field(default=0, ge=0)
    namespaces: list[str] = Field(default=[])
    only: str = ""

    def order(self) -> OffloadOrder:
        """The library's form of it. Raises UsageError."""
        if self.only not in ("", OffloadChoice.OFFLOAD, OffloadChoice.DELETE_COPY):
            raise UsageError(f"only: expected offload or delete_copy, found {self.only!r}")
        only = OffloadChoice(self.only) if self.only else None
        return OffloadOrder(self.plan_id, self.digest, self.limit, tuple(self.namespaces), only)


@refusals_fail()
def offload_ledgers(
    context: dg.OpExecutionContext, config: OffloadRunConfig, lifecycle: LifecycleResource
) -> dict[str, int]:
    """Ledgers by outcome. Refuses a stale, report-only or foreign plan; a rerun finishes what was interrupted."""
    order, where = config.order(), lifecycle.cluster()
    if not may_begin(context, where, config.plan_id):
        return {}
    with (
        lineage.noted(context, where, config.plan_id) as done,
        proofs_told(context, where, epoch_of(config.plan_id), done),
    ):
        outcomes = offload_now(where, context.run_id, order, context.log.info)
    context.log.info(said(outcomes))
    everything = show.everything(context.run_id)
    check_done(outcomes, everything)
    context.add_output_metadata({**outcomes_shown(outcomes), **everything})
    return dict(counted(outcomes))


class RevertConfig(dg.Config):
    """Which offloaded ledgers of a topic; without ``dry_run = false``, it only says what would be reverted."""

    topic: str
    ledger_ids: list[int] = Field(min_length=1)
    dry_run: bool = True


@refusals_fail()
def revert(context: dg.OpExecutionContext, config: RevertConfig, lifecycle: LifecycleResource) -> None:
    """Refuses a ledger that BookKeeper does not have whole."""
    topic, ledgers = topic_of("topic", config.topic), sorted(ledgers_of("ledger_ids", config.ledger_ids))
    where = lifecycle.cluster()
    with lineage.noted(context, where, dry_run=config.dry_run):
        outcomes = revert_offloads(where, context.run_id, topic, ledgers, dry_run=config.dry_run)
    metadata = {**outcomes_shown(outcomes), **show.everything(context.run_id, dry_run=config.dry_run)}
    wrong = [one for one in outcomes if one.outcome not in (Outcome.GOES, Outcome.REVERTED)]
    if wrong:
        raise dg.Failure(
            f"{len(wrong)} ledgers were not reverted, the first: {wrong[0].ledger_id}: {wrong[0].reason}",
            metadata=metadata,
        )
    context.add_output_metadata(metadata)


def revert_job(cluster: str) -> dg.JobDefinition:
    """Job ``revert_offloads``: one op."""
    op = dg.op(
        name="revert",
        description="Let a topic read offloaded ledgers from BookKeeper again, where its bookies have them whole: for "
        "objects that are damaged or gone. The objects stay, named by nothing.",
        pool=pool(cluster, "offload"),
    )(revert)

    @dg.job(
        name="revert_offloads",
        executor_def=dg.in_process_executor,
        description="Undo the offload of some ledgers while BookKeeper has them whole. Dry run by default.",
    )
    def job() -> None:
        op()

    return job


def offload_job(cluster: str) -> dg.JobDefinition:
    """Job ``offload``: one op."""
    op = dg.op(
        name="offload_ledgers",
        description="Copy each planned ledger to the object store, read it back whole, compare every entry, then write "
        "it into its topic's metadata; delete copies in BookKeeper that are due.",
        pool=pool(cluster, "offload"),
    )(offload_ledgers)

    @dg.job(
        name="offload",
        executor_def=dg.in_process_executor,
        description="Apply an offload plan. Interrupted, it is launched again with the same or a newer plan.",
    )
    def job() -> None:
        op()

    return job
