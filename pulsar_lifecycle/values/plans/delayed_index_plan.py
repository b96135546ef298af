"""A plan of repairs of delayed indexes: a row per subscription.

Belongs here: rows and digest; the summary is a ``PlanSummary``, whose ``ledgers`` count subscriptions. Not here: the
rule (``delayed_index/repair/levels.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.values import plans

REPAIRS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("subscription", pa.string()),
        pa.field("level", pa.string()),
        pa.field("codes", pa.list_(pa.string())),
        pa.field("buckets", pa.list_(pa.string())),
        pa.field("messages", pa.int64()),
        pa.field("bytes", pa.int64()),
    ]
)
"""One row per subscription whose index is to be repaired. ``ledger_id``: its newest snapshot's ledger, -1 if no
property says one. ``level``: the ``RepairLevel``; ``codes``: the ``IndexFinding`` codes that ask for it. ``buckets``:
its bucket properties, ``KEY=VALUE``; a cursor that has others when the plan is applied is left alone. ``messages`` and
``bytes`` of its snapshots; of a subscription without any, the messages that are delayed."""

_FACTS = ("plan_id", "cluster", "fingerprint", "epoch_id", "created_at", "actionable", "cluster_ledgers")


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the id-sorted canonical rows and the facts that make the plan actionable."""
    return plans.digest(rows.select(REPAIRS.names), {name: summary[name] for name in _FACTS})


def as_capped(rows: pa.Table) -> pa.Table:
    """Rows as caps count them."""
    return rows.append_column("physical_bytes", rows.column("bytes"))
