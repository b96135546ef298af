"""The job ``undo_deletions``: a dry run by default, and red when what was asked for is not back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestration.undo import UndoConfig, shortfall, undone_shown
from pulsar_lifecycle.deletion.undo.undo_run import Result, UndoRequest
from pulsar_lifecycle.deletion.undo.undone import Undone
from pulsar_lifecycle.ports import Archived
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.builders import some_why


def result(*outcomes: str, not_archived: tuple[int, ...] = ()) -> Result:
    rows = [Archived("r", "east", i, f"/ledgers/{i}", b"", 0, 1, 1, 1) for i in range(len(outcomes))]
    ledgers = [
        Undone(row, outcome=outcome, why=some_why(f"because {outcome}"))
        for row, outcome in zip(rows, outcomes, strict=True)
    ]
    return Result(ledgers, not_archived)


def test_it_is_a_dry_run_unless_told_otherwise() -> None:
    assert UndoConfig().dry_run


@pytest.mark.parametrize("outcome", [Outcome.RESTORED, Outcome.PRESENT, Outcome.RECREATED, Outcome.RESTORABLE])
def test_what_is_back_or_could_be_is_no_failure(outcome: str) -> None:
    assert shortfall(UndoRequest("run"), result(outcome)) is None


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (Outcome.LOST, "1 lost"),
        (Outcome.UNKNOWN, "accept_unknown"),
        (Outcome.REFUSED, "refused"),
        (Outcome.NOT_RECREATED, "ZooKeeper did not create"),
        (Outcome.UNCONFIRMED, "again"),
    ],
)
def test_what_is_not_back_fails_the_job(outcome: str, words: str) -> None:
    told = shortfall(UndoRequest("run"), result(Outcome.RESTORED, outcome))
    assert told
    assert told.startswith("of 2 ledgers 1 ")
    assert words in told
    assert f"the first {outcome}: ledger 1, because {outcome}" in told
    assert ("accept_unknown" in told) == (outcome == Outcome.UNKNOWN)


def test_a_run_that_deleted_nothing_fails_the_job() -> None:
    assert "nothing that the run mistyped deleted" in str(shortfall(UndoRequest("mistyped"), result()))


def test_offloaded_copies_that_the_run_deleted_fail_the_job() -> None:
    lost = ("s3://b/u-ledger-7", "s3://b/u-ledger-7-index")
    said = "2 objects of offloaded copies are deleted for good, the first: s3://b/u-ledger-7"
    assert shortfall(UndoRequest("run"), replace(result(), lost_objects=lost)) == said
    found = replace(result(Outcome.RESTORED, Outcome.LOST), lost_objects=lost)
    assert str(shortfall(UndoRequest("run"), found)).endswith(f"because {Outcome.LOST}; {said}")
    assert "objects of offloaded copies" in undone_shown(found)["outcomes"].value


def test_ledgers_that_their_topics_list_as_deleted_have_words_of_their_own() -> None:
    unlisted, deleted = (
        "what a restored ledger needs",
        "what a ledger needs whose copy in BookKeeper its topic lists as deleted",
    )
    found = result(Outcome.RESTORED, Outcome.RESTORED)
    found.ledgers[1].topic = "persistent://acme/orders/placed"
    assert deleted not in undone_shown(found)
    found.ledgers[1].bookkeeper_deleted = True
    shown = undone_shown(found)
    assert "| (no topic) | 1 |" in shown[unlisted].value
    assert "placed" not in shown[unlisted].value
    assert "revert_offloads" in shown[deleted].value
    assert "| persistent://acme/orders/placed | 1 |" in shown[deleted].value
    assert unlisted not in undone_shown(Result(found.ledgers[1:], ()))


def test_ledgers_that_are_not_archived_fail_the_job_by_their_ids() -> None:
    told = shortfall(UndoRequest(ledger_ids=(0, 7, 8)), result(Outcome.RESTORED, not_archived=(7, 8)))
    assert told == "of 3 ledgers 2 not in the archive: 7, 8"
