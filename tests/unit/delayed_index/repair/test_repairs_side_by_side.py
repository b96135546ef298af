"""Repairs of many topics: spread over tasks, each topic whole in one of them; what stops one stops the run."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import HERE, repair, undo_repair
from pulsar_lifecycle.delayed_index.repair.repair_work import Repaired
from pulsar_lifecycle.errors import Paused
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.tasks import LocalTasks
from pulsar_lifecycle.values.outcomes import Action, Outcome
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.delayed_scene import DelayedScene

TOPICS = HERE + 4
AT_ONCE = 3


class Pieces(LocalTasks):
    """One piece after the other, as if three were worked on at once; ``work`` and answers must travel."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[Any] = []

    @property
    def at_once(self) -> int:
        return AT_ONCE

    def map(self, work: Callable[[Any], Any], pieces: Sequence[Any]) -> Any:
        if hasattr(work, "connect"):  # with fakes behind it, it stays here
            pickle.loads(pickle.dumps(replace(work, connect=Connections)))  # type: ignore[type-var]
        self.pieces += pieces
        return iter([pickle.loads(pickle.dumps(work(piece))) for piece in pieces])


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DelayedScene:
    return DelayedScene(tmp_path, monkeypatch)


@pytest.fixture
def order(scene: DelayedScene) -> Order:
    """The plan of repairs of many topics, one of which has two subscriptions."""
    for number in range(TOPICS):
        name = f"t{number}"
        first, *_ = scene.backlog(name, cursors=("s", "u") if number == 0 else ("s",))
        for cursor in ("s", "u") if number == 0 else ("s",):
            scene.name_bucket(name, first, scene.snapshot(name, first, cursor, without=1), cursor)
    summary, rows = make_repair_plan(scene.cluster, scene.checked())
    assert rows.num_rows == TOPICS + 1
    return Order(summary.plan_id, summary.digest)


def test_topics_are_spread_over_tasks_and_all_repaired(scene: DelayedScene, order: Order) -> None:
    tasks = Pieces()
    object.__setattr__(scene.cluster, "given", tasks)
    told: list[Repaired] = []

    done = repair(scene.cluster, "repair", order, dry_run=False, report=told.extend)

    assert told == done
    assert {one.outcome for one in done} == {Outcome.DONE}
    assert Counter((one.topic, one.subscription) for one in done).most_common(1)[0][1] == 1
    assert len(done) == TOPICS + 1
    assert len(tasks.pieces) == AT_ONCE
    rows = [row for row in scene.servers.journal.rows if row.outcome is Outcome.DONE and row.topic.endswith("/t0")]
    assert {json.loads(row.detail)["subscription"] for row in rows if row.action is Action.REPAIR_INDEX} == {"s", "u"}
    topics = [{row["topic"] for rows in piece for row in rows} for piece in tasks.pieces]
    assert sum(map(len, topics)) == len(set().union(*topics)) == TOPICS

    again = repair(scene.cluster, "again", order, dry_run=False)
    assert {one.outcome for one in again} == {Outcome.LEFT}
    back = undo_repair(scene.cluster, "undo", order.plan_id, dry_run=False)
    assert {one.outcome for one in back} == {Outcome.DONE}


def test_a_pause_stops_every_task_at_its_next_subscription_and_what_was_done_is_told(
    scene: DelayedScene, order: Order
) -> None:
    object.__setattr__(scene.cluster, "given", Pieces())
    edits: list[str] = []

    def pause(operation: Operation) -> None:
        if operation.name == "write" and "/persistent/t" in operation.paths[0]:
            edits.append(operation.paths[0])
            if len(edits) == 2:
                scene.servers.put(control.PAUSE, b"{}")

    scene.before = pause
    told: list[Repaired] = []
    with pytest.raises(Paused):
        repair(scene.cluster, "repair", order, dry_run=False, report=told.extend)

    assert len(edits) == 2
    assert [one.outcome for one in told] == [Outcome.DONE] * 2
    rows = [row for row in scene.servers.journal.rows if row.action is Action.REPAIR_INDEX]
    assert Counter(row.outcome for row in rows) == {Outcome.BEGUN: 2, Outcome.DONE: 2}
