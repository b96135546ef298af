"""The sandbox's cluster: ZooKeeper, bookies, brokers and an S3 server on loopback ports, and their state file.

Belongs here: which servers there are, starting what is missing, stopping, killing one alone. Everything lives in one
data folder: ``state.json``, ``logs/``, ``conf/``, a folder per server, ``lake/``, ``dagster/``, ``lifecycle.toml``. Not
here: how a server is configured (:mod:`sandbox.servers.kinds`), what is in the topics (:mod:`sandbox.planting.seed`).
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from string import Template
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError

from sandbox.clients import Admin
from sandbox.servers import archives, kinds, processes, ui
from sandbox.servers.kinds import CONF, Server
from sandbox.servers.state import CLUSTER, State
from sandbox.servers.toolchain import Progress, SandboxError, Tools, find_tools, java, locked, offloader_folder

DATA_VARIABLE = "PULSAR_LIFECYCLE_SANDBOX"
MARKER = "/pulsar-lifecycle/sandbox"
"""The z-node by which the product knows a sandbox and allows short grace periods; nothing else ever writes it."""

BUCKET = "tiered-storage"
"""The bucket of the sandbox's S3 server that its settings name; to S3Proxy a bucket is a folder."""

_READY_TIMEOUT = 300.0
_STOP_TIMEOUT = 20.0
_END_TIMEOUT = 60.0
"""Seconds until a server that is told to end must have: a broker unloads its topics first, for up to a minute."""
_COLLECTION = 30.0
"""Seconds that a garbage collection of a bookie may take."""


def default_data_folder() -> Path:
    """``$PULSAR_LIFECYCLE_SANDBOX``, or ``.run/sandbox`` below the current folder."""
    return Path(os.environ.get(DATA_VARIABLE) or ".run/sandbox").absolute()


class Cluster:
    """One sandbox, known by its data folder; every method may be called from any process."""

    def __init__(self, data: Path | None = None, progress: Progress = print) -> None:
        self.data = (data or default_data_folder()).absolute()
        self.state_file = self.data / "state.json"
        self._progress = progress

    # ------------------------------------------------------------------------------------------------- looking

    @property
    def state(self) -> State:
        """The recorded state; SandboxError if this sandbox was never started."""
        found = self._load()
        if found is None:
            raise SandboxError(f"no sandbox in {self.data}: start one with `pulsar-lifecycle sandbox start`")
        return found

    @property
    def zookeeper(self) -> str:
        """ZooKeeper connect string."""
        return self.state.servers["zookeeper"].address

    @property
    def admin_url(self) -> str:
        """Base URL of the first broker's admin API."""
        return self.state.of_kind("broker")[0].http

    @property
    def service_url(self) -> str:
        """Binary service URL naming every broker."""
        return str(self.state.as_json()["service_url"])

    @property
    def bookies(self) -> list[str]:
        """Bookie ids, ``host:port``."""
        return [bookie.address for bookie in self.state.of_kind("bookie")]

    @property
    def config(self) -> Path:
        """The product's settings file for this sandbox."""
        return self.data / "lifecycle.toml"

    def running(self) -> list[str]:
        """Names of the servers whose process lives."""
        found = self._load()
        return [name for name, server in found.servers.items() if _runs(server)] if found else []

    def status(self) -> list[dict[str, Any]]:
        """One row per server: name, address, pid (None: not running), resident bytes."""
        return [
            {
                "name": server.name,
                "address": server.address,
                "http": server.http if "http" in server.ports else "",
                "pid": server.pid if _runs(server) else None,
                "resident": processes.resident_bytes(server.pid) if _runs(server) and server.pid else 0,
            }
            for server in self.state.servers.values()
        ]

    @property
    def ui_url(self) -> str:
        """Where the Dagster UI on it answers; empty if none runs."""
        served = ui.found(self.data)
        return served.url if served else ""

    @contextmanager
    def metadata(self) -> Iterator[KazooClient]:
        """A ZooKeeper session."""
        client = KazooClient(hosts=self.zookeeper, timeout=20)
        client.start(timeout=60)
        try:
            yield client
        finally:
            client.stop()
            client.close()

    # ------------------------------------------------------------------------------------------------- start, stop

    def start(
        self,
        bookies: int = 1,
        brokers: int = 1,
        gc_wait: float = 60.0,
        *,
        offloader: bool = False,
        production: bool = False,
        broker_settings: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Start what is missing and return its names; an empty list: everything ran already.

        A sandbox keeps its ports and data for the life of its data folder, grows when more servers are asked for and
        never shrinks. Once ``offloader`` was asked for, its brokers have one; those that ran without are restarted. A
        new one's brokers do by themselves what production's do, if so asked. ``broker_settings`` are lines of its new
        brokers' configuration. If a server fails to start, everything this call started is ended again.
        """
        if self._load() is None and self.data.exists() and {path.name for path in self.data.iterdir()} - {"lock"}:
            raise SandboxError(f"{self.data} holds something else: give the sandbox a folder of its own with --data")
        with locked(self.data / "lock"):
            state = self._load() or State(self.data, gc_wait, production=production)
            if offloader and not state.offloader:
                state.offloader = True
                for broker in state.of_kind("broker"):
                    self._end(broker)
            for broker in self._grow(state, bookies, brokers):
                broker.settings = dict(broker_settings or {})
            state.save(self.state_file)
            return self._start(state, list(state.servers))

    def stop(self, *, purge: bool = False) -> list[str]:
        """End by process id what this sandbox runs, the UI first, wait for it, return the names.

        ``purge`` removes the data, so no server gets the time to write any.
        """
        if not self.state_file.exists():
            return []
        with locked(self.data / "lock"):
            state = self._load()
            ended: list[str] = []
            served = ui.found(self.data)
            if served and ui.end(served, timeout=0 if purge else _STOP_TIMEOUT):
                self._progress("stopped the Dagster UI")
                ended.append("ui")
            for kind in reversed(kinds.KINDS):
                for server in reversed(state.of_kind(kind) if state else []):
                    if self._end(server, at_once=purge):
                        ended.append(server.name)
            if purge:
                shutil.rmtree(self.data)
        return ended

    def serve(self) -> str:
        """Start the Dagster UI on this sandbox unless it runs, and wait until it answers; returns its address.

        It runs until the sandbox is stopped. Raises SandboxError if it does not come up.
        """
        data, log = self.state.data, self._log("ui")
        with locked(data / "lock"):
            served = ui.found(data)
            if served and not served.whole:
                ui.end(served, timeout=0)
                served = None
            if not served:
                self._progress("starting the Dagster UI")
                served = ui.launch(data, self.config, log)
        ui.wait(data, served, log)
        return served.url

    def start_server(self, name: str) -> None:
        """Start one server with its recorded ports and data, and wait until it is ready; nothing if it runs."""
        with locked(self.data / "lock"):
            self._start(self.state, [name])

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to one server; for SIGKILL and SIGTERM, wait until its process is gone."""
        server = self.state.servers[name]
        if server.pid is None:
            return
        processes.send_signal(server.pid, server.started, number)
        if number in (signal.SIGKILL, signal.SIGTERM) and not processes.wait_gone(
            server.pid, server.started, _END_TIMEOUT
        ):
            raise SandboxError(f"{name} (pid {server.pid}) did not end within {_END_TIMEOUT:.0f} s")

    def restart(self, name: str, settings: Mapping[str, str] | None = None) -> None:
        """End one server, killing it if it does not end, and start it again with the same ports and data.

        ``settings`` are lines of its configuration from now on, in place of all that earlier calls gave; None: as is.
        """
        try:
            self.kill(name, signal.SIGTERM)
        except SandboxError:  # a broker that is told to end while it begins may hang
            self.kill(name, signal.SIGKILL)
        if settings is not None:
            state = self.state
            state.servers[name].settings = dict(settings)
            state.save(self.state_file)
        self.start_server(name)

    def tell_offloader(self, word: str, broker: str = "broker-1", *, on: bool = True) -> None:
        """Make a broker's offloader misbehave until told otherwise.

        ``word``: ``hold-offloads``, ``fail-offloads`` or ``fail-reads`` (``offloader/StandIn.java``).
        """
        file = self.data / broker / "offloader" / word
        if on:
            file.parent.mkdir(exist_ok=True)
            file.touch()
        else:
            file.unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------------- inside

    def _load(self) -> State | None:
        return State.load(self.state_file)

    def _grow(self, state: State, bookies: int, brokers: int) -> list[Server]:
        """Add what is missing; the new brokers."""
        wanted = {"zookeeper": "zookeeper", "s3proxy": "s3proxy"}
        wanted |= {f"bookie-{n}": "bookie" for n in range(1, bookies + 1)}
        wanted |= {f"broker-{n}": "broker" for n in range(1, brokers + 1)}
        missing = {name: kind for name, kind in wanted.items() if name not in state.servers}
        ports = iter(processes.free_ports(2 * len(missing)))
        for name, kind in missing.items():
            state.servers[name] = Server(name, kind, {port: next(ports) for port in kinds.port_names(kind)})
        return [state.servers[name] for name, kind in missing.items() if kind == "broker"]

    def _start(self, state: State, names: list[str]) -> list[str]:
        missing = [state.servers[name] for name in names if not _runs(state.servers[name])]
        if not missing:
            return []
        tools = find_tools(self._progress)
        self._write_files(state)
        started: list[str] = []
        try:
            for kinds in (("zookeeper", "s3proxy"), ("bookie",), ("broker",)):
                wanted = [server for server in missing if server.kind in kinds]
                if wanted and kinds != ("zookeeper", "s3proxy"):
                    self._set_up(state, tools)
                self._launch(state, wanted, tools, started)
                self._wait(wanted)
            if "broker-1" in started:
                with Admin(state.of_kind("broker")[0].http) as admin:
                    for namespace in ("pulsar/system", "public/default"):
                        admin.forestall_leaks(namespace)
            self._wait([state.servers[name] for name in names])  # those that ran all along may have lost others
        except BaseException:
            for name in reversed(started):
                self._end(state.servers[name])
            raise
        self._archive_classes(state, tools)
        return started

    def _archive_classes(self, state: State, tools: Tools) -> None:
        """Let servers start quicker from now on, if each of these has said what it loads."""
        for class_path in (tools.pulsar, tools.s3proxy):
            those = [one for one in state.servers.values() if kinds.class_path_of(one.kind, tools) == class_path]
            lists = [self._classes(one) for one in those]
            if all(file.exists() for file in lists):
                archives.make(tools.java, class_path, lists)
        archives.make_for_spark(tools.java)

    def _launch(self, state: State, wanted: list[Server], tools: Tools, started: list[str]) -> None:
        for server in wanted:
            taken = next((port for port in server.ports.values() if not processes.wait_port_free(port, 5)), None)
            if taken:
                raise SandboxError(
                    f"port {taken} of {server.name} is in use by another process: end that one, "
                    f"or give the sandbox new ports with `pulsar-lifecycle sandbox stop --purge`"
                )
            if server.kind in ("bookie", "broker"):
                self._forget_registration(server)
            self._progress(f"starting {server.name} on {server.address}")
            self._write_configuration(state, server, tools)
            folder = self.data / server.name
            server.command = kinds.command(server.kind, tools, self._conf(server), folder, self._classes(server))
            environment = {**os.environ, **self._keys_of(state, server)}
            server.pid = processes.spawn(server.command, folder, self._log(server.name), environment)
            server.started = processes.start_time(server.pid)
            started.append(server.name)
            state.save(self.state_file)

    def _forget_registration(self, server: Server) -> None:
        """Remove what the session of a killed one left; until it expires, a server of that address refuses to start."""
        with self.metadata() as client, suppress(NoNodeError):
            client.delete(_registrations(server)[0])

    def _wait(self, wanted: list[Server]) -> None:
        for server in wanted:
            self._until(lambda server=server: kinds.is_ready(server), server)
        for bookie in (server for server in wanted if server.kind == "bookie"):
            with self.metadata() as client:
                paths = _registrations(bookie)
                self._until(lambda paths=paths, client=client: any(map(client.exists, paths)), bookie)

    def _until(self, ready: Callable[[], bool], server: Server) -> None:
        deadline = time.monotonic() + _READY_TIMEOUT
        while not ready():
            if not _runs(server):
                raise SandboxError(f"{server.name} does not run: {self._last_error(server.name)}")
            if time.monotonic() > deadline:
                raise SandboxError(
                    f"{server.name} was not ready after {_READY_TIMEOUT:.0f} s: see {self._log(server.name)}"
                )
            time.sleep(0.1)

    def _set_up(self, state: State, tools: Tools) -> None:
        """Write a new cluster's metadata; the marker z-node is written last, so a half set-up is done again."""
        self._wait(state.of_kind("zookeeper"))
        with self.metadata() as client:
            if client.exists(MARKER):
                return
            self._progress("writing the cluster's metadata")
            broker = state.of_kind("broker")[0]
            command = kinds.setup_command(
                tools,
                CLUSTER,
                self.zookeeper,
                broker.http,
                f"pulsar://{broker.address}",
            )
            with self._log("setup").open("ab") as log:
                done = subprocess.run(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False)
            if done.returncode:
                raise SandboxError(f"the cluster's metadata could not be written: {self._last_error('setup')}")
            with suppress(NodeExistsError):
                client.create(MARKER, json.dumps({"cluster": CLUSTER}).encode(), makepath=True)

    def _write_files(self, state: State) -> None:
        for folder in ("logs", "conf", "lake", f"s3proxy/{BUCKET}"):
            (self.data / folder).mkdir(parents=True, exist_ok=True)
        credentials = self.data / "s3-credentials.json"
        if not credentials.exists():
            credentials.touch(mode=0o600)
            keys = {"access_key": "sandbox", "secret_key": secrets.token_urlsafe(24)}
            credentials.write_text(json.dumps(keys) + "\n")
        for name, value in json.loads(credentials.read_text()).items():  # as the product's settings want them
            secret = self.data / f"s3-{name.replace('_', '-')}"
            secret.touch(mode=0o600)
            secret.write_text(value)
        broker = state.of_kind("broker")[0]
        self.config.write_text(
            Template((CONF / "lifecycle.toml").read_text()).substitute(
                cluster=CLUSTER,
                zookeeper=state.servers["zookeeper"].address,
                admin_url=broker.http,
                service_url=state.as_json()["service_url"],
                lake=self.data / "lake",
                driver_options=archives.driver_options(java()),
                gc_wait=f"{state.gc_wait + _COLLECTION:.0f}s",
                s3=f"http://{state.servers['s3proxy'].address}",
                data=self.data,
                bucket=BUCKET,
            )
        )

    def _write_configuration(self, state: State, server: Server, tools: Tools) -> None:
        keys = json.loads((self.data / "s3-credentials.json").read_text())
        values = {
            **keys,
            "cluster": CLUSTER,
            "zookeeper": state.servers["zookeeper"].address,
            "quorum": str(min(2, len(state.of_kind("bookie")))),
            "gc_wait_ms": str(int(state.gc_wait * 1000)),
        }
        folder, more = self.data / server.name, dict[str, str]()
        if server.kind == "broker" and state.offloader:
            plugin = offloader_folder(tools, self._progress)
            more = kinds.give_offloader(plugin, folder, BUCKET, f"http://{state.servers['s3proxy'].address}")
        if server.kind == "broker" and state.production:
            more = more | kinds.production_settings()
        kinds.write_configuration(server, self._conf(server), folder, values, more)

    def _keys_of(self, state: State, server: Server) -> dict[str, str]:
        """A broker's offloader has its keys from the environment, as S3 clients do."""
        if server.kind != "broker" or not state.offloader:
            return {}
        keys = json.loads((self.data / "s3-credentials.json").read_text())
        return {"AWS_ACCESS_KEY_ID": keys["access_key"], "AWS_SECRET_ACCESS_KEY": keys["secret_key"]}

    def _end(self, server: Server, *, at_once: bool = False) -> bool:
        timeout = 0.0 if at_once else _STOP_TIMEOUT
        if server.pid is None or not processes.end(server.pid, server.started, timeout=timeout):
            return False
        self._progress(f"stopped {server.name}")
        return True

    def _conf(self, server: Server) -> Path:
        return self.data / "conf" / f"{server.name}.conf"

    def _classes(self, server: Server) -> Path:
        return self.data / "logs" / f"{server.name}.classes"

    def _log(self, name: str) -> Path:
        return self.data / "logs" / f"{name}.log"

    def _last_error(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").splitlines()[-200:]
        errors = [line for line in lines if "ERROR" in line or "Exception" in line]
        return f"{(errors or lines or ['no output'])[-1].strip()[:300]} (log: {self._log(name)})"


def _registrations(server: Server) -> tuple[str, ...]:
    """Where a server is registered; a bookie as one that takes entries, or as read-only."""
    if server.kind == "broker":
        return (f"/loadbalance/brokers/{processes.LOOPBACK}:{server.ports['http']}",)
    return f"/ledgers/available/{server.address}", f"/ledgers/available/readonly/{server.address}"


def _runs(server: Server) -> bool:
    return server.pid is not None and server.started is not None and processes.start_time(server.pid) == server.started
