"""The delayed index of one topic: subscriptions, buckets, findings, messages due by hour.

Not here: judging (``delayed_index/stored/index_findings.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.stored.check_run import BUCKETS, CAPACITY, DUE, FINDINGS, judged
from pulsar_lifecycle.delayed_index.stored.index_reading import bucket_counts, index_ports
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import ClusterPorts

TableRow = Mapping[str, Any]
"""A row of a catalog table, by its columns."""


@dataclass(frozen=True, slots=True)
class FoundSubscription:
    """How many buckets it has, and whether its index was read."""

    name: str
    buckets: int
    read: bool


@dataclass(frozen=True, slots=True)
class DecodedIndex:
    """Rows of the tables of the same names; ``subscriptions`` says which were read."""

    subscriptions: tuple[FoundSubscription, ...]
    buckets: tuple[TableRow, ...]
    findings: tuple[TableRow, ...]
    due: tuple[TableRow, ...]
    capacity: tuple[TableRow, ...]


def delayed_index(
    ports: ClusterPorts,
    topic: Topic,
    root: str,
    now: int,
    broker: DelayedIndexSettings,
    subscription: str = "",
    *,
    whole: bool,
) -> DecodedIndex:
    """Of all subscriptions that have buckets, or of one; what cannot be read is a finding. Loads no topic.

    ``whole``: those that have no buckets, too. ``broker``: the settings by which brokers make theirs. Raises NotFound
    for a subscription that the topic does not have, Refused for what is no topic.
    """
    counts = bucket_counts(ports.store, topic)
    if subscription and subscription not in counts:
        there = ", ".join(sorted(counts)) or "none"
        raise NotFound(f"{topic} has no subscription {subscription!r}; it has: {there}")
    rows: dict[str, list[TableRow]] = {table: [] for table in (BUCKETS, FINDINGS, DUE, CAPACITY)}
    for table, some in judged(index_ports(ports), topic, root, now, broker, subscription, whole=whole):
        rows[table] += some
    return DecodedIndex(
        tuple(
            FoundSubscription(name, count, whole or count != 0)
            for name, count in sorted(counts.items())
            if subscription in ("", name)
        ),
        *(tuple(rows[table]) for table in (BUCKETS, FINDINGS, DUE, CAPACITY)),
    )
