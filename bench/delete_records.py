"""Delete records of many partitions by one request, side by side with the bare writes and with the admin API.

    .venv/bin/python bench/delete_records.py [--partitions 1000] [--asked 1000] [--data FOLDER]

Starts a sandbox of its own (one ZooKeeper, one bookie, two brokers). Three partitioned topics of the same shape: each
partition lists ten closed ledgers of 50,000 entries, and an empty one behind them, where its subscription stands. Of
the first, one request deletes the ten of every partition, in the phases in which an operator has it: plan, apply,
the deletion run, the answers. Of the second, a plain client does the bare compare-and-set of each topic and the bare
deletion of each ledger, many in flight. Of the third, the broker is asked to ``truncate``, one partition after the
other; with fewer ``--asked`` than partitions, its seconds are extrapolated to all. Every HTTP request to a broker is
counted by phase, in ours. Progress and a table go to stderr, one JSON document to stdout. It fails when a count is
wrong, never because something was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
from ground import cpu_seconds, data_folder, expect, kazoo, new_ids, number, take_epoch, tell, write_settings

from pulsar_lifecycle.delete_records.apply_run import Patience, apply_delete_records
from pulsar_lifecycle.delete_records.records_planning import plan_delete_records
from pulsar_lifecycle.delete_records.request import DeleteRecordsResult, Lacks
from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion_queue.missing_topics import create_missing
from pulsar_lifecycle.formats import cursor, ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.model import MessagePosition, Position, Topic
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.runs import cluster as runs_cluster
from pulsar_lifecycle.runs.caps import Order
from resources.lifecycle import LifecycleResource
from sandbox.clients import Admin, wait_for
from sandbox.cluster import Cluster
from sandbox.servers import kinds

GOING = 10
"""Ledgers of each partition that go."""
PER_PARTITION = GOING + 1
ENTRIES, SIZE = 50_000, 50_000_000
NAMESPACE = "bench/records"
BROKERS = 2
IN_FLIGHT = 1_000
"""Requests that the plain client has in flight."""
UNTIL_UNLOADED = 10.0
"""Seconds after which a topic that was just written counts as unloaded, in the sandbox."""
AIM = 3.0
"""What a request may take, times the bare writes."""
CAPS = {"max_ledgers": 1 << 40, "max_share": 1.0, "max_bytes": 1 << 60, "max_ledgers_per_topic": 1 << 40}
SETTINGS: dict[str, dict[str, Any]] = {
    "zookeeper": {"slow_above": "30s", "stop_above": "60s"},
    "apply": CAPS,
    "orphans": {"max_shrinkage": 1.0, "max_shrinkage_raised": {"by": "bench", "why": "it deletes nearly all"}},
    "deletion": {
        "deliver_after": "0s",
        "deletes_per_second": 100_000_000,
        "bytes_per_second": 1 << 62,
        "idle_timeout": "1s",
    },
}


def main() -> None:
    """Measure all three and print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partitions", default="1000", help="partitions of one request (default 1000)")
    parser.add_argument("--asked", default="1000", help="partitions of which the broker is asked (default 1000)")
    parser.add_argument("--data", type=Path, help="folder for the servers' data (default: a temporary one)")
    options = parser.parse_args()
    with data_folder(options.data) as data:
        document = run(number(options.partitions), number(options.asked), data)
    print(json.dumps(document))
    show(document)


def run(partitions: int, asked: int, data: Path) -> dict[str, Any]:
    """Measure on one cluster; returns the document."""
    kinds.MEMORY["zookeeper"] = ("-Xmx1g", "-XX:MaxDirectMemorySize=64m")
    cluster = Cluster(data, tell)
    cluster.start(brokers=BROKERS, gc_wait=1800)
    try:
        with Admin(cluster.admin_url) as admin:
            admin.create_namespace(NAMESPACE)
        ours, bare = (_Partitions(cluster, name, partitions) for name in ("ours", "bare"))
        others = _Partitions(cluster, "asked", asked)
        where = LifecycleResource(config_file=str(write_settings(cluster, **SETTINGS))).cluster()
        where.spark.range(1).count()
        with Connections(where.settings) as ports:
            create_missing(ports.admin, where.settings.deletion.twoPhaseDeletionLedgerDeletionParallelism)
        load_before = os.getloadavg()[0]
        tell(f"{partitions} partitions: {partitions * GOING} ledgers go")
        written = _bare_writes(cluster, bare)
        phases = _delete_records(where, ours)
        truncated = _truncate(cluster, others)
        seconds = sum(phase.seconds for phase in phases.values())
        busy = sum(phase.busy for phase in phases.values())
        sequential = truncated / asked * partitions
        return {
            "bench": "delete_records",
            "cpus": os.cpu_count(),
            "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
            "settings": "deletion budget and read budget lifted; no delay of intents; topics unloaded",
            "brokers": BROKERS,
            "partitions": partitions,
            "ledgers": partitions * GOING,
            "bare_seconds": {name: round(took, 2) for name, took in written.items()},
            "phases": {name: phase.shown() for name, phase in phases.items()},
            "seconds": round(seconds, 1),
            "seconds_without_waits": round(busy, 1),
            "requests": sum(phase.requests for phase in phases.values()),
            "requests_per_partition": round(sum(phase.requests for phase in phases.values()) / partitions, 3),
            "over_bare": round(seconds / sum(written.values()), 1),
            "over_bare_without_waits": round(busy / sum(written.values()), 1),
            "within_aim": seconds <= AIM * sum(written.values()),
            "truncate": {"asked": asked, "seconds": round(truncated, 1), "extrapolated": asked != partitions},
            "truncate_seconds": round(sequential, 1),
            "truncate_over_ours": round(sequential / seconds, 2),
        }
    finally:
        cluster.stop(purge=True)


class _Partitions:
    """A partitioned topic: z-nodes as a broker leaves them when it unloads a topic, its ledgers without entries."""

    def __init__(self, cluster: Cluster, local: str, count: int) -> None:
        self._bookie = cluster.bookies[0]
        self._hosts = cluster.zookeeper
        self._ids = new_ids(self._hosts, count * PER_PARTITION)
        self.topics = [Topic.parse(f"persistent://{NAMESPACE}/{local}-partition-{n}") for n in range(count)]
        with kazoo(self._hosts) as zk:
            path = f"/admin/partitioned-topics/{NAMESPACE}/persistent/{local}"
            zk.create(path, json.dumps({"partitions": count, "properties": {}}).encode(), makepath=True)
            zk.ensure_path(f"/managed-ledgers/{NAMESPACE}/persistent")
            for parent in dict.fromkeys(ledger_path(i).rpartition("/")[0] for i in self._ids):
                zk.ensure_path(parent)
            for start in range(0, count, 50):
                transaction = zk.transaction()
                for partition in range(start, min(start + 50, count)):
                    for path, data in self._nodes(partition):
                        transaction.create(path, data)
                failed = [result for result in transaction.commit() if isinstance(result, Exception)]
                if failed:
                    raise failed[0]

    def ids(self, partition: int) -> list[int]:
        """Ledgers of a partition, the last of which stays."""
        return self._ids[partition * PER_PARTITION : (partition + 1) * PER_PARTITION]

    def going(self) -> list[int]:
        """Ledgers that go."""
        return [ledger for partition in range(len(self.topics)) for ledger in self.ids(partition)[:GOING]]

    def position(self, partition: int) -> MessagePosition:
        """The end of what goes."""
        return MessagePosition(self.ids(partition)[-1], 0)

    def kept(self, partition: int) -> bytes:
        """The z-node of a topic that lists its last ledger alone."""
        return managed_ledger.encode(ManagedLedgerInfo((LedgerInfo(self.ids(partition)[-1], 0, 0, 0),)))

    def left(self) -> int:
        """How many of the ledgers that go still have a z-node."""
        with kazoo(self._hosts) as zk:
            asked = [zk.exists_async(ledger_path(ledger)) for ledger in self.going()]
            return sum(one.get() is not None for one in asked)

    def _nodes(self, partition: int) -> Iterator[tuple[str, bytes]]:
        ids, name = self.ids(partition), self.topics[partition].managed_ledger
        tags = {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": name.encode()}
        closed_at = int(time.time() * 1000)
        for ledger_id in ids:
            entries = ENTRIES if ledger_id != ids[-1] else 0
            metadata = LedgerMetadata(
                *(LedgerState.CLOSED, 1, 1, 1, (Segment(0, (self._bookie,)),)),
                length=SIZE if entries else 0,
                last_entry_id=entries - 1,
                digest_type=DigestType.CRC32C,
                custom_metadata=tags,
            )
            yield ledger_path(ledger_id), ledger_metadata.encode(metadata)
        full = tuple(LedgerInfo(i, ENTRIES, SIZE, closed_at) for i in ids[:GOING])
        info = ManagedLedgerInfo((*full, LedgerInfo(ids[-1], 0, 0, 0)))
        yield f"/managed-ledgers/{name}", managed_ledger.encode(info)
        read = cursor.ManagedCursorInfo(-1, Position(ids[GOING - 1], ENTRIES - 1), last_active=closed_at)
        yield f"/managed-ledgers/{name}/subscription", cursor.encode(read)


# --------------------------------------------------------------------------------------------------------------- ours


@dataclass
class _Phase:
    """What one phase took: seconds on the clock and of our CPU, those it only waited for time, requests to brokers."""

    seconds: float = 0.0
    cpu: float = 0.0
    waited: float = 0.0
    requests: int = 0
    by_path: Counter[str] | None = None

    @property
    def busy(self) -> float:
        return self.seconds - self.waited

    def shown(self) -> dict[str, Any]:
        rounded = {name: round(getattr(self, name), 1) for name in ("seconds", "cpu", "waited")}
        return {**rounded, "requests": self.requests, "by_path": dict((self.by_path or Counter()).most_common(6))}


def _delete_records(where: runs_cluster.Cluster, ours: _Partitions) -> dict[str, _Phase]:
    """One request, phase by phase."""
    time.sleep(UNTIL_UNLOADED)
    take_epoch(where)
    phases: dict[str, _Phase] = {}
    offsets = {topic: ours.position(n) for n, topic in enumerate(ours.topics)}
    with _phase(phases, "plan"):
        summary, rows = plan_delete_records(where, offsets)
    planned = [row for row in rows.to_pylist() if row["error"] is None and len(row["ledgers"]) == GOING]
    expect("partitions planned", len(planned), len(offsets))
    order = Order(summary.plan_id, summary.digest)
    with _phase(phases, "apply"):
        applied = apply_delete_records(where, "bench", order, dry_run=False, patience=Patience(per_broker=3_600))
    wrong = [str(one) for one in applied.values() if one.error is not None and one.code != Lacks.DELETION]
    expect(f"partitions not applied ({wrong[:1]})", len(wrong), 0)
    expect("partitions written", _written(where, ours), len(offsets))
    take_epoch(where)  # the hourly scan: what is deleted must be younger than it
    with _phase(phases, "delete"):
        outcomes = deletion_run.delete_pending(where, "bench")
    deleted = sum(one.ledgers for one in outcomes if one.outcome == "deleted")
    expect("ledgers deleted", deleted, len(offsets) * GOING)
    with _phase(phases, "answer"):
        answered = apply_delete_records(where, "bench", order, dry_run=True)
    expect("partitions answered", sum(answered[t] == DeleteRecordsResult(p) for t, p in offsets.items()), len(offsets))
    expect("ledgers left", ours.left(), 0)
    return phases


def _written(where: runs_cluster.Cluster, ours: _Partitions) -> int:
    with Connections(where.settings, read_only=True) as ports:
        nodes = ports.store.read([f"/managed-ledgers/{topic.managed_ledger}" for topic in ours.topics])
    return sum(isinstance(node, Node) and len(managed_ledger.decode(node.data).ledgers) == 1 for node in nodes)


@contextmanager
def _phase(phases: dict[str, _Phase], name: str) -> Iterator[None]:
    """Measure what is within: this process's HTTP requests to brokers, and how long it slept for brokers' lists."""
    paths: deque[str] = deque()
    waits: deque[float] = deque()
    send, sleep = httpx.Client.send, SystemClock.sleep

    def counted(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        paths.append(f"{request.method} {_shape(request.url.path)}")
        return send(client, request, **options)

    def timed(clock: SystemClock, seconds: float) -> None:
        began = time.monotonic()
        sleep(clock, seconds)
        waits.append(time.monotonic() - began)

    used, began = cpu_seconds(), time.monotonic()
    with patch.object(httpx.Client, "send", counted), patch.object(SystemClock, "sleep", timed):
        yield
    took = time.monotonic() - began
    phases[name] = _Phase(took, cpu_seconds() - used, sum(waits), len(paths), Counter(paths))
    tell(f"{name}: {took:.1f} s, {len(paths)} requests to brokers")


def _shape(path: str) -> str:
    """A request's path without the number of a partition and the names around it."""
    parts = path.split("/")
    return "/".join("*" if "-partition-" in part or ":" in part else part for part in parts)


# ------------------------------------------------------------------------------------------------------------- others


def _bare_writes(cluster: Cluster, bare: _Partitions) -> dict[str, float]:
    """Seconds of one versioned write for each topic, and of one deletion for each ledger, without looking at any."""
    with kazoo(cluster.zookeeper) as zk:
        began = time.monotonic()
        flying: deque[Any] = deque()
        for n, topic in enumerate(bare.topics):
            flying.append(zk.set_async(f"/managed-ledgers/{topic.managed_ledger}", bare.kept(n), version=0))
            _await(flying, IN_FLIGHT)
        _await(flying, 0)
        written = time.monotonic()
        for ledger in bare.going():
            flying.append(zk.delete_async(ledger_path(ledger), version=0))
            _await(flying, IN_FLIGHT)
        _await(flying, 0)
        deleted = time.monotonic()
    expect("ledgers left by the bare deletions", bare.left(), 0)
    found = {"compare_and_sets": written - began, "deletions": deleted - written}
    tell(f"bare: {written - began:.2f} s, {deleted - written:.2f} s")
    return found


def _await(flying: deque[Any], most: int) -> None:
    while len(flying) > most:
        flying.popleft().get()


def _truncate(cluster: Cluster, others: _Partitions) -> float:
    """Seconds of asking for one partition after the other; what it deletes, it deletes some time after its answer."""
    with Admin(cluster.admin_url) as admin:
        began = time.monotonic()
        for topic in others.topics:
            admin.topic("DELETE", str(topic), "/truncate")
        seconds = time.monotonic() - began
    wait_for("the broker's deletions", lambda: others.left() == 0)
    tell(f"truncate: {len(others.topics)} partitions in {seconds:.1f} s")
    return seconds


def show(document: dict[str, Any]) -> None:
    """The table, on stderr."""
    tell(f"{'phase':>10} {'seconds':>9} {'CPU':>7} {'waited':>7} {'requests':>9}")
    for name, row in document["phases"].items():
        tell(f"{name:>10} {row['seconds']:>9} {row['cpu']:>7} {row['waited']:>7} {row['requests']:>9}")
        tell(f"           {row['by_path']}")
    names: Sequence[str] = ("bare_seconds", "seconds", "over_bare", "truncate_seconds", "truncate_over_ours")
    tell("; ".join(f"{name} {document[name]}" for name in names))


if __name__ == "__main__":
    main()
