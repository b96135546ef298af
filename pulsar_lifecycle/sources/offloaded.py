"""Spark data source ``pulsar_offload``: offloaded ledgers, entry by entry or message by message, out of their bucket.

    orders = spark.read.format("pulsar_offload").option("topic", "persistent://t/ns/orders").option("as", "messages")
    all_of_them = spark.read.format("pulsar_offload").option("bucket", "tiered-storage").load()

Options: those of :mod:`entry_tables`, and at most one of ``ledgers`` (keys ``<uuid>-ledger-<id>``), ``topic`` (a full
name; of a partitioned topic all partitions), ``namespace`` and ``prefix`` (of keys); without any, all of the bucket.
``bucket``: one of ``object_store.buckets``, if there are several; topics say themselves in which theirs are. None needs
a broker or a bookie. ZooKeeper says which ledgers are a topic's, and up to where its records were deleted: without it,
name keys, a prefix or a bucket, and ``below_low_watermark``. What was uploaded in part is left out, with a warning that
names it. An object that is replaced while it is read ends the query.

Not here: which objects these are (``sources/offload_listing.py``), reading them (``copies/offloaded_ledger.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from pulsar_lifecycle.copies.offloaded_ledger import open_offloaded
from pulsar_lifecycle.errors import Conflict, Unavailable, UsageError
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.model import MessagePosition
from pulsar_lifecycle.ports import ClusterPorts, EntryBatch
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.sources import offload_listing
from pulsar_lifecycle.sources.entry_tables import EntryReader, EntrySource
from pulsar_lifecycle.sources.low_watermarks import OPTION, first_shown, topic_of, watermarks_of
from pulsar_lifecycle.sources.messages import Hidden
from pulsar_lifecycle.sources.offload_listing import OffloadedData, Offloads
from pulsar_lifecycle.throttle import Pace

_log = logging.getLogger(__name__)

Piece = tuple[OffloadedData, int, int]
"""An object, and between which of its bytes the blocks begin that are meant; the second is excluded."""


def pieces(offloads: Iterable[OffloadedData], size: int) -> list[list[Piece]]:
    """Objects as groups of about ``size`` bytes: large ones cut, small ones together."""
    groups: list[list[Piece]] = []
    room = 0
    for one in offloads:
        for begin in range(0, one.size, size):
            end = min(begin + size, one.size)
            if end - begin > room:
                groups.append([])
                room = size
            groups[-1].append((one, begin, end))
            room -= end - begin
    return groups


def by_topic(offloads: Iterable[OffloadedData]) -> list[list[Piece]]:
    """The objects of each topic or partition, whole and in its order."""
    topics: dict[str, list[Piece]] = {}
    for one in sorted(offloads, key=lambda one: one.location.ledger_id):
        topics.setdefault(one.owner, []).append((one, 0, one.size))
    return list(topics.values())


class OffloadedReader(EntryReader[Piece]):
    """Ranges of blocks, from the bucket."""

    def plan(self, settings: Settings, size: int) -> list[list[Piece]]:
        """Groups of ranges of bytes."""
        with self.connect(settings, read_only=True) as ports:
            chosen = self._chosen(ports)
        if chosen.left_out:
            some = "; ".join(f"{name}: {why}" for name, why in list(chosen.left_out.items())[:20])
            _log.warning("pulsar_offload: %d offloads are left out: %s", len(chosen.left_out), some)
        if self.options.assembled:
            return by_topic(chosen.found)
        return pieces(chosen.found, size)

    def entries(
        self, settings: Settings, pieces: list[Piece], pace: Pace, hidden: Hidden
    ) -> Iterator[tuple[int, EntryBatch]]:
        """The entries of the blocks that begin in each range."""
        with self.connect(settings) as ports:
            shown = _Shown(ports, self.options.below_low_watermark)
            for one, begin, end in pieces:
                ledger = open_offloaded(ports.objects, one.location)
                if ledger.data_head.etag != one.etag:
                    raise Conflict(f"{one.location.data_url}: it was replaced since the query was planned")
                blocks = [block for block in ledger.index.blocks if begin <= block.offset < end]
                if not blocks:
                    continue
                at = shown.first(one, ledger.index.ledger)
                first, last = max(blocks[0].first_entry_id, at.entry_id), ledger.index.last_entry_of(blocks[-1])
                if first > last:
                    continue
                if at.batch_index:
                    hidden[at.entry] = at.batch_index
                for batch in ledger.stream(first, last):
                    pace(sum(map(len, batch.payloads)))
                    yield one.location.ledger_id, batch

    def _chosen(self, ports: ClusterPorts) -> Offloads:
        given, objects = self.options.given, ports.objects
        names = [name for name in ("ledgers", "topic", "namespace", "prefix") if given.get(name)]
        if len(names) > 1:
            raise UsageError(f"pulsar_offload: give at most one of the options {' and '.join(names)}")
        if names and names[0] in ("topic", "namespace"):
            if given.get("bucket"):
                raise UsageError(f"pulsar_offload: leave out the option bucket: the {names[0]} says it")
            ports.store.sync("/")
            return offload_listing.of_owner(ports.store, objects, self.options.owner(names[0]))
        declared = ports.settings.object_store
        bucket = given.get("bucket") or _only(declared.buckets if declared else ())
        if names == ["ledgers"]:
            return offload_listing.by_key(objects, bucket, given["ledgers"])
        return offload_listing.below(objects, bucket, given.get("prefix", ""))


class _Shown:
    """Where the shown messages of ledgers begin; each topic is looked up once, and none if ``all_of_them`` are."""

    def __init__(self, ports: ClusterPorts, all_of_them: bool) -> None:
        self._ports, self._all = ports, all_of_them
        self._known: dict[str, MessagePosition | None] = {}

    def first(self, one: OffloadedData, metadata: LedgerMetadata) -> MessagePosition:
        """Raises as ``low_watermarks.watermarks_of``, and what the metadata store raises that does not answer."""
        topic = "" if self._all else one.owner or topic_of(metadata)
        if topic and topic not in self._known:
            try:
                self._known[topic] = watermarks_of(self._ports.store, [topic]).get(topic)
            except Unavailable as error:
                raise Unavailable(
                    f"{topic} says up to where records of {one.location.data_url} were deleted: {error}; {OPTION}=true "
                    f"reads all that is there"
                ) from error
        return first_shown(self._known.get(topic), one.location.ledger_id)


class PulsarOffload(EntrySource):
    """``pulsar_offload``: the module's docstring has the options."""

    table = "pulsar_offload"
    reads = OffloadedReader


def _only(buckets: tuple[str, ...]) -> str:
    if len(buckets) != 1:
        raise UsageError(f"pulsar_offload: give the option bucket, one of {', '.join(buckets)}")
    return "".join(buckets)
