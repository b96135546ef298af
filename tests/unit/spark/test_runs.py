"""What a run refuses before it looks at anything but its evidence, and how a topic's namespace is found."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.errors import Refused
from pulsar_lifecycle.plan.coverage import Epoch
from pulsar_lifecycle.spark import runs, sources

HOUR = 3_600_000
EPOCH = Epoch("e1", "c", "fp", 100 * HOUR, 100 * HOUR + 1, (), 1, 1, ())


@pytest.mark.parametrize("now", [99 * HOUR, 124 * HOUR + 1])
def test_a_scan_from_the_future_or_of_long_ago_is_no_evidence(now: int) -> None:
    with pytest.raises(Refused, match="run the job scan again"):
        runs.refuse_old_evidence(EPOCH, now, 24 * HOUR)


def test_a_scan_of_today_is_evidence() -> None:
    runs.refuse_old_evidence(EPOCH, 124 * HOUR, 24 * HOUR)


@pytest.mark.parametrize(
    ("topic", "namespace"),
    [
        ("persistent://acme/orders/placed", "acme/orders"),
        ("persistent://acme/dc1/orders/placed", "acme/dc1/orders"),
        ("persistent://acme/dc1/orders/placed/by/phone", "acme/dc1/orders"),
    ],
)
def test_a_loaded_topic_is_sought_in_its_own_namespace(topic: str, namespace: str) -> None:
    assert sources._namespace_of("topic", topic) == namespace  # pyright: ignore[reportPrivateUsage]
