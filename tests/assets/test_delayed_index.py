"""The bodies of the delayed indexes' assets, checks and jobs, over fakes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from prometheus_client.parser import text_fd_to_metric_families

from assets.delayed_index import ALL_READ, IN_TIME, namespace_delayed_index_asset
from assets.late_messages import LATE, late_messages_check, late_result
from assets.names import namespace_partitions
from assets.pages import show
from assets.pages.growth import GROWTH
from orchestration.definitions import build_defs
from pulsar_lifecycle.automation_settings import Automation, AutomationSettings, KindAutomation
from pulsar_lifecycle.delayed_index.broker_settings import BUCKET_FACTORY
from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.errors import Unavailable, UsageError
from pulsar_lifecycle.inspect.automation import KINDS, approve_plan, decision_of
from pulsar_lifecycle.journal.index_metrics import PREFIX
from pulsar_lifecycle.runs.automation_rule import AutomationCode
from pulsar_lifecycle.runs.cluster import Cluster
from resources.lifecycle import LifecycleResource
from tests.kit.builders import entry
from tests.kit.scenes.delayed_scene import COUNT, DelayedScene
from tests.kit.scenes.retention_scene import NAMESPACE

RESOURCES = {"lifecycle": LifecycleResource()}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DelayedScene:
    made = DelayedScene(tmp_path, monkeypatch)

    def cluster(resource: LifecycleResource) -> Cluster:
        quiet: Any = SimpleNamespace()  # a session that nobody asks
        return Cluster(made.settings, connect=made.cluster.connect, given=made.cluster.given, session=quiet)

    for name in ("cluster", "without_spark"):
        monkeypatch.setattr(LifecycleResource, name, cluster)
    return made


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def check(scene: DelayedScene, instance: dg.DagsterInstance) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Job ``check_delayed_index`` on a new scan: the page of each asset, and each check."""
    scene.scan()
    done = (
        build_defs()
        .resolve_job_def("check_delayed_index")
        .execute_in_process(instance=instance, resources=RESOURCES, run_id=None)
    )
    pages = {
        event.asset_key.path[-1]: {
            k: v.value for k, v in event.step_materialization_data.materialization.metadata.items()
        }
        for event in done.all_events
        if event.is_step_materialization and event.asset_key
    }
    return pages, {one.check_name: one for one in done.get_asset_check_evaluations()}


def repair(scene: DelayedScene, instance: dg.DagsterInstance, plan: dict[str, Any], **config: Any) -> Any:
    config = {"plan_id": plan["plan id"], "digest": plan["digest"], **config}
    return (
        build_defs()
        .resolve_job_def("repair_delayed_index")
        .execute_in_process(
            {"ops": {"repair": {"config": config}}}, instance=instance, resources=RESOURCES, raise_on_error=False
        )
    )


def said(done: Any) -> str:
    (event,) = [one for one in done.all_events if one.is_successful_output]
    return event.step_output_data.metadata["by outcome"].value


def test_a_message_may_be_delayed_until_any_time(scene: DelayedScene, instance: dg.DagsterInstance) -> None:
    first, *_ = scene.backlog("a")
    payloads = scene.servers.reader.payloads[first]
    payloads[3] = entry(b"m", deliver_at_time=scene.now * 1000)  # microseconds
    payloads[4] = entry(b"m", deliver_at_time=(1 << 63) - 1)
    pages, _ = check(scene, instance)
    assert "after the year 9999" in pages["delayed_messages_due"]["pinned the longest"]
    assert pages["delayed_messages_due"]["by hour"].startswith("![")


def test_whole_indexes_are_green_and_need_no_repair(scene: DelayedScene, instance: dg.DagsterInstance) -> None:
    scene.backlog("a", cursors=("s", "t"))
    pages, checks = check(scene, instance)
    assert set(pages) == {
        "delayed_index_buckets", "delayed_index_findings", "delayed_messages_due", "delayed_index_plan"
    }  # fmt: skip
    buckets = pages["delayed_index_buckets"]
    assert (buckets["dagster/row_count"], buckets["messages"], buckets["messages not due"]) == (6, 300, 300)
    assert "| waiting | 6 |" in buckets["by state"]
    assert pages["delayed_index_findings"]["dagster/row_count"] == 0
    assert pages["delayed_messages_due"]["messages due"] == 6 * COUNT
    assert pages["delayed_messages_due"]["by hour"].startswith("![")
    assert "No delayed index needs a repair" in pages["delayed_index_plan"]["how to apply"]
    assert {name: one.passed for name, one in checks.items()} == dict.fromkeys((IN_TIME, ALL_READ, LATE, GROWTH), True)


def test_nothing_at_all_has_pages_too(scene: DelayedScene, instance: dg.DagsterInstance) -> None:
    scene.topic("a", 100)
    pages, checks = check(scene, instance)
    assert pages["delayed_index_buckets"]["dagster/row_count"] == 0
    assert all(one.passed for one in checks.values())


def test_lost_messages_are_red_and_a_repair_turns_them_green(scene: DelayedScene, instance: dg.DagsterInstance) -> None:
    first, *_ = scene.backlog("a")
    forged = scene.snapshot("a", first, without=2)
    scene.name_bucket("a", first, forged)
    before = scene.keys("a")
    pages, checks = check(scene, instance)
    assert "| lost | lost | 1 | 2 |" in pages["delayed_index_findings"]["by code"]
    assert not checks[IN_TIME].passed
    assert checks[ALL_READ].passed
    assert checks[LATE].passed  # lost, and not due yet
    plan = pages["delayed_index_plan"]
    assert "| rebuild | 1 |" in plan["by level"]
    assert "repair_delayed_index" in plan["how to apply"]

    dry = repair(scene, instance, plan)
    assert "| rebuild | goes | may_go | 1 |" in said(dry)
    assert scene.keys("a") == before

    done = repair(scene, instance, plan, dry_run=False)
    assert done.success
    assert "| rebuild | done | repaired | 1 |" in said(done)
    assert set(scene.keys("a").values()).isdisjoint(before.values())
    _, checks = check(scene, instance)
    assert checks[IN_TIME].passed

    back = repair(scene, instance, plan, dry_run=False, undo=True)
    assert "| undo | done | repaired | 1 |" in said(back)
    assert scene.keys("a") == before


def test_what_cannot_be_read_is_a_warning_and_plans_nothing(scene: DelayedScene, instance: dg.DagsterInstance) -> None:
    first, *_ = scene.backlog("a")
    scene.servers.reader.failures[scene.keys("a")[f"#pulsar.internal.delayed.bucket_{first}_{first}"]] = Unavailable(
        "x"
    )
    pages, checks = check(scene, instance)
    assert not checks[ALL_READ].passed
    assert checks[ALL_READ].severity is dg.AssetCheckSeverity.WARN
    assert pages["delayed_index_plan"]["dagster/row_count"] == 0


def test_a_subscription_that_changed_since_is_left_with_its_code(
    scene: DelayedScene, instance: dg.DagsterInstance
) -> None:
    first, second, _ = scene.backlog("a")
    scene.lose(scene.keys("a")[f"#pulsar.internal.delayed.bucket_{first}_{first}"])
    pages, _ = check(scene, instance)
    scene.name_bucket("a", second, scene.snapshot("a", second))
    before = scene.keys("a")
    done = repair(scene, instance, pages["delayed_index_plan"], dry_run=False)
    assert "| drop | left | changed_since_plan | 1 |" in said(done)
    assert scene.keys("a") == before


def test_a_repair_that_fails_fails_its_run_and_says_what_it_did(
    scene: DelayedScene, instance: dg.DagsterInstance
) -> None:
    first, *_ = scene.backlog("a")
    scene.name_bucket("a", first, scene.snapshot("a", first, without=1))
    pages, _ = check(scene, instance)
    before = scene.keys("a")
    scene.writer.failures = [Unavailable("no bookie takes entries")]
    done = repair(scene, instance, pages["delayed_index_plan"], dry_run=False)
    assert not done.success
    (failed,) = [one for one in done.all_events if one.is_step_failure]
    assert "no bookie takes entries" in json.dumps(failed.step_failure_data.error.to_string())
    assert scene.keys("a") == before


def test_the_textfile_has_the_five_metrics_of_the_pip(
    scene: DelayedScene, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    path = tmp_path / "x.prom"
    scene.set(metrics=scene.settings.metrics.model_copy(update={"textfile": str(path)}))
    first, *_ = scene.backlog("a")
    scene.name_bucket("a", first, scene.snapshot("a", first, without=1))
    pages, _ = check(scene, instance)
    with path.open() as file:
        names = {one.name for one in text_fd_to_metric_families(file) if one.name.startswith(PREFIX)}
    wanted = ("bucket_total", "loaded", "bucket_op_count", "bucket_snapshot_size_bytes", "bucket_op_latency_ms")
    assert names == {f"{PREFIX}_{one}" for one in wanted}
    assert repair(scene, instance, pages["delayed_index_plan"], dry_run=False).success
    with path.open() as file:
        samples = [sample for family in text_fd_to_metric_families(file) for sample in family.samples]
    found = {(one.name, *(v for k, v in sorted(one.labels.items()) if k != "cluster")): one.value for one in samples}
    assert found[f"{PREFIX}_bucket_total",] == 3
    assert found[f"{PREFIX}_bucket_snapshot_size_bytes",] == pages["delayed_index_buckets"]["bytes"]
    assert found[f"{PREFIX}_loaded",] > 0
    assert found[f"{PREFIX}_bucket_op_count", "succeed", "create"] == 3
    assert found[f"{PREFIX}_bucket_op_count", "all", "create"] == 3
    assert found[f"{PREFIX}_bucket_op_latency_ms", "50", "create"] == 3


def test_repairs_go_by_themselves_where_the_settings_say_so(scene: DelayedScene, instance: dg.DagsterInstance) -> None:
    first, *_ = scene.backlog("a")
    scene.name_bucket("a", first, scene.snapshot("a", first, without=1))
    summary, _ = make_repair_plan(scene.cluster, scene.checked())
    before = scene.keys("a")
    defs = build_defs()
    sensor = defs.get_repository_def().get_sensor_def("automation")

    def rung() -> Any:
        return sensor.evaluate_tick(
            dg.build_sensor_context(instance=instance, resources=RESOURCES, repository_def=defs.get_repository_def())
        )

    assert not rung().run_requests
    scene.set(automation=AutomationSettings(delayed_index=KindAutomation(mode=Automation.APPLY, max_share=1.0)))
    (request,) = rung().run_requests
    assert (request.job_name, request.run_key) == ("repair_delayed_index", f"delayed_index-{summary.plan_id}")
    job = defs.resolve_job_def("repair_delayed_index")
    assert job.execute_in_process(request.run_config, instance=instance, resources=RESOURCES).success
    assert scene.keys("a").keys() == before.keys()
    assert set(scene.keys("a").values()).isdisjoint(before.values())
    assert "delayed_index: taken" in rung().skip_message


def test_another_digest_or_a_plan_nobody_made_is_refused(scene: DelayedScene, instance: dg.DagsterInstance) -> None:
    first, *_ = scene.backlog("a")
    scene.lose(scene.keys("a")[f"#pulsar.internal.delayed.bucket_{first}_{first}"])
    summary, _ = make_repair_plan(scene.cluster, scene.checked())
    before = scene.keys("a")
    for plan in ({"plan id": summary.plan_id, "digest": "0" * 64}, {"plan id": "repair-none", "digest": "x"}):
        assert not repair(scene, instance, plan, dry_run=False).success
    assert not repair(scene, instance, {"plan id": summary.plan_id, "digest": "x"}, dry_run=False, undo=True).success
    assert scene.keys("a") == before


def finding(due: int | None, harm: str = "late", messages: int = 3) -> dict[str, Any]:
    return {"topic": "t", "subscription": "s", "code": "unindexed", "harm": harm, "messages": messages, "due": due}


@pytest.mark.parametrize(("due", "passed"), [(9, False), (10, False), (11, True), (None, False)])
def test_messages_are_late_once_they_are_due(due: int | None, passed: bool) -> None:
    found = late_result("test", [finding(due)], 10)
    assert (found.passed, found.severity, bool(found.description)) == (passed, dg.AssetCheckSeverity.ERROR, True)
    assert found.metadata["findings"].value == (0 if passed else 1)


def test_the_late_ones_turn_red_by_time_alone(scene: DelayedScene, instance: dg.DagsterInstance) -> None:
    """The check runs without reading an index again, and sees what has become due since."""
    first, *_ = scene.backlog("a")
    scene.name_bucket("a", first, scene.snapshot("a", first, without=2))
    assert check(scene, instance)[1][LATE].passed
    scene.cluster.clock.now_ms = lambda: 1 << 50
    done = dg.Definitions(asset_checks=[late_messages_check("test")], resources=RESOURCES)
    result = done.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    (late,) = result.get_asset_check_evaluations()
    assert (late.passed, late.metadata["findings"].value >= 1) == (False, True)


def test_late_ones_are_not_known_once_the_scan_that_was_checked_is_set_aside(
    scene: DelayedScene, instance: dg.DagsterInstance
) -> None:
    """The check is part of what follows each scan: such a run must not fail by it until somebody reads indexes."""
    assert check(scene, instance)[1][LATE].passed
    scene.cluster.lake.set_scans_aside("test", 1 << 50, "a restore", "me")
    done = dg.Definitions(asset_checks=[late_messages_check("test")], resources=RESOURCES)
    result = done.resolve_implicit_global_asset_job_def().execute_in_process(instance=instance)
    (late,) = result.get_asset_check_evaluations()
    assert (late.passed, late.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert "check_delayed_index" in (late.description or "")


def test_the_late_ones_are_looked_for_after_each_scan_once_indexes_were_read() -> None:
    @dg.asset(key=["test", "scan_coverage"])
    def scan_coverage() -> None:
        """A scan."""

    @dg.asset(key=["test", "delayed_messages_due"], deps=[scan_coverage])
    def due() -> None:
        """Indexes were read."""

    late = late_messages_check("test")
    defs = dg.Definitions([scan_coverage, due], asset_checks=[late], resources=RESOURCES)
    with dg.DagsterInstance.ephemeral() as instance:
        cursor, asked = None, []
        for made in ([], [scan_coverage], [due], [], [scan_coverage], []):
            if made:
                dg.materialize([scan_coverage, due], instance=instance, selection=made)
            result = dg.evaluate_automation_conditions(
                defs, instance, asset_selection=dg.AssetSelection.all_asset_checks(), cursor=cursor
            )
            cursor = result.cursor
            asked.append(result.total_requested)
    assert asked == [0, 0, 1, 0, 1, 0]


def of_namespace(scene: DelayedScene, instance: dg.DagsterInstance, *, dry_run: bool) -> dict[str, Any]:
    """The page of the scene's namespace after a run of its partition."""
    asset = namespace_delayed_index_asset("test")
    names = namespace_partitions("test").name
    assert names is not None
    instance.add_dynamic_partitions(names, [NAMESPACE])
    done = dg.materialize(
        [asset],
        instance=instance,
        partition_key=NAMESPACE,
        run_config={"ops": {asset.node_def.name: {"config": {"dry_run": dry_run}}}},
        resources=RESOURCES,
    )
    assert done.success
    (record,) = instance.fetch_materializations(asset.key, limit=1).records
    assert record.asset_materialization is not None
    return {name: value.value for name, value in record.asset_materialization.metadata.items()}


def test_a_chosen_namespace_is_checked_whole_and_repaired_once_that_is_asked_for(
    scene: DelayedScene, instance: dg.DagsterInstance
) -> None:
    first, *_ = scene.backlog("a")
    scene.name_bucket("a", first, scene.snapshot("a", first, without=1))
    scene.backlog("bare", cursors=())
    scene.servers.cursor(scene.named("bare"), "s", at=first)
    scene.scan()
    broken = scene.keys("a")

    page = of_namespace(scene, instance, dry_run=True)
    assert (page["repairs planned"], page["messages due"]) == (1, 6 * COUNT)
    assert "| no_buckets | memory | 1 | 150 |" in page["by code"]
    assert "| rebuild | goes | 1 |" in page["by outcome"]
    assert scene.keys("a") == broken

    page = of_namespace(scene, instance, dry_run=False)
    assert "| rebuild | done | 1 |" in page["by outcome"]
    assert page["runs"] == show.applied_by(page["plan id"])
    assert set(scene.keys("a").values()).isdisjoint(broken.values())


def test_no_plan_of_chosen_namespaces_goes_by_itself(scene: DelayedScene, instance: dg.DagsterInstance) -> None:
    """It has every subscription of them, also those without buckets, and its backfill may have been a dry run."""
    first, *_ = scene.backlog("bare", cursors=())
    scene.servers.cursor(scene.named("bare"), "s", at=first)
    kind = KindAutomation(mode=Automation.APPLY, max_share=1.0)
    scene.set(automation=AutomationSettings(delayed_index=kind))
    brokers = {**scene.settings.delayed_index.brokers, "delayedDeliveryTrackerFactoryClassName": BUCKET_FACTORY}
    scene.change(brokers=brokers)
    epoch = scene.checked()
    mine = next(one for one in KINDS if one.name == "delayed_index")
    made, rows = make_repair_plan(scene.cluster, epoch)
    assert rows.num_rows == 0
    page = of_namespace(scene, instance, dry_run=True)
    assert page["repairs planned"] == 1
    decision, plan = decision_of(scene.cluster, mine)
    assert (decision.code, plan) == (AutomationCode.EMPTY, made)
    assert decision_of(scene.cluster, mine, page["plan id"])[0].code is AutomationCode.NO_PLAN
    with pytest.raises(UsageError, match="by order"):
        approve_plan(scene.cluster, "r", page["plan id"], scene.lake.repair_plan(page["plan id"])[0].digest, "ann")
