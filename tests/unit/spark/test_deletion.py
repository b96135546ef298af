"""How much one task of a deletion run takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pulsar_lifecycle.plan.orphans import FINDINGS
from pulsar_lifecycle.spark.deletion import PlanQueue, _Worker


def worker(direct: tuple[str, int] | None) -> _Worker:
    settings: Any = SimpleNamespace(deletion=SimpleNamespace(max_messages=10))
    run: Any = None
    return _Worker(settings, run, 4, direct)


def test_a_task_takes_its_share_of_the_queue_and_a_plan_whole() -> None:
    rows = FINDINGS.empty_table()
    queue = PlanQueue(rows, "plan", 0)
    queue._messages = [None] * 99  # type: ignore[list-item]
    assert worker(None).limit(queue) == 2
    assert worker(("plan", 0)).limit(queue) == 99
