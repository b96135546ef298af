"""Offloads of topics whose subscriptions acknowledged in transactions."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.model import PENDING_ACKS, Position, Topic
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics.unloads import finish_unloads
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.topic_load import PendingAcks
from tests.kit.fakes.broker_admin import FakeSubscription
from tests.kit.scenes.tiered.commit_cases import begun
from tests.kit.scenes.tiered.offload_scene import OffloadScene as Scene
from tests.kit.scenes.topic_scene import TOPIC, outcomes


@pytest.fixture
def scene() -> Scene:
    return Scene()


def with_transactions(scene: Scene) -> None:
    """A subscription of the topic has acknowledged in some, which its broker has read."""
    cursor = cursor_format.ManagedCursorInfo(-1, Position(scene.ids[0], 0))
    scene.cluster.put(f"{scene.cluster.topic_path(TOPIC)}/s", cursor_format.encode(cursor))
    scene.cluster.admin.topics[TOPIC] = {"s": FakeSubscription()}
    scene.cluster.topic(Topic.parse(f"{TOPIC}-s{PENDING_ACKS}"), [])
    scene.cluster.admin.acks[TOPIC, "s"] = PendingAcks.READY


@pytest.mark.parametrize("loaded_since", [False, True])
def test_what_is_committed_after_a_read_leaves_no_unload_of_a_topic_with_transactions(
    scene: Scene, loaded_since: bool
) -> None:
    """The run unloaded it after the read: no broker has it then that had read the acknowledgements' logs.

    If a broker loaded it since, it is unloaded once that broker lists it.
    """
    admin = scene.cluster.admin
    with_transactions(scene)
    session, proven = begun(scene)
    said = session.commit(proven)
    assert outcomes(said) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
    assert "pending" not in str(said)
    (pending,) = scene.pending_unloads
    assert not pending.loaded
    before = list(admin.touched)
    if loaded_since:
        scene.cluster.load(TOPIC)
    scene.cluster.wait(1)
    finish_unloads(session.ports.store, admin, session.ports.clock, session.guard, wait=False)
    assert scene.pending_unloads == []
    assert admin.touched == [*before, *([TOPIC] if loaded_since else [])]


def test_a_store_that_does_not_note_that_leaves_the_unload_noted_and_every_row_journalled(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_transactions(scene)
    real, noted = control.note_unload, list[bool]()

    def fails_to_watch(store: MetadataStore, pending: control.PendingUnload) -> bool:
        noted.append(pending.loaded)
        if any(noted) and not pending.loaded:
            raise Unavailable("ZooKeeper: connection lost")
        return real(store, pending)

    monkeypatch.setattr(control, "note_unload", fails_to_watch)
    session, proven = begun(scene)
    assert outcomes(session.commit(proven)) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
    assert not noted[-1]
    assert [one.loaded for one in scene.pending_unloads] == [True]
