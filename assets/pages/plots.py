"""What two-phase deletion did, and where the disk goes, over time: pictures for an asset's page.

Belongs here: drawing. Not here: counting (``pulsar_lifecycle.journal.metrics``, ``lifecycle.storage``). A picture
stands in the metadata itself, so that the page of an old event still shows what was known then; it is kept small.
Dagster shows one by a click only (``show.INLINE``): bars of text show the same at once.
Functions import what they draw with: every process of Dagster imports this module, and few of them draw.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import dagster as dg

from assets.pages import show
from pulsar_lifecycle.journal.metrics import Interval
from pulsar_lifecycle.lifecycle.reasons import Reason
from pulsar_lifecycle.model import YEAR_10000

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DAY_MS = 86_400_000
_HOUR_MS = 3_600_000
SHOWN = 14 * DAY_MS
"""Milliseconds back."""
STEP = 6 * _HOUR_MS
"""Milliseconds per bar; whole hours."""

_HEIGHTS = ".▁▂▃▄▅▆▇█"
"""A bar of text by its height; the first is that of nothing."""
_REPORTS, _REASONS, _HOURS = 30, 8, 24
"""How many reports, reasons and hours bars of text show: what fits."""

_BARS = {
    "deleted": ("deleted", "#2a78b8"),
    "retrying": ("to be retried", "#e8a33d"),
    "dead_lettered": ("dead letters", "#c2342b"),
}


def deletions_over_time(intervals: Sequence[Interval]) -> dg.MetadataValue:
    """Messages per interval by what became of them, and below them bytes deleted; words instead where nothing was."""
    if not any(i.deleted or i.retrying or i.dead_lettered for i in intervals):
        return dg.MetadataValue.md("nothing was deleted, retried or dead-lettered in this time")
    figure = _figure(4.4, 80)
    counts, sizes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    starts = _moments(i.start for i in intervals)
    step = starts[1] - starts[0] if len(starts) > 1 else timedelta(milliseconds=STEP)
    below = [0] * len(intervals)
    for name, (label, color) in _BARS.items():
        heights = [getattr(i, name) for i in intervals]
        total = sum(heights)
        counts.bar(starts, heights, step * 0.9, below, align="edge", color=color, label=f"{label}: {total:,}")
        below = [a + b for a, b in zip(below, heights, strict=True)]
    _ticks(counts, 5, integer=True)
    counts.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    counts.set_ylabel("messages")
    counts.legend(loc="upper left", ncols=3, frameon=False, fontsize="small", bbox_to_anchor=(0, 1.18))
    unit, factor = _unit(max(i.deleted_bytes for i in intervals))
    freed = [i.deleted_bytes / factor for i in intervals]
    sizes.bar(starts, freed, step * 0.9, align="edge", color=_BARS["deleted"][1])
    _ticks(sizes, 4)
    sizes.set_ylabel(f"{unit} deleted")
    _dated(sizes)
    sizes.set_xlim(starts[0], starts[-1] + step)
    for axes in (counts, sizes):
        _quiet(axes)
    return _picture(figure, "deletions, retries and dead letters over time")


def deletions_as_text(intervals: Sequence[Interval]) -> dg.MetadataValue:
    """What :func:`deletions_over_time` draws, as bars of text."""
    if not any(i.deleted or i.retrying or i.dead_lettered for i in intervals):
        return dg.MetadataValue.md(show.NOTHING)
    lines = {label: [getattr(i, name) for i in intervals] for name, (label, _) in _BARS.items()}
    cells = [(label, bars_of(counts), f"{sum(counts):,}") for label, counts in lines.items()]
    sizes = [i.deleted_bytes for i in intervals]
    cells.append(("bytes deleted", bars_of(sizes), show.size(sum(sizes))))
    return dg.MetadataValue.md(show.markdown(["", f"since {show.at(intervals[0].start)[:16]} UTC", "in all"], cells))


def bars_of(counts: Sequence[int]) -> str:
    """A character for each count, by its share of the largest; whatever is more than nothing is seen."""
    largest, steps = max(counts, default=0), len(_HEIGHTS) - 1
    return "".join(_HEIGHTS[-(-count * steps // largest) if largest else 0] for count in counts)


_LAYERS = {
    Reason.RETAINED: "#2a78b8",
    Reason.BACKLOG: "#6fa8d6",
    Reason.PINNED: "#4d4f9e",
    Reason.LAST_LEDGER: "#b5d0e8",
    Reason.EXPIRED: "#c2342b",
    Reason.EXPIRED_OPEN: "#e0776f",
    Reason.PENDING_DELETION: "#d9783f",
    Reason.ORPHAN: "#e8a33d",
    Reason.OFFLOAD_LEFTOVER: "#f2cf8f",
    Reason.UNREFERENCED: "#d9d2a0",
    Reason.CURSOR: "#5a8f62",
    Reason.SCHEMA: "#7fb087",
    Reason.COMPACTED: "#a4cbaa",
    Reason.DELAYED_INDEX: "#cbe3cf",
    Reason.FOREIGN: "#8a7aa8",
    Reason.UNJUDGED: "#9a9a9a",
}
"""Colours, from the bottom up: what stays in blue, what could go in red and yellow."""
_SUBSCRIPTIONS, _OTHERS = ("#2a78b8", "#e8a33d", "#5a8f62", "#4d4f9e", "#e0776f", "#a4cbaa"), "#9a9a9a"
_NAME = 36
"""Characters of a subscription's name beside a picture."""


def storage_over_time(reports: Sequence[tuple[int, Mapping[str, int]]]) -> dg.MetadataValue:
    """Bytes on disk by reason, stacked, at each (ms, reason -> bytes), oldest first; words instead where none is."""
    if not any(sum(sizes.values()) for _, sizes in reports):
        return dg.MetadataValue.md("no report has any bytes yet")
    shown = [reason for reason in _LAYERS if any(sizes.get(reason, 0) for _, sizes in reports)]
    unit, factor = _unit(max(sum(sizes.values()) for _, sizes in reports))
    times = _moments(at for at, _ in reports)
    layers = [[sizes.get(reason, 0) / factor for _, sizes in reports] for reason in shown]
    if len(times) == 1:  # an area needs two points
        times, layers = [times[0], times[0] + _HOUR], [[*layer, *layer] for layer in layers]
    figure = _figure(4)
    axes = figure.subplots()
    colors = [_LAYERS[reason] for reason in shown]
    axes.stackplot(times, *layers, labels=shown, colors=colors, antialiased=False)
    _ticks(axes, 5)
    axes.set_ylabel(f"{unit} on disk")
    axes.legend(loc="center left", frameon=False, fontsize="small", bbox_to_anchor=(1, 0.5), reverse=True)
    _dated(axes)
    axes.set_xlim(times[0], times[-1])
    _quiet(axes)
    return _picture(figure, "bytes on disk by reason over time")


def storage_as_text(reports: Sequence[tuple[int, Mapping[str, int]]]) -> dg.MetadataValue:
    """What :func:`storage_over_time` draws, as bars of text: the newest reports, the reasons that hold most."""
    newest = reports[-_REPORTS:]
    most = {reason: max(sizes.get(reason, 0) for _, sizes in newest) for reason in _LAYERS} if newest else {}
    shown = sorted((reason for reason in most if most[reason]), key=lambda reason: -most[reason])[:_REASONS]
    lines = {reason: [sizes.get(reason, 0) for _, sizes in newest] for reason in shown}
    cells = [(reason, bars_of(sizes), show.size(sizes[-1])) for reason, sizes in lines.items()]
    return dg.MetadataValue.md(show.markdown(["reason", "each report, by its row's most", "on disk now"], cells))


def messages_due(due: Mapping[tuple[str, str], Mapping[int, int]]) -> dg.MetadataValue:
    """Messages of each (topic, subscription) by the hour that they are due in (ms), stacked, for a year.

    The subscriptions with the most by name, the others in one. Words instead where none is.
    """
    hours = sum(map(Counter, due.values()), Counter[int]())
    if not hours:
        return dg.MetadataValue.md("no delayed message is due")
    last = min(min(hours) + _FORECAST_MS, YEAR_10000 - _FORECAST_MS)
    shown = sorted(hour for hour in hours if hour <= last)
    later = sum(count for hour, count in hours.items() if hour > last)
    if not shown:
        return dg.MetadataValue.md(f"{later:,} delayed messages, all of them due after the year 9998")
    most = _by_messages(due)
    named, rest = most[: len(_SUBSCRIPTIONS)], most[len(_SUBSCRIPTIONS) :]
    layers = [(_short(*names), due[names]) for names in named]
    if rest:
        layers.append((f"{len(rest):,} more", sum((Counter(due[names]) for names in rest), Counter[int]())))
    figure = _figure(3)
    axes = figure.subplots()
    starts, below = _moments(shown), [0] * len(shown)
    width: Any = _HOUR * 0.9
    for (label, counts), color in zip(layers, (*_SUBSCRIPTIONS, _OTHERS), strict=False):
        heights = [counts.get(hour, 0) for hour in shown]
        axes.bar(starts, heights, width, below, align="edge", color=color, label=label)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    if later:
        axes.set_title(f"{later:,} messages are due later", loc="right", fontsize="small")
    _ticks(axes, 5, integer=True)
    axes.set_ylabel("messages due")
    axes.legend(loc="center left", frameon=False, fontsize="small", bbox_to_anchor=(1, 0.5), reverse=True)
    _dated(axes)
    _quiet(axes)
    return _picture(figure, "delayed messages by the hour that they are due in, and by subscription")


def due_as_text(due: Mapping[tuple[str, str], Mapping[int, int]]) -> dg.MetadataValue:
    """The subscriptions with the most messages, and bars of text for the first :data:`_HOURS` hours that have any."""
    if not due:
        return dg.MetadataValue.md("nothing")
    first = min(min(hours) for hours in due.values())
    cells = [
        (
            *names,
            f"{sum(due[names].values()):,}",
            bars_of([due[names].get(first + n * _HOUR_MS, 0) for n in range(_HOURS)]),
        )
        for names in _by_messages(due)[: len(_SUBSCRIPTIONS)]
    ]
    headers = ["topic", "subscription", "messages", f"each hour from {show.at(first)}, by its row's most"]
    return dg.MetadataValue.md(show.markdown(headers, cells))


def _by_messages(due: Mapping[tuple[str, str], Mapping[int, int]]) -> list[tuple[str, str]]:
    """Subscriptions, those with the most messages first."""
    return sorted(due, key=lambda names: (-sum(due[names].values()), names))


def _short(topic: str, subscription: str) -> str:
    """A name that fits beside a picture; matplotlib hides labels that begin with an underscore, and reads dollars."""
    name = f"{topic.rpartition('/')[2]}: {subscription}"
    if len(name) > _NAME:
        name = f"{name[: _NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
    return "\N{ZERO WIDTH SPACE}" + name.replace("$", r"\$")


def _figure(height: float, dpi: int = 72) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(9, height), dpi=dpi, layout="constrained")


def _ticks(axes: Axes, most: int, *, integer: bool = False) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(most, integer=integer))


def _dated(axes: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(maxticks=10)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlabel("UTC")


def _picture(figure: Figure, title: str) -> dg.MetadataValue:
    sink = io.BytesIO()
    figure.savefig(sink, format="png")
    picture = base64.b64encode(sink.getvalue()).decode()
    return dg.MetadataValue.md(f"![{title}](data:image/png;base64,{picture})")


_HOUR = timedelta(hours=1)
_FORECAST_MS = 366 * DAY_MS


def _moments(times: Iterable[int]) -> list[Any]:
    """Times (ms) as Matplotlib takes them, though its types want numbers."""
    return [datetime.fromtimestamp(at / 1000, UTC) for at in times]


def _unit(largest: int) -> tuple[str, int]:
    """The unit in which the largest of some sizes reads well, and its bytes."""
    power = min((max(largest, 1).bit_length() - 1) // 10, 5)
    return ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power], 1 << (10 * power)


def _quiet(axes: Axes) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_ylim(0, axes.dataLim.ymax * 1.08 or 1)
