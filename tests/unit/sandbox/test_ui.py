"""The Dagster UI on a sandbox: it outlives the command that starts it, and never the sandbox."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import httpx
import pytest
from dagster._core.test_utils import create_run_for_test
from typer.testing import CliRunner

from sandbox.cli import app
from sandbox.cluster import Cluster
from sandbox.servers import processes, ui
from sandbox.servers.toolchain import SandboxError

STAND_IN = """
import http.server, os, pathlib, signal, subprocess, sys
child = "import os, signal, time; os.setpgid(0, 0); signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", child])  # as a run's Python workers: a group of its own
pathlib.Path("server_info").touch()
http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]), bind="127.0.0.1")
"""
"""Answers as a webserver does."""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A sandbox without servers, whose UI is a stand-in."""
    made = Cluster(tmp_path / "sandbox", lambda line: None)
    (made.data / "logs").mkdir(parents=True)
    made.state_file.write_text(json.dumps({"data": str(made.data), "gc_wait": 60.0, "servers": {}}))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "production"))
    monkeypatch.setattr(ui, "PORT", processes.free_ports(1)[0])
    folder = tmp_path / "served"
    folder.mkdir()
    words = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(folder), sys.executable, "-c", STAND_IN]
    monkeypatch.setattr(ui, "command", lambda port: [*words, str(port)])
    yield made
    made.stop(purge=True)


def running(cluster: Cluster) -> set[int]:
    found = ui.found(cluster.data)
    return set(processes.session(found.session)) if found else set()


def test_it_answers_once_it_is_started_and_is_started_once(cluster: Cluster, tmp_path: Path) -> None:
    url = cluster.serve()
    assert url == f"http://127.0.0.1:{ui.PORT}"
    assert httpx.get(url).is_success
    before = running(cluster)
    assert len(before) == 2
    assert cluster.serve() == url
    assert running(cluster) == before
    assert (cluster.data / "dagster" / "dagster.yaml").exists()
    assert not (tmp_path / "production").exists()


def test_the_status_names_it(cluster: Cluster) -> None:
    def told() -> str:
        return CliRunner().invoke(app, ["status", "--data", str(cluster.data)]).output

    assert "ui         not running" in told()
    url = cluster.serve()
    assert f"ui         {url}\n" in told()


def test_where_its_port_is_taken_it_has_another(cluster: Cluster) -> None:
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", ui.PORT))
        squatter.listen()
        url = cluster.serve()
    assert url != f"http://127.0.0.1:{ui.PORT}"
    assert httpx.get(url).is_success


@pytest.mark.parametrize("purge", [False, True])
def test_it_ends_whole_with_the_sandbox(cluster: Cluster, *, purge: bool) -> None:
    cluster.serve()
    before = running(cluster)
    assert cluster.stop(purge=purge) == ["ui"]
    assert [pid for pid in before if processes.start_time(pid)] == []
    assert cluster.stop() == []


def test_what_a_ui_that_was_killed_left_ends_too(cluster: Cluster) -> None:
    cluster.serve()
    (found,) = [one for one in [ui.found(cluster.data)] if one]
    os.kill(found.session, signal.SIGKILL)
    assert processes.wait_gone(found.session, found.started[found.session], 30)
    (left,) = running(cluster)
    cluster.serve()
    assert processes.start_time(left) is None
    assert len(running(cluster)) == 2


def test_one_whose_leader_was_gone_before_anybody_looked_is_not_whole_and_ends(cluster: Cluster) -> None:
    cluster.serve()
    (found,) = [one for one in [ui.found(cluster.data)] if one]
    os.kill(found.session, signal.SIGKILL)
    assert processes.wait_gone(found.session, found.started[found.session], 30)
    left = ui.Ui(found.url, found.session, processes.session(found.session))
    assert (left.lives, left.whole) == (True, False)
    assert ui.end(left, timeout=1)
    assert (left.lives, ui.Ui(found.url, found.session, {}).whole) == (False, False)


def test_runs_that_were_killed_with_a_ui_keep_no_run_of_the_next_waiting(cluster: Cluster) -> None:
    cluster.serve()
    (found,) = [one for one in [ui.found(cluster.data)] if one]
    ui.end(found, timeout=0)
    with ui.instance(cluster.data) as its:
        killed = create_run_for_test(its, status=dg.DagsterRunStatus.STARTED)
        over = create_run_for_test(its, status=dg.DagsterRunStatus.SUCCESS)
    cluster.serve()
    with ui.instance(cluster.data) as its:
        ended = [run.status for run in map(its.get_run_by_id, (killed.run_id, over.run_id)) if run]
    assert ended == [dg.DagsterRunStatus.CANCELED, dg.DagsterRunStatus.SUCCESS]


def test_one_that_ends_at_once_is_told_and_leaves_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ui, "command", lambda port: ["sh", "-c", "sleep 300 & echo broken; sleep 2"])
    with pytest.raises(SandboxError, match=r"the Dagster UI ended: see .*ui\.log"):
        cluster.serve()
    assert (cluster.data / "logs" / "ui.log").read_text() == "broken\n"
    assert running(cluster) == set()


def test_without_a_sandbox_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="start one with"):
        Cluster(tmp_path / "none").serve()
    assert not (tmp_path / "none").exists()
