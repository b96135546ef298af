"""A plan to delete records as every page shows it: a line for each partition, and what is said of it besides.

Belongs here: columns and sentences that the command, ``plan ID`` and the job's page share. Not here: the rows
(``delete_records_plan.py``), layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

COLUMNS = ("partition", "asked", "low watermark", "first readable", "below it", "ledgers", "frees", "error")
"""Of a line. ``below it``: what remains readable below the low watermark."""
SHOWN = 5
"""Subscriptions of a partition that are named."""
LOST = "{} offloaded copies go, which no undo brings back"
"""Of a partition, as it is planned or answered."""


@dataclass(frozen=True, slots=True)
class RecordsTable:
    """``size`` and ``moment``: how the page writes bytes, and times (ms)."""

    size: Callable[[int], str]
    moment: Callable[[int], str]

    def line(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """A partition's cells of :data:`COLUMNS`."""
        names = ("topic", "asked", "low_watermark", "first_readable")
        cells = [row[name] for name in names]
        return *cells, self._between(row), len(row["ledgers"]), self.size(row["bytes"]), row["error"]

    def notes(self, row: Mapping[str, Any]) -> list[str]:
        """Sentences about a partition: its error, or what becomes of it, its readers, publish times around it."""
        goes = row["error"] is None
        notes = [] if goes else [f"{row['error']}: {row['reason']}"]
        if goes:
            notes += ["its current ledger is closed first, so that it can go"] if row["rolls"] else []
            moved = (f"moves subscription {one['cursor']} from {one['position']}" for one in row["moved_cursors"])
            notes += _some(list(moved), "subscriptions are moved", "moved_cursors")
        notes += _some([f"reader {name} may stand below it" for name in row["readers"]], "readers", "readers")
        if row["published_before"]:
            notes.append(f"last message below published {self.moment(row['published_before'])}")
        if row["published_at"]:
            notes.append(f"first message kept published {self.moment(row['published_at'])}")
        if row["at_risk"] and goes:
            notes.append(f"{row['at_risk']} messages published at or after the time lie among older ones: all stay")
        if row["lost_copies"]:
            notes.append(LOST.format(row["lost_copies"]))
        return notes

    def _between(self, row: Mapping[str, Any]) -> str | None:
        if row["messages_between"] is None:
            return None
        return f"{row['messages_between']} messages, {self.size(row['bytes_between'])}"


def _some(notes: Sequence[str], what: str, column: str) -> list[str]:
    more = len(notes) - SHOWN
    return [*notes[:SHOWN], *([f"{more} more {what}: --json has all in `{column}`"] if more > 0 else [])]


def undo_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """How long an undo brings back what goes by these rows."""
    going = [row for row in rows if row["error"] is None]
    if not any(row["ledgers"] or row["leftovers"] for row in going):
        return "nothing goes that could come back"
    if any(row["no_undo"] for row in going):
        return "forbidden"
    lost = sum(row["lost_copies"] for row in going)
    return "until the bookies collect" + (f"; {lost} offloaded copies do not come back" if lost else "")
