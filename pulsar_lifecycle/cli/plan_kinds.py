# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false
# pyarrow has no types.
"""Plans of orphans, of expired ledgers and of topics to load: what ``plan`` must know of each kind to show it.

Not here: what they have in common (``cli/plans.py``). Imported by a command that needs it: pyarrow takes its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.delayed_index.repair import repair_planning
from pulsar_lifecycle.delete_records import records_planning
from pulsar_lifecycle.deletion.planning import confirmed_orphans
from pulsar_lifecycle.lifecycle import retention_planning
from pulsar_lifecycle.lifecycle.activity import inactive_planning
from pulsar_lifecycle.lifecycle.load import load_planning
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.records.plans import (
    delayed_index_plan,
    delete_records_plan,
    deletion_plan,
    inactive_plan,
    load_plan,
    retention_plan,
)
from pulsar_lifecycle.records.plans.plan_summary import PlanSummary

Groups = list[tuple[str, int, str]]
"""A group's name, its ledgers, their bytes."""
FREES = "frees"
"""What the bytes of most plans are."""


class PlanKind(Protocol):
    """One kind of plan. ``job`` applies it; ``columns`` are those of a line of its sample.

    ``needs_two_scans``: whether an earlier scan must confirm what it rests on; ``what``: what its summary counts;
    ``measure``: what its bytes are.
    """

    @property
    def job(self) -> str: ...  # noqa: D102 - see above
    @property
    def columns(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def needs_two_scans(self) -> bool: ...  # noqa: D102
    @property
    def what(self) -> str: ...  # noqa: D102
    @property
    def measure(self) -> str: ...  # noqa: D102

    def stored(self, lake: Lake, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """Summary and rows. Raises NotFound."""
        ...

    def digest(self, rows: pa.Table, summary: PlanSummary) -> str:
        """What the files' digest is."""
        ...

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """What :attr:`job` is launched with."""
        ...

    def sized(self, rows: pa.Table) -> pa.Table:
        """The rows with the column that the caps count."""
        ...

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """Ledgers by what an operator asks for, most first."""
        ...

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """A row of the sample."""
        ...

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """What it does, and what that frees, in words."""
        ...


def kind_of(plan_id: str) -> PlanKind:
    """By the beginning of a plan's id."""
    if plan_id.startswith(f"{load_planning.KIND}-"):
        return LoadPlans()
    if plan_id.startswith(f"{delayed_index_plan.KIND}-"):
        return RepairPlans()
    if plan_id.startswith((f"{inactive_plan.TOPICS}-", f"{inactive_plan.SUBSCRIPTIONS}-")):
        return InactivePlans(plan_id)
    if delete_records_plan.holds_records(plan_id):
        return RecordsPlans()
    return RetentionPlans() if plan_id.startswith(f"{retention_planning.KIND}-") else OrphanPlans()


class _OfLedgers:
    """Plans whose summaries count ledgers."""

    what = "ledger"
    measure = FREES

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """How many go, of how many, and their bytes."""
        count = f"{show.counted(summary.ledgers, self.what)}, {share(summary)} of {summary.cluster_ledgers}"
        return [("deletes", count), ("frees", _sizes(summary))]


def _sizes(summary: PlanSummary) -> str:
    return f"{show.size(summary.physical_bytes)} on disk, {show.size(summary.logical_bytes)} logical"


class OrphanPlans(_OfLedgers):
    """Plans of ledgers that nothing refers to."""

    job = "apply_plan"
    needs_two_scans = True
    columns = ("ledger", "component", "topic", "entries", "frees", "made")

    def stored(self, lake: Lake, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """From the lake."""
        return lake.plan(plan_id)

    def digest(self, rows: pa.Table, summary: PlanSummary) -> str:
        """Over rows and facts."""
        return deletion_plan.digest(rows, summary.to_json())

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of ``apply_plan``."""
        return confirmed_orphans.run_config(summary)

    def sized(self, rows: pa.Table) -> pa.Table:
        """As they are."""
        return rows

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By component, and by code, each with the sentence of one of its ledgers."""
        listed = rows.to_pylist()
        said = {row["code"]: row["reason"] for row in reversed(listed)}
        codes = _grouped((row["code"], row["physical_bytes"]) for row in listed)
        return {
            "component": _grouped((_component(row), row["physical_bytes"]) for row in listed),
            "code": [(f"{code}: {said[code]}", ledgers, size) for code, ledgers, size in codes],
        }

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Ledger, component, topic, entries, bytes on disk, when it was made."""
        made, size = show.moment(row["ctime"]), show.size(row["physical_bytes"])
        return row["ledger_id"], _component(row), row["topic"], row["entries"], size, made


class RetentionPlans(_OfLedgers):
    """Plans of ledgers past their retention."""

    job = "apply_retention"
    needs_two_scans = False
    columns = ("ledger", "topic", "expired by", "set at", "since", "frees")

    def stored(self, lake: Lake, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """From the lake."""
        return lake.retention_plan(plan_id)

    def digest(self, rows: pa.Table, summary: PlanSummary) -> str:
        """Over rows and facts."""
        return retention_plan.digest(rows, summary.to_json())

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of ``apply_retention``."""
        return retention_planning.run_config(summary)

    def sized(self, rows: pa.Table) -> pa.Table:
        """What is in a bucket alone counts, too."""
        return retention_plan.as_capped(rows)

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By namespace, and by limit."""
        listed = rows.select(["namespace", "expired_by", "physical_bytes"]).to_pylist()
        return {
            name: _grouped((row[name], row["physical_bytes"]) for row in listed) for name in ("namespace", "expired_by")
        }

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Ledger, topic, limit, level, since when, bytes on disk."""
        since = show.moment(row["expired_at"]) if row["expired_at"] else None
        return row["ledger_id"], row["topic"], row["expired_by"], row["level"], since, show.size(row["physical_bytes"])


class LoadPlans:
    """Plans of topics to load; each stands under its last ledger."""

    measure = FREES
    job = "load_topics"
    needs_two_scans = False
    what = "topic"
    columns = ("last ledger", "topic", "needs", "frees", "logical", "of these at once", "rest from")

    def stored(self, lake: Lake, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """From the lake."""
        return lake.load_plan(plan_id)

    def digest(self, rows: pa.Table, summary: PlanSummary) -> str:
        """Over rows and facts."""
        return load_plan.digest(rows, summary.to_json())

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of ``load_topics``."""
        return load_planning.run_config(summary)

    def sized(self, rows: pa.Table) -> pa.Table:
        """What is in a bucket alone counts, too."""
        return load_plan.as_capped(rows)

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """How many topics, and what goes of them, sooner or later."""
        return [("loads", show.counted(summary.ledgers, self.what)), ("frees", _sizes(summary))]

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By namespace, and by need."""
        listed = rows.select(["namespace", "needs", "physical_bytes"]).to_pylist()
        return {
            "namespace": _grouped((row["namespace"], row["physical_bytes"]) for row in listed),
            "needs": _grouped((", ".join(row["needs"]), row["physical_bytes"]) for row in listed),
        }

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Last ledger, topic, needs, bytes on disk, logical ones, of these at once, when the rest is due."""
        rest = show.moment(row["second_visit_at"]) if row["second_visit_at"] else None
        sizes = (show.size(row[name]) for name in ("physical_bytes", "bytes", "bytes_at_once"))
        return row["ledger_id"], row["topic"], ", ".join(row["needs"]), *sizes, rest


class InactivePlans:
    """Plans of inactive topics, or of inactive subscriptions; each stands under a ledger."""

    measure = FREES
    needs_two_scans = False
    columns = ("ledger", "topic", "subscription", "unused since", "holds")

    def __init__(self, plan_id: str) -> None:
        self._subscriptions = plan_id.startswith(f"{inactive_plan.SUBSCRIPTIONS}-")
        self.what = "subscription" if self._subscriptions else "topic"
        self.job = "delete_inactive_subscriptions" if self._subscriptions else "delete_inactive_topics"

    def stored(self, lake: Lake, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """From the lake."""
        return lake.inactive_plan(plan_id)

    def digest(self, rows: pa.Table, summary: PlanSummary) -> str:
        """Over rows and facts."""
        return inactive_plan.digest(rows, summary.to_json())

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of :attr:`job`."""
        return inactive_planning.run_config(summary)

    def sized(self, rows: pa.Table) -> pa.Table:
        """The bytes of each topic once; what is in a bucket alone counts, too."""
        return inactive_plan.as_capped(rows)

    def facts(self, summary: PlanSummary, rows: pa.Table) -> list[tuple[str, str]]:
        """How many of how many topics; deleting a subscription frees nothing by itself."""
        topics = show.counted(len(rows.column("topic").unique()), "topic")
        size = _sizes(summary)
        if not self._subscriptions:
            return [("deletes", topics), ("frees", size)]
        several = show.counted(summary.ledgers, self.what)
        return [("deletes", f"{several} of {topics}"), ("keep", f"{size}, which retention may take then")]

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By namespace, and by evidence."""
        listed = self.sized(rows).select(["namespace", "evidence", "physical_bytes"]).to_pylist()
        return {
            name: _grouped((row[name], row["physical_bytes"]) for row in listed) for name in ("namespace", "evidence")
        }

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Ledger, topic, subscription, since when, bytes on disk."""
        since, size = show.moment(row["inactive_since"]), show.size(row["physical_bytes"] or 0)
        return row["ledger_id"], row["topic"], row.get("cursor"), since, size


class RecordsPlans(_OfLedgers):
    """Plans to delete records; each partition stands under the ledger of its low watermark."""

    job = "delete_records"
    needs_two_scans = False
    columns = ("ledger", "partition", "asked", "low watermark", "first readable", "frees", "error")

    def stored(self, lake: Lake, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """From the lake."""
        return lake.delete_records_plan(plan_id)

    def digest(self, rows: pa.Table, summary: PlanSummary) -> str:
        """Over rows and facts."""
        return delete_records_plan.digest(rows, summary.to_json())

    def run_config(self, summary: PlanSummary) -> dict[str, Any]:
        """Of ``delete_records``."""
        return records_planning.run_config(summary)

    def sized(self, rows: pa.Table) -> pa.Table:
        """The ledgers that go, one a row."""
        return delete_records_plan.as_capped(rows)

    def groups(self, rows: pa.Table) -> dict[str, Groups]:
        """By namespace, and by error."""
        listed = rows.select(["namespace", "error", "bytes"]).to_pylist()
        return {
            name: _grouped((row[name] or "none", row["bytes"]) for row in listed) for name in ("namespace", "error")
        }

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Ledger, partition, offset, low watermark, what remains readable, bytes on disk, error."""
        names = ("ledger_id", "topic", "asked", "low_watermark", "first_readable")
        return *(row[name] for name in names), show.size(row["bytes"]), row["error"]


class RepairPlans:
    """Plans of repairs of delayed indexes; each subscription stands under its newest snapshot. They free nothing."""

    what = "subscription"
    measure = "snapshots"
    job = "repair_delayed_index"
    needs_two_scans = False
    columns = ("snapshot", "topic", "subscription", "repair", "because", "messages")

    def stored(self, lake: Lake, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        """From the lake."""
        return lake.repair_plan(plan_id)

    def digest(self, rows: pa.Table, summary: PlanSummary) -> str:
        """Over rows and facts."""
        return delayed_index_plan.digest(rows, summary.to_json())

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
        listed = rows.select(["namespace", "level", "bytes"]).to_pylist()
        return {name: _grouped((row[name], row["bytes"]) for row in listed) for name in ("namespace", "level")}

    def line(self, row: dict[str, Any]) -> tuple[Any, ...]:
        """Snapshot, topic, subscription, level, codes, messages."""
        codes = ", ".join(row["codes"])
        return row["ledger_id"], row["topic"], row["subscription"], row["level"], codes, row["messages"]


def share(plan: PlanSummary) -> str:
    """How much of the cluster's ledgers it takes."""
    return f"{plan.ledgers / max(plan.cluster_ledgers, 1):.2%}"


def _grouped(sized: Any) -> Groups:
    ledgers: Counter[str] = Counter()
    bytes_: Counter[str] = Counter()
    for name, size in sized:
        ledgers[name] += 1
        bytes_[name] += size
    return [(name, count, show.size(bytes_[name])) for name, count in ledgers.most_common()]


def _component(row: dict[str, Any]) -> str:
    return "cursor" if row["component"] == "managed-ledger" and row["cursor"] else row["component"]
