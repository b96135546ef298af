"""Where `inspect topic` says that a cursor stands; over fakes."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.inspect.decoded.decoded_topic import DecodedCursor, DecodedTopic, decoded_topic
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Topic
from tests.kit.simulated.cluster import SimulatedCluster, cursor_tags

TOPIC, OTHER = (Topic.parse(f"persistent://acme/orders/{name}") for name in ("placed", "other"))


@pytest.mark.parametrize(
    ("owner", "written", "wrong"), [(TOPIC, True, False), (TOPIC, False, True), (OTHER, True, True)]
)
def test_a_cursor_ledger_without_entries_or_of_another_topic_is_an_error(
    owner: Topic, written: bool, wrong: bool
) -> None:
    cluster = SimulatedCluster()
    cluster.topic(TOPIC, [cluster.ledger(None)])
    entries = [cluster.position_entry(at=1)] if written else []
    cluster.cursor(
        TOPIC, "s", ledger=cluster.ledger(cursor_tags(owner, "s"), state=LedgerState.CLOSED, entries=entries)
    )
    found = decoded_topic(
        cluster.open_store(), cluster.reader, Brokers({}, 0), TOPIC, cluster.clock.now_ms(), "/ledgers"
    )
    assert isinstance(found, DecodedTopic)
    (cursor,) = found.cursors
    assert isinstance(cursor, DecodedCursor)
    assert (isinstance(cursor.unread, CorruptFormat), cursor.position.entry is None) == (wrong, wrong)
