"""The library behind pulsar-lifecycle: formats, decisions, adapters and Spark kernels; no Dagster.

For notebooks: ``pulsar_lifecycle.read("storage_report")`` is a table of the newest scan as a pandas data frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pulsar_lifecycle.inspect.lake_tables import read

__all__ = ["read"]


def __getattr__(name: str) -> Any:
    """``read``, once it is asked for: what it needs takes its time to import."""
    if name == "read":
        from pulsar_lifecycle.inspect.lake_tables import read

        return read
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
