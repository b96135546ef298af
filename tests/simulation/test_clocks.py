"""A wrong clock of ours makes no two scans a day apart: the laws judge by the true time."""

from __future__ import annotations

from random import Random

import pytest

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.deletion_message import encode_deletion_message
from tests.simulation.laws.laws import Laws
from tests.simulation.operators.operator import Operator
from tests.simulation.settings import random_settings
from tests.simulation.world.model import HOUR, TOPICS, ModelTopic
from tests.simulation.world.world import World

DAY = 24 * HOUR


@pytest.mark.parametrize("skews", [(0, 72 * HOUR, 72 * HOUR), (0, -40 * DAY, 0), (0, 72 * HOUR, 0)])
def test_two_scans_an_hour_apart_confirm_nothing(skews: tuple[int, int, int]) -> None:
    """``skews``: of our clock at the first scan, at the second, and at the deletion run, which may have two more."""
    world = World(Random(1))
    laws = Laws(world)
    settings = next(s for s in map(random_settings, map(Random, range(100))) if s.bookkeeper.shared_with == ())
    operator = Operator(world, laws, Random(1), settings)
    world.store(world.model.topics.setdefault(TOPICS[0], ModelTopic(TOPICS[0])))
    leak = world.make("data", TOPICS[0])
    world.wait_ms(60 * DAY)
    laws.namespaces = {"acme/orders"}
    for skew in skews[:2]:
        world.clock.skew_ms = skew
        operator.scan()
        world.wait_ms(HOUR)
    world.open_queue()
    world.deletion_topics.publish(encode_deletion_message(world.message(leak)))
    number = world.deletion_topics.last
    at, due, raw, properties = world.deletion_topics.waiting[number]
    world.deletion_topics.waiting[number] = (at - 80 * DAY, due - 80 * DAY, raw, properties)
    world.clock.skew_ms = skews[2]
    for _ in range(2):
        try:
            said = operator.delete()
        except LifecycleError as refused:
            said = str(refused)
        assert world.exists(leak), said
        world.wait_ms(HOUR)
        operator.scan()
