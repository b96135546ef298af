"""Which rows of a plan its runs are done with, by the journal."""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa
import pytest

from pulsar_lifecycle.inspect.settled import settled_ledgers
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionChoice, CollectionEnd, StopReason
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.runs.journal_rows import BookieTold, Step, Subject, Writer
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from tests.kit.fakes.journal import FakeJournal

DELETED = {
    PlanKind.INACTIVE_TOPICS: (Action.DELETE_TOPIC, Phase.DELETE_TOPIC),
    PlanKind.INACTIVE_SUBSCRIPTIONS: (Action.DELETE_SUBSCRIPTION, Phase.DELETE_SUBSCRIPTION),
}


@pytest.mark.parametrize("kind", DELETED)
def test_what_a_run_deleted_and_what_the_next_one_found_gone_is_settled(kind: PlanKind) -> None:
    """The first run was killed before it could say that the second one is deleted."""
    journal, (action, phase) = FakeJournal(), DELETED[kind]
    outcomes = [("a", Outcome.BEGUN), ("a", Outcome.DONE), ("b", Outcome.BEGUN), ("a", Outcome.NOTHING)]
    rows = pa.table({"topic": ["a", "b", "c"], "cursor": ["s", "s", "s"]})
    found: list[int] = []
    for name, outcome in (*outcomes, ("b", Outcome.NOTHING), ("c", Outcome.LEFT)):
        plan = f"{kind}-e1-0a"
        journal.record([JournalRow("r", "test", plan, -1, "", name, action, phase, outcome, "", 0, "", "s", 5)])
        found.append(settled_ledgers(plan, rows, journal.find()))
    assert found == [0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("outcome", "code", "settled"),
    [
        (Outcome.COLLECTED, Outcome.COLLECTED, 1),
        (Outcome.COLLECTED, CollectionEnd.NOT_COMPACTED, 1),
        (Outcome.COLLECTED, StopReason.LEDGERS_DELETED, 0),
        (Outcome.LEFT, CollectionChoice.LITTLE_TO_FREE, 1),
        (Outcome.LEFT, CollectionChoice.UNKNOWN_DISK, 0),
    ],
)
def test_a_bookie_is_settled_once_nothing_is_left_to_do_there(outcome: Outcome, code: StrEnum, settled: int) -> None:
    """One whose major compaction was not begun, as a run deleted ledgers then, is not."""
    journal, plan = FakeJournal(), f"{PlanKind.COLLECTION}-e1-0a"
    step, about = (
        Step(Action.COLLECT_BOOKIE, Phase.COLLECT_BOOKIE),
        Subject(-1, "Bookie", "", details=(BookieTold("a"),)),
    )
    journal.record([Writer("r", "test", plan).row(step, about, outcome, Why(code, "so"), 5)])
    assert settled_ledgers(plan, pa.table({"bookie": ["a", "b"]}), journal.find()) == settled
