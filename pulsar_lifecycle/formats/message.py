"""What a broker stores in a topic's entry: metadata, checksum, payload, batches.

Belongs here: an entry's payload taken apart into messages. Not here: the BookKeeper header around it (:mod:`entry`),
putting chunks together, decrypting, schemas. Upstream: ``Commands`` and ``PulsarApi.proto``, pulsar-common 4.0.7.

[0x0e02 · int32 size · BrokerEntryMetadata] · [0x0e01 · crc32c uint32 over all that follows] · int32 size ·
MessageMetadata · payload, big-endian. The payload is compressed, then encrypted. When ``num_messages_in_batch`` is
present it is {int32 size · SingleMessageMetadata · payload} repeated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import google_crc32c

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import _wire
from pulsar_lifecycle.formats.compression import Compression, decompress

WHAT = "message"
_MAGIC_BROKER = b"\x0e\x02"  # Commands.magicBrokerEntryMetadata
_MAGIC_CHECKSUM = b"\x0e\x01"  # Commands.magicCrc32c
_DELIVER_AT = b"\x98\x01"  # the tag of MessageMetadata.deliver_at_time: without these bytes there is none
_TRANSACTION = b"\xb8\x01"  # as well, of txnid_most_bits
TRANSACTION_ENDS = frozenset({21, 22})
"""Marker types of a commit and an abort (``MarkerType.TXN_COMMIT_VALUE``, ``TXN_ABORT_VALUE``; PulsarMarkers.proto)."""
_SIZE = struct.Struct(">i")
_CHECKSUM = struct.Struct(">I")
_crc32c = cast(Any, google_crc32c)  # ships without complete types


@dataclass(frozen=True, slots=True)
class BrokerEntryMetadata:
    """What the broker's interceptors add; time in ms, ``index`` counts the topic's messages up to this entry's last."""

    broker_timestamp: int | None
    index: int | None


@dataclass(frozen=True, slots=True)
class Message:
    """One message; times in ms. ``payload`` is None for a null value (a tombstone), ``batch_index`` outside batches."""

    payload: bytes | None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    sequence_id: int | None = None
    event_time: int | None = None
    batch_index: int | None = None
    compacted_out: bool = False


@dataclass(frozen=True, slots=True)
class MessageEntry:
    """An entry of a topic.

    ``messages`` is empty when ``encrypted``, and when ``chunk`` (number, of how many) says that the entry is a part of
    a message: both are reported, not undone. ``payload`` has the bytes as they are stored, ``stored`` is those with the
    key, properties and event time beside them, which nobody encrypts; of a batch they are inside. ``uncompressed_size``
    is what the payload, or the whole message of several parts, is decompressed; ``chunked_size`` all parts, as stored.
    """

    producer_name: str
    sequence_id: int
    publish_time: int
    compression: Compression
    messages: tuple[Message, ...]
    payload: bytes
    batch_size: int | None = None
    encrypted: bool = False
    chunk: tuple[int, int] | None = None
    uuid: str | None = None
    deliver_at_time: int | None = None
    marker_type: int | None = None
    replicated_from: str | None = None
    schema_version: bytes | None = None
    broker: BrokerEntryMetadata | None = None
    checksummed: bool = False
    stored: Message | None = None
    uncompressed_size: int | None = None
    chunked_size: int | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """What an entry says of its messages outside their payload, which may be encrypted; times in ms.

    ``chunk`` (number, of how many) says that the entry is a part of the message ``uuid``. ``marker_type``: the broker
    wrote it, for itself. ``transaction``: the id of the transaction that it is of, most and least significant bits.
    """

    publish_time: int
    batch_size: int | None
    chunk: tuple[int, int] | None
    uuid: str | None
    deliver_at_time: int | None
    marker_type: int | None
    transaction: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Frame:
    """An entry's parts, each with the offset where it begins; ``broker`` is empty when absent."""

    broker: bytes
    metadata: bytes
    metadata_offset: int
    payload: bytes
    payload_offset: int
    checksummed: bool


def split(data: bytes) -> Frame:
    """An entry's payload cut into its parts, the checksum verified if there is one; raises CorruptFormat."""
    data = bytes(data)
    offset, broker = 0, b""
    if data.startswith(_MAGIC_BROKER):
        begin, offset = _sized(data, len(_MAGIC_BROKER), "broker entry metadata")
        broker = data[begin:offset]
    checksummed = data.startswith(_MAGIC_CHECKSUM, offset)
    if checksummed:
        begin = offset + len(_MAGIC_CHECKSUM)
        offset = begin + _CHECKSUM.size
        if len(data) < offset or _CHECKSUM.unpack_from(data, begin)[0] != _crc32c.value(data[offset:]):
            raise CorruptFormat(WHAT, begin, "the CRC32C of all that follows")
    begin, end = _sized(data, offset, "message metadata")
    return Frame(broker, data[begin:end], begin, data[end:], end, checksummed)


def decode(data: bytes) -> MessageEntry:
    """An entry's payload as messages, decompressed; raises CorruptFormat, also for a checksum that does not match."""
    frame = split(data)
    broker = (
        _wire.decode(pb.BrokerEntryMetadata, frame.broker, WHAT, _broker, len(_MAGIC_BROKER) + _SIZE.size)
        if frame.broker
        else None
    )

    def build(message: pb.MessageMetadata) -> MessageEntry:
        return _entry(_wire.known(message), frame, broker)

    return _wire.decode(pb.MessageMetadata, frame.metadata, WHAT, build, frame.metadata_offset)


def envelope(data: bytes) -> Envelope:
    """An entry's metadata, without looking into its payload; raises CorruptFormat as :func:`decode`."""
    frame = split(data)
    return _wire.decode(pb.MessageMetadata, frame.metadata, WHAT, _envelope, frame.metadata_offset)


def _envelope(metadata: pb.MessageMetadata) -> Envelope:
    _wire.known(metadata)
    return Envelope(
        metadata.publish_time,
        _wire.optional(metadata, "num_messages_in_batch"),
        (metadata.chunk_id, metadata.num_chunks_from_msg) if metadata.num_chunks_from_msg > 1 else None,
        _optional_text(metadata, "uuid"),
        _wire.optional(metadata, "deliver_at_time"),
        _wire.optional(metadata, "marker_type"),
        (metadata.txnid_most_bits, metadata.txnid_least_bits) if metadata.HasField("txnid_most_bits") else None,
    )


def deliver_at(data: bytes) -> int | None:
    """When an entry is due (ms), None for one that is not delayed; nothing else of it is looked at.

    For entries whose digest was verified. Raises CorruptFormat where there is no metadata.
    """
    found = schedule(data)
    return found.deliver_at if found else None


@dataclass(frozen=True, slots=True)
class Schedule:
    """When an entry is due (ms), and its transaction; ``ends``: it is the marker of that one's commit or abort."""

    deliver_at: int | None
    transaction: tuple[int, int] | None
    ends: bool


def schedule(data: bytes) -> Schedule | None:
    """As :func:`deliver_at`, with the transaction; None for an entry that is not delayed and of no transaction."""
    offset = _sized(data, len(_MAGIC_BROKER), "broker entry metadata")[1] if data.startswith(_MAGIC_BROKER) else 0
    if data.startswith(_MAGIC_CHECKSUM, offset):
        offset += len(_MAGIC_CHECKSUM) + _CHECKSUM.size
    begin, end = _sized(data, offset, "message metadata")
    metadata = data[begin:end]
    if _DELIVER_AT not in metadata and _TRANSACTION not in metadata:
        return None
    return _wire.decode(pb.MessageMetadata, metadata, WHAT, _schedule, begin)


def _schedule(message: pb.MessageMetadata) -> Schedule | None:
    due = _wire.optional(message, "deliver_at_time")
    of = (message.txnid_most_bits, message.txnid_least_bits) if message.HasField("txnid_most_bits") else None
    if due is None and of is None:
        return None
    return Schedule(due, of, of is not None and message.marker_type in TRANSACTION_ENDS)


def _sized(data: bytes, offset: int, name: str) -> tuple[int, int]:
    """Begin and end of what the int32 at ``offset`` gives the size of."""
    begin = offset + _SIZE.size
    size = _SIZE.unpack_from(data, offset)[0] if begin <= len(data) else -1
    if not 0 <= size <= len(data) - begin:
        raise CorruptFormat(WHAT, offset, f"the size of the {name} and as many bytes")
    return begin, begin + size


def _broker(message: pb.BrokerEntryMetadata) -> BrokerEntryMetadata:
    _wire.known(message)
    return BrokerEntryMetadata(_wire.optional(message, "broker_timestamp"), _wire.optional(message, "index"))


def _entry(metadata: pb.MessageMetadata, frame: Frame, broker: BrokerEntryMetadata | None) -> MessageEntry:
    compression = Compression(metadata.compression)
    encrypted = len(metadata.encryption_keys) > 0
    chunk = (metadata.chunk_id, metadata.num_chunks_from_msg) if metadata.num_chunks_from_msg > 1 else None
    messages: tuple[Message, ...] = ()
    if not encrypted and chunk is None:
        plain = frame.payload
        if compression is not Compression.NONE:
            plain = decompress(compression, plain, metadata.uncompressed_size, WHAT, frame.payload_offset)
        messages = (
            _batch(metadata, plain) if metadata.HasField("num_messages_in_batch") else (_single(metadata, plain),)
        )
    return MessageEntry(
        _wire.text(metadata.producer_name),
        metadata.sequence_id,
        metadata.publish_time,
        compression,
        messages,
        frame.payload,
        _wire.optional(metadata, "num_messages_in_batch"),
        encrypted,
        chunk,
        _optional_text(metadata, "uuid"),
        _wire.optional(metadata, "deliver_at_time"),
        _wire.optional(metadata, "marker_type"),
        _optional_text(metadata, "replicated_from"),
        _wire.optional(metadata, "schema_version"),
        broker,
        frame.checksummed,
        None if messages else replace(_single(metadata, frame.payload), payload=frame.payload),
        _wire.optional(metadata, "uncompressed_size"),
        _wire.optional(metadata, "total_chunk_msg_size"),
    )


def _single(metadata: pb.MessageMetadata, payload: bytes) -> Message:
    return Message(
        None if metadata.null_value else payload,
        _optional_text(metadata, "partition_key"),
        _properties(metadata.properties),
        metadata.sequence_id,
        _wire.optional(metadata, "event_time"),
    )


def _batch(metadata: pb.MessageMetadata, plain: bytes) -> tuple[Message, ...]:
    """The messages of a decompressed batch; offsets in errors count from the start of the decompressed bytes."""
    messages: list[Message] = []
    offset = 0
    for index in range(metadata.num_messages_in_batch):
        begin, end = _sized(plain, offset, f"metadata of batch index {index}")
        found, size = _wire.decode(
            pb.SingleMessageMetadata,
            plain[begin:end],
            f"{WHAT} in a batch",
            lambda m: (_wire.known(m), m.payload_size),
            begin,
        )
        offset = end + size
        if size < 0 or offset > len(plain):
            raise CorruptFormat(f"{WHAT} in a batch", end, f"a payload of {size} bytes at batch index {index}")
        messages.append(_of_batch(found, plain[end:offset], index))
    if offset != len(plain):
        raise CorruptFormat(f"{WHAT} in a batch", offset, f"the end after {metadata.num_messages_in_batch} messages")
    return tuple(messages)


def _of_batch(metadata: pb.SingleMessageMetadata, payload: bytes, index: int) -> Message:
    return Message(
        None if metadata.null_value else payload,
        _optional_text(metadata, "partition_key"),
        _properties(metadata.properties),
        _wire.optional(metadata, "sequence_id"),
        _wire.optional(metadata, "event_time"),
        index,
        metadata.compacted_out,
    )


def _optional_text(message: pb.MessageMetadata | pb.SingleMessageMetadata, name: str) -> str | None:
    return _wire.text(getattr(message, name)) if message.HasField(name) else None


def _properties(container: Iterable[pb.KeyValue]) -> dict[str, str]:
    """Users' properties; of a repeated key the last counts, as in the client."""
    return {_wire.text(_wire.known(pair).key): _wire.text(pair.value) for pair in container}
