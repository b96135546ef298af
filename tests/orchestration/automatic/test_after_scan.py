"""Sensor ``after_scan``: what it makes once a scan has ended, and what it leaves where that scan is not covered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from assets.names import EPOCH, FINDINGS, METASTORE, key
from orchestration.automatic.automation import COSTLY, FOLLOWS, HELD, REPORT
from pulsar_lifecycle.lifecycle.storage_run import build_storage_report
from pulsar_lifecycle.model import Topic
from tests.kit.scenes.assets_scene import CLUSTER, SCANNED, STANDS_IN, AssetsScene
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene

BROKEN = Topic.parse(f"persistent://{NAMESPACE}/broken")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AssetsScene]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield AssetsScene(RetentionScene(tmp_path, monkeypatch), instance, monkeypatch)


def made_of(world: AssetsScene, name: str) -> Any:
    event = world.instance.get_latest_materialization_event(key(CLUSTER, name))
    assert event
    assert event.asset_materialization
    return event.asset_materialization.metadata[EPOCH].value


def test_all_that_follows_a_covered_scan_is_made_once_in_one_run(world: AssetsScene) -> None:
    world.scan()
    assert world.tick() == sorted({name for name, kind in FOLLOWS.items() if kind not in COSTLY} | set(HELD))
    assert world.tick() == []


def test_bookies_are_asked_and_planned_in_one_step_though_they_are_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = RetentionScene(tmp_path, monkeypatch)
    scene.file.write_text(f'{scene.file.read_text()}automation.bookies = "off"\n')
    with dg.DagsterInstance.ephemeral() as instance:
        world = AssetsScene(scene, instance, monkeypatch)
        world.scan()
        assert {"bookie_disk", "collection_plan"} <= set(world.tick())
        assert world.tick() == []


def test_every_table_says_how_many_rows_it_has(world: AssetsScene) -> None:
    world.scan("deletion_plan")
    made = set(world.tick()) - STANDS_IN
    assert {"retention_plan", "open_ledgers"} <= made
    for name in (*SCANNED, "deletion_plan", *made):
        event = world.instance.get_latest_materialization_event(key(CLUSTER, name))
        assert event
        assert event.asset_materialization
        assert not name.endswith("_plan") or "dagster/uri" in event.asset_materialization.metadata
        rows = event.asset_materialization.metadata.get("dagster/row_count")
        assert (name, isinstance(rows, dg.IntMetadataValue)) == (name, name not in FINDINGS)


def test_a_plan_that_its_job_would_refuse_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = RetentionScene(tmp_path, monkeypatch)
    apply = scene.settings.apply.model_copy(update={"max_ledgers": 1})
    scene.settings = scene.settings.model_copy(update={"apply": apply})
    with dg.DagsterInstance.ephemeral() as instance:
        world = AssetsScene(scene, instance, monkeypatch)
        for name, ages, refused in (("a", (100, 90), False), ("b", (100, 90), True)):
            scene.topic(name, *ages)
            scene.servers.wait(2)
            world.scan()
            world.run("expired_ledgers", "retention_plan")
            event = instance.get_latest_materialization_event(key(CLUSTER, "retention_plan"))
            assert event
            assert event.asset_materialization
            said = event.asset_materialization.metadata.get("beyond a cap")
            assert (said is not None and str(said.value).startswith("max_ledgers: ")) is refused


def test_of_a_scan_that_is_not_covered_only_what_bookies_say_is_made(world: AssetsScene) -> None:
    servers = world.scene.servers
    servers.put(servers.topic_path(BROKEN), b"\xff\xff\xff")
    world.scan()
    checked = world.instance.event_log_storage.get_latest_asset_check_execution_by_key(
        [dg.AssetCheckKey(key(CLUSTER, "scan_coverage"), "covered")]
    )
    (check,) = checked.values()
    assert check.event
    assert not check.event.dagster_event.asset_check_evaluation_data.passed
    assert world.followed() == ["bookie_disk", "collection_plan"]
    servers.remove(servers.topic_path(BROKEN))
    world.scan()
    assert {"retention_plan", "offload_plan", REPORT, *HELD} <= set(world.tick())


def test_what_topics_hold_is_judged_by_the_scan_of_its_report(world: AssetsScene) -> None:
    """Tables of the next scan, and all of it, may be there before it is made."""
    world.scan()
    world.run(REPORT)
    reported = made_of(world, REPORT)
    world.scan()
    world.run(*HELD)
    assert {made_of(world, name) for name in HELD} == {reported}


def pruned(world: AssetsScene, epoch_id: str) -> None:
    del world.scene.lake.begun[epoch_id]


def set_aside(world: AssetsScene, epoch_id: str) -> None:
    world.scene.lake.set_scans_aside(CLUSTER, world.scene.now, "a restore")


def of_another_cluster(world: AssetsScene, epoch_id: str) -> None:
    one = world.scene.lake.begun[epoch_id]
    assert one.closed
    one.closed = (replace(one.closed[0], fingerprint="another"), *one.closed[1:])


@pytest.mark.parametrize("lose", [pruned, set_aside, of_another_cluster])
def test_what_topics_hold_is_judged_by_the_newest_scan_where_that_of_the_report_may_not_be_read(
    world: AssetsScene, lose: Callable[[AssetsScene, str], None]
) -> None:
    world.scan()
    world.run(REPORT)
    lose(world, made_of(world, REPORT))
    world.scan()
    newest = world.scene.lake.epochs()[-1]
    build_storage_report(world.scene.cluster, newest)  # by another Dagster: here the last report is the lost one
    world.run(*HELD)
    assert {made_of(world, name) for name in HELD} == {newest.epoch_id}


def test_what_topics_hold_waits_for_the_report_alone(world: AssetsScene) -> None:
    """A scan under way lists cursors and topics anew long before it has ended."""
    world.target = dg.AssetSelection.assets(*(key(CLUSTER, name) for name in HELD))
    world.scan()
    assert world.tick() == []
    world.run(REPORT)
    assert world.tick() == sorted(HELD)
    world.run(*METASTORE)
    assert world.tick() == []
