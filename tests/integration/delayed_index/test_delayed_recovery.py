"""Buckets that we merged, through a broker's recovery, a downgrade and an upgrade; entries that only S3 has."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from uuid import uuid4

import pulsar
import pytest

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import repair
from pulsar_lifecycle.delayed_index.repair.repair_work import Repaired
from pulsar_lifecycle.delayed_index.stored.check_run import DUE
from pulsar_lifecycle.errors import Refused
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.s3.objects import S3ObjectStore
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.tiered.upload import Source, Target, copy_ledger
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import pulsar_client
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import znodes
from tests.integration.delayed_index.delayed import (
    BROKERS,
    FALLBACK,
    MESSAGES,
    assert_each_comes_once,
    broker_log,
    checked,
    keys_of,
    planted,
    remembered,
    unloaded,
)
from tests.integration.pipeline import Pipeline, new_namespace, wait_until_unloaded_counts
from tests.integration.tiered.offloads import with_bucket

pytestmark = pytest.mark.integration

FACTORY = "delayedDeliveryTrackerFactoryClassName"
IN_MEMORY = {FACTORY: "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"}
SMALL = {**BROKERS, "delayedDeliveryMinIndexCountPerBucket": "1000"}
"""By which three buckets of fifty messages are one that is not full yet."""


def moved_to_s3(sandbox: Cluster, settings: Settings, topic: str) -> None:
    """Take all ledgers of an unloaded topic but its last one from BookKeeper to the bucket."""
    name = Topic.parse(topic)
    assert settings.object_store is not None
    with (
        KazooStore(settings.zookeeper) as store,
        BookieReader(store, settings.bookkeeper) as reader,
        closing(S3ObjectStore(settings.object_store)) as objects,
        sandbox.metadata() as zk,
    ):
        path = znodes.topic_znode(topic)
        found = zk.get(path)
        assert found is not None
        info = managed_ledger.decode(found[0])
        *earlier, last = info.ledgers
        moved: list[managed_ledger.LedgerInfo] = []
        for item in earlier:
            location = Location(BUCKET, uuid4(), item.ledger_id)
            (metadata,) = stored_references.metadata_of(store, [item.ledger_id], "/ledgers")
            assert not isinstance(metadata, Exception)
            target = Target(location, "sandbox", name.managed_ledger, 5 << 20)
            copy_ledger(reader, objects, Source(metadata, 1), target)
            context = OffloadContext(location.uuid, True, True, 1, "aws-s3", {"bucket": BUCKET})
            moved.append(replace(item, offload=context))
        zk.set(path, managed_ledger.encode(replace(info, ledgers=(*moved, last))))
        for item in earlier:
            zk.delete(ledger_path(item.ledger_id))


def loaded(sandbox: Cluster, topic: str) -> None:
    """Have a broker load the topic, until it has every message of it in its tracker."""
    with pulsar_client(sandbox.service_url) as client:
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=1)
        remembered(sandbox, topic)


def test_what_we_merged_outlives_a_downgrade_and_comes_once(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "recovered")
    merged, moved = (f"persistent://{namespace}/{name}" for name in ("merged", "moved"))
    index = {"namespaces": [namespace], "brokers": SMALL, "merge_above": 1}
    pipeline = pipelines({**with_bucket(sandbox), "delayed_index": index})
    with pulsar_client(sandbox.service_url) as client:
        backlog = planted(sandbox, client, merged)
        planted(sandbox, client, moved)
    unloaded(sandbox, [merged, moved])
    moved_to_s3(sandbox, pipeline.where.settings, moved)
    wait_until_unloaded_counts(time.time())
    before = keys_of(sandbox, merged)

    epoch, found = checked(pipeline, namespace)
    assert not found
    due = pipeline.where.lake.read_epoch_table(epoch.epoch_id, DUE).to_pylist()
    counts = {topic: sum(row["messages"] for row in due if row["topic"] == topic) for topic in (merged, moved)}
    assert counts == {merged: MESSAGES, moved: MESSAGES}

    summary, _ = make_repair_plan(pipeline.where, epoch)
    order = Order(summary.plan_id, summary.digest)

    def run(run_id: str) -> list[Repaired]:
        try:
            return repair(pipeline.where, run_id, order, dry_run=False)
        except Refused:  # another one has the lease
            return []

    with ThreadPoolExecutor(2) as pool:
        both = [one for done in pool.map(run, ("one", "other")) for one in done]
    done = {one.topic: one for one in both if one.outcome is Outcome.DONE}
    assert set(done) == {merged, moved}
    assert len([one for one in both if one.outcome is Outcome.DONE]) == 2, both
    assert done[merged].level == "merge"
    after = keys_of(sandbox, merged)
    (key,) = after
    starts, ends = zip(*(map(int, one.rsplit("_", 2)[1:]) for one in before), strict=True)
    assert key.endswith(f"_{min(starts)}_{max(ends)}")

    fallbacks = broker_log(sandbox).count(FALLBACK)
    try:
        loaded(sandbox, merged)
        sandbox.restart("broker-1", IN_MEMORY)
        loaded(sandbox, merged)
        assert keys_of(sandbox, merged) == after
    finally:
        sandbox.restart("broker-1", {})
    with pulsar_client(sandbox.service_url) as client:
        assert_each_comes_once(sandbox, client, backlog)
    assert broker_log(sandbox).count(FALLBACK) == fallbacks
