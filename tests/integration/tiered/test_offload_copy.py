"""Ledgers of a real broker, from real bookies to a real S3 server and back: all of it arrives, in little memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID, uuid4

import httpx
import pulsar
import pytest
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession

from pulsar_lifecycle.cli import main
from pulsar_lifecycle.copies.offloaded_ledger import STREAM_SIZE, Location, open_offloaded
from pulsar_lifecycle.copies.proven_copies import are_whole
from pulsar_lifecycle.errors import Conflict, CorruptFormat, OutcomeUnknown, Paused
from pulsar_lifecycle.formats import managed_ledger, offload_data
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.bookkeeper.stream import READ_AHEAD
from pulsar_lifecycle.io.s3.objects import S3ObjectStore
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.settings import CONFIG_VARIABLE, load_settings
from pulsar_lifecycle.sources import closed_ledgers
from pulsar_lifecycle.sources.spark_session import prepare
from pulsar_lifecycle.tiered import upload
from pulsar_lifecycle.tiered.proof import Origin, find_copy, verify
from pulsar_lifecycle.tiered.upload import Copied, Source, Target, copy_ledger
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import Verified
from sandbox.cluster import BUCKET, Cluster
from tests.integration.pipeline import Pipeline, settings_file
from tests.kit.refused import refused_by

pytestmark = pytest.mark.integration

MIB = 1 << 20
BLOCK = offload_data.MIN_BLOCK_SIZE
CLUSTER = "sandbox"


class Offloading:
    """The sandbox: topics written to it, their closed ledgers, and the bucket."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        declared = load_settings(cluster.state.as_json()["lifecycle_toml"]).object_store
        assert declared is not None
        self.file = settings_file(
            cluster, folder, {"object_store": declared.model_dump(exclude_none=True, mode="json")}
        )
        self.settings = load_settings(self.file)
        self.objects = S3ObjectStore(declared)
        self.store = KazooStore(self.settings.zookeeper, read_only=True)
        self.reader = BookieReader(self.store, self.settings.bookkeeper)

    def close(self) -> None:
        self.reader.close()
        self.store.close()
        self.objects.close()

    def topic(self, payloads: Sequence[bytes], **producer: Any) -> Topic:
        """A topic with these messages, in closed ledgers."""
        topic = Topic.parse(f"persistent://public/default/copied-{uuid4()}")
        client = pulsar.Client(self.cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        with closing(client):
            client.subscribe(str(topic), "keep").close()
            sending = client.create_producer(str(topic), block_if_queue_full=True, max_pending_messages=20, **producer)
            for payload in payloads:
                sending.send_async(payload, lambda *_: None)
            sending.flush()
        url = f"{self.cluster.admin_url}/admin/v2/{str(topic).replace('://', '/')}/unload"
        httpx.put(url, timeout=60).raise_for_status()
        return topic

    def ledgers(self, topic: Topic) -> list[tuple[int, LedgerMetadata]]:
        """Those that have entries."""
        return [found for found in closed_ledgers.of_topic(self.store, topic).ledgers if found[1].length]

    def target(self, topic: Topic, ledger_id: int, uuid: UUID | None = None) -> Target:
        return Target(Location(BUCKET, uuid or uuid4(), ledger_id), CLUSTER, topic.managed_ledger, BLOCK)

    def copy(self, metadata: LedgerMetadata, target: Target, **options: Any) -> Copied:
        return copy_ledger(self.reader, self.objects, Source(metadata, 1), target, **options)

    def verify(self, metadata: LedgerMetadata, target: Target, copied: Copied | None = None) -> Verified:
        origin = Origin(target.cluster, target.managed_ledger)
        given: dict[str, Any] = {"copied": copied} if copied else {"reader": self.reader}
        return verify(self.objects, target.location, Source(metadata, 1), origin=origin, **given)

    def table(self, **options: str) -> DataFrame:
        spark: SparkSession = Pipeline(self.file).spark_cluster.spark
        return prepare(spark).read.format("pulsar_offload").options(settings=str(self.file), **options).load()

    def uploads(self, target: Target) -> int:
        key = target.location.data_key
        return sum(len(page) for page in self.objects.list_uploads(BUCKET, key))


@pytest.fixture(scope="module")
def scene(sandbox: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Offloading]:
    with closing(Offloading(sandbox, tmp_path_factory.mktemp("scene"))) as made:
        yield made


@pytest.fixture(scope="module")
def large(scene: Offloading) -> tuple[Topic, int, LedgerMetadata]:
    """A ledger of 50 entries and about 50 MiB, so ten blocks."""
    random = Random(1)
    topic = scene.topic([random.randbytes(MIB + n) for n in range(50)], batching_enabled=False)
    (ledger_id, metadata), *_ = scene.ledgers(topic)
    assert metadata.length > 40 * MIB
    return topic, ledger_id, metadata


def test_a_topic_comes_back_from_its_bucket_message_by_message(
    scene: Offloading, spark: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    random = Random(2)
    sent = [random.randbytes(random.choice([0, 1, 300, 20_000])) for _ in range(260)]
    topic = scene.topic(
        sent, batching_enabled=True, batching_max_messages=3, compression_type=pulsar.CompressionType.LZ4
    )
    contexts: list[LedgerInfo] = []
    for ledger_id, metadata in scene.ledgers(topic):
        target = scene.target(topic, ledger_id)
        assert find_copy(scene.objects, target.location, Source(metadata, 1))
        copied = scene.copy(metadata, target)
        verified = scene.verify(metadata, target, copied)
        assert scene.verify(metadata, target) == verified
        assert verified.checksum == upload.digest(copied.checksums)
        assert are_whole(scene.objects, [(target.location, verified)])[0] is None
        assert find_copy(scene.objects, target.location, Source(metadata, 1)) is None
        context = OffloadContext(target.location.uuid, True, True, 1, "aws-s3", {"bucket": BUCKET})
        contexts.append(LedgerInfo(ledger_id, metadata.last_entry_id + 1, metadata.length, 1, context))
    assert len(contexts) > 1

    # A topic of which only the offloaded copies are left; no broker ever loads it.
    only_offloaded = Topic.parse(f"{topic}-offloaded")
    zk = KazooClient(scene.cluster.zookeeper)
    zk.start()
    path = f"/managed-ledgers/{only_offloaded.managed_ledger}"
    zk.create(path, managed_ledger.encode(ManagedLedgerInfo(tuple(contexts))))
    try:
        rows = scene.table(topic=str(only_offloaded), **{"as": "messages"}).collect()
        keys = ",".join(Location(BUCKET, uuid_of(info), info.ledger_id).data_key for info in contexts)
        entries = scene.table(ledgers=keys).count()
    finally:
        zk.delete(path)
        zk.stop()
        zk.close()
    rows.sort(key=lambda row: (row["ledger_id"], row["entry_id"], row["batch_index"] or 0))
    assert [row["payload"] for row in rows] == sent
    assert entries == sum(info.entries or 0 for info in contexts)

    monkeypatch.setenv(CONFIG_VARIABLE, str(scene.file))
    with pytest.raises(SystemExit) as ended:
        main(["inspect", "object", keys.partition(",")[0]])
    assert not ended.value.code
    assert topic.managed_ledger in capsys.readouterr().out


def uuid_of(info: LedgerInfo) -> UUID:
    assert info.offload is not None
    assert info.offload.uuid is not None
    return info.offload.uuid


def traced(work: Callable[[], object]) -> int:
    """The most bytes that Python had allocated at once meanwhile."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_the_blocks_in_flight(scene: Offloading, large: tuple[Topic, int, LedgerMetadata]) -> None:
    topic, ledger_id, metadata = large
    target = scene.target(topic, ledger_id)
    copies: list[Copied] = []
    copying = traced(lambda: copies.append(scene.copy(metadata, target, blocks_in_flight=2)))
    assert copying < READ_AHEAD + 3 * BLOCK + 8 * MIB < metadata.length
    proving = traced(lambda: scene.verify(metadata, target, copies[0]))
    assert proving < 6 * BLOCK
    streaming = traced(
        lambda: sum(1 for _ in open_offloaded(scene.objects, target.location).stream(0, metadata.last_entry_id))
    )
    assert streaming < 5 * STREAM_SIZE < metadata.length


def test_a_copy_that_is_stopped_leaves_no_upload_and_the_next_one_is_whole(
    scene: Offloading, large: tuple[Topic, int, LedgerMetadata]
) -> None:
    topic, ledger_id, metadata = large
    target = scene.target(topic, ledger_id)
    seen: list[int] = []

    def stop_at_the_fourth(size: int) -> None:
        seen.append(scene.uploads(target))
        if len(seen) == 4:
            raise Paused("stop")

    with pytest.raises(Paused):
        scene.copy(metadata, target, pace=stop_at_the_fourth)
    assert seen == [1, 1, 1, 1]
    assert scene.uploads(target) == 0
    assert scene.objects.head(BUCKET, target.location.data_key) is None

    first = scene.verify(metadata, target, scene.copy(metadata, target))
    again = scene.verify(metadata, target, scene.copy(metadata, target))
    assert (again.checksum, again.data_size, again.entries) == (first.checksum, first.data_size, first.entries)
    with refused_by(Code.BLOCKS_TOO_SMALL):
        scene.copy(metadata, replace(target, block_size=MIB))
    assert scene.uploads(target) == 0


class LosingAnswers:
    """An object store whose writes are made, and never confirmed."""

    def __init__(self, objects: S3ObjectStore) -> None:
        self._objects = objects

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def complete_upload(self, *arguments: Any) -> str:
        raise OutcomeUnknown(self._objects.complete_upload(*arguments))

    def put(self, *arguments: Any) -> str:
        raise OutcomeUnknown(self._objects.put(*arguments))


def test_writes_whose_answers_get_lost_are_seen_in_the_bucket(
    scene: Offloading, large: tuple[Topic, int, LedgerMetadata]
) -> None:
    topic, ledger_id, metadata = large
    target = scene.target(topic, ledger_id)
    objects: Any = LosingAnswers(scene.objects)
    copied = copy_ledger(scene.reader, objects, Source(metadata, 1), target)
    assert scene.verify(metadata, target, copied) == scene.verify(metadata, target)


def test_a_flipped_bit_and_a_replaced_object_are_found(
    scene: Offloading, large: tuple[Topic, int, LedgerMetadata]
) -> None:
    topic, ledger_id, metadata = large
    target = scene.target(topic, ledger_id)
    where = target.location
    copied = scene.copy(metadata, target)
    verified = scene.verify(metadata, target, copied)
    head = scene.objects.head(BUCKET, where.data_key)
    assert head is not None
    data = bytearray(scene.objects.get(BUCKET, where.data_key))
    data[30 * MIB + 200_000] ^= 1
    ledger = open_offloaded(scene.objects, where)
    scene.objects.put(BUCKET, where.data_key, data, head.metadata)

    (other,) = are_whole(scene.objects, [(where, verified)])
    assert isinstance(other, Why)
    assert other.code is Code.COPY_DIFFERS
    with pytest.raises(Conflict):
        ledger.read(0, 0)
    with pytest.raises(Conflict):
        scene.verify(metadata, target, copied)
    with pytest.raises(CorruptFormat, match=rf"entry {ledger_id}:\d+, found"):
        scene.verify(metadata, target)
