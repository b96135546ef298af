"""Delayed indexes: what buckets hold, what is wrong with them, how many messages are due when, and the plan of repairs.

Source of truth: cursors' properties and snapshot ledgers, against the entries of their topics. Job
``repair_delayed_index`` applies the plan. ``namespace_delayed_index`` does all of it for chosen namespaces.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc

from assets.backfills import NO_MORE, by_namespace, pages_written, partitions_to_do
from assets.names import EPOCH, key
from assets.pages import lineage, show
from assets.pages.epochs import epoch_to_read, fingerprint_of
from assets.pages.growth import growth_result, growth_spec
from assets.pages.plots import due_as_text, messages_due
from pulsar_lifecycle.automation_settings import Automation
from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan, run_config
from pulsar_lifecycle.delayed_index.repair.repair_run import repair
from pulsar_lifecycle.delayed_index.repair.repair_work import Repaired
from pulsar_lifecycle.delayed_index.stored.check_run import (
    BUCKETS,
    CAPACITY,
    DUE,
    FINDINGS,
    SCHEMAS,
    Checked,
    check_delayed_indexes,
    chosen,
)
from pulsar_lifecycle.delayed_index.stored.rows import BYTES_IN_MEMORY
from pulsar_lifecycle.inspect.lake_tables import whole_table
from pulsar_lifecycle.journal.prometheus import published
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.progress import of_stages, reporting
from pulsar_lifecycle.scan.evidence import newest_epoch
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.delayed_index_plan import as_capped
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from resources.lifecycle import LifecycleResource

IN_TIME, ALL_READ = "delayed_messages_in_time", "delayed_indexes_read"
_CHECKS = {
    IN_TIME: "Fails where delayed messages are, or would be, late, early or never delivered.",
    ALL_READ: "Fails where an index, or the entries behind it, could not be read.",
}
_DESCRIPTIONS = {
    BUCKETS: "Every bucket of every delayed index: its range, messages, segments, times, bytes and state.",
    FINDINGS: "What is wrong with delayed indexes, by code, and what that does to messages.",
    DUE: "How many delayed messages are due, by hour and subscription, of those that have buckets.",
    "delayed_index_plan": "Which subscriptions' indexes are to be repaired, and how. Making it changes nothing; job "
    "`repair_delayed_index` takes its id and digest.",
}
_FORECAST = ("topic", "subscription", "hour", "messages", "first_ledger_id")
_AT_A_TIME = 10_000
"""Rows as Python objects."""
_SAMPLE = {
    "topic": "string",
    "subscription": "string",
    "code": "string",
    "harm": "string",
    "messages": "int",
    "bucket_key": "string",
    "first due": "string",
    "detail": "string",
}


def delayed_index_assets(cluster: str) -> dg.AssetsDefinition:
    """The tables of a scan's delayed indexes, with their checks, and the plan."""
    # Made once a night unless it goes by itself: by its tables, each scan would make it unsynced for a day.
    read = [key(cluster, "scan_coverage")]
    plan = key(cluster, "delayed_index_plan")
    specs = [
        dg.AssetSpec(
            key(cluster, name),
            group_name="delayed_index",
            description=description,
            deps=read if name == BUCKETS else [key(cluster, BUCKETS)],
            kinds={"pyspark", "parquet"},
        )
        for name, description in _DESCRIPTIONS.items()
    ]

    @dg.multi_asset(
        name=f"{cluster}_delayed_index",
        specs=specs,
        check_specs=[
            *(
                dg.AssetCheckSpec(name, asset=key(cluster, FINDINGS), description=said)
                for name, said in _CHECKS.items()
            ),
            growth_spec(plan, "delayed_index"),
        ],
    )
    def delayed_index(
        context: dg.AssetExecutionContext, lifecycle: LifecycleResource
    ) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        where = lifecycle.cluster()
        epoch_id = epoch_to_read(context, where)
        with published(where), reporting(context.log.info, of_stages(where.spark)):
            checked = check_delayed_indexes(where, epoch_id)
            summary, rows = make_repair_plan(where, where.lake.epoch(epoch_id))
        pages = {BUCKETS: buckets_shown, FINDINGS: findings_shown, DUE: due_shown}
        for name, page in pages.items():
            metadata = {**show.stored(where, epoch_id, name), **page(where, epoch_id)}
            yield dg.MaterializeResult(asset_key=key(cluster, name), metadata=metadata)
        yield dg.MaterializeResult(
            asset_key=plan,
            metadata={
                EPOCH: epoch_id,
                "dagster/uri": show.plan_uri(where, summary.plan_id),
                **show.over_caps(where, summary, as_capped(rows)),
                **plan_shown(summary, rows, where.settings.automation.delayed_index.mode),
            },
            data_version=dg.DataVersion(summary.digest),
            check_results=[growth_result(where, plan, summary, "delayed_index")],
        )
        yield from check_results(cluster, checked)

    return delayed_index


class NamespaceConfig(dg.Config):
    """As it ships, a backfill only looks and makes the plan."""

    dry_run: bool = True


def namespace_delayed_index_asset(cluster: str) -> dg.AssetsDefinition:
    """``namespace_delayed_index``, partitioned by namespace."""

    @by_namespace(
        cluster,
        "namespace_delayed_index",
        group_name="delayed_index",
        description="Delayed indexes of the chosen namespaces, by the newest scan: every subscription's delayed "
        "messages, also of those without buckets, and one plan of repairs for any selection, which it applies.",
        deps=[key(cluster, "journal")],
        kinds={"pyspark"},
    )
    def namespace_delayed_index(
        context: dg.AssetExecutionContext, config: NamespaceConfig, lifecycle: LifecycleResource
    ) -> Iterator[dg.MaterializeResult[Any]]:
        names = partitions_to_do(context)
        if not names:
            return
        where = lifecycle.cluster()
        epoch = newest_epoch(where, fingerprint_of(where))
        with reporting(context.log.info, of_stages(where.spark)):
            check_delayed_indexes(where, epoch.epoch_id, names)
        summary, rows = make_repair_plan(where, epoch, names)
        order = Order(summary.plan_id, summary.digest)
        done: list[Repaired] = []

        def page(name: str) -> dict[str, Any]:
            said: dict[str, Any] = {EPOCH: epoch.epoch_id, "plan id": summary.plan_id, "dry run": config.dry_run}
            said["runs"] = dg.MetadataValue.md(show.applied_by(summary.plan_id))
            said |= show.stored(where, epoch.epoch_id, FINDINGS)
            said |= show.everything(context.run.run_id, summary.plan_id, dry_run=config.dry_run)
            return {**said, **namespace_shown(where, epoch.epoch_id, name, rows, done)}

        with pages_written(context, names, page):
            with lineage.noted(context, where, summary.plan_id, dry_run=config.dry_run):
                repair(where, context.run.run_id, order, dry_run=config.dry_run, report=done.extend)
            check_repaired(done)
        yield from NO_MORE

    return namespace_delayed_index


def check_repaired(done: Sequence[Repaired]) -> None:
    """Fail where a subscription failed: what was done to the others stays done."""
    if failed := [one for one in done if one.outcome is Outcome.FAILED]:
        first = failed[0]
        raise dg.Failure(
            f"{len(failed)} of {len(done)} repairs failed, the first: {first.subscription} of {first.topic}: "
            f"{first.why.text}; launch it again"
        )


def namespace_shown(
    where: Cluster, epoch_id: str, name: str, rows: pa.Table, done: Sequence[Repaired]
) -> dict[str, Any]:
    """The page of one namespace: findings by code, what is due when, which repairs are planned, what became of them."""
    mine = [row for row in rows.to_pylist() if row["namespace"] == name]
    outcomes = Counter((one.level, one.outcome.value) for one in done if f"://{name}/" in one.topic)
    return {
        **findings_shown(where, epoch_id, name),
        "messages due": sum(row["messages"] for row in _rows(where, epoch_id, DUE, name)),
        "repairs planned": len(mine),
        "by outcome": dg.MetadataValue.md(
            show.markdown(["level", "outcome", "subscriptions"], [(*k, n) for k, n in outcomes.most_common()])
        ),
    }


def check_results(cluster: str, checked: Checked) -> list[dg.AssetCheckResult]:
    """Both checks."""
    red = [(code.value, count) for code, count in sorted(checked.red.items())]
    return [
        dg.AssetCheckResult(
            asset_key=key(cluster, FINDINGS),
            check_name=IN_TIME,
            passed=not red,
            description=f"findings: {', '.join(f'{count} {code}' for code, count in red)}; repair their indexes"
            if red
            else "no delayed message would be late, early or lost",
            metadata={
                "findings": sum(count for _, count in red),
                "by code": dg.MetadataValue.md(show.markdown(["code", "findings"], red)),
                "repairs": dg.MetadataValue.asset(key(cluster, "delayed_index_plan")),
            },
        ),
        dg.AssetCheckResult(
            asset_key=key(cluster, FINDINGS),
            check_name=ALL_READ,
            passed=not checked.unknown,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"findings of what could not be read: {checked.unknown}; they say why"
            if checked.unknown
            else "every index was read",
            metadata={"could not be read": checked.unknown},
        ),
    ]


def buckets_shown(where: Cluster, epoch_id: str) -> dict[str, Any]:
    """Totals, and what the index of each subscription takes of a broker's memory: in buckets, and all in memory."""
    by_subscription: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    states: Counter[str] = Counter()
    for row in _rows(where, epoch_id, BUCKETS):
        one = by_subscription[row["topic"], row["subscription"]]
        one.update(buckets=1, messages=row["messages"], waiting=row["messages_waiting"], bytes=row["bytes"])
        one["loaded"] += row["messages"] // max(1, row["segments"])
        states[row["state"]] += 1
    total = sum((one for one in by_subscription.values()), Counter[str]())
    largest = sorted(by_subscription.items(), key=lambda item: -item[1]["messages"])[: show.SAMPLE]
    cells = [
        (
            *names,
            one["buckets"],
            one["messages"],
            show.size(one["bytes"]),
            show.size(one["messages"] * BYTES_IN_MEMORY),
            show.size(one["loaded"] * BYTES_IN_MEMORY),
        )
        for names, one in largest
    ]
    headers = ["topic", "subscription", "buckets", "messages", "stored", "all in memory", "with buckets, about"]
    return {
        "dagster/row_count": sum(states.values()),
        "messages": total["messages"],
        "messages not due": total["waiting"],
        "bytes": total["bytes"],
        "bytes in brokers' memory, if all were there": total["messages"] * BYTES_IN_MEMORY,
        **shared_shown(where, epoch_id),
        "by state": dg.MetadataValue.md(show.markdown(["state", "buckets"], states.most_common())),
        "largest": dg.MetadataValue.md(show.markdown(headers, cells)),
    }


def shared_shown(where: Cluster, epoch_id: str) -> dict[str, Any]:
    """What one index for all subscriptions of a topic would save, and where most of it."""
    rows = sorted(_rows(where, epoch_id, CAPACITY), key=lambda row: row["shared_memory_bytes"] - row["memory_bytes"])
    saved = {name: sum(row[name] - row[f"shared_{name}"] for row in rows) for name in ("memory_bytes", "stored_bytes")}
    cells = [
        (
            row["topic"],
            row["subscriptions"],
            row["messages"],
            *(show.size(row[name]) for name in ("memory_bytes", "shared_memory_bytes")),
            *(show.size(row[name]) for name in ("stored_bytes", "shared_stored_bytes")),
        )
        for row in rows[: show.SAMPLE]
    ]
    headers = ["topic", "subscriptions", "messages", "in memory", "if shared", "stored", "if shared"]
    return {
        "bytes in memory that an index shared by a topic's subscriptions would save": saved["memory_bytes"],
        "bytes of snapshots that it would save": saved["stored_bytes"],
        "if shared": dg.MetadataValue.md(show.markdown(headers, cells)),
    }


def findings_shown(where: Cluster, epoch_id: str, namespace: str = "") -> dict[str, Any]:
    """Findings by code, and a sample of the worst first; of a ``namespace`` what was found when it was chosen."""
    rows = list(_rows(where, epoch_id, FINDINGS, namespace))
    counts = Counter((row["code"], row["harm"]) for row in rows)
    messages: Counter[tuple[str, str]] = Counter()
    for row in rows:
        messages[row["code"], row["harm"]] += row["messages"]
    order = {harm: place for place, harm in enumerate(("lost", "late", "early", "unknown", "memory", "space"))}
    worst = sorted(rows, key=lambda row: (order[row["harm"]], -row["messages"]))
    cells = [(*group, count, messages[group]) for group, count in counts.most_common()]
    return {
        "dagster/row_count": len(rows),
        "by code": dg.MetadataValue.md(show.markdown(["code", "harm", "findings", "messages"], cells)),
        "sample": show.table([row | {"first due": show.at(row["due"])} for row in worst[: show.SAMPLE]], _SAMPLE),
    }


def due_shown(where: Cluster, epoch_id: str) -> dict[str, Any]:
    """The forecast: a picture by hour and subscription, and the subscriptions that wait the longest."""
    hours: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    last: dict[tuple[str, str], tuple[int, int]] = {}
    for batch in whole_table(where, DUE, epoch_id, _FORECAST).to_batches(_AT_A_TIME):
        for row in batch.to_pylist():
            names = row["topic"], row["subscription"]
            hours[names][row["hour"]] += row["messages"]
            last[names] = max(last.get(names, (0, 0)), (row["hour"], row["first_ledger_id"]))
    latest = sorted(last.items(), key=lambda item: -item[1][0])[: show.SAMPLE]
    cells = [(*names, show.at(hour), ledger) for names, (hour, ledger) in latest]
    messages = sum(sum(counts.values()) for counts in hours.values())
    return {
        "dagster/row_count": messages,
        "messages due": messages,
        "by subscription": due_as_text(hours),
        "by hour": messages_due(hours),
        "pinned the longest": dg.MetadataValue.md(
            show.markdown(["topic", "subscription", "last due", "keeps its topic's ledgers from"], cells)
        ),
    }


def plan_shown(summary: PlanSummary, rows: pa.Table, mode: Automation) -> dict[str, Any]:
    """The plan's page: subscriptions by level, and how to apply it."""
    listed = rows.to_pylist()
    levels = Counter(row["level"] for row in listed)
    some = [row | {"codes": ", ".join(row["codes"])} for row in listed[: show.SAMPLE]]
    columns = {"topic": "string", "subscription": "string", "level": "string", "codes": "string", "messages": "int"}
    return {
        "by level": dg.MetadataValue.md(show.markdown(["level", "subscriptions"], levels.most_common())),
        **show.planned(
            summary,
            run_config(summary),
            job="repair_delayed_index",
            nothing="No delayed index needs a repair.",
            mode=mode,
        ),
        "sample": show.table(some, columns),
    }


def _rows(where: Cluster, epoch_id: str, table: str, namespace: str = "") -> Iterator[dict[str, Any]]:
    parts = where.lake.parts(epoch_id, chosen(table) if namespace else table)
    only = pc.field("namespace") == namespace if namespace else None
    for batch in where.lake.batches(parts, SCHEMAS[table].names, only):
        yield from batch.to_pylist()
