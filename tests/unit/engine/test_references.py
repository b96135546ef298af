"""What is said of references that are not in a z-node, when the ledger that should hold them answers oddly."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.engine.references import compaction_words
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.plan.orphans import Finding
from pulsar_lifecycle.plan.references import Word
from tests.simulation.cluster import SimulatedCluster, compacted_tags, cursor_tags
from tests.simulation.pipeline import scan

TOPIC = Topic.parse("persistent://acme/orders/placed")
TAGS = cursor_tags(TOPIC, "__compaction")


def words(cluster: SimulatedCluster, ledger: int) -> list[Word]:
    cursors = [(TOPIC.managed_ledger, "/path", ledger)]
    return compaction_words(cluster.open_store(), cluster.reader, cursors, "/ledgers")


def test_a_compaction_cursor_ledger_that_was_never_written_holds_no_reference() -> None:
    """Every bookie says NO_LEDGER of it; the topic's other orphans need not be kept for that."""
    cluster = SimulatedCluster()
    fresh = cluster.ledger(TAGS, state=LedgerState.OPEN, entries=[])
    assert words(cluster, fresh) == []
    named, leak = cluster.ledger(compacted_tags(TOPIC)), cluster.ledger(compacted_tags(TOPIC))
    cluster.topic(TOPIC)
    cluster.cursor(TOPIC, "__compaction", ledger=fresh, compacted=named)
    cluster.wait(8 * 24)
    found = scan(cluster)
    assert found.epoch.gaps == ()
    assert found.finding(leak) == Finding.ORPHAN
    assert found.finding(named) is None


@pytest.mark.parametrize("state", [LedgerState.CLOSED, LedgerState.IN_RECOVERY])
def test_a_compaction_cursor_ledger_that_bookies_lost_is_gone(state: LedgerState) -> None:
    cluster = SimulatedCluster()
    lost = cluster.ledger(TAGS, state=state)
    cluster.reader.failures[lost] = NotFound("every replica says that the ledger is gone")
    (word,) = words(cluster, lost)
    assert (word.error or "").startswith("gone")


def test_an_open_one_with_an_earlier_ensemble_was_written() -> None:
    cluster = SimulatedCluster()
    lost = cluster.ledger(TAGS, state=LedgerState.OPEN, entries=[])
    segments = (Segment(0, ("bookie-1:3181",)), Segment(7, ("bookie-2:3181",)))
    metadata = LedgerMetadata(LedgerState.OPEN, 1, 1, 1, segments, 0, -1, DigestType.CRC32C)
    cluster.put(cluster.path(lost), ledger_metadata.encode(metadata))
    (word,) = words(cluster, lost)
    assert (word.error or "").startswith("gone")


def test_one_without_a_z_node_is_gone() -> None:
    (word,) = words(SimulatedCluster(), 77)
    assert (word.error or "").startswith("gone")
