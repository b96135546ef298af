"""The metadata of a partitioned topic (``PartitionedTopicMetadata``): a z-node of the configuration store, in JSON."""

from __future__ import annotations

import json

from pulsar_lifecycle.errors import CorruptFormat

_MAX_PARTITIONS = (1 << 31) - 1


def partition_count(path: str, data: bytes) -> int:
    """How many partitions the metadata of a partitioned topic, at ``path``, names. Raises CorruptFormat."""
    try:
        count = json.loads(data)["partitions"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFormat(path, 0, f"partitioned-topic metadata: {error}") from error
    if type(count) is not int or not 0 <= count <= _MAX_PARTITIONS:
        raise CorruptFormat(path, 0, f"partitioned-topic metadata: a number of partitions, found {count!r}")
    return count
