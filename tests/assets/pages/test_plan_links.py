"""From what a run did one click leads to the plan that ordered it, and its tag to the scan that the plan is of."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import dagster as dg
import pytest

from assets.names import EPOCH, key
from assets.pages import show
from assets.pages.plan_links import PlanLinks
from pulsar_lifecycle.values.plans import epoch_of
from tests.kit.scenes.assets_scene import AssetsScene
from tests.kit.scenes.retention_scene import RetentionScene

PLAN, ANOTHER = (f"retention-20261124T101112000-abc123-1f2{number}" for number in "ef")


@pytest.mark.parametrize("looked_at", [200, 1])
@pytest.mark.parametrize(("asset", "partition"), [("retention_plan", None), ("namespace_retention", "acme/orders")])
def test_a_plan_leads_to_the_event_that_made_it(
    asset: str, partition: str | None, looked_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where newer ones than are looked at have been made since."""
    monkeypatch.setattr("assets.pages.plan_links.LOOKED_AT", looked_at)
    with dg.DagsterInstance.ephemeral() as instance:
        for plan in (PLAN, ANOTHER):
            made = dg.AssetMaterialization(key("test", asset), partition=partition, metadata={"plan id": plan})
            instance.report_runless_asset_event(made)
        second, first = instance.fetch_materializations(key("test", asset), limit=2).records
        for plan, record in ((PLAN, first), (ANOTHER, second)):
            found = re.match(rf"- \[{plan}\]\((.*?)\): ", str(PlanLinks(instance, "test").shown([plan]).value))
            assert found
            link = urlsplit(found[1])
            assert link.path == f"/assets/test/{asset}"
            assert parse_qs(link.query) == {"view": ["events"], "asOf": [str(int(record.timestamp * 1000))]}


def test_a_plan_that_no_event_names_leads_to_its_runs() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        plans = ["by hand", PLAN]
        shown = PlanLinks(instance, "test").shown(plans)
        assert str(shown.value).splitlines() == [f"- {show.applied_by(plan)}" for plan in plans]


def test_the_tag_of_a_plans_scan_leads_to_that_scans_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        world = AssetsScene(RetentionScene(tmp_path, monkeypatch), instance, monkeypatch)
        for _ in range(2):
            world.scene.topic("a", 100, 90)
            world.scan("deletion_plan")
        plans = world.scene.lake.plans()
        assert len(plans) == 2
        for plan in plans:
            (run,) = instance.get_runs(dg.RunsFilter(tags={EPOCH: epoch_of(plan.plan_id)}))
            assert world.scene.lake.begun_by(epoch_of(plan.plan_id)) == run.run_id
