"""Which bookies collect, in which order, and what stops a run; over fakes."""

from dataclasses import replace

import pytest

from pulsar_lifecycle.errors import OutcomeUnknown, Unavailable
from pulsar_lifecycle.lifecycle.bookies.collection import (
    CollectionChoice,
    CollectionEnd,
    StopReason,
    waves,
)
from pulsar_lifecycle.lifecycle.bookies.collection_run import POLL
from pulsar_lifecycle.run_settings import CollectionSettings
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.fakes.bookie_admin import IDLE
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.lifecycle.collection_scene import GB, Scene, full, outcomes, plan, spoil


def test_each_bookie_is_chosen_or_named_with_why_not():
    said = {
        "full": full("full"),
        "little": full("little", live=5 * GB, logs=5),
        "unanswered": Unavailable("no answer"),
        "mute": replace(full("mute"), directories=None),
        "busy": replace(full("busy"), collecting=True),
    }
    found = {row.bookie: (row.choice, row.bytes) for row in plan(said)}
    assert found == {
        "full": (CollectionChoice.COLLECT, 30 * GB),
        "little": (CollectionChoice.LITTLE_TO_FREE, 0),
        "unanswered": (CollectionChoice.UNKNOWN_DISK, None),
        "mute": (CollectionChoice.UNKNOWN_DISK, None),
        "busy": (CollectionChoice.AT_IT, 30 * GB),
    }


def test_racks_go_one_after_the_other_the_fullest_first():
    said = {name: full(name, usage) for name, usage in (("a", 0.5), ("b", 0.9), ("c", 0.6), ("d", 0.8), ("e", 0.7))}
    rows = plan(said, {"a": "/1", "b": "/1", "c": "/2", "d": "/2", "e": "/2"})
    assert waves(rows, 2) == [["b", "a"], ["d", "e"], ["c"]]
    assert waves(rows, 1) == [["b"], ["a"], ["d"], ["e"], ["c"]]


def test_bookies_whose_rack_nobody_knows_go_one_at_a_time():
    assert waves(plan({name: full(name) for name in "abc"}), 9) == [["a"], ["b"], ["c"]]


def test_bytes_of_open_ledgers_are_no_garbage():
    said = {"b": full("b", live=39 * GB)}  # 34 GB beyond what is placed, of ledgers that are not closed
    assert plan(said)[0].choice is CollectionChoice.LITTLE_TO_FREE


def test_each_collects_minor_then_major_one_at_a_time():
    scene = Scene()
    found = scene.run()
    assert scene.bookies.collections == [(bookie, major) for bookie in "abc" for major in (False, True)]
    assert scene.most == 1
    assert outcomes(found) == dict.fromkeys("abc", Outcome.COLLECTED)
    assert found["a"].freed == 30 * GB  # so many logs went; what is free beyond that others have freed
    assert scene.rows[:3] == [("a", said, said) for said in ("collecting", "collecting", "collected")]
    free = [line for line in scene.said if line.startswith("a: major")]
    assert free[0].startswith("a: major compaction, 70 GiB free, "), scene.said


def test_several_collect_at_once_and_never_of_two_racks():
    scene = Scene(at_once=3)
    scene.run()
    assert scene.most == 2
    assert [bookie for bookie, _ in scene.bookies.collections] == ["a", "b", "a", "b", "c", "c"]


def test_no_major_compaction_where_little_is_left_after_the_minor_one():
    scene = Scene()
    scene.settings = CollectionSettings(min_bytes=16 * GB)
    assert outcomes(scene.run()) == dict.fromkeys("abc", Outcome.COLLECTED)
    assert not any(major for _, major in scene.bookies.collections)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"add_latency_ms": 101.0}, StopReason.SLOW_ADDS),
        ({"read_only": True}, StopReason.BOOKIE_READ_ONLY),
    ],
)
def test_trouble_stops_the_run_and_what_collects_is_left_at_it(changes, reason):
    scene = Scene()
    spoil(scene, "b", **changes)
    found = scene.run()
    assert outcomes(found) == {
        "a": Outcome.COLLECTED,
        "b": Outcome.LEFT_AT_IT,
        "c": Outcome.NOT_STARTED,
    }
    assert found["b"].why.code is reason
    assert ("b", "left-collecting", reason.value) in scene.rows


def test_a_bookie_that_goes_away_stops_the_run():
    scene = Scene()
    sleep = scene.clock.sleep

    def sleeps(seconds):
        sleep(seconds)
        scene.bookies.statuses.pop("c", None)

    scene.clock.sleep = sleeps
    found = scene.run()
    assert found["a"].why.code is StopReason.BOOKIE_AWAY
    assert found["c"].outcome is Outcome.NOT_STARTED


def test_one_that_shows_no_progress_stops_the_run_and_is_named():
    scene = Scene(stalled_after=60.0)
    scene.lasts = 1000
    spoil(scene, "a", compactions=(IDLE, replace(IDLE, major=True)))
    found = scene.run()
    assert found["a"].why.code is StopReason.STALLED
    assert "no progress for 65 s in ledger directory 1" in found["a"].why.text
    assert "It stands on one of entry logs 0, 1, 2" in found["a"].why.text
    assert scene.clock.now_ms() < 200_000 + FakeClock().now_ms()


def test_progress_of_any_kind_lets_it_go_on():
    scene = Scene(stalled_after=POLL * 3)
    scene.lasts = 50
    tick = scene.tick

    def ticks():
        for bookie in scene.left:
            logs = scene.bookies.statuses[bookie].entry_log_ids
            scene.set(bookie, entry_log_ids=(*logs[1:], logs[-1] + 1))
        tick()

    scene.tick = ticks
    assert outcomes(scene.run()) == dict.fromkeys("abc", Outcome.COLLECTED)


def test_one_that_was_restarted_is_named_and_the_others_go_on():
    scene = Scene()
    for bookie in "abc":
        scene.set(bookie, compactions=(replace(IDLE, majors=7),))
    spoil(scene, "a", compactions=(IDLE,), collecting=False)
    scene.left.clear()
    found = scene.run()
    assert found["a"].outcome is Outcome.RESTARTED
    assert found["c"].outcome is Outcome.COLLECTED


def test_one_that_was_restarted_before_anything_ran_is_named():
    """Its counters are what they were, 0; the times of its compactions are those of its start."""
    scene = Scene()
    spoil(scene, "a", compactions=(replace(IDLE, last_minor=77, last_major=77),), collecting=False)
    scene.left.clear()
    found = scene.run()
    assert found["a"].outcome is Outcome.RESTARTED
    assert found["c"].outcome is Outcome.COLLECTED


def test_one_that_cannot_be_told_is_named_and_the_others_go_on():
    scene = Scene()

    def begin(bookie, major):
        if bookie == "a":
            raise Unavailable("a is away")
        Scene.begin(scene, bookie, major)

    scene.bookies.on_collect = begin
    assert outcomes(scene.run()) == {
        "a": Outcome.UNANSWERED,
        "b": Outcome.COLLECTED,
        "c": Outcome.COLLECTED,
    }


def test_one_whose_answer_got_lost_is_watched():
    scene = Scene()

    def begin(bookie, major):
        Scene.begin(scene, bookie, major)
        raise OutcomeUnknown("lost")

    scene.bookies.on_collect = begin
    assert outcomes(scene.run()) == dict.fromkeys("abc", Outcome.COLLECTED)
    assert scene.most == 1


def test_one_that_collects_already_is_left_at_it():
    scene = Scene()
    spoil(scene, "a")
    begin = scene.bookies.on_collect

    def both(bookie, major):
        begin(bookie, major)
        scene.set("b", collecting=True)

    scene.bookies.on_collect = both
    assert scene.run()["b"].outcome is Outcome.LEFT_AT_IT
    assert not [one for one in scene.bookies.collections if one[0] == "b"]


@pytest.mark.parametrize("known", [True, False])
def test_no_rack_begins_while_a_bookie_of_another_one_is_at_it(known):
    """As a run that stopped leaves one; the plan knows, or it began since."""
    scene = Scene()
    if known:
        scene.begin("a", major=True)
        scene.left["a"] = (40, True)
    else:
        begin = scene.bookies.on_collect

        def both(bookie, major):
            begin(bookie, major)
            if bookie == "a" and major:
                Scene.begin(scene, "b", major=True)
                scene.left["b"] = (40, True)

        scene.bookies.on_collect = both
    racks = []
    begins = scene.bookies.on_collect

    def told(bookie, major):
        racks.append({"/2" if one == "c" else "/1" for one in (*scene.left, bookie)})
        begins(bookie, major)

    scene.bookies.on_collect = told
    found = scene.run()
    assert found["c"].outcome is Outcome.COLLECTED
    assert all(len(one) == 1 for one in racks), racks


def test_one_of_another_rack_that_stands_still_ends_the_run():
    scene = Scene(stalled_after=60.0)
    scene.set("a", collecting=True)
    found = scene.run()
    assert outcomes(found) == {"b": Outcome.COLLECTED, "c": Outcome.NOT_STARTED}
    assert found["c"].why.code is StopReason.STALLED


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("paused", StopReason.PAUSED),
        ("deleting", StopReason.LEDGERS_DELETED),
        ("lease", StopReason.LEASE_LOST),
    ],
)
def test_a_major_compaction_is_not_begun_once_the_run_may_not(how, code):
    scene = Scene()

    def begin(bookie, major):
        Scene.begin(scene, bookie, major)
        if how == "paused":
            control.pause(scene.store, "enough")
        elif how == "deleting":
            control.take_lease(scene.store, "undo", scene.clock, 0)
        else:
            scene.store.write(control.COLLECTION_LEASE, b"another", -1)

    scene.bookies.on_collect = begin
    sleep, looks = scene.clock.sleep, []

    def raises(seconds):
        sleep(seconds)
        looks.append(seconds)
        if len(looks) == 20:
            control.pause(scene.store, "enough")

    scene.clock.sleep = raises
    found = scene.run()
    assert scene.bookies.collections == [("a", False)]
    assert found["a"].outcome is Outcome.COLLECTED
    assert found["a"].why.code is code
    assert "the major one was not begun" in found["a"].why.text
    assert found["b"].outcome is Outcome.NOT_STARTED
    assert found["b"].why.code in (StopReason.PAUSED, code)


@pytest.mark.parametrize("counted", [False, True])
def test_no_compaction_ran_where_the_counters_did_not_move(counted):
    scene = Scene()
    if counted:
        scene.counts_collections()
    tick = scene.tick

    def ticks():
        tick()
        for bookie in "abc":
            scene.set(bookie, compactions=(IDLE,))

    scene.tick = ticks
    found = scene.run()
    assert outcomes(found) == dict.fromkeys("abc", Outcome.COLLECTED)
    assert found["a"].why.code is CollectionEnd.NOT_COMPACTED
    assert found["a"].why.text == "deleted ledgers collected; no compaction ran there"


def test_a_compaction_that_could_write_nothing_is_told_from_one_that_freed():
    """On a full disk a bookie counts it like any other, and keeps every entry log."""
    scene = Scene()
    tick = scene.tick

    def ticks():
        before = scene.bookies.statuses["a"]
        tick()
        kept = {name: getattr(before, name) for name in ("directories", "entry_log_ids", "free")}
        scene.set("a", **kept)

    scene.tick = ticks
    found = scene.run()
    assert outcomes(found) == dict.fromkeys("abc", Outcome.COLLECTED)
    assert {name: one.why.code for name, one in found.items()} == {
        "a": CollectionEnd.NO_LOG_WENT,
        "b": Outcome.COLLECTED,
        "c": Outcome.COLLECTED,
    }
    assert found["a"].freed == 0


def test_a_pause_stops_before_the_next_bookie():
    scene = Scene()
    spoil(scene, "a")
    begin = scene.bookies.on_collect

    def pausing(bookie, major):
        begin(bookie, major)
        control.pause(scene.store, "enough")

    scene.bookies.on_collect = pausing
    assert outcomes(scene.run()) == {
        "a": Outcome.COLLECTED,
        "b": Outcome.NOT_STARTED,
        "c": Outcome.NOT_STARTED,
    }


def test_no_bookie_is_told_while_a_run_deletes_or_restores():
    scene = Scene()
    lease = control.take_lease(scene.store, "undo", scene.clock, 0)
    looks = 0
    sleep = scene.clock.sleep

    def sleeps(seconds):
        nonlocal looks
        looks += 1
        assert scene.bookies.collections == [] or looks > 3
        if looks == 3:
            control.release_lease(scene.store, lease)
        sleep(seconds)

    scene.clock.sleep = sleeps
    assert outcomes(scene.run()) == dict.fromkeys("abc", Outcome.COLLECTED)


def test_a_metadata_store_that_does_not_say_who_deletes_ends_the_run_with_a_row_for_each():
    scene = Scene()
    asked = []

    def fails(operation):
        if operation == Operation("read", (control.holder_of(control.LEASE),)):
            asked.append(operation)
            if len(asked) == 2:
                control.pause(scene.store, "enough")
                raise Unavailable("ZooKeeper does not answer")

    scene.store.before = fails
    found = scene.run()
    assert outcomes(found) == {
        "a": Outcome.COLLECTED,
        "b": Outcome.NOT_STARTED,
        "c": Outcome.NOT_STARTED,
    }
    assert found["a"].why.code is StopReason.LEDGERS_DELETED
    assert found["b"].why.code is StopReason.PAUSED
