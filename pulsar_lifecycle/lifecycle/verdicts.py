"""What retention says of each ledger of a topic: codes, and the tables that the rule takes and gives.

Not here: the rule (``lifecycle/retention.py``), the codes of what protects a whole topic (``topics/protection.py``).
"""

from __future__ import annotations

from enum import StrEnum

import pyarrow as pa


class RetentionVerdict(StrEnum):
    """Whether a ledger is past its retention, and by what; or what keeps it."""

    EXPIRED_BY_TIME = "expired_by_time"
    """Acknowledged by every durable cursor, and closed longer ago than the retention time."""
    EXPIRED_BY_SIZE = "expired_by_size"
    """Acknowledged, and the ledgers after it fill the retention size alone."""
    NO_RETENTION = "no_retention"
    """Acknowledged, and retention time or size is 0."""
    EMPTY = "empty"
    """Without entries, and every ledger before it goes."""

    LAST_LEDGER = "last_ledger"
    """The last ledger of its topic: brokers may write it, or take its age anew when they load the topic."""
    CURSOR = "cursor"
    """A durable cursor stands in it, or before it."""
    WITHIN_TIME = "within_time"
    """Younger than the retention time."""
    WITHIN_SIZE = "within_size"
    """Within the retention size, and time does not limit."""
    FOREVER = "forever"
    """Neither time nor size limits."""
    NOT_PREFIX = "not_prefix"
    """Past its retention or empty, but a ledger before it stays: ledgers go from the oldest on."""

    COPY = "copy_not_deletable"
    """Past its retention or empty, but a deletion run would keep a copy of it: its topic must go on listing it."""

    UNKNOWN_POLICY = "unknown_policy"
    """The retention in force is not known."""
    UNKNOWN_CURSOR = "unknown_cursor"
    """The persisted position of a cursor of its topic is not known."""
    UNKNOWN_LEDGER = "unknown_ledger"
    """Its entries, its size or its closing time are not known."""


GOING = frozenset(
    {
        RetentionVerdict.EXPIRED_BY_TIME,
        RetentionVerdict.EXPIRED_BY_SIZE,
        RetentionVerdict.NO_RETENTION,
        RetentionVerdict.EMPTY,
    }
)
"""The verdicts by which a ledger goes."""

RETENTION_LEDGER = pa.struct(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("entries", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("closed_at", pa.int64()),
    ]
)
"""A ledger as a broker would see it: by its topic's z-node, and by BookKeeper where that says nothing. Null: unknown.
"""

RETENTION_TOPICS = pa.schema(
    [
        pa.field("managed_ledger", pa.string()),
        pa.field("ledgers", pa.list_(RETENTION_LEDGER)),
        pa.field("retention_minutes", pa.int64()),
        pa.field("retention_mb", pa.int64()),
        pa.field("durable_cursors", pa.int32()),
        pa.field("slowest_ledger_id", pa.int64()),
        pa.field("slowest_entry_id", pa.int64()),
        pa.field("kept", pa.string()),
    ]
)
"""One row per topic. ``ledgers`` ascend by id. Retention: below 0 is unlimited, null is unknown. ``durable_cursors``:
how many there are, null is unknown; ``slowest_*``: the lowest of their persisted mark-delete positions, null where one
of them is unknown. ``kept``: the ``Protection`` of the topic, null for none."""

RETENTION_VERDICTS = pa.schema(
    [
        pa.field("managed_ledger", pa.dictionary(pa.int32(), pa.string())),
        pa.field("ledger_id", pa.int64()),
        pa.field("size", pa.int64()),
        pa.field("verdict", pa.dictionary(pa.int8(), pa.string())),
        pa.field("expired_by", pa.dictionary(pa.int8(), pa.string())),
        pa.field("expires_at", pa.int64()),
        pa.field("goes_when_loaded", pa.bool_()),
        pa.field("alone", pa.dictionary(pa.int8(), pa.string())),
    ]
)
"""One row per ledger, in the order of ``RETENTION_TOPICS``. ``verdict``: a ``RetentionVerdict``, or the ``Protection``
of its topic. ``expired_by``: by which of ``GOING`` it is past its retention, whatever keeps it; null where it is not,
or nobody knows. ``expires_at`` (ms): when its retention time ends or ended; null without one. ``goes_when_loaded``:
a broker that loads the topic now and trims it takes the ledger away, protected or not; false also where that cannot
be said. ``alone``: the ``RetentionVerdict`` of the ledger itself, as if nothing protected its topic and it were
neither the last ledger nor behind one that stays."""
