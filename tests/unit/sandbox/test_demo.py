"""How a demo begins, on a new cluster, also where an earlier demo was at work; and that it ends with a UI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sandbox.cluster import Cluster
from sandbox.demo import begin_afresh, lead_on
from sandbox.servers import ui
from sandbox.servers.toolchain import SandboxError


class Stopped(Cluster):
    """A sandbox whose servers are never started; its state file is there, as after a start."""

    def start(self, *_: object, **__: object) -> list[str]:  # type: ignore[override]
        self.data.mkdir(parents=True, exist_ok=True)
        if not self.state_file.exists():
            self.state_file.write_text(json.dumps({"data": str(self.data), "gc_wait": 60.0, "servers": {}}))
        return []


def test_a_demo_removes_what_an_earlier_demo_left(tmp_path: Path) -> None:
    cluster, said = Stopped(tmp_path / "sandbox"), list[str]()
    begin_afresh(cluster, said.append)
    left = cluster.data / "planted.json"
    left.touch()
    begin_afresh(cluster, said.append)
    assert not left.exists()
    assert cluster.state_file.exists()
    assert [line for line in said if "removing" in line and str(cluster.data) in line] == said[1:2]
    begin_afresh(cluster, said.append)
    assert sum("removing" in line for line in said) == 2


def test_a_demo_removes_no_sandbox_that_was_not_a_demos(tmp_path: Path) -> None:
    cluster, said = Stopped(tmp_path / "sandbox"), list[str]()
    cluster.start()
    mine = cluster.data / "mine"
    mine.touch()
    begin_afresh(cluster, said.append)
    assert mine.exists()
    assert not any("removing" in line for line in said)


def test_a_demo_ends_with_where_its_ui_is_and_how_to_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(tmp_path / "sandbox")
    monkeypatch.setattr(cluster, "serve", lambda: "http://127.0.0.1:3001")
    on: dict[str, object] = {}
    monkeypatch.setattr(ui, "switch_on", lambda url, **names: on.update(names))
    lead_on(cluster, "sandbox", "orphans-1")
    said = capsys.readouterr().out
    assert on == {"schedules": ["hourly_scan"], "sensors": ["after_scan"]}
    assert "The Dagster UI runs: http://127.0.0.1:3001\n" in said
    assert "http://127.0.0.1:3001/assets/sandbox/deletion_plan?view=events\n" in said
    assert f"pulsar-lifecycle sandbox stop --data {cluster.data}\n" in said


def test_a_demo_whose_ui_does_not_come_up_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended() -> str:
        raise SandboxError("the Dagster UI ended: see its log")

    cluster = Cluster(tmp_path / "sandbox")
    monkeypatch.setattr(cluster, "serve", ended)
    lead_on(cluster, "sandbox", "orphans-1")
    assert capsys.readouterr().out == "\nthe Dagster UI ended: see its log; `make ui` tries again\n"
