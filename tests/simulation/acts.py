"""What happens to a cluster by itself: brokers at work, their operators, leaks, and the stages a schedule starts from.

Belongs here: one function per act; it chooses its own target by the world's ``random`` and says what it did, or None if
there was nothing to do it to. Not here: the model (``world.py``), faults of the control plane (``faults.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from urllib.parse import unquote_plus

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic, encode_name
from tests.simulation.cluster import CURSORS
from tests.simulation.offloaded import CLUSTER, attempt
from tests.simulation.world import COMPACTION, ELSEWHERE, HOUR, MOST_LEDGERS, TOPICS, Cursor, ModelTopic, World

WEST = "west"
"""The declared cluster on the same BookKeeper, where there is one."""

Act = Callable[[World], str | None]


def _pick(world: World, wanted: Callable[[ModelTopic], bool] = lambda topic: True) -> ModelTopic | None:
    here = [t for t in world.model.topics.values() if not t.away and _whole(world, t) and wanted(t)]
    return world.random.choice(sorted(here, key=lambda t: str(t.name))) if here else None


def _whole(world: World, topic: ModelTopic) -> bool:
    """Whether no z-node of the topic is corrupted now: no broker could work with it."""
    base = world.topic_path(topic.name)
    return not any(path == base or path.startswith(f"{base}/") for path in world.corrupted)


def create_topic(world: World) -> str | None:
    free = [t for t in TOPICS if t not in world.model.topics]
    if not free or len(world.model.topics) >= 5:
        return None
    topic = ModelTopic(world.random.choice(free))
    world.model.topics[topic.name] = topic
    world.store(topic)
    if world.random.random() < 0.6 and not world.full():
        world.load(topic)
    return f"{topic.name} is created{' and loaded' if topic.loaded else ''}"


def plain(world: World) -> str | None:
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
    return f"{name} rests with {topic.ledgers}, {len(topic.offloaded)} of them offloaded"


def load(world: World) -> str | None:
    topic = _pick(world, lambda t: not t.loaded)
    if topic is None or world.full():
        return None
    world.load(topic)
    return f"{topic.name} is loaded"


def unload(world: World) -> str | None:
    topic = _pick(world, lambda t: t.loaded)
    if topic is None:
        return None
    if world.random.random() >= 0.8:
        others = [one for one in world.restart_broker() if one is not topic]
        for one in others:
            if not world.full():
                world.load(one)
        return f"the broker of {topic.name} dies, is started again, and loads {len(others)} others"
    world.unload(topic)
    return f"{topic.name} is unloaded"


def roll(world: World) -> str | None:
    topic = _pick(world, lambda t: t.loaded and not t.terminated and not t.shadow_of)
    if topic is None or world.full():
        return None
    if topic.ledgers:
        world.restate(topic.ledgers[-1], LedgerState.CLOSED)
    topic.ledgers.append(world.make("data", topic.name, state=LedgerState.OPEN))
    world.store(topic)
    return f"{topic.name} rolls over to ledger {topic.ledgers[-1]}"


def trim(world: World) -> str | None:
    topic = _pick(world, lambda t: t.loaded and len(t.ledgers) > 1)
    if topic is None:
        return None
    count = world.random.randint(1, len(topic.ledgers) - 1)
    gone, topic.ledgers = topic.ledgers[:count], topic.ledgers[count:]
    world.store(topic)
    for ledger in gone:
        context = topic.offloaded.pop(ledger, None)
        world.drop(ledger)
        world.drop_copy(context, ledger)
    return f"{topic.name} trims {gone}"


def offload(world: World) -> str | None:
    topic = _pick(world, lambda t: len(t.ledgers) > 1)
    if topic is None:
        return None
    ledger = world.random.choice(topic.ledgers[:-1])
    if (known := topic.offloaded.get(ledger)) and known.complete:
        return None
    complete = world.random.random() < 0.7
    deleted = complete and world.random.random() < 0.6 and not world.tiered  # then it is ours to release
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
    return f"{topic.name} offloads {ledger}: complete {complete}, BookKeeper copy deleted {deleted}"


def remember(world: World) -> str | None:
    """A ledger whose compare-and-set into the topic is still pending: only the broker knows it."""
    topic = _pick(world, lambda t: t.loaded and not t.memory)
    if topic is None or world.full():
        return None
    kind = world.random.choice(["data", "data", "cursor"])
    ledger = world.make(kind, topic.name, cursor="s" if kind == "cursor" else "")
    topic.memory.add(ledger)
    return f"the broker of {topic.name} has {ledger} in memory alone"


def store_memory(world: World) -> str | None:
    topic = _pick(world, lambda t: t.loaded and bool(t.memory))
    if topic is None:
        return None
    ledger = topic.memory.pop()
    if world.model.ledgers[ledger].kind == "data" and world.random.random() < 0.7:
        topic.ledgers.insert(max(0, len(topic.ledgers) - 1), ledger)
        topic.ledgers.sort()
        topic.moved = topic.pinned = True  # what no scan has seen named must stay where the next one sees it
        world.store(topic)
        return f"{topic.name} lists {ledger} at last"
    return f"the broker of {topic.name} forgets {ledger}"


def move_cursor(world: World) -> str | None:
    topic = _pick(world, lambda t: bool(t.ledgers)) or _pick(world)
    if topic is None:
        return None
    name = world.random.choice([*topic.cursors, CURSORS[0], CURSORS[1], CURSORS[2]])
    cursor = topic.cursors.setdefault(name, Cursor())
    cursor.at = max(world.stands(cursor), world.random.choice(topic.ledgers or [0]))
    old = cursor.ledger
    if old >= 0 and world.model.ledgers[old].state is LedgerState.OPEN and world.reader.payloads.get(old):
        entry = world.position_entry(cursor.compacted if name == COMPACTION else None, cursor.at)
        world.reader.payloads[old].append(entry)
        return f"cursor {name} of {topic.name} moves on to {cursor.at}"
    if world.full() or name == COMPACTION:
        return None
    state = LedgerState.OPEN if topic.loaded else LedgerState.CLOSED
    cursor.ledger = world.make(
        "cursor", topic.name, cursor=name, state=state, entries=[world.position_entry(at=cursor.at)]
    )
    world.store_cursor(topic, name)
    world.drop(old)
    return f"cursor {name} of {topic.name} moves to {cursor.ledger}, it stands in {cursor.at}"


def close_cursor(world: World) -> str | None:
    topic = _pick(world, lambda t: bool(t.cursors or t.readers))
    if topic is None:
        return None
    name = world.random.choice(sorted([*topic.cursors, *topic.readers]))
    if name in topic.readers:
        return f"{name} of {topic.name} is gone, and leaks {sorted(topic.readers.pop(name).values())}"
    cursor = topic.cursors[name]
    if world.random.random() < 0.5:
        old, cursor.at = cursor.ledger, world.stands(cursor)
        cursor.ledger, cursor.noted = -1, cursor.compacted
        world.store_cursor(topic, name)
        world.drop(old)
        return f"cursor {name} of {topic.name} is closed"
    del topic.cursors[name]
    path = f"{world.topic_path(topic.name)}/{encode_name(name)}"
    if world.zookeeper.stat(path) is not None:
        world.remove(path)
    for ledger in (cursor.ledger, cursor.compacted, *cursor.buckets.values()):
        world.drop(ledger)
    return f"cursor {name} of {topic.name} is deleted"


def start_compaction(world: World) -> str | None:
    topic = _pick(world, lambda t: t.loaded and t.compacting is None)
    if topic is None or world.full():
        return None
    if COMPACTION not in topic.cursors:
        topic.cursors[COMPACTION] = Cursor()
        world.store_cursor(topic, COMPACTION)
    topic.compacting = world.make("compacted", topic.name)
    return f"a compaction of {topic.name} writes {topic.compacting}"


def end_compaction(world: World) -> str | None:
    topic = _pick(world, lambda t: t.loaded and t.compacting is not None)
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
    return f"the compacted ledger of {topic.name} is {new} now, before it was {old}"


READERS = ("reader", "x+y")
"""Non-durable subscriptions; no durable one has their names."""


def snapshot(world: World) -> str | None:
    topic = _pick(world, lambda t: t.loaded and bool(t.ledgers) and not t.shadow_of)
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
        return f"the snapshot {ledger} of {name} of {topic.name} is in the broker's memory alone"
    cursor.buckets[span] = ledger
    world.store_cursor(topic, name)
    return f"snapshot {ledger} of {name} of {topic.name}"


def _snapshot_in_memory(
    world: World, topic: ModelTopic, name: str, span: tuple[int, int], *, listed: bool
) -> str | None:
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
    return f"snapshot {ledger} of {name} of {topic.name}, which is not durable{'' if listed else ' and not listed'}"


def merge_snapshots(world: World) -> str | None:
    topic = _pick(world, lambda t: any(c.buckets for c in t.cursors.values()))
    if topic is None:
        return None
    name = next(n for n, c in sorted(topic.cursors.items()) if c.buckets)
    span, ledger = topic.cursors[name].buckets.popitem()
    world.store_cursor(topic, name)
    world.drop(ledger)
    return f"snapshot {ledger} {span} of {topic.name} is done with"


def begin_schema(world: World) -> str | None:
    """A schema version: its ledger is there hours or days before the locator names it."""
    topic = _pick(world)
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
    return f"schema {schema_id} gets ledger {ledger}, named in {after // 60_000} minutes"


def delete_schema(world: World) -> str | None:
    ids = sorted(s for s in world.model.schemas if world.zookeeper.stat(f"/schemas/{s}") is not None)
    pending = {sid for sid, _ in world.model.pending.values()}
    ids = [s for s in ids if s not in pending and f"/schemas/{s}" not in world.corrupted]
    if not ids:
        return None
    schema_id = world.random.choice(ids)
    world.remove(f"/schemas/{schema_id}")
    for ledger in world.model.schemas.pop(schema_id):
        world.drop(ledger)
    return f"schema {schema_id} is deleted"


def _version(world: World, topic: ModelTopic) -> int:
    stat = world.zookeeper.stat(world.topic_path(topic.name))
    return stat.version if stat else 0


def delete_topic(world: World) -> str | None:
    topic = _pick(world)
    if topic is None:
        return None
    if world.random.random() < 0.4 and not world.full():
        return recreate(world, topic, loads=world.random.random() < 0.6)
    world.delete_topic(topic)
    return f"{topic.name} is deleted"


def recreate(world: World, topic: ModelTopic, *, loads: bool) -> str:
    """Its z-node comes to the version that the old one had, if its ledgers are gone: a broker deletes those first.

    Where the model keeps one, because a shadow topic reads it, the versions differ: nothing else tells the two apart.
    """
    before = _version(world, topic)
    world.delete_topic(topic)
    world.model.topics[topic.name] = fresh = ModelTopic(topic.name)
    world.store(fresh)
    if loads:
        world.load(fresh)
    if any(map(world.exists, topic.ledgers)):
        if _version(world, fresh) == before:
            world.store(fresh)
    elif topic.ledgers:
        for _ in range(_version(world, fresh), before):
            world.store(fresh)
    return f"{topic.name} is deleted and created again"


def delete_namespace(world: World) -> str | None:
    topic = _pick(world)
    if topic is None:
        return None
    namespace = topic.name.namespace
    inside = [t for t in world.model.topics.values() if t.name.namespace == namespace]
    if any(t.away or not _whole(world, t) for t in inside):
        return None
    for one in inside:
        world.delete_topic(one)
    for path in (f"/admin/policies/{namespace}", f"/managed-ledgers/{namespace}"):
        if world.zookeeper.stat(path) is not None:
            world.remove(path)
    return f"namespace {namespace} is deleted"


def collect_garbage(world: World) -> str | None:
    gone = world.collect_garbage()
    return f"bookies collect {gone} ledgers" if gone else None


def shadow(world: World) -> str | None:
    topic = _pick(world, lambda t: bool(t.ledgers) and not t.shadow_of)
    if topic is None:
        return None
    name = Topic(topic.name.namespace, f"shadow of {topic.name.local}")
    if name in world.model.topics:
        return None
    made = ModelTopic(name, list(topic.ledgers), dict(topic.offloaded), shadow_of=str(topic.name), moved=topic.pinned)
    made.unseen = True
    world.model.topics[name] = made
    world.store(made)
    return f"{name} shadows {topic.name}"


def rename(world: World) -> str | None:
    """An operator moves a resting topic's z-nodes to another name: the ledgers' tags stay as they were."""
    topic = _pick(world, lambda t: not t.loaded and not t.moved and not t.shadow_of and bool(t.ledgers))
    if topic is None or any(t.moved for t in world.model.topics.values()):
        return None
    name = Topic(topic.name.namespace, f"moved {topic.name.local}")
    old = topic.name
    del world.model.topics[old]
    topic.name, topic.moved = name, True
    world.model.topics[name] = topic
    world.store(topic)
    for cursor in topic.cursors:
        world.store_cursor(topic, cursor)
    world.remove(world.topic_path(old))
    return f"{old} is called {name} now"


def go_away(world: World) -> str | None:
    """An operator takes a resting topic's z-nodes away and restores them within twenty hours."""
    topic = _pick(world, lambda t: not t.loaded and not t.moved and bool(t.ledgers))
    if topic is None or topic.unseen:
        return None
    topic.away = topic.moved = True
    world.vanish(topic)
    after = world.random.choice([HOUR, 5 * HOUR, 20 * HOUR])
    world.model.returns.append((world.time.now_ms() + after, topic.name))
    return f"{topic.name} is gone for {after // HOUR} hours"


def leak(world: World) -> str | None:
    """A ledger that nobody ever stored a reference to."""
    if world.full():
        return None
    topic = world.random.choice(TOPICS)
    kind = world.random.choice(["data", "data", "data", "cursor", "schema", "compacted", "bucket"])
    cursor = world.random.choice(CURSORS[:2]) if kind in ("cursor", "bucket") else ""
    span = (1, world.random.choice([1, 2, 30])) if kind == "bucket" else (0, 0)
    state = world.random.choice([LedgerState.CLOSED] * 12 + [LedgerState.IN_RECOVERY, LedgerState.OPEN])
    owner = topic.partitioned_parent if kind == "schema" else topic
    entries = [world.schema_entry()] if kind == "schema" else [b"x" * 10]
    ledger = world.make(kind, owner, cursor=cursor, span=span, state=state, entries=entries)
    return f"{kind} ledger {ledger} of {owner} leaks ({state.name})"


def foreign(world: World) -> str | None:
    """Another application, or another Pulsar cluster that nobody declared, on the same BookKeeper."""
    if world.full():
        return None
    if world.model.ledgers and world.random.random() < 0.6:
        ledger = world.random.choice(sorted(world.model.ledgers))
        topic = world.random.choice([world.model.ledgers[ledger].topic, ELSEWHERE])
        world.attempts_elsewhere.add(world.upload(topic, ledger, "pulsar-two"))
        return f"another system offloads its own {ledger} of {topic}"
    kind = world.random.choice(["foreign", "data"])
    ledger = world.make(kind, ELSEWHERE)
    world.model.elsewhere[ledger] = "another system on the same BookKeeper needs it"
    return f"another system writes {ledger}"


def declared(world: World) -> str | None:
    """A declared cluster on the same BookKeeper, some of its topics named as ours."""
    if world.full() or WEST not in world.roots:
        return None
    other = world.roots[WEST]
    topic = world.random.choice([TOPICS[0], TOPICS[4], ELSEWHERE])
    ledger = world.make("data", topic)
    mine = [i for i, why in world.model.elsewhere.items() if why == f"{topic} of another cluster"]
    world.model.elsewhere[ledger] = f"{topic} of another cluster"
    other.topic(topic, [*mine, ledger])
    world.declared.add(ledger)
    return f"{topic} of the other cluster writes {ledger}"


def settle_recovery(world: World) -> str | None:
    busy = [i for i in sorted(world.model.busy) if world.exists(i)]
    if not busy:
        return None
    ledger = world.random.choice(busy)
    world.model.busy.discard(ledger)
    world.restate(ledger, LedgerState.CLOSED)
    return f"ledger {ledger} is closed again"


def _some_leak(world: World, fits: Callable[[int], bool] = lambda ledger: True) -> int | None:
    """A leaked ledger whose z-node is not corrupted, if there is one."""
    leaks = [i for i in world.leaks() if world.path(i) not in world.corrupted and fits(i)]
    return world.random.choice(leaks) if leaks else None


def recover(world: World) -> str | None:
    """Somebody opens a leaked ledger for recovery: its z-node changes and it must be left alone."""
    ledgers, busy = world.model.ledgers, world.model.busy
    ledger = _some_leak(world, lambda i: ledgers[i].state is LedgerState.CLOSED and i not in busy)
    if ledger is None:
        return None
    busy.add(ledger)
    world.restate(ledger, LedgerState.IN_RECOVERY)
    return f"ledger {ledger} is opened for recovery"


def replicate(world: World) -> str | None:
    """Autorecovery gives a leaked ledger another bookie: only the version of its z-node changes."""
    ledger = _some_leak(world)
    if ledger is None:
        return None
    world.restate(ledger, world.model.ledgers[ledger].state)
    return f"the z-node of {ledger} is written again"


def broker_deletes(world: World) -> str | None:
    """A broker that comes back deletes a leaked ledger itself, as one of another version would."""
    leaks = world.leaks()
    if not leaks:
        return None
    ledger = world.random.choice(leaks)
    world.remove(world.path(ledger))
    return f"a broker deletes {ledger}"


def revive(world: World) -> str | None:
    """An operator re-attaches a leaked ledger to its owner."""
    live = world.live()
    found: list[tuple[int, ModelTopic | None]] = []
    for ledger in world.leaks():
        made = world.model.ledgers[ledger]
        topic = world.model.topics.get(made.topic)
        if made.kind == "schema":
            if made.topic.schema_id not in {sid for sid, _ in world.model.pending.values()}:
                found.append((ledger, None))
        elif topic is None and len(world.model.topics) < 8:
            found.append((ledger, ModelTopic(made.topic)))
        elif topic and not topic.loaded and not topic.away and not topic.shadow_of and _whole(world, topic):
            found.append((ledger, topic))
    if not found:
        return None
    queued = world.queued()
    found = [one for one in found if one[0] in queued] or found
    ledger, topic = world.random.choice(found)
    made = world.model.ledgers[ledger]
    assert ledger not in live
    if made.kind == "schema":
        schema_id = made.topic.schema_id
        if f"/schemas/{schema_id}" in world.corrupted:
            return None
        world.model.schemas.setdefault(schema_id, []).insert(0, ledger)
        world.schema(schema_id, world.model.schemas[schema_id])
        return f"schema {schema_id} names {ledger} again"
    assert topic is not None
    topic.moved = topic.pinned = True  # what two scans found free is not taken away again before the next one
    if made.topic not in world.model.topics:
        world.model.topics[made.topic] = topic
        world.store(topic)
    if made.kind == "data":
        topic.ledgers = sorted([*topic.ledgers, ledger])
        world.store(topic)
    elif made.kind == "compacted":
        cursor = topic.cursors.setdefault(COMPACTION, Cursor())
        cursor.compacted = cursor.noted = ledger
        cursor.ledger = -1
        world.store_cursor(topic, COMPACTION)
    else:
        cursor = topic.cursors.setdefault(made.cursor, Cursor())
        if made.kind == "cursor":
            cursor.ledger = ledger
        else:
            cursor.buckets[made.span] = ledger
        world.store_cursor(topic, made.cursor)
    return f"{made.topic} has {ledger} again"


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
    (3, settle_recovery),
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


def happen(world: World, acts: Sequence[tuple[int, Act]]) -> str:
    """One act by its weight; another if it has no target."""
    for _ in range(5):
        act = world.random.choices([a for _, a in acts], [w for w, _ in acts])[0]
        done = act(world)
        if done:
            return done
    return "nothing happens"
