"""Plans that are applied by themselves: what the sensor launches and repeats, what follows a scan, alerts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import RUN_KEY_TAG

from assets.deletion import queue_age
from assets.names import CLUSTER, PLAN
from assets.pages.growth import GROWTH, growth_shown
from orchestration.automatic.alerts import cause_of, failure_document
from orchestration.automatic.at_work import DEAD_AFTER_SECONDS
from orchestration.automatic.automation import TRIES, follows_scan
from orchestration.automatic.launches import LAUNCHES
from orchestration.definitions import build_defs
from pulsar_lifecycle.automation_settings import AutomationSettings
from pulsar_lifecycle.deletion_queue.queue_state import PartitionState, QueueState, Waits
from pulsar_lifecycle.errors import Refused, StoreError
from pulsar_lifecycle.inspect.automation import (
    KINDS,
    AutomatedKind,
    Growth,
    approve_plan,
    decision_of,
    growth_of,
)
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.automation_rule import Amount, AutomationCode, PlanDecision
from pulsar_lifecycle.runs.caps import Lowered, automation_caps
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.outcomes import Waiting
from resources.lifecycle import LifecycleResource
from tests.kit.automated_cluster import RETENTION, automated, planned, rung
from tests.kit.scenes.retention_scene import RetentionScene
from tests.kit.settings import write_settings


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


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


def test_the_same_switch_works_the_queue_off_once_no_plan_goes(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    automated(scene, monkeypatch, mode="apply")
    planned(scene)
    scene.servers.deletion_topics.publish(b"due")
    with dg.DagsterInstance.ephemeral() as instance:
        (request,) = rung(instance).run_requests
        assert request.job_name == "apply_retention"
        job = build_defs().resolve_job_def("apply_retention")
        resources = {"lifecycle": LifecycleResource()}
        assert job.execute_in_process(request.run_config, instance=instance, resources=resources).success
        (request,) = rung(instance).run_requests
        assert request.job_name == "delete_pending"


@pytest.mark.parametrize("mode", ["off", "plan", "approve"])
def test_nothing_is_launched_that_nobody_ordered(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    automated(scene, monkeypatch, mode=mode)
    planned(scene)
    with dg.DagsterInstance.ephemeral() as instance:
        assert not rung(instance).run_requests


def test_nothing_is_launched_while_no_run_may_begin(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    automated(scene, monkeypatch, mode="apply")
    planned(scene)
    back = Gap(GapCode.HISTORY_BROKEN, "", "restored")
    with dg.DagsterInstance.ephemeral() as instance:
        with monkeypatch.context() as patch:
            patch.setattr("pulsar_lifecycle.scan.history_check.broken_since", lambda *_: back)
            assert rung(instance).skip_message == "store_went_back: restored"
        control.pause(scene.servers.open_store(), "test")
        assert "paused" in rung(instance).skip_message


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


def test_every_kind_with_plans_has_a_job() -> None:
    names = {job.name for job in build_defs().get_repository_def().get_all_jobs()}
    assert {kind.name for kind in KINDS} == set(LAUNCHES)
    assert {launch.job for launch in LAUNCHES.values()} <= names


def test_the_caps_of_a_launch_by_hand_hold_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = "apply.max_ledgers = 5\nautomation.retention.max_share = 0.02\n"
    settings = load_settings(str(write_settings(tmp_path, monkeypatch, more=more)))
    assert automation_caps(settings, settings.automation.retention) == Lowered(5, 0.02, 10 << 40, 1_000)


def test_a_kind_that_is_off_does_not_follow_scans() -> None:
    def follows(kind: str, mode: str) -> bool:
        return follows_scan("c", kind, AutomationSettings.model_validate({kind: mode})) is not None

    assert [follows("retention", mode) for mode in ("off", "plan", "approve", "apply")] == [False, True, True, True]
    assert [follows("delayed_index", mode) for mode in ("off", "plan", "apply")] == [False, False, True]
    assert follows_scan("c", "", AutomationSettings()) is not None


@pytest.mark.parametrize(("copies", "follows"), [("off", False), ("plan", True), ("apply", True)])
def test_a_plan_that_holds_what_another_kind_goes_by_follows_scans_for_it(copies: str, follows: bool) -> None:
    modes = AutomationSettings.model_validate({"offload": "off", "bookkeeper_copies": copies})
    assert (follows_scan("c", "offload", modes) is not None) is follows


def test_an_alert_says_what_failed_and_nothing_of_the_configuration() -> None:
    run = dg.DagsterRun("offload", run_id="r1", run_config={"secret": "s"}, tags={PLAN: "p", "other": "x"})
    found = failure_document("east", run, "x" * 9_000)
    assert (found["job"], found["run_id"], found[PLAN], len(found["error"])) == ("offload", "r1", "p", 4_000)
    assert "secret" not in str(found)
    assert "other" not in found


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (Refused("apply: the cluster is paused"), "apply: the cluster is paused"),
        (dg.Failure("nothing was done"), "nothing was done"),
        (KeyError("topic"), "KeyError: 'topic'"),
    ],
)
def test_an_alert_says_our_errors_in_their_own_words(error: Exception, told: str) -> None:
    @dg.op
    def fails() -> None:
        raise error

    @dg.job
    def failing() -> None:
        fails()

    events = failing.execute_in_process(raise_on_error=False).all_events
    assert [cause_of(event) for event in events if event.is_step_failure] == [told]


def test_a_plan_that_grew_turns_its_check(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    where, plan = automated(scene, monkeypatch, mode="plan", growth_from=1), planned(scene)
    grew, amount = growth_of(where, "retention", plan), Amount(2, plan.physical_bytes)
    assert grew == Growth("retention", amount, Amount(), True)
    few = growth_of(automated(scene, monkeypatch, mode="plan"), "retention", plan)
    assert few == Growth("retention", amount, None, False)
    found = growth_shown(dg.AssetKey("p"), [few, grew])
    assert (found.passed, found.severity, found.metadata["retention"].value) == (False, dg.AssetCheckSeverity.WARN, 2)
    assert "far more than the 0 and 0 B of" in (found.description or "")
    assert found.metadata["retention bytes"].value == plan.physical_bytes
    assert growth_shown(dg.AssetKey("p"), [few]).passed


def test_every_kind_with_an_asset_of_its_plans_has_the_check() -> None:
    """Plans of consumed records have no asset: their run's page says it."""
    checks = build_defs().get_repository_def().asset_graph.asset_check_keys
    assert {check.asset_key.path[-1] for check in checks if check.name == GROWTH} == {
        "deletion_plan", "retention_plan", "offload_plan", "orphan_objects", "delayed_index_plan", "collection_plan",
    }  # fmt: skip


def test_intents_that_wait_for_long_turn_the_queues_check() -> None:
    day = 86_400_000
    part = PartitionState("t", True, 1, 1, 0, waits=(Waits(Waiting.TURN, 1, 1_000),))
    assert queue_age(QueueState((part,), (), ()), day).passed
    late = queue_age(QueueState((part,), (), ()), 2 * day)
    assert (late.passed, late.severity) == (False, dg.AssetCheckSeverity.WARN)
    due = QueueState((PartitionState("t", True, 1, 1, 0, due_since=1_000),), (), ())
    untaken = queue_age(due, 2 * day)
    assert (untaken.passed, untaken.severity) == (False, dg.AssetCheckSeverity.WARN)
    shut = queue_age(due, 2 * day, waits_for_window=True)
    assert (shut.passed, shut.description) == (True, "what is due waits for the window of automation.delete_pending")
    unseen = queue_age(QueueState((PartitionState("t", True, 1),), (), (), "no broker"), day)
    assert (unseen.passed, unseen.description) == (False, "how long intents wait could not be seen: no broker")
    lost = queue_age(QueueState((PartitionState("t", False, None),), (), ()), day)
    assert (lost.passed, lost.severity) == (False, dg.AssetCheckSeverity.ERROR)


NAMES = [kind.name for kind in KINDS]


def goes(where: Cluster, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """As if a plan of these kinds had been made, and nothing kept it."""
    plan = where.lake.retention_plans()[-1]

    def decided(_: Cluster, kind: AutomatedKind, plan_id: str = "") -> tuple[PlanDecision, Any]:
        code = AutomationCode.GOES if kind.name in names else AutomationCode.EMPTY
        return PlanDecision(code, "so it was said", plan.plan_id), plan

    monkeypatch.setattr("orchestration.automatic.automation.decision_of", decided)


def ended(instance: dg.DagsterInstance, request: dg.RunRequest, status: dg.DagsterRunStatus) -> dg.DagsterRun:
    """A run that was requested, and ended so."""
    assert request.run_key
    tags = {**request.tags, RUN_KEY_TAG: request.run_key}
    run = instance.add_run(dg.DagsterRun(request.job_name or "", status=dg.DagsterRunStatus.STARTED, tags=tags))
    if status is dg.DagsterRunStatus.FAILURE:
        instance.report_run_failed(run, "test")
    elif status is dg.DagsterRunStatus.CANCELED:
        instance.report_run_canceled(run, "test")
    return run


def now_is(scene: RetentionScene, seconds: float) -> None:
    """Set the scene's clock to so long after the present, by which Dagster dates runs."""
    scene.servers.clock.advance(time.time() + seconds - scene.servers.clock.now_ms() / 1000)


def test_every_kind_may_be_launched_by_the_sensor(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster fails a whole tick that asks for a job its sensor does not name."""
    where = automated(scene, monkeypatch, mode="apply")
    planned(scene)
    for name in NAMES:
        goes(where, monkeypatch, name)
        with dg.DagsterInstance.ephemeral() as instance:
            (request,) = rung(instance).run_requests
            assert (request.job_name, request.tags["lifecycle/automation"]) == (LAUNCHES[name].job, name)


def test_a_kind_that_always_has_something_to_do_keeps_no_other_from_its_turn(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = automated(scene, monkeypatch, mode="apply")
    planned(scene)
    waiting = ["orphans", "retention", "delayed_index"]
    with dg.DagsterInstance.ephemeral() as instance:
        for name in waiting:
            goes(where, monkeypatch, *waiting)
            (request,) = rung(instance).run_requests
            assert request.tags["lifecycle/automation"] == name
            ended(instance, request, dg.DagsterRunStatus.FAILURE)


def test_a_run_that_failed_before_it_did_anything_is_repeated_but_not_for_ever(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    automated(scene, monkeypatch, mode="apply")
    planned(scene)
    keys: list[str] = []
    with dg.DagsterInstance.ephemeral() as instance:
        for tried in range(TRIES):
            (request,) = rung(instance).run_requests
            keys.append(str(request.run_key))
            ended(instance, request, dg.DagsterRunStatus.FAILURE)
            now_is(scene, 60)
            monkeypatch.setattr("orchestration.automatic.automation.decision_of", decision_anyway)
            assert "failed" in rung(instance).skip_message
            now_is(scene, 600 * (tried + 1))
        assert len(set(keys)) == TRIES
        assert f"failed {TRIES} times" in rung(instance).skip_message


def decision_anyway(where: Cluster, kind: AutomatedKind, plan_id: str = "") -> tuple[PlanDecision, Any]:
    """The plan as if it were young."""
    if kind is not RETENTION:
        return PlanDecision(AutomationCode.NO_PLAN, "none"), None
    plan = where.lake.retention_plans()[-1]
    return PlanDecision(AutomationCode.GOES, "it goes", plan.plan_id), plan


def test_a_run_that_somebody_ended_is_not_launched_again(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    automated(scene, monkeypatch, mode="apply")
    planned(scene)
    with dg.DagsterInstance.ephemeral() as instance:
        (request,) = rung(instance).run_requests
        ended(instance, request, dg.DagsterRunStatus.CANCELED)
        assert "canceled" in rung(instance).skip_message


def test_a_plan_that_cannot_be_read_holds_up_no_other_kind(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    automated(scene, monkeypatch, mode="apply")
    planned(scene)

    def decided(where: Cluster, kind: AutomatedKind, plan_id: str = "") -> tuple[PlanDecision, Any]:
        if kind.name == "orphans":
            raise StoreError("orphans-1: cannot be read")
        return decision_of(where, kind, plan_id)

    monkeypatch.setattr("orchestration.automatic.automation.decision_of", decided)
    with dg.DagsterInstance.ephemeral() as instance:
        (request,) = rung(instance).run_requests
        assert request.job_name == "apply_retention"


def test_a_run_whose_host_died_does_not_hold_up_automation(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    automated(scene, monkeypatch, mode="apply")
    planned(scene)
    monkeypatch.setattr("orchestration.automatic.automation.decision_of", decision_anyway)
    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.DagsterRun("apply_plan", status=dg.DagsterRunStatus.STARTING, tags={CLUSTER: "test"})
        instance.add_run(run)
        event = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "apply_plan")
        instance.report_dagster_event(event, run.run_id)
        now_is(scene, 60)
        assert f"once run {run.run_id} is over" in rung(instance).skip_message
        now_is(scene, DEAD_AFTER_SECONDS + 60)
        store = scene.servers.open_store()
        lease = control.take_lease(store, "test run", scene.servers.clock, 0)
        assert not rung(instance).run_requests
        control.release_lease(store, lease)
        assert len(rung(instance).run_requests) == 1
        found = instance.get_run_by_id(run.run_id)
        assert found
        assert found.status is dg.DagsterRunStatus.FAILURE
