"""The page of ``storage_report``: sums by reason, how they changed, the largest topics, and a picture."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from assets.lifecycle.storage import check_result, report_shown
from assets.pages.plots import storage_over_time
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import BOOKIE_DISK, DiskVerdict
from pulsar_lifecycle.lifecycle.bookies.disk_run import TABLE, ask
from pulsar_lifecycle.lifecycle.bookies.placement import Placement
from pulsar_lifecycle.lifecycle.held.held_run import OPEN_TABLE
from pulsar_lifecycle.lifecycle.held.open_ledgers import OPEN_LEDGERS
from pulsar_lifecycle.lifecycle.reasons import Reason
from pulsar_lifecycle.lifecycle.storage_run import Totals, build_storage_report, scanned, totals
from pulsar_lifecycle.model import Topic
from tests.kit.command import run
from tests.kit.fakes.bookie_admin import FakeBookieAdmin
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene
from tests.kit.simulated.cluster import data_tags

OWN = f"persistent://{NAMESPACE}/"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch, files=True)


def report(scene: RetentionScene) -> dict[str, Any]:
    epoch = judged_scan.scan(scene.cluster, "run")
    rows, problems = build_storage_report(scene.cluster, epoch)
    assert check_result(totals(rows), scanned(scene.cluster, epoch.epoch_id)).passed
    return report_shown(scene.cluster, epoch.epoch_id, rows, problems)


def test_the_page_shows_reasons_and_how_they_changed(scene: RetentionScene) -> None:
    scene.topic("a", 100, 90, 0, 0)
    scene.servers.wait(0.5)
    first = report(scene)
    assert (first["ledgers"], first["bytes"], first["bytes on disk"]) == (4, 40, 40)
    assert "| expired | 2 | 0 | 20 B | 20 B |  |" in first["by reason"].value
    assert f"| {OWN}a | 40 B | expired 20 B, retained 20 B |" in first["largest topics"].value
    assert f"| {NAMESPACE} | 4 | 40 B |" in first["largest namespaces"].value
    scene.servers.wait(1)
    second = report(scene)
    assert "| expired | 3 | 0 | 30 B | 30 B | +10 B |" in second["by reason"].value
    assert "| last_ledger | 1 | 0 | 10 B | 10 B | +10 B |" in second["by reason"].value
    assert "over time" in second


def test_sums_that_differ_fail_the_check() -> None:
    assert not check_result(Totals(1, 2, 3), Totals(1, 2, 4)).passed


@pytest.mark.parametrize("count", [1, 2, 60])
def test_reports_over_time_are_one_small_picture(count: int) -> None:
    reports = [(1_700_000_000_000 + n * 3_600_000, dict.fromkeys(Reason, n << 30)) for n in range(1, count + 1)]
    value = storage_over_time(reports)
    found = re.fullmatch(r"!\[[^\]]+\]\(data:image/png;base64,([A-Za-z0-9+/=]+)\)", str(value.value))
    assert found
    assert base64.b64decode(found[1]).startswith(b"\x89PNG")
    assert len(found[1]) < 60_000  # it lies in Dagster's event log


def test_without_bytes_there_is_no_picture() -> None:
    assert storage_over_time([]).value == "no report has any bytes yet"


def test_the_command_shows_the_newest_report(scene: RetentionScene, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("storage") == 1
    assert "report_storage" in capsys.readouterr().err
    scene.topic("a", 100, 90, 0, 0)
    scene.servers.ledger(data_tags(Topic.parse(f"{OWN}b")), state=LedgerState.OPEN)
    scene.servers.wait(0.5)
    report(scene)
    one = {"ledger_id": 9, "topic": f"{OWN}c", "namespace": NAMESPACE, "bytes": 7 << 30, "physical_bytes": 14 << 30}
    opened = pa.RecordBatch.from_pylist([one, one | {"bytes": None, "physical_bytes": None}], OPEN_LEDGERS)
    scene.cluster.store(scene.lake.epochs()[-1].epoch_id, OPEN_TABLE, OPEN_LEDGERS, lambda _: [opened], [None])
    assert run("storage") == 0
    out = capsys.readouterr().out
    assert "beside these, by the bookies: 14.0 GB on disk in 1 open ledger" in out
    assert "40 B on disk in 4 ledgers and 1 ledger of unknown size" in out
    assert re.search(r"expired +2 +20 B +20 B", out)
    assert f"{OWN}a" in out
    assert run("storage", "--namespace", NAMESPACE, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ledgers"], document["physical_bytes"], document["covered"]) == (5, 40, True)
    assert document["by_reason"]["retained"]["ledgers"] == 2
    assert document["open_ledgers"] == {"ledgers": 2, "ledgers_unsized": 1, "physical_bytes": 14 << 30}
    assert sum(row["ledgers"] for row in document["rows"]) == 5
    assert run("storage", "--namespace", "no/such") == 2


def test_the_command_shows_what_the_bookies_said_last(
    scene: RetentionScene, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bookies") == 1
    assert "report_storage" in capsys.readouterr().err
    epoch = judged_scan.scan(scene.cluster, "run")
    disks = ask(FakeBookieAdmin("bookie-1:3181"), lambda: scene.now).judged(Placement({}), scene.now)

    def said(**changes: object) -> None:
        rows = pa.RecordBatch.from_pylist([one.row() | changes for one in disks], BOOKIE_DISK)
        scene.cluster.store(epoch.epoch_id, TABLE, BOOKIE_DISK, lambda _: [rows], [None])

    said(verdict=DiskVerdict.READ_ONLY.value)
    assert run("bookies") == 1  # it takes no entries
    assert "read_only" in capsys.readouterr().out
    said()
    assert run("bookies") == 0
    assert re.search(r"bookie-1:3181 +waits_for_gc +50.0 GB +100.0 GB", capsys.readouterr().out)
    assert run("bookies", "--json") == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["days_until_full"]) == ("waits_for_gc", None)
