"""Jobs ``report_storage`` and ``collect_bookies``: where the disk goes, and have bookies free what was deleted."""

from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.lifecycle.bookies import judged_shown
from assets.names import key
from assets.pages import lineage, show
from assets.pages.failures import refusals_fail
from orchestration.automatic.may_begin import may_begin
from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionChoice, PlannedCollection
from pulsar_lifecycle.lifecycle.bookies.collection_run import Collected, collect_bookies, plan_now
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource

REPORTS = ("storage_report", "open_ledgers", "subscription_backlog", "bookie_disk", "collection_plan")


def report_storage_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Say of the newest scan's ledgers why they are there, and ask every bookie what its disks hold."""
    return dg.define_asset_job(
        "report_storage",
        selection=[key(cluster, name) for name in REPORTS],
        description="Where the disk goes, by the newest scan: bytes by namespace, topic and reason, ledgers that were "
        "never closed, subscriptions' backlogs, what each bookie holds and waits for, and which are to collect. Loads "
        "no topic; changes nothing.",
        executor_def=dg.in_process_executor,
    )


class CollectConfig(dg.Config):
    """Which plan, whose bookies collect that could free much still; none: all bookies that could, now.

    Without ``dry_run = false``, it only says which would collect, and what keeps the others from it.
    """

    plan_id: str = ""
    digest: str = ""
    dry_run: bool = True

    def order(self) -> Order | None:
        """The library's form of it. Raises UsageError for a digest of no plan."""
        if self.digest and not self.plan_id:
            raise UsageError("digest: name its plan_id, too")
        return Order(self.plan_id, self.digest) if self.plan_id else None


@dg.op(
    name="collect",
    description="Make bookies collect: a minor compaction, then a major one where much is left; rack by rack. Ledgers "
    "that a bookie has collected cannot be restored by an undo any more.",
)
@refusals_fail()
def collect_op(context: dg.OpExecutionContext, config: CollectConfig, lifecycle: LifecycleResource) -> None:
    """Fails where a bookie did not end its collection; what ran there goes on by itself."""
    where, order = lifecycle.cluster(), config.order()
    if config.dry_run:
        plan, disks = plan_now(where, order=order)
        going = [row for row in plan if row.choice is CollectionChoice.COLLECT]
        size = sum(row.bytes or 0 for row in going)
        context.add_output_metadata({"dry run": True, "could free, about": size, **judged_shown(plan, disks)})
        context.log.info(f"dry run: {len(going)} bookies would collect; set dry_run to false")
        return
    if not may_begin(context, where, config.plan_id):
        return
    with lineage.noted(context, where, config.plan_id):
        plan, done = collect_bookies(where, context.run_id, context.log.info, order=order)
    unknown = [row.bookie for row in plan if row.choice is CollectionChoice.UNKNOWN_DISK]
    if unknown and not done:
        raise dg.Failure(
            f"nothing was collected: {len(unknown)} bookies do not say what their disks hold: {unknown[0]}"
        )
    wrong = [one for one in done if one.outcome is not Outcome.COLLECTED]
    if wrong:
        first = wrong[0]
        raise dg.Failure(
            f"{len(wrong)} of {len(done)} bookies did not end a collection, the first: {first.bookie}: "
            f"{first.outcome.value}: {first.why}",
            metadata=done_shown(plan, done),
        )
    context.add_output_metadata(done_shown(plan, done))


def done_shown(plan: Sequence[PlannedCollection], done: Sequence[Collected]) -> dict[str, Any]:
    """What became of each bookie, why others were left alone, and the bytes that are free beyond those before."""
    cells = [(one.bookie, one.rack, one.outcome.value, show.size(one.freed), one.why.text) for one in done]
    return {
        "dry run": False,
        "freed": sum(one.freed for one in done),
        "bookies": dg.MetadataValue.md(show.markdown(["bookie", "rack", "outcome", "freed", "why"], cells)),
        **judged_shown(plan),
    }


@dg.job(
    name="collect_bookies",
    executor_def=dg.in_process_executor,
    description="Make bookies collect garbage now, few at a time: deleted ledgers leave their disks. "
    "Dry run by default.",
)
def collect_bookies_job() -> None:
    """The job has one op."""
    collect_op()
