"""A retention plan: ledgers past their retention, by which policy, and what keeps some of them.

Belongs here: rows and digest; the summary is a ``PlanSummary``. Not here: the rule (``lifecycle/retention.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.values import plans

EXPIRED_LEDGERS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("bytes", pa.int64()),
        pa.field("physical_bytes", pa.int64()),
        pa.field("expired_by", pa.string()),
        pa.field("expired_at", pa.int64()),
        pa.field("retention_minutes", pa.int64()),
        pa.field("retention_mb", pa.int64()),
        pa.field("level", pa.string()),
        pa.field("kept", pa.string()),
    ]
)
"""One row per ledger that is past its retention, acknowledged or not, and per ledger of a topic of which nobody knows.
``bytes`` as its topic lists it; ``physical_bytes``: what its replicas take on the bookies' disks, 0 where BookKeeper
does not have it or it was never closed. ``expired_by``: the ``Verdict`` of the limit it is past, null where its policy
or a cursor is not known; ``expired_at`` (ms): when its retention time ended, null where it did not: nobody knows since
when the size alone is passed. ``level``: where the policy was set. ``kept``: the ``Verdict`` or ``Protection`` by which
it stays all the same; null for what goes. A plan's rows are those that go, sorted by ledger id."""

_FACTS = ("plan_id", "cluster", "fingerprint", "epoch_id", "created_at", "actionable", "cluster_ledgers")


def as_capped(rows: pa.Table) -> pa.Table:
    """The rows as the caps count them: a ledger that is in a bucket alone weighs as much as one copy."""
    weight = pc.max_element_wise(rows.column("bytes"), rows.column("physical_bytes"))
    return rows.set_column(rows.column_names.index("physical_bytes"), "physical_bytes", weight)


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the id-sorted canonical rows and the facts that make the plan actionable."""
    return plans.digest(rows.select(EXPIRED_LEDGERS.names), {name: summary[name] for name in _FACTS})
