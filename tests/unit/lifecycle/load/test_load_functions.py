"""Loads delete no subscription of a function, and none at all where nobody knows by which names functions subscribe."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_lifecycle.inspect.explain_topic import explain_topic
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.gaps import GapCode
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.lifecycle.load_runs import OWN, applied, plan, planned, stored
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import MINUTE, NAMESPACE
from tests.kit.simulated.functions import METADATA, functions_subscribe, set_functions

A = Topic.parse(f"{OWN}a")


def abandoned(scene: LoadScene) -> None:
    """Nobody has used subscription ``s`` for longer than the expiration time; it has read nothing."""
    scene.namespace(subscription_expiration_time_minutes=20 * 60)
    scene.change(subscription_expiry=(NAMESPACE,))
    ids = scene.topic("a", 700, 690, 680)
    scene.servers.clock.advance(0.001)  # its broker closes it after it made the last ledger
    scene.servers.cursor(A, "s", at=ids[0], active=scene.now - 30 * 60 * MINUTE)
    scene.servers.cursor(A, "live", at=ids[-1], entry=0, active=scene.now + 100 * 60 * MINUTE)


def caught_up(scene: LoadScene, subscription: str) -> None:
    """A subscription has read a topic that brokers may delete, as they do once nothing is unread."""
    mode = "delete_when_subscriptions_caught_up"
    scene.configure(brokerDeleteInactiveTopicsEnabled="true", brokerDeleteInactiveTopicsMode=mode)
    scene.change(topic_deletion=(NAMESPACE,))
    inactivity = scene.settings.inactivity.model_copy(update={"kept_subscriptions": ("named",)})
    object.__setattr__(scene, "settings", scene.settings.model_copy(update={"inactivity": inactivity}))
    object.__setattr__(scene.cluster, "settings", scene.settings)
    (last,) = scene.topic("a", 100)
    scene.servers.cursor(A, subscription, at=last, entry=0)
    scene.servers.wait(1)


def explained(scene: LoadScene) -> Any:
    return explain_topic(scene.cluster, A, Brokers({}, scene.servers.admin.stats_interval_ms())).load_kept


def test_no_plan_has_the_subscription_of_a_function(scene: LoadScene) -> None:
    abandoned(scene)
    functions_subscribe(scene.servers, "s")
    assert plan(scene)[1] == []
    assert "a" not in stored(scene)
    functions_subscribe(scene.servers, "other")
    assert len(plan(scene)[1]) == 1
    assert explained(scene) is None


@pytest.mark.parametrize(
    ("subscription", "kept"),
    [("s", None), *((name, "subscription_would_expire") for name in ("t/n/f", "participants", "sub-name"))],
)
def test_a_topic_is_not_left_to_a_broker_that_would_delete_the_subscription_of_a_function(
    scene: LoadScene, subscription: str, kept: str | None
) -> None:
    """It has read the topic, whose last ledger is past its retention."""
    scene.namespace(subscription_expiration_time_minutes=30)
    scene.change(subscription_expiry=(NAMESPACE,))
    functions_subscribe(scene.servers, "sub-name")
    (last,) = scene.topic("a", 100)
    scene.servers.cursor(A, subscription, at=last, entry=0, active=scene.now - 90 * MINUTE)
    scene.servers.wait(1)
    rows = plan(scene)[1]
    assert (len(rows), stored(scene)["a"]["kept"]) == (kept is None, kept)


def test_a_function_that_subscribes_by_the_name_since_the_plan_keeps_the_topic(scene: LoadScene) -> None:
    abandoned(scene)
    made = planned(scene, "a")
    functions_subscribe(scene.servers, "s")
    (one,) = applied(scene, made)
    assert (one.outcome, one.why.code) == (Outcome.LEFT, Code.CHANGED_SINCE_PLAN)
    assert "s" in scene.servers.zookeeper.names(scene.servers.topic_path(A))


def test_a_plan_is_report_only_where_nobody_knows_the_names(scene: LoadScene) -> None:
    abandoned(scene)
    set_functions(scene.servers, b"no metadata")
    summary, _ = plan(scene)
    (gap,) = summary.gaps
    assert (gap.code, gap.where) == (GapCode.POLICIES_UNKNOWN, "inactivity.functions_metadata")
    assert gap.text.startswith(f"{METADATA} cannot be read whole")
    assert explained(scene) is LoadKept.MONITORS_UNKNOWN
    scene.change(subscription_expiry=())
    assert not plan(scene)[0].gaps  # no load deletes a subscription


@pytest.mark.parametrize(
    ("subscription", "ordered", "kept"),
    [
        ("s", True, None),
        ("t/n/f", True, "topic_would_be_deleted"),
        ("participants", True, "topic_would_be_deleted"),
        ("sub-name", True, "topic_would_be_deleted"),
        ("named", True, "topic_would_be_deleted"),
        ("t/n/f", False, "topic_would_be_deleted"),
    ],
)
def test_a_topic_that_a_function_reads_is_not_left_to_a_broker_that_would_delete_it(
    scene: LoadScene, subscription: str, ordered: bool, kept: str | None
) -> None:
    caught_up(scene, subscription)
    functions_subscribe(scene.servers, "sub-name")
    if not ordered:
        scene.change(topic_deletion=())
    rows = plan(scene)[1]
    assert (len(rows), stored(scene)["a"]["kept"]) == (kept is None, kept)
    assert explained(scene) == kept


def test_a_broker_deletes_no_topic_where_nobody_knows_the_names(scene: LoadScene) -> None:
    caught_up(scene, "s")
    made = planned(scene, "a")
    set_functions(scene.servers, b"no metadata")
    (one,) = applied(scene, made)
    assert (one.outcome, one.why.code) == (Outcome.LEFT, LoadKept.MONITORS_UNKNOWN)
    assert not plan(scene)[0].actionable


def test_nothing_is_loaded_once_nobody_knows_the_names(scene: LoadScene) -> None:
    abandoned(scene)
    made = planned(scene, "a")
    set_functions(scene.servers, b"no metadata")
    (one,) = applied(scene, made)
    assert (one.outcome, one.why.code) == (Outcome.LEFT, LoadKept.MONITORS_UNKNOWN)
    assert str(METADATA) in one.why.text
