"""What brokers do by themselves: topics, cursors, compaction, snapshots and schemas.

Belongs here: one function per act; it chooses its own target by the world's ``random`` and says what it did, or None if
there was nothing to do it to. Not here: operators and others (``other_acts.py``), the model (``world.py``).
"""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote_plus

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from tests.kit.simulated.cluster import CURSORS
from tests.kit.simulated.offloaded import CLUSTER, attempt
from tests.simulation.world.model import COMPACTION, HOUR, MOST_LEDGERS, TOPICS, Cursor, ModelTopic
from tests.simulation.world.targets import Did, pick
from tests.simulation.world.world import World


def create_topic(world: World) -> Did | None:
    free = [t for t in TOPICS if t not in world.model.topics]
    if not free or len(world.model.topics) >= 5:
        return None
    topic = ModelTopic(world.random.choice(free))
    world.model.topics[topic.name] = topic
    world.store(topic)
    if world.random.random() < 0.6 and not world.full():
        world.load(topic)
    return Did(f"{topic.name} is created{' and loaded' if topic.loaded else ''}")


def plain(world: World) -> Did | None:
    """A resting topic with a few ledgers and at most one cursor: its oldest may be trimmed."""
    name = Topic.parse("persistent://acme/orders/plain")
    if name in world.model.topics or len(world.model.ledgers) > MOST_LEDGERS - 4:
        return None
    topic = world.model.topics[name] = ModelTopic(name, [world.make("data", name) for _ in range(4)])
    for (
        _
    ) in topic.ledgers:  # a broker writes the z-node for each: no topic that is created anew is at this version soon
        world.store(topic)
    for ledger in topic.ledgers[: world.random.choice([0, 1, 3])]:
        uuid = world.upload(name, ledger, CLUSTER)
        topic.offloaded[ledger] = attempt(uuid, bookkeeper_deleted=world.random.random() < 0.5)
    world.store(topic)
    if world.random.random() < 0.5:
        topic.cursors["s"] = Cursor(at=world.random.choice(topic.ledgers[1:]))
        world.store_cursor(topic, "s")
    return Did(f"{name} rests with {topic.ledgers}, {len(topic.offloaded)} of them offloaded")


def load(world: World) -> Did | None:
    topic = pick(world, lambda t: not t.loaded)
    if topic is None or world.full():
        return None
    world.load(topic)
    return Did(f"{topic.name} is loaded", "F6")


def unload(world: World) -> Did | None:
    topic = pick(world, lambda t: t.loaded)
    if topic is None:
        return None
    if world.random.random() >= 0.8:
        others = [one for one in world.restart_broker() if one is not topic]
        for one in others:
            if not world.full():
                world.load(one)
        return Did(f"the broker of {topic.name} dies, is started again, and loads {len(others)} others", "F6")
    world.unload(topic)
    return Did(f"{topic.name} is unloaded", "F6")


def roll(world: World) -> Did | None:
    topic = pick(world, lambda t: t.loaded and not t.terminated and not t.shadow_of)
    if topic is None or world.full():
        return None
    if topic.ledgers:
        world.restate(topic.ledgers[-1], LedgerState.CLOSED)
    topic.ledgers.append(world.make("data", topic.name, state=LedgerState.OPEN))
    world.store(topic)
    return Did(f"{topic.name} rolls over to ledger {topic.ledgers[-1]}")


def trim(world: World) -> Did | None:
    topic = pick(world, lambda t: t.loaded and len(t.ledgers) > 1)
    if topic is None:
        return None
    gone = world.take_off(topic, world.random.randint(1, len(topic.ledgers) - 1))
    return Did(f"{topic.name} trims {gone}")


def offload(world: World) -> Did | None:
    topic = pick(world, lambda t: len(t.ledgers) > 1)
    if topic is None:
        return None
    ledger = world.random.choice(topic.ledgers[:-1])
    if (known := topic.offloaded.get(ledger)) and known.complete:
        return None
    complete = world.random.random() < 0.7
    deleted = complete and world.random.random() < 0.6 and not world.tiered  # then it is ours to delete
    uuid = world.upload(topic.name, ledger, CLUSTER, index=complete or world.random.random() < 0.5)
    before = topic.offloaded.get(ledger)
    topic.offloaded[ledger] = attempt(uuid, complete=complete, bookkeeper_deleted=deleted)
    if world.tiered:
        topic.offloaded[ledger] = replace(topic.offloaded[ledger], timestamp=world.time.now_ms())
        topic.stale.pop(ledger, None)
    world.store(topic)
    world.drop_copy(before, ledger)
    if deleted:
        world.drop(ledger)
    return Did(f"{topic.name} offloads {ledger}: complete {complete}, BookKeeper copy deleted {deleted}", "F17")


def end_offloads(world: World) -> Did:
    """Brokers give up what they have begun to offload and not completed."""
    ours, ended = world.opened(), list[int]()
    for topic in world.model.topics.values():
        for ledger, known in list(topic.offloaded.items()):
            if not known.complete and known.uuid not in ours:
                del topic.offloaded[ledger]
                ended.append(ledger)
                world.store(topic)
                world.drop_copy(known, ledger)
    return Did(f"brokers give up their offloads of {ended}")


def remember(world: World) -> Did | None:
    """A ledger whose compare-and-set into the topic is still pending: only the broker knows it."""
    topic = pick(world, lambda t: t.loaded and not t.memory)
    if topic is None or world.full():
        return None
    kind = world.random.choice(["data", "data", "cursor"])
    ledger = world.make(kind, topic.name, cursor="s" if kind == "cursor" else "")
    topic.memory.add(ledger)
    return Did(f"the broker of {topic.name} has {ledger} in memory alone", "F8")


def store_memory(world: World) -> Did | None:
    topic = pick(world, lambda t: t.loaded and bool(t.memory))
    if topic is None:
        return None
    ledger = topic.memory.pop()
    listed = world.model.ledgers[ledger].kind == "data" and world.random.random() < 0.7
    if listed and ledger not in world.model.overtaken:
        topic.ledgers.insert(max(0, len(topic.ledgers) - 1), ledger)
        topic.ledgers.sort()
        topic.moved = topic.pinned = True  # what no scan has seen named must stay where the next one sees it
        world.store(topic)
        return Did(f"{topic.name} lists {ledger} at last", "F8")
    return Did(f"the broker of {topic.name} forgets {ledger}", "F8")


def move_cursor(world: World) -> Did | None:
    topic = pick(world, lambda t: bool(t.ledgers)) or pick(world)
    if topic is None:
        return None
    name = world.random.choice([*topic.cursors, CURSORS[0], CURSORS[1], CURSORS[2]])
    is_new, cursor = name not in topic.cursors, topic.cursors.setdefault(name, Cursor())
    stood, noted = world.stands(cursor), cursor.at
    cursor.at = max(stood, world.random.choice(topic.ledgers or [0]))
    old = cursor.ledger
    if old >= 0 and world.model.ledgers[old].state is LedgerState.OPEN and world.reader.payloads.get(old):
        if cursor.at > stood:  # no broker writes a position twice
            entry = world.position_entry(cursor.compacted if name == COMPACTION else None, cursor.at)
            world.reader.payloads[old].append(entry)
        return Did(f"cursor {name} of {topic.name} moves on to {cursor.at}", "F8")
    if world.full() or name == COMPACTION:
        cursor.at = noted
        if is_new:  # without a z-node there is none
            del topic.cursors[name]
        return None
    state = LedgerState.OPEN if topic.loaded else LedgerState.CLOSED
    cursor.ledger = world.make(
        "cursor", topic.name, cursor=name, state=state, entries=[world.position_entry(at=cursor.at)]
    )
    world.store_cursor(topic, name)
    world.drop(old)
    return Did(f"cursor {name} of {topic.name} moves to {cursor.ledger}, it stands in {cursor.at}", "F8")


def close_cursor(world: World) -> Did | None:
    topic = pick(world, lambda t: bool(t.cursors or t.readers))
    if topic is None:
        return None
    name = world.random.choice(sorted([*topic.cursors, *topic.readers]))
    if name in topic.readers:
        return Did(f"{name} of {topic.name} is gone, and leaks {sorted(topic.readers.pop(name).values())}", "F8")
    cursor = topic.cursors[name]
    if world.random.random() < 0.5:
        old, cursor.at = cursor.ledger, world.stands(cursor)
        cursor.ledger, cursor.noted = -1, cursor.compacted
        world.store_cursor(topic, name)
        world.drop(old)
        return Did(f"cursor {name} of {topic.name} is closed", "F8")
    world.delete_cursor(topic, name)
    return Did(f"cursor {name} of {topic.name} is deleted", "F8")


def start_compaction(world: World) -> Did | None:
    topic = pick(world, lambda t: t.loaded and t.compacting is None)
    if topic is None or world.full():
        return None
    if COMPACTION not in topic.cursors:
        topic.cursors[COMPACTION] = Cursor()
        world.store_cursor(topic, COMPACTION)
    topic.compacting = world.make("compacted", topic.name)
    return Did(f"a compaction of {topic.name} writes {topic.compacting}", "F8")


def end_compaction(world: World) -> Did | None:
    topic = pick(world, lambda t: t.loaded and t.compacting is not None)
    if topic is None:
        return None
    cursor = topic.cursors.setdefault(COMPACTION, Cursor())
    old, new = cursor.compacted, topic.compacting
    topic.compacting, cursor.compacted = None, new
    if cursor.ledger < 0 and not world.full() and world.random.random() < 0.7:
        cursor.at = max(topic.ledgers, default=0)
        entries = [world.position_entry(), world.position_entry(new, cursor.at)]
        cursor.ledger = world.make("cursor", topic.name, cursor=COMPACTION, state=LedgerState.OPEN, entries=entries)
        world.store_cursor(topic, COMPACTION)
    elif cursor.ledger >= 0 and world.model.ledgers[cursor.ledger].state is LedgerState.OPEN:
        world.reader.payloads[cursor.ledger].append(world.position_entry(new, world.stands(cursor)))
    else:
        cursor.ledger, cursor.noted = -1, new
        world.store_cursor(topic, COMPACTION)
    world.drop(old)
    return Did(f"the compacted ledger of {topic.name} is {new} now, before it was {old}", "F8")


READERS = ("reader", "x+y")
"""Non-durable subscriptions; no durable one has their names."""


def snapshot(world: World) -> Did | None:
    topic = pick(world, lambda t: t.loaded and bool(t.ledgers) and not t.shadow_of)
    if topic is None or world.full():
        return None
    name, how = world.random.choice(CURSORS[:2]), world.random.random()
    span = (topic.ledgers[0], topic.ledgers[-1])
    if how < 0.3:
        return _snapshot_in_memory(world, topic, READERS[CURSORS.index(name)], span, listed=how < 0.2)
    cursor = topic.cursors.get(name)
    if cursor is None:
        cursor = topic.cursors[name] = Cursor()
        world.store_cursor(topic, name)
    if span in cursor.buckets or span in cursor.swallowed:
        return None
    ledger = world.make("bucket", topic.name, cursor=name, span=span)
    if how < 0.5:
        cursor.swallowed[span] = ledger
        return Did(f"the snapshot {ledger} of {name} of {topic.name} is in the broker's memory alone", "F8")
    cursor.buckets[span] = ledger
    world.store_cursor(topic, name)
    return Did(f"snapshot {ledger} of {name} of {topic.name}", "F8")


def _snapshot_in_memory(
    world: World, topic: ModelTopic, name: str, span: tuple[int, int], *, listed: bool
) -> Did | None:
    """Of a non-durable subscription; the tag has its name decoded, though it was never encoded.

    Not ``listed``: PersistentSubscription.removeConsumer deletes a cursor by its name a while after its subscription
    was removed; one that subscribed again meanwhile got that cursor, and goes on without it.
    """
    buckets = topic.readers.setdefault(name, {}) if listed else {}
    if span in buckets:
        return None
    buckets[span] = ledger = world.make("bucket", topic.name, cursor=unquote_plus(name), span=span)
    if not listed:
        topic.unlisted.add(ledger)
    return Did(
        f"snapshot {ledger} of {name} of {topic.name}, which is not durable{'' if listed else ' and not listed'}", "F8"
    )


def merge_snapshots(world: World) -> Did | None:
    topic = pick(world, lambda t: any(c.buckets for c in t.cursors.values()))
    if topic is None:
        return None
    name = next(n for n, c in sorted(topic.cursors.items()) if c.buckets)
    span, ledger = topic.cursors[name].buckets.popitem()
    world.store_cursor(topic, name)
    world.drop(ledger)
    return Did(f"snapshot {ledger} {span} of {topic.name} is done with", "F8")


def begin_schema(world: World) -> Did | None:
    """A schema version: its ledger is there hours or days before the locator names it."""
    topic = pick(world)
    if topic is None or world.full():
        return None
    schema_id = topic.name.schema_id
    if any(path.startswith(f"/schemas/{schema_id}") for path in world.corrupted):
        return None
    if any(sid == schema_id for sid, _ in world.model.pending.values()):
        return None
    older = world.model.schemas.get(schema_id, [])
    ledger = world.make("schema", topic.name.partitioned_parent, entries=[world.schema_entry(older)])
    after = world.random.choice([0, HOUR // 60, HOUR, 30 * HOUR, 4 * 24 * HOUR, 6 * 24 * HOUR])
    world.model.pending[ledger] = (schema_id, world.time.now_ms() + after)
    if not after:
        world.wait_ms(0)
    return Did(f"schema {schema_id} gets ledger {ledger}, named in {after // 60_000} minutes", "F8")


def delete_schema(world: World) -> Did | None:
    ids = sorted(s for s in world.model.schemas if world.zookeeper.stat(f"/schemas/{s}") is not None)
    pending = {sid for sid, _ in world.model.pending.values()}
    pending |= {topic.name.schema_id for topic in world.model.topics.values() if topic.apart}
    ids = [s for s in ids if s not in pending and f"/schemas/{s}" not in world.corrupted]
    if not ids:
        return None
    schema_id = world.random.choice(ids)
    world.remove(f"/schemas/{schema_id}")
    for ledger in world.model.schemas.pop(schema_id):
        world.drop(ledger)
    return Did(f"schema {schema_id} is deleted", "F8")
