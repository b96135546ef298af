"""Topics with delayed messages on a real cluster, as the tests of their indexes plant and break them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import pulsar

from pulsar_lifecycle.delayed_index.bookkeeper_storage import BookKeeperBucketStorage
from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import Repaired, repair
from pulsar_lifecycle.delayed_index.stored import check_run
from pulsar_lifecycle.delayed_index.stored.check_run import check_delayed_indexes
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.bookkeeper.writer import BookieWriter
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.settings import BookKeeperSettings
from sandbox import topics, znodes
from sandbox.clients import Admin
from sandbox.cluster import Cluster
from tests.integration.contracts.zk_nodes import settings
from tests.integration.pipeline import Pipeline, wait_unlisted, wait_until_unloaded_counts

MESSAGES = 170
"""Three snapshots: one for each of the topic's ledgers of 50 messages but the last."""
SPREAD_MS = 20_000
BROKERS = {
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "60",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "10",
}
"""As the sandbox's broker.conf says."""
FALLBACK = "allback to InMemoryDelayedDeliveryTracker"


@dataclass(frozen=True)
class Backlog:
    """A topic whose messages are due from ``first_due`` (ms) on."""

    topic: str
    contents: Sequence[bytes]
    first_due: int
    snapshots: Sequence[int]


def planted(sandbox: Cluster, client: pulsar.Client, topic: str, due_in: float) -> Backlog:
    first = int((time.time() + due_in) * 1000)
    contents = topics.payloads(MESSAGES)
    due = [first + number * 7919 % SPREAD_MS for number in range(MESSAGES)]
    return Backlog(topic, contents, first, topics.delayed_backlog(sandbox, client, topic, "s", contents, due))


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


def delivered(client: pulsar.Client, topic: str) -> dict[bytes, list[int]]:
    """When (ms) each message came, until none came for a while after all were due."""
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    found: dict[bytes, list[int]] = {}
    with suppress(pulsar.Timeout):
        while True:
            message = consumer.receive(300_000 if len(found) < MESSAGES else 5_000)  # the first is due much later
            found.setdefault(message.data(), []).append(int(time.time() * 1000))
            consumer.acknowledge(message)
    consumer.close()
    return found


def assert_once_and_not_early(backlog: Backlog, found: Mapping[bytes, Sequence[int]]) -> None:
    assert set(found) == set(backlog.contents)
    assert {content: len(times) for content, times in found.items() if len(times) > 1} == {}
    for number, content in enumerate(backlog.contents):
        due = backlog.first_due + number * 7919 % SPREAD_MS
        assert found[content][0] >= due - 1500  # a broker's tick is a second, and not strict


def broker_log(sandbox: Cluster) -> str:
    return "".join(path.read_text(errors="replace") for path in (sandbox.data / "logs").glob("broker*.log*"))
