"""F1-F29: everything that goes wrong, as injections into one step or as a state of the world that lasts.

Belongs here: building faults from a step's own random. Each says by its code which it is, so that a run can count that
none is there in name only. Not here: when they are drawn (``simulator.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from uuid import UUID

from pulsar_lifecycle.errors import AccessDenied, LifecycleError, OutcomeUnknown, StoreError, Unavailable
from pulsar_lifecycle.formats.deletion_message import encode_deletion_message
from pulsar_lifecycle.runs import control
from tests.simulation import acts, disasters
from tests.simulation.offloaded import copy_message
from tests.simulation.operator import Operator
from tests.simulation.ports import Injection, Interceptor, crash
from tests.simulation.tasks import ExecutorLost
from tests.simulation.world import HOUR, ModelTopic, World

NAMES = {
    "F1": "crash before or after a call of a port",
    "F2": "duplicate, reordered, late, redelivered intents; lost acknowledgements",
    "F3": "connection lost, outcome unknown",
    "F4": "stale reads before sync, stale lists of loaded topics",
    "F5": "a listing that skips a child",
    "F6": "topic loaded or unloaded meanwhile",
    "F7": "topic deleted and created again under its name",
    "F8": "schema, cursor, compaction, snapshot or reference made meanwhile",
    "F9": "metadata store restored from a backup",
    "F10": "two runs at once",
    "F11": "clock skew, ctime 0 or in the future",
    "F12": "brokers or z-nodes that answer with an error, all or some",
    "F13": "z-node corrupted",
    "F14": "ZooKeeper slow",
    "F15": "bookie down",
    "F16": "object store fails, of journal, archive or offloaded ledgers, before or after it did its part",
    "F17": "offload attempts incomplete, offloaded copies of listed ledgers",
    "F18": "executor lost, speculative duplicate task",
    "F19": "poison and forged messages, dead letters sent again",
    "F20": "plan of another cluster, or not the plan that was looked at",
    "F21": "other systems and a declared cluster on the same BookKeeper",
    "F22": "a broker of another version deletes what is queued; weeks without us",
    "F23": "brokers that hand out few unacknowledged messages, and a flood of one sender",
    "F24": "topics vanish while their ledgers stay, entries that name ledgers are damaged",
    "F25": "a second cluster on the same ZooKeeper that nobody declared",
    "F26": "two copies of a ledger that differ amid their entries, one of which nothing names",
    "F27": "a topic whose z-node is away at two scans and there between them",
    "F28": "a shadow topic whose z-node is away while its source is trimmed",
    "F29": "a broker that never says what it has in memory of one topic",
}

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
        count(code_of(done))
        if world.lagging:
            count("F4")

    def revive(call: str) -> None:
        world.zookeeper.freeze()
        was, world.random = world.random, Random(seed)
        try:
            done = acts.revive(world)
        finally:
            world.random = was
        if done:
            interceptor.fired.append(f"meanwhile {done}")
            count("F8")

    def touch(call: str) -> None:
        was, world.random = world.random, random
        try:
            done = random.choice([acts.recover, acts.replicate])(world)
        finally:
            world.random = was
        interceptor.fired.append(f"meanwhile {done}")
        count("F8")

    def unread_owner(call: str) -> None:
        revive(call)
        here = [p for p in _metadata(world) if random.random() < 0.5]
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
            acts.recreate(world, topic, loads=False)

    return Injection("recreated", ("store.write",), 1, "before", act)


def code_of(done: str) -> str:
    """Which fault an act of the world is, by what it says it did."""
    if "created again" in done:
        return "F7"
    if any(word in done for word in ("loaded", "dies")):
        return "F6"
    if any(word in done for word in ("snapshot", "compact", "schema", "cursor", "again", "memory")):
        return "F8"
    if "offloads" in done:
        return "F17"
    if "a broker deletes" in done:
        return "F22"
    if "another system" in done or "other cluster" in done:
        return "F21"
    return ""


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
        path = random.choice(_metadata(world, parents=True))
        count("F12")
        world.zookeeper.unreadable.add(path)
        return f"{path} cannot be read"
    if kind == "corrupt":
        paths = [p for p in _metadata(world) if world.zookeeper.data(p) and p not in world.corrupted]
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
        paths = [p for p in _metadata(world, parents=True) if world.zookeeper.names(p)]
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


def _metadata(world: World, *, parents: bool = False) -> Sequence[str]:
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


# ----------------------------------------------------------------------------------------------------------- the queue


def flood(random: Random, world: World, count: Callable[[str], None]) -> str:
    """One sender's messages about offloaded copies of one topic, more than brokers hand out at a time."""
    if not world.model.topics or random.random() < 0.3:
        return "no flood"
    count("F23")
    topics = world.deletion_topics
    topics.now_ms, topics.skew_ms = world.time.now_ms(), 0
    topic = min(world.model.topics, key=str)
    for number in range(topics.max_unacked + random.randint(1, 4)):
        message = copy_message(UUID(int=random.getrandbits(128)), 1 << 40 | number, topic)
        topics.publish(encode_deletion_message(message))
    return f"a flood of messages about offloaded copies of {topic}"


def disturb(random: Random, world: World, count: Callable[[str], None]) -> str:
    """Somebody, or something, is at the queue."""
    topics = world.deletion_topics
    topics.now_ms, topics.skew_ms = world.time.now_ms(), 0
    kind = random.choice(["duplicate", "reorder", "delay", "forge", "forge", "forge", "poison"])
    waiting = sorted(topics.waiting)
    if kind in ("duplicate", "reorder", "delay"):
        if not waiting:
            return "the queue is empty"
        count("F2")
        number = random.choice(waiting)
        at, due, raw, properties = topics.waiting[number]
        if kind == "duplicate":
            for _ in range(random.randint(1, 3)):
                topics.publish(raw, dict(properties))
            return f"message {number} is there again"
        if kind == "delay":
            topics.waiting[number] = (at, due + random.choice([1, 48, 400]) * HOUR, raw, properties)
            return f"message {number} is late"
        order = random.sample(waiting, len(waiting))
        topics.waiting = {n: topics.waiting[n] for n in order}
        return f"messages come as {order}"
    count("F19")
    if kind == "poison":
        raw = random.choice([b"", b"{}", b"\xff" * 40, b'{"ledgerId":"x"}', b"[1]", b'{"topicName":7}', b"null"])
        topics.publish(raw, random.choice([{}, {"RECONSUMETIMES": "-1"}, {"RECONSUMETIMES": "9" * 40}]))
        return f"poison {raw[:20]!r}"
    if world.attempts and random.random() < 0.4:
        uuid = random.choice(sorted(world.attempts))
        other = random.choice([None, None, None, None, *sorted(world.model.topics, key=str)[:1]])
        topics.publish(encode_deletion_message(world.copy_message(uuid, other)))
        number = topics.last
        at, due, raw, properties = topics.waiting[number]
        topics.waiting[number] = (at - random.choice([0, 0, 30]) * HOUR, due, raw, properties)
        return f"a forged message about {uuid} ({world.reachable().get(uuid, 'nobody needs it')})"
    ledgers = [i for i in sorted(world.model.ledgers) if world.exists(i) and world.model.ledgers[i].kind != "foreign"]
    if not ledgers:
        return "nothing to forge a message about"
    live, topics_ = world.live(), world.model.topics
    held = [i for i in ledgers if i in live and str(world.model.ledgers[i].topic) not in live[i]]  # not by its own tags
    freed = [i for i in world.leaks() if i in ledgers and world.model.ledgers[i].topic in topics_]
    ledger = random.choice(random.choice([ledgers, held or ledgers, freed or ledgers]))
    info = world.message(ledger)
    topics.publish(encode_deletion_message(info))
    number = topics.last
    at, due, raw, properties = topics.waiting[number]
    back = random.choice([0, 0, 2, 30, 400]) * HOUR
    topics.waiting[number] = (at - back, due, raw, properties)
    return f"a forged message about {ledger} ({world.live().get(ledger, 'nobody needs it')})"
