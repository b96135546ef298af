"""How many partitions a topic has, and one gets that brokers make: z-nodes of the configuration store, in JSON.

Upstream: ``PartitionedTopicMetadata``, ``AutoTopicCreationOverrideImpl`` in ``Policies`` (4.0.7).
"""

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


def partitions_made(path: str, data: bytes) -> int | None:
    """How many a namespace, by its policies at ``path``, gives a topic that brokers make; 0 for one without partitions.

    None where they leave that to the brokers. Raises CorruptFormat.
    """
    try:
        said = json.loads(data).get("autoTopicCreationOverride")
        if said is None:
            return None
        return int(said.get("defaultNumPartitions") or 0) if said.get("topicType") == "partitioned" else 0
    except (ValueError, TypeError, AttributeError) as error:
        raise CorruptFormat(path, 0, f"policies with a valid autoTopicCreationOverride: {error!r}") from error
