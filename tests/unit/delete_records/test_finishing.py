"""One command that ends with the answer, where one partition can have none yet: the others go on."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.delete_records.apply_run import Patience
from pulsar_lifecycle.delete_records.leftovers import closing_open
from pulsar_lifecycle.delete_records.partition_effects import PartitionDeletion
from pulsar_lifecycle.delete_records.request import END, DeleteRecordsResult, Lacks, Options
from pulsar_lifecycle.errors import AccessDenied, StoreError
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome, Phase
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from tests.kit.fakes.bookie_admin import status
from tests.kit.fakes.broker_admin import FakeSubscription
from tests.kit.records.records_scene import BOOKIE, ENTRIES, RecordsScene
from tests.kit.scenes.overtaken_load import just_before_the_write, left_open
from tests.kit.simulated.cluster import data_tags


def test_a_ledger_that_nothing_deletes_keeps_no_other_partition_from_its_answer() -> None:
    scene = RecordsScene(2)
    stuck, other = scene.topics
    scene.cluster.topic(stuck, scene.ids[stuck][1:], entries=ENTRIES)  # a broker lost the deletion of the first
    scene.cluster.wait(1)
    scene.bookies.statuses = {BOOKIE: status(BOOKIE)}
    waits = 0

    def collects(*_: object) -> None:
        def collected_later(_: float) -> None:
            nonlocal waits
            waits += 1
            if waits == 20:
                for i in [*scene.ids[stuck][1:2], *scene.ids[other][:2]]:
                    del scene.cluster.reader.payloads[i]

        scene.cluster.clock.on_sleep = collected_later

    scene.bookies.on_collect = collects
    scene.plan(scene.at(2, 0), scene.at(2, 0, other))
    began = scene.cluster.clock.now_ms()
    first, second = scene.apply(Patience(answers=7200, bookies=True, finish=True, collect=True))
    assert first.code == Lacks.MESSAGE
    assert second == DeleteRecordsResult(scene.at(2, 0, other))
    assert scene.bookies.collections == [(BOOKIE, False)]
    assert scene.cluster.clock.now_ms() - began < 3_600_000


@pytest.mark.parametrize("late", [False, True])
def test_a_rerun_finishes_what_a_broker_loads_as_it_is_written(late: bool) -> None:
    """Its ledger is on no list and stays open; ``late``: it was made after our write, and may be listed yet."""
    scene, left = RecordsScene(), list[int]()
    first, second, *_ = scene.ids[scene.topic]
    scene.plan(scene.at(2, 0))
    with just_before_the_write(scene.cluster, scene.topic, lambda: late or left.append(load(scene))):
        (result,) = scene.apply()
    assert result.code == Lacks.DELETION
    left += [load(scene)] if late else []
    (result,) = scene.apply(Patience(answers=7200, finish=True))
    assert [i for i in (first, second) if scene.cluster.exists(i)] == ([first, second] if late else [])
    if late:
        assert (result.code, f"ledger {left[0]} is on no list and open" in result.reason) == (Lacks.REDRIVE, True)
    else:
        assert result == DeleteRecordsResult(scene.at(2, 0))
        assert closing_open(scene.where, [str(scene.topic)]) == {}  # no broker can list it, so it need not be closed
        assert scene.plan(scene.at(3, 0))[0]["error"] is None  # the next request is not refused for it
    assert scene.cluster.exists(left[0])


def load(scene: RecordsScene) -> int:
    return left_open(scene.cluster, scene.topic)


def with_a_broker_that_does_not_answer() -> RecordsScene:
    """Each of two brokers has one of two topics, and the second does not answer once the plan is made."""
    scene = RecordsScene(2)
    scene.cluster.admin.broker_ids = ["broker-1:8080", "broker-2:8080"]
    for topic, broker in zip(scene.topics, scene.cluster.admin.broker_ids, strict=True):
        scene.owned_by(broker, topic)
    return scene


def test_nothing_scans_while_a_broker_does_not_answer() -> None:
    """Such a scan would not be covered, so that no deletion run would take anything."""
    scene = with_a_broker_that_does_not_answer()
    scene.plan(*(scene.at(2, 0, topic) for topic in scene.topics))
    scene.cluster.admin.unreachable = {"broker-2:8080"}
    before = len(scene.where.lake.epochs())
    first, _ = scene.apply(Patience(answers=1200, finish=True))
    assert sum("tried again" in text for text in scene.said) > 5
    assert len(scene.where.lake.epochs()) == before
    assert (first.error, first.code) == (RecordsError.TIMEOUT, Lacks.DELETION)
    assert "until broker broker-2:8080 answers" in first.reason


def test_nothing_scans_while_brokers_deny_what_they_have_loaded() -> None:
    """As to a token that has expired since the apply began."""
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    before = len(scene.where.lake.epochs())

    def said(text: str) -> None:
        if "to be deleted" in text:
            scene.cluster.admin.superuser = False

    (found,) = scene.apply(Patience(answers=1200, finish=True), heard=said)
    assert len(scene.where.lake.epochs()) == before
    assert (found.error, found.code) == (RecordsError.TIMEOUT, Lacks.DELETION)
    assert "no deletion run goes until brokers answer" in found.reason


def test_a_deletion_run_goes_soon_after_the_last_broker_answers() -> None:
    scene = with_a_broker_that_does_not_answer()
    scene.plan(*(scene.at(2, 0, topic) for topic in scene.topics))
    scene.cluster.admin.unreachable = {"broker-2:8080"}
    began = scene.cluster.clock.now_ms()

    def said(text: str) -> None:
        if scene.cluster.clock.now_ms() - began > 900_000:
            scene.cluster.admin.unreachable = set()

    first, _ = scene.apply(Patience(answers=7200, finish=True), heard=said)
    assert first == DeleteRecordsResult(scene.at(2, 0, scene.topics[0]))
    assert scene.cluster.clock.now_ms() - began < 1_800_000


def test_a_pause_ends_the_trying() -> None:
    scene = with_a_broker_that_does_not_answer()
    scene.plan(*(scene.at(2, 0, topic) for topic in scene.topics))
    scene.cluster.admin.unreachable = {"broker-2:8080"}

    def said(text: str) -> None:
        if "tried again, the first" in text:
            scene.cluster.admin.unreachable = set()
            control.pause(scene.cluster.open_store(), "hands off")
        if "not tried again" in text:
            control.resume(scene.cluster.open_store())

    _, second = scene.apply(Patience(answers=1200, finish=True), heard=said)
    assert second.error is RecordsError.TIMEOUT
    assert sum("tried again, the first" in text for text in scene.said) == 1


def test_what_is_tried_again_takes_unloads_of_the_same_budget() -> None:
    scene = with_a_broker_that_does_not_answer()
    scene.max_unloads = 2
    admin, unloads = scene.cluster.admin, 0
    admin.topics = {topic: {} for topic in scene.topics}

    def unload(topic: Topic) -> None:
        nonlocal unloads
        unloads += 1
        if len(scene.ids[topic]) == 5:  # it was not rolled yet
            scene.rolled(topic)

    def said(text: str) -> None:
        if "tried again" in text:
            admin.unreachable = set()

    admin.on_unload = unload
    scene.plan(END, END)
    admin.unreachable = {"broker-2:8080"}
    first, second = scene.apply(Patience(answers=1200, finish=True), heard=said)
    assert (first.error, second.error, unloads) == (None, RecordsError.UNLOADS_USED_UP, 2)


@pytest.mark.parametrize(("slow", "loaded"), [("move", True), ("unload", True), ("move", False), ("unload", False)])
def test_a_time_out_that_is_over_amid_a_partition_ends_with_the_step_under_way(slow: str, loaded: bool) -> None:
    """What is begun is whole and journalled, and no other partition is begun.

    A topic that this run had loaded is finished: for some minutes nobody may write it as unloaded.
    """
    scene = RecordsScene(2)
    first, other = scene.topics
    admin, clock, done = scene.cluster.admin, scene.cluster.clock, list[str]()
    admin.topics = {first: {"s": FakeSubscription()}, other: {}}
    scene.writes_loaded = True
    if loaded:
        for topic in scene.topics:  # of one broker: its partitions go one after the other
            scene.cluster.load(topic)
        admin.on_load = scene.rolled
    scene.cursor("s", 0, 3)

    def takes(step: str) -> None:
        done.append(step)
        if step == slow and done.count(step) == 1:
            clock.advance(31)

    def moved(topic: Topic, name: str, past: Position) -> None:
        scene.cursor(name, scene.ids[topic].index(past.ledger_id), past.entry_id)
        takes("move")

    def unload(topic: Topic) -> None:
        if not loaded:
            scene.rolled(topic)
        takes("unload")

    admin.on_move, admin.on_unload = moved, unload
    rows = scene.plan(END, scene.at(2, 0, other), options=Options(move_cursors=True))
    assert [row["error"] for row in rows] == [None, None]
    ids = scene.ids[first][:5]
    begun, second = scene.apply(Patience(per_broker=30))
    assert (second.error, second.code) == (RecordsError.TIMEOUT, RecordsError.TIMEOUT)
    assert "before this partition's turn" in second.reason
    assert scene.listed(other) == scene.ids[other]
    assert begun.code == (RecordsError.TIMEOUT if loaded else Lacks.DELETION)
    assert ("before all was done with this partition" in begun.reason) == loaded
    assert (scene.listed(first)[:5] == ids) == loaded
    if loaded:
        steps = [(row.phase, row.outcome) for row in scene.cluster.journal.rows]
        moves = [(Phase.MOVE_CURSOR, Outcome.BEGUN), (Phase.MOVE_CURSOR, Outcome.DONE)]
        rolls = [(Phase.ROLL, Outcome.BEGUN), (Phase.ROLL, Outcome.DONE)]
        assert steps == [*moves, *(rolls if slow == "unload" else []), (Phase.RAISE, Outcome.LEFT)]
    assert not list(control.pending_unloads(scene.cluster.open_store()))
    scene.apply()
    scene.delete()
    assert [(one.error, one.reason) for one in scene.apply()] == [(None, "")] * 2


def test_a_topic_that_may_not_be_unloaded_is_named_and_keeps_the_next_one_from_being_written() -> None:
    scene = RecordsScene(2)
    first, other = scene.topics
    scene.writes_loaded, admin = True, scene.cluster.admin
    for topic in scene.topics:
        scene.load(topic)

    def forbidden(topic: Topic) -> None:
        raise AccessDenied(f"403: {topic}")

    admin.on_unload = forbidden
    scene.plan(scene.at(2, 0))
    (result,) = scene.apply()
    assert scene.listed(first) == scene.ids[first][2:]
    assert (result.error, result.code) == (RecordsError.TIMEOUT, Lacks.DELETION)
    assert "an unload of it is pending" in result.reason
    planned = scene.summary
    scene.delete()
    (result,) = scene.apply(dry_run=True)
    assert (result.error, result.code) == (RecordsError.BROKER_FAILED, Code.UNLOAD_PENDING)

    scene.topics.reverse()
    scene.plan(scene.at(2, 0, other))
    (result,) = scene.apply()
    assert (result.error, result.code) == (RecordsError.TIMEOUT, Code.NOT_UNLOADED)
    assert "it cannot be unloaded: 403" in result.reason
    assert scene.listed(other) == scene.ids[other]
    assert [one.topic for one in control.pending_unloads(scene.cluster.open_store())] == [first]

    admin.on_unload = lambda topic: None
    scene.apply()
    scene.delete()
    assert [one.error for one in scene.apply()] == [None]
    scene.summary = planned
    assert [one.error for one in scene.apply()] == [None]


@pytest.mark.parametrize("finish", [False, True])
def test_what_its_broker_began_to_delete_since_the_scan_of_the_plan_is_found_by_the_next_one(finish: bool) -> None:
    """A broker that has tried a few times forgets it; what the topic lists, above and below, is no such ledger."""
    scene = RecordsScene()
    lost = scene.cluster.ledger(data_tags(scene.topic))
    scene.ids[scene.topic].append(scene._ledger(scene.topic))
    scene.cluster.topic(scene.topic, scene.ids[scene.topic], entries=ENTRIES)
    scene.cluster.wait(1)
    (row,) = scene.plan(scene.at(5, 3))
    assert (row["error"], row["leftovers"]) == (None, [])
    patience = Patience(answers=7200, finish=True) if finish else Patience()
    (result,) = scene.apply(patience)
    if not finish:
        scene.delete()
        (result,) = scene.apply()
    assert (result.error, result.code) == (RecordsError.TIMEOUT, Lacks.MESSAGE)
    assert [one.ledger_id for one in result.remaining] == [lost]
    scene.cluster.remove(scene.cluster.path(lost))
    assert scene.apply() == [DeleteRecordsResult(scene.at(5, 3), first_readable=scene.at(5, 0))]


@pytest.mark.parametrize("loaded", [True, False])
def test_a_partition_whose_looks_take_longer_than_the_time_out_is_done_step_by_step(
    monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    scene, look = RecordsScene(1), PartitionDeletion._look
    (topic,) = scene.topics
    admin, clock = scene.cluster.admin, scene.cluster.clock
    admin.topics, scene.writes_loaded, admin.on_unload = {topic: {}}, True, scene.rolled
    if loaded:
        scene.cluster.load(topic)

    def slow(self: PartitionDeletion) -> object:
        clock.advance(31)
        return look(self)

    scene.plan(END if loaded else scene.at(2, 0, topic))
    monkeypatch.setattr(PartitionDeletion, "_look", slow)
    for _ in range(4):
        scene.apply(Patience(per_broker=30))
    scene.delete()
    assert scene.apply(Patience(per_broker=30))[0].error is None


def test_a_partition_that_needs_an_unload_before_its_write_too_is_not_begun_with_one_left() -> None:
    scene = RecordsScene(2)
    first, other = scene.topics
    scene.writes_loaded, scene.max_unloads, unloaded = True, 2, list[Topic]()
    for topic in scene.topics:
        scene.load(topic)

    def unload(topic: Topic) -> None:
        unloaded.append(topic)
        raise StoreError(f"500: {topic}")

    scene.cluster.admin.on_unload = unload
    scene.plan(scene.at(2, 0), scene.at(2, 0, other))
    written, left = scene.apply()
    assert (written.code, scene.listed(first)) == (Lacks.DELETION, scene.ids[first][2:])
    assert (left.error, scene.listed(other)) == (RecordsError.UNLOADS_USED_UP, scene.ids[other])
    assert set(unloaded) == {first}
