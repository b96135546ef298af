"""Chunked messages: whole ones out of the entries that their parts are in.

Belongs here: which parts make a message, what becomes of those that make none, how much is held meanwhile. Not here: an
entry's bytes (:mod:`message`), reading entries. Upstream: ``ConsumerImpl.processMessageChunk``, pulsar-client 4.0.7:
parts of one message follow each other by their number, parts of others between them; a first part that comes again
begins anew. The payload was compressed as a whole, and cut then.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.compression import Compression, decompress
from pulsar_lifecycle.formats.message import WHAT, MessageEntry
from pulsar_lifecycle.model import Position

MAX_PENDING = 256 << 20
"""Bytes of parts that are held at once, and of the longest message that is put together, before and after
decompression."""


class Loose(StrEnum):
    """Why a part is in no message."""

    INCOMPLETE = "incomplete"
    """Never written, trimmed, in a ledger that is left out or still open."""
    AGAIN = "again"
    """Sent twice: the message has it once."""
    TOO_MUCH = "too_much"
    """More than the reader holds at once (:data:`MAX_PENDING`)."""
    ENCRYPTED = "encrypted"
    """Only who decrypts the parts can put them together."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """An entry that is a part of a message."""

    position: Position
    entry: MessageEntry


@dataclass(frozen=True, slots=True)
class LoosePart:
    """A part that is in no message, and why."""

    part: Chunk
    why: Loose


@dataclass(frozen=True, slots=True)
class WholeMessage:
    """A message of several parts: all but ``payload`` is the ``last`` part's, where brokers and clients say it is."""

    last: Chunk
    payload: bytes


class Assembler:
    """Puts together the parts of one topic's messages, which it is given in the topic's order."""

    def __init__(self, max_pending: int = MAX_PENDING) -> None:
        self._max = max_pending
        self._pending: dict[str, list[Chunk]] = {}
        self._held = 0

    def add(self, part: Chunk) -> Iterator[WholeMessage | LoosePart]:
        """Take a part; gives the message that it makes whole, and parts that are in none.

        Raises CorruptFormat for a message whose parts do not fit together; it is forgotten then.
        """
        entry = part.entry
        if entry.chunk is None:
            raise CorruptFormat(WHAT, 0, "a part of a message")
        if entry.encrypted:
            yield LoosePart(part, Loose.ENCRYPTED)
            return
        number, count = entry.chunk
        uuid = entry.uuid or ""
        before = self._pending.get(uuid) or list[Chunk]()
        if number and number < len(before):
            yield LoosePart(part, Loose.AGAIN)
            return
        if before and (not number or number != len(before) or before[0].entry.chunk != (0, count)):
            yield from self._abandon(uuid, Loose.INCOMPLETE)
            before.clear()
        if number != len(before):
            yield LoosePart(part, Loose.INCOMPLETE)
            return
        self._pending[uuid] = [*before, part]
        self._held += len(entry.payload)
        if number + 1 == count:
            yield self._whole(uuid)
        while self._held > self._max:  # the one that was begun first
            yield from self._abandon(next(iter(self._pending)), Loose.TOO_MUCH)

    def finish(self) -> Iterator[LoosePart]:
        """What waits for parts that do not come any more."""
        for uuid in list(self._pending):
            yield from self._abandon(uuid, Loose.INCOMPLETE)

    def _forget(self, uuid: str) -> list[Chunk]:
        parts = self._pending.pop(uuid)
        self._held -= sum(len(part.entry.payload) for part in parts)
        return parts

    def _abandon(self, uuid: str, why: Loose) -> Iterator[LoosePart]:
        for part in self._forget(uuid):
            yield LoosePart(part, why)

    def _whole(self, uuid: str) -> WholeMessage:
        parts = self._forget(uuid)
        last = parts[-1].entry
        stored = b"".join(part.entry.payload for part in parts)
        if last.chunked_size is not None and last.chunked_size != len(stored):
            raise CorruptFormat(WHAT, 0, f"{last.chunked_size} bytes in all {len(parts)} parts, found {len(stored)}")
        if last.compression is not Compression.NONE:
            stored = decompress(last.compression, stored, last.uncompressed_size or 0, WHAT, limit=MAX_PENDING)
        return WholeMessage(parts[-1], stored)
