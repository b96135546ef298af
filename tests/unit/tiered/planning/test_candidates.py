"""Which ledgers of a topic are offloaded, by thresholds and by what is never offloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice, OffloadCode
from tests.kit.scenes.tiered.offload_candidates import (
    FOREVER,
    LAST,
    MINE,
    NOW,
    POLICY,
    THEIRS,
    complete,
    judged,
    kept,
    ledger,
    one,
    state,
)

# -------------------------------------------------------------------------------------------------- a broker's own walk


def maybe_offload(
    ledgers: Sequence[Mapping[str, Any]], threshold_bytes: int, threshold_seconds: int, now: int
) -> set[int]:
    """What a broker would offload (ManagedLedgerImpl.maybeOffload, 4.0.7)."""
    chosen: set[int] = set()
    summed = 0
    threshold_ms = threshold_seconds * 1000
    for item in sorted(ledgers, key=lambda item: -item["ledger_id"]):
        if not item["timestamp"]:
            continue
        summed += item["size"] or 0
        if item["offload_complete"]:
            continue
        by_size = threshold_bytes >= 0 and summed > threshold_bytes
        by_age = threshold_ms >= 0 and now - item["timestamp"] >= threshold_ms
        if by_size or by_age:
            chosen.add(item["ledger_id"])
    return chosen


small = st.integers(0, 30)
thresholds = st.one_of(st.integers(-2, 1), st.integers(0, 100))
ledgers = st.lists(
    st.builds(
        lambda i, size, entries, age, done: ledger(
            i,
            size=size,
            entries=entries,
            timestamp=age if not age else NOW - age,
            offload_complete=done,
            offload_uuid=str(THEIRS) if done else None,
            offloaded_at=1 if done else None,
        ),
        st.integers(0, 40),
        st.one_of(st.none(), small),
        st.one_of(st.none(), small),
        st.one_of(st.none(), st.just(0), st.integers(-2000, 9000)),
        st.booleans(),
    ),
    max_size=12,
    unique_by=lambda item: item["ledger_id"],
)


@given(ledgers, thresholds, st.integers(-2, 9), st.randoms())
def test_the_walk_is_a_brokers_without_what_we_never_offload(
    found: list[dict[str, Any]], size: int, seconds: int, random: Any
) -> None:
    random.shuffle(found)
    policy = replace(POLICY, threshold_bytes=size, threshold_seconds=seconds)
    rows = judged(state(*found), policy)
    last = max(rows, default=None)
    never = {i["ledger_id"] for i in found if not i["size"] or not i["entries"] or i["ledger_id"] == last}
    expected = maybe_offload(found, size, seconds, NOW) - never
    assert {i for i, row in rows.items() if row["action"] == OffloadChoice.OFFLOAD} == expected
    assert all(row["code"] and row["reason"] for row in rows.values())


@given(ledgers)
def test_everything_is_what_a_broker_offloads_at_a_threshold_of_zero(found: list[dict[str, Any]]) -> None:
    asked = judged(state(*found), replace(POLICY, threshold_bytes=-1), everything=True)
    walked = judged(state(*found), POLICY)
    assert {i: row["action"] for i, row in asked.items()} == {i: row["action"] for i, row in walked.items()}


def test_by_size_the_oldest_go_and_equality_stays() -> None:
    topic = state(*(ledger(n) for n in range(4)), LAST)
    for threshold, going in ((40, []), (39, [0]), (30, [0]), (29, [0, 1]), (10, [0, 1, 2]), (9, [0, 1, 2, 3])):
        rows = judged(topic, replace(POLICY, threshold_bytes=threshold))
        assert [i for i, row in rows.items() if row["action"] == OffloadChoice.OFFLOAD] == going
    assert rows[0]["reason"] == "40 bytes from here on, the threshold is 9"


def test_what_is_offloaded_already_still_counts() -> None:
    rows = judged(state(ledger(1), complete(2, size=1000), ledger(3), LAST), replace(POLICY, threshold_bytes=50))
    assert [rows[i]["action"] for i in (1, 2, 3)] == [
        OffloadChoice.OFFLOAD,
        OffloadChoice.DELETE_COPY,
        OffloadChoice.KEEP,
    ]


@pytest.mark.parametrize(
    ("age", "action"),
    [
        (4999, OffloadChoice.KEEP),
        (5000, OffloadChoice.OFFLOAD),
        (5001, OffloadChoice.OFFLOAD),
        (0, OffloadChoice.KEEP),
        (-1, OffloadChoice.KEEP),
        (-100_000, OffloadChoice.KEEP),
    ],
)
def test_by_age_equality_goes(age: int, action: str) -> None:
    policy = replace(POLICY, threshold_bytes=-1, threshold_seconds=5)
    assert one(ledger(1, timestamp=NOW - age), policy)[0] == action


def test_an_age_that_is_negative_passes_no_threshold_of_zero() -> None:
    policy = replace(POLICY, threshold_bytes=-1, threshold_seconds=0)
    assert one(ledger(1, timestamp=NOW), policy)[0] == OffloadChoice.OFFLOAD
    assert one(ledger(1, timestamp=NOW + 1), policy)[0] == OffloadChoice.KEEP


def test_a_size_without_a_closing_time_is_not_summed() -> None:
    rows = judged(state(ledger(1), ledger(2, timestamp=0, size=1000), LAST), replace(POLICY, threshold_bytes=50))
    assert [rows[i]["action"] for i in (1, 2)] == [OffloadChoice.KEEP, OffloadChoice.KEEP]


# ------------------------------------------------------------------------------------------------------ what is never


def test_the_last_ledger_is_never_offloaded_even_if_it_is_closed() -> None:
    rows = judged(state(ledger(1), ledger(2)), everything=True)
    assert (rows[2]["action"], rows[2]["code"]) == (OffloadChoice.KEEP, OffloadCode.LAST_LEDGER)
    assert rows[1]["action"] == OffloadChoice.OFFLOAD
    assert judged(state(ledger(2), ledger(1)))[2]["action"] == OffloadChoice.KEEP
    assert judged(state(ledger(1)))[1]["action"] == OffloadChoice.KEEP
    assert judged(state()) == {}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"timestamp": 0}, OffloadCode.CLOSED_UNKNOWN),
        ({"timestamp": None}, OffloadCode.CLOSED_UNKNOWN),
        ({"size": 0}, OffloadCode.EMPTY),
        ({"size": None}, OffloadCode.EMPTY),
        ({"entries": 0}, OffloadCode.EMPTY),
        ({"entries": None}, OffloadCode.EMPTY),
        ({"bookkeeper_deleted": True}, OffloadCode.NEEDS_REPAIR),
        ({"bookkeeper_deleted": True, "offload_uuid": str(THEIRS)}, Code.BROKERS_ATTEMPT),
    ],
)
@pytest.mark.parametrize("everything", [False, True])
def test_what_is_not_offloaded_whoever_asks(changes: dict[str, Any], code: str, everything: bool) -> None:
    assert one(ledger(1, **changes), everything=everything) == (OffloadChoice.KEEP, code)


@pytest.mark.parametrize(
    ("attempt", "ours", "alone"),
    [
        (THEIRS, {}, True),
        (THEIRS, {1: MINE}, True),
        (MINE, {1: MINE}, False),
        (MINE, {2: MINE}, True),
        (None, {1: MINE}, False),
        (None, {}, False),
    ],
)
@pytest.mark.parametrize("everything", [False, True])
def test_a_topic_with_an_attempt_of_its_brokers_is_left_alone_whole(
    attempt: UUID | None, ours: dict[int, UUID], alone: bool, everything: bool
) -> None:
    item = ledger(1, offload_uuid=str(attempt) if attempt else None)
    deleted = complete(5, bookkeeper_deleted=True)
    rows = judged(state(ledger(0), item, complete(3), deleted, LAST), ours=ours, everything=everything, leftovers={5})
    found = {i: rows[i]["action"] for i in (0, 1, 3, 5)}
    if alone:
        assert found == {0: OffloadChoice.KEEP, 1: OffloadChoice.KEEP, 3: OffloadChoice.DONE, 5: OffloadChoice.DONE}
        assert {rows[i]["code"] for i in (0, 1, 3, 5)} == {Code.BROKERS_ATTEMPT}
        assert f"attempt {attempt} of ledger 1" in rows[0]["reason"]
    else:
        assert found == {
            0: OffloadChoice.OFFLOAD,
            1: OffloadChoice.OFFLOAD,
            3: OffloadChoice.DELETE_COPY,
            5: OffloadChoice.DELETE_COPY,
        }


@pytest.mark.parametrize(
    ("changes", "retention", "code"),
    [
        ({"driver": ""}, FOREVER, OffloadCode.NO_DRIVER),
        ({"driver": "google-cloud-storage"}, FOREVER, OffloadCode.OTHER_DRIVER),
        ({"driver": "filesystem"}, FOREVER, OffloadCode.OTHER_DRIVER),
        ({"driver": "transient"}, FOREVER, OffloadCode.OTHER_DRIVER),
        ({"threshold_bytes": -1}, FOREVER, OffloadCode.NO_THRESHOLD),
        ({"threshold_bytes": 1 << 20}, kept(-1, 1), OffloadCode.RETENTION_FIRST),
        ({"threshold_seconds": 60}, kept(1, -1), OffloadCode.RETENTION_FIRST),
    ],
)
def test_a_policy_by_which_nothing_is_offloaded(
    changes: dict[str, Any], retention: RetentionPolicy, code: OffloadCode
) -> None:
    policy = replace(POLICY, **changes)
    row = judged(state(ledger(1, size=9 << 20), LAST), policy, retention=retention)[1]
    assert (row["action"], row["code"]) == (OffloadChoice.KEEP, code)
    asked, _ = one(ledger(1, size=9 << 20), policy, retention=retention, everything=True)
    assert asked == (
        OffloadChoice.OFFLOAD if policy.acts else OffloadChoice.KEEP
    )  # whoever asks for all outdoes thresholds, not drivers


HOLD = Why(Protection.LEGAL_HOLD, "legal hold")


def test_a_topic_that_is_not_touched() -> None:
    assert one(ledger(1), rule=HOLD) == (OffloadChoice.KEEP, Protection.LEGAL_HOLD)
    assert one(ledger(1), rule=HOLD, everything=True) == (OffloadChoice.KEEP, Protection.LEGAL_HOLD)
    assert one(complete(1), rule=HOLD) == (OffloadChoice.DONE, Protection.LEGAL_HOLD)
    deleted = complete(1, bookkeeper_deleted=True)
    assert one(deleted, rule=HOLD, leftovers={1}) == (OffloadChoice.DONE, Protection.LEGAL_HOLD)
