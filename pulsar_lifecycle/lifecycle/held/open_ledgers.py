"""Last ledgers that were never closed: what is in them, and which settings of rollover leave them open.

Belongs here: the rule, as codes, and its table. Pure. Not here: asking bookies for the bytes (``open_sizes.py``).
Upstream: ``ManagedLedgerImpl.currentLedgerIsFull`` and ``checkInactiveLedgerAndRollOver``, managed-ledger 4.0.7; the
defaults are those of ``ServiceConfiguration``. Brokers close a ledger only of a topic that they have loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.reasons import Reason
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.lifecycle.verdicts import RETENTION_LEDGER
from pulsar_lifecycle.topics.retention_policy import BYTES_PER_MB, MS_PER_MINUTE

_MIN, _MAX = "managedLedgerMinLedgerRolloverTimeMinutes", "managedLedgerMaxLedgerRolloverTimeMinutes"
_MEGABYTES, _ENTRIES = "managedLedgerMaxSizePerLedgerMbytes", "managedLedgerMaxEntriesPerLedger"
_INACTIVE = "managedLedgerInactiveLedgerRolloverTimeSeconds"
ROLLOVER_NAMES = frozenset({_MIN, _MAX, _MEGABYTES, _ENTRIES, _INACTIVE})
"""What broker.conf calls the settings of rollover."""


class OpenCause(StrEnum):
    """Why a ledger is not closed, or was not in time."""

    NOT_LOADED = "not_loaded"
    """No broker has its topic loaded, as the one that had it died. A broker that loads the topic closes it (job
    `load_topics`)."""
    MIN_TIME = "min_rollover_time"
    """It is full, and was not closed before `managedLedgerMinLedgerRolloverTimeMinutes` had passed since it was made.
    """
    MAX_TIME = "max_rollover_time"
    """It is not full, and `managedLedgerMaxLedgerRolloverTimeMinutes` is 0, or longer than its retention time."""
    NO_INACTIVE_TIME = "no_inactive_rollover"
    """It is not full, and `managedLedgerInactiveLedgerRolloverTimeSeconds` is 0: that nobody writes closes nothing."""
    SETTINGS_UNKNOWN = "settings_unknown"
    """The brokers differ in a setting of rollover, or do not say it."""


@dataclass(frozen=True, slots=True)
class Rollover:
    """Settings of the brokers: minutes, minutes, bytes, entries, seconds; 0 for none but for the first."""

    min_minutes: int
    max_minutes: int
    max_bytes: int
    max_entries: int
    inactive_seconds: int

    @classmethod
    def of(cls, brokers: Mapping[str, str]) -> Rollover | None:
        """Out of what all brokers say; None where one of the settings is missing or no number."""
        try:
            low, high, megabytes, entries, seconds = (
                int(brokers[name]) for name in (_MIN, _MAX, _MEGABYTES, _ENTRIES, _INACTIVE)
            )
        except (KeyError, ValueError):
            return None
        return cls(low, high, megabytes * BYTES_PER_MB, entries, seconds)


OPEN_LEDGERS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("managed_ledger", pa.string()),
        pa.field("made_at", pa.int64()),
        pa.field("loaded", pa.bool_()),
        pa.field("expired", pa.bool_()),
        pa.field("retention_minutes", pa.int64()),
        pa.field("retention_mb", pa.int64()),
        pa.field("entries", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("physical_bytes", pa.int64()),
        pa.field("causes", pa.list_(pa.string())),
        pa.field("closes_at", pa.int64()),
        pa.field("problem", pa.string()),
    ]
)
"""One row per last ledger that is not closed, of a topic that no broker lists, or of any other one if it was made
longer ago than the retention time in force, which is not 0. ``made_at`` (ms). ``loaded``: a broker has the topic, or
may. ``expired``: all of it would be past its retention by its age. ``bytes`` and ``entries`` as the bookies have them,
in no metadata; ``physical_bytes`` = ``bytes`` x write quorum; null where they are not known, ``problem`` says why.
``causes``: ``OpenCause`` codes. ``closes_at`` (ms): about when its broker closes it at the latest; null where nothing
does."""


OPEN_SIZES = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("open", pa.bool_()),
        pa.field("entries", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("physical_bytes", pa.int64()),
        pa.field("problem", pa.string()),
    ]
)
"""One row per ledger. ``open``: it is not closed, or nobody knows; ``physical_bytes`` = ``bytes`` x write quorum. Null
where that is not known, ``problem`` says why."""


def open_ledgers(
    listed: pa.Table, inputs: pa.Table, reasons: pa.Table, bookkeeper: pa.Table, idle: Any, now: int
) -> Any:
    """Rows of :data:`OPEN_LEDGERS` without entries, bytes and causes, at ``now`` (ms).

    ``listed`` (``tables.MANAGED_LEDGERS``) and ``inputs`` (``RETENTION_TOPICS``) are the same topics in the same order;
    ``reasons`` (``LEDGER_REASONS``) has a row for each of their ledgers in order. ``bookkeeper``
    (``tables.BOOKKEEPER_LEDGERS``) has the last ledger of each. ``idle``: managed ledgers that no broker lists and
    whose last ledger is not closed.
    """
    counts = np.asarray(whole(inputs.column("ledgers")).value_lengths().fill_null(0), np.int64)
    owner = np.flatnonzero(counts > 0)
    last = np.cumsum(counts)[owner] - 1
    ids = whole(reasons.column("ledger_id")).take(pa.array(last))
    known = bookkeeper.filter(
        pc.and_(bookkeeper.column("problem").is_null(), pc.not_equal(bookkeeper.column("state"), _CLOSED))
    )
    place = pc.index_in(ids, whole(known.column("ledger_id")))
    made = np.asarray(whole(known.column("ctime")).take(place).fill_null(now), np.int64)
    unlisted = np.asarray(pc.is_in(whole(listed.column("managed_ledger")), idle))[owner]
    minutes = np.asarray(whole(inputs.column("retention_minutes")).fill_null(-1), np.int64)[owner]
    aged = (minutes > 0) & (now - made > minutes * MS_PER_MINUTE)  # 0: each loaded topic has a young one
    shadow = np.asarray(whole(listed.column("shadow_source")).is_valid())[owner]
    chosen = np.asarray(place.is_valid()) & (unlisted | aged) & ~shadow
    rows = pa.array(owner[chosen])
    expired = pc.equal(whole(reasons.column("reason")).take(pa.array(last[chosen])), str(Reason.EXPIRED_OPEN))
    some = {
        "ledger_id": ids.filter(pa.array(chosen)),
        **{name: whole(listed.column(name)).take(rows) for name in ("topic", "namespace", "managed_ledger")},
        "made_at": pa.array(made[chosen]),
        "loaded": pa.array(~unlisted[chosen]),
        "expired": pc.or_(expired, pa.array(aged[chosen] & ~unlisted[chosen])),
        **{name: whole(inputs.column(name)).take(rows) for name in ("retention_minutes", "retention_mb")},
    }
    count = len(rows)
    empty = {field.name: pa.nulls(count, field.type) for field in OPEN_LEDGERS if field.name not in some}
    return pa.table([{**some, **empty}[name] for name in OPEN_LEDGERS.names], schema=OPEN_LEDGERS)


_CLOSED = LedgerState.CLOSED.name


def with_causes(row: Mapping[str, Any], rollover: Rollover | None) -> dict[str, Any]:
    """A row of :data:`OPEN_LEDGERS` whose bytes were asked for, with what leaves it open."""
    causes = [] if row["loaded"] else [OpenCause.NOT_LOADED]
    if rollover is None:
        causes.append(OpenCause.SETTINGS_UNKNOWN)
        return {**row, "causes": [str(one) for one in causes]}
    size, entries, minutes = row["bytes"] or 0, row["entries"] or 0, row["retention_minutes"]
    if size >= rollover.max_bytes or entries >= rollover.max_entries:
        causes.append(OpenCause.MIN_TIME)
    else:
        if rollover.max_minutes <= 0 or (minutes is not None and 0 < minutes < rollover.max_minutes):
            causes.append(OpenCause.MAX_TIME)
        if rollover.inactive_seconds <= 0:
            causes.append(OpenCause.NO_INACTIVE_TIME)
    closes = row["made_at"] + max(rollover.max_minutes, rollover.min_minutes) * MS_PER_MINUTE
    by_broker = row["loaded"] and rollover.max_minutes > 0
    return {**row, "causes": [str(one) for one in causes], "closes_at": closes if by_broker else None}


def with_sizes(lists: Any, sizes: pa.Table) -> Any:
    """``RETENTION_TOPICS.ledgers`` with what bookies said of the open ones; these have no time of closing.

    ``sizes`` has columns ``ledger_id``, ``entries`` and ``bytes``.
    """
    inner = lists.flatten()
    place = pc.index_in(inner.field("ledger_id"), whole(sizes.column("ledger_id")))
    entries, size = (whole(sizes.column(name)).take(place) for name in ("entries", "bytes"))
    known = {"entries": entries, "size": size}
    fields = [
        pc.coalesce(known[field.name], inner.field(field.name)) if field.name in known else inner.field(field.name)
        for field in RETENTION_LEDGER
    ]
    counts = np.asarray(lists.value_lengths().fill_null(0), np.int64)
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.StructArray.from_arrays(fields, fields=list(RETENTION_LEDGER)))
