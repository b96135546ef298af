"""A code server that forks all its runs but the first.

``-m tests.integration.orchestration.forked_runs`` takes the words of ``dagster api grpc``. Operators' code servers
spawn each run, and so is the first of these. Later ones are forked from a process that has imported the definitions:
importing them takes longer than most runs.
"""

from __future__ import annotations

import multiprocessing
import sys
from itertools import chain, repeat
from multiprocessing.context import SpawnContext
from typing import Any

from dagster._cli.api import grpc_command


class FirstSpawned(SpawnContext):
    """Spawns one process, then forks."""

    def __init__(self) -> None:
        super().__init__()
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload(["orchestration.component", "pyspark.sql"])
        self._begins = chain([super().Process], repeat(forks.Process))

    def Process(self, **run: Any) -> Any:  # noqa: N802 - the name there
        return next(self._begins)(**run)


def main() -> None:
    """Be the code server."""
    context: Any = FirstSpawned()
    multiprocessing.get_context = lambda method=None: context  # type: ignore[assignment]
    grpc_command(sys.argv[1:])


if __name__ == "__main__":
    main()
