"""Job ``undo_deletions``: bring back ledgers that a run deleted, while the bookies still hold their entries."""

from collections import Counter
from typing import Any

import dagster as dg
from pydantic import Field

from assets import show
from pulsar_lifecycle.engine.undo import RECREATED, RESTORABLE, RESTORED, UNCONFIRMED, Undone
from pulsar_lifecycle.spark.undo import Request, Result, undo_deletions
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
def restore_ledgers_op(context: dg.OpExecutionContext, config: UndoConfig, lifecycle: LifecycleResource) -> None:
    """Holds the lease while it waits, so that no deletion run begins; a rerun goes on where one was cut off."""
    request = Request(config.run_id, tuple(config.ledger_ids), config.dry_run, config.accept_unknown)
    result = undo_deletions(lifecycle.cluster(), context.run_id, request, context.log.info)
    metadata = undone_shown(result)
    unconfirmed = sum(one.outcome == UNCONFIRMED for one in result.ledgers)
    if unconfirmed:
        raise dg.Failure(
            f"the z-nodes of {unconfirmed} ledgers are back, and whether their entries are is not proven: run it again",
            metadata=metadata,
        )
    context.add_output_metadata(metadata)


@dg.job(
    name="undo_deletions",
    executor_def=dg.in_process_executor,
    description="Undo a run's deletions, or those of some ledgers, as long as bookies hold their data. "
    "Does nothing but look unless `dry_run` is false.",
)
def undo_deletions_job() -> None:
    """One op."""
    restore_ledgers_op()


def undone_shown(result: Result) -> dict[str, Any]:
    """How many ledgers ended how, a sample, and what those that came back need."""
    ledgers = result.ledgers
    counts = Counter(one.outcome for one in ledgers)
    sizes: Counter[str] = Counter()
    for one in ledgers:
        sizes[one.outcome] += one.length
    rows = [(outcome, counts[outcome], show.size(sizes[outcome])) for outcome in sorted(counts)]
    if result.not_archived:
        rows.append(("not in the archive", len(result.not_archived), ""))
    shown: dict[str, Any] = {
        "dagster/row_count": counts[RESTORED],
        "outcomes": dg.MetadataValue.md(show.markdown(["outcome", "ledgers", "bytes"], rows)),
        "ledgers": show.table([_row(one) for one in sorted(ledgers, key=lambda one: one.outcome)], COLUMNS),
    }
    back = [one for one in ledgers if one.outcome in (RESTORABLE, RECREATED, RESTORED, UNCONFIRMED)]
    if back:
        topics = Counter(one.topic or "(no topic)" for one in back)
        table = show.markdown(["topic", "ledgers"], topics.most_common(show.SAMPLE))
        shown["what a restored ledger needs"] = dg.MetadataValue.md(NEEDS + table)
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
