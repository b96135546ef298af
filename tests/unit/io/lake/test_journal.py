"""Journal and archive as files: what is written reads back as it was, whole or not at all."""

import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.journal.archive import archived_nodes, as_deleted, last_archived, nodes_in_doubt
from pulsar_lifecycle.journal.queries import (
    journal_rows,
    rows_of_phase,
)
from pulsar_lifecycle.ports import Archived, ArchivedSnapshot, JournalRow
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from tests.kit.builders import NODE, NOON, ROW


def test_every_call_has_a_location_of_its_own(journal):
    places = [journal.record([ROW]), journal.record([ROW]), journal.archive([NODE]), journal.archive([NODE])]
    assert all(places)
    assert len(set(places)) == 4


def test_nothing_to_store_stores_nothing(journal):
    assert journal.record([]) == ""
    assert journal.archive([]) == ""


def test_whether_it_can_be_written_is_told_without_a_row(journal):
    journal.check_writable()
    journal.check_writable()
    assert journal_rows(journal).num_rows == 0
    journal.record([ROW])
    assert journal_rows(journal).num_rows == 1


def test_a_journal_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "journal").touch()
    with pytest.raises(StoreError):
        FileJournal(str(tmp_path)).check_writable()


def test_rows_and_nodes_read_back_as_they_were(journal):
    later = replace(ROW, run_id="run-2", at=NOON + 86_400_000, reason="ünïcode")
    journal.record([later])
    journal.record([ROW, replace(ROW, ledger_id=1)])
    journal.archive([NODE])
    assert journal_rows(journal, ledger_id=4711).to_pylist() == [asdict(ROW), asdict(later)]
    assert journal_rows(journal, ledger_id=4711, run_id="run-2").to_pylist() == [asdict(later)]
    assert journal_rows(journal, topic=ROW.topic).num_rows == 3
    assert journal_rows(journal).num_rows == 3
    assert archived_nodes(journal, ledger_id=NODE.ledger_id).to_pylist() == [asdict(NODE)]
    assert archived_nodes(journal, run_id="none").num_rows == 0


def test_archived_snapshots_read_back_as_they_were(journal):
    kept = ArchivedSnapshot("run-1", "sandbox", "t", "s", "key_1_2", 7, b"\x00metadata", (b"", b"\xff" * 10), NOON)
    assert journal.archive_snapshots([]) == ""
    assert journal.archive_snapshots([kept])
    journal.archive_snapshots([replace(kept, ledger_id=8)])
    (row,) = journal.find_snapshots(pc.field("ledger_id") == 7).to_pylist()
    assert ArchivedSnapshot(**row | {"entries": tuple(row["entries"])}) == kept
    assert journal.find_snapshots(columns=["ledger_id"]).num_rows == 2
    assert archived_nodes(journal).num_rows == 0


def test_the_schemas_have_the_columns_of_the_ports():
    assert tables.JOURNAL.names == list(JournalRow.__dataclass_fields__)
    assert tables.ARCHIVE.names == list(Archived.__dataclass_fields__)
    assert tables.SNAPSHOTS.names == list(ArchivedSnapshot.__dataclass_fields__)


def test_an_empty_lake_has_empty_tables(journal):
    assert journal_rows(journal).schema == tables.JOURNAL
    assert archived_nodes(journal).num_rows == 0


def test_objects_lie_by_day_and_are_plain_parquet(tmp_path):
    place = Path(FileJournal(str(tmp_path)).record([ROW]))
    assert place.parent == tmp_path / "journal" / "date=2025-10-09"
    assert pq.read_table(place, partitioning=None).to_pylist() == [asdict(ROW)]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [place]


def test_rows_of_a_version_without_codes_read_back_without_one(tmp_path):
    old = pa.Table.from_pylist([asdict(ROW)], tables.JOURNAL).drop_columns(["code"])
    folder = tmp_path / "journal" / "date=2025-10-09"
    folder.mkdir(parents=True)
    pq.write_table(old, folder / "old.parquet")
    journal = FileJournal(str(tmp_path))
    journal.record([replace(ROW, code=Code.TWIN, at=ROW.at + 1)])
    assert journal_rows(journal)["code"].to_pylist() == [None, Code.TWIN]
    assert journal_rows(journal, code=Code.TWIN)["at"].to_pylist() == [ROW.at + 1]


def test_what_was_archived_and_never_journalled_is_found(journal):
    def deletions_in_doubt(since):
        return nodes_in_doubt(journal, "sandbox", since)

    assert deletions_in_doubt(0) == []
    nodes = [replace(NODE, ledger_id=i) for i in range(3)]
    journal.archive([*nodes, replace(NODE, ledger_id=3, cluster="neighbour")])
    journal.archive([replace(nodes[2], run_id="run-0", at=NOON - 86_400_000)])
    said = replace(ROW, phase="delete", action="delete-ledger", outcome="deleted", checksum="abc")
    journal.record([replace(said, ledger_id=1), replace(said, ledger_id=0, cluster="neighbour")])
    assert sorted(deletions_in_doubt(0), key=lambda node: node.ledger_id) == [nodes[0], nodes[2]]
    assert len(deletions_in_doubt(NOON)) == 2
    assert deletions_in_doubt(NOON + 1) == []
    journal.record([replace(said, ledger_id=2), replace(said, ledger_id=0)])
    assert deletions_in_doubt(0) == []


def test_unfinished_objects_are_not_read(tmp_path):
    place = Path(FileJournal(str(tmp_path)).record([ROW]))
    place.with_name(".half.parquet.tmp").write_bytes(place.read_bytes()[:100])
    assert journal_rows(FileJournal(str(tmp_path))).num_rows == 1


def test_a_corrupt_object_is_an_error_and_not_an_absence(tmp_path):
    place = Path(FileJournal(str(tmp_path)).record([ROW]))
    place.write_bytes(place.read_bytes()[:100])
    with pytest.raises(StoreError, match="cannot be read"):
        journal_rows(FileJournal(str(tmp_path)))


def test_a_lake_that_cannot_be_written_raises(tmp_path):
    (tmp_path / "journal").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be stored durably"):
        FileJournal(str(tmp_path)).record([ROW])


def test_a_failed_sync_raises(tmp_path, monkeypatch):
    def broken(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoreError, match="Input/output error"):
        FileJournal(str(tmp_path)).archive([NODE])
    assert archived_nodes(FileJournal(str(tmp_path))).num_rows == 0


CRASH = """
import os, pathlib, signal, sys
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.values import tables
from tests.kit.builders import NODE
steps = []
real_fsync, real_rename = os.fsync, pathlib.Path.rename
def fsync(descriptor):
    real_fsync(descriptor)
    steps.append("fsync")
    die("after-fsync-%d" % steps.count("fsync"))
def rename(self, target):
    die("before-rename")
    real_rename(self, target)
    die("after-rename")
def die(here):
    if here == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync, pathlib.Path.rename = fsync, rename
FileJournal(sys.argv[1]).archive([NODE])
print("returned", flush=True)
die("after-return")
"""


@pytest.mark.parametrize(
    ("moment", "visible"),
    [
        ("after-fsync-1", 0),
        ("before-rename", 0),
        ("after-rename", 1),
        ("after-fsync-4", 1),
        ("after-return", 1),
    ],
)
def test_a_killed_writer_leaves_all_or_nothing(tmp_path, moment, visible):
    done = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), moment], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ("returned" in done.stdout) == (moment == "after-return")
    assert archived_nodes(FileJournal(str(tmp_path))).num_rows == visible


def test_the_newest_archived_z_node_of_each_ledger_counts(journal):
    old, new = replace(NODE, ledger_id=1), replace(NODE, ledger_id=1, run_id="run-2", czxid=9, at=NOON + 1)
    foreign = replace(new, cluster="other", at=NOON + 2)
    alone = replace(foreign, ledger_id=2)
    journal.archive([new, alone])
    journal.archive([old, foreign])
    assert last_archived(journal, "sandbox", run_id="run-1") == []  # it did not delete what run-2 found there
    assert last_archived(journal, "sandbox", run_id="run-2") == [new, alone]
    assert last_archived(journal, "sandbox", ledger_ids=[2, 1, 3]) == [new, alone]
    assert last_archived(journal, "sandbox", ledger_ids=[3]) == []
    assert last_archived(journal, "sandbox", run_id="no such run") == []


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{}], True),
        ([], False),
        ([{"at": NOON - 1}], False),  # of an earlier z-node
        ([{"run_id": "run-2"}], False),
        ([{"cluster": "other"}], False),
        ([{"outcome": Outcome.RETRYING}], False),
        ([{"action": Action.DELETE_OFFLOADED}], False),
        ([{}, {"phase": Phase.UNDO, "outcome": Outcome.RECREATED, "at": NOON + 1}], False),
        ([{"phase": Phase.UNDO, "outcome": Outcome.RESTORED, "at": NOON - 1}, {}], True),
    ],
)
def test_an_archived_z_node_tells_of_a_ledger_that_was_deleted_as_it_was_then(journal, rows, told):
    deleted = replace(
        ROW, action=Action.DELETE_LEDGER, phase=Phase.DELETE, outcome=Outcome.DELETED, ledger_id=NODE.ledger_id
    )
    journal.record([replace(deleted, **row) for row in rows])
    assert as_deleted(journal, "sandbox", [replace(NODE, at=NOON)]) == ([replace(NODE, at=NOON)] if told else [])


def test_rows_of_one_phase(journal):
    journal.record([ROW, replace(ROW, phase="undo", at=NOON + 1), replace(ROW, phase="undo")])
    assert [row["at"] for row in rows_of_phase(journal, "undo").to_pylist()] == [NOON, NOON + 1]
