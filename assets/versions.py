# pyright: reportAttributeAccessIssue=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyarrow.compute makes its functions at import.
"""Data versions of tables: equal content has an equal version, so that Dagster's "Unsynced" means something.

Not here: versions of plans, which are their digests.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence

import dagster as dg
import pyarrow.compute as pc

from pulsar_lifecycle.ports import Lake

STAT = ("czxid", "mtime", "version")
"""A z-node that was written again differs in at least one of these."""


def version_of(*content: object) -> dg.DataVersion:
    """The version of what these plain values describe."""
    return dg.DataVersion(hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16])


def sums(lake: Lake, parts: Iterable[str], columns: Sequence[str] = STAT) -> list[int]:
    """How many rows some parts of tables have, and the sums of their numbers, modulo 2^63."""
    found = [0] * (len(columns) + 1)
    for batch in lake.batches(parts, columns):
        found[0] += batch.num_rows
        for place, name in enumerate(columns, 1):
            found[place] += int(pc.sum(batch.column(name)).as_py() or 0)
    return [value % (1 << 63) for value in found]
