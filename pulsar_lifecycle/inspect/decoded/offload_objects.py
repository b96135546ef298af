"""What a bucket holds of one offloaded ledger: both objects of the pair, whichever was named.

Not here: whether the copy is the ledger (``tiered/proof.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pulsar_lifecycle.copies.offloaded_ledger import Location, OffloadedLedger, open_offloaded
from pulsar_lifecycle.errors import Conflict, CorruptFormat, LifecycleError, NotFound, UsageError
from pulsar_lifecycle.formats import message, offload_object
from pulsar_lifecycle.formats.message import MessageEntry
from pulsar_lifecycle.formats.offload_index import OffloadIndex
from pulsar_lifecycle.ports import Entry, ObjectHead, ObjectStore

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class DecodedEntry:
    """An entry, and the message or batch in it; CorruptFormat where it holds none."""

    entry: Entry
    message: MessageEntry | CorruptFormat


@dataclass(frozen=True, slots=True)
class OffloadedPair:
    """The objects of one offload attempt; a head is None where there is no such object.

    ``problems``: what is missing, damaged, or was replaced meanwhile. What could not be read for one of them is None.
    """

    location: Location
    data: ObjectHead | None
    index: ObjectHead | None
    problems: tuple[LifecycleError, ...]
    offload_index: OffloadIndex | None = None
    first_entry: DecodedEntry | None = None
    last_entry: DecodedEntry | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong, as far as heads, index and both ends tell."""
        return not self.problems


def offloaded(objects: ObjectStore, bucket: str, key: str) -> OffloadedPair:
    """The data and the index object of the offload attempt that ``key`` belongs to.

    Reads the heads, the index, and the data object's first range and last block; payloads in between are not read.
    Raises UsageError for a key of something else, NotFound where neither object is there, Unavailable, AccessDenied.
    """
    parsed = offload_object.parse_key(key)
    if parsed is None:
        raise UsageError(f"expected the key of an offloaded ledger, <uuid>-ledger-<id>[-index], found {key!r}")
    location = Location(bucket, parsed.uuid, parsed.ledger_id)
    data, index = (_head(head) for head in objects.head_many(bucket, [location.data_key, location.index_key]))
    if data is None and index is None:
        raise NotFound(f"{location.data_url}: there is neither a data nor an index object")
    problems: list[LifecycleError] = []
    ledger = _tried(problems, lambda: open_offloaded(objects, location))
    if ledger is None:
        return OffloadedPair(location, data, index, tuple(problems))
    first = _tried(problems, lambda: _entry(ledger, 0))
    last = _tried(problems, lambda: _entry(ledger, ledger.index.ledger.last_entry_id))
    return OffloadedPair(location, data, index, tuple(problems), ledger.index, first, last)


def _head(found: ObjectHead | LifecycleError | None) -> ObjectHead | None:
    if isinstance(found, LifecycleError):
        raise found
    return found


def _tried(problems: list[LifecycleError], read: Callable[[], _Value]) -> _Value | None:
    """What was read; None, and a problem more, for what is missing, damaged, or was replaced meanwhile."""
    try:
        return read()
    except (NotFound, Conflict, CorruptFormat) as error:
        problems.append(error)
        return None


def _entry(ledger: OffloadedLedger, entry_id: int) -> DecodedEntry:
    (entry,) = ledger.read(entry_id, entry_id)
    try:
        return DecodedEntry(entry, message.decode(entry.payload))
    except CorruptFormat as error:
        return DecodedEntry(entry, error)
