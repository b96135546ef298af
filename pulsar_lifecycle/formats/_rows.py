"""Many short byte strings of one make, written at once: as arrays, a column a field.

Belongs here: the fields that such a row may have, and the rows' bytes one after the other. Not here: what a row means.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Field = tuple[Bytes, Mask | bool]
"""Bytes of each row, and which of them count; of shape (rows, width), or the same in each row."""

_LIMITS = [1 << 7 * width for width in range(1, 9)]


def varint_widths(values: Longs) -> Longs:
    """Bytes of each value, 0 or more, as a varint."""
    widths = np.ones(len(values), np.int64)
    top = int(values.max()) if len(values) else 0
    for limit in _LIMITS:
        if top < limit:
            break
        widths += values >= limit
    return widths


def constant(data: bytes) -> Field:
    """The same bytes in each row."""
    return np.frombuffer(data, np.uint8)[None, :], True


def varints(values: Longs, widths: Longs) -> Field:
    """A number, 0 or more, in each row; with its width."""
    at = np.arange(int(widths.max()))
    groups = ((values[:, None] >> (7 * at)) & 0x7F).astype(np.uint8)
    groups[at < widths[:, None] - 1] |= 0x80
    return groups, at < widths[:, None]


def table(rows: Bytes, sizes: Longs) -> Field:
    """The first ``sizes`` bytes of each row."""
    return rows, np.arange(int(rows.shape[1])) < sizes[:, None]


def only(condition: Mask, *fields: Field) -> list[Field]:
    """The fields in the rows that meet the condition, and nothing in the others."""
    return [(data, counts & condition[:, None]) for data, counts in fields]


def encoded(count: int, fields: Sequence[Field]) -> tuple[bytes, Longs]:
    """All of so many rows, and where each begins and the last ends."""
    width = sum(data.shape[1] for data, _ in fields)
    rows, kept = np.empty((count, width), np.uint8), np.empty((count, width), np.bool_)
    at = 0
    for data, counts in fields:
        after = at + data.shape[1]
        rows[:, at:after] = data
        kept[:, at:after] = counts
        at = after
    bounds = np.zeros(count + 1, np.int64)
    np.cumsum(np.count_nonzero(kept, axis=1), out=bounds[1:])
    return rows[kept].tobytes(), bounds
