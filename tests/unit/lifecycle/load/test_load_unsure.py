"""Load runs that cannot read, for a moment or for good, what they wait for: only what was seen counts as done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.lifecycle.load.visits import LoadStep
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, expired, pending, planned
from tests.kit.scenes.lifecycle.load_scene import LoadScene

A = Topic.parse(f"{OWN}a")
GONE = 999_999
"""A cursor ledger that BookKeeper does not have: its broker replaced it between our two reads."""


def unread_after(
    scene: LoadScene, step: str, path: str, spoil: Callable[[bytes], bytes], *, for_good: bool = False
) -> None:
    """Spoil a z-node once its broker has done a step, for good or until somebody has waited."""
    do = getattr(scene.servers.admin, step)

    def spoiled(topic: Topic) -> None:
        do(topic)
        was = scene.servers.zookeeper.data(path)
        scene.servers.put(path, spoil(was))
        if not for_good:
            scene.servers.clock.on_sleep = lambda seconds: mend(was)

    def mend(was: bytes) -> None:
        scene.servers.clock.on_sleep = lambda seconds: None
        scene.servers.put(path, was)

    setattr(scene.servers.admin, step, spoiled)


def in_a_gone_ledger(data: bytes) -> bytes:
    return cursor_format.encode(replace(cursor_format.decode(data), cursors_ledger_id=GONE))


def test_a_cursor_that_is_unknown_for_a_moment_is_looked_at_again(scene: LoadScene) -> None:
    first, last = expired(scene)
    plan = planned(scene, "a")
    unread_after(scene, "on_load", f"{scene.servers.topic_path(A)}/s", in_a_gone_ledger)
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.DONE, LoadStep.IN_METADATA)
    assert scene.trimmed == [first]
    assert scene.listed("a")[0] == last


def test_a_cursor_that_stays_unknown_fails_its_topic(scene: LoadScene) -> None:
    first, _ = expired(scene)
    plan = planned(scene, "a")
    unread_after(scene, "on_load", f"{scene.servers.topic_path(A)}/s", in_a_gone_ledger, for_good=True)
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, LoadStep.NOT_IN_TIME)
    assert "not known" in one.why.text
    assert scene.listed("a")[0] == first
    assert not scene.is_loaded("a")
    assert pending(scene) == []


@pytest.mark.parametrize("step", ["on_trim", "on_unload"])
def test_a_topic_that_cannot_be_read_for_a_moment_is_looked_at_again(scene: LoadScene, step: str) -> None:
    first, _ = expired(scene)
    plan = planned(scene, "a")
    unread_after(scene, step, scene.servers.topic_path(A), lambda data: b"\xff\xff")
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.DONE, LoadStep.IN_METADATA)
    assert scene.trimmed == [first]
    assert pending(scene) == []
