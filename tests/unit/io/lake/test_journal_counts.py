"""What the journal adds up: deletions by cluster, topic and day, and last words, without reading more than needed."""

from dataclasses import replace

import pytest

from pulsar_lifecycle.io.lake import packs
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.journal.metrics import count
from pulsar_lifecycle.journal.queries import (
    DeadLetterReason,
    dead_letter_reasons,
    deleted_by_topic,
    deleted_since,
)
from pulsar_lifecycle.journal.tallies import tallied
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome
from tests.kit.builders import NOON, ROW

TOMORROW = NOON + 86_400_000


def test_deletions_are_counted_per_cluster_also_in_a_batch_over_midnight(journal):
    """They say how far a listing may have shrunk by our own doing."""
    midnight = 1_760_054_400_000
    deleted = replace(ROW, outcome="deleted", at=midnight - 1)
    journal.record([deleted, replace(deleted, ledger_id=1, at=midnight), replace(deleted, ledger_id=2, at=midnight)])
    journal.record([replace(deleted, ledger_id=3, cluster="neighbour", at=midnight)])
    assert deleted_since(journal, midnight - 1, "sandbox") == 3
    assert deleted_since(journal, midnight, "sandbox") == 2
    assert deleted_since(journal, 0, "neighbour") == 1
    journal.record([replace(deleted, ledger_id=4, action="delete-offload-ledger", at=midnight)])
    assert deleted_since(journal, midnight, "sandbox") == 2


@pytest.fixture
def columns_read(monkeypatch) -> list[list[str]]:
    """The columns of every table that was read, in the order of the calls."""
    tables: list[list[str]] = []
    find = packs.find

    def watched(lake, table, schema, columns, condition):
        tables.append(list(columns))
        return find(lake, table, schema, columns, condition)

    monkeypatch.setattr(packs, "find", watched)
    return tables


def test_the_last_reason_of_a_dead_letter_counts_and_nothing_else_is_read(tmp_path, columns_read):
    journal = FileJournal(str(tmp_path))
    dead = replace(ROW, phase="delete", outcome="dead-lettered", action=Action.DELETE_LEDGER)
    journal.record([replace(dead, code=Code.UNREAD, reason="the last", at=TOMORROW)])
    journal.record([replace(dead, reason="the first"), replace(dead, ledger_id=1, reason="alone")])
    journal.record([replace(dead, action="delete-offload-ledger", reason="of the other copy")])
    journal.record([replace(dead, cluster="neighbour", at=TOMORROW), replace(dead, outcome="retrying", at=TOMORROW)])
    assert dead_letter_reasons(FileJournal(str(tmp_path)), "sandbox", 0) == {
        (4711, Action.DELETE_LEDGER): DeadLetterReason(Code.UNREAD, "the last"),
        (1, Action.DELETE_LEDGER): DeadLetterReason("", "alone"),
        (4711, "delete-offload-ledger"): DeadLetterReason("", "of the other copy"),
    }
    of_late = dead_letter_reasons(FileJournal(str(tmp_path)), "sandbox", TOMORROW)
    assert of_late == {(4711, Action.DELETE_LEDGER): DeadLetterReason(Code.UNREAD, "the last")}
    assert columns_read == [["ledger_id", "action", "code", "reason", "at"]] * 2


def test_deletions_are_added_up_by_topic(tmp_path, columns_read):
    assert deleted_by_topic(FileJournal(str(tmp_path)), "sandbox").num_rows == 0
    columns_read.clear()
    journal = FileJournal(str(tmp_path))
    deleted = replace(ROW, outcome=Outcome.DELETED, bytes=10)
    journal.record([deleted, replace(deleted, ledger_id=1), replace(deleted, topic="persistent://a/b/d", bytes=5)])
    journal.record([replace(deleted, run_id="run-2", ledger_id=2, bytes=1), replace(deleted, cluster="neighbour"), ROW])
    every = deleted_by_topic(FileJournal(str(tmp_path)), "sandbox").sort_by("topic").to_pylist()
    assert every == [
        {"topic": ROW.topic, "ledgers": 3, "bytes": 21},
        {"topic": "persistent://a/b/d", "ledgers": 1, "bytes": 5},
    ]
    one = deleted_by_topic(FileJournal(str(tmp_path)), "sandbox", "run-2").to_pylist()
    assert one == [{"topic": ROW.topic, "ledgers": 1, "bytes": 1}]
    assert columns_read == [["topic", "bytes"]] * 2


@pytest.mark.parametrize("since", [-(2**63), 2**62, 2**63 - 1])
def test_a_time_that_no_calendar_has_is_no_error(journal, since):
    """A message's publish time is whatever its sender says."""
    journal.record([replace(ROW, outcome="deleted")])
    assert deleted_since(journal, since, "sandbox") == (since < 0)


def test_the_counts_of_the_journal_add_up_over_days_and_objects(journal):
    assert count(tallied(journal, NOON), "sandbox").ledgers_deleted == 0
    row = replace(ROW, phase="delete", outcome="deleted", action="delete-ledger")
    journal.record([row, replace(row, ledger_id=1)])
    journal.record([replace(row, ledger_id=2, at=TOMORROW), replace(row, cluster="other")])
    for now in (NOON, TOMORROW, 2 * TOMORROW - NOON):
        found = tallied(journal, now)
        assert count(found, "sandbox").ledgers_deleted == 3
        assert count(found, "other").ledgers_deleted == 1


def test_the_journal_is_counted_whole_and_again_only_where_it_changed(tmp_path):
    journal, day = FileJournal(str(tmp_path)), "2025-10-09"
    row = replace(ROW, phase="delete", outcome="deleted", action="delete-ledger")

    def deleted(now):
        return count(tallied(journal, now), "sandbox").ledgers_deleted

    assert deleted(NOON) == 0
    journal.record([row, replace(row, ledger_id=1)])
    assert [deleted(NOON), deleted(NOON)] == [2, 2]
    assert not (tmp_path / "tallies").exists()  # today goes on
    assert [deleted(TOMORROW), deleted(TOMORROW)] == [2, 2]
    (kept,) = (tmp_path / "tallies").iterdir()
    journal.record([row])  # a late batch is filed under the day of its first row
    assert [deleted(TOMORROW), deleted(TOMORROW)] == [3, 3]
    kept.write_bytes(b"half a file")
    assert [deleted(TOMORROW), deleted(TOMORROW)] == [3, 3]
    (tmp_path / "journal" / f"date={day}" / ".x.parquet.tmp").write_bytes(b"unfinished")
    assert deleted(TOMORROW) == 3


def test_a_past_day_is_not_read_again(tmp_path):
    journal = FileJournal(str(tmp_path))
    journal.record([replace(ROW, phase="delete", outcome="deleted")])
    before = tallied(journal, TOMORROW)
    for found in (tmp_path / "journal").rglob("*.parquet"):
        found.write_bytes(b"nobody looks")
    assert tallied(journal, TOMORROW).equals(before)


def test_what_an_undo_restored_does_not_count_as_deleted(journal):
    rows = [replace(ROW, ledger_id=i, phase="delete", outcome="deleted") for i in (1, 2, 3)]
    undone = [
        replace(ROW, ledger_id=i, phase="undo", outcome=o, at=NOON + 1) for i, o in ((2, "restored"), (3, "lost"))
    ]
    journal.record([*rows, *undone])
    assert deleted_since(journal, NOON, "sandbox") == 2
