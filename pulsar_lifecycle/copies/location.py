"""Where a copy is, and by what brokers read it."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.copies import NamespaceLocation, OffloadLocation, offload_location


@dataclass(frozen=True, slots=True)
class OffloadedCopy:
    """A complete offload of a ledger, as its topic's metadata names it. ``metadata`` as in :class:`Attempt`."""

    ledger_id: int
    entries: int
    uuid: UUID
    driver: str
    metadata: tuple[tuple[str, str], ...]

    @classmethod
    def of_attempt(cls, attempt: Attempt, entries: int) -> OffloadedCopy:
        """What an attempt's commit makes of it."""
        return cls(attempt.ledger_id, entries, attempt.uuid, attempt.driver, attempt.metadata)

    @classmethod
    def of_item(cls, item: LedgerInfo, entries: int) -> OffloadedCopy | None:
        """What a topic's metadata says of a ledger; None if that is no complete offload."""
        offload = item.offload
        if offload is None or not (offload.complete and offload.uuid and offload.driver_name):
            return None
        return cls(item.ledger_id, entries, offload.uuid, offload.driver_name, tuple(offload.driver_metadata.items()))


def namespace_location(topic: Topic, one: OffloadedCopy | Attempt) -> NamespaceLocation:
    """Where an offload of a topic is, or an attempt goes; one read check stands for all of them."""
    return str(topic.namespace), one.driver.lower(), tuple(sorted(one.metadata))


def location_of(one: OffloadedCopy | Attempt) -> OffloadLocation:
    """The location of an offload, or where an attempt goes; other namespaces may have theirs there, too."""
    return offload_location(one.driver, dict(one.metadata))
