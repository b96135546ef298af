"""A shadow topic whose property names nothing is one all the same, by its own z-node and by its partitioned topic's."""

from __future__ import annotations

import json

import pytest

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.metastore.topics import SHADOW_SOURCE, UNNAMED, partitioned_shadow_sources, source_named
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.snapshot import ShadowSources, shadow_source
from tests.kit.fakes.metadata_store import FakeZooKeeper

TOPIC = Topic.parse("persistent://t/n/shadow-partition-0")
PARTITIONED = "/admin/partitioned-topics/t/n/persistent/shadow"
NO_INFO = managed_ledger.decode(b"")


@pytest.mark.parametrize(("named", "expected"), [("persistent://t/n/source", "persistent://t/n/source"), ("", UNNAMED)])
def test_a_source_is_named_or_unnamed_and_never_empty(named: str, expected: str) -> None:
    servers = FakeZooKeeper()
    store = servers.session()
    store.create(
        PARTITIONED, json.dumps({"partitions": 1, "properties": {SHADOW_SOURCE: named}}).encode(), parents=True
    )
    assert source_named({SHADOW_SOURCE: named}) == expected
    assert source_named({}) is None
    assert partitioned_shadow_sources(store) == {PARTITIONED: expected}
    assert shadow_source(store, TOPIC, NO_INFO) == expected
    assert ShadowSources(partitioned=partitioned_shadow_sources(store)).of_partition(TOPIC) == expected
    assert shadow_source(store, Topic.parse("persistent://t/n/other-partition-0"), NO_INFO) == ""
