"""A bookie in memory that answers v2 reads and additions over TCP, as honest or as broken as a test wants it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

from pulsar_lifecycle.formats import entry
from pulsar_lifecycle.formats.ledger_metadata import DigestType

_ADD, _READ, _BATCH = 1, 2, 7
_HEADER_AND_KEY = 24


class BookieServer:
    """Listens on 127.0.0.1; a context manager. ``entries`` maps ledger id to entry id to the entry's bytes.

    ``code`` answers everything with that error; ``batch_reads`` off closes the connection on BATCH_READ as bookies
    before 4.17 do; ``batch_limit`` is the most entries one batch returns. A ``mute`` one answers nothing. ``requests``
    lists what was asked for, ``given`` counts the bytes of entries that were answered. ``takes`` is how many additions
    it takes before it closes the connection on one and listens no more (None: any number); ``add_code`` answers them.
    """

    def __init__(self, *, batch_reads: bool = True, batch_limit: int = 1000) -> None:
        self.entries: dict[int, dict[int, bytes]] = {}
        self.code = 0
        self.mute = False
        self.takes: int | None = None
        self.add_code = 0
        self.given = 0
        self.batch_reads = batch_reads
        self.batch_limit = batch_limit
        self.requests: list[tuple[str, int, int]] = []
        self._start(0)

    def _start(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def id(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        payload: bytes,
        *,
        lac: int | None = None,
        length: int | None = None,
        digest: DigestType = DigestType.CRC32C,
        password: bytes = b"",
    ) -> None:
        """Store an entry; ``length`` is the ledger's up to its end, by default its own."""
        lac = entry_id - 1 if lac is None else lac
        value = entry.StoredEntry(ledger_id, entry_id, lac, len(payload) if length is None else length, payload)
        self.entries.setdefault(ledger_id, {})[entry_id] = entry.encode(value, digest, password)

    def spoil(self, ledger_id: int, entry_id: int) -> None:
        """Change the last byte of an entry, so that its digest is wrong."""
        good = self.entries[ledger_id][entry_id]
        self.entries[ledger_id][entry_id] = good[:-1] + bytes([good[-1] ^ 1])

    def restart(self) -> None:
        """Break every connection and listen again on the same port."""
        self.stop()
        self._start(self.port)

    def stop(self) -> None:
        """Break every connection and listen no more."""
        for connection in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> BookieServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        with contextlib.suppress(OSError, struct.error), stream, connection:
            while True:
                (length,) = struct.unpack("!i", stream.read(4))
                body = stream.read(length)
                header, ledger, wanted = struct.unpack_from("!iqq", body)
                opcode = header >> 16 & 0xFF
                assert header & 0xFFFF == 0, "a reader sets no flag, least of all fencing"
                if opcode == _BATCH:
                    if not self.batch_reads:
                        return
                    answer = self._batch(header, ledger, wanted, body)
                elif opcode == _ADD:
                    if self.takes == 0:
                        with contextlib.suppress(OSError):  # another connection did it
                            self._listener.shutdown(socket.SHUT_RDWR)
                        return
                    answer = self._add(header, body)
                else:
                    assert opcode == _READ
                    answer = self._read(header, ledger, wanted)
                if not self.mute:
                    connection.sendall(struct.pack("!i", len(answer)) + answer)

    def _add(self, header: int, body: bytes) -> bytes:
        ledger, entry_id = struct.unpack_from("!qq", body, _HEADER_AND_KEY)
        self.requests.append(("add", ledger, entry_id))
        if self.takes is not None:
            self.takes -= 1
        if not self.add_code:
            self.entries.setdefault(ledger, {}).setdefault(entry_id, body[_HEADER_AND_KEY:])
        return struct.pack("!iiqq", header, self.add_code, ledger, entry_id)

    def _read(self, header: int, ledger: int, wanted: int) -> bytes:
        self.requests.append(("read", ledger, wanted))
        code, data = self._find(ledger, wanted)
        self.given += len(data)
        return struct.pack("!iiqq", header, code, ledger, wanted) + data

    def _batch(self, header: int, ledger: int, first: int, body: bytes) -> bytes:
        self.requests.append(("batch", ledger, first))
        request_id, count, max_size = struct.unpack_from("!qiq", body, 20)
        code, _ = self._find(ledger, first)
        found: list[bytes] = []
        size = 36
        for at in range(first, first + min(count, self.batch_limit)):
            missing, data = self._find(ledger, at)
            size += 4 + len(data)
            if missing or (found and size > max_size):
                break
            found += [struct.pack("!i", len(data)), data]
            self.given += len(data)
        return struct.pack("!iiqqq", header, code, ledger, first, request_id) + b"".join(found)

    def _find(self, ledger: int, wanted: int) -> tuple[int, bytes]:
        if self.code:
            return self.code, b""
        if not self.entries.get(ledger):
            return 1, b""
        if wanted == -1:
            wanted = max(self.entries[ledger])
        if wanted not in self.entries[ledger]:
            return 2, b""
        return 0, self.entries[ledger][wanted]
