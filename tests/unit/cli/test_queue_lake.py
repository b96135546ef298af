"""``queue status`` where nothing can be journalled."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_lifecycle.io.lake.journal import PROBE
from pulsar_lifecycle.settings import load_settings
from tests.kit.command import command_over
from tests.kit.simulated.cluster import SimulatedCluster


def test_a_lake_that_cannot_be_written_needs_an_operator(
    settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = SimulatedCluster()
    lake = Path(load_settings(settings_file).lake.path)
    run = command_over(
        stores=lambda *_, **__: cluster.open_store(), admin=lambda: cluster.admin, queue_reader=lambda: None
    )
    assert run("queue", "status") == 0
    assert not lake.exists()
    probe = lake / "journal" / PROBE
    probe.mkdir(parents=True)  # whoever runs tests may be root, who may write everything
    capsys.readouterr()
    assert run("queue", "status") == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "so no run would begin" in said
    assert str(probe) in said.replace(" ", "")
