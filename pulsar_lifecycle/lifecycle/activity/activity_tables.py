"""What is kept over scans of topics and subscriptions that are used or not: codes and tables.

Not here: how rows come about (``last_use.py``), which of them are inactive (``inactive_rules.py``). Times are
milliseconds.
"""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa


class UseEvidence(StrEnum):
    """By what the last use of a topic or a cursor is known."""

    CREATED = "created"
    """Its z-node was created then; nothing later is known."""
    LEDGER_CLOSED = "ledger_closed"
    """Its last ledger with entries was closed then, or loaded last. Only until a second scan has seen it."""
    DATA_GREW = "data_grew"
    """It has entries that it did not have at the scan before."""
    ACKNOWLEDGED = "acknowledged"
    """The cursor's persisted state is another one than at the scan before: read, skipped or expired."""
    LAST_ACTIVE = "last_active"
    """The cursor's z-node says so (`lastActive`), and that is not just its topic's last load."""
    CONNECTED = "connected"
    """Its broker said that clients are connected."""
    UNKNOWN = "unknown"
    """It cannot be ruled out: a broker did not answer, the topic may be loaded and is not listed, an open ledger may
    have entries."""


CONNECTIONS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("subscription", pa.string()),
        pa.field("connected", pa.int64()),
        pa.field("published", pa.int64()),
    ]
)
"""What brokers say of loaded topics: a row for the producers of each, whose ``subscription`` is null, and one for the
consumers of each subscription. ``published``: messages since its load, of the first."""

CURSOR_ACTIVITY = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("managed_ledger", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("cursor", pa.string()),
        pa.field("ctime", pa.int64()),
        pa.field("czxid", pa.int64()),
        pa.field("version", pa.int32()),
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("cursors_ledger_id", pa.int64()),
        pa.field("cursors_entry_id", pa.int64()),
        pa.field("acknowledged", pa.string()),
        pa.field("replicated_subscription", pa.bool_()),
        pa.field("known", pa.bool_()),
        pa.field("last_active", pa.int64()),
        pa.field("watched_since", pa.int64()),
        pa.field("scans", pa.int32()),
        pa.field("last_read", pa.int64()),
        pa.field("read_evidence", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("unread", pa.bool_()),
    ]
)
"""One row per durable cursor of a topic that was read. ``ledger_id`` and ``entry_id``: its persisted mark-delete
position; ``cursors_entry_id``: the last entry of its cursor ledger, null without one. ``acknowledged``: a digest of
what else its z-node says was read or set; null with a cursor ledger. ``replicated_subscription``: as its cursor ledger
says, or its z-node without one. ``known``: whether these could be read; if not,
they are those of the scan before, null without any and where its cursor ledger is another one since. ``watched_since``:
since when our history of it has no gap, over so many ``scans``. ``last_read`` with its ``UseEvidence``. ``bytes`` of
the topic's ledgers that it keeps, as far as sizes are known; ``unread``: whether messages are unread, or may be."""

CURSOR_HISTORY = pa.schema([one for one in CURSOR_ACTIVITY if one.name not in ("known", "replicated_subscription")])
"""What the next scan goes on from. Earlier versions had no column ``known``: their position was null instead."""

TOPIC_ACTIVITY = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field("managed_ledger", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("ctime", pa.int64()),
        pa.field("czxid", pa.int64()),
        pa.field("version", pa.int32()),
        pa.field("end_ledger_id", pa.int64()),
        pa.field("end_entries", pa.int64()),
        pa.field("published", pa.int64()),
        pa.field("watched_since", pa.int64()),
        pa.field("scans", pa.int32()),
        pa.field("last_write", pa.int64()),
        pa.field("write_evidence", pa.string()),
        pa.field("last_read", pa.int64()),
        pa.field("read_evidence", pa.string()),
        pa.field("last_client", pa.int64()),
        pa.field("client_evidence", pa.string()),
        pa.field("last_ledger_id", pa.int64()),
        pa.field("loaded_at", pa.int64()),
        pa.field("ledgers", pa.int32()),
        pa.field("bytes", pa.int64()),
        pa.field("subscriptions", pa.int32()),
        pa.field("unread_subscriptions", pa.int32()),
        pa.field("replicated", pa.bool_()),
        pa.field("retention_minutes", pa.int64()),
        pa.field("retention_mb", pa.int64()),
        pa.field("protection", pa.string()),
    ]
)
"""One row per topic that was read. ``end_ledger_id``: its last ledger with entries, -1 for none, with so many
``end_entries``; null while it is open and may have any. ``loaded_at``: when its last ledger was made, as each load
makes one, or written last in BookKeeper, as an unload closes it; null without any. ``published``: messages since its
load, null if no broker lists it. ``watched_since``: since when our history of it and of its subscriptions has no gap.
``last_*`` (null: never) with their ``UseEvidence``. ``unread_subscriptions``: those with messages that are unread, or
may be. ``replicated``: a replicator has a cursor on it, or policies send it to other clusters; null where nobody knows.
``retention_*``: null where it is unknown. ``protection``: the ``Protection`` of the topic, null for none."""
