"""Processes and ports of this machine: started detached, known by pid and start time, ended by pid.

Belongs here: what the operating system is asked for. Not here: what a process is for (:mod:`sandbox.servers.kinds`).
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO

LOOPBACK = "127.0.0.1"
_KILLED = 20.0
"""Seconds until a killed process is gone for certain."""
_PORTS = range(20_000, 32_000)  # below the ranges from which systems take ports for outgoing connections
_GIVEN = Path(tempfile.gettempdir()) / f"pulsar-lifecycle-ports-{os.getuid()}.json"
_GIVEN_FOR = 900.0
"""Seconds for which a port that was given is given to nobody else."""


def free_ports(count: int) -> list[int]:
    """Distinct ports on the loopback address that nothing listens on now, and that nobody else was given just now.

    A server may begin to listen half a minute later; until then another process of this user must not choose its port.
    """
    with _GIVEN.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        given = _given(file)
        ports = (port for port in random.sample(_PORTS, len(_PORTS)) if str(port) not in given and port_is_free(port))
        found = list(islice(ports, count))
        if len(found) < count:
            raise OSError(f"fewer than {count} free ports between {_PORTS.start} and {_PORTS.stop}")
        file.truncate(0)
        json.dump(given | {str(port): time.time() for port in found}, file)
    return found


def _given(file: IO[str]) -> dict[str, float]:
    """Ports that were given so short a time ago that their servers may not listen yet: port -> when, in seconds."""
    file.seek(0)
    try:
        found = json.load(file)
    except ValueError:  # nothing yet, or its writer was killed
        return {}
    return {port: at for port, at in found.items() if abs(time.time() - at) < _GIVEN_FOR}


def port_is_free(port: int) -> bool:
    """Whether a server could listen on the loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def wait_port_free(port: int, timeout: float) -> bool:
    """Wait until the port is free, which may be a moment after its process was killed; False after the timeout."""
    deadline = time.monotonic() + timeout
    while not port_is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def spawn(command: list[str], folder: Path, log: Path, environment: dict[str, str]) -> int:
    """Start ``command`` in ``folder`` in a session of its own, output appended to ``log``; returns its pid.

    The process outlives us and Ctrl-C in our terminal does not reach it. It has no descriptor that whoever started us
    left open: a lock would stay held for as long as it runs.
    """
    into_folder = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(folder), *command]
    writing = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), writing, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inherited()),
    ]
    return os.posix_spawn("/bin/sh", into_folder, environment, file_actions=actions, setsid=True)


def _inherited() -> list[int]:
    """Descriptors that a process which we start would have, too, beside the three standard ones."""
    found: list[int] = []
    for descriptor in (int(entry.name) for entry in Path("/dev/fd").iterdir()):
        with suppress(OSError):  # it is the listing's own, and is closed again
            if descriptor > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
    return found


def start_time(pid: int) -> str | None:
    """When the process started, in the system's own words; None if it is gone or only a zombie is left.

    A recycled pid has another start time, so (pid, start time) names one process for good.
    """
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a child of ours that ended would stay a zombie
    try:
        # state and starttime are fields 3 and 22 of proc(5); field 2 is a name in parentheses
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        answer = subprocess.run(["ps", "-p", str(pid), "-o", "lstart="], capture_output=True, text=True, check=False)
        return answer.stdout.strip() or None
    return None if fields[0] in "ZX" else fields[19]


def session(leader: int) -> dict[int, str]:
    """The processes of a session that was begun by the process ``leader``: pid -> start time."""
    answer = subprocess.run(["ps", "-A", "-o", "pid="], capture_output=True, text=True, check=True)
    found: dict[int, str] = {}
    for pid in map(int, answer.stdout.split()):
        with suppress(OSError):  # it is gone, or a system tells no user of another's
            if os.getsid(pid) == leader and (started := start_time(pid)):
                found[pid] = started
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    answer = subprocess.run(["ps", "-p", str(pid), "-o", "rss="], capture_output=True, text=True, check=False)
    return int(answer.stdout.strip() or 0) * 1024


def end(pid: int, started: str | None, *, timeout: float) -> bool:
    """Ask the process to end, wait ``timeout`` seconds, then kill it; returns whether it was running.

    A ``timeout`` of 0 kills it at once. A process with another start time is not ours and is left alone.
    """
    if started is None or start_time(pid) != started:
        return False
    if timeout:
        send_signal(pid, started, signal.SIGTERM)
    if not timeout or not wait_gone(pid, started, timeout):
        send_signal(pid, started, signal.SIGKILL)
        wait_gone(pid, started, _KILLED)
    return True


def send_signal(pid: int, started: str | None, number: int) -> None:
    """Send a signal to exactly that process; nothing happens if it is gone."""
    if started is not None and start_time(pid) == started:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


def wait_gone(pid: int, started: str | None, timeout: float) -> bool:
    """Wait until the process is gone; False after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while start_time(pid) == started:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
