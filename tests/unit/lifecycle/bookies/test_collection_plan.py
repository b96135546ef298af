"""Plans of bookies to have collect: what they hold, and what a run does by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from pulsar_lifecycle.inspect.settled import PlanEnd, ended_plans
from pulsar_lifecycle.journal.approvals import applied_plans
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionChoice
from pulsar_lifecycle.lifecycle.bookies.collection_run import collect_bookies, plan_now
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.plans import collection_plan
from pulsar_lifecycle.values.plans.collection_plan import COLLECTIONS
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.refused import refused_by
from tests.kit.scenes.lifecycle.collection_scene import GB, full
from tests.kit.scenes.lifecycle.planned_collections import PlannedCollections


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlannedCollections:
    return PlannedCollections(tmp_path, monkeypatch)


def test_a_plan_has_the_bookies_that_could_free_much_rack_by_rack(scene: PlannedCollections) -> None:
    scene.bookies.statuses["b"] = full("b", logs=5, live=5 * GB)
    plan = scene.planned()
    stored, rows = scene.cluster.lake.collection_plan(plan.plan_id)
    assert stored == plan
    assert rows.schema == COLLECTIONS
    assert [(row["bookie"], row["rack"], row["verdict"]) for row in rows.to_pylist()] == [
        ("a", "/1", "compaction_suspended"),
        ("c", "/2", "waits_for_gc"),
    ]
    assert (plan.ledgers, plan.cluster_ledgers, plan.actionable) == (2, 3, True)
    assert plan.physical_bytes == sum(row["bytes"] for row in rows.to_pylist()) >= 60 * GB
    assert plan.plan_id.startswith(f"collection-{plan.epoch_id}-")


ROW = {"bookie": "a", "rack": "/1", "bytes": 5, "verdict": "waits_for_gc"}


@pytest.mark.parametrize("column", COLLECTIONS.names)
def test_the_digest_covers_each_column_and_no_order(scene: PlannedCollections, column: str) -> None:
    summary = scene.planned().to_json()
    other = ROW | {"bookie": "b"}
    changed = ROW | {column: 9 if column == "bytes" else "another"}
    one, same, two = (
        collection_plan.digest(pa.Table.from_pylist(rows, COLLECTIONS), summary)
        for rows in ([ROW, other], [other, ROW], [changed, other])
    )
    assert one == same != two
    assert collection_plan.digest(pa.Table.from_pylist([ROW, other], COLLECTIONS), summary | {"cluster": "x"}) != one


def test_a_run_tells_the_bookies_of_its_plan_alone(scene: PlannedCollections) -> None:
    scene.bookies.statuses["c"] = full("c", logs=5, live=5 * GB)
    plan = scene.planned()
    scene.bookies.statuses["c"] = full("c", 0.7)
    order = Order(plan.plan_id, plan.digest)
    judged, _ = plan_now(scene.cluster, order=order)
    assert {row.bookie: row.choice for row in judged} == {
        "a": CollectionChoice.COLLECT, "b": CollectionChoice.COLLECT, "c": CollectionChoice.NOT_PLANNED,
    }  # fmt: skip
    assert set(scene.collect(plan)) == {"a", "b"}
    rows = scene.scene.servers.journal.rows
    assert {(row.plan_id, row.action) for row in rows} == {(plan.plan_id, Action.COLLECT_BOOKIE)}
    assert set(applied_plans(scene.cluster.journal_reader, "test", [plan.plan_id], 0)) == {plan.plan_id}
    assert ended_plans(scene.cluster, [plan], scene.clock.now_ms()) == {plan.plan_id: PlanEnd.SETTLED}
    assert {row.bookie for row in collect_bookies(scene.cluster, "by hand", lambda _: None)[1]} == {"c"}


def test_what_became_of_its_bookies_since_the_plan_decides(scene: PlannedCollections) -> None:
    """One that has little left, or is gone, is left alone, and the journal says why."""
    plan = scene.planned()
    scene.bookies.statuses["b"] = full("b", logs=5, live=5 * GB)
    del scene.bookies.statuses["c"]
    assert set(scene.collect(plan)) == {"a"}
    left = [(row.reason, row.code) for row in scene.scene.servers.journal.rows if row.outcome == Outcome.LEFT]
    assert left == [
        ("b: little_to_free, waits_for_gc", CollectionChoice.LITTLE_TO_FREE),
        ("c: unknown_disk, not_registered", CollectionChoice.UNKNOWN_DISK),
    ]
    assert ended_plans(scene.cluster, [plan], scene.clock.now_ms()) == {}


def test_a_plan_that_may_not_be_applied_is_refused_before_any_bookie_is_told(scene: PlannedCollections) -> None:
    plan = scene.planned()
    with refused_by(RefusalCode.PLAN_DIFFERS):
        scene.collect(replace(plan, digest="another"))
    gap = Gap(GapCode.ZNODE_UNREAD, "/x", "it could not be read")
    uncovered = replace(plan, plan_id="collection-e-1", actionable=False, gaps=(gap,))
    rows = scene.cluster.lake.collection_plan(plan.plan_id)[1]
    uncovered = replace(uncovered, digest=collection_plan.digest(rows, uncovered.to_json()))
    scene.cluster.lake.store_collection_plan(uncovered, rows)
    with refused_by(RefusalCode.REPORT_ONLY):
        scene.collect(uncovered)
    scene.clock.advance(86_400)
    scene.scene.scan()
    scene.clock.advance(1)
    with refused_by(RefusalCode.PLAN_EXPIRED):
        scene.collect(plan)
    assert scene.bookies.collections == []
