"""Suspend and resume the compaction of bookies by an operator's word: journalled, and never by a run of ours.

A suspension stands until it is resumed or its bookie restarts, and until then that disk fills: the check
``compaction_not_suspended`` fails as long. A compaction that runs goes on, and a collection forced with a choice of its
own heeds no suspension (``GarbageCollectorThread``, ``TriggerGCService``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow.compute as pc

from pulsar_lifecycle.errors import LifecycleError, NotFound, OutcomeUnknown, UsageError
from pulsar_lifecycle.journal.queries import filed_since
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import UNKNOWN, DiskVerdict
from pulsar_lifecycle.lifecycle.bookies.disk_run import newest_disks
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import BookieTold, Step, Subject, Writer, details_of
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one bookie; ``text`` is why, where it was not told."""

    bookie: str
    outcome: Outcome
    text: str


@dataclass(frozen=True, slots=True)
class Suspended:
    """A bookie whose compaction is suspended; ``since`` (ms): when it was told, or was found so.

    Not ``sure``: it was told that, or to resume since, and whether that reached it is not known.
    """

    bookie: str
    since: int
    why: str
    sure: bool = True


_UNDECIDED = UNKNOWN - {DiskVerdict.NO_METRICS, DiskVerdict.NOT_COLLECTED} | {DiskVerdict.READ_ONLY}
"""Verdicts that leave open whether compaction is suspended."""


def suspended_bookies(cluster: Cluster) -> list[Suspended]:
    """Bookies whose compaction is suspended, by what they last said, and by an operator's word since; asks none.

    A bookie that restarted since then compacts again.
    """
    try:
        disks = newest_disks(cluster)
    except NotFound:
        disks = []
    disk_of = {row["bookie"]: row for row in disks if row["verdict"] not in _UNDECIDED}
    since = min((row["asked_at"] for row in disks), default=0) if len(disk_of) == len(disks) else 0
    mine = pc.field("cluster") == cluster.settings.cluster
    rows = cluster.journal_reader.find(mine & _ORDERS & filed_since(since), _COLUMNS).sort_by("at").to_pylist()
    told, resumed = _newest_orders(rows)
    found: list[Suspended] = []
    for bookie in sorted({*disk_of, *told}):
        order, seen = told.get(bookie), disk_of.get(bookie)
        if order and (seen is None or order.at > seen["asked_at"]):
            if order.outcome != Outcome.RESUMED:
                sure = order.outcome == Outcome.SUSPENDED and resumed.get(bookie, 0) < order.begun
                found.append(Suspended(bookie, order.at, order.why, sure))
        elif seen and seen["verdict"] == DiskVerdict.SUSPENDED:
            sure = resumed.get(bookie, 0) < seen["asked_at"]
            found.append(Suspended(bookie, seen["asked_at"], seen["detail"], sure))
    return found


_COLUMNS = ["run_id", "action", "detail", "outcome", "at"]
_ORDERS = pc.field("outcome").isin([Outcome.TELLING, Outcome.SUSPENDED, Outcome.RESUMED, Outcome.NOT_TOLD])


@dataclass(frozen=True, slots=True)
class _Order:
    """An order that reached a bookie, or may have: when (ms) it was begun, and when its last row was written."""

    outcome: str
    why: str
    begun: int
    at: int


def _newest_orders(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, _Order], dict[str, int]]:
    """By bookie, the newest order that these rows of the journal (:data:`_COLUMNS`) say reached it.

    One that may have reached it counts if it suspends, and so does one by another operator that ended after this one
    was begun: which of the two reached it last nobody knows. Also when the last order to resume was begun or ended.
    """
    orders = [(row, told) for row in rows if (told := details_of(BookieTold, row["detail"]))]
    not_told = {(row["run_id"], told.bookie) for row, told in orders if row["outcome"] == Outcome.NOT_TOLD}
    newest: dict[str, _Order] = {}
    resumed: dict[str, int] = {}
    began: dict[tuple[str, str], int] = {}
    for row, told in orders:
        bookie, of = told.bookie, (row["run_id"], told.bookie)
        begun, before = began.setdefault(of, row["at"]), newest.get(bookie)
        if of in not_told:
            continue
        if row["action"] == Action.RESUME_COMPACTION:
            resumed[bookie] = row["at"]
            if row["outcome"] == Outcome.TELLING:
                continue
        beside = before is not None and before.outcome == Outcome.SUSPENDED and before.at > begun
        if before and beside and row["outcome"] == Outcome.RESUMED:
            newest[bookie] = replace(before, outcome=Outcome.TELLING, at=row["at"])
        else:
            newest[bookie] = _Order(row["outcome"], told.why or "", begun, row["at"])
    return newest, resumed


def suspend(cluster: Cluster, run_id: str, bookies: Sequence[str], why: str) -> list[Told]:
    """Have these bookies suspend minor and major compaction; all if none is named. Harmless when repeated.

    Raises Paused, and UsageError for a bookie that is not registered, before any is told.
    """
    return _tell(cluster, run_id, bookies, why, suspended=True)


def resume(cluster: Cluster, run_id: str, bookies: Sequence[str], why: str) -> list[Told]:
    """Have these bookies compact by themselves again, paused or not. As :func:`suspend`."""
    return _tell(cluster, run_id, bookies, why, suspended=False)


def _tell(cluster: Cluster, run_id: str, bookies: Sequence[str], why: str, *, suspended: bool) -> list[Told]:
    step = Step(Action.RESUME_COMPACTION, Phase.RESUME_COMPACTION)
    if suspended:
        step = Step(Action.SUSPEND_COMPACTION, Phase.SUSPEND_COMPACTION)
    end = Outcome.SUSPENDED if suspended else Outcome.RESUMED
    writer = Writer(run_id, cluster.settings.cluster)
    done: list[Told] = []
    with cluster.ports() as ports:
        if suspended:
            control.check_not_paused(ports.store)
        registered = ports.bookies.bookies()
        if missing := [one for one in bookies if one not in registered]:
            raise UsageError(f"no bookie {missing[0]} is registered; there are {', '.join(sorted(registered))}")

        def note(bookie: str, outcome: Outcome, text: str) -> None:
            subject = Subject(-1, "Bookie", "", details=(BookieTold(bookie, why=why or None),))
            said = Why(outcome, f"{bookie}: {text}" if text else bookie)
            row = writer.row(step, subject, outcome, said, ports.clock.now_ms())
            ports.journal.record([row])

        for bookie in bookies or sorted(registered):
            note(bookie, Outcome.TELLING, why)
            told = Told(bookie, end, why)
            try:
                (ports.bookies.suspend_compaction if suspended else ports.bookies.resume_compaction)(bookie)
            except OutcomeUnknown as error:
                told = Told(bookie, Outcome.TELLING, f"whether it was told is not known, say it again: {error}")
            except LifecycleError as error:
                told = Told(bookie, Outcome.NOT_TOLD, str(error))
            note(bookie, told.outcome, told.text)
            done.append(told)
    return done
