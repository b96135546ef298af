"""How long ago something was, where clocks differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.plans import condition
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (NOW - 3_000, "3 s ago"),
        (NOW + 3_000, "0 s ago"),
        (NOW + 7_200_000, "2 h 0 min ahead of this clock"),
    ],
)
def test_what_another_clock_dates_ahead_is_not_called_just_now(at: int, said: str) -> None:
    assert show.ago(at, NOW) == said


def test_a_plan_that_is_dated_ahead_is_not_called_actionable(plan: PlanSummary, settings_file: Path) -> None:
    settings, ahead = load_settings(settings_file), replace(plan, created_at=NOW + 3_600_000)
    assert condition(ahead, settings, NOW).startswith("dated 3600 s ahead")
    assert condition(ahead, settings, ahead.created_at).startswith("actionable for")


def test_no_page_says_by_itself_how_long_ago_something_was() -> None:
    """Such a page calls what another clock dated ahead just made."""
    own = Path(show.__file__)
    others = [one for one in own.parent.rglob("*.py") if one != own]
    assert others
    assert [one.name for one in others if "} ago" in one.read_text()] == []
