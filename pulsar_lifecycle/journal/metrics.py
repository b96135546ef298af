"""PIP-186's nine metrics and what a deletion run did, counted from the journal alone.

Belongs here: which journal row counts for what. Not here: reading the journal (``io/lake/journal.py``), showing the
numbers. The journal is append-only and never pruned, so every metric is a counter over the whole life of a cluster,
whichever installation did the work and however often it is counted. Rows are first tallied (:func:`tally`); tallies of
parts of the journal add up to the tally of the whole, so a part that does not change any more is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase

HOUR_MS = 3_600_000

COUNTED = ["cluster", "run_id", "action", "phase", "outcome", "bytes", "at"]
"""The journal's columns that a tally is made of."""

_KEYS = ["cluster", "run_id", "hour", "action", "phase", "outcome"]
TALLY = pa.schema(
    [
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("hour", pa.int64(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("last_at", pa.int64(), nullable=False),
    ]
)
"""Journal rows with the same key: how many, their bytes, and when the last was written. ``hour`` is its start in ms."""


def tally(rows: pa.Table) -> pa.Table:
    """Count journal rows (:data:`COUNTED`); :data:`TALLY`, in no order."""
    hour = pc.multiply(pc.divide(rows.column("at"), HOUR_MS), HOUR_MS)
    return _grouped(rows.append_column("hour", hour), [("at", "count"), ("bytes", "sum"), ("at", "max")])


def add_up(tallies: Sequence[pa.Table]) -> pa.Table:
    """The tally of the whole from those of its parts."""
    if not tallies:
        return TALLY.empty_table()
    return _grouped(pa.concat_tables(tallies), [("rows", "sum"), ("bytes", "sum"), ("last_at", "max")])


def _grouped(rows: pa.Table, sums: list[tuple[str, str]]) -> pa.Table:
    found = rows.group_by(_KEYS).aggregate(sums)
    return found.select([*_KEYS, *(f"{column}_{how}" for column, how in sums)]).rename_columns(TALLY.names).cast(TALLY)


FAILED = frozenset({Outcome.RETRYING, Outcome.DEAD_LETTERED})
"""Outcomes of messages that go to the retry or the dead-letter topic."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One counter: its name (Prometheus adds prefix and ``_total``) and the PIP's words for it."""

    name: str
    help: str


METRICS = (
    Metric("ledgers_sent", "How many ledgers were sent to the system topic."),
    Metric("offload_ledgers_sent", "How many offload-ledgers were sent to the system topic."),
    Metric("messages_received", "How many messages the consumers received."),
    Metric("ledgers_deleted", "How many ledgers have been deleted."),
    Metric("offload_ledgers_deleted", "How many offload-ledgers have been deleted."),
    Metric("ledger_deletions_failed", "How many ledger deletions failed."),
    Metric("offload_ledger_deletions_failed", "How many offload-ledger deletions failed."),
    Metric("messages_acknowledged", "How many messages were acknowledged."),
    Metric("messages_max_retries_reached", "How many messages reached twoPhaseDeletionMaxRetryDeleteCount."),
)


@dataclass(frozen=True, slots=True)
class Metrics:
    """The nine counters of one cluster. ``messages_*`` count each message once per deletion run that took it."""

    ledgers_sent: int = 0
    offload_ledgers_sent: int = 0
    messages_received: int = 0
    ledgers_deleted: int = 0
    offload_ledgers_deleted: int = 0
    ledger_deletions_failed: int = 0
    offload_ledger_deletions_failed: int = 0
    messages_acknowledged: int = 0
    messages_max_retries_reached: int = 0

    def to_json(self) -> dict[str, int]:
        """Name -> count, in the PIP's order."""
        return asdict(self)


def count(tallies: pa.Table, cluster: str) -> Metrics:
    """The metrics of a cluster: rows of phase ``send`` with outcome ``sent``, and rows of phase ``delete``.

    Received: every ``delete`` row. Failed: ``retrying`` or ``dead-lettered``, so each failed try counts. Acknowledged:
    every outcome but ``waiting`` and ``not-deleted``. Maximum retry count: ``dead-lettered``. A ledger whose deletion
    was interrupted before its journal row gets it from the next run, which finds it gone: its message counts for both.
    """
    counts = dict.fromkeys(Metrics.__slots__, 0)
    for row in tallies.filter(pc.equal(tallies.column("cluster"), cluster)).to_pylist():
        for name in _counts_for(row["phase"], row["action"], row["outcome"]):
            counts[name] += row["rows"]
    return Metrics(**counts)


def _counts_for(phase: str, action: str, outcome: str) -> Iterable[str]:
    ledgers = "offload_ledger" if action == Action.DELETE_OFFLOADED else "ledger"
    if phase == Phase.SEND and outcome == Outcome.SENT:
        yield f"{ledgers}s_sent"
    if phase == Phase.DELETE:
        yield "messages_received"
        if outcome == Outcome.DELETED:
            yield f"{ledgers}s_deleted"
        if outcome in FAILED:
            yield f"{ledgers}_deletions_failed"
        if outcome not in (Outcome.WAITING, Outcome.NOT_DELETED):
            yield "messages_acknowledged"
        if outcome == Outcome.DEAD_LETTERED:
            yield "messages_max_retries_reached"


@dataclass(frozen=True, slots=True)
class DeletionRun:
    """What one deletion run did: messages by outcome, bytes it deleted, when (ms) its last row was written."""

    run_id: str
    last_at: int
    outcomes: Mapping[str, int]
    deleted_bytes: int

    @property
    def failed(self) -> int:
        """Messages that went to the retry or the dead-letter topic."""
        return sum(self.outcomes.get(outcome, 0) for outcome in FAILED)


def deletion_runs(tallies: pa.Table, cluster: str) -> list[DeletionRun]:
    """The deletion runs of a cluster that took messages, oldest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    wanted = pc.and_(pc.equal(tallies.column("cluster"), cluster), pc.equal(tallies.column("phase"), Phase.DELETE))
    for row in tallies.filter(wanted).to_pylist():
        found.setdefault(row["run_id"], []).append(row)
    runs = [
        DeletionRun(
            run_id,
            max(row["last_at"] for row in rows),
            {o: sum(r["rows"] for r in rows if r["outcome"] == o) for o in sorted({r["outcome"] for r in rows})},
            sum(row["bytes"] for row in rows if row["outcome"] == Outcome.DELETED),
        )
        for run_id, rows in found.items()
    ]
    return sorted(runs, key=lambda run: (run.last_at, run.run_id))


@dataclass(frozen=True, slots=True)
class Interval:
    """What the second phase did in one stretch of time: messages, and bytes deleted. ``start`` is ms."""

    start: int
    deleted: int
    retrying: int
    dead_lettered: int
    deleted_bytes: int


def over_time(tallies: pa.Table, cluster: str, since: int, until: int, step: int) -> list[Interval]:
    """Deletions, retries and dead letters from ``since`` up to ``until`` (ms), per ``step`` (ms, whole hours).

    Intervals start at multiples of ``step``; those in which nothing happened are there, too.
    """
    first = since - since % step
    starts = range(first, until, step)
    sums = {start: [0, 0, 0, 0] for start in starts}
    wanted = pc.and_(pc.equal(tallies.column("cluster"), cluster), pc.equal(tallies.column("phase"), Phase.DELETE))
    positions = {Outcome.DELETED: 0, Outcome.RETRYING: 1, Outcome.DEAD_LETTERED: 2}
    for row in tallies.filter(wanted).to_pylist():
        found = sums.get(row["hour"] - row["hour"] % step)
        if found is not None and row["outcome"] in positions:
            found[positions[row["outcome"]]] += row["rows"]
            if row["outcome"] == Outcome.DELETED:
                found[3] += row["bytes"]
    return [Interval(start, *sums[start]) for start in starts]
