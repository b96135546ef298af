"""Inactive subscriptions of topics that no broker has: a load plan names them, a visit deletes those unused since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.errors import OutcomeUnknown, Paused
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.lifecycle.load.load_planning import make_load_plan
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visit import LoadStep
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import TopicConnections
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Lowered
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.plans import load_plan
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.crash import killed_at_unsubscribe
from tests.kit.refused import refused_by
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene, kept
from tests.kit.scenes.lifecycle.inactive_loads import PARTITIONS, chosen, deletions, plan, said, there, unused
from tests.kit.scenes.lifecycle.load_runs import applied, killed, pending, stored
from tests.kit.scenes.retention_scene import MB, NAMESPACE
from tests.kit.simulated.cluster import data_tags


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    return chosen(ActivityScene(tmp_path, monkeypatch))


# ---------------------------------------------------------------------------------------------------------- the plan


def test_a_plan_names_it_and_what_goes_with_it(scene: ActivityScene) -> None:
    ids = unused(scene, "a")["a"]
    _, (row,) = plan(scene)
    assert (row["needs"], row["inactive_subscriptions"]) == (["last_ledger_expired", "subscription_inactive"], ["s"])
    assert (row["expired_subscriptions"], row["trims"]) == ([], ids)
    assert (row["bytes"], row["weights"]) == (MB + 10, [MB, 10])


def test_one_that_holds_nothing_back_is_reason_enough_for_a_load(scene: ActivityScene) -> None:
    unused(scene, "a", read=True)
    scene.retention(-1, -1)
    scene.change(min_bytes=MB)
    _, (row,) = plan(scene)
    assert (row["needs"], row["bytes"], row["kept"]) == (["subscription_inactive"], 0, None)


@pytest.mark.parametrize(
    "changed",
    [
        lambda scene: scene.change(inactive_subscriptions=()),
        lambda scene: scene.choose(subscriptions=()),
        lambda scene: scene.choose(kept_subscriptions=("s",)),
        lambda scene: scene.configure(additionalSystemCursorNames="[s]"),
        lambda scene: scene.clients("a"),
    ],
)
def test_what_is_not_ordered_or_needs_no_load_is_not_named(
    scene: ActivityScene, changed: Callable[[ActivityScene], None]
) -> None:
    unused(scene, "a")
    scene.days(1)
    changed(scene)
    assert plan(scene)[1] == []
    assert stored(scene).get("a", {"inactive_subscriptions": []})["inactive_subscriptions"] == []


def test_a_scan_without_a_plan_of_them_has_none(scene: ActivityScene) -> None:
    unused(scene, "a")
    plan(scene)
    _, rows = make_load_plan(scene.cluster, scene.scan())
    assert rows.num_rows == 0


def test_a_report_only_plan_of_them_has_none(scene: ActivityScene) -> None:
    """A period below a day counts in the sandbox alone."""
    unused(scene, "a")
    scene.choose(period=86_399.0)
    scene.servers.remove(control.SANDBOX)
    assert plan(scene)[1] == []


def test_a_newer_report_only_plan_of_them_ends_an_older_one(scene: ActivityScene) -> None:
    unused(scene, "a")
    assert len(plan(scene)[1]) == 1
    kept = scene.lake.inactive_plans_kept
    newest = next(one for one, _ in kept.values() if kind_of(one.plan_id) is PlanKind.INACTIVE_SUBSCRIPTIONS)
    later = replace(newest, plan_id=f"{newest.plan_id}0", created_at=newest.created_at + 1, actionable=False)
    scene.lake.store_inactive_plan(later, kept[newest.plan_id][1])
    assert scene.epoch
    assert make_load_plan(scene.cluster, scene.epoch)[1].num_rows == 0


def test_a_plan_of_them_whose_rows_were_changed_is_refused(scene: ActivityScene) -> None:
    unused(scene, "a")
    plan(scene)
    kept = scene.lake.inactive_plans_kept
    for name, (summary, rows) in kept.items():
        kept[name] = summary, rows.slice(1)
    assert scene.epoch
    with refused_by(RefusalCode.PLAN_DIFFERS):
        make_load_plan(scene.cluster, scene.epoch)


def test_caps_count_each_that_goes(scene: ActivityScene) -> None:
    """Though it frees nothing."""
    unused(scene, "a", "b", read=True)
    scene.retention(-1, -1)
    made, rows = plan(scene)
    assert [row["weights"] for row in rows] == [[], []]
    with refused_by(RefusalCode.MAX_LEDGERS):
        applied(scene, made, caps=Lowered(max_ledgers=1))
    assert len(applied(scene, made, caps=Lowered(max_ledgers=2))) == 2


def test_what_grew_counts_with_each_that_goes() -> None:
    row = {"weights": [5], "expired_subscriptions": ["e"], "inactive_subscriptions": ["s", "t"]}
    a, b = (Topic.parse(f"persistent://{NAMESPACE}/{name}") for name in "ab")
    found = load_plan.weighed({a: row, b: row}, {b: [7, 8]})
    assert found.column("topic").to_pylist() == [str(a)] * 4 + [str(b)] * 5
    assert found.column("physical_bytes").to_pylist() == [5, 0, 0, 0, 7, 8, 0, 0, 0]


def test_the_last_one_stays_where_its_broker_would_then_delete_the_topic(scene: ActivityScene) -> None:
    unused(scene, "a")
    scene.configure(brokerDeleteInactiveTopicsEnabled="true")
    assert plan(scene)[1] == []
    assert stored(scene)["a"]["kept"] == LoadKept.TOPIC_WOULD_BE_DELETED
    scene.change(topic_deletion=(NAMESPACE,))
    assert len(plan(scene, days=0)[1]) == 1


def test_a_topic_that_is_kept_for_its_sake_is_loaded_for_what_else_it_needs(scene: ActivityScene) -> None:
    ids = unused(scene, "a", read=True)["a"]
    scene.configure(brokerDeleteInactiveTopicsEnabled="true")
    made, (row,) = plan(scene)
    assert (row["needs"], row["inactive_subscriptions"], row["trims"]) == (["last_ledger_expired"], [], ids)
    assert said(applied(scene, made)) == {"a": (Outcome.DONE, LoadStep.IN_METADATA, ())}
    assert there(scene, "a") == {"s"}


# --------------------------------------------------------------------------------------------------------- the visit


def test_a_visit_deletes_it_trims_and_unloads(scene: ActivityScene) -> None:
    ids = unused(scene, "a")["a"]
    made, _ = plan(scene)
    assert said(applied(scene, made, dry_run=True)) == {"a": (Outcome.GOES, Code.MAY_GO, ("s",))}
    assert there(scene, "a") == {"s"}
    assert said(applied(scene, made)) == {"a": (Outcome.DONE, LoadStep.IN_METADATA, ("s",))}
    assert there(scene, "a") == set()
    assert scene.trimmed == ids
    assert not scene.is_loaded("a")
    assert pending(scene) == []
    assert deletions(scene) == [(Outcome.BEGUN, Code.ABOUT_TO), (Outcome.DONE, Code.BROKER_DELETED)]


def connected(scene: ActivityScene) -> None:
    scene.servers.admin.clients[scene.named("a")] = TopicConnections(0, {"s": 1}, 0)


def consumed(scene: ActivityScene) -> None:
    scene.servers.admin.used_at[scene.named("a"), "s"] = scene.now


@pytest.mark.parametrize(
    ("does", "code"),
    [
        (connected, InactiveKept.USED_LATELY),
        (consumed, InactiveKept.USED_LATELY),
        (lambda scene: scene.at("a", "s", Position(scene.listed("a")[0], 0)), Code.CHANGED_MEANWHILE),
    ],
)
def test_one_that_is_used_since_the_load_stays(
    scene: ActivityScene, does: Callable[[ActivityScene], None], code: Any
) -> None:
    unused(scene, "a")
    made, _ = plan(scene)
    load = scene.servers.admin.on_load

    def then(topic: Any) -> None:
        load(topic)
        does(scene)

    scene.servers.admin.on_load = then
    assert said(applied(scene, made)) == {"a": (Outcome.DONE, LoadStep.LESS_WENT, ())}
    assert there(scene, "a") == {"s"}
    assert deletions(scene)[-1] == (Outcome.LEFT, code)
    assert not scene.is_loaded("a")


def in_a_ledger(scene: ActivityScene, **properties: int) -> int:
    """What is persisted of the subscription is in a cursor ledger; the z-node has no property. Returns the ledger."""
    at = Position(scene.listed("a")[0], -1)
    ledger = scene.servers.ledger(data_tags(scene.named("a")), entries=[last_entry(scene, **properties)])
    scene.servers.put(scene.cursor_path("a", "s"), cursor_format.encode(cursor_format.ManagedCursorInfo(ledger, at)))
    return ledger


def last_entry(scene: ActivityScene, **properties: int) -> bytes:
    at = Position(scene.listed("a")[0], -1)
    return cursor_format.encode_position(cursor_format.PositionInfo(at, properties=properties))


def test_plans_keep_a_replicated_one_whatever_its_z_node_says(scene: ActivityScene) -> None:
    """Both plans: no load is made in vain for one that stays at its visit."""
    unused(scene, "a")
    ledger = in_a_ledger(scene, **{cursor_format.REPLICATED_PROPERTY: 1})
    assert plan(scene)[1] == []
    assert kept(scene.report().cursors) == {"a/s": InactiveKept.REPLICATED}
    scene.servers.reader.payloads[ledger] = [last_entry(scene)]
    made, _ = plan(scene)
    scene.servers.reader.payloads[ledger] = [last_entry(scene, **{cursor_format.REPLICATED_PROPERTY: 1})]
    assert said(applied(scene, made)) == {"a": (Outcome.LEFT, Code.CHANGED_SINCE_PLAN, ())}


@pytest.mark.parametrize(
    ("properties", "lost", "end"),
    [
        ({}, False, (Outcome.DONE, Code.BROKER_DELETED)),
        ({cursor_format.REPLICATED_PROPERTY: 1}, False, (Outcome.LEFT, InactiveKept.REPLICATED)),
        ({}, True, (Outcome.LEFT, InactiveKept.UNKNOWN_CURSOR)),
    ],
)
def test_one_that_becomes_a_replicated_one_stays_whatever_its_z_node_says(
    scene: ActivityScene, properties: dict[str, int], lost: bool, end: tuple[Any, Any]
) -> None:
    unused(scene, "a")
    ledger = in_a_ledger(scene)
    made, (row,) = plan(scene)
    assert row["inactive_subscriptions"] == ["s"]
    load = scene.servers.admin.on_load

    def then(topic: Topic) -> None:
        load(topic)
        scene.servers.reader.payloads[ledger] = [last_entry(scene, **properties)]
        if lost:
            scene.servers.remove(scene.servers.path(ledger))

    scene.servers.admin.on_load = then
    applied(scene, made)
    assert deletions(scene)[-1] == end
    assert there(scene, "a") == (set() if end[0] is Outcome.DONE else {"s"})


def made_again(scene: ActivityScene) -> None:
    """Another one has its name, and stands where it did."""
    scene.servers.remove(scene.cursor_path("a", "s"))
    scene.at("a", "s", Position(scene.listed("a")[0], -1))


def held(scene: ActivityScene) -> None:
    holds = type(scene.settings.orphans)(legal_holds=(NAMESPACE,)).legal_holds
    orphans = scene.settings.orphans.model_copy(update={"legal_holds": holds})
    object.__setattr__(scene.cluster, "settings", scene.settings.model_copy(update={"orphans": orphans}))


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (lambda scene: scene.change(inactive_subscriptions=()), Code.CHANGED_SINCE_PLAN),
        (lambda scene: scene.choose(kept_subscriptions=("s",)), Code.CHANGED_SINCE_PLAN),
        (lambda scene: scene.write("a"), LoadKept.NEEDS_NO_BROKER),
        (lambda scene: scene.at("a", "s", Position(scene.listed("a")[0], 0)), Code.CHANGED_SINCE_PLAN),
        (lambda scene: scene.servers.remove(scene.cursor_path("a", "s")), Code.CHANGED_SINCE_PLAN),
        (made_again, Code.CHANGED_SINCE_PLAN),
        (lambda scene: scene.configure(brokerDeleteInactiveTopicsEnabled="true"), LoadKept.TOPIC_WOULD_BE_DELETED),
        (held, Protection.LEGAL_HOLD),
        (lambda scene: scene.clients("a"), Code.CHANGED_SINCE_PLAN),
    ],
)
def test_what_changed_since_the_plan_is_left(
    scene: ActivityScene, changed: Callable[[ActivityScene], None], code: Any
) -> None:
    unused(scene, "a")
    made, _ = plan(scene)
    changed(scene)
    before = there(scene, "a")
    ((outcome, why, _),) = said(applied(scene, made)).values()
    assert (outcome, why) == (Outcome.LEFT, code)
    assert there(scene, "a") == before
    assert not scene.servers.admin.touched


def test_one_for_whose_sake_a_topic_is_kept_by_now_says_so(scene: ActivityScene) -> None:
    """Without it the topic could be loaded for what else it needs, which is not what the plan says."""
    unused(scene, "a", read=True)
    made, _ = plan(scene)
    scene.configure(brokerDeleteInactiveTopicsEnabled="true")
    ((outcome, why, _),) = said(applied(scene, made)).values()
    assert (outcome, why) == (Outcome.LEFT, LoadKept.TOPIC_WOULD_BE_DELETED)


# ------------------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize(("after", "again"), [(False, False), (True, False), (True, True)])
def test_a_run_killed_at_the_request_is_repeated_harmlessly(scene: ActivityScene, after: bool, again: bool) -> None:
    """``again``: somebody has made another one under its name since."""
    unused(scene, "a")
    made, _ = plan(scene)
    with killed_at_unsubscribe(scene.servers.admin, after=after):
        applied(scene, made)
    assert pending(scene)
    if again:
        scene.at("a", "s", Position(scene.listed("a")[0], -1))
    scene.servers.wait(1)
    assert [one.outcome for one in applied(scene, made)] == [Outcome.LEFT]
    assert not scene.is_loaded("a")
    assert pending(scene) == []
    assert there(scene, "a") == ({"s"} if again or not after else set())
    ended = Outcome.DONE if after else Outcome.FAILED
    assert deletions(scene) == [(Outcome.BEGUN, Code.ABOUT_TO), (ended, Code.RUN_ENDED)]
    applied(scene, made)
    assert len(deletions(scene)) == 2


def test_a_run_that_is_killed_at_any_step_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before every third request of two visits: nothing is left loaded or noted, and nothing else was deleted.

    Each request of a visit: ``test_load_faults.py``.
    """
    told: list[str] = []
    first_step = 60
    for step in count(first_step, 3):
        folder = tmp_path / str(step)
        folder.mkdir()
        one = chosen(ActivityScene(folder, monkeypatch))
        ids = unused(one, *PARTITIONS)
        for name in PARTITIONS:
            one.at(name, "live", Position(ids[name][-1], 0))
        one.change(at_once=1)
        one.choose(kept_subscriptions=("live",))
        made, _ = plan(one)
        dies = killed(one, made, step, told)
        assert told == [] or step > first_step
        if not dies:
            assert step > 80
            assert told.count("on_unsubscribe") >= 2
            break
        one.before = lambda operation: None
        one.work()
        one.servers.clock.advance(300)
        one.servers.zookeeper.end_all_sessions()
        applied(one, made)
        for name in PARTITIONS:
            assert not one.is_loaded(name), step
            assert there(one, name) - {"s"} == {"live"}, step
            assert "s" not in there(one, name) or set(ids[name]) <= set(one.listed(name)), step
        assert pending(one) == [], step


def test_an_answer_that_is_lost_is_looked_for(scene: ActivityScene) -> None:
    unused(scene, "a")
    made, _ = plan(scene)

    def lost(topic: Any, name: str) -> None:
        raise OutcomeUnknown("no answer")

    scene.servers.admin.on_unsubscribe = lost
    ((outcome, code, gone),) = said(applied(scene, made)).values()
    assert (outcome, code, gone) == (Outcome.FAILED, Code.OUTCOME_UNKNOWN, ())
    assert pending(scene)  # the next run looks whether its broker has loaded it for that after all


def test_a_pause_stops_it_before_the_request(scene: ActivityScene) -> None:
    unused(scene, "a")
    made, _ = plan(scene)
    record = scene.servers.journal.record

    def paused(rows: Any) -> None:
        record(rows)
        if any(row.action is Action.DELETE_SUBSCRIPTION for row in rows):
            control.pause(scene.servers.open_store(), "test")

    scene.servers.journal.record = paused  # pyrefly: ignore[bad-assignment]
    with pytest.raises(Paused):
        applied(scene, made)
    assert there(scene, "a") == {"s"}
    assert pending(scene)
