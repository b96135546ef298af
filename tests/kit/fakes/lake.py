"""Epochs and plans in memory; batches of tables pass the contract of tests/unit/io/lake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import CorruptFormat, NotFound
from pulsar_lifecycle.values.epoch import Census, Epoch, forgotten
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.known_words import KnownWord
from pulsar_lifecycle.values.offload_uuids import OffloadUuids
from pulsar_lifecycle.values.plans.offload_plan import OffloadPlan
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.store_history import StoreCounters
from pulsar_lifecycle.words import WordKind
from tests.kit.fakes.tables import Tables


@dataclass
class FakeEpoch:
    """One scan as far as it got."""

    epoch_id: str
    started_at: int
    run_id: str
    counters: StoreCounters | None = None
    census: dict[tuple[str, str], Census] = field(default_factory=dict[tuple[str, str], Census])
    tables: dict[str, list[pa.Table]] = field(default_factory=dict[str, list[pa.Table]])
    """The parts of each table."""
    uuids: OffloadUuids | None = None
    closed: tuple[Epoch, Referenced, Context] | None = None
    begun: bool = False


@dataclass(frozen=True)
class _Aside:
    """Which scans of a cluster were set aside, by whom and why."""

    until: int = -1
    scans: frozenset[str] = frozenset()
    reason: str = ""
    by: str = ""


class FakeLake:
    """What ``io.lake.artefacts.FileLake`` keeps in files; a part's name is ``EPOCH/TABLE/NUMBER``."""

    location = "/fake"

    def __init__(self) -> None:
        self.begun: dict[str, FakeEpoch] = {}
        self._aside: dict[str, _Aside] = {}
        self.kept_words: dict[str, list[KnownWord]] = {}
        self.kept_plans: dict[str, tuple[PlanSummary, pa.Table]] = {}
        self.offload_plans_kept: dict[str, tuple[OffloadPlan, pa.Table]] = {}
        self.delete_records_plans_kept: dict[str, tuple[PlanSummary, pa.Table]] = {}
        self.object_plans_kept: dict[str, tuple[PlanSummary, pa.Table]] = {}
        self.collection_plans_kept: dict[str, tuple[PlanSummary, pa.Table]] = {}
        self.inactive_plans_kept: dict[str, tuple[PlanSummary, pa.Table]] = {}
        self.retention_plans_kept: dict[str, tuple[PlanSummary, pa.Table]] = {}
        self.load_plans_kept: dict[str, tuple[PlanSummary, pa.Table]] = {}
        self.repair_plans_kept: dict[str, tuple[PlanSummary, pa.Table]] = {}
        self._unpublished: dict[str, pa.Table] = {}
        self._written = count()
        self._tables = Tables()

    def exists(self) -> bool:
        return True

    # -------------------------------------------------------------------------------------------------------- epochs

    def begin_epoch(self, epoch_id: str, started_at: int, run_id: str, counters: StoreCounters | None = None) -> None:
        one = self._one(epoch_id)
        one.started_at, one.run_id, one.counters, one.begun = started_at, run_id, counters, True

    def _one(self, epoch_id: str) -> FakeEpoch:
        return self.begun.setdefault(epoch_id, FakeEpoch(epoch_id, 0, ""))

    def open_epoch(self, run_id: str) -> tuple[str, int]:
        newest_first = sorted(self.begun.values(), key=lambda one: one.epoch_id, reverse=True)
        begun = [one for one in newest_first if one.begun]
        ahead = frozenset[str]().union(*(aside.scans for aside in self._aside.values()))
        newest = next((one for one in begun if one.epoch_id not in ahead), None)
        found = next((one for one in begun if run_id == one.run_id), newest)
        if found is None:
            raise NotFound("no scan has begun yet; materialize bookkeeper_ledgers first")
        return found.epoch_id, found.started_at

    def begun_by(self, epoch_id: str) -> str:
        return self._known(epoch_id).run_id

    def began_at(self, epoch_id: str) -> StoreCounters | None:
        return self._known(epoch_id).counters

    def finished(self, epoch_id: str) -> bool:
        return self._known(epoch_id).closed is not None

    def _known(self, epoch_id: str) -> FakeEpoch:
        return self.begun.get(epoch_id) or FakeEpoch(epoch_id, 0, "")

    def store_census(self, epoch_id: str, census: Census) -> None:
        self._one(epoch_id).census[census.table, census.root] = census

    def forget_census(self, epoch_id: str, table: str, root: str) -> None:
        self._one(epoch_id).census.pop((table, root), None)

    def census(self, epoch_id: str) -> list[Census]:
        return [one for _, one in sorted(self._known(epoch_id).census.items())]

    def store_epoch(self, epoch: Epoch, referenced: Referenced, context: Context) -> None:
        self._one(epoch.epoch_id).closed = epoch, referenced, context

    def _closed(self, epoch_id: str) -> tuple[Epoch, Referenced, Context]:
        one = self.begun.get(epoch_id)
        if one is None or one.closed is None:
            raise NotFound(f"epoch {epoch_id} is not kept")
        return one.closed

    def epoch(self, epoch_id: str) -> Epoch:
        epoch = self._closed(epoch_id)[0]
        if self._is_aside(epoch):
            raise NotFound(f"scan {epoch_id} was set aside by accept-restore")
        return epoch

    def referenced(self, epoch_id: str) -> Referenced:
        return self._closed(epoch_id)[1]

    def context(self, epoch_id: str) -> Context:
        return self._closed(epoch_id)[2]

    def store_offload_uuids(self, epoch_id: str, tables: Sequence[str]) -> None:
        for table in tables:
            self.parts(epoch_id, table)
        parts = [part for table in tables for part in self._one(epoch_id).tables[table]]
        self._one(epoch_id).uuids = OffloadUuids.collect(part.column("offload_uuids") for part in parts)

    def offload_uuids(self, epoch_id: str) -> OffloadUuids:
        found = self._known(epoch_id).uuids
        if found is None:
            raise NotFound(f"epoch {epoch_id} has no offload UUIDs")
        return found

    named_uuids = offload_uuids

    def epochs(self, fingerprint: str = "", cluster: str = "", *, set_aside: bool = False) -> list[Epoch]:
        closed = [one.closed[0] for one in self.begun.values() if one.closed]
        found = [e for e in closed if fingerprint in ("", e.fingerprint) and cluster in ("", e.cluster)]
        if self._aside and not set_aside:
            found = [e for e in found if not self._is_aside(e)]
        return sorted(found, key=lambda e: e.started_at)

    def _is_aside(self, epoch: Epoch) -> bool:
        aside = self._aside.get(epoch.cluster, _Aside())
        return epoch.started_at <= aside.until or epoch.epoch_id in aside.scans

    def finished_epochs(self) -> list[str]:
        """Ids of finished epochs, in the order in which they began by no clock."""
        return [one.epoch_id for one in self.begun.values() if one.closed]

    def set_scans_aside(self, cluster: str, now: int, reason: str, by: str = "") -> None:
        later = {e.epoch_id for e in self.epochs(cluster=cluster) if e.started_at > now}
        later |= {one.epoch_id for one in self.begun.values() if one.started_at > now and not one.closed}
        scans = self._aside.get(cluster, _Aside()).scans | later
        self._aside[cluster] = _Aside(now, frozenset(scans), reason, by)

    def set_aside_until(self, cluster: str) -> int:
        return self._aside.get(cluster, _Aside()).until

    def accepted_restore(self, cluster: str) -> KnownWord | None:
        aside = self._aside.get(cluster)
        if aside is None:
            return None
        return KnownWord(WordKind.ACCEPTED_RESTORE, cluster, aside.by, aside.reason, "", aside.until)

    def words(self, cluster: str) -> list[KnownWord]:
        return self.kept_words.get(cluster, [])

    def store_words(self, cluster: str, words: Sequence[KnownWord]) -> None:
        self.kept_words[cluster] = list(words)

    def prune(self, now: int) -> list[str]:
        began = {name: one.started_at for name, one in self.begun.items()}
        old = forgotten(began, self.epochs(), self.epochs(set_aside=True), now)
        for name in old:
            del self.begun[name]
        return old

    # -------------------------------------------------------------------------------------------------------- tables

    def epoch_table(self, epoch_id: str, table: str) -> str:
        return f"{self.location}/{epoch_id}/{table}"

    def write_part(self, epoch_id: str, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
        name = f"_{next(self._written)}"
        self._unpublished[name] = self._tables.whole([b for b in batches if b.num_rows], schema)
        return name

    def publish(self, epoch_id: str, table: str, names: Sequence[str]) -> None:
        self._one(epoch_id).tables[table] = [self._unpublished.pop(name) for name in names]

    def parts(self, epoch_id: str, table: str) -> list[str]:
        kept = self.begun[epoch_id].tables if epoch_id in self.begun else {}
        if table not in kept:
            raise NotFound(f"epoch {epoch_id} has no table {table}")
        return [f"{epoch_id}/{table}/{number}" for number in range(len(kept[table]))]

    def batches(self, parts: Iterable[str], columns: Sequence[str], where: Any = None) -> Iterator[pa.RecordBatch]:
        for part in parts:
            epoch_id, table, number = part.rsplit("/", 2)
            rows = self.begun[epoch_id].tables[table][int(number)]
            yield from self._tables.batches(rows, where, columns)

    def read_epoch_table(
        self, epoch_id: str, table: str, columns: list[str] | None = None, ledger_id: int | None = None
    ) -> pa.Table:
        self.parts(epoch_id, table)
        rows = pa.concat_tables(self.begun[epoch_id].tables[table])
        rows = rows if ledger_id is None else rows.filter(pc.field("ledger_id") == ledger_id)
        return rows if columns is None else rows.select(columns)

    def table(self, epoch_id: str, table: str) -> pa.Table:
        """A table of an epoch, whole."""
        return self.read_epoch_table(epoch_id, table)

    # --------------------------------------------------------------------------------------------------------- plans

    def store_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        self.kept_plans[summary.plan_id] = summary, rows
        return summary.plan_id

    def plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        return _kept(self.kept_plans, plan_id)

    def plans(self, since: int = 0) -> list[PlanSummary]:
        return _oldest_first(self.kept_plans, since)

    def broken_plans(self) -> list[CorruptFormat]:
        return []

    def plan_holds(self, plan_id: str, ledger_id: int) -> bool:
        return ledger_id in self.plan(plan_id)[1].column("ledger_id").to_pylist()

    def store_offload_plan(self, plan: OffloadPlan, rows: pa.Table) -> str:
        self.offload_plans_kept[plan.plan_id] = plan, rows
        return plan.plan_id

    def offload_plan(self, plan_id: str) -> tuple[OffloadPlan, pa.Table]:
        return _kept(self.offload_plans_kept, plan_id)

    def offload_plans(self, since: int = 0) -> list[OffloadPlan]:
        return _oldest_first(self.offload_plans_kept, since)

    def store_object_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        self.object_plans_kept[summary.plan_id] = summary, rows
        return summary.plan_id

    def object_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        return _kept(self.object_plans_kept, plan_id)

    def object_plans(self, since: int = 0) -> list[PlanSummary]:
        return _oldest_first(self.object_plans_kept, since)

    def store_collection_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        self.collection_plans_kept[summary.plan_id] = summary, rows
        return summary.plan_id

    def collection_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        return _kept(self.collection_plans_kept, plan_id)

    def collection_plans(self, since: int = 0) -> list[PlanSummary]:
        return _oldest_first(self.collection_plans_kept, since)

    def store_load_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        self.load_plans_kept[summary.plan_id] = summary, rows
        return f"{self.location}/load-plans/{summary.plan_id}"

    def load_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        return _kept(self.load_plans_kept, plan_id)

    def load_plans(self) -> list[PlanSummary]:
        return _oldest_first(self.load_plans_kept)

    def store_delete_records_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        self.delete_records_plans_kept[summary.plan_id] = summary, rows
        return f"{self.location}/delete-records-plans/{summary.plan_id}"

    def delete_records_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        return _kept(self.delete_records_plans_kept, plan_id)

    def delete_records_plans(self, since: int = 0) -> list[PlanSummary]:
        return _oldest_first(self.delete_records_plans_kept, since)

    def store_repair_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        self.repair_plans_kept[summary.plan_id] = summary, rows
        return f"{self.location}/repair-plans/{summary.plan_id}"

    def repair_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        return _kept(self.repair_plans_kept, plan_id)

    def repair_plans(self, since: int = 0) -> list[PlanSummary]:
        return _oldest_first(self.repair_plans_kept, since)

    def store_inactive_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        self.inactive_plans_kept[summary.plan_id] = summary, rows
        return f"{self.location}/inactive-plans/{summary.plan_id}"

    def inactive_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        return _kept(self.inactive_plans_kept, plan_id)

    def inactive_plans(self) -> list[PlanSummary]:
        return _oldest_first(self.inactive_plans_kept)

    def store_retention_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        self.retention_plans_kept[summary.plan_id] = summary, rows
        return f"{self.location}/retention-plans/{summary.plan_id}"

    def retention_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        return _kept(self.retention_plans_kept, plan_id)

    def retention_plans(self, since: int = 0) -> list[PlanSummary]:
        return _oldest_first(self.retention_plans_kept, since)


def _kept(plans: dict[str, tuple[Any, pa.Table]], plan_id: str) -> tuple[Any, pa.Table]:
    if plan_id not in plans:
        raise NotFound(f"there is no plan {plan_id!r}")
    return plans[plan_id]


def _oldest_first(plans: dict[str, tuple[Any, pa.Table]], since: int = 0) -> list[Any]:
    """Stored when they were made."""
    kept = (plan for plan, _ in plans.values() if plan.created_at >= since)
    return sorted(kept, key=lambda plan: (plan.created_at, plan.plan_id))
