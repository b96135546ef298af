"""Alerts as JSON documents posted to a URL. The URL is a secret: many services have their key in it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import httpx

from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.io.deadline import Deadline

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


class Webhook:
    """Posts to one URL, which no error names."""

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        self._url, self._timeout = url, timeout
        self._client = httpx.Client(timeout=timeout, limits=httpx.Limits(max_keepalive_connections=0))

    def send(self, document: Mapping[str, object]) -> None:
        """Post one alert; of the answer, only its status is read. Raises Unavailable."""
        deadline = Deadline(self._timeout)
        try:
            with _unlogged(), deadline, self._posted(document, deadline) as answer:
                status = answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            why = f"no answer within {self._timeout:g} s" if deadline.over else type(error).__name__
            raise Unavailable(f"the alert webhook did not take the alert: {why}") from None
        if not 200 <= status < 300:  # who is sent elsewhere has taken nothing
            raise Unavailable(f"the alert webhook answered {status}")

    def _posted(self, document: Mapping[str, object], deadline: Deadline) -> AbstractContextManager[httpx.Response]:
        return self._client.stream("POST", self._url, json=dict(document), extensions={"trace": deadline})

    def close(self) -> None:
        """Close its connections."""
        self._client.close()
