"""Which ledgers a scan found referenced: two bitmaps.

Belongs here: the value and its bytes. Not here: what refers (``scan/references.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64


def _empty() -> BitMap64:
    return BitMap64()


@dataclass(frozen=True, slots=True)
class Referenced:
    """Ledger ids by what their references ask for.

    ``needed``: something needs the BookKeeper copy. ``offloaded``: every reference says that the BookKeeper copy is
    deleted; ids in ``needed`` are in this set only if another reference says so.
    """

    needed: BitMap64 = field(default_factory=_empty)
    offloaded: BitMap64 = field(default_factory=_empty)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self.needed or ledger_id in self.offloaded

    def merge(self, other: Referenced) -> Referenced:
        """The union of both."""
        return Referenced(self.needed | other.needed, self.offloaded | other.offloaded)

    def to_bytes(self) -> bytes:
        """Length of the first bitmap (8 bytes, big-endian), then both in the portable Roaring form."""
        first = self.needed.serialize()
        return len(first).to_bytes(8, "big") + first + self.offloaded.serialize()

    @classmethod
    def from_bytes(cls, data: bytes) -> Referenced:
        """The inverse of :meth:`to_bytes`."""
        end = 8 + int.from_bytes(data[:8], "big")
        return cls(BitMap64.deserialize(data[8:end]), BitMap64.deserialize(data[end:]))


def id_set(ids: Any) -> BitMap64:
    """A bitmap of an Arrow column of ledger ids (no nulls)."""
    return BitMap64(
        np.asarray(ids.to_numpy(zero_copy_only=False) if isinstance(ids, pa.Array) else ids.to_numpy(), dtype=np.uint64)
    )
