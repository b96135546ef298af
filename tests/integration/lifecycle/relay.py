"""A port of a server on another address of the loopback, whose requests may be refused in the server's name."""

from __future__ import annotations

import select
import socket
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread


class Relay(socketserver.ThreadingTCPServer):
    """Passes connections on to ``target``; while ``refusal`` is a status, it answers them with that over HTTP."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], target: tuple[str, int]) -> None:
        super().__init__(address, _Passing)
        self.target = target
        self.refusal = 0


class _Passing(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        relay = self.server
        assert isinstance(relay, Relay)
        if status := relay.refusal:
            self.request.recv(1 << 16)
            self.request.sendall(b"HTTP/1.1 %d Refused\r\nContent-Length: 0\r\nConnection: close\r\n\r\n" % status)
            return
        with socket.create_connection(relay.target) as server:
            pairs = {self.request: server, server: self.request}
            while True:
                for one in select.select(list(pairs), [], [])[0]:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    pairs[one].sendall(data)


@contextmanager
def relaying(address: tuple[str, int], target: tuple[str, int]) -> Iterator[Relay]:
    """Pass on until the end of the block."""
    with Relay(address, target) as relay:
        thread = Thread(target=relay.serve_forever, args=(0.1,))
        thread.start()
        try:
            yield relay
        finally:
            relay.shutdown()
            thread.join()
