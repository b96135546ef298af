"""Plans of a scene that go by themselves, of retention and of offloads, and its cluster with automation settings."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pyarrow as pa
import pytest

from orchestration.definitions import build_defs
from pulsar_lifecycle.automation_settings import AutomationSettings, KindAutomation
from pulsar_lifecycle.inspect.automation import KINDS
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.plans.offload_plan import CANDIDATES, OffloadChoice, OffloadPlan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from resources.lifecycle import LifecycleResource
from tests.kit.scenes.retention_scene import RetentionScene

RETENTION = next(kind for kind in KINDS if kind.name == "retention")
OFFLOAD = {kind.name: kind for kind in KINDS if kind.kind is PlanKind.OFFLOAD}


def planned(scene: RetentionScene) -> PlanSummary:
    scene.topic("a", 100, 100, 100)
    return make_retention_plan(scene.cluster, scene.scan())[0]


def offload_planned(scene: RetentionScene, offloaded: int, deleted: int, *, ordered: bool = False) -> OffloadPlan:
    """A stored plan of so many ledgers of one topic, of a scan that listed a thousand."""
    actions = [OffloadChoice.OFFLOAD] * offloaded + [OffloadChoice.DELETE_COPY] * deleted
    of_each = {"topic": "persistent://acme/orders/a", "bytes": 1}
    rows = pa.Table.from_pylist(
        [{**of_each, "ledger_id": number, "action": action.value} for number, action in enumerate(actions)], CANDIDATES
    )
    epoch = scene.scan()
    plan = OffloadPlan(
        f"offload-{epoch.epoch_id}-{int(ordered)}", epoch.cluster, epoch.fingerprint, epoch.epoch_id,
        scene.servers.clock.now_ms(), True, (), (), offloaded, offloaded, deleted, deleted, 0, 0, 0, 0, "d", ordered,
    )  # fmt: skip
    scene.lake.store_offload_plan(plan, rows)
    return plan


def automated(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, **retention: Any) -> Cluster:
    """The cluster with these settings of retention; the code location's resource gives it."""
    automation = AutomationSettings(retention=KindAutomation(**{"max_share": 1.0, **retention}))
    settings = scene.settings.model_copy(update={"automation": automation})
    where = Cluster(settings, connect=scene.cluster.connect, given=scene.cluster.given)
    for name in ("cluster", "without_spark"):
        monkeypatch.setattr(LifecycleResource, name, lambda self: where)
    return where


def rung(instance: dg.DagsterInstance) -> Any:
    """A tick of the sensor ``automation``."""
    defs = build_defs()
    sensor = defs.get_repository_def().get_sensor_def("automation")
    context = dg.build_sensor_context(
        instance=instance, resources={"lifecycle": LifecycleResource()}, repository_def=defs.get_repository_def()
    )
    return sensor.evaluate_tick(context)
