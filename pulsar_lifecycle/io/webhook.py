"""Alerts as JSON documents posted to a URL. The URL is a secret: many services have their key in it."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import httpx

from pulsar_lifecycle.errors import Unavailable

TIMEOUT = 10.0
"""Seconds to connect, and for all of an answer's head from there: a sensor's tick waits for it."""


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep httpx from logging the URL: it logs each, but here none of this thread."""
    here, logger = threading.get_ident(), logging.getLogger("httpx")

    def elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != here

    logger.addFilter(elsewhere)
    try:
        yield
    finally:
        logger.removeFilter(elsewhere)


class _Deadline:
    """Ends the connections of an exchange that is not over in time: httpx's own time-out begins again with each byte.

    As ``with``. Called with each of httpx's events, as its extension ``trace``.
    """

    def __init__(self, seconds: float) -> None:
        self.over = False
        """Whether it was not over in time."""
        self._connections: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        for one in self._connections:
            one.close()

    def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event.endswith("connect_tcp.complete"):
            # A second handle of the connection: TLS takes the first one away.
            self._connections.append(info["return_value"].get_extra_info("socket").dup())
            self._timer.start()

    def _end(self) -> None:
        self.over = True
        for one in self._connections:
            with suppress(OSError):  # it has ended by itself
                one.shutdown(socket.SHUT_RDWR)


class Webhook:
    """Posts to one URL, which no error names."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        self._url, self._timeout = url, timeout
        self._client = httpx.Client(timeout=timeout, limits=httpx.Limits(max_keepalive_connections=0))

    def send(self, document: Mapping[str, object]) -> None:
        """Post one alert; of the answer, only its status is read. Raises Unavailable."""
        deadline = _Deadline(self._timeout)
        try:
            with _unlogged(), deadline, self._posted(document, deadline) as answer:
                status = answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            why = f"no answer within {self._timeout:g} s" if deadline.over else type(error).__name__
            raise Unavailable(f"the alert webhook did not take the alert: {why}") from None
        if not 200 <= status < 300:  # who is sent elsewhere has taken nothing
            raise Unavailable(f"the alert webhook answered {status}")

    def _posted(self, document: Mapping[str, object], deadline: _Deadline) -> AbstractContextManager[httpx.Response]:
        return self._client.stream("POST", self._url, json=dict(document), extensions={"trace": deadline})

    def close(self) -> None:
        """Close its connections."""
        self._client.close()
