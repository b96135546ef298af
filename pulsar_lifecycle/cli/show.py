"""Values as text: tables, facts, times, sizes; whatever a cluster holds is printed without its control characters.

Belongs here: layout. Not here: what is shown. A terminal wraps; a pipe gets one line per row.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pulsar_lifecycle.model import YEAR_10000

ROWS = 100
"""Rows of a nested table; the JSON document has all."""
ITEMS = 5
"""Items of a list that stands in a cell."""
PIPE_WIDTH = 400
JUST_NOW_MS = 60_000
"""What is dated so little ahead of this clock is told as made just now."""
_MILLISECONDS = range(10**12, 10**13)
_TIMES = ("time", "timestamp", "lastactive")


def json_document(value: Any) -> None:
    """One JSON document."""
    print(json.dumps(value, indent=2))


def note(line: str) -> None:
    """One line to stderr, at once: how far a command is, or what it leaves out."""
    print(f"pulsar-lifecycle: {printable(line)}", file=sys.stderr, flush=True)


def ago(at: int, now: int | None = None) -> str:
    """How long ago ``at`` (ms) was, by the clock of this machine; also where another clock that dated it is ahead."""
    passed = (time.time_ns() // 1_000_000 if now is None else now) - at
    return f"{span(-passed)} ahead of this clock" if passed < -JUST_NOW_MS else f"{span(passed)} ago"


def text(line: str = "", style: str = "") -> None:
    """A line."""
    _print(Text(printable(line), style=style))


def facts(pairs: Iterable[tuple[str, Any]], indent: int = 0) -> None:
    """A name and a value per line; several lines for a list. What is None is left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            if item is not None:
                grid.add_row(name if index == 0 else "", cell(item))
    if grid.row_count:
        _print(Padding(grid, (0, 0, 0, indent), expand=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], indent: int = 0) -> None:
    """A table with a header; numbers to the right, columns without any value left out."""
    lines = [list(row) for row in rows]
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    kept: list[int] = []
    for index, name in enumerate(columns):
        values = [line[index] for line in lines if line[index] not in (None, "")]
        if values:
            numeric = all(isinstance(v, int) and not isinstance(v, bool) for v in values)
            shown.add_column(name, justify="right" if numeric else "left", overflow="fold")
            kept.append(index)
    for line in lines:
        shown.add_row(*(cell(line[index]) for index in kept))
    _print(Padding(shown, (0, 0, 0, indent), expand=False))


def fields(value: Mapping[str, Any], indent: int = 0) -> None:
    """Any JSON-like document: plain fields first, then nested ones under their names, lists of documents as tables."""
    nested = {name: item for name, item in value.items() if _is_nested(item)}
    facts(((name, _annotated(name, item)) for name, item in value.items() if name not in nested), indent)
    for name, item in nested.items():
        if isinstance(item, Mapping):
            text(" " * indent + name, "bold cyan")
            fields(item, indent + 2)
        else:
            text(" " * indent + f"{name} ({len(item)})", "bold cyan")
            documents(item, indent + 2)


def documents(items: Sequence[Mapping[str, Any]], indent: int = 0) -> None:
    """A list of documents as a table with every field that any of them has."""
    columns = list(dict.fromkeys(name for item in items for name in item))
    table(columns, ([_annotated(c, item.get(c)) for c in columns] for item in items[:ROWS]), indent)
    if len(items) > ROWS:
        text(" " * indent + f"... {len(items) - ROWS} more; --json has all of them")


def cell(value: Any) -> Text:
    """A value in one line."""
    return Text(printable(_compact(value)))


def printable(value: str) -> str:
    """Text whose control characters and other unprintable ones are escaped; line feeds stay."""
    if all(c.isprintable() or c == "\n" for c in value):
        return value
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in value)


def moment(ms: int) -> str:
    """``2026-11-21 04:00:02 UTC``; a dash for no time. Who delays a message may say any."""
    if ms >= YEAR_10000:
        return "after the year 9999"
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if ms > 0 else "-"


def span(ms: float) -> str:
    """A duration in its two largest units at most: ``40 s``, ``12 min``, ``5 h 10 min``, ``3 d 4 h``."""
    seconds = max(0, int(ms / 1000))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds} s"
    if minutes < 120:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if hours < 48 else f"{days} d {hours % 24} h"


def counted(count: int, one: str, many: str = "") -> str:
    """``1 gap``, ``2 gaps``."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def size(count: int) -> str:
    """Bytes for a person, in powers of 1024."""
    value, units = float(count), ["B", "KB", "MB", "GB", "TB", "PB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{count} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def _is_nested(value: Any) -> bool:
    return bool(value) and (
        isinstance(value, Mapping) or (isinstance(value, list) and all(isinstance(item, Mapping) for item in value))
    )


def _annotated(name: str, value: Any) -> Any:
    """Milliseconds since the epoch with their date."""
    if isinstance(value, int) and value in _MILLISECONDS and name.lower().endswith(_TIMES):
        return f"{value} ({moment(value)})"
    return value if not isinstance(value, list) else _compact(value)


def _compact(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case Mapping():
            return ", ".join(f"{name}={_compact(item)}" for name, item in value.items())
        case list() | tuple():
            more = f", ... {len(value) - ITEMS} more" if len(value) > ITEMS else ""
            joined = "; " if any(isinstance(item, Mapping | list | tuple) for item in value) else ", "
            return joined.join(_compact(item) for item in value[:ITEMS]) + more
    return str(value)


def _print(shown: RenderableType) -> None:
    """Render to the terminal; to a pipe without styles, without wrapping, without blanks at the ends of lines."""
    if sys.stdout.isatty():
        Console(highlight=False).print(shown)
        return
    console = Console(highlight=False, width=PIPE_WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))
