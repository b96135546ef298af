"""What indexes take: one for each subscription, and one that they share, built by the broker's settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.stored.index_capacity import Capacity, capacity
from pulsar_lifecycle.delayed_index.stored.subscription import StoredSubscription
from pulsar_lifecycle.formats.cursor import MessageRange
from pulsar_lifecycle.model import Position
from tests.kit.delayed.index_scene import COUNT, NOW, entries, subscription

LEDGERS = (3, 5, 7, 9)
SETTINGS = DelayedIndexSettings(
    delayed_delivery_min_index_count_per_bucket=20, delayed_delivery_max_indexes_per_bucket_snapshot_segment=10
)


def of(*subscriptions: StoredSubscription) -> Capacity:
    named = [replace(one, cursor=f"s{number}") for number, one in enumerate(subscriptions)]
    return capacity(named, entries(*LEDGERS), SETTINGS, NOW)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_alike_subscriptions_share_all_of_it(count: int) -> None:
    one, found = of(subscription()), of(*[subscription()] * count)
    assert (found.subscriptions, found.messages) == (count, count * COUNT * len(LEDGERS))
    assert found.each.stored == count * one.each.stored
    assert found.each.memory == count * one.each.memory
    assert found.shared == one.each
    assert one.each.stored > 10 * 3 * COUNT


def test_one_that_is_ahead_costs_what_it_acknowledged_alone() -> None:
    ahead = replace(subscription(), position=Position(7, COUNT - 1))
    single = replace(subscription(), ranges=(MessageRange(Position(3, 9), Position(3, 29)),))
    found = of(ahead, subscription(), single)
    assert found.messages == COUNT + 4 * COUNT + 4 * COUNT - 20
    alone = of(subscription()).each
    assert found.shared.stored == alone.stored
    assert alone.memory <= found.shared.memory < alone.memory + 200
    assert found.shared.memory < found.each.memory


def test_nothing_is_delayed_and_nothing_taken() -> None:
    done = replace(subscription(), position=Position(11, 0))
    found = of(done, done)
    assert found.messages == 0
    assert (found.each.stored, found.shared.stored) == (0, 0)
