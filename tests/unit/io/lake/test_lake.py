"""The lake keeps epochs and plans whole, shows no unfinished ones, and forgets old epochs by rule."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.errors import ConfigError, CorruptFormat, NotFound
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.values.epoch import DAY_MS, Census, Epoch, last_covered
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.gaps import Gap
from pulsar_lifecycle.values.known_words import KnownWord
from pulsar_lifecycle.values.plans.collection_plan import COLLECTIONS
from pulsar_lifecycle.values.plans.delayed_index_plan import REPAIRS
from pulsar_lifecycle.values.plans.delete_records_plan import RECORDS
from pulsar_lifecycle.values.plans.deletion_plan import PLAN
from pulsar_lifecycle.values.plans.inactive_plan import INACTIVE_TOPICS
from pulsar_lifecycle.values.plans.load_plan import TOPICS_TO_LOAD
from pulsar_lifecycle.values.plans.offload_plan import CANDIDATES, OffloadPlan
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.plans.retention_plan import EXPIRED_LEDGERS
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.values.store_history import UNKNOWN, StoreCounters
from pulsar_lifecycle.values.tables import OBJECTS
from pulsar_lifecycle.words import WordKind
from tests.kit.builders import A_GAP
from tests.kit.refused import refused_by

NOW = 100 * DAY_MS


def epoch(epoch_id: str, started_at: int, gaps: tuple[Gap, ...] = ()) -> Epoch:
    return Epoch(
        epoch_id, "c", "fp", started_at, started_at + 1, (Census("schemas", "", 1, 1, 0, 0),), 9, 9, (), gaps=gaps
    )


def finish(lake: Lake, one: Epoch) -> None:
    lake.begin_epoch(one.epoch_id, one.started_at, "run")
    lake.store_epoch(
        one,
        Referenced(BitMap64([1]), BitMap64([2])),
        Context(now=one.started_at, grace=1, namespaces=frozenset({"t/n"})),
    )


def test_an_epoch_reads_back_as_stored(lake: Lake) -> None:
    one = epoch("e1", NOW)
    finish(lake, one)
    assert lake.epochs() == [one]
    assert lake.referenced("e1") == Referenced(BitMap64([1]), BitMap64([2]))
    assert lake.context("e1").namespaces == {"t/n"}


def test_an_unfinished_epoch_is_not_seen_but_is_open(lake: Lake) -> None:
    lake.begin_epoch("e1", NOW, "run-1")
    lake.begin_epoch("e2", NOW + 5, "run-2")
    assert lake.epochs() == []
    assert lake.open_epoch("run-1") == ("e1", NOW)
    assert lake.open_epoch("another run") == ("e2", NOW + 5)


def test_a_scan_of_a_clock_that_was_ahead_is_not_the_newest_once_it_is_set_aside(lake: Lake) -> None:
    """Else whoever launches a job by hand goes by it, in vain, until its date is reached."""
    ahead = epoch("e8", NOW + DAY_MS)
    finish(lake, ahead)
    lake.begin_epoch("e9", NOW + 2 * DAY_MS, "under way")
    lake.set_scans_aside("c", NOW, "the clock was ahead")
    with pytest.raises(NotFound):
        lake.open_epoch("another run")
    lake.begin_epoch("e1", NOW + 5, "run-1")
    assert lake.open_epoch("another run") == lake.open_epoch("") == ("e1", NOW + 5)
    assert lake.open_epoch("under way") == ("e9", NOW + 2 * DAY_MS)
    finish(lake, epoch("e9", NOW + 2 * DAY_MS))
    assert lake.epochs() == []


def test_without_a_scan_there_is_no_open_epoch(lake: Lake) -> None:
    with pytest.raises(NotFound, match="bookkeeper_ledgers"):
        lake.open_epoch("run")


def test_epochs_of_another_cluster_are_left_out(lake: Lake) -> None:
    finish(lake, epoch("e1", NOW))
    assert lake.epochs("other") == []


def test_a_census_reads_back(lake: Lake) -> None:
    one = Census("topics", "", 3, 2, 1, 0, corrupt=("/a",), unread=(("/b", "no"),))
    lake.store_census("e1", one)
    assert lake.census("e1") == [one]


def test_a_plan_reads_back_with_its_rows(lake: Lake) -> None:
    summary = PlanSummary("p1", "c", "fp", "e2", "e1", NOW, True, (), 0, 0, 0, 10, "digest")
    lake.store_plan(summary, PLAN.empty_table())
    found, rows = lake.plan("p1")
    assert found == summary
    assert rows.schema == pa.schema(PLAN)
    assert lake.plans() == [summary]


@pytest.mark.parametrize("plan_id", ["", "../epochs", "p2", ".hidden", "a/b"])
def test_a_plan_that_is_not_there_is_not_found(lake: Lake, plan_id: str) -> None:
    with pytest.raises(NotFound, match="no plan"):
        lake.plan(plan_id)


SHAPES = [b"[]", b"5", b"{}", b"\xff", b"{", b'{"created_at": "x", "started_at": "x", "until": "x"}']


@pytest.mark.parametrize("shape", SHAPES)
def test_a_plan_of_another_shape_names_its_file_and_hides_no_other(files: FileLake, shape: bytes) -> None:
    summary = PlanSummary("p1", "c", "fp", "e2", "e1", NOW, True, (), 0, 0, 0, 10, "digest")
    for plan_id in ("p1", "p2"):
        files.store_plan(replace(summary, plan_id=plan_id), PLAN.empty_table())
    broken = Path(files.location) / "plans" / "p2" / "plan.json"
    broken.write_bytes(shape)
    assert files.plans() == [summary]
    (error,) = files.broken_plans()
    assert str(broken) in str(error)
    with pytest.raises(CorruptFormat, match=r"p2/plan\.json"):
        files.plan("p2")


def test_a_retention_or_load_plan_of_another_shape_hides_no_other(files: FileLake) -> None:
    summary = PlanSummary("p1", "c", "fp", "e2", "", NOW, True, (), 0, 0, 0, 10, "digest")
    for plan_id in ("p1", "p2"):
        files.store_retention_plan(replace(summary, plan_id=plan_id), EXPIRED_LEDGERS.empty_table())
        files.store_load_plan(replace(summary, plan_id=plan_id), TOPICS_TO_LOAD.empty_table())
    broken = [Path(files.location) / kind / "p2" / "plan.json" for kind in ("retention-plans", "load-plans")]
    for file in broken:
        file.write_bytes(b"{}")
    assert files.retention_plans() == files.load_plans() == [summary]
    assert all(str(file) in str(error) for file, error in zip(broken, files.broken_plans(), strict=True))


@pytest.mark.parametrize("value", [b'"soon"', b"null", b"[1]"])
def test_a_plan_with_one_wrong_field_names_it(files: FileLake, value: bytes) -> None:
    summary = PlanSummary("p1", "c", "fp", "e2", "e1", NOW, True, (), 0, 0, 0, 10, "digest")
    files.store_plan(summary, PLAN.empty_table())
    file = Path(files.location) / "plans" / "p1" / "plan.json"
    file.write_bytes(file.read_bytes().replace(str(NOW).encode(), value))
    with pytest.raises(CorruptFormat, match="created_at"):
        files.plan("p1")


def test_rows_that_are_no_plans_rows_name_their_file(files: FileLake) -> None:
    files.store_plan(PlanSummary("p1", "c", "fp", "e2", "e1", NOW, True, (), 0, 0, 0, 10, "d"), PLAN.empty_table())
    rows = Path(files.location) / "plans" / "p1" / "rows.parquet"
    other = pa.table({"n": [1]})
    for write_rows in (lambda: rows.write_bytes(b"garbage"), lambda: pq.write_table(other, rows)):
        write_rows()
        with pytest.raises(CorruptFormat, match=r"p1/rows\.parquet"):
            files.plan("p1")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["epoch.json", "started.json", "context.json", "referenced.bin"])
def test_an_epoch_of_another_shape_names_its_file(files: FileLake, name: str, shape: bytes) -> None:
    finish(files, epoch("e1", NOW))
    (Path(files.location) / "epochs" / "e1" / name).write_bytes(shape)
    reads: dict[str, Callable[[], object]] = {
        "epoch.json": files.epochs,
        "started.json": lambda: files.open_epoch(""),
        "context.json": lambda: files.context("e1"),
        "referenced.bin": lambda: files.referenced("e1"),
    }
    with pytest.raises(CorruptFormat, match=f"e1/{name}"):
        reads[name]()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_note_of_scans_set_aside_of_another_shape_names_its_file(files: FileLake, shape: bytes) -> None:
    finish(files, epoch("e1", NOW))
    files.set_scans_aside("c", 0, "")
    (Path(files.location) / "set-aside" / "c.json").write_bytes(shape)
    with pytest.raises(CorruptFormat, match=r"set-aside/c\.json"):
        files.epochs()


@pytest.mark.parametrize("location", ["foo://x", "relative"])
def test_a_location_that_cannot_be_opened_names_the_setting(location: str) -> None:
    with pytest.raises(ConfigError, match=r"lake\.path"):
        FileLake(location)


def test_old_epochs_go_but_the_last_covered_one_of_each_day_stays(lake: Lake) -> None:
    finish(lake, epoch("recent", NOW - DAY_MS))
    finish(lake, epoch("morning", NOW - 5 * DAY_MS))
    finish(lake, epoch("evening", NOW - 5 * DAY_MS + 1000))
    finish(lake, epoch("gappy", NOW - 6 * DAY_MS, ("something",)))
    finish(lake, epoch("ancient", NOW - 40 * DAY_MS))
    lake.begin_epoch("abandoned", NOW - 3 * DAY_MS, "run")
    lake.begin_epoch("running", NOW - 1, "run")
    assert lake.prune(NOW) == ["abandoned", "ancient", "gappy", "morning"]
    assert [e.epoch_id for e in lake.epochs()] == ["evening", "recent"]
    assert lake.open_epoch("")[0] in ("recent", "running")


def test_an_epoch_knows_its_run_its_cluster_and_whether_it_is_finished(lake: Lake) -> None:
    counters = StoreCounters("fp", 7, 3, (2, 1))
    lake.begin_epoch("e1", NOW, "run-1", counters)
    assert (lake.begun_by("e1"), lake.began_at("e1"), lake.finished("e1")) == ("run-1", counters, False)
    assert (lake.begun_by("none"), lake.began_at("none"), lake.finished("none")) == ("", None, False)
    finish(lake, epoch("e2", NOW))
    assert lake.finished("e2")


def test_a_scan_that_an_earlier_version_began_knows_its_cluster(files: FileLake) -> None:
    began = {"epoch_id": "e1", "started_at": NOW, "run_id": "run-1", "fingerprint": "fp"}
    folder = Path(files.location) / "epochs" / "e1"
    folder.mkdir(parents=True)
    (folder / "started.json").write_text(json.dumps(began))

    assert files.began_at("e1") == StoreCounters("fp", UNKNOWN)


def test_a_table_that_is_written_again_counts_as_not_read_until_then(lake: Lake) -> None:
    """Else a rewrite that died half-way would be vouched for by the count of the one before."""
    one, other = Census("managed_ledgers", "", 1, 1, 0, 0), Census("managed_ledgers", "west", 1, 1, 0, 0)
    lake.store_census("e1", one)
    lake.store_census("e1", other)
    lake.forget_census("e1", "managed_ledgers", "")
    lake.forget_census("e1", "schemas", "")
    assert lake.census("e1") == [other]


def test_scans_set_aside_count_as_not_made(lake: Lake) -> None:
    old, other = epoch("e1", NOW), replace(epoch("e2", NOW), cluster="another")
    for one in (old, other):
        finish(lake, one)
    assert lake.set_aside_until("c") == -1
    lake.set_scans_aside("c", NOW, "restored from last night")
    assert lake.set_aside_until("c") == NOW
    assert lake.epochs() == [other]
    with pytest.raises(NotFound, match="accept-restore"):
        lake.epoch("e1")
    new = epoch("e3", NOW + 1)
    finish(lake, new)
    assert lake.epochs("fp") == [other, new]
    assert lake.epoch("e3") == new


def test_a_scan_of_a_wrong_clock_is_set_aside_with_the_others(lake: Lake) -> None:
    """And stays so when others are set aside later."""
    for one in (epoch("e1", NOW), epoch("e2", NOW + 30 * DAY_MS)):
        finish(lake, one)
    lake.set_scans_aside("c", NOW + 1, "our clock was a month ahead")
    assert lake.epochs() == []
    with pytest.raises(NotFound, match="accept-restore"):
        lake.epoch("e2")
    new = epoch("e3", NOW + 2)
    finish(lake, new)
    assert lake.epochs() == [new]
    lake.set_scans_aside("c", NOW + 3, "restored")
    assert lake.epochs() == []


def test_the_last_scan_stays_to_be_compared_with(lake: Lake) -> None:
    finish(lake, epoch("e1", NOW, (A_GAP,)))
    finish(lake, epoch("e2", NOW + 1, (A_GAP,)))
    assert lake.prune(NOW + 50 * DAY_MS) == ["e1"]


def test_the_last_covered_scan_stays_however_old_for_what_got_lost_since(lake: Lake) -> None:
    for name, at, gaps in (("e1", 0, ()), ("e2", 1, ()), ("e3", 2, (A_GAP,)), ("e4", 3, (A_GAP,))):
        finish(lake, epoch(name, NOW + at, gaps))
    assert lake.prune(NOW + 50 * DAY_MS) == ["e1", "e3"]
    last = last_covered(lake.epochs(cluster="c"), "fp")
    assert last is not None
    assert last.epoch_id == "e2"


def test_every_kind_of_plan_reads_back_by_itself_oldest_first(lake: Lake) -> None:
    new = PlanSummary("p1", "c", "fp", "e2", "e1", NOW + 1, True, (), 0, 0, 0, 10, "digest")
    old = replace(new, plan_id="p0", created_at=NOW)
    offload = OffloadPlan("p1", "c", "fp", "e2", NOW, True, (), (), 0, 0, 0, 0, 0, 0, 0, 0, "digest")
    for one in (new, old):
        lake.store_plan(one, PLAN.empty_table())
        lake.store_retention_plan(one, EXPIRED_LEDGERS.empty_table())
        lake.store_load_plan(one, TOPICS_TO_LOAD.empty_table())
        lake.store_inactive_plan(one, INACTIVE_TOPICS.empty_table())
    lake.store_object_plan(new, OBJECTS.empty_table())
    lake.store_collection_plan(new, COLLECTIONS.empty_table())
    lake.store_offload_plan(offload, CANDIDATES.empty_table())
    assert lake.plans() == lake.retention_plans() == lake.load_plans() == lake.inactive_plans() == [old, new]
    assert lake.offload_plans() == [offload]
    assert [lake.plan("p0")[0], lake.retention_plan("p0")[0], lake.object_plan("p1")[0]] == [old, old, new]
    assert lake.collection_plan("p1")[0] == new
    assert lake.collection_plan("p1")[1].schema == COLLECTIONS
    assert lake.offload_plan("p1")[0] == offload
    assert lake.retention_plan("p0")[1].schema == EXPIRED_LEDGERS
    assert lake.load_plan("p0")[0] == lake.inactive_plan("p0")[0] == old
    assert lake.load_plan("p0")[1].schema == TOPICS_TO_LOAD
    assert lake.broken_plans() == []
    for absent in (lake.object_plan, lake.collection_plan, lake.offload_plan):
        with pytest.raises(NotFound, match="no plan"):
            absent("p0")


def test_plans_that_were_stored_before_a_moment_are_left_out(lake: Lake) -> None:
    now = time.time_ns() // 10**6
    plan = PlanSummary("p1", "c", "fp", "e2", "e1", now, True, (), 0, 0, 0, 10, "digest")
    offload = OffloadPlan("p1", "c", "fp", "e2", now, True, (), (), 0, 0, 0, 0, 0, 0, 0, 0, "digest")
    assert lake.plans(now) == []
    lake.store_plan(plan, PLAN.empty_table())
    lake.store_retention_plan(plan, EXPIRED_LEDGERS.empty_table())
    lake.store_object_plan(plan, OBJECTS.empty_table())
    lake.store_collection_plan(plan, COLLECTIONS.empty_table())
    lake.store_repair_plan(plan, REPAIRS.empty_table())
    lake.store_delete_records_plan(plan, RECORDS.empty_table())
    lake.store_offload_plan(offload, CANDIDATES.empty_table())
    for plans in (
        lake.plans, lake.retention_plans, lake.object_plans, lake.collection_plans, lake.repair_plans,
        lake.delete_records_plans,
    ):  # fmt: skip
        assert plans(now - 60_000) == plans() == [plan]
        assert plans(now + 60_000) == []
    assert (lake.offload_plans(now - 60_000), lake.offload_plans(now + 60_000)) == ([offload], [])


def test_a_plan_of_an_earlier_version_is_refused(files: FileLake) -> None:
    plan = PlanSummary("p1", "c", "fp", "e2", "e1", NOW, True, (), 1, 0, 0, 10, "digest")
    text = pa.field("copies", pa.list_(pa.string()))
    as_text = pa.schema([text if one.name == "copies" else one for one in RECORDS])
    fewer = pa.schema([one for one in RECORDS if one.name != "czxid"])
    for stored in (as_text, fewer):
        files.store_delete_records_plan(plan, pa.Table.from_pylist([{"copies": []}], stored))
        with refused_by(RefusalCode.OLD_VERSION):
            files.delete_records_plan("p1")


def test_a_plan_says_which_ledgers_it_holds(lake: Lake) -> None:
    row = {name: 7 if name == "ledger_id" else None for name in PLAN.names}
    nullable = pa.schema([pa.field(one.name, one.type) for one in PLAN])
    summary = PlanSummary("p1", "c", "fp", "e2", "e1", NOW, True, (), 1, 0, 0, 10, "digest")
    lake.store_plan(summary, pa.Table.from_pylist([row], nullable))
    assert (lake.plan_holds("p1", 7), lake.plan_holds("p1", 8)) == (True, False)


def test_words_are_kept_by_cluster(lake: Lake) -> None:
    word = KnownWord(WordKind.LEGAL_HOLD, "acme", "mary", "case 12", "", 1_000)
    assert lake.words("c") == []
    lake.store_words("c", [word])
    assert (lake.words("c"), lake.words("other")) == ([word], [])


def test_a_restore_that_was_accepted_says_by_whom_and_why(lake: Lake) -> None:
    assert lake.accepted_restore("c") is None
    lake.set_scans_aside("c", NOW, "backup of 02:00", "mary")
    word = lake.accepted_restore("c")
    assert word is not None
    assert (word.kind, word.by, word.why, word.since) == (WordKind.ACCEPTED_RESTORE, "mary", "backup of 02:00", NOW)
    assert lake.accepted_restore("other") is None
