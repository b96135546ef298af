"""A backfill over namespaces that are no neighbours, launched by GraphQL, through Dagster's own backfill daemon.

One plan, one set of effects; and where the run that does all of it fails, the backfill is red.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError
from dagster._core.execution.backfill import BulkActionStatus
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.storage.tags import (
    ASSET_PARTITION_RANGE_END_TAG,
    ASSET_PARTITION_RANGE_START_TAG,
    BACKFILL_ID_TAG,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import WorkspaceLoadTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster_graphql.test.utils import execute_dagster_graphql

from assets import reconcile, tiered
from assets.lifecycle import namespace_retention
from assets.lifecycle.namespace_retention import namespace_retention_asset
from assets.names import key, namespace_partitions
from assets.pages import show
from assets.reconcile import reconciliation_asset
from assets.tiered import offload_assets
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource
from tests.kit.scenes.retention_scene import RetentionScene
from tests.kit.simulated.cluster import data_tags

pytestmark = pytest.mark.filterwarnings("ignore:Function .AssetSelection.sources.")  # of Dagster itself
NAMESPACES = ["acme/a", "acme/b", "acme/c", "acme/d", "acme/orders", "acme/z"]
FAR_APART = ["acme/a", "acme/c", "acme/orders", "acme/z"]
"""Three ranges; ``acme/orders`` and ``acme/z`` are neighbours."""
RETENTION, RECONCILIATION = "namespace_retention", "namespace_reconciliation"
IN_THIS_PROCESS = """
run_launcher: {module: tests.kit.run_launcher, class: InThisProcess}
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
compute_logs: {module: dagster._core.storage.noop_compute_log_manager, class: NoOpComputeLogManager}
telemetry: {enabled: false}
"""
LAUNCH = """mutation($it: LaunchBackfillParams!) {launchPartitionBackfill(backfillParams: $it) {
  __typename ... on LaunchBackfillSuccess {backfillId} ... on PythonError {message}}}"""
AGAIN = """mutation($it: ReexecutionParams!) {launchPipelineReexecution(reexecutionParams: $it) {__typename}}"""
defs = dg.Definitions(
    assets=[namespace_retention_asset("test"), reconciliation_asset("test")],
    executor=dg.in_process_executor,
    resources={"lifecycle": LifecycleResource()},
)


class ThisLocation(WorkspaceLoadTarget):
    """The definitions above, in this process: its runs have the scene's fakes."""

    def create_origins(self) -> Sequence[InProcessCodeLocationOrigin]:
        target = LoadableTargetOrigin(python_file=__file__, attribute="defs")
        return [InProcessCodeLocationOrigin(target, location_name="test")]


class Daemon:
    """An instance with its storage on disk, what the webserver answers, and the daemon's iterations."""

    def __init__(self, instance: dg.DagsterInstance, workspace: WorkspaceProcessContext) -> None:
        self.instance, self._workspace = instance, workspace

    def launch(self, name: str, namespaces: list[str], *, dry_run: bool = False) -> str:
        """Choose partitions in the dialog; the backfill's id."""
        asked = {
            "partitionNames": namespaces,
            "assetSelection": [{"path": ["test", name]}],
            "runConfigData": {"ops": {f"test__{name}": {"config": {"dry_run": dry_run}}}},
        }
        answer = execute_dagster_graphql(self._workspace.create_request_context(), LAUNCH, {"it": asked})
        return answer.data["launchPartitionBackfill"]["backfillId"]

    def again(self, run: dg.DagsterRun) -> None:
        """**Re-execute** on the page of a run."""
        asked = {"parentRunId": run.run_id, "strategy": "FROM_FAILURE" if run.is_failure else "ALL_STEPS"}
        answer = execute_dagster_graphql(self._workspace.create_request_context(), AGAIN, {"it": asked})
        assert answer.data["launchPipelineReexecution"]["__typename"] == "LaunchRunSuccess"

    def ended(self, backfill: str) -> BulkActionStatus:
        """Iterate as the daemon does until the backfill is over."""
        for _ in range(10):
            errors = [one for one in execute_backfill_iteration(self._workspace, logging.getLogger("test")) if one]
            assert not errors
            found = self.instance.get_backfill(backfill)
            assert found is not None
            if found.status is not BulkActionStatus.REQUESTED:
                return found.status
        raise AssertionError("the backfill does not end")

    def runs(self, backfill: str) -> list[dg.DagsterRun]:
        return list(self.instance.get_runs(dg.RunsFilter(tags={BACKFILL_ID_TAG: backfill})))

    def pages(self, name: str, backfill: str) -> dict[str, dict[str, Any]]:
        """What the namespaces show that the backfill made."""
        mine = {run.run_id for run in self.runs(backfill)}
        records = self.instance.fetch_materializations(key("test", name), limit=50).records
        return {
            str(record.partition_key): {k: v.value for k, v in record.asset_materialization.metadata.items()}
            for record in records
            if record.asset_materialization and record.run_id in mine
        }


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    home = tmp_path_factory.mktemp("dagster")
    (home / "dagster.yaml").write_text(IN_THIS_PROCESS)
    partitions = namespace_partitions("test")
    assert partitions.name is not None
    with dg.DagsterInstance.from_config(str(home)) as instance:
        instance.add_dynamic_partitions(partitions.name, NAMESPACES)
        with WorkspaceProcessContext(instance, ThisLocation()) as workspace:
            yield Daemon(instance, workspace)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    found = RetentionScene(tmp_path, monkeypatch)
    monkeypatch.setattr(LifecycleResource, "cluster", lambda self: found.cluster)
    return found


def expired(scene: RetentionScene, *namespaces: str) -> dict[str, list[int]]:
    """Topic ``t`` of each namespace: two ledgers past its retention, and one behind them. Scanned."""
    for namespace in namespaces:
        scene.retention(60, -1, namespace)
    found = {namespace: scene.topic("t", 100, 100, 100, namespace=namespace) for namespace in namespaces}
    scene.scan(namespaces=frozenset({*namespaces, "pulsar/system"}))
    return found


def test_the_first_run_of_a_backfill_does_all_of_it(scene: RetentionScene, daemon: Daemon) -> None:
    ids = expired(scene, *NAMESPACES)
    backfill = daemon.launch(RETENTION, FAR_APART)
    assert daemon.ended(backfill) is BulkActionStatus.COMPLETED_SUCCESS
    assert len(daemon.runs(backfill)) == 3
    assert {name: scene.listed("t", name) for name in NAMESPACES} == {
        **{name: ids[name][2:] for name in FAR_APART},
        "acme/b": ids["acme/b"],
        "acme/d": ids["acme/d"],
    }
    found = daemon.pages(RETENTION, backfill)
    assert set(found) == set(FAR_APART)
    assert {page["left their topics"] for page in found.values()} == {2}
    (plan,) = {page["plan id"] for page in found.values()}
    assert [one.plan_id for one in scene.lake.retention_plans()] == [plan]
    assert len({row.run_id for row in scene.servers.journal.rows}) == 1


def test_a_dry_run_makes_the_plan_alone(scene: RetentionScene, daemon: Daemon) -> None:
    ids = expired(scene, "acme/orders")
    backfill = daemon.launch(RETENTION, ["acme/b", "acme/orders"], dry_run=True)
    assert daemon.ended(backfill) is BulkActionStatus.COMPLETED_SUCCESS
    assert scene.listed("t") == ids["acme/orders"]
    pages = daemon.pages(RETENTION, backfill)
    would = ("would leave their topics", "bytes that would leave")
    assert {name: [page[label] for label in would] for name, page in pages.items()} == {
        "acme/b": [0, 0],
        "acme/orders": [2, 2 << 20],
    }
    assert all("left their topics" not in page and page["plan id"] in page["whole plan"] for page in pages.values())


def test_a_backfill_whose_run_is_refused_is_red(scene: RetentionScene, daemon: Daemon) -> None:
    """Also for the namespaces of its other runs, which end well, as they have nothing to do."""
    ids = expired(scene, "acme/orders")
    control.pause(scene.servers.open_store(), "test")
    backfill = daemon.launch(RETENTION, FAR_APART)
    assert daemon.ended(backfill) is BulkActionStatus.COMPLETED_FAILED
    assert daemon.pages(RETENTION, backfill) == {}
    observed = daemon.instance.fetch_observations(key("test", RETENTION), limit=9).records
    assert sorted(str(record.partition_key) for record in observed) == FAR_APART
    said = [record.asset_observation.metadata["not made"].value for record in observed if record.asset_observation]
    assert all("paused" in str(one) for one in said)
    control.resume(scene.servers.open_store())
    again = daemon.launch(RETENTION, FAR_APART)
    assert daemon.ended(again) is BulkActionStatus.COMPLETED_SUCCESS
    assert scene.listed("t") == ids["acme/orders"][2:]


def test_what_waits_when_its_backfill_is_canceled_does_nothing(scene: RetentionScene, daemon: Daemon) -> None:
    """The daemon ends the runs of a canceled backfill only some time later: they may begin before."""
    ids = expired(scene, "acme/orders")
    name = daemon.launch(RETENTION, ["acme/orders"])
    backfill = daemon.instance.get_backfill(name)
    assert backfill is not None
    daemon.instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELED))
    done = materialized(daemon, raise_on_error=False, **{BACKFILL_ID_TAG: name})
    assert "was canceled" in str(done.failure_data_for_node("test__namespace_retention"))
    assert scene.listed("t") == ids["acme/orders"]


def test_what_a_terminated_run_did_is_on_the_pages_of_its_namespaces(
    scene: RetentionScene, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired(scene, "acme/orders")

    def terminated(*order: Any, **how: Any) -> None:
        apply_retention(*order, **how)
        raise DagsterExecutionInterruptedError

    monkeypatch.setattr(namespace_retention, "apply_retention", terminated)
    with suppress(DagsterExecutionInterruptedError):
        materialized(daemon)
    (record,) = daemon.instance.fetch_observations(key("test", RETENTION), limit=1).records
    assert record.asset_observation
    found = {label: value.value for label, value in record.asset_observation.metadata.items()}
    assert (record.partition_key, found["left their topics"]) == ("acme/orders", 2)
    assert "was terminated" in str(found["not made"])


def test_a_reconciliation_that_is_terminated_while_it_sends_says_so_on_the_pages_of_its_namespaces(
    scene: RetentionScene, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FAR_APART:
        scene.retention(60, -1, name)
    scanned(scene, 2)

    def terminated(*order: Any, **how: Any) -> None:
        raise DagsterExecutionInterruptedError

    monkeypatch.setattr(reconcile, "reconcile", terminated)
    with suppress(DagsterExecutionInterruptedError):
        daemon.ended(daemon.launch(RECONCILIATION, FAR_APART))
    records = daemon.instance.fetch_observations(key("test", RECONCILIATION), limit=10).records
    found = {record.partition_key: record.asset_observation for record in records}
    assert sorted(map(str, found)) == FAR_APART
    assert all(one and "was terminated" in str(one.metadata["not made"].value) for one in found.values())


def test_the_first_run_does_all_of_a_backfill_that_is_over_when_it_is_executed_again(
    scene: RetentionScene, daemon: Daemon
) -> None:
    """Any other does its own: Dagster takes the backfill's tag away."""
    ids = expired(scene, *NAMESPACES)
    control.pause(scene.servers.open_store(), "test")
    backfill = daemon.launch(RETENTION, FAR_APART)
    assert daemon.ended(backfill) is BulkActionStatus.COMPLETED_FAILED
    control.resume(scene.servers.open_store())
    (failed,) = [run for run in daemon.runs(backfill) if run.is_failure]
    other = next(run for run in daemon.runs(backfill) if "acme/c" in run.tags[ASSET_PARTITION_RANGE_START_TAG])
    daemon.again(other)
    gone = [name for name in NAMESPACES if scene.listed("t", name) == ids[name][2:]]
    assert gone == ["acme/c"]
    daemon.again(failed)
    gone = [name for name in NAMESPACES if scene.listed("t", name) == ids[name][2:]]
    assert gone == FAR_APART


def test_intents_are_derived_again_in_one_run(scene: RetentionScene, daemon: Daemon) -> None:
    leaked = {name: scene.servers.ledger(data_tags(Topic.parse(f"persistent://{name}/gone"))) for name in NAMESPACES}
    for name in NAMESPACES:
        scene.retention(60, -1, name)
    scanned(scene, 2)
    backfill = daemon.launch(RECONCILIATION, FAR_APART)
    assert daemon.ended(backfill) is BulkActionStatus.COMPLETED_SUCCESS
    found = daemon.pages(RECONCILIATION, backfill)
    assert {name: page["confirmed orphans"] for name, page in found.items()} == dict.fromkeys(FAR_APART, 1)
    (plan,) = {page["plan id"] for page in found.values()}
    assert {page["runs"] for page in found.values()} == {show.applied_by(plan)}
    sent = [row for row in scene.servers.journal.rows if row.outcome == "sent"]
    assert sorted(row.ledger_id for row in sent) == sorted(leaked[name] for name in FAR_APART)
    assert {page["how to send"] for page in found.values()} == {"Nothing to send any more: this run has."}
    assert len({(row.run_id, row.plan_id) for row in sent}) == 1


def test_a_namespace_that_was_deleted_keeps_the_others_from_nothing(scene: RetentionScene, daemon: Daemon) -> None:
    """It stays in the list of partitions, and one run does all."""
    leaked = scene.servers.ledger(data_tags(Topic.parse("persistent://acme/orders/gone")))
    scene.retention(60, -1, "acme/orders")
    scanned(scene, 2)
    backfill = daemon.launch(RECONCILIATION, ["acme/b", "acme/orders"])
    assert daemon.ended(backfill) is BulkActionStatus.COMPLETED_SUCCESS
    found = daemon.pages(RECONCILIATION, backfill)
    assert {name: page.get("namespace") for name, page in found.items()} == {
        "acme/b": "deleted, by the newest scan: nothing to do",
        "acme/orders": None,
    }
    assert [row.ledger_id for row in scene.servers.journal.rows if row.outcome == "sent"] == [leaked]


@pytest.mark.parametrize(("names", "made"), [(("acme/b", "acme/orders"), True), (("acme/a", "acme/d"), False)])
def test_namespaces_that_were_deleted_are_no_part_of_an_offload(
    scene: RetentionScene, daemon: Daemon, names: tuple[str, str], made: bool
) -> None:
    """Where all were deleted there is no plan either: one of no namespace would be of all."""
    scene.retention(60, -1, "acme/orders")
    scanned(scene, 1)
    first, last = names
    done = dg.materialize(
        [offload_assets("test")[1]],
        instance=daemon.instance,
        tags={ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last},
        resources={"lifecycle": LifecycleResource()},
    )
    events = done.asset_materializations_for_node("test__offloaded_ledgers")
    pages = {str(one.partition): one.metadata for one in events}
    assert {name for name, page in pages.items() if "namespace" not in page} == ({last} if made else set())
    assert set(pages) == {name for name in NAMESPACES if first <= name <= last}
    assert len(scene.lake.offload_plans()) == made


@pytest.mark.parametrize("dry_run", [True, False])
def test_the_page_of_an_offload_says_how_to_apply_its_plan_until_it_is_applied(
    scene: RetentionScene, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    done = OffloadOutcome("persistent://acme/orders/t", 7, Outcome.OFFLOADED, Why(Code.ABOUT_TO, "done"))
    monkeypatch.setattr(tiered, "offload_now", lambda *args: [done])
    scene.retention(60, -1, "acme/orders")
    scanned(scene, 1)
    run = dg.materialize(
        [offload_assets("test")[1]],
        instance=daemon.instance,
        partition_key="acme/orders",
        run_config={"ops": {"test__offloaded_ledgers": {"config": {"dry_run": dry_run}}}},
        resources={"lifecycle": LifecycleResource()},
    )
    (event,) = run.asset_materializations_for_node("test__offloaded_ledgers")
    assert ("how to apply" in event.metadata, "offloaded" in event.metadata) == (dry_run, not dry_run)


def test_a_run_of_a_backfill_that_nobody_knows_does_its_own(scene: RetentionScene, daemon: Daemon) -> None:
    ids = expired(scene, "acme/orders")
    assert materialized(daemon, **{BACKFILL_ID_TAG: "gone"}).success
    assert scene.listed("t") == ids["acme/orders"][2:]


def materialized(daemon: Daemon, *, raise_on_error: bool = True, **tags: str) -> dg.ExecuteInProcessResult:
    """Retention of ``acme/orders``, in a run of its own."""
    return dg.materialize(
        [namespace_retention_asset("test")],
        instance=daemon.instance,
        partition_key="acme/orders",
        run_config={"ops": {"test__namespace_retention": {"config": {"dry_run": False}}}},
        tags=tags,
        resources={"lifecycle": LifecycleResource()},
        raise_on_error=raise_on_error,
    )


@pytest.mark.parametrize("name", [RECONCILIATION, RETENTION])
def test_after_a_restore_a_backfill_is_red_until_new_scans_bear_it(
    scene: RetentionScene, daemon: Daemon, name: str
) -> None:
    """Then it is one plan as ever, and knows of the ledgers what the restored store says."""
    ids, leaked = far_and_leaked(scene)
    backup, zxid = scene.servers.zookeeper.backup(), scene.servers.zookeeper.zxid
    for namespace in NAMESPACES:
        scene.servers.ledger(data_tags(Topic.parse(f"persistent://{namespace}/younger")))
    scanned(scene, 2)
    scene.servers.zookeeper.restore(backup, zxid)
    scanned(scene, 1)
    assert daemon.ended(daemon.launch(name, FAR_APART)) is BulkActionStatus.COMPLETED_FAILED
    assert not [row for row in scene.servers.journal.rows if row.outcome == "sent"]

    scene.lake.set_scans_aside(scene.settings.cluster, scene.now, "restored from the backup")
    scanned(scene, 2)
    backfill = daemon.launch(name, FAR_APART)
    assert daemon.ended(backfill) is BulkActionStatus.COMPLETED_SUCCESS
    assert len({page["plan id"] for page in daemon.pages(name, backfill).values()}) == 1
    sent = sorted(row.ledger_id for row in scene.servers.journal.rows if row.outcome == "sent")
    if name == RECONCILIATION:
        assert sent == sorted(leaked[namespace] for namespace in FAR_APART)
    else:
        assert sent == sorted(ledger for namespace in FAR_APART for ledger in ids[namespace][:2])


def far_and_leaked(scene: RetentionScene) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Of each namespace the ledgers of a topic past its retention, and one that leaked. Scanned twice."""
    for namespace in NAMESPACES:
        scene.retention(60, -1, namespace)
    ids = {name: scene.topic("t", 100, 100, 100, namespace=name) for name in NAMESPACES}
    leaked = {name: scene.servers.ledger(data_tags(Topic.parse(f"persistent://{name}/gone"))) for name in NAMESPACES}
    scanned(scene, 2)
    return ids, leaked


def scanned(scene: RetentionScene, times: int) -> None:
    """Whole scans, a day apart."""
    for _ in range(times):
        scene.servers.wait(24)
        judged_scan.scan(scene.cluster, uuid4().hex)
