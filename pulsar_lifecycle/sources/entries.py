"""Spark data source ``bookkeeper_entries``: closed ledgers, entry by entry or message by message.

    entries = spark.read.format("bookkeeper_entries").option("topic", "persistent://t/ns/orders").load()
    messages = spark.read.format("bookkeeper_entries").option("as", "messages").option("ledgers", "17,20-29").load()

Options: those of :mod:`entry_tables`, ``zookeeper`` (a connect string instead of settings), and one of ``ledgers`` (ids
and ranges: ``3,5-9``), ``topic`` (a full name; of a partitioned topic all partitions) and ``namespace``. Ledgers that
are not closed, those of which only the offloaded copy is left (:mod:`offloaded` reads it), and those below the low
watermark of their topic are left out, with a warning that names them.

Not here: which ledgers these are (``sources/closed_ledgers.py``), reading and proving entries (``ports.LedgerReader``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from pulsar_lifecycle.formats.ledger_metadata import TAG_MANAGED_LEDGER, LedgerMetadata
from pulsar_lifecycle.model import MessagePosition, Position, Topic
from pulsar_lifecycle.ports import EntryBatch, MetadataStore
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.sources import closed_ledgers
from pulsar_lifecycle.sources.closed_ledgers import ClosedLedgers
from pulsar_lifecycle.sources.entry_tables import EntryReader, EntrySource
from pulsar_lifecycle.sources.low_watermarks import first_shown, topic_of, watermarks_of
from pulsar_lifecycle.sources.messages import Hidden
from pulsar_lifecycle.throttle import Pace

_log = logging.getLogger(__name__)

Piece = tuple[int, LedgerMetadata, int, int, int]
"""Ledger id, metadata, first and last entry, both inclusive, and how many messages of the first are not shown."""


def pieces(ledgers: ClosedLedgers, size: int, first: Mapping[int, MessagePosition] = {}) -> list[list[Piece]]:
    """Ledgers as groups of about ``size`` bytes: large ones cut into ranges of entries, small ones together.

    ``first``: the first message that is shown, by ledger, where that is not its first.
    """
    groups: list[list[Piece]] = []
    room = 0
    for ledger_id, metadata in ledgers.ledgers:
        count = metadata.last_entry_id + 1
        begin = first.get(ledger_id, MessagePosition(ledger_id, 0))
        at = begin.entry_id
        while at < count:
            if room <= 0:
                groups.append([])
                room = size
            mean = max(1, metadata.length // count)
            end = min(count, at + max(1, room // mean))
            hidden = begin.batch_index if at == begin.entry_id else 0
            groups[-1].append((ledger_id, metadata, at, end - 1, hidden))
            room -= (end - at) * mean if end == count else room
            at = end
    return groups


HIDDEN = "it is below the low watermark of its topic"
WHOLE = 1 << 62
"""Bytes that no group has: all in one."""


def by_topic(ledgers: ClosedLedgers) -> list[ClosedLedgers]:
    """Those of each topic or partition, by their own tags, in its order; without empty ones."""
    topics: dict[bytes | int, list[tuple[int, LedgerMetadata]]] = {}
    for ledger_id, metadata in sorted(ledgers.ledgers, key=lambda one: one[0]):
        if metadata.last_entry_id >= 0:
            topics.setdefault(metadata.custom_metadata.get(TAG_MANAGED_LEDGER, ledger_id), []).append(
                (ledger_id, metadata)
            )
    return [ClosedLedgers(tuple(some), {}) for some in topics.values()]


class BookKeeperEntriesReader(EntryReader[Piece]):
    """Ranges of entries, from the bookies."""

    def plan(self, settings: Settings, size: int) -> list[list[Piece]]:
        """Groups of ranges of entries."""
        with self.connect(settings, read_only=True) as ports:
            ports.store.sync("/")
            chosen = self._chosen(ports.store, settings.bookkeeper.ledgers_root)
            first = {} if self.options.below_low_watermark else _first_shown(ports.store, chosen)
        chosen = _without_hidden(chosen, first)
        if chosen.left_out:
            some = "; ".join(f"{i}: {why}" for i, why in list(chosen.left_out.items())[:20])
            _log.warning("bookkeeper_entries: %d ledgers are left out: %s", len(chosen.left_out), some)
        if self.options.assembled:
            return [pieces(one, WHOLE, first)[0] for one in by_topic(chosen) if one.ledgers]
        return pieces(chosen, size, first)

    def entries(
        self, settings: Settings, pieces: list[Piece], pace: Pace, hidden: Hidden
    ) -> Iterator[tuple[int, EntryBatch]]:
        """Verified entries."""
        with self.connect(settings, read_only=True, pace=pace) as ports:
            for ledger_id, metadata, first, last, below in pieces:
                if below:
                    hidden[Position(ledger_id, first)] = below
                for batch in ports.reader.stream(ledger_id, metadata, first, last):
                    yield ledger_id, batch

    def _chosen(self, store: MetadataStore, root: str) -> ClosedLedgers:
        name, text = self.options.only("ledgers", "topic", "namespace")
        if name == "ledgers":
            return closed_ledgers.by_id(store, text, root)
        owner = self.options.owner(name)
        if isinstance(owner, Topic):
            return closed_ledgers.of_topic(store, owner, root)
        return closed_ledgers.of_namespace(store, owner, root)


def _first_shown(store: MetadataStore, ledgers: ClosedLedgers) -> dict[int, MessagePosition]:
    """The first message that is shown of each ledger; raises as ``low_watermarks.watermarks_of``."""
    topics = {ledger_id: ledgers.topics.get(ledger_id) or topic_of(metadata) for ledger_id, metadata in ledgers.ledgers}
    known = watermarks_of(store, filter(None, topics.values()))
    return {ledger_id: first_shown(known.get(topic), ledger_id) for ledger_id, topic in topics.items()}


def _without_hidden(ledgers: ClosedLedgers, first: Mapping[int, MessagePosition]) -> ClosedLedgers:
    """Without ledgers of which nothing is shown."""
    begins = {ledger_id: at.entry_id for ledger_id, at in first.items()}
    shown = [(i, metadata) for i, metadata in ledgers.ledgers if begins.get(i, 0) <= max(0, metadata.last_entry_id)]
    left_out = {**ledgers.left_out, **dict.fromkeys(first.keys() - {i for i, _ in shown}, HIDDEN)}
    return ClosedLedgers(tuple(shown), left_out, ledgers.topics)


class BookKeeperEntries(EntrySource):
    """``bookkeeper_entries``: the module's docstring has the options."""

    table = "bookkeeper_entries"
    reads = BookKeeperEntriesReader
