"""The Dagster UI on a sandbox: ``dagster dev`` with its webserver, daemon and code server, on a loopback port.

Belongs here: starting it in a session of its own, where it listens, ending every process of it. ``ui.json`` in the
sandbox's data folder says which they are; ``dagster/`` there is Dagster's own. Not here: when
(:mod:`sandbox.cluster`), and the cluster's servers.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from sandbox.servers import processes
from sandbox.servers.toolchain import SandboxError

if TYPE_CHECKING:
    from dagster import DagsterInstance

PORT = 3000
"""Where it listens if nothing else does; else on any free port."""
LOCATION = "pulsar-lifecycle"
"""The code location of ``workspace.yaml``."""
_SWITCH = "mutation($it: %sSelector!) {answer: start%s(%sSelector: $it) {__typename}}"
_ROOT = Path(__file__).parents[2]
_FILE = "ui.json"
_READY_TIMEOUT = 300.0
"""Seconds until it answers: it loads the code location first, on a machine that may be busy."""


@dataclass(frozen=True)
class Ui:
    """A UI that was started."""

    url: str
    session: int
    """The id of its session, which is the pid of ``dagster dev``."""
    started: dict[int, str]
    """Processes of it, pid -> start time. While one lives, the session is the UI's."""

    @property
    def lives(self) -> bool:
        """Whether any of it does."""
        return any(processes.start_time(pid) == started for pid, started in self.started.items())

    @property
    def whole(self) -> bool:
        """Whether ``dagster dev`` lives, which ends when its webserver or daemon does."""
        started = self.started.get(self.session)  # none if it was gone before anybody looked
        return started is not None and processes.start_time(self.session) == started


def found(data: Path) -> Ui | None:
    """The UI on the sandbox in this folder, if any of it lives."""
    try:
        document = json.loads((data / _FILE).read_text())
    except FileNotFoundError:
        return None
    ui = Ui(document["url"], document["session"], {int(pid): at for pid, at in document["started"].items()})
    return ui if ui.lives else None


def instance(data: Path) -> DagsterInstance:
    """Dagster's instance of the sandbox in this folder, whatever ``$DAGSTER_HOME`` names."""
    from dagster import DagsterInstance

    home = data / "dagster"
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(_ROOT / "dagster.yaml", home)
    return DagsterInstance.from_config(str(home))


def launch(data: Path, config: Path, log: Path) -> Ui:
    """Start it; it may take a minute until :func:`wait` returns.

    Runs of a UI before it were killed with it: what their records hold would keep new ones queued. A demo, whose runs
    live, has no UI before its own.
    """
    from dagster import RunsFilter
    from dagster._core.storage.dagster_run import IN_PROGRESS_RUN_STATUSES

    from pulsar_lifecycle.settings import CONFIG_VARIABLE

    port = PORT if processes.port_is_free(PORT) else processes.free_ports(1)[0]
    with instance(data) as its:
        killed = RunsFilter(statuses=IN_PROGRESS_RUN_STATUSES)
        for run in its.get_runs(killed) if (data / _FILE).exists() else ():
            its.report_run_canceled(run, "Its process was ended with the Dagster UI.")
        environment = {**os.environ, "DAGSTER_HOME": its.root_directory, CONFIG_VARIABLE: str(config)}
    pid = processes.spawn(command(port), _ROOT, log, environment)
    return _recorded(data, Ui(f"http://{processes.LOOPBACK}:{port}", pid, processes.session(pid)))


def command(port: int) -> list[str]:
    """What serves the UI on a port."""
    words = [str(Path(sys.executable).with_name("dagster")), "dev", "-w", "workspace.yaml"]
    return [*words, "-h", processes.LOOPBACK, "-p", str(port)]


def wait(data: Path, ui: Ui, log: Path) -> None:
    """Wait until it answers. Raises SandboxError, with nothing of it left running, if it does not."""
    deadline = time.monotonic() + _READY_TIMEOUT
    while not _answers(ui.url):
        if not ui.whole or time.monotonic() > deadline:
            how = "did not answer" if ui.whole else "ended"
            end(ui, timeout=0)
            raise SandboxError(f"the Dagster UI {how}: see {log}")
        time.sleep(0.5)
    _recorded(data, Ui(ui.url, ui.session, ui.started | processes.session(ui.session)))


def switch_on(url: str, *, schedules: Sequence[str] = (), sensors: Sequence[str] = ()) -> None:
    """Switch schedules and sensors of its code location on, as its page Automation does. Raises SandboxError."""
    for kind, names in (("schedule", schedules), ("sensor", sensors)):
        for name in names:
            selector = {"repositoryLocationName": LOCATION, "repositoryName": "__repository__", f"{kind}Name": name}
            query = _SWITCH % (kind.title(), kind.title(), kind)
            try:
                answer = httpx.post(f"{url}/graphql", json={"query": query, "variables": {"it": selector}}, timeout=60)
                said = answer.raise_for_status().json()["data"]["answer"]["__typename"]
            except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
                raise SandboxError(f"{kind} {name} could not be switched on: {error}") from None
            if said.endswith("Error"):
                raise SandboxError(f"{kind} {name} could not be switched on: {said}")


def end(ui: Ui, *, timeout: float) -> bool:
    """Ask it to end, wait ``timeout`` seconds, kill what is left, its runs too; returns whether any of it lived."""
    those = processes.session(ui.session) if ui.lives else {}
    lived = bool(those)
    if lived and timeout:
        processes.end(ui.session, ui.started.get(ui.session), timeout=timeout)
    while those:
        for pid, started in those.items():
            processes.end(pid, started, timeout=0)
        those = processes.session(ui.session)  # a code server that is killed last may have begun another run
    return lived


def _recorded(data: Path, ui: Ui) -> Ui:
    temporary = data / f"{_FILE}.tmp"
    temporary.write_text(json.dumps({"url": ui.url, "session": ui.session, "started": ui.started}))
    temporary.replace(data / _FILE)
    return ui


def _answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/server_info", timeout=10).is_success
    return False
