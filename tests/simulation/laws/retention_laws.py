"""What must hold of what leaves a topic's list for its retention.

Belongs here: judging that by the simulator's own truth: what was written when, how much, and which policy is in force.
Not here: cursors, holes and offloads of it, which ``laws.py`` judges for every run, and loads (``load_laws.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_lifecycle.model import Topic
from tests.simulation.world.policies import MIB, MINUTE, BrokerPolicies
from tests.simulation.world.world import World


def within_retention(world: World, policies: BrokerPolicies, topic: Topic, gone: Sequence[int]) -> str:
    """Why these, which have left the list of their topic, must be retained still; empty if they need not.

    Nothing goes that is younger than the policy in force says, unless what it retains of the newest is all behind it.
    """
    keep, behind = policies.retention_of(world, topic), sum(map(world.size, world.model.topics[topic].ledgers))
    for ledger in reversed(gone):
        age = world.time.now_ms() - world.closed(ledger)
        is_young = keep.minutes < 0 or age < keep.minutes * MINUTE
        if is_young and (keep.mb < 0 or behind < keep.mb * MIB):
            said = f"{ledger} is {age // MINUTE} minutes old, and {behind} bytes are behind it"
            return f"{said}; {topic} retains {keep.minutes} minutes, {keep.mb} MiB"
        behind += world.size(ledger)
    return ""
