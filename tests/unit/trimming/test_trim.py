"""Trimming one topic over the fakes: the effect, a broker that loads it meanwhile, dry runs, the deletion run after."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest

from pulsar_lifecycle.errors import (
    Unavailable,
)
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.deletion_message import LedgerType
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.unloads import RunGuard
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.trimming import delete_topic as trimming_delete_topic
from pulsar_lifecycle.trimming import trim as trimming_trim
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.topic_scene import OTHER, TOPIC, outcomes
from tests.kit.scenes.trim_scene import CONTEXT, broker_rolls_over, recording
from tests.kit.scenes.trim_scene import TrimScene as Scene
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.pipeline import delete, scan


@pytest.fixture
def scene() -> Scene:
    return Scene()


# ---------------------------------------------------------------------------------------------------------- the effect


def test_exactly_the_ledgers_asked_for_leave_an_unloaded_topic(scene: Scene) -> None:
    found = scene.trim()
    gone, left = scene.ids[:3], scene.ids[3:]
    assert outcomes(found) == dict.fromkeys(gone, Outcome.REMOVED)
    assert scene.listed == left
    assert scene.sent == [(i, LedgerType.LEDGER) for i in gone]
    assert scene.rows == {Outcome.MARKED: gone, Outcome.REMOVED: gone}
    assert scene.cluster.ledger_ids() >= set(scene.ids)  # nothing is deleted by the first phase
    assert scene.left_pending == []
    stats = [scene.cluster.zookeeper.stat(scene.cluster.path(i)) for i in gone]
    rows = [json.loads(row.detail)["czxid"] for row in scene.cluster.journal.rows if row.outcome == Outcome.MARKED]
    assert rows == [stat.czxid for stat in stats if stat]
    assert {(row.action, row.bytes, row.component) for row in scene.cluster.journal.rows} == {
        ("delete-ledger", 10, "Managed-Ledger")
    }


def test_the_order_of_the_steps(scene: Scene) -> None:
    scene.load()
    steps: list[str] = []
    ports = recording(scene, steps.append)
    scene.trim(loaded_topics=True, ports=ports)
    assert [s for s in steps if not s.endswith("lease")] == [
        "send",
        "record sent",
        "record marked",
        f"create {control.PendingUnload(TOPIC, True, 0, control.LEASE).path}",
        f"write {scene.path}",
        "unload",
        f"delete {control.PendingUnload(TOPIC, True, 0, control.LEASE).path}",
        "record removed",
    ]


def test_nothing_else_in_the_z_node_changes(scene: Scene) -> None:
    unknown = b"\xf2\x01\x03abc"  # field 30 of a later version
    before = scene.cluster.zookeeper.data(scene.path)
    scene.cluster.put(scene.path, before + unknown)
    scene.cluster.wait(1)
    scene.trim()
    after = scene.cluster.zookeeper.data(scene.path)
    assert after.endswith(unknown)
    first = before.index(managed_ledger.encode(managed_ledger.decode(before))[:1])
    assert first == 0
    assert before.endswith(after.removesuffix(unknown))  # the ledgers that stayed, byte by byte


def test_a_run_without_orders_only_finishes(scene: Scene) -> None:
    assert scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [])) == {}


def test_two_orders_for_one_topic_are_one(scene: Scene) -> None:
    orders = [TrimOrder(TOPIC, frozenset({i})) for i in scene.ids[:2]]
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, orders))
    assert outcomes(found) == dict.fromkeys(scene.ids[:2], Outcome.REMOVED)
    assert scene.cluster.zookeeper.stat(scene.path).version == 1  # type: ignore[union-attr]
    assert trimming_trim.merged(orders) == {TOPIC: TrimOrder(TOPIC, frozenset(scene.ids[:2]))}


@pytest.mark.parametrize("empty", [False, True])
def test_an_order_below_the_first_ledger_says_so(scene: Scene, empty: bool) -> None:
    if empty:
        scene.cluster.topic(TOPIC)
        scene.cluster.wait(1)
    order = TrimOrder(TOPIC, up_to=scene.ids[0] - 1)
    planned = trimming_trim.plan_trim(scene.run(), scene.ports(), order)
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [order]))
    assert list(found.values()) == planned
    (one,) = planned
    assert (one.topic, one.ledger_id) == (str(TOPIC), -1)
    assert (one.outcome, one.why.code) == (Outcome.NOTHING, Code.NOTHING_LISTED)
    begins = "lists no ledger" if empty else f"begins with ledger {scene.ids[0]}"
    assert one.reason == f"it {begins}: none is up to 0"


def test_another_topics_ledger_is_not_one_that_left(scene: Scene) -> None:
    first, other = scene.cluster.ledger(data_tags(TOPIC)), scene.cluster.ledger(data_tags(OTHER))
    scene.cluster.topic(TOPIC, [scene.cluster.ledger(data_tags(TOPIC)) for _ in range(2)])
    order = TrimOrder(TOPIC, frozenset({first, other}))
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [order]))
    assert outcomes(found) == {first: Outcome.NOTHING, other: Outcome.REFUSED}
    assert found[other].why.code is Stays.NOT_LISTED
    assert OTHER.managed_ledger in found[other].reason


def test_ledgers_that_left_already_are_nothing_to_do(scene: Scene) -> None:
    order = TrimOrder(TOPIC, frozenset({*scene.ids[:2], 10**9}))
    assert outcomes(scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [order]))) == {
        **dict.fromkeys(scene.ids[:2], Outcome.REMOVED),
        10**9: Outcome.REFUSED,
    }

    planned = trimming_trim.plan_trim(scene.run(), scene.ports(), order)
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [order]))
    assert list(found.values()) == planned
    assert outcomes(found) == {**dict.fromkeys(scene.ids[:2], Outcome.NOTHING), 10**9: Outcome.REFUSED}
    assert {one.why.code for one in found.values()} == {Stays.NOT_LISTED}
    assert f"begins with ledger {scene.ids[2]}" in found[scene.ids[0]].reason


def test_both_copies_get_a_message_and_a_deleted_one_none(scene: Scene) -> None:
    uuid = UUID(int=9)
    offload = OffloadContext(uuid, True, False, 1, "aws-s3", {"bucket": "b"})
    first, second, *_ = scene.ids
    scene.cluster.topic(TOPIC, scene.ids, offloaded={first: offload, second: replace(offload, bookkeeper_deleted=True)})
    scene.cluster.remove(scene.cluster.path(second))
    scene.cluster.wait(1)
    assert outcomes(scene.trim()) == dict.fromkeys(scene.ids[:3], Outcome.REMOVED)
    assert scene.sent == [
        (first, LedgerType.LEDGER),
        (first, LedgerType.OFFLOAD_LEDGER),
        (second, LedgerType.OFFLOAD_LEDGER),
        (scene.ids[2], LedgerType.LEDGER),
    ]
    assert [(row.ledger_id, row.action, row.outcome) for row in scene.journalled("send")] == [
        (first, "delete-ledger", "sent"),
        (first, "delete-offload-ledger", "sent"),
        (second, "delete-offload-ledger", "sent"),
        (scene.ids[2], "delete-ledger", "sent"),
    ]
    actions = {row.ledger_id: row.action for row in scene.journalled("mark")}
    assert actions[second] == "delete-offload-ledger"
    marks = [json.loads(row.detail) for row in scene.journalled("mark") if row.outcome == Outcome.MARKED]
    assert [(mark["uuid"], mark["bucket"]) for mark in marks] == [(str(uuid), "b"), (str(uuid), "b"), ("", "")]


def test_a_copy_in_bookkeeper_that_is_listed_as_deleted_and_is_there_gets_a_message_and_goes_at_once(
    scene: Scene,
) -> None:
    offload = OffloadContext(UUID(int=9), True, True, 1, "aws-s3", {"bucket": "b"})
    first = scene.ids[0]
    scene.cluster.topic(TOPIC, scene.ids, offloaded={first: offload})
    scene.cluster.wait(1)
    assert outcomes(scene.trim(0)) == {first: Outcome.REMOVED}
    assert scene.sent == [(first, LedgerType.LEDGER), (first, LedgerType.OFFLOAD_LEDGER)]
    assert first in {ledger_id for ledger_id, _ in scene.marks}
    before = scan(scene.cluster)
    scene.cluster.wait(25)
    now = scan(scene.cluster, previous=[before])
    found = {d.info.ledger_type: d.outcome for d in delete(scene.cluster, now, before)}
    assert found[LedgerType.LEDGER] == Outcome.DELETED
    assert not scene.cluster.exists(first)


def test_the_row_of_a_ledger_that_cannot_be_read_is_as_wide_as_any(scene: Scene) -> None:
    unread, *_ = ids = scene.ids
    scene.cluster.zookeeper.unreadable.add(scene.cluster.path(unread))
    rows = snapshot.ledger_rows(scene.store, ids, "/ledgers")
    assert {tuple(row) for row in rows.values() if row} == {tuple(tables.BOOKKEEPER_LEDGERS.names)}
    row = rows[unread]
    assert row is not None
    assert {name: value for name, value in row.items() if value} == {
        "ledger_id": unread,
        "problem": "unread",
        "error": row["error"],
    }


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_mark_waives_nothing_for_a_ledger_in_bookkeeper_that_got_no_message(
    scene: Scene, foreign: bool, whole: bool
) -> None:
    """Its id was issued again for another topic's, or its z-node cannot be read: only the copy is asked for."""
    bookkeeper_deleted = OffloadContext(UUID(int=9), True, True, 1, "aws-s3", {"bucket": "b"})
    first = scene.ids[0]
    scene.cluster.topic(TOPIC, scene.ids, offloaded={first: bookkeeper_deleted})
    scene.cluster.admin.topics[TOPIC] = {}
    if foreign:
        scene.cluster.remove(scene.cluster.path(first))
        scene.cluster.ledger(data_tags(OTHER), ledger_id=first)
    else:
        scene.cluster.zookeeper.unreadable.add(scene.cluster.path(first))
    scene.cluster.wait(1)
    found = scene.delete_topic() if whole else scene.trim(0)
    assert found[first].outcome == (Outcome.LEFT if whole else Outcome.REMOVED)
    assert [kind for ledger_id, kind in scene.sent if ledger_id == first] == [LedgerType.OFFLOAD_LEDGER]
    (mark,) = (row for row in scene.journalled("mark") if (row.ledger_id, row.outcome) == (first, Outcome.MARKED))
    assert "czxid" not in json.loads(mark.detail)


def test_an_offloaded_copy_that_could_not_be_deleted_stays_listed(scene: Scene) -> None:
    offload = OffloadContext(UUID(int=9), True, True, 1, "google-cloud-storage", {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[1]: offload})
    scene.cluster.wait(1)
    found = scene.trim()
    assert outcomes(found) == dict(zip(scene.ids[:3], [Outcome.REMOVED, Outcome.REFUSED, Outcome.REFUSED], strict=True))
    assert found[scene.ids[1]].why.code is Code.OTHER_DRIVER
    assert scene.sent == [(scene.ids[0], LedgerType.LEDGER)]


def test_nothing_is_sent_for_a_topic_with_a_leaked_open_ledger(scene: Scene) -> None:
    scene.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN)
    context = replace(CONTEXT, open_topics=scan(scene.cluster).context.open_topics)
    order = TrimOrder(TOPIC, up_to=scene.ids[1])

    def trim(run: TopicRun, ports: Ports, guard: RunGuard) -> list[LedgerOutcome]:
        return trimming_trim.trim_topics(replace(run, context=context), ports, guard, [order])

    def whole(run: TopicRun, ports: Ports, guard: RunGuard) -> list[LedgerOutcome]:
        return trimming_delete_topic.delete_topic(replace(run, context=context), ports, guard, TOPIC, True)

    for work, ids in ((trim, scene.ids[:2]), (whole, [-1])):
        found = scene.act(work)
        assert outcomes(found) == dict.fromkeys(ids, Outcome.REFUSED)
        assert {one.why.code for one in found.values()} == {Protection.OPEN_ORPHAN}
    assert scene.sent == []
    assert scene.listed == scene.ids


@pytest.mark.parametrize("refused", [0, 1, 2])
def test_what_was_not_acknowledged_stays_and_so_does_what_comes_after(scene: Scene, refused: int) -> None:
    scene.queue.refused = {scene.ids[refused]}
    found = scene.trim()
    assert scene.listed == scene.ids[refused:]
    assert outcomes(found) == {i: Outcome.REMOVED if i < scene.ids[refused] else Outcome.LEFT for i in scene.ids[:3]}
    assert scene.rows.get(Outcome.REMOVED, []) == scene.ids[:refused]
    failed = [row.ledger_id for row in scene.journalled("send") if row.outcome == "send-failed"]
    assert failed == [scene.ids[refused]]
    assert scene.rows[Outcome.LEFT] == scene.ids[refused:3]
    scene.queue.refused = set()
    scene.cluster.wait(1)
    assert set(outcomes(scene.trim()).values()) == {Outcome.REMOVED}
    assert scene.listed == scene.ids[3:]


@pytest.mark.parametrize("error", ["timed out", ""])
def test_one_copy_without_receipt_holds_the_ledger(scene: Scene, error: str) -> None:
    offload = OffloadContext(UUID(int=9), True, False, 1, "aws-s3", {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[1]: offload})
    scene.cluster.wait(1)
    send = scene.queue._send
    scene.queue._send = lambda info, after: (  # type: ignore[method-assign]
        replace(send(info, after), error=error) if info.offload_context else send(info, after)
    )
    found = scene.trim()
    assert scene.listed == scene.ids[1:]
    assert [found[i].why.code for i in scene.ids[1:3]] == [Code.NOT_SENT, Stays.NOT_PREFIX]


# ---------------------------------------------------------------------------------- an unloaded topic meets a broker


def test_a_topic_that_a_broker_loaded_meanwhile_is_unloaded_at_once(scene: Scene) -> None:
    scene.on_write(lambda: scene.cluster.load(TOPIC), "after")
    assert set(outcomes(scene.trim()).values()) == {Outcome.REMOVED}
    assert scene.cluster.admin.touched == [TOPIC]
    assert scene.left_pending == []
    assert scene.cluster.clock.slept == []


def test_a_topic_that_turns_up_two_intervals_later_is_unloaded(scene: Scene) -> None:
    sleep = scene.cluster.clock.sleep

    def listed_late(seconds: float) -> None:
        sleep(seconds)
        scene.cluster.load(TOPIC)

    scene.cluster.clock.sleep = listed_late  # type: ignore[method-assign]
    scene.trim()
    assert scene.cluster.clock.slept == [120.0]
    assert scene.cluster.admin.touched == [TOPIC]
    assert scene.left_pending == []


def test_a_topic_that_nobody_loads_is_not_touched(scene: Scene) -> None:
    scene.trim()
    assert scene.cluster.admin.touched == []
    assert sum(scene.cluster.clock.slept) == 120.0


def test_brokers_that_do_not_answer_leave_it_pending(scene: Scene) -> None:
    scene.on_write(lambda: setattr(scene.cluster.admin, "failure", Unavailable("down")), "after")
    found = scene.trim()
    assert found[-1].outcome == Outcome.FAILED
    assert found[-1].why.code is Code.UNLOAD_PENDING
    assert scene.left_pending == [False]
    scene.cluster.admin.failure = None
    scene.cluster.load(TOPIC)
    scene.trim()
    assert scene.left_pending == []
    assert scene.cluster.admin.touched == [TOPIC]


# ------------------------------------------------------------------------------------------------------------- dry runs


@pytest.mark.parametrize("loaded", [False, True])
def test_a_dry_run_says_what_would_happen_and_writes_nothing(scene: Scene, loaded: bool) -> None:
    if loaded:
        scene.load()
    before = scene.cluster.zookeeper.zxid
    scene.store = scene.cluster.open_store(read_only=True)
    order = TrimOrder(TOPIC, frozenset({77}), scene.ids[3])
    found = {one.ledger_id: one for one in trimming_trim.plan_trim(scene.run(), scene.ports(), order)}
    goes = Outcome.LEFT_TO_BROKER if loaded else Outcome.GOES
    assert outcomes(found) == {**dict.fromkeys(scene.ids[:3], goes), scene.ids[3]: Outcome.REFUSED, 77: Outcome.REFUSED}
    planned = trimming_delete_topic.plan_topic_deletion(scene.run(), scene.ports(), TOPIC)
    assert {one.outcome for one in planned} == {Outcome.GOES}
    assert {one.ledger_id for one in planned} == {*scene.ids, -1}
    assert (scene.cluster.zookeeper.zxid, scene.sent, scene.cluster.journal.rows) == (before, [], [])
    assert scene.cluster.admin.touched == []


def test_a_dry_run_says_that_an_unload_is_pending_first(scene: Scene) -> None:
    order = TrimOrder(TOPIC, frozenset(scene.ids[:1]))
    left_pending = control.PendingUnload(TOPIC, False, 0, control.LEASE)
    first = Why(Code.AFTER_UNLOAD, "only if the pending unload of its topic succeeds first")
    for loaded, why in ((False, Why(Code.MAY_GO, "")), (True, first)):
        control.note_unload(scene.store, replace(left_pending, loaded=loaded))
        (found,) = trimming_trim.plan_trim(scene.run(), scene.ports(), order)
        assert (found.outcome, found.why) == (Outcome.GOES, why)
    scene.cluster.put(left_pending.path, b"{")
    (found,) = trimming_trim.plan_trim(scene.run(), scene.ports(), order)
    assert (found.ledger_id, found.outcome, found.why.code) == (-1, Outcome.FAILED, Code.UNLOAD_PENDING)
    assert left_pending.path in found.reason
    assert scene.trim()[-1].outcome == Outcome.FAILED


# --------------------------------------------------------------------------------------------------------- second phase


def test_what_a_trim_removed_a_deletion_run_deletes_without_the_grace_period(scene: Scene) -> None:
    before = scan(scene.cluster)
    scene.cluster.wait(25)
    scene.trim()
    scene.cluster.clock.advance(700)
    now = scan(scene.cluster, previous=[before])
    decisions = delete(scene.cluster, now, before)
    assert [(d.info.ledger_id, d.outcome) for d in decisions] == [(i, Outcome.DELETED) for i in scene.ids[:3]]
    assert scene.cluster.ledger_ids() >= set(scene.ids[3:])


def test_what_a_trim_left_a_deletion_run_keeps(scene: Scene) -> None:
    before = scan(scene.cluster)
    scene.cluster.wait(25)
    scene.on_write(lambda: broker_rolls_over(scene))
    scene.trim()
    scene.cluster.wait(2)
    now = scan(scene.cluster, previous=[before])
    assert Outcome.DELETED not in {d.outcome for d in delete(scene.cluster, now, before)}
    assert scene.cluster.ledger_ids() >= set(scene.ids)
