"""The table of bookies' disks over fakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.lifecycle.bookies.disk_run import TABLE, build_bookie_disk
from tests.kit.scenes.retention_scene import RetentionScene


def test_ledgers_that_lack_a_copy_are_counted_by_bookie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = RetentionScene(tmp_path, monkeypatch)
    first, *_ = scene.topic("t", 60, 60)
    epoch = scene.scan(under_replicated=BitMap64([first]))
    disks, _ = build_bookie_disk(scene.cluster, epoch.epoch_id)
    assert disks
    rows = scene.lake.read_epoch_table(epoch.epoch_id, TABLE).to_pylist()
    assert {row["ledgers_under_replicated"] for row in rows} <= {0, 1}
    assert sum(row["ledgers_under_replicated"] for row in rows) >= 1
