"""What ``explain`` says of a ledger that is there: in use, kept, or free to go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_lifecycle.formats import cursor, managed_ledger, schema
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.inspect.explain import Explanation
from pulsar_lifecycle.inspect.explain_codes import ExplainCode, Verdict
from pulsar_lifecycle.inspect.ledger_history import History
from pulsar_lifecycle.inspect.settled import PlanEnd
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from tests.kit.builders import A_GAP
from tests.kit.scenes.explain_scene import DATA, HOUR, OWNER, ROOT, TOPIC_PATH, World, journalled, said, text

CURSOR = {**DATA, "pulsar/cursor": "billing"}
COMPACTED = {
    "application": "pulsar",
    "component": "compacted-ledger",
    "pulsar/compactedTopic": "persistent://shop/orders/placed",
}
SCHEMA = {"application": "pulsar", "component": "schema", "pulsar/schemaId": "shop/orders/placed"}


@pytest.fixture
def world() -> World:
    return World()


def in_use_by(found: Explanation) -> list[tuple[str, str]]:
    """Kind and z-node or entry of each reference, of a ledger that is in use."""
    assert said(found) == (Verdict.IN_USE, Verdict.IN_USE)
    return [(row["kind"], row["referrer"]) for row in found.look.references.to_pylist()]


def test_a_ledger_on_its_topics_list_is_in_use(world: World) -> None:
    world.ledger(7, DATA)
    world.topic(LedgerInfo(7))
    found = world.explain(7)
    assert in_use_by(found) == [("R1", TOPIC_PATH)]
    assert found.topic == "persistent://shop/orders/placed"


def test_a_cursor_ledger_is_in_use_while_its_cursor_names_it(world: World) -> None:
    world.ledger(7, CURSOR)
    world.topic(LedgerInfo(1))
    world.cursor("billing", 7)
    assert in_use_by(world.explain(7)) == [("R2", f"{TOPIC_PATH}/billing")]


def test_a_compacted_ledger_is_in_use_while_the_last_entry_of_the_cursor_ledger_names_it(world: World) -> None:
    world.ledger(7, COMPACTED)
    world.ledger(8, {**DATA, "pulsar/cursor": "__compaction"})
    world.topic(LedgerInfo(1))
    world.cursor("__compaction", 8)
    world.reader.payloads[8] = [
        cursor.encode_position(cursor.PositionInfo(Position(1, 5), (), {"CompactedTopicLedger": 7}))
    ]
    assert in_use_by(world.explain(7)) == [("R3", f"{TOPIC_PATH}/__compaction, cursor ledger 8")]


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
    assert in_use_by(world.explain(7)) == [("R1", f"/managed-ledgers/{shadow}")]


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
    world.history = replace(world.history, ended={"p": PlanEnd.SETTLED})
    assert any("no actionable plan" in note for note in world.explain(7).notes)


@pytest.mark.parametrize("ago", [0, 1])
def test_a_plan_is_missed_of_what_was_sent_too_long_ago_to_be_left_out(world: World, ago: int) -> None:
    world.ledger(7, DATA)
    sent = journalled("sent", 10) | {"phase": "send"}
    world.history = replace(world.history, journal=(sent,), valid_since=10 + ago)
    assert any("no actionable plan" in note for note in world.explain(7).notes) == bool(ago)


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


def test_what_was_taken_off_goes_beside_the_open_ledger_of_a_load_that_our_write_came_before(world: World) -> None:
    owner = frozenset({"persistent://shop/orders/placed"})
    world.history = replace(world.history, context=replace(world.context(), open_topics=owner))
    world.ledger(7, DATA)
    world.topic()
    mark(world, 24)
    assert said(world.explain(7)) == (Verdict.KEPT, Code.OTHER_OPEN)
    overtaken = replace(world.context(), open_topics=owner, overtaken_topics=owner)
    world.history = replace(world.history, context=overtaken)
    assert said(world.explain(7)) == (Verdict.MAY_GO, Code.TAKEN_OFF)
    world.history = replace(world.history, marked=None)
    assert said(world.explain(7)) == (Verdict.KEPT, Code.OTHER_OPEN)


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
    assert text(found).startswith("our first phase took it off its topic's list, but legal hold")
