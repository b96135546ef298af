"""Which acts there are, and how often each happens.

Belongs here: the tables of acts and drawing one. Not here: the acts (``broker_acts.py``, ``other_acts.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.world.broker_acts import (
    begin_schema,
    close_cursor,
    create_topic,
    delete_schema,
    end_compaction,
    load,
    merge_snapshots,
    move_cursor,
    offload,
    remember,
    roll,
    snapshot,
    start_compaction,
    store_memory,
    trim,
    unload,
)
from tests.simulation.world.other_acts import (
    broker_deletes,
    collect_garbage,
    declared,
    delete_namespace,
    delete_topic,
    end_recovery,
    foreign,
    go_away,
    leak,
    recover,
    rename,
    replicate,
    revive,
    shadow,
)
from tests.simulation.world.targets import Did
from tests.simulation.world.world import World

Act = Callable[[World], Did | None]


ACTS: Sequence[tuple[int, Act]] = (
    (4, create_topic),
    (5, load),
    (5, unload),
    (5, roll),
    (6, trim),
    (4, offload),
    (3, remember),
    (2, store_memory),
    (6, move_cursor),
    (2, close_cursor),
    (3, start_compaction),
    (2, end_compaction),
    (4, snapshot),
    (2, merge_snapshots),
    (4, begin_schema),
    (2, delete_schema),
    (3, delete_topic),
    (1, delete_namespace),
    (3, shadow),
    (3, rename),
    (3, go_away),
    (12, leak),
    (2, foreign),
    (2, declared),
    (2, recover),
    (3, end_recovery),
    (2, replicate),
    (1, broker_deletes),
    (5, revive),
    (4, collect_garbage),
)
"""Acts between two steps of the control plane, with their weights."""

_NOT_MEANWHILE = (revive, rename, go_away, leak, delete_namespace, foreign, declared, shadow, create_topic)
MEANWHILE: Sequence[tuple[int, Act]] = (
    *((weight, act) for weight, act in ACTS if act not in _NOT_MEANWHILE),
    (10, recover),
    (10, replicate),
    (5, broker_deletes),
)
"""Acts that may happen between any two calls of a running step. Re-attaching a ledger is not among them: no reader of
metadata can exclude it, and no broker does it."""


def happen(world: World, acts: Sequence[tuple[int, Act]]) -> Did:
    """One act by its weight; another if it has no target."""
    for _ in range(5):
        act = world.random.choices([a for _, a in acts], [w for w, _ in acts])[0]
        done = act(world)
        if done:
            return done
    return Did("nothing happens")
