"""The command line, called in this process."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pulsar_lifecycle.cli import main
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.ports import Connect
from tests.kit.fakes.connections import connecting


def run(*arguments: str, connect: Connect = Connections) -> int:
    """The exit code."""
    try:
        main(list(arguments), connect)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def command_over(**ports: Callable[..., Any]) -> Callable[..., int]:
    """:func:`run` over fakes, as ``connecting`` takes them."""
    return partial(run, connect=connecting(**ports))
