"""The delayed index of one topic as plain values for JSON: subscriptions, buckets, findings, messages due by hour.

Not here: judging (``delayed_index/stored/index_findings.py``), printing.
"""

from __future__ import annotations

from typing import Any

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.stored.check_run import BUCKETS, CAPACITY, DUE, FINDINGS, judged
from pulsar_lifecycle.delayed_index.stored.index_reading import bucket_counts, index_ports
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.model import Topic

_PARTS = {BUCKETS: "buckets", FINDINGS: "findings", DUE: "due", CAPACITY: "capacity"}


def delayed_index(
    ports: Connections,
    topic: Topic,
    root: str,
    now: int,
    broker: DelayedIndexSettings,
    subscription: str = "",
    *,
    whole: bool,
) -> dict[str, list[dict[str, Any]]]:
    """Of all subscriptions that have buckets, or of one; what cannot be read is a finding. Loads no topic.

    ``whole``: those that have no buckets, too; ``subscriptions`` says which were read. ``broker``: the settings by
    which brokers make theirs. Raises NotFound for a subscription that the topic does not have, Refused for what is no
    topic.
    """
    counts = bucket_counts(ports.store, topic)
    if subscription and subscription not in counts:
        there = ", ".join(sorted(counts)) or "none"
        raise NotFound(f"{topic} has no subscription {subscription!r}; it has: {there}")
    document: dict[str, list[dict[str, Any]]] = {
        "subscriptions": [
            {"subscription": name, "buckets": count, "read": whole or count != 0}
            for name, count in sorted(counts.items())
            if subscription in ("", name)
        ],
        **{part: [] for part in _PARTS.values()},
    }
    for table, rows in judged(index_ports(ports), topic, root, now, broker, subscription, whole=whole):
        document[_PARTS[table]] += [
            {name: value for name, value in row.items() if name not in ("topic", "namespace")} for row in rows
        ]
    return document
