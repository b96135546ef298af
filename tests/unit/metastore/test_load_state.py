"""What a scan says of loaded topics: their brokers' word on compaction is a case of an enumeration, its error apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_lifecycle.errors import AccessDenied, LifecycleError, StoreError, Unavailable
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.metastore.load_state import Brokers, read_topics
from pulsar_lifecycle.metastore.topics import topic_units
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.topic_load import COMPACTS_NOT, CompactionStatus, LoadReason
from tests.kit.simulated.cluster import SimulatedCluster, data_tags

TOPIC = Topic.parse("persistent://acme/orders/placed")


def unanswered(topic: Topic) -> CompactionStatus:
    raise Unavailable("503")


@pytest.mark.parametrize(
    ("says", "found"),
    [
        (lambda topic: CompactionStatus.RUNNING, ("RUNNING", None)),
        (lambda topic: CompactionStatus.NOT_RUN, ("NOT_RUN", None)),
        (unanswered, ("UNKNOWN", "503")),
    ],
)
def test_a_broker_that_says_nothing_of_compaction_leaves_it_unknown_and_its_error_beside_it(
    says: Callable[[Topic], CompactionStatus], found: tuple[str, str | None]
) -> None:
    cluster = SimulatedCluster()
    cluster.topic(TOPIC, [cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN)])
    cluster.cursor(TOPIC, "__compaction")
    cluster.load(TOPIC)
    store = cluster.open_store()
    brokers = Brokers(cluster.admin.loaded_topics(), cluster.admin.stats_interval_ms())
    batches = read_topics(store, topic_units(store), brokers, {}, says, cluster.clock.now_ms(), "/ledgers")
    (row,) = [row for batch in batches for row in batch.to_pylist()]
    assert (row["compaction"], row["compaction_error"]) == found


def test_only_what_a_broker_says_can_let_a_compacted_ledger_go() -> None:
    assert {one for one in CompactionStatus if one in COMPACTS_NOT} == {
        CompactionStatus.NOT_RUN,
        CompactionStatus.SUCCESS,
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AccessDenied("403"), Code.BROKERS_DENIED),
        (Unavailable("refused"), LoadReason.BROKERS_UNANSWERED),
        (StoreError("500"), LoadReason.BROKERS_UNANSWERED),
    ],
)
def test_brokers_that_may_not_be_asked_are_told_from_those_that_do_not_answer(
    error: LifecycleError, code: Code | LoadReason
) -> None:
    assert Brokers.failed(error).unknown == Why(code, str(error))
