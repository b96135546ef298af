"""Which topic or ledger an act is done to, and what it says it did.

Belongs here: choosing by the world's ``random``. Not here: the acts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.simulation.world.model import ModelTopic
from tests.simulation.world.world import World


class Did(NamedTuple):
    """What an act did; ``fault``: its code in ``faults/fault_codes.py``, empty where it is none."""

    what: str
    fault: str = ""

    def __str__(self) -> str:
        """What it did."""
        return self.what


def pick(world: World, wanted: Callable[[ModelTopic], bool] = lambda topic: True) -> ModelTopic | None:
    here = [t for t in world.model.topics.values() if not (t.away or t.apart) and is_whole(world, t) and wanted(t)]
    return world.random.choice(sorted(here, key=lambda t: str(t.name))) if here else None


def is_whole(world: World, topic: ModelTopic) -> bool:
    """Whether no z-node of the topic is corrupted now: no broker could work with it."""
    base = world.topic_path(topic.name)
    return not any(path == base or path.startswith(f"{base}/") for path in world.corrupted)


def version_of(world: World, topic: ModelTopic) -> int:
    stat = world.zookeeper.stat(world.topic_path(topic.name))
    return stat.version if stat else 0


def some_leak(world: World, fits: Callable[[int], bool] = lambda ledger: True) -> int | None:
    """A leaked ledger whose z-node is not corrupted, if there is one."""
    leaks = [i for i in world.leaks() if world.path(i) not in world.corrupted and fits(i)]
    return world.random.choice(leaks) if leaks else None
