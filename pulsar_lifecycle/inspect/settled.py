"""Which plans have nothing left to apply: the journal says so of every ledger of theirs.

Belongs here: what settles a ledger of each kind of plan, and whether its intent waits. Not here: whether a plan may
be applied (``runs/plan_checks.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.delayed_index.repair.repair_work import RepairDetail
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.inspect.kept_plans import Plan, stored_plan
from pulsar_lifecycle.journal.intents import to_send, without_ledgers_of
from pulsar_lifecycle.journal.offloads import attempts_in
from pulsar_lifecycle.journal.queries import filed_since, read_intent_states, rows_of_outcome
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionChoice, StopReason
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import BookieTold, details_of
from pulsar_lifecycle.scan.read import began_at
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import FINAL, Action, Outcome, Phase
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of

DAY_MS = 86_400_000


class PlanEnd(StrEnum):
    """Why there is nothing left to apply of a plan."""

    SETTLED = "settled"
    """Every ledger of it is settled."""
    SENT = "sent"
    """Those that are not have intents in flight, which some run has sent, or tried, since the plan was made."""

    @property
    def text(self) -> str:
        """The same as a sentence."""
        return _ENDS[self]


_ENDS = {
    PlanEnd.SETTLED: "nothing is left to apply",
    PlanEnd.SENT: "all its intents were sent; the queue has those that are not settled",
}


def ended_plans(cluster: Cluster, plans: Sequence[Plan], now: int) -> dict[str, PlanEnd]:
    """Of those that could be applied still at ``now`` (ms), by id: those with nothing left to apply."""
    valid_since = int(now - cluster.settings.orphans.plan_valid_for * 1000)
    ours = [one for one in plans if one.cluster == cluster.settings.cluster and one.actionable and one.rows]
    open_plans = {one.plan_id: one for one in ours if one.created_at >= valid_since}
    if not open_plans:
        return {}
    applied = pc.field("plan_id").isin(list(open_plans)) & filed_since(valid_since - DAY_MS)  # clocks may differ
    columns = ["plan_id", "ledger_id", "topic", "action", "phase", "outcome", "code", "detail"]
    journalled = cluster.journal_reader.find(applied, columns)
    ended: dict[str, PlanEnd] = {}
    left: list[tuple[Plan, pa.Table]] = []
    of_retention = {i: _scanned_at(one) for i, one in open_plans.items() if kind_of(i) is PlanKind.RETENTION}
    taken = _taken_off(cluster, min(of_retention.values())) if of_retention else None
    for plan_id, plan in open_plans.items():
        own, of_intents = journalled.filter(pc.field("plan_id") == plan_id), kind_of(plan_id) in _OF_INTENTS
        gone = taken.filter(pc.field("at") >= of_retention[plan_id]) if taken and plan_id in of_retention else None
        may_be_gone = gone is not None and plan.rows <= gone.num_rows  # else its rows, perhaps millions, are not read
        if not own.num_rows and not of_intents and not may_be_gone:
            continue
        with contextlib.suppress(LifecycleError):  # `plan ID` says what is wrong with its rows
            rows = stored_plan(cluster.lake, plan_id)[1]
            if own.num_rows and settled_ledgers(plan_id, rows, own) == rows.num_rows:
                ended[plan_id] = PlanEnd.SETTLED
            elif of_intents:
                left.append((plan, rows.select(["ledger_id"])))
            elif gone is not None and _are_gone(rows, gone):
                ended[plan_id] = PlanEnd.SETTLED
    if left:
        ids = pc.unique(pa.concat_tables(rows for _, rows in left).column("ledger_id"))
        intents = read_intent_states(cluster.journal_reader, cluster.settings.cluster, ids, valid_since)
        if intents.num_rows:
            ended |= {plan.plan_id: end for plan, rows in left if (end := _end_of(plan, rows, intents))}
    return ended


_OF_INTENTS = (PlanKind.ORPHANS, PlanKind.RECONCILE)
"""Kinds of plans whose ledgers have an intent each."""


def end_of_rows(cluster: Cluster, plan: Plan, rows: pa.Table) -> PlanEnd | None:
    """Why these ``rows`` of a plan have nothing left to apply, as others have done it by now; None if they have.

    Told of plans of orphans and of retention.
    """
    if kind_of(plan.plan_id) is PlanKind.RETENTION:
        return PlanEnd.SETTLED if _are_gone(rows, _taken_off(cluster, _scanned_at(plan))) else None
    ids, mine = rows.column("ledger_id").combine_chunks(), cluster.settings.cluster
    return _end_of(plan, rows, read_intent_states(cluster.journal_reader, mine, ids, plan.created_at))


def _end_of(plan: Plan, rows: pa.Table, intents: pa.Table) -> PlanEnd | None:
    """By what the journal says since the plan was made: what it leaves out, or takes in again, was sent before."""
    since = intents.filter(pc.greater_equal(intents.column("at"), plan.created_at))
    left = without_ledgers_of(rows, since.filter(pc.is_in(since.column("state"), pa.array(sorted(FINAL)))))
    if not left.num_rows:
        return PlanEnd.SETTLED
    return None if to_send(left, since).num_rows else PlanEnd.SENT


def _scanned_at(plan: Plan) -> int:
    """Since when (ms) what leaves a list is none of a plan any more: its scan may have begun long before it is made."""
    began = began_at(plan.epoch_id)
    return int(began.timestamp() * 1000) if began else plan.created_at


def _taken_off(cluster: Cluster, since: int) -> pa.Table:
    """Which ledgers some run has taken off their topics' lists since then (ms), and when."""
    taken = (pc.field("cluster") == cluster.settings.cluster) & (pc.field("phase") == Phase.MARK)
    return rows_of_outcome(cluster.journal_reader, Outcome.REMOVED, since, taken, ["ledger_id", "at"])


def _are_gone(rows: pa.Table, taken: pa.Table) -> bool:
    return bool(rows.num_rows) and _both(rows, taken, "ledger_id") == rows.num_rows


def settled_ledgers(plan_id: str, rows: pa.Table, journalled: pa.Table) -> int:
    """How many of a plan's rows its runs are done with, by the plan's rows of the journal.

    - Load: topics that were loaded and are unloaded again, need no load any more, or are gone.
    - Retention: ledgers that left their topics' lists.
    - Inactive topics, inactive subscriptions: those that are gone.
    - Delete records: partitions whose low watermark was raised.
    - Repairs: subscriptions that were repaired.
    - Offload: ledgers that were offloaded, or whose copy in BookKeeper is listed as deleted.
    - Objects: copies and uploads that are gone or were kept.
    - Collection: bookies that collected, or had little to free by then.
    - Any other: ledgers that a deletion run deleted, found gone, kept or refused.
    """
    match kind_of(plan_id):
        case PlanKind.LOAD:
            through = (pc.field("phase") == Phase.UNLOAD) & (pc.field("outcome") == Outcome.DONE)
            unneeded = pc.field("code").isin([LoadKept.NEEDS_NO_BROKER, Code.TOPIC_GONE])
            return _both(rows, journalled.filter(through | unneeded), "topic")
        case PlanKind.RETENTION:
            return _both(rows, journalled.filter(pc.field("outcome") == Outcome.REMOVED), "ledger_id")
        case PlanKind.DELETE_RECORDS | PlanKind.CONSUMED_RECORDS:
            raised = (pc.field("phase") == Phase.RAISE) & (pc.field("outcome") == Outcome.DONE)
            return _both(rows, journalled.filter(raised), "topic")
        case PlanKind.DELAYED_INDEX:
            done = journalled.filter(
                (pc.field("action") == Action.REPAIR_INDEX) & (pc.field("outcome") == Outcome.DONE)
            )
            edits = ((row["topic"], details_of(RepairDetail, row["detail"])) for row in done.to_pylist())
            ended = {(topic, edit.subscription) for topic, edit in edits if edit}
            return sum((row["topic"], row["subscription"]) in ended for row in rows.to_pylist())
        case PlanKind.INACTIVE_TOPICS:
            return _both(rows, journalled.filter((pc.field("action") == Action.DELETE_TOPIC) & _GONE), "topic")
        case PlanKind.INACTIVE_SUBSCRIPTIONS:
            done = journalled.filter((pc.field("action") == Action.DELETE_SUBSCRIPTION) & _GONE)
            return len({tuple(row.values()) for row in done.select(["topic", "detail"]).to_pylist()})
        case PlanKind.OFFLOAD:
            return sum(
                _both(rows.filter(pc.field("action") == choice), journalled.filter(_WAS[choice]), "ledger_id")
                for choice in _WAS
            )
        case PlanKind.COLLECTION:
            done = journalled.filter(_COLLECTED | _NEEDS_NONE)
            told = (details_of(BookieTold, detail) for detail in done["detail"].to_pylist())
            return len({one.bookie for one in told if one}.intersection(rows["bookie"].to_pylist()))
        case PlanKind.OBJECTS:
            return _settled_objects(rows, journalled)
        case _:
            return _both(rows, journalled.filter(_ENDED & (pc.field("action") == Action.DELETE_LEDGER)), "ledger_id")


_GONE = pc.field("outcome").isin([Outcome.DONE, Outcome.NOTHING])
_COLLECTED = (pc.field("outcome") == Outcome.COLLECTED) & (pc.field("code") != StopReason.LEDGERS_DELETED)
"""Not so where its major compaction was not begun, as a run deleted ledgers then."""
_NEEDS_NONE = (pc.field("outcome") == Outcome.LEFT) & (pc.field("code") == CollectionChoice.LITTLE_TO_FREE)
_ENDED = (pc.field("phase") == Phase.DELETE) & pc.field("outcome").isin(sorted(FINAL))
_WAS = {
    OffloadChoice.OFFLOAD: (pc.field("action") == Action.OFFLOAD) & (pc.field("outcome") == Outcome.OFFLOADED),
    OffloadChoice.DELETE_COPY: (pc.field("action") == Action.COPY_DELETION)
    & (pc.field("outcome") == Outcome.BOOKKEEPER_DELETED),
}
"""By what a row of an offload plan asks for, the journal's rows of it that end it."""


def _settled_objects(rows: pa.Table, journalled: pa.Table) -> int:
    """Copies that a deletion run is done with, by their UUIDs, and uploads that were dropped or kept, by their ids."""
    copies = journalled.filter(_ENDED & (pc.field("action") == Action.DELETE_OFFLOADED))
    ended = pc.field("outcome").isin([Outcome.ABORTED, Outcome.KEPT])
    uploads = journalled.filter(ended & (pc.field("action") == Action.ABORT_UPLOAD))
    found = {str(uuid) for uuid, _ in attempts_in(copies)}
    found |= {one.upload for row in uploads.column("detail").to_pylist() if (one := details_of(_Upload, row))}
    return sum((row["upload_id"] or row["uuid"]) in found for row in rows.to_pylist())


@dataclass(frozen=True, slots=True)
class _Upload:
    """The upload that details of a row name."""

    upload: str


def _both(rows: pa.Table, journalled: pa.Table, column: str) -> int:
    return len(set(rows[column].to_pylist()).intersection(journalled[column].to_pylist()))
