"""Whether a plan may be applied: the scan it rests on, and its blast radius."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import NotFound, RefusedBy
from pulsar_lifecycle.runs.caps import Caps
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.epoch import Epoch, rests_on_withdrawn
from pulsar_lifecycle.values.plans.plan_kind import LEDGERS, counted_of
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.words import WordKind

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
        raise RefusedBy(
            RefusalCode.SCAN_GONE, f"plan {summary.plan_id}: its scan {summary.epoch_id} is not kept any more: {error}"
        ) from None
    if not 0 <= age <= valid_for_ms:
        raise RefusedBy(
            RefusalCode.SCAN_EXPIRED,
            f"plan {summary.plan_id}: its scan {summary.epoch_id} is "
            f"{plans.age_text(epoch.started_at, now, valid_for_ms)}; scan again and make a new one",
        )
    if why := rests_on_withdrawn(epoch, in_force):
        raise RefusedBy(RefusalCode.WORD_WITHDRAWN, f"plan {summary.plan_id}: {why}")


def within(rows: pa.Table, names: Collection[str]) -> pa.Table:
    """The rows (``topic``, ``namespace``) of these tenants, namespaces and full topic names; all of them for none."""
    if not names:
        return rows
    namespaces = rows.column("namespace").fill_null("")
    tenants = pc.list_element(pc.split_pattern(namespaces, "/", max_splits=1), 0)
    wanted = pa.array(sorted(names), pa.string())
    columns = (rows.column("topic").fill_null(""), namespaces, tenants)
    is_in = [pc.is_in(column, wanted) for column in columns]
    return rows.filter(pc.or_(pc.or_(is_in[0], is_in[1]), is_in[2]))


def check_caps(summary: PlanSummary, rows: pa.Table, caps: Caps) -> None:
    """Raise Refused naming the first cap that the rows to be applied exceed."""
    check_blast(rows, summary.cluster_ledgers, caps, counted_of(summary.plan_id))


def check_blast(rows: pa.Table, cluster_ledgers: int, caps: Caps, counted: str = LEDGERS) -> None:
    """:func:`check_caps` of any rows (``topic``, ``physical_bytes``), in a cluster of so many ledgers.

    ``counted``: what the rows are, in the plural.
    """
    if rows.num_rows > caps.max_ledgers:
        raise RefusedBy(
            RefusalCode.MAX_LEDGERS,
            f"max_ledgers: {rows.num_rows} {counted}, the cap is {caps.max_ledgers}; "
            "launch less at once, or raise apply.max_ledgers in the settings file",
        )
    share = rows.num_rows / max(cluster_ledgers, 1)
    if share > caps.max_share:
        raise RefusedBy(
            RefusalCode.MAX_SHARE,
            f"max_share: {share:.1%}: {rows.num_rows} {counted} beside the cluster's {cluster_ledgers} ledgers, "
            f"the cap is {caps.max_share:.1%}; look at what would go, then launch less at once, or raise "
            "apply.max_share in the settings file",
        )
    total = int(pc.sum(rows.column("physical_bytes")).as_py() or 0)
    if total > caps.max_bytes:
        raise RefusedBy(
            RefusalCode.MAX_BYTES,
            f"max_bytes: {total} bytes to free, the cap is {caps.max_bytes}; launch less at once, or raise "
            "apply.max_bytes in the settings file",
        )
    counts: Any = pc.value_counts(rows.column("topic"))
    for item in counts.to_pylist():
        if item["counts"] > caps.max_ledgers_per_topic:
            raise RefusedBy(
                RefusalCode.MAX_LEDGERS_PER_TOPIC,
                f"max_ledgers_per_topic: {item['counts']} {counted} of {item['values']}, "
                f"the cap is {caps.max_ledgers_per_topic} (apply.max_ledgers_per_topic in the settings file)",
            )
