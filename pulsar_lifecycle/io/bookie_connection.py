"""One TCP connection to a bookie, speaking the v2 protocol to read entries; it never writes and never fences.

Belongs here: frames and their answers. Not here: which bookie to ask, digests, what an answer means (``bookie``).
Source: org.apache.bookkeeper.proto.BookieProtocol and BookieProtoEncoding, bookkeeper-server 4.17.2.

A frame is a uint32 length and a body; the body starts with ``version << 24 | opcode << 16 | flags``. A server takes the
connection for v2 from its first such frame on. It answers what it does not know by closing the connection.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from pulsar_lifecycle.errors import CorruptFormat

LAST_ENTRY = -1
"""Asked for this entry id, a bookie answers with the last entry that it has of the ledger itself."""

_VERSION = 2
_READ_ENTRY = 2  # BookieProtocol.READENTRY
_BATCH_READ = 7  # BookieProtocol.BATCH_READ_ENTRY
_READ_HEADER = _VERSION << 24 | _READ_ENTRY << 16
_BATCH_HEADER = _VERSION << 24 | _BATCH_READ << 16
_READ_REQUEST = struct.Struct("!Iiqq")
_BATCH_REQUEST = struct.Struct("!Iiqqqiq")
_RESPONSE = struct.Struct("!iiqq")
_BATCH_ID = struct.Struct("!q")
_LENGTH = struct.Struct("!I")

MAX_FRAME = 64 << 20
"""More than any server's nettyMaxFrameSizeBytes (5 MiB by default): beyond it the stream is not this protocol."""
MAX_BATCH_BYTES = 4 << 20
"""Asked of one BATCH_READ: a server's maxBatchReadSize plus one entry must stay below its frame limit of 5 MiB."""


class Code(IntEnum):
    """Answers of a bookie (BookieProtocol)."""

    OK = 0
    NO_LEDGER = 1
    NO_ENTRY = 2
    BAD_REQUEST = 100
    IO = 101
    UNAUTHORIZED = 102
    BAD_VERSION = 103
    FENCED = 104
    READ_ONLY = 105
    TOO_MANY_REQUESTS = 106
    UNKNOWN_LEDGER_STATE = 107


class Answer(NamedTuple):
    """What a bookie said; ``data`` is the entry with its header and digest, empty unless ``code`` is OK."""

    code: int
    data: bytes = b""


class BookieConnection:
    """Blocking; ``timeout`` seconds for connecting and for each silence of the bookie. Raises OSError, CorruptFormat.

    After any error the connection is of no use any more. ``used`` tells whether it has answered before: then an error
    may only mean that the bookie has restarted since.
    """

    def __init__(self, host: str, port: int, timeout: float) -> None:
        self.used = False
        self._socket = socket.create_connection((host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb", buffering=1 << 18)
        self._batches = 0

    def send_reads(self, requests: Sequence[tuple[int, int]]) -> None:
        """Ask for (ledger id, entry id) each; few enough that the answers need not be read meanwhile."""
        pack, size = _READ_REQUEST.pack, _READ_REQUEST.size - 4
        self._socket.sendall(b"".join([pack(size, _READ_HEADER, ledger, entry) for ledger, entry in requests]))

    def answers(self, count: int) -> Iterator[tuple[tuple[int, int], Answer]]:
        """``count`` answers as they come, in any order, each with the (ledger id, entry id) that was asked for."""
        for _ in range(count):
            frame = self._frame()
            code, ledger, entry = self._response(frame, _READ_HEADER)
            self.used = True
            yield (ledger, entry), Answer(code, frame[_RESPONSE.size :] if code == Code.OK else b"")

    def read_batch(self, ledger_id: int, first: int, count: int) -> tuple[int, list[bytes]]:
        """Up to ``count`` consecutive entries from ``first`` on that this bookie has; fewer is normal, none an error.

        Bookies before 4.17 close the connection.
        """
        self._batches += 1
        size = _BATCH_REQUEST.size - 4
        self._socket.sendall(
            _BATCH_REQUEST.pack(size, _BATCH_HEADER, ledger_id, first, self._batches, count, MAX_BATCH_BYTES)
        )
        frame = self._frame()
        code, ledger, entry = self._response(frame, _BATCH_HEADER)
        offset = _RESPONSE.size + _BATCH_ID.size
        if (ledger, entry) != (ledger_id, first) or len(frame) < offset:
            raise CorruptFormat("bookie answer", 12, f"batch {ledger_id}:{first}, found {ledger}:{entry}")
        self.used = True
        entries: list[bytes] = []
        while code == Code.OK and offset < len(frame):
            if offset + 4 > len(frame):
                raise CorruptFormat("bookie answer", offset, "the length of the next entry")
            start = offset + 4
            offset = start + _LENGTH.unpack_from(frame, offset)[0]
            if offset > len(frame):
                raise CorruptFormat("bookie answer", start, f"{offset - start} bytes of an entry")
            entries.append(frame[start:offset])
        return code, entries

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def _frame(self) -> bytes:
        length = _LENGTH.unpack(self._exactly(4))[0]
        if not _RESPONSE.size <= length <= MAX_FRAME:
            raise CorruptFormat("bookie answer", 0, f"a frame of {_RESPONSE.size} .. {MAX_FRAME} bytes, found {length}")
        return self._exactly(length)

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionResetError("the bookie closed the connection")
        return data

    def _response(self, frame: bytes, expected: int) -> tuple[int, int, int]:
        header, code, ledger, entry = _RESPONSE.unpack_from(frame)
        if header >> 16 != expected >> 16:
            raise CorruptFormat("bookie answer", 4, f"version and opcode {expected >> 16:#06x}, found {header:#010x}")
        return code, ledger, entry
