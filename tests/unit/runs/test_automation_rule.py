"""The rule of what goes by itself, and when a maintenance window is open."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from pulsar_lifecycle.automation_settings import Automation, AutomationSettings, KindAutomation, Window
from pulsar_lifecycle.runs.automation_rule import (
    Amount,
    Approval,
    AutomationCode,
    Candidate,
    Grown,
    decide,
    grew_too_much,
)

NOW = 1_800_000_000_000
HOUR = 3_600_000
GIB = 1 << 30
PLAN = Candidate("orphans-e-1", "d", NOW - HOUR, True, 100, 10_000, 100_000)


def code(plan: Candidate | None = PLAN, *, approval: Approval | None = None, largest: int = 0, **kind: Any) -> str:
    settings = KindAutomation(**{"mode": "apply", **kind})
    applied = Amount(largest, largest * 100)
    found = decide(settings, plan, NOW, valid_for_ms=24 * HOUR, approval=approval, largest_applied=applied)
    assert found.text
    return found.code


def test_a_small_young_plan_goes() -> None:
    assert code() == AutomationCode.GOES


@pytest.mark.parametrize(("mode", "expected"), [("off", "off"), ("plan", "plan_only"), ("approve", "not_approved")])
def test_the_mode_says_how_far(mode: str, expected: str) -> None:
    assert code(mode=mode) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"actionable": False}, "report_only"),
        ({"created_at": NOW - 25 * HOUR}, "expired"),
        ({"created_at": NOW + HOUR}, "expired"),
        ({"ledgers": 0}, "empty"),
        ({"taken": True}, "taken"),
        ({"cluster_ledgers": 1_000}, "over_cap"),
        ({"largest_topic": 1_001}, "over_cap"),
    ],
)
def test_what_keeps_a_plan_from_going(change: dict[str, Any], expected: str) -> None:
    assert code(replace(PLAN, **change)) == expected


@pytest.mark.parametrize(("at", "said"), [(-25 * HOUR, "1500 minutes old"), (HOUR, "3600 s ahead of")])
def test_a_plan_from_the_future_is_not_called_old(at: int, said: str) -> None:
    found = decide(KindAutomation(mode=Automation.APPLY), replace(PLAN, created_at=NOW + at), NOW, valid_for_ms=HOUR)
    assert (found.code, said in found.text) == (AutomationCode.EXPIRED, True)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ({"min_ledgers": 101}, "too_small"),
        ({"min_bytes": 10_001}, "too_small"),
        ({"max_ledgers": 99}, "over_cap"),
        ({"max_bytes": 9_999}, "over_cap"),
        ({"max_share": 0.0009}, "over_cap"),
        ({"growth_from": 99}, "grew"),
        ({"growth_from_bytes": 9_999}, "grew"),
        ({"window": {"cron": "0 0 30 2 *", "duration": "1h"}}, "window_shut"),
    ],
)
def test_the_settings_keep_a_plan_from_going(kind: dict[str, Any], expected: str) -> None:
    assert code(**kind) == expected


def test_there_is_no_plan_yet() -> None:
    assert code(None) == AutomationCode.NO_PLAN


@pytest.mark.parametrize(("largest", "expected"), [(10, "goes"), (9, "grew"), (0, "grew")])
@pytest.mark.parametrize("least", ["growth_from", "growth_from_bytes"])
def test_a_plan_may_be_ten_times_the_largest_that_was_applied(largest: int, expected: str, least: str) -> None:
    assert code(largest=largest, **{least: 50}) == expected


def test_as_many_ledgers_of_far_more_bytes_wait_and_the_text_has_both() -> None:
    """900 ledgers of 2 GiB after 900 of 1 MiB are fewer than ``growth_from``."""
    plan = replace(PLAN, ledgers=900, bytes=1_800 * GIB)
    kind, before = KindAutomation(mode=Automation.APPLY), Amount(900, 900 << 20)
    found = decide(kind, plan, NOW, valid_for_ms=24 * HOUR, largest_applied=before)
    assert found.code is AutomationCode.GREW
    assert f"{plan.bytes} bytes, more than 10 times the {before.bytes} bytes of the largest" in found.text
    first = decide(kind, plan, NOW, valid_for_ms=24 * HOUR)
    assert (first.code, "none was applied in 30 days" in first.text) == (AutomationCode.GREW, True)
    usual = decide(kind, plan, NOW, valid_for_ms=24 * HOUR, largest_applied=Amount(90, 180 * GIB))
    assert usual.code is AutomationCode.GOES


@pytest.mark.parametrize(
    ("plan", "before", "grown"),
    [
        (Amount(1_000, 100 * GIB), Amount(), ()),
        (Amount(1_001, 100 * GIB), Amount(100, 0), (Grown.LEDGERS,)),
        (Amount(1_000, 100 * GIB + 1), Amount(1_000, 10 * GIB), (Grown.BYTES,)),
        (Amount(1_001, 100 * GIB + 1), Amount(100, 10 * GIB), (Grown.LEDGERS, Grown.BYTES)),
        (Amount(1_001, 100 * GIB + 1), Amount(101, 11 * GIB), ()),
    ],
)
def test_ledgers_and_bytes_grow_each_from_its_own_floor(plan: Amount, before: Amount, grown: tuple[Grown, ...]) -> None:
    assert grew_too_much(KindAutomation(), plan, before) == grown


def test_a_plan_that_grew_is_never_applied_by_waiting() -> None:
    """Plans that were only made are no measure: else the second of two such plans would go."""
    assert code(replace(PLAN, ledgers=9_000, cluster_ledgers=10**9), largest=0) == AutomationCode.GREW


def test_an_approval_holds_for_its_digest_and_its_time() -> None:
    given = Approval("ann", "d", NOW - 1, NOW + 1)
    assert code(mode="approve", approval=given) == AutomationCode.GOES
    assert code(mode="approve", approval=replace(given, digest="another")) == AutomationCode.NOT_APPROVED
    assert code(mode="approve", approval=replace(given, until=NOW)) == AutomationCode.APPROVAL_EXPIRED
    assert code(mode="approve", approval=given, growth_from=0) == AutomationCode.GOES
    assert code(mode="approve", approval=given, max_ledgers=1) == AutomationCode.OVER_CAP
    assert code(mode="approve", max_ledgers=1) == AutomationCode.OVER_CAP, "nobody is asked for what would not help"


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("cron", "now", "is_open"),
    [
        ("0 1 * * *", "2026-11-24T00:59:59", False),
        ("0 1 * * *", "2026-11-24T01:00:00", True),
        ("0 1 * * *", "2026-11-24T02:59:59", True),
        ("0 1 * * *", "2026-11-24T03:00:00", False),
        ("30 23 * * 6", "2026-11-29T00:30:00", True),
        ("30 23 * * 0", "2026-11-29T00:30:00", False),
        ("0 1 24 * 6", "2026-11-24T01:30:00", True),
        ("0 1 23 * 7", "2026-11-24T01:30:00", False),
        ("*/30 8-10,22 * 11 *", "2026-11-24T10:31:00", True),
        ("0 22 * 12 *", "2026-11-24T22:30:00", False),
    ],
)
def test_a_window_opens_at_its_cron_for_its_duration(cron: str, now: str, is_open: bool) -> None:
    assert (Window(cron=cron, duration="2h").opened_at(at(now)) is not None) is is_open


def test_a_window_is_in_its_time_zone_and_says_since_when_it_is_open() -> None:
    window = Window(cron="0 1 * * *", duration="2h", timezone="Europe/Zurich")
    assert window.opened_at(at("2026-11-24T00:30:00")) == at("2026-11-24T00:00:00")
    assert window.opened_at(at("2026-11-24T02:00:00")) is None


def test_a_window_opens_once_in_the_hour_that_the_end_of_summer_time_repeats() -> None:
    window = Window(cron="0 2 * * *", duration="1h", timezone="Europe/Zurich")
    assert window.opened_at(at("2026-10-25T00:30:00")) == at("2026-10-25T00:00:00")
    assert window.opened_at(at("2026-10-25T01:30:00")) is None
    hourly = Window(cron="0 * * * *", duration="10m", timezone="Europe/Zurich")
    assert hourly.opened_at(at("2026-10-25T01:05:00")) == at("2026-10-25T01:00:00")


@pytest.mark.parametrize(
    ("timezone", "cron", "opened"),
    [
        ("Europe/Zurich", "30 2 * * 0", "2027-03-28T01:00:00"),
        ("Europe/Zurich", "0 2 * * 0", "2027-03-28T01:00:00"),
        ("Europe/London", "59 1 * * 0", "2027-03-28T01:00:00"),
        ("Europe/Zurich", "0 3 * * 0", "2027-03-28T01:00:00"),
        ("Europe/Zurich", "0 1 * * 0", "2027-03-28T00:00:00"),
    ],
)
def test_a_window_in_the_hour_that_summer_time_leaves_out_opens_as_that_begins(
    timezone: str, cron: str, opened: str
) -> None:
    window = Window(cron=cron, duration="2h", timezone=timezone)
    assert window.opened_at(at("2027-03-28T01:30:00")) == at(opened)
    assert window.opened_at(at("2027-03-28T04:00:00")) is None
    often = Window(cron="30 * * * *", duration="10m", timezone=timezone)
    assert often.opened_at(at("2027-03-28T01:05:00")) is None


@pytest.mark.parametrize("cron", ["", "* * * *", "60 * * * *", "a * * * *", "5-1 * * * *", "*/0 * * * *"])
def test_what_is_no_cron_is_refused(cron: str) -> None:
    with pytest.raises(ValidationError):
        Window(cron=cron, duration="1h")


def test_a_word_alone_is_the_mode_and_plan_is_the_default() -> None:
    found = AutomationSettings.model_validate({"retention": "approve", "offload": {"mode": "apply"}})
    assert (found.orphans.mode, found.retention.mode, found.offload.mode) == ("plan", "approve", "apply")


@pytest.mark.parametrize(
    ("least", "most"),
    [
        ({"min_ledgers": 6}, {"max_ledgers": 5}),
        ({"min_ledgers": 10_001}, {}),
        ({"min_bytes": 6}, {"max_bytes": 5}),
    ],
)
def test_a_minimum_above_its_maximum_is_refused_by_both_names(least: dict[str, int], most: dict[str, int]) -> None:
    """No plan could ever go, and nothing would say so."""
    (name,) = least
    with pytest.raises(ValidationError, match=rf"{name} .* above {name.replace('min_', 'max_')} "):
        KindAutomation(**least, **most)  # pyrefly: ignore[bad-argument-type]
    assert KindAutomation(min_ledgers=5, max_ledgers=5, min_bytes=5, max_bytes=5).min_ledgers == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"retention": "yes"},
        {"bookies": "apply"},
        {"bookies": {"namespaces": ["acme"]}},
        {"orphans": {"namespaces": ["a//b"]}},
    ],
)
def test_wrong_automation_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        AutomationSettings.model_validate(wrong)
