"""What a batch retries, sends back to wait or makes a dead letter; ledgers that our own runs marked."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.deletion.decision import Decision
from pulsar_lifecycle.deletion.workers import PlanQueue
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC
from pulsar_lifecycle.errors import (
    Failed,
    Overloaded,
    Unavailable,
)
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    LedgerType,
    MessageOffloadContext,
    PendingDeleteLedgerInfo,
)
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Outcome, Waiting
from tests.kit.crash import Crash
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.batch_scene import TOPIC, outcomes, watched
from tests.kit.scenes.batch_scene import BatchScene as Scene
from tests.kit.simulated.cluster import (
    data_tags,
)
from tests.kit.simulated.pipeline import MAX_RETRIES, Policy, delete, scan, two_scans


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_what_fails_is_retried_and_after_the_last_retry_dead_lettered(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data))
    unreadable, path = scene.cluster.zookeeper.unreadable, scene.cluster.topic_path(TOPIC)

    def fresh() -> Decision:
        unreadable.add(path)
        (decision,) = scene.delete()
        unreadable.remove(path)
        scene.again()
        return decision

    for times in range(1, MAX_RETRIES + 1):
        decision = fresh()
        assert (decision.outcome, scene.cluster.journal.rows[-1].outcome) == (Outcome.RETRYING, Outcome.RETRYING)
        assert json.loads(scene.cluster.journal.rows[-1].detail)["reconsume_times"] == times
    decision = fresh()
    assert decision.outcome == Outcome.DEAD_LETTERED
    assert decision.code is Code.UNREAD
    assert str(MAX_RETRIES) in decision.reason
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
    cluster.admin.unanswered[quiet] = Failed("500: the schema locator")
    found: list[str] = []
    for _ in range(MAX_RETRIES + 1):
        (decision,) = scene.delete()
        assert decision.code is Code.UNREAD
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
    assert (decision.outcome, decision.code) == (Outcome.WAITING, Waiting.NOT_SENT)
    assert "; it could not be sent to the retry topic: " in decision.reason
    assert scene.waiting == 1


def copy_intent(scene: Scene, ledger_id: int) -> PendingDeleteLedgerInfo:
    """A message that must wait, for no object store is declared."""
    context = MessageOffloadContext(lsb=1, msb=2, driver_name="aws-s3")
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
    assert (stays.code, goes.code) == (Waiting.NOT_SENT, Waiting.NO_OBJECT_STORE)
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


def test_what_was_deleted_is_journalled_though_the_retry_topic_cannot_be_asked(scene: Scene) -> None:
    scene.publish(scene.intent(scene.data), scene.intent(scene.cursor))
    scene.cluster.zookeeper.unreadable.add(scene.cluster.path(scene.cursor))

    def unanswered(step: str) -> None:
        if step == "before queue.reconsume_later":
            raise Unavailable("the admin API does not answer")

    outcomes = {d.info.ledger_id: d.outcome for d in scene.delete(watched(unanswered))}
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
        (decision,) = delete(cluster, scene.now, scene.before, limit=1, marked={(young, czxid): at})
        return decision

    other = delete_marked(stat.czxid + 1, marked_at)
    assert (other.outcome, other.code) == (Outcome.KEPT, Finding.TOO_YOUNG)
    late = delete_marked(stat.czxid, scene.now.epoch.started_at)
    assert (late.outcome, late.code) == (Outcome.WAITING, Waiting.NO_SCAN)
    assert delete_marked(stat.czxid, marked_at).outcome == Outcome.DELETED


def test_before_a_second_scan_only_what_we_took_out_of_its_topic_goes(scene: Scene) -> None:
    cluster = scene.cluster
    stat = cluster.zookeeper.stat(cluster.path(scene.data))
    assert stat is not None
    scene.publish(scene.intent(scene.data), scene.intent(scene.cursor))
    marked = {(scene.data, stat.czxid): scene.now.epoch.started_at - 1}
    decided = {d.info.ledger_id: d for d in delete(cluster, scene.now, scene.now, marked=marked)}
    assert decided[scene.data].outcome == Outcome.DELETED
    other = decided[scene.cursor]
    assert (other.outcome, other.code) == (Outcome.WAITING, Waiting.NO_EARLIER_SCAN)
    assert cluster.exists(scene.cursor)
    assert scene.waiting == 1


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
        (decision,) = delete(cluster, scene.now, scene.before, limit=1, marked={(scene.live, stat.czxid): marked_at})
        assert (decision.outcome, cluster.exists(scene.live)) == (outcome, True)


def test_a_marked_ledger_that_somebody_opens_for_recovery_is_retried(scene: Scene) -> None:
    cluster = scene.cluster
    ledger = cluster.ledger(data_tags(TOPIC), state=LedgerState.IN_RECOVERY)
    stat = cluster.zookeeper.stat(cluster.path(ledger))
    assert stat is not None
    scene.publish(
        PendingDeleteLedgerInfo(topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=ledger)
    )
    (ours,) = delete(cluster, scene.now, scene.before, marked={(ledger, stat.czxid): scene.now.epoch.started_at - 1})
    assert (ours.outcome, ours.code) == (Outcome.RETRYING, Finding.OPEN_ORPHAN)
    assert cluster.exists(ledger)


@pytest.mark.parametrize("component", [LedgerComponent.MANAGED_LEDGER, LedgerComponent.COMPACTED_LEDGER])
@pytest.mark.parametrize("code", [Code.UNDER_REPLICATED, Code.OTHER_OPEN])
def test_what_passes_by_itself_does_not_end_the_intent_of_a_marked_ledger(
    scene: Scene, code: Code, component: LedgerComponent
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
        if code is Code.UNDER_REPLICATED
        else replace(context, open_topics=frozenset({str(TOPIC)}))
    )
    troubled = replace(scene.now, context=trouble)
    marked = {(ledger, stat.czxid): scene.now.epoch.started_at - 1}
    (ours,) = delete(cluster, troubled, scene.before, limit=1, marked=marked)
    assert (ours.outcome, ours.code) == (Outcome.RETRYING, code)
    (foreign,) = delete(cluster, troubled, scene.before, limit=1)
    assert (foreign.outcome, cluster.exists(ledger)) == (Outcome.KEPT, True)
    scene.again()
    assert outcomes(delete(cluster, scene.now, scene.before, marked=marked)) == [Outcome.DELETED]


def test_what_we_took_off_goes_beside_the_open_ledger_of_a_load_that_our_write_came_before(scene: Scene) -> None:
    """What nobody is known to have taken off stays: it may be of another cluster's topic of the name."""
    cluster, owner = scene.cluster, frozenset({str(TOPIC)})
    stat = cluster.zookeeper.stat(cluster.path(scene.data))
    assert stat is not None
    info = PendingDeleteLedgerInfo(
        topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=scene.data
    )
    scene.publish(info, info)
    now = replace(scene.now, context=replace(scene.now.context, open_topics=owner, overtaken_topics=owner))
    (foreign,) = delete(cluster, now, scene.before, limit=1)
    assert (foreign.outcome, foreign.code) == (Outcome.KEPT, Code.OTHER_OPEN)
    marked = {(scene.data, stat.czxid): now.epoch.started_at - 1}
    assert outcomes(delete(cluster, now, scene.before, marked=marked)) == [Outcome.DELETED]
    assert not cluster.exists(scene.data)


def test_a_hold_ends_the_intent_of_a_marked_ledger_that_is_under_replicated_too(scene: Scene) -> None:
    cluster = scene.cluster
    stat = cluster.zookeeper.stat(cluster.path(scene.data))
    assert stat is not None
    scene.publish(
        PendingDeleteLedgerInfo(topic_name=str(TOPIC), component=LedgerComponent.MANAGED_LEDGER, ledger_id=scene.data)
    )
    thin = replace(scene.now, context=replace(scene.now.context, under_replicated=BitMap64([scene.data])))
    held = Policy(holds=frozenset({str(TOPIC)}))
    (decision,) = delete(cluster, thin, scene.before, held, marked={(scene.data, stat.czxid): 1})
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
    assert (decision.outcome, decision.code) == (Outcome.RETRYING, Code.STILL_IN_USE)
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
    assert row.code == Waiting.NOT_SENT
    assert row.reason.endswith("; apply the plan again")
