"""What Dagster calls unsynced after a scan and what follows it: nothing that is in order, and what really changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC
from pulsar_lifecycle.lifecycle import retention_planning
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.assets_scene import NIGHTLY, AssetsScene
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene
from tests.kit.simulated.cluster import data_tags

QUEUE = Topic.parse(f"{DELETION_TOPIC}-partition-0")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AssetsScene]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield AssetsScene(RetentionScene(tmp_path, monkeypatch), instance, monkeypatch)


def test_a_deletion_runs_own_scan_leaves_nothing_unsynced(world: AssetsScene) -> None:
    """Intents were sent and taken since: their topics were made, and written again and again."""
    servers = world.scene.servers
    world.scene.topic("a", 100, 90)
    world.scene.servers.wait(2)
    world.scan()
    world.followed()
    assert world.unsynced() == set()
    ids = [servers.ledger(data_tags(QUEUE)) for _ in range(2)]
    servers.topic(QUEUE, ids)
    servers.ledger({**data_tags(QUEUE), "pulsar/cursor": "ledger-deletion"})
    servers.cursor(QUEUE, "ledger-deletion", at=ids[0])
    world.scan()
    assert world.unsynced() == set()


def test_nothing_is_unsynced_once_what_follows_a_changed_scan_was_made(world: AssetsScene) -> None:
    """Nor is what is made once a night."""
    world.scene.topic("a", 100, 90)
    world.scene.servers.wait(2)
    world.scan("deletion_plan")
    made = {*world.followed(), *NIGHTLY}
    world.run(*NIGHTLY)
    assert world.unsynced() == set()
    assert {"open_ledgers", "subscription_backlog", "offload_plan", "bookie_disk"} <= made
    world.scene.topic("b", 100, 90)
    world.scan("deletion_plan")
    tables = {"expired_ledgers", "topics_to_load", "offload_candidates", "storage_report", "bookie_disk"}
    assert world.unsynced() == tables | {"topic_activity", "open_ledgers", "subscription_backlog"}
    world.followed()
    assert world.unsynced() == set()


def test_what_a_scan_overtook_is_made_again(world: AssetsScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next scan ends while what follows the last one is being made."""
    world.scene.topic("a", 100, 90)
    world.scene.servers.wait(2)
    world.scan()
    policies = retention_planning.retention_now

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(retention_planning, "retention_now", policies)
        world.scene.topic("b", 100, 90)
        world.scan()
        return policies(*args)

    monkeypatch.setattr(retention_planning, "retention_now", overtaken)
    assert "expired_ledgers" in world.tick()
    assert "expired_ledgers" in world.unsynced()
    world.followed()
    assert world.unsynced() == set()


@pytest.fixture
def planned(world: AssetsScene) -> tuple[AssetsScene, list[int]]:
    """Three orphans in a plan, and their intents sent."""
    orphans = [world.scene.servers.ledger(data_tags(Topic.parse(f"persistent://{NAMESPACE}/gone"))) for _ in range(3)]
    world.scan()
    world.scan("deletion_plan")
    summary, rows = world.scene.lake.plan(world.scene.lake.plans()[-1].plan_id)
    assert (summary.actionable, rows.column("ledger_id").to_pylist()) == (True, orphans)
    return world, orphans


def test_a_plan_is_in_order_while_its_ledgers_go(planned: tuple[AssetsScene, list[int]]) -> None:
    world, orphans = planned
    for ledger in orphans:
        world.goes(ledger, Outcome.DELETED)
        world.scan()
        assert world.unsynced() == set()
    world.scan("deletion_plan")
    assert world.unsynced() == set()


def test_what_leaves_its_topic_by_our_order_needs_no_plan(planned: tuple[AssetsScene, list[int]]) -> None:
    world, _ = planned
    trimmed = world.scene.servers.ledger(data_tags(Topic.parse(f"persistent://{NAMESPACE}/a")))
    world.said(trimmed, Outcome.SENT)
    world.scan()
    assert world.unsynced() == set()


@pytest.mark.parametrize("outcome", [None, Outcome.KEPT])
def test_an_orphan_that_others_removed_makes_the_plan_unsynced(
    planned: tuple[AssetsScene, list[int]], outcome: Outcome | None
) -> None:
    world, orphans = planned
    world.goes(orphans[0], outcome)
    world.scan()
    assert world.unsynced() == {"deletion_plan"}


def test_a_new_orphan_makes_the_plan_unsynced(planned: tuple[AssetsScene, list[int]]) -> None:
    world, orphans = planned
    world.goes(orphans[0], Outcome.DELETED)
    world.scene.servers.ledger(data_tags(Topic.parse(f"persistent://{NAMESPACE}/a")))
    world.scan()
    assert world.unsynced() == {"deletion_plan"}


def test_an_orphan_that_came_back_makes_the_plan_unsynced(planned: tuple[AssetsScene, list[int]]) -> None:
    """An undo, after a plan without the orphan: the orphans are those of the first scan again."""
    world, orphans = planned
    tags = data_tags(Topic.parse(f"persistent://{NAMESPACE}/gone"))
    world.goes(orphans[0], Outcome.DELETED)
    world.scan("deletion_plan")
    world.scene.servers.ledger(tags, ledger_id=orphans[0])
    world.scan()
    assert world.unsynced() == {"deletion_plan"}


def test_what_changed_since_is_unsynced(world: AssetsScene) -> None:
    world.scene.topic("a", 100, 90)
    world.scene.servers.wait(2)
    world.scan()
    world.followed()
    world.scene.topic("b", 100, 90)
    world.scan()
    assert {"expired_ledgers", "topics_to_load", "storage_report"} <= world.unsynced()
    assert "deletion_plan" not in world.unsynced()


def test_a_topic_that_is_called_alike_is_not_the_queue(world: AssetsScene) -> None:
    world.scan("expired_ledgers", "retention_plan")
    world.scene.topic("__ledger_deletion", 100, 90)
    world.scan()
    assert "expired_ledgers" in world.unsynced()
    assert NAMESPACE not in str(DELETION_TOPIC)
