"""Which subscriptions of one topic nobody uses, by the newest report: ``explain TOPIC``.

Belongs here: rows of that report which still say what is so. Not here: the rule (``inactive_rules.py``), what is said
of it (``inspect/cursor_holds.py``). Reads the lake alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.lifecycle.activity.activity_run import IDLE_CURSORS, newest_activity
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.plans.inactive_plan import INACTIVE_CURSORS, InactiveKept


@dataclass(frozen=True, slots=True)
class Unused:
    """A subscription that nobody has used ``since`` (ms), a whole ``inactivity.period`` at the least.

    ``kept``: what keeps it from a plan; None for nothing.
    """

    since: int
    kept: InactiveKept | Protection | None


def unused_subscriptions(cluster: Cluster, topic: Topic, cursors: pa.Table) -> Mapping[str, Unused]:
    """By name, those of ``cursors`` (``NAMED_POSITIONS`` with ``czxid``) that the newest report calls inactive.

    Not one that is another since, or stands elsewhere; none without a report.
    """
    try:
        epoch = newest_activity(cluster.lake, cluster.settings.cluster)
    except NotFound:
        return {}
    names = ("cursor", "czxid", "ledger_id", "entry_id", "cursors_ledger_id")
    now = {tuple(row) for row in zip(*(cursors.column(name).to_pylist() for name in names), strict=True)}
    parts, own = cluster.parts(epoch.epoch_id, IDLE_CURSORS), pc.field("topic") == str(topic)
    found: dict[str, Unused] = {}
    for batch in cluster.lake.batches(parts, INACTIVE_CURSORS.names, own):
        for row in batch.to_pylist():
            if tuple(row[name] for name in names) in now:
                found[row["cursor"]] = Unused(row["inactive_since"], _code(row["kept"]))
    return found


def _code(kept: str | None) -> InactiveKept | Protection | None:
    return next((code for codes in (InactiveKept, Protection) for code in codes if code == kept), None)
