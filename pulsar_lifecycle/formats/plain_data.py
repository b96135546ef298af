"""Any stored form as plain data for JSON, under the field names of upstream.

Belongs here: what ``inspect --json`` prints. Every description decodes strictly first, so that what is shown is what
the library would act on. Numbers stay numbers, enums are their names, bytes are text if they are printable and ``0x``
and hex digits if not. A field that this library does not know is listed under ``unknownFields`` of its message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from pyroaring import FrozenBitMap

from pulsar_lifecycle._pb import bookkeeper_metadata_pb2, pulsar_delayed_index_pb2, pulsar_message_pb2
from pulsar_lifecycle._pb import pulsar_mldata_pb2 as mldata
from pulsar_lifecycle._pb import pulsar_schema_pb2 as schema_pb
from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.formats import (
    cursor,
    delayed_bucket,
    ledger_metadata,
    managed_ledger,
    message,
    offload_data,
    offload_index,
    schema,
)
from pulsar_lifecycle.formats.compression import Compression, unwrap

Description = dict[str, Any]
_LAYOUT_CHARACTERS = dict.fromkeys(map(ord, "\n\r\t"))  # in schemas; they do not make a text unprintable


def describe(format_name: str, data: bytes) -> Description:
    """The stored bytes of a format in ``FORMATS`` as one JSON-ready dict.

    Raises UsageError for a name that is not in ``FORMATS``, CorruptFormat and UnsupportedFormat as the decoders do.
    """
    if format_name not in _DESCRIBE:
        raise UsageError(f"no such format: {format_name}; there are {', '.join(FORMATS)}")
    return _DESCRIBE[format_name](bytes(data))


def _managed_ledger(data: bytes) -> Description:
    managed_ledger.decode(data)
    return _wrapped(mldata.ManagedLedgerInfo, data)


def _cursor(data: bytes) -> Description:
    cursor.decode(data)
    return _wrapped(mldata.ManagedCursorInfo, data)


def _wrapped(message_type: type[Message], data: bytes) -> Description:
    plain = unwrap(data, "z-node")
    shown = _fields(message_type.FromString(plain.data))
    if plain.compression is Compression.NONE:
        return shown
    return {"compressionType": plain.compression.name, "uncompressedSize": len(plain.data), **shown}


def _cursor_entry(data: bytes) -> Description:
    cursor.decode_position(data)
    return _fields(mldata.PositionInfo.FromString(data))


def _ledger_metadata(data: bytes) -> Description:
    value = ledger_metadata.decode(data)
    current = (
        data if value.format_version == 3 else ledger_metadata.encode(replace(value, format_version=3, origin=b""))
    )
    body = ledger_metadata.body(current)
    return {
        "metadataFormatVersion": value.format_version,
        **_fields(bookkeeper_metadata_pb2.LedgerMetadataFormat.FromString(body)),
    }


def _schema_locator(data: bytes) -> Description:
    schema.decode_locator(data)
    return _fields(schema_pb.SchemaLocator.FromString(data))


def _schema_entry(data: bytes) -> Description:
    entry = schema.decode_entry(data)
    schema.decode_info(entry.schema_data)
    shown = _fields(schema_pb.SchemaEntry.FromString(data))
    return {**shown, "schema_data": _fields(schema_pb.SchemaInfo.FromString(entry.schema_data))}


def _bucket_metadata(data: bytes) -> Description:
    metadata = delayed_bucket.decode_metadata(data)
    shown = _fields(pulsar_delayed_index_pb2.SnapshotMetadata.FromString(data))
    for segment, described in zip(metadata.segments, shown.get("metadata_list", []), strict=True):
        bitmaps = segment.delayed_index_bit_map
        described["delayed_index_bit_map"] = {str(ledger): _ranges(bitmap) for ledger, bitmap in bitmaps.items()}
    return shown


def _bucket_segment(data: bytes) -> Description:
    delayed_bucket.decode_segment(data)
    return _fields(pulsar_delayed_index_pb2.SnapshotSegment.FromString(data))


def _message(data: bytes) -> Description:
    entry = message.decode(data)
    frame = message.split(data)
    shown: Description = {}
    if frame.broker:
        shown["brokerEntryMetadata"] = _fields(pulsar_message_pb2.BrokerEntryMetadata.FromString(frame.broker))
    shown["messageMetadata"] = _fields(pulsar_message_pb2.MessageMetadata.FromString(frame.metadata))
    shown["payloadSize"] = len(entry.payload)
    shown["messages"] = [
        {name: _bytes(value) if isinstance(value, bytes) else value for name, value in asdict(single).items()}
        for single in entry.messages
    ]
    return shown


def _offload_data(data: bytes) -> Description:
    blocks: list[Description] = []
    payload_length = 0
    for part_id, block in enumerate(offload_data.read_blocks(data), 1):
        payload_length += block.payload_length
        blocks.append(
            {
                "partId": part_id,
                "offset": block.offset,
                "blockLen": block.length,
                "firstEntryId": block.first_entry_id,
                "lastEntryId": block.last_entry_id,
                "payloadLength": block.payload_length,
                "padding": block.padding,
            }
        )
    return {
        "dataObjectLength": len(data),
        "lastEntryId": blocks[-1]["lastEntryId"],
        "payloadLength": payload_length,
        "blocks": blocks,
    }


def _offload_index(data: bytes) -> Description:
    index = offload_index.decode(data)
    metadata = offload_index.segment_metadata(data)
    return {
        "indexBlockLength": len(data),
        "dataObjectLength": index.data_object_length,
        "dataHeaderLength": offload_index.DATA_HEADER_LENGTH,
        "indexEntryCount": len(index.blocks),
        "segmentMetadataLength": len(metadata),
        "segmentMetadata": _fields(bookkeeper_metadata_pb2.LedgerMetadataFormat.FromString(metadata)),
        "blocks": [
            {
                "partId": block.part_id,
                "offset": block.offset,
                "blockLen": index.end_of(block) - block.offset,
                "firstEntryId": block.first_entry_id,
                "lastEntryId": index.last_entry_of(block),
            }
            for block in index.blocks
        ],
    }


_DESCRIBE: dict[str, Callable[[bytes], Description]] = {
    "managed-ledger": _managed_ledger,
    "cursor": _cursor,
    "cursor-entry": _cursor_entry,
    "ledger-metadata": _ledger_metadata,
    "schema-locator": _schema_locator,
    "schema-entry": _schema_entry,
    "bucket-metadata": _bucket_metadata,
    "bucket-segment": _bucket_segment,
    "message": _message,
    "offload-data": _offload_data,
    "offload-index": _offload_index,
}
FORMATS = tuple(_DESCRIBE)
"""The names that :func:`describe` takes."""


def _fields(shown: Message) -> Description:
    """The fields that are present, in the order of their numbers."""
    found: Description = {}
    for any_field, value in cast("list[tuple[Any, Any]]", shown.ListFields()):
        descriptor = cast(FieldDescriptor, any_field)
        if descriptor.message_type is not None and descriptor.message_type.GetOptions().map_entry:
            found[descriptor.name] = {str(key): _value(descriptor, item) for key, item in value.items()}
        elif descriptor.is_repeated:
            found[descriptor.name] = [_value(descriptor, item) for item in value]
        else:
            found[descriptor.name] = _value(descriptor, value)
    unknown = [
        {"number": field.field_number, "wireType": field.wire_type, "data": _value(None, field.data)}
        for field in cast("list[Any]", UnknownFieldSet(shown))
    ]
    return {**found, "unknownFields": unknown} if unknown else found


def _value(descriptor: FieldDescriptor | None, value: Any) -> Any:
    if isinstance(value, Message):
        return _fields(value)
    if isinstance(value, bytes):
        return _bytes(value)
    if isinstance(value, UnknownFieldSet):
        return [_value(None, field.data) for field in cast("list[Any]", value)]
    if descriptor is not None and descriptor.enum_type is not None:
        return descriptor.enum_type.values_by_number[value].name
    return value


def _bytes(value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return "0x" + value.hex()
    return text if text.translate(_LAYOUT_CHARACTERS).isprintable() else "0x" + value.hex()


def _ranges(bitmap: FrozenBitMap) -> list[list[int]]:
    """The bitmap as [first, last] pairs, both inclusive."""
    ranges: list[list[int]] = []
    for entry_id in bitmap:
        if ranges and ranges[-1][1] == entry_id - 1:
            ranges[-1][1] = entry_id
        else:
            ranges.append([entry_id, entry_id])
    return ranges
