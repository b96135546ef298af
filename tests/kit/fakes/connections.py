"""Fakes behind every port that the library connects to: what opens connections in a test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import cached_property
from typing import Any

from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.ports import Connect


def connecting(*, stores: Callable[..., Any] | None = None, **ports: Callable[[], Any]) -> Connect:
    """Connections that give what each of ``ports`` makes, by the name of the attribute; the others are the real ones.

    ``stores`` opens every metadata store, called as ``io.connect.metadata_store``.
    """
    assert all(hasattr(Connections, name) for name in ports), ports.keys()
    fakes: dict[str, Any] = {name: cached_property(_opening(make)) for name, make in ports.items()}
    if stores is not None:
        fakes["_metadata"] = _opening_stores(stores)
    return type("FakeConnections", (Connections,), fakes)


def _opening(make: Callable[[], Any]) -> Callable[[Connections], Any]:
    """Once per connections, and closed with them, as the real ones are."""

    def opened(connections: Connections) -> Any:
        made = make()
        if hasattr(made, "close"):
            connections._opened.callback(made.close)
        return made

    return opened


def _opening_stores(stores: Callable[..., Any]) -> Callable[..., Any]:
    def opened(
        connections: Connections, zookeeper: Any, *, read_only: bool = True, share: Any = None, **asked: Any
    ) -> Any:
        store = stores(zookeeper, read_only=read_only, reads_per_second=share, **asked)
        return connections._opened.enter_context(closing(store))

    return opened
