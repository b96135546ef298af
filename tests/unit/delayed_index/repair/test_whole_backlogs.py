"""Delayed messages of subscriptions that have no buckets: found where the settings or a choice say so, and indexed."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import repair, undo_repair
from pulsar_lifecycle.delayed_index.stored.check_run import BUCKETS, DUE, FINDINGS, check_delayed_indexes, chosen
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.delayed_scene import COUNT, DelayedScene
from tests.kit.scenes.retention_scene import NAMESPACE

BY_BUCKETS = {
    "delayedDeliveryMinIndexCountPerBucket": "20",
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DelayedScene:
    made = DelayedScene(tmp_path, monkeypatch)
    made.backlog("bare", cursors=())
    made.servers.cursor(made.named("bare"), "s", at=1)
    made.servers.cursor(made.named("bare"), "__compaction", at=1)
    return made


def found(scene: DelayedScene, epoch_id: str, table: str = FINDINGS) -> list[tuple[str, str, str, int]]:
    rows = scene.lake.read_epoch_table(epoch_id, table).to_pylist()
    return [(row["topic"].rpartition("/")[2], row["subscription"], row["code"], row["messages"]) for row in rows]


def test_they_are_read_only_where_the_settings_say_so(scene: DelayedScene) -> None:
    assert found(scene, scene.checked().epoch_id) == []
    scene.change(whole_backlogs=(NAMESPACE,))
    epoch = scene.checked().epoch_id
    assert found(scene, epoch) == [("bare", "s", IndexFinding.NO_BUCKETS, 3 * COUNT)]
    due = scene.lake.read_epoch_table(epoch, DUE).to_pylist()
    assert sum(row["messages"] for row in due) == 3 * COUNT
    assert not any(row["indexed"] for row in due)


def test_a_choice_of_namespaces_is_stored_beside_the_whole(scene: DelayedScene) -> None:
    scene.backlog("whole")
    epoch = scene.checked()
    for names, count in (((NAMESPACE,), 3), (("acme/other",), 0)):
        checked = check_delayed_indexes(scene.cluster, epoch.epoch_id, names)
        assert checked.topics == (2 if count else 0)
        assert scene.lake.read_epoch_table(epoch.epoch_id, chosen(BUCKETS)).num_rows == count
        assert [code for *_, code, _ in found(scene, epoch.epoch_id, chosen(FINDINGS))] == ["no_buckets"][: count // 3]
    assert found(scene, epoch.epoch_id) == []
    assert scene.lake.read_epoch_table(epoch.epoch_id, BUCKETS).num_rows == 3


def test_they_get_buckets_where_brokers_are_known_to_read_them_and_an_undo_takes_them(scene: DelayedScene) -> None:
    scene.change(whole_backlogs=(NAMESPACE,))
    _, rows = make_repair_plan(scene.cluster, scene.checked())
    assert rows.num_rows == 0
    scene.change(brokers=BY_BUCKETS)
    summary, rows = make_repair_plan(scene.cluster, scene.checked())
    assert [(row["level"], row["buckets"], row["messages"]) for row in rows.to_pylist()] == [("rebuild", [], 3 * COUNT)]
    order = Order(summary.plan_id, summary.digest)
    (done,) = repair(scene.cluster, "repair", order, dry_run=False)
    assert done.outcome is Outcome.DONE, done
    assert len(scene.keys("bare")) == 3
    assert found(scene, scene.checked().epoch_id) == []
    (again,) = repair(scene.cluster, "again", order, dry_run=False)
    assert again.outcome is Outcome.LEFT
    (back,) = undo_repair(scene.cluster, "undo", summary.plan_id, dry_run=False)
    assert (back.outcome, scene.keys("bare")) == (Outcome.DONE, {})
