"""What commands open: settings, ZooKeeper and bookies read-only, buckets, the brokers' lists.

Belongs here: opening and closing. Imports happen inside: most commands need a few of them only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pulsar_lifecycle.engine.inventory import Brokers
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
    from pulsar_lifecycle.io.zk import KazooStore

    with KazooStore(settings.zookeeper, read_only=True) as store:
        yield store


@contextmanager
def reading(settings: Settings) -> Iterator[tuple[MetadataStore, LedgerReader]]:
    """ZooKeeper, refusing every write, and a reader of entries."""
    from pulsar_lifecycle.io.bookie import BookieReader

    with looking(settings) as store, BookieReader(store, settings.bookkeeper) as reader:
        yield store, reader


@contextmanager
def buckets(settings: Settings) -> Iterator[tuple[ObjectStore, tuple[str, ...]]]:
    """The object store and the buckets that may be looked at. Raises ConfigError where none is set."""
    from pulsar_lifecycle.errors import ConfigError
    from pulsar_lifecycle.io.objects import S3ObjectStore

    if settings.object_store is None:
        raise ConfigError("object_store: it is not set, so there are no buckets to look into")
    with closing(S3ObjectStore(settings.object_store)) as objects:
        yield objects, settings.object_store.buckets


def brokers_of(settings: Settings) -> Brokers:
    """Who has which topic loaded, by the brokers' own lists; their silence is told in the value."""
    from pulsar_lifecycle.engine.inventory import Brokers
    from pulsar_lifecycle.errors import LifecycleError
    from pulsar_lifecycle.io.admin import HttpBrokerAdmin

    with closing(HttpBrokerAdmin(settings.pulsar)) as admin:
        try:
            return Brokers(admin.loaded_topics(), admin.stats_interval_ms())
        except LifecycleError as error:
            return Brokers({}, 0, str(error))


def now_ms() -> int:
    """Milliseconds since the epoch."""
    from pulsar_lifecycle.io.clock import SystemClock

    return SystemClock().now_ms()
