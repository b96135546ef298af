"""Applying a plan to delete records: brokers that fail, forbid or do not answer, and topics that are created again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.delete_records.apply_run import Patience, apply_delete_records
from pulsar_lifecycle.delete_records.request import END, DeleteRecordsResult, Lacks, Options, Timestamp
from pulsar_lifecycle.errors import AccessDenied, OutcomeUnknown
from pulsar_lifecycle.formats import ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.tiered.upload import Source, Target, copy_ledger
from pulsar_lifecycle.topics import low_watermark
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome, Phase
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.fakes.broker_admin import FakeSubscription
from tests.kit.records.records_scene import ENTRIES, HOUR, RecordsScene
from tests.kit.records.topic_times import BUCKET, part
from tests.kit.refused import refused_by


def test_a_request_that_its_broker_forbids_is_that_partitions_error() -> None:
    def denied(topic: Topic) -> None:
        raise AccessDenied(f"{topic}: 403")

    scene = RecordsScene(2)
    scene.cluster.admin.topics = {topic: {} for topic in scene.topics}
    scene.cluster.admin.on_unload = denied
    scene.plan(END, scene.at(0, 4, scene.topics[1]))
    first, second = scene.apply()
    assert (first.error, second.error) == (RecordsError.NOT_AUTHORIZED, None)
    assert scene.listed() == scene.ids[scene.topic]


def test_a_plan_is_not_applied_by_settings_that_call_its_cluster_otherwise() -> None:
    """The journal would file what goes by a name under which nobody who answers for the plan looks."""
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    renamed = replace(scene.where, settings=scene.where.settings.model_copy(update={"cluster": "renamed"}))
    order = Order(scene.summary.plan_id, scene.summary.digest)
    with refused_by(RefusalCode.OTHER_CLUSTER):
        apply_delete_records(renamed, "records-run", order, dry_run=False)
    assert scene.listed() == scene.ids[scene.topic]


def test_partitions_whose_broker_fails_at_unloads_have_timed_out() -> None:
    """It may have ended amid the apply. They are loaded, but their way out is none of those of loaded topics."""

    def refused(topic: Topic) -> None:
        raise OutcomeUnknown(f"{topic}: connection refused")

    scene = RecordsScene(8)
    scene.writes_loaded = True
    for topic in scene.topics:
        scene.load(topic)
    scene.cluster.admin.on_unload = refused
    scene.plan(*(scene.at(2, 0, topic) for topic in scene.topics))
    found = scene.apply()
    stayed = [one for topic, one in zip(scene.topics, found, strict=True) if scene.listed(topic) == scene.ids[topic]]
    assert {(one.error, one.code) for one in stayed} == {(RecordsError.TIMEOUT, Code.NOT_UNLOADED)}


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("fails", ["on_unload", "on_properties", "on_move"])
def test_a_request_that_its_broker_fails_at_is_tried_again_by_the_next_run(fails: str, done: bool) -> None:
    """Whether it did what it was asked before it failed; the other partition goes on."""
    scene = RecordsScene(2)
    scene.writes_loaded = fails != "on_properties"
    first, other = scene.topics
    admin = scene.cluster.admin
    admin.topics = {first: {"s": FakeSubscription()}}
    if fails == "on_properties":
        scene.load()
    else:
        scene.cursor("s", 0, 3)
    answers_500 = True

    def did(effect: Callable[..., Any]) -> Callable[..., None]:
        def asked(*arguments: Any) -> None:
            if done or not answers_500:
                effect(*arguments)
            if answers_500:
                raise OutcomeUnknown("500: Internal Server Error")

        return asked

    def kept(topic: Topic, properties: Mapping[str, str]) -> None:
        path = scene.cluster.topic_path(topic)
        info = managed_ledger.decode(scene.cluster.zookeeper.data(path))
        scene.cluster.put(path, managed_ledger.encode(replace(info, properties={**info.properties, **properties})))

    def moved(topic: Topic, name: str, past: Position) -> None:
        scene.cursor(name, scene.ids[topic].index(past.ledger_id), past.entry_id)

    admin.on_unload, admin.on_properties, admin.on_move = scene.rolled, kept, moved
    setattr(admin, fails, did(getattr(admin, fails)))
    at = scene.at(0, 4) if fails == "on_properties" else END
    (row, _) = scene.plan(at, scene.at(2, 0, other), options=Options(move_cursors=True))
    assert row["error"] is None, row
    found = scene.apply()
    assert (found[0].error, found[0].code) == (RecordsError.TIMEOUT, Code.SERVER_FAILED), found
    assert (found[1].error, found[1].code) == (RecordsError.TIMEOUT, Lacks.DELETION)
    answers_500 = False
    scene.apply()
    scene.delete()
    assert [one.error for one in scene.apply()] == [None, None]


def test_a_topic_that_others_have_loaded_is_not_written_because_a_cursor_of_it_was_moved() -> None:
    """No broker lists it yet: it counts as loaded by its last write, and the settings do not let it be written then."""
    scene = RecordsScene()
    admin = scene.cluster.admin
    admin.topics = {scene.topic: {"s": FakeSubscription()}}
    scene.cursor("s", 0, 1)
    path = scene.cluster.topic_path(scene.topic)
    scene.cluster.put(path, scene.cluster.zookeeper.data(path))
    moved: list[Position] = []

    def moves(topic: Topic, name: str, past: Position) -> None:
        moved.append(past)
        scene.cursor(name, 0, past.entry_id)
        admin.loaded.clear()  # a list lags

    admin.on_move = moves
    (row,) = scene.plan(scene.at(0, 4), options=Options(move_cursors=True))
    assert row["error"] is None
    (result,) = scene.apply()
    assert (result.error, len(moved)) == (RecordsError.LOADED, 1), result
    assert scene.properties() == {}
    raised = [row.outcome for row in scene.cluster.journal.rows if row.phase == Phase.RAISE]
    assert raised == [Outcome.LEFT], "begun, one of another installation would count as ours"


def test_a_topic_that_was_deleted_after_the_plan_is_unknown() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    scene.cluster.remove(scene.cluster.topic_path(scene.topic))
    for dry_run in (False, True):
        (result,) = scene.apply(dry_run=dry_run)
        assert result.error is RecordsError.UNKNOWN_PARTITION


@pytest.mark.parametrize("asked", [(2, 3), (0, 0), END])
def test_a_topic_that_was_deleted_and_created_again_after_the_plan_is_another_one(asked: Any) -> None:
    scene = RecordsScene()
    scene.writes_loaded = True
    scene.plan(scene.at(*asked) if isinstance(asked, tuple) else asked)
    own = scene.created_again()
    for dry_run in (False, True):
        (result,) = scene.apply(dry_run=dry_run)
        assert (result.error, result.low_watermark) == (RecordsError.REPLACED, -1)
    assert (scene.listed(), scene.properties()) == (own, {})
    assert not scene.cluster.admin.touched


def test_a_topic_without_ledgers_that_was_created_again_is_another_one() -> None:
    scene = RecordsScene()
    scene.cluster.topic(scene.topic)
    scene.plan(END)
    scene.created_again()
    (result,) = scene.apply()
    assert result.error is RecordsError.REPLACED


def test_a_topic_that_is_created_again_while_its_answer_is_waited_for_is_another_one() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(2, 0))
    scene.apply()

    def deleted_meanwhile(seconds: float) -> None:
        scene.cluster.clock.on_sleep = lambda seconds: None
        for i in ids[:2]:
            scene.cluster.remove(scene.cluster.path(i))
        scene.created_again()

    scene.cluster.clock.on_sleep = deleted_meanwhile
    (result,) = scene.apply(Patience(answers=60), dry_run=True)
    assert result.error is RecordsError.REPLACED


def test_a_topic_that_is_created_again_while_it_is_written_gets_no_low_watermark() -> None:
    scene = RecordsScene()
    scene.load()
    scene.cluster.admin.topics[scene.topic] = {}
    scene.cluster.admin.on_properties = lambda *_: scene.created_again()
    scene.plan(scene.at(0, 4))
    (result,) = scene.apply()
    assert (result.error, scene.properties()) == (RecordsError.REPLACED, {})


def test_a_broker_that_does_not_answer_fails_its_own_partitions_alone() -> None:
    scene = RecordsScene(3)
    scene.cluster.admin.broker_ids = ["broker-1:8080", "broker-2:8080"]
    for topic, broker in zip(scene.topics, ["broker-1:8080", "broker-1:8080", "broker-2:8080"], strict=True):
        scene.owned_by(broker, topic)
    scene.plan(*(scene.at(2, 0, topic) for topic in scene.topics))
    scene.cluster.admin.unreachable = {"broker-2:8080"}
    assert [r.error for r in scene.apply()] == [RecordsError.TIMEOUT] * 3
    assert [scene.listed(topic) == scene.ids[topic] for topic in scene.topics] == [False, False, True]
    scene.cluster.admin.unreachable = set()
    scene.delete()
    scene.cluster.admin.unreachable = {"broker-2:8080"}
    first, second, third = scene.apply()
    assert (first.error, second.error, third.error) == (None, None, RecordsError.TIMEOUT)
    assert third.low_watermark == -1
    assert "broker-2:8080" in third.reason
    scene.cluster.admin.unreachable = set()
    scene.apply()
    scene.delete()
    assert [r.error for r in scene.apply()] == [None] * 3


@pytest.mark.parametrize("comes_back", [True, False])
def test_one_command_tries_again_what_timed_out(comes_back: bool) -> None:
    """For half of the wait at most; another broker has the partitions of a dead one by the second try."""
    scene = RecordsScene(2)
    admin = scene.cluster.admin
    admin.broker_ids = ["broker-1:8080", "broker-2:8080"]
    for topic, broker in zip(scene.topics, admin.broker_ids, strict=True):
        scene.owned_by(broker, topic)
    scene.plan(*(scene.at(2, 0, topic) for topic in scene.topics))
    admin.unreachable = {"broker-2:8080"}
    tries = list[str]()

    def said(text: str) -> None:
        if "tried again" in text:
            tries.append(text)
            if comes_back and len(tries) == 2:
                admin.unreachable = set()

    began = scene.cluster.clock.now_ms()
    results = scene.apply(Patience(answers=1200, finish=True), heard=said)
    if comes_back:
        assert results == [DeleteRecordsResult(scene.at(2, 0, topic)) for topic in scene.topics]
    else:  # nobody deletes while a broker does not answer
        assert [one.code for one in results] == [Lacks.DELETION, RecordsError.TIMEOUT]
        assert scene.cluster.clock.now_ms() - began >= 1_200_000
        assert 5 < len(tries) <= 10


def test_a_partition_whose_broker_did_not_answer_at_the_plan_takes_another_plan() -> None:
    scene = RecordsScene()
    scene.cluster.admin.broker_ids = ["broker-1:8080", "broker-2:8080"]
    scene.owned_by("broker-2:8080")
    scene.cluster.admin.unreachable = {"broker-2:8080"}
    scene.plan(scene.at(2, 0))
    scene.cluster.admin.unreachable = set()
    (result,) = scene.apply()
    assert (result.error, result.code) == (RecordsError.TIMEOUT, RecordsError.TIMEOUT)
    assert "found by the plan, which leaves it out: once that has changed, plan again" in result.reason
    scene.plan(scene.at(2, 0))
    assert scene.apply()[0].code == Lacks.DELETION


def test_a_request_to_keep_a_low_watermark_that_is_stuck_and_comes_late_moves_nothing_back() -> None:
    """REST compares nothing with what is there: it comes after the next run has been answered."""
    scene = RecordsScene()
    path = scene.cluster.topic_path(scene.topic)
    stuck: list[Mapping[str, str]] = []

    def keep(properties: Mapping[str, str]) -> None:
        info = managed_ledger.decode(scene.cluster.zookeeper.data(path))
        scene.cluster.put(path, managed_ledger.encode(replace(info, properties={**info.properties, **properties})))

    def is_stuck(topic: Topic, properties: Mapping[str, str]) -> None:
        stuck.append(properties)
        raise OutcomeUnknown(f"{topic}: timed out")

    scene.load()
    admin = scene.cluster.admin
    admin.on_properties = is_stuck
    scene.plan(scene.at(0, 4))
    assert scene.apply()[0].error is RecordsError.TIMEOUT
    admin.on_properties = lambda topic, properties: keep(properties)
    scene.plan(scene.at(0, 7))
    assert scene.apply() == [DeleteRecordsResult(scene.at(0, 7))]
    keep(stuck[0])
    assert low_watermark.of(scene.properties()) == scene.at(0, 7)
    assert scene.apply() == [DeleteRecordsResult(scene.at(0, 7))]
    (row,) = scene.plan(scene.at(0, 2))
    assert row["low_watermark"] == row["old_low_watermark"] == str(scene.at(0, 7))
    assert scene.apply() == [DeleteRecordsResult(scene.at(0, 7))]
    admin.loaded.clear()
    scene.cluster.wait(1)
    scene.writes_loaded = True
    scene.plan(scene.at(1, 0))
    scene.apply()
    assert low_watermark.of(scene.properties()) == scene.at(1, 0)
    keep(stuck[0])
    assert low_watermark.of(scene.properties()) == scene.at(1, 0)


@pytest.mark.parametrize(("most", "rolled"), [(0, 0), (1, 0), (3, 1), (4, 2), (11, 5), (12, 6)])
def test_every_unload_counts_and_what_needs_more_than_are_left_is_not_begun(most: int, rolled: int) -> None:
    """Two for each partition: one closes its current ledger, one follows the write of its list."""
    scene = RecordsScene(6)
    scene.max_unloads = most
    admin, unloads = scene.cluster.admin, list[Topic]()
    admin.topics = {topic: {} for topic in scene.topics}

    def unload(topic: Topic) -> None:
        unloads.append(topic)
        if unloads.count(topic) == 1:
            scene.rolled(topic)

    admin.on_unload = unload
    scene.plan(END, END, END, END, END, END)
    found = scene.apply()
    assert sum(one.error is RecordsError.UNLOADS_USED_UP for one in found) == 6 - rolled, found
    assert (len(unloads), len(set(unloads))) == (2 * rolled, rolled)
    assert sum(scene.listed(topic) == scene.ids[topic] for topic in scene.topics) == 6 - rolled
    scene.max_unloads = 500
    scene.apply()
    scene.delete()
    assert [one.error for one in scene.apply()] == [None] * 6


def test_unloads_that_were_pending_count_too() -> None:
    scene = RecordsScene(2)
    first, second = scene.topics
    scene.max_unloads = 2
    admin = scene.cluster.admin
    admin.topics = {first: {}, second: {}}
    admin.on_unload = scene.rolled
    scene.plan(END)
    scene.cluster.load(second)
    control.note_unload(scene.cluster.zookeeper.session(), control.PendingUnload(second, True, 0, control.LEASE))
    (result,) = scene.apply()
    assert result.error is RecordsError.UNLOADS_USED_UP
    assert scene.listed() == scene.ids[first]


@pytest.mark.parametrize(("most", "error"), [(0, RecordsError.UNLOADS_USED_UP), (1, RecordsError.TIMEOUT)])
def test_a_loaded_topic_is_written_only_if_an_unload_is_left_for_it(most: int, error: RecordsError) -> None:
    scene = RecordsScene()
    scene.writes_loaded, scene.max_unloads = True, most
    ids = list(scene.ids[scene.topic])
    scene.cluster.admin.topics = {scene.topic: {}}
    scene.load()
    scene.plan(scene.at(1, 0))
    (result,) = scene.apply()
    assert result.error is error
    assert (ids[0] in scene.listed()) == (most == 0)


def test_the_end_of_the_plan_is_no_position_once_the_rest_of_a_chunked_message_came() -> None:
    scene = RecordsScene()
    last = scene.ids[scene.topic][-1]
    scene.cluster.reader.payloads[last][-1] = part(HOUR, 0, 2)
    scene.cluster.admin.topics[scene.topic] = {}
    scene.cluster.admin.on_unload = lambda topic: scene.rolled(topic)
    (row,) = scene.plan(END)
    assert (row["error"], row["rolls"]) == (None, True)
    scene.publish(scene.topic, 1)
    scene.cluster.reader.payloads[last][-1] = part(HOUR, 1, 2)
    scene.cluster.wait(1)
    before = scene.listed()
    (result,) = scene.apply()
    assert (result.low_watermark, result.error) == (-1, RecordsError.NO_SUCH_POSITION)
    assert (scene.listed(), dict(scene.properties())) == (before, {})


@pytest.mark.parametrize(
    ("begun", "uuid", "gone_on"),
    [("u", "u", True), ("u", "another", False), (None, None, True), (None, "", True), (None, "another", False)],
)
def test_a_position_below_the_end_is_none_once_the_rest_of_a_chunked_message_came(
    begun: str | None, uuid: str | None, gone_on: bool
) -> None:
    """A producer may give no UUID."""
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.cluster.reader.payloads[ids[-1]][-2] = part(HOUR, 0, 2, begun)  # and another producer's message follows
    (row,) = scene.plan(scene.at(4, ENTRIES - 1))
    assert row["error"] is None
    scene.publish(scene.topic, 2)
    scene.cluster.reader.payloads[ids[-1]][-1] = part(HOUR, 1, 2, uuid)
    scene.cluster.wait(1)
    (result,) = scene.apply()
    assert result.error is (RecordsError.NO_SUCH_POSITION if gone_on else RecordsError.TIMEOUT)
    assert scene.listed() == (ids if gone_on else ids[-1:])


@pytest.mark.parametrize("below", [4, 0])
def test_what_was_on_its_way_is_known_behind_another_producer_where_all_was_read(below: int) -> None:
    """By a time, some entries below the end or at it."""
    scene = RecordsScene()
    ids, newest = scene.ids[scene.topic], HOUR + scene.published
    scene.cluster.reader.payloads[ids[-1]][3] = part(newest - ENTRIES + 3, 0, 2)
    (row,) = scene.plan(Timestamp(newest - below))
    assert (row["error"], row["low_watermark"]) == (None, f"{ids[-1]}:{ENTRIES - below}")
    assert row["unfinished"] == ["u"]
    scene.publish(scene.topic, 2)
    scene.cluster.reader.payloads[ids[-1]][-1] = part(2 * HOUR, 1, 2)
    scene.cluster.wait(1)
    (result,) = scene.apply()
    assert (result.error, scene.listed()) == (RecordsError.NO_SUCH_POSITION, ids)


@pytest.mark.parametrize("lost", [False, True])
def test_the_last_entry_below_the_end_may_be_in_a_bucket_alone(lost: bool) -> None:
    """A message that came since the plan has an apply look at it."""
    scene = RecordsScene()
    objects, ids = scene.with_bucket(), scene.ids[scene.topic]
    path = scene.cluster.topic_path(scene.topic)
    (node,) = scene.cluster.open_store().read([ledger_path(ids[-1])])
    at = Location(BUCKET, UUID(int=7), ids[-1])
    copy_ledger(scene.cluster.reader, objects, Source(ledger_metadata.decode(node.data), 7), Target(at, "c", "m", 800))
    scene.cluster.zookeeper.delete(ledger_path(ids[-1]), -1)
    copy = OffloadContext(at.uuid, True, True, 1, "aws-s3", {"bucket": BUCKET})
    scene.rolled(scene.topic)
    info = managed_ledger.decode(scene.cluster.zookeeper.data(path))
    ledgers = [replace(one, offload=copy) if one.ledger_id == ids[4] else one for one in info.ledgers]
    scene.cluster.put(path, managed_ledger.encode(replace(info, ledgers=tuple(ledgers))))
    scene.cluster.wait(1)
    (row,) = scene.plan(END)
    assert (row["error"], row["ledgers"]) == (None, ids[:5])
    scene.publish(scene.topic, 1)
    info = managed_ledger.decode(scene.cluster.zookeeper.data(path))
    ledgers = [replace(one, offload=copy) if one.ledger_id == ids[4] else one for one in info.ledgers]
    scene.cluster.put(path, managed_ledger.encode(replace(info, ledgers=tuple(ledgers))))
    scene.cluster.wait(1)
    if lost:
        objects.delete_many(BUCKET, [at.data_key])
    (result,) = scene.apply()
    assert result.error is (RecordsError.UNREAD if lost else RecordsError.TIMEOUT), result
    assert scene.listed() == (ids if lost else ids[5:])
