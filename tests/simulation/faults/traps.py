"""F26-F28, F30: what a random schedule hardly ever plays: one good copy of an entry, and references that come and go.

Belongs here: scripts of many steps, each of which would be safe by itself. One schedule in so many plays one, at some
step, from a random of its own, so that the others stay what they were. Not here: single acts (``acts.py``), and losses
that last (``disasters.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo, encode_deletion_message
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Stat
from tests.kit.simulated.cluster import ENTRY_BYTES
from tests.kit.simulated.offloaded import CLUSTER, attempt
from tests.simulation.faults import disasters
from tests.simulation.operators.operator import Operator
from tests.simulation.world.model import HOUR, ModelTopic
from tests.simulation.world.world import World

DAY = 24 * HOUR
NAMESPACE = "acme/traps"
"""Of topics that no other cluster has, nobody holds, and nothing else happens to."""
Step = tuple[str, Callable[[], str]]
"""Something that the control plane does, and its name."""
Script = Callable[[Random, World, Operator], Iterator[Step]]
"""What happens, up to each step of the control plane; without any step where the cluster has no place for it."""


def of(seed: int) -> tuple[str, Script] | None:
    """Which trap a schedule has, if any, and the fault that it is."""
    return TRAPS.get(seed % EVERY)


def _old_topic(world: World, local: str, *ledgers: Sequence[bytes]) -> ModelTopic | None:
    """A topic that has rested for longer than the grace period; the entries of each of its ledgers are given."""
    name = Topic.parse(f"persistent://{NAMESPACE}/{local}")
    if name in world.model.topics:
        return None
    world.put(f"/admin/policies/{name.namespace}", b"{}")
    topic = ModelTopic(name, [world.make("data", name, entries=entries) for entries in ledgers])
    topic.moved = topic.pinned = True  # nobody else takes its z-node away
    world.model.topics[name] = topic
    world.store(topic)
    world.wait_ms(8 * DAY)
    return topic


def _others(random: Random, world: World, count: int) -> bool:
    """A topic with so many ledgers, beside which those of another one are few enough to leak; whether it could be."""
    return _old_topic(world, STEADY, *(_entries(random, ENTRIES) for _ in range(count))) is not None


STEADY = "steady"
ENTRIES = 7


def _entries(random: Random, count: int = 1) -> list[bytes]:
    return [random.randbytes(ENTRY_BYTES) for _ in range(count)]


def _send(world: World, message: PendingDeleteLedgerInfo) -> None:
    topics = world.deletion_topics
    topics.now_ms, topics.skew_ms = world.time.now_ms(), 0
    topics.publish(encode_deletion_message(message))


def _takes_away(world: World, name: Topic, hours: int) -> bool:
    """An operator takes the z-node of a topic away, for so long; whether it was there."""
    topic = world.model.topics.get(name)
    if topic is None or topic.away or topic.loaded:
        return False
    topic.away = True
    world.vanish(topic)
    world.model.returns.append((world.time.now_ms() + hours * HOUR, name))
    return True


# ------------------------------------------------------------------------------------------------ the last whole copy


def one_good_copy(random: Random, world: World, operator: Operator) -> Iterator[Step]:
    """A ledger that is listed has a copy that nothing names, and one that counts; entries amid them differ, or lack.

    Both have the same first and last entry. Then somebody asks for the deletion of the copy that nothing names.
    """
    written = _entries(random, ENTRIES)
    topic = _old_topic(world, "copied", written, _entries(random))
    if topic is None or not _others(random, world, 8):
        return
    ledger = topic.ledgers[0]
    counts = random.choices(["damaged", "lacking", "whole"], [6, 3, 2])[0]
    unnamed = random.choices(["whole", "damaged", "lacking"], [6, 2, 1])[0]
    there = _copy(random, written, counts)
    other_copy = world.upload(
        topic.name, ledger, CLUSTER, index=random.random() < 0.8, entries=_copy(random, written, unnamed)
    )
    if random.random() < 0.6:
        world.reader.payloads[ledger] = there
        world.restate(ledger, LedgerState.CLOSED)
    else:
        read = world.upload(topic.name, ledger, CLUSTER, entries=there)
        topic.offloaded[ledger] = attempt(read, bookkeeper_deleted=True)
        world.store(topic)
        world.remove(world.path(ledger))
    world.wait_ms(8 * DAY)
    yield "scan", operator.scan
    world.wait_ms(DAY + HOUR)
    yield "scan", operator.scan
    _send(world, world.copy_message(other_copy))
    if random.random() < 0.3:
        _takes_away(world, topic.name, 20)
    world.wait_ms(HOUR)
    yield "scan", operator.scan
    yield "delete", operator.delete


def _copy(random: Random, written: Sequence[bytes], how: str) -> list[bytes]:
    """Entries as some copy has them; the first and the last one as they were written."""
    amid, copy = random.randrange(1, len(written) - 1), list(written)
    if how == "damaged":
        copy[amid] = _entries(random)[0]
    elif how == "lacking":
        del copy[amid]
    return copy


# ------------------------------------------------------------------------------------- references that come and go


def seen_between(random: Random, world: World, operator: Operator) -> Iterator[Step]:
    """The z-node of a topic is away at two scans a day apart, and there at one between them."""
    topic = _old_topic(world, "flickers", _entries(random))
    if topic is None or not _others(random, world, 4):
        return
    name, (ledger,) = topic.name, topic.ledgers
    yield "scan", operator.scan
    if disasters.weight(world, [topic]) > disasters.LOSS * world.most_listed:
        return  # no scan that misses so much is covered
    if not _takes_away(world, name, 2):
        return
    world.wait_ms(HOUR)
    yield "scan", operator.scan
    began = world.time.now_ms()
    world.wait_ms(random.randint(2, 4) * HOUR)
    unread = {world.topic_path(Topic(name.namespace, STEADY))} if random.random() < 0.3 else set[str]()
    world.zookeeper.unreadable |= unread  # a scan that is not covered tells what it found, too
    yield "scan", operator.scan
    world.zookeeper.unreadable -= unread
    scans = operator.lake.epochs()
    seen = scans and ledger in operator.lake.referenced(scans[-1].epoch_id).needed
    if not seen or not _takes_away(world, name, 23):
        return
    world.wait_ms(began + DAY + HOUR // 60 - world.time.now_ms())
    yield "scan", operator.scan
    if random.random() < 0.5:
        yield "plan", operator.plan
        yield "apply", operator.apply_newest
    elif ledger in world.model.ledgers:  # not where a restore took it back
        _send(world, world.message(ledger))
    world.wait_ms(HOUR // 3)
    yield "scan", operator.scan
    yield "delete", operator.delete


def shadow_unscanned(random: Random, world: World, operator: Operator) -> Iterator[Step]:
    """A shadow topic was seen, and its z-node is away by now: it reads the ledgers of its source all the same."""
    source = _old_topic(world, "shaded", *(_entries(random) for _ in range(3)))
    if source is None:
        return
    name = Topic(source.name.namespace, f"shadow of {source.name.local}")
    yield "scan", operator.scan
    world.wait_ms(DAY + HOUR)
    if name in world.model.topics or world.model.topics.get(source.name) is not source:
        return
    shadow = ModelTopic(name, list(source.ledgers), shadow_of=str(source.name), moved=True, unscanned=True)
    world.model.topics[name] = shadow
    world.store(shadow)
    yield "scan", operator.scan
    if world.model.topics.get(name) is not shadow or shadow.unscanned or not _takes_away(world, name, 20):
        return
    world.wait_ms(random.choice([1, 5]) * HOUR)
    yield "scan", operator.scan
    if world.model.topics.get(source.name) is not source:
        return
    yield "trim", lambda: operator.trim(source)
    world.wait_ms(random.choice([1, 10]) * HOUR)
    yield "scan", operator.scan
    yield "delete", operator.delete


# ------------------------------------------------------------------------------------- a load that a write came before


def overtaken_load(random: Random, world: World, operator: Operator) -> Iterator[Step]:
    """A broker makes a ledger for a topic as that is trimmed, or some time before or after; it stays open.

    Or the topic, or the whole store, is another one by then.
    """
    topic = _old_topic(world, "overtaken", *(_entries(random) for _ in range(4)))
    if topic is None or not _others(random, world, 12):
        return
    name = topic.name
    yield "scan", operator.scan
    world.wait_ms(DAY + HOUR)
    yield "scan", operator.scan
    if world.model.topics.get(name) is not topic or topic.away or world.full():
        return
    how = random.choice(["overtaken", "overtaken", "first", "older", "later", "recreated", "restored"])
    if how == "restored":
        world.take_backup()
    if how == "older":
        _left_open(world, name)
        world.store(topic)
    if how in ("overtaken", "recreated", "restored"):
        _at_the_write(world, name, lambda: _left_open(world, name))
    if how == "first":
        _at_the_write(world, name, lambda: _load(world, name))
    yield "trim", lambda: operator.trim(topic)
    if how == "later" or (how == "overtaken" and random.random() < 0.2):
        _left_open(world, name)
    if how == "recreated":
        _create_again(random, world, name)
    if how == "restored":
        world.restore()
        _left_open(world, name)
        if name in world.model.topics and not world.model.topics[name].away:
            world.store(world.model.topics[name])
        operator.accept_restore()
        yield "scan", operator.scan
        world.wait_ms(DAY + HOUR)
    elif random.random() < 0.5:
        _load(world, name)  # its client tried again
    for _ in range(2):
        world.wait_ms(HOUR)
        yield "scan", operator.scan
        yield "delete", operator.delete


def _left_open(world: World, name: Topic) -> int:
    """A ledger that some broker has made, and that is on no list."""
    return world.make("data", name, state=LedgerState.OPEN)


def _load(world: World, name: Topic) -> None:
    topic = world.model.topics.get(name)
    if topic and not topic.loaded and not topic.away:
        world.load(topic)


def _at_the_write(world: World, name: Topic, act: Callable[[], object]) -> None:
    """``act`` happens when the next write of a topic's z-node arrives, just before that is carried out."""
    zookeeper = world.zookeeper
    write, acts = zookeeper.write, [act]

    def writing(path: str, data: bytes, version: int) -> Stat:
        if path == world.topic_path(name) and acts and zookeeper.acting:
            product, zookeeper.acting = zookeeper.acting, None
            acts.pop()()
            zookeeper.acting = product
        return write(path, data, version)

    zookeeper.write = writing


def _create_again(random: Random, world: World, name: Topic) -> None:
    """The topic is deleted, and there is another one of its name, written as often."""
    if (old := world.model.topics.get(name)) is None or old.away:
        return
    world.delete_topic(old)
    topic = world.model.topics[name] = ModelTopic(name, [world.make("data", name, entries=_entries(random))])
    topic.moved = topic.pinned = True
    for _ in range(5):
        world.store(topic)


EVERY, LOADED_AT = 20, 4
"""Schedules of which one each has :data:`TRAPS`; those of ``disasters.py`` are others."""
TRAPS: Mapping[int, tuple[str, Script]] = {
    1: ("F26", one_good_copy),
    2: ("F27", seen_between),
    3: ("F28", shadow_unscanned),
    LOADED_AT: ("F30", overtaken_load),
}
