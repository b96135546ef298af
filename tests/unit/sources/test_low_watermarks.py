"""Spark sources show nothing below a topic's low watermark, unless they are asked to."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.errors import CorruptFormat, Unavailable, UsageError
from pulsar_lifecycle.formats import ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import LOW_WATERMARK, LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.sources.entries import BookKeeperEntriesReader
from pulsar_lifecycle.sources.entry_tables import EntryOptions
from pulsar_lifecycle.sources.offloaded import OffloadedReader
from pulsar_lifecycle.tiered.upload import Source, Target, copy_ledger
from tests.kit.builders import entry
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.ledger_reader import FakeLedgerReader
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore
from tests.kit.settings import write_settings

BUCKET = "tiered"
TOPIC = "persistent://shop/eu/orders"
PATH = "/managed-ledgers/shop/eu/persistent/orders"
TAGS = {
    "application": b"pulsar",
    "component": b"managed-ledger",
    "pulsar/managed-ledger": b"shop/eu/persistent/orders",
}


def batch(*payloads: bytes, **fields: Any) -> bytes:
    plain = b""
    for payload in payloads:
        metadata = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        plain += struct.pack(">i", len(metadata)) + metadata + payload
    return entry(plain, num_messages_in_batch=len(payloads), **fields)


class Scene:
    """Ledgers 1, 3 and 5 of a topic, four entries each, in BookKeeper and in the bucket; the second entry is a batch.

    Each message is the text of its position.
    """

    def __init__(self) -> None:
        self.reader = FakeLedgerReader()
        self.store = FakeZooKeeper().session()
        buckets = FakeBuckets(FakeClock(), part_minimum=1)
        buckets.create(BUCKET)
        self.objects = FakeObjectStore(buckets, {BUCKET})
        self.connect = connecting(
            reader=lambda: self.reader, objects=lambda: self.objects, store=lambda: self.store, clock=FakeClock
        )
        self.keys: list[str] = []
        for n in (1, 3, 5):
            entries = [b"%d:%d" % (n, e) for e in range(4)]
            stored = [entry(one) for one in entries]
            stored[1] = batch(*(b"%d:1:%d" % (n, i) for i in range(3)))
            self.ledger(n, stored, TAGS)
        self.write({})

    def ledger(self, ledger_id: int, stored: list[bytes], tags: dict[str, bytes]) -> None:
        metadata = LedgerMetadata(
            LedgerState.CLOSED,
            1,
            1,
            1,
            (Segment(0, ("b",)),),
            last_entry_id=len(stored) - 1,
            length=sum(map(len, stored)),
            digest_type=DigestType.CRC32C,
            custom_metadata=tags,
        )
        self.reader.payloads[ledger_id] = stored
        self.store.create(ledger_path(ledger_id), ledger_metadata.encode(metadata), parents=True)
        location = Location(BUCKET, UUID(int=ledger_id), ledger_id)
        copy_ledger(self.reader, self.objects, Source(metadata, 1), Target(location, "c", "m", 300))
        self.keys.append(location.data_key)

    def write(self, properties: dict[str, str]) -> None:
        infos = [
            LedgerInfo(n, 4, 1, 1, OffloadContext(UUID(int=n), True, False, 1, "aws-s3", {"bucket": BUCKET}))
            for n in (1, 3, 5)
        ]
        data = managed_ledger.encode(ManagedLedgerInfo(tuple(infos), properties=properties))
        if self.store.read([PATH])[0] is None:
            self.store.create(PATH, data, parents=True)
        else:
            self.store.write(PATH, data, -1)

    def raise_to(self, watermark: str) -> None:
        self.write({LOW_WATERMARK: watermark})

    def shown(self, source: type, as_: str = "messages", **options: str) -> list[str]:
        """The messages as text, or the positions of entries."""
        name = "bookkeeper_entries" if source is BookKeeperEntriesReader else "pulsar_offload"
        reader = source(EntryOptions(name, {"as": as_, **options}), self.connect)
        rows = [row for share in reader.partitions() for one in reader.read(share) for row in one.to_pylist()]
        if as_ == "entries":
            return [f"{row['ledger_id']}:{row['entry_id']}" for row in rows]
        return sorted(row["payload"].decode() for row in rows)


@pytest.fixture
def scene(tmp_path, monkeypatch) -> Scene:
    write_settings(tmp_path, monkeypatch, [BUCKET])
    return Scene()


WAYS = [
    (BookKeeperEntriesReader, {"topic": TOPIC}),
    (BookKeeperEntriesReader, {"namespace": "shop/eu"}),
    (BookKeeperEntriesReader, {"ledgers": "1-5"}),
    (BookKeeperEntriesReader, {"ledgers": "1-5", "partition_bytes": "1"}),
    (BookKeeperEntriesReader, {"topic": TOPIC, "chunks": "assembled"}),
    (OffloadedReader, {"topic": TOPIC}),
    (OffloadedReader, {"namespace": "shop/eu"}),
    (OffloadedReader, {"bucket": BUCKET}),
    (OffloadedReader, {"bucket": BUCKET, "partition_bytes": "1"}),
    (OffloadedReader, {"topic": TOPIC, "chunks": "assembled"}),
]
"""Every way to read a topic's ledgers."""
ALL = sorted(f"{n}:{e}" for n in (1, 3, 5) for e in ("0", "1:0", "1:1", "1:2", "2", "3"))


@pytest.mark.parametrize(("source", "options"), WAYS)
@pytest.mark.parametrize(
    ("watermark", "first"),
    [
        ("0:9", "1:0"),
        ("1:0", "1:0"),
        ("1:1", "1:1:0"),
        ("3:1:2", "3:1:2"),
        ("3:2", "3:2"),
        ("3:4", "5:0"),
        ("4:0", "5:0"),
    ],
)
def test_no_message_below_the_low_watermark_is_shown(scene, source, options, watermark, first):
    assert scene.shown(source, **options) == ALL
    scene.raise_to(watermark)
    assert scene.shown(source, **options) == [one for one in ALL if one >= first]
    assert scene.shown(source, below_low_watermark="true", **options) == ALL


@pytest.mark.parametrize("source", [BookKeeperEntriesReader, OffloadedReader])
def test_an_entry_that_the_low_watermark_lies_in_is_shown_whole(scene, source):
    scene.raise_to("3:1:2")
    assert scene.shown(source, "entries", topic=TOPIC) == ["3:1", "3:2", "3:3", "5:0", "5:1", "5:2", "5:3"]


@pytest.mark.parametrize(("source", "options"), WAYS)
def test_a_topic_of_which_all_was_deleted_shows_nothing(scene, source, options):
    scene.raise_to("9:0")
    assert scene.shown(source, **options) == []


@pytest.mark.parametrize("source", [BookKeeperEntriesReader, OffloadedReader])
def test_an_encrypted_batch_cannot_be_cut(scene, source):
    key = pb.EncryptionKeys(key="k", value=b"v")
    scene.ledger(7, [batch(b"a", b"b", encryption_keys=[key])], TAGS)
    scene.raise_to("7:0:1")
    options = {"ledgers": "7"} if source is BookKeeperEntriesReader else {"ledgers": scene.keys[-1]}
    assert len(scene.shown(source, "entries", **options)) == 1


def test_ledgers_of_cursors_and_of_other_topics_are_not_hidden(scene):
    scene.ledger(2, [entry(b"2:0")], {**TAGS, "pulsar/cursor": b"s"})
    scene.ledger(4, [entry(b"4:0")], {**TAGS, "pulsar/managed-ledger": b"shop/eu/persistent/bills"})
    scene.raise_to("9:0")
    assert scene.shown(BookKeeperEntriesReader, ledgers="1-5") == ["2:0", "4:0"]
    assert scene.shown(OffloadedReader, bucket=BUCKET) == ["2:0", "4:0"]


@pytest.mark.parametrize(("source", "options"), WAYS)
def test_a_property_that_is_no_position_is_named_with_its_topic(scene, source, options):
    scene.write({LOW_WATERMARK: "soon"})
    with pytest.raises(CorruptFormat, match=f"{PATH}.*{LOW_WATERMARK}"):
        scene.shown(source, **options)
    assert scene.shown(source, below_low_watermark="true", **options) == ALL


def test_without_a_metadata_store_a_bucket_is_read_whole_or_not_at_all(scene):
    def unanswered(paths):
        raise Unavailable("no session")

    scene.store.read = unanswered
    with pytest.raises(Unavailable, match="below_low_watermark=true"):
        scene.shown(OffloadedReader, bucket=BUCKET)
    assert scene.shown(OffloadedReader, bucket=BUCKET, below_low_watermark="true") == ALL


def test_ledgers_below_the_low_watermark_are_named(scene, caplog):
    scene.raise_to("3:2")
    scene.shown(BookKeeperEntriesReader, topic=TOPIC)
    assert [record.args[0] for record in caplog.records] == [1]


def test_the_option_is_true_or_false(scene):
    with pytest.raises(UsageError, match="below_low_watermark: expected false or true"):
        scene.shown(BookKeeperEntriesReader, topic=TOPIC, below_low_watermark="yes")
