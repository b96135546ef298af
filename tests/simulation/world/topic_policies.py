"""Policies of topics, in ``__change_events`` of their namespace, as brokers write them, beside its schema.

Belongs here: writing an event. Not here: what all events come to, and what brokers do by that (``policies.py``), who
sets policies (``operators/retaining.py``).
"""

from __future__ import annotations

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from tests.kit.simulated.topic_policies import event, schema_entry
from tests.simulation.world.model import ModelTopic, PolicyEvent
from tests.simulation.world.policies import Said, events_of
from tests.simulation.world.targets import is_whole
from tests.simulation.world.world import World

ROLLS = 0.2
"""How often an event begins another ledger."""


def say(world: World, topic: Topic, policies: Said | None, *, everywhere: bool) -> bool:
    """A broker writes the policies of a topic, or their deletion; False if it cannot.

    The ledger may be full: it is closed then, and the event is in another one.
    """
    name = events_of(topic.namespace)
    events = world.model.topics.get(name) or _made(world, name)
    if events is None or not is_whole(world, events) or not events.ledgers:
        return False
    last = events.ledgers[-1]
    rolls = not world.exists(last) or world.model.ledgers[last].state is not LedgerState.OPEN
    rolls = rolls or (world.random.random() < ROLLS and not world.full())
    if world.path(last) in world.corrupted:
        return False
    entry = event(topic.partitioned_parent, policies, everywhere=everywhere)
    if rolls:
        world.restate(last, LedgerState.CLOSED)
        last = world.make("data", name, state=LedgerState.OPEN, entries=(entry,))
        events.ledgers.append(last)
        world.store(events)
    else:
        world.reader.payloads[last].append(entry)
        world.model.ledgers[last].entries += (entry,)
    events.said.append(PolicyEvent(last, topic.partitioned_parent, everywhere, policies))
    return True


def _made(world: World, name: Topic) -> ModelTopic | None:
    """A new topic of events; None where its schema cannot be written."""
    if f"/schemas/{name.schema_id}" in world.corrupted:
        return None
    nothing = (event(Topic(name.namespace, "nothing"), {}),)
    events = world.model.topics[name] = ModelTopic(name, apart=True, moved=True, pinned=True, first=nothing)
    events.ledgers.append(world.make("data", name, state=LedgerState.OPEN, entries=nothing))
    world.model.schemas[name.schema_id] = [world.make("schema", name, entries=[schema_entry(name)])]
    world.store(events)
    world.store_schema(name.schema_id)
    return events
