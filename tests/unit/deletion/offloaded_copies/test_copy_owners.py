"""What the topic of an offloaded copy says, and our own open offload attempts."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.ports import TopicInternals
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome, Waiting
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.tiered.offloaded_scene import TOPIC
from tests.kit.scenes.tiered.offloaded_scene import OffloadedScene as Scene
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.offloaded import BUCKET, attempt


@pytest.fixture
def scene() -> Scene:
    return Scene()


# ----------------------------------------------------------------------------------------------------- the owner's word


def test_an_owner_that_cannot_be_read_is_asked_again(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.cluster.zookeeper.unreadable.add(scene.cluster.topic_path(TOPIC))
    scene.one(Outcome.RETRYING, Code.UNREAD)


def test_an_owner_that_cannot_be_decoded_is_asked_again(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.cluster.put(scene.cluster.topic_path(TOPIC), b"\xff\xff\xff")
    scene.one(Outcome.RETRYING, Code.UNREAD)


def test_a_topic_just_written_may_be_loading(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.list(TOPIC)
    scene.one(Outcome.RETRYING, Code.NOT_KNOWN_YET)


def test_what_a_broker_holds_in_memory_is_asked_again(scene: Scene) -> None:
    last = scene.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN)
    scene.cluster.topic(TOPIC, [scene.live, last], offloaded={scene.live: attempt(scene.live_uuid)})
    scene.cluster.load(TOPIC)
    scene.cluster.admin.internals[TOPIC] = TopicInternals("LedgerOpened", (scene.gone,), {}, {}, None, ())
    scene.age()
    scene.send(scene.intent)
    scene.one(Outcome.RETRYING, Code.STILL_IN_USE)


def test_a_topic_that_a_broker_lists_without_a_z_node_is_asked_again(scene: Scene) -> None:
    scene.cluster.remove(scene.cluster.topic_path(TOPIC))
    scene.cluster.load(TOPIC)
    scene.age()
    scene.send(scene.intent)
    scene.one(Outcome.RETRYING, Code.NOT_KNOWN_YET)


# ------------------------------------------------------------------------------------- our own open offload attempts


def begin(scene: Scene, uuid: UUID, ledger_id: int) -> Attempt:
    location = (("bucket", BUCKET),)
    open_attempt = Attempt(
        ledger_id, str(TOPIC), uuid, "aws-s3", location, 5 << 20, "run", scene.cluster.clock.now_ms()
    )
    attempts.begin(scene.cluster.open_store(), open_attempt)
    return open_attempt


@pytest.mark.parametrize("marked", [False, True])
def test_an_open_attempt_of_ours_is_kept_though_no_topic_names_it(scene: Scene, marked: bool) -> None:
    begin(scene, scene.gone_uuid, scene.gone)
    if marked:
        scene.mark(scene.gone)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.STILL_IN_USE)


def test_an_attempt_begun_after_the_scan_is_seen(scene: Scene) -> None:
    scene.send(scene.intent)
    begin(scene, scene.gone_uuid, scene.gone)
    scene.one(Outcome.KEPT, Code.STILL_IN_USE)


def test_an_attempt_of_another_ledger_or_uuid_keeps_nothing(scene: Scene) -> None:
    begin(scene, uuid4(), scene.gone)
    begin(scene, scene.gone_uuid, scene.last)
    scene.send(scene.intent)
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
    assert scene.keys == scene.live_keys


@pytest.mark.parametrize("data", [b"", b"{}", b"not ours", None])
def test_an_attempt_that_cannot_be_read_may_be_any(scene: Scene, data: bytes | None) -> None:
    path = begin(scene, uuid4(), scene.gone).path
    if data is None:
        scene.cluster.zookeeper.unreadable.add(path)
    else:
        scene.cluster.put(path, data)
    scene.send(scene.intent)
    scene.one(Outcome.WAITING, Waiting.UNREAD_ATTEMPT)


def test_an_attempt_that_cannot_be_read_hinders_no_other_ledger(scene: Scene) -> None:
    scene.cluster.put(begin(scene, uuid4(), scene.live).path, b"{}")
    scene.send(scene.message(scene.live_uuid, scene.live, TOPIC), scene.intent)
    assert [d.outcome for d in scene.delete()] == [Outcome.KEPT, Outcome.DELETED]
    assert scene.keys == scene.live_keys


def test_an_attempt_that_is_committed_and_ended_while_it_is_asked_for_is_seen_one_way_or_the_other(
    scene: Scene,
) -> None:
    open_attempt, path = begin(scene, scene.gone_uuid, scene.gone), scene.cluster.topic_path(TOPIC)
    scene.send(scene.intent)

    def wrap(ports: Ports) -> Ports:
        def commit(operation: Operation) -> None:
            if operation.name == "read" and {open_attempt.path, path} & set(operation.paths):
                ports.store.after = lambda operation: None  # type: ignore[attr-defined]
                scene.list(TOPIC, **{f"_{scene.gone}": attempt(scene.gone_uuid)})
                attempts.end(scene.cluster.open_store(), open_attempt)

        ports.store.after = commit  # type: ignore[attr-defined]
        return ports

    scene.one(Outcome.KEPT, Code.STILL_IN_USE, wrap=wrap)
    assert attempts.open_attempts(scene.cluster.open_store()) == []
