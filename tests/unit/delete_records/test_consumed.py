"""Policy ``consumed_records``: up to the slowest named subscription, and not at all where one is missing."""

from __future__ import annotations

from typing import Any

import pytest

from orchestration.delete_records import failing, failure
from pulsar_lifecycle.delete_records.apply_run import Patience, apply_delete_records
from pulsar_lifecycle.delete_records.consumed import consumed_offsets, plan_consumed_records
from pulsar_lifecycle.delete_records.cut_rules import Refusal
from pulsar_lifecycle.model import PENDING_ACKS, Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from tests.kit.records.records_scene import RecordsScene


def scene_with(named: dict[str, tuple[str, ...]], partitions: int = 1) -> RecordsScene:
    scene = RecordsScene(partitions)
    scene.consumed = named
    return scene


def test_the_slowest_named_subscription_decides() -> None:
    scene = scene_with({"acme/orders": ("billing", "audit")})
    scene.cursor("billing", 3, 4)
    scene.cursor("audit", 2, 9)
    scene.cursor("nobody", 4, 9)
    summary, rows, consumed = plan_consumed_records(scene.where)
    assert summary is not None
    assert rows is not None
    assert (consumed.stopped, consumed.offsets) == ({}, {scene.topic: scene.at(2, 10)})
    (row,) = rows.to_pylist()
    assert (row["error"], row["ledgers"]) == (None, scene.ids[scene.topic][:3])


def test_a_cursor_in_a_ledger_that_its_broker_took_off_has_read_up_to_the_next() -> None:
    scene = scene_with({"acme/orders": ("billing",)})
    ids = scene.ids[scene.topic]
    scene.cluster.topic(scene.topic, [ids[0], ids[1], ids[3], ids[4]], entries=10)  # the third was empty
    scene.cluster.wait(1)
    scene.cursor("billing", 2, -1)
    summary, rows, consumed = plan_consumed_records(scene.where)
    assert (summary is not None, consumed.offsets) == (True, {scene.topic: scene.at(3, 0)})
    assert rows is not None
    assert [(row["error"], row["ledgers"]) for row in rows.to_pylist()] == [(None, ids[:2])]


def test_a_missing_subscription_stops_its_topic_alone() -> None:
    scene = scene_with({"acme/orders": ("billing", "audit")}, 2)
    for topic in scene.topics:
        scene.cursor("billing", 3, 4, topic)
    scene.cursor("audit", 3, 4, scene.topics[1])
    consumed = consumed_offsets(scene.where)
    assert list(consumed.offsets) == [scene.topics[1]]
    why = consumed.stopped[scene.topics[0]]
    assert (why.code, "audit" in why.text) == (Code.SUBSCRIPTION_MISSING, True)


def test_a_topics_own_policy_goes_before_its_namespaces() -> None:
    scene = scene_with({"acme/orders": ("missing",), str(RecordsScene().topic): ("billing",)})
    scene.cursor("billing", 1, 4)
    assert consumed_offsets(scene.where).offsets == {scene.topic: scene.at(1, 5)}


@pytest.mark.parametrize("turned", [False, True])
def test_a_partitions_own_policy_goes_before_its_topics(turned: bool) -> None:
    topic = RecordsScene().topic
    named = {str(topic.partitioned_parent): ("billing",), str(topic): ("billing", "missing")}
    scene = scene_with(dict(reversed(named.items())) if turned else named)
    path = f"/admin/partitioned-topics/{topic.namespace}/persistent/placed"
    scene.cluster.put(path, b'{"partitions": 1}')
    scene.cursor("billing", 3, 4)
    consumed = consumed_offsets(scene.where)
    assert not consumed.offsets
    why = consumed.stopped[topic]
    assert (why.code, "missing" in why.text) == (Code.SUBSCRIPTION_MISSING, True)


@pytest.mark.parametrize("metadata", [b"", b"no metadata", b'{"partitions": 0}', b'{"partitions": 1}'])
def test_a_topics_policy_counts_for_partitions_that_its_metadata_does_not_name(metadata: bytes) -> None:
    """What their namespace names is less: a subscription that is yet to come could miss messages."""
    topic = RecordsScene().topic
    parent = topic.partitioned_parent
    scene = scene_with({"acme/orders": ("billing",), str(parent): ("billing", "missing")}, 2)
    if metadata:
        scene.cluster.put(f"/admin/partitioned-topics/{parent.managed_ledger}", metadata)
    for one in scene.topics:
        scene.cursor("billing", 3, 4, one)
    consumed = consumed_offsets(scene.where)
    assert not consumed.offsets
    assert {consumed.stopped[one].code for one in scene.topics} == {Code.SUBSCRIPTION_MISSING}


def test_a_topic_whose_partitions_are_not_known_stops_no_other() -> None:
    other = "persistent://acme/other/sent"
    scene = scene_with({"acme/orders": ("billing",), other: ("billing",)})
    scene.cluster.put("/admin/partitioned-topics/acme/other/persistent/sent", b"no metadata")
    scene.cursor("billing", 3, 4)
    consumed = consumed_offsets(scene.where)
    assert consumed.offsets == {scene.topic: scene.at(3, 5)}
    assert consumed.stopped[Topic.parse(other)].code is Code.TOPIC_UNREAD


def test_a_namespace_that_has_no_topic_is_named() -> None:
    scene = scene_with({"acme/orders": ("billing",), "acme/oders": ("billing",)})
    scene.cursor("billing", 3, 4)
    consumed = consumed_offsets(scene.where)
    assert (consumed.empty, list(consumed.offsets)) == (("acme/oders",), [scene.topic])


def test_what_brokers_keep_of_transactions_is_no_topic_of_its_namespace() -> None:
    scene = scene_with({"acme/orders": ("billing",)})
    scene.cursor("billing", 3, 4)
    kept = Topic(scene.topic.namespace, f"{scene.topic.local}-billing{PENDING_ACKS}")
    scene.cluster.topic(kept, [scene.ids[scene.topic][0] + 1000], entries=10)
    consumed = consumed_offsets(scene.where)
    assert (consumed.stopped, list(consumed.offsets)) == ({}, [scene.topic])


def test_another_subscription_that_is_behind_keeps_its_messages() -> None:
    scene = scene_with({"acme/orders": ("billing",)})
    scene.cursor("billing", 3, 4)
    scene.cursor("other", 1, 0)
    _, rows, _ = plan_consumed_records(scene.where)
    assert rows is not None
    assert rows.to_pylist()[0]["error"] == RecordsError.CURSOR_BELOW


def test_a_plan_goes_no_further_once_a_named_subscription_is_gone() -> None:
    scene = scene_with({"acme/orders": ("billing",)}, 2)
    for topic in scene.topics:
        scene.cursor("billing", 3, 4, topic)
    summary, _, _ = plan_consumed_records(scene.where)
    assert summary is not None
    assert summary.plan_id.startswith("consumed-records-")
    scene.summary = summary
    scene.cluster.zookeeper.delete(f"{scene.cluster.topic_path(scene.topics[1])}/billing", -1)
    first, second = scene.apply()
    assert (first.error, second.error) == (RecordsError.TIMEOUT, RecordsError.CHANGED)
    assert second.code == Code.SUBSCRIPTION_MISSING
    assert scene.listed(scene.topics[0]) == scene.ids[scene.topics[0]][3:]
    assert scene.listed(scene.topics[1]) == scene.ids[scene.topics[1]]


@pytest.mark.parametrize("step", ["rights", "messages"])
def test_a_named_subscription_that_is_deleted_amid_the_apply_stops_its_topic(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = scene_with({"acme/orders": ("billing",)})
    scene.cursor("billing", 3, 4)
    scene.summary, _, _ = plan_consumed_records(scene.where)  # type: ignore[assignment]
    at, name = (scene.cluster.admin, "check_admin") if step == "rights" else (scene.cluster.deletion_topics, "publish")
    original, path = getattr(at, name), f"{scene.cluster.topic_path(scene.topic)}/billing"

    def deleted(*args: Any) -> Any:
        if scene.cluster.zookeeper.stat(path):
            scene.cluster.zookeeper.delete(path, -1)
        return original(*args)

    monkeypatch.setattr(at, name, deleted)
    (result,) = scene.apply()
    assert result.error in (RecordsError.CHANGED, RecordsError.LEDGER_STAYS)
    assert result.code == Code.SUBSCRIPTION_MISSING
    assert (scene.listed(), dict(scene.properties())) == (scene.ids[scene.topic], {})


def test_what_the_policy_keeps_or_has_deleted_later_fails_no_run() -> None:
    scene = scene_with({"acme/orders": ("billing",)}, 4)
    for topic in scene.topics:
        scene.cursor("billing", 3, 4, topic)
    kept, going, stopped, changed = scene.topics
    scene.cursor("other", 1, 0, kept)
    summary, _, _ = plan_consumed_records(scene.where)
    assert summary is not None
    scene.cluster.zookeeper.delete(f"{scene.cluster.topic_path(stopped)}/billing", -1)
    scene.cursor("new", 1, 0, changed)
    refused: dict[Topic, Refusal | None] = {}
    order = Order(summary.plan_id, summary.digest)
    results = apply_delete_records(scene.where, "run", order, dry_run=False, report=refused.__setitem__)
    assert [results[topic].error for topic in scene.topics] == [
        RecordsError.CURSOR_BELOW,
        RecordsError.TIMEOUT,
        RecordsError.CHANGED,
        RecordsError.CURSOR_BELOW,
    ]
    assert failing(summary.plan_id, results, refused, waited=False) == [changed]
    assert failing(summary.plan_id, results, refused, waited=True) == [going, changed]
    assert failing("delete-records-of-somebody", results, refused, waited=False) == scene.topics
    said = failure(scene.topics, results)
    assert "4 of 4 partitions fail this run (2 cursor_below, 1 TimeoutException, 1 changed" in said
    assert f"the first: {scene.topics[0]}: cursor_below: " in said


def test_what_timed_out_is_not_tried_again_once_its_subscription_is_deleted() -> None:
    scene = scene_with({"acme/orders": ("billing",)})
    scene.cursor("billing", 3, 4)
    summary, _, _ = plan_consumed_records(scene.where)
    assert summary is not None
    scene.cluster.admin.broker_ids = ["broker-1:8080", "broker-2:8080"]
    scene.owned_by("broker-2:8080")
    scene.cluster.admin.unreachable = {"broker-2:8080"}

    def said(text: str) -> None:
        if "tried again" in text:
            scene.cluster.zookeeper.delete(f"{scene.cluster.topic_path(scene.topic)}/billing", -1)
            scene.cluster.admin.unreachable = set()

    order, patience = Order(summary.plan_id, summary.digest), Patience(answers=600, finish=True)
    refused: dict[Topic, Refusal | None] = {}
    found = apply_delete_records(
        scene.where, "run", order, dry_run=False, patience=patience, report=refused.__setitem__, progress=said
    )
    assert found[scene.topic].code == Code.SUBSCRIPTION_MISSING
    assert failing(summary.plan_id, found, refused, waited=True) == []
    assert scene.listed() == scene.ids[scene.topic]


def test_without_a_policy_there_is_no_plan() -> None:
    scene = RecordsScene()
    assert plan_consumed_records(scene.where)[0] is None
