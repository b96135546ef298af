"""Delayed-index bucket snapshots: the entries of a snapshot ledger.

Belongs here: entry 0 (SnapshotMetadata) and entries 1..N (SnapshotSegment) as values and back. Not here: the cursor
properties that name the ledger (:mod:`cursor`), checking or merging buckets.
Upstream: ``DelayedMessageIndexBucketMetadata.proto``, ``DelayedMessageIndexBucketSegment.proto`` and
``ImmutableBucket``, pulsar-broker 4.0.7.

Bitmaps are portable 32-bit Roaring bitmaps of entry ids, one per topic ledger and segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap, FrozenBitMap

from pulsar_lifecycle._pb import pulsar_delayed_index_pb2 as pb
from pulsar_lifecycle.formats import _wire

WHAT_METADATA = "bucket snapshot metadata"
WHAT_SEGMENT = "bucket snapshot segment"


@dataclass(frozen=True, slots=True, order=True)
class DelayedIndex:
    """A delayed message: when it is due (ms), and where it is."""

    timestamp: int
    ledger_id: int
    entry_id: int


@dataclass(frozen=True, slots=True)
class SnapshotSegmentMetadata:
    """A segment: the entries of each topic ledger in it, and its first and last due time (ms, both inclusive)."""

    delayed_index_bit_map: Mapping[int, FrozenBitMap]
    min_schedule_timestamp: int
    max_schedule_timestamp: int


@dataclass(frozen=True, slots=True)
class SnapshotMetadata:
    """Entry 0: element i describes entry i + 1."""

    segments: tuple[SnapshotSegmentMetadata, ...]
    origin: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class SnapshotSegment:
    """Entries 1..N; over a whole bucket the indexes ascend."""

    indexes: tuple[DelayedIndex, ...]
    origin: bytes = field(default=b"", repr=False, compare=False)


def decode_metadata(data: bytes) -> SnapshotMetadata:
    """Entry 0 of a snapshot ledger, without its BookKeeper header; raises CorruptFormat."""
    data = bytes(data)

    def build(message: pb.SnapshotMetadata) -> SnapshotMetadata:
        return SnapshotMetadata(tuple(map(_segment_metadata, _wire.known(message).metadata_list)), data)

    return _wire.decode(pb.SnapshotMetadata, data, WHAT_METADATA, build)


def encode_metadata(metadata: SnapshotMetadata) -> bytes:
    """Entry 0 of a snapshot ledger, bitmaps run-optimised as the broker writes them."""
    if metadata.origin and decode_metadata(metadata.origin) == metadata:
        return metadata.origin
    message = pb.SnapshotMetadata()
    message.MergeFromString(metadata.origin)
    _wire.reconcile(message.metadata_list, metadata.segments, _bounds, _value_bounds, _fill_segment_metadata)
    return message.SerializeToString(deterministic=True)


def decode_segment(data: bytes) -> SnapshotSegment:
    """Entry 1..N of a snapshot ledger, without its BookKeeper header; raises CorruptFormat."""
    data = bytes(data)

    def build(message: pb.SnapshotSegment) -> SnapshotSegment:
        return SnapshotSegment(tuple(map(_index, _wire.known(message).indexes)), data)

    return _wire.decode(pb.SnapshotSegment, data, WHAT_SEGMENT, build)


def encode_segment(segment: SnapshotSegment) -> bytes:
    """Entry 1..N of a snapshot ledger."""
    if segment.origin and decode_segment(segment.origin) == segment:
        return segment.origin
    message = pb.SnapshotSegment()
    message.MergeFromString(segment.origin)
    _wire.reconcile(message.indexes, segment.indexes, _index, lambda value: value, _fill_index)
    return message.SerializeToString()


def _segment_metadata(message: pb.SnapshotSegmentMetadata) -> SnapshotSegmentMetadata:
    bitmaps = _wire.known(message).delayed_index_bit_map
    if message.min_schedule_timestamp > message.max_schedule_timestamp:
        raise _wire.MalformedError("a segment whose first due time is not after its last")
    return SnapshotSegmentMetadata(
        {ledger_id: _bitmap(bitmaps[ledger_id]) for ledger_id in sorted(bitmaps)},
        message.min_schedule_timestamp,
        message.max_schedule_timestamp,
    )


def _bitmap(data: bytes) -> FrozenBitMap:
    try:
        bitmap = FrozenBitMap.deserialize(data)
    except (ValueError, IndexError) as error:
        raise _wire.MalformedError(f"a portable Roaring bitmap: {error}") from None
    if len(bitmap.serialize()) != len(data):
        raise _wire.MalformedError("a portable Roaring bitmap and nothing after it")
    return bitmap


def _bounds(message: pb.SnapshotSegmentMetadata) -> tuple[int, int]:
    return message.min_schedule_timestamp, message.max_schedule_timestamp


def _value_bounds(value: SnapshotSegmentMetadata) -> tuple[int, int]:
    return value.min_schedule_timestamp, value.max_schedule_timestamp


def _fill_segment_metadata(message: pb.SnapshotSegmentMetadata, value: SnapshotSegmentMetadata) -> None:
    message.delayed_index_bit_map.clear()
    for ledger_id, bitmap in value.delayed_index_bit_map.items():
        optimised = BitMap(bitmap)
        optimised.run_optimize()
        message.delayed_index_bit_map[ledger_id] = optimised.serialize()
    _wire.require(message, "min_schedule_timestamp", value.min_schedule_timestamp)
    _wire.require(message, "max_schedule_timestamp", value.max_schedule_timestamp)


def _index(message: pb.DelayedIndex) -> DelayedIndex:
    _wire.known(message)
    return DelayedIndex(message.timestamp, message.ledger_id, message.entry_id)


def _fill_index(message: pb.DelayedIndex, value: DelayedIndex) -> None:
    _wire.require(message, "timestamp", value.timestamp)
    _wire.require(message, "ledger_id", value.ledger_id)
    _wire.require(message, "entry_id", value.entry_id)
