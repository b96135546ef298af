"""What was read of a topic's delayed indexes as rows of the tables: pure.

Not here: reading (``index_reading.py``), the schemas (``index_tables.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pulsar_lifecycle.delayed_index.stored.index_capacity import Capacity
from pulsar_lifecycle.delayed_index.stored.index_codes import HARM
from pulsar_lifecycle.delayed_index.stored.index_findings import Found
from pulsar_lifecycle.delayed_index.stored.subscription import (
    Places,
    StoredBucket,
    StoredSubscription,
    TopicEntries,
    outstanding,
)
from pulsar_lifecycle.formats.delayed_indexes import Indexes, time_order
from pulsar_lifecycle.model import Topic

HOUR = 3_600_000
PASSED, WAITING = "passed", "waiting"
BYTES_IN_MEMORY = 24
"""Of one index in a broker's queue: three longs (TripleLongPriorityQueue); without the bitmaps, 0.2 to 0.6 bytes."""

Row = Mapping[str, Any]


def owner(topic: Topic, cursor: str) -> dict[str, str]:
    """The columns that all tables begin with."""
    return {"topic": str(topic), "namespace": str(topic.namespace), "subscription": cursor}


def bucket_row(topic: Topic, cursor: str, bucket: StoredBucket, now: int) -> Row:
    """A row of ``DELAYED_INDEX_BUCKETS``."""
    times, table = bucket.indexes.timestamps, bucket.table
    waiting = int(np.count_nonzero(times > now))
    passed = sum(last <= now for last in table.maximums) if table else 0
    return owner(topic, cursor) | {
        "bucket_key": bucket.key,
        "start_ledger_id": bucket.start,
        "end_ledger_id": bucket.end,
        "ledger_id": bucket.ledger_id,
        "bytes": bucket.length,
        "segments": len(table) if table else 0,
        "segments_passed": passed,
        "messages": len(times),
        "messages_waiting": waiting,
        "first_due": int(times.min()) if len(times) else None,
        "last_due": int(times.max()) if len(times) else None,
        "state": bucket.problem.value if bucket.problem else WAITING if waiting else PASSED,
        "error": bucket.error or None,
    }


def finding_row(topic: Topic, cursor: str, found: Found) -> Row:
    """A row of ``DELAYED_INDEX_FINDINGS``."""
    return owner(topic, cursor) | {
        "code": found.code.value,
        "harm": HARM[found.code].value,
        "bucket_key": found.key or None,
        "snapshot_ledger_id": found.ledger_id if found.ledger_id >= 0 else None,
        "messages": found.messages,
        "ledger_id": found.ledger,
        "entry_id": found.entry,
        "due": found.due,
        "detail": found.detail or None,
    }


def capacity_row(topic: Topic, found: Capacity) -> Row:
    """A row of ``DELAYED_INDEX_CAPACITY``."""
    return {
        "topic": str(topic),
        "namespace": str(topic.namespace),
        "subscriptions": found.subscriptions,
        "messages": found.messages,
        "memory_bytes": found.each.memory,
        "stored_bytes": found.each.stored,
        "shared_memory_bytes": found.shared.memory,
        "shared_stored_bytes": found.shared.stored,
    }


def due_rows(topic: Topic, subscription: StoredSubscription, entries: TopicEntries, now: int) -> Iterable[Row]:
    """Rows of ``DELAYED_MESSAGES_DUE``, by hour; what is due already is no part of the forecast."""
    waiting = outstanding(subscription, entries)
    waiting = waiting[waiting.timestamps > now]
    indexed = Indexes.concatenate([bucket.indexes for bucket in subscription.buckets])
    places = Places(waiting, indexed)
    known = np.isin(places.of(waiting.ledgers, waiting.entries), places.of(indexed.ledgers, indexed.entries))
    if not len(waiting):
        return
    hours = waiting.timestamps // HOUR
    order = time_order(hours)
    begins = np.flatnonzero(np.diff(hours[order], prepend=-1))
    columns = (
        hours[order[begins]] * HOUR,
        np.diff(begins, append=len(order)),
        np.add.reduceat(known[order].astype(np.int64), begins),
        np.minimum.reduceat(waiting.ledgers[order], begins),
    )
    names = ("hour", "messages", "indexed", "first_ledger_id")
    for row in zip(*(column.tolist() for column in columns), strict=True):
        yield owner(topic, subscription.cursor) | dict(zip(names, row, strict=True))
