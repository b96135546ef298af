"""What the page of a plan of any kind has: its protocol, and what pages of several kinds share.

Not here: the kinds (``cli/plan_pages.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.runs import plan_checks
from pulsar_lifecycle.runs.caps import effective_caps
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode

if TYPE_CHECKING:
    from pulsar_lifecycle.settings import Settings

Groups = list[tuple[str, int, str]]
"""A group's name, its ledgers, their bytes."""
FREES = "frees"
"""What the bytes of most plans are."""


class PlanPage(Protocol):
    """How plans of one kind are shown. ``job`` applies them; ``columns`` are those of a line of a sample.

    ``needs_two_scans``: whether an earlier scan must confirm what it rests on; ``what``: what its summary counts;
    ``measure``: what its bytes are.
    """

    @property
    def job(self) -> str: ...  # noqa: D102 - see above
    @property
    def columns(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def needs_two_scans(self) -> bool: ...  # noqa: D102
    @property
    def what(self) -> str: ...  # noqa: D102
    @property
    def measure(self) -> str: ...  # noqa: D102

    def brief(self, summary: Any) -> tuple[str, str | None, str | None]:
        """How much it is, which share of the cluster, and what it frees."""
        ...

    def run_config(self, summary: Any) -> dict[str, Any]:
        """What :attr:`job` is launched with."""
        ...

    def check(self, summary: Any, rows: pa.Table, lake: Lake, settings: Settings, now: int) -> None:
        """Raise Refused where :attr:`job` would refuse the whole of a plan that is sound, for its size or its scan."""
        ...

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """Ledgers by what an operator asks for, most first."""
        ...

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """A row of the sample."""
        ...

    def notes(self, row: dict[str, Any]) -> list[str]:
        """What is said of a row of the sample below it."""
        ...

    def facts(self, summary: Any, rows: pa.Table) -> list[tuple[str, str]]:
        """What it does, and what that frees, in words."""
        ...


class Deletes:
    """Plans of what is deleted under the settings' caps, or leads to it: their summaries are all alike."""

    what = "ledger"
    measure = FREES
    shares = False
    """Whether what it counts is a share of the cluster's ledgers."""

    def brief(self, summary: PlanSummary) -> tuple[str, str | None, str | None]:
        """By its summary alone."""
        count = show.counted(summary.ledgers, self.what)
        frees = show.size(summary.physical_bytes) if self.measure == FREES else None
        return count, share(summary) if self.shares else None, frees

    def check(self, summary: PlanSummary, rows: pa.Table, lake: Lake, settings: Settings, now: int) -> None:
        """The switch, the caps, and the plan's own scan."""
        if not settings.deletion.topicTwoPhaseDeletionEnabled:
            raise RefusedBy(RefusalCode.SWITCHED_OFF, plan_checks.SWITCHED_OFF)
        plan_checks.check_caps(summary, self.sized(rows), effective_caps(settings.apply))
        self.check_scan(summary, lake, settings, now)

    @staticmethod
    def check_scan(summary: PlanSummary, lake: Lake, settings: Settings, now: int) -> None:
        """The plan's own scan."""
        valid_for_ms = int(settings.orphans.plan_valid_for * 1000)
        plan_checks.check_scan(summary, lake.epoch, now, valid_for_ms, settings.words_in_force(now))

    def sized(self, rows: pa.Table) -> pa.Table:
        """The rows with the columns that the caps count."""
        return rows

    def notes(self, row: dict[str, Any]) -> list[str]:
        """Nothing: the line says it all."""
        return []


class OfLedgers(Deletes):
    """Plans whose summaries count ledgers."""

    shares = True

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """How many go, of how many, and their bytes."""
        count = f"{show.counted(summary.ledgers, self.what)}, {share(summary)} of {summary.cluster_ledgers}"
        return [("deletes", count), ("frees", sizes(summary))]


def sizes(summary: PlanSummary) -> str:
    """Its bytes in words."""
    return f"{show.size(summary.physical_bytes)} on disk, {show.size(summary.logical_bytes)} logical"


def share(plan: PlanSummary) -> str:
    """How much of the cluster's ledgers it takes."""
    return f"{plan.ledgers / max(plan.cluster_ledgers, 1):.2%}"


def grouped(sized: Iterable[tuple[str, int]]) -> Groups:
    """By name how many, and their bytes, most first."""
    ledgers: Counter[str] = Counter()
    bytes_: Counter[str] = Counter()
    for name, size in sized:
        ledgers[name] += 1
        bytes_[name] += size
    return [(name, count, show.size(bytes_[name])) for name, count in ledgers.most_common()]


def by_columns(rows: pa.Table, names: Sequence[str], size: str) -> dict[str, Groups]:
    """The groups of each of some columns; bytes are those of column ``size``."""
    listed = rows.select([*names, size]).to_pylist()
    return {name: grouped((row[name], row[size]) for row in listed) for name in names}
