"""Which topics and ledgers a trimming run refuses, and by which code."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from pulsar_lifecycle.errors import (
    Unavailable,
)
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.metastore.topics import SHADOW_SOURCE
from pulsar_lifecycle.model import Position, Topic, encode_name
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.write import SHADOWS_SEEN_FOR
from pulsar_lifecycle.trimming import trim as trimming_trim
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.topic_scene import OTHER, TOPIC, outcomes
from tests.kit.scenes.trim_scene import Sending, entry, refused
from tests.kit.scenes.trim_scene import TrimScene as Scene
from tests.kit.simulated.cluster import SimulatedCluster, cursor_tags, data_tags

PARENT = "/admin/partitioned-topics/acme/orders/persistent/" + encode_name(TOPIC.partitioned_parent.local)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_topic_that_is_not_there(scene: Scene) -> None:
    scene.cluster.remove(scene.path)
    refused(scene, Code.TOPIC_GONE)


UNREAD = pytest.mark.parametrize(("below", "code"), [("", Code.TOPIC_UNREAD), ("/s", Code.CURSORS_UNREAD)])


@UNREAD
def test_a_z_node_that_cannot_be_read(scene: Scene, below: str, code: Code) -> None:
    scene.cluster.zookeeper.unreadable.add(scene.path + below)
    assert "no permission" in refused(scene, code)


@UNREAD
def test_a_z_node_that_cannot_be_decoded(scene: Scene, below: str, code: Code) -> None:
    scene.cluster.put(scene.path + below, b"\xff\xff")
    assert scene.path + below in refused(scene, code)


def test_a_cursor_without_a_position(scene: Scene) -> None:
    scene.cursor("a+b", None)
    assert "cursor a+b" in refused(scene, Code.CURSORS_UNREAD)


def test_a_cursor_ledger_that_is_gone(scene: Scene) -> None:
    scene.cursor("a+b", Position(99, 0), ledger=77)
    assert "cursor a+b: its cursor ledger 77" in refused(scene, Code.CURSORS_UNREAD)


@pytest.mark.parametrize("entry", [b"\xff", b"{chunked}"])
def test_a_cursor_ledger_whose_last_entry_is_none(scene: Scene, entry: bytes) -> None:
    scene.cursor("s", Position(99, 0), ledger=scene.cluster.ledger(cursor_tags(TOPIC, "s"), entries=[entry]))
    assert "cursor s: its cursor ledger" in refused(scene, Code.CURSORS_UNREAD)


def test_a_bookie_that_does_not_answer(scene: Scene) -> None:
    ledger = scene.cluster.ledger(cursor_tags(TOPIC, "s"))
    scene.cluster.reader.failures[ledger] = Unavailable("no bookie")
    scene.cursor("s", Position(99, 0), ledger=ledger)
    assert "no bookie" in refused(scene, Code.CURSORS_UNREAD)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.CLOSED])
def test_the_last_entry_of_the_cursor_ledger_is_the_truth(scene: Scene, state: LedgerState) -> None:
    entries = [entry(Position(99, 0)), entry(Position(scene.ids[1], 7))]
    ledger = scene.cluster.ledger(cursor_tags(TOPIC, "s"), entries=entries, state=state)
    scene.cursor("s", Position(99, 0), ledger=ledger)
    found = scene.trim()
    assert outcomes(found) == {
        scene.ids[0]: Outcome.REMOVED,
        scene.ids[1]: Outcome.REFUSED,
        scene.ids[2]: Outcome.REFUSED,
    }
    assert found[scene.ids[1]].why.code is Stays.CURSOR
    assert scene.listed == scene.ids[1:]


@pytest.mark.parametrize("state", LedgerState)
def test_nothing_goes_where_a_cursor_ledger_has_lost_its_entries(scene: Scene, state: LedgerState) -> None:
    """Its z-node may be ahead of a subscription that was moved back since."""
    ledger = scene.cluster.ledger(cursor_tags(TOPIC, "s"), entries=[], state=state)
    scene.cursor("s", Position(scene.ids[2], 0), ledger=ledger)
    assert f"its cursor ledger {ledger}" in refused(scene, Code.CURSORS_UNREAD)


def test_the_ledger_whose_last_entry_the_slowest_cursor_stands_at_goes(scene: Scene) -> None:
    scene.cursor("s", Position(scene.ids[1], 0))
    assert outcomes(scene.trim()) == {
        scene.ids[0]: Outcome.REMOVED,
        scene.ids[1]: Outcome.REMOVED,
        scene.ids[2]: Outcome.REFUSED,
    }
    assert scene.listed == scene.ids[2:]


def test_every_durable_cursor_counts(scene: Scene) -> None:
    scene.cursor("pulsar.dedup", Position(scene.ids[0], -1))
    assert set(outcomes(scene.trim()).values()) == {Outcome.REFUSED}
    assert scene.listed == scene.ids


def test_a_shadow_topic(scene: Scene) -> None:
    scene.cluster.topic(TOPIC, scene.ids, shadow_of="persistent://acme/orders/source")
    scene.cluster.wait(1)
    found = scene.trim()
    assert {one.why.code for one in found.values()} == {Protection.SHADOW_TOPIC}
    assert scene.listed == scene.ids


def test_a_partition_of_a_shadow_topic(scene: Scene) -> None:
    scene.cluster.put(PARENT, json.dumps({"properties": {SHADOW_SOURCE: "x"}}).encode())
    assert {one.why.code for one in scene.trim().values()} == {Protection.SHADOW_TOPIC}
    assert scene.listed == scene.ids


def test_a_partition_of_a_shadow_topic_that_a_separate_configuration_store_names(scene: Scene) -> None:
    """The broker's DELETE of it would take its source's ledgers."""
    scene.configuration = SimulatedCluster()
    scene.configuration.put(PARENT, json.dumps({"properties": {SHADOW_SOURCE: "x"}}).encode())
    assert {one.why.code for one in scene.trim().values()} == {Protection.SHADOW_TOPIC}
    (whole,) = scene.delete_topic(force=True).values()
    assert (whole.outcome, whole.why.code) == (Outcome.REFUSED, Protection.SHADOW_TOPIC)
    assert scene.listed == scene.ids
    assert scene.sent == []


def test_a_partitioned_topic_that_cannot_be_read(scene: Scene) -> None:
    scene.cluster.put(PARENT, b"{}")
    scene.cluster.zookeeper.unreadable.add(PARENT)
    assert PARENT in refused(scene, Code.TOPIC_UNREAD)


def test_a_ledger_that_bookkeeper_does_not_have(scene: Scene) -> None:
    scene.cluster.remove(scene.cluster.path(scene.ids[1]))
    found = scene.trim()
    assert found[scene.ids[1]].why.code is Code.NOT_IN_BOOKKEEPER
    assert scene.listed == scene.ids[1:]


def test_a_topic_of_which_bookkeeper_has_nothing_left(scene: Scene) -> None:
    offload = OffloadContext(UUID(int=9), True, True, 1, "aws-s3", {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded=dict.fromkeys(scene.ids[:-1], offload))
    for ledger_id in scene.ids:
        scene.cluster.remove(scene.cluster.path(ledger_id))
    scene.cluster.wait(1)
    refused(scene, Code.LEDGERS_MISSING)
    assert (scene.sent, scene.listed) == ([], scene.ids)


def test_a_ledger_whose_z_node_cannot_be_read(scene: Scene) -> None:
    scene.cluster.zookeeper.unreadable.add(scene.cluster.path(scene.ids[0]))
    assert scene.trim()[scene.ids[0]].why.code is Code.NOT_IN_BOOKKEEPER
    assert scene.listed == scene.ids


def test_the_last_ledger_and_more(scene: Scene) -> None:
    scene.cluster.remove(f"{scene.path}/s")
    found = scene.trim(upto=4)
    assert found[scene.ids[4]].why.code is Stays.LAST_LEDGER
    assert scene.listed == scene.ids[4:]


SHADOW = Topic.parse("persistent://acme/orders/shadow")
SHADOW_PARENT = "/admin/partitioned-topics/acme/orders/persistent/shadow"


def shadow(scene: Scene, source: str, partitioned: bool = False) -> None:
    if partitioned:
        scene.cluster.put(SHADOW_PARENT, json.dumps({"partitions": 2, "properties": {SHADOW_SOURCE: source}}).encode())
    else:
        scene.cluster.topic(SHADOW, scene.ids, shadow_of=source)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("source", [str(TOPIC), str(TOPIC).partition("://")[2], str(TOPIC.partitioned_parent)])
def test_the_source_of_a_shadow_topic_made_after_the_scan(scene: Scene, source: str, partitioned: bool) -> None:
    shadow(scene, source, partitioned)
    found = {(one.outcome, one.why.code) for one in scene.trim().values()}
    assert found == {(Outcome.REFUSED, Protection.SHADOW_SOURCE)}
    (whole,) = scene.delete_topic(force=True).values()
    assert (whole.ledger_id, whole.outcome, whole.why.code) == (-1, Outcome.REFUSED, Protection.SHADOW_SOURCE)
    assert scene.listed == scene.ids
    assert scene.sent == []
    assert scene.cluster.journal.rows == []


def test_a_shadow_topic_made_between_the_messages_and_the_brokers_delete(scene: Scene) -> None:
    scene.cluster.load(TOPIC)
    asked: list[Topic] = []
    scene.cluster.admin.on_delete = asked.append
    queue = Sending(scene.queue, lambda: shadow(scene, str(TOPIC)))
    found = scene.delete_topic(force=True, ports=replace(scene.ports(), queue=queue))
    assert found[-1].outcome == Outcome.FAILED
    assert found[-1].why.code is Protection.SHADOW_SOURCE
    assert asked == []
    assert scene.rows == {Outcome.MARKED: sorted(scene.ids), Outcome.LEFT: sorted(scene.ids)}


def test_a_shadow_topic_made_while_another_topic_is_trimmed(scene: Scene) -> None:
    """A look serves for a minute; the second topic comes later and gets one of its own."""
    ids = [scene.cluster.ledger(data_tags(OTHER)) for _ in range(2)]
    scene.cluster.topic(OTHER, ids)
    scene.cluster.wait(1)

    def later() -> None:
        scene.cluster.topic(SHADOW, ids, shadow_of=str(OTHER))
        scene.cluster.clock.sleep(SHADOWS_SEEN_FOR / 1000 + 1)

    scene.on_write(later, "after")
    orders = [TrimOrder(TOPIC, up_to=scene.ids[2]), TrimOrder(OTHER, up_to=ids[0])]
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, orders))
    assert found[ids[0]].why.code is Protection.SHADOW_SOURCE
    assert outcomes(found) == {**dict.fromkeys(scene.ids[:3], Outcome.REMOVED), ids[0]: Outcome.REFUSED}


@pytest.mark.parametrize("data", [b"\x47\x78junk", b"\xff" + SHADOW_SOURCE.encode(), None])
def test_a_topic_that_may_be_a_shadow_topic_and_cannot_be_read(scene: Scene, data: bytes | None) -> None:
    path = scene.cluster.topic_path(SHADOW)
    scene.cluster.put(path, data or b"")
    if data is None:
        scene.cluster.zookeeper.unreadable.add(path)
    assert path in refused(scene, Code.SHADOWS_UNREAD)
    (whole,) = scene.delete_topic(force=True).values()
    assert (whole.outcome, whole.why.code) == (Outcome.REFUSED, Code.SHADOWS_UNREAD)
    assert path in whole.reason


@pytest.mark.parametrize("path", [PARENT, SHADOW_PARENT])
@pytest.mark.parametrize("readable", [False, True])
def test_a_partitioned_topic_that_may_be_a_shadow_topic(scene: Scene, path: str, readable: bool) -> None:
    scene.cluster.put(path, f"broken {SHADOW_SOURCE}".encode())
    if not readable:
        scene.cluster.zookeeper.unreadable.add(path)
    found = scene.trim().values()
    assert {one.outcome for one in found} == {Outcome.REFUSED}
    assert {one.why.code for one in found} <= {Protection.SHADOW_TOPIC, Code.TOPIC_UNREAD, Code.SHADOWS_UNREAD}
    assert all(path in one.reason or one.why.code is Protection.SHADOW_TOPIC for one in found), found
    assert scene.listed == scene.ids
    assert scene.sent == []
