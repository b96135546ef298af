"""One edit of a topic's z-node with the unload it asks for: lost and unknown writes, policy, budget, interruptions.

What trimming makes of it is in test_trim.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from uuid import UUID

import pytest

from pulsar_lifecycle.errors import (
    AccessDenied,
    Conflict,
    CorruptFormat,
    LeaseLost,
    LifecycleError,
    OutcomeUnknown,
    Paused,
    Refused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records.findings import Context
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import LEASE as OTHER_LEASE
from pulsar_lifecycle.runs.control import OFFLOAD_LEASE as LEASE
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.unloads import RunGuard, Unloads, finish_unloads
from pulsar_lifecycle.topics.write import EditOutcome, TopicRun, TopicWrite, edit_topic
from tests.kit.builders import some_why
from tests.kit.crash import Tell, killed_at_every_step, raising, watch
from tests.kit.fakes.metadata_store import Operation
from tests.kit.topic_scene import TOPIC, TopicScene
from tests.simulation.cluster import data_tags

DONE = "done"
POLICY = "offload.loaded_topics"
CONTEXT = Context(now=0, grace=0, namespaces=frozenset({"acme/orders"}))
MINE = "mine"
PENDING = control.PENDING_UNLOADS[LEASE]


class Scene(TopicScene):
    """A topic whose properties are edited; ``steps`` are the effects in their order."""

    def __init__(self, *, loaded: bool = False, policy: bool | frozenset[str] | None = None, limit: int = 500) -> None:
        super().__init__()
        state = LedgerState.OPEN if loaded else LedgerState.CLOSED
        self.ids = [self.cluster.ledger(data_tags(TOPIC)), self.cluster.ledger(data_tags(TOPIC), state=state)]
        self.cluster.topic(TOPIC, self.ids)
        self.cluster.admin.topics[TOPIC] = {}
        if loaded:
            self.cluster.load(TOPIC)
        self.cluster.wait(1)
        self.new_session()
        self.steps: list[str] = []
        self.looks = 0
        self.store.before = self.look
        self.cluster.admin.on_unload = lambda topic: self.steps.append("unload")
        self.loaded_topics = loaded if policy is None else policy
        self.limit = limit
        self.guard = self.guard(self.store)
        self.steps.clear()

    def look(self, operation: Operation) -> None:
        if operation.name in ("create", "write", "delete"):
            self.steps.append(f"{operation.name} {operation.paths[0].removeprefix(PENDING)}")

    @property
    def owed_name(self) -> str:
        return PendingUnload(TOPIC, True, 0, LEASE).path.removeprefix(PENDING)

    @property
    def written(self) -> bool:
        return MINE in self.info.properties

    def broker_writes(self) -> None:
        """A rollover."""
        info = self.info
        new = LedgerInfo(self.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN))
        self.cluster.put(self.path, managed_ledger.encode(replace(info, ledgers=(*info.ledgers, new))))

    def on_write(self, act: Callable[[], object], when: str = "before", times: int = 1) -> None:
        """As above, and the steps are still looked at."""
        hook = self.at_write(act, times)

        def looked(operation: Operation) -> None:
            if when == "before":
                self.look(operation)
            hook(operation)

        setattr(self.store, when, looked)

    def edit(
        self, change: Callable[..., tuple[ManagedLedgerInfo, dict[int, EditOutcome]]] | None = None
    ) -> dict[int, EditOutcome]:
        cluster = self.cluster
        ports = Ports(self.store, cluster.reader, cluster.admin, cluster.open_queue(), cluster.journal, cluster.clock)
        run = self.topic_run(self.store, CONTEXT)
        return edit_topic(run, ports, self.guard, TOPIC, change or self.change, POLICY)

    def change(self, node: Node, info: ManagedLedgerInfo) -> tuple[ManagedLedgerInfo, dict[int, EditOutcome]]:
        self.looks += 1
        first, last = self.ids
        said = {
            first: EditOutcome(DONE, some_why("so it is"), changes=MINE not in info.properties),
            last: EditOutcome("kept", some_why("the last")),
        }
        return replace(info, properties={**info.properties, MINE: "yes"}), said


def outcomes(said: Mapping[int, EditOutcome]) -> list[str]:
    return [one.outcome for _, one in sorted(said.items())]


def test_an_unloaded_topic_is_written_and_watched() -> None:
    scene = Scene()
    assert outcomes(scene.edit()) == [DONE, "kept"]
    assert scene.steps == [f"create {scene.owed_name}", f"write {scene.path}"]
    assert (scene.written, scene.left_pending, scene.cluster.admin.touched) == (True, [False], [])


def test_a_loaded_topic_is_written_and_unloaded_at_once() -> None:
    scene = Scene(loaded=True)
    assert outcomes(scene.edit()) == [DONE, "kept"]
    name = scene.owed_name
    assert scene.steps == [f"create {name}", f"write {scene.path}", "unload", f"delete {name}"]
    assert (scene.written, scene.left_pending) == (True, [])


def test_what_needs_no_change_writes_nothing() -> None:
    scene = Scene(loaded=True, policy=False, limit=0)
    said = scene.edit(lambda node, info: (info, {scene.ids[0]: EditOutcome(DONE, some_why("so it was"))}))
    assert outcomes(said) == [DONE]
    assert (scene.steps, scene.version, scene.left_pending) == ([], 0, [])


@pytest.mark.parametrize(
    ("policy", "goes"),
    [
        (True, True),
        (False, False),
        (frozenset[str](), False),
        (frozenset({str(TOPIC)}), True),
        (frozenset({str(TOPIC.partitioned_parent)}), True),
        (frozenset({"acme/orders"}), True),
        (frozenset({"acme"}), True),
        (frozenset({"acme/other", "other"}), False),
    ],
)
def test_who_says_that_a_loaded_topic_may_be_written(policy: bool | frozenset[str], goes: bool) -> None:
    scene = Scene(loaded=True, policy=policy)
    said = scene.edit()
    assert outcomes(said) == [
        DONE if goes else Outcome.LEFT_TO_BROKER,
        "kept",
    ]  # what does not change is no matter of policy
    assert scene.written == goes
    if not goes:
        assert said[scene.ids[0]].reason == (
            "its topic counts as loaded (listed by broker-1:8080), and offload.loaded_topics does not name it"
        )
        assert scene.steps == []


def test_an_edit_that_no_policy_stops() -> None:
    scene = Scene(loaded=True, policy=False)
    cluster = scene.cluster
    ports = Ports(scene.store, cluster.reader, cluster.admin, cluster.open_queue(), cluster.journal, cluster.clock)
    shadows = snapshot.Shadows(snapshot.ShadowSources, cluster.clock)
    brokers, now = Brokers(dict(cluster.admin.loaded), 60_000), cluster.clock.now_ms()
    run = TopicRun("run", "simulated", "/ledgers", now, brokers, CONTEXT, 0, False, shadows)
    assert outcomes(edit_topic(run, ports, scene.guard, TOPIC, scene.change, "")) == [DONE, "kept"]
    assert (scene.written, scene.left_pending, "unload" in scene.steps) == (True, [], True)


def test_no_write_of_a_loaded_topic_without_an_unload_left() -> None:
    scene = Scene(loaded=True, limit=0)
    said = scene.edit()
    assert outcomes(said) == [Outcome.LEFT_TO_BROKER, "kept"]
    assert "trimming.max_unloads" in said[scene.ids[0]].reason
    assert scene.steps == []


def test_an_unloaded_topic_needs_no_unload() -> None:
    assert outcomes(Scene(limit=0).edit()) == [DONE, "kept"]


# -------------------------------------------------------------------------------------------- lost and unknown writes


@pytest.mark.parametrize("loaded", [False, True])
def test_a_write_that_is_lost_is_made_again_over_what_is_there(loaded: bool) -> None:
    scene = Scene(loaded=loaded, policy=True)
    scene.on_write(scene.broker_writes)
    assert outcomes(scene.edit()) == [DONE, "kept"]
    assert (scene.looks, scene.written, len(scene.info.ledgers)) == (2, True, 3)
    assert scene.left_pending == []  # it was written too recently to count as unloaded
    assert scene.steps.count("unload") == 1


def test_a_topic_that_a_broker_loads_between_look_and_write_is_judged_again() -> None:
    scene = Scene()

    def load() -> None:
        scene.broker_writes()
        scene.cluster.load(TOPIC)

    scene.on_write(load)
    said = scene.edit()
    assert outcomes(said) == [Outcome.LEFT_TO_BROKER, "kept"]
    assert (scene.written, scene.left_pending) == (False, [])
    assert scene.steps[-1] == f"delete {scene.owed_name}"


def test_a_z_node_that_never_comes_to_rest() -> None:
    scene = Scene(loaded=True)
    scene.on_write(scene.broker_writes, times=99)
    with pytest.raises(Refused, match="its z-node changed 5 times while it was looked at; run again"):
        scene.edit()
    assert (scene.looks, scene.written, scene.left_pending) == (5, False, [])
    assert "unload" not in scene.steps


def test_a_topic_whose_last_ledger_is_gone_can_be_written() -> None:
    scene = Scene(loaded=True)
    scene.cluster.remove(scene.cluster.path(scene.ids[-1]))
    assert outcomes(scene.edit()) == [DONE, "kept"]
    assert (scene.written, scene.left_pending, scene.steps.count("unload")) == (True, [], 1)


def test_a_topic_none_of_whose_ledgers_is_left_is_not_written() -> None:
    scene = Scene(loaded=True)
    for ledger_id in scene.ids:
        scene.cluster.remove(scene.cluster.path(ledger_id))
    with pytest.raises(Refused, match="BookKeeper has none of the ledgers that it lists"):
        scene.edit()
    assert (scene.written, scene.left_pending, scene.steps.count("unload")) == (False, [], 0)


def test_what_is_done_is_said_though_its_note_stays() -> None:
    scene = Scene(loaded=True)

    def fails(operation: Operation) -> None:
        if operation.name == "delete":
            raise StoreError("no quorum")

    scene.store.before = fails
    said = scene.edit()
    assert outcomes(said) == [DONE, "kept"]
    assert "the note of that could not be removed: no quorum" in said[scene.ids[0]].reason
    assert (scene.written, scene.left_pending) == (True, [True])


def test_a_topic_that_goes_meanwhile() -> None:
    scene = Scene(loaded=True)
    scene.on_write(lambda: scene.cluster.remove(scene.path))
    with pytest.raises(Refused, match="does not exist"):
        scene.edit()
    assert "unload" not in scene.steps
    assert scene.left_pending == []


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("between", [False, True])
def test_a_write_without_an_answer_is_judged_by_what_is_there(loaded: bool, when: str, between: bool) -> None:
    """``between``: a broker writes before we can look, which hides whose version it is."""
    scene = Scene(loaded=loaded, policy=True)

    def lost() -> None:
        if between:
            scene.broker_writes()
        raise OutcomeUnknown("connection lost")

    scene.on_write(lost, when)
    assert outcomes(scene.edit()) == [DONE, "kept"]
    assert (scene.written, scene.info.properties) == (True, {MINE: "yes"})
    assert scene.looks == 2
    unloaded_at_once = loaded or (between and when == "before")
    assert scene.steps.count("unload") == unloaded_at_once
    assert scene.left_pending == ([] if unloaded_at_once else [False])


def test_a_write_whose_outcome_stays_unknown_is_unloaded_and_stays_owed() -> None:
    scene = Scene(loaded=True)
    scene.on_write(raising(OutcomeUnknown("connection lost")), "after")
    reads = scene.store.before

    def down(operation: Operation) -> None:
        reads(operation)
        if scene.written and operation.name == "sync":
            raise Unavailable("down")

    scene.store.before = down
    with pytest.raises(Unavailable):
        scene.edit()
    assert scene.steps[-1] == "unload"
    assert scene.left_pending == [True]


@pytest.mark.parametrize("error", [AccessDenied("NoAuth"), StoreError("no such request")])
def test_a_write_that_was_denied_owes_nothing(error: LifecycleError) -> None:
    scene = Scene(loaded=True)
    scene.on_write(raising(error))
    with pytest.raises(StoreError):
        scene.edit()
    assert (scene.written, scene.left_pending, "unload" in scene.steps) == (False, [], False)


def test_a_write_that_was_denied_leaves_what_was_owed_before() -> None:
    scene = Scene(loaded=True)
    control.note_unload(scene.cluster.open_store(), PendingUnload(TOPIC, True, 1, LEASE))
    scene.on_write(raising(AccessDenied("NoAuth")))
    with pytest.raises(AccessDenied):
        scene.edit()
    assert scene.left_pending == [True]


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), Unavailable("no answer"), LeaseLost("another's")])
def test_an_error_that_leaves_doubt_leaves_it_owed(error: LifecycleError) -> None:
    scene = Scene(loaded=True)

    def lost() -> None:
        scene.cluster.zookeeper.unreadable.add(scene.path)
        raise error

    scene.on_write(lost)
    with pytest.raises(LifecycleError):
        scene.edit()
    assert (scene.written, scene.left_pending) == (False, [True])


def test_unloads_that_fail_are_said_of_every_ledger_and_stay_owed() -> None:
    scene = Scene(loaded=True)
    scene.cluster.admin.on_unload = raising(Unavailable("503"))
    said = scene.edit()
    assert outcomes(said) == [DONE, "kept"]
    assert {one.reason.partition("; ")[2] for one in said.values()} == {"an unload of its topic is pending: 503"}
    assert scene.left_pending == [True]


def test_an_unload_that_is_owed_already_is_settled_by_ours_alone() -> None:
    scene = Scene(loaded=True)
    control.note_unload(scene.cluster.open_store(), PendingUnload(TOPIC, True, 1, LEASE))
    scene.on_write(scene.broker_writes, times=99)
    with pytest.raises(Refused):
        scene.edit()
    assert scene.left_pending == [True]  # an earlier run's, which this one knows nothing about
    scene.on_write(lambda: None)
    scene.edit()
    assert scene.left_pending == []


class Other:
    """A run of the other lease, at the same topic."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.store = scene.cluster.open_store()
        self.lease = control.take_lease(self.store, "other", scene.cluster.clock, 0, OTHER_LEASE)
        self.guard = RunGuard(self.lease.guard, Unloads(5, 500, scene.cluster.clock))

    def settle(self) -> None:
        cluster = self.scene.cluster
        finish_unloads(self.store, cluster.admin, cluster.clock, self.guard, wait=False)


def test_a_run_of_another_lease_settles_nothing_that_is_owed_while_we_are_at_it() -> None:
    scene = Scene(loaded=True)
    scene.on_write(Other(scene).settle)
    scene.cluster.admin.on_unload = raising(Unavailable("down"))
    scene.edit()
    assert (scene.written, scene.left_pending) == (True, [True])
    Other(Scene(loaded=True)).settle()  # no holder, nothing pending


def created_again(scene: Scene, surviving: Collection[int] = ()) -> tuple[LedgerInfo, ...]:
    """The topic is deleted with its ledgers but for some, and created with another one; it has the same version."""
    version = scene.version
    for item in scene.info.ledgers:
        if item.ledger_id not in surviving:
            scene.cluster.remove(scene.cluster.path(item.ledger_id))
    scene.cluster.remove(scene.path)
    made = ManagedLedgerInfo((LedgerInfo(scene.cluster.ledger(data_tags(TOPIC))),))
    for _ in range(version + 1):
        scene.cluster.put(scene.path, managed_ledger.encode(made))
    assert scene.version == version
    return made.ledgers


def test_a_topic_that_was_created_again_and_has_the_same_version_is_left_alone() -> None:
    scene = Scene(loaded=False)
    made: list[tuple[LedgerInfo, ...]] = []
    scene.on_write(lambda: made.append(created_again(scene)))
    scene.edit()
    assert [scene.info.ledgers] == made


@pytest.mark.parametrize("moment", range(20))
def test_a_topic_that_is_created_again_at_any_moment_is_left_alone_though_a_ledger_survives(moment: int) -> None:
    """A broker may leave a ledger behind that is not the last one."""
    scene = Scene(loaded=False)
    made: list[tuple[LedgerInfo, ...]] = []
    seen = [0]

    def look(operation: Operation) -> None:
        seen[0] += not scene.written
        if seen[0] == moment + 1 and not made and not scene.written:
            made.append(created_again(scene, scene.ids[:1]))

    scene.store.before = look
    with contextlib.suppress(Refused):
        scene.edit()
    assert not made or scene.info.ledgers == made[0]


def test_what_is_released_in_bookkeeper_backs_no_topic() -> None:
    """A broker that deletes the topic leaves it behind."""
    scene = Scene(loaded=True)
    first, last = scene.info.ledgers
    offload = OffloadContext(UUID(int=1), True, True, 1, "aws-s3", {"bucket": "b"})
    scene.cluster.put(scene.path, managed_ledger.encode(ManagedLedgerInfo((replace(first, offload=offload), last))))
    scene.cluster.wait(1)
    scene.cluster.remove(scene.cluster.path(last.ledger_id))
    with pytest.raises(Refused, match="BookKeeper has none of the ledgers that it lists as there"):
        scene.edit()
    assert (scene.written, scene.left_pending) == (False, [])


def test_a_run_of_another_lease_that_lost_the_race_takes_no_watch_away() -> None:
    scene = Scene(loaded=False)
    other = Other(scene)
    cluster = scene.cluster
    ports = Ports(other.store, cluster.reader, cluster.admin, cluster.open_queue(), cluster.journal, cluster.clock)
    late = TopicWrite(ports, other.guard, TOPIC)
    node = other.store.read([scene.path])[0]
    assert isinstance(node, Node)
    late.note_unload(False)
    scene.edit()
    assert not late.write(node, b"", scene.cluster.path(scene.ids[-1]))
    assert late.finish(sure=True) is None
    assert (scene.written, scene.left_pending) == (True, [False])


def test_what_is_owed_under_a_lease_that_nobody_holds_is_settled_by_whoever_comes() -> None:
    scene = Scene(loaded=True)
    scene.cluster.admin.on_unload = raising(Unavailable("down"))
    scene.edit()
    other = Other(scene)
    scene.cluster.admin.on_unload = lambda topic: None
    other.settle()
    assert scene.left_pending == [True]
    control.release_lease(scene.store, scene.lease)
    other.settle()
    assert scene.left_pending == []


def test_what_a_run_owes_that_begins_while_owed_unloads_are_listed_is_its_own() -> None:
    """It has not written yet: settled now, nothing would be pending when it dies after its write."""
    scene = Scene()

    def begin(operation: Operation) -> None:
        if operation.name == "children":
            scene.store.before = lambda _: None
            other = Other(scene)
            control.note_unload(other.store, PendingUnload(TOPIC, True, 1, OTHER_LEASE))

    scene.store.before = begin
    assert control.pending_for(scene.store, scene.guard.guard) == []


def test_what_is_owed_anew_since_it_was_read_stays_owed() -> None:
    scene = Scene()
    left_pending = PendingUnload(TOPIC, True, 1, LEASE)
    control.note_unload(scene.store, left_pending)
    (read,) = control.pending_unloads(scene.store)
    assert isinstance(read, PendingUnload)
    control.note_unload(scene.store, left_pending)
    control.finish_unload(scene.store, read)
    assert scene.left_pending == [True]
    control.finish_unload(scene.store, left_pending)
    assert scene.left_pending == []


def test_what_was_settled_and_is_owed_anew_since_it_was_read_stays_owed() -> None:
    """Its z-node has the first version again."""
    scene = Scene()
    control.note_unload(scene.store, PendingUnload(TOPIC, True, 1, LEASE))
    (read,) = control.pending_unloads(scene.store)
    assert isinstance(read, PendingUnload)
    control.finish_unload(scene.store, read)
    assert scene.left_pending == []
    control.note_unload(scene.store, PendingUnload(TOPIC, True, 2, LEASE))
    control.finish_unload(scene.store, read)
    assert scene.left_pending == [True]


# ------------------------------------------------------------------------------------------------ what stops an edit


@pytest.mark.parametrize("error", [Paused, LeaseLost])
@pytest.mark.parametrize("looks", [0, 1, 2])
def test_a_run_that_may_not_act_writes_nothing_more(error: type[Refused], looks: int) -> None:
    """Stopped before the first look, and between a look and its write."""
    scene = Scene(loaded=True)
    scene.on_write(scene.broker_writes, times=1)

    def stop() -> None:
        if error is Paused:
            control.pause(scene.cluster.open_store(), "test")
        else:
            scene.cluster.put(LEASE, b"{}")

    def change(node: Node, info: ManagedLedgerInfo) -> tuple[ManagedLedgerInfo, dict[int, EditOutcome]]:
        result = scene.change(node, info)
        if scene.looks == looks:
            stop()
        return result

    if not looks:
        stop()
    with pytest.raises(error):
        scene.edit(change)
    assert not scene.written
    assert "unload" not in scene.steps
    assert scene.left_pending == ([True] if looks == 2 else [])


@pytest.mark.parametrize(
    "error", [Refused("no"), CorruptFormat("x", 0, "y"), StoreError("x"), Unavailable("x"), LeaseLost("x")]
)
def test_an_error_of_the_change_itself(error: LifecycleError) -> None:
    scene = Scene(loaded=True)
    with pytest.raises(type(error)):
        scene.edit(raising(error))  # type: ignore[arg-type]
    assert (scene.steps, scene.left_pending) == ([], [])


def test_nothing_is_written_unless_the_unload_was_noted() -> None:
    scene = Scene(loaded=True)
    scene.store.after = lambda operation: raising(OutcomeUnknown("x"))() if operation.name == "create" else None
    look = scene.store.before

    def before(operation: Operation) -> None:
        look(operation)
        if operation == Operation("write", (PendingUnload(TOPIC, True, 0, LEASE).path,)):
            raise StoreError("no")

    scene.store.before = before
    with pytest.raises(StoreError):
        scene.edit()
    assert not scene.written


def crashes(loaded: bool) -> Iterator[Scene]:
    """The scene after an edit that was killed before or after each of its requests in turn."""

    def edit(scene: Scene, tell: Tell) -> None:
        watch(scene.store, tell)
        scene.edit()

    for scene, _ in killed_at_every_step(lambda: Scene(loaded=loaded), edit):
        yield scene


@pytest.mark.parametrize("loaded", [False, True])
def test_killed_anywhere_a_write_that_was_made_is_owed_its_unload(loaded: bool) -> None:
    count = 0
    for scene in crashes(loaded):
        count += 1
        unloaded = not scene.cluster.admin.loaded
        assert not scene.written or scene.left_pending == [loaded] or (loaded and unloaded)
    assert count > 10


def test_conflict_and_not_found_are_lost_writes_and_nothing_else_is() -> None:
    for error in (StoreError("403"), Unavailable("latency")):
        scene = Scene(loaded=True)
        scene.on_write(raising(error))
        with pytest.raises(type(error)):
            scene.edit()
        assert not scene.written
    scene = Scene(loaded=True)
    scene.on_write(raising(Conflict("version")))
    assert outcomes(scene.edit()) == [DONE, "kept"]
