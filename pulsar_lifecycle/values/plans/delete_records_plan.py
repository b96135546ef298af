"""A plan to delete records: of each partition the low watermark that it gets, what goes for it, or why nothing does.

Belongs here: rows, digest, and the codes of what stays; the summary is a ``PlanSummary``, whose ``ledgers`` count
partitions. Not here: the rules (``delete_records/cut_rules.py``). Source: KIP-107, "DeleteDataResult".
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.values import plans


class RecordsError(StrEnum):
    """Why a partition got no new low watermark. The first four have KIP-107's and Kafka's names."""

    TIMEOUT = "TimeoutException"
    """Its broker, or the proof that its data is gone, did not come in time: what was done is not known, so run again.
    """
    OUT_OF_RANGE = "OffsetOutOfRangeException"
    """The position is beyond the end of the partition, or the time is not past."""
    NOT_AUTHORIZED = "TopicAuthorizationException"
    """The operator's role is not admin of the tenant, or may not do to the topic what is needed: the broker said so."""
    UNKNOWN_PARTITION = "UnknownTopicOrPartitionException"
    """There is no such topic or partition."""

    NO_SUCH_POSITION = "no_such_position"
    """The ledger has no such entry, or the entry no such message, or a chunked message lies across the position: no
    message begins there."""
    PROTECTED = "protected"
    """A rule keeps everything of its topic: a legal hold, a shadow topic, a system topic, an unknown namespace."""
    CURSOR_BELOW = "cursor_below"
    """Subscriptions have not acknowledged everything below the position: `--move-cursors` moves them up to it."""
    REPLICATION_BELOW = "replication_below"
    """A replicator has not sent everything below the position to its cluster."""
    SYSTEM_CURSOR_BELOW = "system_cursor_below"
    """A cursor of the broker's own, such as deduplication's, stands below the position; its broker moves it."""
    COMPACTED_VIEW = "compacted_view"
    """A compacted view holds the last message of each key, those below the position too: it is another ledger."""
    DELAYED_BELOW = "delayed_below"
    """A subscription that would be moved has delayed messages below the position that were not delivered yet."""
    TRANSACTION_BELOW = "transaction_below"
    """A transaction with messages or acknowledgements below the position is open, or may be."""
    NOT_MONOTONIC = "not_monotonic"
    """Publish times go back within what would go: messages published after the time lie before others."""
    NOT_EXACT = "not_exact"
    """`--exact`: the position is inside a ledger, and ledgers go whole: messages below it would remain readable."""
    LEDGER_STAYS = "ledger_stays"
    """A ledger below the position cannot go: a copy of it could not be deleted, or an offload attempt is open."""
    LOADED = "loaded"
    """A broker has it loaded, and `trimming.loaded_topics` does not let us write its list of ledgers."""
    LOAD_WOULD_LOSE = "load_would_lose"
    """Its broker would have to load it, to move a cursor or to begin a new ledger, or to unload it after our write, and
    it loses data by that: its code says what. While no broker has it, cursors that consumers have moved, and a position
    that needs no new ledger, need no load."""
    UNREAD = "unread"
    """Its z-node, its cursors, its messages, its namespace's policies or which partitions it has could not be read."""
    FOREIGN_WATERMARK = "foreign_watermark"
    """Its properties hold a low watermark beyond its end: somebody else wrote it. Remove the property."""
    BROKER_FAILED = "broker_failed"
    """Its broker did not do what it was asked: to unload it, to move a cursor, to keep the low watermark. With code
    `bundle_shared`: to take the bundles of system topics that it reads for this one, without what else is in them."""
    UNLOADS_USED_UP = "unloads_used_up"
    """It needs more unloads than this run may still do (`trimming.max_unloads`): run again. Only at apply."""
    CHANGED = "changed_since_plan"
    """It is not as it was when the plan was made, or at the last of several tries to write it. Only at apply."""
    REPLACED = "replaced_since_plan"
    """The topic of the plan was deleted, and another one has its name: nothing of that one goes. Only at apply."""


COPY = pa.struct([("ledger_id", pa.int64()), ("bucket", pa.string()), ("uuid", pa.string())])
"""An offloaded copy of a ledger."""
MOVED = pa.struct([("cursor", pa.string()), ("position", pa.string()), ("entries", pa.int64())])
"""A durable cursor below the low watermark, where it stood, and how many entries it had before it up to there."""

RECORDS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("czxid", pa.int64()),
        pa.field("ctime", pa.int64()),
        pa.field("asked", pa.string()),
        pa.field("low_watermark", pa.string()),
        pa.field("old_low_watermark", pa.string()),
        pa.field("end", pa.string()),
        pa.field("first_readable", pa.string()),
        pa.field("rolls", pa.bool_()),
        pa.field("exact", pa.bool_()),
        pa.field("no_undo", pa.bool_()),
        pa.field("ledgers", pa.list_(pa.int64())),
        pa.field("sizes", pa.list_(pa.int64())),
        pa.field("copies", pa.list_(COPY)),
        pa.field("leftovers", pa.list_(pa.int64())),
        pa.field("lost_copies", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("messages", pa.int64()),
        pa.field("messages_between", pa.int64()),
        pa.field("bytes_between", pa.int64()),
        pa.field("published_before", pa.int64()),
        pa.field("published_at", pa.int64()),
        pa.field("at_risk", pa.int64()),
        pa.field("unfinished", pa.list_(pa.string())),
        pa.field("moved_cursors", pa.list_(MOVED)),
        pa.field("readers", pa.list_(pa.string())),
        pa.field("broker", pa.string()),
        pa.field("error", pa.string()),
        pa.field("code", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
"""One row per partition that was asked for. ``ledger_id``: the ledger of its low watermark, -1 without one. ``czxid``
and ``ctime`` (ms) of its z-node tell it from another topic of its name (null: it could not be read). ``asked`` as it
was asked: a position, ``@`` and a time (ms), or -1. ``low_watermark``: the first message that remains once it is
applied; ``old_low_watermark``: null where nothing was deleted before. ``first_readable``: from where on brokers can
still show messages, as ledgers go whole; ``messages_between`` and ``bytes_between`` lie from there up to the low
watermark (null: not counted). ``rolls``: its current ledger is closed first, so that it can go. ``ledgers`` go, of so
many bytes on disk (``sizes``); ``bytes`` is their sum. ``leftovers``: ledgers below the low watermark that the topic
lists no more, and that, or whose offloaded copies, were not deleted yet, and compacted views that it had. ``copies``:
the offloaded ones of both, and of the ledger that the low watermark lies in; ``lost_copies``: how many are of both, and
no undo brings those back. ``messages`` go with ``ledgers`` (null: not counted); ``no_undo``: no undo brings the ledgers
back, either. ``published_before`` and ``published_at`` (ms): of the last message below the low watermark, and of the
one at it. ``at_risk``: messages published at or after the time that a search over times would delete, as publish times
go back; the low watermark is before all of them.
``unfinished``: UUIDs of chunked messages that began below it, and had not ended, where all below was read.
``moved_cursors``: all that stand below it; without an error they are moved. ``readers``: non-durable subscriptions.
``error``: a ``RecordsError``, ``code`` the code of the rule behind it, ``reason`` their
sentence; null for what goes."""

_FACTS = ("plan_id", "cluster", "fingerprint", "epoch_id", "created_at", "actionable", "cluster_ledgers")


def as_capped(rows: pa.Table) -> pa.Table:
    """The ledgers that go, one a row, as the caps count them."""
    going = [row for row in rows.select(["topic", "ledgers", "sizes", "error"]).to_pylist() if row["error"] is None]
    pairs = [(row["topic"], size) for row in going for size in row["sizes"]]
    return pa.table(
        {
            "topic": pa.array([topic for topic, _ in pairs], pa.string()),
            "physical_bytes": pa.array([size for _, size in pairs], pa.int64()),
        }
    )


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the id-sorted canonical rows and the facts that make the plan actionable."""
    return plans.digest(rows.select(RECORDS.names), {name: summary[name] for name in _FACTS})
