"""Which deleted ledgers an undo brings back, what it says of the others, and after a crash at every step."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.deletion.undo.undo import begun, preview, undo
from pulsar_lifecycle.deletion.undo.undone import Undone, UndoPorts, UndoRun
from pulsar_lifecycle.errors import LeaseLost, OutcomeUnknown, Overloaded, Paused, StoreError, Unavailable
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.deletion_message import encode_deletion_message
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Archived, JournalRow, ReplicaCheck
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.apply import intents
from tests.kit.crash import Crash, Steps, watch
from tests.kit.fakes.metadata_store import Operation
from tests.simulation.cluster import SimulatedCluster, data_tags
from tests.simulation.offloaded import attempt
from tests.simulation.pipeline import delete, scan, two_scans

TOPIC = Topic.parse("persistent://acme/orders/placed")
GC_WAIT = 900
A, B, C = "a:3181", "b:3181", "c:3181"


class Scene:
    """Three ledgers that a run archived and deleted; their entries are still on the bookies, two copies each."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster()
        self.store = self.cluster.open_store()
        self.hook: Callable[[str], None] = lambda name: None
        self.said: list[str] = []
        self.lease = control.take_lease(self.store, "test", self.cluster.clock, 1)
        self.ids = [self.deleted() for _ in range(3)]
        self.cluster.clock.advance(60)

    # ------------------------------------------------------------------------------------------------- what was there

    def deleted(self, state: LedgerState = LedgerState.CLOSED, entries: int = 10) -> int:
        """A ledger as a deletion run leaves it."""
        tags = {"application": "pulsar", **data_tags(TOPIC)}
        ledger_id = self.cluster.ledger(data_tags(TOPIC), entries=[b"entry"] * entries)
        metadata = LedgerMetadata(
            state,
            3,
            2,
            2,
            (Segment(0, (A, B, C)),),
            5 * entries,
            entries - 1 if state is LedgerState.CLOSED else -1,
            DigestType.CRC32C,
            custom_metadata={name: value.encode() for name, value in tags.items()},
        )
        path = self.cluster.path(ledger_id)
        self.store.delete(path, -1)
        stat = self.store.create(path, ledger_metadata.encode(metadata), parents=True)
        now = self.cluster.clock.now_ms()
        row = Archived("deletion", "simulated", ledger_id, path, self.data(ledger_id), 0, stat.czxid, stat.ctime, now)
        self.cluster.journal.archive([row])
        self.store.delete(path, -1)
        return ledger_id

    def data(self, ledger_id: int) -> bytes:
        return self.cluster.zookeeper.data(self.cluster.path(ledger_id))

    def archived(self, ledger_id: int) -> Archived:
        return next(row for row in self.cluster.journal.nodes if row.ledger_id == ledger_id)

    def edit(self, ledger_id: int, **changes: Any) -> None:
        """Change a row of the archive."""
        nodes = self.cluster.journal.nodes
        nodes[:] = [replace(row, **changes) if row.ledger_id == ledger_id else row for row in nodes]

    def collect(self, ledger_id: int, *bookies: str) -> None:
        """The bookies' garbage collection drops a ledger."""
        for bookie in bookies:
            self.cluster.reader.collected.setdefault(bookie, set()).add(ledger_id)

    # --------------------------------------------------------------------------------------------------- the two ways

    def run(self, *, accept_unknown: bool = False) -> UndoRun:
        return UndoRun(
            run_id="undo",
            cluster="simulated",
            ledgers_root="/ledgers",
            guard=self.lease.guard,
            store_ahead_ms=0,
            gc_wait_ms=GC_WAIT * 1000,
            accept_unknown=accept_unknown,
            batch=2,
            creates_per_second=1e9,
            slow_above_ms=100,
            stop_above_ms=500,
        )

    @property
    def ports(self) -> UndoPorts:
        return UndoPorts(self.store, self._check, _Journal(self), self.cluster.clock, self.said.append)

    def _check(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
        self.hook("check")
        return self.cluster.reader.check_replicas(ledgers)

    def pending(self) -> dict[int, int]:
        return begun([asdict(row) for row in self.cluster.journal.rows], "simulated")

    def preview(self, **options: Any) -> dict[int, Undone]:
        done = preview(self.run(**options), self.ports, self.cluster.journal.nodes, self.pending())
        return {one.ledger_id: one for one in done}

    def undo(self, **options: Any) -> dict[int, Undone]:
        done = undo(self.run(**options), self.ports, self.cluster.journal.nodes, self.pending())
        return {one.ledger_id: one for one in done}

    # ------------------------------------------------------------------------------------------------------- the ends

    def journal(self, ledger_id: int) -> list[str]:
        rows = [row for row in self.cluster.journal.rows if row.ledger_id == ledger_id]
        assert {row.phase for row in rows} <= {"undo"}
        return [row.outcome for row in rows]

    def exists(self, ledger_id: int) -> bool:
        return self.cluster.exists(ledger_id)


class _Journal:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def record(self, rows: Sequence[JournalRow]) -> str:
        self._scene.hook("before record")
        where = self._scene.cluster.journal.record(rows)
        self._scene.hook("after record")
        return where

    def archive(self, nodes: Sequence[Archived]) -> str:
        raise AssertionError("an undo archives nothing")


@pytest.fixture
def scene() -> Scene:
    return Scene()


def outcomes(done: dict[int, Undone]) -> list[str]:
    return [done[ledger_id].outcome for ledger_id in sorted(done)]


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
def test_a_ledger_that_its_topic_lists_as_released_is_told_from_the_others(scene: Scene, dry_run: bool) -> None:
    released, kept, unlisted = scene.ids
    copies = {i: attempt(UUID(int=i), bookkeeper_deleted=i == released) for i in (released, kept)}
    scene.cluster.topic(TOPIC, [released, kept], offloaded=copies)
    done = scene.preview() if dry_run else scene.undo()
    assert {i: done[i].released for i in scene.ids} == {released: True, kept: False, unlisted: False}


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
    assert "all there" in done[0].reason
    assert "under-replicated" in done[1].reason
    assert "missing on a:3181" in done[1].reason
    assert "10 on no bookie any more" in done[2].reason
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
    assert done[scene.ids[0]].outcome == Outcome.LOST
    assert "4 on no bookie any more" in done[scene.ids[0]].reason


def test_what_one_bookie_lost_is_restored_and_said_to_be_under_replicated(scene: Scene) -> None:
    scene.collect(scene.ids[0], B)
    done = scene.undo()
    assert outcomes(done) == [Outcome.RESTORED] * 3
    assert "under-replicated" in done[scene.ids[0]].reason


def test_a_silent_bookie_is_refused_unless_the_operator_allows_it(scene: Scene) -> None:
    scene.cluster.reader.silent = {C}
    assert outcomes(scene.undo()) == [Outcome.UNKNOWN] * 3
    assert not any(map(scene.exists, scene.ids))

    done = scene.undo(accept_unknown=True)

    assert outcomes(done) == [Outcome.RESTORED] * 3
    assert "silent: bookie c:3181: timed out" in done[scene.ids[0]].reason


def test_entries_that_only_silent_bookies_may_hold_are_never_said_to_be_restored(scene: Scene) -> None:
    scene.cluster.reader.silent = {B, C}
    done = scene.undo(accept_unknown=True)
    assert outcomes(done) == [Outcome.UNCONFIRMED] * 3
    assert all(map(scene.exists, scene.ids))

    scene.cluster.reader.silent = set()
    slept = len(scene.cluster.clock.slept)
    assert outcomes(scene.undo()) == [Outcome.RESTORED] * 3
    assert len(scene.cluster.clock.slept) == slept  # the interval has passed long since


def _during_the_wait(scene: Scene, act: Callable[[], None]) -> None:
    """``act`` once, while the collection interval passes."""
    asleep = scene.cluster.clock.sleep
    acts = [act]

    def sleep(seconds: float) -> None:
        if seconds >= 1 and acts:
            acts.pop()()
        asleep(seconds)

    scene.cluster.clock.sleep = sleep  # type: ignore[method-assign]


def test_what_is_collected_while_it_comes_back_is_taken_away_again(scene: Scene) -> None:
    lost = scene.ids[1]
    _during_the_wait(scene, lambda: scene.collect(lost, A, B, C))
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

    _during_the_wait(scene, meddle)
    done = scene.undo()

    assert outcomes(done) == [Outcome.RESTORED, Outcome.UNCONFIRMED, Outcome.RESTORED]
    assert scene.exists(touched) == (change != "removed")


@pytest.mark.parametrize("ended", ["unconfirmed", "restored", "killed before it was written down"])
def test_an_undo_goes_on_with_what_autorecovery_moved_since(scene: Scene, ended: str) -> None:
    """Bookies that do not answer end an undo unconfirmed, and are why autorecovery writes."""
    scene.cluster.reader.silent = {B, C} if ended == "unconfirmed" else set()
    scene.undo(accept_unknown=True)
    moved, another, _ = scene.ids
    if ended.startswith("killed"):
        rows = scene.cluster.journal.rows
        rows[:] = [row for row in rows if row.outcome == Outcome.RECREATING]
    metadata = ledger_metadata.decode(scene.archived(moved).data)
    moving = replace(metadata, segments=(Segment(0, (A, B, "d:3181")),))
    scene.store.write(scene.cluster.path(moved), ledger_metadata.encode(moving), 0)
    scene.store.write(scene.cluster.path(another), ledger_metadata.encode(replace(metadata, length=51)), 0)
    scene.cluster.reader.silent = set()

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

    _during_the_wait(scene, autorecovery)
    done = scene.undo()
    assert done[moved].outcome == Outcome.RESTORED
    assert "all there" in done[moved].reason


# --------------------------------------------------------------------------------------------------------- not restored


def test_a_ledger_that_is_there_is_left_alone(scene: Scene) -> None:
    never, again, other = scene.ids
    stats = [scene.store.create(scene.cluster.path(i), scene.archived(i).data) for i in (never, again)]
    scene.edit(never, czxid=stats[0].czxid)
    scene.store.create(scene.cluster.path(other), b"another")

    done = scene.undo()

    assert outcomes(done) == [Outcome.PRESENT, Outcome.PRESENT, Outcome.REFUSED]
    assert "never deleted" in done[never].reason
    assert "restored already" in done[again].reason
    assert "issued again" in done[other].reason
    assert scene.data(other) == b"another"


def test_a_second_undo_finds_it_restored(scene: Scene) -> None:
    scene.undo()
    assert outcomes(scene.undo()) == [Outcome.PRESENT] * 3
    assert outcomes(scene.preview()) == [Outcome.PRESENT] * 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cluster": "other"}, "another cluster"),
        ({"path": "/elsewhere/00/0000/L0001"}, "another place"),
        ({"data": b""}, "no ledger metadata"),
        ({"data": b"rubbish"}, "no ledger metadata"),
        ({"czxid": 1 << 40}, "metadata store is younger"),
    ],
)
def test_what_may_not_come_back_is_refused_and_says_why(scene: Scene, changes: dict[str, Any], reason: str) -> None:
    scene.edit(scene.ids[0], **changes)
    done = scene.undo()
    assert outcomes(done) == [Outcome.REFUSED, Outcome.RESTORED, Outcome.RESTORED]
    assert reason in done[scene.ids[0]].reason
    assert scene.journal(scene.ids[0]) == [Outcome.REFUSED]


def test_an_open_ledger_is_refused(scene: Scene) -> None:
    open_ = scene.deleted(LedgerState.OPEN)
    done = scene.undo()
    assert done[open_].outcome == Outcome.REFUSED
    assert not scene.exists(open_)


def test_an_empty_ledger_needs_no_bookie(scene: Scene) -> None:
    empty = scene.deleted(entries=0)
    scene.cluster.reader.silent = {A, B, C}
    assert scene.undo()[empty].outcome == Outcome.RESTORED


def test_of_two_archived_z_nodes_the_newer_comes_back(scene: Scene) -> None:
    first = scene.archived(scene.ids[0])
    newer = replace(first, run_id="later", czxid=first.czxid + 1, at=first.at + 1)
    scene.cluster.journal.nodes[:0] = [newer]
    scene.undo()
    row = next(row for row in scene.cluster.journal.rows if row.ledger_id == first.ledger_id)
    assert json.loads(row.detail)["archived_by"] == "later"


# ---------------------------------------------------------------------------------------------------------- stopping


def test_a_paused_cluster_gets_nothing_back(scene: Scene) -> None:
    control.pause(scene.store, "wait")
    with pytest.raises(Paused):
        scene.undo()
    assert not any(map(scene.exists, scene.ids))


def test_a_pause_interrupts_the_wait_and_a_rerun_goes_on(scene: Scene) -> None:
    _during_the_wait(scene, lambda: control.pause(scene.store, "wait"))
    with pytest.raises(Paused):
        scene.undo()
    assert [scene.journal(i)[-1] for i in scene.ids] == [Outcome.RECREATED] * 3
    assert outcomes(scene.preview()) == [Outcome.RECREATED] * 3

    control.resume(scene.store)
    assert outcomes(scene.undo()) == [Outcome.RESTORED] * 3
    assert sum(scene.cluster.clock.slept) == pytest.approx(GC_WAIT)


def test_a_slow_metadata_store_stops_an_undo(scene: Scene) -> None:
    scene.store.latency = 501
    with pytest.raises(Overloaded):
        scene.undo()
    assert not any(map(scene.exists, scene.ids))


def test_without_the_lease_nothing_is_taken_away(scene: Scene) -> None:
    lost = scene.ids[1]

    def lose() -> None:
        scene.collect(lost, A, B, C)
        scene.store.write(control.LEASE, b"{}", -1)

    _during_the_wait(scene, lose)
    with pytest.raises(LeaseLost):
        scene.undo()
    assert scene.exists(lost)
    assert scene.journal(lost)[-1] == Outcome.UNCONFIRMED

    control.release_lease(scene.store, scene.lease)
    scene.lease = control.take_lease(scene.store, "test", scene.cluster.clock, 1)
    assert scene.undo()[lost].outcome == Outcome.LOST
    assert not scene.exists(lost)


# -------------------------------------------------------------------------------------------------- faults and crashes


@pytest.mark.parametrize("arrived", [True, False])
def test_after_an_unknown_outcome_of_a_creation_what_is_there_decides(scene: Scene, arrived: bool) -> None:
    path = scene.cluster.path(scene.ids[0])

    def lose(operation: Operation) -> None:
        if operation == Operation("create", (path,)):
            raise OutcomeUnknown("connection lost")

    if arrived:
        scene.store.after = lose
    else:
        scene.store.before = lose
    done = scene.undo()

    assert outcomes(done) == [Outcome.RESTORED if arrived else Outcome.UNKNOWN, Outcome.RESTORED, Outcome.RESTORED]
    scene.store.before = scene.store.after = lambda operation: None
    assert outcomes(scene.undo()) == [
        Outcome.PRESENT if arrived else Outcome.RESTORED,
        Outcome.PRESENT,
        Outcome.PRESENT,
    ]


def _watched(scene: Scene, steps: Steps) -> None:
    """Steps are each request to the store, before and after it, each check, each write of the journal."""
    scene.hook = steps
    watch(scene.store, steps)


def _reborn(scene: Scene) -> None:
    """A new process: a new session, the lease taken again."""
    scene.hook = lambda name: None
    scene.store.close()
    scene.store = scene.cluster.open_store()
    scene.cluster.clock.advance(30)
    scene.lease = control.take_lease(scene.store, "test", scene.cluster.clock, 1)


def _killed_at(at: int, collected_meanwhile: bool) -> tuple[Scene, bool]:
    """Kill an undo at one step and run it again; the scene, and whether there was such a step."""
    scene = Scene()
    created = _counting_creations(scene)
    if collected_meanwhile:
        _during_the_wait(scene, lambda: scene.collect(scene.ids[1], A, B, C))
    _watched(scene, Steps(at))
    killed = False
    try:
        scene.undo()
    except Crash:
        killed = True
    _reborn(scene)
    if collected_meanwhile and scene.exists(scene.ids[1]):
        scene.collect(scene.ids[1], A, B, C)
    done = scene.undo()
    assert all(created.count(scene.cluster.path(i)) <= 1 for i in scene.ids), "created twice"
    assert set(outcomes(done)) <= {Outcome.RESTORED, Outcome.PRESENT, Outcome.LOST}
    return scene, killed


def _counting_creations(scene: Scene) -> list[str]:
    """Every creation that reached the server, whatever session it came from."""
    server = scene.cluster.zookeeper
    create, created = server.create, list[str]()

    def counted(path: str, data: bytes, owner: int) -> Any:
        created.append(path)
        return create(path, data, owner)

    server.create = counted  # type: ignore[method-assign]
    return created


@pytest.mark.parametrize("collected_meanwhile", [False, True])
def test_a_crash_at_any_step_is_made_good_by_a_rerun(collected_meanwhile: bool) -> None:
    for at in count():
        scene, killed = _killed_at(at, collected_meanwhile)
        for ledger_id in scene.ids:
            gone = collected_meanwhile and ledger_id == scene.ids[1] and Outcome.LOST in scene.journal(ledger_id)
            assert scene.exists(ledger_id) != gone, (at, scene.journal(ledger_id))
            final = [outcome for outcome in scene.journal(ledger_id) if outcome != Outcome.PRESENT][-1]
            assert final == (Outcome.LOST if gone else Outcome.RESTORED), (at, scene.journal(ledger_id))
        if not killed:
            break
    assert at > 30


def test_what_could_not_be_journalled_is_not_done(scene: Scene) -> None:
    scene.cluster.journal.failure = StoreError("disk full")
    with pytest.raises(StoreError):
        scene.undo()
    assert not any(map(scene.exists, scene.ids))


def test_bookies_that_cannot_be_found_stop_it_before_anything_is_done(scene: Scene) -> None:
    def broken(name: str) -> None:
        if name == "check":
            raise Unavailable("no connection to the metadata store")

    scene.hook = broken
    with pytest.raises(Unavailable):
        scene.undo()
    assert not any(map(scene.exists, scene.ids))


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
