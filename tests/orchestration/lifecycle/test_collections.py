"""Bookies that collect by a plan: who launches the job, what it waits for, and what its page and the plan's say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from assets.lifecycle.bookies import bookie_assets
from assets.names import APPLIED, APPLIED_PLAN, CLUSTER, PLAN, key
from assets.pages.growth import GROWTH
from orchestration.definitions import build_defs
from orchestration.lifecycle.bookies import collect_bookies_job
from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.lifecycle.bookies.collection_planning import run_config
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from resources.lifecycle import LifecycleResource
from tests.kit.automated_cluster import rung
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.lifecycle.collection_scene import GB, full
from tests.kit.scenes.lifecycle.planned_collections import ALWAYS, PlannedCollections

APPLY = {"mode": "apply", "window": ALWAYS, "growth_from_bytes": 1 << 40}
RESOURCES = {"lifecycle": LifecycleResource()}


@pytest.fixture
def bookies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlannedCollections:
    return PlannedCollections(tmp_path, monkeypatch)


def by_itself(bookies: PlannedCollections, monkeypatch: pytest.MonkeyPatch, **said: Any) -> None:
    quiet: Any = SimpleNamespace()  # what there would be of Spark
    where = replace(bookies.automated(**said), session=quiet)
    for name in ("cluster", "without_spark"):
        monkeypatch.setattr(LifecycleResource, name, lambda self: where)


def launched(plan: PlanSummary, instance: dg.DagsterInstance, **changes: Any) -> dg.ExecuteInProcessResult:
    """The job with the configuration of a plan's page, changed so."""
    config = {**run_config(plan)["ops"]["collect"]["config"], **changes}
    return collect_bookies_job.execute_in_process(
        {"ops": {"collect": {"config": config}}}, instance=instance, resources=RESOURCES, raise_on_error=False
    )


def page(run: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (ended,) = [one for one in run.all_events if one.event_type is dg.DagsterEventType.STEP_OUTPUT]
    return dict(ended.step_output_data.metadata)


def test_a_plan_is_launched_once_when_nothing_is_deleted(
    bookies: PlannedCollections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collection is refused while a run deletes: launched all the same, it would fail until its tries are spent."""
    by_itself(bookies, monkeypatch, **APPLY)
    plan = bookies.planned()
    with dg.DagsterInstance.ephemeral() as instance:
        store = bookies.scene.servers.open_store()
        lease = control.take_lease(store, "deletion run r", bookies.clock, 0)
        said = rung(instance).skip_message
        assert f"bookies: goes (3 bookies, {plan.physical_bytes} bytes), once no run holds {control.LEASE}" in said
        control.release_lease(store, lease)
        (request,) = rung(instance).run_requests
        assert (request.job_name, request.run_key) == ("collect_bookies", f"bookies-{plan.plan_id}")
        assert request.tags[PLAN] == plan.plan_id
        job = build_defs().resolve_job_def("collect_bookies")
        done = job.execute_in_process(request.run_config, instance=instance, resources=RESOURCES, tags=request.tags)
        assert done.success
        assert sorted({bookie for bookie, _ in bookies.bookies.collections}) == ["a", "b", "c"]
        assert "bookies: taken" in rung(instance).skip_message
        (tagged,) = instance.get_runs(dg.RunsFilter(tags={f"{APPLIED_PLAN}{plan.plan_id}": APPLIED}))
        assert tagged.run_id == done.run_id


def test_a_plan_waits_for_a_run_that_is_only_starting_to_delete(
    bookies: PlannedCollections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds no lease yet, but will by the time that the collection would begin."""
    by_itself(bookies, monkeypatch, **APPLY)
    bookies.planned()
    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.DagsterRun("apply_plan", status=dg.DagsterRunStatus.STARTING, tags={CLUSTER: "test"})
        instance.add_run(run)
        assert f"bytes), once run {run.run_id} is over" in rung(instance).skip_message


def test_a_plan_waits_while_it_is_not_known_whether_a_run_deletes(
    bookies: PlannedCollections, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_itself(bookies, monkeypatch, **APPLY)
    bookies.planned()

    def unreachable(operation: Operation) -> None:
        if f"{control.LEASE}/holder" in operation.paths:
            raise StoreError("not connected")

    bookies.scene.before = unreachable
    with dg.DagsterInstance.ephemeral() as instance:
        assert "bytes), not connected" in rung(instance).skip_message


@pytest.mark.parametrize("mode", ["off", "plan", "approve"])
def test_a_run_that_waited_does_nothing_once_its_kind_does_not_go(
    bookies: PlannedCollections, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    by_itself(bookies, monkeypatch, **APPLY)
    bookies.planned()
    with dg.DagsterInstance.ephemeral() as instance:
        (request,) = rung(instance).run_requests
        by_itself(bookies, monkeypatch, mode=mode)
        run = collect_bookies_job.execute_in_process(
            request.run_config, instance=instance, resources=RESOURCES, tags=request.tags
        )
        assert list(page(run)) == ["nothing was done"]
    assert bookies.bookies.collections == []


def test_by_hand_a_plan_is_a_dry_run_first(bookies: PlannedCollections, monkeypatch: pytest.MonkeyPatch) -> None:
    by_itself(bookies, monkeypatch)
    bookies.bookies.statuses["c"] = full("c", logs=5, live=5 * GB)
    plan = bookies.planned()
    bookies.bookies.statuses["b"] = full("b", logs=5, live=5 * GB)
    bookies.bookies.statuses["c"] = full("c")
    with dg.DagsterInstance.ephemeral() as instance:
        shown = page(launched(plan, instance))
        choices = {row.data["bookie"]: row.data["plan"] for row in shown["plan"].records}
        assert choices == {"a": "collect", "b": "little_to_free", "c": "not_planned"}
        assert bookies.bookies.collections == []
        assert launched(plan, instance, dry_run=False).success
        assert {bookie for bookie, _ in bookies.bookies.collections} == {"a"}
        refused = launched(plan, instance, dry_run=False, digest="another")
        assert not refused.success
        assert not launched(replace(plan, plan_id=""), instance).success  # a digest of no plan


def test_without_a_plan_all_that_could_free_much_collect(
    bookies: PlannedCollections, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_itself(bookies, monkeypatch)
    bookies.scene.scan()
    with dg.DagsterInstance.ephemeral() as instance:
        config = {"ops": {"collect": {"config": {"dry_run": False}}}}
        assert collect_bookies_job.execute_in_process(config, instance=instance, resources=RESOURCES).success
    assert {bookie for bookie, _ in bookies.bookies.collections} == {"a", "b", "c"}
    assert {row.plan_id for row in bookies.scene.servers.journal.rows} == {""}


def test_the_plan_is_made_of_the_disks_that_were_just_read(
    bookies: PlannedCollections, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_itself(bookies, monkeypatch, mode="approve")
    bookies.bookies.statuses["c"] = full("c", 0.96, logs=5, live=5 * GB)
    epoch = bookies.scene.scan()
    monkeypatch.setattr("assets.lifecycle.bookies.epoch_to_read", lambda *_: epoch.epoch_id)
    asked: list[str] = []
    status = bookies.bookies.status
    monkeypatch.setattr(bookies.bookies, "status", lambda bookie: (asked.append(bookie), status(bookie))[1])
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize([bookie_assets("test")], instance=instance, resources=RESOURCES)
        (plan,) = bookies.cluster.lake.collection_plans()
        event = done.asset_materializations_for_node("test_bookies")[-1]
        shown: Any = event.metadata
        assert event.asset_key == key("test", "collection_plan")
        assert (shown["plan id"].value, shown["digest"].value) == (plan.plan_id, plan.digest)
        assert f"pulsar-lifecycle approve {plan.plan_id} {plan.digest}" in shown["how to apply"].md_str
        assert {row.data["bookie"]: row.data["plan"] for row in shown["plan"].records} == {
            "a": "collect", "b": "collect", "c": "little_to_free",
        }  # fmt: skip
        assert "| c | a disk is at 96.0%, above diskUsageThreshold" in shown["settings"].md_str
        (growth,) = [one for one in done.get_asset_check_evaluations() if one.check_name == GROWTH]
        assert growth.passed
    assert sorted(asked) == ["a", "b", "c"]
