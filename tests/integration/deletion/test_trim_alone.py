"""A trim and a load run once all brokers died: they load topics of theirs, and nothing else is loaded.

A trim's count as loaded, and are loaded to be unloaded. Brokers read system topics of a namespace for each topic that
they load. Who takes the bundle of one for a client loads all topics in it, and lets its monitors at them.
"""

from __future__ import annotations

import signal
import time
import zlib
from pathlib import Path

import pulsar
import pytest

from pulsar_lifecycle.bundles.placing import BY_THEMSELVES
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes
from tests.integration.lifecycle.loads import expiry, filled, no_retention, planned
from tests.integration.lifecycle.retention import loaded
from tests.integration.pipeline import Pipeline, listed, new_namespace, settings_file, wait_until_unloaded_counts

pytestmark = pytest.mark.integration

BUNDLES = 4
CONTENTS = topics.payloads(70)
"""Two ledgers: the sandbox's have 50 entries."""


TTL = 5


def of_each_bundle(namespace: str) -> list[tuple[str, ...]]:
    """Topics, each of another bundle; and as many others. Brokers split a bundle with more than three loaded."""
    by_bundle: dict[int, list[str]] = {}
    for name in (f"persistent://{namespace}/{number}" for number in range(99)):
        by_bundle.setdefault(zlib.crc32(name.encode()) * BUNDLES >> 32, []).append(name)
    assert len(by_bundle) == BUNDLES
    return list(zip(*(names[:2] for names in by_bundle.values()), strict=True))


def test_nothing_else_is_loaded_where_all_brokers_died(production: Cluster, tmp_path: Path) -> None:
    """One topic of each bundle is trimmed, another stays as it is; elsewhere one is visited, another stays."""
    cluster = production
    namespace, visited = new_namespace(cluster, "alone", BUNDLES), new_namespace(cluster, "visited", BUNDLES)
    trimmed, others = of_each_bundle(namespace)
    loading, held = of_each_bundle(visited)
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin:
        no_retention(admin, visited)
        expiry(admin, visited, TTL)
        past_ttl = {name: filled(client, admin, name) for name in (*loading, *held)}
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
    wait_until_unloaded_counts(time.time() + TTL)

    def inside(namespace: str) -> set[str]:
        return {name for name in loaded(cluster) if f"/{namespace}/" in name}

    def locked() -> bool:
        with cluster.metadata() as zk:
            paths = [f"/namespace/{one}" for one in (namespace, visited)]
            return any(zk.exists(path) and zk.get_children(path) for path in paths)

    wait_for("the sessions of the dead to end", lambda: not locked())
    assert inside(namespace) | inside(visited) == set()
    overrides = {
        "trimming": {"loaded_topics": True},
        "load": {"namespaces": [visited], "min_bytes": 1, "at_once": 3, "timeout": "60s", "max_broker_load": 1.0},
        "orphans": {"legal_holds": list(held)},
    }
    pipeline = Pipeline(settings_file(cluster, tmp_path, overrides))
    plan, rows = planned(pipeline)
    assert {name for name, row in rows.items() if row["kept"] is None} == set(loading), rows
    with cluster.metadata() as zk:
        before = {name: zk.get(znodes.topic_znode(name)) for name in (*others, *held)}
    orders = [TrimOrder(Topic.parse(name), up_to=first) for name, first in firsts.items()]
    found = trim_run.trim(pipeline.where, "trim", orders, dry_run=False)
    assert {one.ledger_id: one.outcome for one in found} == dict.fromkeys(firsts.values(), Outcome.REMOVED), found
    done = load_topics(pipeline.where, "load", Order(plan.plan_id, plan.digest), dry_run=False)
    assert {one.topic: one.outcome for one in done} == dict.fromkeys(loading, Outcome.DONE), done
    assert not any(set(past_ttl[name]) & set(listed(cluster, name)) for name in loading)
    time.sleep(5)  # who takes a bundle loads its topics after that
    there = inside(namespace) | inside(visited)
    assert {Topic.parse(name).partitioned_parent.local for name in there} <= set(BY_THEMSELVES), (there, loading)
    with cluster.metadata() as zk:
        assert {name: zk.get(znodes.topic_znode(name)) for name in (*others, *held)} == before
