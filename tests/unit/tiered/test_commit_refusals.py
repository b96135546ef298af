"""Which ledgers an offload run begins nothing of, and by which code."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import OffloadContext, OffloadSegment
from pulsar_lifecycle.formats.offload_object import (
    data_key,
    index_key,
)
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.refused import refused_by
from tests.kit.scenes.tiered.offload_scene import BUCKET, context
from tests.kit.scenes.tiered.offload_scene import OffloadScene as Scene
from tests.kit.scenes.topic_scene import OTHER, TOPIC, outcomes
from tests.kit.simulated.cluster import data_tags


@pytest.fixture
def scene() -> Scene:
    return Scene()


def refused(scene: Scene, ledger_id: int, **changes: Any) -> Why:
    """Why a ledger is refused before anything is uploaded; no attempt is open then."""
    before = scene.cluster.zookeeper.stat(scene.path)
    begun, found = scene.session().begin([ledger_id], **changes)
    assert begun == []
    assert [(one.ledger_id, one.outcome) for one in found] == [(ledger_id, Outcome.REFUSED)]
    assert scene.open_attempts == []
    assert scene.cluster.zookeeper.stat(scene.path) == before
    return found[0].why


def at_rest(scene: Scene) -> None:
    scene.cluster.wait(1)


def test_the_last_ledger(scene: Scene) -> None:
    assert refused(scene, scene.ids[3]).code is Code.LAST_LEDGER


def test_the_last_ledger_by_id_not_by_place(scene: Scene) -> None:
    scene.cluster.topic(TOPIC, [scene.ids[3], scene.ids[0], scene.ids[1]])
    at_rest(scene)
    assert refused(scene, scene.ids[3]).code is Code.LAST_LEDGER


def test_a_ledger_that_is_not_listed(scene: Scene) -> None:
    scene.cluster.topic(TOPIC, scene.ids[1:])
    at_rest(scene)
    assert refused(scene, scene.ids[0]).code is Code.DELISTED


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (context(UUID(int=7), complete=True), Code.OFFLOADED_ALREADY),
        (context(UUID(int=7), complete=True, bookkeeper_deleted=True), Code.OFFLOADED_ALREADY),
        (context(bookkeeper_deleted=True), Code.NEEDS_REPAIR),
        (context(segments=(OffloadSegment(uuid4(), True, 1, 2, 3, "aws-s3", {}),)), Code.STREAMING),
    ],
)
def test_what_its_context_says(scene: Scene, found: OffloadContext, code: Code) -> None:
    for key in (data_key(UUID(int=7), scene.ids[0]), index_key(UUID(int=7), scene.ids[0])):
        scene.buckets.put(BUCKET, key, b"")
    scene.write(scene.ids[0], found)
    at_rest(scene)
    assert refused(scene, scene.ids[0]).code is code


@pytest.mark.parametrize("loaded", [False, True])
def test_an_attempt_of_its_brokers(loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    scene.write(scene.ids[0], context())
    at_rest(scene)
    before = scene.version
    begun, found = scene.session().begin(scene.wanted)
    assert (begun, set(outcomes(found).values())) == ([], {Outcome.FOREIGN_ATTEMPT})
    assert {one.why.code for one in found} == {Code.BROKERS_ATTEMPT}
    assert (scene.version, scene.open_attempts, scene.cluster.admin.touched) == (before, [], [])
    assert [outcome for _, outcome in scene.rows] == [Outcome.FOREIGN_ATTEMPT] * 3


def test_a_loaded_topic_that_the_policy_does_not_name() -> None:
    scene = Scene(loaded=True)
    scene.loaded_topics = False
    begun, (found,) = scene.session().begin(scene.ids[:1])
    assert (begun, found.outcome, found.why.code) == ([], Outcome.LEFT_TO_BROKER, Code.TOPIC_LOADED)
    assert scene.open_attempts == []


def test_brokers_that_did_not_answer(scene: Scene) -> None:
    scene.error = "timed out"
    begun, (found,) = scene.session().begin(scene.ids[:1])
    assert (begun, found.outcome) == ([], Outcome.LEFT_TO_BROKER)
    assert found.why.code is Code.TOPIC_LOADED


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_a_ledger_that_was_never_closed(scene: Scene, state: LedgerState) -> None:
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.ids[0], state=state)
    assert refused(scene, scene.ids[0]).code is Code.NOT_IN_BOOKKEEPER


def test_a_ledger_of_another_topic(scene: Scene) -> None:
    scene.cluster.ledger(data_tags(OTHER), ledger_id=scene.ids[0])
    assert refused(scene, scene.ids[0]).code is Code.NOT_IN_BOOKKEEPER


def test_an_empty_ledger(scene: Scene) -> None:
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.ids[0], entries=())
    assert refused(scene, scene.ids[0]).code is Code.EMPTY


@pytest.mark.parametrize("entries", [[b"x" * 9], [b"x" * 5, b"y" * 5]])
def test_a_ledger_of_which_its_topic_says_something_else(scene: Scene, entries: list[bytes]) -> None:
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.ids[0], entries=entries)
    assert refused(scene, scene.ids[0]).code is Code.UNLIKE_BOOKKEEPER


def test_a_ledger_that_bookkeeper_cannot_show(scene: Scene) -> None:
    scene.cluster.zookeeper.unreadable.add(scene.cluster.path(scene.ids[0]))
    assert refused(scene, scene.ids[0]).code is Code.NOT_IN_BOOKKEEPER


@pytest.mark.parametrize("source", ["persistent://acme/orders/source", ""])
def test_a_shadow_topic(scene: Scene, source: str) -> None:
    if source:
        scene.cluster.topic(TOPIC, scene.ids, shadow_of=source)
    else:
        scene.cluster.topic(OTHER, scene.ids, shadow_of=str(TOPIC))
    at_rest(scene)
    code = Protection.SHADOW_TOPIC if source else Protection.SHADOW_SOURCE
    assert refused(scene, scene.ids[0]).code is code


@pytest.mark.parametrize("location", [(), (("bucket", ""),), (("region", "r"),)])
def test_a_location_without_a_bucket(scene: Scene, location: tuple[tuple[str, str], ...]) -> None:
    assert refused(scene, scene.ids[0], metadata=location).code is Code.NO_BUCKET


def test_a_ledger_with_an_open_attempt(scene: Scene) -> None:
    session = scene.session()
    ((attempt,), _) = session.begin(scene.ids[:1])
    begun, (one,) = session.begin(scene.ids[:1])
    assert begun == []
    assert (one.outcome, one.why.code) == (Outcome.REFUSED, Code.ATTEMPT_OPEN)
    assert attempts.whole(attempts.open_attempts(scene.store)) == [attempt]


@pytest.mark.parametrize("data", [None, b"\xff\xff"])
def test_a_topic_that_cannot_be_read(scene: Scene, data: bytes | None) -> None:
    if data is None:
        scene.cluster.zookeeper.unreadable.add(scene.path)
    else:
        scene.cluster.put(scene.path, data)
        scene.law = lambda: None  # type: ignore[method-assign]
    with refused_by(Code.TOPIC_UNREAD, "a%2Bb"):
        scene.session().begin(scene.ids[:1])
    assert scene.open_attempts == []


def test_some_ledgers_of_a_topic_are_begun_and_others_refused(scene: Scene) -> None:
    begun, (one,) = scene.session().begin([scene.ids[0], scene.ids[3]])
    assert [attempt.ledger_id for attempt in begun] == scene.open_attempts == [scene.ids[0]]
    assert (one.ledger_id, one.outcome) == (scene.ids[3], Outcome.REFUSED)
    assert scene.rows == [(scene.ids[0], Outcome.PREPARED), (scene.ids[3], Outcome.REFUSED)]
