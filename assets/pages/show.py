"""How assets show ledgers: counts, bytes, reasons, a bounded sample. Not here: computing any of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import dagster as dg
import pyarrow as pa

from assets.names import APPLIED, APPLIED_PLAN, EPOCH
from pulsar_lifecycle.automation_settings import Automation
from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.inspect.catalog import OF_A_SCAN
from pulsar_lifecycle.inspect.kept_plans import known_kind
from pulsar_lifecycle.model import YEAR_10000
from pulsar_lifecycle.runs import plan_checks
from pulsar_lifecycle.runs.caps import effective_caps
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.plans.offload_plan import OffloadPlan
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary

SAMPLE = 50
"""Rows of a sample table."""
INLINE = 1000
"""Characters from which on Dagster shows a Markdown by a click only."""
SAMPLE_ALONE = f"a dry run keeps nothing but this page: name fewer at once to see more than the first {SAMPLE}"
"""How to see all of a dry run without a plan."""
NOTHING = "nothing"
"""What stands for a table without rows."""


def stored(where: Cluster, epoch_id: str, table: str) -> dict[str, Any]:
    """Where a table of a scan is, and how to see all of it."""
    assert table in OF_A_SCAN, table
    uri = where.lake.epoch_table(epoch_id, table)
    notebook = f'pulsar_lifecycle.read("{table}", epoch="{epoch_id}")'
    how = f"`pulsar-lifecycle table {table} --epoch {epoch_id}`, in a notebook `{notebook}`, with Spark `{uri}`"
    return {EPOCH: epoch_id, "dagster/uri": uri, "whole table": dg.MetadataValue.md(how)}


def unknown_policies(problems: Sequence[str]) -> dict[str, Any]:
    """Why policies are not known, where they are not."""
    return {"policies not known": "; ".join(problems)} if problems else {}


def size(count: int) -> str:
    """Bytes as an operator reads them."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def at(ms: int | None) -> str:
    """A time as pages show it; empty for none. Who delays a message may say any."""
    if ms and ms >= YEAR_10000:
        return "after the year 9999"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds") if ms and ms > 0 else ""


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> dg.MetadataValue:
    """A table of ``columns`` (name -> Dagster type), at most :data:`SAMPLE` rows; "nothing" where there is no row."""
    schema = dg.TableSchema([dg.TableColumn(name, kind) for name, kind in columns.items()])
    if not rows:
        return dg.MetadataValue.text(NOTHING)
    records = [dg.TableRecord({n: _plain(row.get(n)) for n in columns}) for row in rows[:SAMPLE]]
    return dg.MetadataValue.table(records, schema=schema)


def _plain(value: Any) -> Any:
    return "" if value is None else value if isinstance(value, int | float | bool) else str(value)


def markdown(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; the word "nothing" where it would have no rows."""
    rows = list(rows)
    if not rows:
        return NOTHING
    lines = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    lines += ["| " + " | ".join(str(_plain(cell)).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def bullets(items: Sequence[object], most: int = SAMPLE) -> dg.MetadataValue:
    """The first ``most`` of a list; the word "nothing" for an empty one, as text: it can be read without a click."""
    lines = "\n".join(f"- {item}" for item in items[:most])
    return dg.MetadataValue.md(lines) if lines else dg.MetadataValue.text(NOTHING)


def applied_by(plan_id: str, called: str = "") -> str:
    """A link, as Markdown, to the runs that applied a plan, those of backfills too; ``called``: instead of its id."""
    tag = quote(f"tag:{APPLIED_PLAN}{plan_id}={APPLIED}", safe="")
    return f"[Runs that applied {called or plan_id}](/runs?view=runs&q%5B0%5D={tag})"


def plan_uri(where: Cluster, plan_id: str) -> str:
    """Where the lake keeps a plan."""
    return f"{where.lake.location}/{known_kind(plan_id).folder}/{plan_id}"


def over_caps(where: Cluster, plan: PlanSummary, rows: pa.Table) -> dict[str, Any]:
    """Why a launch of all of a plan would be refused, where it would: ``rows`` as caps count them."""
    try:
        plan_checks.check_caps(plan, rows, effective_caps(where.settings.apply))
    except RefusedBy as refused:
        return {"beyond a cap": f"{refused.code.value}: {refused}"}
    return {}


def everything(run_id: str, plan_id: str = "", *, dry_run: bool = False) -> dict[str, Any]:
    """The command that shows all that a run's page has a sample of; a dry run keeps nothing but its plan, if any."""
    how = whole_plan(plan_id) if plan_id else SAMPLE_ALONE
    return {"all of it": dg.MetadataValue.md(how if dry_run else f"`pulsar-lifecycle journal --run {run_id}`")}


def whole_plan(plan_id: str) -> str:
    """The command, as Markdown, that shows a plan and every row of it."""
    return f"Whole plan: `pulsar-lifecycle plan {plan_id} --json`"


def by_itself(plan: PlanSummary | OffloadPlan, mode: Automation) -> str:
    """What a plan of a kind with that mode waits for, as Markdown; empty where only a person applies it."""
    if plan.ordered:
        return ""
    if mode is Automation.APPLY:
        return (
            "Sensor `automation` applies it by itself, unless a cap, its growth or its window is in the way: "
            "`pulsar-lifecycle automation` says so."
        )
    if mode is Automation.APPROVE:
        config = {"ops": {"approve": {"config": {"plan_id": plan.plan_id, "digest": plan.digest, "by": "YOU"}}}}
        launch = f"or job `approve_plan` with `{json.dumps(config)}`"
        return (
            f"Sensor `automation` applies it once approved, within its caps: "
            f"`pulsar-lifecycle approve {plan.plan_id} {plan.digest}`, {launch}."
        )
    return ""


def planned(
    plan: PlanSummary,
    run_config: Mapping[str, Any],
    *,
    job: str,
    nothing: str,
    then: str = "",
    mode: Automation = Automation.PLAN,
) -> dict[str, Any]:
    """What the page of every plan begins with, and which job takes it with which configuration.

    ``nothing`` is said of an empty one, or why none takes it; ``then``: what comes after it. ``mode``: how far its kind
    goes by itself.
    """
    if not plan.actionable:
        gaps = "\n".join(f"- {gap.line}" for gap in plan.gaps[:SAMPLE])
        how = f"**Report only: this plan cannot be applied.**\n\n{gaps}\n\n{whole_plan(plan.plan_id)}"
    elif not plan.ledgers:
        how = nothing
    else:
        alone = by_itself(plan, mode)
        how = f"{alone}\n\nBy hand: " if alone else ""
        how += f"Launch job `{job}` with this configuration:\n\n```json\n{json.dumps(run_config, indent=1)}\n```"
        how += f"\n\n{applied_by(plan.plan_id, 'it')}\n\n{whole_plan(plan.plan_id)}"
        how += f"\n\n{then}" if then else ""
    return {
        "dagster/row_count": plan.ledgers,
        "plan id": plan.plan_id,
        "digest": plan.digest,
        "actionable": plan.actionable,
        "how to apply": dg.MetadataValue.md(how),
        "why others stay": dg.MetadataValue.md("`pulsar-lifecycle explain`, with a ledger or a topic, says it"),
    }
