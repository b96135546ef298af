"""A backfill over namespaces that are no neighbours: one plan, one set of effects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.assets.graph.asset_graph import AssetGraph
from dagster._core.execution.backfill import PartitionBackfill
from dagster._core.storage.tags import BACKFILL_ID_TAG

from assets.lifecycle.namespace_retention import namespace_retention_asset
from assets.names import key, namespace_partitions
from resources.lifecycle import LifecycleResource
from tests.kit.scenes.retention_scene import RetentionScene

pytestmark = pytest.mark.filterwarnings("ignore:Function .AssetSelection.sources.")  # of Dagster itself
NAMESPACES = ["acme/a", "acme/b", "acme/c", "acme/orders", "acme/z"]
KEY = key("test", "namespace_retention")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    found = RetentionScene(tmp_path, monkeypatch)
    monkeypatch.setattr(LifecycleResource, "cluster", lambda self: found.cluster)
    return found


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        partitions = namespace_partitions("test")
        assert partitions.name is not None
        made.add_dynamic_partitions(partitions.name, NAMESPACES)
        yield made


def backfill(instance: dg.DagsterInstance, names: list[str]) -> str:
    graph = AssetGraph.from_assets([namespace_retention_asset("test")])
    made = PartitionBackfill.from_asset_partitions(
        "b1", graph, names, [KEY], 1_700_000_000.0, {}, instance, False, None, None, None
    )
    instance.add_backfill(made.with_asset_backfill_data(made.asset_backfill_data, instance, graph))
    return "b1"


def run(instance: dg.DagsterInstance, name: str, tags: dict[str, str], *, dry_run: bool = False) -> Any:
    config = {"ops": {"test__namespace_retention": {"config": {"dry_run": dry_run}}}}
    return dg.materialize(
        [namespace_retention_asset("test")],
        instance=instance,
        partition_key=name,
        run_config=config,
        tags=tags,
        resources={"lifecycle": LifecycleResource()},
    )


def pages(instance: dg.DagsterInstance) -> dict[str, dict[str, Any]]:
    records = instance.fetch_materializations(KEY, limit=20).records
    return {
        str(record.partition_key): {k: v.value for k, v in record.asset_materialization.metadata.items()}
        for record in records
        if record.asset_materialization
    }


def test_the_first_run_of_a_backfill_does_all_of_it(scene: RetentionScene, instance: dg.DagsterInstance) -> None:
    ids = scene.topic("a", 100, 100, 100)
    scene.scan()
    tags = {BACKFILL_ID_TAG: backfill(instance, ["acme/a", "acme/c", "acme/orders"])}
    for name in ("acme/c", "acme/orders", "acme/a"):  # in any order
        assert run(instance, name, tags).success
    assert scene.listed("a") == ids[2:]
    found = pages(instance)
    assert set(found) == {"acme/a", "acme/c", "acme/orders"}
    assert len({page["plan id"] for page in found.values()}) == 1
    assert len(scene.lake.retention_plans()) == 1
    assert found["acme/orders"]["left their topics"] == 2
    assert found["acme/a"]["left their topics"] == 0


def test_a_dry_run_makes_the_plan_alone(scene: RetentionScene, instance: dg.DagsterInstance) -> None:
    ids = scene.topic("a", 100, 100, 100)
    scene.scan()
    assert run(instance, "acme/orders", {}, dry_run=True).success
    assert scene.listed("a") == ids
    assert pages(instance)["acme/orders"]["dagster/row_count"] == 2


def test_what_was_not_chosen_stays(scene: RetentionScene, instance: dg.DagsterInstance) -> None:
    ids = scene.topic("a", 100, 100, 100)
    scene.scan()
    assert run(instance, "acme/a", {BACKFILL_ID_TAG: backfill(instance, ["acme/a", "acme/c"])}).success
    assert scene.listed("a") == ids


def test_a_run_of_a_backfill_that_nobody_knows_does_its_own(
    scene: RetentionScene, instance: dg.DagsterInstance
) -> None:
    ids = scene.topic("a", 100, 100, 100)
    scene.scan()
    assert run(instance, "acme/orders", {BACKFILL_ID_TAG: "gone"}).success
    assert scene.listed("a") == ids[2:]
