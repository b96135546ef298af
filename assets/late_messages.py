"""Check ``late_delayed_messages``: delayed messages that were due when their scan was judged, or are by now, and wait.

Source of truth: the newest stored findings of delayed indexes, by the clock of now: what was still to come when it was
found is late once its time has passed. Not here: finding anything (``assets/delayed_index.py``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import dagster as dg

from assets.names import key
from assets.pages import show
from assets.pages.frame import deps_updated
from pulsar_lifecycle.delayed_index.stored.check_run import FINDINGS, SCHEMAS
from pulsar_lifecycle.delayed_index.stored.index_codes import Harm
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.runs.cluster import Cluster
from resources.lifecycle import LifecycleResource

LATE = "late_delayed_messages"
LATE_BY = (Harm.LATE, Harm.LOST)
"""What keeps a message from its consumer although it is due."""
COLUMNS = {"topic": "string", "subscription": "string", "code": "string", "messages": "string", "due": "string"}


def late_messages_check(cluster: str) -> dg.AssetChecksDefinition:
    """The check, on ``delayed_messages_due``; it may be run alone, without reading an index again.

    Sensor ``after_scan`` does so after each scan: time makes messages late, and schedules read indexes but once a day.
    """

    @dg.asset_check(
        asset=key(cluster, "delayed_messages_due"),
        additional_deps=[key(cluster, "scan_coverage")],
        automation_condition=after_each_scan(),
        name=LATE,
        description="Fails where delayed messages are due by now, and by the newest check of indexes are delivered "
        "late or never. Reads stored findings only.",
    )
    def late_delayed_messages(lifecycle: LifecycleResource) -> dg.AssetCheckResult:
        where = lifecycle.without_spark()
        rows = newest_findings(where)
        return not_known() if rows is None else late_result(cluster, rows, where.clock.now_ms())

    return late_delayed_messages


def after_each_scan() -> dg.AutomationCondition[Any]:
    """Once a scan has ended, or indexes were read; never before any was."""
    return (
        deps_updated().since_last_handled()
        & ~dg.AutomationCondition.any_deps_missing()
        & ~dg.AutomationCondition.any_deps_in_progress()
        & ~dg.AutomationCondition.in_progress()
    ).with_label("after each scan")


def newest_findings(where: Cluster) -> list[Mapping[str, Any]] | None:
    """The rows that say late or lost, of the newest scan whose indexes were checked; None where none such counts.

    Dagster may know of one all the same: it was set aside with a restore, or is not kept any more.
    """
    for epoch in reversed(where.lake.epochs(cluster=where.settings.cluster)):
        try:
            parts = where.lake.parts(epoch.epoch_id, FINDINGS)
        except NotFound:
            continue
        batches = where.lake.batches(parts, SCHEMAS[FINDINGS].names)
        return [row for batch in batches for row in batch.to_pylist() if row["harm"] in LATE_BY]
    return None


def not_known() -> dg.AssetCheckResult:
    """A warning: red is what is known to be late, and no other asset of the run is to fail by it."""
    return dg.AssetCheckResult(
        check_name=LATE,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description="not known: there is no scan whose delayed indexes were checked; launch job check_delayed_index",
    )


def late_result(cluster: str, rows: Iterable[Mapping[str, Any]], now: int) -> dg.AssetCheckResult:
    """An error where messages that are due at ``now`` (ms) wait; a finding without a time counts as due."""
    due = sorted((row for row in rows if (row["due"] or 0) <= now), key=lambda row: row["due"] or 0)
    first = next((row["due"] for row in due if row["due"]), None)
    since = f", the first since {show.at(first)}" if first else ""
    return dg.AssetCheckResult(
        check_name=LATE,
        passed=not due,
        severity=dg.AssetCheckSeverity.ERROR,
        description=f"findings about messages that are due{since}: {len(due)}; repair their indexes"
        if due
        else "no delayed message that is due waits for its index",
        metadata={
            "findings": len(due),  # two may be about the same messages
            "late": show.table([{**row, **_known(row)} for row in due], COLUMNS),
            "repairs": dg.MetadataValue.asset(key(cluster, "delayed_index_plan")),
        },
    )


def _known(row: Mapping[str, Any]) -> dict[str, str]:
    """How many messages a finding is about, and when the first is due: a lost snapshot does not say."""
    return {"messages": str(row["messages"] or "not known"), "due": show.at(row["due"]) or "not known"}
