"""One request to delete records up to its answer, on real servers: killed at each step, and undone afterwards.

Each run takes up the same plan where the last one was killed. What is answered between them must be true.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pulsar_lifecycle.delete_records.apply_run import Patience
from pulsar_lifecycle.delete_records.request import END, DeleteRecordsResult, Lacks, Options
from pulsar_lifecycle.deletion.undo.undo_run import UndoRequest, undo_deletions
from pulsar_lifecycle.model import MessagePosition
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.cluster import Cluster
from tests.integration.delete_records.record_requests import (
    COLLECTED,
    QUICK,
    SETTINGS,
    Records,
    left,
    position,
    publish,
    read_all,
    told,
    watermark,
)
from tests.integration.killed_run import Step, strike
from tests.integration.pipeline import Pipeline, drain, existing, new_namespace, settings_file, wait_listed

pytestmark = pytest.mark.integration

AGAIN = {"bookkeeper": {"flush_interval": "2s"}}
"""Bookies are soon asked once more."""
APPLY = (
    Step("journal", "record", after=True, about="asked to close ledger"),
    Step("journal", "record", after=True, about="forbids to undo"),
    Step("queue", "send", after=False),
    Step("store", "create", after=True, about="/pending-unloads/it"),
    Step("journal", "record", after=True, about="no ledger below it is listed"),  # between two partitions
)
FINISH = (
    Step("lake", "begin_epoch", after=True),
    Step("lake", "store_epoch", after=False),
    Step("lake", "publish", after=False, about="findings"),
    Step("queue", "receive", after=True),
    Step("journal", "archive", after=True),
    Step("store", "delete_many", after=True, about="/ledgers/"),
    Step("bookies", "collect", after=True),
    Step("reader", "find_traces", after=True),
)


def test_a_request_that_is_killed_at_each_of_its_steps_answers_the_same(two_bookies: Cluster, tmp_path: Path) -> None:
    sandbox = two_bookies
    drain(sandbox)
    records = Records(sandbox, Pipeline(settings_file(sandbox, tmp_path, {**SETTINGS, **QUICK, **AGAIN})))
    base = f"persistent://{new_namespace(sandbox, 'finish')}/t"
    topics = [f"{base}{number}" for number in range(3)]
    ledgers = {topic: publish(sandbox, topic) for topic in topics}
    for topic in topics:
        wait_listed(sandbox, topic)
    records.pipeline.scan()
    within, end, past = topics
    marks = {within: position(ledgers[within], 1, 3), past: position(ledgers[past], 2, 0)}
    rows = records.plan({**marks, end: END}, Options(no_undo=True))
    assert {row["error"] for row in rows.values()} == {None}, rows
    marks[end] = MessagePosition.parse(rows[end]["low_watermark"])
    going = {topic: set(row["ledgers"]) for topic, row in rows.items()}
    assert [len(going[topic]) for topic in topics] == [1, 3, 2]

    for number, step in enumerate((*APPLY, *FINISH)):
        kill(records, f"killed-{number}", step)
        answers = records.apply(Patience(bookies=True), dry_run=True)
        early = [topic for topic, one in answers.items() if one.error is None and existing(sandbox, going[topic])]
        assert not early, f"{step.name}: {told(answers)}"

    done = records.apply(COLLECTED)
    assert done == {topic: DeleteRecordsResult(mark) for topic, mark in marks.items()}, told(done)
    assert records.apply(Patience(bookies=True), dry_run=True) == done
    assert not existing(sandbox, set().union(*going.values()))
    assert remaining(sandbox, topics) == {topic: left(ledgers[topic], marks[topic]) for topic in (within, past)} | {
        end: []
    }


def kill(records: Records, run_id: str, step: Step) -> None:
    order = {"plan_id": records.summary.plan_id, "digest": records.summary.digest}
    strike(records.pipeline.file, "records", {**order, "run_id": run_id, "patience": COLLECTED}, step).struck()


def remaining(sandbox: Cluster, topics: list[str]) -> Mapping[str, list[bytes]]:
    return {topic: read_all(sandbox, topic) for topic in topics}


@pytest.mark.parametrize("no_undo", [False, True], ids=["plain", "no-undo"])
def test_an_undo_brings_back_what_a_request_deleted_unless_its_plan_forbids_it(
    two_bookies: Cluster, tmp_path: Path, no_undo: bool
) -> None:
    sandbox = two_bookies
    drain(sandbox)
    settings = {**SETTINGS, "bookkeeper": {"gc_wait": "1s"}}
    records = Records(sandbox, Pipeline(settings_file(sandbox, tmp_path, settings)))
    topic = f"persistent://{new_namespace(sandbox, 'undo')}/t"
    ledgers = publish(sandbox, topic)
    wait_listed(sandbox, topic)
    records.pipeline.scan()
    mark = position(ledgers, 2, 0)
    going = records.plan({topic: mark}, Options(no_undo=no_undo))[topic]["ledgers"]
    assert len(going) == 2
    assert records.apply(Patience(answers=300, finish=True)) == {topic: DeleteRecordsResult(mark)}
    request = UndoRequest(ledger_ids=tuple(going), dry_run=False)
    undone = undo_deletions(records.pipeline.where, "undo", request, lambda _: None)
    outcome = Outcome.REFUSED if no_undo else Outcome.RESTORED
    assert {one.ledger_id: one.outcome for one in undone.ledgers} == dict.fromkeys(going, outcome)
    assert existing(sandbox, going) == (set() if no_undo else {*going})
    answer = records.apply(dry_run=True)[topic]
    assert (answer.code, answer.low_watermark) == (("", mark) if no_undo else (Lacks.RESTORED, -1)), answer
    assert read_all(sandbox, topic) == left(ledgers, mark)
    assert watermark(sandbox, topic) == str(mark)
