"""Inactive subscriptions of topics that no broker has: a load plan names them, a visit deletes those unused since."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.errors import OutcomeUnknown, Paused
from pulsar_lifecycle.lifecycle.activity.inactive_planning import make_inactive_plans
from pulsar_lifecycle.lifecycle.load.load_planning import make_load_plan
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visits import LoadedTopic, LoadStep
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.ports import TopicConnections
from pulsar_lifecycle.records.codes import Code
from pulsar_lifecycle.records.outcomes import Action, Outcome
from pulsar_lifecycle.records.plans.inactive_plan import InactiveKept
from pulsar_lifecycle.records.plans.plan_summary import PlanSummary
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics.protection import Protection
from tests.kit.crash import Crash
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene
from tests.kit.scenes.lifecycle.load_runs import applied, killed, pending, stored
from tests.kit.scenes.retention_scene import MB, NAMESPACE

HOUR = 3_600_000
PARTITIONS = ("p-partition-0", "p-partition-1")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    return chosen(ActivityScene(tmp_path, monkeypatch))


def chosen(found: ActivityScene) -> ActivityScene:
    """The settings let its inactive subscriptions go."""
    found.choose(period=86_400.0)
    found.change(inactive_subscriptions=(NAMESPACE,))
    found.work()
    return found


def unused(scene: ActivityScene, *names: str, read: bool = False) -> dict[str, list[int]]:
    """Topics of two ledgers without retention, of which subscription ``s`` has read nothing; nobody uses them."""
    ids = {name: scene.used(name, "s", read=read) for name in names}
    scene.ready(*names)
    scene.servers.admin.on_unsubscribe = lambda topic, name: scene.servers.remove(scene.cursor_path(topic.local, name))
    return ids


def plan(scene: ActivityScene, *, days: int = 2) -> tuple[PlanSummary, list[dict[str, Any]]]:
    report = scene.days(days)
    assert scene.epoch
    make_inactive_plans(scene.cluster, scene.epoch, report)
    summary, rows = make_load_plan(scene.cluster, scene.epoch)
    return summary, rows.to_pylist()


def said(done: list[LoadedTopic]) -> dict[str, tuple[Any, Any, tuple[str, ...]]]:
    return {one.topic.rpartition("/")[2]: (one.outcome, one.why.code, one.unsubscribed) for one in done}


def there(scene: ActivityScene, name: str) -> set[str]:
    return set(scene.servers.zookeeper.names(scene.servers.topic_path(scene.named(name))))


def deletions(scene: ActivityScene) -> list[tuple[Any, Any]]:
    rows = [row for row in scene.servers.journal.rows if row.action is Action.DELETE_SUBSCRIPTION]
    return [(row.outcome, row.code) for row in rows]


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
    _, (row,) = plan(scene)
    assert (row["needs"], row["inactive_subscriptions"], row["trims"]) == (["last_ledger_expired"], [], ids)


@pytest.mark.parametrize("why", ["loaded", "hold", "settings"])
def test_one_of_a_partitioned_topic_goes_on_all_partitions_or_on_none(scene: ActivityScene, why: str) -> None:
    unused(scene, *PARTITIONS)
    if why == "settings":
        scene.change(inactive_subscriptions=(str(scene.named(PARTITIONS[0])),))
    elif why == "hold":
        scene.change(namespaces=(str(scene.named(PARTITIONS[0])),))
    else:
        scene.days(1)
        scene.clients(PARTITIONS[1])
    assert plan(scene)[1] == []
    assert stored(scene)[PARTITIONS[0]]["kept"] == LoadKept.PARTITION_STAYS


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


# ------------------------------------------------------------------------------------------------------- partitions


def test_all_partitions_lose_it(scene: ActivityScene) -> None:
    unused(scene, *PARTITIONS)
    scene.change(at_once=1)
    made, _ = plan(scene)
    assert said(applied(scene, made)) == dict.fromkeys(PARTITIONS, (Outcome.DONE, LoadStep.IN_METADATA, ("s",)))
    assert [there(scene, name) for name in PARTITIONS] == [set(), set()]


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("which", [0, 1])
def test_none_is_begun_where_one_partition_changed(scene: ActivityScene, at_once: int, which: int) -> None:
    unused(scene, *PARTITIONS)
    scene.change(at_once=at_once)
    made, _ = plan(scene)
    scene.write(PARTITIONS[which])
    done = said(applied(scene, made))
    assert done[PARTITIONS[which]][:2] == (Outcome.LEFT, LoadKept.NEEDS_NO_BROKER)
    assert done[PARTITIONS[1 - which]][:2] == (Outcome.LEFT, LoadKept.PARTITION_STAYS)
    assert not scene.servers.admin.touched


def test_none_is_begun_where_a_launch_takes_some_partitions_only(scene: ActivityScene) -> None:
    unused(scene, *PARTITIONS)
    made, _ = plan(scene)
    ((_, code, _),) = said(applied(scene, made, limit=1)).values()
    assert code == LoadKept.PARTITION_STAYS
    assert not scene.servers.admin.touched


def test_the_first_partition_that_keeps_it_ends_it(scene: ActivityScene) -> None:
    unused(scene, *PARTITIONS)
    scene.change(at_once=1)
    made, _ = plan(scene)
    scene.servers.admin.used_at[scene.named(PARTITIONS[0]), "s"] = scene.now
    done = said(applied(scene, made))
    assert done[PARTITIONS[0]] == (Outcome.DONE, LoadStep.LESS_WENT, ())
    assert done[PARTITIONS[1]][:2] == (Outcome.LEFT, LoadKept.PARTITION_STAYS)
    assert there(scene, PARTITIONS[1]) == {"s"}


def test_a_second_launch_goes_on_with_the_partitions_that_the_budget_left(scene: ActivityScene) -> None:
    unused(scene, *PARTITIONS)
    scene.change(at_once=1, max_per_bundle=1)
    made, _ = plan(scene)
    assert said(applied(scene, made))[PARTITIONS[1]][:2] == (Outcome.LEFT, LoadKept.BUDGET_SPENT)
    scene.servers.wait(1)
    done = said(applied(scene, made))
    assert done[PARTITIONS[0]][0] is Outcome.LEFT
    assert done[PARTITIONS[1]] == (Outcome.DONE, LoadStep.IN_METADATA, ("s",))


# ------------------------------------------------------------------------------------------------------------ faults


@pytest.mark.parametrize("after", [False, True])
def test_a_run_killed_at_the_request_is_repeated_harmlessly(scene: ActivityScene, after: bool) -> None:
    unused(scene, "a")
    made, _ = plan(scene)
    unsubscribe = scene.servers.admin.on_unsubscribe

    def dies(topic: Any, name: str) -> None:
        if after:
            unsubscribe(topic, name)
        raise Crash

    scene.servers.admin.on_unsubscribe = dies
    with pytest.raises(Crash):
        applied(scene, made)
    assert pending(scene)
    scene.servers.admin.on_unsubscribe = unsubscribe
    scene.servers.wait(1)
    assert [one.outcome for one in applied(scene, made)] == [Outcome.LEFT]
    assert not scene.is_loaded("a")
    assert pending(scene) == []
    assert there(scene, "a") == (set() if after else {"s"})
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
        for session in range(1, one.servers.zookeeper.sessions + 1):
            one.servers.zookeeper.end_session(session)
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
