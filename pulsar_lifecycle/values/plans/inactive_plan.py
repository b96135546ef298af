"""Plans of inactive topics and of inactive subscriptions: rows, digests, and the codes of what stays.

The summary is a ``PlanSummary``, whose ``ledgers`` count topics or subscriptions.
Not here: which are inactive (``lifecycle/activity/inactive_rules.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.values import plans


class InactiveKept(StrEnum):
    """Why an inactive topic or subscription is not deleted, where nothing protects its topic."""

    SYSTEM_CURSOR = "system_cursor"
    """It is a broker's own: compaction, deduplication, or one of `additionalSystemCursorNames`."""
    REPLICATOR_CURSOR = "replicator_cursor"
    """A replicator reads by it."""
    FUNCTION_CURSOR = "function_cursor"
    """Its name is that of a function, a sink or a source, `tenant/namespace/name`, or their workers' own."""
    NAMED_KEPT = "named_kept"
    """`inactivity.kept_subscriptions` names it."""
    FUNCTION_SUBSCRIPTION = "function_subscription"
    """A function, a sink or a source subscribes by this name, to whatever topic, or did: the function workers' topic
    `inactivity.functions_metadata` says so."""
    FUNCTIONS_UNKNOWN = "functions_unknown"
    """That topic exists and cannot be read whole, or the settings name another one that does not exist: any
    subscription may be that of a function."""
    COMPACTED = "compacted"
    """It has a `__compaction` cursor: table views and readers read its compacted view, whatever retention says, and its
    broker would not delete it either. `delete_topics` does."""
    REPLICATED = "replicated"
    """Its topic is replicated to another cluster, or is to be once a broker loads it; or it is a replicated
    subscription, whose consumers may be elsewhere."""
    UNKNOWN_POLICY = "unknown_policy"
    """What retention, replication or the brokers' configuration says is not known."""
    UNKNOWN_CURSOR = "unknown_cursor"
    """Its position, or that of one of its subscriptions, could not be read: whether it was used, nobody knows. Scan and
    report again once all bookies answer."""
    UNKNOWN_LEDGER = "unknown_ledger"
    """No bookie says what its open ledger holds: how much would be freed, nobody knows. Scan and report again once all
    bookies answer."""
    RETAINED = "retained"
    """The retention in force keeps its data."""
    UNREAD_MESSAGES = "unread_messages"
    """A subscription has unread messages, or may: it must go first."""
    DEAD_LETTERS = "dead_letters"
    """Its name is that of dead letters, or of messages to be delivered again, and it has some: nobody subscribes to
    them before somebody looks. `delete_topics` deletes it."""
    OWNER_KEEPS = "owner_keeps"
    """Its own policy says that it is not deleted while it is inactive (`deleteWhileInactive`)."""
    NOT_CHOSEN = "not_chosen"
    """`inactivity.topics` or `inactivity.subscriptions` does not name it: it is only reported."""
    LOADED_LATELY = "loaded_lately"
    """A broker loaded its topic within the period: for a client that came and left between two scans, or by itself,
    nobody knows."""
    PARTITION_STAYS = "partition_stays"
    """Another partition of its partitioned topic, or the same subscription there, is used, or stays: none is begun
    unless all may go."""

    NOT_LOADED = "not_loaded"
    """No broker has its topic loaded, and only a broker can delete a subscription: a load plan has it where
    `load.inactive_subscriptions` names its topic. Only at apply."""
    LAST_SUBSCRIPTION = "last_subscription"
    """Without it, its broker would delete its topic as inactive, or may: it is the last one, or brokers delete topics
    whose other subscriptions have read all (`delete_when_subscriptions_caught_up`). Only at apply."""
    LEDGER_OPEN = "ledger_open"
    """A ledger of it was never closed, as its broker died: what is in it is not known. Only at apply."""
    USED_LATELY = "used_lately"
    """Its broker says that clients are connected, or were since the plan's period began; of an expired one, since its
    load. Only at apply."""


_USED = [
    pa.field("watched_since", pa.int64()),
    pa.field("scans", pa.int32()),
    pa.field("inactive_since", pa.int64()),
    pa.field("evidence", pa.string()),
    pa.field("bytes", pa.int64()),
    pa.field("physical_bytes", pa.int64()),
    pa.field("weight", pa.int64()),
    pa.field("kept", pa.string()),
]

INACTIVE_TOPICS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("czxid", pa.int64()),
        pa.field("version", pa.int32()),
        pa.field("last_write", pa.int64()),
        pa.field("last_read", pa.int64()),
        pa.field("last_client", pa.int64()),
        pa.field("published", pa.int64()),
        pa.field("positions", pa.list_(pa.string())),
        pa.field("retention_minutes", pa.int64()),
        pa.field("retention_mb", pa.int64()),
        *_USED,
    ]
)
"""One row per topic that nobody used for the whole period. ``ledger_id``: its last ledger, -1 for none. ``czxid`` and
``version`` of its z-node, messages ``published`` since its load (null: no broker lists it), the ``positions`` of its
cursors as :func:`position_text` writes them, and its retention: what must be so still when it is deleted. ``last_*``
(ms, null: never seen), of which ``inactive_since`` is the latest, by this ``UseEvidence``. ``watched_since``: since
when our history of it has no gap, over so many ``scans``. ``bytes`` that it lists; ``physical_bytes``: what the
replicas of these take on the bookies' disks, 0 where BookKeeper does not say. ``weight``: what its ledgers count for in
caps (bytes), with what bookies say of one that is open where nothing keeps the row. ``kept``: the ``InactiveKept`` or
``Protection`` by which it stays all the same; null for what may be deleted. A plan's rows are those with null."""

INACTIVE_CURSORS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("cursor", pa.string()),
        pa.field("czxid", pa.int64()),
        pa.field("cursors_ledger_id", pa.int64()),
        pa.field("cursors_entry_id", pa.int64()),
        pa.field("last_ledger_id", pa.int64()),
        *_USED,
    ]
)
"""One row per cursor that nobody used for the whole period. ``ledger_id``, ``entry_id``: its persisted mark-delete
position; with the z-node's ``czxid``, the cursor ledger's last entry and the topic's ``last_ledger_id`` (-1 for none)
what must be so still when it is deleted, or its broker must say that it has loaded the topic since before the scan:
each load makes a ledger, and its broker forgets what was used before.
``inactive_since``: when it was last read, by this ``UseEvidence``. ``bytes`` of its topic's ledgers that it keeps. The
other columns are as those of ``inactive_topics``."""

_FACTS = ("plan_id", "cluster", "fingerprint", "epoch_id", "created_at", "actionable", "cluster_ledgers")


def position_text(cursor: str, ledger_id: int | None, entry_id: int | None, cursors_ledger_id: int) -> str:
    """A cursor, its persisted position, and the cursor ledger (-1: none); one that is not known is like none."""
    return f"{cursor} {ledger_id}:{entry_id} in {cursors_ledger_id}"


def counted_once(rows: pa.Table, column: str = "bytes") -> pa.Array:
    """The bytes of each row; of a topic's subscriptions only the most that one keeps, as it is the same data."""
    sizes = rows.column(column).fill_null(0).to_pylist()
    most: dict[str, int] = {}
    for n, topic in enumerate(rows.column("topic").to_pylist()):
        if topic not in most or sizes[n] > sizes[most[topic]]:
            most[topic] = n
    counted = set(most.values())
    return pa.array([size if n in counted else 0 for n, size in enumerate(sizes)], pa.int64())


def as_capped(rows: pa.Table) -> pa.Table:
    """The rows as the caps count them: the data of each topic once."""
    place = rows.column_names.index("physical_bytes")
    return rows.set_column(place, "physical_bytes", counted_once(rows, "weight"))


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the id-sorted canonical rows and the facts that make the plan actionable."""
    names = INACTIVE_CURSORS.names if "cursor" in rows.column_names else INACTIVE_TOPICS.names
    return plans.digest(rows.select(names), {name: summary[name] for name in _FACTS})
