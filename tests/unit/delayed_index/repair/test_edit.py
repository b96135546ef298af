"""The exchange of one cursor's bucket properties, over a fake metadata store, with everything that may come between."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_lifecycle.delayed_index.repair.edit import Edit, Edited, bucket_keys, write_keys
from pulsar_lifecycle.errors import OutcomeUnknown
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.cursor import BUCKET_PREFIX, ManagedCursorInfo
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.ports import Node
from tests.kit.fakes.metadata_store import FakeZooKeeper, Operation

TOPIC, CURSOR, LEASE, LEDGER = "/topic", "/topic/cursor", "/lease", "/ledger"
CHECKS = [(LEDGER, -1), (LEASE, 0)]
BEFORE = {f"{BUCKET_PREFIX}_3_3": "10", f"{BUCKET_PREFIX}_4_4": "11"}
AFTER = {f"{BUCKET_PREFIX}_3_4": "12"}
OTHERS = {"mine": "stays", "#pulsar.internal.other": "stays, too"}


class Scene:
    def __init__(self) -> None:
        self.server = FakeZooKeeper()
        self.store = self.server.session()
        self.broker = self.server.session()
        self.store.create(TOPIC)
        self.store.create(LEASE)
        self.store.create(LEDGER)
        info = ManagedCursorInfo(-1, Position(3, 7), cursor_properties={**OTHERS, **BEFORE}, last_active=5)
        self.czxid = self.store.create(CURSOR, cursor_format.encode(info)).czxid

    @property
    def edit(self) -> Edit:
        return Edit(CURSOR, self.czxid, BEFORE, AFTER)

    @property
    def topic(self) -> Node:
        (node,) = self.store.read([TOPIC])
        assert isinstance(node, Node)
        return node

    def cursor(self) -> ManagedCursorInfo:
        return cursor_format.decode(self.server.data(CURSOR))

    def write(self) -> Edited:
        return write_keys(self.store, self.edit, self.topic, CHECKS)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_only_the_buckets_properties_change_and_a_second_time_nothing_does(scene: Scene) -> None:
    before = scene.cursor()

    assert scene.write() is Edited.DONE
    assert scene.cursor() == replace(before, cursor_properties={**OTHERS, **AFTER})
    assert scene.write() is Edited.DONE
    stat = scene.server.stat(CURSOR)
    assert stat is not None
    assert stat.version == 1


@pytest.mark.parametrize("path", [TOPIC, LEASE, CURSOR])
def test_whoever_writes_topic_cursor_or_lease_first_wins(scene: Scene, path: str) -> None:
    topic = scene.topic

    def broker(operation: Operation) -> None:
        if operation.name == "write":
            scene.broker.write(path, scene.server.data(path), -1)

    scene.store.before = broker

    assert write_keys(scene.store, scene.edit, topic, CHECKS) is Edited.RACED
    assert bucket_keys(scene.cursor()) == BEFORE


def test_a_topic_that_was_made_anew_to_the_same_versions_is_left_alone(scene: Scene) -> None:
    topic = scene.topic

    def owner(operation: Operation) -> None:
        if operation.name == "write":
            data = {path: scene.server.data(path) for path in (TOPIC, CURSOR)}
            for path in (CURSOR, TOPIC, LEDGER):
                scene.broker.delete(path, -1)
            for path in (TOPIC, CURSOR):
                scene.broker.create(path, data[path])

    scene.store.before = owner

    assert write_keys(scene.store, scene.edit, topic, CHECKS) is Edited.RACED
    stat = scene.server.stat(TOPIC)
    assert stat is not None
    assert stat.version == topic.stat.version
    assert bucket_keys(scene.cursor()) == BEFORE


def test_other_buckets_or_another_cursor_of_the_name_are_left_alone(scene: Scene) -> None:
    other = Edit(CURSOR, scene.czxid, {}, AFTER)
    assert write_keys(scene.store, other, scene.topic, CHECKS) is Edited.CHANGED

    data = scene.server.data(CURSOR)
    scene.store.delete(CURSOR, -1)
    scene.store.create(CURSOR, data)
    assert scene.write() is Edited.CHANGED
    assert bucket_keys(scene.cursor()) == BEFORE


@pytest.mark.parametrize("arrived", [True, False])
def test_an_answer_that_got_lost_is_looked_up(scene: Scene, arrived: bool) -> None:
    def lose(operation: Operation) -> None:
        if operation.name == "write":
            raise OutcomeUnknown("the connection broke")

    if arrived:
        scene.store.after = lose
    else:
        scene.store.before = lose

    assert scene.write() is (Edited.DONE if arrived else Edited.RACED)
    assert bucket_keys(scene.cursor()) == (AFTER if arrived else BEFORE)
