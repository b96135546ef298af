"""Entries of topics as a table of messages, whatever store the entries come from.

Belongs here: the columns of a message and turning entries into them, batch by batch. Not here: an entry's bytes
(``formats/message.py``), putting parts of messages together (``formats/chunks.py``), reading entries
(``sources/entries.py``).

For any table with ``ledger_id``, ``entry_id`` and ``payload``::

    entries.mapInArrow(Messages(), from_arrow_schema(MESSAGES))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import message
from pulsar_lifecycle.formats.chunks import Assembler, Chunk, Loose, LoosePart, WholeMessage
from pulsar_lifecycle.formats.message import Message, MessageEntry
from pulsar_lifecycle.model import Position

MESSAGES = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("entry_id", pa.int64()),
        pa.field("batch_index", pa.int32()),
        pa.field("batch_size", pa.int32()),
        pa.field("key", pa.string()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("publish_time", pa.int64()),
        pa.field("event_time", pa.int64()),
        pa.field("deliver_at_time", pa.int64()),
        pa.field("sequence_id", pa.int64()),
        pa.field("producer", pa.string()),
        pa.field("replicated_from", pa.string()),
        pa.field("schema_version", pa.binary()),
        pa.field("compression", pa.string()),
        pa.field("uncompressed_size", pa.int64()),
        pa.field("encrypted", pa.bool_()),
        pa.field("chunk_id", pa.int32()),
        pa.field("chunks", pa.int32()),
        pa.field("chunked_uuid", pa.string()),
        pa.field("marker_type", pa.int32()),
        pa.field("compacted_out", pa.bool_()),
        pa.field("null_value", pa.bool_()),
        pa.field("payload", pa.binary()),
        pa.field("problem", pa.string()),
    ]
)
"""One row per message. Times are milliseconds since the epoch. ``batch_index`` and ``batch_size`` are null outside
batches. An encrypted entry, and one that is part ``chunk_id`` of ``chunks`` of a message, is one row with its bytes as
they are stored; every other payload is decompressed, and null for a null value. ``uncompressed_size``: bytes that the
stored payload, of a chunked message all of its parts together, comes to. ``problem``: why an entry is no message (then
its payload is the entry's), or why a part of a message could not be put together; null for all others."""

Hidden = dict[Position, int]
"""Of entries whose first messages are not shown: how many."""

BATCH_ROWS = 20_000
BATCH_BYTES = 8 << 20
"""A batch of rows is full when it has so many, or so many bytes of payloads."""


@dataclass(frozen=True)
class Messages:
    """Kernel for ``mapInArrow``: batches with ``ledger_id``, ``entry_id`` and ``payload`` to those of ``schema``.

    Raises CorruptFormat naming the entry that is no message; ``permissive`` makes it a row with a ``problem``.
    ``assembled``: the entries are those of one topic, in order, and a message of several parts is one row, at the
    position of its last part and without ``chunk_id``. Parts of which no message comes are rows with a ``problem``.
    ``hidden`` may grow while entries come.
    """

    permissive: bool = False
    schema: pa.Schema = MESSAGES
    assembled: bool = False
    hidden: Hidden = field(default_factory=Hidden)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The messages of entries, in their order."""
        rows: list[tuple[Any, ...]] = []
        size = 0
        for row in self._all_rows(batches):
            rows.append(row)
            size += len(row[_PAYLOAD] or b"")
            if len(rows) >= BATCH_ROWS or size >= BATCH_BYTES:
                yield _batch(rows, self.schema)
                rows, size = [], 0
        if rows:
            yield _batch(rows, self.schema)

    def _all_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[Any, ...]]:
        assembler = Assembler() if self.assembled else None
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("ledger_id", "entry_id", "payload"))
            for ledger_id, entry_id, data in zip(*columns, strict=True):
                yield from self._rows(Position(ledger_id, entry_id), data, assembler)
        if assembler:
            for loose in assembler.finish():
                yield from _of_loose(loose)

    def _rows(self, position: Position, data: bytes, assembler: Assembler | None) -> list[tuple[Any, ...]]:
        try:
            found = message.decode(data)
            if assembler is None or found.chunk is None:
                return _of_entry(position, data, found, self.hidden.get(position, 0))
            made: list[tuple[Any, ...]] = []
            for one in assembler.add(Chunk(position, found)):
                made += _of_loose(one) if isinstance(one, LoosePart) else _of_whole(one)
            return made
        except CorruptFormat as error:
            if not self.permissive:
                what = f"entry {position}: {error.what}"
                raise type(error)(what, error.offset, error.expected) from error
            nothing = [None] * (_PAYLOAD - 2)
            return [(position.ledger_id, position.entry_id, *nothing, data, str(error))]


_PAYLOAD = MESSAGES.names.index("payload")


def _batch(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = dict(zip(MESSAGES.names, zip(*rows, strict=True), strict=True))
    return pa.RecordBatch.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)


def _of_entry(position: Position, data: bytes, found: MessageEntry, hidden: int) -> list[tuple[Any, ...]]:
    messages = found.messages or ((found.stored,) if found.stored and _is_as_stored(found) else ())
    if not messages:
        raise CorruptFormat(message.WHAT, len(data), "a message")
    return [
        _row(position, found, one, found.chunk)
        for one in messages
        if one.batch_index is None or one.batch_index >= hidden
    ]


def _is_as_stored(found: MessageEntry) -> bool:
    return found.encrypted or found.chunk is not None


def _of_whole(one: WholeMessage) -> list[tuple[Any, ...]]:
    found = one.last.entry
    assert found.stored
    assert found.chunk
    return [_row(one.last.position, found, replace(found.stored, payload=one.payload), (None, found.chunk[1]))]


_WHY_LOOSE = {
    Loose.INCOMPLETE: "the other parts of its message are not here",
    Loose.AGAIN: "this part of its message was here already",
    Loose.TOO_MUCH: "too many bytes of unfinished messages were waiting",
    Loose.ENCRYPTED: "it is encrypted, each part by itself",
}


def _of_loose(one: LoosePart) -> list[tuple[Any, ...]]:
    found = one.part.entry
    assert found.stored
    return [_row(one.part.position, found, found.stored, found.chunk, _WHY_LOOSE[one.why])]


def _row(
    position: Position,
    found: MessageEntry,
    one: Message,
    chunk: tuple[int | None, int] | None,
    problem: str | None = None,
) -> tuple[Any, ...]:
    chunk_id, chunks = chunk or (None, None)
    return (
        position.ledger_id,
        position.entry_id,
        one.batch_index,
        found.batch_size,
        one.key,
        list(one.properties.items()),
        _long(found.publish_time),
        _long(one.event_time),
        found.deliver_at_time,
        _long(found.sequence_id if one.sequence_id is None else one.sequence_id),
        found.producer_name,
        found.replicated_from,
        found.schema_version,
        found.compression.name,
        found.uncompressed_size,
        found.encrypted,
        chunk_id,
        chunks,
        found.uuid,
        found.marker_type,
        one.compacted_out,
        one.payload is None,
        one.payload,
        problem,
    )


def _long(value: int | None) -> int | None:
    """An unsigned number of protobuf as the Java client, and Spark, have it."""
    return value - (1 << 64) if value is not None and value >= 1 << 63 else value
