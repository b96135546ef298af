"""Asking brokers about snapshots at a scan: only loaded topics, each once, so many and no more."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicInternals
from pulsar_lifecycle.scan import snapshot_inquiry
from pulsar_lifecycle.scan.snapshot_memory import RESTART_MARGIN, Memory
from tests.kit.simulated.cluster import BROKER, SimulatedCluster, data_tags

ONE, TWO = (Topic.parse(f"persistent://acme/orders/{name}") for name in ("one", "two"))
MADE = 1_700_000_000_000


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster()
    for topic in (ONE, TWO):
        cluster.topic(topic, [cluster.ledger(data_tags(topic), state=LedgerState.OPEN)])
        cluster.load(topic)
        cluster.admin.internals[topic] = TopicInternals("LedgerOpened", (), {}, {"a+b": {}}, None, ())
    return cluster


def row(topic: Topic, cursor: str = "s", **more: Any) -> dict[str, Any]:
    """A snapshot whose topic was loaded later, by what the scan read."""
    known = {"ledger_id": 1, "component": "delayed-index-bucket", "topic": str(topic), "cursor": cursor, "ctime": MADE}
    facts = {"topic_exists": True, "load_state": "loaded", "compaction": None, "cursor_exists": None}
    asked = {"broker": BROKER, "broker_started": MADE + RESTART_MARGIN + 1, "last_ledger_state": "OPEN"}
    return known | facts | asked | more


def memory(cluster: SimulatedCluster, *rows: dict[str, Any], most: int = 10) -> list[str | None]:
    store = cluster.open_store(read_only=True)
    inquiry = snapshot_inquiry.Inquiry(store, cluster.admin, "/ledgers", most)
    return snapshot_inquiry.with_memory(rows, inquiry).column("memory").to_pylist()


def test_a_topic_is_asked_once(cluster: SimulatedCluster) -> None:
    found = memory(cluster, row(ONE), row(ONE, "a b"), row(TWO, "a+b"), row(TWO))
    assert found == [Memory.NOTHING, Memory.HELD_CURSOR, Memory.HELD_CURSOR, Memory.NOTHING]
    assert cluster.admin.touched == [ONE, TWO]


def test_nobody_is_asked_about_what_is_known_or_was_not_said(cluster: SimulatedCluster) -> None:
    rows = [
        row(ONE, load_state="unloaded"),
        row(ONE, topic_exists=None, load_state=None, broker=None),
        row(ONE, component="compacted-ledger"),
        row(ONE, cursor_exists=True),
        row(ONE, broker=None),
        row(ONE, last_ledger_state="CLOSED"),
        row(ONE, broker_started=None),
        row(ONE, broker_started=MADE),
    ]
    codes = [Memory.STORED_CURSOR, Memory.UNLISTED, Memory.MOVING, Memory.LOADED_BEFORE, Memory.LOADED_BEFORE]
    assert not any(map(snapshot_inquiry.must_ask, rows))
    assert memory(cluster, *rows) == [None, None, None, *codes]
    assert cluster.admin.touched == []


def test_no_more_topics_are_asked_than_allowed(cluster: SimulatedCluster) -> None:
    assert memory(cluster, row(ONE), row(TWO), row(ONE), most=1) == [Memory.NOTHING, Memory.TOO_MANY, Memory.NOTHING]
    assert cluster.admin.touched == [ONE]


def test_topics_that_keep_their_snapshots_do_not_keep_others_from_being_asked(cluster: SimulatedCluster) -> None:
    for topic in (ONE, TWO):
        cluster.admin.internals[topic] = TopicInternals("LedgerOpened", (), {}, {"s": {}}, None, ())
    store = cluster.open_store(read_only=True)
    for scan in range(1, 20):
        inquiry = snapshot_inquiry.Inquiry(store, cluster.admin, "/ledgers", 1)
        snapshot_inquiry.with_memory([row(ONE), row(TWO)], inquiry, turn=MADE + scan * 86_400_000)
    assert {*cluster.admin.touched} == {ONE, TWO}


def test_a_topic_that_was_unloaded_since_the_scan_read_it_is_not_loaded_again(cluster: SimulatedCluster) -> None:
    cluster.topic(ONE, [cluster.ledger(data_tags(ONE))])
    cluster.remove(cluster.topic_path(TWO))
    assert memory(cluster, row(ONE), row(TWO)) == [Memory.MOVING, Memory.UNANSWERED]
    assert cluster.admin.touched == []


def test_a_broker_that_does_not_answer_says_nothing(cluster: SimulatedCluster) -> None:
    cluster.admin.failure = Unavailable("503")
    assert memory(cluster, row(ONE), row(ONE)) == [Memory.UNANSWERED] * 2


def test_nobody_is_asked_any_more_after_some_did_not_answer(cluster: SimulatedCluster) -> None:
    unanswered = [Topic.parse(f"persistent://acme/orders/unanswered-{n}") for n in range(snapshot_inquiry.PATIENCE)]
    assert memory(cluster, *map(row, unanswered[1:]), row(ONE), most=100)[-1] == Memory.NOTHING
    assert memory(cluster, *map(row, unanswered), row(TWO), most=100)[-1] == Memory.UNANSWERED
    assert cluster.admin.touched == [ONE]


def test_where_nobody_asks_nothing_is_known(cluster: SimulatedCluster) -> None:
    assert snapshot_inquiry.must_ask(row(ONE))
    assert snapshot_inquiry.with_memory([row(ONE)], None).column("memory").to_pylist() == [Memory.UNANSWERED]
