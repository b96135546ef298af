"""A copy goes only once every entry of another one is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import UUID

import pytest

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.deletion import offloaded_copies
from pulsar_lifecycle.errors import (
    CorruptFormat,
    Paused,
    Unavailable,
)
from pulsar_lifecycle.formats.offload_object import data_key
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome, Waiting
from tests.kit.scenes.tiered.offloaded_scene import TOPIC
from tests.kit.scenes.tiered.offloaded_scene import OffloadedScene as Scene
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.offloaded import BUCKET, attempt


@pytest.fixture
def scene() -> Scene:
    return Scene()


MANY = [b"%010d" % n for n in range(3_000)]
"""Far more entries than a sample asks for."""


def changed(at: int) -> list[bytes]:
    return [*MANY[:at], b"another 01", *MANY[at + 1 :]]


def name_it(scene: Scene) -> None:
    scene.cluster.topic(TOPIC, [scene.live, scene.last, scene.gone], offloaded={scene.gone: attempt(scene.gone_uuid)})


def copies(
    scene: Scene, stale: Sequence[bytes], other: Sequence[bytes], *, offloaded: bool, index: bool = True
) -> None:
    """Objects that nothing names, and another copy of their ledger: the one that its topic reads, or BookKeeper's."""
    for key in scene.gone_keys:
        scene.buckets.objects[BUCKET].pop(key)
    scene.put(scene.gone_uuid, scene.gone, TOPIC, entries=stale, index=index)
    if offloaded:
        scene.put(UUID(int=7), scene.gone, TOPIC, entries=other)
    else:
        scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.gone, entries=other)
    infos = {scene.live: attempt(scene.live_uuid)}
    infos |= {scene.gone: attempt(UUID(int=7), bookkeeper_deleted=True)} if offloaded else {}
    scene.cluster.topic(TOPIC, [scene.live, scene.last, scene.gone], offloaded=infos, entries=len(MANY))
    scene.age()
    scene.send(scene.intent)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("offloaded", [False, True])
def test_a_copy_goes_once_every_entry_of_another_is_the_same(scene: Scene, offloaded: bool, index: bool) -> None:
    copies(scene, MANY, MANY, offloaded=offloaded, index=index)
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
    assert not any(str(scene.gone_uuid) in key for key in scene.keys)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("offloaded", [False, True])
@pytest.mark.parametrize("at", [0, 1234, len(MANY) - 1])
def test_one_entry_that_differs_keeps_a_copy(scene: Scene, at: int, offloaded: bool, index: bool) -> None:
    copies(scene, MANY, changed(at), offloaded=offloaded, index=index)
    scene.one(Outcome.KEPT, Code.LAST_COPY, f"was to be the same: entry {at} has CRC32C")


@pytest.mark.parametrize("offloaded", [False, True])
@pytest.mark.parametrize(("stale", "other"), [(MANY[:-1], MANY), (MANY, MANY[:-1])])
def test_a_copy_that_has_another_end_stays(
    scene: Scene, stale: list[bytes], other: list[bytes], offloaded: bool
) -> None:
    copies(scene, stale, other, offloaded=offloaded)
    shorter = offloaded and len(other) < len(MANY)
    scene.one(
        Outcome.KEPT, Code.LAST_COPY, "its ledger takes 66128 at least" if shorter else f"has entry {len(MANY) - 1}, "
    )


def test_an_entry_that_bookkeeper_cannot_give_keeps_a_copy(scene: Scene) -> None:
    copies(scene, MANY, MANY, offloaded=False)
    scene.cluster.reader.failures[scene.gone] = CorruptFormat("entry 3:1234", 24, "its digest")
    scene.one(Outcome.KEPT, Code.LAST_COPY, "one of them cannot be read: entry 3:1234")


def test_a_bookie_that_does_not_answer_while_entries_are_read_is_asked_again(scene: Scene) -> None:
    copies(scene, MANY, MANY, offloaded=False)
    scene.cluster.reader.failures[scene.gone] = Unavailable("bookie-1: timed out")
    scene.one(Outcome.RETRYING, Code.OBJECTS_UNREAD)


@pytest.mark.parametrize("offloaded", [False, True])
def test_damage_of_its_own_keeps_a_copy(scene: Scene, offloaded: bool) -> None:
    copies(scene, MANY, MANY, offloaded=offloaded)
    key = data_key(scene.gone_uuid, scene.gone)
    data = bytearray(scene.buckets.data[BUCKET, key])
    data[200] ^= 1
    scene.buckets.data[BUCKET, key] = bytes(data)
    scene.one(Outcome.KEPT, Code.LAST_COPY, "was to be the same" if data[200] in range(48, 58) else "one of them")


def test_a_batch_compares_as_much_as_it_may_and_the_others_have_their_turn_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run that is always stopped before its batch is read would begin anew each time."""
    copies(scene, MANY, MANY, offloaded=False)
    second = UUID(int=9)
    scene.put(second, scene.gone, TOPIC, entries=MANY)
    scene.age()
    scene.send(scene.message(second, scene.gone, TOPIC))
    monkeypatch.setattr(offloaded_copies, "COMPARED_AT_ONCE", 1)
    assert sorted((d.outcome, d.waiting) for d in scene.delete()) == [
        (Outcome.DELETED, None),
        (Outcome.WAITING, Waiting.TURN),
    ]
    scene.cluster.wait(1)
    scene.rescan()
    assert [d.outcome for d in scene.delete(run_id="next")] == [Outcome.DELETED]


def test_a_pause_ends_the_reading_and_the_budget_counts_it(scene: Scene) -> None:
    copies(scene, MANY, MANY, offloaded=False)
    told: list[int] = []

    def pace(size: int) -> None:
        told.append(size)
        scene.cluster.clock.sleep(3)
        if len(told) == 5:
            scene.cluster.put(control.PAUSE, b"")

    def paced(ports: Ports) -> Ports:
        ports.pace = pace
        return ports

    with pytest.raises(Paused):
        scene.delete(paced)
    (row,) = scene.cluster.journal.rows
    assert (row.outcome, row.code) == (Outcome.WAITING, Waiting.STOPPED)
    assert len(told) == 5
    scene.cluster.remove(control.PAUSE)
    scene.cluster.journal.rows.clear()
    told.extend([0] * 5)
    assert [d.outcome for d in scene.delete(paced)] == [Outcome.DELETED]
    assert sum(told) > 2 * sum(map(len, MANY))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda s: s.cluster.remove(s.cluster.path(s.gone)), Code.LAST_COPY),
        (name_it, Code.STILL_IN_USE),
        (
            lambda s: attempts.begin(
                s.cluster.open_store(),
                Attempt(s.gone, str(TOPIC), s.gone_uuid, "aws-s3", (("bucket", BUCKET),), 1, "run", 0),
            ),
            Code.STILL_IN_USE,
        ),
        (lambda s: s.put(s.gone_uuid, s.gone, TOPIC, entries=[b"new"]), Code.NOT_OURS),
    ],
)
def test_what_changes_while_copies_are_read_is_seen(
    scene: Scene, change: Callable[[Scene], object], code: Code
) -> None:
    copies(scene, MANY, MANY, offloaded=False)
    left = [change]

    def changing(ports: Ports) -> Ports:
        ports.pace = lambda size: left.pop()(scene) if left else None
        return ports

    (decision,) = scene.delete(changing)
    assert (decision.outcome, decision.code) == (Outcome.KEPT, code), decision.reason
    assert data_key(scene.gone_uuid, scene.gone) in scene.keys


def test_copies_that_no_topic_lists_are_not_read(scene: Scene) -> None:
    scene.send(scene.intent)
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
    assert not [r for r in scene.store.requests if r[0] == "get"]
