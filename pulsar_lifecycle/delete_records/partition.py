"""What is known of one partition at one moment, as values.

Not here: reading it (``topic_view.py``), and what follows from it (``cut_rules.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsar_lifecycle.copies.listed_ledgers import BookKeeperCopy
from pulsar_lifecycle.formats.cursor import ManagedCursorInfo
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.model import MessagePosition, Position, Topic
from pulsar_lifecycle.topics import low_watermark
from pulsar_lifecycle.values.codes import Why

REPLICATOR = "pulsar.repl"
"""How the cursors of replicators begin by default (``replicatorPrefix``)."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A listed ledger and how many entries it has; ``written``: bytes on disk, of one that is not closed."""

    item: LedgerInfo
    entries: int
    written: int = 0

    @property
    def ledger_id(self) -> int:
        """Its id."""
        return self.item.ledger_id


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What is known of a partition; ``extents`` by ledger id, ascending.

    ``positions``: persisted mark-delete positions of the durable cursors, by their shown names; ``compacted``: the
    ledger of the compacted view; ``pending_acks``: subscriptions with acknowledgements in transactions. ``loaded``: why
    it counts as loaded; ``broker``: who lists it; ``consumers``: subscriptions that it has, durable or not.
    ``protected``: why nothing of it may be written. ``replicators``: how the cursors of replicators begin.
    ``unmeasured``: why nobody knows how many entries its last ledger has; its extent has none then, and ``end`` is
    where it begins.
    """

    topic: Topic
    info: ManagedLedgerInfo
    watermark: MessagePosition | None
    extents: Sequence[Extent]
    cursors: Mapping[str, ManagedCursorInfo]
    positions: Mapping[str, Position]
    copies: Mapping[int, BookKeeperCopy]
    loaded: Why | None
    broker: str = ""
    protected: Why | None = None
    compacted: int | None = None
    pending_acks: frozenset[str] = frozenset()
    consumers: frozenset[str] = frozenset()
    replicators: frozenset[str] = frozenset({REPLICATOR})
    unmeasured: Why | None = None

    @property
    def end(self) -> MessagePosition | None:
        """One entry after the last; None for a topic without ledgers."""
        return MessagePosition(self.extents[-1].ledger_id, self.extents[-1].entries) if self.extents else None

    @property
    def first(self) -> MessagePosition | None:
        """The first position that may be shown: the low watermark, or where the list of ledgers begins."""
        if not self.extents:
            return self.watermark
        return low_watermark.highest(self.watermark, MessagePosition(self.extents[0].ledger_id, 0))

    @property
    def readers(self) -> tuple[str, ...]:
        """Non-durable subscriptions that its broker has, sorted."""
        return tuple(sorted(self.consumers - set(self.positions)))

    def canonical(self, position: MessagePosition) -> MessagePosition:
        """The same place, told by the first entry behind it where its ledger ends there."""
        for extent in self.extents:
            if extent.ledger_id < position.ledger_id:
                continue
            if extent.ledger_id > position.ledger_id:
                return MessagePosition(extent.ledger_id, 0)
            if position.entry_id < extent.entries or extent is self.extents[-1]:
                return position
        return position

    def last_below(self, position: MessagePosition) -> Position:
        """The last entry below a position, which must have one."""
        found = Position(-1, -1)
        for extent in self.extents:
            upto = extent.entries if extent.ledger_id < position.ledger_id else position.entry_id
            if extent.ledger_id <= position.ledger_id and min(upto, extent.entries) > 0:
                found = Position(extent.ledger_id, min(upto, extent.entries) - 1)
        return found
