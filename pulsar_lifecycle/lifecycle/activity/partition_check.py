"""Partitioned topics whose metadata and partitions do not agree. They are named, and never deleted by this.

Pure. Not here: reading either (``activity_run.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import pyarrow as pa

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.protection import is_brokers_own


class PartitionFinding(StrEnum):
    """How a partitioned topic's metadata and its partitions disagree."""

    NO_PARTITIONS = "no_partitions"
    """Its metadata is there, and none of its partitions: nobody ever used it, or they were deleted one by one.
    `pulsar-admin topics delete-partitioned-topic` takes it away."""
    NO_METADATA = "no_metadata"
    """It has partitions and no metadata: clients of the partitioned topic do not reach them. Look
    who made them."""
    BEYOND_METADATA = "beyond_metadata"
    """It has partitions of a higher number than its metadata says."""


PARTITION_FINDINGS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("code", pa.string()),
        pa.field("partitions_said", pa.int64()),
        pa.field("partitions_there", pa.int64()),
    ]
)
"""One row per partitioned topic with a ``PartitionFinding``: how many partitions its metadata says (null: it has none),
and how many there are."""


def partition_findings(said: Mapping[str, int], topics: Iterable[str]) -> pa.Table:
    """Rows of ``PARTITION_FINDINGS``. ``said``: partitions by partitioned topic; ``topics``: those that there are.

    Topics of brokers' own have none: ``transaction_coordinator_assign`` is partitioned, and never has a ledger.
    """
    there: dict[str, list[int]] = {}
    for name in topics:
        topic = Topic.parse(name)
        if topic.partition is not None:
            there.setdefault(str(topic.partitioned_parent), []).append(topic.partition)
    found: list[tuple[str, str, str, int | None, int]] = []
    for name in sorted(name for name in said.keys() | there.keys() if not is_brokers_own(Topic.parse(name))):
        numbers, expected = there.get(name, []), said.get(name)
        code = _code(expected, numbers)
        if code:
            found.append((name, str(Topic.parse(name).namespace), str(code), expected, len(numbers)))
    columns = zip(*found, strict=True) if found else [[] for _ in PARTITION_FINDINGS]
    return pa.table([list(column) for column in columns], schema=PARTITION_FINDINGS)


def _code(expected: int | None, numbers: list[int]) -> PartitionFinding | None:
    if expected is None:
        return PartitionFinding.NO_METADATA
    if not numbers and expected:
        return PartitionFinding.NO_PARTITIONS
    return PartitionFinding.BEYOND_METADATA if max(numbers, default=-1) >= expected else None


def partitioned_topic(path: str) -> str | None:
    """The full name of a partitioned topic by its z-node's path below the root of them; None if it names none."""
    try:
        return str(Topic.from_managed_ledger(path))
    except CorruptFormat:
        return None
