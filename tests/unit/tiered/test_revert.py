"""Reverting a damaged offload: only what BookKeeper has whole, and beside no attempt of a broker."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.offload_object import (
    data_key,
    index_key,
)
from pulsar_lifecycle.tiered import revert
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.tiered.commit_cases import ROTTEN, reverted
from tests.kit.scenes.tiered.offload_scene import BUCKET, SAYS, context
from tests.kit.scenes.tiered.offload_scene import OffloadScene as Scene
from tests.kit.scenes.topic_scene import TOPIC, outcomes
from tests.kit.simulated.cluster import data_tags


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize("loaded", [False, True])
def test_a_damaged_offload_is_reverted_while_bookkeeper_has_it(loaded: bool) -> None:
    scene = Scene(loaded=loaded)
    scene.waived = True
    scene.proceed()
    scene.cluster.wait(1)
    before = scene.info
    assert outcomes(reverted(scene, dry_run=True)) == dict.fromkeys(scene.wanted, "goes")
    assert scene.info == before
    assert outcomes(reverted(scene)) == dict.fromkeys(scene.wanted, Outcome.REVERTED)
    assert scene.complete == []
    assert len(scene.keys) == 6
    assert scene.rows[-3:] == [(ledger_id, Outcome.REVERTED) for ledger_id in scene.wanted]
    assert {one.why.code for one in reverted(scene)} == {Code.NOT_OFFLOADED}
    scene.cluster.wait(1)
    assert outcomes(scene.proceed()) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)


def test_nothing_is_reverted_beside_an_attempt_of_its_broker(scene: Scene) -> None:
    """Found by the simulator: the write would end the attempt, and leave what it uploaded."""
    scene.waived = True
    scene.proceed()
    other = next(item.ledger_id for item in scene.info.ledgers if item.ledger_id not in scene.wanted)
    scene.write(other, context())
    scene.cluster.wait(1)
    before = scene.info
    for dry_run in (True, False):
        assert outcomes(reverted(scene, dry_run=dry_run)) == dict.fromkeys(scene.wanted, Outcome.FOREIGN_ATTEMPT)
    assert scene.info == before


def test_nothing_is_reverted_beside_an_attempt_that_begins_meanwhile(scene: Scene) -> None:
    scene.waived = True
    scene.proceed()
    other = next(item.ledger_id for item in scene.info.ledgers if item.ledger_id not in scene.wanted)
    scene.cluster.wait(1)

    def begins(step: str) -> None:
        if step == "after record":  # that it is about to revert them
            scene.tick = lambda step: None
            scene.write(other, context())

    scene.tick = begins
    assert outcomes(reverted(scene)) == dict.fromkeys(scene.wanted, Outcome.FOREIGN_ATTEMPT)
    assert len(scene.complete) == len(scene.wanted)
    assert [row.outcome for row in scene.cluster.journal.rows[-6:-3]] == [Outcome.REVERTING] * 3


def test_what_bookkeeper_may_not_have_whole_is_not_reverted(scene: Scene) -> None:
    scene.waived = True
    scene.proceed()
    scene.cluster.wait(1)
    first, second, third = scene.wanted
    offloads = {item.ledger_id: item.offload for item in scene.info.ledgers}
    for deleted in (first, second):
        scene.write(deleted, replace(offloads[deleted], bookkeeper_deleted=True))  # type: ignore[type-var]
    scene.cluster.remove(scene.cluster.path(second))
    before = scene.info
    for dry_run in (True, False):
        (found,) = [one for one in reverted(scene, dry_run=dry_run) if one.ledger_id == first]
        assert (found.outcome, found.why.code) == (Outcome.REFUSED, Code.BOOKKEEPER_DELETED)
    scene.write(third, offloads[third])
    scene.cluster.wait(1)
    before = scene.info
    found = {one.ledger_id: (one.outcome, one.why.code) for one in reverted(scene, dry_run=True)}
    assert found[first][0] == "goes"  # nobody has deleted it yet, and no deletion run is at it
    assert found[second] == (Outcome.REFUSED, Code.NOT_IN_BOOKKEEPER)
    assert found[third][0] == "goes"
    assert scene.info == before


def test_what_bookkeeper_cannot_give_whole_is_not_reverted(scene: Scene) -> None:
    scene.waived = True
    scene.proceed()
    scene.cluster.wait(1)
    first, second, _ = scene.wanted
    scene.cluster.reader.failures[first] = ROTTEN
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=second, entries=[b"x" * 9])
    for dry_run in (True, False):
        found = {one.ledger_id: one for one in reverted(scene, dry_run=dry_run)}
        for ledger_id in (first, second):
            one = found[ledger_id]
            assert (one.outcome, one.why.code) == (Outcome.REFUSED, Code.NOT_IN_BOOKKEEPER)
        assert "entry 1: CRC32C" in found[first].reason
    assert scene.complete == [first, second]


@pytest.mark.parametrize(
    ("then", "code"),
    [
        (None, Code.DELISTED),
        (uuid4(), Code.COPY_DIFFERS),
    ],
)
def test_what_is_not_reverted_is_not_said_to_be(scene: Scene, then: UUID | None, code: Code) -> None:
    scene.waived = True
    scene.proceed(scene.ids[:1])
    scene.cluster.wait(1)

    def act() -> None:
        if then:
            data = f"{data_key(then, scene.ids[0])}", f"{index_key(then, scene.ids[0])}"
            for key in data:
                scene.buckets.put(BUCKET, key, b"x", SAYS)
            scene.write(scene.ids[0], context(then, complete=True))
        else:
            scene.cluster.put(scene.path, managed_ledger.encode(replace(scene.info, ledgers=scene.info.ledgers[1:])))

    session = scene.session_again()
    scene.on_write(act)
    run = replace(session.run, loaded_topics=True)
    (found,) = revert.revert_topic(run, session.ports, session.guard, TOPIC, scene.ids[:1])
    assert (found.outcome, found.why.code) == (Outcome.FAILED, code)
