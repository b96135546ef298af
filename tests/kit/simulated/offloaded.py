"""Offloaded ledgers in a simulated cluster: their contexts in metadata, their objects in buckets, messages about them.

Belongs here: putting them there in the forms the offloader writes, and a deletion run that has an object store. Not
here: what a test expects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from struct import unpack_from
from uuid import UUID

from pulsar_lifecycle.deletion.batch import work_off
from pulsar_lifecycle.deletion.decision import Decision
from pulsar_lifecycle.deletion.run_evidence import DeclaredBuckets, OffloadEvidence
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import offload_index
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    LedgerType,
    MessageOffloadContext,
    PendingDeleteLedgerInfo,
    encode_deletion_message,
)
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.formats.offload_data import DEFAULT_BLOCK_SIZE, DataObjectBuilder
from pulsar_lifecycle.formats.offload_index import DATA_HEADER_LENGTH
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.values.copies import Asked, CopyDeletion, OffloadLocation
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore
from tests.kit.simulated.cluster import ENTRY_BYTES, SimulatedCluster, data_tags
from tests.kit.simulated.pipeline import Policy, Scan, begun, scan

BUCKET = "tiered"
CLUSTER = "pulsar-one"


def objects_of(
    entries: Sequence[bytes], block_size: int = DEFAULT_BLOCK_SIZE, tags: Mapping[str, bytes] | None = None
) -> tuple[bytes, bytes]:
    """Data and index object of a ledger, which has ``tags``."""
    segments = (Segment(0, ("bookie-1:3181",)),)
    length, last = sum(map(len, entries)), len(entries) - 1
    builder = DataObjectBuilder(
        LedgerMetadata(
            LedgerState.CLOSED, 1, 1, 1, segments, length, last, DigestType.CRC32C, custom_metadata=tags or {}
        ),
        block_size,
    )
    data = b"".join(bytes(block.data) for block in builder.feed(0, entries))
    return data, offload_index.encode(builder.finish().index)


@lru_cache(maxsize=256)
def entries_in(data: bytes, index: bytes) -> tuple[bytes, ...]:
    """The entries of a pair of objects, as a broker reads them; none where it could not."""
    try:
        found = offload_index.decode(index)
    except CorruptFormat:
        return ()
    if found.data_object_length != len(data):
        return ()
    entries: list[bytes] = []
    for block in found.blocks:
        at = block.offset + DATA_HEADER_LENGTH
        while at + 12 <= found.end_of(block):
            length, number = unpack_from(">iq", data, at)
            if number != len(entries) or at + 12 + length > len(data) or length < 0:
                break
            entries.append(data[at + 12 : at + 12 + length])
            at += 12 + length
    return tuple(entries)


DATA, INDEX = objects_of([b"x" * ENTRY_BYTES])
"""Of a ledger as :meth:`SimulatedCluster.ledger` makes them."""


@lru_cache(maxsize=64)
def kept_objects_of(entries: Sequence[bytes], *tags: tuple[str, str]) -> tuple[bytes, bytes]:
    """:func:`objects_of`, made once."""
    return objects_of(entries, tags={name: value.encode() for name, value in tags})


POLICY = DeclaredBuckets(frozenset({BUCKET, "empty"}), CLUSTER, exclusive=True)


def attempt(
    uuid: UUID | None, *, complete: bool = True, bookkeeper_deleted: bool = False, bucket: str = BUCKET
) -> OffloadContext:
    """An offload context as the broker writes it; without a bucket where that is empty."""
    driver = {"bucket": bucket} if bucket else {}
    return OffloadContext(uuid, complete, bookkeeper_deleted, 1, "aws-s3", driver)


def metadata(topic: Topic, cluster: str = CLUSTER) -> dict[str, str]:
    """User metadata of an object, as jclouds stores it."""
    return {
        "s3managedledgeroffloaderformatversion": "1",
        "pulsarclustername": cluster,
        "managedledgername": topic.managed_ledger,
    }


def copy_message(
    uuid: UUID, ledger_id: int, topic: Topic, *, driver: str = "aws-s3", bucket: str | None = BUCKET
) -> PendingDeleteLedgerInfo:
    """What a first phase, or anybody, sends about an attempt."""
    half = 1 << 64
    signed = [n - half if n >= half >> 1 else n for n in (uuid.int >> 64, uuid.int % half)]
    named = {"region": "r", "serviceEndpoint": "http://evil:1"} | ({} if bucket is None else {"bucket": bucket})
    return PendingDeleteLedgerInfo(
        topic_name=str(topic),
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_id=ledger_id,
        ledger_type=LedgerType.OFFLOAD_LEDGER,
        offload_context=MessageOffloadContext(msb=signed[0], lsb=signed[1], driver_name=driver, metadata=named),
    )


@dataclass
class Offloading:
    """A cluster with buckets. ``now`` and ``before`` are the two scans of the next deletion run.

    ``batch``: messages that it decides at once, if not as many as others.
    """

    cluster: SimulatedCluster = field(default_factory=SimulatedCluster)
    policy: Policy = field(default_factory=Policy)
    offload: DeclaredBuckets | None = POLICY
    marked: dict[tuple[int, Asked], int] = field(default_factory=dict)
    copy_deletions: Mapping[int, CopyDeletion] = field(default_factory=dict[int, CopyDeletion])
    failed_locations: frozenset[OffloadLocation] = frozenset()
    undecoded: int = 0
    batch: int = 0
    now: Scan | None = None
    before: Scan | None = None

    def __post_init__(self) -> None:
        self.buckets = FakeBuckets(self.cluster.clock)
        for bucket in (BUCKET, "elsewhere", "empty"):
            self.buckets.create(bucket)
        self.store = FakeObjectStore(self.buckets, [BUCKET, "empty", "no-such-bucket"])

    def put(
        self,
        uuid: UUID,
        ledger_id: int,
        topic: Topic,
        *,
        bucket: str = BUCKET,
        stored: Mapping[str, str] | None = None,
        data: bool = True,
        index: bool = True,
        entries: Sequence[bytes] = (b"x" * ENTRY_BYTES,),
    ) -> set[str]:
        """The objects of one attempt; returns their keys."""
        bodies = objects_of(entries)
        stored = metadata(topic) if stored is None else stored
        keys: set[str] = set()
        if data:
            self.buckets.put(bucket, data_key(uuid, ledger_id), bodies[0], {**stored, "role": "data"})
            keys.add(data_key(uuid, ledger_id))
        if index:
            self.buckets.put(bucket, index_key(uuid, ledger_id), bodies[1], {**stored, "role": "index"})
            keys.add(index_key(uuid, ledger_id))
        return keys

    def message(
        self, uuid: UUID, ledger_id: int, topic: Topic, *, driver: str = "aws-s3", bucket: str | None = BUCKET
    ) -> PendingDeleteLedgerInfo:
        """:func:`copy_message`."""
        return copy_message(uuid, ledger_id, topic, driver=driver, bucket=bucket)

    def ledger(self, topic: Topic) -> int:
        """A ledger in BookKeeper."""
        return self.cluster.ledger(data_tags(topic))

    def age(self) -> None:
        """Scan, so that the next scan is confirmed by one eight days after everything there is, a day older."""
        self.cluster.wait(8 * 24)
        self.before = scan(self.cluster, self.policy)
        self.cluster.wait(25)

    def send(self, *messages: PendingDeleteLedgerInfo) -> None:
        """Put messages on the queue, let two hours pass, and scan."""
        topics = self.cluster.open_queue().topics
        for message in messages:
            topics.publish(encode_deletion_message(message))
        self.cluster.wait(2)
        self.rescan()

    def rescan(self) -> None:
        """The newest scan."""
        self.now = scan(self.cluster, self.policy)

    def delete(self, wrap: Callable[[Ports], Ports] = lambda ports: ports, run_id: str = "") -> list[Decision]:
        """One deletion run with everything known."""
        assert self.now is not None
        assert self.before is not None
        evidence = OffloadEvidence(self.now.offload_uuids, self.before.offload_uuids, self.undecoded, self.marked)
        evidence = replace(evidence, copy_deletions=self.copy_deletions, failed_locations=self.failed_locations)
        with begun(self.cluster, self.now, self.before, self.policy, run_id or "delete-run") as (run, ports):
            run = replace(run, offload=self.offload, evidence=replace(run.evidence, offloads=evidence))
            run = replace(run, batch=self.batch or run.batch)
            ports.objects = self.store
            return list(work_off(run, wrap(ports), 1_000_000, 1_000))
