"""Reports from a thread: they come while the work goes on, and never end it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pulsar_lifecycle.runs import progress
from pulsar_lifecycle.runs.progress import of_ledgers, of_stages, reporting


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REPORT_SECONDS", 0.001)


def test_reports_come_while_the_work_goes_on_and_once_it_is_done() -> None:
    said: list[str] = []
    twice = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            twice.set()

    with reporting(say, lambda: "so far", at_end=True):
        assert twice.wait(60)
        said.clear()
    assert said[-1] == "so far"


def test_what_goes_wrong_ends_the_reports_and_not_the_work() -> None:
    said: list[str] = []
    told = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        told.set()

    def how_far() -> str:
        raise ValueError("no session")

    with reporting(say, how_far):
        assert told.wait(60)
    assert said == ["no more progress reports: no session"]


def test_work_that_fails_ends_the_thread_and_fails() -> None:
    with pytest.raises(KeyError), reporting(lambda _: None, str):
        raise KeyError
    assert "progress" not in [thread.name for thread in threading.enumerate()]


def test_ledgers_are_told_with_their_bytes_and_what_is_left() -> None:
    far = of_ledgers(lambda: (1, 1 << 20), 3, 3 << 20)()
    assert far.startswith("1 of 3 ledgers, 1 of 3 MiB, ")
    assert far.endswith(" s left")
    assert "left" not in of_ledgers(lambda: (3, 3 << 20), 3, 3 << 20)()
    assert of_ledgers(lambda: (0, 0), 3, 3)() == "0 of 3 ledgers, 0 of 0 MiB, 0 MB/s"


def test_stages_are_told_by_their_tasks() -> None:
    stages = {1: SimpleNamespace(numCompletedTasks=2, numTasks=8), 2: None}
    tracker = SimpleNamespace(getActiveStageIds=lambda: list(stages), getStageInfo=stages.get)
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    assert of_stages(spark, lambda: "5 intents left")() == "2 of 8 tasks; 5 intents left"
    stages.clear()
    assert of_stages(spark)() == "planning"
