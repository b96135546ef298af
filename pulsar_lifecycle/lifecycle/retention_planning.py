"""Which ledgers of unloaded topics are past their retention: the policies in force by now, over the newest scan.

Belongs here: the order of steps, storing table and plan. Not here: the rule (``lifecycle/retention.py``), what it reads
of a scan (``lifecycle/retention_tables.py``), taking ledgers off their topics (``trimming/retention_run.py``). Writes
nothing to the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.copies.listed_ledgers import kept_copies, on_disk
from pulsar_lifecycle.lifecycle.retention import judge, whole
from pulsar_lifecycle.lifecycle.retention_inputs import POSITIONS, policy_columns
from pulsar_lifecycle.lifecycle.retention_tables import CursorPositions, RetentionTables, namespaces_of
from pulsar_lifecycle.lifecycle.verdicts import GOING, RetentionVerdict
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_now import retention_now
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy
from pulsar_lifecycle.topics.topic_run import owners_rules, partitioned_shadows
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.plans import retention_plan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary, summary_of
from pulsar_lifecycle.values.plans.retention_plan import EXPIRED_LEDGERS

TABLE = "expired_ledgers"
POSITIONS_TABLE = "cursor_positions"


def make_retention_plan(
    cluster: Cluster, epoch: Epoch, step: Callable[[str], AbstractContextManager[object]] = nullcontext
) -> tuple[PlanSummary, pa.Table]:
    """Judge every ledger of a closed epoch by the retention in force now; store table ``expired_ledgers`` and the plan.

    Returns the plan and its rows: what is past its retention and kept by nothing. Each step is taken within ``step`` of
    its name. Raises what the cluster's servers raise.
    """
    now, lake = cluster.clock.now_ms(), cluster.lake
    gaps = evidence.gaps_of(cluster, epoch)
    parts = cluster.parts(epoch.epoch_id, "managed_ledgers")
    with step("policies"):
        in_force = retention_now(cluster, namespaces_of(lake, parts))
    gaps += [Gap(GapCode.POLICIES_UNKNOWN, "", problem) for problem in in_force.problems]
    topics = cluster.parts(epoch.epoch_id, "topics")
    with step(POSITIONS_TABLE):
        reading = CursorPositions(share_of(cluster.tasks, cluster.settings), lake, cluster.connect, topics)
        cursors = cluster.parts(epoch.epoch_id, "managed_cursors")
        cluster.store(epoch.epoch_id, POSITIONS_TABLE, POSITIONS, reading.rows, cursors)
    tables = RetentionTables(
        lake,
        in_force.policies,
        owners_rules(cluster, epoch, now),
        partitioned_shadows(cluster),
        topics,
        cluster.parts(epoch.epoch_id, POSITIONS_TABLE),
        cluster.parts(epoch.epoch_id, "bookkeeper_ledgers"),
    )
    with step(TABLE):
        cluster.store(epoch.epoch_id, TABLE, EXPIRED_LEDGERS, _Judging(tables, now).rows, parts)
    with step("retention_plan"):
        return _plan(cluster, epoch, gaps, now)


def _plan(cluster: Cluster, epoch: Epoch, gaps: Sequence[Gap], now: int) -> tuple[PlanSummary, pa.Table]:
    """Store the plan of the table ``expired_ledgers``."""
    parts = cluster.parts(epoch.epoch_id, TABLE)
    going = cluster.lake.batches(parts, EXPIRED_LEDGERS.names, pc.field("kept").is_null())
    rows = plans.by_id(pa.Table.from_batches(list(going), EXPIRED_LEDGERS))
    token = cluster.ids.token(plans.TOKEN_BYTES)
    summary = summary_of(
        PlanKind.RETENTION, token, epoch, gaps, now, rows, retention_plan.digest, physical="physical_bytes"
    )
    cluster.lake.store_retention_plan(summary, rows)
    return summary, rows


def run_config(summary: PlanSummary) -> dict[str, Any]:
    """The run configuration with which Dagster's job ``apply_retention`` applies a plan under the settings' caps."""
    config = {"plan_id": summary.plan_id, "digest": summary.digest, "dry_run": True}
    return {"ops": {"trim_expired": {"config": config}}}


@dataclass(frozen=True)
class _Judging:
    """The expired ledgers of the topics in one file; runs in a task."""

    tables: RetentionTables
    now: int

    def rows(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of :data:`EXPIRED_LEDGERS`."""
        tables = self.tables
        listed, inputs, _ = tables.of(part)
        verdicts = judge(inputs, self.now)
        past = whole(verdicts.column("ledger_id").filter(verdicts.column("expired_by").is_valid()))
        copies = tables.copies(whole(verdicts.column("ledger_id").filter(_shown(verdicts))))
        kept = kept_copies(listed, past, copies, tables.context)
        verdicts = judge(inputs, self.now, kept) if len(kept) else verdicts
        yield from expired(verdicts, listed, tables.policies, copies, tables.idle(), self.now).to_batches()


def expired(
    verdicts: pa.Table,
    topics: pa.Table,
    policies: InForce[RetentionPolicy | None],
    copies: pa.Table,
    idle: Any,
    now: int,
) -> pa.Table:
    """Rows of :data:`EXPIRED_LEDGERS`, of ``verdicts`` at ``now`` on ``topics``' ledgers (``tables.MANAGED_LEDGERS``).

    ``copies``: what BookKeeper has of them (``listed_ledgers.OF_COPY``). ``idle``: managed ledgers that no broker lists
    and whose last ledger is not closed; the rule counts their topics as loaded.
    """
    rows = verdicts.filter(_shown(verdicts))
    row = whole(rows.column("managed_ledger")).indices
    verdict = rows.column("verdict").cast(pa.string())
    goes = pc.is_in(verdict, pa.array(sorted(GOING), pa.string()))
    minutes, mb, level = (column.take(row) for column in policy_columns(topics, policies))
    died = pc.and_(pc.equal(verdict, str(Protection.LOADED)), pc.is_in(topics.column("managed_ledger"), idle).take(row))
    verdict = pc.if_else(died, str(Protection.LAST_LEDGER_OPEN), verdict)
    ends = rows.column("expires_at")
    columns = [
        rows.column("ledger_id"),
        whole(topics.column("topic")).take(row),
        whole(topics.column("namespace")).take(row),
        rows.column("size").fill_null(0),
        on_disk(rows.column("ledger_id"), copies),
        rows.column("expired_by").cast(pa.string()),
        pc.if_else(pc.less(ends, now), ends, pa.scalar(None, pa.int64())),
        minutes,
        mb,
        level,
        pc.if_else(goes, pa.scalar(None, pa.string()), verdict),
    ]
    return pa.table(columns, schema=EXPIRED_LEDGERS)


def _shown(verdicts: pa.Table) -> Any:
    """What is past its retention, and what may be: nobody would miss what no table has."""
    unknown = pa.array([str(RetentionVerdict.UNKNOWN_POLICY), str(RetentionVerdict.UNKNOWN_CURSOR)])
    doubtful = pc.is_in(verdicts.column("verdict").cast(pa.string()), unknown)
    return pc.or_(verdicts.column("expired_by").is_valid(), doubtful)
