"""The tasks of a run in a schedule: in this process, where an executor may be lost amid a piece, or work on it twice.

Belongs here: what stands for Spark's scheduler. Not here: what is worked on, which faults there are (``faults``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from pulsar_lifecycle.errors import Failed
from pulsar_lifecycle.runs.tasks import LocalTasks
from tests.simulation.world.interception import Crash
from tests.simulation.world.world import World

P = TypeVar("P")
R = TypeVar("R")

TRIES = 2


class ExecutorLost(Crash):
    """Kill -9 of an executor: its task runs again."""


class SimTasks(LocalTasks):
    """``begun`` is told what is about to be worked on; ``current`` works once more on the piece that is under way."""

    def __init__(self, world: World, begun: Callable[[object], None]) -> None:
        super().__init__()
        self.world = world
        self.begun = begun
        self.current: Callable[[], object] | None = None

    def map(self, work: Callable[[P], R], pieces: Sequence[P]) -> Iterator[R]:
        """As ``Tasks.map``."""
        self.begun(work)
        return iter([self._worked(work, piece) for piece in pieces])

    def _worked(self, work: Callable[[P], R], piece: P) -> R:
        world, was = self.world, self.current
        self.current = partial(self._once, work, piece)
        before = list(world.zookeeper.open)
        try:
            for _ in range(TRIES):
                try:
                    return self._once(work, piece)
                except ExecutorLost:
                    world.interceptor.dead = None
                    for store in [one for one in world.zookeeper.open if one not in before]:
                        world.zookeeper.end_session(store._session)
                        world.zookeeper.open.remove(store)
        finally:
            self.current = was
        raise Failed("every executor was lost")

    def _once(self, work: Callable[[P], R], piece: P) -> R:
        if self.world.trace:
            self.world.trace.tasks += 1
        return work(piece)
