"""Job ``undo_deletions``: bring back ledgers that a run deleted, while the bookies still hold their entries."""

from collections import Counter
from typing import Any

import dagster as dg
from pydantic import Field

from assets.pages import lineage, show
from assets.pages.failures import refusals_fail
from pulsar_lifecycle.deletion.undo.undo_run import Result, UndoRequest, undo_deletions
from pulsar_lifecycle.deletion.undo.undone import Undone
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource

COLUMNS = {
    "ledger": "int",
    "outcome": "string",
    "topic": "string",
    "component": "string",
    "bytes": "int",
    "created": "int",
    "reason": "string",
}

NEEDS = """The data of these ledgers is safe from the bookies, and still **nothing refers to them**: no topic's list of
ledgers was changed. Before `orphans.grace_period` has passed since they came back (column `created`, ms), put what is
below into `orphans.legal_holds`, or the next plan after that finds them orphaned again. A ledger without a topic cannot
be held by name: list it again where it belongs.

"""

COPIES_DELETED = """The topics of these ledgers **list them as offloaded**, and their copies in BookKeeper as deleted.
They are read from the object store, and no grace period protects the copies that came back. With
`offload.bookkeeper_copies = "ours"` the next offload plan deletes those again. To keep them, launch `revert_offloads`
with topic and ledgers before that, or put the topics into `orphans.legal_holds`.

"""


class UndoConfig(dg.Config):
    """The deletions of a run, or ledger ids; exactly one of the two."""

    run_id: str = ""
    ledger_ids: list[int] = Field(default=[])
    dry_run: bool = True
    accept_unknown: bool = False


@dg.op(
    name="restore_ledgers",
    description="Ask every bookie whether it still holds the entries of deleted ledgers; unless `dry_run`, put their "
    "archived z-nodes back, wait one garbage collection (`bookkeeper.gc_wait`), and ask again.",
)
@refusals_fail()
def restore_ledgers_op(context: dg.OpExecutionContext, config: UndoConfig, lifecycle: LifecycleResource) -> None:
    """Holds the lease while it waits, so that no deletion run begins; a rerun goes on where one was interrupted."""
    request = UndoRequest(config.run_id, tuple(config.ledger_ids), config.dry_run, config.accept_unknown)
    where = lifecycle.cluster()
    with lineage.noted(context, where, dry_run=config.dry_run):
        result = undo_deletions(where, context.run_id, request, context.log.info)
    metadata = {**undone_shown(result), **show.everything(context.run_id, dry_run=config.dry_run)}
    if missing := shortfall(request, result):
        raise dg.Failure(missing, metadata=metadata)
    context.add_output_metadata(metadata)


@dg.job(
    name="undo_deletions",
    executor_def=dg.in_process_executor,
    description="Undo a run's deletions, or those of some ledgers, as long as bookies hold their data. "
    "Does nothing but look unless `dry_run` is false.",
)
def undo_deletions_job() -> None:
    """The job has one op."""
    restore_ledgers_op()


FALLS_SHORT = {
    Outcome.UNCONFIRMED: "have their z-node back, and whether their entries are there is not proven: run it again",
    Outcome.UNKNOWN: "not known, bookies did not answer: start them and run it again, or set accept_unknown",
    Outcome.NOT_RECREATED: "not re-created, as ZooKeeper did not create their z-nodes: see to it and run it again",
    Outcome.LOST: "lost, no bookie holds their entries any more",
    Outcome.REFUSED: "refused",
}
"""Outcomes after which a ledger that was asked for is not back."""


def shortfall(request: UndoRequest, result: Result) -> str | None:
    """What was asked for and is not back, or in a dry run would not be."""
    if request.run_id and not result.ledgers and not result.lost_objects:
        return (
            f"the archive holds nothing that the run {request.run_id} deleted and no later one archived again: is it "
            f"the id of a deletion run (pulsar-lifecycle journal --run {request.run_id})?"
        )
    counts = Counter(one.outcome for one in result.ledgers)
    found = [f"{counts[outcome]} {what}" for outcome, what in FALLS_SHORT.items() if counts[outcome]]
    for outcome in FALLS_SHORT:
        first = next((one for one in result.ledgers if one.outcome == outcome), None)
        found += [f"the first {outcome}: ledger {first.ledger_id}, {first.reason}"] if first else []
    if result.not_archived:
        some = ", ".join(map(str, result.not_archived[: show.SAMPLE]))
        found.append(f"{len(result.not_archived)} not in the archive: {some}")
    said = [f"of {len(result.ledgers) + len(result.not_archived)} ledgers " + "; ".join(found)] if found else []
    if lost := result.lost_objects:
        said.append(f"{len(lost)} objects of offloaded copies are deleted for good, the first: {lost[0]}")
    return "; ".join(said) or None


def undone_shown(result: Result) -> dict[str, Any]:
    """How many ledgers ended how, a sample, and what those that came back need."""
    ledgers = result.ledgers
    counts = Counter(one.outcome or "" for one in ledgers)
    sizes: Counter[str] = Counter()
    for one in ledgers:
        sizes[one.outcome or ""] += one.length
    rows = [(outcome, counts[outcome], show.size(sizes[outcome])) for outcome in sorted(counts)]
    if result.not_archived:
        rows.append(("not in the archive", len(result.not_archived), ""))
    if result.lost_objects:
        rows.append((f"{Outcome.LOST}: objects of offloaded copies", len(result.lost_objects), ""))
    shown: dict[str, Any] = {
        "dagster/row_count": counts[Outcome.RESTORED],
        "outcomes": dg.MetadataValue.md(show.markdown(["outcome", "ledgers", "bytes"], rows)),
        "ledgers": show.table([_row(one) for one in sorted(ledgers, key=lambda one: one.outcome or "")], COLUMNS),
    }
    back = [
        one
        for one in ledgers
        if one.outcome in (Outcome.RESTORABLE, Outcome.RECREATED, Outcome.RESTORED, Outcome.UNCONFIRMED)
    ]
    if unlisted := [one for one in back if not one.bookkeeper_deleted]:
        topics = Counter(one.topic or "(no topic)" for one in unlisted)
        table = show.markdown(["topic", "ledgers"], topics.most_common(show.SAMPLE))
        shown["what a restored ledger needs"] = dg.MetadataValue.md(NEEDS + table)
    if deleted := [(one.topic, one.ledger_id) for one in back if one.bookkeeper_deleted]:
        table = show.markdown(["topic", "ledger"], deleted[: show.SAMPLE])
        shown["what a ledger needs whose copy in BookKeeper its topic lists as deleted"] = dg.MetadataValue.md(
            COPIES_DELETED + table
        )
    return shown


def _row(one: Undone) -> dict[str, Any]:
    return {
        "ledger": one.ledger_id,
        "outcome": one.outcome,
        "topic": one.topic,
        "component": one.component,
        "bytes": one.length,
        "created": one.node.stat.ctime if one.node else 0,
        "reason": one.reason,
    }
