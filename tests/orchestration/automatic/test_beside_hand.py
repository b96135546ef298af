"""The sensor beside what a person launched: such a run has no tag before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.names import CLUSTER
from orchestration.automatic.launches import LAUNCHES
from orchestration.definitions import build_defs
from resources.lifecycle import LifecycleResource
from tests.kit.automated_cluster import automated, planned
from tests.kit.scenes.retention_scene import RetentionScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def rung(instance: dg.DagsterInstance) -> Any:
    repository = build_defs().get_repository_def()
    context = dg.build_sensor_context(
        instance=instance, resources={"lifecycle": LifecycleResource()}, repository_def=repository
    )
    return repository.get_sensor_def("automation").evaluate_tick(context)


def by_hand(job: str, config: dict[str, Any], status: dg.DagsterRunStatus) -> dg.DagsterRun:
    ops = {LAUNCHES["retention"].op: {"config": config}}
    return dg.DagsterRun(job, status=status, run_config={"ops": ops})


@pytest.mark.parametrize(
    "status", [dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]
)
def test_a_plan_is_left_to_the_run_that_a_person_launched_for_it(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, status: dg.DagsterRunStatus
) -> None:
    automated(scene, monkeypatch, mode="apply")
    plan = planned(scene)
    config = {"plan_id": plan.plan_id, "digest": plan.digest, "dry_run": False}
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.add_run(by_hand("apply_retention", config, status))
        told = rung(instance)
        assert not told.run_requests
        assert f"run {run.run_id}, launched by hand, is to apply it" in told.skip_message


@pytest.mark.parametrize(
    ("job", "other"),
    [
        ("apply_retention", {"dry_run": True}),
        ("apply_retention", {"dry_run": None}),
        ("apply_retention", {"plan_id": "retention-1"}),
        ("another", {}),
        ("apply_retention", {"status": dg.DagsterRunStatus.SUCCESS}),
    ],
    ids=["a dry run", "a dry run by default", "another plan", "another job", "one that has ended"],
)
def test_what_else_a_person_launched_keeps_no_plan_back(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, job: str, other: dict[str, Any]
) -> None:
    automated(scene, monkeypatch, mode="apply")
    plan = planned(scene)
    status = other.pop("status", dg.DagsterRunStatus.STARTING)
    config = {"plan_id": plan.plan_id, "digest": plan.digest, "dry_run": False, **other}
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_run(by_hand(job, {name: value for name, value in config.items() if value is not None}, status))
        (request,) = rung(instance).run_requests
        assert request.tags[CLUSTER] == "test"
