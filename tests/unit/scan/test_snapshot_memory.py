"""The rule that frees a delayed-index snapshot that no z-node names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.scan import snapshot_memory
from pulsar_lifecycle.scan.snapshot_memory import RESTART_MARGIN, Memory

MADE = 1_700_000_000_000
LATER = MADE + RESTART_MARGIN + 1
ASKED: dict[str, Any] = {
    "stored_cursor": False,
    "broker": "broker-1:8080",
    "last_ledger": "OPEN",
    "started": LATER,
    "made": MADE,
}


def test_a_broker_that_started_later_is_asked() -> None:
    assert snapshot_memory.before_asking(**ASKED) is None


@pytest.mark.parametrize(
    ("facts", "memory"),
    [
        ({"stored_cursor": True}, Memory.STORED_CURSOR),
        ({"broker": None}, Memory.UNLISTED),
        ({"broker": ""}, Memory.UNLISTED),
        ({"last_ledger": "CLOSED"}, Memory.MOVING),
        ({"last_ledger": "IN_RECOVERY"}, Memory.MOVING),
        ({"last_ledger": None}, Memory.MOVING),
        ({"started": None}, Memory.LOADED_BEFORE),
        ({"started": MADE}, Memory.LOADED_BEFORE),
        ({"started": LATER - 1}, Memory.LOADED_BEFORE),
        ({"made": None}, Memory.LOADED_BEFORE),
        ({"made": 0}, Memory.LOADED_BEFORE),
    ],
)
def test_whoever_need_not_be_asked_keeps_it(facts: dict[str, Any], memory: Memory) -> None:
    assert snapshot_memory.before_asking(**ASKED | facts) is memory
    assert memory in snapshot_memory.KEPT_BECAUSE


@pytest.mark.parametrize(
    ("cursors", "cursor", "memory"),
    [
        (None, "s", Memory.UNANSWERED),
        ((), "s", Memory.NOTHING),
        (("t", "s%2B"), "s", Memory.NOTHING),
        (("t", "s"), "s", Memory.HELD_CURSOR),
        (("a%2Bb+c%7E",), "a+b c~", Memory.HELD_CURSOR),  # durable, as its z-node is called
        (("a+b",), "a b", Memory.HELD_CURSOR),  # not durable, as its snapshots' tag has it
        (("a+b",), "a+b", Memory.HELD_CURSOR),
        (("100%",), "100%", Memory.HELD_CURSOR),
        (("é",), "é", Memory.HELD_CURSOR),
    ],
)
def test_a_cursor_is_known_by_either_of_its_names(cursors: Any, cursor: str, memory: Memory) -> None:
    assert snapshot_memory.answered(cursors, cursor) is memory


def report(**more: Any) -> dict[str, Any]:
    manager = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"
    return {"loadReportType": "LocalBrokerData", "loadManagerClassName": manager, "startTimestamp": MADE} | more


EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"


@pytest.mark.parametrize(
    ("document", "started"),
    [
        (report(), MADE),
        (report(loadManagerClassName="org.apache.pulsar.broker.loadbalance.NoopLoadManager"), MADE),
        (report(loadReportType=None, loadManagerClassName=EXTENSIBLE), MADE),
        (report(startTimestamp=LATER), LATER - 1),  # its clock goes ahead
        (report(loadReportType="LoadReport"), None),  # SimpleLoadManagerImpl has the time of the report there
        (report(loadManagerClassName="org.acme.OurLoadManager"), None),
        (report(loadManagerClassName=None), None),
        (report(startTimestamp=None), None),
        (report(startTimestamp="1"), None),
        (report(startTimestamp=0), None),
        (["no report"], None),
    ],
)
def test_when_a_broker_started_is_read_from_reports_that_say_it(document: Any, started: int | None) -> None:
    assert load_state.broker_started(json.dumps(document).encode(), LATER - 1) == started


def test_no_report_and_no_time_say_nothing() -> None:
    assert load_state.broker_started(b"", MADE) is None
    assert load_state.broker_started(json.dumps(report()).encode(), 0) is None
