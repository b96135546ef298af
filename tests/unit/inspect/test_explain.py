"""Every answer of ``explain``, on a cluster of a few z-nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import StrEnum
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.formats import cursor, ledger_metadata, managed_ledger, schema
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.inspect.answers import ExplainCode, Verdict
from pulsar_lifecycle.inspect.explain import Explanation, explain
from pulsar_lifecycle.inspect.history import History
from pulsar_lifecycle.journal.in_doubt import WITHIN_MS
from pulsar_lifecycle.journal.intents import IntentState
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.records.codes import Code
from pulsar_lifecycle.records.copies import Released, Verified
from pulsar_lifecycle.records.epoch import Epoch
from pulsar_lifecycle.records.findings import Context, Finding
from pulsar_lifecycle.records.gaps import Gap
from pulsar_lifecycle.records.outcomes import Action
from pulsar_lifecycle.records.plans.deletion_plan import PlanSummary
from pulsar_lifecycle.records.tables import REFERENCES
from pulsar_lifecycle.topics.protection import Protection
from tests.kit.builders import A_GAP
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.ledger_reader import FakeLedgerReader
from tests.kit.fakes.metadata_store import FakeZooKeeper

ROOT = "/ledgers"
OWNER = "shop/orders/persistent/placed"
TOPIC_PATH = f"/managed-ledgers/{OWNER}"
HOUR = 3_600_000
DATA = {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": OWNER}
CURSOR = {**DATA, "pulsar/cursor": "billing"}
COMPACTED = {
    "application": "pulsar",
    "component": "compacted-ledger",
    "pulsar/compactedTopic": "persistent://shop/orders/placed",
}
SCHEMA = {"application": "pulsar", "component": "schema", "pulsar/schemaId": "shop/orders/placed"}


class World:
    """A cluster, what its lake remembers, and the question; every ledger is made at 0 h, the question comes at 30 h."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.born = self.clock.now_ms()
        self.zookeeper = FakeZooKeeper(self.clock)
        self.reader = FakeLedgerReader()
        self.writer = self.zookeeper.session()
        self.history = History(epoch=self.epoch(), context=self.context())

    def epoch(self, hours: int = 25, gaps: tuple[Gap, ...] = ()) -> Epoch:
        at = self.born + hours * HOUR
        return Epoch("e1", "test", "f", at, at + 1, (), 100, 100, (), gaps=gaps)

    def context(self) -> Context:
        return Context(now=self.born + 25 * HOUR, grace=24 * HOUR, namespaces=frozenset({"shop/orders"}))

    def ledger(self, ledger_id: int, tags: dict[str, str], state: LedgerState = LedgerState.CLOSED) -> None:
        custom = {key: value.encode() for key, value in tags.items()}
        segments = (Segment(0, ("bookie-1",)),)
        metadata = LedgerMetadata(state, 1, 1, 1, segments, 1000, 0, DigestType.CRC32C, custom_metadata=custom)
        self.node(ledger_path(ledger_id, ROOT), ledger_metadata.encode(metadata))

    def topic(self, *infos: LedgerInfo, path: str = TOPIC_PATH) -> None:
        self.node(path, managed_ledger.encode(ManagedLedgerInfo(infos)))

    def cursor(self, name: str, ledger_id: int) -> None:
        info = cursor.ManagedCursorInfo(ledger_id, Position(1, 0))
        self.node(f"{TOPIC_PATH}/{name}", cursor.encode(info))

    def node(self, path: str, data: bytes) -> None:
        self.writer.create(path, data, parents=True)

    def remember(self, ledger_id: int, kind: str, owner: str, referrer: str) -> None:
        row = {"ledger_id": ledger_id, "kind": kind, "owner": owner, "referrer": referrer}
        rows = pa.Table.from_pylist(
            [{**row, "keeps_bookkeeper_copy": True, "problem": None, "error": None}], REFERENCES
        )
        self.history = replace(self.history, references=rows)

    def explain(self, ledger_id: int) -> Explanation:
        self.clock.advance(30 * 3600 - (self.clock.now_ms() - self.born) / 1000)
        return explain(
            ledger_id,
            self.history,
            store=self.zookeeper.session(read_only=True),
            reader=self.reader,
            now=self.clock.now_ms(),
            ledgers_root=ROOT,
        )


@pytest.fixture
def world() -> World:
    return World()


def said(found: Explanation) -> tuple[Verdict, StrEnum]:
    return found.verdict, found.code


def text(found: Explanation) -> str:
    return found.answer.why.text


def journalled(outcome: str, at: int = 1) -> dict[str, object]:
    topic = "persistent://shop/orders/placed"
    reason = "nothing refers to it"
    row = {"run_id": "run-9", "action": Action.DELETE_LEDGER, "phase": "delete", "outcome": outcome, "reason": reason}
    return {**row, "ledger_id": 7, "topic": topic, "detail": "{}", "at": at, "code": None}


def test_a_ledger_on_its_topics_list_is_in_use(world: World) -> None:
    world.ledger(7, DATA)
    world.topic(LedgerInfo(7))
    found = world.explain(7)
    assert found.verdict is Verdict.IN_USE
    assert text(found) == f"{TOPIC_PATH} (managed-ledger) refers to it"
    assert found.topic == "persistent://shop/orders/placed"


def test_a_cursor_ledger_is_in_use_while_its_cursor_names_it(world: World) -> None:
    world.ledger(7, CURSOR)
    world.topic(LedgerInfo(1))
    world.cursor("billing", 7)
    assert text(world.explain(7)) == f"{TOPIC_PATH}/billing (cursor) refers to it"


def test_a_compacted_ledger_is_in_use_while_the_last_entry_of_the_cursor_ledger_names_it(world: World) -> None:
    world.ledger(7, COMPACTED)
    world.ledger(8, {**DATA, "pulsar/cursor": "__compaction"})
    world.topic(LedgerInfo(1))
    world.cursor("__compaction", 8)
    world.reader.payloads[8] = [
        cursor.encode_position(cursor.PositionInfo(Position(1, 5), (), {"CompactedTopicLedger": 7}))
    ]
    found = world.explain(7)
    assert found.verdict is Verdict.IN_USE
    assert "cursor ledger 8" in text(found)


def test_a_schema_ledger_is_in_use_while_an_index_inside_an_entry_names_it(world: World) -> None:
    def version(number: int, ledger_id: int) -> schema.IndexEntry:
        return schema.IndexEntry(number, Position(ledger_id, 0), b"hash")

    world.ledger(7, SCHEMA)
    world.ledger(8, SCHEMA)
    latest = version(1, 8)
    world.node("/schemas/shop/orders/placed", schema.encode_locator(schema.SchemaLocator(latest, (latest,))))
    world.reader.payloads[8] = [schema.encode_entry(schema.SchemaEntry(b"", (version(0, 7), latest)))]
    world.reader.payloads[7] = [schema.encode_entry(schema.SchemaEntry(b"", (version(0, -1),)))]
    assert world.explain(7).verdict is Verdict.IN_USE


def test_what_another_topic_lists_is_in_use_when_the_scan_saw_that_topic(world: World) -> None:
    world.ledger(7, DATA)
    world.topic(LedgerInfo(7), path="/managed-ledgers/shop/orders/persistent/shadow")
    shadow = "shop/orders/persistent/shadow"
    world.remember(7, "R1", shadow, f"/managed-ledgers/{shadow}")
    found = world.explain(7)
    assert found.verdict is Verdict.IN_USE
    assert text(found) == f"/managed-ledgers/{shadow} (managed-ledger) refers to it"


def test_an_orphan_of_a_covered_scan_may_go(world: World) -> None:
    world.ledger(7, DATA)
    world.topic(LedgerInfo(8))
    found = world.explain(7)
    assert said(found) == (Verdict.MAY_GO, Code.UNREFERENCED)
    assert found.look.asked == (TOPIC_PATH,)
    assert any("no actionable plan has it" in note for note in found.notes)


def test_a_plan_that_has_it_is_no_longer_missed(world: World) -> None:
    world.ledger(7, DATA)
    plan = PlanSummary("p", "test", "f", "e1", "e0", world.born, True, (), 1, 1000, 1000, 10, "d")
    world.history = replace(world.history, plans=(plan,))
    assert not any("no actionable plan" in note for note in world.explain(7).notes)
    world.history = replace(world.history, settled=frozenset({"p"}))
    assert any("no actionable plan" in note for note in world.explain(7).notes)


def test_an_orphan_is_kept_while_the_scan_is_not_covered(world: World) -> None:
    world.ledger(7, DATA)
    world.history = replace(world.history, epoch=world.epoch(gaps=(A_GAP,)))
    assert said(world.explain(7)) == (Verdict.KEPT, ExplainCode.NOT_COVERED)


def test_without_a_scan_nothing_may_go(world: World) -> None:
    world.ledger(7, DATA)
    world.history = History()
    assert world.explain(7).verdict is Verdict.UNJUDGED


def test_an_owner_that_cannot_be_read_keeps_its_ledgers(world: World) -> None:
    world.ledger(7, DATA)
    world.topic(LedgerInfo(8))
    world.zookeeper.unreadable.add(TOPIC_PATH)
    found = world.explain(7)
    assert said(found) == (Verdict.KEPT, Code.UNREAD)
    assert any(TOPIC_PATH in note for note in found.notes)


def test_an_owner_that_does_not_decode_keeps_its_ledgers(world: World) -> None:
    world.ledger(7, DATA)
    world.node(TOPIC_PATH, b"\xff\xff\xff")
    assert said(world.explain(7)) == (Verdict.KEPT, Code.UNREAD)


def test_a_ledger_that_cannot_be_read_is_kept(world: World) -> None:
    world.ledger(7, DATA)
    world.zookeeper.unreadable.add(ledger_path(7, ROOT))
    assert said(world.explain(7)) == (Verdict.KEPT, Code.UNREAD)


def test_what_the_scan_still_saw_in_use_waits_for_the_next(world: World) -> None:
    world.ledger(7, DATA)
    world.topic(LedgerInfo(8))
    world.remember(7, "R1", OWNER, TOPIC_PATH)
    assert said(world.explain(7)) == (Verdict.KEPT, ExplainCode.IN_LAST_SCAN)


def test_a_young_ledger_is_kept(world: World) -> None:
    world.clock.advance(20 * 3600)
    world.ledger(7, DATA)
    found = world.explain(7)
    assert said(found) == (Verdict.KEPT, Finding.TOO_YOUNG)
    assert (found.answer.again or 0) > world.clock.now_ms()


def test_a_ledger_made_after_the_scan_began_is_kept(world: World) -> None:
    world.ledger(7, DATA)
    world.history = replace(world.history, epoch=world.epoch(hours=0))
    found = world.explain(7)
    assert said(found) == (Verdict.KEPT, ExplainCode.NEWER_THAN_SCAN)
    assert found.answer.again is None


@pytest.mark.parametrize(
    ("tags", "state", "code"),
    [
        ({}, LedgerState.CLOSED, Code.NOT_TAGGED),
        (
            {**DATA, "pulsar/managed-ledger": "gone/ns/persistent/t"},
            LedgerState.CLOSED,
            Protection.UNKNOWN_NAMESPACE,
        ),
        (DATA, LedgerState.OPEN, Finding.OPEN_ORPHAN),
    ],
)
def test_the_rules_of_the_plan_are_the_rules_here(
    world: World, tags: dict[str, str], state: LedgerState, code: str
) -> None:
    world.ledger(7, tags, state)
    assert said(world.explain(7)) == (Verdict.KEPT, code)


def test_an_empty_znode_is_named(world: World) -> None:
    world.node(ledger_path(7, ROOT), b"")
    assert said(world.explain(7)) == (Verdict.KEPT, Finding.EMPTY_ZNODE)


@pytest.mark.parametrize(("released_copies", "word"), [(False, "says"), (True, "its copy in BookKeeper is released")])
def test_where_the_offloaded_copy_of_a_ledger_is(world: World, released_copies: bool, word: str) -> None:
    uuid = UUID(int=5)
    world.ledger(7, DATA)
    world.topic(LedgerInfo(7, offload=OffloadContext(uuid, True, released_copies, 1, "aws-s3", {"bucket": "b"})))
    (note,) = [note for note in world.explain(7).notes if str(uuid) in note]
    assert note.startswith(f"offloaded as {uuid}-ledger-7, as {TOPIC_PATH} says")
    assert word in note


def test_an_open_offload_attempt_is_named(world: World) -> None:
    world.ledger(7, DATA)
    world.topic(LedgerInfo(7))
    world.node(attempts.path_of(7), b"{}")
    assert any(attempts.path_of(7) in note for note in world.explain(7).notes)


def test_an_offload_leftover_is_named_although_its_topic_lists_it(world: World) -> None:
    world.ledger(7, DATA)
    world.topic(LedgerInfo(7, offload=OffloadContext(None, True, True, 1, "aws-s3", {})))
    assert said(world.explain(7)) == (Verdict.KEPT, Finding.OFFLOAD_LEFTOVER)


SENT = journalled("sent") | {"phase": "send"}


def release(world: World, *said: dict[str, object], state: LedgerState = LedgerState.CLOSED) -> None:
    """A release of ours gave ledger 7 up and sent a message, of which the journal ``said`` this since."""
    world.ledger(7, DATA, state)
    world.topic(LedgerInfo(7, offload=OffloadContext(None, True, True, 1, "aws-s3", {})))
    stat = world.zookeeper.stat(ledger_path(7, ROOT))
    assert stat is not None
    released = Released(
        "persistent://shop/orders/placed", UUID(int=1), "b", stat.czxid, Verified(1, "", 1, "", 1, 1, "")
    )
    world.history = replace(world.history, released=released, journal=(SENT, *said))


def test_an_offload_leftover_that_was_released_goes_with_the_next_run(world: World) -> None:
    release(world)
    found = world.explain(7)
    assert said(found) == (Verdict.MAY_GO, Code.RELEASED)
    assert not any("second scan" in note for note in found.notes)


@pytest.mark.parametrize(
    ("context", "code"),
    [
        ({"holds": frozenset({"shop"})}, Protection.LEGAL_HOLD),
        ({"shadow_sources": frozenset({"persistent://shop/orders/placed"})}, Protection.SHADOW_SOURCE),
        ({"shared_namespaces": frozenset({"shop/orders"})}, Protection.SHARED_NAMESPACE),
        ({"under_replicated": BitMap64([7])}, Code.UNDER_REPLICATED),
    ],
)
def test_what_was_released_is_kept_by_the_rules_of_a_deletion_run(
    world: World, context: dict[str, Any], code: str
) -> None:
    release(world)
    world.history = replace(world.history, context=replace(world.context(), **context))
    assert said(world.explain(7)) == (Verdict.KEPT, code)


def test_what_was_released_and_never_closed_is_kept(world: World) -> None:
    release(world, state=LedgerState.OPEN)
    assert said(world.explain(7)) == (Verdict.KEPT, Code.NEVER_CLOSED)


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (journalled("kept", 5), ExplainCode.NO_INTENT),
        (journalled("dead-lettered", 5), ExplainCode.DEAD_LETTER),
    ],
)
def test_what_was_released_does_not_go_without_its_intent(
    world: World, row: dict[str, object], code: ExplainCode
) -> None:
    release(world, row)
    assert said(world.explain(7)) == (Verdict.KEPT, code)


def test_another_ledger_with_the_id_of_a_released_one_is_a_leftover(world: World) -> None:
    release(world)
    assert world.history.released is not None
    world.history = replace(world.history, released=replace(world.history.released, czxid=-1))
    assert said(world.explain(7)) == (Verdict.KEPT, Finding.OFFLOAD_LEFTOVER)


def test_a_compacted_ledger_is_what_the_scan_found_because_only_scans_ask_brokers(world: World) -> None:
    world.ledger(7, COMPACTED)
    assert said(world.explain(7)) == (Verdict.KEPT, ExplainCode.NOT_JUDGED_YET)
    for finding, verdict, code in (
        ("kept", Verdict.KEPT, Code.COMPACTION_POSSIBLE),
        ("orphan", Verdict.MAY_GO, Code.NOT_HELD),
    ):
        row = {"finding": finding, "code": code.value, "reason": "as it was", "topic": ""}
        world.history = replace(world.history, finding=row)
        assert (said(world.explain(7)), text(world.explain(7))) == ((verdict, code), "as it was")


SNAPSHOT = {
    "application": "pulsar",
    "component": "delayed-index-bucket",
    "pulsar/delayedIndexBucketKey": "#pulsar.internal.delayed.bucket_3_5",
    "pulsar/delayedIndexTopic": "persistent://shop/orders/placed",
    "pulsar/delayedIndexCursor": "billing",
}


@pytest.mark.parametrize(
    ("finding", "verdict", "loaded_again"),
    [
        (Finding.ORPHAN, Verdict.MAY_GO, ExplainCode.WRITTEN_SINCE),
        (Finding.KEPT, Verdict.KEPT, Finding.KEPT),
    ],
)
def test_a_snapshot_is_what_the_scan_found_until_its_topic_is_loaded_again(
    world: World, finding: Finding, verdict: Verdict, loaded_again: ExplainCode | Finding
) -> None:
    """By a scan of an earlier version, which has no codes."""
    world.ledger(7, SNAPSHOT)
    world.topic(LedgerInfo(8))
    world.history = replace(world.history, finding={"finding": finding.value, "code": None, "reason": ""})
    assert said(world.explain(7)) == (verdict, finding)
    world.writer.write(TOPIC_PATH, managed_ledger.encode(ManagedLedgerInfo((LedgerInfo(8), LedgerInfo(9)))), -1)
    assert said(world.explain(7)) == (Verdict.KEPT, loaded_again)


def test_a_missing_ledger_that_its_topic_lists_is_dangling(world: World) -> None:
    world.topic(LedgerInfo(7))
    world.remember(7, "R1", OWNER, TOPIC_PATH)
    found = world.explain(7)
    assert found.verdict is Verdict.DANGLING
    assert TOPIC_PATH in text(found)


def test_the_journal_says_which_run_deleted_it(world: World) -> None:
    world.history = replace(world.history, journal=(journalled("sent"), journalled("deleted", 2)))
    found = world.explain(7)
    assert (said(found), found.answer.run_id) == ((Verdict.DELETED, Verdict.DELETED), "run-9")
    assert text(found) == "run run-9 deleted it: nothing refers to it"


def test_a_deletion_that_no_run_will_journal_any_more_says_what_to_do(world: World) -> None:
    now = world.clock.now_ms() + 30 * HOUR
    for at, code in ((now - WITHIN_MS, ExplainCode.NEXT_RUN_SAYS), (now - WITHIN_MS - 1, ExplainCode.NEVER_SAID)):
        archived = {"run_id": "run-9", "ledger_id": 7, "at": at}
        world.history = replace(world.history, journal=(journalled("sent"),), archived=(archived,))
        found = world.explain(7)
        assert (said(found), found.answer.run_id) == ((Verdict.GONE, code), "run-9")


def test_a_deletion_that_is_not_journalled_yet_names_its_run(world: World) -> None:
    archived = {"run_id": "run-9", "ledger_id": 7, "at": 3}
    gone = journalled("gone", 4) | {"run_id": "run-10", "phase": "delete", "action": "delete-ledger", "ledger_id": 7}
    world.history = replace(world.history, journal=(journalled("sent"), gone), archived=(archived,))
    found = world.explain(7)
    assert (said(found), found.answer.run_id) == ((Verdict.GONE, ExplainCode.NEVER_SAID), "run-9")
    deleted = gone | {"run_id": "run-9", "outcome": "deleted", "checksum": "abc"}
    world.history = replace(world.history, journal=(*world.history.journal, deleted))
    assert world.explain(7).verdict is Verdict.DELETED


def test_a_deleted_ledger_that_its_topic_lists_again_is_dangling(world: World) -> None:
    world.history = replace(world.history, journal=(journalled("deleted"),))
    world.topic(LedgerInfo(7))
    assert world.explain(7).verdict is Verdict.DANGLING


def test_a_ledger_that_is_there_again_says_so(world: World) -> None:
    world.ledger(7, DATA)
    world.topic(LedgerInfo(7))
    world.history = replace(world.history, journal=(journalled("deleted"),))
    found = world.explain(7)
    assert found.verdict is Verdict.IN_USE
    assert any("restored" in note for note in found.notes)


def test_an_intent_is_what_the_journal_last_said_of_it(world: World) -> None:
    sent = journalled("sent", 1) | {"phase": "send"}
    copy = journalled("sent", 9) | {"phase": "send", "action": Action.DELETE_OFFLOADED}
    states = {
        "": (copy,),
        IntentState.IN_FLIGHT: (sent, journalled("retrying", 2)),
        "kept": (sent, journalled("kept", 2)),
    }
    states |= {IntentState.DEAD_LETTER: (sent, journalled("dead-lettered", 2), copy)}
    for state, journal in states.items():
        assert replace(world.history, journal=journal).intent() == state


def test_the_deletion_of_an_offloaded_copy_is_none_of_the_ledger(world: World) -> None:
    copy = journalled("deleted") | {"action": Action.DELETE_OFFLOADED}
    note = "run run-9 deleted an offloaded copy of it, which no undo brings back: nothing refers to it"
    world.history = replace(world.history, journal=(copy,))
    found = world.explain(7)
    assert (said(found), found.notes) == ((Verdict.GONE, ExplainCode.JOURNAL_KNOWS), (note,))
    world.ledger(7, DATA)
    world.topic(LedgerInfo(7))
    found = world.explain(7)
    assert (found.verdict, found.notes) == (Verdict.IN_USE, (note,))


def test_a_ledger_that_its_topic_reads_offloaded_says_so_although_we_deleted_a_copy_of_it(world: World) -> None:
    uuid, other = UUID(int=5), UUID(int=6)
    world.topic(LedgerInfo(7, offload=OffloadContext(uuid, True, True, 1, "aws-s3", {"bucket": "b"})))
    for swept, read in ((other, True), (uuid, False)):
        objects = {"objects": [{"bucket": "b", "key": f"{swept}-ledger-7"}]}
        copy = journalled("deleted", 2) | {"action": Action.DELETE_OFFLOADED, "detail": json.dumps(objects)}
        world.history = replace(world.history, journal=(journalled("deleted"), copy))
        found = world.explain(7)
        assert said(found) == (Verdict.DELETED, ExplainCode.READ_OFFLOADED if read else Verdict.DELETED)
        (note,) = [note for note in found.notes if "deleted an offloaded copy of it" in note]
        assert ("; not the one that its topic names: " in note) == read


def test_a_ledger_that_went_with_its_topic_names_the_run(world: World) -> None:
    removed = journalled("removed") | {"phase": "mark", "code": Code.TOPIC_DELETED}
    half = journalled("left") | {"phase": "mark", "code": Code.BROKER_DELETED}
    found_gone = journalled("gone", 2)
    whole, partly = Code.TOPIC_DELETED, Code.BROKER_DELETED
    for journal, code in (((removed,), whole), ((removed, found_gone), whole), ((half,), partly)):
        world.history = replace(world.history, journal=journal)
        found = world.explain(7)
        assert (said(found), found.answer.run_id) == ((Verdict.GONE, code), "run-9")
    world.history = replace(world.history, journal=(removed, journalled("deleted", 2)))
    assert world.explain(7).verdict is Verdict.DELETED


def test_an_offloaded_copy_whose_run_died_is_named_until_it_is_found(world: World) -> None:
    begun = journalled("deleting") | {"action": Action.DELETE_OFFLOADED, "phase": "archive", "reason": ""}
    world.history = replace(world.history, journal=(begun,))
    (note,) = world.explain(7).notes
    assert note.startswith("run run-9 was the last to delete an offloaded copy of it, which no undo brings back")
    unasked = journalled("waiting", 2) | {"action": Action.DELETE_OFFLOADED}
    world.history = replace(world.history, journal=(begun, unasked))
    assert len(world.explain(7).notes) == 1
    there = journalled("retrying", 2) | {
        "action": Action.DELETE_OFFLOADED,
        "code": Code.STILL_THERE,
        "detail": '{"objects": []}',
    }
    world.history = replace(world.history, journal=(begun, there))
    assert world.explain(7).notes == ()


def test_a_ledger_that_was_lost_stays_so_whatever_becomes_of_its_offloaded_copy(world: World) -> None:
    lost, copy = (
        journalled("lost", 3) | {"phase": "undo"},
        journalled("deleted", 4) | {"action": Action.DELETE_OFFLOADED},
    )
    world.history = replace(world.history, journal=(journalled("deleted", 2), lost, copy))
    assert any("found it lost" in note for note in world.explain(7).notes)


def test_a_ledger_that_vanished_without_us_is_gone(world: World) -> None:
    world.remember(7, "R1", OWNER, TOPIC_PATH)
    assert said(world.explain(7)) == (Verdict.GONE, ExplainCode.LAST_SCAN_KNEW)
    world.history = History(journal=(journalled("kept"),))
    assert said(world.explain(7)) == (Verdict.GONE, ExplainCode.JOURNAL_KNOWS)


def test_no_trace_is_unknown(world: World) -> None:
    assert world.explain(7).verdict is Verdict.UNKNOWN


def mark(world: World, hours: float, czxid: int | None = None) -> None:
    """Our first phase took ledger 7 off its topic's list, hours after the world began; the last scan began at 25."""
    stat = world.zookeeper.stat(ledger_path(7, ROOT))
    assert stat is not None
    at = world.born + int(hours * HOUR)
    world.history = replace(world.history, marked=(stat.czxid if czxid is None else czxid, at))


def test_a_ledger_that_our_first_phase_took_off_goes_however_young(world: World) -> None:
    world.history = replace(world.history, context=replace(world.context(), grace=1000 * HOUR))
    world.ledger(7, DATA)
    world.topic()
    assert said(world.explain(7)) == (Verdict.KEPT, Finding.TOO_YOUNG)
    mark(world, 24)
    found = world.explain(7)
    assert said(found) == (Verdict.MAY_GO, Code.TAKEN_OFF)
    assert text(found) == "our first phase took it off its topic's list: the next deletion run deletes it"
    assert not any("plan" in note for note in found.notes)
    mark(world, 24, czxid=10**9)  # another ledger had this id
    assert world.explain(7).verdict is Verdict.KEPT


def test_a_ledger_that_was_taken_off_after_the_last_scan_waits_for_the_next(world: World) -> None:
    world.ledger(7, DATA)
    world.topic()
    world.remember(7, "R1", OWNER, TOPIC_PATH)
    mark(world, 26)
    assert said(world.explain(7)) == (Verdict.KEPT, ExplainCode.NO_NEW_SCAN)
    mark(world, 24)
    assert said(world.explain(7)) == (Verdict.KEPT, ExplainCode.IN_LAST_SCAN)


def test_a_legal_hold_keeps_what_was_taken_off(world: World) -> None:
    world.ledger(7, DATA)
    world.topic()
    world.history = replace(world.history, context=replace(world.context(), holds=frozenset({"shop"})))
    mark(world, 24)
    found = world.explain(7)
    assert said(found) == (Verdict.KEPT, Protection.LEGAL_HOLD)
    assert text(found) == "our first phase took it off its topic's list, but legal hold"


def test_a_deleted_ledger_names_the_job_that_restores_it_until_that_found_it_lost(world: World) -> None:
    lost = journalled("lost", 3) | {"phase": "undo"}
    world.history = replace(world.history, journal=(journalled("deleted", 2),))
    assert any("undo_deletions restores it" in note for note in world.explain(7).notes)
    world.history = replace(world.history, journal=(journalled("deleted", 2), lost))
    notes = world.explain(7).notes
    assert any("found it lost" in note for note in notes)
    assert not any("restores" in note for note in notes)
    world.history = replace(world.history, journal=(*world.history.journal, journalled("deleted", 4)))
    assert any("undo_deletions restores it" in note for note in world.explain(7).notes)
