"""The command line, called in this process."""

from __future__ import annotations

from pulsar_lifecycle.cli import main


def run(*arguments: str) -> int:
    """The exit code."""
    try:
        main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0
