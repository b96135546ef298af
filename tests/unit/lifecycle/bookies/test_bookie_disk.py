from dataclasses import replace

import pyarrow as pa
import pytest

from pulsar_lifecycle.errors import AccessDenied, NotFound, StoreError, Unavailable
from pulsar_lifecycle.formats.bookie_status import Compaction, LedgerDirectory
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import BOOKIE_DISK, DEFAULTS, DiskVerdict, judge
from pulsar_lifecycle.lifecycle.bookies.placement import Placed, Placement
from tests.kit.fakes.bookie_admin import IDLE, status

GB = 1 << 30
PLACED = Placed(10 * GB, 100)


def directory(live_bytes=10 * GB, ledgers=100, usage=0.5, logs=10):
    return LedgerDirectory("/ledgers", logs, live_bytes, ledgers, usage)


UNCOLLECTED = replace(directory(0, 0, logs=0), collected=False)


def verdict(said, placed=PLACED, *, registered=True, read_only=False):
    (found,) = judge({"b": read_only} if registered else {}, {"b": said}, Placement({"b": placed}), 5)
    return found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, DiskVerdict.NOTHING_TO_FREE),
        ({"read_only": True}, DiskVerdict.READ_ONLY),
        ({"minor_suspended": True}, DiskVerdict.SUSPENDED),
        ({"major_suspended": True}, DiskVerdict.SUSPENDED),
        ({"directories": (directory(usage=0.91),)}, DiskVerdict.SUSPENDED),
        ({"directories": (directory(usage=0.2), directory(usage=0.91))}, DiskVerdict.SUSPENDED),
        ({"collecting": True}, DiskVerdict.COMPACTING),
        ({"compactions": (IDLE, replace(IDLE, minor=True))}, DiskVerdict.COMPACTING),
        ({"directories": None}, DiskVerdict.NO_METRICS),
        ({"directories": None, "free": 5 * GB}, DiskVerdict.SUSPENDED),
        ({"directories": (UNCOLLECTED,)}, DiskVerdict.NOT_COLLECTED),
        ({"directories": (directory(), UNCOLLECTED)}, DiskVerdict.NOT_COLLECTED),
        ({"directories": (UNCOLLECTED,), "collecting": True}, DiskVerdict.COMPACTING),
        ({"directories": (directory(ledgers=101),)}, DiskVerdict.WAITS_FOR_GC),
        ({"directories": (directory(logs=20),)}, DiskVerdict.WAITS_FOR_COMPACTION),
        ({"directories": (directory(logs=12),)}, DiskVerdict.NOTHING_TO_FREE),
        ({"directories": (directory(logs=11),)}, DiskVerdict.NOTHING_TO_FREE),
        ({"directories": (directory(9 * GB),)}, DiskVerdict.NOTHING_TO_FREE),
    ],
)
def test_what_a_bookie_waits_for(changes, expected):
    assert verdict(status("b", **changes)).verdict == expected


@pytest.mark.parametrize(
    ("storage", "named"),
    [
        ({}, "statsProviderClass"),
        ({"statsProviderClass": "Prometheus"}, "SortedLedgerStorage"),
        ({"statsProviderClass": "Prometheus", "ledgerStorageClass": "a.b.InterleavedLedgerStorage"}, "Interleaved"),
        ({"statsProviderClass": "Prometheus", "ledgerStorageClass": "a.b.DbLedgerStorage"}, "does a proxy answer?"),
    ],
)
def test_a_bookie_without_metrics_of_its_directories_is_told_what_to_set(storage, named):
    assert named in verdict(status("b", directories=None, configuration=storage)).detail


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotFound("no HTTP server"), DiskVerdict.NO_HTTP_SERVER),
        (AccessDenied("403"), DiskVerdict.DENIED),
        (Unavailable("timed out"), DiskVerdict.UNANSWERED),
        (StoreError("no JSON"), DiskVerdict.UNANSWERED),
    ],
)
def test_a_bookie_that_does_not_answer_is_named_and_nothing_is_guessed(error, expected):
    found = verdict(error)
    assert found.verdict == expected
    assert not found.verdict.known
    row = found.row()
    assert (row["total"], row["bytes_to_collect"], row["bytes_to_compact"]) == (None, None, None)
    assert row["bytes_placed"] == 10 * GB


def test_a_read_only_bookie_that_does_not_answer_is_read_only():
    """ZooKeeper says so, whatever its HTTP server lets be known."""
    found = verdict(NotFound("no HTTP server"), read_only=True)
    assert found.verdict == DiskVerdict.READ_ONLY
    assert found.detail == "registered as read-only; no_http_server: no HTTP server"
    assert found.bytes_to_collect is found.bytes_to_compact is found.row()["free"] is None


@pytest.mark.parametrize(
    ("placed", "named"),
    [(Placed(1, 3, 1), "metadata places 2 closed ones there now"), (Placed(0, 3, 3), ""), (Placed(), "")],
)
def test_a_bookie_whose_disks_were_replaced_is_not_just_empty(placed, named):
    found = verdict(status("b", free=100 * GB, directories=(directory(0, 0, 0.0, 0),)), placed)
    assert found.verdict == DiskVerdict.NOTHING_TO_FREE
    assert named in found.detail
    assert bool(named) == bool(found.detail)


@pytest.mark.parametrize(("files", "named"), [(12, ""), (14, "3 of its entry logs are newer than its last collection")])
def test_entry_logs_that_no_collection_has_looked_at_are_not_passed_over(files, named):
    found = verdict(status("b", entry_log_ids=tuple(range(files))))
    assert found.verdict == DiskVerdict.NOTHING_TO_FREE
    assert named in found.detail
    assert bool(named) == bool(found.detail)


def test_a_bookie_that_metadata_names_and_that_is_not_registered():
    assert verdict(NotFound("gone"), registered=False).verdict == DiskVerdict.NOT_REGISTERED


def test_one_that_is_registered_as_read_only_is_read_only_whatever_it_says():
    assert verdict(status("b"), read_only=True).verdict == DiskVerdict.READ_ONLY


def test_a_full_bookie_says_what_it_waits_for_as_well():
    found = verdict(status("b", read_only=True, directories=(directory(ledgers=103, usage=0.97),)))
    assert found.verdict == DiskVerdict.READ_ONLY
    assert "97.0%" in found.detail
    assert "waits_for_gc: 3 ledgers" in found.detail
    assert "an operator" not in found.detail


def test_a_read_only_bookie_with_room_says_that_its_disk_is_not_why():
    found = verdict(status("b", read_only=True, directories=(directory(usage=0.5),)))
    assert "an operator made it so, or a disk was fuller" in found.detail


@pytest.mark.parametrize(
    ("usage", "by"), [(0.97, "by itself as its disk is full, or over the HTTP API"), (0.5, "over the HTTP API")]
)
def test_a_read_only_bookie_says_that_compaction_is_suspended_and_by_whom(usage, by):
    """Of a full disk a bookie suspends both by itself, and says so as if an operator had."""
    said = status("b", read_only=True, major_suspended=True, directories=(directory(logs=20, usage=usage),))
    assert f"suspended: major compaction, {by}; waits_for_compaction" in verdict(said).detail


def test_a_disk_that_a_bookie_has_not_looked_at_yet_is_as_full_as_all_of_them():
    found = verdict(status("b", read_only=True, free=3 * GB, directories=(directory(usage=0.0),)))
    assert "its fullest disk is at 97.0%" in found.detail
    assert found.row()["fullest"] == 0.97


def test_a_registered_bookie_without_ledgers_has_a_row_too():
    (found,) = judge({"b": False}, {"b": status("b", directories=(directory(0, 0, logs=0),))}, Placement({}), 5)
    assert (found.verdict, found.placed) == (DiskVerdict.NOTHING_TO_FREE, Placed())


def test_what_waits_for_a_collection_and_for_a_compaction():
    found = verdict(status("b", directories=(directory(10 * GB, logs=15), directory(5 * GB, logs=10))))
    assert (found.live_bytes, found.log_bytes) == (15 * GB, 25 * GB)
    assert found.bytes_to_collect == 5 * GB  # 10 GiB are placed
    assert found.bytes_to_compact == 10 * GB


def test_what_entry_logs_held_before_a_bookies_start_is_not_known_until_it_has_collected():
    found = verdict(status("b", directories=(UNCOLLECTED,), entry_log_ids=tuple(range(31))))
    assert (found.live_bytes, found.bytes_to_collect, found.bytes_to_compact) == (None, None, None)
    assert not found.verdict.known
    row = found.row()
    assert (row["entry_logs"], row["log_bytes"], row["ledgers_stored"]) == (30, 30 * GB, None)
    assert row["directories"] == [{"path": "/ledgers", "usage": 0.5}]
    assert pa.Table.from_pylist([row], BOOKIE_DISK).num_rows == 1


def test_entry_logs_that_a_compaction_has_deleted_since_the_collection_take_nothing():
    found = verdict(status("b", directories=(directory(logs=30),), entry_log_ids=tuple(range(11))))
    assert (found.row()["entry_logs"], found.log_bytes, found.bytes_to_compact) == (10, 10 * GB, 0)
    assert found.verdict is DiskVerdict.NOTHING_TO_FREE


def test_entry_logs_take_no_more_than_what_is_used():
    assert verdict(status("b", directories=(directory(logs=90),))).log_bytes == 50 * GB


def test_logs_that_hold_more_than_they_could_were_closed_by_a_larger_limit():
    said = status("b", directories=(directory(30 * GB, logs=40),), configuration={"logSizeLimit": str(GB // 2)})
    found = verdict(said, Placed(30 * GB, 100))
    assert (found.log_bytes, found.bytes_to_compact) == (40 * GB, 10 * GB)
    assert found.verdict is DiskVerdict.WAITS_FOR_COMPACTION
    assert "75% of its entry logs is live, or more" in found.detail


def test_a_bookie_that_holds_much_less_than_metadata_places_there_says_so():
    found = verdict(status("b", directories=(directory(2 * GB, ledgers=9, logs=2),)), Placed(15 * GB, 100))
    assert (found.verdict, "2 GiB" in found.detail, "15 GiB" in found.detail) == (
        DiskVerdict.NOTHING_TO_FREE,
        True,
        True,
    )
    assert not verdict(status("b", directories=(directory(3 * GB, ledgers=9, logs=3),)), Placed(15 * GB, 100)).detail


def test_settings_that_a_bookie_does_not_have_are_bookkeepers_defaults():
    said = status("b", directories=(directory(logs=20),), configuration={"majorCompactionThreshold": "0.3"})
    assert verdict(said).verdict == DiskVerdict.NOTHING_TO_FREE
    assert verdict(replace(said, configuration={"logSizeLimit": "much"})).verdict == DiskVerdict.WAITS_FOR_COMPACTION
    assert float(DEFAULTS["majorCompactionThreshold"]) == 0.8


def test_rows_fit_their_table():
    rows = [verdict(status("b")).row(), verdict(Unavailable("no")).row()]
    assert pa.Table.from_pylist(rows, BOOKIE_DISK).num_rows == 2


def test_a_running_compaction_is_one_of_three_kinds():
    assert [Compaction(*kind, 0, 0, 0, 0).running for kind in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0))] == [
        1, 1, 1, 0,
    ]  # fmt: skip
