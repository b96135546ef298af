"""Delayed indexes on a real cluster: broken by hand, found, repaired, and then recovered by a real broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import pulsar
import pytest

from pulsar_lifecycle.delayed_index.bookkeeper_storage import BookKeeperBucketStorage
from pulsar_lifecycle.delayed_index.repair.planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import Repaired, repair, undo_repair
from pulsar_lifecycle.delayed_index.stored import check_run
from pulsar_lifecycle.delayed_index.stored.check_run import check_delayed_indexes
from pulsar_lifecycle.delayed_index.stored.codes import IndexFinding
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.bookkeeper.writer import BookieWriter
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.records.codes import Code
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.settings import BookKeeperSettings
from sandbox import topics, znodes
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from tests.integration.pipeline import Pipeline, new_namespace, wait_listed, wait_unlisted, wait_until_unloaded_counts
from tests.integration.zk_nodes import settings

pytestmark = pytest.mark.integration

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
            message = consumer.receive(60_000 if len(found) < MESSAGES else 5_000)
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


def test_broken_indexes_are_found_and_repaired_and_a_broker_recovers_them(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "index")
    names = {name: f"persistent://{namespace}/{name}" for name in ("whole", "gone", "lost", "undone", "live")}
    pipeline = pipelines({"delayed_index": {"namespaces": [namespace], "brokers": BROKERS}})
    with pulsar_client(sandbox.service_url) as client:
        backlogs = {name: planted(sandbox, client, topic, 75) for name, topic in names.items()}
        unloaded(sandbox, [topic for name, topic in names.items() if name != "live"])
        fallbacks = broker_log(sandbox).count(FALLBACK)

        before = {name: keys_of(sandbox, topic) for name, topic in names.items()}
        assert all(len(keys) == 3 for keys in before.values())
        key, value = sorted(before["gone"].items())[1]
        with sandbox.metadata() as zk:
            zk.delete(znodes.ledger_znode(int(value)))
        for name in ("lost", "undone", "live"):
            key, value = sorted(before[name].items())[0]
            if name != "live":
                set_key(sandbox, names[name], key, forged(sandbox, names[name], key, int(value)))
        broken = {name: keys_of(sandbox, topic) for name, topic in names.items()}

        epoch, found = checked(pipeline, namespace)
        assert names["whole"] not in found
        assert names["live"] not in found
        assert set(found[names["gone"]]) == {
            IndexFinding.KEY_WITHOUT_LEDGER,
            IndexFinding.RECOVERY_FALLBACK,
            IndexFinding.NOT_INDEXED,
        }
        for name in ("lost", "undone"):
            assert found[names[name]][IndexFinding.LOST] == 1
            assert IndexFinding.BITMAP_UNLIKE_SEGMENTS in found[names[name]]
            assert IndexFinding.LEDGER_WITHOUT_KEY in found[names[name]]  # the snapshot that the forged one replaced

        _, planned = applied(pipeline, epoch, dry_run=True)
        assert {topic: (one.level, one.outcome) for topic, one in planned.items()} == {
            names["gone"]: ("drop", Outcome.GOES),
            names["lost"]: ("rebuild", Outcome.GOES),
            names["undone"]: ("rebuild", Outcome.GOES),
        }
        assert {name: keys_of(sandbox, topic) for name, topic in names.items()} == broken

        order, done = applied(pipeline, epoch)
        assert {one.outcome for one in done.values()} == {Outcome.DONE}, done
        for name in ("gone", "lost", "undone"):
            assert keys_of(sandbox, names[name]) == done[names[name]].after != broken[name]
        again = {one.topic: one.outcome for one in repair(pipeline.where, "again", order, dry_run=False)}
        assert set(again.values()) == {Outcome.LEFT}  # none has the buckets of the plan by now

        back = {one.topic: one for one in undo_repair(pipeline.where, "undo", order.plan_id, dry_run=False)}
        assert keys_of(sandbox, names["undone"]) == broken["undone"]
        assert back[names["undone"]].outcome is Outcome.DONE
        _, done = applied(pipeline, checked(pipeline, namespace)[0])
        assert done[names["lost"]].outcome is Outcome.DONE
        _, found = checked(pipeline, namespace)
        left = {IndexFinding.LEDGER_WITHOUT_KEY, IndexFinding.NOT_INDEXED, IndexFinding.KEY_WITHOUT_LEDGER}
        for topic in (names["lost"], names["undone"]):
            assert set(found.get(topic, ())) <= left, found

        assert time.time() * 1000 < backlogs["lost"].first_due, "the test was too slow to mean anything"
        for name in ("lost", "whole"):
            assert_once_and_not_early(backlogs[name], delivered(client, names[name]))
        assert broker_log(sandbox).count(FALLBACK) == fallbacks


def test_a_topic_that_is_loaded_meanwhile_is_left_alone_or_unloaded_by_order(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "loaded")
    topic = f"persistent://{namespace}/t"
    chosen = {"namespaces": [namespace], "brokers": BROKERS}
    pipeline = pipelines({"delayed_index": chosen})
    with pulsar_client(sandbox.service_url) as client:
        backlog = planted(sandbox, client, topic, 60)
        unloaded(sandbox, [topic])
        key, value = sorted(keys_of(sandbox, topic).items())[0]
        set_key(sandbox, topic, key, forged(sandbox, topic, key, int(value)))
        broken = keys_of(sandbox, topic)
        epoch, _ = checked(pipeline, namespace)
        summary, _ = make_repair_plan(pipeline.where, epoch)
        order = Order(summary.plan_id, summary.digest)
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        wait_listed(sandbox, topic)

        (left,) = repair(pipeline.where, "left", order, dry_run=False)
        assert (left.outcome, left.why.code) == (Outcome.LEFT, Code.TOPIC_LOADED)
        assert keys_of(sandbox, topic) == broken

        ordered = pipelines({"delayed_index": {**chosen, "loaded_topics": [topic]}}, lake=pipeline.lake)
        consumer.close()
        (done,) = repair(ordered.where, "ordered", order, dry_run=False)
        assert done.outcome is Outcome.DONE, done
        assert keys_of(sandbox, topic) == done.after

        assert_once_and_not_early(backlog, delivered(client, topic))
