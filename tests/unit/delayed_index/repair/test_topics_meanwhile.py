"""Repairs of topics that brokers load, unload or terminate meanwhile, or that only count as loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import pytest

from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import repair
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.cursor import BUCKET_PREFIX
from pulsar_lifecycle.model import PENDING_ACKS, Position, Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.topics.load_losses import LoadLoss
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.topic_load import PendingAcks
from tests.kit.delayed.repairs import broken, repaired, written
from tests.kit.fakes.broker_admin import FakeSubscription
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.delayed_scene import DelayedScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DelayedScene:
    return DelayedScene(tmp_path, monkeypatch)


def _working_broker(scene: DelayedScene) -> list[Topic]:
    """A broker that loads a topic writes its z-node, and to unload one that it does not have it loads it first."""
    admin, path, unloads = scene.servers.admin, scene.servers.topic_path(scene.named("a")), list[Topic]()
    admin.topics[scene.named("a")] = {}
    admin.on_load = lambda topic: scene.servers.put(path, scene.servers.zookeeper.data(path))
    admin.on_unload = unloads.append
    return unloads


def test_a_topic_that_counts_as_loaded_and_that_no_broker_has_is_repaired(scene: DelayedScene) -> None:
    """Its broker died, or somebody else unloaded it just now."""
    order = broken(scene)
    scene.change(loaded_topics=True)
    scene.reopen(int(max(scene.keys("a")).rpartition("_")[2]) + 1)
    unloads = _working_broker(scene)
    assert repaired(scene, order).outcome is Outcome.DONE
    assert len(unloads) == 1


def test_a_loaded_topic_is_unloaded_once_for_all_its_subscriptions(scene: DelayedScene) -> None:
    first, *_ = scene.backlog("a", cursors=("s", "u"))
    for cursor in ("s", "u"):
        scene.name_bucket("a", first, scene.snapshot("a", first, cursor, without=1), cursor)
    summary, _ = make_repair_plan(scene.cluster, scene.checked())
    scene.change(loaded_topics=True)
    unloads = _working_broker(scene)
    scene.servers.load(scene.named("a"))
    done = repair(scene.cluster, "repair", Order(summary.plan_id, summary.digest), dry_run=False)
    assert [one.outcome for one in done] == [Outcome.DONE] * 2
    assert len(unloads) == 1


def test_one_with_transactions_is_unloaded_once_for_all_its_subscriptions_too(scene: DelayedScene) -> None:
    """Once it is unloaded nobody reads what was acknowledged in transactions, and nobody needs to."""
    first, *_ = scene.backlog("a", cursors=("s", "u"))
    for cursor in ("s", "u"):
        scene.name_bucket("a", first, scene.snapshot("a", first, cursor, without=1), cursor)
    scene.servers.topic(Topic.parse(f"{scene.named('a')}-s{PENDING_ACKS}"), [])
    summary, _ = make_repair_plan(scene.cluster, scene.checked())
    scene.change(loaded_topics=True)
    unloads, admin = _working_broker(scene), scene.servers.admin
    admin.topics[scene.named("a")] = {name: FakeSubscription() for name in ("s", "u")}
    admin.acks[scene.named("a"), "s"] = PendingAcks.READY
    scene.servers.load(scene.named("a"))
    done = repair(scene.cluster, "repair", Order(summary.plan_id, summary.digest), dry_run=False)
    assert [(one.outcome, one.why.text) for one in done] == [(Outcome.DONE, "its bucket properties were exchanged")] * 2
    assert len(unloads) == 1


@pytest.mark.parametrize("when", ["unloaded", "written"])
def test_a_snapshot_that_a_broker_deletes_before_its_property_is_not_named_again(
    scene: DelayedScene, when: str
) -> None:
    scene.backlog("a")
    named = scene.keys("a")
    scene.properties("a", {**{key: str(i) for key, i in named.items()}, f"{BUCKET_PREFIX}_9_9": "abc"})
    summary, _ = make_repair_plan(scene.cluster, scene.checked())
    scene.change(loaded_topics=True)
    scene.servers.load(scene.named("a"))
    gone = max(named.values())  # which the repair is to leave as it is
    path = scene.servers.topic_path(scene.named("a")) + "/s"
    before = scene.servers.zookeeper.data(path)

    def meanwhile(operation: Operation) -> None:
        if operation.name == "write" and path in operation.paths:
            scene.before = lambda operation: None
            scene.lose(gone)

    if when == "unloaded":
        scene.servers.admin.on_unload = lambda topic: scene.lose(gone)
    else:
        scene.before = meanwhile
    left = repaired(scene, Order(summary.plan_id, summary.digest))
    assert (left.outcome, left.why.code) == (Outcome.LEFT, Code.CHANGED_MEANWHILE)
    assert scene.servers.zookeeper.data(path) == before


def _loaded_meanwhile(scene: DelayedScene) -> None:
    """A broker that loads a topic writes its z-node first."""
    path = scene.servers.topic_path(scene.named("a"))
    scene.servers.put(path, scene.servers.zookeeper.data(path))


def _terminated_meanwhile(scene: DelayedScene) -> None:
    path = scene.servers.topic_path(scene.named("a"))
    info = managed_ledger.decode(scene.servers.zookeeper.data(path))
    last = Position(info.ledgers[-1].ledger_id, 0)
    scene.servers.put(path, managed_ledger.encode(replace(info, terminated=last)))


@pytest.mark.parametrize(
    ("change", "named", "code"),
    [
        (_loaded_meanwhile, False, Code.TOPIC_LOADED),
        (_terminated_meanwhile, False, Protection.TERMINATED),
        (_terminated_meanwhile, True, Protection.TERMINATED),
    ],
)
def test_what_became_of_a_topic_while_its_index_was_made_is_seen(
    scene: DelayedScene, change: Callable[[DelayedScene], None], named: bool, code: StrEnum
) -> None:
    """A broker is not made to unload a topic that loaded_topics does not name, whenever it loads it."""
    order = broken(scene)
    before = scene.keys("a")
    scene.change(loaded_topics=named)
    unloads: list[Topic] = []
    scene.servers.admin.on_unload = unloads.append

    def meanwhile(operation: Operation) -> None:
        if operation.name == "write" and "/managed-ledgers/" in operation.paths[0]:
            scene.before = lambda operation: None
            change(scene)

    scene.before = meanwhile
    left = repaired(scene, order)
    assert (left.outcome, left.why.code) == (Outcome.LEFT, code)
    assert unloads == []
    assert scene.keys("a") == before
    assert {outcome for _, outcome in written(scene)} == {"begun", "removed"}


@pytest.mark.parametrize("listed", [False, True])
def test_a_topic_that_would_lose_data_by_a_load_is_not_unloaded(scene: DelayedScene, listed: bool) -> None:
    """An unload loads what no broker has, and what one has its clients have loaded again."""
    order = broken(scene)
    keys = scene.keys("a")
    admin = scene.servers.admin
    lazy = {**admin.configuration_of(admin.broker_ids[0]), "lazyCursorRecovery": "true"}
    admin.configuration = dict.fromkeys(admin.broker_ids, lazy)
    (unloaded,) = repair(scene.cluster, "repair", order, dry_run=True)
    assert unloaded.outcome is Outcome.GOES  # it needs no broker
    scene.change(loaded_topics=True)
    if listed:
        scene.servers.load(scene.named("a"))
    else:
        scene.reopen(int(max(keys).rpartition("_")[2]) + 1)
    unloads, ledgers = _working_broker(scene), scene.servers.ledger_ids()
    found = repaired(scene, order)
    assert (found.outcome, found.why.code) == (Outcome.LEFT, LoadLoss.CURSORS_COME_LATER)
    assert (unloads, admin.touched, scene.keys("a"), scene.servers.ledger_ids()) == ([], [], keys, ledgers)
