"""What must outlive whole rounds (scan, plan, apply, scan, delete) on clusters that are not as they should be."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Namespace, Topic
from tests.simulation.cluster import SimulatedCluster, data_tags, schema_tags
from tests.simulation.pipeline import Policy, whole_round

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
