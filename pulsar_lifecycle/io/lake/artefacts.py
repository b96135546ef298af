"""The lake: where epochs and plans are kept, as Parquet tables beside one JSON document each.

Belongs here: what is kept of epochs and plans, and for how long. Not here: files (``files``), journal and archive
(``journal``).
Layout: ``epochs/EPOCH/TABLE/*.parquet`` and ``epochs/EPOCH/epoch.json``; ``plans/PLAN/rows.parquet`` and
``plans/PLAN/plan.json``. A document is written last: what has none is unfinished and is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from pulsar_lifecycle.errors import CorruptFormat, NotFound, StoreError
from pulsar_lifecycle.io.lake.files import LakeFiles
from pulsar_lifecycle.values.epoch import Census, Epoch, census_from_json, forgotten
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.known_words import KnownWord
from pulsar_lifecycle.values.offload_uuids import OffloadUuids
from pulsar_lifecycle.values.plans import old_version
from pulsar_lifecycle.values.plans.offload_plan import OffloadPlan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.store_history import UNKNOWN, StoreCounters
from pulsar_lifecycle.words import WordKind

SET_ASIDE = "set-aside"
WORDS = "words"
_WORDS = TypeAdapter(list[KnownWord])

REFERENCED = "referenced.bin"
CONTEXT = "context.json"
OFFLOAD_UUIDS = "offload-uuids.bin"

P = TypeVar("P", PlanSummary, OffloadPlan)


class FileLake(LakeFiles):
    """Epochs and plans. Raises as :class:`LakeFiles` says."""

    # -------------------------------------------------------------------------------------------------------- epochs

    def begin_epoch(self, epoch_id: str, started_at: int, run_id: str, counters: StoreCounters | None = None) -> None:
        """Note that a scan started, ``started_at`` (ms), with the metadata store's counters at that moment."""
        self._write_document(
            f"epochs/{epoch_id}/started.json", asdict(_Started(epoch_id, started_at, run_id, counters))
        )

    def open_epoch(self, run_id: str) -> tuple[str, int]:
        """(epoch id, started at) of the scan that ``run_id`` began, else of the newest one. Raises NotFound.

        That is none of those that a clock dated ahead, and that were set aside: they would stay the newest for long.
        """
        ahead = frozenset[str]() if run_id else self._named_aside()
        for name in sorted(self._folders("epochs"), reverse=True):
            started = None if name in ahead else self._started(name)
            if started is not None and run_id in ("", started.run_id):
                return started.epoch_id, started.started_at
        if run_id:
            return self.open_epoch("")
        raise NotFound(f"{self.location}: no scan has begun yet; materialize bookkeeper_ledgers first")

    def begun_by(self, epoch_id: str) -> str:
        """The run that began an epoch."""
        started = self._started(epoch_id)
        return started.run_id if started else ""

    def began_at(self, epoch_id: str) -> StoreCounters | None:
        """The metadata store's counters when an epoch began; None where they were not noted."""
        started = self._started(epoch_id)
        return started.counters_at_begin if started else None

    def finished(self, epoch_id: str) -> bool:
        """Whether an epoch was closed with its coverage proof."""
        return self._document(f"epochs/{epoch_id}/epoch.json", Epoch.from_json) is not None

    def store_census(self, epoch_id: str, census: Census) -> None:
        """Keep the count of one table of one root."""
        self._write_document(f"epochs/{epoch_id}/census/{census.table}@{census.root}.json", asdict(census))

    def forget_census(self, epoch_id: str, table: str, root: str) -> None:
        """A table is about to be written again: until that has ended well, it counts as not read."""
        path = f"{self._root}/epochs/{epoch_id}/census/{table}@{root}.json"
        try:
            if self._filesystem.get_file_info(path).type is not pafs.FileType.NotFound:
                self._filesystem.delete_file(path)
        except OSError as error:
            raise StoreError(f"{path}: cannot be removed: {error}") from error

    def census(self, epoch_id: str) -> list[Census]:
        """Every count of an epoch."""
        folder = f"epochs/{epoch_id}/census"
        return [self._parsed(f"{folder}/{name}", census_from_json) for name in self._json_files(folder)]

    def epoch(self, epoch_id: str) -> Epoch:
        """A finished epoch. Raises NotFound, also for one that is set aside."""
        epoch = self._parsed(f"epochs/{epoch_id}/epoch.json", Epoch.from_json)
        if self._set_aside(epoch.cluster).holds(epoch):
            raise NotFound(f"scan {epoch_id} was set aside by accept-restore")
        return epoch

    def set_scans_aside(self, cluster: str, now: int, reason: str, by: str = "") -> None:
        """Let every scan of a cluster's name count as not made that began until ``now`` (ms), or by now.

        The latter may say that it began later, if a clock was wrong. Removes nothing.
        """
        scans = [e.epoch_id for e in self.epochs(cluster=cluster) if e.started_at > now]
        begun = [one for name in self._folders("epochs") if (one := self._started(name)) and one.started_at > now]
        scans += [one.epoch_id for one in begun if not self.finished(one.epoch_id)]  # whose they are, is not known yet
        document = {"until": now, "scans": [*self._set_aside(cluster).scans, *scans], "reason": reason, "by": by}
        self._write_document(f"{SET_ASIDE}/{cluster}.json", document)

    def set_aside_until(self, cluster: str) -> int:
        """Until when (ms) the scans of a cluster's name are set aside; -1 if none ever was."""
        return self._set_aside(cluster).until

    def accepted_restore(self, cluster: str) -> KnownWord | None:
        """Who set the scans of a cluster's name aside last, when and why; None if nobody ever did."""
        aside = self._set_aside(cluster)
        if aside.until < 0:
            return None
        return KnownWord(WordKind.ACCEPTED_RESTORE, cluster, aside.by, aside.reason, "", aside.until)

    def _named_aside(self) -> frozenset[str]:
        """The scans of all clusters that were set aside by their ids, whatever their dates."""
        clusters = [name.removesuffix(".json") for name in self._json_files(SET_ASIDE)]
        return frozenset(one for cluster in clusters for one in self._set_aside(cluster).scans)

    def _set_aside(self, cluster: str) -> _SetAside:
        found = self._document(f"{SET_ASIDE}/{cluster}.json", TypeAdapter(_SetAside).validate_python)
        return found or _SetAside(-1)

    def words(self, cluster: str) -> list[KnownWord]:
        """The operator's words as the last run met them."""
        return (
            self._document(f"{WORDS}/{cluster}.json", lambda document: _WORDS.validate_python(document["words"])) or []
        )

    def store_words(self, cluster: str, words: Sequence[KnownWord]) -> None:
        """Keep the operator's words as a run met them."""
        self._write_document(f"{WORDS}/{cluster}.json", {"words": [asdict(word) for word in words]})

    def store_epoch(self, epoch: Epoch, referenced: Referenced, context: Context) -> None:
        """Finish an epoch: referenced ids and the decisions' context first, its document last."""
        self._write_document(f"epochs/{epoch.epoch_id}/{CONTEXT}", context.to_json())
        self._write(f"epochs/{epoch.epoch_id}/{REFERENCED}", referenced.to_bytes())
        self._write_document(f"epochs/{epoch.epoch_id}/epoch.json", epoch.to_json())

    def referenced(self, epoch_id: str) -> Referenced:
        """The referenced ids of a finished epoch."""
        relative = f"epochs/{epoch_id}/{REFERENCED}"
        data = self._read(relative)
        try:
            return Referenced.from_bytes(data)
        except (ValueError, LookupError) as error:
            raise CorruptFormat(f"{self.location}/{relative}", 0, f"two bitmaps: {error}") from error

    def store_offload_uuids(self, epoch_id: str, tables: Sequence[str]) -> None:
        """Gather every offload UUID in an epoch's tables of topics (one per root) into one small file."""
        parts = [part for table in tables for part in self.parts(epoch_id, table)]
        named = self.batches(parts, ["offload_uuids"], pc.field("offload_uuids").is_valid())
        found = OffloadUuids.collect(batch.column("offload_uuids") for batch in named)
        self._write(f"epochs/{epoch_id}/{OFFLOAD_UUIDS}", found.to_bytes())

    def offload_uuids(self, epoch_id: str) -> OffloadUuids:
        """The offload UUIDs of a finished epoch. Raises NotFound for an epoch of an older version, CorruptFormat."""
        relative = f"epochs/{epoch_id}/{OFFLOAD_UUIDS}"
        if not isinstance(self._filesystem, pafs.LocalFileSystem):
            return OffloadUuids.from_buffer(memoryview(self._read(relative)))
        try:  # mapped: every worker of a machine shares one copy
            return OffloadUuids.from_buffer(np.memmap(f"{self._root}/{relative}", dtype=np.uint8, mode="r"))
        except FileNotFoundError:
            raise NotFound(f"{self.location}/{relative} does not exist") from None
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.location}/{relative}: cannot be read: {error}") from error

    def named_uuids(self, epoch_id: str) -> OffloadUuidsOf:
        """:meth:`offload_uuids`, read where and when they are first asked for."""
        return OffloadUuidsOf(self.location, epoch_id)

    def context(self, epoch_id: str) -> Context:
        """The context of a finished epoch's decisions."""
        return self._parsed(f"epochs/{epoch_id}/{CONTEXT}", Context.from_json)

    def epochs(self, fingerprint: str = "", cluster: str = "", *, set_aside: bool = False) -> list[Epoch]:
        """Finished epochs, covered or not, oldest first, without those set aside unless they are wanted, too.

        Of one metadata store if its fingerprint is given, of one cluster's name if that is.
        """
        found: list[Epoch] = []
        for name in self._folders("epochs"):
            epoch = self._document(f"epochs/{name}/epoch.json", Epoch.from_json)
            if epoch is not None:
                found.append(epoch)
        found = [e for e in found if fingerprint in ("", e.fingerprint) and cluster in ("", e.cluster)]
        aside = {name: self._set_aside(name) for name in {e.cluster for e in found}}
        return sorted((e for e in found if set_aside or not aside[e.cluster].holds(e)), key=lambda e: e.started_at)

    def prune(self, now: int) -> list[str]:
        """Remove the epochs of ``values.epoch.forgotten`` at ``now`` (ms); returns their ids, sorted."""
        began = {name: self._started_at(name) for name in self._folders("epochs")}
        old = forgotten(began, self.epochs(), self.epochs(set_aside=True), now)
        for name in old:
            self._filesystem.delete_dir(f"{self._root}/epochs/{name}")
        return old

    def _started_at(self, epoch_id: str) -> int:
        started = self._started(epoch_id)
        return started.started_at if started else 0

    def _started(self, epoch_id: str) -> _Started | None:
        return self._document(f"epochs/{epoch_id}/started.json", TypeAdapter(_Started).validate_python)

    # --------------------------------------------------------------------------------------------------------- plans

    def store_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan and return its location."""
        return self._store_plan(PlanKind.ORPHANS, summary, rows)

    def plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan with its rows, read from the files. Raises NotFound."""
        return self._plan(PlanKind.ORPHANS, plan_id, PlanSummary.from_json)

    def store_offload_plan(self, plan: OffloadPlan, rows: pa.Table) -> str:
        """Store an offload plan and return its location."""
        return self._store_plan(PlanKind.OFFLOAD, plan, rows)

    def offload_plan(self, plan_id: str) -> tuple[OffloadPlan, pa.Table]:
        """A stored offload plan with its rows, read from the files. Raises NotFound."""
        return self._plan(PlanKind.OFFLOAD, plan_id, OffloadPlan.from_json)

    def offload_plans(self, since: int = 0) -> list[OffloadPlan]:
        """Every offload plan that can be read, oldest first."""
        return self._readable(PlanKind.OFFLOAD, OffloadPlan.from_json, since)

    def store_object_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of what is to leave the buckets and return its location."""
        return self._store_plan(PlanKind.OBJECTS, summary, rows)

    def object_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_object_plan` with its rows, read from the files. Raises NotFound."""
        return self._plan(PlanKind.OBJECTS, plan_id, PlanSummary.from_json)

    def object_plans(self, since: int = 0) -> list[PlanSummary]:
        """Every plan of what is to leave the buckets that can be read, oldest first."""
        return self._readable(PlanKind.OBJECTS, PlanSummary.from_json, since)

    def store_collection_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of bookies to have collect and return its location."""
        return self._store_plan(PlanKind.COLLECTION, summary, rows)

    def collection_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_collection_plan` with its rows, read from the files. Raises NotFound."""
        return self._plan(PlanKind.COLLECTION, plan_id, PlanSummary.from_json)

    def collection_plans(self, since: int = 0) -> list[PlanSummary]:
        """Every plan of bookies to have collect that can be read, oldest first."""
        return self._readable(PlanKind.COLLECTION, PlanSummary.from_json, since)

    def store_retention_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of what is past its retention and return its location."""
        return self._store_plan(PlanKind.RETENTION, summary, rows)

    def retention_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_retention_plan` with its rows, read from the files. Raises NotFound."""
        return self._plan(PlanKind.RETENTION, plan_id, PlanSummary.from_json)

    def retention_plans(self, since: int = 0) -> list[PlanSummary]:
        """Every retention plan that can be read, oldest first."""
        return self._readable(PlanKind.RETENTION, PlanSummary.from_json, since)

    def store_load_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of topics to load and return its location."""
        return self._store_plan(PlanKind.LOAD, summary, rows)

    def load_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_load_plan` with its rows, read from the files. Raises NotFound."""
        return self._plan(PlanKind.LOAD, plan_id, PlanSummary.from_json)

    def load_plans(self) -> list[PlanSummary]:
        """Every load plan that can be read, oldest first."""
        return self._readable(PlanKind.LOAD, PlanSummary.from_json)

    def store_repair_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of repairs of delayed indexes and return its location."""
        return self._store_plan(PlanKind.DELAYED_INDEX, summary, rows)

    def repair_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_repair_plan` with its rows, read from the files. Raises NotFound."""
        return self._plan(PlanKind.DELAYED_INDEX, plan_id, PlanSummary.from_json)

    def repair_plans(self, since: int = 0) -> list[PlanSummary]:
        """Every plan of repairs that can be read, oldest first."""
        return self._readable(PlanKind.DELAYED_INDEX, PlanSummary.from_json, since)

    def store_inactive_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of inactive topics, or of inactive subscriptions, and return its location."""
        return self._store_plan(PlanKind.INACTIVE_TOPICS, summary, rows)

    def inactive_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_inactive_plan` with its rows, read from the files. Raises NotFound."""
        several = kind_of(plan_id) is PlanKind.INACTIVE_SUBSCRIPTIONS
        kind = PlanKind.INACTIVE_SUBSCRIPTIONS if several else PlanKind.INACTIVE_TOPICS
        return self._plan(kind, plan_id, PlanSummary.from_json)

    def inactive_plans(self) -> list[PlanSummary]:
        """Every plan of inactive topics and subscriptions that can be read, oldest first."""
        return self._readable(PlanKind.INACTIVE_TOPICS, PlanSummary.from_json)

    def store_delete_records_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan to delete records and return its location."""
        return self._store_plan(PlanKind.DELETE_RECORDS, summary, rows)

    def delete_records_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_delete_records_plan` with its rows, read from the files. Raises NotFound."""
        return self._plan(PlanKind.DELETE_RECORDS, plan_id, PlanSummary.from_json)

    def delete_records_plans(self, since: int = 0) -> list[PlanSummary]:
        """Every plan to delete records that can be read, oldest first."""
        return self._readable(PlanKind.DELETE_RECORDS, PlanSummary.from_json, since)

    def _store_plan(self, kind: PlanKind, plan: PlanSummary | OffloadPlan, rows: pa.Table) -> str:
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        self._write(f"{kind.folder}/{plan.plan_id}/rows.parquet", sink.getvalue().to_pybytes())
        self._write_document(f"{kind.folder}/{plan.plan_id}/plan.json", plan.to_json())
        return f"{self.location}/{kind.folder}/{plan.plan_id}"

    def _plan(self, kind: PlanKind, plan_id: str, decode: Callable[[Mapping[str, Any]], P]) -> tuple[P, pa.Table]:
        plan = self._document(f"{kind.folder}/{plan_id}/plan.json", decode) if _is_name(plan_id) else None
        if plan is None:
            raise NotFound(f"there is no plan {plan_id!r} in {self.location}/{kind.folder}")
        return plan, self._rows(plan_id, f"{kind.folder}/{plan_id}/rows.parquet", kind.schema)

    def _readable(self, kind: PlanKind, decode: Callable[[Mapping[str, Any]], P], since: int = 0) -> list[P]:
        found, _ = self._documents(kind.folder, decode, since)
        return sorted(found, key=lambda plan: (plan.created_at, plan.plan_id))

    def _documents(
        self, folder: str, decode: Callable[[Mapping[str, Any]], P], since: int = 0
    ) -> tuple[list[P], list[CorruptFormat]]:
        """The plans in a folder, and what is wrong with the others."""
        plans: list[P] = []
        broken: list[CorruptFormat] = []
        for name in sorted(self._written_since(folder, "plan.json", since) if since else self._folders(folder)):
            try:
                plan = self._document(f"{folder}/{name}/plan.json", decode)
            except CorruptFormat as error:
                broken.append(error)
                continue
            plans += [] if plan is None else [plan]
        return plans, broken

    def _rows(self, plan_id: str, relative: str, schema: pa.Schema) -> pa.Table:
        data = self._read(relative)
        try:
            rows = pq.read_table(pa.BufferReader(data))
        except (OSError, pa.ArrowException) as error:
            raise CorruptFormat(f"{self.location}/{relative}", 0, f"a plan's rows: {error}") from error
        if not {*schema.names}.intersection(rows.schema.names):
            raise CorruptFormat(f"{self.location}/{relative}", 0, f"a plan's rows, found columns {rows.schema.names}")
        if "code" in schema.names and "code" not in rows.schema.names:  # a plan of an earlier version
            rows = rows.append_column("code", pa.nulls(rows.num_rows, pa.string()))
        try:
            return rows.select(schema.names).cast(schema)
        except (KeyError, pa.ArrowException) as error:
            raise old_version(plan_id) from error

    def plan_holds(self, plan_id: str, ledger_id: int) -> bool:
        """Whether a stored plan has a row for the ledger."""
        path = f"{self._root}/{PlanKind.ORPHANS.folder}/{plan_id}/rows.parquet"
        try:
            rows = pq.read_table(
                path, columns=["ledger_id"], filesystem=self._filesystem, filters=pc.field("ledger_id") == ledger_id
            )
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{path}: cannot be read: {error}") from error
        return rows.num_rows > 0

    def plans(self, since: int = 0) -> list[PlanSummary]:
        """Stored plans, oldest first, without those of :meth:`broken_plans`."""
        return self._readable(PlanKind.ORPHANS, PlanSummary.from_json, since)

    def broken_plans(self) -> list[CorruptFormat]:
        """What is wrong with plans, of any kind, whose document is not a plan's, one error each."""
        offload = PlanKind.OFFLOAD.folder
        folders = [folder for folder in dict.fromkeys(kind.folder for kind in PlanKind) if folder != offload]
        broken = [error for folder in folders for error in self._documents(folder, PlanSummary.from_json)[1]]
        return broken + self._documents(offload, OffloadPlan.from_json)[1]


@dataclass(frozen=True, slots=True)
class _SetAside:
    until: int
    scans: tuple[str, ...] = ()
    reason: str = ""
    by: str = ""

    def holds(self, epoch: Epoch) -> bool:
        return epoch.started_at <= self.until or epoch.epoch_id in self.scans


@dataclass(frozen=True, slots=True)
class _Started:
    epoch_id: str
    started_at: int
    run_id: str
    marks: StoreCounters | None = None
    """The counters, by the name that the stored document has for them."""
    fingerprint: str = ""
    """As version 0.1 wrote it until it noted the counters; not written any more."""

    @property
    def counters_at_begin(self) -> StoreCounters | None:
        return self.marks or (StoreCounters(self.fingerprint, UNKNOWN) if self.fingerprint else None)


def _is_name(text: str) -> bool:
    return bool(text) and all(c.isalnum() or c in "-_." for c in text) and not text.startswith(".")


class OffloadUuidsOf:
    """The offload UUIDs of one epoch, read where and when they are first asked for: what goes to a worker is a name."""

    def __init__(self, lake: str, epoch_id: str) -> None:
        self._lake, self._epoch_id = lake, epoch_id
        self._loaded: OffloadUuids | None = None

    def named(self, uuids: Iterable[UUID]) -> set[UUID]:
        """Those of ``uuids`` that the epoch's metadata names. Raises as :meth:`FileLake.offload_uuids`."""
        if self._loaded is None:
            self._loaded = FileLake(self._lake).offload_uuids(self._epoch_id)
        return self._loaded.named(uuids)

    def __reduce__(self) -> tuple[type[OffloadUuidsOf], tuple[str, str]]:
        return (type(self), (self._lake, self._epoch_id))
