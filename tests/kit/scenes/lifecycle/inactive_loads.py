"""Load plans of an :class:`ActivityScene` whose settings let inactive subscriptions go, and what became of these."""

from __future__ import annotations

from typing import Any

from pulsar_lifecycle.lifecycle.activity.inactive_planning import make_inactive_plans
from pulsar_lifecycle.lifecycle.load.load_planning import make_load_plan
from pulsar_lifecycle.lifecycle.load.visits import LoadedTopic
from pulsar_lifecycle.values.outcomes import Action
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene
from tests.kit.scenes.retention_scene import NAMESPACE

PARTITIONS = ("p-partition-0", "p-partition-1")


def chosen(found: ActivityScene) -> ActivityScene:
    """The settings let its inactive subscriptions go."""
    found.choose(period=86_400.0)
    found.change(inactive_subscriptions=(NAMESPACE,))
    found.work()
    return found


def unused(scene: ActivityScene, *names: str, read: bool = False) -> dict[str, list[int]]:
    """Topics of two ledgers without retention, of which subscription ``s`` has read nothing; nobody uses them."""
    ids = {name: scene.used(name, "s", read=read) for name in names}
    scene.ready(*names)
    scene.servers.admin.on_unsubscribe = lambda topic, name: scene.servers.remove(scene.cursor_path(topic.local, name))
    return ids


def plan(scene: ActivityScene, *, days: int = 2) -> tuple[PlanSummary, list[dict[str, Any]]]:
    report = scene.days(days)
    assert scene.epoch
    make_inactive_plans(scene.cluster, scene.epoch, report)
    summary, rows = make_load_plan(scene.cluster, scene.epoch)
    return summary, rows.to_pylist()


def said(done: list[LoadedTopic]) -> dict[str, tuple[Any, Any, tuple[str, ...]]]:
    return {one.topic.rpartition("/")[2]: (one.outcome, one.why.code, one.unsubscribed) for one in done}


def there(scene: ActivityScene, name: str) -> set[str]:
    return set(scene.servers.zookeeper.names(scene.servers.topic_path(scene.named(name))))


def deletions(scene: ActivityScene) -> list[tuple[Any, Any]]:
    rows = [row for row in scene.servers.journal.rows if row.action is Action.DELETE_SUBSCRIPTION]
    return [(row.outcome, row.code) for row in rows]
