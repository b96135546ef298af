"""Which objects of an interrupted attempt stay because they may be all that is left, or another's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from pulsar_lifecycle.errors import (
    LeaseLost,
    Paused,
    Refused,
    Unavailable,
)
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.offload_object import (
    CLUSTER_NAME,
    FORMAT_VERSION,
    MANAGED_LEDGER_NAME,
    data_key,
    index_key,
)
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.offload_uuids import OffloadUuids
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.tiered.commit_cases import ROTTEN, begun, unreadable_bookkeeper
from tests.kit.scenes.tiered.offload_scene import BUCKET, SAYS, context
from tests.kit.scenes.tiered.offload_scene import OffloadScene as Scene
from tests.kit.scenes.topic_scene import TOPIC
from tests.kit.simulated.cluster import ENTRY_BYTES, data_tags
from tests.kit.simulated.offloaded import objects_of


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize(
    "act",
    [
        lambda scene: scene.cluster.remove(scene.cluster.path(scene.ids[0])),
        unreadable_bookkeeper,
        lambda scene: scene.write(scene.ids[0], context(bookkeeper_deleted=True)),
    ],
)
def test_objects_that_may_be_all_that_is_left_are_not_aborted(scene: Scene, act: Callable[[Scene], None]) -> None:
    begun(scene, scene.ids[:1])
    scene.law = lambda: None  # type: ignore[method-assign]
    act(scene)
    keys = scene.keys
    _, (one,) = scene.session_again().finish_attempts()
    assert (one.outcome, one.why.code) == (Outcome.FAILED, Code.LAST_COPY)
    assert (scene.keys, scene.open_attempts) == (keys, scene.ids[:1])


def test_a_pair_is_kept_while_bookkeeper_cannot_give_its_ledger_whole(scene: Scene) -> None:
    session, (one,) = begun(scene, scene.ids[:1])
    scene.cluster.reader.failures[scene.ids[0]] = ROTTEN
    keys = scene.keys
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, scene.keys, scene.open_attempts) == (Outcome.FAILED, keys, scene.ids[:1])
    assert found.why.code is Code.LAST_COPY
    assert session.copy(one.attempt) == one
    scene.cluster.reader.failures.clear()
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, scene.keys, scene.open_attempts) == (Outcome.ATTEMPT_ABORTED, set(), [])


def test_a_pair_is_kept_while_bookkeeper_has_less_than_its_topic_lists(scene: Scene) -> None:
    begun(scene, scene.ids[:1])
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.ids[0], entries=[b"x" * 9])
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, found.why.code) == (Outcome.FAILED, Code.LAST_COPY)
    assert len(scene.keys) == 2


@pytest.mark.parametrize("key", [data_key, index_key])
def test_half_a_pair_is_no_copy(scene: Scene, key: Callable[[UUID, int], str]) -> None:
    _, (one,) = begun(scene, scene.ids[:1])
    del scene.buckets.objects[BUCKET][key(one.attempt.uuid, scene.ids[0])]
    scene.cluster.reader.failures[scene.ids[0]] = ROTTEN
    _, (found,) = scene.session_again().finish_attempts()
    if key is data_key:
        assert (found.outcome, scene.keys) == (Outcome.ATTEMPT_ABORTED, set())
    else:  # no broker can read it, but every entry may be in it
        assert found.outcome == Outcome.FAILED
        assert found.why.code is Code.LAST_COPY


def test_a_pair_that_cannot_be_seen_is_not_aborted(scene: Scene) -> None:
    begun(scene, scene.ids[:1])
    scene.cluster.reader.failures[scene.ids[0]] = ROTTEN
    left = [3]  # one request for each object: the first look sees both, the second fails

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        left[0] -= name == "head"
        if name == "head" and left[0] <= 0:
            raise Unavailable("503")

    scene.objects.before = fail
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, len(scene.keys), scene.open_attempts) == (Outcome.FAILED, 2, scene.ids[:1])


@pytest.mark.parametrize("bookkeeper_deleted", [False, True])
@pytest.mark.parametrize("theirs_is", ["half", "empty", "zeros", "another", "whole"])
def test_a_pair_is_kept_while_the_one_that_its_topic_names_is_not_there(
    scene: Scene, theirs_is: str, bookkeeper_deleted: bool
) -> None:
    """Missing its index object, cut short, whole by its size alone, or with another entry."""
    there = theirs_is == "whole"
    _, (one,) = begun(scene, scene.ids[:1])
    for key, body in zip(
        (data_key(one.attempt.uuid, scene.ids[0]), index_key(one.attempt.uuid, scene.ids[0])),
        objects_of([b"x" * ENTRY_BYTES]),
        strict=True,
    ):
        scene.buckets.put(BUCKET, key, body, {**SAYS, FORMAT_VERSION: "1"})
    data, index = {
        "half": (b"", None),
        "empty": (b"", b""),
        "zeros": (bytes(10_000), bytes(10_000)),
        "another": objects_of([b"y" * ENTRY_BYTES]),
        "whole": objects_of([b"x" * ENTRY_BYTES]),
    }[theirs_is]
    scene.law = lambda: None  # type: ignore[method-assign]
    theirs = context(complete=True, bookkeeper_deleted=bookkeeper_deleted)
    assert theirs.uuid
    scene.write(scene.ids[0], theirs)
    version = {FORMAT_VERSION: "1"}
    scene.buckets.put(BUCKET, data_key(theirs.uuid, scene.ids[0]), data, version)
    if index is not None:
        scene.buckets.put(BUCKET, index_key(theirs.uuid, scene.ids[0]), index, version)
    keys = scene.keys
    scene.cluster.reader.failures[scene.ids[0]] = ROTTEN
    _, (found,) = scene.session_again().finish_attempts()
    assert found.outcome == (Outcome.ATTEMPT_ABORTED if there else Outcome.FAILED)
    assert scene.keys == (scene.pair(scene.items[scene.ids[0]]) if there else keys)
    if not there:
        assert found.why.code is Code.LAST_COPY


@pytest.mark.parametrize("error", [Paused, LeaseLost])
def test_a_run_that_may_not_go_on_reads_no_ledger_to_its_end(scene: Scene, error: type[Refused]) -> None:
    begun(scene, scene.ids[:1])
    payloads = [b"x"] * 25
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.ids[0], entries=payloads)
    info = scene.info
    ledgers = tuple(
        replace(item, entries=25, size=25) if item.ledger_id == scene.ids[0] else item for item in info.ledgers
    )
    scene.cluster.put(scene.path, managed_ledger.encode(replace(info, ledgers=ledgers)))
    late, read, asked = scene.session_again(), scene.cluster.reader.read, list[int]()

    def slow(ledger_id: int, metadata: Any, first: int, last: int) -> Any:
        asked.append(first)
        scene.cluster.wait(1)
        if error is Paused:
            control.pause(scene.cluster.open_store(), "test")
        else:
            scene.cluster.put(control.OFFLOAD_LEASE, b"{}")
        return read(ledger_id, metadata, first, last)

    scene.cluster.reader.read = slow  # type: ignore[method-assign]
    with pytest.raises(error):
        late.finish_attempts()
    assert (asked, len(scene.keys), scene.open_attempts) == ([0], 2, scene.ids[:1])


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_uuid_of_ours_that_is_named_in_another_way_is_not_aborted(scene: Scene, elsewhere: bool) -> None:
    _, (one,) = begun(scene, scene.ids[:1])
    ledger = scene.ids[1] if elsewhere else scene.ids[0]
    scene.write(ledger, context(one.attempt.uuid))
    keys = scene.keys
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, found.why.code) == (Outcome.FAILED, Code.STILL_IN_USE)
    assert (scene.keys, scene.open_attempts) == (keys, scene.ids[:1])


@pytest.mark.parametrize(
    "says", [{}, {**SAYS, CLUSTER_NAME: "other"}, {**SAYS, MANAGED_LEDGER_NAME: "a/b/persistent/c"}]
)
def test_objects_that_are_not_an_attempts_own_are_left_alone(scene: Scene, says: dict[str, str]) -> None:
    """As after somebody wrote the attempt's z-node by hand."""
    _, (one,) = begun(scene, scene.ids[:1])
    scene.buckets.put(BUCKET, index_key(one.attempt.uuid, one.attempt.ledger_id), b"i", says)
    keys = scene.keys
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, found.why.code) == (Outcome.FAILED, Code.NOT_OURS)
    assert one.attempt.path in found.reason
    assert (scene.keys, scene.open_attempts) == (keys, scene.ids[:1])


def test_objects_that_a_scan_found_named_are_left_alone(scene: Scene) -> None:
    _, (one,) = begun(scene, scene.ids[:1])
    scene.named = OffloadUuids.collect([pa.array([[str(one.attempt.uuid)]])])
    keys = scene.keys
    _, (found,) = scene.session_again().finish_attempts()
    assert (found.outcome, found.why.code) == (Outcome.FAILED, Code.NOT_OURS)
    assert (scene.keys, scene.open_attempts) == (keys, scene.ids[:1])
