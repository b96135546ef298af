"""All ports of one cluster, and how they are opened.

Belongs here: what a run may ask for, by name. Not here: which adapter stands behind a name (``io/connect.py``); the
few ports that one worker takes with it (``bundle.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from pulsar_lifecycle.ports.alerts import Alerts
from pulsar_lifecycle.ports.bookies import BookieAdmin
from pulsar_lifecycle.ports.brokers import BrokerAdmin
from pulsar_lifecycle.ports.journal import Clock, Ids, Journal, JournalReader
from pulsar_lifecycle.ports.lake import Lake
from pulsar_lifecycle.ports.ledgers import LedgerReader, LedgerWriter
from pulsar_lifecycle.ports.metadata import MetadataStore
from pulsar_lifecycle.ports.objects import ObjectStore
from pulsar_lifecycle.ports.queue import DeadLetterQueue, DeletionQueue, QueueReader

if TYPE_CHECKING:
    from pulsar_lifecycle.settings import Settings


class ClusterPorts(Protocol):
    """The ports of one cluster; each is opened when it is first asked for and closed with the others.

    One process, one thread. What a port cannot be made of raises ConfigError when it is asked for.
    """

    settings: Settings

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None: ...

    def close(self) -> None:
        """Close what was opened, the last first."""
        ...

    @property
    def store(self) -> MetadataStore:
        """The metadata store below its chroot."""
        ...

    @property
    def configuration(self) -> MetadataStore:
        """The configuration metadata store, where the namespaces' policies are; it refuses every write."""
        ...

    @property
    def whole(self) -> MetadataStore:
        """The whole of our ZooKeeper, without the chroot of :attr:`store`; it refuses every write."""
        ...

    def root(self, name: str) -> MetadataStore:
        """The metadata store of our own root (empty name) or of a declared one; it refuses every write."""
        ...

    @property
    def reader(self) -> LedgerReader:
        """Entries from the bookies that :attr:`store` names."""
        ...

    @property
    def writer(self) -> LedgerWriter:
        """New ledgers, on the bookies that :attr:`store` names."""
        ...

    @property
    def bookies(self) -> BookieAdmin:
        """The bookies' HTTP admin API."""
        ...

    @property
    def admin(self) -> BrokerAdmin:
        """The brokers' REST API."""
        ...

    @property
    def queue(self) -> DeletionQueue:
        """The deletion queue: the main and the retry topic."""
        ...

    @property
    def dead_letters(self) -> DeadLetterQueue:
        """The dead-letter topic."""
        ...

    @property
    def queue_reader(self) -> QueueReader:
        """Looking at the queue's topics without consuming them."""
        ...

    @property
    def objects(self) -> ObjectStore:
        """The buckets of tiered storage. Raises ConfigError where the settings have none."""
        ...

    @property
    def objects_if_set(self) -> ObjectStore | None:
        """:attr:`objects`; None where the settings have none."""
        ...

    @property
    def journal(self) -> Journal:
        """The journal and the archive, to write."""
        ...

    @property
    def journal_reader(self) -> JournalReader:
        """The journal and the archive, to read."""
        ...

    @property
    def lake(self) -> Lake:
        """Epochs and plans."""
        ...

    @property
    def alerts(self) -> Alerts | None:
        """Where alerts go; None where the settings name no webhook."""
        ...

    @property
    def ids(self) -> Ids:
        """New ids."""
        ...

    @property
    def clock(self) -> Clock:
        """The driver's or the worker's clock."""
        ...


class Connect(Protocol):
    """Opens the ports of a cluster where a run or one of its tasks works; it goes to executors with the tasks.

    ``read_only`` refuses every write of z-nodes. ``reads_per_second`` is this caller's share of
    ``zookeeper.reads_per_second``. ``pace`` is told the bytes of each batch of entries that the reader streams, and may
    wait.
    """

    def __call__(
        self,
        settings: Settings,
        *,
        read_only: bool = False,
        reads_per_second: float | None = None,
        pace: Callable[[int], object] | None = None,
    ) -> ClusterPorts:
        """The ports that ``settings`` name; the caller closes them."""
        ...
