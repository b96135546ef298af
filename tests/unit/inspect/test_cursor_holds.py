"""What holds a cursor beside messages that nobody has read, as explaining its topic names it; over fakes."""

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats import cursor, managed_ledger
from pulsar_lifecycle.formats.cursor import ManagedCursorInfo, MessageRange
from pulsar_lifecycle.formats.offload_object import data_key
from pulsar_lifecycle.inspect.cursor_holds import CursorHold
from pulsar_lifecycle.inspect.explain_topic import TopicExplanation, explain_topic
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Position, Topic, encode_name
from pulsar_lifecycle.setting_types import SecretRef
from pulsar_lifecycle.settings import ObjectStoreSettings
from tests.kit.records import topic_times
from tests.kit.scenes.delayed_scene import COUNT, DelayedScene
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene
from tests.kit.simulated.cluster import bucket_tags
from tests.kit.simulated.offloaded import BUCKET, Offloading, attempt


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def explained(scene: RetentionScene, name: str) -> TopicExplanation:
    topic = Topic.parse(f"persistent://{NAMESPACE}/{name}")
    return explain_topic(scene.cluster, topic, Brokers({}, scene.servers.admin.stats_interval_ms()))


def test_a_hole_in_acknowledgements_is_named(scene: RetentionScene) -> None:
    ids = scene.topic("a", 400, 390, 380)
    topic = Topic.parse(f"persistent://{NAMESPACE}/a")
    ranges = (MessageRange(Position(ids[1], -1), Position(ids[1], 0)),)
    info = ManagedCursorInfo(-1, Position(ids[0], -1), individual_deleted=ranges)
    scene.servers.put(f"{scene.servers.topic_path(topic)}/hole", cursor.encode(info))
    scene.position("a", Position(ids[0], 0))
    scene.scan()
    found = {one.name: (one.holds, one.ranges) for one in explained(scene, "a").cursors}
    assert found == {"hole": ((CursorHold.HOLE,), 1), "s": ((), 0)}


def test_the_cursor_of_ended_deduplication_goes_by_a_load(scene: RetentionScene) -> None:
    ids = scene.topic("a", 330, 240)
    scene.servers.cursor(Topic.parse(f"persistent://{NAMESPACE}/a"), "pulsar.dedup", at=ids[0])
    scene.scan()
    for said, begin in (("false", "the topic's next load"), ("true", "its broker's next deduplication snapshot")):
        admin = scene.servers.admin
        admin.configuration = {one: {"brokerDeduplicationEnabled": said} for one in admin.broker_ids}
        first, _ = explained(scene, "a").ledgers
        assert first.freed_by.startswith(begin)


def test_a_delayed_index_is_named(scene: RetentionScene) -> None:
    ids = scene.topic("a", 400, 390)
    topic = Topic.parse(f"persistent://{NAMESPACE}/a")
    bucket = scene.servers.ledger(bucket_tags(topic, "s", 1, 2))
    scene.servers.cursor(topic, "s", buckets={(1, 2): bucket}, at=ids[0])
    scene.scan()
    (one,) = explained(scene, "a").cursors
    assert one.holds == (CursorHold.DELAYED,)


def test_transactions_that_may_hold_a_cursor_are_named(scene: RetentionScene) -> None:
    """Consumers get nothing of what a transaction has acknowledged that has not ended."""
    ids = scene.topic("a", 400, 390, 380, cursor=1)
    path = scene.servers.topic_path(Topic.parse(f"persistent://{NAMESPACE}/a"))
    for name, at in (("used", Position(ids[0], -1)), ("at end", Position(ids[-1], 9))):
        scene.servers.put(f"{path}/{encode_name(name)}", cursor.encode(ManagedCursorInfo(-1, at)))
        scene.topic(f"a-{name}__transaction_pending_ack", 400)
    scene.scan()
    found = explained(scene, "a")
    assert {one.name: one.holds for one in found.cursors} == {"used": (CursorHold.TRANSACTIONS,), "s": (), "at end": ()}
    assert found.ledgers[0].freed_by.startswith("the end of its transactions")


def test_a_first_message_of_a_transaction_is_named(scene: RetentionScene) -> None:
    """While that is open, no consumer gets it, nor what is behind it: consumers alone would move nothing."""
    ids = scene.topic("a", 400, 390, 380, cursor=0)
    payloads = scene.servers.reader.payloads
    for first, named in (
        (topic_times.in_transaction(1, 7), True),
        (topic_times.commit(1, 7), False),
        (topic_times.sent(1), False),
    ):
        payloads[ids[1]] = [first]
        scene.scan()
        found = explained(scene, "a")
        assert (CursorHold.SENT_IN_TRANSACTION in found.cursors[0].holds) is named
        assert ("the transaction is open" in found.ledgers[1].freed_by) is named


def test_a_delayed_message_that_pins_a_cursor_says_until_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = DelayedScene(tmp_path, monkeypatch)
    first, second, third = scene.backlog("a")
    scene.scan()

    def pinned(at: Position) -> int | None:
        path = f"{scene.servers.topic_path(scene.named('a'))}/s"
        scene.servers.put(path, cursor.encode(ManagedCursorInfo(-1, at)))
        (one,) = explained(scene, "a").cursors
        return one.pinned_until

    assert pinned(Position(first, 4)) == scene.due(first, 5)
    assert pinned(Position(first, COUNT - 1)) == scene.due(second, 0)
    assert pinned(Position(third, COUNT - 1)) is None  # the last message is not delayed
    scene.servers.reader.failures[first] = Unavailable("no bookie answers")
    assert pinned(Position(first, 4)) is None
    scene.servers.reader.failures.clear()
    scene.servers.wait(24 * 30)
    assert pinned(Position(first, 4)) is None  # it is due


def test_a_delayed_message_that_only_a_bucket_has_pins_a_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = DelayedScene(tmp_path, monkeypatch)
    first, second, _ = scene.backlog("a")
    offloading, topic = Offloading(scene.servers), scene.named("a")
    path = scene.servers.topic_path(topic)
    info = managed_ledger.decode(scene.servers.zookeeper.data(path))
    uuids = {ledger: UUID(int=ledger) for ledger in (first, second)}
    ledgers = [
        replace(one, offload=attempt(uuids[one.ledger_id], bookkeeper_deleted=True)) if one.ledger_id in uuids else one
        for one in info.ledgers
    ]
    scene.servers.put(path, managed_ledger.encode(replace(info, ledgers=tuple(ledgers))))
    for ledger, uuid in uuids.items():
        offloading.put(uuid, ledger, topic, entries=scene.servers.reader.payloads[ledger])
        scene.lose(ledger)
    scene.scan()

    def pinned(at: Position) -> int | None:
        scene.servers.put(f"{path}/s", cursor.encode(ManagedCursorInfo(-1, at)))
        (one,) = explained(scene, "a").cursors
        return one.pinned_until

    assert pinned(Position(first, 4)) is None  # no object store is set
    scene.set(object_store=ObjectStoreSettings(buckets=(BUCKET,)))
    scene.objects = offloading.store
    assert pinned(Position(first, 4)) == scene.due(first, 5)
    assert pinned(Position(first, COUNT - 1)) == scene.due(second, 0)
    offloading.store.delete_many(BUCKET, [data_key(uuids[first], first)])
    assert pinned(Position(first, 4)) is None
    unset = SecretRef(env="PULSAR_LIFECYCLE_UNSET")
    scene.set(object_store=ObjectStoreSettings(buckets=(BUCKET,), access_key=unset, secret_key=unset))
    monkeypatch.setattr(scene.cluster.connect, "objects", Connections.objects)
    assert pinned(Position(second, 4)) is None  # the rest of the explanation needs no object store
