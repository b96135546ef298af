"""Faults of one step: at some call of some port something happens.

Belongs here: building injections from a step's own random. Not here: when they are drawn (``simulator.py``), and what
lasts (``states.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from pulsar_lifecycle.errors import AccessDenied, LifecycleError, OutcomeUnknown, StoreError, Unavailable
from pulsar_lifecycle.runs import control
from tests.simulation.faults.states import metadata_paths
from tests.simulation.operators.operator import Operator
from tests.simulation.world import acts, other_acts
from tests.simulation.world.interception import Injection, Interceptor, crash
from tests.simulation.world.model import ModelTopic
from tests.simulation.world.tasks import ExecutorLost
from tests.simulation.world.world import World

ALL = ("store.", "queue.", "journal.", "admin.", "reader.", "objects.")
WRITES = ("store.create", "store.write", "store.delete")
READS = ("store.read", "store.children", "store.scan", "store.sync")


KINDS = {
    "crash": 14,
    "lost": 10,
    "unavailable": 4,
    "meanwhile": 16,
    "revive": 10,
    "again": 6,
    "second": 8,
    "admin": 5,
    "slow": 3,
    "journal": 6,
    "objects": 8,
    "pause": 3,
    "restore": 3,
    "speculative": 6,
    "touch": 8,
    "unread owner": 8,
}


def _raising(error: LifecycleError) -> Callable[[str], None]:
    def act(call: str) -> None:
        raise error

    return act


def injections(
    random: Random, world: World, operator: Operator, interceptor: Interceptor, count: Callable[[str], None]
) -> list[Injection]:
    """One to three faults of one step, each at some call of some port."""
    kinds = random.choices(
        list(KINDS),
        list(KINDS.values()),
        k=random.choice([1, 1, 1, 2, 2, 3]),
    )
    return [_injection(kind, random, world, operator, interceptor, count) for kind in kinds]


def _injection(
    kind: str,
    random: Random,
    world: World,
    operator: Operator,
    interceptor: Interceptor,
    count: Callable[[str], None],
) -> Injection:
    where = random.choice([ALL, ALL, ("queue.",), ("journal.",), ("store.delete_many",), ("store.sync",)])
    nth, when = random.randrange(30 if where is ALL else 4), random.choice(["before", "after"])
    error = random.choice([Unavailable("no answer"), StoreError("500"), AccessDenied("403")])
    seed = random.getrandbits(32)

    def counted(code: str, act: Callable[[str], None]) -> Callable[[str], None]:
        def acting(call: str) -> None:
            count(code)
            act(call)

        return acting

    def meanwhile(call: str) -> None:
        world.zookeeper.freeze()
        was, world.random = world.random, Random(seed)
        try:
            done = acts.happen(world, acts.MEANWHILE)
        finally:
            world.random = was
        interceptor.fired.append(f"meanwhile {done}")
        count(done.fault)
        if world.lagging:
            count("F4")

    def revive(call: str) -> None:
        world.zookeeper.freeze()
        was, world.random = world.random, Random(seed)
        try:
            done = other_acts.revive(world)
        finally:
            world.random = was
        if done:
            interceptor.fired.append(f"meanwhile {done}")
            count(done.fault)

    def touch(call: str) -> None:
        was, world.random = world.random, random
        try:
            done = random.choice([other_acts.recover, other_acts.replicate])(world) or other_acts.replicate(world)
        finally:
            world.random = was
        interceptor.fired.append(f"meanwhile {done}")
        count("F8")

    def unread_owner(call: str) -> None:
        revive(call)
        here = [p for p in metadata_paths(world) if random.random() < 0.5]
        world.zookeeper.unreadable.update(here)
        interceptor.fired.append(f"meanwhile unreadable: {here}")
        count("F12")

    def second(call: str) -> None:
        if world.trace is None or operator.depth > 1:
            return
        count("F10")
        expire = random.random() < 0.7
        if expire:
            for store in list(world.zookeeper.open):
                store.expire()
        was = world.lagging
        world.lagging = False
        try:
            done = operator.delete()
        except LifecycleError as refused:
            done = f"{type(refused).__name__}: {refused}"
        finally:
            world.lagging = was
        interceptor.fired.append(f"second run{' after the session expired' if expire else ''}: {done}")

    def speculative(call: str) -> None:
        again = operator.tasks.current
        if again is None:
            return
        count("F18")
        if random.random() < 0.5:
            world.deletion_topics.held.clear()
        interceptor.fired.append(f"speculative task: {again()}")

    def restore(call: str) -> None:
        if world.backup is not None:
            count("F9")
            for store in world.zookeeper.open:
                store._expired = True
            world.restore()

    def pause(call: str) -> None:
        if world.zookeeper.stat(control.PAUSE) is None:
            world.put(control.PAUSE, b"simulated")

    def slow(call: str) -> None:
        count("F14")
        world.zookeeper.latency = random.choice([150.0, 800.0])

    def redeliver(call: str) -> None:
        count("F2")
        world.deletion_topics.held.clear()

    if kind == "crash":
        return Injection("crash", where, nth, when, counted("F1", crash(interceptor)))
    if kind == "lost":
        error, times = OutcomeUnknown("connection lost"), random.choice([1, 1, 2, 6])
        calls = random.choice([WRITES, ("store.delete_many",)])
        return Injection(
            "lost", calls, nth % (8 if calls is WRITES else 2), when, counted("F3", _raising(error)), times
        )
    if kind == "unavailable":
        lost = _raising(Unavailable("connection lost"))
        return Injection("unavailable", READS, nth, "before", counted("F3", lost), random.choice([1, 3]))
    if kind == "revive":
        return Injection("revive", ("queue.receive",), nth % 3, when, revive)
    if kind == "again":
        return Injection("redelivery", where, nth, when, redeliver)
    if kind == "second":
        where = random.choice([where, ("journal.archive",), ("store.delete_many",)])
        return Injection("second run", where, nth if where is ALL else nth % 3, "before", second)
    if kind == "touch":
        return Injection("touch", ("journal.archive", "store.delete_many"), nth % 2, "before", touch, 3)
    if kind == "unread owner":
        return Injection("unread owner", ("queue.receive",), nth % 2, when, unread_owner)
    if kind == "speculative":
        return Injection("speculative", where, nth, when, speculative)
    if kind == "admin":
        return Injection("admin", ("admin.",), nth % 5, "before", counted("F12", _raising(error)), 1)
    if kind == "slow":
        return Injection("slow", ("store.",), nth, when, slow)
    if kind == "journal":
        return Injection("journal", ("journal.",), nth % 2, when, counted("F16", _raising(StoreError("503 SlowDown"))))
    if kind == "objects":
        calls = random.choice([("objects.",), ("objects.delete_many",)])
        error = random.choice([Unavailable("503 SlowDown"), StoreError("500"), AccessDenied("403"), error])
        return Injection("objects", calls, nth % 3, when, counted("F16", _raising(error)), random.choice([1, 2]))
    if kind == "pause":
        return Injection("pause", where, nth, when, pause)
    if kind == "restore":
        return Injection("restore", where, nth, when, restore)
    return Injection("meanwhile", where, nth, when, meanwhile, random.choice([1, 1, 2, 4]))


def executor_lost(random: Random, interceptor: Interceptor, count: Callable[[str], None]) -> Injection:
    """An executor dies at some call of its task."""
    die = crash(interceptor, ExecutorLost)

    def act(call: str) -> None:
        count("F18")
        die(call)

    return Injection("executor lost", ALL, random.randrange(25), random.choice(["before", "after"]), act)


def lost_at_the_compare_and_set(random: Random, count: Callable[[str], None]) -> Injection:
    """The connection breaks while a topic's z-node is written: the lease's is the first write, this is the second."""
    broken = _raising(OutcomeUnknown("connection lost"))

    def act(call: str) -> None:
        count("F3")
        broken(call)

    return Injection("lost", ("store.write",), 1, random.choice(["before", "after", "after"]), act)


def recreated_at_the_compare_and_set(
    world: World, trimmed: Callable[[], ModelTopic | None], count: Callable[[str], None]
) -> Injection:
    """The topic that is trimmed is deleted and created again right before its z-node is written."""

    def act(call: str) -> None:
        topic = trimmed()
        if topic is not None and not topic.away and not topic.shadow_of and not world.full():
            count("F7")
            other_acts.recreate(world, topic, loads=False)

    return Injection("recreated", ("store.write",), 1, "before", act)
