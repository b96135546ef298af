"""Subscriptions past their expiration time: a load plan names them, a visit deletes those that nobody used since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pulsar_lifecycle.errors import OutcomeUnknown, Paused, StoreError, Unavailable
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.inspect.explain_topic import explain_topic
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visit import LoadStep
from pulsar_lifecycle.lifecycle.subscription_deletion import Subscription
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicConnections
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Lowered
from pulsar_lifecycle.runs.journal_rows import details_of
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.crash import killed_at_unsubscribe
from tests.kit.refused import refused_by
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, pending, plan, planned, stored
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import MB, MINUTE, NAMESPACE
from tests.kit.simulated.cluster import data_tags

A = Topic.parse(f"{OWN}a")
HOURS = 20


def abandoned(scene: LoadScene, *, order: bool = True, hours: int = 30, name: str = "s", **cursor: Any) -> list[int]:
    """Three ledgers past their retention. One subscription has read none, another all, who is at it still."""
    scene.namespace(subscription_expiration_time_minutes=HOURS * 60)
    if order:
        scene.change(subscription_expiry=(NAMESPACE,))
    ids = scene.topic("a", 700, 690, 680)
    scene.servers.clock.advance(0.001)  # its broker closes it after it made the last ledger
    at = {"at": ids[0], "active": scene.now - hours * 60 * MINUTE, **cursor}
    scene.servers.cursor(A, name, **at)
    scene.servers.cursor(A, "live", at=ids[-1], entry=0, active=scene.now + 100 * 60 * MINUTE)
    return ids


def names(scene: LoadScene) -> set[str]:
    return set(scene.servers.zookeeper.names(scene.servers.topic_path(A)))


def deletions(scene: LoadScene) -> list[tuple[Any, Any]]:
    rows = [row for row in scene.servers.journal.rows if row.action is Action.DELETE_SUBSCRIPTION]
    return [(row.outcome, row.code) for row in rows]


# ---------------------------------------------------------------------------------------------------------- the plan


def test_a_plan_names_an_expired_subscription_and_what_goes_with_it(scene: LoadScene) -> None:
    ids = abandoned(scene)
    summary, (row,) = plan(scene)
    assert (row["needs"], row["expired_subscriptions"]) == (["last_ledger_expired", "subscription_expired"], ["s"])
    assert (row["trims"], row["bytes_at_once"], row["expiry_minutes"]) == (ids[:-1], 2 * MB, HOURS * 60)
    assert row["weights"] == [MB, MB, 10]
    assert (row["durable_cursors"], row["slowest_ledger_id"]) == (2, ids[0])
    assert summary.logical_bytes == 2 * MB + 10


def test_without_order_it_only_says_what_it_would_free(scene: LoadScene) -> None:
    abandoned(scene, order=False)
    assert plan(scene)[1] == []
    row = stored(scene)["a"]
    assert (row["kept"], row["expired_subscriptions"]) == ("subscription_would_expire", ["s"])


def replicated(scene: LoadScene) -> None:
    change(scene, properties={cursor_format.REPLICATED_PROPERTY: 1})


def change(scene: LoadScene, **fields: Any) -> None:
    path = scene.cursor_path("a", "s")
    info = cursor_format.decode(scene.servers.zookeeper.data(path))
    scene.servers.put(path, cursor_format.encode(replace(info, **fields)))


def in_a_ledger(scene: LoadScene) -> None:
    """Its broker died, and what it had in memory of the last use with it."""
    entry = scene.servers.position_entry(at=scene.listed("a")[0])
    change(scene, cursors_ledger_id=scene.servers.ledger(data_tags(A), entries=[entry]))


def loaded_since(scene: LoadScene) -> None:
    """A broker loaded the topic and died; somebody closed its last ledger."""
    scene.servers.wait(1)
    scene.servers.topic(A, [*scene.listed("a"), scene.servers.ledger(data_tags(A), state=LedgerState.CLOSED)])


@pytest.mark.parametrize(
    "makes",
    [
        replicated,
        in_a_ledger,
        loaded_since,
        lambda scene: change(scene, last_active=None),
        lambda scene: change(scene, last_active=scene.now - (HOURS - 2) * 60 * MINUTE),
        lambda scene: scene.configure(additionalSystemCursorNames="[s]"),
        lambda scene: scene.namespace(subscription_expiration_time_minutes=0),
        lambda scene: scene.retention(-1, -1),
    ],
)
def test_what_is_no_expired_subscription_or_frees_nothing_is_not_planned(
    scene: LoadScene, makes: Callable[[LoadScene], None]
) -> None:
    abandoned(scene)
    makes(scene)
    plan(scene)
    assert "subscription_expired" not in stored(scene).get("a", {"needs": []})["needs"]


@pytest.mark.parametrize("name", ["acme/orders/count", "__compaction", "pulsar.repl.west", "pulsar.dedup"])
def test_cursors_of_functions_and_of_brokers_stay(scene: LoadScene, name: str) -> None:
    abandoned(scene, name=name)
    plan(scene)
    assert stored(scene).get("a", {}).get("expired_subscriptions", []) == []


def test_a_subscription_that_never_goes_keeps_its_topic(scene: LoadScene) -> None:
    """Left loaded for a day, its broker would delete it."""
    abandoned(scene)
    scene.servers.cursor(A, "t", at=scene.listed("a")[0], active=scene.now - 30 * 60 * MINUTE)
    inactivity = scene.settings.inactivity.model_copy(update={"kept_subscriptions": ("t",)})
    settings = scene.settings.model_copy(update={"inactivity": inactivity})
    object.__setattr__(scene.cluster, "settings", settings)
    _, rows = plan(scene)
    assert rows == []
    assert "a" not in stored(scene)  # the other one needs the same
    scene.servers.remove(scene.cursor_path("a", "t"))
    assert len(plan(scene)[1]) == 1


def test_caps_count_what_goes_with_a_subscription(scene: LoadScene) -> None:
    abandoned(scene)
    made = planned(scene, "a")
    with refused_by(RefusalCode.MAX_BYTES):
        applied(scene, made, caps=Lowered(max_bytes=2 * MB))


def test_explain_names_a_load_as_what_frees_it(scene: LoadScene) -> None:
    ids = abandoned(scene)
    scene.servers.cursor(A, "slow", at=ids[1], active=scene.now + 100 * 60 * MINUTE)
    scene.scan()
    found = explain_topic(scene.cluster, A, Brokers({}, scene.servers.admin.stats_interval_ms()))
    by_load = ["subscriptionExpirationTimeMinutes" in one.freed_by for one in found.ledgers]
    assert by_load == [True, False, False]
    assert found.ledgers[0].freed_by.startswith("a load (jobs plan_load and load_topics): ")
    assert found.load_kept is None
    scene.change(subscription_expiry=())
    found = explain_topic(scene.cluster, A, Brokers({}, scene.servers.admin.stats_interval_ms()))
    assert found.load_kept == LoadKept.SUBSCRIPTION_WOULD_EXPIRE


# --------------------------------------------------------------------------------------------------------- the visit


def test_a_visit_deletes_it_trims_and_unloads(scene: LoadScene) -> None:
    ids = abandoned(scene)
    made = planned(scene, "a")
    node = scene.servers.zookeeper.stat(scene.cursor_path("a", "s"))
    assert node
    (one,) = applied(scene, made)
    assert (one.outcome, one.why.code) == (Outcome.DONE, LoadStep.IN_METADATA)
    assert one.unsubscribed == ("s",)
    assert names(scene) == {"live"}
    assert scene.trimmed == ids[:-1]
    assert not scene.is_loaded("a")
    assert pending(scene) == []
    rows = [row for row in scene.servers.journal.rows if row.action is Action.DELETE_SUBSCRIPTION]
    assert [(row.outcome, row.code) for row in rows] == [
        (Outcome.BEGUN, Code.ABOUT_TO),
        (Outcome.DONE, Code.BROKER_DELETED),
    ]
    assert details_of(Subscription, rows[0].detail or "") == Subscription("s", ids[0], -1, node.czxid)
    phases = [row.phase for row in scene.servers.journal.rows if row.action is Action.LOAD_TOPIC]
    assert list(dict.fromkeys(phases)) == [Phase.LOAD, Phase.UNSUBSCRIBE, Phase.TRIM, Phase.UNLOAD]


def test_one_that_holds_nothing_back_goes_in_a_visit_for_something_else(scene: LoadScene) -> None:
    """As its broker would, had it the topic for long enough."""
    abandoned(scene)
    ids = scene.listed("a")
    scene.servers.cursor(A, "s", at=ids[-1], entry=0, active=scene.now - 30 * 60 * MINUTE)
    scene.servers.cursor(A, "late", at=ids[0], active=scene.now + 100 * 60 * MINUTE)
    scene.namespace(message_ttl_in_seconds=4 * 3600)
    made = planned(scene, "a")
    assert (stored(scene)["a"]["needs"], stored(scene)["a"]["expired_subscriptions"]) == (["past_ttl"], ["s"])
    (one,) = applied(scene, made)
    assert (one.outcome, one.unsubscribed) == (Outcome.DONE, ("s",))
    assert names(scene) == {"late", "live"}
    assert scene.trimmed == ids[:-1]


def test_a_dry_run_deletes_nothing(scene: LoadScene) -> None:
    abandoned(scene)
    made = planned(scene, "a")
    (one,) = applied(scene, made, dry_run=True)
    assert one.outcome is Outcome.GOES
    assert names(scene) == {"s", "live"}


def connected(scene: LoadScene) -> None:
    scene.servers.admin.clients[A] = TopicConnections(0, {"s": 1}, 0)


def consumed(scene: LoadScene) -> None:
    scene.servers.admin.used_at[A, "s"] = scene.now


def refused(scene: LoadScene) -> None:
    """A consumer came between the look and the request."""

    def refuse(topic: Topic, name: str) -> None:
        raise StoreError(f"{topic}: {name} has consumers")

    scene.servers.admin.on_unsubscribe = refuse


@pytest.mark.parametrize(
    ("does", "code"),
    [
        (connected, InactiveKept.USED_LATELY),
        (consumed, InactiveKept.USED_LATELY),
        (refused, Code.STILL_THERE),
        (lambda scene: change(scene, last_active=scene.now), Code.CHANGED_MEANWHILE),
    ],
)
def test_one_that_is_used_since_the_load_stays(
    scene: LoadScene, does: Callable[[LoadScene], None], code: InactiveKept | Code
) -> None:
    ids = abandoned(scene)
    made = planned(scene, "a")
    load = scene.servers.admin.on_load

    def then(topic: Topic) -> None:
        load(topic)
        does(scene)

    scene.servers.admin.on_load = then
    (one,) = applied(scene, made)
    assert (one.outcome, one.why.code, one.unsubscribed) == (Outcome.DONE, LoadStep.LESS_WENT, ())
    assert "subscription s stays" in one.why.text
    assert names(scene) == {"s", "live"}
    assert set(ids) <= set(scene.listed("a"))
    assert deletions(scene)[-1][1] == code
    assert not scene.is_loaded("a")


def test_one_that_its_broker_deleted_by_itself_is_gone(scene: LoadScene) -> None:
    abandoned(scene)
    made = planned(scene, "a")
    load = scene.servers.admin.on_load

    def then(topic: Topic) -> None:
        load(topic)
        scene.servers.remove(scene.cursor_path("a", "s"))

    scene.servers.admin.on_load = then
    (one,) = applied(scene, made)
    assert (one.outcome, one.why.code) == (Outcome.DONE, LoadStep.IN_METADATA)
    assert deletions(scene) == [(Outcome.NOTHING, Code.NOT_THERE)]


@pytest.mark.parametrize(
    "change_of",
    [
        lambda scene: scene.namespace(subscription_expiration_time_minutes=HOURS * 60 + 1),
        lambda scene: scene.servers.cursor(A, "s", at=scene.listed("a")[0], active=scene.now),
        lambda scene: scene.servers.cursor(A, "t", at=scene.listed("a")[0], active=1),
        lambda scene: scene.servers.remove(scene.cursor_path("a", "s")),
    ],
)
def test_what_changed_since_the_plan_is_left(scene: LoadScene, change_of: Callable[[LoadScene], None]) -> None:
    abandoned(scene)
    made = planned(scene, "a")
    change_of(scene)
    before = names(scene)
    (one,) = applied(scene, made)
    assert one.outcome is Outcome.LEFT
    assert one.why.code in (Code.CHANGED_SINCE_PLAN, LoadKept.NEEDS_NO_BROKER)
    assert names(scene) == before
    assert not scene.servers.admin.touched


def test_none_goes_by_a_policy_that_changed_during_the_load(scene: LoadScene) -> None:
    abandoned(scene)
    made = planned(scene, "a")
    load = scene.servers.admin.on_load

    def then(topic: Topic) -> None:
        load(topic)
        scene.namespace(subscription_expiration_time_minutes=0)

    scene.servers.admin.on_load = then
    (one,) = applied(scene, made)
    assert (one.outcome, one.why.code) == (Outcome.FAILED, Code.CHANGED_MEANWHILE)
    assert names(scene) == {"s", "live"}
    assert not scene.is_loaded("a")


def test_the_last_subscription_stays_where_its_broker_would_then_delete_the_topic(scene: LoadScene) -> None:
    abandoned(scene)
    scene.configure(brokerDeleteInactiveTopicsEnabled="true")
    made = planned(scene, "a")
    load = scene.servers.admin.on_load

    def then(topic: Topic) -> None:
        load(topic)
        scene.servers.remove(scene.cursor_path("a", "live"))

    scene.servers.admin.on_load = then
    applied(scene, made)
    assert names(scene) == {"s"}
    assert deletions(scene) == [(Outcome.LEFT, InactiveKept.LAST_SUBSCRIPTION)]


@pytest.mark.parametrize("goes", [True, False])
def test_an_answer_that_is_lost_is_looked_for(scene: LoadScene, goes: bool) -> None:
    """Whoever comes next unloads what its broker may load for it yet."""
    abandoned(scene)
    made = planned(scene, "a")
    unsubscribe = scene.servers.admin.on_unsubscribe

    def lost(topic: Topic, name: str) -> None:
        if goes:
            unsubscribe(topic, name)
        raise OutcomeUnknown("no answer")

    scene.servers.admin.on_unsubscribe = lost
    (one,) = applied(scene, made)
    assert one.outcome is (Outcome.DONE if goes else Outcome.FAILED)
    assert one.unsubscribed == (("s",) if goes else ())
    assert bool(pending(scene)) is not goes
    if not goes:
        assert deletions(scene)[-1] == (Outcome.FAILED, Code.OUTCOME_UNKNOWN)


def test_a_broker_that_does_not_answer_deletes_nothing(scene: LoadScene) -> None:
    abandoned(scene)
    made = planned(scene, "a")

    def unanswered(topic: Topic, name: str) -> int | None:
        raise Unavailable("no answer")

    scene.servers.admin.last_use = unanswered  # pyrefly: ignore[bad-assignment]
    (one,) = applied(scene, made)
    assert one.outcome is Outcome.FAILED
    assert names(scene) == {"s", "live"}
    assert deletions(scene) == []


@pytest.mark.parametrize("after", [False, True])
def test_a_run_killed_at_the_request_is_repeated_harmlessly(scene: LoadScene, after: bool) -> None:
    abandoned(scene)
    made = planned(scene, "a")
    with killed_at_unsubscribe(scene.servers.admin, after=after):
        applied(scene, made)
    assert pending(scene)
    scene.servers.wait(1)
    assert [one.outcome for one in applied(scene, made)] == [Outcome.LEFT]
    assert not scene.is_loaded("a")
    assert pending(scene) == []
    assert plan(scene)[1] == []  # its load, which its broker wrote down, counts as a use
    assert names(scene) == ({"live"} if after else {"s", "live"})


def test_a_pause_stops_it_before_the_request(scene: LoadScene) -> None:
    abandoned(scene)
    made = planned(scene, "a")
    record = scene.servers.journal.record

    def paused(rows: Any) -> None:
        record(rows)
        if any(row.action is Action.DELETE_SUBSCRIPTION for row in rows):
            control.pause(scene.servers.open_store(), "test")

    scene.servers.journal.record = paused  # pyrefly: ignore[bad-assignment]
    with pytest.raises(Paused):
        applied(scene, made)
    assert names(scene) == {"s", "live"}
    assert pending(scene)
