import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.io.lake.journal import ARCHIVE_SCHEMA, JOURNAL_SCHEMA, FileJournal
from pulsar_lifecycle.journal.archive import archived_nodes, last_archived, nodes_in_doubt
from pulsar_lifecycle.journal.first_phase_marks import marked_ledgers, marked_offloads
from pulsar_lifecycle.journal.metrics import count
from pulsar_lifecycle.journal.offloads import (
    begun_attempts,
    deleted_copies,
    failed_proofs,
    released_ledgers,
    sent_copies,
    verified_copies,
)
from pulsar_lifecycle.journal.queries import (
    DeadLetterReason,
    dead_letter_reasons,
    deleted_by_topic,
    deleted_since,
    journal_rows,
    rows_of_phase,
)
from pulsar_lifecycle.journal.tallies import tallied
from pulsar_lifecycle.ports import Archived, JournalRow
from pulsar_lifecycle.records.codes import Code
from pulsar_lifecycle.records.copies import Asked, Begun, Released, Verified
from pulsar_lifecycle.records.outcomes import Action, Outcome
from tests.kit.builders import NODE, NOON, PROOF, ROW
from tests.kit.fakes.journal import FakeJournal

TOMORROW = NOON + 86_400_000
ASKED = Asked(ROW.topic)


@pytest.fixture(params=["files", "fake"])
def journal(request, tmp_path):
    return FileJournal(str(tmp_path)) if request.param == "files" else FakeJournal()


def test_every_call_has_a_location_of_its_own(journal):
    places = [journal.record([ROW]), journal.record([ROW]), journal.archive([NODE]), journal.archive([NODE])]
    assert all(places)
    assert len(set(places)) == 4


def test_nothing_to_store_stores_nothing(journal):
    assert journal.record([]) == ""
    assert journal.archive([]) == ""


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


def test_the_schemas_have_the_columns_of_the_ports():
    assert JOURNAL_SCHEMA.names == list(JournalRow.__dataclass_fields__)
    assert ARCHIVE_SCHEMA.names == list(Archived.__dataclass_fields__)


def test_an_empty_lake_has_empty_tables(journal):
    assert journal_rows(journal).schema == JOURNAL_SCHEMA
    assert archived_nodes(journal).num_rows == 0


def test_objects_lie_by_day_and_are_plain_parquet(tmp_path):
    place = Path(FileJournal(str(tmp_path)).record([ROW]))
    assert place.parent == tmp_path / "journal" / "date=2025-10-09"
    assert pq.read_table(place, partitioning=None).to_pylist() == [asdict(ROW)]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [place]


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
    """The columns of every table that a dataset made, in the order of the calls."""
    tables: list[list[str]] = []
    dataset = ds.dataset

    class Watched:
        def __init__(self, found):
            self.found = found

        def to_table(self, columns, filter):
            tables.append(columns)
            return self.found.to_table(columns=columns, filter=filter)

    monkeypatch.setattr(ds, "dataset", lambda *args, **kwargs: Watched(dataset(*args, **kwargs)))
    return tables


def test_rows_of_a_version_without_codes_read_back_without_one(tmp_path):
    old = pa.Table.from_pylist([asdict(ROW)], JOURNAL_SCHEMA).drop_columns(["code"])
    folder = tmp_path / "journal" / "date=2025-10-09"
    folder.mkdir(parents=True)
    pq.write_table(old, folder / "old.parquet")
    journal = FileJournal(str(tmp_path))
    journal.record([replace(ROW, code=Code.TWIN, at=ROW.at + 1)])
    assert journal_rows(journal)["code"].to_pylist() == [None, Code.TWIN]
    assert journal_rows(journal, code=Code.TWIN)["at"].to_pylist() == [ROW.at + 1]


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


def test_what_a_run_deleted_of_offloaded_copies_is_named(journal):
    objects = [{"bucket": "b", "key": "u-ledger-1"}, {"bucket": "b", "key": "u-ledger-1-index"}]
    row = replace(ROW, action="delete-offload-ledger", outcome="deleted", detail=json.dumps({"objects": objects}))
    others = [
        replace(row, outcome="gone"),
        replace(row, cluster="neighbour"),
        replace(row, action=Action.DELETE_LEDGER),
    ]
    journal.record(
        [replace(row, ledger_id=2, detail="{}"), row, *(replace(one, ledger_id=3, detail="{}") for one in others)]
    )
    lost = ["s3://b/u-ledger-1", "s3://b/u-ledger-1-index", "the copy of ledger 2"]
    assert deleted_copies(journal, "sandbox", "run-1") == lost
    assert deleted_copies(journal, "sandbox", "run-2") == []


def test_only_the_copy_that_went_with_a_ledger_is_lost_to_it(journal):
    """Another one was an orphan of its own: no topic named it, and an undo of the ledger misses nothing."""

    def swept(run_id, ledger_id, copy, at):
        objects = [{"bucket": "b", "key": f"{copy}-ledger-{ledger_id}"}]
        detail = json.dumps({"uuid": str(UUID(int=copy)), "bucket": "b", "objects": objects})
        row = replace(ROW, run_id=run_id, action="delete-offload-ledger", phase="delete", outcome="deleted")
        return replace(row, ledger_id=ledger_id, detail=detail, at=at)

    def marked(ledger_id, copy, **also):
        detail = json.dumps({"czxid": 1, "uuid": str(UUID(int=copy)) if copy else "", "bucket": "b"} | also)
        row = replace(
            ROW, phase="mark", outcome=Outcome.MARKED, action=Action.DELETE_LEDGER, ledger_id=ledger_id, detail=detail
        )
        return replace(row, at=NOON + 5)

    older = replace(marked(7, 0), ledger_id=4, detail="{}")  # from before marks said which copy they ask for
    journal.record([marked(1, 1), marked(2, 0), marked(3, 1, bucket="c"), older])
    journal.record([swept("long-ago", i, 2, NOON) for i in range(6)])
    journal.record([swept("later", i, 1, NOON + 9) for i in range(6)])
    journal.archive([replace(NODE, run_id="later", ledger_id=0, at=NOON + 8)])
    journal.archive([replace(NODE, run_id="long-ago", ledger_id=0), replace(NODE, run_id="another", ledger_id=5)])
    lost = ["s3://b/1-ledger-0", "s3://b/1-ledger-1", "s3://b/1-ledger-4"]
    assert deleted_copies(journal, "sandbox", ledger_ids=range(6)) == lost
    assert len(deleted_copies(journal, "sandbox", "long-ago")) == 6


@pytest.mark.parametrize(
    ("words", "whose"),
    [
        ([], "run-1"),
        ([("run-2", "gone")], "run-1"),
        ([("run-1", "retrying")], ""),
        ([("run-2", "waiting")], "run-1"),
        ([("run-1", "retrying"), ("run-2", "gone")], "run-1"),
        ([("run-1", "retrying"), ("run-2", "deleting"), ("run-2", "deleted")], "run-2"),
        ([("run-1", "deleted"), ("run-2", "kept")], "run-1"),
    ],
)
def test_an_offloaded_copy_is_lost_to_the_run_that_was_about_to_delete_it(journal, words, whose):
    """It may have died before its last word, or got no answer; another copy's words say nothing of this one."""
    copy = {"uuid": str(UUID(int=1)), "bucket": "b"}
    objects = [{"bucket": "b", "key": "u-ledger-1"}]
    begun = replace(ROW, action="delete-offload-ledger", phase="archive", outcome="deleting")
    begun = replace(begun, detail=json.dumps({**copy, "objects": objects}))
    said = [
        replace(
            begun,
            run_id=run_id,
            phase="archive" if outcome == "deleting" else "delete",
            outcome=outcome,
            code=Code.STILL_THERE if outcome == "retrying" else None,
            detail=begun.detail if outcome in ("deleting", "deleted", "retrying") else json.dumps(copy),
            at=NOON + n,
        )
        for n, (run_id, outcome) in enumerate(words, 1)
    ]
    others = [{**copy, "uuid": str(UUID(int=2))}, {**copy, "bucket": "c"}]
    kept = replace(begun, phase="delete", outcome="kept", at=NOON + 9)
    journal.record([begun, *said, *(replace(kept, detail=json.dumps(other)) for other in others)])
    for run_id in ("run-1", "run-2"):
        assert deleted_copies(journal, "sandbox", run_id) == (["s3://b/u-ledger-1"] if run_id == whose else [])


def test_a_mark_is_open_for_each_copy_until_that_copy_is_settled(journal):
    assert (marked_ledgers(journal, "sandbox"), marked_offloads(journal, "sandbox")) == ({}, {})
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-ledger", detail='{"czxid": 7}')
    journal.record([replace(mark, ledger_id=i) for i in (1, 2)] + [replace(mark, ledger_id=3, detail="{}")])
    journal.record([replace(mark, ledger_id=4, cluster="neighbour")])
    done = replace(mark, phase="delete", outcome="deleted")
    journal.record([replace(done, ledger_id=1), replace(done, ledger_id=2, outcome="retrying")])
    journal.record([replace(done, ledger_id=2, outcome="gone", action="delete-offload-ledger")])
    assert marked_ledgers(journal, "sandbox") == {2: (7, NOON)}
    assert marked_offloads(journal, "sandbox") == {1: (ASKED, NOON), 3: (ASKED, NOON)}


def test_a_ledger_that_was_deleted_and_restored_is_marked_again(journal):
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-ledger", detail='{"czxid": 7}')
    done = replace(mark, phase="delete", outcome="deleted", at=NOON + 1)
    journal.record([mark, done, replace(done, action="delete-offload-ledger", outcome="gone")])
    assert (marked_ledgers(journal, "sandbox"), marked_offloads(journal, "sandbox")) == ({}, {})
    journal.record([replace(mark, detail='{"czxid": 8}', at=NOON + 2)])
    assert marked_ledgers(journal, "sandbox") == {mark.ledger_id: (8, NOON + 2)}
    assert marked_offloads(journal, "sandbox") == {mark.ledger_id: (ASKED, NOON + 2)}
    journal.record([replace(done, outcome="gone", at=NOON + 3)])
    assert marked_ledgers(journal, "sandbox") == {}


def test_a_mark_ends_when_its_ledger_stayed_or_was_kept(journal):
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-ledger", detail='{"czxid": 7}')
    journal.record([replace(mark, ledger_id=i) for i in (1, 2, 3)])
    journal.record([replace(mark, ledger_id=1, outcome="left"), replace(mark, ledger_id=3, outcome="removed")])
    assert marked_ledgers(journal, "sandbox") == {2: (7, NOON), 3: (7, NOON)}
    journal.record([replace(mark, ledger_id=2, phase="delete", outcome="kept", at=NOON + 1)])
    journal.record([replace(mark, ledger_id=3, outcome="left", cluster="neighbour", at=NOON + 1)])
    assert marked_ledgers(journal, "sandbox") == {3: (7, NOON)}
    assert marked_offloads(journal, "sandbox") == dict.fromkeys((2, 3), (ASKED, NOON))
    journal.record([replace(mark, ledger_id=1, at=NOON + 2)])
    assert marked_ledgers(journal, "sandbox") == {1: (7, NOON + 2), 3: (7, NOON)}
    kept = replace(mark, phase="delete", outcome="kept", action="delete-offload-ledger", at=NOON + 3)
    journal.record([replace(kept, ledger_id=i) for i in (1, 2, 3)])
    assert set(marked_offloads(journal, "sandbox")) == {1, 2, 3}


def test_what_settles_one_offloaded_copy_ends_the_mark_of_no_other(journal):
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-offload-ledger")
    gone = replace(mark, phase="delete", outcome="gone", at=NOON + 1)
    ours, other = UUID(int=1), UUID(int=2)
    older, asks, asks_none, no_uuid = "{}", f'{{"uuid": "{ours}"}}', '{"uuid": ""}', '{"uuid": "1"}'
    marks = [older, asks, asks, asks, asks_none, older, no_uuid]
    journal.record([replace(mark, ledger_id=i, detail=detail) for i, detail in enumerate(marks)])
    intent_states = {0: Asked(ROW.topic), **dict.fromkeys((1, 2, 3), Asked(ROW.topic, ours)), 5: Asked(ROW.topic)}
    assert marked_offloads(journal, "sandbox") == {i: (asked, NOON) for i, asked in intent_states.items()}
    another = f'{{"uuid": "{other}"}}'
    said = {0: another, 1: another, 2: asks, 3: older, 5: older}
    journal.record([replace(gone, ledger_id=i, detail=detail) for i, detail in said.items()])
    assert marked_offloads(journal, "sandbox") == {i: (intent_states[i], NOON) for i in (1, 3)}
    journal.record(
        [replace(mark, ledger_id=1, detail=asks_none, at=NOON + 2), replace(mark, ledger_id=3, outcome="left")]
    )
    assert marked_offloads(journal, "sandbox") == {1: (intent_states[1], NOON)}
    journal.record([replace(gone, ledger_id=1, detail=asks, at=NOON + 3)])
    assert marked_offloads(journal, "sandbox") == {}


def test_a_mark_stands_until_its_copy_in_its_own_bucket_is_settled(journal):
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-offload-ledger")
    gone = replace(mark, phase="delete", outcome="gone", at=NOON + 1)
    uuid = UUID(int=1)
    anywhere, here, there = (
        json.dumps({"uuid": str(uuid), **where}) for where in ({}, {"bucket": "b"}, {"bucket": "c"})
    )
    journal.record([replace(mark, ledger_id=1, detail=here), replace(mark, ledger_id=2, detail=anywhere)])
    asked = {1: Asked(ROW.topic, uuid, "b"), 2: Asked(ROW.topic, uuid)}
    assert marked_offloads(journal, "sandbox") == {i: (one, NOON) for i, one in asked.items()}
    journal.record([replace(gone, ledger_id=i, detail=there) for i in (1, 2)])
    assert marked_offloads(journal, "sandbox") == {1: (asked[1], NOON)}
    journal.record([replace(gone, ledger_id=1, detail=here)])
    assert marked_offloads(journal, "sandbox") == {}


@pytest.mark.parametrize("detail", ["", "no JSON", "[]", "7", '{"czxid": "7"}', '{"czxid": true}', "[" * 100_000])
def test_a_mark_that_names_no_z_node_waives_nothing(journal, detail):
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-ledger", detail=detail)
    journal.record([mark, replace(mark, ledger_id=9, detail='{"czxid": 7}')])
    assert marked_ledgers(journal, "sandbox") == {9: (7, NOON)}


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


def test_rows_of_one_phase(journal):
    journal.record([ROW, replace(ROW, phase="undo", at=NOON + 1), replace(ROW, phase="undo")])
    assert [row["at"] for row in rows_of_phase(journal, "undo").to_pylist()] == [NOON, NOON + 1]


def test_what_an_undo_restored_does_not_count_as_deleted(journal):
    rows = [replace(ROW, ledger_id=i, phase="delete", outcome="deleted") for i in (1, 2, 3)]
    undone = [
        replace(ROW, ledger_id=i, phase="undo", outcome=o, at=NOON + 1) for i, o in ((2, "restored"), (3, "lost"))
    ]
    journal.record([*rows, *undone])
    assert deleted_since(journal, NOON, "sandbox") == 2


UUIDS = [UUID(int=1), UUID(int=2)]


def test_the_newest_proof_of_each_copy_is_found(journal) -> None:
    row = replace(ROW, action=Action.OFFLOAD, phase=Action.OFFLOAD, outcome=Outcome.VERIFIED)
    for at, (uuid, etag) in enumerate([(UUIDS[0], "old"), (UUIDS[0], "new"), (UUIDS[1], "other")]):
        detail = json.dumps({**PROOF, "data_etag": etag, "uuid": str(uuid)})
        journal.record([replace(row, detail=detail, at=row.at + at)])
    journal.record([replace(row, ledger_id=2, detail="{}"), replace(row, cluster="another", detail=json.dumps(PROOF))])
    found = verified_copies(journal, "sandbox", [ROW.ledger_id, 2])
    assert {key: proof.data_etag for key, proof in found.items()} == {
        (ROW.ledger_id, UUIDS[0]): "new",
        (ROW.ledger_id, UUIDS[1]): "other",
    }


def test_a_released_ledger_is_one_until_it_is_deleted(journal) -> None:
    detail = {**PROOF, "uuid": str(UUIDS[0]), "bucket": "b", "czxid": 9}
    row = replace(ROW, action=Action.RELEASE, phase="release", outcome=Outcome.MARKED, detail=json.dumps(detail))
    journal.record([row, replace(row, ledger_id=2, detail="{}"), replace(row, ledger_id=3)])
    found = released_ledgers(journal, "sandbox")
    assert found == {i: Released(ROW.topic, UUIDS[0], "b", 9, Verified(**PROOF)) for i in (ROW.ledger_id, 3)}
    journal.record(
        [replace(ROW, ledger_id=3, action=Action.DELETE_LEDGER, phase="delete", outcome=Outcome.DELETED, at=ROW.at + 1)]
    )
    assert set(released_ledgers(journal, "sandbox")) == {ROW.ledger_id}
    assert released_ledgers(journal, "another") == {}


def test_a_release_of_what_failed_a_later_proof_is_none_any_more(journal) -> None:
    detail = json.dumps({**PROOF, "uuid": str(UUIDS[0]), "bucket": "b", "czxid": 9})
    row = replace(ROW, action=Action.RELEASE, phase="release", outcome=Outcome.MARKED, detail=detail)
    journal.record([replace(row, outcome=Outcome.PROOF_FAILED, at=row.at - 1), row])
    assert set(released_ledgers(journal, "sandbox")) == {ROW.ledger_id}
    journal.record([replace(row, outcome=Outcome.PROOF_FAILED, at=row.at + 1)])
    assert released_ledgers(journal, "sandbox") == {}


def test_a_failed_proof_stands_until_the_same_copy_is_proven_or_taken_back(journal) -> None:
    detail = json.dumps({"uuid": str(UUIDS[0]), "bucket": "b"})
    row = replace(ROW, action=Action.RELEASE, phase="release", outcome=Outcome.PROOF_FAILED, detail=detail)
    journal.record([row, replace(row, ledger_id=2), replace(row, ledger_id=3, detail="{}")])
    journal.record(
        [replace(row, ledger_id=2, action=Action.OFFLOAD, outcome=Outcome.VERIFIED, at=row.at + 1, run_id="later")]
    )
    other = json.dumps({**PROOF, "uuid": str(UUIDS[1])})
    whole = replace(row, action=Action.OFFLOAD, outcome=Outcome.VERIFIED)
    journal.record([replace(whole, detail=other, at=row.at + 1), replace(whole, at=row.at - 1)])
    journal.record([replace(whole, at=row.at + 1)])  # of an executor whose clock is ahead: the run proves none again
    assert failed_proofs(journal, "sandbox") == {(ROW.ledger_id, UUIDS[0]): row}
    assert failed_proofs(journal, "another") == {}
    journal.record([replace(whole, outcome=Outcome.REVERTED, at=row.at + 2)])
    assert failed_proofs(journal, "sandbox") == {}
    journal.record([replace(row, at=row.at + 3)])
    assert list(failed_proofs(journal, "sandbox")) == [(ROW.ledger_id, UUIDS[0])]


def test_attempts_that_our_own_runs_began_and_when_they_were_last_spoken_of(journal):
    ours, verified_only, cut = (UUID(int=n) for n in (1, 2, 3))
    row = replace(ROW, action="offload", phase="offload", outcome="prepared", ledger_id=7)

    def of(uuid, **others):
        return replace(row, detail=json.dumps({"uuid": str(uuid)}), **others)

    journal.record([of(ours, at=NOON + 5, outcome="attempt-aborted"), of(ours), of(verified_only, outcome="verified")])
    journal.record([of(cut, cluster="neighbour"), replace(row, detail="{"), of(UUID(int=4), ledger_id=8)])
    assert begun_attempts(journal, row.cluster, [7, 9]) == {ours: Begun(row.topic, NOON + 5)}
    assert begun_attempts(journal, row.cluster, []) == {}


def test_copies_of_a_plan_that_were_sent(journal):
    row = replace(ROW, action="delete-offload-ledger", phase="send", outcome="sent", plan_id="p")

    def of(number, **others):
        return replace(row, detail=json.dumps({"message": "00", "uuid": str(UUID(int=number))}), **others)

    journal.record([of(1), of(2, outcome="send-failed"), of(3, plan_id="other"), of(4, action="delete-ledger")])
    assert sent_copies(journal, "p") == {UUID(int=1)}
