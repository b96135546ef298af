"""What the walks over the metastore must not pass over."""

from __future__ import annotations

import json
from dataclasses import fields
from uuid import uuid4

import pytest

from pulsar_lifecycle.errors import AccessDenied, CorruptFormat, NotFound, Unavailable
from pulsar_lifecycle.formats import cursor, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import OffloadContext, OffloadSegment
from pulsar_lifecycle.metastore import bookkeeper_ledgers, load_state, namespaces, schemas, topics
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import Node, Stat
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.gaps import GapCode
from pulsar_lifecycle.values.tables import Problem
from tests.kit.simulated.cluster import BROKER, SimulatedCluster, data_tags
from tests.kit.simulated.pipeline import scan, whole_round

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
    assert namespaces.namespaces(store) >= {"acme/dc1/orders", "acme/orders", "acme/empty", "acme/dc1/empty"}
    assert set(namespaces.namespace_policies(store)) == {"acme/empty", "acme/dc1/empty"}
    found, decisions = whole_round(cluster)
    assert found.epoch.gaps == ()
    assert [d.outcome for d in decisions] == ["deleted", "deleted"]
    assert cluster.ledger_ids() == set(live)
    assert not set(leaked) & cluster.ledger_ids()


@pytest.mark.parametrize(
    "policies",
    [
        b"[]",
        b"5",
        b"\xff",
        b"[" * 100_000,
        b'{"retention_policies": 5}',
        b'{"retention_policies": {"retentionSizeInMB": "5"}}',
        b'{"retention_policies": {"retentionTimeInMinutes": true}}',
        b'{"message_ttl_in_seconds": 1e3}',
        b'{"message_ttl_in_seconds": 9223372036854775808}',
    ],
)
def test_policies_of_another_shape_name_their_z_node(cluster: SimulatedCluster, policies: bytes) -> None:
    cluster.put("/admin/policies/acme/whole", b'{"retention_policies": null, "message_ttl_in_seconds": 60}')
    assert set(namespaces.namespace_policies(cluster.open_store())) == {"acme/whole"}
    cluster.put("/admin/policies/acme/odd", policies)
    with pytest.raises(CorruptFormat, match="/admin/policies/acme/odd"):
        namespaces.namespace_policies(cluster.open_store())
    found = namespaces.policy_documents(cluster.open_store())
    assert (set(found.known), set(found.undecodable)) == ({"acme/whole"}, {"acme/odd"})
    assert "/admin/policies/acme/odd" in str(found.undecodable["acme/odd"])


@pytest.mark.parametrize("path", ["acme", "acme/orders", "acme/orders/ml", "acme/dc1/orders/kop/x"])
def test_what_is_no_topic_of_pulsar_is_a_gap(cluster: SimulatedCluster, path: str) -> None:
    cluster.topic(V2, [cluster.ledger(data_tags(V2))])
    assert scan(cluster).epoch.gaps == ()
    cluster.put(f"/managed-ledgers/{path}", b"\x0a\x02\x08\x01")
    gaps = scan(cluster).epoch.gaps
    assert {gap.code for gap in gaps} == {GapCode.ZNODE_UNREAD}
    assert all(f"/managed-ledgers/{path}".startswith(gap.where) for gap in gaps)
    assert any("not a managed-ledger path" in gap.text for gap in gaps)


def test_a_partitioned_shadow_topic_keeps_its_sources_partitions(cluster: SimulatedCluster) -> None:
    source = Topic.parse("persistent://acme/orders/placed-partition-0")
    leak = cluster.ledger(data_tags(source))
    cluster.topic(source)
    path = "/admin/partitioned-topics/acme/shadows/persistent"
    cluster.put(f"{path}/plain", json.dumps({"partitions": 2}).encode())
    cluster.wait(8 * 24)
    assert scan(cluster).finding(leak) == Finding.ORPHAN
    document = {"partitions": 2, "properties": {topics.SHADOW_SOURCE: "persistent://acme/orders/placed"}}
    for source_as_written in ("acme/orders/placed", "persistent://acme/orders/placed"):
        document["properties"] = {topics.SHADOW_SOURCE: source_as_written}
        cluster.put(f"{path}/shadow", json.dumps(document).encode())
        assert scan(cluster).finding(leak) == Finding.KEPT
    cluster.put(f"{path}/shadow", json.dumps(document).encode()[:-1])
    (gap,) = scan(cluster).epoch.gaps
    assert gap.code is GapCode.CONTEXT_UNREAD
    assert "shadow" in gap.text
    cluster.zookeeper.unreadable.add(f"{path}/plain")
    cluster.put(f"{path}/shadow", json.dumps(document).encode())
    (gap,) = scan(cluster).epoch.gaps
    assert gap.code is GapCode.CONTEXT_UNREAD
    assert "no permission" in gap.text


def test_a_schema_namespace_that_lost_its_schemas_is_no_gap_and_data_in_it_is(cluster: SimulatedCluster) -> None:
    tags = {"component": "schema", "pulsar/schemaId": "acme/orders/placed"}
    cluster.topic(V2, [cluster.ledger(data_tags(V2))])
    cluster.schema("acme/orders/placed", [cluster.ledger(tags, entries=[cluster.schema_entry()])])
    cluster.put("/schemas/acme/empty", b"")
    assert scan(cluster).epoch.gaps == ()
    store = cluster.open_store()
    for namespace, count in (("acme/orders", 1), ("acme/empty", 0), ("acme/other", 0)):
        assert len(schemas.schema_units(store, lambda name, wanted=namespace: name == wanted)) == count
    cluster.put("/schemas/acme/strange", b"data")
    (gap,) = scan(cluster).epoch.gaps
    assert (gap.code, gap.where) == (GapCode.ZNODE_UNREAD, "/schemas/acme/strange")
    assert "not a schema path" in gap.text


@pytest.mark.parametrize(
    ("path", "ledger_id"),
    [
        ("/ledgers/00/0000/L0000", 0),
        ("/ledgers/12/3456/L7890", 1_234_567_890),
        ("/ledgers/21/4748/L3646", 2**31 - 2),
        ("/ledgers/21/4748/L3647", None),
        ("/ledgers/000/0000/0021/4748/L3646", None),
        ("/ledgers/000/0000/0021/4748/L3647", 2**31 - 1),
        ("/ledgers/922/3372/0368/5477/L5807", 2**63 - 1),
        ("/ledgers/922/3372/0368/5477/L5808", None),
        ("/ledgers/00/0000/L000", None),
        ("/ledgers/00/0000/L00000", None),
        ("/ledgers/00/0000/L000x", None),
        ("/ledgers/00/0000/M0000", None),
        ("/elsewhere/00/0000/L0000", None),
    ],
)
def test_only_a_ledgers_own_path_gives_its_id(path: str, ledger_id: int | None) -> None:
    stat = Stat(*(0 for _ in fields(Stat)))
    node = Node(path, b"", stat)
    (row,) = bookkeeper_ledgers.ledger_dictionaries([node])
    assert bookkeeper_ledgers.ledger_rows([node]).to_pylist() == [row]
    assert row["ledger_id"] == ledger_id
    assert row["problem"] == (Problem.EMPTY if ledger_id is not None else Problem.UNREAD)


def test_a_metadata_root_is_told_from_every_other_by_its_birth(cluster: SimulatedCluster) -> None:
    other = SimulatedCluster()
    before = topics.birth(cluster.open_store())
    cluster.topic(V2, [cluster.ledger(data_tags(V2))])
    cluster.put("/managed-ledgers", b"touched")
    assert topics.birth(cluster.open_store()) == before
    other.remove("/managed-ledgers")
    with pytest.raises(NotFound):
        topics.birth(other.open_store())
    other.put("/managed-ledgers", b"")
    assert topics.birth(other.open_store()) != before


def test_a_broker_that_is_registered_and_not_asked_leaves_the_brokers_unanswered(cluster: SimulatedCluster) -> None:
    """An admin URL of another cluster would make every loaded topic look at rest."""
    store = cluster.open_store()
    assert load_state.fetch_brokers(store, cluster.admin).stats_interval == 60_000
    cluster.put(f"{load_state.BROKERS_ROOT}/{BROKER}", b"{}")
    cluster.load(V2)
    assert load_state.fetch_brokers(store, cluster.admin).loaded == {str(V2): BROKER}
    cluster.admin.broker_ids = ["elsewhere:8080"]
    with pytest.raises(Unavailable, match=rf"{BROKER} is registered .* none of those"):
        load_state.fetch_brokers(store, cluster.admin)
    cluster.zookeeper.unreadable.add(load_state.BROKERS_ROOT)
    with pytest.raises(AccessDenied):
        load_state.fetch_brokers(store, cluster.admin)


def test_every_offload_attempt_is_in_the_table_of_topics(cluster: SimulatedCluster) -> None:
    done, begun, segment = uuid4(), uuid4(), uuid4()
    plain, first, second = (cluster.ledger(data_tags(V2)) for _ in range(3))
    streaming = OffloadSegment(segment, False, None, None, None, None, {})
    contexts = {
        first: OffloadContext(done, True, True, None, "aws-s3", {"bucket": "tiered"}),
        second: OffloadContext(begun, False, False, None, "aws-s3", {"bucket": ""}, (streaming,)),
    }
    cluster.topic(V2, [plain, first, second], offloaded=contexts)
    cluster.topic(V1, [cluster.ledger(data_tags(V1))])
    store = cluster.open_store()
    rows = {
        row["topic"]: row
        for batch in topics.read_managed_ledgers(store, topics.topic_units(store))
        for row in batch.to_pylist()
    }
    assert rows[str(V1)]["offload_uuids"] is None
    assert set(rows[str(V2)]["offload_uuids"]) == {str(done), str(begun), str(segment)}
    assert [item["offload_bucket"] for item in rows[str(V2)]["ledgers"]] == [None, "tiered", None]


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.CLOSED])
def test_a_topic_that_is_listed_and_being_unloaded_is_not_asked_about(
    cluster: SimulatedCluster, state: LedgerState
) -> None:
    cluster.topic(V2, [cluster.ledger(data_tags(V2), state=state)])
    cluster.cursor(V2, "__compaction")
    cluster.load(V2)
    assert scan(cluster).epoch.gaps == ()
    assert set(cluster.admin.touched) == ({V2} if state is LedgerState.OPEN else set())


SEGMENT = "/managed-ledgers/acme/orders/segment/placed%2F0000-ffff-0"


STANDS = cursor.encode(cursor.ManagedCursorInfo(-1, Position(1, 0)))
"""A cursor without a ledger."""


def segment_of(ledger_ids: list[int]) -> bytes:
    """A z-node of a domain that we do not know, in the form of one that we do."""
    infos = tuple(managed_ledger.LedgerInfo(i, 1, 10, 1) for i in ledger_ids)
    return managed_ledger.encode(managed_ledger.ManagedLedgerInfo(ledgers=infos))


def test_a_topic_of_an_unknown_domain_keeps_what_it_lists_and_its_namespace(cluster: SimulatedCluster) -> None:
    other = Topic.parse("persistent://acme/bills/sent")
    cluster.put("/admin/policies/acme/orders", b"{}")
    cluster.put("/admin/policies/acme/bills", b"{}")
    own = {"component": "managed-ledger", "pulsar/managed-ledger": "acme/orders/segment/placed%2F0000-ffff-0"}
    listed, held = cluster.ledger(data_tags(other)), cluster.ledger(own)
    of_namespace, leaked, unlisted = (cluster.ledger(tags) for tags in (data_tags(V2), data_tags(other), own))
    cluster.put(SEGMENT, segment_of([listed, held]))
    cluster.put("/managed-ledgers/acme/orders/segment/never-loaded", b"")
    cluster.put(f"{SEGMENT}/s", STANDS)
    found, decisions = whole_round(cluster)
    assert found.epoch.gaps == ()
    assert "acme/orders" in found.context.kept_namespaces
    assert [d.outcome for d in decisions] == ["deleted"]
    assert cluster.ledger_ids() == {listed, held, of_namespace, unlisted}
    assert leaked not in cluster.ledger_ids()


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (SEGMENT, b"\xff\xff"),
        (f"{SEGMENT}/s", b"\xff\xff"),
        (f"{SEGMENT}/s/below", b""),
        ("/managed-ledgers/acme/orders/segment/a/b", b"\x0a\x02\x08\x01"),
    ],
)
def test_an_unknown_domain_of_another_form_is_a_gap(cluster: SimulatedCluster, path: str, data: bytes) -> None:
    cluster.topic(V2, [cluster.ledger(data_tags(V2))])
    cluster.put(SEGMENT, segment_of([1]))
    cluster.put(f"{SEGMENT}/s", STANDS)
    assert scan(cluster).epoch.gaps == ()
    cluster.put(path, data)
    assert {gap.code for gap in scan(cluster).epoch.gaps} & {GapCode.ZNODE_UNREAD, GapCode.ZNODE_UNDECODABLE}
