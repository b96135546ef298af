"""A TCP proxy in front of a real ZooKeeper that loses connections at a chosen moment.

It reads frames (uint32 length, body), so that a test can lose the request or the answer of one operation by its code,
and know which operations were asked for at all (``opcodes``: org.apache.zookeeper.ZooDefs.OpCode -> how often).
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter


class CuttingProxy:
    """Listens on 127.0.0.1:``port``; a context manager."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self.opcodes: Counter[int] = Counter()
        self._cut: tuple[int, bool] | None = None
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut_next(self, opcode: int, *, answered: bool) -> None:
        """Lose the connection at the next request of ``opcode``: before the server sees it, or ``answered`` by it."""
        self._cut = (opcode, answered)

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for pair in self._pairs:
            _close(pair)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            pair = (client, socket.create_connection(self._target))
            xids: set[int] = set()
            self._pairs.append(pair)
            for run in (self._requests, self._answers):
                self._threads.append(threading.Thread(target=run, args=(pair, xids)))
                self._threads[-1].start()

    def _requests(self, pair: tuple[socket.socket, socket.socket], xids: set[int]) -> None:
        first = True
        while (frame := _frame(pair[0])) is not None:
            if not first:
                xid, opcode = struct.unpack_from("!ii", frame, 4)
                with self._lock:
                    self.opcodes[opcode] += 1
                    if self._cut and self._cut[0] == opcode:
                        answered = self._cut[1]
                        self._cut = None
                        self.cuts += 1
                        if not answered:
                            break
                        xids.add(xid)
            first = False
            if not _sent(pair[1], frame):
                break
        _close(pair)

    def _answers(self, pair: tuple[socket.socket, socket.socket], xids: set[int]) -> None:
        while (frame := _frame(pair[1])) is not None:
            if struct.unpack_from("!i", frame, 4)[0] in xids:
                break
            if not _sent(pair[0], frame):
                break
        _close(pair)


def _frame(connection: socket.socket) -> bytes | None:
    """One frame with its length, None at the end."""
    try:
        head = _exactly(connection, 4)
        return head + _exactly(connection, struct.unpack("!i", head)[0])
    except OSError:
        return None


def _sent(connection: socket.socket, frame: bytes) -> bool:
    """False when the other thread of the pair, or the peer, has closed the connection meanwhile."""
    try:
        connection.sendall(frame)
    except OSError:
        return False
    return True


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError
        data += chunk
    return bytes(data)


def _close(pair: tuple[socket.socket, socket.socket]) -> None:
    for connection in pair:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
