"""Which entries a broker is asked for, so that its answer shows that it read the bucket."""

from __future__ import annotations

from collections.abc import Iterable

from pulsar_lifecycle.copies.location import OffloadedCopy
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, RefusedBy
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, message
from pulsar_lifecycle.formats.compression import Compression
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.topics.write import STOPPING, TopicRun, lost_by_load
from pulsar_lifecycle.values.codes import Code

LOOKED_AT = 20
"""Entries at each end of a ledger among which one must be that REST can show."""

HEADERS = 3_000
"""Bytes of a message's metadata that REST can show for certain: it puts them into headers, of 8 KiB in all."""


class InconclusiveRead(RefusedBy):
    """What a broker reads, or would read, shows nothing."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.READ_CHECK_UNANSWERED, message)


class EntryNotReadable(InconclusiveRead):
    """It can be asked for none of a ledger's entries."""


class TopicNotLoaded(EntryNotReadable):
    """None of its entries is asked for: a broker that loads its topic for that has it lose data."""


def entries_to_ask(run: TopicRun, ports: Ports, topic: Topic, copy: OffloadedCopy) -> list[int]:
    """An entry at each end of a ledger of a topic that its broker can be asked for.

    Raises InconclusiveRead where REST can show none, or the topic is not to be loaded.

    Entries that consumers read well may get an error or no answer there: a message's metadata goes into headers, and a
    chunk is decompressed as if it were the whole (PersistentTopicsBase.generateResponseWithEntry, 4.0.7).
    """
    try:
        if why := why_not_read(run, ports, topic):
            raise TopicNotLoaded(why)
        node = ports.store.read([ledger_path.ledger_path(copy.ledger_id, run.ledgers_root)])[0]
        if node is None:
            return list(dict.fromkeys((0, copy.entries - 1)))
        if isinstance(node, Unread):
            raise InconclusiveRead(f"which of its entries its broker can be asked for is not known: {node.reason}")
        metadata = ledger_metadata.decode(node.data)

        def first_shown(ids: Iterable[int]) -> int | None:
            one = (ports.reader.read(copy.ledger_id, metadata, i, i)[0] for i in ids)
            return next((entry.entry_id for entry in one if _shown_by_rest(entry.payload)), None)

        last = copy.entries - 1
        first = first_shown(range(min(LOOKED_AT, copy.entries)))
        if first is None:
            raise EntryNotReadable(
                f"none of its first {LOOKED_AT} entries can be asked for by REST (chunks of compressed messages, or "
                f"properties of over {HEADERS} bytes): another ledger of its namespace must be offloaded first"
            )
        found = first_shown(range(last, max(first, last - LOOKED_AT), -1))
        return [first] if found is None else [first, found]
    except (*STOPPING, InconclusiveRead):
        raise
    except LifecycleError as error:
        raise InconclusiveRead(f"which of its entries its broker can be asked for is not known: {error}") from error


def why_not_read(run: TopicRun, ports: Ports, topic: Topic) -> str:
    """Why no broker may be asked for entries of a topic; empty if one may.

    A read loads it, and it is unloaded after it: the next one loads it, too. No other may be loaded with it.
    """
    loss = lost_by_load(run, ports, topic)
    return f"it is not read: {loss}; or have a ledger of another topic of its namespace read first" if loss else ""


def _shown_by_rest(payload: bytes) -> bool:
    try:
        entry = message.decode(payload)
    except CorruptFormat:
        return True  # as a broker sees it: whatever it says of it
    compressed = entry.compression is not Compression.NONE and not entry.encrypted
    return not (entry.chunk and compressed) and len(message.split(payload).metadata) <= HEADERS
