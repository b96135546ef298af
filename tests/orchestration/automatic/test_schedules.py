"""When schedules start their jobs, and when they leave a time out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.names import EPOCH, READER, key
from orchestration.definitions import build_defs
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.gaps import Gap, GapCode
from resources.lifecycle import LifecycleResource
from tests.kit.scenes.retention_scene import RetentionScene


def test_a_schedule_leaves_a_time_out_while_its_run_is_not_over(tmp_path: Path) -> None:
    schedule = build_defs().get_repository_def().get_schedule_def("hourly_scan")
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:

        def rings() -> bool:
            return isinstance(schedule(dg.build_schedule_context(instance)), dg.RunRequest)

        def started(cluster: str, job: str = "scan") -> str:
            run = dg.DagsterRun(job, status=dg.DagsterRunStatus.STARTED, tags={READER: cluster})
            return instance.add_run(run).run_id

        assert rings()
        started("another")
        started("pulsar", "watch_queue")
        assert rings()
        before = started("pulsar")
        assert not rings()
        run = instance.get_run_by_id(before)
        assert run is not None
        instance.report_run_failed(run, "test")
        assert rings()


def test_retention_is_planned_where_nothing_planned_it_after_the_scan(tmp_path: Path) -> None:
    schedule = build_defs().get_repository_def().get_schedule_def("nightly_retention")
    assert schedule.job_name == "plan_retention"
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:

        def made(name: str, epoch: str) -> None:
            instance.report_runless_asset_event(dg.AssetMaterialization(key("pulsar", name), metadata={EPOCH: epoch}))

        def rings() -> bool:
            return isinstance(schedule(dg.build_schedule_context(instance)), dg.RunRequest)

        assert rings()
        made("scan_coverage", "e1")
        assert rings()
        made("retention_plan", "e1")
        assert not rings()
        made("scan_coverage", "e2")
        assert rings()

        def follows(name: str) -> None:
            made, tags = frozenset({key("pulsar", name)}), {READER: "pulsar"}
            instance.add_run(
                dg.DagsterRun("__ASSET_JOB", asset_selection=made, status=dg.DagsterRunStatus.STARTED, tags=tags)
            )

        follows("load_plan")
        assert rings()
        follows("retention_plan")
        assert not rings()


def test_plans_of_consumed_records_wait_for_a_scan_and_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster makes up for several times at once after an outage."""
    scene = RetentionScene(tmp_path, monkeypatch)
    named = scene.settings.consumed_records.model_copy(update={"subscriptions": {"acme/in": ("s",)}})
    settings = scene.settings.model_copy(update={"consumed_records": named})
    where = Cluster(settings, connect=scene.cluster.connect, given=scene.cluster.given)
    monkeypatch.setattr(LifecycleResource, "without_spark", lambda self: where)
    schedule = build_defs().get_repository_def().get_schedule_def("hourly_consumed_records")
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:

        def rung() -> Any:
            with dg.build_schedule_context(instance, resources={"lifecycle": LifecycleResource()}) as context:
                return schedule(context)

        assert "there is no scan of this cluster yet" in rung().skip_message
        scene.scan(Gap(GapCode.ZNODE_UNREAD, "", "unread"))
        assert "is not covered" in rung().skip_message
        scene.scan()
        first = rung()
        assert isinstance(first, dg.RunRequest)
        instance.add_run(dg.DagsterRun(schedule.job_name, status=dg.DagsterRunStatus.STARTED, tags=dict(first.tags)))
        assert isinstance(rung(), dg.SkipReason)
