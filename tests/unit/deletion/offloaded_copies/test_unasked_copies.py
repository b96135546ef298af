"""Offloaded copies that our own first phase did not ask for: two scans, the grace period, and another copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from pulsar_lifecycle.deletion.run_evidence import DeclaredBuckets
from pulsar_lifecycle.errors import (
    AccessDenied,
    LifecycleError,
    Unavailable,
)
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Outcome, Waiting
from tests.kit.scenes.tiered.offloaded_scene import OTHER, TOPIC
from tests.kit.scenes.tiered.offloaded_scene import OffloadedScene as Scene
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.offloaded import BUCKET, CLUSTER, POLICY, attempt


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_foreign_message_needs_the_operators_word_that_the_buckets_are_ours_alone(scene: Scene) -> None:
    scene.offload = DeclaredBuckets(POLICY.buckets, CLUSTER)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.NOT_OURS)


def test_our_own_first_phase_needs_no_earlier_scan_and_no_grace_period(scene: Scene) -> None:
    uuid, ledger = uuid4(), scene.ledger(TOPIC)
    scene.put(uuid, ledger, TOPIC)
    scene.list(TOPIC, **{f"_{ledger}": attempt(uuid)})
    scene.age()
    scene.list(TOPIC)
    scene.mark(ledger)
    scene.offload = DeclaredBuckets(POLICY.buckets, CLUSTER)
    scene.send(scene.message(uuid, ledger, TOPIC))
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
    assert scene.keys == scene.live_keys | scene.gone_keys


def test_the_mark_is_of_one_topic(scene: Scene) -> None:
    scene.mark(scene.gone, OTHER)
    scene.offload = DeclaredBuckets(POLICY.buckets, CLUSTER)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.NOT_OURS)


def test_a_message_about_another_attempt_has_no_part_in_the_mark_of_ours(scene: Scene) -> None:
    """Anyone may send one about a UUID of his own."""
    ours, stale, ledger = uuid4(), uuid4(), scene.ledger(TOPIC)
    scene.put(ours, ledger, TOPIC)
    scene.put(stale, ledger, TOPIC)
    scene.mark(ledger, uuid=ours)
    scene.rescan()
    scene.offload = DeclaredBuckets(POLICY.buckets, CLUSTER)
    scene.send(*(scene.message(uuid, ledger, TOPIC) for uuid in (uuid4(), stale, ours)))
    assert [(d.outcome, d.code) for d in scene.delete()] == [
        *[(Outcome.KEPT, Code.NOT_OURS)] * 2,
        (Outcome.DELETED, Code.UNREFERENCED),
    ]


def test_a_message_that_names_another_bucket_has_no_part_in_the_mark_of_ours(scene: Scene) -> None:
    """There it finds nothing; ours goes on waiting for its own."""
    scene.mark(scene.gone, uuid=scene.gone_uuid, bucket=BUCKET)
    scene.rescan()
    scene.offload = DeclaredBuckets(POLICY.buckets, CLUSTER)
    scene.send(scene.message(scene.gone_uuid, scene.gone, TOPIC, bucket="empty"), scene.intent)
    assert [(d.outcome, d.code) for d in scene.delete()] == [
        (Outcome.KEPT, Code.NOT_OURS),
        (Outcome.DELETED, Code.UNREFERENCED),
    ]
    scene.offload = POLICY
    scene.send(scene.message(scene.gone_uuid, scene.gone, TOPIC, bucket="empty"))
    assert [d.outcome for d in scene.delete()] == [Outcome.GONE]
    assert json.loads(scene.cluster.journal.rows[-1].detail)["bucket"] == "empty"


def test_a_mark_newer_than_the_scan_waits(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.cluster.wait(1)
    scene.mark(scene.gone)
    scene.one(Outcome.WAITING, Waiting.NO_SCAN)


def test_a_marked_ledger_that_its_topic_still_lists_is_in_use(scene: Scene) -> None:
    scene.mark(scene.gone)
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.gone)
    scene.list(TOPIC, **{f"_{scene.gone}": attempt(uuid4())})
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.STILL_IN_USE)


def test_what_the_earlier_scan_still_found_named_is_not_confirmed(scene: Scene) -> None:
    scene.list(TOPIC, **{f"_{scene.gone}": attempt(scene.gone_uuid)})
    scene.age()
    scene.list(TOPIC)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.NOT_CONFIRMED)


def test_objects_younger_than_the_earlier_scan_or_the_grace_period_are_kept(scene: Scene) -> None:
    scene.put(scene.gone_uuid, scene.gone, TOPIC)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.NOT_CONFIRMED)


def test_objects_within_the_grace_period_are_kept(scene: Scene) -> None:
    scene.put(scene.gone_uuid, scene.gone, TOPIC)
    scene.cluster.wait(1)
    scene.before = None
    scene.rescan()
    scene.before = scene.now
    scene.cluster.wait(25)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Finding.TOO_YOUNG)


@pytest.mark.parametrize(
    ("context", "in_bookkeeper", "outcome"),
    [
        (None, True, Outcome.DELETED),
        (None, False, Outcome.KEPT),
        (attempt(UUID(int=7), complete=False), True, Outcome.DELETED),
        (attempt(UUID(int=7), complete=False), False, Outcome.KEPT),
        (attempt(UUID(int=7), complete=False, bookkeeper_deleted=True), True, Outcome.KEPT),
        (attempt(UUID(int=7), bookkeeper_deleted=True), False, Outcome.DELETED),
    ],
)
def test_an_earlier_attempt_of_a_listed_ledger_goes_only_if_another_copy_is_known(
    scene: Scene, context: OffloadContext | None, in_bookkeeper: bool, outcome: str
) -> None:
    if in_bookkeeper:
        scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.gone)
    read = scene.put(UUID(int=7), scene.gone, TOPIC) if context and context.complete else set[str]()
    relist(scene, context)
    scene.send(scene.intent)
    if outcome == Outcome.DELETED:
        assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
        assert scene.keys == scene.live_keys | read
    else:
        scene.one(Outcome.KEPT, Code.LAST_COPY)


def relist(scene: Scene, context: OffloadContext | None) -> None:
    """The topic lists the ledger of the stale objects again, long ago."""
    contexts = {scene.live: attempt(scene.live_uuid)} | ({scene.gone: context} if context else {})
    scene.cluster.topic(TOPIC, [scene.live, scene.last, scene.gone], offloaded=contexts)
    scene.age()


def gone_key(index: bool) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        del scene.buckets.objects[BUCKET][(index_key if index else data_key)(UUID(int=7), scene.gone)]

    return act


def empty_data(scene: Scene) -> None:
    key = data_key(UUID(int=7), scene.gone)
    head = scene.buckets.objects[BUCKET][key]
    scene.buckets.objects[BUCKET][key] = replace(head, size=149)


@pytest.mark.parametrize("delisted", [False, True])
@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (gone_key(index=False), "its data object is missing"),
        (gone_key(index=True), "its index object is missing"),
        (empty_data, "its data object has 149 bytes, its ledger takes 150 at least"),
    ],
)
def test_an_earlier_attempt_stays_where_the_objects_that_its_topic_reads_are_not_whole(
    scene: Scene, damage: Callable[[Scene], None], reason: str, delisted: bool
) -> None:
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.gone)
    scene.put(UUID(int=7), scene.gone, TOPIC)
    relist(scene, attempt(UUID(int=7), bookkeeper_deleted=delisted))
    damage(scene)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.LAST_COPY, f"the copy that its topic reads is not proven: {reason}")


@pytest.mark.parametrize(("driver", "bucket"), [("aws-s3", "elsewhere"), ("google-cloud-storage", BUCKET)])
def test_an_earlier_attempt_stays_where_its_topic_reads_what_we_cannot_look_at(
    scene: Scene, driver: str, bucket: str
) -> None:
    scene.put(UUID(int=7), scene.gone, TOPIC, bucket=bucket)
    relist(scene, OffloadContext(UUID(int=7), True, True, 1, driver, {"bucket": bucket}))
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.LAST_COPY, "it lies in none of object_store.buckets")


@pytest.mark.parametrize(
    ("error", "outcome", "code"),
    [
        (Unavailable("503 SlowDown"), Outcome.RETRYING, Code.OBJECTS_UNREAD),
        (AccessDenied("403"), Outcome.WAITING, Waiting.OBJECT_STORE_DENIES),
    ],
)
def test_an_earlier_attempt_stays_until_the_objects_that_its_topic_reads_can_be_looked_at(
    scene: Scene, error: LifecycleError, outcome: str, code: Code | Waiting
) -> None:
    read = scene.put(UUID(int=7), scene.gone, TOPIC)
    relist(scene, attempt(UUID(int=7), bookkeeper_deleted=True))
    scene.send(scene.intent)

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        if read & set(keys):
            raise error

    scene.store.before = fail
    scene.one(outcome, code, str(error))


def dropped(scene: Scene) -> None:
    scene.cluster.reader.collected["bookie-1:3181"] = {scene.gone}


def unanswered(scene: Scene) -> None:
    scene.cluster.reader.unanswered.add("bookie-1:3181")


def another(scene: Scene) -> None:
    scene.cluster.ledger(data_tags(OTHER), ledger_id=scene.gone)


def opened(scene: Scene) -> None:
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.gone, state=LedgerState.OPEN)


def unread(scene: Scene) -> None:
    scene.cluster.zookeeper.unreadable.add(scene.cluster.path(scene.gone))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (dropped, "of 1 entries that its bookies were asked for, 1 are on none of them and 0 not shown"),
        (unanswered, "of 1 entries that its bookies were asked for, 0 are on none of them and 1 not shown"),
        (another, "says that it is of acme/orders/persistent/other"),
        (opened, "never closed"),
        (unread, "its z-node in BookKeeper could not be read"),
    ],
)
def test_the_z_node_of_a_ledger_proves_no_copy_in_bookkeeper(
    scene: Scene, what: Callable[[Scene], None], reason: str
) -> None:
    """It may have come back from a backup, after the bookies dropped the entries."""
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.gone)
    relist(scene, None)
    scene.send(scene.intent)
    what(scene)
    scene.one(Outcome.KEPT, Code.LAST_COPY, reason)


def test_a_ledger_that_only_another_topic_lists_needs_another_copy_too(scene: Scene) -> None:
    scene.cluster.topic(OTHER, [scene.gone])
    scene.age()
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.LAST_COPY)


def test_a_ledger_is_not_unlisted_while_its_topic_is_away(scene: Scene) -> None:
    relist(scene, None)
    scene.cluster.remove(scene.cluster.topic_path(TOPIC))
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, Code.LAST_COPY)


def test_our_own_first_phase_took_the_ledger_off_the_list_that_an_earlier_scan_saw(scene: Scene) -> None:
    relist(scene, None)
    scene.list(TOPIC)
    scene.mark(scene.gone)
    scene.send(scene.intent)
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
