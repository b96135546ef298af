"""Fakes behind every port that the library connects to, for tests of what opens its own connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pulsar_lifecycle.io import connect
from pulsar_lifecycle.io.connect import Connections


def connect_to(
    monkeypatch: pytest.MonkeyPatch, *, stores: Callable[..., Any] | None = None, **ports: Callable[[], Any]
) -> None:
    """Make connections give what each of ``ports`` makes, by the name of the attribute.

    ``stores`` opens every metadata store, called as ``connect.metadata_store``.
    """
    if stores is not None:
        monkeypatch.setattr(connect, "metadata_store", stores)
    for name, make in ports.items():
        assert hasattr(Connections, name), name
        monkeypatch.setattr(Connections, name, property(_opening(name, make)))


def _opening(name: str, make: Callable[[], Any]) -> Callable[[Connections], Any]:
    """Once per connections, and closed with them, as the real ones are."""

    def opened(connections: Connections) -> Any:
        known = vars(connections)
        if name not in known:
            known[name] = make()
            if hasattr(known[name], "close"):
                connections._opened.callback(known[name].close)  # pyright: ignore[reportPrivateUsage]
        return known[name]

    return opened
