"""How much one task of a deletion run takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from pulsar_lifecycle.deletion.deletion_run import delete_pending
from pulsar_lifecycle.deletion.planning.orphans import FINDINGS
from pulsar_lifecycle.deletion.workers import OutcomeCount, PlanQueue, RunEnd, StopCode, _Worker, not_handed_out
from pulsar_lifecycle.deletion_queue.missing_topics import create_missing
from pulsar_lifecycle.errors import (
    AccessDenied,
    CorruptFormat,
    LeaseLost,
    LifecycleError,
    OutcomeUnknown,
    Overloaded,
    Paused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import LocalTasks, Tasks
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.deletion_queue import MAIN, FakeDeletionTopics, FakeQueueReader
from tests.kit.fakes.journal import FakeJournal
from tests.kit.scenes.batch_scene import BatchScene
from tests.kit.simulated.connections import where_of
from tests.kit.simulated.pipeline import lake_of, settings_of

P = TypeVar("P")
R = TypeVar("R")


def worker(direct: tuple[str, int] | None) -> _Worker:
    settings: Any = SimpleNamespace(deletion=SimpleNamespace(max_messages=10))
    run: Any = None
    return _Worker(settings, run, 4, direct, connecting())


class OneByOne(LocalTasks):
    """Tasks that follow each other: the fakes are not for several threads."""

    def map(self, work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[R]:
        return iter([work(piece) for piece in pieces])


def cluster_of(scene: BatchScene, tasks: Tasks | None = None, **deletion: int) -> Cluster:
    """The scene's cluster with these settings of section ``[deletion]``."""
    settings = settings_of(scene.policy)
    section = settings.deletion.model_copy(update=deletion)
    settings = settings.model_copy(update={"deletion": section})
    return where_of(scene.cluster, settings, lake_of(scene.before, scene.now), tasks=tasks)


@pytest.mark.parametrize(("most", "cores"), [(1, 4), (3, 4), (10, 4), (4, 1)])
def test_a_run_takes_no_more_messages_than_the_settings_say(most: int, cores: int) -> None:
    """However many cores there are, each of which takes one at least."""
    scene = BatchScene()
    scene.send_all()
    sent = scene.waiting
    found = delete_pending(cluster_of(scene, OneByOne(cores), max_messages=most), "run")
    assert {one.outcome for one in found} == {Outcome.DELETED, RunEnd.LIMITED}
    assert 0 < sent - scene.waiting <= most


def test_a_task_takes_its_share_of_the_queue_and_a_plan_whole() -> None:
    rows = FINDINGS.empty_table()
    queue = PlanQueue(rows, "plan", 0)
    queue._messages = [None] * 99  # type: ignore[list-item]
    assert worker(None).limit(queue) == 2
    assert worker(("plan", 0)).limit(queue) == 99


RUN: Any = SimpleNamespace(run_id="run", now=1_000)
WAITS = OutcomeCount(Outcome.WAITING, "object_store is not set", 160, 0)


@pytest.fixture
def reader() -> FakeQueueReader:
    """Eight due messages that nobody took."""
    topics = FakeDeletionTopics(now_ms=1_000)
    for _ in range(8):
        topics.publish(b"x")
    return FakeQueueReader(topics)


def looked_at_by(reader: FakeQueueReader) -> Cluster:
    """A cluster whose queue has one partition, read by ``reader``; nothing of it is journalled."""
    admin = FakeBrokerAdmin()
    create_missing(admin, 1)
    settings: Any = SimpleNamespace()
    connect = connecting(admin=lambda: admin, queue_reader=lambda: reader, journal_reader=FakeJournal)
    return Cluster(settings, connect=connect, given=LocalTasks())


def test_what_was_withheld_is_said_with_where_and_what_waits(reader: FakeQueueReader) -> None:
    (said,) = not_handed_out(looked_at_by(reader), RUN, [WAITS])
    assert (said.outcome, said.ledgers) == (RunEnd.WITHHELD, 8)
    assert all(part in said.reason for part in (f"{MAIN}: 8", "160 wait: object_store is not set"))


def test_a_queue_that_cannot_be_looked_at_is_not_taken_for_empty(reader: FakeQueueReader) -> None:
    reader.failure = Unavailable("the binary port does not answer")
    assert not_handed_out(looked_at_by(reader), RUN, []) == [
        OutcomeCount(RunEnd.NOT_COMPARED, "the binary port does not answer", 1, 0)
    ]


def fails_once_begun(scene: BatchScene, error: LifecycleError, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal could be written when the run began."""
    scene.cluster.journal.failure = error
    monkeypatch.setattr(scene.cluster.journal, "check_writable", lambda: None)


@pytest.mark.parametrize(
    ("limit", "stopped", "words"),
    [
        (10, False, [Outcome.DELETED, RunEnd.WITHHELD]),
        (10, True, [RunEnd.STOPPED]),
        (2, False, [Outcome.DELETED, RunEnd.LIMITED]),
    ],
)
def test_only_a_run_that_went_on_to_the_end_of_the_queue_is_compared(
    limit: int, stopped: bool, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = BatchScene()
    create_missing(scene.cluster.admin, 1)
    scene.send_all()
    held = scene.cluster.deletion_topics
    held.held.add(max(held.waiting))  # by another consumer
    if stopped:
        fails_once_begun(scene, StoreError("the disk is full"), monkeypatch)
    found = delete_pending(cluster_of(scene, max_messages=limit), "run")
    assert [one.outcome for one in found] == words


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Paused("p"), StopCode.PAUSED),
        (LeaseLost("l"), StopCode.LEASE_LOST),
        (Overloaded("o"), StopCode.ZOOKEEPER_SLOW),
        (AccessDenied("d"), StopCode.DENIED),
        (OutcomeUnknown("u"), StopCode.UNANSWERED),
        (StoreError("s"), StopCode.ERROR),
        (CorruptFormat("a z-node", 0, "JSON"), StopCode.ERROR),
    ],
)
def test_a_run_that_stopped_says_by_code_why(
    error: LifecycleError, code: StopCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = BatchScene()
    create_missing(scene.cluster.admin, 1)
    scene.send_all()
    fails_once_begun(scene, error, monkeypatch)
    found = delete_pending(cluster_of(scene, max_messages=10), "run")
    assert [(one.outcome, one.code) for one in found] == [(RunEnd.STOPPED, code)]
