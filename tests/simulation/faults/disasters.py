"""F24, F25 and F29: what takes references away, not the ledgers: loss, damage, a hidden cluster, a broker that is mute.

Belongs here: making them and undoing them. They strike every fifth schedule, from a random of their own, so that the
others stay what they were. Not here: faults that pass by themselves (``faults``).
"""

from __future__ import annotations

from random import Random

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from tests.simulation.world.model import COMPACTION, HOUR, TOPICS, ModelTopic
from tests.simulation.world.world import World

HIDDEN = "/two"
"""Chroot of the cluster that nobody declared."""
_NEEDS = "the cluster at /two needs it"

LOST = "lost are the z-nodes of "
"""What happened begins so where topics vanished."""
LOSS = 0.2
"""The share that may be lost unnoticed: ``orphans.max_shrinkage``."""


def strike(random: Random, world: World) -> tuple[str, str]:
    """(Which fault it is, what happened); nothing at most times."""
    kind = random.choices(["mute", "none", "lose", "damage", "hidden"], [12, 58, 15, 14, 1])[0]
    was, world.random = world.random, random
    try:
        if kind == "lose":
            return "F24", _lose(random, world)
        if kind == "damage":
            return "F24", _damage(random, world)
        if kind == "mute":
            return _no_answers(random, world)
        return ("F25", _hide(world)) if kind == "hidden" else ("", "")
    finally:
        world.random = was


def _lose(random: Random, world: World) -> str:
    """Z-nodes of resting topics are gone for weeks: more than may be lost of what the last covered scan saw listed.

    What no covered scan has seen nobody outside can miss, and less than that share looks like a leak.
    """
    resting = [t for t in world.model.topics.values() if _can_be_missed(world, t)]
    random.shuffle(resting)
    chosen: list[ModelTopic] = []
    for topic in resting:
        chosen.append(topic)
        if weight(world, chosen) > LOSS * world.most_listed:
            break
    else:
        return ""
    for topic in chosen:
        topic.away = topic.moved = True
        world.vanish(topic)
        world.model.returns.append((world.time.now_ms() + random.choice([30, 90]) * 24 * HOUR, topic.name))
    return f"{LOST}{', '.join(str(t.name) for t in chosen)}"


def _can_be_missed(world: World, topic: ModelTopic) -> bool:
    base = world.topic_path(topic.name)
    whole = not any(path == base or path.startswith(f"{base}/") for path in world.corrupted)
    seen = set(topic.ledgers) <= world.listed.get(str(topic.name), set())
    return whole and seen and bool(topic.ledgers) and not (topic.loaded or topic.moved or topic.away or topic.shadow_of)


def weight(world: World, lost: list[ModelTopic]) -> int:
    """Ledgers that are in BookKeeper and that no other z-node names."""
    elsewhere: set[int] = set()
    for topic in world.model.topics.values():
        if topic not in lost and not topic.away:
            elsewhere.update(topic.ledgers)
    needed = {i for topic in lost for i in topic.ledgers if not _bookkeeper_deleted(topic, i)}
    return len({i for i in needed - elsewhere if world.exists(i)})


def _bookkeeper_deleted(topic: ModelTopic, ledger: int) -> bool:
    context = topic.offloaded.get(ledger)
    return bool(context and context.complete and context.bookkeeper_deleted)


def _damage(random: Random, world: World) -> str:
    """No replica's copy of an entry that names ledgers can be read any more."""
    found = [(i, Topic.parse(_of_schema(sid))) for sid, ledgers in world.model.schemas.items() for i in ledgers]
    for topic in world.model.topics.values():
        cursor = topic.cursors.get(COMPACTION)
        if cursor is not None and cursor.ledger >= 0:
            found.append((cursor.ledger, topic.name))
    found = [(i, name) for i, name in found if world.exists(i) and world.reader.payloads.get(i)]
    if not found:
        return ""
    ledger, name = random.choice(sorted(found, key=lambda one: (one[0], str(one[1]))))
    if world.model.ledgers[ledger].state is not LedgerState.OPEN or random.random() < 0.7:
        world.reader.payloads[ledger][-1] = b"\xff\xff\xff"
        world.damaged.add(ledger)
        return f"the last entry of {ledger} of {name} is damaged"
    return ""


def _no_answers(random: Random, world: World) -> tuple[str, str]:
    """A broker never again says what it has in memory of one topic, as for a schema locator that it cannot decode."""
    found = [str(t.name) for t in world.model.topics.values() if COMPACTION in t.cursors and t.loaded]
    found = [name for name in sorted(found) if name not in world.admin.mute]
    if not found:
        return "", ""
    name = random.choice(found)
    world.admin.mute.add(name)
    return "F29", f"no broker says any more what it holds of {name}"


def _of_schema(schema_id: str) -> str:
    namespace, _, local = schema_id.rpartition("/")
    return str(Topic.from_managed_ledger(f"{namespace}/persistent/{local}"))


def _hide(world: World) -> str:
    """A second cluster on our ZooKeeper: its ledgers are tagged as ours are, and nothing declares it."""
    if world.full() or world.hidden():
        return ""
    topic = world.random.choice(TOPICS[:3])
    ledger = world.make("data", topic)
    world.model.elsewhere[ledger] = _NEEDS
    world.put(f"{HIDDEN}/managed-ledgers/{topic.managed_ledger}", b"")
    return f"a second cluster at {HIDDEN} writes {ledger} of its own {topic}"


def relieve(world: World) -> None:
    """What was lost is put back, the second cluster goes; what is damaged or mute stays so."""
    for _, name in list(world.model.returns):
        world.come_back(name)
    world.model.returns.clear()
    if world.hidden():
        world.remove(HIDDEN)
        for ledger in [i for i, why in world.model.elsewhere.items() if why == _NEEDS]:
            del world.model.elsewhere[ledger]
