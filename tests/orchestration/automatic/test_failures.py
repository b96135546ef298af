"""A refusal, a wrong run configuration or settings file shows as a Failure with its own words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import SENSOR_NAME_TAG

from assets.deletion import DELETING, deletion_assets, left_alone
from assets.names import NOTHING_DONE, key
from assets.pages.failures import refusals_fail
from assets.pages.switch import SWITCH
from orchestration.definitions import build_defs
from pulsar_lifecycle.automation_settings import AutomationSettings
from pulsar_lifecycle.deletion_queue.queue_state import PartitionState, QueueState
from pulsar_lifecycle.errors import LifecycleError, NotFound, Paused, RefusedBy, Unavailable, UsageError
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.refusals import RefusalCode
from resources.lifecycle import LifecycleResource
from tests.kit.fakes.clock import FakeClock
from tests.kit.scenes.retention_scene import RetentionScene
from tests.kit.settings import SETTINGS

OPEN = {"cron": "* * * * *", "duration": "1h"}
SHUT = {"cron": "0 0 30 2 *", "duration": "1h"}
"""A window that never opens."""


@pytest.mark.parametrize(
    ("job", "op", "config"),
    [
        ("redrive_dead_letters", "redrive", {}),
        ("apply_plan", "send_intents", {"plan_id": "p", "digest": "d"}),
        ("undo_deletions", "restore_ledgers", {"run_id": "r"}),
        ("reconcile_namespaces", "reconcile", {}),
    ],
)
def test_a_settings_file_that_is_wrong_fails_the_job_with_its_own_words(
    tmp_path: Path, job: str, op: str, config: dict[str, Any]
) -> None:
    file = tmp_path / "lifecycle.toml"
    file.write_text(SETTINGS.format(cluster="east", lake=tmp_path / "lake"))
    defs = build_defs(str(file))
    file.write_text("cluster = 7")
    done = defs.resolve_job_def(job).execute_in_process(
        run_config={"ops": {op: {"config": config}}, "loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
        resources={"lifecycle": LifecycleResource(config_file=str(file))},
        raise_on_error=False,
    )
    (event,) = [e for e in done.all_events if e.event_type_value == "STEP_FAILURE"]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None
    assert "cluster" in str(failure.description)
    assert "Traceback" not in str(failure.description)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UsageError("give either"), "give either"),
        (NotFound("there is no plan 'p'"), "there is no plan 'p'"),
        (Paused("paused: why"), "refused: paused: why"),
        (RefusedBy(RefusalCode.PLAN_DIFFERS, "its digest"), "refused (plan_differs): its digest"),
    ],
)
def test_what_is_refused_is_a_dagster_failure_that_says_its_code_first(error: LifecycleError, words: str) -> None:
    with pytest.raises(dg.Failure) as failed, refusals_fail():
        raise error
    assert failed.value.description == words


def deletion_failed(instance: dg.DagsterInstance | None = None, **tags: str) -> str:
    """Run the deletion job with these tags: the words of its failure; empty if it did not fail."""
    deletions = deletion_assets("test")[2]
    alone = dg.define_asset_job(DELETING, selection=[deletions])
    defs = dg.Definitions([deletions], jobs=[alone], resources={"lifecycle": LifecycleResource()})
    job = defs.resolve_job_def(DELETING)
    done = job.execute_in_process(raise_on_error=False, tags=tags, instance=instance)
    if done.success:
        return ""
    (event,) = (e for e in done.all_events if e.is_step_failure)
    failure = event.step_failure_data.user_failure_data
    assert failure is not None
    return str(failure.description)


def test_a_paused_deletion_run_is_refused_as_a_job_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = RetentionScene(tmp_path, monkeypatch)
    scene.scan()
    control.pause(scene.servers.open_store(), "look first")
    monkeypatch.setattr(LifecycleResource, "cluster", lambda self: scene.cluster)
    monkeypatch.setattr(Cluster, "spark", None)
    assert deletion_failed().startswith("refused: paused: ")


def test_a_deletion_run_that_waited_does_not_begin_once_the_switch_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = RetentionScene(tmp_path, monkeypatch)
    monkeypatch.setattr(LifecycleResource, "cluster", lambda self: scene.cluster)
    monkeypatch.setattr("assets.deletion.switched_off", lambda instance, run: "sensor automation is switched off")
    with dg.DagsterInstance.ephemeral() as instance:
        assert not deletion_failed(instance)
        (run,) = instance.get_runs()
        assert run.tags[NOTHING_DONE] == run.run_id
        assert not instance.get_latest_materialization_event(key("test", "ledger_deletions"))


@pytest.mark.parametrize(
    ("wanted", "begins"), [(True, True), (False, False), ({"window": OPEN}, True), ({"window": SHUT}, False)]
)
def test_a_deletion_run_that_waited_does_not_begin_where_the_settings_forbid_it_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool | dict[str, object], begins: bool
) -> None:
    scene = RetentionScene(tmp_path, monkeypatch)
    scene.scan()
    control.pause(scene.servers.open_store(), "look first")
    automation = AutomationSettings.model_validate({"delete_pending": wanted})
    settings = scene.settings.model_copy(update={"automation": automation})
    where = Cluster(settings, connect=scene.cluster.connect, given=scene.cluster.given)
    monkeypatch.setattr(LifecycleResource, "cluster", lambda self: where)
    monkeypatch.setattr(Cluster, "spark", None)
    paused = "refused: paused: "
    assert deletion_failed(**{SENSOR_NAME_TAG: SWITCH}).startswith(paused) is begins
    assert deletion_failed().startswith(paused)


@pytest.mark.parametrize("shut_meanwhile", [True, False])
def test_a_deletion_run_goes_on_if_its_window_was_open_as_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shut_meanwhile: bool
) -> None:
    """It scans first, which takes long; one that started before the window opened does nothing."""
    scene = RetentionScene(tmp_path, monkeypatch)
    scene.scan()
    control.pause(scene.servers.open_store(), "look first")
    started, hour = datetime.now(UTC), 3_600
    scene.servers.clock = FakeClock(int((started.timestamp() + 3 * hour) * 1000))
    opens = started if shut_meanwhile else started + timedelta(hours=3)
    window = {"cron": f"{opens.minute} {opens.hour} * * *", "duration": "1h"}
    automation = AutomationSettings.model_validate({"delete_pending": {"window": window}})
    settings = scene.settings.model_copy(update={"automation": automation})
    where = Cluster(settings, connect=scene.cluster.connect, given=scene.cluster.given)
    assert bool(left_alone(where)) is shut_meanwhile
    monkeypatch.setattr(LifecycleResource, "cluster", lambda self: where)
    monkeypatch.setattr(Cluster, "spark", None)
    assert deletion_failed(**{SENSOR_NAME_TAG: SWITCH}).startswith("refused: paused: ") is shut_meanwhile


@pytest.mark.parametrize(("window", "passes"), [(OPEN, False), (SHUT, True)])
def test_what_is_due_for_long_turns_the_queues_check_unless_it_waits_for_its_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: dict[str, object], passes: bool
) -> None:
    scene = RetentionScene(tmp_path, monkeypatch)
    automation = AutomationSettings.model_validate({"delete_pending": {"window": window}})
    settings = scene.settings.model_copy(update={"automation": automation})
    where = Cluster(settings, connect=scene.cluster.connect, given=scene.cluster.given)
    due = QueueState((PartitionState("t", True, 1, 1, 0, due_since=1_000),), (), ())
    monkeypatch.setattr("assets.deletion.look", lambda admin, reader, now: due)
    monkeypatch.setattr(LifecycleResource, "without_spark", lambda self: where)
    done = dg.materialize([deletion_assets("test")[1]], resources={"lifecycle": LifecycleResource()})
    (check,) = done.get_asset_check_evaluations()
    assert check.passed is passes


def test_what_a_server_did_not_do_stays_an_error_of_its_own() -> None:
    with pytest.raises(Unavailable), refusals_fail():
        raise Unavailable("no answer")
