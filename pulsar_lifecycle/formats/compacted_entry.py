"""An entry of a compacted ledger: one of the topic, and where the topic had it.

Belongs here: its bytes. Not here: which ledger it is of (``formats/cursor.py``), which messages of a batch compaction
left (``formats/message.py``). Upstream: ``RawMessageImpl.serialize``, pulsar-common 4.0.7.

int32 size · MessageIdData · int32 size · the entry as it was, big-endian.
"""

from __future__ import annotations

import struct

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import _wire
from pulsar_lifecycle.model import Position

WHAT = "entry of a compacted ledger"
_SIZE = struct.Struct(">i")


def decode(data: bytes) -> tuple[Position, bytes]:
    """An entry of a compacted ledger: where the topic had it, and its bytes there. Raises CorruptFormat."""
    begin, end = _sized(data, 0)
    position = _wire.decode(pb.MessageIdData, data[begin:end], WHAT, lambda m: Position(m.ledgerId, m.entryId), begin)
    begin, end = _sized(data, end)
    if end != len(data):
        raise CorruptFormat(WHAT, end, f"the end, found {len(data) - end} bytes more")
    return position, data[begin:end]


def _sized(data: bytes, offset: int) -> tuple[int, int]:
    begin = offset + _SIZE.size
    size = _SIZE.unpack_from(data, offset)[0] if begin <= len(data) else -1
    if not 0 <= size <= len(data) - begin:
        raise CorruptFormat(WHAT, offset, "a size and as many bytes")
    return begin, begin + size
