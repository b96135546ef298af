"""An order to offload some topics, or one up to a position, checked against the newest scan.

Belongs here: names to topics of the scan, and a position to the ledger that it is in. Not here: which of their ledgers
go (``tiered/planning/candidates.py``). Upstream: ``pulsar-admin topics offload`` of PIP-17,
``ManagedLedgerImpl.asyncOffloadPrefix`` (4.0.7): ledgers before that of the position go, its own does not.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import CorruptFormat, UsageError
from pulsar_lifecycle.model import MessagePosition, Topic
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.epoch import Epoch


def topic_order(
    cluster: Cluster, epoch: Epoch, namespaces: Collection[str], topics: Collection[str], upto: str
) -> dict[str, int | None] | None:
    """Topics of an order, each with the ledger before which it goes (None: all of it); None where none is named.

    A partitioned topic stands for its partitions. ``upto``: ``LEDGER:ENTRY`` of the only topic. Raises UsageError for
    what is no order, and for topics and positions that the scan does not have.
    """
    if not topics:
        if upto:
            raise UsageError("upto: a position is one of a topic: name it in topics")
        return None
    if namespaces:
        raise UsageError("topics and namespaces exclude each other: name either")
    asked = _parsed(topics)
    spaces = pa.array({str(topic.namespace) for topic in asked}, pa.string())
    batches = cluster.lake.batches(
        cluster.parts(epoch.epoch_id, "managed_ledgers"), ["topic"], pc.field("namespace").isin(spaces)
    )
    stored = [Topic.parse(name) for batch in batches for name in batch.column("topic").to_pylist()]
    found = [topic for topic in stored if not asked.isdisjoint((topic, topic.partitioned_parent))]
    known = {*found, *(topic.partitioned_parent for topic in found)}
    if missing := sorted(str(topic) for topic in asked - known):
        raise UsageError(
            f"topics: {', '.join(missing)}: no such topic in scan {epoch.epoch_id}; scan again if it is new"
        )
    order: dict[str, int | None] = dict.fromkeys(sorted(map(str, found)))
    if upto:
        if len(order) != 1:
            raise UsageError(f"upto: a position is one of one topic, and {len(order)} are named: name one partition")
        (name,) = order
        order[name] = _ledger_of(cluster, epoch, name, upto)
    return order


def _parsed(topics: Collection[str]) -> set[Topic]:
    try:
        found = {Topic.parse(name) for name in topics}
    except CorruptFormat as error:
        raise UsageError(f"topics: {error}") from error
    if strange := sorted(str(topic) for topic in found if topic.domain != "persistent"):
        raise UsageError(f"topics: {', '.join(strange)}: only persistent topics have ledgers")
    return found


def _ledger_of(cluster: Cluster, epoch: Epoch, topic: str, upto: str) -> int:
    """The ledger of a position, which must be on the topic's list: a broker refuses any other, too."""
    try:
        ledger_id = MessagePosition.parse(upto).ledger_id
    except CorruptFormat as error:
        raise UsageError(f"upto: {error}") from error
    batches = cluster.lake.batches(
        cluster.parts(epoch.epoch_id, "managed_ledgers"), ["topic", "ledgers"], pc.field("topic") == topic
    )
    rows = [row for batch in batches for row in batch.to_pylist()]
    if ledger_id not in {item["ledger_id"] for row in rows for item in row["ledgers"] or ()}:
        raise UsageError(f"upto: {topic} has no ledger {ledger_id} in scan {epoch.epoch_id}")
    return ledger_id
