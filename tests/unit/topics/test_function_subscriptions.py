"""Which names of subscriptions are read out of the function workers' metadata topic, and when none is known."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_lifecycle._pb import pulsar_message_pb2
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.topics.system_topics.function_subscriptions import function_subscriptions
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.functions import METADATA, entry, functions_subscribe, metadata, request, set_functions
from tests.kit.simulated.offloaded import attempt


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    return ActivityScene(tmp_path, monkeypatch)


def as_compacted(position: Position, data: bytes) -> bytes:
    said = pulsar_message_pb2.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)
    raw = said.SerializeToString()
    return struct.pack(">i", len(raw)) + raw + struct.pack(">i", len(data)) + data


def names(scene: ActivityScene) -> set[str]:
    found = function_subscriptions(scene.cluster)
    assert found.unknown is None
    return set(found.names)


def test_without_the_topic_there_are_none(scene: ActivityScene) -> None:
    assert names(scene) == set()
    scene.servers.topic(Topic.parse("persistent://public/functions/metadata-2"))
    scene.servers.topic(Topic.parse("persistent://public/functions/assignments"))
    assert names(scene) == set()


def test_every_name_that_was_ever_said_counts_and_nobody_loads_the_topic(scene: ActivityScene) -> None:
    set_functions(scene.servers, request("old"), request(None), request("new"))
    assert names(scene) == {"old", "new"}
    assert not scene.servers.admin.touched


def test_all_partitions_are_read(scene: ActivityScene) -> None:
    for n in range(2):
        set_functions(scene.servers, request(f"s{n}"), topic=Topic.parse(f"{METADATA}-partition-{n}"))
    assert names(scene) == {"s0", "s1"}


def test_of_a_compacted_topic_its_view_is_read_and_what_lies_behind(scene: ActivityScene) -> None:
    """What is before the horizon may be anything: it is trimmed, or about to be."""
    said = entry(metadata("kept").SerializeToString(), "t/n/f")
    first = scene.servers.ledger(data_tags(METADATA), entries=[b"gone"])
    later = [entry(metadata("later", "g").SerializeToString(), "t/n/g"), entry(b"", "t/n/f")]
    second = scene.servers.ledger(data_tags(METADATA), entries=later)
    view = scene.servers.ledger(data_tags(METADATA), entries=[as_compacted(Position(first, 0), said)])
    scene.servers.topic(METADATA, [first, second])
    info = cursor_format.ManagedCursorInfo(-1, Position(first, 0), properties={"CompactedTopicLedger": view})
    scene.servers.put(f"{scene.servers.topic_path(METADATA)}/__compaction", cursor_format.encode(info))
    assert names(scene) == {"kept", "later"}


def test_another_topic_is_read_where_the_settings_name_it(scene: ActivityScene) -> None:
    other = Topic.parse("persistent://ours/workers/meta data")
    functions_subscribe(scene.servers, "s")
    set_functions(scene.servers, request("t"), topic=other)
    scene.choose(functions_metadata=str(other))
    assert names(scene) == {"t"}
    scene.choose(functions_metadata="")
    assert names(scene) == set()


def test_of_a_topic_that_is_not_there_and_that_the_settings_name_nothing_is_known(scene: ActivityScene) -> None:
    """A mistyped name would let the subscriptions of all functions go."""
    functions_subscribe(scene.servers, "s")
    scene.choose(functions_metadata=f"{METADATA}s")
    found = function_subscriptions(scene.cluster)
    assert not found.names
    assert found.unknown
    assert found.unknown.startswith(f"inactivity.functions_metadata names {METADATA}s, which does not exist")
    why = found.keep(["any"])
    assert why
    assert why.code is InactiveKept.FUNCTIONS_UNKNOWN
    scene.choose(functions_metadata=str(METADATA))
    assert names(scene) == {"s"}


def _value(scene: ActivityScene) -> None:
    set_functions(scene.servers, request("s"), b"x")


def _dead_broker(scene: ActivityScene) -> None:
    scene.servers.topic(METADATA, [scene.servers.ledger(data_tags(METADATA), state=LedgerState.IN_RECOVERY)])


def _no_ledger(scene: ActivityScene) -> None:
    functions_subscribe(scene.servers, "s")
    scene.servers.topic(METADATA, [77_777])


def _z_node(scene: ActivityScene) -> None:
    functions_subscribe(scene.servers, "s")
    scene.servers.put(scene.servers.topic_path(METADATA), b"\xff")


def _in_a_bucket(scene: ActivityScene) -> None:
    ledger = scene.servers.ledger(data_tags(METADATA), entries=[entry(request("s"))])
    scene.servers.topic(METADATA, [ledger], offloaded={ledger: attempt(None, bookkeeper_deleted=True)})


@pytest.mark.parametrize("broken", [_value, _dead_broker, _no_ledger, _z_node, _in_a_bucket])
def test_nothing_is_known_of_a_topic_that_cannot_be_read_whole(
    scene: ActivityScene, broken: Callable[[ActivityScene], None]
) -> None:
    broken(scene)
    found = function_subscriptions(scene.cluster)
    assert not found.names
    assert found.unknown
    assert found.unknown.startswith(f"{METADATA} cannot be read whole")
    assert 'set inactivity.functions_metadata = ""' in found.unknown
