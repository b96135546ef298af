"""Plans of bookies to have collect, over the bookies of ``collection_scene`` and a scan of a cluster of fakes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.automation_settings import AutomationSettings
from pulsar_lifecycle.inspect.automation import KINDS
from pulsar_lifecycle.lifecycle.bookies.collection_planning import make_collection_plan
from pulsar_lifecycle.lifecycle.bookies.collection_run import Collected, collect_bookies
from pulsar_lifecycle.lifecycle.bookies.disk_run import build_bookie_disk
from pulsar_lifecycle.run_settings import CollectionSettings
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from tests.kit.scenes.lifecycle.collection_scene import GB, Scene
from tests.kit.scenes.retention_scene import RetentionScene

BOOKIES = next(kind for kind in KINDS if kind.name == "bookies")
ALWAYS = {"cron": "* * * * *", "duration": "1h"}
"""A window that is open all the time."""


class PlannedCollections:
    """Bookies ``a`` and ``b`` of one rack, ``c`` of another; each could free some 30 GB, and collects for two looks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene = RetentionScene(folder, monkeypatch)
        self.told = Scene()
        self.bookies, self.clock = self.told.bookies, self.scene.servers.clock
        self.clock.on_sleep = lambda _: self.told.tick()
        racks = b'{"default": {"a": {"rack": "/1"}, "b": {"rack": "/1"}, "c": {"rack": "/2"}}}'
        self.scene.servers.put("/bookies", racks)
        connect = type("WithBookies", (self.scene.cluster.connect,), {"bookies": self.bookies})  # type: ignore[misc]
        least = CollectionSettings(min_bytes=25 * GB)
        settings = self.scene.settings.model_copy(update={"collection": least})
        self.cluster = replace(self.scene.cluster, settings=settings, connect=connect)

    def planned(self) -> PlanSummary:
        """The plan of a new scan and of what the bookies say now."""
        epoch = self.scene.scan()
        disks, _ = build_bookie_disk(self.cluster, epoch.epoch_id)
        return make_collection_plan(self.cluster, epoch, disks)[0]

    def automated(self, **bookies: Any) -> Cluster:
        """The cluster with these settings of ``[automation.bookies]``."""
        automation = AutomationSettings.model_validate({"bookies": bookies})
        return replace(self.cluster, settings=self.cluster.settings.model_copy(update={"automation": automation}))

    def collect(self, plan: PlanSummary, run_id: str = "run") -> dict[str, Collected]:
        """Apply a plan; what became of the bookies that were told."""
        order = Order(plan.plan_id, plan.digest)
        _, done = collect_bookies(self.cluster, run_id, lambda _: None, order=order)
        return {one.bookie: one for one in done}
