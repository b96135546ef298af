"""What the owner of a ledger says at the moment of its deletion."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pulsar_lifecycle.deletion.batch import work_off
from pulsar_lifecycle.errors import (
    CorruptFormat,
    Failed,
    LifecycleError,
    Unavailable,
)
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    PendingDeleteLedgerInfo,
)
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicInternals
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.topic_load import CompactionStatus
from tests.kit.scenes.batch_scene import TOPIC, outcomes
from tests.kit.scenes.batch_scene import BatchScene as Scene
from tests.kit.simulated.cluster import (
    BROKER,
    cursor_tags,
    data_tags,
    schema_tags,
)
from tests.kit.simulated.pipeline import Policy, begun, delete, scan

NEW = Topic.parse("persistent://acme/orders/new")


@pytest.fixture
def scene() -> Scene:
    return Scene()


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


def load(
    scene: Scene,
    *held: int,
    state: LedgerState = LedgerState.OPEN,
    compaction: CompactionStatus = CompactionStatus.NOT_RUN,
) -> None:
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
    [
        (CompactionStatus.NOT_RUN, Outcome.DELETED),
        (CompactionStatus.SUCCESS, Outcome.DELETED),
        (CompactionStatus.RUNNING, Outcome.KEPT),
        (CompactionStatus.ERROR, Outcome.KEPT),
    ],
)
def test_of_a_loaded_topic_compaction_and_delayed_index_are_asked(
    scene: Scene, compaction: CompactionStatus, compacted: str
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
    assert "unload it, or have a client publish to it" in decision.reason


def test_a_topic_written_just_now_may_be_loading(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data), scene.intent(scene.compacted))
    scene.cluster.topic(TOPIC, [scene.live])
    decisions = scene.delete()
    assert outcomes(decisions) == [Outcome.RETRYING, Outcome.RETRYING]
    assert [d.code for d in decisions] == [Code.NOT_KNOWN_YET] * 2


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

    def no_answer(ports: Ports) -> Ports:
        scene.cluster.admin.failure = error
        return ports

    assert outcomes(scene.delete(no_answer)) == [Outcome.RETRYING] * 4
    assert scene.cluster.ledger_ids() >= scene.orphans


@pytest.mark.parametrize("since", ["the scan", "the scan has ended"])
def test_a_broker_that_never_says_what_it_holds_of_a_topic_keeps_all_of_it(scene: Scene, since: str) -> None:
    """Known to the run's scan, nothing fails and nothing is tried again; later it is as any broker that fails."""
    scene.publish(*(scene.intent(i) for i in sorted(scene.orphans)))
    load(scene)
    scene.cluster.topic(NEW, [scene.cluster.ledger(data_tags(NEW), state=LedgerState.OPEN)])
    scene.cluster.load(NEW)
    scene.cluster.cursor(TOPIC, "__compaction")
    unanswered = {TOPIC: Failed("GET internalStats: 500")}

    def no_answer(ports: Ports) -> Ports:
        scene.cluster.admin.unanswered = unanswered
        return ports

    scene.cluster.admin.unanswered = unanswered if since == "the scan" else {}
    scene.again()
    assert scene.now.epoch.gaps == ()
    found = {d.info.ledger_id: d.outcome for d in scene.delete(no_answer)}
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
        cluster.reader.failures[held] = Unavailable("no bookie answers")
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
    assert [(d.outcome, d.code) for d in decisions] == [(Outcome.KEPT, Finding.TOO_YOUNG)]
