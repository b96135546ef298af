"""What ``explain`` says of a ledger that is not there: who deleted it, what is lost, what undo can do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_lifecycle.formats import cursor
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.inspect.explain_codes import ExplainCode, Verdict
from pulsar_lifecycle.inspect.ledger_history import History
from pulsar_lifecycle.journal.in_doubt import WITHIN_MS
from pulsar_lifecycle.journal.intents import IntentState
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action
from tests.kit.scenes.explain_scene import DATA, HOUR, OWNER, TOPIC_PATH, World, journalled, said, text


@pytest.fixture
def world() -> World:
    return World()


def test_a_missing_ledger_that_its_topic_lists_is_dangling(world: World) -> None:
    world.topic(LedgerInfo(7))
    world.remember(7, "R1", OWNER, TOPIC_PATH)
    found = world.explain(7)
    assert found.verdict is Verdict.DANGLING
    assert TOPIC_PATH in text(found)


def test_a_compacted_ledger_that_only_the_z_node_of_the_cursor_still_names_is_gone(world: World) -> None:
    world.topic(LedgerInfo(1))
    copy = cursor.ManagedCursorInfo(8, Position(1, 0), properties={"CompactedTopicLedger": 7})
    world.node(f"{TOPIC_PATH}/__compaction", cursor.encode(copy))
    world.remember(7, "R3", OWNER, f"{TOPIC_PATH}/__compaction")
    assert world.explain(7).verdict is Verdict.DANGLING  # the cursor's ledger is not there to say otherwise
    world.ledger(8, {**DATA, "pulsar/cursor": "__compaction"})
    world.reader.payloads[8] = [
        cursor.encode_position(cursor.PositionInfo(Position(1, 5), (), {"CompactedTopicLedger": 9}))
    ]
    assert said(world.explain(7)) == (Verdict.GONE, ExplainCode.LAST_SCAN_KNEW)
    assert world.explain(9).verdict is Verdict.DANGLING


def test_the_journal_says_which_run_deleted_it(world: World) -> None:
    world.history = replace(world.history, journal=(journalled("sent"), journalled("deleted", 2)))
    found = world.explain(7)
    assert (said(found), found.answer.run_id) == ((Verdict.DELETED, Verdict.DELETED), "run-9")
    assert text(found) == "run run-9 deleted it: nothing refers to it"


def test_a_deletion_that_no_run_will_journal_any_more_says_what_to_do(world: World) -> None:
    now = world.clock.now_ms() + 30 * HOUR
    for at, code in ((now - WITHIN_MS, ExplainCode.NEXT_RUN_SAYS), (now - WITHIN_MS - 1, ExplainCode.NEVER_SAID)):
        archived = {"run_id": "run-9", "ledger_id": 7, "at": at}
        world.history = replace(world.history, journal=(journalled("sent"),), archived=(archived,))
        found = world.explain(7)
        assert (said(found), found.answer.run_id) == ((Verdict.GONE, code), "run-9")


def test_a_deletion_that_is_not_journalled_yet_names_its_run(world: World) -> None:
    archived = {"run_id": "run-9", "ledger_id": 7, "at": 3}
    gone = journalled("gone", 4) | {"run_id": "run-10", "phase": "delete", "action": "delete-ledger", "ledger_id": 7}
    world.history = replace(world.history, journal=(journalled("sent"), gone), archived=(archived,))
    found = world.explain(7)
    assert (said(found), found.answer.run_id) == ((Verdict.GONE, ExplainCode.NEVER_SAID), "run-9")
    deleted = gone | {"run_id": "run-9", "outcome": "deleted", "checksum": "abc"}
    world.history = replace(world.history, journal=(*world.history.journal, deleted))
    assert world.explain(7).verdict is Verdict.DELETED


def test_a_deleted_ledger_that_its_topic_lists_again_is_dangling(world: World) -> None:
    world.history = replace(world.history, journal=(journalled("deleted"),))
    world.topic(LedgerInfo(7))
    assert world.explain(7).verdict is Verdict.DANGLING


def test_a_ledger_that_is_there_again_says_so(world: World) -> None:
    world.ledger(7, DATA)
    world.topic(LedgerInfo(7))
    world.history = replace(world.history, journal=(journalled("deleted"),))
    found = world.explain(7)
    assert found.verdict is Verdict.IN_USE
    assert any("restored" in note for note in found.notes)


def test_an_intent_is_what_the_journal_last_said_of_it(world: World) -> None:
    sent = journalled("sent", 1) | {"phase": "send"}
    copy = journalled("sent", 9) | {"phase": "send", "action": Action.DELETE_OFFLOADED}
    states = {
        "": (copy,),
        IntentState.IN_FLIGHT: (sent, journalled("retrying", 2)),
        "kept": (sent, journalled("kept", 2)),
    }
    states |= {IntentState.DEAD_LETTER: (sent, journalled("dead-lettered", 2), copy)}
    for state, journal in states.items():
        assert replace(world.history, journal=journal).intent() == state


def test_a_ledger_that_went_with_its_topic_names_the_run(world: World) -> None:
    removed = journalled("removed") | {"phase": "mark", "code": Code.TOPIC_DELETED}
    half = journalled("left") | {"phase": "mark", "code": Code.BROKER_DELETED}
    found_gone = journalled("gone", 2)
    whole, partly = Code.TOPIC_DELETED, Code.BROKER_DELETED
    for journal, code in (((removed,), whole), ((removed, found_gone), whole), ((half,), partly)):
        world.history = replace(world.history, journal=journal)
        found = world.explain(7)
        assert (said(found), found.answer.run_id) == ((Verdict.GONE, code), "run-9")
    world.history = replace(world.history, journal=(removed, journalled("deleted", 2)))
    assert world.explain(7).verdict is Verdict.DELETED


def test_a_ledger_that_vanished_without_us_is_gone(world: World) -> None:
    world.remember(7, "R1", OWNER, TOPIC_PATH)
    assert said(world.explain(7)) == (Verdict.GONE, ExplainCode.LAST_SCAN_KNEW)
    world.history = History(journal=(journalled("kept"),))
    assert said(world.explain(7)) == (Verdict.GONE, ExplainCode.JOURNAL_KNOWS)


def test_no_trace_is_unknown(world: World) -> None:
    assert world.explain(7).verdict is Verdict.UNKNOWN


def test_a_deleted_ledger_names_the_job_that_restores_it_until_that_found_it_lost(world: World) -> None:
    lost = journalled("lost", 3) | {"phase": "undo"}
    world.history = replace(world.history, journal=(journalled("deleted", 2),))
    assert any("undo_deletions restores it" in note for note in world.explain(7).notes)
    world.history = replace(world.history, journal=(journalled("deleted", 2), lost))
    notes = world.explain(7).notes
    assert any("found it lost" in note for note in notes)
    assert not any("restores" in note for note in notes)
    world.history = replace(world.history, journal=(*world.history.journal, journalled("deleted", 4)))
    assert any("undo_deletions restores it" in note for note in world.explain(7).notes)


def test_a_ledger_whose_records_were_deleted_for_good_names_no_job_that_restores_it(world: World) -> None:
    forbidden = journalled("done") | {"phase": "no-undo"}
    world.history = replace(world.history, journal=(forbidden, journalled("deleted", 2)))
    notes = world.explain(7).notes
    assert any("--no-undo" in note for note in notes)
    assert not any("restores it from" in note for note in notes)
