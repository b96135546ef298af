"""An HTTP proxy in front of a real S3 server that answers, cuts or loses chosen requests.

``next(fault, method, part_of_url, times)`` says which; every other request passes unchanged, its Host header included,
so that signatures hold. ``seen`` has the method and the URL of all of them.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """Say this instead of asking the server, once the request has come."""

    status: int
    text: str


@dataclass(frozen=True)
class CutRequest:
    """Close the connection after so many bytes of the request's body; the server never sees it."""

    after: int


@dataclass(frozen=True)
class CutAnswer:
    """Close the connection after the answer's headers and so many bytes of its body."""

    after: int


@dataclass(frozen=True)
class Replace:
    """Ask the server and say this instead of what it said; status 0: nothing, the answer is lost."""

    status: int
    text: str = ""


@dataclass(frozen=True)
class Hang:
    """Neither ask nor answer, until the proxy is closed."""


Fault = Answer | CutRequest | CutAnswer | Replace | Hang


class FaultyHttpProxy:
    """Listens on 127.0.0.1:``port``; a context manager."""

    def __init__(self, target: str) -> None:
        self.target = target.removeprefix("http://")
        self.seen: list[tuple[str, str]] = []
        self.closing = threading.Event()
        self._faults: list[list[Any]] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": self}))
        self._server.daemon_threads = False  # closed with their connections
        self._connections: list[socket.socket] = []
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def next(self, fault: Fault, method: str, part_of_url: str = "", times: int = 1) -> None:
        with self._lock:
            self._faults.append([fault, method, part_of_url, times])

    def fault(self, method: str, url: str) -> Fault | None:
        with self._lock:
            self.seen.append((method, url))
            for chosen in self._faults:
                if chosen[1] == method and chosen[2] in url and chosen[3]:
                    chosen[3] -= 1
                    return chosen[0]
        return None

    def opened(self, connection: socket.socket) -> None:
        self._connections.append(connection)

    def __enter__(self) -> FaultyHttpProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultyHttpProxy
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        self.proxy.opened(self.request)
        super().setup()

    def _pass(self) -> None:
        fault = self.proxy.fault(self.command, self.path)
        size = int(self.headers.get("Content-Length", 0))
        if isinstance(fault, CutRequest):
            self.rfile.read(min(size, fault.after))
            self._cut()
            return
        body = self.rfile.read(size)
        if isinstance(fault, Hang):
            self.proxy.closing.wait()
            self._cut()
        elif isinstance(fault, Answer):
            self._say(fault.status, [], fault.text.encode())
        else:
            self._forward(body, fault)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass  # noqa: N815 - the names that http.server calls

    def _forward(self, body: bytes, fault: Fault | None) -> None:
        server = http.client.HTTPConnection(self.proxy.target)
        server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name not in ("Expect", "Connection"):
                server.putheader(name, value)
        server.endheaders(body)
        answer = server.getresponse()
        data = answer.read()
        server.close()
        if isinstance(fault, Replace):
            if fault.status:
                self._say(fault.status, [], fault.text.encode())
            else:
                self._cut()
            return
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
        if isinstance(fault, CutAnswer):
            self._say(answer.status, headers, data, fault.after)
            self._cut()
        else:
            self._say(answer.status, headers, data)

    def _say(self, status: int, headers: list[tuple[str, str]], data: bytes, cut: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[:cut])

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: object) -> None:
        pass


_HOP = ("transfer-encoding", "connection")
