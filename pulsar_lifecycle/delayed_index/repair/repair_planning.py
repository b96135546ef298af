"""Which subscriptions' indexes need a repair, from the findings of a scan; the plan. Writes nothing to the cluster.

Belongs here: from stored tables to a stored plan. Not here: the rule (``levels.py``), applying it (``repair_run.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.delayed_index.broker_settings import BUCKET_FACTORY, DelayedIndexSettings
from pulsar_lifecycle.delayed_index.repair.levels import level_of
from pulsar_lifecycle.delayed_index.stored.check_run import BUCKETS, FINDINGS, chosen
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.delayed_index.stored.rows import WAITING
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.plans import delayed_index_plan
from pulsar_lifecycle.values.plans.delayed_index_plan import REPAIRS
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary, summary_of


def make_repair_plan(
    cluster: Cluster, epoch: Epoch, namespaces: Collection[str] | None = None
) -> tuple[PlanSummary, pa.Table]:
    """The plan of an epoch that was checked (``check_delayed_indexes``); NotFound where it was not. Stored.

    With ``namespaces`` of what was checked of them alone, and only of them: a plan by order, as that was every
    subscription, whatever ``delayed_index.whole_backlogs`` names.
    """
    now, lake, epoch_id = cluster.clock.now_ms(), cluster.lake, epoch.epoch_id
    settings = cluster.settings.delayed_index
    limits = [set(some) for some in (settings.namespaces, namespaces) if some]
    broker = DelayedIndexSettings.from_settings(settings.brokers)
    by_buckets = broker.delayed_delivery_tracker_factory_class_name == BUCKET_FACTORY
    findings, named_buckets = ((t if namespaces is None else chosen(t)) for t in (FINDINGS, BUCKETS))
    codes: dict[tuple[str, str], set[IndexFinding]] = defaultdict(set)
    waiting: dict[tuple[str, str], int] = {}
    for batch in lake.batches(cluster.parts(epoch_id, findings), ["topic", "subscription", "code", "messages"]):
        for row in batch.to_pylist():
            codes[row["topic"], row["subscription"]].add(IndexFinding(row["code"]))
            if row["code"] == IndexFinding.NO_BUCKETS:
                waiting[row["topic"], row["subscription"]] = row["messages"]
    buckets: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    buckets.update({key: [] for key in waiting})
    columns = ["topic", "subscription", "bucket_key", "ledger_id", "bytes", "messages", "state"]
    for batch in lake.batches(cluster.parts(epoch_id, named_buckets), columns):
        for row in batch.to_pylist():
            buckets[row["topic"], row["subscription"]].append(row)
    found: list[dict[str, Any]] = []
    for key, named in sorted(buckets.items()):
        namespace = Topic.parse(key[0]).namespace
        if any(str(namespace) not in some for some in limits):
            continue
        unread = IndexFinding.UNREAD in codes.get((key[0], ""), ())
        small = [row for row in named if row["state"] == WAITING and row["messages"] < settings.merge_below]
        level = None if unread else level_of(codes[key], len(small), settings.merge_above, read_by_brokers=by_buckets)
        if level is not None:
            found.append(
                {
                    "ledger_id": max((row["ledger_id"] for row in named), default=-1),
                    "topic": key[0],
                    "namespace": str(namespace),
                    "subscription": key[1],
                    "level": level.value,
                    "codes": sorted(code.value for code in codes[key]),
                    "buckets": sorted(f"{row['bucket_key']}={row['ledger_id']}" for row in named),
                    "messages": sum(row["messages"] for row in named) or waiting.get(key, 0),
                    "bytes": sum(row["bytes"] for row in named),
                }
            )
    rows = plans.by_id(pa.Table.from_pylist(found, REPAIRS))
    gaps = evidence.gaps_of(cluster, epoch)
    summary = summary_of(
        PlanKind.DELAYED_INDEX, cluster.ids.token(plans.TOKEN_BYTES), epoch, gaps, now, rows, delayed_index_plan.digest
    )
    summary = replace(summary, ordered=namespaces is not None)
    lake.store_repair_plan(summary, rows)
    return summary, rows


def run_config(summary: PlanSummary) -> dict[str, Any]:
    """The run configuration with which Dagster's job ``repair_delayed_index`` applies a plan."""
    config = {"plan_id": summary.plan_id, "digest": summary.digest, "dry_run": True}
    return {"ops": {"repair": {"config": config}}}
