"""What became of each intent by the journal, and which are derived again."""

from __future__ import annotations

from dataclasses import asdict, replace

import pyarrow as pa
import pytest

from pulsar_lifecycle.journal.intents import (
    INTENT_COLUMNS,
    IntentState,
    NamespaceIntents,
    by_namespace,
    intent_states,
    still_there,
    to_send,
    unknown,
)
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.values import outcomes, tables
from pulsar_lifecycle.values.plans.deletion_plan import PLAN

SENT = JournalRow(
    "r",
    "c",
    "p",
    1,
    "",
    "persistent://a/b/t",
    outcomes.Action.DELETE_LEDGER,
    "send",
    outcomes.Outcome.SENT,
    "",
    0,
    "",
    "",
    10,
)


def intents(*rows: JournalRow) -> pa.Table:
    return intent_states(pa.Table.from_pylist([asdict(row) for row in rows], tables.JOURNAL).select(INTENT_COLUMNS))


def states(*rows: JournalRow) -> dict[int, str]:
    return {row["ledger_id"]: row["state"] for row in intents(*rows).to_pylist()}


def decided(outcome: str, at: int = 20, **changes: object) -> JournalRow:
    return replace(SENT, phase="delete", outcome=outcome, at=at, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (outcomes.Outcome.WAITING, IntentState.IN_FLIGHT),
        (outcomes.Outcome.RETRYING, IntentState.IN_FLIGHT),
        (outcomes.Outcome.DEAD_LETTERED, IntentState.DEAD_LETTER),
        *((final, final) for final in sorted(outcomes.FINAL)),
    ],
)
def test_the_newest_word_counts(outcome: str, state: str) -> None:
    assert states(SENT) == {1: IntentState.IN_FLIGHT}
    assert states(SENT, decided(outcome)) == {1: state}
    assert states(decided(outcome), SENT) == {1: state}  # the order of their time, not of the files
    assert states(SENT, decided(outcome), replace(SENT, at=30)) == {1: IntentState.IN_FLIGHT}


def test_a_row_of_a_plan_that_was_not_deleted_is_no_intent() -> None:
    unsent = decided(outcomes.Outcome.NOT_DELETED)
    assert states(unsent) == {}
    assert states(SENT, unsent) == {1: IntentState.IN_FLIGHT}
    assert states(decided(outcomes.Outcome.KEPT), replace(unsent, at=30)) == {1: outcomes.Outcome.KEPT}


def test_a_redriven_dead_letter_is_in_flight_and_a_failed_send_is_nothing() -> None:
    dead = decided(outcomes.Outcome.DEAD_LETTERED)
    assert states(dead, replace(SENT, phase="redrive", at=30)) == {1: IntentState.IN_FLIGHT}
    assert states(dead, replace(SENT, phase="redrive", outcome=outcomes.Outcome.SEND_FAILED, at=30)) == {
        1: IntentState.DEAD_LETTER
    }
    assert states(replace(SENT, outcome=outcomes.Outcome.SEND_FAILED)) == {}
    assert states(decided(outcomes.Outcome.REFUSED, ledger_id=-1, topic="")) == {}  # bytes that are no message
    assert states(replace(SENT, phase="mark", outcome="marked")) == {}


def orphans(*ids: int, namespace: str = "a/b") -> pa.Table:
    rows = [{"ledger_id": i, "namespace": namespace, "physical_bytes": 5, "finding": "", "reason": ""} for i in ids]
    return pa.Table.from_pylist([{**dict.fromkeys(PLAN.names), **row} for row in rows], PLAN)


def test_what_is_in_flight_is_not_sent_again_and_an_offloaded_copy_is_another_matter() -> None:
    found = intents(
        SENT,
        replace(SENT, ledger_id=2),
        decided(outcomes.Outcome.KEPT, ledger_id=2),
        replace(SENT, ledger_id=3, action=outcomes.Action.DELETE_OFFLOADED),
    )
    assert to_send(orphans(1, 2, 3, 4), found).column("ledger_id").to_pylist() == [2, 3, 4]


@pytest.mark.parametrize("outcome", [outcomes.Outcome.DELETED, outcomes.Outcome.GONE, outcomes.Outcome.KEPT])
def test_what_was_deleted_since_the_scan_is_no_orphan_any_more(outcome: str) -> None:
    """Before the scan it was another ledger: a restored store issues ids again."""
    found = intents(SENT, decided(outcome, at=20))
    settled = outcome != outcomes.Outcome.KEPT
    assert still_there(orphans(1, 2), found, 20).column("ledger_id").to_pylist() == ([2] if settled else [1, 2])
    assert still_there(orphans(1, 2), found, 21).column("ledger_id").to_pylist() == [1, 2]


def test_every_wanted_namespace_stands_somewhere() -> None:
    found = intents(
        SENT, replace(SENT, ledger_id=2, topic="persistent://x/y/t"), decided(outcomes.Outcome.DELETED, ledger_id=3)
    )
    rows = pa.concat_tables([orphans(1, 4), orphans(9, namespace="o/n")])
    assert by_namespace(found, rows, ["a/b", "e/f"]) == [
        NamespaceIntents("a/b", {IntentState.IN_FLIGHT: 1, outcomes.Outcome.DELETED: 1}, 2, 10),
        NamespaceIntents("e/f"),
    ]
    everywhere = by_namespace(found, rows, None)
    assert [(s.namespace, s.in_flight, s.settled, s.orphans) for s in everywhere] == [
        ("a/b", 1, 1, 2),
        ("o/n", 0, 0, 1),
        ("x/y", 1, 0, 0),
    ]


@pytest.mark.parametrize("topic", ["", "no topic", "persistent://a"])
def test_an_intent_of_no_topic_is_of_no_namespace(topic: str) -> None:
    found = intents(SENT, decided(outcomes.Outcome.REFUSED, ledger_id=2, topic=topic))
    assert by_namespace(found, orphans(), None) == [NamespaceIntents("a/b", {IntentState.IN_FLIGHT: 1}, 0, 0)]


def test_a_namespace_is_unknown_if_it_does_not_exist_and_nothing_of_it_is_left() -> None:
    namespace_intents = [
        NamespaceIntents("a/exists"),
        NamespaceIntents("a/leaked", orphans=1),
        NamespaceIntents("a/sent", {IntentState.IN_FLIGHT: 1}),
        NamespaceIntents("a/mistyped"),
    ]
    assert unknown(namespace_intents, {"a/exists", "a/other"}) == ["a/mistyped"]
