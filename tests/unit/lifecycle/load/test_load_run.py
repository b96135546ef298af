"""Applying a load plan: topics are loaded, freed and unloaded again; what changed since stays, and what is not ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.inspect.settled import PlanEnd, ended_plans
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.lifecycle.load.visit import LoadStep
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Lowered, Order
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.refused import refused_by
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, expired, pending, planned
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import MB, MINUTE, NAMESPACE

A = Topic.parse(f"{OWN}a")


def test_a_last_ledger_becomes_one_before_the_last_and_the_topic_is_unloaded(scene: LoadScene) -> None:
    first, last = expired(scene)
    plan = planned(scene, "a")
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.DONE, LoadStep.IN_METADATA)
    now = scene.info("a").ledgers
    assert [item.ledger_id for item in now][:-1] == [last]
    assert scene.trimmed == [first]
    assert not scene.is_loaded("a")
    assert pending(scene) == []
    assert one.second_visit_at == (now[0].timestamp or 0) + 60 * MINUTE


def test_the_second_visit_counts_from_when_the_broker_closed_the_ledger(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    load = scene.servers.admin.on_load

    def slowly(topic: Topic) -> None:
        scene.servers.clock.advance(7)
        load(topic)

    scene.servers.admin.on_load = slowly
    (one,) = applied(scene, plan)
    assert one.second_visit_at == (scene.info("a").ledgers[0].timestamp or 0) + 60 * MINUTE


def test_the_second_visit_goes_by_metadata_when_the_plan_says(scene: LoadScene) -> None:
    from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan

    _, last = expired(scene)
    (one,) = applied(scene, planned(scene, "a"))
    assert one.second_visit_at is not None
    scene.servers.clock.advance((one.second_visit_at - scene.now) / 1000 - 3600)  # the scan lets an hour pass
    assert make_retention_plan(scene.cluster, scene.scan())[1].num_rows == 0
    scene.servers.clock.advance(-3600 + 60)
    _, rows = make_retention_plan(scene.cluster, scene.scan())
    assert rows.column("ledger_id").to_pylist() == [last]


def test_each_step_is_journalled_before_and_after(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    applied(scene, plan)
    rows = [(row.phase, row.outcome, row.code) for row in scene.servers.journal.rows if row.action is Action.LOAD_TOPIC]
    assert rows == [
        (phase, outcome, code)
        for phase in ("load", "trim", "unload")
        for outcome, code in (("begun", "about_to"), ("done", "in_metadata"))
    ]
    assert {row.plan_id for row in scene.servers.journal.rows if row.action is Action.LOAD_TOPIC} == {plan.plan_id}


def test_an_open_ledger_is_closed(scene: LoadScene) -> None:
    ledger = scene.open_topic("a")
    scene.servers.wait(2)
    (one,) = applied(scene, planned(scene, "a"))
    assert one.outcome is Outcome.DONE
    assert scene.info("a").ledgers[0].ledger_id == ledger
    assert scene.servers.reader.payloads[ledger]
    assert one.second_visit_at is not None


def test_ledgers_that_were_not_to_go_are_named(scene: LoadScene) -> None:
    """Something else than retention and TTL acts on the topic."""
    scene.retention(600, -1)
    ids = scene.topic("a", 700, 690, 20)
    scene.servers.cursor(A, "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=695 * 60)
    plan = planned(scene, "a")
    trim = scene.servers.admin.on_trim

    def greedy(topic: Topic) -> None:
        trim(topic)
        path = scene.servers.topic_path(topic)
        info = managed_ledger.decode(scene.servers.zookeeper.data(path))
        scene.servers.put(path, managed_ledger.encode(replace(info, ledgers=info.ledgers[1:])))

    scene.servers.admin.on_trim = greedy
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.DONE, LoadStep.MORE_WENT)
    assert f"[{ids[2]}]" in one.why.text  # an hour later the second is past its TTL, too
    last = [row.code for row in scene.servers.journal.rows if row.phase == Phase.UNLOAD][-1]
    assert last == LoadStep.MORE_WENT


@pytest.mark.parametrize(("seconds", "expected"), [(61, LoadStep.IN_METADATA), (1, LoadStep.MORE_WENT)])
def test_a_last_ledger_may_go_in_a_visit_longer_than_its_retention(
    scene: LoadScene, seconds: int, expected: LoadStep
) -> None:
    """A load makes it as young as itself; its broker trims it once that is too long ago."""
    scene.retention(1, -1)
    first, last = expired(scene)
    plan = planned(scene, "a")
    unload = scene.servers.admin.on_unload

    def late(topic: Topic) -> None:
        scene.servers.clock.advance(seconds)
        path = scene.servers.topic_path(topic)
        info = managed_ledger.decode(scene.servers.zookeeper.data(path))
        scene.servers.put(path, managed_ledger.encode(replace(info, ledgers=info.ledgers[1:])))
        unload(topic)

    scene.servers.admin.on_unload = late
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.DONE, expected)
    assert not {first, last} & set(scene.listed("a"))


def test_ledgers_that_were_to_go_and_stay_are_named(scene: LoadScene) -> None:
    """A subscription was made while the topic was loaded."""
    first, _ = expired(scene)
    plan = planned(scene, "a")
    load = scene.servers.admin.on_load

    def subscribed(topic: Topic) -> None:
        load(topic)
        scene.servers.cursor(topic, "new", at=first)

    scene.servers.admin.on_load = subscribed
    (one,) = applied(scene, plan)
    assert (one.outcome, one.why.code) == (Outcome.DONE, LoadStep.LESS_WENT)
    assert f"[{first}]" in one.why.text


def test_what_is_past_its_ttl_is_expired_and_goes(scene: LoadScene) -> None:
    ids = scene.topic("a", 330, 240, 0)
    scene.servers.cursor(A, "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=3 * 3600)
    plan = planned(scene, "a")
    (one,) = applied(scene, plan)
    assert one.outcome is Outcome.DONE
    assert scene.listed("a")[0] == ids[2]
    assert one.freed == 2 << 20


def test_a_subscription_that_brokers_never_expire_keeps_its_messages(scene: LoadScene) -> None:
    scene.configure(additionalSystemCursorNames="[s]")
    scene.change(min_bytes=0)
    ids = scene.topic("a", 330, 240, 0)
    for name in ("s", "t"):
        scene.servers.cursor(A, name, at=ids[0])
    scene.namespace(message_ttl_in_seconds=3 * 3600)
    told: list[str] = []
    scene.servers.admin.on_expire = lambda topic, name, seconds: told.append(name)
    applied(scene, planned(scene, "a"))
    assert set(told) == {"t"}
    assert scene.listed("a")[:3] == ids


@pytest.mark.parametrize("by", [None, "another"])
def test_a_plan_has_ended_once_none_of_its_topics_needs_a_load(scene: LoadScene, by: str | None) -> None:
    """By its own run, or as that finds that another program had the topic loaded and trimmed."""
    expired(scene)
    plan = planned(scene, "a")
    if by:
        before = scene.servers.journal.rows[:]
        applied(scene, plan)
        scene.servers.journal.rows[:] = before
        scene.servers.clock.advance(600)
    assert ended_plans(scene.cluster, [plan], scene.now) == {}
    (one,) = applied(scene, plan)
    assert one.why.code is (LoadKept.NEEDS_NO_BROKER if by else LoadStep.IN_METADATA)
    assert ended_plans(scene.cluster, [plan], scene.now) == {plan.plan_id: PlanEnd.SETTLED}


def test_a_plan_has_ended_once_a_run_has_found_its_topics_gone(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    store, path = scene.servers.open_store(), scene.servers.topic_path(A)
    scene.servers.zookeeper.unreadable.add(path)
    assert kept(scene, plan) is Code.TOPIC_UNREAD
    assert ended_plans(scene.cluster, [plan], scene.now) == {}
    scene.servers.zookeeper.unreadable.clear()
    for node in (f"{path}/s", path):
        store.delete(node, -1)
    assert kept(scene, plan) is Code.TOPIC_GONE
    assert ended_plans(scene.cluster, [plan], scene.now) == {plan.plan_id: PlanEnd.SETTLED}


def test_a_dry_run_writes_and_loads_nothing(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    before = scene.servers.zookeeper.zxid
    (one,) = applied(scene, plan, dry_run=True)
    assert (one.outcome, one.why.code) == (Outcome.GOES, Code.MAY_GO)
    assert scene.servers.zookeeper.zxid == before
    assert scene.servers.admin.touched == []


def kept(scene: LoadScene, plan: PlanSummary) -> object:
    """Why the only topic is left alone, by a dry run and by a run; nothing was loaded."""
    (dry,) = applied(scene, plan, dry_run=True)
    (one,) = applied(scene, plan)
    assert (dry.outcome, one.outcome) == (Outcome.LEFT, Outcome.LEFT)
    assert dry.why.code is one.why.code
    assert scene.servers.admin.touched == []
    assert pending(scene) == []
    return one.why.code


def test_a_policy_that_changed_keeps_the_topic(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    scene.retention(59, -1)
    assert kept(scene, plan) is Code.CHANGED_SINCE_PLAN


def test_a_ttl_that_changed_keeps_the_topic(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    scene.namespace(message_ttl_in_seconds=1)
    assert kept(scene, plan) is Code.CHANGED_SINCE_PLAN


def test_a_cursor_that_moved_back_keeps_the_topic(scene: LoadScene) -> None:
    ids = expired(scene)
    plan = planned(scene, "a")
    scene.position("a", Position(ids[0], 0))
    assert kept(scene, plan) is Code.CHANGED_SINCE_PLAN


def test_a_topic_that_somebody_has_loaded_is_left_to_him(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    scene.servers.load(A)
    assert str(kept(scene, plan)) == "loaded"


def test_a_legal_hold_since_the_plan_keeps_the_topic(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    orphans = scene.settings.orphans.model_copy(update={"legal_holds": type(scene.settings.orphans)(
        legal_holds=("acme",)  # type: ignore[arg-type]
    ).legal_holds})  # fmt: skip
    object.__setattr__(scene.cluster, "settings", scene.settings.model_copy(update={"orphans": orphans}))
    assert str(kept(scene, plan)) == "legal_hold"


def test_what_brokers_would_do_is_asked_again(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    scene.namespace(subscription_expiration_time_minutes=10)
    assert kept(scene, plan) is LoadKept.SUBSCRIPTION_WOULD_EXPIRE


def test_a_broker_that_is_busy_gets_nothing_to_load(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    scene.servers.admin.used = dict.fromkeys(scene.servers.admin.broker_ids, 0.71)
    assert kept(scene, plan) is LoadKept.BROKER_BUSY


def test_a_bundle_that_was_moved_lately_is_left(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    store = scene.servers.open_store()
    store.delete(f"/namespace/{NAMESPACE}/0x00000000_0xffffffff", -1)
    scene.own()
    assert kept(scene, plan) is LoadKept.BUNDLE_MOVED


def test_budgets_of_brokers_and_bundles_hold(scene: LoadScene) -> None:
    for name in "abc":
        expired(scene, name)
    plan = planned(scene, *"abc")
    scene.change(max_per_bundle=2, at_once=1)
    found = applied(scene, plan)
    assert [one.outcome for one in found] == [Outcome.DONE, Outcome.DONE, Outcome.LEFT]
    assert found[-1].why.code is LoadKept.BUDGET_SPENT


def test_a_run_refuses_while_another_one_acts(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    other = scene.servers.open_store()
    control.take_lease(other, "other", scene.servers.clock, 0)
    with refused_by(RefusalCode.LEASE_HELD):
        applied(scene, plan)


def test_caps_hold(scene: LoadScene) -> None:
    expired(scene)
    expired(scene, "b")
    plan = planned(scene, "a", "b")
    with refused_by(RefusalCode.MAX_LEDGERS):
        applied(scene, plan, caps=Lowered(max_ledgers=3))
    assert len(applied(scene, plan, caps=Lowered(max_ledgers=3), limit=1)) == 1


def test_the_cap_of_bytes_counts_every_replica(scene: LoadScene) -> None:
    scene.retention(0, -1)
    scene.servers.replicate(scene.topic("a", 100, 90, cursor=1), 3, MB)
    plan = planned(scene, "a")
    assert (plan.logical_bytes, plan.physical_bytes) == (MB, 3 * MB)  # of the last: the first goes by metadata
    with refused_by(RefusalCode.MAX_BYTES):  # yet its broker takes both
        applied(scene, plan, caps=Lowered(max_bytes=6 * MB - 1))
    (one,) = applied(scene, plan, caps=Lowered(max_bytes=6 * MB))
    assert one.outcome is Outcome.DONE
    assert len(scene.trimmed) == 2


def test_the_cap_of_ledgers_counts_all_that_its_broker_trims(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    for name in ("max_ledgers", "max_ledgers_per_topic"):
        with refused_by(RefusalCode(name)):
            applied(scene, plan, caps=Lowered(**{name: 1}))
    assert scene.trimmed == []


@pytest.mark.parametrize(("ledgers", "expected"), [(2, Outcome.LEFT), (3, Outcome.DONE)])
def test_what_is_due_since_the_plan_counts_too(scene: LoadScene, ledgers: int, expected: Outcome) -> None:
    """A second ledger is past its TTL by the time the plan is applied, and the third one may be."""
    scene.retention(0, -1)
    ids = scene.topic("a", 330, 150, 0)
    scene.servers.cursor(A, "s", at=ids[0])
    scene.namespace(message_ttl_in_seconds=5 * 3600)
    plan = planned(scene, "a")
    assert plan.logical_bytes == MB
    scene.servers.wait(1)
    (dry,) = applied(scene, plan, caps=Lowered(max_ledgers=ledgers), dry_run=True)
    (one,) = applied(scene, plan, caps=Lowered(max_ledgers=ledgers))
    assert (one.outcome, dry.outcome is Outcome.LEFT) == (expected, expected is Outcome.LEFT)
    if expected is Outcome.LEFT:
        assert (one.why.code, scene.trimmed, pending(scene)) == (Code.CHANGED_SINCE_PLAN, [], [])


def test_another_digest_or_an_old_plan_is_refused(scene: LoadScene) -> None:
    expired(scene)
    plan = planned(scene, "a")
    with refused_by(RefusalCode.PLAN_DIFFERS):
        load_topics(scene.cluster, "run", Order(plan.plan_id, "other"), dry_run=False)
    scene.servers.wait(25)
    with refused_by(RefusalCode.PLAN_EXPIRED):
        applied(scene, plan)
