"""Job ``approve_plan`` beside others: found by its plan, in nobody's way, and no run that applied anything."""

from __future__ import annotations

import time
from pathlib import Path

import dagster as dg
import pytest

from assets.names import APPLIED_PLAN, CLUSTER, PLAN, TOLD
from assets.pages import lineage
from orchestration.automatic.at_work import APPROVING, at_work
from orchestration.definitions import build_defs
from pulsar_lifecycle.inspect.automation import approve_plan
from resources.lifecycle import LifecycleResource
from tests.kit.automated_cluster import automated, planned
from tests.kit.scenes.retention_scene import RetentionScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def begun(instance: dg.DagsterInstance) -> dg.DagsterRun:
    return instance.add_run(dg.DagsterRun(APPROVING, tags={CLUSTER: "test"}, status=dg.DagsterRunStatus.STARTED))


def test_a_run_that_approves_has_its_plan_and_holds_nothing_up(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, plan = automated(scene, monkeypatch, mode="approve"), planned(scene)
    config = {"plan_id": plan.plan_id, "digest": plan.digest, "by": "ann"}
    with dg.DagsterInstance.ephemeral() as instance:
        done = (
            build_defs()
            .resolve_job_def(APPROVING)
            .execute_in_process(
                {"ops": {"approve": {"config": config}}},
                instance=instance,
                resources={"lifecycle": LifecycleResource()},
            )
        )
        run = instance.get_run_by_id(done.run_id)
        assert run is not None
        assert (run.tags[CLUSTER], run.tags[PLAN]) == ("test", plan.plan_id)
        assert not any(name.startswith(APPLIED_PLAN) for name in run.tags)
        begun(instance)
        assert at_work(instance, "test", where.clock.now_ms()) == []


def test_a_run_that_failed_after_it_approved_is_not_among_those_that_applied_the_plan(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "ENDS_WITHIN", 0.0)
    scene.servers.clock.advance(time.time() - scene.now / 1000)  # Dagster dates runs by its host's clock
    where, plan = automated(scene, monkeypatch, mode="approve"), planned(scene)
    with dg.DagsterInstance.ephemeral() as instance:
        dead = begun(instance)
        approve_plan(where, dead.run_id, plan.plan_id, plan.digest, "ann")
        instance.report_run_failed(dead, "its process ended")

        @dg.op
        def work(context) -> None:
            with lineage.noted(context, where):
                pass

        @dg.job
        def next_one() -> None:
            work()

        assert next_one.execute_in_process(instance=instance).success
        run = instance.get_run_by_id(dead.run_id)
        assert run is not None
        assert run.tags[TOLD] == dead.run_id
        assert not any(name.startswith(APPLIED_PLAN) for name in run.tags)
