"""What brokers are asked for, phase by phase: as much of each broker for any number of partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from pulsar_lifecycle.delete_records.partition_effects import PASSED_AT_MOST, REMOVED_AT_ONCE
from pulsar_lifecycle.delete_records.request import END, PLAIN, DeleteRecordsResult, Offset, Options
from pulsar_lifecycle.errors import Paused
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.model import MessagePosition, Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics import low_watermark
from tests.kit.fakes.broker_admin import FakeSubscription
from tests.kit.records.records_scene import ENTRIES, RecordsScene

BROKERS: tuple[str, ...] = ("broker-1:8080", "broker-2:8080")
LOOK = {"brokers": 1, "loaded_topics": 1, "stats_interval_ms": 1}
"""One look at all brokers: at the end of an apply, and once more when no list can be late any more."""
BEGIN = {"brokers": 1, "statistics": len(BROKERS), "check_admin": 1}
"""What each broker has loaded; and whether our role may, once for the namespace."""


class Counted:
    """An admin port whose calls are counted."""

    def __init__(self, admin: Any, calls: Counter[str]) -> None:
        self.__dict__.update(admin=admin, calls=calls)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.admin, name)
        if name.startswith(("_", "on_")) or name == "take_alone" or not callable(found):
            return found

        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return found(*arguments, **named)

        return counted

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.admin, name, value)


def asked(scene: RecordsScene, offset: Callable[[Topic], Offset], options: Options = PLAIN) -> list[Counter[str]]:
    """What brokers are asked in the plan, the apply and the answer."""
    calls: Counter[str] = Counter()
    scene.cluster.admin = Counted(scene.cluster.admin, calls)  # type: ignore[assignment]
    found: list[Counter[str]] = []

    def phase(done: Any) -> Any:
        found.append(Counter(calls))
        calls.clear()
        return done

    offsets: list[Offset] = [offset(topic) for topic in scene.topics]
    rows = phase(scene.plan(*offsets, options=options))
    assert [row["error"] for row in rows] == [None] * len(scene.topics), rows[0]
    phase(scene.apply())
    scene.delete()
    calls.clear()
    assert [one.error for one in phase(scene.apply(dry_run=True))] == [None] * len(scene.topics)
    return found


@pytest.mark.parametrize("partitions", [1, 20])
def test_for_unloaded_partitions_each_broker_is_asked_as_much_however_many_there_are(partitions: int) -> None:
    scene = RecordsScene(partitions)
    scene.cluster.admin.broker_ids = list(BROKERS)
    plan, apply, answer = asked(scene, lambda topic: scene.at(2, 0, topic))
    assert plan == BEGIN
    assert apply == Counter(BEGIN) + Counter(LOOK) + Counter(LOOK)
    assert answer == {}


def loaded(scene: RecordsScene, subscription: str = "") -> None:
    """Each partition is loaded, by one broker and the other in turn."""
    admin = scene.cluster.admin
    scene.writes_loaded = True
    admin.broker_ids = list(BROKERS)
    for n, topic in enumerate(scene.topics):
        scene.load(topic, BROKERS[n % 2])
        admin.topics[topic] = {subscription: FakeSubscription()} if subscription else {}
        admin.owners[topic] = BROKERS[n % 2]

    def put(topic: Topic, properties: Mapping[str, str]) -> None:
        path = scene.cluster.topic_path(topic)
        info = managed_ledger.decode(scene.cluster.zookeeper.data(path))
        scene.cluster.put(path, managed_ledger.encode(replace(info, properties=properties)))

    def kept(topic: Topic, properties: Mapping[str, str]) -> None:
        put(topic, {**scene.properties(topic), **properties})

    def removed(topic: Topic, name: str) -> None:
        put(topic, {key: text for key, text in scene.properties(topic).items() if key != name})

    def moved(topic: Topic, name: str, past: Position) -> None:
        scene.cursor(name, scene.ids[topic].index(past.ledger_id), past.entry_id, topic)

    admin.on_properties, admin.on_removal, admin.on_move = kept, removed, moved


@pytest.mark.parametrize("partitions", [2, 20])
@pytest.mark.parametrize(
    ("ledger", "entry", "each"),
    [
        pytest.param(2, 0, {"unload": 1}, id="ledgers go: the unload after the write"),
        pytest.param(0, 4, {"set_properties": 1}, id="none goes: its broker keeps the low watermark"),
    ],
)
def test_a_loaded_partition_takes_one_request_of_its_own(
    partitions: int, ledger: int, entry: int, each: Mapping[str, int]
) -> None:
    scene = RecordsScene(partitions)
    loaded(scene)
    plan, apply, answer = asked(scene, lambda topic: scene.at(ledger, entry, topic))
    assert plan == BEGIN
    assert apply == Counter(BEGIN) + Counter({name: count * partitions for name, count in each.items()})
    assert answer == {}


def test_what_a_broker_keeps_for_earlier_requests_does_not_add_up() -> None:
    """A policy's hourly requests would fill the topic's z-node in the end, and nobody could write it any more."""
    scene = RecordsScene()
    loaded(scene)
    most = 0
    for entry in range(1, ENTRIES):
        scene.plan(scene.at(0, entry))
        assert scene.apply() == [DeleteRecordsResult(scene.at(0, entry))]
        most = max(most, len(scene.properties()))
    assert most == PASSED_AT_MOST
    assert [*scene.properties().values()] == [str(scene.at(0, ENTRIES - 1))]


def crowded(scene: RecordsScene, count: int) -> None:
    """Its broker keeps so many positions of earlier requests, as an earlier version left them."""
    for n in range(count):
        scene.cluster.admin.set_properties(scene.topic, low_watermark.kept_by_broker(MessagePosition(0, n)))
    scene.plan(scene.at(0, 4))


def test_one_request_removes_as_many_earlier_ones_as_it_may() -> None:
    scene = RecordsScene()
    loaded(scene)
    crowded(scene, REMOVED_AT_ONCE + 10)
    assert [one.error for one in scene.apply()] == [None]
    assert len(scene.properties()) == 10 + 1


def test_a_pause_stops_the_removal_of_earlier_ones() -> None:
    scene = RecordsScene()
    loaded(scene)
    crowded(scene, 20)
    admin, removed = scene.cluster.admin, list[str]()
    remove = admin.on_removal

    def then_pause(topic: Topic, name: str) -> None:
        removed.append(name)
        remove(topic, name)
        if len(removed) == 3:
            control.pause(scene.cluster.zookeeper.session(), "test")

    admin.on_removal = then_pause
    with pytest.raises(Paused):
        scene.apply()
    assert len(removed) == 3


@pytest.mark.parametrize("partitions", [2, 6])
def test_a_cursor_that_is_moved_takes_one_request_more(partitions: int) -> None:
    scene = RecordsScene(partitions)
    loaded(scene, "s")
    for topic in scene.topics:
        scene.cursor("s", 0, 3, topic)
    plan, apply, answer = asked(scene, lambda topic: scene.at(2, 0, topic), Options(move_cursors=True))
    assert plan == BEGIN
    assert apply == Counter(BEGIN) + Counter({"move_cursor": partitions, "unload": partitions})
    assert answer == {}


@pytest.mark.parametrize("partitions", [2, 6])
def test_an_end_that_is_rolled_takes_two_requests_of_its_own(partitions: int) -> None:
    """One unload closes the current ledger, the other follows our write."""
    scene = RecordsScene(partitions)
    scene.writes_loaded = True
    scene.cluster.admin.broker_ids = list(BROKERS)
    rolled: set[Topic] = set()

    def unloaded(topic: Topic) -> None:
        if topic not in rolled:
            rolled.add(topic)
            scene.rolled(topic)

    for topic in scene.topics:
        scene.cluster.admin.topics[topic] = {}
    scene.cluster.admin.on_unload = unloaded
    plan, apply, answer = asked(scene, lambda _: END)
    assert plan == BEGIN
    assert apply == Counter(BEGIN) + Counter({"unload": 2 * partitions})
    assert answer == {}
