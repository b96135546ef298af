"""Repairs of a scene's delayed indexes: one that is broken, its repair and its undo, what the journal says of them."""

from __future__ import annotations

from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import repair, undo_repair
from pulsar_lifecycle.delayed_index.repair.repair_work import Repaired
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.outcomes import Action
from tests.kit.scenes.delayed_scene import DelayedScene


class Killed(BaseException):
    """The process ends here."""


def broken(scene: DelayedScene, name: str = "a") -> Order:
    """The plan that rebuilds a topic's index."""
    first, *_ = scene.backlog(name)
    scene.name_bucket(name, first, scene.snapshot(name, first, without=1))
    summary, _ = make_repair_plan(scene.cluster, scene.checked())
    return Order(summary.plan_id, summary.digest)


def repaired(scene: DelayedScene, order: Order) -> Repaired:
    (one,) = repair(scene.cluster, "repair", order, dry_run=False)
    return one


def undone(scene: DelayedScene, order: Order, *, dry_run: bool = False) -> Repaired:
    (one,) = undo_repair(scene.cluster, "undo", order.plan_id, dry_run=dry_run)
    return one


def written(scene: DelayedScene) -> list[tuple[int, str]]:
    """What the journal says of new snapshots."""
    rows = [row for row in scene.servers.journal.rows if row.action is Action.WRITE_SNAPSHOT]
    return [(row.ledger_id, row.outcome.value) for row in rows]
