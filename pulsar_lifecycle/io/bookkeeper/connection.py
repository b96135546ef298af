"""One TCP connection to a bookie, speaking the v2 protocol to read and to add entries; it never fences.

Belongs here: frames, TLS, and which answer is whose. Not here: which bookie to ask and when to try another
(``pool.py``), digests (``formats.entry``), what answers mean (``answers.py``).
Source: org.apache.bookkeeper.proto.BookieProtocol and BookieProtoEncoding, bookkeeper-server 4.17.2.

A frame is a uint32 length and a body; the body starts with ``version << 24 | opcode << 16 | flags``. A server takes the
connection for v2 from its first such frame on. It answers what it does not know by closing the connection. TLS is asked
for in the clear, by the one v3 message that this module knows.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError

LAST_ENTRY = -1
"""Asked for this entry id, a bookie answers with the last entry that it has of the ledger itself."""

_VERSION = 2
_ADD_ENTRY = 1  # BookieProtocol.ADDENTRY
_READ_ENTRY = 2  # BookieProtocol.READENTRY
_BATCH_READ = 7  # BookieProtocol.BATCH_READ_ENTRY
_ADD_HEADER = _VERSION << 24 | _ADD_ENTRY << 16
_READ_HEADER = _VERSION << 24 | _READ_ENTRY << 16
_BATCH_HEADER = _VERSION << 24 | _BATCH_READ << 16
_ADD_REQUEST = struct.Struct("!Ii")
_READ_REQUEST = struct.Struct("!Iiqq")
_BATCH_REQUEST = struct.Struct("!Iiqqqiq")
_RESPONSE = struct.Struct("!iiqq")
_BATCH_ID = struct.Struct("!q")
_LENGTH = struct.Struct("!I")

# BookkeeperProtocol.Request{header{version VERSION_THREE, operation START_TLS, txnId 1}, startTLSRequest{}}, and the
# Response{header, status EOK, startTLSResponse{}} to it, in the order in which protobuf writes the fields.
_START_TLS = bytes.fromhex("0a06080310091801d20600")
_TLS_STARTS = bytes.fromhex("0a060803100918011000d20600")

WINDOW = 256
"""Reads and additions in flight on a connection; a bookie refuses beyond maxPendingReadRequestsPerThread (2,500 in
Pulsar's conf)."""
MAX_FRAME = 64 << 20
"""More than any server's nettyMaxFrameSizeBytes (5 MiB by default): beyond it the stream is not this protocol."""
MAX_BATCH_BYTES = 4 << 20
"""Asked of one BATCH_READ: a server's maxBatchReadSize plus one entry must stay below its frame limit of 5 MiB."""
_BUFFER = 1 << 18


class BookieCode(IntEnum):
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


class BookieResponse(NamedTuple):
    """What a bookie said: ``frame`` has an entry, with its header and digest, between each of ``bounds``.

    None unless ``code`` is OK, one for a single read, consecutive ones for a batch.
    """

    code: int
    frame: bytes = b""
    bounds: tuple[tuple[int, int], ...] = ()

    @property
    def data(self) -> bytes:
        """The first entry; empty if there is none."""
        return self.frame[slice(*self.bounds[0])] if self.bounds else b""


@dataclass(slots=True, eq=False)
class BookieRequest:
    """A question to a bookie; ``answer`` is called once with what became of it.

    ``count`` is None for a single read, otherwise the most entries that one batch may have, of ``max_bytes`` together.
    ``added`` makes it an addition: the ledger's master key and the entry's bytes. ``tries`` is how often it was lost
    with its connection; one that is not ``wanted`` any more may be left unsent.
    """

    ledger_id: int
    first: int
    answer: Callable[[BookieResponse | LifecycleError], None]
    count: int | None = None
    max_bytes: int = MAX_BATCH_BYTES
    added: bytes = b""
    tries: int = 0
    wanted: bool = True


class BookieConnection:
    """Does not block once it is connected: :meth:`flush` and :meth:`receive` do what can be done now.

    ``timeout`` seconds for connecting. Raises OSError, CorruptFormat; after any error the connection is of no use any
    more. ``used`` tells whether it has answered before: then an error may only mean that the bookie has restarted.
    """

    def __init__(self, host: str, port: int, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        self.used = False
        self.waited = 0.0
        """Seconds that were spent waiting for it since it last sent something."""
        self._socket = socket.create_connection((host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            try:
                self._socket = self._secured(host, tls)
            except BaseException:
                self._socket.close()
                raise
        self._socket.setblocking(False)
        self._buffer = bytearray(_BUFFER)
        self._filled = 0
        self._out = bytearray()
        self._unsent: deque[BookieRequest] = deque()
        self._singles: dict[tuple[int, int, int], list[BookieRequest]] = {}
        """By header, ledger and entry."""
        self._flying = 0
        self._batches: dict[int, BookieRequest] = {}
        self._batch_ids = 0

    def fileno(self) -> int:
        """For ``select.poll``."""
        return self._socket.fileno()

    @property
    def busy(self) -> bool:
        """Whether an answer is due."""
        return bool(self._flying or self._batches or self._unsent)

    @property
    def stuck(self) -> bool:
        """Whether the bookie takes no more bytes for now."""
        return bool(self._out)

    def ask(self, request: BookieRequest) -> None:
        """Send a request with the next :meth:`flush`; the bookie's answers may come in any order."""
        if request.count is None:
            self._unsent.append(request)
            return
        self._batch_ids += 1
        self._batches[self._batch_ids] = request
        self._out += _BATCH_REQUEST.pack(
            _BATCH_REQUEST.size - 4,
            _BATCH_HEADER,
            request.ledger_id,
            request.first,
            self._batch_ids,
            request.count,
            min(request.max_bytes, MAX_BATCH_BYTES),
        )

    def flush(self) -> None:
        """Send what was asked for, at most :data:`WINDOW` reads and additions before their answers."""
        while self._unsent and self._flying < WINDOW:
            request = self._unsent.popleft()
            if request.wanted:
                place = (request.ledger_id, request.first)
                header = _ADD_HEADER if request.added else _READ_HEADER
                self._singles.setdefault((header, *place), []).append(request)
                self._flying += 1
                if request.added:
                    self._out += _ADD_REQUEST.pack(_ADD_REQUEST.size - 4 + len(request.added), header) + request.added
                else:
                    self._out += _READ_REQUEST.pack(_READ_REQUEST.size - 4, header, *place)
        while self._out:
            try:
                sent = self._socket.send(self._out)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            del self._out[:sent]

    def receive(self) -> None:
        """Take what has arrived and answer the requests whose answers are complete."""
        while True:
            try:
                received = self._socket.recv_into(memoryview(self._buffer)[self._filled :])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            if not received:
                raise ConnectionResetError("the bookie closed the connection")
            self._filled += received
            self._answer_frames()
            if not (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
                return

    def unanswered(self) -> list[BookieRequest]:
        """The requests that nobody will answer once the connection is broken."""
        singles = [request for requests in self._singles.values() for request in requests]
        return [*self._batches.values(), *singles, *self._unsent]

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    # -------------------------------------------------------------------------------------------------------- private

    def _secured(self, host: str, tls: ssl.SSLContext) -> ssl.SSLSocket:
        self._socket.sendall(_LENGTH.pack(len(_START_TLS)) + _START_TLS)
        answer = self._exactly(min(_LENGTH.unpack(self._exactly(_LENGTH.size))[0], _BUFFER))
        if answer != _TLS_STARTS:
            raise CorruptFormat("bookie answer", 4, f"consent to START_TLS, found {answer[:64].hex()}")
        return tls.wrap_socket(self._socket, server_hostname=host)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:  # not a byte more: what follows is TLS
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionResetError("the bookie closed the connection")
            data += more
        return data

    def _answer_frames(self) -> None:
        at = 0
        needed = 0
        buffer, filled = self._buffer, self._filled
        with memoryview(buffer) as view:
            while filled - at >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, at)
                if not _RESPONSE.size <= length <= MAX_FRAME:
                    raise CorruptFormat(
                        "bookie answer", 0, f"a frame of {_RESPONSE.size} .. {MAX_FRAME} bytes, found {length}"
                    )
                begin = at + _LENGTH.size
                if filled - begin < length:
                    needed = length + _LENGTH.size
                    break
                at = begin + length
                self._answer(bytes(view[begin:at]))
        self._filled = filled - at
        if needed > len(buffer):
            self._buffer = bytearray(needed)
            self._buffer[: self._filled] = buffer[at:filled]
        elif at:
            buffer[: self._filled] = buffer[at:filled]

    def _answer(self, frame: bytes) -> None:
        header, code, ledger, entry = _RESPONSE.unpack_from(frame)
        opcode = header >> 16
        if opcode in (_READ_HEADER >> 16, _ADD_HEADER >> 16):
            asked = (opcode << 16, ledger, entry)
            requests = self._singles.get(asked)
            if not requests:
                raise CorruptFormat("bookie answer", 8, f"an entry that was asked for, found {ledger}:{entry}")
            request = requests.pop()
            if not requests:
                del self._singles[asked]
            self._flying -= 1
            bounds = ((_RESPONSE.size, len(frame)),) if code == BookieCode.OK and not request.added else ()
        elif opcode == _BATCH_HEADER >> 16:
            offset = _RESPONSE.size + _BATCH_ID.size
            number = _BATCH_ID.unpack_from(frame, _RESPONSE.size)[0] if len(frame) >= offset else -1
            request = self._batches.get(number)
            if request is None or (ledger, entry) != (request.ledger_id, request.first):
                raise CorruptFormat("bookie answer", 8, f"a batch that was asked for, found {ledger}:{entry}")
            bounds = tuple(_bounds(frame, offset)) if code == BookieCode.OK else ()
            del self._batches[number]
        else:
            raise CorruptFormat("bookie answer", 4, f"version 2 and a read or an addition, found {header:#010x}")
        self.used = True
        request.answer(BookieResponse(code, frame, bounds))


def _bounds(frame: bytes, offset: int) -> Iterator[tuple[int, int]]:
    """Where the entries of a batch begin and end, each after its uint32 size."""
    unpack, total = _LENGTH.unpack_from, len(frame)
    while offset < total:
        begin = offset + _LENGTH.size
        if begin > total:
            raise CorruptFormat("bookie answer", offset, "the length of the next entry")
        offset = begin + unpack(frame, offset)[0]
        if offset > total:
            raise CorruptFormat("bookie answer", begin, f"{offset - begin} bytes of an entry")
        yield begin, offset
