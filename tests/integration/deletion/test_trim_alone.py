"""A trim once all brokers died: topics count as loaded, and are loaded to be unloaded; nothing else is.

Brokers read system topics of a namespace for each topic that they load. Who takes the bundle of one for a client loads
all topics in it, and lets its monitors at them.
"""

from __future__ import annotations

import signal
import time
import zlib
from pathlib import Path

import pulsar
import pytest

from pulsar_lifecycle.bundles.placing import BY_THEMSELVES
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes
from tests.integration.lifecycle.retention import loaded
from tests.integration.pipeline import Pipeline, listed, new_namespace, settings_file, wait_until_unloaded_counts

pytestmark = pytest.mark.integration

BUNDLES = 4
CONTENTS = topics.payloads(70)
"""Two ledgers: the sandbox's have 50 entries."""


def test_nothing_else_is_loaded_where_all_brokers_died(production: Cluster, tmp_path: Path) -> None:
    """One topic of each bundle is trimmed, another one stays as it is."""
    cluster = production
    namespace = new_namespace(cluster, "alone", BUNDLES)
    by_bundle: dict[int, list[str]] = {}
    for name in (f"persistent://{namespace}/{number}" for number in range(99)):
        by_bundle.setdefault(zlib.crc32(name.encode()) * BUNDLES >> 32, []).append(name)
    assert len(by_bundle) == BUNDLES
    trimmed, others = zip(*(names[:2] for names in by_bundle.values()), strict=True)
    with pulsar_client(cluster.service_url) as client:
        for name in (*trimmed, *others):
            consumer = client.subscribe(name, "s", initial_position=pulsar.InitialPosition.Earliest)
            topics.publish(client, name, CONTENTS)
            for message in [consumer.receive(60_000) for _ in CONTENTS]:
                consumer.acknowledge(message)
            consumer.close()
        firsts = {name: listed(cluster, name)[0] for name in trimmed}
        time.sleep(3)  # brokers persist cursors every second
    brokers = [name for name in cluster.state.servers if name.startswith("broker-")]
    for name in brokers:
        cluster.kill(name, signal.SIGKILL)
    for name in brokers:
        cluster.start_server(name)
    wait_until_unloaded_counts(time.time())

    def inside() -> set[str]:
        return {name for name in loaded(cluster) if f"/{namespace}/" in name}

    def locked() -> bool:
        with cluster.metadata() as zk:
            path = f"/namespace/{namespace}"
            return bool(zk.exists(path) and zk.get_children(path))

    wait_for("the sessions of the dead to end", lambda: not locked())
    assert inside() == set()
    pipeline = Pipeline(settings_file(cluster, tmp_path, {"trimming": {"loaded_topics": True}}))
    pipeline.scan()
    with cluster.metadata() as zk:
        before = {name: zk.get(znodes.topic_znode(name)) for name in others}
    orders = [TrimOrder(Topic.parse(name), up_to=first) for name, first in firsts.items()]
    found = trim_run.trim(pipeline.where, "trim", orders, dry_run=False)
    assert {one.ledger_id: one.outcome for one in found} == dict.fromkeys(firsts.values(), Outcome.REMOVED), found
    time.sleep(5)  # who takes a bundle loads its topics after that
    assert {Topic.parse(name).partitioned_parent.local for name in inside()} <= set(BY_THEMSELVES)
    with cluster.metadata() as zk:
        assert {name: zk.get(znodes.topic_znode(name)) for name in others} == before
