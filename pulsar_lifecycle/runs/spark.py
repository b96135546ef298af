"""How many tasks a session has, each one's share, and telling how far they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from pulsar_lifecycle.runs.tasks import Tasks
from pulsar_lifecycle.settings import Settings


def share_of(tasks: Tasks, settings: Settings) -> Settings:
    """The settings for one of the tasks that run at once: its share of the reads of z-nodes per second."""
    reads = max(1, settings.zookeeper.reads_per_second // tasks.at_once)
    zookeeper = settings.zookeeper.model_copy(update={"reads_per_second": reads})
    return settings.model_copy(update={"zookeeper": zookeeper})


@contextmanager
def reporting(spark: SparkSession, say: Callable[[str], None], extra: Callable[[], str] = str) -> Iterator[None]:
    """Say every :data:`REPORT_SECONDS` how many tasks of the running stages are done, and what ``extra`` adds.

    Runs in a thread of its own; what goes wrong there is said once and ends the reports, never the work.
    """
    done = threading.Event()

    def report() -> None:
        while not done.wait(REPORT_SECONDS):
            try:
                tracker = spark.sparkContext.statusTracker()
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                tasks = ", ".join(f"{s.numCompletedTasks} of {s.numTasks} tasks" for s in stages if s)
                say("; ".join(part for part in (tasks or "planning", extra()) if part))
            except Exception as error:
                say(f"no more progress reports: {error}")
                return

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


REPORT_SECONDS = 15.0
"""Seconds between two progress reports."""
