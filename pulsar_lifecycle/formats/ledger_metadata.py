r"""BookKeeper's ledger metadata: the z-node ``/ledgers/../L....``, in every version on disk.

Belongs here: the z-node's bytes as a value, back, and as columns for scans of millions of them; the names of the tags
that Pulsar puts on its ledgers. Not here: z-node paths (:mod:`ledger_path`), judging a ledger.
Upstream: ``LedgerMetadataSerDe`` and ``DataFormats.LedgerMetadataFormat``, bookkeeper-server 4.17.2; tags:
``LedgerMetadataUtils``, managed-ledger 4.0.7.

Header ``BookieMetadataFormatVersion\t<N>\n``, then for N = 3 a length-prefixed LedgerMetadataFormat, for 2 the same
message as protobuf text, for 1 lines of text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from pulsar_lifecycle._pb import bookkeeper_metadata_pb2 as pb
from pulsar_lifecycle.errors import CorruptFormat, UnsupportedFormat
from pulsar_lifecycle.formats import _ledger_text, _wire
from pulsar_lifecycle.formats._ledger_text import WHAT

# LedgerMetadataUtils: keys of the custom metadata, and the values of APPLICATION and COMPONENT.
TAG_APPLICATION = "application"
TAG_COMPONENT = "component"
TAG_MANAGED_LEDGER = "pulsar/managed-ledger"
TAG_CURSOR = "pulsar/cursor"
TAG_COMPACTED_TOPIC = "pulsar/compactedTopic"
TAG_SCHEMA_ID = "pulsar/schemaId"
TAG_BUCKET_KEY = "pulsar/delayedIndexBucketKey"
TAG_BUCKET_TOPIC = "pulsar/delayedIndexTopic"
TAG_BUCKET_CURSOR = "pulsar/delayedIndexCursor"
APPLICATION_PULSAR = "pulsar"
COMPONENT_MANAGED_LEDGER = "managed-ledger"  # of cursor ledgers too; those carry TAG_CURSOR
COMPONENT_COMPACTED_LEDGER = "compacted-ledger"
COMPONENT_SCHEMA = "schema"
COMPONENT_BUCKET = "delayed-index-bucket"

_MAGIC = b"BookieMetadataFormatVersion\t"  # VERSION_KEY_BYTES
_VERSION_3 = _MAGIC + b"3\n"
_VERSION = re.compile(rb"([0-9]{1,10})\n")


class LedgerState(IntEnum):
    """LedgerMetadataFormat.State."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(IntEnum):
    """LedgerMetadataFormat.DigestType; HMAC is what the client API calls MAC."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True)
class Segment:
    """From ``first_entry_id`` on (up to the next segment) entries are striped over ``bookies``, in this order."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """A ledger. ``length`` in bytes, ``ctime`` in ms (None: not stored, the z-node's ctime counts).

    ``last_entry_id`` (-1: no entry) and ``length`` mean something only when ``state`` is CLOSED. ``digest_type`` is
    None when the node does not say, or has no password field, as upstream reads it: the reader must then know it.
    """

    state: LedgerState
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    segments: tuple[Segment, ...]
    length: int = 0
    last_entry_id: int = -1
    digest_type: DigestType | None = None
    password: bytes = b""
    ctime: int | None = None
    ctoken: int | None = None
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    format_version: int = 3
    origin: bytes = field(default=b"", repr=False, compare=False)


def decode(data: bytes) -> LedgerMetadata:
    """The z-node's bytes.

    Raises CorruptFormat (0 bytes too: a half-deleted ledger), or UnsupportedFormat for versions other than 1, 2 and 3.
    """
    data = bytes(data)
    if not data.startswith(_MAGIC):
        raise CorruptFormat(WHAT, 0, f"{_MAGIC.decode().strip()!r}, found {data[:40]!r}")
    version = _VERSION.match(data, len(_MAGIC))
    if version is None:
        raise CorruptFormat(WHAT, len(_MAGIC), "a version number and a line feed")
    start = version.end()
    match int(version[1]):
        case 3:
            start, end = _delimited(data, start)
            return _wire.decode(
                pb.LedgerMetadataFormat, data[start:end], WHAT, lambda message: _build(message, 3, data), start
            )
        case 2:
            return _from_text(_ledger_text.parse_version_2, data, start, 2)
        case 1:
            return _from_text(_ledger_text.parse_version_1, data, start, 1)
        case unknown:
            raise UnsupportedFormat(WHAT, len(_MAGIC), f"version 1, 2 or 3, found {unknown}")


def encode(metadata: LedgerMetadata) -> bytes:
    """The z-node's bytes: those it was decoded from if nothing changed, otherwise version 3 with unknown fields kept.

    Raises ValueError for numbers that do not fit and for a changed value of version 1 or 2, which nobody writes today.
    """
    if metadata.origin and decode(metadata.origin) == metadata:
        return metadata.origin
    if metadata.format_version != 3:
        raise ValueError(f"ledger metadata is written in version 3 only, not {metadata.format_version}")
    message = pb.LedgerMetadataFormat()
    if metadata.origin.startswith(_VERSION_3):
        message.MergeFromString(body(metadata.origin))
    _fill(message, metadata)
    plain = message.SerializeToString()
    return _VERSION_3 + _wire.write_varint(len(plain)) + plain


def body(data: bytes) -> bytes:
    """The LedgerMetadataFormat message inside a version-3 z-node, not looked into; raises CorruptFormat."""
    if not data.startswith(_VERSION_3):
        raise CorruptFormat(WHAT, 0, f"{_VERSION_3.decode()!r}")
    start, end = _delimited(data, len(_VERSION_3))
    return data[start:end]


def carried(metadata: LedgerMetadata) -> LedgerMetadata:
    """What goes with a ledger that is copied elsewhere: all but its password, its cToken and how it was stored."""
    return replace(metadata, password=b"", ctoken=None, format_version=3, origin=b"")


def decode_carried(data: bytes, what: str, base: int) -> LedgerMetadata:
    """The LedgerMetadataFormat message that an offload index holds (OffloadUtils.parseLedgerMetadata), see carried.

    Without header and password; ``what`` and ``base`` are as in ``_wire.decode``. Raises CorruptFormat.
    """

    def build(message: pb.LedgerMetadataFormat) -> LedgerMetadata:
        digest_type = DigestType(message.digestType) if message.HasField("digestType") else None
        return replace(carried(_build(message, 3, b"")), digest_type=digest_type)

    return _wire.decode(pb.LedgerMetadataFormat, data, what, build, base)


def encode_carried(metadata: LedgerMetadata) -> bytes:
    """The message that an offload index holds (OffloadUtils.buildLedgerMetadataFormat), see carried."""
    message = _as_message(carried(metadata))
    message.ClearField("password")
    return message.SerializeToString()


def _delimited(data: bytes, offset: int) -> tuple[int, int]:
    length = _wire.read_varint(data, offset)
    if length is None:
        raise CorruptFormat(WHAT, offset, "the message's length")
    if length[1] + length[0] != len(data):
        raise CorruptFormat(WHAT, offset, f"a message of {len(data) - length[1]} bytes, found {length[0]}")
    return length[1], len(data)


def _build(message: pb.LedgerMetadataFormat, version: int, origin: bytes) -> LedgerMetadata:
    """What LedgerMetadataBuilder demands is checked, and what every reader of a closed ledger relies on."""
    size, quorum = _wire.known(message).ensembleSize, message.quorumSize
    ack = message.ackQuorumSize if message.HasField("ackQuorumSize") else quorum
    last = message.lastEntryId if message.HasField("lastEntryId") else None
    if not size >= quorum >= ack >= 0:
        raise _wire.MalformedError("an ensemble no smaller than the write quorum, and that than the ack quorum")
    if message.state == LedgerState.CLOSED and (last is None or last < -1):
        raise _wire.MalformedError("the last entry id of a closed ledger")
    if message.state == LedgerState.CLOSED and message.length < 0:
        raise _wire.MalformedError("the length of a closed ledger")
    segments = tuple([_segment(segment.SerializePartialToString()) for segment in message.segment])
    previous = -1
    for segment in segments:
        if segment.first_entry_id <= previous or len(segment.bookies) != size:
            raise _wire.MalformedError(f"segments in order with {size} bookies each")
        previous = segment.first_entry_id
    if previous < 0:
        raise _wire.MalformedError("a segment")
    return LedgerMetadata(
        _STATES[message.state],
        size,
        quorum,
        ack,
        segments,
        message.length,
        -1 if last is None else last,
        _DIGESTS[message.digestType] if message.HasField("digestType") and message.HasField("password") else None,
        message.password,
        _wire.optional(message, "ctime"),
        _wire.optional(message, "cToken"),
        _wire.unique(
            [(_wire.text(_wire.known(one).key), one.value) for one in message.customMetadata], "custom metadata key"
        ),
        version,
        origin,
    )


@lru_cache(maxsize=1 << 16)
def _segment(data: bytes) -> Segment:
    """A segment's message. Millions of ledgers share few: looking one up costs half of reading it."""
    message = _wire.known(pb.LedgerMetadataFormat.Segment.FromString(data))
    return Segment(message.firstEntryId, tuple(map(_wire.text, message.ensembleMember)))


def _from_text(
    parse: Callable[[bytes, int], pb.LedgerMetadataFormat], data: bytes, start: int, version: int
) -> LedgerMetadata:
    try:
        return _build(parse(data, start), version, data)
    except _wire.MalformedError as error:
        raise CorruptFormat(WHAT, start, str(error)) from None


def _fill(message: pb.LedgerMetadataFormat, value: LedgerMetadata) -> None:
    _wire.require(message, "quorumSize", value.write_quorum)
    _wire.require(message, "ensembleSize", value.ensemble_size)
    _wire.require(message, "length", value.length)
    _wire.require(message, "lastEntryId", value.last_entry_id)
    _wire.require(message, "state", value.state.value)
    _wire.reconcile(
        message.segment,
        value.segments,
        lambda m: m.firstEntryId,
        lambda v: v.first_entry_id,
        _fill_segment,
    )
    if value.digest_type is not None:
        _wire.require(message, "digestType", value.digest_type.value)
    if value.digest_type is not None or value.password:
        _wire.require(message, "password", value.password)
    _wire.require(message, "ackQuorumSize", value.ack_quorum)
    _wire.assign(message, "ctime", value.ctime)
    _wire.assign(message, "cToken", value.ctoken)
    _wire.reconcile(
        message.customMetadata, value.custom_metadata.items(), lambda m: m.key, lambda pair: pair[0], _fill_custom
    )


def _fill_segment(message: pb.LedgerMetadataFormat.Segment, segment: Segment) -> None:
    _wire.require(message, "firstEntryId", segment.first_entry_id)
    message.ensembleMember[:] = segment.bookies


def _fill_custom(message: pb.LedgerMetadataFormat.cMetadataMapEntry, pair: tuple[str, bytes]) -> None:
    _wire.require(message, "key", pair[0])
    _wire.require(message, "value", pair[1])


def decode_columns(blobs: Sequence[bytes], columns: frozenset[str]) -> tuple[dict[str, list[Any]], list[str | None]]:
    """The asked columns of many z-nodes, one list each, and per row None or why it could not be read.

    ``entries`` and ``length`` (bytes) are None unless the ledger is CLOSED; ``ctime`` (ms) is 0 when not stored;
    ``ensembles`` is a text for :func:`parse_ensembles`, None where a bookie's id is none of BookKeeper's or a segment
    has not as many as the ensemble; ``state`` and ``digest_type`` are upstream names; an absent tag is None.
    An unreadable row is None in every column. Only what the columns need is checked; :func:`decode` checks all of it.
    Raises ValueError for a column not in ``COLUMNS``.
    """
    if unknown := columns - COLUMNS:
        raise ValueError(f"no such ledger-metadata column: {', '.join(sorted(unknown))}")
    errors: list[str | None] = [None] * len(blobs)
    messages: list[pb.LedgerMetadataFormat] = []
    for row, blob in enumerate(blobs):
        message = _parse_fast(blob)
        if message is None:
            try:
                message = _as_message(decode(blob))
            except CorruptFormat as error:
                message = _UNREADABLE
                errors[row] = str(error)
        messages.append(message)
    tags = _tags(messages, errors) if columns & _TAG_COLUMNS.keys() else []
    present = set[str]().union(*tags)  # any ledger has three of the nine
    values: dict[str, list[Any]] = {}
    for name in sorted(columns):
        if name in _TAG_COLUMNS and _TAG_COLUMNS[name] not in present:
            values[name] = [None] * len(blobs)
        elif name in _TAG_COLUMNS:
            values[name] = _tag_column(_TAG_COLUMNS[name], tags, errors)
        else:
            values[name] = _SCALAR_COLUMNS[name](messages)
    for row, error in enumerate(errors):
        if error is not None:
            for column in values.values():
                column[row] = None
    return values, errors


def _parse_fast(blob: bytes) -> pb.LedgerMetadataFormat | None:
    """A clean version-3 message; None for everything else, which :func:`decode` then judges."""
    if blob[: len(_VERSION_3)] != _VERSION_3:
        return None
    start = len(_VERSION_3) + 1
    length = blob[start - 1] if len(blob) >= start else 0
    if length & 0x80 and len(blob) > start:
        length = length & 0x7F | blob[start] << 7  # two bytes reach to 16 KiB; a longer one is left to decode
        start += 1
    if start + length != len(blob):
        return None
    try:
        message = pb.LedgerMetadataFormat.FromString(blob[start:])
    except DecodeError:
        return None
    clean = (  # the required fields one by one: half the cost of IsInitialized
        not len(UnknownFieldSet(message))
        and message.ensembleSize >= message.quorumSize >= message.ackQuorumSize > 0
        and message.length >= 0
        and message.lastEntryId >= -1
        and message.HasField("length")
        and message.HasField("lastEntryId")
        and message.HasField("state")
    )
    return message if clean else None


def _as_message(value: LedgerMetadata) -> pb.LedgerMetadataFormat:
    message = pb.LedgerMetadataFormat()
    _fill(message, value)
    return message


def _tags(messages: list[pb.LedgerMetadataFormat], errors: list[str | None]) -> list[dict[str, bytes]]:
    tags: list[dict[str, bytes]] = []
    for row, message in enumerate(messages):
        entries = message.customMetadata
        found = {entry.key: entry.value for entry in entries}
        if len(found) != len(entries):
            errors[row] = str(CorruptFormat(WHAT, 0, "each custom metadata key once"))
        tags.append(found)
    return tags


def _tag_column(tag: str, tags: list[dict[str, bytes]], errors: list[str | None]) -> list[str | None]:
    try:
        return [None if (value := found.get(tag)) is None else value.decode() for found in tags]
    except UnicodeDecodeError:
        for row, found in enumerate(tags):
            value = found.get(tag, b"")
            if value.decode(errors="replace").encode() != value:
                errors[row] = str(CorruptFormat(WHAT, 0, f"UTF-8 text in the tag {tag}"))
        return [None if (value := found.get(tag)) is None else value.decode(errors="replace") for found in tags]


def _ensembles(messages: list[pb.LedgerMetadataFormat]) -> list[str | None]:
    column: list[str | None] = []
    for message in messages:
        segments, size = message.segment, message.ensembleSize
        if len(segments) == 1:  # of nearly every ledger
            column.append(_segment_text(segments[0], size) or None)
        else:
            texts = [_segment_text(one, size) for one in segments]
            column.append("|".join(texts) if texts and all(texts) else None)
    return column


def _segment_text(segment: pb.LedgerMetadataFormat.Segment, ensemble_size: int) -> str:
    """A segment as ``FIRST BOOKIE BOOKIE ...``; empty where that cannot be told apart again.

    None is looked up: a cluster with many bookies has as many ensembles as ledgers.
    """
    try:
        text = " ".join(segment.ensembleMember)
    except TypeError:  # not UTF-8
        return ""
    if len(segment.ensembleMember) != ensemble_size or text.count(" ") != ensemble_size - 1 or "|" in text:
        return ""
    return f"{segment.firstEntryId} {text}"


def parse_ensembles(text: str) -> tuple[Segment, ...]:
    """The segments of column ``ensembles``. Raises ValueError for another text."""
    parts = [part.split(" ") for part in text.split("|")]
    return tuple(Segment(int(first), tuple(bookies)) for first, *bookies in parts)


def _closed(field_name: str, offset: int) -> Callable[[list[pb.LedgerMetadataFormat]], list[int | None]]:
    def column(messages: list[pb.LedgerMetadataFormat]) -> list[int | None]:
        closed = LedgerState.CLOSED.value
        return [getattr(m, field_name) + offset if m.state == closed else None for m in messages]

    return column


_STATES = {state.value: state for state in LedgerState}
_DIGESTS = {digest.value: digest for digest in DigestType}
_STATE_NAMES = {number: state.name for number, state in _STATES.items()}
_DIGEST_NAMES = {number: digest.name for number, digest in _DIGESTS.items()}
_SCALAR_COLUMNS: dict[str, Callable[[list[pb.LedgerMetadataFormat]], list[Any]]] = {
    "state": lambda messages: [_STATE_NAMES[m.state] for m in messages],
    "entries": _closed("lastEntryId", 1),
    "length": _closed("length", 0),
    "ensemble_size": lambda messages: [m.ensembleSize for m in messages],
    "write_quorum": lambda messages: [m.quorumSize for m in messages],
    "ack_quorum": lambda messages: [m.ackQuorumSize for m in messages],
    "digest_type": lambda messages: [
        _DIGEST_NAMES[m.digestType] if m.HasField("digestType") and m.HasField("password") else None for m in messages
    ],
    "ctime": lambda messages: [m.ctime for m in messages],
    "ensembles": _ensembles,
}
_TAG_COLUMNS = {
    "application": TAG_APPLICATION,
    "component": TAG_COMPONENT,
    "managed_ledger": TAG_MANAGED_LEDGER,
    "cursor": TAG_CURSOR,
    "schema_id": TAG_SCHEMA_ID,
    "compacted_topic": TAG_COMPACTED_TOPIC,
    "bucket_key": TAG_BUCKET_KEY,
    "bucket_topic": TAG_BUCKET_TOPIC,
    "bucket_cursor": TAG_BUCKET_CURSOR,
}
COLUMNS = frozenset(_SCALAR_COLUMNS.keys() | _TAG_COLUMNS.keys())
"""What :func:`decode_columns` can give."""

_UNREADABLE = pb.LedgerMetadataFormat()  # stands in for an unreadable row
