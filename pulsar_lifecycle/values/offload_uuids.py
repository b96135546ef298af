"""Which offload attempts the metadata of a whole cluster names, small enough for ten million ledgers.

Belongs here: the set of UUIDs and its bytes. Not here: where it is kept (``io/lake/artefacts.py``), and what follows
from it. A UUID is kept as 64 bits, its halves XORed: 8 bytes per attempt. Two that share them are taken for each other,
which only ever keeps an object.
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import CorruptFormat

WHAT = "offload UUIDs of an epoch"
_HALF = 1 << 64


class OffloadUuids:
    """A set of offload UUIDs; ``values`` are sorted little-endian 64-bit integers, perhaps a file mapped to memory."""

    def __init__(self, values: Any = ()) -> None:
        self._values = np.asarray(values, dtype="<u8")

    def __len__(self) -> int:
        return len(self._values)

    def named(self, uuids: Iterable[UUID]) -> set[UUID]:
        """Those of ``uuids`` that are in the set."""
        asked = list(uuids)
        folded = np.array([(u.int >> 64) ^ (u.int % _HALF) for u in asked], dtype="<u8")
        left = np.searchsorted(self._values, folded, "left")
        right = np.searchsorted(self._values, folded, "right")
        return {uuid for uuid, found in zip(asked, right > left, strict=True) if found}

    def to_bytes(self) -> bytes:
        """The number of values (8 bytes, little-endian), then the values."""
        return len(self._values).to_bytes(8, "little") + self._values.tobytes()

    @classmethod
    def from_buffer(cls, data: Any) -> OffloadUuids:
        """The inverse of :meth:`to_bytes`, over any buffer and without a copy of it. Raises CorruptFormat."""
        size = len(data)
        if size < 8 or size != 8 + 8 * int.from_bytes(bytes(data[:8]), "little"):
            raise CorruptFormat(WHAT, 0, f"as many values as it says, found {size} bytes")
        return cls(np.frombuffer(data, dtype="<u8", offset=8))

    @classmethod
    def collect(cls, columns: Iterable[Any]) -> OffloadUuids:
        """The set of everything in some columns of ``tables.MANAGED_LEDGERS.offload_uuids``.

        Raises CorruptFormat for text that is no UUID.
        """
        parts = [part for column in columns for part in _folded(pc.list_flatten(column))]
        return cls(np.unique(np.concatenate(parts)) if parts else ())


AT_ONCE = 100_000
"""UUIDs that are taken apart at once: a batch of topics may name millions."""


def _folded(texts: Any) -> Iterator[Any]:
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    for start in range(0, len(texts), AT_ONCE):
        some = texts.slice(start, AT_ONCE)
        try:
            data = unhexlify("".join(pc.replace_substring(some, "-", "").to_pylist()))
            halves = np.frombuffer(data, dtype=">u8").reshape(len(some), 2)
        except (TypeError, ValueError) as error:
            raise CorruptFormat(WHAT, 0, f"UUIDs: {error}") from error
        yield np.unique(halves[:, 0] ^ halves[:, 1]).astype("<u8")


class NamedUuids(Protocol):
    """The offload attempts that the metadata of one epoch names; may be read only when it is asked."""

    def named(self, uuids: Iterable[UUID]) -> set[UUID]:
        """Those of ``uuids`` that any LedgerInfo of any root names. Raises NotFound where the epoch has no list."""
        ...


@dataclass(frozen=True, slots=True)
class NamedByAny:
    """What at least one of several epochs names."""

    epochs: tuple[NamedUuids, ...]

    def named(self, uuids: Iterable[UUID]) -> set[UUID]:
        """As :class:`NamedUuids` says."""
        asked = list(uuids)
        return set[UUID]().union(*(epoch.named(asked) for epoch in self.epochs))
