"""Which deleted ledgers an undo brings back, what it says of the others, and after a crash at every step."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.deletion.undo.undo import begun, preview, undo
from pulsar_lifecycle.deletion.undo.undone import Undone, UndoPorts
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.deletion_message import encode_deletion_message
from pulsar_lifecycle.formats.ledger_metadata import LedgerState, Segment
from pulsar_lifecycle.ports.ledgers import ReplicaCheck
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.apply import intents
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.undo_scene import GC_WAIT, TOPIC, A, B, C, during_the_wait, outcomes
from tests.kit.scenes.undo_scene import UndoScene as Scene
from tests.kit.simulated.cluster import SimulatedCluster, data_tags
from tests.kit.simulated.offloaded import attempt
from tests.kit.simulated.pipeline import delete, scan, two_scans


@pytest.fixture
def scene() -> Scene:
    return Scene()


def codes(done: Iterable[Undone]) -> list[StrEnum | None]:
    return [one.why and one.why.code for one in done]


def checked(one: Undone) -> ReplicaCheck:
    """What its bookies said."""
    assert one.check
    return one.check


def test_whole_ledgers_come_back_with_their_bytes_and_are_restored_after_a_second_check(scene: Scene) -> None:
    done = scene.undo()

    assert outcomes(done) == [Outcome.RESTORED] * 3
    for ledger_id in scene.ids:
        assert scene.data(ledger_id) == scene.archived(ledger_id).data
        assert scene.journal(ledger_id) == [Outcome.RECREATING, Outcome.RECREATED, Outcome.RESTORED]
    assert sum(scene.cluster.clock.slept) == pytest.approx(GC_WAIT)
    row = scene.cluster.journal.rows[-1]
    assert (row.topic, row.component, row.bytes) == (str(TOPIC), "Managed-Ledger", 50)
    assert json.loads(row.detail)["archived_czxid"] == scene.archived(scene.ids[-1]).czxid
    assert json.loads(row.detail)["czxid"] > scene.archived(scene.ids[-1]).czxid
    assert json.loads(row.detail)["check"]["held"] == 20


def test_the_parents_that_bookkeeper_took_away_come_back_too(scene: Scene) -> None:
    for path in ("/ledgers/00/0000", "/ledgers/00"):
        scene.store.delete(path, -1)
    assert outcomes(scene.undo()) == [Outcome.RESTORED] * 3


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_ledger_that_its_topic_lists_as_deleted_is_told_from_the_others(scene: Scene, dry_run: bool) -> None:
    deleted, kept, unlisted = scene.ids
    copies = {i: attempt(UUID(int=i), bookkeeper_deleted=i == deleted) for i in (deleted, kept)}
    scene.cluster.topic(TOPIC, [deleted, kept], offloaded=copies)
    done = scene.preview() if dry_run else scene.undo()
    assert {i: done[i].bookkeeper_deleted for i in scene.ids} == {deleted: True, kept: False, unlisted: False}


def test_a_topic_that_cannot_be_decoded_stops_no_undo(scene: Scene) -> None:
    scene.cluster.put(scene.cluster.topic_path(TOPIC), b"\xff")
    assert outcomes(scene.undo()) == [Outcome.RESTORED] * 3


def test_a_dry_run_says_what_would_happen_and_changes_nothing(scene: Scene) -> None:
    _, thin, lost = scene.ids
    scene.collect(thin, A)
    scene.collect(lost, A, B, C)
    writes: list[str] = []
    reading = scene.cluster.open_store(read_only=True)
    reading.before = lambda operation: writes.append(operation.name)
    ports = replace(scene.ports, store=reading)

    done = preview(scene.run(), ports, scene.cluster.journal.nodes, {})

    assert [one.outcome for one in done] == [Outcome.RESTORABLE, Outcome.RESTORABLE, Outcome.LOST]
    assert codes(done) == [Code.ENTRIES_THERE, Code.ENTRIES_THERE, Code.ENTRIES_LOST]
    assert [(checked(one).lost, set(checked(one).missing)) for one in done] == [(0, set()), (0, {A}), (10, {A, B, C})]
    assert scene.cluster.journal.rows == []
    assert not any(map(scene.exists, scene.ids))
    assert set(writes) <= {"sync", "read"}


def test_what_every_replica_lost_is_past_saving_and_stays_away(scene: Scene) -> None:
    scene.collect(scene.ids[1], A, B, C)
    done = scene.undo()
    assert outcomes(done) == [Outcome.RESTORED, Outcome.LOST, Outcome.RESTORED]
    assert not scene.exists(scene.ids[1])
    assert scene.journal(scene.ids[1]) == [Outcome.LOST]


def test_one_entry_without_any_replica_is_past_saving(scene: Scene) -> None:
    scene.collect(scene.ids[0], A, B)  # entries 0, 3, 6 and 9 were on these two alone
    done = scene.undo()
    assert (done[scene.ids[0]].outcome, codes([done[scene.ids[0]]])) == (Outcome.LOST, [Code.ENTRIES_LOST])
    assert checked(done[scene.ids[0]]).lost == 4


def test_what_one_bookie_lost_is_restored_and_said_to_be_under_replicated(scene: Scene) -> None:
    scene.collect(scene.ids[0], B)
    done = scene.undo()
    assert outcomes(done) == [Outcome.RESTORED] * 3
    thin = checked(done[scene.ids[0]])
    assert (thin.lost, sorted(thin.missing)) == (0, [B])
    assert thin.thin > 0


def test_a_bookie_that_does_not_answer_is_refused_unless_the_operator_allows_it(scene: Scene) -> None:
    scene.cluster.reader.unanswered = {C}
    assert outcomes(scene.undo()) == [Outcome.UNKNOWN] * 3
    assert not any(map(scene.exists, scene.ids))

    done = scene.undo(accept_unknown=True)

    assert outcomes(done) == [Outcome.RESTORED] * 3
    assert set(checked(done[scene.ids[0]]).unanswered) == {C}


def test_entries_that_only_bookies_that_do_not_answer_may_hold_are_never_said_to_be_restored(scene: Scene) -> None:
    scene.cluster.reader.unanswered = {B, C}
    done = scene.undo(accept_unknown=True)
    assert outcomes(done) == [Outcome.UNCONFIRMED] * 3
    assert all(map(scene.exists, scene.ids))

    scene.cluster.reader.unanswered = set()
    slept = len(scene.cluster.clock.slept)
    assert outcomes(scene.undo()) == [Outcome.RESTORED] * 3
    assert len(scene.cluster.clock.slept) == slept  # the interval has passed long since


def test_what_is_collected_while_it_comes_back_is_taken_away_again(scene: Scene) -> None:
    lost = scene.ids[1]
    during_the_wait(scene, lambda: scene.collect(lost, A, B, C))
    done = scene.undo()
    assert outcomes(done) == [Outcome.RESTORED, Outcome.LOST, Outcome.RESTORED]
    assert not scene.exists(lost)
    assert scene.journal(lost) == [Outcome.RECREATING, Outcome.RECREATED, Outcome.LOST]


@pytest.mark.parametrize("change", ["written", "replaced", "removed"])
def test_a_z_node_that_is_not_as_we_made_it_is_left_alone(scene: Scene, change: str) -> None:
    touched = scene.ids[1]
    path = scene.cluster.path(touched)

    def meddle() -> None:
        scene.collect(touched, A, B, C)
        if change == "written":
            scene.store.write(path, scene.data(touched), -1)
        else:
            scene.store.delete(path, -1)
        if change == "replaced":
            scene.store.create(path, scene.archived(touched).data)

    during_the_wait(scene, meddle)
    done = scene.undo()

    assert outcomes(done) == [Outcome.RESTORED, Outcome.UNCONFIRMED, Outcome.RESTORED]
    assert scene.exists(touched) == (change != "removed")


@pytest.mark.parametrize("ended", ["unconfirmed", "restored", "killed before it was written down"])
def test_an_undo_goes_on_with_what_autorecovery_moved_since(scene: Scene, ended: str) -> None:
    """Bookies that do not answer end an undo unconfirmed, and are why autorecovery writes."""
    scene.cluster.reader.unanswered = {B, C} if ended == "unconfirmed" else set()
    scene.undo(accept_unknown=True)
    moved, another, _ = scene.ids
    if ended.startswith("killed"):
        rows = scene.cluster.journal.rows
        rows[:] = [row for row in rows if row.outcome == Outcome.RECREATING]
    metadata = ledger_metadata.decode(scene.archived(moved).data)
    moving = replace(metadata, segments=(Segment(0, (A, B, "d:3181")),))
    scene.store.write(scene.cluster.path(moved), ledger_metadata.encode(moving), 0)
    scene.store.write(scene.cluster.path(another), ledger_metadata.encode(replace(metadata, length=51)), 0)
    scene.cluster.reader.unanswered = set()

    rest = Outcome.PRESENT if ended == "restored" else Outcome.RESTORED
    assert outcomes(scene.undo()) == [rest, Outcome.REFUSED, rest]
    assert ledger_metadata.decode(scene.data(moved)) == moving


def test_entries_that_moved_to_another_bookie_meanwhile_are_sought_there(scene: Scene) -> None:
    moved = scene.ids[0]
    metadata = ledger_metadata.decode(scene.archived(moved).data)
    new = ledger_metadata.encode(replace(metadata, segments=(Segment(0, (A, B, "d:3181")),)))

    def autorecovery() -> None:
        scene.store.write(scene.cluster.path(moved), new, 0)
        scene.collect(moved, C)

    during_the_wait(scene, autorecovery)
    done = scene.undo()
    assert (done[moved].outcome, codes([done[moved]])) == (Outcome.RESTORED, [Code.ENTRIES_THERE])


# --------------------------------------------------------------------------------------------------------- not restored


def test_a_ledger_that_is_there_is_left_alone(scene: Scene) -> None:
    never, again, other = scene.ids
    stats = [scene.store.create(scene.cluster.path(i), scene.archived(i).data) for i in (never, again)]
    scene.edit(never, czxid=stats[0].czxid)
    scene.store.create(scene.cluster.path(other), b"another")

    done = scene.undo()

    assert outcomes(done) == [Outcome.PRESENT, Outcome.PRESENT, Outcome.REFUSED]
    assert codes(done[i] for i in scene.ids) == [Code.NEVER_DELETED, Code.RESTORED_ALREADY, Code.ID_REUSED]
    assert scene.data(other) == b"another"


def test_a_second_undo_finds_it_restored(scene: Scene) -> None:
    scene.undo()
    assert outcomes(scene.undo()) == [Outcome.PRESENT] * 3
    assert outcomes(scene.preview()) == [Outcome.PRESENT] * 3


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster": "other"}, Code.OTHER_CLUSTER),
        ({"path": "/elsewhere/00/0000/L0001"}, Code.OTHER_CLUSTER),
        ({"data": b""}, Code.ARCHIVE_DAMAGED),
        ({"data": b"rubbish"}, Code.ARCHIVE_DAMAGED),
        ({"czxid": 1 << 40}, Code.STORE_RESTORED),
    ],
)
def test_what_may_not_come_back_is_refused_and_says_why(scene: Scene, changes: dict[str, Any], code: Code) -> None:
    scene.edit(scene.ids[0], **changes)
    done = scene.undo()
    assert outcomes(done) == [Outcome.REFUSED, Outcome.RESTORED, Outcome.RESTORED]
    assert codes([done[scene.ids[0]]]) == [code]
    assert scene.journal(scene.ids[0]) == [Outcome.REFUSED]


def test_an_open_ledger_is_refused(scene: Scene) -> None:
    open_ = scene.deleted(LedgerState.OPEN)
    done = scene.undo()
    assert done[open_].outcome == Outcome.REFUSED
    assert not scene.exists(open_)


def test_an_empty_ledger_needs_no_bookie(scene: Scene) -> None:
    empty = scene.deleted(entries=0)
    scene.cluster.reader.unanswered = {A, B, C}
    assert scene.undo()[empty].outcome == Outcome.RESTORED


def test_of_two_archived_z_nodes_the_newer_comes_back(scene: Scene) -> None:
    first = scene.archived(scene.ids[0])
    newer = replace(first, run_id="later", czxid=first.czxid + 1, at=first.at + 1)
    scene.cluster.journal.nodes[:0] = [newer]
    scene.undo()
    row = next(row for row in scene.cluster.journal.rows if row.ledger_id == first.ledger_id)
    assert json.loads(row.detail)["archived_by"] == "later"


# ------------------------------------------------------------------------------------------------------ and afterwards


def test_a_restored_ledger_is_young_and_its_old_intent_is_refused() -> None:
    cluster = SimulatedCluster()
    cluster.topic(TOPIC, [cluster.ledger(data_tags(TOPIC))])
    orphan = cluster.ledger(data_tags(TOPIC))
    now, before = two_scans(cluster)
    rows = now.findings
    (intent,) = intents(rows.slice(rows.column("ledger_id").to_pylist().index(orphan), 1), "plan", 1)
    message = encode_deletion_message(intent)

    def deliver() -> list[str]:
        nonlocal now
        cluster.open_queue().topics.publish(message)
        cluster.wait(2)
        now = scan(cluster, previous=[now])
        return [decision.outcome for decision in delete(cluster, now, before)]

    assert deliver() == [Outcome.DELETED]
    store = cluster.open_store()
    lease = control.take_lease(store, "undo", cluster.clock, 60)
    (row,) = cluster.journal.nodes
    run = replace(Scene().run(), guard=lease.guard, cluster=row.cluster)
    ports = UndoPorts(store, cluster.reader.check_replicas, cluster.journal, cluster.clock, lambda text: None)
    assert [one.outcome for one in undo(run, ports, [row], {})] == [Outcome.RESTORED]
    control.release_lease(store, lease)

    assert deliver() == [Outcome.REFUSED]
    assert cluster.exists(orphan)
    assert now.finding(orphan) == "too_young"


@pytest.mark.parametrize("detail", ["", "no JSON", "[]", "{}", '{"archived_czxid": "7"}'])
def test_a_row_that_no_undo_wrote_says_nothing_of_what_was_begun(detail: str) -> None:
    row = {"cluster": "c", "phase": "undo", "outcome": "recreated", "ledger_id": 1, "detail": detail}
    ours = {**row, "ledger_id": 2, "detail": '{"archived_czxid": 7}'}
    assert begun([row, ours], "c") == {2: 7}
