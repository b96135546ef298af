"""Which journal row counts for which of the nine metrics, per run, and over time."""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product

import pyarrow as pa
import pytest

from pulsar_lifecycle.journal import metrics
from pulsar_lifecycle.journal.metrics import HOUR_MS, Interval, Metrics
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.values import outcomes, tables
from tests.kit.builders import DELETED_ROW as ROW

AT = ROW.at


def tally(*rows: JournalRow) -> pa.Table:
    return metrics.tally(pa.Table.from_pylist([asdict(row) for row in rows], tables.JOURNAL))


def counted(*rows: JournalRow) -> dict[str, int]:
    return {name: n for name, n in metrics.count(tally(*rows), "c").to_json().items() if n}


def test_each_metric_has_its_words_in_the_order_of_the_pip() -> None:
    assert [metric.name for metric in metrics.METRICS] == list(Metrics().to_json())
    assert len(metrics.METRICS) == 9


def test_what_was_sent() -> None:
    sent = replace(ROW, phase="send", outcome=outcomes.Outcome.SENT)
    assert counted(sent) == {"ledgers_sent": 1}
    assert counted(replace(sent, action=outcomes.Action.DELETE_OFFLOADED)) == {"offload_ledgers_sent": 1}
    assert counted(replace(sent, outcome=outcomes.Outcome.SEND_FAILED)) == {}


@pytest.mark.parametrize("action", [outcomes.Action.DELETE_LEDGER, outcomes.Action.DELETE_OFFLOADED])
@pytest.mark.parametrize(
    ("outcome", "counts"),
    [
        (outcomes.Outcome.DELETED, {"messages_received", "{}s_deleted", "messages_acknowledged"}),
        (outcomes.Outcome.GONE, {"messages_received", "messages_acknowledged"}),
        (outcomes.Outcome.KEPT, {"messages_received", "messages_acknowledged"}),
        (outcomes.Outcome.REFUSED, {"messages_received", "messages_acknowledged"}),
        (outcomes.Outcome.RETRYING, {"messages_received", "{}_deletions_failed", "messages_acknowledged"}),
        (
            outcomes.Outcome.DEAD_LETTERED,
            {"messages_received", "{}_deletions_failed", "messages_acknowledged", "messages_max_retries_reached"},
        ),
        (outcomes.Outcome.WAITING, {"messages_received"}),
        (outcomes.Outcome.NOT_DELETED, {"messages_received"}),
    ],
)
def test_what_became_of_a_message(action: str, outcome: str, counts: set[str]) -> None:
    ledgers = "ledger" if action == outcomes.Action.DELETE_LEDGER else "offload_ledger"
    assert counted(replace(ROW, action=action, outcome=outcome)) == {name.format(ledgers): 1 for name in counts}


@pytest.mark.parametrize("phase", ["mark", "redrive", "undo"])
def test_other_phases_count_for_nothing(phase: str) -> None:
    for outcome in (outcomes.Outcome.DELETED, outcomes.Outcome.DEAD_LETTERED, outcomes.Outcome.SENT, "marked"):
        assert counted(replace(ROW, phase=phase, outcome=outcome)) == {}


def test_clusters_are_told_apart() -> None:
    assert counted(ROW, replace(ROW, cluster="d")) == counted(ROW)


def test_parts_add_up_to_the_whole() -> None:
    rows = [
        replace(ROW, run_id=run, outcome=outcome, at=AT + hour * HOUR_MS, bytes=hour)
        for run, outcome, hour in product("ab", [outcomes.Outcome.DELETED, outcomes.Outcome.WAITING], range(3))
    ]
    whole = metrics.add_up([tally(*rows)])
    parts = metrics.add_up([tally(*rows[:5]), tally(*rows[5:]), metrics.TALLY.empty_table()])
    keys = [(name, "ascending") for name in metrics.TALLY.names]
    assert parts.sort_by(keys).equals(whole.sort_by(keys))
    assert metrics.add_up([]).num_rows == 0
    assert metrics.count(metrics.add_up([]), "c") == Metrics()


def test_runs_in_the_order_of_their_end_with_outcomes_and_bytes() -> None:
    rows = [
        replace(ROW, run_id="second", at=AT + 9),
        replace(ROW, run_id="second", outcome=outcomes.Outcome.RETRYING, at=AT + HOUR_MS),
        replace(ROW, run_id="first", at=AT + 8),
        replace(ROW, run_id="first", bytes=5, at=AT + 7),
        replace(ROW, run_id="sender", phase="send", outcome=outcomes.Outcome.SENT),
    ]
    first, second = metrics.deletion_runs(tally(*rows), "c")
    assert (first.run_id, first.last_at, first.outcomes, first.deleted_bytes) == ("first", AT + 8, {"deleted": 2}, 15)
    assert (second.outcomes, second.failed) == ({"deleted": 1, "retrying": 1}, 1)


def test_intervals_have_no_holes_and_leave_out_what_is_older() -> None:
    rows = [
        replace(ROW, at=AT - HOUR_MS),
        ROW,
        replace(ROW, outcome=outcomes.Outcome.RETRYING),
        replace(ROW, at=AT + 2 * HOUR_MS, outcome=outcomes.Outcome.DEAD_LETTERED),
        replace(ROW, phase="send", outcome=outcomes.Outcome.SENT),
    ]
    start = AT - 5
    assert metrics.over_time(tally(*rows), "c", AT, AT + 2 * HOUR_MS, HOUR_MS) == [
        Interval(start, 1, 1, 0, 10),
        Interval(start + HOUR_MS, 0, 0, 0, 0),
        Interval(start + 2 * HOUR_MS, 0, 0, 1, 0),
    ]
    whole = metrics.over_time(tally(*rows), "c", start, start + 4 * HOUR_MS, 4 * HOUR_MS)
    assert whole == [Interval(start, 1, 1, 1, 10)]  # the hours of one interval together
