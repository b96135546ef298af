"""Telling somebody outside what needs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Alerts(Protocol):
    """Where alerts go."""

    def send(self, document: Mapping[str, object]) -> None:
        """Deliver one alert, as JSON. Raises Unavailable where it was not taken."""
        ...

    def close(self) -> None:
        """Close what is open."""
        ...
