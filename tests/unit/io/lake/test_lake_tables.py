"""A scan's tables in the lake: parts that are published, rows that are found, and the list of offload UUIDs."""

import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pulsar_lifecycle.errors import CorruptFormat, NotFound
from pulsar_lifecycle.io.lake.artefacts import OFFLOAD_UUIDS, FileLake, OffloadUuidsOf
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.values.tables import MANAGED_LEDGERS

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def write(lake: Lake, *numbers: int) -> str:
    rows = [{"n": n, "text": None if n % 2 else str(n)} for n in numbers]
    return lake.write_part("e1", "t", SCHEMA, [pa.RecordBatch.from_pylist([row], SCHEMA) for row in rows])


def stored(lake: Lake) -> list[int]:
    return [n for b in lake.batches(lake.parts("e1", "t"), ["n"]) for n in b.column("n").to_pylist()]


def test_a_part_is_seen_once_it_is_published_and_not_before(lake: Lake) -> None:
    parts = [write(lake, 1, 2), write(lake), write(lake, 3)]
    with suppress(NotFound):
        assert stored(lake) == []
    lake.publish("e1", "t", parts)
    assert stored(lake) == [1, 2, 3]
    assert lake.read_epoch_table("e1", "t").column("n").to_pylist() == [1, 2, 3]
    assert len(lake.parts("e1", "t")) == 3


def test_publishing_replaces_the_table_and_drops_what_no_task_answered_for(lake: Lake) -> None:
    lake.publish("e1", "t", [write(lake, 1), write(lake, 2)])
    parts = [write(lake, 3), write(lake, 3)]
    lake.publish("e1", "t", parts[:1])
    late = write(lake, 3)
    assert stored(lake) == [3]
    assert lake.read_epoch_table("e1", "t").num_rows == 1
    lake.publish("e1", "t", [late])
    assert stored(lake) == [3]


def test_a_table_without_rows_is_a_table(lake: Lake) -> None:
    lake.publish("e1", "t", [write(lake)])
    assert stored(lake) == []
    assert lake.read_epoch_table("e1", "t").schema == SCHEMA


def test_batches_are_filtered_and_never_empty(lake: Lake) -> None:
    lake.publish("e1", "t", [write(lake, *range(10))])
    found = list(lake.batches(lake.parts("e1", "t"), ["n"], pc.field("text").is_valid() & (pc.field("n") > 2)))
    assert [b.column("n").to_pylist() for b in found] == [[4, 6, 8]]


def test_a_table_that_is_not_there_is_not_found(lake: Lake) -> None:
    with pytest.raises(NotFound, match="no table t"):
        lake.parts("e1", "t")


def keep_uuids(lake: Lake, table: str, *uuids: list[str] | None) -> None:
    rows = [{"path": f"/{number}", "offload_uuids": some} for number, some in enumerate(uuids)]
    batches = pa.Table.from_pylist(rows, MANAGED_LEDGERS).to_batches()
    lake.publish("e1", table, [lake.write_part("e1", table, MANAGED_LEDGERS, batches)])


def test_the_offload_uuids_of_every_root_are_found_again_and_no_others(lake: Lake) -> None:
    ours, theirs, strange = ([uuid4() for _ in range(50)] for _ in range(3))
    for table, uuids in (("managed_ledgers", ours), ("managed_ledgers@west", theirs)):
        keep_uuids(lake, table, [str(u) for u in uuids], None)
    lake.store_offload_uuids("e1", ["managed_ledgers", "managed_ledgers@west"])
    found = lake.named_uuids("e1")
    assert found.named(ours + theirs + strange) == {*ours, *theirs}
    assert found.named([]) == set()
    assert len(lake.offload_uuids("e1")) == 100


def test_what_goes_to_a_task_of_the_offload_uuids_is_their_name(files: FileLake) -> None:
    known = uuid4()
    keep_uuids(files, "managed_ledgers", [str(known)])
    files.store_offload_uuids("e1", ["managed_ledgers"])
    found = pickle.loads(pickle.dumps(OffloadUuidsOf(files.location, "e1")))
    assert found.named([known, uuid4()]) == {known}


def test_no_offload_uuids_are_an_empty_list_and_no_list_is_an_error(lake: Lake) -> None:
    keep_uuids(lake, "managed_ledgers", None)
    lake.store_offload_uuids("e1", ["managed_ledgers"])
    assert lake.offload_uuids("e1").named([uuid4()]) == set()
    with pytest.raises(NotFound):
        lake.offload_uuids("e2")
    with pytest.raises(NotFound):
        lake.store_offload_uuids("e2", ["managed_ledgers"])


def test_the_rows_of_one_ledger_are_found(lake: Lake) -> None:
    schema = pa.schema([("ledger_id", pa.int64()), ("text", pa.string())])
    rows = pa.Table.from_pylist([{"ledger_id": n % 3, "text": str(n)} for n in range(9)], schema).to_batches()
    lake.publish("e1", "t", [lake.write_part("e1", "t", schema, rows), lake.write_part("e1", "t", schema, rows)])
    found = lake.read_epoch_table("e1", "t", columns=["text"], ledger_id=2)
    assert sorted(found.column("text").to_pylist()) == ["2", "2", "5", "5", "8", "8"]
    assert lake.read_epoch_table("e1", "t", ledger_id=9).num_rows == 0
    with pytest.raises(NotFound):
        lake.read_epoch_table("e1", "none")


@pytest.mark.parametrize("damage", [lambda data: data[:-8], lambda data: data[:5], lambda data: data + b"x" * 8])
def test_a_list_of_offload_uuids_that_is_not_whole_is_an_error(
    files: FileLake, damage: Callable[[bytes], bytes]
) -> None:
    folder = Path(files.location) / "epochs" / "e1" / "managed_ledgers"
    folder.mkdir(parents=True)
    rows = [{"path": "/x", "offload_uuids": [str(uuid4()) for _ in range(3)]}]
    pq.write_table(pa.Table.from_pylist(rows, MANAGED_LEDGERS), folder / "part-0.parquet")
    files.store_offload_uuids("e1", ["managed_ledgers"])
    file = folder.parent / OFFLOAD_UUIDS
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(CorruptFormat):
        files.offload_uuids("e1")
