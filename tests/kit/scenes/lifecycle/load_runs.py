"""Load plans of a :class:`LoadScene`, made and applied."""

from __future__ import annotations

from typing import Any

from pulsar_lifecycle.lifecycle.load.load_planning import TABLE, make_load_plan
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.lifecycle.load.visits import LoadedTopic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.gaps import Gap
from pulsar_lifecycle.values.plans import load_plan
from pulsar_lifecycle.values.plans.load_plan import TOPICS_TO_LOAD
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from tests.kit.crash import Crash
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import NAMESPACE

OWN = f"persistent://{NAMESPACE}/"


def plan(scene: LoadScene, *gaps: Gap, **context: Any) -> tuple[PlanSummary, list[dict[str, Any]]]:
    """A plan of a new scan, which reads back as it was made, and its rows."""
    summary, rows = make_load_plan(scene.cluster, scene.scan(*gaps, **context))
    assert load_plan.digest(rows, summary.to_json()) == summary.digest
    assert scene.lake.load_plan(summary.plan_id) == (summary, rows)
    assert scene.lake.load_plans()[-1] == summary
    return summary, rows.to_pylist()


def stored(scene: LoadScene) -> dict[str, dict[str, Any]]:
    """Rows of table ``topics_to_load`` by topic."""
    epoch = scene.lake.epochs()[-1].epoch_id
    batches = scene.lake.batches(scene.lake.parts(epoch, TABLE), TOPICS_TO_LOAD.names)
    return {row["topic"].rpartition("/")[2]: row for batch in batches for row in batch.to_pylist()}


def planned(scene: LoadScene, *names: str) -> PlanSummary:
    scene.servers.wait(1)
    summary, rows = make_load_plan(scene.cluster, scene.scan())
    scene.ready(*names)
    assert sorted(rows.column("topic").to_pylist()) == [f"{OWN}{name}" for name in sorted(names)]
    return summary


def applied(scene: LoadScene, plan: PlanSummary, *, dry_run: bool = False, **order: Any) -> list[LoadedTopic]:
    return load_topics(scene.cluster, "run", Order(plan.plan_id, plan.digest, **order), dry_run=dry_run)


def expired(scene: LoadScene, name: str = "a") -> list[int]:
    """A topic whose only subscription has read everything, and whose last ledger will be past its retention."""
    return scene.topic(name, 100, 90, cursor=1)


def pending(scene: LoadScene) -> list[str]:
    root = control.PENDING_UNLOADS[control.LEASE]
    return list(scene.servers.zookeeper.names(root)) if root in scene.servers.zookeeper._nodes else []


HOOKS = ("on_load", "on_unsubscribe", "on_expire", "on_trim", "on_unload")
"""What a run tells the broker."""


def killed(scene: LoadScene, plan: PlanSummary, at: int, told: list[str]) -> bool:
    """Whether a run came to its step ``at``, where it was killed; ``told``: what brokers were told, which joins it."""
    left = iter(range(at, -2, -1))

    def tell(*_: object) -> None:
        if next(left, -1) <= 0:
            raise Crash(str(at))

    scene.before = tell
    admin = scene.servers.admin
    real = {name: getattr(admin, name) for name in HOOKS}
    for name, hook in real.items():
        setattr(admin, name, lambda *given, name=name, hook=hook: (tell(), told.append(name), hook(*given)))
    try:
        applied(scene, plan)
    except Crash:
        return True
    return False
