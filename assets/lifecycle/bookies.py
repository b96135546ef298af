"""What the bookies' disks hold, what metadata places there, why they do not free the rest, and which are to collect.

Source of truth: the bookies' HTTP servers, against the newest scan's ``bookkeeper_ledgers``. Job ``collect_bookies``
applies the plan.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from assets.names import EPOCH, key
from assets.pages import show
from assets.pages.epochs import epoch_to_read
from assets.pages.growth import growth_result, growth_spec
from pulsar_lifecycle.automation_settings import Automation
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import (
    FULL_WITHIN_DAYS,
    UNWRITABLE,
    BookieDisk,
    DiskVerdict,
    fullest,
)
from pulsar_lifecycle.lifecycle.bookies.collection import PlannedCollection, remedies
from pulsar_lifecycle.lifecycle.bookies.collection_planning import make_collection_plan, run_config
from pulsar_lifecycle.lifecycle.bookies.disk_run import TABLE, build_bookie_disk, forecasts
from pulsar_lifecycle.lifecycle.bookies.placement import Placement
from pulsar_lifecycle.runs.progress import of_stages, reporting
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from resources.lifecycle import LifecycleResource

ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN
NAMED = 3
"""Bookies that the line of a check names; its table has all."""
WRITABLE, COMPACTING, FORECAST = "bookies_writable", "compaction_not_suspended", "disks_not_full_soon"
COLUMNS = {
    "bookie": "string",
    "verdict": "string",
    "detail": "string",
    "free": "string",
    "disks": "string",
    "entry logs": "string",
    "placed by metadata": "string",
    "under-replicated": "int",
    "to collect": "string",
    "to compact": "string",
    "full in": "string",
}


def bookie_assets(cluster: str) -> dg.AssetsDefinition:
    """``bookie_disk`` with its checks, and ``collection_plan``: the bookies are asked once for both."""
    disk, plan = key(cluster, "bookie_disk"), key(cluster, "collection_plan")
    checks = {
        WRITABLE: "Fails while a registered bookie is read-only, or one that holds ledgers is not registered.",
        COMPACTING: "Fails while a bookie's compaction is suspended, over the API or as a disk is too full.",
        FORECAST: f"Fails where a bookie's disks reach diskUsageThreshold within {FULL_WITHIN_DAYS} days, as the last "
        "two weeks went.",
    }

    @dg.multi_asset(
        name=f"{cluster}_bookies",
        specs=[
            dg.AssetSpec(
                disk,
                group_name="lifecycle",
                description="Per bookie: used and free bytes, entry logs, what the newest scan's metadata places "
                "there, and what it waits for before it frees the rest. Asks the bookies' HTTP servers; changes "
                "nothing.",
                deps=[key(cluster, name) for name in ("bookkeeper_ledgers", "scan_coverage", "bookkeeper")],
                kinds={"bookkeeper", "parquet"},
            ),
            dg.AssetSpec(
                plan,
                group_name="lifecycle",
                description="Which bookies could free much of their disks by collecting now. Making it changes "
                "nothing; job `collect_bookies` takes its id and digest.",
                deps=[disk],
                kinds={"parquet"},
            ),
        ],
        check_specs=[
            *(dg.AssetCheckSpec(name, asset=disk, description=description) for name, description in checks.items()),
            growth_spec(plan, "bookies"),
        ],
    )
    def bookies(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Iterator[dg.MaterializeResult]:
        where = lifecycle.cluster()
        epoch_id = epoch_to_read(context, where)
        with reporting(context.log.info, of_stages(where.spark)):
            disks, placement = build_bookie_disk(where, epoch_id)
        days = forecasts(where)
        yield dg.MaterializeResult(
            asset_key=disk,
            metadata={**show.stored(where, epoch_id, TABLE), **bookies_shown(disks, placement, days)},
            check_results=check_results(cluster, disks, days),
        )
        summary, judged = make_collection_plan(where, where.lake.epoch(epoch_id), disks)
        yield dg.MaterializeResult(
            asset_key=plan,
            metadata={
                EPOCH: epoch_id,
                "dagster/uri": show.plan_uri(where, summary.plan_id),
                **collection_shown(summary, judged, disks, where.settings.automation.bookies.mode),
            },
            data_version=dg.DataVersion(summary.digest),
            check_results=[growth_result(where, plan, summary, "bookies")],
        )

    return bookies


def collection_shown(
    summary: PlanSummary, judged: Sequence[PlannedCollection], disks: Sequence[BookieDisk], mode: Automation
) -> dict[str, Any]:
    """The plan's page: which bookies, how to apply it, why not the others, and settings that keep disks full."""
    head = show.planned(
        summary,
        run_config(summary),
        job="collect_bookies",
        nothing="No bookie could free `collection.min_bytes` by collecting.",
        then="Ledgers that a bookie has collected cannot be restored by an undo any more.",
        mode=mode,
    )
    others = {"why others stay": "column `plan` of table `plan` says it, by a code"}
    return {**head, **others, "could free, about": summary.physical_bytes, **judged_shown(judged, disks)}


def judged_shown(judged: Sequence[PlannedCollection], disks: Sequence[BookieDisk] = ()) -> dict[str, Any]:
    """Every bookie with what is done with it, those that collect first; of ``disks``, what settings keep them full."""
    rows = [
        {
            "bookie": row.bookie,
            "rack": row.rack,
            "plan": row.choice.value,
            "verdict": row.verdict.value,
            "could free": _size(row.bytes),
        }
        for row in judged
    ]
    found = [(one.bookie, text) for one in disks for text in remedies(one)]
    keeps = dg.MetadataValue.md(show.markdown(["bookie", "what keeps its disk full, what to set"], found))
    columns = dict.fromkeys(("bookie", "rack", "plan", "verdict", "could free"), "string")
    return {"plan": show.table(rows, columns), **({"settings": keeps} if disks else {})}


def bookies_shown(disks: Sequence[BookieDisk], placement: Placement, days: Mapping[str, float]) -> dict[str, Any]:
    """The page: totals, bookies by verdict, and those with the least room first."""
    known = [one for one in disks if one.status is not None]
    verdicts = [one.verdict for one in disks]
    return {
        "dagster/row_count": len(disks),
        "free bytes": sum(one.status.free for one in known if one.status) if known else "not known",
        "bytes placed by metadata": sum(one.placed.bytes for one in disks),
        "bytes to collect, with those of open ledgers": sum(one.bytes_to_collect or 0 for one in disks),
        "bytes to compact, at most": sum(one.bytes_to_compact or 0 for one in disks),
        "ledgers whose bookies are not known": placement.unknown,
        "by verdict": dg.MetadataValue.md(
            show.markdown(["verdict", "bookies"], [(v.value, verdicts.count(v)) for v in DiskVerdict if v in verdicts])
        ),
        "bookies": show.table([_row(one, days) for one in sorted(disks, key=_room)], COLUMNS),
    }


def check_results(cluster: str, disks: Sequence[BookieDisk], days: Mapping[str, float]) -> list[dg.AssetCheckResult]:
    """The checks; each names the bookies that it fails for."""
    unwritable = [one for one in disks if one.verdict in UNWRITABLE]
    suspended = [one for one in disks if one.verdict == DiskVerdict.SUSPENDED or _suspended_too(one)]
    soon = {bookie: left for bookie, left in days.items() if left < FULL_WITHIN_DAYS}
    return [
        _check(
            cluster,
            WRITABLE,
            {one.bookie: one.detail or one.verdict.value for one in unwritable},
            "take no entries",
            ERROR,
        ),
        _check(cluster, COMPACTING, {one.bookie: one.detail for one in suspended}, "have compaction suspended", WARN),
        _check(
            cluster,
            FORECAST,
            {bookie: f"{left:.1f} days" for bookie, left in soon.items()},
            f"reach diskUsageThreshold within {FULL_WITHIN_DAYS} days, as the last two weeks went",
            ERROR,
        ),
    ]


def _suspended_too(one: BookieDisk) -> bool:
    """Whether compaction is suspended on a bookie whose verdict is a worse one."""
    return one.status is not None and (one.status.minor_suspended or one.status.major_suspended)


TO_DO = {
    WRITABLE: 'Start what is down. Where a disk is full, have it freed: How-to page "Have bookies free their disks".',
    COMPACTING: "`pulsar-lifecycle compaction resume BOOKIE`, or make room where a full disk has done it: How-to page "
    '"Have bookies free their disks".',
    FORECAST: "`pulsar-lifecycle storage` says what holds the disk, and why: delete or offload more, have it "
    "collected (job `collect_bookies`), or add bookies.",
}
"""What to do about each check that fails."""


def _check(
    cluster: str, name: str, wrong: Mapping[str, str], what: str, severity: dg.AssetCheckSeverity
) -> dg.AssetCheckResult:
    first = ", ".join(sorted(wrong)[:NAMED])
    to_do = {"what to do": dg.MetadataValue.md(TO_DO[name])} if wrong else {}
    return dg.AssetCheckResult(
        asset_key=key(cluster, "bookie_disk"),
        check_name=name,
        passed=not wrong,
        severity=severity,
        description=f"bookies that {what}: {len(wrong)}, {first}" if wrong else f"no bookies {what}",
        metadata={
            "found": len(wrong),
            "bookies": dg.MetadataValue.md(show.markdown(["bookie", "why"], sorted(wrong.items()))),
            **to_do,
        },
    )


def _room(one: BookieDisk) -> float:
    return one.status.free / one.status.total if one.status and one.status.total else 0.0


def _row(one: BookieDisk, days: Mapping[str, float]) -> dict[str, Any]:
    left = days.get(one.bookie)
    return {
        "bookie": one.bookie,
        "verdict": one.verdict.value,
        "detail": one.detail,
        "free": f"{show.size(one.status.free)} of {show.size(one.status.total)}" if one.status else "",
        "disks": _disks(one),
        "entry logs": _size(one.log_bytes),
        "placed by metadata": show.size(one.placed.bytes),
        "under-replicated": one.placed.under_replicated,
        "to collect": _size(one.bytes_to_collect),
        "to compact": _size(one.bytes_to_compact),
        "full in": "" if left is None else f"{left:.1f} days",
    }


def _disks(one: BookieDisk) -> str:
    """How full each ledger disk is, the fullest first; all of them together where the bookie does not say."""
    each = one.status.directories or () if one.status else ()
    if not any(disk.usage for disk in each):
        share = fullest(one.status) if one.status else None
        return "" if share is None else f"{share:.1%}"
    return ", ".join(f"{disk.path} {_share(disk.usage)}" for disk in sorted(each, key=lambda disk: -(disk.usage or 0)))


def _share(usage: float | None) -> str:
    return "not known" if usage is None else f"{usage:.1%}"


def _size(count: int | None) -> str:
    return "" if count is None else show.size(count)
