"""The index of a subscription rebuilt from its topic, side by side with a broker that does it.

    .venv/bin/python bench/delayed_rebuild.py [--entries 1M] [--data FOLDER]

Starts a sandbox of its own (one ZooKeeper, one bookie, one broker with the brokers' defaults of delayed delivery). Two
topics of the same shape are written straight into it: ledgers of 50,000 delayed messages of 100 bytes, and one shared
subscription that has read nothing, and whose bucket properties are gone. Of the first we check, plan and repair the
subscription: its topic stays unloaded, and is read twice. The second one a broker loads for a consumer, and reads until
its tracker has every message. Then a broker loads the first one, and takes up what we wrote. CPU is ours with Spark's,
or the broker's; the bookie's is counted nowhere. Progress and a table go to stderr, one JSON document to stdout. It
fails when a count is wrong, never because something was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pulsar
from ground import (
    add_entries,
    cpu_seconds,
    data_folder,
    expect,
    kazoo,
    new_ids,
    number,
    take_epoch,
    tell,
    write_settings,
)
from metastore import cpu_used, servers_are

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle.delayed_index.broker_settings import BUCKET_FACTORY
from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import repair
from pulsar_lifecycle.delayed_index.stored.check_run import check_delayed_indexes
from pulsar_lifecycle.delayed_index.stored.index_reading import index_ports, read_topic
from pulsar_lifecycle.formats import cursor, ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.entry import StoredEntry
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import cluster as runs_cluster
from pulsar_lifecycle.runs.caps import Order
from resources.lifecycle import LifecycleResource
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.servers import kinds

PER_LEDGER = 50_000
SUBSCRIPTION = "s"
OURS, THEIRS = (Topic.parse(f"persistent://bench/{name}/t") for name in ("ours", "theirs"))
DAY_MS = 86_400_000
UNTIL_UNLOADED = 10.0
"""Seconds after which a topic that was just written counts as unloaded, in the sandbox."""
LONG = 3_600.0
DEFAULTS = {
    "delayedDeliveryMinIndexCountPerBucket": "50000",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "300",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "5000",
}
SETTINGS: dict[str, dict[str, Any]] = {
    "zookeeper": {"slow_above": "30s", "stop_above": "60s"},
    "apply": {"max_ledgers": 1 << 40, "max_share": 1.0, "max_bytes": 1 << 60, "max_ledgers_per_topic": 1 << 40},
    "delayed_index": {"brokers": DEFAULTS | {"delayedDeliveryTrackerFactoryClassName": BUCKET_FACTORY}},
}
UNITS = ("seconds", "cpu")
Phases = dict[str, dict[str, float]]


def main() -> None:
    """Measure both and print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", default="1M", help="delayed messages of each topic (default 1M)")
    parser.add_argument("--data", type=Path, help="folder for the servers' data (default: a temporary one)")
    options = parser.parse_args()
    with data_folder(options.data) as data:
        document = run(number(options.entries), data)
    print(json.dumps(document))
    show(document)


def run(entries: int, data: Path) -> dict[str, Any]:
    """Measure on one cluster; returns the document."""
    kinds.MEMORY["broker"] = ("-Xmx1g", "-XX:MaxDirectMemorySize=512m")
    cluster = Cluster(data, tell)
    cluster.start(gc_wait=1800)
    try:
        cluster.restart("broker-1", DEFAULTS)
        servers_are(cluster)
        with Admin(cluster.admin_url) as admin:
            for topic in (OURS, THEIRS):
                admin.create_namespace(str(topic.namespace))
        for topic in (OURS, THEIRS):
            write_topic(cluster, topic, entries)
        where = LifecycleResource(config_file=str(write_settings(cluster, **SETTINGS))).cluster()
        where.spark.range(1).count()
        load_before = os.getloadavg()[0]
        phases: Phases = {}
        rebuild(where, phases, entries)
        broker = cluster.state.servers["broker-1"].pid
        for name, topic in (("broker reads it all", THEIRS), ("broker takes up ours", OURS)):
            with phase(phases, name, lambda: cpu_seconds(broker or "self")):
                load(cluster, topic, entries)
        return {
            "bench": "delayed_rebuild",
            "cpus": os.cpu_count(),
            "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
            "settings": "read budget lifted; the brokers' defaults of delayed delivery; the scan is not counted",
            "entries": entries,
            "phases": phases,
            **compared(phases, entries),
        }
    finally:
        cluster.stop(purge=True)


def compared(phases: Phases, entries: int) -> dict[str, Any]:
    """Messages a second of both, on the clock and of CPU, and how many times longer the broker took."""
    sides = {"ours": ("check", "plan", "repair"), "broker": ("broker reads it all",)}
    took = {side: {unit: sum(phases[n][unit] for n in names) for unit in UNITS} for side, names in sides.items()}
    rates = {side: {f"messages_a_{unit}": round(entries / took[side][unit]) for unit in UNITS} for side in sides}
    return rates | {f"broker_over_ours_{unit}": round(took["broker"][unit] / took["ours"][unit], 2) for unit in UNITS}


def write_topic(cluster: Cluster, topic: Topic, count: int) -> None:
    """A topic of closed ledgers, as a broker leaves it when it unloads it; its messages are due within tomorrow."""
    ledgers = new_ids(cluster.zookeeper, -(-count // PER_LEDGER))
    times = int(time.time() * 1000) + DAY_MS + np.random.default_rng(17).integers(0, DAY_MS, count)
    name = topic.managed_ledger
    tags = {"application": b"pulsar", "component": b"managed-ledger", "pulsar/managed-ledger": name.encode()}
    infos: list[LedgerInfo] = []
    with kazoo(cluster.zookeeper) as zk:
        for n, ledger in enumerate(ledgers):
            payloads = [message(due) for due in times[n * PER_LEDGER : (n + 1) * PER_LEDGER].tolist()]
            lengths = np.cumsum([len(payload) for payload in payloads]).tolist()
            numbered = enumerate(zip(lengths, payloads, strict=True))
            add_entries(
                cluster.bookies[0], (StoredEntry(ledger, at, at - 1, length, one) for at, (length, one) in numbered)
            )
            metadata = LedgerMetadata(
                *(LedgerState.CLOSED, 1, 1, 1, (Segment(0, (cluster.bookies[0],)),)),
                length=lengths[-1],
                last_entry_id=len(payloads) - 1,
                digest_type=DigestType.CRC32C,
                custom_metadata=tags,
            )
            zk.create(ledger_path(ledger), ledger_metadata.encode(metadata), makepath=True)
            infos.append(LedgerInfo(ledger, len(payloads), lengths[-1], int(time.time() * 1000)))
        path = f"/managed-ledgers/{name}"
        zk.create(path, managed_ledger.encode(ManagedLedgerInfo(tuple(infos))), makepath=True)
        nothing_read = cursor.ManagedCursorInfo(-1, Position(ledgers[0], -1), last_active=int(time.time() * 1000))
        zk.create(f"{path}/{SUBSCRIPTION}", cursor.encode(nothing_read))
    tell(f"{topic}: {count} delayed messages in {len(ledgers)} ledgers")


def message(due: int) -> bytes:
    """An entry of a topic's ledger, as a broker stores it."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=due - DAY_MS, deliver_at_time=due)
    described = metadata.SerializeToString()
    return len(described).to_bytes(4, "big") + described + b"x" * 100


@contextmanager
def phase(phases: Phases, name: str, cpu: Callable[[], float] = cpu_used) -> Iterator[None]:
    """Measure what is within: seconds on the clock, and of CPU: ours with all that we started, or another process's."""
    used, began = cpu(), time.monotonic()
    yield
    took = time.monotonic() - began
    phases[name] = {"seconds": round(took, 1), "cpu": round(cpu() - used, 1)}
    tell(f"{name}: {phases[name]}")


def rebuild(where: runs_cluster.Cluster, phases: Phases, entries: int) -> None:
    """Ours: from a scan to the buckets."""
    namespaces = [str(OURS.namespace)]
    time.sleep(UNTIL_UNLOADED)
    epoch = take_epoch(where)
    with phase(phases, "check"):
        check_delayed_indexes(where, epoch.epoch_id, namespaces)
    with phase(phases, "plan"):
        summary, rows = make_repair_plan(where, epoch, namespaces)
    expect("messages planned", sum(rows.column("messages").to_pylist()), entries)
    with phase(phases, "repair"):
        done = repair(where, "bench", Order(summary.plan_id, summary.digest), dry_run=False)
    expect(f"subscriptions rebuilt ({done})", sum(one.level == "rebuild" for one in done), 1)
    with Connections(where.settings, read_only=True) as ports:
        stored = read_topic(index_ports(ports), OURS, where.settings.bookkeeper.ledgers_root)
    expect("messages indexed", sum(len(one.indexes) for one in stored.subscriptions[0].buckets), entries)


def load(cluster: Cluster, topic: Topic, entries: int) -> None:
    """A broker loads a topic for a consumer, until its tracker has every message."""
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin:
        consumer = client.subscribe(str(topic), SUBSCRIPTION, pulsar.ConsumerType.Shared)

        def tracked() -> bool:
            found = admin.topic("GET", str(topic), "/stats")["subscriptions"][SUBSCRIPTION]
            return bool(found["msgDelayed"] >= entries)

        wait_for(f"{entries} messages in the broker's tracker", tracked, LONG)
        found = admin.topic("GET", str(topic), "/stats")["subscriptions"][SUBSCRIPTION]
        expect("messages delayed", found["msgDelayed"], entries)
        consumer.close()


def show(document: dict[str, Any]) -> None:
    """The table, on stderr."""
    tell(f"{'phase':>20} {'seconds':>9} {'CPU':>7}")
    for name, row in document["phases"].items():
        tell(f"{name:>20} {row['seconds']:>9} {row['cpu']:>7}")
    names = ("ours", "broker", "broker_over_ours_seconds", "broker_over_ours_cpu", "load_average")
    tell("; ".join(f"{name} {document[name]}" for name in names))


if __name__ == "__main__":
    main()
