# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false, reportMissingTypeStubs=false
# pyarrow has no types.
"""An offload plan: its rows, its summary, its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from pulsar_lifecycle.records import plans
from pulsar_lifecycle.records.gaps import Gaps


class OffloadChoice(StrEnum):
    """What an offload plan does with a ledger: column ``action``."""

    OFFLOAD = "offload"
    """Copy the ledger to the object store."""
    RELEASE = "release"
    """Release its copy in BookKeeper."""
    WITHHELD = "release-withheld"
    """Its copy in BookKeeper is due to go, but brokers give such copies up by themselves: set their deletion lag to -1.
    """
    DONE = "done"
    """It is offloaded, and nothing more is to be done now."""
    KEEP = "keep"
    """It stays as it is; the reason says why."""


CANDIDATES = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("action", pa.string()),
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
"""One row per ledger of a topic with an offload policy, oldest first. ``uuid``: of the attempt that its topic names.
``bucket``: where an offloaded ledger lies, as far as its topic says; else its policy's. ``closed_at`` ms, sizes bytes;
``block_size`` null: the settings' own; ``lag_ms`` is the deletion lag of whoever releases; ``outlook`` is empty, or
``left-to-broker`` where a run would leave it now."""


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """What is stored beside a plan's rows; ``digest`` covers the rows and the facts.

    The rows are those of :data:`CANDIDATES` that are to be offloaded or released. ``actionable`` is false for a
    report-only plan; ``gaps`` then says what was missing. ``warnings`` stop nothing. ``left_to_broker`` of the rows are
    left if their topics stay loaded; ``withheld`` ledgers are not among the rows.
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
    released: int
    released_bytes: int
    left_to_broker: int
    left_to_broker_bytes: int
    withheld: int
    withheld_bytes: int
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> OffloadPlan:
        """The inverse of :meth:`to_json`. Raises ValueError for another shape."""
        return _PLAN.validate_python(document)


_PLAN = TypeAdapter(OffloadPlan)
_FACTS = ("plan_id", "cluster", "fingerprint", "epoch_id", "created_at", "actionable")


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the id-sorted canonical rows and the facts that make the plan actionable."""
    return plans.digest(rows.select(CANDIDATES.names), {name: summary[name] for name in _FACTS})
