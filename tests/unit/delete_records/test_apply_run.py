"""Deleting records of unloaded partitions: plan, apply, deletion run, answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.delete_records.apply_run import Patience, delete_records_before
from pulsar_lifecycle.delete_records.request import END, DeleteRecordsResult, Lacks, Options, Presence, parse_offset
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.deletion.undo.undo_run import UndoRequest, undo_deletions
from pulsar_lifecycle.errors import Unavailable, UsageError
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.bookie_status import LedgerDirectory
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import LOW_WATERMARK, OffloadContext
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome, Phase
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.fakes.bookie_admin import status
from tests.kit.records.records_scene import BOOKIE, ENTRIES, RecordsScene
from tests.kit.refused import refused_by


def test_a_partition_is_answered_once_its_ledgers_are_gone() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    (row,) = scene.plan(scene.at(2, 3))
    assert (row["error"], row["ledgers"]) == (None, ids[:2]), row
    assert row["low_watermark"] == f"{ids[2]}:3"
    assert row["first_readable"] == f"{ids[2]}:0"
    assert scene.listed() == ids

    (result,) = scene.apply()
    assert (result.low_watermark, result.error) == (-1, RecordsError.TIMEOUT)
    assert scene.listed() == ids[2:]
    assert scene.properties()[LOW_WATERMARK] == f"{ids[2]}:3"

    scene.delete()
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 3))]
    assert not scene.cluster.exists(ids[0])


def test_one_call_plans_applies_and_answers_and_the_same_call_ends_it() -> None:
    """What the library offers beside the command line; one partition is refused, and keeps no other from its answer."""
    scene = RecordsScene(partitions=2)
    good, bad = scene.topics[:2]
    ids = scene.ids[good]
    asked = {good: scene.at(2, 3), bad: parse_offset(f"{scene.ids[bad][-1]}:1000000")}
    found = delete_records_before(scene.where, "run-1", asked)
    assert (found[good].low_watermark, found[good].error) == (-1, RecordsError.TIMEOUT)
    assert found[bad].error == RecordsError.OUT_OF_RANGE
    assert scene.listed() == ids[2:]
    scene.delete()
    again = delete_records_before(scene.where, "run-2", asked)
    assert again[good] == DeleteRecordsResult(scene.at(2, 3))
    assert again[bad].error == RecordsError.OUT_OF_RANGE


def test_what_must_not_come_back_is_journalled_before_it_goes() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(2, 0), options=Options(no_undo=True))
    scene.apply()
    rows = [(row.ledger_id, row.phase) for row in scene.cluster.journal.rows]
    forbidden = [rows.index((i, Phase.NO_UNDO)) for i in ids[:2]]
    assert max(forbidden) < min(rows.index((i, Phase.MARK)) for i in ids[:2])
    scene.delete()
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]
    run = scene.cluster.journal.nodes[-1].run_id
    found = undo_deletions(scene.where, "undo", UndoRequest(run, dry_run=False), lambda _: None)
    assert [(one.archived.ledger_id, one.why and one.why.code) for one in found.ledgers] == [
        (i, Code.NO_UNDO) for i in ids[:2]
    ]
    assert not any(scene.cluster.exists(i) for i in ids[:2])


@pytest.mark.parametrize("deleted", [False, True])
def test_what_another_plan_took_first_must_not_come_back_either(deleted: bool) -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(2, 0))
    other = scene.summary
    scene.plan(scene.at(2, 0), options=Options(no_undo=True))
    own, scene.summary = scene.summary, other
    scene.apply()
    if deleted:
        scene.delete()
    scene.summary = own
    scene.apply()
    if not deleted:
        scene.delete()
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]
    request = UndoRequest(ledger_ids=tuple(ids[:2]), dry_run=False)
    found = undo_deletions(scene.where, "undo", request, lambda _: None).ledgers
    assert [one.why and one.why.code for one in found] == [Code.NO_UNDO] * 2
    assert not any(scene.cluster.exists(i) for i in ids[:2])


@pytest.mark.parametrize("deleted", [False, True])
def test_what_left_the_list_before_may_be_forbidden_to_come_back(deleted: bool) -> None:
    """Bookies may have it for a while after it was deleted."""
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(2, 0))
    scene.apply()
    if deleted:
        scene.delete()
    scene.plan(scene.at(2, 0), options=Options(no_undo=True))
    scene.apply()
    assert {row.ledger_id for row in scene.cluster.journal.rows if row.phase == Phase.NO_UNDO} == set(ids[:2])


def test_the_low_watermark_never_moves_back() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(3, 4))
    scene.apply()
    (row,) = scene.plan(scene.at(1, 0))
    assert (row["low_watermark"], row["ledgers"]) == (str(scene.at(3, 4)), [])
    scene.delete()
    assert scene.apply() == [DeleteRecordsResult(scene.at(3, 4))]


def test_a_plan_is_answered_for_its_own_position_whatever_a_later_one_has_begun() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(2, 0))
    first = scene.summary
    scene.apply()
    scene.delete()
    scene.plan(scene.at(4, 0))
    scene.apply()
    assert scene.properties()[LOW_WATERMARK] == f"{ids[4]}:0"
    assert all(map(scene.cluster.exists, ids[2:]))  # off the list, and not deleted yet
    second, scene.summary = scene.summary, first
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]
    assert scene.properties()[LOW_WATERMARK] == f"{ids[4]}:0"
    scene.summary = second
    assert scene.apply()[0].error is RecordsError.TIMEOUT
    scene.delete()
    assert scene.apply() == [DeleteRecordsResult(scene.at(4, 0))]


def test_the_low_watermark_and_what_is_left_below_survive_the_loss_of_our_lake() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(3, 4))
    scene.apply()
    scene.lose_lake()
    (row,) = scene.plan(scene.at(1, 0))
    assert (row["low_watermark"], row["ledgers"], row["leftovers"]) == (str(scene.at(3, 4)), [], ids[:3])
    (result,) = scene.apply()
    assert result.error is RecordsError.TIMEOUT  # nobody knows of the deletions any more, but the ledgers are there
    assert scene.properties()[LOW_WATERMARK] == str(scene.at(3, 4))


def test_bookies_are_not_said_to_have_nothing_of_what_another_lake_deleted() -> None:
    scene, asked = RecordsScene(), Patience(bookies=True)
    scene.plan(scene.at(2, 0))
    scene.apply()
    scene.delete()
    scene.lose_lake()
    for _ in range(2):  # also once there are rows of ours
        (row,) = scene.plan(scene.at(2, 0))
        assert row["leftovers"] == []
        (result,) = scene.apply(asked)
        assert (result.error, result.code) == (RecordsError.TIMEOUT, Lacks.REQUEST)
        assert f"its low watermark was {scene.at(2, 0)} by no request that this journal knows" in result.reason
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]
    assert scene.apply(asked, dry_run=True)[0].error is RecordsError.TIMEOUT


def test_a_low_watermark_of_a_run_that_was_killed_is_ours() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    scene.apply()
    scene.delete()
    scene.cluster.journal.rows = [row for row in scene.cluster.journal.rows if row.phase != Phase.RAISE]
    scene.plan(scene.at(2, 0))
    assert scene.apply(Patience(bookies=True))[0].code == Presence.ON_BOOKIE


def test_a_low_watermark_that_no_ledger_went_for_is_ours_too_if_its_run_was_killed() -> None:
    scene, asked = RecordsScene(), Patience(bookies=True)
    scene.plan(scene.at(0, 4))
    scene.apply()
    scene.cluster.journal.rows = [row for row in scene.cluster.journal.rows if row.outcome is not Outcome.DONE]
    scene.cluster.wait(1)
    scene.plan(scene.at(0, 6))
    assert scene.apply(asked) == [DeleteRecordsResult(scene.at(0, 6))]


def test_a_position_inside_the_first_ledger_raises_the_low_watermark_alone() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    (row,) = scene.plan(scene.at(0, 4))
    assert (row["ledgers"], row["first_readable"]) == ([], f"{ids[0]}:0")
    assert scene.apply() == [DeleteRecordsResult(scene.at(0, 4))]
    assert scene.properties()[LOW_WATERMARK] == str(scene.at(0, 4))
    assert scene.listed() == ids


def test_of_a_loaded_partition_the_broker_keeps_the_low_watermark() -> None:
    scene = RecordsScene()
    scene.load()
    kept: list[Any] = []
    scene.cluster.admin.on_properties = lambda topic, properties: kept.append((topic, dict(properties)))
    scene.plan(scene.at(0, 4))
    (result,) = scene.apply()
    assert kept[0] == (scene.topic, {f"{LOW_WATERMARK}.{scene.at(0, 4)}": str(scene.at(0, 4))})
    assert result.error is RecordsError.CHANGED  # this broker forgot it


def test_the_end_is_rolled_so_that_all_goes() -> None:
    scene = RecordsScene()
    ids = list(scene.ids[scene.topic])
    scene.cluster.admin.topics[scene.topic] = {}
    scene.cluster.admin.on_unload = lambda topic: scene.rolled(topic)
    (row,) = scene.plan(END)
    assert (row["rolls"], row["ledgers"], row["first_readable"]) == (True, ids, f"{ids[-1]}:10")
    scene.apply()
    assert not set(scene.listed()) & set(ids)
    scene.delete()
    (result,) = scene.apply()
    assert (result, result.readable_below) == (DeleteRecordsResult(parse_offset(f"{ids[-1]}:10")), "")
    assert not any(map(scene.cluster.exists, ids))


def test_the_end_of_a_loaded_topic_without_clients_is_rolled_by_a_load_of_ours() -> None:
    scene = RecordsScene()
    ids = list(scene.ids[scene.topic])
    scene.writes_loaded = True
    admin = scene.cluster.admin
    admin.topics[scene.topic] = {}
    admin.loaded[str(scene.topic)] = admin.broker_ids[0]  # its unload begins no ledger, and nobody comes back
    admin.on_load = scene.rolled
    scene.plan(END)
    (result,) = scene.apply()
    assert result.error is RecordsError.TIMEOUT, result  # its ledgers wait for a deletion run
    assert not set(scene.listed()) & set(ids)
    scene.delete()
    assert scene.apply() == [DeleteRecordsResult(parse_offset(f"{ids[-1]}:10"))]


def test_a_topic_that_is_terminated_since_the_plan_is_planned_again() -> None:
    """Its last ledger was to be rolled and go, and never will: nobody is to wait for that."""
    scene = RecordsScene()
    scene.writes_loaded = True
    ids = scene.ids[scene.topic]
    (row,) = scene.plan(END)
    assert row["rolls"]
    scene.cluster.topic(scene.topic, ids, entries=ENTRIES, terminated=Position(ids[-1], ENTRIES - 1))
    (result,) = scene.apply()
    assert (result.error, "terminated" in result.reason) == (RecordsError.CHANGED, True)
    (row,) = scene.plan(END)
    assert (row["error"], row["rolls"], row["ledgers"]) == (None, False, ids[:-1])


def test_the_last_ledger_of_a_terminated_topic_stays_and_the_plan_says_so() -> None:
    scene = RecordsScene()
    scene.writes_loaded = True  # a terminated topic never counts as unloaded
    ids = scene.ids[scene.topic]
    scene.cluster.topic(scene.topic, ids, entries=ENTRIES, terminated=Position(ids[-1], ENTRIES - 1))
    (row,) = scene.plan(END, options=Options(exact=True))
    assert (row["error"], row["rolls"]) == (RecordsError.NOT_EXACT, False)
    assert "or for its end" not in row["reason"]
    (row,) = scene.plan(END)
    assert (row["error"], row["rolls"], row["ledgers"], row["messages_between"]) == (None, False, ids[:-1], ENTRIES)
    scene.apply()
    assert scene.listed() == ids[-1:]
    scene.delete()
    assert scene.apply() == [DeleteRecordsResult(parse_offset(f"{ids[-1]}:{ENTRIES}"))]


def test_what_arrives_after_the_plan_stays() -> None:
    scene = RecordsScene()
    ids = list(scene.ids[scene.topic])
    scene.cluster.admin.topics[scene.topic] = {}

    def rolled(topic: Topic) -> None:
        if len(scene.ids[topic]) == 5:
            scene.publish(topic, 1)
        scene.rolled(topic)

    scene.cluster.admin.on_unload = rolled
    scene.plan(END)
    scene.apply()
    assert ids[-1] in scene.listed()
    assert not set(scene.listed()) & set(ids[:-1])
    scene.delete()
    for dry_run in (False, True):  # both say that the ten messages below are there still
        (result,) = scene.apply(dry_run=dry_run)
        assert result == DeleteRecordsResult(parse_offset(f"{ids[-1]}:10"))
        assert str(result.first_readable) == f"{ids[-1]}:0"
        assert f"from {ids[-1]}:0 up to {ids[-1]}:10 remain readable" in result.readable_below
    scene.cluster.put(ledger_path(ids[-1]), b"no ledger")
    (result,) = scene.apply(dry_run=True)
    assert (result.error, result.code) == (RecordsError.TIMEOUT, Code.LENGTH_UNKNOWN)
    assert f"whether ledger {ids[-1]} may go is not known" in result.reason


@pytest.mark.parametrize("rolled", [False, True])
def test_an_exact_end_that_messages_have_passed_is_planned_again(rolled: bool) -> None:
    """Asking for the end, as the plan did, is no way out."""
    scene = RecordsScene()
    scene.writes_loaded = True
    ids = list(scene.ids[scene.topic])
    scene.cluster.admin.topics[scene.topic] = {}
    if rolled:
        scene.cluster.admin.on_unload = lambda topic: (scene.publish(topic, 1), scene.rolled(topic))
    (row,) = scene.plan(END, options=Options(exact=True))
    assert row["error"] is None
    if not rolled:  # as where a run was killed before, and applied again later
        scene.publish(scene.topic, 1)
    (result,) = scene.apply()
    assert (result.error, "plan again" in result.reason) == (RecordsError.NOT_EXACT, True)
    assert "ask for" not in result.reason
    assert scene.listed()[: len(ids)] == ids
    assert not scene.properties()


def test_one_command_ends_with_the_answer() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.plan(scene.at(2, 3))
    assert scene.apply(Patience(answers=7200, finish=True)) == [DeleteRecordsResult(scene.at(2, 3))]
    assert not any(map(scene.cluster.exists, ids[:2]))
    first, *_, deleting, last = scene.said
    assert first == "1 of 1 partitions done or refused"
    assert deleting == "2 ledgers are to be deleted: a scan and a deletion run begin"
    assert "until everything is proven gone" in last


def test_one_command_scans_again_where_the_newest_scan_was_made_while_a_broker_did_not_answer() -> None:
    """The command that was to finish then has made that scan: its rerun completes the request."""
    scene = RecordsScene()
    scene.plan(scene.at(2, 3))
    admin = scene.cluster.admin
    admin.broker_ids, admin.unreachable = ["broker-1:8080", "broker-2:8080"], {"broker-2:8080"}
    judged_scan.scan(scene.where, "while-it-did-not-answer")
    admin.unreachable = set()
    with refused_by(RefusalCode.SCAN_NOT_COVERED):
        scene.apply()
    assert scene.apply(Patience(answers=7200, finish=True)) == [DeleteRecordsResult(scene.at(2, 3))]


COLLECTED = Patience(answers=7200, bookies=True, finish=True, collect=True)


def test_bookies_that_have_entries_are_made_to_collect_however_little_they_could_free() -> None:
    scene = RecordsScene()
    idle = LedgerDirectory("/ledgers", entry_logs=0, live_bytes=0, ledgers=0, usage=0.1)  # since its last collection
    scene.bookies.statuses = {bookie: status(bookie, directories=(idle,)) for bookie in (BOOKIE, "another:3181")}

    def collects(*_: object) -> None:
        for i in scene.ids[scene.topic][:2]:
            del scene.cluster.reader.payloads[i]

    scene.bookies.on_collect = collects
    scene.plan(scene.at(2, 3))
    assert scene.apply(COLLECTED) == [DeleteRecordsResult(scene.at(2, 3))]
    assert scene.apply(COLLECTED) == [DeleteRecordsResult(scene.at(2, 3))]
    assert scene.bookies.collections == [(BOOKIE, False)]


@pytest.mark.parametrize("away", [{}, {BOOKIE: Unavailable("no answer")}])
def test_a_bookie_that_cannot_be_made_to_collect_is_said_with_who_waits_for_it(away: dict[str, Any]) -> None:
    scene = RecordsScene()
    scene.bookies.statuses = away
    scene.plan(scene.at(2, 3))
    (result,) = scene.apply(COLLECTED)
    assert (result.error, result.code) == (RecordsError.TIMEOUT, Presence.ON_BOOKIE)
    assert {one.where for one in result.remaining} == {(BOOKIE,)}
    assert f"bookie {BOOKIE} was not made to collect: " in result.reason


def test_a_ledger_that_no_message_asks_for_is_not_waited_for() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.cluster.topic(scene.topic, ids[1:], entries=ENTRIES)  # a broker lost the deletion of the first
    scene.cluster.wait(1)
    (row,) = scene.plan(scene.at(2, 0))
    assert (row["ledgers"], row["leftovers"]) == ([ids[1]], [ids[0]])
    began = scene.cluster.clock.now_ms()
    (result,) = scene.apply(Patience(answers=7200, finish=True))
    assert (result.error, scene.cluster.exists(ids[1])) == (RecordsError.TIMEOUT, False)
    assert (result.code, [one.ledger_id for one in result.remaining]) == (Lacks.MESSAGE, [ids[0]])
    assert scene.cluster.clock.now_ms() < began + 7200 * 1000
    scene.cluster.remove(scene.cluster.path(ids[0]))
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 0))]


def test_what_hinders_the_deletion_run_is_said_with_who_waits_for_it() -> None:
    scene = RecordsScene(2)
    scene.plan(scene.at(2, 3), parse_offset("1:1"))

    def paused_meanwhile(seconds: float) -> None:
        store = scene.cluster.open_store()
        if not control.is_held(store, control.LEASE):  # it has written, and waits for the messages
            scene.cluster.clock.on_sleep = lambda seconds: None
            control.pause(store, "no deletions today")

    scene.cluster.clock.on_sleep = paused_meanwhile
    waits, refused = scene.apply(Patience(answers=1200, finish=True))
    assert waits.error is RecordsError.TIMEOUT
    assert "paused" in waits.reason
    assert "paused" not in refused.reason
    assert any("paused" in said for said in scene.said), "nobody learns it before the end"


def test_a_brokers_open_offload_attempt_leaves_the_low_watermark_unwritten() -> None:
    scene = RecordsScene()
    path = scene.cluster.topic_path(scene.topic)
    info = managed_ledger.decode(scene.cluster.zookeeper.data(path))
    begun = replace(info.ledgers[0], offload=OffloadContext(UUID(int=1), False, False, 1, "aws-s3", {"bucket": "b"}))
    scene.cluster.put(path, managed_ledger.encode(replace(info, ledgers=(begun, *info.ledgers[1:]))))
    scene.cluster.wait(1)
    (row,) = scene.plan(scene.at(0, 4))
    assert (row["error"], row["ledgers"]) == (RecordsError.LEDGER_STAYS, [])


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_what_is_no_time_is_wrong_usage(seconds: float) -> None:
    with pytest.raises(UsageError, match="the time-out of a broker: expected seconds"):
        Patience(per_broker=seconds)
    with pytest.raises(UsageError, match="the wait for answers: expected seconds"):
        Patience(answers=seconds)
