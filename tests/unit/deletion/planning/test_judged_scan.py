"""A scan as one function: its steps, and what it says of brokers that do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.errors import AccessDenied, Failed, LifecycleError
from pulsar_lifecycle.metastore.reading import TABLES
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.gaps import GapCode
from tests.kit.fakes.lake import FakeLake
from tests.kit.simulated.cluster import SimulatedCluster
from tests.kit.simulated.connections import where_of
from tests.kit.simulated.pipeline import Policy, scan, settings_of

TOPIC = Topic.parse("persistent://acme/orders/placed")


@pytest.mark.parametrize("topics", [0, 1])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Failed("GET /admin/v2/broker-stats/topics: timed out"), GapCode.BROKERS_UNANSWERED),
        (AccessDenied("GET /admin/v2/broker-stats/topics: 403"), GapCode.BROKERS_DENIED),
    ],
)
def test_brokers_that_do_not_answer_are_a_gap_with_topics_or_without(
    topics: int, error: LifecycleError, code: GapCode
) -> None:
    cluster = SimulatedCluster()
    if topics:
        cluster.topic(TOPIC)
    assert scan(cluster).epoch.covered
    cluster.admin.failure = error
    (gap,) = scan(cluster).epoch.gaps
    assert gap.code is code


def test_a_scan_lists_bookkeeper_first_and_reads_references_second() -> None:
    steps: list[str] = []

    @contextmanager
    def step(name: str) -> Iterator[None]:
        steps.append(name)
        yield

    lake = FakeLake()
    epoch = judged_scan.scan(where_of(SimulatedCluster(), settings_of(Policy()), lake), "run", step)
    assert steps == [*TABLES, "ledger_references", "coverage", "findings"]
    assert steps[0] == "bookkeeper_ledgers"
    assert lake.epochs() == [epoch]
    assert lake.begun_by(epoch.epoch_id) == "run"
