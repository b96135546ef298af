"""What commands open: settings, ZooKeeper and bookies read-only, buckets, the brokers' lists.

Belongs here: opening and closing. Imports happen inside: most commands need a few of them only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pulsar_lifecycle.io.connect import Connections, system_clock

if TYPE_CHECKING:
    from pulsar_lifecycle.metastore.load_state import Brokers
    from pulsar_lifecycle.ports import LedgerReader, MetadataStore, ObjectStore
    from pulsar_lifecycle.settings import Settings

AsJson = Annotated[bool, typer.Option("--json", help="One JSON document instead of a table.")]


@dataclass
class Options:
    """The global options."""

    config: Path | None = None
    verbose: bool = False


def settings_of(context: typer.Context) -> Settings:
    """The settings that the options name. Raises ConfigError."""
    from pulsar_lifecycle.settings import load_settings

    return load_settings(context.ensure_object(Options).config)


@contextmanager
def looking(settings: Settings) -> Iterator[MetadataStore]:
    """ZooKeeper, refusing every write."""
    with Connections(settings, read_only=True) as ports:
        yield ports.store


@contextmanager
def reading(settings: Settings) -> Iterator[tuple[MetadataStore, LedgerReader]]:
    """ZooKeeper, refusing every write, and a reader of entries."""
    with Connections(settings, read_only=True) as ports:
        yield ports.store, ports.reader


@contextmanager
def buckets(settings: Settings) -> Iterator[tuple[ObjectStore, tuple[str, ...]]]:
    """The object store and the buckets that may be looked at. Raises ConfigError where none is set."""
    with Connections(settings, read_only=True) as ports:
        objects = ports.objects
        yield objects, settings.object_store.buckets if settings.object_store else ()


def brokers_of(settings: Settings) -> Brokers:
    """Who has which topic loaded, by the brokers' own lists; their silence is told in the value."""
    from pulsar_lifecycle.errors import LifecycleError
    from pulsar_lifecycle.metastore.load_state import Brokers

    with Connections(settings, read_only=True) as ports:
        try:
            return Brokers(ports.admin.loaded_topics(), ports.admin.stats_interval_ms())
        except LifecycleError as error:
            return Brokers({}, 0, str(error))


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return system_clock().now_ms()
