"""What is loaded with a topic, in a namespace of many."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.bundles.placing import AT_ONCE, LoadedAlong
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.topics.bundle_owner import Owners, loaded_by_request, unowned_along, would_be_loaded
from tests.kit.simulated.cluster import SimulatedCluster

MANY = 10 * AT_ONCE
NAMESPACE = "acme/orders"


def topic_of(local: str) -> Topic:
    return Topic.parse(f"persistent://{NAMESPACE}/{local}")


def test_of_a_namespace_of_many_topics_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each topic that a run loads or unloads is asked about: else a run would take as long as its square."""
    cluster = SimulatedCluster()
    names = [f"t-{number}" for number in range(MANY)]
    for name in (*names, CHANGE_EVENTS):
        cluster.put(f"{MANAGED_LEDGERS_ROOT}/{NAMESPACE}/persistent/{name}", b"")
    looked_at = list[str]()
    real = Topic.from_managed_ledger

    def counted(name: str) -> Topic:
        looked_at.append(name)
        return real(name)

    monkeypatch.setattr(Topic, "from_managed_ledger", counted)
    store, brokers, asked = cluster.open_store(), Brokers({}, 60_000), topic_of("t-0")
    along = next(loaded_by_request(store, brokers, asked))
    assert along == LoadedAlong(topic_of(CHANGE_EVENTS), along.other)
    assert list(unowned_along(store, brokers, asked)) == [topic_of(CHANGE_EVENTS)]
    assert would_be_loaded(store, brokers, Owners(), asked, [])
    assert len(looked_at) < MANY / 2
    everything = {topic_of(name) for name in names}
    assert would_be_loaded(store, brokers, Owners(), asked, everything) is None
    assert would_be_loaded(store, brokers, Owners(), asked, everything - {topic_of("t-7")}) is not None
