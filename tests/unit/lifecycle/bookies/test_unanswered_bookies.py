"""Bookies that answer no more, or as other ones, while a run has bookies collect; over fakes."""

from dataclasses import replace

import pytest

from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.lifecycle.bookies.collection import StopReason
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.fakes.bookie_admin import IDLE
from tests.kit.scenes.lifecycle.collection_scene import GB, Scene, spoil


def deaf(scene, bookie, looks):
    """``bookie`` answers no question for so many looks, registered as it is."""
    status, asked = scene.bookies.status, []

    def unanswered(one):
        if one == bookie:
            asked.append(one)
            if len(asked) <= looks:
                raise Unavailable("503")
        return status(one)

    scene.bookies.status = unanswered


@pytest.mark.parametrize("looks", [1, 10])
def test_no_rack_begins_while_a_bookie_of_another_one_is_at_it_and_too_busy_to_say_so(looks):
    scene = Scene()
    scene.begin("a", major=True)
    scene.left["a"] = (20, True)
    told = []
    scene.bookies.on_collect = lambda bookie, major: told.append((bookie, "a" in scene.left))
    plan_of = scene.run

    def run():
        deaf(scene, "a", looks)
        return plan_of()

    run()
    assert ("c", False) in told
    assert ("c", True) not in told


def test_one_of_another_rack_that_goes_away_ends_the_run():
    scene = Scene()
    scene.set("a", collecting=True)
    sleep = scene.clock.sleep

    def sleeps(seconds):
        sleep(seconds)
        scene.bookies.statuses.pop("a", None)

    scene.clock.sleep = sleeps
    assert scene.run()["c"].why.code is StopReason.BOOKIE_AWAY


def test_one_that_answers_no_more_is_named_with_what_it_says():
    scene = Scene(stalled_after=60.0)
    spoil(scene, "a")
    begin = scene.bookies.on_collect

    def begins(bookie, major):
        begin(bookie, major)
        deaf(scene, "a", 1000)

    scene.bookies.on_collect = begins
    why = scene.run()["a"].why
    assert (why.code, why.text.endswith("it does not answer: 503")) == (StopReason.STALLED, True)


@pytest.mark.parametrize("changes", [{"total": 900 * GB}, {"entry_log_ids": (0,)}])
def test_other_disks_than_before_have_nothing_that_was_freed(changes):
    scene = Scene()
    started = (replace(IDLE, last_minor=77, last_major=77),)
    spoil(scene, "a", compactions=started, collecting=False, free=99 * GB, **changes)
    scene.left.clear()
    found = scene.run()
    assert (found["a"].outcome, found["a"].freed) == (Outcome.RESTARTED, 0)
    assert [row.bytes for row in scene.journal.rows if row.outcome == Outcome.RESTARTED] == [0]
