"""An end for an exchange over HTTP, whatever the server sends meanwhile. For clients that keep no connection alive."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any


class Deadline:
    """Ends the connections of an exchange that is not over in time: httpx's own time-out begins again with each byte.

    As ``with``. Called with each of httpx's events, as its extension ``trace``.
    """

    def __init__(self, seconds: float) -> None:
        self.over = False
        """Whether it was not over in time."""
        self._connections: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Deadline:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for one in self._connections:
            one.close()

    def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        """Learn of a connection; the time runs from there on."""
        if event.endswith("connect_tcp.complete"):
            # A second handle of the connection: TLS takes the first one away.
            self._connections.append(info["return_value"].get_extra_info("socket").dup())
            self._timer.start()

    def _end(self) -> None:
        self.over = True
        for one in self._connections:
            with suppress(OSError):  # it has ended by itself
                one.shutdown(socket.SHUT_RDWR)
