"""What commands share: the global options, the cluster that these name, what its brokers have loaded.

Imports happen inside: most commands need a few of them only.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.ports import Connect

if TYPE_CHECKING:
    from pulsar_lifecycle.metastore.load_state import Brokers
    from pulsar_lifecycle.runs.cluster import Cluster

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]


@dataclass
class GlobalOptions:
    """The global options."""

    config: Path | None = None
    verbose: bool = False
    connect: Connect = Connections


def cluster_of(context: typer.Context) -> Cluster:
    """The cluster that the options name; nothing of it is open yet. Raises ConfigError."""
    from pulsar_lifecycle.runs.cluster import Cluster
    from pulsar_lifecycle.settings import load_settings

    options = context.ensure_object(GlobalOptions)
    return Cluster(load_settings(options.config), options.connect, str(options.config or ""))


def brokers_of(where: Cluster) -> Brokers:
    """Who has which topic loaded, by the brokers' own lists; that they did not answer is told in the value."""
    from pulsar_lifecycle.errors import LifecycleError
    from pulsar_lifecycle.metastore.load_state import Brokers

    with where.ports(read_only=True) as ports:
        try:
            return Brokers(ports.admin.loaded_topics(), ports.admin.stats_interval_ms())
        except LifecycleError as error:
            return Brokers.failed(error)
