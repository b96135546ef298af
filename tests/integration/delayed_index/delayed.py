"""Topics with delayed messages on a real cluster, as the tests of their indexes plant and break them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pulsar

from pulsar_lifecycle.delayed_index.bookkeeper_storage import BookKeeperBucketStorage
from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import repair
from pulsar_lifecycle.delayed_index.repair.repair_work import Repaired
from pulsar_lifecycle.delayed_index.stored import check_run
from pulsar_lifecycle.delayed_index.stored.check_run import check_delayed_indexes
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.bookkeeper.writer import BookieWriter
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.settings import BookKeeperSettings
from sandbox.clients import Admin, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes
from tests.integration.contracts.zk_nodes import settings
from tests.integration.pipeline import Pipeline, wait_unlisted, wait_until_unloaded_counts

MESSAGES = 170
"""Three snapshots: one for each of the topic's ledgers of 50 messages but the last."""
SPREAD_MS = 20_000
DAYS = (1, 3)
"""In how many days messages are due: one of two in the first, the other in the last."""
DAY_MS = 86_400_000
LONG = 300.0
"""Seconds that a broker may take on a busy machine."""
BROKERS = {
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "60",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "10",
}
"""As the sandbox's broker.conf says."""
FALLBACK = "allback to InMemoryDelayedDeliveryTracker"


@dataclass(frozen=True)
class Backlog:
    """A topic's messages; ``halves``: those due on each of :data:`DAYS`."""

    topic: str
    halves: Sequence[Sequence[bytes]]


def planted(sandbox: Cluster, client: pulsar.Client, topic: str) -> Backlog:
    """A topic whose messages are due in days, whatever a test takes: :func:`assert_each_comes_once` makes them due."""
    contents = topics.payloads(MESSAGES)
    now, every = int(time.time() * 1000), len(DAYS)
    due = [now + DAYS[number % every] * DAY_MS + number * 7919 % SPREAD_MS for number in range(MESSAGES)]
    topics.delayed_backlog(sandbox, client, topic, "s", contents, due)
    return Backlog(topic, [contents[first::every] for first in range(every)])


def unloaded(sandbox: Cluster, names: Sequence[str]) -> None:
    with Admin(sandbox.admin_url) as admin:
        for topic in names:
            admin.unload(topic)
    wait_unlisted(sandbox, names)
    wait_until_unloaded_counts(time.time())


def keys_of(sandbox: Cluster, topic: str) -> dict[str, str]:
    with sandbox.metadata() as zk:
        found = znodes.read_cursor(zk, topic, "s").cursorProperties
    return {item.name: item.value for item in found if item.name.startswith("#pulsar.internal.delayed")}


def set_key(sandbox: Cluster, topic: str, key: str, value: int) -> None:
    with sandbox.metadata() as zk:
        path = znodes.cursor_znode(topic, "s")
        cursor = znodes.read_cursor(zk, topic, "s")
        for item in cursor.cursorProperties:
            if item.name == key:
                item.value = str(value)
        zk.set(path, cursor.SerializeToString())


def forged(sandbox: Cluster, topic: str, key: str, ledger_id: int) -> int:
    """A snapshot like that of ``ledger_id`` whose last segment lost its last message; its ledger."""
    with (
        KazooStore(settings(sandbox.zookeeper)) as store,
        BookieReader(store, BookKeeperSettings()) as reader,
        closing(BookieWriter(store, BookKeeperSettings())) as writer,
    ):
        (metadata,) = stored_references.metadata_of(store, [ledger_id], "/ledgers")
        assert not isinstance(metadata, Exception)
        assert metadata.state is LedgerState.CLOSED
        *entries, last = [e.payload for e in reader.read(ledger_id, metadata, 0, metadata.last_entry_id)]
        shorter = last[: last.rindex(b"\n")]  # the tag of DelayedIndex, which no later byte of it is here
        storage = BookKeeperBucketStorage(store, reader, writer, (1, 1, 1))
        return storage.create_bucket_snapshot([*entries, shorter], key, topic, "s")


def checked(pipeline: Pipeline, namespace: str) -> tuple[Any, dict[str, Counter[IndexFinding]]]:
    """A scan that was checked, and its findings by topic."""
    epoch = pipeline.scan()
    check_delayed_indexes(pipeline.where, epoch.epoch_id)
    found: dict[str, Counter[IndexFinding]] = {}
    for row in pipeline.where.lake.read_epoch_table(epoch.epoch_id, check_run.FINDINGS).to_pylist():
        if row["namespace"] == namespace:
            found.setdefault(row["topic"], Counter())[IndexFinding(row["code"])] += max(1, row["messages"])
    return epoch, found


def applied(pipeline: Pipeline, epoch: Any, *, dry_run: bool = False) -> tuple[Order, dict[str, Repaired]]:
    summary, _ = make_repair_plan(pipeline.where, epoch)
    order = Order(summary.plan_id, summary.digest)
    return order, {one.topic: one for one in repair(pipeline.where, "repair", order, dry_run=dry_run)}


def remembered(sandbox: Cluster, topic: str) -> None:
    """Wait until the broker that loads the topic has every message of it in its tracker."""
    with Admin(sandbox.admin_url) as admin:

        def delayed() -> bool:
            found = admin.topic("GET", topic, "/stats")["subscriptions"]["s"]
            return bool(found["msgDelayed"] == MESSAGES)

        wait_for(f"all delayed messages of {topic} in its broker's memory", delayed, LONG)


def assert_each_comes_once(sandbox: Cluster, client: pulsar.Client, backlog: Backlog) -> None:
    """Each half when it is due, and only then.

    A broker hands out what is due within its tick, which is a policy of the namespace: a tick of days makes a half due
    without waiting. All is delayed until the dispatcher has read the whole topic: what is due before that may come by
    the index and by the reading, as brokers are.
    """
    path = f"/v2/namespaces/{Topic.parse(backlog.topic).namespace}/delayedDelivery"
    with Admin(sandbox.admin_url) as admin:
        admin.call("POST", path, {"active": True, "tickTime": 1000})
        consumer = client.subscribe(backlog.topic, "s", pulsar.ConsumerType.Shared)
        remembered(sandbox, backlog.topic)
        bell = client.create_producer(backlog.topic)
        for days, half in zip(DAYS, backlog.halves, strict=True):
            admin.call("POST", path, {"active": True, "tickTime": (days + 1) * DAY_MS})
            came = _received(consumer, len(half), lambda: bell.send(b"", deliver_after=timedelta(days=30)))
            assert sorted(came) == sorted(half)
        bell.close()
        consumer.close()


def _received(consumer: pulsar.Consumer, count: int, ring: Callable[[], object]) -> list[bytes]:
    """What comes and is acknowledged, until none comes for a while after ``count``.

    ``ring``: has the dispatcher read a message that is delayed, at which it takes up the tick in force.
    """
    came: list[bytes] = []
    until = time.monotonic() + LONG
    ring()
    while True:
        try:
            message = consumer.receive(3_000)
        except pulsar.Timeout:
            if len(came) >= count or time.monotonic() > until:
                return came
            ring()
        else:
            came.append(message.data())
            consumer.acknowledge(message)


def broker_log(sandbox: Cluster) -> str:
    return "".join(path.read_text(errors="replace") for path in (sandbox.data / "logs").glob("broker*.log*"))
