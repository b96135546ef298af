"""Repairs over fakes: what the lake keeps of them, undoing them without their ledgers, what killed ones left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pulsar_lifecycle.delayed_index.broker_settings import BUCKET_FACTORY
from pulsar_lifecycle.delayed_index.repair import repair_work
from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import repair
from pulsar_lifecycle.delayed_index.stored.check_run import FINDINGS
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.cursor import BUCKET_PREFIX
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.journal.first_phase_marks import unnamed_snapshots
from pulsar_lifecycle.ports import Entry, JournalRow
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome
from tests.kit.builders import entry
from tests.kit.delayed.repairs import Killed, broken, repaired, undone, written
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.delayed_scene import COUNT, DelayedScene
from tests.kit.scenes.retention_scene import NAMESPACE

FACTORY = "delayedDeliveryTrackerFactoryClassName"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DelayedScene:
    return DelayedScene(tmp_path, monkeypatch)


def test_old_snapshots_are_kept_before_their_keys_go(scene: DelayedScene) -> None:
    order = broken(scene)
    before = scene.keys("a")
    entries = {i: tuple(scene.servers.reader.payloads[i]) for i in before.values()}

    def look(operation: Operation) -> None:
        if operation.name == "write" and "/managed-ledgers/" in operation.paths[0]:
            assert {one.ledger_id: one.entries for one in scene.servers.journal.snapshots} == entries

    scene.before = look
    assert repaired(scene, order).outcome is Outcome.DONE
    assert {(one.bucket_key, one.ledger_id) for one in scene.servers.journal.snapshots} == set(before.items())


def test_a_rebuild_indexes_no_message_of_a_transaction_and_none_of_an_open_ledger(scene: DelayedScene) -> None:
    """A broker delivers what an index says without asking whether it was committed."""
    order = broken(scene)
    first, second, last = (int(key.rpartition("_")[2]) for key in scene.keys("a"))
    entries = scene.servers.reader.payloads[first]
    entries[7] = entry(b"m", deliver_at_time=scene.due(first, 7), txnid_most_bits=1, txnid_least_bits=2)
    entries[8] = entry(b"", marker_type=21, txnid_most_bits=1, txnid_least_bits=2)
    scene.reopen(last)
    scene.change(loaded_topics=True)

    assert repaired(scene, order).outcome is Outcome.DONE
    found = scene.indexed("a")
    assert {ledger for ledger, _ in found} == {first, second}
    assert {number for ledger, number in found if ledger == first} == set(range(COUNT)) - {7, 8}


@pytest.mark.parametrize(("ended", "left"), [(None, 7), (21, COUNT - 2), (22, COUNT - 2)])
def test_a_rebuild_indexes_nothing_that_waits_for_an_open_transaction(
    scene: DelayedScene, ended: int | None, left: int
) -> None:
    """A broker holds back what follows such a message; what an index says it delivers all the same, seen on 4.0.7."""
    order = broken(scene)
    first, second, _ = (int(key.rpartition("_")[2]) for key in scene.keys("a"))
    transaction = {"txnid_most_bits": 1, "txnid_least_bits": 2}
    entries = scene.servers.reader.payloads[first]
    entries[7] = entry(b"m", deliver_at_time=scene.due(first, 7), **transaction)
    if ended is not None:
        entries[COUNT - 1] = entry(b"", marker_type=ended, **transaction)

    assert repaired(scene, order).outcome is Outcome.DONE
    ledgers = [ledger for ledger, _ in scene.indexed("a")]
    assert ledgers.count(first) == left
    assert (second in ledgers) == (ended is not None)


def test_a_property_that_names_no_ledger_is_dropped(scene: DelayedScene) -> None:
    scene.backlog("a")
    far, long = "99999999999999999999", "9" * 5000  # beyond any ledger's id, and beyond what int() reads
    bad = {f"{BUCKET_PREFIX}_1_2_3": "x", f"{BUCKET_PREFIX}_9_9": "abc"}
    bad |= {f"{BUCKET_PREFIX}_1_{far}": "7", f"{BUCKET_PREFIX}_{long}_{long}": "7"}
    bad |= {f"{BUCKET_PREFIX}_77_77": far, f"{BUCKET_PREFIX}_78_78": long}
    before = scene.keys("a")
    scene.properties("a", {**{key: str(i) for key, i in before.items()}, **bad})
    epoch = scene.checked()
    codes = Counter(row["code"] for row in scene.lake.read_epoch_table(epoch.epoch_id, FINDINGS).to_pylist())
    assert codes == {IndexFinding.UNDECODABLE: len(bad)}
    summary, _ = make_repair_plan(scene.cluster, epoch)

    done = repaired(scene, Order(summary.plan_id, summary.digest))
    assert (done.level, done.outcome) == ("drop", Outcome.DONE), done
    assert scene.keys("a") == before
    assert undone(scene, Order(summary.plan_id, summary.digest)).why.code is Code.SNAPSHOT_UNREAD


def test_a_property_that_names_a_ledger_of_messages_is_dropped_and_these_are_not_kept(scene: DelayedScene) -> None:
    """Nor are they read: a ledger may have any number of bytes."""
    first, *_ = scene.backlog("a")
    other = scene.servers.ledger({"component": "managed-ledger"}, entries=[entry(b"m")] * 9)
    scene.name_bucket("a", first, other)
    read: list[tuple[int, int, int]] = []
    before = scene.servers.reader.read

    def noted(ledger_id: int, metadata: LedgerMetadata, begin: int, end: int) -> list[Entry]:
        read.append((ledger_id, begin, end))
        return before(ledger_id, metadata, begin, end)

    scene.servers.reader.read = noted  # type: ignore[method-assign]
    summary, rows = make_repair_plan(scene.cluster, scene.checked())
    assert IndexFinding.UNDECODABLE in rows.column("codes").to_pylist()[0]
    assert repaired(scene, Order(summary.plan_id, summary.digest)).outcome is Outcome.DONE
    assert {one for one in read if one[0] == other} == {(other, 0, 0)}
    assert scene.servers.journal.snapshots
    assert other not in {one.ledger_id for one in scene.servers.journal.snapshots}


def test_a_snapshot_that_no_bookie_takes_is_refused_before_a_ledger_is_made(
    scene: DelayedScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_work, "MAX_ENTRY_BYTES", 100)
    order = broken(scene)
    before = scene.keys("a")

    left = repaired(scene, order)
    assert (left.outcome, left.why.code) == (Outcome.LEFT, Code.SNAPSHOT_TOO_LARGE)
    assert scene.keys("a") == before
    assert written(scene) == []


def test_an_undo_writes_anew_what_is_gone_and_is_harmless_twice(scene: DelayedScene) -> None:
    order = broken(scene)
    before, held = scene.keys("a"), scene.messages("a")
    repaired(scene, order)
    gone, *_ = before.values()
    scene.lose(gone)

    dry = undone(scene, order, dry_run=True)
    assert dry.outcome is Outcome.GOES
    assert sorted(dry.after.values()).count("(new)") == 1
    assert undone(scene, order).outcome is Outcome.DONE
    after = scene.keys("a")
    assert after.keys() == before.keys()
    assert {key for key in before if after[key] != before[key]} == {key for key in before if before[key] == gone}
    assert scene.messages("a") == held
    tags = ledger_metadata.decode(scene.servers.zookeeper.data(scene.servers.path(max(after.values())))).custom_metadata
    assert tags["pulsar/delayedIndexCursor"] == b"s"

    assert undone(scene, order).outcome is Outcome.NOTHING
    assert scene.keys("a") == after


def test_what_a_repair_took_from_a_cursor_is_known_to_later_scans(scene: DelayedScene) -> None:
    order = broken(scene)
    before = scene.keys("a")
    repaired(scene, order)
    taken, journal = set(before.values()) - set(scene.keys("a").values()), scene.servers.journal
    assert taken
    assert unnamed_snapshots(journal, "test", 0) == taken
    assert unnamed_snapshots(journal, "another", 0) == set()
    assert unnamed_snapshots(journal, "test", scene.now + 1) == set()
    assert repaired(scene, order).outcome is Outcome.LEFT
    assert unnamed_snapshots(journal, "test", 0) == taken
    ended = [row for row in journal.rows if row.outcome is Outcome.DONE]
    killed = FakeJournal()
    killed.record([row for row in journal.rows if row.outcome is Outcome.BEGUN])
    assert unnamed_snapshots(killed, "test", 0) == taken  # the edit may have been made
    killed.record([replace(row, outcome=Outcome.LEFT) for row in ended])
    assert unnamed_snapshots(killed, "test", 0) == set()


def test_of_a_cursor_that_cannot_be_read_no_undo_says_that_it_has_what_it_had(scene: DelayedScene) -> None:
    scene.change(brokers={**scene.settings.delayed_index.brokers, FACTORY: BUCKET_FACTORY}, whole_backlogs=(NAMESPACE,))
    scene.backlog("a")
    scene.properties("a", {})
    summary, _ = make_repair_plan(scene.cluster, scene.checked())
    order = Order(summary.plan_id, summary.digest)
    assert repaired(scene, order).outcome is Outcome.DONE
    path = scene.servers.topic_path(scene.named("a")) + "/s"
    data = scene.servers.zookeeper.data(path)
    scene.servers.put(path, b"\xff")
    assert undone(scene, order).why.code is Code.UNREAD
    scene.servers.put(path, data)
    assert undone(scene, order).outcome is Outcome.DONE
    assert scene.keys("a") == {}


def test_an_undo_that_comes_to_nothing_deletes_no_old_snapshot(scene: DelayedScene) -> None:
    order = broken(scene)
    before = scene.keys("a")
    repaired(scene, order)
    now, other = scene.keys("a"), scene.snapshot("a", min(scene.listed("a")))

    def meanwhile(operation: Operation) -> None:
        if operation.name == "write" and "/managed-ledgers/" in operation.paths[0] and scene.keys("a") == now:
            scene.name_bucket("a", min(scene.listed("a")), other)

    scene.before = meanwhile
    assert undone(scene, order).why.code is Code.CHANGED_MEANWHILE
    assert other in scene.keys("a").values()
    assert all(scene.servers.exists(one) for one in before.values())


def test_an_undo_says_beforehand_that_the_buckets_are_others_by_now_and_writes_none(scene: DelayedScene) -> None:
    order = broken(scene)
    before = scene.keys("a")
    repaired(scene, order)
    for ledger_id in before.values():
        scene.lose(ledger_id)
    first = min(scene.listed("a"))
    scene.name_bucket("a", first, scene.snapshot("a", first))
    begun = written(scene)
    for dry_run in (True, False):
        said = undone(scene, order, dry_run=dry_run)
        assert (said.outcome, said.why.code) == (Outcome.LEFT, Code.CHANGED_MEANWHILE)
    assert written(scene) == begun


def test_all_ledgers_may_be_gone_and_an_id_may_be_of_another_ledger_by_now(scene: DelayedScene) -> None:
    order = broken(scene)
    before, held = scene.keys("a"), scene.messages("a")
    repaired(scene, order)
    for ledger_id in before.values():
        scene.lose(ledger_id)
    scene.servers.ledger({"component": "managed-ledger"}, ledger_id=min(before.values()))
    assert undone(scene, order).outcome is Outcome.DONE
    assert scene.messages("a") == held
    assert set(scene.keys("a").values()).isdisjoint(before.values())


def test_an_undo_that_ended_after_its_edit_is_done(scene: DelayedScene) -> None:
    order = broken(scene)
    before = scene.keys("a")
    repaired(scene, order)
    scene.lose(min(before.values()))
    undone(scene, order)
    after = scene.keys("a")
    journal = scene.servers.journal
    journal.rows[:] = [row for row in journal.rows if row.run_id != "undo" or row.outcome is not Outcome.DONE]
    journal._journal = type(journal._journal)(journal._journal.schema.remove(len(journal._journal.schema) - 1))
    assert undone(scene, order).outcome is Outcome.NOTHING
    assert scene.keys("a") == after
    assert all(scene.servers.exists(one) for one in after.values())


def test_what_cannot_be_kept_now_is_not_repaired(scene: DelayedScene) -> None:
    order = broken(scene)
    before = scene.keys("a")
    scene.servers.journal.failure = Unavailable("the lake is away")
    with pytest.raises(Unavailable):
        repaired(scene, order)
    assert scene.keys("a") == before


CREATED, CLOSED, NAMED = "created", "closed", "named"


@pytest.mark.parametrize("step", [CREATED, CLOSED, NAMED])
def test_what_a_killed_repair_left_the_next_one_settles(scene: DelayedScene, step: str) -> None:
    order = broken(scene)
    before, ledgers = scene.keys("a"), scene.servers.ledger_ids()
    create = scene.writer.write

    def write(ledger_id: int, payloads: object, shape: object) -> object:
        made = create(ledger_id, payloads, shape)  # type: ignore[arg-type]
        if step is CREATED:
            opened = replace(made, state=LedgerState.OPEN, length=0, last_entry_id=-1)
            scene.servers.put(scene.servers.path(ledger_id), ledger_metadata.encode(opened))
        raise Killed

    killed = False

    def kill(operation: Operation) -> None:
        nonlocal killed
        killed = killed or (operation.name == "read" and scene.keys("a") != before)
        if killed:
            raise Killed

    if step is NAMED:
        scene.before = kill
    else:
        scene.writer.write = write  # type: ignore[method-assign,assignment]
    with pytest.raises(Killed):
        repaired(scene, order)
    left = scene.servers.ledger_ids() - ledgers
    assert left
    assert {one for _, one in written(scene)} == {"begun"}

    scene.before = lambda operation: None
    scene.writer.write = create  # type: ignore[method-assign]
    scene.servers.wait(1)
    now = scene.keys("a")
    found = repaired(scene, order)
    if step is NAMED:
        assert (found.outcome, found.why.code) == (Outcome.LEFT, Code.CHANGED_SINCE_PLAN)
        assert scene.keys("a") == now
        assert left <= scene.servers.ledger_ids()
        assert {(one, "done") for one in left} <= set(written(scene))
    else:
        assert found.outcome is Outcome.DONE
        assert not left & scene.servers.ledger_ids()
        assert {(one, "removed") for one in left} <= set(written(scene))
    count = len(written(scene))
    repair(scene.cluster, "again", order, dry_run=False)
    assert len(written(scene)) == count


def test_a_repair_that_was_killed_before_it_said_that_it_is_done_can_be_undone(scene: DelayedScene) -> None:
    order = broken(scene)
    before, journal = scene.keys("a"), scene.servers.journal
    record = journal.record

    def kill(rows: Sequence[JournalRow]) -> None:
        if any(row.action is Action.REPAIR_INDEX and row.outcome is Outcome.DONE for row in rows):
            raise Killed
        record(rows)

    journal.record = kill  # type: ignore[method-assign]
    with pytest.raises(Killed):
        repaired(scene, order)
    journal.record = record  # type: ignore[method-assign]
    assert scene.keys("a") != before
    scene.servers.wait(1)
    assert repaired(scene, order).why.code is Code.CHANGED_SINCE_PLAN
    scene.servers.wait(1)
    assert undone(scene, order).outcome is Outcome.DONE
    assert scene.keys("a") == before
    scene.servers.wait(1)
    assert undone(scene, order).outcome is Outcome.NOTHING


def test_an_undo_leaves_what_a_killed_repair_did_not_come_to(scene: DelayedScene) -> None:
    order = broken(scene)
    before = scene.keys("a")

    def kill(operation: Operation) -> None:
        if operation.name == "write" and "/managed-ledgers/" in operation.paths[0]:
            raise Killed

    scene.before = kill
    with pytest.raises(Killed):
        repaired(scene, order)
    scene.before = lambda operation: None
    assert undone(scene, order).outcome is Outcome.NOTHING
    assert scene.keys("a") == before


def test_a_closed_one_of_a_topic_that_a_broker_has_waits_and_anothers_ledger_stays(scene: DelayedScene) -> None:
    order = broken(scene)
    create = scene.writer.write

    def write(ledger_id: int, payloads: object, shape: object) -> None:
        create(ledger_id, payloads, shape)  # type: ignore[arg-type]
        raise Killed

    scene.writer.write = write  # type: ignore[method-assign,assignment]
    with pytest.raises(Killed):
        repaired(scene, order)
    ((left, _),) = written(scene)
    scene.writer.write = create  # type: ignore[method-assign]
    scene.servers.load(scene.named("a"))
    assert repaired(scene, order).outcome is Outcome.LEFT
    assert written(scene) == [(left, "begun")]

    scene.lose(left)
    scene.servers.ledger({"component": "managed-ledger"}, ledger_id=left)
    repaired(scene, order)
    assert written(scene) == [(left, "begun"), (left, "left")]
    assert scene.servers.exists(left)
