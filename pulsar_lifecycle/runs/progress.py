"""How far a run is, said now and then from a thread of its own.

Belongs here: the thread, and what can be said of any run: stages of Spark, ledgers and bytes. Not here: what a run
adds to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPORT_SECONDS = 15.0
"""Seconds between two progress reports."""


def unsaid(text: str) -> None:
    """Progress that nobody asked for."""


@contextmanager
def reporting(say: Callable[[str], None], how_far: Callable[[], str], *, at_end: bool = False) -> Iterator[None]:
    """Say every :data:`REPORT_SECONDS` what ``how_far`` gives; with ``at_end`` once more when the work is done.

    Runs in a thread of its own; what goes wrong there is said once and ends the reports, never the work.
    """
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(REPORT_SECONDS):
            try:
                say(how_far())
            except Exception as error:
                say(f"no more progress reports: {error}")
                return

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if at_end:
            say(how_far())


def of_stages(spark: SparkSession, extra: Callable[[], str] = str) -> Callable[[], str]:
    """How many tasks of the running stages are done, and what ``extra`` adds."""

    def how_far() -> str:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        tasks = ", ".join(f"{s.numCompletedTasks} of {s.numTasks} tasks" for s in stages if s)
        return "; ".join(part for part in (tasks or "planning", extra()) if part)

    return how_far


def of_ledgers(so_far: Callable[[], tuple[int, int]], ledgers: int, size: int) -> Callable[[], str]:
    """How many of ``ledgers`` and of their ``size`` bytes ``so_far`` counts as done, how fast, how long the rest takes.

    The time counts from this call.
    """
    began = time.monotonic()

    def how_far() -> str:
        done, moved = so_far()
        rate = moved / max(time.monotonic() - began, 0.001)
        left = f", {(size - moved) / rate:.0f} s left" if rate and size > moved else ""
        return f"{done} of {ledgers} ledgers, {moved >> 20} of {size >> 20} MiB, {rate / 1e6:.0f} MB/s{left}"

    return how_far
