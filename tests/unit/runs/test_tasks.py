"""Tasks of this process give what Spark's give: every result in the order of the pieces, and counts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from threading import Event, Timer
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_lifecycle.errors import Failed
from pulsar_lifecycle.runs.tasks import LocalTasks, SparkTasks, in_waves


@pytest.mark.parametrize("at_once", [1, 3])
def test_results_come_in_the_order_of_the_pieces(at_once: int) -> None:
    tasks = LocalTasks(at_once)
    counted = tasks.counter()

    def work(piece: int) -> int:
        counted.add(piece)
        return piece * 2

    assert list(tasks.map(work, range(10))) == [2 * n for n in range(10)]
    assert (counted.value, tasks.at_once) == (45, at_once)
    assert list(tasks.map(work, [])) == []


@pytest.mark.parametrize("at_once", [1, 3])
def test_all_is_done_before_anybody_asks_for_a_result(at_once: int) -> None:
    done: list[int] = []
    LocalTasks(at_once).map(done.append, [1, 2])
    assert sorted(done) == [1, 2]


@pytest.mark.parametrize("at_once", [1, 3])
def test_what_fails_comes_out(at_once: int) -> None:
    def work(piece: int) -> int:
        raise Failed("no")

    with pytest.raises(Failed):
        LocalTasks(at_once).map(work, [1, 2])


@pytest.mark.parametrize(
    ("items", "most", "waves"),
    [
        (0, 5, []),
        (1, 5, [[[0]]]),
        (5, 5, [[[0, 1, 2], [3, 4]]]),
        (5, 1, [[[0], [1]], [[2], [3]], [[4]]]),
    ],
)
def test_waves_have_as_many_pieces_as_work_at_once(items: int, most: int, waves: list[list[list[int]]]) -> None:
    assert list(in_waves(LocalTasks(2), list, range(items), most)) == waves


class BusySpark:
    """A Spark whose job goes on until it is cancelled, and whose tasks do so a while longer."""

    def __init__(self) -> None:
        self.cancelled, self.running = Event(), 3

    def session(self) -> Any:
        tracker = SimpleNamespace(getExecutorInfos=lambda: [SimpleNamespace(numRunningTasks=self._still)])
        jvm = SimpleNamespace(sc=lambda: SimpleNamespace(statusTracker=lambda: tracker))
        job = SimpleNamespace(collect=self._collect)
        data = SimpleNamespace(map=lambda work: job)
        return SimpleNamespace(
            sparkContext=SimpleNamespace(
                _jsc=jvm, cancelAllJobs=self.cancelled.set, parallelize=lambda pieces, count: data
            )
        )

    def _collect(self) -> list[int]:
        assert self.cancelled.wait(60)
        raise Failed("cancelled")

    def _still(self) -> int:
        assert self.cancelled.is_set()
        self.running -= 1
        return self.running


@pytest.fixture
def interrupted_soon() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR2, interrupt)
    timer = Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR2))
    timer.start()
    yield
    timer.join()
    signal.signal(signal.SIGUSR2, before)


def test_who_is_interrupted_goes_on_once_no_task_of_spark_runs(interrupted_soon: None) -> None:
    """What such tasks would still do is not in the journal yet when it is read for the pages of a run."""
    spark = BusySpark()
    with pytest.raises(KeyboardInterrupt):
        SparkTasks(spark.session()).map(str, [1, 2])
    assert spark.running == 0
