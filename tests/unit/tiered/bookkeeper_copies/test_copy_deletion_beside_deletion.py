"""Deleting copies in BookKeeper beside a deletion run that is under way."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from pulsar_lifecycle.copies import unread_locations
from pulsar_lifecycle.errors import (
    AccessDenied,
    Failed,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.journal.read_checks import locations_that_failed
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.tiered import revert
from pulsar_lifecycle.tiered.read_check import ReadCheck, Unheld, location_before, record_failed, record_passed
from pulsar_lifecycle.values.outcomes import Outcome, Waiting
from tests.kit.crash import Crash, Watched
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.tiered.copy_deletion_scene import FAR, NO, SITE, beside, copy_of, reading
from tests.kit.scenes.tiered.copy_deletion_scene import CopyDeletionScene as Scene
from tests.kit.scenes.topic_scene import TOPIC, outcomes


def held(scene: Scene) -> bool:
    return unread_locations.held(scene.cluster.open_store(), [SITE]) == {SITE}


def read_once(scene: Scene, *, works: bool, run_id: str = "another", read_check: ReadCheck | None = None) -> None:
    """What an offload run makes of one read at the location, of another namespace."""
    run, ports = beside(scene)
    run, copy = replace(run, run_id=run_id), copy_of(scene, scene.due[0])
    read_check = read_check or ReadCheck(False, [str(FAR)])
    if works:
        record_passed(run, ports, FAR, copy, read_check, location_before(ports, copy))
    else:
        record_failed(run, ports, FAR, copy, read_check, NO)


def test_what_brokers_cannot_read_since_a_deletion_run_began_stays_in_bookkeeper() -> None:
    """It read the journal when it began, goes on for hours, and has deleted one copy when a read fails elsewhere."""
    scene = Scene(due=3)
    scene.begin_and_scan()
    scene.off.batch = 1
    left: list[list[int]] = []

    def fail(name: str) -> None:
        if name == "before receive" and len(scene.left) == 2 and not left:
            left.append(scene.left)
            read_once(scene, works=False)

    scene.tick = fail
    found = scene.delete()
    assert (
        sorted((d.outcome, d.waiting) for d in found if d.outcome != Outcome.DELETED)
        == [(Outcome.WAITING, Waiting.UNREAD_LOCATION)] * 2
    )
    assert [scene.left] == left
    assert all(unread_locations.path_of(SITE) in d.reason for d in found if d.outcome == Outcome.WAITING)
    for n in range(3):  # the journal, too; and no message becomes a dead letter
        scene.scan()
        assert {d.outcome for d in scene.delete(run_id=f"later-{n}")} == {Outcome.WAITING}
    read_once(scene, works=True, run_id="mended")
    scene.scan()
    assert {d.outcome for d in scene.delete(run_id="last")} == {Outcome.DELETED}
    assert scene.left == []


def test_a_copy_at_another_location_is_deleted_meanwhile() -> None:
    scene = Scene()
    scene.begin_and_scan()
    store = scene.cluster.open_store()
    for where in ((SITE[0], "another", *SITE[2:]), (*SITE[:2], "r", ""), (*SITE[:3], "http://s3")):
        unread_locations.hold(store, where, "run", "500")
    assert {d.outcome for d in scene.delete()} == {Outcome.DELETED}


@pytest.mark.parametrize("outcome", [Outcome.CHECK_FAILED, Outcome.CHECK_UNANSWERED])
def test_the_failing_read_is_held_before_anything_else_is_done(outcome: str) -> None:
    """Killed before the journal says so, it is held; what was not answered says nothing of the location."""
    scene = Scene()
    asked = reading(
        scene, Failed("500: no such bucket") if outcome == Outcome.CHECK_FAILED else Unavailable("timed out")
    )
    seen: list[bool] = []

    def die(name: str) -> None:
        if name == "before record" and asked:
            seen.append(held(scene))
            raise Crash

    scene.tick = die
    with pytest.raises(Crash):
        scene.begin_deletions()
    assert seen == [outcome == Outcome.CHECK_FAILED]
    assert held(scene) == (outcome == Outcome.CHECK_FAILED)


@pytest.mark.parametrize("at", ["before unload", "before record"])
def test_killed_after_a_failing_read_its_location_is_held(at: str) -> None:
    """Before its topic is unloaded, which may take minutes."""
    scene = Scene()
    asked = reading(scene, Failed("500: no such bucket"))

    def die(name: str) -> None:
        if name == at and asked:
            raise Crash

    scene.tick = die
    with pytest.raises(Crash):
        scene.begin_deletions()
    assert (held(scene), scene.deleted_ids) == (True, [])


@pytest.mark.parametrize("nth", range(3))
def test_a_failing_read_counts_though_its_topic_cannot_be_looked_at_afterwards(nth: int) -> None:
    """One hiccup of the metadata store right after it."""
    scene = Scene()
    asked = reading(scene, Failed("500: no such bucket"))
    cut: list[bool] = []

    def look_away(name: str) -> None:
        if name == "before sync" and asked:
            cut.append(len(cut) == nth)
            if cut[-1]:
                raise Unavailable("connection loss")

    scene.tick = look_away
    assert set(outcomes(scene.begin_deletions()).values()) == {"failed"}
    assert (len(asked), any(cut), held(scene), list(scene.read_check.blocked)) == (1, True, True, [SITE])
    words = [row.outcome for row in scene.cluster.journal.rows if row.action == "read-check"]
    assert words == [Outcome.CHECK_FAILED]


def test_a_failing_read_of_another_offload_by_now_says_nothing() -> None:
    scene = Scene(due=1)
    asked = reading(scene)
    read = scene.cluster.admin.on_read

    def renamed(topic: Topic, position: Position) -> None:
        read(topic, position)
        scene.cluster.topic(TOPIC, [item.ledger_id for item in scene.info.ledgers])
        raise Failed("500: no such object")

    scene.cluster.admin.on_read = renamed
    scene.begin_deletions()
    assert (len(asked), held(scene), scene.read_check.blocked) == (1, False, {})
    words = [row.outcome for row in scene.cluster.journal.rows if row.action == "read-check"]
    assert words == []


def test_a_failing_read_of_a_topic_that_is_gone_by_now_says_nothing() -> None:
    scene = Scene(due=1)
    asked = reading(scene)
    read = scene.cluster.admin.on_read

    def deleted(topic: Topic, position: Position) -> None:
        read(topic, position)
        path = f"/managed-ledgers/{topic.managed_ledger}"
        nodes = scene.cluster.zookeeper._nodes
        for name in sorted((one for one in nodes if one == path or one.startswith(f"{path}/")), reverse=True):
            del nodes[name]
        raise NotFound("404: Topic not found")

    scene.cluster.admin.on_read = deleted
    scene.begin_deletions()
    assert (len(asked), held(scene), scene.read_check.blocked) == (1, False, {})


def test_a_failure_that_says_nothing_leaves_an_earlier_one_at_its_location() -> None:
    scene = Scene(due=1)
    unread_locations.hold(scene.cluster.open_store(), SITE, "earlier", "500")
    reading(scene)
    read = scene.cluster.admin.on_read

    def renamed(topic: Topic, position: Position) -> None:
        read(topic, position)
        scene.cluster.topic(TOPIC, [item.ledger_id for item in scene.info.ledgers])
        raise Failed("500: no such object")

    scene.cluster.admin.on_read = renamed
    before = unread_locations.all_held(scene.cluster.open_store())
    scene.begin_deletions()
    after = unread_locations.all_held(scene.cluster.open_store())
    assert [(one.run_id, one.said) for one in after] == [(one.run_id, one.said) for one in before]


def test_a_failing_read_is_recorded_however_slow_zookeeper_is_then() -> None:
    scene = Scene()
    asked = reading(scene, Failed("500: no such bucket"))

    def slow(name: str) -> None:
        if asked and name == "before read":
            raise Overloaded("ZooKeeper answers in 700 ms")

    scene.tick = slow
    with pytest.raises(Unheld):
        scene.begin_deletions()
    scene.tick = lambda name: None
    words = [row.outcome for row in scene.cluster.journal.rows if row.action == "read-check"]
    assert words == [Outcome.CHECK_FAILED]


def test_a_failing_read_that_a_clock_ahead_has_dated_is_forgotten_after_one_that_works() -> None:
    """Which was first the z-node's versions tell."""
    scene = Scene()
    scene.begin_and_scan()
    run, ports = beside(scene)

    class Ahead:
        def now_ms(self) -> int:
            return scene.cluster.clock.now_ms() + 365 * 86_400_000

        def sleep(self, seconds: float) -> None:
            scene.cluster.clock.sleep(seconds)

    wrong = replace(run, run_id="wrong clock")
    ahead = replace(ports, clock=Ahead())
    record_failed(wrong, ahead, FAR, copy_of(scene, scene.due[0]), ReadCheck(False, [str(FAR)]), NO)
    rows = [asdict(row) for row in scene.cluster.journal.rows]
    assert locations_that_failed(rows, "", scene.cluster.clock.now_ms()) == {SITE}
    read_once(scene, works=True, run_id="mended")
    rows = [asdict(row) for row in scene.cluster.journal.rows]
    assert locations_that_failed(rows, "", scene.cluster.clock.now_ms()) == frozenset()
    scene.scan()
    assert {d.outcome for d in scene.delete()} == {Outcome.DELETED}
    read_once(scene, works=False, run_id="later")
    rows = [asdict(row) for row in scene.cluster.journal.rows]
    assert locations_that_failed(rows, "", scene.cluster.clock.now_ms()) == {SITE}


def test_a_first_failure_at_a_location_is_seen_by_the_read_that_it_overtakes() -> None:
    """No z-node was there when that read began."""
    scene = Scene()
    asked = reading(scene)
    read = scene.cluster.admin.on_read

    def overtaken(topic: Topic, position: Position) -> None:
        unread_locations.hold(scene.cluster.open_store(), SITE, "stale", "500")
        read(topic, position)

    scene.cluster.admin.on_read = overtaken
    assert set(outcomes(scene.begin_deletions()).values()) == {"failed"}
    assert (asked != [], held(scene), scene.deleted_ids) == (True, True, [])


@pytest.mark.parametrize("at", ["before record", "after record", "before write", "after write"])
def test_killed_while_a_read_lets_a_location_go(at: str) -> None:
    """Where the z-node lets it go, the journal did before it."""
    scene = Scene()
    read_once(scene, works=False)
    scene.cluster.wait(0.1)

    def die(name: str) -> None:
        if name == at:
            raise Crash

    run, ports = beside(scene)
    watched = replace(ports, store=Watched(ports.store, die), journal=Watched(ports.journal, die))
    copy = copy_of(scene, scene.due[0])
    with pytest.raises(Crash):
        record_passed(
            replace(run, run_id="later"), watched, FAR, copy, ReadCheck(False, [str(FAR)]), location_before(ports, copy)
        )
    rows = [asdict(row) for row in scene.cluster.journal.rows]
    if not held(scene):
        assert locations_that_failed(rows, "", scene.cluster.clock.now_ms()) == set()


def test_a_read_lets_a_location_go_in_a_later_run_alone() -> None:
    """Of the run in which one broker could not read, another broker's read says nothing of that."""
    scene = Scene()
    read_check = ReadCheck(False, [str(FAR)])
    read_once(scene, works=False, read_check=read_check)
    read_once(scene, works=True, read_check=read_check)
    assert held(scene)
    bookkeeper_first = ReadCheck(False)
    read_once(scene, works=True, run_id="later", read_check=bookkeeper_first)
    assert held(scene)
    read_once(scene, works=True, run_id="later")
    assert not held(scene)


def test_a_read_that_fails_while_another_works_stays_the_last_word() -> None:
    """The one that works began before it: it does not erase what came after, nor is any copy deleted by it."""
    scene = Scene()
    asked = reading(scene)
    read_once(scene, works=False)
    read = scene.cluster.admin.on_read

    def overtaken(topic: Topic, position: Position) -> None:
        store = scene.cluster.open_store()
        unread_locations.hold(store, SITE, "stale", "500")
        read(topic, position)

    scene.cluster.admin.on_read = overtaken
    assert set(outcomes(scene.begin_deletions()).values()) == {"failed"}
    assert asked
    assert (held(scene), scene.deleted_ids) == (True, [])
    reading(scene)
    scene.cluster.wait(1)
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}
    assert not held(scene)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("error", [AccessDenied("no"), OutcomeUnknown("cut")])
def test_a_failing_read_that_cannot_be_held_stops_its_run(error: Exception, full: bool) -> None:
    scene = Scene()

    def fill(name: str) -> None:
        if full and name == "before record" and asked:
            raise StoreError("no space left")

    scene.tick = fill
    asked = reading(scene, Failed("500: no such bucket"))
    path = unread_locations.path_of(SITE)
    begin = scene.begin

    def denied() -> Any:
        given = begin()

        def deny(operation: Operation) -> None:
            if operation.name in ("create", "write") and operation.paths[0] == path:
                raise error

        scene.store.before = deny
        return given

    scene.begin = denied  # type: ignore[method-assign]
    with pytest.raises(Unheld, match="could not be told.*no space left" if full else "could not be told"):
        scene.begin_deletions()
    assert (scene.deleted_ids, scene.broker.memory, scene.read_check.unheld != "") == ([], None, True)
    words = [row.outcome for row in scene.cluster.journal.rows if row.action == "read-check"]
    assert words == ([] if full else [Outcome.CHECK_FAILED])  # deletion runs that begin later know


def test_a_location_that_cannot_be_asked_for_is_neither_read_nor_deleted() -> None:
    scene = Scene()
    asked = reading(scene)
    read_once(scene, works=False)
    scene.cluster.zookeeper.unreadable.add(unread_locations.path_of(SITE))
    said = scene.begin_deletions()
    assert set(outcomes(said).values()) == {"failed"}
    assert (asked, scene.deleted_ids, held(scene)) == ([], [], True)


def test_a_z_node_that_cannot_be_read_keeps() -> None:
    scene = Scene()
    scene.begin_and_scan()
    store, path = scene.cluster.open_store(), unread_locations.path_of(SITE)
    unread_locations.hold(store, SITE, "run", "500")
    unread_locations.let_go(store, SITE, unread_locations.look(store, SITE))
    scene.cluster.zookeeper.unreadable.add(path)
    assert {d.outcome for d in scene.delete()} == {Outcome.WAITING}
    scene.cluster.zookeeper.unreadable.clear()
    scene.scan()
    assert {d.outcome for d in scene.delete(run_id="again")} == {Outcome.DELETED}


def test_ledgers_listed_as_deleted_that_wait_for_a_read_are_what_is_read() -> None:
    """Nothing else is offloaded there: planned once more, they free their location."""
    scene = Scene()
    scene.begin_and_scan()
    read_once(scene, works=False)
    assert {d.outcome for d in scene.delete(run_id="waits")} == {Outcome.WAITING}
    scene.cluster.wait(1)
    asked = reading(scene)
    assert set(outcomes(scene.begin_deletions()).values()) == {Outcome.BOOKKEEPER_DELETED}
    assert (bool(asked), held(scene)) == (True, False)
    scene.scan()
    assert {d.outcome for d in scene.delete(run_id="ends")} <= {Outcome.DELETED, "gone"}
    assert scene.left == []


def test_a_z_node_that_outlives_its_cause_keeps_nothing_that_was_reverted() -> None:
    """Where nothing is offloaded any more, nobody reads again: its messages end all the same."""
    scene = Scene()
    scene.begin_and_scan()
    read_once(scene, works=False)
    assert {d.outcome for d in scene.delete(run_id="waits")} == {Outcome.WAITING}
    scene.cluster.wait(1)
    run, ports, guard = scene.begin()
    scene.loaded_topics = True
    found = revert.revert_topic(run, ports, guard, TOPIC, scene.due, policy="")
    assert {one.outcome for one in found} == {Outcome.REVERTED}
    scene.cluster.wait(2)
    scene.scan()
    assert {d.outcome for d in scene.delete(run_id="ends")} == {Outcome.KEPT}
    assert (scene.left, scene.waiting) == (scene.due, 0)
