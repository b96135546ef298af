"""Faults that last: something stays wrong until all is well again.

Belongs here: making them, undoing them, and saying why no scan can read everything. Not here: faults of one step
(``injections.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from pulsar_lifecycle.errors import AccessDenied, StoreError, Unavailable
from tests.simulation.faults import disasters
from tests.simulation.world.model import HOUR
from tests.simulation.world.world import World

# -------------------------------------------------------------------------------------------------- states of the world


def unwell(random: Random, world: World, count: Callable[[str], None]) -> str:
    """Something stays wrong until :func:`heal`."""
    kind = random.choice(
        ["skew", "ctime", "unreadable", "corrupt", "skip", "brokers", "denied", "bookies", "lag", "acks"]
    )
    if kind == "skew":
        count("F11")
        world.clock.skew_ms = random.choice([-30 * 24, -72, -2, 2, 72, 30 * 24]) * HOUR
        return f"our clock is {world.clock.skew_ms / HOUR:.0f} hours off"
    if kind == "ctime":
        ledgers = [i for i in sorted(world.model.ledgers) if world.exists(i)]
        if not ledgers:
            return "nothing to give a wrong ctime"
        count("F11")
        ledger = random.choice(ledgers)
        at = random.choice([0, world.time.now_ms() + 400 * 24 * HOUR])
        world.zookeeper._nodes[world.path(ledger)].ctime = at
        return f"the z-node of {ledger} says that it was created at {at}"
    if kind == "unreadable":
        path = random.choice(metadata_paths(world, parents=True))
        count("F12")
        world.zookeeper.unreadable.add(path)
        return f"{path} cannot be read"
    if kind == "corrupt":
        paths = [p for p in metadata_paths(world) if world.zookeeper.data(p) and p not in world.corrupted]
        if not paths:
            return "nothing to corrupt"
        count("F13")
        path = random.choice(paths)
        data = world.zookeeper.data(path)
        bad = random.choice([b"\xff\xff\xff", b"\x47\x78\x00\x00\x00\x03abc" + data, data[:-1] + b"\xff\xff\xff"])
        world.put(path, bad)
        world.corrupted[path] = data
        return f"{path} is corrupted"
    if kind == "skip":
        paths = [p for p in metadata_paths(world, parents=True) if world.zookeeper.names(p)]
        if not paths:
            return "nothing to skip"
        count("F5")
        path = random.choice(paths)
        world.zookeeper.skipped[path] = random.choice(sorted(world.zookeeper.names(path)))
        return f"the listing of {path} skips {world.zookeeper.skipped[path]}"
    if kind == "brokers":
        count("F12")
        world.admin.failure = random.choice([Unavailable("503"), AccessDenied("403"), StoreError("500")])
        return f"the brokers answer {world.admin.failure}"
    if kind == "denied":
        topics = sorted(str(t) for t in world.model.topics)
        if not topics:
            return "no topic to deny"
        count("F12")
        topic = random.choice(topics)
        world.admin.denied[topic] = random.choice([Unavailable("timeout"), AccessDenied("403")])
        return f"questions about {topic} fail"
    if kind == "bookies":
        count("F15")
        for ledger in sorted(world.reader.payloads):
            if random.random() < 0.7:
                world.reader.failures[ledger] = Unavailable("no bookie answers")
        return "bookies are down"
    if kind == "lag":
        count("F4")
        world.lagging = True
        return "our sessions lag behind"
    count("F2")
    world.forgetful = True
    return "acknowledgements get lost"


def metadata_paths(world: World, *, parents: bool = False) -> Sequence[str]:
    """Z-nodes that say who refers to what."""
    found = [
        p
        for p in sorted(world.zookeeper._nodes)
        if (p.startswith("/managed-ledgers/") and p.count("/") >= 5)
        or (p.startswith("/schemas/") and p.count("/") >= 4)
    ]
    found = [p for p in found if "/dc1/" not in p or p.count("/") >= 6]
    if parents:
        found += ["/managed-ledgers", "/schemas", "/ledgers/00/0000"]
        found = [p for p in found if world.zookeeper.stat(p) is not None]
    return found


def spoiled(world: World) -> str:
    """Why no scan can read everything now; empty if one can."""
    here = [p for p in sorted(world.zookeeper.unreadable) if world.zookeeper.stat(p) is not None]
    if here:
        return f"{here[0]} cannot be read"
    bad = [p for p in sorted(world.corrupted) if world.zookeeper.stat(p) is not None]
    if bad:
        return f"{bad[0]} is corrupted"
    if world.admin.failure:
        return "the brokers do not answer"
    if world.hidden():
        return "a second cluster is on the ZooKeeper, and nothing declares it"
    for path, name in sorted(world.zookeeper.skipped.items()):
        if world.zookeeper.stat(path) is not None and name in world.zookeeper.names(path):
            return f"the listing of {path} skips {name}"
    return ""


def heal(world: World) -> str:
    """Everything is well again, but for what was lost."""
    world.clock.skew_ms = 0
    world.zookeeper.unreadable.clear()
    world.zookeeper.skipped.clear()
    world.zookeeper.latency = 1.0
    world.admin.failure = None
    world.admin.denied.clear()
    world.reader.failures.clear()
    world.lagging = world.forgetful = False
    world.blind = False
    world.objects.stale = None
    disasters.relieve(world)
    for path, data in list(world.corrupted.items()):
        del world.corrupted[path]
        if world.zookeeper.stat(path) is not None:
            world.put(path, data)
    return "all is well again"
