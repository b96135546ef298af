"""When a partition is answered: what is waited for, and which servers are asked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.delete_records.apply_run import Patience
from pulsar_lifecycle.delete_records.request import (
    END,
    Absence,
    DeleteRecordsResult,
    Lacks,
    Offset,
    Presence,
    Timestamp,
)
from pulsar_lifecycle.deletion.undo.undo_run import UndoRequest, undo_deletions
from pulsar_lifecycle.formats import ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.model import MessagePosition, Position, Topic
from pulsar_lifecycle.ports import Archived
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Outcome, Phase
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from tests.kit.builders import ROW
from tests.kit.records.records_scene import BOOKIE, RecordsScene
from tests.kit.records.topic_times import BUCKET, compacted_entry
from tests.kit.simulated import pipeline
from tests.kit.simulated.cluster import compacted_tags, data_tags


@pytest.mark.parametrize("offloaded", [False, True])
def test_a_ledger_that_is_cut_and_that_its_broker_trims_must_be_gone_too(offloaded: bool) -> None:
    scene = RecordsScene()
    ids, objects = scene.ids[scene.topic], scene.with_bucket()
    path = scene.cluster.topic_path(scene.topic)
    data = f"{UUID(int=7)}-ledger-{ids[2]}"
    if offloaded:
        _offloaded(scene, 2)
        objects.put(BUCKET, data, b"", {})
    scene.plan(scene.at(2, 3))
    scene.apply()
    scene.delete()
    info = managed_ledger.decode(scene.cluster.zookeeper.data(path))
    scene.cluster.put(path, managed_ledger.encode(replace(info, ledgers=info.ledgers[1:])))
    (result,) = scene.apply()
    assert result.error is RecordsError.TIMEOUT
    assert [(one.ledger_id, one.presence) for one in result.remaining] == [(ids[2], Presence.Z_NODE)]
    scene.cluster.zookeeper.delete(ledger_path(ids[2]), -1)
    if offloaded:
        (result,) = scene.apply()
        assert result.remaining == (Absence(ids[2], Presence.OBJECT, (f"s3://{BUCKET}/{data}",)),)
        named, scene.object_store = scene.object_store, None
        (result,) = scene.apply(dry_run=True)
        assert [(one.ledger_id, one.presence) for one in result.remaining] == [(ids[2], Presence.OBJECT_UNREAD)]
        assert result.code == Presence.OBJECT_UNREAD
        assert "one of object_store.buckets in these settings" in result.reason
        scene.object_store = named
        objects.delete_many(BUCKET, [data])
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 3))]


@pytest.mark.parametrize(
    ("first", "error"),
    [
        ((1, 9), RecordsError.COMPACTED_VIEW),
        ((2, 0), None),
        (None, None),
        ("no entry of a view", RecordsError.UNREAD),
        ("lost", None),
        ("under way", RecordsError.TIMEOUT),
    ],
    ids=str,
)
def test_a_view_that_was_made_while_its_topic_was_deleted_has_what_went(first: Any, error: RecordsError | None) -> None:
    scene = RecordsScene()
    ids, cluster = scene.ids[scene.topic], scene.cluster
    scene.plan(scene.at(2, 3))
    scene.apply()
    scene.delete()
    entries = [compacted_entry(Position(ids[first[0]], first[1]))] if isinstance(first, tuple) else []
    entries = [first.encode()] if isinstance(first, str) else entries
    view = cluster.ledger(compacted_tags(scene.topic), entries=entries)
    if first == "lost":
        cluster.remove(cluster.path(view))
    if first == "under way":
        cluster.cursor(scene.topic, "__compaction", at=ids[2])
    else:
        cluster.cursor(scene.topic, "__compaction", at=ids[-1], compacted=view)
    (result,) = scene.apply(dry_run=True)
    assert (result.error, result.low_watermark) == (error, -1 if error else scene.at(2, 3))


def _offloaded(scene: RecordsScene, ledger: int) -> None:
    """The ledger at an index has an offloaded copy."""
    path = scene.cluster.topic_path(scene.topic)
    info = managed_ledger.decode(scene.cluster.zookeeper.data(path))
    copy = OffloadContext(UUID(int=7), True, False, 1, "aws-s3", {"bucket": BUCKET})
    ledgers = (*info.ledgers[:ledger], replace(info.ledgers[ledger], offload=copy), *info.ledgers[ledger + 1 :])
    scene.cluster.put(path, managed_ledger.encode(replace(info, ledgers=ledgers)))
    scene.cluster.wait(1)


def test_asking_again_waits_for_what_left_the_list_before() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(2, 0))
    scene.apply()
    (row,) = scene.plan(scene.at(2, 0))
    assert (row["ledgers"], row["leftovers"], row["old_low_watermark"]) == ([], ids[:2], f"{ids[2]}:0")
    assert scene.apply()[0].error is RecordsError.TIMEOUT
    scene.delete()
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]
    (row,) = scene.plan(scene.at(2, 0))
    assert row["leftovers"] == []


def test_a_compacted_view_that_a_broker_left_behind_must_be_gone_too() -> None:
    scene = RecordsScene()
    view = scene.cluster.ledger(compacted_tags(scene.topic))
    scene.cluster.ledger(compacted_tags(Topic.parse("persistent://acme/orders/other")))
    scene.scan()
    (row,) = scene.plan(scene.at(2, 0))
    assert (row["error"], row["leftovers"]) == (None, [view])
    scene.apply()
    scene.delete()
    (result,) = scene.apply()
    assert (result.low_watermark, result.error) == (-1, RecordsError.TIMEOUT)
    assert (result.code, [one.ledger_id for one in result.remaining]) == (Lacks.MESSAGE, [view])
    scene.cluster.remove(scene.cluster.path(view))
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]


def test_messages_that_another_installation_took_are_not_waited_for() -> None:
    """It keeps what it did not mark, and its journal alone says so."""
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(2, 0))
    (result,) = scene.apply()
    assert result.code == Lacks.DELETION
    assert "are not proven gone, the first: " in result.reason
    assert result.reason.endswith("; run `delete_pending`, or wait for it, then ask again")
    scene.cluster.deletion_topics.waiting.clear()
    (result,) = scene.apply(dry_run=True)
    assert (result.error, result.code) == (RecordsError.TIMEOUT, Lacks.MESSAGE)
    assert f"no message of ours asks for 2 of them, the first: {ids[0]}: apply a plan of leaked" in result.reason
    scans = len(scene.scans)
    began = scene.cluster.clock.now_ms()
    (result,) = scene.apply(Patience(answers=7200, finish=True))
    assert (result.code, [one.ledger_id for one in result.remaining]) == (Lacks.MESSAGE, ids[:2])
    assert (scene.cluster.clock.now_ms() - began) < 7_200_000
    assert len(scene.scans) == scans


def test_an_answer_says_why_a_deletion_run_sent_the_messages_back() -> None:
    """As of a bookie that is gone for good, whose ledgers nobody can copy."""
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(2, 0))
    scene.apply()
    path = f"/ledgers/underreplication/ledgers/0000/0000/0000/{ids[1]:04x}/urL{ids[1]:010d}"
    scene.cluster.put(path, b"")
    scene.delete()
    (result,) = scene.apply(dry_run=True)
    assert result.code == Lacks.SENT_BACK
    assert "sent 1 of them back, ledger" in result.reason
    assert result.reason.endswith(f"{ids[1]}: under-replicated")
    scene.cluster.remove(path)
    scene.delete()
    assert scene.apply(dry_run=True) == [DeleteRecordsResult(scene.at(2, 0))]


@pytest.mark.parametrize("waiting", [0, 1])
def test_an_answer_says_why_messages_became_dead_letters(waiting: int) -> None:
    """A broker that loaded the topic as it was written lost a ledger that nobody closes; other messages may wait."""
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(1, 0))
    scene.apply()
    lost = scene.cluster.ledger(data_tags(scene.topic), state=LedgerState.OPEN, entries=())
    scene.delete()
    (result,) = scene.apply(dry_run=True)
    close = f"once a scan finds it {Finding.OPEN_ORPHAN}, `bookkeeper shell readledger -ledgerid {lost} -r` closes it"
    young = f"ledger {lost} is on no list and open: {close}"
    assert (result.code, young in result.reason) == (Lacks.SENT_BACK, True)
    for _ in range(11):
        scene.delete()
    for _ in range(waiting):
        scene.cluster.deletion_topics.publish(b"")
    (result,) = scene.apply(dry_run=True)
    assert (result.code, young in result.reason) == (Lacks.REDRIVE, True)
    assert f"became dead letters, ledger {ids[0]}: another unreferenced ledger of its topic is open" in result.reason
    assert scene.cluster.exists(lost)
    (given_up,) = [row for row in scene.cluster.journal.rows if row.outcome == Outcome.DEAD_LETTERED]
    again = replace(given_up, phase=Phase.REDRIVE, outcome=Outcome.SENT, at=scene.cluster.clock.now_ms())
    scene.cluster.journal.record([again])
    (result,) = scene.apply(dry_run=True)
    assert result.code == (Lacks.DELETION if waiting else Lacks.MESSAGE)  # no run has taken it since


def test_asking_again_waits_for_the_bookies_of_what_was_deleted_before() -> None:
    scene = RecordsScene()
    ids, asked = scene.ids[scene.topic], Patience(bookies=True)
    scene.plan(scene.at(2, 0))
    scene.apply()
    scene.delete()
    (row,) = scene.plan(scene.at(2, 0))
    assert (row["ledgers"], row["leftovers"]) == ([], [])
    (result,) = scene.apply(asked)
    assert result.error is RecordsError.TIMEOUT
    assert (result.remaining[0].ledger_id, result.remaining[0].presence) == (ids[0], Presence.ON_BOOKIE)
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]  # bookies were not asked for
    for i in ids[:2]:
        del scene.cluster.reader.payloads[i]
    assert scene.apply(asked) == [DeleteRecordsResult(scene.at(2, 0))]


def test_a_bookie_that_does_not_answer_proves_nothing_and_there_is_a_way_out() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    scene.apply()
    scene.delete()
    scene.cluster.reader.unanswered = {BOOKIE}
    (result,) = scene.apply(Patience(bookies=True))
    assert result.error is RecordsError.TIMEOUT
    assert {(one.presence, one.where) for one in result.remaining} == {(Presence.BOOKIE_UNANSWERED, (BOOKIE,))}
    assert result.code == Presence.BOOKIE_UNANSWERED
    assert "decommissioned never answers" in result.reason
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]


def test_another_clusters_ledger_of_the_same_id_does_not_tell_which_bookies_to_ask() -> None:
    scene = RecordsScene()
    first, path = scene.ids[scene.topic][0], scene.cluster.path(scene.ids[scene.topic][0])
    (node,) = scene.cluster.open_store().read([path])
    there = replace(ledger_metadata.decode(node.data), segments=(Segment(0, ("bookie-9:3181",)),))
    theirs = Archived("a-run", "another", first, path, ledger_metadata.encode(there), 0, 1, 1, 1)
    scene.cluster.journal.archive([theirs])
    scene.cluster.reader.collected["bookie-9:3181"] = {first}
    for cookie in ("/ledgers/cookies", f"/ledgers/cookies/{BOOKIE}"):
        scene.cluster.put(cookie, b"")
    scene.plan(scene.at(1, 0))
    scene.apply()
    scene.cluster.remove(path)  # its broker deleted it
    (result,) = scene.apply(Patience(bookies=True))
    assert result.error is RecordsError.TIMEOUT
    assert result.remaining == (Absence(first, Presence.ON_BOOKIE, (BOOKIE,)),)
    del scene.cluster.reader.payloads[first]
    assert scene.apply(Patience(bookies=True)) == [DeleteRecordsResult(scene.at(1, 0))]


@pytest.mark.parametrize("undone", [True, False])
def test_what_was_archived_before_a_ledger_came_back_does_not_tell_which_bookies_to_ask(undone: bool) -> None:
    """It came back after the plan by an undo, or before it with all else that was restored; its broker deleted it."""
    scene = RecordsScene()
    first, cluster, topic = scene.ids[scene.topic][0], scene.cluster, scene.cluster.topic_path(scene.topic)
    before = {path: cluster.zookeeper.data(path) for path in (cluster.path(first), topic)}
    scene.plan(scene.at(1, 0))
    scene.apply()
    scene.delete()
    assert not cluster.exists(first)
    if undone:
        request = UndoRequest(ledger_ids=(first,), dry_run=False)
        (one,) = undo_deletions(scene.where, "undo", request, lambda _: None).ledgers
        assert one.outcome is Outcome.RESTORED, one.reason
        (result,) = scene.apply(dry_run=True)
        assert (result.error, result.code) == (RecordsError.TIMEOUT, Lacks.RESTORED)
    else:
        for path, data in before.items():
            cluster.put(path, data)
        cluster.wait(1)
        scene.plan(scene.at(1, 0))
        scene.apply()
    cluster.remove(cluster.path(first))
    for cookie in ("/ledgers/cookies", f"/ledgers/cookies/{BOOKIE}", "/ledgers/cookies/bookie-9:3181"):
        cluster.put(cookie, b"")
    cluster.reader.collected[BOOKIE] = {first}
    (result,) = scene.apply(Patience(bookies=True))
    assert result.remaining == (Absence(first, Presence.ON_BOOKIE, ("bookie-9:3181",)),)
    cluster.reader.collected["bookie-9:3181"] = {first}
    assert scene.apply(Patience(bookies=True)) == [DeleteRecordsResult(scene.at(1, 0))]


def test_a_message_that_is_lost_after_an_undo_is_told_as_lost() -> None:
    scene = RecordsScene()
    first, topic = scene.ids[scene.topic][0], scene.cluster.topic_path(scene.topic)
    before = scene.cluster.zookeeper.data(topic)
    scene.plan(scene.at(1, 0))
    scene.apply()
    scene.delete()
    undo_deletions(scene.where, "undo", UndoRequest(ledger_ids=(first,), dry_run=False), lambda _: None)
    scene.cluster.put(topic, before)
    scene.cluster.wait(1)
    scene.plan(scene.at(1, 0))
    scene.apply()
    scene.cluster.deletion_topics.waiting.clear()
    (result,) = scene.apply(dry_run=True)
    assert result.code == Lacks.MESSAGE


def test_a_bookie_whose_place_another_took_is_asked_too() -> None:
    """It was away while others replicated the ledger, and came back with its entries."""
    scene = RecordsScene()
    first, cluster, away = scene.ids[scene.topic][0], scene.cluster, "bookie-9:3181"
    for cookie in ("/ledgers/cookies", f"/ledgers/cookies/{BOOKIE}", f"/ledgers/cookies/{away}"):
        cluster.put(cookie, b"")
    path = cluster.path(first)
    for _ in ("closed", "replicated"):
        cluster.put(path, cluster.zookeeper.data(path))
    scene.plan(scene.at(1, 0))
    scene.apply()
    scene.delete()
    cluster.reader.collected[BOOKIE] = {first}
    (result,) = scene.apply(Patience(bookies=True))
    assert result.remaining == (Absence(first, Presence.ON_BOOKIE, (away,)),)
    cluster.reader.collected[away] = {first}
    cluster.reader.unanswered = {away}
    (result,) = scene.apply(Patience(bookies=True))
    assert result.remaining == (Absence(first, Presence.BOOKIE_UNANSWERED, (away,)),)
    cluster.reader.unanswered = set()
    assert scene.apply(Patience(bookies=True)) == [DeleteRecordsResult(scene.at(1, 0))]


def test_a_ledger_that_was_restored_before_its_deletion_may_have_been_on_any_bookie() -> None:
    """Its z-node counts writes from the restore on: it does not say whether another took a bookie's place before."""
    scene = RecordsScene()
    first, cluster, away = scene.ids[scene.topic][0], scene.cluster, "bookie-9:3181"
    for cookie in ("/ledgers/cookies", f"/ledgers/cookies/{BOOKIE}", f"/ledgers/cookies/{away}"):
        cluster.put(cookie, b"")
    scene.plan(scene.at(1, 0))
    scene.apply()
    scene.delete()
    request = UndoRequest(ledger_ids=(first,), dry_run=False)
    (one,) = undo_deletions(scene.where, "undo", request, lambda _: None).ledgers
    assert one.outcome is Outcome.RESTORED, one.reason
    cluster.wait(8 * 24)
    pipeline.whole_round(cluster, scene.policy)
    scene.scan()
    scene.plan(scene.at(1, 0))
    assert not cluster.exists(first)
    cluster.reader.collected[BOOKIE] = {first}
    (result,) = scene.apply(Patience(bookies=True))
    assert result.remaining == (Absence(first, Presence.ON_BOOKIE, (away,)),)
    cluster.reader.collected[away] = {first}
    assert scene.apply(Patience(bookies=True)) == [DeleteRecordsResult(scene.at(1, 0))]


def test_asking_again_waits_for_offloaded_copies_that_left_the_list_before() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(2, 0))
    scene.apply()
    scene.delete()
    objects = scene.with_bucket()
    copy = {"czxid": 1, "uuid": str(UUID(int=7)), "bucket": BUCKET}
    mark = replace(
        ROW, cluster=scene.where.settings.cluster, topic=str(scene.topic), phase=Phase.MARK, outcome=Outcome.MARKED
    )
    scene.cluster.journal.record([replace(mark, ledger_id=ids[0], detail=json.dumps(copy))])
    data = f"{UUID(int=7)}-ledger-{ids[0]}"
    objects.put(BUCKET, data, b"", {})
    (row,) = scene.plan(scene.at(2, 0))
    assert (row["ledgers"], row["leftovers"]) == ([], ids[:1])
    assert row["copies"] == [{"ledger_id": ids[0], "bucket": BUCKET, "uuid": str(UUID(int=7))}]
    (result,) = scene.apply()
    assert (result.low_watermark, result.error) == (-1, RecordsError.TIMEOUT)
    assert result.remaining == (Absence(ids[0], Presence.OBJECT, (f"s3://{BUCKET}/{data}",)),)
    (also,) = scene.apply(Patience(bookies=True))  # they have it, but no collection of theirs is all that it lacks
    assert (also.code, also.remaining[0]) == (result.code, result.remaining[0])
    objects.delete_many(BUCKET, [data])
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]


def test_a_copy_that_was_offloaded_after_the_plan_must_be_gone_too() -> None:
    scene = RecordsScene()
    ids, objects = scene.ids[scene.topic], scene.with_bucket()
    scene.plan(scene.at(2, 0))
    _offloaded(scene, 0)
    data = f"{UUID(int=7)}-ledger-{ids[0]}"
    objects.put(BUCKET, data, b"", {})
    scene.apply()
    assert scene.listed() == ids[2:]
    for i in ids[:2]:
        scene.cluster.zookeeper.delete(ledger_path(i), -1)
    (result,) = scene.apply(dry_run=True)
    assert result.error is RecordsError.TIMEOUT
    assert result.remaining == (Absence(ids[0], Presence.OBJECT, (f"s3://{BUCKET}/{data}",)),)
    store, scene.object_store = scene.object_store, None  # as whoever asks with settings of his own
    assert scene.apply(dry_run=True)[0].code == Presence.OBJECT_UNREAD
    scene.object_store = store
    objects.delete_many(BUCKET, [data])
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]


@pytest.mark.parametrize("asked", ["the end", "inside"])
def test_a_later_copy_of_the_ledger_that_the_low_watermark_is_in_must_be_gone_too(asked: str) -> None:
    """It was offloaded after the plan, and left the list with a message for its copy."""
    scene = RecordsScene()
    objects, last = scene.with_bucket(), scene.ids[scene.topic][4]
    data = f"{UUID(int=7)}-ledger-{last}"

    def rolled(topic: Topic) -> None:
        scene.rolled(topic)
        _offloaded(scene, len(scene.listed()) - 2)
        objects.put(BUCKET, data, b"", {})

    scene.cluster.admin.topics[scene.topic] = {}
    scene.cluster.admin.on_unload = rolled
    scene.plan(END if asked == "the end" else scene.at(4, 3))
    ours = scene.summary
    scene.apply()
    if asked == "inside":
        scene.cluster.wait(1)
        assert scene.apply()[0].error is RecordsError.TIMEOUT
        scene.plan(END)
        scene.apply()
    assert last not in scene.listed()
    for i in scene.ids[scene.topic][:5]:
        scene.cluster.zookeeper.delete(ledger_path(i), -1)
    scene.summary = ours
    (result,) = scene.apply(dry_run=True)
    assert result.error is RecordsError.TIMEOUT
    assert result.remaining == (Absence(last, Presence.OBJECT, (f"s3://{BUCKET}/{data}",)),)
    objects.delete_many(BUCKET, [data])
    assert scene.apply(dry_run=True)[0].error is None


@pytest.mark.parametrize("offset", [END, Timestamp(0)])
def test_a_partition_that_nobody_has_loaded_yet_is_answered_and_stays_as_it_is(offset: Offset) -> None:
    scene = RecordsScene()
    path = scene.cluster.topic_path(scene.topic)
    scene.cluster.remove(path)
    scene.cluster.put(path, b"")  # as brokers create the partitions of a topic
    scene.cluster.wait(1)
    (row,) = scene.plan(offset)
    assert (row["error"], row["ledgers"]) == (None, [])
    assert scene.apply() == [DeleteRecordsResult(MessagePosition(0, 0))]
    assert scene.cluster.zookeeper.data(path) == b""
