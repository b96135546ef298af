"""Deleting offloaded copies: what goes, and messages that must not delete anything."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import uuid4

import pytest

from pulsar_lifecycle.formats.deletion_message import LedgerType
from pulsar_lifecycle.formats.managed_ledger import OffloadContext, OffloadSegment
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome, Waiting
from tests.kit.scenes.tiered.offloaded_scene import OTHER, TOPIC
from tests.kit.scenes.tiered.offloaded_scene import OffloadedScene as Scene
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.offloaded import BUCKET, CLUSTER, DATA, INDEX, attempt, metadata
from tests.kit.simulated.pipeline import Policy


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_exactly_the_unreferenced_pair_goes_and_the_journal_names_it_before(scene: Scene) -> None:
    scene.send(scene.intent)
    seen: list[str] = []
    scene.store.before = lambda name, bucket, keys: seen.extend(
        row.outcome for row in scene.cluster.journal.rows if name == "delete_many"
    )
    (decision,) = scene.delete()
    assert (decision.outcome, decision.code) == (Outcome.DELETED, Code.UNREFERENCED)
    assert scene.keys == scene.live_keys
    assert seen == ["deleting"]
    before, after = scene.cluster.journal.rows
    assert (before.phase, before.outcome, after.phase, after.outcome) == (
        "archive",
        "deleting",
        "delete",
        Outcome.DELETED,
    )
    for row in (before, after):
        assert (row.action, row.ledger_id, row.topic, row.bytes) == (
            Action.DELETE_OFFLOADED,
            scene.gone,
            str(TOPIC),
            len(DATA) + len(INDEX),
        )
        detail = json.loads(row.detail)
        objects = detail["objects"]
        assert detail["uuid"] == str(scene.gone_uuid)
        assert {one["key"] for one in objects} == scene.gone_keys
        assert [(one["bucket"], one["size"], len(one["etag"])) for one in objects] == [
            (BUCKET, len(DATA), 32),
            (BUCKET, len(INDEX), 32),
        ]
    assert scene.cluster.deletion_topics.waiting == {}
    assert scene.cluster.journal.nodes == []


def test_both_copies_of_a_ledger_go_by_a_message_each(scene: Scene) -> None:
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.gone)
    scene.age()
    intent = scene.intent
    scene.send(intent, replace(intent, ledger_type=LedgerType.LEDGER, offload_context=None))
    assert {d.outcome for d in scene.delete()} == {Outcome.DELETED}
    assert scene.keys == scene.live_keys
    assert not scene.cluster.exists(scene.gone)


def test_a_message_repeated_is_gone(scene: Scene) -> None:
    scene.send(scene.intent, scene.intent)
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED, Outcome.GONE]
    scene.send(scene.intent)
    assert [(d.outcome, d.code) for d in scene.delete()] == [(Outcome.GONE, Code.NOT_THERE)]


@pytest.mark.parametrize("missing", ["data", "index"])
def test_half_a_pair_is_deleted_too(scene: Scene, missing: str) -> None:
    scene.buckets.objects[BUCKET].pop(next(k for k in scene.gone_keys if k.endswith("-index") == (missing == "index")))
    scene.send(scene.intent)
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
    assert scene.keys == scene.live_keys


def test_a_topic_that_is_gone_names_nothing(scene: Scene) -> None:
    scene.cluster.remove(scene.cluster.topic_path(TOPIC))
    scene.age()
    scene.send(scene.intent)
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
    assert scene.keys == scene.live_keys


def test_a_message_newer_than_the_scan_waits(scene: Scene) -> None:
    scene.rescan()
    scene.cluster.wait(1)
    scene.send()
    now = scene.now
    scene.send(scene.intent)
    scene.now = now
    scene.one(Outcome.WAITING, Waiting.NO_SCAN)


def test_what_nobody_of_ours_asked_for_waits_for_a_second_scan(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.before = scene.now
    scene.one(Outcome.WAITING, Waiting.NO_EARLIER_SCAN)
    assert len(scene.keys) == 4


@pytest.mark.parametrize("driver", ["google-cloud-storage", "azureblob", "aliyun-oss", "filesystem", "transient", "x"])
def test_objects_of_another_driver_are_kept(scene: Scene, driver: str) -> None:
    scene.send(scene.message(scene.gone_uuid, scene.gone, TOPIC, driver=driver))
    scene.one(Outcome.KEPT, Code.OTHER_DRIVER)


def test_without_an_object_store_a_message_waits(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.offload = None
    scene.one(Outcome.WAITING, Waiting.NO_OBJECT_STORE)


@pytest.mark.parametrize(
    ("bucket", "why"), [("elsewhere", "object_store.buckets"), (None, "names no bucket"), ("", "no")]
)
def test_a_bucket_that_is_not_declared_is_refused(scene: Scene, bucket: str | None, why: str) -> None:
    scene.put(scene.gone_uuid, scene.gone, TOPIC, bucket="elsewhere")
    scene.send(scene.message(scene.gone_uuid, scene.gone, TOPIC, bucket=bucket))
    scene.one(Outcome.REFUSED, Code.MISMATCH, why)
    assert scene.store.requests == []
    assert len(scene.buckets.keys("elsewhere")) == 2


def test_a_message_about_the_live_copy_is_kept_whoever_sends_it(scene: Scene) -> None:
    scene.send(scene.message(scene.live_uuid, scene.live, TOPIC))
    scene.one(Outcome.KEPT, Code.STILL_IN_USE)


def test_a_live_copy_is_kept_even_if_our_own_first_phase_marked_its_ledger(scene: Scene) -> None:
    scene.mark(scene.live)
    scene.send(scene.message(scene.live_uuid, scene.live, TOPIC))
    scene.one(Outcome.KEPT, Code.STILL_IN_USE)


def test_what_left_its_topic_after_the_scan_waits_though_the_scan_found_its_uuid(scene: Scene) -> None:
    """An earlier trim had sent the message, and failed."""
    scene.list(TOPIC, **{f"_{scene.gone}": attempt(scene.gone_uuid)})
    scene.send(scene.intent)
    scene.cluster.wait(1)
    scene.list(TOPIC)
    scene.mark(scene.gone)
    scene.one(Outcome.WAITING, Waiting.NO_SCAN)


def test_a_uuid_that_another_topic_names_is_kept(scene: Scene) -> None:
    other = scene.ledger(OTHER)
    scene.cluster.topic(OTHER, [other], offloaded={other: attempt(scene.gone_uuid)})
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.STILL_IN_USE)


def test_a_shadow_topic_that_lists_the_ledger_keeps_it(scene: Scene) -> None:
    shadow = Topic.parse("persistent://acme/orders/shadow")
    scene.cluster.topic(shadow, [scene.gone], offloaded={scene.gone: attempt(scene.gone_uuid)}, shadow_of=str(TOPIC))
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Protection.SHADOW_SOURCE)
    scene.policy = Policy()


@pytest.mark.parametrize("segment", [False, True])
def test_an_attempt_under_way_is_kept(scene: Scene, segment: bool) -> None:
    streaming = OffloadSegment(scene.gone_uuid, False, None, None, None, None, {})
    context = (
        OffloadContext(uuid4(), False, False, None, None, {}, (streaming,))
        if segment
        else attempt(scene.gone_uuid, complete=False)
    )
    scene.list(TOPIC, **{f"_{scene.gone}": context})
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.STILL_IN_USE)


def test_what_a_topic_names_only_now_is_retried_while_young_and_kept_later(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.list(TOPIC, **{f"_{scene.gone}": attempt(scene.gone_uuid)})
    scene.one(Outcome.KEPT, Code.STILL_IN_USE)


def test_while_the_message_is_young_a_first_phase_may_be_under_way(scene: Scene) -> None:
    scene.list(TOPIC, **{f"_{scene.gone}": attempt(scene.gone_uuid)})
    scene.cluster.wait(1)
    topics = scene.cluster.open_queue().topics
    scene.send(scene.intent)
    (number,) = topics.waiting
    published, due, *rest = topics.waiting[number]
    topics.waiting[number] = (published + 2 * 3_600_000 - 60_000, due, *rest)
    scene.cluster.wait(0.01)
    scene.rescan()
    scene.one(Outcome.RETRYING, Code.STILL_IN_USE)


def test_a_forger_who_names_another_topic_is_told_by_the_object(scene: Scene) -> None:
    scene.send(scene.message(scene.gone_uuid, scene.gone, OTHER))
    scene.one(Outcome.KEPT, Code.NOT_OURS)


def test_a_forger_who_names_a_live_ledgers_other_topic_finds_its_uuid_in_use(scene: Scene) -> None:
    scene.send(scene.message(scene.live_uuid, scene.live, OTHER))
    scene.one(Outcome.KEPT, Code.STILL_IN_USE)


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ({}, "of unknown origin"),
        ({"pulsarclustername": CLUSTER}, "of unknown origin"),
        ({"managedledgername": TOPIC.managed_ledger}, "of unknown origin"),
        (metadata(TOPIC, "another"), "the object is of cluster another"),
        (metadata(OTHER), f"the object is of {OTHER.managed_ledger}"),
        (metadata(TOPIC.partitioned_parent), "the object is of"),
    ],
)
@pytest.mark.parametrize("marked", [False, True])
def test_an_object_that_does_not_say_it_is_ours_is_kept(
    scene: Scene, stored: dict[str, str], why: str, marked: bool
) -> None:
    if marked:
        scene.mark(scene.gone)
    objects = scene.buckets.objects[BUCKET]
    for key in scene.gone_keys:  # one foreign object of the two is enough
        objects[key] = replace(objects[key], metadata=stored)
        break
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.NOT_OURS, why)


def test_an_object_younger_than_the_message_is_another_attempts(scene: Scene) -> None:
    scene.mark(scene.gone)
    scene.send(scene.intent)
    scene.put(scene.gone_uuid, scene.gone, TOPIC)
    scene.one(Outcome.KEPT, Code.NOT_OURS)


@pytest.mark.parametrize(
    ("topic", "policy", "code"),
    [
        (TOPIC, Policy(holds=frozenset({"acme/orders"})), Protection.LEGAL_HOLD),
        (TOPIC, Policy(holds=frozenset({str(TOPIC.partitioned_parent)})), Protection.LEGAL_HOLD),
        (Topic.parse("persistent://gone/away/x"), Policy(), Protection.UNKNOWN_NAMESPACE),
        (Topic.parse("persistent://acme/orders/__change_events"), Policy(), Protection.SYSTEM_TOPIC),
        (
            Topic.parse("persistent://acme/orders/x-s__transaction_pending_ack"),
            Policy(system_topics=True),
            Protection.RESERVED,
        ),
    ],
)
def test_owners_that_keep_their_ledgers_keep_their_objects(
    scene: Scene, topic: Topic, policy: Policy, code: Protection
) -> None:
    scene.policy = policy
    scene.put(scene.gone_uuid, scene.gone, topic)
    scene.mark(scene.gone, topic)
    scene.send(scene.message(scene.gone_uuid, scene.gone, topic))
    scene.one(Outcome.KEPT, code)


@pytest.mark.parametrize("name", ["persistent://acme/orders/..", "persistent://acme/orders/."])
def test_a_topic_that_cannot_be_is_refused(scene: Scene, name: str) -> None:
    scene.send(replace(scene.intent, topic_name=name))
    scene.one(Outcome.REFUSED, Code.MISMATCH)


def test_undecoded_topics_may_name_anything(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.undecoded = 1
    scene.one(Outcome.WAITING, Waiting.UNDECODED_TOPICS)
