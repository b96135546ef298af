"""The pages of ``open_ledgers`` and ``subscription_backlog``, and the commands that show them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from assets.lifecycle.held import backlog_shown, open_shown
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.lifecycle.held.held_run import build_held
from pulsar_lifecycle.lifecycle.storage_run import build_storage_report
from pulsar_lifecycle.model import Position
from tests.kit.command import run
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene
from tests.kit.scenes.retention_scene import MB


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    """Topic ``open`` was never closed; subscription ``s`` of ``behind`` has read nothing, some of it past its TTL."""
    scene = ActivityScene(tmp_path, monkeypatch, files=True)
    scene.retention(60, -1)
    scene.namespace(message_ttl_in_seconds=4 * 3600)
    ledger = scene.open_topic("open")
    scene.servers.reader.payloads[ledger] = [b"x" * 1000] * 3
    ids = scene.topic("behind", 200, 100)
    scene.at("behind", "s", Position(ids[0], -1))
    scene.servers.wait(2)
    return scene


def built(scene: ActivityScene) -> str:
    epoch = judged_scan.scan(scene.cluster, "run")
    build_storage_report(scene.cluster, epoch)
    build_held(scene.cluster, epoch)
    return epoch.epoch_id


def test_the_pages_sum_up_by_what_is_to_be_done(scene: ActivityScene) -> None:
    epoch_id = built(scene)
    page = open_shown(scene.cluster, epoch_id)
    assert (page["dagster/row_count"], page["bytes"], page["bytes past their retention"]) == (1, 3000, 3000)
    assert "| not_loaded, settings_unknown | 1 | 2.9 KiB |" in page["by cause"].value
    page = backlog_shown(scene.cluster, epoch_id)
    assert page["bytes past their TTL"] == MB
    assert "| load | 1 |" in page["by what ends them"].value


def test_the_commands_show_the_newest_report(scene: ActivityScene, capsys: pytest.CaptureFixture[str]) -> None:
    assert (run("backlog"), run("open-ledgers")) == (1, 1)
    assert "report_storage" in capsys.readouterr().err
    built(scene)
    assert run("open-ledgers", "--expired") == 0
    assert re.search(r"1 open ledger, 2.9 KB, by scan", capsys.readouterr().out)
    assert run("backlog") == 0
    assert re.search(r"1 cursor, by scan", capsys.readouterr().out)
    assert run("backlog", "--expired", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["cursor"], row["ends"], row["expired_bytes"]) == ("s", "load", MB)
    assert run("open-ledgers", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["bytes"] == 3000
