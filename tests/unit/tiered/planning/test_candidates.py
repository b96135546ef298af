"""Which ledgers of a topic are offloaded or released, against a broker's own walk; the plan as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.records.codes import Code, Why
from pulsar_lifecycle.records.gaps import Gap, GapCode
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.records.plans import offload_plan
from pulsar_lifecycle.records.plans.offload_plan import CANDIDATES, OffloadChoice, OffloadCode, OffloadPlan
from pulsar_lifecycle.tiered.planning.candidates import TopicState, judge
from pulsar_lifecycle.topics.offload_policy import OffloadPolicy
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_policy import Level, RetentionPolicy

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
    rows = judge(topic, policy, retention, now, ours, **{"buckets": {"b", "old"}, "our_lag_ms": LAG, **given})
    assert [row["ledger_id"] for row in rows] == sorted(item["ledger_id"] for item in topic.ledgers)
    assert pa.Table.from_pylist(rows, CANDIDATES).to_pylist() == rows  # every column, of its type
    return {row["ledger_id"]: row for row in rows}


def one(item: dict[str, Any], policy: OffloadPolicy = POLICY, **given: Any) -> tuple[str, str]:
    """Action and code of a ledger that is followed by an open one."""
    row = judged(state(item, LAST, rule=given.pop("rule", None)), policy, **given)[item["ledger_id"]]
    return row["action"], row["code"]


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
    assert all(row["reason"] for row in rows.values())


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
    assert [rows[i]["action"] for i in (1, 2, 3)] == [OffloadChoice.OFFLOAD, OffloadChoice.RELEASE, OffloadChoice.KEEP]


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
    released = complete(5, bookkeeper_deleted=True)
    rows = judged(state(ledger(0), item, complete(3), released, LAST), ours=ours, everything=everything, leftovers={5})
    found = {i: rows[i]["action"] for i in (0, 1, 3, 5)}
    if alone:
        assert found == {0: OffloadChoice.KEEP, 1: OffloadChoice.KEEP, 3: OffloadChoice.DONE, 5: OffloadChoice.DONE}
        assert {rows[i]["code"] for i in (0, 1, 3, 5)} == {Code.BROKERS_ATTEMPT}
        assert f"attempt {attempt} of ledger 1" in rows[0]["reason"]
    else:
        assert found == {
            0: OffloadChoice.OFFLOAD,
            1: OffloadChoice.OFFLOAD,
            3: OffloadChoice.RELEASE,
            5: OffloadChoice.RELEASE,
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
    released = complete(1, bookkeeper_deleted=True)
    assert one(released, rule=HOLD, leftovers={1}) == (OffloadChoice.DONE, Protection.LEGAL_HOLD)


# ------------------------------------------------------------------------------------------------------------ releasing


@pytest.mark.parametrize(
    ("lag", "since", "action"),
    [
        (1000, NOW - 1000, OffloadChoice.DONE),
        (1000, NOW - 1001, OffloadChoice.RELEASE),
        (1000, NOW + 5, OffloadChoice.DONE),
        (1000, None, OffloadChoice.DONE),
        (1000, 0, OffloadChoice.DONE),
        (0, NOW, OffloadChoice.DONE),
        (0, NOW - 1, OffloadChoice.RELEASE),
        (-1, 0, OffloadChoice.DONE),
        (None, 0, OffloadChoice.DONE),
    ],
)
def test_the_copy_in_bookkeeper_goes_once_our_lag_has_passed(lag: int | None, since: int | None, action: str) -> None:
    assert one(complete(1, offloaded_at=since), our_lag_ms=lag)[0] == action


@pytest.mark.parametrize("lag", [0, 1000, None])
def test_nothing_is_released_where_brokers_release_by_themselves(lag: int | None) -> None:
    """They prove nothing, and do it while we refuse: only a report is made, and the plan says why."""
    policy = replace(POLICY, deletion_lag_ms=lag)
    for item in (complete(1), complete(1, bookkeeper_deleted=True)):
        assert one(item, policy, leftovers={1}) == (OffloadChoice.WITHHELD, OffloadCode.BROKERS_RELEASE)
    assert one(complete(1, offloaded_at=NOW), policy)[0] == OffloadChoice.DONE
    assert one(ledger(1), policy)[0] == OffloadChoice.OFFLOAD


def test_what_a_run_would_leave_to_brokers_is_said_before_it() -> None:
    released = complete(3, bookkeeper_deleted=True)
    rows = judged(state(ledger(1), complete(2), released, ledger(4, size=0), LAST, left=True), leftovers={3})
    assert {i: row["outlook"] for i, row in rows.items()} == {
        1: Outcome.LEFT_TO_BROKER,
        2: Outcome.LEFT_TO_BROKER,
        3: "",  # nothing is written
        4: "",
        99: "",
    }
    assert {row["outlook"] for row in judged(state(ledger(1), LAST)).values()} == {""}


def test_a_driver_that_does_not_act_releases_nothing() -> None:
    assert one(complete(1), replace(POLICY, driver="azureblob"))[0] == OffloadChoice.DONE
    assert one(complete(1), replace(POLICY, driver=""))[0] == OffloadChoice.DONE


def test_what_is_released_already_is_done_unless_bookkeeper_has_it_still() -> None:
    gone = complete(1, bookkeeper_deleted=True)
    assert one(gone) == (OffloadChoice.DONE, OffloadCode.RELEASED)
    assert one(gone, leftovers={2})[0] == OffloadChoice.DONE
    assert one(gone, leftovers={1})[0] == OffloadChoice.RELEASE
    assert one(ledger(1, bookkeeper_deleted=True), leftovers={1})[0] == OffloadChoice.KEEP
    assert one(complete(1, offloaded_at=NOW), leftovers={1})[0] == OffloadChoice.DONE


@pytest.mark.parametrize("released", [False, True])
def test_an_offload_without_a_name_is_never_proven_so_never_released(released: bool) -> None:
    nameless = complete(1, bookkeeper_deleted=released, offload_uuid=None)
    assert one(nameless, leftovers={1}) == (OffloadChoice.DONE, OffloadCode.NO_UUID)


@pytest.mark.parametrize("driver", ["azureblob", ""])
def test_what_is_released_stays_where_its_driver_does_not_act(driver: str) -> None:
    gone = complete(1, bookkeeper_deleted=True)
    assert one(gone, replace(POLICY, driver=driver), leftovers={1})[0] == OffloadChoice.DONE


@pytest.mark.parametrize(("lag", "offloads"), [(0, False), (1000, False), (-1, True), (None, True)])
@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_where_brokers_read_bookkeeper_first_no_copy_there_comes_to_go(
    lag: int | None, offloads: bool, release: bool, everything: bool
) -> None:
    """The read check would read the very copy that goes; brokers may not be able to read the other."""
    policy = replace(POLICY, deletion_lag_ms=lag, tiered_first=False)
    our_lag = LAG if release else None
    action, code = one(ledger(1), policy, our_lag_ms=our_lag, everything=everything)
    assert action == (OffloadChoice.OFFLOAD if offloads else OffloadChoice.KEEP)
    assert offloads or code == OffloadCode.BOOKKEEPER_FIRST
    for item in (complete(1), complete(1, bookkeeper_deleted=True)):
        said = one(item, policy, our_lag_ms=our_lag, everything=everything, leftovers={1})
        assert said == (OffloadChoice.DONE, OffloadCode.BOOKKEEPER_FIRST)


def test_copies_are_the_brokers_to_release_unless_they_are_ours() -> None:
    theirs = replace(POLICY, deletion_lag_ms=LAG)
    for item in (complete(1), complete(1, bookkeeper_deleted=True)):
        assert one(item, theirs, leftovers={1}, our_lag_ms=None) == (OffloadChoice.DONE, OffloadCode.BROKERS_RELEASE)
    assert one(ledger(1), our_lag_ms=None)[0] == OffloadChoice.OFFLOAD


def test_thresholds_and_retention_are_no_matter_of_releasing() -> None:
    assert one(complete(1), replace(POLICY, threshold_bytes=-1))[0] == OffloadChoice.RELEASE
    assert one(complete(1), replace(POLICY, threshold_seconds=60), retention=kept(1, 1))[0] == OffloadChoice.RELEASE


@pytest.mark.parametrize("released", [False, True])
def test_a_copy_is_looked_for_where_it_lies_whatever_the_policy_says_by_now(released: bool) -> None:
    item = complete(1, offload_bucket="old", bookkeeper_deleted=released)
    row = judged(state(item, LAST), leftovers={1})[1]
    assert (row["action"], row["bucket"]) == (OffloadChoice.RELEASE, "old")
    row = judged(state(item, LAST), leftovers={1}, buckets={"b"})[1]
    assert (row["action"], row["bucket"]) == (OffloadChoice.DONE, "old")
    assert row["code"] == OffloadCode.NO_BUCKET
    assert "name old in object_store.buckets" in row["reason"]
    theirs = replace(POLICY, deletion_lag_ms=LAG)
    said = one(item, theirs, leftovers={1}, buckets={"b"}, our_lag_ms=None)
    assert said == (OffloadChoice.DONE, OffloadCode.BROKERS_RELEASE)


@pytest.mark.parametrize("named", [None, ""])
def test_a_copy_of_which_its_topic_names_no_bucket_cannot_be_proven(named: str | None) -> None:
    assert one(complete(1, offload_bucket=named)) == (OffloadChoice.DONE, OffloadCode.NO_BUCKET)


def test_what_is_offloaded_again_goes_where_its_policy_says() -> None:
    row = judged(state(ledger(1, offload_bucket="old"), LAST))[1]
    assert (row["action"], row["bucket"]) == (OffloadChoice.OFFLOAD, "b")


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
    rows = judge(topic, POLICY, FOREVER, NOW, {}, our_lag_ms=None, buckets={"b"})
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


@pytest.mark.parametrize("name", [field.name for field in fields(OffloadPlan)])
def test_a_document_that_lacks_a_fact_is_no_plan(name: str) -> None:
    document = SUMMARY.to_json()
    del document[name]
    with pytest.raises(ValueError, match=name):
        OffloadPlan.from_json(document)
