"""Applying a load plan where brokers refuse one topic: that one is left alone, and the waves after it go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pulsar_lifecycle.errors import AccessDenied, LifecycleError, NotFound, OutcomeUnknown, StoreError
from pulsar_lifecycle.lifecycle.load.visits import LoadedTopic
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, expired, pending, planned
from tests.kit.scenes.lifecycle.load_scene import LoadScene

REFUSALS = [AccessDenied("403"), NotFound("404: it moved"), StoreError("412: another broker has it")]


def refusing(said: Callable[[Topic], None], error: LifecycleError, *names: str) -> Callable[[Topic], None]:
    """A broker that answers so for these topics, and else does what it did."""

    def answer(topic: Topic) -> None:
        if topic.local in names:
            raise error
        said(topic)

    return answer


def run(scene: LoadScene, error: LifecycleError, names: str, refused: str) -> dict[str, LoadedTopic]:
    """A topic a wave, whose unloads fail if they are ``refused``."""
    for name in names:
        expired(scene, name)
    plan = planned(scene, *names)
    scene.change(at_once=1)
    scene.servers.admin.on_unload = refusing(scene.servers.admin.on_unload, error, *refused)
    return {one.topic.rpartition("/")[2]: one for one in applied(scene, plan)}


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_an_unload_that_is_refused_stops_no_later_wave(scene: LoadScene, error: LifecycleError) -> None:
    found = run(scene, error, "abcd", "a")
    assert (found["a"].outcome, found["a"].why.code) == (Outcome.FAILED, Code.NOT_UNLOADED)
    assert {found[name].outcome for name in "bcd"} == {Outcome.DONE}
    assert len(pending(scene)) == 1
    assert [name for name in "abcd" if scene.is_loaded(name)] == ["a"]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_refusals_between_which_others_are_unloaded_stop_nothing(scene: LoadScene, error: LifecycleError) -> None:
    found = run(scene, error, "abcdef", "ace")
    assert {name for name, one in found.items() if one.outcome is Outcome.DONE} == set("bdf")


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_tenant_of_which_nothing_may_be_unloaded_is_not_loaded_whole(scene: LoadScene, error: LifecycleError) -> None:
    """A role that may look at topics, and so load them, but not unload them."""
    found = run(scene, error, "abcdef", "abcdef")
    assert [one.outcome for one in found.values()] == [Outcome.FAILED] * 3 + [Outcome.LEFT] * 3
    assert {one.why.code for one in found.values()} == {Code.NOT_UNLOADED}
    assert len(pending(scene)) == 3


def test_a_broker_that_fails_at_unloads_still_stops_the_run(scene: LoadScene) -> None:
    found = run(scene, OutcomeUnknown("500"), "abcdef", "bcd")
    assert found["a"].outcome is Outcome.DONE
    assert [found[name].outcome for name in "bcdef"] == [Outcome.FAILED] * 3 + [Outcome.LEFT] * 2


def test_a_load_that_is_denied_leaves_its_topic_alone(scene: LoadScene) -> None:
    """Nothing is to be unloaded: asking for that would be denied, too, or load it."""
    for name in "ab":
        expired(scene, name)
    plan, asked = planned(scene, "a", "b"), list[Topic]()
    admin, unload = scene.servers.admin, scene.servers.admin.unload
    admin.on_load = refusing(admin.on_load, AccessDenied("403"), "a")
    admin.unload = lambda topic: (asked.append(topic), unload(topic))[1]  # type: ignore[method-assign]
    first, second = applied(scene, plan)
    assert (first.outcome, first.why.code) == (Outcome.FAILED, Code.SERVER_FAILED)
    assert second.outcome is Outcome.DONE
    assert asked == [Topic.parse(f"{OWN}b")]
    assert pending(scene) == []
