"""A topic of entries with chosen publish times, on bookies and in a bucket, and a run's cluster that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.delete_records.times.readable_ledgers import ReadableLedger, readable_ledgers
from pulsar_lifecycle.delete_records.times.time_offsets import Question, ResolvedOffset, resolve
from pulsar_lifecycle.formats import ledger_metadata, ledger_path
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.model import MessagePosition, Position, Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import LocalTasks
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.tiered.upload import Source, Target, copy_ledger
from tests.kit.builders import entry
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.ledger_reader import FakeLedgerReader
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore

TOPIC = Topic.parse("persistent://shop/eu/orders")
BUCKET = "tiered"
ROOT = "/ledgers"


def sent(at: int, payload: bytes = b"hello", **fields: Any) -> bytes:
    """An entry published at a time, in ms."""
    return entry(payload, publish_time=at, **fields)


def batch(at: int, messages: int) -> bytes:
    return sent(at, num_messages_in_batch=messages)


def part(at: int, number: int, count: int, uuid: str | None = "u") -> bytes:
    return sent(at, num_chunks_from_msg=count, chunk_id=number, uuid=uuid)


def in_transaction(at: int, transaction: int, **fields: Any) -> bytes:
    return sent(at, txnid_most_bits=1, txnid_least_bits=transaction, **fields)


def commit(at: int, transaction: int) -> bytes:
    return in_transaction(at, transaction, marker_type=21)


def abort(at: int, transaction: int) -> bytes:
    return in_transaction(at, transaction, marker_type=22)


def marker(at: int) -> bytes:
    """What a broker writes for replicated subscriptions."""
    return sent(at, marker_type=10)


class TopicTimes:
    """Add ledgers, then ask."""

    def __init__(self, tasks: int = 1) -> None:
        self.store = FakeZooKeeper().session()
        self.reader = FakeLedgerReader()
        self.buckets = FakeBuckets(FakeClock(), part_minimum=1)
        self.buckets.create(BUCKET)
        self.objects = FakeObjectStore(self.buckets, {BUCKET})
        self.listed: list[LedgerInfo] = []
        settings = Settings.model_validate(
            {
                "cluster": "test",
                "zookeeper": {"hosts": "127.0.0.1:1"},
                "pulsar": {"admin_url": "http://127.0.0.1:1", "service_url": "pulsar://127.0.0.1:1"},
                "lake": {"path": str(Path("/nowhere"))},
                "object_store": {"endpoint": "http://127.0.0.1:1", "buckets": [BUCKET]},
            }
        )
        connect = connecting(reader=lambda: self.reader, objects=lambda: self.objects)
        self.cluster = Cluster(settings, connect=connect, given=LocalTasks(tasks))
        self.ports = Ports(self.store, self.reader, None, None, None, FakeClock(), self.objects)

    def ledger(self, ledger_id: int, entries: Sequence[bytes], state: LedgerState = LedgerState.CLOSED) -> None:
        """The topic's next ledger."""
        closed = state == LedgerState.CLOSED
        metadata = LedgerMetadata(
            state,
            1,
            1,
            1,
            (Segment(0, ("b1",)),),
            last_entry_id=len(entries) - 1 if closed else -1,
            length=sum(map(len, entries)) if closed else 0,
            digest_type=DigestType.CRC32C,
        )
        self.reader.payloads[ledger_id] = list(entries)
        self.store.create(ledger_path.ledger_path(ledger_id, ROOT), ledger_metadata.encode(metadata), parents=True)
        self.listed.append(LedgerInfo(ledger_id))

    def offloaded(self, ledger_id: int, entries: Sequence[bytes], *, counted: bool = True) -> None:
        """The topic's next ledger, whose copy in BookKeeper is gone; ``counted``: the topic says how many entries."""
        self.ledger(ledger_id, entries)
        self.listed.pop()
        (node,) = self.store.read([ledger_path.ledger_path(ledger_id, ROOT)])
        location = Location(BUCKET, UUID(int=ledger_id), ledger_id)
        source = Source(ledger_metadata.decode(node.data), ledger_id)
        copy_ledger(self.reader, self.objects, source, Target(location, "c", "m", 800))
        self.store.delete(node.path, -1)
        del self.reader.payloads[ledger_id]
        offload = OffloadContext(location.uuid, True, True, 1, "aws-s3", {"bucket": BUCKET})
        known = (len(entries), sum(map(len, entries)), 1) if counted else (None, None, None)
        self.listed.append(LedgerInfo(ledger_id, *known, offload))

    @property
    def readable(self) -> tuple[ReadableLedger, ...]:
        (found,) = readable_ledgers(self.ports, ROOT, [ManagedLedgerInfo(tuple(self.listed))])
        assert isinstance(found, tuple), found
        return found

    def at_time(self, time_ms: int, start: str = "0:0") -> ResolvedOffset:
        (found,) = resolve(
            self.cluster, [Question(TOPIC, self.readable, MessagePosition.parse(start), timestamp=time_ms)]
        )
        return found

    def at(self, position: str, start: str = "0:0") -> ResolvedOffset:
        asked = MessagePosition.parse(position)
        (found,) = resolve(self.cluster, [Question(TOPIC, self.readable, MessagePosition.parse(start), position=asked)])
        return found


def compacted_entry(position: Position) -> bytes:
    """Where the topic had a message, and the message."""
    raw = pb.MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id).SerializeToString()
    return b"".join(len(part).to_bytes(4, "big") + part for part in (raw, sent(3_600_000)))
