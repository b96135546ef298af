"""Inactive subscriptions of partitioned topics that no broker has: a load deletes one on all partitions or on none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_lifecycle.errors import Failed
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visits import LoadStep
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicConnections
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.topics.protection import Protection
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene
from tests.kit.scenes.lifecycle.inactive_loads import PARTITIONS, chosen, deletions, plan, said, there, unused
from tests.kit.scenes.lifecycle.load_runs import applied, stored

FOUR = tuple(f"p-partition-{n}" for n in range(4))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    return chosen(ActivityScene(tmp_path, monkeypatch))


@pytest.mark.parametrize("why", ["loaded", "hold", "settings"])
def test_one_of_a_partitioned_topic_goes_on_all_partitions_or_on_none(scene: ActivityScene, why: str) -> None:
    unused(scene, *PARTITIONS)
    if why == "settings":
        scene.change(inactive_subscriptions=(str(scene.named(PARTITIONS[0])),))
    elif why == "hold":
        scene.change(namespaces=(str(scene.named(PARTITIONS[0])),))
    else:
        scene.days(1)
        scene.clients(PARTITIONS[1])
    assert plan(scene)[1] == []
    assert stored(scene)[PARTITIONS[0]]["kept"] == LoadKept.PARTITION_STAYS


def test_all_partitions_lose_it(scene: ActivityScene) -> None:
    unused(scene, *PARTITIONS)
    scene.change(at_once=1)
    made, _ = plan(scene)
    assert said(applied(scene, made)) == dict.fromkeys(PARTITIONS, (Outcome.DONE, LoadStep.IN_METADATA, ("s",)))
    assert [there(scene, name) for name in PARTITIONS] == [set(), set()]


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("which", [0, 1])
def test_none_is_begun_where_one_partition_changed(scene: ActivityScene, at_once: int, which: int) -> None:
    unused(scene, *PARTITIONS)
    scene.change(at_once=at_once)
    made, _ = plan(scene)
    scene.write(PARTITIONS[which])
    done = said(applied(scene, made))
    assert done[PARTITIONS[which]][:2] == (Outcome.LEFT, LoadKept.NEEDS_NO_BROKER)
    assert done[PARTITIONS[1 - which]][:2] == (Outcome.LEFT, LoadKept.PARTITION_STAYS)
    assert not scene.servers.admin.touched


def test_none_is_begun_where_a_launch_takes_some_partitions_only(scene: ActivityScene) -> None:
    unused(scene, *PARTITIONS)
    made, _ = plan(scene)
    ((_, code, _),) = said(applied(scene, made, limit=1)).values()
    assert code == LoadKept.PARTITION_STAYS
    assert not scene.servers.admin.touched


@pytest.mark.parametrize("at_once", [1, 2])
def test_the_first_partition_that_keeps_it_ends_it(scene: ActivityScene, at_once: int) -> None:
    unused(scene, *PARTITIONS)
    scene.change(at_once=at_once)
    made, _ = plan(scene)
    scene.servers.admin.used_at[scene.named(PARTITIONS[0]), "s"] = scene.now
    done = said(applied(scene, made))
    assert done[PARTITIONS[0]] == (Outcome.DONE, LoadStep.LESS_WENT, ())
    visited = Outcome.DONE, LoadStep.LESS_WENT, ()
    assert done[PARTITIONS[1]] == (visited if at_once > 1 else (Outcome.LEFT, LoadKept.PARTITION_STAYS, ()))
    assert there(scene, PARTITIONS[1]) == {"s"}
    if at_once > 1:
        assert deletions(scene)[-1] == (Outcome.LEFT, LoadKept.PARTITION_STAYS)


@pytest.mark.parametrize("which", range(4))
def test_no_partition_of_a_wave_loses_it_where_a_client_appears(scene: ActivityScene, which: int) -> None:
    """After the load, on any of them: all are looked at before the first is deleted."""
    unused(scene, *FOUR)
    made, _ = plan(scene)
    load = scene.servers.admin.on_load

    def then(topic: Topic) -> None:
        load(topic)
        scene.servers.admin.clients[scene.named(FOUR[which])] = TopicConnections(0, {"s": 1}, 0)

    scene.servers.admin.on_load = then
    assert said(applied(scene, made)) == dict.fromkeys(FOUR, (Outcome.DONE, LoadStep.LESS_WENT, ()))
    assert [there(scene, name) for name in FOUR] == [{"s"}] * 4


def late(scene: ActivityScene) -> None:
    """The last partition is not loaded in time."""
    load = scene.servers.admin.on_load
    scene.servers.admin.on_load = lambda topic: None if topic.local == FOUR[3] else load(topic)


def held(scene: ActivityScene) -> None:
    """It is put on hold while the wave is loaded."""
    load = scene.servers.admin.on_load
    scene.servers.admin.on_load = lambda topic: (load(topic), scene.hold(str(scene.named(FOUR[3]))))[0]


@pytest.mark.parametrize(
    ("does", "outcome", "code"),
    [(late, Outcome.FAILED, LoadStep.NOT_IN_TIME), (held, Outcome.FAILED, Protection.LEGAL_HOLD)],
)
def test_no_partition_of_a_wave_loses_it_where_a_visit_fails(
    scene: ActivityScene, does: Callable[[ActivityScene], None], outcome: Outcome, code: object
) -> None:
    unused(scene, *FOUR)
    made, _ = plan(scene)
    does(scene)
    done = said(applied(scene, made))
    assert done[FOUR[3]][:2] == (outcome, code)
    assert [there(scene, name) for name in FOUR] == [{"s"}] * 4


def test_the_first_deletion_that_fails_ends_it_for_the_rest_of_its_wave(scene: ActivityScene) -> None:
    unused(scene, *FOUR)
    made, _ = plan(scene)
    unsubscribe = scene.servers.admin.on_unsubscribe

    def fails(topic: Topic, name: str) -> None:
        if topic.local == FOUR[1]:
            raise Failed("no")
        unsubscribe(topic, name)

    scene.servers.admin.on_unsubscribe = fails
    applied(scene, made)
    assert [there(scene, name) for name in FOUR] == [set(), {"s"}, {"s"}, {"s"}]


@pytest.mark.parametrize("at_once", [1])
def test_a_second_launch_goes_on_with_the_partitions_that_the_budget_left(scene: ActivityScene, at_once: int) -> None:
    unused(scene, *PARTITIONS)
    scene.change(at_once=at_once, max_per_bundle=1)
    made, _ = plan(scene)
    assert said(applied(scene, made))[PARTITIONS[1]][:2] == (Outcome.LEFT, LoadKept.BUDGET_SPENT)
    scene.servers.wait(1)
    done = said(applied(scene, made))
    assert done[PARTITIONS[0]][0] is Outcome.LEFT
    assert done[PARTITIONS[1]] == (Outcome.DONE, LoadStep.IN_METADATA, ("s",))
