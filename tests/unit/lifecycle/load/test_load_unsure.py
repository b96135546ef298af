"""Load runs that cannot read, for a moment or for good, what they wait for: only what was seen counts as done.

And those whose brokers read for longer: the logs of acknowledgements in transactions, at each load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pulsar_lifecycle.errors import Failed, LifecycleError, Unavailable
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.lifecycle.load.visit import LoadStep
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, PENDING_ACKS, Topic, encode_name
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.topic_load import PendingAcks
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, expired, pending, planned
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import NAMESPACE

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


def with_log(scene: LoadScene, subscription: str = "s") -> None:
    """A subscription of ``a`` has such a log."""
    scene.servers.put(f"{MANAGED_LEDGERS_ROOT}/{NAMESPACE}/persistent/a-{encode_name(subscription)}{PENDING_ACKS}", b"")


@pytest.fixture
def plan(scene: LoadScene) -> PlanSummary:
    """Of topic ``a``, whose only subscription has such a log."""
    expired(scene)
    with_log(scene)
    return planned(scene, "a")


def read_after(scene: LoadScene, waits: int, *before: PendingAcks) -> list[str]:
    """A broker that says ``before``, one after the other, and is done after some waits; returns what it is told."""
    admin, told, states = scene.servers.admin, list[str](), iter(before)
    admin.acks[A, "s"] = next(states)

    def wait(seconds: float) -> None:
        told.append("wait")
        admin.acks[A, "s"] = PendingAcks.READY if len(told) >= waits else next(states, admin.acks[A, "s"])

    scene.servers.clock.on_sleep = wait
    trim, unload = admin.on_trim, admin.on_unload
    admin.on_trim = lambda topic: (told.append("trim"), trim(topic))[1]
    admin.on_unload = lambda topic: (told.append("unload"), unload(topic))[1]
    return told


def test_a_topic_is_trimmed_and_unloaded_once_its_broker_has_read_them(scene: LoadScene, plan: PlanSummary) -> None:
    told = read_after(scene, 3, PendingAcks.NONE, PendingAcks.INITIALIZING)
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.DONE, LoadStep.IN_METADATA)
    assert told == ["wait", "wait", "wait", "trim", "unload"]
    assert pending(scene) == []


def test_a_topic_whose_broker_does_not_come_through_is_unloaded_by_the_next_run(
    scene: LoadScene, plan: PlanSummary
) -> None:
    admin = scene.servers.admin
    told = read_after(scene, 10_000, PendingAcks.INITIALIZING)
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, LoadStep.ACKS_NOT_READ)
    assert "restart" in one.why.text
    assert ("trim" in told, "unload" in told) == (False, False)
    assert scene.is_loaded("a")
    assert len(pending(scene)) == 1
    codes = [row.code for row in scene.servers.journal.rows if row.outcome is Outcome.FAILED]
    assert codes == [LoadStep.ACKS_NOT_READ] * 2  # of its load, and of its unload

    applied(scene, plan)  # it is amid it still
    assert "unload" not in told
    assert len(pending(scene)) == 1
    admin.acks[A, "s"] = PendingAcks.READY
    applied(scene, plan)
    assert "unload" in told
    assert not scene.is_loaded("a")
    assert pending(scene) == []


@pytest.mark.parametrize("state", [PendingAcks.OFF, PendingAcks.ERROR])
def test_a_broker_that_reads_none_is_not_waited_for(scene: LoadScene, plan: PlanSummary, state: PendingAcks) -> None:
    scene.servers.admin.acks[A, "s"] = state
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.DONE, LoadStep.IN_METADATA)
    assert pending(scene) == []


@pytest.mark.parametrize("error", [Failed("500"), Unavailable("503")])
def test_a_broker_that_does_not_say_so_keeps_its_topic_loaded(
    scene: LoadScene, plan: PlanSummary, monkeypatch: pytest.MonkeyPatch, error: LifecycleError
) -> None:
    def unanswered(topic: Topic, subscription: str) -> PendingAcks:
        raise error

    monkeypatch.setattr(scene.servers.admin, "pending_acks", unanswered)
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, LoadStep.ACKS_NOT_READ)
    assert str(error) in one.why.text
    assert scene.is_loaded("a")
    assert len(pending(scene)) == 1


def test_a_topic_that_somebody_unloaded_amid_it_is_not_loaded_again_for_its_unload(
    scene: LoadScene, plan: PlanSummary
) -> None:
    told = read_after(scene, 10_000, PendingAcks.INITIALIZING)
    admin, wait = scene.servers.admin, scene.servers.clock.on_sleep

    def unloaded(seconds: float) -> None:
        wait(seconds)
        admin.loaded.pop(str(A), None)

    scene.servers.clock.on_sleep = unloaded
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, LoadStep.ACKS_NOT_READ)
    assert admin.touched.count(A) == 1
    assert "unload" not in told


def test_only_subscriptions_with_such_a_log_are_asked_about(scene: LoadScene, monkeypatch: pytest.MonkeyPatch) -> None:
    expired(scene)
    with_log(scene, "another")
    plan = planned(scene, "a")
    asked: list[str] = []
    monkeypatch.setattr(scene.servers.admin, "pending_acks", lambda topic, name: asked.append(name))
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code, asked) == (Outcome.DONE, LoadStep.IN_METADATA, [])
