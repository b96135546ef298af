"""PIP-195's five metrics by their names, from what is stored: the newest checked scan, and the journal.

Belongs here: what counts for what. Not here: writing the file (``prometheus.py``). Brokers have metrics of the same
names, of what they have in memory and do; these are of a whole cluster, with topics that no broker has loaded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from prometheus_client.core import GaugeMetricFamily, Metric

from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.journal.effects import Changed
from pulsar_lifecycle.journal.queries import filed_since
from pulsar_lifecycle.ports import JournalReader, Lake
from pulsar_lifecycle.values.outcomes import Action, Outcome

PREFIX = "pulsar_delayed_message_index"
BOUNDS_MS = (50, 100, 500, 1000, 5000, 30000, 60000)
"""Upper bounds of the latencies' label ``quantile``, inclusive; what is above is ``overflow``."""
DAY_MS = 86_400_000
_FAILED = (Outcome.REMOVED, Outcome.NOTHING, Outcome.LEFT)


def index_metrics(lake: Lake, journal: JournalReader, tallies: pa.Table, cluster: str, now: int) -> list[Metric]:
    """The metrics of a cluster at ``now`` (ms); those of buckets are missing until a scan was checked."""
    return [*_of_buckets(lake, cluster), _operations(tallies, cluster), _latencies(journal, cluster, now)]


def _of_buckets(lake: Lake, cluster: str) -> Iterator[Metric]:
    buckets = messages = size = 0
    for epoch in reversed(lake.epochs(cluster=cluster)):
        try:
            parts = lake.parts(epoch.epoch_id, Changed.DELAYED_INDEX.value)
        except NotFound:
            continue
        if parts:
            break
    else:
        return
    for batch in lake.batches(parts, ["bytes", "messages", "segments"]):
        buckets += batch.num_rows
        size += pc.sum(batch.column("bytes")).as_py() or 0
        for count, segments in zip(*(batch.column(n).to_pylist() for n in ("messages", "segments")), strict=True):
            messages += -(-count // segments) if segments else 0
    yield _gauge("bucket_total", "Buckets that cursors name.", cluster, buckets)
    yield _gauge("loaded", "Indexes that brokers hold at least, if all topics are loaded.", cluster, messages)
    yield _gauge("bucket_snapshot_size_bytes", "Bytes of the buckets' snapshots.", cluster, size)


def _operations(tallies: pa.Table, cluster: str) -> Metric:
    found = GaugeMetricFamily(
        f"{PREFIX}_bucket_op_count", "Snapshots that our repairs wrote or removed.", labels=["cluster", "type", "state"]
    )
    mine = tallies.filter(
        pc.and_(pc.equal(tallies.column("cluster"), cluster), pc.equal(tallies.column("action"), Action.WRITE_SNAPSHOT))
    )
    counts: Counter[str] = Counter()
    for row in mine.to_pylist():
        counts[row["outcome"]] += row["rows"]
    removed = counts[Outcome.REMOVED]
    states = {
        "create": (counts[Outcome.BEGUN], counts[Outcome.DONE], sum(counts[one] for one in _FAILED)),
        "delete": (removed, removed, 0),
    }
    for kind, numbers in states.items():
        for state, number in zip(("all", "succeed", "failed"), numbers, strict=True):
            found.add_metric([cluster, kind, state], number)
    return found


def _latencies(journal: JournalReader, cluster: str, now: int) -> Metric:
    found = GaugeMetricFamily(
        f"{PREFIX}_bucket_op_latency_ms",
        "Snapshots that repairs of the last day wrote, by how long it took until a cursor named them.",
        labels=["cluster", "type", "quantile"],
    )
    mine = (pc.field("cluster") == cluster) & (pc.field("action") == Action.WRITE_SNAPSHOT.value)
    rows = journal.find(mine & filed_since(now - DAY_MS), ["ledger_id", "outcome", "at"]).to_pylist()
    begun = {row["ledger_id"]: row["at"] for row in rows if row["outcome"] == Outcome.BEGUN}
    named = {row["ledger_id"]: row["at"] for row in rows if row["outcome"] == Outcome.DONE}
    labels = [*map(str, BOUNDS_MS), "overflow"]
    counts = Counter(labels[bisect_left(BOUNDS_MS, named[one] - begun[one])] for one in begun.keys() & named.keys())
    for label in labels:
        found.add_metric([cluster, "create", label], counts[label])
    return found


def _gauge(name: str, text: str, cluster: str, value: int) -> Metric:
    found = GaugeMetricFamily(f"{PREFIX}_{name}", text, labels=["cluster"])
    found.add_metric([cluster], value)
    return found
