"""What protects a topic keeps its records, and says how that ends; a reader that is not durable keeps nothing.

A partition that loses data once a broker loads it is not loaded: for no cursor to be moved, and no new ledger. Nor is
another one with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pulsar_lifecycle.delete_records.request import END, Options
from pulsar_lifecycle.errors import BundleShared
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import TopicConnections
from pulsar_lifecycle.topics.load_losses import LoadLoss
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from tests.kit.crash import raising
from tests.kit.fakes.broker_admin import FakeSubscription
from tests.kit.records.records_scene import RecordsScene
from tests.kit.simulated.cluster import cursor_tags, data_tags
from tests.kit.simulated.pipeline import Policy

TOPIC, OTHER = map(Topic.parse, ("persistent://acme/orders/placed-partition-0", "persistent://acme/orders/other"))


def shadowed(scene: RecordsScene, shadow: Topic, source: Topic) -> None:
    scene.cluster.topic(shadow, scene.ids[scene.topic], entries=10, shadow_of=str(source))


def of_the_brokers_own(scene: RecordsScene) -> None:
    scene.topics[0] = Topic.parse("persistent://acme/orders/__change_events")
    scene.cluster.topic(scene.topic, [scene.cluster.ledger(data_tags(scene.topic))], entries=1)


@pytest.mark.parametrize(
    ("holds", "planted", "code", "way_out"),
    [
        ("acme/orders", lambda scene: None, Protection.LEGAL_HOLD, "withdraw it in orphans.legal_holds"),
        (str(TOPIC), lambda scene: None, Protection.LEGAL_HOLD, "withdraw it in orphans.legal_holds"),
        ("", lambda scene: shadowed(scene, OTHER, TOPIC), Protection.SHADOW_SOURCE, "orphans.confirm_after"),
        ("", lambda scene: shadowed(scene, TOPIC, OTHER), Protection.SHADOW_TOPIC, "ask for the source"),
        ("", of_the_brokers_own, Protection.SYSTEM_TOPIC, "trimming.system_topics"),
    ],
)
def test_what_protects_a_topic_is_named_with_its_way_out(
    holds: str, planted: Callable[[RecordsScene], None], code: Protection, way_out: str
) -> None:
    scene = RecordsScene(policy=Policy(holds=frozenset({holds} - {""})))
    planted(scene)
    (row,) = scene.plan(END)
    assert (row["error"], row["code"], way_out in row["reason"]) == (RecordsError.PROTECTED, code, True), row["reason"]
    (result,) = scene.apply()
    assert (result.low_watermark, result.error, result.code) == (-1, RecordsError.PROTECTED, code)
    assert not scene.cluster.deletion_topics.waiting


def test_readers_that_are_not_durable_are_shown_and_keep_nothing() -> None:
    scene = RecordsScene()
    scene.writes_loaded = True
    scene.load(broker="broker-1:8080")
    scene.cursor("s", 4, 9)
    scene.cluster.admin.clients[scene.topic] = TopicConnections(1, {"tail": 1, "s": 1, "reader-1f": 1}, 0)
    (row,) = scene.plan(scene.at(2, 0))
    assert (row["error"], row["readers"]) == (None, ["reader-1f", "tail"])


# ---------------------------------------------------------------------------------------- what loses data by a load


def lazy(scene: RecordsScene) -> None:
    admin = scene.cluster.admin
    said = {"replicatorPrefix": "pulsar.repl"}
    admin.configuration = {admin.broker_ids[-1]: {**said, "lazyCursorRecovery": "true"}}


def elsewhere(scene: RecordsScene) -> None:
    policies = {"replication_clusters": ["fake"], "deleted": True}
    scene.cluster.put("/admin/policies/acme/orders", json.dumps(policies).encode())


LOSING = pytest.mark.parametrize(
    ("planted", "code"), [(lazy, LoadLoss.CURSORS_COME_LATER), (elsewhere, LoadLoss.NAMESPACE_DELETED)]
)


@LOSING
@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("since", [False, True])
def test_its_end_is_not_rolled(
    planted: Callable[[RecordsScene], None], code: LoadLoss, loaded: bool, since: bool
) -> None:
    scene = RecordsScene()
    ids = scene.listed()
    scene.cursor("s", 4, 9)
    admin = scene.cluster.admin
    if loaded:
        scene.writes_loaded = True
        admin.loaded[str(scene.topic)] = admin.broker_ids[0]
    if not since:
        planted(scene)
    (row,) = scene.plan(END)
    assert row["rolls"]
    assert (row["error"], row["code"]) == ((None, None) if since else (RecordsError.LOAD_WOULD_LOSE, code))
    planted(scene)
    (result,) = scene.apply()
    assert (result.error, result.code) == (RecordsError.LOAD_WOULD_LOSE, code)
    assert f"({code})" in result.reason
    assert (admin.touched, scene.listed()) == ([], ids)


@LOSING
def test_no_cursor_is_moved_where_no_broker_has_it(planted: Callable[[RecordsScene], None], code: LoadLoss) -> None:
    scene = RecordsScene()
    scene.cursor("s", 0, 0)
    scene.plan(scene.at(2, 0), options=Options(move_cursors=True))
    planted(scene)
    (result,) = scene.apply()
    assert (result.error, result.code) == (RecordsError.LOAD_WOULD_LOSE, code)
    assert scene.cluster.admin.touched == []


@pytest.mark.parametrize(("shared", "unloads"), [(True, 500), (False, 500), (True, 0)])
def test_no_cursor_is_moved_where_others_would_be_loaded_with_it(shared: bool, unloads: int) -> None:
    """No bundle is taken for that where the run cannot go on with the partition."""
    scene = RecordsScene()
    scene.cursor("s", 0, 0)
    scene.plan(scene.at(2, 0), options=Options(move_cursors=True))
    scene.max_unloads = unloads
    admin = scene.cluster.admin
    admin.topics[scene.topic] = {}
    if shared:
        admin.on_take = raising(BundleShared("beside"))
    (result,) = scene.apply()
    if not unloads:
        assert (result.error, admin.asked, admin.touched) == (RecordsError.UNLOADS_USED_UP, [], [])
        return
    assert (result.code == Code.BUNDLE_SHARED) == shared, result
    assert not shared or (result.error is RecordsError.BROKER_FAILED and "beside" in result.reason)
    assert admin.touched[:1] == ([] if shared else [scene.topic])


@pytest.mark.parametrize("again", [True, False])
def test_a_cursor_whose_ledger_its_broker_replaces_as_it_is_loaded_is_looked_at_again(again: bool) -> None:
    scene = RecordsScene()
    admin = scene.cluster.admin
    admin.topics = {scene.topic: {"s": FakeSubscription()}}
    scene.cursor("s", 0, 1)
    gone = scene.cluster.ledger(cursor_tags(scene.topic, "s"))

    def moves(topic: Topic, name: str, past: Position) -> None:
        scene.cluster.cursor(topic, name, ledger=gone)
        scene.cluster.remove(ledger_path(gone))
        if again:
            scene.cluster.clock.on_sleep = lambda seconds: scene.cursor(name, 1, past.entry_id)

    admin.on_move = moves
    scene.plan(scene.at(2, 0), options=Options(move_cursors=True))
    (result,) = scene.apply()
    assert (result.code == Code.CURSORS_UNREAD) != again, result
    assert (scene.listed()[0] in scene.ids[scene.topic][:1]) != again


@LOSING
@pytest.mark.parametrize("listed", [False, True])
def test_nothing_is_taken_off_that_would_be_unloaded_then(
    planted: Callable[[RecordsScene], None], code: LoadLoss, listed: bool
) -> None:
    """An unload loads what no broker has, and clients load it again."""
    scene = RecordsScene()
    scene.writes_loaded = True
    scene.load(broker="broker-1:8080" if listed else "")
    ids = scene.listed()
    scene.cursor("s", 4, 9)
    planted(scene)
    (row,) = scene.plan(scene.at(2, 0))
    assert (row["error"], row["code"]) == (RecordsError.LOAD_WOULD_LOSE, code)
    (result,) = scene.apply()
    assert (result.error, result.code) == (RecordsError.LOAD_WOULD_LOSE, code)
    assert (scene.cluster.admin.touched, scene.listed()) == ([], ids)


@LOSING
def test_what_needs_no_load_goes_all_the_same(planted: Callable[[RecordsScene], None], code: LoadLoss) -> None:
    scene = RecordsScene()
    ids = scene.listed()
    scene.cursor("s", 4, 9)
    planted(scene)
    (row,) = scene.plan(scene.at(2, 0))
    assert (row["error"], row["ledgers"]) == (None, ids[:2])
    scene.apply()
    assert (scene.listed(), scene.cluster.admin.touched) == (ids[2:], [])
