"""Random small clusters, with the set of ledgers that something refers to kept apart from the product's own view.

Belongs here: hypothesis strategies that build a ``SimulatedCluster``. Not here: what is asserted about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicInternals
from pulsar_lifecycle.values.topic_load import CompactionStatus
from tests.kit.simulated.cluster import (
    CURSORS,
    SimulatedCluster,
    bucket_tags,
    compacted_tags,
    confusable_topics,
    cursor_tags,
    data_tags,
    deleted_copy,
    schema_tags,
)

TOPICS = confusable_topics("acme/other/x-partition-01", "other/orders/__change_events")


@dataclass
class Drawn:
    """A cluster, what is referenced in it, and what was leaked (leaks may be kept; live ones must be)."""

    cluster: SimulatedCluster
    live: set[int] = field(default_factory=set)
    leaked: set[int] = field(default_factory=set)
    schemas: set[str] = field(default_factory=set)


@st.composite
def clusters(draw: Any) -> Drawn:
    """Topics with every kind of reference, and leaks of every kind, of topics that exist and of topics that do not."""
    drawn = Drawn(SimulatedCluster())
    topics = draw(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=4, unique=True))
    for topic in topics:
        _topic(draw, drawn, topic)
    for _ in range(draw(st.integers(0, 6))):
        _leak(draw, drawn, draw(st.sampled_from(TOPICS)))
    return drawn


def _topic(draw: Any, drawn: Drawn, topic: Topic) -> None:
    cluster = drawn.cluster
    tags = _tags(draw, topic)
    data = [cluster.ledger(draw(tags)) for _ in range(draw(st.integers(0, 3)))]
    loaded = draw(st.booleans())
    if loaded:
        data.append(cluster.ledger(data_tags(topic), state=LedgerState.OPEN))
    offload = {i: deleted_copy(complete=draw(st.booleans()), bookkeeper_deleted=draw(st.booleans())) for i in data[:1]}
    gone = {i for i, context in offload.items() if context.complete and context.bookkeeper_deleted}
    cluster.topic(topic, draw(st.permutations(data)), offloaded=offload)
    drawn.live |= set(data) - gone
    if data and draw(st.booleans()):  # a shadow topic lists its source's ledgers
        cluster.topic(Topic(topic.namespace, f"shadow of {topic.local}"), data)
        drawn.live |= set(data)
    compacted = _compaction(draw, drawn, topic, tags) if draw(st.booleans()) else None
    for name in draw(st.lists(st.sampled_from(CURSORS), max_size=2, unique=True)):
        ledger = cluster.ledger(draw(tags)) if draw(st.booleans()) else -1
        bucket = cluster.ledger(draw(tags)) if draw(st.booleans()) else None
        cluster.cursor(topic, name, ledger=ledger, buckets={} if bucket is None else {(1, 2): bucket})
        drawn.live |= {ledger, bucket} - {-1, None}
    if topic.schema_id not in drawn.schemas and draw(st.booleans()):
        drawn.schemas.add(topic.schema_id)
        old = [cluster.ledger(draw(tags), entries=[cluster.schema_entry()]) for _ in range(draw(st.integers(0, 2)))]
        new = cluster.ledger(schema_tags(topic.schema_id), entries=[cluster.schema_entry(old)])
        cluster.schema(topic.schema_id, [new])
        drawn.live |= {*old, new}
    if loaded:
        # What only a broker's memory holds carries its own topic's tags: nobody else would be asked.
        memory = cluster.ledger(draw(st.sampled_from([data_tags(topic), cursor_tags(topic, "s")])))
        drawn.live.add(memory)
        cluster.load(topic)
        cluster.admin.compactions[topic] = draw(
            st.sampled_from([one for one in CompactionStatus if one is not CompactionStatus.UNKNOWN])
        )
        cluster.admin.internals[topic] = TopicInternals("LedgerOpened", (*data, memory), {}, {}, compacted, ())


def _compaction(draw: Any, drawn: Drawn, topic: Topic, tags: st.SearchStrategy[dict[str, str]]) -> int:
    """A compacted ledger named where the truth is: in the z-node, or in the last entry of the cursor ledger."""
    cluster = drawn.cluster
    compacted = cluster.ledger(draw(tags))
    drawn.live.add(compacted)
    if draw(st.booleans()):
        cluster.cursor(topic, "__compaction", compacted=compacted)
        return compacted
    entries = [cluster.position_entry(), cluster.position_entry(compacted)]
    state = draw(st.sampled_from([LedgerState.OPEN, LedgerState.CLOSED]))
    ledger = cluster.ledger(cursor_tags(topic, "__compaction"), entries=entries, state=state)
    drawn.live.add(ledger)
    cluster.cursor(topic, "__compaction", ledger=ledger, compacted=draw(st.none() | st.just(ledger)))
    return compacted


def _tags(draw: Any, topic: Topic) -> st.SearchStrategy[dict[str, str]]:
    """Tags that a ledger of this topic may carry; now and then they lie about topic or component."""
    owner = draw(st.sampled_from([topic, topic, topic, *TOPICS]))
    return st.sampled_from(
        [
            data_tags(owner),
            cursor_tags(owner, "s"),
            schema_tags(owner.schema_id),
            compacted_tags(owner),
            bucket_tags(owner, "s", 1, 2),
        ]
    )


def _leak(draw: Any, drawn: Drawn, topic: Topic) -> None:
    drawn.leaked.add(drawn.cluster.ledger(draw(_tags(draw, topic)), state=draw(st.sampled_from(STATES))))


STATES = [LedgerState.CLOSED, LedgerState.CLOSED, LedgerState.CLOSED, LedgerState.IN_RECOVERY]
