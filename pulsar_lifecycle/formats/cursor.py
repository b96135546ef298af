"""ManagedCursorInfo (cursor z-nodes) and PositionInfo (entries of cursor ledgers).

Belongs here: where a subscription stands and which ledgers its cursor refers to, as values and back. Not here: which of
the two, z-node or last ledger entry, is the truth at a given moment: that needs reading (io/).
Upstream: ``MLDataFormats.ManagedCursorInfo`` and ``PositionInfo``, ``ManagedCursorImpl``, managed-ledger 4.0.7;
bucket keys: ``BucketDelayedDeliveryTracker``, pulsar-broker 4.0.7.

When ``cursors_ledger_id`` is not -1 the truth is the last entry of that ledger, and position and ``properties`` of the
z-node are those of the time the cursor ledger was created. ``cursor_properties`` live in the z-node only.

Rewriting loses nothing, as in :mod:`managed_ledger`. Ranges and batch indexes are kept as long as they are equal.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pulsar_lifecycle._pb import pulsar_mldata_pb2 as pb
from pulsar_lifecycle.errors import CorruptFormat, UnsupportedFormat
from pulsar_lifecycle.formats import _wire
from pulsar_lifecycle.formats.compression import MAGIC, Compression, unwrap, wrap
from pulsar_lifecycle.formats.managed_ledger import fill_position, position
from pulsar_lifecycle.model import Position

WHAT = "cursor z-node"
WHAT_ENTRY = "cursor-ledger entry"
NO_LEDGER = -1  # cursorsLedgerId: the position is in the z-node itself
COMPACTED_LEDGER_PROPERTY = "CompactedTopicLedger"  # CompactedTopicImpl.COMPACTED_TOPIC_LEDGER_PROPERTY
REPLICATED_PROPERTY = "pulsar.replicated.subscription"  # PersistentSubscription.REPLICATED_SUBSCRIPTION_PROPERTY
INTERNAL_PREFIX = "#pulsar.internal."  # ManagedCursor.CURSOR_INTERNAL_PROPERTY_PREFIX
BUCKET_PREFIX = INTERNAL_PREFIX + "delayed.bucket"  # BucketDelayedDeliveryTracker.DELAYED_BUCKET_KEY_PREFIX
_BUCKET_KEY = re.compile(re.escape(BUCKET_PREFIX) + r"_(0|[1-9][0-9]{0,18})_(0|[1-9][0-9]{0,18})")
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")
_TEXT_FORM = (b"cursorsLedgerId", b"markDelete")  # written before Pulsar 1.20
_MAX_LONG = (1 << 63) - 1
_LONG_DIGITS = len(str(_MAX_LONG))


@dataclass(frozen=True, slots=True)
class MessageRange:
    """Individually deleted messages of (``lower``, ``upper``]: lower end exclusive, upper end inclusive."""

    lower: Position
    upper: Position


@dataclass(frozen=True, slots=True)
class BatchDeletion:
    """BatchedEntryDeletionIndexInfo: ``delete_set`` as BitSet.toLongArray(); a set bit is *not* acknowledged."""

    position: Position
    delete_set: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LedgerBits:
    """LongListMap: bit i of ``words`` (BitSet.toLongArray()) set means entry i of the ledger is deleted."""

    ledger_id: int
    words: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ManagedCursorInfo:
    """A cursor z-node; ``last_active`` in ms."""

    cursors_ledger_id: int
    mark_delete: Position | None = None
    individual_deleted: tuple[MessageRange, ...] = ()
    properties: Mapping[str, int] = field(default_factory=dict[str, int])
    last_active: int | None = None
    batch_deletions: tuple[BatchDeletion, ...] = ()
    cursor_properties: Mapping[str, str] = field(default_factory=dict[str, str])
    compression: Compression = Compression.NONE
    origin: bytes = field(default=b"", repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class PositionInfo:
    """An entry of a cursor ledger. If both range forms are there, ``individual_deleted`` counts."""

    mark_delete: Position
    individual_deleted: tuple[MessageRange, ...] = ()
    properties: Mapping[str, int] = field(default_factory=dict[str, int])
    batch_deletions: tuple[BatchDeletion, ...] = ()
    deleted_bits: tuple[LedgerBits, ...] = ()
    origin: bytes = field(default=b"", repr=False, compare=False)


class BucketLedger(NamedTuple):
    """A delayed-index bucket of a cursor: topic ledgers ``start``..``end`` inclusive, snapshot in ``ledger_id``."""

    start: int
    end: int
    ledger_id: int


def decode(data: bytes) -> ManagedCursorInfo:
    """The z-node's bytes.

    Raises CorruptFormat (0 bytes too: a cursor is always written whole), or UnsupportedFormat for the text form of
    before Pulsar 1.20 and for unknown codecs.
    """
    data = bytes(data)
    if data.startswith(_TEXT_FORM):
        raise UnsupportedFormat(WHAT, 0, "protobuf; this is the text form of before Pulsar 1.20")
    plain = unwrap(data, WHAT)

    def build(message: pb.ManagedCursorInfo) -> ManagedCursorInfo:
        pairs = ((_wire.text(_wire.known(p).name), _wire.text(p.value)) for p in _wire.known(message).cursorProperties)
        return ManagedCursorInfo(
            _wire.at_least(NO_LEDGER, "cursorsLedgerId", message.cursorsLedgerId),
            _mark_delete(message),
            _ranges(message.individualDeletedMessages),
            _long_properties(message.properties),
            _wire.optional(message, "lastActive"),
            _batch_deletions(message.batchedEntryDeletionIndexInfo),
            _wire.unique(pairs, "cursor property"),
            plain.compression,
            data,
        )

    return _wire.decode(pb.ManagedCursorInfo, plain.data, WHAT, build)


def encode(info: ManagedCursorInfo) -> bytes:
    """The z-node's bytes, compressed as ``info.compression`` says. Raises ValueError for numbers beyond 64 bits."""
    if info.origin and decode(info.origin) == info:
        return info.origin
    message = pb.ManagedCursorInfo()
    message.MergeFromString(unwrap(info.origin, WHAT).data)
    _wire.require(message, "cursorsLedgerId", info.cursors_ledger_id)
    _wire.assign(message, "markDeleteLedgerId", info.mark_delete.ledger_id if info.mark_delete else None)
    _wire.assign(message, "markDeleteEntryId", info.mark_delete.entry_id if info.mark_delete else None)
    _wire.reconcile(message.individualDeletedMessages, info.individual_deleted, _range, lambda v: v, _fill_range)
    _fill_properties(message.properties, info.properties)
    _wire.assign(message, "lastActive", info.last_active)
    _fill_batch_deletions(message.batchedEntryDeletionIndexInfo, info.batch_deletions)
    _fill_properties(message.cursorProperties, info.cursor_properties)
    return wrap(message.SerializeToString(), info.compression)


def acknowledged(info: ManagedCursorInfo) -> str:
    """SHA-256 (hex) of what was acknowledged beyond the position, and of the properties."""
    properties = sorted(info.properties.items()), sorted(info.cursor_properties.items())
    said = repr((info.individual_deleted, info.batch_deletions, properties))
    return hashlib.sha256(said.encode()).hexdigest()


def decode_position(data: bytes) -> PositionInfo:
    """An entry of a cursor ledger, without its BookKeeper header.

    Raises CorruptFormat, or UnsupportedFormat for the forms of forks: positions cut into several entries with a JSON
    footer (datastax/pulsar #267, PIP-381) and compressed entries (datastax/pulsar #262).
    """
    data = bytes(data)
    if data.startswith(b"{"):
        raise UnsupportedFormat(WHAT_ENTRY, 0, "PositionInfo; this is the footer of a chunked one (PIP-381)")
    if data.startswith(MAGIC):
        raise UnsupportedFormat(WHAT_ENTRY, 0, "PositionInfo; this is a compressed one (datastax/pulsar #262)")

    def build(message: pb.PositionInfo) -> PositionInfo:
        return PositionInfo(
            Position(_wire.known(message).ledgerId, message.entryId),
            _ranges(message.individualDeletedMessages),
            _long_properties(message.properties),
            _batch_deletions(message.batchedEntryDeletionIndexInfo),
            tuple(_bits(_wire.known(bits)) for bits in message.individualDeletedMessageRanges),
            data,
        )

    return _wire.decode(pb.PositionInfo, data, WHAT_ENTRY, build)


def encode_position(info: PositionInfo) -> bytes:
    """An entry of a cursor ledger. Raises ValueError for numbers that do not fit 64 bits."""
    if info.origin and decode_position(info.origin) == info:
        return info.origin
    message = pb.PositionInfo()
    message.MergeFromString(info.origin)
    _wire.require(message, "ledgerId", info.mark_delete.ledger_id)
    _wire.require(message, "entryId", info.mark_delete.entry_id)
    _wire.reconcile(message.individualDeletedMessages, info.individual_deleted, _range, lambda v: v, _fill_range)
    _fill_properties(message.properties, info.properties)
    _fill_batch_deletions(message.batchedEntryDeletionIndexInfo, info.batch_deletions)
    _wire.reconcile(message.individualDeletedMessageRanges, info.deleted_bits, _bits, lambda v: v, _fill_bits)
    return message.SerializeToString()


def compacted_ledger(properties: Mapping[str, int]) -> int | None:
    """The compacted-topic ledger that a ``__compaction`` cursor's properties name, or None."""
    return properties.get(COMPACTED_LEDGER_PROPERTY)


def bucket_ledgers(cursor_properties: Mapping[str, str]) -> tuple[BucketLedger, ...]:
    """The delayed-index buckets that a cursor's properties name, in the order of their ranges.

    Raises CorruptFormat for a key below the bucket prefix, or a value, that does not read as the broker writes them:
    a bucket missed would make its live ledger look like an orphan.
    """
    found: list[BucketLedger] = []
    for key, value in cursor_properties.items():
        if not key.startswith(BUCKET_PREFIX):
            continue
        bounds = _BUCKET_KEY.fullmatch(key)
        if bounds is None or _DECIMAL.fullmatch(value) is None:
            raise CorruptFormat(
                "delayed-index bucket", 0, f"{BUCKET_PREFIX}_START_END = LEDGER, found {key!r} = {value!r}"
            )
        start, end, ledger_id = int(bounds[1]), int(bounds[2]), int(value)
        if start > end or max(end, ledger_id) > _MAX_LONG:
            raise CorruptFormat("delayed-index bucket", 0, f"ledger ids in order, found {key!r} = {value!r}")
        found.append(BucketLedger(start, end, ledger_id))
    return tuple(sorted(found))


def snapshot_ledger(value: str) -> int | None:
    """The ledger that the value of a bucket's property names, zeros before it or not; None if it is no ledger's id."""
    digits = value.lstrip("0")
    if not (value.isascii() and value.isdecimal()) or len(digits) > _LONG_DIGITS:
        return None
    found = int(digits or "0")
    return found if found <= _MAX_LONG else None


def _mark_delete(message: pb.ManagedCursorInfo) -> Position | None:
    halves = message.HasField("markDeleteLedgerId"), message.HasField("markDeleteEntryId")
    if halves == (False, False):
        return None
    if halves != (True, True):
        raise _wire.MalformedError("both halves of the mark-delete position")
    return Position(message.markDeleteLedgerId, message.markDeleteEntryId)


def _range(message: pb.MessageRange) -> MessageRange:
    _wire.known(message)
    return MessageRange(position(_wire.known(message.lowerEndpoint)), position(_wire.known(message.upperEndpoint)))


def _ranges(container: Iterable[pb.MessageRange]) -> tuple[MessageRange, ...]:
    return tuple(map(_range, container))


def _fill_range(message: pb.MessageRange, value: MessageRange) -> None:
    fill_position(message.lowerEndpoint, value.lower)
    fill_position(message.upperEndpoint, value.upper)


def _long_properties(container: Iterable[pb.LongProperty]) -> dict[str, int]:
    return _wire.unique(((_wire.text(_wire.known(pair).name), pair.value) for pair in container), "property")


def _fill_properties(container: Any, properties: Mapping[str, int] | Mapping[str, str]) -> None:
    _wire.reconcile(container, properties.items(), lambda m: m.name, lambda pair: pair[0], _fill_property)


def _fill_property(message: pb.LongProperty | pb.StringProperty, pair: tuple[str, Any]) -> None:
    _wire.require(message, "name", pair[0])
    _wire.require(message, "value", pair[1])


def _batch_deletion(message: pb.BatchedEntryDeletionIndexInfo) -> BatchDeletion:
    return BatchDeletion(position(_wire.known(_wire.known(message).position)), tuple(message.deleteSet))


def _batch_deletions(container: Iterable[pb.BatchedEntryDeletionIndexInfo]) -> tuple[BatchDeletion, ...]:
    return tuple(map(_batch_deletion, container))


def _fill_batch_deletions(container: Any, values: tuple[BatchDeletion, ...]) -> None:
    _wire.reconcile(container, values, _batch_deletion, lambda v: v, _fill_batch_deletion)


def _fill_batch_deletion(message: pb.BatchedEntryDeletionIndexInfo, value: BatchDeletion) -> None:
    fill_position(message.position, value.position)
    message.deleteSet[:] = value.delete_set


def _bits(message: pb.LongListMap) -> LedgerBits:
    return LedgerBits(message.key, tuple(message.values))


def _fill_bits(message: pb.LongListMap, value: LedgerBits) -> None:
    _wire.require(message, "key", value.ledger_id)
    message.values[:] = value.words
