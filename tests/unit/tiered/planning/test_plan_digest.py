"""An offload plan as it is stored: its rows, its digest, its summary."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
import pytest

from pulsar_lifecycle.tiered.planning.candidates import judge
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.plans import offload_plan
from pulsar_lifecycle.values.plans.offload_plan import CANDIDATES, OffloadChoice, OffloadCode, OffloadPlan
from tests.kit.scenes.tiered.offload_candidates import (
    FOREVER,
    LAST,
    NOW,
    POLICY,
    THEIRS,
    TOPIC,
    complete,
    judged,
    kept,
    ledger,
    state,
)

# ---------------------------------------------------------------------------------------------------------------- rows


def test_a_row_says_where_and_why() -> None:
    rows = judged(state(ledger(1), complete(2), LAST), retention=kept(0, 0))
    assert rows[1] == {
        "ledger_id": 1,
        "action": OffloadChoice.OFFLOAD,
        "code": OffloadCode.SIZE_THRESHOLD,
        "reason": "20 bytes from here on, the threshold is 0",
        "topic": TOPIC,
        "namespace": "t/n",
        "entries": 1,
        "bytes": 10,
        "closed_at": NOW - 5000,
        "uuid": None,
        "driver": "aws-s3",
        "bucket": "b",
        "region": "r",
        "endpoint": "http://s3",
        "block_size": 5 << 20,
        "lag_ms": 1000,
        "warning": "retention is 0: only unacknowledged backlog is left to offload",
        "outlook": "",
    }
    assert (rows[2]["uuid"], rows[2]["warning"]) == (str(THEIRS), "")
    assert (rows[99]["bytes"], rows[99]["closed_at"]) == (None, None)
    assert set(rows[1]) == set(CANDIDATES.names)


# ---------------------------------------------------------------------------------------------------------------- plans


def table(count: int = 3, **changes: Any) -> pa.Table:
    topic = state(*(ledger(n) for n in range(count)), LAST)
    rows = judge(topic, POLICY, FOREVER, NOW, {}, done_since={}, our_lag_ms=None, buckets={"b"})
    return pa.Table.from_pylist([row | changes if row["ledger_id"] == 1 else row for row in rows], CANDIDATES)


SUMMARY = OffloadPlan(
    "p",
    "c",
    "f",
    "e",
    1000,
    True,
    (Gap(GapCode.POLICIES_UNKNOWN, "", "gap"),),
    ("warning",),
    3,
    30,
    1,
    10,
    2,
    20,
    0,
    0,
    "",
)


def digest(rows: pa.Table, **changes: Any) -> str:
    return offload_plan.digest(rows, replace(SUMMARY, **changes).to_json())


def test_the_digest_is_of_the_rows_in_any_order_and_in_any_pieces() -> None:
    rows = table()
    expected = digest(rows)
    assert digest(rows.take([3, 1, 0, 2])) == expected
    assert digest(pa.concat_tables([rows.slice(2), rows.slice(0, 2)])) == expected
    assert digest(rows.select([*reversed(CANDIDATES.names)])) == expected
    assert digest(rows.append_column("more", pa.array([1, 2, 3, 4]))) == expected
    assert digest(rows.slice(1)) != expected
    assert digest(rows.slice(0, 0)) != expected


OTHERS = {pa.int64(): 12345, pa.string(): "something else"}


@pytest.mark.parametrize("column", CANDIDATES.names)
def test_the_digest_covers_every_column(column: str) -> None:
    value = OTHERS[CANDIDATES.field(column).type]
    assert digest(table(**{column: value})) != digest(table())


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("plan_id", "q"),
        ("cluster", "d"),
        ("fingerprint", "g"),
        ("epoch_id", "h"),
        ("created_at", 1001),
        ("actionable", False),
    ],
)
def test_the_digest_covers_what_makes_a_plan_actionable(fact: str, value: object) -> None:
    assert digest(table(), **{fact: value}) != digest(table())


def test_a_plan_survives_its_json() -> None:
    assert OffloadPlan.from_json(SUMMARY.to_json()) == SUMMARY
    assert set(SUMMARY.to_json()) == {field.name for field in fields(OffloadPlan)}


def test_a_plan_of_an_earlier_version_counts_as_one_by_order() -> None:
    document = SUMMARY.to_json()
    del document["ordered"]
    assert OffloadPlan.from_json(document).ordered


@pytest.mark.parametrize("name", [field.name for field in fields(OffloadPlan) if field.name != "ordered"])
def test_a_document_that_lacks_a_fact_is_no_plan(name: str) -> None:
    document = SUMMARY.to_json()
    del document[name]
    with pytest.raises(ValueError, match=name):
        OffloadPlan.from_json(document)
