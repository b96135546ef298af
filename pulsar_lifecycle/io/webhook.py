"""Alerts as JSON documents posted to a URL. The URL is a secret: many services have their key in it."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from pulsar_lifecycle.errors import Unavailable

TIMEOUT = 10.0
"""Seconds for an answer: a sensor's tick waits for it."""


class Webhook:
    """Posts to one URL, which no error names."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx.Client(timeout=TIMEOUT)

    def send(self, document: Mapping[str, object]) -> None:
        """Post one alert. Raises Unavailable."""
        try:
            status = self._client.post(self._url, json=dict(document)).status_code
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
            raise Unavailable(f"the alert webhook did not take the alert: {type(error).__name__}") from None
        if status >= 400:
            raise Unavailable(f"the alert webhook answered {status}")

    def close(self) -> None:
        """Close its connections."""
        self._client.close()
