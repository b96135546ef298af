"""What ``explain`` says of a ledger with an offloaded copy, open attempt, or BookKeeper-copy deletion."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.deletion.run_evidence import Evidence
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, OffloadContext
from pulsar_lifecycle.inspect.explain_codes import ExplainCode, Verdict
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.copies import CopyDeletion, Verified
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Action
from pulsar_lifecycle.values.referenced import Referenced
from tests.kit.scenes.explain_scene import DATA, ROOT, TOPIC_PATH, World, journalled, said


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("bookkeeper_deleted", "word"), [(False, "says"), (True, "its topic lists its copy in BookKeeper as deleted")]
)
def test_where_the_offloaded_copy_of_a_ledger_is(world: World, bookkeeper_deleted: bool, word: str) -> None:
    uuid = UUID(int=5)
    world.ledger(7, DATA)
    world.topic(LedgerInfo(7, offload=OffloadContext(uuid, True, bookkeeper_deleted, 1, "aws-s3", {"bucket": "b"})))
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


def begun(world: World, *said: dict[str, object], state: LedgerState = LedgerState.CLOSED) -> None:
    """A run of ours lists ledger 7's copy as deleted and sent a message, of which the journal ``said`` this since."""
    world.ledger(7, DATA, state)
    world.topic(LedgerInfo(7, offload=OffloadContext(None, True, True, 1, "aws-s3", {})))
    stat = world.zookeeper.stat(ledger_path(7, ROOT))
    assert stat is not None
    deletion = CopyDeletion(
        "persistent://shop/orders/placed", UUID(int=1), "b", stat.czxid, Verified(1, "", 1, "", 1, 1, "")
    )
    world.history = replace(world.history, copy_deletion=deletion, journal=(SENT, *said))


def test_an_offload_leftover_that_we_began_to_delete_goes_with_the_next_run(world: World) -> None:
    begun(world)
    found = world.explain(7)
    assert said(found) == (Verdict.MAY_GO, Code.BOOKKEEPER_DELETED)
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
def test_what_we_began_to_delete_is_kept_by_the_rules_of_a_deletion_run(
    world: World, context: dict[str, Any], code: str
) -> None:
    begun(world)
    world.history = replace(world.history, context=replace(world.context(), **context))
    assert said(world.explain(7)) == (Verdict.KEPT, code)


def test_what_we_began_to_delete_and_never_closed_is_kept(world: World) -> None:
    begun(world, state=LedgerState.OPEN)
    assert said(world.explain(7)) == (Verdict.KEPT, Code.NEVER_CLOSED)


def test_what_we_began_to_delete_is_kept_where_its_topic_cannot_be_read(world: World) -> None:
    begun(world)
    world.writer.write(TOPIC_PATH, b"no managed ledger", 0)
    evidence = Evidence(Referenced(), 0, Referenced(), None, 0, world.context())
    world.history = replace(world.history, evidence=evidence)
    assert said(world.explain(7)) == (Verdict.KEPT, Code.UNREAD)


@pytest.mark.parametrize(
    ("row", "code"),
    [
        (journalled("kept", 5), ExplainCode.NO_INTENT),
        (journalled("dead-lettered", 5), ExplainCode.DEAD_LETTER),
    ],
)
def test_what_we_began_to_delete_does_not_go_without_its_intent(
    world: World, row: dict[str, object], code: ExplainCode
) -> None:
    begun(world, row)
    assert said(world.explain(7)) == (Verdict.KEPT, code)


def test_another_ledger_with_the_id_of_one_that_goes_is_a_leftover(world: World) -> None:
    begun(world)
    assert world.history.copy_deletion is not None
    world.history = replace(world.history, copy_deletion=replace(world.history.copy_deletion, czxid=-1))
    assert said(world.explain(7)) == (Verdict.KEPT, Finding.OFFLOAD_LEFTOVER)


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
