"""Plans that are applied by themselves: what the sensor launches, approvals, what follows a scan, alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.deletion import growth_shown, queue_age
from assets.names import CLUSTER, PLAN, READER
from orchestration.automatic.alerts import failure_document
from orchestration.automatic.automation import LAUNCHES, follows_scan
from orchestration.definitions import build_defs
from pulsar_lifecycle.automation_settings import AutomationSettings, KindAutomation
from pulsar_lifecycle.deletion_queue.queue_state import PartitionState, QueueState, Waits
from pulsar_lifecycle.errors import Refused, UsageError
from pulsar_lifecycle.inspect.automation import KINDS, approve_plan, decision_of, growth_of
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.records.outcomes import Waiting
from pulsar_lifecycle.records.plans.deletion_plan import PlanSummary
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.automation_rule import AutomationCode
from pulsar_lifecycle.runs.caps import Lowered, automation_caps
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import load_settings
from resources.lifecycle import LifecycleResource
from tests.kit.scenes.retention_scene import RetentionScene
from tests.kit.settings import write_settings

RETENTION = next(kind for kind in KINDS if kind.name == "retention")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def planned(scene: RetentionScene) -> PlanSummary:
    scene.topic("a", 100, 100, 100)
    return make_retention_plan(scene.cluster, scene.scan())[0]


def automated(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, **retention: Any) -> Cluster:
    """The cluster with these settings of retention; the code location's resource gives it."""
    automation = AutomationSettings(retention=KindAutomation(**{"max_share": 1.0, **retention}))
    settings = scene.settings.model_copy(update={"automation": automation})
    where = Cluster(settings, connect=scene.cluster.connect, given=scene.cluster.given)
    for name in ("cluster", "without_spark"):
        monkeypatch.setattr(LifecycleResource, name, lambda self: where)
    return where


def rung(instance: dg.DagsterInstance) -> Any:
    defs = build_defs()
    sensor = defs.get_repository_def().get_sensor_def("automation")
    context = dg.build_sensor_context(
        instance=instance, resources={"lifecycle": LifecycleResource()}, repository_def=defs.get_repository_def()
    )
    return sensor.evaluate_tick(context)


def test_the_sensor_launches_what_an_operator_would(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    where, plan = automated(scene, monkeypatch, mode="apply"), planned(scene)
    ids = scene.listed("a")
    with dg.DagsterInstance.ephemeral() as instance:
        (request,) = rung(instance).run_requests
        assert (request.job_name, request.run_key) == ("apply_retention", f"retention-{plan.plan_id}")
        assert (request.tags[CLUSTER], request.tags[PLAN]) == ("test", plan.plan_id)
        job = build_defs().resolve_job_def("apply_retention")
        resources = {"lifecycle": LifecycleResource()}
        assert job.execute_in_process(request.run_config, instance=instance, resources=resources).success
        assert scene.listed("a") == ids[2:]
        again = rung(instance)
        assert not again.run_requests
        assert "retention: taken" in again.skip_message
    assert decision_of(where, RETENTION)[0].code is AutomationCode.TAKEN


@pytest.mark.parametrize("mode", ["off", "plan", "approve"])
def test_nothing_is_launched_that_nobody_ordered(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    automated(scene, monkeypatch, mode=mode)
    planned(scene)
    with dg.DagsterInstance.ephemeral() as instance:
        assert not rung(instance).run_requests


def test_nothing_is_launched_while_paused(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    automated(scene, monkeypatch, mode="apply")
    planned(scene)
    control.pause(scene.servers.open_store(), "test")
    with dg.DagsterInstance.ephemeral() as instance:
        found = rung(instance)
        assert not found.run_requests
        assert "paused" in found.skip_message


def test_an_approved_plan_goes_and_the_journal_says_who(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    where, plan = automated(scene, monkeypatch, mode="approve"), planned(scene)
    approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    (row,) = journal_rows(where.journal_reader, plan_id=plan.plan_id).to_pylist()
    assert (row["action"], row["outcome"], row["run_id"]) == ("approve-plan", "approved", "run-1")
    assert '"by": "ann"' in row["detail"]
    with dg.DagsterInstance.ephemeral() as instance:
        assert len(rung(instance).run_requests) == 1
    approve_plan(where, "run-2", plan.plan_id, plan.digest, "bob", withdraw=True)
    assert decision_of(where, RETENTION)[0].code is AutomationCode.NOT_APPROVED


def test_an_approval_expires(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    where, plan = automated(scene, monkeypatch, mode="approve"), planned(scene)
    approve_plan(where, "run-1", plan.plan_id, plan.digest, "ann")
    scene.servers.clock.advance(43_200)
    assert decision_of(where, RETENTION)[0].code is AutomationCode.APPROVAL_EXPIRED


def test_what_cannot_be_approved_is_refused(scene: RetentionScene) -> None:
    plan = planned(scene)
    with pytest.raises(Refused, match="you gave other"):
        approve_plan(scene.cluster, "r", plan.plan_id, "other", "ann")
    with pytest.raises(UsageError, match="by: say who"):
        approve_plan(scene.cluster, "r", plan.plan_id, plan.digest, " ")
    with pytest.raises(UsageError, match="never goes by itself"):
        approve_plan(scene.cluster, "r", "load-e-1", "d", "ann")
    scene.servers.clock.sleep(86_401)
    with pytest.raises(Refused, match="expired"):
        approve_plan(scene.cluster, "r", plan.plan_id, plan.digest, "ann")


def test_only_named_namespaces_go(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(scene)
    for names, code in ((("acme",), "goes"), (("acme/orders",), "goes"), (("acme/other",), "empty")):
        where = automated(scene, monkeypatch, mode="apply", namespaces=names)
        assert decision_of(where, RETENTION)[0].code == code


def test_every_kind_with_plans_has_a_job() -> None:
    names = {job.name for job in build_defs().get_repository_def().get_all_jobs()}
    assert {kind.name for kind in KINDS} == set(LAUNCHES)
    assert {launch.job for launch in LAUNCHES.values()} <= names


def test_the_caps_of_a_launch_by_hand_hold_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = "apply.max_ledgers = 5\nautomation.retention.max_share = 0.02\n"
    settings = load_settings(str(write_settings(tmp_path, monkeypatch, more=more)))
    assert automation_caps(settings, settings.automation.retention) == Lowered(5, 0.02, 10 << 40, 1_000)


def test_a_kind_that_is_off_does_not_follow_scans() -> None:
    assert follows_scan("c", KindAutomation(mode="off")) is None
    assert follows_scan("c", KindAutomation()) is not None


def test_an_alert_says_what_failed_and_nothing_of_the_configuration() -> None:
    run = dg.DagsterRun("offload", run_id="r1", run_config={"secret": "s"}, tags={PLAN: "p", "other": "x"})
    found = failure_document("east", run, "x" * 9_000)
    assert (found["job"], found["run_id"], found[PLAN], len(found["error"])) == ("offload", "r1", "p", 4_000)
    assert "secret" not in str(found)
    assert "other" not in found


def test_a_plan_that_grew_turns_its_check(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    where, plan = automated(scene, monkeypatch, mode="plan", growth_from=1), planned(scene)
    assert growth_of(where, "retention", plan) == (True, 0)
    assert growth_of(automated(scene, monkeypatch, mode="plan"), "retention", plan) == (False, 0)
    assert not growth_shown(True, 0, 2).passed


def test_intents_that_wait_for_long_turn_the_queues_check() -> None:
    day = 86_400_000
    part = PartitionState("t", True, 1, 1, 0, waits=(Waits(Waiting.TURN, 1, 1_000),))
    assert queue_age(QueueState((part,), (), ()), day).passed
    late = queue_age(QueueState((part,), (), ()), 2 * day)
    assert (late.passed, late.severity) == (False, dg.AssetCheckSeverity.WARN)
    lost = queue_age(QueueState((PartitionState("t", False, None),), (), ()), day)
    assert (lost.passed, lost.severity) == (False, dg.AssetCheckSeverity.ERROR)


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
