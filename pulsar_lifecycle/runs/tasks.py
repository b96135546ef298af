"""Where the work of a run is done: on Spark's executors, or in this process.

Belongs here: spreading a function over pieces of work, counting on the way, and a task's share of what a run may read.
Not here: what a piece is and what is done with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pulsar_lifecycle.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

P = TypeVar("P")
R = TypeVar("R")

ENDED_WITHIN = 15.0
"""Seconds within which tasks of a job that is cancelled are over.

Spark looks every two seconds, then waits ``spark.python.task.killTimeout``, which is two (``PythonRunner``).
"""


class Counter(Protocol):
    """What tasks have counted so far; only who made it can read it."""

    @property
    def value(self) -> int:
        """The sum."""
        ...

    def add(self, amount: int) -> None:
        """Count. A task that is repeated counts once more."""
        ...


class Tasks(Protocol):
    """Somewhere to work on many pieces at once."""

    @property
    def at_once(self) -> int:
        """How many pieces are worked on at a time; at least 1."""
        ...

    def map(self, work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[R]:
        """The results of ``work`` in the order of the pieces, once all of them are done. Raises what ``work`` raises.

        ``work``, pieces and results are picklable. A piece may be worked on more than once: its task may be lost.
        """
        ...

    def counter(self) -> Counter:
        """A counter that ``work`` may hold."""
        ...


class SparkTasks:
    """A task on Spark's executors for each piece."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext

    @property
    def at_once(self) -> int:
        """The executors' cores."""
        return max(1, self._context.defaultParallelism)

    def map(self, work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[R]:
        """As :meth:`Tasks.map`. If the wait for them is interrupted, or one fails, all are over once this raises.

        Spark needs some seconds for that; it is not waited for longer than ``ENDED_WITHIN``.
        """
        if not pieces:
            return iter(())
        job = self._context.parallelize(pieces, len(pieces)).map(work)
        # Spark's handler of SIGINT calls the JVM, which fails while this thread waits for an answer of it
        with ThreadPoolExecutor(1, "spark-job") as pool:
            results = pool.submit(job.collect)
            try:
                return iter(results.result())
            except BaseException:
                self._end()
                raise

    def _end(self) -> None:
        from py4j.protocol import Py4JError  # who runs without Spark imports nothing of it

        with suppress(Py4JError, OSError):  # how the wait ended matters more
            self._context.cancelAllJobs()
            executors, until = self._context._jsc.sc().statusTracker(), time.monotonic() + ENDED_WITHIN
            while time.monotonic() < until and any(one.numRunningTasks() for one in executors.getExecutorInfos()):
                time.sleep(0.1)

    def counter(self) -> Counter:
        """An accumulator."""
        return self._context.accumulator(0)


class LocalTasks:
    """This process: ``at_once`` threads, or the caller's own."""

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once

    @property
    def at_once(self) -> int:
        """How many threads there are."""
        return self._at_once

    def map(self, work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[R]:
        """As :meth:`Tasks.map`."""
        if self._at_once == 1:
            return iter([work(piece) for piece in pieces])
        with ThreadPoolExecutor(self._at_once, "task") as pool:
            return iter(list(pool.map(work, pieces)))

    def counter(self) -> Counter:
        """A number behind a lock."""
        return _Count()


class _Count:
    def __init__(self) -> None:
        self.value = 0
        self._lock = Lock()

    def add(self, amount: int) -> None:
        with self._lock:
            self.value += amount


def in_waves(tasks: Tasks, work: Callable[[Sequence[P]], R], items: Sequence[P], most: int) -> Iterator[list[R]]:
    """What ``work`` returns of pieces of at most ``most`` items, as many pieces at a time as tasks work at once."""
    size = max(1, min(most, -(-len(items) // tasks.at_once)))
    pieces = [items[at : at + size] for at in range(0, len(items), size)]
    for at in range(0, len(pieces), tasks.at_once):
        yield list(tasks.map(work, pieces[at : at + tasks.at_once]))


def share_of(tasks: Tasks, settings: Settings) -> Settings:
    """The settings for one of the tasks that run at once: its share of the reads of z-nodes per second."""
    reads = max(1, settings.zookeeper.reads_per_second // tasks.at_once)
    zookeeper = settings.zookeeper.model_copy(update={"reads_per_second": reads})
    return settings.model_copy(update={"zookeeper": zookeeper})
