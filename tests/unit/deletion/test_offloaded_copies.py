"""Which offloaded copies a deletion run deletes, and what keeps every other one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from uuid import UUID, uuid4

import pytest

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.deletion import offloaded_copies
from pulsar_lifecycle.deletion.run_evidence import OffloadPolicy
from pulsar_lifecycle.errors import (
    AccessDenied,
    CorruptFormat,
    LeaseLost,
    LifecycleError,
    NotFound,
    Paused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats.deletion_message import LedgerType, PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import OffloadContext, OffloadSegment
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.journal.in_doubt import lost_copies
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicInternals
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records.copies import Asked
from pulsar_lifecycle.records.offload_uuids import OffloadUuids
from pulsar_lifecycle.records.outcomes import Action, Outcome, Waiting
from pulsar_lifecycle.runs import control
from tests.kit.fakes.metadata_store import Operation
from tests.simulation.cluster import data_tags
from tests.simulation.offloaded import BUCKET, CLUSTER, DATA, INDEX, POLICY, Offloading, attempt, metadata
from tests.simulation.pipeline import Policy

TOPIC = Topic.parse("persistent://acme/orders/a+b c~é-partition-0")
OTHER = Topic.parse("persistent://acme/orders/other")


class Scene(Offloading):
    """A live offloaded ledger, and the objects of one whose ledger left its topic more than a week ago."""

    def __init__(self) -> None:
        super().__init__()
        self.live_uuid, self.gone_uuid = uuid4(), uuid4()
        self.live, self.last, self.gone = (self.ledger(TOPIC) for _ in range(3))
        self.cluster.remove(self.cluster.path(self.gone))
        self.list(TOPIC)
        self.cluster.topic(OTHER, [self.ledger(OTHER)])
        self.live_keys = self.put(self.live_uuid, self.live, TOPIC)
        self.gone_keys = self.put(self.gone_uuid, self.gone, TOPIC)
        self.age()

    def list(self, topic: Topic, **others: OffloadContext) -> None:
        contexts = {self.live: attempt(self.live_uuid, bookkeeper_deleted=True)} | {
            int(i[1:]): c for i, c in others.items()
        }
        self.cluster.topic(topic, sorted({self.live, self.last, *contexts}), offloaded=contexts)

    @property
    def intent(self) -> PendingDeleteLedgerInfo:
        return self.message(self.gone_uuid, self.gone, TOPIC)

    def mark(self, ledger_id: int, topic: Topic = TOPIC, uuid: UUID | None = None, bucket: str | None = None) -> None:
        self.marked[ledger_id] = Asked(str(topic), uuid, bucket), self.cluster.clock.now_ms()

    @property
    def keys(self) -> set[str]:
        return self.buckets.keys(BUCKET)

    def one(self, outcome: str, reason: str, wrap: Callable[[Ports], Ports] = lambda ports: ports) -> None:
        """The one message on the queue ends like this, and nothing was deleted."""
        keys = self.keys
        (decision,) = self.delete(wrap)
        assert (decision.outcome, reason in decision.reason) == (outcome, True), (decision.outcome, decision.reason)
        assert self.keys == keys
        assert not [r for r in self.store.requests if r[0] == "delete_many"]
        (row,) = [row for row in self.cluster.journal.rows if row.action != Action.OPERATOR_WORD]
        assert (row.phase, row.outcome, row.reason) == ("delete", outcome, decision.reason)
        waits = outcome in (Outcome.WAITING, Outcome.RETRYING)
        assert len(self.cluster.deletion_topics.waiting) == waits


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
    assert (decision.outcome, decision.reason) == (Outcome.DELETED, "nothing refers to it")
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
    assert [(d.outcome, d.reason) for d in scene.delete()] == [(Outcome.GONE, "neither of its objects exists any more")]


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


# ----------------------------------------------------------------------------------------------- messages that must not


def test_a_message_newer_than_the_scan_waits(scene: Scene) -> None:
    scene.rescan()
    scene.cluster.wait(1)
    scene.send()
    now = scene.now
    scene.send(scene.intent)
    scene.now = now
    scene.one(Outcome.WAITING, "no covered scan has started since it was sent")


@pytest.mark.parametrize("driver", ["google-cloud-storage", "azureblob", "aliyun-oss", "filesystem", "transient", "x"])
def test_objects_of_another_driver_are_kept(scene: Scene, driver: str) -> None:
    scene.send(scene.message(scene.gone_uuid, scene.gone, TOPIC, driver=driver))
    scene.one(Outcome.KEPT, f"its driver is {driver}")


def test_without_an_object_store_a_message_waits(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.offload = None
    scene.one(Outcome.WAITING, "object_store is not set")


@pytest.mark.parametrize(
    ("bucket", "why"), [("elsewhere", "object_store.buckets"), (None, "names no bucket"), ("", "no")]
)
def test_a_bucket_that_is_not_declared_is_refused(scene: Scene, bucket: str | None, why: str) -> None:
    scene.put(scene.gone_uuid, scene.gone, TOPIC, bucket="elsewhere")
    scene.send(scene.message(scene.gone_uuid, scene.gone, TOPIC, bucket=bucket))
    scene.one(Outcome.REFUSED, why)
    assert scene.store.requests == []
    assert len(scene.buckets.keys("elsewhere")) == 2


def test_a_message_about_the_live_copy_is_kept_whoever_sends_it(scene: Scene) -> None:
    scene.send(scene.message(scene.live_uuid, scene.live, TOPIC))
    scene.one(Outcome.KEPT, "still in use: the newest scan found its UUID")


def test_a_live_copy_is_kept_even_if_our_own_first_phase_marked_its_ledger(scene: Scene) -> None:
    scene.mark(scene.live)
    scene.send(scene.message(scene.live_uuid, scene.live, TOPIC))
    scene.one(Outcome.KEPT, "still in use")


def test_a_uuid_that_another_topic_names_is_kept(scene: Scene) -> None:
    other = scene.ledger(OTHER)
    scene.cluster.topic(OTHER, [other], offloaded={other: attempt(scene.gone_uuid)})
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "the newest scan found its UUID")


def test_a_shadow_topic_that_lists_the_ledger_keeps_it(scene: Scene) -> None:
    shadow = Topic.parse("persistent://acme/orders/shadow")
    scene.cluster.topic(shadow, [scene.gone], offloaded={scene.gone: attempt(scene.gone_uuid)}, shadow_of=str(TOPIC))
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "kept: source of a shadow topic")
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
    scene.one(Outcome.KEPT, "still in use")


def test_what_a_topic_names_only_now_is_retried_while_young_and_kept_later(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.list(TOPIC, **{f"_{scene.gone}": attempt(scene.gone_uuid)})
    scene.one(Outcome.KEPT, "its topic's z-node names its UUID")


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
    scene.one(Outcome.RETRYING, "still in use")


def test_a_forger_who_names_another_topic_is_told_by_the_object(scene: Scene) -> None:
    scene.send(scene.message(scene.gone_uuid, scene.gone, OTHER))
    scene.one(Outcome.KEPT, f"the object is of {TOPIC.managed_ledger}")


def test_a_forger_who_names_a_live_ledgers_other_topic_finds_its_uuid_in_use(scene: Scene) -> None:
    scene.send(scene.message(scene.live_uuid, scene.live, OTHER))
    scene.one(Outcome.KEPT, "still in use")


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
    scene.one(Outcome.KEPT, why)


def test_an_object_younger_than_the_message_is_another_attempts(scene: Scene) -> None:
    scene.mark(scene.gone)
    scene.send(scene.intent)
    scene.put(scene.gone_uuid, scene.gone, TOPIC)
    scene.one(Outcome.KEPT, "younger than the message")


@pytest.mark.parametrize(
    ("topic", "policy", "why"),
    [
        (TOPIC, Policy(holds=frozenset({"acme/orders"})), "legal hold"),
        (TOPIC, Policy(holds=frozenset({str(TOPIC.partitioned_parent)})), "legal hold"),
        (
            Topic.parse("persistent://gone/away/x"),
            Policy(),
            "foreign: namespace gone/away exists under no declared root",
        ),
        (Topic.parse("persistent://acme/orders/__change_events"), Policy(), "system topic"),
        (Topic.parse("persistent://acme/orders/x-s__transaction_pending_ack"), Policy(system_topics=True), "never"),
    ],
)
def test_owners_that_keep_their_ledgers_keep_their_objects(
    scene: Scene, topic: Topic, policy: Policy, why: str
) -> None:
    scene.policy = policy
    scene.put(scene.gone_uuid, scene.gone, topic)
    scene.mark(scene.gone, topic)
    scene.send(scene.message(scene.gone_uuid, scene.gone, topic))
    scene.one(Outcome.KEPT, why)


@pytest.mark.parametrize("name", ["persistent://acme/orders/..", "persistent://acme/orders/."])
def test_a_topic_that_cannot_be_is_refused(scene: Scene, name: str) -> None:
    scene.send(replace(scene.intent, topic_name=name))
    scene.one(Outcome.REFUSED, "which no topic can be called")


def test_undecoded_topics_may_name_anything(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.undecoded = 1
    scene.one(Outcome.WAITING, "could not be decoded")


# ---------------------------------------------------------------------------- what our own first phase did not ask for


def test_a_foreign_message_needs_the_operators_word_that_the_buckets_are_ours_alone(scene: Scene) -> None:
    scene.offload = OffloadPolicy(POLICY.buckets, CLUSTER)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "object_store.exclusive is not set")


def test_our_own_first_phase_needs_no_earlier_scan_and_no_grace_period(scene: Scene) -> None:
    uuid, ledger = uuid4(), scene.ledger(TOPIC)
    scene.put(uuid, ledger, TOPIC)
    scene.list(TOPIC, **{f"_{ledger}": attempt(uuid)})
    scene.age()
    scene.list(TOPIC)
    scene.mark(ledger)
    scene.offload = OffloadPolicy(POLICY.buckets, CLUSTER)
    scene.send(scene.message(uuid, ledger, TOPIC))
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
    assert scene.keys == scene.live_keys | scene.gone_keys


def test_the_mark_is_of_one_topic(scene: Scene) -> None:
    scene.mark(scene.gone, OTHER)
    scene.offload = OffloadPolicy(POLICY.buckets, CLUSTER)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "object_store.exclusive is not set")


def test_a_message_about_another_attempt_has_no_part_in_the_mark_of_ours(scene: Scene) -> None:
    """Anyone may send one about a UUID of his own."""
    ours, stale, ledger = uuid4(), uuid4(), scene.ledger(TOPIC)
    scene.put(ours, ledger, TOPIC)
    scene.put(stale, ledger, TOPIC)
    scene.mark(ledger, uuid=ours)
    scene.rescan()
    scene.offload = OffloadPolicy(POLICY.buckets, CLUSTER)
    scene.send(*(scene.message(uuid, ledger, TOPIC) for uuid in (uuid4(), stale, ours)))
    assert [(d.outcome, d.reason) for d in scene.delete()] == [
        *[(Outcome.KEPT, "our own first phase did not ask for it, and object_store.exclusive is not set")] * 2,
        (Outcome.DELETED, "nothing refers to it"),
    ]


def test_a_message_that_names_another_bucket_has_no_part_in_the_mark_of_ours(scene: Scene) -> None:
    """There it finds nothing; ours goes on waiting for its own."""
    scene.mark(scene.gone, uuid=scene.gone_uuid, bucket=BUCKET)
    scene.rescan()
    scene.offload = OffloadPolicy(POLICY.buckets, CLUSTER)
    scene.send(scene.message(scene.gone_uuid, scene.gone, TOPIC, bucket="empty"), scene.intent)
    assert [(d.outcome, d.reason) for d in scene.delete()] == [
        (Outcome.KEPT, "our own first phase did not ask for it, and object_store.exclusive is not set"),
        (Outcome.DELETED, "nothing refers to it"),
    ]
    scene.offload = POLICY
    scene.send(scene.message(scene.gone_uuid, scene.gone, TOPIC, bucket="empty"))
    assert [d.outcome for d in scene.delete()] == [Outcome.GONE]
    assert json.loads(scene.cluster.journal.rows[-1].detail)["bucket"] == "empty"


def test_a_mark_newer_than_the_scan_waits(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.cluster.wait(1)
    scene.mark(scene.gone)
    scene.one(Outcome.WAITING, "since its ledger left its topic")


def test_a_marked_ledger_that_its_topic_still_lists_is_in_use(scene: Scene) -> None:
    scene.mark(scene.gone)
    scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.gone)
    scene.list(TOPIC, **{f"_{scene.gone}": attempt(uuid4())})
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "its topic's z-node lists the ledger")


def test_what_the_earlier_scan_still_found_named_is_not_confirmed(scene: Scene) -> None:
    scene.list(TOPIC, **{f"_{scene.gone}": attempt(scene.gone_uuid)})
    scene.age()
    scene.list(TOPIC)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "not confirmed: the earlier scan still found its UUID")


def test_objects_younger_than_the_earlier_scan_or_the_grace_period_are_kept(scene: Scene) -> None:
    scene.put(scene.gone_uuid, scene.gone, TOPIC)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "not confirmed: younger than the earlier of two scans")


def test_objects_within_the_grace_period_are_kept(scene: Scene) -> None:
    scene.put(scene.gone_uuid, scene.gone, TOPIC)
    scene.cluster.wait(1)
    scene.before = None
    scene.rescan()
    scene.before = scene.now
    scene.cluster.wait(25)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "younger than the grace period")


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
        scene.one(Outcome.KEPT, "no other copy of it is known")


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
    scene.one(Outcome.KEPT, f"the copy that its topic reads is not proven: {reason}")


@pytest.mark.parametrize(("driver", "bucket"), [("aws-s3", "elsewhere"), ("google-cloud-storage", BUCKET)])
def test_an_earlier_attempt_stays_where_its_topic_reads_what_we_cannot_look_at(
    scene: Scene, driver: str, bucket: str
) -> None:
    scene.put(UUID(int=7), scene.gone, TOPIC, bucket=bucket)
    relist(scene, OffloadContext(UUID(int=7), True, True, 1, driver, {"bucket": bucket}))
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "it lies in none of object_store.buckets")


@pytest.mark.parametrize(
    ("error", "outcome"), [(Unavailable("503 SlowDown"), Outcome.RETRYING), (AccessDenied("403"), Outcome.WAITING)]
)
def test_an_earlier_attempt_stays_until_the_objects_that_its_topic_reads_can_be_looked_at(
    scene: Scene, error: LifecycleError, outcome: str
) -> None:
    read = scene.put(UUID(int=7), scene.gone, TOPIC)
    relist(scene, attempt(UUID(int=7), bookkeeper_deleted=True))
    scene.send(scene.intent)

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        if read & set(keys):
            raise error

    scene.store.before = fail
    scene.one(outcome, str(error))


def dropped(scene: Scene) -> None:
    scene.cluster.reader.collected["bookie-1:3181"] = {scene.gone}


def silent(scene: Scene) -> None:
    scene.cluster.reader.silent.add("bookie-1:3181")


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
        (silent, "of 1 entries that its bookies were asked for, 0 are on none of them and 1 not shown"),
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
    scene.one(Outcome.KEPT, reason)


def test_a_ledger_that_only_another_topic_lists_needs_another_copy_too(scene: Scene) -> None:
    scene.cluster.topic(OTHER, [scene.gone])
    scene.age()
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "no other copy of it is known")


def test_a_ledger_is_not_unlisted_while_its_topic_is_away(scene: Scene) -> None:
    relist(scene, None)
    scene.cluster.remove(scene.cluster.topic_path(TOPIC))
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "not confirmed: an earlier scan still found its ledger listed")


def test_our_own_first_phase_took_the_ledger_off_the_list_that_an_earlier_scan_saw(scene: Scene) -> None:
    relist(scene, None)
    scene.list(TOPIC)
    scene.mark(scene.gone)
    scene.send(scene.intent)
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]


# ------------------------------------------------------------------------------------------------ every entry of a copy

MANY = [b"%010d" % n for n in range(3_000)]
"""Far more entries than a sample asks for."""


def changed(at: int) -> list[bytes]:
    return [*MANY[:at], b"another 01", *MANY[at + 1 :]]


def name_it(scene: Scene) -> None:
    scene.cluster.topic(TOPIC, [scene.live, scene.last, scene.gone], offloaded={scene.gone: attempt(scene.gone_uuid)})


def copies(
    scene: Scene, stale: Sequence[bytes], other: Sequence[bytes], *, offloaded: bool, index: bool = True
) -> None:
    """Objects that nothing names, and another copy of their ledger: the one that its topic reads, or BookKeeper's."""
    for key in scene.gone_keys:
        scene.buckets.objects[BUCKET].pop(key)
    scene.put(scene.gone_uuid, scene.gone, TOPIC, entries=stale, index=index)
    if offloaded:
        scene.put(UUID(int=7), scene.gone, TOPIC, entries=other)
    else:
        scene.cluster.ledger(data_tags(TOPIC), ledger_id=scene.gone, entries=other)
    infos = {scene.live: attempt(scene.live_uuid)}
    infos |= {scene.gone: attempt(UUID(int=7), bookkeeper_deleted=True)} if offloaded else {}
    scene.cluster.topic(TOPIC, [scene.live, scene.last, scene.gone], offloaded=infos, entries=len(MANY))
    scene.age()
    scene.send(scene.intent)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("offloaded", [False, True])
def test_a_copy_goes_once_every_entry_of_another_is_the_same(scene: Scene, offloaded: bool, index: bool) -> None:
    copies(scene, MANY, MANY, offloaded=offloaded, index=index)
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
    assert not any(str(scene.gone_uuid) in key for key in scene.keys)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("offloaded", [False, True])
@pytest.mark.parametrize("at", [0, 1234, len(MANY) - 1])
def test_one_entry_that_differs_keeps_a_copy(scene: Scene, at: int, offloaded: bool, index: bool) -> None:
    copies(scene, MANY, changed(at), offloaded=offloaded, index=index)
    scene.one(Outcome.KEPT, f"was to be the same: entry {at} has CRC32C")


@pytest.mark.parametrize("offloaded", [False, True])
@pytest.mark.parametrize(("stale", "other"), [(MANY[:-1], MANY), (MANY, MANY[:-1])])
def test_a_copy_that_has_another_end_stays(
    scene: Scene, stale: list[bytes], other: list[bytes], offloaded: bool
) -> None:
    copies(scene, stale, other, offloaded=offloaded)
    shorter = offloaded and len(other) < len(MANY)
    scene.one(Outcome.KEPT, "its ledger takes 66128 at least" if shorter else f"has entry {len(MANY) - 1}, ")


def test_an_entry_that_bookkeeper_cannot_give_keeps_a_copy(scene: Scene) -> None:
    copies(scene, MANY, MANY, offloaded=False)
    scene.cluster.reader.failures[scene.gone] = CorruptFormat("entry 3:1234", 24, "its digest")
    scene.one(Outcome.KEPT, "one of them cannot be read: entry 3:1234")


def test_a_bookie_that_is_silent_while_entries_are_read_is_asked_again(scene: Scene) -> None:
    copies(scene, MANY, MANY, offloaded=False)
    scene.cluster.reader.failures[scene.gone] = Unavailable("bookie-1: timed out")
    scene.one(Outcome.RETRYING, "the copies of its ledger could not be looked at: bookie-1: timed out")


@pytest.mark.parametrize("offloaded", [False, True])
def test_damage_of_its_own_keeps_a_copy(scene: Scene, offloaded: bool) -> None:
    copies(scene, MANY, MANY, offloaded=offloaded)
    key = data_key(scene.gone_uuid, scene.gone)
    data = bytearray(scene.buckets.data[BUCKET, key])
    data[200] ^= 1
    scene.buckets.data[BUCKET, key] = bytes(data)
    scene.one(Outcome.KEPT, "was to be the same" if data[200] in range(48, 58) else "one of them")


def test_a_batch_compares_as_much_as_it_may_and_the_others_have_their_turn_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run that is always stopped before its batch is read would begin anew each time."""
    copies(scene, MANY, MANY, offloaded=False)
    second = UUID(int=9)
    scene.put(second, scene.gone, TOPIC, entries=MANY)
    scene.age()
    scene.send(scene.message(second, scene.gone, TOPIC))
    monkeypatch.setattr(offloaded_copies, "COMPARED_AT_ONCE", 1)
    assert sorted((d.outcome, d.waiting) for d in scene.delete()) == [
        (Outcome.DELETED, None),
        (Outcome.WAITING, Waiting.TURN),
    ]
    scene.cluster.wait(1)
    scene.rescan()
    assert [d.outcome for d in scene.delete(run_id="next")] == [Outcome.DELETED]


def test_a_pause_ends_the_reading_and_the_budget_counts_it(scene: Scene) -> None:
    copies(scene, MANY, MANY, offloaded=False)
    told: list[int] = []

    def pace(size: int) -> None:
        told.append(size)
        scene.cluster.clock.sleep(3)
        if len(told) == 5:
            scene.cluster.put(control.PAUSE, b"")

    def paced(ports: Ports) -> Ports:
        ports.pace = pace
        return ports

    with pytest.raises(Paused):
        scene.delete(paced)
    (row,) = scene.cluster.journal.rows
    assert (row.outcome, row.reason.startswith("the run was stopped: paused")) == (Outcome.WAITING, True)
    assert len(told) == 5
    scene.cluster.remove(control.PAUSE)
    scene.cluster.journal.rows.clear()
    told.extend([0] * 5)
    assert [d.outcome for d in scene.delete(paced)] == [Outcome.DELETED]
    assert sum(told) > 2 * sum(map(len, MANY))


@pytest.mark.parametrize(
    ("change", "outcome", "reason"),
    [
        (lambda s: s.cluster.remove(s.cluster.path(s.gone)), Outcome.KEPT, "BookKeeper does not have it"),
        (name_it, Outcome.KEPT, "its topic's z-node names its UUID"),
        (
            lambda s: attempts.begin(
                s.cluster.open_store(),
                Attempt(s.gone, str(TOPIC), s.gone_uuid, "aws-s3", (("bucket", BUCKET),), 1, "run", 0),
            ),
            Outcome.KEPT,
            "it is an open offload attempt of ours",
        ),
        (lambda s: s.put(s.gone_uuid, s.gone, TOPIC, entries=[b"new"]), Outcome.KEPT, "younger than the message"),
    ],
)
def test_what_changes_while_copies_are_read_is_seen(
    scene: Scene, change: Callable[[Scene], object], outcome: str, reason: str
) -> None:
    copies(scene, MANY, MANY, offloaded=False)
    left = [change]

    def changing(ports: Ports) -> Ports:
        ports.pace = lambda size: left.pop()(scene) if left else None
        return ports

    (decision,) = scene.delete(changing)
    assert (decision.outcome, reason in decision.reason) == (outcome, True), decision.reason
    assert data_key(scene.gone_uuid, scene.gone) in scene.keys


def test_copies_that_no_topic_lists_are_not_read(scene: Scene) -> None:
    scene.send(scene.intent)
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
    assert not [r for r in scene.store.requests if r[0] == "get"]


# ----------------------------------------------------------------------------------------------------- the owner's word


def test_an_owner_that_cannot_be_read_is_asked_again(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.cluster.zookeeper.unreadable.add(scene.cluster.topic_path(TOPIC))
    scene.one(Outcome.RETRYING, "its owner could not be asked")


def test_an_owner_that_cannot_be_decoded_is_asked_again(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.cluster.put(scene.cluster.topic_path(TOPIC), b"\xff\xff\xff")
    scene.one(Outcome.RETRYING, "its owner could not be asked")


def test_a_topic_just_written_may_be_loading(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.list(TOPIC)
    scene.one(Outcome.RETRYING, "its topic's z-node was just written")


def test_what_a_broker_holds_in_memory_is_asked_again(scene: Scene) -> None:
    last = scene.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN)
    scene.cluster.topic(TOPIC, [scene.live, last], offloaded={scene.live: attempt(scene.live_uuid)})
    scene.cluster.load(TOPIC)
    scene.cluster.admin.internals[TOPIC] = TopicInternals("LedgerOpened", (scene.gone,), {}, {}, None, ())
    scene.age()
    scene.send(scene.intent)
    scene.one(Outcome.RETRYING, "its broker holds it in memory")


def test_a_topic_that_a_broker_lists_without_a_z_node_is_asked_again(scene: Scene) -> None:
    scene.cluster.remove(scene.cluster.topic_path(TOPIC))
    scene.cluster.load(TOPIC)
    scene.age()
    scene.send(scene.intent)
    scene.one(Outcome.RETRYING, "still lists it")


# ------------------------------------------------------------------------------------- our own open offload attempts


def begin(scene: Scene, uuid: UUID, ledger_id: int) -> Attempt:
    place = (("bucket", BUCKET),)
    open_attempt = Attempt(ledger_id, str(TOPIC), uuid, "aws-s3", place, 5 << 20, "run", scene.cluster.clock.now_ms())
    attempts.begin(scene.cluster.open_store(), open_attempt)
    return open_attempt


@pytest.mark.parametrize("marked", [False, True])
def test_an_open_attempt_of_ours_is_kept_though_no_topic_names_it(scene: Scene, marked: bool) -> None:
    begin(scene, scene.gone_uuid, scene.gone)
    if marked:
        scene.mark(scene.gone)
    scene.send(scene.intent)
    scene.one(Outcome.KEPT, "still in use: it is an open offload attempt of ours")


def test_an_attempt_begun_after_the_scan_is_seen(scene: Scene) -> None:
    scene.send(scene.intent)
    begin(scene, scene.gone_uuid, scene.gone)
    scene.one(Outcome.KEPT, "an open offload attempt of ours")


def test_an_attempt_of_another_ledger_or_uuid_keeps_nothing(scene: Scene) -> None:
    begin(scene, uuid4(), scene.gone)
    begin(scene, scene.gone_uuid, scene.last)
    scene.send(scene.intent)
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]
    assert scene.keys == scene.live_keys


@pytest.mark.parametrize("data", [b"", b"{}", b"not ours", None])
def test_an_attempt_that_cannot_be_read_may_be_any(scene: Scene, data: bytes | None) -> None:
    path = begin(scene, uuid4(), scene.gone).path
    if data is None:
        scene.cluster.zookeeper.unreadable.add(path)
    else:
        scene.cluster.put(path, data)
    scene.send(scene.intent)
    scene.one(Outcome.WAITING, path)


def test_an_attempt_that_cannot_be_read_hinders_no_other_ledger(scene: Scene) -> None:
    scene.cluster.put(begin(scene, uuid4(), scene.live).path, b"{}")
    scene.send(scene.message(scene.live_uuid, scene.live, TOPIC), scene.intent)
    assert [d.outcome for d in scene.delete()] == [Outcome.KEPT, Outcome.DELETED]
    assert scene.keys == scene.live_keys


def test_an_attempt_that_is_committed_and_ended_while_it_is_asked_for_is_seen_one_way_or_the_other(
    scene: Scene,
) -> None:
    open_attempt, path = begin(scene, scene.gone_uuid, scene.gone), scene.cluster.topic_path(TOPIC)
    scene.send(scene.intent)

    def wrap(ports: Ports) -> Ports:
        def commit(operation: Operation) -> None:
            if operation.name == "read" and {open_attempt.path, path} & set(operation.paths):
                ports.store.after = lambda operation: None  # type: ignore[attr-defined]
                scene.list(TOPIC, **{f"_{scene.gone}": attempt(scene.gone_uuid)})
                attempts.end(scene.cluster.open_store(), open_attempt)

        ports.store.after = commit  # type: ignore[attr-defined]
        return ports

    scene.one(Outcome.KEPT, "still in use", wrap)
    assert attempts.open_attempts(scene.cluster.open_store()) == []


# --------------------------------------------------------------------------------------------------- the object's word


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Unavailable("503 SlowDown"), Outcome.RETRYING),
        (StoreError("400"), Outcome.RETRYING),
        (AccessDenied("403"), Outcome.WAITING),
        (NotFound("there is no bucket"), Outcome.WAITING),
    ],
)
def test_objects_that_cannot_be_looked_at_stay(scene: Scene, error: LifecycleError, outcome: str) -> None:
    scene.send(scene.intent)

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        if keys[0].endswith("-index"):
            raise error

    scene.store.before = fail
    scene.one(outcome, str(error))


def test_a_declared_bucket_that_is_not_there_makes_messages_wait(scene: Scene) -> None:
    scene.offload = OffloadPolicy(frozenset({"no-such-bucket"}), CLUSTER, exclusive=True)
    scene.send(scene.message(scene.gone_uuid, scene.gone, TOPIC, bucket="no-such-bucket"))
    scene.one(Outcome.WAITING, "there is no bucket no-such-bucket")


@pytest.mark.parametrize("hook", ["before", "after"])
def test_after_a_deletion_without_an_answer_what_is_there_decides(scene: Scene, hook: str) -> None:
    scene.send(scene.intent)

    def lost(name: str, bucket: str, keys: Sequence[str]) -> None:
        if name == "delete_many":
            raise Unavailable("connection reset")

    setattr(scene.store, hook, lost)
    (decision,) = scene.delete()
    if hook == "after":
        assert (decision.outcome, scene.keys) == (Outcome.DELETED, scene.live_keys)
        return
    assert (decision.outcome, decision.reason) == (Outcome.RETRYING, "it was not deleted: connection reset")
    assert scene.keys == scene.live_keys | scene.gone_keys
    scene.store.before = lambda name, bucket, keys: None
    scene.cluster.wait(1)
    scene.rescan()
    assert [d.outcome for d in scene.delete()] == [Outcome.DELETED]


def test_when_nothing_answers_after_the_deletion_the_next_run_finds_it_gone(scene: Scene) -> None:
    scene.send(scene.intent, scene.intent)
    down = False

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        if down:
            raise Unavailable("503")

    def cut(name: str, bucket: str, keys: Sequence[str]) -> None:
        nonlocal down
        down = True

    def lost() -> set[str]:
        return set(lost_copies(asdict(row) for row in scene.cluster.journal.rows))

    pair = {f"s3://{BUCKET}/{key}" for key in scene.gone_keys}
    scene.store.before, scene.store.after = fail, cut
    first, twin = scene.delete()
    assert (first.outcome, twin.outcome) == (Outcome.RETRYING, Outcome.RETRYING)
    assert "not known" in first.reason
    assert lost() == pair
    down = False
    scene.store.after = lambda name, bucket, keys: None
    scene.cluster.wait(1)
    scene.rescan()
    assert [d.outcome for d in scene.delete()] == [Outcome.GONE, Outcome.GONE]
    assert lost() == pair


def test_a_copy_that_is_seen_after_a_deletion_without_an_answer_is_not_lost(scene: Scene) -> None:
    scene.send(scene.intent)
    down = False

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        nonlocal down
        down |= name == "delete_many"
        if down:
            raise Unavailable("503")

    scene.store.before = fail
    scene.delete()
    scene.store.before = lambda name, bucket, keys: None
    scene.offload = replace(POLICY, cluster="another")
    scene.cluster.wait(1)
    scene.rescan()
    assert [d.outcome for d in scene.delete()] == [Outcome.KEPT]
    assert lost_copies(asdict(row) for row in scene.cluster.journal.rows) == {}


def test_a_store_that_never_answers_ends_in_the_dead_letter_topic(scene: Scene) -> None:
    scene.send(scene.intent)

    def fail(name: str, bucket: str, keys: Sequence[str]) -> None:
        raise Unavailable("503")

    scene.store.before = fail
    found = ""
    for _ in range(12):
        found = scene.delete()[0].outcome
        if found == Outcome.DEAD_LETTERED:
            break
        scene.cluster.wait(1)
        scene.rescan()
    assert found == Outcome.DEAD_LETTERED
    assert len(scene.cluster.deletion_topics.dead) == 1
    assert scene.keys == scene.live_keys | scene.gone_keys


def test_a_versioned_bucket_is_said_to_keep_the_bytes(scene: Scene) -> None:
    scene.buckets.versioned.add(BUCKET)
    scene.send(scene.intent)
    (decision,) = scene.delete()
    assert decision.outcome == Outcome.DELETED
    assert "delete marker" in decision.reason


# ------------------------------------------------------------------------------------------------- what stops a run


def stopped_at(scene: Scene, act: Callable[[Ports], None]) -> Callable[[Ports], Ports]:
    """Let something happen once the objects have been looked at."""

    def wrap(ports: Ports) -> Ports:
        scene.store.before = lambda name, bucket, keys: act(ports)
        return ports

    return wrap


def test_a_lost_lease_deletes_nothing(scene: Scene) -> None:
    scene.send(scene.intent)

    def steal(ports: Ports) -> None:
        scene.store.before = lambda name, bucket, keys: None
        scene.cluster.put(control.LEASE, b"{}")

    with pytest.raises(LeaseLost):
        scene.delete(stopped_at(scene, steal))
    assert scene.keys == scene.live_keys | scene.gone_keys
    assert [row.outcome for row in scene.cluster.journal.rows] == ["deleting", Outcome.WAITING]
    assert len(scene.cluster.deletion_topics.waiting) == 1


def test_a_pause_deletes_nothing(scene: Scene) -> None:
    scene.send(scene.intent)
    with pytest.raises(control.Paused):
        scene.delete(stopped_at(scene, lambda ports: control.pause(ports.store, "test")))
    assert scene.keys == scene.live_keys | scene.gone_keys
    assert len(scene.cluster.deletion_topics.waiting) == 1


def test_without_a_journal_nothing_is_deleted(scene: Scene) -> None:
    scene.send(scene.intent)
    scene.cluster.journal.failure = StoreError("disk full")
    with pytest.raises(StoreError):
        scene.delete()
    assert scene.keys == scene.live_keys | scene.gone_keys
    assert len(scene.cluster.deletion_topics.waiting) == 1


def test_scans_without_a_list_of_uuids_make_messages_wait(scene: Scene) -> None:
    class Missing(OffloadUuids):
        def named(self, uuids: object) -> set[UUID]:
            raise NotFound("epochs/e1/offload-uuids.bin does not exist")

    scene.send(scene.intent)
    assert scene.now is not None
    scene.now = replace(scene.now, offload_uuids=Missing())
    scene.one(Outcome.WAITING, "run the job scan again")
