"""The lake: what scans found, by epoch, and the plans that were made of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from pulsar_lifecycle.errors import CorruptFormat
    from pulsar_lifecycle.values.epoch import Census, Epoch
    from pulsar_lifecycle.values.findings import Context
    from pulsar_lifecycle.values.known_words import KnownWord
    from pulsar_lifecycle.values.offload_uuids import NamedUuids, OffloadUuids
    from pulsar_lifecycle.values.plans.offload_plan import OffloadPlan
    from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
    from pulsar_lifecycle.values.referenced import Referenced
    from pulsar_lifecycle.values.store_history import StoreCounters


class Lake(Protocol):
    """Epochs and plans. What is stored appears whole or not at all; a task may have it with it.

    Raises StoreError when the lake does not answer, NotFound for what is not there, CorruptFormat with its place for
    what is not what a lake holds.
    """

    @property
    def location(self) -> str:
        """Where it is, for people."""
        ...

    def exists(self) -> bool:
        """Whether anything is at its location: a first scan makes it, and so does one with a mistyped path."""
        ...

    # ----------------------------------------------------------------------------------------------------------- epochs

    def begin_epoch(self, epoch_id: str, started_at: int, run_id: str, counters: StoreCounters | None = None) -> None:
        """Note that a scan started, ``started_at`` (ms), with the metadata store's counters at that moment."""
        ...

    def open_epoch(self, run_id: str) -> tuple[str, int]:
        """(epoch id, started at) of the scan that ``run_id`` began, else of the newest one. Raises NotFound.

        That is none of those that a clock dated ahead, and that were set aside: they would stay the newest for long.
        """
        ...

    def begun_by(self, epoch_id: str) -> str:
        """The run that began an epoch."""
        ...

    def began_at(self, epoch_id: str) -> StoreCounters | None:
        """The metadata store's counters when an epoch began; None where they were not noted."""
        ...

    def finished(self, epoch_id: str) -> bool:
        """Whether an epoch was closed with its coverage proof."""
        ...

    def store_census(self, epoch_id: str, census: Census) -> None:
        """Keep the count of one table of one root."""
        ...

    def forget_census(self, epoch_id: str, table: str, root: str) -> None:
        """A table is about to be written again: until that has ended well, it counts as not read."""
        ...

    def census(self, epoch_id: str) -> list[Census]:
        """Every count of an epoch."""
        ...

    def epoch(self, epoch_id: str) -> Epoch:
        """A finished epoch. Raises NotFound, also for one that is set aside."""
        ...

    def set_scans_aside(self, cluster: str, now: int, reason: str, by: str = "") -> None:
        """Let every scan of a cluster's name count as not made that began until ``now`` (ms), or by now.

        The latter may say that it began later, if a clock was wrong. Removes nothing.
        """
        ...

    def set_aside_until(self, cluster: str) -> int:
        """Until when (ms) the scans of a cluster's name are set aside; -1 if none ever was."""
        ...

    def accepted_restore(self, cluster: str) -> KnownWord | None:
        """Who set the scans of a cluster's name aside last, when and why; None if nobody ever did."""
        ...

    def words(self, cluster: str) -> list[KnownWord]:
        """The operator's words as the last run met them."""
        ...

    def store_words(self, cluster: str, words: Sequence[KnownWord]) -> None:
        """Keep the operator's words as a run met them."""
        ...

    def store_epoch(self, epoch: Epoch, referenced: Referenced, context: Context) -> None:
        """Finish an epoch: until this returns, it is not seen."""
        ...

    def referenced(self, epoch_id: str) -> Referenced:
        """The referenced ids of a finished epoch."""
        ...

    def store_offload_uuids(self, epoch_id: str, tables: Sequence[str]) -> None:
        """Gather every offload UUID in an epoch's tables of topics (one per root). Raises NotFound."""
        ...

    def offload_uuids(self, epoch_id: str) -> OffloadUuids:
        """The offload UUIDs of a finished epoch. Raises NotFound for an epoch of an older version, CorruptFormat."""
        ...

    def named_uuids(self, epoch_id: str) -> NamedUuids:
        """:meth:`offload_uuids`, read where and when they are first asked for: goes to tasks."""
        ...

    def context(self, epoch_id: str) -> Context:
        """The context of a finished epoch's decisions."""
        ...

    def epochs(self, fingerprint: str = "", cluster: str = "", *, set_aside: bool = False) -> list[Epoch]:
        """Finished epochs, covered or not, oldest first, without those set aside unless they are wanted, too.

        Of one metadata store if its fingerprint is given, of one cluster's name if that is.
        """
        ...

    def prune(self, now: int) -> list[str]:
        """Remove the epochs of ``values.epoch.forgotten`` at ``now`` (ms), sorted; plans, journal and archive stay."""
        ...

    # ----------------------------------------------------------------------------------------------------------- tables

    def epoch_table(self, epoch_id: str, table: str) -> str:
        """Where Spark writes and reads a table of an epoch."""
        ...

    def read_epoch_table(
        self, epoch_id: str, table: str, columns: list[str] | None = None, ledger_id: int | None = None
    ) -> pa.Table:
        """A table of an epoch in memory, or the rows of one ledger: all of it only for small ones."""
        ...

    def write_part(self, epoch_id: str, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
        """Write one part of a table, which nobody sees before :meth:`publish`; returns its name.

        A task that is repeated makes another part, so that whoever collects the names decides which one counts.
        """
        ...

    def publish(self, epoch_id: str, table: str, names: Sequence[str]) -> None:
        """Make exactly these parts the table, in place of what it was. Until it returns, the table may lack rows."""
        ...

    def parts(self, epoch_id: str, table: str) -> list[str]:
        """The parts of a table, each for :meth:`batches`, in the order of :meth:`publish`.

        Raises NotFound where none was ever published; once any part was written, it may also say that there is none.
        """
        ...

    def batches(
        self, parts: Iterable[str], columns: Sequence[str], where: pc.Expression | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some parts of tables, a few thousand at a time. ``where`` may ask for other columns too."""
        ...

    # ------------------------------------------------------------------------------------------------------------ plans
    # ``since`` (ms) leaves out plans that were stored before, by the lake's own clock: they are not read.

    def store_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan and return its location."""
        ...

    def plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan with its rows. Raises NotFound."""
        ...

    def store_offload_plan(self, plan: OffloadPlan, rows: pa.Table) -> str:
        """Store an offload plan and return its location."""
        ...

    def offload_plan(self, plan_id: str) -> tuple[OffloadPlan, pa.Table]:
        """A stored offload plan with its rows. Raises NotFound."""
        ...

    def offload_plans(self, since: int = 0) -> list[OffloadPlan]:
        """Every offload plan that can be read, oldest first."""
        ...

    def store_object_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of what is to leave the buckets and return its location."""
        ...

    def object_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_object_plan` with its rows. Raises NotFound."""
        ...

    def object_plans(self, since: int = 0) -> list[PlanSummary]:
        """Every plan of :meth:`store_object_plan` that can be read, oldest first."""
        ...

    def store_collection_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of bookies to have collect and return its location."""
        ...

    def collection_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_collection_plan` with its rows. Raises NotFound."""
        ...

    def collection_plans(self, since: int = 0) -> list[PlanSummary]:
        """Every plan of bookies to have collect that can be read, oldest first."""
        ...

    def store_retention_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of what is past its retention and return its location."""
        ...

    def retention_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_retention_plan` with its rows. Raises NotFound."""
        ...

    def retention_plans(self, since: int = 0) -> list[PlanSummary]:
        """Every retention plan that can be read, oldest first."""
        ...

    def store_load_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of topics to load and return its location."""
        ...

    def load_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_load_plan` with its rows. Raises NotFound."""
        ...

    def store_repair_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of repairs of delayed indexes (``delayed_index_plan.REPAIRS``); returns where."""
        ...

    def repair_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_repair_plan` with its rows. Raises NotFound."""
        ...

    def repair_plans(self, since: int = 0) -> list[PlanSummary]:
        """Summaries of all plans of repairs, oldest first."""
        ...

    def load_plans(self) -> list[PlanSummary]:
        """Every load plan that can be read, oldest first."""
        ...

    def store_inactive_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan of inactive topics, or of inactive subscriptions, and return its location."""
        ...

    def inactive_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_inactive_plan` with its rows. Raises NotFound."""
        ...

    def inactive_plans(self) -> list[PlanSummary]:
        """Stored plans of inactive topics and subscriptions, oldest first."""
        ...

    def store_delete_records_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        """Store a plan to delete records and return its location."""
        ...

    def delete_records_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """A stored plan of :meth:`store_delete_records_plan` with its rows. Raises NotFound."""
        ...

    def delete_records_plans(self, since: int = 0) -> list[PlanSummary]:
        """Every plan to delete records that can be read, oldest first."""
        ...

    def plan_holds(self, plan_id: str, ledger_id: int) -> bool:
        """Whether a stored plan has a row for the ledger."""
        ...

    def plans(self, since: int = 0) -> list[PlanSummary]:
        """Stored plans, oldest first, without those of :meth:`broken_plans`."""
        ...

    def broken_plans(self) -> list[CorruptFormat]:
        """What is wrong with plans, of any kind, whose document is not a plan's, one error each."""
        ...
