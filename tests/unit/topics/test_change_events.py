"""Which entries of ``__change_events`` count, and when the policies of a namespace's topics are not known."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import fastavro
import pytest

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle._pb import pulsar_schema_pb2
from pulsar_lifecycle.errors import NotFound, Unavailable
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import schema
from pulsar_lifecycle.formats.compression import Compression, compress
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS
from pulsar_lifecycle.model import Namespace, Position, Topic
from pulsar_lifecycle.topics.policies import NamespacePolicies, Unreadable
from pulsar_lifecycle.topics.system_topics.change_events import read_namespace
from pulsar_lifecycle.topics.system_topics.system_topic import LedgerSource
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore
from tests.kit.simulated.cluster import SimulatedCluster, data_tags
from tests.kit.simulated.offloaded import BUCKET, attempt, objects_of

NAMESPACE = Namespace.parse("acme/orders")
EVENTS = Topic(NAMESPACE, CHANGE_EVENTS)
A, B = (Topic(NAMESPACE, name) for name in ("a", "b c"))


def avro(*fields: str) -> dict[str, Any]:
    """A PulsarEvent whose policies have these fields, all of them optional numbers."""
    policies = [{"name": "isGlobal", "type": ["null", "boolean"]}]
    policies += [{"name": name, "type": ["null", "long"]} for name in fields]
    inner = [{"name": n, "type": ["null", "string"]} for n in ("domain", "tenant", "namespace", "topic")]
    inner.append(
        {"name": "policies", "type": ["null", {"type": "record", "name": "TopicPolicies", "fields": policies}]}
    )
    return {
        "type": "record",
        "name": "PulsarEvent",
        "fields": [
            {"name": "eventType", "type": ["null", {"type": "enum", "name": "E", "symbols": ["TOPIC_POLICY"]}]},
            {"name": "actionType", "type": ["null", {"type": "enum", "name": "A", "symbols": ["INSERT", "UPDATE"]}]},
            {"name": "topicPoliciesEvent", "type": ["null", {"type": "record", "name": "T", "fields": inner}]},
        ],
    }


SCHEMAS = [avro("ttl"), avro("renamed", "ttl")]


def payload(topic: Topic, ttl: int, *, everywhere: bool = False, version: int = 0) -> bytes:
    policies = {"isGlobal": everywhere, "ttl": ttl}
    said = {"domain": "persistent", "tenant": "acme", "namespace": "orders", "topic": topic.local}
    event = {"eventType": "TOPIC_POLICY", "actionType": "UPDATE", "topicPoliciesEvent": {**said, "policies": policies}}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMAS[version]), event)
    return out.getvalue()


def entry(
    *messages: tuple[str, bytes | None],
    version: int = 0,
    codec: Compression = Compression.NONE,
    batched: bool = False,
    at: int = 1,
    compacted_out: Sequence[int] = (),
) -> bytes:
    """An entry of (key, value)s as a broker stores it."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=at)
    metadata.schema_version = struct.pack(">q", version)
    if batched:
        metadata.num_messages_in_batch = len(messages)
        body = b""
        for n, (key, value) in enumerate(messages):
            single = pb.SingleMessageMetadata(partition_key=key, payload_size=len(value or b""), null_value=not value)
            single.compacted_out = n in compacted_out
            raw = single.SerializeToString()
            body += struct.pack(">i", len(raw)) + raw + (value or b"")
    else:
        ((key, value),) = messages
        metadata.partition_key, metadata.null_value, body = key, value is None, value or b""
    if codec is not Compression.NONE:
        metadata.compression, metadata.uncompressed_size = codec.value, len(body)  # type: ignore[assignment]
        body = compress(codec, body)
    raw = metadata.SerializeToString()
    return struct.pack(">i", len(raw)) + raw + body


def of(topic: Topic, ttl: int | None, *, everywhere: bool = False, **how: Any) -> bytes:
    key = ("__G__" if everywhere else "") + str(topic)
    value = None if ttl is None else payload(topic, ttl, everywhere=everywhere, version=how.get("version", 0))
    return entry((key, value), **how)


class Scene:
    """A namespace with ``__change_events``, whose schema has two versions."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster()
        self.objects: FakeObjectStore | None = None
        self.schema_ledgers: list[int] = []
        self.listed: list[int] = []
        for n, one in enumerate(SCHEMAS):
            made = json.dumps(one).encode()
            info = pulsar_schema_pb2.SchemaInfo(
                schema_id="x", user="u", type=pulsar_schema_pb2.SchemaInfo.AVRO, schema=made, timestamp=1, deleted=False
            )
            earlier = [schema.IndexEntry(i, Position(self.schema_ledgers[i], 0), b"h") for i in range(n)]
            data = schema.encode_entry(schema.SchemaEntry(info.SerializeToString(), tuple(earlier)))
            self.schema_ledgers.append(self.ledger(data))
        self.locate(0, 1)

    def locate(self, *versions: int) -> None:
        """The schema's z-node lists these versions."""
        index = [schema.IndexEntry(n, Position(self.schema_ledgers[n], 0), b"h") for n in versions]
        path = f"/schemas/{EVENTS.schema_id}"
        self.cluster.put(path, schema.encode_locator(schema.SchemaLocator(index[-1], tuple(index))))

    def ledger(self, *entries: bytes, state: LedgerState = LedgerState.CLOSED) -> int:
        return self.cluster.ledger(data_tags(EVENTS), entries=entries, state=state)

    def list(self, *ledgers: int, part: Topic = EVENTS, **more: Any) -> None:
        self.cluster.topic(part, ledgers, **more)

    def compacted(self, ledger: int, horizon: Position, within: int = -1) -> None:
        info = cursor_format.ManagedCursorInfo(within, horizon, properties={"CompactedTopicLedger": ledger})
        self.cluster.put(f"{self.cluster.topic_path(EVENTS)}/__compaction", cursor_format.encode(info))

    def read(self) -> NamespacePolicies:
        return read_namespace(
            LedgerSource(self.cluster.open_store(read_only=True), self.cluster.reader, lambda: self.objects), NAMESPACE
        )

    @property
    def ttls(self) -> dict[str, tuple[int | None, int | None]]:
        found = self.read()
        assert found.unknown is None, found.unknown
        return {
            topic.local: (own.local and own.local["ttl"], own.everywhere and own.everywhere["ttl"])
            for topic, own in found.topics.items()
        }

    @property
    def code(self) -> Unreadable | None:
        found = self.read()
        assert not found.topics
        return found.unknown.code if found.unknown else None


@pytest.fixture
def scene() -> Scene:
    return Scene()


def as_compacted(position: Position, data: bytes) -> bytes:
    raw = pb.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id).SerializeToString()
    return struct.pack(">i", len(raw)) + raw + struct.pack(">i", len(data)) + data


def test_the_last_event_of_a_topic_counts_local_and_global_apart(scene: Scene) -> None:
    one = scene.ledger(of(A, 1), of(B, 2), of(A, 3, everywhere=True))
    two = scene.ledger(of(A, 4), of(B, None), of(B, 5, everywhere=True))
    scene.list(one, two)
    assert scene.ttls == {"a": (4, 3), "b c": (None, 5)}
    assert scene.read().of(Topic(NAMESPACE, "a-partition-7")).first("ttl") == 4
    assert scene.read().of(Topic(NAMESPACE, "other")).first("ttl") is None


def test_global_policies_of_old_brokers_have_a_local_key(scene: Scene) -> None:
    old = entry((str(A), payload(A, 9, everywhere=True)))
    scene.list(scene.ledger(of(A, 1), old))
    assert scene.ttls == {"a": (1, 9)}


@pytest.mark.parametrize("codec", list(Compression))
def test_batches_and_codecs(scene: Scene, codec: Compression) -> None:
    some = [(str(A), payload(A, 1)), (str(B), payload(B, 2)), (str(A), None)]
    scene.list(scene.ledger(entry(*some, codec=codec, batched=True), of(B, 3, codec=codec)))
    assert scene.ttls == {"b c": (3, None)}


def test_each_message_is_read_by_its_own_schema(scene: Scene) -> None:
    scene.list(scene.ledger(of(A, 1, version=0), of(B, 2, version=1)))
    assert scene.ttls == {"a": (1, None), "b c": (2, None)}
    scene.locate(1)  # the first version is in the index of the second one's ledger alone
    assert scene.ttls == {"a": (1, None), "b c": (2, None)}


def test_policies_are_not_known_where_the_cursor_of_the_compacted_view_has_lost_its_entries(scene: Scene) -> None:
    """A later view, and what was trimmed since, may have had others than the one that its z-node names."""
    view = scene.ledger(as_compacted(Position(1, 0), entry((str(A), payload(A, 7)))))
    first = scene.ledger(of(B, 2))
    scene.list(first)
    scene.compacted(view, Position(first - 1, 0), within=scene.cluster.ledger(data_tags(EVENTS), entries=[]))
    unknown = scene.read().unknown
    assert unknown is not None
    assert unknown.code is Unreadable.UNDECODABLE


def test_the_compacted_view_and_what_lies_behind_it(scene: Scene) -> None:
    """What was compacted is trimmed; of the ledger that the horizon lies in only the end counts."""
    first = scene.ledger(of(A, 1), of(B, 2), of(A, 8))
    view = scene.ledger(
        as_compacted(Position(1, 0), entry((str(A), payload(A, 7)), (str(B), payload(B, 2)), batched=True)),
    )
    scene.list(first)
    scene.compacted(view, Position(first, 1))
    assert scene.ttls == {"b c": (2, None), "a": (8, None)}
    scene.compacted(view, Position(first, 2))
    assert scene.ttls == {"a": (7, None), "b c": (2, None)}
    later = scene.ledger(of(B, None))
    scene.list(later)
    assert scene.ttls == {"a": (7, None)}


def test_what_compaction_took_out_of_a_batch_is_no_event(scene: Scene) -> None:
    some = [(str(A), payload(A, 1)), (str(B), payload(B, 2))]
    view = scene.ledger(as_compacted(Position(1, 0), entry(*some, batched=True, compacted_out=[0])))
    scene.list(scene.ledger(of(A, 5)))
    scene.compacted(view, Position(10**6, 0))
    assert scene.ttls == {"b c": (2, None)}


def test_partitions_are_read_together_by_time(scene: Scene) -> None:
    """A topic whose events are in two partitions, after more were added."""
    parts = [Topic(NAMESPACE, f"{CHANGE_EVENTS}-partition-{n}") for n in range(11)]
    scene.list(scene.ledger(of(A, 2, at=20)), part=parts[0])
    scene.list(scene.ledger(of(A, 1, at=10), of(B, 3, at=30)), part=parts[10])
    assert scene.ttls == {"a": (2, None), "b c": (3, None)}


def test_an_open_ledger_is_read_as_far_as_bookies_show_it(scene: Scene) -> None:
    many = [of(A, n) for n in range(1_200)]
    scene.list(scene.ledger(of(B, 1)), scene.ledger(*many, state=LedgerState.OPEN))
    assert scene.ttls == {"b c": (1, None), "a": (1_199, None)}
    closed = scene.ledger(of(B, 1))
    scene.list(closed, scene.ledger(state=LedgerState.OPEN))  # loaded a moment ago, and never written
    assert scene.ttls == {"b c": (1, None)}


@pytest.mark.parametrize("others", [[], [Topic(NAMESPACE, "a")], [Topic(NAMESPACE, f"{CHANGE_EVENTS}s")]])
def test_a_namespace_without_the_topic_has_none(scene: Scene, others: list[Topic]) -> None:
    for topic in others:
        scene.cluster.topic(topic, [scene.ledger(b"x")])
    assert scene.read() == NamespacePolicies()


def unread(scene: Scene) -> None:
    scene.cluster.zookeeper.unreadable.add(scene.cluster.topic_path(EVENTS))


def unlisted(scene: Scene) -> None:
    scene.cluster.zookeeper.unreadable.add(f"/managed-ledgers/{NAMESPACE}/persistent")


def lost(scene: Scene) -> None:
    scene.cluster.reader.failures[scene.listed[0]] = NotFound("every replica says that the ledger is gone")


def unanswered(scene: Scene) -> None:
    scene.cluster.reader.failures[scene.listed[0]] = Unavailable("timed out")


def deleted(scene: Scene) -> None:
    scene.cluster.remove(scene.cluster.path(scene.listed[0]))


def unclosed(scene: Scene) -> None:
    scene.cluster.ledger(data_tags(EVENTS), ledger_id=scene.listed[0], state=LedgerState.OPEN, entries=[of(A, 1)])


def recovering(scene: Scene) -> None:
    scene.cluster.ledger(
        data_tags(EVENTS), ledger_id=scene.listed[-1], state=LedgerState.IN_RECOVERY, entries=[of(A, 1)]
    )


def no_schema(scene: Scene) -> None:
    scene.cluster.remove(f"/schemas/{EVENTS.schema_id}")


def a_version_too_many(scene: Scene) -> None:
    scene.list(scene.ledger(of(A, 1).replace(struct.pack(">q", 0), struct.pack(">q", 9))))


def no_avro(scene: Scene) -> None:
    scene.list(scene.ledger(entry((str(A), b"\xff" * 5))))


def no_message(scene: Scene) -> None:
    scene.list(scene.ledger(b"junk"))


def strange_topic(scene: Scene) -> None:
    scene.list(scene.ledger(entry(("persistent://other/ns/a", None))))


def chunked(scene: Scene) -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_chunks_from_msg=2, chunk_id=0)
    raw = metadata.SerializeToString()
    scene.list(scene.ledger(struct.pack(">i", len(raw)) + raw + b"x"))


UUID_OF = UUID(int=7)


def offloaded(scene: Scene, bucket: str = BUCKET) -> None:
    """The first ledger is only in a bucket."""
    scene.list(*scene.listed, offloaded={scene.listed[0]: attempt(UUID_OF, bookkeeper_deleted=True, bucket=bucket)})
    scene.cluster.remove(ledger_path(scene.listed[0]))


def in_bucket(scene: Scene, *entries: bytes) -> None:
    """So it is, and the settings name it."""
    offloaded(scene)
    buckets = FakeBuckets(scene.cluster.clock)
    buckets.create(BUCKET)
    if entries:
        data, index = objects_of(entries)
        version = {"s3managedledgeroffloaderformatversion": "1"}
        buckets.put(BUCKET, data_key(UUID_OF, scene.listed[0]), data, version)
        buckets.put(BUCKET, index_key(UUID_OF, scene.listed[0]), index, version)
    scene.objects = FakeObjectStore(buckets)


def to_another_driver(scene: Scene) -> None:
    offloaded(scene)
    context = attempt(UUID_OF, bookkeeper_deleted=True)
    scene.list(*scene.listed, offloaded={scene.listed[0]: replace(context, driver_name="filesystem")})


def lost_in_bucket(scene: Scene) -> None:
    in_bucket(scene)


def longer_in_bucket(scene: Scene) -> None:
    in_bucket(scene, of(A, 1), of(A, 2))


def both(scene: Scene) -> None:
    scene.list(scene.ledger(of(A, 1)), part=Topic(NAMESPACE, f"{CHANGE_EVENTS}-partition-0"))


def no_view(scene: Scene) -> None:
    scene.compacted(10**6, Position(scene.listed[0], 0))


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (unread, Unreadable.UNREAD),
        (unlisted, Unreadable.UNREAD),
        (lost, Unreadable.UNREAD),
        (unanswered, Unreadable.UNREAD),
        (deleted, Unreadable.UNREAD),
        (unclosed, Unreadable.UNREAD),
        (recovering, Unreadable.UNREAD),
        (no_schema, Unreadable.UNREAD),
        (a_version_too_many, Unreadable.UNREAD),
        (no_view, Unreadable.UNREAD),
        (no_avro, Unreadable.UNDECODABLE),
        (no_message, Unreadable.UNDECODABLE),
        (strange_topic, Unreadable.UNDECODABLE),
        (chunked, Unreadable.UNDECODABLE),
        (lost_in_bucket, Unreadable.UNREAD),
        (longer_in_bucket, Unreadable.UNDECODABLE),
        (offloaded, Unreadable.NOT_WHOLE),
        (lambda scene: offloaded(scene, bucket=""), Unreadable.NOT_WHOLE),
        (to_another_driver, Unreadable.NOT_WHOLE),
        (both, Unreadable.AMBIGUOUS),
    ],
)
def test_what_cannot_be_read_is_not_known(scene: Scene, act: Callable[[Scene], None], code: Unreadable) -> None:
    scene.listed = [scene.ledger(of(A, 1)), scene.ledger(of(B, 2))]
    scene.list(*scene.listed)
    assert scene.ttls
    act(scene)
    assert scene.code is code


def test_what_is_only_in_a_bucket_is_read_there(scene: Scene) -> None:
    scene.listed = [scene.ledger(of(A, 1)), scene.ledger(of(B, 2))]
    scene.list(*scene.listed)
    before = scene.ttls
    in_bucket(scene, of(A, 1))
    assert scene.ttls == before


def test_a_v1_namespace_is_not_known(scene: Scene) -> None:
    namespace = Namespace.parse("acme/use/orders")
    scene.cluster.topic(Topic(namespace, CHANGE_EVENTS), [scene.ledger(of(A, 1))])
    found = read_namespace(LedgerSource(scene.cluster.open_store(), scene.cluster.reader, lambda: None), namespace)
    assert found.unknown
    assert found.unknown.code is Unreadable.LEGACY


@pytest.mark.parametrize(("times", "known"), [(1, True), (2, True), (9, False)])
def test_a_topic_that_changes_while_it_is_read_is_read_again(scene: Scene, times: int, known: bool) -> None:
    """As when ledgers are trimmed once they were compacted anew."""
    first, second = scene.ledger(of(A, 1)), scene.ledger(of(A, 2))
    scene.list(first, second)
    left = [times]
    stream = scene.cluster.reader.stream

    def trimming(ledger_id: int, *rest: Any) -> Any:
        if ledger_id == first and left[0]:
            left[0] -= 1
            scene.list(first, second) if left[0] else scene.list(second)
        return stream(ledger_id, *rest)

    scene.cluster.reader.stream = trimming  # type: ignore[method-assign]
    if known:
        assert scene.ttls == {"a": (2, None)}
    else:
        assert scene.code is Unreadable.CHANGING


def test_reading_writes_nothing(scene: Scene) -> None:
    scene.list(scene.ledger(of(A, 1)))
    before = dict(scene.cluster.zookeeper._nodes)
    assert scene.ttls
    assert scene.cluster.zookeeper._nodes == before


def test_what_else_is_in_the_namespace_need_not_be_a_topic() -> None:
    scene = Scene()
    scene.list(scene.ledger(of(A, 5)))
    scene.cluster.put("/managed-ledgers/acme/orders/persistent/%zz", b"")
    assert scene.ttls == {"a": (5, None)}
