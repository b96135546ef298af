"""Ledger deletion, side by side with the BookKeeper client's own deletes and with the BookKeeper shell.

    .venv/bin/python bench/deletion.py [--sizes 10k,100k] [--data FOLDER]

Starts a sandbox of its own (one ZooKeeper, one bookie, one broker). At each size, one after the other on fresh
ledgers: the BookKeeper Java client's ``asyncDeleteLedger``, issued as fast as its answers come; ``bookkeeper shell
deleteledger`` (a few, one JVM each); our deletion step alone; the whole deletion run as the job takes it, from the
queue's first message to the last acknowledgement: fresh owner checks, archive, deletion, confirmation, journal, with
the latency guard on and only the budget lifted; the same run over the plan itself, without the queue; a client's
produce latency, without a run and during another one. At the end client and step once more on ZooKeeper alone, bookie
and broker stopped: both watch every z-node, and a deletion costs each of them a notification. Progress and a table go
to stderr, one JSON document to stdout. It fails when a count is wrong, never because something was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pulsar
from ground import data_folder, expect, kazoo, number, take_epoch, tell, write_settings

from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion.workers import OutcomeCount
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.ports import Deletion, Node
from pulsar_lifecycle.runs import cluster as runs_cluster
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Order
from resources.lifecycle import LifecycleResource
from sandbox.clients import pulsar_client
from sandbox.cluster import Cluster
from sandbox.servers import kinds
from sandbox.servers.toolchain import Tools, find_tools

SHELL_DELETIONS = 5
OUTSTANDING = 5_000
"""Deletes that the Java client has in flight."""
PER_TOPIC = 10
NAMESPACE = "bench/deleted"
FIRST_ID = 1_000_000
CAPS = {"max_ledgers": 1 << 40, "max_share": 1.0, "max_bytes": 1 << 60, "max_ledgers_per_topic": 1 << 40}
SETTINGS = {
    "apply": CAPS,
    "orphans": {"max_shrinkage": 1.0, "max_shrinkage_raised": {"by": "bench", "why": "it deletes nearly all"}},
    "deletion": {
        "deliver_after": "0s",
        "deletes_per_second": 100_000_000,
        "bytes_per_second": 1 << 62,
        "idle_timeout": "1s",
    },
}
PRODUCED_PER_SECOND = 200
QUIET_SECONDS = 10


def main() -> None:
    """Run every size and print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10k,100k", help="ledgers per contender, ascending (default 10k,100k)")
    parser.add_argument("--data", type=Path, help="folder for the servers' data (default: a temporary one)")
    options = parser.parse_args()
    with data_folder(options.data) as data:
        document = run([number(size) for size in options.sizes.split(",")], data)
    print(json.dumps(document))
    show(document)


def run(sizes: list[int], data: Path) -> dict[str, Any]:
    """Measure every size on one cluster; returns the document."""
    kinds.MEMORY["zookeeper"] = ("-Xmx1g", "-XX:MaxDirectMemorySize=64m")
    cluster = Cluster(data, tell)
    cluster.start(gc_wait=1800)
    try:
        tools = find_tools(tell)
        where = LifecycleResource(config_file=str(write_settings(cluster, **SETTINGS))).cluster()
        load_before = os.getloadavg()[0]
        ledgers = _Ledgers(cluster)
        rows = [_measure(cluster, where, tools, ledgers, size) for size in sizes]
        for name in cluster.running():
            if name != "zookeeper":
                cluster.kill(name)
        for row, size in zip(rows, sizes, strict=True):
            row["zookeeper_alone"] = _measure_alone(cluster, where, tools, ledgers, size)
        return {
            "bench": "deletion",
            "cpus": os.cpu_count(),
            "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
            "settings": "deletion budget lifted; latency guard on (slow above 100 ms, stop above 500 ms); batch 500",
            "sizes": rows,
        }
    finally:
        cluster.stop(purge=True)


def _measure(
    cluster: Cluster, where: runs_cluster.Cluster, tools: Tools, ledgers: _Ledgers, size: int
) -> dict[str, Any]:
    client = _delete_with_client(cluster, tools, ledgers.make(size))
    tell(f"{size} ledgers: BookKeeper client {client:.0f}/s")
    shell = _delete_with_shell(cluster, tools, ledgers.make(SHELL_DELETIONS))
    tell(f"{size} ledgers: BookKeeper shell {shell:.2f}/s")
    step = _delete_step(where, ledgers.make(size))
    tell(f"{size} ledgers: deletion step {step:.0f}/s")
    _send(where, ledgers, size)
    seconds = _delete_pending(where, ledgers, size)
    whole = size / seconds
    tell(f"{size} ledgers: whole run {whole:.0f}/s")
    direct = _delete_directly(where, ledgers, size)
    tell(f"{size} ledgers: whole run without the queue {direct:.0f}/s")
    with _producing(cluster.service_url, seconds=QUIET_SECONDS) as quiet:
        pass
    _send(where, ledgers, size)
    with _producing(cluster.service_url) as busy:
        _delete_pending(where, ledgers, size)
    return {
        "ledgers": size,
        "client_per_second": round(client),
        "shell_per_second": round(shell, 2),
        "step_per_second": round(step),
        "run_per_second": round(whole),
        "run_seconds": round(seconds, 1),
        "direct_per_second": round(direct),
        "step_over_client": round(step / client, 2),
        "run_over_client": round(whole / client, 2),
        "direct_over_client": round(direct / client, 2),
        "run_over_shell": round(whole / shell),
        "produce_p99_ms": {"quiet": quiet["p99"], "during_the_run": busy["p99"]},
        "produce_median_ms": {"quiet": quiet["median"], "during_the_run": busy["median"]},
    }


def _measure_alone(
    cluster: Cluster, where: runs_cluster.Cluster, tools: Tools, ledgers: _Ledgers, size: int
) -> dict[str, float]:
    client = _delete_with_client(cluster, tools, ledgers.make(size))
    step = _delete_step(where, ledgers.make(size))
    tell(f"{size} ledgers, ZooKeeper alone: BookKeeper client {client:.0f}/s, deletion step {step:.0f}/s")
    return {
        "client_per_second": round(client),
        "step_per_second": round(step),
        "step_over_client": round(step / client, 2),
    }


class _Ledgers:
    """Closed ledgers of topics that do not exist, as z-nodes; ten to a topic."""

    def __init__(self, cluster: Cluster) -> None:
        self._hosts = cluster.zookeeper
        self._bookie = cluster.bookies[0]
        self._next = FIRST_ID
        self._last: list[int] = []
        with kazoo(self._hosts) as zk:
            zk.ensure_path(f"/managed-ledgers/{NAMESPACE}/persistent")
            zk.create(f"/admin/policies/{NAMESPACE}", b"{}", makepath=True)

    def make(self, count: int) -> list[int]:
        """Create z-nodes; returns their ids."""
        ids = self._last = list(range(self._next, self._next + count))
        self._next += count
        with kazoo(self._hosts) as zk:
            for parent in dict.fromkeys(ledger_path(i).rpartition("/")[0] for i in ids):
                zk.ensure_path(parent)
            for start in range(0, count, 1_000):
                transaction = zk.transaction()
                for ledger in ids[start : start + 1_000]:
                    transaction.create(ledger_path(ledger), self._metadata(ledger // PER_TOPIC))
                failed = [result for result in transaction.commit() if isinstance(result, Exception)]
                if failed:
                    raise failed[0]
        return ids

    def left(self) -> int:
        """How many of a thousand of those made last still have a z-node."""
        some = self._last[:: max(1, len(self._last) // 1_000)]
        with kazoo(self._hosts) as zk:
            return sum(zk.exists(ledger_path(ledger)) is not None for ledger in some)

    def _metadata(self, topic: int) -> bytes:
        name = f"{NAMESPACE}/persistent/topic-{topic:07d}"
        tags = {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": name.encode()}
        return ledger_metadata.encode(
            LedgerMetadata(
                LedgerState.CLOSED,
                1,
                1,
                1,
                (Segment(0, (self._bookie,)),),
                length=50_000_000,
                last_entry_id=49_999,
                digest_type=DigestType.CRC32C,
                custom_metadata=tags,
            )
        )


# --------------------------------------------------------------------------------------------------------------- ours


def _delete_step(where: runs_cluster.Cluster, ids: list[int]) -> float:
    """Ledgers per second of the guarded, versioned transactions alone, in the run's batches."""
    settings = where.settings
    batch = settings.deletion.batch
    with Connections(settings) as ports:
        store = ports.store
        lease = control.take_lease(store, "bench", ports.clock, 10)
        paths = [ledger_path(ledger) for ledger in ids]
        deletions = [Deletion(n.path, n.stat.version) for n in store.read(paths) if isinstance(n, Node)]
        began = time.monotonic()
        for start in range(0, len(deletions), batch * 20):
            results = store.delete_many(deletions[start : start + batch * 20], lease.guard)
            expect("deleted", sum(r.outcome == "deleted" for r in results), len(results))
        seconds = time.monotonic() - began
        control.release_lease(store, lease)
    return len(ids) / seconds


def _send(where: runs_cluster.Cluster, ledgers: _Ledgers, size: int) -> None:
    """Make ledgers, plan, send the intents, and scan once more."""
    ledgers.make(size)
    applied = deletion_run.apply_plan(where, "bench", _plan(where, size), lambda line: None)
    expect("intents sent", applied.sent, size)
    take_epoch(where)


def _delete_pending(where: runs_cluster.Cluster, ledgers: _Ledgers, size: int) -> float:
    """Seconds of the whole run."""
    began = time.monotonic()
    outcomes = deletion_run.delete_pending(where, "bench")
    seconds = time.monotonic() - began
    _expect_deleted(ledgers, outcomes, size)
    return seconds


def _delete_directly(where: runs_cluster.Cluster, ledgers: _Ledgers, size: int) -> float:
    """Ledgers per second of the whole run when the plan is its queue."""
    ledgers.make(size)
    order = _plan(where, size)
    take_epoch(where)
    began = time.monotonic()
    outcomes = deletion_run.apply_directly(where, "bench", order)
    seconds = time.monotonic() - began
    _expect_deleted(ledgers, outcomes, size)
    return size / seconds


def _expect_deleted(ledgers: _Ledgers, outcomes: list[OutcomeCount], size: int) -> None:
    expect("ledgers deleted", sum(o.ledgers for o in outcomes if o.outcome == "deleted"), size)
    expect("ledgers left", ledgers.left(), 0)


def _plan(where: runs_cluster.Cluster, size: int) -> Order:
    """Scan twice and plan; the order to apply all of it."""
    take_epoch(where)
    summary, rows = deletion_run.make_plan(where, take_epoch(where))
    expect("ledgers planned", rows.num_rows, size)
    return Order(summary.plan_id, summary.digest)


# ------------------------------------------------------------------------------------------------------------- others


def _delete_with_client(cluster: Cluster, tools: Tools, ids: list[int]) -> float:
    """Ledgers per second, without the JVM's start and the client's connecting."""
    listing = cluster.data / "ids.txt"
    listing.write_text("".join(f"{ledger}\n" for ledger in ids))
    program = Path(__file__).with_name("DeleteLedgers.java")
    uri = f"zk+hierarchical://{cluster.zookeeper}/ledgers"
    command = [tools.java, "-Xmx1g", f"-Dlog4j2.configurationFile={kinds.CONF / 'log4j2.xml'}", "-cp", tools.pulsar]
    done = subprocess.run(
        [*command, str(program), uri, str(listing), str(OUTSTANDING)], capture_output=True, text=True, check=False
    )
    found = dict(line.split(": ") for line in done.stdout.splitlines() if line.startswith(("seconds: ", "failed: ")))
    if done.returncode or found.get("failed") != "0":
        raise SystemExit(f"the BookKeeper client failed: {done.stdout[-500:]} {done.stderr[-1000:]}")
    return len(ids) / float(found["seconds"])


def _delete_with_shell(cluster: Cluster, tools: Tools, ids: list[int]) -> float:
    """Ledgers per second of ``bookkeeper shell deleteledger``, which takes one ledger a command."""
    conf = cluster.data / "conf" / "bookie-1.conf"
    drivers = [option for option in kinds.PULSAR_JVM if option.startswith("-Dbookkeeper.metadata.")]
    began = time.monotonic()
    for ledger in ids:
        command = [
            *(tools.java, "-Xmx256m", *drivers, f"-Dlog4j2.configurationFile={kinds.CONF / 'log4j2.xml'}"),
            *("-cp", tools.pulsar, "org.apache.bookkeeper.bookie.BookieShell", "-conf", str(conf)),
            *("deleteledger", "-ledgerid", str(ledger), "-force"),
        ]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return len(ids) / (time.monotonic() - began)


@contextmanager
def _producing(service_url: str, seconds: float = 0) -> Iterator[dict[str, float]]:
    """A client that produces at a steady rate meanwhile, in a process of its own; its latencies in ms afterwards."""
    found: dict[str, float] = {}
    context = get_context("spawn")
    with context.Manager() as manager, context.Pool(1) as pool:
        begun, stop = manager.Event(), manager.Event()
        pending = pool.apply_async(_produce, (service_url, begun, stop))
        begun.wait(60)
        try:
            yield found
            time.sleep(seconds)
        finally:
            stop.set()
        latencies = pending.get(timeout=60)
    found["median"] = round(statistics.median(latencies), 1)
    found["p99"] = round(statistics.quantiles(latencies, n=100)[98], 1)


def _produce(service_url: str, begun: Any, stop: Any) -> list[float]:
    latencies: list[float] = []
    with pulsar_client(service_url) as client:
        producer = client.create_producer("persistent://public/default/bench-latency")
        for _ in range(50):
            producer.send(b"warm")
        begun.set()
        while not stop.is_set():
            for _ in range(PRODUCED_PER_SECOND // 10):
                began = time.monotonic()

                def sent(result: pulsar.Result, message_id: Any, began: float = began) -> None:
                    latencies.append((time.monotonic() - began) * 1000)

                producer.send_async(b"x" * 1000, sent)
                time.sleep(1 / PRODUCED_PER_SECOND)
        producer.flush()
    return latencies


def show(document: dict[str, Any]) -> None:
    """The table, on stderr."""
    heads = ("ledgers", "client/s", "shell/s", "step/s", "run/s", "direct/s", "step:client", "run:client")
    tell(" ".join(f"{head:>12}" for head in (*heads, "alone s:c", "p99 quiet", "p99 busy")))
    for row in document["sizes"]:
        latency = row["produce_p99_ms"]
        cells = [
            row["ledgers"],
            *(row[f"{name}_per_second"] for name in ("client", "shell", "step", "run", "direct")),
            *(row["step_over_client"], row["run_over_client"], row["zookeeper_alone"]["step_over_client"]),
            *(latency["quiet"], latency["during_the_run"]),
        ]
        tell(" ".join(f"{cell:>12}" for cell in cells))


if __name__ == "__main__":
    main()
