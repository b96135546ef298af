"""A plan of inactive subscriptions over fakes: what is as planned goes, what changed stays by its code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.errors import OutcomeUnknown, Paused, Unavailable
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.activity.cursor_run import delete_subscriptions
from pulsar_lifecycle.lifecycle.activity.inactive_planning import make_inactive_plans
from pulsar_lifecycle.model import Position, encode_name
from pulsar_lifecycle.ports import TopicInternals
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Lowered, Order
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.crash import killed_at_unsubscribe
from tests.kit.refused import refused_by
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene, kept
from tests.kit.scenes.retention_scene import MB, NAMESPACE
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.functions import functions_subscribe, set_functions


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    found = ActivityScene(tmp_path, monkeypatch)
    found.choose(period=86_400.0)
    found.work()
    found.used("a", "s", "t", read=False)
    found.ready("a")
    found.servers.admin.internal_stats(found.named("a"))  # loads it
    found.clients("a")
    found.servers.admin.on_unsubscribe = lambda topic, name: found.servers.remove(path(found, name))
    return found


def path(scene: ActivityScene, name: str) -> str:
    return f"{scene.servers.topic_path(scene.named('a'))}/{encode_name(name)}"


def plan(scene: ActivityScene) -> PlanSummary:
    """The plan of subscriptions."""
    report = scene.days(2)
    assert scene.epoch
    _, (subscriptions, rows) = make_inactive_plans(scene.cluster, scene.epoch, report)
    assert sorted(rows.column("cursor").to_pylist()) == ["s", "t"]
    return subscriptions


def apply(scene: ActivityScene, made: PlanSummary, *, dry_run: bool = False) -> dict[str, Any]:
    """Outcome and code by subscription."""
    done = delete_subscriptions(scene.cluster, "run", Order(made.plan_id, made.digest), dry_run=dry_run)
    return {one.subscription: (one.outcome, one.why.code) for one in done}


def there(scene: ActivityScene, name: str) -> bool:
    return path(scene, name) in scene.servers.zookeeper._nodes


GONE = (Outcome.DONE, Code.BROKER_DELETED)


def test_inactive_subscriptions_of_a_plan_are_deleted_and_journalled(scene: ActivityScene) -> None:
    made = plan(scene)
    assert set(apply(scene, made, dry_run=True).values()) == {(Outcome.GOES, Code.MAY_GO)}
    assert there(scene, "s")
    assert not scene.servers.journal.rows
    assert apply(scene, made) == {"s": GONE, "t": GONE}
    assert not there(scene, "s")
    rows = [(row.outcome, row.code, row.detail) for row in scene.servers.journal.rows if row.plan_id == made.plan_id]
    assert [row[:2] for row in rows] == [(Outcome.BEGUN, Code.ABOUT_TO), GONE] * 2
    assert len({row[2] for row in rows}) == 2
    assert set(apply(scene, made).values()) == {(Outcome.NOTHING, Code.NOT_THERE)}


@pytest.mark.parametrize(("sooner", "expected"), [(0, GONE), (1, (Outcome.LEFT, InactiveKept.USED_LATELY))])
def test_a_use_that_its_broker_remembers_keeps_a_subscription_for_the_period(
    scene: ActivityScene, sooner: int, expected: Any
) -> None:
    """It was used long after its creation, before our history begins."""
    made = plan(scene)
    assert scene.epoch
    scene.servers.admin.used_at[scene.named("a"), "s"] = scene.epoch.started_at - 86_400_000 + sooner
    assert apply(scene, made) == {"s": expected, "t": GONE}


def test_the_cap_of_bytes_counts_every_replica_and_each_topic_once(scene: ActivityScene) -> None:
    scene.servers.replicate(scene.listed("a")[:-1], 3, MB)
    made = plan(scene)
    assert made.physical_bytes == 6 * MB  # of the two closed ledgers, which both subscriptions keep
    caps = Lowered(max_bytes=6 * MB - 1)
    with refused_by(RefusalCode.MAX_BYTES) as refused:
        delete_subscriptions(scene.cluster, "run", Order(made.plan_id, made.digest, caps), dry_run=False)
    assert str(6 * MB) in str(refused.value)


def test_the_cap_of_bytes_counts_each_ledger_by_the_larger_of_its_sizes(scene: ActivityScene) -> None:
    """One is in a bucket alone, another has three replicas, and the last, which is open, is on one bookie."""
    first, second, last = scene.listed("a")
    scene.servers.remove(scene.servers.path(first))
    scene.servers.replicate([second], 3, MB)
    scene.servers.reader.payloads[last] = [b"x" * MB] * 2
    made = plan(scene)
    assert made.physical_bytes == 3 * MB
    caps = Lowered(max_bytes=6 * MB - 1)
    with refused_by(RefusalCode.MAX_BYTES) as refused:
        delete_subscriptions(scene.cluster, "run", Order(made.plan_id, made.digest, caps), dry_run=False)
    assert str(6 * MB) in str(refused.value)


def test_a_subscription_stays_whose_open_ledger_no_bookie_knows(scene: ActivityScene) -> None:
    """Nothing says how many bytes go with it: no cap could count them."""
    scene.servers.reader.failures[scene.listed("a")[-1]] = Unavailable("no bookie answers")
    report = scene.days(2)
    assert scene.epoch
    assert set(kept(report.cursors).values()) == {InactiveKept.UNKNOWN_LEDGER}
    _, (_, rows) = make_inactive_plans(scene.cluster, scene.epoch, report)
    assert rows.num_rows == 0


def _moved(scene: ActivityScene) -> None:
    scene.at("a", "s", Position(scene.listed("a")[0], 0))


def _moved_back(scene: ActivityScene) -> None:
    scene.at("a", "s", Position(0, -1))


def _acknowledged(scene: ActivityScene) -> None:
    tags = {**data_tags(scene.named("a")), "pulsar/cursor": "s"}
    own = scene.servers.ledger(tags, entries=[scene.servers.position_entry(at=scene.listed("a")[0])])
    scene.servers.cursor(scene.named("a"), "s", ledger=own, at=scene.listed("a")[0])


def _created_anew(scene: ActivityScene) -> None:
    scene.servers.remove(path(scene, "s"))
    scene.at("a", "s", Position(scene.listed("a")[0], -1))


def _connected(scene: ActivityScene) -> None:
    scene.clients("a", s=1)


def _used(scene: ActivityScene) -> None:
    scene.servers.admin.used_at[scene.named("a"), "s"] = scene.now


def _loaded_anew(scene: ActivityScene) -> None:
    """Its broker knows of no use then: what was read before is in nobody's memory."""
    scene.servers.admin.unload(scene.named("a"))
    scene.servers.admin.internal_stats(scene.named("a"))


def _unloaded_and_still_listed(scene: ActivityScene) -> None:
    scene.servers.admin.unload(scene.named("a"))
    scene.servers.load(scene.named("a"))


def _unloaded(scene: ActivityScene) -> None:
    scene.unlisted("a")


def _held(scene: ActivityScene) -> None:
    section = scene.settings.orphans.model_validate({"legal_holds": [NAMESPACE], "grace_period": 0, "confirm_after": 0})
    object.__setattr__(scene.cluster, "settings", scene.settings.model_copy(update={"orphans": section}))


def _named_kept(scene: ActivityScene) -> None:
    scene.choose(kept_subscriptions=("s",))


def _of_a_function(scene: ActivityScene) -> None:
    functions_subscribe(scene.servers, "s")


def _functions_unread(scene: ActivityScene) -> None:
    set_functions(scene.servers, b"no metadata")


def _system(scene: ActivityScene) -> None:
    scene.configure(additionalSystemCursorNames="[s]")


def _not_chosen(scene: ActivityScene) -> None:
    scene.choose(subscriptions=())


def _alone(scene: ActivityScene) -> None:
    scene.configure(brokerDeleteInactiveTopicsEnabled="true")
    scene.servers.remove(path(scene, "t"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_moved, Code.CHANGED_SINCE_PLAN),
        (_moved_back, Code.CHANGED_SINCE_PLAN),
        (_acknowledged, Code.CHANGED_SINCE_PLAN),
        (_created_anew, Code.CHANGED_SINCE_PLAN),
        (_connected, InactiveKept.USED_LATELY),
        (_used, InactiveKept.USED_LATELY),
        (_unloaded, InactiveKept.NOT_LOADED),
        (_unloaded_and_still_listed, InactiveKept.NOT_LOADED),
        (_loaded_anew, Code.CHANGED_SINCE_PLAN),
        (_held, Protection.LEGAL_HOLD),
        (_named_kept, InactiveKept.NAMED_KEPT),
        (_system, InactiveKept.SYSTEM_CURSOR),
        (_of_a_function, InactiveKept.FUNCTION_SUBSCRIPTION),
        (_functions_unread, InactiveKept.FUNCTIONS_UNKNOWN),
        (_not_chosen, InactiveKept.NOT_CHOSEN),
        (_alone, InactiveKept.LAST_SUBSCRIPTION),
    ],
)
def test_a_subscription_that_is_not_as_planned_stays(
    scene: ActivityScene, change: Callable[[ActivityScene], None], expected: Any
) -> None:
    made = plan(scene)
    change(scene)
    touched = len(scene.servers.admin.touched)
    assert apply(scene, made)["s"] == (Outcome.LEFT, expected)
    assert there(scene, "s")
    if expected is InactiveKept.NOT_LOADED:
        assert len(scene.servers.admin.touched) == touched


@pytest.mark.parametrize(("before", "added", "goes"), [(4, 7, True), (4, 6, False), (4, 3, False), (0, 3, False)])
def test_a_rollover_is_told_from_a_load_by_what_the_broker_counts(
    scene: ActivityScene, before: int, added: int, goes: bool
) -> None:
    """A broker that loaded the topic since the scan has not added the entries of the ledger that was the last then."""
    made, topic = plan(scene), scene.named("a")
    path = scene.servers.topic_path(topic)
    info = managed_ledger.decode(scene.servers.zookeeper.data(path))
    last = info.ledgers[-1].ledger_id
    new = scene.servers.ledger(data_tags(topic), state=LedgerState.OPEN)
    added_one = managed_ledger.LedgerInfo(new, None, None, None, None)
    scene.servers.put(path, managed_ledger.encode(replace(info, ledgers=(*info.ledgers, added_one))))
    entries = {last - 1: 9, last: before, new: 3}
    scene.servers.admin.internals[topic] = TopicInternals(
        "LedgerOpened", tuple(entries), {}, {}, None, (), entries=entries, added=added
    )
    expected = GONE if goes else (Outcome.LEFT, Code.CHANGED_SINCE_PLAN)
    assert apply(scene, made) == dict.fromkeys("st", expected)


def test_a_replicated_subscription_stays(scene: ActivityScene) -> None:
    made = plan(scene)
    info = cursor_format.decode(scene.servers.zookeeper.data(path(scene, "s")))
    marked = replace(info, properties={**info.properties, cursor_format.REPLICATED_PROPERTY: 1})
    scene.servers.put(path(scene, "s"), cursor_format.encode(marked))
    assert apply(scene, made)["s"] == (Outcome.LEFT, InactiveKept.REPLICATED)
    assert there(scene, "s")


def test_the_last_subscription_stays_while_brokers_delete_inactive_topics(scene: ActivityScene) -> None:
    made = plan(scene)
    scene.configure(brokerDeleteInactiveTopicsEnabled="true")
    stays = (Outcome.LEFT, InactiveKept.LAST_SUBSCRIPTION)
    assert apply(scene, made, dry_run=True) == {"s": (Outcome.GOES, Code.MAY_GO), "t": stays}
    assert apply(scene, made) == {"s": GONE, "t": stays}


def test_no_subscription_goes_whose_backlog_may_keep_its_topic(scene: ActivityScene) -> None:
    """Brokers that delete topics whose subscriptions have read all would delete this one once ``s`` is gone."""
    made = plan(scene)
    scene.configure(
        brokerDeleteInactiveTopicsEnabled="true", brokerDeleteInactiveTopicsMode="delete_when_subscriptions_caught_up"
    )
    assert set(apply(scene, made).values()) == {(Outcome.LEFT, InactiveKept.LAST_SUBSCRIPTION)}


def test_a_subscription_goes_on_all_partitions_or_on_none(scene: ActivityScene) -> None:
    """A launch that takes one of them takes none, and one that stays keeps the others."""
    names = ("p-partition-0", "p-partition-1")
    for name in names:
        scene.used(name, "s", read=False)
        scene.ready(name)
        scene.servers.admin.internal_stats(scene.named(name))
        scene.clients(name)
    for name in ("s", "t"):
        scene.servers.remove(path(scene, name))
    report = scene.days(2)
    assert scene.epoch
    _, (made, rows) = make_inactive_plans(scene.cluster, scene.epoch, report)
    assert rows.num_rows == 2

    def launched(limit: int = 0) -> list[tuple[Outcome, Any]]:
        order = Order(made.plan_id, made.digest, limit=limit)
        done = delete_subscriptions(scene.cluster, "run", order, dry_run=False)
        return [(one.outcome, one.why.code) for one in done]

    assert launched(1) == [(Outcome.LEFT, InactiveKept.PARTITION_STAYS)]
    scene.clients(names[1], s=1)
    assert sorted(launched()) == sorted(
        [(Outcome.LEFT, InactiveKept.PARTITION_STAYS), (Outcome.LEFT, InactiveKept.USED_LATELY)]
    )
    scene.clients(names[1])
    scene.servers.clock.advance(11)  # what brokers said serves for 10 s
    scene.servers.admin.on_unsubscribe = lambda topic, name: scene.servers.remove(
        f"{scene.servers.topic_path(topic)}/{encode_name(name)}"
    )
    assert launched() == [GONE] * 2


@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_was_killed_is_ended_by_the_next(scene: ActivityScene, after: bool) -> None:
    made = plan(scene)
    with killed_at_unsubscribe(scene.servers.admin, after=after):
        apply(scene, made)
    assert [row.outcome for row in scene.servers.journal.rows] == [Outcome.BEGUN]
    scene.servers.wait(0.1)
    first = (Outcome.NOTHING, Code.NOT_THERE) if after else GONE
    assert apply(scene, made) == {"s": first, "t": GONE}
    ended = next(row for row in scene.servers.journal.rows if row.code == Code.RUN_ENDED)
    assert ended.outcome is (Outcome.DONE if after else Outcome.FAILED)
    assert ended.detail == scene.servers.journal.rows[0].detail


def test_an_answer_that_is_lost_is_resolved_by_the_z_node(scene: ActivityScene) -> None:
    made = plan(scene)
    delete = scene.servers.admin.on_unsubscribe

    def lost(topic: Any, name: str) -> None:
        if name == "s":
            delete(topic, name)
        raise OutcomeUnknown("no answer")

    scene.servers.admin.on_unsubscribe = lost
    assert apply(scene, made) == {"s": GONE, "t": (Outcome.FAILED, Code.OUTCOME_UNKNOWN)}
    scene.servers.admin.on_unsubscribe = lambda topic, name: None
    scene.servers.wait(0.1)
    assert apply(scene, made)["t"] == (Outcome.FAILED, Code.STILL_THERE)


def test_a_plan_is_refused_that_is_stale_or_paused(scene: ActivityScene) -> None:
    made = plan(scene)
    scene.servers.put(control.PAUSE, b"{}")
    with pytest.raises(Paused):
        apply(scene, made)
    scene.servers.remove(control.PAUSE)
    scene.servers.wait(25)
    with refused_by(RefusalCode.PLAN_EXPIRED):
        apply(scene, made)
    assert there(scene, "s")
