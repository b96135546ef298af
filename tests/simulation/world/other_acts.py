"""What operators of a cluster, other systems and BookKeeper do: topics deleted and moved, leaks, recoveries.

Belongs here: one function per act, as in ``broker_acts.py``. Not here: faults of the control plane (``faults``).
"""

from __future__ import annotations

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from tests.kit.simulated.cluster import CURSORS
from tests.simulation.world.model import COMPACTION, ELSEWHERE, HOUR, TOPICS, Cursor, ModelTopic
from tests.simulation.world.targets import Did, is_whole, pick, some_leak, version_of
from tests.simulation.world.world import World

WEST = "west"
"""The declared cluster on the same BookKeeper, where there is one."""


def delete_topic(world: World) -> Did | None:
    topic = pick(world)
    if topic is None or (
        topic.pinned and any(t.unscanned and t.shadow_of == str(topic.name) for t in world.model.topics.values())
    ):
        return None  # what was put back in its list by hand, and is its shadow's too, no scan has seen named
    if world.random.random() < 0.4 and not world.full():
        return recreate(world, topic, loads=world.random.random() < 0.6)
    world.delete_topic(topic)
    return Did(f"{topic.name} is deleted")


def recreate(world: World, topic: ModelTopic, *, loads: bool) -> Did:
    """Its z-node comes to the version that the old one had, if its ledgers are gone: a broker deletes those first.

    Where the model keeps one, because a shadow topic reads it, the versions differ: nothing else tells the two apart.
    """
    before = version_of(world, topic)
    world.delete_topic(topic)
    world.model.topics[topic.name] = fresh = ModelTopic(topic.name)
    world.store(fresh)
    if loads:
        world.load(fresh)
    if any(map(world.exists, topic.ledgers)):
        if version_of(world, fresh) == before:
            world.store(fresh)
    elif topic.ledgers:
        for _ in range(version_of(world, fresh), before):
            world.store(fresh)
    return Did(f"{topic.name} is deleted and created again", "F7")


def delete_namespace(world: World) -> Did | None:
    topic = pick(world)
    if topic is None:
        return None
    namespace = topic.name.namespace
    inside = [t for t in world.model.topics.values() if t.name.namespace == namespace]
    if any(t.away or t.apart or not is_whole(world, t) for t in inside):
        return None
    for one in inside:
        world.delete_topic(one)
    for path in (f"/admin/policies/{namespace}", f"/managed-ledgers/{namespace}"):
        if world.zookeeper.stat(path) is not None:
            world.remove(path)
    return Did(f"namespace {namespace} is deleted")


def collect_garbage(world: World) -> Did | None:
    gone = world.collect_garbage()
    return Did(f"bookies collect {gone} ledgers") if gone else None


def shadow(world: World) -> Did | None:
    topic = pick(world, lambda t: bool(t.ledgers) and not t.shadow_of)
    if topic is None:
        return None
    name = Topic(topic.name.namespace, f"shadow of {topic.name.local}")
    if name in world.model.topics:
        return None
    made = ModelTopic(name, list(topic.ledgers), dict(topic.offloaded), shadow_of=str(topic.name), moved=topic.pinned)
    made.unscanned = True
    world.model.topics[name] = made
    world.store(made)
    return Did(f"{name} shadows {topic.name}")


def rename(world: World) -> Did | None:
    """An operator moves a resting topic's z-nodes to another name: the ledgers' tags stay as they were."""
    topic = pick(world, lambda t: not t.loaded and not t.moved and not t.shadow_of and bool(t.ledgers))
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
    return Did(f"{old} is called {name} now")


def go_away(world: World) -> Did | None:
    """An operator takes a resting topic's z-nodes away and restores them within twenty hours."""
    topic = pick(world, lambda t: not t.loaded and not t.moved and bool(t.ledgers))
    if topic is None or topic.unscanned:
        return None
    topic.away = topic.moved = True
    world.vanish(topic)
    after = world.random.choice([HOUR, 5 * HOUR, 20 * HOUR])
    world.model.returns.append((world.time.now_ms() + after, topic.name))
    return Did(f"{topic.name} is gone for {after // HOUR} hours")


def leak(world: World) -> Did | None:
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
    return Did(f"{kind} ledger {ledger} of {owner} leaks ({state.name})")


def foreign(world: World) -> Did | None:
    """Another application, or another Pulsar cluster that nobody declared, on the same BookKeeper."""
    if world.full():
        return None
    if world.model.ledgers and world.random.random() < 0.6:
        ledger = world.random.choice(sorted(world.model.ledgers))
        topic = world.random.choice([world.model.ledgers[ledger].topic, ELSEWHERE])
        world.attempts_elsewhere.add(world.upload(topic, ledger, "pulsar-two"))
        return Did(f"another system offloads its own {ledger} of {topic}", "F21")
    kind = world.random.choice(["foreign", "data"])
    ledger = world.make(kind, ELSEWHERE)
    world.model.elsewhere[ledger] = "another system on the same BookKeeper needs it"
    return Did(f"another system writes {ledger}", "F21")


def declared(world: World) -> Did | None:
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
    return Did(f"{topic} of the other cluster writes {ledger}", "F21")


def end_recovery(world: World) -> Did | None:
    busy = [i for i in sorted(world.model.busy) if world.exists(i)]
    if not busy:
        return None
    ledger = world.random.choice(busy)
    world.model.busy.discard(ledger)
    world.restate(ledger, LedgerState.CLOSED)
    return Did(f"ledger {ledger} is recovered: it is closed")


def recover(world: World) -> Did | None:
    """Somebody opens a leaked ledger for recovery that nobody has closed: it must be left alone until it is closed.

    BookKeeper writes no z-node for one that is closed: to recover that is to read it.
    """
    ledgers, busy, written = world.model.ledgers, world.model.busy, world.reader.payloads
    ledger = some_leak(world, lambda i: ledgers[i].state is not LedgerState.CLOSED and i in written and i not in busy)
    if ledger is None:
        return None
    busy.add(ledger)
    world.restate(ledger, LedgerState.IN_RECOVERY)
    return Did(f"ledger {ledger} is opened for recovery")


def replicate(world: World) -> Did | None:
    """Autorecovery gives a leaked ledger another bookie: only the version of its z-node changes."""
    ledger = some_leak(world)
    if ledger is None:
        return None
    world.restate(ledger, world.model.ledgers[ledger].state)
    return Did(f"the z-node of {ledger} is written again")


def broker_deletes(world: World) -> Did | None:
    """A broker that comes back deletes a leaked ledger itself, as one of another version would."""
    leaks = world.leaks()
    if not leaks:
        return None
    ledger = world.random.choice(leaks)
    world.remove(world.path(ledger))
    return Did(f"a broker deletes {ledger}", "F22")


def revive(world: World) -> Did | None:
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
        elif topic is None or topic.loaded or topic.away or topic.apart or topic.shadow_of:
            continue
        elif is_whole(world, topic) and ledger not in topic.ledgers:  # else it lists the copy, and BookKeeper's leaked
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
        return Did(f"schema {schema_id} names {ledger} again", "F8")
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
    return Did(f"{made.topic} has {ledger} again", "F8")
