"""The metastore scan and the whole orphan plan, side by side with the BookKeeper shell and with plain kazoo reads.

    .venv/bin/python bench/metastore.py [--sizes 10k,100k,1M] [--data FOLDER]

Starts a sandbox of its own (one ZooKeeper, one bookie, one broker), fills it (``dataset.py``), and at each size runs
one after the other: ``bookkeeper shell listledgers -m`` (up to a million ledgers); our scan into Arrow, warm session;
plain kazoo reads (up to 100k); the whole plan twice, as the assets run it. Progress and a table go to stderr, one JSON
document to stdout. It fails when a count is wrong, never because something was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import dataset
from dataset import LEDGERS_PER_TOPIC, Contents
from ground import ascending, data_folder, expect, kazoo, take_epoch, tell, write_settings

from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.runs import cluster as runs_cluster
from pulsar_lifecycle.sources.spark_session import prepare
from resources.lifecycle import LifecycleResource
from sandbox.cluster import Cluster
from sandbox.servers import kinds
from sandbox.servers.toolchain import find_tools

T = TypeVar("T")
KAZOO_UP_TO = 100_000
SHELL_UP_TO = 1_000_000
LEDGERS_PER_GIB = 1_000_000
"""What ZooKeeper's heap holds, with the topics and cursors of these ledgers, and room to write snapshots."""
MEASURABLE_CPU = 5.0
OWN_DRIVER = "zk+hierarchical"
PULSAR_DRIVER = "metadata-store"
PIPELINED = 1_000
"""Requests that plain kazoo has in flight."""


def main() -> None:
    """Run every size and print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10k,100k,1M", help="ledgers, ascending (default 10k,100k,1M)")
    parser.add_argument("--data", type=Path, help="folder for the servers' data (default: a temporary one)")
    options = parser.parse_args()
    sizes = ascending(parser, options.sizes, 100 * LEDGERS_PER_TOPIC)
    with data_folder(options.data) as data:
        document = run(sizes, data)
    print(json.dumps(document))
    show(document)


def run(sizes: list[int], data: Path) -> dict[str, Any]:
    """Measure every size on one growing cluster; returns the document."""
    # A million z-nodes do not fit into the heap that a laptop's sandbox gives its ZooKeeper.
    kinds.MEMORY["zookeeper"] = (f"-Xmx{max(2, sizes[-1] // LEDGERS_PER_GIB)}g", "-XX:MaxDirectMemorySize=64m")
    cluster = Cluster(data, tell)
    cluster.start(gc_wait=1800)
    try:
        servers_are(cluster)
        own = len(list(_ledger_paths(cluster.zookeeper)))
        load_before = os.getloadavg()[0]
        began = time.monotonic()
        where = LifecycleResource(
            config_file=str(write_settings(cluster, zookeeper={"slow_above": "30s", "stop_above": "60s"}))
        ).cluster()
        started = time.monotonic() - began
        rows: list[dict[str, Any]] = []
        topics = 0
        for size in sizes:
            contents = Contents(size // LEDGERS_PER_TOPIC)
            tell(f"{size} ledgers: writing {contents.topics - topics} more topics")
            dataset.grow(cluster.zookeeper, cluster.bookies[0], topics, contents.topics)
            topics = contents.topics
            rows.append(measure(cluster, where, size, contents, own))
        return {
            "bench": "metastore",
            "cpus": os.cpu_count(),
            "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
            "session_start_seconds": round(started, 1),
            "data": "1 % of the topics have a schema and a __compaction cursor, in real ledgers with one real entry "
            "each; 1 % of the topics were deleted and left their ledgers; other ledgers are z-nodes only",
            "settings": "read budget and latency limits lifted; grace period and confirmation interval 0",
            "sizes": rows,
            "plan_growth_over_ledger_growth": _growth(rows),
        }
    finally:
        cluster.stop(purge=True)


def measure(cluster: Cluster, where: runs_cluster.Cluster, size: int, contents: Contents, own: int) -> dict[str, Any]:
    """One size. ``own``: ledgers that the sandbox had before any of ours."""
    expected = contents.ledgers + own if size <= KAZOO_UP_TO else None
    shells: list[Cost] = []
    if size <= SHELL_UP_TO:
        shells = [list_with_shell(cluster, driver, expected) for driver in (OWN_DRIVER, PULSAR_DRIVER)]
        tell(f"{size} ledgers: shell {shells[0].clock:.1f} s, with Pulsar's driver {shells[1].clock:.1f} s")
    with resident() as peak:
        if not rows_seen(where):  # also warms the session, the first time
            raise SystemExit("the scan gave nothing")
        scanned = timed(lambda: scan_into_arrow(where))[1]
        tell(f"{size} ledgers: scan {scanned.clock:.1f} s")
        stages: dict[str, Cost] = {}
        first = timed(lambda: plan(where, contents, own, {}))[1]  # also the scan that the second one confirms
        planned, whole = timed(lambda: plan(where, contents, own, stages))
        expect("orphans planned", planned, contents.orphans)
        tell(f"{size} ledgers: plan {first.clock:.1f} s, again {whole.clock:.1f} s")
    found: dict[str, Any] = {
        "ledgers": contents.ledgers,
        "topics": contents.topics,
        "topics_with_schema_and_compaction": contents.special,
        "orphans": contents.orphans,
        "scan": asdict(scanned),
        "plan": asdict(whole),
        "plan_stages": {name: asdict(cost) for name, cost in stages.items()},
        "first_plan": asdict(first),
        "peak_resident_mib": peak[0] >> 20,
    }
    for name, shell in zip(("shell", "shell_with_pulsar_driver"), shells, strict=False):
        found |= {
            name: asdict(shell),
            f"{name}_over_scan": _ratios(shell, scanned),
            f"plan_over_{name}": _ratios(whole, shell),
        }
    if size <= KAZOO_UP_TO:
        read, kazoo = timed(lambda: read_with_kazoo(cluster.zookeeper))
        tell(f"{size} ledgers: plain kazoo {kazoo.clock:.1f} s")
        expect("ledgers read by kazoo", read, contents.ledgers + own)
        found |= {"kazoo": asdict(kazoo), "kazoo_over_scan": _ratios(kazoo, scanned)}
    return found


def _ratios(one: Cost, other: Cost) -> dict[str, float | None]:
    """Clock over clock, and CPU over CPU where both are long enough for a resolution of a second."""
    measurable = min(one.cpu, other.cpu) >= MEASURABLE_CPU
    return {"clock": round(one.clock / other.clock, 2), "cpu": round(one.cpu / other.cpu, 2) if measurable else None}


# --------------------------------------------------------------------------------------------------------------- ours


def _frame(where: runs_cluster.Cluster) -> Any:
    return prepare(where.spark).read.format("bookkeeper_ledgers").option("settings", where.settings_file).load()


def rows_seen(where: runs_cluster.Cluster) -> int:
    """How many ledgers the data source gives."""
    return int(_frame(where).count())


def scan_into_arrow(where: runs_cluster.Cluster) -> None:
    """Every column of every ledger, decoded, as Arrow batches handed to Spark and then dropped."""
    _frame(where).write.format("noop").mode("overwrite").save()


def plan(where: runs_cluster.Cluster, contents: Contents, own: int, stages: dict[str, Cost]) -> int:
    """What the assets do from ``bookkeeper_ledgers`` to ``deletion_plan``; returns how many ledgers are planned.

    ``stages`` gets the cost of each step.
    """

    @contextmanager
    def step(name: str) -> Iterator[None]:
        used, began = cpu_used(), time.monotonic()
        yield
        stages[name] = cost_since(used, began)

    epoch = take_epoch(where, step)
    with step("deletion_plan"):
        summary, _ = deletion_run.make_plan(where, epoch)
    listed = next(census.listed for census in epoch.census if census.table == "bookkeeper_ledgers")
    expect("ledgers listed", listed, contents.ledgers + own)
    return summary.ledgers


# ------------------------------------------------------------------------------------------------------------- others


def list_with_shell(cluster: Cluster, driver: str, expected: int | None) -> Cost:
    """Cost of ``bookkeeper shell listledgers -m``, JVM start included; counts what it printed if asked to.

    ``driver`` is the scheme of the metadata service's URI: BookKeeper's own or Pulsar's, which batches its reads.
    """
    tools = find_tools(tell)
    own = cluster.data / "conf" / "bookie-1.conf"
    conf = cluster.data / "conf" / "shell.conf"
    uri = {
        PULSAR_DRIVER: f"metadata-store:zk:{cluster.zookeeper}",
        OWN_DRIVER: f"{OWN_DRIVER}://{cluster.zookeeper}/ledgers",
    }
    lines = [line for line in own.read_text().splitlines() if not line.startswith("metadataServiceUri=")]
    conf.write_text("\n".join([*lines, f"metadataServiceUri={uri[driver]}", ""]))
    drivers = [option for option in kinds.PULSAR_JVM if option.startswith("-Dbookkeeper.metadata.")]
    command = [
        *(tools.java, "-Xmx1g", *drivers, f"-Dlog4j2.configurationFile={kinds.CONF / 'log4j2.xml'}"),
        *("-cp", tools.pulsar, "org.apache.bookkeeper.bookie.BookieShell"),
        *("-conf", str(conf), "listledgers", "-m"),
    ]
    output = cluster.data / "shell.out" if expected is not None else Path(os.devnull)
    with output.open("wb") as sink:
        cost = timed(lambda: subprocess.run(command, stdout=sink, stderr=subprocess.STDOUT, check=True))[1]
    if expected is not None:
        with output.open("rb") as printed:
            expect("ledgers listed by the shell", sum(b"ledgerID: " in line for line in printed), expected)
    return cost


def _ledger_paths(hosts: str) -> Iterator[str]:
    with kazoo(hosts) as client:
        for top in client.get_children("/ledgers"):
            if top.isdecimal() and len(top) == 2:
                for middle in client.get_children(f"/ledgers/{top}"):
                    for leaf in client.get_children(f"/ledgers/{top}/{middle}"):
                        yield f"/ledgers/{top}/{middle}/{leaf}"


def read_with_kazoo(hosts: str) -> int:
    """List and read every ledger z-node with kazoo alone, pipelined, undecoded; returns how many."""
    flying: deque[Any] = deque()
    read = 0
    with kazoo(hosts) as client:
        for path in _ledger_paths(hosts):
            flying.append(client.get_async(path))
            if len(flying) >= PIPELINED:
                flying.popleft().get()
                read += 1
        while flying:
            flying.popleft().get()
            read += 1
    return read


# ---------------------------------------------------------------------------------------------------------- measuring


@dataclass(frozen=True)
class Cost:
    """Seconds on the clock, and CPU seconds (to about one) of our processes and the clients we started.

    Other work on the machine lengthens the clock's seconds; CPU seconds it leaves nearly alone.
    """

    clock: float
    cpu: float


def timed(work: Callable[[], T]) -> tuple[T, Cost]:
    """The result and what it cost."""
    used, began = cpu_used(), time.monotonic()
    result = work()
    return result, cost_since(used, began)


def cost_since(used: float, began: float) -> Cost:
    """Since ``began``, when the CPU seconds were ``used``."""
    return Cost(round(time.monotonic() - began, 2), round(cpu_used() - used, 1))


def cpu_used() -> float:
    """CPU seconds so far of this process and of what it started, the sandbox apart."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(used for _, used in _family()) + ended.ru_utime + ended.ru_stime


@contextmanager
def resident() -> Iterator[list[int]]:
    """The peak of resident bytes of this process and all below it: driver JVM and Python workers.

    Pages that they share count once for each of them. A JVM that starts a command is there twice for a moment, with the
    same pages: only what two samples in a row agree on counts.
    """
    peak = [0]
    before = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal before
        while not done.wait(0.5):
            now = sum(rss for rss, _ in _family())
            peak[0] = max(peak[0], min(before, now))
            before = now

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


_servers: set[str] = set()
"""Process ids of the sandbox, which are children of ours too and no part of what is measured."""


def servers_are(cluster: Cluster) -> None:
    """Leave the sandbox's processes out of what is measured."""
    _servers.update(str(row["pid"]) for row in cluster.status())


def _family() -> list[tuple[int, float]]:
    """(resident bytes, CPU seconds) of this process and of all that descends from it: driver JVM, Python workers."""
    listing = subprocess.run(["ps", "-axo", "pid=,ppid=,rss=,time="], capture_output=True, text=True, check=True).stdout
    processes = [line.split() for line in listing.splitlines()]
    family = {str(os.getpid())}
    grown = 0
    while grown != len(family):
        grown = len(family)
        family |= {pid for pid, parent, _, _ in processes if parent in family and pid not in _servers}
    return [(int(rss) * 1024, _cpu_seconds(pid, used)) for pid, _, rss, used in processes if pid in family]


def _cpu_seconds(pid: str, used: str) -> float:
    """CPU seconds of a process: in hundredths where Linux tells them, else the whole seconds that ps prints."""
    try:
        fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return _seconds(used)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _seconds(used: str) -> float:
    """``[days-][hours:]minutes:seconds`` as ps prints them."""
    days, _, clock = used.rpartition("-")
    total = 0.0
    for part in clock.split(":"):
        total = total * 60 + float(part)
    return total + 86_400 * int(days or 0)


def _growth(rows: list[dict[str, Any]]) -> list[float]:
    """By what the plan's time grew over what the ledgers grew by, from each size to the next: 1 is linear."""
    return [
        round((after["plan"]["clock"] / before["plan"]["clock"]) / (after["ledgers"] / before["ledgers"]), 2)
        for before, after in pairwise(rows)
    ]


def show(document: dict[str, Any]) -> None:
    """The table, on stderr."""
    tell("seconds on the clock (CPU seconds)")
    heads = ("shell", "shell, Pulsar", "scan", "plain kazoo", "whole plan")
    tell(" ".join([f"{'ledgers':>9}", *(f"{head:>16}" for head in heads), f"{'peak MiB':>9}"]))
    for row in document["sizes"]:
        costs = [row.get(name) for name in ("shell", "shell_with_pulsar_driver", "scan", "kazoo", "plan")]
        cells = [f"{c['clock']:>8.1f} ({c['cpu']:>5.1f})" if c else "-" for c in costs]
        tell(" ".join([f"{row['ledgers']:>9}", *(f"{cell:>16}" for cell in cells), f"{row['peak_resident_mib']:>9}"]))


if __name__ == "__main__":
    main()
