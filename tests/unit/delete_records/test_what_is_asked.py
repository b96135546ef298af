"""What an answer asks for beside what its plan takes off lists, and what it says that nobody was asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from pulsar_lifecycle.delete_records.apply_run import Patience
from pulsar_lifecycle.delete_records.request import Absence, DeleteRecordsResult, Lacks, NotAsked, Presence
from pulsar_lifecycle.deletion.undo.undo_run import UndoRequest, undo_deletions
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.tables import OBJECTS
from tests.kit.builders import ROW
from tests.kit.fakes.journal import FakeJournal
from tests.kit.records.records_scene import BOOKIE, ENTRIES, HOUR, RecordsScene
from tests.kit.records.topic_times import BUCKET, compacted_entry, sent
from tests.kit.simulated import pipeline
from tests.kit.simulated.cluster import compacted_tags, data_tags


@pytest.mark.parametrize("first", [(1, 9), (2, 0), "empty", "unreadable"], ids=str)
def test_a_compacted_view_that_a_broker_left_since_the_plan_is_found_by_the_next_scan(first: Any) -> None:
    """One with messages from below: another was made after they went, and one that the topic has is no such view."""
    scene = RecordsScene()
    ids, cluster = scene.ids[scene.topic], scene.cluster
    (row,) = scene.plan(scene.at(2, 0))
    assert row["leftovers"] == []
    at = Position(ids[first[0]], first[1]) if isinstance(first, tuple) else Position(ids[2], 0)
    entries = {"empty": [], "unreadable": [b"no entry of a view"]}.get(str(first), [compacted_entry(at)])
    left = cluster.ledger(compacted_tags(scene.topic), entries=entries)
    now = cluster.ledger(compacted_tags(scene.topic), entries=[compacted_entry(Position(ids[2], 0))])
    cluster.cursor(scene.topic, "__compaction", at=ids[-1], compacted=now)
    assert scene.apply()[0].code in (RecordsError.COMPACTED_VIEW, Lacks.NOT_KEPT)
    cluster.remove(f"{cluster.topic_path(scene.topic)}/__compaction")
    cluster.wait(1)
    scene.apply()
    cluster.cursor(scene.topic, "__compaction", at=ids[-1], compacted=now)
    scene.delete()
    (result,) = scene.apply(dry_run=True)
    if first in ((2, 0), "empty"):
        assert result == DeleteRecordsResult(scene.at(2, 0))
        return
    assert (result.code, [one.ledger_id for one in result.remaining]) == (Lacks.MESSAGE, [left])
    cluster.remove(cluster.path(left))
    assert scene.apply(dry_run=True) == [DeleteRecordsResult(scene.at(2, 0))]


def test_bookies_are_asked_for_what_a_broker_deleted_between_the_scan_and_the_plan() -> None:
    scene = RecordsScene()
    ids, cluster = scene.ids[scene.topic], scene.cluster
    cluster.put(f"/ledgers/cookies/{BOOKIE}", b"")
    cluster.topic(scene.topic, ids[1:], entries=10)
    cluster.remove(cluster.path(ids[0]))
    cluster.wait(1)
    (row,) = scene.plan(scene.at(1, 0))
    assert (row["ledgers"], row["leftovers"]) == ([], [])
    (result,) = scene.apply(Patience(bookies=True))
    assert [(one.ledger_id, one.presence) for one in result.remaining] == [(ids[0], Presence.ON_BOOKIE)]
    cluster.reader.collected[BOOKIE] = {ids[0]}
    (result,) = scene.apply(Patience(bookies=True))
    assert (result.low_watermark, result.not_asked) == (scene.at(1, 0), (NotAsked.TRIMMED,))


@pytest.mark.parametrize("left", ["before the plan", "since"])
def test_a_ledger_that_was_closed_before_it_had_an_entry_keeps_no_answer(left: str) -> None:
    """A broker ended while it began it: it is on no list. A bookie may have an entry that was never confirmed."""
    scene = RecordsScene()
    cluster, nothing = scene.cluster, 0

    def leave() -> None:
        cluster.ledger(data_tags(scene.topic), entries=(), ledger_id=nothing)

    if left == "before the plan":
        leave()
        scene.scan()
    (row,) = scene.plan(scene.at(2, 0))
    assert row["leftovers"] == []
    if left == "since":
        leave()
    scene.apply()
    scene.delete()
    cluster.reader.collected[BOOKIE] = set(scene.ids[scene.topic][:2])
    for patience in (Patience(), Patience(bookies=True)):
        assert scene.apply(patience, dry_run=True) == [DeleteRecordsResult(scene.at(2, 0))]
    cluster.reader.payloads[nothing] = [b"never confirmed"]
    (result,) = scene.apply(Patience(bookies=True), dry_run=True)
    assert (result.code, result.remaining) == (Lacks.MESSAGE, (Absence(nothing, Presence.Z_NODE, (BOOKIE,)),))
    cluster.reader.unanswered = {BOOKIE: "it is down"}
    (result,) = scene.apply(Patience(bookies=True), dry_run=True)
    assert Absence(nothing, Presence.BOOKIE_UNANSWERED, (BOOKIE,)) in result.remaining


@pytest.mark.parametrize("written", ["created anew", "replicated since"])
def test_every_bookie_is_asked_for_an_entry_that_was_never_confirmed_once_an_undo_created_the_ledger_anew(
    written: str,
) -> None:
    """Another took the place of a bookie before the ledger was deleted; the z-node counts its writes from the undo on.

    No first phase of ours took it off a list: a plan of leaked ledgers deleted it.
    """
    scene = RecordsScene()
    cluster, nothing, away = scene.cluster, 0, "bookie-9:3181"
    for cookie in ("/ledgers/cookies", f"/ledgers/cookies/{BOOKIE}", f"/ledgers/cookies/{away}"):
        cluster.put(cookie, b"")
    cluster.ledger(data_tags(scene.topic), entries=(), ledger_id=nothing)
    path = cluster.path(nothing)
    for _ in ("closed", "replicated"):
        cluster.put(path, cluster.zookeeper.data(path))
    cluster.wait(8 * 24)
    pipeline.whole_round(cluster, scene.policy)
    assert not cluster.exists(nothing)
    request = UndoRequest(ledger_ids=(nothing,), dry_run=False)
    (one,) = undo_deletions(scene.where, "undo", request, lambda _: None).ledgers
    assert (one.outcome, cluster.exists(nothing)) == (Outcome.RESTORED, True), one.reason
    if written == "replicated since":
        cluster.put(path, cluster.zookeeper.data(path))
    scene.scan()
    scene.plan(scene.at(2, 0))
    scene.apply()
    scene.delete()
    cluster.reader.payloads[nothing] = [b"never confirmed"]
    cluster.reader.collected = {BOOKIE: {nothing, *scene.ids[scene.topic][:2]}, away: {*scene.ids[scene.topic][:2]}}
    (result,) = scene.apply(Patience(bookies=True), dry_run=True)
    assert result.remaining == (Absence(nothing, Presence.Z_NODE, (away,)),)


@pytest.mark.parametrize("ended", [Outcome.KEPT, Outcome.REFUSED])
def test_a_copy_whose_message_a_deletion_run_has_ended_waits_for_no_other_one(ended: Outcome) -> None:
    """Of a hold that was withdrawn since, or by settings that did not name the bucket; others' messages wait yet."""
    scene = RecordsScene()
    ids, objects = scene.ids[scene.topic], scene.with_bucket()
    copy, data = {"uuid": str(UUID(int=7))}, f"{UUID(int=7)}-ledger-{ids[0]}"
    offload = OffloadContext(UUID(int=7), True, False, 1, "aws-s3", {"bucket": BUCKET})
    scene.cluster.topic(scene.topic, ids, entries=ENTRIES, offloaded={ids[0]: offload})
    scene.cluster.wait(1)
    scene.scan()
    objects.put(BUCKET, data, b"", {})
    scene.plan(scene.at(2, 0))
    scene.apply()
    for i in ids[:2]:
        scene.cluster.zookeeper.delete(ledger_path(i), -1)
    assert scene.apply(dry_run=True)[0].code == Lacks.DELETION
    said = replace(ROW, cluster=scene.where.settings.cluster, topic=str(scene.topic), ledger_id=ids[0], outcome=ended)
    said = replace(said, phase=Phase.DELETE, action=Action.DELETE_OFFLOADED, at=scene.cluster.clock.now_ms())
    deleted = replace(said, outcome=Outcome.DELETED, action=Action.DELETE_LEDGER)
    of_others = replace(said, plan_id="", detail=json.dumps(copy))
    said = replace(said, plan_id=scene.summary.plan_id, detail=json.dumps(copy))
    another = replace(said, detail=json.dumps({"uuid": str(UUID(int=8))}))
    scene.cluster.journal.record([deleted, another, of_others])
    assert scene.apply(dry_run=True)[0].code == Lacks.DELETION
    scene.cluster.journal.record([said])
    (result,) = scene.apply(dry_run=True)
    assert (result.code, result.remaining[0].presence) == (Lacks.MESSAGE, Presence.OBJECT)
    assert "sweep the bucket" in result.reason


class Trimmed:
    """A topic of five ledgers, of which its broker trims some between kept scans; a request cuts off one more."""

    def __init__(self) -> None:
        self.scene = RecordsScene()
        self.objects = self.scene.with_bucket()
        assert self.scene.object_store
        self.scene.object_store = self.scene.object_store.model_copy(update={"exclusive": True})
        self.cluster, self.ids = self.scene.cluster, self.scene.ids[self.scene.topic]
        self.cluster.put(f"/ledgers/cookies/{BOOKIE}", b"")

    def trim(self, listed: Sequence[int], *going: int) -> None:
        """It lists only those, by writes of its z-node as of a broker that works; z-nodes of ``going`` are gone."""
        for _ in range(9):
            self.cluster.topic(self.scene.topic, listed, entries=10)
        for i in going:
            self.cluster.remove(self.cluster.path(i))

    def scan(self, inventory: Sequence[Mapping[str, Any]] | None = None) -> None:
        """One more scan, and what it finds in the bucket."""
        self.cluster.wait(25)
        self.scene.scans.append(pipeline.scan(self.cluster, self.scene.policy, self.scene.scans))
        self.scene.lake = pipeline.lake_of(*self.scene.scans)
        if inventory is not None:
            table = pa.Table.from_pylist([{**dict.fromkeys(OBJECTS.names), **row} for row in inventory], OBJECTS)
            self.scene.lake.begun[self.scene.scans[-1].epoch.epoch_id].tables["objects"] = [table]

    def answer(self) -> DeleteRecordsResult:
        """Of a request for all below the fourth ledger, once what went by it is gone."""
        (row,) = self.scene.plan(self.scene.at(3, 0))
        self.scene.apply()
        for i in row["ledgers"]:
            self.cluster.remove(self.cluster.path(i))
        self.cluster.reader.collected.setdefault(BOOKIE, set()).update(row["ledgers"])
        return self.again()

    def again(self) -> DeleteRecordsResult:
        (result,) = self.scene.apply(Patience(bookies=True), dry_run=True)
        return result


def test_what_a_broker_trimmed_between_kept_scans_is_asked_for() -> None:
    one = Trimmed()
    one.trim(one.ids[2:], *one.ids[:2])
    one.scan([])
    result = one.answer()
    assert [(left.ledger_id, left.presence) for left in result.remaining] == [(i, "on_bookie") for i in one.ids[:2]]
    one.cluster.reader.collected[BOOKIE].update(one.ids[:2])
    assert (one.again().low_watermark, one.again().not_asked) == (one.scene.at(3, 0), ())


@pytest.mark.parametrize(
    "how",
    [
        *("no inventory", "shared bucket", "newest unread", "in none"),
        *("older scans are gone", "pruned", "another topic", "since the scan"),
    ],
)
def test_an_answer_says_that_a_broker_may_have_trimmed_what_no_scan_shows(how: str) -> None:
    one = Trimmed()
    one.trim(one.ids[2:], *one.ids[:2])
    one.cluster.reader.collected[BOOKIE] = set(one.ids[:2])
    if how == "in none":
        before = one.ids[2:]
        one.ids[:] = [one.cluster.ledger(data_tags(one.scene.topic), entries=[sent(HOUR)] * 10) for _ in range(5)]
        one.trim(one.ids, *before)
    if how == "another topic":
        one.cluster.remove(one.cluster.topic_path(one.scene.topic))
        one.trim(one.ids[2:])
    if how == "since the scan":
        one.cluster.wait(1)
    else:
        one.scan(None if how == "no inventory" else [])
    if how == "shared bucket":
        one.scene.object_store = one.scene.object_store.model_copy(update={"exclusive": False})
    if how == "newest unread":
        one.scan([])
        del one.scene.lake.begun[one.scene.scans[-1].epoch.epoch_id].tables["managed_ledgers"]
    if how == "older scans are gone":
        one.scene.lake.begun = {one.scene.scans[-1].epoch.epoch_id: one.scene.lake.begun.popitem()[1]}
    if how == "pruned":  # meanwhile, by another run's scan
        del next(iter(one.scene.lake.begun.values())).tables["managed_ledgers"]
        del one.scene.lake.begun[one.scene.scans[1].epoch.epoch_id].tables["managed_ledgers"]
    result = one.answer()
    assert (result.low_watermark, result.not_asked) == (one.scene.at(3, 0), (NotAsked.TRIMMED,))


@pytest.mark.parametrize("listed", [True, False], ids=["in a list", "in the inventory"])
def test_the_copies_of_what_a_broker_trimmed_must_be_gone_too(listed: bool) -> None:
    one, uuid = Trimmed(), UUID(int=7)
    key = f"{uuid}-ledger-{one.ids[0]}"
    copy = OffloadContext(uuid, True, False, 1, "aws-s3", {"bucket": BUCKET})
    if listed:
        one.cluster.topic(one.scene.topic, one.ids, entries=10, offloaded={one.ids[0]: copy})
        one.scan()
    one.objects.put(BUCKET, key, b"", {})
    one.trim(one.ids[1:], one.ids[0])
    one.cluster.reader.collected[BOOKIE] = {one.ids[0]}
    row = {"bucket": BUCKET, "uuid": str(uuid), "ledger_id": one.ids[0]}
    one.scan(None if listed else [row])
    result = one.answer()
    assert result.remaining == (Absence(one.ids[0], Presence.OBJECT, (f"s3://{BUCKET}/{key}",)),)
    assert (result.code, result.lost_copies) == (Lacks.MESSAGE, 0)
    one.objects.delete_many(BUCKET, [key])
    assert (one.again().low_watermark, one.again().not_asked) == (one.scene.at(3, 0), ())


@pytest.mark.parametrize("cut", [(1, 0), (1, 3)], ids=["planned", "cut"])
@pytest.mark.parametrize("named", [False, True], ids=["offloaded since", "offloaded before"])
def test_an_answer_says_that_what_a_broker_trimmed_since_the_plan_may_have_copies(
    cut: tuple[int, int], named: bool
) -> None:
    one, uuid = Trimmed(), UUID(int=7)
    copies = {i: OffloadContext(uuid, True, False, 1, "aws-s3", {"bucket": BUCKET}) for i in one.ids[:2]}
    if named:
        one.cluster.topic(one.scene.topic, one.ids, entries=10, offloaded=copies)
        one.scan([])
    (row,) = one.scene.plan(one.scene.at(*cut))
    one.trim(one.ids[2:], *one.ids[:2])
    one.cluster.reader.collected[BOOKIE] = set(one.ids[:2])
    one.cluster.wait(1)
    (result,) = one.scene.apply(Patience(bookies=True))
    assert (result.low_watermark, row["ledgers"]) == (one.scene.at(*cut), one.ids[:1])
    assert (NotAsked.COPIES in result.not_asked) is not named


@pytest.mark.parametrize("since", [True, False], ids=["since the plan", "before"])
@pytest.mark.parametrize("last", [Outcome.LEFT, Outcome.MARKED, Outcome.RESTORED, Outcome.REMOVED])
def test_what_a_run_marked_and_left_in_the_list_may_have_copies_once_a_broker_trimmed_it(
    last: Outcome, since: bool
) -> None:
    """So may what an undo brought back."""
    one = Trimmed()
    of = {
        "cluster": one.scene.where.settings.cluster,
        "topic": str(one.scene.topic),
        "ledger_id": one.ids[0],
    }
    undone = [(Phase.MARK, Outcome.REMOVED), (Phase.UNDO, last)]
    rows = [(Phase.MARK, Outcome.MARKED), *(undone if last is Outcome.RESTORED else [(Phase.MARK, last)])]
    one.cluster.journal.record([replace(ROW, phase=phase, outcome=outcome, at=1, **of) for phase, outcome in rows])
    if since:
        one.scene.plan(one.scene.at(1, 0))
    one.trim(one.ids[1:], one.ids[0])
    one.cluster.wait(1)
    if not since:
        one.scan()
        one.scene.plan(one.scene.at(2, 0))
        one.scene.apply()
        one.cluster.remove(one.cluster.path(one.ids[1]))
    (result,) = one.scene.apply()
    lacks = NotAsked.COPIES if since else NotAsked.TRIMMED
    assert (result.error, result.not_asked) == (None, () if last is Outcome.REMOVED else (lacks,))


def test_a_copy_that_lay_in_a_bucket_which_the_settings_do_not_name_is_not_asked_for() -> None:
    one = Trimmed()
    copy = OffloadContext(UUID(int=7), True, False, 1, "aws-s3", {"bucket": "elsewhere"})
    one.cluster.topic(one.scene.topic, one.ids, entries=10, offloaded={one.ids[0]: copy})
    one.scan()
    one.trim(one.ids[2:], *one.ids[:2])
    one.cluster.reader.collected[BOOKIE] = set(one.ids[:2])
    one.scan([])
    result = one.answer()
    assert (result.low_watermark, result.not_asked) == (one.scene.at(3, 0), (NotAsked.TRIMMED,))


def test_an_answer_says_that_nobody_was_asked_for_what_another_installation_deleted() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    scene.apply()
    scene.delete()
    assert [one.not_asked for one in scene.apply()] == [()]
    scene.lose_lake()
    scene.plan(scene.at(2, 0))
    (result,) = scene.apply()
    assert (result.low_watermark, result.not_asked) == (scene.at(2, 0), (NotAsked.TRIMMED, NotAsked.OTHERS))
    scene.plan(scene.at(4, 0))
    (result,) = scene.apply()
    assert (result.low_watermark, result.not_asked) == (-1, ())


def raised_by_another_lake(scene: RecordsScene) -> None:
    """What is before the third ledger goes by a request that our journal does not know."""
    ours, scene.cluster.journal = scene.cluster.journal, FakeJournal()
    scene.plan(scene.at(2, 0))
    scene.apply()
    scene.delete()
    scene.cluster.journal = ours
    scene.cluster.put(f"/ledgers/cookies/{BOOKIE}", b"")
    scene.cluster.reader.collected[BOOKIE] = set(scene.ids[scene.topic][:2])


def test_a_low_watermark_that_another_lake_raised_between_ours_is_seen() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(1, 0))
    scene.apply()
    scene.delete()
    raised_by_another_lake(scene)
    scene.plan(scene.at(2, 0))
    assert scene.apply(Patience(bookies=True))[0].code == Lacks.REQUEST


def test_a_request_of_ours_that_was_refused_has_not_raised_what_another_lake_did() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    scene.cursor("slow", 0, 3)
    assert scene.apply()[0].error is RecordsError.CURSOR_BELOW
    scene.cursor("slow", 3, 3)
    scene.scan()
    raised_by_another_lake(scene)
    scene.plan(scene.at(2, 0))
    assert scene.apply(Patience(bookies=True))[0].code == Lacks.REQUEST


@pytest.mark.parametrize("asked", [(2, 3), (0, 3)], ids=["with-ledgers", "without"])
def test_a_subscription_that_comes_below_once_all_is_done_keeps_nobody_from_the_answer(asked: tuple[int, int]) -> None:
    """As one from the earliest message: that is below a position inside a ledger. Before, it has its say."""
    scene = RecordsScene()
    scene.plan(scene.at(*asked))
    scene.cursor("early", asked[0], -1)
    (refused,) = scene.apply()
    assert (refused.error, scene.properties()) == (RecordsError.CURSOR_BELOW, {})
    scene.cluster.remove(f"{scene.cluster.topic_path(scene.topic)}/early")
    scene.apply()
    scene.cursor("late", asked[0], -1)
    scene.delete()
    assert scene.apply() == [DeleteRecordsResult(scene.at(*asked))]
