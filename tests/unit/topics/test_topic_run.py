"""A run's budget of unloads, whole and in shares."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics.topic_run import unloads_of
from pulsar_lifecycle.topics.unloads import Unloads
from tests.kit.fakes.clock import FakeClock


@pytest.mark.parametrize(("limit", "shares", "each"), [(500, 1, 500), (500, 3, 166), (2, 5, 1), (0, 5, 0), (0, 1, 0)])
def test_a_share_of_unloads_is_at_least_one_unless_the_run_has_none(limit: int, shares: int, each: int) -> None:
    settings = Settings.model_validate(
        {
            "cluster": "c",
            "zookeeper": {"hosts": "127.0.0.1:1"},
            "pulsar": {"admin_url": "http://127.0.0.1:1", "service_url": "pulsar://127.0.0.1:1"},
            "lake": {"path": "/lake"},
            "trimming": {"max_unloads": limit},
        }
    )
    unloads = unloads_of(settings, FakeClock(), shares)

    assert unloads.lacks(each + 1) is not None
    assert each == 0 or unloads.lacks(each) is None


def test_what_is_kept_for_a_topic_is_its_own_until_it_is_given_back() -> None:
    one, other = (Topic.parse(f"persistent://a/b/{name}") for name in "cd")
    unloads = Unloads(5, 3, FakeClock())
    shares = [unloads.share(2), unloads.share(2)]
    assert shares[0].keep(one, 2)
    assert not shares[1].keep(other, 2)
    assert (unloads.lacks(2) is None, unloads.lacks(2, one) is None) == (False, True)
    assert [shares[1].take(other), unloads.take(other), shares[1].take(one)] == [True, False, True]
    shares[0].give_back(one)
    assert [unloads.take(other), unloads.take(other)] == [True, False]
