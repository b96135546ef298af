"""Simulated brokers that merge buckets: what their merges lose, and that nothing gets lost by that."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from tests.simulation.operators.delaying import BROKERS, MERGED_ABOVE, MERGED_ABOVE_FEW
from tests.simulation.world.delayed.delayed_brokers import MOST, DelayedBrokers
from tests.simulation.world.delayed.merging_tracker import MergingTracker
from tests.simulation.world.model import HOUR, ModelTopic
from tests.simulation.world.world import World


def merging() -> tuple[DelayedBrokers, ModelTopic, MergingTracker]:
    """A topic whose only subscription has a merge under way: its snapshot is written, and nothing else done."""
    for seed in range(100):
        world = World(Random(seed))
        settings = DelayedIndexSettings.from_broker_conf(BROKERS | MERGED_ABOVE)
        brokers = DelayedBrokers(world, settings, Counter())
        brokers.on_early = pytest.fail
        brokers.grow(Random(seed), "due")
        (topic,) = brokers.topics()
        trackers = [one.tracker for one in brokers.dispatchers.values()]
        if len(trackers) == 1 and isinstance(trackers[0], MergingTracker) and trackers[0].merge:
            return brokers, topic, trackers[0]
    raise AssertionError("no seed has a merge under way")


def delivered(brokers: DelayedBrokers, topic: ModelTopic) -> int:
    """All that comes once everything is due."""
    brokers.world.wait_ms(MOST + HOUR)
    found = 0
    while came := brokers.deliver(topic):
        found += came
    return found


def test_a_merged_snapshot_lacks_what_its_broker_had_loaded_and_it_comes_all_the_same() -> None:
    brokers, topic, tracker = merging()

    (lost,) = brokers.lost.values()
    assert len(lost) >= 2
    assert lost < set(topic.due)
    assert tracker.number_of_delayed_messages == len(topic.due)
    assert delivered(brokers, topic) == len(topic.due)


@pytest.mark.parametrize("steps", range(11))
def test_at_whatever_step_of_a_merge_a_broker_dies_each_message_comes_once(steps: int) -> None:
    brokers, topic, tracker = merging()
    for _ in range(steps):
        tracker.step(Random(1))
    brokers.world.unload(topic, graceful=False)
    brokers.going_on.clear()
    brokers.load(topic)

    assert delivered(brokers, topic) == len(topic.due)
    assert not brokers.left(topic, next(iter(topic.cursors)))


def test_a_merge_names_its_snapshot_before_the_old_ones_go_and_their_keys_after_them() -> None:
    brokers, topic, tracker = merging()
    (cursor,) = topic.cursors.values()
    (merged,) = brokers.lost
    old = dict(cursor.buckets)

    def there() -> tuple[bool, int, int]:
        kept = [span for span in old if span in cursor.buckets]
        return merged in cursor.buckets.values(), len(kept), sum(brokers.world.exists(one) for one in old.values())

    states = [there()]
    while tracker.step(Random(1)):
        states.append(there())

    assert states[:4] == [
        (False, len(old), len(old)),
        (True, len(old), len(old)),
        (True, len(old), len(old) - 1),
        (True, len(old) - 1, len(old) - 1),
    ]
    assert states[-1] == (True, len(old) - 4, len(old) - 4)


def test_a_merge_that_throws_leaves_what_follows_until_the_topic_is_loaded_anew() -> None:
    world = World(Random(1))
    brokers = DelayedBrokers(world, DelayedIndexSettings.from_broker_conf(BROKERS | MERGED_ABOVE_FEW), Counter())
    brokers.on_early, brokers.throws = pytest.fail, True
    brokers.grow(Random(1), "due")
    (topic,) = brokers.topics()
    assert brokers.counts["merges that threw"]
    if topic.loaded:
        world.unload(topic)

    brokers.load(topic)
    came = delivered(brokers, topic)
    left = sum(len(brokers.left(topic, name)) for name in topic.cursors)
    assert left
    assert came + left == len(topic.due) * len(topic.cursors)

    world.unload(topic)
    brokers.load(topic)
    assert not any(brokers.left(topic, name) for name in topic.cursors)
