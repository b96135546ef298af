# pyright: reportAttributeAccessIssue=false, reportMissingTypeStubs=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownParameterType=false, reportUnknownVariableType=false
# pyarrow has no types.
"""Which ledgers of unloaded topics are past their retention: the policies in force by now, over the newest scan.

Belongs here: gathering what the rule needs, spreading it, storing table and plan. Not here: the rule
(``lifecycle/retention.py``), where its numbers come from (``lifecycle/retention_inputs.py``), taking ledgers off their
topics (``trimming/retention_run.py``). Writes nothing to the cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.io.connect import Connect
from pulsar_lifecycle.lifecycle.retention import judge, whole
from pulsar_lifecycle.lifecycle.retention_inputs import (
    POSITIONS,
    asked_of_bookkeeper,
    persisted_positions,
    policy_columns,
    retention_topics,
)
from pulsar_lifecycle.lifecycle.verdicts import GONE
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.records import plans
from pulsar_lifecycle.records.epoch import Epoch
from pulsar_lifecycle.records.findings import Context
from pulsar_lifecycle.records.gaps import Gap, GapCode
from pulsar_lifecycle.records.plans import retention_plan
from pulsar_lifecycle.records.plans.deletion_plan import PlanSummary
from pulsar_lifecycle.records.plans.retention_plan import EXPIRED_LEDGERS
from pulsar_lifecycle.records.tables import BOOKKEEPER_LEDGERS, MANAGED_CURSORS, MANAGED_LEDGERS
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.retention_now import retention_now
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy
from pulsar_lifecycle.topics.topic_run import owners_rules

TABLE = "expired_ledgers"
KIND = "retention"
"""How the id of a plan begins."""
POSITIONS_TABLE = "cursor_positions"

_OF_TOPIC = ("managed_ledger", "topic", "namespace", "ledgers", "terminated", "shadow_source", "path", "problem")
_OF_CURSOR = (
    *("managed_ledger", "cursors_ledger_id", "mark_delete_ledger_id", "mark_delete_entry_id"),
    *("path", "problem"),
)
_OF_LEDGER = ("ledger_id", "state", "entries", "length", "mtime", "problem")


def make_retention_plan(cluster: Cluster, epoch: Epoch) -> tuple[PlanSummary, pa.Table]:
    """Judge every ledger of a closed epoch by the retention in force now; store table ``expired_ledgers`` and the plan.

    Returns the plan and its rows: what is past its retention and kept by nothing. Raises what the cluster's servers
    raise.
    """
    now, lake = cluster.clock.now_ms(), cluster.lake
    gaps = evidence.gaps_of(cluster, epoch)
    parts = cluster.parts(epoch.epoch_id, "managed_ledgers")
    named = lake.batches(parts, ["namespace"], pc.field("problem").is_null())
    namespaces = {name for batch in named for name in batch.column("namespace").unique().to_pylist()}
    in_force = retention_now(cluster, namespaces)
    gaps += [Gap(GapCode.POLICIES_UNKNOWN, "", problem) for problem in in_force.problems]
    topics = cluster.parts(epoch.epoch_id, "topics")
    reading = _Positions(share_of(cluster.tasks, cluster.settings), lake, topics, cluster.connect)
    cursors = cluster.parts(epoch.epoch_id, "managed_cursors")
    cluster.store(epoch.epoch_id, POSITIONS_TABLE, POSITIONS, reading.rows, cursors)
    judging = _Judging(
        lake,
        in_force.policies,
        owners_rules(cluster, epoch, now),
        topics,
        cluster.parts(epoch.epoch_id, POSITIONS_TABLE),
        cluster.parts(epoch.epoch_id, "bookkeeper_ledgers"),
        now,
    )
    cluster.store(epoch.epoch_id, TABLE, EXPIRED_LEDGERS, judging.rows, parts)
    going = lake.batches(cluster.parts(epoch.epoch_id, TABLE), EXPIRED_LEDGERS.names, pc.field("kept").is_null())
    rows = plans.by_id(pa.Table.from_batches(list(going), EXPIRED_LEDGERS))
    size = int(pc.sum(rows.column("bytes")).as_py() or 0)
    summary = PlanSummary(
        plan_id=f"{KIND}-{epoch.epoch_id}-{cluster.ids.token(2)}",
        cluster=epoch.cluster,
        fingerprint=epoch.fingerprint,
        epoch_id=epoch.epoch_id,
        confirmed_by="",
        created_at=now,
        actionable=not gaps,
        gaps=tuple(gaps),
        ledgers=rows.num_rows,
        logical_bytes=size,
        physical_bytes=size,
        cluster_ledgers=next(c for c in epoch.census if c.table == "bookkeeper_ledgers").listed,
        digest="",
    )
    summary = replace(summary, digest=retention_plan.digest(rows, summary.to_json()))
    lake.store_retention_plan(summary, rows)
    return summary, rows


def run_config(summary: PlanSummary) -> dict[str, Any]:
    """The run configuration with which Dagster's job ``apply_retention`` applies a plan under the settings' caps."""
    config = {"plan_id": summary.plan_id, "digest": summary.digest, "dry_run": True}
    return {"ops": {"trim_expired": {"config": config}}}


def _unloaded(lake: Lake, topics: Sequence[str], column: str) -> pa.Array:
    """Of every topic that the scan counted as unloaded."""
    found = lake.batches(topics, [column], pc.field("load_state") == "unloaded")
    return pa.concat_arrays([pa.array([], pa.string()), *(batch.column(column) for batch in found)])


@dataclass(frozen=True)
class _Positions:
    """Where the cursors of unloaded topics stand, of those in one file; runs in a task.

    Those of other topics are not asked for: nothing of these goes.
    """

    settings: Settings
    lake: Lake
    topics: Sequence[str]
    connect: Connect

    def rows(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of :data:`POSITIONS`."""
        unloaded = _unloaded(self.lake, self.topics, "managed_ledger")
        schema = pa.schema([MANAGED_CURSORS.field(name) for name in _OF_CURSOR])
        with self.connect(self.settings, read_only=True) as ports:
            for batch in self.lake.batches([part], _OF_CURSOR):
                owner = batch.column("managed_ledger")
                wanted = pc.or_(owner.is_null(), pc.is_in(owner, unloaded))
                cursors = pa.Table.from_batches([batch.filter(wanted)], schema)
                root = self.settings.bookkeeper.ledgers_root
                yield from persisted_positions(ports.store, ports.reader, cursors, root).to_batches()


@dataclass(frozen=True)
class _Judging:
    """The expired ledgers of the topics in one file; runs in a task."""

    lake: Lake
    policies: InForce[RetentionPolicy | None]
    context: Context
    topics: Sequence[str]
    positions: Sequence[str]
    ledgers: Sequence[str]
    now: int

    def rows(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of :data:`EXPIRED_LEDGERS`."""
        listed = self._table([part], MANAGED_LEDGERS, _OF_TOPIC, pc.field("problem").is_null())
        unloaded = _unloaded(self.lake, self.topics, "managed_ledger")
        loaded = listed.filter(pc.invert(pc.is_in(listed.column("managed_ledger"), unloaded))).column("topic")
        own = pc.field("path").isin(whole(listed.column("path"))) | pc.field("ledger_id").is_null()
        positions = self._table(self.positions, POSITIONS, POSITIONS.names, own | pc.field("entry_id").is_null())
        asked = pc.field("ledger_id").isin(asked_of_bookkeeper(listed))
        ledgers = self._table(self.ledgers, BOOKKEEPER_LEDGERS, _OF_LEDGER, asked)
        inputs = retention_topics(listed, positions, ledgers, self.policies, self.context, loaded.to_pylist())
        yield from expired(judge(inputs, self.now), listed, self.policies).to_batches()

    def _table(self, parts: Sequence[str], schema: pa.Schema, names: Sequence[str], where: Any) -> pa.Table:
        some = pa.schema([schema.field(name) for name in names])
        return pa.Table.from_batches(list(self.lake.batches(parts, names, where)), some)


def expired(verdicts: pa.Table, topics: pa.Table, policies: InForce[RetentionPolicy | None]) -> pa.Table:
    """Rows of :data:`EXPIRED_LEDGERS`, of ``verdicts`` on the ledgers of ``topics`` (``tables.MANAGED_LEDGERS``)."""
    rows = verdicts.filter(verdicts.column("expired_by").is_valid())
    row = whole(rows.column("managed_ledger")).indices
    verdict = rows.column("verdict").cast(pa.string())
    goes = pc.is_in(verdict, pa.array(sorted(GONE), pa.string()))
    minutes, mb, level = (column.take(row) for column in policy_columns(topics, policies))
    columns = [
        rows.column("ledger_id"),
        whole(topics.column("topic")).take(row),
        whole(topics.column("namespace")).take(row),
        rows.column("size").fill_null(0),
        rows.column("expired_by").cast(pa.string()),
        rows.column("expires_at"),
        minutes,
        mb,
        level,
        pc.if_else(goes, pa.scalar(None, pa.string()), verdict),
    ]
    return pa.table(columns, schema=EXPIRED_LEDGERS)
