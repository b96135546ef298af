"""Partitions that no broker has, spread over tasks: the same comes of them, and the run has one budget of unloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pulsar_lifecycle.delete_records.apply_run import HERE
from pulsar_lifecycle.delete_records.request import END
from pulsar_lifecycle.errors import Paused
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.tasks import LocalTasks
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from tests.kit.records.records_scene import RecordsScene

MORE = 3
"""Partitions beyond what is worked on here: the last two need a broker."""


class _Tasks(LocalTasks):
    """Two, which work one after the other: the fakes take one caller at a time."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        super().__init__(1)
        self.topics: list[str] = []
        self._before = before

    @property
    def at_once(self) -> int:
        return 2

    def map(self, work: Callable[[Any], Any], pieces: Sequence[Any]) -> Iterator[Any]:
        for piece in pieces:
            self.topics += [row["topic"] for row in piece]
        self._before()
        return super().map(work, pieces)


class _Scene(RecordsScene):
    tasks: LocalTasks = LocalTasks()

    @property
    def where(self) -> Any:
        return replace(super().where, given=self.tasks)


@pytest.fixture
def scene() -> _Scene:
    return _Scene(HERE + MORE)


def test_what_no_broker_has_is_spread_and_what_needs_an_unload_is_not(scene: _Scene) -> None:
    scene.writes_loaded, scene.max_unloads = True, 3
    *_, loaded, rolled = scene.topics
    admin, unloads = scene.cluster.admin, list[Topic]()
    admin.topics = {loaded: {}, rolled: {}}

    def unload(topic: Topic) -> None:
        unloads.append(topic)
        if unloads.count(rolled) == 1 and topic == rolled:
            scene.rolled(rolled)

    admin.on_unload = unload
    scene.plan(*[scene.at(2, 3, topic) for topic in scene.topics[:-1]], END)
    path = scene.cluster.topic_path(loaded)
    scene.cluster.put(path, scene.cluster.zookeeper.data(path))  # it counts as loaded by that
    scene.tasks = tasks = _Tasks()
    found = scene.apply()
    assert {one.error for one in found} == {RecordsError.TIMEOUT}, found
    assert sorted(tasks.topics) == sorted(str(topic) for topic in scene.topics[:-1])
    assert sorted(unloads) == sorted([loaded, rolled, rolled])
    assert all(scene.listed(topic) == scene.ids[topic][2:] for topic in scene.topics[:-1])
    scene.delete()
    assert {one.error for one in scene.apply()} == {None}


def test_a_pause_stops_the_tasks_and_the_run(scene: _Scene) -> None:
    scene.plan(*[scene.at(2, 3, topic) for topic in scene.topics])
    scene.tasks = _Tasks(lambda: control.pause(scene.cluster.zookeeper.session(), "test"))
    with pytest.raises(Paused):
        scene.apply()
    assert all(scene.listed(topic) == scene.ids[topic] for topic in scene.topics)
