"""Which bookies collect, in which order, and what stops a run; over fakes."""

from dataclasses import replace

import pytest

from pulsar_lifecycle.errors import OutcomeUnknown, Unavailable
from pulsar_lifecycle.formats.bookie_status import LedgerDirectory
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import judge
from pulsar_lifecycle.lifecycle.bookies.collection import (
    CollectionChoice,
    StopReason,
    plan_collection,
    waves,
)
from pulsar_lifecycle.lifecycle.bookies.collection_run import POLL, CollectionRun
from pulsar_lifecycle.lifecycle.bookies.placement import Placed, Placement
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.run_settings import CollectionSettings
from pulsar_lifecycle.runs import control
from tests.kit.fakes.bookie_admin import IDLE, FakeBookieAdmin, status
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.metadata_store import FakeZooKeeper, Operation

GB = 1 << 30


def full(bookie, usage=0.5, live=10 * GB, logs=40, **changes):
    """40 logs of 1 GB, of which 10 are live and 5 are placed there by metadata."""
    return status(bookie, free=10 * GB, directories=(LedgerDirectory("/l", logs, live, 100, usage),), **changes)


def plan(said, racks=None, min_bytes=GB):
    placement = Placement(dict.fromkeys(said, Placed(5 * GB, 100)))
    return plan_collection(judge(dict.fromkeys(said, False), said, placement, 5), racks or {}, min_bytes)


def test_each_bookie_is_chosen_or_named_with_why_not():
    said = {
        "full": full("full"),
        "little": full("little", live=5 * GB, logs=5),
        "silent": Unavailable("no answer"),
        "mute": replace(full("mute"), directories=None),
        "busy": replace(full("busy"), collecting=True),
    }
    found = {row.bookie: (row.choice, row.bytes) for row in plan(said)}
    assert found == {
        "full": (CollectionChoice.COLLECT, 30 * GB),
        "little": (CollectionChoice.LITTLE_TO_FREE, 0),
        "silent": (CollectionChoice.UNKNOWN_DISK, None),
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


class Scene:
    """Bookies of two racks that collect for two looks each: ``a`` and ``b`` in one, ``c`` in the other."""

    def __init__(self, **settings):
        self.clock, self.journal, self.store = FakeClock(), FakeJournal(), FakeZooKeeper().session()
        self.bookies = FakeBookieAdmin("a", "b", "c")
        for bookie, usage in (("a", 0.9), ("b", 0.8), ("c", 0.7)):
            self.bookies.statuses[bookie] = full(bookie, usage)
        self.bookies.on_collect = self.begin
        self.left, self.most, self.lasts = {}, 0, 2
        self.settings = CollectionSettings(min_bytes=GB, **settings)
        sleep = self.clock.sleep

        def sleeps(seconds):
            sleep(seconds)
            self.tick()

        self.clock.sleep = sleeps

    def begin(self, bookie, major):
        self.left[bookie] = (self.lasts, major)
        self.most = max(self.most, len(self.left))
        self.set(bookie, collecting=True)

    def set(self, bookie, **changes):
        self.bookies.statuses[bookie] = replace(self.bookies.statuses[bookie], **changes)

    def tick(self):
        for bookie, (looks, major) in list(self.left.items()):
            if looks > 1:
                self.left[bookie] = (looks - 1, major)
                continue
            del self.left[bookie]
            said = self.bookies.statuses[bookie]
            logs = 10 if major else 20
            done = replace(IDLE, majors=said.compactions[0].majors + major, minors=said.compactions[0].minors + 1)
            directory = replace(said.directories[0], entry_logs=logs, live_bytes=5 * GB)
            self.set(
                bookie, collecting=False, compactions=(done,), directories=(directory,), free=(90 - logs) * GB,
                entry_log_ids=tuple(range(logs + 1)),
            )  # fmt: skip

    def run(self):
        said = {bookie: self.bookies.statuses[bookie] for bookie in "abc"}
        rows = plan(said, {"a": "/1", "b": "/1", "c": "/2"})
        self.lease = control.take_lease(self.store, "collection", self.clock, 0, control.COLLECTION_LEASE)
        ports = self.store, self.bookies, self.journal, self.clock
        run = CollectionRun("r", "test", self.settings, rows, self.lease.guard, *ports, lambda _: None)
        return {one.bookie: one for one in run.all()}

    @property
    def rows(self):
        return [(row.reason.split(":")[0], row.outcome, row.code) for row in self.journal.rows]


def outcomes(found):
    return {bookie: one.outcome for bookie, one in found.items()}


def test_each_collects_minor_then_major_one_at_a_time():
    scene = Scene()
    found = scene.run()
    assert scene.bookies.collections == [(bookie, major) for bookie in "abc" for major in (False, True)]
    assert scene.most == 1
    assert outcomes(found) == dict.fromkeys("abc", Outcome.COLLECTED)
    assert found["a"].freed == 70 * GB
    assert scene.rows[:3] == [("a", said, said) for said in ("collecting", "collecting", "collected")]


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


def spoil(scene, bookie, **changes):
    """``bookie`` changes so as soon as it collects."""

    def begin(one, major):
        Scene.begin(scene, one, major)
        if one == bookie:
            scene.set(bookie, **changes)

    scene.bookies.on_collect = begin


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
    assert "ledger directory 1" in found["a"].why.text
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


@pytest.mark.parametrize("of_major", [False, True])
def test_one_that_may_not_have_heard_is_not_said_to_have_collected(of_major):
    scene = Scene()

    def begin(bookie, major):
        if bookie == "a" and major == of_major:
            raise OutcomeUnknown("it never came")
        Scene.begin(scene, bookie, major)

    scene.bookies.on_collect = begin
    found = scene.run()
    assert outcomes(found) == {"a": Outcome.NOT_ANSWERING, "b": Outcome.COLLECTED, "c": Outcome.COLLECTED}


def test_one_that_cannot_be_told_is_named_and_the_others_go_on():
    scene = Scene()

    def begin(bookie, major):
        if bookie == "a":
            raise Unavailable("a is away")
        Scene.begin(scene, bookie, major)

    scene.bookies.on_collect = begin
    assert outcomes(scene.run()) == {
        "a": Outcome.NOT_ANSWERING,
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


def deaf(scene, bookie, looks):
    """``bookie`` answers no question for so many looks, registered as it is."""
    status, asked = scene.bookies.status, []

    def silent(one):
        if one == bookie:
            asked.append(one)
            if len(asked) <= looks:
                raise Unavailable("503")
        return status(one)

    scene.bookies.status = silent


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


def test_no_compaction_ran_where_the_counters_did_not_move():
    scene = Scene()
    tick = scene.tick

    def ticks():
        tick()
        for bookie in "abc":
            scene.set(bookie, compactions=(IDLE,))

    scene.tick = ticks
    assert "no compaction ran" in scene.run()["a"].why.text


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
