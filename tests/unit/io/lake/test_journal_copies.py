"""What the journal says of copies: marks, offloaded copies and their proofs, copy deletions, attempts."""

import json
from dataclasses import replace
from uuid import UUID

import pytest

from pulsar_lifecycle.formats.deletion_message import LedgerType, MessageOffloadContext, encode_deletion_message
from pulsar_lifecycle.journal.first_phase_marks import asked_offloads, marked_ledgers, marked_offloads
from pulsar_lifecycle.journal.offloads import (
    begun_attempts,
    copy_deletions,
    deleted_copies,
    failed_proofs,
    sent_copies,
    verified_copies,
)
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.copies import Asked, BegunAttempt, CopyDeletion, Verified
from pulsar_lifecycle.values.outcomes import Action, Outcome
from tests.kit.builders import NODE, NOON, PROOF, ROW, intent

ASKED = Asked(ROW.topic)


def test_what_a_run_deleted_of_offloaded_copies_is_named(journal):
    objects = [{"bucket": "b", "key": "u-ledger-1"}, {"bucket": "b", "key": "u-ledger-1-index"}]
    row = replace(ROW, action="delete-offload-ledger", outcome="deleted", detail=json.dumps({"objects": objects}))
    others = [
        replace(row, outcome="gone"),
        replace(row, cluster="neighbour"),
        replace(row, action=Action.DELETE_LEDGER),
    ]
    journal.record(
        [replace(row, ledger_id=2, detail="{}"), row, *(replace(one, ledger_id=3, detail="{}") for one in others)]
    )
    lost = ["s3://b/u-ledger-1", "s3://b/u-ledger-1-index", "the copy of ledger 2"]
    assert deleted_copies(journal, "sandbox", "run-1") == lost
    assert deleted_copies(journal, "sandbox", "run-2") == []


def test_only_the_copy_that_went_with_a_ledger_is_lost_to_it(journal):
    """Another one was an orphan of its own: no topic named it, and an undo of the ledger misses nothing."""

    def swept(run_id, ledger_id, copy, at):
        objects = [{"bucket": "b", "key": f"{copy}-ledger-{ledger_id}"}]
        detail = json.dumps({"uuid": str(UUID(int=copy)), "bucket": "b", "objects": objects})
        row = replace(ROW, run_id=run_id, action="delete-offload-ledger", phase="delete", outcome="deleted")
        return replace(row, ledger_id=ledger_id, detail=detail, at=at)

    def marked(ledger_id, copy, **also):
        detail = json.dumps({"czxid": 1, "uuid": str(UUID(int=copy)) if copy else "", "bucket": "b"} | also)
        row = replace(
            ROW, phase="mark", outcome=Outcome.MARKED, action=Action.DELETE_LEDGER, ledger_id=ledger_id, detail=detail
        )
        return replace(row, at=NOON + 5)

    older = replace(marked(7, 0), ledger_id=4, detail="{}")  # from before marks said which copy they ask for
    journal.record([marked(1, 1), marked(2, 0), marked(3, 1, bucket="c"), older])
    journal.record([swept("long-ago", i, 2, NOON) for i in range(6)])
    journal.record([swept("later", i, 1, NOON + 9) for i in range(6)])
    journal.archive([replace(NODE, run_id="later", ledger_id=0, at=NOON + 8)])
    journal.archive([replace(NODE, run_id="long-ago", ledger_id=0), replace(NODE, run_id="another", ledger_id=5)])
    lost = ["s3://b/1-ledger-0", "s3://b/1-ledger-1", "s3://b/1-ledger-4"]
    assert deleted_copies(journal, "sandbox", ledger_ids=range(6)) == lost
    assert len(deleted_copies(journal, "sandbox", "long-ago")) == 6


@pytest.mark.parametrize(
    ("words", "whose"),
    [
        ([], "run-1"),
        ([("run-2", "gone")], "run-1"),
        ([("run-1", "retrying")], ""),
        ([("run-2", "waiting")], "run-1"),
        ([("run-1", "retrying"), ("run-2", "gone")], "run-1"),
        ([("run-1", "retrying"), ("run-2", "deleting"), ("run-2", "deleted")], "run-2"),
        ([("run-1", "deleted"), ("run-2", "kept")], "run-1"),
    ],
)
def test_an_offloaded_copy_is_lost_to_the_run_that_was_about_to_delete_it(journal, words, whose):
    """It may have died before its last word, or got no answer; another copy's words say nothing of this one."""
    copy = {"uuid": str(UUID(int=1)), "bucket": "b"}
    objects = [{"bucket": "b", "key": "u-ledger-1"}]
    begun = replace(ROW, action="delete-offload-ledger", phase="archive", outcome="deleting")
    begun = replace(begun, detail=json.dumps({**copy, "objects": objects}))
    said = [
        replace(
            begun,
            run_id=run_id,
            phase="archive" if outcome == "deleting" else "delete",
            outcome=outcome,
            code=Code.STILL_THERE if outcome == "retrying" else None,
            detail=begun.detail if outcome in ("deleting", "deleted", "retrying") else json.dumps(copy),
            at=NOON + n,
        )
        for n, (run_id, outcome) in enumerate(words, 1)
    ]
    others = [{**copy, "uuid": str(UUID(int=2))}, {**copy, "bucket": "c"}]
    kept = replace(begun, phase="delete", outcome="kept", at=NOON + 9)
    journal.record([begun, *said, *(replace(kept, detail=json.dumps(other)) for other in others)])
    for run_id in ("run-1", "run-2"):
        assert deleted_copies(journal, "sandbox", run_id) == (["s3://b/u-ledger-1"] if run_id == whose else [])


def test_a_mark_is_open_for_each_copy_until_that_copy_is_settled(journal):
    assert (marked_ledgers(journal, "sandbox"), marked_offloads(journal, "sandbox")) == ({}, {})
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-ledger", detail='{"czxid": 7}')
    journal.record([replace(mark, ledger_id=i) for i in (1, 2)] + [replace(mark, ledger_id=3, detail="{}")])
    journal.record([replace(mark, ledger_id=4, cluster="neighbour")])
    done = replace(mark, phase="delete", outcome="deleted")
    journal.record([replace(done, ledger_id=1), replace(done, ledger_id=2, outcome="retrying")])
    journal.record([replace(done, ledger_id=2, outcome="gone", action="delete-offload-ledger")])
    assert marked_ledgers(journal, "sandbox") == {(2, 7): NOON}
    assert marked_offloads(journal, "sandbox") == {(1, ASKED): NOON, (3, ASKED): NOON}


def test_a_ledger_that_was_deleted_and_restored_is_marked_again(journal):
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-ledger", detail='{"czxid": 7}')
    done = replace(mark, phase="delete", outcome="deleted", at=NOON + 1)
    journal.record([mark, done, replace(done, action="delete-offload-ledger", outcome="gone")])
    assert (marked_ledgers(journal, "sandbox"), marked_offloads(journal, "sandbox")) == ({}, {})
    journal.record([replace(mark, detail='{"czxid": 8}', at=NOON + 2)])
    assert marked_ledgers(journal, "sandbox") == {(mark.ledger_id, 8): NOON + 2}
    assert marked_offloads(journal, "sandbox") == {(mark.ledger_id, ASKED): NOON + 2}
    journal.record([replace(done, outcome="gone", at=NOON + 3)])
    assert marked_ledgers(journal, "sandbox") == {}


def test_a_mark_ends_when_its_ledger_stayed_or_was_kept(journal):
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-ledger", detail='{"czxid": 7}')
    journal.record([replace(mark, ledger_id=i) for i in (1, 2, 3)])
    journal.record([replace(mark, ledger_id=1, outcome="left"), replace(mark, ledger_id=3, outcome="removed")])
    assert marked_ledgers(journal, "sandbox") == {(2, 7): NOON, (3, 7): NOON}
    journal.record([replace(mark, ledger_id=2, phase="delete", outcome="kept", at=NOON + 1)])
    journal.record([replace(mark, ledger_id=3, outcome="left", cluster="neighbour", at=NOON + 1)])
    assert marked_ledgers(journal, "sandbox") == {(3, 7): NOON}
    assert marked_offloads(journal, "sandbox") == dict.fromkeys([(2, ASKED), (3, ASKED)], NOON)
    journal.record([replace(mark, ledger_id=1, at=NOON + 2)])
    assert marked_ledgers(journal, "sandbox") == {(1, 7): NOON + 2, (3, 7): NOON}
    kept = replace(mark, phase="delete", outcome="kept", action="delete-offload-ledger", at=NOON + 3)
    journal.record([replace(kept, ledger_id=i) for i in (1, 2, 3)])
    assert {i for i, _ in marked_offloads(journal, "sandbox")} == {1, 2, 3}


def test_what_settles_one_offloaded_copy_ends_the_mark_of_no_other(journal):
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-offload-ledger")
    gone = replace(mark, phase="delete", outcome="gone", at=NOON + 1)
    ours, other = UUID(int=1), UUID(int=2)
    older, asks, asks_none, no_uuid = "{}", f'{{"uuid": "{ours}"}}', '{"uuid": ""}', '{"uuid": "1"}'
    marks = [older, asks, asks, asks, asks_none, older, no_uuid]
    journal.record([replace(mark, ledger_id=i, detail=detail) for i, detail in enumerate(marks)])
    intent_states = {0: Asked(ROW.topic), **dict.fromkeys((1, 2, 3), Asked(ROW.topic, ours)), 5: Asked(ROW.topic)}
    assert marked_offloads(journal, "sandbox") == dict.fromkeys(intent_states.items(), NOON)
    another = f'{{"uuid": "{other}"}}'
    said = {0: another, 1: another, 2: asks, 3: older, 5: older}
    journal.record([replace(gone, ledger_id=i, detail=detail) for i, detail in said.items()])
    assert marked_offloads(journal, "sandbox") == {(i, intent_states[i]): NOON for i in (1, 3)}
    journal.record(
        [replace(mark, ledger_id=1, detail=asks_none, at=NOON + 2), replace(mark, ledger_id=3, outcome="left")]
    )
    assert marked_offloads(journal, "sandbox") == {(1, intent_states[1]): NOON}
    journal.record([replace(gone, ledger_id=1, detail=asks, at=NOON + 3)])
    assert marked_offloads(journal, "sandbox") == {}


@pytest.mark.parametrize("outcome", ["kept", "refused"])
def test_only_what_became_of_its_own_message_leaves_a_copy_unasked(journal, outcome):
    """A copy of it on the retry topic has another id, and its plan; anyone may send a message about the same copy."""
    copy = {"uuid": str(UUID(int=1)), "bucket": "b"}
    asked = Asked(ROW.topic, UUID(int=1), "b")
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-ledger")
    mark = replace(mark, detail=json.dumps({**copy, "messages": {"Ledger": "0a", "Offload-Ledger": "0b"}}))
    by_plan, by_hand = replace(mark, ledger_id=1), replace(mark, ledger_id=2, plan_id="")
    journal.record([by_plan, by_hand])

    def said(row, *, message="0c", bucket="b", uuid=1, raw=None, **changed):
        context = MessageOffloadContext(msb=0, lsb=uuid, driver_name="aws-s3", metadata={"bucket": bucket})
        info = replace(intent(row.ledger_id, plan_id=row.plan_id), topic_name=row.topic, offload_context=context)
        info = replace(info, ledger_type=LedgerType.OFFLOAD_LEDGER)
        detail = {"message": message, "uuid": str(UUID(int=uuid))}
        if outcome == "refused":
            detail["raw"] = (encode_deletion_message(info) if raw is None else raw).hex()
        elif bucket != "":  # a hold keeps it before its bucket is looked at
            detail["bucket"] = bucket
        row = replace(row, phase="delete", outcome=outcome, action="delete-offload-ledger", at=NOON + 1)
        return replace(row, detail=json.dumps(detail), **changed)

    others = [
        said(by_plan, plan_id=""),
        said(by_plan, plan_id="plan-2"),
        said(by_plan, bucket="c"),
        said(by_plan, uuid=2),
        said(by_plan, topic="persistent://a/b/d"),
        said(by_plan, message="0a", plan_id=""),
        said(by_plan, at=NOON - 1),
        replace(said(by_plan), detail="{}"),
        said(by_hand),
        said(by_hand, message=""),
    ]
    if outcome == "refused":
        others += [said(by_plan, raw=raw) for raw in (b"", b"cut off")]
    else:
        others.append(said(by_plan, bucket="", code=Code.OTHER_DRIVER))
    journal.record(others)
    assert asked_offloads(journal, "sandbox") == {(1, asked): NOON, (2, asked): NOON}
    journal.record([said(by_plan, bucket="b" if outcome == "refused" else "")])
    assert asked_offloads(journal, "sandbox") == {(2, asked): NOON}
    journal.record([said(by_hand, message="0b")])
    assert asked_offloads(journal, "sandbox") == {}


def test_a_newer_mark_of_another_copy_ends_no_older_one(journal):
    """A stale broker listed the ledger again and offloaded it anew; the first phase took it off once more."""
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-offload-ledger", ledger_id=1)
    first, second = (Asked(ROW.topic, UUID(int=n), "b") for n in (1, 2))
    detail = {one: json.dumps({"uuid": str(one.uuid), "bucket": "b"}) for one in (first, second)}
    journal.record([replace(mark, detail=detail[first]), replace(mark, detail=detail[second], at=NOON + 2)])
    assert marked_offloads(journal, "sandbox") == {(1, first): NOON, (1, second): NOON + 2}
    journal.record([replace(mark, detail=detail[second], phase="delete", outcome="deleted", at=NOON + 3)])
    assert marked_offloads(journal, "sandbox") == {(1, first): NOON}
    journal.record([replace(mark, outcome="left", at=NOON + 4)])
    assert marked_offloads(journal, "sandbox") == {}


def test_a_mark_stands_until_its_copy_in_its_own_bucket_is_settled(journal):
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-offload-ledger")
    gone = replace(mark, phase="delete", outcome="gone", at=NOON + 1)
    uuid = UUID(int=1)
    anywhere, here, there = (
        json.dumps({"uuid": str(uuid), **where}) for where in ({}, {"bucket": "b"}, {"bucket": "c"})
    )
    journal.record([replace(mark, ledger_id=1, detail=here), replace(mark, ledger_id=2, detail=anywhere)])
    asked = {1: Asked(ROW.topic, uuid, "b"), 2: Asked(ROW.topic, uuid)}
    assert marked_offloads(journal, "sandbox") == dict.fromkeys(asked.items(), NOON)
    journal.record([replace(gone, ledger_id=i, detail=there) for i in (1, 2)])
    assert marked_offloads(journal, "sandbox") == {(1, asked[1]): NOON}
    journal.record([replace(gone, ledger_id=1, detail=here)])
    assert marked_offloads(journal, "sandbox") == {}


@pytest.mark.parametrize("detail", ["", "no JSON", "[]", "7", '{"czxid": "7"}', '{"czxid": true}', "[" * 100_000])
def test_a_mark_that_names_no_z_node_waives_nothing(journal, detail):
    mark = replace(ROW, phase="mark", outcome="marked", action="delete-ledger", detail=detail)
    journal.record([mark, replace(mark, ledger_id=9, detail='{"czxid": 7}')])
    assert marked_ledgers(journal, "sandbox") == {(9, 7): NOON}


UUIDS = [UUID(int=1), UUID(int=2)]


def test_the_newest_proof_of_each_copy_is_found(journal) -> None:
    row = replace(ROW, action=Action.OFFLOAD, phase=Action.OFFLOAD, outcome=Outcome.VERIFIED)
    for at, (uuid, etag) in enumerate([(UUIDS[0], "old"), (UUIDS[0], "new"), (UUIDS[1], "other")]):
        detail = json.dumps({**PROOF, "data_etag": etag, "uuid": str(uuid)})
        journal.record([replace(row, detail=detail, at=row.at + at)])
    journal.record([replace(row, ledger_id=2, detail="{}"), replace(row, cluster="another", detail=json.dumps(PROOF))])
    found = verified_copies(journal, "sandbox", [ROW.ledger_id, 2])
    assert {key: proof.data_etag for key, proof in found.items()} == {
        (ROW.ledger_id, UUIDS[0]): "new",
        (ROW.ledger_id, UUIDS[1]): "other",
    }


def test_a_copy_deletion_is_one_until_it_is_deleted(journal) -> None:
    detail = {**PROOF, "uuid": str(UUIDS[0]), "bucket": "b", "czxid": 9}
    row = replace(
        ROW,
        action=Action.COPY_DELETION,
        phase="bookkeeper-copy-deletion",
        outcome=Outcome.MARKED,
        detail=json.dumps(detail),
    )
    journal.record([row, replace(row, ledger_id=2, detail="{}"), replace(row, ledger_id=3)])
    found = copy_deletions(journal, "sandbox")
    assert found == {i: CopyDeletion(ROW.topic, UUIDS[0], "b", 9, Verified(**PROOF)) for i in (ROW.ledger_id, 3)}
    journal.record(
        [replace(ROW, ledger_id=3, action=Action.DELETE_LEDGER, phase="delete", outcome=Outcome.DELETED, at=ROW.at + 1)]
    )
    assert set(copy_deletions(journal, "sandbox")) == {ROW.ledger_id}
    assert copy_deletions(journal, "another") == {}


def test_a_copy_deletion_of_what_failed_a_later_proof_is_none_any_more(journal) -> None:
    detail = json.dumps({**PROOF, "uuid": str(UUIDS[0]), "bucket": "b", "czxid": 9})
    row = replace(
        ROW, action=Action.COPY_DELETION, phase="bookkeeper-copy-deletion", outcome=Outcome.MARKED, detail=detail
    )
    journal.record([replace(row, outcome=Outcome.PROOF_FAILED, at=row.at - 1), row])
    assert set(copy_deletions(journal, "sandbox")) == {ROW.ledger_id}
    journal.record([replace(row, outcome=Outcome.PROOF_FAILED, at=row.at + 1)])
    assert copy_deletions(journal, "sandbox") == {}


def test_a_failed_proof_stands_until_the_same_copy_is_proven_or_reverted(journal) -> None:
    detail = json.dumps({"uuid": str(UUIDS[0]), "bucket": "b"})
    row = replace(
        ROW, action=Action.COPY_DELETION, phase="bookkeeper-copy-deletion", outcome=Outcome.PROOF_FAILED, detail=detail
    )
    journal.record([row, replace(row, ledger_id=2), replace(row, ledger_id=3, detail="{}")])
    journal.record(
        [replace(row, ledger_id=2, action=Action.OFFLOAD, outcome=Outcome.VERIFIED, at=row.at + 1, run_id="later")]
    )
    other = json.dumps({**PROOF, "uuid": str(UUIDS[1])})
    whole = replace(row, action=Action.OFFLOAD, outcome=Outcome.VERIFIED)
    journal.record([replace(whole, detail=other, at=row.at + 1), replace(whole, at=row.at - 1)])
    journal.record([replace(whole, at=row.at + 1)])  # of an executor whose clock is ahead: the run proves none again
    assert failed_proofs(journal, "sandbox") == {(ROW.ledger_id, UUIDS[0]): row}
    assert failed_proofs(journal, "another") == {}
    journal.record([replace(whole, outcome=Outcome.REVERTED, at=row.at + 2)])
    assert failed_proofs(journal, "sandbox") == {}
    journal.record([replace(row, at=row.at + 3)])
    assert list(failed_proofs(journal, "sandbox")) == [(ROW.ledger_id, UUIDS[0])]


def test_attempts_that_our_own_runs_began_and_when_they_were_last_spoken_of(journal):
    ours, verified_only, cut = (UUID(int=n) for n in (1, 2, 3))
    row = replace(ROW, action="offload", phase="offload", outcome="prepared", ledger_id=7)

    def of(uuid, **others):
        return replace(row, detail=json.dumps({"uuid": str(uuid)}), **others)

    journal.record([of(ours, at=NOON + 5, outcome="attempt-aborted"), of(ours), of(verified_only, outcome="verified")])
    journal.record([of(cut, cluster="neighbour"), replace(row, detail="{"), of(UUID(int=4), ledger_id=8)])
    assert begun_attempts(journal, row.cluster, [7, 9]) == {ours: BegunAttempt(row.topic, NOON + 5)}
    assert begun_attempts(journal, row.cluster, []) == {}


def test_copies_of_a_plan_that_were_sent(journal):
    row = replace(ROW, action="delete-offload-ledger", phase="send", outcome="sent", plan_id="p")

    def of(number, **others):
        return replace(row, detail=json.dumps({"message": "00", "uuid": str(UUID(int=number))}), **others)

    journal.record([of(1), of(2, outcome="send-failed"), of(3, plan_id="other"), of(4, action="delete-ledger")])
    assert sent_copies(journal, "p") == {UUID(int=1)}
