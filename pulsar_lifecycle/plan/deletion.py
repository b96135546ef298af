# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportAttributeAccessIssue=false
# pyright: reportMissingTypeStubs=false
# pyarrow and pyroaring have no types.
"""Deletion plans: which orphans a second scan confirmed, the plan's digest, and its caps.

Belongs here: the plan as a value and everything that decides whether it may be applied. Not here: storing it, sending
it, deleting. A plan row carries what the deletion run compares again: component, owner, czxid and ctime.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from pulsar_lifecycle.errors import NotFound, Refused
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, PendingDeleteLedgerInfo
from pulsar_lifecycle.plan import artefact
from pulsar_lifecycle.plan.caps import Caps
from pulsar_lifecycle.plan.coverage import Epoch, rests_on_withdrawn
from pulsar_lifecycle.plan.orphans import Finding
from pulsar_lifecycle.plan.tables import FINDINGS
from pulsar_lifecycle.words import WordKind

PLAN = FINDINGS
"""A plan's rows are findings of kind ``orphan``, sorted by ledger id."""

FLOOR_SECONDS = 86_400
"""Neither grace period nor confirmation interval may be shorter, except on a cluster with the sandbox's marker."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What is stored beside a plan's rows and covered by nothing but itself; ``digest`` covers the rows.

    ``actionable`` is false for a report-only plan; ``gaps`` then says what was missing.
    """

    plan_id: str
    cluster: str
    fingerprint: str
    epoch_id: str
    confirmed_by: str
    created_at: int
    actionable: bool
    gaps: tuple[str, ...]
    ledgers: int
    logical_bytes: int
    physical_bytes: int
    cluster_ledgers: int
    digest: str

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PlanSummary:
        """The inverse of :meth:`to_json`. Raises ValueError for another shape."""
        return _SUMMARY.validate_python(document)


_SUMMARY = TypeAdapter(PlanSummary)
_FACTS = (
    *("plan_id", "cluster", "fingerprint", "epoch_id", "confirmed_by", "created_at", "actionable"),
    "cluster_ledgers",
)


def confirm(now: pa.Table, before: pa.Table) -> pa.Table:
    """Orphans of ``now`` that an earlier scan found too, the same z-node both times, sorted by ledger id."""
    keys = ["ledger_id", "czxid", "ctime"]
    orphans = now.filter(pc.equal(now.column("finding"), Finding.ORPHAN.value))
    earlier = before.select(keys).filter(pc.equal(before.column("finding"), Finding.ORPHAN.value))
    if not (orphans.num_rows and earlier.num_rows):
        return PLAN.empty_table()
    both: Any = orphans.join(earlier, keys=keys, join_type="left semi").select(PLAN.names)
    return artefact.by_id(both if both.schema.equals(PLAN) else both.cast(PLAN))


def digest(rows: pa.Table, summary: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the id-sorted canonical rows and the facts that make the plan actionable."""
    return artefact.digest(rows.select(PLAN.names), {name: summary[name] for name in _FACTS})


SWITCHED_OFF = (
    "two-phase deletion is switched off: deletion.topicTwoPhaseDeletionEnabled is false; "
    "what the queue holds stays there until it is true again"
)


def check_scan(
    summary: PlanSummary,
    epoch_of: Callable[[str], Epoch],
    now: int,
    valid_for_ms: int,
    in_force: Collection[tuple[WordKind, str]],
) -> None:
    """Raise Refused unless the plan's scan is kept and young, and proves something still.

    A plan is as old as what it was made of. ``epoch_of`` gives a scan by its id and raises NotFound; ``in_force``: the
    operator's words now.
    """
    try:
        epoch = epoch_of(summary.epoch_id)
        age = now - epoch.started_at
    except NotFound as error:
        raise Refused(f"plan {summary.plan_id}: its scan {summary.epoch_id} is not kept any more: {error}") from None
    if not 0 <= age <= valid_for_ms:
        raise Refused(
            f"plan {summary.plan_id}: its scan {summary.epoch_id} is {age // 60_000} minutes old, "
            f"valid for {valid_for_ms // 60_000}; scan again and make a new one"
        )
    if why := rests_on_withdrawn(epoch, in_force):
        raise Refused(f"plan {summary.plan_id}: {why}")


def check_caps(summary: PlanSummary, rows: pa.Table, caps: Caps) -> None:
    """Raise Refused naming the first cap that the rows to be applied exceed."""
    check_blast(rows, summary.cluster_ledgers, caps)


def check_blast(rows: pa.Table, cluster_ledgers: int, caps: Caps) -> None:
    """:func:`check_caps` of any rows (``topic``, ``physical_bytes``), in a cluster of so many ledgers."""
    if rows.num_rows > caps.max_ledgers:
        raise Refused(
            f"max_ledgers: {rows.num_rows} ledgers to delete, the cap is {caps.max_ledgers}; "
            "launch less at once, or raise apply.max_ledgers in the settings file"
        )
    share = rows.num_rows / max(cluster_ledgers, 1)
    if share > caps.max_share:
        raise Refused(
            f"max_share: {share:.1%} of the cluster's {cluster_ledgers} ledgers, "
            f"the cap is {caps.max_share:.1%}; look at what would go, then launch less at once, or raise "
            "apply.max_share in the settings file"
        )
    total = int(pc.sum(rows.column("physical_bytes")).as_py() or 0)
    if total > caps.max_bytes:
        raise Refused(
            f"max_bytes: {total} bytes to free, the cap is {caps.max_bytes}; launch less at once, or raise "
            "apply.max_bytes in the settings file"
        )
    counts: Any = pc.value_counts(rows.column("topic"))
    for item in counts.to_pylist():
        if item["counts"] > caps.max_ledgers_per_topic:
            raise Refused(
                f"max_ledgers_per_topic: {item['counts']} ledgers of {item['values']}, "
                f"the cap is {caps.max_ledgers_per_topic} (apply.max_ledgers_per_topic in the settings file)"
            )


def run_config(summary: PlanSummary) -> dict[str, Any]:
    """The run configuration with which Dagster's job ``apply_plan`` applies a plan under the settings' caps."""
    return {"ops": {"send_intents": {"config": {"plan_id": summary.plan_id, "digest": summary.digest}}}}


_COMPONENTS = {
    "managed-ledger": LedgerComponent.MANAGED_LEDGER,
    "schema": LedgerComponent.SCHEMA_STORAGE,
    "compacted-ledger": LedgerComponent.COMPACTED_LEDGER,
    "delayed-index-bucket": LedgerComponent.DELAYED_INDEX_BUCKET,
}


def component_of(tag: str, cursor: str | None) -> LedgerComponent:
    """The message's component for a ledger's tags; a cursor ledger is a managed ledger with a cursor tag."""
    return LedgerComponent.MANAGED_CURSOR if tag == "managed-ledger" and cursor else _COMPONENTS[tag]


def intents(rows: pa.Table, plan_id: str, sent_at: int) -> Iterable[PendingDeleteLedgerInfo]:
    """One message per plan row."""
    for row in rows.to_pylist():
        yield PendingDeleteLedgerInfo(
            topic_name=row["topic"],
            component=component_of(row["component"], row["cursor"]),
            ledger_id=row["ledger_id"],
            cursor_name=row["cursor"] or "",
            schema_id=row["schema_id"] or "",
            bucket_key=row["bucket_key"] or "",
            plan_id=plan_id,
            czxid=row["czxid"],
            ctime=row["ctime"],
            sent_at=sent_at,
        )
