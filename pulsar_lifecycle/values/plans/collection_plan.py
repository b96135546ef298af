"""A collection plan: bookies that could free much of their disks by collecting now.

Belongs here: rows and digest; the summary is a ``PlanSummary``, whose ``ledgers`` and ``cluster_ledgers`` count
bookies. Not here: the rule (``lifecycle/bookies/collection.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.values import plans

COLLECTIONS = pa.schema(
    [
        pa.field("bookie", pa.string()),
        pa.field("rack", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("verdict", pa.string()),
    ]
)
"""One row per bookie that is to collect, in their order. ``bytes``: about as many could it free. ``verdict``: what its
disk waited for (``DiskVerdict``)."""
_FACTS = ("plan_id", "cluster", "fingerprint", "epoch_id", "created_at", "actionable", "cluster_ledgers")


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the canonical rows, sorted by bookie, and the facts that make the plan actionable."""
    return plans.digest(rows.select(COLLECTIONS.names), {name: summary[name] for name in _FACTS}, by="bookie")
