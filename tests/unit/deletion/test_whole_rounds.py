"""What must outlive whole rounds (scan, plan, apply, scan, delete) on clusters that are not as they should be."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Namespace, Position, Topic
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.simulated.cluster import SimulatedCluster, data_tags, schema_tags
from tests.kit.simulated.pipeline import Policy, apply_plan, delete, plan, scan, two_scans, whole_round

TOPIC = Topic.parse("persistent://t/ns/live")


@pytest.fixture
def cluster() -> SimulatedCluster:
    """One topic, with one ledger."""
    cluster = SimulatedCluster()
    cluster.topic(TOPIC, [cluster.ledger(data_tags(TOPIC))])
    return cluster


def test_what_only_an_undecodable_shadow_topic_needs_stays_whatever_is_acknowledged(cluster: SimulatedCluster) -> None:
    source, shadow = Topic.parse("persistent://t/other/source"), Topic.parse("persistent://t/ns/shadow")
    cluster.topic(Topic.parse("persistent://t/other/live"))
    needed = cluster.ledger(data_tags(source))
    cluster.topic(shadow, [needed], shadow_of=str(source))
    cluster.put(cluster.topic_path(shadow), b"\xff\xff\xff")
    latest, _ = whole_round(cluster, Policy(acknowledged=(cluster.topic_path(shadow),)))
    assert not latest.epoch.covered
    assert cluster.exists(needed)


def test_schemas_of_a_partitioned_topic_that_an_undeclared_cluster_writes_stay(cluster: SimulatedCluster) -> None:
    partition = Topic.parse("persistent://t/ns/theirs-partition-0")
    cluster.ledger(data_tags(partition), state=LedgerState.OPEN)
    theirs = [cluster.ledger(data_tags(partition)), cluster.ledger(schema_tags(partition.schema_id))]
    gone = cluster.ledger(data_tags(Topic(Namespace("t", "ns"), "gone")))
    whole_round(cluster)
    assert [cluster.exists(ledger) for ledger in (*theirs, gone)] == [True, True, False]


@pytest.mark.parametrize("hold", ["t/c/ns", "persistent://t/c/ns/v"])
def test_a_hold_on_a_v1_name_holds_its_schemas(cluster: SimulatedCluster, hold: str) -> None:
    topic = Topic.parse("persistent://t/c/ns/v")
    cluster.topic(topic, [cluster.ledger(data_tags(topic))])
    held = [cluster.ledger(data_tags(topic)), cluster.ledger(schema_tags(topic.schema_id))]
    free = [cluster.ledger(data_tags(TOPIC)), cluster.ledger(schema_tags("t/ns/other"))]
    whole_round(cluster, Policy(holds=frozenset({hold})))
    assert [cluster.exists(ledger) for ledger in held] == [True, True]
    assert [cluster.exists(ledger) for ledger in free] == [False, hold == "t/c/ns"]


@pytest.mark.parametrize("raw", ["pulsar.repl.eu:1", "pulsar.repl.us=2"])
def test_a_cursor_whose_z_node_has_no_encoded_name_is_like_any_other(cluster: SimulatedCluster, raw: str) -> None:
    """Replicators name their cursor after the remote cluster, as it is."""
    tags = data_tags(TOPIC) | {"pulsar/cursor": raw}
    needed, leaked = cluster.ledger(tags), cluster.ledger(tags)
    position = cursor_format.ManagedCursorInfo(needed, Position(1, 0))
    path = f"{cluster.topic_path(TOPIC)}/{raw}"
    cluster.put(path, cursor_format.encode(position))
    latest, decisions = whole_round(cluster)
    assert latest.epoch.covered, latest.epoch.gaps
    assert [(d.info.cursor_name, d.outcome) for d in decisions] == [(raw, Outcome.DELETED)]
    assert (cluster.exists(needed), cluster.exists(leaked)) == (True, False)


def test_a_cursor_is_found_by_its_raw_name_when_a_ledger_of_it_is_about_to_go(cluster: SimulatedCluster) -> None:
    raw = "pulsar.repl.eu:1"
    leaked = cluster.ledger(data_tags(TOPIC) | {"pulsar/cursor": raw})
    now, before = two_scans(cluster)
    apply_plan(cluster, plan(cluster, now, before))
    cluster.wait(1)
    latest = scan(cluster, previous=[now])
    position = cursor_format.ManagedCursorInfo(leaked, Position(1, 0))
    cluster.put(f"{cluster.topic_path(TOPIC)}/{raw}", cursor_format.encode(position))
    (decision,) = delete(cluster, latest, before)
    assert (decision.outcome, decision.code) == (Outcome.KEPT, Code.STILL_IN_USE)


def test_a_schema_with_a_strange_name_whose_ledger_is_gone_keeps_its_namespace(cluster: SimulatedCluster) -> None:
    cluster.schema("t/ns/a b", [99_999])
    kept, free = cluster.ledger(data_tags(TOPIC)), cluster.ledger(data_tags(Topic.parse("persistent://t/free/x")))
    cluster.topic(Topic.parse("persistent://t/free/live"))
    latest, decisions = whole_round(cluster)
    assert latest.epoch.covered, latest.epoch.gaps
    assert {d.info.ledger_id for d in decisions if d.outcome == Outcome.DELETED} == {free}
    assert cluster.exists(kept)
