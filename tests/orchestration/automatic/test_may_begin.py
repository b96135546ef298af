"""Whether a run that the sensor launched still begins once it has waited in Dagster's queue."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData
from dagster._core.storage.tags import RETRY_NUMBER_TAG, RUN_KEY_TAG, SENSOR_NAME_TAG
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from assets.pages.switch import SWITCH
from orchestration.automatic.automation import IN_VAIN, TRIES
from orchestration.automatic.may_begin import may_begin
from orchestration.definitions import build_defs
from pulsar_lifecycle.runs.automation_rule import AutomationCode
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.trimming.retention_run import apply_retention
from resources.lifecycle import LifecycleResource
from tests.kit.automated_cluster import automated, planned, rung
from tests.kit.scenes.retention_scene import RetentionScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def test_a_run_that_waited_asks_once_more_whether_it_may_begin(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    automated(scene, monkeypatch, mode="apply")
    planned(scene)
    ids = scene.listed("a")
    job, resources = build_defs().resolve_job_def("apply_retention"), {"lifecycle": LifecycleResource()}
    with dg.DagsterInstance.ephemeral() as instance:
        (request,) = rung(instance).run_requests

        def run() -> dg.ExecuteInProcessResult:
            return job.execute_in_process(
                request.run_config, instance=instance, resources=resources, tags=request.tags, raise_on_error=False
            )

        shut = {"cron": "0 0 30 2 *", "duration": "1h"}
        narrower: tuple[dict[str, Any], ...] = (
            {"window": shut},
            {"namespaces": ["acme"]},
            {"max_ledgers_per_topic": 5},
        )
        modes: tuple[dict[str, Any], ...] = ({"mode": "plan"}, {"mode": "off"}, {"mode": "approve"})
        for change in (*modes, *({"mode": "apply"} | some for some in narrower)):
            automated(scene, monkeypatch, **change)
            assert did_nothing(run()), change
            assert scene.listed("a") == ids
        automated(scene, monkeypatch, mode="apply")
        assert run().success
        assert scene.listed("a") == ids[2:]
        assert did_nothing(run())  # another run has applied the plan by then
        assert scene.listed("a") == ids[2:]


def did_nothing(run: dg.ExecuteInProcessResult) -> bool:
    """Whether a run ended well, and says that it did nothing."""
    (ended,) = [one for one in run.all_events if one.event_type is dg.DagsterEventType.STEP_OUTPUT]
    events = [one for one in run.all_events if one.event_type is dg.DagsterEventType.ASSET_OBSERVATION]
    return run.success and list(ended.step_output_data.metadata) == ["nothing was done"] and not events


def test_a_run_that_was_not_to_begin_is_launched_again_and_spends_no_try(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(scene)
    job, resources = build_defs().resolve_job_def("apply_retention"), {"lifecycle": LifecycleResource()}
    keys: set[str] = set()
    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(IN_VAIN):
            automated(scene, monkeypatch, mode="apply")
            (request,) = rung(instance).run_requests
            keys.add(str(request.run_key))
            automated(scene, monkeypatch, mode="apply", window={"cron": "0 0 30 2 *", "duration": "1h"})
            tags = {**request.tags, RUN_KEY_TAG: str(request.run_key)}
            assert did_nothing(
                job.execute_in_process(request.run_config, instance=instance, resources=resources, tags=tags)
            )
        automated(scene, monkeypatch, mode="apply")
        assert f"not to begin {IN_VAIN} times" in rung(instance).skip_message
    assert len(keys) == IN_VAIN > TRIES


def test_a_retry_by_dagster_does_not_end_well_over_what_its_first_try_began(
    scene: RetentionScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, plan = automated(scene, monkeypatch, mode="apply"), planned(scene)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        (request,) = rung(instance).run_requests
        launched = dict(request.run_config)
        apply_retention(where, "by hand", Order(plan.plan_id, plan.digest), dry_run=False)
        retry = waiting(dg.RunRequest(run_config=launched, job_name=request.job_name, tags=request.tags), again=True)
        tried = retry.with_tags({**retry.tags, RETRY_NUMBER_TAG: "1"})
        assert AutomationCode.TAKEN in refusal(instance, where, tried, plan.plan_id)


def waiting(request: dg.RunRequest, *, again: bool = False, **tags: str) -> dg.DagsterRun:
    """The run that the daemon makes of a request; ``again``: executed again."""
    target = LoadableTargetOrigin(python_file="defs.py")
    repository = RemoteRepositoryOrigin(InProcessCodeLocationOrigin(target, location_name="here"), "__repository__")
    return dg.DagsterRun(
        request.job_name or "",
        run_config=request.run_config,
        tags={**request.tags, SENSOR_NAME_TAG: SWITCH, **tags},
        parent_run_id="before" if again else None,
        root_run_id="before" if again else None,
        remote_job_origin=repository.get_job_origin(request.job_name or ""),
    )


def switched(instance: dg.DagsterInstance, run: dg.DagsterRun, status: InstigatorStatus) -> None:
    """The sensor of the run's code location is set to this."""
    assert run.remote_job_origin
    origin = run.remote_job_origin.repository_origin.get_instigator_origin(SWITCH)
    state = InstigatorState(origin, InstigatorType.SENSOR, status, SensorInstigatorData())
    if instance.get_instigator_state(origin.get_id(), state.selector_id):
        instance.update_instigator_state(state)
    else:
        instance.add_instigator_state(state)


def refusal(instance: dg.DagsterInstance, where: Cluster, run: dg.DagsterRun, plan_id: str) -> str:
    """Why a run may not begin; empty if it may. One that Dagster repeats fails."""
    shown: dict[str, str] = {}
    context: Any = SimpleNamespace(
        run=run, instance=instance, log=logging.getLogger(), add_output_metadata=shown.update
    )
    if not instance.has_run(run.run_id):
        instance.add_run(run)
    if run.parent_run_id and RETRY_NUMBER_TAG in run.tags:
        with pytest.raises(dg.Failure) as refused:
            may_begin(context, where, plan_id)
        return refused.value.description or ""
    assert may_begin(context, where, plan_id) is not bool(shown)
    return shown.get("nothing was done", "")


def test_a_run_that_waited_does_not_begin_once_the_switch_is_off(
    scene: RetentionScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, plan = automated(scene, monkeypatch, mode="apply"), planned(scene)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        (request,) = rung(instance).run_requests
        run = waiting(request)
        for status, off in (
            (InstigatorStatus.RUNNING, False),
            (InstigatorStatus.STOPPED, True),
            (InstigatorStatus.RUNNING, False),
            (InstigatorStatus.DECLARED_IN_CODE, True),
        ):
            switched(instance, run, status)
            assert ("sensor automation is switched off" in refusal(instance, where, run, plan.plan_id)) == off
        assert not refusal(instance, where, waiting(request, again=True), plan.plan_id)


def test_only_a_person_executes_a_run_again_that_may_not_begin_any_more(
    scene: RetentionScene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instance that retries runs executes what was refused again, with the tags that it had."""
    automated(scene, monkeypatch, mode="apply")
    plan = planned(scene)
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        (request,) = rung(instance).run_requests
        where = automated(scene, monkeypatch, mode="plan")
        assert "plan_only" in refusal(instance, where, waiting(request), plan.plan_id)
        retried = waiting(request, again=True, **{RETRY_NUMBER_TAG: "1"})
        assert "plan_only" in refusal(instance, where, retried, plan.plan_id)
        assert not refusal(instance, where, waiting(request, again=True), plan.plan_id)
