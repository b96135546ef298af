"""Jobs ``report_storage`` and ``collect_bookies``: where the disk goes, and have bookies free what was deleted."""

from collections.abc import Sequence
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.names import key
from assets.pages import lineage, show
from assets.pages.failures import refusals_fail
from orchestration.automatic.may_begin import may_begin
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import BookieDisk
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionChoice, PlannedCollection, remedies
from pulsar_lifecycle.lifecycle.bookies.collection_run import Collected, collect_bookies, plan_now
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource

REPORTS = ("storage_report", "open_ledgers", "subscription_backlog", "bookie_disk")


def report_storage_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Say of the newest scan's ledgers why they are there, and ask every bookie what its disks hold."""
    return dg.define_asset_job(
        "report_storage",
        selection=[key(cluster, name) for name in REPORTS],
        description="Where the disk goes, by the newest scan: bytes by namespace, topic and reason, ledgers that were "
        "never closed, subscriptions' backlogs, and what each bookie holds and waits for. Loads no topic; changes "
        "nothing.",
        executor_def=dg.in_process_executor,
    )


class CollectConfig(dg.Config):
    """Without ``dry_run = false``, it only says which bookies would collect, and what keeps the others from it."""

    dry_run: bool = True


@dg.op(
    name="collect",
    description="Make bookies collect: a minor compaction, then a major one where much is left; rack by rack. Ledgers "
    "that a bookie has collected cannot be restored by an undo any more.",
)
@refusals_fail()
def collect_op(context: dg.OpExecutionContext, config: CollectConfig, lifecycle: LifecycleResource) -> None:
    """Fails where a bookie did not end its collection; what ran there goes on by itself."""
    where = lifecycle.cluster()
    if config.dry_run:
        plan, disks = plan_now(where)
        context.add_output_metadata({"dry run": True, **plan_shown(plan, disks)})
        going = [row for row in plan if row.choice is CollectionChoice.COLLECT]
        context.log.info(f"dry run: {len(going)} bookies would collect; set dry_run to false")
        return
    if not may_begin(context, where):
        return
    with lineage.noted(context, where):
        plan, done = collect_bookies(where, context.run_id, context.log.info)
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


def plan_shown(plan: Sequence[PlannedCollection], disks: Sequence[BookieDisk]) -> dict[str, Any]:
    """The plan's page: which bookies, in their order, why not the others, and settings that keep disks full."""
    found = [(one.bookie, text) for one in disks for text in remedies(one)]
    return {
        "could free, about": sum(row.bytes or 0 for row in plan if row.choice is CollectionChoice.COLLECT),
        "plan": _planned(plan),
        "settings": dg.MetadataValue.md(show.markdown(["bookie", "what keeps its disk full, what to set"], found)),
    }


def done_shown(plan: Sequence[PlannedCollection], done: Sequence[Collected]) -> dict[str, Any]:
    """What became of each bookie, why others were left alone, and the bytes that are free beyond those before."""
    cells = [(one.bookie, one.rack, one.outcome.value, show.size(one.freed), one.why.text) for one in done]
    return {
        "dry run": False,
        "freed": sum(one.freed for one in done),
        "bookies": dg.MetadataValue.md(show.markdown(["bookie", "rack", "outcome", "freed", "why"], cells)),
        "plan": _planned(plan),
    }


def _planned(plan: Sequence[PlannedCollection]) -> dg.MetadataValue:
    rows = [
        {
            "bookie": row.bookie,
            "rack": row.rack,
            "plan": row.choice.value,
            "verdict": row.verdict.value,
            "could free": "" if row.bytes is None else show.size(row.bytes),
        }
        for row in plan
    ]
    columns: dict[str, str] = dict.fromkeys(rows[0] if rows else (), "string")
    return show.table(rows, columns)


@dg.job(
    name="collect_bookies",
    executor_def=dg.in_process_executor,
    description="Make bookies collect garbage now, few at a time: deleted ledgers leave their disks. "
    "Dry run by default.",
)
def collect_bookies_job() -> None:
    """The job has one op."""
    collect_op()
