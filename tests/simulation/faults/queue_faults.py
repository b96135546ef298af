"""Somebody, or something, is at the queue.

Belongs here: messages that are doubled, late, out of order, forged, poisoned, and too many. Not here: the queue's own
session (``world/queue.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from uuid import UUID

from pulsar_lifecycle.formats.deletion_message import encode_deletion_message
from tests.kit.simulated.offloaded import copy_message
from tests.simulation.world.model import HOUR
from tests.simulation.world.world import World

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
