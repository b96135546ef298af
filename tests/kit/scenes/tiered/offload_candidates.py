"""Topics with ledgers to offload, or copies in BookKeeper to delete, and the verdicts on them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa

from pulsar_lifecycle.tiered.planning.candidates import TopicState, judge
from pulsar_lifecycle.topics.offload_policy import OffloadPolicy
from pulsar_lifecycle.topics.retention_policy import Level, RetentionPolicy
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.plans.offload_plan import CANDIDATES

TOPIC = "persistent://t/n/a+b c~é"
NOW = 1_000_000_000
MINE, THEIRS = UUID(int=1), UUID(int=2)


def kept(minutes: int, megabytes: int) -> RetentionPolicy:
    return RetentionPolicy(minutes, megabytes, Level.NAMESPACE)


FOREVER = kept(-1, -1)
LAG = 1000
POLICY = OffloadPolicy("aws-s3", "b", "r", "http://s3", 0, -1, -1, 5 << 20, True, {})


def ledger(ledger_id: int, **changes: Any) -> dict[str, Any]:
    row = {
        "ledger_id": ledger_id,
        "entries": 1,
        "size": 10,
        "timestamp": NOW - 5000,
        "offload_uuid": None,
        "offload_complete": False,
        "offload_bucket": None,
        "bookkeeper_deleted": False,
        "offloaded_at": None,
    }
    return row | changes


def complete(ledger_id: int, **changes: Any) -> dict[str, Any]:
    done = {"offload_uuid": str(THEIRS), "offload_complete": True, "offload_bucket": "b", "offloaded_at": 1}
    return ledger(ledger_id, **{**done, **changes})


LAST = ledger(99, entries=None, size=None, timestamp=0)


def state(*ledgers: dict[str, Any], left: bool = False, rule: Why | None = None) -> TopicState:
    return TopicState(TOPIC, "t/n", list(ledgers), rule, left)


def judged(
    topic: TopicState, policy: OffloadPolicy = POLICY, now: int = NOW, **given: Any
) -> dict[int, dict[str, Any]]:
    retention, ours = given.pop("retention", FOREVER), given.pop("ours", {})
    rows = judge(
        topic, policy, retention, now, ours, **{"buckets": {"b", "old"}, "our_lag_ms": LAG, "done_since": {}, **given}
    )
    assert [row["ledger_id"] for row in rows] == sorted(item["ledger_id"] for item in topic.ledgers)
    assert pa.Table.from_pylist(rows, CANDIDATES).to_pylist() == rows  # every column, of its type
    return {row["ledger_id"]: row for row in rows}


def one(item: dict[str, Any], policy: OffloadPolicy = POLICY, **given: Any) -> tuple[str, str]:
    """Action and code of a ledger that is followed by an open one."""
    row = judged(state(item, LAST, rule=given.pop("rule", None)), policy, **given)[item["ledger_id"]]
    return row["action"], row["code"]
