"""What happened over time: a PNG in the page itself, bars of text, words where there is nothing to draw."""

from __future__ import annotations

import base64
import re

import dagster as dg
import pytest

from assets.pages import plots, show
from assets.pages.plots import DAY_MS, STEP, bars_of, deletions_as_text, deletions_over_time, storage_as_text
from pulsar_lifecycle.journal.metrics import Interval
from pulsar_lifecycle.lifecycle.reasons import Reason

INTERVALS = [Interval(n * STEP, n % 3 * 100, n % 2, n // 50, n << 30) for n in range(plots.SHOWN // STEP)]


def shown(intervals: list[Interval]) -> str:
    value = deletions_over_time(intervals)
    assert isinstance(value, dg.MarkdownMetadataValue)
    return value.md_str or ""


@pytest.mark.parametrize("intervals", [INTERVALS, INTERVALS[1:2], [Interval(DAY_MS, 0, 1, 0, 0)]])
def test_it_is_one_small_picture(intervals: list[Interval]) -> None:
    found = re.fullmatch(r"!\[[^\]]+\]\(data:image/png;base64,([A-Za-z0-9+/=]+)\)", shown(intervals))
    assert found
    assert base64.b64decode(found[1]).startswith(b"\x89PNG")
    assert len(found[1]) < 60_000  # it lies in Dagster's event log


def test_nothing_is_said_in_words() -> None:
    assert "nothing" in shown([Interval(0, 0, 0, 0, 0)])
    assert "nothing" in shown([])


@pytest.mark.parametrize(
    ("largest", "unit"),
    [(0, ("B", 1)), (1023, ("B", 1)), (1024, ("KiB", 1024)), (5 << 30, ("GiB", 1 << 30)), (1 << 70, ("PiB", 1 << 50))],
)
def test_bytes_are_in_a_unit_that_reads_well(largest: int, unit: tuple[str, int]) -> None:
    assert plots._unit(largest) == unit


def read_at_once(value: dg.MetadataValue) -> str:
    """What Dagster shows without a click."""
    assert isinstance(value, dg.MarkdownMetadataValue)
    assert len(value.md_str or "") < show.INLINE
    return value.md_str or ""


@pytest.mark.parametrize("late", [DAY_MS * 400, (1 << 63) - 1, 253_402_300_800_000])
def test_what_is_due_in_more_than_a_year_is_out_of_the_picture(late: int) -> None:
    """A message may be delayed until any time."""
    value = plots.messages_due({("persistent://t/n/a", "s"): {DAY_MS: 5, late: 3}})
    assert isinstance(value, dg.MarkdownMetadataValue)
    assert "image/png" in (value.md_str or "")


def test_what_is_due_is_read_without_a_click() -> None:
    hour, late = 3_600_000, (1 << 63) - 1
    few, many = ("persistent://t/n/a", "few"), ("persistent://t/n/a", "many")
    text = read_at_once(plots.due_as_text({few: {hour: 1}, many: {2 * hour: 1_000, 3 * hour: 500, late: 1}}))
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    assert [row[1:3] for row in rows] == [["many", "1,501"], ["few", "1"]]
    assert [row[3][:4] for row in rows] == [".█▄.", "█..."]
    assert read_at_once(plots.due_as_text({})) == "nothing"


def test_where_nothing_is_due_that_a_date_can_say_there_are_words() -> None:
    value = plots.messages_due({("persistent://t/n/a", "s"): {(1 << 63) - 1: 3}})
    assert isinstance(value, dg.MarkdownMetadataValue)
    assert "3 delayed messages" in (value.md_str or "")


def test_bars_of_text_show_the_least_and_nothing() -> None:
    assert bars_of([0, 1, 50, 100]) == ".▁▄█"
    assert bars_of([0, 0]) == ".."
    assert bars_of([]) == ""


def test_deletions_are_read_without_a_click() -> None:
    text = read_at_once(deletions_as_text(INTERVALS))
    assert [line.split(" | ")[0].strip("| ") for line in text.splitlines()[2:]] == [
        "deleted",
        "to be retried",
        "dead letters",
        "bytes deleted",
    ]
    assert all(len(line.split(" | ")[1]) == len(INTERVALS) for line in text.splitlines()[2:])
    assert read_at_once(deletions_as_text([])) == "nothing"


def test_storage_is_read_without_a_click() -> None:
    reports = [(n * DAY_MS, dict.fromkeys(map(str, Reason), n % 7 << 50)) for n in range(90)]
    assert len(read_at_once(storage_as_text(reports)).splitlines()) == 10
    first = read_at_once(storage_as_text([(0, {Reason.ORPHAN: 1 << 20}), (DAY_MS, {Reason.ORPHAN: 1 << 21})]))
    assert "| orphan | ▄█ | 2.0 MiB |" in first
    assert read_at_once(storage_as_text([])) == "nothing"
