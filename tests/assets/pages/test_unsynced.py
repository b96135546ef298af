"""What Dagster calls unsynced after the scan of a deletion run: nothing that is in order, and what really changed.

The scan's bodies run over fakes, but for the findings' page, which takes Spark.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from assets.deletion import deletion_assets
from assets.lifecycle.activity import activity_assets
from assets.lifecycle.load import load_assets
from assets.lifecycle.retention import retention_assets
from assets.lifecycle.storage import storage_report_asset
from assets.metastore import metastore_assets
from assets.names import EPOCH, FINDINGS, METASTORE, key
from assets.pages import versions
from assets.references import coverage_asset, references_asset
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.runs.cluster import Cluster
from resources.lifecycle import LifecycleResource
from tests.kit.builders import DELETED_ROW
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene
from tests.kit.simulated.cluster import data_tags

QUEUE = Topic.parse(f"{DELETION_TOPIC}-partition-0")
FOLLOWING = (
    "deletion_plan",
    "expired_ledgers",
    "retention_plan",
    "topics_to_load",
    "load_plan",
    "storage_report",
    "topic_activity",
    "inactive_topics",
    "inactive_cursors",
    "inactive_topics_plan",
    "inactive_cursors_plan",
)


def findings(cluster: str) -> dg.AssetsDefinition:
    deps = [key(cluster, "ledger_references"), key(cluster, "bookkeeper_ledgers")]

    @dg.multi_asset(name="findings", specs=[dg.AssetSpec(key(cluster, name), deps=deps) for name in FINDINGS])
    def judged(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Iterator[Any]:
        where = lifecycle.cluster()
        epoch_id, _ = where.lake.open_epoch(context.run.run_id)
        judged_scan.judge(where, epoch_id)
        ids = [
            i
            for b in where.lake.batches(where.parts(epoch_id, "findings"), ["ledger_id", "finding"])
            for i in b.to_pylist()
        ]
        orphans = sorted(row["ledger_id"] for row in ids if row["finding"] == "orphan")
        for name in FINDINGS:
            asset = key(cluster, name)
            version = versions.of_orphans(context.instance, where, asset, epoch_id, orphans)
            yield dg.MaterializeResult(asset, metadata={EPOCH: epoch_id}, data_version=version)

    return judged


class World:
    """The assets over a cluster of fakes, and what Dagster says of them."""

    def __init__(self, scene: RetentionScene, instance: dg.DagsterInstance) -> None:
        self.scene, self.instance = scene, instance
        self.defs = dg.Definitions(
            assets=[
                *metastore_assets("test"),
                references_asset("test"),
                findings("test"),
                coverage_asset("test"),
                deletion_assets("test")[0],
                retention_assets("test"),
                load_assets("test"),
                storage_report_asset("test"),
                activity_assets("test"),
            ],
            resources={"lifecycle": LifecycleResource()},
        )

    def run(self, *names: str) -> None:
        """Materialize these, in one run."""
        keys = [key("test", name) for name in names]
        done = self.defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.instance, asset_selection=keys
        )
        assert done.success

    def scan(self, *more: str) -> None:
        """Half an hour later."""
        self.scene.servers.wait(0.5)
        self.run(*METASTORE, "ledger_references", *FINDINGS, "scan_coverage", *more)

    def said(self, ledger: int, outcome: Outcome) -> None:
        """A row of the journal, half an hour after the last scan."""
        self.scene.servers.wait(0.5)
        row = replace(DELETED_ROW, cluster="test", ledger_id=ledger, outcome=outcome, at=self.scene.now)
        self.scene.servers.journal.record([row])

    def goes(self, ledger: int, outcome: Outcome | None) -> None:
        """A ledger goes, and the journal says so, or what is given, or nothing."""
        if outcome:
            self.said(ledger, outcome)
        self.scene.servers.remove(self.scene.servers.path(ledger))

    def unsynced(self) -> set[str]:
        graph = self.defs.resolve_asset_graph()
        resolver = CachingStaleStatusResolver(self.instance, graph, LoadingContextForTest(self.instance))
        followed = [name for name in FOLLOWING if self.instance.get_latest_materialization_event(key("test", name))]
        return {name for name in followed if resolver.get_status(key("test", name)) is not StaleStatus.FRESH}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    scene = RetentionScene(tmp_path, monkeypatch)
    quiet: Any = SimpleNamespace()
    where = Cluster(scene.settings, connect=scene.cluster.connect, given=scene.cluster.given, session=quiet)
    for name in ("cluster", "without_spark"):
        monkeypatch.setattr(LifecycleResource, name, lambda self: where)
    with dg.DagsterInstance.ephemeral() as instance:
        yield World(scene, instance)


def test_a_deletion_runs_own_scan_leaves_nothing_unsynced(world: World) -> None:
    """Intents were sent and taken since: their topics were made, and written again and again."""
    servers = world.scene.servers
    world.scene.topic("a", 100, 90)
    world.scene.servers.wait(2)
    world.scan(*FOLLOWING)
    assert world.unsynced() == set()
    ids = [servers.ledger(data_tags(QUEUE)) for _ in range(2)]
    servers.topic(QUEUE, ids)
    servers.ledger({**data_tags(QUEUE), "pulsar/cursor": "ledger-deletion"})
    servers.cursor(QUEUE, "ledger-deletion", at=ids[0])
    world.scan()
    assert world.unsynced() == set()


@pytest.fixture
def planned(world: World) -> tuple[World, list[int]]:
    """Three orphans in a plan, and their intents sent."""
    orphans = [world.scene.servers.ledger(data_tags(Topic.parse(f"persistent://{NAMESPACE}/gone"))) for _ in range(3)]
    world.scan()
    world.scan("deletion_plan")
    summary, rows = world.scene.lake.plan(world.scene.lake.plans()[-1].plan_id)
    assert (summary.actionable, rows.column("ledger_id").to_pylist()) == (True, orphans)
    return world, orphans


def test_a_plan_is_in_order_while_its_ledgers_go(planned: tuple[World, list[int]]) -> None:
    world, orphans = planned
    for ledger in orphans:
        world.goes(ledger, Outcome.DELETED)
        world.scan()
        assert world.unsynced() == set()
    world.scan("deletion_plan")
    assert world.unsynced() == set()


def test_what_leaves_its_topic_by_our_order_needs_no_plan(planned: tuple[World, list[int]]) -> None:
    world, _ = planned
    trimmed = world.scene.servers.ledger(data_tags(Topic.parse(f"persistent://{NAMESPACE}/a")))
    world.said(trimmed, Outcome.SENT)
    world.scan()
    assert world.unsynced() == set()


@pytest.mark.parametrize("outcome", [None, Outcome.KEPT])
def test_an_orphan_that_others_removed_makes_the_plan_unsynced(
    planned: tuple[World, list[int]], outcome: Outcome | None
) -> None:
    world, orphans = planned
    world.goes(orphans[0], outcome)
    world.scan()
    assert world.unsynced() == {"deletion_plan"}


def test_a_new_orphan_makes_the_plan_unsynced(planned: tuple[World, list[int]]) -> None:
    world, orphans = planned
    world.goes(orphans[0], Outcome.DELETED)
    world.scene.servers.ledger(data_tags(Topic.parse(f"persistent://{NAMESPACE}/a")))
    world.scan()
    assert world.unsynced() == {"deletion_plan"}


def test_an_orphan_that_came_back_makes_the_plan_unsynced(planned: tuple[World, list[int]]) -> None:
    """An undo, after a plan without the orphan: the orphans are those of the first scan again."""
    world, orphans = planned
    tags = data_tags(Topic.parse(f"persistent://{NAMESPACE}/gone"))
    world.goes(orphans[0], Outcome.DELETED)
    world.scan("deletion_plan")
    world.scene.servers.ledger(tags, ledger_id=orphans[0])
    world.scan()
    assert world.unsynced() == {"deletion_plan"}


def test_what_changed_since_is_unsynced(world: World) -> None:
    world.scene.topic("a", 100, 90)
    world.scene.servers.wait(2)
    world.scan(*FOLLOWING)
    world.scene.topic("b", 100, 90)
    world.scan()
    assert {"expired_ledgers", "topics_to_load", "storage_report"} <= world.unsynced()
    assert "deletion_plan" not in world.unsynced()


def test_a_topic_that_is_called_alike_is_not_the_queue(world: World) -> None:
    world.scan("expired_ledgers", "retention_plan")
    world.scene.topic("__ledger_deletion", 100, 90)
    world.scan()
    assert "expired_ledgers" in world.unsynced()
    assert NAMESPACE not in str(DELETION_TOPIC)
