"""What the walks over the metastore must not pass over."""

from __future__ import annotations

import json

import pytest

from pulsar_lifecycle.engine import inventory
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.plan.orphans import Finding
from tests.simulation.cluster import SimulatedCluster, data_tags
from tests.simulation.pipeline import scan, whole_round

V1 = Topic.parse("persistent://acme/dc1/orders/placed")
V2 = Topic.parse("persistent://acme/orders/placed")


@pytest.fixture
def cluster() -> SimulatedCluster:
    return SimulatedCluster()


def test_v1_and_v2_topics_are_read_and_their_namespaces_known(cluster: SimulatedCluster) -> None:
    live = [cluster.ledger(data_tags(topic)) for topic in (V1, V2)]
    leaked = [cluster.ledger(data_tags(topic)) for topic in (V1, V2)]
    for topic, ledger in zip((V1, V2), live, strict=True):
        cluster.topic(topic, [ledger])
        cluster.cursor(topic, "s")
    cluster.put("/admin/policies/acme/empty", b"{}")
    cluster.put("/admin/policies/acme/dc1/empty", b"{}")
    store = cluster.open_store()
    assert inventory.namespaces(store) >= {"acme/dc1/orders", "acme/orders", "acme/empty", "acme/dc1/empty"}
    assert set(inventory.namespace_policies(store)) == {"acme/empty", "acme/dc1/empty"}
    found, decisions = whole_round(cluster)
    assert found.epoch.gaps == ()
    assert [d.outcome for d in decisions] == ["deleted", "deleted"]
    assert cluster.ledger_ids() == set(live)
    assert not set(leaked) & cluster.ledger_ids()


@pytest.mark.parametrize("path", ["acme", "acme/orders", "acme/orders/ml", "acme/dc1/orders/kop/x"])
def test_what_is_no_topic_of_pulsar_is_a_gap(cluster: SimulatedCluster, path: str) -> None:
    cluster.topic(V2, [cluster.ledger(data_tags(V2))])
    assert scan(cluster).epoch.gaps == ()
    cluster.put(f"/managed-ledgers/{path}", b"\x0a\x02\x08\x01")
    assert any("not a managed-ledger path" in gap for gap in scan(cluster).epoch.gaps)


def test_a_partitioned_shadow_topic_keeps_its_sources_partitions(cluster: SimulatedCluster) -> None:
    source = Topic.parse("persistent://acme/orders/placed-partition-0")
    leak = cluster.ledger(data_tags(source))
    cluster.topic(source)
    path = "/admin/partitioned-topics/acme/shadows/persistent"
    cluster.put(f"{path}/plain", json.dumps({"partitions": 2}).encode())
    cluster.wait(8 * 24)
    assert scan(cluster).finding(leak) == Finding.ORPHAN
    document = {"partitions": 2, "properties": {inventory.SHADOW_SOURCE: "persistent://acme/orders/placed"}}
    cluster.put(f"{path}/shadow", json.dumps(document).encode())
    assert scan(cluster).finding(leak) == Finding.KEPT
    cluster.put(f"{path}/shadow", json.dumps(document).encode()[:-1])
    with pytest.raises(CorruptFormat, match="shadow"):
        scan(cluster)
    cluster.zookeeper.unreadable.add(f"{path}/plain")
    cluster.put(f"{path}/shadow", json.dumps(document).encode())
    with pytest.raises(CorruptFormat, match="no permission"):
        scan(cluster)
