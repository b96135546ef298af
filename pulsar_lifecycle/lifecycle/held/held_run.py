"""What topics hold that retention does not reach, as tables of an epoch: open ledgers, and backlogs.

Belongs here: the order of steps, asking bookies for what is in open ledgers, reading the tables again. Not here: the
rules (``open_ledgers.py``, ``backlog.py``). Needs the storage report of the epoch, which read all cursors' positions.
Loads no topic, recovers no ledger, and writes nothing to the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.lifecycle.held.backlog import SUBSCRIPTION_BACKLOG, backlogs
from pulsar_lifecycle.lifecycle.held.open_ledgers import (
    OPEN_LEDGERS,
    ROLLOVER_NAMES,
    Rollover,
    open_ledgers,
    with_causes,
    with_sizes,
)
from pulsar_lifecycle.lifecycle.held.open_sizes import AT_ONCE, open_sizes
from pulsar_lifecycle.lifecycle.load.going_subscriptions import expired_subscriptions
from pulsar_lifecycle.lifecycle.load.monitors import BROKER_NAMES, Monitors, by_topic, monitors_in_force
from pulsar_lifecycle.lifecycle.reasons import of_topics
from pulsar_lifecycle.lifecycle.retention import judge, whole
from pulsar_lifecycle.lifecycle.retention_inputs import NAMED_POSITIONS
from pulsar_lifecycle.lifecycle.retention_tables import (
    IDLE,
    RetentionTables,
    managed_ledgers_where,
    namespaces_of,
)
from pulsar_lifecycle.lifecycle.storage_run import POSITIONS_TABLE
from pulsar_lifecycle.ports import Connect, Lake
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.retention_now import policies_now
from pulsar_lifecycle.topics.retention_policy import policies_in_force
from pulsar_lifecycle.topics.snapshot import ShadowSources
from pulsar_lifecycle.topics.system_topics.function_subscriptions import FunctionSubscriptions, function_subscriptions
from pulsar_lifecycle.topics.topic_run import owners_rules, partitioned_shadows
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.topic_load import LoadState

OPEN_TABLE, BACKLOG_TABLE = "open_ledgers", "subscription_backlog"


def build_held(cluster: Cluster, epoch: Epoch) -> tuple[str, ...]:
    """Report on a closed epoch by the policies in force now; store both tables, over earlier ones of it.

    Returns why policies, settings or shadow topics are not known where they are not. Raises NotFound where no storage
    report was made of the epoch.
    """
    lake, epoch_id, now = cluster.lake, epoch.epoch_id, cluster.clock.now_ms()
    parts = cluster.parts(epoch_id, "managed_ledgers")
    said = _known(cluster, namespaces_of(lake, parts))
    tables = RetentionTables(
        lake,
        said.policies,
        owners_rules(cluster, epoch, now),
        said.shadows,
        cluster.parts(epoch_id, "topics"),
        cluster.parts(epoch_id, POSITIONS_TABLE),
        cluster.parts(epoch_id, "bookkeeper_ledgers"),
    )
    opened = _Opened(tables, share_of(cluster.tasks, cluster.settings), cluster.connect, said.rollover, now)
    cluster.store(epoch_id, OPEN_TABLE, OPEN_LEDGERS, opened.rows, parts)
    functions = FunctionSubscriptions()
    if said.monitors and any(said.monitors.expiry.values()):  # else nothing expires
        functions = function_subscriptions(cluster)
    kept = functions.names.union(cluster.settings.inactivity.kept_subscriptions)
    held = _Held(tables, cluster.parts(epoch_id, OPEN_TABLE), said.monitors, kept, now)
    cluster.store(epoch_id, BACKLOG_TABLE, SUBSCRIPTION_BACKLOG, held.rows, parts)
    return (*said.problems, *filter(None, [functions.unknown]))


def held_rows(lake: Lake, epoch_id: str, table: str) -> pa.Table:
    """A stored table, the most bytes first. Raises NotFound where there is none of this scan."""
    schema = OPEN_LEDGERS if table == OPEN_TABLE else SUBSCRIPTION_BACKLOG
    found = pa.Table.from_batches(lake.batches(lake.parts(epoch_id, table), schema.names), schema)
    return found.sort_by([("bytes", "descending"), ("topic", "ascending")])


def open_on_disk(lake: Lake, epoch_id: str, namespaces: Sequence[str] = ()) -> tuple[int, int, int]:
    """How many open ledgers a scan has, of how many no bookie said the size, and what the others have on disk (bytes).

    ``namespaces``: only those of these; empty: all. Three times 0 where the scan has no such table.
    """
    try:
        found = held_rows(lake, epoch_id, OPEN_TABLE)
    except NotFound:
        return 0, 0, 0
    if namespaces:
        found = found.filter(pc.is_in(found.column("namespace"), pa.array(namespaces, pa.string())))
    sizes = found.column("physical_bytes").drop_null()
    return len(found), len(found) - len(sizes), pc.sum(sizes).as_py() or 0


def newest_held(lake: Lake, cluster: str) -> Epoch:
    """The newest scan of a cluster with these tables. Raises NotFound where there is none."""
    for epoch in reversed(lake.epochs(cluster=cluster)):
        try:
            if lake.parts(epoch.epoch_id, BACKLOG_TABLE):
                return epoch
        except NotFound:
            continue
    raise NotFound("there is no report of backlogs yet: run the job scan, then report_storage")


@dataclass(frozen=True, slots=True)
class _Known:
    """What policies and brokers say. None: not known."""

    policies: InForce[Any]
    monitors: Monitors | None
    rollover: Rollover | None
    shadows: ShadowSources
    problems: tuple[str, ...]


def _known(cluster: Cluster, namespaces: set[str]) -> _Known:
    """What does not answer is left unknown: bookies with full disks stop brokers, too."""
    try:
        shadows, unread = partitioned_shadows(cluster), ()
    except LifecycleError as error:
        shadows, unread = ShadowSources(), (str(error),)
    try:
        layers, differing = policies_now(cluster, namespaces, BROKER_NAMES | ROLLOVER_NAMES)
    except LifecycleError as error:
        return _Known(InForce({}), None, None, shadows, (*unread, str(error)))
    monitors = None if differing else monitors_in_force(layers)
    problems = (*unread, *differing, *layers.undecodable.values())
    return _Known(policies_in_force(layers), monitors, Rollover.of(layers.brokers), shadows, problems)


@dataclass(frozen=True)
class _Opened:
    """The open ledgers of the topics in one file of ``managed_ledgers``; runs in a task."""

    tables: RetentionTables
    settings: Settings
    connect: Connect
    rollover: Rollover | None
    now: int

    def rows(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of :data:`OPEN_LEDGERS`."""
        listed, inputs, ledgers = self.tables.of(part)
        idle = managed_ledgers_where(self.tables.lake, self.tables.topics, IDLE)
        reasons = of_topics(judge(inputs, self.now), listed, inputs, ledgers, idle, self.now)
        found = open_ledgers(listed, inputs, reasons, ledgers, idle, self.now).to_pylist()
        with self.connect(self.settings, read_only=True) as ports:
            for start in range(0, len(found), AT_ONCE):
                some = found[start : start + AT_ONCE]
                root = self.settings.bookkeeper.ledgers_root
                asked = open_sizes(ports.store, ports.reader, root, [row["ledger_id"] for row in some]).to_pylist()
                sized = [{**row, **answer} for row, answer in zip(some, asked, strict=True)]
                rows = [with_causes(row, self.rollover) for row in sized if row.pop("open")]
                yield pa.RecordBatch.from_pylist(rows, OPEN_LEDGERS)


@dataclass(frozen=True)
class _Held:
    """The backlogs of the topics in one file of ``managed_ledgers``; runs in a task.

    ``opened``: files of ``OPEN_LEDGERS``; ``kept``: names of subscriptions that never go.
    """

    tables: RetentionTables
    opened: Sequence[str]
    monitors: Monitors | None
    kept: Collection[str]
    now: int

    def rows(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of :data:`SUBSCRIPTION_BACKLOG`."""
        lake, tables = self.tables.lake, self.tables
        listed, inputs, bookkeeper = tables.of(part)
        owners = whole(listed.column("managed_ledger"))
        own = pc.field("managed_ledger").isin(owners)
        cursors = pa.Table.from_batches(lake.batches(tables.positions, NAMED_POSITIONS.names, own), NAMED_POSITIONS)
        sizes = pa.Table.from_batches(lake.batches(self.opened, OPEN_LEDGERS.names, own), OPEN_LEDGERS)
        at_rest = (pc.field("load_state") != LoadState.LOADED) | IDLE
        unloaded = managed_ledgers_where(lake, tables.topics, at_rest)
        loaded = ~np.asarray(pc.is_in(owners, unloaded))
        ttl = by_topic(listed, self.monitors.ttl) if self.monitors else pa.nulls(listed.num_rows, pa.int64())
        ledgers = with_sizes(whole(inputs.column("ledgers")), sizes)
        gone = np.zeros(cursors.num_rows, bool)
        if self.monitors and any(self.monitors.expiry.values()):  # else nothing expires, and no table is read for it
            gone = expired_subscriptions(cursors, listed, bookkeeper, tables.idle(), self.monitors, self.kept, self.now)
        yield from backlogs(cursors, listed, ledgers, loaded, ttl, self.monitors, gone, self.now).to_batches()
