"""Alerts as JSON documents posted to a URL. The URL is a secret: many services have their key in it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from pulsar_lifecycle.errors import Unavailable

TIMEOUT = 10.0
"""Seconds for an answer: a sensor's tick waits for it."""


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

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx.Client(timeout=TIMEOUT)

    def send(self, document: Mapping[str, object]) -> None:
        """Post one alert; of the answer, only its status is read. Raises Unavailable."""
        try:
            with _unlogged(), self._client.stream("POST", self._url, json=dict(document)) as answer:
                status = answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise Unavailable(f"the alert webhook did not take the alert: {type(error).__name__}") from None
        if not 200 <= status < 300:  # who is sent elsewhere has taken nothing
            raise Unavailable(f"the alert webhook answered {status}")

    def close(self) -> None:
        """Close its connections."""
        self._client.close()
