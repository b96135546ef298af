"""What became of each intent by the journal, and where each namespace stands: for what is derived again.

Belongs here: the rules over journal rows and plan rows. Not here: reading the journal, making the plan.
After a rollback or a restore the journal may know of intents that the queue has lost; sending one again is harmless,
because the deletion run decides each afresh.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase

INTENT_COLUMNS = ["ledger_id", "action", "topic", "phase", "outcome", "at"]
"""The journal's columns that say what became of an intent."""


class IntentState(StrEnum):
    """Where an intent stands whose message still exists; a final outcome stands for itself."""

    IN_FLIGHT = "in_flight"
    """The deletion topic or its retry topic has the message: the next deletion runs decide it."""
    DEAD_LETTER = "dead_letter"
    """The dead-letter topic has the message: send it again once its cause is mended."""


_OPEN = {
    Outcome.SENT: IntentState.IN_FLIGHT,
    Outcome.RETRYING: IntentState.IN_FLIGHT,
    Outcome.WAITING: IntentState.IN_FLIGHT,
    Outcome.DEAD_LETTERED: IntentState.DEAD_LETTER,
}
"""Outcomes after which a message still exists; every other one is final and stands for itself."""


def intent_states(rows: pa.Table) -> pa.Table:
    """The newest word on each intent, one row per ledger and action: ``ledger_id action topic state at sent_at``.

    ``rows`` (:data:`INTENT_COLUMNS`): any journal rows of one cluster. ``state`` is an :class:`IntentState` or a final
    outcome. ``sent_at``: when (ms) its newest message was sent; null where the journal knows of none.
    """
    sends = pc.is_in(rows.column("phase"), pa.array([Phase.SEND, Phase.REDRIVE]))
    sent = pc.and_(sends, pc.equal(rows.column("outcome"), Outcome.SENT))
    decided = pc.and_(pc.equal(rows.column("phase"), Phase.DELETE), pc.greater_equal(rows.column("ledger_id"), 0))
    decided = pc.and_(
        decided, pc.not_equal(rows.column("outcome"), Outcome.NOT_DELETED)
    )  # of a plan: it has no message
    rows = rows.append_column("sent_at", pc.if_else(sent, rows.column("at"), pa.scalar(None, pa.int64())))
    known = rows.filter(pc.or_(sent, decided)).sort_by("at")
    last = known.group_by(["ledger_id", "action"], use_threads=False).aggregate(
        [("topic", "last"), ("outcome", "last"), ("at", "last"), ("sent_at", "max")]
    )
    states = [_OPEN.get(outcome, outcome) for outcome in last.column("outcome_last").to_pylist()]
    return pa.table(
        {
            "ledger_id": last.column("ledger_id"),
            "action": last.column("action"),
            "topic": last.column("topic_last"),
            "state": pa.array(states, pa.string()),
            "at": last.column("at_last"),
            "sent_at": last.column("sent_at_max"),
        }
    )


@dataclass(frozen=True, slots=True)
class NamespaceIntents:
    """Where a namespace stands: intents by state, and confirmed orphans with their bytes on the bookies."""

    namespace: str
    states: Mapping[str, int] = field(default_factory=dict[str, int])
    orphans: int = 0
    physical_bytes: int = 0

    @property
    def in_flight(self) -> int:
        """Intents that were sent and not settled since."""
        return self.states.get(IntentState.IN_FLIGHT, 0)

    @property
    def settled(self) -> int:
        """Intents with a final outcome."""
        return sum(count for state, count in self.states.items() if state not in set(IntentState))


def by_namespace(intents: pa.Table, orphans: pa.Table, namespaces: Iterable[str] | None) -> list[NamespaceIntents]:
    """Every wanted namespace (None: every one that occurs), sorted by name.

    ``intents``: :func:`intent_states`; those of a topic whose name is none are of no namespace: any program may write
    into the queue. ``orphans``: plan rows.
    """
    states: dict[str, dict[str, int]] = {name: {} for name in namespaces or ()}
    counted = intents.group_by(["topic", "state"]).aggregate([("ledger_id", "count")])
    for row in counted.to_pylist():
        try:
            name = str(Topic.parse(row["topic"]).namespace)
        except CorruptFormat:
            continue
        if namespaces is None or name in states:
            found = states.setdefault(name, {})
            found[row["state"]] = found.get(row["state"], 0) + row["ledger_id_count"]
    grouped = orphans.group_by("namespace").aggregate([("ledger_id", "count"), ("physical_bytes", "sum")])
    totals = {r["namespace"]: (r["ledger_id_count"], r["physical_bytes_sum"] or 0) for r in grouped.to_pylist()}
    names = states if namespaces is not None else {*states, *totals}
    return [NamespaceIntents(name, states.get(name, {}), *totals.get(name, (0, 0))) for name in sorted(names)]


def unknown(namespace_intents: Iterable[NamespaceIntents], existing: Collection[str]) -> list[str]:
    """Namespaces that do not exist and of which neither an intent nor an orphan is left: mistyped, most likely."""
    return [s.namespace for s in namespace_intents if not s.states and not s.orphans and s.namespace not in existing]


def still_there(rows: pa.Table, intents: pa.Table, since: int) -> pa.Table:
    """Plan rows without the ledgers that a deletion run found deleted or gone at ``since`` (ms) or later."""
    gone = pc.and_(
        pc.is_in(intents.column("state"), pa.array([Outcome.DELETED, Outcome.GONE])),
        pc.greater_equal(intents["at"], since),
    )
    return without_ledgers_of(rows, intents.filter(gone))


def to_send(rows: pa.Table, intents: pa.Table) -> pa.Table:
    """Plan rows without those whose intent is in flight."""
    return without_ledgers_of(rows, intents.filter(pc.equal(intents.column("state"), IntentState.IN_FLIGHT)))


def without_ledgers_of(rows: pa.Table, intents: pa.Table) -> pa.Table:
    """Plan rows without the ledgers whose copies in BookKeeper these intents are to delete."""
    ids = intents.filter(pc.equal(intents.column("action"), Action.DELETE_LEDGER)).column("ledger_id").combine_chunks()
    return rows.filter(pc.invert(pc.is_in(rows.column("ledger_id"), ids)))
