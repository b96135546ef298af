"""The tables of delayed indexes: buckets, findings, and how many messages are due when.

Not here: how their rows come about (``check_run.py``). Times are milliseconds.
"""

from __future__ import annotations

import pyarrow as pa

_OWNER = [
    pa.field("topic", pa.string()),
    pa.field("namespace", pa.string()),
    pa.field("subscription", pa.string()),
]

DELAYED_INDEX_BUCKETS = pa.schema(
    [
        *_OWNER,
        pa.field("bucket_key", pa.string()),
        pa.field("start_ledger_id", pa.int64()),
        pa.field("end_ledger_id", pa.int64()),
        pa.field("ledger_id", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("segments", pa.int32()),
        pa.field("segments_passed", pa.int32()),
        pa.field("messages", pa.int64()),
        pa.field("messages_waiting", pa.int64()),
        pa.field("first_due", pa.int64()),
        pa.field("last_due", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("error", pa.string()),
    ]
)
"""One row per bucket that a cursor names. ``bytes`` of its snapshot. ``segments_passed``: those whose messages are all
due; ``messages_waiting``: those that are not. ``state``: the ``BucketProblem`` why it cannot be read, ``passed`` once
all are due, else ``waiting``."""

DELAYED_INDEX_MESSAGES = pa.schema(
    [
        *_OWNER,
        pa.field("bucket_key", pa.string()),
        pa.field("snapshot_ledger_id", pa.int64()),
        pa.field("segment", pa.int32()),
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("due", pa.int64()),
        pa.field("acknowledged", pa.bool_()),
        pa.field("problem", pa.string()),
    ]
)
"""One row per message of a bucket: in which ``segment`` it is (an entry of ledger ``snapshot_ledger_id``), where the
message is, when it is ``due``, and whether the subscription's stored state has it ``acknowledged``. ``problem``: why a
bucket or a cursor cannot be read; all after ``subscription`` is null then. Null for all others."""

DELAYED_INDEX_FINDINGS = pa.schema(
    [
        *_OWNER,
        pa.field("code", pa.string()),
        pa.field("harm", pa.string()),
        pa.field("bucket_key", pa.string()),
        pa.field("snapshot_ledger_id", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("due", pa.int64()),
        pa.field("detail", pa.string()),
    ]
)
"""One row per ``IndexFinding`` and bucket. ``harm``: what it does to messages. ``messages``: how many it is about;
``ledger_id``, ``entry_id``, ``due``: the first of them."""

DELAYED_INDEX_CAPACITY = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("subscriptions", pa.int32()),
        pa.field("messages", pa.int64()),
        pa.field("memory_bytes", pa.int64()),
        pa.field("stored_bytes", pa.int64()),
        pa.field("shared_memory_bytes", pa.int64()),
        pa.field("shared_stored_bytes", pa.int64()),
    ]
)
"""One row per topic with several ``subscriptions`` that were read. ``messages`` that are delayed, each as often as a
subscription waits for it. What their indexes take in a broker's memory and in snapshots, by the settings of
``delayed_index.brokers``; and what one index for all of them would (PIP-195's ``delayedDeliverySharedIndexEnabled``,
which no broker has)."""

DELAYED_MESSAGES_DUE = pa.schema(
    [
        *_OWNER,
        pa.field("hour", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("indexed", pa.int64()),
        pa.field("first_ledger_id", pa.int64()),
    ]
)
"""One row per subscription and hour: how many unacknowledged messages are due in the hour that begins at ``hour``,
how many of them are in a bucket, and the oldest ledger that one of them keeps."""
