"""Which topics need a broker to free their data: the policies in force by now, over the newest scan.

Belongs here: the order of steps, storing table and plan. Not here: the rule (``lifecycle/load/load_rules.py``), loading
topics. Loads no topic, and writes nothing to the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.lifecycle.held.open_sizes import open_sizes_of
from pulsar_lifecycle.lifecycle.load.going_subscriptions import Inactive
from pulsar_lifecycle.lifecycle.load.ledgers_once_loaded import TopicTables
from pulsar_lifecycle.lifecycle.load.load_rules import LoadChoice, last_of, topics_to_load
from pulsar_lifecycle.lifecycle.load.monitors import BROKER_NAMES, Monitors, monitors_in_force
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.lifecycle.retention_inputs import NAMED_POSITIONS, policy_columns
from pulsar_lifecycle.lifecycle.retention_tables import CursorPositions, RetentionTables, namespaces_of
from pulsar_lifecycle.lifecycle.unused_subscriptions import chosen, planned_inactive, staying_somewhere
from pulsar_lifecycle.ports import Connect
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics.retention_now import policies_now
from pulsar_lifecycle.topics.retention_policy import policies_in_force
from pulsar_lifecycle.topics.system_topics.function_subscriptions import FunctionSubscriptions, function_subscriptions
from pulsar_lifecycle.topics.topic_run import owners_rules, partitioned_shadows
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.plans import load_plan
from pulsar_lifecycle.values.plans.load_plan import TOPICS_TO_LOAD
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary, summary_of

TABLE = "topics_to_load"
POSITIONS_TABLE = "idle_cursor_positions"
_NO_FUNCTIONS = FunctionSubscriptions()


def choice_of(settings: Settings, functions: FunctionSubscriptions) -> LoadChoice:
    """The settings' word on which topics may be loaded, and the function workers' on which subscriptions never go."""
    load = settings.load
    return LoadChoice(
        frozenset(load.namespaces),
        frozenset(load.subscription_expiry),
        frozenset(load.topic_deletion),
        frozenset(load.backlog_eviction),
        frozenset(load.compaction),
        functions.names.union(settings.inactivity.kept_subscriptions),
        load.min_bytes,
    )


def functions_now(cluster: Cluster) -> FunctionSubscriptions:
    """By which names functions subscribe; nobody looks where the settings let no load delete one, or its topic."""
    load = cluster.settings.load
    may_go = load.subscription_expiry or load.inactive_subscriptions or load.topic_deletion
    return function_subscriptions(cluster) if may_go else _NO_FUNCTIONS


def make_load_plan(cluster: Cluster, epoch: Epoch) -> tuple[PlanSummary, pa.Table]:
    """Judge every topic of a closed epoch by the policies in force now; store table ``topics_to_load`` and the plan.

    Returns the plan and its rows: the topics that are to be loaded. Raises what the cluster's servers raise.
    """
    now, lake, epoch_id = cluster.clock.now_ms(), cluster.lake, epoch.epoch_id
    gaps = evidence.gaps_of(cluster, epoch)
    parts = cluster.parts(epoch_id, "managed_ledgers")
    layers, differing = policies_now(cluster, namespaces_of(lake, parts), BROKER_NAMES)
    gaps += [Gap(GapCode.POLICIES_UNKNOWN, "", problem) for problem in differing]
    topics, cursors = cluster.parts(epoch_id, "topics"), cluster.parts(epoch_id, "managed_cursors")
    share = share_of(cluster.tasks, cluster.settings)
    reading = CursorPositions(share, lake, cluster.connect, topics, idle=True, named=True)
    cluster.store(epoch_id, POSITIONS_TABLE, NAMED_POSITIONS, reading.rows, cursors)
    tables = RetentionTables(
        lake,
        policies_in_force(layers),
        owners_rules(cluster, epoch, now),
        partitioned_shadows(cluster),
        topics,
        cluster.parts(epoch_id, POSITIONS_TABLE),
        cluster.parts(epoch_id, "bookkeeper_ledgers"),
    )
    unused = planned_inactive(cluster, epoch_id)
    inactive = Inactive(chosen(cluster.settings, unused))
    functions = functions_now(cluster)
    if functions.unknown:
        gaps.append(Gap(GapCode.POLICIES_UNKNOWN, "inactivity.functions_metadata", functions.unknown))
    choice = choice_of(cluster.settings, functions)
    while True:
        judging = _Judging(share, cluster.connect, tables, monitors_in_force(layers), choice, now, inactive)
        cluster.store(epoch_id, TABLE, TOPICS_TO_LOAD, judging.rows, parts)
        going = lake.batches(cluster.parts(epoch_id, TABLE), TOPICS_TO_LOAD.names, pc.field("kept").is_null())
        rows = plans.by_id(pa.Table.from_batches(list(going), TOPICS_TO_LOAD))
        apart = staying_somewhere(rows.to_pylist() if unused else (), unused)
        if not apart:
            break
        inactive = replace(inactive, staying=inactive.staying | apart)
    token = cluster.ids.token(plans.TOKEN_BYTES)
    summary = summary_of(PlanKind.LOAD, token, epoch, gaps, now, rows, load_plan.digest, physical="physical_bytes")
    lake.store_load_plan(summary, rows)
    return summary, rows


def run_config(summary: PlanSummary) -> dict[str, Any]:
    """The run configuration with which Dagster's job ``load_topics`` applies a plan under the settings' caps."""
    config = {"plan_id": summary.plan_id, "digest": summary.digest, "dry_run": True}
    return {"ops": {"load": {"config": config}}}


@dataclass(frozen=True)
class _Judging:
    """The topics in one file that need a broker; runs in a task."""

    settings: Settings
    connect: Connect
    tables: RetentionTables
    monitors: Monitors
    choice: LoadChoice
    now: int
    inactive: Inactive

    def rows(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of :data:`TOPICS_TO_LOAD`."""
        listed, inputs, ledgers = self.tables.of(part)
        owner = pc.field("managed_ledger")
        own = owner.isin(whole(listed.column("managed_ledger"))) | owner.is_null()
        found = self.tables.lake.batches(self.tables.positions, NAMED_POSITIONS.names, own)
        cursors = pa.Table.from_batches(found, NAMED_POSITIONS)
        *_, level = policy_columns(listed, self.tables.policies)
        idle = self.tables.idle()
        opened = open_sizes_of(self.connect, self.settings, last_of(listed, idle, self.choice))
        inputs = self.tables.with_asked_cursors(inputs)
        seen = TopicTables(listed, inputs, ledgers, cursors, idle, opened, level, self.tables.copies)
        yield from topics_to_load(seen, self.monitors, self.choice, self.now, self.inactive).to_batches()
