"""What a deletion run does with every kind of message, in which order, and after every kind of failure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.deletion.batch import work_off
from pulsar_lifecycle.deletion.decision import Decision
from pulsar_lifecycle.deletion.workers import PlanQueue
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC
from pulsar_lifecycle.errors import (
    CorruptFormat,
    Failed,
    LeaseLost,
    LifecycleError,
    OutcomeUnknown,
    Overloaded,
    Paused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    LedgerType,
    OffloadContext,
    PendingDeleteLedgerInfo,
    encode_deletion_message,
)
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Postponed, TopicInternals
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records.codes import Code
from pulsar_lifecycle.records.outcomes import Outcome, Waiting
from pulsar_lifecycle.records.referenced import Referenced
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.apply import intents
from pulsar_lifecycle.scan import coverage
from tests.kit.crash import Crash, Steps, Tell, Watched, killed_at_every_step
from tests.kit.fakes.deletion_queue import FakeDeletionQueue
from tests.kit.fakes.metadata_store import Operation
from tests.simulation.cluster import (
    BROKER,
    SimulatedCluster,
    bucket_key,
    bucket_tags,
    compacted_tags,
    cursor_tags,
    data_tags,
    deleted_copy,
    schema_tags,
)
from tests.simulation.pipeline import MAX_RETRIES, Policy, begun, delete, scan, two_scans

TOPIC = Topic.parse("persistent://acme/orders/a+b c~é-partition-0")
OTHER = Topic.parse("persistent://acme/orders/other")
NEW = Topic.parse("persistent://acme/orders/new")


class Scene:
    """One orphan of every component, two scans that found them, and a queue that is empty."""

    def __init__(self) -> None:
        self.cluster = cluster = SimulatedCluster()
        self.live = cluster.ledger(data_tags(TOPIC))
        cluster.topic(TOPIC, [self.live])
        cluster.topic(OTHER, [cluster.ledger(data_tags(OTHER))])
        self.data = cluster.ledger(data_tags(TOPIC))
        self.cursor = cluster.ledger(cursor_tags(TOPIC, "s/é"))
        self.schema = cluster.ledger(schema_tags(TOPIC.schema_id))
        self.compacted = cluster.ledger(compacted_tags(TOPIC))
        self.bucket = cluster.ledger(bucket_tags(TOPIC, "s", 1, 2))
        self.orphans = {self.data, self.cursor, self.schema, self.compacted, self.bucket}
        self.policy = Policy()
        self.now, self.before = two_scans(cluster)

    def intent(self, ledger_id: int) -> PendingDeleteLedgerInfo:
        """What the plan says of an orphan."""
        rows = self.now.findings
        ids = rows.column("ledger_id").to_pylist()
        (info,) = intents(rows.slice(ids.index(ledger_id), 1), "plan", 1)
        return info

    def publish(self, *messages: PendingDeleteLedgerInfo | bytes) -> None:
        """Put messages on the queue, then let an hour pass and scan again."""
        self.put(*messages)
        self.cluster.wait(2)
        self.now = scan(self.cluster, self.policy, [self.now])

    def put(self, *messages: PendingDeleteLedgerInfo | bytes) -> None:
        """Put messages on the queue."""
        queue = self.cluster.open_queue()
        for message in messages:
            queue.topics.publish(message if isinstance(message, bytes) else encode_deletion_message(message))

    def again(self) -> None:
        """Let the retry delay pass, and scan."""
        self.cluster.wait(1)
        self.now = scan(self.cluster, self.policy, [self.now])

    def send_all(self) -> None:
        self.publish(*(self.intent(i) for i in sorted(self.orphans)))

    def delete(
        self, wrap: Callable[[Ports], Ports] = lambda ports: ports, run_id: str = "delete-run"
    ) -> list[Decision]:
        return delete(self.cluster, self.now, self.before, self.policy, wrap, run_id=run_id)

    @property
    def waiting(self) -> int:
        return len(self.cluster.deletion_topics.waiting)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def outcomes(decisions: list[Decision]) -> list[str]:
    return [d.outcome for d in decisions]


def test_one_orphan_of_each_component_goes_and_nothing_else(scene: Scene) -> None:
    before = scene.cluster.ledger_ids()
    scene.send_all()
    assert outcomes(scene.delete()) == [Outcome.DELETED] * 5
    assert before - scene.cluster.ledger_ids() == scene.orphans
    assert scene.waiting == 0
    assert {row.ledger_id for row in scene.cluster.journal.nodes} == scene.orphans
    rows = scene.cluster.journal.rows
    assert [(row.ledger_id, row.outcome, row.plan_id) for row in rows] == [
        (i, Outcome.DELETED, "plan") for i in sorted(scene.orphans)
    ]
    assert {row.bytes for row in rows} == {10}
    assert all(len(row.checksum) == 64 for row in rows)


def test_a_message_dated_in_the_future_is_dated_anew(scene: Scene) -> None:
    """By whoever sent it; no scan that proves anything would ever be younger."""
    scene.publish(scene.intent(scene.data))
    ((number, (_, ready, raw, properties)),) = scene.cluster.deletion_topics.waiting.items()
    scene.cluster.deletion_topics.waiting[number] = (4_102_444_800_000, ready, raw, properties)
    (decision,) = scene.delete()
    assert (decision.outcome, decision.reason) == (
        Outcome.RETRYING,
        "its sender's clock is ahead: its copy on the retry topic is dated by ours",
    )
    scene.again()
    assert outcomes(scene.delete()) == [Outcome.DELETED]
    assert scene.waiting == 0


def test_an_archived_node_is_what_was_deleted(scene: Scene) -> None:
    path = scene.cluster.path(scene.data)
    data, stat = scene.cluster.zookeeper.data(path), scene.cluster.zookeeper.stat(path)
    scene.publish(scene.intent(scene.data))
    scene.delete()
    (node,) = scene.cluster.journal.nodes
    assert stat is not None
    assert (node.path, node.data, node.version, node.czxid, node.ctime) == (
        path,
        data,
        stat.version,
        stat.czxid,
        stat.ctime,
    )


# ------------------------------------------------------------------------------------------- messages that must not


def forged(scene: Scene) -> Iterator[tuple[PendingDeleteLedgerInfo | bytes, str]]:
    """Messages about real orphans that do not fit them, and messages about what is no orphan."""
    data, cursor, schema = scene.intent(scene.data), scene.intent(scene.cursor), scene.intent(scene.schema)
    compacted, bucket = scene.intent(scene.compacted), scene.intent(scene.bucket)
    yield replace(data, topic_name=str(OTHER)), "the message says persistent://acme/orders/other"
    yield replace(data, topic_name=str(TOPIC.partitioned_parent)), "the message says"
    yield replace(data, component=LedgerComponent.COMPACTED_LEDGER), "the message says Compacted-Ledger"
    yield replace(cursor, component=LedgerComponent.MANAGED_LEDGER), "the message says Managed-Ledger"
    yield replace(data, component=LedgerComponent.MANAGED_CURSOR, cursor_name="s"), "the message says Managed-Cursor"
    yield replace(cursor, cursor_name="s"), "the message says cursor s"
    yield replace(schema, schema_id="acme/orders/other"), "the message says schema"
    yield replace(schema, topic_name=str(OTHER)), "the message says"
    yield replace(compacted, topic_name=str(OTHER)), "the message says"
    yield replace(bucket, bucket_key=bucket_key(1, 3)), "the message says"
    yield replace(bucket, cursor_name="t"), "the message says"
    yield replace(data, czxid=1), "another transaction"
    yield replace(data, ctime=1), "another time"
    yield b"not json", "JSON"
    yield b"\xff", "UTF-8"
    yield b"{}", "missing"
    yield json.dumps({"topicName": str(TOPIC), "ledgerId": scene.data, "ledgerType": "Ledger"}).encode(), "missing"
    yield encode_deletion_message(data).replace(b'"Managed-Ledger"', b'"Everything"'), "Everything"


FORGERIES = 18


def test_every_forgery_is_tried(scene: Scene) -> None:
    assert len(list(forged(scene))) == FORGERIES


@pytest.mark.parametrize("number", range(FORGERIES))
def test_a_message_that_does_not_fit_deletes_nothing_and_is_journalled_and_acknowledged(
    scene: Scene, number: int
) -> None:
    message, why = list(forged(scene))[number]
    raw = message if isinstance(message, bytes) else encode_deletion_message(message)
    scene.publish(raw)
    zxid = scene.cluster.zookeeper.zxid
    (decision,) = scene.delete()
    assert (decision.outcome, scene.waiting) == (Outcome.REFUSED, 0)
    assert why in decision.reason
    assert scene.cluster.journal.nodes == []
    assert scene.cluster.ledger_ids() >= scene.orphans
    (row,) = scene.cluster.journal.rows
    assert (row.outcome, row.reason) == (Outcome.REFUSED, decision.reason)
    assert bytes.fromhex(json.loads(row.detail)["raw"]) == raw
    assert scene.cluster.zookeeper.zxid - zxid == 6  # the lease: two nodes above it, itself, its holder twice, version


def test_a_foreign_intent_without_our_extras_passes_the_whole_rule(scene: Scene) -> None:
    bare = {"plan_id": "", "czxid": None, "ctime": None, "sent_at": None}
    live = PendingDeleteLedgerInfo(
        topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=scene.live
    )
    young = scene.cluster.ledger(data_tags(TOPIC))
    scene.publish(
        replace(scene.intent(scene.data), **bare), live, replace(live, ledger_id=young), replace(live, ledger_id=999)
    )
    assert [(d.info.ledger_id, d.outcome) for d in scene.delete()] == [
        (scene.data, Outcome.DELETED),
        (scene.live, Outcome.KEPT),
        (young, Outcome.KEPT),
        (999, Outcome.GONE),
    ]
    assert scene.cluster.exists(scene.live)
    assert scene.cluster.exists(young)


def test_what_is_no_orphan_is_kept_by_its_finding(scene: Scene) -> None:
    cluster = scene.cluster
    system = Topic.parse("persistent://acme/orders/__change_events")
    elsewhere = Topic.parse("persistent://gone/away/x")
    leftover = cluster.ledger(data_tags(OTHER))
    cluster.topic(OTHER, [leftover], offloaded={leftover: deleted_copy()})
    ids = [
        leftover,
        cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN),
        cluster.ledger(data_tags(system)),
        cluster.ledger(data_tags(elsewhere)),
    ]
    owners = [OTHER, TOPIC, system, elsewhere]
    scene.now, scene.before = two_scans(cluster)
    base = PendingDeleteLedgerInfo(topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=0)
    scene.publish(*(replace(base, topic_name=str(t), ledger_id=i) for t, i in zip(owners, ids, strict=True)))
    decisions = scene.delete()
    assert outcomes(decisions) == [Outcome.KEPT] * 4
    assert [d.reason.partition(":")[0] for d in decisions] == ["offload_leftover", "open_orphan", "kept", "foreign"]
    assert cluster.ledger_ids() >= set(ids)


def test_an_offload_intent_waits_for_the_run_that_can_check_it(scene: Scene) -> None:
    context = OffloadContext(lsb=1, msb=2, driver_name="aws-s3")
    scene.publish(replace(scene.intent(scene.data), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context))
    assert outcomes(scene.delete()) == [Outcome.WAITING]
    assert (scene.waiting, scene.cluster.exists(scene.data)) == (1, True)


def test_a_message_newer_than_the_scan_waits_for_the_next(scene: Scene) -> None:
    scene.put(scene.intent(scene.data))
    assert outcomes(scene.delete(run_id="first")) == [Outcome.WAITING]
    scene.publish()
    assert outcomes(scene.delete(run_id="second")) == [Outcome.DELETED]
    assert scene.waiting == 0


def test_a_ledger_that_the_earlier_scan_did_not_confirm_is_kept(scene: Scene) -> None:
    scene.publish(*[scene.intent(scene.data)] * 4)
    late = replace(scene.before, epoch=replace(scene.before.epoch, max_czxid=1))
    assert outcomes(delete(scene.cluster, scene.now, late, limit=1)) == [Outcome.KEPT]
    early = replace(scene.before, epoch=replace(scene.before.epoch, started_at=1))
    assert outcomes(delete(scene.cluster, scene.now, early, limit=1)) == [Outcome.KEPT]
    referenced = replace(scene.before, refs=scene.before.refs.merge(replace(scene.before.refs)))
    referenced.refs.needed.add(scene.data)
    assert outcomes(delete(scene.cluster, scene.now, referenced, limit=1)) == [Outcome.KEPT]
    offloaded = replace(scene.before, refs=Referenced(BitMap64(), BitMap64([scene.data])))
    assert outcomes(delete(scene.cluster, scene.now, offloaded, limit=1)) == [Outcome.KEPT]
    assert scene.cluster.exists(scene.data)


def test_of_two_messages_about_one_ledger_one_is_enough(scene: Scene) -> None:
    info = scene.intent(scene.data)
    scene.publish(info, replace(info, plan_id="another"), replace(info, czxid=1))
    assert outcomes(scene.delete()) == [Outcome.DELETED, Outcome.GONE, Outcome.REFUSED]
    assert (scene.waiting, len(scene.cluster.journal.nodes)) == (0, 1)


def test_the_twin_of_a_message_that_waits_waits_too(scene: Scene) -> None:
    info = scene.intent(scene.data)
    scene.publish(info, info)

    def touch(ports: Ports) -> Ports:
        def change(operation: Operation) -> None:
            if operation.name == "delete_many":
                ports.store.before = lambda operation: None
                path = scene.cluster.path(scene.data)
                scene.cluster.put(path, scene.cluster.zookeeper.data(path))

        ports.store.before = change
        return ports

    decisions = scene.delete(touch)
    assert outcomes(decisions) == [Outcome.RETRYING, Outcome.RETRYING]
    assert decisions[0].reason == "its z-node was changed meanwhile"
    scene.again()
    assert (scene.waiting, scene.cluster.exists(scene.data)) == (2, True)
    assert outcomes(scene.delete()) == [Outcome.DELETED, Outcome.GONE]


# ------------------------------------------------------------------------------------------------ the owner's word


@pytest.mark.parametrize("sent_at", [None, 1 << 62])
def test_a_ledger_listed_again_waits_while_the_intent_is_young_and_is_kept_afterwards(
    scene: Scene, sent_at: int | None
) -> None:
    scene.publish(replace(scene.intent(scene.data), sent_at=sent_at))
    scene.cluster.topic(TOPIC, [scene.live, scene.data])
    scene.cluster.deletion_topics.waiting = {
        n: (scene.cluster.clock.now_ms() - 3_000_000, *rest)
        for n, (_, *rest) in scene.cluster.deletion_topics.waiting.items()
    }
    scene.now = scan(scene.cluster)
    early = replace(scene.now, refs=scene.before.refs)
    assert outcomes(delete(scene.cluster, early, scene.before)) == [Outcome.RETRYING]
    scene.again()
    again = replace(scene.now, refs=scene.before.refs)
    assert outcomes(delete(scene.cluster, again, scene.before)) == [Outcome.KEPT]
    assert scene.cluster.exists(scene.data)


def load(scene: Scene, *held: int, state: LedgerState = LedgerState.OPEN, compaction: str = "NOT_RUN") -> None:
    """A broker has the topic loaded, and holds ledgers in memory."""
    last = scene.cluster.ledger(data_tags(TOPIC), state=state)
    scene.cluster.topic(TOPIC, [scene.live, last])
    scene.cluster.load(TOPIC)
    scene.cluster.admin.internals[TOPIC] = TopicInternals("LedgerOpened", held, {}, {}, None, ())
    scene.cluster.admin.compactions[TOPIC] = compaction


def test_what_a_broker_holds_in_memory_waits(scene: Scene) -> None:
    load(scene, scene.data)
    scene.publish(scene.intent(scene.data), scene.intent(scene.cursor))
    assert outcomes(scene.delete()) == [Outcome.RETRYING, Outcome.DELETED]


@pytest.mark.parametrize(
    ("compaction", "compacted"),
    [("NOT_RUN", Outcome.DELETED), ("SUCCESS", Outcome.DELETED), ("RUNNING", Outcome.KEPT), ("ERROR", Outcome.KEPT)],
)
def test_of_a_loaded_topic_compaction_and_delayed_index_are_asked(
    scene: Scene, compaction: str, compacted: str
) -> None:
    load(scene, compaction=compaction)
    scene.cluster.cursor(TOPIC, "s")
    scene.publish(scene.intent(scene.compacted), scene.intent(scene.bucket))
    assert outcomes(scene.delete()) == [compacted, Outcome.KEPT]


def restart(scene: Scene, manager: str = "ModularLoadManagerImpl") -> None:
    """The broker starts a day from now, by what its z-node says."""
    scene.cluster.wait(24)
    report = {
        "loadReportType": "LocalBrokerData",
        "loadManagerClassName": f"org.apache.pulsar.broker.loadbalance.impl.{manager}",
        "startTimestamp": scene.cluster.clock.now_ms(),
    }
    scene.cluster.put(f"/loadbalance/brokers/{BROKER}", json.dumps(report).encode())


def load_with(scene: Scene, *cursors: str) -> None:
    """A broker has the topic loaded, and in memory these cursors, without a z-node."""
    load(scene)
    properties = {name: dict[str, int]() for name in cursors}
    scene.cluster.admin.internals[TOPIC] = TopicInternals("LedgerOpened", (), {}, properties, None, ())


@pytest.mark.parametrize(
    ("cursors", "outcome"), [((), Outcome.DELETED), (("t",), Outcome.DELETED), (("t", "s"), Outcome.KEPT)]
)
def test_a_snapshot_whose_cursor_has_no_z_node_goes_only_if_its_restarted_broker_has_none_either(
    scene: Scene, cursors: tuple[str, ...], outcome: str
) -> None:
    restart(scene)
    load_with(scene, *cursors)
    scene.publish(scene.intent(scene.bucket))
    assert outcomes(scene.delete()) == [outcome]


def test_a_snapshot_of_a_topic_that_may_be_loaded_since_before_it_was_made_stays(scene: Scene) -> None:
    load_with(scene)
    scene.publish(scene.intent(scene.bucket))
    assert outcomes(scene.delete()) == [Outcome.KEPT]


def test_a_snapshot_stays_where_the_broker_reports_no_start(scene: Scene) -> None:
    restart(scene, "SimpleLoadManagerImpl")
    load_with(scene)
    scene.publish(scene.intent(scene.bucket))
    assert outcomes(scene.delete()) == [Outcome.KEPT]


def test_a_snapshot_stays_whose_durable_cursor_may_have_it_in_memory_though_its_range_is_trimmed(scene: Scene) -> None:
    scene.publish(scene.intent(scene.bucket))
    restart(scene)
    scene.live = scene.cluster.ledger(data_tags(TOPIC))  # far behind ledgers 1 and 2
    load_with(scene, "s")
    scene.cluster.cursor(TOPIC, "s")
    assert outcomes(scene.delete()) == [Outcome.KEPT]


def test_a_snapshot_is_tried_again_where_its_broker_does_not_answer(scene: Scene) -> None:
    restart(scene)
    load_with(scene)
    scene.publish(scene.intent(scene.bucket))
    del scene.cluster.admin.internals[TOPIC]
    del scene.cluster.admin.topics[TOPIC]
    assert outcomes(scene.delete()) == [Outcome.RETRYING]


def test_a_listed_topic_that_looks_unloaded_is_not_asked_because_asking_loads_it(scene: Scene) -> None:
    load(scene, state=LedgerState.CLOSED)
    scene.publish(scene.intent(scene.data))
    scene.cluster.admin.touched.clear()
    (decision,) = scene.delete()
    assert (decision.outcome, scene.cluster.admin.touched) == (Outcome.RETRYING, [])
    assert decision.code is Code.NOT_KNOWN_YET
    assert "being unloaded" in decision.reason


def test_a_topic_written_just_now_may_be_loading(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data), scene.intent(scene.compacted))
    scene.cluster.topic(TOPIC, [scene.live])
    decisions = scene.delete()
    assert outcomes(decisions) == [Outcome.RETRYING, Outcome.RETRYING]
    assert "some broker may be loading it" in decisions[0].reason


def test_a_topic_loaded_after_the_brokers_were_asked_keeps_its_ledgers(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data), scene.intent(scene.compacted), scene.intent(scene.bucket))

    def hours_later(ports: Ports) -> Ports:
        load(scene, scene.data, compaction="RUNNING")
        scene.cluster.wait(5)
        return ports

    assert outcomes(scene.delete(hours_later)) == [Outcome.RETRYING] * 3
    assert scene.cluster.ledger_ids() >= scene.orphans


def test_a_topic_without_a_z_node_that_a_broker_lists_waits(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data))
    scene.cluster.remove(scene.cluster.topic_path(TOPIC))
    scene.cluster.load(TOPIC)
    assert outcomes(scene.delete()) == [Outcome.RETRYING]
    scene.cluster.admin.loaded.clear()
    scene.policy = Policy(max_shrinkage=1)  # what the topic listed is missed
    scene.again()
    assert outcomes(scene.delete()) == [Outcome.DELETED]


@pytest.mark.parametrize("error", [Unavailable("503"), LifecycleError("403")])
def test_a_broker_that_does_not_answer_keeps(scene: Scene, error: LifecycleError) -> None:
    load(scene)
    scene.publish(*(scene.intent(i) for i in sorted(scene.orphans - {scene.schema})))

    def silence(ports: Ports) -> Ports:
        scene.cluster.admin.failure = error
        return ports

    assert outcomes(scene.delete(silence)) == [Outcome.RETRYING] * 4
    assert scene.cluster.ledger_ids() >= scene.orphans


@pytest.mark.parametrize("since", ["the scan", "the scan has ended"])
def test_a_broker_that_never_says_what_it_holds_of_a_topic_keeps_all_of_it(scene: Scene, since: str) -> None:
    """Known to the run's scan, nothing fails and nothing is tried again; later it is as any broker that fails."""
    scene.publish(*(scene.intent(i) for i in sorted(scene.orphans)))
    load(scene)
    scene.cluster.topic(NEW, [scene.cluster.ledger(data_tags(NEW), state=LedgerState.OPEN)])
    scene.cluster.load(NEW)
    scene.cluster.cursor(TOPIC, "__compaction")
    silent = {TOPIC: Failed("GET internalStats: 500")}

    def silence(ports: Ports) -> Ports:
        scene.cluster.admin.silent = silent
        return ports

    scene.cluster.admin.silent = silent if since == "the scan" else {}
    scene.again()
    assert scene.now.epoch.gaps == ()
    found = {d.info.ledger_id: d.outcome for d in scene.delete(silence)}
    expected = Outcome.KEPT if since == "the scan" else Outcome.RETRYING
    assert {found[i] for i in scene.orphans - {scene.schema}} == {expected}
    assert found[scene.schema] == (
        Outcome.KEPT if since == "the scan" else Outcome.DELETED
    )  # its locator says so, no memory


@pytest.mark.parametrize(
    "name", ["topic", "cursor s", "cursor s/é", "compaction", "compaction entry", "schema", "ledger"]
)
def test_an_owner_that_cannot_be_read_keeps(scene: Scene, name: str) -> None:
    cluster = scene.cluster
    for cursor in ("s", "s/é"):
        cluster.cursor(TOPIC, cursor)
    held = cluster.ledger(cursor_tags(TOPIC, "__compaction"), entries=[cluster.position_entry()])
    cluster.cursor(TOPIC, "__compaction", ledger=held)
    version = cluster.ledger(schema_tags(TOPIC.schema_id), entries=[cluster.schema_entry()])
    cluster.schema(TOPIC.schema_id, [version])
    scene.send_all()
    topic = cluster.topic_path(TOPIC)
    path, ledger = {
        "topic": (topic, scene.data),
        "cursor s": (f"{topic}/s", scene.bucket),
        "cursor s/é": (f"{topic}/s%2F%C3%A9", scene.cursor),
        "compaction": (f"{topic}/__compaction", scene.compacted),
        "compaction entry": ("", scene.compacted),
        "schema": (f"/schemas/{TOPIC.schema_id}", scene.schema),
        "ledger": (cluster.path(scene.data), scene.data),
    }[name]
    cluster.zookeeper.unreadable.add(path)
    if not path:
        cluster.reader.failures[held] = Unavailable("every bookie is silent")
    assert {d.info.ledger_id: d.outcome for d in scene.delete()}[ledger] == Outcome.RETRYING
    cluster.zookeeper.unreadable.clear()
    cluster.reader.failures.clear()
    scene.again()
    if path and name != "ledger":
        cluster.put(path, b"\xff\xff")
        assert {d.info.ledger_id: d.outcome for d in scene.delete()}[ledger] == Outcome.RETRYING
    assert cluster.exists(ledger)


def test_an_owner_whose_entry_was_damaged_after_the_scan_is_kept_and_not_tried_again(scene: Scene) -> None:
    cluster = scene.cluster
    held = cluster.ledger(cursor_tags(TOPIC, "__compaction"), entries=[cluster.position_entry()])
    cluster.cursor(TOPIC, "__compaction", ledger=held)
    version = cluster.ledger(schema_tags(TOPIC.schema_id), entries=[cluster.schema_entry()])
    cluster.schema(TOPIC.schema_id, [version])
    scene.send_all()

    def damage(ports: Ports) -> Ports:
        cluster.reader.failures = dict.fromkeys((held, version), CorruptFormat("entry", 0, "its digest"))
        return ports

    found = {d.info.ledger_id: d.outcome for d in scene.delete(damage)}
    assert (found[scene.compacted], found[scene.schema]) == (Outcome.KEPT, Outcome.KEPT)


def test_a_clock_that_runs_ahead_makes_no_ledger_older() -> None:
    scene = Scene()
    young = scene.cluster.ledger(data_tags(TOPIC))
    scene.cluster.wait(50)
    scene.before = scan(scene.cluster)
    scene.cluster.wait(25)
    info = PendingDeleteLedgerInfo(topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=young)
    scene.publish(info)
    with begun(scene.cluster, scene.now, scene.before) as (run, ports):
        scene.cluster.wait(30 * 24)  # the executor's clock, not the store's
        decisions = list(work_off(run, ports, 10, 0))
    assert [(d.outcome, d.reason.partition(":")[0]) for d in decisions] == [(Outcome.KEPT, "too_young")]


# ------------------------------------------------------------------------------------------- stopping and failing


def test_paused_before_a_batch_takes_nothing_and_within_one_deletes_nothing(scene: Scene) -> None:
    scene.send_all()
    control.pause(scene.cluster.open_store(), "looking")
    with pytest.raises(Paused):
        scene.delete()
    control.resume(scene.cluster.open_store())

    def later(ports: Ports) -> Ports:
        def pause(operation: Operation) -> None:
            if operation.name == "sync":
                ports.store.before = lambda operation: None
                control.pause(scene.cluster.open_store(), "now")

        ports.store.before = pause
        return ports

    with pytest.raises(Paused):
        scene.delete(later)
    assert (scene.waiting, scene.cluster.journal.nodes) == (5, [])
    assert scene.cluster.ledger_ids() >= scene.orphans
    control.resume(scene.cluster.open_store())
    assert outcomes(scene.delete()) == [Outcome.DELETED] * 5


def test_a_slow_metadata_store_slows_and_then_stops(scene: Scene) -> None:
    scene.send_all()

    def slow(latency: float) -> Callable[[Ports], Ports]:
        def wrap(ports: Ports) -> Ports:
            ports.store.latency = latency
            return ports

        return wrap

    with pytest.raises(Overloaded):
        scene.delete(slow(501))
    assert scene.waiting == 5
    scene.cluster.clock.slept.clear()
    assert outcomes(scene.delete(slow(200))) == [Outcome.DELETED] * 5
    assert 0.2 in scene.cluster.clock.slept


def test_a_lost_lease_stops_and_what_was_done_is_journalled(scene: Scene) -> None:
    scene.send_all()

    def take_over(ports: Ports) -> Ports:
        def second(operation: Operation) -> None:
            if operation.name == "delete_many" and len(scene.cluster.journal.nodes) > 4:
                ports.store.before = lambda operation: None
                scene.cluster.put(control.LEASE, b"another")

        ports.store.before = second
        return ports

    with pytest.raises(LeaseLost):
        scene.delete(take_over)
    ends = [(row.ledger_id, row.outcome) for row in scene.cluster.journal.rows]
    assert ends == [(i, Outcome.DELETED) for i in sorted(scene.orphans)[:4]] + [(max(scene.orphans), Outcome.WAITING)]
    assert scene.orphans & scene.cluster.ledger_ids() == {max(scene.orphans)}
    assert scene.waiting == 1
    assert outcomes(scene.delete()) == [Outcome.DELETED]


@pytest.mark.parametrize("arrived", [False, True])
def test_an_unknown_outcome_is_settled_by_reading(scene: Scene, arrived: bool) -> None:
    scene.publish(scene.intent(scene.data))

    def cut(ports: Ports) -> Ports:
        def fail(operation: Operation) -> None:
            if operation.name == "delete_many":
                raise OutcomeUnknown("the connection was lost")

        if arrived:
            ports.store.after = fail
        else:
            ports.store.before = fail
        return ports

    if arrived:
        assert outcomes(scene.delete(cut)) == [Outcome.DELETED]
    else:
        with pytest.raises(OutcomeUnknown):
            scene.delete(cut)
    assert [row.outcome for row in scene.cluster.journal.rows] == [Outcome.DELETED if arrived else Outcome.WAITING]
    assert scene.cluster.exists(scene.data) is not arrived
    assert scene.waiting == (0 if arrived else 1)


def test_when_not_even_reading_works_the_message_stays_and_the_journal_says_so(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data))

    def cut(ports: Ports) -> Ports:
        def fail(operation: Operation) -> None:
            if operation.name == "delete_many":
                ports.store.before = ports.store.after = lost

        def lost(operation: Operation) -> None:
            raise OutcomeUnknown("the connection was lost")

        ports.store.after = fail
        return ports

    with pytest.raises(LifecycleError):
        scene.delete(cut, run_id="cut off")
    (row,) = scene.cluster.journal.rows
    assert (row.outcome, scene.waiting) == (Outcome.WAITING, 1)
    assert "not known" in row.reason
    assert outcomes(scene.delete()) == [Outcome.GONE]
    said = [(row.outcome, row.run_id) for row in scene.cluster.journal.rows]
    assert said == [(Outcome.WAITING, "cut off"), (Outcome.DELETED, "cut off"), (Outcome.GONE, "delete-run")]


def delete_with_a_full_journal(scene: Scene) -> None:
    """Run ``failed`` deletes a batch, and cannot say so."""
    journal = scene.cluster.journal

    def full(ports: Ports) -> Ports:
        def fail(operation: Operation) -> None:
            if operation.name == "delete_many":
                journal.failure = StoreError("the disk is full")

        ports.store.after = fail
        return ports

    with pytest.raises(StoreError):
        scene.delete(full, run_id="failed")


def test_a_journal_that_fails_after_the_deletion_is_made_up_for_by_the_next_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coverage, "SMALL_SHRINKAGE", 0)
    scene.send_all()
    journal = scene.cluster.journal

    delete_with_a_full_journal(scene)
    assert journal.rows == []
    journal.failure = None
    lost = scene.orphans - scene.cluster.ledger_ids()
    assert scene.cursor in lost
    assert scan(scene.cluster, Policy(max_shrinkage=0), [scene.now]).epoch.covered
    assert sorted(outcomes(scene.delete())) == [Outcome.DELETED] * (5 - len(lost)) + [Outcome.GONE] * len(lost)
    rows = {row.ledger_id: row for row in journal.rows if row.run_id == "failed"}
    assert {row.outcome for row in rows.values()} == {Outcome.DELETED}
    assert {(node.ledger_id, node.at) for node in journal.nodes if node.run_id == "failed"} == {
        (row.ledger_id, row.at) for row in rows.values()
    }
    row = rows[scene.cursor]
    assert (set(rows), row.component, row.topic) == (lost, "Managed-Cursor", str(TOPIC))
    assert all(row.checksum and "settled_by" in row.detail for row in rows.values())
    assert scan(scene.cluster, Policy(max_shrinkage=0), [scene.now]).epoch.covered
    scene.delete()
    assert len([row for row in journal.rows if row.outcome == Outcome.DELETED]) == 5


def test_a_deletion_that_nobody_spoke_of_is_made_up_for_although_its_ledger_is_there_again(scene: Scene) -> None:
    scene.send_all()
    journal = scene.cluster.journal

    delete_with_a_full_journal(scene)
    journal.failure = None
    again, *_ = archived = [node for node in journal.nodes if not scene.cluster.exists(node.ledger_id)]
    scene.cluster.put(again.path, again.data)
    scene.delete()
    said = {row.ledger_id for row in journal.rows if (row.run_id, row.outcome) == ("failed", Outcome.DELETED)}
    assert said == {node.ledger_id for node in archived}


def watched(tell: Tell) -> Callable[[Ports], Ports]:
    """The run's ports, each call of which is told of as ``before PORT.NAME`` and ``after PORT.NAME``."""

    def wrap(ports: Ports) -> Ports:
        watched = {name: getattr(ports, name) for name in ("store", "reader", "admin", "queue", "journal")}
        return Ports(**{n: Watched(port, tell, f"{n}.") for n, port in watched.items()}, clock=ports.clock)

    return wrap


def test_archive_before_delete_before_confirmation_before_journal_before_acknowledgement(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data))
    steps = Steps()
    scene.delete(watched(steps))
    calls = [step.removeprefix("before ") for step in steps.seen if step.startswith("before ")]
    effects = ["journal.archive", "store.delete_many", "store.sync", "store.read", "journal.record"]
    start = calls.index("journal.archive")
    assert calls[start : start + 6] == [*effects, "queue.acknowledge"]
    assert "store.read" in calls[calls.index("store.sync") : start]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_killed_at_any_call_is_finished_by_the_next(when: str) -> None:
    def begin() -> tuple[Scene, set[int]]:
        scene = Scene()
        scene.send_all()
        return scene, scene.cluster.ledger_ids()

    def run(begun: tuple[Scene, set[int]], tell: Tell) -> None:
        begun[0].delete(watched(lambda step: tell(step) if step.startswith(when) else None), run_id="killed")

    for (scene, before), _ in killed_at_every_step(begin, run):
        gone = before - scene.cluster.ledger_ids()
        journal = scene.cluster.journal
        assert gone <= {node.ledger_id for node in journal.nodes}
        assert set(outcomes(scene.delete())) <= {Outcome.DELETED, Outcome.GONE}
        assert before - scene.cluster.ledger_ids() == scene.orphans
        assert scene.waiting == 0
        deleted = [(row.ledger_id, row.run_id) for row in journal.rows if row.outcome == Outcome.DELETED]
        assert sorted(deleted) == sorted((i, "killed" if i in gone else "delete-run") for i in scene.orphans)
        assert {row.ledger_id for row in journal.rows} == scene.orphans


def test_a_journal_that_cannot_be_written_stops_before_the_deletion(scene: Scene) -> None:
    scene.send_all()
    scene.cluster.journal.failure = Unavailable("the disk is full")
    with pytest.raises(Unavailable):
        scene.delete()
    assert (scene.waiting, scene.cluster.ledger_ids() >= scene.orphans) == (5, True)


def test_an_acknowledgement_that_was_lost_is_made_up_for(scene: Scene) -> None:
    scene.send_all()

    def lose(ports: Ports) -> Ports:
        ports.queue.acknowledge = lambda messages: None  # type: ignore[method-assign]
        return ports

    assert outcomes(scene.delete(lose)) == [Outcome.DELETED] * 5
    assert scene.waiting == 5
    assert outcomes(scene.delete()) == [Outcome.GONE] * 5
    assert scene.waiting == 0


# ---------------------------------------------------------------------------------------- retries, and our own marks


def test_what_fails_is_retried_and_after_the_last_retry_dead_lettered(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data))
    unreadable, path = scene.cluster.zookeeper.unreadable, scene.cluster.topic_path(TOPIC)

    def attempt() -> Decision:
        unreadable.add(path)
        (decision,) = scene.delete()
        unreadable.remove(path)
        scene.again()
        return decision

    for times in range(1, MAX_RETRIES + 1):
        decision = attempt()
        assert (decision.outcome, scene.cluster.journal.rows[-1].outcome) == (Outcome.RETRYING, Outcome.RETRYING)
        assert json.loads(scene.cluster.journal.rows[-1].detail)["reconsume_times"] == times
    decision = attempt()
    assert decision.outcome == Outcome.DEAD_LETTERED
    assert "10 retries did not help" in decision.reason
    assert (scene.waiting, len(scene.cluster.deletion_topics.dead)) == (0, 1)
    assert scene.cluster.exists(scene.data)


def test_what_a_broker_never_says_of_a_topic_is_retried_and_then_dead_lettered(scene: Scene) -> None:
    """As docs/reference/memory.md says: no scan asks about it, as it has no compaction."""
    cluster, quiet = scene.cluster, Topic.parse("persistent://acme/orders/quiet")
    cluster.topic(quiet, [cluster.ledger(data_tags(quiet), state=LedgerState.OPEN)])
    scene.data = cluster.ledger(data_tags(quiet))
    cluster.load(quiet)
    scene.now, scene.before = two_scans(cluster)
    scene.publish(scene.intent(scene.data))
    cluster.admin.silent[quiet] = Failed("500: the schema locator")
    found: list[str] = []
    for _ in range(MAX_RETRIES + 1):
        (decision,) = scene.delete()
        assert decision.reason.startswith("its owner could not be asked: 500: the schema locator")
        found.append(decision.outcome)
        scene.again()
    assert found == [Outcome.RETRYING] * MAX_RETRIES + [Outcome.DEAD_LETTERED]
    assert (scene.waiting, len(cluster.deletion_topics.dead), cluster.exists(scene.data)) == (0, 1, True)


def test_a_message_that_cannot_be_sent_to_the_retry_topic_stays(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data))

    def refuse(ports: Ports) -> Ports:
        ports.queue.refused.add(scene.data)
        return ports

    scene.cluster.zookeeper.unreadable.add(scene.cluster.topic_path(TOPIC))
    (decision,) = scene.delete(refuse)
    assert decision.outcome == Outcome.WAITING
    assert "could not be sent to the retry topic" in decision.reason
    assert scene.waiting == 1


def copy_intent(scene: Scene, ledger_id: int) -> PendingDeleteLedgerInfo:
    """A message that must wait, for no object store is declared."""
    context = OffloadContext(lsb=1, msb=2, driver_name="aws-s3")
    base = scene.intent(scene.data)
    return replace(base, ledger_id=ledger_id, ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context)


FLOOD = range(1_000, 1_040)


def test_a_flood_that_must_wait_hides_nothing_whatever_brokers_allow(scene: Scene) -> None:
    topics = scene.cluster.deletion_topics
    topics.max_unacked = 3
    scene.publish(*(copy_intent(scene, i) for i in FLOOD), *(scene.intent(i) for i in sorted(scene.orphans)))
    decisions = scene.delete(run_id="first")
    assert Counter(outcomes(decisions)) == {Outcome.WAITING: len(FLOOD), Outcome.DELETED: 5}
    assert scene.waiting == len(FLOOD)
    assert topics.retries == set(topics.waiting)
    scene.again()
    assert outcomes(scene.delete(run_id="second")) == [Outcome.WAITING] * len(FLOOD)
    rows = [json.loads(row.detail) for row in scene.cluster.journal.rows if row.outcome == Outcome.WAITING]
    assert len(rows) == 2 * len(FLOOD)
    assert {row["waiting"] for row in rows} == {"no-object-store"}
    assert len({row["waiting_since"] for row in rows}) == 1
    assert all("reconsume_times" not in row for row in rows)


def test_what_a_run_sent_back_is_not_taken_by_it_again_though_brokers_ignore_delays(scene: Scene) -> None:
    scene.publish(*(copy_intent(scene, i) for i in FLOOD), scene.intent(scene.data))
    topics = scene.cluster.deletion_topics

    def at_once(ports: Ports) -> Ports:
        real = topics.publish
        topics.publish = lambda raw, properties=None, after=0, topic=DELETION_TOPIC: real(raw, properties, 0, topic)
        return ports

    assert Counter(outcomes(scene.delete(at_once, "first"))) == {Outcome.WAITING: len(FLOOD), Outcome.DELETED: 1}
    assert scene.waiting == len(FLOOD)
    assert outcomes(scene.delete(run_id="second")) == [Outcome.WAITING] * len(FLOOD)


@pytest.mark.parametrize("call", ["record", "acknowledge"])
def test_a_kill_after_the_copy_loses_nothing_and_a_duplicate_does_no_harm(scene: Scene, call: str) -> None:
    scene.put(scene.intent(scene.data))

    def die(step: str) -> None:
        if step in ("before journal.record", "before queue.acknowledge") and step.endswith(call):
            raise Crash

    with pytest.raises(Crash):
        scene.delete(watched(die), "killed")
    assert scene.waiting == 2
    scene.publish()
    scene.cluster.put(control.LEASE, b"")
    assert sorted(outcomes(scene.delete(run_id="next"))) == [Outcome.DELETED, Outcome.GONE]
    assert scene.waiting == 0


def test_lost_acknowledgements_do_not_make_ever_more_of_what_waits(scene: Scene) -> None:
    scene.publish(*(copy_intent(scene, i) for i in FLOOD[:3]))

    def forgetful(ports: Ports) -> Ports:
        ports.queue.acknowledge = lambda messages: None  # type: ignore[method-assign]
        return ports

    assert outcomes(scene.delete(forgetful, "forgetful")) == [Outcome.WAITING] * 3
    assert scene.waiting == 6
    scene.again()
    assert outcomes(scene.delete(run_id="next")) == [Outcome.WAITING] * 6
    assert scene.waiting == 3


def test_what_waits_when_its_run_is_stopped_stays_where_it_is(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data), copy_intent(scene, FLOOD[0]))

    def stopped(ports: Ports) -> Ports:
        def lose(operation: Operation) -> None:
            if operation.name == "delete_many":
                raise Overloaded("ZooKeeper is too slow")

        ports.store.before = lose
        return ports

    with pytest.raises(Overloaded):
        scene.delete(stopped)
    topics = scene.cluster.deletion_topics
    assert (scene.waiting, topics.retries) == (2, set())
    assert [json.loads(row.detail)["waiting"] for row in scene.cluster.journal.rows] == ["stopped", "no-object-store"]


def test_what_cannot_be_sent_back_stays_where_it_is_and_says_so(scene: Scene) -> None:
    scene.publish(copy_intent(scene, FLOOD[0]), copy_intent(scene, FLOOD[1]))

    def refuse(ports: Ports) -> Ports:
        ports.queue.refused.add(FLOOD[0])
        return ports

    stays, goes = scene.delete(refuse)
    assert (stays.outcome, stays.waiting, stays.sent_back) == (Outcome.WAITING, Waiting.NOT_SENT, False)
    assert "object_store is not set" in stays.reason
    assert (goes.outcome, goes.waiting, goes.sent_back) == (Outcome.WAITING, Waiting.NO_OBJECT_STORE, True)
    assert scene.waiting == 2


def test_the_time_that_a_message_waits_does_not_make_it_younger(scene: Scene) -> None:
    """A foreign message, without a time of its own, that names a ledger in use: a first phase is no longer at it."""
    info = PendingDeleteLedgerInfo(
        topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=scene.live
    )
    scene.put(info)
    assert outcomes(scene.delete(run_id="first")) == [Outcome.WAITING]
    scene.cluster.wait(2)
    assert outcomes(scene.delete(run_id="second")) == [Outcome.WAITING]  # no scan since
    scene.cluster.wait(0.6)
    scene.now = scan(scene.cluster, previous=[scene.now])
    assert outcomes(scene.delete(run_id="third")) == [Outcome.KEPT]


def test_what_was_deleted_is_journalled_though_the_retry_topic_cannot_be_asked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.publish(scene.intent(scene.data), scene.intent(scene.cursor))
    scene.cluster.zookeeper.unreadable.add(scene.cluster.path(scene.cursor))

    def silent(*_: object) -> list[Postponed]:
        raise Unavailable("the admin API does not answer")

    monkeypatch.setattr(FakeDeletionQueue, "reconsume_later", silent)
    outcomes = {d.info.ledger_id: d.outcome for d in scene.delete()}
    assert outcomes == {scene.data: Outcome.DELETED, scene.cursor: Outcome.WAITING}
    assert {row.ledger_id: row.outcome for row in scene.cluster.journal.rows[-2:]} == outcomes
    assert scene.waiting == 1


def test_a_ledger_that_we_took_out_of_its_topic_needs_neither_age_nor_an_earlier_scan(scene: Scene) -> None:
    cluster = scene.cluster
    young = cluster.ledger(data_tags(TOPIC))
    stat = cluster.zookeeper.stat(cluster.path(young))
    assert stat is not None
    info = PendingDeleteLedgerInfo(topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=young)
    marked_at = cluster.clock.now_ms()
    scene.publish(info, info, info)

    def delete_marked(czxid: int, at: int) -> Decision:
        (decision,) = delete(cluster, scene.now, scene.before, limit=1, marked={young: (czxid, at)})
        return decision

    other = delete_marked(stat.czxid + 1, marked_at)
    assert (other.outcome, "younger than the grace period" in other.reason) == (Outcome.KEPT, True)
    late = delete_marked(stat.czxid, scene.now.epoch.started_at)
    assert (late.outcome, late.reason) == (Outcome.WAITING, "no covered scan has started since it left its topic")
    assert delete_marked(stat.czxid, marked_at).outcome == Outcome.DELETED


def test_a_marked_ledger_that_something_refers_to_is_kept(scene: Scene) -> None:
    cluster = scene.cluster
    stat = cluster.zookeeper.stat(cluster.path(scene.live))
    assert stat is not None
    info = PendingDeleteLedgerInfo(
        topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=scene.live
    )
    scene.publish(info, info)
    just_now = scene.now.epoch.started_at - 1
    for marked_at, outcome in ((just_now, Outcome.RETRYING), (1, Outcome.KEPT)):
        (decision,) = delete(cluster, scene.now, scene.before, limit=1, marked={scene.live: (stat.czxid, marked_at)})
        assert (decision.outcome, cluster.exists(scene.live)) == (outcome, True)


@pytest.mark.parametrize("component", [LedgerComponent.MANAGED_LEDGER, LedgerComponent.COMPACTED_LEDGER])
@pytest.mark.parametrize("how", ["under-replicated", "open"])
def test_what_passes_by_itself_does_not_end_the_intent_of_a_marked_ledger(
    scene: Scene, how: str, component: LedgerComponent
) -> None:
    cluster = scene.cluster
    ledger = scene.data if component is LedgerComponent.MANAGED_LEDGER else scene.compacted
    stat = cluster.zookeeper.stat(cluster.path(ledger))
    assert stat is not None
    info = PendingDeleteLedgerInfo(topic_name=str(TOPIC), component=component, ledger_id=ledger)
    scene.publish(info, info)
    context = scene.now.context
    trouble = (
        replace(context, under_replicated=BitMap64([ledger]))
        if how == "under-replicated"
        else replace(context, open_topics=frozenset({str(TOPIC)}))
    )
    troubled = replace(scene.now, context=trouble)
    marked = {ledger: (stat.czxid, scene.now.epoch.started_at - 1)}
    (ours,) = delete(cluster, troubled, scene.before, limit=1, marked=marked)
    assert (ours.outcome, how in ours.reason) == (Outcome.RETRYING, True)
    (foreign,) = delete(cluster, troubled, scene.before, limit=1)
    assert (foreign.outcome, cluster.exists(ledger)) == (Outcome.KEPT, True)
    scene.again()
    assert outcomes(delete(cluster, scene.now, scene.before, marked=marked)) == [Outcome.DELETED]


def test_a_hold_ends_the_intent_of_a_marked_ledger_that_is_under_replicated_too(scene: Scene) -> None:
    cluster = scene.cluster
    stat = cluster.zookeeper.stat(cluster.path(scene.data))
    assert stat is not None
    scene.publish(
        PendingDeleteLedgerInfo(topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=scene.data)
    )
    thin = replace(scene.now, context=replace(scene.now.context, under_replicated=BitMap64([scene.data])))
    held = Policy(holds=frozenset({str(TOPIC)}))
    (decision,) = delete(cluster, thin, scene.before, held, marked={scene.data: (stat.czxid, 1)})
    assert (decision.outcome, cluster.exists(scene.data)) == (Outcome.KEPT, True)


def test_a_foreign_first_phase_that_the_scan_caught_half_way_is_retried(scene: Scene) -> None:
    cluster = scene.cluster
    info = PendingDeleteLedgerInfo(
        topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=scene.data
    )
    cluster.topic(TOPIC, [scene.data, scene.live])
    cluster.wait(25)
    scene.before = scan(cluster)
    cluster.wait(25)
    scene.put(info)
    cluster.clock.sleep(1)
    scene.now = scan(cluster, previous=[scene.before])
    cluster.topic(TOPIC, [scene.live])
    cluster.clock.sleep(1)
    (decision,) = scene.delete()
    assert (decision.outcome, decision.reason) == (Outcome.RETRYING, "still in use: something refers to it")
    scene.policy = Policy(max_shrinkage=1)  # what the topic listed is missed
    scene.again()
    assert (
        scene.delete()[0].outcome == Outcome.KEPT
    )  # the earlier scan found it listed; the orphan scan goes on looking
    assert cluster.exists(scene.data)


def test_of_a_plan_that_is_worked_off_without_messages_nothing_waits(scene: Scene) -> None:
    cluster = scene.cluster
    rows = scene.now.findings
    wanted = {scene.data: Outcome.NOT_DELETED, scene.cursor: Outcome.DELETED}
    rows = rows.filter([i in wanted for i in rows.column("ledger_id").to_pylist()])
    sent_at = cluster.clock.now_ms()
    cluster.wait(2)
    scene.now = scan(cluster, previous=[scene.now])

    def trouble(ports: Ports) -> Ports:
        def change(operation: Operation) -> None:
            if operation.name == "delete_many":
                ports.store.before = lambda operation: None
                path = cluster.path(scene.data)
                cluster.put(path, cluster.zookeeper.data(path))

        ports.store.before = change
        ports.queue = PlanQueue(rows, "plan", sent_at)
        return ports

    decisions = scene.delete(trouble)
    assert {d.info.ledger_id: d.outcome for d in decisions} == wanted
    assert {row.ledger_id: row.outcome for row in cluster.journal.rows} == wanted
    (row,) = [row for row in cluster.journal.rows if row.outcome == Outcome.NOT_DELETED]
    assert row.reason == "its z-node was changed meanwhile; apply the plan again"
