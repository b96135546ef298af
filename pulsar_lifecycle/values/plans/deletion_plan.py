"""A deletion plan: its rows and its digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.tables import FINDINGS

PLAN = FINDINGS
"""A plan's rows are findings of kind ``orphan``, sorted by ledger id."""

_FACTS = (
    *("plan_id", "cluster", "fingerprint", "epoch_id", "confirmed_by", "created_at", "actionable"),
    "cluster_ledgers",
)


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the id-sorted canonical rows and the facts that make the plan actionable.

    Raises Refused for rows without codes, which an earlier version stored.
    """
    if rows.column("code").null_count:
        raise plans.old_version(summary["plan_id"])
    return plans.digest(rows.select(PLAN.names), {name: summary[name] for name in _FACTS})
