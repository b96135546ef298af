"""A stored scan and a plan of it, for commands and pages that show plans.

Belongs here: what a lake holds. Not here: running a command (``command.py``).
"""

from __future__ import annotations

import time
from dataclasses import replace

from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.plans import deletion_plan
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.tables import FINDINGS

TOPIC = "persistent://shop/orders/placed"


def store_scan(lake: FileLake, started_at: int) -> None:
    """The scan of the stored plan, begun at ``started_at`` (ms)."""
    context = Context(now=started_at, grace=1, namespaces=frozenset())
    lake.store_epoch(Epoch("e1", "test", "f", started_at, started_at, (), 1, 1, ()), Referenced(), context)


def store_plan(lake: FileLake) -> PlanSummary:
    """A plan of one ledger out of ten, just made, and its scan."""
    row = {
        "ledger_id": 7,
        "finding": "orphan",
        "code": "unreferenced",
        "reason": "nothing refers to it",
        "component": "managed-ledger",
        "cursor": None,
        "topic": TOPIC,
        "namespace": "shop/orders",
        "logical_bytes": 1000,
        "physical_bytes": 2000,
        "entries": 3,
        "ctime": 1_700_000_000_000,
    }
    rows = FINDINGS.empty_table().from_pylist([row], FINDINGS)
    now = time.time_ns() // 1_000_000
    summary = PlanSummary("orphans-1", "test", "f", "e1", "e0", now, True, (), 1, 1000, 2000, 10, "")
    summary = replace(summary, digest=deletion_plan.digest(rows, summary.to_json()))
    lake.store_plan(summary, rows)
    store_scan(lake, now)
    return summary
