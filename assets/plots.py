"""What two-phase deletion did over time, as a picture for an asset's page.

Belongs here: drawing. Not here: counting (``pulsar_lifecycle.journal.metrics``). The picture stands in the metadata
itself, so that the page of an old event still shows what was known then; it is kept small.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from datetime import UTC, datetime

import dagster as dg
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pulsar_lifecycle.journal.metrics import Interval

DAY_MS = 86_400_000
SHOWN = 14 * DAY_MS
"""Milliseconds back."""
STEP = 6 * 3_600_000
"""Milliseconds per bar; whole hours."""

_BARS = {
    "deleted": ("deleted", "#2a78b8"),
    "retrying": ("to be retried", "#e8a33d"),
    "dead_lettered": ("dead letters", "#c2342b"),
}


def deletions_over_time(intervals: Sequence[Interval]) -> dg.MetadataValue:
    """Messages per interval by what became of them, and below them bytes deleted; words instead where nothing was."""
    if not any(i.deleted or i.retrying or i.dead_lettered for i in intervals):
        return dg.MetadataValue.md("nothing was deleted, retried or dead-lettered in this time")
    figure = Figure(figsize=(9, 4.4), dpi=80, layout="constrained")
    counts, sizes = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    starts = [datetime.fromtimestamp(i.start / 1000, UTC) for i in intervals]
    step = starts[1] - starts[0] if len(starts) > 1 else datetime.fromtimestamp(STEP / 1000, UTC) - _EPOCH
    below = [0] * len(intervals)
    for name, (label, color) in _BARS.items():
        heights = [getattr(i, name) for i in intervals]
        total = sum(heights)
        counts.bar(starts, heights, step * 0.9, below, align="edge", color=color, label=f"{label}: {total:,}")  # type: ignore[arg-type]
        below = [a + b for a, b in zip(below, heights, strict=True)]
    counts.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    counts.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    counts.set_ylabel("messages")
    counts.legend(loc="upper left", ncols=3, frameon=False, fontsize="small", bbox_to_anchor=(0, 1.18))
    unit, factor = _unit(max(i.deleted_bytes for i in intervals))
    freed = [i.deleted_bytes / factor for i in intervals]
    sizes.bar(starts, freed, step * 0.9, align="edge", color=_BARS["deleted"][1])  # type: ignore[arg-type]
    sizes.yaxis.set_major_locator(MaxNLocator(4))
    sizes.set_ylabel(f"{unit} deleted")
    locator = AutoDateLocator(maxticks=10)
    sizes.xaxis.set_major_locator(locator)
    sizes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    sizes.set_xlabel("UTC")
    sizes.set_xlim(starts[0], starts[-1] + step)  # type: ignore[arg-type]
    for axes in (counts, sizes):
        _quiet(axes)
    sink = io.BytesIO()
    figure.savefig(sink, format="png")
    picture = base64.b64encode(sink.getvalue()).decode()
    return dg.MetadataValue.md(f"![deletions, retries and dead letters over time](data:image/png;base64,{picture})")


_EPOCH = datetime.fromtimestamp(0, UTC)


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
