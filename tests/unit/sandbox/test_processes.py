"""Processes known by pid and start time."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.servers import processes


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[int]:
    pid = processes.spawn(["sleep", "60"], tmp_path, tmp_path / "log", dict(os.environ))
    started = processes.start_time(pid)
    yield pid
    processes.send_signal(pid, started, signal.SIGKILL)
    processes.wait_gone(pid, started, 5)


def wait_for_its_end(pid: int) -> None:
    started = processes.start_time(pid)
    assert started is None or processes.wait_gone(pid, started, 60)


def test_a_process_runs_in_its_folder_and_writes_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    pid = processes.spawn(["sh", "-c", "pwd; echo wrong >&2"], tmp_path, log, dict(os.environ))
    wait_for_its_end(pid)
    assert log.read_text().splitlines() == [str(tmp_path), "wrong"]


def test_a_process_has_no_descriptor_of_ours(tmp_path: Path) -> None:
    log, lock = tmp_path / "log", tmp_path / "lock"
    with lock.open("w") as held:
        os.set_inheritable(held.fileno(), True)
        pid = processes.spawn(["sh", "-c", f"readlink /proc/self/fd/{held.fileno()}"], tmp_path, log, dict(os.environ))
        wait_for_its_end(pid)
    assert log.read_text() == ""


def test_ending_a_process_waits_until_it_is_gone(sleeper: int) -> None:
    assert processes.end(sleeper, processes.start_time(sleeper), timeout=5)
    assert processes.start_time(sleeper) is None


def test_a_process_that_ignores_the_request_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap '' TERM; touch {ready}; while :; do sleep 0.1; done"
    pid = processes.spawn(["sh", "-c", script], tmp_path, tmp_path / "log", dict(os.environ))
    while not ready.exists():
        pass
    assert processes.end(pid, processes.start_time(pid), timeout=0.3)
    assert processes.start_time(pid) is None


def test_a_recycled_pid_is_left_alone(sleeper: int) -> None:
    assert not processes.end(sleeper, "another start time", timeout=5)
    processes.send_signal(sleeper, "another start time", signal.SIGKILL)
    assert processes.start_time(sleeper) is not None


def test_a_process_that_never_started_is_not_ended() -> None:
    assert not processes.end(2**22 + 1, None, timeout=5)


def test_free_ports_are_distinct_and_free() -> None:
    ports = processes.free_ports(8)
    assert len(set(ports)) == 8
    assert all(processes.port_is_free(port) for port in ports)


def test_a_port_that_was_given_is_not_given_again_before_its_server_could_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_PORTS", range(20_000, 20_016))
    monkeypatch.setattr(processes, "_GIVEN", tmp_path / "given")
    first = processes.free_ports(4)
    assert not set(first) & set(processes.free_ports(4))
    (tmp_path / "given").write_text("[")  # as a writer that was killed leaves it
    assert processes.free_ports(4)
    monkeypatch.setattr(processes, "_GIVEN_FOR", 0.0)
    assert all(len(processes.free_ports(8)) == 8 for _ in range(3))


def test_a_port_in_use_is_not_free() -> None:
    with socket.socket() as server:
        server.bind((processes.LOOPBACK, 0))
        server.listen()
        assert not processes.wait_port_free(server.getsockname()[1], 0.1)
