"""The lake: where epochs and plans are kept, as Parquet tables beside one JSON document each.

Belongs here: paths, atomic documents, tables written in parts, reading back. Not here: journal and archive
(``journal``).
Layout: ``epochs/EPOCH/TABLE/*.parquet`` and ``epochs/EPOCH/epoch.json``; ``plans/PLAN/rows.parquet`` and
``plans/PLAN/plan.json``. A document is written last: what has none is unfinished and is not seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from pulsar_lifecycle.errors import ConfigError, CorruptFormat, NotFound, StoreError
from pulsar_lifecycle.plan.coverage import Census, Epoch, census_from_json
from pulsar_lifecycle.plan.deletion import PLAN, PlanSummary
from pulsar_lifecycle.plan.objects import OBJECTS
from pulsar_lifecycle.plan.offload import CANDIDATES, OffloadPlan
from pulsar_lifecycle.plan.offloads import OffloadUuids
from pulsar_lifecycle.plan.orphans import Context
from pulsar_lifecycle.plan.references import Referenced
from pulsar_lifecycle.plan.words import KnownWord
from pulsar_lifecycle.words import WordKind

T = TypeVar("T")

DAY_MS = 86_400_000
KEPT_WHOLE_MS = 2 * DAY_MS
KEPT_DAYS = 30

ROW_GROUP = 100_000
"""Rows that a part of a table gathers before it writes them."""
BATCH = 5_000
"""Rows that are read at a time: a topic's row may hold thousands of ledgers."""

SET_ASIDE = "set-aside"
WORDS = "words"
_WORDS = TypeAdapter(list[KnownWord])

REFERENCED = "referenced.bin"
CONTEXT = "context.json"
OFFLOAD_UUIDS = "offload-uuids.bin"
OFFLOAD_PLANS = "offload-plans"
OBJECT_PLANS = "object-plans"


class Lake:
    """An absolute folder that driver and executors share, or a URI such as ``s3://bucket/prefix``.

    Raises ConfigError for a location that cannot be opened, StoreError when the lake does not answer, NotFound for what
    is not there, CorruptFormat with the file's path for what is not what a lake holds.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        try:
            self._filesystem, self._root = pafs.FileSystem.from_uri(location)
        except (OSError, pa.ArrowException) as error:
            raise ConfigError(f"lake.path: {location} is no absolute folder or URI that answers: {error}") from error

    # -------------------------------------------------------------------------------------------------------- epochs

    def epoch_table(self, epoch_id: str, table: str) -> str:
        """Where Spark writes and reads a table of an epoch."""
        location = self.location.replace("s3://", "s3a://", 1) if "://" in self.location else f"file://{self.location}"
        return f"{location}/epochs/{epoch_id}/{table}"

    def read_epoch_table(
        self, epoch_id: str, table: str, columns: list[str] | None = None, ledger_id: int | None = None
    ) -> pa.Table:
        """A table of an epoch in memory, or the rows of one ledger: all of it only for small ones."""
        path = f"{self._root}/epochs/{epoch_id}/{table}"
        try:
            dataset = ds.dataset(path, format="parquet", filesystem=self._filesystem)
            return dataset.to_table(columns) if ledger_id is None else _rows_of(dataset, columns, ledger_id)
        except FileNotFoundError:
            raise NotFound(f"{path}: epoch {epoch_id} has no table {table}") from None
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{path}: cannot be read: {error}") from error

    def write_part(self, epoch_id: str, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
        """Write one part of a table, which nobody sees before :meth:`publish`; returns its name.

        An attempt that is repeated makes another part, so that whoever collects the names decides which one counts.
        """
        name = f"_{uuid4().hex}.parquet"
        folder = f"{self._root}/epochs/{epoch_id}/{table}"
        try:
            if isinstance(self._filesystem, pafs.LocalFileSystem):
                self._filesystem.create_dir(folder)
            with pq.ParquetWriter(f"{folder}/{name}", schema, filesystem=self._filesystem, compression="zstd") as part:
                for group in _gathered(batches, ROW_GROUP):
                    part.write_table(pa.Table.from_batches(group, schema))
        except OSError as error:
            raise StoreError(f"{folder}: cannot be stored: {error}") from error
        return name

    def publish(self, epoch_id: str, table: str, names: Sequence[str]) -> None:
        """Make exactly these parts the table, in place of what it was. Until it returns, the table may lack rows."""
        folder = f"{self._root}/epochs/{epoch_id}/{table}"
        try:
            for info in self._filesystem.get_file_info(pafs.FileSelector(folder, recursive=True)):
                if info.type is pafs.FileType.File and info.base_name not in names:
                    self._filesystem.delete_file(info.path)
            for number, name in enumerate(names):
                self._filesystem.move(f"{folder}/{name}", f"{folder}/part-{number:05d}.parquet")
        except OSError as error:
            raise StoreError(f"{folder}: cannot be stored: {error}") from error

    def parts(self, epoch_id: str, table: str) -> list[str]:
        """The files of a table, each for :meth:`batches`. Raises NotFound."""
        path = f"{self._root}/epochs/{epoch_id}/{table}"
        try:
            found = self._filesystem.get_file_info(pafs.FileSelector(path))
        except FileNotFoundError:
            raise NotFound(f"{path}: epoch {epoch_id} has no table {table}") from None
        except OSError as error:
            raise StoreError(f"{path}: cannot be listed: {error}") from error
        return sorted(i.path for i in found if i.extension == "parquet" and not i.base_name.startswith(("_", ".")))

    def batches(
        self, parts: Iterable[str], columns: Sequence[str], where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some parts of tables, a few thousand at a time. ``where`` may ask for other columns too."""
        for part in parts:
            try:
                rows = ds.dataset(part, format="parquet", filesystem=self._filesystem).to_batches(
                    columns=list(columns), filter=where, batch_size=BATCH, batch_readahead=1, fragment_readahead=1
                )
                yield from map(pa.concat_batches, _gathered(rows, BATCH))
            except (OSError, pa.ArrowException) as error:
                raise StoreError(f"{part}: cannot be read: {error}") from error

    def begin_epoch(self, epoch_id: str, started_at: int, run_id: str, fingerprint: str = "") -> None:
        """Note that a scan of the cluster with this fingerprint started; ``started_at`` is ms."""
        self._write_document(
            f"epochs/{epoch_id}/started.json",
            {"epoch_id": epoch_id, "started_at": started_at, "run_id": run_id, "fingerprint": fingerprint},
        )

    def open_epoch(self, run_id: str) -> tuple[str, int]:
        """(epoch id, started at) of the scan that ``run_id`` began, else of the newest one. Raises NotFound."""
        for name in sorted(self._folders("epochs"), reverse=True):
            started = self._started(name)
            if started is not None and run_id in ("", started.run_id):
                return started.epoch_id, started.started_at
        if run_id:
            return self.open_epoch("")
        raise NotFound(f"{self.location}: no scan has begun yet; materialize bookkeeper_ledgers first")

    def begun_by(self, epoch_id: str) -> str:
        """The run that began an epoch."""
        started = self._started(epoch_id)
        return started.run_id if started else ""

    def fingerprint(self, epoch_id: str) -> str:
        """The cluster on which an epoch began; empty where it was not noted."""
        started = self._started(epoch_id)
        return started.fingerprint if started else ""

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
        selector = pafs.FileSelector(f"{self._root}/epochs/{epoch_id}/census", allow_not_found=True)
        names = sorted(
            info.base_name for info in self._filesystem.get_file_info(selector) if info.base_name.endswith(".json")
        )
        return [self._parsed(f"epochs/{epoch_id}/census/{name}", census_from_json) for name in names]

    def epoch(self, epoch_id: str) -> Epoch:
        """A finished epoch. Raises NotFound, also for one that is set aside."""
        epoch = self._parsed(f"epochs/{epoch_id}/epoch.json", Epoch.from_json)
        if self._set_aside(epoch.cluster).holds(epoch):
            raise NotFound(f"scan {epoch_id} was set aside by accept-restore")
        return epoch

    def set_scans_aside(self, cluster: str, now: int, reason: str, by: str = "") -> None:
        """Let every scan of a cluster's name count as not made that began until ``now`` (ms), or that is finished.

        The latter may say that it began later, if a clock was wrong. Removes nothing.
        """
        scans = [e.epoch_id for e in self.epochs(cluster=cluster) if e.started_at > now]
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
        """Remove epochs that are kept no longer: all of 48 hours stay, then the last covered one of each of 30 days.

        The newest of each cluster stays in any case, and the last covered one of each metadata store, however old and
        even if set aside: what got lost since stays a gap.

        ``now`` is ms; returns the removed ids. Journal, archive and plans are never pruned.
        """
        finished = {e.epoch_id: e for e in self.epochs()}
        daily = {(e.fingerprint, e.started_at // DAY_MS): e.epoch_id for e in finished.values() if e.covered}
        kept = {epoch_id for (_, day), epoch_id in daily.items() if day > now // DAY_MS - KEPT_DAYS}
        kept |= set({e.cluster: e.epoch_id for e in finished.values()}.values())
        covered = (e for e in self.epochs(set_aside=True) if e.covered and e.started_at <= now)
        kept |= set({(e.cluster, e.fingerprint): e.epoch_id for e in covered}.values())
        old = [
            name
            for name in self._folders("epochs")
            if self._started_at(name) < now - KEPT_WHOLE_MS and name not in kept
        ]
        for name in old:
            self._filesystem.delete_dir(f"{self._root}/epochs/{name}")
        return sorted(old)

    def _started_at(self, epoch_id: str) -> int:
        started = self._started(epoch_id)
        return started.started_at if started else 0

    def _started(self, epoch_id: str) -> _Started | None:
        return self._document(f"epochs/{epoch_id}/started.json", TypeAdapter(_Started).validate_python)

    # --------------------------------------------------------------------------------------------------------- plans

    def store_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan and return its location."""
        return self._store_plan("plans", summary, rows)

    def plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan with its rows, read from the files. Raises NotFound."""
        summary = self._document(f"plans/{plan_id}/plan.json", PlanSummary.from_json) if _is_name(plan_id) else None
        if summary is None:
            raise NotFound(f"there is no plan {plan_id!r} in {self.location}/plans")
        return summary, self._rows(f"plans/{plan_id}/rows.parquet", PLAN)

    def store_offload_plan(self, plan: OffloadPlan, rows: pa.Table) -> str:
        """Store an offload plan and return its location."""
        return self._store_plan(OFFLOAD_PLANS, plan, rows)

    def offload_plan(self, plan_id: str) -> tuple[OffloadPlan, pa.Table]:
        """A stored offload plan with its rows, read from the files. Raises NotFound."""
        folder = f"{OFFLOAD_PLANS}/{plan_id}"
        plan = self._document(f"{folder}/plan.json", OffloadPlan.from_json) if _is_name(plan_id) else None
        if plan is None:
            raise NotFound(f"there is no plan {plan_id!r} in {self.location}/{OFFLOAD_PLANS}")
        return plan, self._rows(f"{folder}/rows.parquet", CANDIDATES)

    def offload_plans(self) -> list[OffloadPlan]:
        """Every offload plan that can be read, oldest first."""
        found = [
            self._document(f"{OFFLOAD_PLANS}/{name}/plan.json", OffloadPlan.from_json)
            for name in self._folders(OFFLOAD_PLANS)
        ]
        return sorted((plan for plan in found if plan), key=lambda plan: (plan.created_at, plan.plan_id))

    def store_object_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of what is to leave the buckets and return its location."""
        return self._store_plan(OBJECT_PLANS, summary, rows)

    def object_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_object_plan` with its rows, read from the files. Raises NotFound."""
        folder = f"{OBJECT_PLANS}/{plan_id}"
        summary = self._document(f"{folder}/plan.json", PlanSummary.from_json) if _is_name(plan_id) else None
        if summary is None:
            raise NotFound(f"there is no plan {plan_id!r} in {self.location}/{OBJECT_PLANS}")
        return summary, self._rows(f"{folder}/rows.parquet", OBJECTS)

    def _store_plan(self, kind: str, plan: PlanSummary | OffloadPlan, rows: pa.Table) -> str:
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd")
        self._write(f"{kind}/{plan.plan_id}/rows.parquet", sink.getvalue().to_pybytes())
        self._write_document(f"{kind}/{plan.plan_id}/plan.json", plan.to_json())
        return f"{self.location}/{kind}/{plan.plan_id}"

    def _rows(self, relative: str, schema: pa.Schema) -> pa.Table:
        data = self._read(relative)
        try:
            return pq.read_table(pa.BufferReader(data)).select(schema.names).cast(schema)
        except (OSError, KeyError, pa.ArrowException) as error:
            raise CorruptFormat(f"{self.location}/{relative}", 0, f"a plan's rows: {error}") from error

    def plan_holds(self, plan_id: str, ledger_id: int) -> bool:
        """Whether a stored plan has a row for the ledger."""
        path = f"{self._root}/plans/{plan_id}/rows.parquet"
        try:
            rows = pq.read_table(
                path, columns=["ledger_id"], filesystem=self._filesystem, filters=pc.field("ledger_id") == ledger_id
            )
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{path}: cannot be read: {error}") from error
        return rows.num_rows > 0

    def plans(self) -> list[PlanSummary]:
        """Stored plans, oldest first, without those of :meth:`broken_plans`."""
        return sorted(self._plans()[0], key=lambda plan: plan.created_at)

    def broken_plans(self) -> list[CorruptFormat]:
        """What is wrong with plans whose document is not a plan's, one error each."""
        return self._plans()[1]

    def _plans(self) -> tuple[list[PlanSummary], list[CorruptFormat]]:
        plans: list[PlanSummary] = []
        broken: list[CorruptFormat] = []
        for name in sorted(self._folders("plans")):
            try:
                plan = self._document(f"plans/{name}/plan.json", PlanSummary.from_json)
            except CorruptFormat as error:
                broken.append(error)
                continue
            plans += [] if plan is None else [plan]
        return plans, broken

    # --------------------------------------------------------------------------------------------------------- files

    def _folders(self, relative: str) -> list[str]:
        selector = pafs.FileSelector(f"{self._root}/{relative}", allow_not_found=True)
        try:
            return [
                info.base_name
                for info in self._filesystem.get_file_info(selector)
                if info.type is pafs.FileType.Directory
            ]
        except OSError as error:
            raise StoreError(f"{self.location}/{relative}: cannot be listed: {error}") from error

    def _document(self, relative: str, make: Callable[[Mapping[str, Any]], T]) -> T | None:
        """As :meth:`_parsed`; None where there is none."""
        try:
            return self._parsed(relative, make)
        except NotFound:
            return None

    def _parsed(self, relative: str, make: Callable[[Mapping[str, Any]], T]) -> T:
        """What ``make`` makes of a JSON document."""
        data = self._read(relative)
        try:
            return make(json.loads(data))
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            why = str(error)
            if isinstance(error, ValidationError):
                first = error.errors()[0]
                why = f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}"
            raise CorruptFormat(f"{self.location}/{relative}", 0, f"our own JSON document: {why}") from error

    def _write_document(self, relative: str, document: Mapping[str, Any]) -> None:
        self._write(relative, json.dumps(document, indent=1, sort_keys=True).encode())

    def _read(self, relative: str) -> bytes:
        try:
            with self._filesystem.open_input_stream(f"{self._root}/{relative}") as stream:
                return stream.read()
        except FileNotFoundError:
            raise NotFound(f"{self.location}/{relative} does not exist") from None
        except OSError as error:
            raise StoreError(f"{self.location}/{relative}: cannot be read: {error}") from error

    def _write(self, relative: str, data: bytes) -> None:
        """Appears whole or not at all."""
        path = f"{self._root}/{relative}"
        local = isinstance(self._filesystem, pafs.LocalFileSystem)
        target = f"{path}.{uuid4().hex}.tmp" if local else path
        try:
            if local:
                self._filesystem.create_dir(path.rpartition("/")[0])
            with self._filesystem.open_output_stream(target) as stream:
                stream.write(data)
            if local:
                self._filesystem.move(target, path)
        except OSError as error:
            raise StoreError(f"{self.location}/{relative}: cannot be stored: {error}") from error


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
    fingerprint: str = ""


def _gathered(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[list[pa.RecordBatch]]:
    """Batches in groups of at least ``rows`` rows, the last one of what is left."""
    group: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            group.append(batch)
        if sum(b.num_rows for b in group) >= rows:
            yield group
            group = []
    if group:
        yield group


def _rows_of(dataset: ds.Dataset, columns: list[str] | None, ledger_id: int) -> pa.Table:
    """The rows of one ledger; of a row group without any, only the ids are read."""
    wanted = pc.field("ledger_id") == ledger_id
    found = [dataset.schema.empty_table().select(columns or dataset.schema.names)]
    for fragment in dataset.get_fragments(wanted):
        for group in fragment.split_by_row_group(wanted):
            if group.count_rows(wanted):
                found.append(group.to_table(dataset.schema, columns, wanted))
    return pa.concat_tables(found)


def _is_name(text: str) -> bool:
    return bool(text) and all(c.isalnum() or c in "-_." for c in text) and not text.startswith(".")


class OffloadUuidsOf:
    """The offload UUIDs of one epoch, read where and when they are first asked for: what goes to a worker is a name."""

    def __init__(self, lake: str, epoch_id: str) -> None:
        self._lake, self._epoch_id = lake, epoch_id
        self._loaded: OffloadUuids | None = None

    def named(self, uuids: Iterable[UUID]) -> set[UUID]:
        """Those of ``uuids`` that the epoch's metadata names. Raises as :meth:`Lake.offload_uuids`."""
        if self._loaded is None:
            self._loaded = Lake(self._lake).offload_uuids(self._epoch_id)
        return self._loaded.named(uuids)

    def __reduce__(self) -> tuple[type[OffloadUuidsOf], tuple[str, str]]:
        return (type(self), (self._lake, self._epoch_id))
