"""Which code each ledger of a topic gets."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from pulsar_lifecycle.lifecycle.retention import judge
from pulsar_lifecycle.lifecycle.verdicts import RETENTION_TOPICS, RETENTION_VERDICTS, RetentionVerdict
from pulsar_lifecycle.topics.protection import Protection

NOW = 1_700_000_000_000
MB = 1 << 20


def ledger(number: int, minutes_ago: int | None = 10, entries: int | None = 5, mb: int | None = 1) -> dict[str, Any]:
    closed = None if minutes_ago is None else NOW - minutes_ago * 60_000 - 1
    return {"ledger_id": number, "entries": entries, "size": None if mb is None else mb * MB, "closed_at": closed}


def topic(*ledgers: dict[str, Any], minutes: int | None = -1, mb: int | None = -1, **more: Any) -> pa.Table:
    row = {
        "managed_ledger": "t/n/persistent/a",
        "ledgers": list(ledgers),
        "retention_minutes": minutes,
        "retention_mb": mb,
        "durable_cursors": 0,
        **more,
    }
    return pa.Table.from_pylist([row], schema=RETENTION_TOPICS)


def cursor(number: int | None, entry: int | None, count: int | None = 1) -> dict[str, Any]:
    return {"durable_cursors": count, "slowest_ledger_id": number, "slowest_entry_id": entry}


def codes(table: pa.Table) -> list[str]:
    return judge(table, NOW).column("verdict").to_pylist()


THREE = (ledger(1), ledger(2), ledger(3))


@pytest.mark.parametrize(
    ("minutes", "mb", "expected"),
    [
        (-1, -1, ["forever", "forever"]),
        (0, -1, ["no_retention", "no_retention"]),
        (-1, 0, ["no_retention", "no_retention"]),
        (0, 0, ["no_retention", "no_retention"]),
        (60, 0, ["no_retention", "no_retention"]),
        (0, 9, ["no_retention", "no_retention"]),
        (10, -1, ["expired_by_time", "expired_by_time"]),
        (11, -1, ["within_time", "within_time"]),
        (-1, 2, ["expired_by_size", "within_size"]),
        (-1, 3, ["within_size", "within_size"]),
        (11, 1, ["expired_by_size", "expired_by_size"]),
        (11, 2, ["expired_by_size", "within_time"]),
        (10, 2, ["expired_by_time", "expired_by_time"]),
    ],
)
def test_time_and_size_free_each_alone(minutes: int, mb: int, expected: list[str]) -> None:
    assert codes(topic(*THREE, minutes=minutes, mb=mb)) == [*expected, "last_ledger"]


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ((3, -1), ["no_retention", "no_retention"]),
        ((2, 4), ["no_retention", "no_retention"]),  # the last entry of ledger 2
        ((2, 3), ["no_retention", "cursor"]),
        ((1, 4), ["no_retention", "cursor"]),
        ((1, 3), ["cursor", "cursor"]),
        ((9, 9), ["no_retention", "no_retention"]),  # beyond the end: brokers move it back
        ((0, 5), ["cursor", "cursor"]),
    ],
)
def test_the_slowest_durable_cursor_holds(position: tuple[int, int], expected: list[str]) -> None:
    assert codes(topic(*THREE, minutes=0, mb=0, **cursor(*position))) == [*expected, "last_ledger"]


def test_a_cursor_beyond_the_last_entry_there_is_stands_at_it() -> None:
    none = ledger(3, entries=0, mb=0)
    beyond = cursor(2, 9)
    assert codes(topic(ledger(1), ledger(2), none, mb=0, **beyond)) == ["no_retention", "no_retention", "last_ledger"]
    assert codes(topic(ledger(1), ledger(2), ledger(3), mb=0, **beyond)) == ["no_retention", "cursor", "last_ledger"]
    unknown = ledger(3, entries=None, mb=None)
    assert codes(topic(ledger(1), ledger(2), unknown, mb=0, **beyond)) == ["no_retention", "cursor", "last_ledger"]


def test_a_younger_ledger_before_it_holds_an_old_one() -> None:
    found = codes(topic(ledger(1, 20), ledger(2, 1), ledger(3, 20), ledger(4), minutes=10))
    assert found == ["expired_by_time", "within_time", "not_prefix", "last_ledger"]


def test_ledgers_without_entries_go_with_those_before_them() -> None:
    none = {"entries": 0, "mb": 0}
    mixed = (ledger(1, **none), ledger(2, 20), ledger(3, **none), ledger(4, 1), ledger(5, **none), ledger(6, **none))
    found = judge(topic(*mixed, minutes=10), NOW)
    expected = ["empty", "expired_by_time", "empty", "within_time", "not_prefix", "last_ledger"]
    assert found.column("verdict").to_pylist() == expected
    assert found.column("goes_when_loaded").to_pylist() == [True, True, True, False, True, True]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (ledger(2, None), "unknown_ledger"),
        (ledger(2, entries=None), "unknown_ledger"),
        (ledger(2, mb=None), "unknown_ledger"),
    ],
)
def test_a_ledger_that_is_not_known_stays_and_holds(second: dict[str, Any], expected: str) -> None:
    found = codes(topic(ledger(1), second, ledger(3), ledger(4), minutes=5))
    assert found == ["expired_by_time", expected, "not_prefix", "last_ledger"]


def test_the_size_decides_where_the_time_is_not_known() -> None:
    assert codes(topic(ledger(1, None), ledger(2), minutes=5, mb=1)) == ["expired_by_size", "last_ledger"]


@pytest.mark.parametrize(
    ("unknown", "expected"),
    [
        ({"minutes": None}, "unknown_policy"),
        ({"mb": None}, "unknown_policy"),
        (cursor(None, None, None), "unknown_cursor"),
        (cursor(None, None, 2), "unknown_cursor"),
        (cursor(3, None), "unknown_cursor"),
    ],
)
def test_a_policy_or_a_cursor_that_is_not_known_keeps_all(unknown: dict[str, Any], expected: str) -> None:
    found = judge(topic(*THREE, **{"minutes": 0, "mb": 0} | unknown), NOW)
    assert found.column("verdict").to_pylist() == [expected] * 3
    assert found.column("goes_when_loaded").to_pylist() == [False] * 3


@pytest.mark.parametrize("code", Protection)
def test_what_protects_a_topic_is_said_of_each_ledger(code: Protection) -> None:
    found = judge(topic(*THREE, minutes=0, kept=str(code)), NOW)
    assert found.column("verdict").to_pylist() == [code] * 3
    assert found.column("expired_by").to_pylist() == ["no_retention"] * 3


@pytest.mark.parametrize("kept", ["cursor", "because"])
def test_only_a_code_of_a_topic_protects_one(kept: str) -> None:
    with pytest.raises(ValueError, match=f"{kept}' keeps no topic"):
        judge(topic(*THREE, kept=kept), NOW)


def test_a_loaded_topic_loses_its_last_ledger_too_where_nothing_is_retained() -> None:
    for kept, goes in ((None, True), ("legal_hold", True), ("terminated", False), ("shadow_topic", False)):
        found = judge(topic(*THREE, minutes=-1, mb=0, kept=kept, **cursor(3, 4)), NOW)
        assert found.column("goes_when_loaded").to_pylist() == [goes] * 3
    behind = judge(topic(*THREE, minutes=-1, mb=0, **cursor(3, 3)), NOW)
    assert behind.column("goes_when_loaded").to_pylist() == [True, True, False]


def test_what_is_past_its_retention_is_said_whatever_keeps_it() -> None:
    empty = ledger(2, entries=0, mb=0)
    found = judge(topic(ledger(1), empty, ledger(3), ledger(4, 1), ledger(5), minutes=5), NOW)
    assert found.column("expired_by").to_pylist() == [
        "expired_by_time",
        "empty",
        "expired_by_time",
        None,
        "expired_by_time",
    ]
    assert found.column("verdict").to_pylist()[3:] == ["within_time", "last_ledger"]
    found = judge(topic(ledger(1), empty, ledger(3, 1), ledger(5), minutes=5, **cursor(1, 3)), NOW)
    assert found.column("expired_by").to_pylist() == ["expired_by_time", None, None, "expired_by_time"]
    assert found.column("verdict").to_pylist()[0] == "cursor"


def test_a_ledger_of_which_a_copy_would_be_kept_ends_the_prefix() -> None:
    found = judge(topic(ledger(1), ledger(2), ledger(3), ledger(4), minutes=5), NOW, [2])
    kept = ["copy_not_deletable", "not_prefix", "last_ledger"]
    assert found.column("verdict").to_pylist() == ["expired_by_time", *kept]
    assert found.column("goes_when_loaded").to_pylist() == [True, True, True, False]
    young = judge(topic(ledger(1, 1), ledger(2), minutes=5), NOW, [1])
    assert young.column("verdict").to_pylist() == ["within_time", "last_ledger"]


def test_when_the_retention_time_ends() -> None:
    found = judge(topic(ledger(1, 20), ledger(2, None), ledger(3), minutes=15), NOW)
    assert found.column("expires_at").to_pylist() == [NOW - 5 * 60_000 - 1, None, NOW + 5 * 60_000 - 1]
    assert judge(topic(*THREE), NOW).column("expires_at").null_count == 3


def test_ledgers_must_ascend() -> None:
    with pytest.raises(ValueError, match="do not ascend"):
        judge(topic(ledger(2), ledger(1)), NOW)


def test_topics_without_ledgers_and_tables_in_pieces() -> None:
    rows = [topic(*some, minutes=0).to_pylist()[0] for some in ((), THREE, (), (ledger(7),))]
    rows[2]["ledgers"] = None
    whole = pa.Table.from_pylist(rows, schema=RETENTION_TOPICS)
    pieces = pa.concat_tables([whole.slice(0, 1), whole.slice(1, 2), whole.slice(3)])
    for table in (whole, pieces):
        assert codes(table) == ["no_retention", "no_retention", "last_ledger", "last_ledger"]
    assert judge(whole.slice(1, 1), NOW).num_rows == 3
    assert judge(whole.slice(0, 0), NOW).schema == RETENTION_VERDICTS


def test_no_code_says_two_things() -> None:
    assert not set(Protection) & set(RetentionVerdict)
