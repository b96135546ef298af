"""A load plan: topics whose data only a broker that loads them can free, and what keeps some of them from that.

Belongs here: rows and digest; the summary is a ``PlanSummary``, whose ``ledgers`` count topics. Not here: the rule
(``lifecycle/load/load_rules.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values import plans

TOPICS_TO_LOAD = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("needs", pa.list_(pa.string())),
        pa.field("monitors", pa.list_(pa.string())),
        pa.field("bytes", pa.int64()),
        pa.field("bytes_at_once", pa.int64()),
        pa.field("physical_bytes", pa.int64()),
        pa.field("trims", pa.list_(pa.int64())),
        pa.field("may_trim", pa.list_(pa.int64())),
        pa.field("weights", pa.list_(pa.int64())),
        pa.field("second_visit_at", pa.int64()),
        pa.field("retention_minutes", pa.int64()),
        pa.field("retention_mb", pa.int64()),
        pa.field("level", pa.string()),
        pa.field("ttl_seconds", pa.int64()),
        pa.field("expiry_minutes", pa.int64()),
        pa.field("expired_subscriptions", pa.list_(pa.string())),
        pa.field("inactive_subscriptions", pa.list_(pa.string())),
        pa.field("inactive_czxids", pa.list_(pa.int64())),
        pa.field("durable_cursors", pa.int32()),
        pa.field("slowest_ledger_id", pa.int64()),
        pa.field("slowest_entry_id", pa.int64()),
        pa.field("kept", pa.string()),
    ]
)
"""One row per topic that needs a broker. ``ledger_id``: its last ledger, which tells the topic's rows apart. ``needs``:
``LoadNeed`` codes; ``monitors``: ``LoadKept`` and ``LoadLoss`` codes of what the broker would do besides. ``bytes``:
what goes sooner or later and cannot go by metadata now; ``bytes_at_once``: of these, what the broker trims during the
load; ``physical_bytes``: what the replicas of all of it take on the bookies' disks, 0 where BookKeeper does not say.
``trims``: every ledger that its broker takes off its list, by the rule, whether or not it could go by metadata.
``may_trim``: these, and one more where it was closed within the TTL, but its messages may all be older.
``weights``: what each of these, and each that goes later, counts for in caps (bytes). ``second_visit_at`` (ms): when
the rest is past its retention again, had it been loaded when the plan was made; null without a rest.
``expired_subscriptions``: those that are deleted meanwhile, as nobody has used them for ``expiry_minutes``, and
``inactive_subscriptions``: those that a plan of inactive ones lets go; all of the above is as if none of them existed.
``inactive_czxids``: of the z-nodes of these, in their order: one that is made again under its name has another.
These, ``retention_*``, ``ttl_seconds``, ``durable_cursors`` and ``slowest_*``: what must be so still when the plan is
applied; ``ledger_id`` says that nobody has loaded the topic since the scan. ``kept``: the ``LoadKept``, ``LoadLoss``,
``RetentionVerdict`` or ``Protection`` by which it is left alone; null for what is loaded. A plan's rows are those with
null."""

SUBSCRIPTIONS = ("expired_subscriptions", "inactive_subscriptions")
"""Columns that name what a visit deletes."""
_FACTS = ("plan_id", "cluster", "fingerprint", "epoch_id", "created_at", "actionable", "cluster_ledgers")


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the id-sorted canonical rows and the facts that make the plan actionable."""
    return plans.digest(rows.select(TOPICS_TO_LOAD.names), {name: summary[name] for name in _FACTS})


def as_capped(rows: pa.Table) -> pa.Table:
    """Rows as caps count them: one for each ledger that leaves a topic's list, sooner or later.

    And one without bytes for each subscription that is deleted.
    """
    return pa.concat_tables([_each(rows, name) for name in ("weights", *SUBSCRIPTIONS)])


def _each(rows: pa.Table, name: str) -> pa.Table:
    """The topic of each item of a column of lists, and what the item weighs (bytes)."""
    lists = rows.column(name).combine_chunks()
    topics, items = rows.column("topic").take(pc.list_parent_indices(lists)), lists.flatten()
    weights = items if name == "weights" else pa.array([0] * len(items), pa.int64())
    return pa.table({"topic": topics, "physical_bytes": weights})


def leaving(row: Mapping[str, Any]) -> list[str]:
    """The subscriptions that a visit of a row deletes."""
    return [one for name in SUBSCRIPTIONS for one in row[name]]


def inactive(row: Mapping[str, Any]) -> dict[str, int]:
    """The inactive subscriptions of these by name, with the czxids of their z-nodes."""
    return dict(zip(row["inactive_subscriptions"], row["inactive_czxids"], strict=True))


def weighed(rows: Mapping[Topic, Mapping[str, Any]], weights: Mapping[Topic, Sequence[int]]) -> pa.Table:
    """:func:`as_capped` of rows by topic, where those of ``weights`` weigh something else by now."""
    own = {topic: [*weights.get(topic, row["weights"]), *(0 for _ in leaving(row))] for topic, row in rows.items()}
    pairs = [(str(topic), weight) for topic, some in own.items() for weight in some]
    columns = (pa.array([topic for topic, _ in pairs], pa.string()), pa.array([size for _, size in pairs], pa.int64()))
    return pa.table(dict(zip(("topic", "physical_bytes"), columns, strict=True)))
