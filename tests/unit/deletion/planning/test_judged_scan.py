"""A scan as one function: its steps, and what it says of brokers that do not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.errors import AccessDenied, Failed, LifecycleError
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.metastore.reading import TABLES
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.gaps import GapCode
from tests.kit.fakes.lake import FakeLake
from tests.kit.simulated.cluster import SimulatedCluster, compacted_tags, cursor_tags
from tests.kit.simulated.connections import where_of
from tests.kit.simulated.pipeline import Policy, scan, settings_of

TOPIC = Topic.parse("persistent://acme/orders/placed")
MISSING = 999


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


@pytest.mark.parametrize("begun", [True, False])
def test_a_compacted_ledger_that_only_the_z_node_of_the_cursor_still_names_is_missed_by_nobody(begun: bool) -> None:
    """Brokers name the next one in the cursor's ledger alone, and delete this one; before, they go by the z-node."""
    cluster = SimulatedCluster()
    cluster.topic(TOPIC)
    newest = cluster.ledger(compacted_tags(TOPIC))
    entries = [cluster.position_entry(newest)] if begun else []
    positions = cluster.ledger(cursor_tags(TOPIC, "__compaction"), state=LedgerState.OPEN, entries=entries)
    cluster.cursor(TOPIC, "__compaction", ledger=positions, compacted=MISSING)
    cluster.wait(8 * 24)
    found = scan(cluster)
    assert found.epoch.gaps == ()
    assert MISSING in found.refs.needed
    assert found.finding(MISSING) == (None if begun else Finding.DANGLING)


def test_a_compacted_ledger_that_the_cursor_ledger_names_is_missed() -> None:
    cluster = SimulatedCluster()
    cluster.topic(TOPIC)
    entries = [cluster.position_entry(MISSING)]
    positions = cluster.ledger(cursor_tags(TOPIC, "__compaction"), state=LedgerState.OPEN, entries=entries)
    cluster.cursor(TOPIC, "__compaction", ledger=positions)
    assert scan(cluster).finding(MISSING) == Finding.DANGLING


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
