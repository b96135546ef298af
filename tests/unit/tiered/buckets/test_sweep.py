"""What a sweep refuses before it sends anything."""

from __future__ import annotations

import pyarrow as pa

from pulsar_lifecycle.runs.caps import Caps, Order
from pulsar_lifecycle.settings import ObjectStoreSettings
from pulsar_lifecycle.tiered.buckets import bucket_rules, bucket_runs
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import summary_of
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.values.tables import OBJECTS
from tests.kit.refused import refused_by
from tests.kit.simulated.cluster import SimulatedCluster
from tests.kit.simulated.connections import where_of
from tests.kit.simulated.pipeline import Policy, lake_of, settings_of, two_scans


def test_the_caps_of_one_launch_hold_for_copies_too() -> None:
    servers = SimulatedCluster()
    now, before = two_scans(servers)
    lake = lake_of(before, now)
    rows = pa.Table.from_pylist([{"topic": "persistent://t/n/x", "bytes": 10}] * 3, OBJECTS)
    created_at = servers.clock.now_ms()
    plan = summary_of(
        PlanKind.OBJECTS, "t", now.epoch, (), created_at, rows, bucket_rules.digest, cluster_ledgers=1_000
    )
    lake.store_object_plan(plan, rows)
    stored = ObjectStoreSettings(endpoint="http://simulated", buckets=("tiered",))

    def chosen(limit: int, max_ledgers: int = 9, max_bytes: int = 99) -> int:
        settings = settings_of(Policy(caps=Caps(max_ledgers, 1.0, max_bytes, 9)))
        cluster = where_of(servers, settings.model_copy(update={"object_store": stored}), lake)
        return bucket_runs.rows_to_sweep(cluster, Order(plan.plan_id, plan.digest, limit=limit)).num_rows

    assert (chosen(0), chosen(2, max_ledgers=2)) == (3, 2)
    with refused_by(RefusalCode.MAX_LEDGERS):
        chosen(0, max_ledgers=2)
    with refused_by(RefusalCode.MAX_BYTES):
        chosen(0, max_bytes=29)
