"""Packs of the journal: each row is read once, from a pack or from its object, whatever is left of either."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.io.lake import packs
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.ports import Counting
from pulsar_lifecycle.values import tables
from tests.kit.builders import NODE, NOON, ROW

DAY, YESTERDAY = "date=2025-10-09", "date=2025-10-08"
ALL = [0, 1, 2, 3]


@pytest.fixture
def lake(tmp_path, monkeypatch) -> Path:
    """Four objects of a row each: as many as are packed at once."""
    monkeypatch.setattr(packs, "TODAY", 4)
    _record(tmp_path, *ALL)
    return tmp_path


def _record(lake, *ledgers, **changes):
    for i in ledgers:
        FileJournal(str(lake)).record([replace(ROW, ledger_id=i, **changes)])


def _found(lake, condition=None):
    """Ledgers of the journal's rows."""
    return sorted(FileJournal(str(lake)).find(condition, ["ledger_id"]).column(0).to_pylist())


def _packs(lake, day=DAY):
    return sorted((lake / "packed" / "journal" / day).glob("*.parquet"))


def _spoil(files):
    for file in files:
        file.write_bytes(b"nobody opens it")


def test_objects_are_packed_once_they_are_many_and_not_opened_again(lake):
    whole = FileJournal(str(lake)).find().sort_by("ledger_id")
    (pack,) = _packs(lake)
    objects = sorted((lake / "journal" / DAY).iterdir())
    assert len(objects) == 4  # they stay
    _spoil(objects)
    _record(lake, 4)
    assert _found(lake) == [*ALL, 4]
    assert _found(lake, pc.field("date") == "2025-10-09") == [*ALL, 4]
    assert _found(lake, pc.field("ledger_id") > 2) == [3, 4]
    assert FileJournal(str(lake)).find(pc.field("ledger_id") < 4).sort_by("ledger_id").equals(whole)
    assert _packs(lake) == [pack]
    _record(lake, 5, 6, 7)
    assert [_found(lake), _found(lake)] == [[*ALL, 4, 5, 6, 7]] * 2
    assert len(_packs(lake)) == 2


def test_the_objects_alone_count(lake):
    """A pack that lacks one, or names one that is gone, says nothing of the others."""
    _found(lake)
    (pack,) = _packs(lake)
    objects = list((lake / "journal" / DAY).iterdir())
    gone = pq.read_table(objects[0], partitioning=None).column("ledger_id")[0].as_py()
    objects[0].unlink()
    left = [i for i in ALL if i != gone]
    assert _found(lake) == left
    pack.unlink()
    assert _found(lake) == left
    shutil.rmtree(lake / "journal")
    assert _found(lake) == []


@pytest.mark.parametrize("left", [b"", b"half a file", slice(0, -100)])
def test_a_broken_pack_is_not_needed_and_is_made_anew(lake, left):
    _found(lake)
    (pack,) = _packs(lake)
    pack.write_bytes(pack.read_bytes()[left] if isinstance(left, slice) else left)
    assert _found(lake) == ALL
    _spoil((lake / "journal" / DAY).iterdir())
    assert _found(lake) == ALL


def test_where_packs_may_not_be_looked_for_the_objects_are_read(lake):
    (lake / "packed" / "journal").parent.mkdir()
    (lake / "packed" / "journal").write_bytes(b"no folder")
    assert _found(lake) == ALL


def test_a_full_disk_keeps_nothing_of_what_was_not_written_whole(lake, monkeypatch):
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert _found(lake) == ALL
    with pytest.raises(StoreError):
        _record(lake, 4)
    assert not [path for path in lake.rglob("*") if path.name.startswith(".")]


def test_a_pack_whose_rows_cannot_be_read_is_not_needed(lake):
    _found(lake)
    (pack,) = _packs(lake)
    data = bytearray(pack.read_bytes())
    data[4:400] = b"\xff" * 396
    pack.write_bytes(data)
    assert _found(lake) == ALL


def test_packs_that_share_objects_count_once(lake, monkeypatch):
    """As of two that read at the same moment, of which one sees an object more."""
    _found(lake)
    kept = _packs(lake)[0].read_bytes()
    shutil.rmtree(lake / "packed")
    _record(lake, 4)
    _found(lake)
    _packs(lake)[0].with_name("another.parquet").write_bytes(kept)
    assert len(_packs(lake)) == 2
    _spoil((lake / "journal" / DAY).iterdir())
    assert _found(lake) == [*ALL, 4]


def test_a_pack_of_a_version_with_other_columns_is_not_read(lake, monkeypatch):
    with monkeypatch.context() as older:
        fields = [field for field in tables.JOURNAL if field.name != "code"]
        older.setattr(tables, "JOURNAL", pa.schema(fields))
        assert _found(lake) == ALL
    (old,) = _packs(lake)
    _record(lake, 4, code="twin")
    assert FileJournal(str(lake)).find(pc.field("code") == "twin").num_rows == 1
    assert _found(lake) == [*ALL, 4]
    assert len(_packs(lake)) == 2
    assert old in _packs(lake)


def test_a_lake_that_may_only_be_read_is_read(lake):
    (lake / "packed").write_text("in the way")
    assert [_found(lake), _found(lake)] == [ALL, ALL]


def test_large_objects_are_not_packed(lake, monkeypatch):
    monkeypatch.setattr(packs, "SMALL", 10)
    assert _found(lake) == ALL
    assert not (lake / "packed").exists()


def test_an_object_that_cannot_be_read_is_an_error_also_where_it_would_be_packed(lake):
    _spoil(list((lake / "journal" / DAY).iterdir())[:1])
    with pytest.raises(StoreError, match="cannot be read"):
        _found(lake)
    assert not (lake / "packed").exists()


def test_earlier_days_are_packed_sooner_and_only_where_they_are_asked_for(lake, monkeypatch):
    monkeypatch.setattr(packs, "EARLIER", 2)
    monkeypatch.setattr(packs, "AT_MOST", 2)
    _record(lake, 10, 11, 12, at=NOON - 86_400_000)
    assert _found(lake, pc.field("date") >= "2025-10-09") == ALL
    assert (len(_packs(lake)), len(_packs(lake, YESTERDAY))) == (2, 0)
    assert _found(lake, pc.field("date") < "2025-10-09") == [10, 11, 12]
    assert len(_packs(lake, YESTERDAY)) == 2
    _spoil((lake / "journal" / YESTERDAY).iterdir())
    assert _found(lake) == [*ALL, 10, 11, 12]


def test_the_archive_is_packed_by_itself(lake):
    for i in ALL:
        FileJournal(str(lake)).archive([replace(NODE, ledger_id=i)])
    journal = FileJournal(str(lake))
    whole = journal.find_archived().sort_by("ledger_id")
    for folder in (lake / "archive").iterdir():
        _spoil(folder.iterdir())
    assert journal.find_archived().sort_by("ledger_id").equals(whole)
    assert whole.column("data").to_pylist() == [NODE.data] * 4
    assert _found(lake) == ALL


def test_what_is_packed_is_counted_without_its_objects_and_without_a_pack_that_is_broken(lake, monkeypatch):
    journal, small = FileJournal(str(lake)), pa.schema([tables.JOURNAL.field("ledger_id")])
    each = Counting(small, ("ledger_id",), lambda rows: rows.select(["ledger_id"]), pa.concat_tables)
    assert _found(lake) == ALL
    objects = sorted((lake / "journal" / DAY).iterdir())
    kept = [path.read_bytes() for path in objects]
    _spoil(objects)
    _record(lake, 4)
    assert sorted(journal.counted(each, NOON).column(0).to_pylist()) == [*ALL, 4]
    _spoil(_packs(lake))
    with pytest.raises(StoreError):
        journal.counted(each, NOON)
    for path, data in zip(objects, kept, strict=True):
        path.write_bytes(data)
    assert sorted(journal.counted(each, NOON).column(0).to_pylist()) == [*ALL, 4]
    (pack,) = _packs(lake)
    monkeypatch.setattr(packs, "paths_of", lambda *_: [str(pack)])  # whose footer could be read
    assert sorted(journal.counted(each, NOON).column(0).to_pylist()) == [*ALL, 4]
