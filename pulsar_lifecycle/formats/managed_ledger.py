"""ManagedLedgerInfo: the z-node ``/managed-ledgers/T/NS/persistent/TOPIC``, a topic's list of ledgers.

Belongs here: the z-node's bytes, plain or compressed, as values and back. Not here: what follows from them,
cursors (:mod:`cursor`). Upstream: ``MLDataFormats.ManagedLedgerInfo`` and ``MetaStoreImpl``, managed-ledger 4.0.7.

Rewriting loses nothing. A value remembers the bytes it was decoded from and ``encode`` rewrites those: a value that did
not change gives the same bytes, a changed one keeps every field unknown to us in every message that is still there.
Ledgers are recognised by id, offload contexts by UUID, properties by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pulsar_lifecycle._pb import pulsar_mldata_pb2 as pb
from pulsar_lifecycle.errors import UnsupportedFormat
from pulsar_lifecycle.formats import _wire
from pulsar_lifecycle.formats.compression import Compression, unwrap, wrap
from pulsar_lifecycle.formats.offload_object import halves, uuid_of
from pulsar_lifecycle.model import Position

WHAT = "managed-ledger z-node"
LOW_WATERMARK = "pulsar-lifecycle.low-watermark"
"""Our property that holds a topic's low watermark, a ``MessagePosition`` as text (``topics/low_watermark.py``).

What a broker was asked to keep has this name, a dot and the position: the highest of all is the low watermark.
"""
# The text form of ManagedLedgerInfo, written before Pulsar 1.20.
_TEXT_FORM = (b"ledgerInfo", b"terminatedPosition", b"properties {")


@dataclass(frozen=True, slots=True)
class OffloadSegment:
    """OffloadSegment of the streaming offload; timestamps in ms."""

    uuid: UUID | None
    complete: bool
    assigned_timestamp: int | None
    offloaded_timestamp: int | None
    end_entry_id: int | None
    driver_name: str | None
    driver_metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OffloadContext:
    """OffloadContext: one offload attempt of a ledger.

    The object is whole only if ``complete``; a UUID without it is an open or aborted attempt. Timestamps in ms.
    """

    uuid: UUID | None
    complete: bool
    bookkeeper_deleted: bool
    timestamp: int | None
    driver_name: str | None
    driver_metadata: Mapping[str, str]
    segments: tuple[OffloadSegment, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """LedgerInfo: ``entries``, ``size`` (bytes), ``timestamp`` (ms, closing time); None until the broker rolls it.

    The open ledger is written with timestamp 0; a ledger closed by an unload keeps that form.
    """

    ledger_id: int
    entries: int | None = None
    size: int | None = None
    timestamp: int | None = None
    offload: OffloadContext | None = None


@dataclass(frozen=True, slots=True)
class ManagedLedgerInfo:
    """ManagedLedgerInfo. ``ledgers`` in the order of the z-node, which need not be the order of their ids."""

    ledgers: tuple[LedgerInfo, ...] = ()
    terminated: Position | None = None
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    compression: Compression = Compression.NONE
    origin: bytes = field(default=b"", repr=False, compare=False)


def decode(data: bytes) -> ManagedLedgerInfo:
    """The z-node's bytes; 0 bytes (a topic never loaded) give an empty info.

    Raises CorruptFormat, or UnsupportedFormat for the text form of before Pulsar 1.20 and for unknown codecs.
    """
    data = bytes(data)
    if data.startswith(_TEXT_FORM):
        raise UnsupportedFormat(WHAT, 0, "protobuf; this is the text form of before Pulsar 1.20")
    plain = unwrap(data, WHAT)

    def build(message: pb.ManagedLedgerInfo) -> ManagedLedgerInfo:
        ledgers = _wire.unique(((info.ledgerId, _ledger(info)) for info in message.ledgerInfo), "ledger id")
        terminated = message.terminatedPosition if message.HasField("terminatedPosition") else None
        return ManagedLedgerInfo(
            tuple(ledgers.values()),
            position(_wire.known(terminated)) if terminated is not None else None,
            _properties(_wire.known(message).properties),
            plain.compression,
            data,
        )

    return _wire.decode(pb.ManagedLedgerInfo, plain.data, WHAT, build)


def low_watermarks(properties: Mapping[str, str]) -> dict[str, str]:
    """Those that hold a low watermark, by their names: the highest is the topic's."""
    kept = f"{LOW_WATERMARK}."
    return {name: text for name, text in properties.items() if name == LOW_WATERMARK or name.startswith(kept)}


def offload_uuids(info: ManagedLedgerInfo) -> set[UUID]:
    """Every offload attempt that a ledger of the topic names, complete or not, streaming segments too."""
    contexts = [item.offload for item in info.ledgers if item.offload]
    named = {context.uuid for context in contexts} | {s.uuid for context in contexts for s in context.segments}
    return {uuid for uuid in named if uuid}


def encode(info: ManagedLedgerInfo) -> bytes:
    """The z-node's bytes, compressed as ``info.compression`` says; the module's docstring has what is kept.

    Raises ValueError for numbers that do not fit 64 bits.
    """
    if info.origin and decode(info.origin) == info:
        return info.origin
    message = pb.ManagedLedgerInfo.FromString(unwrap(info.origin, WHAT).data)
    _wire.reconcile(message.ledgerInfo, info.ledgers, lambda m: m.ledgerId, lambda v: v.ledger_id, _fill_ledger)
    if info.terminated is None:
        message.ClearField("terminatedPosition")
    else:
        fill_position(message.terminatedPosition, info.terminated)
    fill_properties(message.properties, info.properties)
    return wrap(message.SerializeToString(), info.compression)


def position(message: pb.NestedPositionInfo) -> Position:
    """NestedPositionInfo as a value."""
    return Position(message.ledgerId, message.entryId)


def fill_position(message: pb.NestedPositionInfo, value: Position) -> None:
    """Makes a NestedPositionInfo show ``value``."""
    _wire.require(message, "ledgerId", value.ledger_id)
    _wire.require(message, "entryId", value.entry_id)


def fill_properties(container: Any, properties: Mapping[str, str]) -> None:
    """Makes repeated KeyValue messages show ``properties``."""
    _wire.reconcile(container, properties.items(), lambda m: m.key, lambda pair: pair[0], _fill_key_value)


def _fill_key_value(message: pb.KeyValue, pair: tuple[str, str]) -> None:
    _wire.require(message, "key", pair[0])
    _wire.require(message, "value", pair[1])


def _properties(container: Iterable[pb.KeyValue]) -> dict[str, str]:
    pairs = ((_wire.text(_wire.known(pair).key), _wire.text(pair.value)) for pair in container)
    return _wire.unique(pairs, "property")


def _ledger(message: pb.ManagedLedgerInfo.LedgerInfo) -> LedgerInfo:
    # A scan does this for every ledger there is; a number other than 0 is there without asking for its presence.
    return LedgerInfo(
        _wire.at_least(0, "ledgerId", _wire.known(message).ledgerId),
        message.entries or _wire.optional(message, "entries"),
        message.size or _wire.optional(message, "size"),
        message.timestamp or _wire.optional(message, "timestamp"),
        _offload(message.offloadContext) if message.HasField("offloadContext") else None,
    )


def _fill_ledger(message: pb.ManagedLedgerInfo.LedgerInfo, info: LedgerInfo) -> None:
    _wire.require(message, "ledgerId", info.ledger_id)
    _wire.assign(message, "entries", info.entries)
    _wire.assign(message, "size", info.size)
    _wire.assign(message, "timestamp", info.timestamp)
    if info.offload is None:
        message.ClearField("offloadContext")
        return
    if _uuid(message.offloadContext) != info.offload.uuid:
        message.ClearField("offloadContext")  # what is unknown about another attempt does not belong to this one
    _fill_offload(message.offloadContext, info.offload)


def _offload(message: pb.OffloadContext) -> OffloadContext:
    driver, metadata = _driver(_wire.known(message))
    return OffloadContext(
        _uuid(message),
        message.complete,
        message.bookkeeperDeleted,
        _wire.optional(message, "timestamp"),
        driver,
        metadata,
        tuple(_segment(segment) for segment in message.offloadSegment),
    )


def _fill_offload(message: pb.OffloadContext, context: OffloadContext) -> None:
    message.SetInParent()  # a context without any field is still a context
    _fill_uuid(message, context.uuid)
    _wire.assign(message, "complete", context.complete)
    _wire.assign(message, "bookkeeperDeleted", context.bookkeeper_deleted)
    _wire.assign(message, "timestamp", context.timestamp)
    _fill_driver(message, context.driver_name, context.driver_metadata)
    _wire.reconcile(message.offloadSegment, context.segments, _uuid, lambda value: value.uuid, _fill_segment)


def _segment(message: pb.OffloadSegment) -> OffloadSegment:
    driver, metadata = _driver(_wire.known(message))
    return OffloadSegment(
        _uuid(message),
        message.complete,
        _wire.optional(message, "assignedTimestamp"),
        _wire.optional(message, "offloadedTimestamp"),
        _wire.optional(message, "endEntryId"),
        driver,
        metadata,
    )


def _fill_segment(message: pb.OffloadSegment, segment: OffloadSegment) -> None:
    _fill_uuid(message, segment.uuid)
    _wire.assign(message, "complete", segment.complete)
    _wire.assign(message, "assignedTimestamp", segment.assigned_timestamp)
    _wire.assign(message, "offloadedTimestamp", segment.offloaded_timestamp)
    _wire.assign(message, "endEntryId", segment.end_entry_id)
    _fill_driver(message, segment.driver_name, segment.driver_metadata)


def _uuid(message: pb.OffloadContext | pb.OffloadSegment) -> UUID | None:
    present = message.HasField("uidMsb"), message.HasField("uidLsb")
    if present == (False, False):
        return None
    if present != (True, True):
        raise _wire.MalformedError("both halves of the offload UUID")
    return uuid_of(message.uidMsb, message.uidLsb)


def _fill_uuid(message: pb.OffloadContext | pb.OffloadSegment, value: UUID | None) -> None:
    for name, half in zip(("uidMsb", "uidLsb"), (None, None) if value is None else halves(value), strict=True):
        if half is None:
            message.ClearField(name)
        else:
            _wire.require(message, name, half)


def _driver(message: pb.OffloadContext | pb.OffloadSegment) -> tuple[str | None, dict[str, str]]:
    if not message.HasField("driverMetadata"):
        return None, {}
    driver = _wire.known(message.driverMetadata)
    return _wire.text(driver.name), _properties(driver.properties)


def _fill_driver(message: pb.OffloadContext | pb.OffloadSegment, name: str | None, metadata: Mapping[str, str]) -> None:
    if name is None:
        if metadata:
            raise ValueError("driver metadata without a driver name cannot be written")
        message.ClearField("driverMetadata")
    else:
        _wire.require(message.driverMetadata, "name", name)
        fill_properties(message.driverMetadata.properties, metadata)
