# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportAttributeAccessIssue=false
# pyright: reportMissingTypeStubs=false
# pyarrow and pyroaring have no types.
"""A deletion plan: its rows, its summary, its digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from pulsar_lifecycle.records import plans
from pulsar_lifecycle.records.gaps import Gaps
from pulsar_lifecycle.records.tables import FINDINGS

PLAN = FINDINGS
"""A plan's rows are findings of kind ``orphan``, sorted by ledger id."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What is stored beside a plan's rows and covered by nothing but itself; ``digest`` covers the rows.

    ``actionable`` is false for a report-only plan; ``gaps`` then says what was missing.
    """

    plan_id: str
    cluster: str
    fingerprint: str
    epoch_id: str
    confirmed_by: str
    created_at: int
    actionable: bool
    gaps: Gaps
    ledgers: int
    logical_bytes: int
    physical_bytes: int
    cluster_ledgers: int
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PlanSummary:
        """The inverse of :meth:`to_json`. Raises ValueError for another shape."""
        return _SUMMARY.validate_python(document)


_SUMMARY = TypeAdapter(PlanSummary)
_FACTS = (
    *("plan_id", "cluster", "fingerprint", "epoch_id", "confirmed_by", "created_at", "actionable"),
    "cluster_ledgers",
)


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the id-sorted canonical rows and the facts that make the plan actionable."""
    return plans.digest(rows.select(PLAN.names), {name: summary[name] for name in _FACTS})
