"""Inactive subscriptions of partitioned topics that no broker has: a load deletes one on all partitions or on none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pulsar_lifecycle.errors import BundleShared, Failed, Paused
from pulsar_lifecycle.lifecycle.load import load_run
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visit import LoadStep
from pulsar_lifecycle.lifecycle.load.visits import LoadedTopic
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import TopicConnections
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene
from tests.kit.scenes.lifecycle.inactive_loads import PARTITIONS, chosen, deletions, plan, said, there, unused
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, stored
from tests.kit.scenes.retention_scene import NAMESPACE
from tests.kit.simulated.cluster import half_of

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


def test_a_partition_whose_visit_fails_keeps_no_other_once_it_has_it_no_more(scene: ActivityScene) -> None:
    """Somebody deleted it there."""
    unused(scene, *FOUR)
    made, _ = plan(scene)
    late(scene)
    load = scene.servers.admin.on_load

    def then(topic: Topic) -> None:
        load(topic)
        if topic.local == FOUR[3]:
            scene.servers.remove(scene.cursor_path(FOUR[3], "s"))

    scene.servers.admin.on_load = then
    done = said(applied(scene, made))
    assert done[FOUR[3]][:2] == (Outcome.FAILED, LoadStep.NOT_IN_TIME)
    assert [there(scene, name) for name in FOUR] == [set()] * 4


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


def two_planned(scene: ActivityScene) -> PlanSummary:
    """A plan to load both partitions, one after the other, for two subscriptions that each has."""
    ids = unused(scene, *PARTITIONS)
    for name in PARTITIONS:
        scene.at(name, "t", Position(ids[name][0], -1))
    scene.ready(*PARTITIONS)
    scene.change(at_once=1)
    made, _ = plan(scene)
    return made


@pytest.mark.parametrize("killed", [False, True])
def test_one_that_a_broker_refuses_to_delete_keeps_no_other(scene: ActivityScene, killed: bool) -> None:
    """Of two, on the first partition: what that one has lost goes on the others, too.

    ``killed``: the run ends after the first partition, and the next launch goes on.
    """
    made = two_planned(scene)
    unsubscribe = scene.servers.admin.on_unsubscribe

    def refuses(topic: Topic, name: str) -> None:
        if name == "t":
            raise Failed("it has consumers")
        unsubscribe(topic, name)

    scene.servers.admin.on_unsubscribe = refuses
    order = Order(made.plan_id, made.digest)
    if killed:
        with pytest.raises(Paused):
            load_run.load_topics(scene.cluster, "run", order, dry_run=False, report=stopping)
        assert there(scene, PARTITIONS[0]) == {"t"}
        scene.servers.wait(1)
    done = applied(scene, made)
    assert said(done)[PARTITIONS[1]] == (Outcome.DONE, LoadStep.IN_METADATA, ("s",))
    assert f"subscription t stays: it stays on {scene.named(PARTITIONS[0])}" in done[1].why.text
    assert [there(scene, name) for name in PARTITIONS] == [{"t"}] * 2
    assert not any(scene.is_loaded(name) for name in PARTITIONS)


def test_one_whose_client_came_back_keeps_no_other(scene: ActivityScene) -> None:
    """Of two, on the first partition, as it is loaded."""
    made = two_planned(scene)
    load = scene.servers.admin.on_load
    scene.servers.admin.on_load = lambda topic: (load(topic), comes(topic))[0]

    def comes(topic: Topic) -> None:
        if topic.local == PARTITIONS[0]:
            scene.servers.admin.clients[topic] = TopicConnections(0, {"t": 1}, 0)

    done = said(applied(scene, made))
    assert done[PARTITIONS[0]] == (Outcome.DONE, LoadStep.LESS_WENT, ("s",))
    assert done[PARTITIONS[1]] == (Outcome.DONE, LoadStep.IN_METADATA, ("s",))
    assert [there(scene, name) for name in PARTITIONS] == [{"t"}] * 2


def stopping(done: Sequence[LoadedTopic]) -> None:
    raise Paused("test")


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_second_launch_goes_on_with_the_partitions_that_the_budget_left(scene: ActivityScene, at_once: int) -> None:
    unused(scene, *PARTITIONS)
    scene.change(at_once=at_once, max_per_bundle=1)
    made, _ = plan(scene)
    assert said(applied(scene, made))[PARTITIONS[1]][:2] == (Outcome.LEFT, LoadKept.BUDGET_SPENT)
    scene.servers.wait(1)
    done = said(applied(scene, made))
    assert done[PARTITIONS[0]][0] is Outcome.LEFT
    assert done[PARTITIONS[1]] == (Outcome.DONE, LoadStep.IN_METADATA, ("s",))


def test_what_is_left_for_another_partition_takes_no_budget(scene: ActivityScene) -> None:
    unused(scene, *PARTITIONS, "x")
    scene.change(max_per_bundle=1)
    made, _ = plan(scene)
    scene.write(PARTITIONS[1])
    done = said(applied(scene, made))
    assert done[PARTITIONS[0]][:2] == (Outcome.LEFT, LoadKept.PARTITION_STAYS)
    assert done["x"] == (Outcome.DONE, LoadStep.IN_METADATA, ("s",))


def test_later_partitions_are_looked_at_where_a_launch_does_not_take_all(scene: ActivityScene) -> None:
    """The last one, which an earlier launch has done, keeps nothing; the second does."""
    unused(scene, *FOUR[:3])
    scene.change(at_once=1)
    made, _ = plan(scene)
    scene.servers.remove(scene.cursor_path(FOUR[2], "s"))
    scene.write(FOUR[1])
    done = said(applied(scene, made, limit=2))
    assert done[FOUR[0]][:2] == (Outcome.LEFT, LoadKept.PARTITION_STAYS)
    assert not scene.servers.admin.touched


def upper(name: str) -> bool:
    """Whether a topic is in the upper half of all bundles."""
    return bool(half_of(f"{OWN}{name}"))


def test_a_partition_that_the_budget_leaves_keeps_no_other(scene: ActivityScene) -> None:
    assert {upper(name) for name in FOUR} == {True, False}
    unused(scene, *FOUR)
    scene.change(at_once=1, max_per_bundle=1)
    made, _ = plan(scene)
    scene.servers.halve(NAMESPACE)
    whole = f"/namespace/{NAMESPACE}/0x00000000_0xffffffff"
    owner = scene.servers.zookeeper.data(whole)
    scene.servers.remove(whole)
    for half in ("0x00000000_0x80000000", "0x80000000_0xffffffff"):
        scene.servers.put(f"/namespace/{NAMESPACE}/{half}", owner)
    scene.servers.wait(1)
    done = [one[0] for one in said(applied(scene, made)).values()]
    assert Counter(done) == {Outcome.DONE: 2, Outcome.LEFT: 2}


@pytest.mark.parametrize("shared", [True, False])
def test_none_is_begun_where_others_would_be_loaded_with_a_later_partition(scene: ActivityScene, shared: bool) -> None:
    unused(scene, *FOUR)
    scene.change(at_once=1)
    made, _ = plan(scene)

    def take(topic: Topic) -> None:
        if shared and topic == scene.named(FOUR[-1]):
            raise BundleShared("beside")

    scene.servers.admin.on_take = take
    done = said(applied(scene, made))
    assert [there(scene, name) for name in FOUR] == [{"s"} if shared else set()] * 4, done
