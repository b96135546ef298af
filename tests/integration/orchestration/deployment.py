"""A Dagster deployment as an operator has it: a code server for each cluster, a webserver, a daemon, and GraphQL.

Belongs here: starting and ending the processes, asking and telling them. Not here: any call into our code, and what
must come out. Every process belongs to its deployment and is ended by its id.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import httpx
import yaml

from pulsar_lifecycle.settings import CONFIG_VARIABLE
from sandbox.servers.processes import free_ports, port_is_free

ROOT = Path(__file__).parents[3]
LONG, POLL = 1200.0, 5.0
"""Seconds: a wait for what must come costs nothing when it comes, and its questions cost little."""
T = TypeVar("T")
ENDED = frozenset({"SUCCESS", "FAILURE", "CANCELED"})
_TOLD = "mutation($it: %s!) {answer: %s(%s: $it) {__typename ... on PythonError {message}}}"
_RUNS = """query($it: RunsFilter) {runsOrError(filter: $it) {... on Runs {results {runId jobName status startTime
  endTime allPools repositoryOrigin {repositoryLocationName} tags {key value}}}}}"""
_SHOWN = """timestamp runId partition metadataEntries {label ... on TextMetadataEntry {text}
  ... on MarkdownMetadataEntry {mdStr} ... on IntMetadataEntry {intValue} ... on BoolMetadataEntry {boolValue}}"""
_PAGES = f"""query($it: AssetKeyInput!) {{assetOrError(assetKey: $it) {{... on Asset {{
  assetMaterializations(limit: 20) {{{_SHOWN}}}
  assetObservations(limit: 20) {{{_SHOWN}}}}}}}}}"""
_FRESHNESS = """query($it: [AssetKeyInput!]) {assetNodes(assetKeys: $it) {freshnessStatusInfo {freshnessStatus}
  assetChecksOrError {... on AssetChecks {checks {name executionForLatestMaterialization {status}}}}}}"""
_STALE = "{assetNodes {assetKey {path} staleStatus staleCauses {reason dependency {path}}}}"
_BACKFILL = """mutation($it: LaunchBackfillParams!) {launchPartitionBackfill(backfillParams: $it) {
  __typename ... on LaunchBackfillSuccess {backfillId} ... on PythonError {message}}}"""
_LAUNCH = """mutation($it: ExecutionParams!) {launchRun(executionParams: $it) {
  __typename ... on LaunchRunSuccess {run {runId}} ... on PythonError {message}}}"""
_BACKFILLED = """query($it: String!) {partitionBackfillOrError(backfillId: $it) {... on PartitionBackfill {status}}}"""
_STATE = """query($it: InstigationSelector!) {instigationStateOrError(instigationSelector: $it) {
  ... on InstigationState {id instigationType}}}"""


class Deployment:
    """Processes below one ``DAGSTER_HOME``; ``clusters``: location name -> settings file.

    Each cluster is a component, a ``defs.yaml`` in a folder of its own.
    """

    def __init__(self, home: Path, clusters: Mapping[str, Path]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        instance = yaml.safe_load((ROOT / "dagster.yaml").read_text())
        instance["run_monitoring"] |= {"start_timeout_seconds": 240, "poll_interval_seconds": 30}
        (home / "dagster.yaml").write_text(json.dumps(instance))
        dg.DagsterInstance.from_config(str(home)).get_runs_count()  # two processes that make its storage at once fail
        ports = free_ports(len(clusters) + 1)
        self.home, self._at = home, dict(zip(clusters, ports, strict=False))
        self.url = f"http://127.0.0.1:{ports[-1]}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        servers = [
            {"grpc_server": {"host": "127.0.0.1", "port": port, "location_name": name}}
            for name, port in self._at.items()
        ]
        (home / "workspace.yaml").write_text(json.dumps({"load_from": servers}))
        (home / "clusters").mkdir(exist_ok=True)
        (home / "clusters" / "__init__.py").touch()
        (home / "pyproject.toml").write_text(
            '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "clusters"\n'
        )
        for name, file in clusters.items():
            folder = home / "clusters" / name
            folder.mkdir(exist_ok=True)
            (folder / "__init__.py").touch()
            component = {"type": "orchestration.component.PulsarCluster", "attributes": {"config_file": str(file)}}
            (folder / "defs.yaml").write_text(json.dumps(component))

    # -------------------------------------------------------------------------------------------- starting and ending

    def begin(self) -> None:
        """Start the code servers, which take a while to load."""
        for name, port in self._at.items():
            words = ["-m", "tests.integration.orchestration.forked_runs", "--host", "127.0.0.1", "--port", str(port)]
            words += ["--autoload-defs-module-name", f"clusters.{name}", "-d", str(self.home), "--location-name", name]
            self._spawn(name, words)

    def start(self) -> None:
        """Start the rest, once the code servers have loaded; returns once the webserver knows every code location."""
        for name, port in self._at.items():
            self.until(f"the code server of {name}", lambda port=port: not port_is_free(port))
        webserver = ["-m", "dagster_webserver", "-w", "workspace.yaml", "-h", "127.0.0.1"]
        self._spawn("webserver", [*webserver, "-p", self.url.rpartition(":")[2]])
        self.start_daemon()
        self.until("the webserver", lambda: set(self.locations()) == set(self._at))

    def start_daemon(self) -> None:
        self._spawn("daemon", ["-m", "dagster._daemon", "run", "-w", "workspace.yaml"])

    def kill_daemon(self) -> None:
        """As a host that goes down does it."""
        process = self._running.pop("daemon")
        process.kill()
        process.wait(60)

    def stop(self) -> None:
        """End every process, runs that are under way with them."""
        for process in self._running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)
        self._running.clear()

    def log(self, name: str) -> str:
        """What a process wrote."""
        return (self.home / f"{name}.log").read_text(errors="replace")

    def _spawn(self, name: str, words: Sequence[str]) -> None:
        environment = {key: value for key, value in os.environ.items() if key != CONFIG_VARIABLE}
        environment |= {"DAGSTER_HOME": str(self.home), "PYTHONPATH": os.pathsep.join([str(self.home), str(ROOT)])}
        environment["FRESHNESS_DAEMON_INTERVAL_SECONDS"] = "15"  # Dagster's own, 30 by default
        environment["DAGSTER_GRPC_TIMEOUT_SECONDS"] = "600"  # Dagster's own, 60 by default; a machine may be busy
        with (self.home / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, *words],
                cwd=self.home,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # runs are children of the code server, Spark's JVMs children of theirs
            )

    # ------------------------------------------------------------------------------------------------ asking, telling

    def until(self, what: str, ready: Callable[[], T]) -> T:
        """Ask now and then until the answer is true, and return it. Raises AssertionError after :data:`LONG`."""
        begun = time.monotonic()
        while not (answer := ready()):
            assert time.monotonic() < begun + LONG, f"waited {LONG:.0f} s in vain for {what}: {self.told()}"
            time.sleep(POLL)
        print(f"{time.strftime('%H:%M:%S')} waited {time.monotonic() - begun:.0f} s for {what}")
        return answer

    def told(self) -> str:
        """What the daemon and the code servers said last, which runs there were, and what is unsynced."""
        lines = [line for line in self.log("daemon").splitlines() if "Sensor" in line or "ERROR" in line][-40:]
        with suppress(httpx.TransportError):
            lines += [f"{run['jobName']} {run['status']} {run['runId']}" for run in self.runs()]
            lines += [f"unsynced: {asset}, {', '.join(why)}" for asset, why in self.unsynced().items()]
        return "\n".join([*(line[:400] for line in lines), *self._output()])

    def _output(self) -> list[str]:
        """The end of what the code servers wrote, and their runs."""
        return [line[:400] for name in self._at for line in self.log(name).splitlines()[-15:]]

    def ask(self, query: str, it: Any = None) -> dict[str, Any]:
        """What GraphQL answers. Raises AssertionError for errors."""
        body = {"query": query, "variables": {"it": it}}
        answer = httpx.post(f"{self.url}/graphql", json=body, timeout=120).json()
        assert not answer.get("errors"), answer
        return answer["data"]

    def locations(self) -> list[str]:
        """Code locations that are loaded; none while the webserver does not answer."""
        try:
            found = self.ask("{repositoriesOrError {... on RepositoryConnection {nodes {location {name}}}}}")
        except httpx.TransportError:
            return []
        return [node["location"]["name"] for node in found["repositoriesOrError"].get("nodes", ())]

    def switch_on(self, location: str, *, schedules: Sequence[str] = (), sensors: Sequence[str] = ()) -> None:
        for kind, names in (("Schedule", schedules), ("Sensor", sensors)):
            for name in names:
                start = _TOLD % (f"{kind}Selector", f"start{kind}", f"{kind.lower()}Selector")
                self._tell(start, _of(location) | {f"{kind.lower()}Name": name})

    def switch_off(self, location: str, *names: str) -> None:
        """Switch schedules and sensors off."""
        for name in names:
            found = self.ask(_STATE, _of(location) | {"name": name})["instigationStateOrError"]
            stop = {"SCHEDULE": "stopRunningSchedule", "SENSOR": "stopSensor"}[found["instigationType"]]
            self._tell(
                f"mutation($it: String!) {{answer: {stop}(id: $it) {{__typename ... on PythonError {{message}}}}}}",
                found["id"],
            )

    def runs(self, job: str = "", **tags: str) -> list[dict[str, Any]]:
        """Runs of a job that have these tags, the newest first; a tag's name has ``__`` for a slash."""
        chosen = {name.replace("__", "/"): value for name, value in tags.items()}
        wanted: dict[str, Any] = {"tags": [{"key": key, "value": value} for key, value in chosen.items()]}
        return self.ask(_RUNS, wanted | ({"pipelineName": job} if job else {}))["runsOrError"]["results"]

    def ended(self, run_id: str) -> str:
        """Wait for a run; how it ended."""
        found = self.until(f"run {run_id} to end", lambda: [one for one in self._run(run_id) if one in ENDED])
        return found[0]

    def launch(self, location: str, job: str, config: Mapping[str, Any] | None = None) -> str:
        """Launch a job in its launchpad; the run's id."""
        asked = {"selector": _of(location) | {"jobName": job}, "runConfigData": dict(config or {})}
        answer = self.ask(_LAUNCH, asked)["launchRun"]
        assert "run" in answer, answer
        return answer["run"]["runId"]

    def backfill(self, location: str, asset: str, partitions: Sequence[str], **config: Any) -> str:
        """Choose partitions of an asset in the dialog, and launch; the backfill's id."""
        asked = {
            "assetSelection": [{"path": [location, asset]}],
            "partitionNames": list(partitions),
            "runConfigData": {"ops": {f"{location}__{asset}": {"config": config}}},
        }
        answer = self.ask(_BACKFILL, asked)["launchPartitionBackfill"]
        assert "backfillId" in answer, answer
        return answer["backfillId"]

    def backfilled(self, backfill: str) -> tuple[str, list[str]]:
        """Wait for a backfill; how it ended, and its runs."""
        found = self.until(f"backfill {backfill}", lambda: self._backfilled(backfill))
        return found, [run["runId"] for run in self.runs(dagster__backfill=backfill)]

    def _backfilled(self, backfill: str) -> str:
        status = self.ask(_BACKFILLED, backfill)["partitionBackfillOrError"]["status"]
        return "" if status == "REQUESTED" else status

    def pages(self, *asset: str) -> list[dict[str, Any]]:
        """What an asset's materializations show, the newest first: label -> value, and ``run``."""
        return [_page(one) for one in self._events(asset)["assetMaterializations"]]

    def observed(self, *asset: str) -> list[dict[str, Any]]:
        """What an asset's observations show, the newest first."""
        return [_page(one) for one in self._events(asset)["assetObservations"]]

    def freshness(self, *asset: str) -> str:
        """HEALTHY, WARNING, DEGRADED or UNKNOWN."""
        (node,) = self.ask(_FRESHNESS, [{"path": asset}])["assetNodes"]
        return node["freshnessStatusInfo"]["freshnessStatus"]

    def unsynced(self) -> dict[str, list[str]]:
        """Assets that the UI calls unsynced, and why; but for those that were never made."""
        nodes = self.ask(_STALE)["assetNodes"]
        return {
            node["assetKey"]["path"][-1]: [
                " ".join([cause["reason"], *(cause["dependency"] or {"path": ()})["path"][-1:]])
                for cause in node["staleCauses"]
            ]
            for node in nodes
            if node["staleStatus"] == "STALE"
        }

    def checks(self, *asset: str) -> dict[str, str]:
        """How each check of an asset ended when it was last made."""
        (node,) = self.ask(_FRESHNESS, [{"path": asset}])["assetNodes"]
        found = node["assetChecksOrError"]["checks"]
        return {one["name"]: (one["executionForLatestMaterialization"] or {}).get("status", "") for one in found}

    def _run(self, run_id: str) -> list[str]:
        found = self.ask(_RUNS, {"runIds": [run_id]})["runsOrError"]["results"]
        return [one["status"] for one in found]

    def _events(self, asset: Sequence[str]) -> dict[str, Any]:
        found = self.ask(_PAGES, {"path": asset})["assetOrError"]
        return {"assetMaterializations": [], "assetObservations": []} | found

    def _tell(self, mutation: str, it: Any) -> dict[str, Any]:
        answer = self.ask(mutation, it)["answer"]
        assert "message" not in answer, answer
        assert "errors" not in answer, answer
        return answer


def _of(location: str) -> dict[str, Any]:
    return {"repositoryLocationName": location, "repositoryName": "__repository__"}


def _page(event: Mapping[str, Any]) -> dict[str, Any]:
    shown = {
        entry["label"]: next((value for name, value in entry.items() if name != "label"), None)
        for entry in event["metadataEntries"]
    }
    return shown | {"run": event["runId"], "at": int(event["timestamp"]), "partition": event["partition"]}
