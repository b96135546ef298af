"""The ports of one worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pulsar_lifecycle.ports import (
    BrokerAdmin,
    Clock,
    DeletionQueue,
    Journal,
    LedgerReader,
    MetadataStore,
    ObjectStore,
)


@dataclass(slots=True)
class Ports:
    """The ports of one worker.

    ``sent_back``: what it sent to the retry topic because it waits (digest, retries). ``pace`` is told the bytes of
    entries before they are read whole, and may wait.
    """

    store: MetadataStore
    reader: LedgerReader
    admin: BrokerAdmin
    queue: DeletionQueue
    journal: Journal
    clock: Clock
    objects: ObjectStore | None = None
    sent_back: set[tuple[bytes, int]] = field(default_factory=set[tuple[bytes, int]])
    pace: Callable[[int], object] = int
