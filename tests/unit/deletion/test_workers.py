"""How much one task of a deletion run takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_lifecycle.deletion import workers
from pulsar_lifecycle.deletion.planning.orphans import FINDINGS
from pulsar_lifecycle.deletion.workers import OutcomeCount, PlanQueue, RunEnd, _Worker, not_handed_out
from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import LocalTasks
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.deletion_queue import MAIN, RETRY, FakeDeletionTopics, FakeQueueReader


def worker(direct: tuple[str, int] | None) -> _Worker:
    settings: Any = SimpleNamespace(deletion=SimpleNamespace(max_messages=10))
    run: Any = None
    return _Worker(settings, run, 4, direct, connecting())


@pytest.mark.parametrize(("most", "cores"), [(1, 4), (3, 4), (10, 4), (4, 1)])
def test_a_run_takes_no_more_messages_than_the_settings_say(
    monkeypatch: pytest.MonkeyPatch, most: int, cores: int
) -> None:
    """However many cores there are, each of which takes one at least."""
    limits: list[int] = []
    settings: Any = SimpleNamespace(
        pulsar=None, deletion=SimpleNamespace(max_messages=most, twoPhaseDeletionLedgerDeletionParallelism=1)
    )

    def begun(worker: _Worker, rows: None) -> list[OutcomeCount]:
        limits.append(worker.limit(PlanQueue(FINDINGS.empty_table(), "plan", 0)))
        return []

    monkeypatch.setattr(_Worker, "__call__", begun)
    cluster = Cluster(settings, connect=connecting(admin=SimpleNamespace), given=LocalTasks(cores))
    monkeypatch.setattr(workers, "make_sure", lambda admin, parts, look: {})
    monkeypatch.setattr(workers, "not_handed_out", lambda *_: [])
    run: Any = None
    workers.delete_from_queue(cluster, run)
    assert 0 < sum(limits) <= most


def test_a_task_takes_its_share_of_the_queue_and_a_plan_whole() -> None:
    rows = FINDINGS.empty_table()
    queue = PlanQueue(rows, "plan", 0)
    queue._messages = [None] * 99  # type: ignore[list-item]
    assert worker(None).limit(queue) == 2
    assert worker(("plan", 0)).limit(queue) == 99


SETTINGS: Any = SimpleNamespace(
    pulsar=None,
    lake=SimpleNamespace(path="/none"),
    deletion=SimpleNamespace(twoPhaseDeletionLedgerDeletionParallelism=1, max_messages=10),
)
RUN: Any = SimpleNamespace(run_id="run", now=1_000)
WAITS = OutcomeCount(Outcome.WAITING, "object_store is not set", 160, 0)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> FakeQueueReader:
    """Eight due messages that nobody took."""
    topics = FakeDeletionTopics(now_ms=1_000)
    for _ in range(8):
        topics.publish(b"x")
    made = FakeQueueReader(topics)
    monkeypatch.setattr(
        workers, "topics_of", lambda admin, topic: [MAIN if topic in (MAIN, MAIN.partitioned_parent) else RETRY]
    )
    monkeypatch.setattr(workers, "taken_messages", lambda *_: frozenset())
    return made


def looked_at_by(reader: FakeQueueReader) -> Cluster:
    return Cluster(SETTINGS, connect=connecting(admin=FakeBrokerAdmin, queue_reader=lambda: reader), given=LocalTasks())


def test_what_was_withheld_is_said_with_where_and_what_waits(reader: FakeQueueReader) -> None:
    (said,) = not_handed_out(looked_at_by(reader), RUN, [WAITS])
    assert (said.outcome, said.ledgers) == (RunEnd.WITHHELD, 8)
    assert all(part in said.reason for part in (f"{MAIN}: 8", "160 wait: object_store is not set"))


def test_a_queue_that_cannot_be_looked_at_is_not_taken_for_empty(reader: FakeQueueReader) -> None:
    reader.failure = Unavailable("the binary port does not answer")
    assert not_handed_out(looked_at_by(reader), RUN, []) == [
        OutcomeCount(RunEnd.NOT_COMPARED, "the binary port does not answer", 1, 0)
    ]


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Outcome.DELETED, [Outcome.DELETED, RunEnd.WITHHELD]),
        (RunEnd.STOPPED, [RunEnd.STOPPED]),
        (RunEnd.LIMITED, [RunEnd.LIMITED]),
    ],
)
def test_only_a_run_that_went_on_to_the_end_of_the_queue_is_compared(
    reader: FakeQueueReader, monkeypatch: pytest.MonkeyPatch, ended: str, words: list[str]
) -> None:
    monkeypatch.setattr(workers, "make_sure", lambda *_: {})
    monkeypatch.setattr(_Worker, "__call__", lambda *_: [OutcomeCount(ended, "", 1, 0)])
    assert [o.outcome for o in workers.delete_from_queue(looked_at_by(reader), RUN)] == words
