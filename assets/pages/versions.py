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
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC
from pulsar_lifecycle.ports import Lake

STAT = ("czxid", "mtime", "version")
"""A z-node that was written again differs in at least one of these."""


def version_of(*content: object) -> dg.DataVersion:
    """The version of what these plain values describe."""
    return dg.DataVersion(hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16])


def not_ours(schema: pa.Schema) -> pc.Expression:
    """The condition for rows that are not about the deletion queue's own topics.

    Each intent that is sent or taken writes their z-nodes: they say nothing of what is judged.
    """
    queue, condition = DELETION_TOPIC, pc.scalar(True)
    owners = {"managed_ledger": queue.managed_ledger, "schema_id": queue.schema_id}
    for name in set(owners) & set(schema.names):
        owner = pc.field(name)
        condition &= owner.is_null() | ~pc.starts_with(owner, owners[name])
    return condition


def sums(
    lake: Lake, parts: Iterable[str], columns: Sequence[str] = STAT, where: pc.Expression | None = None
) -> list[int]:
    """How many rows some parts of tables have, and the sums of their numbers, modulo 2^63; of rows ``where``."""
    found = [0] * (len(columns) + 1)
    for batch in lake.batches(parts, columns, where):
        found[0] += batch.num_rows
        for place, name in enumerate(columns, 1):
            found[place] += int(pc.sum(batch.column(name)).as_py() or 0)
    return [value % (1 << 63) for value in found]
