"""What a run has open of a simulated cluster: the fakes in place of adapters.

Belongs here: answering ``Cluster.connect`` with the simulator's ports. Not here: the ports (``ports.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.ports import DeletionQueue, Ids, LedgerWriter
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import LocalTasks, Tasks
from pulsar_lifecycle.settings import Settings
from tests.kit.fakes.deletion_queue import FakeQueueReader
from tests.kit.fakes.lake import FakeLake
from tests.kit.simulated.cluster import SimulatedCluster


class SimIds:
    """Ids that count up; UUIDs of ``random``."""

    def __init__(self, random: Callable[[], Random]) -> None:
        self._random = random
        self._count = count()

    def token(self, size: int) -> str:
        return f"{next(self._count):0{2 * size}x}"

    def uuid(self) -> UUID:
        return UUID(int=self._random().getrandbits(128), version=4)


@dataclass(frozen=True)
class Made:
    """What there is of a simulated cluster to connect to."""

    world: Any
    dead_letters: Callable[[], Any]
    ports: Mapping[str, Any]
    """What is open from the beginning, by its name."""


class SimConnections(Connections):
    """``io.connect.Connections`` to a simulated cluster."""

    def __init__(self, where: Made, settings: Settings, **asked: Any) -> None:
        super().__init__(settings, **asked)
        self._where = where
        self.__dict__.update(where.ports)

    @cached_property
    def objects(self) -> Any:
        return self._where.world.objects

    @cached_property
    def writer(self) -> LedgerWriter:
        return self._where.world.open_writer(self.store)

    @cached_property
    def queue(self) -> DeletionQueue:
        return self._where.world.open_queue()

    @cached_property
    def dead_letters(self) -> Any:
        return self._where.dead_letters()

    def _metadata(self, zookeeper: Any, *, read_only: bool = True, **_: Any) -> Any:
        root = self._where.world.roots.get(zookeeper.hosts.partition(":")[0])
        world, read_only = (root, True) if root else (self._where.world, read_only)
        return self._opened.enter_context(closing(world.open_store(read_only=read_only)))


def where_of(
    world: SimulatedCluster,
    settings: Settings,
    lake: FakeLake,
    *,
    tasks: Tasks | None = None,
    ids: Ids | None = None,
    dead_letters: Callable[[], Any] = lambda: None,
    **instead: Any,
) -> Cluster:
    """The cluster as a run takes it, in this process; ``instead``: ports by their names, for the cluster's own."""
    ports = {
        "reader": world.reader,
        "admin": world.admin,
        "queue_reader": FakeQueueReader(world.deletion_topics),
        "journal": world.journal,
        "journal_reader": world.journal,
        "lake": lake,
        "clock": world.clock,
        "ids": ids or SimIds(Random),
        **instead,
    }
    made = Made(world, dead_letters, ports)

    def connect(settings: Settings, **asked: Any) -> SimConnections:
        return SimConnections(made, settings, **asked)

    return Cluster(settings, connect=connect, given=tasks or LocalTasks())
