"""The one place that makes adapters from settings: what a process has open of a cluster.

Belongs here: which adapter a setting asks for, opening it late and closing it. Not here: anything that is done with
one; callers see ports. Adapters are imported when they are made, so that a command loads only what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pulsar_lifecycle.errors import ConfigError
from pulsar_lifecycle.io.clock import SystemClock

if TYPE_CHECKING:
    from pulsar_lifecycle.deletion_queue.queue_topics import Subscriptions
    from pulsar_lifecycle.ports import (
        Alerts,
        BookieAdmin,
        BrokerAdmin,
        Clock,
        DeadLetterQueue,
        DeletionQueue,
        Ids,
        Journal,
        JournalReader,
        Lake,
        LedgerReader,
        LedgerWriter,
        MetadataStore,
        ObjectStore,
        QueueReader,
    )
    from pulsar_lifecycle.settings import Settings, ZooKeeperSettings


class Connections:
    """The ports of one cluster; each is opened when it is first asked for and closed with the others.

    ``read_only`` refuses every write of z-nodes. ``reads_per_second`` is this caller's share of
    ``zookeeper.reads_per_second``. ``pace`` is told the bytes of each batch of entries that ``reader`` streams, and may
    wait. One process, one thread. What a port cannot be made of raises ConfigError when it is asked for.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        read_only: bool = False,
        reads_per_second: float | None = None,
        pace: Callable[[int], object] | None = None,
    ) -> None:
        self.settings = settings
        self._read_only = read_only
        self._reads_per_second = reads_per_second
        self._pace = pace
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close what was opened, the last first."""
        self._opened.close()

    # ---------------------------------------------------------------------------------------------- metadata, entries

    @cached_property
    def store(self) -> MetadataStore:
        """The metadata store below its chroot."""
        return self._metadata(self.settings.zookeeper, read_only=self._read_only, share=self._reads_per_second)

    @cached_property
    def configuration(self) -> MetadataStore:
        """The configuration metadata store, where the namespaces' policies are; it refuses every write."""
        hosts = self.settings.configuration_store or self.settings.zookeeper.hosts
        return self._metadata(self.settings.zookeeper.model_copy(update={"hosts": hosts}))

    @cached_property
    def whole(self) -> MetadataStore:
        """The whole of our ZooKeeper, without the chroot of :attr:`store`; it refuses every write."""
        return self._metadata(self.settings.zookeeper.without_chroot()[0])

    def root(self, name: str) -> MetadataStore:
        """The metadata store of our own root (empty name) or of a declared one; it refuses every write."""
        key = f"bookkeeper.shared_with.{name}" if name else "zookeeper"
        return self._metadata(self.settings.root(name), share=self._reads_per_second, key=key)

    @cached_property
    def reader(self) -> LedgerReader:
        """Entries from the bookies that :attr:`store` names."""
        from pulsar_lifecycle.io.bookkeeper.reader import BookieReader

        return self._opened.enter_context(closing(BookieReader(self.store, self.settings.bookkeeper, self._pace)))

    @cached_property
    def writer(self) -> LedgerWriter:
        """New ledgers, on the bookies that :attr:`store` names."""
        from pulsar_lifecycle.io.bookkeeper.writer import BookieWriter

        return self._opened.enter_context(closing(BookieWriter(self.store, self.settings.bookkeeper)))

    @cached_property
    def bookies(self) -> BookieAdmin:
        """The bookies' HTTP admin API."""
        from pulsar_lifecycle.io.bookkeeper.bookie_admin import HttpBookieAdmin

        bookkeeper = self.settings.bookkeeper
        return self._opened.enter_context(
            closing(HttpBookieAdmin(self.store, bookkeeper.ledgers_root, bookkeeper.admin))
        )

    # ----------------------------------------------------------------------------------------- brokers and the queue

    @cached_property
    def admin(self) -> BrokerAdmin:
        """The brokers' REST API, looking before each request at what it would have loaded besides."""
        from pulsar_lifecycle.bundles.guard import BundleGuard
        from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin

        def stores() -> tuple[MetadataStore, MetadataStore]:
            return self.store, self.configuration if self.settings.configuration_store else self.store

        guard = BundleGuard(stores, self._unguarded, self.clock, takes=not self._read_only)
        return self._opened.enter_context(closing(HttpBrokerAdmin(self.settings.pulsar, before=guard.check)))

    @cached_property
    def _unguarded(self) -> BrokerAdmin:
        """The same without that look, for system topics and the queue's own."""
        from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin

        return self._opened.enter_context(closing(HttpBrokerAdmin(self.settings.pulsar)))

    @cached_property
    def queue(self) -> DeletionQueue:
        """The deletion queue: the main and the retry topic."""
        from pulsar_lifecycle.deletion_queue.missing_topics import Subscribed
        from pulsar_lifecycle.deletion_queue.queue_topics import stored_subscriptions
        from pulsar_lifecycle.io.pulsar.queue import PulsarDeletionQueue

        def look() -> Subscriptions:
            return stored_subscriptions(self.store, self.configuration)

        queue = PulsarDeletionQueue(
            self.settings.pulsar, self._unguarded, Subscribed(self._unguarded, self._tasks, look)
        )
        return self._opened.enter_context(closing(queue))

    @cached_property
    def dead_letters(self) -> DeadLetterQueue:
        """The dead-letter topic."""
        from pulsar_lifecycle.deletion_queue.missing_topics import create_missing
        from pulsar_lifecycle.io.pulsar.queue import PulsarDeadLetterQueue

        letters = PulsarDeadLetterQueue(
            self.settings.pulsar, self._unguarded, lambda: create_missing(self._unguarded, self._tasks)
        )
        return self._opened.enter_context(closing(letters))

    @cached_property
    def queue_reader(self) -> QueueReader:
        """Looking at the queue's topics without consuming them."""
        from pulsar_lifecycle.io.pulsar.queue import PulsarQueueReader

        return self._opened.enter_context(closing(PulsarQueueReader(self.settings.pulsar, self._unguarded)))

    @property
    def _tasks(self) -> int:
        return self.settings.deletion.twoPhaseDeletionLedgerDeletionParallelism

    # ------------------------------------------------------------------------------------------- buckets and the lake

    @cached_property
    def objects(self) -> ObjectStore:
        """The buckets of tiered storage. Raises ConfigError where the settings have none."""
        from pulsar_lifecycle.io.s3.objects import S3ObjectStore

        if self.settings.object_store is None:
            raise ConfigError("object_store: it is not set, so there are no buckets to look into")
        return self._opened.enter_context(closing(S3ObjectStore(self.settings.object_store)))

    @property
    def objects_if_set(self) -> ObjectStore | None:
        """:attr:`objects`; None where the settings have none."""
        return self.objects if self.settings.object_store else None

    @cached_property
    def journal(self) -> Journal:
        """The journal and the archive, to write."""
        from pulsar_lifecycle.io.lake.journal import FileJournal

        return FileJournal(self.settings.lake.path)

    @cached_property
    def journal_reader(self) -> JournalReader:
        """The journal and the archive, to read."""
        from pulsar_lifecycle.io.lake.journal import FileJournal

        return FileJournal(self.settings.lake.path)

    @cached_property
    def lake(self) -> Lake:
        """Epochs and plans."""
        from pulsar_lifecycle.io.lake.artefacts import FileLake

        return FileLake(self.settings.lake.path)

    @cached_property
    def alerts(self) -> Alerts | None:
        """Where alerts go; None where the settings name no webhook."""
        from pulsar_lifecycle.io.webhook import Webhook

        secret = self.settings.automation.alert_webhook
        if secret is None:
            return None
        return self._opened.enter_context(closing(Webhook(secret.resolve("automation.alert_webhook"))))

    @cached_property
    def ids(self) -> Ids:
        """New ids."""
        from pulsar_lifecycle.io.ids import RandomIds

        return RandomIds()

    @cached_property
    def clock(self) -> Clock:
        """The operating system's clock."""
        return SystemClock()

    def _metadata(
        self,
        zookeeper: ZooKeeperSettings,
        *,
        read_only: bool = True,
        share: float | None = None,
        key: str = "zookeeper",
    ) -> MetadataStore:
        return self._opened.enter_context(
            closing(metadata_store(zookeeper, read_only=read_only, reads_per_second=share, key=key))
        )


def metadata_store(
    zookeeper: ZooKeeperSettings,
    *,
    read_only: bool = True,
    reads_per_second: float | None = None,
    key: str = "zookeeper",
) -> MetadataStore:
    """One metadata store; ``key`` is what messages call the settings' section. The caller closes it."""
    from pulsar_lifecycle.io.zookeeper.store import KazooStore

    return KazooStore(zookeeper, read_only=read_only, reads_per_second=reads_per_second, key=key)
