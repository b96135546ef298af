"""The delayed index of one topic as plain values for JSON: buckets, findings, messages due by hour.

Not here: judging (``delayed_index/stored/index_findings.py``), printing.
"""

from __future__ import annotations

from typing import Any

from pulsar_lifecycle.delayed_index.stored.check_run import BUCKETS, DUE, FINDINGS, judged
from pulsar_lifecycle.delayed_index.stored.index_reading import index_ports
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.model import Topic

_PARTS = {BUCKETS: "buckets", FINDINGS: "findings", DUE: "due"}


def delayed_index(
    ports: Connections, topic: Topic, root: str, now: int, subscription: str = "", sealed_at: int | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Of all subscriptions that have buckets, or of one; what cannot be read is a finding. Loads no topic.

    ``sealed_at``: brokers seal a bucket of so many messages; with it, those that have no buckets are read, too.
    """
    document: dict[str, list[dict[str, Any]]] = {part: [] for part in _PARTS.values()}
    for table, rows in judged(index_ports(ports), topic, root, now, subscription, sealed_at):
        document[_PARTS[table]] += [
            {name: value for name, value in row.items() if name not in ("topic", "namespace")} for row in rows
        ]
    return document
