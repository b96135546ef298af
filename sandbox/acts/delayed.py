"""The demo's act about delayed messages: twenty thousand of them for three subscriptions, each index broken otherwise.

Belongs here: making the topic, breaking what is stored, and reading every message back as its consumers do. Not
here: driving the jobs (:mod:`sandbox.demo`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import pulsar

from pulsar_lifecycle.delayed_index.bookkeeper_storage import BookKeeperBucketStorage
from pulsar_lifecycle.delayed_index.keys import bucket_key, parse_bucket_key
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole, seal
from pulsar_lifecycle.formats.delayed_indexes import Indexes
from pulsar_lifecycle.formats.delayed_table import decode_table
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.settings import Settings
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes

NAMESPACE = "public/reminders"
TOPIC = f"persistent://{NAMESPACE}/due"
GONE, NOWHERE, MERGED = "ledger-deleted", "key-to-nowhere", "merged-and-lost"
"""The subscriptions, by what is wrong with the index of each."""
FOUND = {
    GONE: IndexFinding.KEY_WITHOUT_LEDGER,
    NOWHERE: IndexFinding.KEY_WITHOUT_LEDGER,
    MERGED: IndexFinding.MERGED_AND_LOST,
}
"""What must be found of each."""
COUNT = 20_000
BROKER = {
    "managedLedgerMaxEntriesPerLedger": "2500",
    "delayedDeliveryMinIndexCountPerBucket": "1000",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "500",
}
"""Ledgers and buckets as long as they must be for so many messages."""
BUCKETS = COUNT // int(BROKER["managedLedgerMaxEntriesPerLedger"]) - 1
"""Of each subscription: one for each ledger of the topic but the last."""
SPREAD_MS = 20_000
EARLY_MS = 1_500
"""A broker's tick is a second, and it does not deliver strictly."""
_NO_LEDGER = 1 << 40


@dataclass(frozen=True)
class Reminders:
    """The topic's messages are due from ``first_due`` (ms) on."""

    first_due: int

    def due(self, number: int) -> int:
        """When a message is due (ms)."""
        return self.first_due + number * 7919 % SPREAD_MS


def seed(cluster: Cluster, settings: Settings, due_in: float) -> Reminders:
    """Make the topic, have its broker store the indexes, unload it, and break each of them."""
    cluster.restart("broker-1", BROKER)
    made = Reminders(int((time.time() + due_in) * 1000))
    with Admin(cluster.admin_url) as admin, pulsar_client(cluster.service_url) as client, cluster.metadata() as zk:
        admin.create_namespace(NAMESPACE)
        consumers = [
            client.subscribe(TOPIC, name, pulsar.ConsumerType.Shared, receiver_queue_size=1)
            for name in (GONE, NOWHERE, MERGED)
        ]
        due = [made.due(number) for number in range(COUNT)]
        topics.publish(client, TOPIC, topics.payloads(COUNT, "reminder"), deliver_at=due)
        for name in (GONE, NOWHERE, MERGED):
            wait_for(
                f"the buckets of {name}",
                lambda name=name: len(znodes.bucket_ledgers(znodes.read_cursor(zk, TOPIC, name))) >= BUCKETS,
            )
        for consumer in consumers:
            consumer.close()
        admin.unload(TOPIC)
        wait_for("the broker to forget the topic", lambda: not _loaded(admin))
    _break(cluster, settings)
    return made


def read_back(cluster: Cluster, made: Reminders) -> list[str]:
    """What is wrong with what the three subscriptions receive: lost, repeated, early."""
    came: dict[str, list[tuple[int, int]]] = {name: [] for name in (GONE, NOWHERE, MERGED)}
    with pulsar_client(cluster.service_url) as client, ExitStack() as closing:
        for name, found in came.items():
            listener = _noted(found)
            consumer = client.subscribe(TOPIC, name, pulsar.ConsumerType.Shared, message_listener=listener)
            closing.callback(consumer.close)
        wait_for("the reminders", lambda: all(len(found) >= COUNT for found in came.values()), 600)
        time.sleep(2)  # what comes twice comes by now
    wrong: list[str] = []
    for name, found in came.items():
        numbers = {number for number, _ in found}
        early = sum(at < made.due(number) - EARLY_MS for number, at in found)
        if len(numbers) < COUNT or len(found) > COUNT or early:
            wrong.append(f"{name}: {COUNT - len(numbers)} lost, {len(found) - len(numbers)} twice, {early} early")
    cluster.restart("broker-1", {})
    return wrong


def _noted(found: list[tuple[int, int]]) -> Callable[[pulsar.Consumer, pulsar.Message], None]:
    """Acknowledges every message, and notes its number and when (ms) it came."""

    def listen(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        found.append((int(message.data().split()[1]), int(time.time() * 1000)))
        consumer.acknowledge(message)

    return listen


def _loaded(admin: Admin) -> bool:
    bundles = admin.call("GET", "/v2/broker-stats/topics").get(NAMESPACE, {})
    return any(TOPIC in names for domains in bundles.values() for names in domains.values())


def _break(cluster: Cluster, settings: Settings) -> None:
    """One snapshot's ledger deleted, one key that points nowhere, and two buckets merged so that some are lost."""
    with cluster.metadata() as zk:
        keys = {name: _keys(cluster, name) for name in (GONE, NOWHERE, MERGED)}
        zk.delete(znodes.ledger_znode(list(keys[GONE].values())[1]))
        nowhere = list(keys[NOWHERE])[2]
        first, second = list(keys[MERGED])[:2]
        merged = _merged(settings, [keys[MERGED][first], keys[MERGED][second]], first, second)
        _rename(cluster, NOWHERE, {**keys[NOWHERE], nowhere: _NO_LEDGER})
        rest = {key: value for key, value in keys[MERGED].items() if key not in (first, second)}
        _rename(cluster, MERGED, {**rest, merged[0]: merged[1]})


def _merged(settings: Settings, buckets: list[int], first: str, second: str) -> tuple[str, int]:
    """Key and ledger of a snapshot of two that lacks the segments that were loaded, as of apache/pulsar#26251."""
    start, end = parse_bucket_key(first)[0], parse_bucket_key(second)[1]
    with Connections(settings) as ports:
        storage = BookKeeperBucketStorage(ports.store, ports.reader, ports.writer, (1, 1, 1))
        left: list[Indexes] = []
        for bucket in buckets:
            table = storage.get_bucket_snapshot_metadata(bucket)
            segments = storage.get_bucket_snapshot_segments(bucket, 1, len(decode_table(table)))
            _, indexes, bounds = read_whole([table, *segments])
            left.append(indexes[int(bounds[1]) :])
        made = seal(Indexes.concatenate(left), 60_000, 500, start, end)
        key = bucket_key(start, end)
        return key, storage.create_bucket_snapshot(made.entries, key, TOPIC, MERGED)


def _keys(cluster: Cluster, subscription: str) -> dict[str, int]:
    """The buckets that a cursor names, by range."""
    with cluster.metadata() as zk:
        named = znodes.read_cursor(zk, TOPIC, subscription).cursorProperties
    found = {item.name: int(item.value) for item in named if item.name.startswith("#pulsar.internal.delayed")}
    return dict(sorted(found.items(), key=lambda item: parse_bucket_key(item[0])))


def _rename(cluster: Cluster, subscription: str, keys: dict[str, int]) -> None:
    with cluster.metadata() as zk:
        cursor = znodes.read_cursor(zk, TOPIC, subscription)
        del cursor.cursorProperties[:]
        for name, value in keys.items():
            cursor.cursorProperties.add(name=name, value=str(value))
        zk.set(znodes.cursor_znode(TOPIC, subscription), cursor.SerializeToString())
