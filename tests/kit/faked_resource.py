"""The code location's resource over fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pulsar_lifecycle.ports import Connect
from resources.lifecycle import LifecycleResource
from tests.kit.fakes.connections import connecting


def faked_resource(config_file: str, **ports: Callable[..., Any]) -> LifecycleResource:
    """``LifecycleResource`` whose clusters have these ports, as ``connecting`` takes them."""
    connect = connecting(**ports)

    class Faked(LifecycleResource):
        def opener(self) -> Connect:
            return connect

    return Faked(config_file=config_file)
