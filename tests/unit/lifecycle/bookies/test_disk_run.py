"""The table of bookies' disks over fakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.formats.bookie_status import LedgerDirectory
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import BOOKIE_DISK, BookieDisk, DiskVerdict
from pulsar_lifecycle.lifecycle.bookies.disk_run import TABLE, ask, build_bookie_disk, changed_since, forecasts
from pulsar_lifecycle.lifecycle.bookies.placement import Placement
from pulsar_lifecycle.values.epoch import Epoch
from tests.kit.fakes.bookie_admin import FakeBookieAdmin, status
from tests.kit.scenes.retention_scene import RetentionScene
from tests.kit.simulated.cluster import SimulatedCluster


def test_ledgers_that_lack_a_copy_are_counted_by_bookie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = RetentionScene(tmp_path, monkeypatch)
    first, *_ = scene.topic("t", 60, 60)
    epoch = scene.scan(under_replicated=BitMap64([first]))
    disks, _ = build_bookie_disk(scene.cluster, epoch.epoch_id)
    assert disks
    rows = scene.lake.read_epoch_table(epoch.epoch_id, TABLE).to_pylist()
    assert {row["ledgers_under_replicated"] for row in rows} <= {0, 1}
    assert sum(row["ledgers_under_replicated"] for row in rows) >= 1


BOOKIE = "bookie-1:3181"


class Disk:
    """The one bookie that all ledgers are on; it counts as many as there were at its last collection."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene = RetentionScene(folder, monkeypatch)
        self.bookies = FakeBookieAdmin(BOOKIE)
        connect = type("WithBookies", (self.scene.cluster.connect,), {"bookies": self.bookies})  # type: ignore[misc]
        self.cluster = replace(self.scene.cluster, connect=connect)

    def collected(self, ledgers: int) -> None:
        directory = LedgerDirectory("/l", 1, 20, ledgers, 0.5)
        self.bookies.statuses[BOOKIE] = status(BOOKIE, directories=(directory,))

    def judged(self, epoch: Epoch) -> BookieDisk:
        (found,) = build_bookie_disk(self.cluster, epoch.epoch_id)[0]
        return found


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def test_what_was_deleted_since_the_scan_waits_for_a_collection(disk: Disk) -> None:
    first, *others = disk.scene.topic("t", 60, 60, 60)
    epoch = disk.scene.scan()
    disk.collected(ledgers=3)
    disk.scene.servers.remove(ledger_path(first))
    found = disk.judged(epoch)
    assert (found.verdict, found.placed.ledgers) == (DiskVerdict.WAITS_FOR_GC, len(others))


def test_what_was_made_since_the_scan_is_not_deleted(disk: Disk) -> None:
    disk.scene.topic("t", 60, 60)
    epoch = disk.scene.scan()
    disk.scene.topic("u", 60, 60, 60)
    disk.collected(ledgers=5)
    found = disk.judged(epoch)
    assert (found.verdict, found.placed.ledgers) == (DiskVerdict.NOTHING_TO_FREE, 5)


def test_a_ledger_whose_z_node_cannot_be_read_may_be_on_any_bookie(disk: Disk) -> None:
    first, *_ = disk.scene.topic("t", 60, 60)
    disk.scene.servers.put(ledger_path(first), b"\0")
    epoch = disk.scene.scan()
    disk.collected(ledgers=2)
    assert disk.judged(epoch).verdict is DiskVerdict.NOTHING_TO_FREE
    disk.collected(ledgers=3)
    assert disk.judged(epoch).verdict is DiskVerdict.WAITS_FOR_GC


def test_nothing_counts_as_deleted_where_ledgers_cannot_be_listed(disk: Disk) -> None:
    first, *_ = disk.scene.topic("t", 60, 60)
    epoch = disk.scene.scan()
    disk.collected(ledgers=2)
    disk.scene.servers.remove(ledger_path(first))
    disk.scene.servers.put("/ledgers/strange/node", b"")
    assert disk.judged(epoch).verdict is DiskVerdict.NOTHING_TO_FREE


def test_each_bookie_is_said_to_be_asked_when_it_was() -> None:
    times = iter((10, 20))
    answers = ask(FakeBookieAdmin("a", "b"), lambda: next(times))
    assert [one.asked_at for one in answers.judged(Placement({}), 99)] == [10, 20]


def filled(scene: RetentionScene, *rows: dict[str, object]) -> None:
    """A scan a day later, and what bookies said then."""
    epoch = scene.scan()
    scene.servers.wait(23)
    full = [{"verdict": "nothing_to_free", "asked_at": epoch.started_at, "total": 1000, **row} for row in rows]
    batch = pa.RecordBatch.from_pylist(full, BOOKIE_DISK)
    scene.cluster.store(epoch.epoch_id, TABLE, BOOKIE_DISK, lambda _: [batch], [None])


def test_the_forecast_is_of_bookies_that_are_there_and_by_their_own_threshold(disk: Disk) -> None:
    scene = disk.scene
    assert forecasts(scene.cluster) == {}
    for day in range(3):
        free = 500 - 50 * day
        limit = {"read_only_above": 0.8}
        filled(
            scene,
            {"bookie": "a", "free": free} | limit,
            {"bookie": "default", "free": free, "entry_log_ids": [day, day + 1]},
            {"bookie": "replaced", "free": free, "entry_log_ids": [0, 7] if day < 2 else [0]},
            {"bookie": "unanswered", "free": free if day < 2 else None},
            {"bookie": "down", "free": free if day < 2 else None, **({} if day < 2 else {"verdict": "not_registered"})},
            *([{"bookie": "removed", "free": free}] if day < 2 else []),
        )
    age = 23 / 24  # since the last of them was asked
    found = forecasts(scene.cluster)
    expected = {"a": 4.0 - age, "default": 7.0 - age, "unanswered": 8.0 - 1 - age}
    assert found == {bookie: pytest.approx(days) for bookie, days in expected.items()}


@pytest.mark.parametrize(
    ("there", "scanned", "gone", "made"),
    [
        ((), (), (), ()),
        ((1, 5), (), (), (1, 5)),
        ((), (9, 2), (2, 9), ()),
        ((0, 3, 8), (8, 2, 0, 9), (2, 9), (3,)),
    ],
)
def test_ledgers_that_are_gone_or_made_since_the_scan_are_told_from_the_others(
    there: tuple[int, ...], scanned: tuple[int, ...], gone: tuple[int, ...], made: tuple[int, ...]
) -> None:
    servers = SimulatedCluster()
    for ledger in there:
        servers.ledger(None, ledger_id=ledger)
    store = servers.open_store(read_only=True)
    found, placement = changed_since(store, np.array(scanned, np.int64), "/ledgers")
    assert found.to_pylist() == list(gone)
    assert {bookie: one.ledgers for bookie, one in placement.bookies.items()} == ({BOOKIE: len(made)} if made else {})
