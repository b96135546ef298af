"""Plans of each kind: what ``plans`` and ``plan`` must know of it to show it.

Not here: what they have in common (``cli/plan_page.py``, ``cli/plans.py``). Imported by a command that needs it:
pyarrow takes its time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.plan_page import Deletes, Groups, OfLedgers, PlanPage, by_columns, grouped, share, sizes
from pulsar_lifecycle.delayed_index.repair import repair_planning
from pulsar_lifecycle.delete_records import records_planning
from pulsar_lifecycle.deletion.planning import confirmed_orphans
from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.journal.intents import IntentState
from pulsar_lifecycle.lifecycle import retention_planning
from pulsar_lifecycle.lifecycle.activity import inactive_planning
from pulsar_lifecycle.lifecycle.bookies import collection_planning
from pulsar_lifecycle.lifecycle.load import load_planning
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.scan.evidence import refuse_old_evidence
from pulsar_lifecycle.tiered.buckets import bucket_runs
from pulsar_lifecycle.tiered.buckets.bucket_rules import SweepAction
from pulsar_lifecycle.tiered.planning import offload_planning
from pulsar_lifecycle.values.plans import (
    delayed_index_plan,
    delete_records_plan,
    inactive_plan,
    load_plan,
    retention_plan,
)
from pulsar_lifecycle.values.plans.offload_plan import OffloadPlan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.plans.records_table import COLUMNS, RecordsTable, undo_of
from pulsar_lifecycle.values.refusals import RefusalCode

if TYPE_CHECKING:
    from pulsar_lifecycle.settings import Settings


class OrphanPlans(OfLedgers):
    """Plans of ledgers that nothing refers to."""

    job = "apply_plan"
    needs_two_scans = True
    columns = ("ledger", "component", "topic", "entries", "frees", "made")

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of ``apply_plan``."""
        return confirmed_orphans.run_config(summary)

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """And how many it leaves out, with their code."""
        waits = (
            f"{show.counted(summary.in_flight, self.what)}: {IntentState.IN_FLIGHT}: their intents wait in the queue"
        )
        return [*super().facts(summary, rows), *([("left out", waits)] if summary.in_flight else [])]

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By component, and by code, each with the sentence of one of its ledgers."""
        listed = rows.to_pylist()
        said = {row["code"]: row["reason"] for row in reversed(listed)}
        codes = grouped((row["code"], row["physical_bytes"]) for row in listed)
        return {
            "component": grouped((_component(row), row["physical_bytes"]) for row in listed),
            "code": [(f"{code}: {said[code]}", ledgers, size) for code, ledgers, size in codes],
        }

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Ledger, component, topic, entries, bytes on disk, when it was made."""
        made, size = show.moment(row["ctime"]), show.size(row["physical_bytes"])
        return row["ledger_id"], _component(row), row["topic"], row["entries"], size, made


class RetentionPlans(OfLedgers):
    """Plans of ledgers past their retention."""

    job = "apply_retention"
    needs_two_scans = False
    columns = ("ledger", "topic", "expired by", "set at", "since", "frees")

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of ``apply_retention``."""
        return retention_planning.run_config(summary)

    def sized(self, rows: pa.Table) -> pa.Table:
        """What is in a bucket alone counts, too."""
        return retention_plan.as_capped(rows)

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By namespace, and by limit."""
        return by_columns(rows, ("namespace", "expired_by"), "physical_bytes")

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Ledger, topic, limit, level, since when, bytes on disk."""
        since = show.moment(row["expired_at"]) if row["expired_at"] else None
        return row["ledger_id"], row["topic"], row["expired_by"], row["level"], since, show.size(row["physical_bytes"])


class LoadPlans(Deletes):
    """Plans of topics to load; each stands under its last ledger."""

    job = "load_topics"
    needs_two_scans = False
    what = "topic"
    columns = ("last ledger", "topic", "needs", "frees", "logical", "of these at once", "rest from")

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of ``load_topics``."""
        return load_planning.run_config(summary)

    def sized(self, rows: pa.Table) -> pa.Table:
        """What is in a bucket alone counts, too."""
        return load_plan.as_capped(rows)

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """How many topics, and what goes of them, sooner or later."""
        found = [("loads", show.counted(summary.ledgers, self.what)), ("frees", sizes(summary))]
        for what in ("expired", "inactive"):
            if count := len(rows.column(f"{what}_subscriptions").combine_chunks().flatten()):
                found.append(("deletes", show.counted(count, f"{what} subscription")))
        return found

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By namespace, and by need."""
        listed = rows.select(["namespace", "needs", "physical_bytes"]).to_pylist()
        return {
            "namespace": grouped((row["namespace"], row["physical_bytes"]) for row in listed),
            "needs": grouped((", ".join(row["needs"]), row["physical_bytes"]) for row in listed),
        }

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Last ledger, topic, needs, bytes on disk, logical ones, of these at once, when the rest is due."""
        rest = show.moment(row["second_visit_at"]) if row["second_visit_at"] else None
        sizes = (show.size(row[name]) for name in ("physical_bytes", "bytes", "bytes_at_once"))
        return row["ledger_id"], row["topic"], ", ".join(row["needs"]), *sizes, rest


class InactivePlans(Deletes):
    """Plans of inactive topics, or of inactive subscriptions; each stands under a ledger."""

    needs_two_scans = False
    columns = ("ledger", "topic", "subscription", "unused since", "holds")

    def __init__(self, *, subscriptions: bool) -> None:
        self._subscriptions = subscriptions
        self.what = "subscription" if subscriptions else "topic"
        self.job = "delete_inactive_subscriptions" if subscriptions else "delete_inactive_topics"

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of :attr:`job`."""
        return inactive_planning.run_config(summary)

    def sized(self, rows: pa.Table) -> pa.Table:
        """The bytes of each topic once; what is in a bucket alone counts, too."""
        return inactive_plan.as_capped(rows)

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """How many of how many topics; deleting a subscription frees nothing by itself."""
        topics = show.counted(len(rows.column("topic").unique()), "topic")
        size = sizes(summary)
        if not self._subscriptions:
            return [("deletes", topics), ("frees", size)]
        several = show.counted(summary.ledgers, self.what)
        return [("deletes", f"{several} of {topics}"), ("keep", f"{size}, which retention may take then")]

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By namespace, and by evidence."""
        return by_columns(self.sized(rows), ("namespace", "evidence"), "physical_bytes")

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Ledger, topic, subscription, since when, bytes on disk."""
        since, size = show.moment(row["inactive_since"]), show.size(row["physical_bytes"] or 0)
        return row["ledger_id"], row["topic"], row.get("cursor"), since, size


class RecordsPlans(Deletes):
    """Plans to delete records; each partition stands under the ledger of its low watermark."""

    what = "partition"
    job = "delete_records"
    needs_two_scans = False
    columns = COLUMNS
    shown = RecordsTable(show.size, show.moment)

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of ``delete_records``."""
        return records_planning.run_config(summary)

    def sized(self, rows: pa.Table) -> pa.Table:
        """The ledgers that go, one a row."""
        return delete_records_plan.as_capped(rows)

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By namespace, and by error."""
        listed = rows.select(["namespace", "error", "bytes"]).to_pylist()
        return {name: grouped((row[name] or "none", row["bytes"]) for row in listed) for name in ("namespace", "error")}

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """How many ledgers go, of how many partitions, their bytes, and whether that can be undone."""
        listed = rows.select(["error", "ledgers", "leftovers", "no_undo", "lost_copies"]).to_pylist()
        going = [row for row in listed if row["error"] is None]
        ledgers = show.counted(sum(len(row["ledgers"]) for row in going), "ledger")
        count = f"{ledgers} of {show.counted(len(going), self.what)}, {len(listed) - len(going)} have an error"
        return [("deletes", count), ("frees", sizes(summary)), ("undo", undo_of(listed))]

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """As the command that plans shows a partition."""
        return self.shown.line(row)

    def notes(self, row: dict[str, Any]) -> list[str]:
        """As that command says them."""
        return [f"{row['topic']}: {note}" for note in self.shown.notes(row)]


class RepairPlans(Deletes):
    """Plans of repairs of delayed indexes; each subscription stands under its newest snapshot. They free nothing."""

    what = "subscription"
    measure = "snapshots"
    job = "repair_delayed_index"
    needs_two_scans = False
    columns = ("snapshot", "topic", "subscription", "repair", "because", "messages")

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of ``repair_delayed_index``."""
        return repair_planning.run_config(summary)

    def sized(self, rows: pa.Table) -> pa.Table:
        """Bytes of one copy of the snapshots."""
        return delayed_index_plan.as_capped(rows)

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """How many of how many topics; old snapshots stay."""
        several = show.counted(summary.ledgers, self.what)
        topics = show.counted(len(rows.column("topic").unique()), "topic")
        size = show.size(summary.logical_bytes)
        return [
            ("repairs", f"{several} of {topics}"),
            ("snapshots", f"{size}; those that it replaces stay until the plan of orphans takes them"),
        ]

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By namespace, and by level."""
        return by_columns(rows, ("namespace", "level"), "bytes")

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Snapshot, topic, subscription, level, codes, messages."""
        codes = ", ".join(row["codes"])
        return row["ledger_id"], row["topic"], row["subscription"], row["level"], codes, row["messages"]


class OffloadPlans:
    """Plans of ledgers to offload, and of copies in BookKeeper to delete. A run does what its caps allow of one."""

    what = "ledger"
    measure = "bytes"
    job = "offload"
    needs_two_scans = False
    columns = ("ledger", "action", "outlook", "topic", "entries", "bytes", "because")

    def brief(self, summary: OffloadPlan) -> tuple[str, str | None, str | None]:
        """Both together; copies in BookKeeper are freed."""
        return show.counted(summary.rows, self.what), None, show.size(summary.copies_bytes)

    def run_config(self, summary: OffloadPlan) -> dict[str, Any]:
        """Of ``offload``."""
        return offload_planning.run_config(summary)

    def check(self, summary: OffloadPlan, rows: pa.Table, lake: Lake, settings: Settings, now: int) -> None:
        """An object store, and the age of the newest scan."""
        if settings.object_store is None:
            raise RefusedBy(RefusalCode.NO_OBJECT_STORE, "object_store is not set: there is nowhere to offload to")
        newest = next(iter(lake.epochs(summary.fingerprint)[-1:]), None)
        if newest is None:
            raise RefusedBy(RefusalCode.SCAN_GONE, f"plan {summary.plan_id}: no scan of its cluster is kept any more")
        refuse_old_evidence(newest, now, int(settings.orphans.plan_valid_for * 1000))

    def facts(self, summary: OffloadPlan, rows: pa.Table) -> list[tuple[str, str]]:
        """What is offloaded, which copies are deleted, and what of it a run would leave to brokers now."""
        found = [
            ("offloads", f"{show.counted(summary.ledgers, self.what)}, {show.size(summary.bytes)}"),
            ("copies to delete", f"{show.counted(summary.copies, self.what)}, {show.size(summary.copies_bytes)}"),
        ]
        if summary.left_to_broker:
            size = show.size(summary.left_to_broker_bytes)
            found.append(("of these left to brokers", f"{show.counted(summary.left_to_broker, self.what)}, {size}"))
        return found

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By namespace, and by action and code."""
        listed = rows.select(["namespace", "action", "code", "bytes"]).to_pylist()
        return {
            "namespace": grouped((row["namespace"], row["bytes"] or 0) for row in listed),
            "action": grouped((f"{row['action']}: {row['code']}", row["bytes"] or 0) for row in listed),
        }

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Ledger, action, outlook, topic, entries, bytes, code."""
        begin = (row[name] for name in ("ledger_id", "action", "outlook", "topic", "entries"))
        return *begin, show.size(row["bytes"] or 0), row["code"]

    def notes(self, row: dict[str, Any]) -> list[str]:
        """Nothing: the line says it all."""
        return []


class ObjectPlans(Deletes):
    """Plans of offloaded copies and uploads that nothing needs in the buckets."""

    what = "object"
    measure = "frees in buckets"
    job = "sweep_objects"
    needs_two_scans = True
    columns = ("bucket", "key", "kind", "action", "topic", "bytes", "since", "because")

    def brief(self, summary: PlanSummary) -> tuple[str, str | None, str | None]:
        """Copies and uploads; they free nothing on bookies' disks."""
        return f"{summary.ledgers} in buckets", None, None

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of ``sweep_objects``."""
        return bucket_runs.run_config(summary)

    def sized(self, rows: pa.Table) -> pa.Table:
        """Their bytes count."""
        return rows.append_column("physical_bytes", rows.column("bytes"))

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """How many copies, of how many, how many uploads, and the copies' bytes."""
        copies = rows.column("action").to_pylist().count(SweepAction.DELETE)
        uploads = show.counted(rows.num_rows - copies, "upload")
        share_of = f"{share(summary)} of {summary.cluster_ledgers} copies"
        size = f"{show.size(summary.logical_bytes)} in the buckets"
        return [("deletes", f"{copies} copies and {uploads}, {share_of}"), ("frees", size)]

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By bucket, and by kind."""
        return by_columns(rows, ("bucket", "kind"), "bytes")

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Bucket, key, kind, action, topic, bytes, its age, code."""
        begin = (row[name] for name in ("bucket", "key", "kind", "action", "topic"))
        return *begin, show.size(row["bytes"]), show.moment(row["modified"]), row["code"]


class CollectionPlans(Deletes):
    """Plans of bookies to have collect. They delete no ledger: no switch of deletion and no cap holds them up."""

    what = "bookie"
    job = "collect_bookies"
    needs_two_scans = False
    columns = ("bookie", "rack", "verdict", "frees, about")

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of ``collect_bookies``."""
        return collection_planning.run_config(summary)

    def check(self, summary: PlanSummary, rows: pa.Table, lake: Lake, settings: Settings, now: int) -> None:
        """The plan's own scan."""
        self.check_scan(summary, lake, settings, now)

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """How many of how many bookies, and what they could free."""
        several = f"{summary.ledgers} of {show.counted(summary.cluster_ledgers, self.what)}"
        return [("collect", several), ("frees", f"about {show.size(summary.physical_bytes)}")]

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By rack, and by verdict."""
        return by_columns(rows, ("rack", "verdict"), "bytes")

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Bookie, rack, verdict, bytes."""
        return row["bookie"], row["rack"], row["verdict"], show.size(row["bytes"])


def _component(row: dict[str, Any]) -> str:
    return "cursor" if row["component"] == "managed-ledger" and row["cursor"] else row["component"]


PAGES: Mapping[PlanKind, PlanPage] = {
    PlanKind.ORPHANS: OrphanPlans(),
    PlanKind.RECONCILE: OrphanPlans(),
    PlanKind.RETENTION: RetentionPlans(),
    PlanKind.LOAD: LoadPlans(),
    PlanKind.INACTIVE_TOPICS: InactivePlans(subscriptions=False),
    PlanKind.INACTIVE_SUBSCRIPTIONS: InactivePlans(subscriptions=True),
    PlanKind.DELETE_RECORDS: RecordsPlans(),
    PlanKind.CONSUMED_RECORDS: RecordsPlans(),
    PlanKind.DELAYED_INDEX: RepairPlans(),
    PlanKind.OFFLOAD: OffloadPlans(),
    PlanKind.OBJECTS: ObjectPlans(),
    PlanKind.COLLECTION: CollectionPlans(),
}
"""How a plan of each kind is shown."""
