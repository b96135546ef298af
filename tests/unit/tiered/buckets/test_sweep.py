"""What a sweep refuses before it sends anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.records import plans
from pulsar_lifecycle.records.refusals import RefusalCode
from pulsar_lifecycle.runs import plan_checks
from pulsar_lifecycle.runs.caps import Caps, Order
from pulsar_lifecycle.tiered.buckets import bucket_rules, bucket_runs
from tests.kit.refused import refused_by


def test_the_caps_of_one_launch_hold_for_copies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"topic": ["persistent://t/n/x"] * 3, "bytes": pa.array([10, 10, 10], pa.int64())})
    summary = SimpleNamespace(epoch_id="e", cluster_ledgers=1_000, to_json=dict)
    lake = SimpleNamespace(object_plan=lambda _: (summary, rows), epoch=None)
    settings = SimpleNamespace(orphans=SimpleNamespace(plan_valid_for=1), words_in_force=lambda _: frozenset())
    cluster: Any = SimpleNamespace(lake=lake, settings=settings, clock=SystemClock())
    for module, name in ((plans, "check_applicable"), (plan_checks, "check_scan"), (bucket_rules, "digest")):
        monkeypatch.setattr(module, name, lambda *_, **__: "")
    monkeypatch.setattr(bucket_runs, "_declared", lambda _: None)

    def chosen(limit: int, max_ledgers: int = 9, max_bytes: int = 99) -> int:
        caps = Caps(max_ledgers, 1.0, max_bytes, 9)
        return bucket_runs._chosen(cluster, Order("p", "d", limit=limit), caps, "fp")[1].num_rows  # pyright: ignore[reportPrivateUsage]

    assert (chosen(0), chosen(2, max_ledgers=2)) == (3, 2)
    with refused_by(RefusalCode.MAX_LEDGERS):
        chosen(0, max_ledgers=2)
    with refused_by(RefusalCode.MAX_BYTES):
        chosen(0, max_bytes=29)
