"""An offload plan: its rows, its summary, its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.gaps import Gaps


class OffloadChoice(StrEnum):
    """What an offload plan does with a ledger: column ``action``."""

    OFFLOAD = "offload"
    """Copy the ledger to the object store."""
    DELETE_COPY = "delete_copy"
    """Delete its copy in BookKeeper."""
    BROKERS_DELETE = "brokers_delete"
    """Its copy in BookKeeper is due to go, but brokers delete such copies by themselves: set their deletion lag to -1.
    """
    DONE = "done"
    """It is offloaded, and nothing more is to be done now."""
    KEEP = "keep"
    """It stays as it is; the reason says why."""


class OffloadCode(StrEnum):
    """Why an offload plan does that with a ledger: column ``code``, if it is nothing that protects its topic."""

    ASKED_FOR = "asked_for"
    """An operator asked for all that is eligible."""
    SIZE_THRESHOLD = "size_threshold"
    """So many bytes come from here on that the threshold is passed."""
    AGE_THRESHOLD = "age_threshold"
    """It was closed so long ago that the threshold is passed."""
    BELOW_THRESHOLDS = "below_thresholds"
    """It is below the thresholds."""
    BEYOND_POSITION = "beyond_position"
    """An operator asked for what is before a position, and it is not."""
    NO_DRIVER = "no_driver"
    """No offload driver is configured for its topic."""
    OTHER_DRIVER = "other_driver"
    """Its driver is none that we write with."""
    BOOKKEEPER_FIRST = "bookkeeper_first"
    """Its brokers read BookKeeper first, as long as they have both copies."""
    NO_THRESHOLD = "no_threshold"
    """Its policy has no threshold: it is offloaded only when an operator asks."""
    RETENTION_FIRST = "retention_first"
    """By its policies retention would delete it before it is offloaded."""
    LEFT_OUT = "left_out"
    """Its brokers would read from another location than object_store names."""
    LAST_LEDGER = "last_ledger"
    """It is the last ledger of its topic."""
    CLOSED_UNKNOWN = "closed_unknown"
    """Its topic does not say when it was closed."""
    EMPTY = "empty"
    """It has no entries."""
    NEEDS_REPAIR = "needs_repair"
    """Its topic lists its copy in BookKeeper as deleted without a complete offload."""
    BOOKKEEPER_DELETED = "bookkeeper_deleted"
    """It is offloaded, and its copy in BookKeeper is listed as deleted."""
    NO_UUID = "no_uuid"
    """It is offloaded, and its topic does not name the attempt."""
    NO_LAG = "no_lag"
    """It is offloaded, and no deletion lag is set."""
    LAG = "lag"
    """It is offloaded, and its deletion lag has not passed."""
    LAG_PASSED = "lag_passed"
    """It is offloaded for longer than its deletion lag."""
    LEFTOVER = "leftover"
    """Its topic lists its copy in BookKeeper as deleted, and it is there still."""
    BROKERS_DELETE = "brokers_delete"
    """It is offloaded, and its copy in BookKeeper is its brokers' to delete."""
    DONE_SINCE = "done_since"
    """A run has offloaded it, or listed its copy in BookKeeper as deleted, since the scan began."""
    NO_BUCKET = "no_bucket"
    """It is offloaded to a bucket that its topic does not name, or that is not one of object_store.buckets."""


CANDIDATES = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("action", pa.string()),
        pa.field("code", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("entries", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("closed_at", pa.int64()),
        pa.field("uuid", pa.string()),
        pa.field("driver", pa.string()),
        pa.field("bucket", pa.string()),
        pa.field("region", pa.string()),
        pa.field("endpoint", pa.string()),
        pa.field("block_size", pa.int64()),
        pa.field("lag_ms", pa.int64()),
        pa.field("warning", pa.string()),
        pa.field("outlook", pa.string()),
    ]
)
"""One row per ledger of a topic with an offload policy, oldest first. ``code`` says why: an :class:`OffloadCode`, or
what protects its topic; ``reason`` is the sentence. ``uuid``: of the attempt that its topic names.
``bucket``: where an offloaded ledger lies, as far as its topic says; else its policy's. ``closed_at`` ms, sizes bytes;
``block_size`` null: the settings' own; ``lag_ms`` is the deletion lag of whoever deletes the copy; ``outlook`` is
empty, or ``left-to-broker`` where a run would leave it now."""


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """What is stored beside a plan's rows; ``digest`` covers the rows and the facts.

    The rows are those of :data:`CANDIDATES` that are to be offloaded, or whose copies in BookKeeper are to be deleted.
    ``actionable`` is false for a report-only plan; ``gaps`` then says what was missing. ``warnings`` stop nothing.
    ``left_to_broker`` of the rows are left if their topics stay loaded; ``brokers_delete`` ledgers are not among the
    rows. ``ordered``: an operator asked for it, whatever the thresholds.
    """

    plan_id: str
    cluster: str
    fingerprint: str
    epoch_id: str
    created_at: int
    actionable: bool
    gaps: Gaps
    warnings: tuple[str, ...]
    ledgers: int
    bytes: int
    copies: int
    copies_bytes: int
    left_to_broker: int
    left_to_broker_bytes: int
    brokers_delete: int
    brokers_delete_bytes: int
    digest: str
    ordered: bool = False

    @property
    def rows(self) -> int:
        """How many rows it has: ledgers to offload, and copies to delete."""
        return self.ledgers + self.copies

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> OffloadPlan:
        """The inverse of :meth:`to_json`. Raises ValueError for another shape.

        A plan of an earlier version does not say whether it is by order: it counts as one.
        """
        return _PLAN.validate_python({"ordered": True, **document})


_PLAN = TypeAdapter(OffloadPlan)
_FACTS = ("plan_id", "cluster", "fingerprint", "epoch_id", "created_at", "actionable")


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the id-sorted canonical rows and the facts that make the plan actionable."""
    return plans.digest(rows.select(CANDIDATES.names), {name: summary[name] for name in _FACTS})
