"""The first phase over the fakes: who leaves a topic's list, what is refused, and every kind of interruption."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.errors import (
    AccessDenied,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    Paused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, LedgerType, decode_deletion_message
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.topics import SHADOW_SOURCE
from pulsar_lifecycle.model import Position, Topic, encode_name
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records import tables
from pulsar_lifecycle.records.codes import Code, Why
from pulsar_lifecycle.records.findings import Context
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics import first_phase, snapshot
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.topics.unloads import RunGuard, Unloads
from pulsar_lifecycle.topics.write import ATTEMPTS, TopicRun
from pulsar_lifecycle.trimming import delete_topic as trimming_delete_topic
from pulsar_lifecycle.trimming import trim as trimming_trim
from pulsar_lifecycle.trimming.trim import TrimOrder
from tests.kit.crash import Tell, killed_at_every_step, raising
from tests.kit.fakes.metadata_store import Operation
from tests.kit.topic_scene import OTHER, TOPIC, TopicScene, outcomes
from tests.simulation.cluster import SimulatedCluster, bucket_tags, compacted_tags, cursor_tags, data_tags
from tests.simulation.pipeline import delete, scan

PARENT = "/admin/partitioned-topics/acme/orders/persistent/" + encode_name(TOPIC.partitioned_parent.local)
MINUTE = 60_000
CONTEXT = Context(
    now=0, grace=0, namespaces=frozenset({"acme/orders", "theirs/orders"}), offload_buckets=frozenset({"b"})
)


class Scene(TopicScene):
    """A topic of five ledgers that was left alone for an hour; its cursor stands before the fourth."""

    def __init__(self) -> None:
        super().__init__()
        self.configuration: SimulatedCluster | None = None
        self.ids = [self.cluster.ledger(data_tags(TOPIC)) for _ in range(5)]
        self.cluster.topic(TOPIC, self.ids)
        self.cursor("s", Position(self.ids[3], -1))
        self.cluster.wait(1)
        self.queue = self.cluster.open_queue()
        self.new_session()

    def cursor(self, name: str, position: Position | None, ledger: int = -1) -> None:
        info = cursor_format.ManagedCursorInfo(ledger, position)
        self.cluster.put(f"{self.path}/{encode_name(name)}", cursor_format.encode(info))

    def load(self) -> None:
        """A broker has the topic, its last ledger open."""
        self.ids.append(self.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN))
        self.cluster.topic(TOPIC, self.ids)
        self.cluster.load(TOPIC)

    @property
    def listed(self) -> list[int]:
        data = self.cluster.zookeeper.data(self.path)
        return [item.ledger_id for item in managed_ledger.decode(data).ledgers]

    @property
    def sent(self) -> list[tuple[int, LedgerType]]:
        raws = [raw for _, _, raw, _ in self.cluster.deletion_topics.waiting.values()]
        return [(i.ledger_id, i.ledger_type) for i in map(decode_deletion_message, raws)]

    @property
    def rows(self) -> dict[str, list[int]]:
        """Ledgers by outcome of phase ``mark``, as the journal has them."""
        found: dict[str, list[int]] = {}
        for row in self.journalled("mark"):
            found.setdefault(row.outcome, []).append(row.ledger_id)
        return found

    def journalled(self, phase: str) -> list[JournalRow]:
        return [row for row in self.cluster.journal.rows if row.phase == phase]

    @property
    def marks(self) -> dict[int, tuple[int, int]]:
        """What ``io.lake.journal.marked_ledgers`` would say."""
        return {r.ledger_id: (json.loads(r.detail)["czxid"], r.at) for r in self.journalled("mark")}

    def ports(self) -> Ports:
        cluster = self.cluster
        return Ports(self.store, cluster.reader, cluster.admin, self.queue, cluster.journal, cluster.clock)

    def run(self, loaded_topics: bool | frozenset[str] = False) -> TopicRun:
        cluster = self.cluster
        brokers = Brokers(cluster.admin.loaded_topics(), cluster.admin.stats_interval_ms())
        now = cluster.clock.now_ms()
        configuration = self.configuration.open_store() if self.configuration else self.store
        shadows = snapshot.Shadows(lambda: snapshot.shadow_sources(self.store, configuration), cluster.clock)
        return TopicRun("run", "simulated", "/ledgers", now, brokers, CONTEXT, 10 * MINUTE, loaded_topics, shadows)

    def act(
        self, work: Callable[[TopicRun, Ports, RunGuard], list[LedgerOutcome]], **policy: Any
    ) -> dict[int, LedgerOutcome]:
        """One run with its lease and a session of its own; what became of each ledger."""
        limit = policy.pop("limit", 500)
        ports = policy.pop("ports", None) or self.ports()
        lease = control.take_lease(self.store, "run", self.cluster.clock, 0)
        try:
            guard = RunGuard(lease.guard, Unloads(5, limit, self.cluster.clock))
            outcomes = work(self.run(**policy), ports, guard)
        finally:
            control.release_lease(self.store, lease)
        return {one.ledger_id: one for one in outcomes}

    def trim(self, upto: int = 2, **policy: Any) -> dict[int, LedgerOutcome]:
        """Trim every ledger up to the one at an index."""
        order = TrimOrder(TOPIC, up_to=self.ids[upto])
        return self.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [order]), **policy)

    def delete_topic(self, force: bool = False, **policy: Any) -> dict[int, LedgerOutcome]:
        return self.act(lambda *given: trimming_delete_topic.delete_topic(*given, TOPIC, force), **policy)


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


def test_a_run_without_orders_only_settles(scene: Scene) -> None:
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
    begins = "lists no ledger" if empty else f"begins with ledger {scene.ids[0]}"
    assert (
        list(found.values())
        == planned
        == [LedgerOutcome(str(TOPIC), -1, Outcome.NOTHING, Why(Code.NOTHING_LISTED, f"it {begins}: none is up to 0"))]
    )


def test_another_topics_ledger_is_not_one_that_left(scene: Scene) -> None:
    first, other = scene.cluster.ledger(data_tags(TOPIC)), scene.cluster.ledger(data_tags(OTHER))
    scene.cluster.topic(TOPIC, [scene.cluster.ledger(data_tags(TOPIC)) for _ in range(2)])
    order = TrimOrder(TOPIC, frozenset({first, other}))
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [order]))
    assert outcomes(found) == {first: Outcome.NOTHING, other: Outcome.REFUSED}
    assert found[other].reason.endswith(f"BookKeeper's z-node says that it is of {OTHER.managed_ledger}")


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
    assert found[scene.ids[0]].reason == f"its topic does not list it: it begins with ledger {scene.ids[2]}"


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


def test_a_copy_in_bookkeeper_that_was_released_and_is_there_gets_a_message_and_goes_at_once(scene: Scene) -> None:
    offload = OffloadContext(UUID(int=9), True, True, 1, "aws-s3", {"bucket": "b"})
    first = scene.ids[0]
    scene.cluster.topic(TOPIC, scene.ids, offloaded={first: offload})
    scene.cluster.wait(1)
    assert outcomes(scene.trim(0)) == {first: Outcome.REMOVED}
    assert scene.sent == [(first, LedgerType.LEDGER), (first, LedgerType.OFFLOAD_LEDGER)]
    assert first in scene.marks
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
    released_copies = OffloadContext(UUID(int=9), True, True, 1, "aws-s3", {"bucket": "b"})
    first = scene.ids[0]
    scene.cluster.topic(TOPIC, scene.ids, offloaded={first: released_copies})
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
    assert json.loads(mark.detail)["czxid"] is None


def test_an_offloaded_copy_that_could_not_be_deleted_stays_listed(scene: Scene) -> None:
    offload = OffloadContext(UUID(int=9), True, True, 1, "google-cloud-storage", {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[1]: offload})
    scene.cluster.wait(1)
    found = scene.trim()
    assert outcomes(found) == dict(zip(scene.ids[:3], [Outcome.REMOVED, Outcome.REFUSED, Outcome.REFUSED], strict=True))
    assert "google-cloud-storage" in found[scene.ids[1]].reason
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
        assert "never closed" in found[ids[0]].reason
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


def test_one_copy_without_receipt_holds_the_ledger(scene: Scene) -> None:
    offload = OffloadContext(UUID(int=9), True, False, 1, "aws-s3", {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[1]: offload})
    scene.cluster.wait(1)
    send = scene.queue._send
    scene.queue._send = lambda info, after: (  # type: ignore[method-assign]
        replace(send(info, after), error="timed out") if info.offload_context else send(info, after)
    )
    scene.trim()
    assert scene.listed == scene.ids[1:]


# ------------------------------------------------------------------------------------------------------------- refusals


def refused(scene: Scene, **policy: Any) -> str:
    """Why the whole topic was refused; proves that nothing was written or sent."""
    version = scene.cluster.zookeeper.stat(scene.path)
    (one,) = scene.trim(**policy).values()
    assert (one.ledger_id, one.outcome) == (-1, Outcome.REFUSED)
    assert scene.cluster.zookeeper.stat(scene.path) == version
    assert scene.sent == []
    assert scene.cluster.journal.rows == []
    return one.reason


def test_a_topic_that_is_not_there(scene: Scene) -> None:
    scene.cluster.remove(scene.path)
    assert "does not exist" in refused(scene)


@pytest.mark.parametrize("below", ["", "/s"])
def test_a_z_node_that_cannot_be_read(scene: Scene, below: str) -> None:
    scene.cluster.zookeeper.unreadable.add(scene.path + below)
    assert "no permission" in refused(scene)


@pytest.mark.parametrize("below", ["", "/s"])
def test_a_z_node_that_cannot_be_decoded(scene: Scene, below: str) -> None:
    scene.cluster.put(scene.path + below, b"\xff\xff")
    assert scene.path + below in refused(scene)


def test_a_cursor_without_a_position(scene: Scene) -> None:
    scene.cursor("a+b", None)
    assert "cursor a+b" in refused(scene)


def test_a_cursor_ledger_that_is_gone(scene: Scene) -> None:
    scene.cursor("a+b", Position(99, 0), ledger=77)
    assert "cursor a+b: its cursor ledger 77" in refused(scene)


@pytest.mark.parametrize("entry", [b"\xff", b"{chunked}"])
def test_a_cursor_ledger_whose_last_entry_is_none(scene: Scene, entry: bytes) -> None:
    scene.cursor("s", Position(99, 0), ledger=scene.cluster.ledger(cursor_tags(TOPIC, "s"), entries=[entry]))
    assert "cursor s: its cursor ledger" in refused(scene)


def test_a_bookie_that_does_not_answer(scene: Scene) -> None:
    ledger = scene.cluster.ledger(cursor_tags(TOPIC, "s"))
    scene.cluster.reader.failures[ledger] = Unavailable("no bookie")
    scene.cursor("s", Position(99, 0), ledger=ledger)
    assert "no bookie" in refused(scene)


def entry(position: Position) -> bytes:
    return cursor_format.encode_position(cursor_format.PositionInfo(position))


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.CLOSED])
def test_the_last_entry_of_the_cursor_ledger_is_the_truth(scene: Scene, state: LedgerState) -> None:
    entries = [entry(Position(99, 0)), entry(Position(scene.ids[1], 7))]
    ledger = scene.cluster.ledger(cursor_tags(TOPIC, "s"), entries=entries, state=state)
    scene.cursor("s", Position(99, 0), ledger=ledger)
    found = scene.trim()
    assert outcomes(found) == {
        scene.ids[0]: Outcome.REMOVED,
        scene.ids[1]: Outcome.REFUSED,
        scene.ids[2]: Outcome.REFUSED,
    }
    assert "cursor s stands at" in found[scene.ids[1]].reason
    assert scene.listed == scene.ids[1:]


def test_a_cursor_ledger_without_entries_leaves_the_z_nodes_position(scene: Scene) -> None:
    ledger = scene.cluster.ledger(cursor_tags(TOPIC, "s"), entries=[], state=LedgerState.OPEN)
    scene.cursor("s", Position(scene.ids[1], -1), ledger=ledger)
    assert outcomes(scene.trim())[scene.ids[1]] == Outcome.REFUSED
    assert scene.listed == scene.ids[1:]


def test_the_ledger_whose_last_entry_the_slowest_cursor_stands_at_goes(scene: Scene) -> None:
    scene.cursor("s", Position(scene.ids[1], 0))
    assert outcomes(scene.trim()) == {
        scene.ids[0]: Outcome.REMOVED,
        scene.ids[1]: Outcome.REMOVED,
        scene.ids[2]: Outcome.REFUSED,
    }
    assert scene.listed == scene.ids[2:]


def test_every_durable_cursor_counts(scene: Scene) -> None:
    scene.cursor("pulsar.dedup", Position(scene.ids[0], -1))
    assert set(outcomes(scene.trim()).values()) == {Outcome.REFUSED}
    assert scene.listed == scene.ids


def test_a_shadow_topic(scene: Scene) -> None:
    scene.cluster.topic(TOPIC, scene.ids, shadow_of="persistent://acme/orders/source")
    scene.cluster.wait(1)
    found = scene.trim()
    assert {one.reason.partition(" of ")[0] for one in found.values()} == {"shadow topic"}
    assert scene.listed == scene.ids


def test_a_partition_of_a_shadow_topic(scene: Scene) -> None:
    scene.cluster.put(PARENT, json.dumps({"properties": {SHADOW_SOURCE: "x"}}).encode())
    assert {one.reason.partition(" of ")[0] for one in scene.trim().values()} == {"shadow topic"}
    assert scene.listed == scene.ids


def test_a_partition_of_a_shadow_topic_that_a_separate_configuration_store_names(scene: Scene) -> None:
    """The broker's DELETE of it would take its source's ledgers."""
    scene.configuration = SimulatedCluster()
    scene.configuration.put(PARENT, json.dumps({"properties": {SHADOW_SOURCE: "x"}}).encode())
    assert {one.reason for one in scene.trim().values()} == {"shadow topic of x: its ledgers are its source's"}
    (whole,) = scene.delete_topic(force=True).values()
    assert (whole.outcome, whole.reason) == (Outcome.REFUSED, "shadow topic of x: its ledgers are its source's")
    assert scene.listed == scene.ids
    assert scene.sent == []


def test_a_partitioned_topic_that_cannot_be_read(scene: Scene) -> None:
    scene.cluster.put(PARENT, b"{}")
    scene.cluster.zookeeper.unreadable.add(PARENT)
    assert PARENT in refused(scene)


def test_a_ledger_that_bookkeeper_does_not_have(scene: Scene) -> None:
    scene.cluster.remove(scene.cluster.path(scene.ids[1]))
    found = scene.trim()
    assert "dangling" in found[scene.ids[1]].reason
    assert scene.listed == scene.ids[1:]


def test_a_topic_of_which_bookkeeper_has_nothing_left(scene: Scene) -> None:
    offload = OffloadContext(UUID(int=9), True, True, 1, "aws-s3", {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded=dict.fromkeys(scene.ids[:-1], offload))
    for ledger_id in scene.ids:
        scene.cluster.remove(scene.cluster.path(ledger_id))
    scene.cluster.wait(1)
    assert "BookKeeper has none of the ledgers that it lists" in refused(scene)
    assert (scene.sent, scene.listed) == ([], scene.ids)


def test_a_ledger_whose_z_node_cannot_be_read(scene: Scene) -> None:
    scene.cluster.zookeeper.unreadable.add(scene.cluster.path(scene.ids[0]))
    assert "no permission" in scene.trim()[scene.ids[0]].reason
    assert scene.listed == scene.ids


def test_the_last_ledger_and_more(scene: Scene) -> None:
    scene.cluster.remove(f"{scene.path}/s")
    found = scene.trim(upto=4)
    assert found[scene.ids[4]].reason == "the last ledger of its topic"
    assert scene.listed == scene.ids[4:]


# ---------------------------------------------------------------------- shadow topics that are younger than the scan

SHADOW = Topic.parse("persistent://acme/orders/shadow")
SHADOW_PARENT = "/admin/partitioned-topics/acme/orders/persistent/shadow"


def shadow(scene: Scene, source: str, partitioned: bool = False) -> None:
    if partitioned:
        scene.cluster.put(SHADOW_PARENT, json.dumps({"partitions": 2, "properties": {SHADOW_SOURCE: source}}).encode())
    else:
        scene.cluster.topic(SHADOW, scene.ids, shadow_of=source)


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("source", [str(TOPIC), str(TOPIC).partition("://")[2], str(TOPIC.partitioned_parent)])
def test_the_source_of_a_shadow_topic_made_after_the_scan(scene: Scene, source: str, partitioned: bool) -> None:
    shadow(scene, source, partitioned)
    assert {(one.outcome, one.reason) for one in scene.trim().values()} == {
        (Outcome.REFUSED, "source of a shadow topic")
    }
    (whole,) = scene.delete_topic(force=True).values()
    assert (whole.ledger_id, whole.outcome, whole.reason) == (-1, Outcome.REFUSED, "source of a shadow topic")
    assert scene.listed == scene.ids
    assert scene.sent == []
    assert scene.cluster.journal.rows == []


def test_a_shadow_topic_made_between_the_messages_and_the_brokers_delete(scene: Scene) -> None:
    scene.cluster.load(TOPIC)
    asked: list[Topic] = []
    scene.cluster.admin.on_delete = asked.append
    queue = Sending(scene.queue, lambda: shadow(scene, str(TOPIC)))
    found = scene.delete_topic(force=True, ports=replace(scene.ports(), queue=queue))
    assert found[-1].outcome == Outcome.FAILED
    assert "source of a shadow topic" in found[-1].reason
    assert asked == []
    assert scene.rows == {Outcome.MARKED: sorted(scene.ids), Outcome.LEFT: sorted(scene.ids)}


def test_a_shadow_topic_made_while_another_topic_is_trimmed(scene: Scene) -> None:
    """A look serves for a minute; the second topic comes later and gets one of its own."""
    ids = [scene.cluster.ledger(data_tags(OTHER)) for _ in range(2)]
    scene.cluster.topic(OTHER, ids)
    scene.cluster.wait(1)

    def later() -> None:
        scene.cluster.topic(SHADOW, ids, shadow_of=str(OTHER))
        scene.cluster.clock.sleep(trimming_trim.SHADOWS_SEEN_FOR / 1000 + 1)

    scene.on_write(later, "after")
    orders = [TrimOrder(TOPIC, up_to=scene.ids[2]), TrimOrder(OTHER, up_to=ids[0])]
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, orders))
    assert found[ids[0]].reason == "source of a shadow topic"
    assert outcomes(found) == {**dict.fromkeys(scene.ids[:3], Outcome.REMOVED), ids[0]: Outcome.REFUSED}


@pytest.mark.parametrize("data", [b"\x47\x78junk", b"\xff" + SHADOW_SOURCE.encode(), None])
def test_a_topic_that_may_be_a_shadow_topic_and_cannot_be_read(scene: Scene, data: bytes | None) -> None:
    path = scene.cluster.topic_path(SHADOW)
    scene.cluster.put(path, data or b"")
    if data is None:
        scene.cluster.zookeeper.unreadable.add(path)
    assert path in refused(scene)
    (whole,) = scene.delete_topic(force=True).values()
    assert whole.outcome == Outcome.REFUSED
    assert path in whole.reason


@pytest.mark.parametrize("path", [PARENT, SHADOW_PARENT])
@pytest.mark.parametrize("readable", [False, True])
def test_a_partitioned_topic_that_may_be_a_shadow_topic(scene: Scene, path: str, readable: bool) -> None:
    scene.cluster.put(path, f"broken {SHADOW_SOURCE}".encode())
    if not readable:
        scene.cluster.zookeeper.unreadable.add(path)
    reasons = {one.reason for one in scene.trim().values()}
    assert all(path in reason or "a topic that cannot be read" in reason for reason in reasons), reasons
    assert scene.listed == scene.ids
    assert scene.sent == []


# -------------------------------------------------------------------------------------------------------- loaded topics


def test_a_loaded_topic_is_left_to_its_broker(scene: Scene) -> None:
    scene.load()
    found = scene.trim()
    assert outcomes(found) == dict.fromkeys(scene.ids[:3], Outcome.LEFT_TO_BROKER)
    assert "trimming.loaded_topics" in found[scene.ids[0]].reason
    assert scene.listed == scene.ids
    assert scene.sent == []
    assert scene.cluster.admin.touched == []


def test_a_loaded_topic_is_left_to_its_broker_where_caps_were_checked(scene: Scene) -> None:
    """The plan counts none of its ledgers, as none would go; the run says why, as the plan did."""
    scene.load()
    order = TrimOrder(TOPIC, up_to=scene.ids[2], counted=frozenset())
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [order]))
    assert outcomes(found) == dict.fromkeys(scene.ids[:3], Outcome.LEFT_TO_BROKER)
    assert scene.listed == scene.ids


@pytest.mark.parametrize("why", ["written", "silent", "open"])
def test_what_may_be_loaded_counts_as_loaded(scene: Scene, why: str) -> None:
    if why == "written":
        scene.cluster.topic(TOPIC, scene.ids)
    elif why == "open":
        scene.ids.append(scene.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN))
        scene.cluster.topic(TOPIC, scene.ids)
        scene.cluster.wait(1)
    work = trimming_trim.trim_topics
    silent = Brokers({}, MINUTE, "no answer")

    def trim(run: TopicRun, ports: Ports, guard: RunGuard) -> list[LedgerOutcome]:
        run = replace(run, brokers=silent) if why == "silent" else run
        return work(run, ports, guard, [TrimOrder(TOPIC, up_to=scene.ids[2])])

    assert set(outcomes(scene.act(trim)).values()) == {Outcome.LEFT_TO_BROKER}
    assert scene.listed == scene.ids


def test_a_loaded_topic_is_written_and_unloaded_when_the_policy_says_so(scene: Scene) -> None:
    scene.load()
    assert outcomes(scene.trim(loaded_topics=True)) == dict.fromkeys(scene.ids[:3], Outcome.REMOVED)
    assert scene.listed == scene.ids[3:]
    assert scene.cluster.admin.touched == [TOPIC]
    assert scene.left_pending == []


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("acme", Outcome.REMOVED),
        ("acme/orders", Outcome.REMOVED),
        (str(TOPIC), Outcome.REMOVED),
        (str(TOPIC.partitioned_parent), Outcome.REMOVED),
        ("acme/other", Outcome.LEFT_TO_BROKER),
        (str(OTHER), Outcome.LEFT_TO_BROKER),
    ],
)
def test_the_policy_may_name_whose_loaded_topics_are_written(scene: Scene, name: str, outcome: str) -> None:
    scene.load()
    order, ports = TrimOrder(TOPIC, up_to=scene.ids[2]), scene.ports()
    planned = trimming_trim.plan_trim(scene.run(frozenset({name})), ports, order)
    assert {one.outcome for one in planned} == {Outcome.GOES if outcome == Outcome.REMOVED else Outcome.LEFT_TO_BROKER}
    assert outcomes(scene.trim(loaded_topics=frozenset({name}))) == dict.fromkeys(scene.ids[:3], outcome)


def test_a_failed_unload_is_tried_again_reported_and_settled_by_the_next_run(scene: Scene) -> None:
    scene.load()
    asked: list[Topic] = []

    def fails(topic: Topic) -> None:
        asked.append(topic)
        raise OutcomeUnknown("500")

    scene.cluster.admin.on_unload = fails
    found = scene.trim(loaded_topics=True)
    assert len(asked) == 6  # three at once, three at the end of the run
    assert found[-1].outcome == Outcome.FAILED
    assert "is pending: 500" in found[-1].reason
    assert scene.listed == scene.ids[3:]
    assert [(o.topic, o.loaded) for o in scene.pending_unloads] == [(TOPIC, True)]
    assert "500" in scene.cluster.journal.rows[-1].reason

    assert scene.trim(upto=3, loaded_topics=True)[-1].outcome == Outcome.FAILED  # not written again before that
    assert scene.listed == scene.ids[3:]

    scene.cluster.admin.on_unload = lambda topic: None
    assert outcomes(scene.trim(loaded_topics=True)) == {-1: Outcome.NOTHING}  # nothing is left to trim
    assert scene.left_pending == []


def test_an_unload_that_works_the_second_time(scene: Scene) -> None:
    scene.load()
    failures = iter([Unavailable("503"), None])

    def now_and_then(topic: Topic) -> None:
        if error := next(failures):
            raise error

    scene.cluster.admin.on_unload = now_and_then
    assert set(outcomes(scene.trim(loaded_topics=True)).values()) == {Outcome.REMOVED}
    assert scene.left_pending == []


def test_a_broker_that_is_down_is_not_asked_for_every_topic(scene: Scene) -> None:
    topics = [Topic.parse(f"persistent://acme/orders/t{n}") for n in range(9)]
    asked: list[Topic] = []

    def fails(topic: Topic) -> None:
        asked.append(topic)
        raise Unavailable("down")

    scene.cluster.admin.on_unload = fails
    for topic in topics:
        scene.cluster.load(topic)
        control.note_unload(scene.store, control.PendingUnload(topic, True, 0, control.LEASE))
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(replace(run), ports, guard, []))
    assert found[-1].outcome == Outcome.FAILED
    assert len(set(asked)) <= 6  # three as it begins, three as it ends
    assert len(scene.left_pending) == 9


def loaded_topics_that_cannot_be_unloaded(scene: Scene, count: int, error: Exception) -> list[TrimOrder]:
    orders: list[TrimOrder] = []
    for n in range(count):
        topic = Topic.parse(f"persistent://acme/orders/t{n}")
        ids = [scene.cluster.ledger(data_tags(topic)) for _ in range(2)]
        scene.cluster.topic(topic, ids)
        scene.cluster.load(topic)
        orders.append(TrimOrder(topic, frozenset(ids[:1])))

    def fails(topic: Topic) -> None:
        raise error

    scene.cluster.admin.on_unload = fails
    return orders


@pytest.mark.parametrize(("error", "tried"), [(AccessDenied("403"), 0), (Unavailable("503"), 3)])
def test_no_loaded_topic_is_written_that_cannot_be_unloaded(scene: Scene, error: Exception, tried: int) -> None:
    orders = loaded_topics_that_cannot_be_unloaded(scene, 6, error)
    found: list[LedgerOutcome] = []
    scene.act(
        lambda run, ports, guard: found.extend(trimming_trim.trim_topics(run, ports, guard, orders)) or found,
        loaded_topics=True,
    )
    assert [one.outcome for one in found if one.ledger_id >= 0] == [Outcome.REMOVED] + [Outcome.LEFT_TO_BROKER] * 5
    reasons = [one.reason for one in found if one.outcome == Outcome.LEFT_TO_BROKER]
    if tried:
        assert reasons == [f"its topic is loaded, and it cannot be unloaded: {error}"] * tried + [
            f"its topic is loaded, and topics of its tenant cannot be unloaded: {error}"
        ] * (5 - tried)
    else:
        assert set(reasons) == {f"its topic is loaded, and unloads fail: {error}"}
    assert len(scene.sent) == len(scene.left_pending) == 1


def loaded_topics_of(scene: Scene, tenants: Sequence[str], each: int) -> list[TrimOrder]:
    """Orders for the first of two ledgers of loaded topics, ``each`` of every tenant."""
    orders: list[TrimOrder] = []
    for tenant, n in product(tenants, range(each)):
        topic = Topic.parse(f"persistent://{tenant}/orders/t{n}")
        ids = [scene.cluster.ledger(data_tags(topic)) for _ in range(2)]
        scene.cluster.topic(topic, ids)
        scene.cluster.load(topic)
        orders.append(TrimOrder(topic, frozenset(ids[:1])))
    return orders


def trim_all(scene: Scene, orders: Sequence[TrimOrder]) -> dict[int, LedgerOutcome]:
    scene.cluster.clock.sleep(0.007)
    return scene.act(
        lambda run, ports, guard: trimming_trim.trim_topics(
            replace(run, context=replace(CONTEXT, namespaces=frozenset(str(o.topic.namespace) for o in orders))),
            ports,
            guard,
            orders,
        ),
        loaded_topics=True,
    )


@pytest.mark.parametrize("error", [AccessDenied("403"), StoreError("500")])
def test_owed_unloads_that_fail_stop_no_other_topic(scene: Scene, error: Exception) -> None:
    """Of a tenant whose topics the token may not touch, or topics in trouble of their own."""
    orders = loaded_topics_of(scene, ["theirs", "acme"], 6)
    sick = [order.topic for order in orders[:5]]
    for topic in sick:
        control.note_unload(scene.store, control.PendingUnload(topic, True, 0, control.LEASE))
    unloaded: list[Topic] = []

    def some_fail(topic: Topic) -> None:
        if topic in sick or (isinstance(error, AccessDenied) and topic.namespace.tenant == "theirs"):
            raise error
        unloaded.append(topic)

    scene.cluster.admin.on_unload = some_fail
    found = trim_all(scene, orders)
    said = {order.topic: found[min(order.ledgers)].outcome for order in orders if min(order.ledgers) in found}
    assert [said[order.topic] for order in orders[6:]] == [Outcome.REMOVED] * 6
    assert len(scene.left_pending) == 5
    if isinstance(error, AccessDenied):
        assert found[min(orders[5].ledgers)].reason == f"its topic is loaded, and it cannot be unloaded: {error}"
        assert said[orders[5].topic] == Outcome.LEFT_TO_BROKER
    else:
        assert said[orders[5].topic] == Outcome.REMOVED
    assert len(unloaded) == 6 + 1 + 2 * (
        said[orders[5].topic] == Outcome.REMOVED
    )  # the first of a tenant before it is written


@pytest.mark.parametrize("error", [AccessDenied("403"), Unavailable("503")])
def test_where_no_unload_works_nothing_is_written_in_any_other_tenant_either(scene: Scene, error: Exception) -> None:
    orders = loaded_topics_of(scene, [f"tenant-{n}" for n in range(8)], 2)

    def fails(topic: Topic) -> None:
        raise error

    scene.cluster.admin.on_unload = fails
    for _ in range(4):
        found = trim_all(scene, orders)
        assert len(scene.left_pending) == 1
    refused = [one for one in found.values() if one.ledger_id >= 0]
    assert {one.outcome for one in refused} == {Outcome.LEFT_TO_BROKER}
    assert all("cannot be unloaded" in one.reason for one in refused)


def test_owed_unloads_of_a_tenant_that_cannot_be_unloaded_keep_no_other_one_waiting(scene: Scene) -> None:
    orders = loaded_topics_of(scene, ["bad", "good"], 5)
    for order in orders:
        control.note_unload(scene.store, control.PendingUnload(order.topic, True, 0, control.LEASE))

    def fails(topic: Topic) -> None:
        if topic.namespace.tenant == "bad":
            raise AccessDenied("403")

    scene.cluster.admin.on_unload = fails
    trim_all(scene, [])
    assert {str(one.topic.namespace) for one in scene.pending_unloads} == {"bad/orders"}
    assert len(scene.left_pending) == 5


def test_where_some_unloads_fail_one_topic_is_owed_it_at_most(scene: Scene) -> None:
    """Every second one's, say: one of two brokers is in trouble."""
    orders = loaded_topics_of(scene, ["acme"], 12)
    sick = {order.topic for order in orders[1::2]}

    def fails(topic: Topic) -> None:
        if topic in sick:
            raise Unavailable("503")

    scene.cluster.admin.on_unload = fails
    for _ in range(3):
        found = trim_all(scene, orders)
        assert len(scene.left_pending) == 1
    said = {one.topic: one.outcome for one in found.values() if one.ledger_id >= 0}
    assert {Topic.parse(name) for name, outcome in said.items() if outcome == Outcome.LEFT_TO_BROKER} == sick - {
        scene.pending_unloads[0].topic
    }
    assert {outcome for name, outcome in said.items() if Topic.parse(name) not in sick} == {Outcome.NOTHING}


def test_a_run_that_three_unloads_failed_writes_no_more(scene: Scene) -> None:
    """Where they work before a topic is written, and not after: its broker fails to close what was changed."""
    orders = loaded_topics_of(scene, [f"tenant-{n}" for n in range(9)], 1)
    touched: set[Topic] = set()

    def fails_once_written(topic: Topic) -> None:
        if scene.cluster.zookeeper.stat(scene.cluster.topic_path(topic)).version:  # type: ignore[union-attr]
            touched.add(topic)
            raise StoreError("500")

    scene.cluster.admin.on_unload = fails_once_written
    found = trim_all(scene, orders)
    assert len(scene.left_pending) == len(touched) == 3
    assert [one.reason for one in found.values() if one.outcome == Outcome.LEFT_TO_BROKER] == [
        "its topic is loaded, and unloads fail: 500"
    ] * 6


@pytest.mark.parametrize("error", [StoreError("500"), AccessDenied("403")])
def test_no_topic_is_loaded_where_no_unload_works(scene: Scene, error: Exception) -> None:
    """Three tenants that refuse us say nothing of a fourth."""

    def fails(topic: Topic) -> None:
        raise error

    scene.cluster.admin.on_unload = fails
    unloads = Unloads(5, 99, scene.cluster.clock)
    for n in range(3):
        assert unloads.doubt(TOPIC) is None
        topic = Topic.parse(f"persistent://tenant-{n}/orders/t")
        scene.cluster.load(topic)
        assert unloads.unload(scene.cluster.admin, topic, written=False) == Why(Code.NOT_UNLOADED, str(error))
    told = "pending unloads fail (`pulsar-lifecycle status`): 500"
    assert unloads.doubt(TOPIC) == (None if isinstance(error, AccessDenied) else Why(Code.NOT_UNLOADED, told))


def test_a_run_unloads_no_more_than_it_may(scene: Scene) -> None:
    unloads = Unloads(5, 2, scene.cluster.clock)
    scene.cluster.load(TOPIC)
    assert (unloads.unload(scene.cluster.admin, TOPIC), unloads.lacks()) == (None, None)
    lack = unloads.lacks(2)
    assert lack
    assert lack.code is Code.NOT_UNLOADED


def test_topics_whose_unload_always_fails_starve_no_other(scene: Scene) -> None:
    names = [Topic.parse(f"persistent://acme/orders/{name}") for name in "abcz"]

    def fails(topic: Topic) -> None:
        if topic != names[-1]:
            raise StoreError("500")

    scene.cluster.admin.on_unload = fails
    for topic in names:
        scene.cluster.load(topic)
        control.note_unload(scene.store, control.PendingUnload(topic, True, 0, control.LEASE))
    for _ in range(9):
        scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, []))
        scene.cluster.clock.sleep(0.007)
    assert sorted(o.topic.local for o in scene.pending_unloads) == ["a", "b", "c"]


def test_a_topic_that_was_owed_an_unload_is_not_passed_over_in_silence(scene: Scene) -> None:
    failures = iter([Unavailable("503")] * 3)

    def at_first(topic: Topic) -> None:
        if error := next(failures, None):
            raise error

    scene.cluster.load(TOPIC)
    scene.cluster.admin.on_unload = at_first
    control.note_unload(scene.store, control.PendingUnload(TOPIC, True, 0, control.LEASE))
    found = scene.trim()
    assert outcomes(found) == {-1: Outcome.FAILED}
    assert found[-1].reason == "nothing was trimmed, an unload of it was pending: 503; run again"
    assert scene.left_pending == []


def test_a_topic_that_lists_other_ledgers_once_its_messages_are_sent_is_not_deleted(scene: Scene) -> None:
    queue = scene.queue
    send = queue.send

    def rolled_over(messages: Any, delay: int) -> Any:
        scene.ids.append(scene.cluster.ledger(data_tags(TOPIC)))
        scene.cluster.topic(TOPIC, scene.ids)
        return send(messages, delay)

    queue.send = rolled_over  # type: ignore[method-assign]
    found = scene.delete_topic(force=True)
    assert "lists other ledgers by now: run again" in found[-1].reason
    assert scene.listed == scene.ids


def test_only_what_was_counted_against_the_caps_leaves_a_list(scene: Scene) -> None:
    """A cursor stood in the way when the caps were checked, and has moved on since."""
    first, second, third = scene.ids[:3]
    order = TrimOrder(TOPIC, up_to=third, counted=frozenset({first}))
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [order]))
    assert outcomes(found) == {first: Outcome.REMOVED, second: Outcome.REFUSED, third: Outcome.REFUSED}
    assert first_phase.NOT_COUNTED in found[second].reason
    assert scene.listed == scene.ids[1:]


def test_a_topic_that_was_not_counted_against_the_caps_is_not_deleted(scene: Scene) -> None:
    scene.cluster.load(TOPIC)
    for counted in ((), scene.ids[:-1]):
        (whole,) = scene.act(
            lambda *given, counted=counted: trimming_delete_topic.delete_topic(*given, TOPIC, True, counted)
        ).values()
        assert whole.outcome == Outcome.REFUSED
        assert first_phase.NOT_COUNTED in whole.reason
    assert (scene.sent, scene.listed) == ([], scene.ids)
    scene.act(lambda *given: trimming_delete_topic.delete_topic(*given, TOPIC, True, scene.ids))
    assert [ledger for ledger, _ in scene.sent] == scene.ids


def test_what_is_only_offloaded_or_has_no_tags_weighs_in_the_plan_to_delete_its_topic(scene: Scene) -> None:
    """The broker deletes both with the topic, so the caps have to see them."""
    offloaded, untagged = scene.ids[0], scene.cluster.ledger(None)
    scene.ids.append(untagged)
    offload = OffloadContext(UUID(int=9), True, True, 1, "aws-s3", {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded={offloaded: offload})
    scene.cluster.remove(scene.cluster.path(offloaded))
    data = scene.cluster.zookeeper.data(scene.path)
    sizes = {item.ledger_id: item.size for item in managed_ledger.decode(data).ledgers}
    planned = {
        one.ledger_id: one for one in trimming_delete_topic.plan_topic_deletion(scene.run(), scene.ports(), TOPIC)
    }
    assert outcomes(planned) == dict.fromkeys([-1, *scene.ids], Outcome.GOES)
    assert [planned[i].bytes for i in (offloaded, untagged)] == [sizes[offloaded], sizes[untagged]]
    assert sizes[offloaded]


BROKEN = [b"{", b"[]", b'{"loaded": true}', b'{"loaded": true, "since": 1e400}', b"[" * 100_000, None]


@pytest.mark.parametrize("data", BROKEN)
@pytest.mark.parametrize("name", ["garbage", "a%2fb", encode_name(OTHER.managed_ledger)])
def test_an_owed_unload_that_cannot_be_read_hinders_no_other_topic(scene: Scene, name: str, data: bytes | None) -> None:
    path = f"{control.PENDING_UNLOADS[control.LEASE]}/{name}"
    scene.cluster.put(path, data or b'{"loaded": true, "since": 0}')
    if data is None:
        scene.cluster.zookeeper.unreadable.add(path)
    orders = [TrimOrder(TOPIC, up_to=scene.ids[2]), TrimOrder(OTHER, up_to=scene.ids[2])]
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, orders))
    assert outcomes(found) == dict.fromkeys(scene.ids[:3], Outcome.REMOVED) | {-1: Outcome.FAILED}
    assert path in found[-1].reason
    assert found[-1].topic == (str(OTHER) if "orders" in name else path)
    assert scene.cluster.zookeeper.stat(path) is not None  # whoever looks at it deletes it


def test_a_topic_whose_owed_unload_cannot_be_read_is_not_trimmed(scene: Scene) -> None:
    path = f"{control.PENDING_UNLOADS[control.LEASE]}/{encode_name(TOPIC.managed_ledger)}"
    scene.cluster.put(path, b"{")
    found = scene.trim()
    assert outcomes(found) == {-1: Outcome.FAILED}
    assert f"then delete {path}" in found[-1].reason
    assert scene.listed == scene.ids


def test_owed_unloads_that_cannot_be_listed_stop_the_run(scene: Scene) -> None:
    scene.cluster.put(f"{control.PENDING_UNLOADS[control.LEASE]}/x", b"{}")
    scene.cluster.zookeeper.unreadable.add(control.PENDING_UNLOADS[control.LEASE])
    with pytest.raises(AccessDenied):
        scene.trim()


def test_a_loaded_topic_that_may_not_be_written_is_not_unloaded(scene: Scene) -> None:
    scene.load()
    scene.on_write(raising(AccessDenied("NoAuth")))
    assert outcomes(scene.trim(loaded_topics=True)) == {-1: Outcome.FAILED}
    assert (scene.cluster.admin.touched, scene.left_pending) == ([], [])


def test_no_write_without_an_unload_left(scene: Scene) -> None:
    scene.load()
    found = scene.trim(loaded_topics=True, limit=0)
    assert set(outcomes(found).values()) == {Outcome.LEFT_TO_BROKER}
    assert "max_unloads" in found[scene.ids[0]].reason
    assert scene.listed == scene.ids


def test_unloads_keep_their_pace(scene: Scene) -> None:
    unloads = Unloads(5, 100, scene.cluster.clock)
    scene.cluster.load(TOPIC)
    for _ in range(11):
        assert unloads.unload(scene.cluster.admin, TOPIC) is None
    assert sum(scene.cluster.clock.slept) == pytest.approx(2.0)


def test_a_topic_that_is_gone_owes_no_unload(scene: Scene) -> None:
    control.note_unload(scene.store, control.PendingUnload(OTHER, True, 0, control.LEASE))
    assert scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [])) == {}
    assert scene.left_pending == []


def test_an_unload_that_its_broker_calls_unknown_stays_owed_while_a_broker_may_have_the_topic(scene: Scene) -> None:
    scene.load()
    listed = [True]

    def unknown(topic: Topic) -> None:
        if not listed[0]:
            del scene.cluster.admin.loaded[str(topic)]
        raise NotFound("404")

    scene.cluster.admin.on_unload = unknown
    found = scene.trim(loaded_topics=True)
    assert scene.listed == scene.ids[3:]
    assert (found[-1].outcome, found[-1].reason) == (Outcome.FAILED, "an unload of it is pending: 404")
    assert "is pending: 404" in scene.cluster.journal.rows[-1].reason
    listed[0] = False  # the lists lag behind
    assert outcomes(scene.trim(loaded_topics=True)) == {-1: Outcome.FAILED}
    assert scene.left_pending == [True]
    scene.cluster.wait(1)
    scene.cluster.admin.failure = Unavailable("down")
    with contextlib.suppress(Unavailable):
        scene.trim(loaded_topics=True)
    assert len(scene.left_pending) == 1
    scene.cluster.admin.failure = None
    assert "begins with ledger" in scene.trim(loaded_topics=True)[-1].reason
    assert scene.left_pending == []


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


def test_brokers_that_do_not_answer_leave_it_owed(scene: Scene) -> None:
    scene.on_write(lambda: setattr(scene.cluster.admin, "failure", Unavailable("down")), "after")
    found = scene.trim()
    assert found[-1].outcome == Outcome.FAILED
    assert "did not answer: down" in found[-1].reason
    assert scene.left_pending == [False]
    scene.cluster.admin.failure = None
    scene.cluster.load(TOPIC)
    scene.trim()
    assert scene.left_pending == []
    assert scene.cluster.admin.touched == [TOPIC]


# -------------------------------------------------------------------------------------------- lost and unknown writes


def broker_rolls_over(scene: Scene) -> None:
    scene.ids.append(scene.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN))
    info = managed_ledger.decode(scene.cluster.zookeeper.data(scene.path))
    kept = [item.ledger_id for item in info.ledgers]
    scene.cluster.topic(TOPIC, [*kept, scene.ids[-1]])


def test_a_broker_that_was_faster_gets_its_topic(scene: Scene) -> None:
    scene.on_write(lambda: broker_rolls_over(scene))
    assert set(outcomes(scene.trim()).values()) == {Outcome.LEFT}
    assert scene.listed == scene.ids
    assert scene.rows[Outcome.LEFT] == scene.ids[:3]
    assert scene.left_pending == []
    assert scene.cluster.admin.touched == []


def test_a_loaded_topic_that_was_written_meanwhile_is_judged_again(scene: Scene) -> None:
    scene.load()
    scene.on_write(lambda: broker_rolls_over(scene))
    assert set(outcomes(scene.trim(loaded_topics=True)).values()) == {Outcome.REMOVED}
    assert scene.listed == scene.ids[3:]
    assert len(scene.sent) == 3  # no message twice
    assert scene.rows == {Outcome.MARKED: scene.ids[:3], Outcome.REMOVED: scene.ids[:3]}


def test_a_ledger_that_was_offloaded_anew_meanwhile_is_sent_as_that(scene: Scene) -> None:
    scene.load()
    first, again = (OffloadContext(UUID(int=n), True, False, 1, "aws-s3", {"bucket": "b"}) for n in (9, 10))
    scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[0]: first})
    scene.on_write(lambda: scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[0]: again}))
    assert set(outcomes(scene.trim(0, loaded_topics=True)).values()) == {Outcome.REMOVED}
    raws = [raw for _, _, raw, _ in scene.cluster.deletion_topics.waiting.values()]
    contexts = [info.offload_context for info in map(decode_deletion_message, raws) if info.offload_context]
    assert [context.lsb for context in contexts] == [9, 10]
    assert marked_copies(scene, Outcome.MARKED) == [str(UUID(int=9)), str(UUID(int=10))]


def test_a_ledger_that_is_offloaded_while_it_is_trimmed_is_marked_with_its_copy(scene: Scene) -> None:
    scene.load()
    copy = OffloadContext(UUID(int=9), True, False, 1, "aws-s3", {"bucket": "b"})
    scene.on_write(lambda: scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[0]: copy}))
    assert set(outcomes(scene.trim(0, loaded_topics=True)).values()) == {Outcome.REMOVED}
    assert marked_copies(scene, Outcome.MARKED) == ["", str(copy.uuid)]


def marked_copies(scene: Scene, outcome: str) -> list[str]:
    return [json.loads(row.detail)["uuid"] for row in scene.journalled("mark") if row.outcome == outcome]


def test_a_topic_that_never_comes_to_rest_is_left(scene: Scene) -> None:
    scene.load()
    scene.on_write(lambda: broker_rolls_over(scene), times=99)
    found = scene.trim(loaded_topics=True)
    assert set(outcomes(found).values()) == {Outcome.LEFT}
    assert scene.listed == scene.ids
    assert scene.left_pending == []


def test_a_broker_that_trimmed_the_same_ledgers(scene: Scene) -> None:
    scene.load()
    scene.on_write(lambda: scene.cluster.topic(TOPIC, scene.ids[3:]))
    assert set(outcomes(scene.trim(loaded_topics=True)).values()) == {Outcome.REMOVED}
    assert scene.left_pending == []
    assert scene.cluster.admin.touched == []  # the write that was lost needs no unload


def test_a_broker_that_trimmed_some_of_them(scene: Scene) -> None:
    scene.load()
    scene.on_write(lambda: scene.cluster.topic(TOPIC, scene.ids[1:]))
    assert outcomes(scene.trim(loaded_topics=True)) == dict.fromkeys(scene.ids[:3], Outcome.REMOVED)
    assert scene.listed == scene.ids[3:]


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_write_without_answer_is_judged_by_what_is_there(scene: Scene, when: str, loaded: bool) -> None:
    if loaded:
        scene.load()
    scene.on_write(raising(OutcomeUnknown("connection lost")), when)
    assert set(outcomes(scene.trim(loaded_topics=loaded)).values()) == {Outcome.REMOVED}
    assert scene.listed == scene.ids[3:]
    assert len(scene.sent) == 3
    assert scene.cluster.admin.touched == [TOPIC] * loaded
    assert scene.left_pending == []
    assert scene.rows == {Outcome.MARKED: scene.ids[:3], Outcome.REMOVED: scene.ids[:3]}


def test_a_write_that_went_through_before_a_broker_wrote_too(scene: Scene) -> None:
    """Its answer got lost, and a broker that loaded the new list added a ledger: unload all the same."""
    scene.load()

    def rolled_over() -> None:
        broker_rolls_over(scene)
        raise OutcomeUnknown("connection lost")

    scene.on_write(rolled_over, "after")
    assert set(outcomes(scene.trim(loaded_topics=True)).values()) == {Outcome.REMOVED}
    assert scene.listed == scene.ids[3:]
    assert scene.cluster.admin.touched == [TOPIC]


def test_a_topic_that_is_deleted_before_the_write(scene: Scene) -> None:
    scene.on_write(lambda: scene.cluster.remove(scene.path))
    found = scene.trim()
    assert set(outcomes(found).values()) == {Outcome.LEFT}
    assert "does not exist" in found[scene.ids[0]].reason
    assert scene.rows[Outcome.LEFT] == scene.ids[:3]


@pytest.mark.parametrize("moment", range(70))
def test_a_topic_that_is_created_again_at_any_moment_is_left_alone_though_a_ledger_survives(
    scene: Scene, moment: int
) -> None:
    made: list[int] = []
    seen = [0]

    def look(operation: Operation) -> None:
        seen[0] += 1
        if seen[0] == moment + 1 and scene.listed == scene.ids:
            for ledger_id in scene.ids[1:]:
                scene.cluster.remove(scene.cluster.path(ledger_id))
            scene.cluster.remove(f"{scene.path}/s")
            scene.cluster.remove(scene.path)
            made.append(scene.cluster.ledger(data_tags(TOPIC)))
            scene.cluster.topic(TOPIC, made)

    scene.store.before = look
    scene.trim()
    assert scene.listed == (made or scene.ids[3:])


@pytest.mark.parametrize("error", [Unavailable("no answer"), LeaseLost("it is another's"), StoreError("no")])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_journal_has_the_last_word_on_what_an_error_interrupted(scene: Scene, when: str, error: Exception) -> None:
    scene.on_write(raising(error), when)
    with pytest.raises(LeaseLost) if isinstance(error, LeaseLost) else nullcontext():
        assert Outcome.FAILED in outcomes(scene.trim()).values()
    marked = [row.reason for row in scene.journalled("mark") if row.outcome == Outcome.MARKED]
    assert set(marked) == {"about to be taken off its topic's list"}
    assert scene.rows == {
        Outcome.MARKED: scene.ids[:3],
        (Outcome.LEFT if when == "before" else Outcome.REMOVED): scene.ids[:3],
    }
    assert scene.listed == scene.ids[0 if when == "before" else 3 :]
    assert all(str(error) in row.reason for row in scene.journalled("mark") if row.outcome != Outcome.MARKED)


def test_a_topic_that_cannot_be_read_after_an_error_stays_marked(scene: Scene) -> None:
    def fails() -> None:
        scene.cluster.zookeeper.unreadable.add(scene.path)
        raise Unavailable("no answer")

    scene.on_write(fails)
    assert scene.trim()[-1].outcome == Outcome.FAILED
    assert scene.rows == {Outcome.MARKED: scene.ids[:3]}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("unread", ["cursor", "topic"])
def test_a_write_without_answer_and_a_topic_that_cannot_be_judged_again(scene: Scene, when: str, unread: str) -> None:
    """Nobody says that a ledger stayed on the list who has not seen it there."""

    def lost() -> None:
        scene.cluster.zookeeper.unreadable.add(scene.path if unread == "topic" else f"{scene.path}/s")
        raise OutcomeUnknown("connection lost")

    scene.on_write(lost, when)
    assert "no permission" in scene.trim()[-1].reason
    there = {Outcome.LEFT if when == "before" else Outcome.REMOVED: scene.ids[:3]}
    assert scene.rows == {Outcome.MARKED: scene.ids[:3]} | (there if unread == "cursor" else {})


@pytest.mark.parametrize("loaded", [False, True])
def test_writes_that_never_get_an_answer(scene: Scene, loaded: bool) -> None:
    """The last one went through: a mark must not end because there were too many."""
    if loaded:
        scene.load()
    tries = [0]

    def lost() -> None:
        tries[0] += 1
        if tries[0] < ATTEMPTS:
            raise OutcomeUnknown("connection lost")

    def lost_at_last() -> None:
        if tries[0] == ATTEMPTS:
            raise OutcomeUnknown("connection lost")

    scene.on_write(lost, "before", times=ATTEMPTS)
    scene.on_write(lost_at_last, "after", times=ATTEMPTS)
    assert "run again" in scene.trim(loaded_topics=loaded)[-1].reason
    assert scene.listed == scene.ids[3:]
    assert scene.rows == {Outcome.MARKED: scene.ids[:3], Outcome.REMOVED: scene.ids[:3]}


class Sending:
    """A queue that lets something happen while it sends."""

    def __init__(self, queue: Any, act: Callable[[], None]) -> None:
        self._queue, self._act = queue, act

    def send(self, *given: Any) -> Any:
        sent = self._queue.send(*given)
        self._act()
        self._act = lambda: None
        return sent


@pytest.mark.parametrize("name", ["s", "new"])
def test_a_cursor_that_moves_back_or_turns_up_while_we_send(scene: Scene, name: str) -> None:
    queue = Sending(scene.queue, lambda: scene.cursor(name, Position(scene.ids[1], -1)))
    found = scene.trim(ports=replace(scene.ports(), queue=queue))
    assert scene.listed == scene.ids[1:]
    assert outcomes(found) == {
        scene.ids[0]: Outcome.REMOVED,
        scene.ids[1]: Outcome.REFUSED,
        scene.ids[2]: Outcome.REFUSED,
    }
    assert scene.rows[Outcome.REMOVED] == scene.ids[:1]


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("name", ["s", "new"])
def test_a_cursor_that_moves_back_or_turns_up_right_before_the_write(scene: Scene, name: str, loaded: bool) -> None:
    if loaded:
        scene.load()

    def hook(operation: Operation) -> None:
        if operation.name == "create" and operation.paths[0].startswith(control.PENDING_UNLOADS[control.LEASE]):
            scene.cursor(name, Position(scene.ids[1], -1))

    scene.store.after = hook
    found = scene.trim(loaded_topics=loaded)
    assert scene.listed == scene.ids[1:]
    assert outcomes(found) == {scene.ids[0]: Outcome.REMOVED, scene.ids[1]: Outcome.LEFT, scene.ids[2]: Outcome.LEFT}
    assert scene.rows == {Outcome.MARKED: scene.ids[:3], Outcome.REMOVED: scene.ids[:1], Outcome.LEFT: scene.ids[1:3]}
    assert scene.left_pending == []


def test_a_cursor_that_cannot_be_read_right_before_the_write(scene: Scene) -> None:
    def hook(operation: Operation) -> None:
        if operation.name == "create" and operation.paths[0].startswith(control.PENDING_UNLOADS[control.LEASE]):
            scene.cluster.zookeeper.unreadable.add(f"{scene.path}/s")

    scene.store.after = hook
    assert set(outcomes(scene.trim()).values()) == {Outcome.LEFT}
    assert scene.listed == scene.ids
    assert scene.left_pending == []


@pytest.mark.parametrize("stop", ["pause", "lease"])
def test_pause_and_a_lost_lease_stop_before_the_write(scene: Scene, stop: str) -> None:
    def act() -> None:
        if stop == "pause":
            control.pause(scene.cluster.open_store(), "why")
        else:
            scene.cluster.open_store().write(control.LEASE, b"{}", -1)

    queue = Sending(scene.queue, act)
    with pytest.raises(Paused if stop == "pause" else LeaseLost):
        scene.trim(ports=replace(scene.ports(), queue=queue))
    assert scene.listed == scene.ids


@pytest.mark.parametrize("when", ["between", "watching"])
def test_a_run_that_is_paused_has_reported_what_it_did(scene: Scene, when: str) -> None:
    heard: list[LedgerOutcome] = []

    def report(found: Sequence[LedgerOutcome]) -> None:
        heard.extend(found)
        if when == "between":
            control.pause(scene.cluster.open_store(), "why")

    def sleep(seconds: float) -> None:
        control.pause(scene.cluster.open_store(), "why")

    scene.cluster.clock.sleep = sleep  # type: ignore[method-assign]
    orders = [TrimOrder(TOPIC, up_to=scene.ids[2]), TrimOrder(OTHER, up_to=1)]
    with pytest.raises(Paused):
        scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, orders, report))
    assert {one.ledger_id for one in heard if one.outcome == Outcome.REMOVED} == set(scene.ids[:3])


def test_a_journal_that_fails_stops_before_the_write(scene: Scene) -> None:
    scene.cluster.journal.failure = StoreError("disk full")
    assert scene.trim()[-1].outcome == Outcome.FAILED
    assert scene.listed == scene.ids


def test_an_error_of_one_topic_leaves_the_others(scene: Scene) -> None:
    ids = [scene.cluster.ledger(data_tags(OTHER)) for _ in range(2)]
    scene.cluster.topic(OTHER, ids)
    scene.cluster.wait(1)
    scene.cluster.zookeeper.unreadable.add(f"{scene.path}/s")
    orders = [TrimOrder(TOPIC, up_to=scene.ids[2]), TrimOrder(OTHER, up_to=ids[0])]
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, orders))
    assert outcomes(found) == {-1: Outcome.REFUSED, ids[0]: Outcome.REMOVED}


# ------------------------------------------------------------------------------------------------------ killed anywhere


class Recorded:
    """A port whose effects are steps."""

    def __init__(self, port: Any, step: Callable[[str], None], both: bool, **names: Callable[..., str]) -> None:
        self._port, self._step, self._both, self._names = port, step, both, names

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._port, name)
        if name not in self._names:
            return inner

        def act(*given: Any, **more: Any) -> Any:
            said = self._names[name](*given)
            self._step(said)
            result = inner(*given, **more)
            if self._both:
                self._step(f"{said}, done")
            return result

        return act


def recording(scene: Scene, step: Callable[[str], None], both: bool = False) -> Ports:
    """The scene's ports with their effects as steps."""
    ports = scene.ports()
    store = Recorded(
        ports.store,
        step,
        both,
        create=lambda path, *_: f"create {path}",
        write=lambda path, *_: f"write {path}",
        delete=lambda path, *_: f"delete {path}",
    )
    return replace(
        ports,
        store=store,
        queue=Recorded(ports.queue, step, both, send=lambda *_: "send"),
        journal=Recorded(ports.journal, step, both, record=lambda rows: f"record {rows[0].outcome if rows else ''}"),
        admin=Recorded(ports.admin, step, both, unload=lambda *_: "unload", delete_topic=lambda *_: "delete topic"),
    )


def killed(make: Callable[[], Scene], work: Callable[[Scene, Ports], Any]) -> Iterator[tuple[Scene, str]]:
    """The scene after a run that was killed at one of its steps, for each of them."""

    def watched(scene: Scene, tell: Tell) -> None:
        work(scene, recording(scene, tell, both=True))

    for scene, step in killed_at_every_step(make, watched):
        scene.queue.close()
        scene.queue = scene.cluster.open_queue()
        scene.new_session()
        yield scene, step


@dataclass
class StaleBroker:
    """A broker that has read a topic's list and does not know of our writes until it is unloaded."""

    scene: Scene
    read: int = 0

    def __post_init__(self) -> None:
        self.scene.cluster.admin.on_unload = lambda topic: self.load()
        self.load()

    def load(self) -> None:
        self.read = self.version

    @property
    def version(self) -> int:
        stat = self.scene.cluster.zookeeper.stat(self.scene.path)
        assert stat
        return stat.version


@pytest.mark.parametrize("loaded", [False, True])
def test_killed_at_every_step_a_rerun_ends_well(loaded: bool) -> None:
    brokers: list[StaleBroker] = []

    def make() -> Scene:
        scene = Scene()
        if loaded:
            scene.load()
        brokers.append(StaleBroker(scene))
        return scene

    steps: list[str] = []
    for scene, step in killed(make, lambda s, ports: s.trim(loaded_topics=loaded, ports=ports)):
        steps.append(step)
        assert scene.listed in (scene.ids, scene.ids[3:]), step
        if scene.listed == scene.ids[3:]:
            assert {i for i, _ in scene.sent} == set(scene.ids[:3]), step
            assert scene.rows[Outcome.MARKED] == scene.ids[:3], step
            fresh = not loaded or brokers[-1].read == brokers[-1].version
            assert fresh or scene.left_pending, step
        scene.cluster.wait(1)
        again = scene.trim(loaded_topics=loaded)
        left = {i: one for i, one in outcomes(again).items() if i >= 0}
        assert left or again[-1].reason.startswith("it begins with ledger"), step
        assert set(left.values()) <= {Outcome.REMOVED}, step
        assert scene.listed == scene.ids[3:], step
        assert scene.left_pending == [], step
        assert not loaded or brokers[-1].read == brokers[-1].version, step
        assert scene.cluster.ledger_ids() >= set(scene.ids), step
    assert len(steps) > 10


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


def test_a_dry_run_says_that_an_unload_is_owed_first(scene: Scene) -> None:
    order = TrimOrder(TOPIC, frozenset(scene.ids[:1]))
    left_pending = control.PendingUnload(TOPIC, False, 0, control.LEASE)
    for loaded, reason in ((False, ""), (True, "only if the pending unload of its topic succeeds first")):
        control.note_unload(scene.store, replace(left_pending, loaded=loaded))
        assert [(o.outcome, o.reason) for o in trimming_trim.plan_trim(scene.run(), scene.ports(), order)] == [
            (Outcome.GOES, reason)
        ]
    scene.cluster.put(left_pending.path, b"{")
    (found,) = trimming_trim.plan_trim(scene.run(), scene.ports(), order)
    assert (found.ledger_id, found.outcome) == (-1, Outcome.FAILED)
    assert found.reason.startswith(f"nothing would be trimmed, an unload of it is pending: {left_pending.path}")
    assert scene.trim()[-1].outcome == Outcome.FAILED


# --------------------------------------------------------------------------------------------------------- whole topics


@dataclass
class Everything:
    """A topic with a ledger of every component that goes with it."""

    scene: Scene
    cursor: int = 0
    compacted: int = 0
    bucket: int = 0
    compaction: int = 0

    def __post_init__(self) -> None:
        cluster = self.scene.cluster
        self.cursor = cluster.ledger(cursor_tags(TOPIC, "a+b"), entries=[entry(Position(1, 0))])
        self.compacted = cluster.ledger(compacted_tags(TOPIC))
        self.bucket = cluster.ledger(bucket_tags(TOPIC, "a+b", 1, 2))
        position = cluster.position_entry(self.compacted)
        self.compaction = cluster.ledger(cursor_tags(TOPIC, "__compaction"), entries=[position])
        cluster.cursor(TOPIC, "a+b", ledger=self.cursor, buckets={(1, 2): self.bucket})
        cluster.cursor(TOPIC, "__compaction", ledger=self.compaction)
        cluster.admin.topics[TOPIC] = {}
        cluster.admin.on_delete = lambda topic: cluster.remove(cluster.topic_path(topic))

    @property
    def components(self) -> dict[int, LedgerComponent]:
        return {
            **dict.fromkeys(self.scene.ids, LedgerComponent.MANAGED_LEDGER),
            self.cursor: LedgerComponent.MANAGED_CURSOR,
            self.compaction: LedgerComponent.MANAGED_CURSOR,
            self.compacted: LedgerComponent.COMPACTED_LEDGER,
            self.bucket: LedgerComponent.DELAYED_INDEX_BUCKET,
        }


@pytest.fixture
def everything(scene: Scene) -> Everything:
    return Everything(scene)


def test_a_whole_topic_sends_for_every_ledger_then_goes(everything: Everything) -> None:
    scene = everything.scene
    found = scene.delete_topic()
    assert outcomes(found) == dict.fromkeys([*everything.components, -1], Outcome.REMOVED)
    raws = [raw for _, _, raw, _ in scene.cluster.deletion_topics.waiting.values()]
    assert {i.ledger_id: i.component for i in map(decode_deletion_message, raws)} == everything.components
    assert scene.cluster.zookeeper.stat(scene.path) is None
    assert set(scene.rows[Outcome.MARKED]) == set(scene.rows[Outcome.REMOVED]) == set(everything.components)
    assert {row.reason for row in scene.journalled("send")} == {"its broker is asked to delete its topic next"}


def test_the_marks_of_a_whole_topic_name_the_offloaded_copies(scene: Scene) -> None:
    offload = OffloadContext(UUID(int=9), True, False, 1, "aws-s3", {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[0]: offload})
    scene.delete_topic()
    said = {row.ledger_id: json.loads(row.detail)["uuid"] for row in scene.journalled("mark")}
    assert said == dict.fromkeys(scene.ids, "") | {scene.ids[0]: str(UUID(int=9))}


def test_a_topic_that_the_broker_refuses_stays_and_says_why(everything: Everything) -> None:
    scene = everything.scene
    scene.cluster.admin.connected.add(TOPIC)
    found = scene.delete_topic()
    assert found[-1].outcome == Outcome.FAILED
    assert "connected clients" in found[-1].reason
    assert "kept" in found[-1].reason
    assert set(scene.rows[Outcome.LEFT]) == set(everything.components)
    assert outcomes(scene.delete_topic(force=True))[-1] == Outcome.REMOVED


def test_a_broker_that_fails_half_way_is_said_to_have_deleted_what_is_gone(everything: Everything) -> None:
    scene = everything.scene

    def half(topic: Topic) -> None:
        for ledger_id in scene.ids[:4]:
            scene.cluster.remove(scene.cluster.path(ledger_id))
        raise OutcomeUnknown("500: no offloader")

    scene.cluster.admin.on_delete = half
    found = scene.delete_topic()
    assert set(scene.rows[Outcome.LEFT]) == set(everything.components)
    gone = {
        i for i, one in found.items() if one.reason == "the broker deleted it, but not its topic: 500: no offloader"
    }
    assert gone == set(scene.ids[:4])
    assert "in use and be kept" in found[scene.ids[4]].reason
    said = f"the broker deleted 4 of its {len(everything.components)} ledgers, but not the topic"
    said += ": 500: no offloader; run again"
    assert (found[-1].outcome, found[-1].reason) == (Outcome.FAILED, said)
    journalled = {row.ledger_id: row.reason for row in scene.journalled("mark") if row.outcome == Outcome.LEFT}
    assert journalled == {i: one.reason for i, one in found.items() if i >= 0}


def test_a_topic_without_every_receipt_is_not_deleted(everything: Everything) -> None:
    scene = everything.scene
    scene.queue.refused = {everything.bucket}
    assert str(everything.bucket) in scene.delete_topic()[-1].reason
    assert scene.listed == scene.ids
    assert Outcome.MARKED not in scene.rows


@pytest.mark.parametrize("done", [False, True])
def test_a_deletion_without_answer_is_judged_by_what_is_there(everything: Everything, done: bool) -> None:
    scene = everything.scene

    def lost(topic: Topic) -> None:
        if done:
            scene.cluster.remove(scene.path)
        raise OutcomeUnknown("timed out")

    scene.cluster.admin.on_delete = lost
    assert outcomes(scene.delete_topic())[-1] == (Outcome.REMOVED if done else Outcome.FAILED)


def test_a_topic_that_a_producer_created_again_at_once(everything: Everything) -> None:
    scene = everything.scene

    def again(topic: Topic) -> None:
        scene.cluster.remove(scene.path)
        scene.cluster.topic(TOPIC, [])

    scene.cluster.admin.on_delete = again
    assert outcomes(scene.delete_topic())[-1] == Outcome.REMOVED


@pytest.mark.parametrize(
    "context",
    [
        replace(CONTEXT, holds=frozenset({"acme"})),
        replace(CONTEXT, shadow_sources=frozenset({str(TOPIC)})),
        replace(CONTEXT, namespaces=frozenset()),
    ],
)
def test_a_whole_topic_is_refused_by_the_same_names(everything: Everything, context: Context) -> None:
    scene = everything.scene
    found = scene.act(
        lambda run, ports, guard: trimming_delete_topic.delete_topic(
            replace(run, context=context), ports, guard, TOPIC, False
        )
    )
    assert outcomes(found) == {-1: Outcome.REFUSED}
    assert found[-1].why.code == Code.TOPIC_PROTECTED
    assert scene.sent == []


def test_a_topic_that_becomes_a_source_once_its_messages_are_sent_stays_with_the_same_code(scene: Scene) -> None:
    queue = scene.queue
    send = queue.send

    def shadowed(messages: Any, delay: int) -> Any:
        scene.cluster.topic(OTHER, [])
        info = managed_ledger.ManagedLedgerInfo((), properties={SHADOW_SOURCE: str(TOPIC)})
        scene.cluster.put(scene.cluster.topic_path(OTHER), managed_ledger.encode(info))
        return send(messages, delay)

    queue.send = shadowed  # type: ignore[method-assign]
    found = scene.delete_topic(force=True)
    assert {one.why.code for one in found.values()} == {Code.TOPIC_PROTECTED}
    assert {row.code for row in scene.journalled("mark") if row.outcome == Outcome.LEFT} == {Code.TOPIC_PROTECTED}
    assert scene.listed == scene.ids


def test_what_is_no_topic_is_refused_by_another_code_than_what_a_rule_keeps(scene: Scene) -> None:
    scene.cluster.remove(scene.path)
    assert scene.delete_topic()[-1].why.code == Code.TOPIC_REFUSED


def test_a_dry_run_names_the_subscriptions_and_those_with_unread_messages(scene: Scene) -> None:
    def said() -> str:
        planned = trimming_delete_topic.plan_topic_deletion(scene.run(), scene.ports(), TOPIC)
        return next(one.reason for one in planned if one.ledger_id == -1)

    last = scene.ids[-1]
    scene.cursor("done", Position(last, 0))  # each ledger has one entry
    scene.cursor("__compaction", Position(scene.ids[0], -1))
    assert "its durable subscriptions (2) go with it: done, s; messages are, or may be, unread by s" in said()
    scene.cursor("s", Position(last, 0))
    assert said().endswith("done, s; all have read all")
    scene.cursor("s", None)
    assert "whether messages are unread is not known: cursor s" in said()
    for number in range(10):
        scene.cursor(f"a{number}", Position(last, 0))
    assert "(12) go with it: a0, " in said()
    assert "a9 and 2 more;" in said()
    for name in ("done", "s", *(f"a{number}" for number in range(10))):
        scene.cluster.remove(f"{scene.path}/{name}")
    assert said().endswith("it has no durable subscription")


def test_a_topic_with_a_compaction_that_cannot_be_read_is_refused(everything: Everything) -> None:
    scene = everything.scene
    scene.cluster.reader.failures[everything.compaction] = NotFound("gone")
    assert "compacted" in scene.delete_topic()[-1].reason
    assert scene.listed == scene.ids


def test_another_topics_ledger_on_the_list_gets_no_message(everything: Everything) -> None:
    scene = everything.scene
    foreign = scene.cluster.ledger(data_tags(OTHER))
    scene.cluster.topic(TOPIC, [*scene.ids, foreign])
    assert foreign not in scene.delete_topic()
    assert foreign not in {i for i, _ in scene.sent}


@pytest.mark.parametrize(("driver", "sent"), [("aws-s3", True), ("google-cloud-storage", False)])
def test_a_whole_topic_sends_for_the_offloaded_copies_that_could_be_deleted(
    everything: Everything, driver: str, sent: bool
) -> None:
    scene = everything.scene
    offload = OffloadContext(UUID(int=9), True, False, 1, driver, {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[0]: offload})
    assert outcomes(scene.delete_topic(force=True))[-1] == Outcome.REMOVED
    assert (scene.ids[0], LedgerType.LEDGER) in scene.sent
    assert ((scene.ids[0], LedgerType.OFFLOAD_LEDGER) in scene.sent) == sent


def test_killed_at_every_step_a_topic_goes_the_second_time() -> None:
    def make() -> Scene:
        return Everything(Scene()).scene

    steps: list[str] = []
    for scene, step in killed(make, lambda s, ports: s.delete_topic(ports=ports)):
        steps.append(step)
        assert not [row for row in scene.cluster.journal.rows if row.outcome == Outcome.LEFT], step
        if scene.cluster.zookeeper.stat(scene.path):
            assert outcomes(scene.delete_topic())[-1] == Outcome.REMOVED, step
        assert scene.cluster.zookeeper.stat(scene.path) is None, step
        assert {i for i, _ in scene.sent} >= set(scene.ids), step
    assert steps == [
        "send",
        "send, done",
        "record sent",
        "record sent, done",
        "record marked",
        "record marked, done",
        "delete topic",
        "delete topic, done",
        "record removed",
        "record removed, done",
    ]


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
