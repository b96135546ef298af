"""Arrow schemas of every table the library makes: the one place where columns are named, typed and explained.

Not here: how a table is filled (``metastore/``) or judged (the rules). Times are milliseconds since
the epoch, sizes bytes. The columns of ``CENSUS`` end every metastore table: a row with a ``problem`` stands for
something listed and not read, so that *listed = decoded + confirmed gone* can be checked afterwards.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa

STAT = [
    pa.field("czxid", pa.int64()),
    pa.field("ctime", pa.int64()),
    pa.field("mtime", pa.int64()),
    pa.field("version", pa.int32()),
]
"""From the z-node's Stat: creation transaction and time, time of the last write, data version."""

CENSUS = [
    pa.field("path", pa.string()),
    pa.field("parent", pa.string()),
    pa.field("listed", pa.int64()),
    pa.field("problem", pa.string()),
    pa.field("error", pa.string()),
]
"""``listed``: children the parent's own Stat counted. ``problem``: a :class:`Problem`, null where the row was read;
``error`` then says more. Of one that is ``unread``, ``path`` may be a whole subtree."""


class Problem(StrEnum):
    """Why a row of a scan is not what was listed, or a reference is not known."""

    GONE = "gone"
    """Listed, then absent. Of a reference: the ledger that held it does not exist any more; its owner is kept."""
    EMPTY = "empty"
    """A ledger z-node without data."""
    CORRUPT = "corrupt"
    """It could not be decoded."""
    UNREAD = "unread"
    """It could not be read. It may be whole."""
    UNKNOWN_DOMAIN = "unknown_domain"
    """Its topic is of a domain that we do not know, such as ``segment``, and reads like one that we do: what it names
    counts as referenced, and its namespace is kept."""
    MISSING_ROOT = "missing_root"
    """The root of a whole table does not exist; a cluster that never had a schema has no ``/schemas``."""
    DAMAGED = "damaged"
    """A reference's entry is lost: every replica answered, and has none or another one. Its owner is kept."""
    UNANSWERED = "unanswered"
    """The broker of one topic does not say what it has in memory of it, and says so of others. The topic is kept."""


class Trouble(NamedTuple):
    """The columns ``problem`` and ``error`` of one row."""

    problem: Problem
    error: str


BOOKKEEPER_LEDGERS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("state", pa.string()),
        pa.field("entries", pa.int64()),
        pa.field("length", pa.int64()),
        pa.field("ensemble_size", pa.int32()),
        pa.field("write_quorum", pa.int32()),
        pa.field("ack_quorum", pa.int32()),
        pa.field("ensembles", pa.string()),
        pa.field("application", pa.string()),
        pa.field("component", pa.string()),
        pa.field("managed_ledger", pa.string()),
        pa.field("cursor", pa.string()),
        pa.field("schema_id", pa.string()),
        pa.field("compacted_topic", pa.string()),
        pa.field("bucket_key", pa.string()),
        pa.field("bucket_topic", pa.string()),
        pa.field("bucket_cursor", pa.string()),
        *STAT,
        *CENSUS,
    ]
)
"""One row per z-node below ``/ledgers``. Tags are as written by LedgerMetadataUtils; absent ones are null.
``ensembles``: which bookies hold which entries, for ``ledger_metadata.parse_ensembles``."""

LEDGER_INFO = pa.struct(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("entries", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("timestamp", pa.int64()),
        pa.field("offload_uuid", pa.string()),
        pa.field("offload_complete", pa.bool_()),
        pa.field("offload_driver", pa.string()),
        pa.field("offload_bucket", pa.string()),
        pa.field("offload_streaming", pa.bool_()),
        pa.field("bookkeeper_deleted", pa.bool_()),
        pa.field("offloaded_at", pa.int64()),
    ]
)
"""A ledger as its topic lists it. ``offload_driver`` and ``offload_bucket``: those that its offload names, null for
none. ``offload_streaming``: its offload was made of streamed segments."""

MANAGED_LEDGERS = pa.schema(
    [
        pa.field("managed_ledger", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("ledgers", pa.list_(LEDGER_INFO)),
        pa.field("offload_uuids", pa.list_(pa.string())),
        pa.field("terminated", pa.bool_()),
        pa.field("shadow_source", pa.string()),
        pa.field("low_watermark", pa.string()),
        *STAT,
        *CENSUS,
    ]
)
"""One row per topic z-node, ``ledgers`` sorted by id. ``shadow_source`` is the topic a shadow topic reads from.
``low_watermark``: the first position not deleted on request, as its property says; null where there is none.
``offload_uuids`` are those of every offload attempt that a ledger names, complete or not, streaming segments too; null
where there is none."""

MANAGED_CURSORS = pa.schema(
    [
        pa.field("managed_ledger", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("cursor", pa.string()),
        pa.field("cursors_ledger_id", pa.int64()),
        pa.field("mark_delete_ledger_id", pa.int64()),
        pa.field("mark_delete_entry_id", pa.int64()),
        pa.field("compacted_ledger_id", pa.int64()),
        pa.field(
            "buckets",
            pa.list_(
                pa.struct(
                    [pa.field("start", pa.int64()), pa.field("end", pa.int64()), pa.field("ledger_id", pa.int64())]
                )
            ),
        ),
        pa.field("last_active", pa.int64()),
        pa.field("replicated_subscription", pa.bool_()),
        *STAT,
        *CENSUS,
    ]
)
"""One row per cursor z-node. ``cursors_ledger_id`` -1: the position is in the node, otherwise the node's is stale.
``compacted_ledger_id`` and ``replicated_subscription`` are the node's copy, stale while a cursor ledger is open.
``cursor`` is its name as ``model.cursor_name`` shows it: two z-nodes of a topic may share one."""

SCHEMAS = pa.schema(
    [
        pa.field("schema_id", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field(
            "versions",
            pa.list_(
                pa.struct(
                    [
                        pa.field("version", pa.int64()),
                        pa.field("ledger_id", pa.int64()),
                        pa.field("entry_id", pa.int64()),
                    ]
                )
            ),
        ),
        *STAT,
        *CENSUS,
    ]
)
"""One row per schema locator below ``/schemas``; ``versions`` joins ``info`` and ``index``."""

TOPICS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("managed_ledger", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("load_state", pa.string()),
        pa.field("load_reason", pa.string()),
        pa.field("load_detail", pa.string()),
        pa.field("broker", pa.string()),
        pa.field("broker_started", pa.int64()),
        pa.field("first_ledger_id", pa.int64()),
        pa.field("last_ledger_id", pa.int64()),
        pa.field("last_ledger_state", pa.string()),
        pa.field("ledgers", pa.int32()),
        pa.field("terminated", pa.bool_()),
        pa.field("compaction", pa.string()),
        pa.field("compaction_error", pa.string()),
        pa.field("retention_minutes", pa.int64()),
        pa.field("retention_mb", pa.int64()),
        pa.field("ttl_seconds", pa.int64()),
        *STAT,
        *CENSUS,
    ]
)
"""One row per topic z-node with what decides whether we may touch it. ``load_state`` is a ``topic_load.LoadState``,
``load_reason`` a ``LoadReason`` with its ``load_detail``; ``broker_started``: when its broker did (ms; null: it does
not say); ``compaction``: what the owner broker says of a loaded topic that has a ``__compaction`` cursor, a
``topic_load.CompactionStatus``; ``compaction_error``: why it said nothing. Policies of its namespace: -1 is unlimited,
null is unset."""

REFERENCES = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("owner", pa.string()),
        pa.field("referrer", pa.string()),
        pa.field("keeps_bookkeeper_copy", pa.bool_()),
        pa.field("problem", pa.string()),
        pa.field("error", pa.string()),
        pa.field("held_in", pa.int64()),
        pa.field("entry_id", pa.int64()),
    ]
)
"""Who refers to a ledger: ``kind`` is one of ``references.KINDS``, ``referrer`` a z-node path or a broker's word.
``keeps_bookkeeper_copy`` is false only for an offloaded ledger whose BookKeeper copy is listed as deleted. A row with a
``problem`` stands for references that could not be read: ``gone``, ``damaged`` and ``unanswered`` keep their owner,
``unread`` blocks; ``error`` says more. ``held_in`` and ``entry_id`` are then the entry that holds them, if one does, -1
for the last one of an open ledger."""

FINDINGS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("finding", pa.string()),
        pa.field("code", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("component", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("cursor", pa.string()),
        pa.field("schema_id", pa.string()),
        pa.field("bucket_key", pa.string()),
        pa.field("state", pa.string()),
        pa.field("entries", pa.int64()),
        pa.field("logical_bytes", pa.int64()),
        pa.field("physical_bytes", pa.int64()),
        pa.field("path", pa.string()),
        *STAT,
    ]
)
"""One row per ledger that is not plainly in use. ``finding`` is a ``findings.Finding``; ``code`` says why, one of
``orphans.CODES``, and ``reason`` is the sentence. ``physical_bytes`` = ``logical_bytes`` x write quorum."""


def stored_name(table: str, root: str) -> str:
    """The folder of a root's table in a scan: ``TABLE`` or ``TABLE@ROOT``."""
    return f"{table}@{root}" if root else table


def pick(schema: pa.Schema, columns: str | None) -> pa.Schema:
    """The fields that a comma-separated list names, in the schema's order; all of them for None or "".

    Raises KeyError naming the first unknown column.
    """
    if not columns:
        return schema
    wanted = {name.strip() for name in columns.split(",") if name.strip()}
    unknown = sorted(wanted.difference(schema.names))
    if unknown:
        raise KeyError(f"unknown column {unknown[0]!r}; there are {', '.join(schema.names)}")
    return pa.schema([field for field in schema if field.name in wanted])


OBJECTS = pa.schema(
    [
        pa.field("bucket", pa.string()),
        pa.field("key", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("action", pa.string()),
        pa.field("code", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("uuid", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("objects", pa.int32()),
        pa.field("bytes", pa.int64()),
        pa.field("modified", pa.int64()),
        pa.field("upload_id", pa.string()),
    ]
)
"""One row per offloaded copy (its one or two objects), other object, or upload. ``code`` says why it stays, or goes: a
``codes.Code``, or what protects its owner; ``reason`` is the sentence. ``key`` is a copy's data object's; ``modified``
(ms) of its newer object, or when the upload began, whose ``bytes`` are not known (0)."""

JOURNAL = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("plan_id", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("component", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
        pa.field("code", pa.string()),
    ]
)
"""One row per decision or effect of a run. ``code`` is null where the outcome says it all, and in files of earlier
versions."""

ARCHIVE = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("czxid", pa.int64(), nullable=False),
        pa.field("ctime", pa.int64(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
    ]
)
"""One row per z-node of a ledger, as it was before its deletion."""

SNAPSHOTS = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("subscription", pa.string(), nullable=False),
        pa.field("bucket_key", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False),
        pa.field("entries", pa.list_(pa.binary()), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
    ]
)
"""One row per snapshot of a delayed index, as it was before a repair replaced it."""

INTENTS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("copy", pa.string()),
        pa.field("component", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("at", pa.int64()),
    ]
)
"""One row per message of the deletion queue; ``ledger_id`` is -1 and its names are empty where it cannot be parsed."""

DEAD_LETTERS = pa.schema(
    [
        *INTENTS,
        pa.field("retries", pa.int64()),
        pa.field("code", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("message", pa.string()),
    ]
)
"""One row per message that failed to the last. ``code`` says why, ``reason`` is the sentence."""

GAPS = pa.schema([pa.field("code", pa.string()), pa.field("where", pa.string()), pa.field("text", pa.string())])
"""One row per ``gaps.Gap`` of a scan."""
