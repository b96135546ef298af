"""Unloads that fail while topics are trimmed: which topics are still written, and whose unloads stay pending."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from pulsar_lifecycle.errors import (
    AccessDenied,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.model import Topic, encode_name
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.topics.unloads import UnloadAfter, Unloads
from pulsar_lifecycle.trimming import trim as trimming_trim
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.topic_scene import OTHER, TOPIC, outcomes
from tests.kit.scenes.trim_scene import CONTEXT
from tests.kit.scenes.trim_scene import TrimScene as Scene
from tests.kit.simulated.cluster import data_tags


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_broker_that_is_down_is_not_asked_for_every_topic(scene: Scene) -> None:
    topics = [Topic.parse(f"persistent://acme/orders/t{n}") for n in range(9)]
    asked: list[Topic] = []

    def fails(topic: Topic) -> None:
        asked.append(topic)
        raise Unavailable("down")

    scene.cluster.admin.on_unload = fails
    for topic in topics:
        scene.cluster.topic(topic, [scene.cluster.ledger(data_tags(topic))])
        scene.cluster.load(topic)
        control.note_unload(scene.store, control.PendingUnload(topic, True, 0, control.LEASE))
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(replace(run), ports, guard, []))
    assert found[-1].outcome == Outcome.FAILED
    assert len(set(asked)) <= 6  # three as it begins, three as it ends
    assert len(scene.left_pending) == 9


def loaded_topics_that_cannot_be_unloaded(scene: Scene, count: int, error: Exception) -> list[TrimOrder]:
    orders: list[TrimOrder] = []
    for n in range(count):
        topic = Topic.parse(f"persistent://acme/orders/t{n}")
        ids = [scene.cluster.ledger(data_tags(topic)) for _ in range(2)]
        scene.cluster.topic(topic, ids)
        scene.cluster.load(topic)
        orders.append(TrimOrder(topic, frozenset(ids[:1])))

    def fails(topic: Topic) -> None:
        raise error

    scene.cluster.admin.on_unload = fails
    return orders


@pytest.mark.parametrize(("error", "tried"), [(AccessDenied("403"), 0), (Unavailable("503"), 3)])
def test_no_loaded_topic_is_written_that_cannot_be_unloaded(scene: Scene, error: Exception, tried: int) -> None:
    orders = loaded_topics_that_cannot_be_unloaded(scene, 6, error)
    fail, asked = scene.cluster.admin.on_unload, list[Topic]()

    def fails(topic: Topic) -> None:
        asked.append(topic)
        fail(topic)

    scene.cluster.admin.on_unload = fails
    found: list[LedgerOutcome] = []
    scene.act(
        lambda run, ports, guard: found.extend(trimming_trim.trim_topics(run, ports, guard, orders)) or found,
        loaded_topics=True,
    )
    assert [one.outcome for one in found if one.ledger_id >= 0] == [Outcome.REMOVED] + [Outcome.LEFT_TO_BROKER] * 5
    left = [one for one in found if one.outcome == Outcome.LEFT_TO_BROKER]
    assert {one.why.code for one in left} == {Code.NOT_UNLOADED}
    assert all(str(error) in one.reason for one in left)
    assert set(asked) == {order.topic for order in orders[: 1 + tried]}  # the one that was written, and those tried
    assert len(scene.sent) == len(scene.left_pending) == 1


def loaded_topics_of(scene: Scene, tenants: Sequence[str], each: int) -> list[TrimOrder]:
    """Orders for the first of two ledgers of loaded topics, ``each`` of every tenant."""
    orders: list[TrimOrder] = []
    for tenant, n in product(tenants, range(each)):
        topic = Topic.parse(f"persistent://{tenant}/orders/t{n}")
        ids = [scene.cluster.ledger(data_tags(topic)) for _ in range(2)]
        scene.cluster.topic(topic, ids)
        scene.cluster.load(topic)
        orders.append(TrimOrder(topic, frozenset(ids[:1])))
    return orders


def trim_all(scene: Scene, orders: Sequence[TrimOrder]) -> dict[int, LedgerOutcome]:
    scene.cluster.clock.sleep(0.007)
    return scene.act(
        lambda run, ports, guard: trimming_trim.trim_topics(
            replace(run, context=replace(CONTEXT, namespaces=frozenset(str(o.topic.namespace) for o in orders))),
            ports,
            guard,
            orders,
        ),
        loaded_topics=True,
    )


@pytest.mark.parametrize("error", [AccessDenied("403"), StoreError("500")])
def test_pending_unloads_that_fail_stop_no_other_topic(scene: Scene, error: Exception) -> None:
    """Of a tenant whose topics the token may not touch, or topics in trouble of their own."""
    orders = loaded_topics_of(scene, ["theirs", "acme"], 6)
    sick = [order.topic for order in orders[:5]]
    for topic in sick:
        control.note_unload(scene.store, control.PendingUnload(topic, True, 0, control.LEASE))
    unloaded: list[Topic] = []

    def some_fail(topic: Topic) -> None:
        if topic in sick or (isinstance(error, AccessDenied) and topic.namespace.tenant == "theirs"):
            raise error
        unloaded.append(topic)

    scene.cluster.admin.on_unload = some_fail
    found = trim_all(scene, orders)
    said = {order.topic: found[min(order.ledgers)].outcome for order in orders if min(order.ledgers) in found}
    assert [said[order.topic] for order in orders[6:]] == [Outcome.REMOVED] * 6
    assert len(scene.left_pending) == 5
    if isinstance(error, AccessDenied):
        assert found[min(orders[5].ledgers)].why.code is Code.NOT_UNLOADED
        assert said[orders[5].topic] == Outcome.LEFT_TO_BROKER
    else:
        assert said[orders[5].topic] == Outcome.REMOVED
    assert len(unloaded) == 6 + 1 + 2 * (
        said[orders[5].topic] == Outcome.REMOVED
    )  # the first of a tenant before it is written


@pytest.mark.parametrize("error", [AccessDenied("403"), Unavailable("503")])
def test_where_no_unload_works_nothing_is_written_in_any_other_tenant_either(scene: Scene, error: Exception) -> None:
    orders = loaded_topics_of(scene, [f"tenant-{n}" for n in range(8)], 2)

    def fails(topic: Topic) -> None:
        raise error

    scene.cluster.admin.on_unload = fails
    for _ in range(4):
        found = trim_all(scene, orders)
        assert len(scene.left_pending) == 1
    refused = [one for one in found.values() if one.ledger_id >= 0]
    assert {one.outcome for one in refused} == {Outcome.LEFT_TO_BROKER}
    assert {one.why.code for one in refused} == {Code.NOT_UNLOADED}


def test_pending_unloads_of_a_tenant_that_cannot_be_unloaded_keep_no_other_one_waiting(scene: Scene) -> None:
    orders = loaded_topics_of(scene, ["bad", "good"], 5)
    for order in orders:
        control.note_unload(scene.store, control.PendingUnload(order.topic, True, 0, control.LEASE))

    def fails(topic: Topic) -> None:
        if topic.namespace.tenant == "bad":
            raise AccessDenied("403")

    scene.cluster.admin.on_unload = fails
    trim_all(scene, [])
    assert {str(one.topic.namespace) for one in scene.pending_unloads} == {"bad/orders"}
    assert len(scene.left_pending) == 5


def test_where_some_unloads_fail_one_topic_has_a_pending_unload_at_most(scene: Scene) -> None:
    """Every second one's, say: one of two brokers is in trouble."""
    orders = loaded_topics_of(scene, ["acme"], 12)
    sick = {order.topic for order in orders[1::2]}

    def fails(topic: Topic) -> None:
        if topic in sick:
            raise Unavailable("503")

    scene.cluster.admin.on_unload = fails
    for _ in range(3):
        found = trim_all(scene, orders)
        assert len(scene.left_pending) == 1
    said = {one.topic: one.outcome for one in found.values() if one.ledger_id >= 0}
    assert {Topic.parse(name) for name, outcome in said.items() if outcome == Outcome.LEFT_TO_BROKER} == sick - {
        scene.pending_unloads[0].topic
    }
    assert {outcome for name, outcome in said.items() if Topic.parse(name) not in sick} == {Outcome.NOTHING}


def test_a_run_that_three_unloads_failed_writes_no_more(scene: Scene) -> None:
    """Where they work before a topic is written, and not after: its broker fails to close what was changed."""
    orders = loaded_topics_of(scene, [f"tenant-{n}" for n in range(9)], 1)
    touched: set[Topic] = set()

    def fails_once_written(topic: Topic) -> None:
        if scene.cluster.zookeeper.stat(scene.cluster.topic_path(topic)).version:  # type: ignore[union-attr]
            touched.add(topic)
            raise StoreError("500")

    scene.cluster.admin.on_unload = fails_once_written
    found = trim_all(scene, orders)
    assert len(scene.left_pending) == len(touched) == 3
    left = [one.why.code for one in found.values() if one.outcome == Outcome.LEFT_TO_BROKER]
    assert left == [Code.NOT_UNLOADED] * 6


@pytest.mark.parametrize("error", [StoreError("500"), AccessDenied("403")])
def test_no_topic_is_loaded_where_no_unload_works(scene: Scene, error: Exception) -> None:
    """Three tenants that refuse us say nothing of a fourth."""

    def fails(topic: Topic) -> None:
        raise error

    scene.cluster.admin.on_unload = fails
    unloads = Unloads(5, 99, scene.cluster.clock)
    for n in range(3):
        assert unloads.doubt(TOPIC) is None
        topic = Topic.parse(f"persistent://tenant-{n}/orders/t")
        scene.cluster.load(topic)
        assert unloads.unload(scene.store, scene.cluster.admin, topic, after=UnloadAfter.OTHERS) == Why(
            Code.NOT_UNLOADED, str(error)
        )
    told = "pending unloads fail (`pulsar-lifecycle status`): 500"
    assert unloads.doubt(TOPIC) == (None if isinstance(error, AccessDenied) else Why(Code.NOT_UNLOADED, told))


def test_topics_whose_unload_always_fails_starve_no_other(scene: Scene) -> None:
    names = [Topic.parse(f"persistent://acme/orders/{name}") for name in "abcz"]

    def fails(topic: Topic) -> None:
        if topic != names[-1]:
            raise StoreError("500")

    scene.cluster.admin.on_unload = fails
    for topic in names:
        scene.cluster.topic(topic, [scene.cluster.ledger(data_tags(topic))])
        scene.cluster.load(topic)
        control.note_unload(scene.store, control.PendingUnload(topic, True, 0, control.LEASE))
    for _ in range(9):
        scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, []))
        scene.cluster.clock.sleep(0.007)
    assert sorted(o.topic.local for o in scene.pending_unloads) == ["a", "b", "c"]


def test_a_topic_that_has_a_pending_unload_is_not_passed_over_without_a_word(scene: Scene) -> None:
    failures = iter([Unavailable("503")] * 3)

    def at_first(topic: Topic) -> None:
        if error := next(failures, None):
            raise error

    scene.cluster.load(TOPIC)
    scene.cluster.admin.on_unload = at_first
    control.note_unload(scene.store, control.PendingUnload(TOPIC, True, 0, control.LEASE))
    found = scene.trim()
    assert outcomes(found) == {-1: Outcome.FAILED}
    assert found[-1].why.code is Code.UNLOAD_PENDING
    assert scene.left_pending == []


BROKEN = [b"{", b"[]", b'{"loaded": true}', b'{"loaded": true, "since": 1e400}', b"[" * 100_000, None]


@pytest.mark.parametrize("data", BROKEN)
@pytest.mark.parametrize("name", ["garbage", "a%2fb", encode_name(OTHER.managed_ledger)])
def test_a_pending_unload_that_cannot_be_read_hinders_no_other_topic(
    scene: Scene, name: str, data: bytes | None
) -> None:
    path = f"{control.PENDING_UNLOADS[control.LEASE]}/{name}"
    scene.cluster.put(path, data or b'{"loaded": true, "since": 0}')
    if data is None:
        scene.cluster.zookeeper.unreadable.add(path)
    orders = [TrimOrder(TOPIC, up_to=scene.ids[2]), TrimOrder(OTHER, up_to=scene.ids[2])]
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, orders))
    assert outcomes(found) == dict.fromkeys(scene.ids[:3], Outcome.REMOVED) | {-1: Outcome.FAILED}
    assert found[-1].why.code is Code.UNLOAD_PENDING
    assert path in found[-1].reason
    assert found[-1].topic == (str(OTHER) if "orders" in name else path)
    assert scene.cluster.zookeeper.stat(path) is not None  # whoever looks at it deletes it


def test_a_topic_whose_pending_unload_cannot_be_read_is_not_trimmed(scene: Scene) -> None:
    path = f"{control.PENDING_UNLOADS[control.LEASE]}/{encode_name(TOPIC.managed_ledger)}"
    scene.cluster.put(path, b"{")
    found = scene.trim()
    assert outcomes(found) == {-1: Outcome.FAILED}
    assert found[-1].why.code is Code.UNLOAD_PENDING
    assert path in found[-1].reason
    assert scene.listed == scene.ids


def test_pending_unloads_that_cannot_be_listed_stop_the_run(scene: Scene) -> None:
    scene.cluster.put(f"{control.PENDING_UNLOADS[control.LEASE]}/x", b"{}")
    scene.cluster.zookeeper.unreadable.add(control.PENDING_UNLOADS[control.LEASE])
    with pytest.raises(AccessDenied):
        scene.trim()
